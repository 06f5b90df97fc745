/*-------------------------------------------------------------------------
 *
 * flow.c
 *	  What a job's lane depends on beside its queue and priority: as which role it
 *	  runs, its limiter, its tenant, its group.
 *
 * Jobs of a kind with limits, those of a named limiter, and the tenants of a queue
 * that is fair or limits them have lanes of their own, so that what waits for a limit
 * or for its turn stands in nobody else's way.  "flow" in the job's row tells these lanes apart.  It is set when
 * the row is written, and set right by whoever takes the job if kind or queue
 * have changed since.  So is the role: that of who has enqueued the job, unless the
 * queue says otherwise.
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

/* Stands for a limiter that its jobs pass by. */
#define PASSES	0x70617373

/* Tells the hash of a kind that is paused from that of one with limits. */
#define HELD	0x68656c64

/* Longest key of a group, in bytes. */
#define MAX_GROUP_KEY	500

/*
 * The id of a group.  The hash is one of which nobody can find two texts with the same
 * value, so that nobody can make a key whose group is that of another queue or role.
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
 * The id of the queue's group of that key; never 0, and even: see jobq_group_shared().
 */
int64
jobq_group_id(int32 queue_id, text *key)
{
	int64		id = hash_of_group('q', (uint32) queue_id, key) & ~INT64CONST(1);

	return id == 0 ? 2 : id;
}

/*
 * group_of_role(role, key): the id of the role's group of that key in all queues whose
 * groups are of the database; odd.
 */
Datum
jobq_group_of_role(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(hash_of_group('r', PG_GETARG_OID(0), PG_GETARG_TEXT_PP(1)) | 1);
}

/*
 * Put the job into a group of its queue, or of its role in all queues whose groups are
 * of the database.  Queue and role are set before.
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
 * Is the job in a group of another scope than its queue has now?  It was enqueued while
 * that changed.  Then it is to be written anew.
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
 * Does the group of this job, which does not run, wait for it, as far as its row tells
 * and the queue has its groups wait?  It has begun before, and is not stuck for longer
 * than the patience that its queue has now.
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
 * group_waits_until(held, patience): until when a group waits for a job that came back
 * for the first time then.
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
 * Have the job, as it is in memory, begin anew in the group in which it belongs now, if
 * that is of another scope than the one that it has.
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
 * The same whatever has changed, for a job which the caller has deleted and inserts
 * again: at commit its group is told not to wait for it any more.
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
 * What limits jobs of the kind in this queue, beside the queue's own limits: the
 * limiter that the kind names, or the kind's own limits, or else the limiter that the
 * queue names.  By its hash; 0 if there is none.  The queue may be NULL.
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
 * The same for this job; 0 also if it passes the limiter by.
 */
uint32
jobq_job_limiter(const JobqJob *job, const JobqQueue *queue)
{
	uint32		limiter = jobq_limiter_of(jobq_job_kind(job), queue);

	return limiter != 0 && jobq_limit_cost(job, limiter) > 0 ? limiter : 0;
}

/*
 * limiter_of(kind, queue_id): what limits jobs of the kind in the queue, for queries; 0 to who has no privilege.
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

/*
 * Is this tenant of the queue paused?  tenant may be NULL.
 */
bool
jobq_tenant_paused(const JobqQueue *queue, const char *tenant)
{
	return queue->tenants_paused && tenant != NULL &&
		jobq_queue_pauses(queue->id, false, tenant);
}

/*
 * Is this kind paused in the queue?
 */
bool
jobq_kind_paused(const JobqQueue *queue, const char *kind)
{
	return queue->kinds_paused && jobq_queue_pauses(queue->id, true, kind);
}

/*
 * By which lanes know that their jobs are of a kind that may be paused; never 0.
 */
uint32
jobq_held_hash(const char *kind)
{
	uint32		hash = hash_combine(jobq_kind_hash(kind), HELD);

	return hash == 0 ? 1 : hash;
}

/* What a job's lane depends on. */
typedef struct Flow
{
	uint32		limiter;		/* what limits it beside its queue, or 0 */
	uint32		limit_key;		/* its key there, or 0 */
	int32		cost;			/* tokens that it takes there; 0: there is no
								 * limiter; or JOBQ_PASSES */
	uint32		tenant;			/* if that has lanes of its own, or 0 */
	uint32		held;			/* its kind, if that is paused, or 0 */
	char	   *tenant_name;	/* or NULL */
	Oid			run_as;
	bool		tenants_limited;	/* those of its queue are */
	bool		tenant_paused;	/* that is all why it has lanes of its own */
} Flow;

/*
 * The job is limited by this, or by nothing (0), unless it passes that by.
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
 * The hashes of what limits the job beside its queue, of its key there, and of its
 * tenant, if that has lanes of its own: in a queue that is fair or limits its tenants,
 * or because it is paused; of its kind, if that is paused; and as which role it runs.
 * As kind and queue are now.
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

/*
 * The hash of all of them; 0 if there is none, and never else.
 */
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

/*
 * Set the job's flow, its tenant, and as which role it runs.
 */
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
 * Has the job a key for its limiter, which may depend on its payload?
 */
bool
jobq_flow_has_key(const JobqJob *job)
{
	Flow		flow;

	parts(job, &flow);
	return flow.limit_key != 0;
}

/*
 * Would the job need a place of its tenant and one of its key?  Then it waits until one
 * of both is taken away: see src/ready/tenant.c.
 */
bool
jobq_flow_is_limited_twice(const JobqJob *job)
{
	Flow		flow;

	parts(job, &flow);
	return flow.tenants_limited && flow.tenant != 0 && flow.limit_key != 0;
}

/*
 * Is the job in another lane than where it belongs now?  Then it is to be
 * written anew.
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
 * The flow that the job would have now if it were limited by this, or by nothing (0).
 */
int32
jobq_flow_with(const JobqJob *job, uint32 limiter)
{
	Flow		flow;

	parts(job, &flow);
	set_limiter(job, &flow, limiter);
	return flow_of(&flow);
}

/*
 * Fill in what the push says of the job's flow.
 */
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
		 * A row that is outdated will leave its lane: that its kind or tenant
		 * is paused by now says nothing of the others there.
		 */
		if (flow_of(&flow) == push->flow)
			push->held = flow.held;
		else if (flow.tenant_paused)
			push->tenant = 0;
	}
}
