/*-------------------------------------------------------------------------
 *
 * job.c
 *	  The jobs held by the command work.
 *
 * client/worker/job.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Job		   *jobs;
double		job_left_at;
double		job_time;
double		answer_time;

#define SHORTEST_HEARTBEAT	0.5 /* seconds */
#define ASK_TIME		0.1		/* least assumed duration of jobq.reserve()
								 * with jobs ready */
#define MOST_AHEAD		200		/* most jobs held ahead, by default */

/* The columns selected from jobq.reserve(). */
enum
{
	COLUMN_ID, COLUMN_TOKEN, COLUMN_QUEUE, COLUMN_KIND, COLUMN_PAYLOAD, COLUMN_HEADERS,
	COLUMN_ATTEMPT, COLUMN_MAX_ATTEMPTS, COLUMN_TRACE, COLUMN_LEFT, COLUMN_WAITED,
	COLUMN_ALONE,
	/* of messages only */
	COLUMN_EXCHANGE, COLUMN_ROUTING_KEY, COLUMN_MESSAGE_ID, COLUMN_ENQUEUED_AT
};

static char *
column(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : copy_text(PQgetvalue(result, row, column));
}

/*
 * Add a job reserved by a statement that was sent at "asked_at" and still running at
 * "quiet_at".  The server measures the rest of the lease COLUMN_WAITED seconds after the
 * start of the statement; the result may arrive later.
 *
 * The job's timeout may shorten the lease, and an extension does not report by how much.
 * The program therefore extends the lease at intervals of half the first lease; an
 * extension fails after the timeout.  If the end of the lease is "unsure", the program
 * asks the server at once.
 */
void
job_add(const PGresult *result, int row, double asked_at, double quiet_at, bool unsure)
{
	Job		   *job = allocate(sizeof(Job));
	Job		  **last = &jobs;
	double		waited = strtod(PQgetvalue(result, row, COLUMN_WAITED), NULL);
	double		from = fmax(fmin(asked_at + waited, seconds()), quiet_at);
	double		left;

	job->id = column(result, row, COLUMN_ID);
	job->token = column(result, row, COLUMN_TOKEN);
	job->queue = column(result, row, COLUMN_QUEUE);
	job->kind = column(result, row, COLUMN_KIND);
	job->payload = column(result, row, COLUMN_PAYLOAD);
	job->headers = column(result, row, COLUMN_HEADERS);
	job->attempt = column(result, row, COLUMN_ATTEMPT);
	job->max_attempts = column(result, row, COLUMN_MAX_ATTEMPTS);
	job->trace = column(result, row, COLUMN_TRACE);
	job->runs_apart = PQgetvalue(result, row, COLUMN_ALONE)[0] == 't';
	if (work.publish != NULL)
	{
		job->exchange = column(result, row, COLUMN_EXCHANGE);
		job->routing_key = column(result, row, COLUMN_ROUTING_KEY);
		job->message_id = column(result, row, COLUMN_MESSAGE_ID);
		job->enqueued_at = (int64_t) strtod(PQgetvalue(result, row, COLUMN_ENQUEUED_AT), NULL);
	}
	left = fmin(work.lease, strtod(PQgetvalue(result, row, COLUMN_LEFT), NULL));
	job->until = from + left;
	job->extend_at = unsure ? 0 : from + left / 2;
	job->heartbeat = fmax(left / 2, SHORTEST_HEARTBEAT);
	job->in = job->out = job->err = job->progress = -1;
	job->state = JOB_HELD;
	job->taken_at = seconds();
	initPQExpBuffer(&job->output);
	initPQExpBuffer(&job->errors);
	initPQExpBuffer(&job->line);
	initPQExpBuffer(&job->note);
	initPQExpBuffer(&job->notes);
	while (*last != NULL)
		last = &(*last)->next;
	*last = job;
}

/*
 * Set the outcome of a job, to be reported to the server.
 */
void
job_end(Job *job, JobOutcome outcome, const char *text)
{
	if (job->state == JOB_RUNNING)
		job_time += (seconds() - job->began_at - job_time) / (job_time > 0 ? 10 : 1);
	job->outcome = outcome;
	free(job->text);
	job->text = text != NULL ? copy_text(text) : NULL;

	job->state = JOB_ENDED;
}

/*
 * The job is completed with this output.  The result is the output without trailing
 * newlines, as in a shell's command substitution.
 */
void
job_done(Job *job, const char *output)
{
	size_t		blank = strspn(output, " \t\r\n");
	char	   *result;

	if (work.result == RESULT_NONE || output[blank] == '\0')
	{
		job_end(job, OUTCOME_ACK, NULL);
		return;
	}
	result = copy_text(output);
	for (size_t n = strlen(result); n > 0 && (result[n - 1] == '\n' || result[n - 1] == '\r'); n--)
		result[n - 1] = '\0';
	job_end(job, OUTCOME_ACK, result);
	job->is_json = work.result == RESULT_JSON ||
		(work.result == RESULT_AUTO && (output[blank] == '{' || output[blank] == '['));
	free(result);
}

void
job_forget(Job *job)
{
	Job		  **link = &jobs;

	while (*link != job)
		link = &(*link)->next;
	*link = job->next;
	job_left_at = seconds();
	termPQExpBuffer(&job->output);
	termPQExpBuffer(&job->errors);
	termPQExpBuffer(&job->line);
	termPQExpBuffer(&job->note);
	termPQExpBuffer(&job->notes);
	free(job->id);
	free(job->token);
	free(job->queue);
	free(job->kind);
	free(job->payload);
	free(job->headers);
	free(job->trace);
	free(job->exchange);
	free(job->routing_key);
	free(job->message_id);
	free(job->attempt);
	free(job->max_attempts);
	free(job->text);
	free(job);
}

int
jobs_in(JobState state)
{
	int			n = 0;

	for (Job *job = jobs; job != NULL; job = job->next)
		n += job->state == state;
	return n;
}

/*
 * The most jobs to hold in advance: the number that run while jobq.reserve() is called.
 * 0 until the first job has ended, because the duration of jobs is unknown.
 */
int
jobs_ahead(void)
{
	/* a busy server answers late; jobs held for longer are released */
	double		ask_time = fmax(ASK_TIME, fmin(2 * answer_time, IDLE_TIME / 2));

	if (work.ahead >= 0)
		return work.ahead;
	return job_time > 0 ? (int) fmin(MOST_AHEAD, work.parallel * ask_time / fmax(job_time, 0.001)) : 0;
}

/*
 * Return a copy of a text for the server: valid UTF-8 without zero bytes.  Each invalid
 * byte becomes U+FFFD.
 */
char *
without_junk(const char *text, size_t length)
{
	PQExpBufferData clean;

	initPQExpBuffer(&clean);
	for (size_t i = 0; i < length;)
	{
		const unsigned char *c = (const unsigned char *) text + i;
		int			more = *c >= 0xF0 ? 3 : *c >= 0xE0 ? 2 : *c >= 0xC2 ? 1 : 0;
		bool		good = *c != 0 && (*c < 0x80 || (*c >= 0xC2 && *c <= 0xF4)) && i + more < length;

		for (int j = 1; good && j <= more; j++)
			good = (c[j] & 0xC0) == 0x80;
		/* overlong forms, surrogates, and code points above U+10FFFF */
		if (good && ((*c == 0xE0 && c[1] < 0xA0) || (*c == 0xED && c[1] > 0x9F) ||
					 (*c == 0xF0 && c[1] < 0x90) || (*c == 0xF4 && c[1] > 0x8F)))
			good = false;
		if (good)
			appendBinaryPQExpBuffer(&clean, text + i, more + 1);
		else
			appendPQExpBufferStr(&clean, "\xEF\xBF\xBD");
		i += good ? more + 1 : 1;
	}
	if (PQExpBufferDataBroken(clean))
		fatal(EXIT_REFUSED, "out of memory");
	return clean.data;
}

/*
 * True if a held job must not be joined by jobs of another reservation.  The rule ends
 * when the server knows the outcome; otherwise the next job could end the program and
 * lose this job, too.
 */
bool
jobs_are_apart(void)
{
	for (Job *job = jobs; job != NULL; job = job->next)
		if (job->runs_apart && !job->refused)
			return true;
	return false;
}

/*
 * True if the job would run beside a job of another reservation, and one of the two must
 * not.
 */
bool
job_must_wait(const Job *job)
{
	for (const Job *other = jobs; other != NULL; other = other->next)
		if (other->state == JOB_RUNNING && (other->runs_apart || job->runs_apart) && strcmp(other->token, job->token) != 0)
			return true;
	return false;
}
