-- Tenant limits: the number of running jobs of each tenant of a queue, and the rate of starts.

CREATE FUNCTION test.of(tenant text, what jsonb, kind text DEFAULT 'note', queue text DEFAULT 'branches', priority int DEFAULT NULL) RETURNS bigint LANGUAGE sql
AS $$ SELECT jobq.enqueue($3, $2, queue => $4, priority => $5, headers => CASE WHEN $1 IS NOT NULL THEN jsonb_build_object('branch', $1) END) $$;
CREATE FUNCTION test.tenants(queue text DEFAULT 'branches') RETURNS TABLE (tenant text, ready bigint, running bigint, max_running int, rate text, tokens numeric) LANGUAGE sql
AS $$ SELECT tenant, ready, running, max_running, rate, floor(tokens) FROM jobq.tenants t WHERE t.queue = $1 ORDER BY 1 $$;
CREATE FUNCTION test.held_up(job bigint) RETURNS TABLE (reason text, detail text, remedy text) LANGUAGE sql
AS $$ SELECT reason, regexp_replace(detail, 'start at .*', 'start at ...'), remedy FROM jobq.explain($1) WHERE reason IN ('limit', 'rate') $$;

-- bad input
SELECT o, (test.error(format('SELECT jobq.create_queue(''bad'', %s)', o))).* FROM unnest(ARRAY[
	'tenant_max_running => 1', 'tenant_rate => ''1 per second''', 'tenant => ''role'', tenant_max_running => -1',
	'tenant => ''role'', tenant_rate => ''fast''', 'tenant => ''role'', tenant_rate => ''1 per second by group''']) o;
SELECT count(*) FROM jobq.queues WHERE name = 'bad';

-- two jobs of each tenant run; a full tenant delays no other tenant, even with earlier and more urgent jobs
SELECT jobq.create_queue('branches', tenant => 'header branch', tenant_max_running => 2);
SELECT (test.error($$SELECT jobq.alter_queue('branches', tenant => 'none')$$)).*;
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
SELECT jobq.alter_queue('branches', tenant_max_running => 3);
SELECT test.until('(SELECT running = 3 FROM test.tenants())');
SELECT jobq.alter_queue('branches', tenant_max_running => 1);
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

-- a new limit counts running jobs, and rewrites the rows of waiting jobs
SELECT jobq.alter_queue('branches', tenant_max_running => 0);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.limits WHERE queue = ''branches'')');
SELECT pg_advisory_lock(1);
SELECT test.of('bern', '1', 'gate') AS a, test.of('bern', '1', 'gate') AS b \gset
SELECT test.until('(SELECT running = 2 FROM test.tenants())');
SELECT jobq.alter_queue('branches', tenant_max_running => 2);
CALL test.settle();
SELECT test.of('bern', '"counted"') AS c, test.of('genf', '"passes by"') AS d \gset
SELECT state FROM jobq.wait(:d);
CALL test.settle();
SELECT state FROM jobq.status(:c);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);

-- work() uses the same permits, and skips tenants without a free permit
SELECT jobq.create_queue('branches by hand', tenant => 'header branch', tenant_max_running => 1);
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
SELECT jobq.create_queue('branches outside', mode => 'consumer', tenant => 'header branch', tenant_max_running => 2);
SELECT count(test.of(tenant, to_jsonb(i), queue => 'branches outside')) FROM unnest('{bern,genf,chur}'::text[]) tenant, generate_series(1, 5) i;
CREATE TABLE test.held (id bigint, token bigint, tenant text);
CALL test.settle();
WITH r AS (SELECT * FROM jobq.reserve('{branches outside}', 10, '1 hour', '5 min')) INSERT INTO test.held SELECT id, token, headers ->> 'branch' FROM r;
SELECT tenant, count(*) FROM test.held GROUP BY tenant ORDER BY tenant;
SELECT * FROM test.tenants('branches outside');
SELECT jobq.ack(id, token) FROM test.held WHERE tenant = 'genf' LIMIT 1;
SELECT headers ->> 'branch' AS tenant, count(*) FROM jobq.reserve('{branches outside}', 10, '1 hour', '0') GROUP BY 1;
SELECT jobq.cancel_many(queue => 'branches outside', state => 'waiting') > 0 AS cleared;
SELECT count(*) FROM jobq.jobs j, jobq.cancel(j.id) WHERE j.queue = 'branches outside' AND finished_at IS NULL;
DROP TABLE test.held;

-- a rate, by the test clock: one job of each tenant at once, and another after an hour
SELECT jobq.alter_queue('branches', tenant_max_running => 0, tenant_rate => '1 per hour');
CALL test.settle();
SELECT count(test.of(tenant, to_jsonb(tenant))) FROM unnest('{bern,genf}'::text[]) tenant, generate_series(1, 3);
SELECT test.until('test.noted() = 2');
CALL test.settle();
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
SELECT * FROM test.tenants();
SELECT w.* FROM jobq.jobs j, test.held_up(j.id) w WHERE j.queue = 'branches' AND j.state = 'ready' AND j.tenant = 'bern';
SELECT jobq.test_clock('1 hour') \g /dev/null
SELECT test.until('test.noted() = 4');
CALL test.settle();
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
-- the rate is removed: no job waits
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.alter_queue('branches', tenant_rate => 'none');
SELECT test.until('test.noted() = 6');
TRUNCATE test.trace;

-- round robin among thousands of tenants, more than there are lanes, each with one permit: all jobs run
SELECT jobq.alter_queue('branches', fair_by => 'tenant', tenant_max_running => 1);
SELECT count(test.of('tenant ' || i, to_jsonb(i))) FROM generate_series(1, 5000) i, generate_series(1, 2);
SELECT test.until('test.noted() = 10000');
SELECT test.until('NOT EXISTS (SELECT FROM jobq.jobs WHERE queue = ''branches'' AND finished_at IS NULL)');
SELECT count(*) FROM test.tenants();
SELECT jobq.drop_queue('branches');
TRUNCATE test.trace;
