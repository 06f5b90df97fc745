-- A job is part of the enqueuing transaction.

-- rolled back
BEGIN;
SELECT jobq.enqueue('note', '"rolled back"') AS id \gset
SELECT state FROM jobq.status(:id);
ROLLBACK;
SELECT * FROM test.error('SELECT jobq.status(' || :id || ')');

-- savepoints: released jobs stay, rolled back jobs disappear
BEGIN;
SELECT jobq.enqueue('note', '"a: top"') IS NULL;
SAVEPOINT s1;
SELECT jobq.enqueue('note', '"-: in s1"') IS NULL;
SAVEPOINT s2;
SELECT jobq.enqueue('note', '"-: in s2, released into s1"') IS NULL;
RELEASE s2;
ROLLBACK TO s1;
SELECT jobq.enqueue('note', '"b: again in s1"') IS NULL;
SAVEPOINT s3;
SELECT jobq.enqueue('note', '"-: in s3"') IS NULL;
ROLLBACK TO s3;
RELEASE s3;
SAVEPOINT s4;
SAVEPOINT s5;
SELECT jobq.enqueue('note', '"c: in s5"') IS NULL;
RELEASE s5;
RELEASE s4;
RELEASE s1;
SELECT jobq.enqueue('note', '"d: end"') IS NULL;
COMMIT;
SELECT test.until('(SELECT count(*) FROM test.trace) >= 4');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- so many jobs that the transaction hands over lanes instead
BEGIN;
SELECT count(jobq.enqueue('note', '"kept"')) FROM generate_series(1, 100);
SAVEPOINT s1;
SELECT count(jobq.enqueue('note', '"dropped"', priority => i)) FROM generate_series(1, 100) i;
ROLLBACK TO s1;
SELECT count(jobq.enqueue('note', '"kept"', priority => 1)) FROM generate_series(1, 10);
COMMIT;
SELECT test.until('(SELECT count(*) FROM test.trace) >= 110');
SELECT note, count(*) FROM test.trace GROUP BY note;
TRUNCATE test.trace;

-- exception blocks
DO $$
BEGIN
	PERFORM jobq.enqueue('note', '"before"');
	BEGIN
		PERFORM jobq.enqueue('note', '"inside"');
		BEGIN
			PERFORM jobq.enqueue('note', '"innermost"');
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
		RAISE EXCEPTION 'oops';
	EXCEPTION WHEN raise_exception THEN
		PERFORM jobq.enqueue('note', '"handler"');
	END;
END
$$;
SELECT test.until('(SELECT count(*) FROM test.trace) >= 2');
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- a queue created in an aborted transaction does not stay in a cache
BEGIN;
SELECT jobq.enqueue('note', '"x"', queue => 'ephemeral') IS NULL;
ROLLBACK;
SELECT count(*) FROM jobq.queues WHERE name = 'ephemeral';
SELECT jobq.enqueue('note', '"x"', queue => 'ephemeral') AS id \gset
SELECT state, queue FROM jobq.wait(:id);
BEGIN;
SAVEPOINT s1;
SELECT jobq.enqueue('note', '"y"', queue => 'ephemeral2') IS NULL;
ROLLBACK TO s1;
SELECT jobq.enqueue('note', '"y"', queue => 'ephemeral2') AS id \gset
COMMIT;
SELECT state, queue FROM jobq.wait(:id);

-- nor does a handler
BEGIN;
SELECT jobq.register('ephemeral', 'test.echo(jsonb)');
SELECT jobq.enqueue('ephemeral') IS NULL;
ROLLBACK;
SELECT jobq.enqueue('ephemeral');
BEGIN;
SELECT jobq.register('ephemeral', 'test.echo(jsonb)');
SELECT jobq.enqueue('ephemeral') AS id \gset
COMMIT;
SELECT state FROM jobq.wait(:id);
SELECT jobq.unregister('ephemeral');
TRUNCATE test.trace;

-- enqueued and cancelled in one transaction
BEGIN;
SELECT jobq.enqueue('note', '"cancelled"') AS id \gset
SELECT jobq.cancel(:id);
SELECT state FROM jobq.status(:id);
COMMIT;
SELECT state, error FROM jobq.wait(:id);

-- a rolled back cancellation: the job still runs
SELECT jobq.enqueue('note', '"not cancelled"', queue => 'manual') AS id \gset
BEGIN;
SELECT jobq.cancel(:id);
ROLLBACK;
SELECT state FROM jobq.status(:id);
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);
SELECT note FROM test.trace;
TRUNCATE test.trace;

-- two-phase commit
BEGIN;
SELECT jobq.enqueue('note', '"prepared"') AS id \gset
SELECT jobq.enqueue('note', '"prepared, too"', queue => 'of_prepared') AS id2 \gset
PREPARE TRANSACTION 'jobq_1';
SELECT * FROM test.error('SELECT jobq.status(' || :id || ')');
COMMIT PREPARED 'jobq_1';
SELECT state, queue FROM jobq.wait_many(ARRAY[:id, :id2]);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
BEGIN;
SELECT jobq.enqueue('note', '"never"') AS id \gset
SAVEPOINT s1;
SELECT jobq.enqueue('note', '"never"', queue => 'never') AS id2 \gset
PREPARE TRANSACTION 'jobq_2';
ROLLBACK PREPARED 'jobq_2';
SELECT * FROM test.error('SELECT jobq.status(' || :id || ')');
SELECT count(*) FROM jobq.queues WHERE name = 'never';

-- the session continues after PREPARE
BEGIN;
SELECT jobq.enqueue('note', '"held"') AS held \gset
PREPARE TRANSACTION 'jobq_3';
SELECT jobq.enqueue('note', '"after"') AS id \gset
SELECT state FROM jobq.wait(:id);
COMMIT PREPARED 'jobq_3';
SELECT state FROM jobq.wait(:held);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- a large transaction leaves no memory allocated, however the transaction ends
CREATE FUNCTION test.keeps(before bigint) RETURNS boolean LANGUAGE sql AS $$
	SELECT total_bytes > before + 500000 FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'
$$;
SELECT jobq.create_queue('many outside', mode => 'consumer');
SELECT jobq.create_batch(start => true) AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'outside', array_fill('1'::jsonb, ARRAY[20000]), '{"queue": "many outside", "group_key": "one", "delay": "1 hour"}');
SELECT total_bytes AS before FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext' \gset
BEGIN;
SELECT jobq.cancel_many(queue => 'many outside');
SELECT test.keeps(:before);
ROLLBACK;
SELECT test.keeps(:before);
BEGIN;
SAVEPOINT s;
SELECT jobq.cancel_many(queue => 'many outside');
ROLLBACK TO s;
COMMIT;
SELECT test.keeps(:before);
SELECT jobq.cancel_many(queue => 'many outside');
SELECT test.keeps(:before);
SELECT jobq.drop_queue('many outside', force => true);
-- nor do job outcomes that no table stores; their memory is freed with the transaction
SELECT jobq.create_queue('leaves nothing', mode => 'consumer', keep => 'nothing');
SELECT count(*) FROM jobq.enqueue_many('outside', array_fill('1'::jsonb, ARRAY[20000]), queue => 'leaves nothing', delay => '1 hour');
SELECT min(id) AS id FROM jobq.jobs WHERE queue = 'leaves nothing' \gset
BEGIN;
SAVEPOINT s;
SELECT jobq.cancel_many(queue => 'leaves nothing');
ROLLBACK TO s;
COMMIT;
SELECT jobq.cancel(:id);
SELECT test.keeps(:before);
SELECT jobq.cancel_many(queue => 'leaves nothing');
SELECT jobq.drop_queue('leaves nothing', force => true);
DROP FUNCTION test.keeps(bigint);

-- read only
SELECT jobq.enqueue('echo', delay => '1 hour') AS id \gset
BEGIN READ ONLY;
SELECT state FROM jobq.status(:id);
SELECT * FROM test.error('SELECT jobq.enqueue(''echo'')');
SELECT * FROM test.error('SELECT jobq.enqueue_many(''echo'', ''{1}'')');
SELECT * FROM test.error('SELECT jobq.cancel(' || :id || ')');
SELECT * FROM test.error('SELECT jobq.retry(' || :id || ')');
SELECT jobq.perform('echo', '1');
SELECT * FROM test.error('SELECT jobq_internal.run_next(''{manual}'')');
COMMIT;
SELECT jobq.cancel(:id);

-- functions wrongly marked PARALLEL SAFE: no notification or job is lost, and no lease is left
CREATE FUNCTION test.tell() RETURNS void LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN PERFORM jobq.notify('parallel', 'x'); END $$;
CREATE FUNCTION test.take() RETURNS bigint LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN (SELECT id FROM jobq.reserve('{parallel}')); END $$;
CREATE TABLE test.one AS SELECT 1 AS one;
SELECT jobq.create_queue('parallel', mode => 'consumer', lease => 'memory');
SELECT jobq.enqueue('outside', queue => 'parallel') AS id \gset
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
-- in a parallel worker, once a worker is available
SELECT test.until($$ (SELECT code = '25000' FROM test.error('SELECT test.tell() FROM test.one')) $$);
SELECT * FROM test.error('SELECT test.take() FROM test.one');
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET parallel_leader_participation;
SELECT jobq.ack(id, token), id = :id AS reserved FROM jobq.reserve('{parallel}', wait => '5 min');
DROP TABLE test.one;

-- a handler that enqueues a job
CREATE FUNCTION test.parent(payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.enqueue('note', '"child"');
	BEGIN
		PERFORM jobq.enqueue('note', '"stillborn"');
		RAISE EXCEPTION 'oops';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	IF payload = '"fail"' THEN
		RAISE EXCEPTION 'the parent fails';
	END IF;
END
$$;
SELECT jobq.register('parent', 'test.parent(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('parent', '"fail"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('parent') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT test.until('(SELECT count(*) FROM test.trace) >= 1');
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
