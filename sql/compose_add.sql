-- add_steps(): steps are added to a running workflow.

SELECT jobq.create_queue('added', mode => 'consumer');
TRUNCATE test.trace;
-- Waits for the end of a workflow and returns its steps.
CREATE FUNCTION test.flow_end(id bigint) RETURNS TABLE (name text, state text, needs text[], payload jsonb, result jsonb) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.wait_batch(id, '5 min');
	RETURN QUERY SELECT s.name, s.state, s.needs, j.payload, j.result FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = flow_end.id AND s.element IS NULL ORDER BY s.job_id;
END $$;
-- Acknowledge the job of a step as soon as a consumer can reserve the job.
CREATE FUNCTION test.finish(flow bigint, step text, result jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	FOR i IN 1..30000 LOOP
		SELECT r.* INTO job FROM jobq.steps s CROSS JOIN LATERAL jobq.reserve_job(s.job_id) r WHERE s.batch_id = flow AND s.name = step AND s.element IS NULL;
		EXIT WHEN FOUND;
		PERFORM pg_sleep(0.01);
	END LOOP;
	PERFORM jobq.ack(job.id, job.token, result);
	RETURN job.payload;
END $$;
CREATE FUNCTION test.in_state(flow bigint, step text, wanted text) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT state = %L FROM jobq.steps WHERE name = %L AND element IS NULL AND batch_id = %s)', wanted, step, flow))
$$;

-- from a session: after completed and pending steps, and after each other; with the result of a much earlier step
SELECT jobq.create_workflow('{"name": "grows", "on_success": {"kind": "note", "payload": "completed"}, "on_failure": {"kind": "note", "payload": "failed"}, "steps": [
	{"name": "a", "kind": "echo", "payload": {"n": 1}},
	{"name": "b", "kind": "echo", "needs": ["a"], "payload": {"b": {"$result": "a", "path": ["n"]}}},
	{"name": "gate", "kind": "x", "queue": "added"}]}') AS id \gset
SELECT test.in_state(:id, 'b', 'completed');
SELECT cardinality(jobq.add_steps(:id, '[
	{"name": "d", "kind": "echo", "needs": ["c", "gate"], "payload": [{"$result": "c"}, {"$result": "gate"}, {"$result": "a"}]},
	{"name": "c", "kind": "echo", "needs": ["b"], "payload": [{"$result": "b"}, {"$result": "a", "path": ["n"]}], "priority": 9},
	{"name": "alone", "kind": "echo", "payload": "alone"},
	{"name": "each", "kind": "echo", "needs": ["c"], "map": {"$result": "c"}},
	{"name": "no", "kind": "echo", "needs": ["c"], "when": "$.c[1] == 2"},
	{"name": "may", "kind": "broken", "needs": ["no"], "optional": true},
	{"name": "last", "kind": "x", "needs": ["each", "may", "no"], "payload": [{"$result": "each"}, {"$result": "no"}], "queue": "added"}]',
	options => '{"priority": 7, "max_attempts": 1}')) AS n;
-- more steps can be added to added steps, with the same display of progress
SELECT test.finish(:id, 'last', '{"l": 1}') AS payload;
SELECT test.in_state(:id, 'may', 'dead'), test.in_state(:id, 'each', 'completed'), test.in_state(:id, 'alone', 'completed');
SELECT cardinality(jobq.add_steps(:id, '[{"name": "more", "kind": "echo", "needs": ["last", "d"], "payload": {"l": {"$result": "last", "path": ["l"]}}}]')) AS n;
SELECT name, state, needs, elements, elements_completed FROM jobq.steps WHERE batch_id = :id AND element IS NULL ORDER BY job_id;
SELECT name, element, state FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id ORDER BY element;
SELECT state, total, blocked, running, completed, dead, cancelled FROM jobq.batches WHERE id = :id;
SELECT test.finish(:id, 'gate', '"opened"') AS payload;
SELECT * FROM test.flow_end(:id);
SELECT state, total, completed, dead, cancelled FROM jobq.batches WHERE id = :id;
SELECT s.name, j.priority, j.max_attempts FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id AND s.name IN ('a', 'c', 'd') ORDER BY 1;
SELECT test.until('(SELECT count(*) = 1 FROM test.trace)');
SELECT note FROM test.trace;

-- the workflow is finished
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message, e.hint FROM test.error(format('SELECT jobq.add_steps(%s, %L)', :id, '[{"name": "late", "kind": "echo"}]')) e;
-- rerun_steps() with added steps: a step with its dependents, and the dead step
SELECT jobq.rerun_steps(:id, 'c') AS again;
SELECT test.finish(:id, 'last', '{"l": 2}') AS payload;
SELECT name, state, result FROM test.flow_end(:id);
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
TRUNCATE test.trace;

-- from inside a step: the step adds part steps and a step that joins the results, its own result included
CREATE FUNCTION test.split(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	batch bigint := job.batch_id;
BEGIN
	FOR i IN 1..payload::int LOOP
		PERFORM jobq.add_steps(batch, jsonb_build_array(jsonb_build_object('name', 'part ' || i, 'kind', 'echo', 'payload', i, 'needs', jsonb_build_array('split'))));
	END LOOP;
	PERFORM jobq.add_steps(batch, jsonb_build_array(jsonb_build_object('name', 'joined', 'kind', 'echo',
		'needs', (SELECT jsonb_agg('part ' || i) FROM generate_series(1, payload::int) i),
		'payload', (SELECT jsonb_agg(jsonb_build_object('$result', 'part ' || i)) || '{"$result": "split"}' FROM generate_series(1, payload::int) i))));
	IF job.attempt = 1 THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	RETURN '"split"';
END $$;
SELECT jobq.register('split', 'test.split(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.create_workflow('{"steps": [{"name": "split", "kind": "split", "payload": 3}]}') AS id \gset
SELECT name, state, needs, payload, result FROM test.flow_end(:id);
-- as many steps as the scheduler keeps in memory
SELECT jobq.create_workflow('{"steps": [{"name": "split", "kind": "split", "payload": 100}]}') AS id \gset
SELECT count(*), (sum(result::int) FILTER (WHERE name LIKE 'part %'))::int AS sum, count(*) FILTER (WHERE name = 'joined' AND jsonb_array_length(result) = 101 AND result -> 100 = '"split"') AS joined FROM test.flow_end(:id) WHERE state = 'completed';

-- to a large workflow, step by step: as a chain or in parallel; with and without waiting steps
SELECT jobq.create_workflow('{"options": {"queue": "added"}, "steps": [{"name": "gate", "kind": "x"}, {"name": "0", "kind": "echo", "queue": "default", "payload": 0}, {"name": "other", "kind": "x"}]}') AS id \gset
CREATE PROCEDURE test.grow(flow bigint, first int, last int, shape text) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN first..last LOOP
		PERFORM jobq.add_steps(flow, jsonb_build_array(jsonb_build_object('name', i::text, 'kind', 'echo') || CASE shape
			WHEN 'chain' THEN jsonb_build_object('needs', jsonb_build_array((i - 1)::text), 'payload', jsonb_build_object('$result', (i - 1)::text))
			WHEN 'gate' THEN '{"needs": ["gate"], "payload": {"$result": "gate"}}'
			WHEN 'first' THEN '{"needs": ["0"], "payload": {"$result": "0"}}'
			ELSE '{"payload": 0}' END));
		COMMIT;
	END LOOP;
END $$;
CALL test.grow(:id, 1, 40, 'chain');
SELECT test.in_state(:id, '40', 'completed');
-- a skipped step, and a dependent step that is added after the skip
SELECT cardinality(jobq.add_steps(:id, '[{"name": "skipped", "kind": "echo", "needs": ["40"], "when": "$.\"40\" == 1", "optional": true}]')) AS n;
SELECT test.in_state(:id, 'skipped', 'skipped');
SELECT cardinality(jobq.add_steps(:id, '[{"name": "unskipped", "kind": "echo", "needs": ["skipped"], "payload": 0}]')) AS n;
SELECT test.in_state(:id, 'unskipped', 'completed');
CALL test.grow(:id, 41, 80, 'first');
SELECT test.in_state(:id, '80', 'completed');
CALL test.grow(:id, 81, 120, 'none');
CALL test.grow(:id, 121, 160, 'chain');
SELECT test.in_state(:id, '160', 'completed');
CALL test.grow(:id, 161, 200, 'gate');
CALL test.grow(:id, 201, 240, 'chain');
SELECT state, total, blocked FROM jobq.batches WHERE id = :id;
SELECT test.finish(:id, 'gate', '0') AS payload;
SELECT test.in_state(:id, '240', 'completed');
CALL test.grow(:id, 241, 250, 'chain');
-- in a rolled back subtransaction, and beside a rolled back subtransaction; in a prepared transaction
BEGIN;
SAVEPOINT s;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "251", "kind": "nothing such", "queue": "added"}, {"name": "gone", "kind": "echo"}]')) AS n;
ROLLBACK TO s;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "251", "kind": "echo", "needs": ["250"], "payload": {"$result": "250"}}]')) AS n;
SAVEPOINT s;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "252", "kind": "nothing such", "queue": "added"}]')) AS n;
ROLLBACK TO s;
COMMIT;
SELECT test.in_state(:id, '251', 'completed');
BEGIN;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "252", "kind": "echo", "needs": ["251"], "payload": {"$result": "251"}}]')) AS n;
PREPARE TRANSACTION 'added';
COMMIT PREPARED 'added';
SELECT test.in_state(:id, '252', 'completed');
CALL test.grow(:id, 253, 260, 'chain');
SELECT test.in_state(:id, '260', 'completed');
SELECT test.finish(:id, 'other', '0') AS payload;
SELECT state, result, count(*) FROM test.flow_end(:id) GROUP BY 1, 2 ORDER BY 1;
SELECT state, completed FROM jobq.batches WHERE id = :id;

-- a need that was cancelled or is dead, when no step waits
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "gate", "kind": "x", "queue": "added"}, {"name": "0", "kind": "x", "queue": "added"}, {"name": "1", "kind": "broken", "max_attempts": 1}]}') AS id \gset
CALL test.grow(:id, 2, 50, 'none');
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = '0';
SELECT test.in_state(:id, '1', 'dead');
SELECT cardinality(jobq.add_steps(:id, '[{"name": "x", "kind": "echo", "needs": ["0"]}, {"name": "y", "kind": "echo", "needs": ["1"]}, {"name": "z", "kind": "echo", "needs": ["y", "50"]}]')) AS n;
SELECT test.in_state(:id, 'x', 'cancelled'), test.in_state(:id, 'y', 'cancelled'), test.in_state(:id, 'z', 'cancelled');
SELECT s.name, s.state, a.cause, a.reason FROM jobq.steps s JOIN jobq_internal.archive a ON a.id = s.job_id WHERE s.batch_id = :id AND s.name IN ('x', 'y', 'z') ORDER BY 1;
-- ... or a need whose dead letter was deleted
SELECT jobq.delete(job_id) FROM jobq.steps WHERE batch_id = :id AND name = '1';
SELECT cardinality(jobq.add_steps(:id, '[{"name": "w", "kind": "echo", "needs": ["1", "50"]}]')) AS n;
SELECT test.in_state(:id, 'w', 'cancelled');
SELECT a.cause, a.reason FROM jobq.steps s JOIN jobq_internal.archive a ON a.id = s.job_id WHERE s.batch_id = :id AND s.name = 'w';
SELECT test.finish(:id, 'gate');
SELECT state, completed, dead, cancelled FROM jobq.wait_batch(:id, '5 min');
-- after a retry, the workflow continues with the added steps
SELECT jobq.register('broken', 'test.echo(jsonb)') IS NOT NULL AS mended;
SELECT jobq.rerun_steps(:id) > 0 AS retried;
SELECT test.finish(:id, '0', '5');
SELECT name, state FROM test.flow_end(:id) WHERE name IN ('0', '1', 'w', 'x', 'y', 'z');
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms') IS NOT NULL AS broken;

-- thousands in one call; then one step for each call, in subtransactions of which every third is rolled back
SELECT jobq.create_workflow('{"name": "thousands", "steps": [{"name": "gate", "kind": "x", "queue": "added"}]}') AS id \gset
SELECT cardinality(jobq.add_steps(:id, (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'echo', 'payload', 0, 'needs', CASE WHEN i > 5 THEN jsonb_build_array((i - 5)::text) ELSE '["gate"]' END)) FROM generate_series(1, 1200) i))) AS n;
DO $$
DECLARE
	flow bigint := (SELECT id FROM jobq.batches WHERE name = 'thousands');
BEGIN
	FOR i IN 1201..2400 LOOP
		BEGIN
			PERFORM jobq.add_steps(flow, jsonb_build_array(jsonb_build_object('name', i::text, 'kind', 'echo', 'payload', 0, 'needs', jsonb_build_array((i - 1200)::text))));
			IF i % 3 = 0 THEN
				RAISE 'no';
			END IF;
		EXCEPTION WHEN raise_exception THEN
		END;
	END LOOP;
END $$;
SELECT test.finish(:id, 'gate');
SELECT state, total, completed FROM jobq.wait_batch(:id, '5 min');

-- added steps are cancelled with the workflow; a chain grows as well
SELECT test.chain('[{"kind": "x"}, {"kind": "echo"}]', name => 'a chain', options => '{"queue": "added"}') AS ids \gset
SELECT batch_id AS id FROM jobq.jobs WHERE id = (:'ids'::bigint[])[1] \gset
SELECT cardinality(jobq.add_steps(:id, '[{"name": "3", "kind": "echo", "needs": ["2"], "payload": {"$result": "1"}}]')) AS n;
SELECT jobq.cancel_batch(:id);
-- (the scheduler may have been faster)
SELECT e.code FROM test.error(format('SELECT jobq.add_steps(%s, %L)', :id, '[{"name": "late", "kind": "echo"}]')) e;
SELECT name, state FROM test.flow_end(:id);

-- bad input; no step is added
SELECT jobq.create_workflow('{"name": "errors", "steps": [{"name": "a", "kind": "x", "queue": "added"}, {"name": "b", "kind": "echo", "needs": ["a"]}, {"name": "c", "kind": "echo", "needs": ["b"]}]}') AS id \gset
SELECT s, e.code, regexp_replace(e.message, 'flow \d+', 'flow N') AS message, e.hint FROM unnest(ARRAY['[]', '{}', '1', '[1]', '[{"kind": "echo"}]', '[{"name": "a", "kind": "echo"}]', '[{"name": "", "kind": "echo"}]',
	'[{"name": "x", "kind": "echo"}, {"name": "x", "kind": "echo"}]', '[{"name": "x", "kind": "echo", "needs": ["nobody"]}]', '[{"name": "x", "kind": "echo", "needs": ["x"]}]',
	'[{"name": "x", "kind": "echo", "needs": ["c", "y"]}, {"name": "y", "kind": "echo", "needs": ["b", "z"]}, {"name": "z", "kind": "echo", "needs": ["x"]}]',
	'[{"name": "x", "kind": "echo", "payload": {"$result": "a"}}]', '[{"name": "x", "kind": "echo", "needs": ["a"], "payload": {"$result": "c"}}]', '[{"name": "x", "kind": "echo", "needs": ["c"], "payload": {"$result": "nobody"}}]',
	'[{"name": "x", "kind": "echo", "when": "$.a == 1"}]', '[{"name": "x", "kind": "echo", "unique_key": "k"}]', '[{"name": "x", "kind": "unheard of"}]'])
	WITH ORDINALITY u (s, n), test.error(format('SELECT jobq.add_steps(%s, %L)', :id, s)) e ORDER BY n;
SELECT jobq.create_batch('no steps', start => true) AS batch \gset
SELECT c, e.code, regexp_replace(e.message, '(flow|batch) \d+', '\1 N') AS message, e.hint FROM unnest(ARRAY['NULL, ''[]''', ':id, NULL', '0, ''[{"name": "x", "kind": "echo"}]''', ':batch, ''[{"name": "x", "kind": "echo"}]''', ':id, ''[{"name": "x", "kind": "echo"}]'', options => ''1'''])
	WITH ORDINALITY u (c, n), test.error('SELECT jobq.add_steps(' || replace(replace(c, ':id', :'id'), ':batch', :'batch') || ')') e ORDER BY n;
SELECT jobq.cancel_batch(:batch);
-- one step too many
SELECT e.code, regexp_replace(e.message, 'flow \d+', 'flow N') AS message, e.hint FROM test.error(format('SELECT jobq.add_steps(%s, (SELECT jsonb_agg(jsonb_build_object(''name'', i, ''kind'', ''echo'')) FROM generate_series(1, 99998) i))', :id)) e;
-- other roles: a role that may not see the workflow; a manager, whose jobs would belong to another role; the owner
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob'), jobq.grant_privilege('regress_jobq_alice', 'produce', 'added');
SET ROLE regress_jobq_bob;
SELECT e.code, regexp_replace(e.message, 'batch \d+', 'batch N') AS message FROM test.error(format('SELECT jobq.add_steps(%s, %L)', :id, '[{"name": "x", "kind": "echo"}]')) e;
SET ROLE regress_jobq_alice;
SELECT jobq.create_workflow('{"name": "hers", "steps": [{"name": "a", "kind": "x", "queue": "added"}]}') AS hers \gset
RESET ROLE;
SELECT e.code, regexp_replace(e.message, 'flow \d+', 'flow N') AS message, e.hint FROM test.error(format('SELECT jobq.add_steps(%s, %L)', :hers, '[{"name": "x", "kind": "echo"}]')) e;
SET ROLE regress_jobq_alice;
SELECT cardinality(jobq.add_steps(:hers, '[{"name": "x", "kind": "x", "queue": "added"}]')) AS n;
RESET ROLE;
SELECT s.name, s.state, j.role FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :hers ORDER BY 1;
SELECT jobq.cancel_batch(:hers);
-- rolled back with the transaction, and with a subtransaction
BEGIN;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "gone", "kind": "echo"}]')) AS n;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "d", "kind": "nothing such", "queue": "added"}]')) AS n;
ROLLBACK TO s;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "d", "kind": "echo", "needs": ["c"], "payload": "kept"}]')) AS n;
COMMIT;
SELECT test.finish(:id, 'a');
SELECT name, state, needs, result FROM test.flow_end(:id);
-- in a prepared transaction
SELECT jobq.create_workflow('{"name": "prepared", "steps": [{"name": "a", "kind": "x", "queue": "added"}]}') AS id \gset
BEGIN;
SELECT cardinality(jobq.add_steps(:id, '[{"name": "p", "kind": "echo", "needs": ["a"], "payload": "p"}]')) AS n;
PREPARE TRANSACTION 'added';
SELECT test.finish(:id, 'a');
COMMIT PREPARED 'added';
SELECT name, state, needs, result FROM test.flow_end(:id);

SELECT test.until('(SELECT count(*) = 0 FROM jobq.batches WHERE finished_at IS NULL)');
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob'), jobq.unregister('split'), jobq.delete_many(state => 'dead') >= 0 AS deleted, jobq.drop_queue('added');
DROP PROCEDURE test.grow;
DROP FUNCTION test.flow_end, test.finish, test.in_state, test.split;
TRUNCATE test.trace;
