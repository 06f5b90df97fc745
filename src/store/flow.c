/*-------------------------------------------------------------------------
 *
 * flow.c
 *	  What a job's turn depends on beside its queue, priority and role: the
 *	  limits of its kind, its tenant, its group.
 *
 * Jobs of a kind with limits, and the tenants of a fair queue, have lanes of
 * their own, so that what waits for a limit or for its turn stands in nobody
 * else's way.  "flow" in the job's row tells these lanes apart.  It is set when
 * the row is written, and set right by whoever takes the job if kind or queue
 * have changed since.
 *
 * src/store/flow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

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

#include "store/row.h"

PG_FUNCTION_INFO_V1(jobq_kind_hash_sql);

/* Longest key of a group, in bytes. */
#define MAX_GROUP_KEY	500

static uint32 tenant_hash(const JobqJob *job, const JobqQueue *queue);

/*
 * The id of the queue's group of that key; never 0.
 */
int64
jobq_group_id(int32 queue_id, text *key)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(key),
										   VARSIZE_ANY_EXHDR(key),
										   (uint64) queue_id);

	return (int64) (hash == 0 ? 1 : hash);
}

/*
 * Put the job into a group of its queue.
 */
void
jobq_set_group(JobqJob *job, Datum group_key)
{
	text	   *key = DatumGetTextPP(group_key);
	Size		length = VARSIZE_ANY_EXHDR(key);

	if (length < 1 || length > MAX_GROUP_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("group_key of %zu bytes must have 1 to %d bytes",
						length, MAX_GROUP_KEY)));
	JOB_SET(job, JOB_GROUP_ID,
			Int64GetDatum(jobq_group_id(job_queue_id(job), key)));
	JOB_SET(job, JOB_GROUP_KEY, group_key);
}

/*
 * The hash by which the limits of a kind are found; never 0.
 */
uint32
jobq_kind_hash(const char *kind)
{
	uint32		hash = hash_bytes((const unsigned char *) kind, strlen(kind));

	return hash == 0 ? 1 : hash;
}

/*
 * kind_hash(kind): the same, for queries.
 */
Datum
jobq_kind_hash_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) jobq_kind_hash(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/*
 * Which tenant the job belongs to, in a queue that is fair; 0 in others.
 */
static uint32
tenant_hash(const JobqJob *job, const JobqQueue *queue)
{
	uint32		hash = 2;		/* of those without a tenant */

	if (queue == NULL || queue->fair_by[0] == '\0')
		return 0;
	if (strcmp(queue->fair_by, "role") == 0)
		hash = murmurhash32(job_role(job));
	else if (!JOB_ISNULL(job, JOB_HEADERS))
	{
		JsonbValue	buffer;
		Jsonb	   *headers = DatumGetJsonbP(JOB(job, JOB_HEADERS));
		JsonbValue *value = JB_ROOT_IS_OBJECT(headers)
			? getKeyJsonValueFromContainer(&headers->root, queue->fair_by,
										   strlen(queue->fair_by), &buffer)
			: NULL;

		if (value != NULL && value->type == jbvString)
			hash = hash_bytes((const unsigned char *) value->val.string.val,
							  value->val.string.len);
		else if (value != NULL && value->type == jbvNumeric)
		{
			char	   *text = DatumGetCString(DirectFunctionCall1(numeric_out,
																   NumericGetDatum(value->val.numeric)));

			hash = hash_bytes((const unsigned char *) text, strlen(text));
		}
	}
	return hash == 0 ? 1 : hash;
}

/*
 * The hashes of the job's kind, if that has limits, and of its tenant, as kind
 * and queue are now.
 */
static void
parts(const JobqJob *job, uint32 *kind, uint32 *tenant)
{
	const char *name = jobq_job_kind(job);
	JobqHandler handler;
	JobqQueue	queue;

	*kind = jobq_handler(name, &handler) != NULL && handler.limited
		? jobq_kind_hash(name) : 0;
	*tenant = tenant_hash(job, jobq_queue_by_id(job_queue_id(job), &queue));
}

static int32
flow_of(uint32 kind, uint32 tenant)
{
	return (int32) (kind != 0 ? hash_combine(tenant, kind) : tenant);
}

/*
 * Set the job's flow.
 */
void
jobq_set_flow(JobqJob *job)
{
	uint32		kind;
	uint32		tenant;

	parts(job, &kind, &tenant);
	JOB_SET(job, JOB_FLOW, Int32GetDatum(flow_of(kind, tenant)));
}

/*
 * Is the job in another lane than where it belongs now?  Then it is to be
 * written anew.
 */
bool
jobq_flow_changed(const JobqJob *job)
{
	uint32		kind;
	uint32		tenant;
	int32		flow;

	parts(job, &kind, &tenant);
	flow = flow_of(kind, tenant);
	return flow != 0 && flow != job_flow(job);
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
	push->kind = push->tenant = 0;
	if (push->flow != 0)
		parts(job, &push->kind, &push->tenant);
}

/*
 * The job goes back to its lane, which is served again when the scheduler has
 * ranked it anew; limits: and has loaded them.  token: of the job's lease, which
 * ends then, or 0.
 */
static void
give_back(const JobqPush *push, int64 token, bool limits)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqLane   *lane;

	if (db == NULL)
		return;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	lane = jobq_lane_find(db, push->queue_id, push->priority, push->role,
						  push->flow, push->quarantine, true);
	if (lane != NULL)
	{
		lane->ranked = false;
		db->reload = true;
		db->limits_stale |= limits;
		wake.scheduler = true;
	}
	jobq_lease_undo(db, push->key.id, token, jobq_now(), &wake);
	jobq_ready_push(db, push, push->key.run_at, &wake);
	jobq_unlock(db, &wake);
}

/*
 * Was the job popped by somebody who may not have it, because its queue was
 * paused or has got another mode just now?  Then it goes back.  For token see
 * give_back().
 */
bool
jobq_popped_in_vain(const JobqJob *job, const JobqPush *entry, char mode,
					int64 token)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqPush	push = *entry;

	if (queue == NULL || (!queue->paused && queue->mode == mode))
		return false;
	jobq_push_flow(job, &push);
	give_back(&push, token, false);
	return true;
}

/*
 * Was it popped without a permit that it needs, because its queue or kind has
 * got limits just now?  Then it goes back, too.
 */
bool
jobq_permits_lack(const JobqJob *job, const JobqPush *entry, int64 token)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqPush	push = *entry;

	jobq_push_flow(job, &push);
	if (!(queue != NULL && queue->limited &&
		  entry->permits.queue == JOBQ_NO_LIMITER) &&
		!(push.kind != 0 && entry->permits.kind == JOBQ_NO_LIMITER))
		return false;
	give_back(&push, token, true);
	return true;
}

/*
 * Look for a job of the same group that is due and comes before this one.
 */
bool
jobq_group_predecessor(Relation rel, const JobqJob *job, Snapshot snapshot,
					   JobqJob *first)
{
	TimestampTz now = jobq_now();
	Relation	index = index_open(jobq_relations()->job_group, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData keys[2];
	ScanKeyData members[3];
	IndexScanDesc scan;
	bool		found = false;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ,
				Int64GetDatum(job_group(job)));
	ScanKeyEntryInitialize(&members[0], SK_ROW_MEMBER, 2,
						   BTLessStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT4CMP, Int32GetDatum(job_priority(job)));
	ScanKeyEntryInitialize(&members[1], SK_ROW_MEMBER, 3,
						   BTLessStrategyNumber, InvalidOid, InvalidOid,
						   F_TIMESTAMPTZ_CMP,
						   TimestampTzGetDatum(job_run_at(job)));
	ScanKeyEntryInitialize(&members[2], SK_ROW_MEMBER | SK_ROW_END, 4,
						   BTLessStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(job_id(job)));
	MemSet(&keys[1], 0, sizeof(ScanKeyData));
	keys[1].sk_flags = SK_ROW_HEADER;
	keys[1].sk_attno = 2;
	keys[1].sk_strategy = BTLessStrategyNumber;
	keys[1].sk_argument = PointerGetDatum(members);

	scan = jobq_index_beginscan(rel, index, snapshot, 2);
	index_rescan(scan, keys, 2, NULL, 0);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, slot))
	{
		slot_getallattrs(slot);
		memcpy(first->values, slot->tts_values, sizeof(first->values));
		memcpy(first->nulls, slot->tts_isnull, sizeof(first->nulls));
		found = job_run_at(first) <= now &&
			!DatumGetBool(JOB(first, JOB_DORMANT));
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	return found;
}

/*
 * Does the job have to wait for another of its group?  A lane knows nothing of
 * the others, and a group may have jobs in several: of several priorities,
 * roles, kinds with limits.  So whoever has been given the job asks the table,
 * unless there is but one lane.
 * If so, the job goes back, and its group waits for the other.  token: of its
 * lease, which ends then, or 0.
 *
 * That there is a permit says that no job of the group runs.
 */
bool
jobq_group_must_wait(Relation rel, const JobqJob *job, const JobqPush *entry,
					 int64 token, Snapshot snapshot)
{
	JobqQueue	buffer;
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job), &buffer);
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqPush	push = *entry;
	JobqJob		first;
	JobqJob		again;
	Snapshot	latest;

	if (job_group(job) == 0 || entry->first ||
		entry->permits.group == JOBQ_NONE || db == NULL ||
		queue == NULL || queue->group_max_running != 1 ||
		(!JOB_ISNULL(job, JOB_GROUP_HELD) &&
		 queue->group_on_failure == GROUP_WAIT) ||
		!jobq_group_predecessor(rel, job, snapshot, &first))
		return false;

	/*
	 * who says that a group waits for a job must stay to see whether it is
	 * there
	 */
	HOLD_INTERRUPTS();
	push.permits = JOBQ_NO_PERMITS;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	jobq_group_call(db, entry->permits.group, job_id(&first),
					job_priority(&first), job_run_at(&first));
	jobq_lease_undo(db, push.key.id, token, jobq_now(), &wake);
	jobq_ready_push(db, &push, push.key.run_at, &wake);
	jobq_unlock(db, &wake);

	/* it may have come to its end before we said that we wait for it */
	latest = RegisterSnapshot(GetLatestSnapshot());
	if (!jobq_job_find(rel, job_id(&first), latest, &again))
	{
		memset(&wake, 0, sizeof(wake));
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		jobq_group_end(db, job_group(job), job_id(&first), jobq_now(), &wake);
		jobq_unlock(db, &wake);
	}
	UnregisterSnapshot(latest);
	RESUME_INTERRUPTS();
	return true;
}
