CREATE TABLE demo.purchase (id int PRIMARY KEY, confirmed_at timestamptz);
CREATE FUNCTION demo.confirm(payload jsonb) RETURNS void LANGUAGE sql AS $$
	UPDATE demo.purchase SET confirmed_at = clock_timestamp() WHERE id = (payload -> 'id')::int
$$;
SELECT jobq.register('demo.confirm', 'demo.confirm(jsonb)') \g /dev/null

\set ECHO queries
BEGIN;
INSERT INTO demo.purchase VALUES (1);
SELECT jobq.enqueue('demo.confirm', '{"id": 1}') AS job;
ROLLBACK;

BEGIN;
INSERT INTO demo.purchase VALUES (2);
SELECT jobq.enqueue('demo.confirm', '{"id": 2}') AS job \gset
COMMIT;
SELECT id, state, finished_at - enqueued_at AS took FROM jobq.wait(:job);
\set ECHO none

INSERT INTO demo.fact (what, found, ok)
SELECT 'jobs of the transaction that was rolled back', count(*) FILTER (WHERE payload = '{"id": 1}'),
	count(*) FILTER (WHERE payload = '{"id": 1}') = 0
	AND count(*) FILTER (WHERE state = 'completed') = 1
	AND (SELECT array_agg(id) = '{2}' AND every(confirmed_at IS NOT NULL) FROM demo.purchase)
FROM jobq.jobs WHERE kind = 'demo.confirm';
