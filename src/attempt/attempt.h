/*-------------------------------------------------------------------------
 *
 * attempt.h
 *	  Interface of the directory attempt: one attempt of a job, from the gate to its end.
 *
 * A process that holds a job asks the gate whether the job may run now.  The process is a
 * worker, a consumer or a session in jobq.work().  The functions of this directory also write
 * the outcome: completed, another attempt, or a dead letter.  In between, a worker or a
 * session calls the handler.  The handler can query the job and choose the outcome.
 *
 * Guarantees: all conditions under which a job may run are in gate.c, and all ways in which an
 * attempt ends are in finish.c.  All writes are part of the caller's transaction.
 *
 * Locks: those of the lower directories.  The functions of gate.c and claim.c take db->lock
 * themselves, so the caller must not hold it.
 *
 * src/attempt/attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_ATTEMPT_H
#define JOBQ_ATTEMPT_H

#include "utils/guc.h"

#include "produce/produce.h"
#include "store/store.h"

/* src/attempt/predecessor.c */
extern bool jobq_group_is_busy(Relation rel, const JobqJob *job, const JobqQueue *queue,
							   const JobqPush *entry, Snapshot snapshot, JobqJob *first);
extern bool jobq_group_overtaken(Relation rel, const JobqJob *job,
								 Snapshot snapshot);
extern bool jobq_group_follows(Relation rel, const JobqJob *before, const JobqJob *job,
							   Snapshot snapshot);

/* src/attempt/gate.c */
extern JobqVerdict jobq_gate(Relation rel, const JobqJob *job, char mode,
							 const JobqPush *entry, Snapshot snapshot,
							 TimestampTz now, JobqJob *first);
extern void jobq_row_is_taken(Relation rel, const JobqJob *job,
							  uint32 group);
extern bool jobq_turn_away(Relation rel, JobqVerdict verdict, JobqJob *job,
						   const JobqPush *entry, const JobqJob *first,
						   int64 token);
extern void jobq_group_see(Relation rel, const JobqJob *first);

/* src/attempt/claim.c */
extern JobqDatabase *jobq_loaded_database(void);
extern void jobq_refuse_copy(const JobqDatabase *db, const char *function);
extern bool jobq_claim_push(const JobqJob *job, const JobqQueue *queue,
							JobqPush *push);
extern bool jobq_claim_needed(const JobqPush *push, bool queue_limited);
extern JobqVerdict jobq_claim(Relation rel, const JobqJob *job, int64 *token,
							  int *limited);
extern void jobq_claim_undo(const JobqJob *job, int64 token);
extern void jobq_claim_end(const JobqJob *job, int64 token, bool live);

/* src/attempt/run_as.c */
extern void jobq_check_role(JobqCurrent *current);
extern const char *jobq_run_as_problem(const JobqQueue *queue);
extern const char *jobq_run_as_refused(const JobqJob *job,
									   const JobqQueue *queue);

/* src/attempt/context.c */
extern void jobq_enter_context(const JobqJob *job, GucAction action);

/* src/attempt/call.c */
extern Datum jobq_call_handler(const JobqFunction *function, const JobqJob *job,
							   int attempt, bool atomic, bool *isnull);

extern void jobq_call_set(const JobqFunction *function, const JobqJob *jobs,
						  const int *attempts, int n, Datum *results,
						  bool *isnull);

extern Datum jobq_call_with(const JobqFunction *function, Datum payload,
							const JobqJob *job, int attempt, bool atomic,
							bool *isnull);

extern void jobq_require_handler(const char *kind);
extern JobqCurrent *jobq_require_current(const char *function);
extern JobqCurrent *jobq_require_job(int64 id, const char *function);
extern JobqCurrent *jobq_job_of_set(FunctionCallInfo fcinfo, const char *function);
extern Datum jobq_perform_kind(Datum kind_text, Datum payload, bool *isnull);

/* src/attempt/asked.c */
extern void jobq_ask_for(JobqCurrent *current, JobqOutcome outcome, int64 delay_ms,
						 const char *reason);

/* src/attempt/deferred.c */
extern void jobq_fire_deferred(void);
extern void jobq_defer_again(void);
extern void jobq_fire_before(bool commits);

/* src/attempt/statement.c */
extern bool jobq_statement_commits(const JobqJob *job);
extern Datum jobq_run_statement(const JobqJob *job);
extern uint64 jobq_execute_statement(const char *sql);
extern Datum jobq_statement_result(const JobqStatement *statement, uint64 rows);

/* src/attempt/log.c */
extern char *jobq_log_line(FunctionCallInfo fcinfo, int first, int attempt);
extern char *jobq_log_told(JobqDatabase *db, JobqSlot *slot, int64 id);
extern void jobq_log_keep(const JobqCurrent *current, JobqJob *job);
extern void jobq_log_keep_told(JobqDatabase *db, JobqSlot *slot, JobqJob *job);
extern void jobq_log_say(JobqJob *job, char *message);
extern void jobq_log_add(JobqCurrent *current, const char *line);
extern void jobq_log_warn(char *message);

/* src/attempt/within.c */
extern void jobq_within_call(JobqEvent event, Oid role);

/*
 * Call the handlers of event for jobq_current, the job that runs here.  The handler of the job
 * is about to be called, or has returned.  Only handlers registered by role are called; role
 * is the role of the job.  Costs nothing if no role has registered such a handler.
 */
static inline void
jobq_within(JobqEvent event, Oid role)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0) &&
		(event == JOBQ_WITHIN_STARTED ||
		 jobq_current->outcome == OUTCOME_COMPLETE))
		jobq_within_call(event, role);
}

/* src/attempt/stop.c */
extern bool jobq_ask_to_stop(int64 id);
extern void jobq_end_lease(const JobqJob *job, bool always);
extern bool jobq_take_from_consumer(Relation rel, int64 id, JobqCause cause,
									const char *reason);
extern void jobq_cancel_asked(Relation rel, const JobqJob *job);

/* src/attempt/finish.c */
extern void jobq_check_value(const char *what, Datum value);
extern void jobq_check_result(Datum result);
extern bool jobq_attempt_final(const JobqCurrent *current, int sqlerrcode);
extern bool jobq_attempt_returned(Relation rel, JobqJob *job,
								  const JobqCurrent *current,
								  TimestampTz started_at, bool has_result,
								  Datum result);
extern bool jobq_job_put_back(Relation rel, JobqJob *job,
							  TimestampTz started_at, const JobqError *error);

/* How an attempt of a job failed. */
typedef struct JobqFailure
{
	TimestampTz started_at;		/* DT_NOBEGIN: the attempt did not begin */
	const JobqError *error;
	bool		charge;			/* count the attempt; false if a lease has
								 * counted it already */
	bool		final;			/* no other attempt, however many remain */
	int64		delay_ms;		/* until the next attempt, in milliseconds;
								 * negative: by the backoff policy */
} JobqFailure;

extern bool jobq_job_attempt_failed(Relation rel, JobqJob *job, const JobqFailure *failure);
extern bool jobq_job_failed(Relation rel, JobqJob *job, const JobqFailure *failure);
extern void jobq_job_dies(Relation rel, JobqJob *job, const JobqError *error);

#endif							/* JOBQ_ATTEMPT_H */
