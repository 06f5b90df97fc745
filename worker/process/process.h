/*-------------------------------------------------------------------------
 *
 * process.h
 *	  Interface of the directory process: functions shared by the processes of jobq.
 *
 * These functions start, suspend and end a process, and set the database of the process.  The
 * flight recorder shows after a crash which job's process crashed.
 *
 * Guarantees: a process that sleeps here misses no wake-up, and handles interrupts and a
 * reload of the settings.  A stop of the server ends a process without an error in the log.
 * The flight recorder survives the crash of any server process; the postmaster itself marks
 * the culprit.
 *
 * Locks: process_slot_gone() takes db->lock.  All other functions take no lock.
 *
 * worker/process/process.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_PROCESS_H
#define JOBQ_PROCESS_H

#include "base/base.h"

#include "postmaster/bgworker.h"

#include "ready/ready.h"

/* worker/process/process.c */

/* A slot is given up if its worker has not attached within this time, in microseconds. */
#define PROCESS_ATTACH_TIMEOUT	(10 * USECS_PER_SEC)

/* The database that this process serves; the launcher has none. */
extern JobqDatabase *my_db;
extern int	my_db_index;

/* A process to be started. */
typedef struct ProcessToStart
{
	const char *type;
	const char *name;
	const char *function;
	Datum		arg;
	const void *extra;			/* copied into bgw_extra */
	Size		extra_size;
} ProcessToStart;

extern bool process_register(const ProcessToStart *process, BackgroundWorkerHandle **handle);
extern void process_start(void);
extern void process_serve(int database);
extern void process_slot_gone(JobqDatabase *db, JobqSlot *slot, bool live,
							  bool unused, TimestampTz now);
extern void process_pin_settings(bool is_worker);
extern void process_wait_for_locks(void);
extern void process_load_libraries(void);
extern bool process_stopping(void);
extern int	process_processors(void);
extern void process_interrupts(void);
extern bool process_sleep(pg_atomic_uint32 *calls, uint32 seen,
						  long timeout_ms, uint32 wait_event);
extern void process_begin_transaction(void);

/* worker/process/flight.c */

/* A job that was running in a crashed process. */
typedef struct JobqCulprit
{
	Oid			dboid;
	int64		job_id;
	int			attempt;		/* charged before the run ... */
	int			crashes;		/* ... and of these, for a crash */
	int			nmembers;		/* jobs that ran together; 0: a single one */
	const int64 *members;		/* their ids, among the kept records */
	int			record;			/* index among the kept records */
} JobqCulprit;

extern void flight_open(bool create);
extern void flight_judge(void);
extern bool flight_culprit(Oid dboid, int *next, JobqCulprit *culprit);
extern void flight_clear_culprit(const JobqCulprit *culprit);
extern bool flight_accuses(int64 id, int crashes, bool suspect);
extern void flight_accuse(int pid, int starter);
extern void flight_outlive(void);
extern void flight_attach(bool session);
extern void flight_begin(int64 id, int attempt, int crashes,
						 const JobqMember *members, int n);
extern bool flight_running(JobqCulprit *outer);
extern void flight_end(void);
extern void flight_bystander(SIGNAL_ARGS);

/* worker/process/crash.c */
extern void crash_listen(void);

#endif							/* JOBQ_PROCESS_H */
