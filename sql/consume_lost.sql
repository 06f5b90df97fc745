-- A consumer is lost with several jobs: no job is charged for a crash possibly caused by a different job.
-- The job that causes the crashes is charged in the end.

SELECT jobq.create_queue('bench', mode => 'consumer');
CREATE FUNCTION test.bench_put(names text[], options text DEFAULT '') RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	jobs bigint;
BEGIN
	EXECUTE format($f$SELECT count(jobq.enqueue('carve', to_jsonb(name), 'bench', max_attempts => 2, backoff => 'fixed 0s' %s))
		FROM unnest($1) WITH ORDINALITY AS n (name, place)$f$, options) INTO jobs USING names;
	RETURN jobs;
END
$$;
-- the jobs of one call; "held" as reported by the consumer
CREATE TABLE test.bench (id bigint, token bigint, name text);
CREATE FUNCTION test.bench_take(max int, held int DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	WITH r AS MATERIALIZED (SELECT * FROM jobq.reserve('{bench}', max, '10 min', '5 min', 'carver', held)),
		kept AS (INSERT INTO test.bench SELECT id, token, payload ->> 0 FROM r)
	SELECT string_agg(payload ->> 0 || CASE WHEN alone THEN '!' ELSE '' END, ' ' ORDER BY id) FROM r
$$;
CREATE FUNCTION test.bench_end(function text, names text, more text DEFAULT '') RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	FOR job IN SELECT b.id, max(b.token) AS token FROM test.bench b WHERE b.name = ANY (string_to_array(names, ' ')) GROUP BY 1 LOOP
		EXECUTE format('SELECT jobq.%I(%s, %s%s)', function, job.id, job.token, more);
	END LOOP;
END
$$;
-- all leases expire
CREATE FUNCTION test.bench_run_out() RETURNS void LANGUAGE sql AS $$
	SELECT jobq.test_clock(jobq_internal.clock() - clock_timestamp() + '11 min')
$$;
CREATE FUNCTION test.bench_jobs() RETURNS TABLE (jobs text, state text, attempt int) LANGUAGE sql AS $$
	SELECT string_agg(payload ->> 0, ' ' ORDER BY id), state, attempt FROM jobq.jobs WHERE queue = 'bench' GROUP BY 2, 3 ORDER BY 1
$$;
CREATE FUNCTION test.bench_back() RETURNS void LANGUAGE sql AS $$
	SELECT test.bench_run_out();
	SELECT test.until('(SELECT count(*) = 0 FROM jobq_internal.lease_slots() WHERE consumer = ''carver'')');
$$;

-- each unfinished job of a call may be the cause: a quarter of the jobs is handed out at a time
SELECT test.bench_put('{a,b,c,d,e,f,g,h,i}');
SELECT test.bench_take(9);
SELECT test.bench_back();
SELECT * FROM test.bench_jobs();
SELECT DISTINCT errors IS NULL AS no_errors, log -> 0 ->> 'message' AS log FROM jobq.jobs WHERE queue = 'bench' AND state = 'ready';
SELECT test.bench_put('{x,y}');
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'a');
-- a remaining job of this quarter has crashed the consumer
SELECT test.bench_back();
SELECT * FROM test.bench_jobs();
SELECT test.bench_take(9);
SELECT test.bench_end('nack', 'c');
SELECT test.bench_end('ack', 'd');
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'e f');
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'g h');
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'b i');
-- the remaining jobs come only now, because the crash would affect them as well; a job that failed without a crash comes, too
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'c x y');
SELECT * FROM test.bench_jobs();

-- the unfinished jobs of a call, after some jobs of the call were ended or extended
SELECT test.bench_put('{k,l}');
SELECT test.bench_take(2);
SELECT jobq.test_clock(jobq_internal.clock() - clock_timestamp() + '8 min') \g /dev/null
SELECT test.bench_end('extend', 'k', ', ''10 min''');
SELECT jobq.test_clock(jobq_internal.clock() - clock_timestamp() + '3 min') \g /dev/null
SELECT test.until('(SELECT attempt = 0 AND state = ''ready'' FROM jobq.jobs WHERE queue = ''bench'' AND payload = ''"l"'')');
SELECT test.bench_end('extend', 'k', ', ''10 min''');
SELECT test.bench_back();
SELECT * FROM test.bench_jobs();
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'l');
SELECT test.bench_take(9);
SELECT test.bench_end('ack', 'k');

-- a job that was reserved alone is charged
SELECT test.bench_put('{m}');
SELECT test.bench_take(9);
SELECT test.bench_back();
SELECT state, attempt FROM jobq.jobs WHERE queue = 'bench' AND payload = '"m"';
SELECT test.bench_take(1);
SELECT test.bench_end('ack', 'm');

-- not if the consumer holds, or may hold, jobs of further calls: the job is charged only
-- after a reservation alone, by a consumer without further jobs
SELECT test.bench_put('{n}');
SELECT test.bench_take(1, 0);
SELECT test.bench_back();
SELECT test.bench_take(1, 3);
SELECT test.bench_back();
SELECT state, attempt FROM jobq.jobs WHERE queue = 'bench' AND payload = '"n"';
SELECT test.bench_take(1, 0);
SELECT test.bench_back();
SELECT state, attempt FROM jobq.jobs WHERE queue = 'bench' AND payload = '"n"';
-- the number of uncharged losses is limited
SELECT 'SELECT test.bench_take(1, 3)', 'SELECT test.bench_back()' FROM generate_series(1, 9) \gexec
SELECT state, attempt FROM jobq.jobs WHERE queue = 'bench' AND payload = '"n"';
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE queue = 'bench';
SELECT code, message, hint FROM test.error($$SELECT jobq.reserve('{bench}', held => -1)$$);

-- the timeout has passed: an extended job has begun, and is charged; the remaining jobs may not have begun
SELECT test.bench_put('{o,p,q}', ', timeout => ''40s''');
SELECT test.bench_take(3, 0);
SELECT test.bench_end('extend', 'o', ', ''1 min''');
SELECT test.bench_back();
SELECT payload ->> 0 AS name, state, attempt, errors -> 0 ->> 'message' AS error FROM jobq.jobs WHERE queue = 'bench' AND state <> 'completed' ORDER BY id;

-- a job with one attempt may have begun, and is not repeated
SELECT jobq.cancel_many(queue => 'bench', state => 'waiting');
SELECT test.bench_put('{r}');
SELECT count(jobq.enqueue('carve', to_jsonb(name), 'bench', max_attempts => 1)) FROM unnest('{s,t}'::text[]) AS name;
SELECT test.bench_take(3, 5);
SELECT test.bench_back();
SELECT payload ->> 0 AS name, state, attempt FROM jobq.jobs WHERE queue = 'bench' AND payload ->> 0 IN ('r', 's', 't') ORDER BY id;
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.cancel_many(queue => 'bench', state => 'waiting');
DROP TABLE test.bench;
DROP FUNCTION test.bench_put, test.bench_take, test.bench_end, test.bench_run_out, test.bench_back, test.bench_jobs;
