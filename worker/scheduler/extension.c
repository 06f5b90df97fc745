/*-------------------------------------------------------------------------
 *
 * extension.c
 *	  Leaves the database after the extension was dropped.
 *
 * worker/scheduler/extension.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "storage/ipc.h"

#include "scheduler/duty.h"

static TimestampTz load(TimestampTz now);
static TimestampTz next_due(TimestampTz plan, TimestampTz now);

/* Reads a few rows of the catalog. */
Duty		extension_duty = {
	.what = "see whether the extension is there",
	.load = load,
	.run = load,
	.next_due = next_due,
};

static TimestampTz
load(TimestampTz now)
{
	extension_check();
	return DT_NOEND;
}

static TimestampTz
next_due(TimestampTz plan, TimestampTz now)
{
	return my_db->created ? now : DT_NOEND;
}

/*
 * End the process if the extension is gone, has a version other than this library, or
 * was created again since the start of the process.
 */
void
extension_check(void)
{
	static Oid	served = InvalidOid;	/* table of jobs */
	const JobqRelations *rels;
	Oid			job;
	uint64		pokes = jobq_shared->pokes;

	my_db->created = false;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	rels = jobq_relations_of_any_version();
	if (rels != NULL && !rels->version_fits)
	{
		jobq_report_version(WARNING, rels->extension);
		rels = NULL;
	}
	else if (rels == NULL)
		jobq_stats_forget_database(MyDatabaseId, InvalidOid);
	job = rels == NULL ? InvalidOid : rels->job;
	CommitTransactionCommand();
	if (!OidIsValid(served))
		served = job;
	if (OidIsValid(job) && job == served)
		return;

	if (!OidIsValid(job))
	{
		/* CREATE and ALTER EXTENSION request another check at commit */
		LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
		my_db->absent = pokes == jobq_shared->pokes;
		LWLockRelease(jobq_shared->lock);
	}
	spawn_dismiss();
	proc_exit(0);
}
