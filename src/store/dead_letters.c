/*-------------------------------------------------------------------------
 *
 * dead_letters.c
 *	  Dead letters: permanently failed jobs.
 *
 * As in archive.c, all changes are part of the transaction that deletes the job's row.
 *
 * src/store/dead_letters.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_letter_changed);

/*
 * Insert a permanently failed job into the dead letters.  The caller deletes the job's row.
 * started_at is DT_NOBEGIN if the job never ran.  fingerprint: of the error.
 */
void
jobq_dead_letter(const JobqJob *job, TimestampTz now, TimestampTz started_at,
				 const JobqError *error, int64 fingerprint)
{
	Datum		values[DEAD_NATTS];
	bool		nulls[DEAD_NATTS] = {0};
	Relation	rel = jobq_open_table(JOBQ_DEAD_LETTER_TABLE, RowExclusiveLock);
	JobqLetterName name;

#define COPY_FIELD(to, from) \
	(values[(to) - 1] = JOB(job, from), nulls[(to) - 1] = JOB_ISNULL(job, from))
	values[DEAD_FINISHED_AT - 1] = TimestampTzGetDatum(now);
	COPY_FIELD(DEAD_ID, JOB_ID);
	COPY_FIELD(DEAD_ENQUEUED_AT, JOB_ENQUEUED_AT);
	values[DEAD_STARTED_AT - 1] = TimestampTzGetDatum(started_at);
	nulls[DEAD_STARTED_AT - 1] = started_at == DT_NOBEGIN;
	COPY_FIELD(DEAD_RUN_AT, JOB_RUN_AT);
	COPY_FIELD(DEAD_QUEUE_ID, JOB_QUEUE_ID);
	COPY_FIELD(DEAD_PRIORITY, JOB_PRIORITY);
	COPY_FIELD(DEAD_ROLE, JOB_ROLE);
	COPY_FIELD(DEAD_ATTEMPT, JOB_ATTEMPT);
	COPY_FIELD(DEAD_MAX_ATTEMPTS, JOB_MAX_ATTEMPTS);
	COPY_FIELD(DEAD_EXCEPTIONS, JOB_EXCEPTIONS);
	COPY_FIELD(DEAD_CRASHES, JOB_CRASHES);
	COPY_FIELD(DEAD_WATCH, JOB_WATCH);
	COPY_FIELD(DEAD_KIND, JOB_KIND);
	COPY_FIELD(DEAD_PAYLOAD, JOB_PAYLOAD);
	COPY_FIELD(DEAD_TIMEOUT, JOB_TIMEOUT);
	COPY_FIELD(DEAD_HEADERS, JOB_HEADERS);
	COPY_FIELD(DEAD_BACKOFF, JOB_BACKOFF);
	COPY_FIELD(DEAD_ERRORS, JOB_ERRORS);
	COPY_FIELD(DEAD_GROUP_KEY, JOB_GROUP_KEY);
	COPY_FIELD(DEAD_UNIQUE_UNTIL, JOB_UNIQUE_UNTIL);
	COPY_FIELD(DEAD_UNIQUE_QUEUE, JOB_UNIQUE_QUEUE);
	COPY_FIELD(DEAD_UNIQUE_KEY, JOB_UNIQUE_KEY);
	COPY_FIELD(DEAD_BATCH_ID, JOB_BATCH_ID);
	COPY_FIELD(DEAD_LOG, JOB_LOG);
	COPY_FIELD(DEAD_CONTEXT, JOB_CONTEXT);
	COPY_FIELD(DEAD_TENANT, JOB_TENANT);
	COPY_FIELD(DEAD_TAGS, JOB_TAGS);
	COPY_FIELD(DEAD_LIMIT_COST, JOB_LIMIT_COST);
	COPY_FIELD(DEAD_ASKED_BY, JOB_ASKED_BY);
	values[DEAD_FINGERPRINT - 1] = Int64GetDatum(fingerprint);
	values[DEAD_ERROR - 1] = CStringGetTextDatum(error->message);
	values[DEAD_SQLSTATE - 1] =
		CStringGetTextDatum(unpack_sql_state(error->sqlerrcode));
	nulls[DEAD_ERROR_CONTEXT - 1] = error->context == NULL;
	if (error->context != NULL)
		values[DEAD_ERROR_CONTEXT - 1] = CStringGetTextDatum(error->context);

	(void) jobq_insert_row(rel, values, nulls);
	table_close(rel, NoLock);
	name.queue_id = job_queue_id(job);
	name.role = job_role(job);
	name.kind = DatumGetTextPP(JOB(job, JOB_KIND));
	name.tenant = JOB_ISNULL(job, JOB_TENANT) ? NULL
		: DatumGetTextPP(JOB(job, JOB_TENANT));
	jobq_count_letter(&name, 1);
	jobq_count(job, JOBQ_N_DEAD, 1);
	if (job_asked_by(job) != 0)
		jobq_answer_failed(job, "dead", error);
}

/*
 * Set *name to the names by which a row of jobq_internal.dead_letter is counted.  The pointers
 * point into the row.
 */
void
jobq_letter_name(Relation rel, HeapTuple tuple, JobqLetterName * name)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		isnull;
	Datum		tenant;

	name->queue_id = DatumGetInt32(jobq_column(tuple, desc, DEAD_QUEUE_ID, INT4OID, NULL));
	name->role = DatumGetObjectId(jobq_column(tuple, desc, DEAD_ROLE, jobq_relations()->role_type, NULL));
	name->kind = DatumGetTextPP(jobq_column(tuple, desc, DEAD_KIND, TEXTOID, NULL));
	tenant = jobq_column(tuple, desc, DEAD_TENANT, TEXTOID, &isnull);
	name->tenant = isnull ? NULL : DatumGetTextPP(tenant);
}

/*
 * BEFORE row trigger on jobq_internal.dead_letter: counts dead letters deleted or renamed by
 * any statement, or inserted by logical replication.
 */
Datum
jobq_letter_changed(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	JobqLetterName name;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigdata->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq_internal.letter_changed() must be fired BEFORE ... FOR EACH ROW")));
	if (jobq_relations_if_installed() == NULL)
	{
		/* the extension has another version: counted when versions match */
		jobq_at_commit_unnoted();
		return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event)
							   ? trigdata->tg_newtuple : trigdata->tg_trigtuple);
	}
	if (RelationGetRelid(trigdata->tg_relation) != jobq_relations()->dead_letter)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("jobq_internal.letter_changed() is for the table jobq_internal.dead_letter, not for \"%s\"",
						RelationGetRelationName(trigdata->tg_relation))));
	jobq_letter_name(trigdata->tg_relation, trigdata->tg_trigtuple, &name);
	jobq_count_letter(&name, TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) ? 1 : -1);
	if (!TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		return PointerGetDatum(trigdata->tg_trigtuple);
	jobq_letter_name(trigdata->tg_relation, trigdata->tg_newtuple, &name);
	jobq_count_letter(&name, 1);
	return PointerGetDatum(trigdata->tg_newtuple);
}
