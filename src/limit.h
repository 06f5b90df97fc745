/*-------------------------------------------------------------------------
 *
 * limit.h
 *	  Limits of queues, kinds and groups.
 *
 * src/limit.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LIMIT_H
#define JOBQ_LIMIT_H

#include "shared.h"

/* A token bucket, as it is configured. */
typedef struct JobqRate
{
	double		per_us;			/* tokens that come in a microsecond; 0: none */
	double		burst;			/* how many it holds */
	bool		by_group;		/* one for each group */
}			JobqRate;

/* Rest after so many failures. */
typedef struct JobqThrottle
{
	int			failures;		/* 0: none */
	int64		window;			/* microseconds */
	bool		by_group;
}			JobqThrottle;

/* src/limit_text.c */
extern void jobq_rate_parse(const char *text, JobqRate * rate);
extern void jobq_throttle_parse(const char *text, JobqThrottle * throttle);

#endif							/* JOBQ_LIMIT_H */
