-- Events: what becomes of jobs, batches, schedules and monitors calls forth other jobs.

-- '' stands for any queue or kind.
CREATE TABLE jobq_internal.event_handler (
	role regrole NOT NULL,
	event text COLLATE "C" NOT NULL,
	handler text COLLATE "C" NOT NULL,
	queue text COLLATE "C" NOT NULL,
	kind text COLLATE "C" NOT NULL,
	within boolean NOT NULL,
	required boolean NOT NULL,
	CONSTRAINT event_handler_pkey PRIMARY KEY (role, event, handler, queue, kind, within)
);
COMMENT ON TABLE jobq_internal.event_handler IS 'handlers of events';
COMMENT ON COLUMN jobq_internal.event_handler.event IS 'what the handler hears of';
COMMENT ON COLUMN jobq_internal.event_handler.handler IS 'the kind whose handler the jobs of the event run';
COMMENT ON COLUMN jobq_internal.event_handler.queue IS 'only what is about this queue; empty: about any';
COMMENT ON COLUMN jobq_internal.event_handler.kind IS 'only what is about this kind; empty: about any';
COMMENT ON COLUMN jobq_internal.event_handler.within IS 'it is called in the transaction of the job';
COMMENT ON COLUMN jobq_internal.event_handler.required IS 'if it fails, so does the attempt';
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.event_handler', 'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

CREATE TRIGGER invalidate AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON jobq_internal.event_handler
	FOR EACH STATEMENT EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.event_handler ENABLE ALWAYS TRIGGER invalidate;
COMMENT ON TRIGGER invalidate ON jobq_internal.event_handler IS 'drops cached handlers of events';
CREATE TRIGGER replicated AFTER INSERT OR UPDATE OR DELETE ON jobq_internal.event_handler
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.invalidate();
ALTER TABLE jobq_internal.event_handler ENABLE REPLICA TRIGGER replicated;
COMMENT ON TRIGGER replicated ON jobq_internal.event_handler IS 'drops cached handlers of events, where logical replication writes';

CREATE FUNCTION jobq.on_event(event text, handler text, queue text DEFAULT NULL, kind text DEFAULT NULL, within boolean DEFAULT false, required boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_on_event' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.on_event(text, text, text, text, boolean, boolean) IS 'have a job enqueued whenever this becomes of a job, a batch, a schedule or a monitor that the user may see
event: started (within only), completed, failed (an attempt), retry (and another follows), dead (and it was the last one), cancelled, expired; batch_completed, batch_failed, batch_cancelled; schedule_missed (ticks make no job), schedule_failed (it cannot make one); alert_began, or alert_ended
handler: a kind; its handler runs, as a job of the user''s
queue: only of jobs in this queue, whether it is there or not, and of monitors of it; not for batches and schedules
kind: only of jobs of this kind, and of schedules and monitors of it; not for batches
within: no job is enqueued: the handler is called in the transaction of each job that runs as the user, before its handler (started) or after it (completed)
required: of one that is called within: its error fails the attempt; otherwise it is a line of the job''s log';

CREATE FUNCTION jobq.off_event(event text, handler text, queue text DEFAULT NULL, kind text DEFAULT NULL, within boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_off_event' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.off_event(text, text, text, text, boolean) IS 'undo what on_event() with these arguments has done
event: as it was given
handler: likewise
queue: likewise
kind: likewise
within: likewise';

CREATE VIEW jobq.event_handlers WITH (security_barrier) AS
	SELECT e.role, e.event, e.handler, nullif(e.queue, '') AS queue, nullif(e.kind, '') AS kind, e.within, e.required
	FROM jobq_internal.event_handler e
	WHERE jobq_internal.may_see(e.role::pg_catalog.oid, 0);
COMMENT ON VIEW jobq.event_handlers IS 'what on_event() has been asked for';
