-- Jobs of a kind are paused in a queue, and other jobs of the queue continue.

SELECT jobq.register('letter', 'test.note(jsonb)'), jobq.register('parcel', 'test.note(jsonb)');
CREATE FUNCTION test.send(kinds text[], queue text DEFAULT 'first', tenant text DEFAULT 'a') RETURNS void LANGUAGE sql AS $$
	SELECT jobq.enqueue(kind, to_jsonb(kind || ' ' || n), queue, headers => jsonb_build_object('branch', tenant))
	FROM unnest(kinds) WITH ORDINALITY u (kind, n)
$$;
-- Waits for a number of jobs, and returns their names.
CREATE FUNCTION test.sent(n int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT count(*) >= %s FROM test.trace)', n));
	RETURN (SELECT string_agg(note, ', ' ORDER BY note) FROM test.trace);
END
$$;
TRUNCATE test.trace;
SELECT test.send('{letter}');
SELECT test.sent(1);

SELECT * FROM test.error($$SELECT jobq.pause('first', kind => '')$$);
SELECT * FROM test.error($$SELECT jobq.pause('first', kind => repeat('x', 201))$$);
SELECT * FROM test.error($$SELECT jobq.pause('first', tenant => 'a', kind => 'letter')$$);
SELECT * FROM test.error($$SELECT jobq.resume('first', tenant => 'a', kind => 'letter')$$);
SELECT * FROM test.error($$SELECT jobq.pause('nowhere', kind => 'letter')$$);
SET ROLE regress_jobq_alice;
SELECT e.code IN ('42501', '42704') AS refused FROM test.error($$SELECT jobq.pause('first', kind => 'letter')$$) e;
RESET ROLE;

-- waiting jobs are paused, wherever they are in the queue
SELECT jobq.pause('first');
TRUNCATE test.trace;
SELECT test.send('{letter,letter,parcel,letter,parcel}');
SELECT jobq.pause('first', kind => 'letter'), jobq.pause('first', kind => 'letter'), jobq.pause('first', kind => 'nothing');
SELECT name, paused, paused_kinds FROM jobq.queues WHERE name = 'first';
SELECT jobq.resume('first');
SELECT test.sent(2);
CALL test.settle();
SELECT kind, state, count(*) FROM jobq.live_jobs WHERE queue = 'first' GROUP BY 1, 2;
SELECT reason, detail, remedy FROM jobq.explain((SELECT min(id) FROM jobq.live_jobs WHERE queue = 'first'));
-- the rows are rewritten once, and not touched again
SELECT array_agg(xmin::text || ctid ORDER BY id) AS rows FROM jobq_internal.job WHERE kind = 'letter' \gset
-- later jobs; the pause is stored in a table and survives a restart
SELECT jobq.restart_workers();
SELECT test.send('{letter,parcel}');
SELECT test.sent(3);
CALL test.settle();
SELECT count(*) AS letters, (array_agg(xmin::text || ctid ORDER BY id))[:3] = :'rows' AS untouched FROM jobq_internal.job WHERE kind = 'letter';
-- another priority, which means another lane
SELECT jobq.enqueue('letter', '"urgent letter"', 'first', priority => -5) > 0, jobq.enqueue('parcel', '"urgent parcel"', 'first', priority => -5) > 0;
SELECT test.sent(4);
-- work() in a session also obeys the pause
CALL jobq.work('{first}', stop_when_empty => true);
SELECT count(*) FROM jobq.live_jobs WHERE queue = 'first';
-- the same kind in another queue
SELECT test.send('{letter}', 'second');
SELECT test.sent(5);
SELECT jobq.resume('first', kind => 'letter'), jobq.resume('first', kind => 'letter'), jobq.resume('first', kind => 'nobody'), jobq.resume('first', kind => 'nothing');
SELECT test.sent(10);
SELECT paused_kinds FROM jobq.queues WHERE name = 'first';
-- both jobs are read from the table, one directly after the other, when due
SELECT jobq.pause('first', kind => 'letter');
TRUNCATE test.trace;
SELECT jobq.enqueue('letter', '"timed letter"', 'first', priority => -6, delay => '1 min') > 0, jobq.enqueue('parcel', '"timed parcel"', 'first', priority => -6, delay => '1 min') > 0;
SELECT jobq.test_clock('61 s') \g /dev/null
SELECT test.sent(1);
SELECT jobq.resume('first', kind => 'letter');
SELECT test.sent(2);
SELECT jobq.test_clock('0') \g /dev/null

-- a kind with limits, in a fair queue with a limiter by tenant
SELECT jobq.register('letter', 'test.note(jsonb)', max_running => 1);
SELECT jobq.create_limiter('branch', max_running => 1, by => 'tenant'), jobq.alter_queue('first', tenant => 'header branch', fair => 'jobs', limiters => '{branch}');
SELECT jobq.pause('first', kind => 'letter');
TRUNCATE test.trace;
SELECT test.send('{letter,parcel}', 'first', t) FROM unnest('{a,b,c}'::text[]) t;
SELECT test.sent(3);
-- a new tenant beside a paused tenant and a paused kind
SELECT jobq.pause('first', 'a');
SELECT test.send('{parcel}', 'first', 'a');
CALL test.settle();
SELECT test.send('{letter,parcel}', 'first', 'd');
SELECT test.sent(4);
SELECT test.send('{parcel}', 'first', 'e');
SELECT test.sent(5);
-- a job with both a paused tenant and a paused kind
SELECT test.send('{letter}', 'first', 'a');
SELECT reason, detail, remedy FROM jobq.explain((SELECT max(id) FROM jobq.live_jobs WHERE queue = 'first'));
SELECT jobq.resume('first', kind => 'letter');
SELECT test.sent(8);
CALL test.settle();
SELECT kind, tenant, count(*) FROM jobq.live_jobs WHERE queue = 'first' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT jobq.resume('first', 'a');
SELECT test.sent(11);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE running <> 0)');
SELECT jobq.alter_queue('first', tenant => 'none', fair => 'off', limiters => '{}'), jobq.drop_limiter('branch');
-- jobs that waited before their kind was paused, read together with other jobs of their tenant
CREATE FUNCTION test.post(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT pg_sleep(0.1); INSERT INTO test.trace (note) VALUES (payload #>> '{}') $$;
CREATE FUNCTION test.sent_of(kind text, n int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format('(SELECT count(*) >= %s FROM test.trace WHERE note LIKE %L)', n, kind || ' %'));
	RETURN true;
END
$$;
SELECT jobq.register('letter', 'test.post(jsonb)'), jobq.register('parcel', 'test.post(jsonb)');
SELECT jobq.alter_queue('first', tenant => 'header branch', fair => 'jobs');
TRUNCATE test.trace;
SELECT count(jobq.enqueue(kind, to_jsonb(kind || ' ' || n), 'first', delay => '1 min', headers => '{"branch": "a"}')) FROM unnest('{1,2,20}'::int[]) m, generate_series(1, m) n, unnest(ARRAY[CASE m WHEN 20 THEN 'parcel' ELSE 'letter' END]) kind;
SELECT jobq.pause('first', kind => 'letter');
SELECT jobq.test_clock('61 s') \g /dev/null
SELECT test.sent_of('parcel', 20);
SELECT count(*) FROM test.trace WHERE note LIKE 'letter %';
SELECT jobq.resume('first', kind => 'letter');
SELECT test.sent_of('letter', 3);
SELECT jobq.test_clock('0') \g /dev/null
-- the same for a tenant, together with other jobs of a limiter
SELECT jobq.alter_queue('first', tenant => 'header branch', fair => 'off'), jobq.create_limiter('post', max_running => 2);
SELECT jobq.register('letter', 'test.post(jsonb)', limiters => '{post}'), jobq.register('parcel', 'test.post(jsonb)', limiters => '{post}');
TRUNCATE test.trace;
SELECT count(jobq.enqueue('letter', '"letter of a"', 'first', delay => '1 min', headers => '{"branch": "a"}')) FROM generate_series(1, 3);
SELECT count(jobq.enqueue('parcel', '"parcel of b"', 'first', delay => '1 min', headers => '{"branch": "b"}')) FROM generate_series(1, 20);
SELECT jobq.pause('first', 'a');
SELECT jobq.test_clock('61 s') \g /dev/null
SELECT test.sent_of('parcel', 20);
SELECT count(*) FROM test.trace WHERE note LIKE 'letter %';
SELECT jobq.resume('first', 'a');
SELECT test.sent_of('letter', 3);
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.register('letter', 'test.note(jsonb)'), jobq.register('parcel', 'test.note(jsonb)');
SELECT jobq.alter_queue('first', tenant => 'none'), jobq.drop_limiter('post');
DROP FUNCTION test.post(jsonb), test.sent_of;

-- for consumers
SELECT jobq.create_queue('pause out', mode => 'consumer');
SELECT jobq.pause('pause out', kind => 'any.held');
SELECT jobq.enqueue('any.held', queue => 'pause out') AS held, jobq.enqueue('any.free', queue => 'pause out') AS free \gset
SELECT id, token, kind FROM jobq.reserve('{pause out}', wait => '5 min') \gset
\echo :kind
SELECT jobq.ack(:id, :token);
SELECT count(*) FROM jobq.reserve('{pause out}');
SELECT count(*) FROM jobq.reserve_job(:held);
SELECT jobq.resume('pause out', kind => 'any.held');
SELECT id, token, kind FROM jobq.reserve('{pause out}', wait => '5 min') \gset
\echo :kind
SELECT jobq.ack(:id, :token);
SELECT jobq.drop_queue('pause out');
SELECT jobq.unregister('letter'), jobq.unregister('parcel');
