/*-------------------------------------------------------------------------
 *
 * settle.c
 *	  Reports the outcomes of jobs to the server, and extends the leases of jobs.
 *
 * Everything gathered during a statement goes into the next statement, so that many jobs
 * share a statement and a commit.  If a shared statement fails because of a single job,
 * each job is then reported alone.
 *
 * If the connection is lost during a statement, the server may or may not have committed.
 * The program then repeats the report.  An answer "lease lost" may then mean success of
 * the first report.
 *
 * client/worker/settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_AT_A_TIME	100
#define MOST_BYTES		1000000 /* per statement, beyond the first job */
#define RETRY_PAUSE		1.0
#define SHORTEST_PATIENCE	2.0 /* for an answer, in seconds */

#define MOST_SAID		300		/* columns of an error or a reason */
#define MOST_OF_KIND	100

#define LEASE_LOST		"JQ011"
#define TOO_LARGE		"22001" /* the result is too large, or nested too deep */
#define TOO_DEEP		"54001" /* to be parsed as JSON */
#define NO_ROOM			"54000" /* in the NOTIFY queue at commit, or for a
								 * string in jsonb */
#define NO_JSONB		32000000	/* bytes; a shorter string fits */

/* The error or reason of a job if the database cannot store the original text. */
#define NO_TEXT			"its error is a text that the database cannot keep"

/* The subject of a statement; the first values are the members of JobOutcome. */
enum
{
	TELL_EXTEND = OUTCOME_LOST + 1,
	TELL_PROGRESS,
	TELL_NOTES,
	TELL_NOTHING
};

#define OF_EACH	"FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.int8[]), pg_catalog.unnest($2::pg_catalog.int8[]), " \
	"pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[])) AS j(id, token, a, b)"

static const char *const statements[] = {
	[OUTCOME_ACK] = "SELECT jobq.ack(j.id, j.token, CASE WHEN j.b OPERATOR(pg_catalog.=) 'json' THEN j.a::pg_catalog.jsonb "
	"ELSE pg_catalog.to_jsonb(j.a) END) " OF_EACH,
	[OUTCOME_NACK] = "SELECT jobq.nack(j.id, j.token, j.a, NULL::pg_catalog.interval) " OF_EACH,
	[OUTCOME_REJECT] = "SELECT jobq.reject(j.id, j.token, j.a) " OF_EACH,
	[OUTCOME_RELEASE] = "SELECT jobq.release(j.id, j.token, j.a::pg_catalog.interval) " OF_EACH,

	/* extend_many() sorts the jobs by token, the order of reservation */
	[TELL_EXTEND] = "SELECT jobq.extend_many($1::pg_catalog.int8[], $2::pg_catalog.int8[], "
	"(($3::pg_catalog.text[])[1])::pg_catalog.interval)",
	[TELL_PROGRESS] = "SELECT jobq.set_progress(j.id, j.token, j.a::pg_catalog.float4, j.b) " OF_EACH,
	[TELL_NOTES] = "SELECT jobq.log(j.id, j.token, l.line) " OF_EACH
	", pg_catalog.string_to_table(j.a, E'\\n') AS l(line)",
};

static const char *const said[] = {
	[OUTCOME_ACK] = "done",
	[OUTCOME_NACK] = "failed",
	[OUTCOME_REJECT] = "rejected",
	[OUTCOME_RELEASE] = "given back",
};

/* The statement in progress. */
static int	telling = TELL_NOTHING;
static Job *told[MOST_AT_A_TIME];
static int	ntold;
static int	nsent;				/* including jobs removed since */
static double sent_at;

/* Most jobs per statement; halved after a statement that took too long. */
static int	most_told = MOST_AT_A_TIME;

static void say_end(const Job *job);
static void settle_one(Job *job, const PGresult *result);
static void lost(Job *job);

/*
 * True if the program still extends the lease of this job.
 */
bool
settle_holds(const Job *job, bool stopping)
{
	return job->outcome != OUTCOME_LOST &&
		(job->state == JOB_HELD || job->state == JOB_RUNNING ||
		 (job->state == JOB_ENDED && !stopping && !job->refused));
}

/*
 * True if the job has log lines to report.
 */
bool
settle_notes(const Job *job)
{
	return (job->state == JOB_RUNNING || job->state == JOB_ENDED) &&
		job->nnotes > 0 && job->outcome != OUTCOME_LOST;
}

static bool
wants(const Job *job, int what, double now, bool stopping)
{
	if (what == TELL_EXTEND)
		return settle_holds(job, stopping) && now >= job->extend_at;
	if (what == TELL_PROGRESS)
		return job->state == JOB_RUNNING && job->has_progress && job->outcome != OUTCOME_LOST;
	if (what == TELL_NOTES)
		return settle_notes(job) && now >= job->note_at;
	/* log lines are reported before the outcome */
	return job->state == JOB_ENDED && job->nnotes == 0 && (int) job->outcome == what && now >= job->tell_at;
}

/*
 * The size of the job's texts, in bytes.
 */
static size_t
size_of(const Job *job, int what)
{
	if (what == TELL_NOTES)
		return job->notes.len;
	return what < (int) OUTCOME_LOST && job->text != NULL ? strlen(job->text) : 0;
}

static void
values_of(Job *job, int what, int nth, double now, const char **a, const char **b)
{
	static char lease[32];
	static char pauses[MOST_AT_A_TIME][32];

	*a = job->text;
	*b = NULL;
	switch (what)
	{
		case OUTCOME_ACK:
			*b = job->is_json ? "json" : "text";
			break;
		case OUTCOME_RELEASE:
			snprintf(pauses[nth], sizeof(pauses[nth]), "%.3f s", job->delay);
			*a = pauses[nth];
			break;
		case TELL_EXTEND:
			snprintf(lease, sizeof(lease), "%.3f s", work.lease);
			*a = lease;
			break;
		case TELL_PROGRESS:
			*a = job->percent;
			*b = job->message;
			break;
		case TELL_NOTES:
			*a = note_take(job, now);
			break;
	}
}

/*
 * If the link is free, send the most urgent statement.  Extensions come first, because a
 * lease could expire.  The other subjects take turns, so that a busy subject never delays
 * a job beyond the lease.
 */
void
settle_next(Link *link, bool stopping)
{
	static int	order[] = {TELL_EXTEND, OUTCOME_ACK, OUTCOME_NACK, OUTCOME_REJECT, OUTCOME_RELEASE,
		TELL_PROGRESS, TELL_NOTES,
	};
	const size_t norder = sizeof(order) / sizeof(order[0]);
	size_t		next = 0;
	const char *columns[4][MOST_AT_A_TIME];
	const char *values[4];
	double		now = seconds();
	bool		sent;

	if (link->state != LINK_IDLE)
		return;
	ntold = 0;
	while (next < norder && ntold == 0)
	{
		int			most;
		size_t		bytes = 0;

		telling = order[next++];
		most = telling == TELL_EXTEND ? MOST_AT_A_TIME : most_told;
		for (Job *job = jobs; job != NULL && ntold < most; job = job->next)
		{
			if (!wants(job, telling, now, stopping) || (job->tell_alone && ntold > 0))
				continue;
			if (ntold > 0 && (bytes += size_of(job, telling)) > MOST_BYTES)
				break;
			columns[0][ntold] = job->id;
			columns[1][ntold] = job->token;
			values_of(job, telling, ntold, now, &columns[2][ntold], &columns[3][ntold]);
			told[ntold++] = job;
			if (job->tell_alone)
				break;
		}
	}
	if (ntold == 0)
	{
		telling = TELL_NOTHING;
		return;
	}
	nsent = ntold;
	sent_at = now;
	if (telling != TELL_EXTEND)
	{
		/* move this subject to the end of the order */
		for (; next < norder; next++)
			order[next - 1] = order[next];
		order[norder - 1] = telling;
	}
	for (int i = 0; i < 4; i++)
		values[i] = array_of(ntold, columns[i]);
	sent = link_send(link, fmax(SHORTEST_PATIENCE, work.lease / 4), statements[telling],
					 telling == TELL_EXTEND ? 3 : 4, values);
	if (sent)
		for (int i = 0; i < ntold; i++)
		{
			if (telling < (int) OUTCOME_LOST)
				told[i]->state = JOB_TOLD;
			else if (telling == TELL_EXTEND)
			{
				told[i]->asked_at = now;
				told[i]->extend_at = INFINITY;
			}
			else if (telling == TELL_PROGRESS)
				told[i]->has_progress = false;
		}
	for (int i = 0; telling == TELL_NOTES && i < ntold; i++)
	{
		free((char *) columns[2][i]);
		if (!sent)
			note_lost(told[i]);
	}
	if (!sent)
	{
		telling = TELL_NOTHING;
		ntold = 0;
	}
	for (int i = 0; i < 4; i++)
		free((char *) values[i]);
}

/*
 * The server did not accept the report: restore the state of the job.
 */
static void
tell_again(Job *job)
{
	if (telling < (int) OUTCOME_LOST)
		job->state = JOB_ENDED;
	else if (telling == TELL_EXTEND)
		job->extend_at = job->asked_at;
	else if (telling == TELL_PROGRESS)
		job->has_progress = true;
	else
		note_lost(job);
}

/*
 * The server has answered.
 */
void
settle_result(const PGresult *result)
{
	bool		good = PQresultStatus(result) == PGRES_TUPLES_OK;

	answer_time += (seconds() - sent_at - answer_time) / 10;
	if (good && telling != TELL_EXTEND)
		most_told = most_told < MOST_AT_A_TIME / 2 ? 2 * most_told : MOST_AT_A_TIME;
	for (int i = 0; i < ntold; i++)
	{
		Job		   *job = told[i];

		if (good && telling == TELL_EXTEND)
		{
			job->until = job->asked_at + work.lease;
			job->extend_at = job->asked_at + job->heartbeat;
			/* its outcome may have made the shared statement fail */
			if (job->state != JOB_ENDED)
				job->tell_alone = false;
		}
		else if (good && (telling == TELL_NOTES || telling == TELL_PROGRESS))
		{
			note_told(job);
			job->tell_alone = false;
		}
		else if (good && telling < (int) OUTCOME_LOST)
		{
			say_end(job);
			job_forget(job);
		}
		else if (!good && nsent > 1)
		{
			/* a single job is at fault; separate reports find the job */
			job->tell_alone = true;
			tell_again(job);
		}
		else if (!good)
			settle_one(job, result);
	}
	telling = TELL_NOTHING;
	ntold = 0;
}

/*
 * Print the end of a job that the server has accepted.  Text of other origin may reach a
 * terminal or a log, and must not imitate a line of this program.
 */
static void
say_end(const Job *job)
{
	bool		bad = telling == OUTCOME_NACK || telling == OUTCOME_REJECT;
	char	   *kind;
	char	   *why;

	if (!bad && work.quiet)
		return;
	kind = harmless_text(job->kind, MOST_OF_KIND);
	why = harmless_text(bad ? job->text : "", MOST_SAID);
	say("job %s (%s): %s%s%s", job->id, kind, said[telling], bad ? ": " : "", why);
	free(kind);
	free(why);
}

/*
 * True if the server cannot store the result of the job.
 */
static bool
cannot_be_kept(const Job *job, const char *state)
{
	return strncmp(state, "22", 2) == 0 || strcmp(state, TOO_DEEP) == 0 ||
		(strcmp(state, NO_ROOM) == 0 && size_of(job, OUTCOME_ACK) > NO_JSONB);
}

/*
 * A statement for this job alone has failed.
 */
static void
settle_one(Job *job, const PGresult *result)
{
	const char *state = sqlstate_of(result);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

	if (message == NULL)
		message = PQresultErrorMessage(result);
	if (strcmp(state, LEASE_LOST) == 0)
		lost(job);
	else if (telling == TELL_PROGRESS)
		;
	else if (telling == TELL_NOTES)
		note_told(job);
	else if (telling == TELL_EXTEND)
	{
		if (trouble_is_news(message))
			say("could not extend the lease of job %s: %s", job->id, message);
		job->extend_at = seconds() + RETRY_PAUSE;
	}
	else if (telling == OUTCOME_ACK && strncmp(state, "22", 2) == 0 && strcmp(state, TOO_LARGE) != 0 &&
			 job->is_json && work.result != RESULT_JSON)
	{
		/* the output only looked like JSON */
		job->is_json = false;
		job->state = JOB_ENDED;
	}
	else if (telling == OUTCOME_ACK && cannot_be_kept(job, state))
	{
		job_end(job, OUTCOME_NACK, message);
	}
	else if ((telling == OUTCOME_NACK || telling == OUTCOME_REJECT) && strncmp(state, "22", 2) == 0 &&
			 strcmp(job->text, NO_TEXT) != 0)
		job_end(job, (JobOutcome) telling, NO_TEXT);
	else if (strncmp(state, "22", 2) == 0 || strncmp(state, "42", 2) == 0)
	{
		/* the next job would fail as well */
		say_result_error(result);
		job_forget(job);
		work_is_hopeless = true;
	}
	else
	{
		if (trouble_is_news(message))
			say("could not settle job %s: %s", job->id, message);
		job->state = JOB_ENDED;
		job->tell_at = seconds() + RETRY_PAUSE;
		job->refused = !error_may_pass(state);
	}
}

/*
 * The lease has expired: another consumer may have the job.
 */
static void
lost(Job *job)
{
	bool		runs = job->state == JOB_RUNNING;
	char	   *kind = harmless_text(job->kind, MOST_OF_KIND);

	say("job %s (%s): its lease is over%s", job->id, kind,
		runs ? "; what runs for it is ended"
		: job->state == JOB_HELD || job->outcome == OUTCOME_RELEASE ? "" : "; what was done may be done again");
	free(kind);
	if (!runs)
	{
		job_forget(job);
		return;
	}
	job->outcome = OUTCOME_LOST;
	job_interrupt(job);
}

/*
 * Handle leases that have expired by the local clock, without contact to the server, and
 * forget jobs without a report.  While stopping, a report is abandoned shortly after its
 * lease, or at "give_up_at".  Returns true if a report was abandoned.
 */
bool
settle_expired(bool stopping, double give_up_at)
{
	double		now = seconds();
	bool		gave_up = false;
	Job		   *next;

	for (Job *job = jobs; job != NULL; job = next)
	{
		bool		held = job->state == JOB_HELD || job->state == JOB_RUNNING;

		next = job->next;
		if (job->state == JOB_ENDED && job->outcome == OUTCOME_LOST)
			job_forget(job);
		else if (held ? now >= job->until && job->outcome != OUTCOME_LOST
				 : stopping && now >= fmin(job->until + TELL_TIME, give_up_at))
		{
			/* the answer may still arrive */
			for (int i = 0; i < ntold; i++)
				if (told[i] == job)
					told[i--] = told[--ntold];
			gave_up |= !held;
			lost(job);
		}
	}
	return gave_up;
}

/*
 * The link was lost before the server answered.
 */
void
settle_lost(void)
{
	if (telling != TELL_EXTEND && nsent > 1)
		most_told = nsent / 2;
	for (int i = 0; i < ntold; i++)
		tell_again(told[i]);

	/* a slow report may be slow again: extend the lease first */
	for (Job *job = jobs; job != NULL && telling < (int) OUTCOME_LOST; job = job->next)
		if (job->state == JOB_ENDED)
			job->extend_at = 0;
	telling = TELL_NOTHING;
	ntold = 0;
}
