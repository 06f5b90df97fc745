-- The context of a job: settings carried from the session that enqueues the job.

-- which settings a queue can carry
SELECT e.code, e.message, e.hint FROM unnest('{search_pth,app.,.app,"a b.c","",work_mem;}'::text[]) WITH ORDINALITY u (name, n),
	test.error(format('SELECT jobq.create_queue(''carrier'', carry => ARRAY[%L])', name)) e ORDER BY n;
CREATE FUNCTION test.refused(name text, OUT code text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.create_queue('carrier', carry => ARRAY[name]);
	message := 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
END
$$;
SELECT e.* FROM unnest('{role,Session_Authorization,jobq.max_workers,jobq.own,statement_timeout,idle_session_timeout,transaction_read_only,default_transaction_isolation,synchronous_commit,session_replication_role,client_encoding,exit_on_error,seed,max_connections,server_version,log_connections}'::text[])
	WITH ORDINALITY u (name, n), test.refused(name) e ORDER BY n;
SELECT * FROM test.error($$SELECT jobq.create_queue('carrier', carry => '{app.a,APP.A}')$$);
SELECT * FROM test.error($$SELECT jobq.create_queue('carrier', carry => '{NULL}')$$);
SELECT * FROM test.error($$SELECT jobq.create_queue('carrier', carry => ARRAY(SELECT 'app.n' || n FROM generate_series(1, 17) n))$$);
SELECT jobq.create_queue('carrier', open => true, carry => '{search_path,app.tenant,request.jwt.claims}');
SELECT carry FROM jobq.queues WHERE name = 'carrier';
SELECT jobq.alter_queue('carrier', carry => '{}');
SELECT carry FROM jobq.queues WHERE name = 'carrier';
SELECT jobq.alter_queue('carrier', carry => '{search_path,app.tenant,work_mem,log_min_messages}');
-- a single worker, which runs these jobs in sequence
SELECT jobq.enqueue('echo', queue => 'first') AS one, jobq.enqueue('echo', queue => 'second') AS two \gset
SELECT state FROM jobq.wait_many(ARRAY[:one, :two]);
SELECT jobq.cancel(jobq.enqueue('echo', queue => 'manual'));
SELECT jobq.alter_queue('first', carry => '{search_path,app.tenant}');

-- two tenants, each with a schema
CREATE SCHEMA regress_branch_a CREATE TABLE visit (note text);
CREATE SCHEMA regress_branch_b CREATE TABLE visit (note text);
GRANT USAGE ON SCHEMA regress_branch_a, regress_branch_b TO PUBLIC;
GRANT INSERT, SELECT ON regress_branch_a.visit, regress_branch_b.visit TO PUBLIC;
CREATE FUNCTION test.visits() RETURNS TABLE (branch text, note text) LANGUAGE sql AS $$
	SELECT 'a', note FROM regress_branch_a.visit UNION ALL SELECT 'b', note FROM regress_branch_b.visit ORDER BY 1, 2
$$;
CREATE FUNCTION test.visit(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO visit VALUES (payload ->> 'note');
	IF job.attempt <= coalesce((payload ->> 'fails')::int, 0) THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	-- what a handler sets, and resets, is its own
	PERFORM set_config('app.tenant', current_setting('app.tenant', true) || '!', (payload -> 'leave') IS NULL);
	RETURN jsonb_build_array(current_setting('search_path'), current_setting('app.tenant', true), current_setting('work_mem'));
END
$$;
SELECT jobq.register('visit', 'test.visit(jsonb, jobq.job_context)', queue => 'first', backoff => 'fixed 1ms');

-- all ways to enqueue
SET search_path = regress_branch_a, public;
SET app.tenant = 'a';
SELECT jobq.enqueue('visit', '{"note": "plain"}') AS id \gset
SELECT state, result FROM jobq.wait(:id);
SELECT context FROM jobq.jobs WHERE id = :id;
SELECT jobq.enqueue('visit', '{"note": "again", "fails": 2, "leave": true}') AS id \gset
SELECT state, attempt, result FROM jobq.wait(:id);
BEGIN;
SET LOCAL search_path = regress_branch_b, public;
SET LOCAL app.tenant = 'b';
SELECT jobq.enqueue('visit', '{"note": "in a transaction"}') AS id \gset
SELECT count(*) FROM jobq.enqueue_many('visit', '{"{\"note\": \"many 1\"}","{\"note\": \"many 2\"}"}');
INSERT INTO jobq.inbox (kind, payload) VALUES ('visit', '{"note": "inbox"}');
CREATE TABLE regress_branch_b.paid (note text);
CREATE TRIGGER paid AFTER INSERT ON regress_branch_b.paid FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('visit');
INSERT INTO paid VALUES ('paid');
COMMIT;
SELECT state, result FROM jobq.wait(:id);
SELECT jobq.wait_queue('first', '5 min');
SELECT * FROM test.visits();
DROP TABLE regress_branch_b.paid;
TRUNCATE regress_branch_a.visit, regress_branch_b.visit;
-- explicit context
SELECT jobq.enqueue('visit', '{"note": "given"}', options => '{"context": {"search_path": "regress_branch_b", "app.tenant": 7}}') AS id \gset
SELECT state, result FROM jobq.wait(:id);
SELECT jobq.enqueue('visit', '{"note": "half given"}', options => '{"context": {"app.tenant": null}}') AS id \gset
SELECT state, result FROM jobq.wait(:id);
SELECT context FROM jobq.jobs WHERE id = :id;
SELECT e.code, e.message, e.hint FROM unnest('{[],"\"x\"","{\"work_mem\": \"1MB\"}","{\"App.Tenant\": \"1\"}","{\"app.tenant\": {}}"}'::text[]) WITH ORDINALITY u (c, n),
	test.error(format('SELECT jobq.enqueue(''visit'', options => jsonb_build_object(''context'', %L::jsonb))', c)) e ORDER BY n;
SELECT * FROM test.error($$SELECT jobq.enqueue('echo', options => '{"context": {"app.tenant": "x"}}')$$);
-- the size of the context is limited
SELECT * FROM test.error($$SELECT jobq.enqueue('visit', options => jsonb_build_object('context', jsonb_build_object('app.tenant', repeat('x', 16 * 1024 * 1024))))$$);
SET app.tenant = '';
SELECT jobq.enqueue('visit', '{"note": "empty"}') AS id \gset
SELECT state, result FROM jobq.wait(:id);
-- a queue without carry
SELECT jobq.enqueue('visit', '{}', 'second') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT context IS NULL AS none FROM jobq.jobs WHERE id = :id;
SELECT * FROM test.visits();
TRUNCATE regress_branch_a.visit, regress_branch_b.visit;

-- jobs derived from a job: on_failure, dead letters, callbacks, steps, schedules
SET app.tenant = 'a';
CREATE FUNCTION test.visit_failed(payload jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES ('failed in ' || current_schema || ' of ' || current_setting('app.tenant'))
$$;
SELECT jobq.register('visit', 'test.visit(jsonb, jobq.job_context)', queue => 'first', backoff => 'fixed 1ms', on_failure => 'test.visit_failed(jsonb)');
SELECT jobq.enqueue('visit', '{"note": "letter", "fails": 1}', max_attempts => 1) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT test.until($$EXISTS (SELECT FROM test.trace WHERE note = 'failed in regress_branch_a of a')$$);
SELECT context, error FROM jobq.dead_letters WHERE id = :id;
SET search_path = public;
SET app.tenant = 'elsewhere';
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.live_jobs WHERE queue = %L)', 'first'));
UPDATE jobq_internal.dead_letter SET max_attempts = 3, payload = '{"note": "retried"}' WHERE id = :id;
SELECT jobq.retry(:id);
SELECT state, result FROM jobq.wait(:id);
SET search_path = regress_branch_b, public;
SET app.tenant = 'b';
SELECT jobq.create_batch(on_success => '{"kind": "visit", "payload": {"note": "callback"}}', on_finish => '{"kind": "visit", "payload": {"note": "given callback"}, "context": {"search_path": "regress_branch_a"}}') AS batch \gset
SELECT jobq.create_workflow('{"steps": [{"name": "one", "kind": "visit", "payload": {"note": "step one", "fails": 1}, "max_attempts": 1},
	{"name": "two", "kind": "visit", "payload": {"note": "step two"}, "needs": ["one"]}]}') AS flow \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'visit', '{"{\"note\": \"part\"}"}');
SET search_path = public;
SET app.tenant = 'elsewhere';
SELECT jobq.start_batch(:batch);
SELECT test.until(format('(SELECT state = ''completed'' FROM jobq.batches WHERE id = %s)', :batch));
SELECT test.until(format('(SELECT state = ''failed'' FROM jobq.batches WHERE id = %s)', :flow));
UPDATE jobq_internal.dead_letter SET payload = '{"note": "step one"}' WHERE batch_id = :flow;
SELECT jobq.retry_many(batch_id => :flow);
SELECT test.until(format('(SELECT state = ''completed'' FROM jobq.batches WHERE id = %s)', :flow));
SELECT jobq.wait_queue('first', '5 min');
SELECT * FROM test.visits();
TRUNCATE regress_branch_a.visit, regress_branch_b.visit;
SET app.tenant = 'b';
-- between two ticks
CALL test.clock(date_trunc('hour', jobq_internal.clock()) + interval '90 min');
SELECT jobq.schedule('visit a', '@hourly', 'visit', '{"note": "tick"}', options => '{"priority": 1}', context => '{"search_path": "regress_branch_a"}');
SELECT jobq.schedule('visit b', '@hourly', 'visit', '{"note": "tick"}', options => '{"context": {"search_path": "regress_branch_b"}}');
SELECT name, options FROM jobq.schedules WHERE name LIKE 'visit %' ORDER BY name;
SELECT * FROM test.error($$SELECT jobq.schedule('visit c', '@hourly', 'visit', options => '{"context": {}}', context => '{}')$$);
SELECT * FROM test.error($$SELECT jobq.schedule('visit c', '@hourly', 'visit', context => '{"work_mem": "1MB"}')$$);
SET app.tenant = 'elsewhere';
CALL test.clock(date_trunc('hour', jobq_internal.clock()) + interval '90 min');
SELECT test.until('(SELECT count(*) = 2 FROM jobq.jobs WHERE headers ->> ''schedule'' LIKE ''visit %'' AND state = ''completed'')');
SELECT jobq.unschedule('visit a'), jobq.unschedule('visit b'), jobq.test_clock('0') \g /dev/null
SELECT * FROM test.visits();
TRUNCATE regress_branch_a.visit, regress_branch_b.visit;

-- the settings apply to every transaction of a procedure, and not afterwards
CREATE PROCEDURE test.travel() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO visit VALUES ('first');
	COMMIT;
	INSERT INTO visit VALUES ('undone');
	ROLLBACK;
	INSERT INTO visit VALUES ('third ' || current_setting('app.tenant'));
	COMMIT;
	PERFORM set_config('search_path', 'nowhere', true);
	COMMIT;
	INSERT INTO visit VALUES ('last');
END
$$;
SELECT jobq.register('travel', 'test.travel()', queue => 'first');
SELECT jobq.enqueue('travel', options => '{"context": {"search_path": "regress_branch_a", "app.tenant": "a"}}') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.enqueue('travel', options => '{"context": {"search_path": "regress_branch_b", "app.tenant": "b"}}') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT * FROM test.visits();
CREATE FUNCTION test.settings() RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_array(current_setting('search_path'), nullif(current_setting('app.tenant', true), ''))
$$;
SELECT jobq.register('settings', 'test.settings()');
SELECT jobq.enqueue('settings', queue => 'second') AS id \gset
SELECT result FROM jobq.wait(:id);
TRUNCATE regress_branch_a.visit, regress_branch_b.visit;

-- an invalid value fails the attempt; the error names the setting
SELECT jobq.enqueue('settings', queue => 'carrier', options => '{"context": {"work_mem": "lots"}}', max_attempts => 1) AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT sqlstate, split_part(error_context, E'\n', 1) AS context FROM jobq.dead_letters WHERE id = :id;
SELECT jobq.grant_privilege('regress_jobq_alice');
GRANT EXECUTE ON FUNCTION test.settings() TO PUBLIC;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('settings', queue => 'carrier', options => '{"context": {"log_min_messages": "debug1"}}', max_attempts => 1) AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT sqlstate, split_part(error_context, E'\n', 1) AS context FROM jobq.dead_letters WHERE id = :id;
-- if the value is already in effect, the setting is not changed
SELECT jobq.enqueue('settings', queue => 'carrier') AS id \gset
SELECT state, error FROM jobq.wait(:id);
RESET ROLE;
-- for a procedure, too; the attempt is charged
SELECT jobq.enqueue('travel', queue => 'carrier', options => '{"context": {"work_mem": "lots"}}', max_attempts => 2, backoff => 'fixed 1ms') AS id \gset
SELECT state, attempt, error FROM jobq.wait(:id);

-- a search_path with malicious objects affects the handler, but not jobq
CREATE SCHEMA regress_trap;
DO $$
DECLARE
	type text;
BEGIN
	FOREACH type IN ARRAY '{bigint,int,text,timestamptz,oid,"pg_catalog.\"char\""}'::text[] LOOP
		EXECUTE format('CREATE FUNCTION regress_trap.trap(%1$s, %1$s) RETURNS boolean LANGUAGE plpgsql AS %2$L;
			CREATE OPERATOR regress_trap.= (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = regress_trap.trap)',
			type, 'BEGIN RAISE EXCEPTION ''trapped''; END');
	END LOOP;
END
$$;
CREATE DOMAIN regress_trap.jsonb AS text;
CREATE FUNCTION test.busy() RETURNS pg_catalog.jsonb LANGUAGE plpgsql AS $$
DECLARE
	batch bigint := jobq.create_batch(start => true);
BEGIN
	PERFORM jobq.enqueue('settings', queue => 'manual', unique_key => 'busy');
	PERFORM jobq.add_jobs(batch, 'settings', '{"{}"}', '{"queue": "manual"}');
	PERFORM jobq.cancel_batch(batch);
	PERFORM jobq.cancel_many(queue => 'manual', state => 'waiting');
	PERFORM jobq.set_progress(50), jobq.log('busy');
	BEGIN
		RETURN to_jsonb(1 = 1);
	EXCEPTION WHEN OTHERS THEN
		RETURN to_jsonb(SQLERRM);
	END;
END
$$;
SELECT jobq.register('busy', 'test.busy()');
SELECT jobq.enqueue('busy', queue => 'carrier', options => '{"context": {"search_path": "regress_trap, pg_catalog"}}') AS id \gset
SELECT state, result, error FROM jobq.wait(:id);
SET client_min_messages = warning;
DROP SCHEMA regress_trap CASCADE;
RESET client_min_messages;

-- consumers receive the context, and may apply it
SELECT jobq.create_queue('couriers', mode => 'consumer', carry => '{search_path,app.tenant}');
SET search_path = regress_branch_b, public;
SET app.tenant = 'b';
SELECT jobq.enqueue('deliver', queue => 'couriers') AS id \gset
RESET search_path;
SET app.tenant = 'elsewhere';
SELECT id = :id AS same, token, context FROM jobq.reserve('{couriers}', wait => '5 min') \gset
\echo :same :context
BEGIN;
SELECT count(set_config(key, value, true)) FROM jsonb_each_text(:'context');
INSERT INTO visit VALUES ('delivered');
SELECT current_setting('app.tenant');
SELECT jobq.ack(:id, :token);
COMMIT;
SHOW search_path;
SELECT current_setting('app.tenant');
SELECT * FROM test.visits();
SELECT context FROM jobq.jobs WHERE id = :id;

-- in jobq.work(), too; and not in the archive of a queue with keep => 'no_payload'
SELECT jobq.alter_queue('manual', carry => '{search_path,app.tenant}', keep => 'no_payload');
SELECT jobq.enqueue('visit', '{"note": "worked"}', 'manual', options => '{"context": {"search_path": "regress_branch_a", "app.tenant": "a"}}') AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, result FROM jobq.status(:id);
SELECT context IS NULL AS none FROM jobq.jobs WHERE id = :id;
SHOW search_path;
SELECT current_setting('app.tenant');
SELECT * FROM test.visits();

-- a kind can also have carry, in addition to its queue
SELECT * FROM test.error($$SELECT jobq.register('settings', 'test.settings()', carry => '{role}')$$);
SELECT * FROM test.error($$SELECT jobq.register('settings', 'test.settings()', carry => ARRAY(SELECT 'app.n' || n FROM generate_series(1, 17) n))$$);
SELECT jobq.register('settings', 'test.settings()', carry => '{}');
SELECT carry IS NULL AS none FROM jobq.kinds WHERE kind = 'settings';
SELECT jobq.register('settings', 'test.settings()', carry => '{App.Tenant,search_path}');
SELECT carry FROM jobq.kinds WHERE kind = 'settings';
SET search_path = regress_branch_a, public;
SET app.tenant = 'of the kind';
SELECT jobq.enqueue('settings', queue => 'second') AS kinds, jobq.enqueue('settings', queue => 'first') AS both, jobq.enqueue('settings', queue => 'second', options => '{"context": {"search_path": "regress_branch_b"}}') AS given,
	jobq.enqueue('echo', queue => 'second') AS other \gset
SELECT jobq.schedule('settings', '@yearly', 'settings', options => '{"queue": "second"}');
RESET search_path;
SET app.tenant = 'elsewhere';
SELECT jobq.run_schedule('settings') AS tick \gset
SELECT jobq.unschedule('settings');
SELECT result FROM jobq.wait_many(ARRAY[:kinds, :both, :given, :tick, :other]) w ORDER BY w.id;
SELECT context FROM jobq.jobs WHERE id IN (:kinds, :both, :given, :tick, :other) ORDER BY id;
SELECT * FROM test.error($$SELECT jobq.enqueue('settings', options => '{"context": {"work_mem": "1MB"}}')$$);
-- with run_as, only custom settings can be carried
SELECT jobq.create_queue('agency', run_as => 'regress_jobq_alice');
SELECT jobq.register('settings', 'test.settings()', queue => 'agency', carry => '{App.Tenant,search_path}');
SELECT * FROM test.error($$SELECT jobq.enqueue('settings')$$);
SELECT jobq.register('settings', 'test.settings()', queue => 'agency', carry => '{App.Tenant}');
SELECT jobq.enqueue('settings') AS id \gset
SELECT result -> 1 AS tenant FROM jobq.wait(:id);
SELECT jobq.drop_queue('agency'), jobq.register('settings', 'test.settings()');

-- a new process for each job
CREATE FUNCTION test.process() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(pg_backend_pid()) $$;
SELECT jobq.register('process', 'test.process()', queue => 'first');
CREATE FUNCTION test.processes() RETURNS TABLE (processes bigint) LANGUAGE sql AS $$
	SELECT count(DISTINCT result) FROM (SELECT result FROM jobq.jobs WHERE kind = 'process' ORDER BY id DESC LIMIT 5) r
$$;
SELECT count(*) FROM jobq.enqueue_many('process', array_fill('{}'::jsonb, '{5}'));
SELECT jobq.wait_queue('first', '5 min');
SELECT processes < 5 AS shared FROM test.processes();
SELECT jobq.alter_queue('first', recycle => 'each');
SELECT count(*) FROM jobq.enqueue_many('process', array_fill('{}'::jsonb, '{5}'));
SELECT jobq.wait_queue('first', '5 min');
SELECT processes FROM test.processes();
SELECT jobq.alter_queue('first', recycle => 'never'), jobq.register('process', 'test.process()', queue => 'first', recycle => 'never');
SELECT count(*) FROM jobq.enqueue_many('process', array_fill('{}'::jsonb, '{5}'));
SELECT jobq.wait_queue('first', '5 min');
SELECT processes < 5 AS shared FROM test.processes();
SELECT jobq.register('process', 'test.process()', queue => 'first', recycle => 'each');
SELECT recycle FROM jobq.kinds WHERE kind = 'process';
SELECT count(*) FROM jobq.enqueue_many('process', array_fill('{}'::jsonb, '{5}'));
SELECT jobq.wait_queue('first', '5 min');
SELECT processes FROM test.processes();
SELECT * FROM test.error($$SELECT jobq.register('process', 'test.process()', recycle => 'always')$$);
SELECT jobq.unregister('process');
SELECT * FROM test.error($$SELECT jobq.alter_queue('first', recycle => 'always')$$);

SELECT jobq.alter_queue('manual', carry => '{}', keep => 'all'), jobq.alter_queue('first', carry => '{}');
SELECT jobq.delete_many('first'), jobq.delete_many('second'), jobq.delete_many('carrier');
SELECT jobq.drop_queue('carrier'), jobq.drop_queue('couriers');
SELECT jobq.unregister(kind) FROM unnest('{visit,travel,settings,busy}'::text[]) kind;
SET client_min_messages = warning;
DROP SCHEMA regress_branch_a, regress_branch_b CASCADE;
RESET client_min_messages;
RESET app.tenant;
