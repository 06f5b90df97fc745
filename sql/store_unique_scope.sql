-- Unique keys with the scope "queue" or "database".
CREATE FUNCTION test.scoped(OUT n bigint, OUT kind text, OUT queue text, OUT key text, OUT scope text, OUT payload jsonb) RETURNS SETOF record LANGUAGE sql
AS $$ SELECT row_number() OVER (ORDER BY j.id), j.kind, j.queue, j.unique_key, j.unique_scope, j.payload FROM jobq.live_jobs j WHERE j.unique_key IS NOT NULL ORDER BY j.id $$;
CREATE FUNCTION test.scoped_keys(OUT kind text, OUT queue text, OUT key text, OUT mine boolean) RETURNS SETOF record LANGUAGE sql
AS $$ SELECT u.kind, CASE u.queue_id WHEN 0 THEN '-' ELSE q.name END, u.key, u.role = current_user::regrole FROM jobq_internal.unique_key u LEFT JOIN jobq_internal.queue q ON q.id = u.queue_id ORDER BY u.key, u.kind, q.name COLLATE "C" NULLS FIRST, 4 $$;
CREATE PROCEDURE test.cancel_scoped() LANGUAGE sql AS $$ SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE unique_key IS NOT NULL $$;
CREATE FUNCTION test.fail_scoped(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT jobq.reject_current('for good') $$;
SELECT jobq.register('fail_scoped', 'test.fail_scoped(jsonb)');

-- each scope has separate keys; the default scope is the kind
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'k') AS a \gset
SELECT jobq.enqueue('echo', '2', 'manual', unique_key => 'k', uniqueness => '{"scope": "queue"}') AS b \gset
SELECT jobq.enqueue('echo', '3', 'manual', unique_key => 'k', uniqueness => '{"scope": "database"}') AS c \gset
SELECT :a < :b AND :b < :c AS three_jobs, jobq.enqueue('echo', '4', 'manual', unique_key => 'k', uniqueness => '{"scope": "kind"}') = :a AS kind;
-- a key with scope "queue" is shared by all kinds in the queue, but not by other queues
SELECT jobq.enqueue('note', '5', 'manual', unique_key => 'k', uniqueness => '{"scope": "queue"}') = :b AS same,
	jobq.enqueue('note', '6', 'first', unique_key => 'k', uniqueness => '{"scope": "queue"}', delay => '1 h') = :b AS other_queue;
-- a key with scope "database" is shared by all kinds and queues
SELECT jobq.enqueue('note', '7', 'first', unique_key => 'k', uniqueness => '{"scope": "database"}') = :c AS same, jobq.enqueue('note', '8', unique_key => 'k', uniqueness => '{"scope": "database"}') = :c AS same;
SELECT * FROM test.scoped();
SELECT * FROM test.scoped_keys();
SELECT id - :b AS n, state, duplicate FROM test.enqueued(jobq.enqueue('note', queue => 'manual', unique_key => 'k', uniqueness => '{"scope": "queue"}'));
-- in every scope, keys are separate for each role: another role neither detects nor blocks a key
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT s, r.duplicate, r.state FROM unnest('{kind,queue,database}'::text[]) s, test.enqueued(jobq.enqueue('echo', '9', 'manual', unique_key => 'k', uniqueness => jsonb_build_object('scope', s, 'on_conflict', 'error'))) r;
SELECT s, jobq.enqueue('echo', '10', 'manual', unique_key => 'k', uniqueness => jsonb_build_object('scope', s, 'on_conflict', 'replace')) > :c AS its_own FROM unnest('{kind,queue,database}'::text[]) s;
SELECT jobq.release_key('echo', 'k'), jobq.release_key(unique_key => 'k', scope => 'queue', queue => 'manual') AS queue, jobq.release_key(unique_key => 'k', scope => 'database') AS database,
	jobq.release_key(unique_key => 'k', scope => 'queue', queue => 'first') AS not_its;
RESET ROLE;
SELECT * FROM test.scoped_keys();
-- roles share keys through a SECURITY DEFINER function, which enqueues as a single role
CREATE FUNCTION test.enqueue_once(n int) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT jobq.enqueue('echo', to_jsonb(n), 'manual', unique_key => 'shared', uniqueness => '{"scope": "database"}') $$;
GRANT EXECUTE ON FUNCTION test.enqueue_once TO regress_jobq_alice;
SELECT test.enqueue_once(1) AS shared \gset
SET ROLE regress_jobq_alice;
SELECT test.enqueue_once(2) = :shared AS same;
RESET ROLE;
SELECT jobq.revoke_privilege('regress_jobq_alice');

-- error: the message names the job that holds the key
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message FROM unnest('{kind,queue,database}'::text[]) s, test.error(format($$SELECT jobq.enqueue('echo', '11', 'manual', unique_key => 'k', uniqueness => jsonb_build_object('scope', %L, 'on_conflict', 'error'))$$, s)) e;
-- replace: another kind in another queue, with the same id
SELECT jobq.enqueue('note', '"12"', 'first', delay => '1 h', unique_key => 'k', uniqueness => '{"scope": "database", "on_conflict": "replace"}') = :c AS same;
SELECT kind, queue, state, payload, unique_key, unique_scope FROM jobq.jobs WHERE id = :c;
SELECT jobq.enqueue('echo', '13', 'manual', unique_key => 'k', uniqueness => '{"scope": "database", "on_conflict": "replace"}') = :c AS same;
-- reset: only the time
SELECT jobq.enqueue('note', '14', 'first', unique_key => 'k', uniqueness => '{"scope": "database", "on_conflict": "reset"}', delay => '1 h') = :c AS same;
SELECT kind, queue, state, payload FROM jobq.jobs WHERE id = :c;
-- merge: in the present queue, but not with a job of another kind
CALL test.cancel_scoped();
SELECT jobq.enqueue('echo', '{"a": 1}', 'manual', unique_key => 'm', uniqueness => '{"scope": "database"}') AS m \gset
SELECT jobq.enqueue('echo', '{"b": 2}', 'first', unique_key => 'm', uniqueness => '{"scope": "database", "on_conflict": "merge"}') = :m AS same;
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message, e.hint FROM test.error($$SELECT jobq.enqueue('note', '{"c": 3}', unique_key => 'm', uniqueness => '{"scope": "database", "on_conflict": "merge"}')$$) e;
SELECT * FROM test.scoped();
-- so that no payload is merged into an SQL statement
CALL test.cancel_scoped();
SELECT jobq.enqueue_sql('SELECT 1', queue => 'manual', unique_key => 'm', uniqueness => '{"scope": "queue"}') AS m \gset
SELECT e.code, regexp_replace(e.message, '\d+', 'N') AS message FROM test.error($$SELECT jobq.enqueue('echo', '{"sql": "SELECT 2"}', 'manual', unique_key => 'm', uniqueness => '{"scope": "queue", "on_conflict": "merge"}')$$) e;
SELECT kind, payload FROM test.scoped();
CALL test.cancel_scoped();

-- the key is released at the end, or at the start
SELECT jobq.enqueue('echo', '1', unique_key => 'e', uniqueness => '{"scope": "database"}') AS e, jobq.enqueue('echo', '1', unique_key => 'w', uniqueness => '{"scope": "queue", "for": "1 day"}') AS w \gset
SELECT state FROM jobq.wait_many(ARRAY[:e, :w]);
SELECT * FROM test.scoped_keys();
SELECT jobq.enqueue('note', '2', unique_key => 'w', uniqueness => '{"scope": "queue"}') = :w AS in_its_window;
SELECT jobq.release_key(unique_key => 'w', scope => 'queue', queue => 'default'), jobq.release_key(unique_key => 'w', scope => 'queue', queue => 'default') AS again;
SELECT pg_advisory_lock(31);
SELECT jobq.enqueue('gate', '31', unique_key => 's', uniqueness => '{"scope": "database", "until": "start"}') AS s \gset
SELECT test.in_gate(:s);
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 's', uniqueness => '{"scope": "database"}') - :s AS n;
SELECT pg_advisory_unlock(31);
SELECT state FROM test.outcome(:s);
SELECT * FROM test.scoped_keys();
CALL test.cancel_scoped();

-- a retried dead letter takes its key again
SELECT jobq.enqueue('fail_scoped', unique_key => 'd', uniqueness => '{"scope": "database"}') AS d \gset
SELECT state FROM test.outcome(:d);
SELECT unique_key, unique_scope FROM jobq.jobs WHERE id = :d;
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => 'd', uniqueness => '{"scope": "database"}') AS other, jobq.enqueue('fail_scoped', '1', 'manual', unique_key => 'd') AS of_kind \gset
SELECT e.code, replace(e.message, :'other', 'N') AS message FROM test.error(format('SELECT jobq.retry(%s)', :d)) e;
SELECT jobq.retry_many(ids => ARRAY[:d]::bigint[]) AS retried;
SELECT jobq.cancel(:other);
-- of two dead letters with the same key, the later is retried, whatever their kinds
SELECT jobq.enqueue('broken', unique_key => 'd', uniqueness => '{"scope": "database"}', max_attempts => 1) AS later \gset
SELECT state FROM test.outcome(:later);
SELECT finished_at AS ended FROM jobq.jobs WHERE id = :d \gset
SELECT jobq.retry_many(unique_key => 'd') AS one_of_two;
SELECT state FROM test.outcome(:later);
SELECT finished_at = :'ended' AS left_alone FROM jobq.jobs WHERE id = :d;
SELECT jobq.delete(:d), jobq.delete(:later);
CALL test.cancel_scoped();

-- a moved job keeps its key in the old queue
SELECT jobq.create_queue('scoped', open => true), jobq.pause('scoped');
SELECT jobq.enqueue('echo', '1', 'scoped', unique_key => 'q', uniqueness => '{"scope": "queue"}') AS q \gset
SELECT jobq.edit(:q, queue => 'manual');
SELECT * FROM test.scoped_keys();
SELECT jobq.enqueue('echo', '2', 'scoped', unique_key => 'q', uniqueness => '{"scope": "queue"}') = :q AS same, jobq.enqueue('echo', '3', 'manual', unique_key => 'q', uniqueness => '{"scope": "queue"}') - :q AS n;
SELECT jobq.enqueue('echo', '4', 'scoped', unique_key => 'q', uniqueness => '{"scope": "queue", "on_conflict": "replace"}') = :q AS back;
SELECT queue, payload FROM test.scoped();
SELECT jobq.edit(:q, queue => 'manual');
SELECT jobq.drop_queue('scoped');
SELECT e.message FROM test.error($$SELECT jobq.enqueue('echo', unique_key => 'q', uniqueness => '{"scope": "queue", "on_conflict": "error"}', queue => 'scoped', delay => '1 h') > 0$$) e;
CALL test.cancel_scoped();
SELECT jobq.drop_queue('scoped', force => true);
SELECT * FROM test.scoped_keys();

-- in other functions with options
SELECT jobq.enqueue('echo', '{"c": 1}', 'manual', uniqueness => '{"by": ["c"], "scope": "database"}') AS b \gset
SELECT count(DISTINCT id) AS jobs, bool_or(id = :b) AS same FROM jobq.enqueue_many('note', '{"{\"c\": 1}","{\"c\": 2}"}', queue => 'manual', uniqueness => '{"by": ["c"], "scope": "database"}') id;
INSERT INTO jobq.inbox (kind, payload, queue, unique_key, uniqueness) VALUES ('echo', '1', 'manual', '{"c": 1}', '{"scope": "database"}') RETURNING id = :b AS same;
SELECT count(*) FROM test.scoped();
-- jobs of another role, and replicated jobs
SELECT jobq.grant_privilege('regress_jobq_alice');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('echo', '1', 'manual', unique_key => '{"c": 1}', uniqueness => '{"scope": "database"}') > :b AS its_own, jobq.enqueue('echo', '1', 'manual', unique_key => 'r', uniqueness => '{"scope": "queue"}') > :b AS its_own;
RESET ROLE;
SELECT e.code, e.message FROM test.error('SELECT jobq.reassign_owned(''regress_jobq_alice'', current_user::regrole)') e;
SELECT jobq.cancel(:b);
SELECT jobq.reassign_owned('regress_jobq_alice', current_user::regrole) AS reassigned;
SELECT * FROM test.scoped_keys();
SELECT jobq.enqueue('note', '2', 'manual', unique_key => 'r', uniqueness => '{"scope": "queue"}') = (SELECT id FROM jobq.live_jobs WHERE unique_key = 'r') AS same;
TRUNCATE jobq_internal.unique_key;
UPDATE jobq_internal.job SET dormant = true WHERE unique_key IS NOT NULL;
SELECT jobq.adopt();
SELECT kind, queue, key FROM test.scoped_keys();
SELECT jobq.revoke_privilege('regress_jobq_alice');
CALL test.cancel_scoped();

-- bad input
SELECT e.code, e.message, e.hint FROM unnest('{NULL,a,a}'::text[], '{queue,role,""}'::text[]) WITH ORDINALITY u (k, s, n),
	test.error(format('SELECT jobq.enqueue(''echo'', unique_key => %L, uniqueness => %L)', k, jsonb_build_object('scope', s))) e ORDER BY n;
SELECT e.code, e.message, e.hint FROM unnest(ARRAY['''echo'', ''a'', ''role''', '''echo'', ''a'', ''queue''', '''echo'', ''a'', ''queue'', ''manual''', '''echo'', ''a'', ''database''', 'NULL, ''a'', ''database'', ''manual''', '''echo'', ''a'', queue => ''manual''']) WITH ORDINALITY u (o, n),
	test.error(format('SELECT jobq.release_key(%s)', o)) e ORDER BY n;
SELECT jobq.release_key() IS NULL AS nothing, jobq.release_key(unique_key => 'a') IS NULL AS nothing, jobq.release_key(NULL, 'a', 'queue', 'no such queue');
SELECT e.code, e.message FROM test.error($$SELECT jobq.schedule('scoped', '@daily', 'echo', options => '{"uniqueness": {"scope": "queue"}}')$$) e;
SELECT e.code, e.message FROM test.error($$SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "uniqueness": {"scope": "database"}}]}')$$) e;
SELECT count(*) FROM jobq_internal.unique_key;
DROP FUNCTION test.scoped, test.scoped_keys, test.enqueue_once;
DROP PROCEDURE test.cancel_scoped;
