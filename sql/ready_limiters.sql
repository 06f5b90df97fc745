-- Named limiters, shared by kinds and queues.

CREATE FUNCTION test.at(limiter text) RETURNS int LANGUAGE sql
AS $$ SELECT running FROM jobq.limits l WHERE l.limiter = $1 $$;
TRUNCATE test.trace;

-- bad input
SELECT c, (test.error('SELECT jobq.' || c)).* FROM unnest(ARRAY[
	'create_limiter(NULL)', 'create_limiter('''', 1)', 'create_limiter(repeat(''x'', 64), 1)', 'create_limiter(''line'')',
	'create_limiter(''line'', -1)', 'create_limiter(''line'', 0)', 'create_limiter(''line'', rate => ''fast'')', 'create_limiter(''line'', rate => ''1 per second by group'')',
	'create_limiter(''line'', throttle => ''1 failure in 1 s by group'')', 'create_limiter(''line'', throttle => ''often'')',
	'drop_limiter(''line'')', 'register(''alpha'', ''test.gate(jsonb)'', limiters => ''{line}'')',
	'create_queue(''lined'', limiters => ''{line}'')']) c;
SELECT count(*) FROM jobq.queues WHERE name = 'lined';
SET ROLE regress_jobq_alice;
SELECT c, (test.error('SELECT jobq.' || c)).* FROM unnest(ARRAY['create_limiter(''line'', 1)', 'drop_limiter(''line'')']) c;
RESET ROLE;

-- two kinds share the limiter: two of three jobs run, and a job of another kind is not held up
SELECT jobq.create_limiter('line', max_running => 2);
-- the same call again changes nothing, and omitted options keep their values
SELECT jobq.create_limiter('line', max_running => 2), jobq.create_limiter('line', rate => '1000 per second');
SELECT max_running, rate, throttle, by, cost FROM jobq_internal.limiter WHERE name = 'line';
SELECT jobq.create_limiter('line', rate => 'none');
SELECT (test.error('SELECT jobq.create_limiter(''line'', by => ''tenant'')')).*;
SELECT (test.error('SELECT jobq.create_limiter(''line'', cost => ''test.no_such(jsonb)'')')).*;
SELECT jobq.register('alpha', 'test.gate(jsonb)', limiters => '{line}'), jobq.register('beta', 'test.gate(jsonb)', limiters => '{line}');
SELECT kind, max_running, limiters FROM jobq.kinds WHERE limiters IS NOT NULL ORDER BY kind;
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('alpha', '1') AS a, jobq.enqueue('beta', '1', queue => 'other') AS b \gset
SELECT test.in_gate(:a, :b);
SELECT jobq.enqueue('alpha', '1', queue => 'third') AS c \gset
SELECT jobq.enqueue('beta', '1') AS d, jobq.enqueue('echo', '"passes by"') AS e \gset
SELECT state FROM jobq.wait(:e);
CALL test.settle();
SELECT state, attempt FROM test.states(ARRAY[:a, :b, :c, :d]);
SELECT queue, kind, limiter, running, max_running FROM jobq.limits;
SELECT reason, regexp_replace(detail, 'jobs? [\d, ]*\d', 'job N', 'g') AS detail, remedy FROM jobq.explain(:c);
-- one more permit: the oldest job gets it
SELECT jobq.create_limiter('line', max_running => 3);
SELECT test.in_gate(:a, :b, :c);
-- beta leaves the limiter: new jobs of beta run.  A waiting job leaves in its turn, or when edited.
-- A running job keeps its permit.
SELECT jobq.register('beta', 'test.gate(jsonb)');
SELECT jobq.enqueue('beta', '3') AS f \gset
SELECT state FROM jobq.wait(:f);
SELECT state FROM jobq.status(:d);
SELECT reason, detail, replace(remedy, :'d', 'N') AS remedy FROM jobq.explain(:d);
SELECT jobq.edit(:d, run_at => now());
SELECT test.in_gate(:d);
SELECT test.at('line');
-- running jobs of a kind that joins are counted
SELECT jobq.register('beta', 'test.gate(jsonb)', limiters => '{line}');
SELECT test.until('test.at(''line'') = 4');
SELECT jobq.enqueue('alpha', '1') AS g, jobq.enqueue('beta', '3') AS h, jobq.enqueue('alpha', '3') AS i \gset
SELECT jobq.register('beta', 'test.gate(jsonb)');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c, :d, :f, :g, :h, :i]);
SELECT test.until('test.at(''line'') = 0');

-- a job takes no permit when leaving the limiter in its turn
SELECT jobq.create_limiter('line', max_running => 1), jobq.register('beta', 'test.gate(jsonb)', limiters => '{line}');
CALL test.settle();
SELECT pg_advisory_lock(1), pg_advisory_lock(2);
SELECT jobq.enqueue('alpha', '2') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('beta', '1') AS b \gset
CALL test.settle();
SELECT jobq.register('beta', 'test.gate(jsonb)');
SELECT jobq.enqueue('alpha', '1') AS c \gset
CALL test.settle();
SELECT state FROM test.states(ARRAY[:b, :c]);
SELECT pg_advisory_unlock(2);
SELECT test.in_gate(:b, :c);
SELECT test.at('line');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);
SELECT test.until('test.at(''line'') = 0');

-- a queue with a limiter: its jobs need a permit beside the limits of their kind.  Running jobs
-- are counted when the queue joins.
SELECT jobq.create_queue('lined'), jobq.register('own', 'test.gate(jsonb)', max_running => 2);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'lined') AS a \gset
SELECT test.in_gate(:a);
SELECT l, (test.error(format('SELECT jobq.alter_queue(''lined'', limiters => %L)', l))).* FROM unnest(ARRAY['{line,line}', '{line,NULL}', '{line,line,line}', '{line,missing}']) l;
SELECT jobq.alter_queue('lined', limiters => '{line}');
SELECT name, limiters FROM jobq.queues WHERE limiters IS NOT NULL;
SELECT test.until('test.at(''line'') = 1');
SELECT jobq.enqueue('gate', '1', queue => 'lined') AS b, jobq.enqueue('alpha', '1') AS c, jobq.enqueue('own', '1', queue => 'lined') AS d \gset
CALL test.settle();
SELECT state FROM test.states(ARRAY[:a, :b, :c, :d]);
SELECT reason, regexp_replace(detail, 'jobs? [\d, ]*\d', 'job N', 'g') AS detail, remedy FROM jobq.explain(:b);
-- kinds that name the limiter of the queue share the lanes of the queue's other kinds
SELECT jobq_internal.limiters_of('alpha', id) = jobq_internal.limiters_of('gate', id) AS same_lane, jobq_internal.limiters_of('own', id)::text LIKE '{%,0,%}' AS own_lane
	FROM jobq_internal.queue WHERE name = 'lined';
-- jobs enqueued after the queue has left the limiter
SELECT jobq.alter_queue('lined', limiters => '{}');
SELECT jobq.enqueue('gate', '1', queue => 'lined') AS e \gset
SELECT test.in_gate(:a, :e);
SELECT state FROM test.states(ARRAY[:b, :c, :d]);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:e);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c, :d]);
SELECT jobq.alter_queue('lined', limiters => '{line}');

-- consumers and work() need permits, too
SELECT jobq.create_queue('rented', mode => 'consumer');
SELECT jobq.enqueue('any', '{}', queue => 'rented') AS a \gset
SELECT id = :a AS it, token FROM jobq.reserve(ARRAY['rented'], wait => '5 min') \gset
SELECT jobq.alter_queue('rented', limiters => '{line}');
SELECT :'it' AS reserved, test.until('test.at(''line'') = 1');
SELECT jobq.ack(:a, :token);
SELECT test.until('test.at(''line'') = 0');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('alpha', '1') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('any', '{}', queue => 'rented') AS b \gset
SELECT count(*) FROM jobq.reserve(ARRAY['rented']);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a);
SELECT id = :b AS it, token FROM jobq.reserve(ARRAY['rented'], wait => '5 min') \gset
SELECT :'it' AS reserved, test.at('line') AS running;
SELECT jobq.enqueue('gate', '3', queue => 'lined') AS c \gset
CALL jobq.work(ARRAY['lined'], stop_when_empty => true);
CALL test.settle();
SELECT state FROM jobq.status(:c);
SELECT jobq.ack(:b, :token);
SELECT state FROM jobq.wait(:c);
SELECT test.until('test.at(''line'') = 0');

-- after the queue changes its limiter, running jobs are counted in the new limiter only; after the kind gets limits, there, too
SELECT jobq.create_limiter('next line', max_running => 1);
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'lined') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.alter_queue('lined', limiters => '{next line}');
SELECT test.until('test.at(''next line'') = 1'), test.at('line');
SELECT jobq.alter_queue('lined', limiters => '{line}');
SELECT test.until('test.at(''line'') = 1'), test.at('next line');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a);
SELECT test.until('test.at(''line'') = 0');
SELECT jobq.enqueue('hired', queue => 'rented') AS a, jobq.enqueue('hired', queue => 'rented') AS b \gset
SELECT id = :a AS it, token FROM jobq.reserve(ARRAY['rented'], wait => '5 min') \gset
SELECT jobq.alter_queue('rented', limiters => '{next line}');
SELECT :'it' AS reserved, test.until('test.at(''next line'') = 1'), test.at('line');
SELECT jobq.register('hired', 'test.gate(jsonb)', max_running => 1);
SELECT test.until('(SELECT running = 1 FROM jobq.limits WHERE kind = ''hired'')'), test.at('next line');
SELECT count(*) FROM jobq.reserve(ARRAY['rented']);
SELECT count(*) FROM jobq.reserve(ARRAY['rented']);
SELECT jobq.ack(:a, :token);
SELECT id = :b AS it, token FROM jobq.reserve(ARRAY['rented'], wait => '5 min') \gset
SELECT :'it' AS reserved, running FROM jobq.limits WHERE kind = 'hired';
SELECT jobq.ack(:b, :token);
SELECT test.until('(SELECT running = 0 FROM jobq.limits WHERE kind = ''hired'')');
SELECT jobq.unregister('hired'), jobq.alter_queue('rented', limiters => '{line}'), jobq.drop_limiter('next line');

-- all together: limits of the queue and of the kind, a limiter of the kind, and a limiter of the queue with keys
SELECT jobq.create_limiter('pair', max_running => 2), jobq.create_limiter('shop', max_running => 1, by => 'header shop');
SELECT jobq.create_queue('shops', max_running => 4, limiters => '{shop}');
SELECT jobq.register('alpha', 'test.gate(jsonb)', max_running => 3, limiters => '{pair}'), jobq.register('beta', 'test.gate(jsonb)', limiters => '{pair}');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('alpha', '1', queue => 'shops', headers => '{"shop": "x"}') AS a \gset
SELECT test.in_gate(:a);
SELECT jobq.enqueue('alpha', '1', queue => 'shops', headers => '{"shop": "x"}') AS b,
	jobq.enqueue('alpha', '1', queue => 'shops', headers => '{"shop": "y"}') AS c \gset
SELECT test.in_gate(:a, :c);
SELECT jobq.enqueue('beta', '1', queue => 'shops', headers => '{"shop": "z"}') AS d,
	jobq.enqueue('gate', '1', queue => 'shops', headers => '{"shop": "z"}') AS e \gset
SELECT test.in_gate(:a, :c, :e);
CALL test.settle();
SELECT state FROM test.states(ARRAY[:a, :b, :c, :d, :e]);
SELECT queue, kind, limiter, key, running, ready, max_running FROM jobq.limits
	WHERE queue = 'shops' OR kind = 'alpha' OR limiter IN ('pair', 'shop') ORDER BY queue, kind, limiter, key NULLS FIRST;
SELECT reason, regexp_replace(detail, 'jobs? [\d, ]*\d', 'job N', 'g') AS detail, remedy FROM jobq.explain(:b);
SELECT reason, regexp_replace(detail, 'jobs? [\d, ]*\d', 'job N', 'g') AS detail, remedy FROM jobq.explain(:d);
-- work() needs all permits, too
CALL jobq.work(ARRAY['shops'], stop_when_empty => true);
SELECT state FROM test.states(ARRAY[:b, :d]);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c, :d, :e]);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE running > 0)');
SELECT jobq.unregister('alpha'), jobq.unregister('beta'), jobq.drop_queue('shops', force => true), jobq.drop_limiter('pair'), jobq.drop_limiter('shop');

-- one token bucket for all members
SELECT jobq.create_limiter('drip', rate => '3 per hour burst 3');
SELECT jobq.register('note', 'test.note(jsonb)', limiters => '{drip}'), jobq.alter_queue('lined', limiters => '{drip}');
SELECT count(jobq.enqueue('note', '1')) FROM generate_series(1, 2);
SELECT test.until('test.noted() = 2');
SELECT jobq.enqueue('echo', '1', queue => 'lined') AS a \gset
SELECT state FROM jobq.wait(:a);
SELECT jobq.enqueue('note', '1') AS a, jobq.enqueue('echo', '1', queue => 'lined') AS b \gset
CALL test.settle();
SELECT state FROM test.states(ARRAY[:a, :b]);
SELECT reason, regexp_replace(detail, 'at .*', 'at T') AS detail, remedy FROM jobq.explain(:b);
SELECT limiter, running, rate, floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'drip';
SELECT jobq.test_clock('41 min') \g /dev/null
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
SELECT jobq.test_clock('0') \g /dev/null

-- one pause for all members
SELECT jobq.create_limiter('drip', rate => 'none', throttle => '2 failures in 1 hour');
SELECT (test.error('SELECT jobq.create_limiter(''drip'', throttle => ''none'')')).*;
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms', limiters => '{drip}');
SELECT jobq.enqueue('broken', '1', max_attempts => 1) AS a, jobq.enqueue('broken', '1', queue => 'lined', max_attempts => 1) AS b \gset
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);
-- a worker reports the failure a moment after its job has ended
SELECT test.until('(SELECT rest_until IS NOT NULL FROM jobq.limits WHERE limiter = ''drip'')');
SELECT jobq.enqueue('note', '1') AS a \gset
CALL test.settle();
SELECT state FROM jobq.status(:a);
SELECT reason, regexp_replace(detail, 'until [^,]*', 'until T') AS detail, remedy FROM jobq.explain(:a);
SELECT limiter, failed, rest_until IS NOT NULL AS rests FROM jobq.limits WHERE limiter = 'drip';
SELECT jobq.create_limiter('drip', max_running => 5, throttle => 'none');
SELECT state FROM jobq.wait(:a);

-- a limiter can be dropped when no queue or kind refers to it
SELECT (test.error('SELECT jobq.drop_limiter(''drip'')')).*;
SELECT jobq.register('note', 'test.note(jsonb)'), jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms'), jobq.alter_queue('lined', limiters => '{}');
SELECT jobq.drop_limiter('drip');
SELECT jobq.unregister('own'), jobq.alter_queue('rented', limiters => '{}');
SELECT jobq.drop_limiter('line');
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE limiter IS NOT NULL)');
SELECT jobq.drop_queue('rented', force => true), jobq.drop_queue('lined', force => true);
TRUNCATE test.trace;
DROP FUNCTION test.at(text);
