/*-------------------------------------------------------------------------
 *
 * handover_commit.c
 *	  Counters of transactions with jobs of groups to hand over.
 *
 * The counters are incremented before the rows become visible: before the commit, or before
 * COMMIT PREPARED is executed for a prepared transaction.  The counters are decremented when
 * the transaction is over and everything is handed over.
 *
 * src/commit/handover_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"

#include "commit/inner.h"

/* More than a commit can name.  The last element is for all groups. */
#define MAX_RAISED	66

static uint32 raised[MAX_RAISED];
static int	nraised = 0;
static bool all = false;		/* the counter of the database is included */

/*
 * Announce that this transaction is about to commit a job of this group, or jobs of any group
 * if group is 0.  Takes no lock, and cannot fail.
 */
void
handover_raise(int64 group)
{
	if (jobq_shared == NULL || all)
		return;
	if (nraised == MAX_RAISED - 1)
		group = 0;
	all = group == 0;
	raised[nraised++] = jobq_handover_begin(MyDatabaseId, group);
}

/*
 * Announce that the session is about to execute COMMIT PREPARED, which makes rows visible
 * without notes.  Takes no lock, and cannot fail.
 */
void
jobq_before_commit_prepared(void)
{
	handover_raise(0);
}

/*
 * The transaction has handed over everything, or has aborted: decrement the counters.
 */
void
handover_lower(void)
{
	while (nraised > 0)
		jobq_handover_end(raised[--nraised]);
	all = false;
}
