-- Producing.  Functions in C bring no SET clause: they use direct heap access, or
-- pin search_path themselves (src/store/spi.c).

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

CREATE FUNCTION jobq_internal.inbox_insert() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_inbox_insert' LANGUAGE C;
COMMENT ON FUNCTION jobq_internal.inbox_insert() IS 'trigger function of the view inbox';

CREATE TRIGGER enqueue INSTEAD OF INSERT ON jobq.inbox
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
COMMENT ON TRIGGER enqueue ON jobq.inbox IS 'enqueues the row';

CREATE FUNCTION jobq.enqueue_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_enqueue_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.enqueue_trigger() IS 'trigger function (kind [, queue]): each changed row becomes a job {op, table, new, old}';

CREATE FUNCTION jobq.notify(channel text, payload text DEFAULT '') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_notify' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.notify(text, text) IS 'NOTIFY through the relay: after the commit, in batches, without its cluster-wide lock';

CREATE FUNCTION jobq.notify_trigger() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_notify_trigger' LANGUAGE C;
COMMENT ON FUNCTION jobq.notify_trigger() IS 'trigger function (channel): NOTIFY through the relay';
