/*-------------------------------------------------------------------------
 *
 * follow_up.c
 *	  A job that is enqueued because of what has become of another, in the same
 *	  transaction: on_failure of a kind, and handlers of events.
 *
 * So there is exactly one, whatever crashes.  Nothing here fails because of what a
 * role has done or not done, as that would keep the other job from its end: a job
 * whose kind has no handler any more becomes a dead letter when it is to run.
 *
 * src/store/follow_up.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"

#include "store/store.h"

static const JobqQueue *default_queue(JobqQueue *buffer);

/*
 * The default queue, copied to *buffer.  If there is none yet, it is made for workers,
 * whoever ends the other job: he need not have the privilege to make queues.
 */
static const JobqQueue *
default_queue(JobqQueue *buffer)
{
	const JobqQueue *queue = jobq_queue_by_name("default", false, buffer);

	if (queue == NULL)
	{
		(void) jobq_insert_queue("default", "worker", true, NULL);
		queue = jobq_queue_by_name("default", false, buffer);
	}
	if (queue == NULL)
		elog(ERROR, "queue \"default\" vanished while it was created");
	return queue;
}

/*
 * The queue of workers in which a follow-up runs: this one, or if that is no such
 * queue (0: none), that of the kind, or else the default one.  Copied to *buffer.
 */
const JobqQueue *
jobq_follow_up_queue(int32 queue_id, const char *kind, JobqQueue *buffer)
{
	JobqHandler handler_buffer;
	const JobqHandler *handler;
	const JobqQueue *queue = NULL;

	jobq_pin_queues();
	if (queue_id != 0)
		queue = jobq_queue_by_id(queue_id, buffer);

	/* a consumer would not run it */
	if (queue != NULL && queue->mode == MODE_WORKER)
		return queue;
	handler = jobq_handler(kind, &handler_buffer);
	queue = handler != NULL && handler->queue[0] != '\0'
		? jobq_queue_by_name(handler->queue, false, buffer) : NULL;
	if (queue == NULL || queue->mode != MODE_WORKER)
		queue = default_queue(buffer);
	return queue;
}

/*
 * Enqueue a job of this kind in the role's name.  headers is jsonb, or NULL; context
 * is the other job, whose context and trace it has, or NULL.
 */
void
jobq_follow_up(const char *kind, int32 queue_id, Oid role, Datum payload,
			   const char *headers, const JobqJob *context)
{
	JobqHandler buffer;
	const JobqHandler *handler = jobq_handler(kind, &buffer);
	JobqJob		job;
	Relation	rel;

	jobq_job_init(&job, kind, payload, queue_id, role);
	if (handler != NULL && handler->max_attempts >= 0)
		JOB_SET(&job, JOB_MAX_ATTEMPTS, Int32GetDatum(handler->max_attempts));
	if (headers != NULL)
		JOB_SET(&job, JOB_HEADERS, jobq_text_to_jsonb(headers));
	if (context != NULL)
		jobq_add_trace(&job, context);
	if (context != NULL && !JOB_ISNULL(context, JOB_CONTEXT))
		JOB_SET(&job, JOB_CONTEXT, JOB(context, JOB_CONTEXT));
	rel = jobq_open_jobs();
	jobq_length_add(queue_id, 1);
	jobq_job_insert(rel, &job);
	jobq_count(&job, JOBQ_N_ENQUEUED, 1);
	table_close(rel, NoLock);
}
