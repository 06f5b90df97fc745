-- Consumers outside the database: reserve(), ack() and related functions.

SELECT jobq.create_queue('letters', open => true, mode => 'consumer');
SELECT jobq.create_queue('parcels', open => true, mode => 'consumer', lease => 'memory', keep => 'no_payload');
SELECT name, mode, lease FROM jobq.queues WHERE name IN ('letters', 'parcels', 'manual') ORDER BY name;
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');

-- The jobs that a consumer has reserved, stored for later statements.
CREATE TABLE test.held (n bigint GENERATED ALWAYS AS IDENTITY, id bigint, token bigint, queue text, kind text, payload jsonb,
	headers jsonb, attempt int, max_attempts int, enqueued_at timestamptz, lease_until timestamptz, context jsonb, tenant text, alone boolean);
GRANT ALL ON test.held TO PUBLIC;
CREATE FUNCTION test.reserve(queues text[] DEFAULT '{letters}', max int DEFAULT 1, lease interval DEFAULT '90s', wait interval DEFAULT '5 min')
RETURNS TABLE (queue text, payload jsonb, attempt int) LANGUAGE sql AS $$
	WITH kept AS (INSERT INTO test.held (id, token, queue, kind, payload, headers, attempt, max_attempts, enqueued_at, lease_until, context, tenant, alone)
		SELECT * FROM jobq.reserve($1, $2, $3, $4, 'tester') RETURNING *)
	SELECT queue, payload, attempt FROM kept ORDER BY n
$$;
-- Calls a function with the id and token of the last reservation of this payload; returns the code of an error.
CREATE FUNCTION test.say(function text, what jsonb, more text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	job test.held;
BEGIN
	SELECT * INTO job FROM test.held h WHERE h.payload = what ORDER BY n DESC LIMIT 1;
	EXECUTE format('SELECT jobq.%I(%s, %s%s)', function, job.id, job.token, more);
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
CREATE FUNCTION test.post(what jsonb, priority int DEFAULT 0, delay interval DEFAULT NULL, queue text DEFAULT 'letters', max_attempts int DEFAULT 3)
RETURNS void LANGUAGE sql AS $$
	SELECT jobq.enqueue('post', what, queue, priority, delay => delay, max_attempts => max_attempts, backoff => 'fixed 1h')
$$;
-- The outcome of the newest job with this payload.
CREATE FUNCTION test.fate(what jsonb, OUT state text, OUT attempt int, OUT result jsonb, OUT error text) LANGUAGE sql AS $$
	SELECT s.state, s.attempt, s.result, s.error
	FROM jobq.status((SELECT max(id) FROM (SELECT id, payload FROM jobq.jobs UNION ALL SELECT id, payload FROM test.held) j WHERE payload = what)) s
$$;

-- one job, without a handler
SELECT jobq.enqueue('post', '"first"', 'letters', headers => '{"trace": 7}', max_attempts => 5) AS id \gset
SELECT id = :id AS same, token, queue, kind, payload, headers, attempt, max_attempts, enqueued_at < now() AS enqueued, lease_until BETWEEN now() + '89s' AND clock_timestamp() + '91s' AS lease
FROM jobq.reserve('{letters}', wait => '5 min', consumer => 'postman') \gset
\echo :same :queue :kind :payload :headers :attempt :max_attempts :enqueued :lease
SELECT state, attempt, progress, started_at <= now() AS started FROM jobq.status(:id);
SELECT jobq.set_progress(:id, :token, 40, 'on the way');
SELECT state, progress, message FROM jobq.status(:id);
SELECT state, attempt, progress, message, started_at <= now() AS started FROM jobq.jobs WHERE id = :id;
SELECT type, consumer, role = current_user::regrole AS mine, state, running, started_at <= now() AS since FROM jobq.workers WHERE type = 'consumer';
SELECT ready, running FROM jobq.queues WHERE name = 'letters';
SELECT count(*) FROM jobq.reserve('{letters}');
SELECT jobq.ack(:id, :token, '{"delivered": true}');
SELECT state, attempt, result, started_at <= finished_at AS times FROM jobq.wait(:id);
SELECT count(*) FROM jobq.workers WHERE type = 'consumer';
-- a second ack()
SELECT * FROM test.error(format('SELECT jobq.ack(%s, %s)', :id, :token));

-- in order of queue, priority, time
SELECT test.post(to_jsonb(format('letter %s', n)), p) FROM (VALUES (1, 0), (2, 5), (3, -5), (4, 0)) v (n, p);
SELECT test.post(to_jsonb(format('parcel %s', n)), queue => 'parcels') FROM generate_series(1, 2) n;
CALL test.settle();
SELECT * FROM test.reserve('{parcels,letters}', 4);
SELECT * FROM test.reserve('{letters,parcels}', 10);
SELECT type, consumer, running FROM jobq.workers WHERE type = 'consumer';
-- arrays: all or nothing
SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM test.held \gset
SELECT * FROM test.error(format('SELECT jobq.ack_many(%L::bigint[] || 0::bigint, %L::bigint[] || 0::bigint)', :'ids', :'tokens'));
SELECT count(*) FROM jobq.jobs WHERE kind = 'post' AND state = 'running';
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[]);
SELECT state, count(*), count(payload) AS payloads FROM jobq.wait_many(:'ids'::bigint[]) JOIN jobq.jobs USING (id, state) GROUP BY 1;
SELECT jobq.ack_many('{}'::bigint[], '{}'::bigint[]);

-- more jobs than are archived at a time; a job listed twice, close together and far apart
SELECT count(*) FROM generate_series(1, 250) n, test.post(to_jsonb(n));
SELECT count(*), array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM jobq.reserve('{letters}', 250, wait => '5 min') \gset
\echo :count
SELECT d, code FROM unnest('{1,2,250}'::int[]) d,
	test.error(format('SELECT jobq.ack_many(%L::bigint[] || %s, %L::bigint[] || %s)', :'ids', (:'ids'::bigint[])[d], :'tokens', (:'tokens'::bigint[])[d])) ORDER BY d;
BEGIN;
SELECT jobq.ack((:'ids'::bigint[])[7], (:'tokens'::bigint[])[7]);
SELECT code FROM test.error(format('SELECT jobq.ack_many(%L::bigint[], %L::bigint[])', :'ids', :'tokens'));
ROLLBACK;
SELECT count(*) FROM jobq_internal.lease_slots();
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[]);
SELECT state, count(*) FROM jobq.jobs WHERE id = ANY (:'ids') GROUP BY 1;
SELECT count(*) FROM jobq_internal.lease_slots();

-- Reserves the next job, and repeats calls that return no job.
CREATE PROCEDURE test.next(INOUT what jsonb DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	WHILE what IS NULL LOOP
		SELECT r.payload INTO what FROM test.reserve(wait => '1 hour') r;
		COMMIT;
	END LOOP;
END
$$;
-- an expired job is not handed out, and its end is not delayed: a job sent after its end is delivered
CREATE FUNCTION test.answer(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT FROM jobq.wait(payload::bigint, '5 min'); SELECT test.post('"answer"') $$;
SELECT jobq.register('answer', 'test.answer(jsonb)');
SELECT jobq.enqueue('post', '"stale"', 'letters', expires_at => clock_timestamp() + '10 ms', delay => '300 ms') AS id \gset
SELECT jobq.enqueue('answer', to_jsonb(:id)) AS answer \gset
SET statement_timeout = '5 min';
CALL test.next();
SELECT test.say('ack', '"answer"');
SELECT state, attempt, error FROM jobq.wait(:id);
SELECT state FROM jobq.wait(:answer);
SELECT jobq.unregister('answer');
-- nor does a rewritten row delay the call
SELECT test.post('"anew"');
SELECT jobq.alter_queue('letters', tenant => 'header tenant', fair => 'jobs');
CALL test.next();
RESET statement_timeout;
SELECT jobq.alter_queue('letters', tenant => 'none', fair => 'off');
SELECT test.say('ack', '"anew"');

-- delay: not before its time, and then at once
SELECT test.post('"later"', delay => '1 hour');
SELECT * FROM test.reserve(wait => '10ms');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT * FROM test.reserve();
SELECT test.say('ack', '"later"');
SELECT jobq.test_clock('0') \g /dev/null
-- the old entry of a rewritten job does not hide the new entry
SELECT jobq.enqueue('post', '"old"', 'letters', unique_key => 'moved') AS id \gset
SELECT jobq.enqueue('post', '"new"', 'letters', unique_key => 'moved', uniqueness => '{"on_conflict": "replace"}') = :id AS same;
SELECT * FROM test.reserve(max => 2);
SELECT test.say('ack', '"new"');
-- a long name is truncated at a character boundary
SELECT test.post('"named"');
SELECT id, token FROM jobq.reserve('{letters}', wait => '5 min', consumer => repeat('é', 40)) \gset
SELECT length(consumer) FROM jobq_internal.lease WHERE token = :token;
SELECT jobq.ack(:id, :token);

-- nack: the next attempt by the backoff
SELECT test.post('"torn"');
SELECT * FROM test.reserve();
SELECT test.say('nack', '"torn"', ', ''wet''');
SELECT * FROM test.fate('"torn"');
SELECT test.say('ack', '"torn"');
SELECT * FROM test.reserve(wait => '10ms');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT * FROM test.reserve();
-- or after a delay
SELECT test.say('nack', '"torn"', ', ''too wet'', ''0''');
SELECT * FROM test.reserve();
-- the last attempt makes it a dead letter
SELECT test.say('nack', '"torn"');
SELECT state, attempt, error FROM test.fate('"torn"');
SELECT kind, attempt, sqlstate, error, (SELECT array_agg(e ->> 'message') FROM jsonb_array_elements(errors) e) FROM jobq.dead_letters WHERE queue = 'letters';
SELECT jobq.test_clock('0') \g /dev/null
-- a dead letter can be retried, under the same id
SELECT jobq.retry(id) FROM jobq.dead_letters WHERE queue = 'letters';
SELECT test.say('ack', '"torn"');
SELECT * FROM test.reserve();
-- reject: at once
SELECT test.say('reject', '"torn"', ', ''no such address''');
SELECT * FROM test.fate('"torn"');
SELECT sqlstate FROM jobq.dead_letters WHERE queue = 'letters';
SELECT test.say('reject', '"torn"', ', ''again''');
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE queue = 'letters';
-- release: the attempt is not charged
SELECT test.post('"back"');
SELECT * FROM test.reserve();
SELECT test.say('release', '"back"');
SELECT test.say('ack', '"back"');
SELECT * FROM test.fate('"back"');
SELECT * FROM test.reserve();
SELECT test.say('release', '"back"', ', ''1 hour''');
SELECT * FROM test.fate('"back"');
SELECT * FROM test.reserve(wait => '10ms');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT * FROM test.reserve();
SELECT jobq.test_clock('0') \g /dev/null
-- ... and the job may get another payload; log lines of the consumer are kept
SELECT jobq.enqueue('post', '{"step": 1}', 'letters', group_key => 'steps', headers => '{"h": 1}') AS id \gset
SELECT * FROM test.reserve();
SELECT jobq.log(id, token, 'step 1 is done') FROM test.held WHERE id = :id;
SELECT test.say('release', '{"step": 1}', ', payload => ''{"step": 2}''');
SELECT * FROM test.reserve();
SELECT replace(l ->> 'message', current_user, 'ME') AS log FROM jobq.jobs j, jsonb_array_elements(log) l WHERE id = :id;
SELECT test.say('release', '{"step": 2}', ', ''1 hour'', ''{"step": 3}''');
SELECT state, attempt, payload, headers FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel(:id);
-- cancel: the consumer gets an error at its next call
SELECT jobq.cancel(id) FROM test.held WHERE payload = '"back"' ORDER BY n DESC LIMIT 1;
SELECT state, attempt, error FROM test.fate('"back"');
SELECT f, test.say(f, '"back"', more) FROM (VALUES ('ack', ''), ('nack', ''), ('reject', ', '''''), ('release', ''), ('extend', ', ''1min'''), ('set_progress', ', 1')) v (f, more);
-- retry() leaves a leased job alone
SELECT test.post('"held"');
SELECT * FROM test.reserve();
SELECT code, message FROM test.held, test.error(format('SELECT jobq.retry(%s)', id)) WHERE payload = '"held"';
SELECT test.say('ack', '"held"');
SELECT test.post('"held again"');
SELECT * FROM test.reserve();
SELECT test.say('nack', '"held again"', ', NULL, ''0''');
SELECT * FROM test.reserve();
SELECT code, message FROM test.held, test.error(format('SELECT jobq.retry(%s)', id)) WHERE payload = '"held again"' AND attempt = 2;
SELECT test.say('ack', '"held again"');

-- an expired lease charges the attempt
SELECT test.post('"late"', max_attempts => 2);
SELECT * FROM test.reserve(lease => '1 min');
SELECT jobq.test_clock('61s') \g /dev/null
SELECT test.say('ack', '"late"');
SELECT test.until('(SELECT state = ''retryable'' FROM test.fate(''"late"''))');
SELECT attempt, error FROM test.fate('"late"');
SELECT test.say('ack', '"late"');
-- a lease never exceeds the job's timeout, however often it is extended
SELECT jobq.enqueue('post', '"long"', 'letters', timeout => '30s', max_attempts => 2, backoff => 'fixed 1h') AS id \gset
SELECT id = :id AS same, token, lease_until < jobq_internal.clock() + '31s' AS short FROM jobq.reserve('{letters}', wait => '5 min', lease => '1 min') \gset
\echo :same :short
SELECT jobq.extend(:id, :token, '1 h');
SELECT jobq.test_clock('93s') \g /dev/null
SELECT code FROM test.error(format('SELECT jobq.ack(%s, %s)', :id, :token));
SELECT test.until('(SELECT state = ''retryable'' FROM jobq.status(' || :id || '))');
SELECT attempt, error FROM jobq.status(:id);
SELECT jobq.cancel(:id);
-- a lease extended in time does not expire
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT * FROM test.reserve(lease => '1 min');
SELECT test.say('extend', '"late"', ', ''10 min''');
SELECT jobq.test_clock('125 min') \g /dev/null
SELECT test.say('set_progress', '"late"', ', 50');
SELECT state, attempt FROM test.fate('"late"');
SELECT test.say('extend', '"late"', ', ''10 min''');
SELECT jobq.test_clock('134 min') \g /dev/null
SELECT test.say('set_progress', '"late"', ', 60');
SELECT jobq.test_clock('136 min') \g /dev/null
SELECT test.say('extend', '"late"', ', ''10 min''');
SELECT test.until('(SELECT count(*) FROM jobq.dead_letters WHERE queue = ''letters'') = 1');
SELECT attempt, sqlstate, error FROM jobq.dead_letters WHERE queue = 'letters';
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE queue = 'letters';
SELECT jobq.test_clock('0') \g /dev/null
-- nor does a lease in memory
SELECT test.post('"late parcel"', queue => 'parcels', max_attempts => 1);
SELECT * FROM test.reserve('{parcels}', lease => '1 min');
SELECT test.say('extend', '"late parcel"', ', ''10 min''');
SELECT count(*) FROM jobq_internal.lease l JOIN test.held h USING (token) WHERE h.payload = '"late parcel"';
SELECT jobq.test_clock('5 min') \g /dev/null
SELECT test.say('set_progress', '"late parcel"', ', 60');
SELECT jobq.test_clock('11 min') \g /dev/null
SELECT test.until('(SELECT count(*) FROM jobq.dead_letters WHERE queue = ''parcels'') = 1');
SELECT test.say('ack', '"late parcel"');
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE queue = 'parcels';
SELECT jobq.test_clock('0') \g /dev/null

-- an extension committed after the end of the lease is an error; other leases extended by the transaction still expire
SELECT test.post('"open"'), test.post('"closed"', 1);
SELECT * FROM test.reserve(lease => '10 min');
SELECT * FROM test.reserve(lease => '1 min');
BEGIN;
SELECT test.say('extend', '"closed"', ', ''1 h'''), test.say('extend', '"open"', ', ''1 h''');
SELECT jobq.test_clock('2 min') \g /dev/null
SELECT test.until('(SELECT count(*) FROM jobq_internal.lease_slots()) = 1');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT what, state, attempt FROM unnest('{"\"open\"", "\"closed\""}'::jsonb[]) what, test.fate(what);
SELECT jobq.test_clock('11 min') \g /dev/null
SELECT test.until('(SELECT count(*) FROM jobq_internal.lease_slots()) = 0');
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE payload IN ('"open"', '"closed"');
SELECT jobq.test_clock('0') \g /dev/null
-- a job that is named twice is extended once
SELECT test.post('"twice"');
SELECT * FROM test.reserve();
SELECT jobq.extend_many(ARRAY[id, id], ARRAY[token, token], '10 min') FROM test.held WHERE payload = '"twice"';
SELECT cardinality(job_ids) FROM jobq_internal.lease l JOIN test.held h USING (token) WHERE payload = '"twice"' ORDER BY l.id DESC LIMIT 1;
SELECT test.say('ack', '"twice"');

-- a rolled back reservation returns the jobs and their attempts at once
CALL test.settle();
SELECT test.post('"one"'), test.post('"two"'), test.post('"three"');
BEGIN;
SELECT payload, attempt FROM jobq.reserve('{letters}', 2, wait => '5 min');
ROLLBACK;
SELECT state, attempt FROM test.fate('"one"');
BEGIN;
SELECT * FROM test.reserve();
SAVEPOINT a;
SELECT payload FROM jobq.reserve('{letters}');
SAVEPOINT b;
SELECT payload FROM jobq.reserve('{letters}');
RELEASE b;
SELECT count(*) FROM jobq.reserve('{letters}');
ROLLBACK TO a;
SELECT * FROM test.reserve();
COMMIT;
SELECT f.state FROM unnest('{"\"one\"", "\"two\"", "\"three\""}'::jsonb[]) WITH ORDINALITY u (what, n), test.fate(what) f ORDER BY n;
-- after a rolled back ack(), the lease remains
BEGIN;
SELECT test.say('ack', '"one"');
SELECT test.say('ack', '"one"');
SAVEPOINT a;
SELECT test.say('nack', '"two"');
ROLLBACK TO a;
SELECT test.say('extend', '"two"', ', ''1h''');
ROLLBACK;
SELECT state, attempt FROM test.fate('"one"');
SELECT test.say('ack', '"one"'), test.say('ack', '"two"');
-- reserve, work and ack in the same transaction
BEGIN;
SELECT * FROM test.reserve();
INSERT INTO test.trace (note) VALUES ('done by a consumer');
SELECT test.say('ack', '"three"');
COMMIT;
SELECT state, attempt FROM test.fate('"three"');
-- ack, release and extend in one transaction: later calls fail
SELECT test.post('"both"');
SELECT * FROM test.reserve();
BEGIN;
SELECT test.say('ack', '"both"'), test.say('release', '"both"'), test.say('extend', '"both"', ', ''1h''');
COMMIT;
SELECT state, attempt FROM test.fate('"both"');
-- prepared transactions cannot keep a lease
SELECT test.post('"prepared"');
BEGIN;
SELECT payload FROM jobq.reserve('{letters}', wait => '5 min');
PREPARE TRANSACTION 'reserve';
SELECT * FROM test.reserve();
-- set_progress() is not part of the transaction, and takes effect despite a rollback;
-- a transaction with ack() cannot be prepared
BEGIN;
SELECT test.say('set_progress', '"prepared"', ', 50');
PREPARE TRANSACTION 'progress';
SELECT state, progress FROM jobq.jobs WHERE queue = 'letters' AND payload = '"prepared"';
ROLLBACK PREPARED 'progress';
SELECT state, progress FROM jobq.jobs WHERE queue = 'letters' AND payload = '"prepared"';
BEGIN;
SELECT test.say('ack', '"prepared"');
PREPARE TRANSACTION 'ack';
SELECT test.say('ack', '"prepared"');
-- a read-only transaction cannot reserve
BEGIN READ ONLY;
SELECT * FROM jobq.reserve('{letters}');
ROLLBACK;
-- after a prepared transaction has cancelled a job, no lease is left
SELECT test.post('"gone"');
SELECT * FROM test.reserve();
SELECT count(*) FROM jobq_internal.lease_slots();
BEGIN;
SELECT jobq.cancel(id) FROM test.held WHERE payload = '"gone"';
PREPARE TRANSACTION 'cancel';
SELECT count(*) FROM jobq_internal.lease_slots();
COMMIT PREPARED 'cancel';
SELECT test.until('(SELECT count(*) FROM jobq_internal.lease_slots()) = 0');
SELECT test.say('ack', '"gone"');
-- unneeded rows of leases are deleted
SELECT test.until('(SELECT count(*) FROM jobq_internal.lease_slots()) = 0');

-- bad input
SELECT c, e.* FROM unnest(ARRAY['reserve(''{nowhere}'')', 'reserve(''{manual}'')', 'reserve(''{letters,manual}'')', 'reserve(''{}'')', 'reserve(array_fill(''letters''::text, ARRAY[17]))', 'reserve(''{NULL}'')', 'reserve(NULL)',
	'reserve(''{letters}'', 0)', 'reserve(''{letters}'', 1000000)', 'reserve(''{letters}'', NULL)',
	'reserve(''{letters}'', lease => ''-1s'')', 'reserve(''{letters}'', lease => ''0'')', 'reserve(''{letters}'', lease => ''8 days'')', 'reserve(''{letters}'', lease => NULL)',
	'reserve(''{letters}'', wait => ''-1s'')', 'reserve(''{letters}'', wait => ''2 hours'')', 'reserve(''{letters}'', wait => NULL)'])
	WITH ORDINALITY u (c, n), test.error('SELECT * FROM jobq.' || c) e ORDER BY n;
SELECT test.post('"bad"');
SELECT * FROM test.reserve();
SELECT c, e.* FROM (SELECT id, token FROM test.held WHERE payload = '"bad"') h,
	unnest(ARRAY['ack(NULL, %2$s)', 'ack(%1$s, NULL)', 'ack(%1$s, %2$s + 1)', 'ack(%1$s, 0)', 'ack(0, %2$s)', 'nack(%1$s, 0)', 'reject(%1$s, 0, ''x'')', 'release(%1$s, 0)', 'extend(%1$s, 0, ''1min'')', 'set_progress(%1$s, 0, 1)',
	'nack(%1$s, %2$s, ''x'', ''-1s'')', 'release(%1$s, %2$s, ''-1s'')', 'extend(%1$s, %2$s, ''-1s'')', 'extend(%1$s, %2$s, ''8 days'')',
	'set_progress(%1$s, %2$s, NULL)', 'set_progress(%1$s, %2$s, -1)', 'set_progress(%1$s, %2$s, 101)', 'set_progress(%1$s, %2$s, ''NaN'')',
	'ack_many(ARRAY[%1$s], ARRAY[%2$s, %2$s])', 'ack_many(ARRAY[%1$s, NULL], ARRAY[%2$s, %2$s])', 'ack_many(ARRAY[%1$s], ARRAY[NULL]::bigint[])', 'ack_many(NULL::bigint[], ARRAY[%2$s]::bigint[])', 'ack_many(ARRAY[%1$s, %1$s], ARRAY[%2$s, %2$s])',
	'extend_many(ARRAY[%1$s], ''{}''::bigint[], ''1min'')'])
	WITH ORDINALITY u (c, n), test.error(format('SELECT jobq.' || c, h.id, h.token)) e ORDER BY n;
SELECT state, attempt FROM test.fate('"bad"');
SELECT test.say('ack', '"bad"');
SELECT * FROM test.error($$SELECT jobq.create_queue('x', mode => 'both')$$);
SELECT hint FROM test.error($$SELECT jobq.reserve('{it''s}')$$);
SELECT * FROM test.error($$SELECT jobq.create_queue('x', lease => 'short')$$);

-- a waiting session: until the time has passed, a cancellation, or statement_timeout
SELECT count(*), clock_timestamp() - statement_timestamp() >= '100ms' AS waited FROM jobq.reserve('{letters}', wait => '100ms');
SET statement_timeout = '100ms';
\set VERBOSITY sqlstate
SELECT * FROM jobq.reserve('{letters}', wait => '1 min');
\set VERBOSITY default
RESET statement_timeout;

-- a queue changes its mode: workers and consumers do not get each other's jobs
CREATE FUNCTION test.by_worker(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES (payload #>> '{}') $$;
SELECT jobq.register('post', 'test.by_worker(jsonb)');
TRUNCATE test.trace;
SELECT jobq.create_queue('changing', open => true, mode => 'consumer');
SELECT test.post('"a"', queue => 'changing'), test.post('"b"', queue => 'changing');
SELECT * FROM test.reserve('{changing}');
SELECT jobq_internal.run_next('{changing}');
SELECT jobq.alter_queue('changing', mode => 'worker');
SELECT test.until('(SELECT count(*) FROM test.trace) = 1');
SELECT * FROM test.error($$SELECT * FROM jobq.reserve('{changing}')$$);
SELECT test.say('ack', '"a"'), (test.fate('"a"')).state;
SELECT note FROM test.trace;
SELECT jobq.alter_queue('changing', mode => 'consumer');
SELECT test.post('"c"', queue => 'changing');
SELECT * FROM test.reserve('{changing}');
SELECT test.say('nack', '"c"', ', NULL, ''0''');
SELECT * FROM test.reserve('{changing}');
-- a job released after the change goes to a worker
SELECT jobq.alter_queue('changing', mode => 'worker');
SELECT test.say('release', '"c"');
SELECT test.until('(SELECT count(*) FROM test.trace) = 2');
SELECT jobq.unregister('post');
-- paused: no job is handed out, but reserved jobs can be completed
SELECT test.post('"d"'), test.post('"e"');
SELECT * FROM test.reserve();
SELECT jobq.pause('letters');
SELECT * FROM test.reserve(wait => '10ms');
SELECT test.say('ack', '"d"');
SELECT jobq.resume('letters');
SELECT * FROM test.reserve();
SELECT test.say('ack', '"e"');

-- a consumer gets the jobs of roles whose privileges the consumer has
SET ROLE regress_jobq_alice;
SELECT test.post('"alice"');
SET ROLE regress_jobq_bob;
SELECT test.post('"bob"');
SELECT * FROM test.reserve(max => 10);
SELECT * FROM test.reserve(wait => '10ms');
SELECT role, running FROM jobq.workers WHERE type = 'consumer';
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.workers WHERE type = 'consumer';
-- other jobs are refused even with a valid token
SELECT f, test.say(f, '"bob"', more) FROM (VALUES ('ack', ''), ('nack', ''), ('reject', ', '''''), ('release', ''), ('extend', ', ''1min'''), ('set_progress', ', 1')) v (f, more);
SELECT * FROM test.reserve(max => 10);
RESET ROLE;
GRANT regress_jobq_bob TO regress_jobq_alice;
SET ROLE regress_jobq_alice;
SELECT test.say('release', '"bob"');
SELECT * FROM test.reserve(max => 10);
SELECT test.say('ack', '"bob"'), test.say('ack', '"alice"');
RESET ROLE;
REVOKE regress_jobq_bob FROM regress_jobq_alice;
-- a consumer of all roles' jobs may not change their payload
SELECT jobq.grant_privilege('regress_jobq_alice', 'consume', 'letters');
SET ROLE regress_jobq_bob;
SELECT test.post('"of bob"');
SET ROLE regress_jobq_alice;
SELECT * FROM test.reserve();
SELECT test.say('release', '"of bob"', ', payload => ''"of alice"''');
RESET ROLE;
GRANT regress_jobq_bob TO regress_jobq_alice;
SELECT jobq.revoke_privilege('regress_jobq_bob'), jobq.alter_queue('letters', open => false);
SET ROLE regress_jobq_alice;
SELECT test.say('release', '"of bob"', ', payload => ''"of alice"''');
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_bob'), jobq.alter_queue('letters', open => true);
SET ROLE regress_jobq_alice;
SELECT test.say('release', '"of bob"', ', payload => ''"of both"''');
RESET ROLE;
REVOKE regress_jobq_bob FROM regress_jobq_alice;
SELECT payload, role, jobq.cancel(id) FROM jobq.jobs WHERE queue = 'letters' AND state = 'ready';
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'letters');
SET ROLE regress_jobq_nobody;
SELECT code, message FROM test.error('SELECT * FROM jobq.reserve(''{letters}'')');
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');

-- a kind gets a handler; a handler removed in a transaction is back after the rollback
SELECT jobq.enqueue('coming', '1', 'letters') AS id \gset
SELECT jobq.register('coming', 'test.echo(jsonb)', max_attempts => 7);
SELECT count(jobq.enqueue('coming', '2', 'letters'));
BEGIN;
SELECT jobq.unregister('coming');
SELECT count(jobq.enqueue('coming', '3', 'letters'));
SAVEPOINT a;
SELECT jobq.register('coming', 'test.echo(jsonb)', max_attempts => 5);
SELECT count(jobq.enqueue('coming', '4', 'letters'));
ROLLBACK TO a;
SELECT count(jobq.enqueue('coming', '5', 'letters'));
SELECT payload, max_attempts FROM jobq.jobs WHERE kind = 'coming' ORDER BY id;
ROLLBACK;
SELECT count(jobq.enqueue('coming', '6', 'letters'));
SELECT jobq.unregister('coming');
SELECT count(jobq.enqueue('coming', '7', 'letters'));
SELECT payload, max_attempts FROM jobq.jobs WHERE kind = 'coming' ORDER BY id;
SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{letters}', 10, wait => '5 min');

-- the table is rewritten: reserved jobs can be acknowledged, and waiting jobs reserved
VACUUM FULL jobq_internal.job;
SELECT count(jobq.enqueue('moved', to_jsonb(i), 'letters')) FROM generate_series(1, 4) i;
SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{letters}', wait => '5 min');
SELECT id, token, payload FROM jobq.reserve('{letters}', wait => '5 min') \gset
VACUUM FULL jobq_internal.job;
SELECT jobq.ack(:id, :token);
SELECT r.payload, jobq.ack(r.id, r.token) FROM jobq.reserve('{letters}', 10, wait => '5 min') r;

-- max_exceptions of the kind applies, and a worker runs on_failure without creating a queue
SELECT jobq.register('lost', 'test.echo(jsonb)', queue => 'nowhere', max_exceptions => 1, on_failure => 'test.note(jsonb)');
SELECT jobq.drop_queue('nowhere');
TRUNCATE test.trace;
SELECT jobq.enqueue('lost', '"lost"', 'letters') AS id \gset
SELECT * FROM test.reserve();
SELECT test.say('nack', '"lost"', ', ''gone''');
SELECT state, attempt, error FROM jobq.status(:id);
SELECT test.until('(SELECT count(*) FROM test.trace WHERE note = ''lost'') = 1');
SELECT queue, (SELECT count(*) FROM jobq.queues WHERE name = 'nowhere') AS made FROM jobq.jobs WHERE kind = 'on_failure:lost';
SELECT jobq.unregister('lost'), jobq.delete(:id);
TRUNCATE test.trace;

-- ids and tokens as sent by drivers: numbers of another type, arrays, or untyped parameters
SELECT jobq.ack_many('{}', '{}'), jobq.extend_many('{}', '{}', '1 min');
PREPARE one(bigint, bigint) AS SELECT jobq.ack($1, $2);
PREPARE small(int, bigint) AS SELECT jobq.ack($1, $2, '"small"');
PREPARE many(bigint[], bigint[]) AS SELECT jobq.ack_many($1, $2);
PREPARE untyped AS SELECT jobq.ack($1, $2);
PREPARE untyped_nack AS SELECT jobq.nack($1, $2, $3, $4);
PREPARE untyped_extend AS SELECT jobq.extend($1, $2, $3);
PREPARE untyped_extend_many AS SELECT jobq.extend_many($1, $2, $3);
SELECT parameter_types FROM pg_prepared_statements WHERE name = 'untyped';
SELECT count(jobq.enqueue('typed', to_jsonb(i), 'letters')) FROM generate_series(1, 9) i;
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM jobq.reserve('{letters}', 9, wait => '5 min') \gset
SELECT (:'ids'::bigint[])[1] AS id1, (:'ids'::bigint[])[2] AS id2, (:'ids'::bigint[])[3] AS id3, (:'ids'::bigint[])[4] AS id4, (:'ids'::bigint[])[5] AS id5,
	(:'ids'::bigint[])[6:7] AS ids67, (:'ids'::bigint[])[8] AS id8, (:'ids'::bigint[])[9] AS id9, (:'tokens'::bigint[])[1] AS token, (:'tokens'::bigint[])[6:7] AS tokens67 \gset
EXECUTE one(:id1, :token);
-- the ids here are larger
SELECT jobq.ack(:id2, :token, '"small"');
EXECUTE untyped_extend_many(:'ids67', :'tokens67', '5 min');
EXECUTE untyped_extend(:id3, :token, '5 min');
EXECUTE untyped(:'id3', :'token');
SELECT jobq.ack(:'id4', :'token', '"text"'), jobq.ack(id => :id5, token => :token, result => '"named"');
EXECUTE many(:'ids67', :'tokens67');
EXECUTE untyped_nack(:id8, :token, 'first', '1 hour');
EXECUTE untyped_nack(:'id9', :'token', 'second', '1 hour');
SELECT s.state, s.result, s.error FROM unnest(:'ids'::bigint[]) i, jobq.status(i) s ORDER BY i;
SELECT e.message FROM test.error(format('EXECUTE untyped(%L, %L)', :'id3', :'token')) e;
SELECT * FROM test.error('SELECT jobq.ack_many(''{1}'', ''1'')');
SELECT * FROM test.error('SELECT jobq.ack(''one'', ''1'')');
SELECT * FROM test.error('SELECT jobq.ack_many(''{1}'', ''{1}'', ''"result"'')');
SELECT * FROM test.error('SELECT jobq.ack(NULL, ''1'')');
-- a result for each job, or none; more jobs than are archived at a time
SELECT count(jobq.enqueue('typed', to_jsonb(i), 'letters')) FROM generate_series(1, 250) i;
CALL test.settle();
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM jobq.reserve('{letters}', 250, wait => '5 min') \gset
SELECT e.* FROM unnest(ARRAY['to_jsonb(array_fill(1, ''{249}''))', '''[]''', '''{}''', '''1''', 'to_jsonb(array_fill(1, ''{249}'')) || to_jsonb(repeat(''x'', pg_size_bytes(current_setting(''jobq.max_payload''))::int))']) WITH ORDINALITY u (r, n),
	test.error(format('SELECT jobq.ack_many(%L::bigint[], %L::bigint[], %s)', :'ids', :'tokens', r)) e ORDER BY n;
SELECT count(*) FROM jobq.jobs WHERE id = ANY (:'ids') AND state = 'running';
SELECT jobq.ack_many(:'ids'::bigint[], :'tokens'::bigint[], (SELECT jsonb_agg(CASE WHEN n % 3 > 0 THEN jsonb_build_object('n', n) END ORDER BY n) FROM generate_series(1, 250) n));
SELECT count(*), count(*) FILTER (WHERE s.result = jsonb_build_object('n', n)) AS theirs, count(*) FILTER (WHERE s.result IS NULL AND n % 3 = 0) AS without
FROM unnest(:'ids'::bigint[]) WITH ORDINALITY u (id, n), jobq.status(id) s WHERE s.state = 'completed';
SELECT count(jobq.enqueue('typed', to_jsonb(i), 'letters')) FROM generate_series(1, 3) i;
CALL test.settle();
SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens FROM jobq.reserve('{letters}', 3, wait => '5 min') \gset
SELECT e.* FROM unnest('{"{}","[1, 2]","1"}'::text[]) WITH ORDINALITY u (r, n), test.error(format('SELECT jobq.ack_many(%L, %L, %L)', :'ids', :'tokens', r)) e ORDER BY n;
PREPARE untyped_ack AS SELECT jobq.ack_many($1, $2, $3);
EXECUTE untyped_ack(:'ids', :'tokens', '[{"n": 1}, null, [2]]');
SELECT s.state, s.result FROM unnest(:'ids'::bigint[]) i, jobq.status(i) s ORDER BY i;
DEALLOCATE ALL;
SELECT jobq.cancel_many(queue => 'letters', state => 'waiting');

SELECT kind, queue, state FROM jobq.jobs WHERE finished_at IS NULL AND queue IN ('letters', 'parcels', 'changing');
SELECT count(*) FROM jobq_internal.lease_slots();
DROP TABLE test.held CASCADE;
