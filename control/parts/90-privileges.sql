-- Privileges.  Nobody has any until they are granted: jobq.grant_role() for
-- the usual ones.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobq, jobq_internal FROM PUBLIC;
REVOKE ALL ON ALL PROCEDURES IN SCHEMA jobq, jobq_internal FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA jobq, jobq_internal FROM PUBLIC;

CREATE FUNCTION jobq.grant_role(role regrole, privilege text DEFAULT 'produce') RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	produce text[] := '{enqueue,enqueue_many,enqueue_trigger,notify,notify_trigger,current_job,set_progress,log,should_stop,snooze,retry_after,cancel_current,fail_current,perform,call,status,wait,result,cancel,reschedule,set_priority,retry,retry_all,delete_failed,delete_all_failed,clear,drain,work,clock,schedule,unschedule,pause_schedule,resume_schedule,run_schedule,cron_next,create_batch,batch_add,batch_start,batch_cancel,batch_retry_failed,batch_status,workflow,chain}';
	consume text[] := '{reserve,ack,nack,reject,release,extend,report_progress,set_context}';
	manage text[] := '{register,unregister,create_queue,alter_queue,drop_queue,prune,pause,resume,restart_workers,doctor}';
	internal text[] := '{run_next,worker_slots,lease_slots,live_state,may_see,queue_counts,limit_slots,group_slots,kind_hash,scheduler_state,setup,pool_problems,capacity,lane_slots,conf_line}';
	routine regprocedure;
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'role must not be null';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION USING ERRCODE = 'undefined_object', MESSAGE = format('role with OID %s does not exist', role::oid);
	END IF;
	IF privilege IS NULL OR privilege NOT IN ('produce', 'manage') THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = format('invalid privilege "%s"', privilege),
			HINT = 'It is produce or manage.';
	END IF;
	EXECUTE format('GRANT USAGE ON SCHEMA jobq, jobq_internal TO %s', role);
	EXECUTE format('GRANT INSERT, SELECT ON jobq.inbox TO %s', role);
	EXECUTE format('GRANT SELECT ON jobq.jobs, jobq.live_jobs, jobq.failed_jobs, jobq.kinds, jobq.queues, jobq.workers, jobq.limits, jobq.groups, jobq.schedules, jobq.batches, jobq.steps TO %s', role);
	FOR routine IN
		SELECT p.oid FROM pg_proc p
		WHERE p.pronamespace = 'jobq'::regnamespace
			AND (p.proname = ANY (produce) OR p.proname = ANY (consume) OR (privilege = 'manage' AND p.proname = ANY (manage)))
			OR p.pronamespace = 'jobq_internal'::regnamespace AND p.proname = ANY (internal)
	LOOP
		EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %s', routine, role);
	END LOOP;
END
$$;
REVOKE ALL ON FUNCTION jobq.grant_role(regrole, text) FROM PUBLIC;
COMMENT ON FUNCTION jobq.grant_role(regrole, text) IS 'let a role produce jobs and look after its own; or manage queues and handlers, too, which decides what runs as others
role: the role
privilege: produce or manage';

CREATE FUNCTION jobq.revoke_role(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF role IS NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'role must not be null';
	ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = role) THEN
		RAISE EXCEPTION USING ERRCODE = 'undefined_object', MESSAGE = format('role with OID %s does not exist', role::oid);
	END IF;
	EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA jobq, jobq_internal FROM %s', role);
	EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA jobq, jobq_internal FROM %s', role);
	EXECUTE format('REVOKE ALL ON SCHEMA jobq, jobq_internal FROM %s', role);
END
$$;
REVOKE ALL ON FUNCTION jobq.revoke_role(regrole) FROM PUBLIC;
COMMENT ON FUNCTION jobq.revoke_role(regrole) IS 'take back what grant_role() gave
role: the role';

SELECT jobq_internal.activate();
