/*-------------------------------------------------------------------------
 *
 * current.c
 *	  Running jobs: in this session, in a worker, or at a consumer.
 *
 * src/store/current.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "store/store.h"

JobqCurrent *jobq_current = NULL;

/*
 * Return the job with this id if this session runs the job, or NULL. Within perform(), the
 * worker's job is found.
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
 * Return whether a worker runs the job or a consumer holds it.  Also true while the attempt of
 * a dead worker has not been charged.  The answer may be outdated on return.  May take
 * db->lock in shared mode.
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
 * Return whether another worker must still record the last attempt of this job.  The job's row
 * was read before.  See jobq_slot_keeps_job().
 */
bool
jobq_job_kept(const JobqJob *job)
{
	JobqDatabase *db = jobq_my_database();

	return db != NULL &&
		jobq_slot_keeps_job(db, job_id(job), job_attempt(job), job->tried);
}
