-- Tenant limits: a limiter by tenant, for the number of running jobs of each tenant and the rate of starts.

CREATE FUNCTION test.of(tenant text, what jsonb, kind text DEFAULT 'note', queue text DEFAULT 'branches', priority int DEFAULT NULL) RETURNS bigint LANGUAGE sql
AS $$ SELECT jobq.enqueue($3, $2, queue => $4, priority => $5, headers => CASE WHEN $1 IS NOT NULL THEN jsonb_build_object('branch', $1) END) $$;
CREATE FUNCTION test.tenants(limiter text DEFAULT 'branch') RETURNS TABLE (tenant text, ready bigint, running int, max_running int, rate text, tokens numeric) LANGUAGE sql
AS $$ SELECT key, ready, running, max_running, rate, floor(tokens) FROM jobq.limits l WHERE type = 'key' AND l.limiter = $1 ORDER BY 1 $$;
CREATE FUNCTION test.held_up(job bigint) RETURNS TABLE (reason text, detail text, remedy text) LANGUAGE sql
AS $$ SELECT reason, regexp_replace(detail, 'start at .*', 'start at ...'), remedy FROM jobq.explain($1) WHERE reason IN ('limit', 'rate') $$;

-- two jobs of each tenant run; a full tenant delays no other tenant, even with earlier and more urgent jobs
SELECT jobq.create_limiter('branch', max_running => 2, by => 'tenant');
SELECT jobq.create_queue('branches', tenant => 'header branch', limiters => '{branch}');
SELECT pg_advisory_lock(1);
SELECT test.of('bern', '1', 'gate') AS a, test.of('bern', '1', 'gate') AS b \gset
SELECT test.until('(SELECT running = 2 FROM test.tenants())');
SELECT test.of('bern', '1', 'gate', priority => -5) AS c, test.of('bern', '"later"', priority => -4) AS d \gset
SELECT test.of('genf', '"passes by"') AS e, test.of(NULL, '"of nobody"') AS f \gset
SELECT state FROM jobq.wait_many(ARRAY[:e, :f]);
CALL test.settle();
SELECT count(*) FILTER (WHERE state = 'running') AS running, count(*) FILTER (WHERE state = 'ready') AS ready FROM test.states(ARRAY[:a, :b, :c, :d]);
SELECT * FROM test.tenants();
SELECT * FROM test.held_up(:d);
-- raise and lower the limit: running jobs continue
SELECT jobq.create_limiter('branch', max_running => 3);
SELECT test.until('(SELECT running = 3 FROM test.tenants())');
SELECT jobq.create_limiter('branch', max_running => 1);
CALL test.settle();
SELECT state FROM jobq.status(:d);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c, :d]);

-- jobs without a tenant count together
SELECT pg_advisory_lock(1);
SELECT test.of(NULL, '1', 'gate') AS a \gset
SELECT test.in_gate(:a);
SELECT test.of(NULL, '"second"') AS b \gset
CALL test.settle();
SELECT state FROM jobq.status(:b);
SELECT * FROM test.held_up(:b);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);

-- a queue that names the limiter later rewrites the rows of waiting jobs
SELECT jobq.alter_queue('branches', limiters => '{}');
SELECT jobq.pause('branches');
SELECT test.of('bern', '1', 'gate') AS a, test.of('bern', '1', 'gate') AS b, test.of('genf', '"passes by"') AS c \gset
SELECT jobq.alter_queue('branches', limiters => '{branch}');
SELECT pg_advisory_lock(1);
SELECT jobq.resume('branches');
SELECT test.in_gate(:a);
SELECT state FROM jobq.wait(:c);
CALL test.settle();
SELECT state FROM jobq.status(:b);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b]);

-- work() uses the same permits, and skips tenants without a free permit
SELECT jobq.create_queue('branches by hand', tenant => 'header branch', limiters => '{branch}');
SELECT jobq.pause('branches by hand');
SELECT count(test.of('bern', to_jsonb(i), queue => 'branches by hand')) FROM generate_series(1, 200) i;
SELECT test.of('genf', '"genf"', queue => 'branches by hand') AS a \gset
TRUNCATE test.trace;
BEGIN;
SELECT jobq.resume('branches by hand');
SELECT jobq_internal.run_next('{branches by hand}') IS NOT NULL AS first, jobq_internal.run_next('{branches by hand}') IS NOT NULL AS second,
	jobq_internal.run_next('{branches by hand}') IS NOT NULL AS third;
SELECT note FROM test.trace ORDER BY n;
ROLLBACK;
SELECT jobq.cancel_many(queue => 'branches by hand', state => 'waiting'), jobq.drop_queue('branches by hand');
TRUNCATE test.trace;

-- consumers
SELECT jobq.create_limiter('branch outside', max_running => 2, by => 'tenant');
SELECT jobq.create_queue('branches outside', mode => 'consumer', tenant => 'header branch', limiters => '{branch outside}');
SELECT count(test.of(tenant, to_jsonb(i), queue => 'branches outside')) FROM unnest('{bern,genf,chur}'::text[]) tenant, generate_series(1, 5) i;
CREATE TABLE test.held (id bigint, token bigint, tenant text);
CALL test.settle();
WITH r AS (SELECT * FROM jobq.reserve('{branches outside}', 10, '1 hour', '5 min')) INSERT INTO test.held SELECT id, token, headers ->> 'branch' FROM r;
SELECT tenant, count(*) FROM test.held GROUP BY tenant ORDER BY tenant;
SELECT * FROM test.tenants('branch outside');
SELECT jobq.ack(id, token) FROM test.held WHERE tenant = 'genf' LIMIT 1;
SELECT headers ->> 'branch' AS tenant, count(*) FROM jobq.reserve('{branches outside}', 10, '1 hour', '0') GROUP BY 1;
SELECT jobq.cancel_many(queue => 'branches outside', state => 'waiting') > 0 AS cleared;
SELECT count(*) FROM jobq.jobs j, jobq.cancel(j.id) WHERE j.queue = 'branches outside' AND finished_at IS NULL;
DROP TABLE test.held;

-- a rate, by the test clock: one job of each tenant at once, and another after an hour
SELECT jobq.create_limiter('branch rate', rate => '1 per hour', by => 'tenant'), jobq.alter_queue('branches', limiters => '{branch rate}');
CALL test.settle();
SELECT count(test.of(tenant, to_jsonb(tenant))) FROM unnest('{bern,genf}'::text[]) tenant, generate_series(1, 3);
SELECT test.until('test.noted() = 2');
CALL test.settle();
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
SELECT * FROM test.tenants('branch rate');
SELECT w.* FROM jobq.jobs j, test.held_up(j.id) w WHERE j.queue = 'branches' AND j.state = 'ready' AND j.tenant = 'bern';
SELECT jobq.test_clock('1 hour') \g /dev/null
SELECT test.until('test.noted() = 4');
CALL test.settle();
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
-- the rate is removed: no job waits
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.alter_queue('branches', limiters => '{}'), jobq.drop_limiter('branch rate');
SELECT test.until('test.noted() = 6');
TRUNCATE test.trace;

-- round robin among thousands of tenants, more than there are lanes, each with one permit: all jobs run
SELECT jobq.alter_queue('branches', fair => 'jobs', limiters => '{branch}');
SELECT count(test.of('tenant ' || i, to_jsonb(i))) FROM generate_series(1, 5000) i, generate_series(1, 2);
SELECT test.until('test.noted() = 10000');
SELECT test.until('NOT EXISTS (SELECT FROM jobq.jobs WHERE queue = ''branches'' AND finished_at IS NULL)');
SELECT count(*) FROM test.tenants();
SELECT jobq.drop_queue(q, force => true) FROM unnest('{branches,branches outside}'::text[]) q;
SELECT jobq.drop_limiter('branch'), jobq.drop_limiter('branch outside');
TRUNCATE test.trace;
