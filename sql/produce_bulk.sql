-- Many jobs at once: enqueue_many, the view inbox, triggers.

-- ids come in the order of the payloads
SELECT array_agg(id ORDER BY n) AS ids FROM jobq.enqueue_many('echo', ARRAY['1', '2', '3']::jsonb[])
	WITH ORDINALITY AS j (id, n) \gset
SELECT state, result FROM jobq.wait_many(:'ids'::bigint[]);
SELECT * FROM jobq.enqueue_many('echo', '{}');

-- more jobs than the backend reports to the scheduler individually, and more than one page
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('note', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 2500) i)) id \gset
SELECT state, count(*) FROM jobq.wait_many(:'ids'::bigint[]) GROUP BY state;
SELECT count(*), count(DISTINCT note), min(note::int), max(note::int) FROM test.trace;
TRUNCATE test.trace;

-- options apply to all jobs
SELECT array_agg(id) AS ids FROM jobq.enqueue_many('echo', ARRAY['1', '2']::jsonb[], queue => 'manual', priority => 3,
	max_attempts => 4, delay => '1 hour', headers => '{"h": 1}') id \gset
SELECT state, queue, priority, attempt, max_attempts, payload, headers, run_at - enqueued_at AS delay
FROM jobq.jobs WHERE id = ANY (:'ids') ORDER BY id;
SELECT bool_and(jobq.cancel(id)) FROM unnest(:'ids'::bigint[]) id;

-- many lanes in one transaction: the scheduler is notified to check everything
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
INSERT INTO jobq.inbox (kind, payload, queue, priority, delay, max_attempts, retry_until, backoff, timeout, expires_at, headers, options)
VALUES ('echo', '1', 'manual', 1, '1 hour', 2, 'infinity', 'fixed 1s', '5 s', 'infinity', '{}', '{"watch": true}') RETURNING id \gset
SELECT state, queue, priority, max_attempts, headers FROM jobq.jobs WHERE id = :id;
SELECT jobq.cancel(:id);
INSERT INTO jobq.inbox (kind, payload) SELECT 'note', to_jsonb(i) FROM generate_series(1, 100) i;
SELECT test.until('(SELECT count(*) FROM test.trace) = 100');
SELECT count(*) FROM jobq.inbox;

-- COPY into the inbox
TRUNCATE test.trace;
COPY jobq.inbox (kind, payload, priority) FROM stdin;
note	"one"	1
note	"two"	2
note	"three"	\N
\.
SELECT test.until('(SELECT count(*) FROM test.trace) = 3');
SELECT note FROM test.trace ORDER BY note;

-- one bad row, and no job is enqueued
TRUNCATE test.trace;
COPY jobq.inbox (kind, payload) FROM stdin;
note	"one"
nota	"two"
\.
INSERT INTO jobq.inbox (kind, payload) VALUES ('note', '1'), (NULL, '2');
SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL;
SELECT count(*) FROM test.trace;

-- the inbox accepts only new rows
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

-- in a given queue
CREATE OR REPLACE TRIGGER outbox AFTER INSERT ON test."an ""item"
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
INSERT INTO test."an ""item" VALUES (4, 'manual');
SELECT state, queue, kind, payload FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;
SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;

-- each statement becomes a job
DROP TRIGGER outbox ON test."an ""item";
CREATE TRIGGER inserted AFTER INSERT ON test."an ""item" REFERENCING NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
CREATE TRIGGER updated AFTER UPDATE ON test."an ""item" REFERENCING OLD TABLE AS old NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual', '2');
CREATE TRIGGER deleted AFTER DELETE ON test."an ""item" REFERENCING OLD TABLE AS old
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
INSERT INTO test."an ""item" VALUES (11, 'a'), (12, 'say "b"'), (13, NULL);
UPDATE test."an ""item" SET name = id WHERE id > 10;
UPDATE test."an ""item" SET name = 'd' WHERE id = 0;
INSERT INTO test."an ""item" SELECT 11 ON CONFLICT DO NOTHING;
DELETE FROM test."an ""item" WHERE id > 11;
BEGIN;
INSERT INTO test."an ""item" VALUES (14, 'not me');
ROLLBACK;
SELECT payload FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL ORDER BY id;
SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE queue = 'manual' AND finished_at IS NULL;
-- very many rows become several jobs, also if the rows were spilled to a file, and another trigger reads them
CREATE TABLE test.read (n bigint, sum bigint);
CREATE FUNCTION test.read_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO test.read SELECT count(*), sum(id) FROM new;
	RETURN NULL;
END
$$;
CREATE TRIGGER a_reads AFTER INSERT ON test."an ""item" REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION test.read_new();
CREATE TRIGGER z_reads AFTER INSERT ON test."an ""item" REFERENCING NEW TABLE AS new FOR EACH STATEMENT EXECUTE FUNCTION test.read_new();
SET work_mem = '64kB';
INSERT INTO test."an ""item" SELECT n, repeat('x', 100) FROM generate_series(100001, 105500) n;
RESET work_mem;
SELECT * FROM test.read;
SELECT count(*) AS jobs, max(jsonb_array_length(payload -> 'new')) AS most, sum(jsonb_array_length(payload -> 'new')) AS rows, bool_and(payload ->> 'op' = 'INSERT' AND payload -> 'old' = 'null') AS alike,
	(SELECT count(DISTINCT (r ->> 'id')::int) FROM jobq.live_jobs k, jsonb_array_elements(k.payload -> 'new') r WHERE k.queue = 'manual' AND r ->> 'name' = repeat('x', 100)) AS ids
FROM jobq.live_jobs WHERE queue = 'manual';
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE queue = 'manual';
-- or because the rows are large
DROP TRIGGER a_reads ON test."an ""item";
SET jobq.max_payload = '1MB';
INSERT INTO test."an ""item" SELECT n, repeat('x', 100000) FROM generate_series(200001, 200020) n;
RESET jobq.max_payload;
SELECT count(*) > 2 AS several, sum(jsonb_array_length(payload -> 'new')) AS rows FROM jobq.live_jobs WHERE queue = 'manual';
SELECT count(jobq.cancel(id)) > 2 AS cancelled FROM jobq.live_jobs WHERE queue = 'manual';
DROP TRIGGER inserted ON test."an ""item";
-- triggers on a partitioned table
CREATE TABLE test.parted (id int, name text) PARTITION BY LIST (id);
CREATE TABLE test.parted_1 (name text, id int);
ALTER TABLE test.parted ATTACH PARTITION test.parted_1 FOR VALUES IN (1);
CREATE TABLE test.parted_2 PARTITION OF test.parted FOR VALUES IN (2);
CREATE TRIGGER inserted AFTER INSERT ON test.parted REFERENCING NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
INSERT INTO test.parted VALUES (1, 'one'), (2, 'two');
SELECT payload FROM jobq.live_jobs WHERE queue = 'manual';
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE queue = 'manual';
DROP TABLE test.parted, test.read;

-- with generated columns; the server hides virtual columns from triggers
SELECT CASE WHEN current_setting('server_version_num')::int < 180000 THEN 'STORED' ELSE 'VIRTUAL' END AS how \gset
CREATE TABLE test.computed (id int, twice int GENERATED ALWAYS AS (id * 2) :how, gone int, name text, loud text GENERATED ALWAYS AS (upper(name) || '!') :how);
INSERT INTO test.computed VALUES (1, default, 0, 'one');
ALTER TABLE test.computed DROP COLUMN gone;
ALTER TABLE test.computed ADD COLUMN more int DEFAULT 5, ADD COLUMN sum int GENERATED ALWAYS AS (id + length(name)) :how;
CREATE TRIGGER each_row AFTER INSERT OR UPDATE OR DELETE ON test.computed
	FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
CREATE TRIGGER updated AFTER UPDATE ON test.computed REFERENCING OLD TABLE AS old NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual');
INSERT INTO test.computed VALUES (2, default, NULL);
UPDATE test.computed SET id = id + 10;
DELETE FROM test.computed WHERE id = 11;
SELECT payload FROM jobq.live_jobs WHERE queue = 'manual' ORDER BY id;
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE queue = 'manual';
DROP TABLE test.computed;

-- wrong use of the triggers
CREATE TABLE test.item (id int PRIMARY KEY);
CREATE TRIGGER outbox AFTER INSERT ON test.item
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change');
INSERT INTO test.item VALUES (1);
DROP TRIGGER outbox ON test.item;
CREATE TRIGGER outbox AFTER INSERT ON test.item REFERENCING NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual', '0');
INSERT INTO test.item VALUES (1);
DROP TRIGGER outbox ON test.item;
CREATE TRIGGER outbox AFTER INSERT ON test.item REFERENCING NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual', 'ten', 'more');
INSERT INTO test.item VALUES (1);
DROP TRIGGER outbox ON test.item;
CREATE TRIGGER outbox AFTER INSERT ON test.item REFERENCING NEW TABLE AS new
	FOR EACH STATEMENT EXECUTE FUNCTION jobq.enqueue_trigger('change', 'manual', '10 rows');
INSERT INTO test.item VALUES (1);
DROP TRIGGER outbox ON test.item;
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
