/*-------------------------------------------------------------------------
 *
 * same.c
 *	  Whether two expressions of schedules mean the same.
 *
 * Schedule() keeps the anchor and the next tick of a schedule if only the spelling has
 * changed.
 *
 * src/schedule/same.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "schedule/inner.h"

/* Changes of the offset from UTC that are compared. */
#define MAX_CHANGES		64

static bool same_rule(const JobqRrule *a, const JobqRrule *b);
static bool same_zone(pg_tz *a, pg_tz *b);

/*
 * Compares what the rules say.  Both were cleared before they were parsed, padding
 * included.
 */
static bool
same_rule(const JobqRrule *a, const JobqRrule *b)
{
	return memcmp(&a->freq, &b->freq,
				  offsetof(JobqRrule, ready) - offsetof(JobqRrule, freq)) == 0;
}

/*
 * Do both zones have the same local time from now on, as far as they tell?  So have the
 * old and the new name of one zone.
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
 * Are both due at the same times, with the same anchor?  An interval has the same
 * ticks in each zone.  False where this cannot be told.
 */
bool
jobq_cron_same(const JobqCron *a, const JobqCron *b, pg_tz *zone_a, pg_tz *zone_b)
{
	if (a->interval > 0 || b->interval > 0)
		return a->interval == b->interval;
	if (!same_zone(zone_a, zone_b))
		return false;
	if (a->rrule != NULL || b->rrule != NULL)
		return a->rrule != NULL && b->rrule != NULL && same_rule(a->rrule, b->rrule);
	return memcmp(a, b, sizeof(JobqCron)) == 0;
}
