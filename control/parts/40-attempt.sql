-- Handlers: their registration, what they may ask for, and workers in a session.

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
	tenant text
);
COMMENT ON TYPE jobq.job_context IS 'what a handler may know about its job';

CREATE FUNCTION jobq.register(
	kind text,
	handler text,
	queue text DEFAULT NULL,
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
	limiter text DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_register'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.register IS 'declare which function or procedure runs a kind of job
kind: the kind
handler: the function or procedure with its parameter types, such as greet(jsonb): f(), f(payload jsonb) or f(payload jsonb, job jobq.job_context), which returns void or jsonb
queue: where jobs of the kind stand if they do not say; else default
max_attempts: how many attempts they have if they do not say, 0 for no limit; else jobq.default_max_attempts
backoff: how long their next attempt waits if they do not say; else jobq.default_backoff
timeout: how long an attempt may run if they do not say; else jobq.default_timeout
fail_on_timeout: whether one that takes too long becomes a dead letter at once
max_exceptions: after how many errors of the handler they fail for good; else by max_attempts
max_running: how many of them run at a time; else as many as can
rate: how many of them start in a time, such as 100 per minute burst 20; else as many as can
throttle: when they rest, such as 10 failures in 5 minutes; else never
on_failure: a function, as handler, that is called with a job that has failed for good
carry: which settings of the enqueuer''s session its jobs take along, beside those of the queue, such as {search_path, app.tenant}; else none
recycle: each: a worker that has run a job of it leaves, and another takes its place; never, or nothing: as the queue says
retry_on: SQLSTATEs, or classes such as 40, of the handler''s errors after which there is another attempt; else all
fail_on: SQLSTATEs, or classes, of errors after which there is none
max_memory: how much memory a run may take, such as 200 MB; one that takes more is ended; else as much as it likes
max_temp: likewise, how much it may write to temporary files
max_wal: likewise, how much WAL it may write
limiter: a limiter, made by create_limiter(), that they share with others; else their own limits, or what their queue says';

CREATE FUNCTION jobq.unregister(kind text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_unregister' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.unregister(text) IS 'forget the handler of a kind
kind: the kind';

CREATE FUNCTION jobq.current_job() RETURNS jobq.job_context
AS 'MODULE_PATHNAME', 'jobq_current_job' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.current_job() IS 'the job that this session runs';

CREATE FUNCTION jobq.set_progress(percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_progress' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.set_progress(real, text) IS 'show how far the current job is, at once
percent: from 0 to 100
message: what is shown with it';

CREATE FUNCTION jobq.log(message text, level text DEFAULT 'info') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_log' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.log(text, text) IS 'keep a line with the current job, also if the handler fails, and show it at once
message: the line
level: debug, info, warning, or error';

CREATE FUNCTION jobq.should_stop() RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_should_stop' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.should_stop() IS 'whether the current job had better end soon';

CREATE FUNCTION jobq.snooze(delay interval, charge boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_snooze' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.snooze(interval, boolean) IS 'when the handler returns, its effects commit and the job runs again later
delay: how much later
charge: count the attempt, so that max_attempts ends it; else it is as if it had not been';

CREATE FUNCTION jobq.cancel_current(reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_cancel_current' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.cancel_current(text) IS 'when the handler returns, its effects commit and the job is finished as cancelled
reason: what the archive shows as its error';

CREATE FUNCTION jobq.reject_current(reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reject_current' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.reject_current(text) IS 'the handler''s effects roll back and the job fails for good
reason: what the dead letter shows as its error';

CREATE FUNCTION jobq.perform(kind text, payload jsonb DEFAULT '{}') RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_perform' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.perform(text, jsonb) IS 'run the handler of a kind now, in this transaction
kind: the kind
payload: what the handler gets
returns: what the handler returns';

CREATE FUNCTION jobq.dry_run(kind text, payload jsonb DEFAULT '{}',
	OUT result jsonb, OUT written jsonb, OUT took interval, OUT wal_bytes bigint,
	OUT error text, OUT sqlstate text, OUT context text)
AS 'MODULE_PATHNAME', 'jobq_dry_run' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.dry_run(text, jsonb) IS 'run the handler of a kind, tell what it has done, and roll that back
kind: the kind
payload: what the handler gets';

CREATE FUNCTION jobq_internal.run_next(queues text[]) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_run_next' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.run_next(text[]) IS 'run one ready job of these queues, or of any if null, in this transaction, and return its id; 0: jobs were charged with a crash, so commit first; for jobq.work()';

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
		-- jobs that had crashed a session are charged now
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
COMMENT ON PROCEDURE jobq.work IS 'be a worker in this session, for tests and scripts
queues: which queues, in strict order; null: all
once: run one job at most, and return
stop_when_empty: return when no job may run now
max_jobs: return after so many jobs
max_time: return after so long';
