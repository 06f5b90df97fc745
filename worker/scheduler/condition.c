/*-------------------------------------------------------------------------
 *
 * condition.c
 *	  Conditions of workflow steps ("when"): a step whose condition does not
 *	  hold is skipped.
 *
 * The condition comes from the user and may process results of any size.  Its time is
 * limited, and an error in the condition is an error of its step.  An error of a read, such
 * as a lock timeout, is not: the evaluation of the batch fails, and is repeated.
 *
 * worker/scheduler/condition.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/workflow.h"

#include <sys/resource.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timeout.h"

#include "store/store.h"

/*
 * Time limit for the evaluation of a condition, in milliseconds.  If the timeout is due
 * to a busy machine, the evaluation is repeated, up to MAX_TRIES.
 */
#define TIMEOUT_MS		200
#define MAX_TRIES		20

/* A condition, and the value of "$". */
typedef struct Question
{
	char	   *condition;
	Jsonb	   *of;
	bool		holds;
} Question;

/*
 * Build the value of "$" for the condition: an object with the results of the completed
 * needs, by name.  In a chain: the result of the previous step.  Returns NULL if the results
 * are too large.
 */
static Jsonb *
results_of_needs(StepContext *context, const JobqStep *step, bool chain)
{
	JsonbParseState *state = NULL;
	Size		size = 0;

	if (chain)
	{
		Jsonb	   *result = step->nneeds == 0 ? NULL
			: step_result_of(context, step->needs[0]->name);

		return result != NULL ? result : DatumGetJsonbP(jobq_text_to_jsonb("null"));
	}
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < step->nneeds; i++)
	{
		const JobqStep *need = step->needs[i];
		JsonbValue	value = {.type = jbvString};
		Jsonb	   *result;

		if (need->state != STATE_COMPLETED)
			continue;
		result = step_result_of(context, need->name);
		value.val.string.val = need->name;
		value.val.string.len = strlen(need->name);
		pushJsonbValue(&state, WJB_KEY, &value);
		value.type = jbvNull;
		if (result != NULL)
		{
			size += VARSIZE(result);
			if (size > MAX_OF_RESULTS)
				return NULL;
			value.type = jbvBinary;
			value.val.binary.data = &result->root;
			value.val.binary.len = VARSIZE(result) - VARHDRSZ;
		}
		pushJsonbValue(&state, WJB_VALUE, &value);
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/*
 * Read the condition of the step, and the results that the condition is about.  Returns false
 * if the results are too large.
 */
static bool
read_question(StepContext *context, const JobqStep *step, Question *question)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(step->job_id);
	HeapTuple	row;
	TupleDesc	desc;
	bool		chain;
	bool		isnull;

	if (jobq_query_kept(&plan, "SELECT definition ->> 'when', NOT definition ? 'name' FROM jobq_internal.step"
						" WHERE job_id = $1 AND definition ->> 'when' IS NOT NULL",
						1, types, &value, NULL, SPI_OK_SELECT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the condition of step \"%s\" is gone", step->name)));
	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	question->condition = TextDatumGetCString(jobq_column(row, desc, 1, TEXTOID, NULL));
	chain = DatumGetBool(jobq_column(row, desc, 2, BOOLOID, &isnull));
	SPI_freetuptable(SPI_tuptable);
	question->of = results_of_needs(context, step, chain);
	return question->of != NULL;
}

/*
 * Evaluate the condition, without any access to tables.  arg is a Question.
 */
static void
ask(void *arg)
{
	Question   *question = arg;

	question->holds = jobq_condition_holds(question->condition, question->of);
}

/*
 * Return the CPU time used by this process, in milliseconds.
 */
static int64
own_time(void)
{
	struct rusage usage;

	(void) getrusage(RUSAGE_SELF, &usage);
	return ((int64) usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
		(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

/*
 * Evaluate the condition with the time limit.  Returns NULL, or the error.  *late is
 * true for a timeout.
 */
static ErrorData *
ask_in_time(Question *question, bool *late)
{
	ErrorData  *edata;
	int64		begun;

	for (int tries = 1;; tries++)
	{
		begun = own_time();
		enable_timeout_after(STATEMENT_TIMEOUT, TIMEOUT_MS);
		edata = scheduler_try_part(ask, question);
		disable_timeout(STATEMENT_TIMEOUT, true);

		/* discard a timeout that came after the evaluation */
		if (get_timeout_indicator(STATEMENT_TIMEOUT, true))
			QueryCancelPending = false;
		if (edata == NULL)
			break;

		/* the server lacks memory: the step is not to blame */
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES)
			ReThrowError(edata);
		*late = edata->sqlerrcode == ERRCODE_QUERY_CANCELED;
		if (!*late || own_time() >= begun + TIMEOUT_MS / 2 || tries == MAX_TRIES)
			break;
	}
	return edata;
}

/*
 * Skip the step, because the condition does not hold.
 */
static void
skip(StepContext *context, JobqStep *step, StepDone *done)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		value = Int64GetDatum(step->job_id);
	JobqJob		job;

	*done = STEP_DONE_NOTHING;
	if (!step_take_row(context, step, &job))
		return;
	jobq_query_kept(&plan, "UPDATE jobq_internal.step SET state = 's' WHERE job_id = $1",
					1, types, &value, NULL, SPI_OK_UPDATE);
	jobq_archive_unstarted(&job, CAUSE_CONDITION, NULL);
	step->state = STEP_SKIPPED;
	nest_step_ended(step);
	*done = STEP_DONE_ALL;
}

/*
 * Check the condition of a step whose needs are over.  Returns true if the step may
 * run; otherwise *done is the outcome.
 */
bool
condition_passed(StepContext *context, JobqStep *step, StepDone *done)
{
	Question	question = {0};
	ErrorData  *edata;
	bool		late = false;
	JobqError	error = {0};
	JobqJob		job;

	if (!read_question(context, step, &question))
	{
		error.sqlerrcode = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
		error.message = psprintf("the results that \"when\" of step \"%s\" is about are together larger than the allowed %zu kB",
								 step->name, MAX_OF_RESULTS / 1024);
	}
	else
	{
		edata = ask_in_time(&question, &late);
		if (edata == NULL && question.holds)
			return true;
		if (edata == NULL)
		{
			skip(context, step, done);
			return false;
		}
		error.sqlerrcode = edata->sqlerrcode;
		error.message = late
			? psprintf("\"when\" of step \"%s\" took more than %d ms", step->name, TIMEOUT_MS)
			: psprintf("\"when\" of step \"%s\": %s", step->name, edata->message);
		error.hint = edata->hint;
	}
	*done = STEP_DONE_NOTHING;
	if (!step_take_row(context, step, &job))
		return false;
	step_fail(context, step, &job, &error);
	nest_step_ended(step);
	*done = STEP_DONE_ALL;
	return false;
}
