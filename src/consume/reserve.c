/*-------------------------------------------------------------------------
 *
 * reserve.c
 *	  reserve(): programs outside the server take jobs.
 *
 * A reservation pops entries from the ready set, as a worker does.  There is no scan and no
 * row lock, and the job's row stays untouched.  The popped jobs become leases in shared
 * memory.
 *
 * Unless the queue keeps leases in memory only, the whole call writes one row of
 * jobq_internal.lease.  A lease is thus durable when the reserving transaction has
 * committed, at a cost of a few bytes per job.  If the transaction rolls back, the row never
 * existed and the jobs return to their lanes.
 *
 * src/consume/reserve.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "commit/commit.h"
#include "consume/consume.h"

PG_FUNCTION_INFO_V1(jobq_reserve);
PG_FUNCTION_INFO_V1(jobq_lease_slots);

#define MAX_RESERVE		1000
#define MAX_RESERVE_WAIT_MS	INT64CONST(3600000)

/* Milliseconds between checks whether the database is served again. */
#define AWAY_PAUSE_MS	100L

/*
 * If a call finds no job while the scheduler has unread lanes, the call checks again, up to
 * MAX_EMPTY_CHECKS times, MOMENT_MS milliseconds apart.  The scheduler needs some milliseconds, and
 * more if all processors of the machine are busy.
 */
#define MAX_EMPTY_CHECKS		200
#define MOMENT_MS		5L

/*
 * Return this database's shared state, with its leases loaded.  After a server start, waits up
 * to ten seconds for the launcher and the scheduler.  ERROR if the database has no scheduler,
 * is a copy not adopted yet, or is not ready in time.  function: name of the SQL function, for
 * messages.  The caller holds no lock.
 */
JobqDatabase *
jobq_served_database(const char *function)
{
	static uint32 wait_event = 0;
	JobqDatabase *db;

	AssertUnlocked();
	jobq_require_preload(function);
	if (!IsUnderPostmaster)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_NOT_RUNNING),
				 errmsg("%s needs a scheduler, and a server for a single user has none",
						function)));
	for (int tries = 0; tries < 1000; tries++)
	{
		if (!jobq_has_scheduler(&db))
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_NOT_RUNNING),
					 errmsg("%s needs a scheduler, and this database has none",
							function),
					 errhint("Name the database in \"%s\".", "jobq.databases")));
		if (db != NULL && db->leases->loaded)
		{
			jobq_refuse_copy(db, function);
			return db;
		}
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, jobq_wait_event(wait_event, "JobqLoad"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_NOT_RUNNING),
			 errmsg("%s needs a scheduler, and that of this database has not started yet",
					function),
			 errhint("The server's log says what keeps it from running.")));
	return NULL;
}

static void
parse_queues(Reservation *reservation, ArrayType *queues)
{
	Datum	   *names;
	bool	   *nulls;
	int			n;
	int			nconsumed = 0;

	deconstruct_array(queues, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls,
					  &n);
	if (n < 1 || n > JOBQ_MAX_TAKE_QUEUES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot reserve from %d queues", n),
				 errhint("Name 1 to %d queues.", JOBQ_MAX_TAKE_QUEUES)));
	for (int i = 0; i < n; i++)
	{
		const char *name = nulls[i] ? "" : TextDatumGetCString(names[i]);
		JobqQueue	buffer;
		const JobqQueue *queue = jobq_queue_by_name(name, false, &buffer);

		if (queue == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("queue \"%s\" does not exist", name),
					 errhint("Create it with jobq.create_queue(%s, mode => 'consumer').",
							 quote_literal_cstr(name))));
		jobq_require_visible(queue);
		if (queue->mode != MODE_CONSUMER)
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_WRONG_STATE),
					 errmsg("queue \"%s\" is served by workers", name),
					 errhint("Change it with jobq.alter_queue(%s, mode => 'consumer').",
							 quote_literal_cstr(name))));
		reservation->queue_ids[i] = queue->id;
		nconsumed += (jobq_privileges(queue->id) & JOBQ_MAY_CONSUME) != 0;
	}

	/*
	 * permission to take jobs of all roles is the same for all queues of a
	 * call
	 */
	if (nconsumed > 0 && nconsumed < n)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("of these queues, the jobs of all roles can be taken from some only"),
				 errhint("Reserve from the others by calls of their own, or get the privilege consume for them.")));
	reservation->taker.nqueues = n;
	reservation->taker.queue_ids = reservation->queue_ids;
	reservation->taker.pool = -1;
	reservation->taker.slot = -1;
}

/*
 * True if the role's limits allow another lease.  new_bundle: the lease is the first of its
 * call, and needs a bundle, too.  The caller holds db->lock.
 */
bool
jobq_may_lease(JobqDatabase *db, Oid role, bool new_bundle)
{
	AssertLocked(db->lock);
	return jobq_share_left(db->shares, role, JOBQ_OF_LEASES) &&
		(!new_bundle || jobq_share_left(db->shares, role, JOBQ_OF_BUNDLES));
}

/*
 * Raise the error for a role at its limit of leases or bundles.  Takes db->lock in shared
 * mode.
 */
void
jobq_no_lease(JobqDatabase *db, Oid role)
{
	uint32		jobs;
	uint32		calls;

	LWLockAcquire(db->lock, LW_SHARED);
	jobs = jobq_share_held(db->shares, role, JOBQ_OF_LEASES);
	calls = jobq_share_held(db->shares, role, JOBQ_OF_BUNDLES);
	LWLockRelease(db->lock);
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("consumers of role \"%s\" hold too many jobs",
					GetUserNameFromId(role, false)),
			 errdetail("They hold %u jobs by %u calls; %d jobs by %d calls can be held by all roles, and a rest is kept for each.",
					   jobs, calls, jobq_max_leases, JOBQ_MAX_BUNDLES),
			 errhint("Acknowledge what is done, take more jobs with each call, or raise \"%s\", which is %d.",
					 "jobq.ready_entries", jobq_ready_entries)));
}

/*
 * Raise the error for a role with too many waiting sessions.  Takes db->lock in shared mode.
 */
static void
no_place(JobqDatabase *db, Oid role)
{
	uint32		held;

	LWLockAcquire(db->lock, LW_SHARED);
	held = jobq_share_held(db->shares, role, JOBQ_OF_RESERVERS);
	LWLockRelease(db->lock);
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many consumers of role \"%s\" wait",
					GetUserNameFromId(role, false)),
			 errdetail("%u of its sessions wait; %d sessions of all roles can wait in a database, and some places are kept for each role.",
					   held, JOBQ_MAX_RESERVERS),
			 errhint("Ask with fewer sessions.")));
}

/*
 * Lease the next job of the reservation.  The job has its permits already.  Cannot fail.  The
 * caller holds db->lock, has called jobq_lease_room() for the lease and a bundle, and
 * jobq_may_lease() has returned true since the lock was acquired.
 */
void
jobq_lease_popped(Reservation *reservation, const JobqPush *job, TimestampTz now)
{
	JobqDatabase *db = reservation->db;
	JobqLease  *lease PG_USED_FOR_ASSERTS_ONLY;

	AssertExclusive(reservation->db->lock);
	if (reservation->bundle == JOBQ_NONE)
	{
		reservation->bundle = jobq_lease_bundle(db, GetUserId());
		Assert(reservation->bundle != JOBQ_NONE);
		jobq_at_commit_bundle(db, reservation->bundle);
	}
	if (reservation->token == 0)
	{
		JobqLeaseBundle *bundle = &db->leases->bundles[reservation->bundle];

		reservation->token = jobq_lease_token(db);
		reservation->until = now + reservation->lease_ms * 1000;
		bundle->pid = MyProcPid;
		bundle->since = now;
		bundle->held = reservation->held;
		strlcpy(bundle->consumer, reservation->consumer, NAMEDATALEN);
		bundle->client = reservation->client;
	}
	lease = jobq_lease_add(db, job, reservation->token, reservation->until,
						   reservation->bundle);
	Assert(lease != NULL);
	jobq_at_commit_lease(LEASE_TAKE, job->key.id, reservation->token,
						 JOBQ_NONE, 0);
	reservation->npopped++;
}

/*
 * Initialize a reservation from the common arguments of reserve() and reserve_job().  lease
 * and consumer are the numbers of these arguments.  A null consumer stands for
 * application_name.  ERROR if the lease is out of range.
 */
void
jobq_reservation_begin(Reservation *reservation, FunctionCallInfo fcinfo,
					   int lease, int consumer)
{
	memset(reservation, 0, sizeof(Reservation));
	reservation->lease_ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(lease), "lease",
											 MIN_LEASE_MS, MAX_LEASE_MS);
	reservation->consumer = PG_ARGISNULL(consumer)
		? (application_name != NULL ? application_name : "")
		: text_to_cstring(PG_GETARG_TEXT_PP(consumer));
	reservation->consumer = pnstrdup(reservation->consumer,
									 pg_mbcliplen(reservation->consumer,
												  strlen(reservation->consumer),
												  NAMEDATALEN - 1));
	jobq_client_address(&reservation->client);
	reservation->held = -1;
	reservation->place = JOBQ_NONE;
	reservation->bundle = JOBQ_NONE;
}

/*
 * Pop up to reservation->max jobs and lease them, without an error in between, so that the end
 * of the transaction releases every job.  Without a job, if "wait" is true, add this session
 * to the list of waiting consumers.  ERROR if the role has reached a limit.  Returns whether a
 * job was popped.
 *
 * If a previous round popped jobs, all were turned away: see Reservation for the bundle and the
 * token.
 */
static bool
pop_jobs(Reservation *reservation, bool wait)
{
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();
	Oid			role = GetUserId();
	bool		full = false;
	bool		crowded = false;
	JobqWakeList wake = {0};

	jobq_injection_point("jobq-reserve-begins");

	/* each job may be leased and turned away; and a bundle may be created */
	jobq_lease_room(2 * reservation->max + 1);
	reservation->npopped = 0;
	reservation->token = 0;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (reservation->bundle != JOBQ_NONE &&
		!jobq_bundle_lives(db, reservation->bundle))
		reservation->bundle = JOBQ_NONE;
	while (reservation->npopped < reservation->max && db->dboid == MyDatabaseId)
	{
		JobqPush   *job = &reservation->popped[reservation->npopped];

		if (!jobq_may_lease(db, role, reservation->bundle == JOBQ_NONE))
		{
			full = true;
			break;
		}
		if (!jobq_reserver_pop(reservation, now, job, &wake))
			break;
		if (jobq_lease_find(db, job->key.id) != NULL)
		{
			/* the ready set had a second entry for the job */
			jobq_permits_release(db, &job->permits, job->key.id, false, true,
								 now, &wake);
			continue;
		}
		jobq_lease_popped(reservation, job, now);
	}
	if (reservation->npopped == 0 && wait && !full && !db->stop && db->dboid == MyDatabaseId)
		crowded = !jobq_reserver_list(reservation) &&
			!jobq_share_left(db->shares, role, JOBQ_OF_RESERVERS);
	jobq_unlock(db, &wake);

	/* a write by this call releases leases at commit, so it must not fail */
	if (full && reservation->npopped == 0 && !reservation->wrote)
		jobq_no_lease(db, role);
	if (crowded)
		no_place(db, role);
	return reservation->npopped > 0;
}

/*
 * Pop and lease jobs until the result of rsinfo has a job, or the deadline has passed.
 *
 * The order of a round keeps a wake-up from being lost:
 *
 *	1. check the roles, without a lock, because catalog lookups may wait
 *	2. reset the latch
 *	3. pop a job, or else join the list of waiting sessions, under the same lock.  A job that
 *	   arrives later is handed off to a session in the list, and sets the latch
 *	4. sleep.  Nothing between 3 and 4 may wait or reset the latch
 *
 * The scheduler may have lanes to read, as after a start.  A new lane is unranked: before the
 * pop, the session waits for its rank, because jobs of other queues would come first.  If the
 * deadline has passed, the session waits a moment for coming jobs before it reports an empty
 * queue.
 */
static void
reserve_in_rounds(Reservation *reservation, TimestampTz deadline, ReturnSetInfo *rsinfo)
{
	for (;;)
	{
		long		left;

		jobq_reserver_roles(reservation);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (reservation->place == JOBQ_NONE && jobq_reserver_unranked(reservation))
		{
			jobq_reserver_sleep(reservation, MOMENT_MS);
			continue;
		}
		left = jobq_ms_left(deadline);
		if (pop_jobs(reservation, left > 0))
		{
			if (jobq_lease_jobs(reservation, rsinfo) > 0)
				return;

			/* other sessions wait for the written rows: commit soon */
			if (reservation->wrote)
				deadline = jobq_deadline(0);
			continue;
		}
		if (left <= 0 && !jobq_reserver_coming(reservation))
			return;
		left = Max(left, MOMENT_MS);
		CHECK_FOR_INTERRUPTS();
		if (reservation->db->stop || reservation->db->dboid != MyDatabaseId)
		{
			/* the database is not served, perhaps only for a moment */
			jobq_reserver_sleep(reservation, Min(left, AWAY_PAUSE_MS));
			reservation->db = jobq_served_database("jobq.reserve()");
			continue;
		}

		/* not in the list, although time is left: see jobq_reserver_list() */
		if (reservation->place == JOBQ_NONE && left > MOMENT_MS)
			continue;
		jobq_reserver_sleep(reservation, left);
	}
}

/*
 * reserve(queues, max_jobs, lease, wait, consumer, held): lease up to max_jobs jobs for the
 * given time.  If there are none, wait for a job at most the time "wait".  Returns no row if
 * the time is over.  ERROR if an argument is invalid, the database is not served, or the role has
 * reached a limit.  Not allowed in a read-only transaction or a parallel worker.
 */
Datum
jobq_reserve(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Reservation reservation;
	int64		deadline;
	int64		wait_ms;

	jobq_require(JOBQ_MAY_ALL);
	PreventCommandIfReadOnly("jobq.reserve()");
	PreventCommandIfParallelMode("jobq.reserve()");
	for (int i = 0; i < 4; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("queues, max_jobs, lease and wait must not be null")));
	InitMaterializedSRF(fcinfo, 0);
	jobq_reservation_begin(&reservation, fcinfo, 2, 4);
	reservation.max = PG_GETARG_INT32(1);
	if (reservation.max < 1 || reservation.max > MAX_RESERVE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_jobs %d is out of range", reservation.max),
				 errhint("It must be from 1 to %d.", MAX_RESERVE)));
	if (!PG_ARGISNULL(5))
		reservation.held = PG_GETARG_INT32(5);
	if (!PG_ARGISNULL(5) && reservation.held < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("held %d is out of range", reservation.held),
				 errhint("It must be 0 or more.")));
	wait_ms = jobq_interval_ms(PG_GETARG_INTERVAL_P(3), "wait", 0,
							   MAX_RESERVE_WAIT_MS);
	parse_queues(&reservation, PG_GETARG_ARRAYTYPE_P(0));
	reservation.db = jobq_served_database("jobq.reserve()");
	reservation.checks_left = MAX_EMPTY_CHECKS;
	reservation.plain = jobq_reserver_plain(fcinfo);
	reservation.roles = palloc(sizeof(Oid) * jobq_max_lanes);
	reservation.denied = palloc(sizeof(Oid) * jobq_max_lanes);
	reservation.popped = palloc(sizeof(JobqPush) * reservation.max);
	deadline = jobq_deadline(wait_ms);

	PG_ENSURE_ERROR_CLEANUP(jobq_reserver_leave, PointerGetDatum(&reservation));
	{
		reserve_in_rounds(&reservation, deadline, rsinfo);
	}
	PG_END_ENSURE_ERROR_CLEANUP(jobq_reserver_leave, PointerGetDatum(&reservation));
	return (Datum) 0;
}

/*
 * lease_slots(): a row for each lease of this database, as far as the current user may see the
 * lease.  Message texts are visible only to the consumer's role and to roles with the right to
 * read the job.  Takes db->lock in shared mode.
 */
Datum
jobq_lease_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		JOB_ID_, CONSUMER, ROLE, CLIENT, PID, SINCE, UNTIL, PROGRESS, MESSAGE, NATTS
	};
	ReturnSetInfo *rsinfo;
	JobqDatabase *db = jobq_my_database();
	JobqLease  *leases;
	JobqLeaseBundle *bundles;
	int			size;
	int			n = 0;

	rsinfo = jobq_materialize(fcinfo, NATTS);
	if (db == NULL || db->leases->nleases == 0)
		return (Datum) 0;

	size = db->leases->nleases + 1024;
	leases = MemoryContextAllocHuge(CurrentMemoryContext,
									sizeof(JobqLease) * size);
	bundles = MemoryContextAllocHuge(CurrentMemoryContext,
									 sizeof(JobqLeaseBundle) * size);
	LWLockAcquire(db->lock, LW_SHARED);
	jobq_foreach_lease(lease, db)
	{
		if (n == size)
			break;
		leases[n] = *lease;
		bundles[n] = db->leases->bundles[lease->bundle];
		n++;
	}
	LWLockRelease(db->lock);

	for (int i = 0; i < n; i++)
	{
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};
		bool		mine;

		mine = jobq_may_act_for(bundles[i].role);
		if (!mine &&
			!jobq_may(JOBQ_MAY_MONITOR, leases[i].role, leases[i].queue_id))
			continue;
		values[JOB_ID_] = Int64GetDatum(leases[i].id);
		values[CONSUMER] = CStringGetTextDatum(bundles[i].consumer);
		values[ROLE] = ObjectIdGetDatum(bundles[i].role);
		nulls[CLIENT] = bundles[i].client.family == 0;
		if (!nulls[CLIENT])
			values[CLIENT] = CStringGetTextDatum(jobq_address_text(&bundles[i].client));
		values[PID] = Int32GetDatum(bundles[i].pid);
		nulls[PID] = bundles[i].pid == 0;
		values[SINCE] = TimestampTzGetDatum(bundles[i].since);
		values[UNTIL] = TimestampTzGetDatum(leases[i].until);
		values[PROGRESS] = Float4GetDatum(leases[i].progress);
		nulls[PROGRESS] = leases[i].progress < 0;
		values[MESSAGE] = CStringGetTextDatum(leases[i].message);
		nulls[MESSAGE] = leases[i].message[0] == '\0' ||
			!(mine || jobq_may(JOBQ_MAY_MANAGE, leases[i].role,
							   leases[i].queue_id));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
