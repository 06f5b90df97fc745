-- Statistics of jobs and attempts, by queue, kind and tenant.

CREATE FUNCTION jobq_internal.stat_slots(
	OUT queue_id int, OUT kind text, OUT tenant text,
	OUT live bigint, OUT waiting bigint, OUT scheduled bigint, OUT blocked bigint, OUT running bigint, OUT held bigint, OUT letters bigint,
	OUT enqueued bigint, OUT ended bigint, OUT completed bigint, OUT failed bigint, OUT retried bigint, OUT dead bigint,
	OUT expired bigint, OUT cancelled bigint, OUT crashed bigint,
	OUT cpu interval, OUT buffers bigint, OUT buffers_read bigint, OUT wal_bytes bigint, OUT temp_bytes bigint,
	OUT wait_p50 interval, OUT wait_p95 interval, OUT wait_p99 interval, OUT wait_max interval, OUT wait_sum interval, OUT wait_count bigint,
	OUT run_p50 interval, OUT run_p95 interval, OUT run_p99 interval, OUT run_max interval, OUT run_sum interval, OUT run_count bigint,
	OUT enqueued_1m float8, OUT enqueued_5m float8, OUT enqueued_15m float8,
	OUT completed_1m float8, OUT completed_5m float8, OUT completed_15m float8,
	OUT failed_1m float8, OUT failed_5m float8, OUT failed_15m float8,
	OUT completed_at timestamptz, OUT running_since timestamptz, OUT since timestamptz, OUT exact boolean)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_stat_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION jobq_internal.stat_slots() IS 'return the statistics visible to the user, for the view';

CREATE FUNCTION jobq_internal.stats_known() RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_stats_known' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.stats_known() IS 'return whether the numbers of jobs are right; false after a crash, until the jobs are counted';

CREATE FUNCTION jobq_internal.stat_series(
	step text, queue text, kind text, OUT since timestamptz,
	OUT enqueued bigint, OUT completed bigint, OUT failed bigint, OUT dead bigint, OUT cancelled bigint, OUT expired bigint,
	OUT wait_max interval, OUT wait_sum interval, OUT wait_count bigint, OUT run_max interval, OUT run_sum interval, OUT run_count bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_stat_series'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 60;
COMMENT ON FUNCTION jobq_internal.stat_series(text, text, text) IS 'return sums by minute or hour, of all names visible to the user, or of a queue or kind';

CREATE FUNCTION jobq_internal.stat_rates(by text, OUT name text, OUT enqueued bigint[], OUT completed bigint[], OUT failed bigint[], OUT wait_p95 float8)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_stat_rates'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 100;
COMMENT ON FUNCTION jobq_internal.stat_rates(text) IS 'return the numbers of each of the last 60 minutes, by queue, kind or tenant, of names with events in this time';

CREATE FUNCTION jobq.reset_stats(queue text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reset_stats' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reset_stats(text) IS 'reset the counters of the statistics
queue: only the counters of this queue; null: all counters';

-- Dropped queues, and queues whose creation was rolled back, are not shown.
CREATE VIEW jobq.stats WITH (security_barrier) AS
	SELECT coalesce(q.name, '(other)') AS queue, s.kind, s.tenant,
		s.waiting AS ready, s.scheduled, s.blocked, s.running + s.held AS running, s.held, s.letters AS dead_letters,
		s.enqueued, s.ended + s.running + s.held AS started, s.completed, s.failed, s.retried, s.dead, s.expired, s.cancelled, s.crashed,
		s.cpu, s.buffers, s.buffers_read, s.wal_bytes, s.temp_bytes,
		s.wait_p50, s.wait_p95, s.wait_p99, s.wait_max, s.wait_sum, s.wait_count,
		s.run_p50, s.run_p95, s.run_p99, s.run_max, s.run_sum, s.run_count,
		s.enqueued_1m, s.enqueued_5m, s.enqueued_15m,
		s.completed_1m, s.completed_5m, s.completed_15m,
		s.failed_1m, s.failed_5m, s.failed_15m,
		s.completed_at, s.running_since, s.since, s.exact
	FROM jobq_internal.stat_slots() s LEFT JOIN jobq_internal.queue q ON q.id = s.queue_id
	WHERE q.id IS NOT NULL OR s.queue_id IS NULL;
COMMENT ON VIEW jobq.stats IS 'counters and times of jobs and attempts, and current numbers of jobs, by queue, kind and tenant';

CREATE FUNCTION jobq.stats_history(queue text DEFAULT NULL, kind text DEFAULT NULL, step text DEFAULT NULL)
RETURNS TABLE (queue text, kind text, tenant text, step text, since timestamptz,
	enqueued bigint, completed bigint, failed bigint, dead bigint, cancelled bigint, expired bigint,
	wait_max interval, wait_sum interval, wait_count bigint, run_max interval, run_sum interval, run_count bigint)
AS 'MODULE_PATHNAME', 'jobq_stats_history' LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 1000;
COMMENT ON FUNCTION jobq.stats_history(text, text, text) IS 'return counters and times of jobs and attempts in each of the last 60 minutes, 24 hours and 30 days
queue: only this queue; null: all queues
kind: only this kind; null: all kinds
step: only the minutes, hours or days: minute, hour or day; null: all of them';
