-- signal_link(): a link sends a signal once, without a privilege.
\connect - postgres
CREATE TABLE test.effect (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text);
CREATE FUNCTION test.suspended(id bigint, waits_for text) RETURNS boolean LANGUAGE sql AS $$
	SELECT test.until(format('(SELECT state = ''suspended'' AND message LIKE %L FROM jobq.status(%s))', '%' || waits_for || '%', id))
$$;
-- The part of the path that use_link() takes.
CREATE FUNCTION test.token(path text) RETURNS text LANGUAGE sql AS $$ SELECT substr(path, length('/signal/') + 1) $$;
CREATE PROCEDURE test.confirms(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	CALL jobq.await_signal('Pay "7"/8 €?', answer);
	IF jobq.step('note') THEN
		INSERT INTO test.effect (note) VALUES (answer);
		CALL jobq.step_done();
	END IF;
	CALL jobq.await_signal('end', answer);
END
$$;
SELECT jobq.register('confirms', 'test.confirms(jsonb)', max_attempts => 1);
SELECT jobq.enqueue('confirms') AS id \gset
SELECT test.suspended(:id, 'Pay');

-- a link is open, sends its signal once, and is used from then on
SELECT jobq.signal_link(:id, 'Pay "7"/8 €?') AS path, jobq.signal_link(:id, 'Pay "7"/8 €?') AS path2, jobq.signal_link(:id, 'end') AS "end" \gset
SELECT :'path' ~ '^/signal/[A-Za-z0-9_-]+$' AS in_the_alphabet, :'path' <> :'path2' AS differ;
SELECT * FROM jobq_internal.use_link(test.token(:'path'), NULL);
SELECT * FROM jobq_internal.use_link(test.token(:'path'), NULL);
SELECT message FROM jobq.status(:id);
SELECT * FROM jobq_internal.use_link(test.token(:'path'), '{"by": "Ann"}');
SELECT test.suspended(:id, 'end');
SELECT * FROM jobq_internal.use_link(test.token(:'path'), '{"by": "Eve"}');
SELECT * FROM jobq_internal.use_link(test.token(:'path'), NULL);
SELECT note FROM test.effect;
SELECT by, detail FROM jobq.history(:id) WHERE event = 'signal';

-- another link with this name sends another signal
SELECT state FROM jobq_internal.use_link(test.token(:'path2'), '2');
SELECT payload, taken_by, sent_by FROM jobq_internal.signal WHERE job_id = :id AND answer IS NULL ORDER BY id;

-- no other text is a link: each character of a link counts, and so does its spelling
SELECT test.token(:'end') AS token \gset
SELECT count(*) = length(:'token') AS all, u.state FROM generate_series(1, length(:'token')) i,
	jobq_internal.use_link(overlay(:'token' placing CASE substr(:'token', i, 1) WHEN 'A' THEN 'B' ELSE 'A' END FROM i FOR 1), '0') u GROUP BY u.state;
SELECT DISTINCT u.state FROM generate_series(0, 63) i, jobq_internal.use_link(left(:'token', -1) || substr('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_', i + 1, 1), NULL) u
WHERE substr('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_', i + 1, 1) <> right(:'token', 1);
SELECT DISTINCT u.state FROM generate_series(0, length(:'token') - 1) i, jobq_internal.use_link(left(:'token', i), '0') u;
SELECT u.* FROM unnest(ARRAY[:'token' || 'A', :'token' || '=', :'token' || ' ', 'A' || :'token', :'end', NULL, 'ä', repeat('A', 43), repeat('A', 44), repeat('_', 44), repeat('A', 48), repeat('A', 100000)]) t, jobq_internal.use_link(t, '0') u;
SELECT u.* FROM jobq_internal.use_link(:'token', NULL) u;

-- the largest name, and payloads
SELECT repeat('é', 63) || 'x' AS long \gset
SELECT jobq.signal_link(:id, :'long') AS path \gset
SELECT u.state, u.name = :'long' AS same FROM jobq_internal.use_link(test.token(:'path'), NULL) u;
SELECT code, message FROM test.error(format('SELECT jobq_internal.use_link(%L, to_jsonb(repeat(''x'', 20000000)))', test.token(:'path')));
SELECT u.state FROM jobq_internal.use_link(test.token(:'path'), 'null') u;
SELECT payload FROM jobq_internal.signal WHERE job_id = :id AND name = :'long' AND answer IS NULL;

-- a rollback undoes the use
BEGIN;
SELECT u.state FROM jobq_internal.use_link(:'token', '0') u;
ROLLBACK;
BEGIN READ ONLY;
SELECT u.state FROM jobq_internal.use_link(:'token', NULL) u;
SELECT u.state FROM jobq_internal.use_link(:'token', '0') u;
ROLLBACK;

-- the time of a link
SELECT jobq.signal_link(:id, 'end', valid_for => '1 hour') AS path \gset
SELECT jobq.test_clock('59 minutes') \g /dev/null
SELECT u.state FROM jobq_internal.use_link(test.token(:'path'), NULL) u;
SELECT jobq.test_clock('61 minutes') \g /dev/null
SELECT u.state FROM (VALUES (NULL::jsonb), ('0')) v (p), jobq_internal.use_link(test.token(:'path'), p) u;
SELECT u.state FROM jobq_internal.use_link(:'token', NULL) u;
SELECT jobq.test_clock('0') \g /dev/null
SELECT u.state FROM jobq_internal.use_link(test.token(:'path'), NULL) u;

-- a role without any privilege may use a link; to make one needs the privilege to send the signal
SELECT jobq.grant_privilege('regress_jobq_alice'), jobq.grant_privilege('regress_jobq_bob'), jobq.grant_privilege('regress_jobq_boss', 'operate');
SET ROLE regress_jobq_alice;
SELECT jobq.enqueue('confirms') AS hers \gset
SELECT jobq.signal_link(:hers, 'end') AS her_path \gset
SET ROLE regress_jobq_bob;
SELECT * FROM test.error(format('SELECT jobq.signal_link(%s, ''end'')', :hers));
SET ROLE regress_jobq_boss;
SELECT * FROM test.error(format('SELECT jobq.signal_link(%s, ''end'')', :hers));
RESET ROLE;
SELECT jobq.grant_privilege('regress_jobq_boss', 'manage');
SET ROLE regress_jobq_boss;
SELECT jobq.signal_link(:hers, 'end') AS boss_path \gset
RESET ROLE;
SELECT role, action, arguments ->> 'name' AS name, jobs FROM jobq.audit_log WHERE action = 'signal_link' ORDER BY id DESC LIMIT 1;
SELECT jobq.revoke_privilege('regress_jobq_boss'), jobq.revoke_privilege('regress_jobq_alice'), jobq.revoke_privilege('regress_jobq_bob');
SET ROLE regress_jobq_bob;
SELECT u.state FROM jobq_internal.use_link(test.token(:'boss_path'), '1') u;
SELECT u.state FROM jobq_internal.use_link(test.token(:'her_path'), '2') u;
RESET ROLE;
SELECT payload, sent_by FROM jobq_internal.signal WHERE job_id = :hers AND answer IS NULL ORDER BY id;
SELECT jobq.cancel(:hers);

-- a dead letter keeps the signal; a finished job needs none
SELECT jobq.signal_link(:id, 'end') AS unused \gset
SELECT u.state FROM jobq_internal.use_link(:'token', '0') u;
SELECT state FROM test.outcome(:id);
SELECT u.state FROM unnest(ARRAY[:'token', test.token(:'unused')]) t, (VALUES (NULL::jsonb), ('0')) v (p), jobq_internal.use_link(t, p) u ORDER BY 1;
SELECT jobq.enqueue('confirms', max_attempts => 1, timeout => '1 h', expires_at => now() - interval '1 h') AS late \gset
SELECT state FROM test.outcome(:late);
SELECT c, e.* FROM unnest(ARRAY[:id, :late]) WITH ORDINALITY i (id, n), LATERAL (SELECT CASE n WHEN 1 THEN 'completed' ELSE 'expired' END AS c) c, test.error(format('SELECT jobq.signal_link(%s, ''end'')', i.id)) e ORDER BY n;
CREATE OR REPLACE PROCEDURE test.confirms(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF payload ? 'fails' AND NOT EXISTS (SELECT FROM test.effect WHERE note = 'repaired') THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	CALL jobq.await_signal('end', answer);
	INSERT INTO test.effect (note) VALUES (answer);
END
$$;
SELECT jobq.enqueue('confirms', '{"fails": true}') AS dead \gset
SELECT state, error FROM test.outcome(:dead);
SELECT jobq.signal_link(:dead, 'end') AS path \gset
SELECT u.state FROM jobq_internal.use_link(test.token(:'path'), '"to a dead letter"') u;
INSERT INTO test.effect (note) VALUES ('repaired');
SELECT jobq.retry(:dead);
SELECT state FROM test.outcome(:dead);
SELECT note FROM test.effect ORDER BY n DESC LIMIT 1;

-- a job that replaces the job, or a rerun, has no link, whether used or not
SELECT jobq.enqueue('confirms', '{"amount": 100}', unique_key => 'expense', uniqueness => '{"on_conflict": "replace"}') AS id \gset
SELECT test.suspended(:id, 'end');
SELECT test.token(jobq.signal_link(:id, 'approve')) AS used, test.token(jobq.signal_link(:id, 'end')) AS open \gset
SELECT u.state FROM jobq_internal.use_link(:'used', '0') u;
SELECT jobq.enqueue('confirms', '{"amount": 100000}', unique_key => 'expense', uniqueness => '{"on_conflict": "replace"}') = :id AS same;
SELECT u.state FROM unnest(ARRAY[:'used', :'open']) t, (VALUES (NULL::jsonb), ('0')) v (p), jobq_internal.use_link(t, p) u;
SELECT jobq.cancel(:id);
SELECT jobq.create_workflow('{"steps": [{"name": "approval", "kind": "confirms"}]}') AS batch \gset
SELECT job_id AS id FROM jobq.steps WHERE batch_id = :batch \gset
SELECT test.suspended(:id, 'end');
SELECT test.token(jobq.signal_link(:id, 'end')) AS used, test.token(jobq.signal_link(:id, 'end')) AS open \gset
SELECT u.state FROM jobq_internal.use_link(:'used', '0') u;
SELECT state FROM jobq.wait_batch(:batch, '5 min');
SELECT jobq.rerun_steps(:batch, 'approval');
SELECT test.suspended(:id, 'end');
SELECT u.state FROM unnest(ARRAY[:'used', :'open']) t, (VALUES (NULL::jsonb), ('0')) v (p), jobq_internal.use_link(t, p) u;
-- the row of a link has no secret, and is no signal
SELECT test.token(jobq.signal_link(:id, 'end')) AS token \gset
SELECT payload ->> 0 = encode(sha256(substr(decode(translate(:'token', '-_', '+/'), 'base64'), 18)), 'hex') AS hash, sent_by = current_user AS by, taken_by = '' AS taken
	FROM jobq_internal.signal WHERE job_id = :id AND answer = 'l';
SELECT count(*) FROM jobq.history(:id) WHERE event IN ('signal', 'answer');
SELECT jobq.cancel_batch(:batch);

-- bad input
SELECT c, e.code, e.message, e.hint FROM unnest('{"NULL, ''a''","1, NULL","1, ''''","1, repeat(''x'', 128)","0, ''a''","1, ''a'', NULL","1, ''a'', ''0''","1, ''a'', ''-1 h''","1, ''a'', ''1000 years''"}'::text[])
	WITH ORDINALITY u (c, n), test.error(format('SELECT jobq.signal_link(%s)', c)) e ORDER BY n;
BEGIN READ ONLY;
SELECT jobq.signal_link(1, 'a');
ROLLBACK;

DROP TABLE test.effect;
DROP PROCEDURE test.confirms(jsonb);
DROP FUNCTION test.suspended(bigint, text), test.token(text);
SELECT jobq.unregister('confirms');
