-- NOTIFY: through the relay, in the transaction, or not at all.  A second
-- connection listens, so that the test can wait for notifications.
CREATE EXTENSION dblink;
SELECT dblink_connect('listener', format('dbname=%L host=%L port=%L user=%L', current_database(),
	(string_to_array(current_setting('unix_socket_directories'), ','))[1], current_setting('port'), current_user));
CREATE TABLE test.heard (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, channel text, payload text);

-- Collects all notifications sent so far.  The procedure sends a message; after its return, a second message.
-- The procedure ends when the second message returns, and the expected number has arrived.
CREATE PROCEDURE test.hear(expected int DEFAULT 0) LANGUAGE plpgsql AS $$
DECLARE
	message record;
	heard boolean;
BEGIN
	TRUNCATE test.heard;
	FOR round IN 1..2 LOOP
		PERFORM jobq.notify('test_end', round::text);
		COMMIT;
		heard := false;
		FOR i IN 1..30000 LOOP
			FOR message IN SELECT * FROM dblink_get_notify('listener') LOOP
				IF message.notify_name <> 'test_end' THEN
					INSERT INTO test.heard (channel, payload)
					VALUES (regexp_replace(message.notify_name, '\d+', 'N'), regexp_replace(message.extra, '("id": )\d+', '\1"N"'));
				ELSIF message.extra = round::text THEN
					heard := true;
				END IF;
			END LOOP;
			EXIT WHEN heard AND (SELECT count(*) FROM test.heard) >= expected;
			PERFORM pg_sleep(0.01);
		END LOOP;
		IF NOT heard THEN
			RAISE EXCEPTION 'the end was not heard';
		END IF;
	END LOOP;
END
$$;
SELECT dblink_exec('listener', 'LISTEN test_end');
SELECT dblink_exec('listener', 'LISTEN test_channel');

-- called directly
SELECT jobq.notify('test_channel', 'one');
SELECT jobq.notify('test_channel');
BEGIN;
SELECT jobq.notify('test_channel', 'two');
SELECT jobq.notify('test_channel', 'three');
SAVEPOINT s;
SELECT jobq.notify('test_channel', 'taken back');
ROLLBACK TO s;
SELECT jobq.notify('test_channel', 'four');
COMMIT;
BEGIN;
SELECT jobq.notify('test_channel', 'rolled back');
ROLLBACK;
SELECT jobq.notify('another_channel', 'nobody listens');
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY n;

-- duplicates collapse
BEGIN;
SELECT count(jobq.notify('test_channel', 'again')) FROM generate_series(1, 100);
COMMIT;
CALL test.hear();
SELECT channel, payload, count(*) FROM test.heard GROUP BY 1, 2;
-- more notifications than the relay can hold: the transaction itself sends the rest
BEGIN;
SELECT count(jobq.notify('test_channel', i::text)) FROM generate_series(1, 1000) i;
COMMIT;
CALL test.hear(1000);
SELECT count(DISTINCT payload), min(payload::int), max(payload::int) FROM test.heard;
-- a payload too long for the relay
SELECT jobq.notify('test_channel', repeat('x', 5000));
CALL test.hear();
SELECT channel, length(payload) FROM test.heard;

-- the same rules as for NOTIFY
SELECT e.* FROM test.error('SELECT jobq.notify('''', ''x'')') e;
SELECT e.* FROM test.error('SELECT jobq.notify(repeat(''x'', 64))') e;
SELECT e.* FROM test.error('SELECT jobq.notify(''c'', repeat(''x'', 8000))') e;
SELECT jobq.notify(NULL, 'x'), jobq.notify('x', NULL);

-- refused in a prepared transaction, because the notification would be lost
BEGIN;
SELECT jobq.notify('test_channel', 'prepared');
PREPARE TRANSACTION 'jobq_notify';
ROLLBACK;

-- in a trigger on a user's table
CREATE TABLE test.item (id int PRIMARY KEY);
CREATE FUNCTION test.tell_of_item() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.notify('test_channel', TG_TABLE_NAME);
	RETURN NULL;
END
$$;
CREATE TRIGGER notify AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON test.item
	FOR EACH STATEMENT EXECUTE FUNCTION test.tell_of_item();
INSERT INTO test.item SELECT generate_series(1, 10);
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY n;
BEGIN;
DELETE FROM test.item WHERE id = 1;
ROLLBACK;
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY n;
DROP TABLE test.item;
DROP FUNCTION test.tell_of_item;

-- the channel of a queue
SELECT jobq.create_queue('noisy'), jobq.create_queue('strict', notify => 'transactional'), jobq.create_queue('silent', notify => 'off');
SELECT dblink_exec('listener', 'LISTEN jobq_queue_noisy; LISTEN jobq_queue_strict; LISTEN jobq_queue_silent');
SELECT array_agg(jobq.enqueue('echo', queue => q)) AS ids FROM unnest('{noisy,strict,silent}'::text[]) q \gset
SELECT count(*) FROM jobq.wait_many(:'ids'::bigint[]);
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY channel;
-- only a few notifications for many jobs
SELECT array_agg(id) AS ids FROM (SELECT jobq.enqueue_many('echo', array_fill('1'::jsonb, ARRAY[200]), queue => 'noisy') AS id
	UNION ALL SELECT jobq.enqueue_many('echo', array_fill('1'::jsonb, ARRAY[200]), queue => 'strict')) e \gset
SELECT count(*) FROM jobq.wait_many(:'ids'::bigint[]);
CALL test.hear();
SELECT channel, count(*) BETWEEN 1 AND 5 AS few FROM test.heard GROUP BY channel ORDER BY channel;
-- no notification for rolled back jobs
BEGIN;
SELECT jobq.enqueue('echo', queue => 'noisy') IS NULL, jobq.enqueue('echo', queue => 'strict') IS NULL;
ROLLBACK;
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY channel;
-- a delayed job causes a notification when due
SELECT jobq.enqueue('echo', queue => 'noisy', delay => '1 hour') AS id \gset
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY channel;
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT state FROM jobq.wait(:id);
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY channel;

-- a job with the option watch notifies each change of state, and the progress
CREATE FUNCTION test.stages(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, 'half "way"');
	IF job.attempt = 1 THEN
		RAISE EXCEPTION 'once more';
	END IF;
	RETURN '"secret"';
END
$$;
SELECT jobq.register('stages', 'test.stages(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.enqueue('stages', delay => '1 hour', options => '{"watch": true}') AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
SELECT jobq.test_clock('4 hours') \g /dev/null
SELECT state, attempt FROM jobq.wait(:id);
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE job_id = %s)', :id));
CALL test.hear();
SELECT channel, payload::jsonb FROM test.heard ORDER BY n;
-- progress faster than the relay does not displace the final notification, which comes last
CREATE FUNCTION test.fast() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 5000 LOOP
		PERFORM jobq.set_progress(i / 50.0);
	END LOOP;
END
$$;
SELECT jobq.register('fast', 'test.fast()');
SELECT jobq.enqueue('fast', delay => '1 hour', options => '{"watch": true}') AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
SELECT jobq.test_clock('5 hours') \g /dev/null
SELECT state, attempt FROM jobq.wait(:id);
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE job_id = %s)', :id));
CALL test.hear();
SELECT count(*) > 1 AS more, count(*) FILTER (WHERE payload ~ 'completed') AS ends, (array_agg(payload::jsonb - 'id' ORDER BY n DESC))[1] AS last FROM test.heard;
-- failure and retry, too
SELECT jobq.enqueue('broken', delay => '1 hour', options => '{"watch": true}', max_attempts => 1) AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
SELECT jobq.test_clock('6 hours') \g /dev/null
SELECT state, attempt FROM jobq.wait(:id);
SELECT jobq.retry(:id);
SELECT state, attempt FROM jobq.wait(:id);
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE job_id = %s)', :id));
CALL test.hear();
SELECT channel, payload::jsonb FROM test.heard ORDER BY n;
SELECT jobq.delete(:id);
-- cancellation, too
SELECT jobq.enqueue('echo', delay => '1 hour', options => '{"watch": true}') AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
BEGIN;
SELECT jobq.cancel(:id);
ROLLBACK;
SELECT jobq.cancel(:id);
CALL test.hear();
SELECT channel, payload::jsonb FROM test.heard ORDER BY n;
-- a job without watch causes no notification
SELECT jobq.enqueue('echo', delay => '1 hour') AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
SELECT jobq.cancel(:id);
CALL test.hear();
SELECT channel, payload FROM test.heard ORDER BY n;

-- a watched job of a consumer: reserve, progress, release, reserve again, fail, and complete;
-- rolled back changes are not notified
SELECT jobq.create_queue('watched', mode => 'consumer');
SELECT jobq.enqueue('outside', queue => 'watched', options => '{"watch": true}', backoff => 'fixed 1ms', max_attempts => 5) AS id \gset
SELECT dblink_exec('listener', format('LISTEN jobq_job_%s', :id));
BEGIN;
SELECT count(*) FROM jobq.reserve('{watched}', wait => '5 min');
ROLLBACK;
SELECT token FROM jobq.reserve('{watched}', wait => '5 min') \gset
SELECT jobq.set_progress(:id, :token, 25, 'a secret');
SELECT jobq.release(:id, :token);
BEGIN;
SELECT token FROM jobq.reserve('{watched}', wait => '5 min') \gset
SELECT jobq.set_progress(:id, :token, 30);
COMMIT;
SELECT jobq.nack(:id, :token, 'another secret', delay => '0');
SELECT token FROM jobq.reserve('{watched}', wait => '5 min') \gset
SELECT jobq.ack(:id, :token, '"third secret"');
CALL test.hear();
SELECT payload::jsonb - 'id' AS payload FROM test.heard ORDER BY n;
SELECT jobq.drop_queue('watched');

-- batches and workflows notify each change, too
SELECT jobq.create_batch() AS batch \gset
SELECT dblink_exec('listener', format('LISTEN jobq_batch_%s', :batch));
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{1,2}');
SELECT jobq.start_batch(:batch);
SELECT state, total, completed FROM jobq.wait_batch(:batch);
CALL test.hear();
SELECT payload::jsonb - 'id' AS payload FROM test.heard ORDER BY n;
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "broken", "max_attempts": 1, "queue": "manual"}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS batch \gset
SELECT dblink_exec('listener', format('LISTEN jobq_batch_%s', :batch));
CALL jobq.work(queues => '{manual}', max_jobs => 1, max_time => '5 min');
SELECT state, dead, cancelled FROM jobq.wait_batch(:batch);
SELECT jobq.retry_many(batch_id => :batch);
SELECT jobq.cancel_batch(:batch);
SELECT state, dead, cancelled FROM jobq.wait_batch(:batch);
CALL test.hear();
SELECT payload::jsonb - 'id' AS payload FROM test.heard ORDER BY n;

SELECT jobq.test_clock('0') \g /dev/null
SELECT dblink_disconnect('listener');
DROP TABLE test.heard;
DROP EXTENSION dblink;
