/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the command work: the jobs held by the
 *	  program, and their outcomes.
 *
 * The program reserves a job on one link, where it waits for work, and settles the job on
 * another link.  In between, the job is a process or a request:
 *
 *	HELD		reserved, process not started
 *	RUNNING		process or request in progress
 *	ENDED		outcome to be reported to the server
 *	TOLD		a statement that reports the outcome is in progress
 *
 * The program holds a job by its lease, and extends the lease after half of its time.
 * The lease of an ENDED job is also extended, because a later report may succeed.  A
 * stopping program does not extend such leases.  A HELD or RUNNING job is lost when its
 * lease expires by the local clock, counted from before the request for the lease.
 * Another consumer may then have the job, and the program ends the process.
 *
 * client/worker/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CLIENT_WORKER_INNER_H
#define JOBQ_CLIENT_WORKER_INNER_H

#include "worker/worker.h"

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#define TELL_TIME	5.0			/* after a signal, to report outcomes */
#define IDLE_TIME	1.0			/* longest time a job is held ahead, by
								 * default */

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
	OUTCOME_LOST,				/* lease expired: nothing to report */
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
	double		asked_at;		/* when the pending extension was sent, or 0 */
	double		heartbeat;		/* seconds between two extensions */

	double		taken_at;
	double		began_at;

	/* the process */
	pid_t		pid;			/* also the process group; 0: none */
	int			in;				/* pipes, or -1 */
	int			out;
	int			err;
	int			progress;
	size_t		written;		/* bytes of the payload */
	PQExpBufferData output;
	PQExpBufferData errors;		/* the end of standard error */
	PQExpBufferData line;		/* incomplete line of progress */
	PQExpBufferData note;		/* incomplete line of standard error */
	double		deadline;		/* from the timeout of the job */
	double		kill_at;		/* SIGKILL, after SIGTERM */
	bool		timed_out;
	int			status;			/* from wait(), once pid is 0 */
	double		judge_at;		/* when this status settles the job */

	/* or the message, and where it goes: see publish.c */
	void	   *sending;
	char	   *exchange;
	char	   *routing_key;
	char	   *message_id;
	int64_t		enqueued_at;	/* seconds since 1970 */

	/* or the request */
	void	   *transfer;
	void	   *request_headers;
	int			redirects;		/* followed so far */

	bool		stopped;		/* ended because the program stops */

	/* progress not yet reported to the server */
	bool		has_progress;
	char		percent[16];
	char		message[64];

	/* log lines not yet reported to the server: see note.c */
	PQExpBufferData notes;
	int			nnotes;
	int			ntelling;		/* lines in the statement in progress */
	long long	nleft_out;		/* dropped before the first line */
	long long	ntelling_out;	/* dropped lines counted in the statement in
								 * progress */
	double		note_at;		/* not before */

	/* the outcome */
	JobOutcome	outcome;
	char	   *text;			/* result, error or reason; or NULL */
	double		delay;			/* before a released job is ready, in seconds */
	bool		is_json;		/* the result is JSON */
	bool		tell_alone;		/* in a statement for this job only */
	double		tell_at;		/* not before */
	bool		refused;		/* a retry is unlikely to succeed */

	/*
	 * The job may have crashed a consumer: the column "alone" of reserve().
	 * Only jobs of its own call of reserve() run at the same time.
	 */
	bool		runs_apart;
} Job;

/* How the output becomes a result. */
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
	const char *http_secret;	/* file; or NULL */
	const PublishOptions *publish;	/* or NULL */
	const char *name;
	int			parallel;
	int			batch;			/* most jobs per call of jobq.reserve() */
	int			ahead;			/* -1: from the duration of jobs */
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
	bool		public_only;	/* this and the next three: for --http */
	bool		retry_4xx;
	int			redirects;
	const char *ca_file;
	bool		quiet;
} WorkOptions;

/* client/worker/options.c */
extern WorkOptions work;
extern bool work_is_hopeless;	/* the next job would fail as well: stop */

extern void work_options(const char **values);

/* client/worker/job.c */
extern Job *jobs;				/* all jobs held, oldest first */
extern double job_left_at;		/* when a job was last settled, by seconds() */
extern double job_time;			/* mean duration of a job, in seconds; 0
								 * before the first has ended */
extern double answer_time;		/* mean time until the server answers a
								 * report, in seconds */

extern void job_add(const PGresult *result, int row, double asked_at, double quiet_at, bool unsure);
extern void job_end(Job *job, JobOutcome outcome, const char *text);
extern void job_done(Job *job, const char *output);
extern void job_forget(Job *job);
extern int	jobs_in(JobState state);
extern int	jobs_ahead(void);
extern bool jobs_are_apart(void);
extern bool job_must_wait(const Job *job);
extern char *without_junk(const char *text, size_t length);

/* client/worker/child.c */
extern void children_prepare(void);
extern void child_start(Job *job);
extern void child_interrupt(Job *job);
extern int	child_polls(Job *job, struct pollfd *polls);
extern void child_go_on(Job *job);
extern void children_reap(void);

#define CHILD_POLLS	4

/* client/worker/note.c */
extern void note_bytes(Job *job, const char *bytes, size_t n);
extern void note_end(Job *job);
extern char *note_take(Job *job, double now);
extern void note_told(Job *job);
extern void note_lost(Job *job);

/* client/worker/http.c */
extern void http_prepare(const char *secret_file);
extern void http_start(Job *job);
extern void http_poll(struct pollfd *polls, int n, int timeout);
extern void http_go_on(void);
extern void http_abort(Job *job);

/* client/worker/publish.c */
#define PUBLISH_COLUMNS	4		/* at the end of the columns of a job */

extern void publish_prepare(const PublishOptions *options);
extern int	publish_columns(PQExpBuffer sql, const char **values, int n);
extern bool publish_ready(void);
extern void publish_start(Job *job);
extern void publish_poll(struct pollfd *polls);
extern void publish_go_on(void);
extern void publish_abort(Job *job);
extern void publish_end(void);

/* client/worker/run.c */
extern void jobs_prepare(void);
extern void job_start(Job *job);
extern void job_interrupt(Job *job);

/* client/worker/settle.c */
extern bool settle_holds(const Job *job, bool stopping);
extern bool settle_notes(const Job *job);
extern void settle_next(Link *link, bool stopping);
extern void settle_result(const PGresult *result);
extern void settle_lost(void);
extern bool settle_expired(bool stopping, double give_up_at);

#endif							/* JOBQ_CLIENT_WORKER_INNER_H */
