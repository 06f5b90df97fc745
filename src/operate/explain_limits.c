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
 * Report a limiter or group during a rest after failures, or whose rate allows no start now.
 * by_group: the rate belongs to the queue.
 */
static void
pace(Explain *e, const char *what, bool by_group, bool resting,
	 TimestampTz rest_until, bool may_start, TimestampTz due)
{
	if (resting)
		explain_add(e, "throttle",
					psprintf("%s rests until %s, because attempts have failed",
							 what, explain_time(rest_until)),
					"mend what fails, or change its throttle");
	else if (!may_start)
		explain_add(e, "rate",
					psprintf("by the rate of %s, the next may start at %s", what,
							 explain_time(due)),
					by_group ? "raise the rate of its queue" : "raise its rate");
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
						 ? "by when_taken of %s it is cancelled when it is its turn"
						 : by.when_taken == JOBQ_WHEN_TAKEN_RELEASE
						 ? "by when_taken of %s it comes again later"
						 : "by when_taken of %s it replaces older jobs of its own role, and waits for others",
						 name),
				NULL);
}

/*
 * Return the printable name of the second limit of the job, besides its queue: kind or named
 * limiter.  *missing is set if a kind or queue names a limiter without a definition.
 */
static char *
limiter_name(const char *kind, uint32 limiter, bool *missing)
{
	static const Oid types[] = {INT4OID};
	Datum		values[] = {Int32GetDatum((int32) limiter)};
	char	   *name = NULL;

	*missing = false;
	if (limiter == 0 || limiter == jobq_kind_hash(kind))
		return psprintf("kind \"%s\"", kind);
	SPI_connect();
	if (jobq_query("SELECT name, missing FROM (SELECT name, false AS missing FROM jobq_internal.limiter"
				   " UNION ALL SELECT limiter, true FROM jobq_internal.handler"
				   " UNION ALL SELECT limiter, true FROM jobq_internal.queue) u"
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
 * Report a job in the lane of a limiter no longer named by the kind or queue.  When popped,
 * the job moves to the right lane.  Takes db->lock in shared mode.
 */
static void
left_limiter(Explain *e, JobqDatabase *db, const JobqJob *job, uint32 limiter)
{
	uint32	   *all;
	int			n = 0;
	bool		missing;

	if (job_flow(job) == 0 || job_flow(job) == jobq_flow_with(job, limiter))
		return;
	all = palloc(sizeof(uint32) * jobq_max_limiters);
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < db->limits->nlimiters; i++)
		if (db->limits->limiters[i].in_use && db->limits->limiters[i].kind != 0)
			all[n++] = db->limits->limiters[i].kind;
	LWLockRelease(db->lock);
	for (int i = 0; i < n; i++)
		if (jobq_limit_cost(job, all[i]) > 0 &&
			job_flow(job) == jobq_flow_with(job, all[i]))
			explain_add(e, "limit",
						psprintf("it stands in the line of %s, which it has left, and leaves when it is its turn there",
								 limiter_name(jobq_job_kind(job), all[i], &missing)),
						psprintf("SELECT jobq.edit(" INT64_FORMAT ", run_at => now())",
								 job_id(job)));
}

/*
 * Report the limits of the job's queue and kind or limiter, and the rate and throttle of its
 * group.  Takes db->lock exclusively, because token buckets are refilled.
 */
void
explain_limits(Explain *e, JobqDatabase *db, const JobqJob *job, const JobqQueue *queue)
{
	uint16		index[2];
	JobqLimiter limiter[2];
	bool		may_start[2] = {true, true};
	TimestampTz due[2] = {DT_NOEND, DT_NOEND};
	JobqPace	group_pace = {0};
	bool		group_free = true;
	TimestampTz group_due = DT_NOEND;
	TimestampTz now = jobq_now();
	const char *kind = jobq_job_kind(job);
	uint32		limiter_hash = jobq_job_limiter(job, queue);
	bool		limited[2] = {queue->limited || queue->tenants_limited, limiter_hash != 0};
	bool		overfull;
	bool		missing;
	char	   *name[2];

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	overfull = db->limits->overfull;
	index[0] = jobq_limiter_find(db, job_queue_id(job), 0);
	index[1] = limiter_hash == 0 ? JOBQ_NO_LIMITER
		: jobq_limiter_find(db, 0, limiter_hash);
	for (int i = 0; i < 2; i++)
	{
		JobqLimiter *found;

		if (index[i] == JOBQ_NO_LIMITER)
			continue;
		found = &db->limits->limiters[index[i]];
		if (!found->rate.by_group)
			may_start[i] = jobq_pace_free(&found->rate, &found->pace, now, &due[i]);
		limiter[i] = *found;
	}
	if (job_group(job) != 0)
	{
		JobqGroup  *group = jobq_group_find(db, job_group(job));

		if (group != NULL && group->limiter != JOBQ_NO_LIMITER)
		{
			JobqLimiter *policy = &db->limits->limiters[group->limiter];
			JobqRate	none = {0};

			group_free = jobq_pace_free(policy->rate.by_group ? &policy->rate : &none,
										&group->pace, now, &group_due);
			group_pace = group->pace;
		}
	}
	LWLockRelease(db->lock);

	name[0] = psprintf("queue \"%s\"", queue->name);
	name[1] = limiter_name(kind, limiter_hash, &missing);
	for (int i = 0; i < 2; i++)
	{
		if (index[i] == JOBQ_NO_LIMITER)
		{
			if (i == 1 && missing)
				explain_add(e, "limiter",
							psprintf("%s does not exist, and a kind or a queue names it", name[i]),
							"have logical replication bring jobq_internal.limiter, too; or make it with jobq.create_limiter()");
			else if (limited[i] && overfull)
				explain_add(e, "places",
							psprintf("all %d slots for limits are in use, and %s has none for its limits",
									 jobq_max_limiters, name[i]),
							"take away limits that are not needed, or raise \"jobq.ready_entries\", and restart the server");
			continue;
		}
		if (limiter[i].max_running > 0 && limiter[i].running >= limiter[i].max_running)
			explain_ask_tables(e, "explain_limit", i == 0 ? ", false" : ", true");
		if (i == 1 && !jobq_limiter_is_keyed(limiter_hash))
			when_taken(e, db, name[i], limiter_hash, 0);
		pace(e, name[i], false, limiter[i].pace.rest_until > now,
			 limiter[i].pace.rest_until, may_start[i], due[i]);
	}
	left_limiter(e, db, job, jobq_limiter_of(kind, queue));
	pace(e, "its group", true, group_pace.rest_until > now, group_pace.rest_until,
		 group_free, group_due);
}

/*
 * Report the limits of the job's tenant.  The caller has checked that the queue limits
 * tenants.  Takes db->lock exclusively.
 */
void
explain_tenant_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
					  const JobqQueue *queue)
{
	const char *tenant = jobq_job_tenant(job, queue);
	TimestampTz now = jobq_now();
	JobqTenantState state;
	bool		limited;
	char	   *what;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	limited = jobq_tenant_state(db, queue->id, jobq_tenant_hash(tenant), now,
								&state);
	LWLockRelease(db->lock);
	if (!limited)
		return;
	what = tenant == NULL ? psprintf("jobs without a tenant in queue \"%s\"", queue->name)
		: psprintf("tenant \"%s\" of queue \"%s\"", tenant, queue->name);
	if (state.max_running > 0 && state.running >= state.max_running)
		explain_add(e, "limit",
					psprintf("of %s %d may run at a time, and they do", what,
							 state.max_running),
					psprintf("SELECT jobq.alter_queue(%s, tenant_max_running => %d)",
							 quote_literal_cstr(queue->name), state.max_running + 1));
	else if (state.paced && state.tokens < 1)
		explain_add(e, "rate",
					psprintf("by the rate of %s, the next may start at %s", what,
							 explain_time(state.due)),
					psprintf("raise tenant_rate of queue \"%s\"", queue->name));
}

/*
 * Report the limits of the job's key, if the limiter has a key.  Takes db->lock exclusively.
 */
void
explain_key_limits(Explain *e, JobqDatabase *db, const JobqJob *job,
				   const JobqQueue *queue)
{
	uint32		limiter = jobq_job_limiter(job, queue);
	const char *name;
	TimestampTz now = jobq_now();
	JobqTenantState state;
	uint32		key;
	bool		limited;
	bool		missing;

	if (!jobq_limiter_is_keyed(limiter))
		return;
	name = limiter_name(jobq_job_kind(job), limiter, &missing);

	/* reads the payload and tables, so not under the lock */
	key = jobq_limit_key(job, limiter, jobq_job_tenant(job, queue));
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	limited = jobq_tenant_state(db, JOBQ_KEYS_OF(limiter), key, now, &state);
	LWLockRelease(db->lock);
	if (!limited)
		return;
	if (state.max_running > 0 && state.running >= state.max_running)
		explain_add(e, "limit",
					psprintf("of its key at %s %d may run at a time, and they do", name,
							 state.max_running),
					psprintf("raise max_running of %s", name));
	else if (state.paced && state.tokens < 1)
		explain_add(e, "rate",
					psprintf("by the rate of its key at %s, the next may start at %s", name,
							 explain_time(state.due)),
					psprintf("raise the rate of %s", name));
	when_taken(e, db, name, limiter, key);
}
