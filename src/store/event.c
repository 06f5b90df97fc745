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
 * has, and those of queues that it monitors.  Which handlers these are for the jobs of
 * a role in a queue, its audience, is kept until handlers, roles or privileges change,
 * so that nobody pays for handlers that do not hear of his jobs.  Whether a handler's
 * role may still enqueue is asked at each event.  The payload tells what such a role
 * sees in the views: nothing that the job carries.  Its trace goes on to those that have
 * the privileges of its role.
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
#include "utils/hsearch.h"
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

/* Of which jobs, and their event. */
typedef struct AudienceKey
{
	Oid			role;
	int32		queue_id;
	int32		event;
} AudienceKey;

typedef struct Audience
{
	AudienceKey key;
	int			n;
	int		   *members;		/* places in listeners */
} Audience;

/* So many audiences, or members of all, then all are looked for anew. */
#define MAX_AUDIENCES	1024
#define MAX_MEMBERS		65536

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

/* in a context of their own, as the handlers and the privileges were then */
static HTAB *audiences = NULL;
static MemoryContext audience_context = NULL;
static int	nmembers = 0;
static uint64 audience_changes = 0;
static uint64 audience_privileges = 0;

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
 * Forget the audiences if they are outdated.
 */
static void
check_audiences(void)
{
	if (audience_changes == changes &&
		audience_privileges == jobq_privileges_changes())
		return;
	if (audience_context != NULL)
		MemoryContextDelete(audience_context);
	audience_context = NULL;
	audience_changes = changes;
	audience_privileges = jobq_privileges_changes();
}

/*
 * Keep an audience.
 */
static void
keep_audience(const AudienceKey *key, const int *members, int n)
{
	int		   *copy;
	Audience   *audience;

	if (audience_context != NULL &&
		(hash_get_num_entries(audiences) >= MAX_AUDIENCES ||
		 nmembers + n > MAX_MEMBERS))
	{
		MemoryContextDelete(audience_context);
		audience_context = NULL;
	}
	if (audience_context == NULL)
	{
		HASHCTL		ctl = {0};
		MemoryContext context = AllocSetContextCreate(CacheMemoryContext,
													  "jobq audiences",
													  ALLOCSET_SMALL_SIZES);

		ctl.keysize = sizeof(AudienceKey);
		ctl.entrysize = sizeof(Audience);
		ctl.hcxt = context;
		audiences = hash_create("jobq audiences", 64, &ctl,
								HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		audience_context = context;
		nmembers = 0;
	}
	copy = MemoryContextAlloc(audience_context, sizeof(int) * Max(n, 1));
	memcpy(copy, members, sizeof(int) * n);
	audience = hash_search(audiences, key, HASH_ENTER, NULL);
	audience->members = copy;
	audience->n = n;
	nmembers += n;
	jobq_cache_filled();
}

/*
 * Who hears of the event of this job, of whichever kind: places in listeners, valid
 * until anything is read again.
 */
static const int *
audience_of(JobqEvent event, const JobqJob *job, const JobqQueue *queue, int *n)
{
	static int *members = NULL;
	static int	max_members = 0;
	AudienceKey key = {job_role(job), job_queue_id(job), (int32) event};
	const Audience *known;

	check_audiences();
	if (audience_context != NULL &&
		(known = hash_search(audiences, &key, HASH_FIND, NULL)) != NULL)
	{
		*n = known->n;
		return known->members;
	}
	members = jobq_grow(members, &max_members, nlisteners, sizeof(int));
	*n = 0;
	for (int i = 0; i < nlisteners; i++)
		if (listeners[i].event == (int) event &&
			(listeners[i].queue[0] == '\0' ||
			 (queue != NULL && strcmp(listeners[i].queue, queue->name) == 0)) &&
			may_hear(listeners[i].role, job))
			members[(*n)++] = i;

	/* unless what was found is outdated already */
	if (valid && audience_changes == changes &&
		audience_privileges == jobq_privileges_changes())
		keep_audience(&key, members, *n);
	return members;
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
	MemoryContext context = NULL;
	const int  *audience;
	int			naudience;
	Listener   *heard = NULL;
	int			nheard = 0;
	Datum		payload;
	const char *headers;

	if (strncmp(kind, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0)
		return;
	load();
	if (nlisteners == 0)
		return;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	load();

	audience = audience_of(event, job, queue, &naudience);
	for (int i = 0; i < naudience; i++)
	{
		const		Listener *listener = &listeners[audience[i]];

		if (listener->kind[0] != '\0' && strcmp(listener->kind, kind) != 0)
			continue;

		/* many jobs may end in one statement */
		if (context == NULL)
		{
			context = AllocSetContextCreate(caller, "jobq event",
											ALLOCSET_SMALL_SIZES);
			MemoryContextSwitchTo(context);
			heard = palloc(sizeof(Listener) * naudience);
		}
		/* what follows may empty the cache */
		heard[nheard++] = *listener;
	}
	if (nheard == 0)
		return;
	payload = describe(event, job, kind, queue == NULL ? "" : queue->name,
					   sqlerrcode, message);
	headers = jobq_trace_headers(job);
	for (int i = 0; i < nheard; i++)
	{
		JobqQueue	target_buffer;
		const JobqQueue *target;

		target = jobq_follow_up_queue(0, heard[i].handler, &target_buffer);
		if (may_enqueue(heard[i].role, heard[i].handler, target))
			jobq_follow_up(psprintf(ON_EVENT_PREFIX "%s", heard[i].handler),
						   target->id, heard[i].role, payload,
						   has_privs_of_role(heard[i].role, job_role(job)) ? headers : NULL,
						   NULL);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
}
