-- edit(): change the payload, queue, priority and other options of a waiting job or a dead letter.
\connect - postgres

CREATE FUNCTION test.seen(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fail' THEN
		RAISE EXCEPTION 'failed';
	END IF;
	RETURN jsonb_build_object('payload', payload, 'headers', job.headers, 'as', current_user, 'x', nullif(current_setting('app.x', true), ''));
END
$$;
SELECT jobq.register('seen', 'test.seen(jsonb, jobq.job_context)', max_attempts => 1);

-- a waiting job
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'manual', headers => '{"h": 1}', unique_key => 'only') AS id \gset
SELECT jobq.edit(:id, payload => '{"n": 2}');
SELECT jobq.edit(:id, headers => '{"h": 2}', max_attempts => 7, backoff => 'fixed 1s', timeout => '1 min');
SELECT state, queue, payload, headers, max_attempts, unique_key FROM jobq.jobs WHERE id = :id;
SELECT jobq.enqueue('seen', '{"n": 3}', queue => 'manual', unique_key => 'only') = :id AS has_its_key;
SELECT jobq.edit(:id, queue => 'default');
SELECT state, result - 'as' AS result FROM test.outcome(:id);
SELECT e.by IS NULL, e.event, replace(e.detail, current_user, 'me') AS detail FROM jobq.history(:id) e WHERE event = 'info' ORDER BY e.detail COLLATE "C" DESC;
-- a scheduled job and a retryable job
SELECT jobq.enqueue('broken', '1', queue => 'first', delay => '1 hour', max_attempts => 2, backoff => 'fixed 1h') AS id \gset
SELECT jobq.edit(:id, '2');
SELECT state, payload FROM jobq.jobs WHERE id = :id;
SELECT jobq.edit(:id, run_at => now());
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :id));
SELECT jobq.edit(:id, '3', max_attempts => 1);
SELECT state, attempt, max_attempts, payload, error FROM jobq.jobs WHERE id = :id;
SELECT jobq.retry(:id);
SELECT state, attempt, error FROM test.outcome(:id);
-- the job is a dead letter; its id, errors and log stay
SELECT jobq.edit(:id, '4', queue => 'manual', max_attempts => 3, backoff => 'fixed 1ms', timeout => '5 min');
SELECT queue, payload, max_attempts, error, jsonb_array_length(errors) AS errors, jsonb_array_length(log) AS lines FROM jobq.dead_letters WHERE id = :id;
SELECT timeout_ms, backoff FROM jobq_internal.dead_letter WHERE id = :id;
-- a dead letter does not wait, and has no queue position
SELECT e.* FROM unnest(ARRAY['priority => 1', 'run_at => now()', 'payload => ''5'', priority => 1']) what, test.error(format('SELECT jobq.edit(%s, %s)', :id, what)) e;
SELECT jobq.retry(:id);
SELECT state, queue, payload, max_attempts FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel(:id);

-- bad input
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'manual') AS id \gset
SELECT e.* FROM unnest(ARRAY['', 'NULL', 'max_attempts => -1', 'backoff => ''often''', 'timeout => ''-1 s''', 'queue => ''''', 'queue => repeat(''q'', 64)',
	'payload => (repeat(''['', 1001) || repeat('']'', 1001))::jsonb', 'headers => (repeat(''['', 1001) || repeat('']'', 1001))::jsonb']) WITH ORDINALITY u (what, n),
	test.error(format('SELECT jobq.edit(%s%s)', :id, nullif(', ' || what, ', '))) e ORDER BY n;
SELECT e.* FROM test.error('SELECT jobq.edit(NULL, ''1'')') e;
SELECT e.code, e.message ~ 'larger than the allowed' AS large FROM test.error(format('SELECT jobq.edit(%s, to_jsonb(repeat(''x'', (pg_size_bytes(current_setting(''jobq.max_payload'')) + 1)::int)))', :id)) e;
SELECT e.* FROM test.error('SELECT jobq.edit(0, ''1'')') e;
BEGIN READ ONLY;
SELECT jobq.edit(:id, '2');
ROLLBACK;
BEGIN;
SELECT jobq.edit(:id, '2');
ROLLBACK;
SELECT payload, log FROM jobq.jobs WHERE id = :id;
-- priority and run_at alone, which write no log entry, and together with other options
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'manual') AS placed \gset
SELECT jobq.edit(:placed, priority => 4, run_at => '2100-01-01 00:00Z');
SELECT state, priority, run_at AT TIME ZONE 'UTC' AS run_at, log FROM jobq.jobs WHERE id = :placed;
SELECT jobq.edit(:placed, '{"n": 2}', priority => 3, run_at => '2101-01-01 00:00Z', max_attempts => 5);
SELECT state, priority, run_at AT TIME ZONE 'UTC' AS run_at, max_attempts, payload, replace(log -> 0 ->> 'message', current_user, 'me') AS log FROM jobq.jobs WHERE id = :placed;
SELECT jobq.create_queue('for an hour', expires_after => '1 hour');
SELECT jobq.edit(:placed, queue => 'for an hour', run_at => '2102-01-01 00:00Z');
SELECT run_at AT TIME ZONE 'UTC' AS run_at, expires_at - run_at AS expires FROM jobq_internal.job WHERE id = :placed;
SELECT jobq.cancel(:placed);
SELECT jobq.drop_queue('for an hour');
-- a worker queue requires a handler; a queue with run_as requires a kind registered for the queue
SELECT jobq.create_queue('edited', mode => 'consumer'), jobq.create_queue('trusted', run_as => 'regress_jobq_bob');
SELECT jobq.enqueue('no handler', queue => 'edited') AS outside \gset
SELECT e.* FROM unnest(ARRAY[:outside, :id]) WITH ORDINALITY u (job, n), unnest('{manual,trusted}'::text[]) WITH ORDINALITY q (name, m),
	test.error(format('SELECT jobq.edit(%s, queue => %L)', job, name)) e ORDER BY n, m;
-- a job reserved by a consumer, a running job, a completed job, and an expired job
SELECT id AS reserved, token FROM jobq.reserve('{edited}', wait => '5 min') \gset
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, ''2'')', :reserved)) e;
SELECT jobq.release(:reserved, :token);
SELECT jobq.edit(:reserved, '2');
SELECT id AS reserved, token, payload FROM jobq.reserve('{edited}', wait => '5 min') \gset
SELECT :'payload' AS payload, jobq.ack(:reserved, :token);
SELECT pg_advisory_lock(14);
SELECT jobq.enqueue('gate', '14') AS running \gset
SELECT test.in_gate(:running);
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, ''2'')', :running)) e;
SELECT pg_advisory_unlock(14);
SELECT state FROM test.outcome(:running);
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, ''2'')', :running)) e;
BEGIN;
SELECT jobq.enqueue('seen', queue => 'manual', expires_at => '2001-01-01') AS late \gset
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, ''2'')', :late)) e;
COMMIT;
-- a handler cannot edit its own job
CREATE FUNCTION test.edits_itself(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM jobq.edit(job.id, '2'); END $$;
SELECT jobq.register('edits_itself', 'test.edits_itself(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.enqueue('edits_itself') AS own \gset
SELECT state, regexp_replace(error, '\d+', 'N') AS error FROM test.outcome(:own);
SELECT jobq.delete(:own), jobq.cancel(:id);

-- a step with pending needs: the new payload can refer to the results of these needs
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "queue": "manual", "payload": [1, 2]}, {"name": "b", "kind": "echo", "needs": ["a"], "payload": {"$result": "a"}}, {"name": "each", "kind": "echo", "needs": ["a"], "map": {"$result": "a"}}]}') AS flow \gset
SELECT job_id AS b FROM jobq.steps WHERE batch_id = :flow AND name = 'b' \gset
SELECT job_id AS each FROM jobq.steps WHERE batch_id = :flow AND name = 'each' AND element IS NULL \gset
SELECT job_id AS a FROM jobq.steps WHERE batch_id = :flow AND name = 'a' \gset
SELECT e.* FROM (VALUES (:b, '{"$result": 5}'), (:b, '{"$result": "a", "x": 1}'), (:each, '{"$result": "a", "path": 1}'), (:each, '{"$element": 5}')) v (id, payload), test.error(format('SELECT jobq.edit(%s, %L)', v.id, v.payload)) e;
SELECT jobq.edit(:b, priority => 3, max_attempts => 2);
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, priority => 4, run_at => now())', :b)) e;
SELECT priority FROM jobq.jobs WHERE id = :b;
SELECT jobq.edit(:b, '{"b": {"$result": "a", "path": [0]}, "other": {"$element": 5}}'), jobq.edit(:each, '{"each": {"$element": "value"}}'), jobq.edit(:a, '{"$result": 5}'), jobq.edit(:a, '[3, 4]'), jobq.edit(:a, queue => 'default');
SELECT state FROM jobq.wait_batch(:flow, '5 min');
SELECT payload FROM jobq.jobs WHERE batch_id = :flow ORDER BY id;

-- another queue: length limit, expiry, groups, and carried settings
SELECT jobq.create_queue('short', max_length => 1), jobq.create_queue('brief', expires_after => '1 hour'), jobq.pause('short'), jobq.pause('brief');
SELECT jobq.enqueue('echo', queue => 'short') AS first, jobq.enqueue('echo', queue => 'brief') AS second \gset
SELECT e.code, e.message FROM test.error(format('SELECT jobq.edit(%s, queue => ''short'')', :second)) e;
SELECT jobq.edit(:first, queue => 'brief');
SELECT id = :first AS first, queue, expires_at - run_at AS expires FROM jobq_internal.job j JOIN (SELECT id AS queue_id, name AS queue FROM jobq_internal.queue) q USING (queue_id) WHERE id IN (:first, :second) ORDER BY id;
SELECT jobq.edit(:second, queue => 'short');
SELECT id = :first AS first, queue, expires_at - run_at AS expires FROM jobq_internal.job j JOIN (SELECT id AS queue_id, name AS queue FROM jobq_internal.queue) q USING (queue_id) WHERE id IN (:first, :second) ORDER BY id;
SELECT e.code, e.message FROM test.error('SELECT jobq.enqueue(''echo'', queue => ''short'')') e;
SELECT jobq.edit(:second, queue => 'manual');
SELECT jobq.enqueue('echo', queue => 'short') > 0 AS has_room;
SELECT jobq.cancel(:second), jobq.cancel(:first), jobq.cancel_many(queue => 'short', state => 'waiting');
SELECT jobq.enqueue('broken', '"first"', queue => 'first', group_key => 'g', max_attempts => 2, backoff => 'fixed 1h') AS first,
	jobq.enqueue('echo', '"second"', queue => 'first', group_key => 'g') AS second \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :first));
SELECT jobq.edit(:first, '"still first"');
SELECT state FROM jobq.status(:second);
SELECT jobq.edit(:first, queue => 'second');
SELECT state FROM test.outcome(:second);
SELECT jobq.enqueue('echo', '"other"', queue => 'second', group_key => 'g') AS other \gset
SELECT jobq.retry(:first);
SELECT state FROM test.outcome(:first);
SELECT state FROM test.outcome(:other);
SELECT jobq.delete(:first);
SELECT jobq.create_queue('carries', carry => '{app.x,app.y}'), jobq.create_queue('carries less', carry => '{App.x}');
SELECT jobq.enqueue('seen', '{"fail": 1}', queue => 'carries', options => '{"context": {"app.x": 1, "app.y": 2}}') AS letter \gset
SELECT state FROM test.outcome(:letter);
SELECT jobq.pause('carries');
SELECT jobq.enqueue('seen', '{}', queue => 'carries', options => '{"context": {"app.x": 1, "app.y": 2}}') AS id \gset
SELECT jobq.edit(:id, queue => 'carries less'), jobq.edit(:letter, '{}', queue => 'carries less');
SELECT context FROM jobq.jobs WHERE id IN (:id, :letter);
SELECT jobq.retry(:letter);
SELECT result ->> 'x' AS x FROM jobq.wait_many(ARRAY[:id, :letter]);
SELECT jobq.enqueue('seen', '{}', queue => 'carries', options => '{"context": {"app.x": 1}}') AS id \gset
SELECT jobq.edit(:id, queue => 'default');
SELECT result ->> 'x' AS x FROM jobq.wait(:id);
SELECT context FROM jobq.jobs WHERE id = :id;
-- the tenant follows the headers and the queue of the job
SELECT jobq.create_queue('of customers', tenant => 'header customer'), jobq.pause('of customers');
SELECT jobq.enqueue('seen', '{}', queue => 'of customers', headers => '{"customer": "a"}') AS id,
	jobq.enqueue('seen', '{"fail": 1}', headers => '{"customer": "a"}') AS letter \gset
SELECT state FROM test.outcome(:letter);
SELECT jobq.edit(:id, headers => '{"customer": "b"}'), jobq.edit(:letter, queue => 'of customers');
SELECT state, tenant FROM jobq.jobs WHERE id IN (:id, :letter) ORDER BY id;
SELECT jobq.edit(:letter, headers => '{"customer": "c"}'), jobq.edit(:id, queue => 'manual');
SELECT state, tenant FROM jobq.jobs WHERE id IN (:id, :letter) ORDER BY id;
SELECT jobq.delete(:letter), jobq.cancel(:id);
-- a job of a batch stays in the batch, and the payload of a step may refer to results
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "gate", "payload": 15}, {"name": "b", "kind": "echo", "payload": 1, "needs": ["a"]}]}') AS batch
FROM (SELECT pg_advisory_lock(15)) l \gset
SELECT jobq.edit((SELECT job_id FROM jobq.steps WHERE batch_id = :batch AND name = 'b'), '{"of a": {"$result": "a"}}');
SELECT pg_advisory_unlock(15);
SELECT s.name, w.state, w.result FROM jobq.steps s, jobq.wait(s.job_id) w WHERE s.batch_id = :batch ORDER BY 1;

-- edit() can change everything that the job does as its role.  The caller must therefore be a member of the role:
-- such a caller sees the content of the job, and could enqueue the job as this role.
CREATE ROLE regress_jobq_editor LOGIN;
SELECT jobq.create_queue('closed'), jobq.pause('closed');
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob', 'operate'), jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'default', delay => '1 hour') AS id, jobq.enqueue('seen', '{"fail": 1}') AS letter \gset
SELECT state FROM test.outcome(:letter);
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, ''{"n": 2}'')', id)) e;
SET ROLE regress_jobq_editor;
SELECT e.code, e.message FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, ''{"n": 2}'')', id)) e;
SET ROLE regress_jobq_bob;
SELECT e.* FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, max_attempts => 9)', id)) e;
SET ROLE regress_jobq_boss;
SELECT e.code, e.message FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, queue => ''manual'')', id)) e;
RESET ROLE;
-- an operator may change priority and run_at, and nothing else
SET ROLE regress_jobq_bob;
SELECT jobq.edit(:id, priority => 2, run_at => now() + '2 hours');
SELECT e.* FROM unnest(ARRAY['priority => 3, max_attempts => 9', 'run_at => now(), queue => ''manual''']) what, test.error(format('SELECT jobq.edit(%s, %s)', :id, what)) e;
SELECT e.* FROM test.error(format('SELECT jobq.edit(%s, priority => 3)', :letter)) e;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, priority => 3)', id)) e;
RESET ROLE;
SELECT priority FROM jobq.jobs WHERE id = :id;
-- a member of the job's role may edit
GRANT regress_jobq_alice TO regress_jobq_editor;
SET ROLE regress_jobq_editor;
SELECT jobq.edit(:id, '{"n": 2}'), jobq.edit(:letter, '{"n": 2}');
SET ROLE regress_jobq_alice;
SELECT jobq.retry(:letter), jobq.edit(:id, run_at => now());
SELECT state, result - 'x' AS result FROM jobq.wait_many(ARRAY[:id, :letter]);
SELECT DISTINCT l ->> 'message' AS log FROM jobq.jobs j, jsonb_array_elements(log) l WHERE id IN (:id, :letter);
-- only into queues of the job's role, and only while this role may enqueue there
SELECT jobq.enqueue('seen', '{"fail": 1}') AS letter \gset
SELECT state FROM test.outcome(:letter);
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'default', delay => '1 hour') AS id \gset
SELECT e.code, e.message FROM test.error(format('SELECT jobq.edit(%s, queue => ''closed'')', :id)) e;
RESET ROLE;
SELECT e.code, e.message FROM unnest(ARRAY[:id, :letter]) id, test.error(format('SELECT jobq.edit(%s, queue => ''closed'')', id)) e;
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'closed');
SELECT jobq.edit(:id, queue => 'closed');
SELECT queue, role FROM jobq.jobs WHERE id = :id;
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'closed');
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.edit(%s, ''{"n": 2}'')', :id)) e;
SELECT jobq.cancel(:id), jobq.delete(:letter);
RESET ROLE;
-- with SET ROLE to a superuser, a session cannot change a job that runs as the superuser
CREATE ROLE regress_jobq_root LOGIN SUPERUSER;
SET ROLE regress_jobq_root;
SELECT jobq.enqueue('seen', '{"n": 1}', delay => '1 hour') AS id \gset
RESET ROLE;
GRANT regress_jobq_root TO regress_jobq_editor;
SET SESSION AUTHORIZATION regress_jobq_editor;
SET ROLE regress_jobq_root;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.edit(%s, ''{"n": 2}'')', :id)) e;
-- edit_many() skips the superuser's job
SELECT jobq.edit_many('{"timeout": "1 min"}', ids => ARRAY[:id]);
RESET SESSION AUTHORIZATION;
SELECT jobq.edit(:id, '{"n": 2}'), jobq.cancel(:id);

-- rerun(): copies a finished job to a new job of the same role
SELECT jobq.create_queue('no payload', keep => 'no_payload', open => true), jobq.create_queue('gone');
SELECT jobq.enqueue('seen', '{"n": 1}', queue => 'default', priority => 5, max_attempts => 4, headers => '{"h": 1}', group_key => 'g', unique_key => 'k') AS id,
	jobq.enqueue('seen', queue => 'manual') AS waits, jobq.enqueue('seen', '{"fail": 1}') AS letter,
	jobq.enqueue('seen', '{}', queue => 'no payload') AS without, jobq.enqueue('seen', '{}', queue => 'gone') AS gone \gset
SELECT state FROM jobq.wait_many(ARRAY[:id, :letter, :without, :gone]);
SELECT jobq.drop_queue('gone');
SELECT jobq.rerun(:id) AS again \gset
SELECT state, result - 'as' - 'x' - 'headers' AS result FROM jobq.wait(:again);
SELECT :again > :id AS later, state, queue, priority, max_attempts, payload, headers - 'rerun_of' AS headers, (headers -> 'rerun_of')::bigint = :id AS origin, group_key, unique_key, role::text = current_user AS mine FROM jobq.jobs WHERE id = :again;
SELECT e.* FROM unnest(ARRAY[:waits, :letter, :without, :gone, 0]) WITH ORDINALITY u (id, n), test.error(format('SELECT jobq.rerun(%s)', id)) e ORDER BY n;
SELECT jobq.cancel(:waits), jobq.delete(:letter);
SELECT jobq.rerun(:waits) AS again \gset
SELECT state, queue, jobq.cancel(id) FROM jobq.jobs WHERE id = :again;
SELECT jobq.rerun(NULL) IS NULL AS nothing;
-- the log names the caller and the original job
SELECT jobq.enqueue('seen', queue => 'manual') AS id \gset
SELECT jobq.cancel(:id);
SELECT jobq.rerun(:id) AS again \gset
SELECT replace(l ->> 'message', :'id', 'ID') AS message FROM jobq.jobs j, jsonb_array_elements(log) l WHERE id = :again;
SELECT jobq.cancel(:again);
-- the new job counts towards max_length of its queue
SELECT jobq.create_queue('one place', max_length => 1);
SELECT jobq.pause('one place');
SELECT jobq.enqueue('seen', queue => 'one place') AS id \gset
SELECT jobq.cancel(:id);
SELECT jobq.rerun(:id) AS again \gset
SELECT e.code FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SELECT jobq.cancel(:again), jobq.drop_queue('one place', force => true);
BEGIN READ ONLY;
SELECT jobq.rerun(:id);
ROLLBACK;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('seen', '{"n": 1}') AS id \gset
SELECT state FROM test.outcome(:id);
SELECT jobq.rerun(:id) AS again \gset
SELECT state, result ->> 'as' AS ran_as FROM jobq.wait(:again);
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_bob;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_boss;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_editor;
SELECT jobq.rerun(:id) AS again \gset
RESET ROLE;
SELECT state, result ->> 'as' AS ran_as FROM jobq.wait(:again);
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
SET ROLE regress_jobq_root;
SELECT jobq.enqueue('seen', '{"n": 1}') AS id \gset
SELECT state FROM test.outcome(:id);
RESET ROLE;
SET SESSION AUTHORIZATION regress_jobq_editor;
SET ROLE regress_jobq_root;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.rerun(%s)', :id)) e;
RESET SESSION AUTHORIZATION;

SELECT jobq.revoke_privilege(r) FROM unnest('{regress_jobq_alice,regress_jobq_bob,regress_jobq_boss}'::regrole[]) r;
DROP ROLE regress_jobq_editor, regress_jobq_root;
SELECT jobq.unregister(k) FROM unnest('{seen,edits_itself}'::text[]) k;
SELECT jobq.drop_queue(q, force => true) FROM unnest('{edited,trusted,short,brief,carries,carries less,of customers,closed,no payload}'::text[]) q;
DROP FUNCTION test.seen(jsonb, jobq.job_context), test.edits_itself(jsonb, jobq.job_context);
