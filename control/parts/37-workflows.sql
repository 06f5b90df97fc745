-- Workflows: batches of which some jobs, their steps, wait for others.

CREATE TABLE jobq.step (
	job_id bigint NOT NULL CONSTRAINT step_pkey PRIMARY KEY,
	batch_id bigint NOT NULL,
	state "char",
	name text NOT NULL,
	needs bigint[] NOT NULL,
	definition jsonb NOT NULL,
	result jsonb
);
COMMENT ON TABLE jobq.step IS 'steps of workflows, as long as there is their batch';
COMMENT ON COLUMN jobq.step.state IS 'how the job has ended, if that is not in another table any more; as there, and f(ailed)';
COMMENT ON COLUMN jobq.step.result IS 'its result, likewise';
COMMENT ON COLUMN jobq.step.needs IS 'the jobs that must be completed before this one may run';
COMMENT ON COLUMN jobq.step.definition IS 'what the job is made from, at first, and anew if it was cancelled because another failed that is retried';

CREATE INDEX step_batch ON jobq.step (batch_id);
COMMENT ON INDEX jobq.step_batch IS 'the steps of a workflow';

SELECT pg_catalog.pg_extension_config_dump('jobq.step', '');

CREATE FUNCTION jobq.workflow(definition jsonb) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_workflow' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.workflow(jsonb) IS 'enqueue jobs that wait for each other: {"steps": [{"name", "kind", "payload", "needs": ["..."], ...}, ...]}; returns the id of their batch';

CREATE FUNCTION jobq.chain(
	steps jsonb,
	on_failure jsonb DEFAULT NULL,
	on_success jsonb DEFAULT NULL,
	on_finish jsonb DEFAULT NULL,
	name text DEFAULT NULL)
RETURNS bigint[] AS 'MODULE_PATHNAME', 'jobq_chain'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.chain(jsonb, jsonb, jsonb, jsonb, text) IS 'enqueue jobs that run one after another, each only if the one before is completed; returns their ids';

CREATE VIEW jobq.steps WITH (security_barrier) AS
	SELECT s.batch_id, s.name, s.job_id,
		CASE WHEN j.id IS NULL THEN
				coalesce((SELECT 'failed' FROM jobq.failed_job f WHERE f.id = s.job_id),
					CASE coalesce((SELECT a.state FROM jobq.archive a WHERE a.id = s.job_id), s.state)
						WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' WHEN 'e' THEN 'expired' WHEN 'f' THEN 'failed' END)
			WHEN w.job_id IS NOT NULL OR l.job_id IS NOT NULL OR j.lease_token IS NOT NULL THEN 'running'
			WHEN j.expires_at <= jobq.clock() THEN 'expired'
			WHEN j.run_at = 'infinity' THEN 'blocked'
			WHEN j.run_at <= jobq.clock() THEN 'ready'
			WHEN j.errors IS NOT NULL THEN 'retryable'
			ELSE 'scheduled' END AS state,
		ARRAY(SELECT n.name FROM pg_catalog.unnest(s.needs) WITH ORDINALITY u (id, place)
			JOIN jobq.step n ON n.job_id = u.id ORDER BY place) AS needs,
		s.definition
	FROM jobq.step s
	JOIN jobq.batch b ON b.id = s.batch_id
	LEFT JOIN jobq.job j ON j.id = s.job_id
	LEFT JOIN (SELECT DISTINCT r.job_id FROM jobq.worker_slots() r) w ON w.job_id = s.job_id
	LEFT JOIN jobq.lease_slots() l ON l.job_id = s.job_id
	WHERE pg_catalog.pg_has_role(b.role::pg_catalog.oid, 'USAGE');
COMMENT ON VIEW jobq.steps IS 'steps of workflows and chains: how far they are, and which others they need';
