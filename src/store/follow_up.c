/*-------------------------------------------------------------------------
 *
 * follow_up.c
 *	  Follow-up jobs: enqueued in the transaction that changes another job, for on_failure of a
 *	  kind and for handlers of events.
 *
 * Exactly one follow-up job therefore exists, even after a crash.  No function fails because
 * of an action or omission of a role, because an error would prevent the end of the other job.
 * If the kind no longer has a handler, the follow-up becomes a dead letter when it is to run.
 *
 * src/store/follow_up.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/table.h"

#include "store/store.h"

/*
 * Return the default queue, copied to *buffer.  A missing queue is created for workers,
 * whichever role ends the other job: this role need not have the privilege to create queues.
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
 * Return the queue in which a follow-up runs, copied to *buffer.  The choice is: queue_id, if
 * it is a queue of workers (0: none); the queue of the kind; the queue default.  Pins the
 * queues (jobq_pin_queues()).
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

	/* a consumer would not run the job */
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
 * Enqueue a job of this kind on behalf of the role.  headers: jsonb in text form, or NULL.
 * context: the other job, which provides context and trace, or NULL. Ignores max_length.
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
	jobq_job_draw_id(&job);
	rel = jobq_open_jobs();
	jobq_length_add(queue_id, 1);
	jobq_job_insert(rel, &job);
	jobq_count(&job, JOBQ_N_ENQUEUED, 1);
	table_close(rel, NoLock);
}
