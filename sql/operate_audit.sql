-- The audit log: one row for each call of an operator, and none for producers.

CREATE ROLE regress_auditor;
CREATE ROLE regress_shift_lead;
CREATE ROLE regress_shop;
SELECT jobq.grant_privilege('regress_auditor', 'monitor'), jobq.grant_privilege('regress_shift_lead', 'operate'), jobq.grant_privilege('regress_shop') \g /dev/null
SELECT jobq.create_queue('audited', mode => 'consumer', open => true) \g /dev/null
SELECT max(id) AS seen FROM jobq.audit_log \gset

-- a producer acts on its own jobs
SET ROLE regress_shop;
SELECT jobq.grant_privilege('regress_shop', 'manage');
SELECT jobq.enqueue('parcel', '{"n": 1}', queue => 'audited', delay => '1 h') AS own_job \gset
SELECT jobq.edit(:own_job, priority => 3), jobq.cancel(:own_job);
SELECT jobq.cancel_many(kind => 'parcel', older_than => '0');
RESET ROLE;
SELECT count(*) FROM jobq.audit_log WHERE id > :seen;

-- an operator acts on jobs of others; a dry run changes nothing
SELECT jobq.enqueue('parcel', jsonb_build_object('n', n), queue => 'audited', unique_key => 'parcel-' || n) FROM generate_series(1, 5) n \g /dev/null
SELECT min(id) AS first_job FROM jobq.live_jobs WHERE queue = 'audited' \gset
SET ROLE regress_shift_lead;
SET application_name = 'the shift';
SELECT jobq.cancel_many(queue => 'audited', dry_run => true);
SELECT jobq.cancel_many(queue => 'audited', max_jobs => 2, dry_run => true);
SELECT jobq.cancel_many(dry_run => true);
SELECT jobq.edit_many('{"priority": 7}', queue => 'audited', dry_run => true);
SELECT count(*), max(priority) FROM jobq.live_jobs WHERE queue = 'audited';
SELECT jobq.edit_many('{"priority": 7}', queue => 'audited', error => NULL);
SELECT jobq.edit(:first_job, priority => 9), jobq.cancel(:first_job);
SELECT jobq.cancel(:first_job);
SELECT jobq.pause('audited'), jobq.resume('audited');
-- without the privilege to read jobs
SELECT jobq.cancel_many(queue => 'audited', unique_key => 'parcel-3');
RESET ROLE;
SELECT jobq.cancel_many(queue => 'audited', unique_key => 'parcel-3');
SELECT jobq.cancel_many(ids => ARRAY[NULL, 0]::bigint[] || (SELECT array_agg(n) FROM generate_series(1000000, 1000300) n) || (SELECT max(id) FROM jobq.live_jobs WHERE queue = 'audited'));
RESET application_name;

-- an error, or a rollback, leaves no row
BEGIN;
SELECT jobq.pause('audited');
SELECT count(*) FROM jobq.audit_log WHERE id > :seen AND action = 'pause';
ROLLBACK;
SELECT jobq.pause('unknown');
SELECT count(*) FROM jobq.audit_log WHERE id > :seen AND action = 'pause';

-- a call without effect leaves no row
BEGIN;
SELECT jobq.create_batch('audited') AS batch \gset
SELECT jobq.pause('audited'), jobq.pause('audited', kind => 'parcel'), jobq.cancel_batch(:batch);
SELECT max(id) AS effective FROM jobq.audit_log \gset
UPDATE jobq_internal.queue SET made_by = 'regress_shop'::regrole WHERE name = 'audited';
SELECT jobq.pause('audited'), jobq.pause('audited', kind => 'parcel'), jobq.resume('audited', kind => 'other'), jobq.alter_queue('audited') \g /dev/null
SELECT jobq.revoke_privilege('regress_auditor', 'manage', 'audited') \g /dev/null
UPDATE jobq_internal.batch SET state = 'x', finished_at = now() WHERE id = :batch;
SELECT jobq.cancel_batch(:batch), jobq.cancel(:first_job), jobq.cancel_many(kind => 'none'), jobq.delete_many(kind => 'none'), jobq.drop_owned('regress_auditor');
SELECT count(*) FROM jobq.audit_log WHERE id > :effective;
SELECT jobq.resume('audited', kind => 'parcel'), jobq.resume('audited') \g /dev/null
SELECT action, arguments FROM jobq.audit_log WHERE id > :effective ORDER BY id;
ROLLBACK;
BEGIN READ ONLY;
SELECT jobq.restart_workers();
ROLLBACK;

-- a signal to a job of another role, whose payload is not recorded
SELECT jobq.signal(max(id), 'arrived', '{"secret": 1}') FROM jobq.live_jobs WHERE queue = 'audited';

-- drop_queue() by the manager of this queue only, whose privilege is deleted with the queue; the entry outlasts the role
CREATE ROLE regress_queue_lead;
SELECT jobq.create_queue('led'), jobq.grant_privilege('regress_queue_lead', 'manage', 'led') \g /dev/null
SET ROLE regress_queue_lead;
SELECT jobq.drop_queue('led');
RESET ROLE;
DROP ROLE regress_queue_lead;
SELECT role, action, arguments FROM jobq.audit_log WHERE action = 'drop_queue' AND id > :seen;

-- settings, privileges and schedules; payloads and statements are not recorded
CREATE FUNCTION audited_kind(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('audited_kind', 'audited_kind(jsonb)', max_attempts => 2), jobq.alter_queue('audited', max_running => 4, rate => '10 per minute') \g /dev/null
SELECT jobq.schedule('audited', '0 5 * * *', 'audited_kind', '{"secret": 1}'), jobq.pause(schedule => 'audited'), jobq.unschedule('audited') \g /dev/null
SELECT jobq.revoke_privilege('regress_shop'), jobq.grant_privilege('regress_shop', queue => 'audited') \g /dev/null
SELECT jobq.unregister('audited_kind'), jobq.cancel_many(queue => 'audited'), jobq.drop_queue('audited') \g /dev/null

-- a reader without access to jobs does not see keys
SELECT CASE role WHEN current_user THEN 'owner' ELSE role END AS role, role <> login AS set_role, application, action,
	arguments - '{id,ids}'::text[] AS arguments, length(arguments ->> 'ids') AS length_of_ids, jobs
FROM jobq.audit_log WHERE id > :seen ORDER BY id;
SET ROLE regress_auditor;
SELECT action, arguments - 'ids' AS arguments, jobs FROM jobq.audit_log WHERE id > :seen AND action = 'cancel_many' AND application = 'the shift' ORDER BY id;
SET ROLE regress_shift_lead;
SELECT count(DISTINCT role) > 1 AS of_others, count(*) FILTER (WHERE role = 'regress_shift_lead') AS own FROM jobq.audit_log WHERE id > :seen;
SET ROLE regress_shop;
SELECT count(*) FROM jobq.audit_log WHERE id > :seen;
SELECT * FROM jobq_internal.audit;
RESET ROLE;

SELECT jobq.revoke_privilege(r::regrole, NULL) FROM unnest('{regress_auditor,regress_shift_lead,regress_shop}'::text[]) r \g /dev/null
SELECT jobq.drop_owned('regress_shop') \g /dev/null
DROP ROLE regress_auditor, regress_shift_lead, regress_shop;
DROP FUNCTION audited_kind(jsonb);
