-- Statistics: job counts by queue, kind and tenant.

-- After all other tests, the statistics agree with the table.
CREATE VIEW test.stats_and_table AS
	SELECT coalesce(s.queue, j.queue) AS queue, coalesce(s.kind, j.kind) AS kind, coalesce(s.tenant, j.tenant) AS tenant,
		coalesce(s.live, 0) AS stats, coalesce(j.n, 0) AS jobs, coalesce(s.blocked, 0) AS stats_blocked, coalesce(j.blocked, 0) AS jobs_blocked
	FROM (SELECT queue, kind, tenant, ready + scheduled + blocked + running AS live, blocked FROM jobq.stats) s
	FULL JOIN (SELECT queue, kind, tenant, count(*) AS n, count(*) FILTER (WHERE state = 'blocked') AS blocked
		FROM jobq.live_jobs GROUP BY queue, kind, tenant) j
		ON j.queue = s.queue AND j.kind = s.kind AND j.tenant IS NOT DISTINCT FROM s.tenant;
SELECT test.until('(SELECT bool_and(exact) FROM jobq.stats)');
SELECT test.until('(SELECT NOT EXISTS (SELECT FROM test.stats_and_table WHERE (stats, stats_blocked) <> (jobs, jobs_blocked)))');
SELECT * FROM test.stats_and_table WHERE (stats, stats_blocked) <> (jobs, jobs_blocked) ORDER BY queue, kind;
SELECT test.until('coalesce((SELECT sum(dead_letters) FROM jobq.stats), 0) = (SELECT count(*) FROM jobq_internal.dead_letter)');

-- resume() does not recount all jobs
DO $$ BEGIN
	FOR i IN 1..100 LOOP
		PERFORM jobq.resume('default');
		COMMIT;
		ASSERT (SELECT bool_and(exact) FROM jobq.stats);
	END LOOP;
END $$;

-- changes are counted when committed
SELECT jobq.create_queue('counted', tenant => 'header shop');
SELECT jobq.reset_stats('counted');
BEGIN;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 3);
SELECT enqueued, scheduled FROM jobq.stats WHERE queue = 'counted';
SAVEPOINT s;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 4);
ROLLBACK TO s;
COMMIT;
SELECT kind, tenant, enqueued, started, ready, scheduled FROM jobq.stats WHERE queue = 'counted';
BEGIN;
SELECT jobq.cancel_many(queue => 'counted', state => 'waiting');
ROLLBACK;
SELECT cancelled, scheduled FROM jobq.stats WHERE queue = 'counted';
SELECT jobq.cancel_many(queue => 'counted', state => 'waiting');
SELECT cancelled, scheduled FROM jobq.stats WHERE queue = 'counted';
-- the changes of a subtransaction pass to its parent on release, and are undone with the parent
BEGIN;
SELECT jobq.enqueue('echo', queue => 'counted', delay => '1 hour') > 0 AS first;
SAVEPOINT outside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 2);
SAVEPOINT inside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 4);
RELEASE inside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 8);
ROLLBACK TO outside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 16);
SAVEPOINT inside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 32);
RELEASE inside;
RELEASE outside;
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 64);
COMMIT;
SELECT enqueued, scheduled FROM jobq.stats WHERE queue = 'counted';
SELECT jobq.cancel_many(queue => 'counted', state => 'waiting'), jobq.reset_stats('counted');

-- all ways to enqueue, and all ends
SELECT count(*) FROM jobq.enqueue_many('echo', ARRAY['1', '2']::jsonb[], queue => 'counted', headers => '{"shop": "north"}');
INSERT INTO jobq.inbox (kind, payload, queue, headers) VALUES ('echo', '3', 'counted', '{"shop": "north"}');
SELECT jobq.enqueue('echo', '4', queue => 'counted', headers => '{"shop": "south"}', unique_key => 'k', delay => '1 hour') AS id \gset
SELECT jobq.enqueue('echo', '4', queue => 'counted', headers => '{"shop": "south"}', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}') = :id AS same;
SELECT jobq.enqueue('broken', queue => 'counted', max_attempts => 2, backoff => 'fixed 1ms') AS broken \gset
SELECT state FROM jobq.wait(:broken);
SELECT jobq.enqueue('echo', queue => 'counted', expires_at => jobq_internal.clock() + '1 ms', run_at => jobq_internal.clock() + '1 ms') AS late \gset
SELECT test.until('(SELECT sum(ready + scheduled + running) = 0 FROM jobq.stats WHERE queue = ''counted'')');
SELECT kind, tenant, enqueued, started, completed, failed, retried, dead, cancelled, crashed, wait_max >= wait_p99 AND wait_p99 >= wait_p50 AS waited, run_max >= run_p50 AS ran
FROM jobq.stats WHERE queue = 'counted' AND (kind, tenant IS NULL) <> ('echo', true) ORDER BY kind, tenant;
SELECT sum(expired + completed) FROM jobq.stats WHERE queue = 'counted' AND kind = 'echo' AND tenant IS NULL;
SELECT jobq.retry(:broken);
SELECT state FROM jobq.wait(:broken);
SELECT test.until('(SELECT dead = 2 AND running = 0 FROM jobq.stats WHERE queue = ''counted'' AND kind = ''broken'')');
SELECT enqueued, started, failed, retried, dead FROM jobq.stats WHERE queue = 'counted' AND kind = 'broken';
SELECT jobq.delete(:broken);

-- history, and rates
SELECT step, sum(enqueued) AS enqueued, sum(failed) AS failed, sum(dead) AS dead FROM jobq.stats_history('counted', 'broken') GROUP BY step ORDER BY step;
SELECT DISTINCT date_trunc(step, since, 'UTC') = since AS begins FROM jobq.stats_history();
SELECT step, sum(wait_count) AS waits, sum(run_count) AS runs, max(wait_max) <= sum(wait_sum) AND max(run_max) <= sum(run_sum) AS times
FROM jobq.stats_history('counted', 'broken') GROUP BY step ORDER BY step;
-- each argument has the effect of a condition on the column of the same name
SELECT q, k, s, h.rows > 0 AND h.rows = (SELECT count(*) FROM jobq.stats_history() a
	WHERE coalesce(a.queue = q, true) AND coalesce(a.kind = k, true) AND coalesce(a.step = s, true)) AS same
FROM unnest('{NULL,counted}'::text[]) q, unnest('{NULL,broken}'::text[]) k, unnest('{NULL,minute,hour,day}'::text[]) s,
	LATERAL (SELECT count(*) AS rows FROM jobq.stats_history(q, k, s)) h
ORDER BY q, k, s;
SELECT count(*) FROM jobq.stats_history('no such queue') UNION ALL SELECT count(*) FROM jobq.stats_history(kind => 'no such kind');
SELECT * FROM test.error('SELECT * FROM jobq.stats_history(step => ''week'')');
SELECT * FROM test.error('SELECT * FROM jobq.stats_history(step => ''Minute'')');
SELECT step, count(*), sum(s.enqueued) AS enqueued, sum(s.failed) AS failed, sum(s.wait_count) AS waits, max(s.run_max) <= sum(s.run_sum) AS times
FROM (VALUES ('minute'), ('hour')) v (step), jobq_internal.stat_series(step, 'counted', 'broken') s GROUP BY step ORDER BY step;
SELECT count(*), sum(enqueued) FROM jobq_internal.stat_series('minute', 'no such queue', NULL);
SELECT count(*) FROM jobq_internal.stat_series(NULL, NULL, NULL);
-- the rates of all names are the sums of the series of each
SELECT r.by, count(*) > 0 AS any, bool_and(cardinality(s.enqueued) = 60 AND cardinality(s.failed) = 60) AS minutes, bool_and((s.wait_p95 > 0) IS NOT FALSE) AS waits
FROM (VALUES ('queue'), ('kind'), ('tenant')) r (by), jobq_internal.stat_rates(r.by) s GROUP BY r.by ORDER BY r.by;
SELECT count(*) AS differ FROM jobq_internal.stat_rates('queue') r,
	LATERAL (SELECT array_agg(enqueued ORDER BY since) AS enqueued, array_agg(completed ORDER BY since) AS completed, array_agg(failed ORDER BY since) AS failed
		FROM jobq_internal.stat_series('minute', r.name, NULL)) s
WHERE r.name = 'counted' AND ROW(r.enqueued, r.completed, r.failed) IS DISTINCT FROM ROW(s.enqueued, s.completed, s.failed);
SELECT name, (SELECT sum(n) FROM unnest(completed) n) > 0 AS completed FROM jobq_internal.stat_rates('kind') WHERE name = 'echo';
SELECT * FROM test.error('SELECT * FROM jobq_internal.stat_rates(''day'')');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT step, sum(enqueued) AS enqueued FROM jobq.stats_history('counted', 'broken') GROUP BY step ORDER BY step;
SELECT enqueued_15m FROM jobq.stats WHERE queue = 'counted' AND kind = 'broken';
SELECT count(*) FROM jobq_internal.stat_rates('queue') WHERE name = 'counted';
SELECT count(jobq.enqueue('echo', queue => 'counted', delay => '1 hour')) FROM generate_series(1, 15);
SELECT enqueued_15m > 0 AS rate FROM jobq.stats WHERE queue = 'counted' AND kind = 'echo' AND tenant IS NULL;
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.cancel_many(queue => 'counted', state => 'waiting');

-- consumers
SELECT jobq.create_queue('counted_out', mode => 'consumer');
SELECT count(*) FROM jobq.enqueue_many('parcel', ARRAY['1', '2', '3']::jsonb[], queue => 'counted_out');
SELECT id AS a, token AS ta FROM jobq.reserve('{counted_out}', wait => '5 min') \gset
SELECT id AS b, token AS tb FROM jobq.reserve('{counted_out}', wait => '5 min') \gset
SELECT ready, held, started FROM jobq.stats WHERE queue = 'counted_out';
SELECT jobq.ack(:a, :ta);
SELECT jobq.release(:b, :tb);
SELECT ready, held, started, completed FROM jobq.stats WHERE queue = 'counted_out';
SELECT jobq.cancel_many(queue => 'counted_out', state => 'waiting');

-- the rates have the waits of the last hour, and the statistics those since the counters began
SELECT jobq.create_queue('waited', mode => 'consumer');
SELECT jobq.enqueue('parcel', queue => 'waited') AS id \gset
SELECT jobq.test_clock('20 minutes') \g /dev/null
SELECT jobq.ack(id, token) FROM jobq.reserve('{waited}', wait => '5 min');
SELECT wait_p95 > 1000 AS long FROM jobq_internal.stat_rates('queue') WHERE name = 'waited';
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT jobq.enqueue('parcel', queue => 'waited') AS id \gset
SELECT jobq.ack(id, token) FROM jobq.reserve('{waited}', wait => '5 min');
SELECT r.wait_p95 > 0 AS waited, r.wait_p95 < 600 AS recent, s.wait_p95 > '10 min' AS ever
FROM jobq_internal.stat_rates('queue') r, jobq.stats s WHERE r.name = 'waited' AND s.queue = 'waited';
SELECT jobq.test_clock('0') \g /dev/null

-- a large transaction leaves no memory allocated
SELECT total_bytes AS before FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext' \gset
SELECT count(jobq.enqueue('parcel', queue => 'counted_out', delay => i * interval '1 minute')) FROM generate_series(1, 20000) i;
SELECT total_bytes < :before + 500000 AS given_back FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
SELECT jobq.cancel_many(queue => 'counted_out', state => 'waiting');

-- blocked jobs
SELECT jobq.create_workflow('{"steps": [{"name": "first", "kind": "echo", "queue": "counted", "delay": "1 hour"}, {"name": "then", "kind": "echo", "queue": "counted", "needs": ["first"]}]}') AS flow \gset
SELECT test.until('(SELECT scheduled = 1 AND blocked = 1 FROM jobq.stats WHERE queue = ''counted'' AND kind = ''echo'' AND tenant IS NULL)');
SELECT jobq.cancel_batch(:flow);
SELECT test.until('(SELECT scheduled + blocked = 0 FROM jobq.stats WHERE queue = ''counted'' AND kind = ''echo'' AND tenant IS NULL)');

-- prepared transactions are counted from the table
BEGIN;
SELECT jobq.enqueue('echo', queue => 'counted', delay => '1 hour') AS id \gset
PREPARE TRANSACTION 'counted';
SELECT scheduled FROM jobq.stats WHERE queue = 'counted' AND kind = 'echo' AND tenant IS NULL;
COMMIT PREPARED 'counted';
SELECT test.until('(SELECT scheduled = 1 FROM jobq.stats WHERE queue = ''counted'' AND kind = ''echo'' AND tenant IS NULL)');
SELECT jobq.cancel(:id);

-- visibility by role
SELECT jobq.grant_privilege('regress_jobq_alice', queue => 'counted');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', queue => 'counted', delay => '1 hour') AS id \gset
SELECT count(*) FROM jobq.stats;
SELECT count(*) FROM jobq.stats_history();
SELECT count(*) FROM jobq_internal.stat_series('minute', NULL, NULL);
SELECT count(*) FROM jobq_internal.stat_rates('kind');
SELECT * FROM test.error('SELECT jobq.reset_stats()');
SELECT * FROM test.error('SELECT jobq.reset_stats(''counted'')');
SELECT jobq.cancel(:id);
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_alice', 'manage', 'counted');
SET ROLE regress_jobq_alice;
SELECT DISTINCT queue FROM jobq.stats;
SELECT DISTINCT queue FROM jobq.stats_history();
SELECT jobq.reset_stats('counted');
SELECT * FROM test.error('SELECT jobq.reset_stats()');
RESET ROLE;
SELECT sum(enqueued) FROM jobq.stats WHERE queue = 'counted';
SELECT jobq.revoke_privilege('regress_jobq_alice', queue => 'counted');

-- scheduled jobs that were removed do not count as waiting once their time has come
SELECT date_trunc('hour', jobq_internal.clock()) + '3 hours' AS later \gset
SELECT count(jobq.enqueue('parcel', queue => 'counted_out', run_at => :'later')) FROM generate_series(1, 5);
SELECT test.until('(SELECT ready = 0 AND scheduled = 5 FROM jobq.stats WHERE queue = ''counted_out'')');
SELECT jobq.test_clock(:'later'::timestamptz + interval '1 minute' - clock_timestamp()) \g /dev/null
SELECT jobq.cancel_many(queue => 'counted_out', state => 'waiting');
SELECT count(jobq.enqueue('parcel', queue => 'counted_out')) FROM generate_series(1, 7);
SELECT test.until('(SELECT ready = 7 AND scheduled = 0 FROM jobq.stats WHERE queue = ''counted_out'')');
SELECT jobq.cancel_many(queue => 'counted_out', state => 'waiting');
SELECT jobq.test_clock('0') \g /dev/null

-- the cost of attempts: successful and failed in a worker, and in jobq.work()
CREATE TABLE test.paid (a text);
CREATE FUNCTION test.spend(payload jsonb) RETURNS void LANGUAGE plpgsql SET work_mem = '64kB' AS $$
BEGIN
	INSERT INTO test.paid SELECT repeat('x', 200) FROM generate_series(1, (payload ->> 'rows')::int);
	PERFORM count(*) FROM (SELECT i FROM generate_series(1, 20000) i ORDER BY -i OFFSET 0) s;
	IF (payload ->> 'fails')::boolean THEN
		RAISE EXCEPTION 'all is spent';
	END IF;
END
$$;
SELECT jobq.register('spend', 'test.spend(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('paid', tenant => 'header shop');
SELECT pg_current_wal_insert_lsn() AS before \gset
SELECT jobq.enqueue('spend', '{"rows": 20000}', queue => 'paid', headers => '{"shop": "north"}') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT test.until('(SELECT wal_bytes > 0 FROM jobq.stats WHERE queue = ''paid'' AND kind = ''spend'')');
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), :'before') AS written \gset
CREATE FUNCTION test.as_sold(cost jsonb, took interval, rows int) RETURNS TABLE (cpu boolean, buffers boolean, wal boolean, temp boolean)
LANGUAGE sql AS $$
	SELECT (cost ->> 'cpu_ms')::numeric BETWEEN 0.1 AND extract(epoch FROM took) * 1000 + 50, (cost ->> 'buffers')::bigint > rows AND cost -> 'buffers' >= cost -> 'buffers_read',
		(cost ->> 'wal_bytes')::bigint BETWEEN rows * 200 AND rows * 500 + 1000000, (cost ->> 'temp_bytes')::bigint BETWEEN 100000 AND 10000000
$$;
SELECT c.* FROM jobq.jobs j, test.as_sold(j.cost, j.finished_at - j.started_at, 20000) c WHERE id = :id;
SELECT (j.cost ->> 'wal_bytes')::bigint < s.wal_bytes AND s.wal_bytes < :written AS wal, s.temp_bytes = (j.cost ->> 'temp_bytes')::bigint AS temp,
	(j.cost ->> 'buffers')::bigint <= s.buffers AS buffers, extract(epoch FROM s.cpu) * 1000 >= (j.cost ->> 'cpu_ms')::numeric AS cpu
FROM jobq.jobs j JOIN jobq.stats s USING (queue, kind, tenant) WHERE j.id = :id;
SELECT event, cost = (SELECT j.cost FROM jobq.jobs j WHERE j.id = :id) AS shown FROM jobq.history(:id) WHERE cost IS NOT NULL;

SELECT jobq.enqueue('spend', '{"rows": 10000, "fails": true}', queue => 'paid', headers => '{"shop": "south"}') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT c.* FROM jobq.jobs j, test.as_sold(j.cost, j.finished_at - j.started_at, 10000) c WHERE id = :id;
SELECT event, cost ->> 'wal_bytes' = (SELECT j.cost ->> 'wal_bytes' FROM jobq.jobs j WHERE j.id = :id) AS shown FROM jobq.history(:id) WHERE cost IS NOT NULL;
SELECT test.until('(SELECT count(*) = 2 FROM jobq.stats WHERE queue = ''paid'' AND wal_bytes > 1000000)');
SELECT jobq.delete(:id);

SELECT jobq.enqueue('spend', '{"rows": 5000}', queue => 'manual') AS id, jobq.enqueue('spend', '{"rows": 2000, "fails": true}', queue => 'manual') AS dead \gset
SELECT wal_bytes AS before FROM (SELECT sum(wal_bytes) AS wal_bytes FROM jobq.stats WHERE queue = 'manual' AND kind = 'spend') s \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT c.* FROM jobq.jobs j, test.as_sold(j.cost, j.finished_at - j.started_at, CASE id WHEN :id THEN 5000 ELSE 2000 END) c WHERE id IN (:id, :dead) ORDER BY id;
SELECT wal_bytes - :before BETWEEN 7000 * 200 AND 7000 * 500 + 1000000 AS put_down FROM jobq.stats WHERE queue = 'manual' AND kind = 'spend';

-- later work of the session itself is not charged to the job
SELECT wal_bytes AS before FROM jobq.stats WHERE queue = 'manual' AND kind = 'spend' \gset
INSERT INTO test.paid SELECT repeat('x', 200) FROM generate_series(1, 5000);
SELECT jobq.enqueue('echo', queue => 'manual') AS echo \gset
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT wal_bytes = :before AS same FROM jobq.stats WHERE queue = 'manual' AND kind = 'spend';
SELECT wal_bytes < 1000000 AS small FROM jobq.stats WHERE queue = 'manual' AND kind = 'echo';

-- a nested job has a separate cost; the outer job is charged for the rest
CREATE FUNCTION test.spend_within(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.paid SELECT repeat('x', 200) FROM generate_series(1, 4000);
	PERFORM jobq_internal.run_next('{manual}');
	INSERT INTO test.paid SELECT repeat('x', 200) FROM generate_series(1, 4000);
END
$$;
SELECT jobq.register('spend_within', 'test.spend_within(jsonb)', max_attempts => 1);
SELECT jobq.reset_stats('manual');
SELECT jobq.enqueue('spend', '{"rows": 5000}', queue => 'manual') AS inner, jobq.enqueue('spend_within', queue => 'paid') AS id \gset
SELECT state FROM jobq.wait_many(ARRAY[:id, :inner]);
SELECT test.until('(SELECT wal_bytes > 0 FROM jobq.stats WHERE queue = ''paid'' AND kind = ''spend_within'')');
SELECT s.kind, s.wal_bytes BETWEEN CASE s.kind WHEN 'spend' THEN 5000 ELSE 8000 END * 200 AND CASE s.kind WHEN 'spend' THEN 5000 ELSE 8000 END * 500 + 1000000 AS own
FROM jobq.stats s WHERE (s.queue, s.kind) IN (('manual', 'spend'), ('paid', 'spend_within')) ORDER BY s.kind;
SELECT (j.cost ->> 'wal_bytes')::bigint BETWEEN 13000 * 200 AND 13000 * 500 + 1000000 AS with_the_other FROM jobq.jobs j WHERE j.id = :id;

-- percentages of the total, as in the manual
SELECT abs(sum(percent) - 100) < 0.01 * count(*) AS whole, bool_and(percent > 0) FILTER (WHERE spends) AS each
FROM (SELECT queue = 'paid' AND kind = 'spend' AS spends,
	round(100 * sum(wal_bytes) / nullif(sum(sum(wal_bytes)) OVER (), 0), 2) AS percent
	FROM jobq.stats GROUP BY queue, kind, tenant) s;
SELECT jobq.reset_stats('paid');
SELECT cpu, buffers, buffers_read, wal_bytes, temp_bytes FROM jobq.stats WHERE queue = 'paid' AND kind = 'spend';
SELECT jobq.delete(:dead), jobq.unregister('spend'), jobq.unregister('spend_within'), jobq.drop_queue('paid', force => true);
DROP TABLE test.paid;

-- a dropped queue has no slots in the statistics, nor has a new queue of the same name
SELECT jobq.drop_queue('counted', force => true), jobq.drop_queue('counted_out');
SELECT count(*) FROM jobq.stats WHERE queue LIKE 'counted%' OR queue = '(other)';
SELECT test.until('(SELECT NOT EXISTS (SELECT FROM test.stats_and_table WHERE (stats, stats_blocked) <> (jobs, jobs_blocked)))');
DROP VIEW test.stats_and_table;
