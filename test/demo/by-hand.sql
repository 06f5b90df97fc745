-- pgbench: take a job of the hand-written queue, count it, and enqueue the next.
WITH taken AS (
	DELETE FROM demo.queue WHERE id = (
		SELECT id FROM demo.queue ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
	RETURNING payload)
INSERT INTO demo.queue (payload)
SELECT payload FROM taken WHERE nextval('demo.by_hand') > 0;
