/*-------------------------------------------------------------------------
 *
 * gateway.c
 *	  Consumers waiting for jobs over HTTP.  Thousands of consumers share a few
 *	  connections to the database.
 *
 * POST /api/reserve first asks for ready jobs.  If there are none and the caller wants to
 * wait, the caller is parked at a gate (gate.c).  A gate is for a principal, a lease, and
 * whether the caller holds other jobs.  A caller is no longer parked after a hang-up.
 *
 * client/web/gateway.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parked_left(Request *request);
static void parked_refuse(Request *request);

/*
 * Answer POST /api/reserve.  The result has the jobs, or an exclamation mark and the
 * parameters of the wait as JSON.
 */
void
answer_reserve(Request *request, PGresult *result)
{
	const char *text = PQgetvalue(result, 0, 0);
	json_t	   *document;
	json_t	   *queues;
	const char *lease;
	Parked	   *parked;
	Parked	  **at;
	double		wait;
	int			held;
	int			max;

	if (text[0] != '!')
	{
		Given	   *given = given_make();
		const char *tokens = strchr(text, ' ') + 1;
		const char *jobs = strchr(tokens, ' ') + 1;

		given->n = text[1] != '}';

		printfPQExpBuffer(&given->ids, "%.*s", (int) (tokens - text - 2), text);
		printfPQExpBuffer(&given->tokens, "%.*s", (int) (jobs - tokens - 2), tokens);
		printfPQExpBuffer(&given->jobs, "%s", jobs);
		given_hand_over(request, given);
		return;
	}
	if (request->gone)
	{
		request_resume(request);
		return;
	}
	if (request->refused)
	{
		answer_refused(request);
		return;
	}
	/* names and numbers from the request, no payload */
	document = json_loads(text + 1, 0, NULL);
	if (document == NULL)
	{
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body is no JSON that can be read");
		return;
	}

	if (json_unpack(document, "{s:o, s:i, s:s, s:F, s:i}", "queues", &queues, "max", &max,
					"lease", &lease, "wait", &wait, "held", &held) != 0)
	{
		json_decref(document);
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body is no JSON that can be read");
		return;
	}
	parked = allocate(sizeof(Parked));
	parked->request = request;
	parked->max = max;
	parked->since = web_now;
	parked->until = web_now + wait;
	parked->wish = wish_for(request->principal, lease, held > 0 ? 1 : held, queues);
	parked->wish->ncallers++;
	parked->wish->wanted += parked->max;
	json_decref(document);
	for (at = &parked->wish->gate->first; *at != NULL;)
		at = &(*at)->next;
	*at = parked;
	request->state = parked;
	request->leave = parked_left;
	request->refuse = parked_refuse;
	gate_run(parked->wish->gate);
}

/*
 * A parked caller has hung up.
 */
static void
parked_left(Request *request)
{
	Gate	   *gate = unpark(request->state);

	request_resume(request);
	gate_run(gate);
}

/*
 * The session or the token of a parked caller has ended.
 */
static void
parked_refuse(Request *request)
{
	Gate	   *gate = unpark(request->state);

	answer_refused(request);
	gate_run(gate);
}

/*
 * Answer parked callers after their waiting time, with no jobs.
 */
void
gateway_tick(void)
{
	static const char none[] = "{\"jobs\":[]}";

	for (Principal *principal = principals, *after; principal != NULL; principal = after)
	{
		principal_use(principal);
		for (Gate *gate = principal->gates; gate != NULL;)
		{
			bool		left = false;

			for (Parked *parked = gate->first, *next; parked != NULL; parked = next)
			{
				Request    *request = parked->request;

				next = parked->next;
				if (web_now < parked->until)
					continue;
				unpark(parked);
				answer(request, MHD_HTTP_OK, "application/json", none, strlen(none));
				left = true;
			}
			if (left)
				gate_run(gate);
			/* gate_run() may have freed any gate */
			gate = left ? principal->gates : gate->next;
		}
		after = principal->next;
		principal_leave(principal);
	}
}

/*
 * True while gates exist.  Jobs that their statements may still get must be given back.
 */
bool
gateway_waits(void)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		if (principal->gates != NULL)
			return true;
	return false;
}
