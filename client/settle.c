/*-------------------------------------------------------------------------
 *
 * settle.c
 *	  Tells the server what has become of jobs, and holds those that run.
 *
 * All that has gathered while a statement was under way goes into the next:
 * one statement, and one commit, for many jobs.  If that fails because of one
 * of them, each is told alone.
 *
 * When the connection is lost in between, it is not known whether the server
 * has heard; then it is told again, and an answer that the lease is over may
 * mean that it had.
 *
 * client/settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_AT_A_TIME	100
#define MOST_BYTES		1000000 /* in a statement, beyond those of its first
								 * job */
#define RETRY_PAUSE		1.0
#define SHORTEST_PATIENCE	2.0 /* for an answer, in seconds */

#define MOST_SAID		300		/* columns of an error or a reason */
#define MOST_OF_KIND	100

#define LEASE_LOST		"JQ011"
#define NOT_RUNNING		"JQ002"
#define TOO_LARGE		"22001" /* is the result, or nested too deep */
#define TOO_DEEP		"54001" /* to be read as JSON */
#define NO_ROOM			"54000" /* in what the server keeps of NOTIFY, when it
								 * commits, or for a text in what is jsonb */
#define NO_JSONB		32000000	/* bytes of a text; a shorter one has room
									 * there */

/* The error or reason of a job if the database cannot keep the text that it has. */
#define NO_TEXT			"its error is a text that the database cannot keep"

/* What a statement tells; the first are those of JobOutcome. */
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

	/*
	 * they are sorted by token, as jobs are in the order in which they were
	 * reserved
	 */
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

/* The statement that is under way. */
static int	telling = TELL_NOTHING;
static Job *told[MOST_AT_A_TIME];
static int	ntold;
static int	nsent;				/* with those that have left since */

/* So many are told at a time: fewer, when the last time was too long. */
static int	most_told = MOST_AT_A_TIME;

static bool wants(const Job *job, int what, double now, bool stopping);
static size_t size_of(const Job *job, int what);
static void values_of(Job *job, int what, int nth, double now, const char **a, const char **b);
static void tell_again(Job *job);
static void say_end(const Job *job);
static bool may_pass(const char *state);
static bool cannot_be_kept(const Job *job, const char *state);
static void settle_one(Job *job, const PGresult *result);
static void lost(Job *job);

/*
 * Is the lease of the job to be extended when it is time for that?
 */
bool
settle_holds(const Job *job, bool stopping)
{
	return job->outcome != OUTCOME_LOST &&
		(job->state == JOB_HELD || job->state == JOB_RUNNING ||
		 (job->state == JOB_ENDED && !stopping && !job->refused));
}

static bool
wants(const Job *job, int what, double now, bool stopping)
{
	if (what == TELL_EXTEND)
		return settle_holds(job, stopping) && now >= job->extend_at;
	if (what == TELL_PROGRESS)
		return job->state == JOB_RUNNING && job->has_progress && job->outcome != OUTCOME_LOST;
	if (what == TELL_NOTES)
		return (job->state == JOB_RUNNING || job->state == JOB_ENDED) &&
			note_wanted(job, now) && job->outcome != OUTCOME_LOST;
	/* what is to be in the log is told before */
	return job->state == JOB_ENDED && job->nnotes == 0 && (int) job->outcome == what && now >= job->tell_at;
}

/*
 * The bytes of the job's texts.
 */
static size_t
size_of(const Job *job, int what)
{
	if (what == TELL_NOTES)
		return job->notes.len;
	return what < (int) OUTCOME_LOST && job->text !=NULL ? strlen(job->text) : 0;
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
 * If the link is free, send what is most urgent: to hold what would be lost.  All
 * else has its turn: there may be more of one kind each time that the link is free,
 * and a job of which something else is to be told would wait until its lease is over.
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
			if (!wants(job, telling, now, stopping) || (job->alone && ntold > 0))
				continue;
			if (ntold > 0 && (bytes += size_of(job, telling)) > MOST_BYTES)
				break;
			columns[0][ntold] = job->id;
			columns[1][ntold] = job->token;
			values_of(job, telling, ntold, now, &columns[2][ntold], &columns[3][ntold]);
			told[ntold++] = job;
			if (job->alone)
				break;
		}
	}
	if (ntold == 0)
	{
		telling = TELL_NOTHING;
		return;
	}
	nsent = ntold;
	if (telling != TELL_EXTEND)
	{
		/* its next turn is behind all others */
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
 * The server has not taken what was told of the job.
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

	if (good && telling != TELL_EXTEND)
		most_told = most_told < MOST_AT_A_TIME / 2 ? 2 * most_told : MOST_AT_A_TIME;
	for (int i = 0; i < ntold; i++)
	{
		Job		   *job = told[i];

		if (good && telling == TELL_EXTEND)
		{
			job->until = job->asked_at + work.lease;
			job->extend_at = job->asked_at + job->heartbeat;
			/* its end may have made others' fail */
			if (job->state != JOB_ENDED)
				job->alone = false;
		}
		else if (good && (telling == TELL_NOTES || telling == TELL_PROGRESS))
		{
			note_told(job);
			job->alone = false;
		}
		else if (good && telling < (int) OUTCOME_LOST)
		{
			say_end(job);
			job_forget(job);
		}
		else if (!good && nsent > 1)
		{
			/* one of them is to blame, and is found when each is told alone */
			job->alone = true;
			tell_again(job);
		}
		else if (!good)
			settle_one(job, result);
	}
	telling = TELL_NOTHING;
	ntold = 0;
}

/*
 * The server knows how the job has ended.  What others have written may be on a
 * terminal, or in a log, where it must not look like what we say.
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
 * Is it a matter of time until what has failed so does not: a lack of something, a
 * lock, a server that is read-only or stops, jobq that does not run yet?
 */
static bool
may_pass(const char *state)
{
	static const char *const begins[] = {"08", "25", "40", "53", "55", "57", "58", NOT_RUNNING, NO_ROOM};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (strncmp(state, begins[i], strlen(begins[i])) == 0)
			return true;
	return false;
}

/*
 * Is it the result of the job that the server cannot take?
 */
static bool
cannot_be_kept(const Job *job, const char *state)
{
	return strncmp(state, "22", 2) == 0 || strcmp(state, TOO_DEEP) == 0 ||
		(strcmp(state, NO_ROOM) == 0 && size_of(job, OUTCOME_ACK) > NO_JSONB);
}

/*
 * A statement about this job alone has failed.
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
		/* it only looked like JSON */
		job->is_json = false;
		job->state = JOB_ENDED;
	}
	else if (telling == OUTCOME_ACK && cannot_be_kept(job, state))
	{
		/* the result cannot be kept */
		job_end(job, OUTCOME_NACK, message);
	}
	else if ((telling == OUTCOME_NACK || telling == OUTCOME_REJECT) && strncmp(state, "22", 2) == 0 &&
			 strcmp(job->text, NO_TEXT) != 0)
		job_end(job, (JobOutcome) telling, NO_TEXT);
	else if (strncmp(state, "22", 2) == 0 || strncmp(state, "42", 2) == 0)
	{
		/* with the next job it will be no better */
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
		job->refused = !may_pass(state);
	}
}

/*
 * The lease is over: somebody else may have the job.
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
 * Leases that are over by our own clock: the server could not be asked.  And
 * jobs of which nobody is to be told anything.  When we stop, nobody is told
 * later than shortly after the lease, or than "give_up_at"; returns whether that
 * was so for a job.
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
			/* the answer may still be under way */
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
 * The link was lost before the server has answered.
 */
void
settle_lost(void)
{
	if (telling != TELL_EXTEND && nsent > 1)
		most_told = nsent / 2;
	for (int i = 0; i < ntold; i++)
		tell_again(told[i]);

	/* what has taken so long may do so again: have time for that */
	for (Job *job = jobs; job != NULL && telling < (int) OUTCOME_LOST; job = job->next)
		if (job->state == JOB_ENDED)
			job->extend_at = 0;
	telling = TELL_NOTHING;
	ntold = 0;
}
