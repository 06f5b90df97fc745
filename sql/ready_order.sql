-- The order in which jobs run: queue, priority, run_at, id.

-- Meanwhile, the only worker of "first" and "second" is kept busy.
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'first') AS gate \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :gate));

SELECT jobq.enqueue('note', '"b: priority 0, first"', queue => 'first') IS NULL;
SELECT jobq.enqueue('note', '"f: priority 10"', queue => 'first', priority => 10) IS NULL;
SELECT jobq.enqueue('note', '"g: second queue, priority -100"', queue => 'second', priority => -100) IS NULL;
SELECT jobq.enqueue('note', '"c: priority 0, second"', queue => 'first') IS NULL;
SELECT jobq.enqueue('note', '"a: priority -1"', queue => 'first', priority => -1) IS NULL;
SELECT jobq.enqueue('note', '"i: second queue, last"', queue => 'second', priority => 2147483647) AS last \gset
SELECT jobq.enqueue('note', '"d: priority 5, run_at 2001"', queue => 'first', priority => 5, run_at => '2001-01-01') IS NULL;
SELECT jobq.enqueue('note', '"e: priority 5, run_at 2002"', queue => 'first', priority => 5, run_at => '2002-01-01') IS NULL;
SELECT jobq.enqueue('note', '"b0: priority 0, run_at 2001"', queue => 'first', run_at => '2001-01-01') IS NULL;
SELECT jobq.enqueue('note', '"h: second queue"', queue => 'second') IS NULL;
-- jobs of one transaction, enqueued in the wrong order of run_at
BEGIN;
SELECT jobq.enqueue('note', to_jsonb('a' || lpad(i::text, 3, '0')), queue => 'first', priority => -2,
	run_at => '2001-01-01'::timestamptz + i * '1 s'::interval) IS NULL AS null
FROM generate_series(100, 1, -1) i GROUP BY 1;
COMMIT;
SELECT count(*) AS waiting FROM jobq.jobs WHERE state = 'ready' AND queue IN ('first', 'second');
SELECT test.until('(SELECT ready_entries >= 110 FROM jobq_internal.scheduler_state())');
CALL test.settle();
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:last);
SELECT note FROM test.trace WHERE note NOT LIKE 'a___' ORDER BY n;
SELECT count(*), bool_and(note > previous) AS ordered
FROM (SELECT note, lag(note) OVER (ORDER BY n) AS previous FROM test.trace WHERE note LIKE 'a___') t;
TRUNCATE test.trace;

-- a backlog larger than a session hands over individually, mixed with late jobs of low run_at
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'first') AS gate \gset
SELECT test.until(format('(SELECT state = ''running'' FROM jobq.status(%s))', :gate));
SELECT count(*) FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(i) FROM generate_series(1001, 4000) i), queue => 'first');
SELECT count(*) FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 1000) i), queue => 'first', run_at => '2001-01-01');
SELECT jobq.enqueue('note', '4001', queue => 'first') AS last \gset
SELECT jobq.enqueue('note', '0', queue => 'first', run_at => '2000-01-01') AS other \gset
SELECT test.until('(SELECT ready_entries >= 4002 FROM jobq_internal.scheduler_state())');
CALL test.settle();
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:last, :other], '5 min');
SELECT count(*), bool_and(note::int = previous + 1) AS ordered
FROM (SELECT note, lag(note::int) OVER (ORDER BY n) AS previous FROM test.trace) t;
TRUNCATE test.trace;

-- delayed jobs run when due: the clock is set ahead
SELECT jobq.enqueue('note', '"in an hour"', queue => 'first', delay => '1 hour') AS hour,
	jobq.enqueue('note', '"in ten minutes, second queue"', queue => 'second', delay => '10 min') AS ten,
	jobq.enqueue('note', '"in ten minutes"', queue => 'first', delay => '10 min', priority => 5) AS ten_first,
	jobq.enqueue('note', '"in nine minutes, priority 9"', queue => 'first', delay => '9 min', priority => 9) AS nine,
	jobq.enqueue('note', '"in five minutes"', queue => 'second', delay => '5 min') AS five \gset
SELECT state FROM jobq.wait_many(ARRAY[:hour, :ten, :ten_first, :nine, :five], '0');
SELECT jobq.test_clock('6 min') \g /dev/null
SELECT state FROM jobq.wait(:five);
SELECT state FROM jobq.wait_many(ARRAY[:hour, :ten, :ten_first, :nine, :five], '0');
SELECT jobq.test_clock('30 min') \g /dev/null
SELECT state FROM jobq.wait_many(ARRAY[:ten, :ten_first, :nine]);
SELECT state FROM jobq.wait(:hour, '0');
SELECT jobq.test_clock('61 min') \g /dev/null
SELECT state FROM jobq.wait(:hour);
SELECT note FROM test.trace WHERE note ~ 'five|hour' ORDER BY n;
TRUNCATE test.trace;

-- the backoff of a failed job uses the same clock
SELECT jobq.enqueue('broken', backoff => 'fixed 10min', max_attempts => 2) AS id \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :id));
SELECT jobq.test_clock('80 min') \g /dev/null
SELECT * FROM test.outcome(:id);
SELECT jobq.delete(:id);

-- and so does expiry
SELECT jobq.enqueue('note', '"expires"', expires_at => clock_timestamp() + '90 min', delay => '1 min') AS id \gset
SELECT state FROM jobq.status(:id);
SELECT jobq.test_clock('100 min') \g /dev/null
SELECT * FROM test.outcome(:id);
SELECT jobq.test_clock('0') \g /dev/null

-- after the clock was set back
SELECT jobq.enqueue('echo') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT jobq.enqueue('echo', delay => '1 min') AS id \gset
SELECT jobq.test_clock('2 min') \g /dev/null
SELECT state FROM jobq.wait(:id);
SELECT jobq.test_clock('0') \g /dev/null
SELECT count(*) FROM test.trace;
