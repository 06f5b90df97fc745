-- Events: a state change of a job enqueues a job for each event handler, in the same transaction.
\connect - postgres
CREATE FUNCTION test.hear(payload jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (concat_ws(' ', current_user, payload ->> 'event', payload ->> 'kind')) $$;
-- event jobs wait in a queue without workers, where the test reads the jobs
SELECT jobq.register('hear', 'test.hear(jsonb)', queue => 'manual', max_attempts => 7);

-- Returns and cancels the events since the last call, in order, without values that differ between runs.
CREATE FUNCTION test.heard() RETURNS TABLE (role text, kind text, event text, job text, attempt text, rest jsonb) LANGUAGE sql AS $$
	WITH e AS MATERIALIZED (
		SELECT j.id, j.role, j.kind, j.payload || jsonb_strip_nulls(jsonb_build_object('traced', left(jobq_internal.traceparent(j.headers), 5))) AS p FROM jobq.live_jobs j WHERE j.kind LIKE 'on_event:%'),
	gone AS MATERIALIZED (SELECT count(jobq.cancel(e.id)) AS n FROM e)
	SELECT e.role::text, e.kind, e.p ->> 'event', concat_ws(' in ', e.p ->> 'kind', e.p ->> 'queue'), concat_ws(' of ', e.p ->> 'attempt', e.p ->> 'max_attempts'),
		e.p - '{event,kind,queue,attempt,max_attempts,job,at,run_at}'::text[] || jsonb_build_object('run_at', e.p ? 'run_at')
	FROM e, gone ORDER BY e.id
$$;

-- no event handler
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.heard();

-- each event
SELECT jobq.on_event(e, 'hear') FROM unnest('{completed,failed,retry,dead,cancelled,expired}'::text[]) e;
SELECT role, event, handler, queue, kind FROM jobq.event_handlers ORDER BY event;
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.heard();
SELECT jobq.enqueue('broken', '"a"', max_attempts => 2) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.heard();
SELECT jobq.enqueue('echo', delay => '1 hour') AS id \gset
SELECT jobq.cancel(:id);
SELECT * FROM test.heard();
SELECT jobq.enqueue('echo', expires_at => jobq_internal.clock()) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.heard();
SELECT jobq.delete_many(state => 'dead');

-- a handler with read-only transactions
CREATE PROCEDURE test.reads(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN COMMIT; SET TRANSACTION READ ONLY; END $$;
CREATE PROCEDURE test.reads_on(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	SET default_transaction_read_only = on;
	COMMIT;
	IF payload = '"fail"' THEN
		RAISE 'no more';
	END IF;
END
$$;
SELECT jobq.register('reads', 'test.reads(jsonb)', max_attempts => 1), jobq.register('reads_on', 'test.reads_on(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('reads') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.enqueue('reads_on') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.enqueue('reads_on', '"fail"') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.enqueue_sql('SET TRANSACTION READ ONLY', transaction => false) AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT event, job, rest ->> 'error' AS error FROM test.heard();
SELECT jobq.delete_many(state => 'dead');
SELECT jobq.unregister('reads'), jobq.unregister('reads_on');
DROP PROCEDURE test.reads, test.reads_on;

-- jobs of consumers: functions for a single job and for many jobs
SELECT jobq.create_queue('heard', mode => 'consumer');
SELECT count(*) FROM (SELECT jobq.enqueue('outside', queue => 'heard', backoff => 'fixed 1h', max_attempts => 9) FROM generate_series(1, 4)) j;
CREATE TABLE test.held AS SELECT id, token FROM jobq.reserve('{heard}', max_jobs => 4, lease => '1 hour', wait => '5 min') ORDER BY id;
SELECT jobq.ack_many(array_agg(id ORDER BY id), array_agg(token ORDER BY id)) FROM (SELECT * FROM test.held ORDER BY id LIMIT 2) h;
SELECT * FROM test.heard();
SELECT jobq.nack(h.id, h.token, 'busy') FROM (SELECT * FROM test.held ORDER BY id OFFSET 2 LIMIT 1) h;
SELECT jobq.reject(h.id, h.token, 'useless') FROM (SELECT * FROM test.held ORDER BY id OFFSET 3) h;
SELECT * FROM test.heard();

-- a change that is rolled back is no event
BEGIN;
SELECT jobq.cancel_many(queue => 'heard', state => 'waiting');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT jobq.cancel_many(queue => 'heard', state => 'waiting');
ROLLBACK TO s;
COMMIT;
SELECT * FROM test.heard();
SELECT jobq.cancel_many(queue => 'heard'), jobq.delete_many(state => 'dead');
SELECT event, job FROM test.heard();

-- filter by queue, or by kind; a duplicate registration reports an event once
SELECT jobq.off_event(event, handler) FROM jobq.event_handlers;
SELECT jobq.on_event('cancelled', 'hear', kind => 'echo'), jobq.on_event('cancelled', 'hear', kind => 'echo'), jobq.on_event('cancelled', 'hear', 'heard');
SELECT count(*) FROM jobq.event_handlers;
SELECT jobq.enqueue('note', delay => '1 hour') AS a, jobq.enqueue('echo', delay => '1 hour') AS b, jobq.enqueue('outside', queue => 'heard') AS c,
	jobq.enqueue('echo', queue => 'heard') AS d \gset
SELECT jobq.cancel(id) FROM unnest(ARRAY[:a, :b, :c, :d]) id;
SELECT event, job FROM test.heard();

-- A role receives events of its own jobs, and of jobs of other roles that the role may see.
-- The trace context is included if the role has the privileges of the job's role.
SELECT jobq.off_event(event, handler, queue, kind) FROM jobq.event_handlers;
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
CREATE FUNCTION test.cancel_as(who text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SET ROLE %I', who);
	PERFORM jobq.cancel(jobq.enqueue('echo', delay => '1 hour', headers => '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'));
	RESET ROLE;
END
$$;
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('cancelled', 'hear');
SELECT count(*) FROM jobq.event_handlers;
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.event_handlers;
RESET ROLE;
SELECT test.cancel_as('regress_jobq_alice'), test.cancel_as('regress_jobq_bob');
SELECT role, kind, event, job FROM test.heard();
SELECT jobq.grant_privilege('regress_jobq_alice', 'manage', 'default');
SELECT test.cancel_as('regress_jobq_bob');
SELECT role, kind, event, job, rest ->> 'traced' AS traced FROM test.heard();
SELECT jobq.revoke_privilege('regress_jobq_alice', 'manage', 'default');
SELECT test.cancel_as('regress_jobq_bob');
SELECT role, kind, event, job FROM test.heard();
GRANT regress_jobq_bob TO regress_jobq_alice;
SELECT test.cancel_as('regress_jobq_bob');
SELECT role, kind, event, job, rest ->> 'traced' AS traced FROM test.heard();
REVOKE regress_jobq_bob FROM regress_jobq_alice;
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT test.cancel_as('regress_jobq_bob');
SELECT role, kind, event, job FROM test.heard();
SELECT jobq.grant_privilege('regress_jobq_alice');

-- The event handler runs as the role that registered the handler.  An event job causes no events.
SELECT jobq.register('hear', 'test.hear(jsonb)');
SET ROLE regress_jobq_alice;
SELECT jobq.on_event('completed', 'hear'), jobq.on_event('failed', 'hear'), jobq.on_event('dead', 'hear');
SELECT jobq.enqueue('echo') AS id \gset
RESET ROLE;
SELECT state FROM jobq.wait(:id);
SELECT test.until($$ EXISTS (SELECT FROM test.trace WHERE note = 'regress_jobq_alice completed echo') $$);
SELECT test.until($$ EXISTS (SELECT FROM jobq.jobs WHERE kind = 'on_event:hear' AND state = 'completed') $$);
CALL test.settle();
SELECT count(*) FROM jobq.jobs WHERE kind = 'on_event:hear' AND payload ->> 'kind' LIKE 'on_event%';
SELECT max_attempts, queue FROM jobq.jobs WHERE kind = 'on_event:hear' AND state = 'completed';
-- an unregistered or failing event handler does not affect other jobs
SELECT jobq.register('hear', 'test.broken(jsonb)', max_attempts => 1);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo') AS id \gset
RESET ROLE;
SELECT state FROM jobq.wait(:id);
SELECT test.until($$ EXISTS (SELECT FROM jobq.dead_letters WHERE kind = 'on_event:hear') $$);
SELECT jobq.unregister('hear');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo') AS id \gset
RESET ROLE;
SELECT state FROM jobq.wait(:id);
SELECT test.until($$ EXISTS (SELECT FROM jobq.dead_letters WHERE kind = 'on_event:hear' AND sqlstate = 'JQ009') $$);
SELECT count(*) FROM jobq.dead_letters WHERE kind = 'on_event:hear' AND payload ->> 'kind' LIKE 'on_event%';

-- bad input
SELECT jobq.register('hear', 'test.hear(jsonb)', queue => 'manual');
SELECT * FROM test.error($$SELECT jobq.on_event('begun', 'hear')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'unknown')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'sql')$$);
SELECT * FROM test.error($$SELECT jobq.on_event(NULL, 'hear')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'hear', queue => '')$$);
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'hear', kind => repeat('k', 1000))$$);
SELECT * FROM test.error($$SELECT jobq.off_event('dead', 'hear')$$);
SELECT * FROM test.error($$SELECT jobq.enqueue('on_event:hear', queue => 'heard')$$);
SELECT * FROM test.error($$SELECT jobq.enqueue('on_event:hear')$$);
SELECT * FROM test.error($$SELECT jobq.register('on_event:hear', 'test.hear(jsonb)')$$);
SET ROLE regress_jobq_nobody;
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'hear')$$);
RESET ROLE;
SELECT count(jobq.on_event('dead', 'hear', kind => 'k' || i)) FROM generate_series(1, 100) i;
SELECT * FROM test.error($$SELECT jobq.on_event('dead', 'hear')$$);
SELECT jobq.on_event('dead', 'hear', kind => 'k1');
SELECT count(jobq.off_event('dead', 'hear', kind => 'k' || i)) FROM generate_series(1, 100) i;

-- A role is dropped.
CREATE ROLE regress_jobq_ear LOGIN;
SELECT jobq.grant_privilege('regress_jobq_ear', 'monitor'), jobq.grant_privilege('regress_jobq_ear');
SET ROLE regress_jobq_ear;
SELECT jobq.on_event('cancelled', 'hear'), jobq.on_event('expired', 'hear'), jobq.on_event('dead', 'hear');
RESET ROLE;
SET ROLE regress_jobq_bob;
SELECT jobq.on_event('expired', 'hear');
RESET ROLE;
SELECT jobq.reassign_owned('regress_jobq_ear', 'regress_jobq_bob');
SELECT role, event FROM jobq.event_handlers WHERE role = 'regress_jobq_bob'::regrole ORDER BY event;
SET ROLE regress_jobq_ear;
SELECT jobq.on_event('cancelled', 'hear');
RESET ROLE;
SELECT jobq.drop_owned('regress_jobq_bob'), jobq.drop_owned('regress_jobq_alice');
SELECT role, event FROM jobq.event_handlers;
SELECT jobq.revoke_privilege('regress_jobq_ear');
SELECT oid AS ear FROM pg_roles WHERE rolname = 'regress_jobq_ear' \gset
\set VERBOSITY terse
DROP ROLE regress_jobq_ear;
\set VERBOSITY default
SELECT test.cancel_as('regress_jobq_bob');
SELECT * FROM test.heard();
SELECT jobq.drop_owned(:ear::regrole);
SELECT count(*) FROM jobq_internal.event_handler;

SELECT jobq.delete_many(state => 'dead') > 0;
SELECT jobq.drop_queue('heard');
SELECT jobq.unregister('hear');
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
DELETE FROM test.trace WHERE note LIKE 'regress_jobq_alice %';
DROP TABLE test.held;
DROP FUNCTION test.heard, test.hear, test.cancel_as;
