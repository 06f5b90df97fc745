-- A procedure waits for a time or a signal, without a worker.
\connect - postgres
SET datestyle = 'ISO';
SET intervalstyle = 'postgres';

CREATE PROCEDURE test.onboard(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF jobq.step('account') THEN
		INSERT INTO test.effect (note) VALUES ('account');
		CALL jobq.step_done();
	END IF;
	CALL jobq.sleep('trial', interval '3 days');
	CALL jobq.await_signal('approved', answer, timeout => interval '21 days');
	INSERT INTO test.effect (note) VALUES (format('approved: %s, attempt %s', answer, job.attempt));
END
$$;
SELECT jobq.register('onboard', 'test.onboard(jsonb, jobq.job_context)', max_attempts => 1);
CREATE FUNCTION test.suspended(id bigint, waits_for text) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT state = ''suspended'' AND message LIKE %L FROM jobq.status(%s))', '%' || waits_for || '%', id))
$$;
TRUNCATE test.effect;
SELECT jobq.enqueue('onboard') AS id \gset
SELECT test.suspended(:id, 'trial');
SELECT state, attempt, run_at - now() BETWEEN '2 days 23 hours' AND '3 days' AS in_three_days, message, error FROM jobq.status(:id);
SELECT state, attempt, message, worker, started_at FROM jobq.live_jobs WHERE id = :id;
SELECT reason, regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T ', 'g') AS detail, remedy FROM jobq.explain(:id);
-- no worker, no permit: the job is scheduled as any job
SELECT count(*) FROM jobq.workers WHERE job_id = :id;
-- moved to an earlier time, the job sleeps again
SELECT jobq.edit(:id, run_at => now());
SELECT test.suspended(:id, 'trial');
SELECT * FROM test.error(format('SELECT jobq.retry(%s)', :id));
SELECT jobq.test_clock('3 days 1 hour') \g /dev/null
SELECT test.suspended(:id, 'approved');
SELECT reason, regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T ', 'g') AS detail, replace(remedy, :'id', 'N') AS remedy FROM jobq.explain(:id);
-- a signal takes part in the transaction; another name, a rolled back signal and an uncommitted signal do not wake the job
SELECT jobq.signal(:id, 'declined');
BEGIN;
SELECT jobq.signal(:id, 'approved', '{"by": "nobody"}');
ROLLBACK;
BEGIN;
SELECT jobq.signal(:id, 'approved', '{"by": "Ann"}');
SELECT count(*) FROM test.effect;
COMMIT;
SELECT state, attempt, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
SELECT event, by, detail FROM (SELECT event, by, regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T') AS detail FROM jobq.history(:id)) h
WHERE event IN ('step', 'signal', 'suspended', 'resumed');
-- over
SELECT jobq.signal(:id, 'approved');
SELECT jobq.test_clock('0') \g /dev/null

-- the timeout; early signals, in order; the same signal for several steps
CREATE PROCEDURE test.collect(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	note jsonb;
BEGIN
	CALL jobq.await_signal('late', note, timeout => '1 hour');
	FOR i IN 1..3 LOOP
		CALL jobq.await_signal('note', note, step => format('note %s', i));
		IF jobq.step(format('keep %s', i)) THEN
			INSERT INTO test.effect (note) VALUES (format('%s: %s', i, note));
			CALL jobq.step_done();
		END IF;
	END LOOP;
	CALL jobq.await_signal('null', note);
	INSERT INTO test.effect (note) VALUES (format('late: %s, null: %s, kept: %s', coalesce(jobq.step_result('late')::text, 'timeout'), note, jobq.step_result('note 2')));
END
$$;
SELECT jobq.register('collect', 'test.collect(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('collect') AS id \gset
SELECT jobq.signal(:id, 'note', '"first"'), jobq.signal(:'id', 'note', '"second"');
SELECT test.suspended(:id, 'late');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT test.suspended(:id, 'note');
SELECT note FROM test.effect ORDER BY n;
SELECT state, run_at, message FROM jobq.status(:id);
SELECT run_at FROM jobq.live_jobs WHERE id = :id;
SELECT reason, regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T') AS detail FROM jobq.explain(:id);
SELECT jobq.signal(:id, 'note', '"third"');
SELECT test.suspended(:id, 'null');
SELECT jobq.signal(:id, 'null', 'null');
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
SELECT jobq.test_clock('0') \g /dev/null

-- counted with scheduled jobs
SELECT jobq.create_queue('waits', open => true, tenant => 'header customer');
SELECT jobq.enqueue('collect', queue => 'waits', headers => '{"customer": "Ann"}') AS id \gset
SELECT test.suspended(:id, 'late');
SELECT tenant, state FROM jobq.live_jobs WHERE queue = 'waits';
SELECT ready, scheduled, blocked, running FROM jobq.queues WHERE name = 'waits';
SELECT jobq.cancel(:id);
SELECT jobq.drop_queue('waits');

-- cancelled while it waits
SELECT jobq.enqueue('onboard') AS id \gset
SELECT test.suspended(:id, 'trial');
SELECT jobq.cancel_many(kind => 'onboard', state => 'suspended');
SELECT state, error FROM jobq.status(:id);
SELECT jobq.signal(:id, 'approved');

-- a dead letter keeps a signal for the retry
CREATE PROCEDURE test.dies_first(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF NOT EXISTS (SELECT FROM test.effect WHERE note = 'alive') THEN
		RAISE EXCEPTION 'not alive';
	END IF;
	CALL jobq.await_signal('go', answer, '1 day');
	INSERT INTO test.effect (note) VALUES (answer);
END
$$;
SELECT jobq.register('dies_first', 'test.dies_first(jsonb, jobq.job_context)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('dies_first', options => jsonb_build_object('uuid', 'd7b3ab2b-5d4a-4d0c-8f0a-0d6f3a4c46f1')) AS id \gset
SELECT state FROM test.outcome(:id);
SELECT jobq.signal('d7b3ab2b-5d4a-4d0c-8f0a-0d6f3a4c46f1'::uuid, 'go', '"to a dead letter"');
INSERT INTO test.effect (note) VALUES ('alive');
SELECT jobq.retry(:id);
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;

-- to the job that holds a unique key, in each scope; a driver may leave the types of the parameters open
SELECT jobq.enqueue('dies_first', unique_key => 'invoice 17') AS id \gset
SELECT jobq.enqueue('dies_first', unique_key => '17', uniqueness => '{"scope": "queue"}') AS in_queue \gset
SELECT jobq.enqueue('dies_first', unique_key => '17', uniqueness => '{"scope": "database"}') AS in_database \gset
SELECT test.suspended(j, 'go') FROM unnest(ARRAY[:id, :in_queue, :in_database]::bigint[]) j;
TRUNCATE test.effect;
INSERT INTO test.effect (note) VALUES ('alive');
SELECT jobq.signal('dies_first', 'invoice 18', 'go', '{}'), jobq.signal('onboard', 'invoice 17', 'go', '{}'),
	jobq.signal(NULL, '17', 'go', '{}', scope => 'queue', queue => 'no such queue');
PREPARE send AS SELECT jobq.signal(kind => $1, unique_key => $2, name => $3, payload => $4);
EXECUTE send('dies_first', 'invoice 17', 'go', '"by key"');
SELECT test.outcome(:id);
EXECUTE send('dies_first', 'invoice 17', 'go', '"over"');
SELECT jobq.signal(NULL, '17', 'go', '"in a queue"', scope => 'queue', queue => 'default');
SELECT test.outcome(:in_queue);
SELECT jobq.signal(NULL, '17', 'go', '"in the database"', scope => 'database');
SELECT test.outcome(:in_database);
SELECT note FROM test.effect ORDER BY n;
SELECT * FROM test.error('SELECT jobq.signal(NULL, ''17'', ''go'', ''{}'')');
SELECT * FROM test.error('SELECT jobq.signal(''dies_first'', NULL, ''go'', ''{}'')');
SELECT * FROM test.error('SELECT jobq.signal(''dies_first'', ''17'', NULL, ''{}'')');
SELECT * FROM test.error('SELECT jobq.signal(''dies_first'', ''17'', ''go'', NULL)');
SELECT * FROM test.error('SELECT jobq.signal(''dies_first'', ''17'', ''go'', ''{}'', scope => ''queue'')');

-- a step of a workflow waits; the workflow goes on when the step has ended
SELECT jobq.create_workflow('{"steps": [{"name": "wait", "kind": "onboard"}, {"name": "after", "kind": "echo", "payload": 1, "needs": ["wait"]}]}') AS batch \gset
SELECT job_id AS id FROM jobq.steps WHERE batch_id = :batch AND name = 'wait' \gset
SELECT test.suspended(:id, 'trial');
SELECT name, state FROM jobq.steps WHERE batch_id = :batch ORDER BY name;
SELECT jobq.test_clock('4 days') \g /dev/null
SELECT test.suspended(:id, 'approved');
SELECT jobq.signal(:id, 'approved', '"workflow"');
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT name, state FROM jobq.steps WHERE batch_id = :batch ORDER BY name;
-- steps that run again begin anew
SELECT jobq.rerun_steps(:batch, 'wait');
SELECT test.suspended(:id, 'trial');
SELECT jobq.cancel_batch(:batch);
SELECT jobq.test_clock('0') \g /dev/null

-- a new definition between two runs: what is done stays done
CREATE PROCEDURE test.changes(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	IF jobq.step('old') THEN
		INSERT INTO test.effect (note) VALUES ('old');
		CALL jobq.step_done();
	END IF;
	CALL jobq.sleep('a day', '1 day');
	INSERT INTO test.effect (note) VALUES ('the old end');
END
$$;
SELECT jobq.register('changes', 'test.changes(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('changes') AS id \gset
SELECT test.suspended(:id, 'a day');
CREATE OR REPLACE PROCEDURE test.changes(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	IF jobq.step('new') THEN
		INSERT INTO test.effect (note) VALUES ('new');
		CALL jobq.step_done();
	END IF;
	IF jobq.step('old') THEN
		INSERT INTO test.effect (note) VALUES ('never');
		CALL jobq.step_done();
	END IF;
	CALL jobq.sleep('a day', '1 week');
	INSERT INTO test.effect (note) VALUES ('the new end');
END
$$;
SELECT jobq.test_clock('25 hours') \g /dev/null
SELECT state, error FROM test.outcome(:id);
SELECT note FROM test.effect ORDER BY n;
SELECT jobq.test_clock('0') \g /dev/null

-- the version of the definition with which the job has begun, also in a function that the procedure calls, and after a rerun
CREATE FUNCTION test.version() RETURNS text LANGUAGE sql AS $$ SELECT (jobq.current_job()).handler_version $$;
CREATE PROCEDURE test.versioned(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	PERFORM jobq.save('1');
	COMMIT;
	CALL jobq.await_signal('go', answer);
	INSERT INTO test.effect (note) VALUES (format('old, %s, %s', job.handler_version = payload ->> 'old', test.version() = job.handler_version));
END
$$;
SELECT jobq.register('versioned', 'test.versioned(jsonb, jobq.job_context)', max_attempts => 1);
SELECT handler_version AS old FROM jobq.kinds WHERE kind = 'versioned' \gset
TRUNCATE test.effect;
SELECT jobq.enqueue('versioned', jsonb_build_object('old', :'old')) AS id, jobq.enqueue('versioned', jsonb_build_object('old', :'old')) AS id2 \gset
SELECT test.suspended(:id, 'go'), test.suspended(:id2, 'go');
SELECT jobq.signal(:id, 'go');
SELECT state, error FROM test.outcome(:id);
SELECT replace(prosrc, 'old, ', 'new, ') AS source FROM pg_proc WHERE oid = 'test.versioned(jsonb, jobq.job_context)'::regprocedure \gset
CREATE OR REPLACE PROCEDURE test.versioned(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS :'source';
SELECT handler_version <> :'old' AS changed, handler_version ~ '^[0-9a-f]{16}$' AS is_hash FROM jobq.kinds WHERE kind = 'versioned';
SELECT jobq.signal(:id2, 'go');
SELECT state, error FROM test.outcome(:id2);
SELECT jobq.enqueue('versioned', jsonb_build_object('old', :'old')) AS id3, jobq.rerun(:id, from_step => 'go') AS again \gset
SELECT jobq.signal(j, 'go') FROM unnest(ARRAY[:id3, :again]::bigint[]) j;
SELECT state FROM jobq.wait_many(ARRAY[:id3, :again]::bigint[], '5 min');
SELECT note FROM test.effect ORDER BY note;
DROP PROCEDURE test.versioned(jsonb, jobq.job_context);
SELECT handler_version FROM jobq.kinds WHERE kind = 'versioned';
SELECT jobq.unregister('versioned');
DROP FUNCTION test.version();

-- privileges: the job's own role, and manage
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob'), jobq.grant_privilege('regress_jobq_boss', 'operate');
GRANT INSERT ON test.effect TO regress_jobq_alice;
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('collect') AS id \gset
SELECT test.suspended(:id, 'late');
RESET ROLE;
SET ROLE regress_jobq_bob;
SELECT * FROM test.error(format('SELECT jobq.signal(%s, ''late'')', :id));
SET ROLE regress_jobq_boss;
SELECT * FROM test.error(format('SELECT jobq.signal(%s, ''late'')', :id));
SELECT state, message FROM jobq.live_jobs WHERE id = :id;
SELECT count(*) FROM jobq.history(:id) WHERE event IN ('suspended', 'signal') AND took IS NULL AND attempt IS NULL AND detail LIKE '%late%';
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT jobq.signal(:id, 'late', '"the boss"');
RESET ROLE;
SELECT test.suspended(:id, 'note');
SET ROLE regress_jobq_alice;
SELECT jobq.signal(:id, 'note', '1'), jobq.signal(:id, 'note', '2'), jobq.signal(:id, 'note', '3'), jobq.signal(:id, 'null', '4');
RESET ROLE;
SELECT sent_by, name, payload FROM jobq_internal.signal WHERE job_id = :id ORDER BY id;
SELECT jobq.cancel(:id) IS NOT NULL;
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');

-- bad input
SELECT c, e.code, e.message, e.hint FROM unnest('{"NULL::bigint, ''a''","1, NULL","1, ''''","1, repeat(''x'', 128)","1, ''a'', NULL","0, ''a''","''a'', ''b''","''d7b3ab2b-5d4a-4d0c-8f0a-0d6f3a4c46f9'', ''a''"}'::text[])
	WITH ORDINALITY u (c, n), test.error(format('SELECT jobq.signal(%s)', c)) e ORDER BY n;

-- a job with a completed step: replace begins anew under its id, merge enqueues another job
CREATE PROCEDURE test.keyed(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF jobq.step('first') THEN
		INSERT INTO test.effect (note) VALUES (format('first of %s', payload ->> 'n'));
		CALL jobq.step_done();
	END IF;
	CALL jobq.await_signal('go', answer);
	INSERT INTO test.effect (note) VALUES (format('last of %s: %s', payload ->> 'n', answer));
END
$$;
SELECT jobq.register('keyed', 'test.keyed(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('keyed', '{"n": 1}', unique_key => 'k') AS id \gset
SELECT test.suspended(:id, 'go');
SELECT jobq.enqueue('keyed', '{"n": 2}', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}') = :id AS same;
SELECT test.until('EXISTS (SELECT FROM test.effect WHERE note = ''first of 2'')');
SELECT test.suspended(:id, 'go');
-- a signal to the replaced job does not reach the next
BEGIN;
SELECT jobq.signal(:id, 'go', '"to 2"');
SELECT jobq.enqueue('keyed', '{"n": 3}', unique_key => 'k', uniqueness => '{"on_conflict": "replace"}') = :id AS same;
COMMIT;
SELECT test.until('EXISTS (SELECT FROM test.effect WHERE note = ''first of 3'')');
SELECT test.suspended(:id, 'go');
SELECT jobq.enqueue('keyed', '{"n": 4}', unique_key => 'k', uniqueness => '{"on_conflict": "merge"}') AS other \gset
SELECT :other = :id AS same;
SELECT test.suspended(:other, 'go');
SELECT jobq.signal(:id, 'go', '"to 3"'), jobq.signal(:other, 'go', '"to 4"');
SELECT state, error FROM test.outcome(:id);
SELECT state, error FROM test.outcome(:other);
SELECT note FROM test.effect ORDER BY note;

-- a begun job does not expire during the wait, and is not dropped to make room
SELECT jobq.create_queue('narrow', open => true, max_length => 2, on_full => 'drop oldest');
SELECT jobq.enqueue('keyed', '{"n": 5}', queue => 'narrow', expires_at => jobq_internal.clock() + interval '1 hour') AS id \gset
SELECT test.suspended(:id, 'go');
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT state FROM jobq.status(:id);
SELECT jobq.enqueue('echo', queue => 'narrow', delay => '1 day') AS dropped, jobq.enqueue('echo', queue => 'narrow', delay => '1 day') AS kept \gset
SELECT id = :id AS suspended, state, error FROM jobq.jobs WHERE id IN (:id, :dropped, :kept) ORDER BY id;
SELECT jobq.pause('narrow');
SELECT jobq.signal(:id, 'go', '"in time"');
SELECT jobq.enqueue('echo', queue => 'narrow', delay => '1 day') AS kept \gset
SELECT state FROM jobq.status(:id);
-- work() leaves the job to a worker
SELECT jobq.edit(:id, queue => 'manual');
CALL jobq.work('{manual}', stop_when_empty => true);
SELECT state, attempt, error FROM jobq.status(:id);
SELECT jobq.resume('narrow');
SELECT jobq.edit(:id, queue => 'narrow');
SELECT state, attempt, error FROM test.outcome(:id);
SELECT note FROM test.effect WHERE note LIKE 'last of 5%';
SELECT jobq.cancel(:kept);
SELECT jobq.drop_queue('narrow');
SELECT jobq.test_clock('0') \g /dev/null

-- a sleep that is over commits; explain() shows the wait of the present definition only
CREATE PROCEDURE test.commits(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.effect (note) VALUES ('committed');
	CALL jobq.sleep('over', '0');
	ROLLBACK;
	CALL jobq.sleep('old', '1 day');
END
$$;
SELECT jobq.register('commits', 'test.commits(jsonb)', max_attempts => 1);
TRUNCATE test.effect;
SELECT jobq.enqueue('commits') AS id \gset
SELECT test.suspended(:id, 'old');
SELECT note FROM test.effect;
CREATE OR REPLACE PROCEDURE test.commits(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN CALL jobq.sleep('new', '1 day'); END $$;
SELECT jobq.edit(:id, run_at => now());
SELECT test.suspended(:id, 'new');
SELECT reason, regexp_replace(detail, '\d{4}-[-0-9:+ ]+', 'T ', 'g') AS detail FROM jobq.explain(:id);
SELECT jobq.cancel(:id);

-- steps and signals of jobs that no longer exist are deleted by the scheduler
SELECT count(*) > 0 AS some FROM jobq_internal.procedure_step;
SELECT jobq.prune('0', '0') > 0 AS pruned;
SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT test.until('NOT EXISTS (SELECT FROM jobq_internal.procedure_step s WHERE s.job_id NOT IN (SELECT id FROM jobq.jobs))
	AND NOT EXISTS (SELECT FROM jobq_internal.signal s WHERE s.job_id NOT IN (SELECT id FROM jobq.jobs))');
SELECT jobq.test_clock('0') \g /dev/null

DROP PROCEDURE test.keyed(jsonb), test.commits(jsonb), test.onboard(jsonb, jobq.job_context), test.collect(jsonb), test.dies_first(jsonb, jobq.job_context), test.changes(jsonb);
DROP FUNCTION test.suspended(bigint, text);
DROP TABLE test.effect;
SELECT count(jobq.unregister(k)) FROM unnest('{keyed,commits,onboard,collect,dies_first,changes}'::text[]) k;
