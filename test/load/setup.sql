-- A mixed load with a check: the functions for test/load/load, and the tables
-- that prove that no job was lost or done twice.  Run in the database of the
-- load, as a superuser, after CREATE EXTENSION jobq.

CREATE SCHEMA load;
SELECT count(*) AS roles FROM pg_roles WHERE rolname ~ '^load_[abc]$' \gset
SELECT :roles = 0 AS make_roles \gset
\if :make_roles
CREATE ROLE load_a LOGIN;
CREATE ROLE load_b LOGIN;
CREATE ROLE load_c LOGIN;
\endif
SELECT jobq.grant_privilege('load_a'), jobq.grant_privilege('load_b'), jobq.grant_privilege('load_c');
GRANT USAGE ON SCHEMA load TO PUBLIC;

-- Enqueued jobs without a proof of completion; effects of jobs; faults.
CREATE TABLE load.sent (job bigint NOT NULL);
CREATE TABLE load.effect (job bigint NOT NULL);
CREATE TABLE load.proved (job bigint PRIMARY KEY);
CREATE TABLE load.batch (id bigint PRIMARY KEY);
CREATE TABLE load.fault (at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL, job bigint);
CREATE TABLE load.total (n bigint NOT NULL);
INSERT INTO load.total VALUES (0);
GRANT INSERT ON load.sent, load.effect, load.fault TO PUBLIC;
GRANT SELECT, INSERT, DELETE ON load.batch TO PUBLIC;
-- A publication may contain all tables.
ALTER TABLE load.sent REPLICA IDENTITY FULL;
ALTER TABLE load.effect REPLICA IDENTITY FULL;
ALTER TABLE load.total REPLICA IDENTITY FULL;
-- These tables are written and emptied all the time.
ALTER TABLE load.sent SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE load.effect SET (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);

CREATE FUNCTION load.note(payload jsonb, job jobq.job_context) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
	INSERT INTO load.effect VALUES (job.id);
	SELECT payload;
END;

CREATE FUNCTION load.flaky(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	INSERT INTO load.effect VALUES (job.id);
	IF job.attempt = 1 THEN
		RAISE EXCEPTION 'the first attempt fails' USING ERRCODE = 'LOAD1';
	END IF;
END $$;

CREATE PROCEDURE load.by_steps(payload jsonb, job jobq.job_context)
LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		COMMIT;
		PERFORM jobq.set_progress(30 * i);
	END LOOP;
	INSERT INTO load.effect VALUES (job.id);
END $$;

-- The callback of a batch comes once.
CREATE FUNCTION load.batch_over(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	INSERT INTO load.effect VALUES (job.id);
	DELETE FROM load.batch b WHERE b.id = (job.headers ->> 'batch_id')::bigint;
	IF NOT FOUND THEN
		INSERT INTO load.fault (what, job) VALUES ('a second callback of batch ' || (job.headers ->> 'batch_id'), job.id);
	END IF;
END $$;

SELECT jobq.register('load_note', 'load.note(jsonb, jobq.job_context)'),
	jobq.register('load_flaky', 'load.flaky(jsonb, jobq.job_context)', backoff => 'fixed 200ms'),
	jobq.register('load_steps', 'load.by_steps(jsonb, jobq.job_context)', max_running => 2),
	jobq.register('load_over', 'load.batch_over(jsonb, jobq.job_context)');
SELECT jobq.create_queue('load_limited', open => true, rate => '100 per second burst 20', max_running => 3),
	jobq.create_queue('load_fair', open => true, tenant => 'header tenant', fair => 'jobs', group_max_running => 1),
	jobq.create_queue('load_outside', open => true, mode => 'consumer'),
	jobq.create_queue('load_memory', open => true, mode => 'consumer', lease => 'memory');
SELECT jobq.schedule('load_tick', 'every 1 second', 'load_note');

-- A completed job in the archive has exactly one effect: job and effect are one
-- transaction, so a single snapshot shows both.  Checked rows are removed, so
-- that the tables do not grow.
CREATE PROCEDURE load.verify()
LANGUAGE plpgsql AS $$
BEGIN
	WITH done AS MATERIALIZED (
			SELECT a.id, a.state FROM jobq_internal.archive a
			WHERE a.kind ^@ 'load_' AND NOT EXISTS (SELECT FROM load.proved p WHERE p.job = a.id)),
		effect AS (SELECT e.job, count(*) AS times FROM load.effect e GROUP BY e.job),
		wrong AS (
			INSERT INTO load.fault (what, job)
			SELECT CASE WHEN done.state <> 'c' THEN 'ended as ' || done.state::text
				ELSE coalesce(effect.times, 0) || ' effects' END, done.id
			FROM done LEFT JOIN effect ON effect.job = done.id
			WHERE done.state <> 'c' OR effect.times IS DISTINCT FROM 1),
		sent AS (DELETE FROM load.sent s USING done WHERE s.job = done.id),
		effects AS (DELETE FROM load.effect e USING done WHERE e.job = done.id),
		total AS (UPDATE load.total SET n = n + (SELECT count(*) FROM done))
	INSERT INTO load.proved SELECT id FROM done;
	COMMIT;
	INSERT INTO load.fault (what, job) SELECT 'dead letter: ' || error, id FROM jobq_internal.dead_letter WHERE kind ^@ 'load_';
	PERFORM jobq.delete_many(state => 'dead');
	COMMIT;
	PERFORM jobq.prune('30 s');
	COMMIT;
	DELETE FROM load.proved p WHERE NOT EXISTS (SELECT FROM jobq_internal.archive a WHERE a.id = p.job);
	WITH gone AS (DELETE FROM jobq_internal.batch b WHERE b.finished_at < clock_timestamp() - interval '1 minute' RETURNING id)
		DELETE FROM jobq_internal.step s USING gone WHERE s.batch_id = gone.id;
END $$;
