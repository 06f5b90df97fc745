-- Privileges: the actions and the data that each privilege allows.

-- a role without privileges may do nothing to objects of another role
SELECT jobq.enqueue('echo', '"secret"', queue => 'manual', delay => '1 hour') AS other \gset
SELECT jobq.schedule('secret', '@yearly', 'echo', '"secret"');
-- returns a call of the routine with existing objects as arguments
CREATE FUNCTION test.call_of(routine regprocedure, id bigint) RETURNS text LANGUAGE sql AS $$
	SELECT CASE p.prokind WHEN 'p' THEN 'CALL ' ELSE 'SELECT * FROM ' END || p.pronamespace::regnamespace || '.' || quote_ident(p.proname) || '('
		|| coalesce(string_agg(CASE t::regtype::text WHEN 'bigint' THEN id::text WHEN 'bigint[]' THEN format('''{%s}''', id)
				WHEN 'integer' THEN '1' WHEN 'integer[]' THEN '''{}''' WHEN 'real' THEN '1' WHEN 'double precision' THEN '1' WHEN 'boolean' THEN 'false'
				WHEN 'jsonb' THEN CASE WHEN p.proname IN ('chain', 'without_details') THEN '''[{"kind": "echo"}]''' ELSE '''{"steps": [{"name": "a", "kind": "echo"}]}''' END WHEN 'jsonb[]' THEN '''{"{}"}''' WHEN 'interval' THEN '''1 s'''
				WHEN 'timestamp with time zone' THEN 'now()' WHEN 'text[]' THEN '''{manual}''' WHEN 'oid' THEN '0' WHEN 'uuid' THEN quote_literal(gen_random_uuid()) WHEN 'regrole' THEN '''pg_monitor'''
				WHEN 'text' THEN CASE WHEN p.proargnames[n] IN ('kind') THEN '''echo''' WHEN p.proargnames[n] IN ('cron') THEN '''@daily''' WHEN p.proargnames[n] IN ('timezone') THEN '''UTC'''
					WHEN p.proname ~ 'schedule' THEN '''secret'''
					WHEN p.proargnames[n] ~ '^((id|token)_or|job$)' THEN format('''%s''', id) ELSE '''manual''' END
				END || '::' || t::regtype, ', ' ORDER BY n), '') || ')'
	FROM pg_proc p LEFT JOIN LATERAL unnest(p.proargtypes) WITH ORDINALITY u (t, n) ON n <= p.pronargs - CASE p.prokind WHEN 'p' THEN 0 ELSE p.pronargdefaults END
	WHERE p.oid = routine GROUP BY p.oid, p.prokind, p.pronamespace, p.proname
$$;
CREATE FUNCTION test.count_of(relation regclass) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	EXECUTE format('SELECT count(*) FROM %s', relation) INTO n;
	RETURN n;
END
$$;
SET ROLE regress_jobq_nobody;
SELECT p.proname || CASE count(*) WHEN 1 THEN '' ELSE ' (' || count(*) || ')' END AS routine, e.code,
	regexp_replace(regexp_replace(e.message, '[0-9a-f-]{36}', 'N'), '\m\d+\M', 'N', 'g') AS message
FROM pg_proc p, test.error(test.call_of(p.oid, :other)) e
WHERE p.pronamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	AND has_function_privilege(p.oid, 'EXECUTE') AND p.prorettype <> 'trigger'::regtype
GROUP BY p.proname, 2, 3 ORDER BY e.code COLLATE "C", min(e.message) COLLATE "C", p.proname;
-- and sees no rows
SELECT c.relname, test.count_of(c.oid) FROM pg_class c
WHERE c.relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege(c.oid, 'SELECT') ORDER BY 1;
SELECT * FROM jobq_internal.worker_slots();
SELECT * FROM jobq_internal.limit_slots();
SELECT * FROM jobq_internal.lease_slots();
RESET ROLE;
-- internal functions cannot even be called
SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	AND NOT has_function_privilege('regress_jobq_nobody', p.oid, 'EXECUTE') ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND has_table_privilege('regress_jobq_nobody', c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER, REFERENCES');
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND CASE WHEN relkind = 'S' THEN has_sequence_privilege('regress_jobq_nobody', c.oid, 'USAGE, SELECT, UPDATE') END;
SELECT jobq.cancel(:other), jobq.unschedule('secret');

-- produce: a role's own jobs
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob', 'produce'), jobq.grant_privilege('regress_jobq_boss', 'manage');
SELECT * FROM test.error($$SELECT jobq.grant_privilege('regress_jobq_alice', 'everything')$$);
SELECT * FROM test.error($$SELECT jobq.grant_privilege('regress_jobq_alice', NULL)$$);
SELECT * FROM test.error($$SELECT jobq.grant_privilege(0::regrole)$$);
SELECT * FROM test.error($$SELECT jobq.revoke_privilege(0::regrole)$$);

SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '"alice"') AS done, jobq.enqueue('echo', '"alice, ready"', queue => 'manual') AS ready,
	jobq.enqueue('broken', '"alice, broken"', max_attempts => 1) AS dead \gset
SELECT array_agg(id) AS many FROM jobq.enqueue_many('echo', '{1,2}') id \gset
INSERT INTO jobq.inbox (kind, payload) VALUES ('echo', '"inbox"') RETURNING id AS inbox \gset
SELECT state, result FROM jobq.wait_many(ARRAY[:done, :dead, :inbox] || :'many'::bigint[]);
SELECT jobq.perform('echo', '1');
-- alice sees her own jobs
SELECT state, kind, payload FROM jobq.jobs WHERE id IN (:done, :ready, :dead) ORDER BY id;
SELECT kind, error FROM jobq.dead_letters WHERE kind = 'broken';
SELECT name, ready FROM jobq.queues WHERE name = 'manual';
SELECT bool_and(role = 'regress_jobq_alice'::regrole) FROM jobq.workers;
SELECT (jobq.status(:done)).result;
-- and manages nothing
SELECT c, e.code, e.message FROM unnest(ARRAY['register(''x'', ''test.echo(jsonb)'')', 'unregister(''echo'')', 'create_queue(''x'')', 'alter_queue(''manual'', ''off'')',
	'pause(''manual'')', 'resume(''manual'')', 'pause(schedule => ''secret'')', 'resume(schedule => ''secret'')', 'drop_queue(''manual'')', 'prune(''0'')', 'restart_workers()', 'adopt()', 'test_clock(''1 s'')', 'grant_privilege(''regress_jobq_nobody'')'])
	WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
-- EXECUTE on test_clock() is enough to read the clock, and not to set it
RESET ROLE;
GRANT EXECUTE ON FUNCTION jobq.test_clock(interval) TO regress_jobq_alice;
SET ROLE regress_jobq_alice;
SELECT jobq.test_clock() - clock_timestamp() < '1 min' AS same, jobq_internal.clock() - jobq.test_clock(NULL) < '1 min' AS same;
SELECT * FROM test.error('SELECT jobq.test_clock(''0'')');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION jobq.test_clock(interval) FROM regress_jobq_alice;
SET ROLE regress_jobq_alice;
SELECT c, e.code, e.message FROM unnest('{job,archive,archive_default,dead_letter,queue,handler}'::text[])
	WITH ORDINALITY u (c, n), test.error('SELECT * FROM jobq_internal.' || c) e ORDER BY n;
SELECT e.code, e.message FROM test.error($$INSERT INTO jobq_internal.job DEFAULT VALUES$$) e;
SELECT e.code, e.message FROM test.error($$SELECT nextval('jobq_internal.job_id_seq')$$) e;
RESET ROLE;

-- another role sees none of these jobs, and cannot change them
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.jobs WHERE role <> 'regress_jobq_bob'::regrole;
SELECT count(*) FROM jobq.dead_letters;
SELECT name, ready, dead_letters FROM jobq.queues WHERE name = 'manual' OR dead_letters > 0;
SELECT count(*) FROM jobq.workers WHERE role <> 'regress_jobq_bob'::regrole;
SELECT f, e.* FROM unnest('{status,wait,cancel,retry,delete}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :ready)) e ORDER BY n;
SELECT f, e.* FROM unnest('{status,wait,cancel,retry,delete}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :dead)) e ORDER BY n;
SELECT f, e.* FROM unnest('{status,wait,cancel,retry,delete}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :done)) e ORDER BY n;
SELECT * FROM test.error(format('SELECT jobq.edit(%s, run_at => now()), jobq.edit(%1$s, priority => 1)', :ready));
SELECT jobq.cancel_many(queue => 'manual', state => 'waiting'), jobq.retry_many(state => 'dead'), jobq.delete_many(state => 'dead'), jobq.wait_queue('manual', '1ms');
CALL jobq.work('{manual}', stop_when_empty => true);
-- whether a pattern raises an error does not depend on the data compared
SELECT p, e.code FROM unnest(ARRAY['broken%\', 'other%\', 'broken%\\', 'broken%']) WITH ORDINALITY u (p, n), test.error(format('SELECT jobq.retry_many(ids => ARRAY[%s]::bigint[], error => %L)', :dead, p)) e ORDER BY n;
-- a leaky function reveals no more
CREATE FUNCTION pg_temp.leak(jsonb) RETURNS boolean COST 0.0000001 LANGUAGE plpgsql AS $$ BEGIN IF $1::text LIKE '"alice%' THEN RAISE EXCEPTION 'leaked %', $1; END IF; RETURN true; END $$;
SELECT count(*) FROM jobq.jobs WHERE role <> 'regress_jobq_bob'::regrole AND pg_temp.leak(payload);
SELECT count(*) FROM jobq.dead_letters WHERE pg_temp.leak(payload);
DROP FUNCTION pg_temp.leak(jsonb);
-- a kind is listed also to a role without the right to use the schema of the handler
RESET ROLE;
CREATE SCHEMA closed;
CREATE FUNCTION closed.quiet() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('quiet', 'closed.quiet()');
SET ROLE regress_jobq_bob;
SELECT handler, handler_version IS NOT NULL AS known FROM jobq.kinds WHERE kind = 'quiet';
RESET ROLE;
SELECT jobq.unregister('quiet');
DROP SCHEMA closed CASCADE;
SET ROLE regress_jobq_bob;
RESET ROLE;
SELECT state FROM jobq.status(:ready);

-- a monitor sees the jobs, but not their content
SELECT jobq.grant_privilege('regress_jobq_boss', 'monitor'), jobq.revoke_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT state, kind, queue, role, payload, headers, result, error, group_key, unique_key, log, errors - 0 AS more FROM jobq.jobs WHERE id IN (:done, :ready, :dead) ORDER BY id;
SELECT (SELECT array_agg(k ORDER BY k COLLATE "C") FROM jsonb_object_keys(errors -> 0) k) FROM jobq.jobs WHERE id = :dead;
SELECT kind, payload, error, sqlstate, context FROM jobq.dead_letters WHERE id = :dead;
SELECT name, ready FROM jobq.queues WHERE name = 'manual';
SELECT state, kind, result, error FROM jobq.wait_many(ARRAY[:done, :dead]);
SELECT count(*) > 0 AS sees_workers FROM jobq.workers WHERE role <> 'regress_jobq_boss'::regrole;
SELECT f, e.code, e.message FROM unnest('{cancel,retry,delete}'::text[]) WITH ORDINALITY u (f, n),
	test.error(format('SELECT jobq.%I(%s)', f, :ready)) e ORDER BY n;
SELECT c, e.code, e.message FROM unnest(ARRAY['enqueue(''echo'')', 'pause(''manual'')', 'create_queue(''x'')', 'prune(''0'')', 'create_batch()',
	'schedule(''x'', ''@daily'', ''echo'')', 'grant_privilege(''regress_jobq_boss'')', 'revoke_privilege(''regress_jobq_alice'')']) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
SELECT jobq.cancel_many(queue => 'manual', state => 'waiting'), jobq.retry_many(state => 'dead'), jobq.delete_many(state => 'dead');
RESET ROLE;

-- an operator also pauses, cancels, retries, and changes run_at and priority
SELECT jobq.grant_privilege('regress_jobq_boss', 'operate');
SET ROLE regress_jobq_boss;
SELECT payload, result FROM jobq.jobs WHERE id = :done;
SELECT jobq.pause('manual'), jobq.resume('manual'), jobq.edit(:ready, run_at => now() + '1 hour'), jobq.edit(:ready, priority => 3);
SELECT jobq.edit(:ready, run_at => now());
SELECT jobq.retry(:dead);
SELECT state FROM jobq.wait(:dead);
SELECT e.code, e.message FROM test.error('SELECT jobq.delete(' || :dead || ')') e;
SELECT jobq.delete_many(state => 'dead');
SELECT c, e.code, e.message FROM unnest(ARRAY['enqueue(''echo'')', 'create_queue(''x'')', 'alter_queue(''manual'', keep => ''all'')', 'drop_queue(''manual'')', 'prune(''0'')',
	'register(''x'', ''test.echo(jsonb)'')']) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
RESET ROLE;

-- a manager decides which functions run as other roles, and therefore sees and does everything
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT payload, result FROM jobq.jobs WHERE id = :done;
SELECT jobq.pause('manual'), jobq.resume('manual');
SELECT jobq.create_queue('of_boss', open => true), jobq.alter_queue('of_boss', keep => 'nothing');
RESET ROLE;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('broken', queue => 'of_boss', max_attempts => 1) AS id \gset
SELECT state FROM jobq.wait(:id);
RESET ROLE;
SET ROLE regress_jobq_boss;
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.drop_queue('of_boss')$$) e;
SELECT jobq.drop_queue('of_boss', force => true);
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.drop_queue('manual')$$) e;
SELECT jobq.prune('1 year', '1 year');
SELECT jobq.register('of_boss', 'test.echo(jsonb)'), jobq.unregister('of_boss');
SELECT jobq.restart_workers();
SELECT jobq.edit(:ready, priority => 1);
SELECT c, e.code, e.message FROM unnest(ARRAY['adopt()', 'grant_privilege(''regress_jobq_boss'')', 'revoke_privilege(''regress_jobq_alice'')']) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
SELECT role, privilege, queue FROM jobq.grants ORDER BY role::text COLLATE "C", privilege;
RESET ROLE;

-- a closed queue requires a grant
SELECT jobq.create_queue('closed', mode => 'consumer', max_running => 100);
SELECT test.until('EXISTS (SELECT FROM jobq.limits WHERE type = ''queue'' AND queue = ''closed'')');
SELECT name, open FROM jobq.queues WHERE name IN ('closed', 'default', 'manual') ORDER BY name;
SET ROLE regress_jobq_alice;
SELECT e.code, e.message, e.hint FROM test.error($$SELECT jobq.enqueue('any', queue => 'closed')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT * FROM jobq.enqueue_many('any', '{1}', queue => 'closed')$$) e;
SELECT e.code, e.message FROM test.error($$INSERT INTO jobq.inbox (kind, queue) VALUES ('any', 'closed')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.schedule('closed', '@daily', 'any', options => '{"queue": "closed"}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.create_batch(on_finish => '{"kind": "any", "queue": "closed"}')$$) e;
SELECT c, e.code, e.message FROM unnest(ARRAY['jobq.reserve(''{closed}'')', 'jobq.wait_queue(''closed'')', 'jobq.cancel_many(queue => ''closed'', state => ''waiting'')', 'jobq.retry_many(''closed'')', 'jobq.pause(''closed'')',
	'jobq.grant_privilege(''regress_jobq_alice'', queue => ''closed'')', 'jobq.revoke_privilege(''regress_jobq_alice'', queue => ''closed'')']) WITH ORDINALITY u (c, n), test.error('SELECT ' || c) e ORDER BY n;
SELECT name FROM jobq.queues WHERE name = 'closed';
SELECT queue FROM jobq.limits WHERE type = 'queue' AND queue = 'closed';
RESET ROLE;
SELECT c, e.* FROM unnest(ARRAY['''regress_jobq_alice'', ''monitor'', ''closed''', '''regress_jobq_alice'', NULL, ''closed''', 'NULL, queue => ''closed''', '''regress_jobq_alice'', queue => NULL',
	'''regress_jobq_alice'', queue => ''nowhere''']) WITH ORDINALITY u (c, n), test.error(format('SELECT jobq.grant_privilege(%s)', c)) e ORDER BY n;
-- a queue made by alice's first job is open; create_queue() ends her ownership
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', queue => 'first used', delay => '1 hour') AS id \gset
RESET ROLE;
SELECT open, made_by FROM jobq_internal.queue WHERE name = 'first used';
SELECT jobq.create_queue('first used', max_running => 3);
SELECT open, made_by, max_running FROM jobq_internal.queue WHERE name = 'first used';
SELECT jobq.create_queue('first used', open => true), jobq.create_queue('first used');
SELECT open, made_by, max_running FROM jobq_internal.queue WHERE name = 'first used';
SELECT jobq.cancel(:id), jobq.drop_queue('first used');
-- with a grant, alice may enqueue, and reserves her own jobs
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'closed');
SET ROLE regress_jobq_alice;
SELECT name, ready FROM jobq.queues WHERE name = 'closed';
SELECT queue, max_running FROM jobq.limits WHERE type = 'queue' AND queue = 'closed';
SELECT role, privilege, queue FROM jobq.grants ORDER BY privilege, queue;
SELECT jobq.enqueue('any', '"alice"', queue => 'closed') AS hers \gset
RESET ROLE;
SELECT jobq.enqueue('any', '"owner"', queue => 'closed', group_key => 'secret') AS his \gset
SET ROLE regress_jobq_alice;
SELECT payload FROM jobq.reserve('{closed}', max_jobs => 10, wait => '5 min');
SELECT count(*) FROM jobq.limits WHERE type = 'group' AND queue = 'closed';
RESET ROLE;
-- a role with the privilege "consume" reserves all jobs, and keeps its reservations
SELECT jobq.grant_privilege('regress_jobq_bob', 'consume', 'closed'), jobq.create_queue('open', mode => 'consumer', open => true);
SET ROLE regress_jobq_bob;
SELECT e.code, e.message FROM test.error($$SELECT jobq.enqueue('any', queue => 'closed')$$) e;
SELECT count(*) FROM jobq.jobs WHERE queue = 'closed';
SELECT e.code, e.message, e.hint FROM test.error($$SELECT * FROM jobq.reserve('{closed,open}')$$) e;
SELECT id AS taken, token FROM jobq.reserve('{closed}', max_jobs => 10, wait => '5 min') \gset
SELECT :taken = :his AS is_his;
SELECT type, running, role FROM jobq.workers WHERE type = 'consumer';
RESET ROLE;
-- a guessed token is useless to another role
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.ack(%s, %s)', :taken, :token)) e;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.extend(%s, %s, ''1 min'')', :taken, :token)) e;
RESET ROLE;
-- also together with a job of the role's own, held by the same consumer
SELECT jobq.grant_privilege('regress_jobq_bob', 'consume', 'open');
SELECT jobq.enqueue('any', queue => 'open') AS others \gset
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('any', queue => 'open') AS own \gset
SET ROLE regress_jobq_bob;
SELECT token AS others_token FROM jobq.reserve_job(:others) \gset
SELECT token AS own_token FROM jobq.reserve_job(:own) \gset
SET ROLE regress_jobq_alice;
SELECT e.code, e.message FROM test.error(format('SELECT jobq.ack_many(ARRAY[%s, %s]::bigint[], ARRAY[%s, %s]::bigint[], ''[null, "forged"]'')', :own, :others, :own_token, :others_token)) e;
SELECT jobq.ack(:own, :own_token);
RESET ROLE;
SELECT state FROM jobq.status(:others);
SET ROLE regress_jobq_bob;
SELECT jobq.ack(:others, :others_token);
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_bob', 'consume', 'open');
SELECT jobq.revoke_privilege('regress_jobq_bob', queue => 'closed');
SET ROLE regress_jobq_bob;
SELECT e.code, e.message FROM test.error($$SELECT * FROM jobq.reserve('{closed}')$$) e;
SELECT jobq.ack(:taken, :token);
RESET ROLE;
-- a manager of one queue may do everything there, and nothing elsewhere
SELECT jobq.grant_privilege('regress_jobq_bob', 'manage', 'closed');
SET ROLE regress_jobq_bob;
SELECT payload FROM jobq.jobs WHERE queue = 'closed' AND id = :hers;
SELECT jobq.alter_queue('closed', max_running => 10), jobq.pause('closed'), jobq.resume('closed');
SELECT jobq.cancel(:hers);
SELECT count(*) FROM jobq.jobs WHERE queue <> 'closed' AND role <> 'regress_jobq_bob'::regrole;
SELECT c, e.code, e.message FROM unnest(ARRAY['pause(''manual'')', 'alter_queue(''manual'', keep => ''all'')', 'create_queue(''x'')', 'register(''x'', ''test.echo(jsonb)'')', 'prune(''0'')', 'restart_workers()',
	'grant_privilege(''regress_jobq_alice'', ''manage'', ''closed'')']) WITH ORDINALITY u (c, n), test.error('SELECT jobq.' || c) e ORDER BY n;
SELECT jobq.drop_queue('closed');
RESET ROLE;
SELECT count(*) FROM jobq_internal.privilege p WHERE queue_id <> 0;
SELECT jobq.drop_queue('open');

-- privileges through membership, for the duration of the membership
GRANT regress_jobq_boss TO regress_jobq_nobody;
SET ROLE regress_jobq_nobody;
SELECT jobq.pause('manual'), jobq.resume('manual');
RESET ROLE;
REVOKE regress_jobq_boss FROM regress_jobq_nobody;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error($$SELECT jobq.pause('manual')$$) e;
RESET ROLE;
-- the owner of the database
SELECT jobq.grant_privilege('pg_database_owner', 'manage');
SELECT current_database() AS database, (SELECT datdba::regrole FROM pg_database WHERE datname = current_database()) AS owner \gset
ALTER DATABASE :"database" OWNER TO regress_jobq_nobody;
SET ROLE regress_jobq_nobody;
SELECT jobq.pause('manual'), jobq.resume('manual');
RESET ROLE;
ALTER DATABASE :"database" OWNER TO :owner;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error($$SELECT jobq.pause('manual')$$) e;
RESET ROLE;
SELECT jobq.revoke_privilege('pg_database_owner');
-- a rolled back grant
BEGIN;
SELECT jobq.grant_privilege('regress_jobq_nobody', 'operate');
SET LOCAL ROLE regress_jobq_nobody;
SELECT jobq.pause('manual');
ROLLBACK;
SET ROLE regress_jobq_nobody;
SELECT e.code, e.message FROM test.error($$SELECT jobq.pause('manual')$$) e;
RESET ROLE;
-- dropping a role removes its privileges; a new role with the same OID inherits none
CREATE ROLE regress_jobq_gone;
SELECT jobq.grant_privilege('regress_jobq_gone'), jobq.grant_privilege('regress_jobq_gone', 'monitor');
DROP ROLE regress_jobq_gone;
SELECT count(*) FROM jobq.grants WHERE role::text !~ '^regress';
SELECT jobq.grant_privilege('regress_jobq_alice');
SELECT count(*) FROM jobq_internal.privilege p WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = p.role);

-- a member of a role has the privileges of the role
GRANT regress_jobq_alice TO regress_jobq_bob;
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.jobs WHERE id IN (:done, :ready, :dead);
SELECT state FROM jobq.status(:ready);
SELECT jobq.retry(:dead);
SELECT state FROM jobq.wait(:dead);
SELECT jobq.delete(:dead);
SELECT jobq.cancel(:ready);
RESET ROLE;
REVOKE regress_jobq_alice FROM regress_jobq_bob;

-- and so does the owner of the extension
SELECT count(*) FROM jobq.jobs WHERE id IN (:done, :ready, :dead);
SELECT state FROM jobq.status(:ready);

-- a handler that the role may not execute, in a schema that the role may not use
CREATE SCHEMA regress_jobq_closed;
CREATE FUNCTION regress_jobq_closed.f() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('closed', 'regress_jobq_closed.f()', max_attempts => 1);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('closed') AS id \gset
SELECT state, error FROM jobq.wait(:id);
SELECT jobq.delete(:id);
SELECT e.code FROM test.error($$SELECT jobq.perform('closed')$$) e;
RESET ROLE;
SELECT jobq.unregister('closed');
DROP SCHEMA regress_jobq_closed CASCADE;
