-- Events of jobs, batches, schedules and monitors, which enqueue further jobs.

-- An empty queue or kind stands for any queue or kind.
CREATE TABLE jobq_internal.event_handler (
	role jobq_internal.role NOT NULL,
	event text COLLATE "C" NOT NULL,
	handler text COLLATE "C" NOT NULL,
	queue text COLLATE "C" NOT NULL,
	kind text COLLATE "C" NOT NULL,
	within boolean NOT NULL,
	required boolean NOT NULL,
	CONSTRAINT event_handler_pkey PRIMARY KEY (role, event, handler, queue, kind, within)
);
COMMENT ON TABLE jobq_internal.event_handler IS 'handlers of events';
COMMENT ON COLUMN jobq_internal.event_handler.event IS 'the event of the handler';
COMMENT ON COLUMN jobq_internal.event_handler.handler IS 'the kind whose handler runs in the jobs of the event';
COMMENT ON COLUMN jobq_internal.event_handler.queue IS 'only events of this queue; empty: any queue';
COMMENT ON COLUMN jobq_internal.event_handler.kind IS 'only events of this kind; empty: any kind';
COMMENT ON COLUMN jobq_internal.event_handler.within IS 'whether the handler is called in the transaction of the job';
COMMENT ON COLUMN jobq_internal.event_handler.required IS 'whether an error of the handler fails the attempt';
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.event_handler', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.event_handler
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.event_handler ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.event_handler IS 'drops cached handlers of events';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.event_handler
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.event_handler ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.event_handler IS 'drops cached handlers of events after writes by logical replication';

CREATE FUNCTION jobq.on_event(event text, handler text, queue text DEFAULT NULL, kind text DEFAULT NULL, within boolean DEFAULT false, required boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_on_event' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.on_event(text, text, text, text, boolean, boolean) IS 'enqueue a job at each such event of a job, batch, schedule or monitor that the user may see
event: started (only with within), completed, failed (an attempt), retry (an attempt has failed, and another follows), dead (the last attempt has failed), cancelled, expired; batch_completed, batch_failed, batch_cancelled; schedule_missed (ticks enqueue no job), schedule_failed (a schedule cannot enqueue a job); alert_began, or alert_ended
handler: a kind; the handler of this kind runs in a job of the user
queue: only jobs in this queue, which need not exist, and monitors of this queue; not for batches and schedules
kind: only jobs, schedules and monitors of this kind; not for batches
within: enqueue no job; call the handler in the transaction of each job that runs as the user, before the job''s own handler (started) or after (completed)
required: only with within; true: an error of the handler fails the attempt; false: the error goes into the log of the job';

CREATE FUNCTION jobq.off_event(event text, handler text, queue text DEFAULT NULL, kind text DEFAULT NULL, within boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_off_event' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.off_event(text, text, text, text, boolean) IS 'remove an event handler that on_event() has added with these arguments
event: as given to on_event()
handler: as given to on_event()
queue: as given to on_event()
kind: as given to on_event()
within: as given to on_event()';

CREATE VIEW jobq.event_handlers WITH (security_barrier) AS
	SELECT e.role::pg_catalog.regrole AS role, e.event, e.handler, nullif(e.queue, '') AS queue, nullif(e.kind, '') AS kind, e.within, e.required
	FROM jobq_internal.event_handler e
	WHERE jobq_internal.may_see(e.role::pg_catalog.oid, 0);
COMMENT ON VIEW jobq.event_handlers IS 'event handlers added by on_event()';
