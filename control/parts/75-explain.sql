-- Why a job does not run, as far as the tables show.  The library adds the facts from
-- shared memory (src/operate/explain.c).
--
-- Each function gets the caller, and whether the caller sees the jobs of all roles.  Jobs
-- of roles whose privileges the caller lacks are counted, but not named.

CREATE FUNCTION jobq_internal.explain_names(caller oid, sees_all boolean, ids bigint[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT concat_ws(' and ',
		CASE count(*) FILTER (WHERE n.seen) WHEN 0 THEN NULL WHEN 1 THEN 'job ' ELSE 'jobs ' END
			|| string_agg(n.id::text, ', ' ORDER BY n.id) FILTER (WHERE n.seen AND n.place <= 10)
			|| CASE WHEN count(*) FILTER (WHERE n.seen) > 10
				THEN format(' and %s more', count(*) FILTER (WHERE n.seen) - 10) ELSE '' END,
		CASE count(*) FILTER (WHERE NOT n.seen) WHEN 0 THEN NULL
			ELSE format('%s of other roles', count(*) FILTER (WHERE NOT n.seen)) END)
	FROM (SELECT m.*, row_number() OVER (PARTITION BY m.seen ORDER BY m.id) AS place
		FROM (SELECT u.id, coalesce((SELECT sees_all OR pg_has_role(caller, j.role, 'USAGE')
				FROM jobq_internal.job j WHERE j.id = u.id), false) AS seen
			FROM unnest(ids) u(id)) m) n
$$;
COMMENT ON FUNCTION jobq_internal.explain_names(oid, boolean, bigint[]) IS 'return live jobs as text, with the ids of the jobs visible to the caller';

CREATE FUNCTION jobq_internal.explain_waiting(job_id bigint, caller oid, sees_all boolean,
	OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	SELECT r.reason, r.detail, r.remedy
	FROM jobq_internal.job j
	JOIN jobq_internal.queue q ON q.id = j.queue_id
	LEFT JOIN pg_roles o ON o.oid = coalesce(q.run_as, j.role)
	-- see 73-held.sql
	CROSS JOIN LATERAL (SELECT coalesce(q.run_as::oid = '4294967295', false)
			OR EXISTS (SELECT FROM jobq_internal.delegation d WHERE d.queue_id = q.id AND d.set_by::oid = '4294967295') AS missing) m
	CROSS JOIN LATERAL (SELECT j.group_held IS NOT NULL
			AND coalesce(jobq_internal.group_waits_until(j.group_held, q.group_on_failure) > jobq_internal.clock(), true) AS holds) w
	CROSS JOIN LATERAL (
		SELECT 1 AS place, 'dormant' AS reason, 'logical replication has copied the job, and the publisher runs it' AS detail,
			'when the publisher is off: SELECT jobq.adopt()' AS remedy
		WHERE j.dormant
		UNION ALL
		SELECT 2, 'expired', format('the job had to start before %s, and becomes expired when its turn comes', date_trunc('second', j.expires_at)), NULL
		WHERE j.expires_at <= jobq_internal.clock()
		UNION ALL
		SELECT 3, 'batch', format('batch %s has not been started', b.id), format('SELECT jobq.start_batch(%s)', b.id)
		FROM jobq_internal.batch b
		WHERE b.id = j.batch_id AND b.state = 'p' AND j.run_at = 'infinity'
		UNION ALL
		(SELECT 4, 'blocked', format('the job needs step "%s" (job %s), which is %s', n.name, n.job_id, n.state),
			CASE WHEN n.state = 'dead' THEN format('SELECT jobq.retry_many(batch_id => %s)', n.batch_id)
				WHEN n.state IN ('cancelled', 'expired') THEN format('SELECT jobq.rerun_steps(%s)', n.batch_id)
				ELSE format('SELECT * FROM jobq.explain(%s)', n.job_id) END
		FROM jobq_internal.step s
		JOIN jobq.steps n ON n.batch_id = s.batch_id AND n.job_id = ANY (s.needs)
		WHERE s.job_id = j.id AND j.run_at = 'infinity' AND n.state IS DISTINCT FROM 'completed' AND n.state IS DISTINCT FROM 'skipped'
			AND NOT (n.definition @> '{"optional": true}' AND n.state IN ('dead', 'cancelled', 'expired'))
		ORDER BY n.job_id LIMIT 20)
		UNION ALL
		SELECT 4, 'workflow', format('the job represents workflow %s, which is %s', w.id, w.state), format('SELECT * FROM jobq.batches WHERE id = %s', w.id)
		FROM jobq_internal.batch i
		JOIN jobq_internal.batch_list w ON w.id = i.id
		WHERE i.parent = j.batch_id AND i.parent_job = j.id AND j.run_at = 'infinity'
		UNION ALL
		SELECT 5, 'scheduled', format('the job is due at %s, in %s', date_trunc('second', j.run_at), date_trunc('second', j.run_at - jobq_internal.clock())),
			format('SELECT jobq.edit(%s, run_at => now())', j.id)
		WHERE j.run_at > jobq_internal.clock() AND j.run_at < 'infinity' AND j.errors IS NULL AND j.waits_for IS NULL
		UNION ALL
		SELECT 6, 'retryable', format('attempt %s%s has failed, and the next is due at %s, in %s: %s', j.attempt, ' of ' || nullif(j.max_attempts, 0),
				date_trunc('second', j.run_at), date_trunc('second', j.run_at - jobq_internal.clock()), j.errors -> -1 ->> 'message'),
			format('SELECT jobq.retry(%s)', j.id)
		WHERE j.run_at > jobq_internal.clock() AND j.run_at < 'infinity' AND j.errors IS NOT NULL AND j.waits_for IS NULL
		UNION ALL
		(SELECT 6, 'suspended', format('the procedure has waited for %s since %s, and waits %s', j.waits_for, date_trunc('second', s.begun_at),
				coalesce('until ' || date_trunc('second', s.until), 'without a limit')),
			CASE s.type WHEN 'w' THEN format('SELECT jobq.signal(%s, %L)', j.id, s.signal)
				WHEN 'a' THEN format('SELECT * FROM jobq.explain(%s)', substring(j.waits_for FROM '^job (\d+) of')) END
		FROM jobq_internal.procedure_step s
		WHERE s.job_id = j.id AND s.done_at IS NULL AND j.waits_for IS NOT NULL AND j.run_at > jobq_internal.clock()
		ORDER BY s.begun_at DESC LIMIT 1)
		UNION ALL
		SELECT 7, 'paused', format('queue "%s" is paused', q.name), format('SELECT jobq.resume(%L)', q.name)
		WHERE q.paused
		UNION ALL
		SELECT 7, 'paused', format('tenant "%s" of queue "%s" is paused', j.tenant, q.name), format('SELECT jobq.resume(%L, %L)', q.name, j.tenant)
		WHERE j.tenant = ANY (q.paused_tenants)
		UNION ALL
		SELECT 7, 'paused', format('kind "%s" of queue "%s" is paused', j.kind, q.name), format('SELECT jobq.resume(%L, kind => %L)', q.name, j.kind)
		WHERE j.kind = ANY (q.paused_kinds)
		UNION ALL
		SELECT 8, 'run_as', format('the role run_as of queue "%s", or the role that set run_as, did not exist when the database was restored', q.name),
			'create the roles that jobq.doctor() names, then SELECT jobq.adopt()'
		WHERE m.missing
		UNION ALL
		SELECT 8, 'role', CASE WHEN o.oid IS NULL THEN 'the role of the job no longer exists'
				WHEN NOT o.rolcanlogin AND current_setting('server_version_num')::int < 170000 THEN format('role %I of the job may not log in', o.rolname)
				ELSE format('role %I of the job may not connect to the database', o.rolname) END,
			CASE WHEN o.oid IS NULL THEN format('SELECT jobq.cancel(%s)', j.id)
				WHEN NOT o.rolcanlogin AND current_setting('server_version_num')::int < 170000 THEN format('ALTER ROLE %I LOGIN', o.rolname)
				ELSE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), o.rolname) END
		WHERE q.mode = 'worker' AND NOT m.missing AND (o.oid IS NULL
			OR NOT o.rolcanlogin AND current_setting('server_version_num')::int < 170000
			OR NOT has_database_privilege(o.oid, current_database(), 'CONNECT'))
		UNION ALL
		SELECT 9, 'group', format('the group waits for %s, which has begun before and is due again at %s%s',
				jobq_internal.explain_names(caller, sees_all, ARRAY[h.id]), date_trunc('second', h.run_at),
				', until ' || date_trunc('second', jobq_internal.group_waits_until(h.group_held, k.group_on_failure)) || ' at most'),
			CASE WHEN sees_all OR pg_has_role(caller, h.role, 'USAGE') THEN format('SELECT * FROM jobq.explain(%s)', h.id) END
		FROM jobq_internal.job h
		JOIN jobq_internal.queue k ON k.id = h.queue_id
		WHERE h.group_id = j.group_id AND h.group_held IS NOT NULL AND h.id <> j.id AND NOT h.dormant
			AND q.group_on_failure <> 'continue' AND NOT w.holds AND j.run_at <= jobq_internal.clock()
			AND coalesce(jobq_internal.group_waits_until(h.group_held, k.group_on_failure) > jobq_internal.clock(), true)
			AND NOT EXISTS (SELECT FROM jobq_internal.running_jobs r WHERE r.job_id = h.id)
		UNION ALL
		SELECT 10, 'group', format('group_max_running is %s, and these jobs of the group run: %s', q.group_max_running,
				jobq_internal.explain_names(caller, sees_all, m.ids)),
			CASE WHEN q.group_scope = 'queue' THEN format('SELECT jobq.alter_queue(%L, group_max_running => %s)', q.name, q.group_max_running + 1) END
		FROM (SELECT array_agg(r.job_id) AS ids FROM jobq_internal.running_jobs r JOIN jobq_internal.job g ON g.id = r.job_id
			WHERE g.group_id = j.group_id AND g.id <> j.id) m
		WHERE q.group_max_running > 0 AND cardinality(m.ids) >= q.group_max_running AND j.run_at <= jobq_internal.clock()
		UNION ALL
		(SELECT 11, 'predecessor', format('%s comes first in the group',
				jobq_internal.explain_names(caller, sees_all, ARRAY[p.id])),
			CASE WHEN sees_all OR pg_has_role(caller, p.role, 'USAGE') THEN format('SELECT * FROM jobq.explain(%s)', p.id) END
		FROM jobq_internal.job p
		WHERE p.group_id = j.group_id AND (p.priority, p.run_at, p.id) < (j.priority, j.run_at, j.id)
			AND NOT p.dormant AND q.group_max_running = 1 AND j.run_at <= jobq_internal.clock() AND NOT w.holds
			AND NOT EXISTS (SELECT FROM jobq_internal.running_jobs r WHERE r.job_id = p.id)
		ORDER BY p.priority, p.run_at, p.id LIMIT 1)
		UNION ALL
		SELECT 12, 'taken', CASE WHEN l.pid IS NULL THEN format('prepared transaction %L has locked the row of the job', x.gid)
				ELSE format('the transaction of process %s has locked the row of the job, since %s: the session runs, cancels or changes the job', l.pid, date_trunc('second', a.xact_start)) END,
			CASE WHEN l.pid IS NULL THEN format('ROLLBACK PREPARED %L', x.gid) ELSE format('SELECT pg_terminate_backend(%s)', l.pid) END
		FROM pg_locks l
		LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		LEFT JOIN pg_prepared_xacts x ON x.transaction = l.transactionid
		WHERE j.xmax <> '0'::xid AND l.locktype = 'transactionid' AND l.transactionid = j.xmax
			AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()) r
	WHERE j.id = explain_waiting.job_id
	ORDER BY r.place
$$;
COMMENT ON FUNCTION jobq_internal.explain_waiting(bigint, oid, boolean) IS 'return the reasons why a waiting job does not run, as far as the tables show; for explain()';

CREATE FUNCTION jobq_internal.explain_limit(job_id bigint, caller oid, sees_all boolean, limiter int,
	OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	SELECT 'limit', format('max_running of %s "%s" is %s, and these run: %s', l.what, l.name, l.most,
			coalesce(jobq_internal.explain_names(caller, sees_all, m.ids), 'those that are about to start')),
		CASE WHEN l.what = 'kind' THEN format('register kind %L with a higher max_running', l.name)
			WHEN l.what = 'limiter' THEN format('SELECT jobq.create_limiter(%L, max_running => %s)', l.name, l.most + 1)
			ELSE format('SELECT jobq.alter_queue(%L, max_running => %s)', l.name, l.most + 1) END
	FROM jobq_internal.job j
	CROSS JOIN LATERAL (
		SELECT 'queue' AS what, q.name, q.max_running AS most FROM jobq_internal.queue q WHERE q.id = j.queue_id AND explain_limit.limiter = 0
		UNION ALL
		SELECT 'kind', h.kind, h.max_running FROM jobq_internal.handler h WHERE h.kind = j.kind AND jobq_internal.kind_hash(h.kind) = explain_limit.limiter
		UNION ALL
		SELECT 'limiter', n.name, n.max_running FROM jobq_internal.limiter n WHERE jobq_internal.limiter_hash(n.name) = explain_limit.limiter) l
	CROSS JOIN LATERAL (SELECT array_agg(r.job_id) AS ids
		FROM jobq_internal.running_jobs r JOIN jobq_internal.job g ON g.id = r.job_id
		WHERE CASE WHEN explain_limit.limiter = 0 THEN g.queue_id = j.queue_id
			ELSE explain_limit.limiter = ANY (jobq_internal.limiters_of(g.kind, g.queue_id))
				AND jobq_internal.limit_cost(explain_limit.limiter, g.limit_cost) > 0 END) m
	WHERE j.id = explain_limit.job_id
$$;
COMMENT ON FUNCTION jobq_internal.explain_limit(bigint, oid, boolean, int) IS 'return the jobs that hold back a job by max_running of its queue (limiter 0), or of the kind or limiter with this hash; for explain()';

CREATE FUNCTION jobq_internal.explain_running(job_id bigint, caller oid, sees_all boolean, named bigint,
	OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	SELECT r.reason, r.detail, r.remedy
	FROM jobq_internal.job j
	CROSS JOIN LATERAL (
		SELECT 1 AS place, 'running' AS reason, format('attempt %s%s has run in worker %s for %s%s', w.attempt, ' of ' || nullif(j.max_attempts, 0), w.pid,
				date_trunc('milliseconds', jobq_internal.clock() - w.job_started_at), coalesce(format(', and waits for %s/%s', a.wait_event_type, a.wait_event), '')) AS detail,
			format('SELECT jobq.cancel(%s)', j.id) AS remedy
		FROM jobq_internal.worker_slots() w LEFT JOIN pg_stat_activity a ON a.pid = w.pid
		WHERE w.job_id = explain_running.named
		UNION ALL
		SELECT 2, 'held', format('consumer "%s" has held the job for %s, and its lease ends at %s', l.consumer, date_trunc('milliseconds', jobq_internal.clock() - l.since), date_trunc('second', l.lease_until)),
			format('SELECT jobq.cancel(%s)', j.id)
		FROM jobq_internal.lease_slots() l
		WHERE l.job_id = j.id
		UNION ALL
		SELECT 3, 'usual', format('of the last %s completed jobs of this kind, half took at most %s, and all at most %s', u.n, date_trunc('milliseconds', u.half), date_trunc('milliseconds', u.longest)), NULL
		FROM (SELECT count(*) AS n, percentile_cont(0.5) WITHIN GROUP (ORDER BY a.took) AS half, max(a.took) AS longest
			FROM (SELECT a.kind, a.role, a.state, a.finished_at - a.started_at AS took FROM jobq_internal.archive a ORDER BY a.id DESC LIMIT 1000) a
			WHERE a.kind = j.kind AND a.role = j.role AND a.state = 'c') u
		WHERE u.n > 0
		UNION ALL
		SELECT 4, 'lock', format('the handler waits for %s on %s, which %s', coalesce(l.mode, 'a lock'),
				CASE l.locktype WHEN 'relation' THEN coalesce(l.relation::regclass::text, 'a relation')
					WHEN 'advisory' THEN format('the advisory lock %s, %s', l.classid, l.objid)
					WHEN 'transactionid' THEN 'a row that another transaction has written'
					ELSE coalesce(l.locktype, 'something') END,
				CASE WHEN b.pid = 0 THEN 'a prepared transaction has'
					ELSE format('process %s of role %I has%s', b.pid, s.usename,
						CASE WHEN x.job_id IS NOT NULL THEN format(', which runs %s', jobq_internal.explain_names(caller, sees_all, ARRAY[x.job_id]))
							WHEN sees_all OR pg_has_role(caller, s.usesysid, 'USAGE') THEN format(', which is %s since %s', s.state, date_trunc('second', s.state_change))
							ELSE '' END) END),
			CASE WHEN b.pid = 0 THEN 'see pg_prepared_xacts'
				WHEN x.job_id IS NOT NULL AND (sees_all OR EXISTS (SELECT FROM jobq_internal.job o WHERE o.id = x.job_id AND pg_has_role(caller, o.role, 'USAGE'))) THEN format('SELECT * FROM jobq.explain(%s)', x.job_id)
				ELSE format('SELECT pg_terminate_backend(%s)', b.pid) END
		FROM jobq_internal.worker_slots() w
		CROSS JOIN LATERAL (SELECT DISTINCT u.pid FROM unnest(pg_blocking_pids(w.pid)) u(pid)) b
		LEFT JOIN pg_stat_activity s ON s.pid = b.pid
		LEFT JOIN jobq_internal.worker_slots() x ON x.pid = b.pid
		LEFT JOIN LATERAL (SELECT p.* FROM pg_locks p WHERE p.pid = w.pid AND NOT p.granted LIMIT 1) l ON true
		WHERE w.job_id = explain_running.named) r
	WHERE j.id = explain_running.job_id
	ORDER BY r.place
$$;
COMMENT ON FUNCTION jobq_internal.explain_running(bigint, oid, boolean, bigint) IS 'return the worker or consumer of a running job, the awaited lock, and the usual run time of the kind; for explain(). named: the job, or the first job of its call';

CREATE FUNCTION jobq.explain(id bigint, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_explain'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 3;
COMMENT ON FUNCTION jobq.explain(bigint) IS 'explain why a job does not run, or why a running job waits: a row for each reason, with the remedy, if any
id: the id of the job';
