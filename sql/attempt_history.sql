-- Errors, progress and log lines of earlier attempts stay with a job that succeeds.
\connect - postgres
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

-- Returns the history without values that differ between runs.
CREATE FUNCTION test.story(id bigint) RETURNS TABLE (attempt int, event text, by text, timed boolean, detail text)
LANGUAGE sql AS $$
	SELECT h.attempt, h.event, regexp_replace(h.by, '^worker \d+$', 'worker N'), h.took >= '0',
		regexp_replace(regexp_replace(h.detail, E'\nCONTEXT.*', E'\nCONTEXT'), 'explain.\d+', 'explain(N')
	FROM jobq.history(id) WITH ORDINALITY h ORDER BY ordinality
$$;

CREATE FUNCTION test.third_time(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('begins');
	IF job.attempt < 3 THEN
		PERFORM jobq.set_progress(40, 'halfway');
		PERFORM jobq.log('looks bad', 'warning');
		RAISE EXCEPTION 'not yet' USING ERRCODE = 'P0042', DETAIL = 'as always', HINT = 'wait';
	END IF;
	RETURN '"at last"';
END
$$;
SELECT jobq.register('third_time', 'test.third_time(jsonb, jobq.job_context)', backoff => 'fixed 1ms', max_attempts => 5);

-- a worker's job that succeeds at the third attempt
SELECT jobq.enqueue('third_time') AS id \gset
SELECT state, attempt, error, result FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT state, error, jsonb_array_length(errors) AS errors, errors -> 0 ->> 'sqlstate' AS sqlstate,
	errors -> 0 ->> 'context' LIKE 'PL/pgSQL function test.third_time%' AS context,
	(errors -> 0 ->> 'worker')::int > 0 AS worker, errors -> 0 ->> 'progress' AS progress
FROM jobq.jobs WHERE id = :id;
SELECT count(*) FILTER (WHERE at < lag) AS in_disorder FROM (SELECT at, lag(at) OVER () FROM jobq.history(:id)) h;

-- a job that succeeds at once has no errors, and no log
SELECT jobq.enqueue('echo', '1') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT errors IS NULL AND log IS NULL AS nothing FROM jobq_internal.archive WHERE id = :id;

-- a job that does not succeed
SELECT jobq.enqueue('broken', max_attempts => 2) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT jobq.delete(:id);

-- waiting jobs: scheduled, retryable, ready
SELECT jobq.enqueue('echo', delay => '1 hour') AS later, jobq.enqueue('third_time', backoff => 'fixed 1h') AS again,
	jobq.enqueue('echo', queue => 'manual') AS ready \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :again));
SELECT attempt, event, regexp_replace(detail, 'for \d.*', 'for T') AS detail FROM test.story(:later);
SELECT * FROM test.story(:again);
SELECT * FROM test.story(:ready);
SELECT jobq.cancel(id) FROM unnest(ARRAY[:later, :again, :ready]) id;
SELECT * FROM test.story(:ready);

-- a consumer's job: a failed attempt, an expired lease, a completed attempt
SELECT jobq.create_queue('told', mode => 'consumer');
SELECT jobq.enqueue('outside', queue => 'told', backoff => 'fixed 1ms', max_attempts => 5) AS id \gset
SELECT token FROM jobq.reserve('{told}', consumer => 'first', wait => '5 min') \gset
SELECT jobq.set_progress(:id, :token, 12.5, 'an eighth');
SELECT * FROM test.story(:id);
SELECT jobq.nack(:id, :token, 'no luck', delay => '0');
SELECT token FROM jobq.reserve('{told}', lease => '1 s', consumer => 'second', wait => '5 min') \gset
SELECT test.until(format('(SELECT attempt = 2 AND state <> ''running'' FROM jobq.status(%s))', :id));
SELECT token FROM jobq.reserve('{told}', consumer => 'third', wait => '5 min') \gset
SELECT jobq.ack(:id, :token, '"done"');
SELECT * FROM test.story(:id);
SELECT jobq.drop_queue('told');

-- not for other roles
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT test.error(format('SELECT jobq.history(%s)', :id));
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT test.error('SELECT jobq.history(0)');
SELECT jobq.unregister('third_time');

-- lines of log() are visible while the job runs, and stored once
CREATE FUNCTION test.tells(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('begins');
	PERFORM jobq.log('waits', 'debug');
	PERFORM pg_advisory_xact_lock_shared(1);
	PERFORM jobq.log(repeat('x', 5000), 'warning');
	IF job.attempt = 1 THEN
		RAISE EXCEPTION 'not yet';
	END IF;
END
$$;
CREATE FUNCTION test.lines(id bigint) RETURNS TABLE (attempt text, level text, message text) LANGUAGE sql AS $$
	SELECT l ->> 'attempt', l ->> 'level', CASE WHEN length(l ->> 'message') > 40 THEN length(l ->> 'message') || ' bytes' ELSE l ->> 'message' END
	FROM jobq.jobs j, jsonb_array_elements(j.log) WITH ORDINALITY AS e (l, n) WHERE j.id = lines.id ORDER BY n
$$;
SELECT jobq.register('tells', 'test.tells(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.enqueue('tells') AS id FROM pg_advisory_lock(1) \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM test.lines(%s))', :id));
SELECT * FROM test.lines(:id);
SELECT * FROM test.story(:id);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.lines(:id);
-- the worker is terminated
SELECT jobq.enqueue('tells', max_attempts => 1) AS id FROM pg_advisory_lock(1) \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM test.lines(%s))', :id));
SELECT count(pg_terminate_backend(worker)) FROM jobq.jobs WHERE id = :id;
SELECT state, error FROM jobq.wait(:id);
SELECT * FROM test.lines(:id);
SELECT jobq.delete(:id);
SELECT pg_advisory_unlock(1);
-- a monitor sees the running job, but not its log
SELECT jobq.enqueue('tells') AS id FROM pg_advisory_lock(1) \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM test.lines(%s))', :id));
SELECT jobq.grant_privilege('regress_jobq_alice', 'monitor');
SET ROLE regress_jobq_alice;
SELECT state, log FROM jobq.jobs WHERE id = :id;
SELECT jobq_internal.live_log(:id, NULL);
RESET ROLE;
SELECT jsonb_array_length(jobq_internal.live_log(:id, NULL));
-- at the end of an attempt, lines may exist both in memory and in the row
SELECT l ->> 'message' AS message FROM jsonb_array_elements(jobq_internal.live_log(:id, jsonb_build_array('{"message": "before"}'::jsonb, jobq_internal.live_log(:id, NULL) -> 0))) l;
SELECT jsonb_array_length(jobq_internal.live_log(:id, l)) FROM unnest('{"[]","{}","1"}'::jsonb[]) l;
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:id);

-- a consumer calls log() with a token: only the holder of the job may do so
SELECT jobq.create_queue('told', mode => 'consumer'), jobq.create_queue('told_lightly', mode => 'consumer', lease => 'memory');
SELECT jobq.enqueue('outside', queue => 'told', backoff => 'fixed 1ms', max_attempts => 9) AS id \gset
SELECT token FROM jobq.reserve('{told}', wait => '5 min') \gset
SELECT jobq.log(:id, :token, 'first');
BEGIN;
SELECT jobq.log(:id, :token, 'not undone', 'error');
ROLLBACK;
SELECT * FROM test.lines(:id);
SELECT test.error(format('SELECT jobq.log(%s, %s, ''x'')', :id, :token + 1));
SELECT test.error(format('SELECT jobq.log(%s, %s, ''x'', ''loud'')', :id, :token));
SELECT test.error(format('SELECT jobq.log(%s, %s, NULL)', :id, :token));
SELECT test.error(format('SELECT jobq.log(NULL::bigint, %s, ''x'')', :token));
BEGIN;
SELECT jobq.ack(:id, :token);
SELECT test.error(format('SELECT jobq.log(%s, %s, ''too late'')', :id, :token));
ROLLBACK;
SELECT * FROM test.lines(:id);
-- the lines stay, however the attempt ends
SELECT jobq.nack(:id, :token, delay => '0');
SELECT token AS old FROM jobq.reserve('{told}', wait => '5 min') \gset
SELECT * FROM test.lines(:id);
SELECT jobq.log(:id, :old, 'second');
SELECT * FROM test.lines(:id);
SELECT jobq.release(:id, :old);
SELECT * FROM test.lines(:id);
SELECT test.error(format('SELECT jobq.log(%s, %s, ''x'')', :id, :old));
SELECT token FROM jobq.reserve('{told}', lease => '1 hour', wait => '5 min') \gset
SELECT jobq.log(:id, :token, 'third');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT test.until(format('(SELECT attempt = 2 AND state <> ''running'' FROM jobq.status(%s))', :id));
SELECT token FROM jobq.reserve('{told}', wait => '5 min') \gset
SELECT jobq.log(:id, :token, 'fourth');
SELECT jobq.cancel(:id);
SELECT state FROM jobq.status(:id);
SELECT * FROM test.lines(:id);
SELECT jobq.enqueue('outside', queue => 'told_lightly') AS id \gset
SELECT token FROM jobq.reserve('{told_lightly}', wait => '5 min') \gset
SELECT jobq.log(:id, :token, 'lightly');
SELECT jobq.release(:id, :token);
SELECT token FROM jobq.reserve('{told_lightly}', wait => '5 min') \gset
SELECT jobq.ack(:id, :token);
SELECT * FROM test.lines(:id);
SELECT jobq.test_clock('0') \g /dev/null
-- the last of many lines are kept; when the memory is full, room remains for another role
SELECT count(jobq.enqueue('outside', queue => 'told')) FROM generate_series(1, 3);
CREATE TABLE test.held AS SELECT r.* FROM unnest('{1,1,1}'::int[]) AS most, LATERAL (SELECT id, token FROM jobq.reserve('{told}', most, wait => '5 min')) AS r;
SELECT count(jobq.log(id, token, i || repeat('y', 5000))) FROM test.held, generate_series(1, 120) i;
SELECT jsonb_array_length(log) BETWEEN 1 AND 99 AS fewer, substr(log -> -1 ->> 'message', 1, 4) AS last FROM jobq.jobs WHERE id IN (SELECT id FROM test.held);
SELECT jobq.grant_privilege('regress_jobq_alice', 'consume', 'told'), jobq.grant_privilege('regress_jobq_alice', queue => 'told');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('outside', queue => 'told') AS id \gset
SELECT token FROM jobq.reserve('{told}', wait => '5 min') \gset
SELECT jobq.log(:id, :token, 'hers');
SELECT * FROM test.lines(:id);
SELECT jobq.ack(:id, :token);
RESET ROLE;
SELECT count(jobq.ack(id, token)) FROM test.held;
SELECT count(*) AS jobs, min(jsonb_array_length(log)) > 0 AS all_told, max(jsonb_array_length(log)) < 100 AS not_more FROM jobq.jobs WHERE id IN (SELECT id FROM test.held);
DROP TABLE test.held;
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'told');
SELECT jobq.drop_queue('told'), jobq.drop_queue('told_lightly');
-- pg_stat_activity shows the job of a worker, and the start of the job
CREATE FUNCTION test.shown() RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('query', query, 'since', query_start = now()) FROM pg_stat_activity WHERE pid = pg_backend_pid()
$$;
SELECT jobq.register('shown', 'test.shown()');
CREATE TABLE test.held AS SELECT e.id FROM jobq.enqueue_many('shown', array_fill('1'::jsonb, ARRAY[50]), queue => 'first') AS e(id);
SELECT count(*), bool_and(result ->> 'query' = 'jobq: shown, job ' || id) AS query, bool_and((result ->> 'since')::boolean) AS since FROM jobq.wait_many(ARRAY(SELECT id FROM test.held));
DROP TABLE test.held;
SELECT jobq.unregister('shown');
DROP FUNCTION test.shown;
SELECT jobq.unregister('tells');
DROP FUNCTION test.tells, test.lines;

DROP FUNCTION test.story;

-- dry_run(): shows the effects of a handler, which are rolled back
CREATE TABLE test.ledger (id int PRIMARY KEY, amount int);
CREATE TABLE test.audit (id int REFERENCES test.ledger DEFERRABLE INITIALLY DEFERRED);
INSERT INTO test.ledger SELECT i, 0 FROM generate_series(1, 5) i;
CREATE FUNCTION test.book(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	RAISE NOTICE 'booking %', payload ->> 'amount';
	INSERT INTO test.ledger SELECT i, (payload ->> 'amount')::int FROM generate_series(11, 13) i;
	UPDATE test.ledger SET amount = 7 WHERE id <= 2;
	DELETE FROM test.ledger WHERE id = 5;
	INSERT INTO test.audit VALUES ((payload ->> 'audit')::int);
	PERFORM jobq.enqueue('echo', '"from a dry run"', queue => 'manual');
	RETURN to_jsonb((SELECT count(*) FROM test.ledger));
END
$$;
SELECT jobq.register('book', 'test.book(jsonb)');
BEGIN;
INSERT INTO test.ledger VALUES (6, 0);
SELECT result, written - 'jobq_internal.job' - 'jobq_internal.unique_key' AS written, written #>> '{jobq_internal.job,inserted}' AS jobs, took > '0' AS took, wal_bytes > 0 AS wal, error
FROM jobq.dry_run('book', '{"amount": 5, "audit": 11}');
COMMIT;
SELECT count(*), sum(amount) FROM test.ledger;
SELECT count(*) FROM jobq.jobs WHERE payload = '"from a dry run"';
-- errors, also of deferred triggers
SELECT result, written, error, sqlstate, error_context FROM jobq.dry_run('book', '{"amount": "five"}');
SELECT result, written, error, sqlstate FROM jobq.dry_run('book', '{"amount": 5, "audit": 99}');
SELECT result, written, wal_bytes < 100000 AS little, error FROM jobq.dry_run('echo', '[1]');
-- dry_run() uses the operators of pg_catalog, whatever the search_path
CREATE FUNCTION test.planted(jsonb, jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$;
CREATE OPERATOR public.->> (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = test.planted);
SELECT result, written, error FROM jobq.dry_run('echo', '[1]');
DROP FUNCTION test.planted CASCADE;
-- an error of the handler is returned; an error of the call is raised
CREATE FUNCTION test.asks() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM jobq.enqueue('unknown'); END $$;
SELECT jobq.register('asks', 'test.asks()');
SELECT error, sqlstate FROM jobq.dry_run('asks');
SELECT jobq.unregister('asks');
SELECT test.error($$SELECT jobq.dry_run('unknown')$$);
SELECT count(*), sum(amount) FROM test.ledger;
SELECT jobq.unregister('book');
DROP TABLE test.audit, test.ledger;
