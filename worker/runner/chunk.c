/*-------------------------------------------------------------------------
 *
 * chunk.c
 *	  Runs the collected jobs of a set handler: several jobs in one call and one transaction.
 *
 * A *piece* is a list of collected jobs to run together.
 *
 * 1. In the transaction of the piece, read the row of each entry, and ask the gate again.
 *    Admitted jobs that have everything in common with the first job stay in the piece.  Jobs
 *    that are not admitted run alone afterwards: run_job() carries out the consequence.  The
 *    remaining jobs form a later piece.
 * 2. Name all jobs in the slot, delete their rows, call the handler once, and record the end of
 *    each job: completed, or what the handler has asked for.  All of this commits, or none.
 * 3. If this fails, nothing is recorded, and no job is charged.  After a conflict the piece is
 *    tried again.  A job named by cancel() is cancelled, and the others are tried again.  After
 *    any other error, the two halves of the piece run, one after the other.
 * 4. A piece with a single job runs alone, by run_job().  Only there can a job fail.
 *
 * A piece of n jobs with one bad job therefore has at most 2 * log2(n) further calls.
 *
 * Jobs of a group are in order, in a piece and from one piece to the next.  If the handler asks
 * for another attempt of a job, the further jobs of the group must not run before.  The piece is
 * then tried again without them.  After the commit, or after a job of the group has run alone,
 * the further jobs go back to the ready set, where the group may wait for the job.
 *
 * If the worker dies during a piece, the scheduler charges no job.  Each job of the piece is a
 * suspect (job_suspect()), and runs alone from then on: see charge.c.
 *
 * worker/runner/chunk.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "commit/commit.h"

/* How a try of a piece has ended. */
typedef enum PieceEnd
{
	PIECE_OVER,					/* nothing is left to do for the piece */
	PIECE_AGAIN,				/* try the remaining jobs again */
	PIECE_FAILED,				/* divide the piece */
} PieceEnd;

static void run_list(RunContext *run, int *list, int n);
static void run_alone(RunContext *run, Collected *job);
static PieceEnd try_piece(RunContext *run, int *list, int *n, bool last);
static Piece *empty_piece(void);
static Relation begin_piece(RunContext *run);
static void end_transaction(void);
static void name_jobs(RunContext *run, Piece *piece);
static void delete_rows(Relation rel, Piece *piece);
static void run_jobs(RunContext *run, Relation rel, Piece *piece);
static void record_ends(Relation rel, Piece *piece, Datum *results, bool *none);
static PieceEnd after_failure(RunContext *run, Piece *piece, bool last);
static PieceEnd leave_piece(RunContext *run, Piece *piece, PieceEnd end);
static void context_callback(void *arg);

/*
 * Run the collected jobs, until all are over, or until the worker has to leave.  Called outside
 * of transactions.
 */
void
run_collected(RunContext *run)
{
	JobqWakeList wake = {0};
	int			list[JOBQ_MAX_CHUNK];

	run->collects = false;
	for (int first = 0; first < ncollected;)
	{
		const Collected *job = &collected[first];
		int			n = 0;

		process_interrupts();
		if (my_db->stop || run->slot->retire)
			break;
		if (job->over)
			first++;
		else if (job->alone)
			run_alone(run, &collected[first]);
		else
		{
			/* jobs known to differ from the first one form a later piece */
			for (int i = first; i < ncollected; i++)
				if (!collected[i].over && !collected[i].alone &&
					(collected[i].alike == 0 || job->alike == 0 ||
					 collected[i].alike == job->alike))
					list[n++] = i;
			run_list(run, list, n);
		}
	}
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	collect_return(&wake);
	jobq_unlock(my_db, &wake);
}

/*
 * Run the jobs in this list, in order.  Changes the list.  Jobs that are not admitted, or have
 * not everything in common with the first, remain for the caller.
 *
 * A worker that is to leave after its current job divides a failed piece to the end.  Otherwise
 * the next worker would begin anew.
 */
static void
run_list(RunContext *run, int *list, int n)
{
	PieceEnd	end = PIECE_AGAIN;
	int			listed = n;

	/* the previous half may have given back further jobs of a group */
	n = 0;
	for (int i = 0; i < listed; i++)
		if (!collected[list[i]].over)
			list[n++] = list[i];
	for (int i = 0; n > 1 && end == PIECE_AGAIN; i++)
	{
		process_interrupts();
		if (my_db->stop)
			return;
		end = try_piece(run, list, &n, i >= MAX_CONFLICTS);
	}
	if (end == PIECE_OVER)
		return;
	if (n == 1 && group_lets(&collected[list[0]]))
		run_alone(run, &collected[list[0]]);
	else if (end == PIECE_FAILED)
	{
		run_list(run, list, n / 2);
		run_list(run, list + n / 2, n - n / 2);
	}
}

/* Run a collected job by itself. */
static void
run_alone(RunContext *run, Collected *job)
{
	process_interrupts();
	if (my_db->stop)
		return;
	if (run->slot->run.state != JOBQ_RUN_POPPED)
		jobq_run_to(&run->slot->run, JOBQ_RUN_POPPED);
	job->over = true;
	if (job->entry.permits.group == JOBQ_NONE)
	{
		run_job(run, &job->entry);
		return;
	}
	group_begin_alone(job);
	run_job(run, &job->entry);
	group_end_alone(job);
}

/*
 * Try to run the jobs of a list together.  The list shrinks to the jobs that remain of the
 * piece: see the head of this file.  A single job is not tried.  last: a conflict is a failure.
 */
static PieceEnd
try_piece(RunContext *run, int *list, int *n, bool last)
{
	MemoryContext top = CurrentMemoryContext;
	Piece	   *piece;
	ErrorContextCallback context;
	volatile PieceEnd end = PIECE_OVER;
	Relation	rel = begin_piece(run);

	if (rel == NULL)
	{
		MemoryContextSwitchTo(top);
		return PIECE_OVER;
	}
	piece = empty_piece();
	piece->list = list;
	piece->n = *n;
	admit(rel, piece);
	*n = piece->n;
	if (piece->n < 2)
	{
		collected[list[0]].member = 0;
		table_close(rel, NoLock);
		end_transaction();
		MemoryContextSwitchTo(top);
		return PIECE_AGAIN;
	}
	name_jobs(run, piece);
	jobq_injection_point("jobq-attempt-begins");
	allowance_begin(&piece->handler);

	jobq_current = piece->currents;
	context.callback = context_callback;
	context.arg = piece;
	context.previous = error_context_stack;
	error_context_stack = &context;
	PG_TRY();
	{
		delete_rows(rel, piece);
		if (piece->n > 0)
			run_jobs(run, rel, piece);
		else
		{
			run->next = JOBQ_RUN_MISSED;
			table_close(rel, NoLock);
			end_transaction();
		}
	}
	PG_CATCH();
	{
		error_context_stack = context.previous;
		jobq_tells_by_relay = true;
		end = after_failure(run, piece, last);
	}
	PG_END_TRY();
	error_context_stack = context.previous;
	end = leave_piece(run, piece, end);
	*n = piece->n;
	MemoryContextSwitchTo(top);
	return end;
}

/*
 * Return a piece without jobs.  The arrays remain allocated, because the kernel would clear
 * their memory again for each call.
 */
static Piece *
empty_piece(void)
{
	static Piece piece;

	if (piece.jobs == NULL)
	{
		JobqJob    *jobs = MemoryContextAlloc(TopMemoryContext, sizeof(JobqJob) * JOBQ_MAX_CHUNK);

		piece.currents = MemoryContextAlloc(TopMemoryContext, sizeof(JobqCurrent) * JOBQ_MAX_CHUNK);
		piece.attempts = MemoryContextAlloc(TopMemoryContext, sizeof(int) * JOBQ_MAX_CHUNK);
		piece.jobs = jobs;
	}
	piece.n = piece.nnamed = 0;
	piece.divided = false;
	piece.kind = NULL;
	return &piece;
}

/*
 * Begin the transaction of a piece.  Returns the table of jobs, or NULL if the worker has to
 * leave, because the extension or its role was dropped.
 */
static Relation
begin_piece(RunContext *run)
{
	Relation	rel;

	if (run->slot->run.state != JOBQ_RUN_POPPED)
		jobq_run_to(&run->slot->run, JOBQ_RUN_POPPED);
	run->slot->run.asked_for = false;
	MemoryContextReset(run->memory);
	process_begin_transaction();
	MemoryContextSwitchTo(run->memory);
	rel = jobq_try_open_jobs();
	if (rel != NULL && SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(run->slot->role)))
		return rel;
	if (rel != NULL)
		table_close(rel, NoLock);
	end_transaction();
	run->slot->retire = true;
	return NULL;
}

static void
end_transaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/*
 * Name the jobs of the piece in the slot, and start the timeout.  The lowest timeout of the
 * jobs applies.
 */
static void
name_jobs(RunContext *run, Piece *piece)
{
	JobqMember *members = run->slot->members->jobs;
	int			timeout = 0;

	piece->kind = jobq_job_kind(&piece->jobs[0]);
	if (jobq_handler(piece->kind, &piece->handler) == NULL)
		memset(&piece->handler, 0, sizeof(JobqHandler));
	piece->nnamed = piece->n;
	for (int i = 0; i < piece->n; i++)
	{
		const JobqJob *job = &piece->jobs[i];
		int			most = jobq_job_timeout(&piece->handler, job);

		if (most > 0 && (timeout == 0 || most < timeout))
			timeout = most;
		members[i] = (JobqMember)
		{
			.job = job_id(job),.attempt = job_attempt(job)
		};
		collected[piece->list[i]].named = true;
	}
	qsort(members, piece->n, sizeof(JobqMember), jobq_compare_int64);
	memset(piece->currents, 0, sizeof(JobqCurrent) * piece->n);
	piece->currents[0].job = &piece->jobs[0];
	report_job(piece->kind, job_id(&piece->jobs[0]));
	claim(run, &piece->jobs[0], piece->kind, piece->now, timeout, piece->n);

	/* all jobs are counted in the same place */
	for (int i = 1; i < piece->n; i++)
		piece->jobs[i].stat = piece->jobs[0].stat;
}

/*
 * Delete the rows of the jobs.  A job with a row that another transaction has taken leaves the
 * piece, with the further jobs of its group.
 */
static void
delete_rows(Relation rel, Piece *piece)
{
	int			n = 0;

	for (int i = 0; i < piece->n; i++)
	{
		int			at = piece->list[i];
		Collected  *job = &collected[at];

		job->member = 0;
		job->live = false;
		if (job->before >= 0 && !collected[job->before].over &&
			collected[job->before].member == 0)
			continue;
		if (!jobq_job_delete(rel, &piece->jobs[i]))
		{
			job->alone = true;
			continue;
		}
		if (n < i)
		{
			piece->jobs[n] = piece->jobs[i];
			piece->list[i] = piece->list[n];
			piece->list[n] = at;
		}
		job->member = ++n;
	}
	piece->n = n;
}

/* Call the handler for the jobs, whose rows are deleted, and commit.  Closes rel. */
static void
run_jobs(RunContext *run, Relation rel, Piece *piece)
{
	Oid			role = GetUserId();
	int			n = piece->n;
	Datum	   *results = palloc(sizeof(Datum) * n);
	bool	   *none = palloc(sizeof(bool) * n);
	JobqFunction function;
	JobqQueue	queue;
	int			nestlevel;

	jobq_run_to(&run->slot->run, JOBQ_RUN_BEGUN);
	for (int i = 0; i < n; i++)
	{
		JobqCurrent *current = &piece->currents[i];

		current->job = &piece->jobs[i];
		current->attempt = piece->attempts[i] = job_attempt(&piece->jobs[i]) + 1;
		current->slot = run->slot;
		current->memory = run->memory;
		current->set = true;
		current->outer = i + 1 < n ? &piece->currents[i + 1] : NULL;
		jobq_check_role(current);
		jobq_tell_running(current->job, current->attempt, -1, true);
	}
	jobq_handler_resolve(piece->kind, &function);
	if (!function.set)
		elog(ERROR, "handler of kind \"%s\" takes a single job", piece->kind);

	/* jobs enqueued by the handler are notified as their queue specifies */
	jobq_tells_by_relay = false;
	nestlevel = NewGUCNestLevel();
	jobq_enter_context(&piece->jobs[0], GUC_ACTION_LOCAL);
	for (int i = 0; i < n; i++)
	{
		jobq_current = &piece->currents[i];
		jobq_within(JOBQ_WITHIN_STARTED, role);
	}
	jobq_current = piece->currents;
	jobq_call_set(&function, piece->jobs, piece->attempts, n, results, none);

	/* deferred triggers belong to the handler */
	jobq_fire_deferred();
	for (int i = 0; i < n; i++)
	{
		jobq_current = &piece->currents[i];
		jobq_within(JOBQ_WITHIN_COMPLETED, role);
	}
	jobq_current = piece->currents;
	allowance_check();
	AtEOXact_GUC(false, nestlevel);
	process_wait_for_locks();
	jobq_tells_by_relay = true;

	jobq_bill_divide(n);
	record_ends(rel, piece, results, none);
	table_close(rel, NoLock);
	PopActiveSnapshot();
	CommitTransactionCommand();

	for (int i = 0; i < n; i++)
		count_job(run->slot, job_id(&piece->jobs[i]),
				  piece->currents[i].outcome == OUTCOME_NACK ||
				  piece->currents[i].outcome == OUTCOME_REJECT
				  ? &run->slot->jobs_failed : &run->slot->jobs_done);
	if (piece->handler.recycled ||
		(jobq_queue_by_id(job_queue_id(&piece->jobs[0]), &queue) != NULL &&
		 queue.recycle == RECYCLE_EACH))
		run->slot->retire = true;
}

/*
 * Record the outcome of each job: completed, or what the handler has asked for.  The completed
 * jobs are archived together.
 */
static void
record_ends(Relation rel, Piece *piece, Datum *results, bool *none)
{
	JobqJob    *completed = piece->jobs;
	TimestampTz *started_at = palloc(sizeof(TimestampTz) * piece->n);
	int			n = 0;

	for (int i = 0; i < piece->n && completed == piece->jobs; i++)
		if (piece->currents[i].outcome != OUTCOME_COMPLETE)
			completed = palloc(sizeof(JobqJob) * piece->n);
	for (int i = 0; i < piece->n; i++)
	{
		JobqCurrent *current = &piece->currents[i];

		if (completed != piece->jobs)
			completed[n] = piece->jobs[i];
		if (current->outcome != OUTCOME_COMPLETE)
		{
			Collected  *job = &collected[piece->list[i]];

			job->live = jobq_attempt_returned(rel, &completed[n], current, piece->now, !none[i],
											  results[i]);
			if (job->live && job->after >= 0 && collected[job->after].member > 0 &&
				group_waits(&piece->jobs[i]))
				collected[job->after].held = piece->divided = true;
			continue;
		}
		if (!none[i])
			jobq_check_result(results[i]);
		JOB_SET(&completed[n], JOB_ATTEMPT, Int32GetDatum(current->attempt));
		jobq_log_keep(current, &completed[n]);

		/* only the first job of its group can have been the owner */
		if (job_group(&completed[n]) != 0 && collected[piece->list[i]].before < 0)
			jobq_at_commit_group_end(job_group(&completed[n]), job_id(&completed[n]));
		started_at[n] = piece->now;
		results[n] = results[i];
		none[n++] = none[i];
	}
	if (piece->divided)
		elog(ERROR, "further jobs of the group run later");
	if (n > 0)
		jobq_archive_many(completed, started_at, n, results, none);
}

/*
 * The jobs of the piece have failed together: abort the transaction.  No job is charged.  If
 * the abort fails, the worker exits; see try_after_error() in run.c.
 */
static PieceEnd
after_failure(RunContext *run, Piece *piece, bool last)
{
	ErrorData  *edata;
	bool		again;

	PG_TRY();
	{
		edata = abort_attempt(run, last, true, &again);
	}
	PG_CATCH();
	{
		jobq_current = NULL;
		PG_RE_THROW();
	}
	PG_END_TRY();
	run->next = JOBQ_RUN_POPPED;
	again |= piece->divided;
	if (!again && !was_cancelled(run->slot))
		ereport(LOG,
				(errmsg("%d jobs of kind \"%s\" have failed together, and run again in two halves",
						piece->n, piece->kind),
				 errdetail("The error was: %s (SQLSTATE %s)", edata->message,
						   unpack_sql_state(edata->sqlerrcode))));
	return again ? PIECE_AGAIN : PIECE_FAILED;
}

/*
 * A try is over: the slot no longer names the jobs.  Carry out the requests of cancel() for
 * jobs that may run again.  Each of these leaves the piece, which is then tried again.  A job
 * that the commit left live has an entry in the ready set, and is over here.  A group may wait for
 * such a job from now on.
 */
static PieceEnd
leave_piece(RunContext *run, Piece *piece, PieceEnd end)
{
	const JobqMember *members = run->slot->members->jobs;
	bool		stopped = false;
	int			n = 0;

	(void) unclaim(run);
	for (int i = 0; i < piece->nnamed; i++)
	{
		collected[piece->list[i]].named = false;
		collected[piece->list[i]].member = 0;
		if (i < piece->n && end == PIECE_OVER)
			collected[piece->list[i]].over = true;
	}
	jobq_current = NULL;
	jobq_injection_point("jobq-attempt-left");
	clean_session(false);
	if (end == PIECE_OVER)
		groups_give_up(piece);

	for (int i = 0; i < piece->nnamed; i++)
	{
		Collected  *job = &collected[piece->list[i]];
		int64		id = job->entry.key.id;
		const JobqMember *member = NULL;

		for (int k = 0; k < piece->nnamed && run->slot->run.stop == JOBQ_STOP_CANCEL; k++)
			if (members[k].job == id)
				member = &members[k];
		if (member != NULL && member->stop && (!job->over || job->live))
		{
			stopped = true;
			run->ticket = jobq_owe_cancel(my_db, id);
			job->over |= cancel_given_back(run, id);
			job->alone = true;
		}
		else if (i < piece->n)
			piece->list[n++] = piece->list[i];
	}
	if (end != PIECE_OVER)
		piece->n = n;
	return stopped && end == PIECE_FAILED ? PIECE_AGAIN : end;
}

static void
context_callback(void *arg)
{
	const Piece *piece = arg;

	errcontext("running %d jobs of kind \"%s\", of which the first is " INT64_FORMAT,
			   piece->n, piece->kind, job_id(&piece->jobs[0]));
}
