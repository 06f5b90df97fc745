-- What shared memory shows, for the views; jobq's clock.

CREATE FUNCTION jobq_internal.worker_slots(
	OUT pid int, OUT role oid, OUT pool int, OUT state text, OUT started_at timestamptz,
	OUT job_id bigint, OUT kind text, OUT attempt int, OUT job_started_at timestamptz,
	OUT progress real, OUT message text, OUT jobs_done bigint, OUT jobs_failed bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_worker_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.worker_slots() IS 'the workers of this database, for the views; two may show the same job for a moment, until one has it';

CREATE FUNCTION jobq_internal.scheduler_state(
	OUT pid int, OUT complete boolean, OUT ready_entries int, OUT wake_at timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_scheduler_state'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.scheduler_state() IS 'the scheduler of this database; no row if it is not served';

CREATE FUNCTION jobq_internal.activate() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_activate' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq_internal.activate() IS 'have the launcher look for this database';

CREATE FUNCTION jobq.clock() RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_clock' LANGUAGE C STRICT VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION jobq.clock() IS 'what jobq takes for the time of day';

CREATE FUNCTION jobq.test_clock("offset" interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_test_clock' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.test_clock(interval) IS 'put jobq''s clock forward against the system''s, for tests';

CREATE FUNCTION jobq_internal.limit_slots(
	OUT queue_id int, OUT kind_hash int, OUT running int, OUT tokens float8, OUT failures int, OUT rest_until timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_limit_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_slots() IS 'what limits count, for the view';

CREATE FUNCTION jobq_internal.group_slots(
	OUT group_id bigint, OUT running int, OUT waits_for bigint, OUT parked int, OUT more boolean,
	OUT tokens float8, OUT rest_until timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_group_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.group_slots() IS 'the groups that are under way, for the view';

CREATE FUNCTION jobq_internal.lease_slots(
	OUT job_id bigint, OUT consumer text, OUT role oid, OUT client text, OUT pid int,
	OUT since timestamptz, OUT lease_until timestamptz, OUT progress real, OUT message text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'jobq_lease_slots'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.lease_slots() IS 'what consumers hold of the jobs that the user may see, for the views';
