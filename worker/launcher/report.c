/*-------------------------------------------------------------------------
 *
 * report.c
 *	  Logs probable mistakes in the settings.
 *
 * Each problem is logged once, and again if it has disappeared in between.
 *
 * worker/launcher/report.c
 *
 *-------------------------------------------------------------------------
 */
#include "launcher/inner.h"

#include "utils/memutils.h"


static bool has_text(const List *texts, const char *text);

/* Log new problems, including those of jobq.workers.  problems is a list of texts. */
void
report_problems(List *problems)
{
	static List *known = NIL;	/* problems that were logged before and still
								 * exist */
	List	   *before = known;
	MemoryContext old;
	ListCell   *lc;

	problems = list_concat(problems, jobq_pools_problems(NULL));
	problems = list_concat(problems, jobq_pools_unserved());
	foreach(lc, problems)
		if (!has_text(known, lfirst(lc)))
		ereport(LOG, (errmsg_internal("%s", (char *) lfirst(lc))));

	old = MemoryContextSwitchTo(TopMemoryContext);
	known = NIL;
	foreach(lc, problems)
		known = lappend(known, pstrdup(lfirst(lc)));
	list_free_deep(before);
	MemoryContextSwitchTo(old);
}

static bool
has_text(const List *texts, const char *text)
{
	ListCell   *lc;

	foreach(lc, texts)
		if (strcmp(lfirst(lc), text) == 0)
		return true;
	return false;
}
