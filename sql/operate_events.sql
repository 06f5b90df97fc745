-- Events of batches, schedules and monitors.
\connect - postgres
CREATE FUNCTION test.hear(payload jsonb) RETURNS void LANGUAGE sql AS '';
-- event jobs wait in a queue without workers, where the test reads the jobs
SELECT jobq.register('hear', 'test.hear(jsonb)', queue => 'manual');

-- Returns and cancels the events since the last call, in order, without values that differ between runs.
CREATE FUNCTION test.heard() RETURNS TABLE (role text, event text, payload jsonb) LANGUAGE sql AS $$
	WITH e AS MATERIALIZED (SELECT j.id, j.role, j.payload AS p FROM jobq.live_jobs j WHERE j.kind = 'on_event:hear'),
	gone AS MATERIALIZED (SELECT count(jobq.cancel(e.id)) AS n FROM e)
	SELECT e.role::text, e.p ->> 'event', e.p - '{event,at,since,batch}'::text[] #- '{first_error,job}'
		|| jsonb_strip_nulls(jsonb_build_object('has', array_to_string(ARRAY(SELECT k FROM unnest('{at,since,batch}'::text[]) k WHERE e.p ? k), ' ')))
	FROM e, gone ORDER BY e.id
$$;
-- When the row shows the end of a batch, the events of the batch have been enqueued.
CREATE FUNCTION test.ended_as(batch bigint) RETURNS text LANGUAGE sql AS $$ SELECT state FROM jobq.wait_batch($1, '5 min') $$;

SELECT jobq.on_event(e, 'hear') FROM unnest('{batch_completed,batch_failed,batch_cancelled}'::text[]) e;

-- The end of a batch.
SELECT jobq.create_batch('good', start => false) AS id \gset
SELECT count(*) FROM jobq.add_jobs(:id, 'echo', '{1,2,3}');
SELECT jobq.start_batch(:id);
SELECT test.ended_as(:id);
SELECT * FROM test.heard();
SELECT jobq.create_batch(start => false) AS id \gset
SELECT count(*) FROM jobq.add_jobs(:id, 'broken', '{1}', '{"max_attempts": 1}');
SELECT count(*) FROM jobq.add_jobs(:id, 'echo', '{1}', '{"delay": "1 day"}');
SELECT jobq.start_batch(:id);
SELECT test.ended_as(:id);
SELECT * FROM test.heard();
-- a batch that ends a second time is reported again
SELECT jobq.create_batch('again', allow_failures => true, start => false) AS again \gset
SELECT count(*) FROM jobq.add_jobs(:again, 'broken', '{1}', '{"max_attempts": 1}');
SELECT jobq.start_batch(:again);
SELECT test.ended_as(:again);
SELECT event, payload ->> 'name' AS name FROM test.heard();
SELECT jobq.register('broken', 'test.echo(jsonb)');
SELECT count(jobq.retry(id)) FROM jobq_internal.dead_letter WHERE batch_id = :again;
SELECT test.ended_as(:again);
SELECT * FROM test.heard();
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms');
SELECT jobq.create_batch('none') AS id \gset
SELECT count(*) FROM jobq.add_jobs(:id, 'echo', '{1,2}', '{"delay": "1 day"}');
SELECT jobq.cancel_batch(:id);
SELECT test.ended_as(:id);
SELECT * FROM test.heard();
-- workflows
SELECT jobq.create_workflow('{"name": "flow", "steps": [{"name": "a", "kind": "echo"}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS id \gset
SELECT test.ended_as(:id);
SELECT * FROM test.heard();
SELECT jobq.delete_many(state => 'dead') > 0;

-- The roles that receive events of a batch.
SELECT jobq.off_event(event, handler) FROM jobq.event_handlers;
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
CREATE FUNCTION test.cancel_batch_of(who text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	id bigint;
BEGIN
	EXECUTE format('SET ROLE %I', who);
	id := jobq.create_batch(who);
	PERFORM jobq.cancel_batch(id);
	RESET ROLE;
	RETURN id;
END
$$;
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('batch_cancelled', 'hear');
RESET ROLE;
SELECT test.cancel_batch_of('regress_jobq_alice') AS a, test.cancel_batch_of('regress_jobq_bob') AS b \gset
SELECT test.ended_as(:a), test.ended_as(:b);
SELECT role, event, payload ->> 'name' AS name FROM test.heard();
GRANT regress_jobq_bob TO regress_jobq_alice;
SELECT test.cancel_batch_of('regress_jobq_bob') AS b \gset
SELECT test.ended_as(:b);
SELECT role, event, payload ->> 'name' AS name FROM test.heard();
REVOKE regress_jobq_bob FROM regress_jobq_alice;
SELECT test.cancel_batch_of('regress_jobq_bob') AS b \gset
SELECT test.ended_as(:b);
SELECT role, event, payload ->> 'name' AS name FROM test.heard();
SELECT jobq.grant_privilege('regress_jobq_alice', 'monitor');
SELECT test.cancel_batch_of('regress_jobq_bob') AS b \gset
SELECT test.ended_as(:b);
SELECT role, event, payload ->> 'name' AS name FROM test.heard();
SELECT jobq.revoke_privilege('regress_jobq_alice', 'monitor');
SELECT jobq.drop_owned('regress_jobq_alice');

-- Schedules, with a clock set by the test.
SELECT jobq.on_event('schedule_missed', 'hear'), jobq.on_event('schedule_failed', 'hear', kind => 'echo');
CALL test.clock('2041-01-01 12:30+00');
SELECT jobq.schedule(m, '0 * * * *', 'echo', missed => m, options => '{"queue": "manual"}') FROM unnest('{once,all}'::text[]) m;
CALL test.clock('2041-01-01 13:00:01+00');
SELECT * FROM test.heard();
SELECT jobq.schedule('skip', '0 * * * *', 'echo', missed => 'skip', options => '{"queue": "manual"}');
-- a single late tick is missed only with missed => 'skip'; of three late ticks, 'once' misses two and 'all' none
CALL test.clock('2041-01-01 14:30+00');
SELECT * FROM test.heard();
CALL test.clock('2041-01-01 17:30+00');
SELECT * FROM test.heard() ORDER BY payload ->> 'schedule';
-- too many missed ticks to count
CALL test.clock('2041-01-21 17:30+00');
SELECT payload ->> 'schedule' AS schedule, payload ->> 'ticks' AS ticks, payload ->> 'last_tick' AS last_tick FROM test.heard() ORDER BY 1;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
-- the last job is not finished
SELECT jobq.schedule('overlap ' || o, '0 * * * *', 'echo', overlap => o, options => '{"queue": "manual"}') FROM unnest('{allow,skip,queue}'::text[]) o;
CALL test.clock('2041-01-21 18:00:01+00');
SELECT * FROM test.heard();
CALL test.clock('2041-01-21 19:00:01+00');
SELECT test.until('(SELECT held FROM jobq_internal.schedule WHERE name = ''overlap queue'')');
SELECT * FROM test.heard();
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
-- a paused schedule misses no tick
SELECT jobq.schedule('paused', '0 * * * *', 'echo', options => '{"queue": "manual"}');
SELECT jobq.pause(schedule => 'paused');
CALL test.clock('2041-01-22 04:30+00');
SELECT jobq.resume(schedule => 'paused');
CALL test.clock('2041-01-22 05:00:01+00');
SELECT * FROM test.heard();
-- a schedule that cannot enqueue is reported once, and again after a success or for another reason
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) > 100 AS cancelled FROM jobq_internal.job WHERE headers ? 'schedule';
SELECT jobq.create_queue('narrow', mode => 'consumer', max_length => 1);
SELECT jobq.schedule('narrow', '0 * * * *', 'echo', options => '{"queue": "narrow", "priority": 9}'),
	jobq.schedule('wide', '0 * * * *', 'note', options => '{"queue": "narrow", "priority": 9}');
SELECT jobq.enqueue('echo', queue => 'narrow') AS id \gset
CALL test.clock('2041-01-22 06:00:01+00');
SELECT test.until('(SELECT count(*) = 2 FROM jobq.schedules WHERE last_error IS NOT NULL)');
SELECT * FROM test.heard();
CALL test.clock('2041-01-22 06:10:01+00');
CALL test.settle();
SELECT * FROM test.heard();
SELECT jobq.cancel(:id);
SELECT jobq.unschedule('wide');
CALL test.clock('2041-01-22 06:20:01+00');
SELECT test.until('(SELECT last_tick = ''2041-01-22 06:00+00'' FROM jobq.schedules)');
CALL test.clock('2041-01-22 07:00:01+00');
SELECT test.until('(SELECT last_error IS NOT NULL FROM jobq.schedules)');
SELECT event, payload ->> 'tick' AS tick FROM test.heard();
SELECT jobq.unschedule('narrow');
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.drop_queue('narrow');

-- Monitors.
SELECT jobq.off_event(event, handler, queue, kind) FROM jobq.event_handlers;
SELECT jobq.create_queue('watched', mode => 'consumer');
SELECT jobq.on_event('alert_began', 'hear'), jobq.on_event('alert_ended', 'hear', queue => 'watched'), jobq.on_event('alert_began', 'hear', queue => 'other');
-- a role without access to monitors
SET ROLE regress_jobq_bob;
SELECT jobq.on_event('alert_began', 'hear');
RESET ROLE;
SELECT count(jobq.enqueue('outside', queue => 'watched')) FROM generate_series(1, 3);
SELECT jobq.create_monitor('long', 'ready', above => 2, until => 1, queue => 'watched');
SELECT test.until('(SELECT since IS NOT NULL FROM jobq.monitors)');
SELECT * FROM test.heard();
SELECT jobq.cancel_many(queue => 'watched', state => 'waiting');
SELECT jobq.create_monitor('long', 'ready', above => 2, until => 1, queue => 'watched');
SELECT test.until('(SELECT since IS NULL FROM jobq.monitors)');
SELECT * FROM test.heard();
-- with the privilege, the role receives events
SELECT jobq.grant_privilege('regress_jobq_bob', 'monitor');
SELECT jobq.off_event('alert_began', 'hear'), jobq.off_event('alert_began', 'hear', queue => 'other'), jobq.on_event('alert_began', 'hear', kind => 'outside');
SELECT jobq.drop_monitor('long');
SELECT count(jobq.enqueue('outside', queue => 'watched')) FROM generate_series(1, 3);
SELECT jobq.create_monitor('long', 'ready', above => 2, queue => 'watched');
SELECT test.until('(SELECT since IS NOT NULL FROM jobq.monitors)');
SELECT * FROM test.heard();
SELECT jobq.create_monitor('kind', 'ready', above => 2, kind => 'outside');
SELECT test.until('(SELECT since IS NOT NULL FROM jobq.monitors WHERE name = ''kind'')');
SELECT role, payload FROM test.heard() ORDER BY role;
SELECT jobq.drop_monitor('long'), jobq.drop_monitor('kind');

-- bad input
SELECT * FROM test.error($$SELECT jobq.on_event('batch_failed', 'hear', queue => 'manual')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('batch_failed', 'hear', kind => 'echo')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('schedule_missed', 'hear', queue => 'manual')$$);

SELECT jobq.off_event(event, handler, queue, kind) FROM jobq.event_handlers WHERE role = current_user::regrole;
SELECT jobq.drop_owned('regress_jobq_bob');
SELECT count(*) FROM jobq_internal.event_handler;
SELECT jobq.cancel_many(queue => 'watched', state => 'waiting');
SELECT jobq.drop_queue('watched');
SELECT jobq.unregister('hear');
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
DROP FUNCTION test.heard, test.hear, test.ended_as, test.cancel_batch_of;
