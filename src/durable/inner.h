/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory durable, in the order of the
 *	  files.  Each file uses only functions of files above it.
 *
 * src/durable/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_DURABLE_INNER_H
#define JOBQ_DURABLE_INNER_H

#include "attempt/attempt.h"
#include "durable/durable.h"
#include "store/store.h"

/* Largest length of the name of a step or signal, in bytes. */
#define MAX_NAME	127

/* A row of jobq_internal.procedure_step, as read. */
typedef struct StepRow
{
	Datum		values[PSTEP_NATTS];
	bool		nulls[PSTEP_NATTS];
	ItemPointerData ctid;
} StepRow;

#define STEP(row, att)			((row)->values[(att) - 1])
#define STEP_ISNULL(row, att)	((row)->nulls[(att) - 1])
#define STEP_SET(row, att, value) \
	((row)->values[(att) - 1] = (value), (row)->nulls[(att) - 1] = false)

/* The answers to a step of ask(). */
typedef struct DurableAnswers
{
	bool		many;
	int64		witness;		/* a job without an answer */
	Datum		value;			/* answers of all jobs, once all have ended */
	Datum		failure;		/* error of the first failed job, or 0 */
} DurableAnswers;

/* src/durable/row.c */
extern void durable_check_name(const char *name, const char *what);
extern text *durable_name_arg(FunctionCallInfo fcinfo, int arg, const char *what);
extern const JobqCurrent *durable_require(const char *function);
extern bool durable_can_commit(FunctionCallInfo fcinfo);
extern const JobqCurrent *durable_require_commit(FunctionCallInfo fcinfo, const char *function);
extern void durable_check_lease(const JobqCurrent *current);
extern bool durable_fetch(const JobqCurrent *current, const ItemPointerData *ctid,
						  const char *name, StepRow *row);
extern bool durable_find(const JobqCurrent *current, const char *name, StepRow *row);
extern bool durable_find_step(const JobqCurrent *current, const char *name, char type, StepRow *row);
extern void durable_begin(const JobqCurrent *current, const char *name, char type, StepRow *row);
extern void durable_write(const JobqCurrent *current, StepRow *row);
extern void durable_commit(void);

/* src/durable/signal.c */
extern const char *durable_waits_for_signal(const char *name);
extern void durable_lock_signals(const JobqCurrent *current);
extern bool durable_take_signal(const JobqCurrent *current, const char *name,
								const char *step, Datum *payload);
extern int64 durable_receiver_arg(FunctionCallInfo fcinfo);

/* src/durable/wait.c */
extern void durable_set_done(const JobqCurrent *current, StepRow *row);
pg_noreturn extern void durable_suspend(const JobqCurrent *current, StepRow *row,
										const char *waits_for);
extern bool durable_is_over(const StepRow *row);
extern void durable_set_limit(Interval *interval, const char *what, StepRow *row);

/* src/durable/ask.c */
extern bool durable_asked(const JobqCurrent *current, const char *step,
						  DurableAnswers *answers, bool *over);
extern char *durable_waits_for_job(int64 id, const char *step);

#endif							/* JOBQ_DURABLE_INNER_H */
