-- Moves waiting jobs of graphile-worker (from version 0.16 on) to jobq.
--
-- usage: psql [-v schema=graphile_worker] [-v queue=tasks] [-v dry_run=1] -f graphile-worker.sql
--
-- schema  the schema of graphile-worker
-- queue   the queue of all jobs, for example one for consumers in JavaScript; by default, the queue of each kind
--
-- A task is a kind.  Kept are the payload, the priority, the time of the next attempt, the attempts that are left, the
-- job_key as a unique key of the database, the queue_name as a group, and the flags as tags.  Not kept are created_at
-- and last_error.  A job stays if it runs, if a job of the same queue_name runs, or if it has failed for good; run the
-- script again when graphile-worker has ended.  A crontab is in a file of graphile-worker: write a jobq.schedule() for each
-- line.
\set ON_ERROR_STOP on
\if :{?schema}
\else
	\set schema graphile_worker
\endif
\if :{?queue}
\else
	\set queue ''
\endif

BEGIN;
SELECT set_config('migrate.queue', :'queue', true) \g /dev/null
-- a worker gives its lock up after four hours
CREATE TEMP VIEW source AS SELECT *, locked_at > now() - interval '4 hours' AS runs FROM :"schema"._private_jobs;
CREATE TEMP VIEW tasks AS SELECT * FROM :"schema"._private_tasks;
CREATE TEMP VIEW serial AS SELECT *, locked_at > now() - interval '4 hours' AS runs FROM :"schema"._private_job_queues;
CREATE TEMP TABLE outcome (source bigint, kind text, reason text);

DO $$
DECLARE
	job record;
BEGIN
	FOR job IN SELECT s.*, t.identifier, q.queue_name FROM pg_temp.source s JOIN pg_temp.tasks t ON t.id = s.task_id
			LEFT JOIN pg_temp.serial q ON q.id = s.job_queue_id
		WHERE s.runs IS NOT TRUE AND q.runs IS NOT TRUE AND s.attempts < s.max_attempts
		ORDER BY s.priority, s.run_at, s.id FOR UPDATE OF s SKIP LOCKED
	LOOP
		-- a job that cannot be moved stays, with the reason
		BEGIN
			PERFORM jobq.enqueue(job.identifier, job.payload::jsonb, nullif(current_setting('migrate.queue'), ''), job.priority, job.run_at,
				max_attempts => job.max_attempts - job.attempts, unique_key => job.key,
				uniqueness => CASE WHEN job.key IS NOT NULL THEN jsonb '{"scope": "database", "on_conflict": "error"}' END,
				group_key => job.queue_name, tags => ARRAY(SELECT jsonb_object_keys(job.flags)));
			DELETE FROM pg_temp.source WHERE id = job.id;
			INSERT INTO outcome VALUES (job.id, job.identifier, NULL);
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcome VALUES (job.id, job.identifier, SQLERRM);
		END;
	END LOOP;
END
$$;
INSERT INTO outcome
	SELECT s.id, t.identifier, CASE
		WHEN s.runs THEN 'runs'
		WHEN q.runs THEN format('a job of queue_name "%s" runs', q.queue_name)
		WHEN s.attempts >= s.max_attempts THEN 'has failed for good: ' || coalesce(s.last_error, 'no error')
		ELSE 'locked by another session' END
	FROM pg_temp.source s JOIN pg_temp.tasks t ON t.id = s.task_id LEFT JOIN pg_temp.serial q ON q.id = s.job_queue_id
	WHERE NOT EXISTS (SELECT FROM outcome WHERE source = s.id);

\echo Moved jobs (without a reason), and remaining jobs:
SELECT kind, coalesce(reason, '') AS reason, count(*) AS jobs, min(source) AS first_id FROM outcome
GROUP BY kind, reason ORDER BY kind, reason NULLS FIRST;

DROP TABLE outcome;
DROP VIEW source, tasks, serial;
\if :{?dry_run}
	ROLLBACK;
\else
	COMMIT;
\endif
