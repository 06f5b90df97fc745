-- Roles to be dropped: reassign_owned(), drop_owned(), and the messages of DROP ROLE.
CREATE ROLE regress_jobq_leaver LOGIN;
CREATE ROLE regress_jobq_heir LOGIN;
SELECT jobq.grant_privilege('regress_jobq_leaver'), jobq.grant_privilege('regress_jobq_heir');
SET ROLE regress_jobq_leaver;
SELECT jobq.enqueue('echo', '1', queue => 'manual') AS ready, jobq.enqueue('echo', '2', queue => 'manual', delay => '1 hour', unique_key => 'k') AS later,
	jobq.enqueue('broken', '3', max_attempts => 1) AS dead, jobq.enqueue('echo', '4') AS done \gset
SELECT state FROM jobq.wait_many(ARRAY[:dead, :done]);
SELECT jobq.schedule('of leaver', '@yearly', 'echo');
SELECT jobq.create_batch('of leaver') AS batch \gset
-- only for members of both roles
SELECT e.code, e.message FROM test.error($$SELECT jobq.reassign_owned('regress_jobq_leaver', 'regress_jobq_heir')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.drop_owned('regress_jobq_heir')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.reassign_owned(NULL, 'regress_jobq_heir')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.reassign_owned('regress_jobq_leaver', 0::regrole)$$) e;
RESET ROLE;
-- not while both roles hold the same unique key
SET ROLE regress_jobq_heir;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'k') AS other \gset
RESET ROLE;
SELECT e.code, e.message FROM test.error($$SELECT jobq.reassign_owned('regress_jobq_leaver', 'regress_jobq_heir')$$) e;
SELECT jobq.cancel(:other);
-- waiting jobs, dead letters, schedules and batches
SELECT jobq.reassign_owned('regress_jobq_leaver', 'regress_jobq_heir');
SELECT state, role, payload FROM jobq.jobs WHERE id IN (:ready, :later, :dead, :done) ORDER BY id;
SELECT role FROM jobq.schedules WHERE name = 'of leaver';
SELECT role FROM jobq.batches WHERE id = :batch;
SET ROLE regress_jobq_heir;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'k', uniqueness => '{"on_conflict": "skip"}') = :later AS has_the_key;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, result FROM jobq.status(:ready);
RESET ROLE;
-- a reassigned ready job runs as the heir, even if workers of the leaver already knew the job
CREATE FUNCTION test.as_whom() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(session_user::text) $$;
SELECT jobq.create_queue('given', open => true), jobq.register('as_whom', 'test.as_whom()', queue => 'given'), jobq.pause('given');
SET ROLE regress_jobq_leaver;
SELECT count(*) FROM jobq.enqueue_many('as_whom', array_fill('{}'::jsonb, '{50}'));
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_leaver', 'regress_jobq_heir');
SELECT jobq.resume('given');
SELECT jobq.wait_queue('given', '5 min');
SELECT role, result, count(*) FROM jobq.jobs WHERE kind = 'as_whom' GROUP BY 1, 2;
SELECT jobq.unregister('as_whom'), jobq.drop_queue('given');
DROP FUNCTION test.as_whom;
-- a failed workflow continues as the heir's
CREATE FUNCTION test.for_heir() RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF session_user <> 'regress_jobq_heir' THEN
		PERFORM jobq.reject_current('not for ' || session_user);
	END IF;
	RETURN to_jsonb(session_user::text);
END
$$;
SELECT jobq.register('for_heir', 'test.for_heir()');
SET ROLE regress_jobq_leaver;
SELECT jobq.create_workflow('{"steps": [{"name": "first", "kind": "for_heir"}, {"name": "second", "kind": "for_heir", "needs": ["first"]}]}') AS flow \gset
SELECT state FROM jobq.wait_batch(:flow);
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_leaver', 'regress_jobq_heir');
SET ROLE regress_jobq_heir;
SELECT jobq.retry(job_id) FROM jobq.steps WHERE batch_id = :flow AND name = 'first';
SELECT state FROM jobq.wait_batch(:flow);
RESET ROLE;
SELECT s.name, j.state, j.role, j.result FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :flow ORDER BY 1;
SELECT jobq.unregister('for_heir');
DROP FUNCTION test.for_heir;
-- a role with a running job, and other jobs
SELECT pg_advisory_lock(7);
SET ROLE regress_jobq_heir;
SELECT jobq.enqueue('gate', '7', unique_key => 'runs') AS runs \gset
SELECT test.in_gate(:runs);
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_heir', 'regress_jobq_leaver');
SELECT role FROM jobq.jobs WHERE id IN (:runs, :later) ORDER BY id;
-- the role keeps the unique key of its running job
SET ROLE regress_jobq_heir;
SELECT jobq.enqueue('gate', '7', unique_key => 'runs', uniqueness => '{"on_conflict": "skip"}') = :runs AS has_the_key;
RESET ROLE;
SELECT jobq.drop_owned('regress_jobq_heir');
SELECT state FROM jobq.wait(:runs);
SELECT pg_advisory_unlock(7);
-- the message of DROP ROLE names jobq once
DROP ROLE regress_jobq_heir;
\set VERBOSITY terse
DROP ROLE regress_jobq_leaver;
\set VERBOSITY default
SELECT state, last_error ~ '^role with OID \d+ does not exist$' AS says_why FROM jobq.schedules WHERE name = 'of leaver';
SELECT role::oid AS gone FROM jobq.schedules WHERE name = 'of leaver' \gset
SELECT count(*) FROM jobq.live_jobs WHERE id = :later;
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.reassign_owned(%s::regrole, ''regress_jobq_alice'')', :gone)) e;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.drop_owned(%s::regrole)', :gone)) e;
RESET ROLE;
SELECT jobq.drop_owned(:gone::regrole);
SELECT state FROM jobq.status(:later);
SELECT count(*) FROM jobq.schedules WHERE name = 'of leaver';
SELECT state FROM jobq.wait_batch(:batch);
