/*-------------------------------------------------------------------------
 *
 * numbers.h
 *	  Statements that return numbers for charts and lists: series, rates, usage, limits and
 *	  monitors.
 *
 * The time of each statement depends on the number of slots of the statistics, of limits or
 * of recent jobs, and not on the number of jobs.
 *
 * client/web/numbers.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_NUMBERS_H
#define JOBQ_WEB_NUMBERS_H

#include "web/lists.h"

#define SECONDS(times)	"extract(epoch FROM " times ")::float8"

#define MOST_ENDED	"5000"

/*
 * Job counts of the last 60 minutes or 24 hours.  The source is the statistics, if the
 * role may see those of any queue.  Otherwise the source is the role's own jobs, limited
 * to the most recently ended jobs, so that the time of the statement is bounded.
 */
#define SERIES \
	"WITH span AS (SELECT p.step, p.unit, p.n, date_trunc(p.step, jobq_internal.clock(), 'UTC') - (p.n - 1) * p.unit AS start FROM " \
	"(SELECT CASE WHEN day THEN 'hour' ELSE 'minute' END AS step, CASE WHEN day THEN interval '1 hour' ELSE interval '1 minute' END AS unit, " \
	"CASE WHEN day THEN 24 ELSE 60 END AS n FROM (SELECT coalesce($1::text, 'hour') = 'day' AS day) AS d) AS p), " \
	"counted AS MATERIALIZED (SELECT h.* FROM span AS s, LATERAL jobq_internal.stat_series(s.step, $2, $3) AS h), " \
	"which AS MATERIALIZED (SELECT EXISTS (SELECT FROM counted) AS counted), " \
	"ends AS MATERIALIZED (SELECT j.* FROM (SELECT * FROM jobq.jobs AS a WHERE a.finished_at IS NOT NULL " \
	"AND NOT (SELECT w.counted FROM which AS w) ORDER BY a.id DESC LIMIT " MOST_ENDED ") AS j), " \
	"slots AS (SELECT h.since, h.enqueued, h.completed, h.failed, h.dead, h.cancelled, h.expired, " \
	SECONDS("h.wait_sum / nullif(h.wait_count, 0)") " AS wait_mean, " SECONDS("h.wait_max") " AS wait_max, " \
	SECONDS("h.run_sum / nullif(h.run_count, 0)") " AS run_mean, " SECONDS("h.run_max") " AS run_max FROM counted AS h " \
	"UNION ALL SELECT date_trunc(s.step, e.finished_at, 'UTC'), NULL, count(*) FILTER (WHERE e.state = 'completed'), NULL, " \
	"count(*) FILTER (WHERE e.state = 'dead'), count(*) FILTER (WHERE e.state = 'cancelled'), count(*) FILTER (WHERE e.state = 'expired'), " \
	SECONDS("avg(e.started_at - greatest(e.enqueued_at, e.run_at))") ", " SECONDS("max(e.started_at - greatest(e.enqueued_at, e.run_at))") ", " \
	SECONDS("avg(e.finished_at - e.started_at)") ", " SECONDS("max(e.finished_at - e.started_at)") " " \
	"FROM ends AS e, span AS s WHERE e.finished_at >= s.start AND ($2::text IS NULL OR e.queue = $2) AND ($3::text IS NULL OR e.kind = $3) GROUP BY 1) " \
	"SELECT json_build_object('from', s.start, 'until', s.start + s.n * s.unit, 'step_seconds', " SECONDS("s.unit") "::int4, " \
	"'source', CASE WHEN w.counted THEN 'statistics' ELSE 'jobs' END, " \
	"'partial', (SELECT count(*) = " MOST_ENDED " AND min(e.enqueued_at) > s.start FROM ends AS e), " \
	"'points', (SELECT json_agg(json_build_object('at', g.at, 'enqueued', CASE WHEN w.counted THEN coalesce(p.enqueued, 0) END, " \
	"'completed', coalesce(p.completed, 0), 'failed', CASE WHEN w.counted THEN coalesce(p.failed, 0) END, 'dead', coalesce(p.dead, 0), " \
	"'cancelled', coalesce(p.cancelled, 0), 'expired', coalesce(p.expired, 0), 'wait_mean', p.wait_mean, 'wait_max', p.wait_max, " \
	"'run_mean', p.run_mean, 'run_max', p.run_max) ORDER BY g.at) " \
	"FROM (SELECT s.start + i * s.unit AS at FROM generate_series(0, s.n - 1) AS i) AS g LEFT JOIN slots AS p ON p.since = g.at)) " \
	"FROM span AS s, which AS w"

/*
 * Causes of failures, the newest cause first, like jobq.failures.  The statement reads the
 * newest failed attempts of unfinished jobs, of finished jobs, and of dead letters that the role
 * may see, so that the time is bounded for a role that may see all.  If there may be more, "partial" is true: then the numbers are lower
 * limits, and a cause with an older dead letter is not "new".
 */
#define MOST_FAILED	"5000"
#define FAILED(view)	"(SELECT '" view "' AS source, f.* FROM jobq_internal." view " AS f LIMIT " MOST_FAILED ")"
#define FAILURES \
	"WITH failed AS MATERIALIZED (" FAILED("failed_live") " UNION ALL " FAILED("failed_finished") " UNION ALL " FAILED("failed_dead") "), " \
	"partial AS MATERIALIZED (SELECT EXISTS (SELECT FROM failed AS f GROUP BY f.source HAVING count(*) = " MOST_FAILED ") AS partial), " \
	"hour AS MATERIALIZED (SELECT t.now - interval '1 hour' AS begun, t.now FROM (SELECT jobq_internal.clock() AS now) AS t), " \
	"causes AS MATERIALIZED (SELECT g.fingerprint, g.queue, array_agg(DISTINCT g.kind ORDER BY g.kind) AS kinds, array_agg(DISTINCT g.role) AS roles, " \
	"min(g.first_seen) AS first_seen, max(g.last_seen) AS last_seen, sum(g.failed)::int8 AS failed, sum(g.failed_last_hour)::int8 AS failed_last_hour, " \
	"sum(g.dead)::int8 AS dead_letters, (max(g.newest))[2] AS job_id FROM (SELECT f.fingerprint, f.queue, f.kind, f.role, min(f.at) AS first_seen, " \
	"max(f.at) AS last_seen, count(*) AS failed, count(*) FILTER (WHERE f.at > h.begun AND f.at <= h.now) AS failed_last_hour, " \
	"count(*) FILTER (WHERE f.dead) AS dead, max(ARRAY[(date_part('epoch', f.at) * 1000000)::int8, f.id]) AS newest FROM failed AS f, hour AS h " \
	"WHERE ($1::text IS NULL OR f.queue = $1) GROUP BY f.fingerprint, f.queue, f.kind, f.role) AS g GROUP BY g.fingerprint, g.queue " \
	"HAVING $2::text IS NULL OR $2 = ANY (array_agg(g.kind)) ORDER BY first_seen DESC, fingerprint LIMIT 200) " \
	"SELECT json_build_object('partial', (SELECT p.partial FROM partial AS p), 'items', (SELECT coalesce(json_agg(t), '[]') FROM (" \
	"SELECT c.fingerprint, c.queue, c.kinds, c.roles, e.error ->> 'sqlstate' AS sqlstate, e.error ->> 'message' AS message, " \
	"c.first_seen, c.last_seen, c.failed, c.failed_last_hour, c.dead_letters, c.job_id, " \
	"c.first_seen > h.begun AND c.first_seen <= h.now AND NOT (p.partial AND EXISTS (SELECT FROM jobq.dead_letters AS d " \
	"WHERE d.fingerprint = c.fingerprint AND d.finished_at <= h.begun AND d.queue IS NOT DISTINCT FROM c.queue)) AS new " \
	"FROM hour AS h, partial AS p, causes AS c LEFT JOIN LATERAL (SELECT a.error FROM jobq_internal.failed_jobs AS j, " \
	"jsonb_array_elements(j.errors) WITH ORDINALITY AS a (error, n) WHERE j.id = c.job_id AND (a.error ->> 'fingerprint')::int8 = c.fingerprint " \
	"ORDER BY a.n DESC LIMIT 1) AS e ON true ORDER BY c.first_seen DESC, c.fingerprint) AS t))"

/* Rows of a list: the most active ones. */
#define MOST_NAMES	"500"

/*
 * The numbers of the last 60 minutes by queue, kind or tenant, for the charts in the rows of
 * a list.  The last minute has not ended.
 */
#define RATES \
	"SELECT json_build_object('at', date_trunc('minute', jobq_internal.clock(), 'UTC'), 'items', coalesce(json_agg(t), '[]')) FROM (" \
	"SELECT r.name, r.enqueued, r.completed, r.failed, r.wait_p95 FROM jobq_internal.stat_rates(coalesce($1::text, 'queue')) AS r " \
	"ORDER BY (SELECT sum(n) FROM unnest(r.enqueued || r.completed || r.failed) AS n) DESC, r.name LIMIT " MOST_NAMES ") AS t"

/*
 * Jobs and resources by tenant, kind or queue, since the counters began.
 */
#define USAGE \
	"SELECT json_build_object('items', coalesce(json_agg(t), '[]')) FROM (" \
	"SELECT u.name, sum(u.ready) AS ready, sum(u.running) AS running, sum(u.scheduled) AS scheduled, sum(u.dead_letters) AS dead_letters, " \
	"sum(u.enqueued) AS enqueued, sum(u.completed) AS completed, sum(u.failed) AS failed, sum(u.run_count) AS runs, " \
	SECONDS("sum(u.run_sum)") " AS run_seconds, " SECONDS("sum(u.cpu)") " AS cpu_seconds, sum(u.buffers) AS buffers, sum(u.buffers_read) AS buffers_read, " \
	"sum(u.wal_bytes) AS wal_bytes, sum(u.temp_bytes) AS temp_bytes, min(u.since) AS since FROM " \
	"(SELECT s.*, CASE coalesce($1::text, 'tenant') WHEN 'tenant' THEN s.tenant WHEN 'kind' THEN s.kind ELSE s.queue END AS name FROM jobq.stats AS s) AS u " \
	"GROUP BY u.name ORDER BY sum(u.cpu) DESC NULLS LAST, sum(u.enqueued) DESC, u.name LIMIT " MOST_NAMES ") AS t"

/* Limits that are set, the most used first.  The keys of limiters are left out: the view reads jobs for them. */
#define LIMITS \
	"SELECT l.type, coalesce(l.queue, l.kind, l.limiter) AS name, l.max_running, l.running, l.rate, l.tokens, l.throttle, l.failed, l.rest_until, l.by, l.cost, l.when_taken " \
	"FROM jobq.limits AS l WHERE l.type IN ('queue', 'kind', 'limiter') AND (l.type = 'limiter' OR nullif(l.max_running, 0) IS NOT NULL OR l.rate IS NOT NULL OR l.throttle IS NOT NULL) " \
	"ORDER BY l.rest_until > jobq_internal.clock() DESC NULLS LAST, l.running / nullif(l.max_running, 0)::float8 DESC NULLS LAST, l.type, 2 LIMIT " MOST_NAMES

/* The last jobs of each schedule, the newest first, among the newest jobs of the database. */
#define RUNS_OF_ALL \
	"SELECT r.schedule, json_agg(json_build_object('id', r.id, 'state', r.state, 'at', r.enqueued_at, " \
	"'seconds', " SECONDS("r.finished_at - r.started_at") ") ORDER BY r.id DESC) AS runs FROM (" \
	"SELECT j.headers ->> 'schedule' AS schedule, j.id, j.state, j.enqueued_at, j.started_at, j.finished_at, " \
	"row_number() OVER (PARTITION BY j.headers ->> 'schedule' ORDER BY j.id DESC) AS n " \
	"FROM (SELECT * FROM jobq.jobs AS a ORDER BY a.id DESC LIMIT " MOST_LOOKED_AT ") AS j WHERE j.headers ? 'schedule') AS r " \
	"WHERE r.n <= 30 GROUP BY r.schedule ORDER BY r.schedule LIMIT " MOST_NAMES

#define PUT_MONITOR \
	"SELECT json_build_object('done', jobq.create_monitor($2::text, f.condition, f.above, f.queue, f.kind, f.until)::text IS NOT NULL) " \
	"FROM jsonb_to_record($1::jsonb) AS f(condition text, above float8, until float8, queue text, kind text)"

#endif							/* JOBQ_WEB_NUMBERS_H */
