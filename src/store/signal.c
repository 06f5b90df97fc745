/*-------------------------------------------------------------------------
 *
 * signal.c
 *	  Signals to suspended jobs, for other rooms: rows, the lock, and the wake-up.  Also the
 *	  answer of a job to the job whose procedure has asked for it.
 *
 * An answer is a row among the signals, written by the transaction that ends the job.  The
 * receiver waits under the same lock as for a signal (src/durable/signal.c), so no answer is
 * missed.  The answer stays with the receiver, and outlasts the job that has ended.  A retry of
 * the job deletes the answer.
 *
 * Of many jobs, the receiver waits for one that has not ended, chosen at random: the witness
 * (src/durable/ask.c).  The end of another job only writes its row.
 *
 * src/store/signal.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "store/store.h"

/* Number of heavyweight locks for the signals to all jobs of a role. */
#define NLOCKS	256

/*
 * Lock the signals to the job in this mode until the end of the transaction (src/durable/signal.c
 * has the rules).  role: the job's role, which the caller checks again afterwards.  May wait.
 */
void
jobq_signals_lock(int64 id, Oid role, LOCKMODE mode)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, jobq_relations()->signal, role,
					   hash_bytes((unsigned char *) &id, sizeof(id)) % NLOCKS);
	(void) LockAcquire(&tag, mode, false, false);
}

/* Write a signal.  The caller has locked the signals to the job. */
void
jobq_signal_insert(const JobqSignal *signal, Datum payload)
{
	Relation	signals = jobq_open_table(JOBQ_SIGNAL_TABLE, RowExclusiveLock);
	const char *sender = GetUserNameFromId(signal->sent_by, true);
	Datum		values[SIGNAL_NATTS];
	bool		nulls[SIGNAL_NATTS] = {0};

	values[SIGNAL_ID - 1] = Int64GetDatum(signal->id);
	values[SIGNAL_JOB_ID - 1] = Int64GetDatum(signal->job_id);
	values[SIGNAL_SENT_AT - 1] = TimestampTzGetDatum(jobq_now());
	values[SIGNAL_NAME - 1] = CStringGetTextDatum(signal->name);
	values[SIGNAL_SENT_BY - 1] = CStringGetTextDatum(!OidIsValid(signal->sent_by) ? "link"
													 : sender == NULL ? "" : sender);
	values[SIGNAL_PAYLOAD - 1] = payload;
	nulls[SIGNAL_TAKEN_BY - 1] = true;
	values[SIGNAL_ANSWER - 1] = CharGetDatum(signal->answer);
	nulls[SIGNAL_ANSWER - 1] = signal->answer == 0;
	(void) jobq_insert_row(signals, values, nulls);
	table_close(signals, NoLock);
}

/* The text in jobq_internal.job.waits_for of a job that waits for the end of another job. */
char *
jobq_waits_for_job(int64 id)
{
	return psprintf("job " INT64_FORMAT " of", id);
}

/*
 * True if the job is suspended, and waits for this among others.  Names can contain anything, so
 * the answer may be true without need.  The procedure then waits again.
 */
bool
jobq_is_suspended_for(const JobqJob *job, const char *what)
{
	return !JOB_ISNULL(job, JOB_WAITS_FOR) && !job_leased(job) &&
		job_run_at(job) > jobq_now() &&
		strstr(TextDatumGetCString(JOB(job, JOB_WAITS_FOR)), what) != NULL;
}

/*
 * Make the suspended job due.  False if another transaction has changed the job, or is about to
 * start it; the caller then reads the job again.  May wait for this transaction.
 */
bool
jobq_wake_suspended(Relation rel, JobqJob *job)
{
	TransactionId blocker;

	if (!jobq_job_delete_or_blocker(rel, job, &blocker))
	{
		if (TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job->ctid, XLTW_Delete);
		return false;
	}
	jobq_job_push_if_undone(job);
	jobq_at_commit_group_moved(job_group(job), job_id(job));
	jobq_job_set_run_at(job, jobq_now());
	job->nulls[JOB_WAITS_FOR - 1] = true;
	jobq_job_insert(rel, job);
	jobq_state_changed(job, "ready");
	return true;
}

/* Set *role to the role of the dead letter.  False if the job is no dead letter. */
static bool
dead_letter_role(int64 id, Oid *role)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	bool		found;

	SPI_connect();
	found = jobq_query_latest("SELECT role::oid FROM jobq_internal.dead_letter WHERE id = $1",
							  1, types, values, SPI_OK_SELECT) > 0;
	if (found)
		*role = DatumGetObjectId(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
											 1, OIDOID, NULL));
	SPI_finish();
	return found;
}

/*
 * Set *role to the role of the job, which is live or a dead letter.  False if the job has finished,
 * and needs no signals.
 */
bool
jobq_receiver_role(Relation rel, int64 id, Oid *role)
{
	JobqJob		job;

	/* a dead letter may move between the two checks */
	for (int i = 0; i < 2; i++)
	{
		if (jobq_job_find_now(rel, id, &job))
		{
			*role = job_role(&job);
			return true;
		}
		if (dead_letter_role(id, role))
			return true;
	}
	return false;
}

/*
 * Lock the signals to a job in this mode.  False if the job has finished, and needs no signals.
 */
bool
jobq_signals_lock_receiver(Relation rel, int64 id, LOCKMODE mode)
{
	Oid			role;
	Oid			locked = InvalidOid;
	bool		found;

	while ((found = jobq_receiver_role(rel, id, &role)) && role != locked)
	{
		jobq_signals_lock(id, role, mode);
		locked = role;
	}
	return found;
}

/*
 * Write a signal, and wake the receiver if it waits for this.  Checks no privilege.  The caller has
 * locked the signals to the receiver.  what: the text in jobq_internal.job.waits_for.
 */
void
jobq_signal_send(Relation rel, const JobqSignal *signal, const char *what, Datum payload)
{
	JobqJob		job;

	jobq_signal_insert(signal, payload);
	while (jobq_job_find_now(rel, signal->job_id, &job) &&
		   jobq_is_suspended_for(&job, what) &&
		   !jobq_wake_suspended(rel, &job))
		CHECK_FOR_INTERRUPTS();
}

/* Write the answer of a job that has ended, and wake the job that waits for the answer. */
static void
answer(const JobqJob *job, char type, Datum value)
{
	JobqSignal	signal = {
		.id = job_id(job),.job_id = job_asked_by(job),.name = ANSWER_NAME,
		.sent_by = job_role(job),.answer = type
	};
	Relation	rel = jobq_open_jobs();

	if (jobq_signals_lock_receiver(rel, signal.job_id, ShareLock))
		jobq_signal_send(rel, &signal, jobq_waits_for_job(job_id(job)), value);
	table_close(rel, NoLock);
}

/*
 * Send the result of a completed job to the job that has asked for it.  The caller's transaction
 * deletes the row of the job.  May wait for a transaction that has the row of the other job.
 */
void
jobq_answer(const JobqJob *job, bool has_result, Datum result)
{
	answer(job, ANSWER_RESULT, has_result ? result : jobq_text_to_jsonb("null"));
}

/* Like jobq_answer(), for a job that has ended in another state, with this error. */
void
jobq_answer_failed(const JobqJob *job, const char *state, const JobqError *error)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, "{\"job\": " INT64_FORMAT ", \"kind\": ", job_id(job));
	escape_json(&buf, jobq_job_kind(job));
	appendStringInfo(&buf, ", \"state\": \"%s\", \"sqlstate\": \"%s\", \"message\": ",
					 state, unpack_sql_state(error->sqlerrcode));
	jobq_append_text(&buf, error->message);
	if (error->detail != NULL)
	{
		appendStringInfoString(&buf, ", \"detail\": ");
		jobq_append_text(&buf, error->detail);
	}
	appendStringInfoChar(&buf, '}');
	answer(job, ANSWER_FAILURE, jobq_text_to_jsonb(buf.data));
}

/* A dead letter runs again: delete its answer. */
void
jobq_answer_revoke(const JobqJob *job)
{
	Relation	signals = jobq_open_table(JOBQ_SIGNAL_TABLE, RowExclusiveLock);
	ScanKeyData keys[3];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], SIGNAL_JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				JOB(job, JOB_ASKED_BY));
	ScanKeyInit(&keys[1], SIGNAL_NAME, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(ANSWER_NAME));
	ScanKeyInit(&keys[2], SIGNAL_ID, BTEqualStrategyNumber, F_INT8EQ, JOB(job, JOB_ID));
	scan = systable_beginscan(signals, jobq_index(signals, JOBQ_SIGNAL_PKEY), true,
							  SnapshotSelf, 3, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		TM_FailureData tmfd;

		(void) jobq_heap_delete(signals, &tuple->t_self, GetCurrentCommandId(true), true, &tmfd);
	}
	systable_endscan(scan);
	table_close(signals, NoLock);
}

/*
 * True if the job that has asked for this job was cancelled.  A concurrent cancellation may be
 * missed, and is seen before the next attempt.
 */
bool
jobq_asker_is_cancelled(Relation rel, const JobqJob *job)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {JOB(job, JOB_ASKED_BY)};
	JobqJob		asker;
	bool		cancelled;

	if (jobq_job_find_now(rel, job_asked_by(job), &asker))
		return false;
	SPI_connect();
	cancelled = jobq_query_latest("SELECT FROM jobq_internal.archive WHERE id = $1 AND state = 'x'",
								  1, types, values, SPI_OK_SELECT) > 0;
	SPI_finish();
	return cancelled;
}

/* Return the ids as a jsonb array. */
Datum
jobq_ids_to_jsonb(const int64 *ids, int n)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '[');
	for (int i = 0; i < n; i++)
		appendStringInfo(&buf, i == 0 ? INT64_FORMAT : "," INT64_FORMAT, ids[i]);
	appendStringInfoChar(&buf, ']');
	return jobq_text_to_jsonb(buf.data);
}

/* Read an array made by jobq_ids_to_jsonb(): return the number of ids, and set *ids. */
int
jobq_ids_from_jsonb(Datum value, int64 **ids)
{
	Jsonb	   *json = DatumGetJsonbP(value);
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbIteratorToken token;
	JsonbValue	element;
	int			n = 0;

	*ids = palloc(sizeof(int64) * (JB_ROOT_COUNT(json) + 1));
	while ((token = JsonbIteratorNext(&it, &element, true)) != WJB_DONE)
		if (token == WJB_ELEM && element.type == jbvNumeric)
			(*ids)[n++] = DatumGetInt64(DirectFunctionCall1(numeric_int8,
															NumericGetDatum(element.val.numeric)));
	return n;
}

/*
 * Set *ids to the jobs that the procedure of this job has asked for, and whose outcome it has not
 * received.  Returns their number.
 */
int
jobq_asked_jobs(int64 id, int64 **ids)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	int			n = 0;

	*ids = NULL;
	ScanKeyInit(&key, PSTEP_JOB_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(steps, jobq_index(steps, JOBQ_PROCEDURE_STEP_PKEY), true,
							  SnapshotSelf, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Datum		values[PSTEP_NATTS];
		bool		nulls[PSTEP_NATTS];
		int64	   *some;
		int			nsome;

		heap_deform_tuple(tuple, RelationGetDescr(steps), values, nulls);
		if (DatumGetChar(values[PSTEP_TYPE - 1]) != PSTEP_ASK || !nulls[PSTEP_DONE_AT - 1])
			continue;
		nsome = jobq_ids_from_jsonb(values[PSTEP_RESULT - 1], &some);
		*ids = *ids == NULL ? some : repalloc(*ids, sizeof(int64) * (n + nsome));
		if (*ids != some)
			memcpy(*ids + n, some, sizeof(int64) * nsome);
		n += nsome;
	}
	systable_endscan(scan);
	table_close(steps, AccessShareLock);
	return n;
}
