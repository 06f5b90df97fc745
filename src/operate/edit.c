/*-------------------------------------------------------------------------
 *
 * edit.c
 *	  Something else for a job that waits, or for a dead letter: edit().
 *
 * Priority and run_at are the job's place in the line.  An operator may change them, as
 * long as the job waits.
 *
 * The rest is what the job does.  A job runs as its role, or as its queue says for it.
 * So this is for those who could enqueue such a job themselves, and who see what they
 * replace: they can become the job's role, and read its contents.  That role must be one
 * that may enqueue where the job stands afterwards; this is asked as that role, as if it
 * enqueued the job.  The job's log says who has edited what.
 *
 * The row of a job that waits is deleted and inserted anew under the same id, and handed
 * over at commit.  The entry that the ready set may have of the old row is dropped when it
 * is popped.  A worker that begins with the job at the same moment deletes the same row:
 * one of the two is first.  A dead letter is updated in place, and stays one until it is
 * retried.
 *
 * src/operate/edit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "commit/commit.h"
#include "compose/compose.h"
#include "operate/inner.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_edit);

const JobqArg jobq_edit_args[NEDITS] = {
	[EDIT_PAYLOAD] = {"payload", JSONBOID},
	[EDIT_HEADERS] = {"headers", JSONBOID},
	[EDIT_QUEUE] = {"queue", TEXTOID},
	[EDIT_PRIORITY] = {"priority", INT4OID},
	[EDIT_RUN_AT] = {"run_at", TIMESTAMPTZOID},
	[EDIT_MAX_ATTEMPTS] = {"max_attempts", INT4OID},
	[EDIT_BACKOFF] = {"backoff", TEXTOID},
	[EDIT_TIMEOUT] = {"timeout", INTERVALOID},
};

pg_noreturn static void not_waiting(int64 id, const char *state);
static void set_attempts(JobqJob *job, const JobqEdit *edit);
static bool check_may_edit(const JobqEdit *edit, const JobqJob *job, bool named);
static bool has_contents(const JobqEdit *edit, const JobqJob *job, bool named);
static const char *why_not(const JobqJob *job, const JobqEdit *edit);
static void change_queue(JobqJob *job, const char *name, bool live);
static void move_job(JobqJob *job, const JobqEdit *edit);
static void write_job(JobqJob *job, const JobqEdit *edit, bool live);
static bool asks_cost(const JobqEdit *edit);
static bool ask_cost(Relation rel, const JobqJob *job, const JobqEdit *edit,
					 JobqJob *priced);
static bool find_to_edit(Relation rel, int64 id, const JobqEdit *edit,
						 JobqChosen * chosen, bool named, JobqJob *job);

/*
 * An error for a job that is in the wrong state.
 */
static void
not_waiting(int64 id, const char *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_WRONG_STATE),
			 errmsg("job " INT64_FORMAT " %s", id, state),
			 errhint("Only a job that waits can be edited, and a dead letter except for its priority and run_at.")));
}

/*
 * The values are there: check those that can be checked without a job, and note what they
 * are about.
 */
void
jobq_edit_prepare(JobqEdit *edit)
{
	JobqJob		unused;

	if (!edit->nulls[EDIT_RUN_AT] &&
		TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(edit->values[EDIT_RUN_AT])))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("run_at must be finite")));
	set_attempts(&unused, edit);
	edit->moves = !edit->nulls[EDIT_PRIORITY] || !edit->nulls[EDIT_RUN_AT];
	edit->writes = !edit->moves;
	for (int i = 0; i < NEDITS; i++)
		if (!edit->nulls[i] && i != EDIT_PRIORITY && i != EDIT_RUN_AT)
			edit->writes = true;
}

static void
set_attempts(JobqJob *job, const JobqEdit *edit)
{
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];

	memset(nulls, true, sizeof(nulls));
	options[OPTION_MAX_ATTEMPTS] = edit->values[EDIT_MAX_ATTEMPTS];
	nulls[OPTION_MAX_ATTEMPTS] = edit->nulls[EDIT_MAX_ATTEMPTS];
	options[OPTION_BACKOFF] = edit->values[EDIT_BACKOFF];
	nulls[OPTION_BACKOFF] = edit->nulls[EDIT_BACKOFF];
	options[OPTION_TIMEOUT] = edit->values[EDIT_TIMEOUT];
	nulls[OPTION_TIMEOUT] = edit->nulls[EDIT_TIMEOUT];
	jobq_set_attempts(job, options, nulls);
}

/*
 * An error if the user may not "edit" or "rerun" the job of this role and queue: he
 * sees what is in it, and could enqueue it as that role.
 */
void
jobq_check_may_write(const char *what, int64 id, Oid role, int32 queue_id)
{
	if (!jobq_may(JOBQ_MAY_MONITOR, role, queue_id))
		jobq_no_such_job(id);
	if (!jobq_may(JOBQ_MAY_MANAGE, role, queue_id) || !jobq_may_become(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to %s job " INT64_FORMAT, what, id),
				 errhint("Its own role can do this, and who sees what is in it and can SET ROLE to that role.")));
	jobq_refuse_borrowed(role);
}

/*
 * May the user edit a job of this role and queue so?
 */
bool
jobq_may_edit(const JobqEdit *edit, Oid role, int32 queue_id)
{
	if (edit->writes)
		return jobq_may(JOBQ_MAY_MANAGE, role, queue_id) && jobq_may_become(role) &&
			!jobq_is_borrowed(role);
	return jobq_may(JOBQ_MAY_OPERATE, role, queue_id);
}

/*
 * The same; named: he has named the job alone, and it is an error if he may only see it.
 */
static bool
check_may_edit(const JobqEdit *edit, const JobqJob *job, bool named)
{
	Oid			role = job_role(job);
	int32		queue_id = job_queue_id(job);

	if (named && edit->writes)
		jobq_check_may_write("edit", job_id(job), role, queue_id);
	else if (named)
		jobq_refuse_to_see_only(JOBQ_MAY_OPERATE, job_id(job), role, queue_id);
	return jobq_may_edit(edit, role, queue_id);
}

/*
 * False, or an error if it is named, if the job has nothing of what is to be edited, as it
 * stands for a workflow.
 */
static bool
has_contents(const JobqEdit *edit, const JobqJob *job, bool named)
{
	if (!edit->writes || !jobq_job_is_workflow(job))
		return true;
	if (named)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " stands for a workflow, and has nothing to be edited but its priority",
						job_id(job)),
				 errhint("Edit the jobs of that workflow, whose id jobq.steps has.")));
	return false;
}

/*
 * Why the live job cannot be edited so; NULL if it can.
 */
static const char *
why_not(const JobqJob *job, const JobqEdit *edit)
{
	if (DatumGetBool(JOB(job, JOB_DORMANT)))
		return "was brought by logical replication, and runs on the publisher";
	if (jobq_job_runs(job))
		return "is running";
	if (!JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		DatumGetTimestampTz(JOB(job, JOB_EXPIRES_AT)) <= jobq_now())
		return "has expired";
	if (!edit->nulls[EDIT_RUN_AT] && job_blocked(job))
		return "is blocked: it waits for other jobs, not for a time";
	return NULL;
}

/*
 * Have the job stand in the queue of this name; the current user is its role.  Live:
 * it has a row in jobq_internal.job, which the caller has deleted.
 */
static void
change_queue(JobqJob *job, const char *name, bool live)
{
	JobqHandler handler_buffer;
	const JobqHandler *handler;
	JobqQueue	to;
	JobqQueue	buffer;
	const JobqQueue *from = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (from != NULL && strcmp(from->name, name) == 0)
	{
		jobq_require_produce(from);
		return;
	}
	if (jobq_job_expires_by(job, from))
		JOB_ISNULL(job, JOB_EXPIRES_AT) = true;
	handler = jobq_find_place(jobq_job_kind(job), name, &to, &handler_buffer);
	if (live)
		jobq_length_remove(job_queue_id(job));
	JOB_SET(job, JOB_QUEUE_ID, Int32GetDatum(to.id));
	job_clear_stat(job);
	if (live)
	{
		jobq_length_reserve(job, 1);
		jobq_change_group(job);
	}
	else if (!JOB_ISNULL(job, JOB_GROUP_KEY))
		jobq_set_group(job, JOB(job, JOB_GROUP_KEY));

	/* that of a blocked job is counted from when it is free */
	if (live && !job_blocked(job) && JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		to.expires_after_ms >= 0)
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(job_run_at(job),
											   to.expires_after_ms)));
	jobq_thin_context(job, &to, handler != NULL && handler->carries);
}

/*
 * Give the live job, which the caller has deleted, its other place in the line.
 */
static void
move_job(JobqJob *job, const JobqEdit *edit)
{
	if (!edit->moves)
		return;
	jobq_at_commit_group_moved(job_group(job), job_id(job));
	if (!edit->nulls[EDIT_RUN_AT])
		jobq_job_set_run_at(job, DatumGetTimestampTz(edit->values[EDIT_RUN_AT]));
	if (!edit->nulls[EDIT_PRIORITY])
		JOB_SET(job, JOB_PRIORITY, edit->values[EDIT_PRIORITY]);
}

/*
 * Give the job the rest that it is to have instead, but for what it costs at its limiter.
 */
static void
write_job(JobqJob *job, const JobqEdit *edit, bool live)
{
	JobqQueue	buffer;
	const JobqQueue *queue;
	Oid			userid;
	int			sec_context;
	StringInfoData told;

	if (!edit->writes)
		return;
	initStringInfo(&told);
	for (int i = 0; i < NEDITS; i++)
		if (!edit->nulls[i])
			appendStringInfo(&told, "%s %s", told.len > 0 ? "," : "",
							 jobq_edit_args[i].name);
	if (told.len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("nothing is given for job " INT64_FORMAT " to have instead",
						job_id(job)),
				 errhint("Give one of payload, headers, queue, priority, run_at, max_attempts, backoff and timeout.")));

	/* no code of the role's runs: this is about what it may enqueue */
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(job_role(job),
						   sec_context | SECURITY_LOCAL_USERID_CHANGE |
						   SECURITY_RESTRICTED_OPERATION);
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	if (!edit->nulls[EDIT_QUEUE])
		change_queue(job, TextDatumGetCString(edit->values[EDIT_QUEUE]), live);
	else if (queue != NULL)
		jobq_require_produce(queue);
	SetUserIdAndSecContext(userid, sec_context);

	set_attempts(job, edit);
	if (!edit->nulls[EDIT_HEADERS])
		JOB_SET(job, JOB_HEADERS, edit->values[EDIT_HEADERS]);

	/* what there is already may be larger than is allowed by now */
	if (!edit->nulls[EDIT_PAYLOAD] || !edit->nulls[EDIT_HEADERS])
		jobq_set_payload(job, edit->nulls[EDIT_PAYLOAD]
						 ? JOB(job, JOB_PAYLOAD) : edit->values[EDIT_PAYLOAD]);
	if (!edit->nulls[EDIT_PAYLOAD])
		jobq_step_check_payload(job);

	jobq_log_say(job, psprintf("edited by %s:%s",
							   GetUserNameFromId(userid, false), told.data));
}

/*
 * May the job cost something else then?
 */
static bool
asks_cost(const JobqEdit *edit)
{
	return !edit->nulls[EDIT_PAYLOAD] || !edit->nulls[EDIT_HEADERS] ||
		!edit->nulls[EDIT_QUEUE];
}

/*
 * Ask what the live job costs then.  Code of a user's runs, as who edits the job, who can
 * become its role: so that is while the job is in the table, with its unique key.  False if
 * somebody has changed it meanwhile; an error if that code has.
 */
static bool
ask_cost(Relation rel, const JobqJob *job, const JobqEdit *edit, JobqJob *priced)
{
	JobqJob		now;

	*priced = *job;
	if (!edit->nulls[EDIT_PRIORITY])
		JOB_SET(priced, JOB_PRIORITY, edit->values[EDIT_PRIORITY]);
	write_job(priced, edit, false);
	jobq_ask_limit_cost(priced);
	if (!jobq_find_for(JOBQ_MAY_MONITOR, rel, job_id(job), false, &now))
		return false;
	if (now.version == job->version && ItemPointerEquals(&now.ctid, &priced->ctid))
		return true;
	if (!TransactionIdIsCurrentTransactionId(now.xmin))
		return false;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("the function of its limiter has changed job " INT64_FORMAT ", which is being edited",
					job_id(job))));
}

/*
 * Find the live job that is to be edited.  False if there is none with which the user may
 * do so; and if it is one of many, also if it is not what was chosen, or cannot be edited so.
 */
static bool
find_to_edit(Relation rel, int64 id, const JobqEdit *edit, JobqChosen * chosen,
			 bool named, JobqJob *job)
{
	const char *state;

	if (!jobq_find_chosen(JOBQ_MAY_MONITOR, rel, id, chosen, job) ||
		!check_may_edit(edit, job, named))
		return false;
	state = why_not(job, edit);
	if (state != NULL && named)
		not_waiting(id, state);
	return state == NULL && has_contents(edit, job, named);
}

/*
 * Edit a live job: one of many, or one that is named alone, if chosen is NULL.  False as
 * in find_to_edit().
 */
bool
jobq_edit_live(Relation rel, int64 id, const JobqEdit *edit, JobqChosen * chosen)
{
	bool		named = chosen == NULL;
	JobqChosen	any = {0};
	JobqJob		priced;
	JobqJob		job;

	if (jobq_current_of(id) != NULL)
	{
		if (named)
			not_waiting(id, "is running");
		return false;
	}
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (!find_to_edit(rel, id, edit, named ? &any : chosen, named, &job))
			return false;
		if (asks_cost(edit) && !ask_cost(rel, &job, edit, &priced))
			continue;
		if (jobq_job_delete_or_blocker(rel, &job, &blocker))
			break;

		/*
		 * Its worker is just about to begin or to end it, or another session
		 * works on it: look again when that transaction is over, unless a
		 * worker shows up first.
		 */
		if (!jobq_job_runs(&job) && TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(&job);

	/* a consumer that has got hold of it since will find the lease gone */
	jobq_end_lease(&job, named);
	move_job(&job, edit);
	write_job(&job, edit, true);
	if (asks_cost(edit))
	{
		JOB(&job, JOB_LIMIT_COST) = JOB(&priced, JOB_LIMIT_COST);
		JOB_ISNULL(&job, JOB_LIMIT_COST) = JOB_ISNULL(&priced, JOB_LIMIT_COST);
	}
	jobq_job_insert(rel, &job);
	jobq_state_changed(&job, jobq_waiting_state(&job, jobq_now()));
	return true;
}

/*
 * Edit a dead letter, which is named alone or one of many.  False if there is none with
 * which the user may do so.
 */
bool
jobq_edit_letter(int64 id, const JobqEdit *edit, bool named)
{
	static const Oid types[] = {INT8OID, JSONBOID, JSONBOID, INT4OID, INT4OID,
	TEXTOID, INT4OID, JSONBOID, JSONBOID, TEXTOID, INT4OID};
	static const int columns[] = {JOB_ID, JOB_PAYLOAD, JOB_HEADERS,
		JOB_QUEUE_ID, JOB_MAX_ATTEMPTS, JOB_BACKOFF, JOB_TIMEOUT, JOB_CONTEXT,
	JOB_LOG, JOB_TENANT, JOB_LIMIT_COST};
	Datum		values[lengthof(columns)];
	char		nulls[lengthof(columns) + 1] = "";
	JobqQueue	buffer;
	char	   *tenant;
	JobqJob		job;

	SPI_connect();
	values[0] = Int64GetDatum(id);
	if (jobq_query("SELECT" JOB_OF_LETTER " FROM jobq_internal.dead_letter WHERE id = $1 FOR UPDATE",
				   1, types, values, NULL, SPI_OK_SELECT) == 0)
	{
		SPI_finish();
		return false;
	}
	jobq_check_row(SPI_tuptable->tupdesc, JOBQ_JOB_TABLE);
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, job.values,
					  job.nulls);
	job_clear_stat(&job);
	if (!check_may_edit(edit, &job, named))
	{
		SPI_finish();
		return false;
	}
	if (edit->moves)
		not_waiting(id, "is a dead letter");
	if (!has_contents(edit, &job, named))
	{
		SPI_finish();
		return false;
	}
	write_job(&job, edit, false);
	if (asks_cost(edit))
		jobq_ask_limit_cost(&job);
	tenant = jobq_job_tenant(&job, jobq_queue_by_id(job_queue_id(&job), &buffer));
	JOB_ISNULL(&job, JOB_TENANT) = tenant == NULL;
	if (tenant != NULL)
		JOB_SET(&job, JOB_TENANT, CStringGetTextDatum(tenant));
	for (int i = 0; i < (int) lengthof(columns); i++)
	{
		values[i] = JOB(&job, columns[i]);
		nulls[i] = JOB_ISNULL(&job, columns[i]) ? 'n' : ' ';
	}
	jobq_query("UPDATE jobq_internal.dead_letter SET payload = $2, headers = $3, queue_id = $4,"
			   " max_attempts = $5, backoff = $6, timeout_ms = $7, context = $8,"
			   " log = $9, tenant = $10, limit_cost = $11 WHERE id = $1",
			   lengthof(types), types, values, nulls, SPI_OK_UPDATE);
	SPI_finish();
	return true;
}

/*
 * edit(id, payload, headers, queue, priority, run_at, max_attempts, backoff, timeout): give
 * a job that waits, or a dead letter, these instead of what it has; what is null stays.
 */
Datum
jobq_edit(PG_FUNCTION_ARGS)
{
	int64		id;
	JobqEdit	edit;
	Relation	rel;

	PreventCommandIfReadOnly("jobq.edit()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("id must not be null")));
	id = PG_GETARG_INT64(0);
	for (int i = 0; i < NEDITS; i++)
	{
		edit.nulls[i] = PG_ARGISNULL(i + 1);
		edit.values[i] = edit.nulls[i] ? (Datum) 0 : PG_GETARG_DATUM(i + 1);
	}
	jobq_edit_prepare(&edit);

	if (edit.writes)
		jobq_pin_queues();
	rel = jobq_open_jobs();

	/* between the two looks it may fail, or be retried */
	if (!jobq_edit_live(rel, id, &edit, NULL) && !jobq_edit_letter(id, &edit, true) &&
		!jobq_edit_live(rel, id, &edit, NULL))
	{
		jobq_check_finished(id);
		not_waiting(id, "has finished");
	}
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
