/*-------------------------------------------------------------------------
 *
 * jobs.c
 *	  Lists of jobs: GET /api/jobs, and the same list as a file.
 *
 * Without "order" the list has the newest jobs first, and a page examines a limited number
 * of rows.
 *
 * Live jobs in the order of run_at: the index job_ready has the jobs of each lane in this
 * order.  The statement finds the lanes one by one, takes the first jobs of each, and merges
 * them.  A page examines a limited number of lanes and rows.
 *
 * Running jobs are few, and are sorted.  There is no index for any other order.  The statement
 * sorts only the newest jobs, and sets "partial" in the answer if there are more.
 *
 * The conditions "from" and "until" are about the time by which the list is ordered.
 *
 * client/web/jobs.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/lists.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Conditions on all jobs "j" except those on times and ids.  The parameters have the order
 * of the route's arguments.
 */
#define CONDITIONS \
	"($1::text IS NULL OR j.state = $1) AND ($2::text IS NULL OR j.queue = $2) AND ($3::text IS NULL OR j.kind = $3) " \
	"AND ($4::text IS NULL OR j.unique_key = $4) AND ($5::text IS NULL OR j.group_key = $5) AND ($7::text IS NULL OR j.role::text = $7) AND ($13::text IS NULL OR j.tenant = $13) " \
	"AND ($8::text IS NULL OR j.headers ->> split_part($8, '=', 1) = substr($8, strpos($8, '=') + 1)) " \
	"AND ($15::text IS NULL OR $15 = ANY (j.tags)) AND ($16::text IS NULL OR j.error LIKE $16) " \
	"AND ($17::int8 IS NULL OR (j.errors -> -1 ->> 'fingerprint')::int8 = $17) AND ($18::jsonb IS NULL OR j.payload @> $18) "
#define BETWEEN(time) \
	"AND ($9::timestamptz IS NULL OR j." time " >= $9) AND ($10::timestamptz IS NULL OR j." time " < $10)"

/* Jobs of the view, with the conditions that use an index. */
#define ROWS(view) \
	"SELECT * FROM jobq." view " AND ($6::int8 IS NULL OR j.batch_id = $6) AND ($14::int8 IS NULL OR j.id = $14)"

/* Newest first.  The view is read from the newest job on. */
#define NEWEST(view) \
	PAGE(JOB_LINE, ROWS(view) " AND ($11::int8 IS NULL OR j.id < $11)", CONDITIONS BETWEEN("enqueued_at"), 12)

/*
 * In the order of a time: formats for append_ordered().  "next" contains the time and the id of the last job, so that
 * paging works after the job has gone.
 */
#define PLACE(time)		"(extract(epoch FROM " time ") * 1000000)::int8"
#define AFTER(row) \
	"($11::text IS NULL OR (" PLACE(row ".%1$s") ", " row ".id) %2$s (split_part($11, '-', 1)::int8, split_part($11, '-', 2)::int8))"
#define ORDERED(view) \
	"WITH found AS MATERIALIZED (SELECT " JOB_LINE " FROM (" ROWS(view) ") AS j WHERE " CONDITIONS BETWEEN("%1$s") \
	" AND j.%1$s IS NOT NULL AND " AFTER("j") " ORDER BY j.%1$s %3$s, j.id %3$s LIMIT " LIMIT(12) ") " \
	"SELECT json_build_object('items', (SELECT coalesce(json_agg(t), '[]') FROM found AS t), " \
	"'next', (SELECT (array_agg(" PLACE("f.%1$s") " || '-' || f.id))[" LIMIT(12) "] FROM found AS f))"

/*
 * The newest jobs of the view, which the statement sorts.  The statement sorts ids, and computes
 * the columns of the jobs on the page only.  Dead letters are looked up one by one, in each part of
 * the archive, so that fewer are sorted.
 */
#define MOST_SORTED		"10000"
#define MOST_DEAD		"3000"
#define WINDOWED(view, most) \
	"WITH newest AS MATERIALIZED (SELECT j.id, j.%1$s, (" CONDITIONS BETWEEN("%1$s") ") AS wanted FROM (" ROWS(view) " ORDER BY j.id DESC LIMIT " most ") AS j), " \
	"chosen AS MATERIALIZED (SELECT n.id, n.%1$s FROM newest AS n WHERE n.wanted AND n.%1$s IS NOT NULL AND " AFTER("n") \
	" ORDER BY n.%1$s %3$s, n.id %3$s LIMIT " LIMIT(12) "), " \
	"found AS MATERIALIZED (SELECT " JOB_LINE " FROM chosen AS k, LATERAL (" JOB("k.id") ") AS j) " \
	"SELECT json_build_object('items', (SELECT coalesce(json_agg(t), '[]') FROM found AS t), " \
	"'next', (SELECT (array_agg(" PLACE("k.%1$s") " || '-' || k.id))[" LIMIT(12) "] FROM chosen AS k), " \
	"'partial', (SELECT count(*) FROM newest) = " most ")"

/*
 * Live jobs by run_at: formats for append_ordered().  A lane is a prefix of the index.  The first
 * n jobs of all lanes are in the n lanes whose first jobs come first, and among the first n jobs
 * of each of these lanes.  Without the conditions on run_at, each page of scheduled jobs would begin
 * with all ready jobs.
 */
#define MOST_LANES		"1000"
#define MOST_MERGED		"100"
#define LANE(o)			o ".queue_id, " o ".priority, " o ".run_as, " o ".flow"
#define OF_LANE(view, n) \
	"SELECT o.run_at, o.id FROM jobq_internal." view " AS o " \
	"WHERE o.queue_id = l.queue_id AND o.priority = l.priority AND o.run_as = l.run_as AND o.flow = l.flow " \
	"AND o.run_at < '9999-01-01 00:00:00+00' AND ($1::text IS DISTINCT FROM 'scheduled' OR o.run_at > (SELECT jobq_internal.clock())) " \
	"AND ($1::text IS DISTINCT FROM 'ready' OR o.run_at <= (SELECT jobq_internal.clock())) " \
	"AND ($9::timestamptz IS NULL OR o.run_at >= $9) AND ($10::timestamptz IS NULL OR o.run_at < $10) " \
	"AND ($11::text IS NULL OR (o.run_at, o.id) %2$s ('epoch'::timestamptz + split_part($11, '-', 1)::int8 * interval '1 us', split_part($11, '-', 2)::int8)) " \
	"ORDER BY o.%1$s %3$s, o.id %3$s LIMIT " n
#define BY_RUN_AT(view) \
	"WITH RECURSIVE lane AS ((SELECT " LANE("o") ", o.queue FROM jobq_internal.run_order AS o ORDER BY " LANE("o") " LIMIT 1) " \
	"UNION ALL SELECT n.* FROM lane AS l, LATERAL (SELECT " LANE("o") ", o.queue FROM jobq_internal.run_order AS o " \
	"WHERE (" LANE("o") ") > (" LANE("l") ") ORDER BY " LANE("o") " LIMIT 1) AS n), " \
	"lanes AS MATERIALIZED (SELECT * FROM lane AS l LIMIT " MOST_LANES "), " \
	"first AS MATERIALIZED (SELECT " LANE("l") " FROM lanes AS l, LATERAL (" OF_LANE(view, "1") ") AS c " \
	"WHERE $2::text IS NULL OR l.queue = $2 ORDER BY c.run_at %3$s, c.id %3$s LIMIT " MOST_MERGED "), " \
	"looked AS MATERIALIZED (SELECT c.run_at, c.id FROM first AS l, LATERAL (" OF_LANE(view, MOST_MERGED) ") AS c " \
	"ORDER BY c.run_at %3$s, c.id %3$s LIMIT " MOST_MERGED "), " \
	"found AS MATERIALIZED (SELECT " JOB_LINE " FROM looked AS k, LATERAL (SELECT * FROM jobq.live_jobs AS x WHERE x.id = k.id OFFSET 0) AS j " \
	"WHERE ($6::int8 IS NULL OR j.batch_id = $6) AND ($14::int8 IS NULL OR j.id = $14) AND " CONDITIONS "LIMIT " LIMIT(12) ") " \
	"SELECT json_build_object('items', (SELECT coalesce(json_agg(t), '[]') FROM found AS t), " \
	"'next', CASE WHEN (SELECT count(*) FROM found) = " LIMIT(12) " THEN (SELECT (array_agg(" PLACE("f.run_at") " || '-' || f.id))[" LIMIT(12) "] FROM found AS f) " \
	"WHEN (SELECT count(*) FROM looked) = " MOST_MERGED " THEN (SELECT (array_agg(" PLACE("k.run_at") " || '-' || k.id))[" MOST_MERGED "] FROM looked AS k) END, " \
	"'partial', (SELECT count(*) FROM lanes) = " MOST_LANES ")"

#define ALL_JOBS		"jobs AS j WHERE true"
#define LIVE_JOBS		"live_jobs AS j WHERE true"
#define FINISHED_JOBS	"jobs AS j WHERE j.finished_at IS NOT NULL"
#define DEAD_JOBS		"jobs AS j WHERE j.id = ANY (ARRAY(SELECT d.id FROM jobq.dead_letters AS d LIMIT " MOST_DEAD "))"
#define RUNNING_JOBS \
	"live_jobs AS j WHERE j.id = ANY (ARRAY(SELECT w.job_id FROM jobq.workers AS w WHERE w.job_id IS NOT NULL " \
	"UNION ALL SELECT l.job_id FROM jobq_internal.lease_slots() AS l))"

const char	jobs_sql[] = NEWEST(ALL_JOBS);

static const struct
{
	const char *states;
	const char *newest;
	const char *ordered;
	const char *by_run_at[2];	/* ascending and descending; or NULL */
}			lists[] = {
	{" running ", NEWEST(RUNNING_JOBS), ORDERED(RUNNING_JOBS), {NULL, NULL}},
	{" ready scheduled suspended retryable blocked ", NEWEST(LIVE_JOBS), WINDOWED(LIVE_JOBS, MOST_SORTED), {BY_RUN_AT("run_order"), BY_RUN_AT("run_order_down")}},
	{" dead ", NEWEST(FINISHED_JOBS), WINDOWED(DEAD_JOBS, MOST_DEAD), {NULL, NULL}},
	{" completed cancelled expired ", NEWEST(FINISHED_JOBS), WINDOWED(FINISHED_JOBS, MOST_SORTED), {NULL, NULL}},
	{"", jobs_sql, WINDOWED(ALL_JOBS, MOST_SORTED), {NULL, NULL}},
};

/*
 * Append the statement for jobs in this order, which is the name of a time, with a minus for
 * the latest first.
 */
static void
append_ordered(PQExpBuffer sql, const char *format, const char *order)
{
	bool		down = order[0] == '-';
	const char *time = order + down;

	appendPQExpBuffer(sql, format, time, down ? "<" : ">", down ? "DESC" : "ASC");
}

/*
 * GET /api/jobs, GET /api/jobs/export
 *
 * The statement is chosen by the arguments "state" and "order", which are checked again
 * with the others.
 */
void
run_jobs(Request *request)
{
	const char *state = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "state");
	const char *order = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "order");
	char		word[32];
	int			i = 0;
	PQExpBufferData sql;

	snprintf(word, sizeof(word), " %s ", state != NULL ? state : "");
	while (lists[i].states[0] != '\0' && strstr(lists[i].states, word) == NULL)
		i++;
	initPQExpBuffer(&sql);
	if (order == NULL || order[0] == '\0')
		appendPQExpBufferStr(&sql, lists[i].newest);
	else if (lists[i].by_run_at[0] != NULL && (strcmp(order, "run_at") == 0 || strcmp(order, "-run_at") == 0))
		append_ordered(&sql, lists[i].by_run_at[order[0] == '-'], order);
	else if (strstr(" " JOB_ORDERS " ", order) != NULL)
		append_ordered(&sql, lists[i].ordered, order);
	if (PQExpBufferDataBroken(sql))
		fatal(EXIT_REFUSED, "out of memory");
	if (sql.len > 0)
		request->sql = sql.data;
	else
		termPQExpBuffer(&sql);
	statement_begin(request);
}

/* The columns of an exported job. */
static const char *const columns[] = {
	"id", "state", "kind", "queue", "priority", "role", "tenant", "tags", "attempt", "max_attempts", "progress", "message",
	"enqueued_at", "run_at", "started_at", "finished_at", "error", "group_key", "unique_key", "batch_id"
};

#define NCOLUMNS	(sizeof(columns) / sizeof(columns[0]))

/* The only number with a fraction is the progress, a float4: 33.3 stays 33.3. */
#define FLOAT_DIGITS	JSON_REAL_PRECISION(9)

/*
 * Append a text as a value of CSV (RFC 4180).  A spreadsheet would run a text that begins
 * like a formula, so such a text gets an apostrophe in front.
 */
static void
append_csv_text(PQExpBuffer csv, const char *text)
{
	appendPQExpBufferStr(csv, text[0] != '\0' && strchr("=+-@\t\r", text[0]) != NULL ? "\"'" : "\"");
	for (; *text != '\0'; text++)
	{
		if (*text == '"')
			appendPQExpBufferChar(csv, '"');
		appendPQExpBufferChar(csv, *text);
	}
	appendPQExpBufferChar(csv, '"');
}

/*
 * Append a line with this job.
 */
static void
append_csv_job(PQExpBuffer csv, const json_t *job)
{
	for (size_t i = 0; i < NCOLUMNS; i++)
	{
		const json_t *value = json_object_get(job, columns[i]);
		char	   *text;

		if (i > 0)
			appendPQExpBufferChar(csv, ',');
		if (value == NULL || json_is_null(value))
			continue;
		if (json_is_string(value))
			append_csv_text(csv, json_string_value(value));
		else
		{
			text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | FLOAT_DIGITS);

			if (text == NULL)
				fatal(EXIT_REFUSED, "out of memory");
			if (json_is_number(value))
				appendPQExpBufferStr(csv, text);
			else
				append_csv_text(csv, text);
			free(text);
		}
	}
	appendPQExpBufferStr(csv, "\r\n");
}

/*
 * Write jobs as CSV.  Only the first page has a line with the names of the columns, so that
 * pages can be joined.
 */
static void
write_csv(PQExpBuffer csv, const json_t *items, bool first)
{
	for (size_t i = 0; first && i < NCOLUMNS; i++)
		appendPQExpBuffer(csv, "%s%s", columns[i], i + 1 < NCOLUMNS ? "," : "\r\n");
	for (size_t i = 0; i < json_array_size(items); i++)
		append_csv_job(csv, json_array_get(items, i));
}

/*
 * Answer with a file of jobs.  The header Jobq-Next has the argument "before" of the next
 * page, if there is one.
 */
void
answer_export(Request *request, PGresult *result)
{
	const char *format = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "format");
	const char *before = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "before");
	bool		as_csv = format != NULL && strcmp(format, "csv") == 0;
	char	   *shown = request->principal->hide_payload ? shown_text(request->route, PQgetvalue(result, 0, 0)) : NULL;
	json_t	   *page = json_loads(shown != NULL ? shown : PQgetvalue(result, 0, 0), 0, NULL);
	json_t	   *items = json_object_get(page, "items");
	const json_t *next = json_object_get(page, "next");
	PQExpBufferData text;
	char		place[64] = "";

	free(shown);
	if (!json_is_array(items))
	{
		/* the database has another encoding than UTF-8 */
		json_decref(page);
		answer_problem(request, MHD_HTTP_INTERNAL_SERVER_ERROR, "the jobs cannot be written as a file: their text is not UTF-8");
		return;
	}
	if (json_is_integer(next))
		snprintf(place, sizeof(place), "%lld", (long long) json_integer_value(next));
	else if (json_is_string(next))
		snprintf(place, sizeof(place), "%s", json_string_value(next));
	initPQExpBuffer(&text);
	if (as_csv)
		write_csv(&text, items, before == NULL || before[0] == '\0');
	else
	{
		char	   *json = json_dumps(items, JSON_COMPACT | FLOAT_DIGITS);

		if (json == NULL)
			fatal(EXIT_REFUSED, "out of memory");
		appendPQExpBufferStr(&text, json);
		free(json);
	}
	json_decref(page);
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	answer(request, MHD_HTTP_OK, as_csv ? "text/csv; charset=utf-8" : "application/json", text.data, text.len);
	termPQExpBuffer(&text);
	if (request->status != MHD_HTTP_OK)
		return;
	answer_header(request, MHD_HTTP_HEADER_CONTENT_DISPOSITION, as_csv ? "attachment; filename=\"jobs.csv\"" : "attachment; filename=\"jobs.json\"");
	if (place[0] != '\0')
		answer_header(request, "Jobq-Next", place);
}
