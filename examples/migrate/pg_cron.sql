-- Moves the jobs of pg_cron to schedules of jobq.
--
-- usage: psql [-v queue=default] [-v dry_run=1] -f pg_cron.sql
--
-- queue  the queue of the jobs; the queue must have workers
--
-- Run this script as a superuser, in the database of pg_cron.  Each schedule belongs to the role of the job in pg_cron.
-- The role needs a privilege: SELECT jobq.grant_privilege('role', 'sql').  Jobs in other databases need the setting
-- jobq.sql_databases.
--
-- A moved job becomes inactive in pg_cron.  The schedules behave like pg_cron: a failed run is not repeated, the server
-- misses a tick while down, and a run waits for the end of the previous run.  To change this behaviour, call
-- jobq.schedule() with the same name and other options.
\set ON_ERROR_STOP on
\if :{?queue}
\else
	\set queue default
\endif

BEGIN;
SELECT set_config('migrate.queue', :'queue', true) \g /dev/null
CREATE TEMP TABLE outcome (source bigint, name text, schedule text, reason text);
DO $$
DECLARE
	entry record;
	new_name text;
	expression text;
	elsewhere text;
	options jsonb := jsonb_build_object('queue', current_setting('migrate.queue'));
	zone text := coalesce(current_setting('cron.timezone', true), 'GMT');
BEGIN
	FOR entry IN SELECT * FROM cron.job ORDER BY jobid FOR UPDATE LOOP
		new_name := coalesce(entry.jobname, 'pg_cron ' || entry.jobid);
		expression := CASE
			WHEN entry.schedule ~* '^\s*\d+\s+seconds?\s*$' THEN 'every ' || (regexp_match(entry.schedule, '\d+'))[1] || ' seconds'
			-- the last day of the month
			ELSE regexp_replace(entry.schedule, '^(\s*\S+\s+\S+\s+)\$', '\1L') END;
		elsewhere := nullif(entry.database, current_database());
		-- if jobq refuses a job, the job stays, and the reason is shown
		BEGIN
			IF NOT entry.active THEN
				RAISE EXCEPTION 'is not active';
			ELSIF entry.nodename NOT IN ('', 'localhost', '127.0.0.1', '::1') AND entry.nodename NOT LIKE '/%' THEN
				RAISE EXCEPTION 'runs on another host, "%"', entry.nodename;
			ELSIF expression ~* '^\s*@reboot' THEN
				RAISE EXCEPTION 'jobq has no job for the start of the server';
			ELSIF EXISTS (SELECT FROM jobq.schedules s WHERE s.name = new_name) THEN
				RAISE EXCEPTION 'jobq has a schedule "%"', new_name;
			END IF;
			PERFORM set_config('role', entry.username, true);
			BEGIN
				PERFORM jobq.schedule(new_name, expression, sql => entry.command, database => elsewhere,
					timezone => zone, missed => 'skip', overlap => 'queue', options => options);
			EXCEPTION WHEN active_sql_transaction THEN	-- VACUUM and the like
				PERFORM jobq.schedule(new_name, expression, sql => entry.command, database => elsewhere, transaction => false,
					timezone => zone, missed => 'skip', overlap => 'queue', options => options);
			END;
			PERFORM set_config('role', 'none', true);
			UPDATE cron.job SET active = false WHERE jobid = entry.jobid;
			INSERT INTO outcome VALUES (entry.jobid, new_name, expression, NULL);
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcome VALUES (entry.jobid, new_name, entry.schedule, SQLERRM);
		END;
	END LOOP;
END
$$;

\echo Moved jobs (without a reason), and remaining jobs:
SELECT source AS jobid, name, schedule, coalesce(reason, '') AS reason FROM outcome ORDER BY reason IS NOT NULL, source;

DROP TABLE outcome;
\if :{?dry_run}
	ROLLBACK;
\else
	COMMIT;
\endif
