/*-------------------------------------------------------------------------
 *
 * times.c
 *	  Histograms of times, from 64 microseconds to nineteen hours.
 *
 * Two buckets for each doubling: the first has what is below 64 microseconds, the
 * next 64 to 96, the next 96 to 128, and so on; the last has all that is longer.
 * A quantile is read from the bucket in which it falls, as if the times in it lay
 * evenly: so it is wrong by a third at most, and mostly by much less.
 *
 * src/stats/times.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "port/pg_bitutils.h"

#include "stats/stats.h"

/* The end of the first bucket, as a power of two. */
#define FIRST_BITS	6

static int
bucket_of(int64 us)
{
	int			octave;

	if (us < (1 << FIRST_BITS))
		return 0;
	octave = pg_leftmost_one_pos64((uint64) us);
	return Min(1 + 2 * (octave - FIRST_BITS) + (int) ((us >> (octave - 1)) & 1),
			   JOBQ_BUCKETS - 1);
}

/*
 * Where the bucket begins.
 */
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
 * Add a time in microseconds; a clock that was put back gives 0.
 */
void
jobq_times_add(JobqTimes *times, int64 us)
{
	us = Max(us, 0);
	times->n[bucket_of(us)]++;
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

/*
 * How many times there are.
 */
uint64
jobq_times_count(const JobqTimes *times)
{
	uint64		n = 0;

	for (int i = 0; i < JOBQ_BUCKETS; i++)
		n += times->n[i];
	return n;
}

/*
 * The time below which this part of them lies, in microseconds; -1 if there are
 * none.
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
