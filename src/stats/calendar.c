/*-------------------------------------------------------------------------
 *
 * calendar.c
 *	  How many jobs wait for a time that has not come.
 *
 * No transaction tells that a job's time has come.  So each that is written for a
 * later time is entered here, at that time, and what is behind is struck out by who
 * comes next.  Times are kept as exactly as they are far away: by the second if that is
 * about a minute, by the minute, the hour, and the day.  So the number is an estimate:
 * jobs seem to wait for their time until the second, the minute, the hour or the day of
 * it is over.
 *
 * A job that goes is struck out where it was entered, if that is not behind.  How far
 * away its time was when it was entered tells where that is; see jobq_count_when().
 *
 * src/stats/calendar.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "stats/stats.h"

/* Seconds of a slot of each level. */
static const int64 width[JOBQ_LEVELS] = {1, SECS_PER_MINUTE, SECS_PER_HOUR, SECS_PER_DAY};

/* So many seconds back are not taken for a clock that was put back. */
#define PATIENCE	10

/*
 * Turn to this time: strike out what is behind.  True if the clock was put back since
 * the calendar was turned last: then what was struck out is missing.
 */
bool
jobq_calendar_turn(JobqCalendar *calendar, TimestampTz now)
{
	int64		second = now / USECS_PER_SEC;
	int64		last = calendar->second;

	/* who looked at the clock before us may come after us */
	if (second <= last && second >= last - PATIENCE)
		return false;
	calendar->second = second;
	if (second < last)
		return true;
	if (!calendar->used)
		return false;
	for (int level = 0; level < JOBQ_LEVELS; level++)
	{
		int64		first = last / width[level];
		int64		next = second / width[level];

		for (int64 i = Max(first, next - JOBQ_LEVEL_SLOTS); i < next; i++)
		{
			int32	   *slot = &calendar->slots[level][i % JOBQ_LEVEL_SLOTS];

			calendar->n -= *slot;
			*slot = 0;
		}
	}
	return false;
}

/*
 * Enter n jobs for this time, which was so many microseconds away when they were
 * written; or strike them out if n is negative.  Those whose slot is behind are not
 * entered.  The calendar was turned to now.
 */
void
jobq_calendar_add(JobqCalendar *calendar, TimestampTz run_at, int64 away, int32 n)
{
	int64		second = run_at / USECS_PER_SEC;

	calendar->used = true;
	for (int level = 0; level < JOBQ_LEVELS; level++)
	{
		int64		slot = second / width[level];

		/* the first and the last slot are not whole ones */
		if (away / USECS_PER_SEC / width[level] >= JOBQ_LEVEL_SLOTS - 2)
			continue;
		if (slot >= calendar->second / width[level])
		{
			calendar->n += n;
			calendar->slots[level][slot % JOBQ_LEVEL_SLOTS] += n;
		}
		return;
	}
	calendar->far += n;
}

/*
 * How many there are.
 */
int64
jobq_calendar_count(const JobqCalendar *calendar)
{
	return calendar->n + calendar->far;
}

/*
 * Add what another has; both were turned to the same time.
 */
void
jobq_calendar_merge(JobqCalendar *into, const JobqCalendar *from)
{
	for (int level = 0; level < JOBQ_LEVELS; level++)
		for (int i = 0; i < JOBQ_LEVEL_SLOTS; i++)
			into->slots[level][i] += from->slots[level][i];
	into->n += from->n;
	into->far += from->far;
	into->used |= from->used;
}
