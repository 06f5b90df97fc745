-- Batches, and workflows, which are batches with steps.

-- Batches: jobs that belong together, and what is to be done when they are
-- over.

CREATE SEQUENCE jobq_internal.batch_id_seq;
COMMENT ON SEQUENCE jobq_internal.batch_id_seq IS 'ids of batches';

CREATE TABLE jobq_internal.batch (
	id bigint NOT NULL CONSTRAINT batch_pkey PRIMARY KEY,
	created_at timestamptz NOT NULL,
	started_at timestamptz,
	finished_at timestamptz,
	role regrole NOT NULL,
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
	failed bigint NOT NULL DEFAULT 0,
	cancelled bigint NOT NULL DEFAULT 0,
	expired bigint NOT NULL DEFAULT 0,
	name text,
	on_success jsonb,
	on_failure jsonb,
	on_finish jsonb,
	last_error text
);
COMMENT ON TABLE jobq_internal.batch IS 'batches; their jobs are counted in the other tables, and here those that retention and the like have removed from there';
COMMENT ON COLUMN jobq_internal.batch.finished_at IS 'when its last job was over';
COMMENT ON COLUMN jobq_internal.batch.state IS 'p(ending), r(unning), c(ompleted), f(ailed), x: cancelled; the last two already while jobs are left';
COMMENT ON COLUMN jobq_internal.batch.completed IS 'jobs that have completed and are not in the archive any more';
COMMENT ON COLUMN jobq_internal.batch.failed IS 'dead letters that are not there any more';
COMMENT ON COLUMN jobq_internal.batch.cancelled IS 'jobs that were cancelled and are not in the archive any more';
COMMENT ON COLUMN jobq_internal.batch.expired IS 'jobs that have expired and are not in the archive any more';
COMMENT ON COLUMN jobq_internal.batch.has_steps IS 'some of its jobs wait for others: jobq_internal.step';
COMMENT ON COLUMN jobq_internal.batch.reopened IS 'failed jobs of it were retried: what fails again is told at the end';
COMMENT ON COLUMN jobq_internal.batch.dormant IS 'brought here by logical replication: its end comes on the publisher';
COMMENT ON COLUMN jobq_internal.batch.adopted IS 'it was dormant, and is no more: jobs of it may have ended on the publisher';
COMMENT ON COLUMN jobq_internal.batch.dropped IS 'what it is part of goes on without it: what waits is cancelled, and what runs may end';
COMMENT ON COLUMN jobq_internal.batch.parent IS 'the batch that it is part of';
COMMENT ON COLUMN jobq_internal.batch.parent_job IS 'the job of that which stands for it, and ends when it does';
COMMENT ON COLUMN jobq_internal.batch.last_error IS 'why a callback could not be enqueued; it is tried again';

CREATE INDEX batch_open ON jobq_internal.batch (id) WHERE finished_at IS NULL;
COMMENT ON INDEX jobq_internal.batch_open IS 'batches that are not over';

CREATE INDEX batch_parent ON jobq_internal.batch (parent, parent_job) WHERE parent IS NOT NULL;
COMMENT ON INDEX jobq_internal.batch_parent IS 'workflows that are part of a batch';

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
	blocked bigint,
	waiting bigint,
	running bigint,
	completed bigint,
	failed bigint,
	cancelled bigint,
	expired bigint,
	progress real,
	created_at timestamptz,
	started_at timestamptz,
	finished_at timestamptz,
	last_error text
);
COMMENT ON TYPE jobq.batch_status IS 'what has become of a batch: pending, running, failing, cancelling; completed, failed, cancelled; how many of its jobs are in which state; percent that are over';

CREATE VIEW jobq_internal.batch_list WITH (security_barrier) AS
	SELECT b.id, b.name,
		CASE b.state WHEN 'p' THEN 'pending' WHEN 'r' THEN 'running' WHEN 'c' THEN 'completed'
			WHEN 'f' THEN CASE WHEN b.finished_at IS NULL THEN 'failing' ELSE 'failed' END
			ELSE CASE WHEN b.finished_at IS NULL THEN 'cancelling' ELSE 'cancelled' END END AS state,
		l.live + n.over AS total, l.blocked, l.live - l.blocked - l.running AS waiting, l.running,
		n.completed, n.failed, n.cancelled, n.expired,
		(100.0 * n.over / nullif(l.live + n.over, 0))::real AS progress,
		b.created_at, b.started_at, b.finished_at, b.last_error, b.role::pg_catalog.oid::pg_catalog.regrole AS role,
		b.parent
	FROM jobq_internal.batch b
	CROSS JOIN LATERAL (
		SELECT count(*) AS live, count(*) FILTER (WHERE j.run_at = 'infinity') AS blocked, count(r.job_id) AS running
		FROM jobq_internal.job j
		LEFT JOIN jobq_internal.running_jobs r ON r.job_id = j.id
		WHERE j.batch_id = b.id) l
	CROSS JOIN LATERAL (
		SELECT o.*, o.completed + o.failed + o.cancelled + o.expired AS over
		FROM (SELECT b.completed + count(*) FILTER (WHERE a.state = 'c') AS completed,
				b.failed + (SELECT count(*) FROM jobq_internal.failed_job f WHERE f.batch_id = b.id) AS failed,
				b.cancelled + count(*) FILTER (WHERE a.state = 'x') AS cancelled,
				b.expired + count(*) FILTER (WHERE a.state = 'e') AS expired
			FROM jobq_internal.archive a WHERE a.batch_id = b.id) o) n;
COMMENT ON VIEW jobq_internal.batch_list IS 'all batches; for functions of jobq';

CREATE VIEW jobq.batches WITH (security_barrier) AS
	SELECT * FROM jobq_internal.batch_list b WHERE jobq_internal.may_see(b.role::pg_catalog.oid, 0);
COMMENT ON VIEW jobq.batches IS 'batches, and how many of their jobs are in which state';

CREATE FUNCTION jobq.create_batch(
	name text DEFAULT NULL,
	on_success jsonb DEFAULT NULL,
	on_failure jsonb DEFAULT NULL,
	on_finish jsonb DEFAULT NULL,
	allow_failures boolean DEFAULT false,
	start boolean DEFAULT false)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_create_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_batch IS 'make a batch: jobs that belong together, and jobs to be enqueued when all are completed, when one has failed, when all are over; start: its jobs need not wait for start_batch()
name: a name, for people
on_success: a job to be enqueued when all are completed: {"kind": "...", "payload": ..., and options of enqueue()}
on_failure: one when a job has failed
on_finish: one when all are over
allow_failures: do not cancel the others when a job has failed
start: its jobs need not wait for start_batch()
returns: the id of the batch';

CREATE FUNCTION jobq.add_jobs(
	batch_id bigint,
	kind text,
	payloads jsonb[],
	options jsonb DEFAULT NULL)
RETURNS SETOF bigint AS 'MODULE_PATHNAME', 'jobq_add_jobs'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.add_jobs IS 'add a job for each payload to a batch; also from inside a job of the batch
batch_id: the batch
kind: the kind of the jobs
payloads: what their handler or consumer gets
options: options of enqueue() by their names, such as {"queue": "low", "delay": "5 min"}
returns: the ids of the jobs, in the order of the payloads';

CREATE FUNCTION jobq.start_batch(batch_id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_start_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.start_batch(bigint) IS 'let the jobs of a batch run; it is over when none is left
batch_id: the batch';

CREATE FUNCTION jobq.cancel_batch(batch_id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel_batch(bigint) IS 'cancel what is left of a batch; running jobs are asked to stop; false if it was over
batch_id: the batch';

CREATE FUNCTION jobq.wait_batch(batch_id bigint, timeout interval DEFAULT '30s') RETURNS jobq.batch_status
AS 'MODULE_PATHNAME', 'jobq_wait_batch' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_batch(bigint, interval) IS 'wait until a batch or a workflow is over or the time is over; returns its status
batch_id: the batch
timeout: how long to wait at most; 0: only its status, as it is now';

-- Workflows: batches of which some jobs, their steps, wait for others.

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
COMMENT ON TABLE jobq_internal.step IS 'steps of workflows, and elements of steps with map, as long as there is their batch';
COMMENT ON COLUMN jobq_internal.step.state IS 'how the job has ended, if that is not in another table any more; as there, and f(ailed), d(ropped: cancelled only because others failed); s(kipped) at once';
COMMENT ON COLUMN jobq_internal.step.result IS 'its result, likewise';
COMMENT ON COLUMN jobq_internal.step.needs IS 'the jobs that must be completed before this one may run';
COMMENT ON COLUMN jobq_internal.step.definition IS 'what the job is made from, at first, and anew if it was cancelled because another failed that is retried; not of elements, which are made from that of their step';
COMMENT ON COLUMN jobq_internal.step.elements IS 'of a step with map: how many elements its array has; -1 as long as that is not known';
COMMENT ON COLUMN jobq_internal.step.optional IS 'whether those that need it run although it has failed, expired or was cancelled';
COMMENT ON COLUMN jobq_internal.step.conditional IS 'whether it has a condition, in its definition, without which it is skipped';
COMMENT ON COLUMN jobq_internal.step.workflow_id IS 'of a step that is a workflow itself: its batch';
COMMENT ON COLUMN jobq_internal.step.element_of IS 'of the job of an element: the job of its step';
COMMENT ON COLUMN jobq_internal.step.element IS 'of the job of an element: its place in the array, from 0';

CREATE UNIQUE INDEX step_name ON jobq_internal.step (batch_id, name, element_of) NULLS NOT DISTINCT;
COMMENT ON INDEX jobq_internal.step_name IS 'the steps of a workflow, each with a name of its own';

CREATE INDEX step_element ON jobq_internal.step (element_of) WHERE element_of IS NOT NULL;
COMMENT ON INDEX jobq_internal.step_element IS 'the elements of a step with map';

SELECT pg_catalog.pg_extension_config_dump('jobq_internal.step', '');

CREATE FUNCTION jobq.create_workflow(definition jsonb, batch bigint DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_create_workflow' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_workflow(jsonb, bigint) IS 'enqueue jobs that wait for each other: {"steps": [{"name", "kind", "payload", "needs": ["..."], ...}, ...]}; returns the id of their batch
definition: steps: an array of objects with name, kind, payload, needs, and options of enqueue(); a step can be a workflow itself, with workflow or chain in the place of kind; options that all steps have; name, on_success, on_failure, on_finish of the batch
batch: a batch that it is part of, and that is over only when it is';

CREATE FUNCTION jobq.chain(
	steps jsonb,
	on_failure jsonb DEFAULT NULL,
	on_success jsonb DEFAULT NULL,
	on_finish jsonb DEFAULT NULL,
	name text DEFAULT NULL,
	options jsonb DEFAULT NULL,
	batch bigint DEFAULT NULL)
RETURNS bigint[] AS 'MODULE_PATHNAME', 'jobq_chain'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.chain(jsonb, jsonb, jsonb, jsonb, text, jsonb, bigint) IS 'enqueue jobs that run one after another, each only if the one before is completed; returns their ids
steps: an array of objects with kind, payload, and options of enqueue()
on_failure: a job to be enqueued when one has failed
on_success: a job to be enqueued when all are completed
on_finish: a job to be enqueued when all are over
name: a name, for people
options: options of enqueue() that all of them have, by their names; those of a step itself come first
batch: a batch that it is part of, and that is over only when it is';

CREATE FUNCTION jobq.add_steps(
	batch_id bigint,
	steps jsonb,
	options jsonb DEFAULT NULL)
RETURNS bigint[] AS 'MODULE_PATHNAME', 'jobq_add_steps'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.add_steps(bigint, jsonb, jsonb) IS 'add steps to a workflow that is not over, also from inside one of its steps; returns the ids of their jobs
batch_id: the workflow or chain
steps: an array of objects as in create_workflow(); they may need each other, and the steps that it has, whatever has become of these
options: options of enqueue() that all of them have, by their names; those of a step itself come first';

CREATE FUNCTION jobq.rerun_steps(batch_id bigint, step text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_rerun_steps' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.rerun_steps(bigint, text) IS 'run a step of a workflow, and all that need it, once more, with the results of those before; without a step, all that have not completed, also if the workflow was cancelled; how many steps these are
batch_id: the workflow or chain
step: the name of the step; null: all that have not completed';

CREATE VIEW jobq_internal.step_list WITH (security_barrier) AS
	SELECT s.batch_id, s.name, s.job_id,
		CASE WHEN s.state = 's' THEN 'skipped'
			WHEN j.id IS NULL THEN
				coalesce((SELECT 'failed' FROM jobq_internal.failed_job f WHERE f.id = s.job_id),
					CASE coalesce((SELECT a.state FROM jobq_internal.archive a WHERE a.id = s.job_id), s.state)
						WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' WHEN 'd' THEN 'cancelled' WHEN 'e' THEN 'expired' WHEN 'f' THEN 'failed' END)
			WHEN s.elements >= 0 AND j.run_at = 'infinity' THEN 'running'
			WHEN s.workflow_id IS NOT NULL AND EXISTS (SELECT FROM jobq_internal.batch i
				WHERE i.id = s.workflow_id AND i.state <> 'p' AND i.started_at IS NOT NULL AND i.finished_at IS NULL) THEN 'running'
			ELSE jobq_internal.live_state(r.job_id IS NOT NULL OR j.lease_token IS NOT NULL,
				j.run_at, j.expires_at, j.errors IS NOT NULL) END AS state,
		s.needs, s.definition, s.elements, s.element_of, s.element, b.role::pg_catalog.oid AS role,
		s.workflow_id
	FROM jobq_internal.step s
	JOIN jobq_internal.batch b ON b.id = s.batch_id
	LEFT JOIN jobq_internal.job j ON j.id = s.job_id
	LEFT JOIN jobq_internal.running_jobs r ON r.job_id = s.job_id;
COMMENT ON VIEW jobq_internal.step_list IS 'all steps, and elements of steps with map; for functions of jobq';

CREATE VIEW jobq.steps WITH (security_barrier) AS
	SELECT s.batch_id, s.name, s.job_id, s.state,
		ARRAY(SELECT n.name FROM pg_catalog.unnest(s.needs) WITH ORDINALITY u (id, place)
			JOIN jobq_internal.step n ON n.job_id = u.id ORDER BY place) AS needs,
		CASE WHEN jobq_internal.may_read(s.role, 0) THEN s.definition END AS definition,
		nullif(s.elements, -1) AS elements, e.completed AS elements_completed, e.failed AS elements_failed,
		s.workflow_id
	FROM jobq_internal.step_list s
	LEFT JOIN LATERAL (
		SELECT count(*) FILTER (WHERE l.state = 'completed') AS completed, count(*) FILTER (WHERE l.state IN ('failed', 'expired')) AS failed
		FROM jobq_internal.step_list l
		WHERE l.element_of = s.job_id AND s.elements >= 0
		HAVING s.elements >= 0) e ON true
	WHERE s.element_of IS NULL AND jobq_internal.may_see(s.role, 0);
COMMENT ON VIEW jobq.steps IS 'steps of workflows and chains: how far they are, and which others they need';

CREATE VIEW jobq.step_elements WITH (security_barrier) AS
	SELECT e.batch_id, s.name, e.element, e.job_id, e.state
	FROM jobq_internal.step_list e
	JOIN jobq_internal.step s ON s.job_id = e.element_of
	WHERE jobq_internal.may_see(e.role, 0);
COMMENT ON VIEW jobq.step_elements IS 'steps of workflows that have a job for each element of an array: these jobs, and how far they are';
