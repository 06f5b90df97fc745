-- Moves waiting jobs of Laravel's database queue to jobq, where the driver jobq/laravel runs them.
--
-- usage: psql [-v jobs=jobs] [-v failed=failed_jobs] [-v connection=jobq] [-v retry_after=90] [-v dry_run=1] -f laravel.sql
--
-- jobs, failed  the tables
-- connection    the connection with the driver jobq in config/queue.php
-- retry_after   as of the connection that is left: a job reserved for longer was lost by its worker
--
-- Run it as the role of the application, when the application already dispatches to jobq.  Workers
-- of the old connection may go on; run the script again when they have ended.
--
-- Kept are the queue, the payload, the time of the next attempt, and the number of attempts, which
-- stands in the payload.  Not kept is created_at.  Failed jobs stay in their table, and queue:retry
-- pushes them to jobq: config/queue.php names the table in queue.failed.table.
\set ON_ERROR_STOP on
\if :{?jobs}
\else
	\set jobs jobs
\endif
\if :{?failed}
\else
	\set failed failed_jobs
\endif
\if :{?connection}
\else
	\set connection jobq
\endif
\if :{?retry_after}
\else
	\set retry_after 90
\endif

BEGIN;
CREATE TEMP VIEW source AS SELECT * FROM :jobs;
CREATE TEMP TABLE outcome (source bigint, queue text, reason text);
SELECT set_config('migrate.connection', :'connection', true), set_config('migrate.retry_after', :'retry_after', true) \g /dev/null

-- A payload as the driver stores it.  PHP serializes zero bytes, which jsonb does not have: a text with
-- such a byte is in base64.  "zero" stands for the byte until then.
CREATE FUNCTION pg_temp.packed(value jsonb, zero text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF jsonb_typeof(value) = 'object' THEN
		IF EXISTS (SELECT FROM jsonb_object_keys(value) AS key WHERE key LIKE '%' || zero || '%') THEN
			RAISE EXCEPTION 'a key of the payload has a zero byte';
		END IF;
		RETURN (SELECT coalesce(jsonb_object_agg(e.key, pg_temp.packed(e.value, zero)), '{}') FROM jsonb_each(value) AS e);
	ELSIF jsonb_typeof(value) = 'array' THEN
		RETURN (SELECT coalesce(jsonb_agg(pg_temp.packed(e, zero) ORDER BY n), '[]')
			FROM jsonb_array_elements(value) WITH ORDINALITY AS a (e, n));
	ELSIF jsonb_typeof(value) = 'string' AND (value #>> '{}' LIKE 'base64:%' OR position(zero IN value #>> '{}') > 0) THEN
		RETURN (SELECT to_jsonb('base64:' || translate(encode(string_agg(convert_to(part, 'UTF8'), '\x00' ORDER BY n), 'base64'), E'\n', ''))
			FROM string_to_table(value #>> '{}', zero) WITH ORDINALITY AS parts (part, n));
	END IF;
	RETURN value;
END
$$;

-- The driver's name of a queue: jobq has names of up to 51 bytes.
CREATE FUNCTION pg_temp.queue_of(name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	cut text := name;
BEGIN
	IF octet_length(name) <= 51 THEN
		RETURN name;
	END IF;
	WHILE octet_length(cut) > 34 LOOP
		cut := left(cut, -1);
	END LOOP;
	RETURN cut || '~' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 16);
END
$$;

DO $$
DECLARE
	zero text := gen_random_uuid();
	job record;
	payload jsonb;
BEGIN
	FOR job IN SELECT * FROM pg_temp.source
		WHERE reserved_at IS NULL OR reserved_at < extract(epoch FROM now()) - current_setting('migrate.retry_after')::int
		ORDER BY id FOR UPDATE SKIP LOCKED
	LOOP
		-- a job that cannot be moved stays, with the reason
		BEGIN
			-- an escaped backslash may stand before "u0000"
			payload := pg_temp.packed(replace(replace(job.payload, '\\', '\u005c'), '\u0000', zero)::jsonb, zero);
			PERFORM jobq.enqueue(left(coalesce(payload ->> 'displayName', payload ->> 'job', 'laravel'), 100),
				payload || jsonb_build_object('attempts', coalesce((payload -> 'attempts')::int, 0) + job.attempts),
				pg_temp.queue_of(job.queue), run_at => to_timestamp(job.available_at), max_attempts => 0, backoff => 'fixed 1s',
				headers => jsonb_build_object('laravel', current_setting('migrate.connection')));
			DELETE FROM pg_temp.source WHERE id = job.id;
			INSERT INTO outcome VALUES (job.id, job.queue, NULL);
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcome VALUES (job.id, job.queue, SQLERRM);
		END;
	END LOOP;
END
$$;
INSERT INTO outcome
	SELECT id, queue, CASE WHEN reserved_at IS NULL THEN 'locked by another session' ELSE 'reserved by a worker' END
	FROM pg_temp.source s WHERE NOT EXISTS (SELECT FROM outcome WHERE source = s.id);

\echo Moved jobs (without a reason), and remaining jobs:
SELECT queue, coalesce(reason, '') AS reason, count(*) AS jobs, min(source) AS first_id FROM outcome
GROUP BY queue, reason ORDER BY queue, reason NULLS FIRST;

\echo Failed jobs, which stay in their table; queue:retry pushes them to jobq:
SELECT to_regclass(:'failed') IS NOT NULL AS there \gset
\if :there
	WITH changed AS (UPDATE :failed SET connection = :'connection' WHERE connection = 'database' RETURNING queue)
	SELECT queue, count(*) AS jobs FROM changed GROUP BY queue ORDER BY queue;
\endif

DROP TABLE outcome;
DROP VIEW source;
\if :{?dry_run}
	ROLLBACK;
\else
	COMMIT;
\endif
