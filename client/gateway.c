/*-------------------------------------------------------------------------
 *
 * gateway.c
 *	  Consumers that wait for jobs over HTTP: thousands of them on a few
 *	  connections.
 *
 * POST /api/reserve asks for jobs that are there.  If there are none and the
 * caller waits, it is parked at a gate: that of its principal, for its lease.  For
 * all who are parked at a gate one statement waits in reserve(), for the queues
 * of any of them.  What it gets is handed to those who have waited longest and
 * want jobs of that queue.  It waits in the name of this program: with a statement for
 * each name that callers have, thousands would wait for its turn.
 *
 * A caller that hangs up is no longer parked.  Jobs that are then nobody's, or
 * whose answer did not get through, go back to their queue at once, and no attempt
 * is charged.
 *
 * client/gateway.c
 *
 *-------------------------------------------------------------------------
 */
#include "web.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_QUEUES		16		/* that one statement waits for */
#define MAX_JOBS		100		/* that it takes */
#define SHORT_WAIT		0.25	/* if others wait for its place */
#define GATES_AT_A_TIME	4		/* of a principal: see pool.c */

/* The jobs that a caller is given; from when he has them it is he who has to end their leases. */
typedef struct Given
{
	int			n;
	PQExpBufferData jobs;		/* as JSON */
	PQExpBufferData ids;
	PQExpBufferData tokens;
} Given;

/* A caller who waits. */
typedef struct Parked
{
	struct Parked *next;
	Request    *request;
	struct Gate *gate;
	json_t	   *settings;		/* holds the names of its queues */
	int			max;
	double		until;
	Given	   *given;
} Parked;

typedef struct Gate
{
	struct Gate *next;
	Principal  *principal;
	char	   *lease;
	Parked	   *first;
	Parked	   *last;
	Statement	statement;
	bool		asked;			/* its statement is under way */
	bool		cancelled;
	int			nqueues;		/* for which it waits */
	char	   *queues[MAX_QUEUES];
	char	   *array;
	char		max[16];
	char		wait[32];
	const char *values[4];
} Gate;

typedef struct Release
{
	Statement	statement;
	Principal  *principal;
	Given	   *given;
	const char *values[2];
} Release;

static const char wait_sql[] =
"SELECT r.queue, r.id, r.token, row_to_json(r) FROM jobq.reserve($1::text[], $2::int4, $3::interval, $4::interval) AS r";
static const char release_sql[] = "SELECT jobq.release($1::int8[], $2::int8[])";

static void gate_run(Gate *gate);
static void gate_done(Statement *statement, PGresult *result, const char *why);
static void parked_left(Request *request);

static Given *
given_make(void)
{
	Given	   *given = allocate(sizeof(Given));

	initPQExpBuffer(&given->jobs);
	initPQExpBuffer(&given->ids);
	initPQExpBuffer(&given->tokens);
	appendPQExpBufferStr(&given->jobs, "{\"jobs\":[");
	appendPQExpBufferChar(&given->ids, '{');
	appendPQExpBufferChar(&given->tokens, '{');
	return given;
}

static void
given_add(Given *given, const char *id, const char *token, const char *job)
{
	const char *comma = given->n++ > 0 ? "," : "";

	appendPQExpBuffer(&given->ids, "%s%s", comma, id);
	appendPQExpBuffer(&given->tokens, "%s%s", comma, token);
	appendPQExpBufferStr(&given->jobs, comma);
	appendPQExpBufferStr(&given->jobs, job);
}

static void
given_free(Given *given)
{
	termPQExpBuffer(&given->jobs);
	termPQExpBuffer(&given->ids);
	termPQExpBuffer(&given->tokens);
	free(given);
}

static void
release_done(Statement *statement, PGresult *result, const char *why)
{
	Release    *release = statement->owner;

	/* a lease that is lost is not to be given back */
	if (result == NULL || PQresultStatus(result) != PGRES_TUPLES_OK)
		say("jobs %s could not be given back: %s", release->given->ids.data,
			result != NULL ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : why);
	given_free(release->given);
	principal_leave(release->principal);
	free(release);
}

/*
 * Give jobs back that nobody has got.
 */
static void
give_back(Principal *principal, Given *given)
{
	Release    *release;

	if (given->n == 0)
	{
		given_free(given);
		return;
	}
	release = allocate(sizeof(Release));
	appendPQExpBufferChar(&given->ids, '}');
	appendPQExpBufferChar(&given->tokens, '}');
	release->given = given;
	release->principal = principal;
	release->values[0] = given->ids.data;
	release->values[1] = given->tokens.data;
	release->statement = (Statement)
	{
		.sql = release_sql,.n = 2,.values = release->values,.done = release_done,.owner = release
	};
	principal_use(principal);
	pool_send(principal, &release->statement);
}

/*
 * The answer was sent, or was not.
 */
static void
given_sent(Request *request, bool whole)
{
	Given	   *given = request->state;

	request->state = NULL;
	if (given == NULL)
		return;
	if (whole)
		given_free(given);
	else
		give_back(request->principal, given);
}

/*
 * Give jobs to a caller who is there.
 */
static void
hand_over(Request *request, Given *given)
{
	request->state = given;
	request->sent = given_sent;
	request->leave = NULL;
	if (request->gone)
		/* given_sent() will know */
		request_resume(request);
	else
	{
		if (PQExpBufferDataBroken(given->jobs) || PQExpBufferDataBroken(given->ids) ||
			PQExpBufferDataBroken(given->tokens))
			fatal(EXIT_REFUSED, "out of memory");
		answer(request, MHD_HTTP_OK, "application/json", given->jobs.data, given->jobs.len);
	}
}

/*
 * The jobs that were there; or, behind an exclamation mark, for what the caller
 * waits.
 */
void
answer_reserve(Request *request, PGresult *result)
{
	const char *text = PQgetvalue(result, 0, 0);
	json_t	   *document;
	const char *lease;
	Parked	   *parked;
	Gate	   *gate;
	double		wait;

	if (text[0] != '!')
	{
		Given	   *given = given_make();
		const char *tokens = strchr(text, ' ') + 1;
		const char *jobs = strchr(tokens, ' ') + 1;

		given->n = text[1] != '}';

		printfPQExpBuffer(&given->ids, "%.*s", (int) (tokens - text -2), text);
		printfPQExpBuffer(&given->tokens, "%.*s", (int) (jobs - tokens - 2), tokens);
		printfPQExpBuffer(&given->jobs, "%s", jobs);
		hand_over(request, given);
		return;
	}
	/* the names and numbers that the caller has sent, and no payload */
	document = json_loads(text +1, 0, NULL);
	if (document == NULL)
	{
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the body is no JSON that can be read");
		return;
	}
	if (request->gone)
	{
		json_decref(document);
		request_resume(request);
		return;
	}

	parked = allocate(sizeof(Parked));
	parked->settings = document;
	parked->request = request;
	if (json_unpack(document, "{s:i, s:s, s:F}", "max", &parked->max, "lease", &lease, "wait", &wait) != 0)
		fatal(EXIT_REFUSED, "the answer to reserve() is wrong: %s", text);
	parked->until = web_now + wait;
	for (gate = request->principal->gates; gate != NULL; gate = gate->next)
		if (strcmp(gate->lease, lease) == 0)
			break;
	if (gate == NULL)
	{
		gate = allocate(sizeof(Gate));
		gate->principal = request->principal;
		gate->lease = copy_text(lease);
		gate->next = request->principal->gates;
		request->principal->gates = gate;
		principal_use(gate->principal);
	}
	parked->gate = gate;
	if (gate->last != NULL)
		gate->last->next = parked;
	else
		gate->first = parked;
	gate->last = parked;
	request->state = parked;
	request->leave = parked_left;
	gate_run(gate);
}

static void
unpark(Parked *parked)
{
	Gate	   *gate = parked->gate;
	Parked	   *before = NULL;

	for (Parked *p = gate->first; p != parked; p = p->next)
		before = p;
	if (before != NULL)
		before->next = parked->next;
	else
		gate->first = parked->next;
	if (gate->last == parked)
		gate->last = before;
	parked->request->leave = NULL;
	parked->request->state = NULL;
	json_decref(parked->settings);
	free(parked);
}

/*
 * A caller who waited has hung up.
 */
static void
parked_left(Request *request)
{
	Parked	   *parked = request->state;
	Gate	   *gate = parked->gate;

	unpark(parked);
	request_resume(request);
	if (gate->first == NULL)
		gate_run(gate);
}

static bool
wants(const Parked *parked, const char *queue)
{
	json_t	   *queues = json_object_get(parked->settings, "queues");

	for (size_t i = 0; i < json_array_size(queues); i++)
	{
		const char *name = json_string_value(json_array_get(queues, i));

		if (name != NULL && strcmp(name, queue) == 0)
			return true;
	}
	return false;
}

/*
 * The queues that those who are parked want.  Returns how many there are; those
 * beyond MAX_QUEUES are left out.
 */
static int
wanted_queues(const Gate *gate, const char **names)
{
	int			n = 0;

	for (const Parked *parked = gate->first; parked != NULL; parked = parked->next)
	{
		json_t	   *queues = json_object_get(parked->settings, "queues");

		for (size_t i = 0; i < json_array_size(queues); i++)
		{
			const char *name = json_string_value(json_array_get(queues, i));
			int			k = 0;

			while (name != NULL && k < n && strcmp(names[k], name) != 0)
				k++;
			if (name == NULL || k < n)
				continue;
			if (n == MAX_QUEUES)
				return n + 1;
			names[n++] = name;
		}
	}
	return n;
}

static void
gate_free(Gate *gate)
{
	Gate	  **at = &gate->principal->gates;
	Principal  *principal = gate->principal;

	while (*at != gate)
		at = &(*at)->next;
	*at = gate->next;
	free(gate->lease);
	free(gate);
	principal_leave(principal);
}

/*
 * Have the statement wait for what those who are parked want.  If it waits for
 * less, or for nobody, it is ended first.
 */
static void
gate_run(Gate *gate)
{
	const char *names[MAX_QUEUES];
	int			n = wanted_queues(gate, names);
	bool		too_many = n > MAX_QUEUES;
	int			ngates = 0;
	int			max = 0;
	double		until = 0;

	if (too_many)
		n = MAX_QUEUES;
	if (gate->asked)
	{
		bool		other = n == 0;

		for (int i = 0; i < n && !other && !too_many; i++)
		{
			int			k = 0;

			while (k < gate->nqueues && strcmp(gate->queues[k], names[i]) != 0)
				k++;
			other = k == gate->nqueues;
		}
		if (other && !gate->cancelled)
		{
			gate->cancelled = true;
			if (pool_withdraw(gate->principal, &gate->statement))
				gate_done(&gate->statement, NULL, NULL);
			else
				backend_cancel(&gate->statement);
		}
		return;
	}
	if (n == 0)
	{
		gate_free(gate);
		return;
	}

	for (int i = 0; i < n; i++)
		gate->queues[i] = copy_text(names[i]);
	gate->nqueues = n;
	for (Parked *parked = gate->first; parked != NULL; parked = parked->next)
	{
		max += max < MAX_JOBS ? parked->max : 0;
		until = fmax(until, parked->until);
	}
	for (Gate *other = gate->principal->gates; other != NULL; other = other->next)
		ngates++;
	gate->array = array_of(n, names);
	snprintf(gate->max, sizeof(gate->max), "%d", max < MAX_JOBS ? max : MAX_JOBS);
	snprintf(gate->wait, sizeof(gate->wait), "%.3f s",
			 fmin(fmax(until - web_now, 0.001), too_many || ngates > GATES_AT_A_TIME ? SHORT_WAIT : GATE_WAIT));
	gate->values[0] = gate->array;
	gate->values[1] = gate->max;
	gate->values[2] = gate->lease;
	gate->values[3] = gate->wait;
	gate->statement = (Statement)
	{
		.sql = wait_sql,.n = 4,.values = gate->values,.done = gate_done,.owner = gate,.waits = true
	};
	gate->asked = true;
	gate->cancelled = false;
	pool_send(gate->principal, &gate->statement);
}

/*
 * Who gets a job of this queue: whoever has waited longest, one job each before
 * anybody gets more.
 */
static Parked *
who_gets(Gate *gate, const char *queue)
{
	Parked	   *more = NULL;

	for (Parked *parked = gate->first; parked != NULL; parked = parked->next)
	{
		if ((parked->given != NULL && parked->given->n >= parked->max) || !wants(parked, queue))
			continue;
		if (parked->given == NULL)
			return parked;
		if (more == NULL)
			more = parked;
	}
	return more;
}

/*
 * The statement of a gate is done.  If we have cancelled it, it is begun anew for
 * those who are parked now.
 */
static void
gate_done(Statement *statement, PGresult *result, const char *why)
{
	Gate	   *gate = statement->owner;
	bool		good = result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK;
	bool		ended = gate->cancelled &&
		(result != NULL ? strcmp(sqlstate_of(result), "57014") == 0 : why == NULL);
	Given	   *nobodys = given_make();

	gate->asked = false;
	for (int i = 0; i < gate->nqueues; i++)
		free(gate->queues[i]);
	gate->nqueues = 0;
	free(gate->array);
	for (int row = 0; good && row < PQntuples(result); row++)
	{
		Parked	   *parked = who_gets(gate, PQgetvalue(result, row, 0));

		if (parked != NULL && parked->given == NULL)
			parked->given = given_make();
		given_add(parked != NULL ? parked->given : nobodys, PQgetvalue(result, row, 1),
				  PQgetvalue(result, row, 2), PQgetvalue(result, row, 3));
	}
	give_back(gate->principal, nobodys);
	for (Parked *parked = gate->first, *next; parked != NULL; parked = next)
	{
		Request    *request = parked->request;
		Given	   *given = parked->given;

		next = parked->next;
		if (given == NULL && (good || ended))
			continue;
		unpark(parked);
		if (given != NULL)
		{
			appendPQExpBufferStr(&given->jobs, "]}");
			hand_over(request, given);
		}
		else if (result != NULL)
			answer_error(request, result);
		else
			answer_no_connection(request, why);
	}

	/*
	 * if they want more queues than one statement waits for, the others come
	 * next
	 */
	if (gate->first != NULL && gate->first != gate->last)
	{
		Parked	   *first = gate->first;
		const char *names[MAX_QUEUES];

		if (wanted_queues(gate, names) > MAX_QUEUES)
		{
			gate->first = first->next;
			first->next = NULL;
			gate->last->next = first;
			gate->last = first;
		}
	}
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
		for (Gate *gate = principal->gates, *next_gate; gate != NULL; gate = next_gate)
		{
			bool		was = gate->first != NULL;

			next_gate = gate->next;
			for (Parked *parked = gate->first, *next; parked != NULL; parked = next)
			{
				Request    *request = parked->request;

				next = parked->next;
				if (web_now < parked->until)
					continue;
				unpark(parked);
				answer(request, MHD_HTTP_OK, "application/json", none, strlen(none));
			}
			if (was && gate->first == NULL)
				gate_run(gate);
		}
		after = principal->next;
		principal_leave(principal);
	}
}
