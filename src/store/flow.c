/*-------------------------------------------------------------------------
 *
 * flow.c
 *	  The lane of a job beyond queue and priority: the role of the run, the limiter, the tenant,
 *	  the group.
 *
 * Jobs of a kind with limits and jobs of a named limiter have lanes of their own.  So have the
 * tenants of a queue that is fair or limits its tenants.  Jobs waiting for a limit or for
 * their turn therefore do not block other jobs.  "flow" in the job's row distinguishes these
 * lanes.  The flow is set when the row is written.  If the kind or the queue has changed
 * since, the taker of the job corrects the flow.  The same holds for the role, which is the
 * enqueuer's role unless the queue has run_as.
 *
 * src/store/flow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_limiter_of_sql);
PG_FUNCTION_INFO_V1(jobq_group_of_role);
PG_FUNCTION_INFO_V1(jobq_group_waits_until_sql);

/* Stands in the hash for a bypassed limiter. */
#define PASSES	0x70617373

/*
 * Distinguishes the hash of a paused kind from the hash of a kind with limits.
 */
#define HELD	0x68656c64

/* Maximum length of a group key, in bytes. */
#define MAX_GROUP_KEY	500

/*
 * Return the id of a group.  The hash is cryptographic, so that no client can construct a key
 * with the id of a group of another queue or role.
 */
static int64
hash_of_group(char scope, uint32 owner, text *key)
{
	Size		length = VARSIZE_ANY_EXHDR(key);
	Size		head = sizeof(scope) + sizeof(owner);
	bytea	   *whole = palloc(VARHDRSZ + head + length);
	char	   *to = VARDATA(whole);
	bytea	   *digest;
	uint64		hash = 0;

	SET_VARSIZE(whole, VARHDRSZ + head + length);
	*to++ = scope;
	for (int i = 0; i < (int) sizeof(owner); i++)
		*to++ = (char) (owner >> (8 * i));
	memcpy(to, VARDATA_ANY(key), length);
	digest = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea,
												 PointerGetDatum(whole)));
	for (int i = 0; i < (int) sizeof(hash); i++)
		hash = hash << 8 | (unsigned char) VARDATA_ANY(digest)[i];
	pfree(digest);
	pfree(whole);
	return (int64) hash;
}

/*
 * Return the id of the queue's group with this key.  Never 0, and even: see
 * jobq_group_shared().
 */
int64
jobq_group_id(int32 queue_id, text *key)
{
	int64		id = hash_of_group('q', (uint32) queue_id, key) & ~INT64CONST(1);

	return id == 0 ? 2 : id;
}

/*
 * group_of_role(role, key): the id of the role's group with this key, for all queues with
 * group_scope database.  Odd.
 */
Datum
jobq_group_of_role(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(hash_of_group('r', PG_GETARG_OID(0), PG_GETARG_TEXT_PP(1)) | 1);
}

/*
 * Put the job into a group of its queue, or, with group_scope database, into a group of its
 * role.  The caller must have set queue and role.  ERROR if the key is empty or too long.
 */
void
jobq_set_group(JobqJob *job, Datum group_key)
{
	text	   *key = DatumGetTextPP(group_key);
	Size		length = VARSIZE_ANY_EXHDR(key);
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	if (length < 1 || length > MAX_GROUP_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("group_key of %zu bytes must have 1 to %d bytes",
						length, MAX_GROUP_KEY)));
	if (queue != NULL && queue->group_scope == GROUP_OF_DATABASE)
		JOB_SET(job, JOB_GROUP_ID,
				DirectFunctionCall2(jobq_group_of_role,
									ObjectIdGetDatum(job_role(job)),
									PointerGetDatum(key)));
	else
		JOB_SET(job, JOB_GROUP_ID,
				Int64GetDatum(jobq_group_id(job_queue_id(job), key)));
	JOB_SET(job, JOB_GROUP_KEY, group_key);
}

/*
 * Return whether the job's group has another scope than its queue has now, because the scope
 * was changed after the job was enqueued.  Then the row must be written again.
 */
bool
jobq_group_changed(const JobqJob *job)
{
	JobqQueue	buffer;
	const JobqQueue *queue;

	if (job_group(job) == 0)
		return false;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	return queue != NULL &&
		jobq_group_shared(job_group(job)) != (queue->group_scope == GROUP_OF_DATABASE);
}

/*
 * Return whether the group of this job, which does not run, waits for the job.  Considers only
 * the row and the queue's settings: the job has begun before, and its queue's group_patience
 * has not run out.
 */
bool
jobq_group_is_held_by(const JobqJob *job, TimestampTz now)
{
	JobqQueue	buffer;
	const JobqQueue *queue;

	if (JOB_ISNULL(job, JOB_GROUP_HELD))
		return false;
	queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	return queue == NULL || queue->group_patience == 0 ||
		now - queue->group_patience < job_held_since(job);
}

/*
 * group_waits_until(held, patience): the time until which a group waits for a job first
 * returned at "held".
 */
Datum
jobq_group_waits_until_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_TIMESTAMPTZ(jobq_later(PG_GETARG_TIMESTAMPTZ(0),
									 jobq_interval_ms(PG_GETARG_INTERVAL_P(1),
													  "group_patience", 0,
													  JOBQ_MAX_DELAY_MS)));
}

/*
 * Move the job, in memory, to the group for the present scope of the queue, if the scope has
 * changed.  The job no longer counts as begun.
 */
void
jobq_set_group_right(JobqJob *job)
{
	if (!jobq_group_changed(job))
		return;
	JOB_ISNULL(job, JOB_GROUP_HELD) = true;
	jobq_set_group(job, JOB(job, JOB_GROUP_KEY));
}

/*
 * Assign the group of the job again, after any change.  The caller has deleted the job's row
 * and inserts the row again.  At commit, the old group's wait for the job ends.
 */
void
jobq_change_group(JobqJob *job)
{
	if (job_group(job) == 0)
		return;
	jobq_at_commit_group_end(job_group(job), job_id(job));
	JOB_ISNULL(job, JOB_GROUP_HELD) = true;
	jobq_set_group(job, JOB(job, JOB_GROUP_KEY));
}

/*
 * Return the hash of the limiter of this kind in this queue, beyond the queue's own limits:
 * the limiter named by the kind, or the kind's own limits, or else the limiter named by the
 * queue.  Returns 0 if there is none.  The queue may be NULL.
 */
uint32
jobq_limiter_of(const char *kind, const JobqQueue *queue)
{
	JobqHandler handler;

	if (jobq_handler(kind, &handler) != NULL && handler.limiter != 0)
		return handler.limiter;
	return queue != NULL ? queue->limiter : 0;
}

/*
 * Return the hash of the limiter of this job.  Returns 0 also if the job bypasses the limiter.
 */
uint32
jobq_job_limiter(const JobqJob *job, const JobqQueue *queue)
{
	uint32		limiter = jobq_limiter_of(jobq_job_kind(job), queue);

	return limiter != 0 && jobq_limit_cost(job, limiter) > 0 ? limiter : 0;
}

/*
 * limiter_of(kind, queue_id): the hash of the limiter, for queries.  Returns 0 to a role
 * without any privilege.
 */
Datum
jobq_limiter_of_sql(PG_FUNCTION_ARGS)
{
	JobqQueue	buffer;
	const JobqQueue *queue;

	if (!jobq_may_use())
		PG_RETURN_INT32(0);
	queue = jobq_queue_by_id(PG_GETARG_INT32(1), &buffer);
	PG_RETURN_INT32((int32) jobq_limiter_of(text_to_cstring(PG_GETARG_TEXT_PP(0)),
											queue));
}

/* Return whether this tenant of the queue is paused.  tenant may be NULL. */
bool
jobq_tenant_paused(const JobqQueue *queue, const char *tenant)
{
	return queue->tenants_paused && tenant != NULL &&
		jobq_queue_pauses(queue->id, false, tenant);
}

/* Return whether this kind is paused in the queue. */
bool
jobq_kind_paused(const JobqQueue *queue, const char *kind)
{
	return queue->kinds_paused && jobq_queue_pauses(queue->id, true, kind);
}

/* Return the hash to mark the lanes of a pausable kind.  Never 0. */
uint32
jobq_held_hash(const char *kind)
{
	uint32		hash = hash_combine(jobq_kind_hash(kind), HELD);

	return hash == 0 ? 1 : hash;
}

/* Components of a job's flow. */
typedef struct Flow
{
	uint32		limiter;		/* limiter beyond its queue's, or 0 */
	uint32		limit_key;		/* key at the limiter, or 0 */
	int32		cost;			/* tokens; 0: no limiter; or JOBQ_PASSES */
	uint32		tenant;			/* if with own lanes, or 0 */
	uint32		held;			/* the kind, if paused, or 0 */
	char	   *tenant_name;	/* or NULL */
	Oid			run_as;
	bool		tenants_limited;	/* the queue limits its tenants */
	bool		tenant_paused;	/* separate lanes only due to a pause */
} Flow;

/*
 * Set the limiter of the flow, with the job's key and cost there.  limiter 0 means none.
 */
static void
set_limiter(const JobqJob *job, Flow *flow, uint32 limiter)
{
	int32		cost = limiter == 0 ? 0 : jobq_limit_cost(job, limiter);

	flow->limiter = cost > 0 ? limiter : 0;
	flow->cost = limiter != 0 && cost == 0 ? JOBQ_PASSES : cost;
	flow->limit_key = jobq_limit_key(job, flow->limiter, flow->tenant_name);
}

/*
 * Compute the components of the job's flow, with the present settings of kind and queue.  The
 * tenant counts if the queue is fair or limits its tenants, or if the tenant is paused.  The
 * kind counts if the kind is paused.
 */
static void
parts(const JobqJob *job, Flow *flow)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);

	memset(flow, 0, sizeof(Flow));
	flow->run_as = queue != NULL && OidIsValid(queue->run_as) ? queue->run_as
		: job_role(job);
	if (queue != NULL && queue->tenant_by != TENANT_NONE)
	{
		flow->tenant_name = jobq_job_tenant(job, queue);
		if (queue->fair || queue->tenants_limited ||
			jobq_tenant_paused(queue, flow->tenant_name))
			flow->tenant = jobq_tenant_hash(flow->tenant_name);
		flow->tenants_limited = queue->tenants_limited;
		flow->tenant_paused = !queue->fair && !queue->tenants_limited;
	}
	set_limiter(job, flow, jobq_limiter_of(jobq_job_kind(job), queue));
	if (queue != NULL && jobq_kind_paused(queue, jobq_job_kind(job)))
		flow->held = jobq_held_hash(jobq_job_kind(job));
}

/* Return the hash of all components.  Returns 0 only if there are none. */
static int32
flow_of(const Flow *flow)
{
	uint32		hash = flow->tenant;
	bool		none = flow->tenant == 0 && flow->cost == 0 && flow->held == 0;

	if (flow->limit_key != 0)
		hash = hash_combine(hash, flow->limit_key);
	if (flow->limiter != 0)
		hash = hash_combine(hash, flow->limiter);
	if (flow->cost == JOBQ_PASSES)
		hash = hash_combine(hash, PASSES);
	else if (flow->cost > 1)
		hash = hash_combine(hash, murmurhash32(flow->cost));
	if (flow->held != 0)
		hash = hash_combine(hash, flow->held);
	return hash == 0 && !none ? 1 : (int32) hash;
}

/* Set the job's flow, its tenant, and the role under which the job runs. */
void
jobq_set_flow(JobqJob *job)
{
	Flow		flow;

	parts(job, &flow);
	if (flow.tenant_name != NULL)
		JOB_SET(job, JOB_TENANT, CStringGetTextDatum(flow.tenant_name));
	else
		JOB_ISNULL(job, JOB_TENANT) = true;
	job_clear_stat(job);
	JOB_SET(job, JOB_FLOW, Int32GetDatum(flow_of(&flow)));
	JOB_SET(job, JOB_RUN_AS, ObjectIdGetDatum(flow.run_as));
}

/*
 * Return whether the job has a key at its limiter.  The key may depend on the payload.
 */
bool
jobq_flow_has_key(const JobqJob *job)
{
	Flow		flow;

	parts(job, &flow);
	return flow.limit_key != 0;
}

/*
 * Return whether the job belongs into another lane now.  Then its row must be written again.
 */
bool
jobq_flow_changed(const JobqJob *job)
{
	Flow		flow;
	int32		hash;

	parts(job, &flow);
	hash = flow_of(&flow);
	return flow.run_as != job_run_as(job) || (hash != 0 && hash != job_flow(job));
}

/*
 * Return the job's present flow with this limiter instead, or without any (0).
 */
int32
jobq_flow_with(const JobqJob *job, uint32 limiter)
{
	Flow		flow;

	parts(job, &flow);
	set_limiter(job, &flow, limiter);
	return flow_of(&flow);
}

/* Fill in the flow and the permits of the push. */
void
jobq_push_flow(const JobqJob *job, JobqPush *push)
{
	push->flow = job_flow(job);
	push->group = job_group(job);
	push->permits = JOBQ_NO_PERMITS;
	push->kind = push->tenant = push->limit_key = push->held = 0;
	push->cost = 0;
	if (push->flow != 0)
	{
		Flow		flow;

		parts(job, &flow);
		push->kind = flow.limiter;
		push->tenant = flow.tenant;
		push->limit_key = flow.limit_key;
		push->cost = flow.cost;

		/*
		 * An outdated row will leave its lane.  A pause of its kind or tenant
		 * does not concern the other jobs of the lane.
		 */
		if (flow_of(&flow) == push->flow)
			push->held = flow.held;
		else if (flow.tenant_paused)
			push->tenant = 0;
	}
}
