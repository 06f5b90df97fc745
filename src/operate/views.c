/*-------------------------------------------------------------------------
 *
 * views.c
 *	  Functions for the views: rows from shared memory (workers, limits, groups), and
 *	  visibility.
 *
 * src/operate/views.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/supportnodes.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_may_see);
PG_FUNCTION_INFO_V1(jobq_may_see_support);
PG_FUNCTION_INFO_V1(jobq_may_read);
PG_FUNCTION_INFO_V1(jobq_may_see_queue_sql);
PG_FUNCTION_INFO_V1(jobq_may_use_sql);
PG_FUNCTION_INFO_V1(jobq_worker_slots);
PG_FUNCTION_INFO_V1(jobq_member_slots);
PG_FUNCTION_INFO_V1(jobq_scheduler_state);
PG_FUNCTION_INFO_V1(jobq_scheduler_troubles);
PG_FUNCTION_INFO_V1(jobq_limit_slots);
PG_FUNCTION_INFO_V1(jobq_key_slot);
PG_FUNCTION_INFO_V1(jobq_group_slots);

/*
 * may_see(role, queue_id): true if the current user may see the jobs of this role in the
 * queue.  queue_id 0: other objects of the role.
 */
Datum
jobq_may_see(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(jobq_may(JOBQ_MAY_MONITOR, PG_GETARG_OID(0),
							PG_GETARG_INT32(1)));
}

/*
 * may_read(role, queue_id): true if the current user may read their contents.
 */
Datum
jobq_may_read(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(jobq_may(JOBQ_MAY_MANAGE, PG_GETARG_OID(0),
							PG_GETARG_INT32(1)));
}

/*
 * may_see_support(internal): the planner's estimate for may_see().  Most users of the views see
 * almost all rows.  By default, the planner assumes a third of the rows, and then sorts all rows
 * instead of reading the first rows by an index.
 */
Datum
jobq_may_see_support(PG_FUNCTION_ARGS)
{
	Node	   *request = (Node *) PG_GETARG_POINTER(0);

	if (!IsA(request, SupportRequestSelectivity))
		PG_RETURN_POINTER(NULL);
	((SupportRequestSelectivity *) request)->selectivity = 0.9;
	PG_RETURN_POINTER(request);
}

/*
 * may_see_queue(queue_id, open): true if the current user may see the queue.
 */
Datum
jobq_may_see_queue_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(jobq_may_see_queue(PG_GETARG_INT32(0), PG_GETARG_BOOL(1)));
}

/*
 * may_use(): true if the current user has any privilege in jobq.
 */
Datum
jobq_may_use_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(jobq_may_use());
}

/* The jobs that have ended in the worker last, newest first. */
static Datum
last_jobs_of(const JobqSlot *slot)
{
	Datum		ids[JOBQ_LAST_JOBS];
	uint64		ended = slot->jobs_done + slot->jobs_failed;
	int			n = 0;

	for (uint64 i = ended; i > 0 && n < JOBQ_LAST_JOBS; i--)
	{
		int64		id = slot->last_jobs[(i - 1) % JOBQ_LAST_JOBS];

		if (id != 0)
			ids[n++] = Int64GetDatum(id);
	}
	return PointerGetDatum(construct_array(ids, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

/*
 * worker_slots(): a row for each worker of this database, if the user may see the worker or
 * its job.  In a queue with run_as, these have different roles.  Takes jobq_shared->lock in
 * shared mode.
 */
Datum
jobq_worker_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		PID, ROLE, POOL, STATE, STARTED_AT, JOB_ID_, KIND, ATTEMPT_,
		JOB_STARTED_AT, PROGRESS, MESSAGE, JOBS_DONE, JOBS_FAILED, LAST_JOBS, NATTS
	};
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();

	rsinfo = jobq_materialize(fcinfo, NATTS);
	if (db == NULL)
		return (Datum) 0;

	jobq_foreach_slot(slot, db, JOBQ_SLOTS_USED)
	{
		JobqSlot	copy;
		const JobqRun *run = &copy.run;
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};
		bool		readable;
		bool		running;
		bool		sees_job;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		SpinLockAcquire(&slot->mutex);
		memcpy(&copy, slot, sizeof(JobqSlot));
		SpinLockRelease(&slot->mutex);
		LWLockRelease(jobq_shared->lock);

		if (copy.state == JOBQ_SLOT_FREE ||
			copy.database != db - jobq_shared->databases)
			continue;
		running = copy.state == JOBQ_SLOT_ATTACHED && jobq_run_open(run);
		sees_job = running && jobq_may(JOBQ_MAY_MONITOR, run->role, run->queue_id);
		if (!sees_job && !jobq_may(JOBQ_MAY_MONITOR, copy.role, run->queue_id))
			continue;
		readable = sees_job && jobq_may(JOBQ_MAY_MANAGE, run->role, run->queue_id);
		values[PID] = Int32GetDatum(copy.pid);
		nulls[PID] = copy.state != JOBQ_SLOT_ATTACHED;
		values[ROLE] = ObjectIdGetDatum(copy.role);
		values[POOL] = Int32GetDatum(copy.pool + 1);
		values[STATE] =
			CStringGetTextDatum(copy.state == JOBQ_SLOT_STARTING ? "starting"
								: copy.state == JOBQ_SLOT_DEAD ? "exited"
								: copy.retire || copy.yields ? "leaving"
								: copy.spare ? "spare"
								: running ? "running" : "idle");
		values[STARTED_AT] = TimestampTzGetDatum(copy.started_at);
		nulls[STARTED_AT] = nulls[PID];
		values[JOB_ID_] = Int64GetDatum(run->job);
		values[KIND] = CStringGetTextDatum(run->kind);
		values[ATTEMPT_] = Int32GetDatum(run->attempt + 1);
		values[JOB_STARTED_AT] = TimestampTzGetDatum(run->started_at);
		values[PROGRESS] = Float4GetDatum(run->progress);
		values[MESSAGE] = CStringGetTextDatum(run->message);
		nulls[JOB_ID_] = nulls[KIND] = nulls[ATTEMPT_] =
			nulls[JOB_STARTED_AT] = !sees_job;
		nulls[PROGRESS] = !sees_job || run->progress < 0;
		nulls[MESSAGE] = nulls[PROGRESS] || !readable ||
			run->message[0] == '\0';
		values[JOBS_DONE] = Int64GetDatum((int64) copy.jobs_done);
		values[JOBS_FAILED] = Int64GetDatum((int64) copy.jobs_failed);
		values[LAST_JOBS] = last_jobs_of(&copy);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * member_slots(): a row for each job that a worker of this database runs together with others,
 * if the user may see the job.  Takes the mutexes of slots.
 */
Datum
jobq_member_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		JOB_ID_, ATTEMPT_, PID, STARTED_AT, NATTS
	};
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, NATTS);
	JobqDatabase *db = jobq_my_database();
	JobqMembers *members = NULL;

	if (db == NULL)
		return (Datum) 0;
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ATTACHED)
	{
		JobqRun		run;
		int			pid;
		bool		nulls[NATTS] = {0};

		if (slot->members->n == 0)
			continue;
		if (members == NULL)
			members = palloc(sizeof(JobqMembers));
		SpinLockAcquire(&slot->mutex);
		run = slot->run;
		pid = slot->pid;
		members->n = jobq_run_open(&run) ? slot->members->n : 0;
		memcpy(members->jobs, slot->members->jobs, sizeof(JobqMember) * members->n);
		SpinLockRelease(&slot->mutex);
		if (members->n == 0 || !jobq_may(JOBQ_MAY_MONITOR, run.role, run.queue_id))
			continue;
		for (int i = 0; i < members->n; i++)
		{
			Datum		values[NATTS];

			values[JOB_ID_] = Int64GetDatum(members->jobs[i].job);
			values[ATTEMPT_] = Int32GetDatum(members->jobs[i].attempt + 1);
			values[PID] = Int32GetDatum(pid);
			values[STARTED_AT] = TimestampTzGetDatum(run.started_at);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

/*
 * scheduler_state(): a row about this database's scheduler; no row if jobq does not serve the
 * database.  Takes db->lock in shared mode.
 */
Datum
jobq_scheduler_state(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();
	Datum		values[6];
	bool		nulls[6] = {0};

	jobq_require(JOBQ_MAY_ALL);
	rsinfo = jobq_materialize(fcinfo, lengthof(values));
	if (db == NULL)
		return (Datum) 0;
	LWLockAcquire(db->lock, LW_SHARED);
	values[0] = Int32GetDatum(db->scheduler_pid);
	nulls[0] = db->scheduler == NULL;
	values[1] = BoolGetDatum(db->ready->complete);
	values[2] = Int32GetDatum(jobq_ready_entries - (int) db->ready->nfree);
	values[3] = TimestampTzGetDatum(db->wake_at);
	values[4] = Int32GetDatum(db->told->relay_count);
	values[5] = BoolGetDatum(db->copied);
	LWLockRelease(db->lock);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * scheduler_troubles(): a row for each task that the scheduler of this database cannot do at
 * present.  ERROR without the privilege monitor for all queues.  Takes db->lock in shared
 * mode.
 */
Datum
jobq_scheduler_troubles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();
	TimestampTz now = jobq_now();
	JobqSteady	steady = jobq_steady();
	JobqTrouble troubles[JOBQ_MAX_TROUBLES];
	bool		nulls[4] = {0};

	jobq_require_all(JOBQ_MAY_MONITOR, "look at the set-up of jobq");
	rsinfo = jobq_materialize(fcinfo, lengthof(nulls));
	if (db == NULL)
		return (Datum) 0;
	LWLockAcquire(db->lock, LW_SHARED);
	memcpy(troubles, db->troubles, sizeof(troubles));
	LWLockRelease(db->lock);
	for (int i = 0; i < JOBQ_MAX_TROUBLES; i++)
	{
		Datum		values[lengthof(nulls)];

		if (troubles[i].until < steady)
			continue;
		values[0] = CStringGetTextDatum(troubles[i].what);
		/* the clock may have been put back */
		values[1] = TimestampTzGetDatum(Min(troubles[i].since, now));
		values[2] = Int64GetDatum(troubles[i].failures);
		values[3] = CStringGetTextDatum(troubles[i].error);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * limit_slots(): the counters of limits of queues, kinds and limiters, as far as the user may
 * see them.  Takes db->lock in shared mode.
 */
Datum
jobq_limit_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		QUEUE_ID_, KIND_HASH, RUNNING, TOKENS, FAILURES, REST_UNTIL, NATTS
	};
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();
	TimestampTz now = jobq_now();
	JobqLimiter *limiters;
	int			n = 0;

	rsinfo = jobq_materialize(fcinfo, NATTS);
	if (db == NULL)
		return (Datum) 0;
	limiters = palloc(sizeof(JobqLimiter) * jobq_max_limiters);
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use)
			limiters[n++] = db->limits->limiters[i];
	LWLockRelease(db->lock);

	for (int i = 0; i < n; i++)
	{
		JobqLimiter *limiter = &limiters[i];
		bool		paced = limiter->rate.per_us > 0 && !limiter->keyed;
		bool		throttled = limiter->throttle.failures > 0 && !limiter->keyed;
		TimestampTz due = DT_NOEND;
		TimestampTz rest_until;
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};
		JobqQueue	buffer;
		const JobqQueue *queue = limiter->queue_id == 0 ? NULL
			: jobq_queue_by_id(limiter->queue_id, &buffer);

		if (limiter->queue_id == 0 ? !jobq_may_use()
			: queue == NULL || !jobq_may_see_queue(queue->id, queue->open))
			continue;
		values[QUEUE_ID_] = Int32GetDatum(limiter->queue_id);
		nulls[QUEUE_ID_] = limiter->queue_id == 0;
		values[KIND_HASH] = Int32GetDatum((int32) limiter->kind);
		nulls[KIND_HASH] = limiter->kind == 0;
		values[RUNNING] = Int32GetDatum(limiter->running);
		values[TOKENS] = paced ? Float8GetDatum(jobq_pace_tokens(limiter, &limiter->pace, now,
																 &due))
			: (Datum) 0;
		nulls[TOKENS] = !paced;
		values[FAILURES] = Int32GetDatum(jobq_pace_failures(limiter, &limiter->pace, now,
															&rest_until));
		nulls[FAILURES] = !throttled;
		values[REST_UNTIL] = TimestampTzGetDatum(rest_until);
		nulls[REST_UNTIL] = rest_until == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * key_slot(limiter, key): the tokens, the failures and the end of the rest of this key of the
 * limiter with this hash.  A column is NULL without such a limit, and if the user may not see
 * all jobs.  Takes db->lock exclusively.
 */
Datum
jobq_key_slot(PG_FUNCTION_ARGS)
{
	enum
	{
		TOKENS, FAILURES, REST_UNTIL, NATTS
	};
	JobqDatabase *db = jobq_my_database();
	JobqKeyedState state = {0};
	TupleDesc	desc;
	Datum		values[NATTS];
	bool		nulls[NATTS];

	desc = jobq_row_type(fcinfo, NATTS);
	if (db != NULL && !PG_ARGISNULL(0) &&
		jobq_may(JOBQ_MAY_MONITOR, jobq_relations()->owner, 0))
	{
		uint32		key = jobq_tenant_hash(PG_ARGISNULL(1) ? NULL
										   : text_to_cstring(PG_GETARG_TEXT_PP(1)));

		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		(void) jobq_keyed_state(db, (uint32) PG_GETARG_INT32(0), key, jobq_now(), &state);
		LWLockRelease(db->lock);
	}
	values[TOKENS] = Float8GetDatum(state.tokens);
	nulls[TOKENS] = !state.paced;
	values[FAILURES] = Int32GetDatum(state.failures);
	nulls[FAILURES] = !state.throttled;
	values[REST_UNTIL] = TimestampTzGetDatum(state.rest_until);
	nulls[REST_UNTIL] = state.rest_until == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * True if the group has a live job that the user may see.
 */
static bool
may_see_group(Relation rel, int64 group_id)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, JOB_GROUP_ID, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(group_id));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_JOB_GROUP), true,
							  GetActiveSnapshot(), 1, &key);
	while (!found && (tuple = systable_getnext(scan)) != NULL)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		found = jobq_may(JOBQ_MAY_MONITOR,
						 DatumGetObjectId(heap_getattr(tuple, JOB_ROLE,
													   RelationGetDescr(rel),
													   &isnull)),
						 DatumGetInt32(heap_getattr(tuple, JOB_QUEUE_ID,
													RelationGetDescr(rel),
													&isnull)));
	}
	systable_endscan(scan);
	return found;
}

/*
 * group_slots(): a row for each active group of this database that has a job visible to the
 * user.  Takes db->lock exclusively.
 */
Datum
jobq_group_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		GROUP_ID_, RUNNING, WAITS_FOR, WAITS_UNTIL, PARKED, MORE, NATTS
	};
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();
	TimestampTz now = jobq_now();
	JobqGroup  *groups;
	TimestampTz *until;
	Relation	rel;
	int			n = 0;

	rsinfo = jobq_materialize(fcinfo, NATTS);
	if (db == NULL || db->groups->ngroups == 0 || !jobq_may_use())
		return (Datum) 0;
	groups = MemoryContextAllocHuge(CurrentMemoryContext,
									sizeof(JobqGroup) * jobq_max_groups);
	until = palloc(sizeof(TimestampTz) * jobq_max_groups);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_groups_forget(db, now);
	for (int i = 0; i < jobq_max_groups; i++)
	{
		JobqGroup  *group = &db->groups->groups[i];

		if (group->id == 0)
			continue;
		until[n] = group->owner == 0 ? DT_NOEND : jobq_group_waits_until(db, group);
		groups[n++] = *group;
	}
	LWLockRelease(db->lock);

	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	for (int i = 0; i < n; i++)
	{
		JobqGroup  *group = &groups[i];
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};

		if ((jobq_privileges(0) & JOBQ_MAY_MONITOR) == 0 &&
			!may_see_group(rel, group->id))
			continue;
		values[GROUP_ID_] = Int64GetDatum(group->id);
		values[RUNNING] = Int32GetDatum(group->running);
		values[WAITS_FOR] = Int64GetDatum(group->owner);
		nulls[WAITS_FOR] = group->owner == 0;
		values[WAITS_UNTIL] = TimestampTzGetDatum(until[i]);
		nulls[WAITS_UNTIL] = until[i] == DT_NOEND;
		values[PARKED] = Int32GetDatum(group->nparked);
		values[MORE] = BoolGetDatum(group->spilled);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
