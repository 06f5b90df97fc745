/*-------------------------------------------------------------------------
 *
 * event.c
 *	  Raises events: changes of a job, a batch, a schedule or a monitor enqueue jobs, one for
 *	  each handler registered by on_event().
 *
 * listeners.c decides which handlers receive an event.  At each event, this code checks
 * whether the handler's role may still enqueue.  The payload contains only data visible to the
 * role in the views, without the contents of the job.  The trace of the job is passed on to
 * handlers of roles with the privileges of the job's role.  The job of an event has a reserved
 * kind, and raises no events itself.
 *
 * src/store/event.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "store/store.h"

/*
 * Return whether the role may still enqueue jobs of the kind in the queue.  See
 * jobq_find_place().
 */
static bool
may_enqueue(Oid role, const char *kind, const JobqQueue *queue)
{
	JobqHandler buffer;
	const JobqHandler *handler;

	if (!jobq_may_produce(role, queue))
		return false;
	if (!OidIsValid(queue->run_as))
		return true;
	handler = jobq_handler(kind, &buffer);
	return handler != NULL && strcmp(handler->queue, queue->name) == 0;
}

/*
 * Return the payload for handlers of an event of the job.  sqlerrcode may be 0, message may be
 * NULL.
 */
Datum
jobq_event_describe(JobqEvent event, const JobqJob *job, const char *kind,
					const char *queue, int sqlerrcode, const char *message)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "{\"event\": \"%s\", \"job\": " INT64_FORMAT ", \"kind\": ",
					 jobq_event_word(event), job_id(job));
	escape_json(&buf, kind);
	appendStringInfoString(&buf, ", \"queue\": ");
	escape_json(&buf, queue);
	if (!JOB_ISNULL(job, JOB_TENANT))
	{
		appendStringInfoString(&buf, ", \"tenant\": ");
		escape_json(&buf, TextDatumGetCString(JOB(job, JOB_TENANT)));
	}
	jobq_append_time(&buf, "at", jobq_now());
	appendStringInfo(&buf, ", \"attempt\": %d, \"max_attempts\": %d"
					 ", \"exceptions\": %d, \"crashes\": %d",
					 job_attempt(job), job_max_attempts(job),
					 DatumGetInt16(JOB(job, JOB_EXCEPTIONS)),
					 DatumGetInt16(JOB(job, JOB_CRASHES)));
	if (job_batch(job) != 0)
		appendStringInfo(&buf, ", \"batch\": " INT64_FORMAT, job_batch(job));
	if (sqlerrcode != 0)
		appendStringInfo(&buf, ", \"sqlstate\": \"%s\"", unpack_sql_state(sqlerrcode));
	if (message != NULL)
	{
		appendStringInfoString(&buf, ", \"error\": ");
		jobq_append_text(&buf, message);
	}
	if (event == JOBQ_EVENT_RETRY && job_run_at(job) != DT_NOEND)
		jobq_append_time(&buf, "run_at", job_run_at(job));
	appendStringInfoChar(&buf, '}');
	return jobq_text_to_jsonb(buf.data);
}

/*
 * Enqueue a job for each handler.  headers: for handlers of roles with the privileges of
 * "role", or NULL.
 */
static void
tell(const JobqListener *heard, int n, Oid role, Datum payload, const char *headers)
{
	for (int i = 0; i < n; i++)
	{
		JobqQueue	buffer;
		const JobqQueue *target = jobq_follow_up_queue(0, heard[i].handler, &buffer);

		if (may_enqueue(heard[i].role, heard[i].handler, target))
			jobq_follow_up(psprintf(ON_EVENT_PREFIX "%s", heard[i].handler),
						   target->id, heard[i].role, payload,
						   headers != NULL && has_privs_of_role(heard[i].role, role)
						   ? headers : NULL,
						   NULL);
	}
}

/* Enqueue a job for each handler of the event.  See jobq_event(). */
void
jobq_event_raise(JobqEvent event, const JobqJob *job, int sqlerrcode,
				 const char *message)
{
	const char *kind = jobq_job_kind(job);
	JobqQueue	buffer;
	const JobqQueue *queue;
	const char *name;
	JobqListener *heard;
	int			nheard;
	MemoryContext caller;
	MemoryContext context;

	if (strncmp(kind, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		return;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	name = queue == NULL ? "" : queue->name;
	heard = jobq_listeners(event, job_role(job), job_queue_id(job), name, kind,
						   &nheard);
	if (heard == NULL)
		return;

	/* one statement may end many jobs */
	context = AllocSetContextCreate(CurrentMemoryContext, "jobq event",
									ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(context);
	tell(heard, nheard, job_role(job),
		 jobq_event_describe(event, job, kind, name, sqlerrcode, message),
		 jobq_trace_headers(job));
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	pfree(heard);
}

/*
 * Enqueue a job for each handler of an event of another object of the role.  queue and kind:
 * those of the object, or NULL. describe_it(buf, arg) appends members of a JSON object, and is
 * called only if the event has a handler.  See jobq_event_of().
 */
void
jobq_event_raise_of(JobqEvent event, Oid role, const char *queue, const char *kind,
					void (*describe_it) (StringInfo buf, void *arg), void *arg)
{
	StringInfoData buf;
	JobqListener *heard;
	int			nheard;

	heard = jobq_listeners(event, role, 0, queue, kind, &nheard);
	if (heard == NULL)
		return;
	initStringInfo(&buf);
	appendStringInfo(&buf, "{\"event\": \"%s\"", jobq_event_word(event));
	describe_it(&buf, arg);
	jobq_append_time(&buf, "at", jobq_now());
	appendStringInfoChar(&buf, '}');
	tell(heard, nheard, role, jobq_text_to_jsonb(buf.data), NULL);
	pfree(heard);
}
