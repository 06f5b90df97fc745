-- jobq.work() takes the same permits as workers and consumers.

CREATE FUNCTION test.holds(what text) RETURNS TABLE (running int, tokens float8) LANGUAGE sql
AS $$ SELECT running, floor(tokens) FROM jobq.limits WHERE coalesce(queue, kind) = what $$;

-- a worker holds the only permit of the queue
SELECT jobq.create_queue('one', max_running => 1);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'one') AS gate \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :gate));
SELECT jobq.enqueue('note', '"after"', queue => 'one') AS after \gset
SELECT jobq.enqueue('note', '"not limited"', queue => 'manual') AS other \gset
CALL jobq.work('{one,manual}', stop_when_empty => true);
SELECT note FROM test.trace;
SELECT state, attempt FROM jobq.status(:after);
SELECT * FROM test.holds('one');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:gate, :after]);
-- jobq.work() returns its permit after each job
SELECT jobq.alter_queue('manual', max_running => 1);
SELECT test.until('(SELECT count(*) = 1 FROM test.holds(''manual''))');
SELECT count(jobq.enqueue('note', to_jsonb(i), queue => 'manual')) FROM generate_series(1, 70) i;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT count(*) FROM test.trace;
SELECT * FROM test.holds('manual');
-- within one transaction, the permit is held until the end
SELECT count(jobq.enqueue('note', to_jsonb(i), queue => 'manual')) FROM generate_series(1, 2) i;
BEGIN;
SELECT jobq_internal.run_next('{manual}') IS NOT NULL AS first, jobq_internal.run_next('{manual}') IS NOT NULL AS second;
SELECT * FROM test.holds('manual');
ROLLBACK;
SELECT * FROM test.holds('manual');
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT count(*) FROM test.trace;
SELECT jobq.alter_queue('manual', max_running => 0);
TRUNCATE test.trace;

-- the limit of a kind; many waiting jobs do not hide a job without a limit
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 1), jobq.register('gate too', 'test.gate(jsonb)', max_running => 1);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1') AS gate, jobq.enqueue('gate too', '1') AS gate_too \gset
SELECT test.until(format('(SELECT bool_and(state = ''running'') FROM unnest(ARRAY[%s, %s]) id, jobq.status(id))', :gate, :gate_too));
SELECT count(jobq.enqueue('gate', '1', queue => 'manual')) FROM generate_series(1, 100);
SELECT count(jobq.enqueue('gate too', '1', queue => 'manual')) FROM generate_series(1, 100);
SELECT jobq.enqueue('note', '"passes by"', queue => 'manual', priority => 1) AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace;
SELECT kind, state, count(*) FROM jobq.jobs WHERE kind IN ('gate', 'gate too') AND finished_at IS NULL GROUP BY kind, state ORDER BY kind, state;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:gate, :gate_too]);
SELECT test.until('(SELECT sum(h.running) = 0 FROM unnest(''{gate,gate too}''::text[]) k, test.holds(k) h)');
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT count(*) FROM jobq.jobs WHERE kind IN ('gate', 'gate too') AND finished_at IS NULL;
SELECT * FROM test.holds('gate');
SELECT jobq.register('gate', 'test.gate(jsonb)'), jobq.unregister('gate too');
TRUNCATE test.trace;

-- a new limit
BEGIN;
SELECT jobq.create_queue('fresh', max_running => 1);
SELECT jobq.pause('fresh');
SELECT jobq.enqueue('note', '"fresh"', queue => 'fresh') AS id \gset
COMMIT;
SELECT test.until('(SELECT count(*) = 1 FROM test.holds(''fresh''))');
SELECT jobq.resume('fresh');
CALL jobq.work('{fresh}', stop_when_empty => true);
SELECT state FROM jobq.wait(:id);
-- a worker may have run the job; the worker returns its permit a moment later
SELECT test.until('(SELECT running = 0 AND tokens IS NULL FROM test.holds(''fresh''))');
TRUNCATE test.trace;

-- a rate: each attempt takes a token
SELECT jobq.alter_queue('manual', rate => '2 per hour burst 3');
SELECT test.until('(SELECT tokens = 3 FROM test.holds(''manual''))');
SELECT jobq.enqueue('broken', queue => 'manual', max_attempts => 1) AS broken \gset
SELECT count(jobq.enqueue('note', to_jsonb(i), queue => 'manual')) FROM generate_series(1, 3) i;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:broken);
SELECT note FROM test.trace ORDER BY n;
SELECT * FROM test.holds('manual');
SELECT jobq.test_clock('31 min') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace ORDER BY n;
-- after failures, the throttle pauses the queue
SELECT jobq.alter_queue('manual', rate => 'none', throttle => '2 failures in 10 minutes');
SELECT test.until('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''queue'' AND queue = ''manual'' AND tokens IS NULL)');
SELECT count(jobq.enqueue('broken', queue => 'manual', max_attempts => 1)) FROM generate_series(1, 3) i;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, count(*) FROM jobq.jobs WHERE kind = 'broken' AND state <> 'cancelled' GROUP BY state ORDER BY state;
SELECT jobq.test_clock('42 min') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, count(*) FROM jobq.jobs WHERE kind = 'broken' AND state <> 'cancelled' GROUP BY state ORDER BY state;
SELECT jobq.alter_queue('manual', throttle => 'none');
SELECT jobq.test_clock('0') \g /dev/null
TRUNCATE test.trace;

-- a group: jobq.work() and workers run one job at a time, in order
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'other', group_key => 'g') AS gate \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :gate));
SELECT count(jobq.enqueue('note', to_jsonb('g' || i), queue => 'other', group_key => 'g')) FROM generate_series(1, 80) i;
CALL jobq.work('{other}', stop_when_empty => true);
SELECT count(*) FROM test.trace;
-- jobq.work() keeps the order of the group, whether the other jobs are parked or not
SELECT pg_advisory_unlock(1);
CALL jobq.work('{other}', stop_when_empty => true);
SELECT test.until('(SELECT count(*) = 80 FROM test.trace)');
SELECT count(*) FROM (SELECT n, substr(note, 2)::int AS i, lag(substr(note, 2)::int, 1, 0) OVER (ORDER BY n) AS before FROM test.trace) t WHERE i <> before + 1;
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
TRUNCATE test.trace;
-- the group waits for a job that fails or snoozes in jobq.work()
CREATE FUNCTION test.snoozes(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('snoozes');
	IF (SELECT count(*) FROM test.trace WHERE note = 'snoozes') = 1 THEN
		PERFORM jobq.snooze('1 h');
	END IF;
END
$$;
SELECT jobq.register('snoozes', 'test.snoozes(jsonb, jobq.job_context)');
SELECT jobq.enqueue('broken', queue => 'manual', group_key => 'g', max_attempts => 2, backoff => 'fixed 1h') AS broken \gset
SELECT jobq.enqueue('snoozes', queue => 'manual', group_key => 'g') AS snoozes \gset
SELECT jobq.enqueue('note', '"last of g"', queue => 'manual', group_key => 'g') AS last \gset
SELECT jobq.enqueue('note', '"of h"', queue => 'manual', group_key => 'h') AS h \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace ORDER BY n;
SELECT group_key, running, waits_for = :broken AS waits FROM jobq.limits WHERE type = 'group';
SELECT jobq.test_clock('61 min') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace ORDER BY n;
SELECT state, attempt FROM jobq.status(:broken);
SELECT group_key, running, waits_for = :snoozes AS waits FROM jobq.limits WHERE type = 'group';
SELECT jobq.test_clock('122 min') \g /dev/null
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace ORDER BY n;
SELECT jobq.test_clock('0') \g /dev/null

-- nothing is left
SELECT jobq.delete_many(state => 'dead') > 0;
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
SELECT queue, kind, running FROM jobq.limits WHERE running <> 0;
SELECT count(*) FROM jobq_internal.lease_slots();
DROP FUNCTION test.holds(text);
TRUNCATE test.trace;
