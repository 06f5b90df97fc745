/*-------------------------------------------------------------------------
 *
 * limit.c
 *	  Limiters: how many jobs of a queue or kind may run, and how often one may
 *	  start; and whose turn it is.
 *
 * The scheduler loads them from the tables before it ranks the lanes, and a
 * lane is not served before it is ranked; so no job starts past a limit.
 *
 * Turns are those of start-time fair queueing: each job that a tenant (or a
 * weighted queue) starts moves its turn on by one over its weight, and the
 * lowest turn comes next.  Who comes newly begins where the others are.
 *
 * All functions want db->lock held exclusively.  Nothing here can fail.
 *
 * src/ready/limit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "utils/timestamp.h"

#include "memory/shared.h"

/* Tokens are sums of fractions. */
#define ONE_TOKEN	(1 - 1e-6)

static bool limiter_free(JobqLimiter *limiter, TimestampTz now,
						 TimestampTz *due);
static void give_back(JobqDatabase *db, uint16 index, bool unused,
					  TimestampTz now, JobqWakeList *wake);

/*
 * Forget all limiters: when the shared memory is made, or belongs to another
 * database or a new extension.
 */
void
jobq_limits_clear(JobqDatabase *db)
{
	memset(db->limiters, 0, sizeof(db->limiters));
	db->nlimiters = 0;
	db->weighted = false;
	db->limits_loaded = false;
	db->limits_due = DT_NOEND;
	jobq_groups_clear(db);
	for (int i = 0; i < jobq_shared->nslots; i++)
		if (jobq_shared->slots[i].database == db - jobq_shared->databases)
			jobq_shared->slots[i].permits = JOBQ_NO_PERMITS;
	for (int i = 0; i < jobq_max_leases; i++)
		db->leases[i].permits = JOBQ_NO_PERMITS;
	for (int i = 0; i < JOBQ_MAX_RESERVERS; i++)
		db->reservers[i].offer.permits = JOBQ_NO_PERMITS;
}

/*
 * The limiter of a queue, or of a kind; JOBQ_NO_LIMITER if it has none.
 */
uint16
jobq_limiter_find(JobqDatabase *db, int32 queue_id, uint32 kind)
{
	for (int i = 0; i < db->nlimiters; i++)
		if (db->limiters[i].in_use && db->limiters[i].queue_id == queue_id &&
			db->limiters[i].kind == kind)
			return i;
	return JOBQ_NO_LIMITER;
}

/*
 * May a job start now by its rate, and is there no rest?  If not, "due" is
 * lowered to when to ask again.
 */
bool
jobq_pace_free(const JobqRate *rate, JobqPace *pace, TimestampTz now,
			   TimestampTz *due)
{
	/* the clock was put back */
	if (pace->window_start > now + USECS_PER_MINUTE)
		pace->window_start = pace->rest_until = pace->failures = 0;

	if (pace->rest_until > now)
	{
		*due = Min(*due, pace->rest_until);
		return false;
	}
	if (rate->per_us <= 0)
		return true;
	if (now > pace->tokens_at)
	{
		pace->tokens = Min(rate->burst,
						   pace->tokens + (now - pace->tokens_at) * rate->per_us);
		pace->tokens_at = now;
	}

	/*
	 * Callers took their time before they got the lock, so an earlier one is
	 * usual, and must not have what lies between counted twice.  It is
	 * another thing if the clock was put back.
	 */
	else if (pace->tokens_at > now + USECS_PER_MINUTE)
		pace->tokens_at = now;
	if (pace->tokens >= ONE_TOKEN)
		return true;
	*due = Min(*due, now + (int64) ((1 - pace->tokens) / rate->per_us) + 1);
	return false;
}

/*
 * So many attempts have failed.
 */
void
jobq_pace_failed(const JobqThrottle *throttle, JobqPace *pace, int failures,
				 TimestampTz now)
{
	if (now < pace->window_start || now >= pace->window_start + throttle->window)
	{
		pace->window_start = now;
		pace->failures = 0;
	}
	pace->failures += failures;
	if (pace->failures >= throttle->failures)
		pace->rest_until = pace->window_start + throttle->window;
}

static bool
limiter_free(JobqLimiter *limiter, TimestampTz now, TimestampTz *due)
{
	JobqRate	none = {0};

	if (limiter->max_running > 0 && limiter->running >= limiter->max_running)
		return false;
	return jobq_pace_free(limiter->rate.by_group ? &none : &limiter->rate,
						  &limiter->pace, now, due);
}

/*
 * How many jobs of the lane may start now, as far as limiters are concerned.
 * If that changes with time, "due" is lowered to when it does.
 */
int
jobq_lane_room(JobqDatabase *db, const JobqLane *lane, TimestampTz now,
			   TimestampTz *due)
{
	uint16		index[] = {lane->queue_limiter, lane->kind_limiter};
	int			room = PG_INT32_MAX;

	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limiters[index[i]];
		if (!limiter_free(limiter, now, due))
			return 0;
		if (limiter->max_running > 0)
			room = Min(room, limiter->max_running - limiter->running);
		if (limiter->rate.per_us > 0 && !limiter->rate.by_group)
			room = Min(room, (int) (limiter->pace.tokens + 1 - ONE_TOKEN));
	}
	return room;
}

/*
 * May a job of the lane start now?
 */
bool
jobq_lane_free(JobqDatabase *db, const JobqLane *lane, TimestampTz now)
{
	return jobq_lane_room(db, lane, now, &db->limits_due) > 0;
}

/*
 * A job of this lane starts, for which there was room.
 */
JobqPermits
jobq_permits_take(JobqDatabase *db, const JobqLane *lane, uint32 group)
{
	JobqPermits permits = {lane->queue_limiter, lane->kind_limiter, group};
	uint16		index[] = {permits.queue, permits.kind};

	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limiters[index[i]];
		limiter->running++;
		if (limiter->rate.per_us > 0 && !limiter->rate.by_group)
			limiter->pace.tokens -= 1;
	}
	return permits;
}

/*
 * The same for a job that was not popped, but found in the table: see what it
 * needs, and whether there is room, and take it.  "limited": its queue has
 * limits; the job names its kind if that has.
 */
JobqObstacle
jobq_permits_ask(JobqDatabase *db, JobqPush *job, bool limited,
				 TimestampTz now, JobqWakeList *wake)
{
	JobqLane	lane = {0};
	TimestampTz due = DT_NOEND;
	uint32		place = JOBQ_NONE;

	lane.queue_limiter = jobq_limiter_find(db, job->queue_id, 0);
	lane.kind_limiter = job->kind == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(db, 0, job->kind);
	if ((limited && lane.queue_limiter == JOBQ_NO_LIMITER) ||
		(job->kind != 0 && lane.kind_limiter == JOBQ_NO_LIMITER))
	{
		/* new limits, which the scheduler has not loaded yet */
		db->reload = db->limits_stale = true;
		wake->scheduler = true;
		return limited && lane.queue_limiter == JOBQ_NO_LIMITER
			? JOBQ_QUEUE_FULL : JOBQ_KIND_FULL;
	}
	if (lane.queue_limiter != JOBQ_NO_LIMITER &&
		!limiter_free(&db->limiters[lane.queue_limiter], now, &due))
		return JOBQ_QUEUE_FULL;
	if (lane.kind_limiter != JOBQ_NO_LIMITER &&
		!limiter_free(&db->limiters[lane.kind_limiter], now, &due))
		return JOBQ_KIND_FULL;
	if (job->group != 0 &&
		!jobq_group_admit(db, job, lane.queue_limiter, now, &place))
		return JOBQ_GROUP_BUSY;
	job->permits = jobq_permits_take(db, &lane, place);
	return JOBQ_NO_OBSTACLE;
}

static void
give_back(JobqDatabase *db, uint16 index, bool unused, TimestampTz now,
		  JobqWakeList *wake)
{
	JobqLimiter *limiter = &db->limiters[index];
	bool		was_full = limiter->max_running > 0 &&
		limiter->running >= limiter->max_running;

	Assert(limiter->running > 0);
	limiter->running--;
	if (unused && limiter->rate.per_us > 0 && !limiter->rate.by_group)
		limiter->pace.tokens += 1;
	if (!was_full && !unused)
		return;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];

		if (lane->queue_limiter == index || lane->kind_limiter == index)
			jobq_ready_wake(db, lane, now, wake);
	}
}

/*
 * The job's transaction is over: others may start.
 *
 * live: the job will run again, so its group may have to wait for it.
 * unused: it did not run at all.
 */
void
jobq_permits_release(JobqDatabase *db, JobqPermits *permits, int64 id,
					 bool live, bool unused, TimestampTz now,
					 JobqWakeList *wake)
{
	JobqPermits held = *permits;

	*permits = JOBQ_NO_PERMITS;
	if (held.queue != JOBQ_NO_LIMITER)
		give_back(db, held.queue, unused, now, wake);
	if (held.kind != JOBQ_NO_LIMITER)
		give_back(db, held.kind, unused, now, wake);
	if (held.group != JOBQ_NONE)
		jobq_group_leave(db, held.group, id, live, unused, now, wake);
}

/*
 * So many attempts of jobs of this queue, kind and group have failed.
 */
void
jobq_limits_failed(JobqDatabase *db, int32 queue_id, uint32 kind, int64 group,
				   int failures, TimestampTz now)
{
	uint16		index[] = {jobq_limiter_find(db, queue_id, 0),
	jobq_limiter_find(db, 0, kind)};

	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *limiter;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		limiter = &db->limiters[index[i]];
		if (limiter->throttle.failures == 0)
			continue;
		if (!limiter->throttle.by_group)
			jobq_pace_failed(&limiter->throttle, &limiter->pace, failures, now);
		else if (group != 0)
		{
			JobqGroup  *g = jobq_group_make(db, group, index[0], now);

			if (g != NULL)
				jobq_pace_failed(&limiter->throttle, &g->pace, failures, now);
		}
	}
}

/*
 * A job of the lane was popped: move on the turns of its tenant and queue.
 */
void
jobq_lane_served(JobqDatabase *db, JobqLane *lane)
{
	JobqLimiter *limiter = lane->queue_limiter == JOBQ_NO_LIMITER ? NULL
		: &db->limiters[lane->queue_limiter];
	int			weight = 1;

	if (db->weighted)
	{
		db->queue_turn = Max(db->queue_turn, lane->queue_turn);
		lane->queue_turn = db->queue_turn +
			1.0 / (limiter == NULL ? 1 : Max(limiter->weight, 1));
		for (uint32 i = db->active_head; i != JOBQ_NONE;
			 i = db->lanes[i].active_next)
			if (db->lanes[i].queue_id == lane->queue_id)
				db->lanes[i].queue_turn = lane->queue_turn;
	}
	if (limiter == NULL || !limiter->fair || lane->tenant == 0)
		return;
	for (int i = 0; i < limiter->nweights; i++)
		if (limiter->weights[i].tenant == lane->tenant)
			weight = limiter->weights[i].weight;
	limiter->tenant_turn = Max(limiter->tenant_turn, lane->turn);
	lane->turn = limiter->tenant_turn + 1.0 / weight;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
		if (db->lanes[i].queue_id == lane->queue_id &&
			db->lanes[i].tenant == lane->tenant)
			db->lanes[i].turn = lane->turn;
}

/*
 * Wake workers for the lanes whose limiters have become free with time, and
 * note when the next will.
 */
void
jobq_limits_wake(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	db->limits_due = DT_NOEND;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];
		int			room;

		if (lane->queue_limiter == JOBQ_NO_LIMITER &&
			lane->kind_limiter == JOBQ_NO_LIMITER)
			continue;
		room = jobq_lane_room(db, lane, now, &db->limits_due);
		for (int n = Min(room, (int) Min(lane->count, JOBQ_MAX_WAKE)); n > 0; n--)
			jobq_ready_wake(db, lane, now, wake);
	}
}
