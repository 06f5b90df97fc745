-- Groups: one at a time, in the order of enqueue, also over retries.

SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.create_queue('steps');

-- a few small groups; some jobs fail several times, and their groups wait
SELECT count(test.step('g' || g, i, more => jsonb_build_object('fails', CASE WHEN (g + i) % 4 = 0 THEN 2 ELSE 0 END)))
FROM generate_series(1, 25) i, generate_series(1, 8) g;
SELECT test.until('(SELECT steps = 200 FROM test.steps())');
SELECT * FROM test.steps();
TRUNCATE test.step;

-- groups with thousands of jobs, in one and in many transactions, mixed with small groups: most jobs are not parked
SELECT count(test.step('big' || g, i)) FROM generate_series(1, 1000) i, generate_series(1, 3) g;
SELECT count(test.step('big1', i)) FROM generate_series(1001, 3000) i;
DO $$ BEGIN FOR i IN 3001..3200 LOOP PERFORM test.step('big1', i); COMMIT; END LOOP; END $$;
SELECT count(test.step('small' || g, 1)) FROM generate_series(1, 500) g;
SELECT test.until('(SELECT steps = 5700 FROM test.steps())');
SELECT * FROM test.steps();
TRUNCATE test.step;

-- while a job of the group waits for its next attempt, the other jobs of the group wait; other groups do not
SELECT test.step('wait', 1, more => '{"fails": 1}') AS first, test.step('wait', 2) AS second, test.step('other', 1) AS other \gset
SELECT state FROM jobq.wait(:other);
SELECT state FROM jobq.wait(:second);
SELECT g, i, attempt FROM test.step ORDER BY g, n;
TRUNCATE test.step;
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1h');
SELECT test.step('wait', 1, more => '{"fails": 1}') AS first, test.step('wait', 2) AS second, test.step('other', 1) AS other \gset
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :first));
SELECT state FROM jobq.wait(:other);
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT queue, group_key, running, waits_for = :first AS waits, parked, more FROM jobq.limits WHERE type = 'group';
-- retry() runs the job at once; after a cancellation, the group continues
SELECT jobq.retry(:first);
SELECT state, attempt FROM jobq.wait_many(ARRAY[:first, :second]);
SELECT test.step('wait', 3, more => '{"fails": 1}') AS first, test.step('wait', 4) AS second \gset
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :first));
CALL test.settle();
SELECT state FROM jobq.status(:second);
SELECT jobq.cancel(:first);
SELECT state FROM jobq.wait(:second);
-- the group also continues after a dead letter
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT test.step('wait', 5, more => '{"fails": 9}') AS first, test.step('wait', 6) AS second \gset
SELECT state, attempt FROM jobq.wait_many(ARRAY[:first, :second]);
SELECT jobq.delete(:first);
-- a waiting job in the middle is cancelled
SELECT pg_advisory_lock(hashtext('middle'));
CREATE FUNCTION test.step_gate(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(hashtext('middle'));
	PERFORM test.step(payload, job);
END
$$;
SELECT jobq.register('step_gate', 'test.step_gate(jsonb, jobq.job_context)');
TRUNCATE test.step;
SELECT test.step('middle', 1, kind => 'step_gate') AS a, test.step('middle', 2) AS b, test.step('middle', 3) AS c \gset
SELECT test.until('(SELECT parked = 2 FROM jobq.limits WHERE type = ''group'')');
SELECT jobq.cancel(:b);
SELECT pg_advisory_unlock(hashtext('middle'));
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);
SELECT * FROM test.steps();
-- with group_on_failure => 'continue', the group continues without the failed job
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1h');
SELECT jobq.create_queue('on', group_on_failure => 'continue');
SELECT test.step('on', 1, 'on', '{"fails": 1}') AS first, test.step('on', 2, 'on') AS second \gset
SELECT state FROM jobq.wait(:second);
SELECT state FROM jobq.status(:first);
SELECT jobq.retry(:first);
SELECT state FROM jobq.wait(:first);
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
-- the group also stops waiting if the queue gets this policy later
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1h');
SELECT jobq.create_queue('off');
SELECT test.step('off', 1, 'off', '{"fails": 1}') AS first, test.step('off', 2, 'off') AS second \gset
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :first));
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT jobq.alter_queue('off', group_on_failure => 'continue');
SELECT state FROM jobq.wait(:second);
SELECT jobq.cancel(:first);
SELECT jobq.alter_queue('off', group_on_failure => 'wait');
SELECT test.step('off', 3, 'off', '{"fails": 1}') AS first \gset
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :first));
SELECT jobq.alter_queue('off', group_max_running => 2);
SELECT test.step('off', 4, 'off') AS second \gset
SELECT state FROM jobq.wait(:second);
SELECT jobq.cancel(:first);
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
-- a delayed job does not block the group; once due, the job runs before later jobs
SELECT jobq.enqueue('step', '{"g": "later", "i": 2}', queue => 'steps', group_key => 'later', delay => '1 hour') AS later, test.step('later', 1) AS now \gset
SELECT state FROM jobq.wait(:now);
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM jobq.wait(:later);
SELECT jobq.test_clock('0') \g /dev/null
TRUNCATE test.step;

-- the order also holds between lanes: kinds with limits of their own, roles, priorities
SELECT jobq.register('rare', 'test.step(jsonb, jobq.job_context)', max_running => 1);
SELECT pg_advisory_lock(1);
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 1);
SELECT jobq.enqueue('gate', '1', queue => 'steps') AS gate \gset
SELECT test.in_gate(:gate);
-- the kind of the group's first job is busy: the second job does not overtake
SELECT jobq.enqueue('gate', '1', queue => 'steps', group_key => 'mixed') AS first, test.step('mixed', 1) AS second \gset
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT jobq.cancel(:first);
SELECT state FROM jobq.wait(:second);
SELECT pg_advisory_unlock(1);
SELECT jobq.register('gate', 'test.gate(jsonb)');
TRUNCATE test.step;
SELECT count(test.step('mixed' || g, i, kind => CASE i % 3 WHEN 0 THEN 'rare' ELSE 'step' END)) FROM generate_series(1, 60) i, generate_series(1, 20) g;
SELECT test.until('(SELECT steps = 1200 FROM test.steps())');
SELECT * FROM test.steps();
TRUNCATE test.step;
-- with priorities, the most urgent waiting job runs first
SELECT pg_advisory_lock(hashtext('middle'));
SELECT test.step('urgent', 0, kind => 'step_gate') AS a \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :a));
SELECT test.step('urgent', 3, priority => 5), test.step('urgent', 2), test.step('urgent', 1, priority => -5) IS NULL AS null \gset
SELECT test.until('(SELECT parked = 3 FROM jobq.limits WHERE type = ''group'')');
SELECT pg_advisory_unlock(hashtext('middle'));
SELECT test.until('(SELECT count(*) = 4 FROM test.step)');
SELECT i FROM test.step ORDER BY n;
TRUNCATE test.step;

-- group_max_running: several jobs at a time
SELECT jobq.create_queue('several', group_max_running => 2);
SELECT pg_advisory_lock(1);
SELECT array_agg(jobq.enqueue('gate', '1', queue => 'several', group_key => 'g')) AS ids FROM generate_series(1, 3) \gset
SELECT test.until('(SELECT running = 2 AND parked = 1 FROM jobq.limits WHERE type = ''group'')');
SELECT jobq.alter_queue('several', group_max_running => 3);
SELECT test.until('(SELECT running = 3 FROM jobq.limits WHERE type = ''group'')');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);

-- pause and resume; cancel
SELECT jobq.pause('steps');
SELECT count(test.step('p' || g, i)) FROM generate_series(1, 100) i, generate_series(1, 3) g;
SELECT jobq.resume('steps');
SELECT test.until('(SELECT steps > 20 FROM test.steps())');
SELECT jobq.pause('steps');
SELECT count(test.step('p' || g, i)) FROM generate_series(101, 200) i, generate_series(1, 3) g;
SELECT jobq.resume('steps');
SELECT test.until('(SELECT steps = 600 FROM test.steps())');
SELECT * FROM test.steps();
TRUNCATE test.step;

-- consumers: a call reserves only one job of a group
SELECT jobq.create_queue('held', mode => 'consumer');
SELECT count(test.step('c' || g, i, 'held')) FROM generate_series(1, 3) i, generate_series(1, 2) g;
CREATE FUNCTION test.take(n int, wait interval DEFAULT '0') RETURNS TABLE (payload jsonb, id bigint, token bigint) LANGUAGE sql AS $$
	SELECT payload, id, token FROM jobq.reserve('{held}', n, '1 min', wait) ORDER BY payload ->> 'g', payload ->> 'i' $$;
CREATE TEMP TABLE held AS SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
SELECT payload FROM test.take(10);
SELECT jobq.ack(id, token) FROM held WHERE payload @> '{"g": "c1"}';
SELECT jobq.nack(id, token, delay => '1 hour') FROM held WHERE payload @> '{"g": "c2"}';
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
-- a released job is still the first
SELECT jobq.release(id, token) FROM held;
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
BEGIN;
SELECT jobq.ack(id, token) FROM held;
SELECT payload FROM test.take(10);
ROLLBACK;
SELECT payload FROM test.take(10);
SELECT jobq.ack(id, token) FROM held;
-- a rolled back reservation
BEGIN;
SELECT payload FROM test.take(10, '5 min');
ROLLBACK;
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
SELECT jobq.reject(id, token, 'no') FROM held;
-- the lease of a group's job expires
SELECT jobq.test_clock('61 min') \g /dev/null
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
SELECT jobq.test_clock('65 min') \g /dev/null
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.lease_slots())');
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
SELECT jobq.cancel_many(queue => 'held', state => 'waiting');
SELECT jobq.ack(id, token) FROM held;
SELECT jobq.test_clock('0') \g /dev/null
-- the group does not wait for a job that a consumer has enqueued and rolled back
SELECT jobq.enqueue('outside', '"b"', queue => 'held', group_key => 'own', priority => 2) IS NULL;
CALL test.settle();
BEGIN;
SAVEPOINT s1;
SELECT jobq.enqueue('outside', '"a"', queue => 'held', group_key => 'own', priority => 1) IS NULL;
SELECT payload FROM test.take(10);
ROLLBACK TO s1;
SELECT payload FROM test.take(10);
ROLLBACK;
BEGIN;
SELECT jobq.enqueue('outside', '"a"', queue => 'held', group_key => 'own', priority => 1) IS NULL;
SELECT payload FROM test.take(10);
ROLLBACK;
BEGIN;
SELECT payload FROM test.take(10);
ROLLBACK;
-- but the group waits for a committed job
BEGIN;
SELECT jobq.enqueue('outside', '"a"', queue => 'held', group_key => 'own', priority => 1) IS NULL;
SELECT payload FROM test.take(10);
COMMIT;
TRUNCATE held;
INSERT INTO held SELECT * FROM test.take(10, '5 min');
SELECT payload FROM held;
SELECT jobq.cancel_many(queue => 'held', state => 'waiting');
SELECT jobq.ack(id, token) FROM held;

-- a prepared transaction cancels the first job of the group, or moves this job to another queue
SELECT jobq.create_queue('left', mode => 'consumer');
CALL test.settle();
SELECT jobq.enqueue('any', '1', queue => 'held', group_key => 'p') AS first, jobq.enqueue('any', '2', queue => 'held', group_key => 'p') AS second,
	jobq.enqueue('any', '3', queue => 'held', group_key => 'p') AS third \gset
SELECT id = :first AS first, jobq.nack(id, token, 'later', '10 hours') FROM jobq.reserve('{held}', wait => '5 min');
SELECT count(*) FROM jobq.reserve('{held}');
BEGIN;
SELECT jobq.cancel(:first);
PREPARE TRANSACTION 'jobq_group';
COMMIT PREPARED 'jobq_group';
SELECT id = :second AS second, jobq.nack(id, token, 'later', '10 hours') FROM jobq.reserve('{held}', wait => '5 min');
SELECT count(*) FROM jobq.reserve('{held}');
BEGIN;
SELECT jobq.edit(:second, queue => 'left');
PREPARE TRANSACTION 'jobq_group';
COMMIT PREPARED 'jobq_group';
SELECT id = :third AS third, jobq.ack(id, token) FROM jobq.reserve('{held}', wait => '5 min');
SELECT jobq.cancel(:second), jobq.drop_queue('left', force => true);

-- nothing is left
SELECT jobq.delete_many(state => 'dead') > 0;
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
SELECT queue, kind, running FROM jobq.limits WHERE running <> 0;
