/*
 * jobq_consumer.h
 *	  A consumer of jobq in C: takes jobs, calls a function for each, and says
 *	  what has become of it.
 *
 *	JobqConsumer consumer = {.conninfo = "dbname=app", .queues = "{thumbnails}",
 *		.handler = make, .parallel = 4};
 *	return jobq_consume(&consumer);
 *
 * It needs libpq and POSIX threads, and nothing else.
 */
#ifndef JOBQ_CONSUMER_H
#define JOBQ_CONSUMER_H

#include <stdbool.h>

/* A job that is held.  Texts are those of the server. */
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

/* What becomes of a job. */
typedef enum JobqOutcome
{
	JOBQ_ACK,					/* completed; "text" is the result, as JSON */
	JOBQ_NACK,					/* the attempt has failed; "text" is the error;
								 * with "delay" the next one comes after so many
								 * seconds, and not after the backoff */
	JOBQ_REJECT,				/* a dead letter now; "text" says why */
	JOBQ_RELEASE,				/* goes back to its queue for "delay" seconds,
								 * and no attempt is charged */
} JobqOutcome;

typedef struct JobqAnswer
{
	JobqOutcome outcome;
	char	   *text;			/* from malloc(), or NULL */
	double		delay;			/* seconds; below 0: none is given */
} JobqAnswer;

/*
 * Called in a thread of its own, of which there are "parallel".  "answer" is
 * JOBQ_ACK without a result and a delay when it is called.
 */
typedef void (*JobqHandler) (const JobqJob *job, JobqAnswer *answer, void *arg);

/* What is 0 or NULL is as the comment says. */
typedef struct JobqConsumer
{
	const char *conninfo;		/* where */
	const char *queues;			/* in strict order, as an array: {urgent,default} */
	JobqHandler handler;
	void	   *arg;			/* for the handler */
	int			parallel;		/* how many jobs run at a time: 1 */
	int			ahead;			/* how many are held that do not run yet; below 0:
								 * none; 0: as many as begin within a tenth of a
								 * second by the time that jobs take, and what has
								 * not begun after a second is given back */
	double		lease;			/* seconds for which a job is held; it is
								 * extended while the job is held: 30 */
	double		heartbeat;		/* each so many seconds: a third of the lease */
	double		wait;			/* seconds that reserve() waits for jobs, or that
								 * pass between two looks with "listen": 5 */
	const char *listen;			/* a conninfo that leads to the server itself and
								 * not to a pooler: tells when there are jobs */
	const char *name;			/* what the view jobq.workers shows: c */
} JobqConsumer;

/*
 * Work until SIGTERM or SIGINT, which are blocked meanwhile.  Returns 0, or 1 if
 * the server has said what will not mend by itself.  The log is standard error.
 */
extern int	jobq_consume(const JobqConsumer *consumer);

/*
 * For handlers that take long: may somebody else have the job?  What the handler
 * answers is dropped then.
 */
extern bool jobq_lost(const JobqJob *job);

/*
 * Shows how far the job is: percent is from 0 to 100, the message may be NULL.
 * Returns at once; of several that come soon, the last is told.
 */
extern void jobq_progress(const JobqJob *job, double percent, const char *message);

/*
 * Keeps a line with the job; level is debug, info, warning or error.  Returns at once.
 */
extern void jobq_log(const JobqJob *job, const char *level, const char *message);

#endif							/* JOBQ_CONSUMER_H */
