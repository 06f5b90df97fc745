-- Attempts, backoff, dead letters, and the functions that a handler may call.

-- the job uses all attempts, then becomes a dead letter
SELECT jobq.enqueue('broken', '1') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT kind, queue, role = current_user::regrole AS own, attempt, max_attempts, crashes, payload, headers, error, sqlstate,
	regexp_replace(error_context, 'job \d+', 'job N') AS context FROM jobq.dead_letters WHERE id = :id;
SELECT e ->> 'attempt' AS attempt, e ->> 'sqlstate' AS sqlstate, e ->> 'message' AS message, e ? 'at' AS at, e ? 'context' AS context
FROM jobq.dead_letters f, jsonb_array_elements(f.errors) e WHERE id = :id;

-- a second attempt can succeed
CREATE FUNCTION test.flaky(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF job.attempt < payload::int THEN
		RAISE EXCEPTION 'not yet' USING DETAIL = 'the detail', HINT = 'the hint';
	END IF;
	RETURN to_jsonb(job.attempt);
END
$$;
SELECT jobq.register('flaky', 'test.flaky(jsonb, jobq.job_context)');
SELECT jobq.enqueue('flaky', '3', backoff => 'fixed 1 ms') AS id \gset
SELECT * FROM test.outcome(:id);

-- between attempts, the job is retryable; retry() shortens the wait
SELECT jobq.enqueue('flaky', '2', backoff => 'fixed 1h') AS id \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :id));
SELECT state, attempt, error FROM jobq.status(:id);
SELECT state, attempt, error, e ->> 'detail' AS detail, e ->> 'hint' AS hint
FROM jobq.jobs, jsonb_array_elements(errors) e WHERE id = :id;
SELECT jobq.retry(:id);
SELECT * FROM test.outcome(:id);
SELECT * FROM test.error('SELECT jobq.retry(' || :id || ')');

-- the delays of each policy
CREATE TABLE test.delays (policy text, attempt int, delay interval);
CREATE PROCEDURE test.measure(backoff text, attempts int) LANGUAGE plpgsql AS $$
DECLARE
	job_id bigint := jobq.enqueue('broken', backoff => backoff, max_attempts => 100);
BEGIN
	COMMIT;
	FOR i IN 1..attempts LOOP
		IF NOT test.until(format('(SELECT state = ''retryable'' AND attempt = %s FROM jobq.status(%s))', i, job_id)) THEN
			RAISE EXCEPTION 'attempt % of job % has not ended', i, job_id;
		END IF;
		INSERT INTO test.delays
			SELECT backoff, i, j.run_at - (j.errors -> -1 ->> 'at')::timestamptz FROM jobq.jobs j WHERE j.id = job_id;
		EXIT WHEN i = attempts;
		PERFORM jobq.retry(job_id);
		COMMIT;
	END LOOP;
	PERFORM jobq.cancel(job_id);
	COMMIT;
END
$$;
CALL test.measure('fixed 5min', 3);
CALL test.measure('exponential 10min', 4);
CALL test.measure('exponential 1.5h cap 4h', 4);
CALL test.measure('list 10min, 5min,1d', 5);
CALL test.measure('linear 10min', 4);
CALL test.measure('linear 10 min cap 25min', 4);
-- delays accept interval syntax
CALL test.measure('exponential 10 minutes 30 seconds cap PT40M', 3);
CALL test.measure('list 00:10:00, 1 week 2 days,700', 4);
SELECT policy, string_agg(delay::text, ' ' ORDER BY attempt) FROM test.delays GROUP BY policy ORDER BY policy COLLATE "C";
-- with jitter, within its bounds
TRUNCATE test.delays;
CALL test.measure('fixed 1000s jitter 50%', 10);
SELECT bool_and(delay BETWEEN '500s' AND '1500s') AS within, count(DISTINCT delay) > 1 AS jitter FROM test.delays;
-- the default backoff
TRUNCATE test.delays;
SELECT jobq.register('broken_by_default', 'test.broken(jsonb)');
SELECT jobq.enqueue('broken_by_default', queue => 'manual') AS id \gset
CALL jobq.work('{manual}', once => true);
SELECT run_at - (errors -> -1 ->> 'at')::timestamptz BETWEEN '4s' AND '6s' AS within FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel(:id);
SELECT state, attempt, error FROM jobq.status(:id);
DROP TABLE test.delays;

-- default settings of the cluster, of a database, or of a session
SET jobq.default_max_attempts = 2;
SET jobq.default_backoff = 'linear 2h';
SELECT jobq.enqueue('broken_by_default', queue => 'manual') AS id, jobq.enqueue('broken_by_default', queue => 'manual', max_attempts => 5, backoff => 'fixed 5h') AS own \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT attempt, max_attempts, run_at - (errors -> -1 ->> 'at')::timestamptz AS delay FROM jobq.live_jobs WHERE id IN (:id, :own) ORDER BY id;
SELECT jobq.retry(:id);
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt, max_attempts FROM jobq.status(:id);
SELECT jobq.delete(:id), jobq.cancel(:own);
SET jobq.default_max_attempts = -1;
SET jobq.default_backoff = 'often';
SET jobq.default_backoff = 'list';
RESET jobq.default_max_attempts;
RESET jobq.default_backoff;

-- without limit
SELECT jobq.enqueue('flaky', '7', backoff => 'fixed 1ms', max_attempts => 0) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT max_attempts FROM jobq.status(:id);
SELECT jobq.register('flaky', 'test.flaky(jsonb, jobq.job_context)', max_attempts => 0, backoff => 'fixed 1ms');
SELECT jobq.enqueue('flaky', '5') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.register('flaky', 'test.flaky(jsonb, jobq.job_context)');
SELECT * FROM test.error($$SELECT jobq.enqueue('flaky', max_attempts => -1)$$);
SELECT * FROM test.error($$SELECT jobq.register('flaky', 'test.echo(jsonb)', max_attempts => -1)$$);

-- by error: retry_on lists the errors that are retried, fail_on lists the errors that are not;
-- for the timeout, the handler waits for a lock that this session holds
SELECT pg_advisory_lock(1);
CREATE FUNCTION test.raises(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ->> 'code' = 'JQ007' THEN
		PERFORM pg_advisory_xact_lock(1);
	END IF;
	RAISE EXCEPTION 'raised' USING ERRCODE = payload ->> 'code';
END
$$;
CREATE PROCEDURE test.try_codes() LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
	line text;
BEGIN
	SELECT array_agg(jobq.enqueue('raises', jsonb_build_object('code', c), timeout => CASE c WHEN 'JQ007' THEN interval '50 ms' END) ORDER BY n) INTO ids
		FROM unnest('{40001,40P01,23505,P0001,JQ007}'::text[]) WITH ORDINALITY u (c, n);
	COMMIT;
	PERFORM jobq.wait_many(ids);
	SELECT string_agg(format('%s %s %s', payload ->> 'code', state, attempt), ', ' ORDER BY id) INTO line FROM jobq.jobs WHERE id = ANY (ids);
	RAISE NOTICE '%', line;
END
$$;
SELECT jobq.register('raises', 'test.raises(jsonb)', max_attempts => 2, backoff => 'fixed 1ms');
CALL test.try_codes();
SELECT jobq.register('raises', 'test.raises(jsonb)', max_attempts => 2, backoff => 'fixed 1ms', retry_on => '{40001,23}');
CALL test.try_codes();
SELECT jobq.register('raises', 'test.raises(jsonb)', max_attempts => 2, backoff => 'fixed 1ms', retry_on => '{40,23}', fail_on => '{40001,JQ007}');
CALL test.try_codes();
SELECT retry_on, fail_on FROM jobq.kinds WHERE kind = 'raises';
SELECT jobq.register('raises', 'test.raises(jsonb)', max_attempts => 2, backoff => 'fixed 1ms', retry_on => '{}');
CALL test.try_codes();
SELECT c, e.* FROM unnest(ARRAY['retry_on => ''{4000}''', 'fail_on => ''{23505,division_by_zero}''', 'fail_on => ''{NULL}''', 'fail_on => ''{4*}''']) WITH ORDINALITY u (c, n),
	test.error(format('SELECT jobq.register(''raises'', ''test.raises(jsonb)'', %s)', c)) e ORDER BY n;
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE kind = 'raises';
SELECT jobq.unregister('raises');
SELECT pg_advisory_unlock(1);

-- retry_until replaces max_attempts
SELECT jobq.enqueue('flaky', '6', backoff => 'fixed 1ms', max_attempts => 1, retry_until => 'infinity') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('flaky', '6', backoff => 'fixed 1ms', max_attempts => 100, retry_until => '2001-01-01') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('flaky', '6', backoff => 'fixed 1h', retry_until => now() + '1 min') AS id \gset
SELECT * FROM test.outcome(:id);

-- max_exceptions limits the exceptions raised by the handler, whatever attempts are left
SELECT jobq.register('two_exceptions', 'test.broken(jsonb)', backoff => 'fixed 1ms', max_attempts => 10, max_exceptions => 2);
SELECT jobq.enqueue('two_exceptions') AS id \gset
SELECT * FROM test.outcome(:id);

-- a retried dead letter has all attempts again, and keeps the earlier errors
SELECT jobq.enqueue('broken', '"again"', headers => '{"h": 1}', priority => 3) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.retry(:id);
SELECT * FROM test.outcome(:id);
SELECT jsonb_array_length(errors) AS errors, headers, payload FROM jobq.dead_letters WHERE id = :id;
-- after a fix of the handler, the retry succeeds
CREATE OR REPLACE FUNCTION test.broken(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.retry(:id);
SELECT * FROM test.outcome(:id);
SELECT count(*) FROM jobq.dead_letters WHERE id = :id;
SELECT state, priority, headers FROM jobq.jobs WHERE id = :id;
CREATE OR REPLACE FUNCTION test.broken(payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken %', payload; END $$;

-- a deleted dead letter
SELECT jobq.enqueue('broken', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);
SELECT * FROM test.error('SELECT jobq.delete(' || :id || ')');
SELECT * FROM test.error('SELECT jobq.retry(' || :id || ')');
SELECT * FROM test.error('SELECT jobq.status(' || :id || ')');

-- snooze(): changes are kept, no attempt is charged
CREATE FUNCTION test.asking(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (format('%s, attempt %s', payload, job.attempt));
	CASE payload #>> '{}'
		WHEN 'snooze' THEN
			IF (SELECT count(*) FROM test.trace) < 3 THEN
				PERFORM jobq.snooze('0');
			END IF;
		WHEN 'release' THEN
			IF (SELECT count(*) FROM test.trace) < 3 THEN
				PERFORM jobq.snooze('0', charge => true);
			END IF;
		WHEN 'release for ever' THEN
			PERFORM jobq.snooze('1 ms', charge => true);
		WHEN 'discard' THEN
			PERFORM jobq.cancel_current('of no use');
		WHEN 'fail' THEN
			PERFORM jobq.reject_current('for good');
		WHEN 'fail, but' THEN
			BEGIN
				PERFORM jobq.reject_current('for good');
			EXCEPTION WHEN OTHERS THEN
				NULL;
			END;
		WHEN 'snooze and raise' THEN
			PERFORM jobq.snooze('1 hour');
			RAISE EXCEPTION 'changed my mind';
		WHEN 'discard and snooze' THEN
			PERFORM jobq.cancel_current('the last word counts');
			IF (SELECT count(*) FROM test.trace) < 2 THEN
				PERFORM jobq.snooze('0');
			END IF;
	END CASE;
	RETURN to_jsonb(job.attempt);
END
$$;
SELECT jobq.register('asking', 'test.asking(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.enqueue('asking', '"snooze"', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- snooze(charge => true): the attempt is charged
SELECT jobq.enqueue('asking', '"release"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- until no attempt is left
SELECT jobq.enqueue('asking', '"release for ever"', max_attempts => 2) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- or until retry_until has passed
SELECT jobq.enqueue('asking', '"release for ever"', max_attempts => 2, retry_until => '2001-01-01') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- cancel_current(): changes are kept, the job is cancelled
SELECT jobq.enqueue('asking', '"discard"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- reject_current(): changes are rolled back, and no attempt is left
SELECT jobq.enqueue('asking', '"fail"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT sqlstate FROM jobq.dead_letters WHERE id = :id;
-- unless the handler catches the exception
SELECT jobq.enqueue('asking', '"fail, but"') AS id \gset
SELECT * FROM test.outcome(:id);
-- an error overrides an earlier call; the last call counts
SELECT jobq.enqueue('asking', '"snooze and raise"', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
TRUNCATE test.trace;
SELECT jobq.enqueue('asking', '"discard and snooze"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;

-- a call in a block that is rolled back has no effect; an earlier call is valid again
CREATE FUNCTION test.asking_back(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.trace (note) VALUES (format('%s, attempt %s', payload, job.attempt));
	IF payload @> '"before"' THEN
		PERFORM jobq.cancel_current('before the block');
	END IF;
	BEGIN
		BEGIN
			PERFORM jobq.snooze('1 hour');
			PERFORM jobq.cancel_current('in the inner block');
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
		IF payload @> '"fail"' THEN
			PERFORM jobq.reject_current('in the block');
		ELSIF NOT payload @> '"kept"' THEN
			RAISE EXCEPTION 'changed my mind';
		END IF;
	EXCEPTION WHEN OTHERS THEN
		NULL;
	END;
	IF payload @> '"again"' THEN
		PERFORM jobq.cancel_current('after the block');
	END IF;
	RETURN to_jsonb(job.attempt);
END
$$;
CREATE PROCEDURE test.asking_procedure(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.cancel_current('has committed');
	COMMIT;
	PERFORM jobq.cancel_current('is rolled back');
	ROLLBACK;
	INSERT INTO test.trace (note) VALUES ('procedure');
END
$$;
SELECT jobq.register('asking back', 'test.asking_back(jsonb, jobq.job_context)');
SELECT jobq.register('asking procedure', 'test.asking_procedure(jsonb)');
SELECT array_agg(jobq.enqueue('asking back', to_jsonb(string_to_array(what, ',')))) || jobq.enqueue('asking procedure') AS ids
	FROM unnest('{none,before,kept,"kept,before",fail,"fail,before","before,again"}'::text[]) what \gset
SELECT o.state, o.attempt, o.error FROM unnest(:'ids'::bigint[]) WITH ORDINALITY u (id, n), test.outcome(u.id) o ORDER BY n;
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- a job that is not started in time expires
SELECT jobq.enqueue('note', '"too late"', expires_at => '2001-01-01') AS id \gset
SELECT state, attempt, started_at, error FROM jobq.wait(:id);
SELECT jobq.enqueue('note', '"in time"', expires_at => 'infinity') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT note FROM test.trace;
TRUNCATE test.trace;

-- timeouts: of the job, of the kind, and with fail_on_timeout; the handlers wait for a lock that this session holds
SELECT pg_advisory_lock(1);
CREATE FUNCTION test.stuck() RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock(1) $$;
SELECT jobq.register('stuck', 'test.stuck()', backoff => 'fixed 1ms');
SELECT jobq.enqueue('stuck', timeout => '20 ms', max_attempts => 2) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT sqlstate FROM jobq.dead_letters WHERE id = :id;
SELECT jobq.register('stuck', 'test.stuck()', backoff => 'fixed 1ms', timeout => '10 ms', fail_on_timeout => true);
SELECT jobq.enqueue('stuck') AS id \gset
SELECT * FROM test.outcome(:id);
CREATE PROCEDURE test.stuck_steps() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO test.trace (note) VALUES ('step'); COMMIT; PERFORM pg_advisory_xact_lock(1); END $$;
SELECT jobq.register('stuck_steps', 'test.stuck_steps()', backoff => 'fixed 1ms', timeout => '500 ms');
SELECT jobq.enqueue('stuck_steps', max_attempts => 0) AS id \gset
-- however often the timeout hit before the first step
SELECT test.until('(SELECT count(*) >= 2 FROM test.trace)');
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:id);
SELECT DISTINCT e ->> 'sqlstate' AS sqlstate, e ->> 'message' AS message FROM jobq.jobs, jsonb_array_elements(errors) e WHERE id = :id;
SELECT DISTINCT note FROM test.trace;
-- the timeout does not hit the worker's next job
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('echo', array_fill('1'::jsonb, ARRAY[20]), timeout => '1 h') id \gset
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[]) GROUP BY state;

-- a handler that calls should_stop() leaves in time
CREATE FUNCTION test.polite() RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT jobq.should_stop() LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN '"left"';
END
$$;
SELECT jobq.register('polite', 'test.polite()', timeout => '1 h');
SELECT jobq.enqueue('polite') AS id \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :id));
SELECT jobq.test_clock('57 min') \g /dev/null
SELECT * FROM test.outcome(:id);
SELECT jobq.test_clock('0') \g /dev/null

SELECT count(*), bool_and(jobq.delete(id) IS NOT NULL) FROM jobq.dead_letters;
TRUNCATE test.trace;
