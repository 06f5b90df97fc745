/*-------------------------------------------------------------------------
 *
 * times.c
 *	  Histograms of durations, from 64 microseconds to nineteen hours.
 *
 * There are two buckets for each doubling.  The first bucket contains durations below 64
 * microseconds, the next 64 to 96, the next 96 to 128, and so on.  The last bucket contains
 * all longer durations.  A quantile is interpolated linearly within its bucket.  The error is
 * at most a third, and usually much less.
 *
 * src/stats/times.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "port/pg_bitutils.h"

#include "stats/stats.h"

/* The upper end of the first bucket, as a power of two. */
#define FIRST_BITS	6

/* Return the bucket of a duration in microseconds. */
int
jobq_times_bucket(int64 us)
{
	int			octave;

	if (us < (1 << FIRST_BITS))
		return 0;
	octave = pg_leftmost_one_pos64((uint64) us);
	return Min(1 + 2 * (octave - FIRST_BITS) + (int) ((us >> (octave - 1)) & 1),
			   JOBQ_BUCKETS - 1);
}

/* Return the lower end of the bucket, in microseconds. */
static int64
start_of(int bucket)
{
	int64		octave;

	if (bucket == 0)
		return 0;
	octave = INT64CONST(1) << (FIRST_BITS + (bucket - 1) / 2);
	return (bucket - 1) % 2 == 0 ? octave : octave + octave / 2;
}

/*
 * Add a duration in microseconds.  A negative duration, from a clock that was put back, counts
 * as 0.
 */
void
jobq_times_add(JobqTimes *times, int64 us)
{
	us = Max(us, 0);
	times->n[jobq_times_bucket(us)]++;
	times->sum += us;
	times->longest = Max(times->longest, us);
}

void
jobq_times_merge(JobqTimes *into, const JobqTimes *from)
{
	for (int i = 0; i < JOBQ_BUCKETS; i++)
		into->n[i] += from->n[i];
	into->sum += from->sum;
	into->longest = Max(into->longest, from->longest);
}

/* Return the number of durations. */
uint64
jobq_times_count(const JobqTimes *times)
{
	uint64		n = 0;

	for (int i = 0; i < JOBQ_BUCKETS; i++)
		n += times->n[i];
	return n;
}

/*
 * Return the duration below which this part (0 to 1) of the durations lies, in microseconds;
 * -1 if there are none.
 */
int64
jobq_times_quantile(const JobqTimes *times, double part)
{
	double		wanted = (double) jobq_times_count(times) * part;
	double		passed = 0;

	for (int i = 0; i < JOBQ_BUCKETS; i++)
	{
		double		n = (double) times->n[i];
		int64		start = start_of(i);
		int64		end = i + 1 < JOBQ_BUCKETS ? start_of(i + 1) : times->longest;

		if (n == 0 || passed + n < wanted)
		{
			passed += n;
			continue;
		}
		end = Max(Min(end, times->longest), start);
		return Min(start + (int64) ((double) (end - start) * (wanted - passed) / n),
				   times->longest);
	}
	return -1;
}
