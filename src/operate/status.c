/*-------------------------------------------------------------------------
 *
 * status.c
 *	  status(): the state of a job.
 *
 * Only durable states are reported.  A worker does not wait for the flush of its commit.
 * Therefore a function with a job's state as its result flushes first, and waits for
 * synchronous standbys.
 *
 * src/operate/status.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_status);

/* Attribute numbers in the archive and in the dead letters. */
typedef struct Source
{
	int			role;
	int			queue_id;
	int			map[ST_NATTS];
} Source;

static const Source archive_source = {
	.role = ARCHIVE_ROLE,.queue_id = ARCHIVE_QUEUE_ID,
	.map = {
		[ST_ID] = ARCHIVE_ID,[ST_KIND] = ARCHIVE_KIND,
		[ST_ATTEMPT] = ARCHIVE_ATTEMPT,[ST_MAX_ATTEMPTS] = ARCHIVE_MAX_ATTEMPTS,
		[ST_RESULT] = ARCHIVE_RESULT,[ST_ERROR] = ARCHIVE_REASON,
		[ST_ENQUEUED_AT] = ARCHIVE_ENQUEUED_AT,[ST_RUN_AT] = ARCHIVE_RUN_AT,
		[ST_STARTED_AT] = ARCHIVE_STARTED_AT,
		[ST_FINISHED_AT] = ARCHIVE_FINISHED_AT
	}
};

static const Source dead_letter_source = {
	.role = DEAD_ROLE,.queue_id = DEAD_QUEUE_ID,
	.map = {
		[ST_ID] = DEAD_ID,[ST_KIND] = DEAD_KIND,[ST_ATTEMPT] = DEAD_ATTEMPT,
		[ST_MAX_ATTEMPTS] = DEAD_MAX_ATTEMPTS,[ST_ERROR] = DEAD_ERROR,
		[ST_ENQUEUED_AT] = DEAD_ENQUEUED_AT,[ST_RUN_AT] = DEAD_RUN_AT,
		[ST_STARTED_AT] = DEAD_STARTED_AT,[ST_FINISHED_AT] = DEAD_FINISHED_AT
	}
};

static void
set_queue(JobqStatus *status, int32 queue_id)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(queue_id, &buffer);

	status->nulls[ST_QUEUE] = queue == NULL;
	if (queue != NULL)
		status->values[ST_QUEUE] = CStringGetTextDatum(queue->name);
}

/*
 * Find the job in a partition of the archive or in the dead letters.  The primary key of each
 * begins with the id.
 */
static bool
find_finished(Oid relid, const Source *source, int64 id, Snapshot snapshot,
			  JobqStatus *status)
{
	Relation	rel = table_open(relid, AccessShareLock);
	TupleDesc	desc = RelationGetDescr(rel);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	jobq_check_table(rel, source == &archive_source ? JOBQ_ARCHIVE_TABLE
					 : JOBQ_DEAD_LETTER_TABLE);
	list_free(RelationGetIndexList(rel));	/* sets rd_pkindex */
	ScanKeyInit(&key, source->map[ST_ID], BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(id));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex),
							  snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		Oid			role = DatumGetObjectId(heap_getattr(tuple, source->role, desc,
														 &isnull));
		int32		queue_id = DatumGetInt32(heap_getattr(tuple, source->queue_id,
														  desc, &isnull));

		found = jobq_may(JOBQ_MAY_MONITOR, role, queue_id);
		status->readable = found && jobq_may(JOBQ_MAY_MANAGE, role, queue_id);
	}
	if (found)
	{
		bool		isnull;

		tuple = heap_copytuple(tuple);
		for (int i = 0; i < ST_NATTS; i++)
		{
			status->nulls[i] = true;
			if (source->map[i] != 0 && (i != ST_RESULT || status->readable))
				status->values[i] = heap_getattr(tuple, source->map[i], desc,
												 &status->nulls[i]);
		}

		/* read toasted values while the snapshot is held */
		if (!status->nulls[ST_RESULT])
			status->values[ST_RESULT] =
				PointerGetDatum(PG_DETOAST_DATUM_COPY(status->values[ST_RESULT]));
		if (!status->nulls[ST_ERROR])
			status->values[ST_ERROR] =
				PointerGetDatum(PG_DETOAST_DATUM_COPY(status->values[ST_ERROR]));
		set_queue(status,
				  DatumGetInt32(heap_getattr(tuple, source->queue_id, desc,
											 &isnull)));
		status->finished = true;
		status->state = "dead";
		if (source == &archive_source)
		{
			switch (DatumGetChar(heap_getattr(tuple, ARCHIVE_STATE, desc,
											  &isnull)))
			{
				case STATE_COMPLETED:
					status->state = "completed";
					break;
				case STATE_CANCELLED:
					status->state = "cancelled";
					break;
				case STATE_EXPIRED:
					status->state = "expired";
					break;
			}
		}
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

static bool
find_live(int64 id, Snapshot snapshot, JobqStatus *status)
{
	Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot;
	JobqJob		job;
	bool		found = jobq_job_find(rel, id, snapshot, &job);
	TimestampTz now = jobq_now();

	table_close(rel, AccessShareLock);
	if (!found || !jobq_may(JOBQ_MAY_MONITOR, job_role(&job), job_queue_id(&job)))
		return false;
	status->readable = jobq_may(JOBQ_MAY_MANAGE, job_role(&job),
								job_queue_id(&job));

	memset(status->nulls, true, sizeof(status->nulls));
#define SET(field, value) \
	(status->values[field] = (value), status->nulls[field] = false)
	SET(ST_ID, JOB(&job, JOB_ID));
	SET(ST_KIND, JOB(&job, JOB_KIND));
	SET(ST_ATTEMPT, JOB(&job, JOB_ATTEMPT));
	SET(ST_MAX_ATTEMPTS, JOB(&job, JOB_MAX_ATTEMPTS));
	SET(ST_ENQUEUED_AT, JOB(&job, JOB_ENQUEUED_AT));
	if (!job_blocked(&job) && job_run_at(&job) != JOB_NO_LIMIT)
		SET(ST_RUN_AT, JOB(&job, JOB_RUN_AT));
	set_queue(status, job_queue_id(&job));
	status->own = TransactionIdIsCurrentTransactionId(job.xmin);
	status->finished = false;

	if (!JOB_ISNULL(&job, JOB_ERRORS))
	{
		Datum		last = DirectFunctionCall2(jsonb_array_element,
											   PointerGetDatum(PG_DETOAST_DATUM(JOB(&job, JOB_ERRORS))),
											   Int32GetDatum(-1));

		SET(ST_ERROR,
			DirectFunctionCall2(jsonb_object_field_text, last,
								CStringGetTextDatum("message")));
	}

	slot = db != NULL ? jobq_slot_of_job(db, id) : NULL;
	if (slot != NULL)
	{
		JobqRun		run;

		if (jobq_run_read_of(slot, id, &run))
		{
			status->state = "running";
			SET(ST_ATTEMPT, Int32GetDatum(run.attempt + 1));
			SET(ST_STARTED_AT, TimestampTzGetDatum(run.started_at));
			if (run.progress >= 0)
			{
				SET(ST_PROGRESS, Float4GetDatum(run.progress));
				if (run.message[0] != '\0' && status->readable)
					SET(ST_MESSAGE, CStringGetTextDatum(run.message));
			}
			return true;
		}
	}

	if (db != NULL && db->leases->nleases > 0)
	{
		JobqLease  *lease;
		JobqLease	copy;
		TimestampTz since = 0;

		LWLockAcquire(db->lock, LW_SHARED);
		lease = jobq_lease_find(db, id);
		if (lease != NULL)
		{
			copy = *lease;
			since = db->leases->bundles[lease->bundle].since;
		}
		LWLockRelease(db->lock);
		if (lease != NULL)
		{
			status->state = "running";
			SET(ST_ATTEMPT, Int32GetDatum(job_attempt(&job) + 1));
			SET(ST_STARTED_AT, TimestampTzGetDatum(since));
			if (copy.progress >= 0)
				SET(ST_PROGRESS, Float4GetDatum(copy.progress));
			if (copy.message[0] != '\0' && status->readable)
				SET(ST_MESSAGE, CStringGetTextDatum(copy.message));
			return true;
		}
	}

	status->state = jobq_waiting_state(&job, now);
	if (!JOB_ISNULL(&job, JOB_WAITS_FOR) && job_run_at(&job) > now)
		SET(ST_MESSAGE,
			CStringGetTextDatum(psprintf("waits for %s",
										 TextDatumGetCString(JOB(&job, JOB_WAITS_FOR)))));
	return true;
}

/*
 * Fill in the status of the job run by this session.  The current transaction has deleted the
 * row already.
 */
static void
own_job(const JobqCurrent *current, JobqStatus *status)
{
	const JobqJob *job = current->job;

	memset(status->nulls, true, sizeof(status->nulls));
	SET(ST_ID, JOB(job, JOB_ID));
	SET(ST_KIND, JOB(job, JOB_KIND));
	SET(ST_ATTEMPT, Int32GetDatum(current->attempt));
	SET(ST_MAX_ATTEMPTS, JOB(job, JOB_MAX_ATTEMPTS));
	SET(ST_ENQUEUED_AT, JOB(job, JOB_ENQUEUED_AT));
	SET(ST_RUN_AT, JOB(job, JOB_RUN_AT));
	set_queue(status, job_queue_id(job));
	status->state = "running";
	status->own = true;
	status->readable = true;
}

/*
 * Find the job, live, dead or finished, and fill in *status.  False if the current user may
 * see no job with this id; *status is unchanged then.  The caller must flush before it reports
 * the status (jobq_flush_before_telling()).
 */
bool
jobq_look_up_if_there(int64 id, JobqStatus *status)
{
	const JobqRelations *rels = jobq_relations();
	const JobqCurrent *current;
	Snapshot	snapshot;
	bool		found;

	/* also see jobs enqueued by the current statement */
	CommandCounterIncrement();

	/*
	 * As in jobq_job_find_now().  The registered snapshot protects toasted
	 * values, because jobq.call() has no other snapshot while it waits.
	 */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = find_live(id, SnapshotSelf, status);

	/*
	 * A job not found may be about to end: search all tables with one new
	 * snapshot.
	 */
	if (!found)
	{
		UnregisterSnapshot(snapshot);
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		found = find_live(id, snapshot, status);
	}

	current = jobq_current_of(id);
	if (!found && current != NULL)
	{
		own_job(current, status);
		found = true;
	}
	else if (current != NULL)
		status->own = true;		/* a procedure keeps the row until its end */
	if (!found)
		found = find_finished(rels->dead_letter, &dead_letter_source, id, snapshot,
							  status);
	if (!found)
	{
		List	   *partitions = find_inheritance_children(rels->archive,
														   AccessShareLock);
		ListCell   *lc;

		foreach(lc, partitions)
		{
			found = find_finished(lfirst_oid(lc), &archive_source, id,
								  snapshot, status);
			if (found)
				break;
		}
	}
	UnregisterSnapshot(snapshot);

	if (found)
		jobq_set_state(status, status->state);
	return found;
}

/*
 * Like jobq_look_up_if_there(), but with an ERROR instead of false.
 */
void
jobq_look_up(int64 id, JobqStatus *status)
{
	if (!jobq_look_up_if_there(id, status))
		jobq_no_such_job(id);
}

/*
 * Set the state and the column of the state.
 */
void
jobq_set_state(JobqStatus *status, const char *state)
{
	status->state = state;
	SET(ST_STATE, CStringGetTextDatum(state));
}

/*
 * ERROR if the columns differ from those of jobq.job_status.
 */
void
jobq_check_status_type(TupleDesc desc)
{
	static const Oid types[ST_NATTS] = {
		[ST_ID] = INT8OID,[ST_STATE] = TEXTOID,[ST_KIND] = TEXTOID,
		[ST_QUEUE] = TEXTOID,[ST_ATTEMPT] = INT4OID,
		[ST_MAX_ATTEMPTS] = INT4OID,[ST_PROGRESS] = FLOAT4OID,
		[ST_MESSAGE] = TEXTOID,[ST_RESULT] = JSONBOID,[ST_ERROR] = TEXTOID,
		[ST_ENQUEUED_AT] = TIMESTAMPTZOID,[ST_RUN_AT] = TIMESTAMPTZOID,
		[ST_STARTED_AT] = TIMESTAMPTZOID,[ST_FINISHED_AT] = TIMESTAMPTZOID
	};

	jobq_check_types(desc, types, ST_NATTS);
}

/*
 * Return the status as a result of type jobq.job_status.  ERROR if the calling function does
 * not return this type.
 */
Datum
jobq_status_datum(FunctionCallInfo fcinfo, JobqStatus *status)
{
	TupleDesc	desc;

	desc = jobq_row_type(fcinfo, ST_NATTS);
	jobq_check_status_type(desc);
	return HeapTupleGetDatum(heap_form_tuple(desc,
											 status->values, status->nulls));
}

/*
 * status(id): the status of a job, live, dead or finished.  ERROR if the current user may see
 * no job with this id.
 */
Datum
jobq_status(PG_FUNCTION_ARGS)
{
	JobqStatus	status = {0};

	jobq_look_up(PG_GETARG_INT64(0), &status);
	jobq_flush_before_telling();
	PG_RETURN_DATUM(jobq_status_datum(fcinfo, &status));
}
