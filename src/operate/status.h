/*-------------------------------------------------------------------------
 *
 * status.h
 *	  What has become of a job.
 *
 * src/operate/status.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STATUS_H
#define JOBQ_STATUS_H

#include "base/base.h"

#include "fmgr.h"

/* The columns of jobq.job_status. */
enum
{
	ST_ID,
	ST_STATE,
	ST_KIND,
	ST_QUEUE,
	ST_ATTEMPT,
	ST_MAX_ATTEMPTS,
	ST_PROGRESS,
	ST_MESSAGE,
	ST_RESULT,
	ST_ERROR,
	ST_ENQUEUED_AT,
	ST_RUN_AT,
	ST_STARTED_AT,
	ST_FINISHED_AT,
	ST_NATTS
};

typedef struct JobqStatus
{
	Datum		values[ST_NATTS];
	bool		nulls[ST_NATTS];
	const char *state;
	bool		finished;
	bool		own;			/* written by this very transaction, or run by
								 * this session */
} JobqStatus;

/* src/operate/status.c */
extern void jobq_look_up(int64 id, JobqStatus *status);
extern Datum jobq_status_datum(FunctionCallInfo fcinfo, JobqStatus *status);

#endif							/* JOBQ_STATUS_H */
