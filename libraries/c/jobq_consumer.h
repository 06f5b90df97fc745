/*
 * jobq_consumer.h
 *	  A consumer of jobq in C: reserves jobs, calls a function for each, and reports
 *	  the outcome.
 *
 *	JobqConsumer consumer = {.conninfo = "dbname=app", .queues = "{thumbnails}",
 *		.handler = make, .parallel = 4};
 *	return jobq_consume(&consumer);
 *
 * Requires only libpq and POSIX threads.
 */
#ifndef JOBQ_CONSUMER_H
#define JOBQ_CONSUMER_H

#include <stdbool.h>

/* A reserved job.  Texts are in the client encoding UTF-8. */
typedef struct JobqJob
{
	long long	id;
	long long	token;
	char	   *queue;
	char	   *kind;
	char	   *payload;		/* JSON */
	char	   *headers;		/* JSON, or NULL */
	int			attempt;
	int			max_attempts;
	char	   *tenant;			/* or NULL */
	char	   *context;		/* JSON, or NULL */
	struct JobqHeld *held;		/* for the library */
} JobqJob;

/* The outcome of a job. */
typedef enum JobqOutcome
{
	JOBQ_ACK,					/* completed; "text" is the result, as JSON */
	JOBQ_NACK,					/* the attempt has failed; "text" is the error.  The
								 * next attempt starts after "delay" seconds, or
								 * after the backoff */
	JOBQ_REJECT,				/* a dead letter now; "text" is the reason */
	JOBQ_RELEASE,				/* back to the queue for "delay" seconds; no attempt
								 * is charged */
} JobqOutcome;

typedef struct JobqAnswer
{
	JobqOutcome outcome;
	char	   *text;			/* from malloc(), or NULL */
	double		delay;			/* seconds; below 0: not set */
} JobqAnswer;

/*
 * Called in one of "parallel" threads.  "answer" is initialized to JOBQ_ACK, without
 * result and delay.
 */
typedef void (*JobqHandler) (const JobqJob *job, JobqAnswer *answer, void *arg);

/* The comments give the defaults for 0 and NULL. */
typedef struct JobqConsumer
{
	const char *conninfo;		/* the database */
	const char *queues;			/* in strict order, as an array: {urgent,default} */
	JobqHandler handler;
	void	   *arg;			/* for the handler */
	int			parallel;		/* number of concurrent jobs: 1 */
	int			ahead;			/* number of jobs held that do not run yet; below 0:
								 * none; 0: as many as will begin within a tenth of
								 * a second; jobs that have not begun after a second
								 * are released */
	double		lease;			/* seconds for which a job is held; extended while
								 * the job is held: 30 */
	double		heartbeat;		/* interval of extensions in seconds: a third of the
								 * lease */
	double		wait;			/* seconds that reserve() waits for jobs, or the
								 * interval of checks with "listen": 5 */
	const char *listen;			/* conninfo of the server itself, not of a pooler;
								 * for notifications of jobs */
	const char *name;			/* name in the view jobq.workers: c */
} JobqConsumer;

/*
 * Work until SIGTERM or SIGINT; both signals are blocked meanwhile.  Returns 0, or 1
 * after a permanent error.  The log is standard error.
 */
extern int	jobq_consume(const JobqConsumer *consumer);

/*
 * For long handlers: may another consumer have the job?  The handler's answer is then
 * dropped.
 */
extern bool jobq_lost(const JobqJob *job);

/*
 * Reports the progress in percent from 0 to 100; the message may be NULL.  Returns at
 * once.  Of several calls in a short time, the last is reported.
 */
extern void jobq_progress(const JobqJob *job, double percent, const char *message);

/*
 * Stores a log line with the job; level is debug, info, warning or error.  Returns at
 * once.
 */
extern void jobq_log(const JobqJob *job, const char *level, const char *message);

#endif							/* JOBQ_CONSUMER_H */
