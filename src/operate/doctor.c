/*-------------------------------------------------------------------------
 *
 * doctor.c
 *	  Data for doctor(): setup of jobq, use of its shared memory, and waiting jobs by
 *	  lane.
 *
 * The advice itself is written in SQL (control/parts/82-doctor.sql).  No function here reads
 * a table of jobs, so each is fast with millions of jobs.  setup() works even if the
 * versions of extension and library do not match.
 *
 * src/operate/doctor.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "attempt/attempt.h"
#include "ready/ready.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_setup);
PG_FUNCTION_INFO_V1(jobq_pool_problems);
PG_FUNCTION_INFO_V1(jobq_capacity);
PG_FUNCTION_INFO_V1(jobq_lane_slots);
PG_FUNCTION_INFO_V1(jobq_run_as_refusal);
PG_FUNCTION_INFO_V1(jobq_handler_is_there);

/*
 * setup(): a row about the installation.  The columns: library loaded at server start, library
 * version, version matches the extension, jobq.databases names this database, number of
 * workers in all pools, offset of jobq's clock in microseconds, and jump of an untrusted clock
 * (jobq_clock_ahead()).
 */
Datum
jobq_setup(PG_FUNCTION_ARGS)
{
	Oid			extension = get_extension_oid("jobq", true);
	TupleDesc	desc;
	Datum		values[7];
	bool		nulls[7] = {0};

	desc = jobq_row_type(fcinfo, lengthof(values));
	values[0] = BoolGetDatum(jobq_shared != NULL);
	values[1] = CStringGetTextDatum(JOBQ_VERSION);
	values[2] = BoolGetDatum(OidIsValid(extension) &&
							 jobq_version_fits(extension));
	values[3] = BoolGetDatum(jobq_shared != NULL && jobq_names_database());
	values[4] = Int32GetDatum(jobq_pools_workers());
	values[5] = Int64GetDatum(jobq_shared != NULL
							  ? jobq_shared->clock_shift.offset : 0);
	values[6] = Int64GetDatum(jobq_shared != NULL ? jobq_clock_ahead() : 0);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc,
													  values, nulls)));
}

/*
 * pool_problems(): a row for each probable mistake in jobq.workers, with the setting to
 * change.  ERROR without the privilege monitor for all queues.
 */
Datum
jobq_pool_problems(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, 2);
	List	   *problems;
	List	   *settings;

	jobq_require_all(JOBQ_MAY_MONITOR, "look at the set-up of jobq");
	if (jobq_shared == NULL)
		return (Datum) 0;
	problems = jobq_pools_problems(&settings);
	for (int i = 0; i < list_length(problems); i++)
	{
		Datum		values[] = {
			CStringGetTextDatum(list_nth(problems, i)),
			CStringGetTextDatum(list_nth(settings, i))
		};
		bool		nulls[lengthof(values)] = {0};

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* A row of capacity().  "twice" is 0 if there cannot be more slots. */
static void
put_capacity(ReturnSetInfo *rsinfo, const char *slots, const char *setting, int used, int most,
			 int64 twice)
{
	Datum		values[] = {
		CStringGetTextDatum(slots), CStringGetTextDatum(setting), Int32GetDatum(used),
		Int32GetDatum(most), Int64GetDatum(twice)
	};
	bool		nulls[lengthof(values)] = {0};

	nulls[lengthof(values) - 1] = twice == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* A row of capacity() for slots of which there is one for so many of jobq.ready_entries. */
static void
put_ready(ReturnSetInfo *rsinfo, const char *slots, int used, int most, int entries)
{
	bool		is_bounded = jobq_ready_entries / entries > most;
	int64		twice = (int64) entries * most * 2;

	put_capacity(rsinfo, slots, "jobq.ready_entries", used, most,
				 is_bounded || twice > JOBQ_MAX_READY_ENTRIES ? 0 : twice);
}

/*
 * Approximate number of names in the statistics.  Takes no lock.
 */
static int
stat_places(void)
{
	int			n = 0;

	for (uint32 i = 0; i < jobq_stats->nstats; i++)
		n += jobq_stats->stats[i].in_use;
	return n;
}

/*
 * capacity(): a row for each kind of slots in shared memory, with the setting that provides
 * them, the used and the available number, and the value of the setting for twice as many.
 * First come the slots of the cluster, then those of this database.
 * ERROR without the privilege monitor for all queues.  Takes jobq_shared->lock and db->lock in
 * shared mode.
 */
Datum
jobq_capacity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, 5);
	JobqDatabase *db = jobq_my_database();
	int			databases = 0;
	int			workers = 0;
	int			lanes = 0;
	int			limiters = 0;
	int			groups;
	int			leases;
	int			entries;

	jobq_require_all(JOBQ_MAY_MONITOR, "look at the set-up of jobq");
	if (jobq_shared == NULL)
		return (Datum) 0;
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	for (int i = 0; i < jobq_shared->ndatabases; i++)
		databases += OidIsValid(jobq_shared->databases[i].dboid);
	jobq_foreach_slot(slot, NULL, JOBQ_SLOTS_USED)
		workers += !slot->spare;
	LWLockRelease(jobq_shared->lock);
	put_capacity(rsinfo, "databases", "jobq.max_databases", databases, jobq_max_databases,
				 (int64) jobq_max_databases * 2);
	put_capacity(rsinfo, "workers", "jobq.max_workers", workers, jobq_max_workers,
				 (int64) jobq_max_workers * 2);
	put_capacity(rsinfo, "statistics", "jobq.max_stats", stat_places(),
				 (int) jobq_stats->nstats, (int64) jobq_stats->nstats * 2);
	if (db == NULL)
		return (Datum) 0;

	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes; i++)
		lanes += db->ready->lanes[i].in_use;
	for (int i = 0; i < db->limits->nlimiters; i++)
		limiters += db->limits->limiters[i].in_use;
	groups = (int) db->groups->ngroups;
	leases = (int) db->leases->nleases;
	entries = jobq_ready_entries - (int) db->ready->nfree;
	LWLockRelease(db->lock);
	put_ready(rsinfo, "lanes", lanes, jobq_max_lanes, JOBQ_ENTRIES_PER_LANE);
	put_ready(rsinfo, "limits", limiters, jobq_max_limiters, JOBQ_ENTRIES_PER_LIMITER);
	put_ready(rsinfo, "groups", groups, jobq_max_groups, JOBQ_ENTRIES_PER_GROUP);
	put_ready(rsinfo, "leases", leases, jobq_max_leases, JOBQ_ENTRIES_PER_LEASE);
	put_ready(rsinfo, "jobs", entries, jobq_ready_entries, 1);
	return (Datum) 0;
}

/* The pools and consumers that are present to run jobs. */
typedef struct Attendance
{
	bool		pools[JOBQ_MAX_POOLS];	/* has a worker in this database */
	int32	   *queues;			/* sorted ids of queues with a consumer */
	int			nqueues;
}			Attendance;

static void
take_attendance(JobqDatabase *db, Attendance * there)
{
	memset(there->pools, 0, sizeof(there->pools));
	LWLockAcquire(jobq_shared->lock, LW_SHARED);
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_COMING)
		there->pools[slot->pool] = true;
	LWLockRelease(jobq_shared->lock);

	there->queues = palloc(sizeof(int32) *
						   (jobq_max_leases + JOBQ_MAX_RESERVERS * JOBQ_MAX_TAKE_QUEUES));
	there->nqueues = 0;
	LWLockAcquire(db->lock, LW_SHARED);
	jobq_foreach_lease(lease, db)
		there->queues[there->nqueues++] = lease->queue_id;
	for (uint32 i = db->offers->head; i != JOBQ_NONE;
		 i = db->offers->reservers[i].next)
		for (int q = 0; q < db->offers->reservers[i].nqueues; q++)
			there->queues[there->nqueues++] = db->offers->reservers[i].queue_ids[q];
	LWLockRelease(db->lock);
	qsort(there->queues, there->nqueues, sizeof(int32), jobq_compare_int32);
}

/*
 * True if a worker that serves the queue is running, or if a consumer holds or awaits jobs of
 * the queue.
 */
static bool
attended(const Attendance * there, const JobqQueue *queue, int32 queue_id)
{
	if (queue->mode == MODE_CONSUMER)
		return there->nqueues > 0 &&
			bsearch(&queue_id, there->queues, there->nqueues, sizeof(int32),
					jobq_compare_int32) != NULL;
	for (int p = 0; p < jobq_pools()->npools; p++)
		if (there->pools[p] && jobq_pool_serves(p, queue->name))
			return true;
	return false;
}

/*
 * lane_slots(): a row for each lane with jobs that may run now, as far as the current user may
 * see these jobs.  "oldest" is the run_at of the lane's first job in memory, or null if no job
 * of the lane is in memory.  Takes jobq_shared->lock and db->lock in shared mode.
 */
Datum
jobq_lane_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		QUEUE, ROLE, MODE, PAUSED, SERVED, ATTENDED, LIMITED, OLDEST, NATTS
	};
	typedef struct Waiting
	{
		int32		queue_id;
		Oid			role;
		TimestampTz oldest;
	} Waiting;
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, NATTS);
	JobqDatabase *db = jobq_my_database();
	Attendance	there;
	Waiting    *waiting;
	int			n = 0;

	if (db == NULL)
		return (Datum) 0;
	take_attendance(db, &there);
	waiting = palloc(sizeof(Waiting) * jobq_max_lanes);
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes; i++)
	{
		const JobqLane *lane = &db->ready->lanes[i];

		if (!lane->in_use || (lane->count == 0 && !lane->more))
			continue;
		waiting[n].queue_id = lane->queue_id;
		waiting[n].role = lane->role;
		waiting[n].oldest = lane->count == 0 ? DT_NOEND
			: db->ready->entries[lane->head].key.run_at;
		n++;
	}
	LWLockRelease(db->lock);

	for (int i = 0; i < n; i++)
	{
		JobqQueue	buffer;
		const JobqQueue *queue;
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};

		if (!jobq_may(JOBQ_MAY_MONITOR, waiting[i].role, waiting[i].queue_id) ||
			(queue = jobq_queue_by_id(waiting[i].queue_id, &buffer)) == NULL)
			continue;
		values[QUEUE] = CStringGetTextDatum(queue->name);
		values[ROLE] = ObjectIdGetDatum(waiting[i].role);
		values[MODE] = CStringGetTextDatum(queue->mode == MODE_CONSUMER
										   ? "consumer" : "worker");
		values[PAUSED] = BoolGetDatum(queue->paused);
		values[SERVED] = BoolGetDatum(queue->mode == MODE_CONSUMER ||
									  jobq_pools_serve(queue->name));
		values[ATTENDED] = BoolGetDatum(attended(&there, queue, waiting[i].queue_id));
		values[LIMITED] = BoolGetDatum(queue->limited);
		values[OLDEST] = TimestampTzGetDatum(waiting[i].oldest);
		nulls[OLDEST] = waiting[i].oldest == DT_NOEND;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	pfree(waiting);
	pfree(there.queues);
	return (Datum) 0;
}

/*
 * run_as_refusal(queue): the reason why no job of the queue may run as its run_as says, or
 * null.  ERROR without the privilege monitor for all queues.
 */
Datum
jobq_run_as_refusal(PG_FUNCTION_ARGS)
{
	JobqQueue	queue;
	const char *problem;

	jobq_require_all(JOBQ_MAY_MONITOR, "look at the set-up of jobq");
	if (jobq_queue_by_name(text_to_cstring(PG_GETARG_TEXT_PP(0)), false, &queue) == NULL ||
		JOBQ_MISSES_ROLE(&queue) || (problem = jobq_run_as_problem(&queue)) == NULL)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(problem));
}

/*
 * handler_is_there(kind): true if the handler function of the kind exists.  The lookup runs as
 * the extension owner, because the caller may lack the right to use the function's schema.
 * ERROR without the privilege monitor for all queues.
 */
Datum
jobq_handler_is_there(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0)};
	bool		is_there;

	jobq_require_all(JOBQ_MAY_MONITOR, "look at the set-up of jobq");
	SPI_connect();
	is_there = jobq_query("SELECT FROM jobq_internal.handler h WHERE h.kind = $1"
						  " AND pg_catalog.to_regprocedure(h.handler) IS NOT NULL",
						  1, types, values, NULL, SPI_OK_SELECT) > 0;
	SPI_finish();
	PG_RETURN_BOOL(is_there);
}
