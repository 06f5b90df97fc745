-- Producing.  Functions in C have no SET clause: the C code accesses heaps directly, or
-- sets search_path (src/store/query.c).

CREATE FUNCTION jobq.enqueue(
	kind text,
	payload jsonb DEFAULT '{}',
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_enqueue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue IS 'enqueue a job in this transaction
kind: the kind of the job
payload: the input for the handler or consumer
--each JOB_OPTION:@1: @'4
--each UNIQUENESS_OPTION:uniqueness.@1: @'4
--each OTHER_OPTION:options.@1: @'4
returns: the id of the job; if the unique key is held: the id of the holder, or null with on_conflict ignore';

CREATE FUNCTION jobq.enqueue_sql(
	sql text,
	transaction boolean DEFAULT true,
	database text DEFAULT NULL,
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_enqueue_sql'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_sql IS 'enqueue a statement as a job that runs as the current role
sql: the statement, or several statements, for the transaction of the job
transaction: false for a single statement that cannot run in a transaction, such as VACUUM; may run again after a crash
database: another database, from jobq.sql_databases, where the statement runs; may run again after a crash
--each JOB_OPTION:@1: @'4
returns: the id of the job; if the unique key is held: the id of the holder, or null with on_conflict ignore';

CREATE FUNCTION jobq.enqueue_many(
	kind text,
	payloads jsonb[],
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS SETOF bigint AS 'MODULE_PATHNAME', 'jobq_enqueue_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_many IS 'enqueue a job for each payload in this transaction
kind: the kind of the jobs
payloads: the payload of each job, as input for the handler or consumer
--each JOB_OPTION:@1: @'4
returns: the ids of the jobs, in the order of the payloads; null for a job that on_conflict ignore has skipped';

CREATE FUNCTION jobq_internal.traceparent(headers jsonb) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_traceparent' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.traceparent(jsonb) IS 'return the traceparent of a job
headers: the headers of the job
returns: the traceparent; null if missing, or not in the form of W3C Trace Context';

CREATE FUNCTION jobq.release_key(kind text DEFAULT NULL, unique_key text DEFAULT NULL, scope text DEFAULT 'kind', queue text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_release_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release_key IS 'release a unique key of the current role, so that another job can be enqueued with the key
kind: the kind of the job; only for the scope kind
unique_key: the key
scope: the scope of the key: kind, queue or database
queue: the queue of the job; only for the scope queue
returns: true; false if no job held the key';

CREATE VIEW jobq.inbox AS
	SELECT NULL::bigint AS id, NULL::text AS kind, NULL::jsonb AS payload,
--list JOB_OPTION:		NULL::@3 AS @1
	WHERE false;
COMMENT ON VIEW jobq.inbox IS 'an always empty view: INSERT and COPY into the view enqueue jobs';
COMMENT ON COLUMN jobq.inbox.id IS 'the id of the job, for RETURNING; a given value is ignored';
COMMENT ON COLUMN jobq.inbox.kind IS 'the kind of the job';
COMMENT ON COLUMN jobq.inbox.payload IS 'the input for the handler or consumer; null: {}';
--each JOB_OPTION:COMMENT ON COLUMN jobq.inbox.@1 IS '@'4';

CREATE FUNCTION jobq_internal.inbox_insert() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_inbox_insert' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.inbox_insert() IS 'trigger function of the view inbox';

CREATE TRIGGER enqueue INSTEAD OF INSERT ON jobq.inbox
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
COMMENT ON TRIGGER enqueue ON jobq.inbox IS 'enqueues the row';

CREATE FUNCTION jobq.enqueue_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_enqueue_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.enqueue_trigger() IS 'trigger function (kind [, queue [, rows]]): enqueue a job {op, table, new, old} for each changed row or each statement';

CREATE FUNCTION jobq.notify(channel text, payload text DEFAULT '') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_notify' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.notify(text, text) IS 'send a notification through the relay: after the commit, without the cluster-wide lock of NOTIFY
channel: the channel
payload: the payload of the notification';
