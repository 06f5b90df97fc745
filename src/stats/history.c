/*-------------------------------------------------------------------------
 *
 * history.c
 *	  Events by time slots: the last 60 minutes, 24 hours, 30 days.
 *
 * No process wakes when a slot ends.  Each writer and reader advances to the current minute
 * first, which closes the earlier slots.  The current minute is in the slots of minutes only.
 * At the end of the minute, the counts are added to the hour and the day.  Hours and days are
 * in UTC.
 *
 * src/stats/history.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "stats/stats.h"

#define MINUTES_OF_HOUR	60
#define MINUTES_OF_DAY	(24 * 60)

/* A clock that was put back by up to this many minutes is ignored. */
#define IGNORED_STEP		10

/* Clear those of the n slots of this size from the one after "last" to "next". */
static void
empty(void *slots, size_t size, int n, int64 last, int64 next)
{
	for (int64 i = Max(last + 1, next - n + 1); i <= next; i++)
		memset((char *) slots + i % n * size, 0, size);
}

/*
 * Add a duration in microseconds.  A negative duration, from a clock that was put back, counts
 * as 0.
 */
void
jobq_past_times_add(JobqPastTimes *times, int64 us)
{
	us = Max(us, 0);
	times->sum += us;
	times->n++;
	times->longest = Max(times->longest, (uint32) Min(us / 1000, PG_UINT32_MAX));
}

static void
merge_times(JobqPastTimes *into, const JobqPastTimes *from)
{
	into->sum += from->sum;
	into->n += from->n;
	into->longest = Max(into->longest, from->longest);
}

/* Add the events of another slot. */
void
jobq_past_slot_merge(JobqPastSlot *into, const JobqPastSlot *from)
{
	merge_times(&into->waited, &from->waited);
	merge_times(&into->ran, &from->ran);
	for (int i = 0; i < JOBQ_NPAST; i++)
		into->n[i] += from->n[i];
}

/*
 * Advance to the minute of now.  If the clock was put back by more than IGNORED_STEP minutes, the
 * history begins anew.
 */
void
jobq_history_turn(JobqHistory *history, TimestampTz now)
{
	int64		minute = now / USECS_PER_MINUTE;
	int64		last = history->minute;
	const JobqPastSlot *ended = &history->minutes[last % JOBQ_MINUTES];

	if (minute == last || (minute < last && minute >= last - IGNORED_STEP))
		return;
	if (minute < last)
	{
		/* the caller may have read the clock before it was put forward */
		minute = jobq_now() / USECS_PER_MINUTE;
		if (minute >= last - IGNORED_STEP)
			return;
		memset(history, 0, sizeof(JobqHistory));
		history->minute = minute;
		return;
	}
	jobq_past_slot_merge(&history->hours[last / MINUTES_OF_HOUR % JOBQ_HOURS], ended);
	jobq_past_slot_merge(&history->days[last / MINUTES_OF_DAY % JOBQ_DAYS], ended);
	empty(history->minutes, sizeof(JobqPastSlot), JOBQ_MINUTES, last, minute);
	empty(history->hours, sizeof(JobqPastSlot), JOBQ_HOURS,
		  last / MINUTES_OF_HOUR, minute / MINUTES_OF_HOUR);
	empty(history->days, sizeof(JobqPastSlot), JOBQ_DAYS,
		  last / MINUTES_OF_DAY, minute / MINUTES_OF_DAY);
	empty(history->waited, sizeof(history->waited[0]), JOBQ_PARTS,
		  last / JOBQ_PART_MINUTES, minute / JOBQ_PART_MINUTES);
	history->minute = minute;
}

/* Return the slot of the current minute.  The caller has called jobq_history_turn(). */
JobqPastSlot *
jobq_history_slot(JobqHistory *history)
{
	return &history->minutes[history->minute % JOBQ_MINUTES];
}

/*
 * Add the wait of an attempt, in microseconds.  The caller has called jobq_history_turn().
 */
void
jobq_history_add_wait(JobqHistory *history, int64 us)
{
	jobq_past_times_add(&jobq_history_slot(history)->waited, us);
	history->waited[history->minute / JOBQ_PART_MINUTES % JOBQ_PARTS][jobq_times_bucket(Max(us, 0))]++;
}

/*
 * Add the waits of the last hour.  The oldest part of the hour counts as a whole, so that up
 * to 70 minutes are counted.  The caller has called jobq_history_turn().
 */
void
jobq_history_waits(const JobqHistory *history, JobqTimes *into)
{
	for (int i = 0; i < JOBQ_PARTS; i++)
		for (int j = 0; j < JOBQ_BUCKETS; j++)
			into->n[j] += history->waited[i][j];
	for (int i = 0; i < JOBQ_MINUTES; i++)
	{
		const JobqPastTimes *waited = &history->minutes[i].waited;

		into->sum += waited->sum;
		/* the history has whole milliseconds */
		if (waited->n > 0)
			into->longest = Max(into->longest, (int64) waited->longest * 1000 + 999);
	}
}

/*
 * Return the rate of events per second over the last "minutes" minutes.  The oldest minute
 * counts in proportion.  The caller has advanced the history to now.
 */
double
jobq_history_rate(const JobqHistory *history, JobqPast what, int minutes,
				  TimestampTz now)
{
	double		under_way = (double) (now % USECS_PER_MINUTE) / USECS_PER_MINUTE;
	double		n = 0;

	for (int i = 0; i <= minutes; i++)
	{
		int64		minute = history->minute - i;

		if (minute >= 0)
			n += history->minutes[minute % JOBQ_MINUTES].n[what] *
				(i < minutes ? 1.0 : 1.0 - under_way);
	}
	return n / (minutes * 60.0);
}

/* Add the history of another name. */
void
jobq_history_merge(JobqHistory *into, JobqHistory *from, TimestampTz now)
{
	jobq_history_turn(into, now);
	jobq_history_turn(from, now);
	for (int i = 0; i < JOBQ_MINUTES; i++)
		jobq_past_slot_merge(&into->minutes[i], &from->minutes[i]);
	for (int i = 0; i < JOBQ_HOURS; i++)
		jobq_past_slot_merge(&into->hours[i], &from->hours[i]);
	for (int i = 0; i < JOBQ_DAYS; i++)
		jobq_past_slot_merge(&into->days[i], &from->days[i]);
	for (int i = 0; i < JOBQ_PARTS; i++)
		for (int j = 0; j < JOBQ_BUCKETS; j++)
			into->waited[i][j] += from->waited[i][j];
}
