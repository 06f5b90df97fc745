-- Jobs identified by a uuid of the client.
CREATE FUNCTION test.uuids(OUT uuid text, OUT role text) RETURNS SETOF record LANGUAGE sql
AS $$ SELECT right(u.uuid::text, 3), CASE WHEN u.role = current_user::regrole THEN 'mine' ELSE u.role::text END FROM jobq_internal.job_uuid u ORDER BY u.uuid, 2 $$;
CREATE FUNCTION test.no_job(uuid uuid) RETURNS boolean LANGUAGE plpgsql
AS $$ BEGIN PERFORM jobq.status(uuid); RETURN false; EXCEPTION WHEN SQLSTATE 'JQ003' THEN RETURN true; END $$;
CREATE FUNCTION test.fail_uuid(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT jobq.reject_current('for good') $$;
SELECT jobq.register('fail_uuid', 'test.fail_uuid(jsonb)');
\set u1 00000000-0000-4000-8000-000000000001
\set u2 00000000-0000-4000-8000-000000000002
\set u3 00000000-0000-4000-8000-000000000003
\set u4 00000000-0000-4000-8000-000000000004

-- a second enqueue() with the same uuid returns the same job, and ignores all other arguments
SELECT jobq.enqueue('echo', '1', 'manual', options => jsonb_build_object('uuid', :'u1')) AS a \gset
SELECT jobq.enqueue('echo', '2', 'manual', options => jsonb_build_object('uuid', :'u1')) = :a AS same, jobq.enqueue('note', '3', 'first', priority => 5, options => jsonb_build_object('uuid', :'u1')) = :a AS same, jobq.enqueue('echo', options => jsonb_build_object('uuid', :'u2'), queue => 'manual') <> :a AS another;
SELECT kind, queue, payload FROM jobq.jobs WHERE id = :a;
SELECT id = :a AS same, state, duplicate FROM test.enqueued(jobq.enqueue('echo', '4', 'manual', options => jsonb_build_object('uuid', :'u1')));
SELECT state, duplicate FROM test.enqueued(jobq.enqueue('echo', '4', 'manual', options => jsonb_build_object('uuid', :'u3')));
-- status() finds the job by uuid
SELECT (jobq.status(:'u1')).id = :a AS same, test.no_job(:'u4') AS none;
SELECT id = :a AS same, state, kind FROM jobq.status(:'u1'::uuid);
SELECT id = :a AS same, state, kind FROM jobq.status(:'u1');
SELECT id = :a AS same, state, kind FROM jobq.status(upper(replace(:'u1', '-', '')));
SELECT id = :a AS same, state, kind FROM jobq.status(:'a');
SELECT id = :a AS same, state, kind FROM jobq.status(:a);
SELECT id = :a AS same, state, kind FROM jobq.wait((jobq.status(:'u1')).id, '0');
PREPARE untyped AS SELECT id = :a AS same, state FROM jobq.status($1);
EXECUTE untyped(:'a');
EXECUTE untyped(:'u1');
SELECT e.code, e.message, e.hint <> '' AS hint FROM unnest(ARRAY['status(%L)', 'status(%L::uuid)']) f, test.error(format('SELECT jobq.' || f, :'u4')) e;
SELECT e.code, e.message FROM unnest('{"",x,12345678901234567890,99999999999999999999,00000000-0000-4000-8000-00000000000g}'::text[]) j, test.error(format('SELECT jobq.status(%L)', j)) e;

-- in any state, as long as a record of the job is kept
SELECT jobq.cancel(:a);
SELECT jobq.enqueue('echo', '5', 'manual', options => jsonb_build_object('uuid', :'u1')) = :a AS same, (jobq.status(:'u1')).state;
SELECT jobq.enqueue('echo', '6', options => jsonb_build_object('uuid', :'u4')) AS d \gset
SELECT state, result FROM jobq.wait((jobq.status(:'u4')).id);
SELECT id = :d AS same, state, duplicate FROM test.enqueued(jobq.enqueue('echo', '7', options => jsonb_build_object('uuid', :'u4')));
-- a dead letter, before and after a retry
SELECT jobq.enqueue('fail_uuid', options => '{"uuid": "00000000-0000-4000-8000-000000000005"}') AS f \gset
SELECT state FROM test.outcome(:f);
SELECT id = :f AS same, state, duplicate FROM test.enqueued(jobq.enqueue('fail_uuid', options => '{"uuid": "00000000-0000-4000-8000-000000000005"}'));
SELECT jobq.retry(:f);
SELECT state FROM test.outcome(:f);
SELECT (jobq.status('00000000-0000-4000-8000-000000000005')).id = :f AS same;
-- rerun() creates another job, without the uuid
SELECT jobq.rerun(:d) AS again \gset
SELECT :again <> :d AS another, (jobq.status(:'u4')).id = :d AS same;
-- the uuid of a deleted job is forgotten: the next enqueue() creates a new job
SELECT jobq.delete(:f);
SELECT test.no_job('00000000-0000-4000-8000-000000000005') AS none;
SELECT jobq.enqueue('echo', '8', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000005"}') - :f > 0 AS new;
SELECT jobq.create_queue('uuid_forgets', keep => 'nothing', open => true);
SELECT jobq.enqueue('echo', '9', 'uuid_forgets', options => '{"uuid": "00000000-0000-4000-8000-000000000006"}') AS n \gset
SELECT jobq.wait_queue('uuid_forgets');
SELECT jobq.enqueue('echo', '10', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000006"}') > :n AS new;
-- an edited and moved job keeps the uuid
SELECT jobq.edit((jobq.status(:'u2')).id, '"edited"', queue => 'first', run_at => now() + interval '1 h', max_attempts => 9);
SELECT jobq.enqueue('echo', '11', options => jsonb_build_object('uuid', :'u2')) = (jobq.status(:'u2')).id AS same;

-- a rollback also removes the uuid
BEGIN;
SELECT jobq.enqueue('echo', '12', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000007"}') AS r \gset
SELECT jobq.enqueue('echo', '13', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000007"}') = :r AS same;
SAVEPOINT s;
SELECT jobq.enqueue('echo', '14', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000008"}') > :r AS new;
ROLLBACK TO s;
SELECT test.no_job('00000000-0000-4000-8000-000000000008') AS none;
SELECT jobq.enqueue('echo', '15', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000008"}') > :r AS new, (jobq.status('00000000-0000-4000-8000-000000000008')).state;
ROLLBACK;
SELECT test.no_job('00000000-0000-4000-8000-000000000007') AS none;
-- several jobs of one statement
INSERT INTO jobq.inbox (kind, queue, options) SELECT 'echo', 'manual', jsonb_build_object('uuid', '00000000-0000-4000-8000-0000000001' || lpad((n / 2)::text, 2, '0')) FROM generate_series(2, 7) n;
SELECT count(*) FROM jobq_internal.job_uuid WHERE uuid::text ~ '01..$';
SELECT jobq.enqueue_many('echo', '{1}', queue => 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000101"}') = (jobq.status('00000000-0000-4000-8000-000000000101')).id AS same;
-- a handler enqueues a job with the uuid of the current job
CREATE FUNCTION test.itself(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(jobq.enqueue('echo', '"itself"', 'manual', options => jsonb_build_object('uuid', (payload ->> 'uuid')::uuid)) = (jobq.current_job()).id) $$;
SELECT jobq.register('itself', 'test.itself(jsonb)');
SELECT jobq.enqueue('itself', '{"uuid": "00000000-0000-4000-8000-000000000009"}', options => '{"uuid": "00000000-0000-4000-8000-000000000009"}') AS i \gset
SELECT state, result FROM test.outcome(:i);

-- with a unique key: the uuid refers to the job that holds the key
SELECT jobq.enqueue('echo', '16', 'manual', unique_key => 'u') AS k \gset
SELECT jobq.enqueue('echo', '17', 'manual', unique_key => 'u', options => '{"uuid": "00000000-0000-4000-8000-000000000010"}') = :k AS same, (jobq.status('00000000-0000-4000-8000-000000000010')).id = :k AS same;
SELECT jobq.enqueue('echo', '18', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000010"}') = :k AS same, jobq.enqueue('echo', '19', 'manual', unique_key => 'u', uniqueness => '{"on_conflict": "replace"}', options => '{"uuid": "00000000-0000-4000-8000-000000000011"}') = :k AS replaced;
SELECT e.code FROM test.error($$SELECT jobq.enqueue('echo', '20', 'manual', unique_key => 'u', uniqueness => '{"on_conflict": "error"}', options => '{"uuid": "00000000-0000-4000-8000-000000000012"}')$$) e;
SELECT test.no_job('00000000-0000-4000-8000-000000000012') AS none, jobq.enqueue('echo', '21', 'manual', unique_key => 'u', uniqueness => '{"on_conflict": "error"}', options => '{"uuid": "00000000-0000-4000-8000-000000000011"}') = :k AS same;

-- uuids belong to a role; a role that may see a job also finds the job by uuid
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob', 'monitor');
SET ROLE regress_jobq_alice;
SELECT test.no_job(:'u2') AS none;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.status(%L::uuid)', :'u2')) e;
SELECT state, duplicate FROM test.enqueued(jobq.enqueue('echo', '"hers"', 'manual', options => jsonb_build_object('uuid', :'u2')));
SELECT (jobq.status(:'u2')).state, jobq.enqueue('echo', '"again"', 'manual', options => jsonb_build_object('uuid', :'u2')) = (jobq.status(:'u2')).id AS same;
SELECT jobq.enqueue('echo', '"hers"', 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000020"}') = (jobq.status('00000000-0000-4000-8000-000000000020')).id AS same;
SET ROLE regress_jobq_bob;
SELECT (jobq.status('00000000-0000-4000-8000-000000000020')).state;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error($$SELECT (jobq.status('00000000-0000-4000-8000-000000000020')).id$$) e;
SELECT e.code, e.message FROM test.error('SELECT * FROM jobq_internal.job_uuid') e;
RESET ROLE;
SELECT state, kind FROM jobq.status(:'u2');
-- reassign_owned() moves the uuids with the jobs
SELECT jobq.reassign_owned('regress_jobq_alice', current_user::regrole) AS reassigned;
SELECT u.* FROM test.uuids() u WHERE u.uuid IN ('002', '020') ORDER BY u;
SELECT payload FROM jobq.jobs WHERE id = (SELECT id FROM jobq.status('00000000-0000-4000-8000-000000000020'));
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');

-- in other functions with options
SELECT jobq.create_batch(start => false) AS b \gset
SELECT jobq.add_jobs(:b, 'echo', '{1}', options => '{"uuid": "00000000-0000-4000-8000-000000000030", "queue": "manual"}') = (jobq.status('00000000-0000-4000-8000-000000000030')).id AS same;
SELECT jobq.cancel_batch(:b);
CALL jobq.call('echo', '"called"', NULL, '30 s', '{"uuid": "00000000-0000-4000-8000-000000000031"}');
CALL jobq.call('echo', '"called again"', NULL, '30 s', '{"uuid": "00000000-0000-4000-8000-000000000031"}');
SELECT e.code, e.message, e.hint FROM unnest(ARRAY[$$enqueue_many('echo', '{1,2}', queue => 'manual', options => '{"uuid": "00000000-0000-4000-8000-000000000032"}')$$, $$enqueue('echo', options => '{"uuid": "x"}')$$,
	$$schedule('uuid', '@daily', 'echo', options => '{"uuid": "00000000-0000-4000-8000-000000000032"}')$$, $$create_workflow('{"chain": [{"kind": "echo", "uuid": "00000000-0000-4000-8000-000000000032"}]}')$$,
	$$create_batch(on_finish => '{"kind": "echo", "uuid": 5}')$$, $$create_batch(on_finish => '{"kind": "echo", "uuid": "5"}')$$]) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
BEGIN READ ONLY;
SELECT (jobq.status(:'u2')).state;
ROLLBACK;

-- the scheduler deletes uuids without a job
SELECT count(jobq.cancel(id)) > 0 AS cancelled FROM jobq.live_jobs WHERE queue = 'manual' OR kind = 'echo';
INSERT INTO jobq_internal.job_uuid SELECT -n, current_user::regrole, ('00000000-0000-4000-8000-00000001' || lpad(n::text, 4, '0'))::uuid FROM generate_series(1, 2000) n;
-- the current cleanup pass may already have finished this table; then the next pass deletes the rows
CREATE SEQUENCE test.looks;
CREATE FUNCTION test.later() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	look bigint := nextval('test.looks');
BEGIN
	IF look % 200 = 1 AND look < 6000 THEN
		PERFORM jobq.test_clock((1 + look / 200) * interval '2 h'), jobq.test_clock((1 + look / 200) * interval '2 h');
	END IF;
	RETURN true;
END $$;
SELECT test.until('test.later() AND NOT EXISTS (SELECT FROM jobq_internal.job_uuid WHERE job_id < 0)');
SELECT jobq.test_clock('0') \g /dev/null
SELECT (jobq.status(:'u1')).id = :a AS kept, (jobq.status(:'u4')).id = :d AS kept;
SELECT jobq.drop_queue('uuid_forgets', force => true);
DROP FUNCTION test.uuids, test.later;
DROP SEQUENCE test.looks;
