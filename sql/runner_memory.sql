-- The memory of a worker does not grow, after any kind of job and any outcome.
CREATE FUNCTION test.memory_function(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fail' THEN
		RAISE 'no good';
	ELSIF payload ? 'cancel' THEN
		PERFORM jobq.cancel_current();
	END IF;
	RETURN payload;
END
$$;
CREATE PROCEDURE test.memory_procedure(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	IF payload ? 'fail' THEN
		RAISE 'no good';
	ELSIF payload ? 'cancel' THEN
		PERFORM jobq.cancel_current();
	END IF;
	ROLLBACK;
END
$$;
CREATE FUNCTION test.memory_sql(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT payload';
CREATE TABLE test.memory (pid int, used bigint, at bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION test.memory_look() RETURNS void LANGUAGE sql AS
	'INSERT INTO test.memory (pid, used) SELECT pg_backend_pid(), sum(used_bytes) FROM pg_backend_memory_contexts';
SELECT jobq.register('memory_function', 'test.memory_function(jsonb)'), jobq.register('memory_procedure', 'test.memory_procedure(jsonb)'),
	jobq.register('memory_sql', 'test.memory_sql(jsonb)'), jobq.register('memory_look', 'test.memory_look()');

-- Queue "first" has one worker.
CREATE PROCEDURE test.memory_use(kind text, payload jsonb, jobs int) LANGUAGE plpgsql AS $$
DECLARE
	last bigint;
BEGIN
	IF kind = 'sql' THEN
		PERFORM jobq.enqueue_sql(payload ->> 'sql', queue => 'first', transaction => (payload ->> 'transaction')::boolean, max_attempts => 1)
			FROM generate_series(1, jobs);
	ELSE
		PERFORM jobq.enqueue(kind, payload, queue => 'first', max_attempts => 1 + (payload ? 'retry')::int, backoff => 'fixed 0 s')
			FROM generate_series(1, jobs);
	END IF;
	COMMIT;
	CALL test.settle();
	last := jobq.enqueue('memory_look', queue => 'first');
	COMMIT;
	PERFORM jobq.wait(last, '5 min');
	COMMIT;
END
$$;
CREATE PROCEDURE test.memory_stays(kind text, payload jsonb DEFAULT '{}') LANGUAGE plpgsql AS $$
DECLARE
	looks test.memory[];
	grown numeric;
BEGIN
	-- an idle worker may leave in between, and caches may grow once
	FOR i IN 1..5 LOOP
		TRUNCATE test.memory;
		COMMIT;
		CALL test.memory_use(kind, payload, 100);
		CALL test.memory_use(kind, payload, 500);
		looks := ARRAY(SELECT m FROM test.memory m ORDER BY at);
		grown := (looks[2].used - looks[1].used) / 500.0;
		EXIT WHEN looks[1].pid = looks[2].pid AND grown <= 100;
	END LOOP;
	IF looks[1].pid <> looks[2].pid OR grown > 100 THEN
		RAISE WARNING '% %: % bytes for each job, workers % and %', kind, payload, grown, looks[1].pid, looks[2].pid;
	END IF;
END
$$;
CALL test.memory_stays('memory_function');
CALL test.memory_stays('memory_function', '{"fail": true}');
CALL test.memory_stays('memory_function', '{"fail": true, "retry": true}');
CALL test.memory_stays('memory_function', '{"cancel": true}');
CALL test.memory_stays('memory_procedure');
CALL test.memory_stays('memory_procedure', '{"fail": true}');
CALL test.memory_stays('memory_procedure', '{"fail": true, "retry": true}');
CALL test.memory_stays('memory_procedure', '{"cancel": true}');
CALL test.memory_stays('memory_sql');
CALL test.memory_stays('sql', '{"sql": "SELECT 1", "transaction": true}');
CALL test.memory_stays('sql', '{"sql": "SELECT 1 / 0", "transaction": true}');
CALL test.memory_stays('sql', '{"sql": "SELECT 1", "transaction": false}');
CALL test.memory_stays('sql', '{"sql": "SELECT 1 / 0", "transaction": false}');
SELECT count(jobq.delete(id)) > 0 AS deleted FROM jobq.dead_letters WHERE queue = 'first';
