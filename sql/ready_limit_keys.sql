-- Limiters by key: the limits apply to each key separately.

CREATE FUNCTION test.fetch(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared((payload ->> 'lock')::bigint);
END
$$;
CREATE FUNCTION test.fetch(host text, lock int DEFAULT 1) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('fetch', jsonb_strip_nulls(jsonb_build_object('server', jsonb_build_object('host', host), 'lock', lock)), queue => 'fetching')
$$;

-- bad input
SELECT c, (test.error('SELECT jobq.create_limiter(''hosts'', ' || c || ')')).* FROM unnest(ARRAY[
	'1, by => ''host''', '1, by => ''payload''', '1, by => ''payload $''', '1, by => ''payload $.''', '1, by => ''payload $.a[0]''', '1, by => ''payload $.a..b''',
	'1, by => ''payload $.*''', '1, by => ''payload $.a ? (@ > 1)''', '1, by => ''payload $.a.b.c.d.e.f.g.h.i''', '1, by => ''payload $.'' || repeat(''x'', 200)',
	'1, by => ''header''', '1, by => ''header ''', '1, by => ''role x''', '1, by => ''''', 'by => ''role''', 'throttle => ''1000001 failures in 1 hour'', by => ''role''']) c;

-- each host has one running job, regardless of waiting jobs for another host; jobs without a host share a key
SELECT jobq.create_limiter('hosts', max_running => 1, by => 'payload $.server.host');
SELECT jobq.create_queue('fetching'), jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{hosts}');
SELECT pg_advisory_lock(1);
CALL test.settle();
SELECT test.fetch('a') AS a1, test.fetch('a') AS a2, test.fetch('b') AS b1, test.fetch('a') AS a3, test.fetch(NULL) AS n1, test.fetch(NULL) AS n2 \gset
SELECT test.in_gate(:a1, :b1, :n1);
SELECT jobq.enqueue('echo', '"passes by"') AS e \gset
SELECT state FROM jobq.wait(:e);
CALL test.settle();
SELECT state, attempt FROM unnest(ARRAY[:a1, :a2, :a3, :b1, :n1, :n2]) WITH ORDINALITY i (id, n), jobq.status(i.id) ORDER BY n;
SELECT queue, kind, limiter, key, running, ready, oldest_ready IS NOT NULL AS oldest, max_running, rate, tokens, by FROM jobq.limits WHERE limiter = 'hosts' ORDER BY ready IS NOT NULL, key;
SELECT l.key, l.oldest_ready = min(j.run_at) AS oldest FROM jobq.limits l JOIN jobq.live_jobs j ON j.payload #>> '{server,host}' = l.key AND j.state = 'ready' GROUP BY l.key, l.oldest_ready;
-- the view reads the jobs only for keys: not for a queue or a kind, and not without a limiter by key
CREATE FUNCTION test.reading(condition text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	line text;
	reads boolean := false;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT * FROM jobq.limits WHERE ' || condition LOOP
		reads := reads OR (line ~ ' on job( |$)' AND line !~ 'never executed');
	END LOOP;
	RETURN reads;
END $$;
SELECT c AS condition, test.reading(c) AS reads FROM unnest(ARRAY['true', 'running > 0', 'limiter = ''hosts''', 'key = ''a''', 'queue = ''fetching''', 'kind = ''fetch''', 'queue IS NOT NULL',
	'rest_until IS NOT NULL', 'type = ''queue''', 'type IN (''limiter'', ''kind'')', 'type = ''key''']) c;
SELECT reason, detail, remedy FROM jobq.explain(:a2);
-- an edited job moves to the new key; then max_running is raised
SELECT jobq.edit(:a3, payload => '{"server": {"host": "c"}, "lock": 1}');
SELECT test.in_gate(:a1, :b1, :n1, :a3);
SELECT jobq.cancel(:b1);
SELECT jobq.edit(:n2, payload => '{"server": {"host": ["no text"]}, "lock": 1}');
CALL test.settle();
SELECT state FROM jobq.status(:n2);
SELECT jobq.create_limiter('hosts', max_running => 2), jobq.cancel(:n1);
SELECT test.in_gate(:a1, :a2, :a3, :n2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a1, :a2, :a3, :n2]);
SELECT test.until($$ (SELECT running = 0 FROM jobq.limits WHERE limiter = 'hosts' AND ready IS NULL) $$);
SELECT jobq.create_limiter('hosts', max_running => 1);
CALL test.settle();

-- many jobs in one call, each with a separate key
SELECT pg_advisory_lock(1);
SELECT array_agg(id ORDER BY id) AS many FROM jobq.enqueue_many('fetch', ARRAY(SELECT jsonb_build_object('server', jsonb_build_object('host', i % 2), 'lock', 1)
	FROM generate_series(1, 6) i), queue => 'fetching') id \gset
SELECT test.until($$ (SELECT count(*) = 2 FROM jobq.limits WHERE limiter = 'hosts' AND ready IS NOT NULL AND running = 1) $$);
SELECT key, ready, running FROM jobq.limits WHERE ready IS NOT NULL ORDER BY key;
SELECT count(DISTINCT flow) FROM jobq_internal.job WHERE id = ANY (:'many');
-- work() skips all jobs of a full key, even if there are many
CALL jobq.work(ARRAY['fetching'], stop_when_empty => true);
SELECT test.fetch('alone', 2) AS alone \gset
SELECT state FROM jobq.wait(:alone);
SELECT pg_advisory_unlock(1);
SELECT state, count(*) FROM jobq.wait_many(:'many'::bigint[]) GROUP BY 1;

-- consumers reserve one job of each key
SELECT jobq.create_queue('fetched', mode => 'consumer', limiters => '{hosts}');
SELECT jobq.enqueue('any', jsonb_build_object('server', jsonb_build_object('host', h)), 'fetched') FROM unnest('{a,a,b,true}'::text[]) h \g /dev/null
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens, array_agg(payload #>> '{server,host}' ORDER BY id) AS hosts
FROM generate_series(1, 3) i, jobq.reserve('{fetched}', 1 + 0 * i, wait => '5 min') \gset
SELECT count(*) FROM jobq.reserve('{fetched}', 10);
SELECT :'hosts' AS hosts, test.fetch('b') AS b \gset
CALL test.settle();
SELECT state FROM jobq.status(:b);
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[]) \g /dev/null
SELECT state FROM jobq.wait(:b);
SELECT id, token, payload #>> '{server,host}' AS host FROM jobq.reserve('{fetched}', 10, wait => '5 min') \gset
SELECT :'host' AS host, jobq.ack(:id, :token) IS NOT NULL AS done;
SELECT test.until($$ (SELECT running = 0 FROM jobq.limits WHERE limiter = 'hosts' AND ready IS NULL) $$);

-- two keys with the same hash share their lanes, but have separate limits
SELECT pg_advisory_lock(1);
CREATE FUNCTION test.rival(queue text) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('fetch', '{"server": {"host": "h59719"}, "lock": 1}', queue => queue, delay => '1 hour')
$$;
SELECT test.fetch('h4035') AS a1, test.rival('fetching') AS b \gset
SELECT count(*), count(DISTINCT flow) AS flows FROM jobq_internal.job WHERE id IN (:a1, :b);
SELECT test.in_gate(:a1);
SELECT test.fetch('h4035') AS a2 \gset
CALL test.settle();
SELECT state FROM jobq.status(:a2);
SELECT key, running FROM jobq.limits WHERE running > 0 AND ready IS NOT NULL;
SELECT jobq.edit(:b, run_at => now());
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a1, :a2, :b]);
SELECT jobq.enqueue('fetch', '{"server": {"host": "h4035"}}', 'fetched') AS a1, test.rival('fetched') AS b \gset
SELECT id, token FROM jobq.reserve('{fetched}', 10, wait => '5 min') \gset
SELECT :id = :a1 AS is_first;
SELECT jobq.enqueue('fetch', '{"server": {"host": "h4035"}}', 'fetched') AS a2 \gset
SELECT count(*) FROM jobq.reserve('{fetched}', 10);
SELECT jobq.edit(:b, run_at => now());
SELECT jobq.ack(:id, :token) IS NOT NULL AS done;
SELECT count(*), min(jobq.ack(id, token)::text) IS NOT NULL AS done FROM jobq.reserve('{fetched}', 1, wait => '5 min');
SELECT count(*), min(jobq.ack(id, token)::text) IS NOT NULL AS done FROM jobq.reserve('{fetched}', 1, wait => '5 min');
-- and a key with hash 0
SELECT jobq.create_limiter('l518655', max_running => 1, by => 'payload $.server.host');
SELECT jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{l518655}');
CALL test.settle();
SELECT pg_advisory_lock(1);
SELECT test.fetch('h1380') AS z1 \gset
SELECT test.in_gate(:z1);
SELECT test.fetch('h1380') AS z2 \gset
CALL test.settle();
SELECT state FROM jobq.status(:z2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:z1, :z2]);
SELECT jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{hosts}'), jobq.drop_limiter('l518655');

-- a rate for each key
SELECT jobq.create_limiter('calls', rate => '2 per hour burst 2', by => 'header client');
SELECT jobq.register('note', 'test.note(jsonb)', limiters => '{calls}');
CALL test.settle();
SELECT array_agg(jobq.enqueue('note', '1', headers => jsonb_build_object('client', c))) AS ids FROM unnest(ARRAY[1, 1, 1, 2]) c \gset
SELECT test.until(format('(SELECT count(*) = 3 FROM jobq.wait_many(%L::bigint[], ''0'') w WHERE w.state = ''completed'')', :'ids'));
CALL test.settle();
SELECT key, ready, running, rate, floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'calls' AND ready IS NOT NULL;
SELECT reason, regexp_replace(detail, 'at \w+ \w+ .*', 'at T') AS detail, remedy FROM jobq.explain((:'ids'::bigint[])[3]);
SELECT jobq.test_clock('31 min') \g /dev/null
SELECT state FROM jobq.wait((:'ids'::bigint[])[3]);
SELECT jobq.test_clock('0') \g /dev/null

-- by tenant, across queues; by role
SELECT jobq.create_limiter('of tenants', max_running => 1, by => 'tenant'), jobq.create_limiter('of roles', max_running => 1, by => 'role');
SELECT jobq.create_queue('first of two', tenant => 'header t'), jobq.create_queue('second of two', tenant => 'header t');
SELECT jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{of tenants}');
SELECT pg_advisory_lock(1);
CALL test.settle();
SELECT jobq.enqueue('fetch', '{"lock": 1}', 'first of two', headers => '{"t": "x"}') AS x1, jobq.enqueue('fetch', '{"lock": 1}', 'second of two', headers => '{"t": "x"}') AS x2,
	jobq.enqueue('fetch', '{"lock": 1}', 'second of two', headers => '{"t": "y"}') AS y1 \gset
SELECT test.in_gate(:x1, :y1);
CALL test.settle();
SELECT state FROM jobq.status(:x2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:x1, :x2, :y1]);
SELECT jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{of roles}');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('fetch', '{"lock": 1}') AS r1, jobq.enqueue('fetch', '{"lock": 1}') AS r2 \gset
SELECT test.in_gate(:r1);
SELECT key = current_user AS mine, ready, running FROM jobq.limits WHERE ready IS NOT NULL;
-- a role sees only the keys of readable jobs
SELECT jobq.grant_privilege('regress_jobq_bob');
SET ROLE regress_jobq_bob;
SELECT limiter, key, running, ready FROM jobq.limits WHERE by IS NOT NULL ORDER BY limiter COLLATE "C";
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_bob');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:r1, :r2]);

-- two limiters with keys, named by the kind and by the queue: a job needs room at both
SELECT jobq.create_limiter('of offices', max_running => 1, by => 'payload $.office');
SELECT jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{of offices}');
SELECT jobq.alter_queue('first of two', limiters => '{of tenants}');
SELECT pg_advisory_lock(1);
CALL test.settle();
CREATE FUNCTION test.of_both(tenant text, office text) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('fetch', jsonb_build_object('lock', 1, 'office', office), 'first of two', headers => jsonb_build_object('t', tenant)) $$;
SELECT test.of_both('x', 'a') AS xa, test.of_both('x', 'b') AS xb, test.of_both('y', 'a') AS ya, test.of_both('y', 'b') AS yb \gset
SELECT test.in_gate(:xa, :yb);
CALL test.settle();
SELECT reason, detail, remedy FROM jobq.explain(:xb) ORDER BY detail COLLATE "C";
CALL jobq.work(ARRAY['first of two'], stop_when_empty => true);
SELECT state FROM unnest(ARRAY[:xb, :ya]) id, jobq.status(id);
-- without the queue's limiter, the kind's limiter still counts
SELECT jobq.alter_queue('first of two', limiters => '{}');
CALL test.settle();
SELECT state FROM unnest(ARRAY[:xb, :ya]) id, jobq.status(id);
SELECT jobq.alter_queue('first of two', limiters => '{of tenants}');
CALL test.settle();
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:xa, :xb, :ya, :yb]);
-- the kind names both limiters
SELECT jobq.alter_queue('first of two', limiters => '{}'), jobq.register('fetch', 'test.fetch(jsonb)', limiters => '{of tenants,of offices}');
SELECT pg_advisory_lock(1);
SELECT test.of_both('x', 'a') AS xa, test.of_both('x', 'b') AS xb, test.of_both('y', 'a') AS ya, test.of_both('y', 'b') AS yb \gset
SELECT test.in_gate(:xa, :yb);
CALL test.settle();
SELECT state FROM unnest(ARRAY[:xb, :ya]) id, jobq.status(id);
SELECT limiter, key, running, ready FROM jobq.limits WHERE ready IS NOT NULL ORDER BY limiter COLLATE "C", key;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:xa, :xb, :ya, :yb]);

-- a running job keeps its permit of the key when another limiter is named before this limiter
SELECT jobq.create_limiter('wide', max_running => 100), jobq.register('fetch', 'test.fetch(jsonb)');
SELECT jobq.alter_queue('first of two', limiters => '{of tenants}');
SELECT pg_advisory_lock(1);
SELECT test.of_both('x', 'a') AS xa \gset
SELECT test.in_gate(:xa);
SELECT jobq.alter_queue('first of two', limiters => '{wide,of tenants}');
SELECT test.until('(SELECT running = 1 FROM jobq.limits WHERE type = ''limiter'' AND limiter = ''wide'')');
SELECT test.of_both('x', 'b') AS xb, test.of_both('y', 'a') AS ya \gset
SELECT test.in_gate(:xa, :ya);
CALL test.settle();
SELECT state FROM jobq.status(:xb);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:xa, :xb, :ya]);

-- throttle: a key rests after failed attempts, and other keys go on
SELECT jobq.create_limiter('frail', throttle => '2 failures in 1 hour', by => 'payload $.host');
SELECT jobq.register('fetch', 'test.broken(jsonb)', max_attempts => 1, limiters => '{frail}');
CALL test.settle();
SELECT array_agg(jobq.enqueue('fetch', '{"host": "a"}', 'fetching')) AS ids FROM generate_series(1, 2) \gset
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT jobq.enqueue('fetch', '{"host": "a"}', 'fetching') AS a3, jobq.enqueue('fetch', '{"host": "b"}', 'fetching') AS b1 \gset
SELECT state FROM jobq.wait(:b1);
CALL test.settle();
SELECT state FROM jobq.status(:a3);
SELECT type, key, ready, throttle, failed, rest_until > jobq_internal.clock() + '50 min' AS rests FROM jobq.limits WHERE limiter = 'frail' ORDER BY type, key;
SELECT reason, regexp_replace(detail, 'until .*, because', 'until then, because') AS detail, remedy FROM jobq.explain(:a3);
CALL jobq.work(ARRAY['fetching'], stop_when_empty => true);
SELECT state FROM jobq.status(:a3);
-- a consumer finds no job of the key either; attempts that a consumer returns count, unless rolled back
SELECT jobq.create_queue('frail', mode => 'consumer', limiters => '{frail}');
SELECT count(jobq.enqueue('any', jsonb_build_object('host', h), 'frail')) FROM unnest('{a,c,c,c,d}'::text[]) h;
SELECT array_agg(id) AS ids, array_agg(token) AS tokens, string_agg(payload ->> 'host', '' ORDER BY id) AS hosts FROM jobq.reserve('{frail}', 3, wait => '5 min') \gset
SELECT :'hosts' AS hosts;
BEGIN;
SAVEPOINT s;
SELECT count(jobq.nack(id, token, delay => '1 day')) FROM unnest(:'ids'::bigint[], :'tokens'::bigint[]) u (id, token);
ROLLBACK TO s;
SELECT count(jobq.nack(id, token, delay => '1 day')) FROM unnest((:'ids'::bigint[])[1:2], (:'tokens'::bigint[])[1:2]) u (id, token);
SELECT jobq.ack((:'ids'::bigint[])[3], (:'tokens'::bigint[])[3]);
COMMIT;
SELECT jobq.enqueue('any', '{"host": "c"}', 'frail') AS c4 \gset
SELECT key, failed, rest_until > jobq_internal.clock() + '50 min' AS rests FROM jobq.limits WHERE limiter = 'frail' AND type = 'key' ORDER BY key;
SELECT payload ->> 'host' AS host, jobq.ack(id, token) FROM jobq.reserve('{frail}', 10, wait => '5 min');
-- the rest ends with its window; without a throttle it ends at once
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM jobq.wait(:a3);
SELECT jobq.test_clock('0') \g /dev/null
SELECT array_agg(jobq.enqueue('fetch', '{"host": "e"}', 'fetching')) AS ids FROM generate_series(1, 2) \gset
SELECT state FROM jobq.wait_many(:'ids'::bigint[]);
SELECT jobq.enqueue('fetch', '{"host": "e"}', 'fetching') AS e3 \gset
SELECT test.until('(SELECT rest_until IS NOT NULL FROM jobq.limits WHERE limiter = ''frail'' AND key = ''e'')');
SELECT jobq.create_limiter('frail', max_running => 10, throttle => 'none');
SELECT state FROM jobq.wait(:e3);

-- by group: groups of two queues with the same key have one bucket; jobs without a group count together
SELECT jobq.create_limiter('of groups', rate => '1 per day', by => 'group'), jobq.register('fetch', 'test.fetch(jsonb)');
SELECT jobq.create_queue('groups1', limiters => '{of groups}'), jobq.create_queue('groups2', limiters => '{of groups}');
CALL test.settle();
SELECT jobq.enqueue('fetch', '{"lock": 2}', 'groups1', group_key => 'x') AS x1 \gset
SELECT state FROM jobq.wait(:x1);
SELECT jobq.enqueue('fetch', '{"lock": 2}', 'groups2', group_key => 'x') AS x2, jobq.enqueue('fetch', '{"lock": 2}', 'groups2', group_key => 'y') AS y1,
	jobq.enqueue('fetch', '{"lock": 2}', 'groups1') AS n1 \gset
SELECT state FROM jobq.wait_many(ARRAY[:y1, :n1]);
SELECT jobq.enqueue('fetch', '{"lock": 2}', 'groups2') AS n2 \gset
CALL test.settle();
SELECT state FROM unnest(ARRAY[:x2, :n2]) id, jobq.status(id);
SELECT key, ready, floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'of groups' AND type = 'key' ORDER BY key;
SELECT jobq.test_clock('25 hours') \g /dev/null
SELECT state FROM jobq.wait_many(ARRAY[:x2, :n2]);
-- by tag: the key is the rest of the first tag with this prefix
SELECT jobq.create_limiter('of tags', max_running => 1, by => 'tag customer');
SELECT jobq.alter_queue('groups1', limiters => '{of tags}');
SELECT pg_advisory_lock(1);
CALL test.settle();
SELECT jobq.enqueue('fetch', '{"lock": 1}', 'groups1', tags => '{vip,customer:a,customer:b}') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT jobq.enqueue('fetch', '{"lock": 1}', 'groups1', tags => '{customer:a}') AS a2, jobq.enqueue('fetch', '{"lock": 1}', 'groups1', tags => '{customer:b}') AS b1,
	jobq.enqueue('fetch', '{"lock": 1}', 'groups1', tags => '{customers:a}') AS n1 \gset
SELECT test.in_gate(:a1, :b1, :n1);
CALL test.settle();
SELECT state FROM jobq.status(:a2);
SELECT key, running, ready FROM jobq.limits WHERE limiter = 'of tags' AND type = 'key' ORDER BY key;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a1, :a2, :b1, :n1]);
SELECT jobq.test_clock('0') \g /dev/null

SELECT jobq.unregister('fetch'), jobq.register('note', 'test.note(jsonb)');
SELECT jobq.cancel_many(queue => 'frail', state => 'waiting') > 0 AS cancelled;
SELECT jobq.drop_queue(q, force => true) FROM unnest('{fetching,fetched,first of two,second of two,frail,groups1,groups2}'::text[]) q;
SELECT jobq.drop_limiter(l) FROM unnest('{hosts,calls,of tenants,of roles,of offices,wide,frail,of groups,of tags}'::text[]) l;
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE limiter IS NOT NULL)');
SELECT jobq.enqueue('note', delay => '1 hour') AS later \gset
SELECT test.reading('true') AS reads, jobq.cancel(:later);
TRUNCATE test.trace;
DROP FUNCTION test.of_both(text, text), test.fetch(jsonb), test.fetch(text, int), test.rival(text), test.reading(text);
