/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  The words of the policies of a schedule: missed, overlap.
 *
 * The columns of jobq_internal.schedule have words.  The code works with the enums, in the
 * order of the words.
 *
 * src/schedule/policy.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "schedule/schedule.h"
#include "store/store.h"

/* Return the number of the word among the words of the option.  ERROR if the word is unknown. */
static int
parse_word(const char *option, const char *words, const char *word)
{
	int			number = jobq_word_number(words, word);

	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for %s: \"%s\"", option, word),
				 errhint("It is one of %s.", words)));
	return number;
}

/* Return the policy for missed ticks.  ERROR if the word is no policy. */
JobqMissed
jobq_missed_parse(const char *word)
{
	return parse_word("missed", "skip, once, all", word);
}

/* Return the policy for a tick while the last job is live.  ERROR if the word is no policy. */
JobqOverlap
jobq_overlap_parse(const char *word)
{
	return parse_word("overlap", "allow, skip, queue", word);
}
