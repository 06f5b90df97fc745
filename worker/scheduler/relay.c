/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Sends what the NOTIFY relay has collected.
 *
 * NOTIFY takes a lock of the whole cluster across the commit's flush.  Here
 * one process takes it, at most once per jobq.notify_interval, in a
 * transaction that writes nothing else.  Duplicates collapse within it.
 *
 * worker/scheduler/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "commands/async.h"
#include "utils/memutils.h"

#include "commit/commit.h"
#include "scheduler/duty.h"

/* What was collected, and waits for a synchronous standby. */
typedef struct Batch
{
	XLogRecPtr	lsn;
	uint32		nmessages;
	JobqRelayMessage *messages;
	int			nqueues;
	int32	   *queues;
} Batch;

/* Milliseconds between two looks at the standby. */
#define STANDBY_PAUSE	20

static Batch batch = {0};
static MemoryContext batch_context = NULL;

static TimestampTz run(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);
static void collect_batch(void);
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

static void
collect_batch(void)
{
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
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->ready->lanes[i];
		bool		known = false;

		if (!lane->in_use || !lane->notify)
			continue;
		lane->notify = false;
		for (int j = 0; j < batch.nqueues && !known; j++)
			known = batch.queues[j] == lane->queue_id;
		if (!known)
			batch.queues[batch.nqueues++] = lane->queue_id;
	}
	LWLockRelease(my_db->lock);

	if (batch.nmessages > 0 || batch.nqueues > 0)
		batch.lsn = jobq_flush();
}

static void
send_batch(void)
{
	uint32		first = 0;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	for (uint32 i = 0; i < batch.nmessages; i++)
	{
		/* within one transaction, NOTIFY would drop what it has heard before */
		for (uint32 j = first; j < i; j++)
		{
			if (strcmp(batch.messages[j].channel, batch.messages[i].channel) == 0 &&
				strcmp(batch.messages[j].payload, batch.messages[i].payload) == 0)
			{
				CommitTransactionCommand();
				StartTransactionCommand();
				first = i;
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
