-- Contents of shared memory, for the views; the clock of jobq.

CREATE FUNCTION jobq_internal.worker_slots(
	OUT pid int, OUT role oid, OUT pool int, OUT state text, OUT started_at timestamptz,
	OUT job_id bigint, OUT kind text, OUT attempt int, OUT job_started_at timestamptz,
	OUT progress real, OUT message text, OUT completed bigint, OUT failed bigint, OUT last_jobs bigint[])
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_worker_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION jobq_internal.worker_slots() IS 'workers of this database, for the views; for a moment, two workers may show the same job';

CREATE FUNCTION jobq_internal.scheduler_state(
	OUT pid int, OUT complete boolean, OUT ready_entries int, OUT wake_at timestamptz, OUT notifications int,
	OUT copied boolean)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_scheduler_state'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.scheduler_state() IS 'state of this database''s scheduler; no row if the database is not served';

CREATE FUNCTION jobq_internal.scheduler_troubles(OUT what text, OUT since timestamptz, OUT failures bigint, OUT error text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_scheduler_troubles'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.scheduler_troubles() IS 'failing tasks of this database''s scheduler, with their errors';

CREATE FUNCTION jobq_internal.activate() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_activate' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.activate() IS 'make the launcher start a scheduler here, and all sessions check the version again';

CREATE FUNCTION jobq_internal.clock() RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_clock' LANGUAGE C STRICT VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.clock() IS 'return the current time of jobq: the time of the server, moved forward by test_clock()';

CREATE FUNCTION jobq_internal.limit_slots(
	OUT queue_id int, OUT kind_hash int, OUT running int, OUT tokens float8, OUT failures int, OUT rest_until timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_limit_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_slots() IS 'counters of the limits, for the view';

CREATE FUNCTION jobq_internal.key_slot(limiter int, key text,
	OUT tokens float8, OUT failures int, OUT rest_until timestamptz)
AS 'MODULE_PATHNAME', 'jobq_key_slot'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.key_slot(int, text) IS 'counters of a limiter''s key, for the view';

CREATE FUNCTION jobq_internal.group_slots(
	OUT group_id bigint, OUT running int, OUT waits_for bigint, OUT waits_until timestamptz, OUT parked int, OUT more boolean)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_group_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.group_slots() IS 'groups under way, for the view';

CREATE FUNCTION jobq_internal.lease_slots(
	OUT job_id bigint, OUT consumer text, OUT role oid, OUT client text, OUT pid int,
	OUT since timestamptz, OUT lease_until timestamptz, OUT progress real, OUT message text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_lease_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 50;
COMMENT ON FUNCTION jobq_internal.lease_slots() IS 'jobs that consumers hold and the user may see, for the views';

CREATE FUNCTION jobq_internal.member_slots(
	OUT job_id bigint, OUT attempt int, OUT pid int, OUT started_at timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_member_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION jobq_internal.member_slots() IS 'jobs that workers run together and the user may see, for the views';

-- DISTINCT also shows the planner that a job has at most one row here.  Without DISTINCT,
-- the planner tends to hash all jobs instead of these rows.
CREATE VIEW jobq_internal.running_jobs WITH (security_barrier) AS
	SELECT DISTINCT ON (r.job_id) r.job_id, r.attempt, r.progress, r.message, r.pid, r.started_at
	FROM (SELECT w.job_id, w.attempt, w.progress, w.message, w.pid, w.job_started_at AS started_at
			FROM jobq_internal.worker_slots() w
		UNION ALL
		SELECT m.job_id, m.attempt, NULL, NULL, m.pid, m.started_at
			FROM jobq_internal.member_slots() m
		UNION ALL
		SELECT l.job_id, NULL, l.progress, l.message, l.pid, l.since
			FROM jobq_internal.lease_slots() l) r
	WHERE r.job_id IS NOT NULL
	ORDER BY r.job_id;
COMMENT ON VIEW jobq_internal.running_jobs IS 'jobs that workers run or consumers hold, for the views';

CREATE FUNCTION jobq_internal.live_log(id bigint, log jsonb) RETURNS jsonb
AS 'MODULE_PATHNAME', 'jobq_live_log' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.live_log(bigint, jsonb) IS 'log of a running job: the lines of earlier attempts (log) and of the running attempt, for the views';

CREATE FUNCTION jobq_internal.live_state(running boolean, run_at timestamptz, expires_at timestamptz, retried boolean, suspended boolean) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_live_state' LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.live_state(boolean, timestamptz, timestamptz, boolean, boolean) IS 'state of a live job, for the views';

CREATE FUNCTION jobq_internal.handler_version(handler text) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_handler_version' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.handler_version(text) IS 'version of a handler: a hash of its source, for the view kinds; null: there is no such function';

CREATE FUNCTION jobq_internal.may_see_support(internal) RETURNS internal
AS 'MODULE_PATHNAME', 'jobq_may_see_support' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.may_see_support(internal) IS 'estimates of may_see(), for the planner';

-- Parallel restricted, so that the planner reads the views in the order of an index, and
-- does not sort the rows in several processes.
CREATE FUNCTION jobq_internal.may_see(role oid, queue_id int) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_may_see' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED SUPPORT jobq_internal.may_see_support;
COMMENT ON FUNCTION jobq_internal.may_see(oid, int) IS 'true if the user may see jobs of the role in the queue; 0: other objects of the role, without a queue';

CREATE FUNCTION jobq_internal.may_read(role oid, queue_id int) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_may_read' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.may_read(oid, int) IS 'true if the user may also see payload, result and log of such jobs';

CREATE FUNCTION jobq_internal.may_see_queue(queue_id int, open boolean) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_may_see_queue_sql' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.may_see_queue(int, boolean) IS 'true if the user may see the queue; open: the queue is open to all producers';

CREATE FUNCTION jobq_internal.may_use() RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_may_use_sql' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.may_use() IS 'true if the user has any privilege';

-- A role with the privilege monitor does not see details and contexts, which may quote data.
CREATE FUNCTION jobq_internal.without_details(errors jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT pg_catalog.jsonb_agg(e OPERATOR(pg_catalog.-) '{detail,hint,context,progress_message}'::pg_catalog.text[])
	FROM pg_catalog.jsonb_array_elements(errors) e);
COMMENT ON FUNCTION jobq_internal.without_details(jsonb) IS 'failed attempts of a job without the fields that may quote data';

-- generate_series() with the number of rows that a job's errors have.  With PostgreSQL's estimate
-- of 1000 rows, the planner expects a hundred times the work, and compiles the query.
CREATE FUNCTION jobq_internal.indexes(first int, last int) RETURNS SETOF int
AS 'MODULE_PATHNAME', 'jobq_indexes' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 1;
COMMENT ON FUNCTION jobq_internal.indexes(int, int) IS 'the numbers from the first to the last, for short arrays';

CREATE FUNCTION jobq_internal.queue_counts(queue_id int, running bigint[],
	OUT ready bigint, OUT scheduled bigint, OUT blocked bigint, OUT running_jobs bigint, OUT dead bigint, OUT oldest_ready timestamptz, OUT exact boolean)
RETURNS record AS 'MODULE_PATHNAME', 'jobq_queue_counts'
LANGUAGE C STRICT STABLE PARALLEL RESTRICTED COST 10000;
COMMENT ON FUNCTION jobq_internal.queue_counts(int, bigint[]) IS 'number of a queue''s jobs in each state, given the ids of running jobs, for the view';
