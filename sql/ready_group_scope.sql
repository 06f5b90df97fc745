-- Groups with scope "database": a single job at a time, in order, across queues.

CREATE TABLE test.shared_step (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, g text, i int, queue text);
GRANT INSERT ON test.shared_step TO PUBLIC;
-- A step that fails if another job of the group runs: pg_try_advisory_xact_lock() does not wait for the lock.
CREATE FUNCTION test.shared_step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF job.queue <> 'apart' AND NOT pg_try_advisory_xact_lock(hashtext('shared ' || current_user), hashtext(payload ->> 'g')) THEN
		RAISE EXCEPTION 'another job of group % runs', payload ->> 'g';
	END IF;
	IF job.attempt <= coalesce((payload ->> 'fails')::int, 0) THEN
		RAISE EXCEPTION 'attempt %', job.attempt;
	END IF;
	INSERT INTO test.shared_step (g, i, queue) VALUES (payload ->> 'g', (payload ->> 'i')::int, job.queue);
END
$$;
SELECT jobq.register('shared_step', 'test.shared_step(jsonb, jobq.job_context)', max_attempts => 1);
CREATE FUNCTION test.shared_step(g text, i int, queue text, more jsonb DEFAULT '{}') RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('shared_step', jsonb_build_object('g', g, 'i', i) || more, queue => queue, group_key => g,
		max_attempts => CASE WHEN more ? 'fails' THEN 5 END)
$$;
SELECT jobq.create_queue('shared1', open => true, group_scope => 'database'), jobq.create_queue('shared2', group_scope => 'database'),
	jobq.create_queue('apart', group_scope => 'queue');
SELECT name, group_scope FROM jobq.queues WHERE name IN ('shared1', 'shared2', 'apart', 'default') ORDER BY name;

-- in order across both queues, each job once, with four workers
SELECT count(test.shared_step('g' || g, i, 'shared' || 1 + (i + g) % 2)) FROM generate_series(1, 100) i, generate_series(1, 5) g;
SELECT test.until('(SELECT count(*) = 500 FROM test.shared_step)');
SELECT count(*), count(DISTINCT (g, i)) AS once, bool_and(i > previous) AS ordered, bool_or(queue <> before) AS mixed
FROM (SELECT g, i, queue, lag(i, 1, 0) OVER w AS previous, lag(queue) OVER w AS before FROM test.shared_step WINDOW w AS (PARTITION BY g ORDER BY n)) t;
TRUNCATE test.shared_step;

-- a retryable job blocks jobs in the other queue, but not the same key in a queue-scoped group
SELECT jobq.register('shared_step', 'test.shared_step(jsonb, jobq.job_context)', backoff => 'fixed 1h', max_attempts => 1);
SELECT test.shared_step('held', 1, 'shared1', '{"fails": 1}') AS first, test.shared_step('held', 2, 'shared2') AS second,
	test.shared_step('held', 3, 'apart') AS apart \gset
SELECT state FROM jobq.wait(:apart);
SELECT test.until(format('(SELECT attempt = 1 FROM jobq.status(%s))', :first));
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_for = %s)', :first));
CALL test.settle();
SELECT state FROM jobq.status(:second);
SELECT queue, group_key, waits_for = :first AS waits FROM jobq.limits WHERE type = 'group' AND group_key = 'held';
SELECT replace(reason, :'first', 'first') AS reason, replace(remedy, :'first', 'first') AS remedy FROM jobq.explain(:second);
-- nor the same key of another role
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('shared_step', '{"g": "held", "i": 1}', queue => 'shared1', group_key => 'held') AS hers \gset
RESET ROLE;
SELECT state FROM jobq.wait(:hers);
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT jobq.retry(:first);
SELECT state FROM jobq.wait_many(ARRAY[:first, :second]);
SELECT g, i, queue FROM test.shared_step ORDER BY n;
TRUNCATE test.shared_step;

-- a reassigned job belongs to a group of its new role, and the old group does not wait for it
CREATE ROLE regress_jobq_giver LOGIN;
CREATE ROLE regress_jobq_taker LOGIN;
SELECT jobq.grant_privilege('regress_jobq_giver'), jobq.grant_privilege('regress_jobq_taker');
SET ROLE regress_jobq_giver;
SELECT jobq.enqueue('shared_step', '{"g": "passed", "i": 1, "fails": 1}', queue => 'shared1', group_key => 'passed', max_attempts => 5) AS first,
	jobq.enqueue('shared_step', '{"g": "passed", "i": 2}', queue => 'shared1', group_key => 'passed') AS second \gset
RESET ROLE;
SELECT test.until(format('(SELECT count(*) = 1 FROM jobq.limits WHERE type = ''group'' AND waits_for = %s)', :first));
SELECT jobq.reassign_owned('regress_jobq_giver', 'regress_jobq_taker');
SELECT state FROM jobq.wait(:second);
SET ROLE regress_jobq_giver;
SELECT jobq.enqueue('shared_step', '{"g": "passed", "i": 3}', queue => 'shared1', group_key => 'passed') AS third \gset
RESET ROLE;
SELECT state FROM jobq.wait(:third);
SELECT jobq.cancel(:first);
SELECT role, i FROM test.shared_step s JOIN jobq.jobs j ON j.payload ->> 'i' = s.i::text AND j.payload ->> 'g' = s.g ORDER BY i;
SELECT jobq.revoke_privilege('regress_jobq_giver'), jobq.revoke_privilege('regress_jobq_taker');
DROP ROLE regress_jobq_giver, regress_jobq_taker;
TRUNCATE test.shared_step;

-- also if the job stays in its lane, because of run_as
CREATE ROLE regress_jobq_giver LOGIN;
CREATE ROLE regress_jobq_taker LOGIN;
CREATE ROLE regress_jobq_runner LOGIN;
SELECT jobq.grant_privilege('regress_jobq_giver'), jobq.grant_privilege('regress_jobq_taker');
SELECT jobq.create_queue('shared_as', open => true, group_scope => 'database', run_as => 'regress_jobq_runner');
SELECT jobq.register('gate', 'test.gate(jsonb)', queue => 'shared_as');
SELECT pg_advisory_lock(4200);
SET ROLE regress_jobq_taker;
SELECT jobq.enqueue('gate', '4200', queue => 'shared_as', group_key => 'as') AS running \gset
RESET ROLE;
SELECT test.in_gate(:running);
SELECT jobq.pause('shared_as');
SET ROLE regress_jobq_giver;
SELECT jobq.enqueue('gate', '4200', queue => 'shared_as', group_key => 'as', priority => -1) AS urgent,
	jobq.enqueue('gate', '4200', queue => 'shared_as', group_key => 'as') AS usual \gset
RESET ROLE;
CALL test.settle();
SELECT jobq.reassign_owned('regress_jobq_giver', 'regress_jobq_taker');
SELECT jobq.resume('shared_as');
CALL test.settle();
SELECT id = :running AS the_first, state FROM jobq.jobs WHERE queue = 'shared_as' ORDER BY id;
SELECT pg_advisory_unlock(4200);
SELECT state FROM jobq.wait_many(ARRAY[:running, :urgent, :usual], '5 min');
SELECT jobq.register('gate', 'test.gate(jsonb)');
SELECT jobq.drop_queue('shared_as');
SELECT jobq.revoke_privilege('regress_jobq_giver'), jobq.revoke_privilege('regress_jobq_taker');
DROP ROLE regress_jobq_giver, regress_jobq_taker, regress_jobq_runner;

-- a single job at a time across a consumer queue and a worker queue
SELECT jobq.create_queue('shared3', mode => 'consumer', group_scope => 'database');
SELECT test.shared_step('mixed', 1, 'shared3') AS first, test.shared_step('mixed', 2, 'shared1') AS second, test.shared_step('mixed', 3, 'shared3') AS third \gset
SELECT id AS taken, token FROM jobq.reserve('{shared3}', 5, wait => '1 min') \gset
SELECT :taken = :first AS first;
SELECT count(*) FROM jobq.reserve('{shared3}', 5);
CALL test.settle();
SELECT string_agg(state, ', ') FROM jobq.jobs WHERE id IN (:second, :third);
SELECT jobq.ack(:taken, :token);
SELECT state FROM jobq.wait(:second);
SELECT id AS taken, token FROM jobq.reserve('{shared3}', 5, wait => '1 min') \gset
SELECT :taken = :third AS third;
SELECT jobq.ack(:taken, :token);
TRUNCATE test.shared_step;

-- jobq.work() keeps the order, too
SELECT jobq.pause('shared1');
SELECT test.shared_step('by hand', 1, 'shared1') AS first, test.shared_step('by hand', 2, 'manual') AS free \gset
SELECT * FROM test.error($$SELECT jobq.alter_queue('manual', group_scope => 'database')$$);
SELECT jobq.cancel(:free);
SELECT jobq.alter_queue('manual', group_scope => 'database');
SELECT test.shared_step('by hand', 2, 'manual') AS second \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT reason FROM jobq.explain(:second) WHERE reason IN ('predecessor', 'group');
SELECT jobq.cancel(:first);
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT jobq.resume('shared1');
SELECT i, queue FROM test.shared_step ORDER BY n;
SELECT jobq.alter_queue('manual', group_scope => 'queue');
TRUNCATE test.shared_step;

-- a moved, retried or reassigned job joins the group of its new queue and role
SELECT jobq.pause('shared1'), jobq.pause('shared2'), jobq.pause('apart');
SELECT test.shared_step('moved', 1, 'apart') AS one, test.shared_step('moved', 2, 'shared1') AS two, test.shared_step('moved', 3, 'shared2') AS three \gset
SELECT count(DISTINCT group_id) FROM jobq_internal.job WHERE id IN (:one, :two, :three);
SELECT jobq.edit(:one, queue => 'shared1');
SELECT count(DISTINCT group_id) FROM jobq_internal.job WHERE id IN (:one, :two, :three);
SELECT jobq.edit(:three, queue => 'apart');
SELECT group_id = (SELECT group_id FROM jobq_internal.job WHERE id = :two) AS shared FROM jobq_internal.job WHERE id = :three;
-- filter by key and queue, whatever the scope
SELECT jobq.cancel_many(queue => 'shared1', group_key => 'moved'), jobq.cancel_many(queue => 'apart', group_key => 'moved');
SELECT jobq.resume('shared1'), jobq.resume('shared2'), jobq.resume('apart');

-- options for groups of a queue conflict with the scope "database"
SELECT * FROM test.error($$SELECT jobq.alter_queue('shared1', group_max_running => 2)$$);
SELECT * FROM test.error($$SELECT jobq.alter_queue('shared1', group_on_failure => 'continue')$$);
SELECT * FROM test.error($$SELECT jobq.alter_queue('shared1', group_scope => 'cluster')$$);
-- the scope cannot change while jobs are in groups
SELECT test.shared_step('stays', 1, 'shared3') AS stays \gset
SELECT * FROM test.error($$SELECT jobq.alter_queue('shared3', group_scope => 'queue')$$);
SELECT jobq.alter_queue('shared3', group_scope => 'database');
SELECT jobq.cancel(:stays);
SELECT jobq.alter_queue('shared3', group_scope => 'queue');
SELECT jobq.drop_queue(q) FROM unnest('{shared1,shared2,shared3,apart}'::text[]) q;
