-- Jobs of groups in the calls of a set handler: in order, and none before an earlier job of the group that runs again.
CREATE SEQUENCE test.group_calls;
CREATE TABLE test.group_ran (at bigserial, call bigint, jobs int, job bigint, grp text);
-- writes the jobs of each group in the order of the array
CREATE FUNCTION test.group_note(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	call bigint := nextval('test.group_calls');
	job jobq.job_context;
BEGIN
	FOREACH job IN ARRAY jobs LOOP
		IF job.payload ->> 'do' = 'fail' AND job.attempt = 1 OR job.payload ->> 'do' = 'die' THEN
			RAISE EXCEPTION 'bad job';
		ELSIF job.payload ->> 'do' = 'nack' AND job.attempt = 1 THEN
			PERFORM jobq.nack(job.id, NULL, 'not yet', '1 ms');
		ELSIF job.payload ->> 'do' = 'release' AND job.run_at <= job.enqueued_at THEN
			PERFORM jobq.release(job.id, NULL, '1 ms');
		ELSIF job.payload ->> 'do' = 'reject' THEN
			PERFORM jobq.reject(job.id, NULL, 'never');
		ELSE
			INSERT INTO test.group_ran (call, jobs, job, grp) VALUES (call, cardinality(jobs), job.id, job.payload ->> 'group');
		END IF;
	END LOOP;
END
$$;
SELECT jobq.register('group_note', 'test.group_note(jobq.job_context[])', queue => 'sets', max_attempts => 3, backoff => 'fixed 1ms', chunk => 200);

CREATE PROCEDURE test.group_run(enqueue text) LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
BEGIN
	TRUNCATE test.group_ran;
	PERFORM jobq.pause('sets');
	COMMIT;
	EXECUTE 'SELECT array_agg(' || enqueue INTO ids;
	PERFORM set_config('test.group_ids', ids::text, false);
	COMMIT;
	PERFORM jobq.resume('sets');
END
$$;
CREATE FUNCTION test.group_result() RETURNS TABLE (state text, jobs bigint) LANGUAGE sql AS $$
	SELECT state, count(*) FROM jobq.wait_many(current_setting('test.group_ids')::bigint[], '5 min') GROUP BY 1 ORDER BY 1
$$;
CREATE VIEW test.group_order AS
	SELECT count(*) AS ran, count(DISTINCT job) AS jobs, count(*) FILTER (WHERE previous > job) AS early
	FROM (SELECT job, lag(job) OVER (PARTITION BY grp ORDER BY at) AS previous FROM test.group_ran) r;

-- the jobs of a group run in the same call
CALL test.group_run($$jobq.enqueue('group_note', '{"group": "a"}', group_key => 'a')) FROM generate_series(1, 40) i$$);
SELECT * FROM test.group_result();
SELECT *, (SELECT count(DISTINCT call) FROM test.group_ran) < 20 AS few FROM test.group_order;

-- the jobs of several groups, and of none
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', coalesce('g' || nullif(i % 4, 3), 'job' || i)), group_key => 'g' || nullif(i % 4, 3))) FROM generate_series(1, 120) i$$);
SELECT * FROM test.group_result();
SELECT *, (SELECT max(jobs) > 1 FROM test.group_ran) AS together FROM test.group_order;

-- a job fails, and the further jobs of its group wait for the next attempt; the other groups do not
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 3, 'do', CASE i WHEN 17 THEN 'fail' END), group_key => 'g' || i % 3)) FROM generate_series(1, 60) i$$);
SELECT * FROM test.group_result();
SELECT * FROM test.group_order;

-- a dead letter, and a rejected job: the group goes on
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 3, 'do', CASE i WHEN 10 THEN 'die' WHEN 20 THEN 'reject' END), group_key => 'g' || i % 3)) FROM generate_series(1, 60) i$$);
SELECT * FROM test.group_result();
SELECT * FROM test.group_order;
SELECT count(jobq.delete(id)) FROM jobq.dead_letters WHERE id = ANY (current_setting('test.group_ids')::bigint[]);

-- the handler asks for another attempt: the call runs again without the further jobs of the group
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 3, 'do', CASE i WHEN 10 THEN 'nack' WHEN 20 THEN 'release' WHEN 21 THEN 'nack' END), group_key => 'g' || i % 3)) FROM generate_series(1, 60) i$$);
SELECT * FROM test.group_result();
SELECT * FROM test.group_order;

-- each job asks for another attempt
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 2, 'do', 'nack'), group_key => 'g' || i % 2)) FROM generate_series(1, 12) i$$);
SELECT * FROM test.group_result();
SELECT * FROM test.group_order;

-- the group of a queue with jobs of other kinds, and of the database
SELECT jobq.alter_queue('sets', group_scope => 'database');
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 2, 'do', CASE i WHEN 5 THEN 'fail' WHEN 12 THEN 'nack' END), priority => CASE WHEN i % 10 = 9 THEN -1 ELSE 0 END, group_key => 'g' || i % 2)) FROM generate_series(1, 40) i$$);
SELECT * FROM test.group_result();
SELECT ran, jobs FROM test.group_order;
SELECT jobq.alter_queue('sets', group_scope => 'queue');

-- groups with group_on_failure => continue, or with several running jobs
SELECT jobq.alter_queue('sets', group_on_failure => 'continue');
CALL test.group_run($$jobq.enqueue('group_note', jsonb_build_object('group', 'g' || i % 2, 'do', CASE i WHEN 5 THEN 'fail' WHEN 12 THEN 'nack' WHEN 14 THEN 'nack' END), group_key => 'g' || i % 2)) FROM generate_series(1, 40) i$$);
SELECT * FROM test.group_result();
SELECT ran, jobs FROM test.group_order;
SELECT jobq.alter_queue('sets', group_on_failure => 'wait', group_max_running => 2);
CALL test.group_run($$jobq.enqueue('group_note', '{"group": "g"}', group_key => 'g')) FROM generate_series(1, 20) i$$);
SELECT * FROM test.group_result();
SELECT ran, jobs, (SELECT max(jobs) FROM test.group_ran) AS largest FROM test.group_order;
SELECT jobq.alter_queue('sets', group_max_running => 1);

-- jobs of a call are cancelled, and its worker is terminated: the rest completes in order
CREATE FUNCTION test.group_wait(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(4711);
	PERFORM test.group_note(jobs);
END
$$;
SELECT jobq.register('group_note', 'test.group_wait(jobq.job_context[])', queue => 'sets', max_attempts => 3, backoff => 'fixed 1ms', chunk => 200);
SELECT pg_advisory_lock(4711);
CALL test.group_run($$jobq.enqueue('group_note', '{"group": "g"}', group_key => 'g')) FROM generate_series(1, 20) i$$);
SELECT test.until($$ (SELECT count(*) FROM jobq.jobs WHERE kind = 'group_note' AND state = 'running') > 0 $$);
SELECT max(id) AS last, count(*) AS running FROM jobq.jobs WHERE kind = 'group_note' AND state = 'running' \gset
SELECT running FROM jobq.limits WHERE type = 'group';
SELECT jobq.cancel(:last);
SELECT state FROM test.outcome(:last);
SELECT test.until(format('(SELECT count(*) FROM jobq.jobs WHERE kind = ''group_note'' AND state = ''running'') >= %s', :running - 1));
SELECT count(pg_terminate_backend(pid)) < 100 AS terminated FROM jobq.workers WHERE kind = 'group_note';
SELECT pg_advisory_unlock(4711);
SELECT * FROM test.group_result();
SELECT ran, jobs, early FROM test.group_order;
SELECT test.until($$ NOT EXISTS (SELECT FROM jobq.limits WHERE type = 'group') $$);

SELECT jobq.unregister('group_note');
DROP VIEW test.group_order;
DROP TABLE test.group_ran;
DROP SEQUENCE test.group_calls;
DROP PROCEDURE test.group_run;
DROP FUNCTION test.group_note, test.group_wait, test.group_result;
