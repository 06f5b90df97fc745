-- Consumers find outdated jobs in memory that may not run.  Such jobs cost no tokens, and
-- hold neither permits nor leases, however many there are.

-- an expired job, and a job that now belongs to another lane
SELECT jobq.create_queue('paced', mode => 'consumer', rate => '1 per hour');
SELECT jobq.enqueue('parcel', '"late"', 'paced', expires_at => jobq_internal.clock() + '1 min') AS late, jobq.enqueue('parcel', '"moved"', 'paced') AS moved \gset
SELECT jobq.test_clock('2 min') \g /dev/null
SELECT jobq.create_limiter('carriers', max_running => 5), jobq.alter_queue('paced', limiters => '{carriers}');
CALL test.settle();
-- after a rollback, the jobs are found again
BEGIN;
SELECT count(*) FROM jobq.reserve('{paced}');
ROLLBACK;
SELECT id, state FROM jobq.live_jobs WHERE queue = 'paced' AND (id, state) NOT IN ((:late, 'expired'), (:moved, 'ready'));
SELECT count(*) FROM jobq.reserve('{paced}');
SELECT s.state FROM jobq.status(:late) s;
SELECT payload, token FROM jobq.reserve('{paced}', wait => '5 min') \gset
\echo :payload
SELECT jobq.ack(:moved, :token);
SELECT queue, limiter, running, tokens < 0.5 AS spent FROM jobq.limits WHERE type = 'queue' AND queue = 'paced' OR limiter = 'carriers' ORDER BY queue;
SELECT jobq.test_clock('0'), jobq.drop_queue('paced'), jobq.drop_limiter('carriers') \g /dev/null

-- the only permit is free for the next job in the same call
SELECT jobq.create_queue('narrow', mode => 'consumer', max_running => 1);
SELECT jobq.enqueue('parcel', '"late"', 'narrow', expires_at => jobq_internal.clock() + '1 min') FROM generate_series(1, 3) \g /dev/null
SELECT jobq.enqueue('parcel', '"good"', 'narrow') AS good \gset
SELECT jobq.test_clock('2 min') \g /dev/null
CALL test.settle();
SELECT payload, token FROM jobq.reserve('{narrow}', wait => '5 min') \gset
\echo :payload
SELECT jobq.ack(:good, :token);
SELECT jobq.test_clock('0'), jobq.drop_queue('narrow') \g /dev/null

-- more outdated jobs than a call can lease
SELECT jobq.create_queue('crowd', mode => 'consumer');
CREATE PROCEDURE test.crowd(what text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.enqueue_many('parcel', array_fill('"outdated"'::jsonb, ARRAY[5000]), queue => 'crowd',
		expires_at => CASE what WHEN 'expired' THEN jobq_internal.clock() + '1 min' END);
	PERFORM jobq.enqueue('parcel', '"good"', queue => 'crowd');
	COMMIT;
	CALL test.settle();
	IF what = 'cancelled' THEN
		PERFORM jobq.cancel(id) FROM jobq.live_jobs WHERE queue = 'crowd' AND payload = '"outdated"';
	ELSIF what = 'expired' THEN
		PERFORM jobq.test_clock('2 min');
	ELSE
		PERFORM jobq.create_limiter('carriers', max_running => 5), jobq.alter_queue('crowd', limiters => '{carriers}');
	END IF;
	COMMIT;
	CALL test.settle();
END
$$;
CALL test.crowd('cancelled');
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{crowd}', wait => '5 min');
CALL test.crowd('expired');
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{crowd}', wait => '5 min');
-- an expired job whose row still exists would be due again after the clock is set back
SELECT test.until($$NOT EXISTS (SELECT FROM jobq.live_jobs WHERE queue = 'crowd')$$);
SELECT count(*), state FROM jobq.jobs WHERE queue = 'crowd' GROUP BY state ORDER BY state;
SELECT jobq.test_clock('0') \g /dev/null
CALL test.crowd('moved');
SELECT count(*) FROM jobq.reserve('{crowd}');
SELECT payload, jobq.ack(id, token) FROM jobq.reserve('{crowd}', wait => '5 min');
SELECT count(*) FROM jobq_internal.lease_slots();
SELECT running FROM jobq.limits WHERE limiter = 'carriers';
SELECT jobq.cancel_many(queue => 'crowd', state => 'waiting');
SELECT jobq.drop_queue('crowd'), jobq.drop_limiter('carriers');
DROP PROCEDURE test.crowd;

-- the clock is set back while a consumer holds a job that has failed before: the job is running, not waiting
SELECT jobq.create_queue('again', mode => 'consumer');
SELECT jobq.test_clock('2 min') \g /dev/null
SELECT jobq.enqueue('parcel', '"held"', 'again', max_attempts => 3) AS id \gset
SELECT jobq.nack(id, token, 'broken', delay => '0') FROM jobq.reserve('{again}', wait => '5 min');
SELECT token FROM jobq.reserve('{again}', wait => '5 min') \gset
SELECT jobq.test_clock('0') \g /dev/null
SELECT run_at > jobq_internal.clock() AS ahead FROM jobq.live_jobs WHERE id = :id;
SELECT * FROM test.error('SELECT jobq.retry(' || :id || ')');
SELECT jobq.ack(:id, :token);
SELECT state, attempt FROM jobq.status(:id);
SELECT jobq.drop_queue('again');
