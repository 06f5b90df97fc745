/*-------------------------------------------------------------------------
 *
 * gate.c
 *	  A gate, where consumers of a principal wait for jobs, and its statement.
 *
 * Each gate runs one statement, which waits in jobq.reserve() for the queues of all
 * parked callers.  Each job goes to the caller with the longest wait for this queue.
 * The statement uses the consumer name of this program.  A statement for each consumer
 * name would put thousands of statements into the line of pool.c.
 *
 * The statement reserves at most as many jobs as the least wanted of its queues.
 * jobq.reserve() may take all jobs from a single queue, and an unwanted job would cost
 * its queue a rate token.  If a queue may have more jobs, and callers want them, the
 * next statement is for this queue alone and does not wait.
 *
 * The database may refuse a queue, or permit several queues only separately.  A caller
 * gets the error only if the statement was for its queues alone.  Otherwise the gate
 * is split: half of the refused wishes move to a second gate.  The gates merge again
 * after APART_TIME.
 *
 * client/web/gate.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/gateway.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS		100		/* per statement */
#define SHORT_WAIT		0.25	/* if other callers wait */
#define GATES_AT_A_TIME	4		/* of a principal: see pool.c */
#define APART_TIME		60.0	/* until refused queues are requested together
								 * again */

/*
 * This program builds the JSON of a row.  A function in the statement that may read
 * the database would keep the snapshot for the whole wait.
 */
#define BEFORE_JOB		3		/* columns */
static const char wait_sql[] =
"SELECT r.queue, r.id, r.token, r.* FROM jobq.reserve($1::text[], $2::int4, $3::interval, $4::interval, held => $5::int4) AS r";

static void gate_done(Statement *statement, PGresult *result, const char *why);

static Gate *
gate_make(Principal *principal, const char *lease, int held)
{
	Gate	   *gate = allocate(sizeof(Gate));

	gate->principal = principal;
	gate->lease = copy_text(lease);
	gate->held = held;
	gate->next = principal->gates;
	principal->gates = gate;
	principal_use(principal);
	return gate;
}

static void
gate_free(Gate *gate)
{
	Gate	  **at = &gate->principal->gates;
	Principal  *principal = gate->principal;

	while (*at != gate)
		at = &(*at)->next;
	*at = gate->next;
	free(gate->plenty);
	free(gate->lease);
	free(gate);
	principal_leave(principal);
}

static bool
gate_is_for(const Gate *gate, const char *lease, int held)
{
	return gate->held == held && strcmp(gate->lease, lease) == 0;
}

/*
 * Return the gate for calls with this lease and "held" that takes new wishes, or NULL.
 */
static Gate *
gate_for_new(const Principal *principal, const char *lease, int held)
{
	Gate	   *gate = principal->gates;

	while (gate != NULL && (gate->apart_until > 0 || !gate_is_for(gate, lease, held)))
		gate = gate->next;
	return gate;
}

static void
wish_add(Gate *gate, Wish *wish)
{
	Wish	  **at = &gate->wishes;

	while (*at != NULL)
		at = &(*at)->next;
	*at = wish;
	wish->next = NULL;
	wish->gate = gate;
}

static void
wish_take_out(Wish *wish)
{
	Wish	  **at = &wish->gate->wishes;

	while (*at != wish)
		at = &(*at)->next;
	*at = wish->next;
}

/*
 * Return the wish for these queues at a gate with this lease and "held".  Creates the
 * wish, and the gate, if necessary.
 */
Wish *
wish_for(Principal *principal, const char *lease, int held, json_t *queues)
{
	Gate	   *gate;
	Wish	   *wish;

	for (gate = principal->gates; gate != NULL; gate = gate->next)
		for (wish = gate->wishes; wish != NULL && gate_is_for(gate, lease, held); wish = wish->next)
			if (json_equal(wish->queues, queues))
				return wish;
	gate = gate_for_new(principal, lease, held);
	if (gate == NULL)
		gate = gate_make(principal, lease, held);
	wish = allocate(sizeof(Wish));
	wish->queues = json_incref(queues);
	wish_add(gate, wish);
	return wish;
}

/*
 * Remove a caller from its gate.  Returns the gate, for which gate_run() must be called
 * next.
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
	parked->request->refuse = NULL;
	parked->request->state = NULL;
	free(parked);
	return gate;
}

/*
 * Return the name of queue i of a wish, or NULL.
 */
static const char *
wish_queue(const Wish *wish, size_t i)
{
	return json_string_value(json_array_get(wish->queues, i));
}

static bool
wish_has(const Wish *wish, const char *queue)
{
	for (size_t i = 0; i < json_array_size(wish->queues); i++)
	{
		const char *name = wish_queue(wish, i);

		if (name != NULL && strcmp(name, queue) == 0)
			return true;
	}
	return false;
}

/*
 * Return how many jobs of a queue the parked callers want, at most MAX_JOBS.
 */
static int
wanted_of(const Gate *gate, const char *queue)
{
	int			wanted = 0;

	for (const Wish *wish = gate->wishes; wish != NULL; wish = wish->next)
		if (wish_has(wish, queue))
			wanted += wish->wanted;
	return wanted < MAX_JOBS ? wanted : MAX_JOBS;
}

/*
 * Add the queues of a wish, if there is room for all of them.
 */
static bool
add_queues(const Wish *wish, const char **names, int *n)
{
	int			after = *n;

	for (size_t i = 0; i < json_array_size(wish->queues); i++)
	{
		const char *name = wish_queue(wish, i);
		int			k = 0;

		while (name != NULL && k < after && strcmp(names[k], name) != 0)
			k++;
		if (name == NULL || k < after)
			continue;
		if (after == MAX_QUEUES)
			return false;
		names[after++] = name;
	}
	*n = after;
	return true;
}

/*
 * True if the running statement lacks a wanted queue.  Also true if callers have left,
 * and the statement may now take too many jobs of a queue.
 */
static bool
is_outdated(const Gate *gate)
{
	for (int i = 0; i < gate->nqueues; i++)
		if (wanted_of(gate, gate->queues[i]) < gate->most)
			return true;
	/* a brief statement ends soon; the next includes the queue */
	for (const Wish *wish = gate->wishes; wish != NULL && !gate->brief; wish = wish->next)
		for (size_t i = 0; i < json_array_size(wish->queues) && !wish->asked; i++)
		{
			const char *name = wish_queue(wish, i);
			int			k = 0;

			while (name != NULL && k < gate->nqueues && strcmp(gate->queues[k], name) != 0)
				k++;
			if (name != NULL && k == gate->nqueues)
				return true;
		}
	return false;
}

/*
 * Send a statement that waits for the jobs wanted by the parked callers.
 */
static void
gate_ask(Gate *gate)
{
	const char *names[MAX_QUEUES];
	int			n = 0;
	int			ngates = 0;
	double		until = 0;
	double		wait;
	bool		left_out = false;

	gate->nwishes = 0;
	for (Wish *wish = gate->wishes; wish != NULL; wish = wish->next)
	{
		wish->asked = add_queues(wish, names, &n);
		gate->nwishes += wish->asked;
		left_out |= !wish->asked;
	}
	gate->most = MAX_JOBS;
	for (int i = 0; i < n; i++)
	{
		int			wanted = wanted_of(gate, names[i]);

		if (wanted < gate->most)
			gate->most = wanted;
	}
	for (Parked *parked = gate->first; parked != NULL; parked = parked->next)
		until = fmax(until, parked->until);
	for (Gate *other = gate->principal->gates; other != NULL; other = other->next)
		ngates++;
	wait = fmin(fmax(until - web_now, 0.001), left_out || ngates > GATES_AT_A_TIME ? SHORT_WAIT : GATE_WAIT);
	gate->brief = left_out;
	if (gate->plenty != NULL && wanted_of(gate, gate->plenty) > gate->most)
	{
		for (Wish *wish = gate->wishes; wish != NULL; wish = wish->next)
			wish->asked = false;
		gate->nwishes = 0;
		names[0] = gate->plenty;
		n = 1;
		gate->most = wanted_of(gate, gate->plenty);
		wait = 0;
		gate->brief = true;
	}

	for (int i = 0; i < n; i++)
		gate->queues[i] = copy_text(names[i]);
	gate->nqueues = n;
	gate->array = array_of(n, names);
	free(gate->plenty);
	gate->plenty = NULL;
	snprintf(gate->max, sizeof(gate->max), "%d", gate->most);
	snprintf(gate->wait, sizeof(gate->wait), "%.3f s", wait);
	gate->values[0] = gate->array;
	gate->values[1] = gate->max;
	gate->values[2] = gate->lease;
	gate->values[3] = gate->wait;
	gate->values[4] = gate->held < 0 ? NULL : gate->held == 0 ? "0" : "1";
	gate->statement = (Statement)
	{
		.sql = wait_sql,.n = 5,.values = gate->values,.done = gate_done,.owner = gate,.waits = true
	};
	gate->asked = true;
	gate->cancelled = false;
	pool_send(gate->principal, &gate->statement);
}

/*
 * Make the gate's statement match the parked callers.  Free the gate if no caller is
 * parked.
 */
void
gate_run(Gate *gate)
{
	if (!gate->asked)
	{
		if (gate->first != NULL)
			gate_ask(gate);
		else
			gate_free(gate);
	}
	else if (!gate->cancelled && is_outdated(gate))
	{
		gate->cancelled = true;
		if (pool_withdraw(gate->principal, &gate->statement))
			gate_done(&gate->statement, NULL, NULL);
		else
			backend_cancel(&gate->statement);
	}
}

/*
 * Move callers to the gate to which their wishes have moved.  The list there stays
 * sorted by waiting time.
 */
static void
callers_follow(Gate *from, Gate *to)
{
	Parked	  **place = &to->first;

	for (Parked **at = &from->first; *at != NULL;)
	{
		Parked	   *parked = *at;

		if (parked->wish->gate != to)
		{
			at = &parked->next;
			continue;
		}
		*at = parked->next;
		while (*place != NULL && (*place)->since <= parked->since)
			place = &(*place)->next;
		parked->next = *place;
		*place = parked;
		place = &parked->next;
	}
}

/*
 * The database has refused the queues of these wishes together.  Move half of the
 * wishes to a new gate.
 */
static void
gate_split(Gate *gate)
{
	int			n = 0;
	int			keeps;
	Gate	   *other;

	for (Wish *wish = gate->wishes; wish != NULL; wish = wish->next)
		n += wish->asked;
	if (n < 2)
		return;					/* the other callers have left */
	other = gate_make(gate->principal, gate->lease, gate->held);
	other->apart_until = web_now + APART_TIME;
	keeps = (n + 1) / 2;
	for (Wish *wish = gate->wishes, *next; wish != NULL; wish = next)
	{
		next = wish->next;
		if (!wish->asked || keeps-- > 0)
			continue;
		wish_take_out(wish);
		wish_add(other, wish);
	}
	callers_follow(gate, other);
	gate_run(other);
}

/*
 * Merge a gate that was apart for APART_TIME into the gate for new wishes.
 */
static void
gate_join(Gate *gate)
{
	Gate	   *other = gate_for_new(gate->principal, gate->lease, gate->held);

	if (other == NULL)
	{
		gate->apart_until = 0;
		return;
	}
	while (gate->wishes != NULL)
	{
		Wish	   *wish = gate->wishes;

		wish_take_out(wish);
		wish->asked = false;
		wish_add(other, wish);
	}
	callers_follow(gate, other);
	gate_run(other);
}

/*
 * Move the wishes of the last statement to the end.  Wishes that were left out come
 * first in the next statement.
 */
static void
gate_rotate(Gate *gate)
{
	Wish	   *last = gate->wishes;

	while (last != NULL && last->next != NULL)
		last = last->next;
	for (Wish *wish = gate->wishes, *next; wish != last; wish = next)
	{
		next = wish->next;
		if (!wish->asked)
			continue;
		wish_take_out(wish);
		wish_add(gate, wish);
	}
}

/*
 * Return the caller that gets a job of this queue, or NULL.  The caller with the
 * longest wait comes first.  Each caller gets a first job before any caller gets a
 * second job.
 */
static Parked *
who_gets(Gate *gate, const char *queue)
{
	Parked	   *more = NULL;

	for (Parked *parked = gate->first; parked != NULL; parked = parked->next)
	{
		if ((parked->given != NULL && parked->given->n >= parked->max) || !wish_has(parked->wish, queue))
			continue;
		if (parked->given == NULL)
			return parked;
		if (more == NULL)
			more = parked;
	}
	return more;
}

/*
 * Callback: the statement of a gate has ended.  If this program has cancelled the
 * statement, a new statement starts for the callers parked now.
 */
static void
gate_done(Statement *statement, PGresult *result, const char *why)
{
	Gate	   *gate = statement->owner;
	bool		good = result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK;
	bool		ended = gate->cancelled &&
		(result != NULL ? strcmp(sqlstate_of(result), "57014") == 0 : why == NULL);
	bool		error = result != NULL && !good && !ended;
	int			n = good ? PQntuples(result) : 0;
	Given	   *nobodys = given_make();

	gate->asked = false;
	for (int row = 0; row < n; row++)
	{
		Parked	   *parked = who_gets(gate, PQgetvalue(result, row, 0));
		char	   *job = row_text(result, row, BEFORE_JOB);

		if (parked != NULL && parked->given == NULL)
			parked->given = given_make();
		given_add(parked != NULL ? parked->given : nobodys, PQgetvalue(result, row, 1),
				  PQgetvalue(result, row, 2), job);
		free(job);
	}
	given_back(gate->principal, nobodys);
	if (n > 0 && n == gate->most && gate->nwishes > 0)
		gate->plenty = copy_text(PQgetvalue(result, n - 1, 0));
	for (int i = 0; i < gate->nqueues; i++)
		free(gate->queues[i]);
	gate->nqueues = 0;
	free(gate->array);
	for (Parked *parked = gate->first, *next; parked != NULL; parked = next)
	{
		Request    *request = parked->request;
		Given	   *given = parked->given;
		bool		his_error = error && gate->nwishes == 1 && parked->wish->asked;

		next = parked->next;
		if (given == NULL && !his_error && (result != NULL || ended))
			continue;
		unpark(parked);
		if (given != NULL)
		{
			appendPQExpBufferStr(&given->jobs, "]}");
			given_hand_over(request, given);
		}
		else if (his_error)
			answer_error(request, result);
		else
			answer_no_connection(request, why);
	}

	if (error && gate->nwishes > 1)
		gate_split(gate);
	else if (gate->apart_until > 0 && web_now > gate->apart_until && gate->first != NULL)
		gate_join(gate);
	else if (gate->brief)
		gate_rotate(gate);
	gate_run(gate);
}
