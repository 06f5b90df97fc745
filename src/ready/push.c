/*-------------------------------------------------------------------------
 *
 *	  Push: jobs come into the ready set, from committing backends and from scans.
 *
 * A pop removes an entry and writes no tuple.  An entry is only a hint: the process that pops
 * the entry verifies the row by ctid and id, and drops the entry if the row is gone or
 * claimed.  An entry may therefore exist twice, but a due row must never be missing: see the
 * invariant beside JobqLane.
 *
 * src/ready/push.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

#define HIGHEST_KEY	((JobqKey) {PG_INT64_MAX, PG_INT64_MAX})

/*
 * Forget all lanes and entries.
 */
void
jobq_ready_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	lanes_clear(db);
	entries_clear(db);
	groups_unpark(db);
	prefetch_forget(db);
	db->ready->nlate = db->ready->nasked = 0;
	db->ready->missed = HIGHEST_KEY;
	db->ready->complete = false;
	db->ready->overflow = false;
	db->ready->starved = false;
	db->ready->paused_forgotten = false;
	db->ready->forgotten_due = DT_NOEND;
	db->ready->quarantine_slot = -1;
}

/*
 * Store the needs of this job in its lane.  The jobs in the lane may be free to start by these
 * needs, while the needs of another job with the same flow have kept the lane waiting.
 */
static void
set_flow(JobqDatabase *db, JobqLane *lane, const JobqPush *push, TimestampTz now,
		 JobqWakeList *wake)
{
	if (lane_set_flow(db, lane, push) && lane->count > 0)
		(void) jobq_lane_wake(db, lane, now, wake);
}

/*
 * Hand over a job whose transaction has committed.  The caller releases the lock with
 * jobq_unlock(), which sends the wake-ups.
 */
void
jobq_ready_push(JobqDatabase *db, const JobqPush *push, TimestampTz now,
				JobqWakeList *wake)
{
	bool		due = push->key.run_at <= now;
	JobqLane   *lane;
	InsertResult result;

	AssertExclusive(db->lock);
	lane = jobq_lane_find(db, push->queue_id, push->priority, push->role,
						  push->flow, push->quarantine && due, true);
	if (lane == NULL)
	{
		wake->scheduler = true;
		if (push->quarantine && due)
			lane = jobq_lane_find(db, push->queue_id, push->priority,
								  push->role, push->flow, false, false);
		if (lane != NULL)
			lane_skip(db, lane, push->key);
		return;
	}
	set_flow(db, lane, push, now, wake);
	if (!lane->ranked)
	{
		jobq_lane_ask_rank(db, lane);
		wake->scheduler = true;
	}
	if (push->notify && due)
	{
		jobq_lane_note(db, lane);
		jobq_relay_mark(db, now, wake);
	}
	if (!due)
	{
		if (push->key.run_at < lane->next_due)
			lane->next_due = push->key.run_at;
		jobq_lane_expect(db, lane);
		/* the clock was put back */
		if (jobq_key_cmp(push->key, lane->cursor) <= 0)
		{
			lane->cursor = key_below(push->key);
			if (lane->scanning && jobq_key_cmp(push->key, db->ready->missed) < 0)
				db->ready->missed = push->key;
		}
		if (push->key.run_at < db->wake_at)
			wake->scheduler = true;
		return;
	}

	if (!lane->quarantine && jobq_key_cmp(push->key, lane->cursor) > 0)
	{
		if (lane->scanning)
		{
			if (db->ready->nlate < JOBQ_MAX_LATE)
				db->ready->late[db->ready->nlate++] = *push;
			else
			{
				if (jobq_key_cmp(push->key, db->ready->missed) < 0)
					db->ready->missed = push->key;
				lane->more = true;
				jobq_lane_expect(db, lane);
			}
			return;
		}
		if (lane->more || lane->next_due <= push->key.run_at)
		{
			lane->more = true;
			jobq_lane_expect(db, lane);
			if (lane->count == 0 && !jobq_lane_is_closed(db, lane))
				wake->scheduler = true;
			return;
		}
	}

	gather_from(lane, now);
	result = entry_insert(db, lane, push);
	switch (result)
	{
		case INSERTED:
			if (!lane->quarantine &&
				jobq_key_cmp(push->key, lane->cursor) > 0)
				lane->cursor = push->key;
			(void) jobq_lane_wake(db, lane, now, wake);
			break;
		case DUPLICATE:
			break;
		case TOO_FAR:
		case NO_ENTRY:
			if (lane->quarantine)
				lane_skip(db, lane, push->key);
			else
				jobq_lane_look(db, lane, push->key, wake);
			wake->scheduler = true;
			break;
	}
}

/*
 * Hand over many jobs of a lane.  Only the first job is named, and the lane is read from
 * there.
 */
void
jobq_ready_look(JobqDatabase *db, const JobqPush *from, TimestampTz now,
				JobqWakeList *wake)
{
	JobqLane   *lane = jobq_lane_find(db, from->queue_id, from->priority,
									  from->role, from->flow, false, true);

	AssertExclusive(db->lock);
	if (lane == NULL)
	{
		wake->scheduler = true;
		return;
	}
	set_flow(db, lane, from, now, wake);
	jobq_lane_ask_rank(db, lane);
	jobq_lane_look(db, lane, from->key, wake);
	if (from->notify)
	{
		jobq_lane_note(db, lane);
		jobq_relay_mark(db, now, wake);
	}
}

/*
 * Publish the result of a scan of the lane.
 */
void
jobq_ready_publish(JobqDatabase *db, JobqLane *lane, const JobqScanned *scanned,
				   JobqWakeList *wake)
{
	const JobqPush *rows = scanned->rows;
	int			nrows = scanned->nrows;
	JobqKey		cursor = scanned->cursor;
	bool		more = scanned->more;
	uint32		after = JOBQ_NONE;
	JobqKey		done = lane->cursor;
	TimestampTz now = jobq_now();
	int			nlate;

	AssertExclusive(db->lock);

	/* jobs became due, or were many: the queue gets work */
	if (lane->count == 0 && nrows > 0)
	{
		jobq_lane_note(db, lane);
		jobq_relay_mark(db, now, wake);
	}
	if (nrows > 0)
	{
		set_flow(db, lane, &rows[0], now, wake);
		gather_from(lane, rows[0].key.run_at);
	}

	/* where does the first row belong? */
	if (nrows > 0)
	{
		after = lane->tail;
		while (after != JOBQ_NONE &&
			   jobq_key_cmp(db->ready->entries[after].key, rows[0].key) >= 0)
			after = db->ready->entries[after].prev;
	}

	for (int i = 0; i < nrows; i++)
	{
		const JobqPush *row = &rows[i];

		if (db->leases->nleases > 0 && jobq_lease_find(db, row->key.id) != NULL)
			continue;
		if (row->quarantine)
		{
			JobqLane   *quarantine = jobq_lane_find(db, lane->queue_id,
													lane->priority, lane->role,
													lane->flow, true, true);
			InsertResult result = NO_ENTRY;
			bool		at_end = after == lane->tail;

			if (quarantine != NULL)
			{
				set_flow(db, quarantine, row, now, wake);
				result = entry_insert(db, quarantine, row);
			}
			if (at_end)
				after = lane->tail; /* the last entry may have been evicted */
			if (result == TOO_FAR || result == NO_ENTRY)
			{
				lane_skip(db, lane, row->key);
				db->ready->overflow = true;
			}
			else
				(void) jobq_lane_wake(db, quarantine, now, wake);
		}
		else
		{
			uint32		next;
			int			cmp = 1;

			next = after == JOBQ_NONE ? lane->head : db->ready->entries[after].next;
			while (next != JOBQ_NONE &&
				   ((cmp = jobq_key_cmp(db->ready->entries[next].key, row->key)) < 0 ||
					(cmp == 0 && db->ready->entries[next].group != row->group)))
			{
				after = next;
				next = db->ready->entries[next].next;
			}
			if (next != JOBQ_NONE && cmp == 0)
			{
				db->ready->entries[next].ctid = row->ctid;
				after = next;
			}
			else if (entry_insert_after(db, lane, after, row) == INSERTED)
			{
				after = after == JOBQ_NONE ? lane->head
					: db->ready->entries[after].next;
				(void) jobq_lane_wake(db, lane, now, wake);
			}
			else
			{
				db->ready->starved |= !jobq_lane_is_closed(db, lane);
				cursor = done;
				more = true;
				break;
			}
		}
		done = row->key;
	}

	lane->scanning = false;
	lane->cursor = cursor;
	lane->more = more;

	/* a job came for a time before the cursor: the clock was put back */
	if (lane->next_due <= cursor.run_at)
	{
		JobqKey		before = {lane->next_due, 0};

		lane->cursor = before;
	}
	lane->next_due = Min(lane->next_due, scanned->next_due);
	if (jobq_key_cmp(db->ready->missed, lane->cursor) <= 0)
		lane->cursor = key_below(db->ready->missed);
	if (db->ready->missed.run_at != PG_INT64_MAX)
		lane->more = true;
	jobq_lane_expect(db, lane);
	db->ready->missed = HIGHEST_KEY;

	/* the scan may have missed rows committed meanwhile */
	nlate = db->ready->nlate;
	db->ready->nlate = 0;
	for (int i = 0; i < nlate; i++)
		jobq_ready_push(db, &db->ready->late[i], now, wake);
}

/*
 * A scan has ended with an error, and publishes nothing.  Jobs that other processes have left
 * to the scan are lost, so all lanes are read again.
 */
void
jobq_scan_failed(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (int i = 0; i < jobq_max_lanes; i++)
		db->ready->lanes[i].scanning = false;
	db->ready->missed = HIGHEST_KEY;
	db->rescan = true;
}

/*
 * Push the prefetched jobs of a leaving worker back into their lanes.
 */
void
jobq_prefetch_return(JobqDatabase *db, JobqSlot *slot, JobqWakeList *wake)
{
	JobqPush	push;

	AssertExclusive(db->lock);
	while (prefetch_drop(slot, &push))
		jobq_ready_push(db, &push, push.key.run_at, wake);
}
