-- Options of enqueue().
CREATE FUNCTION test.context(payload jsonb, job jobq.job_context) RETURNS jsonb
LANGUAGE sql AS $$
	SELECT to_jsonb(job) - 'id' - 'handler_version' - 'enqueued_at' - 'run_at'
		|| jsonb_build_object('ready', job.run_at <= clock_timestamp(), 'in_order', job.enqueued_at <= clock_timestamp(),
			'same', job = jobq.current_job())
$$;
SELECT jobq.register('context', 'test.context(jsonb, jobq.job_context)');

-- only the kind
SELECT jobq.enqueue('context') AS id \gset
SELECT jsonb_pretty((test.outcome(:id)).result);

-- all data passed to the handler
SELECT jobq.enqueue('context', '{"n": 1}', queue => 'mail', priority => -5, max_attempts => 7,
	headers => '{"trace_id": "abc"}', run_at => '2001-01-01') AS id \gset
SELECT jsonb_pretty((test.outcome(:id)).result);
SELECT state, kind, queue, priority, role = current_user::regrole AS own, attempt, max_attempts, payload, headers, error, errors, worker,
	run_at = '2001-01-01' AS run_at, started_at <= finished_at AS started, enqueued_at <= started_at AS enqueued
FROM jobq.jobs WHERE id = :id;

-- a payload can be any JSON value
SELECT array_agg(jobq.enqueue('echo', payload) ORDER BY n) AS ids
FROM unnest(ARRAY['null', 'true', '0', '"\u00e4\ud83d\ude00"', '[]', '[1, [2]]', '{"a": {"b": null}}']::jsonb[])
	WITH ORDINALITY AS p (payload, n) \gset
SELECT state, result, jsonb_typeof(result) FROM jobq.wait_many(:'ids'::bigint[]);

-- also a large payload, compressed or out of line
CREATE FUNCTION test.digest(payload jsonb) RETURNS jsonb
LANGUAGE sql AS $$ SELECT to_jsonb(md5(payload #>> '{}')) $$;
SELECT jobq.register('digest', 'test.digest(jsonb)');
SELECT jobq.enqueue('digest', to_jsonb(repeat('x', 1000000))) AS id \gset
SELECT (test.outcome(:id)).result #>> '{}' = md5(repeat('x', 1000000)) AS same;
SELECT string_agg(md5(i::text), '') AS noise FROM generate_series(1, 1000) i \gset
SELECT jobq.enqueue('digest', to_jsonb(:'noise'::text), headers => to_jsonb(:'noise'::text)) AS id \gset
SELECT (test.outcome(:id)).result #>> '{}' = md5(:'noise') AS same;
SELECT payload #>> '{}' = :'noise' AS payload, headers #>> '{}' = :'noise' AS headers FROM jobq.jobs WHERE id = :id;

-- the result, too
CREATE FUNCTION test.blow_up(payload jsonb) RETURNS jsonb
LANGUAGE sql AS $$ SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 1000) i $$;
SELECT jobq.register('blow_up', 'test.blow_up(jsonb)');
SELECT jobq.enqueue('blow_up') AS id \gset
SELECT (test.outcome(:id)).result #>> '{}' = :'noise' AS same;

-- ids grow
SELECT bool_and(next > id) FROM (
	SELECT id, lead(id) OVER (ORDER BY n) AS next
	FROM (SELECT jobq.enqueue('echo') AS id, n FROM generate_series(1, 10) n) i) j;

-- delay and run_at
SELECT jobq.enqueue('note', '"late"', delay => '1 hour') AS delayed,
	jobq.enqueue('note', '"later"', run_at => now() + '1 day') AS later \gset
SELECT state, attempt, started_at, finished_at, run_at - enqueued_at = '1 hour' AS an_hour FROM jobq.status(:delayed);
SELECT state, run_at > enqueued_at + '23 hours' AS a_day FROM jobq.status(:later);
SELECT jobq.cancel(:delayed), jobq.cancel(:later);

-- defaults of the kind, and options with precedence over the defaults
SELECT jobq.register('with_defaults', 'test.context(jsonb, jobq.job_context)', queue => 'reports', max_attempts => 9);
SELECT jobq.enqueue('with_defaults') AS id \gset
SELECT result ->> 'queue' AS queue, result ->> 'max_attempts' AS max_attempts FROM test.outcome(:id);
SELECT jobq.enqueue('with_defaults', queue => 'mail', max_attempts => 2) AS id \gset
SELECT result ->> 'queue' AS queue, result ->> 'max_attempts' AS max_attempts FROM test.outcome(:id);

-- queues are created at first use, unless create_queues is off
SELECT name, paused, notify, keep FROM jobq.queues WHERE name IN ('default', 'mail', 'reports') ORDER BY name COLLATE "C";
SET jobq.create_queues = off;
SELECT jobq.enqueue('echo', queue => 'unheard_of');
SELECT jobq.register('unheard_of', 'test.echo(jsonb)', queue => 'unheard_of');
RESET jobq.create_queues;
SELECT count(*) FROM jobq.queues WHERE name = 'unheard_of';

-- independent of search_path
SET search_path = '';
SELECT jobq.enqueue('echo', '1', queue => 'another') AS id \gset
SELECT state FROM jobq.wait(:id);
RESET search_path;

-- unusual names
SELECT jobq.register('weird "kind"; ü', 'test.echo(jsonb)', queue => 'weird "queue"; ü');
SELECT jobq.enqueue('weird "kind"; ü') AS id \gset
SELECT state, kind, queue FROM jobq.wait(:id);
SELECT jobq.register(repeat('k', 116), 'test.echo(jsonb)', queue => repeat('q', 51));
SELECT jobq.enqueue(repeat('k', 116)) AS id \gset
SELECT state, length(kind), length(queue) FROM jobq.wait(:id);

-- the priority of a kind is the default for its jobs
SELECT jobq.register('urgent', 'test.echo(jsonb)', queue => 'manual', priority => -7);
SELECT jobq.enqueue('urgent') AS a, jobq.enqueue('urgent', priority => 2) AS b, jobq.enqueue('urgent', priority => 0) AS c \gset
SELECT priority FROM jobq.jobs WHERE id IN (:a, :b, :c) ORDER BY id;
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('urgent', '{1,2}') id \gset
SELECT priority FROM jobq.jobs WHERE id = ANY (:'ids');
INSERT INTO jobq.inbox (kind) VALUES ('urgent') RETURNING id \gset
SELECT priority FROM jobq.jobs WHERE id = :id;
SELECT jobq.schedule('urgent', '@yearly', 'urgent');
SELECT jobq.run_schedule('urgent') AS id \gset
SELECT priority FROM jobq.jobs WHERE id = :id;
SELECT jobq.unschedule('urgent');
-- a registration without a priority takes the default again; waiting jobs keep theirs
SELECT jobq.register('urgent', 'test.echo(jsonb)', queue => 'manual');
SELECT kind, priority FROM jobq.kinds WHERE kind = 'urgent';
SELECT priority, count(*) FROM jobq.jobs WHERE kind = 'urgent' GROUP BY 1 ORDER BY 1;
SELECT jobq.cancel_many(kind => 'urgent'), jobq.unregister('urgent');
