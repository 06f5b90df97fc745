/*-------------------------------------------------------------------------
 *
 * place.c
 *	  Queue, handler and attempts of a job, for new and for edited jobs.
 *
 * src/produce/place.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "produce/produce.h"
#include "store/store.h"

/*
 * Find the queue of a job of this kind: the named queue, or the kind's queue if queue_name is
 * NULL, or else the queue default.  Copies the queue to *queue_buffer, and the handler to
 * *handler_buffer.  Returns the handler, or NULL if the kind has none.  Kinds run by consumers
 * need no handler.  Creates a missing queue if jobq.create_queues allows it.  Pins the queues
 * (jobq_pin_queues()).  ERROR if the current user may not enqueue this job there.
 */
const JobqHandler *
jobq_find_place(const char *kind, const char *queue_name,
				JobqQueue *queue_buffer, JobqHandler *handler_buffer)
{
	const JobqHandler *handler;
	const JobqQueue *queue;

	/* the prefix marks jobs of events */
	if (strncmp(kind, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", kind),
				 errhint("Kinds that begin with \"%s\" are jobs of on_event().",
						 ON_EVENT_PREFIX)));
	if (strcmp(kind, JOBQ_WORKFLOW_KIND) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_RESERVED_NAME),
				 errmsg("kind \"%s\" is reserved", kind),
				 errhint("Its jobs stand for workflows in a batch: jobq.create_workflow().")));
	jobq_pin_queues();
	handler = strncmp(kind, ON_FAILURE_PREFIX, strlen(ON_FAILURE_PREFIX)) == 0
		? NULL : jobq_handler(kind, handler_buffer);

	if (queue_name == NULL)
		queue_name = handler != NULL && handler->queue[0] != '\0'
			? handler->queue : "default";

	/* a consumer has its own code, so its kinds need no handler */
	queue = jobq_queue_by_name(queue_name,
							   handler != NULL ||
							   jobq_create_queues == CREATE_QUEUES_CONSUMER,
							   queue_buffer);
	if (queue != NULL)
		jobq_require_produce(queue);
	if (handler == NULL && (queue == NULL || queue->mode != MODE_CONSUMER))
	{
		bool		statement = jobq_reads_as_statement(kind);

		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_UNKNOWN_KIND),
				 errmsg("no handler is registered for kind \"%s\"", kind),
				 queue == NULL
				 ? errdetail("Queue \"%s\" does not exist.", queue_name)
				 : errdetail("The jobs of queue \"%s\" are run by workers.",
							 queue_name),
				 statement
				 ? errhint("This is a statement: give it as sql => to jobq.schedule(), or to jobq.enqueue_sql().")
				 : errhint("Register a function with jobq.register(%s, 'function(jsonb)'). If a program takes the job instead, give it a queue for that: jobq.create_queue('...', mode => 'consumer').",
						   quote_literal_cstr(kind))));
	}

	if (OidIsValid(queue->run_as) &&
		(handler == NULL || strcmp(handler->queue, queue->name) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("kind \"%s\" is not for queue \"%s\", which has run_as",
						kind, queue->name),
				 errhint("Such a queue has jobs of kinds that are registered for it: jobq.register(..., queue => %s).",
						 quote_literal_cstr(queue->name))));
	if (jobq_is_statement(kind))
		jobq_statement_require(queue);
	return handler;
}

/*
 * Set the number of attempts, backoff, timeout and retry_until of the job from the options.
 * Missing options change nothing.  ERROR if a value is invalid.
 */
void
jobq_set_attempts(JobqJob *job, const Datum *options, const bool *nulls)
{
	if (!nulls[OPTION_MAX_ATTEMPTS])
	{
		int			attempts = DatumGetInt32(options[OPTION_MAX_ATTEMPTS]);

		if (attempts < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("max_attempts %d is out of range", attempts),
					 errhint("It must be at least 1, or 0 for no limit.")));
		JOB_SET(job, JOB_MAX_ATTEMPTS, options[OPTION_MAX_ATTEMPTS]);
	}

	if (!nulls[OPTION_RETRY_UNTIL])
		JOB_SET(job, JOB_RETRY_UNTIL, options[OPTION_RETRY_UNTIL]);
	if (!nulls[OPTION_BACKOFF])
	{
		JobqBackoff unused;

		jobq_backoff_parse(TextDatumGetCString(options[OPTION_BACKOFF]),
						   &unused);
		JOB_SET(job, JOB_BACKOFF, options[OPTION_BACKOFF]);
	}
	if (!nulls[OPTION_TIMEOUT])
		JOB_SET(job, JOB_TIMEOUT,
				Int32GetDatum((int32) jobq_interval_ms(DatumGetIntervalP(options[OPTION_TIMEOUT]),
													   "timeout", 1, PG_INT32_MAX)));
}
