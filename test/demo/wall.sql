-- A wall of 600 bricks, 20 ms each; and jobs whose workers are going to be killed.

CREATE TABLE demo.brick (no int);
CREATE FUNCTION demo.lay_brick(payload jsonb) RETURNS void LANGUAGE sql AS $$
	SELECT pg_sleep(0.02);
	INSERT INTO demo.brick VALUES ((payload -> 'no')::int);
$$;
SELECT jobq.register('demo.brick', 'demo.lay_brick(jsonb)') \g /dev/null

-- A roof waits for the blow that was announced for it, and is laid after that.
CREATE TABLE demo.roof (no int);
CREATE TABLE demo.blow (roof int);
CREATE FUNCTION demo.lay_roof(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO demo.roof VALUES ((payload -> 'no')::int);
	IF NOT EXISTS (SELECT FROM demo.blow WHERE roof = (payload -> 'no')::int) THEN
		PERFORM pg_sleep(60);
	END IF;
END
$$;
SELECT jobq.register('demo.roof', 'demo.lay_roof(jsonb)', backoff => 'fixed 50ms') \g /dev/null

SELECT count(jobq.enqueue('demo.brick', jsonb_build_object('no', no))) AS bricks
FROM generate_series(1, 600) AS no;
