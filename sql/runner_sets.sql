-- Handlers of several jobs: registration, one call for many jobs, results, errors, what runs alone.
CREATE SEQUENCE test.set_calls;
CREATE TABLE test.set_done (job bigint, call bigint, jobs int, tenants int, note text);
CREATE FUNCTION test.set_note(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	call bigint := nextval('test.set_calls');
BEGIN
	INSERT INTO test.set_done
		SELECT j.id, call, cardinality(jobs), (SELECT count(DISTINCT coalesce(t.tenant, '')) FROM unnest(jobs) t), current_setting('app.set', true)
		FROM unnest(jobs) j;
	IF EXISTS (SELECT FROM unnest(jobs) j WHERE j.payload ? 'bad') THEN
		RAISE EXCEPTION 'bad job';
	END IF;
END
$$;
CREATE FUNCTION test.set_results(jobs jobq.job_context[]) RETURNS jsonb[] LANGUAGE sql AS $$
	SELECT array_agg(CASE WHEN (jobs[n].payload ->> 'i')::int % 3 > 0 THEN jsonb_build_object('twice', 2 * (jobs[n].payload ->> 'i')::int) END ORDER BY n)
	FROM generate_subscripts(jobs, 1) n
	WHERE NOT jobs[n].payload ? 'missing'
$$;

-- the default of chunk, and refused values
SELECT jobq.register('set_note', 'test.set_note(jobq.job_context[])', queue => 'sets', max_attempts => 2, backoff => 'fixed 1ms');
SELECT jobq.register('set_results', 'test.set_results(jobq.job_context[])', queue => 'sets', chunk => 1000, max_attempts => 1);
SELECT kind, handler, chunk FROM jobq.kinds WHERE chunk IS NOT NULL ORDER BY kind;
CREATE PROCEDURE test.set_procedure(jobs jobq.job_context[]) LANGUAGE sql AS '';
CREATE FUNCTION test.set_jsonb(jobs jobq.job_context[]) RETURNS jsonb LANGUAGE sql AS $$ SELECT '{}'::jsonb $$;
CREATE FUNCTION test.set_two(jobs jobq.job_context[], n int) RETURNS void LANGUAGE sql AS '';
SELECT e.* FROM unnest(ARRAY[
	$$'set_bad', 'test.set_procedure(jobq.job_context[])'$$,
	$$'set_bad', 'test.set_jsonb(jobq.job_context[])'$$,
	$$'set_bad', 'test.set_two(jobq.job_context[], int)'$$,
	$$'set_bad', 'test.set_note(jobq.job_context[])', chunk => 0$$,
	$$'set_bad', 'test.set_note(jobq.job_context[])', chunk => 1001$$,
	$$'set_bad', 'test.echo(jsonb)', chunk => 10$$,
	$$'set_bad', 'test.set_note(jobq.job_context[])', chunk_wait => '-1 ms'$$,
	$$'set_bad', 'test.set_note(jobq.job_context[])', chunk_wait => '61 s'$$,
	$$'set_bad', 'test.echo(jsonb)', chunk_wait => '20 ms'$$,
	$$'set_bad', 'test.echo(jsonb)', on_failure => 'test.set_note(jobq.job_context[])'$$]) AS arguments,
	test.error('SELECT jobq.register(' || arguments || ')') e;
\set VERBOSITY default
SELECT jobq.register('set_bad', 'test.set_procedure(jobq.job_context[])');
SELECT jobq.register('set_bad', 'test.set_note(jobq.job_context[])', chunk_wait => '61 s');
SELECT jobq.register('set_bad', 'test.echo(jsonb)', chunk_wait => '20 ms');
\set VERBOSITY terse

-- work() and run_due() do not wait for further jobs
SELECT jobq.register('set_waits', 'test.set_note(jobq.job_context[])', queue => 'manual', chunk_wait => '20 ms');
SELECT kind, chunk, chunk_wait FROM jobq.kinds WHERE kind IN ('set_note', 'set_waits') ORDER BY kind;
SELECT type, kind, max_running, rate FROM jobq.limits WHERE kind = 'set_waits';
SELECT jobq.register('set_waits', 'test.set_note(jobq.job_context[])', queue => 'manual', chunk_wait => '1 min');
SELECT jobq.enqueue('set_waits') AS id \gset
CALL jobq.work(queues => '{manual}', once => true);
SELECT state FROM jobq.jobs WHERE id = :id;
SELECT jobq.enqueue('set_waits') AS id \gset
SELECT jobq.run_due('{manual}');
SELECT state FROM jobq.jobs WHERE id = :id;
SELECT jobq.register('set_waits', 'test.set_note(jobq.job_context[])', queue => 'manual', chunk_wait => '0');
SELECT kind, chunk, chunk_wait FROM jobq.kinds WHERE kind = 'set_waits';
SELECT jobq.unregister('set_waits');
TRUNCATE test.set_done;

-- a call runs many jobs, each job once
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_note', jsonb_build_object('i', i))) AS ids FROM generate_series(1, 100) i \gset
SELECT jobq.resume('sets');
SELECT state, attempt, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1, 2;
SELECT count(*), count(DISTINCT job), count(DISTINCT call) < 50 AS few, bool_and(jobs <= 100) AS fits FROM test.set_done;
SELECT count(*), bool_and(state = 'completed' AND started_at IS NOT NULL AND finished_at >= started_at) AS ended FROM jobq.jobs WHERE id = ANY (:'ids'::bigint[]);
SELECT s.completed, s.failed, s.running FROM jobq.stats s WHERE queue = 'sets' AND kind = 'set_note';

-- one bad job of a hundred: the bad job is charged, and 99 jobs run once
TRUNCATE test.set_done;
SELECT setval('test.set_calls', 1);
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_note', CASE WHEN i = 37 THEN '{"bad": true}' ELSE '{}' END::jsonb)) AS ids FROM generate_series(1, 100) i \gset
SELECT jobq.resume('sets');
SELECT state, attempt, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1, 2 ORDER BY 1;
SELECT count(*), count(DISTINCT job) FROM test.set_done;
SELECT attempt, error, sqlstate, jsonb_array_length(errors) AS errors FROM jobq.dead_letters WHERE id = ANY (:'ids'::bigint[]);
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE id = ANY (:'ids'::bigint[]);

-- a result for each job, or none
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_results', jsonb_build_object('i', i)) ORDER BY i) AS ids FROM generate_series(1, 9) i \gset
SELECT jobq.resume('sets');
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[], '5 min');
-- another number of results is an error; a single job fails if the call returns none
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_results', payload::jsonb)) AS ids FROM unnest(ARRAY['{"i": 1}', '{"i": 2, "missing": true}', '{"i": 4}']) payload \gset
SELECT jobq.resume('sets');
SELECT state, result, error FROM jobq.wait_many(:'ids'::bigint[], '5 min');
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE id = ANY (:'ids'::bigint[]);

-- functions of the current job are refused, whatever the number of jobs
CREATE FUNCTION test.set_asks(jobs jobq.job_context[]) RETURNS jsonb[] LANGUAGE plpgsql AS $$
DECLARE
	said text[];
	call text;
BEGIN
	FOREACH call IN ARRAY ARRAY['current_job()', 'snooze(''1 min'')', 'cancel_current(''no'')', 'reject_current(''no'')', 'set_progress(50)', 'log(''line'')', 'should_stop()'] LOOP
		BEGIN
			EXECUTE 'SELECT jobq.' || call;
			said := said || call;
		EXCEPTION WHEN OTHERS THEN
			said := said || SQLERRM;
		END;
	END LOOP;
	RETURN array_fill(to_jsonb(said), ARRAY[cardinality(jobs)]);
END
$$;
SELECT jobq.register('set_asks', 'test.set_asks(jobq.job_context[])', queue => 'sets');
SELECT jobq.enqueue('set_asks') AS id \gset
SELECT jsonb_array_elements_text(result) FROM test.outcome(:id);

-- jobs of a call share tenant and carried settings
SELECT jobq.alter_queue('sets', tenant => 'header tenant', carry => '{app.set}');
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
CREATE FUNCTION test.set_carried(i int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('app.set', (i % 3)::text, true);
	RETURN jobq.enqueue('set_note', headers => jsonb_build_object('tenant', 't' || i % 2));
END
$$;
SELECT array_agg(test.set_carried(i)) AS ids FROM generate_series(1, 60) i \gset
SELECT jobq.resume('sets');
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1;
SELECT note, count(*), count(DISTINCT job), max(tenants) FROM test.set_done GROUP BY note ORDER BY note;
SELECT jobq.alter_queue('sets', tenant => 'none', carry => '{}');

-- a call takes as many jobs as their limits permit; jobs with a key that is free from the start run alone
SELECT jobq.register('set_limited', 'test.set_note(jobq.job_context[])', queue => 'sets', max_running => 3);
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_limited')) AS limited FROM generate_series(1, 20) i \gset
SELECT array_agg(jobq.enqueue('set_note', group_key => 'g' || i % 2)) AS grouped FROM generate_series(1, 20) i \gset
SELECT array_agg(jobq.enqueue('set_note', unique_key => 'k' || i, uniqueness => '{"until": "start"}')) AS started FROM generate_series(1, 5) i \gset
SELECT array_agg(jobq.enqueue('set_note', unique_key => 'k' || i)) AS finished FROM generate_series(6, 10) i \gset
SELECT jobq.resume('sets');
SELECT state, count(*) FROM jobq.wait_many(:'limited'::bigint[] || :'grouped'::bigint[] || :'started'::bigint[] || :'finished'::bigint[], '5 min') GROUP BY 1;
SELECT count(*), count(DISTINCT job), max(jobs) FILTER (WHERE job = ANY (:'limited'::bigint[])) <= 3 AS limited, max(jobs) FILTER (WHERE job = ANY (:'grouped'::bigint[])) > 1 AS grouped, max(jobs) FILTER (WHERE job = ANY (:'started'::bigint[])) AS alone FROM test.set_done;
SELECT test.until($$ (SELECT running FROM jobq.limits WHERE kind = 'set_limited') = 0 $$);
-- the keys are free
SELECT count(jobq.enqueue('set_note', unique_key => 'k' || i)) FROM generate_series(1, 10) i;
SELECT test.until($$ NOT EXISTS (SELECT FROM jobq_internal.job WHERE kind = 'set_note') $$);

-- limits of the kind, of the queue, of a limiter, and by rate
SELECT jobq.create_limiter('set_many', max_running => 60);
SELECT jobq.create_limiter('set_tenant', max_running => 4, by => 'tenant');
SELECT jobq.register('set_limited', 'test.set_note(jobq.job_context[])', queue => 'sets', max_running => 50);
SELECT jobq.register('set_rated', 'test.set_note(jobq.job_context[])', queue => 'sets', rate => '1000 per second burst 40');
SELECT jobq.register('set_named', 'test.set_note(jobq.job_context[])', queue => 'sets', limiters => '{set_many}');
SELECT jobq.register('set_keyed', 'test.set_note(jobq.job_context[])', queue => 'sets', limiters => '{set_tenant}');
SELECT jobq.alter_queue('sets', max_running => 70, tenant => 'header tenant');
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_limited')) AS limited FROM generate_series(1, 100) i \gset
SELECT array_agg(jobq.enqueue('set_named')) AS named FROM generate_series(1, 100) i \gset
SELECT array_agg(jobq.enqueue('set_rated')) AS rated FROM generate_series(1, 60) i \gset
SELECT array_agg(jobq.enqueue('set_keyed', headers => '{"tenant": "t"}')) AS keyed FROM generate_series(1, 10) i \gset
SELECT jobq.resume('sets');
SELECT state, count(*) FROM jobq.wait_many(:'limited'::bigint[] || :'named'::bigint[] || :'rated'::bigint[] || :'keyed'::bigint[], '5 min') GROUP BY 1;
SELECT k.kind, count(*), count(DISTINCT job), max(jobs) <= most AS fits, count(DISTINCT call) < 100 OR k.kind = 'set_rated' AS few
	FROM (VALUES ('set_limited', :'limited'::bigint[], 50), ('set_named', :'named', 60), ('set_rated', :'rated', 100), ('set_keyed', :'keyed', 4)) k (kind, ids, most)
	JOIN test.set_done d ON d.job = ANY (k.ids) GROUP BY k.kind, most ORDER BY k.kind;
SELECT test.until($$ NOT EXISTS (SELECT FROM jobq.limits WHERE running > 0) $$);

-- workers that are terminated return the permits of all jobs
CREATE FUNCTION test.set_wait(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(4711);
END
$$;
SELECT jobq.register('set_limited', 'test.set_wait(jobq.job_context[])', queue => 'sets', max_running => 5);
SELECT pg_advisory_lock(4711);
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_limited')) AS limited FROM generate_series(1, 12) i \gset
SELECT jobq.resume('sets');
SELECT test.until($$ (SELECT count(*) FROM jobq.jobs WHERE kind = 'set_limited' AND state = 'running') = 5 $$);
SELECT running FROM jobq.limits WHERE kind = 'set_limited';
SELECT count(*) > 0 AS some FROM (SELECT pg_terminate_backend(pid) FROM jobq.workers WHERE kind = 'set_limited') w;
SELECT pg_advisory_unlock(4711);
SELECT state, count(*) FROM jobq.wait_many(:'limited'::bigint[], '5 min') GROUP BY 1;
SELECT test.until($$ NOT EXISTS (SELECT FROM jobq.limits WHERE running > 0) $$);
SELECT jobq.alter_queue('sets', max_running => 0, tenant => 'none');

-- expired and cancelled jobs do not run
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_note', expires_at => CASE WHEN i = 2 THEN clock_timestamp() + interval '1 ms' END) ORDER BY i) AS ids FROM generate_series(1, 4) i \gset
SELECT jobq.cancel((:'ids'::bigint[])[3]);
SELECT test.until($$ clock_timestamp() > (SELECT max(enqueued_at) + interval '10 ms' FROM jobq.jobs WHERE kind = 'set_note') $$);
SELECT jobq.resume('sets');
SELECT state FROM jobq.wait_many(:'ids'::bigint[], '5 min');
SELECT count(*) FROM test.set_done;

-- batches, events and workflows
CREATE FUNCTION test.set_event(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES (payload ->> 'event') $$;
TRUNCATE test.trace;
SELECT jobq.register('set_event', 'test.set_event(jsonb)', queue => 'first');
SELECT jobq.on_event('completed', 'set_event', kind => 'set_note');
SELECT jobq.create_batch(on_success => '{"kind": "set_event", "payload": {"event": "batch"}}') AS batch \gset
SELECT jobq.pause('sets');
SELECT count(*) FROM jobq.add_jobs(:batch, 'set_note', array_fill('{}'::jsonb, ARRAY[30]));
SELECT jobq.start_batch(:batch);
SELECT jobq.resume('sets');
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT test.until($$ (SELECT count(*) FROM test.trace) = 31 $$);
SELECT note, count(*) FROM test.trace GROUP BY 1 ORDER BY 1;
SELECT jobq.off_event('completed', 'set_event', kind => 'set_note');

-- perform(), dry_run() and work() call the handler with a single job
SELECT jobq.perform('set_results', '{"i": 5}'), (jobq.dry_run('set_results', '{"i": 7}')).result;
SELECT error, sqlstate FROM jobq.dry_run('set_note', '{"bad": true}');
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT count(jobq.enqueue('set_note', queue => 'manual')) FROM generate_series(1, 3) i;
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT test.until($$ (SELECT count(*) FROM test.set_done) = 3 $$);
SELECT jobq.resume('sets');

-- cancel() of a running job; the remaining jobs run again
CREATE FUNCTION test.set_gate(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(4711);
	INSERT INTO test.set_done SELECT j.id FROM unnest(jobs) j;
END
$$;
SELECT jobq.register('set_gate', 'test.set_gate(jobq.job_context[])', queue => 'sets');
TRUNCATE test.set_done;
SELECT pg_advisory_lock(4711);
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_gate') ORDER BY i) AS ids FROM generate_series(1, 6) i \gset
SELECT jobq.resume('sets');
SELECT test.until(format('(SELECT count(*) FROM jobq.jobs WHERE id = ANY (%L) AND state = ''running'') = 6', :'ids'));
SELECT array_agg(state) FROM test.states(:'ids'::bigint[]);
-- explain() shows the worker of each job, and the call
SELECT count(*) FILTER (WHERE e.reason = 'running') AS running, bool_and(e.reason <> 'together' OR e.detail ~ '^[2-6] jobs run in one call of the handler, of which the first is job \d+$') AS together
	FROM unnest(:'ids'::bigint[]) id, jobq.explain(id) e;
SELECT jobq.cancel((:'ids'::bigint[])[4]);
SELECT state, error FROM test.outcome((:'ids'::bigint[])[4]);
SELECT pg_advisory_unlock(4711);
SELECT state, attempt FROM jobq.wait_many(:'ids'::bigint[], '5 min');
SELECT count(*), count(DISTINCT job) FROM test.set_done;

-- the timeout applies to the call; a slow job fails alone
CREATE FUNCTION test.set_slow(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(600) FROM unnest(jobs) j WHERE j.payload ? 'slow';
	INSERT INTO test.set_done SELECT j.id FROM unnest(jobs) j;
END
$$;
SELECT jobq.register('set_slow', 'test.set_slow(jobq.job_context[])', queue => 'sets', timeout => '200 ms', max_attempts => 1);
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_slow', CASE WHEN i = 2 THEN '{"slow": 1}' ELSE '{}' END::jsonb, timeout => CASE WHEN i = 2 THEN interval '200 ms' ELSE interval '10 min' END) ORDER BY i) AS ids FROM generate_series(1, 3) i \gset
SELECT jobq.resume('sets');
SELECT state, error FROM jobq.wait_many(:'ids'::bigint[], '5 min');
SELECT count(*), count(DISTINCT job) FROM test.set_done;

-- a kind gets a set handler, and a single handler again, while jobs wait
SELECT jobq.register('set_changing', 'test.echo(jsonb)', queue => 'sets');
TRUNCATE test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_changing', '{}')) AS ids FROM generate_series(1, 10) i \gset
SELECT jobq.register('set_changing', 'test.set_note(jobq.job_context[])', queue => 'sets');
SELECT jobq.resume('sets');
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1;
SELECT count(*), count(DISTINCT job) FROM test.set_done;
SELECT jobq.pause('sets');
SELECT array_agg(jobq.enqueue('set_changing', '{}')) AS ids FROM generate_series(1, 10) i \gset
SELECT jobq.register('set_changing', 'test.echo(jsonb)', queue => 'sets');
SELECT jobq.resume('sets');
SELECT state, result, count(*) FROM jobq.wait_many(:'ids'::bigint[], '5 min') GROUP BY 1, 2;

SELECT jobq.unregister(kind) FROM jobq.kinds WHERE chunk IS NOT NULL OR kind IN ('set_changing', 'set_event') ORDER BY kind;
SELECT jobq.drop_limiter(name) FROM unnest('{set_many,set_tenant}'::text[]) name;
TRUNCATE test.trace;
