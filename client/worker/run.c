/*-------------------------------------------------------------------------
 *
 * run.c
 *	  The start and the early end of a job, as a process or as a request.
 *
 * client/worker/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

/*
 * Start the process or the request of the job.
 */
void
job_start(Job *job)
{
	if (work.http != NULL)
		http_start(job);
	else
		child_start(job);
}

/*
 * Stop the process or the request of the job.
 */
void
job_interrupt(Job *job)
{
	if (job->transfer != NULL)
		http_abort(job);
	else
		child_interrupt(job);
}
