-- Sample data for "make try": jobs in all states.

CREATE EXTENSION jobq;
CREATE TABLE mail (customer text, sent_at timestamptz DEFAULT clock_timestamp());

-- the handlers
CREATE FUNCTION send_mail(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF payload ->> 'customer' IS NULL THEN
		RAISE EXCEPTION 'mail to nobody' USING HINT = 'A payload has a "customer".';
	END IF;
	INSERT INTO mail VALUES (payload ->> 'customer');
	RETURN jsonb_build_object('sent', true);
END
$$;
CREATE FUNCTION write_report(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR percent IN 1 .. 100 LOOP
		PERFORM jobq.set_progress(percent, format('page %s', percent));
		PERFORM pg_sleep(6);
	END LOOP;
END
$$;
SELECT jobq.create_queue('reports', max_running => 1),
	jobq.create_queue('outside', mode => 'consumer') \g /dev/null
SELECT jobq.register('mail', 'send_mail(jsonb)', queue => 'mails', max_attempts => 2, backoff => 'fixed 1h'),
	jobq.register('report', 'write_report(jsonb)', queue => 'reports') \g /dev/null

-- completed, retryable, dead, cancelled, expired
SELECT count(jobq.enqueue('mail', jsonb_build_object('customer', 'customer ' || n))) FROM generate_series(1, 100) AS n \g /dev/null
SELECT jobq.enqueue('mail', '{"to": "nobody"}') AS retryable,
	jobq.enqueue('mail', '{"to": "nobody"}', max_attempts => 1) AS dead,
	jobq.enqueue('mail', '{"customer": "too late"}', delay => '1 h', expires_at => now() + interval '1 s') AS expired,
	jobq.enqueue('mail', '{"customer": "never mind"}', delay => '1 h') AS cancelled \gset
SELECT jobq.cancel(:cancelled), jobq.wait(:dead) \g /dev/null

-- scheduled, ready, running; and for a consumer outside
SELECT jobq.enqueue('mail', '{"customer": "tomorrow"}', delay => '1 day'),
	jobq.enqueue('report', '{"year": 2025}'),
	jobq.enqueue('report', '{"year": 2026}'),
	jobq.enqueue('resize', '{"picture": "sun.jpg"}', queue => 'outside') \g /dev/null

-- a batch, not started: blocked; and a schedule
SELECT jobq.create_batch('newsletter', on_success => '{"kind": "report", "payload": {"of": "newsletter"}}') AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'mail', ARRAY(
	SELECT jsonb_build_object('customer', 'reader ' || n) FROM generate_series(1, 10) AS n)) \g /dev/null
SELECT jobq.schedule('each minute', 'every 1 minute', 'mail', '{"customer": "clock"}') \g /dev/null

SELECT queue, kind, state, count(*) FROM jobq.jobs GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
