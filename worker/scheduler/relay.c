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
 * worker/scheduler/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "commands/async.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "commit/commit.h"
#include "scheduler/duty.h"

/* What was collected, and waits for a synchronous standby. */
typedef struct Batch
{
	XLogRecPtr	lsn;
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

static Batch batch = {0};
static MemoryContext batch_context = NULL;
static int	patience = FIRST_PATIENCE;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void collect_batch(void);
static void begin(void);
static void send_batch(void);

/* Sends JOBQ_RELAY_SIZE messages, and one for each lane; flushes once. */
Duty		relay_duty = {
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
	MemoryContext old;

	if (batch_context == NULL)
		batch_context = AllocSetContextCreate(TopMemoryContext, "jobq relay",
											  ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(batch_context);
	if (batch.lsn == 0)
		collect_batch();
	if (batch.lsn != 0)
	{
		if (jobq_replicated(batch.lsn))
		{
			send_batch();
			patience = FIRST_PATIENCE;
			memset(&batch, 0, sizeof(batch));
			MemoryContextReset(batch_context);
		}
		else
		{
			LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
			my_db->relay_pending = true;
			my_db->relay_due = jobq_now() + STANDBY_PAUSE * INT64CONST(1000);
			LWLockRelease(my_db->lock);
		}
	}
	MemoryContextSwitchTo(old);
	return DT_NOEND;
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

static void
collect_batch(void)
{
	JobqLane   *lane;

	batch.queues = palloc(sizeof(int32) * jobq_max_lanes);
	batch.messages = palloc(sizeof(JobqRelayMessage) * JOBQ_RELAY_SIZE);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->relay_pending = false;
	batch.nmessages = my_db->told->relay_count;
	for (uint32 i = 0; i < batch.nmessages; i++)
		batch.messages[i] = my_db->told->relay[(my_db->told->relay_head + i) %
											   JOBQ_RELAY_SIZE];
	my_db->told->relay_head = (my_db->told->relay_head + batch.nmessages) % JOBQ_RELAY_SIZE;
	my_db->told->relay_count = 0;
	while ((lane = jobq_lane_next_noted(my_db)) != NULL)
		batch.queues[batch.nqueues++] = lane->queue_id;
	LWLockRelease(my_db->lock);

	batch.nqueues = unique_ids(batch.queues, batch.nqueues);
	if (batch.nmessages > 0 || batch.nqueues > 0)
		batch.lsn = jobq_flush();
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
 * Send what has not been sent; if that fails, it waits longer the next time.
 */
static void
send_batch(void)
{
	int			longer = Min(2 * patience, LAST_PATIENCE);

	begin();
	patience = longer;
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

			if (queue == NULL || queue->notify != NOTIFY_RELAY)
				continue;
			snprintf(channel, sizeof(channel), "jobq_queue_%s", queue->name);
			Async_Notify(channel, "");
		}
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(batch_context);
}
