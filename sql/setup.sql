-- Creates the extension, and the helpers shared by all tests.
CREATE EXTENSION jobq;
-- the largest ids that there are
SELECT jobq.adopt(node => 1023);
SELECT count(*) FROM jobq.jobs;

-- The role that runs the tests; their output shows this role by name.
DO $$ BEGIN IF to_regrole('postgres') IS NULL THEN CREATE ROLE postgres SUPERUSER LOGIN; END IF; END $$;
CREATE ROLE regress_jobq_alice LOGIN;
CREATE ROLE regress_jobq_bob LOGIN;
CREATE ROLE regress_jobq_boss LOGIN;
CREATE ROLE regress_jobq_nobody LOGIN;
CREATE SCHEMA test;
GRANT USAGE ON SCHEMA test TO PUBLIC;

-- Wait until a condition holds; returns false after some minutes.  A slow condition
-- is evaluated less often, so that waiting keeps no processor busy.
CREATE FUNCTION test.until(condition text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
	asked timestamptz;
	done boolean;
BEGIN
	LOOP
		asked := clock_timestamp();
		EXECUTE 'SELECT ' || condition INTO done;
		IF done THEN
			RETURN true;
		END IF;
		EXIT WHEN asked > began + interval '5 min';
		PERFORM pg_sleep(greatest(0.01, 4 * extract(epoch FROM clock_timestamp() - asked)));
	END LOOP;
	RETURN false;
END
$$;

-- Waits for a job and returns the outcome.
CREATE FUNCTION test.outcome(id bigint, OUT state text, OUT attempt int, OUT result jsonb, OUT error text)
LANGUAGE sql AS $$ SELECT s.state, s.attempt, s.result, s.error FROM jobq.wait($1, '5 min') s $$;

-- The ids of the steps of a chain, in order.
CREATE FUNCTION test.chain(steps jsonb, on_failure jsonb DEFAULT NULL, on_success jsonb DEFAULT NULL, on_finish jsonb DEFAULT NULL, name text DEFAULT NULL,
	options jsonb DEFAULT NULL, batch bigint DEFAULT NULL) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
	id bigint := jobq.create_workflow(jsonb_build_object('chain', steps, 'on_failure', on_failure, 'on_success', on_success, 'on_finish', on_finish,
		'name', chain.name, 'options', options), batch);
BEGIN
	RETURN ARRAY(SELECT s.job_id FROM jobq.steps s WHERE s.batch_id = id ORDER BY s.name::int);
END
$$;

-- The outcome of enqueue(): the state of the job with the returned id, and whether this job existed before.
CREATE FUNCTION test.enqueued(INOUT id bigint, OUT state text, OUT duplicate boolean) LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	state := (SELECT j.state FROM jobq.jobs j WHERE j.id = enqueued.id);
	duplicate := id <> currval('jobq_internal.job_id_seq');
END
$$;

-- Wait until the handlers of these jobs wait for their lock.  A worker shows its job as running before the lock call.
CREATE FUNCTION test.in_gate(VARIADIC ids bigint[]) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT count(*) FROM pg_locks l JOIN jobq.workers w USING (pid) WHERE l.locktype = ''advisory'' AND NOT l.granted AND w.job_id = ANY (%L)) = %s',
		ids, cardinality(ids)))
$$;

-- Wait until the scheduler has completed a round and every possible action is done, so that unwanted actions had time
-- to happen.  Only the scheduler ends a batch without jobs.  A sleeping worker has returned the permits of its last
-- job.  A worker waiting for an advisory lock shows its job as running.
CREATE PROCEDURE test.settle() LANGUAGE plpgsql AS $$
DECLARE
	batch bigint;
	id bigint;
BEGIN
	FOR i IN 1..3 LOOP
		batch := jobq.create_batch();
		PERFORM jobq.start_batch(batch);
		COMMIT;
		PERFORM jobq.wait_batch(batch, '5 min');
		id := jobq.enqueue('echo', queue => 'settle', delay => '1 ms');
		COMMIT;
		PERFORM jobq.wait(id, '5 min');
		COMMIT;
	END LOOP;
	FOR i IN 1..30000 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM jobq.workers w LEFT JOIN pg_stat_activity a USING (pid) WHERE w.pid IS NOT NULL
			AND NOT coalesce(a.wait_event = 'advisory' OR (a.wait_event_type = 'Extension' AND w.job_id IS NULL), false));
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;

-- Set the time, and wait until the scheduler has handled all due schedules.  The second call of test_clock() confirms
-- the new time, so that missed ticks are made up for.
CREATE PROCEDURE test.clock(t timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	ahead interval := t - clock_timestamp();
BEGIN
	PERFORM jobq.test_clock(ahead);
	PERFORM jobq.test_clock(ahead);
	COMMIT;
	IF NOT test.until($c$ NOT EXISTS (SELECT FROM jobq_internal.schedule WHERE NOT paused AND NOT held AND last_error IS NULL AND (next_tick IS NULL OR next_tick <= jobq_internal.clock())) $c$) THEN
		RAISE WARNING 'the scheduler does not come';
	END IF;
END
$$;

-- The error that a command raises, with ids masked.
CREATE FUNCTION test.error(command text, OUT code text, OUT message text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	message := 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	message := regexp_replace(message, '(job|letter) \d+', '\1 N');
END
$$;

-- The traces of handlers.
CREATE TABLE test.trace (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
GRANT INSERT, SELECT ON test.trace TO PUBLIC;

CREATE FUNCTION test.echo(payload jsonb) RETURNS jsonb
LANGUAGE sql AS $$ SELECT payload $$;
CREATE FUNCTION test.note(payload jsonb) RETURNS void
LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES (payload #>> '{}') $$;
CREATE FUNCTION test.broken(payload jsonb) RETURNS void
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken %', payload; END $$;

-- Runs until other sessions release the advisory lock.
CREATE FUNCTION test.gate(payload jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared((payload #>> '{}')::bigint);
	RETURN payload;
END
$$;

-- The number of traces, and the states of jobs.
CREATE FUNCTION test.noted() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM test.trace $$;
CREATE FUNCTION test.states(ids bigint[]) RETURNS TABLE (state text, attempt int) LANGUAGE sql
AS $$ SELECT s.state, s.attempt FROM unnest(ids) WITH ORDINALITY i (id, n), jobq.status(i.id) s ORDER BY i.n $$;

-- The steps that have run.
CREATE TABLE test.step (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, g text, i int, attempt int, started timestamptz, ended timestamptz);
-- A step of a group, which fails the given number of times.  A step also fails if another job of its group runs.
CREATE FUNCTION test.step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	IF NOT pg_try_advisory_xact_lock(hashtext('group'), hashtext(payload ->> 'g')) THEN
		RAISE EXCEPTION 'another job of group % runs', payload ->> 'g';
	END IF;
	IF job.attempt <= coalesce((payload ->> 'fails')::int, 0) THEN
		RAISE EXCEPTION 'attempt %', job.attempt;
	END IF;
	INSERT INTO test.step (g, i, attempt, started, ended) VALUES (payload ->> 'g', (payload ->> 'i')::int, job.attempt, began, clock_timestamp());
END
$$;
CREATE FUNCTION test.step(g text, i int, queue text DEFAULT 'steps', more jsonb DEFAULT '{}', kind text DEFAULT 'step', priority int DEFAULT NULL)
RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue(kind, jsonb_build_object('g', g, 'i', i) || more, queue => queue, group_key => g, priority => priority, max_attempts => 5)
$$;
-- The number of steps, and whether each step ran once, and in the order of its group.
CREATE FUNCTION test.steps(OUT steps bigint, OUT once boolean, OUT ordered boolean) LANGUAGE sql AS $$
	SELECT count(*), count(DISTINCT (g, i)) = count(*), coalesce(bool_and(i > previous), true)
	FROM (SELECT g, i, lag(i, 1, 0) OVER (PARTITION BY g ORDER BY n) AS previous FROM test.step) t
$$;

SELECT jobq.register('echo', 'test.echo(jsonb)');
SELECT jobq.register('note', 'test.note(jsonb)');
SELECT jobq.register('broken', 'test.broken(jsonb)', backoff => 'fixed 1ms');
SELECT jobq.register('gate', 'test.gate(jsonb)');

-- The first job: CREATE EXTENSION starts the scheduler.
SELECT jobq.enqueue('echo', '"hello"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT pid IS NOT NULL AS running, complete FROM jobq_internal.scheduler_state();
SELECT test.until('(SELECT count(*) FROM jobq.workers WHERE pool = 3 AND completed > 0) > 0');
