-- Unique keys: on_conflict merge with a function.
CREATE FUNCTION test.summed(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('n', (old ->> 'n')::int + (new ->> 'n')::int)
$$;
CREATE FUNCTION test.merging(OUT kind text, OUT payload jsonb) RETURNS SETOF record LANGUAGE sql
AS $$ SELECT j.kind, j.payload FROM jobq.live_jobs j WHERE j.unique_key IS NOT NULL ORDER BY j.id $$;
CREATE PROCEDURE test.cancel_merging() LANGUAGE sql AS $$ SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE unique_key IS NOT NULL $$;

-- the waiting job gets the result of the function as payload; its other properties stay
SELECT jobq.enqueue('echo', '{"n": 1}', 'manual', unique_key => 'm', priority => 5, uniqueness => '{"merge": "test.summed(jsonb, jsonb)"}') AS m \gset
SELECT jobq.enqueue('echo', '{"n": 2}', 'first', unique_key => 'm', uniqueness => '{"on_conflict": "merge", "merge": "test.summed(jsonb,jsonb)"}') = :m AS same, jobq.enqueue('echo', '{"n": 3}', unique_key => 'm', uniqueness => '{"merge": "test.summed"}') = :m AS same;
SELECT queue, priority, payload, unique_key FROM jobq.jobs WHERE id = :m;
SELECT id = :m AS same, duplicate FROM test.enqueued(jobq.enqueue('echo', '{"n": 4}', unique_key => 'm', uniqueness => '{"merge": "test.summed"}'));
SELECT count(DISTINCT id) FROM jobq.enqueue_many('echo', '{"{\"k\": 1, \"n\": 1}","{\"k\": 1, \"n\": 10}","{\"k\": 2, \"n\": 1}","{\"k\": 1, \"n\": 100}"}', queue => 'manual', uniqueness => '{"by": ["k"], "merge": "test.summed"}') id;
INSERT INTO jobq.inbox (kind, payload, unique_key, uniqueness) VALUES ('echo', '{"n": 5}', 'm', '{"merge": "test.summed"}') RETURNING id = :m AS same;
SELECT * FROM test.merging();
-- scalars as well
CREATE FUNCTION test.merge_greater(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT greatest(old, new) $$;
SELECT jobq.enqueue('echo', '7', 'manual', unique_key => 's') AS s \gset
SELECT jobq.enqueue('echo', '5', unique_key => 's', uniqueness => '{"merge": "test.merge_greater"}') = :s AS same, jobq.enqueue('echo', '9', unique_key => 's', uniqueness => '{"merge": "test.merge_greater"}') = :s AS same;
SELECT payload FROM jobq.jobs WHERE id = :s;
SELECT jobq.cancel(:s);
-- a rollback undoes a merge
BEGIN;
SELECT jobq.enqueue('echo', '{"n": 100}', unique_key => 'm', uniqueness => '{"merge": "test.summed"}') = :m AS same;
SAVEPOINT s;
SELECT jobq.enqueue('echo', '{"n": 1000}', unique_key => 'm', uniqueness => '{"merge": "test.summed"}') = :m AS same;
SELECT payload FROM jobq.jobs WHERE id = :m;
ROLLBACK TO s;
SELECT payload FROM jobq.jobs WHERE id = :m;
ROLLBACK;
SELECT payload FROM jobq.jobs WHERE id = :m;

-- the function is called as the enqueuing role
CREATE FUNCTION test.merge_who(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(current_user) $$;
REVOKE EXECUTE ON FUNCTION test.summed(jsonb, jsonb) FROM PUBLIC;
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '{"n": 1}', 'manual', unique_key => 'm', uniqueness => '{"merge": "test.merge_who"}') <> :m AS its_own;
SELECT jobq.enqueue('echo', '{"n": 2}', 'manual', unique_key => 'm', uniqueness => '{"merge": "test.merge_who"}') <> :m AS its_own;
SELECT payload FROM jobq.live_jobs WHERE unique_key = 'm';
SELECT e.code, e.message FROM test.error($$SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'other', uniqueness => '{"merge": "test.summed"}')$$) e;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');

-- functions with a wrong signature
CREATE FUNCTION test.merge_one(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION test.merge_text(jsonb, jsonb) RETURNS text LANGUAGE sql AS 'SELECT $1::text';
CREATE FUNCTION test.merge_set(jsonb, jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION test.merge_any(anyelement, anyelement) RETURNS anyelement LANGUAGE sql AS 'SELECT $1';
CREATE PROCEDURE test.merge_procedure(jsonb, jsonb) LANGUAGE sql AS 'SELECT $1';
SELECT e.code, e.message, e.hint <> '' AS hint FROM unnest(ARRAY['test.merge_one(jsonb)', 'test.merge_text', 'test.merge_set', 'test.merge_any(anyelement, anyelement)', 'test.merge_procedure', 'pg_catalog.jsonb_object_agg(any, any)',
	'test.no_such', 'test.no_such(jsonb)', '', '(', 'test.summed(', 'test.summed(json, json)']) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.enqueue(''echo'', ''1'', ''manual'', unique_key => ''bad'', uniqueness => jsonb_build_object(''merge'', %L))', f)) e ORDER BY n;
-- calls where merge makes no sense
SELECT e.code, e.message FROM unnest('{NULL,bad,bad}'::text[], '{NULL,replace,skip}'::text[]) WITH ORDINALITY u (k, c, n),
	test.error(format('SELECT jobq.enqueue(''echo'', ''1'', ''manual'', unique_key => %L, uniqueness => %L)', k, jsonb_build_object('on_conflict', c, 'merge', 'test.summed'))) e ORDER BY n;
SELECT e.code, e.message FROM test.error($$SELECT jobq.enqueue_sql('SELECT 1', queue => 'manual', unique_key => 'bad', uniqueness => '{"merge": "test.summed"}')$$) e;
-- no user code runs where jobq itself enqueues for the user
SELECT e.code, e.message FROM test.error($$SELECT jobq.schedule('merging', '@daily', 'echo', options => '{"uniqueness": {"merge": "test.summed"}}')$$) e;
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.create_batch(on_finish => '{"kind": "echo", "unique_key": "bad", "uniqueness": {"merge": "test.summed"}}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "unique_key": "bad", "uniqueness": {"merge": "test.summed"}}]}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT test.chain('[{"kind": "echo", "uniqueness": {"merge": "test.summed"}}]')$$) e;
SELECT count(*) FROM jobq.live_jobs WHERE unique_key = 'bad';

-- the function fails, or returns nothing or too much: the job is unchanged
CREATE FUNCTION test.merge_badly(old jsonb, new jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE new ->> 'what' WHEN 'raise' THEN (1 / 0)::text::jsonb WHEN 'large' THEN to_jsonb(repeat('x', pg_size_bytes(current_setting('jobq.max_payload'))::int)) END;
END $$;
SELECT e.code, left(e.message, 80) AS message, e.hint <> '' AS hint FROM unnest('{raise,nothing,large}'::text[]) w, test.error(format('SELECT jobq.enqueue(''echo'', ''{"what": "%s"}'', unique_key => ''m'', uniqueness => ''{"merge": "test.merge_badly"}'')', w)) e;
DO $$
DECLARE
	context text;
BEGIN
	PERFORM jobq.enqueue('echo', '{"what": "raise"}', unique_key => 'm', uniqueness => '{"merge": "test.merge_badly"}');
EXCEPTION WHEN division_by_zero THEN
	GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
	RAISE NOTICE '%', regexp_replace(substring(context FROM 'merging.*?\d+'), '\d+', 'N');
END $$;
SELECT payload FROM jobq.jobs WHERE id = :m;

-- the function changes the job itself, or the key
CREATE FUNCTION test.merge_meddling(old jsonb, new jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	m bigint := (SELECT id FROM jobq.live_jobs WHERE unique_key = 'x' AND kind = 'echo');
BEGIN
	CASE new ->> 'what'
		WHEN 'edit' THEN PERFORM jobq.edit(m, payload => '{"edited": 1}');
		WHEN 'once' THEN IF NOT old ? 'edited' THEN PERFORM jobq.edit(m, payload => '{"edited": 1}'); END IF;
		WHEN 'again' THEN PERFORM jobq.enqueue('echo', '{"what": "again"}', unique_key => 'x', uniqueness => '{"merge": "test.merge_meddling"}');
		WHEN 'reset' THEN PERFORM jobq.enqueue('echo', unique_key => 'x', uniqueness => '{"on_conflict": "reset"}', delay => '1 h');
		WHEN 'skip' THEN PERFORM jobq.enqueue('echo', unique_key => 'x');
		WHEN 'cancel' THEN PERFORM jobq.cancel(m);
		WHEN 'release' THEN PERFORM jobq.release_key('echo', 'x');
		WHEN 'instead' THEN PERFORM jobq.cancel(m); PERFORM jobq.enqueue('echo', '{"what": "skip", "instead": 1}', 'manual', unique_key => 'x');
		WHEN 'handler' THEN PERFORM jobq.register('echo', 'test.echo(jsonb)');
		WHEN 'gone' THEN DROP FUNCTION test.merge_gone(jsonb, jsonb);
		ELSE NULL;
	END CASE;
	RETURN old || new || '{"merged": 1}';
END $$;
CREATE PROCEDURE test.meddle(what text) LANGUAGE plpgsql AS $$
DECLARE
	e record;
	x bigint;
BEGIN
	x := jobq.enqueue('echo', '{"first": 1}', 'manual', unique_key => 'x');
	COMMIT;
	SELECT * INTO e FROM test.error(format('SELECT jobq.enqueue(''echo'', ''{"what": "%s"}'', ''manual'', unique_key => ''x'', uniqueness => ''{"merge": "test.merge_meddling"}'')', what));
	RAISE NOTICE '% % %', what, e.code, replace(e.message, x::text, 'N');
	FOR e IN SELECT CASE WHEN id = x THEN 'same' ELSE 'other' END AS id, payload FROM jobq.live_jobs WHERE unique_key = 'x' ORDER BY live_jobs.id LOOP
		RAISE NOTICE '  % %', e.id, e.payload;
	END LOOP;
	PERFORM jobq.cancel(id) FROM jobq.live_jobs WHERE unique_key = 'x';
END $$;
CALL test.meddle('nothing');
CALL test.meddle('skip');
CALL test.meddle('handler');
CALL test.meddle('edit');
CALL test.meddle('once');
CALL test.meddle('reset');
CALL test.meddle('cancel');
CALL test.meddle('release');
CALL test.meddle('instead');
-- infinite recursion
SET max_stack_depth = '200kB';
SELECT jobq.enqueue('echo', '{"first": 1}', 'manual', unique_key => 'x') AS x \gset
SELECT e.code FROM test.error($$SELECT jobq.enqueue('echo', '{"what": "again"}', unique_key => 'x', uniqueness => '{"merge": "test.merge_meddling"}')$$) e;
RESET max_stack_depth;
SELECT payload FROM jobq.jobs WHERE id = :x;
-- the function was replaced or dropped
CREATE FUNCTION test.merge_gone(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT old || '{"by": "the first"}' $$;
SELECT jobq.enqueue('echo', '{}', unique_key => 'x', uniqueness => '{"merge": "test.merge_gone"}') = :x AS same;
CREATE OR REPLACE FUNCTION test.merge_gone(old jsonb, new jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT old || '{"and": "the second"}' $$;
SELECT jobq.enqueue('echo', '{}', unique_key => 'x', uniqueness => '{"merge": "test.merge_gone"}') = :x AS same;
BEGIN;
DROP FUNCTION test.merge_gone;
SELECT e.code, e.message FROM test.error($$SELECT jobq.enqueue('echo', unique_key => 'x', uniqueness => '{"merge": "test.merge_gone"}')$$) e;
CREATE FUNCTION test.merge_gone(old jsonb, new jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'a text' $$;
SELECT e.code, e.message FROM test.error($$SELECT jobq.enqueue('echo', unique_key => 'x', uniqueness => '{"merge": "test.merge_gone"}')$$) e;
ROLLBACK;
SELECT payload FROM jobq.jobs WHERE id = :x;
CALL test.cancel_merging();

-- without a waiting job, the function is not called: the job runs, or belongs to another role
SELECT pg_advisory_lock(31);
SELECT jobq.enqueue('gate', '31', unique_key => 'r') AS r \gset
SELECT test.in_gate(:r);
SELECT jobq.enqueue('gate', '{"what": "raise"}', 'manual', unique_key => 'r', uniqueness => '{"merge": "test.merge_badly"}') <> :r AS another;
SELECT pg_advisory_unlock(31);
SELECT state FROM test.outcome(:r);
CALL test.cancel_merging();
SELECT count(*) FROM jobq_internal.unique_key;
DROP FUNCTION test.summed, test.merging, test.merge_greater, test.merge_who, test.merge_one, test.merge_text, test.merge_set, test.merge_any, test.merge_badly, test.merge_meddling, test.merge_gone;
DROP PROCEDURE test.cancel_merging, test.meddle, test.merge_procedure;
