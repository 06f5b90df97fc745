/*-------------------------------------------------------------------------
 *
 * owed.c
 *	  Carries out pending cancellations.
 *
 * cancel() of a running job asks the worker to stop the job.  If the request comes too
 * late and the job may run again, the worker cancels the job in the table, without
 * waiting for a row lock.  The worker may also end before.  The remaining cancellations
 * are carried out here, and tried again while another session has locked the row.  The
 * list is in shared memory, so it survives the end of a scheduler.
 *
 * worker/scheduler/owed.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"

#include "operate/operate.h"

static void cancel(void *arg);

/*
 * Carry out the due cancellations.  Lowers *wake to the time of the next attempt.  Runs
 * at most JOBQ_MAX_OWED transactions.  Takes db->lock.
 */
void
owed_cancel(TimestampTz now, TimestampTz *wake)
{
	JobqOwed	owed[JOBQ_MAX_OWED];
	int			n;

	if (my_db->nowed == 0)
		return;
	LWLockAcquire(my_db->lock, LW_SHARED);
	n = my_db->nowed;
	memcpy(owed, my_db->owed, sizeof(JobqOwed) * n);
	LWLockRelease(my_db->lock);
	for (int i = 0; i < n; i++)
	{
		int64		id = owed[i].job_id;
		TimestampTz at = later_at(id, now);

		if (at <= now)
		{
			ErrorData  *edata = scheduler_try(cancel, &id);

			if (edata == NULL)
			{
				later_done(id);
				jobq_cancel_paid(my_db, owed[i].ticket);
				continue;
			}
			at = later_failed(id, edata, now);
		}
		*wake = Min(*wake, at);
	}
}

static void
cancel(void *arg)
{
	int64		id = *(int64 *) arg;
	Relation	rel;
	bool		over;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	if (!jobq_cancel_owed(rel, id, &over))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("it is to be cancelled, and another session has its row")));
	table_close(rel, NoLock);
}
