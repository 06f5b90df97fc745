/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory runner.  The order is that of the
 *	  files: each file uses only functions declared above its own.
 *
 * worker/runner/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_RUNNER_INNER_H
#define JOBQ_RUNNER_INNER_H

#include "base/base.h"

#include "attempt/attempt.h"
#include "process/process.h"
#include "runner/runner.h"

/*
 * Where an attempt ends.  "Handler" stands for functions, procedures and sets.  The columns: the
 * job's row, the state of the run before, RunContext.next, and the process that pushes the next
 * entry of the job.
 *
 *	end							row			before		next	entry
 *	extension dropped			as before	POPPED		(1)		run_job()
 *	refused by the gate			see gate.c	POPPED		(1)		jobq_turn_away()
 *	crash to be charged first	locked		POPPED		(1)		the charge
 *	collected for a set			as before	POPPED		-		none: run_collected()
 *	row taken at the begin		locked		CLAIMED		MISSED	a rollback of the locker
 *	handler has returned		gone		ENDING		DONE	none
 *	... and asks to run again	new			ENDING		LIVE	the commit
 *	conflict, to be tried again	restored	(2)			POPPED	none: run_job(), run_list()
 *	set has failed				restored	(2)			POPPED	none: run_list()
 *	error, final or cancelled	gone		ENDING		DONE	none
 *	error, another attempt		new			ENDING		LIVE	the commit
 *	error, and row taken		locked		(2)			LIVE	a rollback of the locker
 *	worker exits				restored	(2)			(3)		the charge, or the scheduler
 *
 * (1) TURNED_AWAY, without unclaim().  (2) CLAIMED or BEGUN.  (3) DEAD, or ENDING to next.
 *
 * A pending cancellation is recorded by unclaim(), if the job may run again, that is in all
 * states before unclaim() but ENDING with DONE.  cancel_given_back() carries it out, or else the
 * scheduler (owed.c).
 */

/* State of a worker while it runs a job. */
typedef struct RunContext
{
	JobqSlot   *slot;
	MemoryContext memory;		/* reset after each job */
	uint64		ticket;			/* number of the pending cancellation in
								 * JobqDatabase.owed, or 0 */
	JobqRunState next;			/* state of the slot's run after this attempt.
								 * claim() sets DONE; the functions that run
								 * the job, and those that handle its error,
								 * change this; unclaim() carries it out */
	bool		collects;		/* run_job() may collect further jobs to run
								 * together */
	JobqPush	entry;			/* of the job that runs */
	bool		has_entry;		/* the worker is responsible for the entry,
								 * even if the job has not begun */
} RunContext;

/* The end of a message that contains the job's trace: two strings. */
#define TRACE_PART(current) \
	(current)->trace[0] == '\0' ? "" : ", traceparent ", (current)->trace

/* Immediate retries after a serialization failure or a deadlock. */
#define MAX_CONFLICTS	5

/* A job of a chunk: see collect.c. */
typedef struct Collected
{
	JobqPush	entry;
	uint32		alike;			/* hash of what the jobs of a call have in
								 * common; 0: unknown */
	bool		over;			/* the worker is no longer responsible */
	bool		alone;			/* runs by run_job() */
	bool		named;			/* the slot names the job */
	bool		live;			/* over here, but the job will run again */
	bool		held;			/* runs after the previous job of its group,
								 * not with it */
	int			before;			/* index of the previous job of the group, or
								 * -1 */
	int			after;			/* index of the next job of the group, or -1 */
	int			member;			/* number of the job in the piece, from 1; 0:
								 * not in a piece */
} Collected;

/* Jobs that run together, during a try: see chunk.c. */
typedef struct Piece
{
	int		   *list;			/* indexes of collected jobs: the n jobs of
								 * the piece, and jobs that have left it */
	int			n;
	int			nnamed;			/* jobs that the slot names */
	JobqJob    *jobs;			/* in the order of the list, like the rest */
	JobqCurrent *currents;
	int		   *attempts;
	const char *kind;
	JobqHandler handler;
	TimestampTz now;
	bool		divided;		/* a job of a group will run again, and
								 * further jobs of the group must leave the
								 * piece */
} Piece;

/* worker/runner/charge.c */
extern bool charge_crashed(Relation rel);
extern bool charge_pending(const JobqJob *job);

/* worker/runner/allowance.c */
extern void allowance_begin(const JobqHandler *handler);
extern void allowance_end(void);
extern void allowance_check(void);
extern bool allowance_blame(ErrorData *edata);
extern bool allowance_took_memory(void);

/* worker/runner/top_level.c */
extern uint64 run_top_level(const JobqStatement *statement);

/* worker/runner/errand.c */
extern uint64 errand_run(const JobqStatement *statement);

/* worker/runner/procedure.c */
extern void run_procedure(RunContext *run, Relation rel, JobqJob *job,
						  const JobqFunction *function);
extern void run_procedure_end(void);

/* worker/runner/cancel.c */
extern bool was_cancelled(const JobqSlot *slot);
extern bool cancel_is_owed(const RunContext *run);
extern void cancel_left(const JobqSlot *slot);
extern bool cancel_given_back(RunContext *run, int64 id);

/* worker/runner/clean.c */
extern void clean_settings(void);
extern void clean_session(bool after_procedure);

/* worker/runner/failure.c */
extern void record_failure(RunContext *run, JobqJob *job, TimestampTz started_at,
						   ErrorData *edata);

/* worker/runner/claim.c */
extern void report_job(const char *kind, int64 id);
extern void claim(RunContext *context, const JobqJob *job, const char *kind,
				  TimestampTz now, int timeout, int n);
extern bool unclaim(RunContext *context);

/* worker/runner/collect.c */
extern Collected *collected;
extern int	ncollected;
extern bool collect(const JobqPush *entry, const JobqJob *job);
extern bool may_join(const JobqJob *job);
extern void collect_return(JobqWakeList *wake);
extern void collect_give_back(int at, JobqWakeList *wake);

/* worker/runner/set_groups.c */
extern bool group_lets(const Collected *job);
extern bool group_waits(const JobqJob *job);
extern void group_begin_alone(const Collected *job);
extern void group_end_alone(Collected *job);
extern void groups_give_up(const Piece *piece);

/* worker/runner/run.c */
extern void run_job(RunContext *run, const JobqPush *entry);
extern void count_job(JobqSlot *slot, int64 id, uint64 *counter);
extern ErrorData *abort_attempt(RunContext *run, bool last, bool quiet, bool *again);

/* worker/runner/admit.c */
extern void admit(Relation rel, Piece *piece);

/* worker/runner/chunk.c */
extern void run_collected(RunContext *run);

#endif							/* JOBQ_RUNNER_INNER_H */
