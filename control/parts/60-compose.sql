-- Batches, and workflows, which are batches with steps.

-- Batches: jobs that belong together, with callbacks for the end of the batch.

CREATE SEQUENCE jobq_internal.batch_id_seq;
COMMENT ON SEQUENCE jobq_internal.batch_id_seq IS 'ids of batches';

CREATE TABLE jobq_internal.batch (
	id bigint NOT NULL CONSTRAINT batch_pkey PRIMARY KEY,
	created_at timestamptz NOT NULL,
	started_at timestamptz,
	finished_at timestamptz,
	role jobq_internal.role NOT NULL,
	state "char" NOT NULL CHECK (state IN ('p', 'r', 'c', 'f', 'x')),
	allow_failures boolean NOT NULL,
	has_steps boolean NOT NULL DEFAULT false,
	reopened boolean NOT NULL DEFAULT false,
	dormant boolean NOT NULL DEFAULT false,
	adopted boolean NOT NULL DEFAULT false,
	dropped boolean NOT NULL DEFAULT false,
	parent bigint,
	parent_job bigint,
	completed bigint NOT NULL DEFAULT 0,
	dead bigint NOT NULL DEFAULT 0,
	cancelled bigint NOT NULL DEFAULT 0,
	expired bigint NOT NULL DEFAULT 0,
	name text,
	on_success jsonb,
	on_failure jsonb,
	on_finish jsonb,
	last_error text
);
COMMENT ON TABLE jobq_internal.batch IS 'batches; jobs are counted in the tables of jobs, and here after retention or deletion has removed them';
COMMENT ON COLUMN jobq_internal.batch.finished_at IS 'the end of the last job';
COMMENT ON COLUMN jobq_internal.batch.state IS 'p(ending), r(unning), c(ompleted), f(ailed), x: cancelled; failed and cancelled already while jobs are left';
COMMENT ON COLUMN jobq_internal.batch.completed IS 'completed jobs that have left the archive';
COMMENT ON COLUMN jobq_internal.batch.dead IS 'dead letters that were removed';
COMMENT ON COLUMN jobq_internal.batch.cancelled IS 'cancelled jobs that have left the archive';
COMMENT ON COLUMN jobq_internal.batch.expired IS 'expired jobs that have left the archive';
COMMENT ON COLUMN jobq_internal.batch.has_steps IS 'whether jobs of the batch wait for other jobs: jobq_internal.step';
COMMENT ON COLUMN jobq_internal.batch.reopened IS 'whether a retry or rerun has opened the batch again; a further failure is then reported at the end';
COMMENT ON COLUMN jobq_internal.batch.dormant IS 'whether the batch arrived by logical replication, and ends on the publisher';
COMMENT ON COLUMN jobq_internal.batch.adopted IS 'whether the batch was dormant before adopt(); jobs of the batch may have ended on the publisher';
COMMENT ON COLUMN jobq_internal.batch.dropped IS 'whether the parent goes on without this batch; waiting jobs are cancelled, and running jobs may end';
COMMENT ON COLUMN jobq_internal.batch.parent IS 'the batch that contains this batch';
COMMENT ON COLUMN jobq_internal.batch.parent_job IS 'the placeholder job in the parent, which ends together with this batch';
COMMENT ON COLUMN jobq_internal.batch.last_error IS 'why a callback could not be enqueued; jobq tries again';

CREATE INDEX batch_open ON jobq_internal.batch (id) WHERE finished_at IS NULL;
COMMENT ON INDEX jobq_internal.batch_open IS 'batches that have not ended';

CREATE INDEX batch_parent ON jobq_internal.batch (parent, parent_job) WHERE parent IS NOT NULL;
COMMENT ON INDEX jobq_internal.batch_parent IS 'workflows inside a batch';

SELECT pg_catalog.pg_extension_config_dump('jobq_internal.batch', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.batch_id_seq', '');

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE ON jobq_internal.batch
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.replicated();
ALTER TABLE jobq_internal.batch ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.batch IS 'fires for logical replication only';

CREATE TYPE jobq.batch_status AS (
	id bigint,
	name text,
	state text,
	total bigint,
	ready bigint,
	scheduled bigint,
	blocked bigint,
	running bigint,
	completed bigint,
	dead bigint,
	cancelled bigint,
	expired bigint,
	progress real,
	created_at timestamptz,
	started_at timestamptz,
	finished_at timestamptz,
	last_error text
);
COMMENT ON TYPE jobq.batch_status IS 'the status of a batch: pending, running, failing, cancelling; completed, failed, cancelled; the number of jobs in each state; the percentage of finished jobs';

CREATE VIEW jobq_internal.batch_list WITH (security_barrier) AS
	SELECT b.id, b.name,
		CASE b.state WHEN 'p' THEN 'pending' WHEN 'r' THEN 'running' WHEN 'c' THEN 'completed'
			WHEN 'f' THEN CASE WHEN b.finished_at IS NULL THEN 'failing' ELSE 'failed' END
			ELSE CASE WHEN b.finished_at IS NULL THEN 'cancelling' ELSE 'cancelled' END END AS state,
		l.live + n.over AS total, l.live - l.scheduled - l.blocked - l.running AS ready, l.scheduled, l.blocked, l.running,
		n.completed, n.dead, n.cancelled, n.expired,
		(100.0 * n.over / nullif(l.live + n.over, 0))::real AS progress,
		b.created_at, b.started_at, b.finished_at, b.last_error, b.role::pg_catalog.regrole AS role,
		b.parent AS parent_id
	FROM jobq_internal.batch b
	CROSS JOIN LATERAL (
		SELECT count(*) AS live, count(*) FILTER (WHERE j.run_at = 'infinity') AS blocked, count(r.job_id) AS running,
			count(*) FILTER (WHERE r.job_id IS NULL AND j.run_at > c.now AND j.run_at < 'infinity') AS scheduled
		FROM (SELECT jobq_internal.clock() AS now) c
		CROSS JOIN jobq_internal.job j
		LEFT JOIN jobq_internal.running_jobs r ON r.job_id = j.id
		WHERE j.batch_id = b.id) l
	CROSS JOIN LATERAL (
		SELECT o.*, o.completed + o.dead + o.cancelled + o.expired AS over
		FROM (SELECT b.completed + count(*) FILTER (WHERE a.state = 'c') AS completed,
				b.dead + (SELECT count(*) FROM jobq_internal.dead_letter f WHERE f.batch_id = b.id) AS dead,
				b.cancelled + count(*) FILTER (WHERE a.state = 'x') AS cancelled,
				b.expired + count(*) FILTER (WHERE a.state = 'e') AS expired
			FROM jobq_internal.archive a WHERE a.batch_id = b.id) o) n;
COMMENT ON VIEW jobq_internal.batch_list IS 'all batches; for functions of jobq';

CREATE VIEW jobq.batches WITH (security_barrier) AS
	SELECT * FROM jobq_internal.batch_list b WHERE jobq_internal.may_see(b.role::pg_catalog.oid, 0);
COMMENT ON VIEW jobq.batches IS 'batches, and the number of their jobs in each state';

CREATE FUNCTION jobq.create_batch(
	name text DEFAULT NULL,
	on_success jsonb DEFAULT NULL,
	on_failure jsonb DEFAULT NULL,
	on_finish jsonb DEFAULT NULL,
	allow_failures boolean DEFAULT false,
	start boolean DEFAULT false)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_create_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_batch IS 'create a batch: a group of jobs, with callbacks for success, failure and end
name: a name, for people
on_success: a job to enqueue when all jobs are completed: {"kind": "...", "payload": ..., and options of enqueue()}
on_failure: a job to enqueue when a job of the batch is dead or expired
on_finish: a job to enqueue when all jobs are over
allow_failures: do not cancel the remaining jobs after a failure
start: run the jobs without a call of start_batch()
returns: the id of the batch';

CREATE FUNCTION jobq.add_jobs(
	batch_id bigint,
	kind text,
	payloads jsonb[],
	options jsonb DEFAULT NULL)
RETURNS SETOF bigint AS 'MODULE_PATHNAME', 'jobq_add_jobs'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.add_jobs IS 'add a job for each payload to a batch, also from inside a job of the batch
batch_id: the id of the batch
kind: the kind of the jobs
payloads: the inputs of the handler or consumer
options: options of enqueue() by name, for example {"queue": "low", "delay": "5 min"}
returns: the ids of the jobs, in the order of the payloads';

CREATE FUNCTION jobq.start_batch(batch_id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_start_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.start_batch(bigint) IS 'let the jobs of a batch run; the batch is over when no job is left
batch_id: the id of the batch';

CREATE FUNCTION jobq.cancel_batch(batch_id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel_batch(bigint) IS 'cancel the remaining jobs of a batch; running jobs are asked to stop
batch_id: the id of the batch
returns: false if the batch was over';

CREATE FUNCTION jobq.wait_batch(batch_id bigint, timeout interval DEFAULT '30s') RETURNS jobq.batch_status
AS 'MODULE_PATHNAME', 'jobq_wait_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_batch(bigint, interval) IS 'wait until a batch or a workflow is over, or until the timeout
batch_id: the id of the batch
timeout: the longest wait; 0: return the current status
returns: the status of the batch';

-- Workflows: batches in which jobs, the steps, can wait for other jobs.

CREATE TABLE jobq_internal.step (
	job_id bigint NOT NULL CONSTRAINT step_pkey PRIMARY KEY,
	batch_id bigint NOT NULL,
	state "char",
	name text COLLATE "C" NOT NULL,
	needs bigint[] NOT NULL,
	definition jsonb,
	result jsonb,
	elements int,
	element_of bigint,
	element int,
	optional boolean NOT NULL DEFAULT false,
	conditional boolean NOT NULL DEFAULT false,
	workflow_id bigint
);
COMMENT ON TABLE jobq_internal.step IS 'steps of workflows, and elements of steps with map, for the lifetime of the batch';
COMMENT ON COLUMN jobq_internal.step.state IS 'the end of a job that has left the other tables: as there, or f: dead; or d(ropped: cancelled only because other jobs are dead or expired); s(kipped) at once';
COMMENT ON COLUMN jobq_internal.step.result IS 'the result of a job that has left the other tables';
COMMENT ON COLUMN jobq_internal.step.needs IS 'jobs that must be completed before this job may run';
COMMENT ON COLUMN jobq_internal.step.definition IS 'the source of the job, also for a new start after the retry of another job whose failure cancelled this job; null for elements, which use the definition of their step';
COMMENT ON COLUMN jobq_internal.step.elements IS 'for a step with map: the number of elements of the array; -1: not yet known';
COMMENT ON COLUMN jobq_internal.step.optional IS 'whether dependent steps run although this step is dead, expired or cancelled';
COMMENT ON COLUMN jobq_internal.step.conditional IS 'whether the definition has a condition; the step is skipped if the condition is not true';
COMMENT ON COLUMN jobq_internal.step.workflow_id IS 'for a step that is an inner workflow: the batch of this workflow';
COMMENT ON COLUMN jobq_internal.step.element_of IS 'for the job of an element: the job of the step';
COMMENT ON COLUMN jobq_internal.step.element IS 'for the job of an element: the index in the array, from 0';

CREATE UNIQUE INDEX step_name ON jobq_internal.step (batch_id, name, element_of) NULLS NOT DISTINCT;
COMMENT ON INDEX jobq_internal.step_name IS 'steps of a workflow by name, which is unique';

CREATE INDEX step_element ON jobq_internal.step (element_of) WHERE element_of IS NOT NULL;
COMMENT ON INDEX jobq_internal.step_element IS 'elements of a step with map';

SELECT pg_catalog.pg_extension_config_dump('jobq_internal.step', '');

CREATE FUNCTION jobq.create_workflow(definition jsonb, batch_id bigint DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_create_workflow' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_workflow(jsonb, bigint) IS 'enqueue jobs that wait for each other: {"steps": [{"name", "kind", "payload", "needs": ["..."], ...}, ...]}
definition: steps: an array of objects with name, kind, payload, needs, and options of enqueue(); or chain: such an array without name and needs, whose steps run one after another; instead of kind, a step can have workflow or chain, and is then an inner workflow; options for all steps; name, on_success, on_failure, on_finish of the batch
batch_id: an outer batch for the workflow, which is over only after the workflow; null: none
returns: the id of the batch of the jobs';

CREATE FUNCTION jobq.add_steps(
	batch_id bigint,
	steps jsonb,
	options jsonb DEFAULT NULL)
RETURNS bigint[] AS 'MODULE_PATHNAME', 'jobq_add_steps'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.add_steps(bigint, jsonb, jsonb) IS 'add steps to a workflow that is not over, also from inside a step of the workflow
batch_id: the workflow
steps: an array of objects as in create_workflow(); new steps may need each other, and existing steps in any state
options: options of enqueue() for all new steps, by name; an option of a step takes precedence
returns: the ids of the jobs';

CREATE FUNCTION jobq.rerun_steps(batch_id bigint, step text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_rerun_steps' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.rerun_steps(bigint, text) IS 'run a step of a workflow again, and all steps that need this step, with the results of earlier steps
batch_id: the workflow
step: the name of the step; null: all steps that have not completed, also in a cancelled workflow
returns: the number of steps';

CREATE VIEW jobq_internal.step_list WITH (security_barrier) AS
	SELECT s.batch_id, s.name, s.job_id,
		CASE WHEN s.state = 's' THEN 'skipped'
			WHEN j.id IS NULL THEN
				coalesce((SELECT 'dead' FROM jobq_internal.dead_letter f WHERE f.id = s.job_id),
					CASE coalesce((SELECT a.state FROM jobq_internal.archive a WHERE a.id = s.job_id), s.state)
						WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' WHEN 'd' THEN 'cancelled' WHEN 'e' THEN 'expired' WHEN 'f' THEN 'dead' END)
			WHEN s.elements >= 0 AND j.run_at = 'infinity' THEN 'running'
			WHEN s.workflow_id IS NOT NULL AND EXISTS (SELECT FROM jobq_internal.batch i
				WHERE i.id = s.workflow_id AND i.state <> 'p' AND i.started_at IS NOT NULL AND i.finished_at IS NULL) THEN 'running'
			ELSE jobq_internal.live_state(r.job_id IS NOT NULL OR j.lease_token IS NOT NULL,
				j.run_at, j.expires_at, j.errors IS NOT NULL, j.waits_for IS NOT NULL) END AS state,
		s.needs, s.definition, s.elements, s.element_of, s.element, b.role::pg_catalog.oid AS role,
		s.workflow_id
	FROM jobq_internal.step s
	JOIN jobq_internal.batch b ON b.id = s.batch_id
	LEFT JOIN jobq_internal.job j ON j.id = s.job_id
	LEFT JOIN jobq_internal.running_jobs r ON r.job_id = s.job_id;
COMMENT ON VIEW jobq_internal.step_list IS 'all steps, and elements of steps with map; for functions of jobq';

CREATE VIEW jobq.steps WITH (security_barrier) AS
	SELECT s.batch_id, coalesce(o.name, s.name) AS name, s.element, s.job_id, s.state,
		CASE WHEN s.element_of IS NULL THEN
			ARRAY(SELECT n.name FROM pg_catalog.unnest(s.needs) WITH ORDINALITY u (id, place)
				JOIN jobq_internal.step n ON n.job_id = u.id ORDER BY place) END AS needs,
		CASE WHEN jobq_internal.may_read(s.role, 0) THEN s.definition END AS definition,
		nullif(s.elements, -1) AS elements, e.completed AS elements_completed, e.dead AS elements_dead,
		s.workflow_id
	FROM jobq_internal.step_list s
	LEFT JOIN jobq_internal.step o ON o.job_id = s.element_of
	LEFT JOIN LATERAL (
		SELECT count(*) FILTER (WHERE l.state = 'completed') AS completed, count(*) FILTER (WHERE l.state IN ('dead', 'expired')) AS dead
		FROM jobq_internal.step_list l
		WHERE l.element_of = s.job_id AND s.elements >= 0
		HAVING s.elements >= 0) e ON true
	WHERE jobq_internal.may_see(s.role, 0);
COMMENT ON VIEW jobq.steps IS 'steps of workflows and chains, and the jobs of a step with map, one for each element: the state and the needed steps';
