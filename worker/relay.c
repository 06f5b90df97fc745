/*-------------------------------------------------------------------------
 *
 * relay.c
 *	  Sends what the NOTIFY relay has collected.
 *
 * NOTIFY takes a lock of the whole cluster across the commit's flush.  Here
 * one process takes it, at most once per jobq.notify_interval, in a
 * transaction that writes nothing else.  Duplicates collapse within it.
 *
 * worker/relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker.h"

#include "access/xact.h"
#include "commands/async.h"

#include "commit.h"

void
relay_send(void)
{
	JobqRelayMessage *messages;
	uint32		nmessages;
	int32	   *queues = palloc(sizeof(int32) * jobq_max_lanes);
	int			nqueues = 0;

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->relay_pending = false;
	nmessages = my_db->relay_count;
	messages = palloc(sizeof(JobqRelayMessage) * (nmessages + 1));
	for (uint32 i = 0; i < nmessages; i++)
		messages[i] = my_db->relay[(my_db->relay_head + i) % JOBQ_RELAY_SIZE];
	my_db->relay_head = (my_db->relay_head + nmessages) % JOBQ_RELAY_SIZE;
	my_db->relay_count = 0;
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		JobqLane   *lane = &my_db->lanes[i];
		bool		known = false;

		if (!lane->in_use || !lane->notify)
			continue;
		lane->notify = false;
		for (int j = 0; j < nqueues && !known; j++)
			known = queues[j] == lane->queue_id;
		if (!known)
			queues[nqueues++] = lane->queue_id;
	}
	LWLockRelease(my_db->lock);

	if (nmessages == 0 && nqueues == 0)
		return;

	/* told means durable: what is told of was committed without a flush */
	jobq_flush_before_telling();

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	for (uint32 i = 0; i < nmessages; i++)
		Async_Notify(messages[i].channel, messages[i].payload);
	if (nqueues > 0 && jobq_relations_if_installed() != NULL)
	{
		for (int i = 0; i < nqueues; i++)
		{
			const JobqQueue *queue = jobq_queue_by_id(queues[i]);
			char		channel[NAMEDATALEN + 16];

			if (queue == NULL || queue->notify == NOTIFY_OFF)
				continue;
			snprintf(channel, sizeof(channel), "jobq_queue_%s", queue->name);
			Async_Notify(channel, "");
		}
	}
	CommitTransactionCommand();
	pfree(queues);
	pfree(messages);
}
