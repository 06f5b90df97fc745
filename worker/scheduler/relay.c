/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Sends the notifications collected by the NOTIFY relay.
 *
 * NOTIFY holds a lock of the whole cluster until the commit is flushed.  The relay takes
 * this lock in one process, at most once per jobq.notify_interval, in a transaction
 * without further changes.  Duplicates are merged.
 *
 * A different session may hold the lock for long, for example while its commit waits for
 * a standby.  The relay therefore waits only a short time, and slightly longer with each
 * attempt.  Unsent notifications are kept.
 *
 * PostgreSQL's notification queue may be full, if a listening session does not read.
 * New notifications are still accepted, because otherwise sessions would find the relay
 * full and fail with a NOTIFY of their own.  If there is no room, the oldest
 * notifications are dropped.
 *
 * worker/scheduler/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "commands/async.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "commit/commit.h"
#include "scheduler/duty.h"

/* The collected notifications. */
typedef struct Batch
{
	XLogRecPtr	lsn;			/* flushed up to here; 0: not yet */
	uint32		nmessages;
	uint32		nsent;
	JobqRelayMessage *messages;
	int			nqueues;
	int32	   *queues;
} Batch;

/* Milliseconds between two checks of the standby. */
#define STANDBY_CHECK	20

/* A wait for the lock ends after this fraction (1/n) of the pause that follows. */
#define LOCK_SHARE		10

/* The pause after any other error (microseconds). */
#define AFTER_ERROR		USECS_PER_SEC

/* Completes "the scheduler cannot ..." after an error. */
#define SEND			"send notifications"

static Batch batch = {0};
static MemoryContext batch_context = NULL;
static JobqPause retry = {0};	/* before the next attempt */
static bool failed = false;		/* the last attempt failed, not by a lock */
static uint64 ndropped = 0;		/* since the failure */

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void forget_batch(void);
static void come_again(TimestampTz at);
static void collect_batch(void);
static void try_to_send(void);
static void could_not_send(ErrorData *edata);

/* Sends JOBQ_RELAY_SIZE messages, and one for each lane.  Flushes once. */
Duty		relay_duty = {
	.what = "relay notifications",
	.run = run,
	.next_due = next_due,
};

/*
 * Send the pending notifications.  A notification implies a durable change, but the
 * change may have been committed without a flush.  Flush first, and keep the
 * notifications until a synchronous standby has the change, without waiting.
 */
static TimestampTz
run(TimestampTz now)
{
	TimestampTz due = jobq_pause_due(&retry, now);

	if (batch.messages == NULL || (failed && now < due))
		collect_batch();
	if (batch.nmessages == 0 && batch.nqueues == 0)
		forget_batch();
	else if (now < due)
		come_again(due);
	else
	{
		if (batch.lsn == 0)
			batch.lsn = jobq_flush();
		if (jobq_replicated(batch.lsn))
			try_to_send();
		else
			come_again(jobq_now() + STANDBY_CHECK * INT64CONST(1000));
	}
	return DT_NOEND;
}

/*
 * Forget the batch after all of it was sent.
 */
static void
forget_batch(void)
{
	memset(&batch, 0, sizeof(batch));
	MemoryContextReset(batch_context);
}

static void
come_again(TimestampTz at)
{
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->relay_pending = true;
	my_db->relay_due = at;
	LWLockRelease(my_db->lock);
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->relay_pending ? my_db->relay_due : DT_NOEND;
}

/*
 * Sort the ids and remove duplicates.  Returns the number of ids left.
 */
static int
unique_ids(int32 *ids, int n)
{
	int			left = 0;

	qsort(ids, n, sizeof(int32), jobq_compare_int32);
	for (int i = 0; i < n; i++)
		if (i == 0 || ids[i] != ids[i - 1])
			ids[left++] = ids[i];
	return left;
}

/*
 * Remove the sent messages, and as many of the oldest unsent messages as needed for n
 * new messages.
 */
static void
make_room(uint32 n)
{
	uint32		keep = Min(batch.nmessages - batch.nsent, JOBQ_RELAY_SIZE - n);

	ndropped += batch.nmessages - batch.nsent - keep;
	memmove(batch.messages, batch.messages + batch.nmessages - keep,
			sizeof(JobqRelayMessage) * keep);
	batch.nmessages = keep;
	batch.nsent = 0;
}

/*
 * Collect the pending notifications.  Takes my_db->lock exclusively.
 */
static void
collect_batch(void)
{
	JobqLane   *lane;
	uint32		n;
	int			nqueues = batch.nqueues;

	if (batch_context == NULL)
		batch_context = AllocSetContextCreate(TopMemoryContext, "jobq relay",
											  ALLOCSET_DEFAULT_SIZES);
	if (batch.messages == NULL)
	{
		/* old notifications, plus one for each lane */
		batch.queues = MemoryContextAlloc(batch_context, sizeof(int32) * 2 * jobq_max_lanes);
		batch.messages = MemoryContextAlloc(batch_context,
											sizeof(JobqRelayMessage) * JOBQ_RELAY_SIZE);
	}

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->relay_pending = false;
	n = my_db->told->relay_count;
	if (batch.nmessages + n > JOBQ_RELAY_SIZE)
		make_room(n);
	for (uint32 i = 0; i < n; i++)
		batch.messages[batch.nmessages++] =
			my_db->told->relay[(my_db->told->relay_head + i) % JOBQ_RELAY_SIZE];
	my_db->told->relay_head = (my_db->told->relay_head + n) % JOBQ_RELAY_SIZE;
	my_db->told->relay_count = 0;
	while ((lane = jobq_lane_next_noted(my_db)) != NULL)
		batch.queues[batch.nqueues++] = lane->queue_id;
	LWLockRelease(my_db->lock);

	if (n > 0 || batch.nqueues > nqueues)
		batch.lsn = 0;
	batch.nqueues = unique_ids(batch.queues, batch.nqueues);
	if (batch.nqueues > jobq_max_lanes)
	{
		ndropped += batch.nqueues - jobq_max_lanes;
		batch.nqueues = jobq_max_lanes;
	}
}

/*
 * Begin a transaction to send notifications, with the current lock timeout.
 */
static void
begin(void)
{
	char		timeout[16];
	int64		next = jobq_pause_length(PAUSE_NOTIFY_LOCKED, retry.n + 1);

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	snprintf(timeout, sizeof(timeout), "%dms", (int) (next / LOCK_SHARE / 1000));
	(void) set_config_option("lock_timeout", timeout, PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Send the unsent notifications.
 */
static void
send_batch(void)
{
	begin();
	for (uint32 i = batch.nsent; i < batch.nmessages; i++)
	{
		/* NOTIFY would merge duplicates within one transaction */
		for (uint32 j = batch.nsent; j < i; j++)
		{
			if (strcmp(batch.messages[j].channel, batch.messages[i].channel) == 0 &&
				strcmp(batch.messages[j].payload, batch.messages[i].payload) == 0)
			{
				CommitTransactionCommand();
				batch.nsent = i;
				begin();
			}
		}
		Async_Notify(batch.messages[i].channel, batch.messages[i].payload);
	}
	if (batch.nqueues > 0 && jobq_relations_if_installed() != NULL)
	{
		for (int i = 0; i < batch.nqueues; i++)
		{
			JobqQueue	buffer;
			const JobqQueue *queue = jobq_queue_by_id(batch.queues[i],
													  &buffer);
			char		channel[NAMEDATALEN + 16];

			/*
			 * with "transactional", a worker or this process has sent the
			 * message
			 */
			if (queue == NULL || queue->notify == NOTIFY_OFF)
				continue;
			snprintf(channel, sizeof(channel), "jobq_queue_%s", queue->name);
			Async_Notify(channel, "");
		}
	}
	CommitTransactionCommand();
}

/*
 * Send the unsent notifications.  After an error, which affects only the notifications,
 * try again later.
 */
static void
try_to_send(void)
{
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		/*
		 * Space in the notification queue is freed only by a sender after its
		 * commit, or by this function call.
		 */
		if (failed)
			(void) OidFunctionCall0(F_PG_NOTIFICATION_QUEUE_USAGE);
		send_batch();
		MemoryContextSwitchTo(caller);
		memset(&retry, 0, sizeof(retry));
		forget_batch();
		if (failed)
			ereport(LOG,
					(errmsg("the jobq scheduler sends notifications again"),
					 errdetail(UINT64_FORMAT " were dropped, as there was no room for them.",
							   ndropped)));
		failed = false;
		ndropped = 0;
		trouble_over(SEND);
	}
	PG_CATCH();
	{
		could_not_send(scheduler_caught(caller));
	}
	PG_END_TRY();
}

static void
could_not_send(ErrorData *edata)
{
	if (edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		if (failed)
			(void) trouble_note(SEND, edata->message, AFTER_ERROR);
		jobq_pause_begin(&retry, PAUSE_NOTIFY_LOCKED);
	}
	else
	{
		(void) trouble_note(SEND, edata->message, AFTER_ERROR);
		if (!failed)
			ereport(LOG,
					(errcode(edata->sqlerrcode),
					 errmsg("the jobq scheduler cannot send notifications: %s",
							edata->message),
					 errhint("It keeps the last %d of them, and tries again every second; all else goes on.",
							 JOBQ_RELAY_SIZE)));
		failed = true;
		retry.until = jobq_steady() + AFTER_ERROR;
	}
	FreeErrorData(edata);
	come_again(jobq_pause_due(&retry, jobq_now()));
}
