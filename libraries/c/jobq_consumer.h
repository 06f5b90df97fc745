/*
 * jobq_consumer.h
 *	  jobq in C: enqueues jobs, and calls a function for each job of a queue.
 *
 *	long long id = jobq_enqueue(connection, "thumbnails.make", "{\"image\": 7}",
 *		"{\"queue\": \"thumbnails\", \"delay\": \"5 min\"}");
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

#include <libpq-fe.h>

/*
 * The following functions use the caller's connection, and so its open transaction.
 * After an error, PQerrorMessage(connection) has the message of the server.
 */

/*
 * Enqueues a job.  The payload is JSON.  "options" is NULL, or a JSON object with the
 * options of jobq.enqueue() by name.  Returns the id; the holder's id if the unique key
 * is held, or 0 with on_conflict ignore; -1 on an error.
 */
extern long long jobq_enqueue(PGconn *connection, const char *kind, const char *payload, const char *options);

/*
 * Enqueues a job for each element of the JSON array, all with these options, in one
 * statement.  Returns the number of jobs, or -1 on an error.  "ids" is NULL, or gets an
 * array from malloc().
 */
extern int	jobq_enqueue_many(PGconn *connection, const char *kind, const char *payloads, const char *options,
							  long long **ids);

/*
 * The status of a job, as a JSON object with the columns of jobq.status(), from
 * malloc().  NULL on an error.
 */
extern char *jobq_status(PGconn *connection, long long id);

/*
 * Waits until a job has finished, or for so many seconds.  The job must be committed.
 * Returns the status, as jobq_status() does.
 */
extern char *jobq_wait(PGconn *connection, long long id, double timeout);

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

/* A handler for jobs of a kind. */
typedef struct JobqKind
{
	const char *kind;
	JobqHandler handler;
	void	   *arg;			/* for the handler */
} JobqKind;

/* The comments give the defaults for 0 and NULL. */
typedef struct JobqConsumer
{
	const char *conninfo;		/* the database */
	const char *queues;			/* in strict order, as an array: {urgent,default} */
	JobqHandler handler;		/* for jobs of all kinds that are not in "kinds" */
	void	   *arg;			/* for the handler */
	const JobqKind *kinds;		/* handlers by kind; the last kind is NULL.  Without a
								 * handler for its kind, a job is given back for
								 * "pause" seconds, and no attempt is charged: a
								 * consumer of a later version may have the handler */
	double		pause;			/* seconds until a job of an unknown kind comes again:
								 * 10 */
	double		stop_timeout;	/* seconds after SIGTERM or SIGINT until jobs that
								 * still run are given back: no limit */
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
 * Ends jobq_consume(), from any thread: no more jobs are reserved, and the running jobs
 * may end.  Jobs that still run after "timeout" seconds are given back, and no attempt
 * is charged.  Below 0: no limit.
 *
 * A handler that still runs then goes on in its thread.  The program must end, and must
 * not call jobq_consume() again.
 */
extern void jobq_stop(double timeout);

/*
 * For long handlers: may another consumer have the job?  The handler's answer is then
 * dropped.
 */
extern bool jobq_lost(const JobqJob *job);

/*
 * Acknowledges the job in the open transaction of this connection: the job is completed
 * if, and when, the transaction commits.  The result is JSON or NULL.  The handler then
 * commits, and returns with the outcome JOBQ_ACK.  If the transaction rolls back, the
 * outcome must be another.
 *
 * Returns false if the lease is lost, or after an error, which the connection keeps.
 */
extern bool jobq_ack(const JobqJob *job, PGconn *connection, const char *result);

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
