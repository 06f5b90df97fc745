/*-------------------------------------------------------------------------
 *
 * taken_job.c
 *	  Ends, releases or stops a single job for which its limiter has no free permit.
 *
 * Waiting jobs are cancelled or postponed.  A running job that must give way is asked to
 * stop, or loses its lease.  Each of these jobs ends, so there is no loop.  A freed permit
 * is assigned as usual.
 *
 * worker/scheduler/taken_job.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "operate/operate.h"
#include "scheduler/taken.h"

/* Leases checked for one job, to see whether the leased job has ended. */
#define MOST_LEASES		8192

static bool turn_away(Relation rel, Fate *item);
static bool stop(Relation rel, Fate *item);
static const char *limiter_name(uint32 limiter);

/*
 * Carry out the action for a job, a Fate.  Sets the flags of the Fate: a job that is "undone"
 * must be put back.  Runs in a subtransaction of the role.  Takes my_db->lock in shared mode.
 */
void
taken_carry_out(void *arg)
{
	Fate	   *item = (Fate *) arg;
	Relation	rel;

	item->undone = item->ending = item->other = false;
	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	item->undone = item->action == STOP ? !stop(rel, item) : !turn_away(rel, item);
	table_close(rel, NoLock);
}

/*
 * True if still no permit is free and the policy is unchanged.  Takes my_db->lock
 * shared.
 */
static bool
is_taken(const Fate *item)
{
	JobqTakenBy by;
	bool		ending;
	bool		taken;

	LWLockAcquire(my_db->lock, LW_SHARED);
	taken = jobq_places_taken(my_db, item->by.limiter, item->by.limit_key, &by, &ending);
	LWLockRelease(my_db->lock);
	return taken && !ending && by.when_taken == item->by.when_taken;
}

static bool
is_handed_out(const Fate *item)
{
	bool		is_out;

	LWLockAcquire(my_db->lock, LW_SHARED);
	is_out = jobq_is_handed_out(my_db, item->job.key.id);
	LWLockRelease(my_db->lock);
	return is_out;
}

/*
 * True if a job with a permit has ended.  A client that has seen the end must not be
 * turned away, although the permit is returned a moment after the end is visible.
 * Takes my_db->lock shared.
 */
static bool
is_given_back(Relation rel, const Fate *item)
{
	int			most = jobq_shared->nslots + JOBQ_MAX_RESERVERS + JOBQ_LEASES_AT_ONCE;
	JobqHolder *holders = palloc(sizeof(JobqHolder) * most);
	Snapshot	snapshot;
	bool		ended = false;
	int			at = 0;

	do
	{
		int			n;

		LWLockAcquire(my_db->lock, LW_SHARED);
		n = jobq_places_holders(my_db, &item->by, holders, 0, most, &at);
		LWLockRelease(my_db->lock);
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		for (int i = 0; i < n && !ended; i++)
		{
			JobqJob		job;

			ended = !jobq_job_find(rel, holders[i].id, snapshot, &job);
		}
		UnregisterSnapshot(snapshot);
	} while (at != 0 && at < MOST_LEASES && !ended);
	pfree(holders);
	return ended;
}

/*
 * Turn away the waiting job.  Returns false if the job must be put back.
 */
static bool
turn_away(Relation rel, Fate *item)
{
	Snapshot	snapshot = GetActiveSnapshot();
	TimestampTz now = jobq_now();
	JobqPush	entry = item->job;
	JobqVerdict verdict;
	JobqQueue	buffer;
	const JobqQueue *queue;
	JobqJob		job;
	JobqJob		first;

	if (!jobq_job_fetch_entry(rel, &entry, snapshot, &job) || job_blocked(&job) ||
		jobq_job_kept(&job) || jobq_job_runs(&job))
		return true;			/* left to the session in charge */
	queue = jobq_queue_by_id(job_queue_id(&job), &buffer);

	entry.permits = JOBQ_NO_PERMITS;
	entry.unlimited = true;		/* the job has no permits */
	entry.ctid = job.ctid;
	verdict = jobq_gate(rel, &job, queue == NULL ? MODE_WORKER : queue->mode, &entry,
						snapshot, now, &first);
	if (verdict == JOBQ_OTHER_KEY && item->action == LOOK)
	{
		/* postpone, because the lane would alternate between the keys */
		jobq_push_flow(&job, &item->job);
		item->other = true;
		return false;
	}
	if (verdict != JOBQ_MAY_RUN)
	{
		(void) jobq_turn_away(rel, verdict, &job, &entry, &first, 0);
		return true;
	}
	jobq_injection_point("jobq-taken");
	if (item->action == LOOK || !is_taken(item) || is_handed_out(item))
		return false;
	item->ending = is_given_back(rel, item);
	if (item->ending)
		return false;
	if (!jobq_job_delete(rel, &job))
		return true;
	jobq_job_push_if_undone(&job);
	if (item->action == RELEASE)
	{
		jobq_at_commit_group_moved(job_group(&job), job_id(&job));
		jobq_job_set_run_at(&job, now + item->by.release_after);
		jobq_job_insert(rel, &job);
		jobq_state_changed(&job, jobq_waiting_state(&job, now));
		return true;
	}
	jobq_archive_unstarted(&job, CAUSE_LIMITER,
						   item->action == SKIP
						   ? psprintf("skipped: all places of limiter \"%s\" were taken",
									  limiter_name(item->by.limiter))
						   : psprintf("replaced by job " INT64_FORMAT " at limiter \"%s\"",
									  item->newer, limiter_name(item->by.limiter)));
	jobq_cancel_asked(rel, &job);
	return true;
}

/*
 * Make the running job give way.  Returns false if this is not possible now.
 */
static bool
stop(Relation rel, Fate *item)
{
	bool		leased;

	if (!is_taken(item))
		return true;			/* the waiting job has a permit */
	if (jobq_ask_to_stop(item->job.key.id))
		return true;
	LWLockAcquire(my_db->lock, LW_SHARED);
	leased = jobq_lease_find(my_db, item->job.key.id) != NULL;
	LWLockRelease(my_db->lock);
	return leased &&
		jobq_take_from_consumer(rel, item->job.key.id, CAUSE_LIMITER,
								psprintf("replaced by job " INT64_FORMAT " at limiter \"%s\"",
										 item->newer, limiter_name(item->by.limiter)));
}

/*
 * Return the name of the limiter with this hash.  Caches the last result.
 */
static const char *
limiter_name(uint32 limiter)
{
	static uint32 last = 0;
	static char name[JOBQ_MAX_LIMITER_NAME + 1];
	static const Oid types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum((int32) limiter)};

	if (limiter == last)
		return name;
	last = 0;
	name[0] = '\0';
	if (jobq_query("SELECT name FROM jobq_internal.limiter"
				   " WHERE jobq_internal.limiter_hash(name) = $1",
				   1, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		Datum		found = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1,
										TEXTOID, NULL);

		text_to_cstring_buffer(DatumGetTextPP(found), name, sizeof(name));
		last = limiter;
	}
	return name;
}
