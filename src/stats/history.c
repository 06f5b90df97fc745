/*-------------------------------------------------------------------------
 *
 * history.c
 *	  What has happened, by slots of time: the last 60 minutes, 24 hours, 30 days.
 *
 * Nobody has to wake for a slot to end: whoever adds something, or reads, turns to
 * his own minute first, which closes those before.  The minute under way is in the
 * slots of minutes only; when it is over, it is added to its hour and its day.
 * Hours and days are those of UTC.
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

/* A clock that was put back by no more than this is waited for. */
#define PATIENCE		10

/* The slots that are to be empty: from the one after "last" to "next". */
static void
empty(JobqPastSlot *slots, int n, int64 last, int64 next)
{
	for (int64 i = Max(last + 1, next - n + 1); i <= next; i++)
		memset(&slots[i % n], 0, sizeof(slots[0]));
}

/*
 * Add a time in microseconds; a clock that was put back gives 0.
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

/*
 * Add what has happened in another slot.
 */
void
jobq_past_slot_merge(JobqPastSlot *into, const JobqPastSlot *from)
{
	merge_times(&into->waited, &from->waited);
	merge_times(&into->ran, &from->ran);
	for (int i = 0; i < JOBQ_NPAST; i++)
		into->n[i] += from->n[i];
}

/*
 * Turn to the minute of this time.
 */
void
jobq_history_turn(JobqHistory *history, TimestampTz now)
{
	int64		minute = now / USECS_PER_MINUTE;
	int64		last = history->minute;
	const JobqPastSlot *ended = &history->minutes[last % JOBQ_MINUTES];

	if (minute == last || (minute < last && minute >= last - PATIENCE))
		return;
	if (minute < last)
	{
		memset(history, 0, sizeof(JobqHistory));
		history->minute = minute;
		return;
	}
	jobq_past_slot_merge(&history->hours[last / MINUTES_OF_HOUR % JOBQ_HOURS], ended);
	jobq_past_slot_merge(&history->days[last / MINUTES_OF_DAY % JOBQ_DAYS], ended);
	empty(history->minutes, JOBQ_MINUTES, last, minute);
	empty(history->hours, JOBQ_HOURS, last / MINUTES_OF_HOUR,
		  minute / MINUTES_OF_HOUR);
	empty(history->days, JOBQ_DAYS, last / MINUTES_OF_DAY,
		  minute / MINUTES_OF_DAY);
	history->minute = minute;
}

/*
 * The slot of the minute to which it was turned.
 */
JobqPastSlot *
jobq_history_slot(JobqHistory *history)
{
	return &history->minutes[history->minute % JOBQ_MINUTES];
}

/*
 * How many there were per second in the last so many minutes, of which the oldest
 * counts as far as it lies in them.  It was turned to now.
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

/*
 * Add the past of another name.
 */
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
}
