-- Types.

CREATE TYPE jobq.job_context AS (
	id bigint,
	kind text,
	queue text,
	payload jsonb,
	headers jsonb,
	attempt int,
	max_attempts int,
	enqueued_at timestamptz,
	run_at timestamptz,
	batch_id bigint
);
COMMENT ON TYPE jobq.job_context IS 'what a handler may know about its job';

CREATE TYPE jobq.job_status AS (
	id bigint,
	state text,
	kind text,
	queue text,
	attempt int,
	max_attempts int,
	progress real,
	message text,
	result jsonb,
	error text,
	enqueued_at timestamptz,
	run_at timestamptz,
	started_at timestamptz,
	finished_at timestamptz
);
COMMENT ON TYPE jobq.job_status IS 'what has become of a job: scheduled, ready, running, retryable, blocked; completed, failed, cancelled, expired';

CREATE TYPE jobq.reserved_job AS (
	id bigint,
	token bigint,
	queue text,
	kind text,
	payload jsonb,
	headers jsonb,
	attempt int,
	max_attempts int,
	enqueued_at timestamptz,
	lease_until timestamptz
);
COMMENT ON TYPE jobq.reserved_job IS 'a job that a consumer holds; the token is its right to it';
