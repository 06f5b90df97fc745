-- Schedules: cron expressions, time zones, and the handling of ticks.
\connect - postgres

SET timezone = 'UTC';

-- Expressions
CREATE FUNCTION test.ticks(cron text, zone text, after timestamp, n int) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('timezone', zone, true);
	RETURN QUERY SELECT to_char(t, 'Dy YYYY-MM-DD HH24:MI:SS TZHTZM') FROM jobq.next_ticks(cron, zone, after::timestamptz, n) t;
END
$$;
SELECT cron, string_agg(to_char(t, 'Dy MM-DD HH24:MI:SS'), ', ' ORDER BY t) AS ticks
FROM unnest(ARRAY['* * * * *', '*/15 * * * *', '5,10-12 3 * * *', '10-50/20 8-18/5 * * *', '*/20 * * * * *', '30 0 12 * * *',
	'0 0 1 * *', '0 0 31 * *', '0 0 * * 0', '0 0 * * 7', '0 0 * * sun', '0 0 * * fri-sun', '0 9 * * MON-Fri', '0 0 * jan,jul 1',
	'0 0 13 * 5', '0 0 13 * */5', '0 0 ? * 5', '0 0 13 * ?', '0 0 L * *', '0 0 l-2 * ?', '0 0 1,15W,LW * *', '0 0 31W * *', '0 0 ? * fri#2', '0 0 ? * 5#5', '0 0 ? * FriL', '0 0 ? * 7L', '0 0 * * mon,wed#1', '0 0 L * sun#1',
	'0 0 L 2 ?', '0 0 ? feb thu#5', '0 0 */10 * mon', '0 0 29 2 *', ' 0	0 * *  * ',
	'@hourly', '@daily', '@midnight', '@weekly', '@monthly', '@yearly', '@ANNUALLY',
	'every 90 seconds', '@every 5m', '@Every 1h30m', 'every minute', 'every 5 min', 'Every 1 hour 30 minutes', 'every 2w']) WITH ORDINALITY AS u (cron, n),
	jobq.next_ticks(cron, 'UTC', '2026-01-01 00:00:30+00', 3) t
GROUP BY cron, n ORDER BY n;
-- strictly after
SELECT jobq.next_ticks('0 * * * *', 'UTC', '2026-01-01 00:00:00+00') AT TIME ZONE 'UTC';
SELECT jobq.next_ticks('0 * * * *', 'UTC', '2025-12-31 23:59:59.999999+00') AT TIME ZONE 'UTC';
SELECT jobq.next_ticks('59 59 23 31 12 *', 'UTC', '1969-12-31 23:59:58.5+00') AT TIME ZONE 'UTC';
SELECT count(*), bool_and(t > now()) FROM jobq.next_ticks('0 0 * * *', n => 3) t;
-- a rare day: 29 February at a weekend; because of the asterisk, both fields must match
SELECT to_char(t, 'Dy YYYY-MM-DD') FROM jobq.next_ticks('0 0 29 2 */6', 'UTC', '2096-01-01', 3) t;

-- Daylight saving time: a skipped hour, and a repeated hour
CREATE TABLE test.zone (zone text, gap timestamp, overlap timestamp, fixed_gap text, fixed_overlap text);
INSERT INTO test.zone VALUES
	('Europe/Madrid', '2026-03-29 01:00', '2026-10-25 01:59', '30 2 * * *', '30 2 * * *'),
	('America/New_York', '2026-03-08 01:00', '2026-11-01 00:59', '30 2 * * *', '30 1 * * *'),
	('America/Argentina/Buenos_Aires', '2008-10-18 23:00', '2009-03-14 22:59', '30 0 * * *', '30 23 * * *'),
	('Australia/Lord_Howe', '2026-10-04 01:30', '2026-04-05 01:29', '10 2 * * *', '45 1 * * *');
-- a time of day runs once: directly after the gap, or in the first of the repeated hours
SELECT zone, fixed_gap, t FROM test.zone, test.ticks(fixed_gap, zone, gap - interval '1 day', 3) t;
SELECT zone, fixed_overlap, t FROM test.zone, test.ticks(fixed_overlap, zone, overlap - interval '1 day', 3) t;
SELECT zone, t FROM test.zone, test.ticks('*/20 ' || substr(fixed_gap, 4), zone, gap, 4) t;
SELECT zone, t FROM test.zone, test.ticks('*/30 ' || substr(fixed_overlap, 4), zone, overlap, 3) t;
-- with any hour, ticks follow real time
SELECT zone, t FROM test.zone, test.ticks('*/30 * * * *', zone, gap, 4) t;
SELECT zone, t FROM test.zone, test.ticks('*/30 * * * *', zone, overlap, 6) t;
SELECT zone, t FROM test.zone, test.ticks('@hourly', zone, overlap - interval '1 hour', 4) t;
-- starting within the second of the repeated hours
SELECT t AT TIME ZONE 'UTC' FROM jobq.next_ticks('30 2 * * *', 'Europe/Madrid', '2026-10-25 01:10+00', 2) t;
SELECT t AT TIME ZONE 'UTC' FROM jobq.next_ticks('*/30 * * * *', 'Europe/Madrid', '2026-10-25 01:10+00', 2) t;
-- a skipped day
SELECT test.ticks('0 12 * * *', 'Pacific/Apia', '2011-12-29 00:00', 3);
SELECT test.ticks('0 0 30 * *', 'Pacific/Apia', '2011-12-01 00:00', 2);
-- intervals are not affected
SELECT test.ticks('every 12 hours', 'Europe/Madrid', '2026-03-28 12:00', 3);

-- The same by brute force: each quarter of an hour of some years is compared with all ticks.
CREATE FUNCTION test.compare(cron text, zone text, from_year int, to_year int, real_time boolean, hours int[], minutes int[],
	OUT ticks int, OUT missing int, OUT extra int)
LANGUAGE plpgsql AS $$
DECLARE
	first timestamptz := make_timestamptz(from_year, 1, 1, 0, 0, 0, 'UTC');
	last timestamptz := make_timestamptz(to_year, 1, 1, 0, 0, 0, 'UTC');
BEGIN
	CREATE TEMP TABLE got AS SELECT t FROM jobq.next_ticks(cron, zone, first, 100000) t WHERE t <= last;
	IF real_time THEN
		CREATE TEMP TABLE want AS SELECT t FROM generate_series(first + interval '15 min', last, '15 min') t
		WHERE extract(hour FROM t AT TIME ZONE zone) = ANY (hours) AND extract(minute FROM t AT TIME ZONE zone) = ANY (minutes);
	ELSE
		-- the first moment at which the clock shows that time, or has passed it for the first time
		CREATE TEMP TABLE want AS SELECT DISTINCT (
			SELECT min(t) FROM generate_series((l AT TIME ZONE zone) - interval '2 hours', (l AT TIME ZONE zone) + interval '2 hours', '15 min') t
			WHERE t AT TIME ZONE zone >= l) AS t
		FROM (SELECT d + make_interval(hours => h, mins => m) AS l
			FROM generate_series(first AT TIME ZONE zone - interval '1 day', last AT TIME ZONE zone + interval '1 day', '1 day') AS g (d0),
			date_trunc('day', d0) AS d, unnest(hours) h, unnest(minutes) m) ls;
		DELETE FROM want WHERE t <= first OR t > last;
	END IF;
	SELECT count(*) INTO ticks FROM got;
	SELECT count(*) INTO missing FROM want w WHERE NOT EXISTS (SELECT FROM got g WHERE g.t = w.t);
	SELECT count(*) INTO extra FROM got g WHERE NOT EXISTS (SELECT FROM want w WHERE g.t = w.t);
	DROP TABLE got, want;
END
$$;
SELECT zone, c.* FROM (VALUES ('Europe/Madrid', 2026), ('America/New_York', 2026), ('America/Argentina/Buenos_Aires', 2008), ('Australia/Lord_Howe', 2026)) z (zone, year),
	test.compare('15,45 * * * *', zone, year, year + 1, true, ARRAY(SELECT generate_series(0, 23)), '{15,45}') c;
SELECT zone, c.* FROM (VALUES ('Europe/Madrid', 2026), ('America/New_York', 2026), ('America/Argentina/Buenos_Aires', 2008), ('Australia/Lord_Howe', 2026)) z (zone, year),
	test.compare('15,45 0-3,23 * * *', zone, year, year + 1, false, '{0,1,2,3,23}', '{15,45}') c;

-- Days that depend on the month, compared with a calendar in SQL; some of these days have a change of the clocks.
CREATE FUNCTION test.compare_days(days text, wanted text, zone text, OUT ticks int, OUT missing int, OUT extra int)
LANGUAGE plpgsql AS $$
DECLARE
	first timestamptz := '2023-12-31 00:00 UTC';
	last timestamptz := '2032-01-01 00:00 UTC';
BEGIN
	CREATE TEMP TABLE got AS SELECT t FROM jobq.next_ticks('30 2 ' || days, zone, first, 100000) t WHERE t <= last;
	EXECUTE format($q$
		CREATE TEMP TABLE want AS SELECT (
			SELECT min(t) FROM generate_series((d + time '02:30') AT TIME ZONE %L - interval '2 hours', (d + time '02:30') AT TIME ZONE %1$L + interval '2 hours', '15 min') t
			WHERE t AT TIME ZONE %1$L >= d + time '02:30') AS t
		FROM (SELECT m::date AS first, (m + interval '1 month')::date - 1 AS last FROM generate_series(timestamp '2023-12-01', '2032-02-01', '1 month') m) m,
			LATERAL (SELECT first + n AS d FROM generate_series(0, last - first) n) d
		WHERE %s $q$, zone, wanted);
	DELETE FROM want WHERE t <= first OR t > last;
	SELECT count(*) INTO ticks FROM got;
	SELECT count(*) INTO missing FROM want w WHERE NOT EXISTS (SELECT FROM got g WHERE g.t = w.t);
	SELECT count(*) INTO extra FROM got g WHERE NOT EXISTS (SELECT FROM want w WHERE g.t = w.t);
	DROP TABLE got, want;
END
$$;
-- the working day nearest to the given day in the same month; null if the month has no such day
CREATE FUNCTION test.nearest(day date, first date) RETURNS date LANGUAGE sql AS $$
	SELECT w FROM (SELECT first + n AS w FROM generate_series(0, 30) n) w
	WHERE extract(isodow FROM w) < 6 AND extract(month FROM w) = extract(month FROM first) AND extract(month FROM day) = extract(month FROM first)
	ORDER BY abs(w - day) LIMIT 1
$$;
CREATE FUNCTION test.nth(d date, weekday int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM generate_series(date_trunc('month', d::timestamp), d::timestamp, '1 day') x WHERE extract(dow FROM x) = weekday AND extract(dow FROM d) = weekday
$$;
SELECT days, zone, c.* FROM (SELECT row_number() OVER () AS n, days, wanted FROM (VALUES ('L * *', 'd = last'), ('L-2 * ?', 'd = last - 2'), ('L-30 * *', 'd = last - 30'), ('1,L,L-1 2,3 *', 'extract(month FROM d) IN (2, 3) AND d IN (first, last, last - 1)'),
	('1W * *', 'd = test.nearest(first, first)'), ('15W * ?', 'd = test.nearest(first + 14, first)'), ('31W * *', 'd = test.nearest(first + 30, first)'), ('30W,29W * *', 'd IN (test.nearest(first + 28, first), test.nearest(first + 29, first))'),
	('LW * *', 'd = test.nearest(last, first)'), ('? * sunL', 'extract(dow FROM d) = 0 AND d > last - 7'), ('? * 5L', 'extract(dow FROM d) = 5 AND d > last - 7'),
	('? * sun#2', 'test.nth(d, 0) = 2'), ('* * 7#1', 'test.nth(d, 0) = 1'), ('? * fri#5', 'test.nth(d, 5) = 5'), ('? 2 4#5', 'test.nth(d, 4) = 5 AND extract(month FROM d) = 2'), ('* * mon#1,tue#2,wedL', 'test.nth(d, 1) = 1 OR test.nth(d, 2) = 2 OR (extract(dow FROM d) = 3 AND d > last - 7)'),
	('L * sun#1', 'd = last OR test.nth(d, 0) = 1'), ('*/2 * satL', 'extract(day FROM d)::int % 2 = 1 AND extract(dow FROM d) = 6 AND d > last - 7')) v (days, wanted)) w,
	unnest('{Europe/Madrid,America/New_York}'::text[]) zone, test.compare_days(days, wanted, zone) c ORDER BY n, zone;

-- Intervals use the common syntax
SELECT e AS every, t - '2026-01-01 UTC' AS after
FROM unnest('{90s,1.5 hours,00:02,PT5M,1 day 12 hours,"  2 weeks ",minute,5}'::text[]) WITH ORDINALITY u (e, n), jobq.next_ticks('every ' || e, 'UTC', '2026-01-01 UTC') t ORDER BY n;

-- Errors name the field, and the allowed values
SELECT e.message, e.hint FROM unnest(ARRAY['', '* * * *', '* * * * * * *', '60 * * * *', '60 * * * * *', '* 24 * * *', '* * 0 * *', '* * * 13 *', '* * * * 8',
	'* * * foo *', '* * * * monday', 'x * * * *', '-5 * * * *', '1,,2 * * * *', '1- * * * *', '1;2 * * * *', '1-5-7 * * * *', 'L * * * *', '0 0 * L *', '0 0 * * L', '0 0 * * sun#', '0 0 * * sun#6', '0 0 * * sun#22', '0 0 * * #2', '0 0 2#2 * *', '0 0 * * 2W', '0 0 32W * *', '0 0 1-5W * *', '0 0 W * *', '0 0 WL * *', '0 0 L- * *', '0 0 L-0 * *', '0 0 L-31 * *',
	'0 0 L-30 2 *', '0 0 L/2 * *', '0 0 L-2W * *', '0 0 * * 1-5L', '0 0 * * friday#2', '0 0 * * frix', '0 0 * * fri#2-5', '0 0 * * 8L', '? * * * *', '0 0 ?/2 * *', '0 0 1,? * *', '0 0 ?? * *', '0 0 30W 2 *', '0 0 $ * *',
	'50-10 * * * *', '* * * * fri-mon', '5/15 * * * *', '*/0 * * * *', '*/x * * * *', '*/90 * * * *', '99999999999999999999 * * * *', '0 0 30 2 *', '0 0 31 4,6,9,11 *',
	'@often', '@every', '@everyday', '@reboot', 'every', 'every 0 seconds', 'every 500 ms', 'every 3 months', 'every 1 day 1 month', 'every -5 min', 'every 5 min, 1 s', 'every 2 minutes and', 'every 99999999 weeks', 'everyday', '* * * * é', 'every 5 é']) WITH ORDINALITY AS u (cron, n),
	test.error(format('SELECT jobq.schedule(''bad'', %L, ''echo'')', cron)) e ORDER BY n;
SELECT * FROM unnest(ARRAY['zone', '', 'UTC+2', 'CEST', 'Europe/Madird', 'Europe/Madrid; DROP']) z,
	test.error(format('SELECT jobq.schedule(''bad'', ''@daily'', ''echo'', timezone => %L)', z));
SELECT * FROM unnest(ARRAY['NULL, ''@daily'', ''echo''', '''bad'', NULL, ''echo''', '''bad'', ''@daily'', NULL', '''bad'', ''@daily'', ''echo'', NULL',
	''''', ''@daily'', ''echo''', 'repeat(''x'', 128), ''@daily'', ''echo''', '''bad'', ''@daily'', ''no such kind''', '''bad'', ''@daily'', ''''',
	'''bad'', ''@daily'', ''echo'', missed => ''never''', '''bad'', ''@daily'', ''echo'', missed => NULL', '''bad'', ''@daily'', ''echo'', overlap => ''wait''',
	'''bad'', ''@daily'', ''echo'', options => ''[]''']) WITH ORDINALITY AS u (a, n),
	test.error('SELECT jobq.schedule(' || a || ')') ORDER BY n;
SELECT * FROM unnest(ARRAY['"max_attempts": -1', '"backoff": "5s"', '"timeout": "-1s"', '"expires_after": "0"', '"expires_after": 5', '"jitter": "0"', '"jitter": "-1 min"', '"jitter": "1 month 1 wink"', '"jitter": 5', '"jitter": "1h", "expires_after": "1h"', '"headers": []', '"queue": ""', '"group_key": ""',
	'"prioritaet": 1', '"run_at": "2040-01-01"', '"delay": "5s"', '"retry_until": "2040-01-01"', '"expires_at": "2040-01-01"', '"unique_key": "k"', '"uniqueness": {"for": "1h"}', '"uniqueness": 5', '"uniqueness": {"often": true}', '"options": {}'])
	WITH ORDINALITY AS u (o, n), test.error(format('SELECT jobq.schedule(''bad'', ''@daily'', ''echo'', options => ''{%s}'')', o)) ORDER BY n;
SELECT c, e.* FROM unnest('{unschedule(%L),pause(schedule => %L),resume(schedule => %L),run_schedule(%L)}'::text[]) WITH ORDINALITY AS u (c, n), test.error(format('SELECT jobq.' || c, 'none')) e ORDER BY n;
SELECT e.* FROM unnest('{''x'',''* * * * *''\, n => 0,''* * * * *''\, n => 1000000,NULL::text,''* * * * *''\, NULL,''* * * * *''\, n => NULL,''* * * * *''\, after => ''infinity''}'::text[]) WITH ORDINALITY AS u (a, n),
	test.error('SELECT jobq.next_ticks(' || a || ')') e ORDER BY n;
SELECT count(*) FROM jobq.schedules;

-- From the first call of test.clock() on, the test sets the time.
CREATE FUNCTION test.made(schedule text) RETURNS TABLE (scheduled_for text, run_at timestamp, state text)
LANGUAGE sql AS $$
	SELECT j.headers ->> 'scheduled_for', j.run_at AT TIME ZONE 'UTC', j.state
	FROM jobq.jobs j WHERE j.headers ->> 'schedule' = schedule ORDER BY j.id
$$;
CALL test.clock('2040-01-01 12:00:00.5+00');

-- Each tick enqueues a single job, at the time of the tick
SELECT jobq.schedule('report', '30 4 * * *', 'echo', '{"n": 1}', 'Europe/Madrid', options =>
	'{"queue": "manual", "priority": 7, "max_attempts": 2, "backoff": "fixed 1s", "timeout": "1 min", "headers": {"trace": "x"}, "expires_after": "1 hour", "group_key": "g"}');
SELECT * FROM jobq.schedules;
CALL test.clock('2040-01-02 03:29:00+00');
SELECT * FROM test.made('report');
CALL test.clock('2040-01-02 03:30:01+00');
SELECT kind, payload, queue, priority, role, max_attempts, headers, run_at, state, enqueued_at > run_at AS later FROM jobq.jobs WHERE headers ->> 'schedule' = 'report';
SELECT backoff, timeout_ms, expires_at, group_key FROM jobq_internal.job WHERE headers ? 'schedule';
SELECT state, next_tick, last_tick, last_job_id IS NOT NULL AS has_job, last_state FROM jobq.schedules;
SELECT jobq.cancel(last_job_id) FROM jobq.schedules;
SELECT last_state FROM jobq.schedules;
SELECT jobq.unschedule('report');
SELECT count(*) FROM jobq.schedules;

-- Months pass without a missing tick, through both changes of the clocks
SELECT jobq.schedule('half', '*/30 * * * *', 'echo', timezone => 'Europe/Madrid', missed => 'all', options => '{"queue": "manual"}'),
	jobq.schedule('daily', '30 2 * * *', 'echo', timezone => 'Australia/Lord_Howe', missed => 'all', options => '{"queue": "manual"}'),
	jobq.schedule('interval', 'every 90 minutes', 'echo', missed => 'all', options => '{"queue": "manual"}');
SELECT anchor AS since FROM jobq_internal.schedule WHERE name = 'interval' \gset
CALL test.clock('2040-05-01 00:00+00');
CALL test.clock('2040-12-01 00:00+00');
SELECT s.name, count(*) AS jobs, count(DISTINCT j.headers ->> 'scheduled_for') AS ticks, min(j.run_at) > s.anchor AS first, max(j.run_at) = s.last_tick AS last,
	bool_and(j.run_at = (j.headers ->> 'scheduled_for')::timestamptz) AS same
FROM jobq_internal.job j JOIN jobq_internal.schedule s ON s.name = j.headers ->> 'schedule' GROUP BY s.name, s.anchor, s.last_tick ORDER BY 1;
SELECT name, count(*) AS wanted, count(j.id) AS made
FROM jobq.schedules s, LATERAL jobq.next_ticks(s.cron, s.timezone, :'since', 20000) t
LEFT JOIN jobq_internal.job j ON j.run_at = t
WHERE t <= '2040-12-01' AND (j.id IS NULL OR j.headers ->> 'schedule' = s.name) GROUP BY name ORDER BY name;
SELECT count(*), min(run_at - lag), max(run_at - lag) FROM (SELECT run_at, lag(run_at) OVER (ORDER BY id) AS lag FROM jobq_internal.job WHERE headers ->> 'schedule' = 'interval') l;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- Jitter: jobs of a tick do not all start at the same moment
SELECT jobq.schedule('jitter', '0 * * * *', 'echo', missed => 'all', options => '{"queue": "manual", "jitter": "30 min", "expires_after": "2 hours"}');
CALL test.clock('2040-12-01 00:30+00');
SELECT options - 'queue' AS options, next_tick = '2040-12-01 01:00' AS at_the_tick FROM jobq.schedules;
SELECT jobq.unschedule('jitter');
SELECT jobq.schedule('jitter', '* * * * *', 'echo', missed => 'all', options => '{"queue": "manual", "jitter": "30 min", "expires_after": "2 hours"}');
CALL test.clock('2040-12-01 02:10+00');
SELECT count(*) AS ticks, count(DISTINCT headers -> 'scheduled_for') AS differ, bool_and(run_at - (headers ->> 'scheduled_for')::timestamptz BETWEEN '0' AND '30 min') AS within,
	count(DISTINCT run_at - (headers ->> 'scheduled_for')::timestamptz) > 10 AS spread, bool_or(run_at - (headers ->> 'scheduled_for')::timestamptz > '10 min') AS far,
	bool_and(expires_at = (headers ->> 'scheduled_for')::timestamptz + interval '2 hours') AS expire_by_the_tick
FROM jobq_internal.job WHERE headers ->> 'schedule' = 'jitter';
SELECT jobq.run_schedule('jitter') AS id \gset
SELECT run_at = (headers ->> 'scheduled_for')::timestamptz AS at_once FROM jobq_internal.job WHERE id = :id;
SELECT jobq.unschedule('jitter');
SELECT count(jobq.cancel(id)) > 100 AS cancelled FROM jobq_internal.job WHERE headers ? 'schedule';

-- Missed ticks
SELECT jobq.schedule(m, '0 * * * *', 'echo', missed => m, options => '{"queue": "manual"}') FROM unnest('{skip,once,all}'::text[]) m;
CALL test.clock('2040-12-01 05:30+00');
SELECT m, t.scheduled_for FROM unnest('{skip,once,all}'::text[]) WITH ORDINALITY AS u (m, n), test.made(m) t ORDER BY n, 2;
SELECT name, last_tick, next_tick FROM jobq.schedules ORDER BY name;
-- without a missed tick, all settings behave the same
CALL test.clock('2040-12-01 05:59:59+00');
SELECT test.until('(SELECT count(*) = 3 FROM jobq.schedules WHERE last_tick = ''2040-12-01 06:00'')');
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- Overlapping ticks
SELECT pg_advisory_lock(7);
CALL test.clock('2040-12-02 00:00:30+00');
SELECT jobq.schedule('overlap ' || o, '0 * * * *', 'gate', '7', overlap => o) FROM unnest('{allow,skip,queue}'::text[]) o;
CALL test.clock('2040-12-02 01:00:01+00');
CALL test.clock('2040-12-02 02:00:01+00');
SELECT test.until('(SELECT count(*) = 4 FROM jobq.jobs WHERE kind = ''gate'' AND state = ''running'')');
SELECT test.until('(SELECT held FROM jobq_internal.schedule WHERE name = ''overlap queue'')');
CALL test.clock('2040-12-02 04:00:01+00');
SELECT o, t.scheduled_for FROM unnest('{allow,skip,queue}'::text[]) WITH ORDINALITY AS u (o, n), test.made('overlap ' || o) t ORDER BY n, 2;
SELECT name, state, last_tick, next_tick FROM jobq.schedules ORDER BY name;
SELECT pg_advisory_unlock(7);
-- the waiting tick runs when the job has finished, and one tick for all later ticks
SELECT test.until('(SELECT count(*) = 3 FROM test.made(''overlap queue''))');
SELECT scheduled_for FROM test.made('overlap queue');
SELECT test.until('(SELECT bool_and(last_state = ''completed'') FROM jobq.schedules)');
SELECT name, state, last_tick, next_tick FROM jobq.schedules ORDER BY name;
CALL test.clock('2040-12-02 05:00:01+00');
SELECT name, last_tick FROM jobq.schedules ORDER BY name;
SELECT test.until('(SELECT bool_and(last_state = ''completed'') FROM jobq.schedules)');
-- a retryable job has not finished
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT jobq.schedule('retry', '0 * * * *', 'broken', overlap => 'queue', options => '{"max_attempts": 2, "backoff": "fixed 1h"}');
CALL test.clock('2040-12-02 06:00:01+00');
SELECT test.until('(SELECT last_state = ''retryable'' FROM jobq.schedules)');
CALL test.clock('2040-12-02 07:00:01+00');
SELECT test.until('(SELECT last_tick = ''2040-12-02 07:00'' FROM jobq.schedules)');
SELECT jobq.unschedule('retry');
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';
-- a cancelled job has finished
SELECT jobq.schedule('cancelled', '0 * * * *', 'echo', overlap => 'queue', options => '{"queue": "manual"}');
CALL test.clock('2040-12-02 08:00:01+00');
CALL test.clock('2040-12-02 09:00:01+00');
SELECT test.until('(SELECT state = ''waiting'' AND last_tick = ''2040-12-02 08:00'' FROM jobq.schedules)');
SELECT jobq.cancel(last_job_id) FROM jobq.schedules;
SELECT test.until('(SELECT state = ''active'' AND last_tick = ''2040-12-02 09:00'' FROM jobq.schedules)');
-- and a waiting tick continues when the policy is changed
CALL test.clock('2040-12-02 10:00:01+00');
SELECT test.until('(SELECT state = ''waiting'' FROM jobq.schedules)');
SELECT jobq.schedule('cancelled', '0 * * * *', 'echo', options => '{"queue": "manual"}');
SELECT test.until('(SELECT state = ''active'' AND last_tick = ''2040-12-02 10:00'' FROM jobq.schedules)');
SELECT jobq.unschedule('cancelled');
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- Changes take effect at once
CALL test.clock('2040-12-03 00:00:01+00');
SELECT jobq.schedule('changes', '0 * * * *', 'echo', options => '{"queue": "manual"}');
SELECT next_tick FROM jobq.schedules;
SELECT jobq.schedule('changes', '30 * * * *', 'echo', '"new"', options => '{"queue": "manual"}');
SELECT next_tick FROM jobq.schedules;
CALL test.clock('2040-12-03 00:59:00+00');
SELECT run_at, payload FROM jobq_internal.job WHERE headers ? 'schedule';
-- with the same times, the next tick is not postponed
SELECT jobq.schedule('changes', 'every 2 hours', 'echo', options => '{"queue": "manual"}');
SELECT next_tick AS "next" FROM jobq.schedules \gset
CALL test.clock('2040-12-03 02:00:00+00');
SELECT jobq.schedule('changes', 'every 2 hours', 'echo', '"newer"', options => '{"queue": "manual"}');
SELECT next_tick = :'next' AS same, payload FROM jobq.schedules;
-- pause
SELECT c, e.* FROM unnest('{pause(),resume(),"pause(''second'', schedule => ''changes'')","resume(schedule => ''changes'', kind => ''echo'')"}'::text[]) c, test.error('SELECT jobq.' || c) e;
SELECT jobq.pause(schedule => 'changes');
SELECT jobq.pause(schedule => 'changes');
SELECT state, next_tick FROM jobq.schedules;
SELECT jobq.schedule('changes', '0 * * * *', 'echo', options => '{"queue": "manual"}');
SELECT state, next_tick FROM jobq.schedules;
SELECT jobq.schedule('meanwhile', '0 * * * *', 'echo', options => '{"queue": "manual"}');
CALL test.clock('2040-12-03 05:30:00+00');
SELECT jobq.resume(schedule => 'changes');
SELECT jobq.resume(schedule => 'changes');
SELECT name, state, last_tick, next_tick FROM jobq.schedules ORDER BY name;
CALL test.clock('2040-12-03 06:00:01+00');
SELECT name, scheduled_for FROM jobq.schedules, test.made(name) ORDER BY 2, 1;
-- a rollback leaves schedules unchanged
BEGIN;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
ROLLBACK;
BEGIN;
SELECT jobq.schedule('changes', 'every 1 second', 'echo', options => '{"queue": "manual"}');
ROLLBACK;
CALL test.clock('2040-12-03 07:00:01+00');
SELECT name, last_tick, next_tick FROM jobq.schedules ORDER BY name;
-- a prepared transaction takes effect at its commit
BEGIN;
SELECT jobq.schedule('changes', '*/15 * * * *', 'echo', options => '{"queue": "manual"}');
PREPARE TRANSACTION 'change';
COMMIT PREPARED 'change';
CALL test.clock('2040-12-03 07:15:01+00');
SELECT name, last_tick FROM jobq.schedules ORDER BY name;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- A failing schedule does not stop other schedules, and continues when possible
SELECT jobq.register('fleeting', 'test.echo(jsonb)');
SELECT jobq.schedule('fleeting', '0 * * * *', 'fleeting', options => '{"queue": "manual"}'), jobq.schedule('sound', '0 * * * *', 'echo', options => '{"queue": "manual"}');
SELECT jobq.schedule('late', '0 * * * *', 'fleeting', missed => 'skip', options => '{"queue": "manual"}');
SELECT jobq.unregister('fleeting');
CALL test.clock('2040-12-03 08:00:01+00');
SELECT test.until('(SELECT count(*) = 2 FROM jobq.schedules WHERE state = ''failing'')');
SELECT name, state, last_tick, next_tick, last_error FROM jobq.schedules ORDER BY name;
CALL test.clock('2040-12-03 09:00:01+00');
SELECT name, state, last_tick, next_tick FROM jobq.schedules ORDER BY name;
SELECT jobq.register('fleeting', 'test.echo(jsonb)');
CALL test.clock('2040-12-03 09:02:00+00');
SELECT test.until('(SELECT count(*) = 3 FROM jobq.schedules WHERE state = ''active'')');
SELECT name, state, last_tick, next_tick, last_error FROM jobq.schedules ORDER BY name;
SELECT jobq.unschedule('late');
-- corrupted rows
UPDATE jobq_internal.schedule SET timezone = 'Atlantis/Center' WHERE name = 'fleeting';
UPDATE jobq_internal.schedule SET cron = 'nonsense' WHERE name = 'sound';
SELECT jobq.schedule('good', '0 * * * *', 'echo', options => '{"queue": "manual"}');
CALL test.clock('2040-12-03 10:00:01+00');
SELECT test.until('(SELECT count(*) = 2 FROM jobq.schedules WHERE state = ''failing'')');
SELECT name, state, last_tick, last_error FROM jobq.schedules ORDER BY name;
-- schedule() repairs them
SELECT jobq.schedule('fleeting', '0 * * * *', 'fleeting', options => '{"queue": "manual"}'), jobq.schedule('sound', '0 * * * *', 'echo', options => '{"queue": "manual"}');
CALL test.clock('2040-12-03 11:00:01+00');
SELECT name, state, last_tick, last_error FROM jobq.schedules ORDER BY name;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- run_schedule(): an immediate job; the schedule's own ticks stay
SELECT jobq.schedule('now', '0 * * * *', 'echo', '{"n": 1}', options => '{"queue": "manual", "priority": 3}'),
	jobq.schedule('alone', '0 * * * *', 'echo', overlap => 'skip', options => '{"queue": "manual"}'),
	jobq.schedule('in turn', '0 * * * *', 'echo', overlap => 'queue', options => '{"queue": "manual"}');
CREATE TEMP TABLE ran AS SELECT name, jobq.run_schedule(name) AS id FROM jobq.schedules;
SELECT name, count(*), bool_and(s.last_job_id = j.id AND s.last_tick = j.run_at AND j.enqueued_at >= j.run_at), min(next_tick), min(last_state) AS last_state
FROM ran JOIN jobq.schedules s USING (name) JOIN jobq.jobs j ON j.headers ->> 'schedule' = name GROUP BY name ORDER BY name;
SELECT payload, queue, priority, role = current_user::regrole AS mine, (headers ->> 'scheduled_for')::timestamptz = run_at AS headers
FROM jobq.jobs WHERE id = (SELECT id FROM ran WHERE name = 'now');
-- run_schedule() respects the overlap policy
SELECT jobq.run_schedule('now') > id AS another FROM ran WHERE name = 'now';
SELECT e.code, regexp_replace(e.message, 'job \d+', 'job N') AS message, e.hint FROM unnest('{alone,in turn}'::text[]) WITH ORDINALITY AS u (s, n),
	test.error(format('SELECT jobq.run_schedule(%L)', s)) e ORDER BY n;
CALL test.clock('2040-12-03 11:30:00+00');
SELECT count(jobq.cancel(id)) FROM ran WHERE name <> 'now';
SELECT count(jobq.run_schedule(name)) FROM ran WHERE name <> 'now';
-- for later ticks, the job counts like the job of a tick
CALL test.clock('2040-12-03 12:00:01+00');
SELECT test.until('(SELECT state = ''waiting'' FROM jobq.schedules WHERE name = ''in turn'')');
SELECT s.name, s.state, count(*) FROM jobq.schedules s JOIN jobq.jobs j ON j.headers ->> 'schedule' = s.name AND j.state = 'ready' GROUP BY s.name, s.state ORDER BY s.name;
-- the job ends while the clock is put back to before the waiting tick; the tick needs no sweep
ALTER SYSTEM SET jobq.poll_interval = '1h';
SELECT pg_reload_conf();
CALL test.clock('2040-12-03 11:59:50+00');
SELECT jobq.cancel(last_job_id) FROM jobq.schedules WHERE name = 'in turn';
CALL test.settle();
CALL test.clock('2040-12-03 12:00:02+00');
SELECT test.until('(SELECT state = ''active'' FROM jobq.schedules WHERE name = ''in turn'')');
ALTER SYSTEM RESET jobq.poll_interval;
SELECT pg_reload_conf();
SELECT scheduled_for FROM test.made('in turn') ORDER BY 1 DESC LIMIT 1;
-- a paused schedule can run; a replicated schedule of the publisher cannot
SELECT jobq.pause(schedule => 'now');
SELECT jobq.run_schedule('now') IS NOT NULL AS done, (SELECT state FROM jobq.schedules WHERE name = 'now');
UPDATE jobq_internal.schedule SET dormant = true WHERE name = 'now';
SELECT * FROM test.error($$SELECT jobq.run_schedule('now')$$);
BEGIN READ ONLY;
SELECT jobq.run_schedule('alone');
ROLLBACK;
-- a rollback undoes run_schedule()
SELECT jobq.cancel(last_job_id) FROM jobq.schedules WHERE name = 'alone';
BEGIN;
SELECT jobq.run_schedule('alone') > 0 AS done;
ROLLBACK;
SELECT jobq.run_schedule('alone') > 0 AS done;
SELECT jobq.run_schedule(NULL);
DROP TABLE ran;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';
CALL test.clock('2040-12-03 11:00:01+00');

-- Roles
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob');
SET ROLE regress_jobq_alice;
SELECT jobq.schedule('of alice', '0 * * * *', 'note', '"alice"');
SELECT count(*) FROM jobq.next_ticks('* * * * *');
RESET ROLE;
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.schedules;
SELECT e.* FROM test.error($$SELECT jobq.schedule('of alice', '0 * * * *', 'note', '"bob"')$$) e;
SELECT c, e.* FROM unnest('{unschedule(%L),pause(schedule => %L),resume(schedule => %L),run_schedule(%L)}'::text[]) WITH ORDINALITY AS u (c, n), test.error(format('SELECT jobq.' || c, 'of alice')) e ORDER BY n;
RESET ROLE;
CALL test.clock('2040-12-03 12:00:01+00');
SELECT test.until('(SELECT last_state = ''completed'' FROM jobq.schedules)');
SELECT j.role, s.role FROM jobq.schedules s JOIN jobq.jobs j ON j.id = s.last_job_id;
SELECT note FROM test.trace WHERE note = 'alice';
DELETE FROM test.trace WHERE note = 'alice';
-- the schedule stays alice's when a manager changes the schedule
SELECT jobq.schedule('of alice', '0 * * * *', 'note', '"boss"');
SELECT role, payload FROM jobq.schedules;
-- and so does the job of run_schedule(), whichever role calls the function
SELECT jobq.run_schedule('of alice') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT role, payload FROM jobq.jobs WHERE id = :id;
DELETE FROM test.trace WHERE note = 'boss';
-- a dropped role
CREATE ROLE regress_jobq_gone;
SELECT jobq.grant_privilege('regress_jobq_gone');
SET ROLE regress_jobq_gone;
SELECT jobq.schedule('of nobody', '0 * * * *', 'echo', options => '{"queue": "manual"}');
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_gone');
\set VERBOSITY terse
DROP ROLE regress_jobq_gone;
\set VERBOSITY default
CALL test.clock('2040-12-03 13:00:01+00');
SELECT test.until('(SELECT state = ''failing'' FROM jobq.schedules WHERE name = ''of nobody'')');
SELECT name, state, last_tick, regexp_replace(last_error, '\d+', 'N') AS last_error FROM jobq.schedules ORDER BY name;
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message FROM test.error($$SELECT jobq.run_schedule('of nobody')$$) e;
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT test.until('NOT EXISTS (SELECT FROM jobq_internal.job WHERE headers ? ''schedule'')');

-- Many schedules
SELECT count(jobq.schedule('many ' || n, '0 0 * * *', 'echo', to_jsonb(n), options => '{"queue": "manual"}')) FROM generate_series(1, 1000) n;
CALL test.clock('2040-12-04 00:00:01+00');
SELECT count(*), count(DISTINCT headers ->> 'schedule'), min(run_at), max(run_at) FROM jobq_internal.job WHERE headers ? 'schedule';
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ? 'schedule';

-- The same times in a different notation: the anchor and the next tick stay
CALL test.clock('2040-12-05 00:00:00.5+00');
SELECT jobq.schedule('interval', 'every 2 hours', 'echo', options => '{"queue": "manual"}'), jobq.schedule('rule', 'RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR', 'echo', options => '{"queue": "manual"}'),
	jobq.schedule('fields', '0 0 * * 1,5', 'echo', timezone => 'Europe/Kyiv', overlap => 'queue', options => '{"queue": "manual"}');
CREATE TEMP TABLE before AS SELECT name, anchor, next_tick FROM jobq_internal.schedule;
CALL test.clock('2040-12-05 00:30:00+00');
CREATE FUNCTION test.moved() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(name, ', ' ORDER BY name) FROM before b WHERE NOT EXISTS (SELECT FROM jobq_internal.schedule s WHERE s.name = b.name AND s.anchor = b.anchor AND s.next_tick = b.next_tick) $$;
SELECT jobq.schedule('interval', '@every 120m', 'echo', timezone => 'Asia/Tokyo'), jobq.schedule('rule', ' rrule:interval=2;freq=weekly;byday=fr,mo', 'echo'),
	jobq.schedule('fields', '0 0 ? * fri,mon', 'echo', timezone => 'Europe/Kyiv');
SELECT test.moved();
BEGIN;
SELECT count(jobq.unschedule(name)) FROM before;
SELECT jobq.schedule('interval', 'every 7200 seconds', 'echo'), jobq.schedule('rule', 'RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR', 'echo'),
	jobq.schedule('fields', '0 0 * * mon,fri', 'echo', timezone => 'Europe/Kyiv');
COMMIT;
SELECT test.moved();
-- not after a rolled back drop, nor with other times, nor in another transaction
BEGIN;
SAVEPOINT a;
SELECT jobq.unschedule('interval');
ROLLBACK TO a;
SELECT jobq.schedule('interval', 'every 2 hours', 'echo');
COMMIT;
SELECT test.moved();
BEGIN;
SELECT jobq.unschedule('interval');
SELECT jobq.schedule('interval', 'every 121 minutes', 'echo'), jobq.schedule('rule', 'RRULE:FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,FR', 'echo');
COMMIT;
SELECT test.moved();
SELECT jobq.unschedule('fields');
SELECT jobq.schedule('fields', '0 0 * * mon,fri', 'echo', timezone => 'Europe/Kyiv');
SELECT test.moved();
SELECT count(jobq.unschedule(name)) FROM jobq.schedules;
DROP TABLE before;
DROP FUNCTION test.moved;

-- The error of the last job; each job refers to the previous job
SELECT jobq.schedule('fails', '@daily', 'broken', options => '{"max_attempts": 1}');
SELECT jobq.run_schedule('fails') AS first \gset
SELECT state FROM test.outcome(:first);
SELECT state, last_state, last_error FROM jobq.schedules;
SELECT jobq.run_schedule('fails') AS second \gset
SELECT state FROM test.outcome(:second);
WITH RECURSIVE history AS (
	SELECT j.id, j.state, j.headers FROM jobq.schedules s JOIN jobq.jobs j ON j.id = s.last_job_id WHERE s.name = 'fails'
	UNION ALL SELECT j.id, j.state, j.headers FROM history h JOIN jobq.jobs j ON j.id = (h.headers ->> 'previous_job')::bigint)
SELECT CASE id WHEN :first THEN 'first' WHEN :second THEN 'second' END AS job, state FROM history;
SELECT jobq.schedule('fails', '@daily', 'broken', options => '{"max_attempts": 2, "backoff": "fixed 1h"}');
SELECT jobq.run_schedule('fails') AS third \gset
SELECT test.until('(SELECT last_state = ''retryable'' AND last_error IS NOT NULL FROM jobq.schedules)');
SELECT jobq.unschedule('fails'), jobq.cancel(:third), jobq.delete(:first), jobq.delete(:second);

SELECT jobq.test_clock('0') \g /dev/null
TRUNCATE test.trace;
DROP FUNCTION test.made(text), test.ticks(text, text, timestamp, int), test.compare(text, text, int, int, boolean, int[], int[]);
DROP TABLE test.zone;
