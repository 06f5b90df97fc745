/*-------------------------------------------------------------------------
 *
 * same.c
 *	  Comparison of two expressions of schedules.
 *
 * schedule() keeps the anchor and the next tick of a schedule if only the spelling of the
 * expression has changed.
 *
 * src/schedule/same.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "schedule/inner.h"

/* Maximum number of compared changes of the offset from UTC. */
#define MAX_CHANGES		64

/*
 * Compare the contents of the rules.  The bytes can be compared, because both rules,
 * including padding, were cleared before parsing.
 */
static bool
same_rule(const JobqRrule *a, const JobqRrule *b)
{
	return memcmp(&a->freq, &b->freq,
				  offsetof(JobqRrule, ready) - offsetof(JobqRrule, freq)) == 0;
}

/*
 * Return true if both zones have the same local time from now on, for the next MAX_CHANGES
 * changes of the offset.  This is true for the old and the new name of a zone.
 */
static bool
same_zone(pg_tz *a, pg_tz *b)
{
	pg_time_t	from = timestamptz_to_time_t(jobq_now());

	if (a == b)
		return true;
	for (int i = 0; i < MAX_CHANGES; i++)
	{
		pg_time_t	boundary[2];
		long int	before[2];
		long int	after[2];
		int			unused[2];
		int			found[2];

		for (int n = 0; n < 2; n++)
		{
			found[n] = pg_next_dst_boundary(&from, &before[n], &unused[0], &boundary[n],
											&after[n], &unused[1], n == 0 ? a : b);
			if (found[n] < 0)
				return false;
		}
		if (found[0] != found[1] || before[0] != before[1])
			return false;
		if (found[0] == 0)
			return true;
		if (boundary[0] != boundary[1] || after[0] != after[1])
			return false;
		from = boundary[0];
	}
	return true;
}

/*
 * Return true if both expressions, with the same anchor, have the same ticks.  The zone
 * does not matter for an interval.  Returns false if the answer is not known.  Takes no
 * locks.
 */
bool
jobq_cron_same(const JobqCron *a, const JobqCron *b, pg_tz *zone_a, pg_tz *zone_b)
{
	if (a->interval > 0 || b->interval > 0)
		return a->interval == b->interval;
	return same_zone(zone_a, zone_b) && same_rule(a->rule, b->rule);
}
