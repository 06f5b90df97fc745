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
	PSTEP_VERSION,
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
#define PSTEP_ASK		'a'
#define PSTEP_ANY		'f'
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
	SIGNAL_ANSWER,
	SIGNAL_NATTS = SIGNAL_ANSWER
};

/*
 * Values of jobq_internal.signal.answer, and the name of these rows.  No signal has an empty
 * name.  The id of the row is that of the job that has ended.
 */
#define ANSWER_RESULT	'r'
#define ANSWER_FAILURE	'f'
#define ANSWER_NAME		""

/*
 * Further values: the row is no signal but a link, with which the signal can be sent
 * (src/durable/link.c).
 */
#define LINK_OPEN		'l'
#define LINK_USED		'u'

/* A new row of jobq_internal.signal. */
typedef struct JobqSignal
{
	int64		id;
	int64		job_id;			/* the receiver */
	const char *name;
	Oid			sent_by;		/* role; InvalidOid: by a link */
	char		answer;			/* or 0 */
} JobqSignal;

/* Reason of the end of a job whose asker was cancelled. */
#define JOBQ_ASKER_CANCELLED	"the job that asked for it was cancelled"

/* src/store/progress.c */
extern bool jobq_has_progress(int64 id);
extern bool jobq_made_progress(const JobqJob *job);
extern int64 jobq_version_begun(int64 id, int64 version);
extern void jobq_progress_forget(int64 id);
extern void jobq_progress_prune(ItemPointer from, ItemPointer to);
extern void jobq_signals_prune(ItemPointer from, ItemPointer to);

/* src/store/signal.c */
extern void jobq_signals_lock(int64 id, Oid role, LOCKMODE mode);
extern void jobq_signal_insert(const JobqSignal *signal, Datum payload);
extern char *jobq_waits_for_job(int64 id);
extern bool jobq_is_suspended_for(const JobqJob *job, const char *what);
extern bool jobq_wake_suspended(Relation rel, JobqJob *job);
extern bool jobq_receiver_role(Relation rel, int64 id, Oid *role);
extern bool jobq_signals_lock_receiver(Relation rel, int64 id, LOCKMODE mode);
extern void jobq_signal_send(Relation rel, const JobqSignal *signal, const char *what,
							 Datum payload);
extern void jobq_answer(const JobqJob *job, bool has_result, Datum result);
extern void jobq_answer_failed(const JobqJob *job, const char *state,
							   const JobqError *error);
extern void jobq_answer_revoke(const JobqJob *job);
extern bool jobq_asker_is_cancelled(Relation rel, const JobqJob *job);
extern Datum jobq_ids_to_jsonb(const int64 *ids, int n);
extern int	jobq_ids_from_jsonb(Datum value, int64 **ids);
extern int	jobq_asked_jobs(int64 id, int64 **ids);

#endif							/* JOBQ_PROGRESS_H */
