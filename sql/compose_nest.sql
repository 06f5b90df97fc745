-- Workflows and chains as steps of workflows, and in batches.

CREATE FUNCTION test.nest_ended(id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = %s)', id));
	RETURN (SELECT format('%s: %s completed, %s dead, %s cancelled, %s expired', state, completed, dead, cancelled, expired)
		FROM jobq.batches b WHERE b.id = nest_ended.id);
END
$$;
-- the steps of a workflow and of its inner workflows, in order of definition
CREATE FUNCTION test.nest_tree(id bigint) RETURNS TABLE (step text, state text, result jsonb, error text) LANGUAGE sql AS $$
	WITH RECURSIVE tree AS (
		SELECT s.*, s.name AS path, ARRAY[s.job_id] AS place FROM jobq.steps s WHERE s.batch_id = nest_tree.id AND s.element IS NULL
		UNION ALL
		SELECT s.*, t.path || '/' || s.name, t.place || s.job_id FROM tree t JOIN jobq.steps s ON s.batch_id = t.workflow_id AND s.element IS NULL)
	SELECT t.path, t.state, j.result, regexp_replace(j.error, 'workflow \d+', 'workflow N', 'g') FROM tree t LEFT JOIN jobq.jobs j ON j.id = t.job_id ORDER BY t.place
$$;
CREATE FUNCTION test.inner(id bigint, step text) RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT workflow_id FROM jobq.steps s WHERE s.batch_id = "inner".id AND s.name = step $$;
CREATE TABLE test.halt (name text);
GRANT SELECT ON test.halt TO PUBLIC;
CREATE FUNCTION test.may_halt(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM test.halt h WHERE h.name = (SELECT s.name FROM jobq.steps s WHERE s.job_id = job.id)) THEN
		PERFORM jobq.reject_current('halted');
	END IF;
	RETURN payload;
END
$$;
SELECT jobq.register('may_halt', 'test.may_halt(jsonb, jobq.job_context)');
CREATE FUNCTION test.told(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (to_jsonb(concat_ws(' ', payload #>> '{}', job.headers ->> 'batch', job.headers ->> 'batch_state',
		regexp_replace(job.headers #>> '{batch_error,error}', 'workflow \d+', 'workflow N', 'g'))))
$$;
SELECT jobq.register('told', 'test.told(jsonb, jobq.job_context)');
SELECT jobq.create_queue('nested', mode => 'consumer');

-- inner workflows wait for the needed steps, use the results of these steps, and have results themselves
SELECT jobq.create_workflow('{"name": "outer", "on_success": {"kind": "told", "payload": "success"}, "on_finish": {"kind": "told", "payload": "finish"}, "steps": [
	{"name": "a", "kind": "echo", "payload": {"rows": [1, 2, 3]}},
	{"name": "import", "needs": ["a"], "workflow": [
		{"name": "x", "kind": "echo", "payload": {"of a": {"$result": "a", "path": ["rows", 1]}}},
		{"name": "y", "kind": "echo", "payload": [{"$result": "x"}, {"$result": "a"}], "needs": ["x"]},
		{"name": "each", "kind": "echo", "map": {"$result": "a", "path": ["rows"]}, "payload": {"$element": "value"}},
		{"name": "none", "kind": "note", "needs": ["each"], "payload": "in"}]},
	{"name": "next", "needs": ["a"], "chain": {"on_success": {"kind": "told", "payload": "chain"}, "steps": [{"kind": "echo", "payload": 7}, {"kind": "echo", "payload": [{"$result": "1"}, {"$result": "a", "path": ["rows", 0]}]}]}},
	{"name": "end", "kind": "echo", "needs": ["import", "next"], "payload": [{"$result": "import", "path": ["y"]}, {"$result": "next"}]}]}') AS id \gset
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 4 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- each inner workflow is a batch, and a job of the outer workflow
SELECT total, completed, progress FROM jobq.batches WHERE id = :id;
SELECT b.name, b.state, b.total, b.completed, b.parent_id = :id AS in_outer FROM jobq.batches b WHERE b.parent_id = :id ORDER BY b.id;
SELECT j.state, j.kind, j.queue, (j.payload ->> 'batch_id')::bigint = s.workflow_id AS its_batch FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id AND s.name = 'import';
-- waiting jobs, and the reasons
SELECT jobq.create_workflow('{"options": {"queue": "nested", "priority": 3}, "steps": [{"name": "a", "kind": "x"},
	{"name": "b", "needs": ["a"], "workflow": {"name": "named", "options": {"priority": 5}, "steps": [{"name": "c", "kind": "x"}, {"name": "d", "kind": "x", "priority": 7}]}}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.steps WHERE batch_id = %s AND name = ''a'')', :id));
SELECT * FROM test.nest_tree(:id);
SELECT name, state, total, blocked FROM jobq.batches WHERE parent_id = :id;
SELECT reason, regexp_replace(detail, '\d+', 'N', 'g') AS detail, regexp_replace(remedy, '\d+', 'N', 'g') AS remedy FROM jobq.steps s, jobq.explain(s.job_id) WHERE s.batch_id = :id AND s.name = 'b';
SELECT s.name, j.queue, j.priority FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id IN (:id, test.inner(:id, 'b')) ORDER BY s.job_id;
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.start_batch(%s)', test.inner(:id, 'b'))) e;
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM test.error(format('SELECT jobq.add_jobs(%s, ''x'', ''{1}'')', test.inner(:id, 'b'))) e;
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM test.error(format('SELECT test.chain(''[{"kind": "echo"}]'', batch => %s)', test.inner(:id, 'b'))) e;
-- steps can be added, also before the inner workflow begins
SELECT cardinality(jobq.add_steps(test.inner(:id, 'b'), '[{"name": "e", "kind": "x", "queue": "nested"}, {"name": "f", "needs": ["c", "e"], "chain": [{"kind": "echo", "payload": {"$result": "c"}}]}]'));
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message, e.hint FROM jobq.steps s, test.error(format('SELECT jobq.edit(%s, queue => ''default'')', s.job_id)) e WHERE s.batch_id = :id AND s.name = 'b';
SELECT e.code, e.message ~ 'stands for a workflow' AS refused FROM jobq.steps s, test.error(format('SELECT jobq.edit(%s, payload => ''{}'')', s.job_id)) e WHERE s.batch_id = :id AND s.name = 'b';
SELECT jobq.edit_many('{"timeout": "5 min"}', batch_id => :id) AS without_it, jobq.edit_many('{"priority": 1}', batch_id => :id, state => 'blocked') AS with_it;
SELECT jobq.edit_many('{"priority": 0}', batch_id => :id, state => 'blocked');
SELECT * FROM test.nest_tree(:id);
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.steps WHERE batch_id = %s AND state = ''ready'')', test.inner(:id, 'b')));
SELECT * FROM test.nest_tree(:id);
SELECT state, total, blocked, running FROM jobq.batches WHERE id = :id;
SELECT jobq.ack(id, token, '"c"') FROM jobq.reserve('{nested}', 9, wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);

-- inner workflows in a chain, and several levels
SELECT test.chain('[{"kind": "echo", "payload": 1}, {"workflow": [{"name": "two", "kind": "echo", "payload": [{"$result": "1"}]}]}, {"kind": "echo", "payload": {"$result": "2"}}]') AS ids \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
CREATE FUNCTION test.nest_levels(n int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT CASE WHEN n = 1 THEN '[{"name": "last", "kind": "may_halt", "payload": {"$result": "top"}}]'::jsonb
		ELSE jsonb_build_array(jsonb_build_object('name', 'level ' || n, 'workflow', test.nest_levels(n - 1))) END
$$;
CREATE FUNCTION test.nest_deep(n int) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_workflow(jsonb_build_object('steps', '[{"name": "top", "kind": "echo", "payload": "t"}, {"name": "end", "kind": "echo", "needs": ["in"], "payload": {"$result": "in"}}]'::jsonb || jsonb_build_object('name', 'in', 'needs', '["top"]'::jsonb, 'workflow', test.nest_levels(n - 1))))
$$;
SELECT test.nest_deep(8) AS id \gset
SELECT test.nest_ended(:id);
SELECT step, state, result FROM test.nest_tree(:id);
SELECT e.* FROM test.error('SELECT test.nest_deep(9)') e;

-- a failure: the step is dead, and the inner workflow has failed
INSERT INTO test.halt VALUES ('x');
SELECT jobq.create_workflow('{"name": "outer", "on_failure": {"kind": "told", "payload": "failure"}, "on_finish": {"kind": "told", "payload": "finish"}, "on_success": {"kind": "told", "payload": "success"}, "steps": [
	{"name": "in", "workflow": {"name": "inner", "on_failure": {"kind": "told", "payload": "failure"}, "on_finish": {"kind": "told", "payload": "finish"}, "steps": [{"name": "x", "kind": "may_halt", "payload": "x"}, {"name": "y", "kind": "echo", "needs": ["x"], "payload": {"$result": "x"}}]}},
	{"name": "other", "kind": "x", "queue": "nested", "delay": "1 day"},
	{"name": "waits", "needs": ["other"], "workflow": [{"name": "z", "kind": "echo", "payload": 1}]},
	{"name": "end", "kind": "echo", "needs": ["in"], "payload": [{"$result": "in"}]}]}') AS id \gset
SELECT test.nest_ended(:id);
SELECT test.nest_ended(test.inner(:id, 'waits'));
SELECT step, state, CASE WHEN state = 'dead' THEN error END AS error FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 4 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- the outer workflow is retried, and all cancelled jobs run
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s)', test.inner(:id, 'in'))) e;
TRUNCATE test.halt;
SELECT jobq.retry_many(batch_id => :id);
SELECT jobq.edit(job_id, run_at => now()) FROM (SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.steps WHERE batch_id = %s AND name = ''other'')', :id))) u, jobq.steps s WHERE s.batch_id = :id AND name = 'other';
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 3 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- the same from inside: a retry of the dead job, several levels below
INSERT INTO test.halt VALUES ('last');
SELECT test.nest_deep(4) AS id \gset
SELECT test.nest_ended(:id);
SELECT step, state, error FROM test.nest_tree(:id);
TRUNCATE test.halt;
SELECT jobq.retry(id) FROM jobq.jobs WHERE state = 'dead' AND kind = 'may_halt';
SELECT test.nest_ended(:id);
SELECT step, state, result FROM test.nest_tree(:id);
-- and again from the outer workflow, where the first retry fails again
INSERT INTO test.halt VALUES ('last');
SELECT test.nest_deep(3) AS id \gset
SELECT test.nest_ended(:id);
SELECT jobq.retry_many(batch_id => :id);
SELECT test.nest_ended(:id);
TRUNCATE test.halt;
SELECT jobq.rerun_steps(:id);
SELECT test.nest_ended(:id);
SELECT step, state, result FROM test.nest_tree(:id);
-- dead letters of inner and outer workflow with the same unique key: each retry takes a single dead letter
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "in", "workflow": {"allow_failures": true, "steps": [{"name": "x", "kind": "x", "queue": "nested"}]}}, {"name": "y", "kind": "x", "queue": "nested"}]}') AS id \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM jobq.steps WHERE batch_id IN (%s, %s) AND name IN (''x'', ''y'') AND state = ''ready'')', :id, test.inner(:id, 'in')));
CALL test.settle();
SELECT max(id) FILTER (WHERE batch_id <> :id) AS x, max(token) FILTER (WHERE batch_id <> :id) AS x_token, max(id) FILTER (WHERE batch_id = :id) AS y, max(token) FILTER (WHERE batch_id = :id) AS y_token
	FROM (SELECT r.id, r.token, j.batch_id FROM jobq.reserve('{nested}', 2, wait => '5 min') r JOIN jobq.jobs j USING (id)) r \gset
SELECT count(*) FROM jobq.add_jobs(test.inner(:id, 'in'), 'x', '{1}', '{"queue": "nested", "unique_key": "k"}');
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT count(*) FROM jobq.add_jobs(test.inner(:id, 'in'), 'x', '{2}', '{"queue": "nested", "unique_key": "k"}');
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(:x, :x_token);
SELECT test.until(format('(SELECT state = ''dead'' FROM jobq.steps WHERE batch_id = %s AND name = ''in'')', :id));
SELECT count(*) FROM jobq.add_jobs(:id, 'x', '{3}', '{"queue": "nested", "unique_key": "k"}');
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(:y, :y_token);
SELECT test.nest_ended(:id);
SELECT jobq.retry_many(batch_id => :id);
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{nested}', 9, wait => '5 min');
SELECT test.nest_ended(:id);
SELECT jobq.retry_many(batch_id => :id);
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{nested}', 9, wait => '5 min');
SELECT test.nest_ended(:id);
SELECT jobq.retry_many(batch_id => :id);
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{nested}', 9, wait => '5 min');
SELECT test.nest_ended(:id);
-- optional, and with a condition
INSERT INTO test.halt VALUES ('x');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "payload": 5},
	{"name": "may fail", "optional": true, "workflow": [{"name": "x", "kind": "may_halt"}]},
	{"name": "if", "needs": ["a"], "when": "$.a > 9", "chain": [{"kind": "echo"}]},
	{"name": "else", "needs": ["a"], "when": "$.a <= 9", "chain": [{"kind": "echo", "payload": "else"}]},
	{"name": "end", "kind": "echo", "needs": ["may fail", "if", "else"], "payload": [{"$result": "may fail"}, {"$result": "if"}, {"$result": "else"}]}]}') AS id \gset
SELECT test.nest_ended(:id);
SELECT test.nest_ended(test.inner(:id, 'if'));
SELECT * FROM test.nest_tree(:id);
SELECT DISTINCT e.code, regexp_replace(e.message, '\d+', 'N') AS message FROM jobq.dead_letters l, test.error(format('SELECT jobq.edit(%s, timeout => ''1 min'')', l.id)) e WHERE kind = 'jobq.workflow';
SELECT jobq.edit_many('{"timeout": "1 min"}', kind => 'jobq.workflow', state => 'dead');
SELECT count(jobq.delete(id)) FROM jobq.jobs WHERE state = 'dead' AND kind IN ('may_halt', 'jobq.workflow');
TRUNCATE test.halt;

-- the outer workflow is cancelled: the inner workflow is cancelled, and running jobs are asked to stop
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"on_finish": {"kind": "told", "payload": "finish"}, "steps": [{"name": "in", "workflow": {"name": "inner", "on_finish": {"kind": "told", "payload": "finish"}, "steps": [{"name": "g", "kind": "gate", "payload": 1}, {"name": "h", "kind": "echo", "needs": ["g"], "payload": "h"}]}},
	{"name": "later", "needs": ["in"], "chain": [{"kind": "echo", "payload": {"$result": "in", "path": ["h"]}}]}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.steps WHERE name = ''g'' AND batch_id = %s)', test.inner(:id, 'in')));
SELECT jobq.cancel_batch(:id);
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- and continues
SELECT pg_advisory_unlock(1);
SELECT jobq.rerun_steps(:id);
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- the job that represents an inner workflow is cancelled, or the inner workflow itself, also before its begin
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "x", "queue": "nested"}, {"name": "one", "workflow": [{"name": "x", "kind": "x", "queue": "nested"}]}, {"name": "two", "chain": [{"kind": "x", "queue": "nested"}], "optional": true}, {"name": "three", "needs": ["a"], "chain": [{"kind": "x", "queue": "nested"}]}, {"name": "end", "needs": ["two", "a"], "kind": "echo", "payload": "end"}]}') AS id \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM jobq.steps WHERE batch_id = %s AND state = ''running'')', :id));
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'one';
SELECT jobq.cancel_batch(test.inner(:id, 'two'));
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'three';
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.steps WHERE batch_id = %s AND state = ''cancelled'')', :id));
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'one';
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);

-- rerun_steps() of an inner workflow repeats all of its steps
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "payload": 1}, {"name": "in", "needs": ["a"], "workflow": [{"name": "x", "kind": "may_halt", "payload": {"$result": "a"}}, {"name": "m", "kind": "echo", "needs": ["x"], "map": {"$result": "x", "path": ["none"]}, "when": "$.x > 1"}, {"name": "y", "needs": ["x"], "chain": [{"kind": "echo", "payload": [{"$result": "x"}]}]}]}, {"name": "end", "kind": "echo", "needs": ["in"], "payload": {"$result": "in", "path": ["y"]}}]}') AS id \gset
SELECT test.nest_ended(:id);
SELECT jobq.rerun_steps(:id, 'in');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);
SELECT s.name, count(*) FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id, jsonb_array_elements(j.log) l WHERE s.batch_id IN (:id, test.inner(:id, 'in')) AND l ->> 'message' LIKE 'once more%' GROUP BY s.job_id, s.name ORDER BY s.job_id;
SELECT jobq.rerun_steps(:id, 'a');
SELECT test.nest_ended(:id);
SELECT state, total, completed, cancelled FROM jobq.wait_batch(test.inner(:id, 'in'), '0');
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM test.error(format('SELECT jobq.rerun_steps(%s, ''x'')', test.inner(:id, 'in'))) e;
-- a running inner workflow cannot be repeated
SELECT jobq.create_workflow('{"steps": [{"name": "in", "chain": [{"kind": "echo", "payload": 1}, {"kind": "x", "queue": "nested"}]}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.steps WHERE batch_id = %s AND name = ''2'')', test.inner(:id, 'in')));
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message, e.hint FROM test.error(format('SELECT jobq.rerun_steps(%s, ''in'')', :id)) e;
SELECT jobq.ack(id, token, '"done"') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);

-- a step of an inner workflow that has not begun: this is still the first run, and a failure is reported at once
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "gate", "payload": 1}, {"name": "in", "needs": ["a"], "workflow": {"name": "inner", "on_failure": {"kind": "told", "payload": "failure"}, "steps": [{"name": "bad", "kind": "broken", "max_attempts": 1}, {"name": "slow", "kind": "echo", "delay": "1 hour"}]}}]}') AS id \gset
SELECT jobq.rerun_steps(test.inner(:id, 'in'), 'bad');
SELECT state FROM jobq.wait_batch(test.inner(:id, 'in'), '0');
SELECT pg_advisory_unlock(1);
SELECT test.nest_ended(:id);
SELECT step, state FROM test.nest_tree(:id);
SELECT test.until('(SELECT count(*) = 1 FROM test.trace)');
SELECT note FROM test.trace;
TRUNCATE test.trace;
SELECT count(jobq.delete(id)) FROM jobq.jobs WHERE state = 'dead' AND batch_id IN (:id, test.inner(:id, 'in'));

-- workflows and chains in a batch; the batch ends after them
BEGIN;
SELECT jobq.create_batch('all', on_success => '{"kind": "told", "payload": "success"}') AS id \gset
SELECT count(*) FROM jobq.add_jobs(:id, 'echo', '{1,2}');
SELECT jobq.create_workflow('{"name": "w", "on_success": {"kind": "told", "payload": "success"}, "steps": [{"name": "a", "kind": "echo", "payload": 1}, {"name": "b", "kind": "x", "queue": "nested", "needs": ["a"], "payload": {"$result": "a"}}]}', batch_id => :id) AS inner_id \gset
SELECT test.chain('[{"kind": "echo", "payload": 1}, {"kind": "echo", "payload": {"$result": "1"}}]', batch => :id) AS ids \gset
COMMIT;
SELECT state, total, blocked FROM jobq.batches WHERE id = :id;
SELECT state, total, blocked FROM jobq.batches WHERE id = :inner_id;
SELECT jobq.start_batch(:id);
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT test.until(format('(SELECT completed = 3 AND blocked = 1 FROM jobq.batches WHERE id = %s)', :id));
SELECT state, total, blocked, completed FROM jobq.batches WHERE id = :id;
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM test.error(format('SELECT jobq.create_workflow(''{"steps": [{"name": "a", "kind": "echo"}]}'', batch_id => %s)', :id)) e;
-- a chain added by a job of the batch: its failure fails the batch, and a retry of the batch retries the chain
CREATE FUNCTION test.adder(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT test.chain('[{"kind": "may_halt", "payload": 1}, {"kind": "told", "payload": "last"}]', batch => (jobq.current_job()).batch_id, name => 'added') $$;
SELECT jobq.register('adder', 'test.adder(jsonb)');
INSERT INTO test.halt VALUES ('1');
BEGIN;
SELECT jobq.create_batch('grows', on_failure => '{"kind": "told", "payload": "failure"}', on_success => '{"kind": "told", "payload": "success"}', start => true) AS id \gset
SELECT count(*) FROM jobq.add_jobs(:id, 'adder', '{1}');
COMMIT;
SELECT test.nest_ended(:id);
SELECT test.until('(SELECT count(*) = 1 FROM test.trace)');
SELECT note FROM test.trace;
TRUNCATE test.halt, test.trace;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.nest_ended(:id);
SELECT b.name, test.nest_ended(b.id) FROM jobq.batches b WHERE b.parent_id = :id;
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
-- a batch is cancelled before the start, and fails after the start
SELECT jobq.create_batch() AS id \gset
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo"}]}', batch_id => :id) AS inner_id \gset
SELECT jobq.cancel_batch(:id);
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
BEGIN;
SELECT jobq.create_batch(start => true) AS id \gset
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "x", "queue": "nested"}, {"name": "b", "kind": "x", "queue": "nested", "needs": ["a"]}]}', batch_id => :id) AS inner_id \gset
SELECT jobq.add_jobs(:id, 'x', '{1}', '{"queue": "nested", "priority": 1}') AS other \gset
COMMIT;
SELECT id AS a, token FROM jobq.reserve('{nested}', wait => '5 min') \gset
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.steps WHERE batch_id = %s AND state = ''cancelled'')', :inner_id));
SELECT state FROM jobq.batches WHERE id = :id;
-- the running job may complete
SELECT jobq.ack(:a, :token);
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
-- batch and inner workflow continue when the dead letter is retried
SELECT jobq.retry_many(batch_id => :id);
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
-- also if both have not ended yet: steps of a workflow that were cancelled because of another dead letter run again
BEGIN;
SELECT jobq.create_workflow('{"options": {"queue": "nested", "max_attempts": 1}, "steps": [{"name": "s", "kind": "x", "priority": 2}]}') AS id \gset
SELECT jobq.create_workflow('{"options": {"queue": "nested", "tags": ["t"]}, "steps": [{"name": "a", "kind": "x"}, {"name": "b", "kind": "x", "needs": ["a"]}]}', batch_id => :id) AS inner_id \gset
SELECT jobq.create_workflow('{"options": {"queue": "nested", "max_attempts": 1, "priority": 1}, "steps": [{"name": "c", "kind": "x"}]}', batch_id => :id) AS other_id \gset
COMMIT;
SELECT r.id AS a, r.token FROM jobq.steps s, jobq.reserve_job(s.job_id) r WHERE s.batch_id = :inner_id AND s.name = 'a' \gset
SELECT jobq.reject(r.id, r.token, 'no') FROM jobq.steps s, jobq.reserve_job(s.job_id) r WHERE s.batch_id = :other_id;
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.steps WHERE batch_id = %s AND state = ''cancelled'')', :inner_id));
SELECT jobq.retry_many(batch_id => :id);
SELECT jobq.ack(:a, :token);
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id), test.nest_ended(:inner_id), test.nest_ended(:other_id);
-- but not steps of a workflow that a user has cancelled, even if the failure had already cancelled them
BEGIN;
SELECT jobq.create_batch(start => true) AS id \gset
SELECT jobq.create_workflow('{"options": {"queue": "nested"}, "steps": [{"name": "a", "kind": "x"}, {"name": "b", "kind": "x"}]}', batch_id => :id) AS inner_id \gset
SELECT jobq.add_jobs(:id, 'x', '{1}', '{"queue": "nested", "max_attempts": 1}') AS other \gset
COMMIT;
SELECT r.id AS a, r.token FROM jobq.steps s, jobq.reserve_job(s.job_id) r WHERE s.batch_id = :inner_id AND s.name = 'a' \gset
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve_job(:other);
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.steps WHERE batch_id = %s AND state = ''cancelled'')', :inner_id));
SELECT jobq.cancel_batch(:inner_id);
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
SELECT jobq.retry_many(batch_id => :id);
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
SELECT count(*) FROM jobq.reserve('{nested}', 10);
-- also if the on_failure callback could not be enqueued
SELECT jobq.register('fleeting', 'test.told(jsonb, jobq.job_context)');
BEGIN;
SELECT jobq.create_batch(on_failure => '{"kind": "fleeting"}', start => true) AS id \gset
SELECT jobq.create_workflow('{"options": {"queue": "nested"}, "steps": [{"name": "a", "kind": "x"}, {"name": "b", "kind": "x", "needs": ["a"]}]}', batch_id => :id) AS inner_id \gset
SELECT jobq.add_jobs(:id, 'x', '{1}', '{"queue": "nested"}') AS other \gset
COMMIT;
SELECT jobq.unregister('fleeting');
SELECT r.id AS a, r.token FROM jobq.steps s, jobq.reserve_job(s.job_id) r WHERE s.batch_id = :inner_id AND s.name = 'a' \gset
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve_job(:other);
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.steps WHERE batch_id = %s AND state = ''cancelled'')', :inner_id));
SELECT state, last_error FROM jobq.batches WHERE id = :id;
SELECT jobq.retry_many(batch_id => :id);
SELECT jobq.ack(:a, :token);
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT jobq.ack(id, token) FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id), test.nest_ended(:inner_id);
-- too many levels
SELECT jobq.create_batch() AS id \gset
SELECT count(*) FROM (SELECT test.until('true')) u, test.chain('[{"kind": "echo"}]', batch => :id);
SELECT e.code, e.message FROM test.error(format('SELECT jobq.create_workflow(jsonb_build_object(''steps'', test.nest_levels(8)), batch_id => %s)', :id)) e;
SELECT jobq.cancel_batch(:id);
SELECT test.nest_ended(:id);

-- the condition of an inner workflow is evaluated before its begin, and not while it runs
INSERT INTO test.halt VALUES ('a');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "may_halt", "payload": "a", "optional": true, "max_attempts": 1}, {"name": "in", "needs": ["a"], "when": "!exists($.a)", "workflow": [{"name": "x", "kind": "x", "queue": "nested"}, {"name": "y", "kind": "echo", "needs": ["x"], "payload": {"$result": "x"}}]}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.steps WHERE batch_id = %s AND name = ''x'')', test.inner(:id, 'in')));
TRUNCATE test.halt;
SELECT count(jobq.retry(job_id)) FROM jobq.steps WHERE batch_id = :id AND name = 'a';
SELECT test.until(format('(SELECT state = ''completed'' FROM jobq.steps WHERE batch_id = %s AND name = ''a'')', :id));
CALL test.settle();
SELECT jobq.ack(id, token, '"x"') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id);

-- after pruning
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "payload": "a"}, {"name": "in", "needs": ["a"], "workflow": [{"name": "x", "kind": "echo", "payload": 1}, {"name": "y", "kind": "x", "queue": "nested", "needs": ["x"]}, {"name": "z", "kind": "echo", "needs": ["y"], "payload": [{"$result": "x"}, {"$result": "a"}]}]}, {"name": "end", "kind": "echo", "needs": ["in"], "payload": {"$result": "in"}}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.steps WHERE batch_id = %s AND name = ''y'')', test.inner(:id, 'in')));
SELECT jobq.prune('0') > 0 AS pruned;
SELECT jobq.ack(id, token, '"y"') FROM jobq.reserve('{nested}', wait => '5 min');
SELECT test.nest_ended(:id);
SELECT * FROM test.nest_tree(:id) WHERE step IN ('in', 'end');

-- the job of the inner workflow is cancelled while the last inner step runs: the inner workflow
-- completes and runs all callbacks, and a retry takes the results
SELECT jobq.create_workflow('{"steps": [{"name": "in", "workflow": {"name": "inner", "on_success": {"kind": "told", "payload": "success"}, "on_finish": {"kind": "told", "payload": "finish"}, "steps": [{"name": "x", "kind": "x", "queue": "nested"}]}}, {"name": "end", "kind": "echo", "needs": ["in"], "payload": {"$result": "in"}}]}') AS id \gset
SELECT id AS x, token FROM jobq.reserve('{nested}', wait => '5 min') \gset
SELECT jobq.cancel_many(queue => 'nested', state => 'waiting');
SELECT test.nest_ended(:id);
SELECT jobq.ack(:x, :token, '"x"');
SELECT test.nest_ended(test.inner(:id, 'in'));
SELECT jobq.rerun_steps(:id);
SELECT test.nest_ended(:id), test.nest_ended(test.inner(:id, 'in'));
SELECT * FROM test.nest_tree(:id);
SELECT jobq.create_workflow('{"on_finish": {"kind": "told", "payload": "last"}, "steps": [{"name": "a", "kind": "echo"}]}') AS id \gset
SELECT test.until('EXISTS (SELECT FROM test.trace WHERE note LIKE ''%last%'')');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- bad input
SELECT e.* FROM unnest(ARRAY[
	'{"name": "a", "kind": "echo", "workflow": [{"name": "b", "kind": "echo"}]}', '{"name": "a", "chain": [{"kind": "echo"}], "workflow": [{"name": "b", "kind": "echo"}]}', '{"name": "a", "workflow": []}', '{"name": "a", "workflow": "b"}',
	'{"name": "a", "workflow": {"name": "b"}}', '{"name": "a", "workflow": {"stepz": []}}', '{"name": "a", "chain": [{"kind": "nobody"}]}', '{"name": "a", "chain": [{"kind": "echo", "payload": {"$result": "2"}}]}', '{"name": "a", "workflow": [{"name": "b", "kind": "echo", "payload": {"$result": "a"}}]}',
	'{"name": "a", "workflow": [{"name": "b", "kind": "echo", "payload": {"$result": "z"}}]}', '{"name": "a", "unique_key": "k", "workflow": [{"name": "b", "kind": "echo"}]}', '{"name": "a", "map": {"$result": "z"}, "workflow": [{"name": "b", "kind": "echo"}]}', '{"name": "a", "kind": "jobq.workflow"}',
	'{"name": "a", "workflow": [{"name": "b", "kind": "echo", "needs": ["z"]}]}', '{"name": "a", "workflow": [{"name": "b", "kind": "echo", "needs": ["b"]}]}'])
	s, test.error(format('SELECT jobq.create_workflow(jsonb_build_object(''steps'', jsonb_build_array(%L::jsonb, ''{"name": "z", "kind": "echo"}''::jsonb)))', s)) e;
-- in a chain, steps have neither a name nor needs, inner workflows included
SELECT e.* FROM unnest('{"{\"name\": \"x\"}","{\"needs\": [\"1\"]}"}'::jsonb[]) s, test.error(format('SELECT test.chain(jsonb_build_array(''{"kind": "echo"}''::jsonb, ''{"workflow": [{"name": "y", "kind": "echo"}]}''::jsonb || %L))', s)) e;
SELECT e.* FROM test.error('SELECT jobq.register(''jobq.workflow'', ''test.note(jsonb)'')') e;
SELECT e.* FROM test.error('SELECT test.chain(''[{"kind": "echo"}]'', batch => 1234567890)') e;

SELECT count(*) AS live FROM jobq_internal.job j WHERE j.kind = 'jobq.workflow';
SELECT count(*) AS not_over FROM jobq_internal.batch WHERE finished_at IS NULL AND parent IS NOT NULL;
SELECT jobq.unregister(k) FROM unnest('{may_halt,told,adder}'::text[]) k;
SELECT jobq.drop_queue('nested');
DROP FUNCTION test.nest_ended, test.nest_tree, test.inner, test.may_halt, test.told, test.nest_levels, test.nest_deep, test.adder;
DROP TABLE test.halt;
