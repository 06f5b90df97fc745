-- How long the jobs of pickup.sql have waited: from the call of jobq.enqueue(), the
-- flush of its commit to disk included, to the start of the handler.
SELECT jobq.wait_queue('default', '30 s') \g /dev/null
SELECT count(*) AS jobs,
	round(1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY waited)::numeric, 2) AS p50,
	round(1000 * percentile_cont(0.99) WITHIN GROUP (ORDER BY waited)::numeric, 2) AS p99
FROM (SELECT extract(epoch FROM started_at - enqueued_at) AS waited
	FROM jobq.jobs WHERE kind = 'demo.note' AND payload = '{"no": 0}') AS job \gset
SELECT :jobs AS jobs, :p50 AS "p50, ms", :p99 AS "p99, ms";
INSERT INTO demo.fact (what, found, ok)
VALUES ('from enqueue() to its start, commit included', 'p50 ' || :p50 || ' ms, p99 ' || :p99 || ' ms', :jobs > 0);
