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
 * src/flow.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "row.h"

/* Longest key of a group, in bytes. */
#define MAX_GROUP_KEY	500

static uint32 tenant_hash(const JobqJob *job, const JobqQueue *queue);

/*
 * Put the job into a group of its queue.
 */
void
jobq_set_group(JobqJob *job, Datum group_key)
{
	text	   *key = DatumGetTextPP(group_key);
	Size		length = VARSIZE_ANY_EXHDR(key);
	uint64		hash;

	if (length < 1 || length > MAX_GROUP_KEY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("group_key of %zu bytes must have 1 to %d bytes",
						length, MAX_GROUP_KEY)));
	hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(key),
							   length, (uint64) job_queue_id(job));
	/* 0 stands for none */
	JOB_SET(job, JOB_GROUP_ID, Int64GetDatum((int64) (hash == 0 ? 1 : hash)));
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
 * What the job's flow ought to be, as kind and queue are now.
 */
int32
jobq_flow(const JobqJob *job)
{
	const JobqQueue *queue = jobq_queue_by_id(job_queue_id(job));
	uint32		tenant = tenant_hash(job, queue);
	const char *kind = jobq_job_kind(job);
	const JobqHandler *handler = jobq_handler(kind);
	uint32		hash = tenant;

	if (handler != NULL && handler->limited)
		hash = hash_combine(hash, jobq_kind_hash(kind));
	return (int32) hash;
}

/*
 * Set the job's flow.
 */
void
jobq_set_flow(JobqJob *job)
{
	JOB_SET(job, JOB_FLOW, Int32GetDatum(jobq_flow(job)));
}
