/*-------------------------------------------------------------------------
 *
 * work.h
 *	  What the files of the command work have in common: the jobs that it
 *	  holds, and what becomes of them.
 *
 * A job is reserved on one link, where the program waits for work, and is
 * settled on another.  In between it is a process, or a request:
 *
 *	HELD		reserved, its process has not begun
 *	RUNNING		its process runs, or its request is under way
 *	ENDED		the server is to be told what has become of it
 *	TOLD		a statement is under way that tells it
 *
 * A job is held by its lease, which is extended when half of it is over; so is
 * that of one that has ENDED, unless the program stops, as what the server cannot
 * take now it may take later.  The program believes the lease of a job that is
 * HELD or RUNNING only as long as its own clock says, counted from before it was
 * asked for: after that somebody else may have the job, and its process is ended.
 *
 * client/work.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WORK_H
#define JOBQ_WORK_H

#include "link.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#define TELL_TIME	5.0			/* after a signal, to tell what has ended */

typedef enum JobState
{
	JOB_HELD,
	JOB_RUNNING,
	JOB_ENDED,
	JOB_TOLD,
} JobState;

typedef enum JobOutcome
{
	OUTCOME_ACK,
	OUTCOME_NACK,
	OUTCOME_REJECT,
	OUTCOME_RELEASE,
	OUTCOME_LOST,				/* the lease is over: there is nobody to tell */
} JobOutcome;

typedef struct Job
{
	struct Job *next;
	JobState	state;
	char	   *id;
	char	   *token;
	char	   *queue;
	char	   *kind;
	char	   *payload;
	char	   *headers;
	char	   *trace;			/* traceparent: digits and hyphens; or NULL */
	char	   *attempt;
	char	   *max_attempts;

	/* the lease, by seconds() */
	double		until;
	double		extend_at;
	double		asked_at;		/* of the extension that is under way, or 0 */
	double		heartbeat;		/* seconds from one extension to the next */

	double		taken_at;
	double		began_at;

	/* the process */
	pid_t		pid;			/* also of its group; 0: there is none */
	int			in;				/* pipes, or -1 */
	int			out;
	int			err;
	int			progress;
	size_t		written;		/* of the payload */
	PQExpBufferData output;
	PQExpBufferData errors;		/* the last of it */
	PQExpBufferData line;		/* of progress, not yet whole */
	PQExpBufferData note;		/* of standard error, likewise */
	double		deadline;		/* by its timeout */
	double		kill_at;		/* when SIGTERM has not helped */
	bool		timed_out;
	int			status;			/* of wait(), once pid is 0 again ... */
	double		judge_at;		/* ... and when it decides about the job */

	/* or the request */
	void	   *transfer;
	void	   *request_headers;
	int			redirects;		/* that were followed */

	bool		stopped;		/* ended by us, since we stop */

	/* progress that the server does not know of yet */
	bool		has_progress;
	char		percent[16];
	char		message[64];

	/* lines for its log that the server does not know of yet: see note.c */
	PQExpBufferData notes;
	int			nnotes;
	int			ntelling;		/* of these, in a statement that is under way */
	long long	nleft_out;		/* in front of them ... */
	long long	ntelling_out;	/* ... of which that statement speaks */
	double		note_at;		/* not before */

	/* what has become of it */
	JobOutcome	outcome;
	char	   *text;			/* result, error or reason; or NULL */
	double		delay;			/* of what is given back, in seconds */
	bool		is_json;		/* of a result */
	bool		alone;			/* told in a statement of its own */
	double		tell_at;		/* not before */
	bool		refused;		/* another time will hardly be better */

	/*
	 * It may have been the end of a consumer: it runs beside those only that
	 * came with it.
	 */
	bool		apart;
} Job;

/* How results are made of the output. */
typedef enum ResultHow
{
	RESULT_AUTO,
	RESULT_JSON,
	RESULT_TEXT,
	RESULT_NONE,
} ResultHow;

typedef struct WorkOptions
{
	const char *queues;			/* an array */
	const char *exec;			/* or NULL */
	const char *http;			/* or NULL */
	const char *name;
	int			parallel;
	int			batch;			/* jobs that are taken at a time, at most */
	int			ahead;			/* -1: by the time that jobs take */
	double		lease;
	double		timeout;		/* 0: none */
	double		grace;
	double		retry_delay;
	ResultHow	result;
	size_t		max_output;
	int64_t		max_memory;		/* bytes; 0: none */
	int64_t		max_jobs;		/* 0: none */
	double		max_time;		/* 0: none */
	bool		stop_when_empty;
	bool		public_only;	/* of --http, as the next three */
	bool		retry_4xx;
	int			redirects;
	const char *ca_file;
	bool		quiet;
} WorkOptions;

extern WorkOptions work;
extern bool work_is_hopeless;	/* the next job would fare no better: stop */
extern volatile sig_atomic_t work_stops;	/* signals that have asked to stop */
extern Job *jobs;				/* all that are held, the oldest first */
extern double job_time;			/* what one takes, about, in seconds; 0 before
								 * one has ended */

/* job.c */
extern void job_add(const PGresult *result, int row, double asked_at, double quiet_at, bool unsure);
extern void job_end(Job *job, JobOutcome outcome, const char *text);
extern void job_done(Job *job, const char *output);
extern void job_interrupt(Job *job);
extern void job_forget(Job *job);
extern int	jobs_in(JobState state);
extern bool jobs_are_apart(void);
extern bool job_must_wait(const Job *job);
extern char *without_junk(const char *text, size_t length);

/* child.c */
extern void children_prepare(void);
extern void child_start(Job *job);
extern void child_interrupt(Job *job);
extern int	child_polls(Job *job, struct pollfd *polls);
extern void child_go_on(Job *job);
extern void children_reap(void);

#define CHILD_POLLS	4

/* note.c */
extern void note_bytes(Job *job, const char *bytes, size_t n);
extern void note_end(Job *job);
extern bool note_wanted(const Job *job, double now);
extern char *note_take(Job *job, double now);
extern void note_told(Job *job);
extern void note_lost(Job *job);

/* http.c */
extern void http_prepare(const char *secret_file);
extern void http_start(Job *job);
extern void http_poll(struct pollfd *polls, int n, int timeout);
extern void http_go_on(void);
extern void http_abort(Job *job);

/* settle.c */
extern bool settle_holds(const Job *job, bool stopping);
extern void settle_next(Link *link, bool stopping);
extern void settle_result(const PGresult *result);
extern void settle_lost(void);
extern bool settle_expired(bool stopping, double give_up_at);

#endif							/* JOBQ_WORK_H */
