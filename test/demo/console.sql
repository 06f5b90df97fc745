-- A lively mixed load for "make console": a schedule enqueues jobs of many kinds,
-- more at one time and fewer at another.  Some fail, some take long, some wait for
-- others, and some are for a consumer outside.

CREATE EXTENSION jobq;
CREATE ROLE operator LOGIN PASSWORD :'password';
SELECT jobq.grant_privilege('operator', 'manage') \g /dev/null
GRANT CREATE ON SCHEMA public TO operator;
SET ROLE operator;

CREATE FUNCTION send_mail(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.02 + random() * 0.2);
	IF payload ->> 'to' IS NULL THEN
		RAISE EXCEPTION 'mail to nobody' USING HINT = 'A payload has a "to".';
	ELSIF random() < 0.05 THEN
		RAISE EXCEPTION 'the mail server does not answer';
	END IF;
	RETURN jsonb_build_object('sent', true);
END
$$;
CREATE FUNCTION write_report(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	FOR page IN 1 .. 20 LOOP
		PERFORM jobq.set_progress(page * 5, format('page %s', page));
		IF page % 5 = 0 THEN
			PERFORM jobq.log(format('%s pages are done', page));
		END IF;
		PERFORM pg_sleep(random());
	END LOOP;
	RETURN '{"pages": 20}';
END
$$;
CREATE FUNCTION step(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(1 + random() * 3);
	RETURN jsonb_build_object('rows', (random() * 1000)::int);
END
$$;

-- what the schedule does each second
CREATE FUNCTION traffic(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	busy float8 := 1 + sin(extract(epoch FROM clock_timestamp()) / 30);
	tenants text[] := '{acme,globex,initech}';
BEGIN
	PERFORM jobq.enqueue('mail', jsonb_build_object('to', format('customer %s', n)),
		headers => jsonb_build_object('tenant', tenants[1 + floor(random() * 3)::int]))
	FROM generate_series(1, (random() * 12 * busy)::int) AS n;
	PERFORM jobq.enqueue('picture', jsonb_build_object('file', format('%s.jpg', n)), queue => 'pictures')
	FROM generate_series(1, (random() * 3 * busy)::int) AS n;
	IF random() < 0.1 THEN
		PERFORM jobq.enqueue('report', jsonb_build_object('year', 2000 + (random() * 26)::int));
	END IF;
	IF random() < 0.05 THEN
		PERFORM jobq.enqueue('mail', '{"subject": "lost"}', max_attempts => 1);
	END IF;
	IF random() < 0.05 THEN
		PERFORM jobq.enqueue('mail', '{"to": "later"}', delay => '10 min');
	END IF;
	IF random() < 0.04 THEN
		PERFORM jobq.create_workflow('{"name": "close the day", "steps": [
			{"name": "orders", "kind": "step"},
			{"name": "stock", "kind": "step"},
			{"name": "invoices", "kind": "step", "needs": ["orders"]},
			{"name": "forecast", "kind": "step", "needs": ["orders", "stock"]},
			{"name": "summary", "kind": "step", "needs": ["invoices", "forecast"]}]}');
	END IF;
END
$$;

SELECT jobq.create_queue('mails', tenant => 'header tenant', fair => 'jobs'),
	jobq.create_queue('reports', max_running => 2),
	jobq.create_queue('pictures', mode => 'consumer'),
	jobq.register('mail', 'send_mail(jsonb)', queue => 'mails', max_attempts => 3, backoff => 'exponential 5s'),
	jobq.register('report', 'write_report(jsonb)', queue => 'reports'),
	jobq.register('step', 'step(jsonb)', queue => 'steps'),
	jobq.register('traffic', 'traffic(jsonb)', queue => 'traffic'),
	jobq.schedule('traffic', 'every 1 second', 'traffic', overlap => 'skip'),
	jobq.schedule('report of the day', '0 6 * * *', 'report', '{"year": 2026}', timezone => 'Europe/Berlin') \g /dev/null
