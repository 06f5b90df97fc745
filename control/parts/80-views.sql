-- Views.  A role sees the jobs of roles whose privileges the role has, and the jobs that
-- the role may monitor or manage.  The privilege monitor alone does not show the contents.

-- jobs, and live_jobs, which is the same view without the tables of finished jobs.
--
-- Inside these security barriers, the planner does not see the order of the outer query.
-- ORDER BY id DESC in the views makes the planner read the indexes on id backwards, and
-- LIMIT then reads no more rows than it returns.  Therefore each part of the union is a
-- plain table, and all joins are above the union.  The filter is above the union, too,
-- because the planner flattens a plain union before it regards the barrier.
DO $create$
DECLARE
	live text := $$
		SELECT j.id, NULL::pg_catalog."char" AS ended, j.kind, j.queue_id, j.priority, j.role, j.attempt, j.max_attempts,
			j.enqueued_at, j.run_at, NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at,
			j.payload, j.headers, NULL::jsonb AS result, NULL::text AS error, j.errors, j.group_key, j.unique_key, j.unique_queue, j.batch_id, j.log, j.context, j.tenant, j.tags, NULL::jsonb AS cost, j.limit_cost,
			j.lease_token, j.expires_at, j.waits_for
		FROM jobq_internal.job j$$;
	finished text := $$
		UNION ALL
		SELECT a.id, a.state, a.kind, a.queue_id, a.priority, a.role, a.attempt, a.max_attempts,
			a.enqueued_at, a.run_at, a.started_at, a.finished_at,
			a.payload, a.headers, a.result, a.reason, a.errors, a.group_key, NULL::text, NULL::int, a.batch_id, a.log, a.context, a.tenant, a.tags, a.cost, a.limit_cost,
			NULL::bigint, NULL::timestamptz, NULL::text
		FROM jobq_internal.archive a
		UNION ALL
		SELECT f.id, 'f'::pg_catalog."char", f.kind, f.queue_id, f.priority, f.role, f.attempt, f.max_attempts,
			f.enqueued_at, f.run_at, f.started_at, f.finished_at,
			f.payload, f.headers, NULL::jsonb, f.error, f.errors, f.group_key, f.unique_key, f.unique_queue, f.batch_id, f.log, f.context, f.tenant, f.tags, NULL::jsonb, f.limit_cost,
			NULL::bigint, NULL::timestamptz, NULL::text
		FROM jobq_internal.dead_letter f$$;
	name text;
	tables text;
BEGIN
	FOR name, tables IN VALUES ('live_jobs', live), ('jobs', live || finished) LOOP
		EXECUTE format($$
			CREATE VIEW jobq.%I WITH (security_barrier) AS
			SELECT j.id,
				CASE j.ended WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' WHEN 'e' THEN 'expired' WHEN 'f' THEN 'dead'
					ELSE jobq_internal.live_state(r.job_id IS NOT NULL OR j.lease_token IS NOT NULL,
						j.run_at, j.expires_at, j.errors IS NOT NULL, j.waits_for IS NOT NULL) END AS state,
				j.kind, q.name AS queue, j.priority, j.role::pg_catalog.regrole AS role,
				coalesce(r.attempt, CASE WHEN r.job_id IS NOT NULL THEN j.attempt + 1 END, j.attempt) AS attempt, j.max_attempts,
				r.progress, coalesce(r.message, CASE WHEN r.job_id IS NULL AND j.run_at > jobq_internal.clock() THEN 'waits for ' || j.waits_for END) AS message, r.pid AS worker,
				j.enqueued_at, nullif(nullif(j.run_at, 'infinity'), '9999-01-01 00:00:00+00') AS run_at, coalesce(r.started_at, j.started_at) AS started_at, j.finished_at,
				CASE WHEN o.open THEN j.payload END AS payload, CASE WHEN o.open THEN j.headers END AS headers,
				CASE WHEN o.open THEN j.result END AS result, coalesce(j.error, CASE WHEN j.ended IS NULL THEN j.errors -> -1 ->> 'message' END) AS error,
				CASE WHEN o.open THEN j.errors ELSE jobq_internal.without_details(j.errors) END AS errors,
				CASE WHEN o.open THEN j.group_key END AS group_key, CASE WHEN o.open THEN j.unique_key END AS unique_key,
				j.batch_id, CASE WHEN NOT o.open THEN NULL WHEN r.job_id IS NULL THEN j.log ELSE jobq_internal.live_log(j.id, j.log) END AS log,
				CASE WHEN o.open THEN j.context END AS context,
				j.tenant, j.tags, CASE j.ended WHEN 'f' THEN j.errors -> -1 -> 'cost' ELSE j.cost END AS cost,
				CASE WHEN NOT o.open OR j.unique_key IS NULL THEN NULL WHEN j.unique_queue IS NULL THEN 'kind' WHEN j.unique_queue = 0 THEN 'database' ELSE 'queue' END AS unique_scope,
				CASE WHEN o.open THEN j.limit_cost END AS limit_cost
			FROM (%s) j
			LEFT JOIN jobq_internal.queue q ON q.id = j.queue_id
			LEFT JOIN jobq_internal.running_jobs r ON r.job_id = j.id AND j.ended IS NULL
			CROSS JOIN LATERAL (SELECT jobq_internal.may_read(j.role::pg_catalog.oid, j.queue_id) AS open) o
			WHERE jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id)
			ORDER BY j.id DESC$$, name, tables);
	END LOOP;
END
$create$;
COMMENT ON VIEW jobq.jobs IS 'all jobs, live and finished, with the same columns, newest first';
COMMENT ON VIEW jobq.live_jobs IS 'jobs that have not finished, with the columns of the view jobs; never reads the archive';

-- In the order of the index job_ready, for lists by run_at (client/web/jobs.c).
CREATE VIEW jobq_internal.run_order WITH (security_barrier) AS
	SELECT j.queue_id, j.priority, j.run_as::pg_catalog.oid AS run_as, j.flow, j.run_at, j.id,
		(SELECT q.name FROM jobq_internal.queue q WHERE q.id = j.queue_id) AS queue
	FROM jobq_internal.job j
	WHERE jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id)
	ORDER BY j.queue_id, j.priority, j.run_as, j.flow, j.run_at, j.id;
COMMENT ON VIEW jobq_internal.run_order IS 'live jobs by lane, in the order of their times';
CREATE VIEW jobq_internal.run_order_down WITH (security_barrier) AS
	SELECT j.queue_id, j.priority, j.run_as::pg_catalog.oid AS run_as, j.flow, j.run_at, j.id
	FROM jobq_internal.job j
	WHERE jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id)
	ORDER BY j.queue_id, j.priority, j.run_as, j.flow, j.run_at DESC, j.id DESC;
COMMENT ON VIEW jobq_internal.run_order_down IS 'live jobs by lane, the latest time first';

-- In the order of an index, as above.
CREATE VIEW jobq.dead_letters WITH (security_barrier) AS
	SELECT f.id, f.kind, q.name AS queue, f.role::pg_catalog.regrole AS role, f.attempt, f.max_attempts, f.crashes,
		f.enqueued_at, f.finished_at,
		CASE WHEN o.open THEN f.payload END AS payload, CASE WHEN o.open THEN f.headers END AS headers,
		f.error, f.sqlstate, f.fingerprint, CASE WHEN o.open THEN f.error_context END AS error_context,
		CASE WHEN o.open THEN f.errors ELSE jobq_internal.without_details(f.errors) END AS errors,
		CASE WHEN o.open THEN f.log END AS log, CASE WHEN o.open THEN f.context END AS context, f.tenant, f.tags
	FROM jobq_internal.dead_letter f LEFT JOIN jobq_internal.queue q ON q.id = f.queue_id
	CROSS JOIN LATERAL (SELECT jobq_internal.may_read(f.role::pg_catalog.oid, f.queue_id) AS open) o
	WHERE jobq_internal.may_see(f.role::pg_catalog.oid, f.queue_id)
	ORDER BY f.finished_at DESC, f.id DESC;
COMMENT ON VIEW jobq.dead_letters IS 'dead letters, which can be retried or deleted, newest first';

-- The failed attempts of unfinished jobs, of finished jobs, and of dead letters.  A reader with LIMIT
-- gets the attempts of the newest jobs, and reads no other jobs if the user may see all of them.  Partial
-- indexes find the jobs that have failed.  OFFSET 0 takes each error out of its array once.
DO $create$
DECLARE
	r record;
BEGIN
	FOR r IN VALUES ('failed_live', 'job', 'l.errors IS NOT NULL', 'l.id DESC', 'false'),
			('failed_finished', 'archive', 'l.errors IS NOT NULL', 'l.id DESC', 'false'),
			('failed_dead', 'dead_letter', 'true', 'l.finished_at DESC, l.id DESC', 'a.n = jsonb_array_length(a.errors) - 1') LOOP
		EXECUTE format($$
			CREATE VIEW jobq_internal.%I WITH (security_barrier) AS
			SELECT e.id, q.name AS queue, e.kind, e.role::pg_catalog.regrole AS role, (e.error ->> 'fingerprint')::bigint AS fingerprint,
				(e.error ->> 'at')::timestamptz AS at, e.dead
			FROM (
				SELECT a.id, a.queue_id, a.kind, a.role, a.errors -> a.n AS error, %s AS dead
				FROM (
					SELECT j.id, j.queue_id, j.kind, j.role, j.errors, jobq_internal.indexes(0, jsonb_array_length(j.errors) - 1) AS n
					FROM (
						SELECT l.id, l.queue_id, l.kind, l.role, l.errors FROM jobq_internal.%I l
						WHERE %s AND jobq_internal.may_see(l.role::pg_catalog.oid, l.queue_id) ORDER BY %s) j) a
				OFFSET 0) e
			LEFT JOIN jobq_internal.queue q ON q.id = e.queue_id$$, r.column1, r.column5, r.column2, r.column3, r.column4);
	END LOOP;
END
$create$;
COMMENT ON VIEW jobq_internal.failed_live IS 'failed attempts of unfinished jobs, newest job first; dead: false';
COMMENT ON VIEW jobq_internal.failed_finished IS 'failed attempts of finished jobs, newest job first; dead: false';
COMMENT ON VIEW jobq_internal.failed_dead IS 'failed attempts of dead letters, newest dead letter first; dead: the attempt was the last';

-- OFFSET 0 keeps the errors out of the aggregation.  Groups by kind and role come first, because they
-- need no sort.  The message comes from the newest job, so that memory holds a single message of each
-- cause.  The first view is without the message, which needs the row of a job.  A failure dated by a
-- clock that was ahead does not count as one of the last hour.
CREATE VIEW jobq_internal.failure_causes WITH (security_barrier) AS
	SELECT k.fingerprint, k.queue, array_agg(DISTINCT k.kind ORDER BY k.kind) AS kinds, array_agg(DISTINCT k.role) AS roles,
		min(k.first_seen) AS first_seen, max(k.last_seen) AS last_seen, sum(k.failed)::bigint AS failed,
		sum(k.failed_last_hour)::bigint AS failed_last_hour, sum(k.dead)::bigint AS dead, (max(k.newest))[2] AS job_id
	FROM (
		SELECT f.fingerprint, f.queue, f.kind, f.role, min(f.at) AS first_seen, max(f.at) AS last_seen,
			count(*) AS failed, count(*) FILTER (WHERE f.at > n.now - interval '1 hour' AND f.at <= n.now) AS failed_last_hour,
			count(*) FILTER (WHERE f.dead) AS dead, max(ARRAY[(date_part('epoch', f.at) * 1000000)::bigint, f.id]) AS newest
		FROM (
			SELECT * FROM jobq_internal.failed_live UNION ALL SELECT * FROM jobq_internal.failed_finished UNION ALL SELECT * FROM jobq_internal.failed_dead
			OFFSET 0) f
		CROSS JOIN (SELECT jobq_internal.clock() AS now) n
		GROUP BY f.fingerprint, f.queue, f.kind, f.role) k
	GROUP BY k.fingerprint, k.queue;
COMMENT ON VIEW jobq_internal.failure_causes IS 'causes of the failures that the user may see, without a sample of the message';

CREATE VIEW jobq_internal.failed_jobs WITH (security_barrier) AS
	SELECT j.id, jobq_internal.without_details(j.errors) AS errors
	FROM (
		SELECT l.id, l.errors, l.role, l.queue_id FROM jobq_internal.job l
		UNION ALL
		SELECT l.id, l.errors, l.role, l.queue_id FROM jobq_internal.archive l
		UNION ALL
		SELECT l.id, l.errors, l.role, l.queue_id FROM jobq_internal.dead_letter l) j
	WHERE jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id);
COMMENT ON VIEW jobq_internal.failed_jobs IS 'errors of all jobs without the fields that may quote data, to read by id';

CREATE VIEW jobq.failures WITH (security_barrier) AS
	SELECT g.fingerprint, g.queue, g.kinds, g.roles, e.sqlstate, e.message,
		g.first_seen, g.last_seen, g.failed, g.failed_last_hour, g.dead AS dead_letters, g.job_id
	FROM jobq_internal.failure_causes g
	LEFT JOIN LATERAL (
		SELECT a.error ->> 'sqlstate' AS sqlstate, a.error ->> 'message' AS message
		FROM jobq_internal.failed_jobs j CROSS JOIN LATERAL jsonb_array_elements(j.errors) WITH ORDINALITY a(error, n)
		WHERE j.id = g.job_id AND (a.error ->> 'fingerprint')::bigint = g.fingerprint
		ORDER BY a.n DESC LIMIT 1) e ON true;
COMMENT ON VIEW jobq.failures IS 'failed attempts of all stored jobs by cause: the same error in the same queue';

CREATE VIEW jobq.queues WITH (security_barrier) AS
	SELECT q.name, q.paused, coalesce(q.paused_kinds, '{}') AS paused_kinds,
		CASE WHEN jobq_internal.may_see((SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'), q.id)
			THEN coalesce(q.paused_tenants, '{}') END AS paused_tenants,
--each QUEUE_SETTING:		q.@1::@3,
		j.ready, j.scheduled, j.blocked, j.running_jobs AS running, j.dead AS dead_letters, j.oldest_ready, j.exact
	FROM jobq_internal.queue q
	CROSS JOIN LATERAL jobq_internal.queue_counts(q.id, ARRAY(SELECT r.job_id FROM jobq_internal.running_jobs r)) j
	WHERE jobq_internal.may_see_queue(q.id, q.open);
COMMENT ON VIEW jobq.queues IS 'queues, their settings, and the number of jobs in each state';

CREATE VIEW jobq.kinds WITH (security_barrier) AS
	SELECT h.kind, h.handler, h.queue, h.priority, h.max_attempts, h.backoff, h.timeout_ms * interval '1 ms' AS timeout,
		h.fail_on_timeout, h.max_exceptions, h.max_running, h.rate, h.throttle, h.on_failure, h.carry, h.recycle, h.retry_on, h.fail_on,
		h.max_memory, h.max_temp, h.max_wal, h.limiters, h.chunk, h.chunk_wait_ms * interval '1 ms' AS chunk_wait,
		jobq_internal.handler_version(h.handler) AS handler_version
	FROM jobq_internal.handler h
	WHERE jobq_internal.may_use();
COMMENT ON VIEW jobq.kinds IS 'kinds with a registered handler; null: the default';

CREATE VIEW jobq.workers WITH (security_barrier) AS
	SELECT 'worker' AS type, NULL::text AS consumer, w.pid, w.role::pg_catalog.regrole AS role, NULL::text AS client,
		w.pool, w.state, w.started_at, w.job_id, w.kind, w.attempt, w.job_started_at, w.progress, w.message,
		(w.job_id IS NOT NULL)::int::bigint AS running, w.completed, w.failed, w.last_jobs
	FROM jobq_internal.worker_slots() w
	UNION ALL
	SELECT 'consumer', l.consumer, NULL, l.role::pg_catalog.regrole, l.client,
		NULL, 'running', min(l.since), NULL, NULL, NULL, NULL, NULL, NULL, count(*), NULL, NULL, NULL
	FROM jobq_internal.lease_slots() l
	GROUP BY l.consumer, l.role, l.client;
COMMENT ON VIEW jobq.workers IS 'workers of this database with their current jobs, and consumers that hold jobs';

-- The part for keys of limiters reads live jobs.  The planner removes the parts that a
-- condition on type excludes.  Without a limiter with "by", EXISTS is false, and the part is
-- not executed.
CREATE VIEW jobq.limits WITH (security_barrier) AS
	SELECT 'queue' AS type, q.name AS queue, NULL::text AS kind, NULL::text AS limiter, NULL::text AS key, NULL::text AS group_key,
		s.running, NULL::bigint AS ready, NULL::timestamptz AS oldest_ready, q.max_running,
		q.rate, round(s.tokens::numeric, 3) AS tokens, q.throttle, s.failures AS failed, s.rest_until, NULL::text AS by, NULL::text AS cost, NULL::text AS when_taken,
		NULL::bigint AS waits_for, NULL::timestamptz AS waits_until, NULL::int AS parked, NULL::boolean AS more
	FROM jobq_internal.queue q JOIN jobq_internal.limit_slots() s ON s.queue_id = q.id
	WHERE jobq_internal.may_see_queue(q.id, q.open)
	UNION ALL
	SELECT 'kind', NULL, h.kind, NULL, NULL, NULL,
		s.running, NULL, NULL, h.max_running,
		h.rate, round(s.tokens::numeric, 3), h.throttle, s.failures, s.rest_until, NULL, NULL, NULL,
		NULL, NULL, NULL, NULL
	FROM jobq_internal.handler h JOIN jobq_internal.limit_slots() s ON s.kind_hash = jobq_internal.kind_hash(h.kind)
	WHERE jobq_internal.may_use()
	UNION ALL
	SELECT 'limiter', NULL, NULL, l.name, NULL, NULL,
		s.running, NULL, NULL, l.max_running,
		l.rate, round(s.tokens::numeric, 3), l.throttle, s.failures, s.rest_until, l.by, l.cost, l.when_taken,
		NULL, NULL, NULL, NULL
	FROM jobq_internal.limiter l LEFT JOIN jobq_internal.limit_slots() s ON s.kind_hash = jobq_internal.limiter_hash(l.name)
	WHERE jobq_internal.may_use()
	UNION ALL
	SELECT 'key', NULL, NULL, l.name, k.key, NULL,
		k.running, k.ready, k.oldest_ready, l.max_running,
		l.rate, round(s.tokens::numeric, 3), l.throttle, s.failures, s.rest_until, l.by, l.cost, l.when_taken,
		NULL, NULL, NULL, NULL
	FROM (
		SELECT t.name, t.key,
			(count(*) FILTER (WHERE t.state = 'running'))::int AS running,
			count(*) FILTER (WHERE t.state = 'ready') AS ready,
			min(t.run_at) FILTER (WHERE t.state = 'ready') AS oldest_ready
		FROM (
			SELECT l.name, j.run_at,
				jobq_internal.limit_key(jobq_internal.limiter_hash(l.name), j.payload, j.headers, j.role::pg_catalog.oid, j.tenant, j.group_key, j.tags) AS key,
				jobq_internal.live_state(r.job_id IS NOT NULL OR j.lease_token IS NOT NULL, j.run_at, j.expires_at, j.errors IS NOT NULL, j.waits_for IS NOT NULL) AS state
			FROM jobq_internal.job j
			CROSS JOIN LATERAL unnest(jobq_internal.limiters_of(j.kind, j.queue_id)) u (hash)
			JOIN jobq_internal.limiter l ON jobq_internal.limiter_hash(l.name) = u.hash
			LEFT JOIN jobq_internal.running_jobs r ON r.job_id = j.id
			WHERE l.by IS NOT NULL AND jobq_internal.limit_cost(jobq_internal.limiter_hash(l.name), j.limit_cost) > 0
				AND CASE WHEN l.by IN ('tenant', 'role') THEN jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id)
					ELSE jobq_internal.may_read(j.role::pg_catalog.oid, j.queue_id) END
				AND EXISTS (SELECT FROM jobq_internal.limiter k WHERE k.by IS NOT NULL)
		) t
		WHERE t.state IN ('ready', 'running')
		GROUP BY t.name, t.key
	) k
	JOIN jobq_internal.limiter l ON l.name = k.name
	CROSS JOIN LATERAL jobq_internal.key_slot(jobq_internal.limiter_hash(l.name), k.key) s
	UNION ALL
	SELECT 'group', CASE WHEN s.group_id & 1 = 0 THEN q.name END, NULL, NULL, NULL,
		CASE WHEN jobq_internal.may_read(j.role, j.queue_id) THEN j.group_key END,
		s.running, NULL, NULL, CASE WHEN s.group_id & 1 = 0 THEN nullif(q.group_max_running, 0) ELSE 1 END,
		NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
		(SELECT w.id FROM jobq_internal.job w WHERE w.id = s.waits_for AND jobq_internal.may_see(w.role::pg_catalog.oid, w.queue_id)), s.waits_until, s.parked, s.more
	FROM jobq_internal.group_slots() s
	JOIN LATERAL (SELECT j.queue_id, j.group_key, j.role::pg_catalog.oid AS role FROM jobq_internal.job j
		WHERE j.group_id = s.group_id AND jobq_internal.may_see(j.role::pg_catalog.oid, j.queue_id) LIMIT 1) j ON true
	LEFT JOIN jobq_internal.queue q ON q.id = j.queue_id;
COMMENT ON VIEW jobq.limits IS 'limits of queues, kinds, limiters, keys and groups: running jobs, tokens for further starts, and the end of a rest';

CREATE VIEW jobq.grants WITH (security_barrier) AS
	SELECT p.role::pg_catalog.regrole AS role, p.privilege, q.name AS queue
	FROM jobq_internal.privilege p
	JOIN pg_catalog.pg_roles r ON r.oid = p.role::pg_catalog.oid
	LEFT JOIN jobq_internal.queue q ON q.id = p.queue_id
	WHERE jobq_internal.may_see(p.role::pg_catalog.oid, p.queue_id);
COMMENT ON VIEW jobq.grants IS 'privileges of roles, for a queue or for all queues';

CREATE VIEW jobq.audit_log WITH (security_barrier) AS
	SELECT a.id, a.at, a.role, a.login, a.application, a.action,
		CASE WHEN jobq_internal.may_read(o.role, 0) THEN o.arguments ELSE o.arguments - '{unique_key,group_key}'::text[] END AS arguments, a.jobs
	FROM jobq_internal.audit a
	CROSS JOIN LATERAL (SELECT jsonb_object(a.arguments) AS arguments, coalesce(to_regrole(a.role)::pg_catalog.oid, 0::pg_catalog.oid) AS role) o
	WHERE jobq_internal.may_see(o.role, 0)
	ORDER BY a.id DESC;
COMMENT ON VIEW jobq.audit_log IS 'calls by which operators acted on jobs or changed settings, newest first';
