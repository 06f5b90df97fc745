-- Views.  A role sees the jobs of the roles whose privileges it has.

-- The filter is above the union: the planner takes a plain union apart before it
-- minds the barrier.
CREATE VIEW jobq.jobs WITH (security_barrier) AS
	SELECT * FROM (SELECT j.id,
		CASE WHEN w.job_id IS NOT NULL OR l.job_id IS NOT NULL OR j.lease_token IS NOT NULL THEN 'running'
			WHEN j.expires_at <= jobq.clock() THEN 'expired'
			WHEN j.run_at = 'infinity' THEN 'blocked'
			WHEN j.run_at <= jobq.clock() THEN 'ready'
			WHEN j.errors IS NOT NULL THEN 'retryable'
			ELSE 'scheduled' END AS state,
		j.kind, q.name AS queue, j.priority, j.role::pg_catalog.oid::pg_catalog.regrole AS role,
		coalesce(w.attempt, CASE WHEN l.job_id IS NOT NULL THEN j.attempt + 1 END, j.attempt) AS attempt, j.max_attempts,
		coalesce(w.progress, l.progress) AS progress, coalesce(w.message, l.message) AS message, coalesce(w.pid, l.pid) AS worker,
		j.enqueued_at, nullif(j.run_at, 'infinity') AS run_at, coalesce(w.job_started_at, l.since) AS started_at, NULL::timestamptz AS finished_at,
		j.payload, j.headers, NULL::jsonb AS result,
		j.errors -> -1 ->> 'message' AS error, j.errors, j.group_key, j.unique_key, j.batch_id, j.log
	FROM jobq.job j
	LEFT JOIN jobq.queue q ON q.id = j.queue_id
	LEFT JOIN (SELECT DISTINCT ON (r.job_id) r.* FROM jobq_internal.worker_slots() r ORDER BY r.job_id) w ON w.job_id = j.id
	LEFT JOIN jobq_internal.lease_slots() l ON l.job_id = j.id
	UNION ALL
	SELECT a.id, CASE a.state WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' ELSE 'expired' END,
		a.kind, q.name, a.priority, a.role, a.attempt, a.max_attempts, NULL, NULL, NULL,
		a.enqueued_at, nullif(a.run_at, 'infinity'), a.started_at, a.finished_at,
		a.payload, a.headers, a.result, a.reason, NULL, a.group_key, NULL, a.batch_id, a.log
	FROM jobq.archive a LEFT JOIN jobq.queue q ON q.id = a.queue_id
	UNION ALL
	SELECT f.id, 'failed', f.kind, q.name, f.priority, f.role, f.attempt, f.max_attempts, NULL, NULL, NULL,
		f.enqueued_at, nullif(f.run_at, 'infinity'), f.started_at, f.finished_at,
		f.payload, f.headers, NULL, f.error, f.errors, f.group_key, f.unique_key, f.batch_id, f.log
	FROM jobq.failed_job f LEFT JOIN jobq.queue q ON q.id = f.queue_id)
	j WHERE pg_catalog.pg_has_role(j.role::pg_catalog.oid, 'USAGE');
COMMENT ON VIEW jobq.jobs IS 'all jobs, live and finished, in one shape';

CREATE VIEW jobq.failed_jobs WITH (security_barrier) AS
	SELECT f.id, f.kind, q.name AS queue, f.role, f.attempt, f.max_attempts, f.crashes,
		f.enqueued_at, f.finished_at AS failed_at, f.payload, f.headers,
		f.error, f.sqlstate, f.context, f.errors, f.log
	FROM jobq.failed_job f LEFT JOIN jobq.queue q ON q.id = f.queue_id
	WHERE pg_catalog.pg_has_role(f.role::pg_catalog.oid, 'USAGE');
COMMENT ON VIEW jobq.failed_jobs IS 'dead letters, to be retried or forgotten';

CREATE VIEW jobq.queues WITH (security_barrier) AS
	SELECT q.name, q.paused,
		CASE q.mode WHEN 'w' THEN 'worker' ELSE 'consumer' END AS mode,
		CASE q.lease WHEN 'd' THEN 'durable' ELSE 'memory' END AS lease,
		CASE q.notify WHEN 'r' THEN 'relay' WHEN 't' THEN 'transactional' ELSE 'off' END AS notify,
		CASE q.keep WHEN 'a' THEN 'all' WHEN 'p' THEN 'no_payload' ELSE 'nothing' END AS keep,
		q.weight, q.max_running, q.rate, q.throttle, q.group_max_running,
		CASE q.group_on_failure WHEN 'w' THEN 'wait' ELSE 'continue' END AS group_on_failure,
		q.fair_by, q.fair_weights, q.max_length,
		q.expires_after_ms * interval '1 ms' AS expires_after,
		coalesce(j.ready, 0) AS ready, coalesce(j.scheduled, 0) AS scheduled, coalesce(j.blocked, 0) AS blocked,
		coalesce(j.running, 0) AS running, coalesce(f.failed, 0) AS failed, j.oldest_ready
	FROM jobq.queue q
	LEFT JOIN (
		SELECT j.queue_id,
			count(*) FILTER (WHERE j.run_at <= jobq.clock() AND w.job_id IS NULL) AS ready,
			count(*) FILTER (WHERE j.run_at > jobq.clock() AND j.run_at < 'infinity') AS scheduled,
			count(*) FILTER (WHERE j.run_at = 'infinity') AS blocked,
			count(w.job_id) AS running,
			min(j.run_at) FILTER (WHERE j.run_at <= jobq.clock() AND w.job_id IS NULL) AS oldest_ready
		FROM jobq.job j
		LEFT JOIN (SELECT s.job_id FROM jobq_internal.worker_slots() s UNION SELECT l.job_id FROM jobq_internal.lease_slots() l) w
			ON w.job_id = j.id
		WHERE pg_catalog.pg_has_role(j.role::pg_catalog.oid, 'USAGE')
		GROUP BY j.queue_id) j ON j.queue_id = q.id
	LEFT JOIN (
		SELECT f.queue_id, count(*) AS failed FROM jobq.failed_job f
		WHERE pg_catalog.pg_has_role(f.role::pg_catalog.oid, 'USAGE')
		GROUP BY f.queue_id) f ON f.queue_id = q.id;
COMMENT ON VIEW jobq.queues IS 'queues, their policies, and how many jobs stand in them';

CREATE VIEW jobq.workers WITH (security_barrier) AS
	SELECT 'worker' AS type, NULL::text AS consumer, w.pid, w.role::pg_catalog.regrole AS role, NULL::text AS client,
		w.pool, w.state, w.started_at, w.job_id, w.kind, w.attempt, w.job_started_at, w.progress, w.message,
		(w.job_id IS NOT NULL)::int::bigint AS jobs_held, w.jobs_done, w.jobs_failed
	FROM jobq_internal.worker_slots() w
	UNION ALL
	SELECT 'consumer', l.consumer, NULL, l.role::pg_catalog.regrole, l.client,
		NULL, 'running', min(l.since), NULL, NULL, NULL, NULL, NULL, NULL, count(*), NULL, NULL
	FROM jobq_internal.lease_slots() l
	GROUP BY l.consumer, l.role, l.client;
COMMENT ON VIEW jobq.workers IS 'the workers of this database and what they run, and the consumers outside that hold jobs';

CREATE VIEW jobq.limits WITH (security_barrier) AS
	SELECT q.name AS queue, NULL::text AS kind, s.running, q.max_running,
		q.rate, round(s.tokens::numeric, 3) AS tokens, q.throttle, s.failures, s.rest_until
	FROM jobq.queue q JOIN jobq_internal.limit_slots() s ON s.queue_id = q.id
	UNION ALL
	SELECT NULL, h.kind, s.running, h.max_running,
		h.rate, round(s.tokens::numeric, 3), h.throttle, s.failures, s.rest_until
	FROM jobq.handler h JOIN jobq_internal.limit_slots() s ON s.kind_hash = jobq_internal.kind_hash(h.kind);
COMMENT ON VIEW jobq.limits IS 'queues and kinds with limits: how many of their jobs run, how many may start now, until when they rest';

CREATE VIEW jobq.groups WITH (security_barrier) AS
	SELECT q.name AS queue, j.group_key, s.running, s.waits_for, s.parked, s.more,
		round(s.tokens::numeric, 3) AS tokens, s.rest_until
	FROM jobq_internal.group_slots() s
	JOIN LATERAL (SELECT j.queue_id, j.group_key FROM jobq.job j
		WHERE j.group_id = s.group_id AND pg_catalog.pg_has_role(j.role::pg_catalog.oid, 'USAGE') LIMIT 1) j ON true
	LEFT JOIN jobq.queue q ON q.id = j.queue_id;
COMMENT ON VIEW jobq.groups IS 'groups under way: of which a job runs, waits for its next attempt (waits_for), or others wait (parked, and more in the table)';
