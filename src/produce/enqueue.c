/*-------------------------------------------------------------------------
 *
 * enqueue.c
 *	  Enqueue jobs: enqueue() and the view inbox.
 *
 * A job is a row that this transaction writes by direct heap access, and hands over at its
 * commit (commit.c).
 *
 * src/produce/enqueue.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "produce/produce.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_enqueue);
PG_FUNCTION_INFO_V1(jobq_inbox_insert);

/* Types of the columns of the view inbox. */
#define TYPE_text			TEXTOID
#define TYPE_int			INT4OID
#define TYPE_timestamptz	TIMESTAMPTZOID
#define TYPE_interval		INTERVALOID
#define TYPE_jsonb			JSONBOID
#define TYPE__text			TEXTARRAYOID

static const Oid inbox_types[] = {
	INT8OID, TEXTOID, JSONBOID,
#define JOB_OPTION(name, NAME, type, comment) TYPE_##type,
#include "produce/options.h"
};

StaticAssertDecl(lengthof(inbox_types) == 3 + NOPTION_ARGS, "\"options\" must be the last JOB_OPTION");

/*
 * Check the payload and set it.  ERROR if the payload is too large or too deep, or, for a
 * plain statement, if the statement cannot run.
 */
void
jobq_set_payload(JobqJob *job, Datum payload)
{
	if (unlikely(jobq_job_is_statement(job)))
	{
		JobqStatement unused;

		jobq_statement_read(payload, &unused);
	}
	jobq_job_set_payload(job, payload);
}

/*
 * Common part of the two functions below: everything except the context.  Sets *queue.
 * Returns whether the kind carries settings.
 */
static bool
prepare(JobqJob *job, JobqUnique *unique, const char *kind,
		const Datum *options, const bool *nulls, JobqQueue *queue)
{
	JobqHandler handler_buffer;
	const JobqHandler *handler;

	PreventCommandIfReadOnly("jobq.enqueue()");
	PreventCommandIfParallelMode("jobq.enqueue()");
	PreventCommandDuringRecovery("jobq.enqueue()");

	if (kind[0] == '\0' || strlen(kind) > JOBQ_MAX_KIND_NAME)
	{
		bool		statement = jobq_reads_as_statement(kind);

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("kind \"%s\" must have 1 to %d bytes", kind,
						JOBQ_MAX_KIND_NAME),
				 statement
				 ? errhint("This is a statement: give it as sql => to jobq.schedule(), or to jobq.enqueue_sql().") : 0));
	}
	handler = jobq_find_place(kind, nulls[OPTION_QUEUE] ? NULL
							  : TextDatumGetCString(options[OPTION_QUEUE]),
							  queue, &handler_buffer);
	jobq_job_init(job, kind, (Datum) 0, queue->id, GetUserId());

	if (!nulls[OPTION_PRIORITY])
		JOB_SET(job, JOB_PRIORITY, options[OPTION_PRIORITY]);
	else if (handler != NULL)
		JOB_SET(job, JOB_PRIORITY, Int32GetDatum(handler->priority));

	if (!nulls[OPTION_RUN_AT] && !nulls[OPTION_DELAY])
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at and delay cannot be given together"),
				 errhint("Give one of them.")));
	if (!nulls[OPTION_RUN_AT])
	{
		if (TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(options[OPTION_RUN_AT])))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("run_at must be finite")));
		JOB_SET(job, JOB_RUN_AT, options[OPTION_RUN_AT]);
	}
	else if (!nulls[OPTION_DELAY])
	{
		int64		ms = jobq_interval_ms(DatumGetIntervalP(options[OPTION_DELAY]),
										  "delay", 0,
										  JOBQ_MAX_DELAY_MS);

		JOB_SET(job, JOB_RUN_AT,
				TimestampTzGetDatum(job_run_at(job) + ms * 1000));
	}

	if (handler != NULL && handler->max_attempts >= 0)
		JOB_SET(job, JOB_MAX_ATTEMPTS, Int32GetDatum(handler->max_attempts));
	jobq_set_attempts(job, options, nulls);
	if (!nulls[OPTION_EXPIRES_AT])
		JOB_SET(job, JOB_EXPIRES_AT, options[OPTION_EXPIRES_AT]);
	else if (queue->expires_after_ms >= 0)
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(job_run_at(job),
											   queue->expires_after_ms)));
	jobq_unique_options(job, unique, options, nulls);
	if (!nulls[OPTION_GROUP_KEY])
		jobq_set_group(job, options[OPTION_GROUP_KEY]);
	if (!nulls[OPTION_HEADERS])
		JOB_SET(job, JOB_HEADERS, options[OPTION_HEADERS]);
	if (!nulls[OPTION_WATCH])
		JOB_SET(job, JOB_WATCH, options[OPTION_WATCH]);
	if (!nulls[OPTION_TAGS])
		jobq_set_tags(job, options[OPTION_TAGS]);
	return handler != NULL && handler->carries;
}

/*
 * Make a job of this kind from the options, in the caller's session.  The caller sets the
 * payload, and jobq_job_draw_id() the id.  The job gets the settings that its queue and its
 * kind carry, and the trace of the job that runs in this session.  Pins the queues
 * (jobq_pin_queues()).  ERROR if an option is invalid, or if the user may not enqueue the job.
 */
void
jobq_prepare_job(JobqJob *job, JobqUnique *unique, const char *kind,
				 const Datum *options, const bool *nulls)
{
	JobqQueue	queue;
	bool		kind_carries = prepare(job, unique, kind, options, nulls, &queue);

	unique->ask_cost = true;
	jobq_refuse_borrowed(GetUserId());
	jobq_set_context(job, &queue, kind_carries, options[OPTION_CONTEXT],
					 nulls[OPTION_CONTEXT]);
	if (jobq_current != NULL)
		jobq_follow_trace(job);
}

/*
 * Like jobq_prepare_job(), for options stored by another session.  The context was read in
 * that session, and is among the options.
 */
void
jobq_prepare_kept_job(JobqJob *job, JobqUnique *unique, const char *kind,
					  const Datum *options, const bool *nulls)
{
	JobqQueue	queue;

	jobq_refuse_merge(nulls);
	(void) prepare(job, unique, kind, options, nulls, &queue);
	unique->ask_cost = false;
	if (!nulls[OPTION_CONTEXT])
		JOB_SET(job, JOB_CONTEXT, options[OPTION_CONTEXT]);
}

/*
 * Write the job, with a new id unless it has one.  If another job holds the unique key or has the uuid, the id of *job is that
 * of the other job on return.  If the key is held and on_conflict is "ignore", the id is also
 * marked as null.  Locks jobq_internal.job for writing until the end of the transaction.  May
 * wait for transactions that write the same key or uuid, or for a position in a full queue.
 */
void
jobq_put_job(JobqJob *job, const JobqUnique *unique)
{
	Relation	rel;
	int64		id;

	jobq_job_draw_id(job);
	id = job_id(job);
	if (unique->by != NIL)
		jobq_set_unique_by(job, unique->by);

	/* before any write, because code of the user runs */
	if (unique->ask_cost)
		jobq_ask_limit_cost(job);
	rel = jobq_open_jobs();
	if (unique->uuid != (Datum) 0 && !jobq_uuid_take(rel, job, unique->uuid))
	{
		table_close(rel, NoLock);
		return;
	}
	if (JOB_ISNULL(job, JOB_UNIQUE_KEY))
	{
		jobq_length_reserve(job, 1);
		jobq_job_insert(rel, job);
		jobq_count(job, JOBQ_N_ENQUEUED, 1);
	}
	else
		jobq_unique_insert(rel, job, unique);
	if (unique->uuid != (Datum) 0 && job_id(job) != id)
		jobq_uuid_settle(job, unique->uuid);
	table_close(rel, NoLock);
}

/* Return the kind given as this argument.  ERROR if null. */
char *
jobq_kind_from_arg(FunctionCallInfo fcinfo, int arg)
{
	jobq_not_null(fcinfo, arg, "kind");
	return text_to_cstring(PG_GETARG_TEXT_PP(arg));
}

/*
 * enqueue(kind, payload, ...options) returns the job's id.
 */
Datum
jobq_enqueue(PG_FUNCTION_ARGS)
{
	char	   *kind = jobq_kind_from_arg(fcinfo, 0);
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqJob		job;
	JobqUnique	unique;

	jobq_not_null(fcinfo, 1, "payload");
	jobq_options_from_args(fcinfo, 2, options, nulls);
	jobq_prepare_job(&job, &unique, kind, options, nulls);
	jobq_set_payload(&job, PG_GETARG_DATUM(1));
	jobq_put_job(&job, &unique);
	if (JOB_ISNULL(&job, JOB_ID))
		PG_RETURN_NULL();
	PG_RETURN_INT64(job_id(&job));
}

/*
 * INSTEAD OF INSERT row trigger of the view inbox: COPY and INSERT enqueue.  The view's
 * columns are id, kind, payload, and the options.
 */
Datum
jobq_inbox_insert(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Datum		values[3 + NOPTION_ARGS];
	bool		nulls[3 + NOPTION_ARGS];
	Datum		options[NOPTIONS];
	bool		option_nulls[NOPTIONS];
	TupleDesc	desc;
	JobqJob		job;
	JobqUnique	unique;
	HeapTuple	tuple;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) ||
		!TRIGGER_FIRED_INSTEAD(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq_internal.inbox_insert() must be fired INSTEAD OF INSERT")));

	/* any user can name this function in a trigger of another view */
	if (RelationGetRelid(trigdata->tg_relation) != jobq_relations()->inbox)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq_internal.inbox_insert() is for the view jobq.inbox, not for \"%s\"",
						RelationGetRelationName(trigdata->tg_relation)),
				 errhint("Have an INSTEAD OF trigger of your own call jobq.enqueue().")));
	desc = RelationGetDescr(trigdata->tg_relation);
	jobq_check_types(desc, inbox_types, lengthof(inbox_types));
	heap_deform_tuple(trigdata->tg_trigtuple, desc, values, nulls);
	if (nulls[1])
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("kind must not be null")));

	memcpy(options, values + 3, sizeof(Datum) * NOPTION_ARGS);
	memcpy(option_nulls, nulls + 3, sizeof(bool) * NOPTION_ARGS);
	jobq_options_expand(options, option_nulls);
	jobq_prepare_job(&job, &unique, TextDatumGetCString(values[1]), options,
					 option_nulls);
	jobq_set_payload(&job, nulls[2] ? jobq_text_to_jsonb("{}") : values[2]);
	jobq_put_job(&job, &unique);

	/* RETURNING id shows the id of the job */
	values[0] = JOB(&job, JOB_ID);
	nulls[0] = JOB_ISNULL(&job, JOB_ID);
	tuple = heap_form_tuple(desc, values, nulls);
	return PointerGetDatum(tuple);
}
