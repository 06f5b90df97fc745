-- Moves waiting jobs of your own table, as used with FOR UPDATE SKIP LOCKED, to jobq.
--
-- usage: psql [-v dry_run=1] -f skip-locked.sql
--
-- Edit the two views.  Your workers may go on meanwhile: a row that a worker has locked stays, and the script can run
-- again.  Run it as the role that enqueues, with the rights to delete from the table.
\set ON_ERROR_STOP on

BEGIN;

-- The jobs to move, in the words of jobq.  Each column must be there; null means the default of the kind or queue.
CREATE TEMP VIEW source AS SELECT
	id AS source,				-- the primary key
	kind,						-- or a text: 'mail.send'
	payload,					-- jsonb
	queue,
	-priority AS priority,		-- in jobq, the smallest number runs first
	run_at,
	greatest(max_attempts - attempts, 1) AS max_attempts,	-- the attempts that are left; 0 means no limit
	NULL::text AS unique_key,
	NULL::text AS group_key,	-- jobs with the same key run one at a time
	NULL::jsonb AS headers
FROM jobs
WHERE status = 'waiting';

-- The rows that stay, and why.
CREATE TEMP VIEW others AS SELECT id AS source, 'is ' || status AS reason FROM jobs WHERE status <> 'waiting';

-- Nothing to edit from here on.
CREATE TEMP TABLE outcome (source text, kind text, queue text, reason text);
DO $$
DECLARE
	job record;
BEGIN
	FOR job IN SELECT * FROM pg_temp.source ORDER BY run_at, source FOR UPDATE SKIP LOCKED LOOP
		-- a job that cannot be moved stays, with the reason
		BEGIN
			PERFORM jobq.enqueue(job.kind, job.payload, job.queue, job.priority, job.run_at, max_attempts => job.max_attempts,
				unique_key => job.unique_key, group_key => job.group_key, headers => job.headers,
				uniqueness => CASE WHEN job.unique_key IS NOT NULL THEN jsonb '{"on_conflict": "error"}' END);
			DELETE FROM pg_temp.source WHERE source = job.source;
			INSERT INTO outcome VALUES (job.source, job.kind, job.queue, NULL);
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcome VALUES (job.source, job.kind, job.queue, SQLERRM);
		END;
	END LOOP;
END
$$;
INSERT INTO outcome
	SELECT source, kind, queue, 'locked by another session' FROM pg_temp.source s
	WHERE NOT EXISTS (SELECT FROM outcome o WHERE o.source = s.source::text)
	UNION ALL SELECT source, NULL, NULL, reason FROM pg_temp.others;

\echo Moved jobs (without a reason), and remaining jobs:
SELECT kind, queue, coalesce(reason, '') AS reason, count(*) AS jobs, min(source) AS first_id FROM outcome
GROUP BY kind, queue, reason ORDER BY kind, queue, reason NULLS FIRST;

DROP TABLE outcome;
DROP VIEW source, others;
\if :{?dry_run}
	ROLLBACK;
\else
	COMMIT;
\endif
