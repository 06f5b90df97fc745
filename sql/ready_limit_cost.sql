-- Limiters with a function that returns the cost of a job.
TRUNCATE test.trace;

CREATE FUNCTION test.price(job jsonb) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF job -> 'payload' ? 'raise' THEN
		RAISE EXCEPTION 'no price for %', job ->> 'kind';
	END IF;
	RETURN job -> 'payload' -> 'price';
END
$$;
CREATE FUNCTION test.call(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared((payload ->> 'lock')::bigint);
	IF payload ? 'fail' THEN
		RAISE EXCEPTION 'broken';
	END IF;
END
$$;
CREATE FUNCTION test.ask(price int, lock int DEFAULT 1, queue text DEFAULT 'calling', host text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('call', jsonb_strip_nulls(jsonb_build_object('price', price, 'lock', lock, 'host', host)), queue => queue)
$$;

-- bad input
CREATE FUNCTION test.price_text(job jsonb) RETURNS text LANGUAGE sql AS $$ SELECT '1' $$;
CREATE FUNCTION test.price_set(job jsonb) RETURNS SETOF int LANGUAGE sql AS $$ SELECT 1 $$;
CREATE FUNCTION test.price_none() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;
CREATE FUNCTION pg_temp.price(job jsonb) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;
SELECT f, (test.error(format('SELECT jobq.create_limiter(''api'', 1, cost => %L)', f))).code,
	regexp_replace((test.error(format('SELECT jobq.create_limiter(''api'', 1, cost => %L)', f))).message, 'pg_temp_\d+', 'pg_temp_N') AS message
FROM unnest(ARRAY['', 'test.no_such', 'test.price(text)', 'test.price_text', 'test.price_set(jsonb)', 'test.price_none()', 'test.price_none', 'pg_catalog.jsonb_typeof', 'pg_temp.price', 'test.price; DROP']) f;

-- a job with cost 0 runs, although the limiter is full
SELECT jobq.create_limiter('api', max_running => 1, cost => 'test.price');
SELECT jobq.create_queue('calling', open => true), jobq.register('call', 'test.call(jsonb)', limiters => '{api}');
CALL test.settle();
SELECT limiter, max_running, by, cost FROM jobq.limits WHERE limiter = 'api';
SELECT pg_advisory_lock(1), pg_advisory_lock(2);
SELECT test.ask(1) AS a, test.ask(NULL) AS b, test.ask(0) AS vip, test.ask(0, 2) AS vip2 \gset
SELECT test.in_gate(:a, :vip, :vip2);
CALL test.settle();
SELECT id = :b AS b, state, limit_cost FROM jobq.live_jobs WHERE kind = 'call' ORDER BY id;
SELECT running FROM jobq.limits WHERE limiter = 'api';
SELECT reason, replace(detail, :'a', 'A') AS detail FROM jobq.explain(:b);
-- reloaded limits do not count this job
SELECT jobq.create_limiter('api', max_running => 2);
SELECT test.in_gate(:a, :b, :vip, :vip2);
SELECT running FROM jobq.limits WHERE limiter = 'api';
SELECT jobq.create_limiter('api', max_running => 1);
SELECT jobq.cancel(:vip2);
CALL test.settle();
SELECT running FROM jobq.limits WHERE limiter = 'api';
-- work() runs the free job, but not the other jobs
SELECT test.ask(1, 3) AS c, test.ask(0, 3) AS vip3 \gset
SELECT state FROM jobq.wait(:vip3);
SELECT jobq.create_queue('in a session');
SELECT test.ask(1, 3, 'in a session') AS c2, test.ask(0, 3, 'in a session') AS vip4 \gset
CALL jobq.work(ARRAY['in a session'], stop_when_empty => true);
SELECT state FROM jobq.wait(:vip4, '5 min');
SELECT i.id = :c2 AS c2, s.state FROM unnest(ARRAY[:c2, :vip4]) WITH ORDINALITY i (id, n), jobq.status(i.id) s ORDER BY n;
SELECT pg_advisory_unlock_all();
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :vip, :c, :c2]);
SELECT test.until($$ (SELECT running = 0 FROM jobq.limits WHERE limiter = 'api') $$);

-- the cost function runs in the session that enqueues the job, and its errors reach the caller
SELECT (test.error($$ SELECT jobq.enqueue('call', '{"raise": 1}', 'calling') $$)).*;
SELECT p, (test.error(format('SELECT test.ask(%s)', p))).* FROM unnest('{-1,1000001}'::int[]) p;
SELECT test.ask(1000000) AS dear \gset
SELECT state FROM jobq.wait(:dear);
CREATE FUNCTION test.seen(job jsonb) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (current_user || ' ' || job::text);
	RETURN NULL;
END
$$;
SELECT jobq.create_limiter('seeing', max_running => 1, cost => 'test.seen(jsonb)');
SELECT jobq.create_queue('seen', open => true, mode => 'consumer', limiters => '{seeing}', tenant => 'header t');
REVOKE ALL ON FUNCTION test.price(jsonb) FROM PUBLIC;
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('any', '[1]', 'seen', priority => 3, headers => '{"t": "acme"}', group_key => 'g', tags => '{x,y}') IS NOT NULL AS done;
SELECT (test.error('SELECT test.ask(1)')).*;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT note FROM test.trace ORDER BY n;
SELECT limit_cost FROM jobq.jobs WHERE queue = 'seen';
TRUNCATE test.trace;
-- while the cost function is missing, enqueueing fails
ALTER FUNCTION test.price(jsonb) RENAME TO price_later;
SELECT (test.error('SELECT test.ask(1)')).*;
ALTER FUNCTION test.price_later(jsonb) RENAME TO price;

-- the cost is stored with the job, however the job was enqueued; edit() evaluates the function again
SELECT jobq.pause('calling');
SELECT array_agg(id ORDER BY id) AS ids FROM jobq.enqueue_many('call', ARRAY(SELECT jsonb_build_object('price', i, 'lock', 1) FROM generate_series(0, 3) i), queue => 'calling') id \gset
SELECT limit_cost, count(DISTINCT flow) FROM jobq_internal.job WHERE id = ANY (:'ids') GROUP BY 1 ORDER BY 1;
INSERT INTO jobq.inbox (kind, payload, queue) VALUES ('call', '{"price": 7}', 'calling') RETURNING id \gset
SELECT limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.edit(:id, payload => '{"price": 8}');
SELECT limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT (test.error(format($$ SELECT jobq.edit(%s, payload => '{"raise": 8}') $$, :id))).*;
SELECT jobq.edit(:id, max_attempts => 1);
SELECT payload, limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.edit(:id, queue => 'seen');
SELECT limit_cost FROM jobq.live_jobs WHERE id = :id;
-- the function sees the job with its new priority
SELECT jobq.enqueue('any', queue => 'seen', priority => 3) AS seen \gset
SELECT jobq.edit(:seen, headers => '{"t": "acme"}', priority => 7), jobq.cancel(:seen);
SELECT substring(note FROM '"priority": \d+') AS asked FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- edit_many(), merge and replace evaluate the function again
UPDATE jobq_internal.job SET limit_cost = NULL WHERE id = :id;
SELECT jobq.edit_many('{"timeout": "1 h"}', ids => ARRAY[:id]);
SELECT limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.edit_many('{"queue": "calling"}', ids => ARRAY[:id]);
SELECT queue, limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.cancel(:id);
SELECT jobq.enqueue('call', '{"price": 2}', 'calling', unique_key => 'k') AS id \gset
SELECT jobq.enqueue('call', '{"price": 5}', 'calling', unique_key => 'k', uniqueness => '{"on_conflict": "merge"}') = :id AS merged;
SELECT payload, limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.enqueue('call', '{"price": 6}', 'calling', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}') = :id AS replaced;
SELECT payload, limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.enqueue('call', '{"price": 9}', 'calling', unique_key => 'k') = :id AS skipped;
SELECT payload, limit_cost FROM jobq.live_jobs WHERE id = :id;
-- a cost function called by edit() sees the job unchanged, with its unique key, and must not change the job
CREATE FUNCTION test.price_again(job jsonb) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	IF job -> 'payload' ? 'again' THEN
		PERFORM jobq.enqueue('again', '{}', queue => 'calling', unique_key => 'k', uniqueness => jsonb_build_object('on_conflict', job -> 'payload' ->> 'again'));
	END IF;
	RETURN 3;
END
$$;
SELECT jobq.create_limiter('again', max_running => 5, cost => 'test.price_again(jsonb)'), jobq.register('again', 'test.note(jsonb)', limiters => '{again}');
SELECT jobq.enqueue('again', '{"a": 1}', 'calling', unique_key => 'k') AS id \gset
SELECT jobq.edit(:id, payload => '{"again": "skip"}');
SELECT id = :id AS same, payload, limit_cost FROM jobq.live_jobs WHERE kind = 'again';
SELECT regexp_replace((test.error(format($$ SELECT jobq.edit(%s, payload => '{"again": "replace"}') $$, :id))).message, '\d+', 'N');
SELECT id = :id AS same, payload, limit_cost FROM jobq.live_jobs WHERE kind = 'again';
SELECT jobq.cancel(:id), jobq.unregister('again');
SELECT (test.error($$ SELECT jobq.schedule('dear', '* * * * *', 'call', '{"price": 4}', options => '{"limit_cost": 0}') $$)).message;
SELECT jobq.schedule('dear', '0 0 1 1 *', 'call', '{"price": 4}', options => '{"queue": "calling"}') IS NOT NULL AS done;
SELECT jobq.run_schedule('dear') AS id \gset
SELECT limit_cost FROM jobq.live_jobs WHERE id = :id;
SELECT jobq.unschedule('dear');
SELECT jobq.cancel_many(queue => 'calling', state => 'waiting');
SELECT jobq.resume('calling');

-- callbacks and steps: the cost is evaluated at definition time, and kept by jobs that are created again
SELECT jobq.create_batch(on_success => '{"kind": "call", "payload": {"price": 5, "lock": 3}, "queue": "calling"}') AS batch \gset
SELECT jobq.add_jobs(:batch, 'echo', '{1}') \g /dev/null
SELECT jobq.start_batch(:batch);
SELECT test.until($$ EXISTS (SELECT FROM jobq.jobs WHERE kind = 'call' AND state = 'completed' AND limit_cost = 5) $$);
SELECT (test.error($$ SELECT jobq.create_batch(on_success => '{"kind": "call", "payload": {"raise": 5}}') $$)).message;
SELECT (test.error($$ SELECT jobq.create_batch(on_success => '{"kind": "call", "limit_cost": 0}') $$)).message;
SELECT jobq.create_workflow('{"steps": [{"name": "list", "kind": "echo", "payload": [1, 2]},
	{"name": "a", "kind": "call", "payload": {"price": 6, "lock": 3}, "queue": "calling", "needs": ["list"], "map": {"$result": "list"}},
	{"name": "b", "kind": "call", "payload": {"price": 7, "lock": 3, "fail": 1}, "needs": ["a"], "queue": "calling", "max_attempts": 1}]}') AS batch \gset
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT kind, state, limit_cost FROM jobq.jobs WHERE batch_id = :batch ORDER BY limit_cost, id;
SELECT jobq.rerun_steps(:batch, 'a') IS NOT NULL AS done;
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT state, limit_cost, count(*) FROM jobq.jobs WHERE batch_id = :batch GROUP BY 1, 2 ORDER BY 2, 1;
SELECT id FROM jobq.jobs WHERE batch_id = :batch AND state = 'dead' \gset
SELECT jobq.edit(:id, payload => '{"price": 8, "lock": 1}');
SELECT limit_cost FROM jobq.jobs WHERE id = :id;
SELECT pg_advisory_lock(1);
SELECT jobq.retry(:id);
SELECT test.in_gate(:id);
SELECT limit_cost FROM jobq.jobs WHERE id = :id;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:id);
SELECT jobq.rerun(:id) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT limit_cost FROM jobq.jobs WHERE id = :id;

-- consumers reserve free jobs, too
SELECT jobq.create_queue('taken', mode => 'consumer', limiters => '{api}');
SELECT jobq.enqueue('any', jsonb_build_object('price', p), 'taken') FROM unnest('{1,1,0,0}'::int[]) p \g /dev/null
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens, array_agg(payload ->> 'price' ORDER BY id) AS prices
FROM generate_series(1, 3) i, jobq.reserve('{taken}', 1 + 0 * i, wait => '5 min') \gset
SELECT count(*) FROM jobq.reserve('{taken}', 10);
SELECT jobq.create_limiter('api', max_running => 1);
CALL test.settle();
SELECT :'prices' AS prices, running FROM jobq.limits WHERE limiter = 'api';
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[]) \g /dev/null
SELECT id, token, payload ->> 'price' AS price FROM jobq.reserve('{taken}', 10, wait => '5 min') \gset
SELECT :'price' AS price, jobq.ack(:id, :token) IS NOT NULL AS done;

-- a rate: each job takes its cost in tokens, and the bucket may become negative
SELECT jobq.create_limiter('rated', rate => '6 per hour burst 4', cost => 'test.price(jsonb)');
SELECT jobq.create_queue('rated', mode => 'consumer', limiters => '{rated}');
SELECT test.until($$ (SELECT tokens = 4 FROM jobq.limits WHERE limiter = 'rated') $$);
SELECT jobq.enqueue('any', jsonb_build_object('price', p), 'rated') FROM unnest('{3,0,5,1,0}'::int[]) p \g /dev/null
-- tokens of an unused reservation are returned
BEGIN;
SELECT payload FROM jobq.reserve('{rated}', 1, wait => '5 min');
SELECT floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'rated';
ROLLBACK;
SELECT test.until($$ (SELECT floor(tokens) = 4 AND running = 0 FROM jobq.limits WHERE limiter = 'rated') $$);
CALL test.settle();
SELECT payload ->> 'price' AS price FROM generate_series(1, 4) i, jobq.reserve('{rated}', 1 + 0 * i, wait => '5 min') ORDER BY id;
SELECT floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'rated';
SELECT id FROM jobq.live_jobs WHERE queue = 'rated' AND state = 'ready' \gset
SELECT reason, regexp_replace(detail, 'at \w+ \w+ .*', 'at T') AS detail FROM jobq.explain(:id);
SELECT jobq.test_clock('30 min') \g /dev/null
SELECT count(*) FROM jobq.reserve('{rated}', 1);
SELECT jobq.test_clock('60 min') \g /dev/null
SELECT payload ->> 'price' AS price FROM jobq.reserve('{rated}', 1, wait => '5 min');
SELECT jobq.test_clock('0') \g /dev/null

-- the same for each key; a free job has no key
SELECT jobq.create_limiter('keyed', max_running => 5, rate => '6 per hour burst 2', by => 'payload $.host', cost => 'test.price(jsonb)');
SELECT jobq.register('call', 'test.call(jsonb)', limiters => '{keyed}');
CALL test.settle();
SELECT test.ask(4, host => 'a') AS a1, test.ask(1, host => 'a') AS a2, test.ask(0, host => 'a') AS avip, test.ask(1, host => 'b') AS b1, test.ask(1, host => 'b') AS b2, test.ask(1, host => 'b') AS b3 \gset
SELECT state FROM jobq.wait_many(ARRAY[:a1, :avip, :b1, :b2]);
CALL test.settle();
SELECT key, ready, running, floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'keyed' AND ready IS NOT NULL ORDER BY key;
SELECT reason, regexp_replace(detail, 'at \w+ \w+ .*', 'at T') AS detail FROM jobq.explain(:a2);
SELECT jobq.test_clock('11 min') \g /dev/null
SELECT state FROM jobq.wait(:b3);
CALL test.settle();
SELECT state FROM jobq.status(:a2);
SELECT jobq.test_clock('35 min') \g /dev/null
SELECT state FROM jobq.wait(:a2);
SELECT jobq.test_clock('0') \g /dev/null

-- an expensive job waits no longer for its turn than cheap jobs
SELECT jobq.create_limiter('turns', rate => '1 per hour burst 3', cost => 'test.price(jsonb)');
SELECT jobq.create_queue('turns', mode => 'consumer', limiters => '{turns}');
SELECT jobq.enqueue('any', jsonb_build_object('price', p), 'turns') FROM unnest('{1,1,100,1}'::int[]) p \g /dev/null
CALL test.settle();
SELECT payload ->> 'price' AS price FROM generate_series(1, 3) i, jobq.reserve('{turns}', 1 + 0 * i, wait => '5 min') ORDER BY id;
SELECT count(*) FROM jobq.reserve('{turns}', 1);
SELECT floor(tokens) AS tokens FROM jobq.limits WHERE limiter = 'turns';

-- the scheduler does not call the cost function: a job merged with a callback keeps its cost
CREATE FUNCTION test.price_told(payload jsonb) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) SELECT backend_type FROM pg_stat_activity WHERE pid = pg_backend_pid();
	RETURN 3;
END $$;
SELECT jobq.create_limiter('told', max_running => 5, cost => 'test.price_told(jsonb)'), jobq.register('told', 'test.echo(jsonb)', limiters => '{told}');
TRUNCATE test.trace;
SELECT jobq.enqueue('told', '{"a": 1}', 'calling', delay => '1 h', unique_key => 't') AS told \gset
SELECT jobq.create_batch(on_success => '{"kind": "told", "payload": {"b": 2}, "queue": "calling", "unique_key": "t", "uniqueness": {"on_conflict": "merge"}}') AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{1}');
SELECT jobq.start_batch(:batch);
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT payload, limit_cost FROM jobq.live_jobs WHERE id = :told;
SELECT DISTINCT note FROM test.trace;
SELECT jobq.cancel(:told), jobq.unregister('told'), jobq.drop_limiter('told');

SELECT jobq.unregister('call'), jobq.register('note', 'test.note(jsonb)');
SELECT jobq.cancel_many(queue => q) >= 0 AS cleared FROM unnest('{calling,seen,in a session,taken,rated,turns}'::text[]) q;
SELECT jobq.drop_queue(q, force => true) FROM unnest('{calling,seen,in a session,taken,rated,turns}'::text[]) q;
SELECT jobq.drop_limiter(l) FROM unnest('{api,seeing,rated,keyed,turns,again}'::text[]) l;
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE limiter IS NOT NULL)');
TRUNCATE test.trace;
DROP FUNCTION test.price(jsonb), test.seen(jsonb), test.call(jsonb), test.ask(int, int, text, text), test.price_text(jsonb), test.price_set(jsonb), test.price_none(), test.price_told(jsonb), test.price_again(jsonb);
