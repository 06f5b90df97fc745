/*-------------------------------------------------------------------------
 *
 *	  Detects steps of the clock, and decides whether a jump forward is trusted.
 *
 * The time since boot never steps.  The offset of jobq_now() from that time therefore changes
 * only by a step of the clock, or by jobq.test_clock().
 *
 * A jump forward by more than MAX_JUMP is not trusted at once: deleting rows and catching up
 * wait (jobq_clock_ahead()).  The jump is trusted after TRUST_TIME, or when test_clock()
 * confirms the current offset.  A step back to a trusted offset needs no further trust.  The
 * clock at server start is trusted.
 *
 * src/memory/clock_watch.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "memory/memory.h"

/*
 * In microseconds.  The two clocks are read one after the other, so smaller steps are missed.
 */
#define MIN_STEP	USECS_PER_SEC
#define MAX_JUMP	USECS_PER_DAY
#define TRUST_TIME	USECS_PER_HOUR

/* Accepted microseconds between the readings of the two clocks, and the number of tries. */
#define GOOD_GAP	1000
#define MAX_TRIES	5

/*
 * Return the current offset, from the pair of readings with the least time in between.
 * *steady gets the time since boot.  Both are in microseconds.
 */
static int64
read_offset(int64 *steady)
{
	int64		offset = 0;
	int64		least = PG_INT64_MAX;

	for (int i = 0; i < MAX_TRIES && least > GOOD_GAP; i++)
	{
		int64		before = jobq_time_since_boot();
		int64		now = GetCurrentTimestamp() + jobq_clock_shift->offset;
		int64		after = jobq_time_since_boot();

		if (after - before >= least)
			continue;
		least = after - before;
		*steady = before;
		offset = now - after;
	}
	return offset;
}

/*
 * Initialize the clock watch in new shared memory.
 */
void
jobq_clock_init(JobqClock *clock)
{
	SpinLockInit(&clock->mutex);
	clock->offset = read_offset(&clock->since);
	clock->seen = clock->since;
	clock->trusted = clock->offset;
}

/*
 * Check for a step of the clock, and then trust the clock if "trust" is set.  Returns the
 * offset in microseconds.  Takes a spinlock.
 */
static int64
look(bool trust)
{
	JobqClock  *clock = &jobq_shared->clock;
	int64		steady;
	int64		offset = read_offset(&steady);

	SpinLockAcquire(&clock->mutex);

	/* a process with later readings may have come first */
	if (steady > clock->seen)
	{
		clock->seen = steady;
		if (offset - clock->offset >= MIN_STEP || clock->offset - offset >= MIN_STEP)
		{
			clock->offset = offset;
			clock->since = steady;
		}
	}
	if (trust || steady - clock->since >= TRUST_TIME)
		clock->trusted = clock->offset;
	offset = clock->offset;
	SpinLockRelease(&clock->mutex);
	return offset;
}

/*
 * Check for a step of the clock.  Returns the offset in microseconds, which changes only
 * after a step of at least a second.  Takes a spinlock.
 */
int64
jobq_clock_look(void)
{
	return look(false);
}

/*
 * Return by how many microseconds the clock has jumped forward without being trusted; 0 if
 * the clock is trusted.  The result is that of the last check by any process.  Takes a
 * spinlock.
 */
int64
jobq_clock_ahead(void)
{
	JobqClock  *clock = &jobq_shared->clock;
	int64		ahead;

	SpinLockAcquire(&clock->mutex);
	ahead = clock->offset - clock->trusted;
	SpinLockRelease(&clock->mutex);
	return ahead > MAX_JUMP + MIN_STEP ? ahead : 0;
}

/*
 * Trust the clock with its current offset.  Takes a spinlock.
 */
void
jobq_clock_confirm(void)
{
	(void) look(true);
}
