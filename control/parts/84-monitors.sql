-- Monitors: conditions of which somebody is told when they begin, and when they end.

CREATE TABLE jobq_internal.monitor (
	name text COLLATE "C" CONSTRAINT monitor_pkey PRIMARY KEY,
	condition text COLLATE "C" NOT NULL,
	queue text COLLATE "C",
	kind text COLLATE "C",
	above float8 NOT NULL,
	until float8 NOT NULL,
	made_at timestamptz NOT NULL,
	since timestamptz,
	ended_at timestamptz,
	heard timestamptz
);
COMMENT ON TABLE jobq_internal.monitor IS 'conditions that the scheduler looks at';
COMMENT ON COLUMN jobq_internal.monitor.name IS 'the name of the monitor';
COMMENT ON COLUMN jobq_internal.monitor.condition IS 'what is measured; see create_monitor()';
COMMENT ON COLUMN jobq_internal.monitor.queue IS 'only this queue''s jobs';
COMMENT ON COLUMN jobq_internal.monitor.kind IS 'only jobs of this kind';
COMMENT ON COLUMN jobq_internal.monitor.made_at IS 'when it was made, or got another condition, queue or kind';
COMMENT ON COLUMN jobq_internal.monitor.ended_at IS 'when it ended last';
COMMENT ON COLUMN jobq_internal.monitor.heard IS 'silent: when a job was completed last, as far as it was looked at; null: none is known';
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.monitor', '');

-- What is measured, for each queue and kind, and for all (null), as far as the user may
-- see it.  Each source is read once, however many monitors there are, and only for the
-- conditions that are asked for.  No jobs are counted: most is in the statistics, and the
-- oldest jobs are looked for among the first ones of queues that have any.
CREATE FUNCTION jobq_internal.measures(conditions text[], OUT condition text, OUT queue text, OUT kind text, OUT value float8)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
	WITH lanes AS MATERIALIZED (
		SELECT l.queue, bool_and(l.served AND l.attended) AS attended
		FROM jobq_internal.lane_slots() l
		WHERE NOT l.paused AND conditions && '{oldest,unattended}'
		GROUP BY l.queue),
	-- a job of which a lane knows may be gone
	waits AS MATERIALIZED (
		SELECT q.name AS queue, l.attended, extract(epoch FROM jobq.clock() - q.oldest_ready) AS seconds
		FROM jobq.queues q JOIN lanes l ON l.queue = q.name
		WHERE q.name = ANY (ARRAY(SELECT n.queue FROM lanes n)) AND q.oldest_ready IS NOT NULL)
	SELECT m.condition, s.queue, s.kind, m.value
	FROM (
		SELECT v.queue, v.kind, sum(v.waiting) AS waiting, sum(v.letters) AS letters,
			coalesce(sum(v.failed_5m) / nullif(sum(v.failed_5m + v.completed_5m), 0), 0) AS failing,
			extract(epoch FROM jobq.clock() - max(v.completed_at)) AS silent,
			-- what takes no second is never slow, nor what nobody knows yet
			coalesce(max(extract(epoch FROM jobq.clock() - v.running_since) / greatest(extract(epoch FROM v.run_p99), 1))
				FILTER (WHERE v.run_count > 0), 0) AS slow
		FROM jobq.stats v
		WHERE conditions && '{waiting,dead,failing,silent,slow}'
		GROUP BY CUBE (v.queue, v.kind)) s,
		LATERAL (VALUES ('waiting', s.waiting), ('dead', s.letters), ('failing', s.failing),
			('silent', s.silent), ('slow', s.slow)) m (condition, value)
	WHERE m.condition = ANY (conditions)
	UNION ALL
	SELECT m.condition, w.queue, NULL, m.value
	FROM (SELECT v.queue, max(v.seconds) AS oldest, max(v.seconds) FILTER (WHERE NOT v.attended) AS unattended
		FROM waits v GROUP BY ROLLUP (v.queue)) w,
		LATERAL (VALUES ('oldest', w.oldest), ('unattended', w.unattended)) m (condition, value)
	WHERE m.condition = ANY (conditions)
	UNION ALL
	SELECT 'late', NULL, c.kind, max(extract(epoch FROM jobq.clock() - c.next_run))
	FROM jobq.schedules c
	WHERE 'late' = ANY (conditions) AND c.state IN ('active', 'failing') AND isfinite(c.next_run)
	GROUP BY ROLLUP (c.kind)
	UNION ALL
	SELECT 'xmin', NULL, w.kind, max(extract(epoch FROM clock_timestamp() - a.xact_start))
	FROM jobq_internal.worker_slots() w, LATERAL pg_stat_get_activity(w.pid) a
	WHERE 'xmin' = ANY (conditions) AND w.job_id IS NOT NULL AND a.backend_xmin IS NOT NULL
	GROUP BY ROLLUP (w.kind)
$$;
COMMENT ON FUNCTION jobq_internal.measures(text[]) IS 'what these conditions measure, now';

-- Null: it is not known now, so nothing begins or ends.
--
-- A kind that seldom has jobs gives up its place in the statistics to others.  What they
-- have completed since says nothing about it: so the monitor itself knows when it has
-- heard of it last.
CREATE VIEW jobq_internal.measured WITH (security_barrier) AS
	WITH v AS MATERIALIZED (
		SELECT s.* FROM jobq_internal.measures(ARRAY(SELECT DISTINCT m.condition FROM jobq_internal.monitor m)) s)
	SELECT m.*,
		CASE WHEN m.condition = 'silent' THEN jobq.clock() - s.value * interval '1 second' END AS completed_at,
		CASE WHEN m.condition IN ('waiting', 'dead') AND NOT k.known THEN NULL
			WHEN m.condition = 'silent' THEN greatest(coalesce(least(s.value, extract(epoch FROM jobq.clock() - m.heard)),
				extract(epoch FROM jobq.clock() - m.made_at)), 0)
			-- who may not look into other sessions does not see when a transaction began
			WHEN m.condition = 'xmin' AND NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN NULL
			ELSE greatest(s.value, 0) END AS value
	FROM jobq_internal.monitor m
	CROSS JOIN (SELECT jobq_internal.stats_known() AS known) k
	LEFT JOIN v s ON s.condition = m.condition AND coalesce(s.queue, '') = coalesce(m.queue, '') AND coalesce(s.kind, '') = coalesce(m.kind, '');
COMMENT ON VIEW jobq_internal.measured IS 'monitors, and what they measure';

-- Who changes a monitor keeps only that one from being looked at; what was measured of the
-- one before says nothing about it.  Everybody can listen: so what is told is only which
-- one it is.
--
-- A kind of which a job is completed every second would have the row written at each look:
-- so what is heard is written if it is newer by a twentieth of what would be too long, or
-- by some seconds.
-- That matters only once the kind has no place of its own.  Nothing was heard later than
-- now, should the clock have been put back.
CREATE FUNCTION jobq_internal.check_monitors(OUT name text, OUT began boolean, OUT condition text, OUT queue text, OUT kind text,
	OUT value float8, OUT above float8, OUT until float8, OUT since timestamptz, OUT told text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
	WITH looked AS MATERIALIZED (
		SELECT l.name, l.made_at, l.value, l.completed_at FROM jobq_internal.measured l),
	mine AS MATERIALIZED (
		SELECT m.name, m.since, l.value, t.turns, least(greatest(l.completed_at, m.heard), jobq.clock()) AS heard
		FROM jobq_internal.monitor m JOIN looked l USING (name, made_at),
			LATERAL (SELECT CASE WHEN m.since IS NULL THEN l.value > m.above ELSE l.value <= m.until END IS TRUE AS turns) t
		WHERE t.turns OR m.heard > jobq.clock() OR m.heard IS NULL AND l.completed_at IS NOT NULL
			OR extract(epoch FROM l.completed_at - m.heard) > greatest(m.above / 20, 15)
		FOR UPDATE OF m SKIP LOCKED),
	changed AS (
		UPDATE jobq_internal.monitor m SET since = CASE WHEN NOT mine.turns THEN m.since WHEN m.since IS NULL THEN jobq.clock() END,
			ended_at = CASE WHEN NOT mine.turns OR m.since IS NULL THEN m.ended_at ELSE jobq.clock() END,
			heard = mine.heard
		FROM mine WHERE m.name = mine.name
		RETURNING m.name, mine.since IS NULL AS began, m.condition, m.queue, m.kind, mine.value, m.above, m.until,
			coalesce(m.since, mine.since) AS since, mine.turns)
	SELECT c.name, c.began, c.condition, c.queue, c.kind, c.value, c.above, c.until, c.since,
		jobq.notify('jobq_alert', json_build_object('name', c.name, 'event', CASE WHEN c.began THEN 'begin' ELSE 'end' END)::text)::text
	FROM changed c
	WHERE c.turns
$$;
COMMENT ON FUNCTION jobq_internal.check_monitors() IS 'tell who listens of what has begun or ended, and return it; for the scheduler, which raises the events';

CREATE FUNCTION jobq.create_monitor(name text, condition text, above float8, queue text DEFAULT NULL, kind text DEFAULT NULL, until float8 DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_create_monitor' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_monitor(text, text, float8, text, text, float8) IS 'have NOTIFY jobq_alert tell when something begins, and when it ends; changes the monitor if there is one of that name
name: the name of the monitor
condition: what is measured: waiting, oldest, failing, silent, slow, dead, late, unattended or xmin
above: it begins when there is more than this
queue: only in this queue, whether it is there or not; not for late and xmin
kind: only of this kind; not for oldest and unattended
until: it ends when there is no more than this, which is less than above where it should not begin and end all the time; null: above';

CREATE FUNCTION jobq.drop_monitor(name text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_monitor' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_monitor(text) IS 'drop a monitor; nobody is told
name: the monitor';

CREATE VIEW jobq.monitors WITH (security_barrier) AS
	SELECT m.name, m.condition, m.queue, m.kind, m.above, m.until, m.value, m.since, m.ended_at
	FROM jobq_internal.measured m
	WHERE jobq_internal.may_see((SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'), 0);
COMMENT ON VIEW jobq.monitors IS 'monitors, and since when they are on';
