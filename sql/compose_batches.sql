-- Batches: groups of jobs with callbacks that run when the batch ends.

CREATE FUNCTION test.batch_job(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fail' AND NOT EXISTS (SELECT FROM test.trace WHERE note = 'mended') THEN
		RAISE EXCEPTION 'it fails';
	END IF;
	IF payload ? 'more' THEN
		PERFORM jobq.add_jobs((jobq.current_job()).batch_id, 'part', ARRAY[payload -> 'more']);
	END IF;
	IF payload ? 'discard' THEN
		PERFORM jobq.cancel_current('nothing to do');
	END IF;
END
$$;
CREATE FUNCTION test.batch_callback(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO test.trace (note) VALUES (format('%s: %s is %s', payload ->> 'on', job.headers ->> 'batch', job.headers ->> 'batch_state'));
$$;
SELECT jobq.register('part', 'test.batch_job(jsonb)', max_attempts => 1);
SELECT jobq.register('then', 'test.batch_callback(jsonb, jobq.job_context)');
TRUNCATE test.trace;

-- the same batch ids, whichever tests ran before
SELECT setval('jobq_internal.batch_id_seq', 1000);

-- a batch with all three callbacks
CREATE FUNCTION test.batch(name text, allow_failures boolean DEFAULT false, start boolean DEFAULT false) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_batch(name, '{"kind": "then", "payload": {"on": "success"}}', '{"kind": "then", "payload": {"on": "failure"}}',
		'{"kind": "then", "payload": {"on": "finish"}, "priority": 1}', allow_failures, start);
$$;
-- waits for the end of a batch and its callbacks, and shows the result
CREATE PROCEDURE test.batch_over(id bigint) LANGUAGE plpgsql AS $$
DECLARE
	s jobq.batch_status;
BEGIN
	PERFORM jobq.wait_batch(id, '5 min');
	COMMIT;
	PERFORM jobq.wait_many(ARRAY(SELECT j.id FROM jobq.live_jobs j WHERE j.kind = 'then'), '5 min');
	COMMIT;
	s := jobq.wait_batch(id, '0');
	RAISE NOTICE '% is %: total %, ready %, scheduled %, blocked %, running %, completed %, dead %, cancelled %, expired %, % %%',
		s.name, s.state, s.total, s.ready, s.scheduled, s.blocked, s.running, s.completed, s.dead, s.cancelled, s.expired, s.progress;
END
$$;

-- nothing runs before the start
SELECT test.batch('slow') AS slow \gset
SELECT count(*) FROM jobq.add_jobs(:slow, 'part', array_fill('{}'::jsonb, '{3}'));
SELECT id AS held FROM jobq.add_jobs(:slow, 'part', '{"{}"}', options => '{"delay": "1 hour"}') id \gset
SELECT state, total, ready, scheduled, blocked, progress, started_at IS NULL AS not_started FROM jobq.batches WHERE id = :slow;
SELECT DISTINCT state, run_at FROM jobq.jobs WHERE batch_id = :slow;
SELECT state, run_at FROM jobq.status(:held);
SELECT ready, scheduled, blocked FROM jobq.queues WHERE name = 'default';
SELECT * FROM test.error(format('SELECT jobq.edit(%s, run_at => now())', :held));
SELECT jobq.edit(:held, priority => 7);
SELECT state, priority FROM jobq.jobs WHERE id = :held;
SELECT jobq.start_batch(:slow);
-- the delay begins with the start
SELECT state, round(extract(epoch FROM run_at - started) / 60) AS minutes
FROM jobq.status(:held), LATERAL (SELECT started_at AS started FROM jobq.batches WHERE id = :slow) b;
SELECT jobq.cancel(:held);
CALL test.batch_over(:slow);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- create, fill and start in the same transaction; a job of a batch adds more jobs
BEGIN;
SELECT test.batch('grows', start => true) AS grows \gset
SELECT count(*) FROM jobq.add_jobs(:grows, 'part', '{"{\"more\": {\"more\": {}}}", "{\"discard\": 1}"}');
COMMIT;
CALL test.batch_over(:grows);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- a job fails: waiting jobs are cancelled
BEGIN;
SELECT test.batch('fails', start => true) AS fails \gset
SELECT count(*) FROM jobq.add_jobs(:fails, 'part', array_fill('{}'::jsonb, '{500}'), options => '{"delay": "1 hour"}');
SELECT count(*) FROM jobq.add_jobs(:fails, 'part', '{"{\"fail\": 1}"}');
COMMIT;
CALL test.batch_over(:fails);
SELECT DISTINCT state, error FROM jobq.jobs WHERE batch_id = :fails ORDER BY 1;
SELECT note FROM test.trace ORDER BY note;

-- ... and is retried: the batch ends again
TRUNCATE test.trace;
SELECT jobq.retry_many(batch_id => :fails);
CALL test.batch_over(:fails);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
INSERT INTO test.trace (note) VALUES ('mended');
SELECT jobq.retry(id) FROM jobq.dead_letters WHERE kind = 'part';
CALL test.batch_over(:fails);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;

-- with allow_failures, the other jobs go on
BEGIN;
SELECT test.batch('goes on', allow_failures => true) AS goes_on \gset
SELECT count(*) FROM jobq.add_jobs(:goes_on, 'part', '{"{\"fail\": 1}"}');
SELECT count(*) FROM jobq.add_jobs(:goes_on, 'part', array_fill('{}'::jsonb, '{20}'), options => '{"priority": 5}');
SELECT count(*) FROM jobq.add_jobs(:goes_on, 'part', '{"{}"}', options => '{"expires_at": "2001-01-01"}');
SELECT jobq.start_batch(:goes_on);
COMMIT;
CALL test.batch_over(:goes_on);
SELECT note FROM test.trace ORDER BY note;
SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'part';
TRUNCATE test.trace;

-- cancel_batch(): waiting, blocked and running jobs
BEGIN;
SELECT test.batch('cancelled', start => true) AS cancelled \gset
SELECT count(*) FROM jobq.add_jobs(:cancelled, 'part', array_fill('{}'::jsonb, '{300}'), options => '{"delay": "1 hour"}');
COMMIT;
SELECT jobq.cancel_batch(:cancelled);
CALL test.batch_over(:cancelled);
SELECT jobq.cancel_batch(:cancelled);
SELECT test.batch('never begun') AS never \gset
SELECT count(*) FROM jobq.add_jobs(:never, 'part', array_fill('{}'::jsonb, '{2}'));
SELECT jobq.cancel_batch(:never);
CALL test.batch_over(:never);
SELECT note FROM test.trace ORDER BY note;
TRUNCATE test.trace;
SELECT test.error(format('SELECT jobq.retry_many(batch_id => %s)', :never));
SELECT test.error('SELECT jobq.retry_many(batch_id => 0)'), jobq.retry_many(kind => 'part', batch_id => 0);
SELECT jobq.retry_many(batch_id => 0, state => 'retryable');

-- empty batches: start_batch() ends an empty batch; a batch created with start => true waits for its first job
SELECT test.batch('empty') AS empty \gset
SELECT jobq.start_batch(:empty);
CALL test.batch_over(:empty);
SELECT test.batch('filled later', start => true) AS later \gset
SELECT state, total FROM jobq.wait_batch(:later, '1 ms');
SELECT count(*) FROM jobq.add_jobs(:later, 'part', '{"{}"}');
CALL test.batch_over(:later);
TRUNCATE test.trace;

-- jobs of consumers, in a queue with keep => 'nothing'
SELECT jobq.create_queue('parts', mode => 'consumer', keep => 'nothing');
BEGIN;
SELECT test.batch('outside', start => true) AS outside \gset
SELECT count(*) FROM jobq.add_jobs(:outside, 'outside.part', array_fill('{"a": 1}'::jsonb, '{4}'), options => '{"queue": "parts"}');
COMMIT;
SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{parts}', 2, wait => '5 min');
SELECT jobq.ack_many(array_agg(id), array_agg(token)) FROM jobq.reserve('{parts}', 1, wait => '5 min');
SELECT state, total, ready, scheduled, completed FROM jobq.batches WHERE id = :outside;
SELECT count(jobq.reject(id, token, 'broken')) FROM jobq.reserve('{parts}', 1, wait => '5 min');
CALL test.batch_over(:outside);
SELECT note FROM test.trace ORDER BY note;
SELECT state, payload FROM jobq.jobs WHERE batch_id = :outside ORDER BY state;
SELECT jobq.delete_many('parts');
TRUNCATE test.trace;

-- a job that replaces a job of a batch becomes part of this batch
BEGIN;
SELECT test.batch('replaced') AS replaced \gset
SELECT id AS first FROM jobq.add_jobs(:replaced, 'part', '{"{\"fail\": 1}"}', options => '{"unique_key": "only"}') id \gset
COMMIT;
SELECT jobq.enqueue('part', '{}', unique_key => 'only', uniqueness => '{"on_conflict": "replace"}') = :first AS same;
SELECT state, batch_id = :replaced AS member FROM jobq.jobs WHERE id = :first;
SELECT jobq.start_batch(:replaced);
CALL test.batch_over(:replaced);
TRUNCATE test.trace;

-- ... and runs when this batch runs, even if it was enqueued for a batch that still waits
BEGIN;
SELECT test.batch('runs', start => true) AS runs, test.batch('waits') AS waits \gset
SELECT id AS first FROM jobq.add_jobs(:runs, 'part', '{"{}"}', options => '{"unique_key": "only", "delay": "1 hour"}') id \gset
COMMIT;
SELECT id = :first AS same FROM jobq.add_jobs(:waits, 'part', '{"{}"}', options => '{"unique_key": "only", "uniqueness": {"on_conflict": "replace"}}') id;
CALL test.batch_over(:runs);
SELECT jobq.cancel_batch(:waits);
CALL test.batch_over(:waits);
TRUNCATE test.trace;

-- pruned and deleted jobs still count for the result of the batch
BEGIN;
SELECT test.batch('pruned', true, start => true) AS pruned \gset
SELECT count(*) FROM jobq.add_jobs(:pruned, 'part', '{"{}", "{}", "{\"discard\": 1}"}');
SELECT id AS letter FROM jobq.add_jobs(:pruned, 'part', '{"{}"}', options => '{"run_at": "2001-01-01", "expires_at": "2001-01-02"}') id \gset
SELECT id AS outside FROM jobq.add_jobs(:pruned, 'outside.part', '{"{}"}', options => '{"queue": "parts"}') id \gset
COMMIT;
SELECT count(jobq.reject(id, token, 'broken')) FROM jobq.reserve('{parts}', 1, wait => '5 min');
CALL test.batch_over(:pruned);
SELECT jobq.delete(:outside);
SELECT jobq.prune('0') > 0 AS pruned;
CALL test.batch_over(:pruned);
TRUNCATE test.trace;

-- a callback that cannot be enqueued is tried again; no callback is lost
SELECT jobq.register('fleeting', 'test.batch_callback(jsonb, jobq.job_context)');
SELECT jobq.create_batch('stuck', on_finish => '{"kind": "fleeting", "payload": {"on": "finish"}}') AS stuck \gset
SELECT jobq.unregister('fleeting');
SELECT jobq.start_batch(:stuck);
SELECT test.until('EXISTS (SELECT FROM jobq.batches WHERE last_error IS NOT NULL)');
SELECT state, finished_at, last_error FROM jobq.batches WHERE id = :stuck;
SELECT jobq.register('fleeting', 'test.batch_callback(jsonb, jobq.job_context)');
SELECT jobq.test_clock('10 minutes') \g /dev/null
CALL test.batch_over(:stuck);
SELECT jobq.wait_queue('default');
SELECT note FROM test.trace;
SELECT jobq.test_clock('0') \g /dev/null
TRUNCATE test.trace;
-- on_failure, too; meanwhile, waiting jobs are cancelled
BEGIN;
SELECT jobq.create_batch('owed', on_failure => '{"kind": "fleeting", "payload": {"on": "failure"}}', start => true) AS owed \gset
SELECT count(*) FROM jobq.add_jobs(:owed, 'outside.part', '{1,2,3}', options => '{"queue": "parts", "max_attempts": 1}');
COMMIT;
SELECT jobq.unregister('fleeting');
SELECT id AS held, token FROM jobq.reserve('{parts}', lease => '1 hour', wait => '5 min') \gset
SELECT jobq.reject(id, token, 'broken') FROM jobq.reserve('{parts}', wait => '5 min');
SELECT test.until(format('(SELECT last_error IS NOT NULL FROM jobq.batches WHERE id = %s)', :owed));
SELECT state, running, dead, cancelled, last_error FROM jobq.batches WHERE id = :owed;
SELECT jobq.register('fleeting', 'test.batch_callback(jsonb, jobq.job_context)');
SELECT jobq.test_clock('10 minutes') \g /dev/null
SELECT test.until('EXISTS (SELECT FROM test.trace)');
SELECT state, running, dead, cancelled, last_error FROM jobq.batches WHERE id = :owed;
SELECT jobq.ack(:held, :token);
CALL test.batch_over(:owed);
SELECT jobq.wait_queue('default');
SELECT note FROM test.trace;
SELECT jobq.test_clock('0') \g /dev/null
SELECT jobq.delete_many('parts');
TRUNCATE test.trace;

-- a rollback also removes the batch
BEGIN;
SELECT test.batch('rolled back', start => true) AS gone \gset
SELECT count(*) FROM jobq.add_jobs(:gone, 'part', '{"{}"}');
ROLLBACK;
SELECT test.error(format('SELECT jobq.wait_batch(%s, ''0'')', :gone));
SELECT count(*) FROM jobq.batches WHERE name = 'rolled back';

-- errors
SELECT test.error('SELECT jobq.create_batch('''')');
SELECT test.error('SELECT jobq.create_batch(allow_failures => NULL)');
SELECT test.error($$SELECT jobq.create_batch(on_success => '[]')$$);
SELECT test.error($$SELECT jobq.create_batch(on_success => '{"payload": 1}')$$);
SELECT test.error($$SELECT jobq.create_batch(on_success => '{"kind": "then", "prio": 1}')$$);
SELECT test.error($$SELECT jobq.create_batch(on_finish => '{"kind": "then", "priority": "high"}')$$);
SELECT test.error($$SELECT jobq.create_batch(on_finish => '{"kind": "then", "delay": "soon"}')$$);
SELECT test.error($$SELECT jobq.create_batch(on_failure => '{"kind": "unheard of"}')$$);
SELECT test.error(format('SELECT jobq.add_jobs(%s, ''part'', ''{"{}"}'')', :empty));
SELECT test.error(format('SELECT jobq.start_batch(%s)', :empty));
SELECT test.error('SELECT jobq.start_batch(999999)');
SELECT test.error('SELECT jobq.add_jobs(999999, ''part'', ''{"{}"}'')');
SELECT test.error(format('SELECT jobq.add_jobs(%s, NULL, ''{"{}"}'')', :empty));
SELECT test.error(format('SELECT jobq.add_jobs(NULL, ''part'', ''{"{}"}'')'));
SELECT test.batch('half') AS half \gset
SELECT test.error(format('SELECT jobq.add_jobs(%s, ''part'', ARRAY[NULL::jsonb])', :half));
SELECT test.error(format('SELECT jobq.add_jobs(%s, ''part'', ''{"{}", "{}"}'', options => ''{"unique_key": "k"}'')', :half));
-- options: the error names the wrong option and lists the valid options
SELECT e.* FROM unnest('{"{\"qeue\": \"x\"}","[]","{\"priority\": \"high\"}","{\"delay\": \"soon\"}","{\"kind\": \"part\"}"}'::text[]) WITH ORDINALITY u (o, n),
	test.error(format('SELECT jobq.add_jobs(%s, ''part'', ''{"{}"}'', %L)', :half, o)) e ORDER BY n;
SELECT total FROM jobq.batches WHERE id = :half;

-- a time in a callback is parsed with the settings of the defining session
SET timezone = 'Asia/Kolkata';
SET datestyle = 'ISO, DMY';
SELECT jobq.create_batch('later', on_finish => '{"kind": "then", "run_at": "25/12/2098 08:00", "expires_at": "infinity"}') AS id \gset
RESET timezone;
RESET datestyle;
SELECT jobq.start_batch(:id);
SELECT test.until('(SELECT count(*) = 1 FROM jobq.jobs WHERE kind = ''then'' AND state = ''scheduled'')');
SELECT run_at = '2098-12-25 08:00+05:30' AS as_written, expires_at FROM jobq_internal.job WHERE kind = 'then';
SELECT jobq.cancel(id) FROM jobq_internal.job WHERE kind = 'then';

-- batches of another role
SELECT jobq.grant_privilege('regress_jobq_bob');
SET ROLE regress_jobq_bob;
SELECT count(*) FROM jobq.batches;
SELECT test.error(format('SELECT jobq.wait_batch(%s, ''0'')', :half));
SELECT test.error(format('SELECT jobq.cancel_batch(%s)', :half));
SELECT test.error(format('SELECT jobq.add_jobs(%s, ''part'', ''{"{}"}'')', :half));
SELECT jobq.create_batch('bob''s') IS NOT NULL AS created;
SELECT name, state, role FROM jobq.batches;
RESET ROLE;

-- a batch of a dropped role ends without its callbacks
CREATE ROLE regress_jobq_leaver LOGIN;
SELECT jobq.grant_privilege('regress_jobq_leaver');
SET ROLE regress_jobq_leaver;
SELECT test.batch('left behind') AS orphan \gset
RESET ROLE;
DROP OWNED BY regress_jobq_leaver;
\set VERBOSITY terse
DROP ROLE regress_jobq_leaver;
\set VERBOSITY default
SELECT jobq.start_batch(:orphan);
CALL test.batch_over(:orphan);
SELECT state, last_error FROM jobq.batches WHERE id = :orphan;

SELECT jobq.cancel_batch(id) FROM jobq.batches WHERE state = 'pending' ORDER BY id;
CALL test.batch_over(:half);
SELECT jobq.wait_queue('default');
SELECT jobq.revoke_privilege('regress_jobq_bob');
TRUNCATE test.trace;

-- wait_batch(): a timeout, a finished batch, and a batch of the current transaction
SELECT jobq.create_batch(start => true) AS batch \gset
SELECT jobq.add_jobs(:batch, 'echo', '{1}', '{"queue": "manual"}') AS id \gset
SELECT state, total, ready FROM jobq.wait_batch(:batch, '1 ms');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT state FROM jobq.batches WHERE id = :batch;
SELECT state FROM jobq.wait_batch(:batch, '0');
COMMIT;
SELECT jobq.cancel(:id);
SELECT state, total, cancelled FROM jobq.wait_batch(:batch, '5 min');
SELECT state FROM jobq.wait_batch(:batch, '0');
BEGIN;
SELECT jobq.create_batch(start => true) AS batch \gset
SELECT test.error(format('SELECT jobq.wait_batch(%s)', :batch));
SELECT state, total FROM jobq.wait_batch(:batch, '0');
ROLLBACK;
SELECT test.error('SELECT jobq.wait_batch(0)');
SELECT test.error(format('SELECT jobq.wait_batch(%s, ''-1 s'')', :batch));

-- a started batch that receives no new job ends at commit: a duplicate, a merged job, an empty list
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', unique_key => 'taken', delay => '1 h') AS taken \gset
BEGIN;
SELECT test.batch('duplicates', start => true) AS duplicates \gset
SELECT jobq.add_jobs(:duplicates, 'echo', '{"{}"}', '{"unique_key": "taken", "queue": "manual"}') = :taken AS same;
COMMIT;
CALL test.batch_over(:duplicates);
SELECT note FROM test.trace ORDER BY note;
SELECT jobq.create_batch(start => true) AS batch \gset
SELECT jobq.add_jobs(:batch, 'echo', '{"{}"}', '{"unique_key": "taken", "queue": "manual", "uniqueness": {"on_conflict": "merge"}}') = :taken AS same;
SELECT state, total FROM jobq.wait_batch(:batch, '10 min');
SELECT test.error(format('SELECT jobq.add_jobs(%s, ''echo'', ''{1}'')', :batch));
SELECT jobq.create_batch(start => true) AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{}');
SELECT state, total FROM jobq.wait_batch(:batch, '10 min');
-- the batch stays open if the adding transaction is rolled back, or if the batch has another job
SELECT jobq.create_batch(start => true) AS batch \gset
BEGIN;
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{}');
ROLLBACK;
SELECT jobq.add_jobs(:batch, 'echo', '{1}', '{"unique_key": "new", "queue": "manual"}') AS id \gset
SELECT jobq.add_jobs(:batch, 'echo', '{1}', '{"unique_key": "taken", "queue": "manual"}') = :taken AS same;
SELECT state, total FROM jobq.wait_batch(:batch, '1 ms');
SELECT jobq.cancel(:id), jobq.cancel(:taken);
SELECT state, total, cancelled FROM jobq.wait_batch(:batch, '10 min');
TRUNCATE test.trace;

-- on_conflict reset for a job of a batch that has not started: the new time applies after the start.
-- And the reverse: add_jobs() resets a job outside of the batch.
SELECT jobq.create_batch() AS batch \gset
SELECT jobq.add_jobs(:batch, 'echo', '{"{}"}', '{"queue": "manual", "unique_key": "in", "delay": "10 h"}') AS m \gset
SELECT jobq.enqueue('echo', queue => 'manual', unique_key => 'in', uniqueness => '{"on_conflict": "reset"}', run_at => '2100-01-01') = :m AS same;
SELECT run_at, free_run_at = '2100-01-01' AS free_run_at, free_delay_ms FROM jobq_internal.job WHERE id = :m;
SELECT jobq.add_jobs(:batch, 'echo', '{"{}"}', '{"queue": "manual", "unique_key": "in", "delay": "10 h", "uniqueness": {"on_conflict": "reset"}}') = :m AS same;
SELECT run_at, free_run_at, free_delay_ms FROM jobq_internal.job WHERE id = :m;
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', unique_key => 'out') AS m \gset
SELECT jobq.add_jobs(:batch, 'echo', '{"{}"}', '{"queue": "manual", "unique_key": "out", "delay": "10 h", "uniqueness": {"on_conflict": "reset"}}') = :m AS same;
SELECT state, run_at > jobq_internal.clock() + interval '9 h' AS later, batch_id FROM jobq.jobs WHERE id = :m;
SELECT jobq.cancel_batch(:batch);
SELECT jobq.cancel(:m);
SELECT state FROM jobq.wait_batch(:batch, '5 min');
