-- Monitors: conditions with a notification at the beginning and at the end.

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
COMMENT ON TABLE jobq_internal.monitor IS 'conditions that the scheduler evaluates';
COMMENT ON COLUMN jobq_internal.monitor.name IS 'the name of the monitor';
COMMENT ON COLUMN jobq_internal.monitor.condition IS 'the measured condition; see create_monitor()';
COMMENT ON COLUMN jobq_internal.monitor.queue IS 'only jobs of this queue';
COMMENT ON COLUMN jobq_internal.monitor.kind IS 'only jobs of this kind';
COMMENT ON COLUMN jobq_internal.monitor.made_at IS 'when the monitor was created, or got another condition, queue or kind';
COMMENT ON COLUMN jobq_internal.monitor.ended_at IS 'the last end of the condition';
COMMENT ON COLUMN jobq_internal.monitor.heard IS 'for silent: the last known completion of a job; null: unknown';
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.monitor', '');

-- The values for each queue and kind, and for all (null), as far as visible to the user.
-- Each source is read once for all monitors, and only for the requested conditions.  No
-- jobs are counted: most values come from the statistics, and the oldest job is searched
-- among the first jobs of queues with jobs.  Only "new" reads the errors of all stored jobs.
CREATE FUNCTION jobq_internal.measures(conditions text[], OUT condition text, OUT queue text, OUT kind text, OUT value float8)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
	WITH lanes AS MATERIALIZED (
		SELECT l.queue, bool_and(l.served AND l.attended) AS attended
		FROM jobq_internal.lane_slots() l
		WHERE NOT l.paused AND conditions && '{oldest,unattended}'
		GROUP BY l.queue),
	-- the first job of a lane may already be gone
	waits AS MATERIALIZED (
		SELECT q.name AS queue, l.attended, extract(epoch FROM jobq_internal.clock() - q.oldest_ready) AS seconds
		FROM jobq.queues q JOIN lanes l ON l.queue = q.name
		WHERE q.name = ANY (ARRAY(SELECT n.queue FROM lanes n)) AND q.oldest_ready IS NOT NULL)
	SELECT m.condition, s.queue, s.kind, m.value
	FROM (
		SELECT v.queue, v.kind, sum(v.ready) AS ready, sum(v.dead_letters) AS dead_letters,
			coalesce(sum(v.failed_5m) / nullif(sum(v.failed_5m + v.completed_5m), 0), 0) AS failing,
			extract(epoch FROM jobq_internal.clock() - max(v.completed_at)) AS silent,
			-- a p99 below a second counts as a second; kinds without finished runs are not slow
			coalesce(max(extract(epoch FROM jobq_internal.clock() - v.running_since) / greatest(extract(epoch FROM v.run_p99), 1))
				FILTER (WHERE v.run_count > 0), 0) AS slow
		FROM jobq.stats v
		WHERE conditions && '{ready,dead,failing,silent,slow}'
		GROUP BY CUBE (v.queue, v.kind)) s,
		LATERAL (VALUES ('ready', s.ready), ('dead', s.dead_letters), ('failing', s.failing),
			('silent', s.silent), ('slow', s.slow)) m (condition, value)
	WHERE m.condition = ANY (conditions)
	UNION ALL
	-- causes in queues that were dropped count in the totals only
	SELECT 'new', f.queue, k.kind, count(DISTINCT f.fingerprint)
	FROM jobq_internal.failure_causes f, unnest(f.kinds) k (kind)
	WHERE 'new' = ANY (conditions) AND f.first_seen > jobq_internal.clock() - interval '1 hour' AND f.first_seen <= jobq_internal.clock()
	GROUP BY CUBE (f.queue, k.kind)
	HAVING f.queue IS NOT NULL OR grouping(f.queue) = 1
	UNION ALL
	SELECT m.condition, w.queue, NULL, m.value
	FROM (SELECT v.queue, max(v.seconds) AS oldest, max(v.seconds) FILTER (WHERE NOT v.attended) AS unattended
		FROM waits v GROUP BY ROLLUP (v.queue)) w,
		LATERAL (VALUES ('oldest', w.oldest), ('unattended', w.unattended)) m (condition, value)
	WHERE m.condition = ANY (conditions)
	UNION ALL
	SELECT 'late', NULL, c.kind, max(extract(epoch FROM jobq_internal.clock() - c.next_tick))
	FROM jobq.schedules c
	WHERE 'late' = ANY (conditions) AND c.state IN ('active', 'failing') AND isfinite(c.next_tick)
	GROUP BY ROLLUP (c.kind)
	UNION ALL
	SELECT 'xmin', NULL, w.kind, max(extract(epoch FROM clock_timestamp() - a.xact_start))
	FROM jobq_internal.worker_slots() w, LATERAL pg_stat_get_activity(w.pid) a
	WHERE 'xmin' = ANY (conditions) AND w.job_id IS NOT NULL AND a.backend_xmin IS NOT NULL
	GROUP BY ROLLUP (w.kind)
$$;
COMMENT ON FUNCTION jobq_internal.measures(text[]) IS 'return the current values of these conditions';

-- A null value is unknown: the condition neither begins nor ends.
--
-- A kind with few jobs loses its slot in the statistics to other kinds, whose later
-- completions say nothing about the first kind.  Therefore the monitor itself stores the
-- last known completion (heard).
CREATE VIEW jobq_internal.measured WITH (security_barrier) AS
	WITH v AS MATERIALIZED (
		SELECT s.* FROM jobq_internal.measures(ARRAY(SELECT DISTINCT m.condition FROM jobq_internal.monitor m)) s)
	SELECT m.*,
		CASE WHEN m.condition = 'silent' THEN jobq_internal.clock() - s.value * interval '1 second' END AS completed_at,
		CASE WHEN m.condition IN ('ready', 'dead') AND NOT k.known THEN NULL
			WHEN m.condition = 'silent' THEN greatest(coalesce(least(s.value, extract(epoch FROM jobq_internal.clock() - m.heard)),
				extract(epoch FROM jobq_internal.clock() - m.made_at)), 0)
			-- without this role, the user does not see when transactions of other sessions began
			WHEN m.condition = 'xmin' AND NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN NULL
			ELSE greatest(s.value, 0) END AS value
	FROM jobq_internal.monitor m
	CROSS JOIN (SELECT jobq_internal.stats_known() AS known) k
	LEFT JOIN v s ON s.condition = m.condition AND coalesce(s.queue, '') = coalesce(m.queue, '') AND coalesce(s.kind, '') = coalesce(m.kind, '');
COMMENT ON VIEW jobq_internal.measured IS 'monitors and their current values';

-- A session that changes a monitor delays the evaluation of this monitor only.  A value
-- measured for the previous definition (made_at) does not count.  Every session can
-- listen, so the notification contains only the name and the event.
--
-- A kind with a completion every second would cause a write at each evaluation.  Therefore
-- a newer completion is written only after more than a twentieth of "above", and more than
-- 15 seconds.  The stored time matters only once the kind has no slot.  The time is at most
-- now, even if the clock was put back.
CREATE FUNCTION jobq_internal.check_monitors(OUT name text, OUT began boolean, OUT condition text, OUT queue text, OUT kind text,
	OUT value float8, OUT above float8, OUT until float8, OUT since timestamptz, OUT told text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
	WITH looked AS MATERIALIZED (
		SELECT l.name, l.made_at, l.value, l.completed_at FROM jobq_internal.measured l),
	mine AS MATERIALIZED (
		SELECT m.name, m.since, l.value, t.turns, least(greatest(l.completed_at, m.heard), jobq_internal.clock()) AS heard
		FROM jobq_internal.monitor m JOIN looked l USING (name, made_at),
			LATERAL (SELECT CASE WHEN m.since IS NULL THEN l.value > m.above ELSE l.value <= m.until END IS TRUE AS turns) t
		WHERE t.turns OR m.heard > jobq_internal.clock() OR m.heard IS NULL AND l.completed_at IS NOT NULL
			OR extract(epoch FROM l.completed_at - m.heard) > greatest(m.above / 20, 15)
		FOR UPDATE OF m SKIP LOCKED),
	changed AS (
		UPDATE jobq_internal.monitor m SET since = CASE WHEN NOT mine.turns THEN m.since WHEN m.since IS NULL THEN jobq_internal.clock() END,
			ended_at = CASE WHEN NOT mine.turns OR m.since IS NULL THEN m.ended_at ELSE jobq_internal.clock() END,
			heard = mine.heard
		FROM mine WHERE m.name = mine.name
		RETURNING m.name, mine.since IS NULL AS began, m.condition, m.queue, m.kind, mine.value, m.above, m.until,
			coalesce(m.since, mine.since) AS since, mine.turns)
	SELECT c.name, c.began, c.condition, c.queue, c.kind, c.value, c.above, c.until, c.since,
		jobq.notify('jobq_alert', json_build_object('name', c.name, 'event', CASE WHEN c.began THEN 'begin' ELSE 'end' END)::text)::text
	FROM changed c
	WHERE c.turns
$$;
COMMENT ON FUNCTION jobq_internal.check_monitors() IS 'notify listeners of conditions that have begun or ended, and return these; for the scheduler, which raises the events';

CREATE FUNCTION jobq.create_monitor(name text, condition text, above float8, queue text DEFAULT NULL, kind text DEFAULT NULL, until float8 DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_create_monitor' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_monitor(text, text, float8, text, text, float8) IS 'create or change a monitor, which sends NOTIFY jobq_alert when a condition begins and ends
name: the name of the monitor
condition: the measured condition: ready, oldest, failing, silent, slow, dead, new, late, unattended or xmin
above: the condition begins when the value is greater than this
queue: only this queue, which need not exist; not for late and xmin
kind: only this kind; not for oldest and unattended
until: the condition ends when the value is at most this; less than above, to avoid frequent changes; null: above';

CREATE FUNCTION jobq.drop_monitor(name text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_monitor' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_monitor(text) IS 'drop a monitor, without a notification
name: the name of the monitor';

-- Measures nothing, for metrics().
CREATE VIEW jobq_internal.monitor_states WITH (security_barrier) AS
	SELECT m.name, m.condition, m.since
	FROM jobq_internal.monitor m
	WHERE jobq_internal.may_see((SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'), 0);
COMMENT ON VIEW jobq_internal.monitor_states IS 'monitors, and since when their conditions hold';

CREATE VIEW jobq.monitors WITH (security_barrier) AS
	SELECT m.name, m.condition, m.queue, m.kind, m.above, m.until, m.value, m.since, m.ended_at
	FROM jobq_internal.measured m
	WHERE jobq_internal.may_see((SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'), 0);
COMMENT ON VIEW jobq.monitors IS 'monitors, their values, and since when their conditions hold';
