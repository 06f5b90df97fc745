/*-------------------------------------------------------------------------
 *
 * gateway.c
 *	  Consumers that wait for jobs over HTTP: thousands of them on a few
 *	  connections.
 *
 * POST /api/reserve asks for jobs that are there.  If there are none and the
 * caller waits, it is parked at a gate (gate.c): that of its principal, for its
 * lease, and for whether it holds other jobs.  A caller that hangs up is no longer parked.
 *
 * client/gateway.c
 *
 *-------------------------------------------------------------------------
 */
#include "gateway.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void parked_left(Request *request);

/*
 * The jobs that were there; or, behind an exclamation mark, for what the caller
 * waits.
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

	if (text[0] != '!')
	{
		Given	   *given = given_make();
		const char *tokens = strchr(text, ' ') + 1;
		const char *jobs = strchr(tokens, ' ') + 1;

		given->n = text[1] != '}';

		printfPQExpBuffer(&given->ids, "%.*s", (int) (tokens - text -2), text);
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
	/* the names and numbers that the caller has sent, and no payload */
	document = json_loads(text +1, 0, NULL);
	if (document == NULL)
	{
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body is no JSON that can be read");
		return;
	}

	parked = allocate(sizeof(Parked));
	parked->request = request;
	if (json_unpack(document, "{s:o, s:i, s:s, s:F, s:i}", "queues", &queues, "max", &parked->max,
					"lease", &lease, "wait", &wait, "held", &held) != 0)
		fatal(EXIT_REFUSED, "the answer to reserve() is wrong: %s", text);
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
	gate_run(parked->wish->gate);
}

/*
 * A caller waits no more.  Returns the gate, which is to be run.
 */
Gate *
unpark(Parked *parked)
{
	Wish	   *wish = parked->wish;
	Gate	   *gate = wish->gate;
	Parked	  **at = &gate->first;

	while (*at != parked)
		at = &(*at)->next;
	*at = parked->next;
	wish->wanted -= parked->max;
	if (--wish->ncallers == 0)
	{
		wish_take_out(wish);
		json_decref(wish->queues);
		free(wish);
	}
	parked->request->leave = NULL;
	parked->request->state = NULL;
	free(parked);
	return gate;
}

/*
 * A caller who waited has hung up.
 */
static void
parked_left(Request *request)
{
	Gate	   *gate = unpark(request->state);

	request_resume(request);
	gate_run(gate);
}

/*
 * Nobody is behind this request any more: if it waits here, it ends.
 */
void
gateway_refuse(Request *request)
{
	Gate	   *gate;

	if (request->leave != parked_left)
		return;
	gate = unpark(request->state);
	answer_refused(request);
	gate_run(gate);
}

/*
 * Whose time is over.
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
			/* that may have ended any gate */
			gate = left ? principal->gates : gate->next;
		}
		after = principal->next;
		principal_leave(principal);
	}
}

/*
 * Whether there are statements of gates, whose jobs are still to be given back.
 */
bool
gateway_waits(void)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
		if (principal->gates != NULL)
			return true;
	return false;
}
