/*-------------------------------------------------------------------------
 *
 * event.c
 *	  Raises events: what becomes of a job calls forth jobs, one for each handler
 *	  that on_event() has named for that.
 *
 * All handlers are in a cache of this backend, which is outdated as that of queues
 * (queues.c), with a mask of the events that anybody has asked for.
 *
 * A handler's role hears of jobs that it may see: those of roles whose privileges it
 * has, and those of queues that it monitors.  That is asked at each event, and so is
 * whether it may still enqueue there.  The payload tells what such a role sees in the
 * views: nothing that the job carries.
 *
 * A job of an event has a kind that nobody else can use, and raises none itself.
 *
 * src/store/event.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "store/store.h"

/* A row of jobq.event_handler; "" stands for any queue or kind. */
typedef struct Listener
{
	Oid			role;
	int			event;
	char		handler[JOBQ_MAX_KIND_NAME + 1];
	char		queue[JOBQ_MAX_QUEUE_NAME + 1];
	char		kind[JOBQ_MAX_KIND_NAME + 1];
}			Listener;

static const char *const words[JOBQ_NEVENTS] = {
	"completed", "failed", "retry", "dead", "cancelled", "expired"
};

static Listener * listeners = NULL;
static int	nlisteners = 0;
static int	max_listeners = 0;
static bool valid = false;		/* they are as in the table */
static Oid	event_relation = InvalidOid;	/* that they were read from */

/* how often a message, or an abort, may have outdated what is kept here */
static uint64 changes = 0;

/* all, as long as the table was not read */
uint32		jobq_heard = ~UINT32_C(0);

static void
forget_listeners(void)
{
	changes++;
	valid = false;
	jobq_heard = ~UINT32_C(0);
}

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == event_relation)
		forget_listeners();
}

static const JobqCache cache = {
	.changed = relation_changed,
	.forget = forget_listeners,
};

/*
 * Join the caches; once per process.
 */
void
jobq_events_install(void)
{
	jobq_cache_join(&cache);
}

/*
 * The word for an event of this number; NULL if there is none.
 */
const char *
jobq_event_word(int event)
{
	return event >= 0 && event < JOBQ_NEVENTS ? words[event] : NULL;
}

/*
 * Read a row; false if the library does not know such an event.
 */
static bool
read_listener(Relation rel, HeapTuple tuple, Listener * listener)
{
	Datum		values[EVENT_HANDLER_NATTS];
	bool		nulls[EVENT_HANDLER_NATTS];
	char		word[NAMEDATALEN];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	listener->role = DatumGetObjectId(values[EVENT_HANDLER_ROLE - 1]);
	text_to_cstring_buffer(DatumGetTextPP(values[EVENT_HANDLER_EVENT - 1]),
						   word, sizeof(word));
	text_to_cstring_buffer(DatumGetTextPP(values[EVENT_HANDLER_HANDLER - 1]),
						   listener->handler, sizeof(listener->handler));
	text_to_cstring_buffer(DatumGetTextPP(values[EVENT_HANDLER_QUEUE - 1]),
						   listener->queue, sizeof(listener->queue));
	text_to_cstring_buffer(DatumGetTextPP(values[EVENT_HANDLER_KIND - 1]),
						   listener->kind, sizeof(listener->kind));
	for (listener->event = 0; listener->event < JOBQ_NEVENTS; listener->event++)
		if (strcmp(words[listener->event], word) == 0)
			return true;
	return false;
}

/*
 * Read all handlers, if they are not known.
 */
static void
load(void)
{
	uint64		before = changes;
	uint32		heard = 0;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (valid)
		return;
	nlisteners = 0;
	rel = jobq_open_table(JOBQ_EVENT_HANDLER_TABLE, AccessShareLock);
	event_relation = RelationGetRelid(rel);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		listeners = jobq_grow(listeners, &max_listeners, nlisteners + 1,
							  sizeof(Listener));
		if (!read_listener(rel, tuple, &listeners[nlisteners]))
			continue;
		heard |= UINT32_C(1) << listeners[nlisteners].event;
		nlisteners++;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (changes != before)
		return;
	valid = true;
	jobq_heard = heard;
	jobq_cache_filled();
}

/*
 * Does the handler's role hear of this job?
 */
static bool
may_hear(Oid role, const JobqJob *job)
{
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)) &&
		(has_privs_of_role(role, job_role(job)) ||
		 (jobq_privileges_of(role, job_queue_id(job)) & JOBQ_MAY_MONITOR) != 0);
}

/*
 * May the role still enqueue jobs of the kind there?  See jobq_find_place().
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

static void
append_time(StringInfo buf, const char *name, TimestampTz at)
{
	char		time[MAXDATELEN + 1];

	(void) JsonEncodeDateTime(time, TimestampTzGetDatum(at), TIMESTAMPTZOID, NULL);
	appendStringInfo(buf, ", \"%s\": ", name);
	escape_json(buf, time);
}

/*
 * What the job of the event gets as its payload.
 */
static Datum
describe(JobqEvent event, const JobqJob *job, const char *kind, const char *queue,
		 int sqlerrcode, const char *message)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "{\"event\": \"%s\", \"job\": " INT64_FORMAT ", \"kind\": ",
					 words[event], job_id(job));
	escape_json(&buf, kind);
	appendStringInfoString(&buf, ", \"queue\": ");
	escape_json(&buf, queue);
	if (!JOB_ISNULL(job, JOB_TENANT))
	{
		appendStringInfoString(&buf, ", \"tenant\": ");
		escape_json(&buf, TextDatumGetCString(JOB(job, JOB_TENANT)));
	}
	append_time(&buf, "at", jobq_now());
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
		append_time(&buf, "run_at", job_run_at(job));
	appendStringInfoChar(&buf, '}');
	return jobq_text_to_jsonb(buf.data);
}

/*
 * Enqueue a job for each handler of the event.  See jobq_event().
 */
void
jobq_event_raise(JobqEvent event, const JobqJob *job, int sqlerrcode,
				 const char *message)
{
	const char *kind = jobq_job_kind(job);
	JobqQueue	buffer;
	const JobqQueue *queue;
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context;
	Listener   *heard;
	int			nheard = 0;
	Datum		payload = (Datum) 0;

	if (strncmp(kind, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		return;
	load();
	if (nlisteners == 0)
		return;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	load();

	/* many jobs may end in one statement */
	context = AllocSetContextCreate(caller, "jobq event", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(context);

	/* what follows may empty the cache */
	heard = palloc(sizeof(Listener) * Max(nlisteners, 1));
	for (int i = 0; i < nlisteners; i++)
		if (listeners[i].event == (int) event &&
			(listeners[i].kind[0] == '\0' || strcmp(listeners[i].kind, kind) == 0) &&
			(listeners[i].queue[0] == '\0' ||
			 (queue != NULL && strcmp(listeners[i].queue, queue->name) == 0)))
			heard[nheard++] = listeners[i];
	if (nheard > 0)
		payload = describe(event, job, kind, queue == NULL ? "" : queue->name,
						   sqlerrcode, message);
	for (int i = 0; i < nheard; i++)
	{
		JobqQueue	target_buffer;
		const JobqQueue *target;

		if (!may_hear(heard[i].role, job))
			continue;
		target = jobq_follow_up_queue(0, heard[i].handler, &target_buffer);
		if (may_enqueue(heard[i].role, heard[i].handler, target))
			jobq_follow_up(psprintf(ON_EVENT_PREFIX "%s", heard[i].handler),
						   target->id, heard[i].role, payload, NULL, NULL);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
