/*-------------------------------------------------------------------------
 *
 * drop_queue.c
 *	  drop_queue(): drop a queue.
 *
 * A live job always has a queue.  A transaction with a new job first takes a RowShareLock on
 * jobq_internal.queue (jobq_pin_queues()), and holds the lock until the end of the
 * transaction.  To drop a queue, a transaction takes an ExclusiveLock, and so detects each
 * transaction that may have added a job.
 *
 * The ExclusiveLock blocks all producers, so the lock is taken as late as possible,
 * immediately before the commit.  Until then the queue is dropped only for the current
 * transaction, and other transactions use the queue as before.  If another transaction has
 * added a job to the queue, the commit fails.  An unavailable lock is requested repeatedly
 * and without queueing, so that no producer waits behind the request.  Only the last, short
 * attempt queues.
 *
 * Two transactions that drop queues would wait for each other at this lock, because each has
 * deleted rows of jobq_internal.queue.  They therefore take turns, from the call of
 * drop_queue() on.
 *
 * A queue also has the rows of missing roles that a restore has kept aside (73-held.sql).
 *
 * src/operate/drop_queue.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "compose/compose.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_drop_queue);

/*
 * Milliseconds: total time for requests of the lock, unless lock_timeout is shorter; pause
 * between two requests; and waiting time of the last request, made only if lock_timeout is
 * longer.
 */
#define TOTAL_TIMEOUT		5000
#define PAUSE			10
#define LAST_LOCK_TIMEOUT	100

/* Attribute number in jobq_internal.dead_letter. */
#define LETTER_QUEUE_ID	6

/* A queue dropped by the current transaction. */
typedef struct Dropped
{
	SubTransactionId subid;
	int32		queue_id;
	Oid			jobs;			/* jobq_internal.job */
	bool		force;
	char		name[NAMEDATALEN];
	struct Dropped *outer;		/* the queue dropped before */
} Dropped;

static Dropped *dropped = NULL; /* in TopTransactionContext */

static void lock_turn(const char *name);

/*
 * True if the table has a row of the queue now, regardless of the transaction's snapshot.
 * "column" is the first column of the index.
 */
static bool
has_row(JobqTable table, JobqIndex index, AttrNumber column, int32 queue_id)
{
	Relation	rel = jobq_open_table(table, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	Snapshot	snapshot;
	bool		found;

	CommandCounterIncrement();
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	scan = systable_beginscan(rel, jobq_index(rel, index), true, snapshot, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

static bool
has_letters(int32 queue_id)
{
	return has_row(JOBQ_DEAD_LETTER_TABLE, JOBQ_DEAD_LETTER_QUEUE, LETTER_QUEUE_ID,
				   queue_id);
}

/* Condition: the row of held_row is a job or a dead letter of queue $1. */
#define HELD_IN_QUEUE	"contents[array_position(columns, 'queue_id')] = $1::text"

/*
 * True if rows of the queue are kept aside now, because their roles do not exist.  "table" is the
 * table of the rows, without the schema.
 */
static bool
has_held(const char *table, int32 queue_id)
{
	static const Oid types[] = {INT4OID, TEXTOID};
	Datum		values[] = {Int32GetDatum(queue_id), CStringGetTextDatum(table)};
	bool		found;

	if (!jobq_has_held_rows())
		return false;
	SPI_connect();
	found = jobq_query_latest("SELECT FROM jobq_internal.held_row WHERE table_name = $2 AND " HELD_IN_QUEUE " LIMIT 1",
							  2, types, values, SPI_OK_SELECT) > 0;
	SPI_finish();
	return found;
}

/*
 * Return whether the queue has dead letters.  ERROR if the queue has live jobs, of any role,
 * or has dead letters and "force" is not set.
 */
static bool
check_droppable(const Dropped *queue)
{
	bool		letters;

	if (has_row(JOBQ_JOB_TABLE, JOBQ_JOB_READY, JOB_QUEUE_ID, queue->queue_id))
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop queue \"%s\" because it has jobs",
						queue->name),
				 errhint("Let them end with jobq.wait_queue(), or cancel them with jobq.cancel_many(); they may be another role's.")));
	if (has_held("job", queue->queue_id))
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop queue \"%s\" because it has jobs of roles that do not exist",
						queue->name),
				 errhint("jobq.doctor() names the roles. Create them, and then call jobq.adopt().")));
	letters = has_letters(queue->queue_id) || has_held("dead_letter", queue->queue_id);
	if (letters && !queue->force)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("cannot drop queue \"%s\" because it has dead letters",
						queue->name),
				 errhint("Run them again with jobq.retry_many(%s), delete them with jobq.delete_many(%s), or drop them along with force => true.",
						 quote_literal_cstr(queue->name), quote_literal_cstr(queue->name))));
	return letters;
}

/*
 * drop_queue(name, force): drop the queue with all settings, privileges and the delegation.
 * With force, the dead letters are deleted at commit.  ERROR if the queue has jobs, now or at
 * commit, and without the privilege manage for the queue.
 */
Datum
jobq_drop_queue(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {INT4OID};
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	int32		queue_id = jobq_existing_queue(name);
	Dropped    *queue = MemoryContextAllocZero(TopTransactionContext,
											   sizeof(Dropped));
	Datum		values[] = {Int32GetDatum(queue_id)};

	jobq_require_queue(queue_id, name, JOBQ_MAY_MANAGE);
	PreventCommandIfReadOnly("jobq.drop_queue()");
	lock_turn(name);
	queue->subid = GetCurrentSubTransactionId();
	queue->queue_id = queue_id;
	queue->force = PG_GETARG_BOOL(1);
	queue->jobs = jobq_relations()->job;
	strlcpy(queue->name, name, NAMEDATALEN);

	/* fail early if the queue cannot be dropped */
	(void) check_droppable(queue);

	/* before the caller's privilege for the queue is deleted */
	jobq_audit(fcinfo, -1);

	queue->outer = dropped;
	dropped = queue;
	SPI_connect();
	jobq_query("DELETE FROM jobq_internal.queue WHERE id = $1", 1, types, values, NULL,
			   SPI_OK_DELETE);
	jobq_query("DELETE FROM jobq_internal.delegation WHERE queue_id = $1", 1, types,
			   values, NULL, SPI_OK_DELETE);
	jobq_query("DELETE FROM jobq_internal.privilege WHERE queue_id = $1", 1, types,
			   values, NULL, SPI_OK_DELETE);
	if (jobq_has_held_rows())
		jobq_query("DELETE FROM jobq_internal.held_row WHERE table_name IN ('queue', 'delegation') AND contents[1] = $1::text"
				   " OR table_name = 'privilege' AND " HELD_IN_QUEUE,
				   1, types, values, NULL, SPI_OK_DELETE);
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * Raise the error for open transactions that may have added a job to the queue.
 */
static void
still_used(const char *name)
{
	LOCKTAG		tag;
	int			pid = 0;
	bool		found;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, jobq_relations()->queue);
	found = jobq_lock_holder(&tag, ExclusiveLock, &pid);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("cannot drop queue \"%s\" now", name),
			 !found ? errdetail("Transactions have enqueued jobs, and are open.")
			 : pid == 0 ? errdetail("A prepared transaction has enqueued jobs.")
			 : errdetail("A transaction of process %d has enqueued jobs, and is open.",
						 pid),
			 errhint("Try again when it has ended. The views pg_stat_activity and pg_prepared_xacts show since when it has been open.")));
}

/*
 * Request the ExclusiveLock repeatedly, without queueing.  Returns false after TOTAL_TIMEOUT
 * milliseconds, or after lock_timeout if that is shorter.
 */
static bool
poll_lock(const LOCKTAG *tag)
{
	static uint32 wait_event = 0;
	int			timeout = LockTimeout > 0 ? Min(LockTimeout, TOTAL_TIMEOUT)
		: TOTAL_TIMEOUT;
	JobqSteady	start = jobq_steady();

	do
	{
		CHECK_FOR_INTERRUPTS();
		if (LockAcquire(tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL)
		{
			AcceptInvalidationMessages();
			return true;
		}
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 PAUSE, jobq_wait_event(wait_event, "JobqDropQueue"));
		ResetLatch(MyLatch);
	} while (jobq_steady() < start + timeout * INT64CONST(1000));
	return false;
}

/*
 * Wait until no other open transaction has dropped a queue.  ERROR after TOTAL_TIMEOUT
 * milliseconds.
 */
static void
lock_turn(const char *name)
{
	LOCKTAG		tag;
	int			pid = 0;

	/* no queue has the id 0: such a lock is of src/store/length.c */
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, jobq_relations()->queue, 0, 0);
	if (poll_lock(&tag))
		return;
	(void) jobq_lock_holder(&tag, ExclusiveLock, &pid);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("cannot drop queue \"%s\" now", name),
			 pid == 0 ? errdetail("Another transaction has dropped a queue, and is open.")
			 : errdetail("A transaction of process %d has dropped a queue, and is open.", pid),
			 errhint("Try again when it has ended.")));
}

/*
 * Take the ExclusiveLock on jobq_internal.queue, waiting until no open transaction may have
 * added a job.  ERROR after TOTAL_TIMEOUT milliseconds.
 */
static void
lock_queues(const char *name)
{
	Oid			queues = jobq_relations()->queue;
	MemoryContext caller = CurrentMemoryContext;
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, queues);
	if (poll_lock(&tag))
		return;

	/* there may always be a producer, each for a short time only */
	if (LockTimeout > 0 && LockTimeout <= LAST_LOCK_TIMEOUT)
		still_used(name);
	(void) set_config_option("lock_timeout", CppAsString2(LAST_LOCK_TIMEOUT),
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true,
							 0, false);
	PG_TRY();
	{
		LockRelationOid(queues, ExclusiveLock);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		FlushErrorState();
		still_used(name);
	}
	PG_END_TRY();
}

/*
 * True if the extension with the queue was dropped later in this transaction.
 */
static bool
went_with_extension(const Dropped *queue)
{
	const JobqRelations *rels = jobq_relations_of_any_version();

	return rels == NULL || rels->job != queue->jobs;
}

/*
 * Delete the dead letters of the queue that the transaction's snapshot shows.  wait: also
 * letters that other transactions have locked, after their end.
 */
static void
delete_letters(const Dropped *queue, bool wait)
{
	static const Oid types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum(queue->queue_id)};

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	(void) jobq_delete_and_count(wait ? DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE queue_id = $1"
														 RETURNING_LETTERS)
								 : DELETE_AND_COUNT("DELETE FROM jobq_internal.dead_letter WHERE id IN"
													" (SELECT id FROM jobq_internal.dead_letter WHERE queue_id = $1 FOR UPDATE SKIP LOCKED)"
													RETURNING_LETTERS),
								 1, types, values);
	if (wait && jobq_has_held_rows())
		jobq_query("DELETE FROM jobq_internal.held_row WHERE table_name = 'dead_letter' AND " HELD_IN_QUEUE,
				   1, types, values, NULL, SPI_OK_DELETE);
	SPI_finish();
	PopActiveSnapshot();
}

/*
 * Before the commit: check that no dropped queue has been used since, and delete the dead
 * letters.  Few dead letters are left to delete while the lock blocks the producers.  ERROR
 * if a queue has jobs or if the lock is not available in time.
 */
static void
drops_before_commit(void)
{
	for (Dropped *queue = dropped; queue != NULL; queue = queue->outer)
		if (!went_with_extension(queue) && check_droppable(queue))
			delete_letters(queue, false);
	if (!went_with_extension(dropped))
		lock_queues(dropped->name);
	for (Dropped *queue = dropped; queue != NULL; queue = queue->outer)
	{
		if (went_with_extension(queue) || !check_droppable(queue))
			continue;
		delete_letters(queue, true);
		if (has_letters(queue->queue_id))
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not serialize access due to concurrent update")));
	}
}

static bool
drops_noted(void)
{
	return dropped != NULL;
}

/*
 * At the commit: remove the queues from the statistics.  No other process needs a wakeup.  The
 * trigger on jobq_internal.queue invalidates the caches.
 */
static bool
drops_pending(JobqDatabase *db)
{
	for (Dropped *queue = dropped; queue != NULL && jobq_stats != NULL;
		 queue = queue->outer)
		jobq_stats_forget_queue(MyDatabaseId, queue->jobs, queue->queue_id);
	dropped = NULL;
	return false;
}

static void
drops_abort(SubTransactionId since)
{
	while (dropped != NULL && dropped->subid >= since)
		dropped = dropped->outer;
}

/*
 * Refuse PREPARE TRANSACTION, because the prepared transaction would keep the ExclusiveLock.
 */
static void
drops_check_prepare(void)
{
	if (dropped != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has dropped the queue \"%s\"",
						dropped->name),
				 errhint("Drop it in a transaction of its own.")));
}

static const JobqCommitBooks books =
{
	.noted = drops_noted,
	.before_commit = drops_before_commit,
	.pending = drops_pending,
	.abort = drops_abort,
	.check_prepare = drops_check_prepare,
};

/*
 * Register the commit callbacks of this file.  Called once per process.
 */
void
jobq_drop_queue_install(void)
{
	jobq_commit_join(&books);
}
