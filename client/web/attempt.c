/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  Limits on the attempts of strangers: to log in, or to use a link.
 *
 * An attempt waits in a queue until the limits of its address and of its name allow a start.
 * The name is that of the role, or empty for a link.  Then the attempt holds a slot of both.  A
 * success frees the slots at once.  A failure, by a wrong password or link, frees the slots after
 * FAILURE_PAUSE, even if the caller has hung up.  An address therefore fails at most MAX_OF_ADDRESS
 * times in FAILURE_PAUSE.
 *
 * The limit of a name applies to addresses with a recent failure under this name.  An address
 * without a failure needs no slot of the name, and some connections to the database are reserved
 * for such attempts.  Attempts by others therefore never delay a right password from an address
 * without failures.
 *
 * Each database has limits and failures of its own: attempts in a database that does not
 * answer never delay attempts in another database.
 *
 * client/web/attempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/inner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define FAILURE_PAUSE	1.0		/* until a failure is answered, and its slots
								 * are free */
#define MAX_OF_ADDRESS	4		/* slots */
#define MAX_OF_ROLE		8
#define MAX_PROVING		16		/* concurrent checks by the server, of log-ins
								 * or of links */
#define MAX_PROVING_AGAIN	12	/* part of MAX_PROVING; for addresses with a
								 * failure or a slot */
#define MAX_IN_LINE		16		/* per address */
#define LINE_TIME		15.0	/* in the queue */
#define MAX_FAILURES	4096	/* size of the ring */
#define FAILURE_TIME	300.0	/* lifetime of an entry */

/* The attempts of an address or under a name in a database. */
typedef struct Tally
{
	LIST_ENTRY(Tally) all;
	const WebDatabase *database;
	char		key[MOST_OF_ROLE + 1];
	int			n;				/* attempts */
	int			waiting;		/* attempts in the queue */
	int			places;			/* attempts holding a slot */
} Tally;

typedef enum AttemptState
{
	ATTEMPT_WAITS,				/* in the queue; next: ATTEMPT_PROVES */
	ATTEMPT_PROVES,				/* the server checks the password or link;
								 * next: ATTEMPT_RESTS, or success */
	ATTEMPT_RESTS				/* failed; answered at "until" */
} AttemptState;

struct Attempt
{
	TAILQ_ENTRY(Attempt) all;
	Request    *request;		/* NULL: the caller has hung up */
	WebDatabase *database;
	AttemptState state;
	Tally	   *address;
	Tally	   *role;
	char		name[MOST_OF_ROLE + 1];
	void		(*begin) (Attempt *attempt);
	void		(*forget) (void *owner);
	void	   *owner;
	bool		failed_before;	/* this address has a recent failure */
	bool		failed_as_role; /* the same, under this name */
	double		until;
	unsigned	status;			/* of the answer */
	char	   *why;
};

typedef struct Failure
{
	const WebDatabase *database;
	Address		address;
	char		role[MOST_OF_ROLE + 1];
	double		at;				/* 0: none */
} Failure;

LIST_HEAD(TallyList, Tally);

static TAILQ_HEAD(, Attempt) attempts = TAILQ_HEAD_INITIALIZER(attempts);	/* oldest first */
static struct TallyList addresses;
static struct TallyList roles;
static int	nproving[MAX_DATABASES][2]; /* of each database: log-ins, links */
static Failure failures[MAX_FAILURES];	/* a ring */
static int	next_failure;

static void attempt_left(Request *request);

/*
 * The number of concurrent checks of the same sort in the same database.  Links, which are slow
 * if the server is, never delay a log-in.
 */
static int *
proving_of(const Attempt *attempt)
{
	return &nproving[attempt->database - web_databases][attempt->name[0] == '\0'];
}

static Tally *
tally_of(struct TallyList *list, const WebDatabase *database, const char *key)
{
	Tally	   *tally;

	LIST_FOREACH(tally, list, all)
		if (tally->database == database && memcmp(tally->key, key, sizeof(tally->key)) == 0)
		return tally;
	tally = allocate(sizeof(Tally));
	tally->database = database;
	memcpy(tally->key, key, sizeof(tally->key));
	LIST_INSERT_HEAD(list, tally, all);
	return tally;
}

static void
tally_leave(Tally *tally)
{
	if (--tally->n > 0)
		return;
	LIST_REMOVE(tally, all);
	free(tally);
}

/*
 * Change the state of an attempt, and the counts of its address and role.
 */
static void
attempt_becomes(Attempt *attempt, AttemptState state)
{
	Tally	   *const tallies[] = {attempt->address, attempt->role};

	if (attempt->state == ATTEMPT_WAITS && state == ATTEMPT_PROVES)
		for (int i = 0; i < 2; i++)
		{
			tallies[i]->waiting--;
			tallies[i]->places++;
		}
	*proving_of(attempt) += (state == ATTEMPT_PROVES) - (attempt->state == ATTEMPT_PROVES);
	attempt->state = state;
}

static void
attempt_free(Attempt *attempt)
{
	Tally	   *const tallies[] = {attempt->address, attempt->role};

	for (int i = 0; i < 2; i++)
	{
		if (attempt->state == ATTEMPT_WAITS)
			tallies[i]->waiting--;
		else
			tallies[i]->places--;
		tally_leave(tallies[i]);
	}
	*proving_of(attempt) -= attempt->state == ATTEMPT_PROVES;
	if (attempt->request != NULL)
	{
		attempt->request->leave = NULL;
		attempt->request->state = NULL;
	}
	TAILQ_REMOVE(&attempts, attempt, all);
	attempt->forget(attempt->owner);
	free(attempt->why);
	free(attempt);
}

/*
 * Answer a failed attempt, if the caller is still connected, and free it.
 */
static void
attempt_refuse(Attempt *attempt, unsigned status, const char *why)
{
	Request    *request = attempt->request;

	if (request != NULL)
	{
		request->leave = NULL;
		request->state = NULL;
		attempt->request = NULL;
		answer_problem(request, status, why);
	}
	attempt_free(attempt);
}

/*
 * Find a recent failure of an address and a role in a database; NULL for any role.
 */
static Failure *
failure_of(const WebDatabase *database, const Address *address, const char *role)
{
	for (int i = 0; i < MAX_FAILURES; i++)
		if (failures[i].at > 0 && web_now < failures[i].at + FAILURE_TIME &&
			failures[i].database == database && memcmp(&failures[i].address, address, sizeof(Address)) == 0 &&
			(role == NULL || strcmp(failures[i].role, role) == 0))
			return &failures[i];
	return NULL;
}

static void
failure_add(const WebDatabase *database, const Address *address, const char *role)
{
	Failure    *failure = failure_of(database, address, role);

	if (failure == NULL)
	{
		failure = &failures[next_failure];
		next_failure = (next_failure + 1) % MAX_FAILURES;
		failure->database = database;
		failure->address = *address;
		snprintf(failure->role, sizeof(failure->role), "%s", role);
	}
	failure->at = web_now;
}

static bool
attempt_may_begin(const Attempt *attempt)
{
	bool		again = attempt->failed_before || attempt->address->places > 0;

	return attempt->state == ATTEMPT_WAITS &&
		*proving_of(attempt) < (again ? MAX_PROVING_AGAIN : MAX_PROVING) &&
		attempt->address->places < MAX_OF_ADDRESS &&
		(attempt->role->places < MAX_OF_ROLE || (!attempt->failed_as_role && attempt->address->places == 0));
}

/*
 * Start all attempts within the limits.  Addresses without a failure come first, then the
 * oldest attempts.
 */
static void
line_go_on(void)
{
	static bool going_on;
	bool		found = true;

	/* a starting attempt may fail, and call this function again */
	if (going_on)
		return;
	going_on = true;
	while (found)
	{
		Attempt    *attempt;
		Attempt    *first = NULL;

		TAILQ_FOREACH(attempt, &attempts, all)
		{
			if (!attempt_may_begin(attempt) || (first != NULL && attempt->failed_before))
				continue;
			first = attempt;
			if (!attempt->failed_before)
				break;
		}
		found = first != NULL;
		if (found)
		{
			attempt_becomes(first, ATTEMPT_PROVES);
			first->begin(first);
		}
	}
	going_on = false;
}

/*
 * Suspend the request until its attempt has ended.  When the limits allow, "begin" is called, which
 * leads to attempt_succeeds() or attempt_fails().  name: the limits and failures of this name
 * count.  "forget" frees the owner, at the end of the attempt.  If too many attempts of the address
 * wait, the request is answered, and the owner is freed.
 */
void
attempt_make(Request *request, const char *name, void (*begin) (Attempt *attempt), void *owner,
			 void (*forget) (void *owner))
{
	const Address *address = request_address(request);
	Attempt    *attempt = allocate(sizeof(Attempt));
	char		key[MOST_OF_ROLE + 1] = "";

	memcpy(key, address, sizeof(Address));
	snprintf(attempt->name, sizeof(attempt->name), "%s", name);
	attempt->begin = begin;
	attempt->owner = owner;
	attempt->forget = forget;
	attempt->database = request->database;
	attempt->address = tally_of(&addresses, request->database, key);
	attempt->role = tally_of(&roles, request->database, attempt->name);
	attempt->failed_before = failure_of(request->database, address, NULL) != NULL;
	attempt->failed_as_role = attempt->failed_before && failure_of(request->database, address, name) != NULL;
	attempt->until = web_now + LINE_TIME;
	attempt->request = request;
	attempt->address->n++;
	attempt->role->n++;
	attempt->address->waiting++;
	attempt->role->waiting++;
	TAILQ_INSERT_TAIL(&attempts, attempt, all);
	if (attempt->address->waiting > MAX_IN_LINE)
	{
		attempt_refuse(attempt, MHD_HTTP_TOO_MANY_REQUESTS, "too many callers of this address log in, or use links");
		return;
	}
	request->state = attempt;
	request->leave = attempt_left;
	request_suspend(request);
	line_go_on();
}

/*
 * The caller has hung up.  A started attempt continues, and keeps its slots.
 */
static void
attempt_left(Request *request)
{
	Attempt    *attempt = request->state;

	request->leave = NULL;
	request->state = NULL;
	attempt->request = NULL;
	if (attempt->state == ATTEMPT_WAITS)
		attempt_free(attempt);
	request_resume(request);
}

WebDatabase *
attempt_database(const Attempt *attempt)
{
	return attempt->database;
}

const char *
attempt_name(const Attempt *attempt)
{
	return attempt->name;
}

void *
attempt_owner(const Attempt *attempt)
{
	return attempt->owner;
}

/*
 * The attempt has succeeded.  Frees the attempt.  Returns its request, which is still suspended, or
 * NULL if the caller has hung up.
 */
Request *
attempt_succeeds(Attempt *attempt)
{
	Request    *request = attempt->request;
	Address		address;
	Failure    *failure;

	memcpy(&address, attempt->address->key, sizeof(Address));
	failure = failure_of(attempt->database, &address, attempt->name);
	if (failure != NULL)
		failure->at = 0;
	attempt_free(attempt);
	line_go_on();
	return request;
}

/*
 * The attempt has failed: attempts_tick() answers.  "refused": by a wrong password or link.
 */
void
attempt_fails(Attempt *attempt, bool refused, unsigned status, const char *why)
{
	Address		address;

	memcpy(&address, attempt->address->key, sizeof(Address));
	attempt_becomes(attempt, ATTEMPT_RESTS);
	attempt->until = web_now + (refused ? FAILURE_PAUSE : 0);
	attempt->status = status;
	attempt->why = copy_text(why);
	if (refused)
		failure_add(attempt->database, &address, attempt->name);
	line_go_on();
}

/*
 * Answer attempts whose time has come, and start waiting attempts.
 */
void
attempts_tick(void)
{
	Attempt    *next;

	for (Attempt *attempt = TAILQ_FIRST(&attempts); attempt != NULL; attempt = next)
	{
		next = TAILQ_NEXT(attempt, all);
		if (web_now < attempt->until || attempt->state == ATTEMPT_PROVES)
			continue;
		if (attempt->state == ATTEMPT_RESTS)
			attempt_refuse(attempt, attempt->status, attempt->why);
		else
			attempt_refuse(attempt, MHD_HTTP_TOO_MANY_REQUESTS, "too many callers log in, or use links");
	}
	line_go_on();
}
