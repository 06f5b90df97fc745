/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  What the files of worker/ offer each other: the launcher, the schedulers
 *	  and the workers.  Only src/module/init.c includes it from outside, to register
 *	  the launcher.
 *
 * worker/process/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WORKER_H
#define JOBQ_WORKER_H

#include "base/base.h"

#include "executor/tuptable.h"

#include "attempt/attempt.h"

/* What a worker is told in bgw_extra. */
typedef struct WorkerStart
{
	int			slot;
	uint32		generation;
	Oid			dboid;
	Oid			role;
} WorkerStart;

/* worker/launcher/launcher.c */
extern void jobq_register_launcher(void);

/* worker/process/process.c: what all three kinds of process do */
extern void process_start(void);
extern void process_pin_settings(bool is_worker);
extern bool process_stopping(void);
extern bool process_note_error(const char *table, const char *column,
							   Oid type, Datum key, const ErrorData *edata);
extern bool process_sleep(pg_atomic_uint32 *calls, uint32 seen,
						  long timeout_ms, uint32 wait_event);

/* worker/process/flight.c */
extern void flight_open(bool create);
extern int	flight_read_culprits(Oid *dboids, JobqCulprit *culprits, int max);
extern void flight_clear_culprit(int record);
extern void flight_attach(int slot);
extern void flight_begin(int64 id, int attempt);
extern void flight_end(void);
extern void flight_bystander(SIGNAL_ARGS);

/* worker/scheduler/scheduler.c */
extern JobqDatabase *my_db;
extern int	my_db_index;

/* worker/scheduler/scan.c */
extern bool scan_wanted(const JobqLane *lane, TimestampTz now);
extern bool scan_lanes(TimestampTz now);
extern void scan_everything(bool reset);
extern void scan_sweep(void);
extern bool scan_read_row(TupleTableSlot *slot, JobqPush *push, bool *dormant,
						  bool *leased);

/* worker/scheduler/rank.c */
extern void rank_lanes(void);

/* worker/scheduler/limits.c */
extern void limits_start(void);
extern void limits_load(void);
extern void limits_tick(TimestampTz now);
extern JobqPermits limits_of_lease(const JobqPush *push);

/* worker/scheduler/groups.c */
extern void groups_restore(void);
extern void groups_refill(void);
extern void groups_sweep(void);

/* worker/scheduler/supervise.c */
extern TimestampTz supervise(TimestampTz now);
extern void supervise_charge_culprits(void);
extern void supervise_lost_lease(int64 id);

/* worker/scheduler/spawn.c */
extern TimestampTz spawn_workers(TimestampTz now);
extern void spawn_again(TimestampTz now, bool came);
extern bool spawn_role_can_work(Oid role, JobqError *error);
extern void spawn_charge_role(Oid role, const JobqError *error);
extern void spawn_dismiss(void);
extern void spawn_make_way(int for_database);

/* worker/scheduler/leases.c */
extern void leases_load(void);
extern void leases_expire(TimestampTz now);
extern void leases_collect(void);

/* worker/scheduler/schedules.c */
extern TimestampTz schedules_run(TimestampTz now);

/* worker/scheduler/batches.c */
extern void batches_start(void);
extern TimestampTz batches_run(TimestampTz now);

/* worker/scheduler/batch_look.c */
/* What a look has found. */
typedef enum BatchLook
{
	LOOK_OVER,					/* nothing more to be done */
	LOOK_WITNESS,				/* a job is live */
	LOOK_EACH,					/* each job that ends matters */
	LOOK_AGAIN,					/* there is more to be done at once */
	LOOK_LATER,					/* somebody has locked it */
} BatchLook;

extern BatchLook batch_look(int64 id, int64 bound, int64 *witness);
extern void batch_look_failed(void);
extern bool batch_witness(int64 id, int64 bound, int64 *witness);

/*
 * How long a look at a batch waits for a lock; all else of the scheduler waits
 * for it.
 */
#define LOCK_PATIENCE	"50ms"

/* worker/scheduler/workflows.c */
extern bool workflow_advance(int64 batch_id, Oid role, bool ending);

/* worker/scheduler/relay.c */
extern void relay_send(void);

/* worker/scheduler/retention.c */
extern void retention_run(void);

/* worker/runner/run.c */
typedef struct RunContext
{
	JobqSlot   *slot;
	MemoryContext memory;		/* reset after each job */
} RunContext;

extern void run_job(RunContext *run, const JobqPush *entry);
extern void run_begin_transaction(void);
extern void run_failed(RunContext *run, JobqJob *job, TimestampTz started_at,
					   ErrorData *edata, bool charge);
extern void run_claim(RunContext *run, const JobqJob *job, const char *kind,
					  TimestampTz now, int timeout);
extern void run_unclaim(RunContext *run);
extern void run_clean_session(bool after_procedure);

/* worker/runner/procedure.c */
extern void run_procedure_end(void);
extern void run_procedure(RunContext *run, Relation rel, JobqJob *job,
						  const JobqFunction *function);

#endif							/* JOBQ_WORKER_H */
