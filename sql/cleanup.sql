-- DROP EXTENSION, and CREATE EXTENSION again.

-- DROP EXTENSION also drops waiting, running and paused jobs
SELECT jobq.pause('first');
SELECT jobq.enqueue('echo', queue => 'manual') IS NULL, jobq.enqueue('echo', delay => '1 hour') IS NULL, jobq.enqueue('echo', queue => 'first') IS NULL;
-- handlers with a job_context parameter depend on the extension
\set VERBOSITY terse
DROP EXTENSION jobq;
SET client_min_messages = warning;
DROP EXTENSION jobq CASCADE;
RESET client_min_messages;
SELECT count(*) FROM pg_extension WHERE extname = 'jobq';
SELECT count(*) FROM pg_namespace WHERE nspname ~ '^jobq';
SELECT count(*) FROM pg_class WHERE relname ~ '^archive';
SELECT count(*) FROM pg_type WHERE typname = 'job_context';
SELECT count(*) FROM pg_proc WHERE probin = '$libdir/jobq';
-- privileges of grant_privilege() do not prevent DROP ROLE
DROP ROLE regress_jobq_nobody;

-- created again, and jobs run
CREATE EXTENSION jobq;
SELECT jobq.register('echo', 'test.echo(jsonb)');
SELECT jobq.enqueue('echo', '"again"', queue => 'first') AS id \gset
SELECT * FROM test.outcome(:id);
BEGIN;
DROP EXTENSION jobq;
ROLLBACK;
SELECT jobq.enqueue('echo', '"still there"') AS id \gset
SELECT * FROM test.outcome(:id);
-- a queue dropped in the same transaction
BEGIN;
SELECT jobq.create_queue('short'), jobq.drop_queue('short');
DROP EXTENSION jobq;
CREATE EXTENSION jobq;
COMMIT;
SELECT jobq.register('echo', 'test.echo(jsonb)');
BEGIN;
SELECT jobq.create_queue('short'), jobq.drop_queue('short');
DROP EXTENSION jobq;
COMMIT;
CREATE EXTENSION jobq;
SELECT jobq.register('echo', 'test.echo(jsonb)');
-- in one transaction
BEGIN;
DROP EXTENSION jobq;
CREATE EXTENSION jobq;
SELECT jobq.register('echo', 'test.echo(jsonb)');
SELECT jobq.enqueue('echo', '"anew"') AS id \gset
COMMIT;
SELECT * FROM test.outcome(:id);
-- several times
CREATE PROCEDURE test.again() LANGUAGE plpgsql AS $$
DECLARE
	job_id bigint;
BEGIN
	FOR i IN 1..5 LOOP
		DROP EXTENSION jobq;
		COMMIT;
		CREATE EXTENSION jobq;
		PERFORM jobq.register('echo', 'test.echo(jsonb)');
		COMMIT;
		job_id := jobq.enqueue('echo', to_jsonb(i));
		COMMIT;
		RAISE NOTICE '% %', (jobq.wait(job_id, '5 min')).state, (jobq.status(job_id)).result;
	END LOOP;
END
$$;
CALL test.again();

-- an existing schema "jobq" is refused if it has objects, or if another role owns it or may create objects in it
DROP EXTENSION jobq;
\set VERBOSITY terse
CREATE SCHEMA jobq CREATE TABLE planted ();
CREATE EXTENSION jobq;
DROP TABLE jobq.planted;
GRANT CREATE ON SCHEMA jobq TO regress_jobq_bob;
CREATE EXTENSION jobq;
REVOKE CREATE ON SCHEMA jobq FROM regress_jobq_bob;
ALTER SCHEMA jobq OWNER TO regress_jobq_bob;
CREATE EXTENSION jobq;
ALTER SCHEMA jobq OWNER TO CURRENT_USER;
CREATE EXTENSION jobq;
SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'jobq';
-- and the schema stays if a user has created objects there since
CREATE TABLE jobq.mine ();
DROP EXTENSION jobq;
DROP SCHEMA jobq CASCADE;
SET client_min_messages = warning;
DROP SCHEMA test CASCADE;
DROP ROLE regress_jobq_alice, regress_jobq_bob, regress_jobq_boss;
SELECT rolname FROM pg_roles WHERE rolname LIKE 'regress_jobq%';
