-- Queues and their waiting jobs: run_at and priority, cancel_many, wait_queue,
-- retry_many, delete_many, prune, drop_queue, expires_after.

-- change run_at: at once, and later
SELECT jobq.enqueue('echo', delay => '1 hour') AS id \gset
SELECT jobq.edit(:id, run_at => now());
SELECT state, attempt FROM jobq.wait(:id);
SELECT jobq.create_queue('held'), jobq.pause('held');
SELECT jobq.enqueue('note', '"late"', queue => 'held') AS late, jobq.enqueue('note', '"now"', queue => 'held') AS now \gset
SELECT jobq.edit(:late, run_at => now() + interval '1 hour');
SELECT jobq.resume('held');
SELECT state FROM jobq.wait(:now);
SELECT state, run_at > now() + interval '59 min' AS later FROM jobq.status(:late);
SELECT note FROM test.trace;
SELECT jobq.edit(:late, run_at => '2001-01-01');
SELECT state FROM jobq.wait(:late);
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- a retryable job
SELECT jobq.enqueue('broken', backoff => 'fixed 1h', max_attempts => 2) AS id \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :id));
SELECT jobq.edit(:id, run_at => now() + interval '2 hours');
SELECT state, attempt FROM jobq.status(:id);
SELECT jobq.edit(:id, run_at => now());
SELECT state, attempt FROM jobq.wait(:id);
SELECT * FROM test.error('SELECT jobq.edit(' || :id || ', run_at => now())');
SELECT jobq.delete(:id);

-- change the priority: the job overtakes, and no job runs twice
SELECT jobq.enqueue('gate', '1', queue => 'first') AS gate FROM pg_advisory_lock(1) \gset
SELECT test.in_gate(:gate);
SELECT array_agg(jobq.enqueue('note', to_jsonb(n), queue => 'first')) AS ids FROM generate_series(1, 5) n \gset
SELECT jobq.edit((:'ids'::bigint[])[4], priority => -1), jobq.edit((:'ids'::bigint[])[1], priority => 7), jobq.edit((:'ids'::bigint[])[5], priority => 9);
SELECT jobq.edit((:'ids'::bigint[])[5], priority => 0);
SELECT priority FROM jobq.jobs WHERE id = ANY (:'ids') ORDER BY id;
-- not for a running job
SELECT * FROM test.error('SELECT jobq.edit(' || :gate || ', priority => 1)');
SELECT * FROM test.error('SELECT jobq.edit(' || :gate || ', run_at => now())');
SELECT pg_advisory_unlock(1);
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[]) GROUP BY state;
SELECT note FROM test.trace ORDER BY n;
TRUNCATE test.trace;
-- a completed, an unknown, and an expired job
SELECT * FROM test.error('SELECT jobq.edit(' || :gate || ', priority => 1)');
SELECT * FROM test.error('SELECT jobq.edit(999999999, run_at => now())');
SELECT * FROM test.error('SELECT jobq.edit(' || :gate || ', run_at => ''infinity'')');
BEGIN;
SELECT jobq.enqueue('echo', queue => 'manual', expires_at => '2001-01-01') AS id \gset
SELECT * FROM test.error('SELECT jobq.edit(' || :id || ', run_at => now())');
SELECT jobq.cancel(:id);
COMMIT;
-- a job of the same transaction, and a rollback
BEGIN;
SELECT jobq.enqueue('note', '"moved"', delay => '1 hour') AS id \gset
SELECT jobq.edit(:id, run_at => now()), jobq.edit(:id, priority => 3);
COMMIT;
SELECT state FROM jobq.wait(:id);
SELECT jobq.enqueue('note', '"not moved"', delay => '1 hour') AS id \gset
BEGIN;
SELECT jobq.edit(:id, run_at => now());
ROLLBACK;
SELECT state, run_at > now() + interval '59 min' AS later FROM jobq.status(:id);
SELECT jobq.cancel(:id);
SELECT note FROM test.trace;
TRUNCATE test.trace;
-- a handler cannot move its own job
CREATE FUNCTION test.moves(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.edit(job.id, priority => 1);
END
$$;
SELECT jobq.register('moves', 'test.moves(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.enqueue('moves') AS id \gset
SELECT state, regexp_replace(error, '\d+', 'N') AS error FROM jobq.wait(:id);
SELECT jobq.delete(:id);

-- a consumer queue
SELECT jobq.create_queue('parcels', mode => 'consumer');
SELECT jobq.enqueue('any', '1', queue => 'parcels') AS one, jobq.enqueue('any', '2', queue => 'parcels') AS two,
	jobq.enqueue('any', '3', queue => 'parcels') AS three \gset
SELECT jobq.edit(:three, priority => -1), jobq.edit(:one, run_at => now() + interval '1 hour');
CALL test.settle();
SELECT payload, token FROM jobq.reserve('{parcels}', 5, wait => '5 min') LIMIT 1 \gset
SELECT :payload;
SELECT * FROM test.error('SELECT jobq.edit(' || :three || ', priority => 1)');
SELECT * FROM test.error('SELECT jobq.edit(' || :two || ', run_at => now())');
SELECT jobq.ack(:three, :token);
SELECT jobq.wait_queue('parcels', '50ms');
-- cancel_many() leaves reserved jobs alone
SELECT jobq.cancel_many(queue => 'parcels', state => 'waiting');
SELECT state FROM jobq.status(:one);
SELECT jobq.ack(:two, :token);
SELECT jobq.wait_queue('parcels');
SELECT jobq.drop_queue('parcels');

-- cancel_many(): waiting jobs are cancelled, running jobs continue
SELECT jobq.enqueue('gate', '1', queue => 'first') AS gate FROM pg_advisory_lock(1) \gset
SELECT test.in_gate(:gate);
SELECT count(*) FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 200) n), queue => 'first');
SELECT jobq.enqueue('note', '"later"', queue => 'first', delay => '1 hour') AS later \gset
BEGIN;
SELECT jobq.cancel_many(queue => 'first', state => 'waiting');
ROLLBACK;
SELECT jobq.cancel_many(queue => 'first', state => 'waiting');
SELECT state, error FROM jobq.status(:later);
SELECT state, count(*) FROM jobq.jobs WHERE queue = 'first' AND finished_at IS NULL GROUP BY state;
SELECT jobq.wait_queue('first', '1ms');
SELECT pg_advisory_unlock(1);
SELECT jobq.wait_queue('first', '5 min');
SELECT state FROM jobq.status(:gate);
SELECT count(*) FROM test.trace;
SELECT * FROM test.error('SELECT jobq.cancel_many(queue => ''no such'', state => ''waiting'')');
-- after a rolled back cancel_many(), the jobs still run
SELECT jobq.pause('held');
SELECT count(*) FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 100) n), queue => 'held');
BEGIN;
SELECT jobq.cancel_many(queue => 'held', state => 'waiting');
ROLLBACK;
SELECT jobq.resume('held');
SELECT jobq.wait_queue('held', '5 min');
SELECT count(*) FROM test.trace;
TRUNCATE test.trace;

-- wait_queue() does not wait for scheduled or retryable jobs
SELECT jobq.wait_queue('held', '0s');
SELECT jobq.enqueue('echo', queue => 'held', delay => '1 hour') AS later, jobq.enqueue('broken', queue => 'held', backoff => 'fixed 1h') AS broken \gset
SELECT jobq.wait_queue('held');
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :broken));
SELECT jobq.pause('held');
SELECT jobq.enqueue('echo', queue => 'held') AS id \gset
SELECT jobq.wait_queue('held', '10ms');
SELECT jobq.resume('held');
SELECT jobq.wait_queue('held', '5 min');
SELECT state FROM jobq.status(:id);
SELECT * FROM test.error('SELECT jobq.wait_queue(''no such'')');
SELECT * FROM test.error('SELECT jobq.wait_queue(''held'', ''-1s'')');
BEGIN;
SELECT jobq.enqueue('echo', queue => 'held') IS NULL;
SELECT * FROM test.error('SELECT jobq.wait_queue(''held'')');
ROLLBACK;
SELECT jobq.cancel_many(queue => 'held', state => 'waiting');

-- dead letters: by queue, by kind, all
SELECT count(jobq.delete(id)) FROM jobq.dead_letters;
SELECT jobq.register('broken_too', 'test.broken(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('broken', queue => 'held', max_attempts => 1) AS a, jobq.enqueue('broken_too', queue => 'held') AS b, jobq.enqueue('broken_too') AS c \gset
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);
SELECT jobq.retry_many('held', 'nothing'), jobq.retry_many('first'), jobq.retry_many('held', 'broken_too');
SELECT state, attempt FROM jobq.wait(:b);
SELECT jobq.retry_many(kind => 'broken_too');
SELECT state FROM jobq.wait_many(ARRAY[:b, :c]);
SELECT jobq.retry_many(state => 'dead');
SELECT state FROM jobq.wait_many(ARRAY[:a, :b, :c]);
SELECT jsonb_array_length(errors) FROM jobq.dead_letters ORDER BY id;
SELECT * FROM test.error('SELECT jobq.retry_many(''no such'')');
SELECT jobq.delete_many('first'), jobq.delete_many('held'), jobq.delete_many(state => 'dead');
SELECT count(*) FROM jobq.dead_letters;
SELECT * FROM test.error('SELECT jobq.delete_many(''no such'')');
-- more jobs than are read at a time
SELECT count(*) FROM jobq.enqueue_many('broken_too', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 2100) n), queue => 'held');
SELECT jobq.wait_queue('held', '5 min');
SELECT jobq.retry_many(state => 'dead');
SELECT jobq.wait_queue('held', '5 min');
SELECT count(*), min(jsonb_array_length(errors)), max(jsonb_array_length(errors)) FROM jobq.dead_letters;

-- prune: by age
SELECT jobq.prune();
SELECT jobq.prune(dead_older_than => '1 hour');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT jobq.enqueue('echo') AS young FROM jobq.wait_queue('held') \gset
SELECT state FROM jobq.wait(:young);
SELECT jobq.prune(dead_older_than => '1 hour');
SELECT jobq.prune(older_than => '1 hour') > 0 AS pruned;
SELECT count(*) FROM jobq.jobs WHERE finished_at < jobq_internal.clock() - interval '1 hour';
SELECT state FROM jobq.status(:young);
SELECT jobq.test_clock('0') \g /dev/null
SELECT * FROM test.error('SELECT jobq.prune(''-1 s'')');

-- drop_queue
SELECT * FROM test.error('SELECT jobq.drop_queue(''no such'')');
SELECT jobq.enqueue('broken_too', queue => 'held', delay => '1 hour') AS id \gset
SELECT * FROM test.error('SELECT jobq.drop_queue(''held'')');
SELECT jobq.edit(:id, run_at => now());
SELECT jobq.wait_queue('held');
SELECT * FROM test.error('SELECT jobq.drop_queue(''held'')');
SELECT jobq.enqueue('echo', queue => 'held') AS done \gset
SELECT state FROM jobq.wait(:done);
SELECT jobq.drop_queue('held', force => true);
SELECT count(*) FROM jobq.dead_letters;
SELECT count(*) FROM jobq.queues WHERE name = 'held';
-- finished jobs remain, without the name of the queue
SELECT state, queue FROM jobq.status(:done);
-- the next job creates the queue again
SELECT jobq.enqueue('echo', queue => 'held') AS id \gset
SELECT state, queue FROM jobq.wait(:id);
SELECT jobq.drop_queue('held');
SET jobq.create_queues = off;
SELECT * FROM test.error('SELECT jobq.enqueue(''echo'', queue => ''held'')');
RESET jobq.create_queues;
-- or for consumers: then a kind needs no handler
SET jobq.create_queues = consumer;
SELECT jobq.enqueue('any kind', queue => 'parcels') > 0 AS enqueued;
SELECT name, mode FROM jobq.queues WHERE name = 'parcels';
SELECT jobq.cancel_many(queue => 'parcels', state => 'waiting');
SELECT jobq.drop_queue('parcels');
SELECT * FROM test.error('SELECT jobq.enqueue(''any kind'')');
RESET jobq.create_queues;
SELECT * FROM test.error('SELECT jobq.enqueue(''any kind'', queue => ''parcels'')');
-- a misspelled name creates no queue
SELECT c, e.* FROM unnest('{pause,resume,wait_queue,cancel_many,retry_many,drop_queue,alter_queue}'::text[]) WITH ORDINALITY u (c, n),
	test.error(format('SELECT jobq.%I(''reprots'')', c)) e ORDER BY n;
SELECT count(*) FROM jobq.queues WHERE name = 'reprots';
-- but the queue "default" is created when needed
BEGIN;
UPDATE jobq_internal.queue SET name = 'was default' WHERE name = 'default';
SELECT jobq.pause('default');
SELECT paused, mode FROM jobq.queues WHERE name = 'default';
SELECT jobq.resume('default'), jobq.alter_queue('default', max_length => 5);
SELECT paused, max_length FROM jobq.queues WHERE name = 'default';
ROLLBACK;
BEGIN;
SELECT jobq.create_queue('brief');
SELECT jobq.drop_queue('brief');
COMMIT;
SELECT count(*) FROM jobq.queues WHERE name = 'brief';

-- a replicated queue with an id beyond the sequence
INSERT INTO jobq_internal.queue (id, name) OVERRIDING SYSTEM VALUE SELECT last_value + 1, 'brought' FROM jobq_internal.queue_id_seq;
SELECT jobq.create_queue('brief');
SELECT name FROM jobq.queues WHERE name IN ('brief', 'brought') ORDER BY name;
SELECT jobq.create_queue('brought'), jobq.create_queue('brought', max_running => 7);
SELECT max_running, mode, open FROM jobq.queues WHERE name = 'brought';
SELECT jobq.drop_queue('brief'), jobq.drop_queue('brought');

-- expires_after of a queue counts from run_at
SELECT e.* FROM unnest('{-1 s,0.0001 s,36501 days,290000 years}'::text[]) WITH ORDINALITY AS u (t, n),
	test.error(format('SELECT jobq.create_queue(''fresh'', expires_after => %L)', t)) e ORDER BY n;
SELECT jobq.create_queue('fresh', expires_after => '1 hour'), jobq.pause('fresh');
SELECT jobq.enqueue('note', '"hour"', queue => 'fresh') AS hour,
	jobq.enqueue('note', '"delayed"', queue => 'fresh', delay => '1 hour') AS delayed,
	jobq.enqueue('note', '"own"', queue => 'fresh', expires_at => now() + interval '3 hours') AS own,
	jobq.enqueue('note', '"moved"', queue => 'fresh') AS moved,
	jobq.enqueue('note', '"own, moved"', queue => 'fresh', expires_at => now() + interval '10 min') AS own_moved \gset
-- expires_at from the queue moves with run_at
SELECT jobq.edit(:moved, run_at => now() + interval '1 hour'), jobq.edit(:own_moved, run_at => now() + interval '1 min');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM unnest(ARRAY[:hour, :own_moved]) id, jobq.wait(id);
SELECT state, finished_at FROM unnest(ARRAY[:delayed, :own, :moved]) id, jobq.status(id);
SELECT jobq.test_clock('121 min') \g /dev/null
SELECT state, error FROM unnest(ARRAY[:delayed, :moved]) id, jobq.wait(id);
SELECT state FROM jobq.status(:own);
SELECT jobq.resume('fresh');
SELECT state FROM jobq.wait(:own);
SELECT note FROM test.trace;
SELECT jobq.test_clock('0') \g /dev/null
-- at the end of time
SELECT jobq.enqueue('note', queue => 'fresh', run_at => '294276-12-31 23:00+00') AS id \gset
SELECT s.state, j.expires_at FROM jobq.status(:id) s, jobq_internal.job j WHERE j.id = :id;
SELECT jobq.edit(:id, run_at => now() + interval '1 day');
SELECT expires_at - run_at FROM jobq_internal.job WHERE id = :id;
SELECT jobq.edit(:id, run_at => '294276-12-31 23:00+00');
SELECT state FROM jobq.status(:id);
SELECT jobq.cancel(:id);
-- a queue without workers
SELECT jobq.enqueue('note', queue => 'manual', expires_at => now() + interval '1 hour') AS id \gset
SELECT jobq.wait_queue('manual', '1ms');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT jobq.wait_queue('manual', '0s');
SELECT state, attempt, error, started_at FROM jobq.wait(:id);
-- and a consumer queue: reserved jobs do not expire
SELECT jobq.create_queue('parcels', mode => 'consumer', expires_after => '1 hour');
SELECT jobq.enqueue('any', queue => 'parcels') AS held \gset
SELECT token FROM jobq.reserve('{parcels}', lease => '1 day', wait => '5 min') \gset
SELECT jobq.enqueue('any', queue => 'parcels') AS waits \gset
SELECT jobq.test_clock('5 hours') \g /dev/null
SELECT state FROM jobq.wait(:waits);
SELECT state FROM jobq.status(:held);
SELECT jobq.ack(:held, :token);
SELECT state FROM jobq.status(:held);
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.drop_queue('parcels'), jobq.drop_queue('fresh');
TRUNCATE test.trace;
DROP FUNCTION test.moves;
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL AND queue <> 'manual';
