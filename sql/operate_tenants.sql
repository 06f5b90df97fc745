-- Tenants: the tenant of a job, and operations on the jobs of one tenant.

SELECT e.* FROM unnest('{setting,"setting ",header,cookie,"schema public",roles,"","setting role","setting statement_timeout","setting nowhere"}'::text[]) WITH ORDINALITY u (tenant, n),
	test.error(format('SELECT jobq.create_queue(''let'', tenant => %L)', tenant)) e ORDER BY n;
SELECT * FROM test.error(format('SELECT jobq.create_queue(''let'', tenant => %L)', 'header ' || repeat('x', 64)));
SELECT * FROM test.error($$SELECT jobq.create_queue('let', fair => 'jobs')$$);
SELECT jobq.create_queue('let', tenant => 'role', fair => 'jobs');
SELECT * FROM test.error($$SELECT jobq.alter_queue('let', tenant => 'none')$$);
SELECT jobq.alter_queue('let', tenant => 'none', fair => 'off');
SELECT tenant, fair FROM jobq.queues WHERE name = 'let';
SELECT jobq.drop_queue('let');

-- sources of the tenant name
CREATE FUNCTION test.whose(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fail' THEN
		RAISE EXCEPTION 'failed';
	END IF;
	INSERT INTO test.trace (note) VALUES (job.tenant || ' ' || (payload ->> 'n'));
	RETURN to_jsonb(job.tenant);
END
$$;
SELECT jobq.register('whose', 'test.whose(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.create_queue('let setting', tenant => 'setting app.branch'), jobq.create_queue('let header', tenant => 'header branch'),
	jobq.create_queue('let schema', tenant => 'schema'), jobq.create_queue('let role', tenant => 'role'),
	jobq.create_queue('let carried', tenant => 'setting app.branch', carry => '{work_mem,App.Branch}');
SET app.branch = 'berlin';
SET search_path = "$user", "Stadt", public;
SELECT queue, jobq.enqueue('whose', '{}', queue, headers => '{"branch": 7}') AS id INTO TEMP asked
FROM unnest('{let setting,let header,let schema,let role,let carried,default}'::text[]) queue;
SELECT a.queue, state, replace(result #>> '{}', current_user, 'me') AS tenant FROM asked a, jobq.wait(a.id) ORDER BY a.id;
SELECT a.queue, replace(j.tenant, current_user, 'me') AS tenant, context FROM asked a JOIN jobq.jobs j USING (id) ORDER BY id;
DROP TABLE asked;
RESET search_path;
-- no tenant
RESET app.branch;
SELECT queue, jobq.enqueue('whose', '{}', queue, headers => h::jsonb) AS id INTO TEMP asked
FROM (VALUES ('let setting', '[]'), ('let header', '{}'), ('let header', '[]'), ('let header', '{"branch": null}'), ('let header', '{"branch": ""}'), ('let schema', NULL)) v (queue, h);
SELECT a.queue, state, result #>> '{}' AS tenant FROM asked a, jobq.wait(a.id) ORDER BY a.id;
DROP TABLE asked;
-- a long name is truncated
SELECT jobq.enqueue('whose', '{}', 'let header', headers => jsonb_build_object('branch', repeat('ä', 150))) AS id \gset
SELECT state, length(result #>> '{}') FROM jobq.wait(:id);
-- the tenant follows a change of the queue when the job's row is rewritten
SELECT jobq.enqueue('whose', '{}', 'let header', delay => '1 day', headers => '{"branch": "a", "customer": "c"}') AS id \gset
SELECT jobq.alter_queue('let header', tenant => 'header customer');
SELECT tenant FROM jobq.jobs WHERE id = :id;
SELECT jobq.edit(:id, run_at => now());
SELECT result FROM jobq.wait(:id);
SELECT jobq.alter_queue('let header', tenant => 'header branch');

-- a tenant is paused: other tenants of the queue continue, even jobs behind the paused jobs
SELECT jobq.enqueue('echo', queue => 'first') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT * FROM test.error($$SELECT jobq.pause('first', 'a')$$);
SELECT * FROM test.error($$SELECT jobq.pause('no such', 'a')$$);
SELECT jobq.alter_queue('first', tenant => 'header branch');
SELECT * FROM test.error($$SELECT jobq.pause('first', '')$$);
SELECT * FROM test.error($$SELECT jobq.pause('first', repeat('x', 201))$$);
SELECT jobq.pause('first');
CREATE FUNCTION test.post_for(tenants text[], queue text DEFAULT 'first') RETURNS void LANGUAGE sql AS $$
	SELECT jobq.enqueue('whose', jsonb_build_object('n', n), queue, headers => jsonb_build_object('branch', tenant))
	FROM unnest(tenants) WITH ORDINALITY u (tenant, n)
$$;
SELECT test.post_for('{a,a,b,a,b,c}');
SELECT jobq.pause('first', 'a'), jobq.pause('first', 'a'), jobq.pause('first', 'z');
SELECT tenant, state, count(*) FROM jobq.live_jobs WHERE queue = 'first' GROUP BY tenant, state ORDER BY tenant;
SELECT paused, paused_tenants FROM jobq.queues WHERE name = 'first';
TRUNCATE test.trace;
SELECT jobq.resume('first');
SELECT test.until('(SELECT count(*) = 3 FROM test.trace)');
SELECT test.post_for('{a,b}');
SELECT test.until('(SELECT count(*) = 4 FROM test.trace)');
SELECT note FROM test.trace ORDER BY n;
SELECT tenant, state FROM jobq.live_jobs WHERE queue = 'first' ORDER BY id;
SELECT reason, detail, remedy FROM jobq.explain((SELECT min(id) FROM jobq.live_jobs WHERE queue = 'first'));
-- the pause is stored in a table and survives a restart
SELECT jobq.restart_workers();
SELECT test.post_for('{b}');
SELECT test.until('(SELECT count(*) = 5 FROM test.trace)');
SELECT count(*) FROM jobq.live_jobs WHERE queue = 'first';
-- work() in a session also obeys the pause
CALL jobq.work('{first}', stop_when_empty => true);
SELECT count(*) FROM jobq.live_jobs WHERE queue = 'first';
SELECT jobq.resume('first', 'a'), jobq.resume('first', 'a'), jobq.resume('first', 'nobody');
SELECT test.until('(SELECT count(*) = 9 FROM test.trace)');
SELECT note FROM test.trace ORDER BY n OFFSET 5;
SELECT paused, paused_tenants FROM jobq.queues WHERE name = 'first';
SELECT jobq.resume('first', 'z');

-- in a fair queue
SELECT jobq.alter_queue('first', fair => 'jobs');
SELECT jobq.pause('first'), jobq.pause('first', 'b');
TRUNCATE test.trace;
SELECT test.post_for('{a,a,a,b,c,c}');
SELECT jobq.resume('first');
SELECT test.until('(SELECT count(*) = 5 FROM test.trace)');
SELECT left(note, 1) AS tenant, count(*) FROM test.trace GROUP BY 1 ORDER BY 1;
SELECT jobq.resume('first', 'b');
SELECT test.until('(SELECT count(*) = 6 FROM test.trace)');
SELECT jobq.alter_queue('first', tenant => 'none', fair => 'off');

-- in a consumer queue
SELECT jobq.create_queue('let out', mode => 'consumer', tenant => 'header branch');
SELECT jobq.pause('let out', 'a');
SELECT test.post_for('{a,b}', 'let out');
SELECT id, token, kind, tenant FROM jobq.reserve('{let out}', wait => '5 min') \gset
\echo :kind :tenant
SELECT jobq.ack(:id, :token);
SELECT count(*) FROM jobq.reserve('{let out}');
SELECT jobq.resume('let out', 'a');
SELECT id, token, kind, tenant FROM jobq.reserve('{let out}', wait => '5 min') \gset
\echo :kind :tenant
SELECT jobq.ack(:id, :token);

-- cancel, retry and delete the jobs of one tenant
SELECT jobq.pause('let header');
SELECT test.post_for('{a,b,a,b}', 'let header');
SELECT jobq.cancel_many(queue => 'let header', tenant => 'b', state => 'waiting'), jobq.cancel_many(queue => 'let header', tenant => 'nobody', state => 'waiting');
SELECT tenant, state, count(*) FROM jobq.live_jobs WHERE queue = 'let header' GROUP BY tenant, state;
SELECT jobq.cancel_many(queue => 'let header', state => 'waiting'), jobq.resume('let header');
SELECT jobq.enqueue('whose', '{"fail": 1}', 'let header', headers => jsonb_build_object('branch', tenant)) FROM unnest('{a,b,b}'::text[]) tenant \g /dev/null
SELECT test.until('(SELECT count(*) = 3 FROM jobq.dead_letters WHERE queue = ''let header'')');
SELECT tenant, count(*) FROM jobq.dead_letters WHERE queue = 'let header' GROUP BY tenant ORDER BY tenant;
SELECT tenant FROM jobq.dead_letters WHERE queue = 'let header' ORDER BY id;
UPDATE jobq_internal.dead_letter SET payload = '{"n": 1}' WHERE payload = '{"fail": 1}';
TRUNCATE test.trace;
SELECT jobq.retry_many('let header', tenant => 'b');
SELECT test.until('(SELECT count(*) = 2 FROM test.trace)');
SELECT DISTINCT note FROM test.trace;
SELECT jobq.delete_many('let header', tenant => 'b'), jobq.delete_many('let header', tenant => 'a');

-- running jobs, too
SELECT pg_advisory_lock(7);
SELECT jobq.enqueue('gate', '7', 'let header', headers => '{"branch": "a"}') AS a, jobq.enqueue('gate', '7', 'let header', headers => '{"branch": "b"}') AS b,
	jobq.enqueue('gate', '7', 'let header', headers => '{"branch": "a"}', delay => '1 day') AS later \gset
SELECT test.in_gate(:a, :b);
SELECT jobq.cancel_many(queue => 'let header', tenant => 'a', state => 'waiting');
SELECT state FROM jobq.status(:a);
SET ROLE regress_jobq_alice;
SELECT jobq.cancel_many(queue => 'let header', tenant => 'a');
RESET ROLE;
SELECT jobq.cancel_many(queue => 'let header', tenant => 'a');
SELECT state FROM jobq.wait(:a);
SELECT state FROM jobq.status(:b);
SELECT pg_advisory_unlock(7);
SELECT state FROM jobq.wait(:b);
SELECT jobq.create_queue('let leased', mode => 'consumer', tenant => 'header branch');
SELECT jobq.enqueue('any', queue => 'let leased', headers => '{"branch": "a"}') AS a \gset
SELECT token FROM jobq.reserve('{let leased}', wait => '5 min') \gset
SELECT jobq.cancel_many(queue => 'let leased', tenant => 'a', state => 'waiting'), jobq.cancel_many(queue => 'let leased', tenant => 'b'), jobq.cancel_many(queue => 'let leased', tenant => 'a');
SELECT e.code FROM test.error(format('SELECT jobq.ack(%s, %s)', :a, :token)) e;
SELECT state FROM jobq.status(:a);

-- a role does not see tenants of another role
SELECT jobq.grant_privilege('regress_jobq_bob');
SELECT jobq.create_limiter('let', max_running => 1, by => 'tenant');
SELECT jobq.alter_queue('let role', open => true, limiters => '{let}'), jobq.pause('let role'), jobq.pause('let role', 'x'), jobq.enqueue('whose', '{}', 'let role') > 0;
SELECT count(*) AS tenants FROM jobq.limits WHERE type = 'key' AND limiter = 'let';
SELECT paused_tenants FROM jobq.queues WHERE name = 'let role';
SET ROLE regress_jobq_bob;
SELECT count(tenant) FROM jobq.live_jobs;
SELECT count(*) AS tenants FROM jobq.limits WHERE type = 'key';
SELECT paused_tenants FROM jobq.queues WHERE name = 'let role';
RESET ROLE;
SELECT jobq.cancel_many(queue => 'let role', state => 'waiting');
SELECT jobq.drop_queue(name) FROM jobq.queues WHERE name LIKE 'let %' ORDER BY name;
SELECT jobq.drop_limiter('let');
SELECT jobq.unregister('whose');
