/*-------------------------------------------------------------------------
 *
 *	  Timers: times at which elements of an array must be checked.
 *
 * Tallies of tenants that wait for a token have timers, and groups that wait for a time.  The
 * next due element is found at once, however many elements wait.
 *
 * src/ready/timer.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

#define THING(timers, index)	((timers)->things + (timers)->size * (index))
#define DUE(timers, index) \
	(*(TimestampTz *) (THING(timers, index) + (timers)->due))
#define PLACE(timers, index) \
	(*(uint32 *) (THING(timers, index) + (timers)->place))

static void
put(JobqTimers *timers, uint32 place, uint32 index)
{
	timers->heap[place] = index;
	PLACE(timers, index) = place;
}

/*
 * Move the element at this position to its correct position, after its time has changed.
 */
static void
sift(JobqTimers *timers, uint32 place)
{
#define DUE_AT(at)	DUE(timers, timers->heap[at])
	uint32		index = timers->heap[place];
	TimestampTz due = DUE(timers, index);

	for (; place > 0 && DUE_AT((place - 1) / 2) > due; place = (place - 1) / 2)
		put(timers, place, timers->heap[(place - 1) / 2]);
	for (;;)
	{
		uint32		below = 2 * place + 1;

		if (below >= timers->n)
			break;
		if (below + 1 < timers->n && DUE_AT(below + 1) < DUE_AT(below))
			below++;
		if (DUE_AT(below) >= due)
			break;
		put(timers, place, timers->heap[below]);
		place = below;
	}
	put(timers, place, index);
#undef DUE_AT
}

/*
 * Set the timer of the element with this index to "due", replacing an earlier time.  DT_NOEND
 * removes the timer.
 */
void
timer_set(JobqTimers *timers, uint32 index, TimestampTz due)
{
	uint32		place = PLACE(timers, index);

	Assert(place == JOBQ_NONE || (place < timers->n && timers->heap[place] == index));
	if (due != DT_NOEND)
	{
		DUE(timers, index) = due;
		if (place == JOBQ_NONE)
			put(timers, timers->n++, index);
		sift(timers, PLACE(timers, index));
	}
	else if (place != JOBQ_NONE)
	{
		uint32		last = timers->heap[--timers->n];

		PLACE(timers, index) = JOBQ_NONE;
		if (last != index)
		{
			put(timers, place, last);
			sift(timers, place);
		}
	}
}

/*
 * Return the earliest time of all timers; DT_NOEND if there is none.
 */
TimestampTz
timers_next(const JobqTimers *timers)
{
	return timers->n == 0 ? DT_NOEND : DUE(timers, timers->heap[0]);
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
	index = timers->heap[0];
	timer_set(timers, index, DT_NOEND);
	return index;
}
