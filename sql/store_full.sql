-- on_full: the effect of a new job on a full queue.
SET ROLE regress_jobq_alice;

-- Returns the waiting jobs of a queue; their names are in their headers.
CREATE FUNCTION pg_temp.waiting(queue text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(headers ->> 'name', ' ' ORDER BY id) FROM jobq.jobs j WHERE j.queue = waiting.queue AND finished_at IS NULL
$$;
CREATE FUNCTION pg_temp.add(queue text, name text, priority int DEFAULT 0, delay interval DEFAULT NULL, role text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('echo', queue => queue, headers => jsonb_build_object('name', name, 'tenant', role), priority => priority, delay => delay)
$$;
RESET ROLE;
SELECT jobq.create_queue('ring', max_length => 3, on_full => 'drop oldest', open => true), jobq.pause('ring');
SELECT jobq.grant_privilege('regress_jobq_alice', 'produce'), jobq.grant_privilege('regress_jobq_bob', 'produce'), jobq.grant_privilege('regress_jobq_alice', 'consume');
SELECT jobq.create_queue('full', on_full => 'never');
SET ROLE regress_jobq_alice;

-- the oldest job is dropped, and its history states the reason
SELECT pg_temp.add('ring', 'a') AS a \gset
SELECT count(pg_temp.add('ring', name)) FROM unnest('{b,c,d}'::text[]) name;
SELECT pg_temp.waiting('ring');
SELECT state, error FROM jobq.status(:a);
SELECT event, detail FROM jobq.history(:a) WHERE event <> 'enqueued';

-- many jobs at once make room for all of them, or for none
SELECT count(*) FROM jobq.enqueue_many('echo', '{1,2}', queue => 'ring', headers => '{"name": "e"}');
SELECT pg_temp.waiting('ring');
SELECT count(*) FROM jobq.enqueue_many('echo', '{1,2,3,4}', queue => 'ring');
SELECT pg_temp.waiting('ring');

-- a rollback also undoes the drop
BEGIN;
SELECT count(pg_temp.add('ring', name)) FROM unnest('{f,g,h,i,j}'::text[]) name;
SELECT pg_temp.waiting('ring');
ROLLBACK;
SELECT pg_temp.waiting('ring');
SELECT count(pg_temp.add('ring', name)) FROM unnest('{k,l}'::text[]) name;
SELECT pg_temp.waiting('ring');

-- and the next job drops the oldest again
BEGIN;
SELECT pg_temp.add('ring', 'undone') > 0 AS undone;
SAVEPOINT s;
SELECT pg_temp.add('ring', 'undone, too') > 0 AS undone;
ROLLBACK TO s;
ROLLBACK;
SELECT pg_temp.add('ring', 'x') > 0 AS x;
SELECT pg_temp.waiting('ring');
BEGIN;
SAVEPOINT s;
SELECT pg_temp.add('ring', 'undone') > 0 AS undone;
ROLLBACK TO s;
SELECT pg_temp.add('ring', 'y') > 0 AS y;
COMMIT;
SELECT pg_temp.waiting('ring');
BEGIN;
SELECT pg_temp.add('ring', 'undone') > 0 AS undone;
PREPARE TRANSACTION 'store_full';
ROLLBACK PREPARED 'store_full';
SELECT pg_temp.add('ring', 'z') > 0 AS z;
SELECT pg_temp.waiting('ring');

-- also a rollback to a savepoint
BEGIN;
SELECT pg_temp.add('ring', 'm') > 0 AS m;
SAVEPOINT s;
SELECT count(pg_temp.add('ring', name)) FROM unnest('{n,o,p}'::text[]) name;
ROLLBACK TO s;
SELECT pg_temp.waiting('ring');
COMMIT;
SELECT pg_temp.add('ring', 'q') > 0 AS q;
SELECT pg_temp.waiting('ring');

-- without waiting jobs of the same priority, less urgent jobs are dropped; jobs of the same role before other roles
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting');
SELECT count(pg_temp.add('ring', name, priority)) FROM (VALUES ('urgent', -1), ('less', 5), ('least', 9)) v (name, priority);
SELECT pg_temp.add('ring', 'plain') > 0 AS plain;
SELECT pg_temp.waiting('ring');
SET ROLE regress_jobq_bob;
SELECT jobq.enqueue('echo', queue => 'ring', headers => '{"name": "bob"}', priority => 100) > 0 AS of_bob;
SELECT jobq.enqueue('echo', queue => 'ring', headers => '{"name": "bob again"}', priority => -7) > 0 AS of_bob;
RESET ROLE;
SELECT pg_temp.waiting('ring');
SET ROLE regress_jobq_alice;
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting');

-- only waiting jobs are dropped; reserved jobs stay
RESET ROLE;
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting'), jobq.alter_queue('ring', mode => 'consumer'), jobq.resume('ring');
SET ROLE regress_jobq_alice;
SELECT count(pg_temp.add('ring', name)) FROM unnest('{r,s,t}'::text[]) name;
SELECT headers ->> 'name' AS held FROM jobq.reserve('{ring}', wait => '5 min');
SELECT headers ->> 'name' AS held FROM jobq.reserve('{ring}', wait => '5 min');
SELECT count(pg_temp.add('ring', name)) FROM unnest('{u,v}'::text[]) name;
SELECT headers ->> 'name' AS held FROM jobq.reserve('{ring}', wait => '5 min');
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
SELECT pg_temp.waiting('ring');
SELECT count(*) FROM jobq.jobs j, jobq.status(j.id) s WHERE j.queue = 'ring' AND s.error = 'dropped, as its queue was full';
SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE queue = 'ring' AND finished_at IS NULL;
RESET ROLE;
SELECT jobq.alter_queue('ring', mode => 'worker');

-- blocked jobs of a batch are not dropped, nor are jobs of a tenant while another tenant has more
SELECT jobq.alter_queue('ring', tenant => 'header tenant', fair => 'jobs'), jobq.pause('ring');
SET ROLE regress_jobq_alice;
SELECT count(pg_temp.add('ring', name, role => tenant)) FROM (VALUES ('x1', 'x'), ('y1', 'y'), ('y2', 'y')) v (name, tenant);
SELECT pg_temp.add('ring', 'y3', role => 'y') > 0 AS of_y;
SELECT pg_temp.waiting('ring');
SELECT pg_temp.add('ring', 'x2', role => 'x') > 0 AS of_x;
SELECT pg_temp.add('ring', 'z1', role => 'z') > 0 AS of_z;
SELECT pg_temp.waiting('ring');
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting');
SELECT b.batch_id IS NOT NULL AS chained FROM test.chain('[{"kind": "echo", "queue": "ring"}, {"kind": "echo", "queue": "ring"}, {"kind": "echo", "queue": "ring"}]') AS b (batch_id);
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'ring' AND finished_at IS NULL GROUP BY state ORDER BY state;
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting');
RESET ROLE;
SELECT jobq.alter_queue('ring', tenant => 'none', fair => 'off');

-- on_full => 'wait': hopeless calls are refused at once, other calls after a timeout.
SELECT jobq.alter_queue('ring', on_full => 'wait');
SET ROLE regress_jobq_alice;
BEGIN;
SELECT count(pg_temp.add('ring', name)) FROM unnest('{a,b,c}'::text[]) name;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
SELECT * FROM test.error($$SELECT count(*) FROM jobq.enqueue_many('echo', '{1,2,3,4}', queue => 'ring')$$);
COMMIT;
SET jobq.enqueue_timeout = '10ms';
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
SET jobq.enqueue_timeout = 0;
SET lock_timeout = '10ms';
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
RESET lock_timeout;
RESET jobq.enqueue_timeout;

-- jobs removed by this transaction make room for new jobs
BEGIN;
SELECT jobq.cancel(min(id)) FROM jobq.jobs WHERE queue = 'ring' AND finished_at IS NULL;
SELECT pg_temp.add('ring', 'd') > 0 AS d;
SELECT pg_temp.waiting('ring');
COMMIT;
SELECT pg_temp.waiting('ring');

-- the job that makes room holds the key of the new job: an expired job, or a dropped job that had begun
RESET ROLE;
SELECT jobq.create_queue('small', max_length => 1, on_full => 'drop oldest'), jobq.pause('small');
SELECT jobq.enqueue('echo', '{"a": 1}', queue => 'small', unique_key => 'x', uniqueness => '{"on_conflict": "merge"}', expires_at => jobq_internal.clock()) AS first \gset
-- the lock keeps the scheduler from expiring the job
BEGIN;
LOCK TABLE jobq_internal.job IN SHARE ROW EXCLUSIVE MODE;
SELECT jobq.enqueue('echo', '{"b": 1}', queue => 'small', unique_key => 'x', uniqueness => '{"on_conflict": "merge"}') AS second \gset
COMMIT;
SELECT state, error FROM jobq.status(:first);
SELECT id = :second AS second, payload FROM jobq.live_jobs WHERE queue = 'small';
SELECT jobq.enqueue('echo', '{"c": 1}', queue => 'small', unique_key => 'x', uniqueness => '{"on_conflict": "merge"}') = :second AS merged;
SELECT id = :second AS second, payload FROM jobq.live_jobs WHERE queue = 'small';
SELECT jobq.cancel_many(queue => 'small', state => 'waiting'), jobq.resume('small');
SELECT jobq.enqueue('broken', queue => 'small', backoff => 'fixed 1 day', unique_key => 'x', uniqueness => '{"until": "start", "for": "1 hour"}') AS first \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :first));
SELECT jobq.pause('small'), jobq.test_clock('2 hours') \g /dev/null
SELECT jobq.enqueue('broken', queue => 'small', unique_key => 'x') > :first AS another;
SELECT state, error FROM jobq.status(:first);
SELECT * FROM test.error($$SELECT jobq.enqueue('broken', queue => 'small', unique_key => 'x', uniqueness => '{"on_conflict": "error"}')$$);
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.cancel_many(queue => 'small', state => 'waiting');
SELECT jobq.drop_queue('small', force => true);

-- a handler does not wait for the room of its own job
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting'), jobq.resume('ring'), jobq.alter_queue('ring', max_length => 1);
CREATE FUNCTION test.full_next(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RETURN to_jsonb(jobq.enqueue('echo', queue => coalesce(payload ->> 'queue', 'ring'), delay => '1 day') > 0);
EXCEPTION WHEN OTHERS THEN
	RETURN to_jsonb(SQLSTATE);
END $$;
SELECT jobq.register('full_next', 'test.full_next(jsonb)');
SELECT jobq.enqueue('full_next', queue => 'ring') AS next \gset
SELECT state, result FROM jobq.wait(:next);
SELECT jobq.alter_queue('ring', max_length => 2);
SELECT jobq.enqueue('full_next', queue => 'ring') AS next \gset
SELECT state, result FROM jobq.wait(:next);

-- also if the handler is the first to need the length of the queue
SELECT jobq.create_queue('small', max_length => 2), jobq.pause('small');
SELECT jobq.enqueue('full_next', '{"queue": "small"}', queue => 'small') AS next \gset
SELECT jobq.adopt() AS adopted;
SELECT jobq.resume('small');
SELECT state, result FROM jobq.wait(:next);
SELECT * FROM test.error($$SELECT jobq.enqueue_many('echo', '{1,2}', queue => 'small')$$);
SELECT count(*) FROM jobq.enqueue_many('echo', '{1}', queue => 'small', delay => '1 day');
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'small')$$);
SELECT jobq.cancel_many(queue => 'small', state => 'waiting');
SELECT jobq.drop_queue('small', force => true);

-- the effects of a subtransaction pass to its parent on release, and are undone with the parent
SELECT jobq.cancel_many(queue => 'ring', state => 'waiting'), jobq.pause('ring'), jobq.alter_queue('ring', max_length => 3, on_full => 'error');
BEGIN;
SELECT pg_temp.add('ring', 'a') AS a \gset
SAVEPOINT outside;
SELECT pg_temp.add('ring', 'b') AS b \gset
SAVEPOINT inside;
SELECT pg_temp.add('ring', 'c') > 0 AS c;
SELECT jobq.cancel(:a);
RELEASE inside;
SELECT pg_temp.add('ring', 'd') > 0 AS d;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
SELECT jobq.cancel(:b);
SELECT pg_temp.add('ring', 'e') > 0 AS e;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
ROLLBACK TO outside;
SELECT pg_temp.waiting('ring');
SELECT count(pg_temp.add('ring', name)) FROM unnest('{f,g}'::text[]) name;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
RELEASE outside;
SAVEPOINT last;
SELECT jobq.cancel(:a);
RELEASE last;
COMMIT;
SELECT pg_temp.waiting('ring');
SELECT pg_temp.add('ring', 'h') > 0 AS h;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
BEGIN;
SAVEPOINT s;
SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE queue = 'ring' AND finished_at IS NULL;
SELECT pg_temp.add('ring', 'i') > 0 AS i;
RELEASE s;
ROLLBACK;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'ring')$$);
SELECT jobq.alter_queue('ring', on_full => 'drop oldest');
BEGIN;
SAVEPOINT s;
SELECT count(pg_temp.add('ring', name)) FROM unnest('{j,k}'::text[]) name;
RELEASE s;
SELECT pg_temp.waiting('ring');
ROLLBACK;
SELECT pg_temp.add('ring', 'l') > 0 AS l;
SELECT pg_temp.waiting('ring');

-- a large transaction leaves no memory allocated, whether it alternates between queues or has many subtransactions
SELECT count(jobq.create_queue('turn' || i, max_length => CASE WHEN i = 1 THEN 100000 END)) FROM generate_series(1, 20) i;
SELECT jobq.enqueue('echo', queue => 'turn1', delay => '1 day') > 0 AS counted;
SELECT total_bytes AS before FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext' \gset
INSERT INTO jobq.inbox (kind, queue, delay) SELECT 'echo', 'turn' || i % 20 + 1, '1 day' FROM generate_series(1, 10000) i;
DO $$
BEGIN
	FOR i IN 1 .. 10000 LOOP
		BEGIN
			PERFORM jobq.enqueue('echo', queue => 'turn1', delay => '1 day');
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT total_bytes < :before + 500000 AS given_back FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
SELECT jobq.alter_queue('turn1', max_length => 10501);
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', queue => 'turn1')$$);
SELECT count(jobq.cancel_many(queue => 'turn' || i, state => 'waiting')), count(jobq.drop_queue('turn' || i, force => true)) FROM generate_series(1, 20) i;

SELECT jobq.cancel_many(queue => 'ring', state => 'waiting'), jobq.unregister('full_next');
DROP FUNCTION test.full_next(jsonb);
SELECT jobq.drop_queue('ring', force => true);
SELECT jobq.revoke_privilege('regress_jobq_alice', 'produce'), jobq.revoke_privilege('regress_jobq_bob', 'produce'), jobq.revoke_privilege('regress_jobq_alice', 'consume');
