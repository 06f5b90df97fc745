-- Schedules: repeated jobs.

CREATE TABLE jobq_internal.schedule (
	name text COLLATE "C" CONSTRAINT schedule_pkey PRIMARY KEY,
	role jobq_internal.role NOT NULL,
	cron text NOT NULL,
	timezone text NOT NULL,
	missed text NOT NULL CHECK (missed IN ('skip', 'once', 'all')),
	overlap text NOT NULL CHECK (overlap IN ('allow', 'skip', 'queue')),
	paused boolean NOT NULL DEFAULT false,
	dormant boolean NOT NULL DEFAULT false,
	held boolean NOT NULL DEFAULT false,
	anchor timestamptz NOT NULL,
	next_tick timestamptz,
	last_tick timestamptz,
	last_job_id bigint,
	last_error text,
	kind text NOT NULL,
	payload jsonb NOT NULL,
	options jsonb
) WITH (fillfactor = 50);
COMMENT ON TABLE jobq_internal.schedule IS 'schedules and their next ticks; no index except the primary key, so that updates stay HOT';
COMMENT ON COLUMN jobq_internal.schedule.dormant IS 'whether the schedule arrived by logical replication, and ticks on the publisher';
COMMENT ON COLUMN jobq_internal.schedule.held IS 'whether the tick next_tick is due, and waits until the last job finishes';
COMMENT ON COLUMN jobq_internal.schedule.anchor IS 'the start of the count of an interval, and of a recurrence rule';
COMMENT ON COLUMN jobq_internal.schedule.next_tick IS 'the next tick; null if the schedule is paused, or after a restore';
COMMENT ON COLUMN jobq_internal.schedule.last_tick IS 'the tick of the last job';
COMMENT ON COLUMN jobq_internal.schedule.options IS 'options of the jobs, with expires_after and jitter, as given to schedule()';
COMMENT ON COLUMN jobq_internal.schedule.last_error IS 'why the last tick could not enqueue a job; jobq tries again';

SELECT pg_catalog.pg_extension_config_dump('jobq_internal.schedule', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

CREATE FUNCTION jobq.schedule(
	name text,
	cron text,
	kind text DEFAULT NULL,
	payload jsonb DEFAULT '{}',
	timezone text DEFAULT 'UTC',
	missed text DEFAULT 'once',
	overlap text DEFAULT 'allow',
	options jsonb DEFAULT NULL,
	context jsonb DEFAULT NULL,
	sql text DEFAULT NULL,
	transaction boolean DEFAULT true,
	database text DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_schedule'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.schedule IS 'enqueue a job repeatedly, by a cron expression, an interval, or a recurrence rule; changes an existing schedule
name: the name of the schedule
cron: minute hour day month weekday, with seconds first if there are six fields; @daily and the like; every and an interval; or RRULE: and an iCalendar recurrence rule
kind: the kind of the jobs; omitted with sql
payload: the input of the handler or consumer
timezone: the time zone of the cron expression or recurrence rule
missed: the effect of missed ticks, for example while the server was down: skip, once, or all
overlap: the effect of a tick while the last job is not over: allow, skip, or queue
options: options of enqueue() by name, except times and unique keys; also expires_after, and jitter (the upper limit of a random delay), both counted from the tick
context: settings for the jobs by name; further settings on the carry list of the queue have the values of this session
sql: instead of kind and payload: the statement of the jobs, or several, in a transaction; each job has one attempt, unless options contain max_attempts
transaction: false for a statement that cannot run within a transaction
database: another database for the statement, as in enqueue_sql()';

CREATE FUNCTION jobq.unschedule(name text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_unschedule' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.unschedule(text) IS 'drop a schedule; enqueued jobs stay; a schedule created again in the same transaction with the same times goes on
name: the name of the schedule';

CREATE FUNCTION jobq.run_schedule(name text) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_run_schedule' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.run_schedule(text) IS 'enqueue a job of a schedule now, as the role of the schedule; the ticks stay the same
name: the name of the schedule
returns: the id of the job';

CREATE FUNCTION jobq.next_ticks(cron text, timezone text DEFAULT 'UTC', after timestamptz DEFAULT NULL, n int DEFAULT 1)
RETURNS SETOF timestamptz AS 'MODULE_PATHNAME', 'jobq_cron_next_sql'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq.next_ticks(text, text, timestamptz, int) IS 'return the next ticks of an expression
cron: an expression as in schedule()
timezone: the time zone of the expression
after: return ticks after this time; null: after now
n: the number of ticks';

CREATE FUNCTION jobq_internal.schedule_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_schedule_changed' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.schedule_changed() IS 'make the scheduler read the schedules again (trigger function)';

CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.schedule
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.schedule_changed();
COMMENT ON TRIGGER changed ON jobq_internal.schedule IS 'makes the scheduler read the schedules again';

CREATE FUNCTION jobq_internal.schedule_restored() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NEW.next_tick <= jobq_internal.clock() THEN
		NEW.next_tick := NULL;
		NEW.held := false;
	END IF;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq_internal.schedule_restored() IS 'leave ticks between a dump and the restore to the original database (trigger function)';

CREATE TRIGGER restored BEFORE INSERT ON jobq_internal.schedule
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.schedule_restored();
COMMENT ON TRIGGER restored ON jobq_internal.schedule IS 'prevents past ticks from firing again';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE ON jobq_internal.schedule
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.replicated();
ALTER TABLE jobq_internal.schedule ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.schedule IS 'fires for logical replication only';

CREATE VIEW jobq.schedules WITH (security_barrier) AS
	SELECT s.name,
		CASE WHEN s.dormant THEN 'dormant' WHEN s.paused THEN 'paused'
			WHEN s.last_error IS NOT NULL OR o.oid IS NULL THEN 'failing'
			WHEN s.held THEN 'waiting' ELSE 'active' END AS state,
		s.cron, s.timezone, s.next_tick, s.last_tick, s.last_job_id,
		CASE WHEN j.id IS NULL THEN
				coalesce((SELECT 'dead' FROM jobq_internal.dead_letter f WHERE f.id = s.last_job_id),
					(SELECT CASE a.state WHEN 'c' THEN 'completed' WHEN 'x' THEN 'cancelled' ELSE 'expired' END
					FROM jobq_internal.archive a WHERE a.id = s.last_job_id))
			ELSE jobq_internal.live_state(r.job_id IS NOT NULL OR j.lease_token IS NOT NULL,
				j.run_at, j.expires_at, j.errors IS NOT NULL, j.waits_for IS NOT NULL) END AS last_state,
		coalesce(s.last_error, CASE WHEN o.oid IS NULL THEN pg_catalog.format('role with OID %s does not exist', s.role::pg_catalog.oid) END,
			CASE WHEN j.id IS NULL THEN (SELECT f.error FROM jobq_internal.dead_letter f WHERE f.id = s.last_job_id)
			ELSE j.errors -> -1 ->> 'message' END) AS last_error, s.role::pg_catalog.regrole AS role, s.kind, CASE WHEN jobq_internal.may_read(s.role::pg_catalog.oid, 0) THEN s.payload END AS payload,
		s.missed, s.overlap, CASE WHEN jobq_internal.may_read(s.role::pg_catalog.oid, 0) THEN s.options END AS options
	FROM jobq_internal.schedule s
	LEFT JOIN pg_catalog.pg_roles o ON o.oid = s.role::pg_catalog.oid
	LEFT JOIN jobq_internal.job j ON j.id = s.last_job_id
	LEFT JOIN jobq_internal.running_jobs r ON r.job_id = s.last_job_id
	WHERE jobq_internal.may_see(s.role::pg_catalog.oid, 0);
COMMENT ON VIEW jobq.schedules IS 'schedules: active, waiting (for the last job), failing, paused, or dormant (replicated); with the next tick and the state of the last job';
