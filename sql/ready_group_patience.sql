-- Groups with group_on_failure 'wait' and a time: after this time, a stuck job no longer blocks its group, but keeps its queue position.

SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 10h');
-- Waits until a job has failed the given number of times, so that its group waits.
CREATE FUNCTION test.failed(job bigint, attempts int DEFAULT 1) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT attempt = %s AND state = ''retryable'' FROM jobq.status(%s))', attempts, job));
END
$$;
-- Returns the order in which the steps of a group have run.
CREATE FUNCTION test.order_of(g text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(i::text, ' ' ORDER BY n) FROM test.step s WHERE s.g = order_of.g
$$;
SELECT jobq.create_queue('patient', group_on_failure => 'wait 1 hour'), jobq.create_queue('endless');
SELECT name, group_on_failure FROM jobq.queues WHERE name IN ('patient', 'endless') ORDER BY name;
SELECT (test.error(format('SELECT jobq.alter_queue(''patient'', group_on_failure => %L)', 'wait ' || p))).* FROM unnest('{-1 hour,1000 years,soon}'::text[]) p;

-- the other jobs wait until the time is over, and then run in order
SELECT test.step('a', 1, 'patient', '{"fails": 2}') AS first, test.step('a', 2, 'patient') AS second, test.step('a', 3, 'patient') AS third \gset
SELECT test.failed(:first);
SELECT test.until('(SELECT parked = 2 AND waits_for IS NOT NULL FROM jobq.limits WHERE type = ''group'' AND group_key = ''a'')');
SELECT g.waits_for = :first AS waits, g.waits_until = j.group_held + '1 hour' AS until FROM jobq.limits g, jobq_internal.job j WHERE g.type = 'group' AND j.id = :first;
SELECT reason, regexp_replace(replace(detail, 'job ' || :'first', 'job first'), '\w{3} \w{3} \d\d [0-9:]+ \d{4} \w+', 'T', 'g') AS detail FROM jobq.explain(:second);
SELECT jobq.test_clock('50 min') \g /dev/null
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second, :third]);
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM jobq.wait_many(ARRAY[:second, :third]);
-- the stuck job is unchanged, and no job waits for it any more
SELECT state, attempt FROM jobq.status(:first);
SELECT test.step('a', 4, 'patient') AS fourth \gset
SELECT state FROM jobq.wait(:fourth);
SELECT test.until('(SELECT count(*) = 0 FROM jobq.limits WHERE type = ''group'')');
-- the job runs when due; another failure does not block the group a second time
SELECT jobq.test_clock('10 hours 2 min') \g /dev/null
SELECT test.failed(:first, 2);
SELECT test.step('a', 5, 'patient') AS fifth \gset
SELECT state FROM jobq.wait(:fifth);
SELECT test.until('(SELECT count(*) = 0 FROM jobq.limits WHERE type = ''group'')');
SELECT jobq.retry(:first);
SELECT state, attempt FROM jobq.wait(:first);
SELECT test.order_of('a');
SELECT jobq.test_clock('0') \g /dev/null

-- each stuck job stops blocking the group; when due, these jobs run in the order of their start times
SELECT count(test.step('b', i, 'patient', '{"fails": 1}')) FROM generate_series(1, 4) i;
SELECT test.step('b', 5, 'patient') AS last \gset
DO $$
BEGIN
	FOR i IN 1..4 LOOP
		PERFORM test.until(format('(SELECT count(*) = %s FROM jobq.live_jobs WHERE group_key = ''b'' AND state = ''retryable'')', i));
		COMMIT;
		PERFORM jobq.test_clock(i * interval '61 min');
	END LOOP;
END $$;
SELECT state FROM jobq.wait(:last);
SELECT jobq.test_clock('20 hours') \g /dev/null
SELECT test.until('(SELECT count(*) = 5 FROM test.step WHERE g = ''b'')');
SELECT test.order_of('b');
SELECT jobq.test_clock('0') \g /dev/null
CALL test.settle();

-- a running job is not overtaken, however long the group has waited; if the job fails then, the group continues
CREATE FUNCTION test.stuck(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF job.attempt = 2 THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
	IF job.attempt <= (payload ->> 'fails')::int THEN
		RAISE EXCEPTION 'attempt %', job.attempt;
	END IF;
	INSERT INTO test.step (g, i) VALUES (payload ->> 'g', (payload ->> 'i')::int);
END
$$;
SELECT jobq.register('gate', 'test.stuck(jsonb, jobq.job_context)', backoff => 'fixed 10h');
SELECT test.step('c', 1, 'patient', '{"fails": 1}', kind => 'gate') AS first, test.step('c', 2, 'patient') AS second,
	test.step('d', 1, 'patient', '{"fails": 2}', kind => 'gate') AS third, test.step('d', 2, 'patient') AS fourth \gset
SELECT test.failed(:first), test.failed(:third);
SELECT pg_advisory_lock(1);
SELECT jobq.retry(:first), jobq.retry(:third);
SELECT test.until('(SELECT count(*) = 2 FROM jobq.limits WHERE type = ''group'' AND running = 1 AND parked = 1)');
SELECT test.in_gate(:first, :third);
SELECT jobq.test_clock('2 hours') \g /dev/null
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second, :third, :fourth]);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:first, :second, :fourth]);
SELECT state, attempt FROM jobq.status(:third);
SELECT test.order_of('c'), test.order_of('d');
SELECT jobq.cancel(:third);
SELECT jobq.test_clock('0') \g /dev/null

-- retry() does not restart the waiting time, nor does a new run_at or priority
SELECT test.step('e', 1, 'patient', '{"fails": 2}') AS first, test.step('e', 2, 'patient') AS second \gset
SELECT test.failed(:first);
SELECT jobq.test_clock('40 min') \g /dev/null
SELECT jobq.retry(:first);
SELECT test.failed(:first, 2);
SELECT jobq.edit(:first, run_at => jobq_internal.clock() + '3 days');
SELECT jobq.edit(:first, priority => 5);
CALL test.settle();
SELECT state FROM jobq.status(:second);
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM jobq.wait(:second);
SELECT jobq.cancel(:first);
SELECT jobq.test_clock('0') \g /dev/null

-- a new or shorter time also applies to waiting groups, from the start of their wait
SELECT test.step('f', 1, 'endless', '{"fails": 1}') AS first, test.step('f', 2, 'endless') AS second \gset
SELECT test.failed(:first);
SELECT jobq.test_clock('2 hours') \g /dev/null
CALL test.settle();
SELECT state FROM jobq.status(:second);
SELECT jobq.alter_queue('endless', group_on_failure => 'wait 5 hours');
SELECT test.until('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_until > jobq_internal.clock())');
CALL test.settle();
SELECT state FROM jobq.status(:second);
SELECT jobq.alter_queue('endless', group_on_failure => 'wait 1 hour');
SELECT state FROM jobq.wait(:second);
-- with a longer time, or none, the group waits again for a job that had timed out
SELECT jobq.alter_queue('endless', group_on_failure => 'wait');
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_for = %s AND waits_until IS NULL)', :first));
SELECT test.step('f', 3, 'endless') AS third \gset
CALL test.settle();
SELECT state FROM jobq.status(:third);
SELECT jobq.alter_queue('endless', group_on_failure => 'wait 3 hours');
CALL test.settle();
SELECT state FROM jobq.status(:third);
SELECT jobq.test_clock('181 min') \g /dev/null
SELECT state FROM jobq.wait(:third);
-- the same if the clock is set back
SELECT jobq.test_clock('1 hour') \g /dev/null
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_for = %s)', :first));
SELECT jobq.cancel(:first);
SELECT jobq.alter_queue('endless', group_on_failure => 'wait');
SELECT jobq.test_clock('0') \g /dev/null

-- jobq.work() uses the time of the queue
SELECT test.step('g', 1, 'manual', '{"fails": 1}') AS first, test.step('g', 2, 'manual') AS second \gset
SELECT jobq.alter_queue('manual', group_on_failure => 'wait 1 hour');
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt FROM test.states(ARRAY[:first, :second]);
SELECT jobq.test_clock('61 min') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt FROM test.states(ARRAY[:first, :second]);
SELECT test.step('g', 3, 'manual') AS third \gset
SELECT jobq.test_clock('11 hours') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT test.order_of('g');
SELECT jobq.alter_queue('manual', group_on_failure => 'wait');
SELECT jobq.test_clock('0') \g /dev/null

-- consumers: a waiting consumer receives the next job; a reserved job is not overtaken
SELECT jobq.create_queue('stuck', mode => 'consumer', lease => 'memory', group_on_failure => 'wait 1 hour');
SELECT test.step('h', 1, 'stuck') AS first, test.step('h', 2, 'stuck') AS second, test.step('h', 3, 'stuck') AS third \gset
SELECT id = :first AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS first;
SELECT jobq.nack(:first, :token, delay => '10 hours');
SELECT count(*) FROM jobq.reserve('{stuck}', 5);
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT id = :second AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS second;
SELECT jobq.test_clock('10 hours 1 min') \g /dev/null
CALL test.settle();
SELECT count(*) FROM jobq.reserve('{stuck}', 5);
SELECT jobq.ack(:second, :token);
SELECT id = :third AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS third;
SELECT jobq.ack(:third, :token);
SELECT id = :first AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS first;
-- a released job keeps its queue position, but no longer blocks the group
SELECT jobq.release(:first, :token);
SELECT test.step('h', 4, 'stuck', priority => -5) AS fourth \gset
SELECT id = :fourth AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS fourth;
SELECT jobq.ack(:fourth, :token);
SELECT id = :first AS expected, token FROM jobq.reserve('{stuck}', 5, '1 day', '1 min') \gset
SELECT :'expected' AS first;
SELECT jobq.ack(:first, :token);
SELECT jobq.test_clock('0') \g /dev/null

-- in a group of the whole database, each job uses the time of its queue
SELECT jobq.create_queue('shared1', group_scope => 'database', group_on_failure => 'wait 1 hour'), jobq.create_queue('shared2', group_scope => 'database');
SELECT test.step('i', 1, 'shared1', '{"fails": 1}') AS first, test.step('i', 2, 'shared2', '{"fails": 1}') AS second, test.step('i', 3, 'shared1') AS third \gset
SELECT test.failed(:first);
SELECT test.until('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND parked = 2 AND waits_for IS NOT NULL)');
SELECT g.queue, g.group_key, g.waits_for = :first AS waits, g.waits_until = j.group_held + '1 hour' AS until FROM jobq.limits g, jobq_internal.job j WHERE g.type = 'group' AND j.id = :first;
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT test.failed(:second);
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_for = %s)', :second));
SELECT waits_for = :second AS waits, waits_until FROM jobq.limits WHERE type = 'group';
SELECT jobq.test_clock('5 hours') \g /dev/null
CALL test.settle();
SELECT state FROM jobq.status(:third);
SELECT regexp_replace(replace(detail, 'job ' || :'second', 'job second'), '\w{3} \w{3} \d\d [0-9:]+ \d{4} \w+', 'T', 'g') AS detail FROM jobq.explain(:third);
SELECT jobq.alter_queue('shared2', group_on_failure => 'wait 2 hours');
SELECT state FROM jobq.wait(:third);
SELECT jobq.test_clock('12 hours') \g /dev/null
SELECT state FROM jobq.wait_many(ARRAY[:first, :second]);
SELECT test.order_of('i');
SELECT jobq.test_clock('0') \g /dev/null

-- nothing is left
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
SELECT jobq.drop_queue(q) FROM unnest('{patient,endless,stuck,shared1,shared2}'::text[]) q;
SELECT jobq.register('step', 'test.step(jsonb, jobq.job_context)', backoff => 'fixed 1ms'), jobq.register('gate', 'test.gate(jsonb)');
DROP FUNCTION test.stuck(jsonb, jobq.job_context);
TRUNCATE test.step;
