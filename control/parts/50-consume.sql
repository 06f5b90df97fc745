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
	max int DEFAULT 1,
	lease interval DEFAULT '90s',
	wait interval DEFAULT '0',
	consumer text DEFAULT NULL,
	held int DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reserve IS 'claim up to max jobs of these queues for the time of the lease
queues: the queues, in strict order; the mode must be consumer
max: the maximum number of jobs
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

CREATE FUNCTION jobq.set_context(context jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_context_sql' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_context(jsonb) IS 'set the settings taken along by a job until the end of the transaction, as SET LOCAL does
context: the context of the job, as returned by reserve()';

-- Each of the following functions has three signatures: for a single job; for several
-- jobs, all or none; and for untyped literals and parameters, with either meaning.

CREATE FUNCTION jobq.ack(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint, bigint, jsonb) IS 'complete the job; an error if the lease is no longer valid
id: the job
token: the token of the job''s reservation
result: the result of the job, shown by wait(), status() and the archive';

CREATE FUNCTION jobq.ack(ids bigint[], tokens bigint[], results jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint[], bigint[], jsonb) IS 'complete the jobs, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
results: an array of results, in the order of ids; null: no result';

CREATE FUNCTION jobq.ack(id_or_ids text, token_or_tokens text, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(text, text, jsonb) IS 'complete the job; an error if the lease is no longer valid (for untyped literals and parameters)
id_or_ids: the id of a job, or an array of ids such as ''{1,2}''
token_or_tokens: the token of the reservation, or an array of tokens in the order of the ids
result: the result of the job; for several jobs, an array of results in the order of the ids; null: no result';

CREATE FUNCTION jobq.nack(id bigint, token bigint, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint, bigint, text, interval) IS 'report a failed attempt; the job runs again after the backoff if an attempt is left
id: the job
token: the token of the job''s reservation
error: the error message
delay: the delay before the next attempt; else the backoff decides';

CREATE FUNCTION jobq.nack(ids bigint[], tokens bigint[], error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint[], bigint[], text, interval) IS 'report failed attempts, for all jobs or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
error: the error message
delay: the delay before the next attempt; else the backoff decides';

CREATE FUNCTION jobq.nack(id_or_ids text, token_or_tokens text, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(text, text, text, interval) IS 'report a failed attempt; the job runs again after the backoff if an attempt is left (for untyped literals and parameters)
id_or_ids: the id of a job, or an array of ids such as ''{1,2}''
token_or_tokens: the token of the reservation, or an array of tokens in the order of the ids
error: the error message
delay: the delay before the next attempt; else the backoff decides';

CREATE FUNCTION jobq.reject(id bigint, token bigint, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint, bigint, text) IS 'make the job a dead letter now
id: the job
token: the token of the job''s reservation
reason: the error of the dead letter';

CREATE FUNCTION jobq.reject(ids bigint[], tokens bigint[], reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint[], bigint[], text) IS 'make the jobs dead letters now, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
reason: the error of the dead letter';

CREATE FUNCTION jobq.reject(id_or_ids text, token_or_tokens text, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(text, text, text) IS 'make the job a dead letter now (for untyped literals and parameters)
id_or_ids: the id of a job, or an array of ids such as ''{1,2}''
token_or_tokens: the token of the reservation, or an array of tokens in the order of the ids
reason: the error of the dead letter';

CREATE FUNCTION jobq.release(id bigint, token bigint, delay interval DEFAULT '0', payload jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint, bigint, interval, jsonb) IS 'return the job to the queue without charging an attempt
id: the job
token: the token of the job''s reservation
delay: the delay before the job is available again
payload: the new payload; null: unchanged';

CREATE FUNCTION jobq.release(ids bigint[], tokens bigint[], delay interval DEFAULT '0') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint[], bigint[], interval) IS 'return the jobs to the queues without charging attempts, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
delay: the delay before the job is available again';

CREATE FUNCTION jobq.release(id_or_ids text, token_or_tokens text, delay interval DEFAULT '0', payload jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(text, text, interval, jsonb) IS 'return the job to the queue without charging an attempt (for untyped literals and parameters)
id_or_ids: the id of a job, or an array of ids such as ''{1,2}''
token_or_tokens: the token of the reservation, or an array of tokens in the order of the ids
delay: the delay before the job is available again
payload: the new payload; null: unchanged';

CREATE FUNCTION jobq.extend(id bigint, token bigint, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint, bigint, interval) IS 'extend the lease of the job
id: the job
token: the token of the job''s reservation
lease: the new duration of the lease, from now';

CREATE FUNCTION jobq.extend(ids bigint[], tokens bigint[], lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint[], bigint[], interval) IS 'extend the leases of the jobs, all or none
ids: the jobs
tokens: the tokens of the reservations, in the order of ids
lease: the new duration of the lease, from now';

CREATE FUNCTION jobq.extend(id_or_ids text, token_or_tokens text, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(text, text, interval) IS 'extend the lease of the job (for untyped literals and parameters)
id_or_ids: the id of a job, or an array of ids such as ''{1,2}''
token_or_tokens: the token of the reservation, or an array of tokens in the order of the ids
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
token: the token of the job''s reservation
message: the line
level: debug, info, warning, or error';
