-- SQL statements in another database.
SELECT jobq.grant_privilege('regress_jobq_alice', 'sql'), jobq.grant_privilege('regress_jobq_bob', 'sql');
CREATE DATABASE regress_elsewhere TEMPLATE template0;
CREATE DATABASE regress_forbidden TEMPLATE template0;
REVOKE CONNECT ON DATABASE regress_elsewhere FROM PUBLIC;
GRANT CONNECT ON DATABASE regress_elsewhere TO regress_jobq_alice;
\c regress_elsewhere
CREATE SCHEMA AUTHORIZATION regress_jobq_alice;
CREATE TABLE regress_jobq_alice.t (n int, who text DEFAULT current_user, where_ text DEFAULT current_database());
ALTER TABLE regress_jobq_alice.t OWNER TO regress_jobq_alice;
\c contrib_regression
SET SESSION AUTHORIZATION regress_jobq_alice;

-- In a transaction in the other database, or outside of a transaction
SELECT jobq.enqueue_sql('INSERT INTO t VALUES (1), (2)', database => 'regress_elsewhere') AS a,
	jobq.enqueue_sql('VACUUM t', transaction => false, database => 'regress_elsewhere') AS b,
	jobq.enqueue_sql('CREATE INDEX CONCURRENTLY ON t (n)', false, 'regress_elsewhere') AS c,
	jobq.enqueue('sql', '{"sql": "SELECT n FROM t WHERE n > 1", "database": "regress_elsewhere"}', run_at => now() - interval '1 min') AS d \gset
SELECT * FROM test.outcome(:a);
SELECT * FROM test.outcome(:b);
SELECT * FROM test.outcome(:c);
SELECT state, attempt FROM test.outcome(:d);
SELECT payload FROM jobq.jobs WHERE id IN (:a, :b) ORDER BY id;
SELECT jobq.enqueue_sql('DO $$ BEGIN ASSERT (SELECT array_agg(row(t.*)::text ORDER BY n) FROM t) = ''{"(1,regress_jobq_alice,regress_elsewhere)","(2,regress_jobq_alice,regress_elsewhere)"}''; END $$', database => 'regress_elsewhere') AS id \gset
SELECT * FROM test.outcome(:id);
-- the current database is not treated as another database
SELECT jobq.enqueue_sql('SELECT 1', database => current_database()) AS id \gset
SELECT * FROM test.outcome(:id);
-- COMMIT requires transaction => false
SELECT jobq.enqueue_sql('DO $$ BEGIN INSERT INTO t VALUES (3); COMMIT; END $$', database => 'regress_elsewhere', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('DO $$ BEGIN INSERT INTO t VALUES (4); COMMIT; END $$', false, 'regress_elsewhere', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('DELETE FROM t WHERE n > 2', database => 'regress_elsewhere') AS id \gset
SELECT * FROM test.outcome(:id);

-- Errors are returned unchanged, and the job is retried
SELECT jobq.enqueue_sql('INSERT INTO t SELECT 1 / 0', database => 'regress_elsewhere', max_attempts => 2, backoff => 'fixed 1ms') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT e->>'sqlstate' AS sqlstate, regexp_replace(e->>'context', 'running job \d+', 'running job N') AS context FROM jobq.dead_letters f, jsonb_array_elements(f.errors) e WHERE id = :id;
SELECT jobq.enqueue_sql('SELECT no_such_function()', database => 'regress_elsewhere', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql(format('SELECT pg_terminate_backend(pg_backend_pid()) /* %s */', repeat('x', 50000)), database => 'regress_elsewhere', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
-- more notices than the message queue holds
SELECT jobq.enqueue_sql('DO $$ BEGIN FOR i IN 1..1000 LOOP RAISE NOTICE ''%'', repeat(''y'', 100); END LOOP; END $$', database => 'regress_elsewhere') AS id \gset
SELECT * FROM test.outcome(:id);

-- After a timeout or a cancellation, the process in the other database is gone, too
SELECT jobq.enqueue_sql('SELECT pg_sleep(3600)', database => 'regress_elsewhere', timeout => '200 ms', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue_sql('DO $$ BEGIN LOCK t; PERFORM pg_sleep(3600); END $$', database => 'regress_elsewhere') AS id \gset
RESET SESSION AUTHORIZATION;
SELECT test.until('EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = ''regress_elsewhere'' AND l.locktype = ''relation'' AND l.mode = ''AccessExclusiveLock'')');
SELECT datname, usename, state, query FROM pg_stat_activity WHERE backend_type = 'jobq errand';
SELECT jobq.cancel(:id);
SELECT state FROM test.outcome(:id);
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'jobq errand';

-- jobq.work() leaves statements for other databases to workers
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.enqueue_sql('SELECT 1', database => 'regress_elsewhere', queue => 'manual') AS id,
	jobq.enqueue_sql('SELECT 1', database => current_database(), queue => 'manual') AS here \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);
SELECT state FROM jobq.status(:here);
SELECT jobq.cancel(:id);

-- Databases where the statement may not run
SELECT a, e.* FROM unnest(ARRAY['''SELECT 1'', database => ''regress_nowhere''', '''SELECT 1'', database => ''regress_forbidden''', '''SELECT 1'', database => ''''', '''VACUUM'', database => ''regress_elsewhere''', '''SELEC'', database => ''regress_elsewhere''']) WITH ORDINALITY u (a, n),
	test.error('SELECT jobq.enqueue_sql(' || a || ')') e ORDER BY n;
SELECT e.* FROM test.error($$SELECT jobq.enqueue('sql', '{"sql": "SELECT 1", "database": null}')$$) e;
SELECT e.* FROM test.error($$SELECT jobq.schedule('x', '@daily', 'echo', database => 'regress_elsewhere')$$) e;
SET SESSION AUTHORIZATION regress_jobq_bob;
SELECT jobq.enqueue_sql('SELECT 1', database => 'regress_elsewhere', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
-- the database has been dropped
RESET SESSION AUTHORIZATION;
CREATE DATABASE regress_elsewhere_2 TEMPLATE template0;
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.enqueue_sql('SELECT 1', database => 'regress_elsewhere_2', queue => 'manual', max_attempts => 1) AS id \gset
RESET SESSION AUTHORIZATION;
DROP DATABASE regress_elsewhere_2;
SELECT jobq.edit(:id, queue => 'default');
SELECT * FROM test.outcome(:id);

-- A schedule
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.schedule('elsewhere', '@yearly', sql => 'DELETE FROM t', database => 'regress_elsewhere');
SELECT payload FROM jobq.schedules WHERE name = 'elsewhere';
SELECT jobq.run_schedule('elsewhere') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.unschedule('elsewhere');
RESET SESSION AUTHORIZATION;

SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
DROP DATABASE regress_elsewhere;
DROP DATABASE regress_forbidden;
