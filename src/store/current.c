/*-------------------------------------------------------------------------
 *
 * current.c
 *	  Which jobs run: in this session, in a worker, or outside.
 *
 * src/store/current.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "store/store.h"

JobqCurrent *jobq_current = NULL;

/*
 * The job of that id, if this session runs it; in perform() it is still that of
 * the worker which runs.
 */
JobqCurrent *
jobq_current_of(int64 id)
{
	JobqCurrent *current = jobq_current;

	while (current != NULL &&
		   (current->memory == NULL || job_id(current->job) != id))
		current = current->outer;
	return current;
}

/*
 * Does a worker run the job, or a consumer hold it?  So it is, too, as long as a worker
 * that has died at the job was not charged.  The answer may be outdated as soon as it is
 * given.
 */
bool
jobq_job_runs(const JobqJob *job)
{
	JobqDatabase *db = jobq_my_database();
	bool		held;

	if (job_leased(job))
		return true;
	if (db == NULL)
		return false;
	if (jobq_slot_names_job(db, job_id(job)) != NULL)
		return true;
	if (db->leases->nleases == 0)
		return false;
	LWLockAcquire(db->lock, LW_SHARED);
	held = jobq_lease_find(db, job_id(job)) != NULL;
	LWLockRelease(db->lock);
	return held;
}

/*
 * Is this job, whose row was read, another worker's to see to, because its last attempt is
 * not recorded yet?  See jobq_slot_keeps_job().
 */
bool
jobq_job_kept(const JobqJob *job)
{
	JobqDatabase *db = jobq_my_database();

	return db != NULL &&
		jobq_slot_keeps_job(db, job_id(job), job_attempt(job), job->tried);
}
