-- A set handler decides the outcome of single jobs, and writes their logs, while the others complete.
CREATE TABLE test.set_call (job bigint, attempt int, said text);
CREATE FUNCTION test.set_outcome(jobs jobq.job_context[]) RETURNS jsonb[] LANGUAGE plpgsql AS $$
DECLARE
	j jobq.job_context;
	said text;
BEGIN
	FOREACH j IN ARRAY jobs LOOP
		said := j.payload ->> 'do';
		BEGIN
			CASE said
				WHEN 'nack' THEN PERFORM jobq.nack(j.id, NULL, 'not today') WHERE j.attempt = 1;
				WHEN 'nack without error' THEN PERFORM jobq.nack(j.id, NULL);
				WHEN 'nack later' THEN PERFORM jobq.nack(j.id, NULL, 'tomorrow', '1 day');
				WHEN 'reject' THEN PERFORM jobq.reject(j.id, NULL, 'no such address');
				WHEN 'release' THEN PERFORM jobq.release(j.id, NULL) WHERE NOT EXISTS (SELECT FROM test.set_call c WHERE c.job = j.id);
				WHEN 'release with payload' THEN PERFORM jobq.release(j.id, NULL, '0', '{}');
				WHEN 'cancel' THEN PERFORM jobq.cancel_current('nobody wants it', j.id);
				WHEN 'cancel the current' THEN PERFORM jobq.cancel_current('nobody wants it');
				WHEN 'log' THEN PERFORM jobq.log(j.id, NULL, 'a line of ' || (j.payload ->> 'n'));
				WHEN 'log without id' THEN PERFORM jobq.log('a line');
				WHEN 'another' THEN PERFORM jobq.nack(1234567890, NULL);
				WHEN 'cancel another' THEN PERFORM jobq.cancel_current('no', 1234567890);
				WHEN 'extend' THEN PERFORM jobq.extend(j.id, NULL, '1 min');
				WHEN 'change' THEN
					PERFORM jobq.nack(j.id, NULL, 'at first');
					PERFORM jobq.cancel_current('in the end', j.id);
				WHEN 'undo' THEN
					PERFORM jobq.reject(j.id, NULL, 'undone');
					RAISE EXCEPTION 'back to the savepoint';
				WHEN 'undo the second' THEN
					PERFORM jobq.reject(j.id, NULL, 'the first');
					BEGIN
						PERFORM jobq.cancel_current('the second', j.id);
						RAISE EXCEPTION 'back to the savepoint';
					EXCEPTION WHEN raise_exception THEN NULL;
					END;
				ELSE NULL;
			END CASE;
		EXCEPTION WHEN OTHERS THEN
			said := SQLERRM;
		END;
		INSERT INTO test.set_call VALUES (j.id, j.attempt, said);
	END LOOP;
	PERFORM jobq.set_progress(50, 'half of the call');
	RETURN ARRAY(SELECT to_jsonb(n) FROM generate_subscripts(jobs, 1) n);
END
$$;
SELECT jobq.register('set_outcome', 'test.set_outcome(jobq.job_context[])', queue => 'sets', max_attempts => 2, backoff => 'fixed 1ms');
CREATE VIEW test.set_end AS
	SELECT j.payload ->> 'do' AS asked, j.state, j.attempt, j.result IS NOT NULL AS result, j.error,
		(SELECT string_agg(e ->> 'message', ', ' ORDER BY n) FROM jsonb_array_elements(j.errors) WITH ORDINALITY a (e, n)) AS errors
	FROM jobq.jobs j WHERE j.kind = 'set_outcome';

-- each outcome once, beside completed jobs
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_outcome', jsonb_build_object('do', d))) AS ids
	FROM unnest(ARRAY['nothing', 'nack', 'nack without error', 'nack later', 'reject', 'release', 'release with payload', 'cancel', 'cancel the current',
		'log without id', 'another', 'cancel another', 'extend', 'change', 'undo', 'undo the second', 'nothing']) d \gset
SELECT jobq.resume('sets');
SELECT test.until(format('(SELECT count(*) FROM jobq.jobs WHERE id = ANY (%L) AND state IN (''completed'', ''cancelled'', ''dead'', ''retryable'') AND NOT (state = ''retryable'' AND error <> ''tomorrow'')) = 17', :'ids'));
SELECT * FROM test.set_end ORDER BY 1, 2;
SELECT said, count(*) FROM test.set_call WHERE attempt = 1 GROUP BY said ORDER BY said;
-- the others ran once
SELECT j.payload ->> 'do' AS asked, count(*) AS calls FROM test.set_call c JOIN jobq.jobs j ON j.id = c.job GROUP BY c.job, 1 HAVING count(*) > 1 ORDER BY 1;
SELECT completed, failed, retried, cancelled FROM jobq.stats WHERE kind = 'set_outcome';
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'set_outcome';
SELECT jobq.cancel(id) FROM jobq.jobs WHERE kind = 'set_outcome' AND state = 'retryable';

-- log lines
TRUNCATE test.set_call;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_outcome', jsonb_build_object('do', 'log', 'n', n)) ORDER BY n) AS ids FROM generate_series(1, 3) n \gset
SELECT jobq.resume('sets');
SELECT state FROM jobq.wait_many(:'ids'::bigint[], '5 min');
SELECT l ->> 'level' AS level, l ->> 'message' AS message FROM jobq.jobs j, jsonb_array_elements(j.log) l WHERE j.id = ANY (:'ids'::bigint[]) ORDER BY j.id;

-- after an error, the handler requests its outcomes again; the failed job is charged once
CREATE FUNCTION test.set_mixed(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.reject(j.id, NULL, 'rejected') FROM unnest(jobs) j WHERE j.payload ->> 'do' = 'reject';
	PERFORM jobq.release(j.id, NULL, '1 day') FROM unnest(jobs) j WHERE j.payload ->> 'do' = 'release';
	IF EXISTS (SELECT FROM unnest(jobs) j WHERE j.payload ->> 'do' = 'fail') THEN
		RAISE EXCEPTION 'failed';
	END IF;
END
$$;
SELECT jobq.register('set_mixed', 'test.set_mixed(jobq.job_context[])', queue => 'sets', max_attempts => 1);
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_mixed', jsonb_build_object('do', d), max_attempts => CASE WHEN d = 'release' THEN 3 ELSE 1 END))
	FROM unnest(ARRAY['reject', 'complete', 'release', 'fail', 'complete', 'reject', 'release', 'complete']) d \g /dev/null
SELECT jobq.resume('sets');
SELECT test.until($$ (SELECT count(*) FROM jobq.jobs WHERE kind = 'set_mixed' AND state IN ('completed', 'dead', 'scheduled')) = 8 $$);
SELECT payload ->> 'do' AS asked, state, attempt, error, count(*) FROM jobq.jobs WHERE kind = 'set_mixed' GROUP BY 1, 2, 3, 4 ORDER BY 1, 2;
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'set_mixed';
SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE kind = 'set_mixed' AND state = 'scheduled';

-- events, batches and unique keys of rejected jobs
CREATE FUNCTION test.set_trace(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES (payload ->> 'error') $$;
SELECT jobq.register('set_trace', 'test.set_trace(jsonb)', queue => 'first');
SELECT jobq.on_event('dead', 'set_trace', kind => 'set_mixed');
TRUNCATE test.trace;
SELECT jobq.create_batch() AS batch \gset
SELECT jobq.pause('sets');
SELECT count(*) FROM jobq.add_jobs(:batch, 'set_mixed', ARRAY['{"do": "complete"}', '{"do": "reject"}', '{"do": "complete"}']::jsonb[]);
SELECT count(jobq.enqueue('set_mixed', '{"do": "reject"}', unique_key => 'set_key'));
SELECT jobq.start_batch(:batch);
SELECT jobq.resume('sets');
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT test.until($$ (SELECT count(*) FROM test.trace) = 2 $$);
SELECT note, count(*) FROM test.trace GROUP BY 1;
SELECT count(*) FROM jobq_internal.unique_key WHERE key = 'set_key';
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'set_mixed';
SELECT jobq.off_event('dead', 'set_trace', kind => 'set_mixed');

-- the same with a single job: in work(), dry_run() and perform(); the last two run a job without an id
SELECT jobq.pause('sets');
SELECT jobq.enqueue('set_outcome', '{"do": "cancel"}', queue => 'manual') AS cancelled, jobq.enqueue('set_outcome', '{"do": "reject"}', queue => 'manual') AS rejected \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, error FROM test.outcome(:cancelled) UNION ALL SELECT state, error FROM test.outcome(:rejected);
SELECT jobq.delete(:rejected);
SELECT jobq.resume('sets');
SELECT d, (jobq.dry_run('set_outcome', jsonb_build_object('do', d))).error FROM unnest(ARRAY['nack', 'reject', 'release', 'cancel', 'log']) d;
TRUNCATE test.set_call;
SELECT jobq.perform('set_outcome', '{"do": "log", "n": 1}');
SELECT said FROM test.set_call;

-- outside of a set handler
SELECT call, e.* FROM unnest(ARRAY['nack(1, NULL)', 'reject(1, NULL, ''no'')', 'release(1, NULL)', 'log(1, NULL, ''line'')', 'cancel_current(''no'', 1)']) call,
	test.error('SELECT jobq.' || call) e;
CREATE FUNCTION test.set_single(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	said text[];
	call text;
BEGIN
	FOREACH call IN ARRAY ARRAY['nack($1, NULL)', 'cancel_current(''no'', $1 + 1)', 'cancel_current(''mine'', $1)'] LOOP
		BEGIN
			EXECUTE 'SELECT jobq.' || call USING job.id;
			said := said || call;
		EXCEPTION WHEN OTHERS THEN
			said := said || regexp_replace(SQLERRM, '\d+', 'N');
		END;
	END LOOP;
	RETURN to_jsonb(said);
END
$$;
SELECT jobq.register('set_single', 'test.set_single(jsonb, jobq.job_context)', queue => 'sets');
SELECT jobq.enqueue('set_single') AS id \gset
SELECT state, error, jsonb_array_elements_text(result) FROM test.outcome(:id);

-- the bill of a long call is divided
CREATE FUNCTION test.set_long(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.01 * cardinality(jobs));
	INSERT INTO test.set_call SELECT j.id, cardinality(jobs) FROM unnest(jobs) j;
END
$$;
SELECT jobq.register('set_long', 'test.set_long(jobq.job_context[])', queue => 'sets');
TRUNCATE test.set_call;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_long')) AS ids FROM generate_series(1, 20) i \gset
SELECT jobq.resume('sets');
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1;
SELECT bool_and(j.cost ? 'wal_bytes') AS billed, bool_and(j.finished_at - j.started_at >= c.attempt * interval '10 ms') AS whole
	FROM jobq.jobs j JOIN test.set_call c ON c.job = j.id WHERE j.id = ANY (:'ids'::bigint[]);
-- the jobs of a call have the same start, end and cost
SELECT bool_and(ends = 1) AS alike FROM (SELECT count(DISTINCT (finished_at, cost)) AS ends FROM jobq.jobs WHERE id = ANY (:'ids'::bigint[]) GROUP BY started_at) c;

SELECT count(jobq.unregister(kind)) > 0 AS unregistered FROM jobq.kinds WHERE kind LIKE 'set\_%';
TRUNCATE test.trace;
