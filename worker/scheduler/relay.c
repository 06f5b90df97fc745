/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Sends what the NOTIFY relay has collected.
 *
 * NOTIFY takes a lock of the whole cluster across the commit's flush.  Here
 * one process takes it, at most once per jobq.notify_interval, in a
 * transaction that writes nothing else.  Duplicates collapse within it.
 *
 * Somebody else may keep that lock, as his commit waits for a standby, or many may
 * want it.  So it is waited for a moment, and a little longer the next time; what
 * was not sent yet is kept.
 *
 * PostgreSQL's queue of notifications may be full, as a session that listens does not
 * read them.  Then what comes is taken over all the same, or those who send would find
 * the relay full, and fail with a NOTIFY of their own; and the oldest is dropped where
 * there is no room.
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

/* What was collected, and is to be sent. */
typedef struct Batch
{
	XLogRecPtr	lsn;			/* flushed up to here; 0: not yet */
	uint32		nmessages;
	uint32		nsent;
	JobqRelayMessage *messages;
	int			nqueues;
	int32	   *queues;
} Batch;

/* Milliseconds between two looks at the standby. */
#define STANDBY_PAUSE	20

/* How long the lock is waited for, in milliseconds: at first, and at most. */
#define FIRST_PATIENCE	5
#define LAST_PATIENCE	80

/* The pause after that, as a multiple. */
#define PAUSE_SHARE		10

/* The pause after any other error. */
#define FAILED_PAUSE	USECS_PER_SEC

/* What the scheduler cannot do meanwhile. */
#define SEND			"send notifications"

static Batch batch = {0};
static MemoryContext batch_context = NULL;
static int	patience = FIRST_PATIENCE;
static TimestampTz retry_at = 0;	/* nothing is sent before */
static bool failed = false;		/* it could not be sent, and was not locked */
static uint64 ndropped = 0;		/* since then */

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void forget_batch(void);
static void come_again(TimestampTz at);
static void collect_batch(void);
static void begin(void);
static void send_batch(void);
static void try_to_send(void);
static void could_not_send(ErrorData *edata);

/* Sends JOBQ_RELAY_SIZE messages, and one for each lane; flushes once. */
Duty		relay_duty = {
	.what = "relay notifications",
	.run = run,
	.next_due = next_due,
};

/*
 * Send what is pending.  Told means durable: what is told of may have been
 * committed without a flush, so flush; and keep it while a synchronous standby
 * does not have it, without waiting for that.
 */
static TimestampTz
run(TimestampTz now)
{
	/* the clock may have been put back */
	retry_at = Min(retry_at, now + FAILED_PAUSE);
	if (batch.messages == NULL || (failed && now < retry_at))
		collect_batch();
	if (batch.nmessages == 0 && batch.nqueues == 0)
		forget_batch();
	else if (now < retry_at)
		come_again(retry_at);
	else
	{
		if (batch.lsn == 0)
			batch.lsn = jobq_flush();
		if (jobq_replicated(batch.lsn))
			try_to_send();
		else
			come_again(jobq_now() + STANDBY_PAUSE * INT64CONST(1000));
	}
	return DT_NOEND;
}

/*
 * Nothing is left to be sent.
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

static int
compare_ids(const void *a, const void *b)
{
	int32		x = *(const int32 *) a;
	int32		y = *(const int32 *) b;

	return x < y ? -1 : x > y;
}

/*
 * Sort, and name each once; returns how many are left.
 */
static int
unique_ids(int32 *ids, int n)
{
	int			left = 0;

	qsort(ids, n, sizeof(int32), compare_ids);
	for (int i = 0; i < n; i++)
		if (i == 0 || ids[i] != ids[i - 1])
			ids[left++] = ids[i];
	return left;
}

/*
 * Drop what has been sent of the batch, and so many of the others that there is room for
 * n more: the oldest.
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
 * Take over what is to be sent.
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
		/* those of before, and one of each lane */
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
 * Begin a transaction that sends something.
 */
static void
begin(void)
{
	char		timeout[16];

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	snprintf(timeout, sizeof(timeout), "%dms", patience);
	(void) set_config_option("lock_timeout", timeout, PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Send what has not been sent.
 */
static void
send_batch(void)
{
	begin();
	for (uint32 i = batch.nsent; i < batch.nmessages; i++)
	{
		/* within one transaction, NOTIFY would drop what it has heard before */
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

			/* with "transactional", a worker or this process has done it */
			if (queue == NULL || queue->notify == NOTIFY_OFF)
				continue;
			snprintf(channel, sizeof(channel), "jobq_queue_%s", queue->name);
			Async_Notify(channel, "");
		}
	}
	CommitTransactionCommand();
}

/*
 * Send what has not been sent.  If that fails, it is tried again later: an error is
 * that of the notifications only.
 */
static void
try_to_send(void)
{
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		/*
		 * The queue has room for what all listeners have read only when
		 * somebody has looked: the one who sends, after his commit, or this.
		 */
		if (failed)
			(void) OidFunctionCall0(F_PG_NOTIFICATION_QUEUE_USAGE);
		send_batch();
		MemoryContextSwitchTo(caller);
		patience = FIRST_PATIENCE;
		retry_at = 0;
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
			(void) trouble_note(SEND, edata->message, FAILED_PAUSE);
		retry_at = jobq_now() + PAUSE_SHARE * patience * INT64CONST(1000);
		patience = Min(2 * patience, LAST_PATIENCE);
	}
	else
	{
		(void) trouble_note(SEND, edata->message, FAILED_PAUSE);
		if (!failed)
			ereport(LOG,
					(errcode(edata->sqlerrcode),
					 errmsg("the jobq scheduler cannot send notifications: %s",
							edata->message),
					 errhint("It keeps the last %d of them, and tries again every second; all else goes on.",
							 JOBQ_RELAY_SIZE)));
		failed = true;
		retry_at = jobq_now() + FAILED_PAUSE;
	}
	FreeErrorData(edata);
	come_again(retry_at);
}
