-- Consuming from outside.

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

CREATE FUNCTION jobq.reserve(
	queues text[] DEFAULT '{default}',
	max int DEFAULT 1,
	lease interval DEFAULT '90s',
	wait interval DEFAULT '0',
	consumer text DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reserve IS 'take up to max jobs of these queues for the time of the lease; if there are none, wait so long for one';

CREATE FUNCTION jobq.ack(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint, bigint, jsonb) IS 'the job is completed; an error if the lease is not valid any more';

CREATE FUNCTION jobq.ack(ids bigint[], tokens bigint[]) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint[], bigint[]) IS 'the jobs are completed; all of them or none';

CREATE FUNCTION jobq.nack(id bigint, token bigint, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint, bigint, text, interval) IS 'the attempt has failed; the next comes by the backoff, or after the delay';

CREATE FUNCTION jobq.nack(ids bigint[], tokens bigint[], error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint[], bigint[], text, interval) IS 'the attempts have failed';

CREATE FUNCTION jobq.reject(id bigint, token bigint, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint, bigint, text) IS 'the job becomes a dead letter now';

CREATE FUNCTION jobq.reject(ids bigint[], tokens bigint[], reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint[], bigint[], text) IS 'the jobs become dead letters now';

CREATE FUNCTION jobq.release(id bigint, token bigint, delay interval DEFAULT '0') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint, bigint, interval) IS 'give the job back to its queue; no attempt is charged';

CREATE FUNCTION jobq.release(ids bigint[], tokens bigint[], delay interval DEFAULT '0') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint[], bigint[], interval) IS 'give the jobs back to their queues; no attempt is charged';

CREATE FUNCTION jobq.extend(id bigint, token bigint, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint, bigint, interval) IS 'hold the job for so long from now on';

CREATE FUNCTION jobq.extend(ids bigint[], tokens bigint[], lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend_many' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint[], bigint[], interval) IS 'hold the jobs for so long from now on';

CREATE FUNCTION jobq.report_progress(id bigint, token bigint, percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_report_progress' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.report_progress(bigint, bigint, real, text) IS 'show how far the job is, at once';
