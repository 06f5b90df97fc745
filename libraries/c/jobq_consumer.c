/*
 * jobq_consumer.c
 *	  A producer and a consumer of jobq in C.
 *
 * The functions of the producer run a statement each on the caller's connection.
 *
 * The consumer has several threads.  The thread calling jobq_consume() reserves jobs for worker threads.  The teller thread reports
 * outcomes, many in one statement, and extends leases.  The first and the last thread have a
 * connection each, which is restored after a loss while jobs continue.  With "listen" there is a
 * third connection.  Idle consumers then do not wait inside reserve(), and do not occupy
 * connections of a pooler.
 *
 * One mutex protects all shared data; no statement runs under the mutex.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "jobq_consumer.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEASE_LOST		"JQ011"
#define TOO_MANY		"53400" /* the role's quota is used up; jobs of one token at a time can
								 * be extended */
#define TOO_DEEP		"54001" /* too deep to be read as JSON */
#define NO_ROOM			"54000" /* no room in the queue of NOTIFY at commit, or for a text within
								 * jsonb */
#define NO_JSONB		32000000	/* bytes of a text; a shorter text fits into jsonb */
#define SHORTEST_WAIT	0.1
#define LATE			1.0		/* answers delayed by so many seconds show a lack of connections */
#define MOST_AT_A_TIME	100		/* jobs in a statement */
#define MOST_REFUSED	20		/* refused jobs that do not reduce the number of jobs reserved */
#define SOON			0.1		/* seconds within which jobs held ahead begin, by default */
#define NOT_SOON		1.0		/* then jobs that have not begun after so many seconds are
								 * released */

/*
 * Each statement is for many jobs, with one commit.  An extension uses the role's quota per token,
 * so the jobs of a token are grouped.
 */
#define OF_EACH " FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::interval[]) AS j (id, token, text, time)"
enum
{
	TELL_EXTEND = JOBQ_RELEASE + 1, TELL_LOG, TELL_PROGRESS, TELL_NOTHING
};
static const char *const statements[] = {
	[JOBQ_ACK] = "SELECT jobq.ack(j.id, j.token, j.text::jsonb)" OF_EACH,
	[JOBQ_NACK] = "SELECT jobq.nack(j.id, j.token, j.text, j.time)" OF_EACH,
	[JOBQ_REJECT] = "SELECT jobq.reject(j.id, j.token, j.text)" OF_EACH,
	[JOBQ_RELEASE] = "SELECT jobq.release(j.id, j.token, j.time)" OF_EACH,
	[TELL_EXTEND] = "SELECT jobq.extend_many(array_agg(j.id ORDER BY j.token, j.id), "
	"array_agg(j.token ORDER BY j.token, j.id), min(j.time))" OF_EACH,
	[TELL_LOG] = "SELECT jobq.log(j.id, j.token, l ->> 1, l ->> 0)" OF_EACH ", jsonb_array_elements(j.text::jsonb) AS l",
	[TELL_PROGRESS] = "SELECT jobq.set_progress(j.id, j.token, (j.text::jsonb ->> 0)::real, "
	"j.text::jsonb ->> 1)" OF_EACH,
};

typedef enum
{
	HELD, RUNNING, ENDED
} State;

typedef struct JobqHeld
{
	JobqJob		job;
	State		state;
	bool		lost;
	bool		given_up;		/* the consumer stopped before the end of the handler, which
								 * may still use this struct */
	bool		told;			/* a statement about the job is running */
	bool		alone;			/* an error occurred in a statement for several jobs including
								 * this job */
	bool		refused;		/* the server rejects the outcome, probably permanently */
	double		since;			/* start of the hold, or later of the handler */
	double		until;			/* latest end of the lease */
	double		extend_at;
	double		tell_at;
	bool		apart;			/* the job may have crashed a consumer: must run only with jobs
								 * of the same token */
	char	   *lines;			/* lines of jobq_log() to report: JSON without brackets */
	size_t		telling;		/* bytes of "lines" in a running statement */
	char	   *progress;		/* progress to report: JSON, or NULL */
	bool		progress_told;	/* "progress" is in a running statement */
	bool		settled;		/* the handler has acknowledged the job */
	JobqAnswer	answer;
	struct JobqHeld *next;
} JobqHeld;

typedef struct
{
	const char *conninfo;
	PGconn	   *connection;
	double		pause;
	double		connect_at;
} Link;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static JobqConsumer my;
static JobqHeld *jobs;			/* in order of arrival */
static int	count[3];			/* by state */
static int	nrefused;
static bool stopping;
static double give_up_at;		/* then the consumer gives running jobs back */
static int	nrunners;			/* threads for handlers */
static int	nstuck;				/* of these, threads in handlers of jobs given up */
static bool taken;				/* no more jobs are reserved */
static double patience;
static double job_time;			/* average duration of a job, in seconds */
static double trip;				/* average seconds from a statement to the handling of the answer */
static bool by_token;			/* the quota does not allow an extension of jobs of several
								 * tokens together */
static int	wake_pipe[2];

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *
checked(void *memory)
{
	if (memory == NULL)
	{
		fputs("out of memory\n", stderr);
		exit(1);
	}
	return memory;
}

/* Wait under the mutex for a change, or for so many seconds. */
static void
wait_for_change(double seconds)
{
	double		until = now() + fmin(fmax(seconds, 0), 3600);
	struct timespec t = {.tv_sec = (time_t) until,.tv_nsec = (long) ((until - floor(until)) * 1e9)};

	pthread_cond_timedwait(&changed, &mutex, &t);
}

/* ------------------------------------------------------------------ produce */

/* Run a statement on the caller's connection.  NULL on an error, which the connection keeps. */
static PGresult *
ask(PGconn *connection, const char *statement, int n, const char *const *values)
{
	PGresult   *result = PQexecParams(connection, statement, n, NULL, values, NULL, NULL, 0);

	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return result;
	PQclear(result);
	return NULL;
}

long long
jobq_enqueue(PGconn *connection, const char *kind, const char *payload, const char *options)
{
	const char *const values[] = {kind, payload, options};
	PGresult   *result = ask(connection, "SELECT jobq.enqueue($1::text, $2::jsonb, options => $3::jsonb)", 3, values);
	long long	id = -1;

	if (result != NULL)
		id = atoll(PQgetvalue(result, 0, 0));	/* null is an empty text */
	PQclear(result);
	return id;
}

int
jobq_enqueue_many(PGconn *connection, const char *kind, const char *payloads, const char *options, long long **ids)
{
	const char *const values[] = {kind, payloads, options};
	PGresult   *result = ask(connection, "SELECT jobq.enqueue_many($1::text, "
							 "ARRAY(SELECT jsonb_array_elements($2::jsonb)), options => $3::jsonb)", 3, values);
	int			n = -1;

	if (result != NULL)
		n = PQntuples(result);
	if (n >= 0 && ids != NULL)
	{
		*ids = checked(malloc((n + 1) * sizeof(long long)));
		for (int i = 0; i < n; i++)
			(*ids)[i] = atoll(PQgetvalue(result, i, 0));
	}
	PQclear(result);
	return n;
}

static char *
ask_status(PGconn *connection, const char *statement, int n, const char *const *values)
{
	PGresult   *result = ask(connection, statement, n, values);
	char	   *status = NULL;

	if (result != NULL)
		status = checked(strdup(PQgetvalue(result, 0, 0)));
	PQclear(result);
	return status;
}

char *
jobq_status(PGconn *connection, long long id)
{
	char		text[32];
	const char *const values[] = {text};

	snprintf(text, sizeof(text), "%lld", id);
	return ask_status(connection, "SELECT to_jsonb(s) FROM jobq.status($1::bigint) AS s", 1, values);
}

char *
jobq_wait(PGconn *connection, long long id, double timeout)
{
	char		text[32];
	char		longest[32];
	const char *const values[] = {text, longest};

	snprintf(text, sizeof(text), "%lld", id);
	/* whole numbers, because the locale may have a decimal comma */
	snprintf(longest, sizeof(longest), "%.0f ms", timeout * 1000);
	return ask_status(connection, "SELECT to_jsonb(s) FROM jobq.wait($1::bigint, $2::interval) AS s", 2, values);
}

/* ---------------------------------------------------------------- the server */

static bool
connect_link(Link *link)
{
	/*
	 * Unless the conninfo says otherwise, the loss of a server is noticed within a minute.
	 */
	const char *const names[] = {"connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count",
	"tcp_user_timeout", "dbname", "client_encoding", NULL};
	const char *const values[] = {"10", "30", "10", "3", "60000", link->conninfo, "UTF8", NULL};

	if (link->connection != NULL)
		return true;
	if (now() < link->connect_at)
		return false;
	link->pause = fmin(fmax(2 * link->pause, 0.1), 10);
	link->connect_at = now() + link->pause;
	link->connection = PQconnectdbParams(names, values, 1);
	if (PQstatus(link->connection) == CONNECTION_OK)
	{
		/* sending has the same timeout as the answer */
		PQsetnonblocking(link->connection, 1);
		link->pause = 0;
		return true;
	}
	fprintf(stderr, "no connection: %s", PQerrorMessage(link->connection));
	PQfinish(link->connection);
	link->connection = NULL;
	return false;
}

/*
 * Send the rest of the query, and wait for a result or the end of results.  False on a timeout.
 */
static bool
wait_for_result(PGconn *connection, double until)
{
	for (;;)
	{
		bool		unsent = PQflush(connection) == 1;
		struct pollfd fd = {PQsocket(connection), unsent ? POLLIN | POLLOUT : POLLIN, 0};

		if (!PQisBusy(connection))
			return true;
		if (now() >= until)
			return false;
		if (poll(&fd, 1, (int) fmin(ceil((until - now()) * 1000), 60000)) < 0 && errno != EINTR)
			return false;
		if ((fd.revents & ~POLLOUT) != 0 && !PQconsumeInput(connection) && PQisBusy(connection))
			return false;
	}
}

/*
 * Run a statement.  NULL without a connection, or without a complete answer within so many seconds;
 * then the connection is closed.  An error may follow rows, because the commit comes after the
 * rows.
 */
static PGresult *
run(Link *link, double seconds, const char *statement, int n, const char *const *values)
{
	double		until = now() + seconds;
	PGresult   *result = NULL;
	bool		whole = false;

	/* an abandoned statement is repeated later, and must not run now */
	if (!connect_link(link) || now() >= until)
		return NULL;
	if (PQsendQueryParams(link->connection, statement, n, NULL, values, NULL, NULL, 0))
		while (!whole && wait_for_result(link->connection, until))
		{
			PGresult   *next = PQgetResult(link->connection);

			whole = next == NULL;
			/* the first error counts, otherwise the last result */
			if (next != NULL && (result == NULL || PQresultStatus(result) != PGRES_FATAL_ERROR))
			{
				PGresult   *before = result;

				result = next;
				next = before;
			}
			PQclear(next);
		}
	if (!whole || PQstatus(link->connection) != CONNECTION_OK)
	{
		PQfinish(link->connection);
		link->connection = NULL;
		/* without an error, the effect is unknown */
		if (PQresultStatus(result) != PGRES_FATAL_ERROR)
		{
			PQclear(result);
			result = NULL;
		}
	}
	return result;
}

/* The SQLSTATE of an error; "" if there is none. */
static const char *
state_of(const PGresult *result)
{
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	return state != NULL ? state : "";
}

static bool
is_of(const char *state, const char *classes)
{
	char		class[3] = {state[0], state[0] ? state[1] : '\0', '\0'};

	return class[0] != '\0' && strstr(classes, class) != NULL;
}

/*
 * Late answers reduce the waiting time.  Behind a pooler, consumers waiting in reserve() may occupy
 * all connections, so that jobs cannot be settled.
 */
static void
adapt(double late, bool empty)
{
	pthread_mutex_lock(&mutex);
	if (late > LATE)
		patience = fmax(SHORTEST_WAIT, patience / late);
	else if (empty && late < LATE / 2)
		patience = fmin(my.wait, patience * 2);
	pthread_mutex_unlock(&mutex);
}

/* ------------------------------------------------------- jobs, under the mutex */

static void
set_state(JobqHeld *job, State state)
{
	count[job->state]--;
	job->state = state;
	count[state]++;
	pthread_cond_broadcast(&changed);
}

static void
set_refused(JobqHeld *job, bool refused)
{
	nrefused += refused - job->refused;
	job->refused = refused;
	pthread_cond_broadcast(&changed);
}

static void
forget(JobqHeld *job)
{
	JobqHeld  **place = &jobs;

	while (*place != job)
		place = &(*place)->next;
	*place = job->next;
	count[job->state]--;
	set_refused(job, false);
	pthread_cond_broadcast(&changed);
	if (job->given_up)
		return;
	free(job->job.queue);
	free(job->job.kind);
	free(job->job.payload);
	free(job->job.headers);
	free(job->job.tenant);
	free(job->job.context);
	free(job->lines);
	free(job->progress);
	free(job->answer.text);
	free(job);
}

/* The lease may have ended: the outcome of the job is not reported any more. */
static void
lose(JobqHeld *job)
{
	if (job->lost)
		return;
	job->lost = true;
	fprintf(stderr, "job %lld (%s): its lease is over%s\n", job->job.id, job->job.kind,
			job->state == ENDED ? "; it may be done again" : "");
	if (job->state != RUNNING)
		forget(job);
	else
		pthread_cond_broadcast(&changed);	/* other jobs do not wait for this job any more */
}

bool
jobq_lost(const JobqJob *job)
{
	bool		lost;

	pthread_mutex_lock(&mutex);
	/* the teller may be waiting for a connection */
	if (!job->held->given_up && now() >= job->held->until)
		lose(job->held);
	lost = job->held->lost || job->held->given_up;
	pthread_mutex_unlock(&mutex);
	return lost;
}

static char *text_of(const char *format,...) __attribute__((format(printf, 1, 2)));

static char *
text_of(const char *format,...)
{
	va_list		args;
	char	   *text;
	int			n;

	va_start(args, format);
	n = vasprintf(&text, format, args);
	va_end(args);
	return checked(n < 0 ? NULL : text);
}

/* Convert the text to JSON. */
static char *
json_of(const char *text)
{
	char	   *json;
	char	   *to;

	if (text == NULL)
		return text_of("null");
	to = json = checked(malloc(6 * strlen(text) + 3));
	*to++ = '"';
	for (; *text != '\0'; text++)
	{
		if ((unsigned char) *text < ' ')
			to += sprintf(to, "\\u%04x", *text);
		else
		{
			if (*text == '"' || *text == '\\')
				*to++ = '\\';
			*to++ = *text;
		}
	}
	strcpy(to, "\"");
	return json;
}

bool
jobq_ack(const JobqJob *job, PGconn *connection, const char *result)
{
	JobqHeld   *held = job->held;
	char		id[32];
	char		token[32];
	char	   *lines = NULL;
	const char *values[] = {id, token, result, NULL};
	PGresult   *answer;
	bool		lost;

	snprintf(id, sizeof(id), "%lld", job->id);
	snprintf(token, sizeof(token), "%lld", job->token);
	pthread_mutex_lock(&mutex);
	while (held->told && !held->given_up)
		wait_for_change(60);
	lost = held->lost || held->given_up;
	if (!lost)
	{
		held->settled = true;
		held->until = held->extend_at = INFINITY;
		lines = text_of("[%s]", held->lines != NULL ? held->lines : "");
		free(held->lines);
		free(held->progress);
		held->lines = held->progress = NULL;
	}
	pthread_mutex_unlock(&mutex);
	if (lost)
		return false;
	values[3] = lines;
	answer = ask(connection, "WITH told AS MATERIALIZED (SELECT jobq.log($1::bigint, $2::bigint, l ->> 1, l ->> 0) "
				 "FROM jsonb_array_elements($4::jsonb) AS l) "
				 "SELECT jobq.ack($1::bigint, $2::bigint, $3::jsonb) FROM (SELECT count(*) FROM told) AS lines", 4, values);
	free(lines);
	PQclear(answer);
	return answer != NULL;
}

void
jobq_progress(const JobqJob *job, double percent, const char *message)
{
	char	   *json = json_of(message);
	/* whole numbers, because the locale may have a decimal comma */
	char	   *progress = text_of("[%lld.%02lld, %s]", (long long) percent, (long long) (percent * 100) % 100, json);

	free(json);
	pthread_mutex_lock(&mutex);
	if (job->held->given_up || job->held->settled)
		free(progress);
	else
	{
		free(job->held->progress);
		job->held->progress = progress;
		job->held->progress_told = false;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&mutex);
}

void
jobq_log(const JobqJob *job, const char *level, const char *message)
{
	char	   *texts[] = {json_of(level), json_of(message)};
	char	   *before;

	pthread_mutex_lock(&mutex);
	if (!job->held->given_up && !job->held->settled)
	{
		before = job->held->lines;
		job->held->lines = text_of("%s%s[%s, %s]", before != NULL ? before : "", before != NULL ? "," : "", texts[0], texts[1]);
		free(before);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&mutex);
	free(texts[0]);
	free(texts[1]);
}

/* ---------------------------------------------------------------------- run */

/*
 * May a held job begin?  A job that must run apart does not run beside jobs of another token.
 */
static bool
may_begin(const JobqHeld *job)
{
	for (const JobqHeld *other = jobs; other != NULL; other = other->next)
		if (other->state == RUNNING && !other->lost && other->job.token != job->job.token &&
			(other->apart || job->apart))
			return false;
	return true;
}

/* Call the handler for the job's kind.  The mutex is not held. */
static void
handle_job(const JobqJob *job, JobqAnswer *answer)
{
	JobqHandler handler = my.handler;
	void	   *arg = my.arg;

	for (const JobqKind *kind = my.kinds; kind != NULL && kind->kind != NULL; kind++)
		if (strcmp(kind->kind, job->kind) == 0)
		{
			handler = kind->handler;
			arg = kind->arg;
		}
	if (handler != NULL)
	{
		handler(job, answer, arg);
		return;
	}
	fprintf(stderr, "job %lld: there is no handler for kind \"%s\"; given back for %.0f s\n", job->id, job->kind, my.pause);
	*answer = (JobqAnswer) {JOBQ_RELEASE, NULL, my.pause};
}

static void *
run_jobs(void *arg)
{
	pthread_mutex_lock(&mutex);
	for (;;)
	{
		JobqHeld   *job = jobs;
		JobqAnswer	answer = {JOBQ_ACK, NULL, -1};
		double		took;

		while (job != NULL && (job->state != HELD || now() >= job->until))
			job = job->next;
		if (job == NULL || stopping || !may_begin(job))
		{
			if (stopping && taken)
				break;
			wait_for_change(60);
			continue;
		}
		set_state(job, RUNNING);
		job->since = now();
		pthread_mutex_unlock(&mutex);
		handle_job(&job->job, &answer);
		pthread_mutex_lock(&mutex);
		if (job->given_up)
		{
			nstuck--;
			break;
		}
		took = now() - job->since;
		job_time = isinf(job_time) ? took : job_time + (took - job_time) / 10;
		job->answer = answer;
		if (job->settled && answer.outcome == JOBQ_ACK)
			job->lost = true;	/* nothing is left to report */
		if (job->lost && !job->told)
			forget(job);
		else
			set_state(job, ENDED);
	}
	nrunners--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	return arg;
}

/* --------------------------------------------------------------------- take */

static int
wanted(void)
{
	int			n = my.parallel - count[HELD] - count[RUNNING];
	/* the next answer must arrive before the held jobs have ended */
	double		soon = fmax(SOON, fmin(2 * trip, NOT_SOON / 2));
	int			ahead = my.ahead > 0 ? my.ahead : my.ahead < 0 ? 0
		: (int) fmin(MOST_AT_A_TIME, my.parallel * soon / fmax(job_time, 0.001));

	/*
	 * While outcomes cannot be reported, no more jobs are reserved.  Some refused jobs are not
	 * counted.
	 */
	int			untold = count[ENDED] - (nrefused < MOST_REFUSED ? nrefused : MOST_REFUSED);
	int			room = 2 * (my.parallel + ahead) - count[HELD] - count[RUNNING] - untold;

	/* until outcomes are reported, because the next crash would lose these outcomes, too */
	for (const JobqHeld *job = jobs; job != NULL; job = job->next)
		if (job->apart && !job->lost && !job->refused)
			return 0;

	if (count[HELD] <= ahead / 2)
		n += ahead;
	return (int) fmin(fmin(n, room), 1000);
}

static char *
copy(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : checked(strdup(PQgetvalue(result, row, column)));
}

static void
hold(const PGresult *result, int row, bool late)
{
	JobqHeld   *job = checked(calloc(1, sizeof(JobqHeld)));
	JobqHeld  **place = &jobs;
	double		left = atof(PQgetvalue(result, row, 11)) / 1000;

	job->job.id = atoll(PQgetvalue(result, row, 0));
	job->job.token = atoll(PQgetvalue(result, row, 1));
	job->job.queue = copy(result, row, 2);
	job->job.kind = copy(result, row, 3);
	job->job.payload = copy(result, row, 4);
	job->job.headers = copy(result, row, 5);
	job->job.attempt = atoi(PQgetvalue(result, row, 6));
	job->job.max_attempts = atoi(PQgetvalue(result, row, 7));
	job->job.tenant = copy(result, row, 8);
	job->job.context = copy(result, row, 9);
	job->apart = PQgetvalue(result, row, 10)[0] == 't';
	job->job.held = job;
	/* a delayed answer says nothing about the rest of the lease */
	job->since = now();
	job->until = job->since + left;
	/* a job with a timeout may have less time than the others */
	job->extend_at = late ? 0 : job->since + fmin(my.heartbeat, left / 3);
	while (*place != NULL)
		place = &(*place)->next;
	*place = job;
	count[HELD]++;
	pthread_cond_broadcast(&changed);
}

static void
lose_ear(Link *ear, const char *why)
{
	fprintf(stderr, "does not hear of jobs: %s", why);
	PQfinish(ear->connection);
	ear->connection = NULL;
}

/* Listen for jobs.  Returns false on an error. */
static bool
listen_to_server(Link *ear)
{
	const char *const values[] = {my.queues};
	PGresult   *statements = run(ear, my.lease, "SELECT format('LISTEN %I', 'jobq_queue_' || q) "
								 "FROM unnest($1::text[]) AS q", 1, values);
	bool		good = PQresultStatus(statements) == PGRES_TUPLES_OK;

	if (!good && ear->connection != NULL)
		lose_ear(ear, PQresultErrorMessage(statements));
	for (int i = 0; good && i < PQntuples(statements); i++)
	{
		PGresult   *result = run(ear, my.lease, PQgetvalue(statements, i, 0), 0, NULL);

		good = PQresultStatus(result) == PGRES_COMMAND_OK;
		if (!good && ear->connection != NULL)
			lose_ear(ear, PQresultErrorMessage(result));
		PQclear(result);
	}
	PQclear(statements);
	return good && ear->connection != NULL;
}

/* Wait until notified of jobs, or until the next regular check. */
static void
listen_for_jobs(Link *ear)
{
	struct pollfd fds[2] = {{-1, POLLIN, 0}, {wake_pipe[0], POLLIN, 0}};
	double		until = now() + my.wait;
	PGnotify   *note;
	bool		heard = false;

	if (ear->connection == NULL)
	{
		if (listen_to_server(ear))
			return;				/* jobs may have arrived since the last check */
		until = now() + LATE;
	}
	while (!heard && now() < until)
	{
		fds[0].fd = ear->connection != NULL ? PQsocket(ear->connection) : -1;
		poll(fds, 2, (int) fmin(ceil((until - now()) * 1000), 60000));
		if (fds[1].revents != 0)
			return;
		if (ear->connection == NULL)
			continue;
		if (fds[0].revents != 0)
			PQconsumeInput(ear->connection);
		for (; (note = PQnotifies(ear->connection)) != NULL; heard = true)
			PQfreemem(note);
		if (PQstatus(ear->connection) != CONNECTION_OK)
		{
			lose_ear(ear, PQerrorMessage(ear->connection));
			return;
		}
	}
}

/* Returns true on a permanent error. */
static bool
take_jobs(void)
{
	Link		taker = {.conninfo = my.conninfo};
	Link		ear = {.conninfo = my.listen};
	bool		hopeless = false;

	while (!hopeless)
	{
		char		most[16];
		char		lease[32];
		char		longest[32];
		char		held[16];
		const char *const values[] = {my.queues, most, lease, longest, my.name, held};
		PGresult   *result;
		double		wait;
		double		asked;
		double		late;
		bool		empty;

		pthread_mutex_lock(&mutex);
		while (!stopping && wanted() <= 0)
			wait_for_change(60);
		wait = my.listen != NULL ? 0 : patience;
		snprintf(most, sizeof(most), "%d", wanted());
		snprintf(held, sizeof(held), "%d", count[HELD] + count[RUNNING]);
		if (stopping)
			break;
		pthread_mutex_unlock(&mutex);

		/* whole numbers, because the locale may have a decimal comma */
		snprintf(lease, sizeof(lease), "%.0f ms", my.lease * 1000);
		snprintf(longest, sizeof(longest), "%.0f ms", wait * 1000);
		asked = now();
		result = run(&taker, wait + my.lease,
					 "SELECT id, token, queue, kind, payload, headers, attempt, max_attempts, tenant, context, alone, "
					 "(extract(epoch FROM lease_until - jobq_internal.clock()) * 1000)::int8 "
					 "FROM jobq.reserve($1::text[], $2::int, $3::interval, $4::interval, $5::text, $6::int)", 6, values);
		late = now() - asked - wait;
		if (PQresultStatus(result) != PGRES_TUPLES_OK)
		{
			/* permanent: no such queue, no privilege, a queue of workers, ... */
			const char *state = state_of(result);

			fprintf(stderr, "could not reserve: %s", result != NULL ? PQresultErrorMessage(result) : "no answer\n");
			hopeless = is_of(state, "42 3F 22") || strcmp(state, "JQ004") == 0;
			PQclear(result);
			pthread_mutex_lock(&mutex);
			/* wait until the next attempt to connect */
			for (double until = taker.connection != NULL ? now() + 1 : taker.connect_at;
				 !hopeless && !stopping && now() < until;)
				wait_for_change(until - now());
			if (hopeless)
				break;
			pthread_mutex_unlock(&mutex);
			continue;
		}
		empty = PQntuples(result) == 0;
		adapt(late, empty);
		pthread_mutex_lock(&mutex);
		for (int row = 0; row < PQntuples(result); row++)
			hold(result, row, late > LATE);
		pthread_mutex_unlock(&mutex);
		PQclear(result);
		if (empty && my.listen != NULL)
			listen_for_jobs(&ear);
	}
	stopping = taken = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	PQfinish(taker.connection);
	PQfinish(ear.connection);
	return hopeless;
}

/* --------------------------------------------------------------------- tell */

/* An array as a literal. */
static char *
array_of(int n, char **texts)
{
	size_t		size = 3;
	char	   *literal;
	char	   *to;

	for (int i = 0; i < n; i++)
		size += 2 * strlen(texts[i] != NULL ? texts[i] : "NULL") + 3;
	to = literal = checked(malloc(size));
	*to++ = '{';
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			*to++ = ',';
		if (texts[i] == NULL)
		{
			to = stpcpy(to, "NULL");
			continue;
		}
		*to++ = '"';
		for (const char *from = texts[i]; *from != '\0'; from++)
		{
			if (*from == '"' || *from == '\\')
				*to++ = '\\';
			*to++ = *from;
		}
		*to++ = '"';
	}
	strcpy(to, "}");
	return literal;
}

/*
 * Must the lease be extended?  Also after the end of a job, until the outcome is reported.  Not for
 * refused jobs, which would be held forever, and not during shutdown.
 */
static bool
is_kept(const JobqHeld *job)
{
	return !job->lost && (job->state != ENDED || (!stopping && !job->refused));
}

/* Is a report of this kind due for the job? */
static bool
wants(const JobqHeld *job, int what)
{
	if (what == TELL_EXTEND)
		return is_kept(job) && now() >= job->extend_at;
	if (what == TELL_LOG || what == TELL_PROGRESS)
		return !job->lost && job->state != HELD && now() >= job->tell_at &&
			(what == TELL_LOG ? job->lines : job->progress) != NULL;
	/* log lines are reported first */
	return job->state == ENDED && (int) job->answer.outcome == what && now() >= job->tell_at && job->lines == NULL;
}

/*
 * Is the error temporary: lack of resources, a lock, a server that is read-only or stops, jobq not
 * running yet?
 */
static bool
may_pass(const char *state)
{
	return state[0] == '\0' || is_of(state, "08 25 40 53 55 57 58") || strcmp(state, "JQ002") == 0 ||
		strcmp(state, NO_ROOM) == 0;
}

/*
 * Is the reported value the cause of the error, and not a temporary condition?
 */
static bool
is_unfit(int what, const char *state, const char *text)
{
	return is_of(state, "22") ||
		(what == JOBQ_ACK && (strcmp(state, TOO_DEEP) == 0 ||
							  (strcmp(state, NO_ROOM) == 0 && text != NULL && strlen(text) > NO_JSONB)));
}

/* Remove the reported part; the handler may have added more. */
static void
was_said(int what, JobqHeld *job)
{
	char	   *lines = job->lines;

	if (what == TELL_LOG)
	{
		job->lines = lines[job->telling] != '\0' ? text_of("%s", lines + job->telling + 1) : NULL;
		free(lines);
	}
	else if (job->progress_told)
	{
		free(job->progress);
		job->progress = NULL;
	}
}

/*
 * Repeat the report later, unless the error is permanent.  If the connection was lost, the server
 * may have processed the report.  A later error "the lease is over" is then ambiguous.
 */
static void
not_told(const Link *teller, int what, JobqHeld *job, bool alone, const PGresult *result)
{
	const char *state = state_of(result);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	double		again = teller->connection != NULL ? now() + 1 : fmax(now(), teller->connect_at);
	bool		nobodys = state[0] == '\0' || is_of(state, "08 40 53 57");

	if (!alone && !nobodys)
		job->alone = true;		/* a single job caused the error */
	else if (strcmp(state, LEASE_LOST) == 0)
		lose(job);
	else
	{
		fprintf(stderr, "could not tell of job %lld: %s\n", job->job.id, message != NULL ? message : "no answer");
		if (what == TELL_EXTEND)
			job->extend_at = again;
		else if (what > TELL_EXTEND && !may_pass(state))
			was_said(what, job);
		else if (what < TELL_EXTEND && is_unfit(what, state, job->answer.text))
		{
			char	   *text = text_of(what == JOBQ_ACK ? "the result cannot be kept: %s"
									   : "what the handler says cannot be told: %s", message);

			free(job->answer.text);
			job->answer = (JobqAnswer) {JOBQ_NACK, text, -1};
		}
		else
		{
			job->tell_at = again;
			if (what < TELL_EXTEND)
				set_refused(job, !may_pass(state));
		}
	}
}

/* Report "what" for these jobs.  Releases the mutex during the statement. */
static void
tell(Link *teller, int what, JobqHeld **told, int n, double seconds)
{
	char	   *columns[4][MOST_AT_A_TIME];
	char	   *values[4];
	double		asked = now();
	double		late;
	bool		refused;
	PGresult   *result;

	for (int i = 0; i < n; i++)
	{
		JobqHeld   *job = told[i];
		double		time = what == TELL_EXTEND ? my.lease : what > TELL_EXTEND ? -1 : job->answer.delay;

		if (what == JOBQ_RELEASE)
			time = fmax(time, 0);
		job->told = true;
		columns[0][i] = text_of("%lld", job->job.id);
		columns[1][i] = text_of("%lld", job->job.token);
		if (what == TELL_LOG)
		{
			job->telling = strlen(job->lines);
			columns[2][i] = text_of("[%s]", job->lines);
		}
		else if (what == TELL_PROGRESS)
		{
			job->progress_told = true;
			columns[2][i] = text_of("%s", job->progress);
		}
		else
			columns[2][i] = what == TELL_EXTEND || job->answer.text == NULL ? NULL : text_of("%s", job->answer.text);
		columns[3][i] = time < 0 ? NULL : text_of("%.0f ms", time * 1000);
	}
	for (int i = 0; i < 4; i++)
	{
		values[i] = array_of(n, columns[i]);
		for (int j = 0; j < n; j++)
			free(columns[i][j]);
	}
	pthread_mutex_unlock(&mutex);
	result = run(teller, fmax(seconds, SHORTEST_WAIT), statements[what], 4, (const char *const *) values);
	late = now() - asked;
	if (result != NULL)
		adapt(late, false);
	pthread_mutex_lock(&mutex);
	if (result != NULL)
		trip += (now() - asked - trip) / 10;
	refused = what == TELL_EXTEND && !by_token && strcmp(state_of(result), TOO_MANY) == 0;
	by_token |= refused;
	for (int i = 0; i < n; i++)
	{
		JobqHeld   *job = told[i];

		job->told = false;
		if (refused)
			continue;
		if (PQresultStatus(result) != PGRES_TUPLES_OK)
			not_told(teller, what, job, n == 1, result);
		else if (what > TELL_EXTEND)
			was_said(what, job);
		else if (what < TELL_EXTEND)
			forget(job);
		else
		{
			job->alone = job->alone && job->state == ENDED;
			job->until = asked + my.lease;
			job->extend_at = asked + my.heartbeat;
		}
	}
	for (int i = 0; i < 4; i++)
		free(values[i]);
	PQclear(result);
	pthread_cond_broadcast(&changed);	/* for jobq_ack() */
}

/* The time when a held job that has not begun is released. */
static double
late_at(const JobqHeld *job)
{
	return my.ahead == 0 && !job->apart ? job->since + fmin(NOT_SOON, my.heartbeat) : INFINITY;
}

/* Give back the jobs that run too long after a stop.  Their answers are not reported any more. */
static void
give_up(void)
{
	for (JobqHeld *job = jobs, *next; job != NULL; job = next)
	{
		next = job->next;
		if (job->state != RUNNING)
			continue;
		job->given_up = true;
		nstuck++;
		if (job->lost || job->settled)
		{
			forget(job);
			continue;
		}
		fprintf(stderr, "job %lld (%s): given back, because the consumer stops\n", job->job.id, job->job.kind);
		job->lines = job->progress = NULL;
		job->answer = (JobqAnswer) {JOBQ_RELEASE, NULL, 0};
		set_state(job, ENDED);
	}
}

static void *
tell_of_jobs(void *arg)
{
	/*
	 * Extensions are most urgent.  Outcomes take turns: an endless stream of one kind must not
	 * delay the rest until the leases end.
	 */
	int			order[] = {TELL_EXTEND, TELL_LOG, TELL_PROGRESS, JOBQ_ACK, JOBQ_NACK, JOBQ_REJECT, JOBQ_RELEASE};
	const size_t norder = sizeof(order) / sizeof(order[0]);
	Link		teller = {.conninfo = my.conninfo};

	pthread_mutex_lock(&mutex);
	for (;;)
	{
		JobqHeld   *told[MOST_AT_A_TIME];
		int			what = TELL_NOTHING;
		int			n = 0;
		size_t		turn = 0;
		double		due = now() + 60;
		double		first = now() + my.lease / 2;

		if (now() >= give_up_at)
			give_up();
		if (count[RUNNING] > 0)
			due = fmin(due, give_up_at);
		for (JobqHeld *job = jobs, *next; job != NULL; job = next)
		{
			next = job->next;

			/*
			 * Release a held job during shutdown, or if it has not begun as soon as expected.  Its
			 * timeout is running, and another consumer may be idle.  No jobs are held ahead until
			 * the next job has ended.
			 */
			if (job->state == HELD && (stopping || now() >= late_at(job)))
			{
				job->answer = (JobqAnswer) {JOBQ_RELEASE, NULL, 0};
				job_time = INFINITY;
				set_state(job, ENDED);
			}
			if (job->lost && job->state == ENDED)
				forget(job);
			else if (!job->lost && now() >= job->until)
				lose(job);
			else if (!job->lost)
			{
				due = fmin(due, job->until);
				if (job->state == ENDED)
					due = fmin(due, job->tell_at);
				if (job->state == HELD)
					due = fmin(due, late_at(job));
				if (job->state == RUNNING && (job->lines != NULL || job->progress != NULL))
					due = fmin(due, job->tell_at);
				if (is_kept(job))
				{
					due = fmin(due, job->extend_at);
					first = fmin(first, job->until);
				}
			}
		}
		while (turn < norder && n == 0)
		{
			what = order[turn++];
			for (JobqHeld *job = jobs; job != NULL && n < MOST_AT_A_TIME; job = job->next)
			{
				if (!wants(job, what) || (job->alone && n > 0))
					continue;
				if (what == TELL_EXTEND && by_token && n > 0 && job->job.token != told[0]->job.token)
					continue;
				told[n++] = job;
				if (job->alone)
					break;
			}
		}
		if (n > 0 && what != TELL_EXTEND)
		{
			for (; turn < norder; turn++)
				order[turn - 1] = order[turn];
			order[norder - 1] = what;
		}
		if (n > 0)
			tell(&teller, what, told, n, first - now());
		else if (taken && jobs == NULL)
			break;
		else
			wait_for_change(due - now());
	}
	pthread_mutex_unlock(&mutex);
	PQfinish(teller.connection);
	return arg;
}

/* --------------------------------------------------------------------- stop */

void
jobq_stop(double timeout)
{
	pthread_mutex_lock(&mutex);
	stopping = true;
	if (timeout >= 0)
		give_up_at = fmin(give_up_at, now() + timeout);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	(void) !write(wake_pipe[1], "", 1);
}

static void *
wait_for_signals(void *signals)
{
	int			which;

	sigwait(signals, &which);
	jobq_stop(my.stop_timeout > 0 ? my.stop_timeout : -1);
	return NULL;
}

int
jobq_consume(const JobqConsumer *consumer)
{
	pthread_condattr_t clock;
	pthread_t	teller;
	pthread_t	watcher;
	pthread_t	runner;
	sigset_t	signals;
	sigset_t	before;
	bool		hopeless;

	my = *consumer;
	my.parallel = my.parallel > 0 ? my.parallel : 1;
	my.lease = my.lease > 0 ? my.lease : 30;
	my.heartbeat = my.heartbeat > 0 ? my.heartbeat : my.lease / 3;
	my.wait = my.wait > 0 ? my.wait : 5;
	my.pause = my.pause > 0 ? my.pause : 10;
	my.name = my.name != NULL ? my.name : "c";
	patience = fmin(1, my.wait);
	job_time = INFINITY;
	trip = 0;
	stopping = taken = by_token = false;
	give_up_at = INFINITY;
	nrunners = my.parallel;
	nstuck = 0;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, &before);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &clock);
	if (pipe(wake_pipe) != 0 || pthread_create(&watcher, NULL, wait_for_signals, &signals) != 0 ||
		pthread_create(&teller, NULL, tell_of_jobs, NULL) != 0)
		checked(NULL);
	for (int i = 0; i < my.parallel; i++)
		if (pthread_create(&runner, NULL, run_jobs, NULL) != 0 || pthread_detach(runner) != 0)
			checked(NULL);

	hopeless = take_jobs();

	pthread_mutex_lock(&mutex);
	while (nrunners > nstuck)
		wait_for_change(60);
	pthread_mutex_unlock(&mutex);
	pthread_join(teller, NULL);
	pthread_cancel(watcher);
	pthread_join(watcher, NULL);
	close(wake_pipe[0]);
	close(wake_pipe[1]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return hopeless ? 1 : 0;
}
