-- Limits for the memory, temporary files and WAL of an attempt.
CREATE TABLE test.filled (kind text, a text);

-- Handlers that would run forever without a limit; the timeout only keeps
-- a broken limit from blocking the test.
CREATE FUNCTION test.write_on(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		INSERT INTO test.filled SELECT 'on', repeat('x', 200) FROM generate_series(1, 100);
	END LOOP;
END
$$;
CREATE FUNCTION test.sort_on(payload jsonb) RETURNS void LANGUAGE plpgsql SET work_mem = '64kB' AS $$
BEGIN
	LOOP
		PERFORM count(*) FROM (SELECT i FROM generate_series(1, 20000) i ORDER BY -i OFFSET 0) s;
	END LOOP;
END
$$;
CREATE FUNCTION test.keep_on(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	s text := repeat('x', 100000000);
BEGIN
	LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SELECT jobq.register('write_on', 'test.write_on(jsonb)', max_wal => '4MB', max_attempts => 2, backoff => 'fixed 1ms', timeout => '10 min'),
	jobq.register('sort_on', 'test.sort_on(jsonb)', max_temp => '2 MB', max_attempts => 1, timeout => '10 min'),
	jobq.register('keep_on', 'test.keep_on(jsonb)', max_memory => '64MB', max_attempts => 1, timeout => '10 min');
SELECT kind, max_memory, max_temp, max_wal FROM jobq.kinds WHERE kind IN ('write_on', 'sort_on', 'keep_on') ORDER BY kind;

-- each attempt is cancelled, and the job is retried while attempts are left
SELECT jobq.enqueue('write_on') AS written, jobq.enqueue('sort_on') AS sorted, jobq.enqueue('keep_on', queue => 'first') AS kept \gset
SELECT state FROM jobq.wait_many(ARRAY[:written, :sorted, :kept], '5 min');
SELECT kind, attempt, sqlstate, regexp_replace(error, '\d+ kB (of|to)', 'N kB \1') AS error, errors -> -1 ->> 'hint' AS hint, jsonb_array_length(errors) AS errors
FROM jobq.dead_letters WHERE id IN (:written, :sorted, :kept) ORDER BY id;
SELECT count(*) FROM test.filled;

-- the recorded cost exceeds the limit
SELECT kind, (cost ->> 'wal_bytes')::bigint > 4194304 AS wal, (cost ->> 'temp_bytes')::bigint > 2097152 AS temp FROM jobq.jobs WHERE id IN (:written, :sorted) ORDER BY id;

-- the worker that exceeded the memory limit exits; the next job is not charged
SELECT test.until(format('(SELECT NOT EXISTS (SELECT FROM jobq.workers WHERE pid = %s))', errors -> 0 ->> 'worker')) FROM jobq.dead_letters WHERE id = :kept;
SELECT jobq.register('keep_little', 'test.echo(jsonb)', max_memory => '64MB', max_temp => '1MB', max_wal => '1MB', max_attempts => 1);
SELECT jobq.enqueue('keep_little', '1', queue => 'first') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT jobq.delete(id) FROM unnest(ARRAY[:written, :sorted, :kept]) id;

-- a handler that ends before the usage was checked
CREATE FUNCTION test.write_once(payload jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.filled SELECT 'once', repeat('x', 200) FROM generate_series(1, (payload #>> '{}')::int)
$$;
SELECT jobq.register('write_once', 'test.write_once(jsonb)', max_wal => '256 kB', max_attempts => 5, fail_on => '{JQ016}');
SELECT jobq.enqueue('write_once', '5000') AS much, jobq.enqueue('write_once', '10') AS little \gset
SELECT state FROM jobq.wait_many(ARRAY[:much, :little], '5 min');
SELECT attempt, sqlstate FROM jobq.dead_letters WHERE id = :much;
SELECT kind, count(*) FROM test.filled GROUP BY kind;
SELECT jobq.delete(:much);

-- a handler that ignores the cancellation
CREATE FUNCTION test.write_anyway(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		BEGIN
			PERFORM test.write_on(payload);
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT jobq.register('write_anyway', 'test.write_anyway(jsonb)', max_wal => '1MB', max_attempts => 1, timeout => '10 min');
SELECT jobq.enqueue('write_anyway') AS id \gset
SELECT state FROM jobq.wait(:id, '5 min');
SELECT sqlstate FROM jobq.dead_letters WHERE id = :id;
SELECT jobq.delete(:id);

-- a procedure: committed changes stay
CREATE PROCEDURE test.commit_on(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		INSERT INTO test.filled SELECT 'committed', repeat('x', 200) FROM generate_series(1, 100);
		COMMIT;
	END LOOP;
END
$$;
SELECT jobq.register('commit_on', 'test.commit_on(jsonb)', max_wal => '1MB', max_attempts => 1, timeout => '10 min');
SELECT jobq.enqueue('commit_on') AS id \gset
SELECT state FROM jobq.wait(:id, '5 min');
SELECT sqlstate FROM jobq.dead_letters WHERE id = :id;
SELECT count(*) > 100 AS some, count(*) % 100 FROM test.filled WHERE kind = 'committed';
SELECT jobq.delete(:id);

-- jobq.work() enforces neither these limits nor the timeout
SELECT jobq.enqueue('write_once', '5000', queue => 'manual') AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);

-- bad input
SELECT test.error($$SELECT jobq.register('bad', 'test.echo(jsonb)', max_memory => '8191 kB')$$);
SELECT test.error($$SELECT jobq.register('bad', 'test.echo(jsonb)', max_temp => '0')$$);
SELECT test.error($$SELECT jobq.register('bad', 'test.echo(jsonb)', max_wal => '-1 MB')$$);
SELECT code, message FROM test.error($$SELECT jobq.register('bad', 'test.echo(jsonb)', max_wal => '2 much')$$);
SELECT jobq.unregister(k) FROM unnest('{write_on,sort_on,keep_on,keep_little,write_once,write_anyway,commit_on}'::text[]) k;
DROP TABLE test.filled;
