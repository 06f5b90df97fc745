-- The history of a job.

CREATE FUNCTION jobq.history(id bigint,
	OUT at timestamptz, OUT attempt int, OUT event text, OUT by text, OUT took interval, OUT detail text, OUT cost jsonb)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE ROWS 20 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	-- status() raises an error if the job does not exist, and waits until the outcome is durable
	PERFORM jobq.status(history.id);
	RETURN QUERY
	SELECT e.at, e.attempt, e.event, e.by, e.took, e.detail, e.cost
	FROM jobq.jobs j
	CROSS JOIN LATERAL (
		SELECT j.enqueued_at AS at, NULL::int AS attempt, 1 AS place, 'enqueued' AS event, j.role::text AS by,
			NULL::interval AS took, format('%s in queue "%s"', j.kind, j.queue)
				|| CASE WHEN j.run_at > j.enqueued_at AND j.errors IS NULL AND j.finished_at IS NULL
					THEN format(', for %s', date_trunc('second', j.run_at)) ELSE '' END AS detail, NULL::jsonb AS cost
		UNION ALL
		SELECT (f.error ->> 'started_at')::timestamptz, (f.error ->> 'attempt')::int, 2, 'started',
			coalesce('worker ' || (f.error ->> 'worker'), 'consumer ' || (f.error ->> 'consumer')), NULL, NULL, NULL
		FROM jsonb_array_elements(j.errors) f(error)
		WHERE f.error ? 'started_at'
		UNION ALL
		SELECT j.started_at, j.attempt, 2, 'started',
			coalesce((SELECT 'consumer ' || l.consumer FROM jobq_internal.lease_slots() l WHERE l.job_id = j.id AND j.state = 'running'),
				'worker ' || j.worker), NULL, NULL, NULL
		WHERE j.started_at IS NOT NULL AND j.state <> 'dead'
		UNION ALL
		SELECT (l.line ->> 'at')::timestamptz, (l.line ->> 'attempt')::int, 3, l.line ->> 'level', NULL, NULL, l.line ->> 'message', NULL
		FROM jsonb_array_elements(j.log) l(line)
		UNION ALL
		SELECT jobq_internal.clock(), j.attempt, 4, 'progress', NULL, NULL, concat_ws(': ', j.progress || ' %', j.message), NULL
		WHERE j.state = 'running' AND j.progress IS NOT NULL
		UNION ALL
		SELECT (f.error ->> 'at')::timestamptz, (f.error ->> 'attempt')::int, 4, 'progress', NULL, NULL,
			concat_ws(': ', (f.error ->> 'progress') || ' %', nullif(f.error ->> 'progress_message', '')), NULL
		FROM jsonb_array_elements(j.errors) f(error)
		WHERE f.error ? 'progress'
		UNION ALL
		SELECT (f.error ->> 'at')::timestamptz, (f.error ->> 'attempt')::int, 5, 'error', NULL,
			(f.error ->> 'at')::timestamptz - (f.error ->> 'started_at')::timestamptz,
			concat_ws(E'\n', format('%s: %s', f.error ->> 'sqlstate', f.error ->> 'message'), 'DETAIL: ' || (f.error ->> 'detail'), 'HINT: ' || (f.error ->> 'hint'),
				'CONTEXT: ' || (f.error ->> 'context')), f.error -> 'cost'
		FROM jsonb_array_elements(j.errors) f(error)
		UNION ALL
		SELECT j.finished_at, j.attempt, 6, j.state, NULL, j.finished_at - j.started_at,
			CASE WHEN j.state = 'dead' THEN format('no more attempts: %s%s', j.attempt, ' of ' || nullif(j.max_attempts, 0))
				ELSE coalesce(j.error, j.result::text) END,
			CASE WHEN j.state <> 'dead' THEN j.cost END
		WHERE j.finished_at IS NOT NULL
		UNION ALL
		SELECT coalesce(greatest(j.run_at, jobq_internal.clock()), jobq_internal.clock()), j.attempt + 1, 7, j.state, NULL, NULL,
			CASE WHEN j.run_at > jobq_internal.clock() THEN 'due then' ELSE format('why: SELECT * FROM jobq.explain(%s)', j.id) END, NULL
		WHERE j.finished_at IS NULL AND j.state <> 'running') e
	WHERE j.id = history.id
	ORDER BY e.at, coalesce(e.attempt, 0), e.place;
END
$$;
COMMENT ON FUNCTION jobq.history(bigint) IS 'return the history of a job: each attempt with log, progress and outcome, and the next step
id: the id of the job';
