/*-------------------------------------------------------------------------
 *
 * row.c
 *	  The rows of steps, and the conditions under which a procedure may write them.
 *
 * Only the run with the lease of the job writes rows of the job, so a row never changes under a
 * reader.  The rows are read as they are now, and not with the snapshot of the transaction.
 *
 * src/durable/row.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "nodes/parsenodes.h"
#include "storage/bufmgr.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "durable/inner.h"
#include "runner/runner.h"

/* ERROR if the name is empty or too long.  what: name of the parameter. */
void
durable_check_name(const char *name, const char *what)
{
	if (name[0] == '\0' || strlen(name) > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s \"%s\" must have 1 to %d bytes", what, name, MAX_NAME)));
}

/*
 * Return an argument that is the name of a step or a signal.  what: name of the parameter.
 * ERROR if the name is null, empty or too long.
 */
text *
durable_name_arg(FunctionCallInfo fcinfo, int arg, const char *what)
{
	text	   *name;

	jobq_not_null(fcinfo, arg, what);
	name = PG_GETARG_TEXT_PP(arg);
	durable_check_name(text_to_cstring(name), what);
	return name;
}

/*
 * Return the job whose procedure runs in this process.  ERROR if no job runs here, or if its
 * handler cannot commit.  function: for the message.
 */
const JobqCurrent *
durable_require(const char *function)
{
	const JobqCurrent *current = jobq_require_current(function);

	if (!run_is_procedure())
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("%s needs a handler that can commit", function),
				 errdetail("A function runs in a single transaction, and so does every handler in jobq.work() and jobq.perform()."),
				 errhint("Register a procedure, without SET and SECURITY DEFINER, and let a worker of the server run it.")));
	return current;
}

/* Whether the procedure can commit in this call. */
bool
durable_can_commit(FunctionCallInfo fcinfo)
{
	CallContext *call = (CallContext *) fcinfo->context;

	return call != NULL && IsA(call, CallContext) && !call->atomic && !IsSubTransaction();
}

/*
 * Like durable_require(), for a procedure that commits.  ERROR if the caller is a function, or a
 * block with a handler of exceptions.
 */
const JobqCurrent *
durable_require_commit(FunctionCallInfo fcinfo, const char *function)
{
	const JobqCurrent *current = durable_require(function);

	if (!durable_can_commit(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("%s cannot commit here", function),
				 errdetail("A function, a procedure with SET or SECURITY DEFINER, and a block with EXCEPTION cannot commit."),
				 errhint("CALL it from the handler itself, or from a procedure that the handler calls, outside of such a block.")));
	return current;
}

/*
 * ERROR unless the job still belongs to this run.  Locks the job's row until the end of the
 * transaction, so that the run keeps its lease up to the commit.  Does not wait.
 */
void
durable_check_lease(const JobqCurrent *current)
{
	const JobqJob *job = current->job;
	JobqKey		key = {job_run_at(job), job_id(job)};
	Relation	rel = jobq_open_jobs();
	JobqJob		now;

	if ((current->slot != NULL && current->slot->run.stop == JOBQ_STOP_CANCEL) ||
		!jobq_job_fetch(rel, &job->ctid, key, SnapshotSelf, &now) ||
		!job_leased(&now) ||
		JOB(&now, JOB_LEASE_TOKEN) != JOB(job, JOB_LEASE_TOKEN) ||
		jobq_lock_row(rel, &now.ctid, LockWaitSkip) != TM_Ok)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_CANCELLED),
				 errmsg("the job was cancelled while it ran")));
	table_close(rel, NoLock);
}

/* Copy a row of the table. */
static void
read_row(Relation steps, HeapTuple tuple, StepRow *row)
{
	HeapTuple	copy = heap_copytuple(tuple);

	heap_deform_tuple(copy, RelationGetDescr(steps), row->values, row->nulls);
	row->ctid = tuple->t_self;
	if (!STEP_ISNULL(row, PSTEP_RESULT))
		STEP(row, PSTEP_RESULT) =
			PointerGetDatum(PG_DETOAST_DATUM_COPY(STEP(row, PSTEP_RESULT)));
}

/*
 * Read the row at ctid, if it is still the row with this name of the job.  A row that is
 * replaced often is found faster in this way than by the index, which leads to the oldest
 * version.
 */
bool
durable_fetch(const JobqCurrent *current, const ItemPointerData *ctid, const char *name,
			  StepRow *row)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	HeapTupleData tuple = {.t_self = *ctid};
	Buffer		buffer;
	bool		found = false;

	/* the table may have been rewritten, and be shorter now */
	if (ItemPointerGetBlockNumber(ctid) < RelationGetNumberOfBlocks(steps) &&
		heap_fetch(steps, SnapshotSelf, &tuple, &buffer, false))
	{
		read_row(steps, &tuple, row);
		ReleaseBuffer(buffer);
		found = STEP(row, PSTEP_JOB_ID) == JOB(current->job, JOB_ID) &&
			strcmp(TextDatumGetCString(STEP(row, PSTEP_NAME)), name) == 0;
	}
	table_close(steps, AccessShareLock);
	return found;
}

/*
 * Find the row with this name of the job.  False if there is none.  The values are copies.
 */
bool
durable_find(const JobqCurrent *current, const char *name, StepRow *row)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&keys[0], PSTEP_JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				JOB(current->job, JOB_ID));
	ScanKeyInit(&keys[1], PSTEP_NAME, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	scan = systable_beginscan(steps, jobq_index(steps, JOBQ_PROCEDURE_STEP_PKEY), true,
							  SnapshotSelf, 2, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		read_row(steps, tuple, row);
	systable_endscan(scan);
	table_close(steps, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

static const char *
type_word(char type)
{
	return type == PSTEP_SLEEP ? "jobq.sleep()" : type == PSTEP_ASK ? "jobq.ask()"
		: type == PSTEP_AWAIT ? "jobq.await_signal()"
		: type == PSTEP_ANY ? "jobq.await_any()" : "jobq.step()";
}

/*
 * Like durable_find().  ERROR if the name belongs to a step of another type.
 */
bool
durable_find_step(const JobqCurrent *current, const char *name, char type, StepRow *row)
{
	if (!durable_find(current, name, row))
		return false;
	if (DatumGetChar(STEP(row, PSTEP_TYPE)) != type)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_DUPLICATE),
				 errmsg("step \"%s\" of job " INT64_FORMAT " was made by %s, not by %s",
						name, job_id(current->job),
						type_word(DatumGetChar(STEP(row, PSTEP_TYPE))), type_word(type)),
				 errhint("Steps, sleeps and waits of a job need different names.")));
	return true;
}

/* Prepare a new row of the job.  The row has not been written yet. */
void
durable_begin(const JobqCurrent *current, const char *name, char type, StepRow *row)
{
	memset(row->nulls, true, sizeof(row->nulls));
	ItemPointerSetInvalid(&row->ctid);
	STEP_SET(row, PSTEP_JOB_ID, JOB(current->job, JOB_ID));
	STEP_SET(row, PSTEP_BEGUN_AT, TimestampTzGetDatum(jobq_now()));
	STEP_SET(row, PSTEP_VERSION, Int64GetDatum(current->version));
	STEP_SET(row, PSTEP_TYPE, CharGetDatum(type));
	STEP_SET(row, PSTEP_NAME, CStringGetTextDatum(name));
}

/*
 * Write the row: insert a new row, or replace a row from durable_find().  The run counts as
 * progress when the transaction commits.  The caller has called durable_check_lease().
 */
void
durable_write(const JobqCurrent *current, StepRow *row)
{
	Relation	steps = jobq_open_table(JOBQ_PROCEDURE_STEP_TABLE, RowExclusiveLock);

	STEP_SET(row, PSTEP_TOKEN, JOB(current->job, JOB_LEASE_TOKEN));
	if (!ItemPointerIsValid(&row->ctid))
		row->ctid = jobq_insert_row(steps, row->values, row->nulls);
	else if (jobq_lock_row(steps, &row->ctid, LockWaitBlock) == TM_Ok)
		jobq_update_row(steps, &row->ctid,
						heap_form_tuple(RelationGetDescr(steps), row->values, row->nulls));
	else
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the step has changed meanwhile")));
	table_close(steps, NoLock);

	/* a scan of this transaction sees the row from here on */
	CommandCounterIncrement();
}

/*
 * Commit the transaction of the procedure, and begin the next.  The caller has called
 * durable_require_commit().
 */
void
durable_commit(void)
{
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	SPI_finish();
	EnsurePortalSnapshotExists();
}
