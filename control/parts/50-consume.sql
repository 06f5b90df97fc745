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
	lease_until timestamptz,
	context jsonb,
	tenant text,
	alone boolean
);
COMMENT ON TYPE jobq.reserved_job IS 'a job that a consumer holds; the token is its right to it';

CREATE FUNCTION jobq.reserve(
	queues text[] DEFAULT '{default}',
	max int DEFAULT 1,
	lease interval DEFAULT '90s',
	wait interval DEFAULT '0',
	consumer text DEFAULT NULL,
	held int DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reserve IS 'take up to max jobs of these queues for the time of the lease; if there are none, wait so long for one
queues: which queues, in strict order; their mode must be consumer
max: how many jobs at most
lease: how long they are held
wait: how long to wait if there are none
consumer: the name that the view workers shows; else the application_name
held: how many other jobs the consumer holds, if it runs jobs of several calls at a time';

CREATE FUNCTION jobq.reserve_job(
	id bigint,
	lease interval DEFAULT '90s',
	consumer text DEFAULT NULL)
RETURNS SETOF jobq.reserved_job AS 'MODULE_PATHNAME', 'jobq_reserve_job'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION jobq.reserve_job IS 'take this job for the time of the lease; no row if it cannot be had now
id: the job; the mode of its queue must be consumer
lease: how long it is held
consumer: the name that the view workers shows; else the application_name';

CREATE FUNCTION jobq.set_context(context jsonb) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_context_sql' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_context(jsonb) IS 'set what a job has taken along, until the end of the transaction, as SET LOCAL does
context: that of the job, as reserve() has returned it';

-- Each comes three times: for one job; for many, all of them or none; and for
-- literals and parameters that have no type, which may be either.

CREATE FUNCTION jobq.ack(id bigint, token bigint, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint, bigint, jsonb) IS 'the job is completed; an error if the lease is not valid any more
id: the job
token: that of its reservation
result: what wait(), status() and the archive show as its result';

CREATE FUNCTION jobq.ack(ids bigint[], tokens bigint[], results jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(bigint[], bigint[], jsonb) IS 'the jobs are completed; all of them or none
ids: the jobs
tokens: those of their reservations, in the same order
results: an array of what wait(), status() and the archive show as their results, in the same order; null is none';

CREATE FUNCTION jobq.ack(id_or_ids text, token_or_tokens text, result jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_ack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.ack(text, text, jsonb) IS 'the job is completed; an error if the lease is not valid any more (for untyped literals and parameters)
id_or_ids: the job as a number, or several as an array: ''{1,2}''
token_or_tokens: the token of its reservation, or as many in the same order
result: what wait(), status() and the archive show as its result; of several jobs an array of as many, where null is none';

CREATE FUNCTION jobq.nack(id bigint, token bigint, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint, bigint, text, interval) IS 'the attempt has failed; another comes by the backoff, if there is one left
id: the job
token: that of its reservation
error: what went wrong
delay: the next attempt waits for so long; else by the backoff';

CREATE FUNCTION jobq.nack(ids bigint[], tokens bigint[], error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(bigint[], bigint[], text, interval) IS 'the attempts have failed; all of them or none
ids: the jobs
tokens: those of their reservations, in the same order
error: what went wrong
delay: the next attempt waits for so long; else by the backoff';

CREATE FUNCTION jobq.nack(id_or_ids text, token_or_tokens text, error text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_nack' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.nack(text, text, text, interval) IS 'the attempt has failed; another comes by the backoff, if there is one left (for untyped literals and parameters)
id_or_ids: the job as a number, or several as an array: ''{1,2}''
token_or_tokens: the token of its reservation, or as many in the same order
error: what went wrong
delay: the next attempt waits for so long; else by the backoff';

CREATE FUNCTION jobq.reject(id bigint, token bigint, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint, bigint, text) IS 'the job becomes a dead letter now
id: the job
token: that of its reservation
reason: what is wrong with it';

CREATE FUNCTION jobq.reject(ids bigint[], tokens bigint[], reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(bigint[], bigint[], text) IS 'the jobs become dead letters now; all of them or none
ids: the jobs
tokens: those of their reservations, in the same order
reason: what is wrong with it';

CREATE FUNCTION jobq.reject(id_or_ids text, token_or_tokens text, reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reject(text, text, text) IS 'the job becomes a dead letter now (for untyped literals and parameters)
id_or_ids: the job as a number, or several as an array: ''{1,2}''
token_or_tokens: the token of its reservation, or as many in the same order
reason: what is wrong with it';

CREATE FUNCTION jobq.release(id bigint, token bigint, delay interval DEFAULT '0', payload jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint, bigint, interval, jsonb) IS 'give the job back to its queue; no attempt is charged
id: the job
token: that of its reservation
delay: it is there again after so long
payload: it has this one then; null: its own';

CREATE FUNCTION jobq.release(ids bigint[], tokens bigint[], delay interval DEFAULT '0') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(bigint[], bigint[], interval) IS 'give the jobs back to their queues; no attempt is charged; all of them or none
ids: the jobs
tokens: those of their reservations, in the same order
delay: it is there again after so long';

CREATE FUNCTION jobq.release(id_or_ids text, token_or_tokens text, delay interval DEFAULT '0', payload jsonb DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release(text, text, interval, jsonb) IS 'give the job back to its queue; no attempt is charged (for untyped literals and parameters)
id_or_ids: the job as a number, or several as an array: ''{1,2}''
token_or_tokens: the token of its reservation, or as many in the same order
delay: it is there again after so long
payload: it has this one then; null: its own';

CREATE FUNCTION jobq.extend(id bigint, token bigint, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint, bigint, interval) IS 'hold the job for longer
id: the job
token: that of its reservation
lease: for so long from now on';

CREATE FUNCTION jobq.extend(ids bigint[], tokens bigint[], lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(bigint[], bigint[], interval) IS 'hold the jobs for longer; all of them or none
ids: the jobs
tokens: those of their reservations, in the same order
lease: for so long from now on';

CREATE FUNCTION jobq.extend(id_or_ids text, token_or_tokens text, lease interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_extend' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.extend(text, text, interval) IS 'hold the job for longer (for untyped literals and parameters)
id_or_ids: the job as a number, or several as an array: ''{1,2}''
token_or_tokens: the token of its reservation, or as many in the same order
lease: for so long from now on';

CREATE FUNCTION jobq.set_progress(id bigint, token bigint, percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_report_progress' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_progress(bigint, bigint, real, text) IS 'show how far the job is, at once
id: the job
token: that of its reservation
percent: from 0 to 100
message: what is shown with it';

CREATE FUNCTION jobq.log(id bigint, token bigint, message text, level text DEFAULT 'info') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_report_log' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.log(bigint, bigint, text, text) IS 'keep a line with a job that a consumer holds, and show it at once
id: the job
token: that of its reservation
message: the line
level: debug, info, warning, or error';
