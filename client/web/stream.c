/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Jobs and lists that callers follow by Server-Sent Events.
 *
 * A Follow is a job or a topic followed by at least one caller of a principal.  A topic
 * is a route without arguments.  The principal's own connection runs the statement, so a
 * caller learns nothing hidden from the role.  A single read serves all callers.  All
 * jobs followed by the callers of a principal are read in one statement.
 *
 * A job is read after a notification on the channel jobq_job_ID (listener.c).  The
 * database sends notifications for jobs with "watch".  Every job is also read once per
 * second.
 *
 * The id of an event has two parts.  The first is the last log line known to the
 * receiver: the time in microseconds, and a position among lines of the same time.  The
 * second is a hash of the state known to the receiver.  After a reconnect to any server
 * with Last-Event-ID, the caller receives the missing lines, and a changed state.  The
 * database keeps only the last lines.  If the line of the id is gone, an event warns of
 * missing lines.
 *
 * client/web/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_PAUSE		1.0		/* between two reads of a job */
#define TOPIC_PAUSE		2.0
#define REST			10		/* pause after a slow read, as a multiple of
								 * its duration */

/* The statement that reads all due jobs of a principal. */
typedef struct JobsRead
{
	Statement	statement;
	char	   *ids;			/* of the jobs; NULL: no read in progress */
	char	   *lines;			/* last known line of each job; later lines
								 * are read */
	const char *values[2];
	double		rest_until;
} JobsRead;

static const char look_sql[] =
"SELECT w.id, w.line, v.what, v.line, v.ended, v.data FROM unnest($1::int8[], $2::int8[]) AS w(id, line) "
"LEFT JOIN LATERAL (" JOB("w.id") ") AS j ON true "
"CROSS JOIN LATERAL (SELECT row_to_json(t)::text AS text FROM (SELECT w.id, j.state, j.kind, j.queue, j.attempt, j.max_attempts, "
"j.progress, j.message, j.error, j.run_at, j.started_at, j.finished_at, j.result) AS t) AS s "
"CROSS JOIN LATERAL (SELECT CASE WHEN w.line > 0 AND l.n = 1 AND l.known IS NULL THEN 'm' ELSE 'l' END AS what, "
"l.n, l.at AS line, false AS ended, l.text AS data "
"FROM (SELECT a.*, max(a.n) FILTER (WHERE a.at = w.line) OVER () AS known FROM "
"(SELECT e.n, e.line::text AS text, (extract(epoch FROM (e.line ->> 'at')::timestamptz) * 1000000)::int8 * 1000 "
"+ row_number() OVER (PARTITION BY e.line ->> 'at' ORDER BY e.n) AS at "
"FROM jsonb_array_elements(j.log) WITH ORDINALITY AS e(line, n)) AS a) AS l "
"WHERE l.n > l.known OR (l.known IS NULL AND l.at > w.line) "
"UNION ALL SELECT CASE WHEN j.id IS NULL THEN 'g' ELSE 's' END, NULL, NULL, "
"j.state IN ('completed', 'dead', 'cancelled', 'expired'), s.text) AS v "
"ORDER BY w.id, w.line, v.n NULLS LAST";

/* The columns of look_sql. */
enum
{
	LOOK_ID, LOOK_ASKED, LOOK_WHAT, LOOK_LINE, LOOK_ENDED, LOOK_DATA
};

static void look_done(Statement *statement, PGresult *result, const char *why);
static void topic_done(Statement *statement, PGresult *result, const char *why);

static void
follow_free(Follow *follow)
{
	Follow	  **at = &follow->principal->follows;

	/* topic_done() frees a Follow with a running statement */
	if (follow->followers != NULL)
		return;
	if (follow->asked)
	{
		if (!pool_withdraw(follow->principal, &follow->statement))
			return;
		principal_leave(follow->principal);
	}
	while (*at != follow)
		at = &(*at)->next;
	*at = follow->next;
	if (follow->channel != NULL)
		listener_leave(follow->principal->database, follow->channel);
	free(follow->text);
	free(follow);
}

/*
 * Free the stream, after the caller has left or the stream has ended.
 */
static void
stream_free(Request *request, bool whole)
{
	Stream	   *stream = request->state;

	(void) whole;
	for (int i = 0; i < stream->n; i++)
	{
		Follower   *follower = &stream->followers[i];
		Follower  **at = &follower->follow->followers;

		while (*at != follower)
			at = &(*at)->next;
		*at = follower->next;
		follow_free(follower->follow);
	}
	termPQExpBuffer(&stream->out);
	loop_free(stream);
	request->state = NULL;
}

static Follower *
follow_begin(Stream *stream, int64_t job, const Route *topic)
{
	Principal  *principal = stream->request->principal;
	Follower   *follower = &stream->followers[stream->n++];
	Follow	   *follow = principal->follows;

	while (follow != NULL && (follow->job != job || follow->topic != topic))
		follow = follow->next;
	if (follow == NULL)
	{
		follow = allocate(sizeof(Follow));
		follow->principal = principal;
		follow->job = job;
		follow->topic = topic;
		follow->next = principal->follows;
		principal->follows = follow;
		if (job != 0)
			follow->channel = listener_join(principal->database, job);
	}
	follower->stream = stream;
	follower->follow = follow;
	follower->asked = -1;
	follower->next = follow->followers;
	follow->followers = follower;
	/* send a known list at once, and read a job at once */
	if (follow->text != NULL)
		stream_event(stream, NULL, strrchr(topic->path, '/') + 1, follow->text);
	else
		follow->due = web_now;
	return follower;
}

/*
 * GET /api/jobs/ID/events
 */
void
run_follow_job(Request *request)
{
	const char *last = header_of(request, "Last-Event-ID");
	const char *text = request->segment;
	Follower   *follower;
	char	   *end;
	long long	job;

	errno = 0;
	job = strtoll(text, &end, 10);
	if (*end != '\0' || end == text || job <= 0 || errno != 0)
	{
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "the id of a job is a number");
		return;
	}
	follower = follow_begin(stream_begin(request, stream_free), job, request->route);
	if (last == NULL || sscanf(last, "%19" SCNd64 "-%16[0-9a-f]", &follower->line, follower->hash) != 2 ||
		follower->line < 0)
	{
		follower->line = 0;
		follower->hash[0] = '\0';
	}
	stream_tick();
}

/*
 * Send the lists of these routes, and each change.
 */
void
follow_topics(Request *request, const Route *const *topics, int n)
{
	Stream	   *stream = stream_begin(request, stream_free);

	for (int i = 0; i < n; i++)
		follow_begin(stream, 0, topics[i]);
	stream_tick();
}

static void
topic_look(Follow *follow)
{
	const char *words = follow->topic->parameters != NULL ? follow->topic->parameters : "";
	Statement  *statement = &follow->statement;

	statement->n = 0;
	for (size_t length; *words != '\0'; words += length + (words[length] == ' '))
	{
		length = strcspn(words, " ");
		if (words[0] == '=')
			continue;
		follow->values[statement->n++] = strncmp(words, "hide", length) != 0 ? NULL
			: follow->principal->hide_payload ? "true" : "false";
	}
	statement->sql = follow->topic->sql;
	statement->values = follow->values;
	statement->done = topic_done;
	statement->owner = follow;
	follow->asked = true;
	follow->due = INFINITY;
	principal_use(follow->principal);
	pool_send(follow->principal, statement);
}

static void
topic_done(Statement *statement, PGresult *result, const char *why)
{
	Follow	   *follow = statement->owner;
	Principal  *principal = follow->principal;
	const char *name = strrchr(follow->topic->path, '/') + 1;
	char	   *problem = NULL;
	char	   *shown = NULL;
	const char *text;

	follow->asked = false;
	follow->due = web_now + fmax(TOPIC_PAUSE, REST * (web_now - statement->since));
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		text = PQgetvalue(result, 0, 0);

		if (principal->hide_payload)
			text = shown = shown_text(follow->topic, text);
	}
	else
	{
		name = "problem";
		text = problem = result != NULL ? problem_of(principal, result) : problem_text(MHD_HTTP_SERVICE_UNAVAILABLE, why);
	}
	if (follow->text == NULL || strcmp(follow->text, text) != 0 || problem != NULL)
		for (Follower *follower = follow->followers; follower != NULL; follower = follower->next)
			stream_event(follower->stream, NULL, name, text);
	free(follow->text);
	follow->text = problem == NULL ? copy_text(text) : NULL;
	free(problem);
	free(shown);
	follow_free(follow);
	principal_leave(principal);
}

/*
 * Read all due jobs of a principal.  Followers of a job may know different lines, after a
 * reconnect.  The statement reads the job once for each such line, and look_done() sends a row
 * to the followers that have asked for lines after the same line.
 */
static void
jobs_look(Principal *principal)
{
	JobsRead   *look = principal->look;
	PQExpBufferData ids;
	PQExpBufferData lines;
	int			n = 0;

	if (look == NULL)
		look = principal->look = allocate(sizeof(JobsRead));
	if (look->ids != NULL || web_now < look->rest_until)
		return;
	initPQExpBuffer(&ids);
	initPQExpBuffer(&lines);
	for (Follow *follow = principal->follows; follow != NULL; follow = follow->next)
	{
		if (follow->job == 0 || (web_now < follow->due && follow->changes == follow->channel->changes))
			continue;
		for (Follower *follower = follow->followers; follower != NULL; follower = follower->next)
		{
			Follower   *like = follow->followers;

			/* the first follower with this line asks for all of them */
			while (like->line != follower->line)
				like = like->next;
			follower->asked = follower->line;
			if (like != follower)
				continue;
			appendPQExpBuffer(&ids, "%c%lld", n == 0 ? '{' : ',', (long long) follow->job);
			appendPQExpBuffer(&lines, "%c%lld", n == 0 ? '{' : ',', (long long) follower->line);
			n++;
		}
		follow->due = web_now + JOB_PAUSE;
		follow->changes = follow->channel->changes;
	}
	if (n == 0)
	{
		termPQExpBuffer(&ids);
		termPQExpBuffer(&lines);
		return;
	}
	appendPQExpBufferChar(&ids, '}');
	appendPQExpBufferChar(&lines, '}');
	if (PQExpBufferDataBroken(ids) || PQExpBufferDataBroken(lines))
		fatal(EXIT_REFUSED, "out of memory");
	look->values[0] = look->ids = ids.data;
	look->values[1] = look->lines = lines.data;
	look->statement = (Statement)
	{
		.sql = look_sql,.n = 2,.values = look->values,.done = look_done,.owner = principal
	};
	principal_use(principal);
	pool_send(principal, &look->statement);
}

/*
 * Send a row of the result to the followers of its job.
 */
static void
tell(Follow *follow, const PGresult *result, int row)
{
	int64_t		asked = atoll(PQgetvalue(result, row, LOOK_ASKED));
	char		what = PQgetvalue(result, row, LOOK_WHAT)[0];
	int64_t		line = atoll(PQgetvalue(result, row, LOOK_LINE));
	bool		ended = PQgetvalue(result, row, LOOK_ENDED)[0] == 't';
	char	   *shown = follow->principal->hide_payload ? shown_text(follow->topic, PQgetvalue(result, row, LOOK_DATA)) : NULL;
	const char *data = shown != NULL ? shown : PQgetvalue(result, row, LOOK_DATA);
	char		hash[HASH_SIZE];
	char		id[HASH_SIZE + 24];

	hash_of(data, hash);
	for (Follower *follower = follow->followers; follower != NULL; follower = follower->next)
	{
		if (follower->asked != asked)
			continue;
		if (what == 'm')
			stream_event(follower->stream, NULL, "missing", "{\"detail\":\"lines may be missing here: more were written at a time than are kept\"}");
		if (what == 'l' || what == 'm')
		{
			follower->line = line;
			snprintf(id, sizeof(id), "%lld-%s", (long long) line, follower->hash[0] != '\0' ? follower->hash : "0");
			stream_event(follower->stream, id, "log", data);
			continue;
		}
		if (what == 's' && strcmp(follower->hash, hash) != 0)
		{
			snprintf(follower->hash, HASH_SIZE, "%s", hash);
			snprintf(id, sizeof(id), "%lld-%s", (long long) follower->line, hash);
			stream_event(follower->stream, id, "state", data);
		}
		if (what == 'g' || ended)
		{
			stream_event(follower->stream, NULL, what == 'g' ? "gone" : "end", data);
			stream_end(follower->stream->request);
		}
	}
	free(shown);
}

static void
look_done(Statement *statement, PGresult *result, const char *why)
{
	Principal  *principal = statement->owner;
	JobsRead   *look = principal->look;

	free(look->ids);
	free(look->lines);
	look->ids = look->lines = NULL;
	look->rest_until = web_now + fmax(0.02, REST * (web_now - statement->since));
	if (result != NULL && PQresultStatus(result) == PGRES_TUPLES_OK)
		for (int row = 0; row < PQntuples(result); row++)
		{
			int64_t		job = atoll(PQgetvalue(result, row, LOOK_ID));

			for (Follow *follow = principal->follows; follow != NULL; follow = follow->next)
				if (follow->job == job)
					tell(follow, result, row);
		}
	else
	{
		char	   *problem = result != NULL ? problem_of(principal, result)
			: problem_text(MHD_HTTP_SERVICE_UNAVAILABLE, why);

		for (Follow *follow = principal->follows; follow != NULL; follow = follow->next)
			for (Follower *follower = follow->followers; follow->job != 0 && follower != NULL; follower = follower->next)
				stream_event(follower->stream, NULL, "problem", problem);
		free(problem);
	}
	principal_leave(principal);
}

/*
 * Read all due topics and jobs, and keep the streams alive.
 */
void
stream_tick(void)
{
	for (Principal *principal = principals; principal != NULL; principal = principal->next)
	{
		if (principal->follows == NULL)
			continue;
		for (Follow *follow = principal->follows, *next; follow != NULL; follow = next)
		{
			next = follow->next;
			if (follow->job == 0 && !follow->asked && web_now >= follow->due)
				topic_look(follow);
			for (Follower *follower = follow->followers; follower != NULL; follower = follower->next)
				stream_beat(follower->stream);
		}
		jobs_look(principal);
	}
}
