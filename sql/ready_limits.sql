-- Limits of queues and kinds: max_running, rates, throttling, by the test clock.

CREATE FUNCTION test.running(queue text) RETURNS int LANGUAGE sql
AS $$ SELECT running FROM jobq.limits l WHERE type = 'queue' AND l.queue = $1 $$;

-- bad input
SELECT o, (test.error(format('SELECT jobq.create_queue(''bad'', %s)', o))).* FROM unnest(ARRAY[
	'max_running => -1', 'weight => -1', 'group_max_running => -1', 'rate => ''''', 'rate => ''fast''',
	'rate => ''0 per second''', 'rate => ''-1 per second''', 'rate => ''10''', 'rate => ''10 per''', 'rate => ''10 per fortnight''',
	'rate => ''1.5 per second''', 'rate => ''10 per 0 seconds''', 'rate => ''10 per second burst''', 'rate => ''10 per second burst 0''',
	'rate => ''10 per second by tenant''', 'rate => ''10 per second by group too''', 'rate => ''99999999999 per second''',
	'rate => ''10 per 400 days''', 'rate => ''10 per month''', 'rate => ''10 per -1 s''', 'throttle => ''''', 'throttle => ''often''', 'throttle => ''0 failures in 1 minute''',
	'throttle => ''3 failures''', 'throttle => ''3 failures in''', 'throttle => ''3 failures in 5 parsecs''',
	'throttle => ''3 failures in 1 minute by kind''', 'group_on_failure => ''stop''', 'group_on_failure => ''Continue'', group_scope => ''database''', 'fair => ''round''', 'fair => ''jobs''',
	'fair_weights => ''[1]''', 'fair_weights => ''{"a": "b"}''', 'fair_weights => ''{"a": 0}''', 'fair_weights => ''{"a": 1001}''',
	'fair_weights => ''{"a": 1.5}''', 'fair_weights => ''null'''])  o;
SELECT o, (test.error(format('SELECT jobq.register(''bad'', ''test.echo(jsonb)'', %s)', o))).* FROM unnest(ARRAY[
	'max_running => 0', 'max_running => -1', 'rate => ''none''', 'rate => ''1 per''', 'throttle => ''x''',
	'rate => ''1 per second by group''', 'throttle => ''1 failure in 1 s by group''']) o;
SELECT jobq.create_queue('bad', rate => '10 per 1 year');
SELECT count(*) FROM jobq.queues WHERE name = 'bad';
-- periods accept any interval syntax
SELECT o, (test.error(format('SELECT jobq.create_queue(%L, %s)', 'good ' || n, o))).message FROM unnest(ARRAY[
	'rate => ''1 per hour''', 'rate => ''100 per 1min burst 10''', 'rate => ''10 per 1 hour 30 minutes''', 'rate => ''10 per 00:00:05.5 burst 20''',
	'throttle => ''3 failures in 1 day 2 hours''', 'throttle => ''1 failure in PT90S''']) WITH ORDINALITY u (o, n) ORDER BY n;
SELECT count(jobq.drop_queue(name)) FROM jobq.queues WHERE name LIKE 'good %';
SELECT o, (test.error(format('SELECT jobq.enqueue(''echo'', group_key => %L)', o))).* FROM unnest(ARRAY['', repeat('x', 501)]) o;

-- max_running of a queue: two gates run, the third waits, although workers are idle
SELECT jobq.create_queue('two', max_running => 2);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'two') AS a, jobq.enqueue('gate', '1', queue => 'two') AS b, jobq.enqueue('gate', '1', queue => 'two') AS c \gset
SELECT test.until('test.running(''two'') = 2');
CALL test.settle();
SELECT state, attempt FROM test.states(ARRAY[:a, :b, :c]);
SELECT queue, kind, running, max_running FROM jobq.limits;
-- raise and lower the limit: running jobs continue
SELECT jobq.alter_queue('two', max_running => 3);
SELECT test.until('test.running(''two'') = 3');
SELECT jobq.alter_queue('two', max_running => 1);
SELECT jobq.enqueue('note', '"after"', queue => 'two') AS d \gset
CALL test.settle();
SELECT state FROM jobq.status(:d);
SELECT jobq.alter_queue('two', max_running => 0);
SELECT state FROM jobq.wait(:d);
-- a new limit counts jobs that already run
SELECT jobq.alter_queue('two', max_running => 3);
SELECT test.until('test.running(''two'') = 3');
SELECT jobq.enqueue('note', '"counted"', queue => 'two') AS d \gset
CALL test.settle();
SELECT state FROM jobq.status(:d);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c, :d]);
SELECT test.until('test.running(''two'') = 0');
-- also if the queue had a policy without counting
SELECT jobq.alter_queue('two', max_running => 0);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE type = ''queue'' AND queue = ''two'')');
SELECT jobq.alter_queue('two', weight => 2);
SELECT test.until('EXISTS (SELECT FROM jobq.limits WHERE type = ''queue'' AND queue = ''two'')');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'two') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.alter_queue('two', max_running => 1);
SELECT test.until('test.running(''two'') = 1');
SELECT jobq.enqueue('echo', '"counted"', queue => 'two') AS b \gset
CALL test.settle();
SELECT state FROM jobq.status(:b);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT jobq.alter_queue('two', max_running => 3, weight => 0);
SELECT test.until('test.running(''two'') = 0');

-- max_running of a kind, across queues; another kind in the same queue is not held up
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 1);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'two') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('gate', '1', queue => 'other') AS b, jobq.enqueue('gate', '1', queue => 'two') AS c, jobq.enqueue('note', '"passes by"', queue => 'two') AS d \gset
SELECT state FROM jobq.wait(:d);
CALL test.settle();
SELECT state FROM test.states(ARRAY[:a, :b, :c]);
SELECT queue, kind, running, max_running FROM jobq.limits ORDER BY queue;
-- cancel a job that waits for the limit, and the job that holds the permit
SELECT jobq.cancel(:b);
SELECT state, attempt FROM jobq.status(:b);
SELECT jobq.cancel(:a);
SELECT state FROM jobq.wait(:a);
SELECT test.in_gate(:c);
-- the limit is removed while a job waits, and set again
SELECT jobq.enqueue('gate', '1', queue => 'two') AS b, jobq.enqueue('gate', '1', queue => 'two') AS d \gset
SELECT jobq.register('gate', 'test.gate(jsonb)');
SELECT test.until(format('(SELECT bool_and(state = ''running'') FROM test.states(ARRAY[%s, %s]))', :b, :d));
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 3);
SELECT jobq.enqueue('gate', '1', queue => 'two') AS e \gset
CALL test.settle();
SELECT state FROM jobq.status(:e);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:b, :c, :d, :e]);

-- a kind gets a limit while its jobs wait
SELECT jobq.register('gate', 'test.gate(jsonb)');
SELECT jobq.pause('two');
SELECT pg_advisory_lock(1);
SELECT array_agg(jobq.enqueue('gate', '1', queue => 'two')) AS ids FROM generate_series(1, 3) \gset
SELECT jobq.register('gate', 'test.gate(jsonb)', max_running => 1);
SELECT jobq.resume('two');
SELECT test.until('(SELECT running = 1 FROM jobq.limits WHERE kind = ''gate'')');
CALL test.settle();
SELECT state, count(*) FROM test.states(:'ids'::bigint[]) GROUP BY 1 ORDER BY 1;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT jobq.register('gate', 'test.gate(jsonb)');
TRUNCATE test.trace;

-- a rate, exact to the single job
SELECT jobq.create_queue('slow', rate => '6 per hour burst 3');
SELECT count(jobq.enqueue('note', '"rate"', queue => 'slow', max_attempts => 1)) FROM generate_series(1, 12);
SELECT test.until('test.noted() = 3');
CALL test.settle();
SELECT test.noted();
SELECT jobq.test_clock('10 min 1 s') \g /dev/null
SELECT test.until('test.noted() = 4');
CALL test.settle();
SELECT test.noted();
SELECT jobq.test_clock('15 min') \g /dev/null
CALL test.settle();
SELECT test.noted();
SELECT jobq.test_clock('20 min 1 s') \g /dev/null
SELECT test.until('test.noted() = 5');
-- the bucket holds three tokens
SELECT jobq.test_clock('10 hours') \g /dev/null
SELECT test.until('test.noted() = 8');
CALL test.settle();
SELECT test.noted();
-- waiting is not charged
SELECT attempt, count(*) FROM jobq.jobs WHERE queue = 'slow' GROUP BY 1 ORDER BY 1;
SELECT queue, running, rate, floor(tokens) AS tokens FROM jobq.limits WHERE type = 'queue' AND queue = 'slow';
-- a cancelled or expired job takes no token
SELECT count(*) FROM (SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'slow' AND state = 'ready' LIMIT 4) c;
SELECT jobq.enqueue('note', '"token left"', queue => 'slow') AS id \gset
SELECT jobq.test_clock('10 hours 11 min') \g /dev/null
SELECT state FROM jobq.wait(:id);
SELECT jobq.alter_queue('slow', rate => '1 per hour');
SELECT jobq.enqueue('note', '"in an hour"', queue => 'slow') AS id \gset
CALL test.settle();
SELECT state FROM jobq.status(:id);
SELECT jobq.alter_queue('slow', rate => 'none');
SELECT state FROM jobq.wait(:id);
TRUNCATE test.trace;
SELECT jobq.test_clock('0') \g /dev/null

-- a kind's rate holds across queues
SELECT jobq.register('note', 'test.note(jsonb)', rate => '1 per hour burst 2');
SELECT count(jobq.enqueue('note', '"kind"', queue => CASE i % 2 WHEN 0 THEN 'two' ELSE 'other' END)) FROM generate_series(1, 4) i;
SELECT test.until('test.noted() = 2');
CALL test.settle();
SELECT test.noted();
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT test.until('test.noted() = 3');
CALL test.settle();
SELECT test.noted();
SELECT jobq.register('note', 'test.note(jsonb)');
SELECT test.until('test.noted() = 4');
TRUNCATE test.trace;
SELECT jobq.test_clock('0') \g /dev/null

-- a rate by group: each group has its own bucket; retries take tokens, too
SELECT jobq.create_limiter('rate of group', rate => '1 per hour', by => 'group'), jobq.create_queue('keyed', limiters => '{rate of group}');
SELECT count(jobq.enqueue('note', to_jsonb(g || i), queue => 'keyed', group_key => g)) FROM unnest('{a,b}'::text[]) g, generate_series(1, 3) i;
SELECT test.until('test.noted() = 2');
CALL test.settle();
SELECT note FROM test.trace ORDER BY note;
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT test.until('test.noted() = 4');
CALL test.settle();
SELECT note FROM test.trace ORDER BY note;
SELECT jobq.test_clock('122 min') \g /dev/null
SELECT test.until('test.noted() = 6');
SELECT jobq.enqueue('broken', queue => 'keyed', group_key => 'c', max_attempts => 3) AS id \gset
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :id));
CALL test.settle();
SELECT attempt FROM jobq.status(:id);
SELECT jobq.test_clock('184 min') \g /dev/null
SELECT test.until(format('(SELECT attempt = 2 FROM jobq.status(%s))', :id));
CALL test.settle();
SELECT attempt FROM jobq.status(:id);
SELECT jobq.test_clock('246 min') \g /dev/null
SELECT state, attempt FROM jobq.wait(:id);
SELECT jobq.test_clock('10 hours') \g /dev/null
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
SELECT jobq.delete(:id);
TRUNCATE test.trace;
SELECT jobq.test_clock('0') \g /dev/null

-- throttling: after three failures within five minutes, the kind pauses for the rest of the five minutes
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms', throttle => '3 failures in 5 minutes');
CALL test.settle();
SELECT array_agg(jobq.enqueue('broken', to_jsonb(i), queue => 'two', max_attempts => 1)) AS ids FROM generate_series(1, 5) i \gset
SELECT jobq.alter_queue('two', max_running => 1);
SELECT test.until(format('(SELECT count(*) >= 3 FROM test.states(%L::bigint[]) WHERE state = ''dead'')', :'ids'));
CALL test.settle();
SELECT kind, failed >= 3 AS failed, rest_until > jobq_internal.clock() + '1 min' AS rests FROM jobq.limits WHERE kind = 'broken';
SELECT jobq.enqueue('broken', '6', queue => 'two', max_attempts => 1) AS id \gset
SELECT jobq.enqueue('note', '"others go on"', queue => 'two') AS other \gset
SELECT state FROM jobq.wait(:other);
CALL test.settle();
SELECT state, attempt FROM jobq.status(:id);
SELECT jobq.test_clock('5 min 1 s') \g /dev/null
SELECT state, attempt FROM jobq.wait(:id);
SELECT count(*) FROM jobq.wait_many(:'ids'::bigint[]) WHERE state = 'dead';
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms');
-- throttle of a queue by group: one key pauses, the other continues
SELECT jobq.create_limiter('rest of group', throttle => '2 failures in 1 hour', by => 'group'), jobq.alter_queue('keyed', limiters => '{rest of group}');
CALL test.settle();
SELECT jobq.enqueue('broken', queue => 'keyed', group_key => 'x', max_attempts => 3) AS x,
	jobq.enqueue('note', '"y"', queue => 'keyed', group_key => 'y') AS y \gset
SELECT state FROM jobq.wait(:y);
SELECT test.until(format('(SELECT attempt = 2 FROM jobq.status(%s))', :x));
CALL test.settle();
SELECT attempt FROM jobq.status(:x);
SELECT l.group_key, l.waits_for = :x AS waits, k.rest_until > jobq_internal.clock() AS rests FROM jobq.limits l LEFT JOIN jobq.limits k ON k.limiter = 'rest of group' AND k.key = l.group_key WHERE l.type = 'group';
SELECT jobq.test_clock('70 min') \g /dev/null
SELECT state, attempt FROM jobq.wait(:x);
SELECT jobq.alter_queue('keyed', limiters => '{}'), jobq.drop_limiter('rest of group'), jobq.drop_limiter('rate of group');
SELECT jobq.test_clock('0') \g /dev/null

-- each of many failures in one transaction counts, whatever the group, except rolled back failures
SELECT jobq.create_queue('strict', mode => 'consumer', throttle => '80 failures in 1 hour');
SELECT count(jobq.enqueue('any', queue => 'strict', group_key => i::text)) FROM generate_series(1, 101) i;
CALL test.settle();
SELECT array_agg(id) AS ids, array_agg(token) AS tokens, count(*) FROM jobq.reserve('{strict}', 100, wait => '5 min') \gset
SELECT :count AS reserved;
BEGIN;
SAVEPOINT s;
SELECT count(jobq.nack(id, token, delay => '1 day')) FROM unnest((:'ids'::bigint[])[1:90], (:'tokens'::bigint[])[1:90]) u (id, token);
ROLLBACK TO s;
SELECT count(jobq.nack(id, token, delay => '1 day')) FROM unnest((:'ids'::bigint[])[1:79], (:'tokens'::bigint[])[1:79]) u (id, token);
COMMIT;
SELECT failed, rest_until > jobq_internal.clock() AS rests FROM jobq.limits WHERE type = 'queue' AND queue = 'strict';
SELECT count(jobq.nack(id, token, delay => '1 day')) FROM unnest((:'ids'::bigint[])[80:100], (:'tokens'::bigint[])[80:100]) u (id, token);
SELECT failed, rest_until > jobq_internal.clock() AS rests FROM jobq.limits WHERE type = 'queue' AND queue = 'strict';
SELECT count(*) FROM jobq.reserve('{strict}');
SELECT jobq.cancel_many(queue => 'strict', state => 'waiting'), jobq.drop_queue('strict', force => true);

-- at most 256 queues and kinds can have limits, weights included; other queues do not count
CREATE FUNCTION test.limited() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM (
		SELECT FROM jobq_internal.queue WHERE num_nonnulls(max_running, rate, throttle, weight) > 0 OR fair <> 'off' OR group_max_running <> 1 OR group_on_failure <> 'wait'
		UNION ALL SELECT FROM jobq_internal.handler WHERE num_nonnulls(max_running, rate, throttle) > 0) t
$$;
SELECT 256 - test.limited() AS room \gset
BEGIN;
SELECT count(jobq.create_queue('limited' || i, max_running => 1)) = :room AS all FROM generate_series(1, :room) i;
SELECT count(jobq.create_queue('free' || i)) FROM generate_series(1, 150) i;
SELECT test.limited();
SELECT o, (test.error('SELECT ' || o)).* FROM unnest(ARRAY['jobq.create_queue(''more'', rate => ''1 per second'')',
	'jobq.alter_queue(''free1'', weight => 2)', 'jobq.alter_queue(''free1'', group_max_running => 2)',
	'jobq.alter_queue(''free1'', tenant => ''role'', fair => ''jobs'')', 'jobq.register(''more'', ''test.echo(jsonb)'', throttle => ''1 failure in 1 s'')',
	'jobq.alter_queue(''free1'', max_length => 2)', 'jobq.alter_queue(''limited1'', max_running => 3)']) o;
SELECT count(*) FROM jobq.queues WHERE name = 'more';
SELECT jobq.alter_queue('limited1', max_running => 0);
SELECT jobq.register('more', 'test.echo(jsonb)', max_running => 1);
SELECT jobq.alter_queue('limited2', max_running => 0);
SELECT jobq.alter_queue('free1', weight => 2);
COMMIT;
-- all 256 limits work
SELECT test.until('(SELECT count(*) = 256 FROM jobq.limits)');
SELECT array_agg(jobq.enqueue('more', queue => q)) AS ids FROM unnest('{limited1,limited3,free1,free150}'::text[]) q \gset
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[]) GROUP BY state;
SELECT jobq.unregister('more');
SELECT count(jobq.drop_queue(name)) FROM jobq.queues WHERE name ~ '^(limited|free)\d';
SELECT test.until(format('(SELECT count(*) = 256 - %s FROM jobq.limits)', :room));
-- a limit is removed while its job runs, and set again
SELECT pg_advisory_lock(1);
SELECT jobq.alter_queue('two', max_running => 1);
SELECT jobq.enqueue('gate', '1', queue => 'two') AS a, jobq.enqueue('gate', '1', queue => 'two') AS b \gset
SELECT test.until('test.running(''two'') = 1');
SELECT jobq.alter_queue('two', max_running => 0);
SELECT test.until(format('(SELECT count(*) = 2 FROM test.states(ARRAY[%s, %s]) WHERE state = ''running'')', :a, :b));
SELECT count(*) FROM jobq.limits WHERE type = 'queue' AND queue = 'two';
SELECT jobq.alter_queue('two', max_running => 2);
SELECT test.until('test.running(''two'') = 2');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT test.until('test.running(''two'') = 0');
SELECT jobq.alter_queue('two', max_running => 0);
DROP FUNCTION test.limited();

-- nothing is left
SELECT jobq.delete_many(state => 'dead') > 0;
SELECT queue, kind, running FROM jobq.limits WHERE running <> 0;
SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.group_slots())');
TRUNCATE test.trace;
