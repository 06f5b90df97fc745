/*-------------------------------------------------------------------------
 *
 * pools.c
 *	  Parses jobq.workers: the pools of workers.
 *
 * src/base/pools.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>

#include "base/inner.h"

static JobqPoolSet *pool_set = NULL;

static bool
pool_syntax_error(const char *detail)
{
	GUC_check_errdetail("%s", detail);
	GUC_check_errhint("Name pools as \"high,default=4; reports=2\": queues in strict order, and the number of workers; \"*\" is every queue that is not named.");
	return false;
}

/*
 * Copy the word before "end", without the surrounding space.  False if the word is empty or
 * too long.
 */
static bool
copy_word(const char *start, const char *end, char *word, size_t size)
{
	while (start < end && isspace((unsigned char) *start))
		start++;
	while (end > start && isspace((unsigned char) end[-1]))
		end--;
	if (start == end || (size_t) (end - start) >= size)
		return false;
	memcpy(word, start, end - start);
	word[end - start] = '\0';
	return true;
}

/*
 * Check hook of jobq.workers, which stores the parsed value.  Pools are separated by ";".
 * Each pool is a list of queues, "=" and a number.
 */
bool
jobq_check_workers(char **newval, void **extra, GucSource source)
{
	const char *at = *newval;
	JobqPoolSet *set = jobq_guc_malloc(sizeof(JobqPoolSet));

	if (set == NULL)
		return false;
	memset(set, 0, sizeof(JobqPoolSet));
	*extra = set;

	while (isspace((unsigned char) *at))
		at++;
	while (*at != '\0')
	{
		const char *end = at + strcspn(at, ";");
		const char *equals = memchr(at, '=', end - at);
		JobqPool   *pool;
		char		number[16];
		char	   *rest;
		long		workers;

		if (set->npools >= JOBQ_MAX_POOLS)
			return pool_syntax_error("There can be at most " CppAsString2(JOBQ_MAX_POOLS) " pools.");
		pool = &set->pools[set->npools++];

		if (equals == NULL)
			return pool_syntax_error("A pool lacks its number of workers.");
		if (!copy_word(equals + 1, end, number, sizeof(number)))
			return pool_syntax_error("The number of workers of a pool must be from 0 to 1024.");
		workers = strtol(number, &rest, 10);
		if (*rest != '\0' || workers < 0 || workers > 1024)
			return pool_syntax_error("The number of workers of a pool must be from 0 to 1024.");
		pool->workers = (int) workers;

		for (;;)
		{
			const char *comma = memchr(at, ',', equals - at);
			const char *word_end = comma != NULL ? comma : equals;

			if (pool->nqueues >= JOBQ_MAX_POOL_QUEUES)
				return pool_syntax_error("A pool can name at most " CppAsString2(JOBQ_MAX_POOL_QUEUES) " queues.");
			if (!copy_word(at, word_end, pool->queues[pool->nqueues],
						   NAMEDATALEN))
				return pool_syntax_error("A queue name is empty or longer than 63 bytes.");
			pool->nqueues++;
			if (comma == NULL)
				break;
			at = comma + 1;
		}

		at = *end == '\0' ? end : end + 1;
		while (isspace((unsigned char) *at))
			at++;
	}
	return true;
}

/* Assign hook of jobq.workers: activate the pools parsed by the check hook. */
void
jobq_assign_workers(const char *newval, void *extra)
{
	pool_set = extra;
}

/* Return the pools of jobq.workers.  Valid until the settings are read again. */
const JobqPoolSet *
jobq_pools(void)
{
	static const JobqPoolSet none = {0};

	return pool_set != NULL ? pool_set : &none;
}
