-- The tables of the shop, and the queue of its tax service.
\set ON_ERROR_STOP on
SET client_min_messages = warning;

DROP SCHEMA IF EXISTS shop CASCADE;
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
	id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
	number int GENERATED ALWAYS AS IDENTITY,
	country text NOT NULL,
	amount numeric NOT NULL,
	tax numeric,
	receipt text
);

DO $$
BEGIN
	-- The service takes four requests at a time and twenty a second.  After five failures in
	-- two seconds, no request is sent for the rest of these seconds.
	PERFORM jobq.create_limiter('tax service', max_running => 4, rate => '20 per second burst 4', throttle => '5 failures in 2 seconds');
	PERFORM jobq.create_queue('tax', mode => 'consumer', limiters => '{tax service}');
END
$$;
