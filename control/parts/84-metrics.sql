-- metrics(): metrics for Prometheus.

CREATE FUNCTION jobq_internal.metric_label(value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_catalog.replace(pg_catalog.replace(pg_catalog.replace(value, E'\\', E'\\\\'), '"', E'\\"'), E'\n', E'\\n');
COMMENT ON FUNCTION jobq_internal.metric_label(text) IS 'escape the value of a metric label';

-- Only for roles with the privilege monitor, which capacity() checks.
CREATE FUNCTION jobq.metrics() RETURNS text
LANGUAGE sql VOLATILE PARALLEL RESTRICTED SET search_path = pg_catalog, pg_temp AS $$
	WITH q AS MATERIALIZED (
		SELECT format('queue="%s"', jobq_internal.metric_label(v.name)) AS label, v.*
		FROM jobq.queues v),
	-- a kind and a tenant may have the name "(other)", like the row of names without a slot
	s AS MATERIALIZED (
		SELECT DISTINCT ON (v.queue, v.kind, coalesce(v.tenant, ''))
			format('queue="%s",kind="%s",tenant="%s"', jobq_internal.metric_label(v.queue),
			jobq_internal.metric_label(v.kind), jobq_internal.metric_label(coalesce(v.tenant, ''))) AS label, v.*
		FROM jobq.stats v ORDER BY v.queue, v.kind, coalesce(v.tenant, ''), v.enqueued DESC),
	families AS (SELECT * FROM (VALUES
		(1, 'jobq_info', 'gauge', NULL, 'Version of the library.'),
		(10, 'jobq_jobs', 'gauge', NULL, 'Jobs of a queue by state.'),
		(11, 'jobq_oldest_ready_seconds', 'gauge', 'seconds', 'Time since the oldest ready job could start.'),
		(12, 'jobq_queue_paused', 'gauge', NULL, '1 if the queue is paused.'),
		(13, 'jobq_queue_exact', 'gauge', NULL, '1 if the numbers of jobs are exact; 0 after a crash, until the jobs are counted.'),
		(20, 'jobq_enqueued', 'counter', NULL, 'Enqueued jobs.'),
		(21, 'jobq_attempts', 'counter', NULL, 'Attempts that have ended, with any outcome.'),
		(22, 'jobq_completed', 'counter', NULL, 'Completed jobs.'),
		(23, 'jobq_failed', 'counter', NULL, 'Failed attempts.'),
		(24, 'jobq_retried', 'counter', NULL, 'Failed attempts with a further attempt, and retried dead letters.'),
		(25, 'jobq_dead', 'counter', NULL, 'Jobs that became dead letters.'),
		(26, 'jobq_expired', 'counter', NULL, 'Jobs that expired before their start.'),
		(27, 'jobq_cancelled', 'counter', NULL, 'Cancelled jobs.'),
		(28, 'jobq_crashed', 'counter', NULL, 'Attempts that crashed their process.'),
		(30, 'jobq_wait_seconds', 'summary', 'seconds', 'Time from the moment when an attempt could start until its start.'),
		(31, 'jobq_run_seconds', 'summary', 'seconds', 'Duration of attempts.'),
		(32, 'jobq_cpu_seconds', 'counter', 'seconds', 'Processor time of runs.'),
		(33, 'jobq_buffers', 'counter', NULL, 'Blocks that runs have accessed.'),
		(34, 'jobq_buffers_read', 'counter', NULL, 'Blocks that runs have accessed and that were not in shared buffers.'),
		(35, 'jobq_wal_bytes', 'counter', 'bytes', 'WAL written by runs.'),
		(36, 'jobq_temp_bytes', 'counter', 'bytes', 'Temporary files written by runs.'),
		(40, 'jobq_workers', 'gauge', NULL, 'Workers by pool and state, and consumers that hold jobs.'),
		(41, 'jobq_running_jobs', 'gauge', NULL, 'Jobs that workers run or consumers hold.'),
		(50, 'jobq_scheduler_running', 'gauge', NULL, '1 if the scheduler of the database runs.'),
		(51, 'jobq_scheduler_complete', 'gauge', NULL, '1 if the scheduler has read all jobs since its start.'),
		(52, 'jobq_notifications_waiting', 'gauge', NULL, 'Notifications that the relay has not sent yet.'),
		(53, 'jobq_schedules', 'gauge', NULL, 'Schedules by state.'),
		(54, 'jobq_schedule_next_tick_timestamp_seconds', 'gauge', 'seconds', 'Next tick of a schedule that is not paused.'),
		(55, 'jobq_scheduler_troubles', 'gauge', NULL, 'Tasks of the scheduler that fail at present; doctor() names the tasks.'),
		(56, 'jobq_monitor_active', 'gauge', NULL, '1 while the condition of the monitor holds.'),
		(60, 'jobq_capacity_used', 'gauge', NULL, 'Slots in use in shared memory.'),
		(61, 'jobq_capacity_most', 'gauge', NULL, 'Slots in shared memory, with the setting that provides them.')) f (n, name, type, unit, help)),
	-- samples with the same labels ("of") stay together
	samples AS (
		SELECT 1 AS n, '' AS of, format('jobq_info{version="%s"} 1', v.library) AS sample FROM jobq_internal.setup() v
		UNION ALL
		SELECT 10, '', format('jobq_jobs{%s,state="%s"} %s', q.label, v.state, v.jobs)
		FROM q, LATERAL (VALUES ('ready', q.ready), ('scheduled', q.scheduled), ('blocked', q.blocked),
			('running', q.running), ('dead', q.dead_letters)) v (state, jobs)
		UNION ALL
		SELECT v.n, '', format('%s{%s} %s', v.name, q.label, v.value)
		FROM q, LATERAL (VALUES
			(11, 'jobq_oldest_ready_seconds', greatest(extract(epoch FROM jobq_internal.clock() - q.oldest_ready), 0)),
			(12, 'jobq_queue_paused', q.paused::int::numeric),
			(13, 'jobq_queue_exact', q.exact::int::numeric)) v (n, name, value)
		UNION ALL
		SELECT v.n, '', format('%s_total{%s} %s', v.name, s.label, v.value)
		FROM s, LATERAL (VALUES (20, 'jobq_enqueued', s.enqueued),
			-- without running attempts: a job may still be given back, and a counter must not decrease
			(21, 'jobq_attempts', s.started - s.running),
			(22, 'jobq_completed', s.completed), (23, 'jobq_failed', s.failed), (24, 'jobq_retried', s.retried),
			(25, 'jobq_dead', s.dead), (26, 'jobq_expired', s.expired), (27, 'jobq_cancelled', s.cancelled),
			(28, 'jobq_crashed', s.crashed), (32, 'jobq_cpu_seconds', extract(epoch FROM s.cpu)), (33, 'jobq_buffers', s.buffers),
			(34, 'jobq_buffers_read', s.buffers_read), (35, 'jobq_wal_bytes', s.wal_bytes), (36, 'jobq_temp_bytes', s.temp_bytes)) v (n, name, value)
		UNION ALL
		SELECT v.n, s.label, format('%s{%s,quantile="%s"} %s', v.name, s.label, v.quantile, extract(epoch FROM v.value))
		FROM s, LATERAL (VALUES (30, 'jobq_wait_seconds', '0.5', s.wait_p50), (30, 'jobq_wait_seconds', '0.95', s.wait_p95),
			(30, 'jobq_wait_seconds', '0.99', s.wait_p99), (30, 'jobq_wait_seconds', '1.0', s.wait_max),
			(31, 'jobq_run_seconds', '0.5', s.run_p50), (31, 'jobq_run_seconds', '0.95', s.run_p95),
			(31, 'jobq_run_seconds', '0.99', s.run_p99), (31, 'jobq_run_seconds', '1.0', s.run_max)) v (n, name, quantile, value)
		WHERE v.value IS NOT NULL
		UNION ALL
		SELECT v.n, s.label, format('%s{%s} %s', v.name, s.label, v.value)
		FROM s, LATERAL (VALUES (30, 'jobq_wait_seconds_count', s.wait_count), (30, 'jobq_wait_seconds_sum', extract(epoch FROM s.wait_sum)),
			(31, 'jobq_run_seconds_count', s.run_count), (31, 'jobq_run_seconds_sum', extract(epoch FROM s.run_sum))) v (n, name, value)
		UNION ALL
		SELECT v.n, '', format('%s{type="%s",pool="%s",state="%s"} %s', v.name, w.type, w.pool, w.state, v.value)
		FROM (SELECT w.type, w.pool, w.state, count(*) AS n, sum(w.running) AS running FROM jobq.workers w GROUP BY w.type, w.pool, w.state) w,
			LATERAL (VALUES (40, 'jobq_workers', w.n::numeric), (41, 'jobq_running_jobs', w.running)) v (n, name, value)
		UNION ALL
		SELECT v.n, '', format('%s %s', v.name, v.value)
		FROM (SELECT count(s.pid) AS running, coalesce(bool_and(s.complete), false)::int AS complete, coalesce(sum(s.notifications), 0) AS notifications
			FROM jobq_internal.scheduler_state() s) s,
			LATERAL (VALUES (50, 'jobq_scheduler_running', s.running), (51, 'jobq_scheduler_complete', s.complete),
				(52, 'jobq_notifications_waiting', s.notifications)) v (n, name, value)
		UNION ALL
		SELECT 53, '', format('jobq_schedules{state="%s"} %s', v.state, count(*)) FROM jobq.schedules v GROUP BY v.state
		UNION ALL
		SELECT 54, '', format('jobq_schedule_next_tick_timestamp_seconds{schedule="%s"} %s',
			jobq_internal.metric_label(v.name), extract(epoch FROM v.next_tick))
		FROM jobq.schedules v WHERE v.state IN ('active', 'failing') AND isfinite(v.next_tick)
		UNION ALL
		SELECT 55, '', format('jobq_scheduler_troubles %s', count(*)) FROM jobq_internal.scheduler_troubles()
		UNION ALL
		SELECT 56, '', format('jobq_monitor_active{monitor="%s",condition="%s"} %s', jobq_internal.metric_label(m.name), m.condition, (m.since IS NOT NULL)::int)
		FROM jobq_internal.monitor_states m
		UNION ALL
		SELECT v.n, '', format('%s{slots="%s",setting="%s"} %s', v.name, c.slots, c.setting, v.value)
		FROM jobq_internal.capacity() c,
			LATERAL (VALUES (60, 'jobq_capacity_used', c.used), (61, 'jobq_capacity_most', c.most)) v (n, name, value)),
	lines AS (
		SELECT f.n, 1 AS part, '' AS of, format('# TYPE %s %s', f.name, f.type) AS line FROM families f
		UNION ALL SELECT f.n, 2, '', format('# UNIT %s %s', f.name, f.unit) FROM families f WHERE f.unit IS NOT NULL
		UNION ALL SELECT f.n, 3, '', format('# HELP %s %s', f.name, f.help) FROM families f
		UNION ALL SELECT v.n, 4, v.of, v.sample FROM samples v)
	SELECT string_agg(l.line, E'\n' ORDER BY l.n, l.part, l.of COLLATE "C", l.line COLLATE "C") || E'\n# EOF\n' FROM lines l
$$;
COMMENT ON FUNCTION jobq.metrics() IS 'return all metrics of the database, as OpenMetrics text for Prometheus';
