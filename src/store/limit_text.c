/*-------------------------------------------------------------------------
 *
 * limit_text.c
 *	  Text form of limits.
 *
 *	rate		100 per minute [burst 20]
 *	throttle	10 failures in 5 minutes
 *	when_taken	wait | release 5 min | skip | replace
 *
 * A window is a value of the type interval (duration.c), or a unit alone, as in the example of
 * a rate.
 *
 * A rate is a token bucket: jobs may start at this pace, and as many as the burst at once.
 * The default burst is a tenth of the jobs that the pace allows in a second, but at least one.
 * This compensates for a late timer.
 *
 * A throttle stops the jobs after this number of failed attempts within a window.  The window
 * begins with the first failure, and the jobs rest until the window ends.
 *
 * src/store/limit_text.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>
#include <math.h>

#include "catalog/pg_class.h"
#include "common/string.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"

#include "store/store.h"
#include "ready/ready.h"

#define MAX_COUNT	1000000000
/* bounds of a window, in milliseconds */
#define MIN_WINDOW	1
#define MAX_WINDOW	(INT64CONST(366) * 86400000)
/* minimum delay of a released job, in milliseconds */
#define MIN_RELEASE	1000

pg_noreturn static void invalid(const char *what, const char *text,
								const char *problem, const char *hint);

static bool
take_count(const char **at, int *count)
{
	char	   *end;
	long		value;

	if (!isdigit((unsigned char) **at))
		return false;
	errno = 0;
	value = strtol(*at, &end, 10);
	if (errno != 0 || value < 1 || value > MAX_COUNT)
		return false;
	*count = value;
	*at = jobq_skip_space(end);
	return true;
}

/*
 * Parse a window. *us is in microseconds.  Returns NULL, or a description of the problem.
 */
static const char *
take_window(const char **at, int64 *us)
{
	static const char *const stops[] = {"burst", "by", NULL};
	char	   *duration = jobq_duration_cut(at, stops);

	return jobq_duration_parse(duration, MIN_WINDOW, MAX_WINDOW, us);
}

/*
 * ERROR: the text is malformed.  problem: a description, or NULL.
 */
static void
invalid(const char *what, const char *text, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s \"%s\"", what, text),
			 problem != NULL ? errdetail_internal("%c%s.", pg_toupper(problem[0]), problem + 1) : 0,
			 errhint("%s", hint)));
}

/* Parse a rate.  ERROR if it is malformed. */
void
jobq_rate_parse(const char *text, JobqRate *rate)
{
	const char *at = jobq_skip_space(text);
	int			count;
	int			burst = 0;
	int64		us;
	const char *problem = NULL;

	memset(rate, 0, sizeof(JobqRate));
	if (!take_count(&at, &count) || !jobq_take_word(&at, "per") ||
		(problem = take_window(&at, &us)) != NULL ||
		(jobq_take_word(&at, "burst") && !take_count(&at, &burst)) ||
		*at != '\0')
		invalid("rate", text, problem, jobq_take_word(&at, "by")
				? "For a rate of each group, tenant or key, use jobq.create_limiter(..., by => 'group')."
				: "Write '100 per minute', or '10 per 5 seconds burst 20'.");
	rate->per_us = (double) count / us;
	rate->burst = burst > 0 ? burst
		: Max(1, floor(rate->per_us * USECS_PER_SEC / 10));
}

/* Parse a throttle.  ERROR if it is malformed. */
void
jobq_throttle_parse(const char *text, JobqThrottle *throttle)
{
	const char *at = jobq_skip_space(text);
	const char *problem = NULL;
	bool		read;

	memset(throttle, 0, sizeof(JobqThrottle));
	read = take_count(&at, &throttle->failures) &&
		(jobq_take_word(&at, "failures") || jobq_take_word(&at, "failure")) &&
		jobq_take_word(&at, "in") &&
		(problem = take_window(&at, &throttle->window)) == NULL;
	if (read && throttle->failures > JOBQ_MAX_FAILURES)
		problem = psprintf("more than %d failures cannot be counted", JOBQ_MAX_FAILURES);
	if (!read || problem != NULL || *at != '\0')
		invalid("throttle", text, problem, jobq_take_word(&at, "by")
				? "For a throttle of each group, tenant or key, use jobq.create_limiter(..., by => 'group')."
				: "Write '10 failures in 5 minutes'.");
}

/*
 * Parse the behavior of jobs without a permit. *release_after is in microseconds, or 0.  ERROR
 * if it is malformed.
 */
JobqWhenTaken
jobq_when_taken_parse(const char *text, int64 *release_after)
{
	static const char *const stops[] = {NULL};
	const char *at = jobq_skip_space(text);
	const char *problem = NULL;
	JobqWhenTaken when_taken = JOBQ_WHEN_TAKEN_WAIT;
	bool		read = true;

	*release_after = 0;
	if (jobq_take_word(&at, "skip"))
		when_taken = JOBQ_WHEN_TAKEN_SKIP;
	else if (jobq_take_word(&at, "replace"))
		when_taken = JOBQ_WHEN_TAKEN_REPLACE;
	else if (jobq_take_word(&at, "release"))
	{
		when_taken = JOBQ_WHEN_TAKEN_RELEASE;
		problem = jobq_duration_parse(jobq_duration_cut(&at, stops), MIN_RELEASE,
									  MAX_WINDOW, release_after);
	}
	else
		read = jobq_take_word(&at, "wait");
	if (!read || problem != NULL || *at != '\0')
		invalid("when_taken", text, problem, "Write 'wait', 'release 5 min', 'skip', or 'replace'.");
	return when_taken;
}

/*
 * Parse group_on_failure: wait, wait and an interval, or continue.  Returns whether a group waits
 * for a job between attempts, and in *patience the longest wait in microseconds; 0: no timeout.
 * ERROR if it is malformed.
 */
bool
jobq_group_wait_parse(const char *text, int64 *patience)
{
	static const char *const stops[] = {NULL};
	const char *at = jobq_skip_space(text);
	const char *problem = NULL;
	bool		waits = jobq_take_word(&at, "wait");

	*patience = 0;
	if (waits && *at != '\0')
		problem = jobq_duration_parse(jobq_duration_cut(&at, stops), 1,
									  JOBQ_MAX_DELAY_MS, patience);
	if ((!waits && !jobq_take_word(&at, "continue")) || problem != NULL || *at != '\0')
		invalid("group_on_failure", text, problem, "Write 'wait', 'wait 1 hour', or 'continue'.");
	return waits;
}

/* ERROR if there is no limiter with this name. */
void
jobq_check_limiter(const char *name)
{
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(name)};

	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.limiter WHERE name = $1", 1, types, values,
				   NULL, SPI_OK_SELECT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("limiter \"%s\" does not exist", name),
				 errhint("The view jobq.limits shows those that do; jobq.create_limiter() makes one.")));
	SPI_finish();
}

/*
 * ERROR if a kind or queue cannot name these limiters.  Returns false for an empty array.
 */
bool
jobq_check_limiters(ArrayType *names)
{
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	if (n > JOBQ_MAX_NAMED)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%d limiters exceed the maximum of %d", n, JOBQ_MAX_NAMED),
				 errhint("A kind and its queue can name %d limiters each.", JOBQ_MAX_NAMED)));
	for (int i = 0; i < n; i++)
	{
		const char *name;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("element %d of limiters must not be null", i + 1)));
		name = TextDatumGetCString(elems[i]);
		jobq_check_limiter(name);
		for (int j = 0; j < i; j++)
			if (strcmp(TextDatumGetCString(elems[j]), name) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("limiter \"%s\" is twice in limiters", name)));
	}
	return n > 0;
}

/*
 * Lock the rows of these limiters, a text array, until the end of the transaction, so that
 * drop_limiter() waits.  ERROR if a limiter was dropped meanwhile.  The caller is connected to
 * SPI.
 */
void
jobq_lock_limiters(Datum names)
{
	static const Oid types[] = {TEXTARRAYOID};
	ArrayType  *array = DatumGetArrayTypeP(names);

	/* in one order, as two callers may name the same limiters */
	if (jobq_query("SELECT FROM jobq_internal.limiter WHERE name = ANY ($1)"
				   " ORDER BY name FOR KEY SHARE",
				   1, types, &names, NULL, SPI_OK_SELECT) <
		(uint64) ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a limiter was dropped in the meantime")));
}

/*
 * Set the array of JOBQ_MAX_NAMED elements to the hashes of these limiters, a text array; 0:
 * none.  Further names, which only a restored table has, are ignored.
 */
void
jobq_limiter_hashes(Datum names, uint32 *limiters)
{
	List	   *list = jobq_names_of_array(names);

	memset(limiters, 0, sizeof(uint32) * JOBQ_MAX_NAMED);
	for (int i = 0; i < Min(list_length(list), JOBQ_MAX_NAMED); i++)
		limiters[i] = jobq_limiter_hash(list_nth(list, i));
	list_free_deep(list);
}
