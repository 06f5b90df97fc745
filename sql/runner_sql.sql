-- Jobs that run SQL statements: enqueue_sql(), and schedule(sql => ...).
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob'), jobq.revoke_privilege('regress_jobq_boss');
SELECT jobq.grant_privilege('regress_jobq_alice', 'sql'), jobq.grant_privilege('regress_jobq_bob'), jobq.grant_privilege('regress_jobq_boss', 'operate');
CREATE SCHEMA test_sql AUTHORIZATION regress_jobq_alice;

-- Wait for a job without a snapshot that CREATE INDEX CONCURRENTLY would wait for.
CREATE PROCEDURE test.finish(job bigint) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..30000 LOOP
		IF (SELECT state IN ('completed', 'dead', 'cancelled') FROM jobq.status(job)) THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
	RAISE WARNING 'the job does not end';
END
$$;

-- A statement runs as the role that enqueued the job, in the transaction of the job
SET SESSION AUTHORIZATION regress_jobq_alice;
CREATE TABLE test_sql.t (n int, who text DEFAULT session_user || ' ' || current_user, tx xid8 DEFAULT pg_current_xact_id());
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t SELECT generate_series(1, 10)') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT kind, payload, role, state FROM jobq.jobs WHERE id = :id;
SELECT count(*), count(DISTINCT tx), min(who) FROM test_sql.t;
CREATE TEMP TABLE job AS SELECT n, statement, jobq.enqueue_sql(statement, queue => 'first', priority => n::int) AS id FROM unnest(ARRAY['SELECT n FROM test_sql.t', 'UPDATE test_sql.t SET n = -n WHERE n > 5', 'DELETE FROM test_sql.t WHERE n < 0', 'CREATE TABLE test_sql.copy AS TABLE test_sql.t',
		'CREATE MATERIALIZED VIEW test_sql.m AS SELECT n FROM test_sql.t', 'CREATE UNIQUE INDEX ON test_sql.m (n)', 'DO $x$ BEGIN PERFORM 1; END $x$', 'ANALYZE test_sql.t', 'SET search_path = test_sql', 'EXPLAIN TABLE test_sql.t',
		'SELECT set_config(''search_path'', ''test_sql'', false);']) WITH ORDINALITY u (statement, n);
SELECT statement, (SELECT result FROM test.outcome(id)) FROM job ORDER BY n;
INSERT INTO test_sql.t VALUES (11);
SELECT jobq.enqueue_sql('REFRESH MATERIALIZED VIEW CONCURRENTLY test_sql.m', queue => 'first', priority => 2, timeout => '1 min', headers => '{"trace": 1}') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT max(n) FROM test_sql.m;
-- settings of a statement do not leak into the next job
SELECT jobq.enqueue_sql('SELECT 1 / (current_setting(''search_path'') !~ ''test_sql'')::int', queue => 'first') AS id \gset
SELECT * FROM test.outcome(:id);
-- a statement with a call of a jobq function, here to cancel the current job
SELECT jobq.enqueue_sql('SELECT jobq.cancel_current(''of no use'')') AS id \gset
SELECT * FROM test.outcome(:id);
-- a statement fails like a handler
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t SELECT 1 / 0', max_attempts => 2, backoff => 'fixed 1ms') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('SELECT FROM no_such_table', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('TABLE jobq_internal.job', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('SET SESSION AUTHORIZATION regress_jobq_bob', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
-- timeout and cancellation: the statement waits for a lock that this session holds
SELECT pg_advisory_lock(12);
SELECT jobq.enqueue_sql('SELECT pg_advisory_xact_lock(12)', timeout => '20 ms', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('SELECT pg_advisory_xact_lock(12)') AS id \gset
SELECT test.until('EXISTS (SELECT FROM pg_locks WHERE locktype = ''advisory'' AND objid = 12 AND NOT granted)');
SELECT jobq.cancel(:id);
SELECT * FROM test.outcome(:id);
-- a rolled back enqueue leaves nothing; "sql" can be enqueued like any other kind
BEGIN;
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t VALUES (100)') AS rolled_back \gset
ROLLBACK;
SELECT jobq.enqueue('sql', '{"sql": "SELECT 1"}') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT min(id) AS first, max(id) AS second FROM jobq.enqueue_many('sql', '{"{\"sql\": \"SELECT 2\"}","{\"sql\": \"SELECT 2 WHERE false\"}"}') id \gset
SELECT * FROM test.outcome(:first);
SELECT * FROM test.outcome(:second);
CALL jobq.call('sql', '{"sql": "SELECT 3"}');

-- Several statements of a job are one transaction: all or none
SELECT jobq.enqueue_sql('CREATE TABLE test_sql.several (n int); INSERT INTO test_sql.several VALUES (1), (2); UPDATE test_sql.several SET n = n + 1;') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT * FROM test_sql.several ORDER BY n;
SELECT jobq.enqueue_sql('DELETE FROM test_sql.several; SELECT 1 / 0', max_attempts => 1) AS id \gset
SELECT state, error FROM test.outcome(:id);
SELECT count(*) FROM test_sql.several;
DROP TABLE test_sql.several;
-- statements of a schedule have one attempt, unless the schedule sets max_attempts
SELECT jobq.schedule('several', '@yearly', sql => 'SELECT 1; SELECT 1 / 0'), jobq.schedule('tried', '@yearly', sql => 'SELECT 1', options => '{"max_attempts": 4}');
SELECT jobq.run_schedule('several') AS id, jobq.run_schedule('tried') AS tried \gset
SELECT state, attempt, error FROM test.outcome(:id);
SELECT max_attempts FROM jobq.jobs WHERE id = :tried;
SELECT state FROM test.outcome(:tried);
SELECT last_state, last_error FROM jobq.schedules WHERE name = 'several';
SELECT jobq.unschedule('several'), jobq.unschedule('tried');
-- a statement in place of a kind
SELECT n, e.code, e.hint FROM unnest(ARRAY['jobq.schedule(''x'', ''@daily'', ''DELETE FROM test_sql.t'')', 'jobq.enqueue(''DELETE FROM test_sql.t WHERE n IN (' || repeat('1, ', 100) || '0)'')', 'jobq.enqueue(''send mail'')']) WITH ORDINALITY u (c, n), test.error('SELECT ' || c) e ORDER BY n;

-- Statements that are refused
SELECT s, e.* FROM unnest(ARRAY['', ' -- nothing', ';', 'SELECT 1; VACUUM', 'SELECT 1; COMMIT', 'SELEC 1', 'SELECT $', 'BEGIN', 'COMMIT', 'ROLLBACK TO SAVEPOINT a', 'PREPARE TRANSACTION ''x''', 'COPY t FROM STDIN', 'COPY t TO STDOUT',
	'VACUUM', 'VACUUM (FULL) t', 'CREATE INDEX CONCURRENTLY ON t (n)', 'DROP INDEX CONCURRENTLY i', 'REINDEX INDEX CONCURRENTLY i', 'REINDEX (CONCURRENTLY) TABLE t', 'REINDEX DATABASE d', 'CLUSTER', 'ALTER TABLE t DETACH PARTITION p CONCURRENTLY',
	'DISCARD ALL', 'CREATE DATABASE d', 'DROP DATABASE d', 'ALTER SYSTEM SET work_mem = 1', 'CREATE TABLESPACE s LOCATION ''/x''']) WITH ORDINALITY u (s, n), test.error(format('SELECT jobq.enqueue_sql(%L)', s)) e ORDER BY n;
-- REPACK came with 19
SELECT s, e.code FROM unnest(ARRAY['REPACK', 'REPACK (CONCURRENTLY) t']) s, test.error(format('SELECT jobq.enqueue_sql(%L)', s)) e WHERE current_setting('server_version_num')::int >= 190000 AND e.code IS DISTINCT FROM '25001';
SELECT s, e.* FROM unnest(ARRAY['COMMIT', 'SELECT 1; VACUUM', 'COPY t TO STDOUT']) WITH ORDINALITY u (s, n), test.error(format('SELECT jobq.enqueue_sql(%L, transaction => false)', s)) e ORDER BY n;
SELECT p, e.* FROM unnest(ARRAY['{}', '[]', '"SELECT 1"', '{"sql": 1}', '{"sql": null}', '{"sql": "SELECT 1", "transaction": 0}', '{"sql": "SELECT 1", "database": "x"}']) WITH ORDINALITY u (p, n),
	test.error(format('SELECT jobq.enqueue(''sql'', %L)', p)) e ORDER BY n;
SELECT e.* FROM unnest(ARRAY['NULL', '''SELECT 1'', NULL', '''SELECT 1'', run_at => ''infinity''']) WITH ORDINALITY u (a, n), test.error('SELECT jobq.enqueue_sql(' || a || ')') e ORDER BY n;
SELECT jobq.enqueue_sql('SELECT 1 +');
RESET SESSION AUTHORIZATION;
SELECT e.* FROM unnest(ARRAY['SELECT jobq.register(''sql'', ''test.echo(jsonb)'')', 'SELECT jobq.unregister(''sql'')', 'SELECT jobq.perform(''sql'', ''{"sql": "SELECT 1"}'')',
	'SELECT test.chain(''[{"kind": "sql", "payload": {"sql": "SELECT 1"}}]'')', 'SELECT jobq.create_batch(on_finish => ''{"kind": "sql", "payload": {"sql": "SELECT 1"}}'')',
	'SELECT jobq.create_workflow(''{"steps": [{"name": "a", "kind": "sql", "payload": {"sql": "SELECT 1"}}]}'')']) WITH ORDINALITY u (c, n), test.error(c) e ORDER BY n;

-- Consumers do not run statements, and queues with run_as refuse statements
SELECT jobq.create_queue('outside of sql', mode => 'consumer'), jobq.create_queue('others of sql', run_as => 'regress_jobq_boss', open => true);
SELECT e.* FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1', queue => 'outside of sql')$$) e;
SELECT e.* FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1', queue => 'others of sql')$$) e;
SELECT jobq.alter_queue('others of sql', run_as => '-');
SELECT jobq.pause('others of sql'), jobq.grant_privilege('regress_jobq_alice', queue => 'others of sql');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue_sql('SELECT 1', queue => 'others of sql') AS id \gset
RESET ROLE;
SELECT jobq.alter_queue('others of sql', run_as => 'regress_jobq_boss'), jobq.resume('others of sql');
SELECT * FROM test.outcome(:id);
SELECT jobq.drop_queue('others of sql', force => true), jobq.drop_queue('outside of sql');

-- Statements require the privilege "sql", both when enqueued and when run
SET ROLE regress_jobq_bob;
SELECT * FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1')$$);
SELECT * FROM test.error($$SELECT jobq.enqueue('sql', '{"sql": "SELECT 1"}')$$);
SELECT * FROM test.error($$INSERT INTO jobq.inbox (kind, payload) VALUES ('sql', '{"sql": "SELECT 1"}')$$);
SELECT * FROM test.error($$SELECT jobq.schedule('x', '@daily', sql => 'SELECT 1')$$);
SET ROLE regress_jobq_boss;
SELECT * FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1')$$);
RESET ROLE;
SELECT jobq.create_queue('sql of some'), jobq.grant_privilege('regress_jobq_bob', 'sql', 'sql of some');
SET ROLE regress_jobq_bob;
SELECT jobq.enqueue_sql('SELECT 1', queue => 'sql of some') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT * FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1')$$);
RESET ROLE;
SELECT role, privilege, queue FROM jobq.grants WHERE privilege = 'sql' ORDER BY 1;
SELECT jobq.pause('sql of some');
SET ROLE regress_jobq_bob;
SELECT jobq.enqueue_sql('SELECT 1', queue => 'sql of some') AS id \gset
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_bob', 'sql', 'sql of some'), jobq.resume('sql of some');
SELECT * FROM test.outcome(:id);
SELECT jobq.grant_privilege('regress_jobq_bob', 'sql', 'sql of some'), jobq.retry(:id);
SELECT * FROM test.outcome(:id);
SELECT jobq.drop_queue('sql of some', force => true);
-- a SECURITY DEFINER function enqueues with its owner's privileges; an owner without "sql" is refused
CREATE FUNCTION test.passes_on(kind text, payload jsonb) RETURNS bigint SECURITY DEFINER LANGUAGE sql AS $$ SELECT jobq.enqueue(kind, payload) $$;
ALTER FUNCTION test.passes_on OWNER TO regress_jobq_bob;
SET ROLE regress_jobq_alice;
SELECT * FROM test.error($$SELECT test.passes_on('sql', '{"sql": "SELECT 1"}')$$);
RESET ROLE;
DROP FUNCTION test.passes_on;
-- reassign_owned() does not move statements to another role
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue_sql('SELECT 1', queue => 'manual') AS stays, jobq.enqueue('echo', queue => 'manual') AS goes, jobq.schedule('of alice', '@yearly', sql => 'SELECT 1') \gset
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_alice', 'regress_jobq_bob') > 0 AS some;
SELECT kind, role FROM jobq.jobs WHERE id IN (:stays, :goes) ORDER BY id;
SELECT kind, role FROM jobq.schedules WHERE name = 'of alice';
SELECT jobq.cancel(:stays), jobq.cancel(:goes), jobq.unschedule('of alice');
-- rerun() runs a finished statement as its original role, if this role still has the privilege
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t VALUES (300)') AS id \gset
SELECT state FROM test.outcome(:id);
SET ROLE regress_jobq_bob;
SELECT e.code FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_boss;
SELECT e.code FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
RESET ROLE;
GRANT regress_jobq_alice TO regress_jobq_bob;
SET ROLE regress_jobq_bob;
SELECT jobq.rerun(:id) AS again \gset
SELECT state FROM test.outcome(:again);
RESET ROLE;
REVOKE regress_jobq_alice FROM regress_jobq_bob;
DELETE FROM test_sql.t WHERE n = 300 RETURNING who;
SELECT jobq.revoke_privilege('regress_jobq_alice', 'sql'), jobq.grant_privilege('regress_jobq_alice');
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_alice', 'sql');

-- jobq.work() runs statements in a transaction only
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t VALUES (200)', queue => 'manual') AS id, jobq.enqueue_sql('VACUUM test_sql.t', false, queue => 'manual') AS outside \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, result FROM jobq.jobs WHERE id = :id;
SELECT state FROM jobq.status(:outside);
SELECT jobq.cancel(:outside);

-- Outside of a transaction: the statement commits its own changes
SELECT jobq.enqueue_sql('VACUUM test_sql.t', transaction => false) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT payload FROM jobq.jobs WHERE id = :id;
SELECT jobq.enqueue_sql('CREATE INDEX CONCURRENTLY by_n ON test_sql.t (n)', false) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT jobq.enqueue_sql('REINDEX TABLE CONCURRENTLY test_sql.t', false) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT indisvalid FROM pg_index WHERE indexrelid = 'test_sql.by_n'::regclass;
CREATE PROCEDURE test_sql.thrice() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1001..1003 LOOP
		INSERT INTO test_sql.t VALUES (i);
		COMMIT;
	END LOOP;
END
$$;
SELECT jobq.enqueue_sql('CALL test_sql.thrice()', false) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT count(*), count(DISTINCT tx) FROM test_sql.t WHERE n > 1000;
SELECT jobq.enqueue_sql('INSERT INTO test_sql.t SELECT generate_series(2001, 2003)', false) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT jobq.enqueue_sql('SET work_mem = ''100kB''', false, queue => 'first') AS id, jobq.enqueue_sql('SELECT 1 / (current_setting(''work_mem'') <> ''100kB'')::int', queue => 'first') AS next \gset
CALL test.finish(:id);
SELECT * FROM test.outcome(:next);
-- a failed attempt is charged and repeated; committed changes stay
CREATE PROCEDURE test_sql.twice() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test_sql.t VALUES (3001);
	COMMIT;
	RAISE EXCEPTION 'broken';
END
$$;
SELECT jobq.enqueue_sql('CALL test_sql.twice()', false, max_attempts => 2, backoff => 'fixed 1ms') AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT count(*) FROM test_sql.t WHERE n = 3001;
SELECT jobq.enqueue_sql('CREATE UNIQUE INDEX CONCURRENTLY fails ON test_sql.t ((n IS NULL))', false, max_attempts => 1) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT jobq.enqueue_sql('VACUUM no_such_table', false, max_attempts => 1) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT jobq.enqueue_sql('CREATE DATABASE not_mine', false, max_attempts => 1) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
-- cancellation and timeout
SELECT jobq.enqueue_sql('SELECT pg_advisory_xact_lock(12)', false, timeout => '20 ms', max_attempts => 1) AS id \gset
CALL test.finish(:id);
SELECT state, attempt, result, error FROM jobq.status(:id);
SELECT jobq.enqueue_sql('SELECT pg_advisory_xact_lock(12)', false) AS id \gset
SELECT test.until('EXISTS (SELECT FROM pg_locks WHERE locktype = ''advisory'' AND objid = 12 AND NOT granted)');
SELECT jobq.cancel(:id);
CALL test.finish(:id);
SELECT state FROM jobq.status(:id);
RESET SESSION AUTHORIZATION;
-- the worker is terminated: the attempt is charged, and another worker runs the job again
SELECT pg_advisory_lock(11);
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.enqueue_sql('SELECT pg_advisory_lock_shared(11)', false, backoff => 'fixed 1ms') AS id \gset
RESET SESSION AUTHORIZATION;
SELECT test.until('(SELECT count(*) = 1 FROM jobq.workers w JOIN pg_locks l ON l.pid = w.pid AND l.locktype = ''advisory'' AND NOT l.granted WHERE w.job_id = ' || :id || ')');
SELECT pg_terminate_backend(pid) FROM jobq.workers WHERE job_id = :id;
SELECT test.until('(SELECT attempt = 2 AND state = ''running'' FROM jobq.status(' || :id || '))');
SELECT pg_advisory_unlock(11);
CALL test.finish(:id);
SELECT state, attempt, result FROM jobq.status(:id);

-- Schedules
SET SESSION AUTHORIZATION regress_jobq_alice;
DELETE FROM test_sql.t WHERE n > 3000;
SELECT jobq.schedule('refresh', '0 3 * * *', sql => 'REFRESH MATERIALIZED VIEW test_sql.m'), jobq.schedule('vacuum', 'every 1 hour', sql => 'VACUUM test_sql.t', transaction => false, options => '{"queue": "manual"}');
SELECT name, kind, payload, options FROM jobq.schedules ORDER BY name;
SELECT jobq.run_schedule('refresh') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.cancel(jobq.run_schedule('vacuum'));
SELECT e.* FROM unnest(ARRAY['''x'', ''@daily''', '''x'', ''@daily'', ''echo'', sql => ''SELECT 1''', '''x'', ''@daily'', payload => ''{"a": 1}'', sql => ''SELECT 1''', '''x'', ''@daily'', sql => ''SELECT 1'', transaction => NULL',
	'''x'', ''@daily'', sql => ''VACUUM''', '''x'', ''@daily'', sql => ''SELECT 1; COMMIT''']) WITH ORDINALITY u (a, n), test.error('SELECT jobq.schedule(' || a || ')') e ORDER BY n;
RESET SESSION AUTHORIZATION;
SELECT jobq.revoke_privilege('regress_jobq_alice', 'sql'), jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT * FROM test.error($$SELECT jobq.run_schedule('refresh')$$);
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
RESET ROLE;

SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob'), jobq.revoke_privilege('regress_jobq_boss');
SET client_min_messages = warning;
DROP SCHEMA test_sql CASCADE;
