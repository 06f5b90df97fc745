/*-------------------------------------------------------------------------
 *
 * enqueue_many.c
 *	  Enqueue many jobs in one statement: enqueue_many().
 *
 * A unique key stays locked until the end of the transaction.  Two statements with common keys
 * would wait for each other if each statement locked the keys in its caller's order.  The keys
 * are therefore locked in the order of their bytes.  The ids and the result are in the
 * caller's order.
 *
 * src/produce/enqueue_many.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "produce/produce.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_enqueue_many);

#define MULTI_INSERT			500

/* A unique key, and the number of its payload. */
typedef struct PayloadKey
{
	text	   *key;
	int			number;
} PayloadKey;

static int
compare_keys(const PayloadKey *key, const PayloadKey *other)
{
	int			length = VARSIZE_ANY_EXHDR(key->key);
	int			other_length = VARSIZE_ANY_EXHDR(other->key);
	int			order = memcmp(VARDATA_ANY(key->key), VARDATA_ANY(other->key),
							   Min(length, other_length));

	return order != 0 ? order : length - other_length;
}

/* Payloads with the same key stay in the caller's order. */
static int
compare_payloads(const void *a, const void *b)
{
	const PayloadKey *key = a;
	const PayloadKey *other = b;
	int			order = compare_keys(key, other);

	return order != 0 ? order : key->number - other->number;
}

/* Return the unique keys of the payloads, sorted. */
static PayloadKey *
sort_keys(const JobqJob *job, const JobqUnique *unique, const Datum *payloads,
		  int npayloads)
{
	PayloadKey *keys = palloc(sizeof(PayloadKey) * npayloads);
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(caller, "jobq unique keys",
												  ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < npayloads; i++)
	{
		JobqJob		keyed = *job;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(context);
		JOB_SET(&keyed, JOB_PAYLOAD, payloads[i]);
		if (unique->by != NIL)
			jobq_set_unique_by(&keyed, unique->by);
		MemoryContextSwitchTo(caller);
		keys[i].key = DatumGetTextPCopy(JOB(&keyed, JOB_UNIQUE_KEY));
		keys[i].number = i;
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	qsort(keys, npayloads, sizeof(PayloadKey), compare_payloads);
	return keys;
}

/*
 * Write a job for each payload, and return the ids in the order of the payloads.  No payload
 * may be null. *nulls is set for null ids (jobq_put_job()). *job comes from
 * jobq_prepare_job().
 *
 * With "max", several jobs may hold a key.  A statement with several jobs of one key also
 * takes the key's numbers in order.  The statement waits for a number that another transaction
 * is about to take, and does not try the next number.
 */
static Datum *
put_unique_jobs(const JobqJob *job, const JobqUnique *unique,
				const Datum *payloads, int npayloads, bool *nulls)
{
	PayloadKey *keys = sort_keys(job, unique, payloads, npayloads);
	Datum	   *ids = palloc(sizeof(Datum) * npayloads);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "jobq unique jobs",
												  ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < npayloads; i++)
		ids[i] = Int64GetDatum(jobq_next_id());
	for (int i = 0; i < npayloads; i++)
	{
		int			number = keys[i].number;
		JobqJob		keyed = *job;
		JobqUnique	by_key = *unique;
		MemoryContext old;

		CHECK_FOR_INTERRUPTS();
		by_key.by = NIL;
		by_key.several = (i > 0 && compare_keys(&keys[i - 1], &keys[i]) == 0) ||
			(i < npayloads - 1 && compare_keys(&keys[i], &keys[i + 1]) == 0);
		old = MemoryContextSwitchTo(context);
		JOB_SET(&keyed, JOB_ID, ids[number]);
		JOB_SET(&keyed, JOB_UNIQUE_KEY, PointerGetDatum(keys[i].key));
		jobq_set_payload(&keyed, payloads[number]);
		jobq_put_job(&keyed, &by_key);
		ids[number] = JOB(&keyed, JOB_ID);
		nulls[number] = JOB_ISNULL(&keyed, JOB_ID);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	return ids;
}

/*
 * Write a job for each payload.  The jobs differ only in payload and id.  The ids are returned
 * through the set-returning function that calls this one. *job comes from jobq_prepare_job().
 * ERROR if a payload is null, or if several jobs would have one unique key or uuid.  Locks
 * jobq_internal.job for writing until the end of the transaction.
 */
void
jobq_put_jobs(FunctionCallInfo fcinfo, JobqJob *job, const JobqUnique *unique,
			  ArrayType *array)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel;
	HeapTuple  *tuples;
	TupleTableSlot **slots;
	Datum	   *payloads;
	bool	   *payload_nulls;
	int			npayloads;
	bool		keyed;			/* each job has its own flow */
	bool		priced;			/* each job has its own cost at its limiter */
	MemoryContext batch_context;

	deconstruct_array(array, JSONBOID, -1, false, TYPALIGN_INT, &payloads,
					  &payload_nulls, &npayloads);
	if (npayloads == 0)
		return;
	if (!JOB_ISNULL(job, JOB_UNIQUE_KEY) && unique->by == NIL &&
		unique->max == 1 && npayloads > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d jobs cannot have the same unique_key", npayloads),
				 errhint("Call jobq.enqueue() for each, with a key of its own, or give \"by\" or \"max\" of uniqueness.")));
	if (unique->uuid != (Datum) 0 && npayloads > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d jobs cannot have the same uuid", npayloads),
				 errhint("Call jobq.enqueue() for each, with a uuid of its own.")));
	for (int i = 0; i < npayloads; i++)
		if (payload_nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("payload %d of %d must not be null", i + 1, npayloads)));
	if (!JOB_ISNULL(job, JOB_UNIQUE_KEY) || unique->uuid != (Datum) 0)
	{
		Datum	   *ids = &JOB(job, JOB_ID);
		bool	   *nulls = &JOB_ISNULL(job, JOB_ID);

		if (npayloads > 1)
		{
			nulls = palloc(sizeof(bool) * npayloads);
			ids = put_unique_jobs(job, unique, payloads, npayloads, nulls);
		}
		else
		{
			jobq_set_payload(job, payloads[0]);
			jobq_put_job(job, unique);
		}
		for (int i = 0; i < npayloads; i++)
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &ids[i], &nulls[i]);
		return;
	}
	jobq_length_reserve(job, npayloads);
	jobq_set_flow(job);
	priced = jobq_limit_is_priced(job);
	keyed = priced || jobq_flow_has_key(job);

	rel = jobq_open_jobs();
	tuples = palloc(sizeof(HeapTuple) * MULTI_INSERT);
	slots = palloc(sizeof(TupleTableSlot *) * MULTI_INSERT);
	for (int i = 0; i < Min(npayloads, MULTI_INSERT); i++)
		slots[i] = MakeSingleTupleTableSlot(RelationGetDescr(rel),
											&TTSOpsHeapTuple);
	batch_context = AllocSetContextCreate(CurrentMemoryContext, "jobq batch",
										  ALLOCSET_DEFAULT_SIZES);

	for (int done = 0; done < npayloads;)
	{
		int			n = Min(npayloads - done, MULTI_INSERT);
		MemoryContext old = MemoryContextSwitchTo(batch_context);

		for (int i = 0; i < n; i++)
		{
			Datum		id;
			bool		isnull = false;

			JOB_SET(job, JOB_ID, Int64GetDatum(jobq_next_id()));
			jobq_set_payload(job, payloads[done + i]);
			if (priced)
				jobq_ask_limit_cost(job);
			if (keyed)
				jobq_set_flow(job);
			ExecStoreHeapTuple(heap_form_tuple(RelationGetDescr(rel),
											   job->values, job->nulls),
							   slots[i], false);
			id = JOB(job, JOB_ID);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &id,
								 &isnull);
		}
		heap_multi_insert(rel, slots, n, GetCurrentCommandId(true), 0, NULL);
		for (int i = 0; i < n; i++)
		{
			bool		should_free;

			tuples[i] = ExecFetchSlotHeapTuple(slots[i], false, &should_free);
			tuples[i]->t_self = slots[i]->tts_tid;
			Assert(!should_free);
		}
		jobq_insert_entries(rel, tuples, n);
		jobq_count_rows(job, n);
		jobq_count(job, JOBQ_N_ENQUEUED, n);
		for (int i = 0; i < n; i++)
		{
			bool		isnull;

			JOB_SET(job, JOB_ID, slot_getattr(slots[i], JOB_ID, &isnull));
			if (keyed)
			{
				JOB_SET(job, JOB_FLOW, slot_getattr(slots[i], JOB_FLOW, &isnull));
				JOB_SET(job, JOB_PAYLOAD, slot_getattr(slots[i], JOB_PAYLOAD, &isnull));
				JOB(job, JOB_LIMIT_COST) = slot_getattr(slots[i], JOB_LIMIT_COST,
														&JOB_ISNULL(job, JOB_LIMIT_COST));
			}
			job->ctid = slots[i]->tts_tid;
			jobq_job_push(job);
			ExecClearTuple(slots[i]);
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(batch_context);
		done += n;
	}

	for (int i = 0; i < Min(npayloads, MULTI_INSERT); i++)
		ExecDropSingleTupleTableSlot(slots[i]);
	table_close(rel, NoLock);
}

/* enqueue_many(kind, payloads, ...options) returns the ids, in order. */
Datum
jobq_enqueue_many(PG_FUNCTION_ARGS)
{
	char	   *kind = jobq_kind_from_arg(fcinfo, 0);
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	JobqJob		job;
	JobqUnique	unique;
	ArrayType  *payloads;

	jobq_not_null(fcinfo, 1, "payloads");
	payloads = PG_GETARG_ARRAYTYPE_P(1);
	jobq_options_from_args(fcinfo, 2, options, nulls);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (ArrayGetNItems(ARR_NDIM(payloads), ARR_DIMS(payloads)) == 0)
		return (Datum) 0;
	jobq_prepare_job(&job, &unique, kind, options, nulls);
	jobq_put_jobs(fcinfo, &job, &unique, payloads);
	return (Datum) 0;
}
