/*-------------------------------------------------------------------------
 *
 * share.c
 *	  Whose turn it is: what the scheduler does on behalf of roles.
 *
 * A tick of a schedule, and a look at a batch, is done for a role.  It takes
 * time, and may meet a lock that a transaction of that role's holds for as long
 * as it likes.  So that one role does not stop what others want:
 *
 * - A duty does such things for a slice of time, and then lets the other duties
 *	 have their turn.
 * - Within a slice that role comes first which has had least of late, and of a
 *	 role that which has not been locked.  Who is alone has all.
 * - A wait for a lock ends after LOCK_PATIENCE (try.c).  What was locked is tried
 *	 again after a pause that grows, and its role rests for a while.
 * - Of what has been locked before, of all roles together, so little is tried
 *	 that the waits take no more than a LOCK_SHARE-th of the time.
 *
 * worker/scheduler/share.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "portability/instr_time.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/* How long a duty goes on with what roles want, in microseconds. */
#define SLICE			5000

/* What a role has had counts half after so long, in microseconds. */
#define PERIOD			1000000

/* The pauses of what was locked, and of its role. */
#define FIRST_PAUSE		(100 * INT64CONST(1000))
#define LAST_PAUSE		(10 * USECS_PER_SEC)
#define FIRST_REST		(50 * INT64CONST(1000))
#define LAST_REST		USECS_PER_SEC

/* Of so much time, one part may be spent with waiting for locks. */
#define LOCK_SHARE		20

/* Roles that are remembered. */
#define MAX_ROLES		10000

typedef struct Share
{
	Oid			role;			/* hash key */
	int64		period;			/* to which "used" belongs */
	int64		used;			/* microseconds */
	int64		cost;			/* of a turn, about */
	int64		rest;			/* how long it rested last; 0: it does not */
	TimestampTz rest_until;
} Share;

/* What is done together. */
typedef struct Parts
{
	Part	   *parts;
	int			n;
	int			ndone;
	void		(*body) (void *arg);
	TimestampTz now;
	MemoryContext memory;		/* of errors */
}			Parts;

static HTAB *shares = NULL;
static instr_time slice;
static TimestampTz locks_at = 0;	/* when a wait may be risked again */

static int64 elapsed(instr_time since);
static Share *share_of(Oid role);
static int	compare_places(const void *a, const void *b);
static int	compare_keys(const void *a, const void *b);
static void spent(Oid role, int64 took, const ErrorData *edata);
static void do_parts(void *arg);

/*
 * Microseconds since then.
 */
static int64
elapsed(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

static Share *
share_of(Oid role)
{
	instr_time	now;
	int64		period;
	Share	   *share;
	bool		found;

	if (shares != NULL && hash_get_num_entries(shares) >= MAX_ROLES)
	{
		hash_destroy(shares);
		shares = NULL;
	}
	if (shares == NULL)
	{
		HASHCTL		info = {
			.keysize = sizeof(Oid),
			.entrysize = sizeof(Share),
			.hcxt = TopMemoryContext
		};

		shares = hash_create("jobq shares", 64, &info,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	INSTR_TIME_SET_CURRENT(now);
	period = (int64) INSTR_TIME_GET_MICROSEC(now) / PERIOD;
	share = hash_search(shares, &role, HASH_ENTER, &found);
	if (!found)
	{
		memset(share, 0, sizeof(Share));
		share->role = role;
		share->cost = 100;
		share->period = period;
	}
	if (period != share->period)
	{
		share->used >>= Min(period - share->period, 62);
		share->period = period;
	}
	return share;
}

/*
 * A slice begins.
 */
void
share_begin(void)
{
	INSTR_TIME_SET_CURRENT(slice);
}

/*
 * Is the slice over?  What takes long may ask this in the midst of it, too.
 */
bool
share_over(void)
{
	return elapsed(slice) >= SLICE;
}

/*
 * How much of the slice has passed, in microseconds.
 */
int64
share_passed(void)
{
	return elapsed(slice);
}

/*
 * Is the slice over for what has begun when so much of it had passed?  That may take as
 * long as what was read for it before: or else where there is much to read, hardly
 * anything would be done each time that it is read.
 */
bool
share_over_from(int64 passed)
{
	return elapsed(slice) >= Max(SLICE, 2 * passed);
}

/*
 * When something of this role's may be done, "now" if at once.  locked: how often
 * in a row it was locked.
 */
TimestampTz
share_may(Oid role, int locked, TimestampTz now)
{
	Share	   *share = share_of(role);
	TimestampTz at = now;

	/* the clock may have been put back */
	share->rest_until = Min(share->rest_until, now + share->rest);
	locks_at = Min(locks_at, now + LAST_REST);
	if (share->rest > 0)
		at = Max(at, share->rest_until);
	if (share->rest > 0 || locked > 0)
		at = Max(at, locks_at);
	return at;
}

/*
 * When to try again what was locked so often in a row.
 */
TimestampTz
share_retry(int locked, TimestampTz now)
{
	return now + Min(FIRST_PAUSE << Min(locked - 1, 10), LAST_PAUSE);
}

/*
 * Add a turn to the n that are in the array already, which has room for it.
 */
void
share_add(Turn *turns, int *n, Oid role, int locked, TimestampTz since,
		  int64 item)
{
	Turn	   *turn = &turns[(*n)++];

	turn->role = role;
	turn->locked = locked;
	turn->since = since;
	turn->item = item;
	turn->key = 0;
}

static int
compare_places(const void *a, const void *b)
{
	const Turn *x = a;
	const Turn *y = b;

	if (x->role != y->role)
		return x->role < y->role ? -1 : 1;
	if (x->locked != y->locked)
		return x->locked < y->locked ? -1 : 1;
	if (x->since != y->since)
		return x->since < y->since ? -1 : 1;
	return 0;
}

static int
compare_keys(const void *a, const void *b)
{
	const Turn *x = a;
	const Turn *y = b;

	return x->key == y->key ? 0 : x->key < y->key ? -1 : 1;
}

/*
 * Put them in the order in which they are to be done.
 */
void
share_order(Turn *turns, int n)
{
	Share	   *share = NULL;
	int64		had = 0;

	qsort(turns, n, sizeof(Turn), compare_places);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || turns[i].role != turns[i - 1].role)
		{
			share = share_of(turns[i].role);
			had = share->used;
		}
		turns[i].key = had;
		had += share->cost;
	}
	qsort(turns, n, sizeof(Turn), compare_keys);
}

/*
 * So long was worked for the role, with this error or NULL.  If something was
 * locked, it rests.
 */
static void
spent(Oid role, int64 took, const ErrorData *edata)
{
	Share	   *share = share_of(role);

	share->used += took;
	share->cost += (took - share->cost) / 8;
	share->cost = Max(share->cost, 10);
	if (edata != NULL && edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		TimestampTz now = jobq_now();

		share->rest = share->rest == 0 ? FIRST_REST
			: Min(2 * share->rest, LAST_REST);
		share->rest_until = now + share->rest;
		locks_at = Max(locks_at, now + Min(took * LOCK_SHARE, LAST_REST));
	}
	else if ((share->rest /= 2) < FIRST_REST)
		share->rest = 0;
}

/*
 * Run body(arg) for the role, as scheduler_try() does.  If something was locked,
 * which the error says, the role rests.
 */
ErrorData *
share_try(Oid role, void (*body) (void *arg), void *arg)
{
	instr_time	start;
	ErrorData  *edata;

	INSTR_TIME_SET_CURRENT(start);
	edata = scheduler_try(body, arg);
	spent(role, elapsed(start), edata);
	return edata;
}

/*
 * Do some of the parts, in order, in the transaction that has begun.
 */
static void
do_parts(void *arg)
{
	Parts	   *this = (Parts *) arg;

	while (this->ndone < this->n)
	{
		Part	   *part = &this->parts[this->ndone];
		MemoryContext old;
		instr_time	start;

		part->rests = share_may(part->role, part->locked, this->now) > this->now;
		if (!part->rests)
		{
			/* a wait that is likely is not for others to share */
			if (part->locked > 0 && this->ndone > 0)
				break;
			INSTR_TIME_SET_CURRENT(start);
			old = MemoryContextSwitchTo(this->memory);
			part->edata = scheduler_try_part(this->body, part->arg);
			MemoryContextSwitchTo(old);
			part->took = elapsed(start);
		}
		this->ndone++;
		if (share_over() || part->locked > 0 ||
			(part->edata != NULL &&
			 part->edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE))
			break;
	}
	jobq_injection_point("jobq-parts-done");
}

/*
 * Run the body for some of the parts, the first ones of the n, in one transaction.
 * The n are to be fewer than PGPROC_MAX_CACHED_SUBXIDS.
 * An error is its part's own; if they cannot be committed together, each is done
 * anew in a transaction of its own, so the body must be fit to be run twice with
 * the same argument.  Returns how many were dealt with, at least one.
 */
int
share_try_together(Part * parts, int n, void (*body) (void *arg),
				   TimestampTz now)
{
	Parts		this = {
		.parts = parts,.n = n,.body = body,.now = now,
		.memory = CurrentMemoryContext
	};
	instr_time	start;
	int64		rest;
	ErrorData  *edata;

	for (int i = 0; i < this.n; i++)
	{
		parts[i].rests = false;
		parts[i].edata = NULL;
		parts[i].took = 0;
	}
	INSTR_TIME_SET_CURRENT(start);
	edata = scheduler_try(do_parts, &this);
	rest = elapsed(start);
	if (this.ndone == 0)
	{
		/* not even that could begin */
		parts[0].edata = edata;
		spent(parts[0].role, rest, edata);
		return 1;
	}
	for (int i = 0; i < this.ndone; i++)
		rest -= parts[i].took;
	for (int i = 0; i < this.ndone; i++)
	{
		Part	   *part = &parts[i];

		if (part->rests)
			continue;
		if (edata != NULL && part->edata == NULL)
			part->edata = share_try(part->role, body, part->arg);
		else
			spent(part->role, part->took + Max(rest, 0) / this.ndone,
				  part->edata);
	}
	if (edata != NULL)
		FreeErrorData(edata);
	return this.ndone;
}
