-- The history of a job.

-- Steps, waits and signals of the jobs whose contents the user may read.
CREATE VIEW jobq_internal.step_events WITH (security_barrier) AS
	SELECT s.job_id, s.at, s.place, s.event, s.by, s.took, s.detail
	FROM (
		SELECT p.job_id, p.done_at AS at, 3 AS place, 'step' AS event, NULL::text AS by, p.done_at - p.begun_at AS took,
			concat_ws(': ', p.name, p.result) AS detail
		FROM jobq_internal.procedure_step p WHERE p.type = 's'
		UNION ALL
		SELECT p.job_id, p.done_at, 3, 'saved', NULL, NULL, p.result::text
		FROM jobq_internal.procedure_step p WHERE p.type = 'v'
		UNION ALL
		SELECT p.job_id, p.begun_at, 4, 'suspended', NULL, NULL, format('%s "%s"%s', CASE p.type WHEN 't' THEN 'sleep' WHEN 'f' THEN 'any' ELSE 'signal' END,
			CASE p.type WHEN 'w' THEN p.signal ELSE p.name END, ', until ' || date_trunc('second', p.until))
		FROM jobq_internal.procedure_step p WHERE p.type IN ('t', 'w', 'f') AND p.done_at IS DISTINCT FROM p.begun_at
		UNION ALL
		SELECT p.job_id, p.done_at, 3, 'resumed', NULL, p.done_at - p.begun_at, CASE WHEN p.type = 't' THEN format('sleep "%s"', p.name)
			WHEN p.type = 'f' THEN format('any "%s": %s', p.name, coalesce(p.signal || ': ' || p.result, 'timeout'))
			ELSE format('signal "%s": %s', p.signal, coalesce(p.result::text, 'timeout')) END
		FROM jobq_internal.procedure_step p WHERE p.type IN ('t', 'w', 'f') AND p.done_at IS NOT NULL
		UNION ALL
		SELECT p.job_id, p.begun_at, 3, 'asked', NULL, NULL, p.name
		FROM jobq_internal.procedure_step p WHERE p.type = 'a'
		UNION ALL
		SELECT p.job_id, p.done_at, 3, 'resumed', NULL, p.done_at - p.begun_at, concat_ws(': ', format('ask "%s"', p.name), p.result)
		FROM jobq_internal.procedure_step p WHERE p.type = 'a' AND p.done_at IS NOT NULL
		UNION ALL
		SELECT g.job_id, g.sent_at, 2, CASE WHEN g.answer IS NULL THEN 'signal' ELSE 'answer' END, CASE WHEN g.answer IS NULL THEN g.sent_by END, NULL,
			CASE WHEN g.answer IS NULL THEN concat(g.name, ': ', g.payload) ELSE concat('job ', g.id, ': ', g.payload) END
		FROM jobq_internal.signal g WHERE g.answer IS NULL OR g.answer IN ('r', 'f')) s
	WHERE EXISTS (
		SELECT FROM (
			SELECT j.role, j.queue_id FROM jobq_internal.job j WHERE j.id = s.job_id
			UNION ALL
			SELECT j.role, j.queue_id FROM jobq_internal.archive j WHERE j.id = s.job_id
			UNION ALL
			SELECT j.role, j.queue_id FROM jobq_internal.dead_letter j WHERE j.id = s.job_id) j
		WHERE jobq_internal.may_read(j.role::pg_catalog.oid, j.queue_id));
COMMENT ON VIEW jobq_internal.step_events IS 'steps, waits and signals of durable procedures, for history()';
COMMENT ON COLUMN jobq_internal.step_events.at IS 'time of the event';
COMMENT ON COLUMN jobq_internal.step_events.place IS 'order of events at the same time';
COMMENT ON COLUMN jobq_internal.step_events.event IS 'step, saved, suspended, asked, resumed, signal, or answer';
COMMENT ON COLUMN jobq_internal.step_events.by IS 'role that sent the signal';
COMMENT ON COLUMN jobq_internal.step_events.took IS 'duration of the step or the wait';
COMMENT ON COLUMN jobq_internal.step_events.detail IS 'name and result of the step, name and payload of the signal, or job and answer';

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
		SELECT p.at, NULL, p.place, p.event, p.by, p.took, p.detail, NULL
		FROM jobq_internal.step_events p
		WHERE p.job_id = j.id
		UNION ALL
		SELECT j.finished_at, j.attempt, 6, j.state, NULL, j.finished_at - j.started_at,
			CASE WHEN j.state = 'dead' THEN format('no more attempts: %s%s', j.attempt, ' of ' || nullif(j.max_attempts, 0))
				ELSE coalesce(j.error, j.result::text) END,
			CASE WHEN j.state <> 'dead' THEN j.cost END
		WHERE j.finished_at IS NOT NULL
		UNION ALL
		SELECT coalesce(greatest(j.run_at, jobq_internal.clock()), jobq_internal.clock()), j.attempt + 1, 7, j.state, NULL, NULL,
			CASE WHEN j.state = 'suspended' THEN j.message WHEN j.run_at > jobq_internal.clock() THEN 'due then' ELSE format('why: SELECT * FROM jobq.explain(%s)', j.id) END, NULL
		WHERE j.finished_at IS NULL AND j.state <> 'running') e
	WHERE j.id = history.id
	ORDER BY e.at, coalesce(e.attempt, 0), e.place;
END
$$;
COMMENT ON FUNCTION jobq.history(bigint) IS 'return the history of a job: each attempt with log, progress and outcome, and the next step
id: the id of the job';
