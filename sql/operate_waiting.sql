-- status(), wait() and result() of a job in each state.

CREATE FUNCTION test.slow(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(12.5, 'a "quoted" step');
	PERFORM pg_advisory_xact_lock_shared(1);
	PERFORM jobq.set_progress(100);
	RETURN '"done"';
END
$$;
SELECT jobq.register('slow', 'test.slow(jsonb)');

CREATE TABLE test.job (name text PRIMARY KEY, id bigint);
SELECT pg_advisory_lock(1);
INSERT INTO test.job VALUES
	('scheduled', jobq.enqueue('echo', delay => '1 hour')),
	('ready', jobq.enqueue('echo', queue => 'manual')),
	('running', jobq.enqueue('slow')),
	('retryable', jobq.enqueue('broken', backoff => 'fixed 1h')),
	('completed', jobq.enqueue('echo', '"result"')),
	('completed, no result', jobq.enqueue('note', '"x"')),
	('dead', jobq.enqueue('broken', max_attempts => 1)),
	('cancelled', jobq.enqueue('echo', delay => '1 hour')),
	('expired', jobq.enqueue('echo', expires_at => '2001-01-01'));
SELECT jobq.cancel(id) FROM test.job WHERE name = 'cancelled';
SELECT count(*) FROM test.job, jobq.wait(id) WHERE name IN ('completed', 'completed, no result', 'dead', 'expired');
SELECT test.until(format('(SELECT state = %L FROM jobq.status(%s))', name, id)) FROM test.job WHERE name IN ('running', 'retryable');
SELECT test.until(format('(SELECT progress IS NOT NULL FROM jobq.status(%s))', id)) FROM test.job WHERE name = 'running';

SELECT name, state, kind, queue, attempt, max_attempts, progress, message, result, error
FROM test.job j, jobq.status(j.id) ORDER BY name;
SELECT name, enqueued_at IS NOT NULL AS enqueued, run_at IS NOT NULL AS run_at, started_at IS NOT NULL AS started, finished_at IS NOT NULL AS finished
FROM test.job j, jobq.status(j.id) ORDER BY name;
-- the view jobs agrees with status()
SELECT name, v.state, v.state = s.state AND (v.kind, v.queue, v.attempt, v.max_attempts, v.enqueued_at, v.run_at) = (s.kind, s.queue, s.attempt, s.max_attempts, s.enqueued_at, s.run_at)
	AND (v.progress, v.message, v.result, v.error, v.finished_at) IS NOT DISTINCT FROM (s.progress, s.message, s.result, s.error, s.finished_at) AS same
FROM test.job j JOIN jobq.jobs v USING (id), jobq.status(j.id) s ORDER BY name;
SELECT name, ready, scheduled, running, dead_letters, oldest_ready IS NOT NULL AS oldest FROM jobq.queues WHERE name IN ('default', 'manual') ORDER BY name;
-- only completed jobs have a result
SELECT name, (jobq.status(id)).result FROM test.job ORDER BY name;
-- wait() returns after the timeout, in any state
SELECT name, state FROM test.job j, jobq.wait(j.id, '0') ORDER BY name;
SELECT state FROM jobq.wait((SELECT id FROM test.job WHERE name = 'scheduled'), '10 ms');
-- the longest wait
SELECT jobq.enqueue('echo', delay => '50 ms') AS id \gset
SELECT state FROM jobq.wait(:id, '365 days');

-- many jobs: in the given order, with duplicates
SELECT name, state FROM jobq.wait_many(ARRAY(SELECT id FROM test.job ORDER BY name DESC), '0') w JOIN test.job USING (id);
SELECT state FROM jobq.wait_many((SELECT array_agg(id ORDER BY name) || min(id) FROM test.job WHERE name LIKE 'completed%'));
SELECT * FROM jobq.wait_many('{}'::bigint[]);
SELECT * FROM test.error('SELECT jobq.wait_many(ARRAY[1, NULL]::bigint[])');
SELECT jobq.wait(NULL::bigint), jobq.wait(1, NULL), jobq.status(NULL);

-- an unknown job
SELECT f, e.* FROM unnest('{status,wait,cancel,retry,delete}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(-1)', f)) e ORDER BY n;
SELECT * FROM test.error('SELECT jobq.wait_many(ARRAY[-1])');

-- a job of the same transaction will not start before the commit
BEGIN;
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM jobq.status(:id);
SELECT * FROM test.error(format('SELECT jobq.wait(%s)', :id));
SELECT jobq.cancel(:id);
SELECT state FROM jobq.wait(:id);
COMMIT;
SELECT e.* FROM test.error($$SELECT jobq.wait(jobq.enqueue('echo'))$$) e;
SELECT (jobq.status(jobq.enqueue('echo', queue => 'manual'))).state;
SELECT jobq.cancel(jobq.enqueue('echo', queue => 'manual'));
CALL jobq.work('{manual}', stop_when_empty => true);

-- wait() returns the current state, even if the snapshot of the transaction is older
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM test.job;
SELECT pg_advisory_unlock(1);
SELECT state, progress, result FROM jobq.wait((SELECT id FROM test.job WHERE name = 'running'));
COMMIT;
BEGIN READ ONLY;
SELECT state FROM jobq.wait((SELECT id FROM test.job WHERE name = 'running'));
COMMIT;

-- a handler can wait for another job
CREATE FUNCTION test.waits(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT result FROM jobq.wait(payload::bigint) $$;
SELECT jobq.register('waits', 'test.waits(jsonb)');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('slow') AS id \gset
SELECT jobq.enqueue('waits', to_jsonb(:id)) AS waits \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :waits));
SELECT pg_advisory_unlock(1);
SELECT * FROM test.outcome(:waits);

SELECT jobq.cancel(id) FROM test.job WHERE name IN ('scheduled', 'retryable') ORDER BY name;
SELECT jobq.delete(id) FROM test.job WHERE name = 'dead';
DROP TABLE test.job;
TRUNCATE test.trace;

-- a long error of a retryable job is read without a snapshot
CREATE FUNCTION test.long_error(payload jsonb) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN RAISE '%', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) n); END $$;
SELECT jobq.register('long_error', 'test.long_error(jsonb)', backoff => 'fixed 1h');
\set VERBOSITY sqlstate
CALL jobq.call('long_error', timeout => '3 s');
\set VERBOSITY default
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE kind = 'long_error';
SELECT jobq.unregister('long_error');
DROP FUNCTION test.long_error(jsonb);

-- enqueue, commit, wait for the result
CALL jobq.call('echo', '{"a": 1}');
CALL jobq.call('echo', '{"a": 2}', NULL, '5 min', options => '{"queue": "first", "headers": {"h": 1}}');
DO $$
DECLARE
	result jsonb;
BEGIN
	CALL jobq.call('echo', '"from a procedure"', result);
	RAISE NOTICE '%', result;
	BEGIN
		CALL jobq.call('echo', '{}', result);
	EXCEPTION WHEN invalid_transaction_termination THEN
		RAISE NOTICE '%', SQLERRM;
	END;
END
$$;
-- a failed wait in a trigger at commit does not disturb the wait of call()
CREATE TABLE test.deferred (i int);
CREATE FUNCTION test.wait_in_vain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.wait(0, '0');
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RAISE NOTICE '%', SQLERRM;
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER wait_in_vain AFTER INSERT ON test.deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.wait_in_vain();
DO $$
DECLARE
	result jsonb;
BEGIN
	INSERT INTO test.deferred VALUES (1);
	CALL jobq.call('echo', '"waited for"', result, '5 min');
	RAISE NOTICE '%', result;
END
$$;
DROP TABLE test.deferred;
DROP FUNCTION test.wait_in_vain;
-- the end of a job that leaves no record is reported, but its result is lost
SELECT jobq.create_queue('forgotten', keep => 'nothing');
CALL jobq.call('echo', '{"a": 3}', options => '{"queue": "forgotten"}');
SELECT count(*) FROM jobq.jobs WHERE queue = 'forgotten';
SELECT jobq.drop_queue('forgotten');
BEGIN;
CALL jobq.call('echo');
ROLLBACK;
CALL jobq.call('echo', NULL);
CALL jobq.call('echo', timeout => NULL);
CALL jobq.call('echo', timeout => '-1 s');
CALL jobq.call('unheard of');
CALL jobq.call('echo', '{"a": 3}', options => '{"queue": null, "priority": -1, "watch": true, "expires_at": "infinity"}');
CALL jobq.call('echo', options => '{"result": 1}');
-- the job fails, or takes longer than the timeout: the job continues
CREATE PROCEDURE test.call(kind text, payload jsonb, timeout interval) LANGUAGE plpgsql AS $$
DECLARE
	result jsonb;
BEGIN
	CALL jobq.call(kind, payload, result, timeout, options => '{"max_attempts": 1}');
END
$$;
\set VERBOSITY sqlstate
CALL test.call('broken', '{}', '5 min');
SELECT pg_advisory_lock(5);
CALL test.call('gate', '5', '10 ms');
\set VERBOSITY default
SELECT pg_advisory_unlock(5);
SELECT state, result FROM jobq.wait((SELECT max(id) FROM jobq.jobs WHERE kind = 'gate'));
SELECT jobq.delete_many(state => 'dead') > 0 AS flushed;
DROP PROCEDURE test.call;
