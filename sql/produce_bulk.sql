-- Many jobs at once: enqueue_many, the view inbox, triggers.

-- ids come in the order of the payloads
SELECT array_agg(id ORDER BY n) AS ids FROM jobq.enqueue_many('echo', ARRAY['1', '2', '3']::jsonb[])
	WITH ORDINALITY AS j (id, n) \gset
SELECT state, result FROM jobq.wait(:'ids'::bigint[]);
SELECT * FROM jobq.enqueue_many('echo', '{}');

-- more than the backend names to the scheduler one by one, and more than one page
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 2500) i)) id \gset
SELECT state, count(*) FROM jobq.wait(:'ids'::bigint[]) GROUP BY state;
SELECT count(*), count(DISTINCT note), min(note::int), max(note::int) FROM test.trace;
TRUNCATE test.trace;

-- options are for all
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('echo', ARRAY['1', '2']::jsonb[], queue => 'manual', priority => 3,
	max_attempts => 4, delay => '1 hour', headers => '{"h": 1}') id \gset
SELECT state, queue, priority, attempt, max_attempts, payload, headers, run_at - enqueued_at AS delay
FROM jobq.jobs WHERE id = ANY (:'ids') ORDER BY id;
SELECT bool_and(jobq.cancel(id)) FROM unnest(:'ids'::bigint[]) id;

-- many lanes in one transaction: look at everything
BEGIN;
SELECT count(jobq.enqueue('note', to_jsonb(i), priority => i % 50)) FROM generate_series(1, 200) i;
COMMIT;
SELECT test.until('(SELECT count(*) FROM test.trace) = 200');
SELECT count(DISTINCT note) FROM test.trace;
TRUNCATE test.trace;

-- INSERT into the inbox
INSERT INTO jobq.inbox (kind, payload) VALUES ('echo', '"inserted"') RETURNING id \gset
SELECT * FROM test.outcome(:id);
INSERT INTO jobq.inbox (kind) VALUES ('echo') RETURNING id \gset
SELECT * FROM test.outcome(:id);
INSERT INTO jobq.inbox (kind, payload, queue, priority, delay, max_attempts, retry_until, backoff, timeout, expires_at, headers, watch)
VALUES ('echo', '1', 'manual', 1, '1 hour', 2, 'infinity', 'fixed 1s', '5 s', 'infinity', '{}', true) RETURNING id \gset
SELECT state, queue, priority, max_attempts, headers FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel(:id);
INSERT INTO jobq.inbox (kind, payload) SELECT 'note', to_jsonb(i) FROM generate_series(1, 100) i;
SELECT test.until('(SELECT count(*) FROM test.trace) = 100');
SELECT count(*) FROM jobq.inbox;

-- COPY into it
TRUNCATE test.trace;
COPY jobq.inbox (kind, payload, priority) FROM stdin;
note	"one"	1
note	"two"	2
note	"three"	\N
\.
SELECT test.until('(SELECT count(*) FROM test.trace) = 3');
SELECT note FROM test.trace ORDER BY note;

-- one bad row, and there is none of them
TRUNCATE test.trace;
COPY jobq.inbox (kind, payload) FROM stdin;
note	"one"
nota	"two"
\.
INSERT INTO jobq.inbox (kind, payload) VALUES ('note', '1'), (NULL, '2');
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SELECT count(*) FROM test.trace;

-- it takes nothing but new rows
\set VERBOSITY sqlstate
UPDATE jobq.inbox SET kind = 'x';
DELETE FROM jobq.inbox;
\set VERBOSITY default

-- each changed row becomes a job
CREATE FUNCTION test.change(payload jsonb) RETURNS void
LANGUAGE sql AS $$ INSERT INTO test.trace (note) VALUES (payload::text) $$;
SELECT jobq.register('change', 'test.change(jsonb)', queue => 'first');
CREATE TABLE test."an ""item" (id int PRIMARY KEY, name text);
CREATE TRIGGER outbox AFTER INSERT OR UPDATE OR DELETE ON test."an ""item"
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('change');
INSERT INTO test."an ""item" VALUES (1, 'a'), (2, 'say "b"');
UPDATE test."an ""item" SET name = 'c' WHERE id = 1;
DELETE FROM test."an ""item" WHERE id = 2;
BEGIN;
INSERT INTO test."an ""item" VALUES (3, 'not me');
ROLLBACK;
SELECT test.until('(SELECT count(*) FROM test.trace) = 4');
SELECT note FROM test.trace ORDER BY n;

-- in a queue of its own
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON test."an ""item"
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
INSERT INTO test."an ""item" VALUES (4, 'manual');
SELECT state, queue, kind, payload FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;
SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;

-- used in the wrong way
CREATE TABLE test.item (id int PRIMARY KEY);
CREATE TRIGGER outbox AFTER INSERT ON test.item
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change');
INSERT INTO test.item VALUES (1);
CREATE OR REPLACE TRIGGER outbox BEFORE INSERT ON test.item
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('change');
INSERT INTO test.item VALUES (1);
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON test.item
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger();
INSERT INTO test.item VALUES (1);
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON test.item
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('nothing');
INSERT INTO test.item VALUES (1);
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON test.item
	FOR EACH ROW EXECUTE FUNCTION jobq_internal.inbox_insert();
INSERT INTO test.item VALUES (1);
SELECT count(*) FROM test.item;

DROP TABLE test.item, test."an ""item";
TRUNCATE test.trace;
