-- A procedure notes its steps together with their effects, and skips the steps in the next run.
\connect - postgres
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

CREATE TABLE test.effect (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
-- fails in the middle of a step, as often as the payload says, and passes results on
CREATE SEQUENCE test.failures;
CREATE PROCEDURE test.three_steps(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	IF jobq.step('first') THEN
		INSERT INTO test.effect (note) VALUES ('first');
		CALL jobq.step_done('{"invoice": 17}');
	END IF;
	IF jobq.step('second') THEN
		INSERT INTO test.effect (note) VALUES (format('second, after invoice %s', jobq.step_result('first') -> 'invoice'));
		IF nextval('test.failures') <= (job.payload ->> 'fail')::int THEN
			RAISE EXCEPTION 'broken';
		END IF;
		CALL jobq.step_done();
	END IF;
	IF jobq.step('third') THEN
		INSERT INTO test.effect (note) VALUES (format('third, attempt %s', job.attempt));
		CALL jobq.step_done(to_jsonb(job.attempt));
	END IF;
END
$$;
SELECT jobq.register('three_steps', 'test.three_steps(jsonb, jobq.job_context)', backoff => 'fixed 1ms');

-- the first attempt commits a step, and is not charged; the next two are
SELECT jobq.enqueue('three_steps', '{"fail": 3}', max_attempts => 3) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
SELECT e ->> 'attempt' AS attempt, e ->> 'message' AS message FROM jobq.jobs j, jsonb_array_elements(j.errors) e WHERE j.id = :id;
-- attempts without progress use up max_attempts; a retry goes on after the steps of the dead letter
TRUNCATE test.effect;
SELECT setval('test.failures', 1, false) \g /dev/null
SELECT jobq.enqueue('three_steps', '{"fail": 3}', max_attempts => 2) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.retry(:id);
SELECT * FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
SELECT event, detail, took >= '0' AS timed FROM jobq.history(:id) WHERE event = 'step';
-- a rerun is another job, without steps
SELECT setval('test.failures', 4, false) \g /dev/null
TRUNCATE test.effect;
SELECT jobq.rerun(:id) AS again \gset
SELECT state FROM test.outcome(:again);
SELECT note FROM test.effect ORDER BY n;

-- a rerun from a step on: the notes of this step and of later steps are forgotten, and the saved value of a later time
CREATE PROCEDURE test.long_story(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF jobq.step('first') THEN
		INSERT INTO test.effect (note) VALUES ('first');
		PERFORM jobq.save('"early"');
		CALL jobq.step_done('"of the first"');
	END IF;
	CALL jobq.await_signal('go', answer);
	IF jobq.step('second') THEN
		INSERT INTO test.effect (note) VALUES (format('second, after %s, %s, saved %s', jobq.step_result('first'), jobq.step_result('go'), jobq.saved()));
		CALL jobq.step_done();
	END IF;
	IF jobq.step('third') THEN
		INSERT INTO test.effect (note) VALUES (format('third %s', answer));
		PERFORM jobq.save('"late"');
		CALL jobq.step_done();
	END IF;
	IF payload ? 'fails' THEN
		RAISE EXCEPTION 'dead at the end';
	END IF;
END
$$;
SELECT jobq.register('long_story', 'test.long_story(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('long_story') AS id, jobq.enqueue('long_story', '{"fails": true}') AS dead \gset
SELECT jobq.signal(j, 'go', '"signal"') FROM unnest(ARRAY[:id, :dead]::bigint[]) j;
SELECT state, attempt FROM jobq.wait_many(ARRAY[:id, :dead]::bigint[], '5 min');
SELECT code, message FROM test.error(format('SELECT jobq.rerun(%s)', :dead));
SELECT code, message FROM unnest('{no such step,""}'::text[]) step, test.error(format('SELECT jobq.rerun(%s, %L)', :id, step));
TRUNCATE test.effect;
SELECT jobq.rerun(:id, from_step => 'second') AS again \gset
SELECT state FROM test.outcome(:again);
SELECT note FROM test.effect ORDER BY n;
SELECT event, detail FROM jobq.history(:again) WHERE event IN ('step', 'saved', 'resumed', 'signal') ORDER BY at;
TRUNCATE test.effect;
SELECT jobq.rerun(:dead, from_step => 'third') AS again \gset
SELECT state FROM test.outcome(:again);
SELECT note FROM test.effect ORDER BY n;
SELECT state FROM jobq.status(:dead);
-- the new job waits for a signal of its own
TRUNCATE test.effect;
SELECT jobq.rerun(:id, from_step => 'go') AS again \gset
SELECT test.until(format('(SELECT state = ''suspended'' FROM jobq.status(%s))', :again));
SELECT jobq.signal(:again, 'go', '"another"');
SELECT state FROM test.outcome(:again);
SELECT note FROM test.effect ORDER BY n;
SELECT jobq.delete(:dead);

-- a saved value and the effects of its transaction stay together
CREATE PROCEDURE test.import(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	line int := coalesce((jobq.saved() ->> 'line')::int, 0);
BEGIN
	WHILE line < 50 LOOP
		line := line + 1;
		INSERT INTO test.effect (note) VALUES (line);
		IF line % 5 = 0 THEN
			PERFORM jobq.save(jsonb_build_object('line', line));
			COMMIT;
		ELSIF line % 13 = 0 AND (SELECT count(*) FROM jsonb_array_elements((SELECT errors FROM jobq.live_jobs l WHERE l.id = job.id))) < line / 13 THEN
			RAISE EXCEPTION 'cannot read line %', line;
		END IF;
	END LOOP;
END
$$;
SELECT jobq.register('import', 'test.import(jsonb, jobq.job_context)', backoff => 'fixed 1ms', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('import') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT count(*), count(DISTINCT note) FROM test.effect;
SELECT jsonb_array_length(errors) AS failed FROM jobq.jobs WHERE id = :id;
SELECT event, detail FROM jobq.history(:id) WHERE event = 'saved';

-- saving the same value again is no progress
CREATE PROCEDURE test.stands_still(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.save('{"line": 1}');
	COMMIT;
	RAISE EXCEPTION 'broken';
END
$$;
SELECT jobq.register('stands_still', 'test.stands_still(jsonb)', backoff => 'fixed 1ms', max_attempts => 2);
SELECT jobq.enqueue('stands_still') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jsonb_array_length(errors) AS failed FROM jobq.jobs WHERE id = :id;

-- rolled back: a value, and a begun step
CREATE PROCEDURE test.rolled_back(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	ok boolean;
BEGIN
	PERFORM jobq.save('1');
	COMMIT;
	PERFORM jobq.save('2');
	ROLLBACK;
	INSERT INTO test.effect (note) VALUES (format('saved: %s', jobq.saved()));
	COMMIT;
	BEGIN
		ok := jobq.step('abandoned');
		PERFORM jobq.save('3');
		RAISE EXCEPTION 'out of this block';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	ok := jobq.step('other');
	INSERT INTO test.effect (note) VALUES (format('saved: %s', jobq.saved()));
	-- in the middle of a step
	COMMIT;
	PERFORM jobq.save('4');
	PERFORM jobq.save('5');
	CALL jobq.step_done();
	INSERT INTO test.effect (note) VALUES (format('saved: %s', jobq.saved()));
	ok := jobq.step('rolled back');
	ROLLBACK;
	ok := jobq.step('last');
END
$$;
SELECT jobq.register('rolled_back', 'test.rolled_back(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('rolled_back') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;

-- misuse: each statement is executed by a procedure
CREATE PROCEDURE test.run_all(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	CASE payload ->> 'case'
		WHEN 'no step' THEN CALL jobq.step_done();
		WHEN 'two steps' THEN
			PERFORM jobq.step('a');
			PERFORM jobq.step('b');
		WHEN 'empty name' THEN PERFORM jobq.step('');
		WHEN 'long name' THEN PERFORM jobq.step(repeat('x', 128));
		WHEN 'no name' THEN PERFORM jobq.step(NULL);
		WHEN 'save nothing' THEN PERFORM jobq.save(NULL);
		WHEN 'large result' THEN
			PERFORM jobq.step('a');
			CALL jobq.step_done(to_jsonb(repeat('x', 20000000)));
		WHEN 'in a block' THEN
			BEGIN
				PERFORM jobq.step('a');
				CALL jobq.step_done();
			EXCEPTION WHEN division_by_zero THEN
				NULL;
			END;
		WHEN 'sleep in a block' THEN
			BEGIN
				CALL jobq.sleep('a', '1 day');
			EXCEPTION WHEN division_by_zero THEN
				NULL;
			END;
		WHEN 'sleep without time' THEN CALL jobq.sleep('a');
		WHEN 'sleep with two times' THEN CALL jobq.sleep('a', '1 day', now());
		WHEN 'sleep forever' THEN CALL jobq.sleep('a', until => 'infinity');
		WHEN 'negative sleep' THEN CALL jobq.sleep('a', '-1 day');
		WHEN 'same name' THEN
			CALL jobq.sleep('a', '0');
			PERFORM jobq.step('a');
		WHEN 'same name of a wait' THEN
			CALL jobq.sleep('a', '0');
			CALL jobq.await_signal('a', answer);
		WHEN 'negative timeout' THEN CALL jobq.await_signal('a', answer, '-1 s');
		WHEN 'long signal' THEN CALL jobq.await_signal(repeat('x', 128), answer);
	END CASE;
END
$$;
SELECT jobq.register('misuse', 'test.run_all(jsonb)', max_attempts => 1);
CREATE FUNCTION test.as_function(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM jobq.step('a'); END $$;
CREATE PROCEDURE test.with_settings(payload jsonb) LANGUAGE plpgsql SET work_mem = '1MB' AS $$ BEGIN CALL jobq.sleep('a', '1 s'); END $$;
SELECT jobq.register('function', 'test.as_function(jsonb)', max_attempts => 1), jobq.register('with_settings', 'test.with_settings(jsonb)', max_attempts => 1);
CREATE TABLE test.misused (n int GENERATED ALWAYS AS IDENTITY, what text, id bigint);
INSERT INTO test.misused (what, id)
SELECT c, jobq.enqueue('misuse', jsonb_build_object('case', c)) FROM unnest('{no step,two steps,empty name,long name,no name,save nothing,large result,in a block,sleep in a block,sleep without time,
sleep with two times,sleep forever,negative sleep,same name,same name of a wait,negative timeout,long signal}'::text[]) c;
INSERT INTO test.misused (what, id) SELECT k, jobq.enqueue(k) FROM unnest('{function,with_settings}'::text[]) k;
SELECT count(*) FROM test.misused m, jobq.wait(m.id, '5 min') w WHERE w.state = 'dead';
SELECT m.what, j.errors -> 0 ->> 'sqlstate' AS code, regexp_replace(j.errors -> 0 ->> 'message', 'job \d+|x{20,}', 'N') AS message, j.errors -> 0 ->> 'hint' AS hint
FROM test.misused m JOIN jobq.jobs j ON j.id = m.id ORDER BY m.n;
SELECT jobq.delete_many(ids => (SELECT array_agg(id) FROM test.misused));
-- no worker
SELECT * FROM test.error($$SELECT jobq.perform('misuse', '{"case": "two steps"}')$$);

-- a cancelled job does not commit its step
CREATE PROCEDURE test.stubborn(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	IF jobq.step('stubborn') THEN
		INSERT INTO test.effect (note) VALUES ('stubborn');
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(4646);
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
		CALL jobq.step_done();
	END IF;
END
$$;
SELECT jobq.register('stubborn', 'test.stubborn(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT pg_advisory_lock(4646);
SELECT jobq.enqueue('stubborn') AS id \gset
SELECT test.in_gate(:id);
SELECT jobq.cancel(:id);
SELECT state, error FROM test.outcome(:id);
SELECT pg_advisory_unlock(4646);
SELECT count(*) FROM test.effect;
SELECT count(*) FROM jobq_internal.procedure_step WHERE job_id = :id;

DROP PROCEDURE test.stands_still(jsonb), test.long_story(jsonb), test.three_steps(jsonb, jobq.job_context), test.import(jsonb, jobq.job_context), test.rolled_back(jsonb), test.run_all(jsonb), test.with_settings(jsonb), test.stubborn(jsonb);
DROP FUNCTION test.as_function(jsonb);
DROP TABLE test.misused;
DROP SEQUENCE test.failures;
SELECT count(jobq.unregister(k)) FROM unnest('{stands_still,three_steps,import,rolled_back,misuse,function,with_settings,stubborn}'::text[]) k;
