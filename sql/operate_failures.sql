-- The view failures: failed attempts by cause, and what to do with all jobs of a cause.
SELECT jobq.create_queue('causes', mode => 'consumer'), jobq.create_queue('elsewhere');
CREATE TABLE test.account (id int PRIMARY KEY, owner text CHECK (owner <> ''));
INSERT INTO test.account VALUES (1, 'one'), (2, 'two');

-- attempts with the same cause have the same fingerprint, regardless of values
CREATE FUNCTION test.breaks(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n int := p ->> 'n';
BEGIN
	CASE p ->> 'how'
		WHEN 'number' THEN RAISE EXCEPTION 'order % is not there: %', n, p ->> 'why';
		WHEN 'divide' THEN PERFORM n / 0;
		WHEN 'key' THEN INSERT INTO test.account VALUES (n, 'again');
		WHEN 'check' THEN INSERT INTO test.account VALUES (100 + n, '');
		WHEN 'other line' THEN RAISE EXCEPTION 'order % is not there: %', n, p ->> 'why';
		WHEN 'code' THEN RAISE EXCEPTION 'order % is not there: %', n, p ->> 'why' USING ERRCODE = 'P0002';
	END CASE;
END
$$;
SELECT jobq.register('breaks', 'test.breaks(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('breaks', jsonb_build_object('how', how, 'n', n, 'why', CASE n WHEN 1 THEN '"a" 0x1f' ELSE '''b c'' 0xffe' END), queue => 'elsewhere')
FROM unnest('{number,divide,key,check,other line,code}'::text[]) how, generate_series(1, 2) n \g /dev/null
SELECT jobq.wait_queue('elsewhere', '5 min');
SELECT sqlstate, kinds, queue, failed, failed_last_hour, dead_letters, roles, first_seen <= last_seen AS in_order,
	(SELECT d.payload ->> 'how' FROM jobq.dead_letters d WHERE d.id = f.job_id) AS how, regexp_replace(split_part(message, ':', 1), '\d', 'N', 'g') AS message
FROM jobq.failures f WHERE queue = 'elsewhere' ORDER BY 9;
SELECT count(*) AS letters, count(DISTINCT fingerprint) AS causes, bool_and(fingerprint BETWEEN 1 AND 281474976710655) AS in_range,
	bool_and(fingerprint = (errors -> -1 ->> 'fingerprint')::bigint) AS as_in_errors FROM jobq.dead_letters WHERE queue = 'elsewhere';
SELECT jobq.delete_many(queue => 'elsewhere');

-- errors of consumers: numbers, quoted parts, uuids and long random words do not matter, but words do
CREATE PROCEDURE test.tell(errors text[]) LANGUAGE plpgsql AS $$
DECLARE
	error text;
	job record;
BEGIN
	FOREACH error IN ARRAY errors LOOP
		PERFORM jobq.enqueue('told', queue => 'causes');
		COMMIT;
		SELECT * INTO job FROM jobq.reserve(ARRAY['causes'], wait => '1 min');
		PERFORM jobq.reject(job.id, job.token, error);
		COMMIT;
	END LOOP;
END
$$;
CALL test.tell(ARRAY[
	'ValueError: no order 17 of "anna" at 10:11:12.5', 'ValueError: no order 4,711.50 of "bo b" at 9:00:00', 'ValueError: no order -5 of "" at 1:1:1',
	'no session 6f1c2a9e-1b3d-4c5e-8f70-1234567890ab', 'no session 00000000-0000-0000-0000-000000000001',
	'hash deadbeef01 differs, token Zx81kLmNoPqRsTuV', 'hash 0123456789abcdef differs, token a1bCdEfGhIjKlMnOpQrS',
	'can''t read it''s ''first'' file', 'can''t read it''s ''second one'' file',
	E'Traceback (most recent call last):\n  File "a.py", line 3\nKeyError: ''a''\n', E'Traceback (most recent call last):\n  File "b.py", line 99\n  more\nKeyError: ''b''',
	E'HTTP status 502\n<p>one</p>', E'HTTP status 503\n<p>another</p>',
	'{"class": "Timeout", "message": "after 30 s"}', '{"class": "Timeout", "message": "after 5 s"}', '{"class": "Refused", "message": "after 5 s"}',
	'', ' ', '"', '5', '--5', repeat('long ', 10000) || 'a', repeat('long ', 10000) || 'b']);
SELECT min(d.id) - min(min(d.id)) OVER () + 1 AS first, array_agg(left(d.error, 40) ORDER BY d.id) AS errors FROM jobq.dead_letters d WHERE d.queue = 'causes'
GROUP BY d.fingerprint ORDER BY min(d.id);
SELECT jobq.delete_many(queue => 'causes');

-- 300 dead letters of 6 causes: the new cause of the last hour comes first, and exactly the jobs of this cause run again
SELECT jobq.pause('elsewhere');
CREATE PROCEDURE test.fail_many(cause text, n int, at interval) LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	PERFORM jobq.test_clock(at);
	PERFORM jobq.enqueue('call', jsonb_build_object('n', i), queue => 'causes') FROM generate_series(1, n) i;
	COMMIT;
	WHILE n > 0 LOOP
		FOR job IN SELECT * FROM jobq.reserve(ARRAY['causes'], max_jobs => n, wait => '1 min') LOOP
			PERFORM jobq.reject(job.id, job.token, format('%s: no answer for order %s', cause, job.id));
			n := n - 1;
		END LOOP;
		COMMIT;
	END LOOP;
	PERFORM jobq.test_clock('0');
END
$$;
CALL test.fail_many('card declined', 100, '0');
CALL test.fail_many('address unknown', 80, '1 min');
CALL test.fail_many('limit reached', 50, '2 min');
CALL test.fail_many('name taken', 39, '3 min');
CALL test.fail_many('page missing', 1, '4 min');
CALL test.fail_many('card declined', 10, '3 h');
CALL test.fail_many('host unreachable', 20, '3 h');
-- with the clock put back, failures of a time to come are not of the last hour, and their causes are not new
SELECT split_part(message, ':', 1) AS cause, failed, failed_last_hour FROM jobq.failures WHERE queue = 'causes' AND message ~ '^(card|host)' ORDER BY 1;
SELECT value < 6 AS few FROM jobq_internal.measures('{new}') WHERE queue = 'causes' AND kind IS NULL;
SELECT jobq.test_clock('3 h 10 min') \g /dev/null
SELECT split_part(message, ':', 1) AS cause, failed, failed_last_hour, dead_letters, first_seen > jobq_internal.clock() - interval '1 h' AS new, cardinality(kinds) AS kinds FROM jobq.failures
WHERE queue = 'causes' ORDER BY first_seen DESC;
SELECT fingerprint FROM jobq.failures WHERE queue = 'causes' ORDER BY first_seen DESC LIMIT 1 \gset
-- a monitor of new causes
SELECT jobq.create_monitor('fresh', 'new', above => 0), jobq.create_monitor('fresh causes', 'new', above => 0, queue => 'causes'),
	jobq.create_monitor('fresh calls', 'new', above => 0, kind => 'call'), jobq.create_monitor('fresh other', 'new', above => 0, queue => 'first', kind => 'call');
SELECT name, value FROM jobq.monitors WHERE condition = 'new' AND name <> 'fresh' ORDER BY name;
SELECT value >= 1 AS fresh FROM jobq.monitors WHERE name = 'fresh';
SELECT test.until('EXISTS (SELECT FROM jobq.monitors WHERE name = ''fresh causes'' AND since IS NOT NULL)');
SELECT unnest(regexp_split_to_array(jobq.metrics(), E'\n')) AS metric INTO TEMP metric;
SELECT metric FROM metric WHERE metric LIKE 'jobq_monitor%fresh causes%' ORDER BY metric;
-- a cause in a dropped queue counts in the total, and the monitor stays a single row
CREATE FUNCTION test.second(p jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF job.attempt = 1 THEN RAISE EXCEPTION 'the second attempt works'; END IF;
END
$$;
SELECT jobq.create_queue('gone'), jobq.register('second', 'test.second(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.enqueue('second', queue => 'gone') AS second \gset
SELECT state, attempt FROM jobq.wait(:second, '5 min');
SELECT jobq.drop_queue('gone'), jobq.unregister('second');
DROP FUNCTION test.second;
SELECT count(*) AS monitors FROM jobq.monitors WHERE name = 'fresh';
SELECT jobq.drop_monitor(name) FROM jobq.monitors WHERE condition = 'new' \g /dev/null

SELECT jobq.retry_many(fingerprint => :fingerprint, queue => 'elsewhere'), jobq.retry_many(fingerprint => :fingerprint);
SELECT error IS NULL AS retried, errors -> -1 ->> 'message' LIKE 'host unreachable%' AS unreachable, count(*) FROM jobq.jobs
WHERE queue = 'causes' AND state <> 'dead' GROUP BY 1, 2;
SELECT failed, dead_letters FROM jobq.failures WHERE fingerprint = :fingerprint;
SELECT jobq.delete_many(fingerprint => (SELECT fingerprint FROM jobq.failures WHERE message LIKE 'name taken%' AND queue = 'causes'));
SELECT count(*) AS left FROM jobq.dead_letters WHERE queue = 'causes';
SELECT * FROM test.error('SELECT jobq.retry_many(fingerprint => NULL)');

-- failed attempts count if a further attempt follows or the job has completed; the attempts are found by fingerprint
SELECT jobq.cancel_many(queue => 'causes', state => 'waiting'), jobq.delete_many(queue => 'causes');
CREATE PROCEDURE test.twice(outcome text) LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	PERFORM jobq.enqueue('twice', queue => 'causes');
	COMMIT;
	FOR i IN 1 .. 2 LOOP
		SELECT * INTO job FROM jobq.reserve(ARRAY['causes'], wait => '1 min');
		PERFORM jobq.nack(job.id, job.token, 'sometimes ' || job.id, '0');
		COMMIT;
	END LOOP;
	IF outcome = 'completed' THEN
		SELECT * INTO job FROM jobq.reserve(ARRAY['causes'], wait => '1 min');
		PERFORM jobq.ack(job.id, job.token);
	ELSE
		PERFORM jobq.edit(job.id, run_at => jobq_internal.clock() + interval '1 h');
	END IF;
END
$$;
CALL test.twice('completed');
CALL test.twice('waits');
SELECT fingerprint, failed, dead_letters, kinds FROM jobq.failures WHERE 'twice' = ANY (kinds) \gset
SELECT :failed AS failed, :dead_letters AS dead_letters;
SELECT jobq.cancel_many(fingerprint => 1), jobq.cancel_many(fingerprint => :fingerprint, state => 'retryable');

-- a role sees its own failures, and a role with the privilege monitor sees all
CALL test.tell(ARRAY['theirs']);
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_boss', 'monitor');
SET ROLE regress_jobq_alice;
SELECT count(*) FROM jobq.failures;
SELECT jobq.enqueue('breaks', '{"how": "divide", "n": 1}', queue => 'first') AS own \gset
SELECT state FROM jobq.wait(:own, '5 min');
SELECT failed, roles, message FROM jobq.failures;
RESET ROLE;
SELECT fingerprint FROM jobq.failures WHERE message = 'theirs' \gset
SET ROLE regress_jobq_alice;
SELECT jobq.retry_many(fingerprint => :fingerprint), jobq.delete_many(fingerprint => :fingerprint);
SET ROLE regress_jobq_boss;
SELECT failed, roles, message FROM jobq.failures WHERE message = 'theirs' OR queue = 'first' AND roles = '{regress_jobq_alice}' ORDER BY message;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_boss');
SELECT jobq.resume('elsewhere');
SELECT jobq.delete_many(queue => 'causes'), jobq.delete_many(ids => ARRAY[:own]);
SELECT jobq.unregister('breaks');
SELECT jobq.test_clock('0') \g /dev/null
