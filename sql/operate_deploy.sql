-- Repeatable deployment: a second call with the same arguments writes nothing, and a call with other arguments alters.

CREATE TABLE test.deployment (n int PRIMARY KEY, first text, other text);
INSERT INTO test.deployment VALUES
	(1, $$SELECT jobq.create_limiter('deployed', max_running => 3, rate => '10 per minute', when_taken => 'release 5 min')$$,
		$$SELECT jobq.create_limiter('deployed', when_taken => 'wait')$$),
	(2, $$SELECT jobq.create_limiter('deployed keys', rate => '10 per hour', by => 'payload $.host', cost => 'test.cost(jsonb)')$$,
		$$SELECT jobq.create_limiter('deployed keys', rate => '11 per hour')$$),
	(3, $$SELECT jobq.create_queue('deployed')$$,
		$$SELECT jobq.create_queue('deployed', open => true)$$),
	(4, $$SELECT jobq.create_queue('deployed set', mode => 'worker', lease => 'memory', notify => 'off', keep => 'no_payload', archive_retention => '1 day',
		dead_retention => '0', open => true, weight => 2, max_running => 3, rate => '5 per second', throttle => '3 failures in 1 min', limiters => '{deployed}',
		group_max_running => 2, group_on_failure => 'continue', tenant => 'header t', fair => 'cpu', fair_weights => '{"a": 2}',
		max_length => 100, on_full => 'wait', carry => '{app.tenant}', recycle => 'each', run_as => 'regress_jobq_alice')$$,
		$$SELECT jobq.create_queue('deployed set', fair_weights => '{"a": 3}')$$),
	(5, $$SELECT jobq.alter_queue('deployed set', expires_after => '1 hour', max_length => 100)$$,
		$$SELECT jobq.alter_queue('deployed set', expires_after => '2 hours')$$),
	(6, $$SELECT jobq.alter_queue('deployed set', run_as => 'regress_jobq_alice')$$,
		$$SELECT jobq.alter_queue('deployed set', run_as => '-')$$),
	(7, $$SELECT jobq.register('deployed', 'test.echo(jsonb)', queue => 'deployed', priority => 1, max_attempts => 5, backoff => 'fixed 5s', timeout => '1 min',
		fail_on_timeout => true, max_exceptions => 2, max_running => 3, rate => '5 per second', throttle => '3 failures in 1 min', on_failure => 'test.echo(jsonb)',
		carry => '{app.tenant}', recycle => 'each', retry_on => '{40}', fail_on => '{42501}', max_memory => '64 MB', max_temp => '1 MB', max_wal => '1 MB', limiters => '{deployed}')$$,
		$$SELECT jobq.register('deployed', 'test.echo(jsonb)')$$),
	(8, $$SELECT jobq.schedule('deployed', 'every 1 hour', 'echo', '{"n": 1}', missed => 'all', overlap => 'skip', options => '{"priority": 3}')$$,
		$$SELECT jobq.schedule('deployed', 'every 1 hour', 'echo', '{"n": 2}', missed => 'all', overlap => 'skip', options => '{"priority": 3}')$$),
	(9, $$SELECT jobq.schedule('deployed statement', '0 9 * * *', sql => 'SELECT 1', timezone => 'Europe/Berlin')$$,
		$$SELECT jobq.schedule('deployed statement', '0 10 * * *', sql => 'SELECT 1', timezone => 'Europe/Berlin')$$),
	(10, $$SELECT jobq.create_monitor('deployed', 'dead', 1e9, queue => 'deployed')$$,
		$$SELECT jobq.create_monitor('deployed', 'dead', 1e9, queue => 'deployed', until => 1)$$),
	(11, $$SELECT jobq.on_event('completed', 'deployed', queue => 'deployed', within => true)$$,
		$$SELECT jobq.on_event('completed', 'deployed', queue => 'deployed', within => true, required => true)$$),
	(12, $$SELECT jobq.grant_privilege('regress_jobq_alice', 'consume', 'deployed')$$,
		$$SELECT jobq.grant_privilege('regress_jobq_alice', 'produce', 'deployed')$$),
	(13, $$SELECT jobq.grant_privilege('regress_jobq_bob', 'monitor')$$,
		$$SELECT jobq.grant_privilege('regress_jobq_bob', 'operate')$$);
CREATE FUNCTION test.cost(payload jsonb) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE VIEW test.deployed AS
	SELECT tableoid::regclass AS relation, ctid AS place, xmin::text AS version FROM jobq_internal.queue
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.delegation
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.limiter
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.handler
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.schedule
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.monitor
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.event_handler
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.privilege
	UNION ALL SELECT tableoid::regclass, ctid, xmin::text FROM jobq_internal.audit;
-- run a statement; the result is true if it has written or locked anything, also a sequence
CREATE PROCEDURE test.deploy(statement text, INOUT wrote boolean DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	EXECUTE statement;
	wrote := pg_current_xact_id_if_assigned() IS NOT NULL;
	COMMIT;
END
$$;
CREATE PROCEDURE test.deploy_all(INOUT wrote int[] DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE
	d test.deployment;
	one boolean;
BEGIN
	FOR d IN SELECT * FROM test.deployment ORDER BY n LOOP
		CALL test.deploy(d.first, one);
		IF one THEN
			wrote := wrote || d.n;
		END IF;
	END LOOP;
END
$$;

-- the first call writes, except for 6, because 4 has set the same
CALL test.deploy_all();
CREATE TEMP TABLE before AS SELECT relation, place, version FROM test.deployed;
-- the second call neither writes nor locks a row
CALL test.deploy_all();
SELECT (SELECT count(*) FROM before) = (SELECT count(*) FROM test.deployed) AS as_many, count(*) AS changed FROM (SELECT * FROM before EXCEPT SELECT relation, place, version FROM test.deployed) d;
SELECT count(*) FILTER (WHERE relation = 'jobq_internal.queue'::regclass) > 1 AS queues, count(*) FILTER (WHERE relation = 'jobq_internal.delegation'::regclass) = 1 AS delegation FROM before;
DROP TABLE before;

-- run_as set by another role is another setting, because the role that set it is stored
GRANT regress_jobq_alice TO regress_jobq_boss;
SELECT jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT jobq.alter_queue('deployed set', run_as => 'regress_jobq_alice');
RESET ROLE;
SELECT d.set_by FROM jobq_internal.delegation d JOIN jobq_internal.queue q ON q.id = d.queue_id WHERE q.name = 'deployed set';
SELECT jobq.revoke_privilege('regress_jobq_boss', 'manage');
REVOKE regress_jobq_alice FROM regress_jobq_boss;

-- another value alters, and nothing else
CREATE PROCEDURE test.deploy_others(INOUT wrote int[] DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE
	d test.deployment;
	one boolean;
BEGIN
	FOR d IN SELECT * FROM test.deployment ORDER BY n LOOP
		CALL test.deploy(d.other, one);
		IF one THEN
			wrote := wrote || d.n;
		END IF;
		CALL test.deploy(d.other, one);
		IF one THEN
			wrote := wrote || -d.n;
		END IF;
	END LOOP;
END
$$;
CREATE TEMP TABLE before AS SELECT name, next_tick FROM jobq_internal.schedule WHERE name LIKE 'deployed%';
CALL test.deploy_others();
SELECT name, max_running, rate, when_taken FROM jobq_internal.limiter WHERE name LIKE 'deployed%' ORDER BY 1;
SELECT name, open, fair_weights, expires_after, run_as, max_length FROM jobq.queues WHERE name LIKE 'deployed%' ORDER BY 1;
SELECT kind, queue, priority, max_attempts, limiters FROM jobq.kinds WHERE kind = 'deployed';
-- the interval goes on, and other times begin anew
SELECT s.name, s.payload, s.next_tick = b.next_tick AS same_tick FROM jobq_internal.schedule s JOIN before b USING (name) ORDER BY 1;
SELECT name, above, until FROM jobq.monitors WHERE name = 'deployed';
SELECT event, handler, within, required FROM jobq.event_handlers WHERE queue = 'deployed';
SELECT role, privilege FROM jobq.grants WHERE queue = 'deployed' ORDER BY 2;

-- an interval of the same length in another unit alters
SELECT jobq.alter_queue('deployed set', archive_retention => '30 days'), jobq.alter_queue('deployed set', archive_retention => '1 month');
SELECT archive_retention FROM jobq.queues WHERE name = 'deployed set';
-- the error of a schedule is over with the same call
BEGIN;
UPDATE jobq_internal.schedule SET last_error = 'no such role' WHERE name = 'deployed statement';
SELECT jobq.schedule('deployed statement', '0 10 * * *', sql => 'SELECT 1', timezone => 'Europe/Berlin');
SELECT last_error FROM jobq_internal.schedule WHERE name = 'deployed statement';
COMMIT;

-- a paused schedule, a paused queue and tenant stay paused
SELECT jobq.pause(schedule => 'deployed'), jobq.pause('deployed'), jobq.pause('deployed set', tenant => 'a');
SELECT jobq.schedule('deployed', 'every 2 hours', 'echo'), jobq.create_queue('deployed', open => false), jobq.create_queue('deployed set', max_running => 4);
SELECT s.state, q.paused, r.paused_tenants FROM jobq.schedules s, jobq.queues q, jobq.queues r WHERE s.name = 'deployed' AND q.name = 'deployed' AND r.name = 'deployed set';

SELECT jobq.off_event('completed', 'deployed', queue => 'deployed', within => true), jobq.drop_monitor('deployed'),
	jobq.unschedule('deployed'), jobq.unschedule('deployed statement'), jobq.unregister('deployed'),
	jobq.revoke_privilege('regress_jobq_bob', 'monitor'), jobq.revoke_privilege('regress_jobq_bob', 'operate');
SELECT jobq.drop_queue('deployed'), jobq.drop_queue('deployed set');
SELECT jobq.drop_limiter('deployed'), jobq.drop_limiter('deployed keys');
DROP VIEW test.deployed;
DROP TABLE test.deployment;
