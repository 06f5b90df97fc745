/*-------------------------------------------------------------------------
 *
 * timer.c
 *	  Timers: what is to be looked at when its time has come.
 *
 * Tallies of tenants that wait for a token have them, and groups that wait for their
 * time.  What is due next is found at once, however many wait.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
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
 * The one at this place is earlier or later than before: move it to where it belongs.
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
 * The thing with this index is to be looked at then, and not before; DT_NOEND: not because
 * of the time.
 */
void
timer_set(JobqTimers *timers, uint32 index, TimestampTz due)
{
	uint32		place = PLACE(timers, index);

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
 * When the first of them is due; DT_NOEND if there is none.
 */
TimestampTz
timers_next(const JobqTimers *timers)
{
	return timers->n == 0 ? DT_NOEND : DUE(timers, timers->heap[0]);
}

/*
 * A thing whose time has come, which has no timer any more; or JOBQ_NONE.
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
