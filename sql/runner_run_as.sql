-- Queues with run_as: jobs run as another role than the enqueuing role.
\connect - postgres
CREATE ROLE regress_jobq_agent LOGIN;
CREATE ROLE regress_jobq_setter LOGIN;
CREATE ROLE regress_jobq_root LOGIN SUPERUSER;
GRANT regress_jobq_agent TO regress_jobq_setter;
SELECT jobq.grant_privilege('regress_jobq_setter', 'manage'), jobq.grant_privilege('regress_jobq_boss', 'manage');
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');

CREATE TABLE test.vault (note text, who text DEFAULT session_user || ' ' || current_user, tx xid8 DEFAULT pg_current_xact_id());
GRANT INSERT, SELECT ON test.vault TO regress_jobq_agent;
CREATE FUNCTION test.stash(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.vault VALUES (payload #>> '{}');
	RETURN jsonb_build_array(current_user, nullif(current_setting('app.tenant', true), ''));
END
$$;
CREATE PROCEDURE test.stash_twice(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.vault VALUES ('first of ' || (payload #>> '{}'));
	COMMIT;
	INSERT INTO test.vault VALUES ('second of ' || (payload #>> '{}'));
	ROLLBACK;
	INSERT INTO test.vault VALUES ('third of ' || (payload #>> '{}'));
END
$$;
CREATE FUNCTION test.stash_failed(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO test.vault VALUES ('on_failure') $$;

-- only a member of the role may set run_as
SELECT jobq.create_queue('agency', tenant => 'setting app.tenant');
SET ROLE regress_jobq_boss;
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent')$$);
SELECT * FROM test.error($$SELECT jobq.create_queue('second agency', run_as => 'regress_jobq_agent')$$);
RESET ROLE;
SET ROLE regress_jobq_alice;
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_alice')$$);
RESET ROLE;
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', run_as => 4294967::oid)$$);
GRANT regress_jobq_root TO regress_jobq_setter;
SET ROLE regress_jobq_setter;
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_root')$$);
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent');
RESET ROLE;
SELECT run_as FROM jobq.queues WHERE name = 'agency';
SELECT set_by FROM jobq_internal.queue q JOIN jobq_internal.delegation d ON d.queue_id = q.id WHERE name = 'agency';

-- options that conflict with run_as
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', mode => 'consumer')$$);
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', carry => '{app.a,search_path}')$$);
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', tenant => 'schema')$$);
SELECT * FROM test.error($$SELECT jobq.alter_queue('agency', tenant => 'setting work_mem')$$);
SELECT * FROM test.error($$SELECT jobq.create_queue('second agency', mode => 'consumer', run_as => 'regress_jobq_agent')$$);
-- a manager of the queue changes the other options
SET ROLE regress_jobq_boss;
SELECT jobq.alter_queue('agency', max_length => 1000);
RESET ROLE;
SELECT run_as, set_by FROM jobq_internal.queue q JOIN jobq_internal.delegation d ON d.queue_id = q.id WHERE name = 'agency';

-- a producer's job runs as the role, for kinds that are registered for this queue
SELECT jobq.register('stash', 'test.stash(jsonb)', queue => 'agency', max_attempts => 2),
	jobq.register('stash twice', 'test.stash_twice(jsonb)', queue => 'agency'),
	jobq.register('loot', 'test.stash(jsonb)');
SET ROLE regress_jobq_alice;
SELECT * FROM test.error($$SELECT jobq.enqueue('stash', '"not granted"')$$);
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'agency'), jobq.grant_privilege('regress_jobq_bob', queue => 'agency');
SET ROLE regress_jobq_alice;
SELECT * FROM test.error($$SELECT jobq.enqueue('loot', '"of another queue"', queue => 'agency')$$);
SELECT * FROM test.error($$SELECT jobq.enqueue('unknown', queue => 'agency')$$);
SET app.tenant = '7';
SELECT jobq.enqueue('stash', '"plain"') AS plain, jobq.enqueue('stash twice', '"a procedure"') AS twice \gset
SELECT state, result FROM jobq.wait_many(ARRAY[:plain, :twice]);
-- the job still belongs to the enqueuing role: the run_as role does not see the job
SELECT role, state, tenant, context FROM jobq.jobs WHERE id = :plain;
SET ROLE regress_jobq_agent;
SELECT count(*) FROM jobq.jobs;
SELECT count(*) FROM test.error(format('SELECT jobq.status(%s)', :plain)) WHERE code = 'JQ003';
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.jobs WHERE id = :plain;
RESET ROLE;
-- nor while the job runs
CREATE FUNCTION test.lingers(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.log('begun'), jobq.set_progress(50, 'half');
	PERFORM pg_advisory_xact_lock_shared(77);
END
$$;
SELECT jobq.register('lingers', 'test.lingers(jsonb)', queue => 'agency') FROM pg_advisory_lock(77);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('lingers') AS lingers \gset
SELECT test.until(format('(SELECT progress = 50 FROM jobq.jobs WHERE id = %s)', :lingers));
SELECT state, attempt, worker IS NOT NULL AS has_worker, message, log -> 0 ->> 'message' AS log FROM jobq.jobs WHERE id = :lingers;
SELECT ready, running FROM jobq.queues WHERE name = 'agency';
SELECT role, state, kind, message FROM jobq.workers WHERE job_id = :lingers;
SET ROLE regress_jobq_agent;
SELECT state, job_id, kind, message FROM jobq.workers WHERE state = 'running';
SELECT jobq_internal.live_log(:lingers, NULL) AS log;
RESET ROLE;
SELECT pg_advisory_unlock(77);
SELECT state FROM jobq.wait(:lingers);
SELECT jobq.unregister('lingers');
DROP FUNCTION test.lingers;
SELECT note, who, count(*) OVER (PARTITION BY tx) AS in_tx FROM test.vault ORDER BY note;
TRUNCATE test.vault;

-- all ways to enqueue
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.enqueue_many('stash', '{"\"many 1\"","\"many 2\""}');
INSERT INTO jobq.inbox (kind, payload) VALUES ('stash', '"inbox"');
BEGIN;
SELECT jobq.enqueue('stash', '"prepared"') AS prepared \gset
PREPARE TRANSACTION 'run_as';
COMMIT PREPARED 'run_as';
SELECT jobq.create_batch(on_finish => '{"kind": "stash", "payload": "callback"}') AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'stash', '{"\"of a batch\""}');
SELECT jobq.start_batch(:batch);
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "stash", "payload": "step a"}, {"name": "b", "kind": "stash", "payload": "step b", "needs": ["a"]}]}') AS flow \gset
SELECT jobq.schedule('stash', '@yearly', 'stash', '"schedule"');
SELECT jobq.run_schedule('stash') AS tick \gset
SELECT state FROM jobq.wait(:prepared);
SELECT state FROM jobq.wait(:tick);
SELECT test.until(format('(SELECT bool_and(state = ''completed'') FROM jobq.batches WHERE id IN (%s, %s))', :batch, :flow));
SELECT jobq.unschedule('stash');
RESET ROLE;
SELECT test.until('(SELECT count(*) = 9 FROM test.vault)');
SELECT note, who FROM test.vault ORDER BY note COLLATE "C";
TRUNCATE test.vault;
-- a unique key belongs to the enqueuing role
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"a key"', unique_key => 'k') AS alices \gset
SELECT jobq.enqueue('stash', '"a key again"', unique_key => 'k') = :alices AS same;
SET ROLE regress_jobq_bob;
SELECT jobq.enqueue('stash', '"a key"', unique_key => 'k') = :alices AS same;
RESET ROLE;
-- jobq.work() and on_failure: jobs of the queue run only in a session with the run_as role
SELECT jobq.register('stash', 'test.stash(jsonb)', queue => 'agency', max_attempts => 2, on_failure => 'test.stash_failed(jsonb)');
SELECT jobq.drop_queue(name) FROM jobq.queues WHERE name = 'manual' \g /dev/null
SELECT jobq.create_queue('manual', run_as => 'regress_jobq_agent', open => true);
SELECT jobq.register('by hand', 'test.stash(jsonb)', queue => 'manual', max_attempts => 1, on_failure => 'test.stash_failed(jsonb)');
REVOKE INSERT ON test.vault FROM regress_jobq_agent;
SELECT jobq.grant_privilege('regress_jobq_agent');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('by hand', '"by hand"') AS id \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state FROM jobq.status(:id);
SET ROLE regress_jobq_agent;
CALL jobq.work('{manual}', once => true, stop_when_empty => true);
RESET ROLE;
SELECT state, error FROM jobq.status(:id);
GRANT INSERT ON test.vault TO regress_jobq_agent;
SET ROLE regress_jobq_agent;
CALL jobq.work('{manual}', stop_when_empty => true);
RESET ROLE;
SELECT note, who FROM test.vault;
SELECT role, kind FROM jobq.jobs WHERE kind = 'on_failure:by hand';
TRUNCATE test.vault;

SELECT jobq.register('stash', 'test.stash(jsonb)', queue => 'agency', max_attempts => 2), jobq.register('by hand', 'test.stash(jsonb)', queue => 'manual');
-- waiting jobs follow a change of run_as, also jobs already in memory
SELECT jobq.alter_queue('agency', run_as => '-');
SELECT jobq.grant_privilege('regress_jobq_setter', queue => 'agency'), run_as, set_by FROM jobq_internal.queue q LEFT JOIN jobq_internal.delegation d ON d.queue_id = q.id WHERE name = 'agency';
GRANT INSERT ON test.vault TO regress_jobq_alice, regress_jobq_bob;
SELECT jobq.resume('agency');
SELECT jobq.wait_queue('agency', '5 min');
SELECT note, who FROM test.vault ORDER BY who;
TRUNCATE test.vault;
REVOKE INSERT ON test.vault FROM regress_jobq_alice, regress_jobq_bob;
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.enqueue_many('stash', array_fill('"follows"'::jsonb, '{20}'));
SELECT count(*) FROM jobq.enqueue_many('by hand', array_fill('"follows by hand"'::jsonb, '{2}'));
RESET ROLE;
SET ROLE regress_jobq_setter;
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent'), jobq.alter_queue('manual', run_as => '-'), jobq.resume('agency');
SELECT jobq.alter_queue('manual', run_as => 'regress_jobq_setter');
RESET ROLE;
SELECT jobq.wait_queue('agency', '5 min');
GRANT INSERT ON test.vault TO regress_jobq_setter;
SET ROLE regress_jobq_setter;
CALL jobq.work('{manual}', stop_when_empty => true);
RESET ROLE;
SELECT note, who, count(*) FROM test.vault GROUP BY 1, 2 ORDER BY 1;
TRUNCATE test.vault;

-- run_as is checked again before a job runs; a refused job has no further attempt
CREATE VIEW test.letters AS
	SELECT f.payload #>> '{}' AS what, f.attempt, f.sqlstate, f.error, f.errors -> -1 ->> 'detail' AS detail FROM jobq.dead_letters f WHERE f.queue = 'agency';
-- the setter is no longer a member of the role
REVOKE regress_jobq_agent FROM regress_jobq_setter;
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"set by a stranger"') AS id \gset
SELECT reason, detail, remedy FROM jobq.explain(:id) WHERE reason = 'run_as';
RESET ROLE;
SELECT jobq.resume('agency');
SET ROLE regress_jobq_alice;
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SELECT * FROM test.letters;
SELECT jobq.delete_many('agency');
-- nor is membership enough if the role is a superuser
GRANT regress_jobq_agent TO regress_jobq_setter;
ALTER ROLE regress_jobq_agent SUPERUSER;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"a superuser"') AS id \gset
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SELECT * FROM test.letters;
SELECT jobq.delete_many('agency');
-- a superuser may set a superuser
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"a superuser, by a superuser"') AS id \gset
SELECT reason, detail, remedy FROM jobq.explain(:id) WHERE reason = 'run_as';
SELECT state FROM jobq.wait(:id);
RESET ROLE;
ALTER ROLE regress_jobq_agent NOSUPERUSER;
-- the enqueuing role has lost its privilege
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"revoked"') AS id \gset
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'agency');
SELECT reason, detail, remedy FROM jobq.explain(:id) WHERE reason = 'run_as';
SELECT jobq.resume('agency');
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.letters;
-- and does not regain the privilege by a retry
SET ROLE regress_jobq_alice;
SELECT jobq.retry(:id);
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'agency'), jobq.retry(:id);
SELECT state FROM jobq.wait(:id);
-- the kind is no longer registered for the queue
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"of another queue"') AS id \gset
RESET ROLE;
SELECT jobq.register('stash', 'test.stash(jsonb)');
SELECT reason, detail, remedy FROM jobq.explain(:id) WHERE reason = 'run_as';
SELECT jobq.resume('agency');
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.letters;
SELECT jobq.delete_many('agency'), jobq.register('stash', 'test.stash(jsonb)', queue => 'agency');
-- a job that carries a search_path is refused
SELECT jobq.pause('agency'), jobq.alter_queue('agency', run_as => '-');
SELECT jobq.alter_queue('agency', carry => '{search_path}');
SET ROLE regress_jobq_alice;
SET search_path = pg_catalog;
SELECT jobq.enqueue('stash', '"with a path"', max_attempts => 1) AS id \gset
RESET ROLE;
RESET search_path;
SELECT jobq.alter_queue('agency', carry => '{}', run_as => 'regress_jobq_agent'), jobq.resume('agency');
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.letters;
SELECT jobq.delete_many('agency');
SELECT note FROM test.vault ORDER BY note COLLATE "C";
TRUNCATE test.vault;
-- the setter was dropped
SET ROLE regress_jobq_setter;
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent');
RESET ROLE;
SELECT jobq.alter_queue('manual', run_as => '-', open => false);
DROP OWNED BY regress_jobq_setter;
SELECT jobq.revoke_privilege('regress_jobq_setter'), jobq.revoke_privilege('regress_jobq_setter', queue => 'agency');
\set VERBOSITY terse
DROP ROLE regress_jobq_setter;
\set VERBOSITY default
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"nobody has set it"') AS id \gset
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SELECT * FROM test.letters;
SELECT jobq.delete_many('agency');
-- the run_as role was dropped
DROP OWNED BY regress_jobq_agent;
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_agent');
\set VERBOSITY terse
DROP ROLE regress_jobq_agent;
\set VERBOSITY default
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('stash', '"the role is gone"') AS id \gset
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SELECT * FROM test.letters;
-- waiting jobs are not lost if run_as is repaired before they run
SELECT jobq.pause('agency');
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.enqueue_many('stash', array_fill('"mended"'::jsonb, '{5}'));
RESET ROLE;
GRANT INSERT ON test.vault TO regress_jobq_bob;
SELECT jobq.alter_queue('agency', run_as => 'regress_jobq_bob'), jobq.resume('agency');
SELECT jobq.wait_queue('agency', '5 min');
SELECT note, who, count(*) FROM test.vault GROUP BY 1, 2;
SELECT count(*) FROM test.letters;

DROP VIEW test.letters;
SELECT jobq.delete_many('agency'), jobq.delete_many('manual'), jobq.drop_queue('agency'), jobq.alter_queue('manual', run_as => '-', open => true);
SELECT jobq.unregister(kind) FROM unnest('{stash,stash twice,loot,by hand}'::text[]) kind;
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
DROP FUNCTION test.stash, test.stash_failed;
DROP PROCEDURE test.stash_twice;
DROP TABLE test.vault;
DROP ROLE regress_jobq_root;
RESET app.tenant;
