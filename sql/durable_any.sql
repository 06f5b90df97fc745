-- A procedure waits for the first of several signals and asked jobs.
\connect - postgres
CREATE TABLE test.effect (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
CREATE FUNCTION test.suspended(id bigint, waits_for text) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT state = ''suspended'' AND message LIKE %L FROM jobq.status(%s))', '%' || waits_for || '%', id))
$$;
CREATE PROCEDURE test.waits_for_any(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	first text;
	second text;
	third text;
	answer jsonb;
	answers jsonb := '[]';
BEGIN
	CALL jobq.ask('job', 'post', payload, answer, options => '{"queue": "outside"}', await => false);
	CALL jobq.await_any('{job,approved,declined}', first, answer);
	answers := answers || answer;
	CALL jobq.await_any('{approved,job}', second, answer, timeout => '1 hour', step => 'second');
	answers := answers || answer;
	CALL jobq.await_any('{late,later}', third, answer, timeout => '1 hour');
	INSERT INTO test.effect (note) VALUES (format('%s, %s, %s: %s', first, second, coalesce(third, 'timeout'), answers));
END
$$;
SELECT jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.register('waits_for_any', 'test.waits_for_any(jsonb)', max_attempts => 1);

-- a signal first, which of the names has it; then the job
SELECT jobq.enqueue('waits_for_any') AS id \gset
SELECT test.suspended(:id, 'job');
SELECT regexp_replace(message, '\d+', 'N') AS message FROM jobq.status(:id);
SELECT jobq.signal(:id, 'other', '0');
SELECT jobq.signal(:id, 'declined', '"no"');
SELECT test.suspended(:id, 'signal "approved", job');
SELECT count(jobq.ack(id, token, '"sent"')) FROM jobq.reserve('{outside}', wait => '5 min');
SELECT test.suspended(:id, 'late');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT state, error FROM test.outcome(:id);
SELECT jobq.test_clock('0') \g /dev/null
SELECT note FROM test.effect ORDER BY n;
SELECT event, regexp_replace(regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T'), 'job \d+', 'job N') AS detail FROM jobq.history(:id) WHERE event IN ('resumed', 'answer', 'signal') ORDER BY at, detail;

-- the job first, with an error as its answer; several signals that were there before: the order of the names decides
TRUNCATE test.effect;
SELECT jobq.enqueue('waits_for_any') AS id \gset
SELECT test.suspended(:id, 'job');
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE queue = 'outside';
SELECT test.suspended(:id, 'late');
BEGIN;
SELECT jobq.signal(:id, 'later', '2'), jobq.signal(:id, 'late', '1');
COMMIT;
SELECT state, error FROM test.outcome(:id);
SELECT regexp_replace(note, '"job": \d+', '"job": N', 'g') AS note FROM test.effect ORDER BY n;

-- bad input
CREATE PROCEDURE test.bad(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	name text;
	answer jsonb;
	names text[] := CASE WHEN payload ? 'names' THEN ARRAY(SELECT e #>> '{}' FROM jsonb_array_elements(payload -> 'names') e) END;
BEGIN
	CALL jobq.await_any(names, name, answer);
END
$$;
SELECT jobq.register('bad', 'test.bad(jsonb)', max_attempts => 1);
SELECT count(jobq.enqueue('bad', c)) FROM unnest(ARRAY['{}', '{"names": []}', '{"names": ["a", null]}', '{"names": ["a", ""]}', jsonb_build_object('names', ARRAY[repeat('x', 70), repeat('y', 70)])]::jsonb[]) c;
SELECT test.until('(SELECT count(*) = 5 FROM jobq.dead_letters WHERE kind = ''bad'')');
SELECT sqlstate, left(error, 60) AS error FROM jobq.dead_letters WHERE kind = 'bad' ORDER BY id;

SELECT jobq.prune('0', '0') > 0 AS pruned;
SELECT jobq.drop_queue('outside');
DROP PROCEDURE test.waits_for_any(jsonb), test.bad(jsonb);
DROP FUNCTION test.suspended(bigint, text);
DROP TABLE test.effect;
SELECT count(jobq.unregister(k)) FROM unnest('{waits_for_any,bad}'::text[]) k;
