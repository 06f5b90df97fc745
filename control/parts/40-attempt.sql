-- Handlers: registration, functions for handlers, and workers in a session.

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
	batch_id bigint,
	tenant text,
	handler_version text
);
COMMENT ON TYPE jobq.job_context IS 'the job of a handler, as seen by the handler';

CREATE FUNCTION jobq.register(
	kind text,
	handler text,
	queue text DEFAULT NULL,
	priority int DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	backoff text DEFAULT NULL,
	timeout interval DEFAULT NULL,
	fail_on_timeout boolean DEFAULT NULL,
	max_exceptions int DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate text DEFAULT NULL,
	throttle text DEFAULT NULL,
	on_failure text DEFAULT NULL,
	carry text[] DEFAULT NULL,
	recycle text DEFAULT NULL,
	retry_on text[] DEFAULT NULL,
	fail_on text[] DEFAULT NULL,
	max_memory text DEFAULT NULL,
	max_temp text DEFAULT NULL,
	max_wal text DEFAULT NULL,
	limiters text[] DEFAULT NULL,
	chunk int DEFAULT NULL,
	chunk_wait interval DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_register'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.register IS 'register the function or procedure that runs a kind of job
kind: the kind
handler: the function or procedure with its parameter types, such as greet(jsonb): f(), f(payload jsonb) or f(payload jsonb, job jobq.job_context), which returns void or jsonb; or f(jobs jobq.job_context[]) for several jobs in a call, which returns void or jsonb[]
queue: the queue of a job that names no queue; else default
priority: the priority of a job without this option; else 0
max_attempts: the number of attempts of a job without this option, 0 for no limit; else jobq.default_max_attempts
backoff: the delay before the next attempt of a job without this option; else jobq.default_backoff
timeout: the time limit of an attempt of a job without this option; else jobq.default_timeout
fail_on_timeout: true if a timeout makes a job a dead letter at once
max_exceptions: the number of handler errors after which a job fails permanently; else max_attempts decides
max_running: the maximum number of running jobs of the kind; else no limit
rate: how many jobs of the kind start in a period, such as 100 per minute burst 20; else no limit
throttle: when jobs of the kind rest, such as 10 failures in 5 minutes; else never
on_failure: a function, in the form of handler, called for each job that becomes a dead letter
carry: settings of the producer''s session, such as {search_path, app.tenant}, added to the settings of the queue; else none
recycle: each: a worker exits after a job of the kind, and a new worker starts; never or null: the queue decides
retry_on: SQLSTATEs, or classes such as 40, of handler errors after which a further attempt follows; else all
fail_on: SQLSTATEs, or classes, of errors after which no further attempt follows
max_memory: the memory limit of a run, such as 200 MB; a run above the limit is ended; else no limit
max_temp: the limit of bytes written to temporary files by a run; else no limit
max_wal: the limit of WAL written by a run; else no limit
limiters: up to two limiters from create_limiter(), shared with other kinds, in addition to the limits of the kind and of the queue
chunk: the maximum number of jobs in a call of a handler of several jobs, at most 1000; else 100
chunk_wait: how long the first job of a call waits for further jobs, at most 1 minute; else not at all';

CREATE FUNCTION jobq.unregister(kind text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_unregister' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.unregister(text) IS 'remove the handler of a kind
kind: the kind';

CREATE FUNCTION jobq.current_job() RETURNS jobq.job_context
AS 'MODULE_PATHNAME', 'jobq_current_job' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.current_job() IS 'return the job that this session runs';

CREATE FUNCTION jobq.set_progress(percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_progress' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.set_progress(real, text) IS 'set the progress of the current job, visible at once
percent: from 0 to 100
message: a text shown with the progress';

CREATE FUNCTION jobq.log(message text, level text DEFAULT 'info') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_log' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.log(text, text) IS 'add a line to the log of the current job, visible at once, and kept if the handler fails
message: the line
level: debug, info, warning, or error';

CREATE FUNCTION jobq.should_stop() RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_should_stop' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.should_stop() IS 'return true if the current job should end soon';

CREATE FUNCTION jobq.snooze(delay interval, charge boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_snooze' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.snooze(interval, boolean) IS 'commit the effects of the handler at its return, and run the job again later
delay: the delay before the job runs again
charge: true: the attempt counts for max_attempts; false: the attempt is not counted';

CREATE FUNCTION jobq.cancel_current(reason text, job_id bigint DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_cancel_current' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.cancel_current(text, bigint) IS 'commit the effects of the handler at its return, and finish the job as cancelled
reason: the error shown for the job
job_id: the job, in a handler of several jobs; null: the current job';

CREATE FUNCTION jobq.reject_current(reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject_current' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.reject_current(text) IS 'roll back the effects of the handler, and make the job a dead letter
reason: the error of the dead letter';

CREATE FUNCTION jobq.perform(kind text, payload jsonb DEFAULT '{}') RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_perform' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.perform(text, jsonb) IS 'run the handler of a kind now, in this transaction
kind: the kind
payload: the input for the handler
returns: the result of the handler';

CREATE FUNCTION jobq.dry_run(kind text, payload jsonb DEFAULT '{}',
	OUT result jsonb, OUT written jsonb, OUT took interval, OUT wal_bytes bigint,
	OUT error text, OUT sqlstate text, OUT error_context text)
AS 'MODULE_PATHNAME', 'jobq_dry_run' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.dry_run(text, jsonb) IS 'run the handler of a kind, report the effects, and roll the effects back
kind: the kind
payload: the input for the handler';

CREATE FUNCTION jobq_internal.run_next(queues text[]) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_run_next' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.run_next(text[]) IS 'run a ready job of these queues (null: all) in this transaction; for jobq.work()
queues: the queues, in strict order
returns: the id of the job; null: no ready job; 0: jobs were charged with a crash, commit first';

CREATE PROCEDURE jobq.work(
	queues text[] DEFAULT NULL,
	once boolean DEFAULT false,
	stop_when_empty boolean DEFAULT false,
	max_jobs int DEFAULT NULL,
	max_time interval DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
	jobs int := 0;
	job_id bigint;
	give_up pg_catalog.timestamptz;
BEGIN
	IF max_jobs OPERATOR(pg_catalog.<) 0 THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = pg_catalog.format('max_jobs %s is out of range', max_jobs),
			HINT = 'It must be at least 0, or null for no limit.';
	END IF;
	IF max_time OPERATOR(pg_catalog.<) pg_catalog.make_interval()
		OR max_time OPERATOR(pg_catalog.>) pg_catalog.make_interval(days => 36500)
	THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = pg_catalog.format('max_time %s is out of range', max_time),
			HINT = 'It must be between 0 and 36500 days, or null for no limit.';
	END IF;
	give_up := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) max_time;
	once := coalesce(once, false);
	stop_when_empty := coalesce(stop_when_empty, false);
	LOOP
		EXIT WHEN jobs OPERATOR(pg_catalog.>=) max_jobs
			OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) give_up;
		job_id := jobq_internal.run_next(queues);
		COMMIT;
		-- jobs that crashed a session were charged, and the charge is committed
		CONTINUE WHEN job_id OPERATOR(pg_catalog.=) 0;
		IF job_id IS NOT NULL THEN
			jobs := jobs OPERATOR(pg_catalog.+) 1;
		ELSIF NOT stop_when_empty AND NOT once THEN
			PERFORM pg_catalog.pg_sleep(0.1);
		END IF;
		EXIT WHEN once OR (job_id IS NULL AND stop_when_empty);
	END LOOP;
END
$$;
COMMENT ON PROCEDURE jobq.work IS 'run jobs in this session like a worker, for tests and scripts
queues: the queues, in strict order; null: all
once: run at most a single job, and return
stop_when_empty: return when no job may run now
max_jobs: return after this number of jobs
max_time: return after this time';
