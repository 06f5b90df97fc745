-- "max" of uniqueness: several jobs may hold a unique key, at most N at a time or in a period.
CREATE FUNCTION test.some(n int, max int DEFAULT 3, "for" interval DEFAULT NULL, queue text DEFAULT 'manual', kind text DEFAULT 'echo', key text DEFAULT 'k', conflict text DEFAULT 'skip',
	OUT jobs bigint, OUT duplicates bigint) LANGUAGE sql
AS $$ SELECT count(DISTINCT r.id) FILTER (WHERE NOT r.duplicate), count(*) FILTER (WHERE r.duplicate)
	FROM generate_series(1, n) i, test.enqueued(jobq.enqueue(kind, to_jsonb(i), queue, unique_key => key, uniqueness => jsonb_build_object('for', "for", 'max', max, 'on_conflict', conflict))) r $$;
CREATE PROCEDURE test.cancel_some() LANGUAGE sql AS $$ SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE unique_key IS NOT NULL $$;
CREATE FUNCTION test.fail_some(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT jobq.reject_current('for good') $$;
SELECT jobq.register('fail_some', 'test.fail_some(jsonb)');

-- three at a time; further calls return the last of the three
SELECT * FROM test.some(5);
SELECT unique_key, payload FROM jobq.live_jobs WHERE unique_key IS NOT NULL ORDER BY id;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'k', uniqueness => '{"max": 3}') = max(id) AS same FROM jobq.live_jobs WHERE unique_key IS NOT NULL;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'k', uniqueness => '{"max": 3, "on_conflict": "error"}')$$);
-- another kind, another key, another role
SELECT * FROM test.some(4, kind => 'note');
SELECT * FROM test.some(4, key => 'other', max => 2);
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT count(DISTINCT id) AS its_own FROM generate_series(1, 5) i, jobq.enqueue('echo', to_jsonb(i), queue => 'manual', unique_key => 'k', uniqueness => '{"max": 3}') id;
RESET ROLE;
-- a finished job makes room for another: after any end, or after release_key()
SELECT jobq.cancel((SELECT id FROM jobq.live_jobs WHERE unique_key = 'k #2' AND kind = 'echo' AND role = current_user::regrole));
SELECT * FROM test.some(2);
SELECT jobq.release_key('echo', 'k #3');
SELECT * FROM test.some(2);
-- a caller with a larger "max" may add jobs, a caller with a smaller "max" may not
SELECT * FROM test.some(2, 4);
SELECT * FROM test.some(2, 2);
CALL test.cancel_some();
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT count(*) FROM jobq_internal.unique_key;

-- N jobs in a period, however soon they finish
SELECT * FROM test.some(3, 2, '1 hour', 'default');
SELECT test.until('NOT EXISTS (SELECT FROM jobq.live_jobs WHERE unique_key IS NOT NULL)');
SELECT * FROM test.some(1, 2, '1 hour', 'default');
SELECT jobq.test_clock('59 min') \g /dev/null
SELECT * FROM test.some(1, 2, '1 hour', 'default');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT * FROM test.some(3, 2, '1 hour', 'default');
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.release_key('echo', 'k'), jobq.release_key('echo', 'k #2');
-- a dead letter makes room, and takes its former key again when retried
SELECT jobq.enqueue('fail_some', unique_key => 'f', uniqueness => '{"max": 2}') AS a, jobq.enqueue('fail_some', unique_key => 'f', uniqueness => '{"max": 2}') AS b \gset
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT count(*) FROM jobq_internal.unique_key;
SELECT jobq.pause('default');
SELECT jobq.retry(:b);
SELECT key, job_id = :b AS it FROM jobq_internal.unique_key;
SELECT * FROM test.some(3, 2, kind => 'fail_some', key => 'f');
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message FROM test.error('SELECT jobq.retry(' || :a || ')') e;
CALL test.cancel_some();
DELETE FROM jobq_internal.dead_letter WHERE id = :a;
SELECT jobq.resume('default');
-- with "until" start
SELECT count(DISTINCT id) FROM generate_series(1, 4) i, jobq.enqueue('echo', to_jsonb(i), queue => 'manual', unique_key => 's', uniqueness => '{"max": 2, "until": "start"}') id;
CALL test.cancel_some();

-- in other functions with options
SELECT count(DISTINCT id) AS jobs, count(*) AS ids FROM jobq.enqueue_many('echo', '{1,2,3,4,5}', queue => 'manual', unique_key => 'm', uniqueness => '{"max": 3}') id;
SELECT count(DISTINCT id) AS jobs, count(*) AS ids FROM jobq.enqueue_many('echo', ARRAY(SELECT jsonb_build_object('c', i % 2) FROM generate_series(1, 10) i), queue => 'manual', uniqueness => '{"by": ["c"], "max": 2}') id;
SELECT unique_key FROM jobq.live_jobs WHERE unique_key LIKE '{%' ORDER BY unique_key;
INSERT INTO jobq.inbox (kind, payload, queue, unique_key, uniqueness) SELECT 'echo', '1', 'manual', 'n', '{"max": 2}' FROM generate_series(1, 3);
SELECT count(*) FROM jobq.live_jobs WHERE unique_key LIKE 'n%';
CALL test.cancel_some();
SELECT count(DISTINCT id) FROM generate_series(1, 4) i, jobq.enqueue((ARRAY['echo', 'note'])[i % 2 + 1], queue => 'manual', unique_key => 'q', uniqueness => '{"max": 3, "scope": "database"}') id;
CALL test.cancel_some();
-- the longest key, with many jobs
SELECT * FROM test.some(101, 100, key => repeat('x', 500));
SELECT jobq.cancel_many(kind => 'echo', queue => 'manual') AS cancelled;
SELECT count(*) FROM jobq_internal.unique_key;

-- bad input
SELECT e.code, e.message, e.hint FROM unnest(ARRAY['{"max": 0}', '{"max": -1}', '{"max": 101}', '{"max": 2, "on_conflict": "replace"}', '{"max": 2, "on_conflict": "merge"}', '{"max": 2, "on_conflict": "reset"}',
	'{"max": 2, "merge": "jsonb_concat"}']) WITH ORDINALITY u (o, n), test.error(format('SELECT jobq.enqueue(''echo'', unique_key => ''a'', uniqueness => %L)', o)) e ORDER BY n;
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.enqueue('echo', uniqueness => '{"max": 2}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.schedule('some', '@daily', 'echo', options => '{"uniqueness": {"max": 2}}')$$) e;
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'a', uniqueness => '{"max": 1, "on_conflict": "replace"}') AS a \gset
SELECT jobq.enqueue('note', queue => 'manual', unique_key => 'a', uniqueness => '{"max": 1, "on_conflict": "replace"}') <> :a AS other;
CALL test.cancel_some();
SELECT jobq.unregister('fail_some');
DROP FUNCTION test.some, test.fail_some;
DROP PROCEDURE test.cancel_some;
