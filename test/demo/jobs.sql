-- The demo's jobs by kind and state.
SELECT kind, state, attempt AS attempts, count(*) AS jobs,
	round(avg(extract(epoch FROM finished_at - started_at)) * 1000, 1) AS "run ms",
	round(max(extract(epoch FROM started_at - enqueued_at)) * 1000, 1) AS "longest wait ms"
FROM jobq.jobs
GROUP BY kind, state, attempt
ORDER BY kind, state, attempt;
