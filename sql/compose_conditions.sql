-- create_workflow() with "when" and "optional": skipped steps, and steps whose failure is allowed.

CREATE FUNCTION test.ended(id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = %s)', id));
	RETURN (SELECT format('%s: %s completed, %s dead, %s cancelled, %s expired', state, completed, dead, cancelled, expired)
		FROM jobq.batches b WHERE b.id = ended.id);
END
$$;
CREATE VIEW test.ends AS
	SELECT s.batch_id, s.name, s.state, j.state AS job, j.result, j.error FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id = s.job_id WHERE s.element IS NULL ORDER BY s.job_id;

-- a step is skipped or not; later steps run, without its result
CREATE FUNCTION test.purchase(total jsonb) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_workflow(jsonb_build_object('on_success', '{"kind": "note", "payload": "success"}'::jsonb, 'steps', jsonb_build_array(jsonb_build_object('name', 'order', 'kind', 'echo', 'payload', jsonb_build_object('total', total)),
		'{"name": "approve", "kind": "echo", "payload": "approved", "needs": ["order"], "when": "$.order.total > 100"}'::jsonb,
		'{"name": "small", "kind": "echo", "needs": ["approve", "order"], "when": "!exists($.approve)"}'::jsonb,
		'{"name": "ship", "kind": "echo", "payload": [{"$result": "approve"}, {"$result": "order", "path": ["total"]}], "needs": ["approve", "small"]}'::jsonb)))
$$;
SELECT test.purchase('200') AS large, test.purchase('100') AS small, test.purchase('"200"') AS text, test.purchase('null') AS none \gset
SELECT test.ended(id) FROM unnest(ARRAY[:large, :small, :text, :none]::bigint[]) id;
SELECT name, state, job, result, error FROM test.ends WHERE batch_id = :large;
SELECT name, state, job, result, error FROM test.ends WHERE batch_id = :small;
SELECT name, state, result FROM test.ends WHERE batch_id IN (:text, :none);
SELECT test.until('(SELECT count(*) FROM test.trace) = 4');
TRUNCATE test.trace;
-- the state of a skipped step outlives its job
SELECT jobq.prune('0', NULL) > 0 AS pruned;
SELECT name, state FROM test.ends WHERE batch_id = :small;
SELECT state, total, completed, cancelled FROM jobq.batches WHERE id = :small;

-- in a chain, "$" is the result of the previous step
SELECT test.chain('[{"kind": "echo", "payload": {"n": 1}}, {"kind": "echo", "payload": {"n": 2}, "when": "$.n == 1"}, {"kind": "echo", "payload": {"n": 3}, "when": "$.n == 1"}, {"kind": "echo", "payload": {"n": 4}, "when": "$ == null"}]') AS ids \gset
SELECT state FROM jobq.wait((:'ids'::bigint[])[4]);
SELECT name, state, result FROM test.ends WHERE batch_id = (SELECT batch_id FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1]);

-- with "map": a skipped step has no element jobs; nor has a step that maps over a skipped step
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [1, 2, 3]},
	{"name": "many", "kind": "echo", "needs": ["list"], "map": {"$result": "list"}, "when": "$.list.size() > 3"},
	{"name": "few", "kind": "echo", "needs": ["list"], "map": {"$result": "list"}, "when": "$.list.size() <= 3"},
	{"name": "none", "kind": "echo", "needs": ["many"], "map": {"$result": "many"}},
	{"name": "all", "kind": "echo", "needs": ["many", "few", "none"], "payload": [{"$result": "many"}, {"$result": "few"}, {"$result": "none"}]}]}') AS id \gset
SELECT test.ended(:id);
SELECT e.name, e.state, s.elements, e.result FROM test.ends e JOIN jobq.steps s USING (batch_id, name) WHERE e.batch_id = :id AND s.element IS NULL ORDER BY s.job_id;

-- a step fails if its condition raises an error or takes too long
SELECT test.chain('[{"kind": "echo", "payload": {"n": 1}}, {"kind": "echo", "when": "$.n == 1 && $.n < $limit"}, {"kind": "echo"}]') AS ids \gset
SELECT batch_id AS id FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1] \gset
SELECT test.ended(:id);
SELECT name, state, error FROM test.ends WHERE batch_id = :id;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.ended(:id);
CREATE FUNCTION test.wide() RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_agg(i) FROM generate_series(1, 50000) i $$;
SELECT jobq.register('wide', 'test.wide()');
SELECT test.chain('[{"kind": "wide"}, {"kind": "echo", "when": "exists($[*] ? (exists(@ ? ($[*] < 0))))"}]') AS ids \gset
SELECT state, error FROM jobq.wait((:'ids'::bigint[])[2], '5 min');
SELECT jobq.unregister('wide');

-- an optional step may fail, expire or be cancelled: later steps run without its result, and the workflow succeeds
SELECT jobq.create_queue('conditional', mode => 'consumer');
SELECT jobq.create_workflow('{"on_success": {"kind": "note", "payload": "success"}, "on_failure": {"kind": "note", "payload": "failure"}, "steps": [
	{"name": "fails", "kind": "broken", "max_attempts": 1, "optional": true},
	{"name": "expires", "kind": "echo", "expires_at": "2001-01-01", "optional": true},
	{"name": "is cancelled", "kind": "x", "queue": "conditional", "optional": true},
	{"name": "is there", "kind": "echo", "payload": 7, "optional": true},
	{"name": "last", "kind": "echo", "needs": ["fails", "expires", "is cancelled", "is there"],
		"payload": [{"$result": "fails"}, {"$result": "expires"}, {"$result": "is cancelled"}, {"$result": "is there"}]}]}') AS id \gset
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'is cancelled';
SELECT test.ended(:id);
SELECT name, state, result FROM test.ends WHERE batch_id = :id;
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT note FROM test.trace;
TRUNCATE test.trace;
-- also if its job is deleted before the end
SELECT jobq.create_workflow('{"steps": [{"name": "fails", "kind": "broken", "max_attempts": 1, "optional": true}, {"name": "expires", "kind": "echo", "expires_at": "2001-01-01", "optional": true},
	{"name": "hold", "kind": "x", "queue": "conditional"}, {"name": "skipped", "kind": "echo", "needs": ["fails"], "when": "exists($.fails)"}, {"name": "last", "kind": "echo", "needs": ["fails", "expires", "hold", "skipped"]}]}') AS id \gset
SELECT test.until(format('(SELECT array_agg(state ORDER BY name) FILTER (WHERE name IN (''fails'', ''expires'', ''skipped'')) = ''{expired,dead,skipped}'' FROM jobq.steps WHERE batch_id = %s)', :id));
SELECT jobq.prune('0', '0') > 2 AS pruned;
SELECT name, state FROM test.ends WHERE batch_id = :id;
SELECT jobq.ack(id, token) FROM jobq.reserve('{conditional}', wait => '5 min');
SELECT test.ended(:id);
-- with "map", the result of a dead element is null; the failure of another step ends the workflow
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [1, 2, 3]},
	{"name": "each", "kind": "x", "queue": "conditional", "needs": ["list"], "map": {"$result": "list"}, "optional": true},
	{"name": "last", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT jobq.ack(id, token, '"one"') FROM jobq.reserve('{conditional}', wait => '5 min');
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{conditional}', wait => '5 min');
SELECT jobq.ack(id, token, '"three"') FROM jobq.reserve('{conditional}', wait => '5 min');
SELECT test.ended(:id);
SELECT e.name, e.state, s.elements, s.elements_completed AS done, s.elements_dead AS dead, e.result FROM test.ends e JOIN jobq.steps s USING (batch_id, name) WHERE e.batch_id = :id AND s.element IS NULL ORDER BY s.job_id;
SELECT jobq.create_workflow('{"steps": [{"name": "may fail", "kind": "broken", "max_attempts": 1, "optional": true}, {"name": "fails", "kind": "broken", "max_attempts": 1, "needs": ["may fail"]}, {"name": "last", "kind": "echo", "needs": ["fails"]}]}') AS id \gset
SELECT test.ended(:id);
SELECT name, state FROM test.ends WHERE batch_id = :id;

-- callbacks receive the number of jobs in each final state, and the first error
CREATE TABLE test.told (id bigint GENERATED ALWAYS AS IDENTITY, headers jsonb);
CREATE FUNCTION test.tell(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ INSERT INTO test.told (headers) VALUES (job.headers) $$;
SELECT jobq.register('tell', 'test.tell(jsonb, jobq.job_context)');
CREATE VIEW test.tales AS
	SELECT id, headers ->> 'batch' AS batch, headers ->> 'batch_state' AS state, headers -> 'batch_counts' AS counts, (headers -> 'batch_error') - '{job_id,context}'::text[] AS error,
		split_part(headers -> 'batch_error' ->> 'context', E'\n', 1) AS context
	FROM test.told;
SELECT jobq.create_workflow('{"name": "good", "on_success": {"kind": "tell"}, "on_finish": {"kind": "tell", "headers": {"mine": 1}}, "steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "needs": ["a"], "when": "$.a == 1"}]}') AS good \gset
SELECT test.until('(SELECT count(*) FROM test.told) = 2');
SELECT batch, state, counts, error FROM test.tales;
SELECT headers -> 'mine' AS mine FROM test.told WHERE headers ? 'mine';
TRUNCATE test.told;
SELECT jobq.create_workflow('{"name": "bad", "on_failure": {"kind": "tell"}, "steps": [{"name": "may", "kind": "broken", "optional": true, "max_attempts": 1}, {"name": "a", "kind": "broken", "max_attempts": 1, "needs": ["may"]}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS bad \gset
SELECT test.until('(SELECT count(*) FROM test.told) = 1');
SELECT batch, state, counts -> 'dead' AS dead, error, context FROM test.tales;
SELECT (headers -> 'batch_error' -> 'job_id')::bigint = job_id AS is_a FROM test.told, jobq.steps WHERE batch_id = :bad AND name = 'a';
TRUNCATE test.told;
-- an expired step; and a deleted dead letter
SELECT jobq.create_workflow('{"name": "late", "on_finish": {"kind": "tell"}, "steps": [{"name": "a", "kind": "echo", "expires_at": "2001-01-01"}]}') AS late \gset
SELECT test.until('(SELECT count(*) FROM test.told) = 1');
SELECT batch, state, counts, error, context FROM test.tales;
TRUNCATE test.told;
SELECT jobq.create_workflow('{"name": "gone", "allow_failures": true, "on_finish": {"kind": "tell"}, "steps": [{"name": "a", "kind": "broken", "max_attempts": 1}, {"name": "b", "kind": "x", "queue": "conditional"}]}') AS gone \gset
SELECT test.until(format('(SELECT state = ''dead'' FROM jobq.steps WHERE name = ''a'' AND batch_id = %s)', :gone));
SELECT jobq.delete(job_id) FROM jobq.steps WHERE name = 'a' AND batch_id = :gone;
SELECT jobq.ack(id, token) FROM jobq.reserve('{conditional}', wait => '5 min');
SELECT test.until('(SELECT count(*) FROM test.told) = 1');
SELECT batch, state, counts, error FROM test.tales;
SELECT jobq.unregister('tell');

-- errors in a definition
SELECT s, e.* FROM unnest(ARRAY['{"when": true}', '{"when": "$.a >"}', '{"when": "$.a"}', '{"when": "$.a ? (@ > 1)"}', '{"when": "($.a > 1).type()"}', '{"when": "$.a > 1", "needs": []}', '{"optional": 1}'])
	WITH ORDINALITY u (s, n), test.error(format('SELECT jobq.create_workflow(%L)', jsonb_build_object('steps', jsonb_build_array('{"name": "a", "kind": "echo"}'::jsonb, '{"name": "b", "kind": "echo", "needs": ["a"]}'::jsonb || s::jsonb)))) e ORDER BY n;
SELECT e.* FROM test.error($$SELECT test.chain('[{"kind": "echo", "when": "$ == 1"}]')$$) e;

SELECT count(jobq.delete(f.id)) > 0 AS deleted FROM jobq.dead_letters f WHERE f.id IN (SELECT job_id FROM jobq.steps);
SELECT jobq.drop_queue('conditional');
