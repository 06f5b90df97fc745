/*-------------------------------------------------------------------------
 *
 * limiter.c
 *	  Limiters: how many jobs of a queue or kind may run, and how often one may
 *	  start.
 *
 * The scheduler loads them from the tables before it ranks the lanes, and a
 * lane is not served before it is ranked; so no job starts past a limit.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/limiter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * The limiter of a queue, or of a kind; JOBQ_NO_LIMITER if it has none.
 */
uint16
jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind)
{
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use && db->limits->limiters[i].queue_id == queue_id &&
			db->limits->limiters[i].kind == kind)
			return i;
	return JOBQ_NO_LIMITER;
}

/*
 * Does a job need a permit of it to start?  Not if it only says whose turn it is.
 */
bool
jobq_limiter_counts(const JobqLimiter *limiter)
{
	return limiter->max_running > 0 || limiter->rate.per_us > 0 ||
		limiter->throttle.failures > 0;
}

/*
 * Is the time so far ahead that the clock was put back since then?  Callers have
 * read the clock before they got the lock: it is another thing if it was put
 * forward meanwhile.
 */
static bool
was_put_back(TimestampTz since, TimestampTz now)
{
	return since > now + USECS_PER_MINUTE &&
		since > jobq_now() + USECS_PER_MINUTE;
}

/*
 * May a job start now by its rate, and is there no rest?  If not, "due" is
 * lowered to when to ask again.
 */
bool
jobq_pace_free(const JobqRate *rate, JobqPace *pace, TimestampTz now,
			   TimestampTz *due)
{
	if (was_put_back(pace->window_start, now))
		pace->window_start = pace->rest_until = pace->failures = 0;

	if (pace->rest_until > now)
	{
		*due = Min(*due, pace->rest_until);
		return false;
	}
	if (rate->per_us <= 0)
		return true;
	if (now > pace->tokens_at)
	{
		pace->tokens = Min(rate->burst,
						   pace->tokens + (now - pace->tokens_at) * rate->per_us);
		pace->tokens_at = now;
	}

	/*
	 * A time that is a little earlier is usual, and must not have what lies
	 * between counted twice.
	 */
	else if (was_put_back(pace->tokens_at, now))
		pace->tokens_at = now;
	if (pace->tokens >= ONE_TOKEN)
		return true;
	*due = Min(*due, now + (int64) ((1 - pace->tokens) / rate->per_us) + 1);
	return false;
}

/*
 * So many attempts have failed.
 */
void
jobq_pace_failed(const JobqThrottle *throttle, JobqPace *pace, int failures,
				 TimestampTz now)
{
	if (now < pace->window_start || now >= pace->window_start + throttle->window)
	{
		pace->window_start = now;
		pace->failures = 0;
	}
	pace->failures += failures;
	if (pace->failures >= throttle->failures)
		pace->rest_until = pace->window_start + throttle->window;
}

/*
 * May a job start now, as far as this limiter is concerned?  If only the time
 * is in the way, "due" is lowered to when to ask again.
 */
bool
limiter_free(JobqLimiter *limiter, TimestampTz now, TimestampTz *due)
{
	JobqRate	none = {0};

	if (limiter->max_running > 0 && limiter->running >= limiter->max_running)
		return false;
	return jobq_pace_free(limiter->rate.by_group ? &none : &limiter->rate,
						  &limiter->pace, now, due);
}

/*
 * How many jobs may start now that need permits of these two, which may be
 * JOBQ_NO_LIMITER.  If that changes with time, "due" is lowered to when it does.
 */
int
limiters_room(JobqDatabase *db, uint16 queue, uint16 kind, TimestampTz now,
			  TimestampTz *due)
{
	uint16		index[] = {queue, kind};
	int			room = PG_INT32_MAX;

	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limits->limiters[index[i]];
		if (!limiter_free(limiter, now, due))
			return 0;
		if (limiter->max_running > 0)
			room = Min(room, limiter->max_running - limiter->running);
		if (limiter->rate.per_us > 0 && !limiter->rate.by_group)
			room = Min(room, Max((int) limiter->pace.tokens, 1));
	}
	return room;
}
