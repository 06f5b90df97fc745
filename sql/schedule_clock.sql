-- A clock that was wrong for a while: no data is deleted, and no job waits for the wrong time.
\connect - postgres
SET timezone = 'UTC';
SELECT jobq.test_clock('0') \g /dev/null
CREATE FUNCTION test.sorry(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'sorry'; END $$;
SELECT jobq.register('sorry', 'test.sorry(jsonb)', max_attempts => 1), jobq.register('again', 'test.sorry(jsonb)', queue => 'second', max_attempts => 9, backoff => 'fixed 1h');
SELECT jobq.create_queue('clock', mode => 'consumer', keep => 'nothing'), jobq.create_queue('ticks', keep => 'nothing');
SELECT jobq.pause('ticks');

-- Compares a due time with the expected time
CREATE FUNCTION test.due(at timestamptz, after interval) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN at <= jobq_internal.clock() + after THEN CASE WHEN at > jobq_internal.clock() + after - interval '10 min' THEN 'in time' ELSE 'early' END ELSE 'late' END
$$;

-- Set the clock ahead, and wait for a round of the scheduler.
CREATE PROCEDURE test.step(ahead interval) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.test_clock(ahead);
	COMMIT;
	CALL test.settle();
END
$$;

CREATE PROCEDURE test.wrong_for_a_while(ahead interval) LANGUAGE plpgsql AS $$
DECLARE
	job bigint;
BEGIN
	CALL test.step(ahead);
	job := jobq.enqueue('again', tags => '{retry}');
	PERFORM jobq.enqueue('echo', queue => 'ticks', tags => '{delay}', delay => '2 hours'),
		jobq.enqueue('echo', queue => 'ticks', tags => '{at once}'),
		jobq.enqueue('echo', queue => 'ticks', tags => '{theirs}', run_at => jobq_internal.clock() + interval '1 year'),
		jobq.enqueue('echo', queue => 'ticks', tags => '{unique}', unique_key => ahead::text, uniqueness => '{"for": "3 hours"}'),
		jobq.enqueue('parcel', queue => 'clock', tags => '{leased}');
	COMMIT;
	PERFORM jobq.reserve('{clock}', lease => '20 minutes', wait => '5 min');
	COMMIT;
	IF NOT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', job)) THEN
		RAISE WARNING 'it does not fail';
	END IF;
	CALL test.settle();
END
$$;

CREATE VIEW test.times AS
	SELECT tags[1] AS what, test.due(run_at, CASE tags[1] WHEN 'retry' THEN '1 hour' WHEN 'delay' THEN '2 hours' ELSE '0' END::interval) AS run_at
	FROM jobq.live_jobs WHERE tags && '{retry,delay,at once,theirs,unique}'
	UNION ALL SELECT 'schedule ' || name, test.due(next_tick, CASE name WHEN 'interval' THEN '90 min' ELSE '1 hour' END::interval) FROM jobq.schedules WHERE name <> 'all' AND next_tick > jobq_internal.clock() + interval '90 min'
	UNION ALL SELECT 'window', test.due(max(held_until), '3 hours') FROM jobq_internal.unique_key WHERE held_until > jobq_internal.clock()
	UNION ALL SELECT 'lease', test.due(lease_until, '20 min') FROM jobq_internal.lease_slots();

SELECT jobq.enqueue('sorry') AS dead, jobq.enqueue('echo') AS finished \gset
SELECT state FROM test.outcome(:dead);
SELECT state FROM test.outcome(:finished);
SELECT jobq.schedule('hourly', '0 * * * *', 'echo', options => '{"queue": "ticks"}'), jobq.schedule('interval', 'every 90 minutes', 'echo', options => '{"queue": "ticks"}'),
	jobq.schedule('skip', '0 * * * *', 'echo', missed => 'skip', options => '{"queue": "ticks"}'),
	jobq.schedule('rule', 'RRULE:FREQ=HOURLY;BYMINUTE=30;BYSECOND=0', 'echo', options => '{"queue": "ticks"}'),
	jobq.schedule('all', '* * * * *', 'echo', missed => 'all', options => '{"queue": "ticks"}');

-- ten years ahead for a moment
CALL test.wrong_for_a_while('3360 days');
SELECT count(*) AS dead_letters FROM jobq.dead_letters WHERE id = :dead;
SELECT count(*) AS finished FROM jobq.jobs WHERE id = :finished;
SELECT count(*) < 10 AS not_made_up_for FROM jobq.live_jobs WHERE headers ->> 'schedule' = 'all';
SELECT severity, split_part(detail, ' by ', 1) AS detail, split_part(remedy, '(', 1) AS remedy FROM jobq.doctor() WHERE detail LIKE '%has jumped%';
CALL test.step('0');
SELECT test.until('NOT EXISTS (SELECT FROM test.times WHERE run_at = ''late'' AND what <> ''theirs'')');
SELECT * FROM test.times ORDER BY 1;
SELECT count(*) FROM jobq.doctor() WHERE detail LIKE '%clock%';
SELECT jobq.schedule('new', '0 * * * *', 'echo', options => '{"queue": "ticks"}');
SELECT test.until('(SELECT count(DISTINCT next_tick) = 1 FROM jobq.schedules WHERE name IN (''hourly'', ''skip'', ''new''))');
SELECT jobq.unschedule('new');
SELECT count(jobq.cancel(id)) > 5 AS cancelled FROM jobq.live_jobs;

-- eight hours ahead, as with a wrong time zone
CALL test.wrong_for_a_while('8 hours');
CALL test.step('0');
SELECT test.until('NOT EXISTS (SELECT FROM test.times WHERE run_at = ''late'' AND what <> ''theirs'')');
SELECT * FROM test.times ORDER BY 1;
SELECT count(jobq.cancel(id)) > 5 AS cancelled FROM jobq.live_jobs;

-- more jobs than are corrected at a time: each job is corrected once
CALL test.step('8 hours');
SELECT count(jobq.enqueue('again')) AS enqueued FROM generate_series(1, 250);
SELECT test.until('(SELECT count(*) = 250 FROM jobq.live_jobs WHERE kind = ''again'' AND state = ''retryable'')');
CALL test.step('0');
SELECT test.until('NOT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = ''again'' AND test.due(run_at, ''1 hour'') = ''late'')');
SELECT test.due(run_at, '1 hour'), attempt, count(*) FROM jobq.live_jobs WHERE kind = 'again' GROUP BY 1, 2;
SELECT count(jobq.cancel(id)) >= 250 AS cancelled FROM jobq.live_jobs;

-- set back in two steps
CALL test.step('8 hours');
SELECT jobq.enqueue('again') AS again \gset
SELECT test.until('(SELECT state = ''retryable'' FROM jobq.status(' || :again || '))');
CALL test.step('1 hour');
SELECT test.until('(SELECT test.due(run_at, ''1 hour'') <> ''late'' FROM jobq.live_jobs WHERE id = ' || :again || ')');
CALL test.step('0');
SELECT test.until('(SELECT test.due(run_at, ''1 hour'') <> ''late'' FROM jobq.live_jobs WHERE id = ' || :again || ')');
SELECT test.due(run_at, '1 hour'), attempt FROM jobq.live_jobs WHERE id = :again;
SELECT count(jobq.cancel(id)) > 0 AS cancelled FROM jobq.live_jobs;

-- a schedule created under a wrong clock starts by the correct clock
CALL test.step('100 days');
SELECT jobq.schedule('made ahead', 'every 30 minutes', 'echo', options => '{"queue": "ticks"}');
CALL test.step('0');
SELECT test.until('(SELECT next_tick < jobq_internal.clock() + interval ''31 min'' FROM jobq.schedules WHERE name = ''made ahead'')');

-- also a schedule whose transaction commits after the clock was set back and all others were corrected
BEGIN;
SELECT jobq.test_clock('100 days') \g /dev/null
SELECT test.until('(SELECT next_tick > now() + interval ''99 days'' FROM jobq.schedules WHERE name = ''hourly'')');
SELECT jobq.schedule('committed later', 'every 30 minutes', 'echo', options => '{"queue": "ticks"}');
SELECT jobq.enqueue('echo', queue => 'ticks', delay => '2 hours') AS later \gset
SELECT jobq.test_clock('0') \g /dev/null
SELECT test.until('(SELECT next_tick < jobq_internal.clock() + interval ''61 min'' FROM jobq.schedules WHERE name = ''hourly'')');
COMMIT;
SELECT test.until('(SELECT next_tick < jobq_internal.clock() + interval ''31 min'' FROM jobq.schedules WHERE name = ''committed later'')');
SELECT test.until('(SELECT test.due(run_at, ''2 hours'') <> ''late'' FROM jobq.live_jobs WHERE id = ' || :later || ')');
SELECT jobq.cancel(:later);

-- a procedure that sleeps keeps its time, because the sleep has the same limit
CREATE PROCEDURE test.sleeper(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN CALL jobq.sleep('a day', '1 day'); END $$;
SELECT jobq.register('sleeper', 'test.sleeper(jsonb)');
CALL test.step('3 hours');
SELECT jobq.enqueue('sleeper') AS sleeper \gset
SELECT test.until(format('(SELECT state = ''suspended'' FROM jobq.status(%s))', :sleeper));
SELECT jobq.enqueue('echo', queue => 'ticks', delay => '2 hours') AS later \gset
CALL test.settle();
CALL test.step('0');
SELECT test.until('(SELECT test.due(run_at, ''2 hours'') <> ''late'' FROM jobq.live_jobs WHERE id = ' || :later || ')');
SELECT j.run_at = s.until AS kept, s.until > jobq_internal.clock() + interval '26 hours' AS late FROM jobq_internal.job j JOIN jobq_internal.procedure_step s ON s.job_id = j.id WHERE j.id = :sleeper;
SELECT jobq.cancel(:later), jobq.cancel(:sleeper);

-- a clock confirmed as correct is used
CALL test.step('40 days');
SELECT count(*) AS kept FROM jobq.dead_letters WHERE id = :dead;
SELECT jobq.test_clock('40 days') \g /dev/null
SELECT test.until('(SELECT last_tick > jobq_internal.clock() - interval ''5 min'' FROM jobq.schedules WHERE name = ''all'')');
-- the next cleanup pass, if the current pass began with the earlier clock
SELECT jobq.test_clock('40 days 2 hours') \g /dev/null
SELECT test.until('NOT EXISTS (SELECT FROM jobq.dead_letters WHERE id = ' || :dead || ')');
SELECT count(*) > 57000 AS made_up_for FROM jobq_internal.job WHERE headers ->> 'schedule' = 'all';
SELECT count(*) FROM jobq.doctor() WHERE detail LIKE '%has jumped%';
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) > 57000 AS cancelled FROM jobq.live_jobs;
SELECT jobq.test_clock('0') \g /dev/null

SELECT jobq.unregister('sorry'), jobq.unregister('again'), jobq.drop_queue('clock', force => true), jobq.drop_queue('ticks', force => true);
DROP VIEW test.times;
DROP FUNCTION test.sorry(jsonb), test.due(timestamptz, interval);
SELECT jobq.unregister('sleeper');
DROP PROCEDURE test.sleeper(jsonb), test.step(interval), test.wrong_for_a_while(interval);
