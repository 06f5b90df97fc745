/*-------------------------------------------------------------------------
 *
 * backoff.c
 *	  Backoff policies: the delay before the next attempt of a job.
 *
 * fixed 5s                                 always the same
 * linear 5s [cap 300s]                     5s * n after the n-th attempt
 * exponential 5s [cap 300s] [jitter 20%]   5s * 2^(n-1)
 * list 1s,5s,10s                           in order, then always the last
 *
 * A duration has the format of the type interval (duration.c), and is at most 366 days.
 *
 * src/base/backoff.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <math.h>

#include "common/string.h"

/* in milliseconds */
#define MAX_DELAY	(INT64CONST(366) * 86400000)

static const char *
take_duration(const char **at, int64 *ms)
{
	static const char *const stops[] = {"cap", "jitter", NULL};
	char	   *duration = jobq_duration_cut(at, stops);
	int64		us = 0;
	const char *problem = jobq_duration_parse(duration, 0, MAX_DELAY, &us);

	if (problem != NULL)
		return psprintf("%c%s.", pg_toupper(problem[0]), problem + 1);
	*ms = us / 1000;
	return NULL;
}

/* Parse a policy.  Returns NULL, or a description of the error. */
const char *
jobq_backoff_read(const char *text, JobqBackoff *backoff)
{
	const char *at = jobq_skip_space(text);
	const char *problem;

	memset(backoff, 0, sizeof(JobqBackoff));
	backoff->cap = MAX_DELAY;

	if (jobq_take_word(&at, "fixed"))
		backoff->kind = 'f';
	else if (jobq_take_word(&at, "linear"))
		backoff->kind = 'i';
	else if (jobq_take_word(&at, "exponential"))
		backoff->kind = 'e';
	else if (jobq_take_word(&at, "list"))
		backoff->kind = 'l';
	else
		return "A backoff begins with fixed, linear, exponential, or list.";

	do
	{
		if (backoff->nsteps >= (int) lengthof(backoff->step))
			return "A list has at most 32 durations.";
		problem = take_duration(&at, &backoff->step[backoff->nsteps]);
		if (problem != NULL)
			return problem;
		backoff->nsteps++;
		if (backoff->kind != 'l' || *at != ',')
			break;
		at = jobq_skip_space(at + 1);
	} while (true);

	while (*at != '\0')
	{
		if ((backoff->kind == 'e' || backoff->kind == 'i') &&
			jobq_take_word(&at, "cap"))
		{
			problem = take_duration(&at, &backoff->cap);
			if (problem != NULL)
				return problem;
		}
		else if (jobq_take_word(&at, "jitter"))
		{
			char	   *end;
			long		percent = strtol(at, &end, 10);

			if (end == at || *end != '%' || percent < 0 || percent > 100)
				return "After jitter comes a percentage from 0% to 100%.";
			backoff->jitter = (int) percent;
			at = jobq_skip_space(end + 1);
		}
		else
			return psprintf("Could not read \"%s\".", at);
	}
	return NULL;
}

/* Like jobq_backoff_read(), but raises an error if the policy is malformed. */
void
jobq_backoff_parse(const char *text, JobqBackoff *backoff)
{
	const char *problem = jobq_backoff_read(text, backoff);

	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid backoff \"%s\"", text),
				 errdetail_internal("%s", problem),
				 errhint("Write 'fixed 5s', 'linear 5s', 'exponential 5s cap 300s jitter 20%%', or 'list 1s,5s,10s'.")));
}

/*
 * Return the delay after the given failed attempt (1 is the first), in milliseconds.
 *
 * random, from 0 to 1, determines the position within the jitter.
 */
int64
jobq_backoff_delay(const JobqBackoff *backoff, int attempt, double random)
{
	double		delay;

	attempt = Max(attempt, 1);
	if (backoff->kind == 'l')
		delay = backoff->step[Min(attempt, backoff->nsteps) - 1];
	else if (backoff->kind == 'e')
		delay = Min(ldexp((double) backoff->step[0], Min(attempt - 1, 60)),
					(double) backoff->cap);
	else if (backoff->kind == 'i')
		delay = Min((double) backoff->step[0] * attempt, (double) backoff->cap);
	else
		delay = backoff->step[0];

	delay *= 1.0 + (2.0 * random - 1.0) * backoff->jitter / 100.0;
	return (int64) Min(delay, (double) MAX_DELAY);
}
