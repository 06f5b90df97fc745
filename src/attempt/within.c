/*-------------------------------------------------------------------------
 *
 * within.c
 *	  Calls the handlers of events within the job's own transaction, before and after its
 *	  handler: on_event(within => true).
 *
 * Only handlers registered by the role of the job are called, so a role cannot make code run
 * as another role.  Each handler is called in a subtransaction, as the role and unable to
 * change the role.  An error becomes a line of the job's log, unless the handler is required.
 * An error that ends the attempt anyway, such as a cancel, is raised.
 *
 * The handler of an event is not a job, but part of the running job.  Its writes commit with
 * the job; log() and the trace are those of the job.  snooze() and similar functions have no
 * effect there.
 *
 * src/attempt/within.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/elog.h"
#include "utils/resowner.h"

#include "attempt/attempt.h"

static void
context_callback(void *arg)
{
	const JobqListener *listener = (const JobqListener *) arg;

	errcontext("handler \"%s\" of event \"%s\"", listener->handler,
			   listener->event == JOBQ_WITHIN_STARTED ? "started" : "completed");
}

static int
compare_handlers(const void *a, const void *b)
{
	return strcmp(((const JobqListener *) a)->handler,
				  ((const JobqListener *) b)->handler);
}

/* True if an error with this code ends the attempt, and not just the handler. */
static bool
ends_attempt(int sqlerrcode)
{
	switch (sqlerrcode)
	{
		case ERRCODE_QUERY_CANCELED:
		case ERRCODE_OUT_OF_MEMORY:
		case ERRCODE_ADMIN_SHUTDOWN:
		case ERRCODE_CRASH_SHUTDOWN:
		case ERRCODE_CANNOT_CONNECT_NOW:
			return true;
		default:
			return false;
	}
}

/* Call the handler as the role, in a subtransaction. */
static void
call_handler(JobqListener *listener, Oid role, Datum payload)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	JobqCurrent current = {0};
	ErrorContextCallback callback;
	Oid			userid;
	int			sec_context;

	current.job = jobq_current->job;
	current.attempt = jobq_current->attempt;
	current.slot = jobq_current->slot;
	current.outer = jobq_current;
	GetUserIdAndSecContext(&userid, &sec_context);

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		JobqFunction function;
		bool		isnull;

		callback.callback = context_callback;
		callback.arg = listener;
		callback.previous = error_context_stack;
		error_context_stack = &callback;
		SetUserIdAndSecContext(role, sec_context | SECURITY_LOCAL_USERID_CHANGE);
		jobq_current = &current;
		jobq_handler_resolve(listener->handler, &function);
		(void) jobq_call_with(&function, payload, current.job, current.attempt, true,
							  &isnull);
		jobq_current = current.outer;
		SetUserIdAndSecContext(userid, sec_context);
		error_context_stack = callback.previous;
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		jobq_current = current.outer;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (listener->required || ends_attempt(edata->sqlerrcode))
			ReThrowError(edata);
		jobq_log_warn(psprintf("handler \"%s\" of event \"%s\" has failed: %s (SQLSTATE %s)",
							   listener->handler,
							   listener->event == JOBQ_WITHIN_STARTED ? "started" : "completed",
							   edata->message, unpack_sql_state(edata->sqlerrcode)));
		FreeErrorData(edata);
	}
	PG_END_TRY();
}

/*
 * Call each handler of the event for jobq_current, the job that runs here, in the order of the
 * handlers' names.  See jobq_within().
 */
void
jobq_within_call(JobqEvent event, Oid role)
{
	const JobqJob *job = jobq_current->job;
	const char *kind = jobq_job_kind(job);
	JobqJob		told;
	JobqQueue	buffer;
	const JobqQueue *queue;
	const char *name;
	JobqListener *heard;
	int			n;
	Datum		payload;

	if (strncmp(kind, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		return;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	name = queue == NULL ? "" : queue->name;
	heard = jobq_listeners(event, role, job_queue_id(job), name, kind, &n);
	if (heard == NULL)
		return;
	told = *job;
	JOB_SET(&told, JOB_ATTEMPT, Int32GetDatum(jobq_current->attempt));
	payload = jobq_event_describe(event == JOBQ_WITHIN_STARTED ? JOBQ_EVENT_STARTED
								  : JOBQ_EVENT_COMPLETED, &told, kind, name, 0, NULL);
	qsort(heard, n, sizeof(JobqListener), compare_handlers);
	for (int i = 0; i < n; i++)
		call_handler(&heard[i], role, payload);
	pfree(heard);
}
