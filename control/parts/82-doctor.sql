-- doctor(): problems of the set-up, stalled work, and the fixes.

CREATE FUNCTION jobq_internal.setup(
	OUT preloaded boolean, OUT library text, OUT fits boolean, OUT named boolean, OUT workers int, OUT clock_offset bigint, OUT clock_ahead bigint)
RETURNS record AS 'MODULE_PATHNAME', 'jobq_setup'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.setup() IS 'return the set-up of jobq; also works with a library that does not fit the extension';

CREATE FUNCTION jobq_internal.pool_problems(OUT problem text, OUT setting text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_pool_problems' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.pool_problems() IS 'return probable mistakes in jobq.workers, and the setting that is too small, or jobq.workers';

CREATE FUNCTION jobq_internal.capacity(OUT slots text, OUT setting text, OUT used int, OUT most int, OUT twice bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_capacity'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.capacity() IS 'return the slots in shared memory: what for, which setting provides them, how many are used, how many there are; twice: the value of the setting for twice as many';

CREATE FUNCTION jobq_internal.lane_slots(
	OUT queue text, OUT role oid, OUT mode text, OUT paused boolean, OUT served boolean, OUT attended boolean, OUT limited boolean, OUT oldest timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_lane_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.lane_slots() IS 'return visible lanes with jobs that may run now; attended: a worker or consumer is present; oldest: null if none was read';

CREATE FUNCTION jobq_internal.run_as_refusal(queue text) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_run_as_refusal' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.run_as_refusal(text) IS 'return why no job of the queue may run as the role run_as; null: jobs may';

CREATE FUNCTION jobq_internal.handler_is_there(kind text) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_handler_is_there' LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.handler_is_there(text) IS 'return whether the handler of a kind exists, in any schema';

CREATE FUNCTION jobq_internal.conf_line(name text, value text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('postgresql.conf: %s = %s (then %s)', name,
		CASE WHEN value ~ '^[0-9a-z]+$' THEN value ELSE quote_literal(value) END,
		CASE WHEN coalesce((SELECT context FROM pg_settings s WHERE s.name = conf_line.name), 'postmaster') = 'postmaster'
			THEN 'restart the server' ELSE 'reload: SELECT pg_reload_conf()' END)
$$;
COMMENT ON FUNCTION jobq_internal.conf_line(text, text) IS 'return a hint to change a setting in postgresql.conf, and to apply the change';

CREATE FUNCTION jobq.doctor(patience interval DEFAULT '10 min', OUT severity text, OUT detail text, OUT remedy text) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
	s record;
	r record;
	pools text := current_setting('jobq.workers', true);
	asked int;
	most CONSTANT int := 5000;		-- dead letters to read
	clock CONSTANT timestamptz := jobq_internal.clock();		-- can be compared by an index
BEGIN
	SELECT * INTO s FROM jobq_internal.setup();

	-- all further checks need a fitting library, loaded at server start
	IF NOT s.fits THEN
		SELECT e.extversion, (SELECT a.default_version FROM pg_available_extensions a WHERE a.name = 'jobq') AS newest
		INTO r FROM pg_extension e WHERE e.extname = 'jobq';
		RETURN QUERY SELECT 'critical', format('the extension has version %s, and the server''s library is of version %s', r.extversion, s.library),
			CASE WHEN r.newest IS DISTINCT FROM r.extversion THEN 'ALTER EXTENSION jobq UPDATE'
				ELSE 'install the library of that version, and restart the server' END;
		RETURN;
	END IF;
	IF NOT s.preloaded THEN
		RETURN QUERY SELECT 'critical', 'jobq is not loaded at server start: no job runs',
			jobq_internal.conf_line('shared_preload_libraries', concat_ws(', ',
				nullif((SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries'), ''), 'jobq'));
		RETURN;
	END IF;

	-- settings
	IF pg_is_in_recovery() THEN
		RETURN QUERY SELECT 'notice', 'the server is a standby: no job runs until it is promoted', 'look at the primary server';
	ELSIF NOT s.named THEN
		RETURN QUERY SELECT 'critical', format('jobq.databases does not name database "%s": none of its jobs runs', current_database()),
			jobq_internal.conf_line('jobq.databases', concat_ws(', ', nullif(current_setting('jobq.databases'), ''), quote_ident(current_database())));
	ELSIF NOT EXISTS (SELECT FROM jobq_internal.scheduler_state() WHERE pid IS NOT NULL) THEN
		SELECT * INTO r FROM jobq_internal.capacity() c WHERE c.slots = 'databases';
		RETURN QUERY SELECT 'critical', format('no scheduler runs for database "%s"', current_database()),
			CASE WHEN r.used >= r.most AND NOT EXISTS (SELECT FROM jobq_internal.scheduler_state())
				THEN jobq_internal.conf_line(r.setting, r.twice::text)
				ELSE 'the server''s log has the reason; if no slot for a process is free, ' ||
					jobq_internal.conf_line('max_worker_processes', (2 * current_setting('max_worker_processes')::int)::text) END;
	END IF;
	IF current_setting('jobq.start_paused')::boolean THEN
		RETURN QUERY SELECT 'critical', 'jobq.start_paused is on: no job runs', jobq_internal.conf_line('jobq.start_paused', 'off');
	END IF;
	RETURN QUERY SELECT 'critical', 'the database is a copy of a database served elsewhere: no job runs',
		'cancel the jobs that must not run here, then SELECT jobq.adopt()'
		FROM jobq_internal.scheduler_state() c WHERE c.copied;
	RETURN QUERY SELECT 'critical', CASE WHEN h.found THEN format('role %s was created after the restore of its rows (%s): they are not in use', h.role, h.tables)
			ELSE format('role %s does not exist: its restored rows (%s) are not in use', h.role, h.tables) END,
		CASE WHEN h.found THEN '' ELSE format('CREATE ROLE %s, then ', h.role) END || 'SELECT jobq.adopt()'
		FROM jobq_internal.held_roles h ORDER BY h.role;
	asked := s.workers;
	RETURN QUERY SELECT 'warning', p.problem,
		CASE p.setting WHEN 'jobq.max_workers' THEN jobq_internal.conf_line(p.setting, asked::text)
			WHEN 'max_worker_processes' THEN jobq_internal.conf_line(p.setting, (asked + 2)::text)
			ELSE 'postgresql.conf: jobq.workers, now ' || quote_literal(pools) END
		FROM jobq_internal.pool_problems() p;
	RETURN QUERY SELECT 'warning', format('%s is still %s: the new value takes effect at a restart of the server', p.name, p.setting), 'restart the server'
		FROM pg_settings p WHERE p.pending_restart AND (p.name LIKE 'jobq.%' OR p.name IN ('max_worker_processes', 'shared_preload_libraries'));
	IF has_table_privilege('pg_file_settings', 'SELECT') AND has_function_privilege('pg_show_all_file_settings()', 'EXECUTE') THEN
		RETURN QUERY SELECT 'critical', format('%s cannot be set to "%s": %s', f.name, f.setting, f.error), format('%s, line %s', f.sourcefile, f.sourceline)
			FROM pg_file_settings f
			WHERE f.name LIKE 'jobq.%' AND f.error IS NOT NULL AND NOT EXISTS (
				SELECT FROM pg_settings p WHERE p.name = f.name AND p.pending_restart);
	END IF;
	RETURN QUERY SELECT 'critical', format('%s is off: a crash of the operating system may lose or damage jobs', p.name), jobq_internal.conf_line(p.name, 'on')
		FROM pg_settings p WHERE p.name IN ('fsync', 'full_page_writes') AND p.setting = 'off' ORDER BY p.name;
	RETURN QUERY SELECT 'warning', 'autovacuum is off: the tables of jobs grow without end', jobq_internal.conf_line('autovacuum', 'on')
		WHERE NOT current_setting('autovacuum')::boolean;
	RETURN QUERY SELECT 'warning', format('jobq.test_clock() has put the clock of jobs forward by %s', make_interval(secs => s.clock_offset / 1e6)),
		'SELECT jobq.test_clock(''0'')' WHERE s.clock_offset <> 0;
	RETURN QUERY SELECT 'warning', format('the clock has jumped forward by %s: for an hour, nothing is deleted because of its age, and schedules with missed => ''all'' do not catch up', make_interval(secs => round(s.clock_ahead / 1e6))),
		format('set the clock; if the clock is right, SELECT jobq.test_clock(%L)', make_interval(secs => s.clock_offset / 1e6)) WHERE s.clock_ahead <> 0;
	-- a single role gets at most seven eighths
	RETURN QUERY SELECT 'warning', format('%s of %s slots for %s are in use', c.used, c.most, c.slots),
		CASE WHEN c.twice IS NULL THEN 'there cannot be more slots' ELSE jobq_internal.conf_line(c.setting, c.twice::text) END
		FROM jobq_internal.capacity() c
		WHERE c.used >= 0.8 * c.most AND c.slots IN ('lanes', 'groups', 'limits', 'leases');

	-- versions and tables
	RETURN QUERY SELECT 'notice', format('version %s of the extension is installed on the server, and this database has %s', a.default_version, a.installed_version),
		'ALTER EXTENSION jobq UPDATE'
		FROM pg_available_extensions a WHERE a.name = 'jobq' AND a.default_version <> a.installed_version;
	RETURN QUERY SELECT 'critical', format('index %s is not valid', i.indexrelid::regclass), format('REINDEX INDEX %s', i.indexrelid::regclass)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relnamespace = 'jobq_internal'::regnamespace AND NOT i.indisvalid ORDER BY i.indexrelid;

	-- roles and handlers
	RETURN QUERY SELECT 'critical', format('%s %s', l.who, b.reason), b.fix
		FROM (
			SELECT DISTINCT w.role, NULL::text AS queue, format('role %s has waiting jobs, and', w.role::regrole) AS who,
				'cancel them: SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE role = ' || w.role AS otherwise
			FROM jobq_internal.lane_slots() w WHERE w.mode = 'worker'
			UNION ALL
			SELECT q.run_as, q.name, format('queue "%s" runs its jobs as role %s, which', q.name, q.run_as),
				format('SELECT jobq.alter_queue(%L, run_as => ''...'')', q.name)
			-- 4294967295: reported with the restored rows above
			FROM jobq.queues q WHERE q.run_as::oid <> '4294967295') l
		LEFT JOIN pg_roles o ON o.oid = l.role
		CROSS JOIN LATERAL (SELECT jobq_internal.run_as_refusal(l.queue) AS refusal) n
		CROSS JOIN LATERAL (VALUES
			('was dropped', o.oid IS NULL, l.otherwise),
			('may not log in', NOT o.rolcanlogin AND current_setting('server_version_num')::int < 170000, format('ALTER ROLE %s LOGIN', l.role::regrole)),
			('may not connect to the database', o.oid IS NOT NULL AND NOT has_database_privilege(l.role, current_database(), 'CONNECT'),
				format('GRANT CONNECT ON DATABASE %I TO %s', current_database(), l.role::regrole)),
			('is a superuser, whose jobs are not allowed', o.rolsuper AND current_setting('jobq.allow_superuser_jobs') = 'off',
				jobq_internal.conf_line('jobq.allow_superuser_jobs', 'own')),
			('is not allowed: ' || n.refusal, o.oid IS NOT NULL AND n.refusal IS NOT NULL, 'as a role that can SET ROLE to it: ' || l.otherwise)) b (reason, holds, fix)
		-- jobs in shared memory may already be gone; CASE searches for them only if the role has a problem
		WHERE CASE WHEN b.holds THEN l.queue IS NOT NULL OR EXISTS (SELECT FROM jobq.live_jobs j WHERE j.role = l.role AND j.state = 'ready') END
		ORDER BY l.queue NULLS FIRST, l.role;
	RETURN QUERY SELECT 'critical', format('the handler %s of kind "%s" does not exist', k.handler, k.kind),
		format('create the function, or register another: SELECT jobq.register(%L, ''...'')', k.kind)
		FROM jobq.kinds k WHERE NOT jobq_internal.handler_is_there(k.kind) ORDER BY k.kind;

	-- queues
	-- One statement for all queues, because jobq.queues reads the statistics once in a statement.
	-- OFFSET 0 makes the view read only the queues that the conditions leave.
	FOR r IN
		SELECT l.queue, l.mode, l.paused, l.served, l.limited, coalesce(q.oldest_ready, l.oldest) AS oldest
		FROM (
			SELECT w.queue, w.mode, bool_and(w.paused) AS paused, bool_and(w.served) AS served, bool_or(w.limited) AS limited, min(w.oldest) AS oldest
			FROM jobq_internal.lane_slots() w GROUP BY w.queue, w.mode) l
		CROSS JOIN LATERAL (SELECT v.ready, v.oldest_ready FROM jobq.queues v WHERE v.name = l.queue OFFSET 0) q
		WHERE (l.paused OR NOT l.served OR (l.oldest >= jobq_internal.clock() - patience) IS NOT TRUE)
			-- jobs in shared memory may already be gone
			AND q.ready > 0
		ORDER BY l.queue
	LOOP
		-- the queue waits for adopt() only
		CONTINUE WHEN r.paused AND EXISTS (SELECT FROM jobq.queues q WHERE q.name = r.queue AND NOT q.paused AND q.run_as IS NOT NULL);
		IF r.paused THEN
			RETURN QUERY SELECT 'warning', format('queue "%s" is paused, and jobs wait there', r.queue), format('SELECT jobq.resume(%L)', r.queue);
		ELSIF NOT r.served THEN
			RETURN QUERY SELECT 'critical', format('no pool of jobq.workers serves queue "%s", and jobs wait there', r.queue),
				jobq_internal.conf_line('jobq.workers', concat_ws('; ', nullif(pools, ''), r.queue || '=1'));
		ELSIF r.oldest >= jobq_internal.clock() - patience THEN
			CONTINUE;
		ELSIF r.mode = 'worker' THEN
			RETURN QUERY SELECT 'warning', format('a job of queue "%s" has waited since %s', r.queue, date_trunc('second', r.oldest)),
				CASE WHEN r.limited THEN 'limits delay the jobs (see jobq.limits), or more workers are needed: '
					ELSE 'check what the workers do (view jobq.workers), or add workers: ' END || format('setting jobq.workers, now %L', pools);
		ELSE
			RETURN QUERY SELECT 'warning', format('a job of the consumer queue "%s" has waited since %s', r.queue, date_trunc('second', r.oldest)),
				format('start more consumers, such as: jobq work %s --exec ...', r.queue);
		END IF;
	END LOOP;
	RETURN QUERY SELECT 'warning', format('the scheduler cannot %s since %s: %s', t.what, date_trunc('second', t.since), t.error),
		'remove the cause, which the server''s log describes; the scheduler tries again by itself'
		FROM jobq_internal.scheduler_troubles() t ORDER BY t.since;
	RETURN QUERY SELECT 'warning', format('batch %s cannot go on: %s', b.id, b.last_error),
		format('fix the cause, or SELECT jobq.cancel_batch(%s)', b.id)
		FROM jobq.batches b WHERE b.finished_at IS NULL AND b.last_error IS NOT NULL ORDER BY b.id LIMIT 10;
	RETURN QUERY SELECT 'warning', format('schedule "%s" cannot enqueue its job: %s', c.name, c.last_error),
		format('fix the cause, or SELECT jobq.pause(schedule => %L)', c.name)
		FROM jobq.schedules c WHERE c.state = 'failing' ORDER BY c.name LIMIT 10;

	-- dead letters: the newest that the user may see are counted
	SELECT CASE WHEN count(*) > most THEN 'more than ' || most ELSE count(*)::text END AS n, count(*) > 0 AS has,
		CASE WHEN count(*) FILTER (WHERE f.recent) > most THEN 'more than ' || most ELSE count(*) FILTER (WHERE f.recent)::text END AS recent,
		CASE WHEN count(*) > most THEN 'at least ' ELSE '' END || count(*) FILTER (WHERE f.sqlstate = 'JQ009') AS unhandled,
		min(f.kind) FILTER (WHERE f.sqlstate = 'JQ009') AS kind
	INTO r FROM (SELECT d.kind, d.sqlstate, d.finished_at > clock - interval '1 day' AS recent FROM jobq.dead_letters d LIMIT most + 1) f;
	RETURN QUERY SELECT 'warning', format('%s dead letters exist, %s of them from the last day', r.n, r.recent),
		'SELECT * FROM jobq.dead_letters; then jobq.retry_many(state => ''dead'') or jobq.delete_many(state => ''dead'')' WHERE r.has;
	RETURN QUERY SELECT 'warning', format('%s jobs are dead letters because their kind had no handler, such as "%s"', r.unhandled, r.kind),
		format('SELECT jobq.register(%L, ''...''), then jobq.retry_many(kind => %L)', r.kind, r.kind) WHERE r.kind IS NOT NULL;
	SELECT count(*) AS n, CASE WHEN count(*) > most THEN 'more than ' || most ELSE count(*)::text END AS ending
	INTO r FROM (SELECT FROM jobq.dead_letters f
		WHERE f.finished_at < clock - current_setting('jobq.dead_retention')::interval + interval '1 day' LIMIT most + 1) e;
	RETURN QUERY SELECT 'notice', format('%s dead letters are deleted within a day, by jobq.dead_retention', r.ending),
		jobq_internal.conf_line('jobq.dead_retention', '90d') WHERE r.n > 0;

	-- transactions and slots that keep old rows of all tables, or the write-ahead log
	RETURN QUERY SELECT 'warning', format('a transaction of process %s has been open since %s: rows deleted since then cannot be removed', a.pid, date_trunc('second', a.xact_start)),
		format('end the transaction, or SELECT pg_terminate_backend(%s)', a.pid)
		FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.backend_xmin IS NOT NULL AND a.xact_start < clock_timestamp() - patience
			AND a.pid <> pg_backend_pid() ORDER BY a.xact_start LIMIT 5;
	RETURN QUERY SELECT 'warning', format('transaction "%s" has been prepared since %s', p.gid, date_trunc('second', p.prepared)),
		format('COMMIT PREPARED %L, or ROLLBACK PREPARED %L', p.gid, p.gid)
		FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - patience ORDER BY p.prepared LIMIT 5;
	RETURN QUERY SELECT 'warning', format('no process reads from replication slot "%s", which keeps the write-ahead log', t.slot_name),
		format('start the reader again, or SELECT pg_drop_replication_slot(%L)', t.slot_name)
		FROM pg_replication_slots t WHERE NOT t.active AND t.restart_lsn IS NOT NULL ORDER BY t.slot_name;
END
$$;
COMMENT ON FUNCTION jobq.doctor IS 'report problems of the set-up and stalled work, with fixes, as far as visible to the user; no row if all is well
patience: how long a job may wait, or a transaction may be open, before doctor() reports a problem';
