-- create_workflow() with "map": a job for each element of an array, and an array of their results.

-- returns an array of numbers, as described by the payload
CREATE FUNCTION test.numbers(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('of', payload -> 'of', 'list', (SELECT coalesce(jsonb_agg(i * 10), '[]') FROM generate_series(1, (payload ->> 'n')::int) i))
$$;
-- fails for each element listed in test.bad
CREATE TABLE test.bad (element jsonb);
GRANT SELECT ON test.bad TO PUBLIC;
CREATE FUNCTION test.each(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM test.bad WHERE element = payload) THEN
		PERFORM jobq.reject_current('bad');
	END IF;
	RETURN jsonb_build_array(payload);
END
$$;
CREATE FUNCTION test.much(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(repeat('x', 1024 * 1024 * (payload ->> 'mb')::int)) $$;
CREATE FUNCTION test.deep(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT (repeat('[', payload::int) || repeat(']', payload::int))::jsonb $$;
-- returns an object that looks like a reference
CREATE FUNCTION test.odd() RETURNS jsonb LANGUAGE sql AS $$ SELECT '[{"id": 1, "$result": "no reference"}, null, [2, {"id": 3}], "four", {"$element": "value"}]'::jsonb $$;
SELECT jobq.register('odd', 'test.odd()'), jobq.register('numbers', 'test.numbers(jsonb)'), jobq.register('each', 'test.each(jsonb)'), jobq.register('much', 'test.much(jsonb)'), jobq.register('deep', 'test.deep(jsonb)');
CREATE FUNCTION test.over(id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = %s)', id));
	RETURN (SELECT format('%s: %s completed, %s dead, %s cancelled, %s expired', state, completed, dead, cancelled, expired)
		FROM jobq.batches b WHERE b.id = over.id);
END
$$;
CREATE VIEW test.maps AS
	SELECT s.batch_id, s.name, s.state, s.elements AS n, s.elements_completed AS done, s.elements_dead AS dead, j.result, j.error
	FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id = s.job_id WHERE s.element IS NULL ORDER BY s.job_id;

-- elements, and later steps; results in the order of the array, whichever job ends first
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "numbers", "payload": {"n": 5}},
	{"name": "each", "kind": "each", "needs": ["list"], "map": {"$result": "list", "path": ["list"]}},
	{"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT test.over(:id);
SELECT name, state, n, done, dead, result FROM test.maps WHERE batch_id = :id;
SELECT e.name, e.element, e.state, j.result FROM jobq.steps e JOIN jobq.jobs j ON j.id = e.job_id WHERE e.element IS NOT NULL AND e.batch_id = :id ORDER BY e.element;
SELECT name, needs, definition FROM jobq.steps WHERE batch_id = :id AND name = 'each' AND element IS NULL;

-- element, index, and results of other steps in a payload; elements have all options of the step
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "odd"}, {"name": "more", "kind": "echo", "payload": {"x": 7}},
	{"name": "each", "kind": "echo", "needs": ["list", "more"], "map": {"$result": "list"}, "priority": -3, "headers": {"h": 1}, "max_attempts": 2,
		"payload": {"of": {"$element": "value"}, "id": [{"$element": "value", "path": ["id"]}, {"$element": "value", "path": [1, "id"]}], "at": {"$element": "index"}, "more": {"$result": "more", "path": ["x"]}, "element": "$element"}}]}') AS id \gset
SELECT test.over(:id);
SELECT e.element, j.payload, j.priority, j.headers, j.max_attempts FROM jobq.steps e JOIN jobq.jobs j ON j.id = e.job_id WHERE e.element IS NOT NULL AND e.batch_id = :id ORDER BY e.element;

-- an empty array; a single element; nested arrays in a chain
SELECT test.chain('[{"kind": "echo", "payload": []}, {"kind": "each", "map": {"$result": "1"}}, {"kind": "echo", "payload": {"$result": "2"}}]') AS ids \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT test.chain('[{"kind": "echo", "payload": [[]]}, {"kind": "each", "map": {"$result": "1"}}, {"kind": "each", "map": {"$result": "2"}}]') AS ids \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [[1, 2], [], [3]]},
	{"name": "each", "kind": "each", "needs": ["list"], "map": {"$result": "list"}},
	{"name": "again", "kind": "each", "needs": ["each"], "map": {"$result": "each", "path": [0, 0]}},
	{"name": "both", "kind": "echo", "needs": ["again"], "payload": [{"$result": "each"}, {"$result": "again"}]}]}') AS id \gset
SELECT test.over(:id);
SELECT name, state, n, result FROM test.maps WHERE batch_id = :id;

-- not an array: the step fails, also on each retry
CREATE FUNCTION test.map_over(list jsonb, VARIADIC path text[] DEFAULT '{}') RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_workflow(jsonb_build_object('steps', jsonb_build_array(jsonb_build_object('name', 'a', 'kind', 'echo', 'payload', list),
		jsonb_build_object('name', 'each', 'kind', 'each', 'needs', '["a"]'::jsonb, 'map', jsonb_build_object('$result', 'a', 'path', path)),
		'{"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}'::jsonb)))
$$;
SELECT test.map_over('{"list": {"of": 1}}', 'list') AS object, test.map_over('"text"') AS text, test.map_over('null') AS null, test.map_over('[7]', '0') AS number, test.map_over('[]', 'none') AS nothing \gset
SELECT test.over(id) FROM unnest(ARRAY[:object, :text, :null, :number, :nothing]::bigint[]) id;
SELECT m.name, m.state, m.n, m.error FROM unnest(ARRAY[:object, :text, :null, :number, :nothing]::bigint[]) WITH ORDINALITY u (id, place), LATERAL (SELECT * FROM test.maps WHERE batch_id = u.id AND name = 'each') m ORDER BY place;
SELECT jobq.retry_many(batch_id => :object);
SELECT test.over(:object);
SELECT name, state, n, error FROM test.maps WHERE batch_id = :object;

-- an element fails, and so does the workflow; after a retry, the remaining jobs run
INSERT INTO test.bad VALUES ('3');
SELECT test.map_over('[1, 2, 3, 4]') AS id \gset
SELECT test.over(:id) LIKE 'failed: % 1 dead, %' AS failed;
SELECT name, state, n, dead, error LIKE 'needs step "each[%' OR error = 'its batch has failed' AS told FROM test.maps WHERE batch_id = :id AND name = 'each';
-- the cause of each cancellation decides what runs again, and not its text
UPDATE jobq_internal.archive SET reason = 'translated' WHERE batch_id = :id AND cause IN ('f', 'n');
SELECT count(*) > 0 AS some, bool_and(reason = 'translated') AS all FROM jobq_internal.archive WHERE batch_id = :id AND state = 'x';
SELECT jobq.retry_many(batch_id => :id);
SELECT test.over(:id) LIKE 'failed: % 1 dead, %' AS failed;
TRUNCATE test.bad;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.over(:id);
SELECT name, state, n, done, dead, result FROM test.maps WHERE batch_id = :id;
-- with allow_failures, the other elements continue, and steps that need all elements are cancelled
INSERT INTO test.bad VALUES ('2');
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "list", "kind": "numbers", "payload": {"n": 6}}, {"name": "each", "kind": "each", "needs": ["list"], "map": {"$result": "list", "path": ["list"]}, "payload": {"$element": "index"}},
	{"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}, {"name": "other", "kind": "echo", "needs": ["list"]}]}') AS id \gset
SELECT test.over(:id);
SELECT name, state, n, done, dead, error FROM test.maps WHERE batch_id = :id;
SELECT element, state FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id ORDER BY element;
TRUNCATE test.bad;
SELECT jobq.retry(job_id) FROM jobq.steps WHERE element IS NOT NULL AND batch_id = :id AND state = 'dead';
SELECT test.over(:id);
SELECT name, state, done, dead, result FROM test.maps WHERE batch_id = :id;

-- the step runs while elements run; cancelling the step cancels all elements
SELECT jobq.create_queue('mapped', mode => 'consumer');
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "numbers", "payload": {"n": 3}}, {"name": "each", "kind": "x", "queue": "mapped", "needs": ["list"], "map": {"$result": "list", "path": ["list"]}, "payload": {"n": {"$element": "value"}}},
	{"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT test.until(format('(SELECT elements = 3 FROM jobq.steps WHERE name = ''each'' AND element IS NULL AND batch_id = %s)', :id));
SELECT name, state, n, done, dead FROM test.maps WHERE batch_id = :id;
SELECT job_id AS each FROM jobq.steps WHERE name = 'each' AND element IS NULL AND batch_id = :id \gset
SELECT state FROM jobq.status(:each);
-- results arrive in any order; a missing result is null
SELECT id AS id1, token AS token1, payload FROM jobq.reserve('{mapped}', wait => '5 min') \gset
SELECT id AS id2, token AS token2, payload FROM jobq.reserve('{mapped}', wait => '5 min') \gset
SELECT payload, jobq.ack(id, token, payload -> 'n') FROM jobq.reserve('{mapped}', wait => '5 min');
SELECT jobq.ack(:id2, :token2), jobq.ack(:id1, :token1, '"first"');
SELECT test.over(:id);
SELECT name, state, n, done, dead, result FROM test.maps WHERE batch_id = :id;
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "numbers", "payload": {"n": 3}}, {"name": "each", "kind": "x", "queue": "mapped", "needs": ["list"], "map": {"$result": "list", "path": ["list"]}}]}') AS id \gset
SELECT test.until(format('(SELECT elements = 3 FROM jobq.steps WHERE name = ''each'' AND element IS NULL AND batch_id = %s)', :id));
SELECT jobq.cancel_batch(:id);
SELECT test.over(:id);
SELECT name, state, n, error FROM test.maps WHERE batch_id = :id;

-- results outlive the archive, and are read in parts
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "numbers", "payload": {"n": 1200}}, {"name": "hold", "kind": "x", "queue": "mapped"},
	{"name": "each", "kind": "each", "needs": ["list"], "map": {"$result": "list", "path": ["list"]}, "payload": {"$element": "index"}},
	{"name": "all", "kind": "echo", "needs": ["each", "hold"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT test.until(format('(SELECT elements_completed = 1200 AND state = ''completed'' FROM jobq.steps WHERE name = ''each'' AND element IS NULL AND batch_id = %s)', :id));
SELECT jobq.prune('0', NULL) > 1200 AS pruned;
SELECT jobq.ack(id, token) FROM jobq.reserve('{mapped}', wait => '5 min');
SELECT test.over(:id);
SELECT n, done, dead FROM test.maps WHERE batch_id = :id AND name = 'each';
SELECT j.result = (SELECT jsonb_agg(jsonb_build_array(i) ORDER BY i) FROM generate_series(0, 1199) i) AS in_order FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id AND s.name = 'all';
-- also results of elements pruned before the other elements end
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [1, 2]}, {"name": "each", "kind": "x", "queue": "mapped", "needs": ["list"], "map": {"$result": "list"}},
	{"name": "all", "kind": "echo", "needs": ["each"], "payload": {"$result": "each"}}]}') AS id \gset
SELECT payload, jobq.ack(id, token, payload) FROM jobq.reserve('{mapped}', wait => '5 min');
SELECT jobq.prune('0', NULL) > 0 AS pruned;
SELECT payload, jobq.ack(id, token, payload) FROM jobq.reserve('{mapped}', wait => '5 min');
SELECT test.over(:id);
SELECT name, n, done, result FROM test.maps WHERE batch_id = :id;

-- too large: a payload with its element, all results together, the array; and nested too deeply
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "much", "payload": {"mb": 9}}, {"name": "list", "kind": "echo", "payload": [1, 2]},
	{"name": "each", "kind": "each", "needs": ["a", "list"], "map": {"$result": "list"}, "payload": [{"$result": "a"}, {"$result": "a"}, {"$result": "a"}]}]}') AS payload \gset
SELECT test.chain('[{"kind": "echo", "payload": [1, 2]}, {"kind": "much", "map": {"$result": "1"}, "payload": {"mb": 9}}]') AS results \gset
SELECT test.chain('[{"kind": "numbers", "payload": {"n": 100001}}, {"kind": "echo", "map": {"$result": "1", "path": ["list"]}}]') AS array \gset
SELECT test.chain('[{"kind": "echo", "payload": [1000]}, {"kind": "deep", "map": {"$result": "1"}}]') AS depth \gset
SELECT test.over(:payload), test.over(r.batch_id), test.over(a.batch_id), test.over(d.batch_id) FROM jobq.steps r, jobq.steps a, jobq.steps d WHERE r.job_id = (:'results'::bigint[])[2] AND a.job_id = (:'array'::bigint[])[2] AND d.job_id = (:'depth'::bigint[])[2];
SELECT f.sqlstate, f.error, s.elements, s.elements_completed AS done FROM jobq.dead_letters f JOIN jobq.steps s ON s.job_id = f.id WHERE s.batch_id = :payload OR f.id IN ((:'results'::bigint[])[2], (:'array'::bigint[])[2], (:'depth'::bigint[])[2]) ORDER BY f.id;

-- errors in a definition
SELECT m, e.* FROM unnest(ARRAY['{"map": []}', '{"map": "a"}', '{"map": {"$result": "z"}}', '{"map": {"$result": "b"}}', '{"map": {"$result": "a"}, "needs": []}', '{"map": {"$result": "a", "of": 1}}', '{"map": {"$element": "value"}}',
	'{"map": {"$result": "a"}, "payload": [{"$element": 1}]}', '{"map": {"$result": "a"}, "payload": {"$element": "key"}}', '{"map": {"$result": "a"}, "payload": {"$element": "value", "at": 1}}', '{"map": {"$result": "a"}, "payload": {"$element": "value", "path": "a"}}'])
	WITH ORDINALITY u (m, n), test.error(format('SELECT jobq.create_workflow(%L)', jsonb_build_object('steps', jsonb_build_array('{"name": "a", "kind": "echo"}'::jsonb, '{"name": "b", "kind": "echo", "needs": ["a"]}'::jsonb || m::jsonb)))) e ORDER BY n;
SELECT e.* FROM test.error($$SELECT test.chain('[{"kind": "echo", "map": {"$result": "1"}}]')$$) e;
-- without "map", "$element" has no special meaning
SELECT test.chain('[{"kind": "echo", "payload": [{"$element": 1}]}, {"kind": "echo", "payload": {"$element": "value", "of": {"$result": "1"}}}]') AS ids \gset
SELECT result FROM jobq.wait_many(:'ids'::bigint[]);

SELECT count(jobq.delete(id)) > 0 AS deleted FROM jobq.dead_letters WHERE kind IN ('each', 'much', 'echo', 'deep');
SELECT jobq.unregister(k) FROM unnest('{odd,numbers,each,much,deep}'::text[]) k;
SELECT jobq.drop_queue('mapped');
