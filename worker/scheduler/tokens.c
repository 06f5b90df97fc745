/*-------------------------------------------------------------------------
 *
 * tokens.c
 *	  The scheduler's part in the tokens of leases: after a start they go on above
 *	  all that were ever given.
 *
 * A token must never come again, or a consumer that has lost a job could end the
 * lease of another one.  And of two leases of a job the later one must have the
 * higher token, so that systems outside can tell who is late.  Within the life
 * of the shared memory both hold because there is a counter under db->lock, and
 * the lease begins under the same lock.  Beyond that life:
 *
 * - A crash, a restart: all tokens are below the value of a sequence, which is
 *	 durable before the first of them is given.  The next life begins there.  So a
 *	 clock that was put back does no harm, and neither does it that the
 *	 transactions that took tokens left nothing in the WAL, or lost it.
 * - A failover to a standby that was behind, a recovery to a point in time, a
 *	 snapshot of the storage, an extension made anew: the sequence is as it was
 *	 then, and does not know what has been given since.  Therefore tokens begin no
 *	 lower than the microseconds of the clock, which are far more than can be
 *	 given in that time; and each timeline is ahead of the one before by hours, in
 *	 case the new server's clock is slow.
 *	 And as the sequence runs ahead, a standby that has seen the last start of its
 *	 primary begins above all tokens of it, whatever the clocks say.
 * - Dump and restore, pg_upgrade: the timeline may be a lower one, but the
 *	 sequence is taken along.
 *
 * The microseconds since 2000 stay below 2^53, from where on JavaScript's numbers
 * would be inexact, until the year 2285.  The steps leave room for that: it takes
 * millions of starts, or half a million timelines, to get there earlier.
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
 * So many tokens are set aside at a time: as many as are given between two looks
 * of the scheduler at the longest jobq.poll_interval, at a million a second.
 */
#define TOKENS_AHEAD	(INT64CONST(1) << 32)

/* How far a timeline is ahead of the one before: nearly five hours. */
#define TIMELINE_STEP	(INT64CONST(1) << 34)

static int64 set_aside(int64 from, int64 end);

/*
 * Set the tokens from here on aside, or, if the sequence is above "end", which is
 * all that we know of, those from there on: a life before ours, or a dump, has
 * put it there.  Returns the first of them.  When this is back, that is durable,
 * as the scheduler commits synchronously.
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
 * Once in the life of the shared memory, before any token is given.
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
 * Some have been given: set as many aside again.
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
