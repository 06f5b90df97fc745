-- rerun_steps(): repeat a step and its dependents, or all uncompleted steps.

CREATE FUNCTION test.finished(id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = %s)', id));
	RETURN (SELECT format('%s: %s completed, %s dead, %s cancelled, %s expired', state, completed, dead, cancelled, expired)
		FROM jobq.batches b WHERE b.id = finished.id);
END
$$;
CREATE VIEW test.again AS
	SELECT s.batch_id, s.name, s.state, j.result, j.error FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id = s.job_id WHERE s.element IS NULL ORDER BY s.job_id;
-- a step that records each run, and adds a run number to the payload
CREATE SEQUENCE test.run;
CREATE TABLE test.runs (n bigint, name text, payload jsonb);
GRANT USAGE ON SEQUENCE test.run TO PUBLIC;
GRANT SELECT, INSERT ON test.runs TO PUBLIC;
CREATE TABLE test.stop (name text);
GRANT SELECT ON test.stop TO PUBLIC;
CREATE FUNCTION test.rerunnable(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	step text := (SELECT s.name FROM jobq.steps s WHERE s.job_id = job.id);
BEGIN
	IF EXISTS (SELECT FROM test.stop s WHERE s.name = step) THEN
		PERFORM jobq.reject_current('stopped');
	END IF;
	INSERT INTO test.runs VALUES (nextval('test.run'), step, payload);
	RETURN jsonb_build_object('step', step, 'of', payload);
END
$$;
SELECT jobq.register('rerunnable', 'test.rerunnable(jsonb, jobq.job_context)');
CREATE VIEW test.ran AS SELECT name, count(*) FROM test.runs GROUP BY name ORDER BY name;

-- a completed workflow, from a given step: other steps keep their results, and the callbacks run again
SELECT jobq.create_workflow('{"name": "again", "on_success": {"kind": "note", "payload": "success"}, "on_finish": {"kind": "note", "payload": "finish"}, "on_failure": {"kind": "note", "payload": "failure"}, "steps": [
	{"name": "a", "kind": "rerunnable", "payload": 1},
	{"name": "b", "kind": "rerunnable", "needs": ["a"], "payload": {"$result": "a", "path": ["of"]}, "priority": 5},
	{"name": "c", "kind": "rerunnable", "needs": ["a"], "payload": "c"},
	{"name": "d", "kind": "rerunnable", "needs": ["b"], "payload": {"$result": "b"}},
	{"name": "e", "kind": "rerunnable", "needs": ["c", "d"], "payload": [{"$result": "a"}, {"$result": "d", "path": ["of"]}]}]}') AS id \gset
SELECT test.finished(:id);
SELECT * FROM test.ran;
SELECT job_id AS b FROM jobq.steps WHERE batch_id = :id AND name = 'b' \gset
SELECT jobq.rerun_steps(:id, 'b');
SELECT test.finished(:id);
SELECT * FROM test.ran;
SELECT name, state, result FROM test.again WHERE batch_id = :id;
SELECT job_id = :b AS same_job, s.state, j.priority, j.attempt, j.log -> -1 ->> 'message' ~ '^once more, by' AS logged FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id AND s.name = 'b';
SELECT test.until('(SELECT count(*) = 4 FROM test.trace)');
SELECT note, count(*) FROM test.trace GROUP BY 1 ORDER BY 1;
TRUNCATE test.trace, test.runs;
SELECT state, total, completed FROM jobq.batches WHERE id = :id;
-- from the first step, from the last step, and repeatedly
SELECT jobq.rerun_steps(:id, 'a');
SELECT test.finished(:id);
SELECT jobq.rerun_steps(:id, 'e');
SELECT test.finished(:id);
SELECT * FROM test.ran;
-- several calls in one transaction repeat each step once
TRUNCATE test.runs;
BEGIN;
SELECT jobq.rerun_steps(:id, 'd'), jobq.rerun_steps(:id, 'd'), jobq.rerun_steps(:id, 'c');
SELECT name, state FROM test.again WHERE batch_id = :id;
COMMIT;
SELECT test.finished(:id);
SELECT * FROM test.ran;
-- a rolled back call has no effect
BEGIN;
SELECT jobq.rerun_steps(:id, 'a');
ROLLBACK;
SELECT name, state, result -> 'of' AS of FROM test.again WHERE batch_id = :id;
SELECT state, total, completed FROM jobq.batches WHERE id = :id;
-- a step now fails: the failure is reported at once, as in the first run, and a retry also runs the dependents
SELECT test.until('(SELECT count(*) = 6 FROM test.trace)');
INSERT INTO test.stop VALUES ('d');
TRUNCATE test.trace, test.runs;
SELECT jobq.rerun_steps(:id, 'b');
SELECT test.finished(:id);
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.stop, test.trace;
SELECT jobq.rerun_steps(:id);
SELECT test.finished(:id);
SELECT * FROM test.ran;
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
SELECT jobq.rerun_steps(:id, NULL) AS nothing_left;
SELECT state FROM jobq.batches WHERE id = :id;
-- a chain
SELECT test.chain('[{"kind": "rerunnable", "payload": "x"}, {"kind": "rerunnable", "payload": {"$result": "1"}}]') AS ids \gset
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
TRUNCATE test.runs;
SELECT jobq.rerun_steps(batch_id, '2') FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1];
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT name, payload FROM test.runs;
TRUNCATE test.runs, test.trace;

-- a cancelled workflow continues: completed steps stay, all other steps wait and run
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"on_success": {"kind": "note", "payload": "success"}, "on_finish": {"kind": "note", "payload": "finish"}, "steps": [
	{"name": "a", "kind": "rerunnable", "payload": 1}, {"name": "b", "kind": "gate", "payload": 1, "needs": ["a"]},
	{"name": "c", "kind": "rerunnable", "needs": ["b", "a"], "payload": {"$result": "a", "path": ["of"]}}, {"name": "d", "kind": "rerunnable", "delay": "1 hour", "payload": "d"}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.steps WHERE name = ''b'' AND batch_id = %s)', :id));
-- a running step cannot be repeated
SELECT w, e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM unnest('{a,b}'::text[]) WITH ORDINALITY u (w, n), test.error(format('SELECT jobq.rerun_steps(%s, %L)', :id, w)) e ORDER BY n;
SELECT jobq.cancel_batch(:id);
SELECT test.finished(:id);
SELECT name, state FROM test.again WHERE batch_id = :id;
SELECT pg_advisory_unlock(1);
SELECT jobq.rerun_steps(:id);
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.steps WHERE name = ''d'' AND batch_id = %s)', :id));
SELECT jobq.edit(job_id, run_at => now()) FROM jobq.steps WHERE batch_id = :id AND name = 'd';
SELECT test.finished(:id);
SELECT name, state, result -> 'of' AS of FROM test.again WHERE batch_id = :id;
SELECT * FROM test.ran;
SELECT test.until('(SELECT count(*) = 3 FROM test.trace)');
SELECT note, count(*) FROM test.trace GROUP BY 1 ORDER BY 1;
TRUNCATE test.runs, test.trace;
-- a cancelled workflow without remaining steps
SELECT jobq.create_queue('rerun', mode => 'consumer');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "x", "queue": "rerun"}]}') AS id \gset
BEGIN;
SELECT jobq.ack(id, token) FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT jobq.cancel_batch(:id);
COMMIT;
SELECT test.finished(:id);
SELECT jobq.rerun_steps(:id);
SELECT test.finished(:id);

-- after pruning: states and results come from jobq_internal.step, and the counts stay right
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "a", "kind": "rerunnable", "payload": {"kept": [1]}}, {"name": "bad", "kind": "broken", "max_attempts": 1}, {"name": "late", "kind": "rerunnable", "expires_at": "2001-01-01"},
	{"name": "b", "kind": "rerunnable", "needs": ["a"], "payload": {"$result": "a", "path": ["of", "kept"]}}, {"name": "after bad", "kind": "rerunnable", "needs": ["bad", "a"]}, {"name": "skipped", "kind": "rerunnable", "needs": ["b"], "when": "1 == 2"},
	{"name": "end", "kind": "rerunnable", "needs": ["b", "skipped"], "payload": {"$result": "b", "path": ["of"]}}]}') AS id \gset
SELECT test.finished(:id);
SELECT jobq.prune('0', '0') > 4 AS pruned;
SELECT state, total, completed, dead, cancelled, expired FROM jobq.batches WHERE id = :id;
TRUNCATE test.runs;
SELECT jobq.rerun_steps(:id, 'b');
SELECT test.finished(:id);
SELECT name, state, result -> 'of' AS of FROM test.again WHERE batch_id = :id;
SELECT state, total, completed, dead, cancelled, expired FROM jobq.batches WHERE id = :id;
-- a step whose dead letter was deleted also runs again
SELECT jobq.rerun_steps(:id);
SELECT test.finished(:id);
SELECT name, state FROM test.again WHERE batch_id = :id AND name IN ('bad', 'after bad', 'late');
SELECT state, total, completed, dead, cancelled, expired FROM jobq.batches WHERE id = :id;
SELECT * FROM test.ran;
-- a step cannot run before all needed steps have completed
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s, %L)', :id, 'after bad')) e;
SELECT count(jobq.delete(job_id)) FROM jobq.steps WHERE batch_id = :id AND state = 'dead';

-- steps cancelled because of a failure wait again after a retry, even if their jobs were pruned
INSERT INTO test.stop VALUES ('a');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "rerunnable", "payload": 1}, {"name": "b", "kind": "rerunnable", "needs": ["a"], "payload": {"$result": "a", "path": ["of"]}}, {"name": "may be cancelled", "kind": "rerunnable", "needs": ["a"], "optional": true, "payload": 2}, {"name": "in", "needs": ["b"], "workflow": [{"name": "x", "kind": "rerunnable", "payload": {"$result": "b", "path": ["of"]}}]}, {"name": "c", "kind": "rerunnable", "delay": "1 hour", "payload": 3}]}') AS id \gset
SELECT test.finished(:id);
SELECT test.finished(id) FROM jobq.batches WHERE parent_id = :id;
SELECT jobq.prune('0', NULL) > 4 AS pruned;
SELECT name, state FROM test.again WHERE batch_id = :id;
SELECT state, total, completed, dead, cancelled FROM jobq.batches WHERE id = :id;
TRUNCATE test.stop;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.until(format('(SELECT b.finished_at IS NOT NULL OR s.state = ''scheduled'' FROM jobq.batches b JOIN jobq.steps s ON s.batch_id = b.id AND s.name = ''c'' WHERE b.id = %s)', :id));
SELECT name, state FROM test.again WHERE batch_id = :id AND name = 'c';
SELECT jobq.edit(job_id, run_at => now()) FROM jobq.steps WHERE batch_id = :id AND name = 'c' AND state = 'scheduled';
SELECT test.finished(:id);
SELECT name, state, result -> 'of' AS of FROM test.again WHERE batch_id = :id AND name <> 'in';
SELECT state, total, completed, dead, cancelled FROM jobq.batches WHERE id = :id;

-- optional steps, and conditions: the conditions of later steps are evaluated again
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "rerunnable", "payload": 1}, {"name": "may fail", "kind": "broken", "max_attempts": 1, "optional": true}, {"name": "may be cancelled", "kind": "x", "queue": "rerun", "optional": true},
	{"name": "if", "kind": "rerunnable", "needs": ["a", "may be cancelled"], "when": "!exists($.\"may be cancelled\")"}, {"name": "end", "kind": "rerunnable", "needs": ["if", "may fail"], "payload": [{"$result": "if"}, {"$result": "may fail"}]}]}') AS id \gset
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'may be cancelled';
SELECT test.finished(:id);
SELECT name, state FROM test.again WHERE batch_id = :id;
SELECT jobq.rerun_steps(:id, 'may be cancelled');
SELECT jobq.ack(id, token) FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT test.finished(:id);
SELECT name, state FROM test.again WHERE batch_id = :id;
-- later steps have run without the optional step: a rerun skips the step, unless the step has a dead letter
SELECT jobq.rerun_steps(:id, 'may be cancelled');
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'may be cancelled';
SELECT test.finished(:id);
SELECT jobq.rerun_steps(:id);
SELECT test.finished(:id);
SELECT count(jobq.delete(job_id)) FROM jobq.steps WHERE batch_id = :id AND state = 'dead';

-- a step with a job for each element: only a later step; then all elements, in their new number
CREATE TABLE test.amount (n int);
GRANT SELECT ON test.amount TO PUBLIC;
INSERT INTO test.amount VALUES (3);
CREATE FUNCTION test.amounts() RETURNS jsonb LANGUAGE sql AS $$ SELECT coalesce(jsonb_agg(i), '[]') FROM test.amount, generate_series(1, n) i $$;
SELECT jobq.register('amounts', 'test.amounts()');
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "amounts"}, {"name": "each", "kind": "echo", "needs": ["list"], "map": {"$result": "list"}, "payload": [{"$element": "value"}]}, {"name": "sum", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT test.finished(:id);
UPDATE test.amount SET n = 5;
SELECT jobq.rerun_steps(:id, 'sum');
SELECT test.finished(:id);
SELECT jobq.rerun_steps(:id, 'each');
SELECT test.finished(:id);
SELECT name, state, elements, elements_completed FROM jobq.steps WHERE batch_id = :id AND element IS NULL ORDER BY job_id;
SELECT jobq.prune('0', '0') > 4 AS pruned;
SELECT jobq.rerun_steps(:id, 'list');
SELECT test.finished(:id);
SELECT s.name, s.state, s.elements, s.elements_completed, j.result FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id AND s.element IS NULL ORDER BY s.job_id;
SELECT count(*), min(element), max(element) FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id;
UPDATE test.amount SET n = 0;
SELECT jobq.rerun_steps(:id, 'list');
SELECT test.finished(:id);
SELECT count(*) FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id;
-- cancelled or dead elements run again; completed elements stay
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [10, 20, 30, 40]}, {"name": "each", "kind": "x", "queue": "rerun", "needs": ["list"], "map": {"$result": "list"}, "payload": {"of": {"$element": "value"}, "at": {"$element": "index"}}}, {"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT test.until(format('(SELECT count(*) = 4 FROM jobq.steps WHERE element IS NOT NULL AND state = ''ready'' AND batch_id = %s)', :id));
SELECT payload, jobq.ack(id, token, payload -> 'of') FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT test.finished(:id);
SELECT element, state FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id ORDER BY element;
SELECT jobq.rerun_steps(:id);
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.steps WHERE element IS NOT NULL AND state = ''ready'' AND batch_id = %s)', :id));
SELECT jobq.cancel_batch(:id);
SELECT test.finished(:id);
SELECT jobq.rerun_steps(:id);
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.steps WHERE element IS NOT NULL AND state = ''ready'' AND batch_id = %s)', :id));
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM test.error(format('SELECT jobq.rerun_steps(%s, %L)', :id, 'list')) e;
SELECT payload, jobq.ack(id, token, payload -> 'of') FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT payload, jobq.ack(id, token, payload -> 'of') FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT payload, jobq.ack(id, token, payload -> 'of') FROM jobq.reserve('{rerun}', wait => '5 min');
SELECT test.finished(:id);
SELECT name, state, result FROM test.again WHERE batch_id = :id;

-- a large workflow, whose progress the scheduler keeps in memory
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow(jsonb_build_object('steps', '[{"name": "gate", "kind": "gate", "payload": 1}, {"name": "last", "kind": "rerunnable", "needs": ["gate", "50"]}]'::jsonb
	|| (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'echo', 'payload', CASE WHEN i = 1 THEN '1' ELSE jsonb_build_object('$result', (i - 1)::text) END, 'needs', CASE WHEN i = 1 THEN '[]' ELSE jsonb_build_array((i - 1)::text) END)) FROM generate_series(1, 50) i))) AS id \gset
SELECT test.until(format('(SELECT state = ''completed'' FROM jobq.steps WHERE name = ''50'' AND batch_id = %s)', :id));
SELECT jobq.rerun_steps(:id, '2');
SELECT pg_advisory_unlock(1);
SELECT test.finished(:id);
SELECT count(*) FILTER (WHERE state = 'completed') AS completed, count(*) FILTER (WHERE result = '1') AS results FROM test.again WHERE batch_id = :id;

-- from inside a step: allowed for unrelated steps, but not for the step itself, nor for its needs
CREATE FUNCTION test.inside(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	batch bigint := (jobq.current_job()).batch_id;
BEGIN
	IF payload = '"other"' THEN
		PERFORM test.until(format('(SELECT state = ''completed'' FROM jobq.steps WHERE name = ''other'' AND batch_id = %s)', batch));
	END IF;
	RETURN to_jsonb(jobq.rerun_steps(batch, payload #>> '{}'));
EXCEPTION WHEN OTHERS THEN
	RETURN to_jsonb(regexp_replace(sqlerrm, '\d+', 'N'));
END
$$;
SELECT jobq.register('inside', 'test.inside(jsonb)');
TRUNCATE test.runs;
SELECT jobq.create_workflow('{"steps": [{"name": "other", "kind": "rerunnable"}, {"name": "before", "kind": "rerunnable"}, {"name": "a", "kind": "inside", "payload": "a", "needs": ["before"]}, {"name": "b", "kind": "inside", "payload": "before", "needs": ["a"]}, {"name": "c", "kind": "inside", "payload": "other", "needs": ["b"]}, {"name": "d", "kind": "rerunnable", "needs": ["c"]}]}') AS id \gset
SELECT test.finished(:id);
SELECT name, state, result FROM test.again WHERE batch_id = :id AND name IN ('a', 'b', 'c');
SELECT * FROM test.ran;

-- bad input
SELECT jobq.create_batch('plain') AS plain \gset
SELECT regexp_replace(c, '\d+', 'N') AS call, e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM unnest(ARRAY[format('rerun_steps(%s, %L)', :id, 'none'), format('rerun_steps(%s, %L)', :plain, 'a'), format('rerun_steps(%s)', :plain), 'rerun_steps(-1, ''a'')', 'rerun_steps(-1)']) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
SELECT jobq.rerun_steps(NULL, 'a'), jobq.rerun_steps(NULL), jobq.rerun_steps(NULL, NULL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT e.code, e.message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s, %L)', :id, 'a')) e;
ROLLBACK;
SELECT jobq.cancel_batch(:plain);
-- a role reruns its own workflows; an operator may retry, but not repeat completed steps
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob', 'operate');
SET ROLE regress_jobq_alice;
SELECT test.chain('[{"kind": "echo"}, {"kind": "broken", "max_attempts": 1}]') AS ids \gset
SELECT batch_id AS hers FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1] \gset
SELECT test.finished(:hers);
SELECT jobq.rerun_steps(:hers, '1');
SELECT test.finished(:hers);
SELECT role FROM jobq.jobs WHERE id = (:'ids'::bigint[])[1];
SET ROLE regress_jobq_bob;
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s, %L)', :hers, '1')) e;
SELECT jobq.rerun_steps(:hers);
RESET ROLE;
SELECT test.finished(:hers);
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s, %L)', :hers, '2')) e;
SELECT test.finished(:hers);
SELECT count(jobq.delete(job_id)) FROM jobq.steps WHERE batch_id = :hers AND state = 'dead';
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
SELECT jobq.unregister(k) FROM unnest('{rerunnable,amounts,inside}'::text[]) k;
SELECT jobq.drop_queue('rerun');
TRUNCATE test.trace;
