/*-------------------------------------------------------------------------
 *
 * run_as.c
 *	  Checks whether the job may run as the role of this process.
 *
 * A job runs as the enqueuing role, or as the run_as of the queue.  Lanes are per role, so the
 * worker has the right role, and the gate has checked that the queue still has this run_as.
 * The remaining question is whether run_as is still allowed.  run_as is a grant, as by a
 * SECURITY DEFINER function, from the role that set it to the roles that may enqueue there.
 * When the job is to run, these conditions are checked again:
 *
 * - The role that set run_as can still SET ROLE to it.  For a superuser, the role that set
 *   run_as must be a superuser.
 * - The role that enqueued the job may still enqueue there.
 * - The kind is registered for the queue.  Otherwise a producer could run any handler as the
 *   role.
 *
 * A plain statement runs only while its role may enqueue plain statements.
 *
 * src/attempt/run_as.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/syscache.h"

#include "attempt/attempt.h"

/*
 * Return the reason why no job of the queue may run as its run_as.  NULL if the jobs may, or
 * if the queue has no run_as.
 */
const char *
jobq_run_as_problem(const JobqQueue *queue)
{
	if (!OidIsValid(queue->run_as))
		return NULL;
	if (!OidIsValid(queue->run_as_by))
		return "The role that run_as says, or the role that has set it, was dropped before the database was dumped.";
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(queue->run_as)))
		return "The role that run_as says does not exist any more.";
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(queue->run_as_by)))
		return "The role that has set run_as does not exist any more.";
	if (!jobq_can_set_role(queue->run_as_by, queue->run_as))
		return "The role that has set run_as cannot SET ROLE to it any more.";
	if (superuser_arg(queue->run_as) && !superuser_arg(queue->run_as_by))
		return "It is a superuser, and the role that has set run_as is none.";
	return NULL;
}

/*
 * Return the reason why the job may not run as its queue's run_as, or NULL.  Can be called in
 * any process.
 */
const char *
jobq_run_as_refused(const JobqJob *job, const JobqQueue *queue)
{
	JobqHandler handler;
	const char *problem = jobq_run_as_problem(queue);

	if (problem != NULL || !OidIsValid(queue->run_as))
		return problem;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(job_role(job))) ||
		!jobq_may_produce(job_role(job), queue))
		return "The role that enqueued the job may not enqueue there any more.";
	if (jobq_handler(jobq_job_kind(job), &handler) == NULL ||
		strcmp(handler.queue, queue->name) != 0)
		return "The kind is not registered for the queue.";
	return NULL;
}

/* Like jobq_run_as_refused(), in the process that is to run the job. */
static const char *
refusal(const JobqJob *job, const JobqQueue *queue)
{
	const char *problem = jobq_run_as_refused(job, queue);

	if (problem == NULL && superuser() && !superuser_arg(queue->run_as_by))
		return "It is a superuser, and the role that has set run_as is none.";
	return problem;
}

/*
 * Raise an error if the job may not run in this process, which is connected as the job's role.
 * current->barred is then set.
 */
void
jobq_check_role(JobqCurrent *current)
{
	JobqQueue	queue;
	const char *why;

	current->barred = true;

	/* a role may have become a superuser after the worker started */
	if (current->slot != NULL &&
		jobq_allow_superuser_jobs == SUPERUSER_JOBS_OFF && superuser())
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_BAD_ROLE),
				 errmsg("the role of the job is a superuser"),
				 errhint("Jobs of superusers are not allowed by \"%s\".",
						 "jobq.allow_superuser_jobs")));
	if (jobq_queue_by_id(job_queue_id(current->job), &queue) != NULL &&
		OidIsValid(queue.run_as) &&
		(why = refusal(current->job, &queue)) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_BAD_ROLE),
				 errmsg("the job may not run as the role that queue \"%s\" says",
						queue.name),
				 errdetail_internal("%s", why),
				 errhint("Whoever can become the role sets it again with jobq.alter_queue(), and retries the job.")));
	if (jobq_job_is_statement(current->job) &&
		(jobq_privileges_of(job_role(current->job), job_queue_id(current->job)) & JOBQ_MAY_SQL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("the role of the job may not enqueue plain statements any more"),
				 errhint("Grant it by jobq.grant_privilege(..., 'sql'), and retry the job.")));
	current->barred = false;
}
