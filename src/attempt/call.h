/*-------------------------------------------------------------------------
 *
 * call.h
 *	  Calling a handler, and the job that this backend is running.
 *
 * src/attempt/call.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CALL_H
#define JOBQ_CALL_H

#include "nodes/pg_list.h"

#include "store/row.h"

/* What a handler has asked for, beside returning. */
typedef enum JobqOutcome
{
	OUTCOME_COMPLETE = 0,
	OUTCOME_SNOOZE,
	OUTCOME_RELEASE,
	OUTCOME_DISCARD,
	OUTCOME_FAIL,
} JobqOutcome;

/*
 * The job that runs now.  The job of perform() hides that of the worker which
 * called it.
 */
typedef struct JobqCurrent
{
	const JobqJob *job;
	int			attempt;		/* this one's number */
	JobqOutcome outcome;
	int64		delay_ms;		/* of snooze and release */
	char		reason[1024];	/* of discard and fail */
	JobqSlot   *slot;			/* or NULL in perform() and work() */
	MemoryContext memory;		/* outlives an abort; NULL in perform() */
	List	   *log;			/* lines in JSON */
	struct JobqCurrent *outer;
} JobqCurrent;

/* src/attempt/call.c */
extern JobqCurrent *jobq_current;
extern JobqCurrent *jobq_current_of(int64 id);
extern float4 jobq_percent_arg(FunctionCallInfo fcinfo, int n);
extern Datum jobq_call_handler(const JobqFunction *function, const JobqJob *job,
							   int attempt, bool atomic, bool *isnull);

/* src/attempt/log.c */
extern void jobq_log_keep(const JobqCurrent *current, JobqJob *job);

#endif							/* JOBQ_CALL_H */
