-- cancel, pause and resume, queues, restart_workers, work().

-- cancel a scheduled, a ready and a retryable job
SELECT jobq.enqueue('echo', delay => '1 hour') AS scheduled, jobq.enqueue('echo', queue => 'manual') AS ready,
	jobq.enqueue('broken', backoff => 'fixed 1h') AS retryable \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :retryable));
SELECT jobq.cancel(id) FROM unnest(ARRAY[:scheduled, :ready, :retryable]) id;
SELECT state, attempt, error, started_at, finished_at IS NOT NULL AS finished FROM jobq.wait_many(ARRAY[:scheduled, :ready, :retryable]);
-- a job whose row is locked by this transaction
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
BEGIN;
SELECT count(*) FROM (SELECT FROM jobq_internal.job WHERE id = :id FOR UPDATE) t;
SAVEPOINT moved;
SELECT jobq.edit(:id, priority => 1);
ROLLBACK TO moved;
SELECT jobq.cancel(:id);
COMMIT;
SELECT state FROM jobq.status(:id);
-- a finished job
SELECT jobq.cancel(:scheduled);
SELECT jobq.enqueue('echo') AS completed, jobq.enqueue('broken', max_attempts => 1) AS dead,
	jobq.enqueue('echo', expires_at => '2001-01-01') AS expired \gset
SELECT state FROM jobq.wait_many(ARRAY[:completed, :dead, :expired]);
SELECT jobq.cancel(id) FROM unnest(ARRAY[:completed, :dead, :expired]) id;
SELECT state FROM jobq.wait_many(ARRAY[:completed, :dead, :expired]);
SELECT jobq.delete(:dead);

-- a running job: its changes are rolled back
CREATE FUNCTION test.effect_then_gate(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('effect');
	PERFORM pg_advisory_xact_lock_shared(1);
END
$$;
SELECT jobq.register('effect_then_gate', 'test.effect_then_gate(jsonb)', queue => 'first');
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('effect_then_gate') AS id \gset
SELECT test.in_gate(:id);
SELECT jobq.cancel(:id);
SELECT state, attempt, error, started_at IS NOT NULL AS started FROM jobq.wait(:id);
SELECT jobq.cancel(:id);
SELECT count(*) FROM test.trace;
-- the worker continues with the next job
SELECT jobq.enqueue('echo', queue => 'first') AS id \gset
SELECT state FROM jobq.wait(:id);

-- a handler that turns the cancellation into a serialization failure: the job does not start again
CREATE FUNCTION test.conflict_then_gate() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
EXCEPTION WHEN query_canceled THEN
	RAISE EXCEPTION 'lost' USING ERRCODE = 'serialization_failure';
END
$$;
SELECT jobq.register('conflict_then_gate', 'test.conflict_then_gate()', queue => 'first');
SELECT jobq.enqueue('conflict_then_gate') AS id \gset
SELECT test.in_gate(:id);
SELECT jobq.cancel(:id);
SELECT state, attempt, error FROM jobq.wait(:id);

-- a running procedure: committed changes stay
CREATE PROCEDURE test.commit_then_gate() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES ('committed');
	COMMIT;
	INSERT INTO test.trace (note) VALUES ('not committed');
	PERFORM pg_advisory_xact_lock_shared(1);
END
$$;
SELECT jobq.register('commit_then_gate', 'test.commit_then_gate()', queue => 'first');
SELECT jobq.enqueue('commit_then_gate') AS id \gset
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT state, attempt FROM jobq.status(:id);
SELECT jobq.cancel(:id);
SELECT state, attempt, error FROM jobq.wait(:id);
SELECT note FROM test.trace;
-- meanwhile, the table is rewritten, without the rows before the job
TRUNCATE test.trace;
VACUUM FULL jobq_internal.job;
SELECT jobq.enqueue('echo', delay => '1 h') AS before \gset
SELECT jobq.enqueue('commit_then_gate') AS id \gset
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT jobq.cancel(:before);
VACUUM FULL jobq_internal.job;
SELECT pg_advisory_unlock(1);
SELECT state, attempt, error FROM jobq.wait(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- pause takes effect at once, for jobs enqueued before or after
SELECT jobq.create_queue('stopped');
CREATE PROCEDURE test.pause_and_resume() LANGUAGE plpgsql AS $$
DECLARE
	job_id bigint;
	early int := 0;
	late int := 0;
BEGIN
	FOR i IN 1..100 LOOP
		PERFORM jobq.pause('stopped');
		COMMIT;
		job_id := jobq.enqueue('echo', queue => 'stopped');
		COMMIT;
		-- a job of another queue runs meanwhile
		PERFORM jobq.enqueue('echo');
		COMMIT;
		IF (jobq.wait(job_id, '1 ms')).state <> 'ready' THEN
			early := early + 1;
		END IF;
		PERFORM jobq.resume('stopped');
		COMMIT;
		IF (jobq.wait(job_id)).state <> 'completed' THEN
			late := late + 1;
		END IF;
	END LOOP;
	RAISE NOTICE 'ran while paused: %, did not run after: %', early, late;
END
$$;
CALL test.pause_and_resume();
SELECT jobq.pause('stopped');
SELECT name, paused FROM jobq.queues WHERE name = 'stopped';
-- a rolled back pause has no effect
SELECT jobq.resume('stopped');
BEGIN;
SELECT jobq.pause('stopped');
ROLLBACK;
SELECT jobq.enqueue('echo', queue => 'stopped') AS id \gset
SELECT state FROM jobq.wait(:id);
-- expiry and cancel also work in a paused queue
SELECT jobq.pause('stopped');
SELECT jobq.enqueue('echo', queue => 'stopped') AS id \gset
SELECT jobq.cancel(:id);
SELECT state FROM jobq.wait(:id);
SELECT jobq.resume('stopped');

-- queues with different values of keep
SELECT jobq.create_queue('keeper', keep => 'no_payload', notify => 'off');
SELECT name, paused, notify, keep FROM jobq.queues WHERE name = 'keeper';
SELECT jobq.enqueue('echo', '{"secret": 1}', queue => 'keeper') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT state, payload, result FROM jobq.jobs WHERE id = :id;
SELECT jobq.alter_queue('keeper', keep => 'all');
SELECT jobq.enqueue('echo', '{"public": 1}', queue => 'keeper') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT state, payload, result FROM jobq.jobs WHERE id = :id;
SELECT jobq.alter_queue('keeper', keep => 'nothing', notify => 'transactional');
SELECT name, notify, keep FROM jobq.queues WHERE name = 'keeper';
SELECT jobq.enqueue('note', '"traceless"', queue => 'keeper') AS id \gset
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT * FROM test.error('SELECT jobq.status(' || :id || ')');
-- also if a session waits for the job
SELECT jobq.enqueue('broken', queue => 'keeper', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);
TRUNCATE test.trace;

-- restart_workers: new processes, and no job is lost
SELECT array_agg(pid) AS pids FROM jobq.workers \gset
SELECT array_agg(jobq.enqueue('echo')) AS ids FROM generate_series(1, 50) \gset
SELECT jobq.restart_workers();
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[]) GROUP BY state;
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE pid = ANY (%L))', :'pids'));
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM jobq.wait(:id);

-- work(): a worker in this session
SELECT jobq.enqueue('note', '1', queue => 'manual', priority => 2) IS NULL;
SELECT jobq.enqueue('note', '2', queue => 'manual', priority => 1) IS NULL;
SELECT jobq.enqueue('note', '3', queue => 'manual') AS third \gset
SELECT jobq.enqueue('note', '4', queue => 'manual', delay => '1 hour') AS delayed \gset
CALL jobq.work('{manual}', once => true);
SELECT note FROM test.trace ORDER BY n;
CALL jobq.work('{manual}', max_jobs => 1);
SELECT note FROM test.trace ORDER BY n;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT note FROM test.trace ORDER BY n;
SELECT state, attempt, error FROM jobq.status(:third);
SELECT jobq.cancel(:delayed);
TRUNCATE test.trace;
-- with max_time
CALL jobq.work('{manual}', max_time => '0.01 s');
-- failures are handled as in a worker
SELECT jobq.enqueue('broken', '"in work"', queue => 'manual', backoff => 'fixed 0ms') AS id \gset
CALL jobq.work('{manual}', once => true);
SELECT state, attempt, error FROM jobq.status(:id);
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt, error FROM jobq.status(:id);
SELECT jobq.delete(:id);
-- an expired job is not started
SELECT jobq.enqueue('note', '"expired"', queue => 'manual', expires_at => '2001-01-01') AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);
SELECT count(*) FROM test.trace;
-- a handler may call set_progress(), should_stop() etc. in work()
CREATE FUNCTION test.asks_in_work(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(1), jobq.should_stop();
	INSERT INTO test.trace (note) VALUES (payload #>> '{}');
	CASE payload #>> '{}'
		WHEN 'snooze' THEN PERFORM jobq.snooze('1 h');
		WHEN 'release' THEN PERFORM jobq.snooze('1 h', charge => true);
		WHEN 'discard' THEN PERFORM jobq.cancel_current('why');
		WHEN 'fail' THEN PERFORM jobq.reject_current('why');
	END CASE;
	RETURN to_jsonb((jobq.current_job()).attempt);
END
$$;
SELECT jobq.register('asks_in_work', 'test.asks_in_work(jsonb)', queue => 'manual');
SELECT array_agg(jobq.enqueue('asks_in_work', to_jsonb(what)) ORDER BY n) AS ids FROM unnest('{snooze,release,discard,fail}'::text[]) WITH ORDINALITY w (what, n) \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt, result, error FROM unnest(:'ids'::bigint[]) WITH ORDINALITY i (id, n), jobq.status(id) ORDER BY n;
SELECT note FROM test.trace ORDER BY n;
SELECT jobq.cancel(id) FROM unnest(:'ids'::bigint[]) WITH ORDINALITY i (id, n) ORDER BY n;
SELECT jobq.delete(id) FROM jobq.dead_letters;
TRUNCATE test.trace;
-- a procedure cannot commit in work()
SELECT jobq.enqueue('commit_then_gate', queue => 'manual', max_attempts => 1) AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);
-- an error of a deferred constraint belongs to the handler, and its settings end with the job
CREATE TABLE test.deferring (id int UNIQUE DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION test.defers() RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.deferring VALUES (1);
	PERFORM set_config('test.left', coalesce(current_setting('test.left', true), '') || 'x', false);
	RETURN to_jsonb(current_setting('test.left'));
END
$$;
SELECT jobq.register('defers', 'test.defers()', queue => 'manual', max_attempts => 1);
SELECT array_agg(jobq.enqueue('defers')) AS ids FROM generate_series(1, 3) \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt, result, error FROM unnest(:'ids'::bigint[]) WITH ORDINALITY i (id, n), jobq.status(id) ORDER BY n;
SELECT current_setting('test.left', true);
SELECT count(*) FROM test.deferring;
SELECT jobq.delete(id) FROM jobq.dead_letters;
DROP TABLE test.deferring;
-- queues in strict order, without paused queues
SELECT jobq.create_queue('manual2'), jobq.pause('manual2');
SELECT jobq.enqueue('note', '"paused"', queue => 'manual2') AS id \gset
CALL jobq.work('{manual2,manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);
SELECT jobq.cancel(:id);
-- not within a transaction
BEGIN;
\set VERBOSITY sqlstate
CALL jobq.work('{manual}', once => true);
\set VERBOSITY default
ROLLBACK;
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL AND state <> 'expired';
TRUNCATE test.trace;
-- work() with wrong limits
SELECT c.call, e.* FROM unnest(ARRAY['max_jobs => -1', 'max_time => ''-1 s''', 'max_time => ''1000000 years''']) c (call), test.error('CALL jobq.work(' || c.call || ')') e;
-- a queue that does not exist, alone and behind another queue; only "default" may be missing
SELECT c.call, e.* FROM unnest(ARRAY['CALL jobq.work(''{misspelled}'')', 'CALL jobq.work(''{manual,misspelled}'', once => true)',
	'SELECT jobq.run_due(''{misspelled}'')', 'SELECT jobq.run_due(''{NULL}'')', 'SELECT jobq.run_due(''{default}'')']) c (call), test.error(c.call) e;
