-- Functions for many jobs.
SELECT jobq.create_queue('many'), jobq.alter_queue('many', tenant => 'header customer');
SELECT jobq.pause('many');
CREATE FUNCTION test.left_of_many() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(kind || ' ' || (payload ->> 'n') || ' ' || state, ', ' ORDER BY (payload ->> 'n')::int) FROM jobq.live_jobs WHERE queue = 'many'
$$;

-- each condition by itself; all conditions together
CREATE PROCEDURE test.fill_many() LANGUAGE sql AS $$
	SELECT jobq.enqueue('echo', jsonb_build_object('n', n, 'even', n % 2 = 0), queue => 'many',
		headers => jsonb_build_object('customer', CASE WHEN n < 4 THEN 'acme' ELSE 'zeta' END),
		group_key => CASE n WHEN 2 THEN 'g' END, unique_key => CASE n WHEN 3 THEN 'k' END, delay => CASE n WHEN 5 THEN interval '1 h' END)
	FROM generate_series(1, 6) n
$$;
CALL test.fill_many();
SELECT jobq.enqueue('note', '{"n": 7}', queue => 'many') AS seventh \gset
SELECT test.left_of_many();
CREATE FUNCTION test.many(call text, OUT jobs bigint, OUT "left" text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT jobq.' || call INTO jobs;
	"left" := test.left_of_many();
END
$$;
SELECT * FROM test.many($$cancel_many(queue => 'many', kind => 'note')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', payload => '{"n": 1}')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', group_key => 'g', kind => 'note')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', group_key => 'g')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', unique_key => 'k')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', state => 'scheduled')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', tenant => 'acme')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', tenant => 'zeta', max_jobs => 1)$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', older_than => '1 h')$$);
SELECT jobq.test_clock('2 h') \g /dev/null
SELECT * FROM test.many($$cancel_many(queue => 'many', newer_than => '1 h')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', older_than => '3 h', newer_than => '4 h')$$);
SELECT * FROM test.many($$cancel_many(queue => 'many', older_than => '1 h')$$);
SELECT jobq.test_clock('0') \g /dev/null
SELECT state, error FROM jobq.status(:seventh);

-- by ids: existing jobs, also a running job; never the handler's own job
SELECT jobq.enqueue('echo', '{"n": 1}', queue => 'many') AS one, jobq.enqueue('echo', '{"n": 2}', queue => 'many') AS two \gset
SELECT pg_advisory_lock(41);
SELECT jobq.enqueue('gate', '41', queue => 'first') AS gate \gset
SELECT test.in_gate(:gate);
SELECT jobq.cancel_many(ids => ARRAY[:one, :one, :seventh, NULL, 0, :gate]);
SELECT state, error FROM jobq.wait_many(ARRAY[:one, :gate]);
SELECT pg_advisory_unlock(41);
-- with state waiting, running jobs continue
SELECT pg_advisory_lock(41);
SELECT jobq.enqueue('gate', '41', queue => 'first') AS gate \gset
SELECT test.in_gate(:gate);
SELECT jobq.cancel_many(queue => 'first', state => 'waiting');
SELECT jobq.edit_many('{"priority": 1}', ids => ARRAY[:gate, :two]), jobq.edit_many(jsonb_build_object('run_at', now()), ids => ARRAY[:gate]);
SELECT pg_advisory_unlock(41);
SELECT state FROM jobq.wait(:gate);
CREATE FUNCTION test.cancels_many() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(jobq.cancel_many(ids => ARRAY[(jobq.current_job()).id])) $$;
SELECT jobq.register('cancels_many', 'test.cancels_many()');
SELECT jobq.enqueue('cancels_many') AS id \gset
SELECT * FROM test.outcome(:id);

-- change run_at, and priority
CALL test.fill_many();
SELECT * FROM test.many($$edit_many(jsonb_build_object('run_at', now() + interval '1 day'), queue => 'many', payload => '{"even": true}')$$);
SELECT * FROM test.many($$edit_many(jsonb_build_object('run_at', now()), queue => 'many', state => 'scheduled')$$);
SELECT * FROM test.many($$edit_many('{"priority": 5}', queue => 'many', payload => '{"even": false}', state => 'waiting')$$);
SELECT payload -> 'n' AS n, priority FROM jobq.live_jobs WHERE queue = 'many' ORDER BY 1;
-- a blocked job gets another priority, but no other run_at
SELECT jobq.create_batch() AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{"{}", "{}"}');
SELECT jobq.edit_many(jsonb_build_object('run_at', now()), batch_id => :batch), jobq.edit_many('{"priority": 9}', batch_id => :batch);
SELECT state, priority FROM jobq.live_jobs WHERE batch_id = :batch;
SELECT jobq.cancel_many(batch_id => :batch, state => 'blocked');
SELECT jobq.cancel_many(queue => 'many', state => 'waiting');

-- all other options of edit(); if the queue becomes full, no job is moved
CALL test.fill_many();
SELECT jobq.edit_many('{"max_attempts": 7, "backoff": "fixed 1s", "timeout": "1 min", "priority": 2, "run_at": null}', queue => 'many', payload => '{"even": true}');
SELECT j.payload -> 'n' AS n, j.priority, j.max_attempts, j.backoff, j.timeout_ms, regexp_replace(j.log -> 0 ->> 'message', 'by .*:', 'by ROLE:') AS log
FROM jobq_internal.job j JOIN jobq.live_jobs l USING (id) WHERE l.queue = 'many' ORDER BY 1;
SELECT jobq.create_queue('few', max_length => 2);
SELECT jobq.pause('few');
SELECT * FROM test.error($$SELECT jobq.edit_many('{"queue": "few"}', queue => 'many')$$);
SELECT jobq.edit_many('{"queue": "few", "run_at": "2100-01-01 00:00Z"}', queue => 'many', max_jobs => 2);
SELECT queue, payload -> 'n' AS n, (run_at AT TIME ZONE 'UTC')::date AS run_at FROM jobq.live_jobs WHERE queue = 'few' ORDER BY 2;
SELECT test.left_of_many();
SELECT jobq.edit_many('{"queue": "many"}', queue => 'few', max_jobs => 5);
SELECT jobq.drop_queue('few'), jobq.cancel_many(queue => 'many', state => 'waiting');

-- dead letters: by error and SQLSTATE
SELECT jobq.resume('many');
SELECT array_agg(jobq.enqueue('broken', to_jsonb(n), queue => 'many', max_attempts => 1)) AS broken FROM generate_series(1, 4) n \gset
SELECT jobq.enqueue('broken', '5', queue => 'many', backoff => 'fixed 1 h') AS retryable \gset
SELECT count(*) FROM jobq.wait_many(:'broken'::bigint[]);
SELECT test.until(format('(SELECT state = ''retryable'' FROM jobq.status(%s))', :retryable));
SELECT jobq.pause('many');
SELECT jobq.retry_many(queue => 'many', error => '% 1') AS first, jobq.retry_many(queue => 'many', sqlstate => '22012') AS none,
	jobq.retry_many(queue => 'many', sqlstate => 'P0001', payload => '2') AS second;
SELECT jobq.retry_many(error => '% 5') AS no_dead_letter, jobq.retry_many(state => 'retryable', error => '% 5', sqlstate => 'P0001') AS fifth;
SELECT payload, state FROM jobq.jobs WHERE id = ANY (:'broken'::bigint[] || :retryable::bigint) ORDER BY payload;
-- dead letters are edited if selected explicitly
SELECT jobq.edit_many('{"max_attempts": 2}', queue => 'many', kind => 'broken', payload => '3') AS waits, jobq.edit_many('{"max_attempts": 2, "queue": "manual"}', queue => 'many', state => 'dead', payload => '3') AS dead;
SELECT payload, queue, max_attempts FROM jobq.dead_letters WHERE id = ANY (:'broken'::bigint[]) ORDER BY payload;
SELECT jobq.edit_many('{"queue": "many"}', ids => :'broken', state => 'dead');
SELECT jobq.delete_many(queue => 'many', older_than => '1 h'), jobq.delete_many(queue => 'many', newer_than => '0'), jobq.delete_many(queue => 'many', newer_than => '1 h', max_jobs => 1);
SELECT payload, state FROM jobq.jobs WHERE id = ANY (:'broken'::bigint[]) ORDER BY payload;
SELECT jobq.delete_many(ids => :'broken');
SELECT jobq.cancel_many(queue => 'many', error => 'broken%'), jobq.cancel_many(queue => 'many', state => 'waiting');

-- among selected dead letters with the same unique key, the last is retried; none if a live job holds the key
SELECT jobq.resume('many');
SELECT jobq.enqueue('broken', '1', queue => 'many', max_attempts => 1, unique_key => 'same') AS first \gset
SELECT state FROM jobq.wait(:first);
SELECT jobq.enqueue('broken', '2', queue => 'many', max_attempts => 1, unique_key => 'same') AS second \gset
SELECT state FROM jobq.wait(:second);
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE job_id = %s)', :second));
SELECT jobq.pause('many');
SELECT jobq.retry_many(unique_key => 'same', payload => '1');
SELECT jobq.retry_many(unique_key => 'same');
SELECT id = :first AS first, state FROM jobq.live_jobs WHERE queue = 'many';
SELECT jobq.cancel_many(queue => 'many', state => 'waiting');
SELECT jobq.retry_many(unique_key => 'same');
SELECT id = :second AS second, state FROM jobq.live_jobs WHERE queue = 'many';
SELECT jobq.cancel_many(queue => 'many', state => 'waiting');

-- with max_jobs: a few jobs at a time, each call in its own transaction
SELECT jobq.register('sliced', 'test.echo(jsonb)', queue => 'many');
SELECT count(*) FROM jobq.enqueue_many('sliced', array_fill('{"n": 0}'::jsonb, ARRAY[25]));
DO $$
DECLARE
	n bigint;
BEGIN
	LOOP
		n := jobq.cancel_many(kind => 'sliced', state => 'waiting', max_jobs => 10);
		RAISE NOTICE '%', n;
		EXIT WHEN n = 0;
		COMMIT;
	END LOOP;
END
$$;
SELECT count(*), count(DISTINCT xmin::text) AS transactions FROM jobq_internal.archive WHERE kind = 'sliced' AND reason = 'cancelled';
SELECT count(*) FROM jobq.enqueue_many('sliced', array_fill('{"n": 0}'::jsonb, ARRAY[25]));
SELECT jobq.edit_many('{"priority": 3}', kind => 'sliced', max_jobs => 21, ids => NULL);
SELECT array_agg(id ORDER BY id) AS ids FROM jobq.live_jobs WHERE kind = 'sliced' \gset
SELECT priority, array_agg(i ORDER BY i) AS ids FROM unnest(:'ids'::bigint[]) WITH ORDINALITY u (id, i) JOIN jobq.live_jobs USING (id) GROUP BY 1 ORDER BY 1;
SELECT jobq.cancel_many(queue => 'many', tenant => 'none', state => 'waiting'), jobq.cancel_many(ids => :'ids', kind => 'sliced', state => 'waiting');

-- roles: an operator may change jobs of other roles, but cannot probe their payloads
SELECT jobq.revoke_privilege('regress_jobq_boss');
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob'), jobq.grant_privilege('regress_jobq_boss', 'operate');
SELECT jobq.alter_queue('many', open => true);
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '{"n": 1, "secret": 1}', queue => 'many', unique_key => 'secret', group_key => 'secret') AS of_alice \gset
RESET ROLE;
SET ROLE regress_jobq_bob;
SELECT jobq.cancel_many(queue => 'many'), jobq.cancel_many(ids => ARRAY[:of_alice]), jobq.edit_many('{"priority": 1}', kind => 'echo', queue => 'many');
RESET ROLE;
SET ROLE regress_jobq_boss;
SELECT jobq.edit_many('{"priority": 2}', queue => 'many', payload => '{"secret": 1}') AS payload, jobq.edit_many('{"priority": 2}', unique_key => 'secret') AS key,
	jobq.edit_many('{"priority": 2}', group_key => 'secret') AS "group", jobq.edit_many('{"priority": 2}', kind => 'echo', queue => 'many') AS kind;
RESET ROLE;
SET ROLE regress_jobq_alice;
SELECT jobq.edit_many('{"priority": 3}', payload => '{"secret": 1}', unique_key => 'secret', group_key => 'secret');
RESET ROLE;
-- only members of the job's role may change the work of the job
SET ROLE regress_jobq_bob;
SELECT jobq.edit_many('{"timeout": "1 s"}', queue => 'many') AS of_others;
SET ROLE regress_jobq_boss;
SELECT jobq.edit_many('{"timeout": "1 s"}', queue => 'many') AS operator;
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT jobq.edit_many('{"timeout": "1 s", "priority": 4}', queue => 'many', max_jobs => 1) AS manager;
SET ROLE regress_jobq_alice;
SELECT jobq.edit_many('{"timeout": "1 s"}', queue => 'many') AS own;
RESET ROLE;
-- a manager of one queue reaches only jobs of this queue, regardless of the conditions
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.grant_privilege('regress_jobq_boss', 'manage', 'many');
SET ROLE regress_jobq_boss;
SELECT jobq.cancel_many(payload => '{"secret": 1}');
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.revoke_privilege('regress_jobq_bob'), jobq.revoke_privilege('regress_jobq_alice');

-- bad input
SELECT c.call, e.* FROM unnest(ARRAY['cancel_many()', 'cancel_many(max_jobs => 1)', 'cancel_many(kind => ''x'', max_jobs => 0)', 'cancel_many(queue => ''no such'')',
	'cancel_many(state => ''completed'')', 'retry_many(state => ''ready'')', 'delete_many(state => ''retryable'')', 'edit_many(''{"run_at": "now"}'', state => ''blocked'')', 'edit_many(''{"run_at": "now", "priority": 1}'', state => ''blocked'')', 'edit_many(''{"priority": 1}'', state => ''dead'')',
	'edit_many(''{"priority": 1}'', state => ''running'')', 'edit_many(''{"timeout": "1 s"}'', state => ''running'')',
	'edit_many(NULL, kind => ''x'')', 'edit_many(''{"run_at": "infinity"}'', kind => ''x'')', 'edit_many(''{"run_at": "soon"}'', kind => ''x'')', 'edit_many(''{"priority": 1}'')',
	'edit_many(''{}'', kind => ''x'')', 'edit_many(''{"priority": null}'', kind => ''x'')', 'edit_many(''[1]'', kind => ''x'')', 'edit_many(''{"priority": 1, "payload": {}}'', kind => ''x'')',
	'edit_many(''{"headers": {}}'', kind => ''x'')', 'edit_many(''{"tags": []}'', kind => ''x'')', 'edit_many(''{"priority": "high"}'', kind => ''x'')', 'edit_many(''{"queue": 1}'', kind => ''x'')',
	'edit_many(''{"max_attempts": -1}'', kind => ''x'')', 'edit_many(''{"backoff": "often"}'', kind => ''x'')', 'edit_many(''{"timeout": "-1 s"}'', kind => ''x'')',
	'cancel_many(sqlstate => ''22'')', 'cancel_many(older_than => ''-1 s'')', 'cancel_many(newer_than => ''-1 s'')'])
	WITH ORDINALITY c (call, n), test.error('SELECT jobq.' || c.call) e ORDER BY n;
SELECT count(*) FROM jobq.live_jobs WHERE queue = 'many';
SELECT jobq.unregister('sliced'), jobq.unregister('cancels_many'), jobq.drop_queue('many', force => true);

-- tags: a job keeps its tags as long as any record of the job exists
SELECT jobq.create_queue('tagged');
SELECT jobq.pause('tagged');
SELECT jobq.enqueue('note', '1', queue => 'tagged', tags => '{import,vip,import}') AS one, jobq.enqueue('note', '2', queue => 'tagged', tags => ARRAY['import', 'a "b", {c}']) AS two,
	jobq.enqueue('note', '3', queue => 'tagged', tags => '{}') AS none \gset
SELECT count(*) FROM jobq.enqueue_many('note', '{4,5}', queue => 'tagged', tags => '{import,many}');
INSERT INTO jobq.inbox (kind, payload, queue, tags) VALUES ('note', '6', 'tagged', '{inbox}');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "note", "payload": 7, "queue": "tagged", "tags": ["import", "flow"]}]}') > 0 AS workflow;
SELECT payload, tags FROM jobq.jobs WHERE queue = 'tagged' ORDER BY id;
SELECT jobq.cancel_many(tags => '{vip,many}'), jobq.cancel_many(tags => '{"a \"b\", {c}"}'), jobq.cancel_many(tags => '{NULL}');
SELECT jobq.edit_many('{"priority": 5}', tags => '{import,many}'), jobq.cancel_many(tags => '{import}', queue => 'tagged', max_jobs => 1);
SELECT jobq.cancel_many(tags => '{many,import}');
SELECT payload, tags, state FROM jobq.jobs WHERE queue = 'tagged' ORDER BY id;
SELECT jobq.rerun(:one) AS again \gset
SELECT tags FROM jobq.jobs WHERE id = :again;
SELECT jobq.cancel_many(queue => 'tagged', state => 'waiting') > 0 AS cleared, jobq.resume('tagged');
SELECT jobq.enqueue('broken', '8', queue => 'tagged', tags => '{lost}', max_attempts => 1) AS letter \gset
SELECT state FROM jobq.wait(:letter);
SELECT tags FROM jobq.dead_letters WHERE id = :letter;
SELECT jobq.pause('tagged');
SELECT jobq.retry_many(tags => '{lost,found}'), jobq.retry_many(tags => '{lost}');
SELECT state, tags FROM jobq.live_jobs WHERE id = :letter;
SELECT u.tags, e.code, e.message FROM unnest(ARRAY['{NULL}', '{""}', '{{a},{b}}', format('{%s}', repeat('t', 64)),
		format('{%s}', (SELECT string_agg(n::text, ',') FROM generate_series(1, 17) n))]) WITH ORDINALITY u (tags, n),
	test.error(format('SELECT jobq.enqueue(''note'', tags => %L)', u.tags)) e ORDER BY u.n;
SELECT u.tags, e.code, e.message FROM unnest(ARRAY['"import"', '1', '{}', '[1]', '[null]', '[["a"]]', '["a", ""]', '["in order"]']) WITH ORDINALITY u (tags, n),
	test.error(format('SELECT jobq.create_workflow(''{"steps": [{"name": "a", "kind": "note", "queue": "tagged", "tags": %s}]}'')', u.tags)) e ORDER BY u.n;
SELECT e.code, e.message FROM test.error($$SELECT jobq.cancel_many(tags => '{}')$$) e;
SELECT jobq.cancel_many(queue => 'tagged', state => 'waiting') > 0 AS cleared;
SELECT jobq.drop_queue('tagged', force => true);

-- among jobs with the same unique key, the last permitted job is retried
SELECT jobq.create_queue('keyed one'), jobq.create_queue('keyed two');
SELECT jobq.enqueue('broken', '1', 'keyed one', unique_key => 'same', max_attempts => 1) AS one \gset
SELECT state FROM jobq.wait(:one);
SELECT jobq.enqueue('broken', '2', 'keyed two', unique_key => 'same', max_attempts => 1) AS two \gset
SELECT state FROM jobq.wait(:two);
SELECT jobq.pause('keyed one'), jobq.pause('keyed two');
SELECT jobq.grant_privilege('regress_jobq_bob', 'manage', 'keyed one');
SET ROLE regress_jobq_bob;
SELECT jobq.retry_many(kind => 'broken');
RESET ROLE;
SELECT payload, state FROM jobq.jobs WHERE id IN (:one, :two) ORDER BY id;
SELECT jobq.cancel(:one);
SELECT jobq.enqueue('broken', '3', 'keyed one', unique_key => 'same', max_attempts => 1) AS three \gset
SELECT jobq.resume('keyed one');
SELECT state FROM jobq.wait(:three);
-- the worker shows the job a moment longer, and a running job is not cancelled
SELECT test.until(format('NOT EXISTS (SELECT FROM jobq.workers WHERE job_id = %s)', :three));
SELECT jobq.pause('keyed one'), jobq.grant_privilege('regress_jobq_bob', 'manage', 'keyed two');
SET ROLE regress_jobq_bob;
SELECT jobq.retry_many(kind => 'broken');
RESET ROLE;
SELECT payload, state FROM jobq.jobs WHERE id IN (:two, :three) ORDER BY id;
SELECT jobq.cancel_many(queue => 'keyed one', state => 'waiting'), jobq.delete(:two);
SELECT jobq.drop_queue('keyed one', force => true), jobq.drop_queue('keyed two', force => true);

-- a queue is handed over to workers: the consumer of a reserved job loses the job and the permit
SELECT jobq.create_queue('handed over', mode => 'consumer', max_running => 1);
SELECT jobq.enqueue('echo', '1', queue => 'handed over') AS held \gset
SELECT id = :held AS held FROM jobq.reserve('{handed over}', lease => '1 hour', wait => '5 min');
SELECT jobq.alter_queue('handed over', mode => 'worker');
SELECT jobq.cancel_many(queue => 'handed over');
SELECT jobq.enqueue('echo', '2', queue => 'handed over') AS next \gset
SELECT state FROM jobq.wait(:next, '5 min');
SELECT jobq.drop_queue('handed over');
