/*-------------------------------------------------------------------------
 *
 * flow.c
 *	  The lane of a job beyond queue and priority: the role of the run, the limiters, the
 *	  tenant, the group.
 *
 * Jobs of a kind with limits, and jobs of named limiters, have separate lanes, and so have the
 * tenants of a fair queue.  Jobs waiting for a limit or for
 * their turn therefore do not block other jobs.  A kind whose handler takes several jobs has
 * separate lanes, so that a worker can pop them together.  "flow" in the job's row
 * distinguishes these lanes.  The flow is set when the row is written.  If the kind or the queue has changed
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
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_limiters_of_sql);
PG_FUNCTION_INFO_V1(jobq_group_of_role);
PG_FUNCTION_INFO_V1(jobq_group_waits_until_sql);

/* Stands in the hash for a bypassed limiter. */
#define PASSES	0x70617373

/*
 * Distinguishes the hash of a paused kind from the hash of a kind with limits.
 */
#define HELD	0x68656c64

/* Distinguishes the hash of a kind whose handler takes several jobs. */
#define SET		0x73657400

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
 * the row and the queue's settings: the job has begun before, and its queue's group_on_failure
 * lets the group wait.
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
 * group_waits_until(held, on_failure): the time until which a group waits for a job first
 * returned at "held", by this group_on_failure.  NULL: without a timeout.
 */
Datum
jobq_group_waits_until_sql(PG_FUNCTION_ARGS)
{
	int64		patience;

	(void) jobq_group_wait_parse(text_to_cstring(PG_GETARG_TEXT_PP(1)), &patience);
	if (patience == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(jobq_later(PG_GETARG_TIMESTAMPTZ(0), patience / 1000));
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
 * Like jobq_limiters_of().  *set becomes true if the handler of the kind takes several jobs.
 */
static void
limiters_of(const char *kind, const JobqQueue *queue, uint32 *limiters, bool *set)
{
	JobqHandler handler;

	memset(limiters, 0, sizeof(uint32) * JOBQ_NLIMITS);
	*set = false;
	if (jobq_handler(kind, &handler) != NULL)
	{
		limiters[JOBQ_OF_KIND] = handler.limits;
		memcpy(&limiters[JOBQ_NAMED_BY_KIND], handler.limiters, sizeof(handler.limiters));
		*set = handler.chunk > 1;
	}
	if (queue != NULL)
		memcpy(&limiters[JOBQ_NAMED_BY_QUEUE], queue->limiters, sizeof(queue->limiters));
	jobq_limiters_unique(limiters);
}

/*
 * Set the array to the hashes of the limiters for jobs of this kind in this queue, by
 * JobqLimitSource.  0 means none, or the queue itself.  The queue may be NULL.
 */
void
jobq_limiters_of(const char *kind, const JobqQueue *queue, uint32 *limiters)
{
	bool		set;

	limiters_of(kind, queue, limiters, &set);
}

/*
 * limiters_of(kind, queue_id): the hashes of the limiters beside the queue's own limits, for
 * queries: of the kind, named by the kind, named by the queue.  0 means none.  The array is
 * empty for a role without any privilege.
 */
Datum
jobq_limiters_of_sql(PG_FUNCTION_ARGS)
{
	uint32		limiters[JOBQ_NLIMITS];
	Datum		values[JOBQ_NLIMITS];
	JobqQueue	buffer;

	if (!jobq_may_use())
		PG_RETURN_ARRAYTYPE_P(construct_empty_array(INT4OID));
	jobq_limiters_of(text_to_cstring(PG_GETARG_TEXT_PP(0)),
					 jobq_queue_by_id(PG_GETARG_INT32(1), &buffer), limiters);
	for (int s = 0; s < JOBQ_NLIMITS; s++)
		values[s] = Int32GetDatum((int32) limiters[s]);
	PG_RETURN_ARRAYTYPE_P(construct_array(&values[JOBQ_OF_KIND], JOBQ_NLIMITS - JOBQ_OF_KIND,
										  INT4OID, sizeof(int32), true, TYPALIGN_INT));
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
	JobqNeed	needs[JOBQ_NLIMITS];
	uint32		set;			/* the kind, if its handler takes several
								 * jobs, or 0 */
	uint32		held;			/* the kind, if paused, or 0 */
	char	   *tenant_name;	/* or NULL */
	Oid			run_as;
	bool		tenant_paused;	/* separate lanes only due to a pause */
} Flow;

/*
 * Return what the job needs from the limiter with this hash; 0: there is no limiter.
 */
static JobqNeed
need_of(const JobqJob *job, uint32 limiter, const char *tenant)
{
	JobqNeed	need = {0};

	if (limiter == 0)
		return need;
	need.cost = jobq_limit_cost(job, limiter);
	if (need.cost == 0)
	{
		need.cost = JOBQ_PASSES;
		return need;
	}
	need.limiter = limiter;
	need.key = jobq_limit_key(job, limiter, tenant);
	return need;
}

/*
 * Compute the components of the job's flow, with the present settings of kind and queue.  The
 * tenant counts if the queue is fair, or if the tenant is paused.  The
 * kind counts if the kind is paused, or if its handler takes several jobs.
 */
static void
parts(const JobqJob *job, Flow *flow)
{
	const char *kind = jobq_job_kind(job);
	bool		set;
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	uint32		limiters[JOBQ_NLIMITS];

	memset(flow, 0, sizeof(Flow));
	flow->run_as = queue != NULL && OidIsValid(queue->run_as) ? queue->run_as
		: job_role(job);
	if (queue != NULL && queue->tenant_by != TENANT_NONE)
	{
		flow->tenant_name = jobq_job_tenant(job, queue);
		if (queue->fair || jobq_tenant_paused(queue, flow->tenant_name))
			JOBQ_TENANT(flow) = jobq_tenant_hash(flow->tenant_name);
		flow->tenant_paused = !queue->fair;
	}
	limiters_of(kind, queue, limiters, &set);
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		flow->needs[s] = need_of(job, limiters[s], flow->tenant_name);
	if (set)
		flow->set = hash_combine(jobq_kind_hash(kind), SET);
	if (queue != NULL && jobq_kind_paused(queue, kind))
		flow->held = jobq_held_hash(kind);
}

/* Return the hash of all components.  Returns 0 only if there are none. */
static int32
flow_of(const Flow *flow)
{
	uint32		hash = JOBQ_TENANT(flow);
	bool		none = hash == 0 && flow->held == 0 && flow->set == 0;

	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
	{
		const JobqNeed *need = &flow->needs[s];

		none &= need->cost == 0;
		if (need->key != 0)
			hash = hash_combine(hash, need->key);
		if (need->limiter != 0)
			hash = hash_combine(hash, need->limiter);
		if (need->cost == JOBQ_PASSES)
			hash = hash_combine(hash, PASSES);
		else if (need->cost > 1)
			hash = hash_combine(hash, murmurhash32(need->cost));
	}
	if (flow->set != 0)
		hash = hash_combine(hash, flow->set);
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
 * Return whether the job has a key at a limiter.  The key may depend on the payload.
 */
bool
jobq_flow_has_key(const JobqJob *job)
{
	Flow		flow;

	parts(job, &flow);
	for (int s = JOBQ_OF_KIND; s < JOBQ_NLIMITS; s++)
		if (flow.needs[s].key != 0)
			return true;
	return false;
}

/*
 * Set the array to what the job needs from its limiters, by the present settings of kind and
 * queue, without the tenant.
 */
void
jobq_job_needs(const JobqJob *job, JobqNeed *needs)
{
	Flow		flow;

	parts(job, &flow);
	memcpy(needs, flow.needs, sizeof(flow.needs));
	needs[JOBQ_OF_QUEUE].key = 0;
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

/* Fill in the flow and the permits of the push. */
void
jobq_push_flow(const JobqJob *job, JobqPush *push)
{
	push->flow = job_flow(job);
	push->group = job_group(job);
	push->permits = JOBQ_NO_PERMITS;
	push->unlimited = false;
	memset(push->needs, 0, sizeof(push->needs));
	push->held = 0;
	if (push->flow != 0)
	{
		Flow		flow;

		parts(job, &flow);
		memcpy(push->needs, flow.needs, sizeof(push->needs));

		/*
		 * An outdated row will leave its lane.  A pause of its kind or tenant
		 * does not concern the other jobs of the lane.
		 */
		if (flow_of(&flow) == push->flow)
			push->held = flow.held;
		else if (flow.tenant_paused)
			JOBQ_TENANT(push) = 0;
	}
}
