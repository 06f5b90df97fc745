-- The views: their rows, and the number of blocks read.

-- jobs: newest first; live_jobs: the same without finished jobs
SELECT jobq.enqueue('echo') AS done \gset
SELECT state FROM jobq.wait(:done);
SELECT jobq.enqueue('broken', max_attempts => 1) AS dead \gset
SELECT state FROM jobq.wait(:dead);
SELECT jobq.enqueue('echo', queue => 'manual') AS ready, jobq.enqueue('echo', queue => 'manual', delay => '1 hour') AS later,
	jobq.enqueue('gate', '1') AS gate FROM pg_advisory_lock(1) \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.live_jobs WHERE id = %s)', :gate));
SELECT state, kind, attempt, worker IS NOT NULL AS worker, started_at IS NOT NULL AS started, finished_at IS NOT NULL AS finished, error
FROM jobq.jobs WHERE id IN (:done, :dead, :ready, :later, :gate) LIMIT 5;
SELECT state, kind FROM jobq.live_jobs WHERE id IN (:done, :dead, :ready, :later, :gate);
SELECT count(*) FROM (SELECT * FROM jobq.live_jobs EXCEPT SELECT * FROM jobq.jobs WHERE finished_at IS NULL) x;
SELECT ready, scheduled, running, dead_letters > 0 AS dead_letters FROM jobq.queues WHERE name IN ('manual', 'default') ORDER BY name;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:gate);
SELECT count(*) FILTER (WHERE jobq.cancel(id)) FROM unnest(ARRAY[:ready, :later]) id;
SELECT jobq.delete(:dead);

-- kinds
SELECT jobq.register('all', 'test.echo(jsonb)', 'manual', 4, 5, 'fixed 1s', '1 min', true, 2, 3, '10 per minute', '2 failures in 1 hour', 'test.note(jsonb)');
SELECT * FROM jobq.kinds WHERE kind IN ('all', 'echo') ORDER BY kind;
SELECT jobq.unregister('all');

-- a role sees its own jobs
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '"alice"', queue => 'manual') AS id \gset
SELECT state, payload FROM jobq.live_jobs;
SELECT payload FROM jobq.jobs LIMIT 20;
SELECT ready FROM jobq.queues WHERE name = 'manual';
SELECT kind FROM jobq.kinds WHERE kind = 'echo';
-- and a leaky function of the role sees no row of another role
CREATE FUNCTION pg_temp.tell(kind text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE 'sees %', kind; RETURN true; END $$;
SELECT count(*) FROM jobq.jobs WHERE pg_temp.tell(kind);
SELECT count(*) FROM jobq.live_jobs WHERE pg_temp.tell(kind);
SELECT jobq.cancel(:id);
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');

-- Returns the number of blocks read and of temporary blocks written by a query.  The
-- query runs once before, so that the catalog is in the cache.
CREATE FUNCTION test.blocks(query text, OUT read bigint, OUT spilled bigint) LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE query;
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, SUMMARY off, FORMAT json) ' || query INTO plan;
	plan := plan -> 0 -> 'Plan';
	read := (plan ->> 'Shared Hit Blocks')::bigint + (plan ->> 'Shared Read Blocks')::bigint;
	spilled := (plan ->> 'Temp Written Blocks')::bigint;
END
$$;
CREATE FUNCTION test.plan(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY EXECUTE 'EXPLAIN (COSTS off) ' || query; END $$;

-- twenty of many jobs: the number of blocks read is independent of the number of jobs
VACUUM jobq_internal.job, jobq_internal.archive, jobq_internal.dead_letter;
BEGIN;
SELECT count(*) FROM jobq.enqueue_many('echo', array_fill(to_jsonb(repeat('x', 100)), '{50000}'), queue => 'manual');
ANALYZE jobq_internal.job, jobq_internal.archive, jobq_internal.dead_letter;
SELECT pg_relation_size('jobq_internal.job') / current_setting('block_size')::int > 1000 AS large;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.jobs LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.jobs ORDER BY id DESC LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.live_jobs LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.live_jobs ORDER BY id DESC LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.jobs WHERE id = (SELECT max(id) FROM jobq_internal.job)') b;
-- an order without an index: the query reads all rows, but keeps only twenty
SELECT b.spilled FROM test.blocks('SELECT * FROM jobq.jobs ORDER BY finished_at DESC LIMIT 20') b;
-- other queues are not counted
SELECT jobq.create_queue('empty');
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.queues WHERE name = ''empty''') b;
-- in a long queue, only a thousand jobs are counted
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.queues') b;
-- the newest dead letters, also those of a frequent cause
INSERT INTO jobq_internal.dead_letter (finished_at, id, enqueued_at, run_at, queue_id, priority, role, attempt, max_attempts, exceptions, crashes, watch, kind,
	payload, error, sqlstate, errors, fingerprint)
SELECT clock_timestamp() - i * interval '1 s', nextval('jobq_internal.job_id_seq'), now(), now(), 1, 0, CURRENT_USER::regrole::oid::jobq_internal.role, 1, 1, 1, 0, false, 'broken',
	to_jsonb(repeat('x', 100)), 'so it is', 'P0001', '[{"attempt": 1, "message": "so it is"}]', 7 + (i % 9 = 0)::int
FROM generate_series(1, 50000) i;
ANALYZE jobq_internal.dead_letter;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.dead_letters LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.dead_letters ORDER BY finished_at DESC, id DESC LIMIT 20') b;
SELECT b.read < 900 AS few FROM test.blocks('SELECT * FROM jobq.dead_letters WHERE fingerprint = 7 ORDER BY finished_at DESC, id DESC LIMIT 20') b;
-- the archive is not read
SELECT count(*) FROM test.plan('SELECT * FROM jobq.live_jobs') p WHERE p ~ 'archive|dead_letter';
ROLLBACK;
SELECT count(*) FROM jobq.live_jobs WHERE queue = 'manual';
DROP FUNCTION test.blocks, test.plan;

-- a long queue is not counted: its numbers come from the statistics of committed jobs
SELECT jobq.create_queue('crowd', mode => 'consumer');
SELECT count(*) FROM jobq.enqueue_many('parcel', array_fill('1'::jsonb, '{2000}'), queue => 'crowd');
SELECT jobq.enqueue('parcel', queue => 'crowd', delay => '1 hour') AS later \gset
SELECT test.until('(SELECT ready = 2000 AND scheduled = 1 AND exact AND oldest_ready IS NOT NULL FROM jobq.queues WHERE name = ''crowd'')');
BEGIN;
SELECT count(*) FROM jobq.enqueue_many('parcel', '{1,2,3}', queue => 'crowd');
SELECT ready, scheduled FROM jobq.queues WHERE name = 'crowd';
ROLLBACK;
-- a role with access to its own jobs only gets an exact count
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'crowd');
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.enqueue_many('parcel', '{1,2}', queue => 'crowd');
SELECT ready, exact FROM jobq.queues WHERE name = 'crowd';
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'crowd');
SELECT jobq.cancel_many(queue => 'crowd', state => 'waiting'), jobq.drop_queue('crowd');

-- dead letters, likewise, for every way of removal: together with another queue, there are many
SELECT jobq.create_queue('graves');
SELECT array_agg(id) AS dead FROM jobq.enqueue_many('broken', '{1,2,3,4}', queue => 'graves', max_attempts => 1) id \gset
SELECT array_agg(DISTINCT state) FROM jobq.wait_many(:'dead'::bigint[]);
SELECT jobq.create_queue('cemetery');
CREATE TABLE test.letters AS SELECT l.* FROM jobq_internal.dead_letter l, generate_series(1, 1001) WHERE id = (:'dead'::bigint[])[1];
UPDATE test.letters SET id = nextval('jobq_internal.job_id_seq'), queue_id = (SELECT id FROM jobq_internal.queue WHERE name = 'cemetery');
INSERT INTO jobq_internal.dead_letter SELECT * FROM test.letters;
DROP TABLE test.letters;
SELECT test.until('(SELECT dead_letters = 4 AND exact FROM jobq.queues WHERE name = ''graves'')');
SELECT jobq.delete((:'dead'::bigint[])[1]);
SELECT dead_letters FROM jobq.queues WHERE name = 'graves';
DELETE FROM jobq_internal.dead_letter WHERE id = (:'dead'::bigint[])[2];
SELECT dead_letters FROM jobq.queues WHERE name = 'graves';
UPDATE jobq_internal.dead_letter SET kind = 'echo' WHERE id = (:'dead'::bigint[])[3];
SELECT kind, dead_letters FROM jobq.stats WHERE queue = 'graves' AND dead_letters <> 0 ORDER BY kind;
BEGIN;
DELETE FROM jobq_internal.dead_letter WHERE id = ANY (:'dead'::bigint[]);
ROLLBACK;
SELECT dead_letters FROM jobq.queues WHERE name = 'graves';
SELECT sum(dead_letters) FROM jobq.stats WHERE queue = 'graves';
-- dead letters inserted by a restore
CREATE TABLE test.letters AS SELECT * FROM jobq_internal.dead_letter WHERE id = ANY (:'dead'::bigint[]);
SELECT jobq.delete_many('graves');
INSERT INTO jobq_internal.dead_letter SELECT * FROM test.letters;
DROP TABLE test.letters;
SELECT test.until('(SELECT dead_letters = 2 AND exact FROM jobq.queues WHERE name = ''graves'')');
SELECT jobq.delete_many('cemetery'), jobq.drop_queue('cemetery');
SELECT dead_letters, exact FROM jobq.queues WHERE name = 'graves';
SELECT jobq.delete_many('graves');
SELECT jobq.drop_queue('graves');
