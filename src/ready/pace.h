/*-------------------------------------------------------------------------
 *
 *	  Rates and throttles: how often a job starts.
 *
 * src/ready/pace.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_PACE_H
#define JOBQ_READY_PACE_H

/* A token bucket, as configured. */
typedef struct JobqRate
{
	double		per_us;			/* tokens per microsecond; 0: no rate */
	double		burst;			/* capacity of the bucket */
} JobqRate;

/* Pause the starts of jobs after this number of failed attempts. */
typedef struct JobqThrottle
{
	int			failures;		/* 0: no throttle */
	int64		window;			/* microseconds */
} JobqThrottle;

/*
 * The state of a bucket and of a throttle: of a limiter, or of a key.  All zeros: the bucket is
 * full, and no attempt has failed.
 *
 * The bucket is stored as the time at which it will be full.  The stored value does not change
 * while the bucket fills.  A rest is not stored: it follows from the failures and the throttle.
 */
typedef struct JobqPace
{
	double		full_at;		/* as a TimestampTz */
	uint64		failed_since:44;	/* start of the window, in milliseconds
									 * since 2000 */
	uint64		failures:20;	/* in the window */
} JobqPace;

/* Maximum number of failures of a throttle. */
#define JOBQ_MAX_FAILURES	1000000

StaticAssertDecl(JOBQ_MAX_FAILURES < 1 << 20, "JobqPace counts the failures of any throttle");

#endif							/* JOBQ_READY_PACE_H */
