-- Unique jobs: unique_key and uniqueness.

-- The waiting jobs of the queue without workers, and the unique keys; ids are relative to the given id.
CREATE FUNCTION test.waiting(base bigint, OUT n bigint, OUT state text, OUT kind text, OUT unique_key text, OUT payload jsonb, OUT priority int)
RETURNS SETOF record LANGUAGE sql
AS $$ SELECT id - $1, state, kind, unique_key, payload, priority FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL ORDER BY id $$;
CREATE FUNCTION test.keys(base bigint, OUT n bigint, OUT until "char", OUT in_window boolean, OUT kind text, OUT key text)
RETURNS SETOF record LANGUAGE sql SECURITY DEFINER
AS $$ SELECT job_id - $1, until, held_until > jobq_internal.clock(), kind, key FROM jobq_internal.unique_key ORDER BY job_id $$;
CREATE PROCEDURE test.cancel_all() LANGUAGE sql
AS $$ SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL $$;
CREATE FUNCTION test.fail(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT jobq.reject_current('for good') $$;
SELECT jobq.register('fail', 'test.fail(jsonb)');

-- skip: returns the id of the existing job
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'a') AS a \gset
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'a') = :a AS same, jobq.enqueue('echo', '3', unique_key => 'a', uniqueness => '{"on_conflict": "skip"}') = :a AS same;
-- the key belongs to a kind ...
SELECT jobq.enqueue('note', '4', 'manual', unique_key => 'a') = :a AS same, jobq.enqueue('echo', '5', 'manual', unique_key => 'b') = :a AS same;
-- ... and to a role
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '6', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') = :a AS same;
RESET ROLE;
SELECT * FROM test.waiting(:a);
SELECT * FROM test.keys(:a);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.jobs WHERE id > ' || :a || ' AND queue <> ''manual'')');
-- error
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', '7', unique_key => 'a', uniqueness => '{"on_conflict": "error"}')$$);
SELECT jobq.enqueue('echo', '8', 'manual', unique_key => 'c', uniqueness => '{"on_conflict": "error"}') > :a AS enqueued;
-- replace: the job keeps its id; all other properties are new
SELECT jobq.enqueue('echo', '9', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}', priority => 3, delay => '1 h', headers => '{"h": 1}') = :a AS same;
SELECT jobq.enqueue('echo', '10', 'manual', unique_key => 'd', uniqueness => '{"on_conflict": "replace"}') > :a AS enqueued;
SELECT * FROM test.waiting(:a);
SELECT headers, run_at > now() AS later, enqueued_at < now() - (now() - enqueued_at) / 2 AS old FROM jobq.jobs WHERE id = :a;
-- cancel() releases the key
SELECT jobq.cancel(:a);
SELECT jobq.enqueue('echo', '11', 'manual', unique_key => 'a') > :a AS enqueued;
CALL test.cancel_all();
SELECT * FROM test.keys(:a);

-- in a single statement, in a single transaction, and with a partial rollback
SELECT count(DISTINCT jobq.enqueue('echo', to_jsonb(n), 'manual', unique_key => 'a')) FROM generate_series(1, 100) n;
SELECT count(DISTINCT jobq.enqueue('echo', to_jsonb(n), 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}')) FROM generate_series(1, 100) n;
SELECT payload FROM test.waiting(0);
SELECT count(DISTINCT jobq.enqueue('echo', to_jsonb(n), 'manual', unique_key => 'k' || n)) FROM generate_series(1, 1000) n;
SELECT count(*) FROM test.keys(0);
CALL test.cancel_all();
BEGIN;
SAVEPOINT s;
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'a') AS a \gset
ROLLBACK TO s;
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'a') > :a AS enqueued;
SAVEPOINT s;
SELECT jobq.enqueue('echo', '3', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') > :a AS enqueued;
ROLLBACK TO s;
COMMIT;
SELECT n, payload FROM test.waiting(:a);
CALL test.cancel_all();
-- a transaction with an old snapshot
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'a') AS a \gset
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') = :a AS same;
COMMIT;
CALL test.cancel_all();

-- until the job finishes: also while the job runs
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', unique_key => 'a') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('gate', '1', unique_key => 'a') = :a AS same;
SELECT code, message FROM test.error($$SELECT jobq.enqueue('gate', '7', unique_key => 'a', uniqueness => '{"on_conflict": "error"}')$$);
-- a running job cannot be replaced: a new job takes over the key
SELECT jobq.enqueue('gate', '2', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') AS b \gset
SELECT :a = :b AS same, jobq.enqueue('gate', '3', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') = :b AS replaced, jobq.enqueue('gate', unique_key => 'a') = :b AS skipped;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a);
SELECT * FROM test.keys(:b);
SELECT jobq.enqueue('gate', unique_key => 'a') = :b AS skipped;
SELECT jobq.cancel(:b);
SELECT * FROM test.keys(:b);
SELECT jobq.enqueue('echo', unique_key => 'a') AS b \gset
SELECT state FROM jobq.wait(:b);
SELECT * FROM test.keys(:b);

-- until the job starts
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', 'first', unique_key => 'a', uniqueness => '{"until": "start"}') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('gate', '1', 'first', unique_key => 'a', uniqueness => '{"until": "start"}') AS b \gset
SELECT :a = :b AS same, jobq.enqueue('gate', '1', 'first', unique_key => 'a', uniqueness => '{"until": "start"}') = :b AS same;
SELECT * FROM test.keys(:a);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT * FROM test.keys(:a);
-- later attempts of the job do not hold the key
SELECT jobq.enqueue('broken', backoff => 'fixed 1h', unique_key => 'a', uniqueness => '{"until": "start"}') AS a \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :a));
SELECT jobq.enqueue('broken', '1', 'manual', unique_key => 'a', uniqueness => '{"until": "start"}') AS b \gset
SELECT :a = :b AS same;
SELECT jobq.cancel(:a);
SELECT * FROM test.keys(:b);
CALL test.cancel_all();

-- a failed or snoozed attempt does not end the job
SELECT jobq.enqueue('broken', '1', backoff => 'fixed 1h', unique_key => 'a', max_attempts => 2) AS a \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :a));
SELECT jobq.enqueue('broken', unique_key => 'a') = :a AS same;
-- after a replacement, the job has all attempts again
SELECT jobq.enqueue('broken', '2', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') = :a AS same;
SELECT state, attempt, max_attempts, error FROM jobq.status(:a);
CALL test.cancel_all();
CREATE FUNCTION test.snooze() RETURNS void LANGUAGE sql AS $$ SELECT jobq.snooze('1 h') $$;
SELECT jobq.register('snooze', 'test.snooze()');
SELECT jobq.enqueue('snooze', unique_key => 'a') AS a \gset
SELECT test.until(format('(SELECT run_at > now() FROM jobq.jobs WHERE id = %s)', :a));
SELECT jobq.enqueue('snooze', unique_key => 'a') = :a AS same;
CALL test.cancel_all();

-- further ends: dead letter, cancel_current(), expiry
CREATE FUNCTION test.discard() RETURNS void LANGUAGE sql AS $$ SELECT jobq.cancel_current('no') $$;
SELECT jobq.register('discard', 'test.discard()');
SELECT jobq.create_queue('traceless', keep => 'nothing');
SELECT jobq.enqueue('fail', unique_key => 'a', uniqueness => '{"for": "1 h"}') AS a, jobq.enqueue('discard', unique_key => 'a', uniqueness => '{"for": "1 h"}') AS b,
	jobq.enqueue('echo', unique_key => 'a', uniqueness => '{"for": "1 h"}', expires_at => '2001-01-01') AS c, jobq.enqueue('echo', queue => 'traceless', unique_key => 'b') AS d \gset
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);
SELECT test.until('NOT EXISTS (SELECT FROM jobq_internal.unique_key)');
-- a retried dead letter takes the key again, if the key is free
SELECT unique_key FROM jobq.jobs WHERE id = :a;
SELECT jobq.enqueue('fail', '1', 'manual', unique_key => 'a') AS b \gset
SELECT * FROM test.error(format('SELECT jobq.retry(%s)', :a));
SELECT state FROM jobq.status(:a);
SELECT jobq.retry_many(kind => 'fail');
SELECT jobq.cancel(:b);
-- of dead letters with the same key, retry_many() retries the last
SELECT jobq.enqueue('fail', unique_key => 'a') AS b \gset
SELECT state FROM jobq.wait(:b);
SELECT jobq.pause('default');
SELECT jobq.retry_many(kind => 'fail');
SELECT n FROM test.keys(:b);
SELECT state FROM jobq.status(:a);
SELECT jobq.cancel(:b), jobq.resume('default');
CREATE OR REPLACE FUNCTION test.fail(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock_shared(1) $$;
SELECT pg_advisory_lock(1);
SELECT jobq.retry(:a);
SELECT jobq.enqueue('fail', unique_key => 'a') = :a AS same;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a);
SELECT * FROM test.keys(:a);

-- the minimum time
SELECT jobq.enqueue('echo', '1', unique_key => 'a', uniqueness => '{"for": "1 h"}') AS a \gset
SELECT state FROM jobq.wait(:a);
SELECT jobq.enqueue('echo', '2', unique_key => 'a', uniqueness => '{"for": "1 h"}') = :a AS same, jobq.enqueue('echo', '2', unique_key => 'a') = :a AS same;
SELECT code, message FROM test.error($$SELECT jobq.enqueue('echo', unique_key => 'a', uniqueness => '{"on_conflict": "error"}')$$);
-- a finished job cannot be replaced, either
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'a', uniqueness => '{"for": "1 h", "on_conflict": "replace"}') - :a AS n;
SELECT * FROM test.keys(:a);
SELECT jobq.test_clock('61 min') \g /dev/null
-- the time has passed, but the job has not finished
SELECT jobq.enqueue('echo', '3', 'manual', unique_key => 'a') = max(id) AS same FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;
CALL test.cancel_all();
SELECT jobq.enqueue('echo', '4', unique_key => 'a', uniqueness => '{"for": "1 h"}') AS b \gset
SELECT state, :a = :b AS same FROM jobq.wait(:b);
SELECT jobq.test_clock('122 min') \g /dev/null
SELECT jobq.enqueue('echo', '4', unique_key => 'a') AS a \gset
SELECT state, :a = :b AS same FROM jobq.wait(:a);
SELECT * FROM test.keys(:a);
-- until start, with a minimum time
SELECT jobq.test_clock('0') \g /dev/null
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', unique_key => 'a', uniqueness => '{"for": "1 h", "until": "start"}') AS a \gset
SELECT test.in_gate(:a);
SELECT * FROM test.keys(:a);
SELECT jobq.enqueue('gate', '1', unique_key => 'a') = :a AS same;
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT jobq.enqueue('gate', '1', unique_key => 'a') AS b \gset
SELECT :a = :b AS same;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT * FROM test.keys(:a);
SELECT jobq.test_clock('0') \g /dev/null

-- a handler enqueues the current job again
CREATE FUNCTION test.again(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	next bigint;
BEGIN
	next := jobq.enqueue('again', '{}', 'manual', unique_key => payload ->> 'key', uniqueness => jsonb_build_object('until', payload ->> 'until', 'on_conflict', payload ->> 'on_conflict'));
	RETURN to_jsonb(next = (jobq.current_job()).id);
END
$$;
SELECT jobq.register('again', 'test.again(jsonb)');
SELECT count(jobq.enqueue('again', jsonb_build_object('key', key, 'until', until, 'on_conflict', on_conflict), unique_key => key, uniqueness => jsonb_build_object('until', until)))
FROM (VALUES ('a', 'finish', 'skip'), ('b', 'finish', 'replace'), ('c', 'start', 'skip')) v (key, until, on_conflict);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.jobs WHERE finished_at IS NULL AND queue <> ''manual'')');
SELECT payload ->> 'key' AS key, result AS same FROM jobq.jobs WHERE kind = 'again' AND state = 'completed' ORDER BY 1;
SELECT key FROM test.keys(0) ORDER BY key;
SELECT unique_key FROM test.waiting(0) ORDER BY unique_key;
CALL test.cancel_all();
-- and in jobq.work()
SELECT count(jobq.enqueue('again', jsonb_build_object('key', key, 'until', until, 'on_conflict', on_conflict), 'manual', unique_key => key, uniqueness => jsonb_build_object('until', until)))
FROM (VALUES ('a', 'finish', 'skip'), ('b', 'finish', 'replace'), ('c', 'start', 'skip')) v (key, until, on_conflict);
CALL jobq.work(queues => '{manual}', max_jobs => 3);
SELECT unique_key FROM test.waiting(0) ORDER BY unique_key;
CALL test.cancel_all();

-- consumers
SELECT jobq.create_queue('knocker', mode => 'consumer');
SELECT jobq.enqueue('knock', '1', 'knocker', unique_key => 'a') AS a \gset
SELECT jobq.enqueue('knock', '2', 'knocker', unique_key => 'b', uniqueness => '{"until": "start"}') - :a AS n;
CALL test.settle();
SELECT count(*), min(token) AS token FROM jobq.reserve('{knocker}', 2, wait => '5 min') \gset
SELECT :count AS reserved;
SELECT * FROM test.keys(:a);
SELECT jobq.enqueue('knock', '3', 'knocker', unique_key => 'a') - :a AS n;
SELECT jobq.nack(:a, :token, 'not at home', '1 h');
SELECT jobq.enqueue('knock', '4', 'knocker', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') - :a AS n;
SELECT id - :a AS n, token, payload FROM jobq.reserve('{knocker}', 2, wait => '5 min') \gset
SELECT :n AS n, :payload AS payload;
-- a reserved job is not replaced; a new job takes over the key
SELECT jobq.enqueue('knock', '5', 'knocker', unique_key => 'a', uniqueness => '{"on_conflict": "replace"}') AS b \gset
SELECT :a = :b AS same;
SELECT jobq.ack(:a, :token);
SELECT * FROM test.keys(:b);
SELECT id = :b AS same, token, payload FROM jobq.reserve('{knocker}', 2, wait => '5 min') \gset
SELECT :'same' AS same, :payload AS payload;
SELECT jobq.ack(:b, :token);
SELECT * FROM test.keys(:b);
CALL test.cancel_all();

-- enqueue_many() and the view inbox
SELECT * FROM test.error($$SELECT jobq.enqueue_many('echo', '{1,2}', unique_key => 'a')$$);
SELECT jobq.enqueue_many('echo', '{1}', 'manual', unique_key => 'a') AS a \gset
SELECT id = :a AS same FROM jobq.enqueue_many('echo', '{2}', 'manual', unique_key => 'a') id;
SELECT count(*) FROM jobq.enqueue_many('echo', '{}', unique_key => 'a');
SELECT * FROM test.error($$SELECT jobq.enqueue_many('echo', '{NULL}', unique_key => 'a')$$);
INSERT INTO jobq.inbox (kind, payload, queue, unique_key, uniqueness) VALUES ('echo', '3', 'manual', 'a', NULL), ('echo', '4', 'manual', 'a', '{"on_conflict": "replace"}'), ('echo', '5', 'manual', 'b', '{"on_conflict": "error"}')
RETURNING id = :a AS same, payload;
COPY jobq.inbox (kind, payload, queue, unique_key) FROM stdin;
echo	6	manual	a
echo	7	manual	c
echo	8	manual	c
\.
SELECT unique_key, payload FROM test.waiting(0);
CALL test.cancel_all();

-- keys of deleted jobs: the keys are free, and their rows are deleted within an hour
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'a') AS a, jobq.enqueue('echo', '1', 'manual', unique_key => 'b') AS b,
	jobq.enqueue('echo', '1', 'manual', unique_key => 'c') AS c, jobq.enqueue('echo', '1', unique_key => 'd', uniqueness => '{"for": "1 min"}') AS d,
	jobq.enqueue('echo', '1', unique_key => 'e', uniqueness => '{"for": "1 day"}') AS e \gset
SELECT state FROM jobq.wait_many(ARRAY[:d, :e]);
DELETE FROM jobq_internal.job WHERE id IN (:a, :b);
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'a', uniqueness => '{"on_conflict": "error"}') > :a AS taken_over;
SELECT key FROM test.keys(0) ORDER BY key;
SELECT jobq.test_clock('2 h') \g /dev/null
-- the scheduler cleans this table last, a part at a time
SELECT coalesce(nullif(test.until('(SELECT array_agg(key ORDER BY key) FROM jobq_internal.unique_key) = ''{a,c,e}'''), false),
	test.until('(SELECT array_agg(key ORDER BY key) FROM jobq_internal.unique_key) = ''{a,c,e}''')) AS until;
SELECT jobq.test_clock('0') \g /dev/null
CALL test.cancel_all();
TRUNCATE jobq_internal.unique_key;

-- adopt() restores the keys of the adopted jobs
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'a') AS a, jobq.enqueue('echo', '1', 'manual', unique_key => 'b', uniqueness => '{"until": "start"}') AS b \gset
TRUNCATE jobq_internal.unique_key;
UPDATE jobq_internal.job SET dormant = true;
SELECT jobq.adopt();
SELECT * FROM test.keys(:a);
SELECT jobq.enqueue('echo', '2', unique_key => 'a') = :a AS same;
CALL test.cancel_all();

-- bad input
SELECT e.code, e.message, e.hint FROM unnest(ARRAY[$$''$$, $$repeat('k', 501)$$]) o, test.error(format('SELECT jobq.enqueue(''echo'', unique_key => %s)', o)) e;
SELECT u, e.code, e.message, e.hint FROM unnest(ARRAY['{"for": "1 h"}', '{"until": "start"}', '{"on_conflict": "skip"}', '[]', '"replace"', '{"key": "a"}', '{"by": null}', 'null']) u,
	test.error(format('SELECT jobq.enqueue(''echo'', ''1'', ''manual'', uniqueness => %L)', u)) e;
SELECT u, e.code, e.message, e.hint FROM unnest(ARRAY['{"for": "0"}', '{"for": "-1 s"}', '{"for": "1000 years"}', '{"for": 5}', '{"until": "end"}', '{"on_conflict": "nothing"}']) u,
	test.error(format('SELECT jobq.enqueue(''echo'', unique_key => ''a'', uniqueness => %L)', u)) e;
-- options in jsonb
SELECT jobq.enqueue('echo', '1', options => '{"queue": "manual", "unique_key": "j", "uniqueness": {"for": "1 h"}, "priority": 5, "tags": ["x"], "delay": "1 min"}') AS j \gset
SELECT queue, unique_key, priority, tags, state FROM jobq.jobs WHERE id = :j;
SELECT * FROM test.keys(:j);
INSERT INTO jobq.inbox (kind, options) VALUES ('echo', '{"queue": "manual", "unique_key": "j"}') RETURNING id = :j AS same;
SELECT o, e.code, e.message, e.hint FROM unnest(ARRAY[$$options => '{"options": {}}'$$, $$options => '{"uniqueness": {"by": ["a"]}}'$$, $$options => '[]'$$, $$options => '{"priority": "high"}'$$,
	$$queue => 'manual', options => '{"queue": "manual"}'$$, $$uniqueness => '{}', options => '{"uniqueness": {}}'$$, $$options => '{"uuid": "x"}'$$]) o,
	test.error(format('SELECT jobq.enqueue(''echo'', %s)', o)) e;
CALL test.cancel_all();
SELECT jobq.enqueue('echo', 'null', 'manual', unique_key => repeat('é', 250), uniqueness => '{"until": "finish"}') = jobq.enqueue('echo', 'null', 'manual', unique_key => repeat('é', 250)) AS same;
CALL test.cancel_all();
SELECT count(*) FROM jobq_internal.unique_key;

-- a user's index on the table of keys is maintained, too
CREATE INDEX intruder ON jobq_internal.unique_key (job_id);
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'indexed') AS id \gset
BEGIN;
SET LOCAL enable_seqscan = off;
SELECT key FROM jobq_internal.unique_key WHERE job_id = :id;
COMMIT;
SELECT jobq.cancel(:id);
DROP INDEX jobq_internal.intruder;

-- keys from fields of the payload
SELECT e.* FROM unnest(ARRAY['{"by": "a"}', '{"by": []}', '{"by": ["a", null]}', '{"by": ["a", ""]}', '{"by": ["a"], "on_conflict": "often"}', jsonb_build_object('by', (SELECT jsonb_agg(n::text) FROM generate_series(1, 17) n))::text])
	WITH ORDINALITY u (uniqueness, n), test.error(format('SELECT jobq.enqueue(''echo'', queue => ''manual'', uniqueness => %L)', uniqueness)) e ORDER BY n;
SELECT e.* FROM unnest(ARRAY[$$unique_key => 'k'$$, $$payload => '[1]'$$]) o, test.error(format($$SELECT jobq.enqueue('echo', uniqueness => '{"by": ["a"]}', %s)$$, o)) e;
SELECT jobq.enqueue('echo', '{"customer": "acme", "month": 5, "n": 1}', 'manual', uniqueness => '{"by": ["customer", "month"]}') AS a \gset
SELECT jobq.enqueue('echo', p::jsonb, 'manual', uniqueness => jsonb_build_object('by', by)) - :a AS n FROM (VALUES
	('{"month": 5, "n": 2, "customer": "acme"}', '{customer,month}'::text[]), ('{"customer": "acme", "month": "5"}', '{month,customer}'), ('{"customer": "acme"}', '{customer,month}'),
	('{"customer": "acme", "month": null}', '{customer,month}'), ('{"customer": "acme", "month": 5}', '{customer}'), ('{"customer": {"id": [1]}}', '{customer}')) v (p, by);
SELECT jobq.enqueue('echo', '{}', 'manual', unique_key => '{"month": 5, "customer": "acme"}') = :a AS is_a_key_like_others;
SELECT * FROM test.keys(:a);
-- a long key is stored as a hash
SELECT jobq.enqueue('echo', jsonb_build_object('a', repeat('x', 600)), 'manual', uniqueness => '{"by": ["a"]}') AS long \gset
SELECT unique_key ~ '^sha256 [0-9a-f]{64}$' AS hash, jobq.enqueue('echo', jsonb_build_object('a', repeat('x', 600)), 'manual', uniqueness => '{"by": ["a"]}') = :long AS same FROM jobq.jobs WHERE id = :long;
CALL test.cancel_all();
-- in other functions with options: one key for each payload
SELECT count(DISTINCT id) AS jobs, count(*) AS payloads FROM jobq.enqueue_many('echo', '{"{\"a\": 1}","{\"a\": 2}","{\"a\": 1}"}', queue => 'manual', uniqueness => '{"by": ["a"]}') id;
INSERT INTO jobq.inbox (kind, payload, queue, uniqueness) SELECT 'echo', jsonb_build_object('a', n / 2), 'manual', '{"by": ["a"]}' FROM generate_series(1, 4) n;
SELECT unique_key, payload FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL ORDER BY id;
SELECT e.code, e.message FROM test.error('SELECT jobq.enqueue_many(''echo'', ''{"{}",NULL}'', queue => ''manual'', uniqueness => ''{"by": ["a"]}'')') e;
SELECT e.code, e.message FROM test.error('SELECT jobq.enqueue_many(''echo'', ''{1,2}'', queue => ''manual'', unique_key => ''a'')') e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "uniqueness": {"by": ["a"]}}]}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.schedule('keys', '@daily', 'echo', options => '{"uniqueness": {"by": ["a"]}}')$$) e;
CALL test.cancel_all();

-- merge: the waiting job gets the merged payload; all other properties stay
SELECT jobq.enqueue('echo', '{"a": 1, "b": 1}', 'manual', priority => 5, delay => '1 hour', unique_key => 'm', headers => '{"h": 1}') AS m \gset
SELECT jobq.enqueue('echo', '{"b": 2, "c": 2}', 'first', priority => 9, unique_key => 'm', uniqueness => '{"on_conflict": "merge"}', headers => '{"h": 2}', options => '{"watch": true}') = :m AS same;
SELECT state, queue, priority, payload, headers, unique_key FROM jobq.jobs WHERE id = :m;
SELECT e.* FROM unnest('{[],1}'::text[]) p, test.error(format('SELECT jobq.enqueue(''echo'', %L, unique_key => ''m'', uniqueness => ''{"on_conflict": "merge"}'')', p)) e;
SELECT e.code, e.message ~ 'larger than' AS large FROM test.error(format('SELECT jobq.enqueue(''echo'', jsonb_build_object(''x'', repeat(''x'', (pg_size_bytes(current_setting(''jobq.max_payload''))::int - 100))), unique_key => ''m'', uniqueness => ''{"on_conflict": "merge"}'')
	FROM (SELECT jobq.edit(%s, jsonb_build_object(''y'', repeat(''y'', 200)))) e', :m)) e;
SELECT jobq.cancel(:m);
SELECT jobq.enqueue('echo', '[1]', 'manual', unique_key => 'm') AS m \gset
SELECT jobq.enqueue('echo', '[2, {"a": 1}]', unique_key => 'm', uniqueness => '{"on_conflict": "merge", "for": "1 hour"}') = :m AS same;
SELECT payload FROM jobq.jobs WHERE id = :m;
SELECT * FROM test.keys(:m);
SELECT jobq.cancel(:m);
-- the job is merged in its present queue: its role must still be allowed to enqueue there
SELECT jobq.create_queue('merging'), jobq.pause('merging'), jobq.grant_privilege('regress_jobq_alice', queue => 'merging'), jobq.grant_privilege('regress_jobq_alice', queue => 'manual');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '{"a": 1}', 'merging', unique_key => 'm') AS m \gset
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'merging');
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error('SELECT jobq.enqueue(''echo'', ''{"a": 2}'', ''manual'', unique_key => ''m'', uniqueness => ''{"on_conflict": "merge"}'')') e;
SELECT jobq.enqueue('echo', '{"a": 2}', 'manual', unique_key => 'm', uniqueness => '{"on_conflict": "reset"}') = :m AS same;
SELECT queue, payload FROM jobq.jobs WHERE id = :m;
RESET ROLE;
-- a job of another role is not merged, not even if the table of keys is manipulated
SELECT jobq.enqueue('echo', '{"b": 2}', 'merging', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') - :m AS n;
CALL test.cancel_all();
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', unique_key => 'm') AS m \gset
RESET ROLE;
UPDATE jobq_internal.unique_key SET role = current_user::regrole WHERE job_id = :m;
SELECT jobq.enqueue('echo', '{"b": 2}', 'merging', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') - :m AS n;
SELECT payload, role::text FROM jobq.jobs WHERE id = :m;
CALL test.cancel_all();
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'manual');
-- an expired job is not merged, because it will not run
BEGIN;
SELECT jobq.enqueue('echo', '{"a": 1}', 'merging', unique_key => 'm', expires_at => jobq_internal.clock() - interval '1 s') AS m \gset
SELECT jobq.enqueue('echo', '{"b": 2}', 'merging', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') - :m AS n;
ROLLBACK;
SELECT jobq.drop_queue('merging', force => true);
-- a rollback undoes a merge
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', delay => '1 hour', unique_key => 'm') AS m \gset
BEGIN;
SELECT jobq.enqueue('echo', '{"b": 1}', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') = :m AS same;
SAVEPOINT s;
SELECT jobq.enqueue('echo', '{"c": 1}', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') = :m AS same;
SELECT jobq.enqueue('echo', unique_key => 'm', uniqueness => '{"on_conflict": "reset"}') = :m AS same;
SELECT jobq.release_key('echo', 'm');
SELECT state, payload FROM jobq.jobs WHERE id = :m;
ROLLBACK TO s;
SELECT state, payload FROM jobq.jobs WHERE id = :m;
SELECT * FROM test.keys(:m);
COMMIT;
SELECT jobq.enqueue('echo', '{"d": 1}', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') = :m AS same, jobq.enqueue('echo', unique_key => 'm', uniqueness => '{"on_conflict": "reset"}') = :m AS same;
SELECT state, payload FROM jobq.jobs WHERE id = :m;
CALL test.cancel_all();
-- an SQL statement can be replaced, but not merged
SELECT jobq.enqueue_sql('SELECT 1', queue => 'manual', unique_key => 'm', delay => '1 h') AS m \gset
SELECT e.* FROM test.error('SELECT jobq.enqueue_sql(''SELECT 2'', queue => ''manual'', unique_key => ''m'', uniqueness => ''{"on_conflict": "merge"}'')') e;
SELECT jobq.enqueue_sql('SELECT 3', queue => 'manual', uniqueness => '{"by": ["sql"], "on_conflict": "replace"}') - :m AS n, jobq.enqueue_sql('SELECT 3', queue => 'manual', unique_key => 'm', uniqueness => '{"on_conflict": "replace"}') - :m AS same;
CALL test.cancel_all();
-- after a merge, a job keeps its failed attempt and still blocks its group
SELECT jobq.enqueue('broken', '{"a": 1}', 'first', unique_key => 'm', group_key => 'g', max_attempts => 2, backoff => 'fixed 1h') AS m,
	jobq.enqueue('echo', '"behind"', 'first', group_key => 'g') AS behind \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :m));
SELECT jobq.enqueue('broken', '{"b": 2}', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') = :m AS same;
SELECT state, attempt, payload, error FROM jobq.jobs WHERE id = :m;
SELECT test.until(format('(SELECT state = ''ready'' FROM jobq.status(%s))', :behind));
SELECT jobq.retry(:m);
SELECT state, attempt, error FROM test.outcome(:m);
SELECT state FROM test.outcome(:behind);
SELECT jobq.delete(:m);
-- a running job is not merged
SELECT pg_advisory_lock(31);
SELECT jobq.enqueue('gate', '31', unique_key => 'm') AS m \gset
SELECT test.in_gate(:m);
SELECT jobq.enqueue('gate', '31', 'manual', unique_key => 'm', uniqueness => '{"on_conflict": "merge"}') - :m AS n;
SELECT pg_advisory_unlock(31);
SELECT state, result FROM test.outcome(:m);
CALL test.cancel_all();
-- reset: the waiting job gets a new time; all other properties stay
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', priority => 5, delay => '1 hour', unique_key => 'r') AS r \gset
SELECT jobq.enqueue('echo', '{"a": 2}', 'first', priority => 9, delay => '2 hours', expires_at => '2100-01-01', unique_key => 'r', uniqueness => '{"on_conflict": "reset"}') = :r AS same;
SELECT state, queue, priority, payload, run_at > now() + '90 min' AS later FROM jobq.jobs WHERE id = :r;
SELECT expires_at = '2100-01-01' AS expires FROM jobq_internal.job WHERE id = :r;
SELECT jobq.enqueue('echo', unique_key => 'r', uniqueness => '{"on_conflict": "reset"}') = :r AS same;
SELECT state, queue, payload FROM jobq.jobs WHERE id = :r;
CALL test.cancel_all();

-- duplicate: whether another job held the key; with ignore, the id is null
SELECT id - :r AS n, state, duplicate FROM test.enqueued(jobq.enqueue('echo', '1', 'manual', unique_key => 'e', delay => '1 hour'));
SELECT o, state, duplicate FROM unnest('{skip,replace,merge,reset}'::text[]) o, test.enqueued(jobq.enqueue('echo', '[2]', 'manual', unique_key => 'e' || o, uniqueness => jsonb_build_object('on_conflict', o))) WHERE NOT duplicate;
SELECT o, r.state, r.duplicate, r.id = j.id AS same FROM jobq.jobs j, unnest('{skip,replace,merge,reset}'::text[]) o, test.enqueued(jobq.enqueue('echo', '[3]', 'manual', unique_key => 'e' || o, uniqueness => jsonb_build_object('on_conflict', o))) r
WHERE j.unique_key = 'e' || o AND j.finished_at IS NULL ORDER BY o;
SELECT state, duplicate FROM test.enqueued(jobq.enqueue('echo', queue => 'manual'));
SELECT jobq.enqueue('echo', unique_key => 'window', uniqueness => '{"for": "1 hour"}') AS w \gset
SELECT state FROM test.outcome(:w);
SELECT id = :w AS same, state, duplicate FROM test.enqueued(jobq.enqueue('echo', unique_key => 'window'));
SELECT jobq.enqueue('echo', unique_key => 'window', uniqueness => '{"on_conflict": "ignore"}') IS NULL AS ignored, jobq.enqueue('echo', '1', 'manual', unique_key => 'i', uniqueness => '{"on_conflict": "ignore"}') > :w AS another,
	jobq.enqueue_sql('SELECT 1', queue => 'manual', unique_key => 'i', uniqueness => '{"on_conflict": "ignore"}') > :w AS of_another_kind;
SELECT id IS NULL AS ignored FROM jobq.enqueue_many('echo', '{"{\"k\": 1}", "{\"k\": 2}", "{\"k\": 1}"}', queue => 'manual', uniqueness => '{"by": ["k"], "on_conflict": "ignore"}') id;
INSERT INTO jobq.inbox (kind, queue, unique_key, uniqueness) VALUES ('echo', 'manual', 'i', '{"on_conflict": "ignore"}') RETURNING id;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'i', uniqueness => '{"on_conflict": "ignore"}', options => '{"uuid": "00000000-0000-4000-8000-0000000000aa"}') IS NULL AS ignored;
-- a second time; the uuid then refers to no job
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'i', uniqueness => '{"on_conflict": "ignore"}', options => '{"uuid": "00000000-0000-4000-8000-0000000000aa"}') IS NULL AS ignored, (SELECT count(*) FROM jobq_internal.job_uuid WHERE uuid = '00000000-0000-4000-8000-0000000000aa') AS known;
CALL jobq.call('echo', options => '{"queue": "manual", "unique_key": "i", "uniqueness": {"on_conflict": "ignore"}}');
CALL test.cancel_all();

-- release_key(): the key is free, and the former job continues
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'x') AS x \gset
SELECT jobq.release_key('echo', 'no such'), jobq.release_key('note', 'x'), jobq.release_key('echo', 'window') AS window, jobq.release_key('echo', NULL) IS NULL AS nothing;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error('SELECT jobq.release_key(''echo'', ''x'')') e;
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.release_key('echo', 'x');
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'x') = :x AS held;
SELECT jobq.release_key('echo', 'x'), jobq.release_key('echo', 'x') AS again;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'x') - :x AS n;
SELECT jobq.cancel(:x);
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'x') - :x AS the_end_of_the_first_is_not_that_of_the_key;
SELECT count(*) FROM test.enqueued(jobq.enqueue('echo', unique_key => 'window')) WHERE duplicate;
BEGIN READ ONLY;
SELECT jobq.release_key('echo', 'x');
ROLLBACK;
CALL test.cancel_all();
TRUNCATE jobq_internal.unique_key;

-- an expired job has released its key, although its row may exist a while longer
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'expired', uniqueness => '{"for": "1 h"}', expires_at => jobq_internal.clock()) AS first,
	jobq.enqueue('echo', '1', 'manual', unique_key => 'replaced', expires_at => jobq_internal.clock()) AS replaced,
	jobq.enqueue('echo', '1', 'manual', unique_key => 'several', uniqueness => '{"max": 2}', expires_at => jobq_internal.clock()) AS one,
	jobq.enqueue('echo', '1', 'manual', unique_key => 'several', uniqueness => '{"max": 2}', expires_at => jobq_internal.clock() + interval '1 day') AS several \gset
-- the lock keeps the scheduler from expiring the jobs: a caller at this very moment would find the keys taken
BEGIN;
LOCK TABLE jobq_internal.job IN SHARE ROW EXCLUSIVE MODE;
SELECT state FROM jobq.status(:first);
SELECT id > :first AS another, state, duplicate FROM test.enqueued(jobq.enqueue('echo', '2', 'manual', unique_key => 'expired'));
SELECT code, message FROM test.error($$SELECT jobq.enqueue('echo', '3', 'manual', unique_key => 'expired', uniqueness => '{"on_conflict": "error"}')$$);
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'replaced', uniqueness => '{"on_conflict": "replace"}') > :replaced AS another;
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'several', uniqueness => '{"max": 2}') > :several AS another;
SELECT state FROM jobq.status(:replaced);
COMMIT;
-- the calls above have expired the jobs; no worker can start them any more
SELECT state, count(*) FROM jobq_internal.archive WHERE id IN (:first, :replaced, :one) GROUP BY state;
CALL test.cancel_all();
SELECT jobq.enqueue('broken', unique_key => 'letter', max_attempts => 1) AS letter \gset
SELECT state FROM jobq.wait(:letter);
SELECT jobq.enqueue('broken', queue => 'manual', unique_key => 'letter', expires_at => jobq_internal.clock()) > :letter AS another;
BEGIN;
LOCK TABLE jobq_internal.job IN SHARE ROW EXCLUSIVE MODE;
SELECT jobq.retry_many(ids => ARRAY[:letter]);
COMMIT;
SELECT state FROM jobq.wait(:letter);
SELECT jobq.delete(:letter);
CALL test.cancel_all();
