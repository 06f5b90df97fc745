/*-------------------------------------------------------------------------
 *
 * enqueue.h
 *	  A job in the making.
 *
 * src/enqueue.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_ENQUEUE_H
#define JOBQ_ENQUEUE_H

#include "row.h"

/*
 * The options of a job, in the order of the arguments of enqueue() from the
 * third on, and of the columns of the view inbox likewise.
 */
enum
{
	OPTION_QUEUE,
	OPTION_PRIORITY,
	OPTION_RUN_AT,
	OPTION_DELAY,
	OPTION_MAX_ATTEMPTS,
	OPTION_RETRY_UNTIL,
	OPTION_BACKOFF,
	OPTION_TIMEOUT,
	OPTION_EXPIRES_AT,
	OPTION_UNIQUE_KEY,
	OPTION_UNIQUE_FOR,
	OPTION_UNIQUE_UNTIL,
	OPTION_ON_CONFLICT,
	OPTION_GROUP_KEY,
	OPTION_HEADERS,
	OPTION_WATCH,
	NOPTIONS
};

/* src/enqueue.c */
extern void jobq_set_payload(JobqJob *job, Datum payload);
extern void jobq_prepare_job(JobqJob *job, JobqUnique *unique,
							 const char *kind, const Datum *options,
							 const bool *nulls);

/* src/block.c */
extern void jobq_job_block(JobqJob *job, const Datum *options,
						   const bool *nulls);
extern void jobq_job_free(Relation rel, JobqJob *job);

#endif							/* JOBQ_ENQUEUE_H */
