/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Commit is the wake-up.
 *
 * While a transaction runs, what it means to hand over is collected in this
 * backend.  When it has committed, its rows are visible, flushed and, with
 * synchronous standbys, replicated; then everything goes to shared memory at
 * once, and the right worker's latch is set.  Nothing in there can fail: a
 * committed transaction can no longer be aborted.
 *
 * XACT_EVENT_COMMIT would be too early: invalidation messages go out and locks
 * are released after it, so that whoever is woken could still act on an
 * outdated cache, or wait for our locks.  So the event only notes that we have
 * committed, and the hand-over is a callback of the release of resources after
 * the locks.
 *
 * What becomes of leases is in lease_commit.c, of batches in batch_commit.c, of
 * attempts that have failed in failure_commit.c, of jobs whose rows were deleted in
 * deletion_commit.c, what the relay sends in message.c,
 * who is told of a job without a trace in outcome.c.
 *
 * A transaction with few jobs hands over each of them.  One with many hands
 * over "look at lane L from key K on" instead, and one with too many lanes
 * "look at everything".
 *
 * PREPARE TRANSACTION forgets what was collected, as core does with its own
 * wake-ups; COMMIT PREPARED and ROLLBACK PREPARED (see utility.c) ask for a look
 * at everything.  So does a subscription that carries them out, of which no hook
 * tells (ends_prepared()).
 *
 * src/commit/commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/logicalworker.h"
#include "utils/resowner.h"

#include "commit/inner.h"

#define MAX_PUSHES	64
#define MAX_LANES	32
#define MAX_WAKES	64

typedef struct PendingPush
{
	SubTransactionId subid;
	JobqPush	push;
} PendingPush;

static PendingPush pushes[MAX_PUSHES];
static int	npushes = 0;
static JobqPush lanes[MAX_LANES];	/* key: the lowest of the lane; group: not
									 * 0 if any job has one */
static int	nlanes = 0;
static int64 wakes[MAX_WAKES];
static int	nwakes = 0;
static bool over = false;		/* the attempt of this process */
static bool rescan = false;
static bool unnoted = false;
static bool prepared = false;
static bool reload = false;
static int	changed = 0;		/* JOBQ_CHANGED_* */
static Oid	created = InvalidOid;	/* jobq_internal.job of a new extension */
static SubTransactionId created_in = InvalidSubTransactionId;
static bool restored = false;	/* made by a restore */
static bool poke = false;		/* the launcher shall look */
static bool anything = false;
static bool committed = false;
static bool counted = false;	/* its hand-overs, before it commits */

/* All books: this room's own, then those that have joined. */
#define MAX_BOOKS	12
static const JobqCommitBooks *books[MAX_BOOKS] =
{
	&deletion_books, &group_held_books, &lease_books, &message_books, &batch_books,
	&outcome_books, &group_end_books, &group_awaited_books, &failure_books
};
static int	nbooks = 9;

static void count_handovers(void);
static bool something_noted(void);
static bool ends_prepared(void);
static void xact_callback(XactEvent event, void *arg);
static void release_callback(ResourceReleasePhase phase, bool isCommit,
							 bool isTopLevel, void *arg);
static void subxact_callback(SubXactEvent event, SubTransactionId mysubid,
							 SubTransactionId parentsubid, void *arg);
static void add_to_lane(const JobqPush *push);
static void hand_over(void);
static void forget(void);
static void free_schedules(JobqDatabase *db);

/*
 * Register the callbacks; once per process.
 */
void
jobq_install_commit_callbacks(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}

/*
 * Have these books asked, too, at each end of a transaction; once per process.
 */
void
jobq_commit_join(const JobqCommitBooks *more)
{
	if (nbooks == MAX_BOOKS)
		elog(ERROR, "too many books");
	books[nbooks++] = more;
}

/*
 * Undo what was noted in the books since this subtransaction began, or at all.
 */
static void
abort_books(SubTransactionId since)
{
	for (int i = 0; i < nbooks; i++)
		if (books[i]->noted() && books[i]->abort != NULL)
			books[i]->abort(since);
}

/*
 * The transaction is over, and nothing is noted any more.
 */
static void
give_back(void)
{
	handover_lower();
	counted = false;
	for (int i = 0; i < nbooks; i++)
		if (books[i]->give_back != NULL)
			books[i]->give_back();
}

/*
 * At commit, hand over a job that this transaction has written.
 */
void
jobq_at_commit_push(const JobqPush *push)
{
	anything = true;
	if (counted && push->group != 0)
		handover_raise(push->group);
	if (nlanes == 0 && !rescan && npushes < MAX_PUSHES)
	{
		pushes[npushes].subid = GetCurrentSubTransactionId();
		pushes[npushes].push = *push;
		npushes++;
		return;
	}

	/* too many to name each */
	for (int i = 0; i < npushes; i++)
		add_to_lane(&pushes[i].push);
	npushes = 0;
	add_to_lane(push);
}

static void
add_to_lane(const JobqPush *push)
{
	static int	last = 0;

	if (rescan)
		return;
	for (int i = 0; i < nlanes; i++)
	{
		int			at = (last + i) % nlanes;

		if (lanes[at].queue_id == push->queue_id &&
			lanes[at].priority == push->priority &&
			lanes[at].role == push->role && lanes[at].flow == push->flow)
		{
			if (jobq_key_cmp(push->key, lanes[at].key) < 0)
				lanes[at].key = push->key;
			lanes[at].notify |= push->notify;
			lanes[at].group |= push->group;
			last = at;
			return;
		}
	}
	if (nlanes == MAX_LANES)
		rescan = true;
	else
		lanes[nlanes++] = *push;
}

/*
 * At commit, wake the sessions that wait for this job.
 */
void
jobq_at_commit_wake(int64 job_id)
{
	if (jobq_shared == NULL)
		return;
	anything = true;
	if (jobq_my_slot != NULL && jobq_my_slot->job_id == job_id)
		over = true;
	if (nwakes < MAX_WAKES)
		wakes[nwakes] = job_id;
	nwakes++;
}

/*
 * At commit, have the scheduler read all lanes anew.
 */
void
jobq_at_commit_rescan(void)
{
	anything = true;
	rescan = true;
	if (counted)
		handover_raise(0);
}

/*
 * At commit, act as if rows of jobq_internal.job may have come, gone or changed of
 * which nothing was noted: the scheduler reads all lanes, and counts all jobs, anew.
 */
void
jobq_at_commit_unnoted(void)
{
	jobq_at_commit_rescan();
	unnoted = true;
}

/*
 * At commit, act as if all that COMMIT PREPARED may have made visible, or
 * ROLLBACK PREPARED visible again, had been handed over.
 */
void
jobq_at_commit_prepared(void)
{
	jobq_at_commit_unnoted();
	changed |= JOBQ_CHANGED_SCHEDULES | JOBQ_CHANGED_MONITORS;
	prepared = true;
}

/*
 * At commit, have the scheduler read queues and settings anew.
 */
void
jobq_at_commit_reload(void)
{
	anything = true;
	reload = true;
}

/*
 * At commit, have the scheduler look at what has changed: JOBQ_CHANGED_*.
 */
void
jobq_at_commit_changed(int what)
{
	anything = true;
	changed |= what;
}

/*
 * The extension was created, with this table of jobs, perhaps by a restore: at
 * commit, have the launcher start a scheduler.
 */
void
jobq_at_commit_created(Oid job, bool by_restore)
{
	anything = true;
	created = job;
	created_in = GetCurrentSubTransactionId();
	restored = by_restore;
}

/*
 * At commit, have the launcher look which databases there are.
 */
void
jobq_at_commit_poke(void)
{
	anything = poke = true;
}

/*
 * Has this transaction anything to hand over, or to give back?
 */
static bool
something_noted(void)
{
	bool		noted = anything;

	for (int i = 0; i < nbooks && !noted; i++)
		noted = books[i]->noted();
	return noted;
}

/*
 * Is this the transaction in which a subscription has carried out COMMIT PREPARED or
 * ROLLBACK PREPARED?  That is no statement, and goes past all hooks.  But its record is
 * in the log, while the transaction has no id of its own.  One in which a page was pruned
 * looks the same, and has everything looked at in vain.
 */
static bool
ends_prepared(void)
{
	return IsLogicalWorker() && !XLogRecPtrIsInvalid(XactLastRecEnd) &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * The rows can be seen soon: count what is to be handed over then, and what other modules
 * still add before the commit.
 */
static void
count_handovers(void)
{
	bool		any = rescan;

	for (int i = 0; i < nlanes; i++)
		any |= lanes[i].group != 0;
	if (any)
		handover_raise(0);
	for (int i = 0; i < npushes; i++)
		if (pushes[i].push.group != 0)
			handover_raise(pushes[i].push.group);
	counted = true;
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (ends_prepared())
				jobq_at_commit_prepared();
			for (int i = 0; i < nbooks; i++)
				if (books[i]->before_commit != NULL && books[i]->noted())
					books[i]->before_commit();
			count_handovers();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
			/* nothing is handed over at its end */
			if (something_noted())
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
						 errmsg("a parallel worker cannot do what takes effect at commit"),
						 errhint("Make the function that calls jobq PARALLEL UNSAFE.")));
			break;
		case XACT_EVENT_COMMIT:
			committed = something_noted();
			if (committed)
				jobq_injection_point("jobq-committed");
			else
				give_back();
			break;
		case XACT_EVENT_PRE_PREPARE:
			for (int i = 0; i < nbooks; i++)
				if (books[i]->check_prepare != NULL)
					books[i]->check_prepare();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
			if (something_noted())
				forget();
			give_back();
			break;
		case XACT_EVENT_PREPARE:
			for (int i = 0; i < nbooks; i++)
				if (books[i]->prepare != NULL)
					books[i]->prepare();
			if (something_noted())
				forget();
			give_back();
			break;
		default:
			break;
	}
}

/*
 * The last phase of a commit in which we are called.
 */
static void
release_callback(ResourceReleasePhase phase, bool isCommit, bool isTopLevel,
				 void *arg)
{
	if (committed && isCommit && isTopLevel &&
		phase == RESOURCE_RELEASE_AFTER_LOCKS)
	{
		committed = false;
		hand_over();
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mysubid,
				 SubTransactionId parentsubid, void *arg)
{
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		for (int i = 0; i < nbooks; i++)
			if (books[i]->subcommit != NULL && books[i]->noted())
				books[i]->subcommit(mysubid, parentsubid);
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;

	/*
	 * Subtransaction ids only grow, so all that was collected since this one
	 * began has its id or a higher one.  What was added to a lane stays: a
	 * look in vain costs little.
	 */
	while (npushes > 0 && pushes[npushes - 1].subid >= mysubid)
		npushes--;
	if (created_in >= mysubid)
		created = InvalidOid;
	abort_books(mysubid);
}

/*
 * Tell the scheduler if a job has changed that a schedule waits for.  It has
 * named the job before it looked whether it is still there.
 */
static void
free_schedules(JobqDatabase *db)
{
	bool		found = prepared || nwakes > MAX_WAKES;

	if (db == NULL || db->told->nwaited == 0)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < db->told->nwaited && !found; i++)
		for (int j = 0; j < nwakes && !found; j++)
			found = wakes[j] == db->told->waited[i];
	if (found)
		db->schedule_freed = true;
	LWLockRelease(db->lock);
	if (found)
		jobq_wake_scheduler(db);
}

/*
 * There is a new extension: have a scheduler for it.  One that has not seen the
 * last extension go leaves, and what it knew of leases and limits is forgotten, and which
 * jobs were to be cancelled.
 */
static void
start_serving(JobqDatabase *db)
{
	if (db != NULL)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);

		/* without the extension, the place may just have become another's */
		if (db->dboid == MyDatabaseId)
		{
			if (db->leases->jobs != created)
			{
				db->leases->loaded = false;
				db->nowed = 0;
			}
			if (db->limits->jobs != created)
				db->limits->loaded = false;
			db->created = true;
		}
		LWLockRelease(db->lock);
		jobq_wake_scheduler(db);
	}
	if (restored && jobq_shared != NULL)
		jobq_shared->restored_at = jobq_now();
	jobq_poke_launcher();
}

/*
 * Runs after commit: nothing in here may fail.
 */
static void
hand_over(void)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	bool		pending = false;

	anything = false;
	for (int i = 0; i < nbooks; i++)
		pending |= books[i]->noted() && books[i]->pending(db);
	for (int i = 0; i < nbooks && db == NULL && unnoted; i++)
		if (books[i]->unnoted != NULL)
			books[i]->unnoted(NULL);
	if (db != NULL &&
		(pending || npushes > 0 || nlanes > 0 || rescan || reload ||
		 changed != 0))
	{
		TimestampTz now = jobq_now();

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		for (int i = 0; i < nbooks; i++)
		{
			if (books[i]->noted())
				books[i]->commit(db, now, &wake);
			if (unnoted && books[i]->unnoted != NULL)
				books[i]->unnoted(db);
		}

		if (prepared)
		{
			db->leases->unsure = true;
			wake.scheduler = true;
		}

		/* without a scheduler the lanes mean nothing; its first scan sees us */
		if (db->scheduler != NULL)
		{
			for (int i = 0; i < npushes; i++)
				jobq_ready_push(db, &pushes[i].push, now, &wake);
			for (int i = 0; i < nlanes; i++)
				jobq_ready_look(db, &lanes[i], now, &wake);
			if (rescan)
			{
				/* not for each of many that are prepared: it takes too long */
				db->groups->owners_first |= unnoted && !prepared;
				db->rescan = true;
				db->batches_sweep = true;
				wake.scheduler = true;
				for (int i = 0; i < jobq_max_lanes; i++)
					if (db->ready->lanes[i].in_use)
						jobq_lane_note(db, &db->ready->lanes[i]);
				jobq_relay_mark(db, now, &wake);
			}
			if (reload || prepared)
			{
				db->reload = true;
				db->limits->stale = true;
				wake.scheduler = true;
				jobq_reservers_look(db);
			}
			if (changed != 0)
			{
				db->schedules_changed |= (changed & JOBQ_CHANGED_SCHEDULES) != 0;
				db->monitors_changed |= (changed & JOBQ_CHANGED_MONITORS) != 0;
				wake.scheduler = true;
			}
		}
		jobq_unlock(db, &wake);
	}

	if (over)
		jobq_slot_job_over();
	if ((nwakes > 0 || prepared) && jobq_shared != NULL)
	{
		if (prepared)
			jobq_wake_waiters_prepared(MyDatabaseId);
		else if (nwakes > MAX_WAKES)
			jobq_wake_waiters(MyDatabaseId, 0);
		else
			for (int i = 0; i < nwakes; i++)
				jobq_wake_waiters(MyDatabaseId, wakes[i]);
	}
	if (nwakes > 0 || prepared)
		free_schedules(db);
	if (OidIsValid(created))
		start_serving(db);
	if (poke)
		jobq_poke_launcher();
	give_back();

	npushes = nlanes = nwakes = 0;
	changed = 0;
	rescan = reload = prepared = unnoted = over = poke = false;
	created = InvalidOid;
}

/*
 * The transaction did not commit (or was prepared): give back what was
 * reserved.
 */
static void
forget(void)
{
	/* what has left for the command comes back */
	if (poke)
		jobq_poke_launcher();
	anything = false;
	abort_books(InvalidSubTransactionId);
	npushes = nlanes = nwakes = 0;
	changed = 0;
	rescan = reload = prepared = unnoted = over = poke = false;
	created = InvalidOid;
}
