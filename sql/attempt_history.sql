-- Errors, progress and log lines of earlier attempts stay with a job that succeeds.
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

-- The story without what differs from run to run.
CREATE FUNCTION test.story(id bigint) RETURNS TABLE (attempt int, event text, by text, timed boolean, detail text)
LANGUAGE sql AS $$
	SELECT h.attempt, h.event, regexp_replace(h.by, '^worker \d+$', 'worker N'), h.took >= '0',
		regexp_replace(regexp_replace(h.detail, E'\nCONTEXT.*', E'\nCONTEXT'), 'explain_job.\d+', 'explain_job(N')
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

-- a worker's job that succeeds in the end
SELECT jobq.enqueue('third_time') AS id \gset
SELECT state, attempt, error, result FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT state, error, jsonb_array_length(errors) AS errors, errors -> 0 ->> 'sqlstate' AS sqlstate,
	errors -> 0 ->> 'context' LIKE 'PL/pgSQL function test.third_time%' AS context,
	(errors -> 0 ->> 'worker')::int > 0 AS worker, errors -> 0 ->> 'progress' AS progress
FROM jobq.jobs WHERE id = :id;
SELECT count(*) FILTER (WHERE at < lag) AS in_disorder FROM (SELECT at, lag(at) OVER () FROM jobq.history(:id)) h;

-- one that succeeds at once leaves no errors, and no log
SELECT jobq.enqueue('echo', '1') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT errors IS NULL AND log IS NULL AS nothing FROM jobq.archive WHERE id = :id;

-- one that does not succeed
SELECT jobq.enqueue('broken', max_attempts => 2) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.story(:id);
SELECT jobq.delete_failed(:id);

-- those that wait: for their time, for their next attempt, for something else
SELECT jobq.enqueue('echo', delay => '1 hour') AS later, jobq.enqueue('third_time', backoff => 'fixed 1h') AS again,
	jobq.enqueue('echo', queue => 'manual') AS ready \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :again));
SELECT attempt, event, regexp_replace(detail, 'for \d.*', 'for T') AS detail FROM test.story(:later);
SELECT * FROM test.story(:again);
SELECT * FROM test.story(:ready);
SELECT jobq.cancel(id) FROM unnest(ARRAY[:later, :again, :ready]) id;
SELECT * FROM test.story(:ready);

-- a consumer's: an attempt that it gives up, one that expires, one that it does
SELECT jobq.create_queue('told', mode => 'consumer');
SELECT jobq.enqueue('outside', queue => 'told', backoff => 'fixed 1ms', max_attempts => 5) AS id \gset
SELECT token FROM jobq.reserve('{told}', consumer => 'first') \gset
SELECT jobq.report_progress(:id, :token, 12.5, 'an eighth');
SELECT * FROM test.story(:id);
SELECT jobq.nack(:id, :token, 'no luck', delay => '0');
SELECT token FROM jobq.reserve('{told}', lease => '1 s', consumer => 'second', wait => '10 s') \gset
SELECT test.until(format('(SELECT attempt = 2 AND state <> ''running'' FROM jobq.status(%s))', :id));
SELECT token FROM jobq.reserve('{told}', consumer => 'third', wait => '10 s') \gset
SELECT jobq.ack(:id, :token, '"done"');
SELECT * FROM test.story(:id);
SELECT jobq.drop_queue('told');

-- nobody else's
SELECT jobq.grant_role('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT test.error(format('SELECT jobq.history(%s)', :id));
RESET ROLE;
SELECT jobq.revoke_role('regress_jobq_alice');
SELECT test.error('SELECT jobq.history(0)');
SELECT jobq.unregister('third_time');
DROP FUNCTION test.story;

-- dry_run(): what a handler would do, which is rolled back
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
SELECT result, written - 'jobq.job' - 'jobq.unique_key' AS written, written #>> '{jobq.job,inserted}' AS jobs, took > '0' AS took, wal_bytes > 0 AS wal, error
FROM jobq.dry_run('book', '{"amount": 5, "audit": 11}');
COMMIT;
SELECT count(*), sum(amount) FROM test.ledger;
SELECT count(*) FROM jobq.jobs WHERE payload = '"from a dry run"';
-- errors, also of what is deferred
SELECT result, written, error, sqlstate, context FROM jobq.dry_run('book', '{"amount": "five"}');
SELECT result, written, error, sqlstate FROM jobq.dry_run('book', '{"amount": 5, "audit": 99}');
SELECT result, written, wal_bytes < 10000 AS little, error FROM jobq.dry_run('echo', '[1]');
-- it counts with the server's operators, whatever is in the path
CREATE FUNCTION test.planted(jsonb, jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$;
CREATE OPERATOR public.->> (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = test.planted);
SELECT result, written, error FROM jobq.dry_run('echo', '[1]');
DROP FUNCTION test.planted CASCADE;
-- that of a handler is told, that of the call is raised
CREATE FUNCTION test.asks() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM jobq.enqueue('unknown'); END $$;
SELECT jobq.register('asks', 'test.asks()');
SELECT error, sqlstate FROM jobq.dry_run('asks');
SELECT jobq.unregister('asks');
SELECT test.error($$SELECT jobq.dry_run('unknown')$$);
SELECT count(*), sum(amount) FROM test.ledger;
SELECT jobq.unregister('book');
DROP TABLE test.audit, test.ledger;
