-- Privileges.  PUBLIC may call the functions of jobq and read the views, which check the
-- privileges of the current user.  src/store/privileges.c explains the reasons.  Of the
-- internal functions, PUBLIC may call only the functions listed below.

CREATE FUNCTION jobq_internal.take_back(what text, acl aclitem[], owner oid, from_all boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	others text := (SELECT string_agg(DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', ')
		FROM aclexplode(acl) a WHERE a.grantee <> owner AND (a.grantee <> 0 OR from_all));
BEGIN
	IF others IS NOT NULL THEN
		EXECUTE format('REVOKE ALL ON %s FROM %s', what, others);
	END IF;
END
$$;
COMMENT ON FUNCTION jobq_internal.take_back(text, aclitem[], oid, boolean) IS 'revoke privileges of roles other than the owner, given by ALTER DEFAULT PRIVILEGES; from_all: also of PUBLIC';

-- The script names no roles.  On a new object, the privileges of roles, and a missing
-- privilege of PUBLIC, therefore come from ALTER DEFAULT PRIVILEGES.  On older objects, an
-- administrator may have granted privileges; these objects are left alone.  An object
-- without initial privileges is not mentioned in a GRANT or REVOKE of the script: then
-- functions of the schema jobq and types are for PUBLIC, and all other objects are not.
-- CREATE and ALTER EXTENSION write the row of the extension before the script runs, in the
-- same transaction as the new objects, so that both have the same xmin.
CREATE FUNCTION jobq_internal.settle_privileges() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	o record;
	what text;
BEGIN
	FOR o IN
		WITH made AS MATERIALIZED (
			SELECT d.classid, d.objid
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
			WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'jobq' AND d.xmin = e.xmin
		), touched AS (
			SELECT m.classid, m.objid FROM made m
			UNION ALL
			-- schema jobq is no member, because the extension is in jobq; jobq counts as new if the other schema is new
			SELECT m.classid, 'jobq'::regnamespace::oid FROM made m WHERE m.classid = 'pg_namespace'::regclass)
		SELECT t.word, u.objid AS id, t.owner, i.acl, i.unsaid AND NOT t.for_all AS from_all, p.lacks_public
		FROM touched u
		CROSS JOIN LATERAL (
			SELECT CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char" AS kind,
				CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS word,
				c.relowner AS owner, c.relacl AS acl, false AS for_all
			FROM pg_class c
			WHERE u.classid = 'pg_class'::regclass AND c.oid = u.objid AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
			UNION ALL
			SELECT 'f', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
				p.proowner, p.proacl, p.pronamespace = 'jobq'::regnamespace
			FROM pg_proc p WHERE u.classid = 'pg_proc'::regclass AND p.oid = u.objid
			UNION ALL
			SELECT 'T', 'TYPE', y.typowner, y.typacl, true
			FROM pg_type y WHERE u.classid = 'pg_type'::regclass AND y.oid = u.objid
			UNION ALL
			SELECT 'n', 'SCHEMA', n.nspowner, n.nspacl, false
			FROM pg_namespace n WHERE u.classid = 'pg_namespace'::regclass AND n.oid = u.objid) t
		CROSS JOIN LATERAL (
			SELECT coalesce(t.acl, acldefault(t.kind, t.owner)) AS acl,
				NOT EXISTS (SELECT FROM pg_init_privs i WHERE i.classoid = u.classid AND i.objoid = u.objid AND i.objsubid = 0) AS unsaid
			OFFSET 0) i
		CROSS JOIN LATERAL (
			SELECT coalesce(bool_or(a.grantee <> t.owner AND (a.grantee <> 0 OR (i.unsaid AND NOT t.for_all))), false) AS has_others,
				i.unsaid AND t.for_all AND NOT coalesce(bool_or(a.grantee = 0), false) AS lacks_public
			FROM aclexplode(i.acl) a
			OFFSET 0) p
		WHERE p.has_others OR p.lacks_public
	LOOP
		what := o.word || ' ' || CASE
			WHEN o.word IN ('TABLE', 'SEQUENCE') THEN o.id::regclass::text
			WHEN o.word IN ('FUNCTION', 'PROCEDURE') THEN o.id::regprocedure::text
			WHEN o.word = 'TYPE' THEN o.id::regtype::text
			ELSE o.id::regnamespace::text END;
		PERFORM jobq_internal.take_back(what, o.acl, o.owner, o.from_all);
		IF o.lacks_public THEN
			EXECUTE format('GRANT ALL ON %s TO PUBLIC', what);
		END IF;
	END LOOP;
END
$$;
COMMENT ON FUNCTION jobq_internal.settle_privileges() IS 'undo the effects of ALTER DEFAULT PRIVILEGES on new objects, at the end of a script of the extension';

REVOKE ALL ON SCHEMA jobq, jobq_internal FROM PUBLIC;
GRANT USAGE ON SCHEMA jobq, jobq_internal TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA jobq, jobq_internal FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA jobq, jobq_internal FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA jobq_internal FROM PUBLIC;
REVOKE ALL ON FUNCTION jobq.test_clock(interval), jobq.adopt(int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
	jobq_internal.clock(), jobq_internal.use_link(text, jsonb), jobq_internal.run_next(text[]), jobq_internal.worker_slots(), jobq_internal.member_slots(), jobq_internal.lease_slots(),
	jobq_internal.live_log(bigint, jsonb), jobq_internal.key_slot(int, text), jobq_internal.live_state(boolean, timestamptz, timestamptz, boolean, boolean),
	jobq_internal.may_see(oid, int), jobq_internal.may_read(oid, int),
	jobq_internal.may_see_queue(int, boolean), jobq_internal.may_use(), jobq_internal.without_details(jsonb), jobq_internal.indexes(int, int),
	jobq_internal.queue_counts(int, bigint[]), jobq_internal.stat_slots(), jobq_internal.stat_series(text, text, text), jobq_internal.stat_rates(text), jobq_internal.limit_slots(), jobq_internal.group_slots(),
	jobq_internal.kind_hash(text), jobq_internal.limiter_hash(text), jobq_internal.limiters_of(text, int), jobq_internal.limit_key(int, jsonb, jsonb, oid, text, text, text[]), jobq_internal.limit_cost(int, int), jobq_internal.scheduler_state(), jobq_internal.scheduler_troubles(), jobq_internal.setup(), jobq_internal.pool_problems(),
	jobq_internal.capacity(), jobq_internal.measures(text[]), jobq_internal.stats_known(), jobq_internal.metric_label(text), jobq_internal.lane_slots(), jobq_internal.run_as_refusal(text), jobq_internal.handler_is_there(text), jobq_internal.handler_version(text), jobq_internal.conf_line(text, text), jobq_internal.traceparent(jsonb) TO PUBLIC;
GRANT SELECT ON jobq.jobs, jobq.live_jobs, jobq.dead_letters, jobq.failures, jobq.kinds, jobq.queues, jobq.stats, jobq.workers, jobq.limits,
	jobq.schedules, jobq.batches, jobq.steps, jobq.grants, jobq.monitors, jobq.event_handlers, jobq.audit_log TO PUBLIC;
GRANT SELECT, INSERT ON jobq.inbox TO PUBLIC;
GRANT SELECT ON jobq_internal.run_order, jobq_internal.run_order_down, jobq_internal.held_roles, jobq_internal.failed_live, jobq_internal.failed_finished, jobq_internal.failed_dead, jobq_internal.failed_jobs, jobq_internal.failure_causes, jobq_internal.monitor_states, jobq_internal.step_events TO PUBLIC;

CREATE FUNCTION jobq.grant_privilege(role regrole, privilege text DEFAULT 'produce', queue text DEFAULT '*') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_grant_privilege' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.grant_privilege(regrole, text, text) IS 'grant a role, and its members, a privilege for a queue, or for all queues
role: the role
privilege: produce (enqueue, and manage own jobs), sql (also enqueue plain statements), consume (take jobs of all roles), monitor (see all jobs without contents, and call doctor()), operate (also pause queues, and cancel, retry and move all jobs), or manage (everything; also queues and handlers, and therefore the code that runs as other roles); for a single queue: produce, sql, consume, or manage (see, operate and delete the jobs, and change the settings of the queue)
queue: the queue; *: all queues';

CREATE FUNCTION jobq.revoke_privilege(role regrole, privilege text DEFAULT NULL, queue text DEFAULT '*') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_revoke_privilege' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.revoke_privilege(regrole, text, text) IS 'revoke a privilege given by grant_privilege(); existing jobs still run
role: the role
privilege: the privilege; null: all privileges
queue: the queue of the grant; *: grants for all queues, and with a null privilege also grants for single queues';

CREATE FUNCTION jobq.reassign_owned("from" regrole, "to" regrole) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_reassign_owned' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reassign_owned(regrole, regrole) IS 'give the jobs, dead letters, batches and schedules of a role to another role, except running and finished jobs
from: the present owner, or the OID of a dropped role
to: the new owner
returns: the number of jobs and dead letters';

CREATE FUNCTION jobq.drop_owned(role regrole) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_drop_owned' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_owned(regrole) IS 'cancel the jobs and batches of a role, and delete the schedules and dead letters of the role
role: the role, or the OID of a dropped role
returns: the number of jobs and dead letters';

SELECT jobq_internal.activate();
