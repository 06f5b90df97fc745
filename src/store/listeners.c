/*-------------------------------------------------------------------------
 *
 * listeners.c
 *	  Registrations of on_event(): which handlers receive which events.
 *
 * All registrations are cached per backend, with a mask of the events with handlers.  The
 * cache is invalidated like that of queues (queues.c).
 *
 * A handler's role receives events of objects that the role may see: jobs, batches and
 * schedules of roles whose privileges the role has; jobs in monitored queues; all objects with
 * the privilege to monitor all queues.  Alerts belong to the owner of the extension in this
 * respect.  The handlers for events of a role's objects in a queue are their audience.
 * Audiences are cached until handlers, roles or privileges change, so that a role causes no
 * cost for handlers that do not receive its events.
 *
 * A handler called within a job's transaction counts as registered for a separate event.  Only
 * the role under which the job runs receives this event.
 *
 * src/store/listeners.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/store.h"

/* Object and event of an audience. */
typedef struct AudienceKey
{
	Oid			role;
	int32		queue_id;		/* 0: not a job */
	int32		event;
} AudienceKey;

typedef struct Audience
{
	AudienceKey key;
	int			n;
	int		   *members;		/* indexes into listeners */
} Audience;

/*
 * Maximum numbers of audiences and of members of all audiences.  Beyond, the cache is cleared.
 */
#define MAX_AUDIENCES	1024
#define MAX_MEMBERS		65536

/*
 * Names of the events, whether a handler can choose by queue and by kind, and a hint if not.
 */
#define OF_JOBS			true, true, NULL
#define OF_BATCHES		false, false, "A batch has jobs of several queues and kinds: leave it out."
#define OF_SCHEDULES	false, true, "A schedule has a kind, and no queue: leave the queue out."

static const struct
{
	const char *word;
	bool		by_queue;
	bool		by_kind;
	const char *hint;
}			events[JOBQ_NEVENTS] = {
	[JOBQ_EVENT_STARTED] = {"started", OF_JOBS},
	[JOBQ_EVENT_COMPLETED] = {"completed", OF_JOBS},
	[JOBQ_EVENT_FAILED] = {"failed", OF_JOBS},
	[JOBQ_EVENT_RETRY] = {"retry", OF_JOBS},
	[JOBQ_EVENT_DEAD] = {"dead", OF_JOBS},
	[JOBQ_EVENT_CANCELLED] = {"cancelled", OF_JOBS},
	[JOBQ_EVENT_EXPIRED] = {"expired", OF_JOBS},
	[JOBQ_EVENT_BATCH_COMPLETED] = {"batch_completed", OF_BATCHES},
	[JOBQ_EVENT_BATCH_FAILED] = {"batch_failed", OF_BATCHES},
	[JOBQ_EVENT_BATCH_CANCELLED] = {"batch_cancelled", OF_BATCHES},
	[JOBQ_EVENT_SCHEDULE_MISSED] = {"schedule_missed", OF_SCHEDULES},
	[JOBQ_EVENT_SCHEDULE_FAILED] = {"schedule_failed", OF_SCHEDULES},
	[JOBQ_EVENT_ALERT_BEGAN] = {"alert_began", OF_JOBS},
	[JOBQ_EVENT_ALERT_ENDED] = {"alert_ended", OF_JOBS},
};

static JobqListener *listeners = NULL;
static int	nlisteners = 0;
static int	max_listeners = 0;
static bool valid = false;		/* the list matches the table */
static Oid	event_relation = InvalidOid;	/* source of the cache */

/* count of invalidations and aborts */
static uint64 changes = 0;

/* in their own context; valid for these handlers and privileges */
static HTAB *audiences = NULL;
static MemoryContext audience_context = NULL;
static int	nmembers = 0;
static uint64 audience_changes = 0;
static uint64 audience_privileges = 0;

/* all events, until the table is read */
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

/* Register the cache for invalidation.  Called once per process. */
void
jobq_listeners_install(void)
{
	jobq_cache_join(&cache);
}

/* Return the name of the event with this number, or NULL if there is none. */
const char *
jobq_event_word(int event)
{
	return event >= 0 && event < JOBQ_NEVENTS ? events[event].word : NULL;
}

/*
 * Return why a handler of the event cannot choose by queue, or by kind, or NULL if it can.
 */
const char *
jobq_event_refuses(int event, bool by_kind)
{
	return (by_kind ? events[event].by_kind : events[event].by_queue) ? NULL
		: events[event].hint;
}

/*
 * Return the event for handlers called within the job's transaction, or -1 if there is none.
 */
int
jobq_event_within(int event)
{
	return event == JOBQ_EVENT_STARTED ? JOBQ_WITHIN_STARTED
		: event == JOBQ_EVENT_COMPLETED ? JOBQ_WITHIN_COMPLETED : -1;
}

/* Read a row.  Returns false if the library does not know the event. */
static bool
read_listener(Relation rel, HeapTuple tuple, JobqListener *listener)
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
		if (strcmp(events[listener->event].word, word) == 0)
			break;
	if (listener->event == JOBQ_NEVENTS)
		return false;
	listener->required = DatumGetBool(values[EVENT_HANDLER_REQUIRED - 1]);
	if (DatumGetBool(values[EVENT_HANDLER_WITHIN - 1]))
		listener->event = jobq_event_within(listener->event);
	return listener->event >= 0;
}

/* Read all registrations, unless they are cached. */
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
							  sizeof(JobqListener));
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
 * Return whether the handler's role receives events of the role's objects in this queue, or
 * without a queue (0).  Within a job's transaction, only the role of the job receives events.
 */
static bool
may_hear(JobqEvent event, Oid listener, Oid role, int32 queue_id)
{
	if (event >= JOBQ_NEVENTS)
		return listener == role;
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(listener)) &&
		(has_privs_of_role(listener, role) ||
		 (jobq_privileges_of(listener, queue_id) & JOBQ_MAY_MONITOR) != 0);
}

/* Clear the audiences if they are outdated. */
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

/* Cache an audience. */
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
 * Return the audience of the event of the role's objects in this queue, for all kinds: indexes
 * into listeners, valid until the tables are read again.
 */
static const int *
audience_of(JobqEvent event, Oid role, int32 queue_id, const char *queue, int *n)
{
	static int *members = NULL;
	static int	max_members = 0;
	AudienceKey key = {role, queue_id, (int32) event};
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
			(queue_id == 0 || listeners[i].queue[0] == '\0' ||
			 strcmp(listeners[i].queue, queue) == 0) &&
			may_hear(event, listeners[i].role, role, queue_id))
			members[(*n)++] = i;

	/* unless the result is already outdated */
	if (valid && audience_changes == changes &&
		audience_privileges == jobq_privileges_changes())
		keep_audience(&key, members, *n);
	return members;
}

/*
 * Return the handlers for the event of an object of this role, as a copy in the current memory
 * context, or NULL if there are none.  For a job, queue_id and queue are its queue.  For
 * another object, queue_id is 0, and queue is the queue concerned, or NULL. kind may be NULL.
 */
JobqListener *
jobq_listeners(JobqEvent event, Oid role, int32 queue_id, const char *queue,
			   const char *kind, int *n)
{
	const int  *audience;
	int			naudience;
	JobqListener *heard = NULL;

	*n = 0;
	load();
	if (nlisteners == 0)
		return NULL;
	queue = queue == NULL ? "" : queue;
	kind = kind == NULL ? "" : kind;
	audience = audience_of(event, role, queue_id, queue, &naudience);
	for (int i = 0; i < naudience; i++)
	{
		const JobqListener *listener = &listeners[audience[i]];

		if ((listener->kind[0] != '\0' && strcmp(listener->kind, kind) != 0) ||
			(listener->queue[0] != '\0' && strcmp(listener->queue, queue) != 0))
			continue;
		if (heard == NULL)
			heard = palloc(sizeof(JobqListener) * naudience);
		heard[(*n)++] = *listener;
	}
	return heard;
}
