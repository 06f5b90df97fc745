-- Functions.  Those in C bring no SET clause: they use direct heap access, or
-- pin search_path themselves (src/spi.c).

-- Producing

CREATE FUNCTION jobq.enqueue(
	kind text,
	payload jsonb DEFAULT '{}',
	queue text DEFAULT NULL,
	priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL,
	delay interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_until timestamptz DEFAULT NULL,
	backoff text DEFAULT NULL,
	timeout interval DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL,
	unique_key text DEFAULT NULL,
	unique_for interval DEFAULT NULL,
	unique_until text DEFAULT NULL,
	on_conflict text DEFAULT NULL,
	group_key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	watch boolean DEFAULT NULL)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_enqueue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue IS 'enqueue a job in this transaction; returns its id';

CREATE FUNCTION jobq.enqueue_many(
	kind text,
	payloads jsonb[],
	queue text DEFAULT NULL,
	priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL,
	delay interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_until timestamptz DEFAULT NULL,
	backoff text DEFAULT NULL,
	timeout interval DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL,
	unique_key text DEFAULT NULL,
	unique_for interval DEFAULT NULL,
	unique_until text DEFAULT NULL,
	on_conflict text DEFAULT NULL,
	group_key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	watch boolean DEFAULT NULL)
RETURNS SETOF bigint AS 'MODULE_PATHNAME', 'jobq_enqueue_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_many IS 'enqueue a job for each payload; returns the ids in order';

CREATE VIEW jobq.inbox AS
	SELECT NULL::bigint AS id, NULL::text AS kind, NULL::jsonb AS payload,
		NULL::text AS queue, NULL::int AS priority, NULL::timestamptz AS run_at,
		NULL::interval AS delay, NULL::int AS max_attempts,
		NULL::timestamptz AS retry_until, NULL::text AS backoff,
		NULL::interval AS timeout, NULL::timestamptz AS expires_at,
		NULL::text AS unique_key, NULL::interval AS unique_for,
		NULL::text AS unique_until, NULL::text AS on_conflict,
		NULL::text AS group_key, NULL::jsonb AS headers, NULL::boolean AS watch
	WHERE false;
COMMENT ON VIEW jobq.inbox IS 'INSERT and COPY into it enqueue; it is always empty';

CREATE FUNCTION jobq.inbox_insert() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_inbox_insert' LANGUAGE C;
COMMENT ON FUNCTION jobq.inbox_insert() IS 'trigger function of the view inbox';

CREATE TRIGGER enqueue INSTEAD OF INSERT ON jobq.inbox
	FOR EACH ROW EXECUTE FUNCTION jobq.inbox_insert();
COMMENT ON TRIGGER enqueue ON jobq.inbox IS 'enqueues the row';

CREATE FUNCTION jobq.enqueue_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_enqueue_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.enqueue_trigger() IS 'trigger function (kind [, queue]): each changed row becomes a job {op, table, new, old}';

CREATE FUNCTION jobq.perform(kind text, payload jsonb DEFAULT '{}') RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_perform' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.perform(text, jsonb) IS 'run the handler of a kind now, in this transaction';

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

CREATE FUNCTION jobq.notify(channel text, payload text DEFAULT '') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_notify' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.notify(text, text) IS 'NOTIFY through the relay: after the commit, in batches, without its cluster-wide lock';

CREATE FUNCTION jobq.notify_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_notify_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.notify_trigger() IS 'trigger function (channel): NOTIFY through the relay';

-- Handlers

CREATE FUNCTION jobq.register(
	kind text,
	handler regprocedure,
	queue text DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	backoff text DEFAULT NULL,
	timeout interval DEFAULT NULL,
	fail_on_timeout boolean DEFAULT NULL,
	max_exceptions int DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate text DEFAULT NULL,
	throttle text DEFAULT NULL,
	on_failure regprocedure DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_register'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.register IS 'declare which function or procedure runs a kind of job';

CREATE FUNCTION jobq.unregister(kind text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_unregister' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.unregister(text) IS 'forget the handler of a kind';

CREATE FUNCTION jobq.current_job() RETURNS jobq.job_context
AS 'MODULE_PATHNAME', 'jobq_current_job' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.current_job() IS 'the job that this session runs';

CREATE FUNCTION jobq.set_progress(percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_progress' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.set_progress(real, text) IS 'show how far the current job is, at once';

CREATE FUNCTION jobq.log(message text, level text DEFAULT 'info') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_log' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.log(text, text) IS 'keep a line with the current job, also if the handler fails; level: debug, info, warning, error';

CREATE FUNCTION jobq.should_stop() RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_should_stop' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.should_stop() IS 'whether the current job had better end soon';

CREATE FUNCTION jobq.snooze(delay interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_snooze' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.snooze(interval) IS 'when the handler returns, its effects commit and the job runs again later; no attempt is charged';

CREATE FUNCTION jobq.release(delay interval DEFAULT '0') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_release_current' LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.release(interval) IS 'like snooze, and the attempt is charged';

CREATE FUNCTION jobq.discard(reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_discard' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.discard(text) IS 'when the handler returns, its effects commit and the job is finished as cancelled';

CREATE FUNCTION jobq.fail(reason text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_fail' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.fail(text) IS 'the handler''s effects roll back and the job fails for good';

-- Consuming from outside

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

CREATE FUNCTION jobq.progress(id bigint, token bigint, percent real, message text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_progress' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.progress(bigint, bigint, real, text) IS 'show how far the job is, at once';

CREATE FUNCTION jobq.lease_slots(
	OUT job_id bigint, OUT consumer text, OUT role oid, OUT client text, OUT pid int,
	OUT since timestamptz, OUT lease_until timestamptz, OUT progress real, OUT message text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_lease_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.lease_slots() IS 'what consumers hold of the jobs that the user may see, for the views';

-- Waiting

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

-- Operating

CREATE FUNCTION jobq.cancel(id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel(bigint) IS 'cancel a job, or have the worker that runs it stop; false if it had finished';

CREATE FUNCTION jobq.retry(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_retry' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry(bigint) IS 'run a dead letter again, with all its attempts; or a job that waits for its next attempt now';

CREATE FUNCTION jobq.forget(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_forget' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.forget(bigint) IS 'delete a dead letter';

CREATE FUNCTION jobq.reschedule(id bigint, run_at timestamptz) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_reschedule' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reschedule(bigint, timestamptz) IS 'have a job that waits run at another time';

CREATE FUNCTION jobq.set_priority(id bigint, priority int) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_set_priority' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.set_priority(bigint, int) IS 'give a job that waits another priority';

CREATE FUNCTION jobq.retry_all(queue text DEFAULT NULL, kind text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_retry_all' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry_all(text, text) IS 'run all dead letters again, or those of a queue or kind; returns their number';

CREATE FUNCTION jobq.flush_failed(queue text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_flush_failed' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.flush_failed(text) IS 'delete all dead letters, or those of a queue; returns their number';

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

CREATE FUNCTION jobq.run_next(queues text[]) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_run_next' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.run_next(text[]) IS 'run one ready job of these queues, or of any if null, in this transaction; for jobq.work()';

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
	give_up timestamptz;
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
	LOOP
		EXIT WHEN jobs OPERATOR(pg_catalog.>=) max_jobs
			OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) give_up;
		job_id := jobq.run_next(queues);
		COMMIT;
		IF job_id IS NOT NULL THEN
			jobs := jobs OPERATOR(pg_catalog.+) 1;
		ELSIF NOT stop_when_empty AND NOT once THEN
			PERFORM pg_catalog.pg_sleep(0.1);
		END IF;
		EXIT WHEN once OR (job_id IS NULL AND stop_when_empty);
	END LOOP;
END
$$;
COMMENT ON PROCEDURE jobq.work IS 'be a worker in this session, for tests and scripts';

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
	PERFORM jobq.check_limits(rate, throttle);
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
		PERFORM jobq.check_limited();
	END IF;
END
$$;
COMMENT ON FUNCTION jobq.alter_queue IS 'change the policy of a queue; null leaves an option as it is, 0 or none takes a limit away';

CREATE FUNCTION jobq.kind_hash(kind text) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_kind_hash_sql' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq.kind_hash(text) IS 'by which the limits of a kind are found';

CREATE FUNCTION jobq.limit_slots(
	OUT queue_id int, OUT kind_hash int, OUT running int, OUT tokens float8, OUT failures int, OUT rest_until timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_limit_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.limit_slots() IS 'what limits count, for the view';

CREATE FUNCTION jobq.group_slots(
	OUT group_id bigint, OUT running int, OUT waits_for bigint, OUT parked int, OUT more boolean,
	OUT tokens float8, OUT rest_until timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_group_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.group_slots() IS 'the groups that are under way, for the view';

CREATE FUNCTION jobq.check_limits(rate text, throttle text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_check_limits' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION jobq.check_limits(text, text) IS 'an error if rate or throttle cannot be understood';

CREATE FUNCTION jobq.check_limited() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_check_limited_sql' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.check_limited() IS 'an error if more queues and kinds have limits than can';

CREATE FUNCTION jobq.drop_queue(name text, force boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_queue(text, boolean) IS 'forget a queue and its policy; an error while it has jobs or, unless forced, dead letters';

CREATE FUNCTION jobq.pause(queue text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_pause' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.pause(text) IS 'start no more jobs of a queue, which is created if it does not exist; survives a restart';

CREATE FUNCTION jobq.resume(queue text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_resume' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.resume(text) IS 'start jobs of a queue again';

-- Inside

CREATE FUNCTION jobq.invalidate() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_invalidate' LANGUAGE C;
COMMENT ON FUNCTION jobq.invalidate() IS 'trigger function: tells all sessions that their cached queues or handlers are outdated';

CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq.queue
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.invalidate();
ALTER TABLE jobq.queue ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq.queue IS 'drops cached queues';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq.handler
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.invalidate();
ALTER TABLE jobq.handler ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq.handler IS 'drops cached handlers';

CREATE FUNCTION jobq.replicated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	NEW.dormant := true;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq.replicated() IS 'trigger function: a job that logical replication writes does not run here';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE ON jobq.job
	FOR EACH ROW EXECUTE FUNCTION jobq.replicated();
ALTER TABLE jobq.job ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq.job IS 'fires for logical replication only';

CREATE FUNCTION jobq.loaded() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_loaded' LANGUAGE C;
COMMENT ON FUNCTION jobq.loaded() IS 'trigger function: jobs were written past jobq''s functions, by a restore';

CREATE TRIGGER loaded AFTER INSERT OR UPDATE ON jobq.job
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.loaded();
COMMENT ON TRIGGER loaded ON jobq.job IS 'has the scheduler look at everything';

CREATE FUNCTION jobq.worker_slots(
	OUT pid int, OUT role oid, OUT pool int, OUT state text, OUT started_at timestamptz,
	OUT job_id bigint, OUT kind text, OUT attempt int, OUT job_started_at timestamptz,
	OUT progress real, OUT message text, OUT jobs_done bigint, OUT jobs_failed bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_worker_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.worker_slots() IS 'the workers of this database, for the views; two may show the same job for a moment, until one has it';

CREATE FUNCTION jobq.scheduler_state(
	OUT pid int, OUT complete boolean, OUT ready_entries int, OUT wake_at timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_scheduler_state'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq.scheduler_state() IS 'the scheduler of this database; no row if it is not served';

CREATE FUNCTION jobq.activate() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_activate' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.activate() IS 'have the launcher look for this database';

CREATE FUNCTION jobq.clock() RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_clock' LANGUAGE C STRICT VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION jobq.clock() IS 'what jobq takes for the time of day';

CREATE FUNCTION jobq.test_clock("offset" interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_test_clock' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.test_clock(interval) IS 'put jobq''s clock forward against the system''s, for tests';
