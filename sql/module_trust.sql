-- Objects that users can attach, call or change: misuse causes an error, never a crash.

-- trigger functions, on tables or views of the wrong form
SET ROLE regress_jobq_alice;
SELECT jobq_internal.inbox_insert();
RESET ROLE;
CREATE TEMP VIEW narrow AS SELECT 1 AS id;
CREATE TRIGGER enqueue INSTEAD OF INSERT ON narrow FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
INSERT INTO narrow VALUES (1);
CREATE TEMP VIEW typed AS SELECT 1::bigint AS id, 2::bigint AS kind, 3::bigint AS payload, 4::bigint AS queue,
	5 AS priority, now() AS run_at, 6::bigint AS delay, 7 AS max_attempts, now() AS retry_until, 8::bigint AS backoff,
	9::bigint AS timeout, now() AS expires_at, 10::bigint AS unique_key, 11::bigint AS uniqueness,
	12::bigint AS group_key, 13::bigint AS headers, 14::bigint AS tags, 15::bigint AS options;
CREATE TRIGGER enqueue INSTEAD OF INSERT ON typed FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
INSERT INTO typed SELECT * FROM typed;
CREATE TEMP VIEW inbox AS SELECT * FROM jobq.inbox;
CREATE TRIGGER enqueue INSTEAD OF INSERT ON pg_temp.inbox FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
INSERT INTO pg_temp.inbox (kind) VALUES ('echo');
CREATE TEMP TABLE plain (id bigint);
CREATE TRIGGER enqueue BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
INSERT INTO plain VALUES (1);
DROP TRIGGER enqueue ON plain;
CREATE TRIGGER enqueue BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('echo');
INSERT INTO plain VALUES (1);
DROP TRIGGER enqueue ON plain;
CREATE TRIGGER enqueue AFTER TRUNCATE ON plain EXECUTE FUNCTION jobq.enqueue_trigger('echo');
TRUNCATE plain;
DROP TRIGGER enqueue ON plain;
SELECT jobq_internal.inbox_insert();
CREATE TRIGGER row BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
INSERT INTO plain VALUES (1);
CREATE OR REPLACE TRIGGER row BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.loaded();
INSERT INTO plain VALUES (1);
CREATE OR REPLACE TRIGGER row BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.schedule_changed();
INSERT INTO plain VALUES (1);
CREATE OR REPLACE TRIGGER row AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
INSERT INTO plain VALUES (1);
DROP TRIGGER row ON plain;
INSERT INTO plain VALUES (1);
CREATE TRIGGER row BEFORE DELETE ON plain FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
DELETE FROM plain;
DROP TABLE plain;
DROP VIEW narrow, typed, pg_temp.inbox;

-- a handler in SQL that performs the same kind recursively, or has failed before
CREATE FUNCTION test.down(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_array(payload, jobq.perform('down', to_jsonb(payload::int - 1))) WHERE payload::int > 0
$$;
CREATE FUNCTION test.inverse(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT 1;
	SELECT to_jsonb(1 / payload::int)
$$;
CREATE FUNCTION test.inverses(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	results jsonb := '[]';
	n jsonb;
BEGIN
	FOR n IN SELECT jsonb_array_elements(payload) LOOP
		BEGIN
			results := results || jobq.perform('inverse', n);
		EXCEPTION WHEN division_by_zero THEN
			results := results || '"none"'::jsonb;
		END;
	END LOOP;
	RETURN results;
END
$$;
SELECT jobq.register('down', 'test.down(jsonb)'), jobq.register('inverse', 'test.inverse(jsonb)'), jobq.register('inverses', 'test.inverses(jsonb)');
SELECT jobq.perform('down', '3');
SELECT jobq.perform('down', '3');
SELECT jobq.perform('inverses', '[1, 0, 0, 1, 0, 1]');
SELECT jobq.unregister('down'), jobq.unregister('inverse'), jobq.unregister('inverses');

-- columns unknown to the library
CREATE FUNCTION test.widened(what text, query text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE what;
	EXECUTE query;
	RETURN 'none';
EXCEPTION WHEN feature_not_supported THEN
	RETURN SQLERRM;
END
$$;
CREATE FUNCTION test.aware(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
SELECT jobq.register('aware', 'test.aware(jsonb, jobq.job_context)'), jobq.create_queue('trust', mode => 'consumer');
SELECT jobq.enqueue('echo', queue => 'trust') > 0 AS enqueued;
SELECT test.widened('ALTER TABLE jobq_internal.job ADD extra int', $$SELECT jobq.enqueue('echo')$$);
SELECT test.widened('ALTER TABLE jobq_internal.queue ADD extra int', $$SELECT jobq.enqueue('echo', queue => 'trust')$$);
SELECT test.widened('ALTER TABLE jobq_internal.handler ADD extra int', $$SELECT jobq.enqueue('echo')$$);
SELECT test.widened('ALTER TABLE jobq_internal.unique_key ADD extra int', $$SELECT jobq.enqueue('echo', unique_key => 'trust')$$);
SELECT test.widened('ALTER TABLE jobq_internal.lease ADD extra int', $$SELECT jobq.reserve('{trust}', wait => '5 min')$$);
SELECT test.widened('ALTER TYPE jobq.reserved_job ADD ATTRIBUTE extra int', $$SELECT jobq.reserve('{trust}', wait => '5 min')$$);
SELECT test.widened('ALTER TABLE jobq_internal.step ADD extra int',
	$$SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo"}]}')$$);
SELECT test.widened('ALTER TYPE jobq.job_context ADD ATTRIBUTE extra int', $$SELECT jobq.perform('aware', '{}')$$);
SELECT test.widened('ALTER TYPE jobq.job_status ADD ATTRIBUTE extra int',
	$$SELECT jobq.status(jobq.enqueue('echo'))$$);
SELECT test.widened($$DO $do$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW jobq.inbox AS '
	|| regexp_replace(pg_get_viewdef('jobq.inbox'), '\s+WHERE', ', 1 AS extra WHERE'); END $do$ $$,
	$$INSERT INTO jobq.inbox (kind) VALUES ('echo')$$);

-- and columns of other types
SELECT test.widened('ALTER TYPE jobq.reserved_job ALTER ATTRIBUTE max_attempts TYPE text', $$SELECT jobq.reserve('{trust}', wait => '5 min')$$);
SELECT test.widened('ALTER TYPE jobq.job_context ALTER ATTRIBUTE attempt TYPE text', $$SELECT jobq.perform('aware', '{}')$$);
SELECT test.widened('ALTER TYPE jobq.job_context DROP ATTRIBUTE tenant', $$SELECT jobq.perform('aware', '{}')$$);
SELECT test.widened('ALTER TYPE jobq.job_status ALTER ATTRIBUTE attempt TYPE text', $$SELECT jobq.status(jobq.enqueue('echo'))$$);
SELECT test.widened('ALTER TYPE jobq.job_status ALTER ATTRIBUTE attempt TYPE text', $$SELECT jobq.wait_many(ARRAY[jobq.enqueue('echo')], '0')$$);
SELECT jobq.create_batch() AS batch \gset
SELECT test.widened('ALTER TYPE jobq.batch_status ALTER ATTRIBUTE total TYPE text', format('SELECT jobq.wait_batch(%s, ''0'')', :batch));
SELECT test.widened('ALTER TABLE jobq_internal.batch ALTER dormant DROP DEFAULT, ALTER dormant TYPE text', format('SELECT jobq.start_batch(%s)', :batch));
SELECT jobq.cancel_batch(:batch);
SELECT jobq.schedule('trust', '@yearly', 'echo');
SELECT test.widened('ALTER TABLE jobq_internal.schedule ALTER anchor TYPE text', $$SELECT jobq.run_schedule('trust')$$);
SELECT jobq.unschedule('trust');
SELECT jobq.cancel_many(queue => 'trust', state => 'waiting');
SELECT jobq.drop_queue('trust'), jobq.unregister('aware');

-- an index whose access method keeps state for the statement
CREATE INDEX trust ON jobq_internal.job USING brin (enqueued_at);
SELECT count(*) FROM jobq.enqueue_many('echo', '{1,2,3}', delay => '1 hour');
SELECT count(jobq.enqueue('echo', delay => '1 hour')) FROM generate_series(1, 3);
DROP INDEX jobq_internal.trust;
SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE kind = 'echo' AND state = 'scheduled';
