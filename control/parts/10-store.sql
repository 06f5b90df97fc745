-- The tables.  Users have no privileges on them; all access is through functions
-- and views.  The order of the columns is known to src/store/.

CREATE TABLE jobq_internal.limiter (
	name text CONSTRAINT limiter_pkey PRIMARY KEY,
	max_running int,
	rate text,
	throttle text,
	by text,
	cost text,
	when_taken text NOT NULL DEFAULT 'wait'
);
COMMENT ON TABLE jobq_internal.limiter IS 'limits that several kinds and queues share';
COMMENT ON COLUMN jobq_internal.limiter.cost IS 'qualified signature of the function that says how many tokens a job costs; null: one';
COMMENT ON COLUMN jobq_internal.limiter.by IS 'where jobs have the key, each of which has the limits for itself; null: all have them together';
COMMENT ON COLUMN jobq_internal.limiter.when_taken IS 'what becomes of a job that is due while all places are taken: wait, release and a time, skip, or replace';

CREATE TABLE jobq_internal.queue (
	id int GENERATED ALWAYS AS IDENTITY CONSTRAINT queue_pkey PRIMARY KEY,
	paused boolean NOT NULL DEFAULT false,
	name text COLLATE "C" NOT NULL CONSTRAINT queue_name_key UNIQUE,
	paused_tenants text[],
	paused_kinds text[],
	made_by text COLLATE "C",
--list QUEUE_SETTING:	@1 @3 @4
);
COMMENT ON TABLE jobq_internal.queue IS 'queues and their settings';
COMMENT ON COLUMN jobq_internal.queue.paused IS 'no more of its jobs start';
COMMENT ON COLUMN jobq_internal.queue.paused_tenants IS 'no more of the jobs of these tenants start';
COMMENT ON COLUMN jobq_internal.queue.paused_kinds IS 'no more of its jobs of these kinds start';
COMMENT ON COLUMN jobq_internal.queue.made_by IS 'the role that has made it by using it first, if it counts for jobq.max_queues_per_role';
--each QUEUE_SETTING:COMMENT ON COLUMN jobq_internal.queue.@1 IS '@'7';

CREATE INDEX queue_made_by ON jobq_internal.queue (made_by) WHERE made_by IS NOT NULL;
COMMENT ON INDEX jobq_internal.queue_made_by IS 'the queues that count for a role';

-- A table of its own, because a dump leaves its rows out where a role was dropped:
-- then no job of the queue runs, whoever has the role's number where it is restored.
-- By its name it is restored before the queues.
CREATE TABLE jobq_internal.delegation (
	queue_id int CONSTRAINT delegation_pkey PRIMARY KEY,
	set_by regrole NOT NULL
);
COMMENT ON TABLE jobq_internal.delegation IS 'who has said as which role the jobs of a queue run, and must be able to become it';
COMMENT ON COLUMN jobq_internal.delegation.set_by IS 'the role that has set run_as of the queue';

CREATE TABLE jobq_internal.handler (
	kind text COLLATE "C" CONSTRAINT handler_pkey PRIMARY KEY,
	handler text NOT NULL,
	queue text,
	max_attempts int,
	backoff text,
	timeout_ms int,
	fail_on_timeout boolean,
	max_exceptions int,
	max_running int,
	rate text,
	throttle text,
	on_failure text,
	carry text[],
	recycle text,
	retry_on text[],
	fail_on text[],
	max_memory bigint,
	max_temp bigint,
	max_wal bigint,
	limiter text CONSTRAINT handler_limiter_fkey REFERENCES jobq_internal.limiter
);
COMMENT ON TABLE jobq_internal.handler IS 'which function runs a kind of job, and the defaults of the kind';
COMMENT ON COLUMN jobq_internal.handler.handler IS 'qualified signature; text, because a column of type regprocedure would stop pg_upgrade';

CREATE SEQUENCE jobq_internal.job_id_seq;
COMMENT ON SEQUENCE jobq_internal.job_id_seq IS 'ids of jobs';

CREATE TABLE jobq_internal.job (
	id bigint NOT NULL,
	run_at timestamptz NOT NULL,
	enqueued_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role regrole NOT NULL,
	run_as regrole NOT NULL,
	flow int NOT NULL,
	attempt int NOT NULL,
	max_attempts int NOT NULL,
	exceptions smallint NOT NULL,
	crashes smallint NOT NULL,
	watch boolean NOT NULL,
	dormant boolean NOT NULL,
	kind text NOT NULL,
	payload jsonb NOT NULL,
	timeout_ms int,
	retry_until timestamptz,
	expires_at timestamptz,
	lease_token bigint,
	lease_until timestamptz,
	headers jsonb,
	backoff text,
	errors jsonb,
	group_id bigint,
	group_key text,
	group_held timestamptz,
	unique_until "char",
	unique_queue int,
	unique_key text,
	batch_id bigint,
	free_delay_ms bigint,
	free_run_at timestamptz,
	log jsonb,
	context jsonb,
	tenant text,
	tags text[],
	limit_cost int,
	together smallint,
	CONSTRAINT job_pkey PRIMARY KEY (id)
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE jobq_internal.job IS 'live jobs: a row is written once and deleted once';
COMMENT ON COLUMN jobq_internal.job.run_at IS 'infinity: blocked, it waits for other jobs';
COMMENT ON COLUMN jobq_internal.job.role IS 'whose it is: who has enqueued it';
COMMENT ON COLUMN jobq_internal.job.run_as IS 'as which role it runs: its own, unless its queue says otherwise';
COMMENT ON COLUMN jobq_internal.job.flow IS 'hash of what has a lane of its own: a kind with limits or a named limiter, a key of that, a tenant of a queue that is fair or limits them; 0: none';
COMMENT ON COLUMN jobq_internal.job.limit_cost IS 'how many tokens it costs at a limiter that asks; 0: it passes that by; null: one';
COMMENT ON COLUMN jobq_internal.job.together IS 'a consumer was lost that held it with other jobs: with how many of these one call of reserve() returns it; below 1: alone, after as many more losses; null: with any';
COMMENT ON COLUMN jobq_internal.job.group_id IS 'hash of queue and group_key, even; or of the role''s number and group_key, odd';
COMMENT ON COLUMN jobq_internal.job.group_held IS 'the job has begun before, and came back then for the first time: its group waits for it, for as long as the queue has patience';
COMMENT ON COLUMN jobq_internal.job.attempt IS 'attempts that were charged so far';
COMMENT ON COLUMN jobq_internal.job.log IS 'what its handler has told by log()';
COMMENT ON COLUMN jobq_internal.job.unique_until IS 'when it gives its unique key back: f(inish), s(tart)';
COMMENT ON COLUMN jobq_internal.job.dormant IS 'brought here by logical replication: runs on the publisher';
COMMENT ON COLUMN jobq_internal.job.free_delay_ms IS 'of a blocked job: how long it waits when it is free';
COMMENT ON COLUMN jobq_internal.job.free_run_at IS 'of a blocked job: when it may run at the earliest';

-- No predicate and no column that a lease touches, so that leases stay HOT.
CREATE INDEX job_ready ON jobq_internal.job (queue_id, priority, run_as, flow, run_at, id);
COMMENT ON INDEX jobq_internal.job_ready IS 'the lanes, in order';

CREATE INDEX job_group ON jobq_internal.job (group_id, priority, run_at, id) WHERE group_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_group IS 'the groups, each in its order';

CREATE INDEX job_group_held ON jobq_internal.job (group_id, group_held) WHERE group_held IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_group_held IS 'the jobs for which their groups wait, or have waited too long';

CREATE INDEX job_batch ON jobq_internal.job (batch_id, id) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_batch IS 'the live jobs of a batch';

-- Not an index on the jobs: whoever enqueues would wait there for the handler
-- that runs, which has deleted its job's row.
CREATE TABLE jobq_internal.unique_key (
	job_id bigint NOT NULL,
	held_until timestamptz,
	role regrole NOT NULL,
	queue_id int NOT NULL,
	until "char" NOT NULL CHECK (until IN ('f', 's', 'w')),
	kind text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	CONSTRAINT unique_key_pkey PRIMARY KEY (key, kind, role, queue_id)
);
COMMENT ON TABLE jobq_internal.unique_key IS 'which job holds a unique key';
COMMENT ON COLUMN jobq_internal.unique_key.queue_id IS 'the queue in which the key is one; 0: it is one in all queues';
COMMENT ON COLUMN jobq_internal.unique_key.kind IS 'the kind of which the key is one; empty: it is one of all kinds';
COMMENT ON COLUMN jobq_internal.unique_key.held_until IS 'the window''s end: held until then even if the job is over';
COMMENT ON COLUMN jobq_internal.unique_key.until IS 'the job holds it until its f(inish), its s(tart), or not any more: w(indow)';

-- Beside the jobs and not in their rows: it is the same when they move between the
-- tables, and costs nothing where no uuid is given.
CREATE TABLE jobq_internal.job_uuid (
	job_id bigint NOT NULL,
	role regrole NOT NULL,
	uuid uuid NOT NULL,
	CONSTRAINT job_uuid_pkey PRIMARY KEY (uuid, role)
);
COMMENT ON TABLE jobq_internal.job_uuid IS 'which job a role knows by a uuid';

CREATE SEQUENCE jobq_internal.lease_token_seq;
COMMENT ON SEQUENCE jobq_internal.lease_token_seq IS 'above all tokens that leases have, or may have, been given so far';

-- A row for each call of reserve(); the scheduler deletes those that no lease
-- needs any more.
CREATE TABLE jobq_internal.lease (
	id bigint NOT NULL,
	token bigint NOT NULL,
	lease_until timestamptz NOT NULL,
	since timestamptz NOT NULL,
	role regrole NOT NULL,
	consumer text NOT NULL,
	job_ids bigint[] NOT NULL,
	job_versions xid[] NOT NULL,
	held int,
	CONSTRAINT lease_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE jobq_internal.lease IS 'what consumers hold, so that it is known after a restart';
COMMENT ON COLUMN jobq_internal.lease.job_versions IS 'xmin of the jobs'' rows: one that was written anew since is not held any more';
COMMENT ON COLUMN jobq_internal.lease.held IS 'how many other jobs the consumer held, if it said so';
COMMENT ON COLUMN jobq_internal.lease.id IS 'the token of a reservation; a number of its own for an extension';

CREATE TABLE jobq_internal.archive (
	finished_at timestamptz NOT NULL,
	id bigint NOT NULL,
	enqueued_at timestamptz NOT NULL,
	started_at timestamptz,
	run_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role regrole NOT NULL,
	attempt int NOT NULL,
	max_attempts int NOT NULL,
	state "char" NOT NULL,
	kind text NOT NULL,
	payload jsonb,
	headers jsonb,
	result jsonb,
	reason text,
	group_key text,
	batch_id bigint,
	log jsonb,
	context jsonb,
	errors jsonb,
	tenant text,
	tags text[],
	cost jsonb,
	limit_cost int
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE jobq_internal.archive IS 'jobs that are completed, cancelled or expired, a partition a day';
COMMENT ON COLUMN jobq_internal.archive.state IS 'c(ompleted), x: cancelled, e(xpired)';

COMMENT ON COLUMN jobq_internal.archive.errors IS 'its attempts that failed before';

-- Each partition has indexes of its own, not one of the parent's, which
-- would have to name finished_at, too, and which pg_dump would make twice.
CREATE TABLE jobq_internal.archive_default PARTITION OF jobq_internal.archive
	(CONSTRAINT archive_default_pkey PRIMARY KEY (id)) DEFAULT;
COMMENT ON TABLE jobq_internal.archive_default IS 'finished jobs of days for which the scheduler has made no partition';
CREATE INDEX archive_default_batch ON jobq_internal.archive_default (batch_id, state) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.archive_default_batch IS 'the finished jobs of a batch';

CREATE TABLE jobq_internal.failed_job (
	finished_at timestamptz NOT NULL,
	id bigint NOT NULL,
	enqueued_at timestamptz NOT NULL,
	started_at timestamptz,
	run_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role regrole NOT NULL,
	attempt int NOT NULL,
	max_attempts int NOT NULL,
	exceptions smallint NOT NULL,
	crashes smallint NOT NULL,
	watch boolean NOT NULL,
	kind text NOT NULL,
	payload jsonb NOT NULL,
	timeout_ms int,
	headers jsonb,
	backoff text,
	error text NOT NULL,
	sqlstate text NOT NULL,
	error_context text,
	errors jsonb NOT NULL,
	group_key text,
	unique_until "char",
	unique_queue int,
	unique_key text,
	batch_id bigint,
	log jsonb,
	context jsonb,
	tenant text,
	tags text[],
	limit_cost int,
	CONSTRAINT failed_job_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE jobq_internal.failed_job IS 'dead letters: jobs that failed for good';
COMMENT ON COLUMN jobq_internal.failed_job.errors IS 'all attempts that failed';
CREATE INDEX failed_job_batch ON jobq_internal.failed_job (batch_id) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.failed_job_batch IS 'the failed jobs of a batch';
CREATE INDEX failed_job_finished ON jobq_internal.failed_job (finished_at, id);
COMMENT ON INDEX jobq_internal.failed_job_finished IS 'dead letters from the newest on, and the oldest ones, which are deleted';

CREATE TABLE jobq_internal.privilege (
	queue_id int NOT NULL,
	role regrole NOT NULL,
	privilege text COLLATE "C" NOT NULL,
	CONSTRAINT privilege_pkey PRIMARY KEY (queue_id, role, privilege)
);
COMMENT ON TABLE jobq_internal.privilege IS 'who may do what: see grant_privilege()';
COMMENT ON COLUMN jobq_internal.privilege.queue_id IS 'the queue; 0: all';
COMMENT ON COLUMN jobq_internal.privilege.role IS 'who has it, and whoever has the privileges of this role';

-- Not for pg_dump: what is restored is served under the identity of its new database.
CREATE TABLE jobq_internal.served (
	system_identifier bigint NOT NULL,
	database oid NOT NULL,
	timeline int NOT NULL,
	backup bigint NOT NULL,
	CONSTRAINT served_pkey PRIMARY KEY (system_identifier, database)
);
COMMENT ON TABLE jobq_internal.served IS 'the identities under which this database is served; a copy brings those of its original';
COMMENT ON COLUMN jobq_internal.served.system_identifier IS 'the system identifier of the cluster';
COMMENT ON COLUMN jobq_internal.served.database IS 'the OID of the database';
COMMENT ON COLUMN jobq_internal.served.timeline IS 'the timeline of the write-ahead log';
COMMENT ON COLUMN jobq_internal.served.backup IS 'a hash of the label of the base backup that was restored; 0: none';

-- What pg_dump takes along; one call a statement.  The script puts no row into
-- these tables, as it would be there twice after a restore.  A role that was dropped
-- is but a number, by which a restored row might be another role's: so what it has
-- left, and what could run or be allowed by that, is left out.
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.limiter', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.queue', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.delegation', 'WHERE set_by IN (SELECT oid FROM pg_catalog.pg_roles) AND queue_id IN (SELECT id FROM jobq_internal.queue WHERE run_as IN (SELECT oid FROM pg_catalog.pg_roles))');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.handler', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.unique_key', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job_uuid', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.lease', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.lease_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.archive_default', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.failed_job', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.privilege', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

CREATE FUNCTION jobq_internal.invalidate() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_invalidate' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.invalidate() IS 'trigger function: tells all sessions that their cached queues, handlers or privileges are outdated';

CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.queue
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.queue ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.queue IS 'drops cached queues';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.delegation
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.delegation ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.delegation IS 'drops cached queues';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.handler
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.handler ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.handler IS 'drops cached handlers';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.limiter
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.limiter ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.limiter IS 'has the scheduler load the limits';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.privilege
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.privilege ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.privilege IS 'drops cached privileges';

-- Logical replication fires no trigger of a statement, but while it copies a table.
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.queue
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.queue ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.queue IS 'drops cached queues, where logical replication writes';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.delegation
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.delegation ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.delegation IS 'drops cached queues, where logical replication writes';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.handler
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.handler ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.handler IS 'drops cached handlers, where logical replication writes';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.limiter
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.limiter ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.limiter IS 'has the scheduler load the limits, where logical replication writes';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.privilege
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.privilege ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.privilege IS 'drops cached privileges, where logical replication writes';

CREATE FUNCTION jobq_internal.replicated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	NEW.dormant := true;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq_internal.replicated() IS 'trigger function: a job that logical replication writes does not run here';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE ON jobq_internal.job
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.replicated();
ALTER TABLE jobq_internal.job ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.job IS 'fires for logical replication only';

CREATE FUNCTION jobq_internal.group_of_role(role regrole, group_key text) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_group_of_role' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.group_of_role(regrole, text) IS 'id of the role''s group of that key, in the queues whose groups are of the database';

CREATE FUNCTION jobq_internal.group_waits_until(held timestamptz, patience interval) RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_group_waits_until_sql' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.group_waits_until(timestamptz, interval) IS 'when a group that has waited for a job since then loses its patience';

CREATE FUNCTION jobq_internal.regroup() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	NEW.group_id := jobq_internal.group_of_role(NEW.role, NEW.group_key);
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq_internal.regroup() IS 'trigger function: a dump and logical replication know roles by their names, and groups by the roles'' numbers';

CREATE TRIGGER regroup BEFORE INSERT ON jobq_internal.job
	FOR EACH ROW WHEN (NEW.group_id & 1 <> 0) EXECUTE FUNCTION jobq_internal.regroup();
ALTER TABLE jobq_internal.job ENABLE ALWAYS TRIGGER regroup;
COMMENT ON TRIGGER regroup ON jobq_internal.job IS 'sets the groups of roles right in a restore and in logical replication';

CREATE FUNCTION jobq_internal.loaded() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_loaded' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.loaded() IS 'trigger function: jobs were written past jobq''s functions, by a restore';

CREATE TRIGGER loaded AFTER INSERT OR UPDATE ON jobq_internal.job
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.loaded();
COMMENT ON TRIGGER loaded ON jobq_internal.job IS 'has the scheduler look at everything';

CREATE TRIGGER loaded AFTER INSERT OR TRUNCATE ON jobq_internal.failed_job
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.loaded();
ALTER TABLE jobq_internal.failed_job ENABLE ALWAYS TRIGGER loaded;
COMMENT ON TRIGGER loaded ON jobq_internal.failed_job IS 'has the statistics counted anew; TRUNCATE is replicated as a statement';

CREATE FUNCTION jobq_internal.letter_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_letter_changed' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.letter_changed() IS 'trigger function: a dead letter comes, is deleted, or changed, and counted otherwise';

CREATE TRIGGER letter_changed BEFORE UPDATE OR DELETE ON jobq_internal.failed_job
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
COMMENT ON TRIGGER letter_changed ON jobq_internal.failed_job IS 'keeps the statistics';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE OR DELETE ON jobq_internal.failed_job
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
ALTER TABLE jobq_internal.failed_job ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.failed_job IS 'keeps the statistics, where logical replication writes';

CREATE FUNCTION jobq_internal.kind_hash(kind text) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_kind_hash_sql' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.kind_hash(text) IS 'by which the limits of a kind are found';

CREATE FUNCTION jobq_internal.limiter_hash(name text) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_limiter_hash_sql' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.limiter_hash(text) IS 'by which the limits of a named limiter are found';

CREATE FUNCTION jobq_internal.limit_key(limiter int, payload jsonb, headers jsonb, role oid, tenant text) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_limit_key_sql' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_key(int, jsonb, jsonb, oid, text) IS 'the key of such a job for the limiter with this hash; null: it has none, or the limiter is not by a key';

CREATE FUNCTION jobq_internal.limit_cost(limiter int, cost int) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_limit_cost_sql' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_cost(int, int) IS 'how many tokens of the limiter with this hash a job costs in whose row this stands; 0: it passes it by';

CREATE FUNCTION jobq_internal.limiter_of(kind text, queue_id int) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_limiter_of_sql' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limiter_of(text, int) IS 'hash of what limits jobs of the kind in the queue, beside the limits of the queue; 0: nothing';
