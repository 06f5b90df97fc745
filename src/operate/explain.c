/*-------------------------------------------------------------------------
 *
 * explain.c
 *	  explain(): why a job does not run, or for what a running job waits.
 *
 * Facts from tables and system views are queried in SQL (control/parts/75-explain.sql).
 * This file adds the facts from shared memory and settings: service of the queue, and
 * workers.  Limits are in explain_limits.c.
 *
 * The function changes nothing and locks no row.  Each fact is as of the moment of reading.
 * A job about to start may have started when the answer arrives.
 *
 * src/operate/explain.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "attempt/attempt.h"
#include "operate/explain.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_explain);

/* The workers suitable for the job. */
typedef struct Crew
{
	int			size;			/* configured number in the serving pools */
	int			there;
	int			idle;			/* idle, and with the role for the job */
	int			cluster;		/* workers of all databases */
	StringInfoData busy;
} Crew;

static void workers(Explain *e, JobqDatabase *db, const JobqJob *job,
					const JobqQueue *queue);

/*
 * Explain a finished job or a dead letter.
 */
static void
finished(Explain *e, const JobqStatus *status)
{
	char	   *at = status->nulls[ST_FINISHED_AT] ? NULL
		: explain_time(DatumGetTimestampTz(status->values[ST_FINISHED_AT]));
	char	   *error = status->nulls[ST_ERROR] ? NULL
		: TextDatumGetCString(status->values[ST_ERROR]);

	explain_add(e, status->state,
				psprintf("the job has ended%s%s%s%s", at != NULL ? " at " : "",
						 at != NULL ? at : "", error != NULL ? ": " : "",
						 error != NULL ? error : ""),
				strcmp(status->state, "dead") == 0
				? psprintf("SELECT jobq.retry(" INT64_FORMAT ")", e->id) : NULL);
}

/*
 * Explain a running job, run by a worker or held by a consumer.
 */
static void
running(Explain *e)
{
	JobqDatabase *db = jobq_my_database();
	JobqSlot   *slot = db == NULL ? NULL : jobq_slot_of_job(db, e->id);
	JobqRun		run;
	int			pid = slot == NULL ? 0 : slot->pid;
	int			njobs = 0;
	int64		named = e->id;

	if (slot != NULL)
	{
		SpinLockAcquire(&slot->mutex);
		if (jobq_slot_runs(slot, e->id))
		{
			named = slot->run.job;
			njobs = slot->members->n;
		}
		SpinLockRelease(&slot->mutex);
	}
	explain_ask_tables(e, "explain_running", psprintf(", " INT64_FORMAT, named));
	if (slot == NULL || !jobq_run_read_of(slot, e->id, &run))
		return;
	if (njobs > 1)
		explain_add(e, "together",
					psprintf("%d jobs run in one call of the handler, of which the first is job " INT64_FORMAT,
							 njobs, named), NULL);
	if (run.stop == JOBQ_STOP_CANCEL)
		explain_add(e, "cancelling", "the job was cancelled, and the handler has not ended yet",
					psprintf("SELECT pg_terminate_backend(%d)", pid));
	if (run.deadline != DT_NOEND)
		explain_add(e, "timeout", psprintf("the timeout of the job ends the attempt at %s",
										   explain_time(run.deadline)), NULL);
}

/*
 * Report each reason why the database or the queue is not served.  True if jobq and its
 * scheduler run here; *db is then set to the shared state of the database.
 */
static bool
served(Explain *e, const JobqQueue *queue, JobqDatabase **db)
{
	bool		has = jobq_has_scheduler(db);

	if (jobq_shared == NULL)
	{
		explain_add(e, "not_loaded", "the server runs without jobq",
					"add jobq to \"shared_preload_libraries\", and restart the server");
		return false;
	}
	if (RecoveryInProgress())
	{
		explain_add(e, "standby", "the server is a standby", "ask the primary, or promote the standby");
		return false;
	}
	if (!has || *db == NULL || (*db)->scheduler == NULL)
	{
		explain_add(e, "not_served",
					psprintf("no scheduler runs for database \"%s\"",
							 get_database_name(MyDatabaseId)),
					"check \"jobq.databases\" and the server's log");
		return false;
	}
	if (queue->mode != MODE_WORKER)
		return true;
	if (jobq_start_paused)
		explain_add(e, "start_paused", "\"jobq.start_paused\" is on",
					"ALTER SYSTEM SET jobq.start_paused = off; SELECT pg_reload_conf()");
	if ((*db)->copied)
		explain_add(e, "copy", "the database is a copy of a database served elsewhere",
					"cancel the jobs that must not run here, then SELECT jobq.adopt()");
	if (!jobq_pools_serve(queue->name))
		explain_add(e, "no_pool",
					psprintf("no pool of \"jobq.workers\" with workers serves queue \"%s\"",
							 queue->name),
					"name the queue in \"jobq.workers\", with a number of workers, and reload");
	return true;
}

/*
 * True if a worker has prefetched the job and will run the job next.  Adds the reason.
 */
static bool
taken_along(Explain *e, JobqDatabase *db)
{
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ATTACHED)
	{
		bool		match = false;
		JobqRun		run;
		int			pid;
		char	   *detail;

		SpinLockAcquire(&slot->mutex);
		for (uint32 k = slot->holding->next; k < slot->holding->count && !match; k++)
			match = slot->holding->prefetched[k].key.id == e->id;
		run = slot->run;
		pid = slot->pid;
		SpinLockRelease(&slot->mutex);
		if (!match)
			continue;

		/* with run_as, one worker runs the jobs of several roles */
		if (!jobq_run_busy(&run))
			detail = psprintf("worker %d is about to start the job", pid);
		else if (e->sees_all || jobq_may(JOBQ_MAY_MONITOR, run.role, run.queue_id))
			detail = psprintf("worker %d has claimed the job, and runs it after job " INT64_FORMAT " unless another worker is free before",
							  pid, run.job);
		else
			detail = psprintf("worker %d has claimed the job, and runs it after a job of another role unless another worker is free before",
							  pid);
		explain_add(e, "next", detail, NULL);
		return true;
	}
	return false;
}

/*
 * True if the job's worker has died and the scheduler has not recorded this yet.  Adds the
 * reason.
 */
static bool
lost_worker(Explain *e, JobqDatabase *db)
{
	JobqSlot   *slot = jobq_slot_names_job(db, e->id);

	if (slot == NULL || slot->state != JOBQ_SLOT_DEAD)
		return false;
	explain_add(e, "lost", "the worker of the job has ended, and the scheduler has not recorded this yet",
				"if this lasts, look for locks of the job or of a table of jobq; the server's log names the reason");
	return true;
}

/*
 * True if a waiting consumer may take the job.  Takes db->lock in shared mode.
 */
static bool
consumer_waits(JobqDatabase *db, const JobqJob *job)
{
	bool		found = false;

	LWLockAcquire(db->lock, LW_SHARED);
	for (uint32 i = db->offers->head; i != JOBQ_NONE && !found;
		 i = db->offers->reservers[i].next)
	{
		const JobqReserver *reserver = &db->offers->reservers[i];
		bool		takes = false;
		bool		may = reserver->any_role;

		for (int q = 0; q < reserver->nqueues; q++)
			takes |= reserver->queue_ids[q] == job_queue_id(job);
		for (int r = 0; r < reserver->nallowed; r++)
			may |= reserver->roles[r] == job_role(job);
		found = takes && may;
	}
	LWLockRelease(db->lock);
	return found;
}

/*
 * Explain whether the workers of the serving pools are busy, or cannot be started.
 */
static void
workers(Explain *e, JobqDatabase *db, const JobqJob *job, const JobqQueue *queue)
{
	Crew		crew = {0};
	JobqSteady	refused_at;

	initStringInfo(&crew.busy);
	for (int p = 0; p < jobq_pools()->npools; p++)
		if (jobq_pool_serves(p, queue->name))
			crew.size += jobq_pools()->pools[p].workers;
	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_ALL)
	{
		bool		there;
		Oid			role;
		JobqRun		run;
		int			pid;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		there = slot->state == JOBQ_SLOT_STARTING ||
			(slot->state == JOBQ_SLOT_ATTACHED && !slot->spare);
		crew.cluster += there;
		there = there && slot->database == db - jobq_shared->databases &&
			jobq_pool_serves(slot->pool, queue->name);
		role = slot->role;
		pid = slot->state == JOBQ_SLOT_ATTACHED ? slot->pid : 0;
		jobq_run_read(slot, &run);
		LWLockRelease(jobq_shared->lock);
		if (!there)
			continue;
		crew.there++;
		crew.idle += role == job_run_as(job) && (pid == 0 || !jobq_run_busy(&run));
		if (!jobq_run_busy(&run) || pid == 0)
			continue;
		if (e->sees_all || jobq_may(JOBQ_MAY_MONITOR, run.role, run.queue_id))
			appendStringInfo(&crew.busy, "%sjob " INT64_FORMAT,
							 crew.busy.len > 0 ? ", " : "", run.job);
		else
			appendStringInfo(&crew.busy, "%sone of another role",
							 crew.busy.len > 0 ? ", " : "");
	}
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	refused_at = jobq_shared->refused_at;
	LWLockRelease(jobq_shared->lock);

	if (crew.idle > 0)
		return;
	if (crew.there >= crew.size)
		explain_add(e, "busy",
					psprintf("the workers that serve queue \"%s\" are busy, %d of %d: %s",
							 queue->name, crew.there, crew.size,
							 crew.busy.len > 0 ? crew.busy.data : "others' jobs"),
					"wait, or give the pool more workers in \"jobq.workers\", and reload");
	else if (crew.cluster >= jobq_shared->nslots)
		explain_add(e, "places",
					psprintf("all %d workers of \"jobq.max_workers\" are in use", crew.cluster),
					"wait, or raise \"jobq.max_workers\", and restart the server");
	else if (refused_at != 0 && refused_at > jobq_steady() - USECS_PER_MINUTE)
		explain_add(e, "places", "the server has no free slot for another worker process",
					"wait, or raise \"max_worker_processes\", and restart the server");
}

/*
 * Explain whether the job waits for further jobs of its kind.  Takes db->lock exclusively.
 */
static void
gathering(Explain *e, JobqDatabase *db, const JobqJob *job)
{
	TimestampTz until;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	until = jobq_gathers_until(db, job_queue_id(job), job_priority(job),
							   job_run_as(job), job_flow(job));
	LWLockRelease(db->lock);
	if (until != 0)
		explain_add(e, "gathering",
					psprintf("by chunk_wait of kind \"%s\", the job waits for further jobs until %s",
							 jobq_job_kind(job), explain_time(until)), NULL);
}

/*
 * Explain a waiting job.
 */
static void
waiting(Explain *e, const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqDatabase *db;
	const char *why;
	bool		is_served;

	if (queue == NULL)
	{
		explain_add(e, "no_queue", "the queue of the job does not exist", NULL);
		return;
	}
	is_served = served(e, queue, &db);
	why = queue->mode == MODE_WORKER && !JOBQ_MISSES_ROLE(queue)
		? jobq_run_as_refused(job, queue) : NULL;
	if (why != NULL)
		explain_add(e, "run_as",
					psprintf("the job may not run under run_as of queue \"%s\", and becomes a dead letter when its turn comes: %c%.*s",
							 queue->name, pg_tolower((unsigned char) why[0]),
							 (int) strlen(why) - 2, why + 1),
					jobq_run_as_problem(queue) == NULL ? NULL
					: psprintf("SELECT jobq.alter_queue(%s, run_as => ...), by a role that can SET ROLE to that one",
							   quote_literal_cstr(queue->name)));
	explain_ask_tables(e, "explain_waiting", "");
	if (!is_served || job_run_at(job) > jobq_now() || lost_worker(e, db))
		return;
	explain_limits(e, db, job, queue);
	gathering(e, db, job);
	if (DatumGetInt16(JOB(job, JOB_CRASHES)) > 0 &&
		db->ready->quarantine_slot >= 0)
		explain_add(e, "quarantine", "the job has crashed a server process, and only one such job runs at a time", NULL);
	if (queue->mode == MODE_CONSUMER)
	{
		if (!consumer_waits(db, job))
			explain_add(e, "no_consumer",
						psprintf("no consumer waits for a job of queue \"%s\"", queue->name),
						psprintf("a program that calls jobq.reserve(), such as: jobq work %s",
								 quote_literal_cstr(queue->name)));
	}
	else if (e->n == 0 && !taken_along(e, db))
		workers(e, db, job, queue);
}

/*
 * Explain the job in the given state.
 */
static void
explain(Explain *e, const JobqStatus *status)
{
	if (status->finished)
		finished(e, status);
	else if (status->own && strcmp(status->state, "running") == 0)
		explain_add(e, "running", "this session runs the job", NULL);
	else if (status->own)
		explain_add(e, "uncommitted", "this transaction has written the job, and has not committed",
					"COMMIT");
	else if (strcmp(status->state, "running") == 0)
		running(e);
	else
	{
		Relation	rel = jobq_open_table(JOBQ_JOB_TABLE, AccessShareLock);
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
		JobqJob		job;

		if (jobq_job_find(rel, e->id, snapshot, &job))
			waiting(e, &job);
		UnregisterSnapshot(snapshot);
		table_close(rel, NoLock);
	}
}

/*
 * explain(id): a row for each reason.  ERROR if the current user may not see the job.  Takes
 * no row locks.
 */
Datum
jobq_explain(PG_FUNCTION_ARGS)
{
	Explain		e = {0};

	e.id = PG_GETARG_INT64(0);
	e.sees_all = (jobq_privileges(0) & JOBQ_MAY_MONITOR) != 0;
	e.rsinfo = jobq_materialize(fcinfo, NATTS);

	/* the state may change meanwhile, so try up to three times */
	for (int i = 0; i < 3 && e.n == 0; i++)
	{
		JobqStatus	status = {0};

		jobq_look_up(e.id, &status);
		explain(&e, &status);
	}
	if (e.n == 0)
		explain_add(&e, "soon", "nothing prevents the job from running: it starts when its turn comes", NULL);
	jobq_flush_before_telling();
	return (Datum) 0;
}
