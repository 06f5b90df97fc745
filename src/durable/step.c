/*-------------------------------------------------------------------------
 *
 * step.c
 *	  step(), step_done(), step_result(): steps of a procedure.  save(), saved(): a value
 *	  kept for the procedure.
 *
 * The name of the step that has begun is kept in memory until the step ends.  If the transaction
 * or subtransaction in which the step began is rolled back, the step has not begun.  A COMMIT in
 * the middle of a step makes the step's effects so far durable, and not the step.
 *
 * src/durable/step.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "durable/inner.h"

PG_FUNCTION_INFO_V1(jobq_step);
PG_FUNCTION_INFO_V1(jobq_step_done);
PG_FUNCTION_INFO_V1(jobq_step_result);
PG_FUNCTION_INFO_V1(jobq_save);
PG_FUNCTION_INFO_V1(jobq_saved);

/* The step that has begun in this process. */
static struct
{
	char		name[MAX_NAME + 1]; /* or "" */
	int64		token;			/* lease of its run */
	TimestampTz begun_at;
	SubTransactionId subid;		/* in which the step has begun */
}			open_step;

/* The row of the value that a run has saved last, if known. */
static struct
{
	ItemPointerData ctid;
	int64		token;			/* lease of the run */
}			saved_row;

static void
transaction_ended(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT)
		open_step.name[0] = '\0';
	else if (event == XACT_EVENT_COMMIT)
		open_step.subid = TopSubTransactionId;
}

static void
subtransaction_ended(SubXactEvent event, SubTransactionId mysubid,
					 SubTransactionId parentsubid, void *arg)
{
	if (open_step.name[0] == '\0' || open_step.subid != mysubid)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		open_step.name[0] = '\0';
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		open_step.subid = parentsubid;
}

static bool
step_is_open(const JobqCurrent *current)
{
	return open_step.name[0] != '\0' &&
		open_step.token == DatumGetInt64(JOB(current->job, JOB_LEASE_TOKEN));
}

/*
 * step(name): true if the step is not done.  The step begins then.  ERROR if another step has
 * begun and is not done, and without a procedure that can commit.
 */
Datum
jobq_step(PG_FUNCTION_ARGS)
{
	static bool registered = false;
	const JobqCurrent *current = durable_require("jobq.step()");
	char	   *name = text_to_cstring(durable_name_arg(fcinfo, 0, "name"));
	StepRow		row;

	if (step_is_open(current) && strcmp(open_step.name, name) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("step \"%s\" cannot begin, because step \"%s\" is not done",
						name, open_step.name),
				 errhint("CALL jobq.step_done() at the end of each step.")));
	if (durable_find_step(current, name, PSTEP_STEP, &row))
		PG_RETURN_BOOL(false);
	if (!registered)
	{
		RegisterXactCallback(transaction_ended, NULL);
		RegisterSubXactCallback(subtransaction_ended, NULL);
		registered = true;
	}
	if (!step_is_open(current))
		open_step.begun_at = jobq_now();
	strlcpy(open_step.name, name, sizeof(open_step.name));
	open_step.token = DatumGetInt64(JOB(current->job, JOB_LEASE_TOKEN));
	open_step.subid = GetCurrentSubTransactionId();
	PG_RETURN_BOOL(true);
}

/*
 * CALL step_done(result): note the step and commit.  ERROR if no step has begun, if the caller
 * cannot commit, if the job was cancelled, and if the result is too large.
 */
Datum
jobq_step_done(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require_commit(fcinfo, "jobq.step_done()");
	StepRow		row;

	if (!step_is_open(current))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("no step has begun"),
				 errhint("A step begins with IF jobq.step('name') THEN, and ends with the first CALL jobq.step_done().")));
	durable_check_lease(current);
	durable_begin(current, open_step.name, PSTEP_STEP, &row);
	STEP_SET(&row, PSTEP_BEGUN_AT, TimestampTzGetDatum(open_step.begun_at));
	STEP_SET(&row, PSTEP_DONE_AT, TimestampTzGetDatum(jobq_now()));
	if (!PG_ARGISNULL(0))
	{
		STEP_SET(&row, PSTEP_RESULT, PG_GETARG_DATUM(0));
		jobq_check_result(STEP(&row, PSTEP_RESULT));
	}
	durable_write(current, &row);
	durable_commit();
	open_step.name[0] = '\0';
	PG_RETURN_VOID();
}

/*
 * step_result(name): the result of a step of the current procedure, or null.
 */
Datum
jobq_step_result(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require("jobq.step_result()");
	char	   *name = text_to_cstring(durable_name_arg(fcinfo, 0, "name"));
	StepRow		row;

	if (!durable_find(current, name, &row) || STEP_ISNULL(&row, PSTEP_RESULT))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(STEP(&row, PSTEP_RESULT));
}

static bool
is_same(Datum a, Datum b)
{
	return compareJsonbContainers(&DatumGetJsonbP(a)->root, &DatumGetJsonbP(b)->root) == 0;
}

/*
 * save(value): keep a value for the current procedure, in its transaction.  The value that is
 * there already is no progress, and not written again.  ERROR if the job was
 * cancelled, or if the value is null or too large.
 */
Datum
jobq_save(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require("jobq.save()");
	int64		token = DatumGetInt64(JOB(current->job, JOB_LEASE_TOKEN));
	StepRow		row;

	jobq_not_null(fcinfo, 0, "value");
	jobq_check_value("value", PG_GETARG_DATUM(0));
	durable_check_lease(current);
	if (!(saved_row.token == token &&
		  durable_fetch(current, &saved_row.ctid, "", &row)) &&
		!durable_find(current, "", &row))
		durable_begin(current, "", PSTEP_SAVED, &row);
	else if (is_same(STEP(&row, PSTEP_RESULT), PG_GETARG_DATUM(0)))
		PG_RETURN_VOID();
	STEP_SET(&row, PSTEP_DONE_AT, TimestampTzGetDatum(jobq_now()));
	STEP_SET(&row, PSTEP_RESULT, PG_GETARG_DATUM(0));
	durable_write(current, &row);

	/* after a rollback, nothing visible is there */
	saved_row.ctid = row.ctid;
	saved_row.token = token;
	PG_RETURN_VOID();
}

/*
 * saved(): the value saved last for the current job, or null.
 */
Datum
jobq_saved(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require("jobq.saved()");
	StepRow		row;

	if (!durable_find(current, "", &row))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(STEP(&row, PSTEP_RESULT));
}
