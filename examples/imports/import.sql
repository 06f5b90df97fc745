-- Imports prices.csv as a batch, repairs the bad lines, and retries them.
-- usage: psql -f import.sql, in this folder
\set ON_ERROR_STOP on
\set QUIET on
\pset footer off
SET client_min_messages = warning;

DROP SCHEMA IF EXISTS import CASCADE;
CREATE SCHEMA import;
SET search_path = import;

-- The file as it came: every column is text.
CREATE TABLE line (no int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, product text, valid_from text, amount text);

-- The destination: the types and constraints of the tables decide which lines are good.
CREATE TABLE product (code text PRIMARY KEY);
CREATE TABLE price (
	product text REFERENCES product,
	valid_from date,
	amount numeric NOT NULL CHECK (amount > 0),
	PRIMARY KEY (product, valid_from)
);
CREATE TABLE published (batch text, at timestamptz DEFAULT now());
INSERT INTO product SELECT 'P-' || n FROM generate_series(1, 8) AS n;

-- An earlier import of the line is updated, so a retry never imports twice.
CREATE FUNCTION load_line(payload jsonb) RETURNS void LANGUAGE sql SET search_path = import AS $$
	INSERT INTO price (product, valid_from, amount)
	VALUES (payload ->> 'product', (payload ->> 'valid_from')::date, (payload ->> 'amount')::numeric)
	ON CONFLICT (product, valid_from) DO UPDATE SET amount = EXCLUDED.amount
$$;

-- Most chunks have no bad line, and are one statement.  If a chunk has a bad line, each line of the
-- chunk gets a separate job, and only the bad lines fail.
CREATE FUNCTION load_chunk(payload jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = import AS $$
DECLARE
	lines jsonb[] := ARRAY(SELECT to_jsonb(l) FROM line l
		WHERE no BETWEEN (payload -> 'first')::int AND (payload -> 'last')::int ORDER BY no);
BEGIN
	PERFORM load_line(l) FROM unnest(lines) AS l;
	RETURN jsonb_build_object('imported', cardinality(lines));
EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
	PERFORM jobq.add_jobs((jobq.current_job()).batch_id, 'price.line', lines);
	RETURN jsonb_build_object('split', cardinality(lines), 'error', SQLERRM);
END
$$;

-- Runs when every line of the file is imported, also after repairs.
CREATE FUNCTION publish(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql SET search_path = import AS $$
	INSERT INTO published (batch) VALUES (job.headers ->> 'batch')
$$;

-- Bad data (class 22) and violated constraints (class 23) do not get better by retries.
DO $$
BEGIN
	PERFORM jobq.register('price.chunk', 'load_chunk(jsonb)');
	PERFORM jobq.register('price.line', 'load_line(jsonb)', fail_on => '{22,23}');
	PERFORM jobq.register('price.publish', 'publish(jsonb, jobq.job_context)');
END
$$;

\echo The file becomes a batch; the answer takes milliseconds.
BEGIN;
\copy line (product, valid_from, amount) FROM prices.csv CSV HEADER
SELECT jobq.create_batch('prices.csv', on_success => '{"kind": "price.publish"}', allow_failures => true, start => true) AS batch \gset
\timing on
SELECT count(*) AS chunks FROM jobq.add_jobs(:batch, 'price.chunk',
	ARRAY(SELECT jsonb_build_object('first', first, 'last', first + 9)
		FROM generate_series(1, (SELECT max(no) FROM line), 10) AS first));
COMMIT;
\timing off

\echo The batch shows the progress; here we wait for its end.
SELECT state, total AS jobs, completed, dead, progress FROM jobq.wait_batch(:batch);
SELECT count(*) AS imported, (SELECT count(*) FROM line) AS lines FROM price;

\echo The bad lines are dead letters, grouped by cause.
SELECT sqlstate, dead_letters, message FROM jobq.failures WHERE 'price.line' = ANY (kinds) AND dead_letters > 0 ORDER BY sqlstate;

\echo Each cause is repaired, and its dead letters are retried.
BEGIN;
-- a decimal comma: edit the payloads
SELECT count(jobq.edit(id, payload || jsonb_build_object('amount', replace(payload ->> 'amount', ',', '.')))) AS commas
FROM jobq.jobs WHERE batch_id = :batch AND state = 'dead' AND payload ->> 'amount' LIKE '%,%';
-- an impossible day, and a minus sign: the supplier has sent the right values
SELECT count(jobq.edit(id, payload || right_values)) AS corrected
FROM jobq.jobs JOIN (VALUES
	('2026-02-30', jsonb '{"valid_from": "2026-02-28"}'),
	('2026-03-04', '{"amount": "7.20"}')) AS v (valid_from, right_values) ON payload ->> 'valid_from' = v.valid_from
WHERE batch_id = :batch AND state = 'dead';
-- a product that is new: the payloads were right
INSERT INTO product VALUES ('P-9');
SELECT jobq.retry_many(batch_id => :batch) AS retried;
COMMIT;

SELECT state, total AS jobs, completed, dead FROM jobq.wait_batch(:batch);
SELECT count(*) AS imported, (SELECT count(*) FROM line) AS lines FROM price;
SELECT state FROM jobq.wait((SELECT id FROM jobq.jobs WHERE kind = 'price.publish' AND headers ->> 'batch_id' = :'batch'));
SELECT batch AS published FROM published;
