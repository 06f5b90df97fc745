/*-------------------------------------------------------------------------
 *
 * nest.c
 *	  Workflows within another batch: a step of another workflow, or a workflow created
 *	  with batch_id => id.
 *
 * A nested workflow is a batch of its own.  In the outer batch, a job represents the nested
 * workflow.  The job never runs.  It is blocked until the nested workflow is over, and ends
 * with the same outcome, in the same transaction (worker/scheduler/nest.c).  Code that
 * reads the progress of the outer batch therefore needs no knowledge of nested batches.
 * The columns parent and parent_job of jobq_internal.batch identify the job.
 *
 * The defining role writes all rows, with its own privileges and within its own limits.
 * The steps of a workflow that has not begun are all blocked.  The workflow begins when its
 * state becomes "running".
 *
 * src/compose/nest.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "compose/inner.h"

const char *const step_keys[] = {"name", "needs", "map", "when", "optional", "workflow", "chain", NULL};

static const char *const keys[] = {"workflow", "chain"};

/* step_keys without "map" */
static const char *const nested_keys[] = {"name", "needs", "when", "optional", "workflow", "chain", NULL};

/*
 * Get the value of a key of the object.  Returns false if there is none, or null.
 */
bool
member_of(const Jsonb *object, const char *key, JsonbValue *value)
{
	return getKeyJsonValueFromContainer(unconstify(JsonbContainer *, &object->root), key, strlen(key),
										value) != NULL &&
		value->type != jbvNull;
}

/*
 * Return the nesting level of the batch: 1 for a batch without an outer batch.  The caller
 * must not be connected to SPI.
 */
int
nest_level(int64 batch_id)
{
	static const Oid types[] = {INT8OID};
	Datum		value = Int64GetDatum(batch_id);
	int			level;

	SPI_connect();
	level = (int) jobq_query("WITH RECURSIVE above AS (SELECT $1 AS id UNION"
							 "  SELECT b.parent FROM above a JOIN jobq_internal.batch b ON b.id = a.id"
							 "  WHERE b.parent IS NOT NULL)"
							 " SELECT FROM above LIMIT 100",
							 1, types, &value, NULL, SPI_OK_SELECT);
	SPI_finish();
	return level;
}

/*
 * Find the definition of the nested workflow of a step, and set step->nested if there is
 * one.  ERROR if the definition has the wrong type, or the step has both "workflow" and
 * "chain".
 */
void
nest_find(NewStep *step)
{
	for (int i = 0; i < (int) lengthof(keys); i++)
	{
		JsonbValue	value;

		if (!member_of(step->definition, keys[i], &value))
			continue;
		if (step->nested != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s has both \"workflow\" and \"chain\"", step->what)));
		if (value.type != jbvBinary)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" of %s must be an array of steps, or an object",
							keys[i], step->what),
					 errhint("Write [{\"kind\": \"...\", ...}, ...] or {\"steps\": [...], ...}.")));
		step->nested = JsonbValueToJsonb(&value);
		step->nested_chain = i == 1;
	}
}

/*
 * Parse the definition of a step with a nested workflow, except the workflow itself.  The
 * remaining keys are options that apply to all steps of the nested workflow.  named: as for
 * jobq_step_parse().  ERROR if the definition is invalid, or has a kind, a payload or
 * "map".
 */
void
nest_parse(Jsonb *definition, const char *what, bool named, JobqSpec *spec)
{
	static const char *const of_jobs[] = {"kind", "payload", "map"};

	for (int i = 0; i < (int) lengthof(of_jobs); i++)
	{
		JsonbValue	value;

		if (getKeyJsonValueFromContainer(&definition->root, of_jobs[i], strlen(of_jobs[i]),
										 &value) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s is a workflow, and cannot have \"%s\"", what, of_jobs[i]),
					 errhint("The steps of the nested workflow can.")));
	}
	memset(spec, 0, sizeof(JobqSpec));
	jobq_options_from_jsonb(definition, what, named ? nested_keys : nested_keys + STEP_KEYS_NAMED, spec->options, spec->nulls);
}

/*
 * Make the job for a nested workflow in the outer batch.  first: the first job of the
 * nested workflow.  Its queue is used, because the owner may enqueue there.  The caller
 * sets the payload and the batch.
 */
void
nest_prepare(JobqJob *job, const JobqJob *first, const JobqSpec *spec)
{
	jobq_job_init(job, JOBQ_WORKFLOW_KIND, (Datum) 0, job_queue_id(first), GetUserId());
	JOB_SET(job, JOB_PRIORITY, JOB(first, JOB_PRIORITY));
	if (!spec->nulls[OPTION_HEADERS])
		JOB_SET(job, JOB_HEADERS, spec->options[OPTION_HEADERS]);
	if (!spec->nulls[OPTION_WATCH])
		JOB_SET(job, JOB_WATCH, spec->options[OPTION_WATCH]);
	if (!spec->nulls[OPTION_TAGS])
		jobq_set_tags(job, spec->options[OPTION_TAGS]);
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(DT_NOEND));
}

/*
 * Store the id of a nested workflow in the payload of the job for the workflow.
 */
void
nest_set_inner(JobqJob *job, int64 inner_id)
{
	jobq_set_payload(job, jobq_text_to_jsonb(psprintf("{\"batch_id\": " INT64_FORMAT "}",
													  inner_id)));
}

/*
 * Return the definition to be stored for a step with a nested workflow.  nest_restore() can
 * make the job from this definition in another session.  The steps are omitted, because
 * they have their own rows.  The job's queue and priority are added.
 */
Jsonb *
nest_kept(Jsonb *definition, const JobqSpec *spec, const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	Datum		kept = JsonbPGetDatum(jobq_options_keep_times(definition, spec->options, spec->nulls));
	StringInfoData place;

	for (int i = 0; i < (int) lengthof(keys); i++)
		kept = DirectFunctionCall2(jsonb_delete, kept, CStringGetTextDatum(keys[i]));
	initStringInfo(&place);
	appendStringInfo(&place, "{\"priority\": %d, \"queue\": ", job_priority(job));
	escape_json(&place, queue != NULL ? queue->name : "default");
	appendStringInfoChar(&place, '}');
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat, kept,
											  jobq_text_to_jsonb(place.data)));
}

/*
 * Make the job for a nested workflow anew, owned by the current user.  definition: the
 * result of nest_kept().  The caller sets the id and the batch.
 */
void
nest_restore(JobqJob *job, Jsonb *definition, const char *what, int64 inner_id)
{
	JobqSpec	spec;
	JobqJob		first;
	JobqQueue	buffer;
	const JobqQueue *queue;

	nest_parse(definition, what, true, &spec);
	queue = jobq_queue_by_name(spec.nulls[OPTION_QUEUE] ? "default"
							   : TextDatumGetCString(spec.options[OPTION_QUEUE]),
							   true, &buffer);
	jobq_job_init(&first, JOBQ_WORKFLOW_KIND, (Datum) 0, queue->id, GetUserId());
	if (!spec.nulls[OPTION_PRIORITY])
		JOB_SET(&first, JOB_PRIORITY, spec.options[OPTION_PRIORITY]);
	nest_prepare(job, &first, &spec);
	nest_set_inner(job, inner_id);
}

/*
 * Make the job for a nested workflow anew, owned by the role.  The workflow is part of the
 * outer batch, but not a step there.  The job is in the given queue, or in the default
 * queue if this queue no longer exists.  The caller sets the id, the batch and the options.
 * Called by the scheduler.
 */
void
jobq_nest_make_job(JobqJob *job, int64 inner_id, int32 queue_id, Oid role)
{
	JobqQueue	buffer;

	if (jobq_queue_by_id(queue_id, &buffer) == NULL)
		queue_id = jobq_queue_by_name("default", true, &buffer)->id;
	jobq_job_init(job, JOBQ_WORKFLOW_KIND, (Datum) 0, queue_id, role);
	JOB_SET(job, JOB_RUN_AT, TimestampTzGetDatum(DT_NOEND));
	nest_set_inner(job, inner_id);
}

/*
 * Cancel the nested workflow that the job represents.  begun: also cancel a workflow that
 * has begun.  The job ends when the nested workflow is over.  Returns false if there is no
 * such workflow.  Locks the row of the nested batch.  The caller must not be connected to
 * SPI.
 */
bool
jobq_batch_cancel_nested(const JobqJob *job, bool begun)
{
	static const Oid types[] = {INT8OID, INT8OID, BOOLOID};
	Datum		values[] = {JOB(job, JOB_BATCH_ID), JOB(job, JOB_ID), BoolGetDatum(begun)};
	bool		found;

	if (job_batch(job) == 0)
		return false;
	SPI_connect();
	found = jobq_query_latest("SELECT id FROM jobq_internal.batch WHERE parent = $1 AND parent_job = $2"
							  " AND finished_at IS NULL AND (state = 'p' OR $3) FOR NO KEY UPDATE",
							  3, types, values, SPI_OK_SELECT) > 0;
	if (found)
	{
		static const Oid one[] = {INT8OID};
		Datum		id = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL);

		jobq_query_latest("UPDATE jobq_internal.batch" BATCH_CANCELS "id = $1", 1, one, &id,
						  SPI_OK_UPDATE);
		jobq_at_commit_batch(DatumGetInt64(id), 0, false);
		jobq_batch_changed(DatumGetInt64(id), "cancelling", false);
	}
	SPI_finish();
	return found;
}
