/*-------------------------------------------------------------------------
 *
 * nest.c
 *	  Workflows that are a part of a batch: a step of another workflow, or what was added
 *	  with batch => id.
 *
 * Such a workflow is a batch of its own.  In the batch that it is part of, a job stands for
 * it, which never runs: it is blocked until the workflow is over, and then ends as that has
 * ended, in the same transaction (worker/scheduler/nest.c).  So whatever asks how far the
 * batch is needs to know of no other batches.  jobq_internal.batch.parent and parent_job
 * say which job that is.
 *
 * All of it is written by who defines the workflow, with his privileges, and within his
 * limits.  The steps of a workflow that has not begun are all blocked; it begins when
 * its state is "running".
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

static const char *const keys[] = {"workflow", "chain"};

/*
 * How many batches the batch is part of, with itself.
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
 * Find the workflow that the step is itself, if it is one.
 */
void
nest_find(NewStep *step)
{
	for (int i = 0; i < (int) lengthof(keys); i++)
	{
		JsonbValue	value;

		if (getKeyJsonValueFromContainer(&step->definition->root, keys[i], strlen(keys[i]),
										 &value) == NULL || value.type == jbvNull)
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
 * Read the description of a step that is a workflow itself, but that.  What else it says
 * are options, which all of that one's steps have.  named: as for jobq_step_parse().
 */
void
nest_parse(Jsonb *definition, const char *what, bool named, JobqSpec *spec)
{
	static const char *const others[] = {"workflow", "chain", "when", "optional", "name", "needs", NULL};
	static const char *const chain_others[] = {"workflow", "chain", "when", "optional", NULL};
	static const char *const of_jobs[] = {"kind", "payload", "map"};

	for (int i = 0; i < (int) lengthof(of_jobs); i++)
	{
		JsonbValue	value;

		if (getKeyJsonValueFromContainer(&definition->root, of_jobs[i], strlen(of_jobs[i]),
										 &value) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s is a workflow, and cannot have \"%s\"", what, of_jobs[i]),
					 errhint("Its own steps can.")));
	}
	memset(spec, 0, sizeof(JobqSpec));
	jobq_options_from_jsonb(definition, what, named ? others : chain_others, spec->options, spec->nulls);
}

/*
 * Make the job that stands for a workflow in a batch, but for that and its payload: in the
 * queue of the workflow's first job, in which its owner may enqueue.
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
 * The workflow that it stands for has this id.
 */
void
nest_set_inner(JobqJob *job, int64 inner_id)
{
	jobq_set_payload(job, jobq_text_to_jsonb(psprintf("{\"batch_id\": " INT64_FORMAT "}",
													  inner_id)));
}

/*
 * The description of such a step, to make its job from it anew in another session: without
 * the steps, which have rows of their own, and with the job's place.
 */
Jsonb *
nest_kept(Jsonb *definition, const JobqSpec *spec, const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	Datum		kept = JsonbPGetDatum(jobq_spec_keep_times(definition, spec));
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
 * Make such a job of the current user's anew, from what nest_kept() has returned; the
 * caller sets its id and its batch.
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
 * Make the job anew that stands for this workflow of the role's in a batch, and is no step
 * there, but for its id, its batch and its options: in this queue, or in the default one if
 * that is gone.
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
 * Cancel the workflow that the job stands for, or only if it has not begun; the job ends
 * when that is over.  False if there is none of which that can be said.
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
							  " AND finished_at IS NULL AND (state = 'p' OR $3)" NOBODY,
							  3, types, values, SPI_OK_SELECT) > 0;
	if (found)
	{
		static const Oid one[] = {INT8OID};
		Datum		id = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL);

		jobq_query_latest("UPDATE jobq_internal.batch SET state = 'x' WHERE id = $1", 1, one, &id,
						  SPI_OK_UPDATE);
		jobq_at_commit_batch(DatumGetInt64(id), 0, false);
		jobq_batch_changed(DatumGetInt64(id), "cancelling", false);
	}
	SPI_finish();
	return found;
}
