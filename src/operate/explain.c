/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  explain_job(): why a job does not run, or what it waits for while it runs.
 *
 * What the tables and the server's own views tell is asked in SQL
 * (control/parts/75-explain.sql); here is what shared memory and the settings
 * tell: whether anybody serves the job's queue, limits, workers.
 *
 * Nothing is changed, and no row is locked.  All is as of the moment in which it
 * is read: a job that is about to start may have begun when the answer arrives.
 *
 * src/operate/explain.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_explain_job);

enum
{
	REASON, DETAIL, REMEDY, NATTS
};

/* The answer as far as it is given. */
typedef struct Explain
{
	ReturnSetInfo *rsinfo;
	int64		id;
	bool		sees_all;		/* the user may see jobs of all roles */
	int			n;				/* reasons so far */
} Explain;

/* The workers that could run the job. */
typedef struct Crew
{
	int			size;			/* workers that the pools may have */
	int			there;
	int			idle;			/* of the job's role */
	int			cluster;		/* workers of all databases */
	StringInfoData busy;
} Crew;

static void add(Explain *e, const char *reason, const char *detail,
				const char *remedy);
static char *time_text(TimestampTz at);
static void ask_tables(Explain *e, const char *function, const char *more);
static void finished(Explain *e, const JobqStatus *status);
static void running(Explain *e);
static void waiting(Explain *e, const JobqJob *job);
static bool served(Explain *e, const JobqQueue *queue, JobqDatabase **db);
static void limits(Explain *e, JobqDatabase *db, const JobqJob *job,
				   const JobqQueue *queue);
static void key_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
					   const JobqQueue *queue);
static void tenant_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
						  const JobqQueue *queue);
static void when_taken(Explain *e, JobqDatabase *db, const char *name, uint32 limiter,
					   uint32 key);
static void pace(Explain *e, const char *what, bool by_group, bool resting,
				 TimestampTz rest_until, bool may_start, TimestampTz due);
static bool taken_along(Explain *e, JobqDatabase *db);
static bool consumer_waits(JobqDatabase *db, const JobqJob *job);
static void workers(Explain *e, JobqDatabase *db, const JobqJob *job,
					const JobqQueue *queue);
static void explain(Explain *e, const JobqStatus *status);

static void
add(Explain *e, const char *reason, const char *detail, const char *remedy)
{
	Datum		values[NATTS];
	bool		nulls[NATTS] = {0};

	values[REASON] = CStringGetTextDatum(reason);
	values[DETAIL] = CStringGetTextDatum(detail);
	nulls[REMEDY] = remedy == NULL;
	if (remedy != NULL)
		values[REMEDY] = CStringGetTextDatum(remedy);
	tuplestore_putvalues(e->rsinfo->setResult, e->rsinfo->setDesc, values, nulls);
	e->n++;
}

/*
 * A time as the session shows times, to the second.
 */
static char *
time_text(TimestampTz at)
{
	return DatumGetCString(DirectFunctionCall1(timestamptz_out,
											   TimestampTzGetDatum(at - at % USECS_PER_SEC)));
}

/*
 * Add what one of the functions in SQL tells of the job.  more: a further
 * argument, or "".
 */
static void
ask_tables(Explain *e, const char *function, const char *more)
{
	static const Oid types[] = {INT8OID, OIDOID, BOOLOID};
	static const Oid columns[NATTS] = {TEXTOID, TEXTOID, TEXTOID};
	Datum		args[] = {
		Int64GetDatum(e->id), ObjectIdGetDatum(GetUserId()),
		BoolGetDatum(e->sees_all)
	};
	char	   *query = psprintf("SELECT reason, detail, remedy FROM jobq_internal.%s($1, $2, $3%s)",
								 function, more);
	uint64		n;

	SPI_connect();
	n = jobq_query(query, 3, types, args, NULL, SPI_OK_SELECT);
	jobq_check_types(SPI_tuptable->tupdesc, columns, NATTS);
	for (uint64 i = 0; i < n; i++)
	{
		Datum		values[NATTS];
		bool		nulls[NATTS];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, values,
						  nulls);
		tuplestore_putvalues(e->rsinfo->setResult, e->rsinfo->setDesc, values,
							 nulls);
	}
	e->n += (int) n;
	SPI_finish();
	pfree(query);
}

/*
 * The job is over.
 */
static void
finished(Explain *e, const JobqStatus *status)
{
	char	   *at = status->nulls[ST_FINISHED_AT] ? NULL
		: time_text(DatumGetTimestampTz(status->values[ST_FINISHED_AT]));
	char	   *error = status->nulls[ST_ERROR] ? NULL
		: TextDatumGetCString(status->values[ST_ERROR]);

	add(e, status->state,
		psprintf("it is over%s%s%s%s", at != NULL ? " since " : "",
				 at != NULL ? at : "", error != NULL ? ": " : "",
				 error != NULL ? error : ""),
		strcmp(status->state, "failed") == 0
		? psprintf("SELECT jobq.retry(" INT64_FORMAT ")", e->id) : NULL);
}

/*
 * A worker runs the job, or a consumer holds it.
 */
static void
running(Explain *e)
{
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot = db == NULL ? NULL : jobq_slot_of_job(db, e->id);
	bool		stopping = false;
	TimestampTz deadline = DT_NOEND;
	int			pid = 0;

	ask_tables(e, "explain_running", "");
	if (slot == NULL)
		return;
	SpinLockAcquire(&slot->mutex);
	if (slot->job_id == e->id)
	{
		stopping = slot->stop == JOBQ_STOP_CANCEL && slot->stop_job == e->id;
		deadline = slot->deadline;
		pid = slot->pid;
	}
	SpinLockRelease(&slot->mutex);
	if (stopping)
		add(e, "cancelling", "it was cancelled, and its handler has not ended yet",
			psprintf("SELECT pg_terminate_backend(%d)", pid));
	if (deadline != DT_NOEND)
		add(e, "timeout", psprintf("its timeout ends it at %s",
								   time_text(deadline)), NULL);
}

/*
 * Does anybody serve the database and the queue at all?  Then *db is what shared
 * memory has.
 */
static bool
served(Explain *e, const JobqQueue *queue, JobqDatabase **db)
{
	bool		has = jobq_has_scheduler(db);

	if (jobq_shared == NULL)
	{
		add(e, "not_loaded", "the server runs without jobq",
			"add jobq to \"shared_preload_libraries\", and restart the server");
		return false;
	}
	if (RecoveryInProgress())
	{
		add(e, "standby", "the server is a standby", "promote it, or ask the primary");
		return false;
	}
	if (!has || *db == NULL || (*db)->scheduler == NULL)
	{
		add(e, "not_served",
			psprintf("no scheduler runs for database \"%s\"",
					 get_database_name(MyDatabaseId)),
			"see that \"jobq.databases\" names it, and what the server's log says");
		return false;
	}
	if (queue->mode != MODE_WORKER)
		return true;
	if (jobq_start_paused)
		add(e, "start_paused", "\"jobq.start_paused\" is on",
			"ALTER SYSTEM SET jobq.start_paused = off; SELECT pg_reload_conf()");
	if (!jobq_pools_serve(queue->name))
		add(e, "no_pool",
			psprintf("no pool of \"jobq.workers\" with workers serves queue \"%s\"",
					 queue->name),
			"name the queue in \"jobq.workers\", with a number of workers, and reload");
	return true;
}

/*
 * What a limiter or a group tells of its rate and its rest.
 */
static void
pace(Explain *e, const char *what, bool by_group, bool resting,
	 TimestampTz rest_until, bool may_start, TimestampTz due)
{
	if (resting)
		add(e, "throttle",
			psprintf("%s rests until %s, because attempts have failed",
					 what, time_text(rest_until)),
			"mend what fails, or change its throttle");
	else if (!may_start)
		add(e, "rate",
			psprintf("by the rate of %s, the next may start at %s", what,
					 time_text(due)),
			by_group ? "raise the rate of its queue" : "raise its rate");
}

/*
 * What becomes of the job if all places of the limiter, or of its key there, are taken
 * and it does not wait for one.
 */
static void
when_taken(Explain *e, JobqDatabase *db, const char *name, uint32 limiter, uint32 key)
{
	JobqTakenBy by = {0};
	bool		ending;
	bool		taken;

	LWLockAcquire(db->lock, LW_SHARED);
	taken = jobq_places_taken(db, limiter, key, &by, &ending);
	LWLockRelease(db->lock);
	if (!taken)
		return;
	add(e, "when_taken",
		psprintf(by.when_taken == JOBQ_WHEN_TAKEN_SKIP
				 ? "by when_taken of %s it is cancelled when it is its turn"
				 : by.when_taken == JOBQ_WHEN_TAKEN_RELEASE
				 ? "by when_taken of %s it comes again later"
				 : "by when_taken of %s it replaces older jobs of its own role, and waits for others",
				 name),
		NULL);
}

/*
 * What limits the job beside its queue, for people: its kind, or a named limiter.
 */
static char *
limiter_name(const char *kind, uint32 limiter)
{
	static const Oid types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum((int32) limiter)};
	char	   *name = NULL;

	if (limiter == 0 || limiter == jobq_kind_hash(kind))
		return psprintf("kind \"%s\"", kind);
	SPI_connect();
	if (jobq_query("SELECT name FROM jobq.limiter"
				   " WHERE jobq_internal.limiter_hash(name) = $1",
				   1, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		Datum		found = jobq_column(SPI_tuptable->vals[0],
										SPI_tuptable->tupdesc, 1, TEXTOID, NULL);

		name = SPI_palloc(JOBQ_MAX_LIMITER_NAME + 1);
		text_to_cstring_buffer(DatumGetTextPP(found), name,
							   JOBQ_MAX_LIMITER_NAME + 1);
	}
	SPI_finish();
	return psprintf("limiter \"%s\"", name == NULL ? "" : name);
}

/*
 * Does the job stand in the lane of a limiter that its kind or queue has left?  It is
 * moved when it is its turn there.
 */
static void
left_limiter(Explain *e, JobqDatabase *db, const JobqJob *job, uint32 limiter)
{
	uint32	   *all;
	int			n = 0;

	if (job_flow(job) == 0 || job_flow(job) == jobq_flow_with(job, limiter))
		return;
	all = palloc(sizeof(uint32) * jobq_max_limiters);
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use && db->limits->limiters[i].kind != 0)
			all[n++] = db->limits->limiters[i].kind;
	LWLockRelease(db->lock);
	for (int i = 0; i < n; i++)
		if (jobq_limit_cost(job, all[i]) > 0 &&
			job_flow(job) == jobq_flow_with(job, all[i]))
			add(e, "limit",
				psprintf("it stands in the line of %s, which it has left, and leaves when it is its turn there",
						 limiter_name(jobq_job_kind(job), all[i])),
				psprintf("SELECT jobq.reschedule(" INT64_FORMAT ", now())",
						 job_id(job)));
}

/*
 * The limits of the job's queue and kind, and the pace of its group.
 */
static void
limits(Explain *e, JobqDatabase *db, const JobqJob *job, const JobqQueue *queue)
{
	uint16		index[2];
	JobqLimiter limiter[2];
	bool		may_start[2] = {true, true};
	TimestampTz due[2] = {DT_NOEND, DT_NOEND};
	JobqPace	group_pace = {0};
	bool		group_free = true;
	TimestampTz group_due = DT_NOEND;
	TimestampTz now = jobq_now();
	const char *kind = jobq_job_kind(job);
	uint32		limiter_hash = jobq_job_limiter(job, queue);
	char	   *name[2];

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	index[0] = jobq_limiter_find(db, job_queue_id(job), 0);
	index[1] = limiter_hash == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(db, 0, limiter_hash);
	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *found;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		found = &db->limits->limiters[index[i]];
		if (!found->rate.by_group)
			may_start[i] = jobq_pace_free(&found->rate, &found->pace, now, &due[i]);
		limiter[i] = *found;
	}
	if (job_group(job) != 0)
	{
		JobqGroup  *group = jobq_group_find(db, job_group(job));

		if (group != NULL && group->limiter != JOBQ_NO_LIMITER)
		{
			JobqLimiter *policy = &db->limits->limiters[group->limiter];
			JobqRate	none = {0};

			group_free = jobq_pace_free(policy->rate.by_group ? &policy->rate : &none,
										&group->pace, now, &group_due);
			group_pace = group->pace;
		}
	}
	LWLockRelease(db->lock);

	name[0] = psprintf("queue \"%s\"", queue->name);
	name[1] = limiter_name(kind, limiter_hash);
	for (int i = 0; i < 2; i++)
	{
		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		if (limiter[i].max_running > 0 && limiter[i].running >= limiter[i].max_running)
			ask_tables(e, "explain_limit", i == 0 ? ", false" : ", true");
		if (i == 1 && !jobq_limiter_is_keyed(limiter_hash))
			when_taken(e, db, name[i], limiter_hash, 0);
		pace(e, name[i], false, limiter[i].pace.rest_until > now,
			 limiter[i].pace.rest_until, may_start[i], due[i]);
	}
	left_limiter(e, db, job, jobq_limiter_of(kind, queue));
	pace(e, "its group", true, group_pace.rest_until > now, group_pace.rest_until,
		 group_free, group_due);
}

/*
 * The limits of its tenant.
 */
static void
tenant_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
			  const JobqQueue *queue)
{
	const char *tenant = jobq_job_tenant(job, queue);
	TimestampTz now = jobq_now();
	JobqTenantState state;
	bool		limited;
	char	   *what;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	limited = jobq_tenant_state(db, queue->id, jobq_tenant_hash(tenant), now,
								&state);
	LWLockRelease(db->lock);
	if (!limited)
		return;
	what = tenant == NULL ? psprintf("jobs without a tenant in queue \"%s\"", queue->name)
		: psprintf("tenant \"%s\" of queue \"%s\"", tenant, queue->name);
	if (state.max_running > 0 && state.running >= state.max_running)
		add(e, "limit",
			psprintf("of %s %d may run at a time, and they do", what,
					 state.max_running),
			psprintf("SELECT jobq.alter_queue(%s, tenant_max_running => %d)",
					 quote_literal_cstr(queue->name), state.max_running + 1));
	else if (state.paced && state.tokens < 1)
		add(e, "rate",
			psprintf("by the rate of %s, the next may start at %s", what,
					 time_text(state.due)),
			psprintf("raise tenant_rate of queue \"%s\"", queue->name));
}

/*
 * The limits of its key.
 */
static void
key_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
		   const JobqQueue *queue)
{
	uint32		limiter = jobq_job_limiter(job, queue);
	const char *name;
	TimestampTz now = jobq_now();
	JobqTenantState state;
	bool		limited;

	if (!jobq_limiter_is_keyed(limiter))
		return;
	name = limiter_name(jobq_job_kind(job), limiter);
	if (jobq_flow_is_limited_twice(job))
		add(e, "limit",
			psprintf("%s is by a key, and queue \"%s\" limits its tenants: no job can have both",
					 name, queue->name),
			psprintf("SELECT jobq.alter_queue(%s, tenant_max_running => 0, tenant_rate => 'none')",
					 quote_literal_cstr(queue->name)));
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	limited = jobq_tenant_state(db, JOBQ_KEYS_OF(limiter),
								jobq_limit_key(job, limiter, jobq_job_tenant(job, queue)),
								now, &state);
	LWLockRelease(db->lock);
	if (!limited)
		return;
	if (state.max_running > 0 && state.running >= state.max_running)
		add(e, "limit",
			psprintf("of its key at %s %d may run at a time, and they do", name,
					 state.max_running),
			psprintf("raise max_running of %s", name));
	else if (state.paced && state.tokens < 1)
		add(e, "rate",
			psprintf("by the rate of its key at %s, the next may start at %s", name,
					 time_text(state.due)),
			psprintf("raise the rate of %s", name));
	when_taken(e, db, name, limiter,
			   jobq_limit_key(job, limiter, jobq_job_tenant(job, queue)));
}

/*
 * Has a worker taken the job along, for when it is done with its current one?
 */
static bool
taken_along(Explain *e, JobqDatabase *db)
{
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		bool		match = false;
		int64		current;
		int			pid;

		if (slot->state != JOBQ_SLOT_ATTACHED ||
			slot->database != db - jobq_shared->databases)
			continue;
		SpinLockAcquire(&slot->mutex);
		for (uint32 k = slot->holding->next; k < slot->holding->count && !match; k++)
			match = slot->holding->prefetched[k].key.id == e->id;
		current = slot->job_id;
		pid = slot->pid;
		SpinLockRelease(&slot->mutex);
		if (!match)
			continue;
		add(e, "next",
			current == 0 ? psprintf("worker %d is about to start it", pid)
			: psprintf("worker %d runs it after job " INT64_FORMAT ", unless another one is free before",
					   pid, current),
			NULL);
		return true;
	}
	return false;
}

/*
 * Does a consumer wait that may take the job?
 */
static bool
consumer_waits(JobqDatabase *db, const JobqJob *job)
{
	bool		found = false;

	LWLockAcquire(db->lock, LW_SHARED);
	for (uint32 i = db->offers->head; i != JOBQ_NONE && !found;
		 i = db->offers->reservers[i].next)
	{
		const JobqReserver *reserver = &db->offers->reservers[i];
		bool		takes = false;
		bool		may = reserver->any_role;

		for (int q = 0; q < reserver->nqueues; q++)
			takes |= reserver->queue_ids[q] == job_queue_id(job);
		for (int r = 0; r < reserver->nallowed; r++)
			may |= reserver->roles[r] == job_role(job);
		found = takes && may;
	}
	LWLockRelease(db->lock);
	return found;
}

/*
 * The workers of the pools that serve the queue.
 */
static void
workers(Explain *e, JobqDatabase *db, const JobqJob *job, const JobqQueue *queue)
{
	Crew		crew = {0};
	TimestampTz refused_at;

	initStringInfo(&crew.busy);
	for (int p = 0; p < jobq_pools()->npools; p++)
		if (jobq_pool_serves(p, queue->name))
			crew.size += jobq_pools()->pools[p].workers;
	for (int i = 0; i < jobq_shared->nslots; i++)
	{
		JobqSlot   *slot = &jobq_shared->slots[i];
		bool		there;
		Oid			role;
		int64		current;
		int32		queue_id;
		int			pid;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		there = slot->state == JOBQ_SLOT_STARTING || slot->state == JOBQ_SLOT_ATTACHED;
		crew.cluster += there;
		there = there && slot->database == db - jobq_shared->databases &&
			jobq_pool_serves(slot->pool, queue->name);
		role = slot->role;
		pid = slot->state == JOBQ_SLOT_ATTACHED ? slot->pid : 0;
		SpinLockAcquire(&slot->mutex);
		current = slot->job_id;
		queue_id = slot->queue_id;
		SpinLockRelease(&slot->mutex);
		LWLockRelease(jobq_shared->lock);
		if (!there)
			continue;
		crew.there++;
		crew.idle += role == job_run_as(job) && (pid == 0 || current == 0);
		if (current == 0 || pid == 0)
			continue;
		if (e->sees_all || jobq_may(JOBQ_MAY_MONITOR, role, queue_id))
			appendStringInfo(&crew.busy, "%sjob " INT64_FORMAT,
							 crew.busy.len > 0 ? ", " : "", current);
		else
			appendStringInfo(&crew.busy, "%sone of another role",
							 crew.busy.len > 0 ? ", " : "");
	}
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	refused_at = jobq_shared->refused_at;
	LWLockRelease(jobq_shared->lock);

	if (crew.idle > 0)
		return;
	if (crew.there >= crew.size)
		add(e, "busy",
			psprintf("the workers that serve queue \"%s\" are busy, %d of %d: %s",
					 queue->name, crew.there, crew.size,
					 crew.busy.len > 0 ? crew.busy.data : "others' jobs"),
			"wait, or give the pool more workers in \"jobq.workers\", and reload");
	else if (crew.cluster >= jobq_shared->nslots)
		add(e, "places",
			psprintf("all %d workers of \"jobq.max_workers\" are taken", crew.cluster),
			"wait, or raise \"jobq.max_workers\", and restart the server");
	else if (refused_at > jobq_now() - USECS_PER_MINUTE)
		add(e, "places", "the server has no place for another worker process",
			"wait, or raise \"max_worker_processes\", and restart the server");
}

/*
 * The job waits.
 */
static void
waiting(Explain *e, const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqDatabase *db;
	const char *why;
	bool		is_served;

	if (queue == NULL)
	{
		add(e, "no_queue", "its queue does not exist", NULL);
		return;
	}
	is_served = served(e, queue, &db);
	why = queue->mode == MODE_WORKER ? jobq_run_as_refused(job, queue) : NULL;
	if (why != NULL)
		add(e, "run_as",
			psprintf("it may not run as queue \"%s\" says, and fails when its turn comes: %c%.*s",
					 queue->name, pg_tolower((unsigned char) why[0]),
					 (int) strlen(why) - 2, why + 1),
			jobq_run_as_problem(queue) == NULL ? NULL
			: psprintf("SELECT jobq.alter_queue(%s, run_as => ...), by a role that can SET ROLE to that one",
					   quote_literal_cstr(queue->name)));
	ask_tables(e, "explain_waiting", "");
	if (!is_served || job_run_at(job) > jobq_now())
		return;
	limits(e, db, job, queue);
	if (queue->tenants_limited)
		tenant_limits(e, db, job, queue);
	key_limits(e, db, job, queue);
	if (DatumGetInt16(JOB(job, JOB_CRASHES)) > 0 &&
		db->ready->quarantine_slot >= 0)
		add(e, "quarantine", "it has crashed a server process, and of such jobs one runs at a time", NULL);
	if (queue->mode == MODE_CONSUMER)
	{
		if (!consumer_waits(db, job))
			add(e, "no_consumer",
				psprintf("no consumer waits for a job of queue \"%s\"", queue->name),
				psprintf("a program that calls jobq.reserve(), such as: jobq work %s",
						 quote_literal_cstr(queue->name)));
	}
	else if (e->n == 0 && !taken_along(e, db))
		workers(e, db, job, queue);
}

/*
 * Explain the state in which the job was found.
 */
static void
explain(Explain *e, const JobqStatus *status)
{
	if (status->finished)
		finished(e, status);
	else if (status->own && strcmp(status->state, "running") == 0)
		add(e, "running", "this session runs it", NULL);
	else if (status->own)
		add(e, "uncommitted", "this transaction has written it, and has not committed",
			"COMMIT");
	else if (strcmp(status->state, "running") == 0)
		running(e);
	else
	{
		Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		JobqJob		job;

		if (jobq_job_find(rel, e->id, snapshot, &job))
			waiting(e, &job);
		UnregisterSnapshot(snapshot);
		table_close(rel, NoLock);
	}
}

/*
 * explain_job(id): a row for each reason.
 */
Datum
jobq_explain_job(PG_FUNCTION_ARGS)
{
	Explain		e = {0};

	e.id = PG_GETARG_INT64(0);
	e.sees_all = (jobq_privileges(0) & JOBQ_MAY_MONITOR) != 0;
	e.rsinfo = jobq_materialize(fcinfo, NATTS);

	/* its state may change between two looks */
	for (int i = 0; i < 3 && e.n == 0; i++)
	{
		JobqStatus	status = {0};

		jobq_look_up(e.id, &status);
		explain(&e, &status);
	}
	if (e.n == 0)
		add(&e, "soon", "nothing is in its way: it starts in its turn", NULL);
	jobq_flush_before_telling();
	return (Datum) 0;
}
