-- A job runs as the role that enqueued the job, cannot gain privileges, and leaves
-- no state behind for the next job.

SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
GRANT CREATE ON SCHEMA test TO regress_jobq_alice;

-- The state of a session as seen by a job.
CREATE SEQUENCE test.counter;
GRANT USAGE ON SEQUENCE test.counter TO PUBLIC;
CREATE FUNCTION test.look() RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	seq text := 'not called';
	last text := 'not called';
BEGIN
	BEGIN
		seq := currval('test.counter');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		NULL;
	END;
	BEGIN
		last := lastval();
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		NULL;
	END;
	RETURN jsonb_build_object(
		'pid', pg_backend_pid(),
		'user', current_user, 'session_user', session_user,
		'search_path', current_setting('search_path'),
		'work_mem', current_setting('work_mem'),
		'custom', coalesce(current_setting('test.custom', true), ''),
		'read_only', current_setting('transaction_read_only'),
		'isolation', current_setting('transaction_isolation'),
		'synchronous_commit', current_setting('synchronous_commit'),
		'prepared', (SELECT count(*) FROM pg_prepared_statements),
		'cursors', (SELECT count(*) FROM pg_cursors WHERE name <> ''),
		'temporary', (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
		'advisory', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
		'listening', (SELECT count(*) FROM pg_listening_channels()),
		'currval', seq, 'lastval', last);
END
$$;
SELECT jobq.register('look', 'test.look()', queue => 'first');

SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT jobq.enqueue('look') AS id \gset
SELECT jsonb_pretty(result - 'pid' - 'work_mem') FROM jobq.wait(:id);
RESET SESSION AUTHORIZATION;

-- Runs the statements of its payload, and returns the role at the end.
CREATE FUNCTION test.attack(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	step text;
	failure text := 'no error';
BEGIN
	FOR step IN SELECT jsonb_array_elements_text(payload) LOOP
		BEGIN
			EXECUTE step;
		EXCEPTION WHEN OTHERS THEN
			failure := SQLSTATE;
		END;
	END LOOP;
	RETURN jsonb_build_object('pid', pg_backend_pid(), 'user', current_user, 'session_user', session_user, 'failure', failure);
END
$$;
SELECT jobq.register('attack', 'test.attack(jsonb)', queue => 'first', max_attempts => 1);
CREATE PROCEDURE test.attack_and_commit(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	step text;
BEGIN
	FOR step IN SELECT jsonb_array_elements_text(payload) LOOP
		BEGIN
			EXECUTE step;
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
		COMMIT;
	END LOOP;
END
$$;
SELECT jobq.register('attack_and_commit', 'test.attack_and_commit(jsonb)', queue => 'first', max_attempts => 1);

-- Alice attacks, then inspects the session in the same process.  The test shows the differences
-- from the first inspection.
CREATE TABLE test.baseline AS SELECT result AS was FROM jobq.status(:id);
GRANT SELECT ON test.baseline TO PUBLIC;
CREATE FUNCTION test.different(result jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT coalesce(jsonb_object_agg(n.key, n.value), '{}') FROM test.baseline b, jsonb_each(b.was) o, jsonb_each($1) n
	WHERE o.key = n.key AND o.value <> n.value AND n.key <> 'pid'
$$;
CREATE PROCEDURE test.try(attack_kind text, steps text[]) LANGUAGE plpgsql AS $$
DECLARE
	attacked jobq.job_status;
	looked jobq.job_status;
	attack bigint;
	look bigint;
BEGIN
	attack := jobq.enqueue(attack_kind, to_jsonb(steps));
	look := jobq.enqueue('look');
	COMMIT;
	attacked := jobq.wait(attack);
	looked := jobq.wait(look);
	RAISE NOTICE '%', steps;
	RAISE NOTICE '  % %', attacked.state, coalesce((attacked.result - 'pid')::text, attacked.error, '');
	RAISE NOTICE '  then % %', looked.state, coalesce(test.different(looked.result)::text, looked.error);
	IF attacked.result IS NOT NULL AND attacked.result -> 'pid' <> looked.result -> 'pid' THEN
		RAISE NOTICE '  in another process';
	END IF;
END
$$;

SET SESSION AUTHORIZATION regress_jobq_alice;
CALL test.try('attack', '{RESET ROLE}');
CALL test.try('attack', '{RESET SESSION AUTHORIZATION}');
CALL test.try('attack', '{SET SESSION AUTHORIZATION regress_jobq_bob}');
CALL test.try('attack', '{SET ROLE regress_jobq_bob}');
CALL test.try('attack', '{SET ROLE NONE}');
CALL test.try('attack', ARRAY['SELECT set_config(''search_path'', ''evil'', false)', 'SET work_mem = ''1MB''', 'SELECT set_config(''test.custom'', ''x'', false)']);
CALL test.try('attack', '{SET default_transaction_read_only = on,SET default_transaction_isolation = serializable,SET synchronous_commit = remote_write}');
CALL test.try('attack', '{CREATE TEMP TABLE look (n int),INSERT INTO look VALUES (1)}');
CALL test.try('attack', ARRAY['PREPARE p AS SELECT 1', 'PREPARE q (int) AS SELECT $1']);
CALL test.try('attack', '{DECLARE c CURSOR WITH HOLD FOR SELECT 1}');
CALL test.try('attack', '{SELECT pg_advisory_lock(99),SELECT pg_advisory_lock(99),SELECT pg_advisory_lock_shared(98)}');
CALL test.try('attack', '{LISTEN jobq}');
CALL test.try('attack', '{SELECT nextval(''test.counter'')}');
CALL test.try('attack', '{COMMIT}');
CALL test.try('attack', '{SELECT jobq.snooze(''0''),SELECT jobq.cancel_current(''x'')}');

-- with COMMIT in between
CALL test.try('attack_and_commit', '{SET ROLE regress_jobq_bob,RESET ROLE,RESET SESSION AUTHORIZATION}');
CALL test.try('attack_and_commit', ARRAY['SELECT set_config(''search_path'', ''evil'', false)', 'SET work_mem = ''1MB''', 'SELECT set_config(''test.custom'', ''x'', false)']);
CALL test.try('attack_and_commit', '{SET default_transaction_isolation = serializable,SET synchronous_commit = remote_write,SET default_transaction_read_only = on}');
CALL test.try('attack_and_commit', '{CREATE TEMP TABLE look (n int),INSERT INTO look VALUES (1)}');
CALL test.try('attack_and_commit', ARRAY['PREPARE p AS SELECT 1', 'DECLARE c CURSOR WITH HOLD FOR SELECT 1', 'SELECT pg_advisory_lock(99)', 'SELECT nextval(''test.counter'')']);
-- also if functions change in between
CALL test.try('attack_and_commit', ARRAY['SET search_path = evil', 'CREATE FUNCTION test.meanwhile() RETURNS int LANGUAGE sql AS ''SELECT 1''']);
DROP FUNCTION test.meanwhile();
-- or the job fails
CREATE PROCEDURE test.set_and_fail() LANGUAGE plpgsql AS $$
BEGIN
	SET search_path = evil;
	COMMIT;
	RAISE EXCEPTION 'fails';
END
$$;
RESET SESSION AUTHORIZATION;
SELECT jobq.register('set_and_fail', 'test.set_and_fail()', queue => 'first', max_attempts => 1);
SET SESSION AUTHORIZATION regress_jobq_alice;
CALL test.try('set_and_fail', '{}');

-- a deferred constraint trigger runs as the same role
CREATE TABLE test.alices (id int PRIMARY KEY);
CREATE FUNCTION test.who() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (current_user || ' as ' || session_user);
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER who AFTER INSERT ON test.alices DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.who();
CALL test.try('attack', '{INSERT INTO test.alices VALUES (1)}');
CALL test.try('attack', '{SET CONSTRAINTS ALL DEFERRED,INSERT INTO test.alices VALUES (2)}');
CALL test.try('attack_and_commit', '{INSERT INTO test.alices VALUES (3)}');
SELECT DISTINCT note, count(*) FROM test.trace GROUP BY note;
DROP TABLE test.alices;
RESET SESSION AUTHORIZATION;
TRUNCATE test.trace;

-- each role's jobs run as the role, also in one queue with one worker
CREATE FUNCTION test.whoami() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(current_user || ' as ' || session_user) $$;
SELECT jobq.register('whoami', 'test.whoami()');
CREATE TABLE test.roles (role regrole, id bigint, queue text);
GRANT INSERT ON test.roles TO PUBLIC;
SET ROLE regress_jobq_alice;
INSERT INTO test.roles SELECT 'regress_jobq_alice', jobq.enqueue('whoami', queue => q), q FROM unnest('{default,first}'::text[]) q, generate_series(1, 3);
SET ROLE regress_jobq_bob;
INSERT INTO test.roles SELECT 'regress_jobq_bob', jobq.enqueue('whoami', queue => q), q FROM unnest('{default,first}'::text[]) q, generate_series(1, 3);
RESET ROLE;
SELECT role, r.queue, state, result, count(*) FROM test.roles r, jobq.wait(id) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2;
-- the job belongs to the current role, not to the session's role
CREATE FUNCTION test.enqueue_as_owner() RETURNS bigint SECURITY DEFINER LANGUAGE sql AS $$ SELECT jobq.enqueue('whoami') $$;
ALTER FUNCTION test.enqueue_as_owner() OWNER TO regress_jobq_bob;
SET ROLE regress_jobq_alice;
SELECT test.enqueue_as_owner() AS id \gset
RESET ROLE;
SELECT state, result FROM jobq.wait(:id);
-- jobs of a superuser require a superuser's own session: neither ownership nor membership is enough
CREATE ROLE regress_jobq_super LOGIN SUPERUSER;
ALTER FUNCTION test.enqueue_as_owner() OWNER TO regress_jobq_super;
CREATE FUNCTION test.run_as_owner() RETURNS void SECURITY DEFINER LANGUAGE sql AS $$ SELECT jobq.create_queue('supers', run_as => 'regress_jobq_super') $$;
ALTER FUNCTION test.run_as_owner() OWNER TO regress_jobq_super;
GRANT regress_jobq_super TO regress_jobq_alice;
SET SESSION AUTHORIZATION regress_jobq_alice;
SELECT * FROM test.error('SELECT test.enqueue_as_owner()');
SELECT e.code, e.message FROM test.error('SELECT test.run_as_owner()') e;
SET ROLE regress_jobq_super;
SELECT e.code, e.message FROM unnest(ARRAY[$$SELECT jobq.enqueue('whoami')$$, $$INSERT INTO jobq.inbox (kind) VALUES ('whoami')$$, $$SELECT jobq.enqueue_many('whoami', '{"{}"}')$$,
		$$SELECT jobq.schedule('of super', '@yearly', 'whoami')$$, $$SELECT jobq.create_batch(on_finish => '{"kind": "whoami"}')$$,
		$$SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "whoami"}]}')$$, $$SELECT jobq.reassign_owned('regress_jobq_alice', 'regress_jobq_super')$$,
		$$SELECT jobq.create_queue('supers', run_as => 'regress_jobq_super')$$]) WITH ORDINALITY u (command, n), test.error(u.command) e ORDER BY n;
RESET SESSION AUTHORIZATION;
SET ROLE regress_jobq_super;
SELECT jobq.enqueue('whoami') AS own \gset
RESET ROLE;
SELECT test.enqueue_as_owner() AS by_function \gset
SELECT state, result FROM jobq.wait_many(ARRAY[:own, :by_function]);
DROP FUNCTION test.run_as_owner;
ALTER FUNCTION test.enqueue_as_owner() OWNER TO regress_jobq_bob;
DROP ROLE regress_jobq_super;

-- a dropped role: its jobs fail, and do not run as another role
CREATE ROLE regress_jobq_leaver LOGIN;
SELECT jobq.grant_privilege('regress_jobq_leaver');
SET ROLE regress_jobq_leaver;
SELECT jobq.enqueue('whoami') AS id \gset
SELECT state, result FROM jobq.wait(:id);
SELECT jobq.enqueue('whoami', queue => 'manual', max_attempts => 1) AS manual, jobq.enqueue('whoami', max_attempts => 1, delay => '1 hour') AS delayed,
	jobq.enqueue('whoami', delay => '1 hour', expires_at => now() + interval '61 min') AS expires \gset
RESET ROLE;
DROP OWNED BY regress_jobq_leaver;
\set VERBOSITY terse
DROP ROLE regress_jobq_leaver;
\set VERBOSITY default
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT * FROM test.outcome(:delayed);
SELECT state, attempt, finished_at IS NOT NULL AS finished FROM jobq.wait(:expires);
SELECT jobq.test_clock('0') \g /dev/null
SELECT sqlstate FROM jobq.dead_letters WHERE id = :delayed;
SELECT state, error FROM jobq.wait(:manual);
SELECT jobq.delete(:delayed), jobq.delete(:manual);

-- settings of the role and of the database also apply to jobs
ALTER ROLE regress_jobq_bob SET work_mem = '7MB';
ALTER ROLE regress_jobq_bob SET default_transaction_read_only = on;
ALTER ROLE regress_jobq_bob SET statement_timeout = '1ms';
SELECT jobq.restart_workers();
SET ROLE regress_jobq_bob;
SELECT jobq.enqueue('look', queue => 'second') AS id \gset
SELECT result ->> 'work_mem' AS work_mem, result ->> 'user' AS user FROM jobq.wait(:id);
RESET ROLE;
ALTER ROLE regress_jobq_bob RESET ALL;

DROP TABLE test.roles, test.baseline;
DROP FUNCTION test.enqueue_as_owner();
REVOKE CREATE ON SCHEMA test FROM regress_jobq_alice;
