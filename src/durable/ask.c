/*-------------------------------------------------------------------------
 *
 * ask.c
 *	  ask(): a procedure enqueues jobs, and goes on with their results.
 *
 * The jobs, the row of the step with their ids, and the suspension commit together.  The end of
 * each job writes an answer (src/store/signal.c).  The procedure reads the answers by the ids.
 *
 * Of several jobs, the procedure waits for a single one, the witness.  When the witness has ended,
 * the procedure runs, and chooses the next witness at random among the jobs without an answer.
 * Of n jobs that end in any order, about ln(n) are therefore witnesses.  No counter is needed, for
 * which the ends of the jobs would wait.
 *
 * A failed job raises an error in the procedure.  The step is not done then, so that a later run
 * of the procedure receives the result of a retry.
 *
 * src/durable/ask.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "durable/inner.h"
#include "produce/produce.h"
#include "runner/runner.h"

PG_FUNCTION_INFO_V1(jobq_ask);

/* Largest number of jobs of a step. */
#define MAX_ASKED	100000

/* Arguments of ask(). */
enum
{
	ARG_STEP,
	ARG_KIND,
	ARG_PAYLOAD,
	ARG_ANSWER,
	ARG_PAYLOADS,
	ARG_OPTIONS,
	ARG_ON_ERROR,
	ARG_AWAIT
};

/* The answer of a job. */
typedef struct Answer
{
	char		type;			/* as jobq_internal.signal.answer; 0: none */
	Datum		value;
}			Answer;

/* Read the answer of the job, as it is now. */
static void
read_answer(Relation signals, const JobqCurrent *current, int64 id, Answer * answer)
{
	ScanKeyData keys[3];
	SysScanDesc scan;
	HeapTuple	tuple;

	answer->type = 0;
	ScanKeyInit(&keys[0], SIGNAL_JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				JOB(current->job, JOB_ID));
	ScanKeyInit(&keys[1], SIGNAL_NAME, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(ANSWER_NAME));
	ScanKeyInit(&keys[2], SIGNAL_ID, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(signals, jobq_index(signals, JOBQ_SIGNAL_PKEY), true,
							  SnapshotSelf, 3, keys);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[SIGNAL_NATTS];
		bool		nulls[SIGNAL_NATTS];

		heap_deform_tuple(tuple, RelationGetDescr(signals), values, nulls);
		answer->type = nulls[SIGNAL_ANSWER - 1] ? 0 : DatumGetChar(values[SIGNAL_ANSWER - 1]);
		answer->value = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[SIGNAL_PAYLOAD - 1]));
	}
	systable_endscan(scan);
}

/*
 * Read the answers to the step.  Returns false if a job has no answer.  *witness is then such a
 * job, chosen at random.
 */
static bool
collect(const JobqCurrent *current, const StepRow *row, DurableAnswers *answers)
{
	Relation	signals = jobq_open_table(JOBQ_SIGNAL_TABLE, AccessShareLock);
	int64	   *ids;
	int			n = jobq_ids_from_jsonb(STEP(row, PSTEP_RESULT), &ids);
	int			missing = 0;
	StringInfoData buf;

	initStringInfo(&buf);
	answers->failure = (Datum) 0;
	answers->many = !STEP_ISNULL(row, PSTEP_SIGNAL);
	if (answers->many)
		appendStringInfoChar(&buf, '[');
	for (int i = 0; i < n; i++)
	{
		Answer		answer = {0};

		CHECK_FOR_INTERRUPTS();
		read_answer(signals, current, ids[i], &answer);
		if (answer.type == 0 && pg_prng_double(&pg_global_prng_state) * ++missing < 1)
			answers->witness = ids[i];
		if (missing > 0)
			continue;
		if (i > 0)
			appendStringInfoString(&buf, ", ");
		if (answer.type == ANSWER_FAILURE && answers->failure == (Datum) 0)
			answers->failure = answer.value;
		if (answer.type == ANSWER_FAILURE)
			appendStringInfoString(&buf, "{\"error\": ");
		(void) JsonbToCString(&buf, &DatumGetJsonbP(answer.value)->root, -1);
		if (answer.type == ANSWER_FAILURE)
			appendStringInfoChar(&buf, '}');
	}
	table_close(signals, AccessShareLock);
	if (missing > 0)
		return false;
	if (answers->many)
		appendStringInfoChar(&buf, ']');
	answers->value = jobq_text_to_jsonb(buf.data);
	return true;
}

/*
 * Find out whether all jobs of the step have ended, and set *answers.  If the transaction commits
 * a suspension, no end is missed.  Commits before.  ERROR if a job no longer exists.
 */
static bool
collect_locked(const JobqCurrent *current, const StepRow *row, DurableAnswers *answers)
{
	Relation	rel;
	JobqJob		job;
	bool		live;

	durable_lock_signals(current);
	if (collect(current, row, answers))
		return true;
	rel = jobq_open_jobs();
	live = jobq_job_find_now(rel, answers->witness, &job);
	table_close(rel, NoLock);
	if (!live)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_ASKED_FAILED),
				 errmsg("job " INT64_FORMAT " of step \"%s\" does not exist any more",
						answers->witness, TextDatumGetCString(STEP(row, PSTEP_NAME)))));
	return false;
}

/* A member of the object, or NULL. */
static char *
member(Datum object, const char *key)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&DatumGetJsonbP(object)->root, key, strlen(key),
									 &value) == NULL)
		return NULL;
	if (value.type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
	return value.type == jbvString ? pnstrdup(value.val.string.val, value.val.string.len) : NULL;
}

/* Raise the error for a job that has failed. */
static void
raise_failure(const char *step, Datum failure)
{
	char	   *detail = member(failure, "detail");

	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_ASKED_FAILED),
			 errmsg("job %s of step \"%s\" is %s: %s", member(failure, "job"), step,
					member(failure, "state"), member(failure, "message")),
			 errdetail("SQLSTATE of the job: %s.%s%s", member(failure, "sqlstate"),
					   detail == NULL ? "" : " ", detail == NULL ? "" : detail),
			 strcmp(member(failure, "state"), "dead") == 0
			 ? errhint("After jobq.retry(%s), a later run of this procedure waits for the result.",
					   member(failure, "job")) : 0));
}

/* ERROR if the options give the jobs a unique key or a uuid. */
static void
refuse_keys(const bool *nulls)
{
	static const int refused[] = {OPTION_UNIQUE_KEY, OPTION_UNIQUENESS, OPTION_UUID};

	for (int i = 0; i < (int) lengthof(refused); i++)
		if (!nulls[refused[i]])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("jobs of jobq.ask() cannot have a unique key or a uuid"),
					 errdetail("Otherwise the procedure could wait for a job that was enqueued by another session."),
					 errhint("The step enqueues its jobs once, so no key is needed.")));
}

/* Enqueue the jobs, and set the result of the row to their ids. */
static void
enqueue(FunctionCallInfo fcinfo, const JobqCurrent *current, StepRow *row)
{
	char	   *kind = jobq_kind_from_arg(fcinfo, ARG_KIND);
	bool		many = !PG_ARGISNULL(ARG_PAYLOADS);
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqJob		first;
	JobqUnique	unique;
	Datum	   *payloads;
	bool	   *payload_nulls = NULL;
	Datum		single;
	int			n = 1;
	int64	   *ids;

	if (many)
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(ARG_PAYLOADS), JSONBOID, -1, false,
						  TYPALIGN_INT, &payloads, &payload_nulls, &n);
	else
	{
		single = PG_ARGISNULL(ARG_PAYLOAD) ? (Datum) 0 : PG_GETARG_DATUM(ARG_PAYLOAD);
		payloads = &single;
	}
	if (n > MAX_ASKED)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("payloads has %d elements, but at most %d are allowed", n, MAX_ASKED)));
	jobq_options_from_jsonb(PG_GETARG_JSONB_P(ARG_OPTIONS), "options", NULL, options, nulls);
	refuse_keys(nulls);
	ids = palloc(sizeof(int64) * (n + 1));
	if (n > 0)
		jobq_prepare_job(&first, &unique, kind, options, nulls);
	for (int i = 0; i < n; i++)
	{
		JobqJob		job = first;

		CHECK_FOR_INTERRUPTS();
		if ((many && payload_nulls[i]) || payloads[i] == (Datum) 0)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("payload must not be null")));
		JOB_SET(&job, JOB_ASKED_BY, JOB(current->job, JOB_ID));
		jobq_set_payload(&job, payloads[i]);
		jobq_put_job(&job, &unique);
		ids[i] = job_id(&job);
	}
	STEP_SET(row, PSTEP_RESULT, jobq_ids_to_jsonb(ids, n));
	if (many)
		STEP_SET(row, PSTEP_SIGNAL, CStringGetTextDatum("many"));
}

/*
 * If the step has asked for jobs, return true, and set *answers and *over: whether all jobs have
 * ended.  With locked, as collect_locked().
 */
bool
durable_asked(const JobqCurrent *current, const char *step, DurableAnswers *answers, bool *over)
{
	StepRow		row;

	if (!durable_find(current, step, &row) ||
		DatumGetChar(STEP(&row, PSTEP_TYPE)) != PSTEP_ASK)
		return false;
	*over = !STEP_ISNULL(&row, PSTEP_DONE_AT);
	if (*over)
		answers->value = STEP(&row, PSTEP_RESULT);
	else
		*over = collect(current, &row, answers);
	return true;
}

/* The text in jobq_internal.job.waits_for of a job that waits for a job of the step. */
char *
durable_waits_for_job(int64 id, const char *step)
{
	return psprintf("%s \"%s\"", jobq_waits_for_job(id), step);
}

static bool
returns_errors(FunctionCallInfo fcinfo)
{
	char	   *word = PG_ARGISNULL(ARG_ON_ERROR) ? pstrdup("")
		: text_to_cstring(PG_GETARG_TEXT_PP(ARG_ON_ERROR));

	if (strcmp(word, "raise") != 0 && strcmp(word, "return") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_error \"%s\" must be raise or return", word)));
	return strcmp(word, "return") == 0;
}

/*
 * All jobs of the step have ended: note their answers, and return the answers.  Commits, if the
 * caller can.
 */
static void
finish(FunctionCallInfo fcinfo, const JobqCurrent *current, StepRow *row,
	   const DurableAnswers *answers)
{
	if (answers->failure != (Datum) 0 && !returns_errors(fcinfo))
		raise_failure(TextDatumGetCString(STEP(row, PSTEP_NAME)), answers->failure);
	jobq_check_value("answer", answers->value);
	durable_check_lease(current);
	STEP_SET(row, PSTEP_RESULT, answers->value);
	STEP_SET(row, PSTEP_DONE_AT, TimestampTzGetDatum(jobq_now()));
	durable_write(current, row);
	if (durable_can_commit(fcinfo))
		durable_commit();
}

/*
 * CALL ask(step, kind, payload, answer, payloads, options, on_error, await): enqueue jobs, and
 * return their results.  Suspend the job until they have ended.  ERROR if a job has failed.
 */
Datum
jobq_ask(PG_FUNCTION_ARGS)
{
	const JobqCurrent *current = durable_require("jobq.ask()");
	char	   *step = text_to_cstring(durable_name_arg(fcinfo, ARG_STEP, "step"));
	bool		wait = PG_ARGISNULL(ARG_AWAIT) || PG_GETARG_BOOL(ARG_AWAIT);
	DurableAnswers answers = {0};
	TupleDesc	desc;
	StepRow		row;
	bool		isnew;
	Datum		null = (Datum) 0;
	bool		isnull = true;

	jobq_not_null(fcinfo, ARG_OPTIONS, "options");
	(void) returns_errors(fcinfo);
	desc = jobq_row_type(fcinfo, 1);
	isnew = !durable_find_step(current, step, PSTEP_ASK, &row);
	if (isnew)
	{
		(void) durable_require_commit(fcinfo, "jobq.ask()");
		durable_begin(current, step, PSTEP_ASK, &row);
		enqueue(fcinfo, current, &row);
	}
	if (STEP_ISNULL(&row, PSTEP_DONE_AT))
	{
		/* no job of this transaction has ended, unless its queue dropped it */
		bool		over = collect(current, &row, &answers);

		if (!over && wait && !isnew)
		{
			(void) durable_require_commit(fcinfo, "jobq.ask()");
			over = collect_locked(current, &row, &answers);
		}
		if (!over && wait)
		{
			durable_check_lease(current);
			durable_write(current, &row);
			run_suspend(JOB_NO_LIMIT, durable_waits_for_job(answers.witness, step));
		}
		if (over && (wait || answers.failure == (Datum) 0 || returns_errors(fcinfo)))
			finish(fcinfo, current, &row, &answers);
		else
		{
			if (isnew)
			{
				durable_check_lease(current);
				durable_write(current, &row);
				durable_commit();
			}
			PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &null, &isnull)));
		}
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &STEP(&row, PSTEP_RESULT),
													  &STEP_ISNULL(&row, PSTEP_RESULT))));
}
