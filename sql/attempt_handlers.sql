-- Handlers: allowed forms, replacement, errors, commits and logs.

-- all forms
CREATE FUNCTION test.f0() RETURNS jsonb LANGUAGE sql AS $$ SELECT '"f0"'::jsonb $$;
CREATE FUNCTION test.f1(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT payload $$;
CREATE FUNCTION test.f2(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_array(payload, job.kind) $$;
CREATE FUNCTION test.v0() RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('v0') $$;
CREATE FUNCTION test.v1(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('v1') $$;
CREATE FUNCTION test.v2(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('v2 ' || job.kind) $$;
CREATE FUNCTION test.fout(payload jsonb, OUT result jsonb) LANGUAGE sql AS $$ SELECT '"out"'::jsonb $$;
CREATE FUNCTION test.fnull() RETURNS jsonb LANGUAGE sql AS $$ SELECT NULL::jsonb $$;
CREATE FUNCTION test.fstrict(payload jsonb) RETURNS jsonb STRICT LANGUAGE plpgsql AS $$ BEGIN RETURN '"strict"'; END $$;
CREATE FUNCTION test.fdefiner(payload jsonb) RETURNS jsonb SECURITY DEFINER SET search_path = test LANGUAGE sql
	AS $$ SELECT to_jsonb(current_setting('search_path')) $$;
CREATE PROCEDURE test.p0() LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('p0') $$;
CREATE PROCEDURE test.p1(payload jsonb) LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('p1') $$;
CREATE PROCEDURE test.p2(payload jsonb, job jobq.job_context) LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES ('p2 ' || job.kind) $$;
SELECT jobq.register(p.proname, p.oid::regprocedure::text) FROM pg_proc p
WHERE p.pronamespace = 'test'::regnamespace AND p.proname ~ '^([fvp][0-2]|fout|fnull|fstrict|fdefiner)$' ORDER BY p.proname;
SELECT array_agg(jobq.enqueue(kind, '"payload"', queue => 'first') ORDER BY n) AS ids
FROM unnest('{f0,f1,f2,v0,v1,v2,fout,fnull,fstrict,fdefiner,p0,p1,p2}'::text[]) WITH ORDINALITY k (kind, n) \gset
SELECT kind, state, attempt, result, error FROM jobq.wait_many(:'ids'::bigint[]);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- forms that are refused
CREATE FUNCTION test.b_text(text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION test.b_json(json) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION test.b_int(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION test.b_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION test.b_two(jsonb, jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION test.b_three(jsonb, jobq.job_context, int DEFAULT 1) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION test.b_variadic(VARIADIC jsonb[]) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION test.b_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE PROCEDURE test.b_inout(INOUT jsonb) LANGUAGE sql AS 'SELECT $1';
CREATE AGGREGATE test.b_agg(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
SELECT p.proname, e.code, e.message FROM pg_proc p,
	test.error(format('SELECT jobq.register(%L, %L)', p.proname, p.oid::regprocedure)) e
WHERE p.pronamespace = 'test'::regnamespace AND p.proname ~ '^b_' ORDER BY p.proname COLLATE "C";
SELECT jobq.register('bad', 'test.b_int(jsonb)');

-- replaced, while cached by a worker
CREATE FUNCTION test.changing(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$ BEGIN RETURN '"first"'; END $$;
SELECT jobq.register('changing', 'test.changing(jsonb)', queue => 'first', max_attempts => 1);
SELECT jobq.enqueue('changing') AS id \gset
SELECT * FROM test.outcome(:id);
CREATE OR REPLACE FUNCTION test.changing(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"second"'::jsonb $$;
SELECT jobq.enqueue('changing') AS id \gset
SELECT * FROM test.outcome(:id);

-- renamed away, and back
ALTER FUNCTION test.changing(jsonb) RENAME TO changed;
SELECT jobq.enqueue('changing') AS id \gset
SELECT * FROM test.outcome(:id);
ALTER FUNCTION test.changed(jsonb) RENAME TO changing;

-- dropped and created again in another form
DROP FUNCTION test.changing(jsonb);
SELECT jobq.enqueue('changing') AS gone \gset
SELECT * FROM test.outcome(:gone);
CREATE FUNCTION test.changing(payload jsonb) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$;
SELECT jobq.retry(:gone);
SELECT * FROM test.outcome(:gone);
DROP FUNCTION test.changing(jsonb);
CREATE PROCEDURE test.changing(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO test.trace (note) VALUES ('procedure'); COMMIT; END $$;
SELECT jobq.retry(:gone);
SELECT * FROM test.outcome(:gone);
SELECT note FROM test.trace;
TRUNCATE test.trace;

-- another function for the kind
SELECT jobq.register('changing', 'test.echo(jsonb)', queue => 'first', max_attempts => 1);
SELECT jobq.enqueue('changing', '"third"') AS id \gset
SELECT * FROM test.outcome(:id);

-- unregistered
SELECT jobq.enqueue('changing', queue => 'manual') AS id \gset
SELECT jobq.unregister('changing');
SELECT jobq.unregister('changing');
SELECT jobq.enqueue('changing');
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);

-- a handler replaces its own function during a run, and then performs its own kind
CREATE FUNCTION test.ouroboros(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	CREATE OR REPLACE FUNCTION test.ouroboros(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RETURN ''"inner"''; END';
	RETURN jsonb_build_array('outer', jobq.perform('ouroboros'));
END
$$;
SELECT jobq.register('ouroboros', 'test.ouroboros(jsonb)');
SELECT jobq.enqueue('ouroboros') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('ouroboros') AS id \gset
SELECT * FROM test.outcome(:id);

-- EXECUTE is checked each time
SELECT jobq.grant_privilege('regress_jobq_alice');
CREATE FUNCTION test.guarded() RETURNS jsonb LANGUAGE sql AS $$ SELECT '"ran"'::jsonb $$;
SELECT jobq.register('guarded', 'test.guarded()', queue => 'first', max_attempts => 1);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('guarded') AS id \gset
SELECT * FROM test.outcome(:id);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION test.guarded() FROM PUBLIC;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('guarded') AS id \gset
SELECT * FROM test.outcome(:id);
RESET ROLE;
GRANT EXECUTE ON FUNCTION test.guarded() TO regress_jobq_alice;
SELECT jobq.retry(:id);
SELECT * FROM test.outcome(:id);

-- the commit fails, although the handler has called snooze()
CREATE FUNCTION test.fails_at_commit() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.snooze('1 h');
	EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (i - 1) FROM generate_series(1, 2) i';
END
$$;
SELECT jobq.register('fails_at_commit', 'test.fails_at_commit()', max_attempts => 1);
SELECT jobq.enqueue('fails_at_commit') AS id \gset
SELECT state, attempt, error FROM jobq.wait(:id);
SELECT jobq.delete(:id);

-- a procedure cannot close the portal in which it runs
CREATE PROCEDURE test.closes() LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	EXECUTE 'CLOSE ALL';
	INSERT INTO test.trace (note) VALUES ('closed');
	COMMIT;
	INSERT INTO test.trace (note) SELECT 'cursors: ' || count(*) FROM pg_cursors;
END
$$;
SELECT jobq.register('closes', 'test.closes()', max_attempts => 1);
SELECT jobq.enqueue('closes') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- a procedure commits as it goes
CREATE PROCEDURE test.steps(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('attempt ' || job.attempt || ': one');
	COMMIT;
	INSERT INTO test.trace (note) VALUES ('attempt ' || job.attempt || ': two');
	ROLLBACK;
	INSERT INTO test.trace (note) VALUES ('attempt ' || job.attempt || ': three');
	COMMIT;
	INSERT INTO test.trace (note) VALUES ('attempt ' || job.attempt || ': ' || (jobq.current_job()).kind);
	IF payload = '"fail"' AND job.attempt = 1 THEN
		RAISE EXCEPTION 'failed after COMMIT';
	END IF;
END
$$;
SELECT jobq.register('steps', 'test.steps(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.enqueue('steps') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- committed changes stay when the procedure fails; the attempt is charged
SELECT jobq.enqueue('steps', '"fail"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
SELECT jobq.enqueue('steps', '"fail"', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
TRUNCATE test.trace;

-- snooze(), cancel_current() and reject_current() after a COMMIT
CREATE PROCEDURE test.asks(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ((payload #>> '{}') || ' one');
	COMMIT;
	INSERT INTO test.trace (note) VALUES ((payload #>> '{}') || ' two');
	CASE payload #>> '{}'
		WHEN 'snooze' THEN
			IF (SELECT count(*) FROM test.trace WHERE note = 'snooze two') = 1 THEN
				PERFORM jobq.snooze('0');
			END IF;
		WHEN 'discard' THEN
			PERFORM jobq.cancel_current('no use');
		WHEN 'fail' THEN
			PERFORM jobq.reject_current('never');
	END CASE;
END
$$;
SELECT jobq.register('asks', 'test.asks(jsonb, jobq.job_context)', backoff => 'fixed 1ms', queue => 'first');
SELECT array_agg(jobq.enqueue('asks', to_jsonb(what))) AS ids FROM unnest('{snooze,discard,fail}'::text[]) what \gset
SELECT state, attempt, result, error FROM jobq.wait_many(:'ids'::bigint[]);
SELECT note, count(*) FROM test.trace GROUP BY note ORDER BY note;
TRUNCATE test.trace;

-- as in PostgreSQL, a procedure with a SET clause or SECURITY DEFINER cannot COMMIT
CREATE PROCEDURE test.with_setting() LANGUAGE plpgsql SET search_path = test AS $$ BEGIN COMMIT; END $$;
CREATE PROCEDURE test.as_owner() LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN COMMIT; END $$;
SELECT jobq.register('with_setting', 'test.with_setting()', max_attempts => 1), jobq.register('as_owner', 'test.as_owner()', max_attempts => 1);
SELECT jobq.enqueue('with_setting') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('as_owner') AS id \gset
SELECT * FROM test.outcome(:id);

-- a function cannot COMMIT at all
CREATE FUNCTION test.commits() RETURNS void LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
SELECT jobq.register('commits', 'test.commits()', max_attempts => 1);
SELECT jobq.enqueue('commits') AS id \gset
SELECT * FROM test.outcome(:id);

-- deferred constraint triggers are part of the handler, and can fail the attempt
CREATE TABLE test.node (id int PRIMARY KEY, parent int REFERENCES test.node DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION test.deferred(payload jsonb) RETURNS void LANGUAGE sql
	AS $$ INSERT INTO test.node VALUES (payload::int, 1); INSERT INTO test.trace (note) VALUES ('lost') $$;
SELECT jobq.register('deferred', 'test.deferred(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('deferred', '2') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('deferred', '1') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT count(*) FROM test.node;
TRUNCATE test.trace;

-- serialization failures are retried at once, without charging an attempt
CREATE SEQUENCE test.tries;
CREATE FUNCTION test.conflict(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF nextval('test.tries') <= payload::int THEN
		RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure';
	END IF;
END
$$;
SELECT jobq.register('conflict', 'test.conflict(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('conflict', '3') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT last_value FROM test.tries;
-- a limited number of times, which a key that is free at the start does not lower
SELECT setval('test.tries', 1, false);
SELECT jobq.enqueue('conflict', '100', unique_key => 'conflict', uniqueness => '{"until": "start"}') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT last_value FROM test.tries;

-- a procedure may already have committed, therefore the attempt is charged
CREATE PROCEDURE test.conflict() LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$;
SELECT jobq.register('conflict', 'test.conflict()', max_attempts => 1);
SELECT jobq.enqueue('conflict') AS id \gset
SELECT * FROM test.outcome(:id);

-- perform(): at once, in this session and transaction
SELECT jobq.perform('echo', '"now"');
SELECT jobq.perform('v1');
SELECT * FROM test.error($$SELECT jobq.perform('broken', '1')$$);
SELECT * FROM test.error($$SELECT jobq.perform('nothing')$$);
BEGIN;
SELECT jobq.perform('note', '"performed"');
ROLLBACK;
SELECT note FROM test.trace;
SELECT jobq.perform('p1');
SELECT * FROM test.error($$SELECT jobq.perform('steps')$$);
-- an SQL function runs with the search_path and role of this call, not of the previous call
CREATE TABLE test.shared (name text);
INSERT INTO test.shared VALUES ('shared');
CREATE SCHEMA regress_jobq_tenant;
CREATE TABLE regress_jobq_tenant.shared AS SELECT 'of the tenant' AS name;
SET search_path = test;
CREATE FUNCTION test.finds(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_array(name) FROM shared $$;
RESET search_path;
SELECT jobq.register('finds', 'test.finds(jsonb)');
BEGIN;
SET LOCAL search_path = test;
SELECT jobq.perform('finds');
SET LOCAL search_path = regress_jobq_tenant;
SELECT jobq.perform('finds');
COMMIT;
DROP SCHEMA regress_jobq_tenant CASCADE;
CREATE FUNCTION test.inner_job(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE sql
	AS $$ SELECT jsonb_build_object('id', job.id, 'kind', job.kind, 'queue', job.queue, 'attempt', job.attempt, 'current', (jobq.current_job()).kind) $$;
CREATE FUNCTION test.outer_job(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	inside jsonb := jobq.perform('inner_job');
BEGIN
	RETURN jsonb_build_array(inside, (jobq.current_job()).kind, (jobq.current_job()).id = job.id);
END
$$;
SELECT jobq.register('inner_job', 'test.inner_job(jsonb, jobq.job_context)'), jobq.register('outer_job', 'test.outer_job(jsonb, jobq.job_context)');
SELECT jobq.perform('inner_job');
SELECT jobq.enqueue('outer_job') AS id \gset
SELECT * FROM test.outcome(:id);
-- inside perform(), the worker's job is still the current job; a job cannot wait for itself
CREATE FUNCTION test.own(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_agg(m) FROM (SELECT (jobq.status((payload ->> 'id')::bigint)).state AS m UNION ALL SELECT e.message
		FROM unnest('{jobq.cancel(%s),jobq.wait(%s),jobq.status(0)}'::text[]) c, test.error(format('SELECT ' || c, payload ->> 'id')) e) o
$$;
CREATE FUNCTION test.outer_own(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE sql AS $$ SELECT jobq.perform('own', jsonb_build_object('id', job.id)) $$;
CREATE PROCEDURE test.outer_own_procedure(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (jobq.perform('own', jsonb_build_object('id', job.id)));
END
$$;
SELECT jobq.register('own', 'test.own(jsonb)'), jobq.register('outer_own', 'test.outer_own(jsonb, jobq.job_context)'), jobq.register('outer_own_procedure', 'test.outer_own_procedure(jsonb, jobq.job_context)');
SELECT jobq.enqueue('outer_own') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('outer_own_procedure') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace;
TRUNCATE test.trace;

-- functions reserved for handlers
SELECT c.call, e.* FROM unnest(ARRAY['current_job()', 'set_progress(1)', 'should_stop()', 'snooze(''1s'')', 'cancel_current(''x'')', 'reject_current(''x'')'])
	WITH ORDINALITY c (call, n), test.error('SELECT jobq.' || c.call) e ORDER BY n;

-- on_failure runs as a separate job when a job becomes a dead letter
CREATE FUNCTION test.regret(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (format('%s %s %s', job.kind, payload, jsonb_set(job.headers - 'dead_letter', '{error_context}', to_jsonb(split_part(job.headers ->> 'error_context', E'\n', 1)))))
$$;
CREATE FUNCTION test.fails(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a "quoted" reason' USING ERRCODE = 'ZZ001'; END $$;
SELECT jobq.register('fails', 'test.fails(jsonb)', max_attempts => 2, backoff => 'fixed 1ms', on_failure => 'test.regret(jsonb, jobq.job_context)');
SELECT jobq.enqueue('fails', '{"n": 1}') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT note FROM test.trace;
SELECT state, attempt, (headers ->> 'dead_letter')::bigint = :id AS of_this FROM jobq.jobs WHERE kind = 'on_failure:fails';
-- a failed on_failure job has no on_failure job
CREATE OR REPLACE FUNCTION test.regret(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no regrets'; END $$;
SELECT jobq.enqueue('fails') AS id \gset
SELECT test.until('(SELECT count(*) FROM jobq.dead_letters WHERE kind = ''on_failure:fails'') = 1');
SELECT kind, attempt, error, sqlstate FROM jobq.dead_letters WHERE kind LIKE '%fails' ORDER BY kind, id;
SELECT bool_and(jobq.delete(id) IS NOT NULL) FROM jobq.dead_letters;
TRUNCATE test.trace;
-- a long error is truncated
CREATE FUNCTION test.complain(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%', repeat('x', 5000); END $$;
SELECT jobq.register('complain', 'test.complain(jsonb)', max_attempts => 1, on_failure => 'test.echo(jsonb)');
SELECT jobq.enqueue('complain') AS id \gset
SELECT state, length(error) FROM jobq.wait(:id);
SELECT length(headers ->> 'error') FROM jobq.jobs WHERE kind = 'on_failure:complain';
SELECT jobq.delete(:id);

-- the cache of missing handlers: kinds with the same hash slot evict each other, without a memory leak
SELECT 'unheard of ' || i AS other FROM generate_series(1, 10000) i WHERE hashtext('unheard of ' || i) & 63 = hashtext('on_failure:echo') & 63 LIMIT 1 \gset
SELECT jobq.create_queue('unheard', mode => 'consumer');
SELECT count(jobq.enqueue(kind, queue => 'unheard')) FROM unnest(ARRAY['on_failure:echo', :'other']) kind;
SELECT count(*) AS before FROM pg_backend_memory_contexts WHERE name = 'jobq handler' \gset
SELECT count(jobq.enqueue(kind, queue => 'unheard')) FROM (SELECT kind FROM generate_series(1, 100) i, unnest(ARRAY['on_failure:echo', :'other']) kind ORDER BY i) t;
SELECT count(*) - :before AS more FROM pg_backend_memory_contexts WHERE name = 'jobq handler';
SELECT jobq.cancel_many(queue => 'unheard', state => 'waiting'), jobq.drop_queue('unheard', force => true);

-- log lines of a handler
CREATE FUNCTION test.logs(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('begins');
	PERFORM jobq.log(format('line %s', i), 'debug') FROM generate_series(1, (payload ->> 'lines')::int) i;
	PERFORM jobq.perform('logs', '{"lines": 0}') WHERE payload ? 'inner';
	IF payload ? 'fail' THEN
		PERFORM jobq.log('fails', 'error');
		RAISE EXCEPTION 'as it says';
	END IF;
	IF payload ? 'bad' THEN
		PERFORM jobq.log('bad', payload ->> 'bad');
	END IF;
END
$$;
SELECT jobq.register('logs', 'test.logs(jsonb)', max_attempts => 2, backoff => 'fixed 1ms');
CREATE FUNCTION test.log(id bigint) RETURNS TABLE (attempt int, level text, message text, fresh boolean) LANGUAGE sql AS $$
	SELECT (l ->> 'attempt')::int, l ->> 'level', l ->> 'message', (l ->> 'at')::timestamptz > now() - interval '1 minute'
	FROM jobq.jobs, jsonb_array_elements(log) l WHERE jobs.id = $1;
$$;
SELECT jobq.enqueue('logs', '{"lines": 1, "inner": true}') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.log(:id);
SELECT jobq.enqueue('logs', '{"lines": 0, "fail": true}') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.log(:id);
SELECT jsonb_array_length(log) FROM jobq.dead_letters WHERE id = :id;
SELECT jobq.retry(:id);
SELECT state FROM jobq.wait(:id);
SELECT attempt, level, message FROM test.log(:id);
SELECT jobq.delete(:id);
-- the last lines are kept
SELECT jobq.enqueue('logs', '{"lines": 150, "fail": true}') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT count(*), min(attempt), (array_agg(message))[1] AS first, (array_agg(message))[100] AS last FROM test.log(:id);
SELECT jobq.delete(:id);
SELECT jobq.enqueue('logs', '{"lines": 0, "bad": "loud"}', max_attempts => 1) AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.delete(:id);
SELECT jobq.log('nobody''s');
-- without a job, perform() discards log lines
SELECT jobq.perform('logs', '{"lines": 1}');
DROP FUNCTION test.log;
