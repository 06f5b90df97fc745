/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  Reserves the tokens of leases, so that tokens after a start are higher
 *	  than all earlier tokens.
 *
 * A token must never be reused.  Otherwise a consumer with a lost job could end the
 * lease of a different consumer.  Of two leases of a job, the later one must have the
 * higher token, so that external systems can detect a late consumer.  Within the
 * lifetime of the shared memory, a counter under db->lock guarantees both, because each
 * lease begins under the same lock.  Beyond this lifetime:
 *
 * - Crash or restart: all tokens are below the value of a sequence.  The sequence value
 *   is durable before the first of these tokens is used.  After a start, tokens begin
 *   at this value.  A clock that was put back does no harm, and neither do lost WAL
 *   records of transactions with tokens.
 * - Failover to a lagging standby, point-in-time recovery, a storage snapshot, or a
 *   new extension: the sequence has an old value, and does not cover the latest
 *   tokens.  Tokens therefore begin at the clock in microseconds or higher; far fewer
 *   tokens are used in the same time.  Each timeline is also hours ahead of the
 *   previous timeline, in case the clock of the new server is slow.  A standby that
 *   has seen the last start of its primary begins above all tokens of the primary,
 *   because the sequence runs ahead, regardless of the clocks.
 * - Dump and restore, or pg_upgrade: the timeline may be lower, but the sequence value
 *   is included.
 *
 * The microseconds since 2000 stay below 2^53, the limit of exact numbers in JavaScript,
 * until the year 2285.  The steps leave enough room: an earlier overflow takes millions
 * of starts, or half a million timelines.
 *
 * worker/scheduler/tokens.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/sequence.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"

/*
 * Tokens reserved at a time.  Enough for a million tokens per second between two runs
 * of the scheduler at the longest jobq.poll_interval.
 */
#define TOKENS_AHEAD	(INT64CONST(1) << 32)

/* The distance between two timelines: nearly five hours. */
#define TIMELINE_STEP	(INT64CONST(1) << 34)

/*
 * Reserve TOKENS_AHEAD tokens from "from" on.  If the sequence is above "end", the last
 * reserved token known, the tokens begin at the sequence: an earlier server start or a
 * dump has set this value.  Returns the first token.  The reservation is durable on
 * return, because the scheduler commits synchronously.
 */
static int64
set_aside(int64 from, int64 end)
{
	Oid			sequence;
	int64		value;

	process_begin_transaction();
	sequence = jobq_relations()->lease_seq;
	value = nextval_internal(sequence, false);
	if (value > end + 1)
		from = Max(from, value);
	(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(sequence),
							   Int64GetDatum(from + TOKENS_AHEAD));
	PopActiveSnapshot();
	CommitTransactionCommand();
	return from;
}

/*
 * Reserve tokens once in the lifetime of the shared memory, before the first use.
 * Takes my_db->lock exclusively.
 */
void
tokens_begin(void)
{
	int64		from = set_aside(Max(my_db->leases->next_token,
									 GetCurrentTimestamp() +
									 GetWALInsertionTimeLine() * TIMELINE_STEP),
								 0);

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->next_token = from;
	my_db->leases->tokens_end = from + TOKENS_AHEAD;
	LWLockRelease(my_db->lock);
}

/*
 * Replace the used tokens of the reservation.  Takes my_db->lock exclusively.
 */
void
tokens_renew(void)
{
	int64		from;
	int64		end;

	LWLockAcquire(my_db->lock, LW_SHARED);
	from = my_db->leases->next_token;
	end = my_db->leases->tokens_end;
	LWLockRelease(my_db->lock);
	if (from + TOKENS_AHEAD == end)
		return;
	from = set_aside(from, end);
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->leases->next_token = Max(my_db->leases->next_token, from);
	my_db->leases->tokens_end = from + TOKENS_AHEAD;
	LWLockRelease(my_db->lock);
}
