-- Producing.  Functions in C bring no SET clause: they use direct heap access, or
-- pin search_path themselves (src/store/query.c).

CREATE FUNCTION jobq.enqueue(
	kind text,
	payload jsonb DEFAULT '{}',
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_enqueue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue IS 'enqueue a job in this transaction
kind: the kind of the job
payload: what its handler or consumer gets
--each JOB_OPTION:@1: @'4
returns: the id of the job; if its unique key is held and on_conflict is skip, that of the holder';

CREATE FUNCTION jobq.enqueue_sql(
	sql text,
	transaction boolean DEFAULT true,
	database text DEFAULT NULL,
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_enqueue_sql'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_sql IS 'enqueue a statement as a job, which runs it as the current role
sql: the statement, or several, which run in the transaction of the job
transaction: false for one statement that cannot run within a transaction, such as VACUUM; after a crash it may run again
database: another one of jobq.sql_databases in which it runs; after a crash it may run again
--each JOB_OPTION:@1: @'4
returns: the id of the job; if its unique key is held and on_conflict is skip, that of the holder';

CREATE FUNCTION jobq.enqueue_many(
	kind text,
	payloads jsonb[],
--list JOB_OPTION:	@1 @3 DEFAULT NULL
)
RETURNS SETOF bigint AS 'MODULE_PATHNAME', 'jobq_enqueue_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_many IS 'enqueue a job for each payload in this transaction
kind: the kind of the jobs
payloads: what their handler or consumer gets
--each JOB_OPTION:@1: @'4
returns: the ids of the jobs, in the order of the payloads';

CREATE FUNCTION jobq_internal.traceparent(headers jsonb) RETURNS text
AS 'MODULE_PATHNAME', 'jobq_traceparent' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.traceparent(jsonb) IS 'the traceparent that a job''s headers have
headers: of a job
returns: null if there is none, or if it has not the form of W3C Trace Context';

CREATE FUNCTION jobq.release_key(kind text DEFAULT NULL, unique_key text DEFAULT NULL, unique_scope text DEFAULT 'kind', queue text DEFAULT NULL) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_release_key' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.release_key IS 'give back a unique key of the current role, so that another job can be enqueued with it; false if nobody held it
kind: the kind of the jobs; for the scope of a kind only
unique_key: the key
unique_scope: that of the key: kind, queue or database
queue: the queue; for the scope of a queue only';

CREATE VIEW jobq.inbox AS
	SELECT NULL::bigint AS id, NULL::text AS kind, NULL::jsonb AS payload,
--list JOB_OPTION:		NULL::@3 AS @1
	WHERE false;
COMMENT ON VIEW jobq.inbox IS 'INSERT and COPY into it enqueue; it is always empty';
COMMENT ON COLUMN jobq.inbox.id IS 'the id of the job, for RETURNING; what is given is ignored';
COMMENT ON COLUMN jobq.inbox.kind IS 'the kind of the job';
COMMENT ON COLUMN jobq.inbox.payload IS 'what its handler or consumer gets; else {}';
--each JOB_OPTION:COMMENT ON COLUMN jobq.inbox.@1 IS '@'4';

CREATE FUNCTION jobq_internal.inbox_insert() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_inbox_insert' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.inbox_insert() IS 'trigger function of the view inbox';

CREATE TRIGGER enqueue INSTEAD OF INSERT ON jobq.inbox
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
COMMENT ON TRIGGER enqueue ON jobq.inbox IS 'enqueues the row';

CREATE FUNCTION jobq.enqueue_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_enqueue_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.enqueue_trigger() IS 'trigger function (kind [, queue [, rows]]): each changed row becomes a job {op, table, new, old}; or each statement, where new and old are arrays';

CREATE FUNCTION jobq.notify(channel text, payload text DEFAULT '') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_notify' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.notify(text, text) IS 'NOTIFY through the relay: after the commit, in batches, without its cluster-wide lock
channel: the channel
payload: what listeners get';

CREATE FUNCTION jobq.notify_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_notify_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.notify_trigger() IS 'trigger function (channel): NOTIFY through the relay';
