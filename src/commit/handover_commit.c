/*-------------------------------------------------------------------------
 *
 * handover_commit.c
 *	  Counts this transaction among those that have jobs of groups to hand over.
 *
 * The counters are raised before the rows can be seen: before the commit, and for a
 * transaction that was prepared before COMMIT PREPARED is carried out.  They are lowered
 * when the transaction is over and nothing is noted any more.
 *
 * src/commit/handover_commit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"

#include "commit/inner.h"

/* More than a commit names; the last one is for all groups. */
#define MAX_RAISED	66

static uint32 raised[MAX_RAISED];
static int	nraised = 0;
static bool all = false;		/* the database's counter is among them */

/*
 * This transaction is about to commit a job of this group, or with 0 jobs of any.  Takes
 * no lock, and cannot fail.
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
 * The session is about to carry out COMMIT PREPARED, which makes rows visible of which
 * nothing is noted.
 */
void
jobq_before_commit_prepared(void)
{
	handover_raise(0);
}

/*
 * The transaction has handed over everything, or has aborted.
 */
void
handover_lower(void)
{
	while (nraised > 0)
		jobq_handover_end(raised[--nraised]);
	all = false;
}
