-- A procedure enqueues jobs, waits for them without a worker, and goes on with their results.
\connect - postgres
SET datestyle = 'ISO';
CREATE TABLE test.effect (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
CREATE FUNCTION test.suspended(id bigint, waits_for text) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT state = ''suspended'' AND message LIKE %L FROM jobq.status(%s))', '%' || waits_for || '%', id))
$$;
CREATE FUNCTION test.double(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(payload::int * 2) $$;
CREATE FUNCTION test.declines(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM test.effect WHERE note = 'repaired') THEN
		RAISE EXCEPTION 'card declined' USING DETAIL = 'No money.';
	END IF;
END
$$;
CREATE PROCEDURE test.asks(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	one jsonb;
	many jsonb;
	none jsonb;
BEGIN
	CALL jobq.ask('one', payload ->> 'kind', payload -> 'payload', one, options => coalesce(payload -> 'options', '{}'));
	CALL jobq.ask('many', 'double', payloads => '{1,2,3,4,5}', answer => many);
	CALL jobq.ask('none', 'double', payloads => '{}', answer => none);
	INSERT INTO test.effect (note) VALUES (format('one: %s, many: %s, none: %s, again: %s', one, many, none, jobq.step_result('many')));
END
$$;
SELECT jobq.register('double', 'test.double(jsonb)'), jobq.register('declines', 'test.declines(jsonb)', max_attempts => 1),
	jobq.register('asks', 'test.asks(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('asks', '{"kind": "double", "payload": 21}') AS id \gset
SELECT * FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
-- the jobs, and the way of the answers
SELECT kind, state, count(*) FROM jobq.jobs WHERE id > :id GROUP BY kind, state;
SELECT event, regexp_replace(detail, 'job \d+', 'job N') AS detail FROM jobq.history(:id) WHERE event = 'resumed' ORDER BY at;
-- the jobs may end in any order
SELECT regexp_replace(detail, 'job \d+', 'job N') COLLATE "C" AS answer FROM jobq.history(:id) WHERE event = 'answer' ORDER BY 1;

-- served by a consumer; the asking job has no worker meanwhile
SELECT jobq.create_queue('outside', mode => 'consumer', open => true);
TRUNCATE test.effect;
SELECT jobq.enqueue('asks', '{"kind": "post", "payload": {"url": "x"}, "options": {"queue": "outside", "priority": 3}}') AS id \gset
SELECT test.suspended(:id, 'of "one"');
SELECT count(*) FROM jobq.workers WHERE job_id = :id;
SELECT reason, regexp_replace(detail, 'job \d+|\d{4}-[-0-9:+ ]+', 'N ', 'g') AS detail, regexp_replace(remedy, '\d+', 'N') AS remedy FROM jobq.explain(:id);
SELECT id AS asked, token, payload FROM jobq.reserve('{outside}', wait => '5 min') \gset
SELECT payload, priority FROM jobq.live_jobs WHERE id = :asked;
-- the answer belongs to the transaction of the consumer
BEGIN;
SELECT jobq.ack(:asked, :token, '{"status": 200}');
ROLLBACK;
SELECT state FROM jobq.status(:id);
SELECT jobq.ack(:asked, :token, '{"status": 200}');
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n LIMIT 1;

-- answers come also from a queue that keeps no finished jobs
SELECT jobq.alter_queue('outside', keep => 'nothing');
TRUNCATE test.effect;
SELECT jobq.enqueue('asks', '{"kind": "post", "options": {"queue": "outside"}, "payload": 1}') AS id \gset
SELECT test.suspended(:id, 'of "one"');
SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{outside}', wait => '5 min');
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n LIMIT 1;

-- a dead job raises its error, which makes the asking job a dead letter; after the retry of both, all goes on
TRUNCATE test.effect;
SELECT jobq.enqueue('asks', '{"kind": "declines", "payload": 1}') AS id \gset
SELECT state, regexp_replace(error, '\d+', 'N') AS error FROM test.outcome(:id);
SELECT errors -> 0 ->> 'sqlstate' AS code, errors -> 0 ->> 'detail' AS detail, regexp_replace(errors -> 0 ->> 'hint', '\d+', 'N') AS hint FROM jobq.jobs WHERE id = :id;
SELECT id AS asked FROM jobq.jobs WHERE kind = 'declines' \gset
INSERT INTO test.effect (note) VALUES ('repaired');
SELECT jobq.retry(:asked);
SELECT state FROM test.outcome(:asked);
SELECT jobq.retry(:id);
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;

-- errors as values, a cancelled job among others, and a job for which the procedure waits later
CREATE PROCEDURE test.note(step text, note text) LANGUAGE plpgsql AS $$
BEGIN
	IF jobq.step(step) THEN
		INSERT INTO test.effect (note) VALUES (note.step || ': ' || note.note);
		CALL jobq.step_done();
	END IF;
END
$$;
CREATE PROCEDURE test.careful(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
	what text;
BEGIN
	CALL jobq.ask('early', 'declines', '1', answer, await => false);
	CALL test.note('started', coalesce(answer::text, 'no answer'));
	CALL jobq.ask('mixed', 'post', payloads => '{1,2}', options => '{"queue": "outside"}',
		answer => answer, on_error => 'return');
	CALL test.note('mixed answers', answer::text);
	CALL jobq.ask('early', 'declines', '1', answer, on_error => 'return', await => false);
	CALL test.note('an error', ((answer -> 'error') - 'job')::text);
	BEGIN
		CALL jobq.ask('early', 'declines', '1', answer);
		CALL jobq.ask('other', 'declines', '1', answer);
	EXCEPTION WHEN invalid_transaction_termination THEN
		what := sqlerrm;
	END;
	CALL test.note('in a block', what);
	CALL jobq.ask('caught', 'declines', '2', answer, await => false);
	CALL jobq.await_signal('go', answer);
	BEGIN
		CALL jobq.ask('caught', 'declines', '2', answer);
	EXCEPTION WHEN SQLSTATE 'JQ017' THEN
		what := regexp_replace(sqlerrm, '\d+', 'N');
	END;
	CALL test.note('caught it', what);
END
$$;
SELECT jobq.register('careful', 'test.careful(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('careful') AS id \gset
SELECT test.suspended(:id, 'of "mixed"');
SELECT count(jobq.ack(id, token, '"sent"')) FROM jobq.reserve('{outside}', max_jobs => 1, wait => '5 min');
SELECT test.until('EXISTS (SELECT FROM jobq.dead_letters WHERE kind = ''declines'')');
SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE queue = 'outside';
SELECT test.suspended(:id, 'signal "go"');
SELECT regexp_replace(note, '"job": \d+', '"job": N', 'g') AS note FROM test.effect ORDER BY n;
SELECT test.until('(SELECT count(*) = 2 FROM jobq.dead_letters WHERE kind = ''declines'')');
SELECT jobq.signal(:id, 'go');
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n DESC LIMIT 1;

-- the cancellation of a job reaches the asked jobs, also running jobs and jobs asked by asked jobs; a job with a received answer is left
CREATE FUNCTION test.stuck(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT pg_sleep(600) $$;
SELECT jobq.register('stuck', 'test.stuck(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('asks', '{"kind": "asks", "payload": {"kind": "post", "options": {"queue": "outside"}, "payload": 1}}') AS id \gset
SELECT test.until(format('(SELECT count(*) = 2 FROM jobq.live_jobs WHERE id >= %s AND state = ''suspended'')', :id));
SELECT jobq.cancel(:id);
SELECT kind, state, error FROM jobq.jobs WHERE id >= :id AND queue <> 'outside' ORDER BY id;
SELECT count(*) FROM jobq.live_jobs WHERE id >= :id;
SELECT jobq.enqueue('asks', '{"kind": "stuck", "payload": 1}') AS id \gset
SELECT test.until('EXISTS (SELECT FROM jobq.live_jobs WHERE kind = ''stuck'' AND state = ''running'')');
SELECT jobq.cancel(:id);
SELECT test.until('NOT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = ''stuck'')');
SELECT kind, state, error FROM jobq.jobs WHERE kind = 'stuck';
-- the row of the asked job is held by another session: the gate refuses the job later
SELECT jobq.enqueue('asks', '{"kind": "post", "options": {"queue": "outside", "delay": "1 day"}, "payload": 1}') AS id \gset
SELECT test.suspended(:id, 'of "one"');
UPDATE jobq_internal.procedure_step SET done_at = now() WHERE job_id = :id;
SELECT jobq.cancel(:id);
SELECT id AS asked FROM jobq.live_jobs WHERE id > :id \gset
SELECT jobq.edit(:asked, run_at => now());
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.reserve(''{outside}'')) AND NOT EXISTS (SELECT FROM jobq.live_jobs WHERE id = %s)', :asked));

-- the end of a cancelled job reaches the asking job
SELECT jobq.alter_queue('outside', keep => 'all');
SELECT jobq.enqueue('asks', '{"kind": "post", "options": {"queue": "outside"}, "payload": 1}') AS id \gset
SELECT test.suspended(:id, 'of "one"');
SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE queue = 'outside';
SELECT state, regexp_replace(error, '\d+', 'N') AS error FROM test.outcome(:id);

-- bad input
CREATE PROCEDURE test.bad(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
	payloads jsonb[] := CASE WHEN payload ? 'payloads' THEN ARRAY(SELECT nullif(e, 'null') FROM jsonb_array_elements(payload -> 'payloads') e) END;
BEGIN
	CALL jobq.ask(payload ->> 'step', payload ->> 'kind', payload -> 'payload', answer, payloads, coalesce(payload -> 'options', '{}'), coalesce(payload ->> 'on_error', 'raise'));
END
$$;
SELECT jobq.register('bad', 'test.bad(jsonb)', max_attempts => 1);
SELECT count(jobq.enqueue('bad', c)) FROM unnest(ARRAY['{"kind": "double"}', '{"step": "s"}', '{"step": "s", "kind": "double"}', '{"step": "s", "kind": "double", "on_error": "x"}',
	'{"step": "s", "kind": "double", "payload": 1, "options": {"unique_key": "k"}}', '{"step": "s", "kind": "double", "payload": 1, "options": {"color": 1}}',
	'{"step": "s", "kind": "double", "payloads": [1, null]}']::jsonb[]) c;
SELECT test.until('(SELECT count(*) = 7 FROM jobq.dead_letters WHERE kind = ''bad'')');
SELECT payload - 'step' AS call, sqlstate, error FROM jobq.dead_letters WHERE kind = 'bad' ORDER BY id;
CALL jobq.ask('s', 'double');

SELECT jobq.prune('0', '0') > 0 AS pruned;
SELECT jobq.drop_queue('outside');
DROP PROCEDURE test.note(text, text), test.asks(jsonb), test.careful(jsonb), test.bad(jsonb);
DROP FUNCTION test.double(jsonb), test.declines(jsonb), test.stuck(jsonb), test.suspended(bigint, text);
DROP TABLE test.effect;
SELECT count(jobq.unregister(k)) FROM unnest('{double,declines,asks,careful,stuck,bad}'::text[]) k;
