-- Helpers for tests: assert_enqueued(), run_due().
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob'), jobq.revoke_privilege('regress_jobq_boss');
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_boss', 'monitor');
SELECT count(jobq.cancel(id)) >= 0 AS cancelled FROM jobq.live_jobs WHERE role = 'regress_jobq_alice'::regrole;
CREATE SCHEMA test_order AUTHORIZATION regress_jobq_alice;
CREATE FUNCTION test.detail(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN raise_exception THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN regexp_replace(detail, 'job \d+', 'job N', 'g');
END
$$;
SELECT jobq.register('parcel', 'test.echo(jsonb)');
SET SESSION AUTHORIZATION regress_jobq_alice;

-- The question of a producer's test: did this transaction enqueue the expected jobs?
BEGIN;
SELECT jobq.enqueue('parcel', '{"order": 1, "items": ["a", "b"]}', queue => 'manual') IS NOT NULL AS one, jobq.enqueue('parcel', '{"order": 2, "items": ["b"]}', delay => '1 hour') IS NOT NULL AS another;
SELECT jobq.assert_enqueued('parcel'), jobq.assert_enqueued('parcel', '{"order": 2}'), jobq.assert_enqueued('parcel', '{"items": ["b"]}', times => 2), jobq.assert_enqueued('parcel', queue => 'manual', times => 1),
	jobq.assert_enqueued('parcel', '{"order": 3}', times => 0), jobq.assert_enqueued('no such kind', times => 0);
SELECT a, e.* FROM unnest(ARRAY['''parcel'', ''{"order": 3}''', '''parcel'', times => 3', '''parcel'', ''{"order": 1}'', ''default''', '''parcel'', queue => ''second'', times => 2', '''no such kind''', '''parcel'', ''{"order": 1}'', times => 0',
	'NULL', '''parcel'', times => -1']) WITH ORDINALITY u (a, n), test.error('SELECT jobq.assert_enqueued(' || a || ')') e ORDER BY n;
\set VERBOSITY terse
SELECT jobq.assert_enqueued('no such kind', '{"order": 1}', 'manual');
ROLLBACK;
\set VERBOSITY default
SELECT jobq.assert_enqueued('parcel', times => 0);
-- the error detail lists the jobs found instead
SELECT jobq.enqueue('parcel', '{"order": 1}', queue => 'manual') AS id \gset
SELECT test.detail($$SELECT jobq.assert_enqueued('parcel', '{"order": 2}')$$), left(test.detail($$SELECT jobq.assert_enqueued('none of these')$$), 10) AS others;
-- a role without access to payloads cannot probe them
SET SESSION AUTHORIZATION regress_jobq_boss;
SELECT jobq.assert_enqueued('parcel', times => 1), jobq.assert_enqueued('parcel', '{"order": 1}', times => 0);
SELECT test.detail($$SELECT jobq.assert_enqueued('parcel', '{"order": 2}')$$);
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.cancel(:id);

-- run_due() runs due jobs, and the jobs enqueued by them, in the transaction of the test; a rollback undoes everything
CREATE TABLE test_order.done (what text, tx xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION test_order.pack(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test_order.done VALUES (payload ->> 'what');
	IF payload ? 'then' THEN
		PERFORM jobq.enqueue('pack', payload -> 'then', queue => 'manual');
	END IF;
	IF payload ? 'fail' THEN
		RAISE EXCEPTION 'torn';
	END IF;
END
$$;
RESET SESSION AUTHORIZATION;
SELECT jobq.register('pack', 'test_order.pack(jsonb)', backoff => 'fixed 1 hour');
SET SESSION AUTHORIZATION regress_jobq_alice;
BEGIN;
SELECT min(id) AS first FROM jobq.enqueue_many('pack', ARRAY['{"what": "one", "then": {"what": "two", "then": {"what": "three"}}}', '{"what": "broken", "fail": true}']::jsonb[], queue => 'manual') id \gset
SELECT jobq.enqueue('pack', '{"what": "later"}', queue => 'manual', delay => '1 hour') AS later \gset
SELECT jobq.run_due('{manual}');
SELECT what, tx = pg_current_xact_id() AS here FROM test_order.done ORDER BY what COLLATE "C";
SELECT kind, payload ->> 'what' AS what, state, attempt, error FROM jobq.jobs WHERE id >= :first ORDER BY payload ->> 'what' COLLATE "C";
SELECT jobq.assert_enqueued('pack', '{"what": "later"}', times => 1), jobq.assert_enqueued('pack', '{"what": "two"}', times => 0);
SELECT jobq.run_due('{manual}');
ROLLBACK;
SELECT count(*) FROM test_order.done;
SELECT count(*) FROM jobq.jobs WHERE kind = 'pack';
-- after a commit, the jobs are as if workers had run them
BEGIN;
SELECT jobq.enqueue('pack', jsonb_build_object('what', n), queue => 'manual', priority => n) IS NOT NULL AS enqueued FROM generate_series(1, 3) n;
SELECT jobq.run_due('{manual}', max_jobs => 2);
COMMIT;
SELECT payload, state FROM jobq.jobs WHERE kind = 'pack' ORDER BY id;
SELECT jobq.run_due('{manual}');
SELECT payload, state FROM jobq.jobs WHERE kind = 'pack' ORDER BY id;
-- workers still run jobs for other queues
SELECT jobq.enqueue('pack', '{"what": "after"}', queue => 'first') AS id \gset
SELECT * FROM test.outcome(:id);
-- groups keep their order: the next job of a group waits for the commit
BEGIN;
SELECT jobq.enqueue('pack', jsonb_build_object('what', g || n), queue => 'manual', group_key => g, unique_key => g || n) IS NOT NULL AS enqueued FROM unnest('{b,a}'::text[]) g, generate_series(1, 2) n;
SELECT jobq.run_due('{manual}');
SELECT count(*) FROM test_order.done WHERE what IN ('a1', 'a2', 'b1', 'b2');
ROLLBACK;
SELECT jobq.enqueue('pack', '{"what": "a1"}', queue => 'manual', group_key => 'a', unique_key => 'a1') AS id \gset
SELECT jobq.run_due('{manual}');
SELECT * FROM test.outcome(:id);
-- deferred triggers of the transaction fire before the jobs.
-- The jobs find constraints as declared, and leave the settings of the transaction unchanged.
CREATE TABLE test_order.parent (id int PRIMARY KEY);
CREATE TABLE test_order.child (id int PRIMARY KEY, parent int REFERENCES test_order.parent DEFERRABLE INITIALLY DEFERRED, CONSTRAINT only_child UNIQUE (parent) DEFERRABLE);
CREATE FUNCTION test_order.move_in(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test_order.child VALUES (payload::int, payload::int);
	INSERT INTO test_order.parent VALUES (payload::int);
END
$$;
RESET SESSION AUTHORIZATION;
SELECT jobq.register('move_in', 'test_order.move_in(jsonb)', max_attempts => 1);
SET SESSION AUTHORIZATION regress_jobq_alice;
BEGIN;
INSERT INTO test_order.child VALUES (1, 1);
SELECT min(id) AS first FROM jobq.enqueue_many('move_in', '{2,3}'::jsonb[], queue => 'manual') id \gset
SAVEPOINT before;
\set VERBOSITY terse
SELECT jobq.run_due('{manual}');
ROLLBACK TO before;
SELECT error FROM jobq.dry_run('move_in', '2');
ROLLBACK TO before;
SELECT state, attempt, error FROM jobq.jobs WHERE id >= :first ORDER BY id;
INSERT INTO test_order.parent VALUES (1);
SELECT written, error FROM jobq.dry_run('move_in', '2');
SELECT jobq.run_due('{manual}');
SELECT state, attempt, error FROM jobq.jobs WHERE id >= :first ORDER BY id;
INSERT INTO test_order.child VALUES (4, 4);
INSERT INTO test_order.parent VALUES (4);
INSERT INTO test_order.child VALUES (5, 4);
ROLLBACK;
-- also in a transaction that has written nothing
SELECT jobq.enqueue('move_in', '6', queue => 'manual') AS id \gset
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT error FROM jobq.dry_run('move_in', '6');
ROLLBACK;
BEGIN;
SET CONSTRAINTS ALL IMMEDIATE;
SELECT jobq.run_due('{manual}');
COMMIT;
SELECT * FROM test.outcome(:id);
\set VERBOSITY default
-- only the caller's own jobs, and only with a privilege
RESET SESSION AUTHORIZATION;
SELECT jobq.enqueue('pack', '{"what": "of the superuser"}', queue => 'manual') AS id \gset
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.run_due('{manual}');
RESET SESSION AUTHORIZATION;
SELECT jobq.cancel(:id);
-- if the session has only used SET ROLE, jobs cannot switch to another role
CREATE FUNCTION test.escape(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE payload #>> '{}'; END $$;
CREATE TABLE test.late (n int);
GRANT INSERT ON test.late TO regress_jobq_alice;
CREATE FUNCTION test.escape_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'RESET ROLE'; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON test.late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.escape_late();
SELECT jobq.register('escape', 'test.escape(jsonb)', queue => 'manual', max_attempts => 1), jobq.grant_privilege('regress_jobq_alice', 'sql');
SELECT last_value AS before FROM jobq_internal.job_id_seq \gset
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('escape', to_jsonb(s)) > 0 AS enqueued FROM unnest('{RESET ROLE,RESET SESSION AUTHORIZATION,SET ROLE regress_jobq_bob,INSERT INTO test.late VALUES (1)}'::text[]) s;
SELECT jobq.enqueue_sql('RESET ROLE', queue => 'manual', max_attempts => 1) > 0 AS enqueued;
SELECT jobq.run_due('{manual}'), current_user;
CALL jobq.work('{manual}', stop_when_empty => true);
RESET ROLE;
SELECT current_user = session_user AS back, count(*) FROM jobq.live_jobs WHERE id > :before;
SELECT kind, payload, error FROM jobq.dead_letters WHERE id > :before ORDER BY id;
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE id > :before;
SELECT jobq.unregister('escape'), jobq.revoke_privilege('regress_jobq_alice', 'sql');
DROP FUNCTION test.escape;
DROP TABLE test.late;
DROP FUNCTION test.escape_late;
SET ROLE regress_jobq_nobody;
SELECT e.* FROM unnest(ARRAY['jobq.run_due()', 'jobq.assert_enqueued(''pack'')']) c, test.error('SELECT ' || c) e;
RESET ROLE;
SELECT e.* FROM unnest(ARRAY['max_jobs => -1', 'max_jobs => NULL']) a, test.error('SELECT jobq.run_due(' || a || ')') e;
SELECT jobq.run_due(max_jobs => 0);

DROP FUNCTION test.detail;
SELECT jobq.unregister('pack'), jobq.unregister('move_in'), jobq.unregister('parcel'), jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_boss');
SET client_min_messages = warning;
DROP SCHEMA test_order CASCADE;
