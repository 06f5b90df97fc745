/*-------------------------------------------------------------------------
 *
 * edit.c
 *	  edit(): change a waiting job or a dead letter.
 *
 * Priority and run_at determine the job's position in its queue.  An operator may change
 * both while the job waits.
 *
 * The remaining values determine the work of the job.  A job runs as its role, or as run_as
 * of its queue.  Therefore the editing user must be able to enqueue such a job and to see
 * the replaced values.  This requires the ability to become the job's role, and the right to
 * read the job.  The job's role must still be allowed to enqueue into the job's queue after
 * the edit.  This check runs as the job's role.  The job's log records the user and the
 * edited fields.
 *
 * The row of a waiting job is deleted, inserted again under the same id, and pushed to the
 * ready set at commit.  An entry for the old row in the ready set is dropped when popped.  A
 * worker that starts the job at the same moment deletes the same row, so only one
 * transaction succeeds.  A dead letter is updated in place, and stays a dead letter until a
 * retry.
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

/*
 * Raise the error for a job in the wrong state.  state: the predicate of the message.
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
 * Check the values in *edit as far as possible without a job, and set the fields "moves" and
 * "writes".  ERROR if a value is not valid.
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
 * ERROR unless the current user may edit or rerun the job with this role and queue.  The user
 * must have the privilege to read the job's contents, and must be able to become the role.
 * what: "edit" or "rerun", for the message.  A user who may not even see the job gets the
 * error of a missing job.
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
 * True if the current user may make this edit of a job with this role and queue.
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
 * Like jobq_may_edit().  named: the caller named this single job, so ERROR if the user may see
 * the job but not edit it.
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
 * False, or ERROR if the job is named, if the job stands for a workflow and thus has no
 * contents to edit.
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
 * Return the reason why this edit of the live job is not possible, or NULL.  The reason is a
 * predicate for not_waiting().
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
 * Move the job to the queue with this name.  The current user is the job's role.  ERROR if the
 * role may not enqueue there.  live: the job comes from jobq_internal.job, and the caller has
 * deleted its row.
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

	/* a blocked job expires counted from the end of its block */
	if (live && !job_blocked(job) && JOB_ISNULL(job, JOB_EXPIRES_AT) &&
		to.expires_after_ms >= 0)
		JOB_SET(job, JOB_EXPIRES_AT,
				TimestampTzGetDatum(jobq_later(job_run_at(job),
											   to.expires_after_ms)));
	jobq_thin_context(job, &to, handler != NULL && handler->carries);
}

/*
 * Set the new priority and run_at of a live job, whose row the caller has deleted.
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
 * Set all remaining new values of the job, except the cost at the limiter.  live: as in
 * change_queue().  ERROR if the job's role may not enqueue the result, or if no value is
 * given.
 */
static void
write_job(JobqJob *job, const JobqEdit *edit, bool live)
{
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqRoleState caller;
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

	/* only the right to enqueue is checked */
	jobq_become_role(job_role(job), &caller);
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	if (!edit->nulls[EDIT_QUEUE])
		change_queue(job, TextDatumGetCString(edit->values[EDIT_QUEUE]), live);
	else if (queue != NULL)
		jobq_require_produce(queue);
	jobq_unbecome_role(&caller);

	set_attempts(job, edit);
	if (!edit->nulls[EDIT_HEADERS])
		JOB_SET(job, JOB_HEADERS, edit->values[EDIT_HEADERS]);

	/* an unchanged payload may exceed a limit lowered since */
	if (!edit->nulls[EDIT_PAYLOAD] || !edit->nulls[EDIT_HEADERS])
		jobq_set_payload(job, edit->nulls[EDIT_PAYLOAD]
						 ? JOB(job, JOB_PAYLOAD) : edit->values[EDIT_PAYLOAD]);
	if (!edit->nulls[EDIT_PAYLOAD])
		jobq_step_check_payload(job);

	jobq_log_say(job, psprintf("edited by %s:%s",
							   GetUserNameFromId(caller.userid, false), told.data));
}

/*
 * True if the edit may change the job's cost at the limiter.
 */
static bool
asks_cost(const JobqEdit *edit)
{
	return !edit->nulls[EDIT_PAYLOAD] || !edit->nulls[EDIT_HEADERS] ||
		!edit->nulls[EDIT_QUEUE];
}

/*
 * Compute the cost of the edited live job, in *priced.  The cost function is user code, and
 * runs as the current user, which can become the job's role.  The function is therefore called
 * while the job, with its unique key, is still in the table.  False if another transaction has
 * changed the job meanwhile.  ERROR if the cost function has changed the job.
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
 * Find the live job to edit.  False if the user may edit no job with this id.  For one of many
 * jobs (named is false), false also if the job has changed since the choice, or cannot be
 * edited in this way.  For a named job the latter is an ERROR.
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
 * Edit a live job.  chosen: properties of one job of many, or NULL if the job is named alone.
 * Returns false as find_to_edit() does.  May wait for a concurrent transaction on the row.
 * The caller has opened rel with jobq_open_jobs(), and has called jobq_pin_queues() if the
 * edit writes.
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
		 * Its worker is about to start or end the job, or another session is
		 * changing it.  Unless a worker shows up, wait for the other
		 * transaction and retry.
		 */
		if (!jobq_job_runs(&job) && TransactionIdIsValid(blocker))
			XactLockTableWait(blocker, rel, &job.ctid, XLTW_Delete);
	}
	jobq_job_push_if_undone(&job);

	/* a consumer with a new lease of the job loses the lease */
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
 * Edit a dead letter.  named: the caller named this single job.  False if the user may edit no
 * dead letter with this id.  ERROR if priority or run_at is given.  Locks the row.
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
	jobq_check_job_row(SPI_tuptable->tupdesc);
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
 * edit(id, payload, headers, queue, priority, run_at, max_attempts, backoff, timeout): set new
 * values of a waiting job or a dead letter.  A null argument leaves the value unchanged.
 * ERROR if the job does not exist, runs, or has finished, and without the necessary
 * privileges.
 */
Datum
jobq_edit(PG_FUNCTION_ARGS)
{
	int64		id;
	JobqEdit	edit;
	Relation	rel;

	PreventCommandIfReadOnly("jobq.edit()");
	jobq_not_null(fcinfo, 0, "id");
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

	/* the job may move between the tables, so check the first again */
	if (!jobq_edit_live(rel, id, &edit, NULL) && !jobq_edit_letter(id, &edit, true) &&
		!jobq_edit_live(rel, id, &edit, NULL))
	{
		jobq_check_finished(id);
		not_waiting(id, "has finished");
	}
	table_close(rel, NoLock);
	jobq_audit(fcinfo, 1);
	PG_RETURN_VOID();
}
