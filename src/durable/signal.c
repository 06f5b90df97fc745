/*-------------------------------------------------------------------------
 *
 * signal.c
 *	  signal(): send a signal to a job.  Signals with the same name are kept in order, and each
 *	  wait of the procedure takes one.
 *
 * No signal is lost between a procedure that is about to wait and a session that is about to
 * commit a signal.  Both take a heavyweight lock, held to the end of the transaction: the
 * signal in shared mode, before it is written, and the procedure in exclusive mode, before it
 * reads the signals for the last time.  Therefore one of these holds:
 *
 * - The signal came first.  The procedure has waited for its end, and sees the signal.
 * - The procedure came first.  The signal has waited until the suspension had committed, and
 *   sees the suspended job.
 *
 * A signal that has committed needs no lock.  The procedure therefore first takes a signal without
 * the lock, and otherwise looks again with the lock.  Most runs after a wait lock nothing, and no
 * sender waits behind them.
 *
 * Signals wait for each other only behind a procedure that waits for the lock.  The lock is chosen
 * by the role of the job and a hash of the job, because a transaction may send signals to more jobs
 * than the server has locks.  A procedure may therefore also wait for the end of a transaction that
 * has sent a signal to another job of the same role, and never because of jobs of other roles.  A
 * change of the role (reassign_owned()) locks the signals, too.
 *
 * No code of the user runs while a procedure has the lock, and a procedure that takes the lock
 * has committed before.  A procedure that has sent signals therefore waits for no lock of
 * another such procedure.
 *
 * The signal makes a suspended job due as edit() does: the row is deleted, and inserted again
 * with another run_at.  At commit, the job is handed over.  A job that is due, running or
 * retried reads the signal when its procedure comes to the wait.
 *
 * src/durable/signal.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "durable/inner.h"
#include "operate/operate.h"
#include "produce/produce.h"

/* A job to which a signal is sent. */
typedef enum Receiver
{
	RECEIVER_LIVE,
	RECEIVER_DEAD,				/* a dead letter, which may be retried */
	RECEIVER_FINISHED
}			Receiver;

PG_FUNCTION_INFO_V1(jobq_signal);
PG_FUNCTION_INFO_V1(jobq_signal_uuid);
PG_FUNCTION_INFO_V1(jobq_signal_text);
PG_FUNCTION_INFO_V1(jobq_signal_key);

/*
 * Commit, and lock the signals to the current job.  If the next transaction commits a suspension
 * of the job, no signal is missed.  May wait for transactions that send signals.  The commit ends
 * the locks of signals that this procedure has sent.
 *
 * A transaction that has written nothing needs no lease, and its commit writes no WAL.  The next
 * transaction checks the lease before it writes.
 */
void
durable_lock_signals(const JobqCurrent *current)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		durable_check_lease(current);
	durable_commit();
	jobq_signals_lock(job_id(current->job), job_role(current->job), ExclusiveLock);
}

/*
 * Take the first signal with this name that no wait has taken: mark the signal as taken by the
 * step, and set *payload.  False if there is none.  Only after durable_lock_signals(), false also
 * means that a suspension misses no signal.
 */
bool
durable_take_signal(const JobqCurrent *current, const char *name, const char *step,
					Datum *payload)
{
	Relation	signals;
	Relation	index;
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	first;

	signals = jobq_open_table(JOBQ_SIGNAL_TABLE, RowExclusiveLock);
	ScanKeyInit(&keys[0], SIGNAL_JOB_ID, BTEqualStrategyNumber, F_INT8EQ,
				JOB(current->job, JOB_ID));
	ScanKeyInit(&keys[1], SIGNAL_NAME, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	index = jobq_open_index(signals, JOBQ_SIGNAL_NEXT);
	scan = systable_beginscan_ordered(signals, index, SnapshotSelf, 2, keys);
	first = systable_getnext_ordered(scan, ForwardScanDirection);
	if (first != NULL)
		first = heap_copytuple(first);
	systable_endscan_ordered(scan);
	index_close(index, NoLock);
	if (first != NULL)
	{
		Datum		values[SIGNAL_NATTS];
		bool		nulls[SIGNAL_NATTS];

		heap_deform_tuple(first, RelationGetDescr(signals), values, nulls);
		*payload = PointerGetDatum(PG_DETOAST_DATUM_COPY(values[SIGNAL_PAYLOAD - 1]));
		values[SIGNAL_TAKEN_BY - 1] = CStringGetTextDatum(step);
		nulls[SIGNAL_TAKEN_BY - 1] = false;
		if (jobq_lock_row(signals, &first->t_self, LockWaitBlock) != TM_Ok)
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("the signal was deleted meanwhile")));
		jobq_update_row(signals, &first->t_self,
						heap_form_tuple(RelationGetDescr(signals), values, nulls));
	}
	table_close(signals, NoLock);
	return first != NULL;
}

/* The text in jobq_internal.job.waits_for of a job that waits for the signal. */
const char *
durable_waits_for_signal(const char *name)
{
	return psprintf("signal \"%s\"", name);
}

/*
 * Find the job for the current user, who must have the privilege manage for the job.  False if
 * the job is not live.  ERROR without the privilege, or if the job runs elsewhere.
 */
static bool
find_live(Relation rel, int64 id, JobqJob *job)
{
	if (!jobq_find_for(JOBQ_MAY_MANAGE, rel, id, true, job))
		return false;
	if (DatumGetBool(JOB(job, JOB_DORMANT)))
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " was brought by logical replication, and runs on the publisher",
						id),
				 errhint("Send the signal there; or, when the publisher is off, after jobq.adopt() here.")));
	return true;
}

/*
 * True if the job is a dead letter, for which the current user has the privilege manage.  False
 * if the job has finished otherwise.  Sets the job's role.  ERROR if there is no such job, or
 * without the privilege.
 */
static bool
is_dead_letter(int64 id, Oid *role)
{
	static const Oid types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	int32		queue_id;
	bool		dead;

	SPI_connect();
	if (jobq_query_latest("SELECT role::oid, queue_id, false FROM jobq_internal.archive WHERE id = $1"
						  " UNION ALL SELECT role::oid, queue_id, true FROM jobq_internal.dead_letter WHERE id = $1",
						  1, types, values, SPI_OK_SELECT) == 0)
		jobq_no_such_job(id);
	jobq_row_of_job(role, &queue_id);
	jobq_refuse_to_see_only(JOBQ_MAY_MANAGE, id, *role, queue_id);
	if (!jobq_may(JOBQ_MAY_MANAGE, *role, queue_id))
		jobq_no_such_job(id);
	dead = DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, BOOLOID, NULL));
	SPI_finish();
	return dead;
}

/*
 * Find the job that receives a signal, and set *role.  If the job is live, also set *job.  ERROR
 * as from find_live() and is_dead_letter().
 */
static Receiver
find_receiver(Relation rel, int64 id, JobqJob *job, Oid *role)
{
	bool		dead = false;

	/* the job may move between the tables, so check the first again */
	if (find_live(rel, id, job) ||
		(!(dead = is_dead_letter(id, role)) && find_live(rel, id, job)))
	{
		*role = job_role(job);
		return RECEIVER_LIVE;
	}
	return dead ? RECEIVER_DEAD : RECEIVER_FINISHED;
}

/*
 * Read the name and the payload of a signal.  name_arg: number of the argument with the name,
 * which the payload follows.  ERROR if one is not valid.
 */
static Datum
read_signal(FunctionCallInfo fcinfo, int name_arg, JobqSignal *signal)
{
	Datum		payload;

	PreventCommandIfReadOnly("jobq.signal()");
	signal->name = text_to_cstring(durable_name_arg(fcinfo, name_arg, "name"));
	if (PG_ARGISNULL(name_arg + 1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("payload must not be null"),
				 errhint("The procedure reads a null as a timeout; a JSON null is possible.")));
	payload = PG_GETARG_DATUM(name_arg + 1);
	jobq_check_value("payload", payload);
	return payload;
}

/*
 * Send the signal to signal->job_id.  Returns false if the job has finished.  A dead letter keeps
 * the signal for a retry.
 */
static Datum
send_signal(FunctionCallInfo fcinfo, JobqSignal *signal, Datum payload)
{
	int64		id = signal->job_id;
	const char *waits_for = durable_waits_for_signal(signal->name);
	Relation	rel = jobq_open_jobs();
	Receiver	receiver;
	JobqJob		job;
	Oid			role;
	Oid			locked;
	bool		received;

	(void) find_receiver(rel, id, &job, &role);
	do
	{
		locked = role;
		jobq_signals_lock(id, locked, ShareLock);
		receiver = find_receiver(rel, id, &job, &role);
	} while (role != locked);

	/* may wait for a concurrent transaction on the row */
	while (receiver == RECEIVER_LIVE && jobq_is_suspended_for(&job, waits_for) &&
		   !jobq_wake_suspended(rel, &job))
	{
		CHECK_FOR_INTERRUPTS();
		receiver = find_receiver(rel, id, &job, &role);
	}
	received = receiver != RECEIVER_FINISHED;
	table_close(rel, NoLock);
	if (received)
	{
		signal->id = jobq_next_id();
		signal->sent_by = GetUserId();
		jobq_signal_insert(signal, payload);
	}
	jobq_audit(fcinfo, received);
	PG_RETURN_BOOL(received);
}

/* Send the signal in arguments 1 and 2 to the job. */
static Datum
signal_job(FunctionCallInfo fcinfo, int64 id)
{
	JobqSignal	signal = {.job_id = id};
	Datum		payload = read_signal(fcinfo, 1, &signal);

	return send_signal(fcinfo, &signal, payload);
}

static int64
id_arg(FunctionCallInfo fcinfo)
{
	jobq_not_null(fcinfo, 0, "the job");
	return PG_GETARG_INT64(0);
}

/*
 * Return argument 0, the id of a job that can receive signals.  ERROR if the job does not exist or
 * has finished, and without the privilege manage for the job.
 */
int64
durable_receiver_arg(FunctionCallInfo fcinfo)
{
	int64		id = id_arg(fcinfo);
	Relation	rel = jobq_open_jobs();
	JobqJob		job;
	Oid			role;

	if (find_receiver(rel, id, &job, &role) == RECEIVER_FINISHED)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("job " INT64_FORMAT " has finished", id)));
	table_close(rel, NoLock);
	return id;
}

/*
 * signal(id, name, payload): send a signal.  ERROR if the job does not exist, without the
 * privilege manage for the job, or if the name or payload is not valid.
 */
Datum
jobq_signal(PG_FUNCTION_ARGS)
{
	return signal_job(fcinfo, id_arg(fcinfo));
}

/* signal(uuid, name, payload): the same, for the job with this uuid. */
Datum
jobq_signal_uuid(PG_FUNCTION_ARGS)
{
	(void) (PG_ARGISNULL(0) && id_arg(fcinfo));
	return signal_job(fcinfo, jobq_id_of_uuid(PG_GETARG_DATUM(0)));
}

/* signal(text, name, payload): the same, for a parameter without a type. */
Datum
jobq_signal_text(PG_FUNCTION_ARGS)
{
	(void) (PG_ARGISNULL(0) && id_arg(fcinfo));
	return signal_job(fcinfo, jobq_id_of_text(PG_GETARG_TEXT_PP(0)));
}

/*
 * signal(kind, unique_key, name, payload, scope, queue): the same, for the job of the current
 * role that holds the unique key.  Returns false if no job holds the key.
 */
Datum
jobq_signal_key(PG_FUNCTION_ARGS)
{
	static const JobqKeyArgs args = {.kind = 0,.key = 1,.scope = 4,.queue = 5};
	JobqSignal	signal = {0};
	Datum		payload;
	JobqJob		key;

	jobq_require(JOBQ_MAY_PRODUCE | JOBQ_MAY_PRODUCE_OPEN);
	if (!jobq_unique_from_args(fcinfo, &args, &key))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the unique key and its kind must not be null")));
	payload = read_signal(fcinfo, 2, &signal);
	signal.job_id = jobq_unique_holder(&key);
	if (signal.job_id == 0)
		PG_RETURN_BOOL(false);
	return send_signal(fcinfo, &signal, payload);
}
