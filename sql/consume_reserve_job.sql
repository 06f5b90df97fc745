-- reserve_job(): a consumer reserves a given job.
SELECT jobq.create_queue('desk', open => true, mode => 'consumer');
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
CREATE FUNCTION pg_temp.post(what text, "group" text DEFAULT NULL, kind text DEFAULT 'paper', delay interval DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue(kind, to_jsonb(what), 'desk', group_key => "group", delay => delay, headers => headers)
$$;
-- Reserves a job briefly and returns the payload, or null.
CREATE FUNCTION pg_temp.had(id bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	taken jobq.reserved_job;
BEGIN
	SELECT * INTO taken FROM jobq.reserve_job(id);
	IF FOUND THEN
		PERFORM jobq.release(taken.id, taken.token);
	END IF;
	RETURN taken.payload;
END $$;

SELECT pg_temp.post('a') AS a, pg_temp.post('b') AS b, pg_temp.post('c') AS c, pg_temp.post('later', delay => '1 day') AS later \gset
SELECT id = :b AS same, token AS b_token, queue, kind, payload, attempt, lease_until BETWEEN now() + '50s' AND clock_timestamp() + '1 min' AS lease
	FROM jobq.reserve_job(:b, '1 min', 'clerk') \gset
\echo :same :queue :kind :payload :attempt :lease
SELECT state, attempt FROM jobq.status(:b);
SELECT consumer, running FROM jobq.workers WHERE type = 'consumer';
SELECT count(*) FROM jobq_internal.lease WHERE :b = ANY (job_ids);

-- a reserved, scheduled, completed or unknown job cannot be reserved
SELECT pg_temp.had(:b) AS held, pg_temp.had(:later) AS later, pg_temp.had(0) AS unknown;
SELECT jobq.ack(:b, :b_token);
SELECT pg_temp.had(:b) AS over;
BEGIN;
SELECT pg_temp.had(pg_temp.post('mine')) AS not_committed;
ROLLBACK;

-- reserve() returns the other jobs, and a job after its release or after a rolled back reservation
SELECT pg_temp.had(:c);
BEGIN;
SELECT payload FROM jobq.reserve_job(:a);
ROLLBACK;
SELECT payload FROM jobq.reserve('{desk}', wait => '5 min');
SELECT payload FROM jobq.reserve('{desk}', wait => '5 min');
SELECT jobq.cancel_many(queue => 'desk', state => 'waiting') IS NOT NULL AS cleared, count(jobq.cancel(id)) FROM jobq.live_jobs WHERE queue = 'desk';

-- jobs of another role
SET ROLE regress_jobq_alice;
SELECT pg_temp.post('of alice') AS hers \gset
SET ROLE regress_jobq_bob;
SELECT pg_temp.had(:hers);
SET ROLE regress_jobq_alice;
SELECT pg_temp.had(:hers);
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_bob', 'consume', 'desk');
SET ROLE regress_jobq_bob;
SELECT pg_temp.had(:hers);
RESET ROLE;
SELECT jobq.pause('desk');
SELECT pg_temp.had(:hers) AS paused;
SELECT jobq.resume('desk');
SELECT pg_temp.had(:hers) AS resumed;

-- limits of the queue and of the kind
SELECT jobq.alter_queue('desk', max_running => 1);
SELECT test.until(format('pg_temp.had(%s) IS NOT NULL', :hers)) AS limits_are_known;
SELECT pg_temp.post('other') AS other \gset
SELECT id, token FROM jobq.reserve_job(:hers) \gset held_
SELECT pg_temp.had(:other) AS full, count(*) AS more FROM jobq.reserve('{desk}');
SELECT jobq.ack(:held_id, :held_token);
SELECT pg_temp.had(:other) AS free;
SELECT jobq.create_limiter('desks', max_running => 1, by => 'tenant'), jobq.alter_queue('desk', max_running => 0, tenant => 'header tenant', limiters => '{desks}');
SELECT pg_temp.post('x1', headers => '{"tenant": "x"}') AS x1, pg_temp.post('x2', headers => '{"tenant": "x"}') AS x2, pg_temp.post('y1', headers => '{"tenant": "y"}') AS y1 \gset
SELECT test.until(format('pg_temp.had(%s) IS NOT NULL', :x2)) AS limits_are_known;
SELECT id, token FROM jobq.reserve_job(:x2) \gset held_
SELECT pg_temp.had(:x1) AS full, pg_temp.had(:y1) AS of_another;
SELECT jobq.ack(:held_id, :held_token);
SELECT pg_temp.had(:x1) AS free;
SELECT jobq.alter_queue('desk', tenant => 'none', limiters => '{}'), jobq.drop_limiter('desks');

-- a group keeps the order
SELECT pg_temp.post('g1', 'g') AS g1, pg_temp.post('g2', 'g') AS g2, pg_temp.post('h1', 'h') AS h1 \gset
SELECT pg_temp.had(:g2) AS not_first;
SELECT id, token FROM jobq.reserve_job(:g1) \gset held_
SELECT pg_temp.had(:g2) AS first_is_held, pg_temp.had(:h1) AS of_another;
SELECT jobq.ack(:held_id, :held_token);
SELECT pg_temp.had(:g2) AS now_first;

-- each remaining job is returned once
CREATE TEMP TABLE rest (payload jsonb);
DO $$
DECLARE
	n int := (SELECT count(*) FROM jobq.live_jobs WHERE queue = 'desk' AND run_at < now());
BEGIN
	WHILE (SELECT count(*) FROM rest) < n LOOP
		WITH r AS (SELECT * FROM jobq.reserve('{desk}', wait => '5 min')), done AS (SELECT jobq.ack(id, token) FROM r)
		INSERT INTO rest SELECT payload FROM r, done;
		COMMIT;
	END LOOP;
END $$;
SELECT string_agg(payload #>> '{}', ' ' ORDER BY payload #>> '{}') FROM rest;
CALL test.settle();
SELECT count(*) FROM jobq.reserve('{desk}');

-- bad input
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
SELECT * FROM test.error(format('SELECT * FROM jobq.reserve_job(%s)', :id));
SELECT * FROM test.error('SELECT * FROM jobq.reserve_job(NULL)');
SELECT * FROM test.error('SELECT * FROM jobq.reserve_job(1, NULL)');
SELECT * FROM test.error('SELECT * FROM jobq.reserve_job(1, ''0'')');
SET ROLE regress_jobq_nobody;
SELECT * FROM test.error('SELECT * FROM jobq.reserve_job(1)');
RESET ROLE;

SELECT jobq.cancel(:id), jobq.cancel_many(queue => 'desk', state => 'waiting') IS NOT NULL AS cleared;
SELECT jobq.drop_queue('desk', force => true);
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
