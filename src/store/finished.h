/*-------------------------------------------------------------------------
 *
 * finished.h
 *	  Finished jobs: the archive and the dead letters.
 *
 * Part of the interface of the directory store.
 *
 * src/store/finished.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_FINISHED_H
#define JOBQ_FINISHED_H

#include "store/counts.h"
#include "store/jobs.h"

/* Attribute numbers of jobq_internal.archive. */
enum
{
	ARCHIVE_FINISHED_AT = 1,
	ARCHIVE_ID,
	ARCHIVE_ENQUEUED_AT,
	ARCHIVE_STARTED_AT,
	ARCHIVE_RUN_AT,
	ARCHIVE_QUEUE_ID,
	ARCHIVE_PRIORITY,
	ARCHIVE_ROLE,
	ARCHIVE_ATTEMPT,
	ARCHIVE_MAX_ATTEMPTS,
	ARCHIVE_STATE,
	ARCHIVE_CAUSE,
	ARCHIVE_KIND,
	ARCHIVE_PAYLOAD,
	ARCHIVE_HEADERS,
	ARCHIVE_RESULT,
	ARCHIVE_REASON,
	ARCHIVE_GROUP_KEY,
	ARCHIVE_BATCH_ID,
	ARCHIVE_LOG,
	ARCHIVE_CONTEXT,
	ARCHIVE_ERRORS,
	ARCHIVE_TENANT,
	ARCHIVE_TAGS,
	ARCHIVE_COST,
	ARCHIVE_LIMIT_COST,
	ARCHIVE_NATTS = ARCHIVE_LIMIT_COST
};

/* Attribute numbers of jobq_internal.dead_letter. */
enum
{
	DEAD_FINISHED_AT = 1,
	DEAD_ID,
	DEAD_ENQUEUED_AT,
	DEAD_STARTED_AT,
	DEAD_RUN_AT,
	DEAD_QUEUE_ID,
	DEAD_PRIORITY,
	DEAD_ROLE,
	DEAD_ATTEMPT,
	DEAD_MAX_ATTEMPTS,
	DEAD_EXCEPTIONS,
	DEAD_CRASHES,
	DEAD_WATCH,
	DEAD_KIND,
	DEAD_PAYLOAD,
	DEAD_TIMEOUT,
	DEAD_HEADERS,
	DEAD_BACKOFF,
	DEAD_ERROR,
	DEAD_SQLSTATE,
	DEAD_ERROR_CONTEXT,
	DEAD_ERRORS,
	DEAD_GROUP_KEY,
	DEAD_UNIQUE_UNTIL,
	DEAD_UNIQUE_QUEUE,
	DEAD_UNIQUE_KEY,
	DEAD_BATCH_ID,
	DEAD_LOG,
	DEAD_CONTEXT,
	DEAD_TENANT,
	DEAD_TAGS,
	DEAD_LIMIT_COST,
	DEAD_FINGERPRINT,
	DEAD_ASKED_BY,
	DEAD_NATTS = DEAD_ASKED_BY
};

/* States of an archived job, as stored. */
#define STATE_COMPLETED		'c'
#define STATE_CANCELLED		'x'
#define STATE_EXPIRED		'e'

/*
 * Why a job has ended, as stored in the archive.  Decisions depend on the cause, and never on
 * the text of the reason, which is for readers.  The cause determines the state.
 */
typedef enum JobqCause
{
	CAUSE_COMPLETED = 0,		/* stored as NULL */
	CAUSE_EXPIRED = 'e',
	CAUSE_CANCELLED = 'c',		/* by a user, before the job began */
	CAUSE_STOPPED = 's',		/* by a user, while the job ran */
	CAUSE_HANDLER = 'h',		/* by the handler */
	CAUSE_QUEUE_FULL = 'q',		/* dropped for a newer job */
	CAUSE_LIMITER = 'l',		/* when_taken of a limiter */
	CAUSE_CONDITION = 'k',		/* the condition of the step is false */
	CAUSE_BATCH_CANCELLED = 'b',
	CAUSE_WORKFLOW_CANCELLED = 'w', /* the workflow that the job stands for */
	CAUSE_BATCH_FAILED = 'f',
	CAUSE_NOT_NEEDED = 'd',		/* the outer batch goes on without */
	CAUSE_NEED_LOST = 'n',		/* a need of the step */
} JobqCause;

/*
 * The causes after which a job runs again if the failed job of its batch does, as a list for
 * SQL: CAUSE_BATCH_FAILED, CAUSE_NOT_NEEDED and CAUSE_NEED_LOST.
 */
#define CAUSES_DROPPED		"'f', 'd', 'n'"

/* src/store/archive.c */
extern void jobq_archive(const JobqJob *job, JobqCause cause,
						 TimestampTz started_at, bool has_result, Datum result,
						 const char *reason);
extern void jobq_archive_unstarted(const JobqJob *job, JobqCause cause,
								   const char *reason);
extern void jobq_archive_many(const JobqJob *jobs,
							  const TimestampTz *started_at, int njobs,
							  const Datum *results, const bool *has_none);

/* src/store/dead_letters.c */
extern void jobq_dead_letter(const JobqJob *job, TimestampTz now,
							 TimestampTz started_at, const JobqError *error,
							 int64 fingerprint);
extern void jobq_letter_name(Relation rel, HeapTuple tuple, JobqLetterName * name);

/* src/store/again.c */
extern void jobq_job_again(Relation rel, JobqJob *job, bool by_user);

#endif							/* JOBQ_FINISHED_H */
