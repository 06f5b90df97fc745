/*-------------------------------------------------------------------------
 *
 * progress.h
 *	  Steps of durable procedures, and signals: their rows.
 *
 * Part of the interface of the directory store.  src/durable reads and writes the rows.  They
 * have no owner: a row whose job is in no table has no meaning.
 *
 * src/store/progress.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_PROGRESS_H
#define JOBQ_PROGRESS_H

#include "storage/itemptr.h"
#include "storage/lockdefs.h"

#include "store/jobs.h"

/* Attribute numbers of jobq_internal.procedure_step. */
enum
{
	PSTEP_JOB_ID = 1,
	PSTEP_BEGUN_AT,
	PSTEP_TOKEN,
	PSTEP_TYPE,
	PSTEP_NAME,
	PSTEP_UNTIL,
	PSTEP_DONE_AT,
	PSTEP_SIGNAL,
	PSTEP_RESULT,
	PSTEP_NATTS = PSTEP_RESULT
};

/* Values of jobq_internal.procedure_step.type. */
#define PSTEP_STEP		's'
#define PSTEP_SLEEP		't'
#define PSTEP_AWAIT		'w'
#define PSTEP_SAVED		'v'

/* Attribute numbers of jobq_internal.signal. */
enum
{
	SIGNAL_ID = 1,
	SIGNAL_JOB_ID,
	SIGNAL_SENT_AT,
	SIGNAL_NAME,
	SIGNAL_SENT_BY,
	SIGNAL_PAYLOAD,
	SIGNAL_TAKEN_BY,
	SIGNAL_NATTS = SIGNAL_TAKEN_BY
};

/* src/store/progress.c */
extern bool jobq_has_progress(int64 id);
extern bool jobq_made_progress(const JobqJob *job);
extern void jobq_progress_forget(int64 id);
extern void jobq_signals_lock(int64 id, Oid role, LOCKMODE mode);
extern void jobq_progress_prune(ItemPointer from, ItemPointer to);
extern void jobq_signals_prune(ItemPointer from, ItemPointer to);

#endif							/* JOBQ_PROGRESS_H */
