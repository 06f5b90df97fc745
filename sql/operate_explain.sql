-- explain(): a row for each reason why a job does not run.
\connect - postgres

-- Ids, process ids and times are masked.
CREATE FUNCTION test.why(id bigint, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
	FOR reason, detail, remedy IN SELECT * FROM jobq.explain(id) LOOP
		detail := regexp_replace(detail, '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.\d]*([+-]\d\d|[ A-Z]*)', 'T', 'g');
		detail := regexp_replace(detail, '-?(\d+ days? )?\d\d:\d\d:\d\d(\.\d+)?', 'D', 'g');
		detail := regexp_replace(detail, '(jobs? |batch |worker |process )\d+(, \d+)*', '\1N', 'g');
		remedy := regexp_replace(remedy, '(explain|retry|cancel|edit|backend|start_batch|retry_many)\((batch_id => )?\d+', '\1(\2N', 'g');
		RETURN NEXT;
	END LOOP;
END
$$;

SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

-- finished
SELECT jobq.enqueue('echo') AS done, jobq.enqueue('broken', max_attempts => 1) AS dead \gset
SELECT state FROM jobq.wait_many(ARRAY[:done, :dead]);
SELECT * FROM test.why(:done);
SELECT * FROM test.why(:dead);
SELECT jobq.delete(:dead);
SELECT test.error('SELECT jobq.explain(0)');

-- written by this transaction
BEGIN;
SELECT jobq.enqueue('echo') AS id \gset
SELECT * FROM test.why(:id);
ROLLBACK;

-- the job's start time, and its next attempt
SELECT jobq.enqueue('echo', delay => '1 hour') AS later, jobq.enqueue('broken', backoff => 'fixed 1h') AS again \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :again));
SELECT * FROM test.why(:later);
SELECT * FROM test.why(:again);
SELECT jobq.cancel(id) FROM unnest(ARRAY[:later, :again]) id;

-- no worker serves the queue; the queue is also paused
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
SELECT * FROM test.why(:id);
SELECT jobq.pause('manual');
SELECT * FROM test.why(:id);
SELECT jobq.resume('manual');
SELECT jobq.cancel(:id);
-- the lock keeps the scheduler from expiring the job
SELECT jobq.enqueue('echo', queue => 'manual', expires_at => jobq_internal.clock() + interval '1 hour') AS id \gset
BEGIN;
LOCK TABLE jobq_internal.job IN SHARE ROW EXCLUSIVE MODE;
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT reason, detail LIKE 'the job had to start before %' AS told FROM test.why(:id) WHERE reason = 'expired';
SELECT jobq.cancel(:id);
COMMIT;
SELECT jobq.test_clock('0') \g /dev/null

-- no consumer; and a consumer that holds the job
SELECT jobq.create_queue('explained', mode => 'consumer');
SELECT jobq.enqueue('for consumers', queue => 'explained') AS id \gset
SELECT * FROM test.why(:id);
SELECT token FROM jobq.reserve('{explained}', wait => '5 min', consumer => 'me') \gset
SELECT * FROM test.why(:id);
SELECT jobq.ack(:id, :token);
SELECT jobq.drop_queue('explained');

-- all workers of the pool are busy; and the wait of the busy worker
SELECT pg_advisory_lock(1);
SELECT jobq.enqueue('gate', '1', queue => 'first') AS holder \gset
SELECT test.in_gate(:holder);
SELECT jobq.enqueue('echo', queue => 'second') AS id \gset
SELECT * FROM test.why(:id);
SELECT * FROM test.why(:holder) WHERE reason <> 'usual';
SELECT jobq.cancel(:holder);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:holder);
SELECT state FROM jobq.wait(:id);
-- the usual duration of this kind
SELECT jobq.enqueue('gate', '1') AS id \gset
SELECT state FROM jobq.wait(:id);
SELECT jobq.enqueue('gate', '1', timeout => '1 hour') AS id FROM pg_advisory_lock(1) \gset
SELECT test.in_gate(:id);
SELECT reason, regexp_replace(detail, 'last \d+', 'last N') AS detail FROM test.why(:id);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait(:id);

-- max_running of the queue and of the kind, and the jobs that hold the permits
SELECT jobq.create_queue('explained_narrow', open => true, max_running => 1), jobq.register('explained_one', 'test.gate(jsonb)', max_running => 1);
SELECT jobq.enqueue('gate', '1', queue => 'explained_narrow') AS holder, jobq.enqueue('explained_one', '1') AS one FROM pg_advisory_lock(1) \gset
SELECT test.in_gate(:holder, :one);
SELECT jobq.enqueue('echo', queue => 'explained_narrow') AS narrow, jobq.enqueue('explained_one', '1') AS other \gset
SELECT * FROM test.why(:narrow);
SELECT * FROM test.why(:other);
-- another role sees the existence of these jobs, but not their ids
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', queue => 'explained_narrow') AS hers \gset
SELECT * FROM jobq.explain(:hers);
SELECT test.error(format('SELECT jobq.explain(%s)', :narrow));
RESET ROLE;
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:holder, :one, :narrow, :other, :hers]);
SELECT jobq.revoke_privilege('regress_jobq_alice');
SELECT jobq.unregister('explained_one');

-- the rate of the queue; the throttle of the kind
SELECT jobq.create_queue('explained_slow', rate => '1 per day'), jobq.register('explained_weak', 'test.broken(jsonb)', throttle => '1 failures in 1 day', max_attempts => 1);
SELECT jobq.enqueue('echo', queue => 'explained_slow') AS first, jobq.enqueue('explained_weak') AS failing \gset
SELECT state FROM jobq.wait_many(ARRAY[:first, :failing]);
SELECT test.until('(SELECT rest_until IS NOT NULL FROM jobq.limits WHERE kind = ''explained_weak'')');
SELECT jobq.enqueue('echo', queue => 'explained_slow') AS next, jobq.enqueue('explained_weak') AS other \gset
SELECT * FROM test.why(:next);
SELECT * FROM test.why(:other);
SELECT jobq.cancel(id) FROM unnest(ARRAY[:next, :other]) id;
SELECT jobq.delete(:failing);
SELECT jobq.unregister('explained_weak');

-- the group: a running job, an earlier job in the group, a job whose first attempt has failed
SELECT jobq.enqueue('gate', '1', queue => 'first', group_key => 'g') AS running FROM pg_advisory_lock(1) \gset
SELECT test.in_gate(:running);
SELECT jobq.enqueue('echo', queue => 'first', group_key => 'g') AS second \gset
SELECT jobq.enqueue('echo', queue => 'first', group_key => 'g') AS third \gset
SELECT * FROM test.why(:second);
SELECT * FROM test.why(:third);
SELECT pg_advisory_unlock(1);
SELECT state FROM jobq.wait_many(ARRAY[:running, :second, :third]);
SELECT jobq.enqueue('broken', queue => 'first', group_key => 'g', backoff => 'fixed 1h') AS owner \gset
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :owner));
SELECT jobq.enqueue('echo', queue => 'first', group_key => 'g') AS id \gset
SELECT * FROM test.why(:id);
SELECT jobq.cancel(:owner);
SELECT state FROM jobq.wait(:id);

-- steps that the job needs; a batch that was not started
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "queue": "manual"}, {"name": "b", "kind": "echo", "needs": ["a"]}]}') AS batch \gset
SELECT max(job_id) FILTER (WHERE name = 'b') AS b FROM jobq.steps WHERE batch_id = :batch \gset
SELECT * FROM test.why(:b);
SELECT jobq.cancel_batch(:batch);
SELECT jobq.create_batch() AS batch \gset
SELECT jobq.add_jobs(:batch, 'echo', '{1}') AS id \gset
SELECT * FROM test.why(:id);
SELECT jobq.start_batch(:batch);
SELECT state FROM jobq.wait(:id);

-- another transaction has locked the row: here a prepared transaction
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
BEGIN;
SELECT jobq.cancel(:id);
PREPARE TRANSACTION 'explained';
SELECT * FROM test.why(:id);
ROLLBACK PREPARED 'explained';
SELECT count(*) FROM test.why(:id) WHERE reason = 'taken';
SELECT jobq.cancel(:id);

-- the job was inserted by logical replication
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
UPDATE jobq_internal.job SET dormant = true WHERE id = :id;
SELECT * FROM test.why(:id) WHERE reason = 'dormant';
UPDATE jobq_internal.job SET dormant = false WHERE id = :id;
SELECT jobq.cancel(:id);

-- the job's role may not connect
CREATE ROLE regress_jobq_gone LOGIN;
SELECT jobq.grant_privilege('regress_jobq_gone');
SET ROLE regress_jobq_gone;
SELECT jobq.enqueue('echo', queue => 'manual') AS id \gset
RESET ROLE;
REVOKE CONNECT ON DATABASE contrib_regression FROM PUBLIC;
SELECT * FROM test.why(:id) WHERE reason = 'role';
GRANT CONNECT ON DATABASE contrib_regression TO PUBLIC;
SELECT count(*) FROM test.why(:id) WHERE reason = 'role';
SELECT jobq.revoke_privilege('regress_jobq_gone');
\set VERBOSITY terse
DROP ROLE regress_jobq_gone;
\set VERBOSITY default
SELECT * FROM test.why(:id) WHERE reason = 'role';
SELECT jobq.cancel(:id);
SELECT jobq.drop_queue('explained_narrow'), jobq.drop_queue('explained_slow');
DROP FUNCTION test.why;
