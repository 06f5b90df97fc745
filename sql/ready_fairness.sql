-- Fair scheduling: tenants in round robin, queue weights, and strict order in a pool.  All queues have one worker.

CREATE FUNCTION test.turn(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (payload #>> '{}')
$$;
SELECT jobq.register('turn', 'test.turn(jsonb, jobq.job_context)');
CREATE FUNCTION test.add(what text, tenant jsonb, queue text DEFAULT 'first', n int DEFAULT 1, priority int DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(jobq.enqueue('turn', to_jsonb(what), queue => $3, priority => $5,
		headers => CASE WHEN tenant IS NOT NULL THEN jsonb_build_object('tenant', tenant) END)) FROM generate_series(1, n)
$$;
-- Wait until all jobs are in memory, then let the only worker run them.  test.order() returns the order of execution.
CREATE PROCEDURE test.go(n int) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM test.until(format($c$(SELECT ready_entries >= %s FROM jobq_internal.scheduler_state())$c$, n));
	CALL test.settle();
	PERFORM pg_advisory_unlock(1);
	COMMIT;
	PERFORM test.until(format($c$(SELECT count(*) >= %s FROM test.trace)$c$, n));
END
$$;
CREATE PROCEDURE test.halt(queue text DEFAULT 'first') LANGUAGE plpgsql AS $$
DECLARE
	gate bigint;
BEGIN
	TRUNCATE test.trace;
	PERFORM pg_advisory_lock(1);
	gate := jobq.enqueue('gate', '1', queue => queue);
	COMMIT;
	PERFORM test.until(format($c$(SELECT state = 'running' FROM jobq.status(%s))$c$, gate));
END
$$;
CREATE FUNCTION test.order(upto int DEFAULT 1000) RETURNS text LANGUAGE sql
AS $$ SELECT string_agg(note, '' ORDER BY n) FROM (SELECT * FROM test.trace ORDER BY n LIMIT upto) t $$;

SELECT jobq.pause('first'), jobq.resume('first');
SELECT jobq.alter_queue('first', tenant => 'header tenant', fair => 'jobs');
-- a thousand jobs of one tenant do not delay three jobs of another
CALL test.halt();
SELECT test.add('a', '"a"', n => 1000), test.add('b', '"b"', n => 3), test.add('c', '7', n => 2), test.add('-', NULL, n => 2);
CALL test.go(1007);
SELECT length(test.order(12)), length(replace(test.order(12), 'a', '')) AS others, length(test.order(1007)) AS n;
-- weights
SELECT jobq.alter_queue('first', fair_weights => '{"a": 3, "b": 1}');
CALL test.halt();
SELECT test.add('a', '"a"', n => 40), test.add('b', '"b"', n => 40);
CALL test.go(80);
SELECT length(replace(test.order(40), 'b', '')) BETWEEN 29 AND 31 AS three_to_one;
-- a late tenant does not receive the missed time slices
SELECT jobq.alter_queue('first', fair_weights => '{}');
CALL test.halt();
SELECT test.add('b', '"b"', n => 200);
CALL test.go(200);
CALL test.halt();
SELECT test.add('a', '"a"', n => 20), test.add('b', '"b"', n => 20);
CALL test.go(40);
SELECT length(replace(test.order(20), 'b', '')) BETWEEN 9 AND 11 AS even;
-- first by priority, then round robin
CALL test.halt();
SELECT test.add('a', '"a"', n => 5), test.add('b', '"b"', n => 5), test.add('A', '"a"', n => 2, priority => -1);
CALL test.go(12);
SELECT test.order(2), test.order(6) ~ '^AA(ab|ba){2}$' AS turns;
-- fairness is turned off and on while jobs wait: no job is lost
CALL test.halt();
SELECT test.add('a', '"a"', n => 30), test.add('b', '"b"', n => 30);
SELECT jobq.alter_queue('first', tenant => 'none', fair => 'off');
CALL test.go(60);
SELECT count(*) FROM test.trace;
-- and no tenant is hidden behind the waiting jobs: all rows are rewritten before the first job runs
CALL test.halt();
SELECT test.add('a', '"a"', n => 3000), test.add('b', '"b"', n => 30);
SELECT jobq.alter_queue('first', tenant => 'header tenant', fair => 'jobs');
CALL test.go(3030);
SELECT length(replace(test.order(20), 'b', '')) BETWEEN 7 AND 13 AS even, length(test.order(4000)) AS n;
-- by processor time: a tenant with jobs ten times as expensive runs a tenth as many jobs
CREATE FUNCTION test.burn(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM count(*) FROM generate_series(1, CASE payload #>> '{}' WHEN 'a' THEN 30000 ELSE 3000 END) i WHERE sha256(i::text::bytea) = '';
	INSERT INTO test.trace (note) VALUES (payload #>> '{}');
END
$$;
SELECT jobq.register('burn', 'test.burn(jsonb, jobq.job_context)');
SELECT * FROM test.error($$SELECT jobq.alter_queue('first', fair => 'time')$$);
SELECT jobq.alter_queue('first', fair => 'cpu');
SELECT tenant, fair FROM jobq.queues WHERE name = 'first';
CALL test.halt();
SELECT count(jobq.enqueue('burn', to_jsonb(t), queue => 'first', headers => jsonb_build_object('tenant', t))) FROM unnest('{a,b}'::text[]) t, generate_series(1, 60);
CALL test.go(120);
SELECT a < 25 AS few_of_a FROM (SELECT count(*) FILTER (WHERE note = 'a') AS a FROM (SELECT note FROM test.trace ORDER BY n LIMIT 60) t) t;
-- by number again: both tenants start equal
CALL test.halt();
SELECT jobq.alter_queue('first', fair => 'jobs');
SELECT test.add('a', '"a"', n => 20), test.add('b', '"b"', n => 20);
CALL test.go(40);
SELECT length(replace(test.order(20), 'b', '')) BETWEEN 9 AND 11 AS even;
SELECT jobq.unregister('burn');
-- thousands of tenants: more than there are lanes
CALL test.halt();
SELECT sum(test.add('x', to_jsonb('tenant ' || i))) FROM generate_series(1, 3000) i;
SELECT pg_advisory_unlock(1);
SELECT test.until('(SELECT count(*) = 3000 FROM test.trace)');
-- by role
SELECT jobq.alter_queue('first', tenant => 'role', fair => 'jobs');
SELECT test.add('r', NULL);
SELECT test.until('(SELECT count(*) = 3001 FROM test.trace)');
SELECT jobq.alter_queue('first', tenant => 'none', fair => 'off');

-- strict order of queues in a pool, whatever their priorities
CALL test.halt();
SELECT test.add('2', NULL, 'second', 5, -100), test.add('1', NULL, 'first', 5, 100);
CALL test.go(10);
SELECT test.order();
-- weights between queues of equal rank need "*": see the TAP test

-- an urgent job starts as soon as a worker is free, whatever the backlog
CALL test.halt();
SELECT test.add('n', NULL, n => 20000);
SELECT test.until('(SELECT ready_entries >= 5000 FROM jobq_internal.scheduler_state())');
SELECT test.add('!', NULL, priority => -10);
CALL test.settle();
CALL test.go(5000);
SELECT test.order(1);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.jobs WHERE finished_at IS NULL)');
SELECT queue, kind, running FROM jobq.limits WHERE running <> 0;
TRUNCATE test.trace;
SELECT jobq.unregister('turn');
