/*-------------------------------------------------------------------------
 *
 * lease_jobs.c
 *	  The popped jobs of a reservation: verified, returned to the consumer, and leased.
 *
 * src/consume/lease_jobs.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "consume/consume.h"

/*
 * Let the leases of these jobs end no later than the given times, because the jobs have a
 * timeout.  Takes db->lock exclusively.
 */
static void
limit_leases(Reservation *reservation, const int64 *ids,
			 const TimestampTz *deadlines, int n)
{
	JobqDatabase *db = reservation->db;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		JobqLease  *lease = jobq_lease_find(db, ids[i]);

		if (lease != NULL && lease->token == reservation->token)
			jobq_lease_limit(db, lease, deadlines[i]);
	}
	LWLockRelease(db->lock);
}

/*
 * True if the call can return this job together with its n previous jobs.  Suspect jobs
 * (job_suspect()) are never mixed with other jobs.  Each suspect job limits how many are
 * returned together.  *together is the lowest limit so far, or PG_INT32_MAX without suspects.
 */
static bool
joins(const JobqJob *job, int n, int *together)
{
	int			most = job_suspect(job) ? Max(job_together(job), 1) : PG_INT32_MAX;

	if (n > 0 && ((*together == PG_INT32_MAX) != (most == PG_INT32_MAX) ||
				  n >= Min(*together, most)))
		return false;
	*together = n == 0 ? most : Min(*together, most);
	return true;
}

/* The columns of the result of reserve() and reserve_job(). */
enum
{
	RESULT_ID,
	RESULT_TOKEN,
	RESULT_QUEUE,
	RESULT_KIND,
	RESULT_PAYLOAD,
	RESULT_HEADERS,
	RESULT_ATTEMPT,
	RESULT_MAX_ATTEMPTS,
	RESULT_ENQUEUED_AT,
	RESULT_LEASE_UNTIL,
	RESULT_CARRIED,
	RESULT_TENANT,
	RESULT_ALONE,
	RESULT_NATTS
};

/*
 * Add a row for the leased job to the result of rsinfo.
 */
static void
put_result(ReturnSetInfo *rsinfo, const JobqJob *job, const char *queue, int64 token,
		   TimestampTz until)
{
	Datum		values[RESULT_NATTS];
	bool		nulls[RESULT_NATTS] = {0};

	values[RESULT_ID] = JOB(job, JOB_ID);
	values[RESULT_TOKEN] = Int64GetDatum(token);
	values[RESULT_QUEUE] = CStringGetTextDatum(queue);
	values[RESULT_KIND] = JOB(job, JOB_KIND);
	values[RESULT_PAYLOAD] = PointerGetDatum(PG_DETOAST_DATUM(JOB(job, JOB_PAYLOAD)));
	nulls[RESULT_HEADERS] = JOB_ISNULL(job, JOB_HEADERS);
	if (!nulls[RESULT_HEADERS])
		values[RESULT_HEADERS] = PointerGetDatum(PG_DETOAST_DATUM(JOB(job, JOB_HEADERS)));
	nulls[RESULT_CARRIED] = JOB_ISNULL(job, JOB_CONTEXT);
	if (!nulls[RESULT_CARRIED])
		values[RESULT_CARRIED] = PointerGetDatum(PG_DETOAST_DATUM(JOB(job, JOB_CONTEXT)));
	values[RESULT_TENANT] = JOB(job, JOB_TENANT);
	nulls[RESULT_TENANT] = JOB_ISNULL(job, JOB_TENANT);
	values[RESULT_ALONE] = BoolGetDatum(job_suspect(job));
	values[RESULT_ATTEMPT] = Int32GetDatum(job_attempt(job) + 1);
	values[RESULT_MAX_ATTEMPTS] = JOB(job, JOB_MAX_ATTEMPTS);
	values[RESULT_ENQUEUED_AT] = JOB(job, JOB_ENQUEUED_AT);
	values[RESULT_LEASE_UNTIL] = TimestampTzGetDatum(until);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * Verify the popped jobs, add the valid jobs to the result of rsinfo, and make their leases
 * durable, if the queue wants this.  Other jobs are turned away.  Returns the number of jobs in
 * the result.  The caller holds no lock.
 */
int
jobq_lease_jobs(Reservation *reservation, ReturnSetInfo *rsinfo)
{
	static const Oid types[RESULT_NATTS] = {
		[RESULT_ID] = INT8OID,[RESULT_TOKEN] = INT8OID,[RESULT_QUEUE] = TEXTOID,
		[RESULT_KIND] = TEXTOID,[RESULT_PAYLOAD] = JSONBOID,[RESULT_HEADERS] = JSONBOID,
		[RESULT_ATTEMPT] = INT4OID,[RESULT_MAX_ATTEMPTS] = INT4OID,
		[RESULT_ENQUEUED_AT] = TIMESTAMPTZOID,[RESULT_LEASE_UNTIL] = TIMESTAMPTZOID,
		[RESULT_CARRIED] = JSONBOID,[RESULT_TENANT] = TEXTOID,[RESULT_ALONE] = BOOLOID
	};
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();
	TimestampTz until = reservation->until;
	int64	   *durable = palloc(sizeof(int64) * reservation->npopped);
	TransactionId *versions = palloc(sizeof(TransactionId) *
									 reservation->npopped);
	int64	   *limited = palloc(sizeof(int64) * reservation->npopped);
	TimestampTz *deadlines = palloc(sizeof(TimestampTz) * reservation->npopped);
	int			ndurable = 0;
	int			nlimited = 0;
	int			n = 0;
	int			together = 0;
	Relation	rel = jobq_open_jobs();
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	AssertUnlocked();
	jobq_check_types(rsinfo->setDesc, types, RESULT_NATTS);
	for (int i = 0; i < reservation->npopped; i++)
	{
		JobqPush   *entry = &reservation->popped[i];
		JobqQueue	queue_buffer;
		const JobqQueue *queue = jobq_queue_by_id(entry->queue_id,
												  &queue_buffer);
		JobqHandler handler;
		JobqJob		job;
		JobqJob		first;
		JobqVerdict verdict;
		TimestampTz lease_until = until;
		int			timeout;

		if (!jobq_job_fetch_entry(rel, entry, snapshot, &job))
			verdict = JOBQ_GONE;
		else if (queue == NULL)
			verdict = JOBQ_TAKEN;	/* by the transaction that drops the queue */
		else
			verdict = jobq_gate(rel, &job, MODE_CONSUMER, entry, snapshot,
								now, &first);
		if (verdict == JOBQ_MAY_RUN && !jobq_can_be_sent(&job))
			verdict = JOBQ_UNSENDABLE;
		if (verdict == JOBQ_MAY_RUN && !joins(&job, n, &together))
			verdict = JOBQ_NOT_TOGETHER;
		if (verdict != JOBQ_MAY_RUN)
		{
			reservation->wrote |= jobq_turn_away(rel, verdict, &job, entry,
												 &first, reservation->token);
			continue;
		}
		(void) jobq_unique_started(&job);
		jobq_tell_running(&job, job_attempt(&job) + 1, -1, false);

		/* if the transaction aborts, only the relay can notify the queue */
		jobq_at_commit_lease_given(entry->key.id, jobq_count_place(&job),
								   jobq_kind_hash(jobq_job_kind(&job)),
								   queue->notify != NOTIFY_OFF);

		timeout = jobq_job_timeout(jobq_handler(jobq_job_kind(&job), &handler),
								   &job);
		if (timeout > 0)
		{
			limited[nlimited] = entry->key.id;
			deadlines[nlimited] = now + timeout * INT64CONST(1000);
			lease_until = Min(until, deadlines[nlimited]);
			nlimited++;
		}
		put_result(rsinfo, &job, queue->name, reservation->token, lease_until);
		if (queue->lease == LEASE_DURABLE)
		{
			versions[ndurable] = job.version;
			durable[ndurable++] = entry->key.id;
		}
		n++;
	}
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);

	if (nlimited > 0)
		limit_leases(reservation, limited, deadlines, nlimited);
	if (ndurable > 0)
	{
		JobqLeaseRecord record = {
			.id = reservation->token,.token = reservation->token,.until = until,
			.n = ndurable,.jobs = durable,.versions = versions
		};

		jobq_lease_row(db, reservation->bundle, &record);
	}
	return n;
}

/*
 * Make the leases of the record's jobs durable by a row of jobq_internal.lease, and store the
 * row's id and ctid in the bundle.  Takes db->lock exclusively.
 */
void
jobq_lease_row(JobqDatabase *db, uint32 bundle, const JobqLeaseRecord *record)
{
	Relation	rel = jobq_open_table(JOBQ_LEASE_TABLE, RowExclusiveLock);
	Datum	   *elems = palloc(sizeof(Datum) * record->n);
	Datum		values[LEASE_COLUMN_NATTS];
	bool		nulls[LEASE_COLUMN_NATTS] = {0};
	ItemPointerData ctid;

	for (int i = 0; i < record->n; i++)
		elems[i] = Int64GetDatum(record->jobs[i]);
	values[LEASE_COLUMN_ID - 1] = Int64GetDatum(record->id);
	values[LEASE_COLUMN_TOKEN - 1] = Int64GetDatum(record->token);
	values[LEASE_COLUMN_UNTIL - 1] = TimestampTzGetDatum(record->until);
	values[LEASE_COLUMN_SINCE - 1] = TimestampTzGetDatum(db->leases->bundles[bundle].since);
	values[LEASE_COLUMN_N_HELD - 1] = Int32GetDatum(db->leases->bundles[bundle].held);
	nulls[LEASE_COLUMN_N_HELD - 1] = db->leases->bundles[bundle].held < 0;
	values[LEASE_COLUMN_ROLE - 1] = ObjectIdGetDatum(db->leases->bundles[bundle].role);
	values[LEASE_COLUMN_CONSUMER - 1] = CStringGetTextDatum(db->leases->bundles[bundle].consumer);
	values[LEASE_COLUMN_JOB_IDS - 1] =
		PointerGetDatum(construct_array(elems, record->n, INT8OID, 8,
										FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	for (int i = 0; i < record->n; i++)
		elems[i] = TransactionIdGetDatum(record->versions[i]);
	values[LEASE_COLUMN_JOB_VERSIONS - 1] =
		PointerGetDatum(construct_array(elems, record->n, XIDOID,
										sizeof(TransactionId), true,
										TYPALIGN_INT));
	ctid = jobq_insert_row(rel, values, nulls);
	table_close(rel, NoLock);

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (jobq_bundle_lives(db, bundle))
	{
		db->leases->bundles[bundle].row.id = record->id;
		db->leases->bundles[bundle].row.ctid = ctid;
	}
	LWLockRelease(db->lock);
}
