-- Privileges.  Everybody may call jobq's functions and read its views.  These look
-- at who calls: see src/store/privileges.c, which says why.  What is not for users
-- at all is not to be called, either.

GRANT USAGE ON SCHEMA jobq, jobq_internal TO PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA jobq, jobq_internal FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA jobq_internal FROM PUBLIC;
REVOKE ALL ON FUNCTION jobq.test_clock(interval), jobq.adopt() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
	jobq_internal.run_next(text[]), jobq_internal.worker_slots(), jobq_internal.lease_slots(),
	jobq_internal.live_log(bigint, jsonb), jobq_internal.tenant_tokens(int, text), jobq_internal.key_tokens(int, text), jobq_internal.live_state(boolean, timestamptz, timestamptz, boolean),
	jobq_internal.may_see(oid, int), jobq_internal.may_read(oid, int),
	jobq_internal.may_see_queue(int, boolean), jobq_internal.may_use(), jobq_internal.without_details(jsonb),
	jobq_internal.queue_counts(int, bigint[]), jobq_internal.stat_slots(), jobq_internal.stat_history(), jobq_internal.stat_series(text, text, text), jobq_internal.limit_slots(), jobq_internal.group_slots(),
	jobq_internal.kind_hash(text), jobq_internal.limiter_hash(text), jobq_internal.limiter_of(text, int), jobq_internal.limit_key(int, jsonb, jsonb, oid, text), jobq_internal.limit_cost(int, int), jobq_internal.scheduler_state(), jobq_internal.setup(), jobq_internal.pool_problems(),
	jobq_internal.capacity(), jobq_internal.measures(text[]), jobq_internal.stats_known(), jobq_internal.metric_label(text), jobq_internal.lane_slots(), jobq_internal.run_as_refusal(text), jobq_internal.conf_line(text, text) TO PUBLIC;
GRANT SELECT ON jobq.jobs, jobq.live_jobs, jobq.failed_jobs, jobq.kinds, jobq.queues, jobq.stats, jobq.stats_history, jobq.bill, jobq.tenants, jobq.workers, jobq.limits, jobq.limit_keys,
	jobq.groups, jobq.schedules, jobq.batches, jobq.steps, jobq.step_elements, jobq.grants, jobq.alerts, jobq.event_handlers TO PUBLIC;
GRANT SELECT, INSERT ON jobq.inbox TO PUBLIC;

CREATE FUNCTION jobq.grant_role(role regrole, privilege text DEFAULT 'produce') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_grant_role' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.grant_role(regrole, text) IS 'give a role, and its members, a privilege for all queues
role: the role
privilege: produce (enqueue, and look after what is one''s own), sql (the same, and enqueue plain statements), consume (take jobs of all roles), monitor (see all jobs, without their contents, and call doctor()), operate (also pause; cancel, retry, move all jobs), or manage (all of it; also queues and handlers, which decides what runs as others)';

CREATE FUNCTION jobq.revoke_role(role regrole, privilege text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_revoke_role' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.revoke_role(regrole, text) IS 'take back what grant_role() gave; jobs that there are run on
role: the role
privilege: which one; null: all, and those for single queues';

CREATE FUNCTION jobq.grant_queue(queue text, role regrole, privilege text DEFAULT 'produce') RETURNS void
AS 'MODULE_PATHNAME', 'jobq_grant_queue' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.grant_queue(text, regrole, text) IS 'give a role, and its members, a privilege for one queue
queue: the queue
role: the role
privilege: produce (enqueue there), sql (also plain statements), consume (take jobs of all roles), or manage (see, operate and delete its jobs, and change its settings)';

CREATE FUNCTION jobq.revoke_queue(queue text, role regrole, privilege text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_revoke_queue' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.revoke_queue(text, regrole, text) IS 'take back what grant_queue() gave; jobs that there are run on
queue: the queue
role: the role
privilege: which one; null: all';

CREATE FUNCTION jobq.reassign("from" regrole, "to" regrole) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_reassign' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.reassign(regrole, regrole) IS 'give what a role has, but for jobs that run or have ended, to another role; how many jobs and dead letters there were
from: whose it is, or was; the OID of a role that was dropped
to: whose it is from now on';

CREATE FUNCTION jobq.drop_jobs_of(role regrole) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_drop_jobs_of' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_jobs_of(regrole) IS 'cancel the jobs and batches of a role, and delete its schedules and dead letters; how many jobs and dead letters there were
role: the role, or the OID of one that was dropped';

SELECT jobq_internal.activate();
