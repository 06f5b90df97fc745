-- A group continues when its first job is moved: the group does not wait at the old position.

SELECT pg_advisory_lock(1);
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 1);
SELECT jobq.create_queue('moves');
SELECT jobq.enqueue('gate', '1', queue => 'moves') AS gate \gset
SELECT test.in_gate(:gate);

-- The first job of the group waits for the only permit of its kind.  A second job waits for the first job.
CREATE FUNCTION test.first(g text, unique_key text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('gate', '1', queue => 'moves', group_key => g, unique_key => unique_key, priority => 1)
$$;
CREATE FUNCTION test.follow(g text) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('echo', queue => 'moves', group_key => g, priority => 2)
$$;
CREATE FUNCTION test.waiting(n int) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT count(*) FILTER (WHERE parked = 1) = %s FROM jobq.limits WHERE type = ''group'')', n))
$$;

-- to a later time
SELECT test.first('later') AS first, test.follow('later') AS second \gset
SELECT test.waiting(1);
SELECT jobq.edit(:first, run_at => now() + interval '1 hour');
SELECT state FROM jobq.wait(:second);
SELECT state FROM jobq.status(:first);

-- behind the second job
SELECT test.first('behind') AS first, test.follow('behind') AS second \gset
SELECT test.waiting(1);
SELECT jobq.edit(:first, priority => 3);
SELECT state FROM jobq.wait(:second);
SELECT state FROM jobq.status(:first);
-- or still before the second job: the group waits at the new position
SELECT test.first('before') AS first, test.follow('before') AS second \gset
SELECT test.waiting(1);
SELECT jobq.edit(:first, priority => 0);
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT jobq.cancel(:first);
SELECT state FROM jobq.wait(:second);

-- a rollback changes nothing
SELECT test.first('back') AS first, test.follow('back') AS second \gset
SELECT test.waiting(1);
BEGIN;
SELECT jobq.edit(:first, run_at => now() + interval '1 hour');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT jobq.edit(:first, run_at => now() + interval '1 hour');
ROLLBACK TO s;
COMMIT;
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT jobq.cancel(:first);
SELECT state FROM jobq.wait(:second);

-- by another job with the same unique key
SELECT test.first('key', 'key') AS first, test.follow('key') AS second \gset
SELECT test.waiting(1);
SELECT jobq.enqueue('gate', '1', queue => 'moves', group_key => 'key', unique_key => 'key', uniqueness => '{"on_conflict": "reset"}', delay => '1 hour') = :first AS same;
SELECT state FROM jobq.wait(:second);
SELECT state FROM jobq.status(:first);

-- many jobs at once, more than are handed over individually
SELECT count(test.first('many' || g)), array_agg(test.follow('many' || g)) AS ids FROM generate_series(1, 100) g \gset
SELECT test.waiting(100);
SELECT jobq.edit_many(jsonb_build_object('run_at', now() + interval '1 hour'), queue => 'moves', kind => 'gate', state => 'ready');
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY state;

-- moved parked jobs are found at their new position
SELECT pg_advisory_lock(2);
SELECT jobq.register('gate_2', 'test.gate(jsonb)');
SELECT jobq.enqueue('gate_2', '2', queue => 'moves', group_key => 'parked') AS runs \gset
SELECT test.in_gate(:runs);
SELECT array_agg(test.follow('parked')) AS ids FROM generate_series(1, 9) \gset
SELECT test.until('(SELECT parked = 9 FROM jobq.limits WHERE type = ''group'' AND group_key = ''parked'')');
SELECT jobq.edit((:'ids'::bigint[])[9], priority => 1), jobq.edit((:'ids'::bigint[])[1], priority => 3);
SELECT jobq.edit((:'ids'::bigint[])[5], run_at => now() + interval '1 hour');
SELECT jobq.edit((:'ids'::bigint[])[5], run_at => now());
SELECT pg_advisory_unlock(2);
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY state;
SELECT string_agg(i::text, ' ' ORDER BY j.started_at) FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS u (id, i) JOIN jobq.jobs j USING (id);

-- the group waits for a job that has already begun, wherever the job is moved
SELECT jobq.register('fails', 'test.broken(jsonb)', backoff => 'fixed 1h');
SELECT jobq.enqueue('fails', queue => 'moves', group_key => 'owner') AS first \gset
SELECT test.until(format('(SELECT attempt = 1 AND state = ''retryable'' FROM jobq.status(%s))', :first));
SELECT test.follow('owner') AS second \gset
SELECT test.waiting(1);
SELECT jobq.edit(:first, run_at => now() + interval '2 hours');
SELECT jobq.edit(:first, priority => 9);
CALL test.settle();
SELECT state FROM test.states(ARRAY[:first, :second]);
SELECT waits_for = :first AS waits, parked FROM jobq.limits WHERE type = 'group' AND group_key = 'owner';
SELECT jobq.cancel(:first);
SELECT state FROM jobq.wait(:second);

SELECT pg_advisory_unlock(1);
SELECT jobq.cancel_many(queue => 'moves', state => 'waiting') > 0;
SELECT jobq.register('gate', 'test.gate(jsonb)');
SELECT jobq.unregister('gate_2'), jobq.unregister('fails');
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
DROP FUNCTION test.first, test.follow, test.waiting;
