-- Functions for consumers, which run jobs outside of the server.

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
	lease_until timestamptz,
	context jsonb,
	tenant text,
	alone boolean
);
COMMENT ON TYPE jobq.reserved_job IS 'a job held by a consumer, with the token of the reservation';

CREATE FUNCTION jobq.reserve(
	queues text[] DEFAULT '{default}',
	max_jobs int DEFAULT 1,
	lease interval DEFAULT '90s',
	wait interval DEFAULT '0',
	consumer text DEFAULT NULL,
	held int DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reserve IS 'claim up to max_jobs jobs of these queues for the time of the lease
queues: the queues, in strict order; the mode must be consumer
max_jobs: the maximum number of jobs
lease: how long the jobs are held
wait: how long to wait for a job if no job is ready
consumer: the name shown in the view workers; else the application_name
held: the number of other jobs held by the consumer, for a consumer that runs jobs of several calls at a time';

CREATE FUNCTION jobq.reserve_job(
	id bigint,
	lease interval DEFAULT '90s',
	consumer text DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve_job'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION jobq.reserve_job IS 'claim this job for the time of the lease
id: the job; the mode of the queue must be consumer
lease: how long the job is held
consumer: the name shown in the view workers; else the application_name
returns: no row if the job cannot be claimed now';

CREATE FUNCTION jobq.ack(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint, bigint, jsonb) IS 'complete the job; an error if the lease is no longer valid
id: the job
token: the token of the job''s reservation
result: the result of the job, shown by wait(), status() and the archive';

CREATE FUNCTION jobq.ack_many(ids bigint[], tokens bigint[], results jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack_many(bigint[], bigint[], jsonb) IS 'complete the jobs, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
results: an array of results, in the order of ids; null: no result';

CREATE FUNCTION jobq.nack(id bigint, token bigint, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint, bigint, text, interval) IS 'report a failed attempt; the job runs again after the backoff if an attempt is left
id: the job
token: the token of the job''s reservation; null: the job is of the set handler that calls
error: the error message
delay: the delay before the next attempt; else the backoff decides';

CREATE FUNCTION jobq.reject(id bigint, token bigint, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint, bigint, text) IS 'make the job a dead letter now
id: the job
token: the token of the job''s reservation; null: the job is of the set handler that calls
reason: the error of the dead letter';

CREATE FUNCTION jobq.release(id bigint, token bigint, delay interval DEFAULT '0', payload jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint, bigint, interval, jsonb) IS 'return the job to the queue without charging an attempt
id: the job
token: the token of the job''s reservation; null: the job is of the set handler that calls
delay: the delay before the job is available again
payload: the new payload; null: unchanged';

CREATE FUNCTION jobq.extend(id bigint, token bigint, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint, bigint, interval) IS 'extend the lease of the job
id: the job
token: the token of the job''s reservation
lease: the new duration of the lease, from now';

CREATE FUNCTION jobq.extend_many(ids bigint[], tokens bigint[], lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend_many(bigint[], bigint[], interval) IS 'extend the leases of the jobs, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
lease: the new duration of the lease, from now';

CREATE FUNCTION jobq.set_progress(id bigint, token bigint, percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_report_progress' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_progress(bigint, bigint, real, text) IS 'set the progress of a job held by a consumer, visible at once
id: the job
token: the token of the job''s reservation
percent: from 0 to 100
message: a text shown with the progress';

CREATE FUNCTION jobq.log(id bigint, token bigint, message text, level text DEFAULT 'info') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_report_log' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.log(bigint, bigint, text, text) IS 'add a line to the log of a job held by a consumer, visible at once
id: the job
token: the token of the job''s reservation; null: the job is of the set handler that calls
message: the line
level: debug, info, warning, or error';
