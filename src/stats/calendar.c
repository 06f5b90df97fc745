/*-------------------------------------------------------------------------
 *
 * calendar.c
 *	  Number of jobs that wait for a future time.
 *
 * No transaction reports that the time of a job has come.  Each job with a future time is
 * therefore entered at this time, and a later caller removes the slots that have passed.  The
 * precision depends on the distance of the time: a second for up to about a minute, then a
 * minute, an hour, and a day.  The number is an estimate: a job counts as waiting until the
 * slot of its time has passed.
 *
 * When a job leaves, its entry is removed, unless the slot has passed.  The distance of the
 * time when the job was entered determines the slot; see jobq_count_when().
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

/* A step back of up to this many seconds does not count as a changed clock. */
#define IGNORED_STEP	10

/*
 * Advance the calendar to now, and remove the slots that have passed.  True if the clock was
 * put back since the last call.  Slots that were removed are then missing.  The caller holds
 * the mutex of the slot, or the calendar is its own.
 */
bool
jobq_calendar_turn(JobqCalendar *calendar, TimestampTz now)
{
	int64		second = now / USECS_PER_SEC;
	int64		last = calendar->second;

	/*
	 * A process that read the clock first may come second, also if the clock
	 * was put forward in between.
	 */
	if (second < last - IGNORED_STEP)
		second = jobq_now() / USECS_PER_SEC;
	if (second <= last && second >= last - IGNORED_STEP)
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
 * Add n jobs with this time, which was "away" microseconds in the future when they were
 * written.  A negative n removes jobs.  Jobs with a slot that has passed are ignored.  The
 * caller has advanced the calendar to now.
 */
void
jobq_calendar_add(JobqCalendar *calendar, TimestampTz run_at, int64 away, int32 n)
{
	int64		second = run_at / USECS_PER_SEC;

	calendar->used = true;
	for (int level = 0; level < JOBQ_LEVELS; level++)
	{
		int64		slot = second / width[level];

		/* the first and the last slot are incomplete */
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

/* Return the number of waiting jobs. */
int64
jobq_calendar_count(const JobqCalendar *calendar)
{
	return calendar->n + calendar->far;
}

/* Add another calendar.  Both must have been advanced to the same time. */
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
