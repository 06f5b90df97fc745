/*-------------------------------------------------------------------------
 *
 * run.c
 *	  The start and the early end of a job, as a process, a request or a message.
 *
 * client/worker/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

/*
 * Prepare for the first job.
 */
void
jobs_prepare(void)
{
	if (work.http != NULL)
		http_prepare(work.http_secret);
	if (work.publish == NULL)
		children_prepare();
}

/*
 * Start the process, the request or the message of the job.
 */
void
job_start(Job *job)
{
	if (work.publish != NULL)
		publish_start(job);
	else if (work.http != NULL)
		http_start(job);
	else
		child_start(job);
}

/*
 * Stop the process, the request or the message of the job.
 */
void
job_interrupt(Job *job)
{
	if (job->sending != NULL)
		publish_abort(job);
	else if (job->transfer != NULL)
		http_abort(job);
	else
		child_interrupt(job);
}
