\x
SELECT id, payload, attempt AS attempts, sqlstate, error,
	errors -> -1 ->> 'detail' AS detail
FROM jobq.failed_jobs ORDER BY id LIMIT 5;
