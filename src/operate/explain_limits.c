/*-------------------------------------------------------------------------
 *
 * explain_limits.c
 *	  explain(): the limits for which a job waits.
 *
 * src/operate/explain_limits.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "operate/explain.h"
#include "operate/inner.h"

/*
 * Report a limiter during a rest after failures, or whose rate allows no start now.
 */
static void
pace(Explain *e, const char *what, TimestampTz rest_until, bool may_start,
	 TimestampTz due)
{
	if (rest_until != 0)
		explain_add(e, "throttle",
					psprintf("%s starts no job until %s, because attempts have failed",
							 what, explain_time(rest_until)),
					"fix the cause of the failures, or change the throttle");
	else if (!may_start)
		explain_add(e, "rate",
					psprintf("by the rate of %s, the next job may start at %s", what,
							 explain_time(due)),
					"raise its rate");
}

/*
 * Report what happens to the job if all permits of the limiter, or of the job's key there, are
 * taken and the job does not wait for a permit.  Takes db->lock in shared mode.
 */
static void
when_taken(Explain *e, JobqDatabase *db, const char *name, uint32 limiter, uint32 key)
{
	JobqTakenBy by = {0};
	bool		ending;
	bool		taken;

	LWLockAcquire(db->lock, LW_SHARED);
	taken = jobq_places_taken(db, limiter, key, &by, &ending);
	LWLockRelease(db->lock);
	if (!taken)
		return;
	explain_add(e, "when_taken",
				psprintf(by.when_taken == JOBQ_WHEN_TAKEN_SKIP
						 ? "all slots of %s are occupied, and when_taken cancels the job"
						 : by.when_taken == JOBQ_WHEN_TAKEN_RELEASE
						 ? "all slots of %s are occupied, and when_taken makes the job due again later"
						 : "all slots of %s are occupied; the job replaces older jobs of its role, and waits for jobs of other roles",
						 name),
				NULL);
}

/*
 * Return the printable name of a limiter, by its hash: of the kind itself, or a named limiter.
 * *missing is set if a kind or queue names a limiter without a definition.
 */
static char *
limiter_name(const char *kind, uint32 limiter, bool *missing)
{
	static const Oid types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum((int32) limiter)};
	char	   *name = NULL;

	*missing = false;
	if (limiter == jobq_kind_hash(kind))
		return psprintf("kind \"%s\"", kind);
	SPI_connect();
	if (jobq_query("SELECT name, missing FROM (SELECT name, false AS missing FROM jobq_internal.limiter"
				   " UNION ALL SELECT unnest(limiters), true FROM jobq_internal.handler"
				   " UNION ALL SELECT unnest(limiters), true FROM jobq_internal.queue) u"
				   " WHERE jobq_internal.limiter_hash(name) = $1 ORDER BY missing LIMIT 1",
				   1, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		Datum		found = jobq_column(SPI_tuptable->vals[0],
										SPI_tuptable->tupdesc, 1, TEXTOID, NULL);

		*missing = DatumGetBool(jobq_column(SPI_tuptable->vals[0],
											SPI_tuptable->tupdesc, 2, BOOLOID, NULL));
		name = SPI_palloc(JOBQ_MAX_LIMITER_NAME + 1);
		text_to_cstring_buffer(DatumGetTextPP(found), name,
							   JOBQ_MAX_LIMITER_NAME + 1);
	}
	SPI_finish();
	return psprintf("limiter \"%s\"", name == NULL ? "" : name);
}

/*
 * Report limiters for which the job's lane waits although kind and queue do not name them any
 * more.  When popped, the job moves to the right lane.
 */
static void
left_limiters(Explain *e, const JobqJob *job, const JobqNeed *lane, const uint32 *limiters)
{
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
	{
		bool		is_named = lane[s].limiter == 0;
		bool		missing;

		for (int other = 0; other < JOBQ_NLIMITS; other++)
			is_named |= lane[s].limiter == limiters[other];
		if (!is_named)
			explain_add(e, "limit",
						psprintf("the job still waits for %s, although neither its kind nor its queue names the limiter any more, and moves when its turn comes",
								 limiter_name(jobq_job_kind(job), lane[s].limiter, &missing)),
						psprintf("SELECT jobq.edit(" INT64_FORMAT ", run_at => now())",
								 job_id(job)));
	}
}

/*
 * Report the limits of the job's key at this limiter, which has keys.  Takes db->lock
 * exclusively.
 */
static void
key_limits(Explain *e, JobqDatabase *db, const JobqNeed *need, const char *name)
{
	JobqKeyedState state;
	bool		limited;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	limited = jobq_keyed_state(db, need->limiter, need->key, jobq_now(),
							   &state);
	LWLockRelease(db->lock);
	if (!limited)
		return;
	if (state.rest_until != 0)
		explain_add(e, "throttle",
					psprintf("%s starts no job with the same key until %s, because attempts have failed",
							 name, explain_time(state.rest_until)),
					"fix the cause of the failures, or change the throttle");
	if (state.max_running > 0 && state.running >= state.max_running)
		explain_add(e, "limit",
					psprintf("max_running of %s is %d for each key, and as many jobs of this key run", name,
							 state.max_running),
					psprintf("raise max_running of %s", name));
	else if (state.paced && state.tokens < 1)
		explain_add(e, "rate",
					psprintf("by the rate of %s, the next job with the same key may start at %s", name,
							 explain_time(state.due)),
					psprintf("raise the rate of %s", name));
}

/* A limiter as explain_limits() has found it in shared memory. */
typedef struct Found
{
	bool		in_memory;
	JobqLimiter limiter;
	TimestampTz rest_until;		/* or 0 */
	bool		may_start;		/* according to rate and throttle */
	TimestampTz due;			/* if not: when */
} Found;

/*
 * Report one limiter of the job.  "name" is printable.
 */
static void
one_limit(Explain *e, JobqDatabase *db, const char *name, const JobqNeed *need,
		  const Found *found)
{
	const JobqLimiter *limiter = &found->limiter;

	if (!limiter->keyed && limiter->max_running > 0 &&
		limiter->running >= limiter->max_running)
		explain_ask_tables(e, "explain_limit", psprintf(", %d", (int32) need->limiter));
	if (need->limiter != 0 && need->key != 0)
		key_limits(e, db, need, name);
	if (need->limiter != 0)
		when_taken(e, db, name, need->limiter, need->key);
	pace(e, name, found->rest_until, found->may_start, found->due);
}

/*
 * Report the limits of the job's queue, kind and named limiters.  Takes db->lock exclusively, because token buckets are refilled.
 */
void
explain_limits(Explain *e, JobqDatabase *db, const JobqJob *job, const JobqQueue *queue)
{
	JobqNeed	needs[JOBQ_NLIMITS];
	JobqNeed	of_lane[JOBQ_NLIMITS] = {0};
	uint32		limiters[JOBQ_NLIMITS];
	uint16		index[JOBQ_NLIMITS];
	Found		found[JOBQ_NLIMITS] = {0};
	TimestampTz now = jobq_now();
	const char *kind = jobq_job_kind(job);
	const JobqLane *lane;
	bool		overfull;

	/* reads the payload and tables, so not under the lock */
	jobq_job_needs(job, needs);
	jobq_limiters_of(kind, queue, limiters);

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	overfull = db->limits->overfull;
	jobq_limiters_find(db, job_queue_id(job), needs, index);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		JobqLimiter *limiter = &db->limits->limiters[index[s]];

		found[s].may_start = true;
		found[s].due = DT_NOEND;
		found[s].in_memory = index[s] != JOBQ_NO_LIMITER;
		if (!found[s].in_memory)
			continue;
		if (!limiter->keyed)
		{
			found[s].may_start = jobq_pace_free(limiter, &limiter->pace, now, &found[s].due);
			(void) jobq_pace_failures(limiter, &limiter->pace, now, &found[s].rest_until);
		}
		found[s].limiter = *limiter;
	}
	lane = jobq_lane_find(db, job_queue_id(job), job_priority(job), job_run_as(job),
						  job_flow(job), DatumGetInt16(JOB(job, JOB_CRASHES)) > 0, false);
	if (lane != NULL)
		memcpy(of_lane, lane->needs, sizeof(of_lane));
	LWLockRelease(db->lock);

	for (int s = 0; s < JOBQ_NLIMITS; s++)
	{
		bool		limited = s == JOBQ_OF_QUEUE ? queue->limited
			: needs[s].limiter != 0;
		bool		missing = false;
		char	   *name;

		if (!limited && !found[s].in_memory)
			continue;
		name = s == JOBQ_OF_QUEUE ? psprintf("queue \"%s\"", queue->name)
			: limiter_name(kind, needs[s].limiter, &missing);
		if (found[s].in_memory)
			one_limit(e, db, name, &needs[s], &found[s]);
		else if (missing)
			explain_add(e, "limiter",
						psprintf("%s does not exist, and a kind or a queue names it", name),
						"have logical replication bring jobq_internal.limiter, too; or make it with jobq.create_limiter()");
		else if (overfull)
			explain_add(e, "places",
						psprintf("all %d slots for limits are in use, and %s has none for its limits",
								 jobq_max_limiters, name),
						"remove unused limits, or raise \"jobq.ready_entries\", and restart the server");
	}
	left_limiters(e, job, of_lane, limiters);
}
