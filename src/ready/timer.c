/*-------------------------------------------------------------------------
 *
 *	  Timers: times at which elements of an array must be checked.
 *
 * Tallies of keys that wait for a token or for the end of a rest have timers, and groups that
 * wait for a time.  The next due element is found at once, however many elements wait.
 *
 * src/ready/timer.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

#define PLACE(timers, index) \
	(*(uint32 *) ((timers)->things + (timers)->size * (index) + (timers)->place))

static void
put_timer(JobqTimers *timers, uint32 place, JobqTimer timer)
{
	timers->heap[place] = timer;
	PLACE(timers, timer.index) = place;
}

/*
 * Move the timer at this position to its correct position, after its time has changed.
 */
static void
sift(JobqTimers *timers, uint32 place)
{
	JobqTimer  *heap = timers->heap;
	JobqTimer	timer = heap[place];

	for (; place > 0 && heap[(place - 1) / 2].due > timer.due; place = (place - 1) / 2)
		put_timer(timers, place, heap[(place - 1) / 2]);
	for (;;)
	{
		uint32		below = 2 * place + 1;

		if (below >= timers->n)
			break;
		if (below + 1 < timers->n && heap[below + 1].due < heap[below].due)
			below++;
		if (heap[below].due >= timer.due)
			break;
		put_timer(timers, place, heap[below]);
		place = below;
	}
	put_timer(timers, place, timer);
}

/*
 * Set the timer of the element with this index to "due", replacing an earlier time.  DT_NOEND
 * removes the timer.
 */
void
timer_set(JobqTimers *timers, uint32 index, TimestampTz due)
{
	uint32		place = PLACE(timers, index);
	JobqTimer	timer = {.due = due,.index = index};

	Assert(place == JOBQ_NONE || (place < timers->n && timers->heap[place].index == index));
	if (due != DT_NOEND)
	{
		if (place == JOBQ_NONE)
			place = timers->n++;
		put_timer(timers, place, timer);
		sift(timers, PLACE(timers, index));
	}
	else if (place != JOBQ_NONE)
	{
		JobqTimer	last = timers->heap[--timers->n];

		PLACE(timers, index) = JOBQ_NONE;
		if (last.index != index)
		{
			put_timer(timers, place, last);
			sift(timers, place);
		}
	}
}

/*
 * Return the time of the element's timer; DT_NOEND if the element has none.
 */
TimestampTz
timer_due(const JobqTimers *timers, uint32 index)
{
	uint32		place = PLACE(timers, index);

	return place == JOBQ_NONE ? DT_NOEND : timers->heap[place].due;
}

/*
 * Return the earliest time of all timers; DT_NOEND if there is none.
 */
TimestampTz
timers_next(const JobqTimers *timers)
{
	return timers->n == 0 ? DT_NOEND : timers->heap[0].due;
}

/*
 * Remove a timer whose time has come.  Returns the index of its element, or JOBQ_NONE.
 */
uint32
timer_take_due(JobqTimers *timers, TimestampTz now)
{
	uint32		index;

	if (timers_next(timers) > now || timers->n == 0)
		return JOBQ_NONE;
	index = timers->heap[0].index;
	timer_set(timers, index, DT_NOEND);
	return index;
}

/*
 * Make all timers due at this time, or earlier.
 */
void
timers_put_back(JobqTimers *timers, TimestampTz now)
{
	for (uint32 i = 0; i < timers->n; i++)
		timers->heap[i].due = Min(timers->heap[i].due, now);
}
