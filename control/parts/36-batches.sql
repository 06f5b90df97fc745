-- Batches: jobs that belong together, and what is to be done when they are
-- over.

CREATE SEQUENCE jobq.batch_id_seq;
COMMENT ON SEQUENCE jobq.batch_id_seq IS 'ids of batches';

CREATE TABLE jobq.batch (
	id bigint NOT NULL CONSTRAINT batch_pkey PRIMARY KEY,
	created_at timestamptz NOT NULL,
	started_at timestamptz,
	finished_at timestamptz,
	role regrole NOT NULL,
	state "char" NOT NULL CHECK (state IN ('p', 'r', 'c', 'f', 'x')),
	allow_failures boolean NOT NULL,
	has_steps boolean NOT NULL DEFAULT false,
	dormant boolean NOT NULL DEFAULT false,
	completed bigint,
	failed bigint,
	cancelled bigint,
	expired bigint,
	name text,
	on_success jsonb,
	on_failure jsonb,
	on_finish jsonb,
	last_error text
);
COMMENT ON TABLE jobq.batch IS 'batches; how many of their jobs are over is counted in the other tables until the batch is old';
COMMENT ON COLUMN jobq.batch.finished_at IS 'when its last job was over';
COMMENT ON COLUMN jobq.batch.state IS 'p(ending), r(unning), c(ompleted), f(ailed), x: cancelled; the last two already while jobs are left';
COMMENT ON COLUMN jobq.batch.has_steps IS 'some of its jobs wait for others: jobq.step';
COMMENT ON COLUMN jobq.batch.dormant IS 'brought here by logical replication: its end comes on the publisher';
COMMENT ON COLUMN jobq.batch.last_error IS 'why a callback could not be enqueued; it is tried again';

CREATE INDEX batch_open ON jobq.batch (id) WHERE finished_at IS NULL;
COMMENT ON INDEX jobq.batch_open IS 'batches that are not over';

SELECT pg_catalog.pg_extension_config_dump('jobq.batch', '');
SELECT pg_catalog.pg_extension_config_dump('jobq.batch_id_seq', '');
