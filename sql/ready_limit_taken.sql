-- when_taken: the treatment of jobs that find their limiter full.

CREATE FUNCTION test.hold(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared((payload ->> 'lock')::bigint);
END
$$;
CREATE FUNCTION test.hold(host text, lock int DEFAULT 1, queue text DEFAULT 'taking') RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('hold', jsonb_strip_nulls(jsonb_build_object('host', host, 'lock', lock)), queue => queue)
$$;
CREATE FUNCTION test.taking(limiter text, running int) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT running = %s FROM jobq.limits WHERE limiter = %L)', running, limiter))
$$;

-- bad input
SELECT c, (test.error('SELECT jobq.create_limiter(''taken'', ' || c || ')')).* FROM unnest(ARRAY[
	'1, when_taken => ''''', '1, when_taken => ''drop''', '1, when_taken => ''release''', '1, when_taken => ''release soon''', '1, when_taken => ''release 10 ms''',
	'1, when_taken => ''release 2 years''', '1, when_taken => ''skip 5 min''', '1, when_taken => ''replace all''', 'rate => ''1 per second'', when_taken => ''skip''',
	'rate => ''1 per second'', when_taken => ''release 1 min''']) c;
SELECT jobq.create_limiter('taken', max_running => 1, rate => '1000 per second', when_taken => ' Skip ');
SELECT (test.error('SELECT jobq.create_limiter(''taken'', max_running => 0)')).*;
SELECT jobq.create_limiter('paced', rate => '1000 per second', when_taken => 'wait'), jobq.drop_limiter('paced');
CALL test.settle();
SELECT queue, kind, limiter, max_running, when_taken FROM jobq.limits WHERE limiter = 'taken';

-- skip: the job is cancelled without an attempt, and waiting sessions are notified
SELECT jobq.create_queue('taking'), jobq.register('hold', 'test.hold(jsonb)', limiters => '{taken}');
CALL test.settle();
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT test.hold('a') AS a2, jobq.enqueue('hold', '{"lock": 1}', 'taking', unique_key => 'x') AS a3 \gset
SELECT state, attempt, error FROM jobq.wait_many(ARRAY[:a2, :a3]);
SELECT jobq.enqueue('hold', '{"lock": 1}', 'taking', unique_key => 'x') > :a3 AS key_is_free;
-- many jobs at once, and a job that becomes due
SELECT array_agg(id) AS many FROM jobq.enqueue_many('hold', ARRAY(SELECT '{"lock": 1}'::jsonb FROM generate_series(1, 300)), queue => 'taking') id \gset
SELECT state, attempt, error, count(*) FROM jobq.wait_many(:'many'::bigint[], '5 min') GROUP BY 1, 2, 3;
SELECT jobq.enqueue('hold', '{"lock": 1}', 'taking', delay => '10 min') AS later \gset
CALL test.settle();
SELECT state FROM jobq.status(:later);
SELECT jobq.test_clock('11 min') \g /dev/null
SELECT state FROM jobq.wait(:later);
SELECT jobq.test_clock('0') \g /dev/null
-- a job in a paused queue is not skipped before the queue resumes
SELECT jobq.pause('taking');
SELECT test.hold('a') AS paused \gset
CALL test.settle();
SELECT state FROM jobq.status(:paused);
SELECT jobq.resume('taking');
SELECT state FROM jobq.wait(:paused);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a1);
-- a session that has seen the end of a job finds the permit free
CREATE PROCEDURE test.one_by_one(n int) LANGUAGE plpgsql AS $$
DECLARE
	id bigint;
	s text;
BEGIN
	FOR i IN 1..n LOOP
		id := test.hold('a', 2);
		COMMIT;
		SELECT state INTO s FROM jobq.wait(id);
		IF s <> 'completed' THEN
			RAISE NOTICE 'job % of % is %', i, n, s;
		END IF;
		COMMIT;
	END LOOP;
END
$$;
CALL test.one_by_one(100);

-- release: the job is scheduled for later, as if it had never been due
SELECT jobq.create_limiter('taken', when_taken => 'release 20 min');
CALL test.settle();
SELECT when_taken FROM jobq.limits WHERE limiter = 'taken';
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT test.hold('a') AS a2 \gset
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.status(%s))', :a2));
SELECT attempt, error, started_at, round(extract(epoch FROM run_at - enqueued_at) / 60) AS minutes FROM jobq.status(:a2);
SELECT array_agg(id) AS many FROM jobq.enqueue_many('hold', ARRAY(SELECT '{"lock": 1}'::jsonb FROM generate_series(1, 100)), queue => 'taking') id \gset
SELECT test.until(format('(SELECT count(*) = 100 FROM jobq.jobs WHERE state = ''scheduled'' AND id = ANY (%L))', :'many'));
SELECT jobq.cancel(id) FROM unnest(:'many'::bigint[]) id \g /dev/null
SELECT reason, detail, remedy FROM jobq.explain(:a2) WHERE reason <> 'scheduled';
-- a second time
SELECT jobq.test_clock('21 min') \g /dev/null
SELECT test.until(format('(SELECT round(extract(epoch FROM run_at - enqueued_at) / 60) > 30 FROM jobq.status(%s))', :a2));
SELECT state, attempt, error FROM jobq.status(:a2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a1);
SELECT jobq.test_clock('50 min') \g /dev/null
SELECT state, attempt FROM jobq.wait(:a2);
SELECT jobq.test_clock('0') \g /dev/null

-- replace: the latest job replaces the earlier jobs
SELECT jobq.create_limiter('taken', when_taken => 'replace');
CALL test.settle();
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT test.hold('a') AS a2 \gset
SELECT state, attempt, error FROM jobq.wait(:a1);
SELECT test.in_gate(:a2);
-- of many jobs, only the last runs
SELECT array_agg(id ORDER BY id) AS many FROM jobq.enqueue_many('hold', ARRAY(SELECT '{"lock": 1}'::jsonb FROM generate_series(1, 300)), queue => 'taking') id \gset
SELECT test.in_gate((:'many'::bigint[])[300]);
SELECT state, count(*) FROM jobq.wait_many((:'many'::bigint[])[1:299] || :a2::bigint, '5 min') GROUP BY 1;
SELECT attempt, regexp_replace(error, '\d+', 'N') AS error FROM jobq.wait((:'many'::bigint[])[1]);
CALL test.settle();
SELECT state FROM jobq.status((:'many'::bigint[])[300]);
-- a job that was enqueued earlier, and becomes due later, replaces no job
SELECT jobq.create_limiter('taken', max_running => 2);
CALL test.settle();
SELECT jobq.enqueue('hold', '{"lock": 1}', 'taking', delay => '1 hour') AS early, test.hold('b') AS b \gset
SELECT test.in_gate((:'many'::bigint[])[300], :b);
SELECT test.hold('c') AS c \gset
SELECT test.in_gate(:b, :c);
SELECT state, error FROM jobq.wait((:'many'::bigint[])[300]);
SELECT jobq.edit(:early, run_at => now());
SELECT state, replace(error, :c::text, 'N') AS error FROM jobq.wait(:early);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:b, :c]);
SELECT test.taking('taken', 0);
SELECT jobq.create_limiter('taken', max_running => 1);
CALL test.settle();

-- with consumers
SELECT jobq.create_queue('taken by consumers', mode => 'consumer', limiters => '{taken}');
CALL test.settle();
SELECT jobq.enqueue('any', '1', 'taken by consumers') AS first \gset
SELECT id = :first AS is_first, token FROM jobq.reserve('{taken by consumers}', 1, wait => '5 min') \gset
SELECT :'is_first' AS is_first;
SELECT jobq.enqueue('any', '2', 'taken by consumers') AS second \gset
SELECT state, attempt, replace(error, :second::text, 'N') AS error FROM jobq.wait(:first);
SELECT (test.error(format('SELECT jobq.ack(%s, %s)', :first, :token))).code;
SELECT id = :second AS is_second, token FROM jobq.reserve('{taken by consumers}', 1, wait => '5 min') \gset
SELECT :'is_second' AS is_second;
-- a consumer's job is replaced by a worker's job, and the reverse
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS third \gset
SELECT state FROM jobq.wait(:second);
SELECT test.in_gate(:third);
SELECT jobq.enqueue('any', '4', 'taken by consumers') AS fourth \gset
SELECT id = :fourth AS is_fourth, token FROM jobq.reserve('{taken by consumers}', 1, wait => '5 min') \gset
SELECT :'is_fourth' AS is_fourth;
SELECT state FROM jobq.wait(:third);
SELECT pg_advisory_unlock(1);
SELECT jobq.create_limiter('taken', when_taken => 'skip');
CALL test.settle();
SELECT jobq.enqueue('any', '5', 'taken by consumers') AS fifth \gset
SELECT state, error FROM jobq.wait(:fifth);
SELECT jobq.ack(:fourth, :token) IS NOT NULL AS done;
SELECT jobq.enqueue('any', '6', 'taken by consumers') AS sixth \gset
SELECT id = :sixth AS is_sixth, token FROM jobq.reserve('{taken by consumers}', 1, wait => '5 min') \gset
SELECT :'is_sixth' AS is_sixth;
SELECT jobq.create_limiter('taken', when_taken => 'release 1 hour');
CALL test.settle();
SELECT jobq.enqueue('any', '7', 'taken by consumers') AS seventh \gset
SELECT test.until(format('(SELECT state = ''scheduled'' FROM jobq.status(%s))', :seventh));
SELECT jobq.ack(:sixth, :token) IS NOT NULL AS done, jobq.cancel(:seventh);

-- each key separately
SELECT jobq.create_limiter('of hosts', max_running => 1, by => 'payload $.host', when_taken => 'skip');
SELECT jobq.register('hold', 'test.hold(jsonb)', limiters => '{of hosts}');
CALL test.settle();
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS a1, test.hold('b') AS b1, test.hold(NULL) AS n1 \gset
SELECT test.in_gate(:a1, :b1, :n1);
SELECT test.hold('a') AS a2, test.hold('c') AS c1, test.hold(NULL) AS n2 \gset
SELECT state, error FROM jobq.wait_many(ARRAY[:a2, :n2]);
SELECT test.in_gate(:a1, :b1, :n1, :c1);
SELECT jobq.cancel(:n1), jobq.cancel(:c1);
SELECT jobq.create_limiter('of hosts', when_taken => 'replace');
CALL test.settle();
SELECT test.hold('a') AS a3 \gset
SELECT state FROM jobq.wait(:a1);
SELECT test.in_gate(:a3, :b1);
-- jobs of another role are not replaced
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_alice', 'produce', 'taking');
SET ROLE regress_jobq_alice;
SELECT test.hold('a') AS alice1 \gset
SELECT test.hold('a') AS alice2 \gset
SELECT state, replace(error, :alice2::text, 'N') AS error FROM jobq.wait(:alice1);
RESET ROLE;
CALL test.settle();
SELECT test.in_gate(:a3, :b1);
SELECT state FROM jobq.status(:alice2);
SELECT reason, detail, remedy FROM jobq.explain(:alice2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a3, :b1, :alice2]);
-- nor are jobs of another key with the same hash, and so the same lanes
SELECT pg_advisory_lock(1);
SELECT test.hold('h79548') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT test.hold('h194087') AS b, test.hold('h79548') AS a2 \gset
SELECT count(DISTINCT flow) AS flows FROM jobq_internal.job WHERE id IN (:b, :a2);
SELECT state FROM jobq.wait(:a1);
SELECT test.in_gate(:b, :a2);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:b, :a2]);
-- many keys
SELECT jobq.create_limiter('of hosts', when_taken => 'skip');
CALL test.settle();
SELECT jobq.alter_queue('taking', mode => 'consumer');
SELECT count(jobq.enqueue('hold', jsonb_build_object('host', i), 'taking')) FROM generate_series(1, 1000) i;
SELECT test.until('(SELECT ready = 1000 FROM jobq.queues WHERE name = ''taking'')');
SELECT array_agg(id) AS ids, array_agg(token) AS tokens, array_agg(payload -> 'host') AS hosts FROM jobq.reserve('{taking}', 1000, wait => '5 min') \gset
SELECT array_agg(jobq.enqueue('hold', jsonb_build_object('host', h), 'taking')) AS others FROM unnest(:'hosts'::jsonb[]) h \gset
SELECT state, count(*) = cardinality(:'ids'::bigint[]) AS all FROM jobq.wait_many(:'others'::bigint[], '5 min') GROUP BY 1;
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[]) IS NOT NULL AS done, jobq.cancel_many(queue => 'taking', state => 'waiting') IS NOT NULL AS cleared;
SELECT jobq.alter_queue('taking', mode => 'worker');

-- in a queue without workers, and with work()
SELECT pg_advisory_lock(1);
SELECT test.hold('a') AS a1 \gset
SELECT test.in_gate(:a1);
SELECT test.hold('a', 1, 'manual') AS a2, test.hold('b', 2, 'manual') AS b1 \gset
CALL jobq.work(ARRAY['manual'], stop_when_empty => true);
SELECT state, error FROM jobq.wait_many(ARRAY[:a2, :b1]);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:a1);

SELECT jobq.unregister('hold'), jobq.revoke_privilege('regress_jobq_alice', queue => 'taking');
SELECT jobq.drop_queue(q, force => true) FROM unnest('{taking,taken by consumers}'::text[]) q;
SELECT jobq.drop_limiter(l) FROM unnest('{taken,of hosts}'::text[]) l;
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE limiter IS NOT NULL)');
TRUNCATE test.trace;
DROP FUNCTION test.hold(jsonb), test.hold(text, int, text), test.taking(text, int);
DROP PROCEDURE test.one_by_one(int);
