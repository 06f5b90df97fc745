-- Waiting for jobs, and operating jobs and queues.

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

CREATE FUNCTION jobq.status(id bigint) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(bigint) IS 'what has become of a job, live or finished';

CREATE FUNCTION jobq.wait(id bigint, timeout interval DEFAULT '30s') RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait(bigint, interval) IS 'wait until a job is finished or the time is over; returns its status';

CREATE FUNCTION jobq.wait(ids bigint[], timeout interval DEFAULT '30s') RETURNS SETOF jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait_many' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait(bigint[], interval) IS 'wait until all jobs are finished or the time is over; returns their statuses';

CREATE FUNCTION jobq.result(id bigint) RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_result' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.result(bigint) IS 'what the handler of a completed job has returned';

CREATE PROCEDURE jobq.call(
	kind text,
	payload jsonb DEFAULT '{}',
	INOUT result jsonb DEFAULT NULL,
	timeout interval DEFAULT '30 s',
	queue text DEFAULT NULL,
	priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL,
	delay interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_until timestamptz DEFAULT NULL,
	backoff text DEFAULT NULL,
	job_timeout interval DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL,
	unique_key text DEFAULT NULL,
	unique_for interval DEFAULT NULL,
	unique_until text DEFAULT NULL,
	on_conflict text DEFAULT NULL,
	group_key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	watch boolean DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_call' LANGUAGE C;
COMMENT ON PROCEDURE jobq.call IS 'enqueue a job, commit, and wait for its result; timeout: how long to wait';

CREATE FUNCTION jobq.cancel(id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel(bigint) IS 'cancel a job, or have the worker that runs it stop; false if it had finished';

CREATE FUNCTION jobq.retry(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_retry' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry(bigint) IS 'run a dead letter again, with all its attempts; or a job that waits for its next attempt now';

CREATE FUNCTION jobq.delete_failed(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_delete_failed' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete_failed(bigint) IS 'delete a dead letter';

CREATE FUNCTION jobq.reschedule(id bigint, run_at timestamptz) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reschedule' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reschedule(bigint, timestamptz) IS 'have a job that waits run at another time';

CREATE FUNCTION jobq.set_priority(id bigint, priority int) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_priority' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_priority(bigint, int) IS 'give a job that waits another priority';

CREATE FUNCTION jobq.retry_all(queue text DEFAULT NULL, kind text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_retry_all' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry_all(text, text) IS 'run all dead letters again, or those of a queue or kind; returns their number';

CREATE FUNCTION jobq.delete_all_failed(queue text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_delete_all_failed' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete_all_failed(text) IS 'delete all dead letters, or those of a queue; returns their number';

CREATE FUNCTION jobq.prune(older_than interval DEFAULT NULL, failed_older_than interval DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_prune' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.prune(interval, interval) IS 'delete finished jobs and dead letters that are older than this; null leaves them; returns their number';

CREATE FUNCTION jobq.clear(queue text) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_clear' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.clear(text) IS 'cancel all jobs of a queue that wait; running ones go on; returns their number';

CREATE FUNCTION jobq.drain(queue text, timeout interval DEFAULT '30s') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_drain' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drain(text, interval) IS 'wait until a queue has no job that runs or may run now; false if the time is over before';

CREATE FUNCTION jobq.restart_workers() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_restart_workers' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.restart_workers() IS 'replace the workers of this database after their current jobs';

CREATE FUNCTION jobq.adopt() RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_adopt' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.adopt() IS 'run here the jobs that logical replication has brought; returns their number';

CREATE FUNCTION jobq.create_queue(
	name text,
	mode text DEFAULT NULL,
	lease text DEFAULT NULL,
	notify text DEFAULT NULL,
	keep text DEFAULT NULL,
	weight int DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate text DEFAULT NULL,
	throttle text DEFAULT NULL,
	group_max_running int DEFAULT NULL,
	group_on_failure text DEFAULT NULL,
	fair_by text DEFAULT NULL,
	fair_weights jsonb DEFAULT NULL,
	max_length int DEFAULT NULL,
	expires_after interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 51 THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('queue name "%s" must have 1 to 51 bytes', name);
	END IF;
	-- rows that came by replication have not used the sequence
	PERFORM setval('jobq.queue_id_seq', max(q.id)) FROM jobq.queue q
		HAVING max(q.id) > (SELECT last_value FROM jobq.queue_id_seq);
	INSERT INTO jobq.queue AS q (name) VALUES (create_queue.name) ON CONFLICT ON CONSTRAINT queue_name_key DO NOTHING;
	IF NOT FOUND THEN
		RAISE EXCEPTION USING ERRCODE = 'duplicate_object',
			MESSAGE = format('queue "%s" already exists', name),
			HINT = 'Change it with jobq.alter_queue().';
	END IF;
	PERFORM jobq.alter_queue(name, mode, lease, notify, keep, weight, max_running, rate, throttle,
		group_max_running, group_on_failure, fair_by, fair_weights, max_length, expires_after);
END
$$;
COMMENT ON FUNCTION jobq.create_queue IS 'create a queue; mode is worker or consumer, lease durable or memory, notify relay, transactional or off, keep all, no_payload or nothing, group_on_failure wait or continue';

CREATE FUNCTION jobq.alter_queue(
	name text,
	mode text DEFAULT NULL,
	lease text DEFAULT NULL,
	notify text DEFAULT NULL,
	keep text DEFAULT NULL,
	weight int DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate text DEFAULT NULL,
	throttle text DEFAULT NULL,
	group_max_running int DEFAULT NULL,
	group_on_failure text DEFAULT NULL,
	fair_by text DEFAULT NULL,
	fair_weights jsonb DEFAULT NULL,
	max_length int DEFAULT NULL,
	expires_after interval DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	option text;
	value text;
	number int;
	allowed text[];
BEGIN
	FOR option, value, allowed IN VALUES
		('mode', mode, '{worker,consumer}'::text[]), ('lease', lease, '{durable,memory}'),
		('notify', notify, '{relay,transactional,off}'), ('keep', keep, '{all,no_payload,nothing}'),
		('group_on_failure', group_on_failure, '{wait,continue}')
	LOOP
		IF value <> ALL (allowed) THEN
			RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
				MESSAGE = format('invalid value for %s: "%s"', option, value),
				HINT = format('It is one of %s.', array_to_string(allowed, ', '));
		END IF;
	END LOOP;
	FOR option, number IN VALUES ('weight', weight), ('max_running', max_running),
		('group_max_running', group_max_running), ('max_length', max_length)
	LOOP
		IF number < 0 THEN
			RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
				MESSAGE = format('%s %s is out of range', option, number),
				HINT = 'It must be at least 1, or 0 for none.';
		END IF;
	END LOOP;
	PERFORM jobq_internal.check_limits(rate, throttle);
	IF octet_length(fair_by) NOT BETWEEN 1 AND 63 THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('fair_by "%s" must have 1 to 63 bytes', fair_by),
			HINT = 'It is the name of a header, role, or none.';
	END IF;
	IF jsonb_typeof(fair_weights) <> 'object' OR EXISTS (
		SELECT FROM jsonb_each(CASE jsonb_typeof(fair_weights) WHEN 'object' THEN fair_weights END) w
		WHERE jsonb_typeof(w.value) <> 'number' OR (w.value #>> '{}')::numeric NOT BETWEEN 1 AND 1000
			OR (w.value #>> '{}')::numeric % 1 <> 0)
		OR (SELECT count(*) FROM jsonb_each(CASE jsonb_typeof(fair_weights) WHEN 'object' THEN fair_weights END)) > 32
	THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('invalid value for fair_weights: %s', fair_weights),
			HINT = 'It is an object of at most 32 tenants and their weights, whole numbers from 1 to 1000, such as {"acme": 3}.';
	END IF;
	IF expires_after <> interval '0' AND expires_after NOT BETWEEN interval '1 ms' AND interval '36500 days' THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('expires_after %s is out of range', expires_after),
			HINT = 'It must be between 1 ms and 36500 days, or 0 for none.';
	END IF;
	IF name = 'default' THEN
		PERFORM setval('jobq.queue_id_seq', max(q.id)) FROM jobq.queue q
			HAVING max(q.id) > (SELECT last_value FROM jobq.queue_id_seq);
		INSERT INTO jobq.queue AS q (name) VALUES (alter_queue.name) ON CONFLICT ON CONSTRAINT queue_name_key DO NOTHING;
	END IF;
	UPDATE jobq.queue q SET
		mode = coalesce(left(alter_queue.mode, 1)::"char", q.mode),
		lease = coalesce(left(alter_queue.lease, 1)::"char", q.lease),
		notify = coalesce(left(alter_queue.notify, 1)::"char", q.notify),
		keep = coalesce(CASE alter_queue.keep WHEN 'all' THEN 'a' WHEN 'no_payload' THEN 'p' WHEN 'nothing' THEN 'n' END::"char", q.keep),
		group_on_failure = coalesce(left(alter_queue.group_on_failure, 1)::"char", q.group_on_failure),
		group_max_running = coalesce(alter_queue.group_max_running, q.group_max_running),
		weight = nullif(coalesce(alter_queue.weight, q.weight), 0),
		max_running = nullif(coalesce(alter_queue.max_running, q.max_running), 0),
		rate = nullif(coalesce(alter_queue.rate, q.rate), 'none'),
		throttle = nullif(coalesce(alter_queue.throttle, q.throttle), 'none'),
		fair_by = nullif(coalesce(alter_queue.fair_by, q.fair_by), 'none'),
		fair_weights = coalesce(alter_queue.fair_weights, q.fair_weights),
		max_length = nullif(coalesce(alter_queue.max_length, q.max_length), 0),
		expires_after_ms = nullif(coalesce((extract(epoch FROM alter_queue.expires_after) * 1000)::bigint, q.expires_after_ms), 0)
	WHERE q.name = alter_queue.name;
	IF NOT FOUND THEN
		RAISE EXCEPTION USING ERRCODE = 'undefined_object',
			MESSAGE = format('queue "%s" does not exist', name);
	END IF;
	IF num_nonnulls(weight, max_running, rate, throttle, group_max_running, group_on_failure, fair_by) > 0 THEN
		PERFORM jobq_internal.check_limited();
	END IF;
END
$$;
COMMENT ON FUNCTION jobq.alter_queue IS 'change the policy of a queue; null leaves an option as it is, 0 or none takes a limit away';

CREATE FUNCTION jobq_internal.check_limits(rate text, throttle text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_check_limits' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.check_limits(text, text) IS 'an error if rate or throttle cannot be understood';

CREATE FUNCTION jobq_internal.check_limited() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_check_limited_sql' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.check_limited() IS 'an error if more queues and kinds have limits than can';

CREATE FUNCTION jobq.drop_queue(name text, force boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_queue(text, boolean) IS 'forget a queue and its policy; an error while it has jobs or, unless forced, dead letters';

CREATE FUNCTION jobq.pause(queue text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_pause' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.pause(text) IS 'start no more jobs of a queue, which is created if it does not exist; survives a restart';

CREATE FUNCTION jobq.resume(queue text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_resume' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.resume(text) IS 'start jobs of a queue again';
