/*-------------------------------------------------------------------------
 *
 *	  Token buckets and throttles, of limiters and of their keys.
 *
 * The clock may be put back.  A failure or an empty bucket then seems to be in the future.  A
 * small difference is normal, because callers read the clock before they acquire the lock.
 *
 * src/ready/pace.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/timestamp.h"

#include "ready/inner.h"

/*
 * Return the maximum number of missing tokens in a bucket: the capacity, and the debt of the
 * most expensive job.
 */
static double
most_missing(const JobqLimiter *policy)
{
	return policy->rate.burst + policy->dearest;
}

/*
 * Return the number of tokens in the bucket; a debt is negative.  The policy must have a rate.
 * If there is less than one token, lower *due to the time at which there is one.
 */
double
jobq_pace_tokens(const JobqLimiter *policy, JobqPace *pace, TimestampTz now,
				 TimestampTz *due)
{
	const JobqRate *rate = &policy->rate;
	double		most = most_missing(policy);
	double		missing;

	if (pace->full_at <= now)
		return rate->burst;
	missing = (pace->full_at - now) * rate->per_us;
	if (missing > most)
	{
		/* the clock was put back, or the rate of a key has changed */
		if ((missing - most) / rate->per_us > USECS_PER_MINUTE &&
			pace->full_at > jobq_now() + most / rate->per_us)
		{
			pace->full_at = now + rate->burst / rate->per_us;
			most = rate->burst;
		}
		missing = most;
	}
	if (rate->burst - missing < ONE_TOKEN)
		*due = Min(*due, now + JOBQ_PACE_WAIT(missing - (rate->burst - 1), rate));
	return rate->burst - missing;
}

/*
 * Take tokens from the bucket.  A negative number returns tokens.
 */
void
jobq_pace_spend(const JobqLimiter *policy, JobqPace *pace, double tokens, TimestampTz now)
{
	const JobqRate *rate = &policy->rate;

	if (rate->per_us <= 0)
		return;
	if (tokens > 0)
		pace->full_at = Max(pace->full_at, (double) now);
	pace->full_at += tokens / rate->per_us;
}

/*
 * The rate of the policy becomes "rate".  The tokens stay in the bucket, if they fit.  A new
 * bucket is full.
 */
void
jobq_pace_change(const JobqLimiter *policy, JobqPace *pace, const JobqRate *rate, TimestampTz now)
{
	TimestampTz due = DT_NOEND;

	if (policy->rate.per_us <= 0 || rate->per_us <= 0)
		pace->full_at = 0;
	else if (policy->rate.per_us != rate->per_us || policy->rate.burst != rate->burst)
		pace->full_at = now +
			(rate->burst - jobq_pace_tokens(policy, pace, now, &due)) / rate->per_us;
}

/*
 * Return the end of the window in which attempts have failed, or 0 if the window is over.  The
 * failures are then forgotten.  Otherwise a limiter whose rest is over would rest again when the
 * clock is put back, although a lane of its key is lent already.
 */
static TimestampTz
window_end(const JobqLimiter *policy, JobqPace *pace, TimestampTz now)
{
	TimestampTz since = (TimestampTz) pace->failed_since * 1000;
	TimestampTz end = since + policy->throttle.window;

	if (end <= now ||
		(since > now + USECS_PER_MINUTE && since > jobq_now() + USECS_PER_MINUTE))
		pace->failures = 0;		/* over, or the clock was put back */
	return pace->failures == 0 ? 0 : end;
}

/*
 * Count failed attempts for the throttle of the policy.
 */
void
jobq_pace_failed(const JobqLimiter *policy, JobqPace *pace, int failures, TimestampTz now)
{
	if (window_end(policy, pace, now) == 0)
		pace->failed_since = (now + 999) / 1000;
	pace->failures = Min(pace->failures + failures, JOBQ_MAX_FAILURES);
}

/*
 * Return the number of failed attempts in the window of the throttle.  *rest_until gets the
 * time until which no job starts, or 0.
 */
int
jobq_pace_failures(const JobqLimiter *policy, JobqPace *pace, TimestampTz now,
				   TimestampTz *rest_until)
{
	TimestampTz end = window_end(policy, pace, now);

	*rest_until = 0;
	if (policy->throttle.failures == 0)
		return 0;
	if ((int) pace->failures >= policy->throttle.failures)
		*rest_until = end;
	return pace->failures;
}

/*
 * May a job start now, according to rate and throttle?  If not, lower *due to the time of the
 * next check.
 */
bool
jobq_pace_free(const JobqLimiter *policy, JobqPace *pace, TimestampTz now, TimestampTz *due)
{
	TimestampTz rest_until;

	(void) jobq_pace_failures(policy, pace, now, &rest_until);
	if (rest_until != 0)
	{
		*due = Min(*due, rest_until);
		return false;
	}
	return policy->rate.per_us <= 0 ||
		jobq_pace_tokens(policy, pace, now, due) >= ONE_TOKEN;
}

/*
 * Take the tokens and failures of jobs that ran before the server started, as read from the
 * tables.
 */
void
pace_restore(JobqLimiter *policy, JobqPace *pace, const JobqSpent *spent, TimestampTz now)
{
	if (policy->priced)			/* tokens in debt */
		policy->dearest = Max(policy->dearest,
							  (int) (spent->tokens - policy->rate.burst + 1));
	jobq_pace_spend(policy, pace, Min(spent->tokens, most_missing(policy)), now);
	if (spent->failures > 0)
		jobq_pace_failed(policy, pace, spent->failures, spent->failed_at);
}

/*
 * Is there nothing to remember: is the bucket full, and has no attempt failed?
 */
bool
pace_is_fresh(const JobqLimiter *policy, JobqPace *pace, TimestampTz now)
{
	TimestampTz rest_until;

	return (policy->rate.per_us <= 0 || pace->full_at <= now) &&
		jobq_pace_failures(policy, pace, now, &rest_until) == 0;
}
