-- create_workflow() with options common to all steps; prune() of unfinished batches.

-- an option of the step overrides the common option, even with null; run_at of a step replaces a common delay
SELECT jobq.create_queue('grown', mode => 'consumer');
SELECT jobq.create_workflow('{"options": {"queue": "grown", "priority": 7, "delay": "1 hour", "tags": ["all"], "headers": {"a": 1}, "max_attempts": 2}, "steps": [
	{"name": "a", "kind": "grown"},
	{"name": "b", "kind": "grown", "priority": 3, "delay": null, "tags": ["own"], "headers": {"b": 2}},
	{"name": "c", "kind": "grown", "run_at": "2098-12-25 08:00Z"},
	{"name": "d", "kind": "echo", "queue": null, "delay": "2 hours", "max_attempts": null},
	{"name": "e", "kind": "grown", "needs": ["a"]}]}') AS id \gset
SELECT s.name, j.queue, j.priority, j.max_attempts, j.tags, j.headers, j.state,
	CASE WHEN s.name = 'c' THEN j.run_at = '2098-12-25 08:00Z' ELSE round(extract(epoch FROM nullif(j.run_at, 'infinity') - j.enqueued_at) / 3600)::text = CASE s.name WHEN 'a' THEN '1' WHEN 'b' THEN '0' WHEN 'd' THEN '2' END END AS as_said
FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = :id ORDER BY s.name;
SELECT name, definition FROM jobq.steps WHERE batch_id = :id AND name IN ('b', 'c') ORDER BY name;
-- the delay of a step begins when the step stops waiting
SELECT jobq.edit(job_id, run_at => now()) FROM jobq.steps WHERE batch_id = :id AND name = 'a';
SELECT jobq.ack(id, token) FROM jobq.reserve('{grown}', wait => '5 min');
SELECT jobq.ack(id, token) FROM jobq.reserve('{grown}', wait => '5 min');
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.steps WHERE name = ''e'' AND batch_id = %s)', :id));
SELECT jobq.cancel_batch(:id);
SELECT test.until(format('(SELECT state = ''cancelled'' FROM jobq.batches WHERE id = %s)', :id));
-- a chain
SELECT test.chain('[{"kind": "echo", "payload": 1}, {"kind": "echo", "payload": 2, "priority": 9}]', options => '{"priority": 8, "headers": {"h": true}}') AS ids \gset
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT id = (:'ids'::bigint[])[2] AS last, priority, headers FROM jobq.jobs WHERE id = ANY (:'ids') ORDER BY id;
SELECT cardinality(test.chain('[{"kind": "echo"}]', options => NULL)), cardinality(test.chain('[{"kind": "echo"}]', options => '{}')), jobq.create_workflow('{"options": null, "steps": [{"name": "a", "kind": "echo"}]}') IS NOT NULL AS done;
-- bad input
SELECT o, e.* FROM unnest(ARRAY['1', '[]', '"x"', '{"colour": 1}', '{"kind": "echo"}', '{"needs": []}', '{"when": "$.a == 1"}', '{"priority": "high"}', '{"delay": 5}', '{"delay": "often"}', '{"unique_key": "k"}', '{"uniqueness": {"by": ["a"]}}', '{"queue": "unheard of"}', '{"priority": 1000000}', '{"delay": "1 s", "run_at": "2098-01-01"}'])
	WITH ORDINALITY u (o, n), test.error(format('SELECT jobq.create_workflow(%L)', format('{"steps": [{"name": "a", "kind": "echo"}], "options": %s}', o))) e ORDER BY n;
SELECT o, e.* FROM unnest(ARRAY['[]', '{"colour": 1}', '{"unique_key": "k"}']) WITH ORDINALITY u (o, n), test.error(format('SELECT test.chain(%L, options => %L)', '[{"kind": "echo"}]', o)) e ORDER BY n;

-- unfinished batches, by age: never started, started but empty, waiting for a lost consumer
SELECT jobq.prune(batches_older_than => '0') >= 0 AS done;
SELECT test.until('(SELECT count(*) = 0 FROM jobq.batches WHERE finished_at IS NULL)');
TRUNCATE test.trace;
SELECT jobq.create_batch('never started', on_finish => '{"kind": "note", "payload": "cancelled"}') AS pending, jobq.create_batch('empty', start => true) AS empty \gset
SELECT jobq.add_jobs(:pending, 'echo', '{"{}"}') IS NOT NULL AS added;
SELECT jobq.create_workflow('{"name": "left alone", "options": {"queue": "grown"}, "steps": [{"name": "a", "kind": "grown"}, {"name": "b", "kind": "grown", "needs": ["a"]}]}') AS alone \gset
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.steps WHERE name = ''a'' AND batch_id = %s)', :alone));
SELECT jobq.prune(batches_older_than => '1 day') AS none;
SELECT jobq.test_clock('2 days') \g /dev/null
SELECT jobq.create_batch('young') AS young \gset
SELECT e.* FROM test.error($$SELECT jobq.prune(batches_older_than => '-1 s')$$) e;
-- younger batches are left; a role needs a privilege for this
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.create_batch('hers') AS hers \gset
SELECT e.code, e.message FROM test.error($$SELECT jobq.prune(batches_older_than => '0')$$) e;
RESET ROLE;
SELECT jobq.prune(batches_older_than => '1 day');
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.batches WHERE state = ''cancelled'' AND id IN (%s, %s, %s))', :pending, :empty, :alone));
SELECT name, state, total, cancelled FROM jobq.batches WHERE id IN (:pending, :empty, :alone, :young, :hers) ORDER BY id;
SELECT test.until('(SELECT count(*) = 1 FROM test.trace)');
SELECT jobq.prune(batches_older_than => '1 day') AS none;
SELECT count(jobq.cancel_batch(id)) FROM jobq.batches WHERE id IN (:young, :hers);
SELECT test.until('(SELECT count(*) = 0 FROM jobq.batches WHERE finished_at IS NULL)');
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.drop_queue('grown');
TRUNCATE test.trace;
