-- create_workflow(): dependencies between steps, and references to results.

CREATE FUNCTION test.settled(id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = %s)', id));
	RETURN (SELECT format('%s: %s completed, %s dead, %s cancelled, %s expired', state, completed, dead, cancelled, expired)
		FROM jobq.batches b WHERE b.id = settled.id);
END
$$;
CREATE VIEW test.steps AS
	SELECT s.batch_id, s.name, s.needs, s.state, j.result, j.error FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id = s.job_id ORDER BY s.job_id;
-- adds up numbers
CREATE FUNCTION test.sum(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(sum(n::numeric)) FROM jsonb_array_elements_text(payload) n $$;
SELECT jobq.register('sum', 'test.sum(jsonb)');
-- fails as long as test.flaw has a row
CREATE TABLE test.flaw ();
GRANT SELECT ON test.flaw TO PUBLIC;
CREATE FUNCTION test.flawed(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM test.flaw) THEN
		PERFORM jobq.reject_current('flaw');
	END IF;
	RETURN payload;
END
$$;
SELECT jobq.register('flawed', 'test.flawed(jsonb)');

-- a chain: steps run in order, in any worker, each with the results of earlier steps
SELECT test.chain('[{"kind": "note", "payload": "one"}, {"kind": "note", "payload": "two"}, {"kind": "note", "payload": "three"}]') AS ids \gset
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
SELECT test.chain('[{"kind": "echo", "payload": {"a": [1, {"b": "two"}]}}, {"kind": "echo", "payload": [{"$result": "1"}, {"deep": {"$result": "1", "path": ["a", 1, "b"]}}, {"$result": "1", "path": ["none"]}, "$result"]},
	{"kind": "echo", "payload": {"$result": "2"}}, {"kind": "note", "payload": "no result"}, {"kind": "echo", "payload": {"$result": "4"}}, {"kind": "echo", "payload": {"": [], "x": {}, "\"q\"": {"$result": "5"}, "far": {"$result": "1", "path": ["a", 0]}}}]') AS ids \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT payload FROM jobq.jobs WHERE id = (:'ids'::bigint[])[2];
TRUNCATE test.trace;

-- a chain with a single step
SELECT test.chain('[{"kind": "echo", "payload": "alone"}]', name => 'short', on_success => '{"kind": "note", "payload": "well done"}', on_finish => '{"kind": "note", "payload": "done"}') AS ids \gset
SELECT b.name, test.settled(b.id) FROM jobq.batches b JOIN jobq.jobs j ON j.batch_id = b.id WHERE j.id = ANY (:'ids');
SELECT test.until('(SELECT count(*) FROM test.trace) = 2');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- while the first step runs, the other steps are blocked
SELECT pg_advisory_lock(1);
SELECT test.chain('[{"kind": "gate", "payload": 1}, {"kind": "echo", "payload": "next", "queue": "second", "priority": 3}, {"kind": "echo", "payload": "later", "delay": "1 hour"}, {"kind": "echo", "run_at": "2001-01-01"}]') AS ids \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', (:'ids'::bigint[])[1]));
SELECT batch_id AS id FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1] \gset
SELECT name, needs, state FROM test.steps WHERE batch_id = :id;
SELECT state, total, blocked, running, completed, progress FROM jobq.batches WHERE id = :id;
-- a step stays blocked if its priority changes
SELECT jobq.edit((:'ids'::bigint[])[2], priority => 7);
SELECT e.code, e.message FROM test.error(format('SELECT jobq.edit(%s, run_at => now())', (:'ids'::bigint[])[2])) e;
SELECT pg_advisory_unlock(1);
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.status(%s))', (:'ids'::bigint[])[3]));
SELECT name, s.state, j.priority, j.run_at > now() + interval '59 minutes' AS delayed FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id ORDER BY s.job_id;
SELECT jobq.edit((:'ids'::bigint[])[3], run_at => now());
SELECT test.settled(:id);

-- fan out and fan in: both needs end at the same time
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"name": "sums", "steps": [
	{"name": "total", "kind": "sum", "needs": ["left", "right", "left"], "payload": [{"$result": "left"}, {"$result": "right"}, {"$result": "begin"}]},
	{"name": "begin", "kind": "echo", "payload": 100},
	{"name": "left", "kind": "sum", "needs": ["begin"], "payload": [1, 2, {"$result": "begin"}]},
	{"name": "hold", "kind": "gate", "payload": 1},
	{"name": "right", "kind": "sum", "needs": ["begin", "hold"], "payload": [3, 4]}]}') AS id \gset
SELECT test.until(format('(SELECT count(*) FILTER (WHERE state = ''completed'') = 2 AND count(*) FILTER (WHERE state = ''running'') = 1 FROM jobq.steps WHERE batch_id = %s)', :id));
SELECT name, needs, state, result FROM test.steps WHERE batch_id = :id;
SELECT pg_advisory_unlock(1);
SELECT test.settled(:id);
SELECT name, state, result FROM test.steps WHERE batch_id = :id;
SELECT name FROM jobq.batches WHERE id = :id;
-- many parallel steps with several joins
SELECT jobq.create_workflow(jsonb_build_object('steps', jsonb_agg(s))) AS id FROM (
	SELECT jsonb_build_object('name', format('%s.%s', l, i), 'kind', 'sum', 'payload', CASE WHEN l = 1 THEN '[1]' ELSE (SELECT jsonb_agg(jsonb_build_object('$result', format('%s.%s', l - 1, j))) FROM generate_series(1, 8) j) END,
		'needs', CASE WHEN l = 1 THEN '[]' ELSE (SELECT jsonb_agg(format('%s.%s', l - 1, j)) FROM generate_series(1, 8) j) END) AS s
	FROM generate_series(1, 5) l, generate_series(1, 8) i) s \gset
SELECT test.settled(:id);
SELECT split_part(name, '.', 1) AS layer, count(*), min(result::int), max(result::int) FROM test.steps WHERE batch_id = :id GROUP BY 1 ORDER BY 1;

-- a failure ends the chain, and is reported once
SELECT test.chain('[{"kind": "echo"}, {"kind": "broken", "payload": 1, "max_attempts": 1}, {"kind": "echo"}, {"kind": "echo"}]',
	on_failure => '{"kind": "note", "payload": "failed"}', on_success => '{"kind": "note", "payload": "success"}') AS ids \gset
SELECT batch_id AS id FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1] \gset
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id;
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT note FROM test.trace;
TRUNCATE test.trace;

-- with allow_failures, steps that do not need the dead step continue
SELECT jobq.create_workflow('{"allow_failures": true, "on_failure": {"kind": "note", "payload": "failed"}, "steps": [
	{"name": "bad", "kind": "broken", "max_attempts": 1},
	{"name": "good", "kind": "echo", "payload": "good"},
	{"name": "after good", "kind": "echo", "needs": ["good"], "payload": {"$result": "good"}},
	{"name": "last", "kind": "echo", "needs": ["after bad"]},
	{"name": "after bad", "kind": "echo", "needs": ["good", "bad"]}]}') AS id \gset
SELECT test.settled(:id);
SELECT name, state, result, error FROM test.steps WHERE batch_id = :id;
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
TRUNCATE test.trace;

-- a dead step is retried: steps cancelled because of it wait again, with all their options
INSERT INTO test.flaw DEFAULT VALUES;
SELECT jobq.create_workflow('{"on_failure": {"kind": "note", "payload": "failed"}, "on_success": {"kind": "note", "payload": "success"}, "steps": [
	{"name": "a", "kind": "flawed", "payload": 5, "needs": ["d"]},
	{"name": "b", "kind": "sum", "needs": ["a"], "payload": [1, {"$result": "a"}], "timeout": "77 s"},
	{"name": "c", "kind": "sum", "needs": ["b"], "payload": [1, {"$result": "b"}, {"$result": "a"}]},
	{"name": "free", "kind": "echo", "delay": "1 hour", "payload": {"$result": "d"}, "needs": ["d"]}, {"name": "d", "kind": "echo", "payload": 8}]}') AS id \gset
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id AND name <> 'd';
SELECT jobq.retry_many(batch_id => :id);
-- the retry fails, but the other steps continue
SELECT test.until(format('(SELECT array_agg(state ORDER BY name) = ''{dead,cancelled,cancelled,completed,scheduled}'' FROM jobq.steps WHERE batch_id = %s)', :id));
SELECT name, state, error FROM test.steps WHERE batch_id = :id AND name IN ('a', 'b', 'c');
TRUNCATE test.flaw;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.steps WHERE name = ''free'' AND batch_id = %s)', :id));
SELECT jobq.edit(job_id, run_at => now()) FROM jobq.steps WHERE name = 'free' AND batch_id = :id;
SELECT test.settled(:id);
SELECT name, state, result FROM test.steps WHERE batch_id = :id;
SELECT test.until('(SELECT count(*) FROM test.trace WHERE note = ''success'') = 1');
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
TRUNCATE test.trace;
-- retry of one of two dead steps
INSERT INTO test.flaw DEFAULT VALUES;
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "a", "kind": "flawed"}, {"name": "b", "kind": "flawed"},
	{"name": "after a", "kind": "echo", "needs": ["a"]}, {"name": "after b", "kind": "echo", "needs": ["b"]}, {"name": "after both", "kind": "echo", "needs": ["after a", "after b"]}]}') AS id \gset
SELECT test.settled(:id);
TRUNCATE test.flaw;
SELECT jobq.retry(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'a';
SELECT test.settled(:id);
SELECT name, state FROM test.steps WHERE batch_id = :id;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.settled(:id);

-- the whole workflow is cancelled
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "gate", "payload": 1}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.steps WHERE name = ''a'' AND batch_id = %s)', :id));
SELECT jobq.cancel_batch(:id);
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id;
-- a blocked step is cancelled: the other steps continue, and the workflow does not succeed
SELECT jobq.create_workflow('{"on_success": {"kind": "note", "payload": "success"}, "steps": [{"name": "a", "kind": "gate", "payload": 1}, {"name": "b", "kind": "echo", "needs": ["a"]}, {"name": "c", "kind": "echo", "needs": ["b"]}, {"name": "d", "kind": "echo", "needs": ["a"]}]}') AS id \gset
SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'b';
SELECT test.until(format('(SELECT state = ''cancelled'' FROM jobq.steps WHERE name = ''c'' AND batch_id = %s)', :id));
SELECT pg_advisory_unlock(1);
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id;
SELECT note FROM test.trace;

-- an expired step has the effect of a dead step
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "a", "kind": "echo", "expires_at": "2001-01-01"}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS id \gset
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id;

-- another transaction has locked the row: the step is released when this transaction ends
SELECT pg_advisory_lock(1);
SELECT test.chain('[{"kind": "gate", "payload": 1}, {"kind": "echo"}]') AS ids \gset
BEGIN;
SELECT jobq.edit((:'ids'::bigint[])[2], priority => 7);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait((:'ids'::bigint[])[1]);
COMMIT;
SELECT state FROM jobq.wait((:'ids'::bigint[])[2]);

-- results are available even with keep => 'nothing', and from consumers, too
SELECT jobq.create_queue('forgetful', keep => 'nothing'), jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "payload": 1, "queue": "forgetful"}, {"name": "b", "kind": "anything", "queue": "outside", "needs": ["a"], "payload": {"$result": "a"}},
	{"name": "c", "kind": "sum", "needs": ["b"], "payload": [{"$result": "a"}, {"$result": "b"}]}]}') AS id \gset
SELECT kind, payload, jobq.ack(id, token, '41') FROM jobq.reserve('{outside}', wait => '5 min');
SELECT test.settled(:id);
SELECT name, state, result FROM test.steps WHERE batch_id = :id;

-- results of pruned jobs are still available to later steps
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "a", "kind": "echo", "payload": {"kept": [1]}}, {"name": "bad", "kind": "broken", "max_attempts": 1}, {"name": "b", "kind": "gate", "payload": 1},
	{"name": "c", "kind": "echo", "needs": ["a", "b"], "payload": {"$result": "a", "path": ["kept"]}}, {"name": "d", "kind": "echo", "needs": ["bad", "b"]}]}') AS id \gset
SELECT test.until(format('(SELECT count(*) FILTER (WHERE state = ''cancelled'') = 1 AND count(*) FILTER (WHERE state = ''running'') = 1 AND count(*) FILTER (WHERE state = ''completed'') = 1 FROM jobq.steps WHERE batch_id = %s)', :id));
SELECT jobq.prune('0', NULL) > 1 AS pruned, jobq.delete(job_id) FROM jobq.steps WHERE batch_id = :id AND name = 'bad';
SELECT name, state, result FROM test.steps WHERE batch_id = :id;
SELECT pg_advisory_unlock(1);
SELECT test.settled(:id);
SELECT name, state, result FROM test.steps WHERE batch_id = :id;
SELECT jobq.prune('0', NULL) > 1 AS pruned;
SELECT name, state FROM test.steps WHERE batch_id = :id;
SELECT state, completed, dead, cancelled FROM jobq.batches WHERE id = :id;

-- run_at of a step keeps its meaning when the step waits again
INSERT INTO test.flaw DEFAULT VALUES;
SET timezone = 'Asia/Kolkata';
SET datestyle = 'ISO, DMY';
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "flawed"}, {"name": "b", "kind": "echo", "run_at": "25/12/2098 08:00"}]}') AS id \gset
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "flawed"}, {"name": "in", "run_at": "25/12/2098 08:00", "workflow": [{"name": "x", "kind": "echo"}]}]}') AS outer \gset
RESET timezone;
RESET datestyle;
SELECT test.settled(:id);
SELECT test.settled(:outer);
TRUNCATE test.flaw;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.until(format('(SELECT array_agg(state ORDER BY name) = ''{completed,scheduled}'' FROM jobq.steps WHERE batch_id = %s)', :id));
SELECT run_at = '2098-12-25 08:00+05:30' AS as_written FROM jobq_internal.job WHERE batch_id = :id;
SELECT jobq.cancel_batch(:id);
SELECT test.settled(:id);
-- and for a step that is a workflow
SELECT jobq.retry_many(batch_id => :outer);
SELECT test.until(format('(SELECT b.last_error IS NOT NULL OR s.state = ''scheduled'' FROM jobq.batches b, jobq.steps s WHERE b.id = %s AND s.batch_id = (SELECT workflow_id FROM jobq.steps WHERE batch_id = b.id AND name = ''in''))', :outer));
SELECT last_error FROM jobq.batches WHERE id = :outer;
SELECT run_at = '2098-12-25 08:00+05:30' AS as_written FROM jobq_internal.job WHERE batch_id = (SELECT workflow_id FROM jobq.steps WHERE batch_id = :outer AND name = 'in');
SELECT jobq.cancel_batch(:outer);
SELECT test.settled(:outer);

-- a payload becomes too large: the step fails, also on retry, but never runs without the results
CREATE FUNCTION test.large() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(repeat('x', 9 * 1024 * 1024)) $$;
SELECT jobq.register('large', 'test.large()');
SELECT test.chain('[{"kind": "large"}, {"kind": "echo", "payload": [{"$result": "1"}, {"$result": "1"}]}, {"kind": "echo"}]') AS ids \gset
SELECT batch_id AS id FROM jobq.steps WHERE job_id = (:'ids'::bigint[])[1] \gset
SELECT test.settled(:id);
SELECT name, state, error FROM test.steps WHERE batch_id = :id;
SELECT jobq.retry_many(batch_id => :id);
SELECT test.settled(:id);
SELECT attempt, run_at, payload FROM jobq.jobs WHERE id = (:'ids'::bigint[])[2];
-- the step is blocked again, and cannot be retried twice
BEGIN;
SELECT jobq.retry((:'ids'::bigint[])[2]);
SELECT * FROM test.error('SELECT jobq.retry(' || (:'ids'::bigint[])[2] || ')');
COMMIT;
SELECT test.settled(:id);
SELECT jobq.delete((:'ids'::bigint[])[2]);
-- nor can the step be retried after the batch was cancelled, because it would stay blocked forever
SELECT pg_advisory_lock(1);
SELECT jobq.create_workflow('{"allow_failures": true, "steps": [{"name": "a", "kind": "large"}, {"name": "b", "kind": "echo", "needs": ["a"], "payload": [{"$result": "a"}, {"$result": "a"}]}, {"name": "c", "kind": "gate", "payload": 1}]}') AS id \gset
SELECT test.until(format('(SELECT state = ''dead'' FROM jobq.steps WHERE name = ''b'' AND batch_id = %s)', :id));
SELECT jobq.cancel_batch(:id);
SELECT test.settled(:id);
SELECT pg_advisory_unlock(1);
SELECT e.code, regexp_replace(e.message, '\d+', 'N', 'g') AS message FROM jobq.steps s, test.error(format('SELECT jobq.retry(%s)', job_id)) e WHERE batch_id = :id AND name = 'b';
SELECT jobq.retry_many(kind => 'echo');
SELECT name, state, jobq.delete(job_id) FROM jobq.steps WHERE batch_id = :id AND state = 'dead';

-- all or nothing
BEGIN;
SELECT count(*) FROM jobq.steps s WHERE batch_id = jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo"}]}');
SELECT count(*) AS steps FROM jobq.steps \gset
SELECT cardinality(test.chain('[{"kind": "echo"}, {"kind": "echo"}]'));
SELECT count(*) - :steps AS more FROM jobq.steps;
ROLLBACK;
SELECT count(*) AS steps FROM jobq.steps \gset
SELECT count(*) AS batches FROM jobq.batches \gset

-- errors in a definition
SELECT w, e.* FROM unnest(ARRAY['null', '[]', '{}', '{"steps": null}', '{"steps": {}}', '{"steps": []}', '{"steps": 1, "x": 2}', '{"steps": [1]}', '{"steps": [{"kind": "echo"}]}', '{"steps": [{"name": 1}]}', '{"steps": [{"name": ""}]}',
	'{"steps": [{"name": "a"}]}', '{"steps": [{"name": "a", "kind": "unheard of"}]}', '{"steps": [{"name": "a", "kind": "echo", "colour": 1}]}', '{"steps": [{"name": "a", "kind": "echo", "priority": "high"}]}',
	'{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo"}, {"name": "a", "kind": "echo"}]}',
	'{"steps": [{"name": "a", "kind": "echo", "needs": "b"}]}', '{"steps": [{"name": "a", "kind": "echo", "needs": [1]}]}', '{"steps": [{"name": "a", "kind": "echo", "needs": ["b"]}]}', '{"steps": [{"name": "a", "kind": "echo", "needs": ["a"]}]}',
	'{"steps": [{"name": "0", "kind": "echo"}, {"name": "a", "kind": "echo", "needs": ["0", "b"]}, {"name": "b", "kind": "echo", "needs": ["c"]}, {"name": "c", "kind": "echo", "needs": ["d"]}, {"name": "d", "kind": "echo", "needs": ["b"]}]}',
	'{"steps": [{"name": "a", "kind": "echo", "unique_key": "k"}]}',
	'{"steps": [{"name": "a", "kind": "echo", "payload": {"$result": "b"}}]}', '{"steps": [{"name": "a", "kind": "echo", "payload": {"$result": 1}}]}',
	'{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "payload": [{"x": {"$result": "a"}}]}]}',
	'{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "needs": ["a"], "payload": {"$result": "a", "path": "x"}}]}', '{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "needs": ["a"], "payload": {"$result": "a", "path": [null]}}]}',
	'{"steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "needs": ["a"], "payload": {"$result": "a", "default": 1}}]}',
	'{"steps": [{"name": "a", "kind": "echo"}], "name": 1}', '{"steps": [{"name": "a", "kind": "echo"}], "allow_failures": 1}', '{"steps": [{"name": "a", "kind": "echo"}], "on_failure": {"kind": "unheard of"}}', '{"steps": [{"name": "a", "kind": "echo"}], "on_success": []}'])
	WITH ORDINALITY u (w, n), test.error(format('SELECT jobq.create_workflow(%L)', w)) e ORDER BY n;
SELECT e.* FROM test.error('SELECT jobq.create_workflow(NULL)') e;
SELECT c, e.* FROM unnest(ARRAY['null', '{}', '[]', '[1]', '[{}]', '[{"kind": "echo", "name": "a"}]', '[{"kind": "echo"}, {"kind": "unheard of"}]', '[{"kind": "echo", "payload": {"$result": "1"}}]', '[{"kind": "echo", "payload": {"$result": "first"}}]'])
	WITH ORDINALITY u (c, n), test.error(format('SELECT test.chain(%L)', c)) e ORDER BY n;
SELECT e.* FROM test.error('SELECT test.chain(NULL)') e;
SELECT e.* FROM test.error($$SELECT test.chain((SELECT jsonb_agg('{"kind": "echo"}'::jsonb) FROM generate_series(1, 100001)))$$) e;
-- the failed calls have left no rows
SELECT count(*) - :steps AS more FROM jobq.steps;
SELECT count(*) - :batches AS more FROM jobq.batches;
SELECT count(*) FROM jobq.jobs WHERE state = 'blocked';

-- a role's own workflows
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
SET ROLE regress_jobq_alice;
SELECT test.chain('[{"kind": "echo", "payload": "hers"}, {"kind": "echo", "payload": {"$result": "1"}}]') AS ids \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT role, kind, payload FROM jobq.jobs WHERE id = ANY (:'ids') ORDER BY id;
SELECT name, state FROM jobq.steps WHERE job_id = ANY (:'ids') ORDER BY name;
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.steps;
SELECT e.code, e.message FROM test.error($$SELECT * FROM jobq_internal.step$$) e;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');

-- a small result with a long text representation
CREATE FUNCTION test.numbers() RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_agg(1e131000) FROM generate_series(1, 9000) $$;
CREATE FUNCTION test.count(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(jsonb_array_length(payload -> 'numbers')) $$;
SELECT jobq.register('numbers', 'test.numbers()'), jobq.register('count', 'test.count(jsonb)');
SELECT test.chain('[{"kind": "numbers"}, {"kind": "count", "payload": {"numbers": {"$result": "1"}}}]') AS ids \gset
SELECT state, result FROM jobq.wait((:'ids'::bigint[])[2], '5 min');

-- a step fails if the result makes its payload too deeply nested
CREATE FUNCTION test.nested() RETURNS jsonb LANGUAGE sql AS $$ SELECT (repeat('[', 600) || repeat(']', 600))::jsonb $$;
SELECT jobq.register('nested', 'test.nested()');
SELECT test.chain(jsonb_build_array('{"kind": "nested"}'::jsonb, jsonb_build_object('kind', 'echo', 'payload', (repeat('[', 600) || '{"$result": "1"}' || repeat(']', 600))::jsonb))) AS ids \gset
SELECT state, error FROM jobq.wait((:'ids'::bigint[])[2]);
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE id = (:'ids'::bigint[])[2];

SELECT jobq.unregister(k) FROM unnest('{sum,flawed,large,numbers,count,nested}'::text[]) k;
TRUNCATE test.trace;
