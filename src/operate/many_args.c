/*-------------------------------------------------------------------------
 *
 * many_args.c
 *	  Arguments of the functions for many jobs.
 *
 * Each function builds a JobqMany from the arguments.  many.c executes the JobqMany.
 *
 * src/operate/many_args.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "compose/compose.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_cancel_many);
PG_FUNCTION_INFO_V1(jobq_retry_many);
PG_FUNCTION_INFO_V1(jobq_edit_many);
PG_FUNCTION_INFO_V1(jobq_delete_many);
PG_FUNCTION_INFO_V1(jobq_rerun_steps);

/* Name and permitted values of "state" of each function. */
static const struct
{
	const char *name;
	const char *states;
}			actions[] = {
	[MANY_CANCEL] = {"cancel_many", "waiting, scheduled, ready, running, suspended, retryable, blocked"},
	[MANY_RETRY] = {"retry_many", "dead, retryable"},
	[MANY_EDIT] = {"edit_many", "waiting, scheduled, ready, suspended, retryable, blocked, dead"},
	[MANY_DELETE] = {"delete_many", "dead"},
};

static void set_changes(JobqMany * many, Jsonb *changes);
static bool is_whole_batch(const JobqMany * many);

static void
init_many(JobqMany * many, JobqManyAction action)
{
	memset(many, 0, sizeof(JobqMany));
	memset(many->nulls, true, sizeof(many->nulls));
	many->action = action;
}

/*
 * Return the time that lies the given interval in the past.  ERROR if the interval is negative
 * or too long.
 */
static TimestampTz
age_filter(const JobqMany * many, int filter)
{
	return jobq_now() - 1000 *
		jobq_interval_ms(DatumGetIntervalP(many->values[filter]),
						 jobq_filters[filter].name, 0, JOBQ_MAX_DELAY_MS);
}

/*
 * Return the permitted values of "state", given the changes of edit_many().
 */
static const char *
states_for(const JobqMany * many)
{
	if (!many->edit.moves)
		return actions[many->action].states;
	return many->edit.nulls[EDIT_RUN_AT] ? "waiting, scheduled, ready, suspended, retryable, blocked"
		: "waiting, scheduled, ready, retryable";
}

/*
 * Check all conditions, and convert some of them to the form used by the query.  ERROR if a
 * condition is not valid.
 */
static void
check_many(JobqMany * many)
{
	const char *name = actions[many->action].name;

	if (!many->nulls[FILTER_QUEUE])
		many->queue_id =
			jobq_existing_queue(TextDatumGetCString(many->values[FILTER_QUEUE]));
	if (!many->nulls[FILTER_OLDER_THAN])
		many->before = age_filter(many, FILTER_OLDER_THAN);
	if (!many->nulls[FILTER_NEWER_THAN])
		many->after = age_filter(many, FILTER_NEWER_THAN);
	if (!many->nulls[FILTER_STATE])
	{
		char	   *state = TextDatumGetCString(many->values[FILTER_STATE]);

		if (jobq_word_number(states_for(many), state) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("jobq.%s() is not for jobs in the state \"%s\"",
							name, state),
					 errhint("The states are %s.", states_for(many))));
	}
	if (!many->nulls[FILTER_SQLSTATE])
	{
		char	   *code = TextDatumGetCString(many->values[FILTER_SQLSTATE]);

		if (strlen(code) != 5 ||
			strspn(code, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("sqlstate \"%s\" has not five digits or capital letters",
							code)));
	}

	/*
	 * LIKE would raise this error only if a text matches up to that point,
	 * and so would reveal something about jobs of other roles.
	 */
	if (!many->nulls[FILTER_ERROR])
		for (const char *c = TextDatumGetCString(many->values[FILTER_ERROR]);
			 *c != '\0'; c++)
			if (*c == '\\' && *++c == '\0')
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_ESCAPE_SEQUENCE),
						 errmsg("the pattern of error must not end with its escape character"),
						 errhint("A backslash that stands for itself is doubled.")));

	/* an empty list would select every job with tags */
	if (!many->nulls[FILTER_TAGS] &&
		ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(many->values[FILTER_TAGS])),
					   ARR_DIMS(DatumGetArrayTypeP(many->values[FILTER_TAGS]))) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tags must not be empty"),
				 errhint("Leave it out to choose by other conditions.")));
	if (!many->nulls[FILTER_MAX_JOBS] &&
		DatumGetInt64(many->values[FILTER_MAX_JOBS]) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_jobs " INT64_FORMAT " is out of range",
						DatumGetInt64(many->values[FILTER_MAX_JOBS])),
				 errhint("It must be at least 1.")));

	/*
	 * A retry of the whole batch has further checks.  These come last,
	 * because the dead letters and then the batch are locked.
	 */
	if (is_whole_batch(many))
		jobq_batch_check_retry(DatumGetInt64(many->values[FILTER_BATCH_ID]));
}

/*
 * True if the operation retries all dead letters of a batch, without a further condition.
 */
static bool
is_whole_batch(const JobqMany * many)
{
	if (many->action != MANY_RETRY || many->nulls[FILTER_BATCH_ID] || !jobq_many_of_letters(many))
		return false;
	for (int i = 0; i < NFILTERS; i++)
		if (i != FILTER_BATCH_ID && i != FILTER_STATE && i != FILTER_DRY_RUN && !many->nulls[i])
			return false;
	return true;
}

/*
 * ERROR if no condition is given, so that null variables do not select all jobs.
 */
static void
check_some_condition(const JobqMany * many)
{
	for (int i = 0; i < NFILTERS; i++)
		if (i != FILTER_MAX_JOBS && i != FILTER_DRY_RUN && !many->nulls[i])
			return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("jobq.%s() has no condition", actions[many->action].name),
			 errhint("To mean all jobs, write older_than => '0'.")));
}

/*
 * Common code of the functions that take all conditions as arguments.  Returns the number of
 * processed jobs.  ERROR if a condition is not valid, if there is no condition, and in a
 * read-only transaction.
 */
static int64
run_function(FunctionCallInfo fcinfo, JobqManyAction action)
{
	int			first = action == MANY_EDIT ? 1 : 0;
	int64		done;
	JobqMany	many;

	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly(psprintf("jobq.%s()", actions[action].name));
	init_many(&many, action);
	if (first > 0)
		set_changes(&many, PG_ARGISNULL(0) ? NULL : PG_GETARG_JSONB_P(0));
	for (int i = 0; i < NFILTERS; i++)
	{
		many.nulls[i] = PG_ARGISNULL(first + i);
		if (!many.nulls[i])
			many.values[i] = PG_GETARG_DATUM(first + i);
	}
	many.dry_run = !many.nulls[FILTER_DRY_RUN] && DatumGetBool(many.values[FILTER_DRY_RUN]);
	check_many(&many);
	check_some_condition(&many);
	done = jobq_many_run(&many);
	if (!many.dry_run)
		jobq_audit(fcinfo, done);
	return done;
}

/*
 * cancel_many(conditions): cancel all live jobs that fulfil the conditions, and return the
 * number of jobs.  Workers of running jobs are asked to stop.  ERROR as in run_function().
 */
Datum
jobq_cancel_many(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run_function(fcinfo, MANY_CANCEL));
}

/*
 * retry_many(conditions): turn dead letters into jobs again, or with state "retryable" let
 * waiting jobs run now.  Returns the number of jobs.  ERROR as in run_function().
 */
Datum
jobq_retry_many(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run_function(fcinfo, MANY_RETRY));
}

/*
 * edit_many(changes, conditions): edit all jobs that fulfil the conditions, and return the
 * number of jobs.  ERROR as in run_function(), and if "changes" is not valid.
 */
Datum
jobq_edit_many(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run_function(fcinfo, MANY_EDIT));
}

/*
 * delete_many(conditions): delete all dead letters that fulfil the conditions, and return
 * the number of dead letters.  ERROR as in run_function().
 */
Datum
jobq_delete_many(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(run_function(fcinfo, MANY_DELETE));
}

/*
 * Return a string or number of jsonb as text for a type's input function, or NULL for another
 * value.
 */
static char *
jsonb_as_text(JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out,
													   NumericGetDatum(value->val.numeric)));
		default:
			return NULL;
	}
}

/*
 * Convert a member of "changes" to the type of the argument of edit() with the same name.
 * ERROR if the value cannot be converted.
 */
static Datum
value_from_jsonb(const JobqArg *arg, JsonbValue *value)
{
	char	   *text = jsonb_as_text(value);
	Oid			input;
	Oid			param;

	if (text == NULL || (arg->type == TEXTOID && value->type != jbvString))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" of changes must be a value of type %s", arg->name,
						format_type_be(arg->type))));
	getTypeInputInfo(arg->type, &input, &param);
	return OidInputFunctionCall(input, text, param, -1);
}

/*
 * Read "changes", the new values for edit_many(): a jsonb object with arguments of edit() as
 * members.  payload and headers are excluded, because they differ by job.  ERROR if a member
 * is unknown or not valid, or if no value is given.
 */
static void
set_changes(JobqMany * many, Jsonb *changes)
{
	static const char members[] = "queue, priority, run_at, max_attempts, backoff, timeout";
	JobqEdit   *edit = &many->edit;
	bool		any = false;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	value;

	if (changes == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("changes must not be null")));
	if (!JB_ROOT_IS_OBJECT(changes))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("changes must be an object"),
				 errhint("Its members can be %s, such as '{\"priority\": 5}'.", members)));
	memset(edit->nulls, true, sizeof(edit->nulls));
	it = JsonbIteratorInit(&changes->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *key;
		int			arg = 0;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		while (arg < NEDITS && strcmp(key, jobq_edit_args[arg].name) != 0)
			arg++;
		if (arg == NEDITS || jobq_word_number(members, key) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("changes must not have the member \"%s\"", key),
					 errhint("Its members can be %s.", members)));
		if (value.type == jbvNull)
			continue;
		edit->values[arg] = value_from_jsonb(&jobq_edit_args[arg], &value);
		edit->nulls[arg] = false;
		any = true;
	}
	if (!any)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("changes has no member that is not null"),
				 errhint("Its members can be %s.", members)));
	jobq_edit_prepare(edit);
}

/*
 * rerun_steps(batch_id, step): run a step of a workflow again, with all dependent steps.  With
 * a null step, run all steps again that have not completed.  Returns the number of steps.
 */
Datum
jobq_rerun_steps(PG_FUNCTION_ARGS)
{
	JobqMany	many;
	List	   *batches;
	ListCell   *lc;
	int64		id;
	int64		n;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	id = PG_GETARG_INT64(0);
	PreventCommandIfReadOnly("jobq.rerun_steps()");
	if (!PG_ARGISNULL(1))
	{
		n = jobq_workflow_rerun(id, text_to_cstring(PG_GETARG_TEXT_PP(1)));
		jobq_audit(fcinfo, n);
		PG_RETURN_INT64(n);
	}
	n = jobq_workflow_restore(id, &batches);
	foreach(lc, batches)
	{
		int64		revived;

		init_many(&many, MANY_RETRY);
		many.values[FILTER_BATCH_ID] = Int64GetDatum(*(int64 *) lfirst(lc));
		many.nulls[FILTER_BATCH_ID] = false;
		revived = jobq_many_run(&many);
		if (lc == list_head(batches))
			n += revived;
	}
	jobq_audit(fcinfo, n);
	PG_RETURN_INT64(n);
}
