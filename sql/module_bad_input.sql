-- Errors caused by users, and their messages.

-- kind and payload
SELECT jobq.enqueue('nothing');
SELECT jobq.enqueue('');
SELECT code, length(message) FROM test.error('SELECT jobq.enqueue(repeat(''x'', 1000))');
SELECT jobq.enqueue(NULL);
SELECT jobq.enqueue('echo', NULL);
SELECT jobq.enqueue('on_failure:echo');
SELECT jobq.enqueue_many('nothing', '{1}');
SELECT jobq.enqueue_many('echo', NULL);
SELECT jobq.enqueue_many(NULL, '{1}');
SELECT jobq.enqueue_many('echo', '{1,NULL,3}');
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SET jobq.max_payload = '1 kB';
SELECT jobq.enqueue('echo', to_jsonb(repeat('x', 900))) AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT jobq.enqueue('echo', to_jsonb(repeat('x', 1200)));
SELECT jobq.enqueue_many('echo', ARRAY['1', to_jsonb(repeat('x', 1200))]);
INSERT INTO jobq.inbox (kind, payload) VALUES ('echo', to_jsonb(repeat('x', 1200)));
-- headers count towards max_payload
SELECT jobq.enqueue('echo', to_jsonb(repeat('x', 600)), headers => jsonb_build_object('h', repeat('y', 500)));
SELECT jobq.enqueue_many('echo', ARRAY[to_jsonb(repeat('x', 600))], headers => jsonb_build_object('h', repeat('y', 500)));
RESET jobq.max_payload;

-- nesting
CREATE FUNCTION test.deep(levels int) RETURNS jsonb LANGUAGE sql AS $$ SELECT (repeat('[', levels) || repeat(']', levels))::jsonb $$;
SELECT jobq.enqueue('echo', test.deep(1001));
SELECT jobq.enqueue('echo', headers => jsonb_build_object('h', test.deep(1000)));
SELECT jobq.enqueue('echo', test.deep(1000), headers => jsonb_build_object('h', test.deep(999))) AS id \gset
SELECT state, result = test.deep(1000) AS same FROM jobq.wait(:id);

-- nesting of results, and long errors
CREATE FUNCTION test.too_deep() RETURNS jsonb LANGUAGE sql AS $$ SELECT test.deep(1001) $$;
CREATE FUNCTION test.wordy() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE '%', repeat('ä', 1000000); END $$;
SELECT jobq.register('too_deep', 'test.too_deep()', max_attempts => 1), jobq.register('wordy', 'test.wordy()', max_attempts => 1);
SELECT jobq.enqueue('too_deep') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.enqueue('wordy') AS id \gset
SELECT state, octet_length(error) FROM jobq.wait(:id);
SELECT octet_length(errors -> 0 ->> 'message') FROM jobq.dead_letters WHERE id = :id;
SELECT jobq.enqueue('echo', to_jsonb(repeat('x', 900)), queue => 'manual') AS small, jobq.enqueue('echo', to_jsonb(repeat('x', 1200)), queue => 'manual', max_attempts => 1) AS large \gset
SET jobq.max_payload = '1 kB';
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, error FROM jobq.wait_many(ARRAY[:small, :large]::bigint[], '0');
RESET jobq.max_payload;
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE kind IN ('too_deep', 'wordy') OR error ~ '^result of';
SELECT jobq.unregister('too_deep'), jobq.unregister('wordy');

-- queue
SELECT jobq.enqueue('echo', queue => '');
SELECT jobq.enqueue('echo', queue => repeat('q', 52));

-- times
SELECT jobq.enqueue('echo', run_at => now(), delay => '1 s');
SELECT jobq.enqueue('echo', run_at => 'infinity');
SELECT jobq.enqueue('echo', run_at => '-infinity');
SELECT jobq.enqueue('echo', delay => '-1 s');
SELECT jobq.enqueue('echo', delay => '1000 years');
SELECT jobq.enqueue('echo', timeout => '0');
SELECT jobq.enqueue('echo', timeout => '-1 s');
SELECT jobq.enqueue('echo', timeout => '1 month');

-- attempts and backoff
SELECT jobq.enqueue('echo', max_attempts => -1);
SELECT e.code, e.message FROM unnest(ARRAY['', 'fixed', 'fixed five', 'fixed -5s', 'fixed 5 parsecs', 'fixed 1 month', 'fixed 2 years', 'exponential 5s cap 1 mon', 'fixed 5s 6s', 'fixed 5s cap 10s', 'fixedly 5s',
		'fixed nan s', 'fixed 1e300d', 'fixed 367d', 'exponential', 'exponential 5s cap', 'exponential 5s cap x', 'exponential 5s jitter', 'exponential 5s jitter 20',
		'exponential 5s jitter 101%', 'exponential 5s jitter -1%', 'list', 'list 1s,', 'list 1s 2s', 'list ,1s', 'random 5s', 'list ' || repeat('1s,', 32) || '1s'])
	WITH ORDINALITY b (backoff, n), test.error(format('SELECT jobq.enqueue(''echo'', backoff => %L)', b.backoff)) e ORDER BY n;
SELECT jobq.enqueue('echo', backoff => 'fixed');
SELECT jobq.enqueue('echo', backoff => 'list 5s, 1 month');
SELECT jobq.enqueue('echo', backoff => 'exponential 5 s cap 400 days');
-- valid backoffs
CREATE TABLE test.good AS SELECT b, jobq.enqueue('echo', backoff => b, queue => 'manual') AS id
FROM unnest(ARRAY['fixed 0s', ' FIXED  1.5 h ', 'fixed 366d', 'fixed 5', 'fixed 5 weeks', 'fixed minute', 'fixed 5 min jitter 0%', 'exponential 5s jitter 100% cap 1m', 'list 1s', 'list 1s , 2 min,3h,4d jitter 5%']) b;
SELECT count(*), bool_and(jobq.cancel(id)) FROM test.good;
DROP TABLE test.good;

-- registration
SELECT jobq.register(NULL, 'test.echo(jsonb)');
SELECT jobq.register('x', NULL);
SELECT jobq.register('', 'test.echo(jsonb)');
SELECT jobq.register(repeat('x', 117), 'test.echo(jsonb)') IS NULL;
SELECT jobq.register('on_failure:x', 'test.echo(jsonb)');
CREATE FUNCTION test.no_handler(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
SELECT jobq.register('x', 'test.no_handler(jsonb)');
SELECT jobq.register('x', '0');
SELECT jobq.register('x', 'test.echo');
SELECT jobq.register('x', 'test.echo(jsonb)', on_failure => 'echo');
CREATE FUNCTION pg_temp.passing(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('x', 'pg_temp.passing(jsonb)');
DROP FUNCTION pg_temp.passing;
SELECT jobq.register('x', 'test.echo(jsonb)', queue => '');
SELECT jobq.register('x', 'test.echo(jsonb)', max_attempts => -1);
SELECT jobq.register('x', 'test.echo(jsonb)', max_exceptions => 0);
SELECT jobq.register('x', 'test.echo(jsonb)', backoff => 'never');
SELECT jobq.register('x', 'test.echo(jsonb)', timeout => '0');
SELECT jobq.register('x', 'test.echo(jsonb)', on_failure => 'test.no_handler(jsonb)');
SELECT jobq.unregister('x');
SELECT jobq.register('x', 'test.nothing(jsonb)');
SELECT jobq.register('x', 'echo(jsonb)');

-- queues
\set SHOW_CONTEXT never
SELECT jobq.create_queue('');
SELECT e.code, e.message FROM test.error('SELECT jobq.create_queue(NULL)') e;
SELECT e.* FROM test.error('SELECT jobq.create_queue(repeat(''q'', 52))') e;
SELECT e.* FROM test.error('SELECT jobq.create_queue(''x'', notify => ''loud'')') e;
SELECT e.* FROM test.error('SELECT jobq.create_queue(''x'', keep => ''some'')') e;
SELECT e.* FROM test.error('SELECT jobq.alter_queue(''x'')') e;
SELECT e.* FROM test.error('SELECT jobq.alter_queue(''manual'', keep => ''some'')') e;
SELECT count(*) FROM jobq.queues WHERE name = 'x';

-- limits for calls by a handler
CREATE FUNCTION test.asks_too_much(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SELECT jobq.' || (payload #>> '{}'); END $$;
SELECT jobq.register('asks_too_much', 'test.asks_too_much(jsonb)', max_attempts => 1);
SELECT c, e.* FROM unnest(ARRAY['snooze(''-1 s'')', 'snooze(''1000 years'')', 'snooze(''-1 s'', true)', 'set_progress(-1)', 'set_progress(100.1)', 'set_progress(''nan'')'])
	WITH ORDINALITY u (c, n), test.error(format('SELECT jobq.perform(''asks_too_much'', %L)', to_jsonb(c))) e ORDER BY n;
-- a null delay is no delay
SELECT jobq.enqueue('asks_too_much', '"snooze(NULL)"', max_attempts => 1) AS id \gset
SELECT * FROM test.outcome(:id);
-- and other nulls have no effect
SELECT jobq.enqueue('asks_too_much', '"set_progress(50, NULL)"') AS id \gset
SELECT * FROM test.outcome(:id);
-- but the end of a job needs no reason
SELECT jobq.enqueue('asks_too_much', '"cancel_current(NULL)"') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.enqueue('asks_too_much', '"reject_current(NULL)"', max_attempts => 2) AS id \gset
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);

-- wait
SELECT * FROM test.error('SELECT jobq.wait(1, ''-1 s'')');
SELECT * FROM test.error('SELECT jobq.wait(1, ''1000 years'')');
SELECT * FROM test.error('SELECT jobq.test_clock(''-1 s'')');
SELECT node, e.* FROM unnest('{-1,1022,1024}'::int[]) node, test.error(format('SELECT jobq.adopt(node => %s)', node)) e;
SELECT jobq.adopt(node => 1023) AS same_node;

-- A driver may leave the types of parameters open.  Every function can then be called with
-- each number of arguments, because this number identifies the function.
SELECT proname, n, code, message FROM
	(SELECT DISTINCT proname, n FROM pg_proc, generate_series(pronargs - pronargdefaults, pronargs::int) n
		WHERE pronamespace = 'jobq'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype AND prorettype <> 'event_trigger'::regtype) f,
	test.error(format('PREPARE "%s %s" AS SELECT jobq.%I(%s)', proname, n, proname, (SELECT string_agg('$' || i, ', ') FROM generate_series(1, n) i)))
	WHERE message <> 'no error' ORDER BY 1, 2;
SELECT count(*) >= 200 AS many, bool_and(parameter_types::text !~ 'unknown') AS resolved FROM pg_prepared_statements;
SELECT name, parameter_types FROM pg_prepared_statements WHERE name ~ '^(wait|wait_many|status|ack) ' ORDER BY name COLLATE "C";
DEALLOCATE ALL;
SELECT proname AS overloaded FROM pg_proc WHERE pronamespace = 'jobq'::regnamespace AND prokind = 'p' GROUP BY 1 HAVING count(*) > 1;

-- settings
ALTER SYSTEM SET jobq.workers = 'high';
ALTER SYSTEM SET jobq.workers = 'high=';
ALTER SYSTEM SET jobq.workers = 'high=many';
ALTER SYSTEM SET jobq.workers = 'high=-1';
ALTER SYSTEM SET jobq.workers = 'high=1025';
ALTER SYSTEM SET jobq.workers = '=4';
ALTER SYSTEM SET jobq.workers = 'high,=4';
ALTER SYSTEM SET jobq.workers = ',high=4';
ALTER SYSTEM SET jobq.workers = 'high=4;;low=4';
ALTER SYSTEM SET jobq.databases = 'a,,b';
\set VERBOSITY sqlstate
ALTER SYSTEM SET jobq.notify_interval = '-1';
ALTER SYSTEM SET jobq.poll_interval = 0;
ALTER SYSTEM SET jobq.archive_retention = '1 min';
ALTER SYSTEM SET jobq.cancel_grace = '1 ms';
ALTER SYSTEM SET jobq.default_timeout = 'soon';
SET jobq.max_payload = 0;
SET jobq.max_payload = '2 GB';
SET jobq.workers = 'high=4';
SET jobq.max_workers = 1;
SET jobq.notify_interval = 1;
SET ROLE regress_jobq_alice;
SET jobq.max_payload = '1 kB';
SET jobq.create_queues = off;
RESET ROLE;
\set VERBOSITY default
-- the properties of the settings
SELECT name, boot_val, unit, context, vartype, min_val, max_val FROM pg_settings WHERE name LIKE 'jobq.%' ORDER BY name COLLATE "C";
-- the slots in shared memory that these settings provide
SELECT slots, setting, most, twice FROM jobq_internal.capacity();
