/*-------------------------------------------------------------------------
 *
 * backoff.c
 *	  Backoff policies: how long a failed job waits for its next attempt.
 *
 *	fixed 5s							the same each time
 *	exponential 5s [cap 300s] [jitter 20%]	5s * 2^(n-1) after the n-th attempt
 *	list 1s,5s,10s						one after the other, then the last
 *
 * A duration is what the type interval accepts (duration.c), at most 366 days.
 *
 * src/base/backoff.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>
#include <math.h>

#include "common/string.h"

/* in milliseconds */
#define MAX_DELAY	(INT64CONST(366) * 86400000)

static const char *skip_space(const char *at);
static bool take_word(const char **at, const char *word);
static void take_duration(const char *text, const char **at, int64 *ms);

pg_noreturn static void syntax_error(const char *text, const char *detail);

static const char *
skip_space(const char *at)
{
	while (isspace((unsigned char) *at))
		at++;
	return at;
}

static bool
take_word(const char **at, const char *word)
{
	size_t		len = strlen(word);

	if (pg_strncasecmp(*at, word, len) != 0 ||
		isalpha((unsigned char) (*at)[len]))
		return false;
	*at = skip_space(*at + len);
	return true;
}

static void
take_duration(const char *text, const char **at, int64 *ms)
{
	static const char *const stops[] = {"cap", "jitter", NULL};
	char	   *duration = jobq_duration_cut(at, stops);
	int64		us = 0;
	const char *problem = jobq_duration_parse(duration, 0, MAX_DELAY, &us);

	if (problem != NULL)
		syntax_error(text, psprintf("%c%s.", pg_toupper(problem[0]),
									problem + 1));
	*ms = us / 1000;
}

static void
syntax_error(const char *text, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid backoff \"%s\"", text),
			 errdetail_internal("%s", detail),
			 errhint("Write 'fixed 5s', 'exponential 5s cap 300s jitter 20%%', or 'list 1s,5s,10s'.")));
}

/*
 * Parse a policy.  Raises an error if it is malformed.
 */
void
jobq_backoff_parse(const char *text, JobqBackoff *backoff)
{
	const char *at = skip_space(text);

	memset(backoff, 0, sizeof(JobqBackoff));
	backoff->cap = MAX_DELAY;

	if (take_word(&at, "fixed"))
		backoff->kind = 'f';
	else if (take_word(&at, "exponential"))
		backoff->kind = 'e';
	else if (take_word(&at, "list"))
		backoff->kind = 'l';
	else
		syntax_error(text, "A backoff begins with fixed, exponential, or list.");

	do
	{
		if (backoff->nsteps >= (int) lengthof(backoff->step))
			syntax_error(text, "A list has at most 32 durations.");
		take_duration(text, &at, &backoff->step[backoff->nsteps]);
		backoff->nsteps++;
		if (backoff->kind != 'l' || *at != ',')
			break;
		at = skip_space(at + 1);
	} while (true);

	while (*at != '\0')
	{
		if (backoff->kind == 'e' && take_word(&at, "cap"))
			take_duration(text, &at, &backoff->cap);
		else if (take_word(&at, "jitter"))
		{
			char	   *end;
			long		percent = strtol(at, &end, 10);

			if (end == at || *end != '%' || percent < 0 || percent > 100)
				syntax_error(text, "After jitter comes a percentage from 0% to 100%.");
			backoff->jitter = (int) percent;
			at = skip_space(end + 1);
		}
		else
			syntax_error(text, psprintf("Could not read \"%s\".", at));
	}
}

/*
 * Milliseconds to wait after the attempt-th attempt has failed.
 *
 * random, from 0 to 1, places the delay within the jitter around its value.
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
	else
		delay = backoff->step[0];

	delay *= 1.0 + (2.0 * random - 1.0) * backoff->jitter / 100.0;
	return (int64) Min(delay, (double) MAX_DELAY);
}
