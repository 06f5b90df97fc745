-- Who may do what, and see what.

-- nobody may do anything
SET ROLE regress_jobq_nobody;
SELECT code, message FROM test.error($$SELECT jobq.enqueue('echo')$$);
SELECT code, message FROM test.error('SELECT * FROM jobq.jobs');
RESET ROLE;
-- not even with the schema
GRANT USAGE ON SCHEMA jobq TO regress_jobq_nobody;
SET ROLE regress_jobq_nobody;
SELECT f.oid::regprocedure FROM pg_proc f WHERE pronamespace = 'jobq'::regnamespace AND has_function_privilege(f.oid, 'EXECUTE');
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 'jobq'::regnamespace AND relkind IN ('r', 'p', 'v') AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER, REFERENCES');
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 'jobq'::regnamespace AND CASE WHEN relkind = 'S' THEN has_sequence_privilege(c.oid, 'USAGE, SELECT, UPDATE') END;
RESET ROLE;
REVOKE USAGE ON SCHEMA jobq FROM regress_jobq_nobody;

-- produce: jobs of one's own
SELECT jobq.grant_role('regress_jobq_alice'), jobq.grant_role('regress_jobq_bob', 'produce'), jobq.grant_role('regress_jobq_boss', 'manage');
SELECT * FROM test.error($$SELECT jobq.grant_role('regress_jobq_alice', 'everything')$$);
SELECT * FROM test.error($$SELECT jobq.grant_role('regress_jobq_alice', NULL)$$);
SELECT * FROM test.error($$SELECT jobq.grant_role(0::regrole)$$);
SELECT * FROM test.error($$SELECT jobq.revoke_role(0::regrole)$$);

SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '"alice"') AS done, jobq.enqueue('echo', '"alice, ready"', queue => 'manual') AS ready,
	jobq.enqueue('broken', '"alice, broken"', max_attempts => 1) AS failed \gset
SELECT array_agg(id) AS many FROM jobq.enqueue_many('echo', '{1,2}') id \gset
INSERT INTO jobq.inbox (kind, payload) VALUES ('echo', '"inbox"') RETURNING id AS inbox \gset
SELECT state, result FROM jobq.wait(ARRAY[:done, :failed, :inbox] || :'many'::bigint[]);
SELECT jobq.perform('echo', '1');
-- she sees hers
SELECT state, kind, payload FROM jobq.jobs WHERE id IN (:done, :ready, :failed) ORDER BY id;
SELECT kind, error FROM jobq.failed_jobs WHERE kind = 'broken';
SELECT name, ready FROM jobq.queues WHERE name = 'manual';
SELECT bool_and(role = 'regress_jobq_alice'::regrole) FROM jobq.workers;
SELECT jobq.result(:done);
-- and manages nothing
SELECT c, e.code, e.message FROM unnest(ARRAY['register(''x'', ''test.echo(jsonb)'')', 'unregister(''echo'')', 'create_queue(''x'')', 'alter_queue(''manual'', ''off'')',
	'pause(''manual'')', 'resume(''manual'')', 'drop_queue(''manual'')', 'prune(''0'')', 'restart_workers()', 'adopt()', 'test_clock(''1 s'')', 'grant_role(''regress_jobq_nobody'')'])
	WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
SELECT c, e.code, e.message FROM unnest('{job,archive,archive_default,failed_job,queue,handler}'::text[])
	WITH ORDINALITY u (c, n), test.error('SELECT * FROM jobq.' || c) e ORDER BY n;
SELECT e.code, e.message FROM test.error($$INSERT INTO jobq.job DEFAULT VALUES$$) e;
SELECT e.code, e.message FROM test.error($$SELECT nextval('jobq.job_id_seq')$$) e;
RESET ROLE;

-- another role sees nothing of them, and can do nothing to them
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.jobs WHERE role <> 'regress_jobq_bob'::regrole;
SELECT count(*) FROM jobq.failed_jobs;
SELECT name, ready, failed FROM jobq.queues WHERE name = 'manual' OR failed > 0;
SELECT count(*) FROM jobq.workers WHERE role <> 'regress_jobq_bob'::regrole;
SELECT f, e.* FROM unnest('{status,wait,result,cancel,retry,delete_failed}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :ready)) e ORDER BY n;
SELECT f, e.* FROM unnest('{status,wait,result,cancel,retry,delete_failed}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :failed)) e ORDER BY n;
SELECT f, e.* FROM unnest('{status,wait,result,cancel,retry,delete_failed}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :done)) e ORDER BY n;
SELECT * FROM test.error(format('SELECT jobq.reschedule(%s, now()), jobq.set_priority(%1$s, 1)', :ready));
SELECT jobq.clear('manual'), jobq.retry_all(), jobq.delete_all_failed(), jobq.drain('manual', '1ms');
CALL jobq.work('{manual}', stop_when_empty => true);
-- a leaky function does not show him more
CREATE FUNCTION pg_temp.leak(jsonb) RETURNS boolean COST 0.0000001 LANGUAGE plpgsql AS $$ BEGIN IF $1::text LIKE '"alice%' THEN RAISE EXCEPTION 'leaked %', $1; END IF; RETURN true; END $$;
SELECT count(*) FROM jobq.jobs WHERE role <> 'regress_jobq_bob'::regrole AND pg_temp.leak(payload);
SELECT count(*) FROM jobq.failed_jobs WHERE pg_temp.leak(payload);
DROP FUNCTION pg_temp.leak(jsonb);
RESET ROLE;
SELECT state FROM jobq.status(:ready);

-- nor does a manager, who decides what runs as others
SET ROLE regress_jobq_boss;
SELECT count(*) FROM jobq.jobs;
SELECT jobq.pause('manual'), jobq.resume('manual');
SELECT jobq.create_queue('of_boss'), jobq.alter_queue('of_boss', keep => 'nothing');
SELECT jobq.drop_queue('of_boss');
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.drop_queue('manual')$$) e;
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.drop_queue('default', force => true)$$) e;
SELECT jobq.prune('0', '0');
SELECT jobq.register('of_boss', 'test.echo(jsonb)'), jobq.unregister('of_boss');
SELECT jobq.restart_workers();
SELECT e.code, e.message FROM test.error('SELECT jobq.cancel(' || :ready || ')') e;
SELECT e.code, e.message FROM test.error('SELECT jobq.set_priority(' || :ready || ', 1)') e;
SELECT e.code, e.message FROM test.error('SELECT jobq.adopt()') e;
RESET ROLE;

-- but a member of the role does
GRANT regress_jobq_alice TO regress_jobq_bob;
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.jobs WHERE id IN (:done, :ready, :failed);
SELECT state FROM jobq.status(:ready);
SELECT jobq.retry(:failed);
SELECT state FROM jobq.wait(:failed);
SELECT jobq.delete_failed(:failed);
SELECT jobq.cancel(:ready);
RESET ROLE;
REVOKE regress_jobq_alice FROM regress_jobq_bob;

-- and the owner of the extension
SELECT count(*) FROM jobq.jobs WHERE id IN (:done, :ready, :failed);
SELECT state FROM jobq.status(:ready);

-- a handler that its role may not execute, in a schema that it may not use
CREATE SCHEMA regress_jobq_closed;
CREATE FUNCTION regress_jobq_closed.f() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('closed', 'regress_jobq_closed.f()', max_attempts => 1);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('closed') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.delete_failed(:id);
SELECT e.code FROM test.error($$SELECT jobq.perform('closed')$$) e;
RESET ROLE;
SELECT jobq.unregister('closed');
DROP SCHEMA regress_jobq_closed CASCADE;
