-- The traceparent in a job's headers: format, visibility in the session, and inheritance by other jobs.

-- the format
SELECT h, jobq_internal.traceparent(h) FROM unnest(ARRAY[
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}',
	'{"x": 1, "traceparent": "cc-0000000000000000000000000000000a-b000000000000000-00"}',
	'{"traceparent": "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}',
	'{"traceparent": "00-00000000000000000000000000000000-00f067aa0ba902b7-01"}',
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"}',
	'{"traceparent": "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}',
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 "}',
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"}',
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n"}',
	'{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01"}',
	'{"traceparent": "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}',
	'{"traceparent": ""}', '{"traceparent": 1}', '{"traceparent": null}', '{"traceparent": {}}',
	'{"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}',
	'["traceparent"]', '"traceparent"', '{}']::jsonb[]) WITH ORDINALITY u (h, n) ORDER BY n;
SELECT jobq_internal.traceparent(NULL) IS NULL AS none;
-- The examples of W3C Trace Context and of its test suite, with future versions
SELECT h, jobq_internal.traceparent(jsonb_build_object('traceparent', h)) FROM unnest(ARRAY[
	'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00',
	'00-12345678901234567890123456789012-1234567890123456-01.', '00-12345678901234567890123456789012-1234567890123456-01-what-the-future-will-be-like',
	'cc-12345678901234567890123456789012-1234567890123456-01', 'cc-12345678901234567890123456789012-1234567890123456-01-what-the-future-will-be-like',
	'cc-12345678901234567890123456789012-1234567890123456-01.what-the-future-will-be-like', 'cc-12345678901234567890123456789012-1234567890123456-0a',
	'ff-12345678901234567890123456789012-1234567890123456-01', '.0-12345678901234567890123456789012-1234567890123456-01',
	'0-12345678901234567890123456789012-1234567890123456-01', '00-ab000000000000000000000000000000-00ff-01']) WITH ORDINALITY u (h, n) ORDER BY n;

\set trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
\set other 00-11111111111111111111111111111111-2222222222222222-00
SELECT jsonb_build_object('traceparent', :'trace') AS traced, jsonb_build_object('traceparent', :'other') AS others \gset
CREATE TABLE test.traces (note text);
-- shows the trace in the session
CREATE FUNCTION test.trace_shown() RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' | ', current_setting('application_name'), (SELECT a.application_name FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()))
$$;
CREATE FUNCTION test.traced(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fails' THEN
		RAISE EXCEPTION 'it fails';
	END IF;
	RETURN jsonb_build_array(test.trace_shown(), jobq_internal.traceparent(job.headers));
END
$$;
CREATE PROCEDURE test.traced_commits(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	INSERT INTO test.traces VALUES (test.trace_shown());
END
$$;
SELECT jobq.register('traced', 'test.traced(jsonb, jobq.job_context)', queue => 'first', backoff => 'fixed 1ms'),
	jobq.register('traced_commits', 'test.traced_commits(jsonb)', queue => 'first');

-- a worker's application_name shows the trace of its current job only
SELECT jobq.enqueue('traced', headers => :'traced') AS one, jobq.enqueue('traced') AS two,
	jobq.enqueue('traced', headers => '{"traceparent": "00-''; DROP TABLE x; --"}') AS three \gset
SELECT state, result FROM jobq.wait_many(ARRAY[:one, :two, :three]);
SELECT jobq.enqueue('traced_commits', headers => :'traced') AS one, jobq.enqueue('traced') AS two \gset
SELECT state, result FROM jobq.wait_many(ARRAY[:one, :two]);
SELECT note FROM test.traces;
TRUNCATE test.traces;
-- a carried application_name takes precedence
SELECT jobq.alter_queue('first', carry => '{application_name}');
SET application_name = 'mine';
SELECT jobq.enqueue('traced', headers => :'traced') AS one \gset
SELECT state, result FROM jobq.wait(:one);
RESET application_name;
SELECT jobq.alter_queue('first', carry => '{}');

-- the context of errors
SELECT jobq.enqueue('traced', '{"fails": true}', max_attempts => 1, headers => :'traced') AS one,
	jobq.enqueue('traced', '{"fails": true}', max_attempts => 1) AS two \gset
SELECT state FROM jobq.wait_many(ARRAY[:one, :two]);
SELECT regexp_replace(e ->> 'context', 'job \d+', 'job N') FROM jobq.dead_letters f, jsonb_array_elements(f.errors) e WHERE f.id IN (:one, :two) ORDER BY f.id;

-- jobq.work() shows the trace while the job runs
SELECT jobq.enqueue('traced', queue => 'manual', headers => :'traced') AS one \gset
CALL jobq.work('{manual}', once => true);
SELECT state, result ->> 0 = concat_ws(' | ', 'jobq ' || :'trace', 'jobq ' || :'trace') AS shown, test.trace_shown() !~ 'jobq' AS over FROM jobq.wait(:one);

-- jobs enqueued by a handler inherit the trace of its job, unless they have a trace
CREATE FUNCTION test.trace_parent(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	batch bigint;
BEGIN
	PERFORM jobq.enqueue('echo', queue => 'manual', tags => '{plain}');
	PERFORM jobq.enqueue('echo', queue => 'manual', headers => '{"a": 1}', tags => '{with}');
	PERFORM jobq.enqueue('echo', queue => 'manual', headers => '{"traceparent": null}', tags => '{none}');
	PERFORM jobq.enqueue('echo', queue => 'manual', headers => payload, tags => '{own}');
	PERFORM jobq.enqueue('echo', queue => 'manual', headers => '["a"]', tags => '{array}');
	PERFORM jobq.enqueue_many('echo', '{1,2}', queue => 'manual', tags => '{many}');
	INSERT INTO jobq.inbox (kind, queue, tags) VALUES ('echo', 'manual', '{inbox}');
	PERFORM jobq.enqueue_sql('SELECT 1', queue => 'manual', tags => '{sql}');
	PERFORM jobq.perform('trace_enqueuer', '"performed"');
	batch := jobq.create_batch(on_success => '{"kind": "echo", "queue": "manual", "tags": ["callback"], "headers": {"b": 2}}');
	PERFORM jobq.add_jobs(batch, 'echo', '{1}', '{"queue": "second"}');
	PERFORM jobq.start_batch(batch);
	PERFORM jobq.create_workflow('{"steps": [{"name": "one", "kind": "echo", "queue": "second"},
		{"name": "two", "kind": "echo", "queue": "manual", "needs": ["one"], "tags": ["step"]}]}');
	PERFORM jobq.schedule('regress_traced', '0 0 1 1 *', 'echo', options => '{"queue": "manual", "tags": ["tick"]}');
	RETURN NULL;
END
$$;
CREATE FUNCTION test.trace_enqueuer(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT to_jsonb(jobq.enqueue('echo', queue => 'manual', tags => ARRAY[payload #>> '{}']))
$$;
SELECT jobq.register('trace_parent', 'test.trace_parent(jsonb)'), jobq.register('trace_enqueuer', 'test.trace_enqueuer(jsonb)');
SELECT jobq.enqueue('trace_parent', :'others', headers => :'traced') AS one \gset
SELECT state, error FROM jobq.wait(:one);
SELECT jobq.enqueue('trace_enqueuer', '"untraced"') AS one \gset
SELECT state FROM jobq.wait(:one);
SELECT test.until($$EXISTS (SELECT FROM jobq.live_jobs WHERE tags = '{callback}') AND EXISTS (SELECT FROM jobq.live_jobs WHERE tags = '{step}' AND state = 'ready')$$);
SELECT tags[1], headers - 'batch_id' AS headers FROM jobq.live_jobs WHERE queue = 'manual' ORDER BY tags[1] COLLATE "C", id;
-- jobs of schedules have no parent
SELECT jobq.run_schedule('regress_traced') > 0 AS ran;
SELECT headers ? 'schedule' AS scheduled, jobq_internal.traceparent(headers) FROM jobq.live_jobs WHERE tags = '{tick}';
SELECT jobq.unschedule('regress_traced');
SELECT count(*) FROM jobq.cancel_many(queue => 'manual');

-- the on_failure job inherits the trace, too
CREATE FUNCTION test.trace_failed(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.traces VALUES (coalesce(jobq_internal.traceparent(job.headers), 'none'))
$$;
SELECT jobq.register('traced', 'test.traced(jsonb, jobq.job_context)', on_failure => 'test.trace_failed(jsonb, jobq.job_context)');
SELECT jobq.enqueue('traced', '{"fails": true}', max_attempts => 1, headers => :'traced') AS one \gset
SELECT test.until('EXISTS (SELECT FROM test.traces)');
SELECT note FROM test.traces;

SELECT jobq.unregister(k) FROM unnest('{traced,traced_commits,trace_parent,trace_enqueuer}'::text[]) k;
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE kind = 'traced';
DROP TABLE test.traces;
