/*-------------------------------------------------------------------------
 *
 * share.c
 *	  Divides the scheduler's time fairly between roles.
 *
 * A tick of a schedule, or an evaluation of a batch, is done for a role.  The work takes
 * time, and may meet a lock held by a long transaction of the role.  These rules keep
 * one role from blocking the rest:
 *
 * - A duty works for roles during a time slice, and then lets the remaining duties
 * 	 run.
 * - Within a slice, the role with the least recent use comes first.  Of a role, work
 * 	 without lock timeouts comes first.  A role without competition gets all the time.
 * - A wait for a lock ends after DUTY_LOCK_TIMEOUT (try.c).  The work is tried again
 * 	 after a growing pause, and the role also pauses for a short time.
 * - Retries after lock timeouts are limited for all roles together, so that the
 * 	 waits take at most 1/LOCK_SHARE of the time.
 *
 * worker/scheduler/share.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"

/* The time slice of a duty, in microseconds. */
#define SLICE			5000

/* The use by a role counts half after this time, in microseconds. */
#define PERIOD			1000000

/* Waits for locks take at most this fraction (1/n) of the time. */
#define LOCK_SHARE		20

/* Roles kept in memory. */
#define MAX_ROLES		10000

typedef struct Share
{
	Oid			role;			/* hash key */
	int64		period;			/* the period of "used" */
	int64		used;			/* microseconds */
	int64		cost;			/* average of one task */
	JobqPause	rest;
} Share;

/* Tasks that share a transaction. */
typedef struct Parts
{
	Part	   *parts;
	int			n;
	int			ndone;
	void		(*body) (void *arg);
	TimestampTz now;
	MemoryContext memory;		/* for errors */
}			Parts;

static HTAB *shares = NULL;
static instr_time slice;
static JobqSteady locks_at = 0; /* earliest next retry of any role */

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
 * Begin a time slice.
 */
void
share_begin(void)
{
	INSTR_TIME_SET_CURRENT(slice);
}

/*
 * True if the time slice is over.  A long task may also call this.
 */
bool
share_over(void)
{
	return jobq_elapsed(slice) >= SLICE;
}

/*
 * Return the elapsed part of the time slice, in microseconds.
 */
int64
share_passed(void)
{
	return jobq_elapsed(slice);
}

/*
 * True if the time slice is over for a step that began "passed" microseconds into the
 * slice.  The step may take as long as the reading before it.  Otherwise, after a long
 * reading, each slice would achieve almost nothing.
 */
bool
share_over_from(int64 passed)
{
	return jobq_elapsed(slice) >= Max(SLICE, 2 * passed);
}

/*
 * Return when a task of this role may run: "now" if at once.  locked: lock timeouts of
 * the task in a row.
 */
TimestampTz
share_may(Oid role, int locked, TimestampTz now)
{
	Share	   *share = share_of(role);
	TimestampTz at = now;

	if (share->rest.n > 0)
		at = jobq_pause_due(&share->rest, now);
	if (share->rest.n > 0 || locked > 0)
		at = Max(at, jobq_steady_due(locks_at, now));
	return at;
}

/*
 * Append a task to the array of n tasks, which must have room.
 */
void
share_add(RoleTask *tasks, int *n, Oid role, int locked, TimestampTz since,
		  int64 item)
{
	RoleTask   *task = &tasks[(*n)++];

	task->role = role;
	task->locked = locked;
	task->since = since;
	task->item = item;
	task->key = 0;
}

static int
compare_places(const void *a, const void *b)
{
	const RoleTask *x = a;
	const RoleTask *y = b;

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
	const RoleTask *x = a;
	const RoleTask *y = b;

	return x->key == y->key ? 0 : x->key < y->key ? -1 : 1;
}

/*
 * Sort the tasks into the order of execution.
 */
void
share_order(RoleTask *tasks, int n)
{
	Share	   *share = NULL;
	int64		had = 0;

	qsort(tasks, n, sizeof(RoleTask), compare_places);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || tasks[i].role != tasks[i - 1].role)
		{
			share = share_of(tasks[i].role);
			had = share->used;
		}
		tasks[i].key = had;
		had += share->cost;
	}
	qsort(tasks, n, sizeof(RoleTask), compare_keys);
}

/*
 * Account the time used for the role, in microseconds.  edata is the error, or NULL.
 * After a lock timeout, the role pauses.
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
		jobq_pause_begin(&share->rest, PAUSE_ROLE_LOCKED);
		locks_at = Max(locks_at, jobq_steady() +
					   Min(took * LOCK_SHARE, jobq_pause_longest(PAUSE_ROLE_LOCKED)));
	}
	else if (share->rest.n > 0)
		share->rest.n--;
}

/*
 * Run body(arg) for the role, as scheduler_try() does.  Returns the error, or NULL.
 * After a lock timeout, the role pauses.
 */
ErrorData *
share_try(Oid role, void (*body) (void *arg), void *arg)
{
	instr_time	start;
	ErrorData  *edata;

	INSTR_TIME_SET_CURRENT(start);
	edata = scheduler_try(body, arg);
	spent(role, jobq_elapsed(start), edata);
	return edata;
}

/*
 * Run some of the parts, in order, in the current transaction.
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
			/* a likely wait must not delay tasks of the same transaction */
			if (part->locked > 0 && this->ndone > 0)
				break;
			INSTR_TIME_SET_CURRENT(start);
			old = MemoryContextSwitchTo(this->memory);
			part->edata = scheduler_try_part(this->body, part->arg);
			MemoryContextSwitchTo(old);
			part->took = jobq_elapsed(start);
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
 * Run body(arg) for some of the parts, from the first, in one transaction.  n must be
 * less than PGPROC_MAX_CACHED_SUBXIDS.  An error affects only its own part.  If the
 * transaction cannot commit, each part runs again in a transaction of its own.  The
 * body must therefore tolerate two runs with the same argument.  Returns the number of
 * parts processed, at least one.
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
	rest = jobq_elapsed(start);
	if (this.ndone == 0)
	{
		/* the transaction could not begin */
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
