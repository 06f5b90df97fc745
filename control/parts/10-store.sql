-- The tables.  Users have no privileges on the tables, and use functions and views.
-- src/store/ depends on the order of the columns.

CREATE TABLE jobq_internal.limiter (
	name text CONSTRAINT limiter_pkey PRIMARY KEY,
	max_running int,
	rate text,
	throttle text,
	by text,
	cost text,
	when_taken text NOT NULL DEFAULT 'wait'
);
COMMENT ON TABLE jobq_internal.limiter IS 'limits shared by several kinds and queues';
COMMENT ON COLUMN jobq_internal.limiter.cost IS 'qualified signature of the function that returns how many tokens a job costs; null: 1';
COMMENT ON COLUMN jobq_internal.limiter.by IS 'source of a job''s key, each key with separate limits; null: all jobs share the limits';
COMMENT ON COLUMN jobq_internal.limiter.when_taken IS 'effect on a due job while max_running jobs run: wait, release and an interval, skip, or replace';

CREATE TABLE jobq_internal.queue (
	id int GENERATED ALWAYS AS IDENTITY CONSTRAINT queue_pkey PRIMARY KEY,
	paused boolean NOT NULL DEFAULT false,
	name text COLLATE "C" NOT NULL CONSTRAINT queue_name_key UNIQUE,
	paused_tenants text[],
	paused_kinds text[],
	made_by text COLLATE "C",
--list QUEUE_SETTING:	@1 @3 @4
);
ALTER TABLE jobq_internal.queue ALTER COLUMN run_as TYPE jobq_internal.role;
COMMENT ON TABLE jobq_internal.queue IS 'queues and their settings';
COMMENT ON COLUMN jobq_internal.queue.paused IS 'true: no further jobs of the queue start';
COMMENT ON COLUMN jobq_internal.queue.paused_tenants IS 'tenants of which no further jobs start';
COMMENT ON COLUMN jobq_internal.queue.paused_kinds IS 'kinds of which no further jobs of the queue start';
COMMENT ON COLUMN jobq_internal.queue.made_by IS 'role that created the queue by the first use, if the queue counts for jobq.max_queues_per_role';
--each QUEUE_SETTING:COMMENT ON COLUMN jobq_internal.queue.@1 IS '@'7';

CREATE INDEX queue_made_by ON jobq_internal.queue (made_by) WHERE made_by IS NOT NULL;
COMMENT ON INDEX jobq_internal.queue_made_by IS 'queues that count for the limit of a role';

-- A separate table, because a dump omits a row if a role of the row was dropped.
-- After a restore, no job of the queue runs, even if another role has the same OID.  A restore loads tables by name, this one before the queues.
CREATE TABLE jobq_internal.delegation (
	queue_id int CONSTRAINT delegation_pkey PRIMARY KEY,
	set_by jobq_internal.role NOT NULL
);
COMMENT ON TABLE jobq_internal.delegation IS 'roles that set run_as of queues, and must be able to SET ROLE to run_as';
COMMENT ON COLUMN jobq_internal.delegation.set_by IS 'role that set run_as of the queue';

CREATE TABLE jobq_internal.handler (
	kind text COLLATE "C" CONSTRAINT handler_pkey PRIMARY KEY,
	handler text NOT NULL,
	queue text,
	priority int,
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
	limiters text[],
	chunk int,
	chunk_wait_ms int
);
COMMENT ON TABLE jobq_internal.handler IS 'kinds of jobs: the handler and the defaults of each kind';
COMMENT ON COLUMN jobq_internal.handler.handler IS 'qualified signature; text, because a column of type regprocedure would prevent pg_upgrade';

CREATE SEQUENCE jobq_internal.job_id_seq;
COMMENT ON SEQUENCE jobq_internal.job_id_seq IS 'source of job ids';

CREATE TABLE jobq_internal.job (
	id bigint NOT NULL,
	run_at timestamptz NOT NULL,
	enqueued_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role jobq_internal.role NOT NULL,
	run_as jobq_internal.role NOT NULL,
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
	waits_for text,
	asked_by bigint,
	CONSTRAINT job_pkey PRIMARY KEY (id)
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0,
	autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE jobq_internal.job IS 'live jobs: each row is written once and deleted once';
COMMENT ON COLUMN jobq_internal.job.run_at IS 'earliest time at which the job may run; infinity: blocked, waits for other jobs';
COMMENT ON COLUMN jobq_internal.job.role IS 'owner: the role that enqueued the job';
COMMENT ON COLUMN jobq_internal.job.run_as IS 'role under which the job runs: the owner, unless the queue has run_as';
COMMENT ON COLUMN jobq_internal.job.flow IS 'lane key: hash of the limiters, the job''s keys and costs there, and the tenant in a fair queue; 0: none';
COMMENT ON COLUMN jobq_internal.job.limit_cost IS 'tokens that the job costs at a limiter with a cost function; 0: the job bypasses the limiter; null: 1';
COMMENT ON COLUMN jobq_internal.job.together IS 'how many suspects reserve() may return in a call with this suspect; 1 or less: no others; a further loss lowers the number; null: no suspect';
COMMENT ON COLUMN jobq_internal.job.waits_for IS 'signals, sleep or job for which the procedure of a suspended job waits, up to run_at; null: the job is not suspended';
COMMENT ON COLUMN jobq_internal.job.group_id IS 'even: hash of queue and group_key; odd: hash of the role''s OID and group_key';
COMMENT ON COLUMN jobq_internal.job.group_held IS 'time at which the job first came back after a start; the group waits for the job, by group_on_failure of the queue';
COMMENT ON COLUMN jobq_internal.job.attempt IS 'number of charged attempts';
COMMENT ON COLUMN jobq_internal.job.log IS 'lines of earlier attempts, written by log()';
COMMENT ON COLUMN jobq_internal.job.unique_until IS 'event that releases the unique key: f(inish), s(tart)';
COMMENT ON COLUMN jobq_internal.job.dormant IS 'true: the job came by logical replication, and runs on the publisher';
COMMENT ON COLUMN jobq_internal.job.free_delay_ms IS 'delay of a blocked job, from the time at which the job is unblocked';
COMMENT ON COLUMN jobq_internal.job.free_run_at IS 'earliest time at which a blocked job may run';

-- A lease updates the job's row.  The index has no predicate and no column changed by a
-- lease, so that the update stays HOT.
CREATE INDEX job_ready ON jobq_internal.job (queue_id, priority, run_as, flow, run_at, id);
COMMENT ON INDEX jobq_internal.job_ready IS 'lanes, in the order of their jobs';

CREATE INDEX job_group ON jobq_internal.job (group_id, priority, run_at, id) WHERE group_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_group IS 'groups, in the order of their jobs';

CREATE INDEX job_group_held ON jobq_internal.job (group_id, group_held) WHERE group_held IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_group_held IS 'jobs for which a group waits, or has waited long enough';

CREATE INDEX job_batch ON jobq_internal.job (batch_id, id) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_batch IS 'live jobs of a batch';

CREATE INDEX job_failed ON jobq_internal.job (id) WHERE errors IS NOT NULL;
COMMENT ON INDEX jobq_internal.job_failed IS 'live jobs with failed attempts';

-- A unique index on the jobs would make a session that enqueues wait for a running handler,
-- because the worker has deleted the job's row.
CREATE TABLE jobq_internal.unique_key (
	job_id bigint NOT NULL,
	held_until timestamptz,
	role jobq_internal.role NOT NULL,
	queue_id int NOT NULL,
	until "char" NOT NULL CHECK (until IN ('f', 's', 'w')),
	kind text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	CONSTRAINT unique_key_pkey PRIMARY KEY (key, kind, role, queue_id)
);
COMMENT ON TABLE jobq_internal.unique_key IS 'unique keys, and the job that holds each key';
COMMENT ON COLUMN jobq_internal.unique_key.queue_id IS 'id of the queue in which the key is unique; 0: all queues';
COMMENT ON COLUMN jobq_internal.unique_key.kind IS 'kind in which the key is unique; empty: all kinds';
COMMENT ON COLUMN jobq_internal.unique_key.held_until IS 'end of the window; until then the key is held, even if the job has ended';
COMMENT ON COLUMN jobq_internal.unique_key.until IS 'the key is held until the job''s f(inish), the job''s s(tart), or only the end of the w(indow)';

-- Separate from the jobs, because a uuid stays the same when the job moves between the
-- tables.  Jobs without a uuid cost nothing.
CREATE TABLE jobq_internal.job_uuid (
	job_id bigint NOT NULL,
	role jobq_internal.role NOT NULL,
	uuid uuid NOT NULL,
	CONSTRAINT job_uuid_pkey PRIMARY KEY (uuid, role)
);
COMMENT ON TABLE jobq_internal.job_uuid IS 'uuids given by roles, and the job of each uuid';

CREATE SEQUENCE jobq_internal.lease_token_seq;
COMMENT ON SEQUENCE jobq_internal.lease_token_seq IS 'source of lease tokens: above all tokens possibly given so far';

-- A row for each call of reserve().  The scheduler deletes rows that no lease needs.
CREATE TABLE jobq_internal.lease (
	id bigint NOT NULL,
	token bigint NOT NULL,
	lease_until timestamptz NOT NULL,
	since timestamptz NOT NULL,
	role jobq_internal.role NOT NULL,
	consumer text NOT NULL,
	job_ids bigint[] NOT NULL,
	job_versions xid[] NOT NULL,
	held int,
	CONSTRAINT lease_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE jobq_internal.lease IS 'jobs held by consumers, for the time after a restart';
COMMENT ON COLUMN jobq_internal.lease.job_versions IS 'xmin of the jobs'' rows; a job whose row was rewritten since is no longer held';
COMMENT ON COLUMN jobq_internal.lease.held IS 'number of other jobs that the consumer held, as given to reserve()';
COMMENT ON COLUMN jobq_internal.lease.id IS 'token of a reservation; a separate number for an extension';

CREATE TABLE jobq_internal.archive (
	finished_at timestamptz NOT NULL,
	id bigint NOT NULL,
	enqueued_at timestamptz NOT NULL,
	started_at timestamptz,
	run_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role jobq_internal.role NOT NULL,
	attempt int NOT NULL,
	max_attempts int NOT NULL,
	state "char" NOT NULL,
	cause "char",
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
COMMENT ON TABLE jobq_internal.archive IS 'completed, cancelled and expired jobs, with a partition for each day';
COMMENT ON COLUMN jobq_internal.archive.state IS 'c(ompleted), x: cancelled, e(xpired)';
COMMENT ON COLUMN jobq_internal.archive.cause IS 'why the job ended; null: completed; e(xpired); c(ancelled) by a user, s(topped) while it ran, by its h(andler), q: its queue was full, l(imiter), k: condition of the step, b: with its batch, w: with its workflow, f: its batch failed, d: its workflow is not needed, n(eeds) a lost step';
COMMENT ON COLUMN jobq_internal.archive.errors IS 'failed attempts of the job';

-- Each partition has separate indexes.  A unique index of the parent would need the column
-- finished_at, and pg_dump would create the indexes twice.
CREATE TABLE jobq_internal.archive_default PARTITION OF jobq_internal.archive
	(CONSTRAINT archive_default_pkey PRIMARY KEY (id)) DEFAULT;
COMMENT ON TABLE jobq_internal.archive_default IS 'finished jobs of days for which the scheduler has created no partition';
CREATE INDEX archive_default_batch ON jobq_internal.archive_default (batch_id, state) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.archive_default_batch IS 'finished jobs of a batch';
CREATE INDEX archive_default_failed ON jobq_internal.archive_default (id) WHERE errors IS NOT NULL;
COMMENT ON INDEX jobq_internal.archive_default_failed IS 'finished jobs with failed attempts';

CREATE TABLE jobq_internal.dead_letter (
	finished_at timestamptz NOT NULL,
	id bigint NOT NULL,
	enqueued_at timestamptz NOT NULL,
	started_at timestamptz,
	run_at timestamptz NOT NULL,
	queue_id int NOT NULL,
	priority int NOT NULL,
	role jobq_internal.role NOT NULL,
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
	fingerprint bigint NOT NULL,
	asked_by bigint,
	CONSTRAINT dead_letter_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE jobq_internal.dead_letter IS 'dead letters: jobs that failed permanently';
COMMENT ON COLUMN jobq_internal.dead_letter.errors IS 'all failed attempts';
CREATE INDEX dead_letter_batch ON jobq_internal.dead_letter (batch_id) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.dead_letter_batch IS 'dead letters of a batch';
CREATE INDEX dead_letter_finished ON jobq_internal.dead_letter (finished_at, id);
COMMENT ON INDEX jobq_internal.dead_letter_finished IS 'dead letters in the order of their end, for lists and for the retention';
CREATE INDEX dead_letter_fingerprint ON jobq_internal.dead_letter (fingerprint, finished_at, id);
COMMENT ON INDEX jobq_internal.dead_letter_fingerprint IS 'dead letters with the same cause, in the order of their end';
CREATE INDEX dead_letter_queue ON jobq_internal.dead_letter (queue_id);
COMMENT ON INDEX jobq_internal.dead_letter_queue IS 'dead letters of a queue';

CREATE TABLE jobq_internal.privilege (
	queue_id int NOT NULL,
	role jobq_internal.role NOT NULL,
	privilege text COLLATE "C" NOT NULL,
	CONSTRAINT privilege_pkey PRIMARY KEY (queue_id, role, privilege)
);
COMMENT ON TABLE jobq_internal.privilege IS 'privileges of roles: see grant_privilege()';
COMMENT ON COLUMN jobq_internal.privilege.queue_id IS 'id of the queue; 0: all queues';
COMMENT ON COLUMN jobq_internal.privilege.role IS 'role that has the privilege, together with all roles that have the privileges of this role';

-- Arguments are names and values in turn, as texts.  The view audit_log makes an object of them.
-- Roles are names, quoted as by regrole, so that an entry outlasts its role.
CREATE SEQUENCE jobq_internal.audit_id_seq;
COMMENT ON SEQUENCE jobq_internal.audit_id_seq IS 'ids of the audit log';
CREATE TABLE jobq_internal.audit (
	id bigint NOT NULL,
	at timestamptz NOT NULL,
	role text NOT NULL,
	login text NOT NULL,
	application text NOT NULL,
	action text NOT NULL,
	arguments text[] NOT NULL,
	jobs bigint,
	CONSTRAINT audit_pkey PRIMARY KEY (id)
);
COMMENT ON TABLE jobq_internal.audit IS 'calls of operators: see the view audit_log';
COMMENT ON COLUMN jobq_internal.audit.arguments IS 'names and values of the arguments, in turn';

-- Omitted by pg_dump: a restored database is served under a new identity.
CREATE TABLE jobq_internal.served (
	system_identifier bigint NOT NULL,
	database oid NOT NULL,
	timeline int NOT NULL,
	backup bigint NOT NULL,
	CONSTRAINT served_pkey PRIMARY KEY (system_identifier, database)
);
COMMENT ON TABLE jobq_internal.served IS 'identities under which this database was served; a copy contains the identities of the original';
COMMENT ON COLUMN jobq_internal.served.system_identifier IS 'system identifier of the cluster';
COMMENT ON COLUMN jobq_internal.served.database IS 'OID of the database';
COMMENT ON COLUMN jobq_internal.served.timeline IS 'timeline of the write-ahead log';
COMMENT ON COLUMN jobq_internal.served.backup IS 'hash of the label of the restored base backup; 0: none';

-- Tables in a dump, with one call in each statement.  The install script inserts no row
-- into these tables: the row would exist twice after a restore.  Rows of dropped roles
-- are omitted.  A dropped role is only an OID, and another role could have the same OID
-- after a restore.  4294967295 stands for a role that did not exist at a restore.
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.limiter', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.queue', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.queue_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.delegation', 'WHERE (set_by IN (SELECT oid FROM pg_catalog.pg_roles) OR set_by::oid = ''4294967295'') AND queue_id IN (SELECT id FROM jobq_internal.queue WHERE run_as IN (SELECT oid FROM pg_catalog.pg_roles) OR run_as::oid = ''4294967295'')');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.handler', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.unique_key', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.job_uuid', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.lease', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.lease_token_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.audit', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.audit_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.archive_default', '');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.dead_letter', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.privilege', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

CREATE FUNCTION jobq_internal.invalidate() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_invalidate' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.invalidate() IS 'trigger function: invalidates the cached queues, handlers and privileges of all sessions';

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
COMMENT ON TRIGGER invalidate ON jobq_internal.limiter IS 'makes the scheduler load the limits';
CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.privilege
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.privilege ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.privilege IS 'drops cached privileges';

-- Logical replication fires statement triggers only while copying a table.
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.queue
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.queue ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.queue IS 'drops cached queues after logical replication';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.delegation
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.delegation ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.delegation IS 'drops cached queues after logical replication';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.handler
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.handler ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.handler IS 'drops cached handlers after logical replication';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.limiter
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.limiter ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.limiter IS 'makes the scheduler load the limits after logical replication';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.privilege
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.privilege ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.privilege IS 'drops cached privileges after logical replication';

CREATE FUNCTION jobq_internal.replicated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	NEW.dormant := true;
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq_internal.replicated() IS 'trigger function: makes a job written by logical replication dormant';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE ON jobq_internal.job
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.replicated();
ALTER TABLE jobq_internal.job ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.job IS 'makes jobs written by logical replication dormant';

CREATE FUNCTION jobq_internal.group_of_role(role regrole, group_key text) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_group_of_role' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.group_of_role(regrole, text) IS 'id of the role''s group with the key, for queues with group_scope database';

CREATE FUNCTION jobq_internal.group_waits_until(held timestamptz, on_failure text) RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_group_waits_until_sql' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.group_waits_until(timestamptz, text) IS 'end of a group''s wait for a job that came back at the time held, by group_on_failure of the queue; null: no timeout';

CREATE FUNCTION jobq_internal.regroup() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	NEW.group_id := jobq_internal.group_of_role(NEW.role, NEW.group_key);
	RETURN NEW;
END
$$;
COMMENT ON FUNCTION jobq_internal.regroup() IS 'trigger function: adapts a group id, which contains the role''s OID, to the OID of the role in this database';

CREATE TRIGGER regroup BEFORE INSERT ON jobq_internal.job
	FOR EACH ROW WHEN (NEW.group_id & 1 <> 0) EXECUTE FUNCTION jobq_internal.regroup();
ALTER TABLE jobq_internal.job ENABLE ALWAYS TRIGGER regroup;
COMMENT ON TRIGGER regroup ON jobq_internal.job IS 'adapts group ids of roles during a restore and logical replication';

CREATE FUNCTION jobq_internal.loaded() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_loaded' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.loaded() IS 'trigger function: notes that jobs were written directly, as by a restore';

CREATE TRIGGER loaded AFTER INSERT OR UPDATE ON jobq_internal.job
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.loaded();
COMMENT ON TRIGGER loaded ON jobq_internal.job IS 'makes the scheduler check all jobs again';

CREATE TRIGGER loaded AFTER INSERT OR TRUNCATE ON jobq_internal.dead_letter
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.loaded();
ALTER TABLE jobq_internal.dead_letter ENABLE ALWAYS TRIGGER loaded;
COMMENT ON TRIGGER loaded ON jobq_internal.dead_letter IS 'makes jobq count the statistics again; TRUNCATE is replicated as a statement';

CREATE FUNCTION jobq_internal.letter_changed() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_letter_changed' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.letter_changed() IS 'trigger function: counts inserted, changed and deleted dead letters';

CREATE TRIGGER letter_changed BEFORE UPDATE OR DELETE ON jobq_internal.dead_letter
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
COMMENT ON TRIGGER letter_changed ON jobq_internal.dead_letter IS 'updates the statistics';

CREATE TRIGGER replicated BEFORE INSERT OR UPDATE OR DELETE ON jobq_internal.dead_letter
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.letter_changed();
ALTER TABLE jobq_internal.dead_letter ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.dead_letter IS 'updates the statistics during logical replication';

CREATE FUNCTION jobq_internal.kind_hash(kind text) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_kind_hash_sql' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.kind_hash(text) IS 'hash of a kind, as a key of its limits';

CREATE FUNCTION jobq_internal.limiter_hash(name text) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_limiter_hash_sql' LANGUAGE C STRICT IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.limiter_hash(text) IS 'hash of a limiter''s name, as a key of its limits';

CREATE FUNCTION jobq_internal.limit_key(limiter int, payload jsonb, headers jsonb, role oid, tenant text, group_key text, tags text[]) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_limit_key_sql' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_key(int, jsonb, jsonb, oid, text, text, text[]) IS 'key of a job for the limiter with the hash; null: the job has no key, or the limiter is without by';

CREATE FUNCTION jobq_internal.limit_cost(limiter int, cost int) RETURNS int
AS 'MODULE_PATHNAME', 'jobq_limit_cost_sql' LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limit_cost(int, int) IS 'tokens of the limiter with the hash for a job with this limit_cost; 0: the job bypasses the limiter';

CREATE FUNCTION jobq_internal.limiters_of(kind text, queue_id int) RETURNS int[]
AS 'MODULE_PATHNAME', 'jobq_limiters_of_sql' LANGUAGE C STRICT STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.limiters_of(text, int) IS 'hashes of the limiters of the kind in the queue, beside the limits of the queue: of the kind, two named by the kind, two named by the queue; 0: none';
