-- Two queues that do the same, side by side: whoever does a job enqueues the next.

-- How many jobs each has done.  Sequences can be read while transactions are open.
CREATE SEQUENCE demo.by_jobq;
CREATE SEQUENCE demo.by_hand;

CREATE FUNCTION demo.run_lap(payload jsonb) RETURNS void LANGUAGE sql AS $$
	SELECT nextval('demo.by_jobq');
	SELECT jobq.enqueue('demo.lap', payload) WHERE clock_timestamp() < (payload ->> 'until')::timestamptz;
$$;
SELECT jobq.register('demo.lap', 'demo.run_lap(jsonb)') \g /dev/null

CREATE TABLE demo.queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb NOT NULL);

-- as many in each as there are workers for it, and some that wait
INSERT INTO demo.queue (payload) SELECT '{}' FROM generate_series(1, 40);
SELECT count(jobq.enqueue('demo.lap', jsonb_build_object('until', clock_timestamp() + :'seconds'::interval)))
FROM generate_series(1, 40) \g /dev/null
