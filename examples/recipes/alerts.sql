-- Each dead letter, and each beginning and end of a monitor's alert, becomes a message in the queue "alerts".
SELECT jobq.create_queue('alerts', mode => 'consumer');
CREATE FUNCTION send_alert(event jsonb) RETURNS void LANGUAGE sql AS $$
	SELECT jobq.enqueue('alert', jsonb_build_object('text', format('jobq: %s %s %s', event ->> 'event',
			coalesce(event ->> 'monitor', event ->> 'kind'), coalesce(event ->> 'error', event ->> 'value'))),
		queue => 'alerts',
		-- of several in ten minutes, the first
		unique_key => concat_ws(' ', event ->> 'event', event ->> 'monitor', event ->> 'kind'), uniqueness => '{"for": "10 minutes"}')
$$;
SELECT jobq.register('alert.send', 'send_alert(jsonb)');
SELECT jobq.on_event('dead', 'alert.send'), jobq.on_event('alert_began', 'alert.send'), jobq.on_event('alert_ended', 'alert.send');
SELECT jobq.create_monitor('many failures', 'failing', above => 0.1);
