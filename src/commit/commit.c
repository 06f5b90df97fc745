/*-------------------------------------------------------------------------
 *
 * commit.c
 *	  Hand-over at commit.
 *
 * During a transaction, this backend collects the changes to hand over.  After the commit, the
 * rows are visible, flushed and, with synchronous standbys, replicated.  Then all changes are
 * written to shared memory at once, and the latch of a suitable worker is set.  Code that runs
 * in this phase must not fail, because a committed transaction cannot be aborted.
 *
 * XACT_EVENT_COMMIT would be too early.  Invalidation messages are sent and locks are released
 * only afterwards.  A process woken earlier could use an outdated cache, or wait for the locks
 * of this transaction.  The event therefore only notes the commit.  The hand-over happens in
 * the callback for the release of resources, after the locks.
 *
 * Further files of this directory: lease_commit.c (leases), batch_commit.c (batches),
 * failure_commit.c (failed attempts), deletion_commit.c (deleted rows), message.c (messages
 * for the relay), outcome.c (outcomes of jobs without a row).
 *
 * A transaction with few jobs hands over each job.  A transaction with many jobs hands over,
 * for each lane, the key from which the scheduler must read.  A transaction with too many
 * lanes asks for a read of all lanes.
 *
 * PREPARE TRANSACTION drops the collected changes, as PostgreSQL does with its own wake-ups.
 * COMMIT PREPARED and ROLLBACK PREPARED (utility.c) ask for a read of all lanes.  A
 * subscription that executes these commands calls no hook: see ends_prepared().
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
static JobqPush lanes[MAX_LANES];	/* key: lowest; group: any, or 0 */
static int	nlanes = 0;
static int64 wakes[MAX_WAKES];
static int	nwakes = 0;
static bool over = false;		/* the attempt of this process has ended */
static bool rescan = false;
static bool unnoted = false;
static bool prepared = false;
static bool reload = false;
static int	changed = 0;		/* mask of JOBQ_CHANGED_* */
static Oid	created = InvalidOid;	/* jobq_internal.job of a new extension */
static SubTransactionId created_in = InvalidSubTransactionId;
static bool restored = false;	/* created by a restore */
static bool poke = false;		/* wake the launcher */
static bool anything = false;
static bool committed = false;
static bool counted = false;	/* hand-overs were counted, before commit */

/* All books: those of this directory, then the joined ones. */
#define MAX_BOOKS	12
static const JobqCommitBooks *books[MAX_BOOKS] =
{
	&deletion_books, &group_held_books, &lease_books, &message_books, &batch_books,
	&outcome_books, &group_end_books, &group_awaited_books, &failure_books
};
static int	nbooks = 9;

static void xact_callback(XactEvent event, void *arg);
static void release_callback(ResourceReleasePhase phase, bool isCommit,
							 bool isTopLevel, void *arg);
static void subxact_callback(SubXactEvent event, SubTransactionId mysubid,
							 SubTransactionId parentsubid, void *arg);
static void add_to_lane(const JobqPush *push);
static void hand_over(void);
static void forget(void);

/* Register the transaction callbacks.  Called once per process. */
void
jobq_install_commit_callbacks(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterResourceReleaseCallback(release_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}

/*
 * Register further books, so that their callbacks run at each end of a transaction.  Called
 * once per process.  ERROR if the array is full.
 */
void
jobq_commit_join(const JobqCommitBooks *more)
{
	if (nbooks == MAX_BOOKS)
		elog(ERROR, "too many books");
	books[nbooks++] = more;
}

/*
 * Undo the notes in all books made since this subtransaction began, or all notes.
 */
static void
abort_books(SubTransactionId since)
{
	for (int i = 0; i < nbooks; i++)
		if (books[i]->noted() && books[i]->abort != NULL)
			books[i]->abort(since);
}

/* The transaction is over, and all books are empty: release their memory. */
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
 * At commit, hand over a job that this transaction has written.  Takes no lock.
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

	/* too many jobs to hand over each: merge them by lane */
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

/* At commit, wake the sessions that wait for this job.  Takes no lock. */
void
jobq_at_commit_wake(int64 job_id)
{
	if (jobq_shared == NULL)
		return;
	anything = true;
	if (jobq_my_slot != NULL && jobq_run_busy(&jobq_my_slot->run) &&
		(jobq_my_slot->run.job == job_id || jobq_slot_member(jobq_my_slot, job_id) != NULL))
		over = true;
	if (nwakes < MAX_WAKES)
		wakes[nwakes] = job_id;
	nwakes++;
}

/* At commit, make the scheduler read all lanes again.  Takes no lock. */
void
jobq_at_commit_rescan(void)
{
	anything = true;
	rescan = true;
	if (counted)
		handover_raise(0);
}

/*
 * At commit, assume that rows of jobq_internal.job were inserted, deleted or changed without
 * notes.  The scheduler then reads all lanes, and counts all jobs, again.
 */
void
jobq_at_commit_unnoted(void)
{
	jobq_at_commit_rescan();
	unnoted = true;
}

/*
 * At commit, assume that COMMIT PREPARED or ROLLBACK PREPARED has made rows visible, and act
 * as if all of them had been handed over.
 */
void
jobq_at_commit_prepared(void)
{
	jobq_at_commit_unnoted();
	changed |= JOBQ_CHANGED_SCHEDULES | JOBQ_CHANGED_MONITORS;
	prepared = true;
}

/* At commit, make the scheduler read queues and settings again. */
void
jobq_at_commit_reload(void)
{
	anything = true;
	reload = true;
}

/*
 * At commit, make the scheduler read changed objects again.  what: a mask of JOBQ_CHANGED_*.
 */
void
jobq_at_commit_changed(int what)
{
	anything = true;
	changed |= what;
}

/*
 * At commit, make the launcher start a scheduler, because the extension was created.  job: the
 * OID of jobq_internal.job.  by_restore: a restore created the extension.
 */
void
jobq_at_commit_created(Oid job, bool by_restore)
{
	anything = true;
	created = job;
	created_in = GetCurrentSubTransactionId();
	restored = by_restore;
}

/* At commit, make the launcher check the list of databases. */
void
jobq_at_commit_poke(void)
{
	anything = poke = true;
}

/*
 * Return whether this transaction has changes to hand over, or resources to release.
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
 * Return whether a subscription has executed COMMIT PREPARED or ROLLBACK PREPARED in this
 * transaction.  The subscription executes no statement and calls no hook.  But the transaction
 * has written a WAL record without a transaction id of its own.  A transaction that has pruned
 * a page looks the same, and only causes a superfluous read.
 */
static bool
ends_prepared(void)
{
	return IsLogicalWorker() && !XLogRecPtrIsInvalid(XactLastRecEnd) &&
		!TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * The rows become visible soon: count the jobs to hand over now.  Jobs that other modules add
 * before the commit are counted when added.
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
			flush_before_commit();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
			/* a parallel worker hands over nothing at its end */
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

/* Callback for the last phase of a commit in which extensions run. */
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
	 * Subtransaction ids only grow.  All notes made since this subtransaction
	 * began have its id or a higher id.  Jobs added to a lane remain, because
	 * a superfluous read costs little.
	 */
	while (npushes > 0 && pushes[npushes - 1].subid >= mysubid)
		npushes--;
	if (created_in >= mysubid)
		created = InvalidOid;
	abort_books(mysubid);
}

/*
 * Inform the scheduler if a job has changed that a schedule waits for.  The scheduler
 * publishes the id of the job before checking that the job still exists.
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
 * The extension was created: request a scheduler for this database.  A scheduler that has not
 * noticed the drop of the previous extension exits.  The leases, limits and pending
 * cancellations of the previous extension are dropped.
 */
static void
start_serving(JobqDatabase *db)
{
	if (db != NULL)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);

		/* without the extension, another database may have got the slot */
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

/* Hand over everything.  Runs after commit: must not fail. */
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
			if (books[i]->commit != NULL && books[i]->noted())
				books[i]->commit(db, now, &wake);
			if (unnoted && books[i]->unnoted != NULL)
				books[i]->unnoted(db);
		}

		if (prepared)
		{
			db->leases->unsure = true;
			wake.scheduler = true;
		}

		/*
		 * without a scheduler, lanes are not maintained; its first scan finds
		 * the jobs
		 */
		if (db->scheduler != NULL)
		{
			for (int i = 0; i < npushes; i++)
				jobq_ready_push(db, &pushes[i].push, now, &wake);
			for (int i = 0; i < nlanes; i++)
				jobq_ready_look(db, &lanes[i], now, &wake);
			if (rescan)
			{
				/*
				 * not for each of many prepared transactions: takes too long
				 */
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
		jobq_run_ended();
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

/* The transaction was aborted or prepared: release the reserved resources. */
static void
forget(void)
{
	/* processes that left because of the command come back */
	if (poke)
		jobq_poke_launcher();
	anything = false;
	abort_books(InvalidSubTransactionId);
	npushes = nlanes = nwakes = 0;
	changed = 0;
	rescan = reload = prepared = unnoted = over = poke = false;
	created = InvalidOid;
}
