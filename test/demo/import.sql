-- Import a file of CSV as a batch: a job for each 500 lines, and one more when all
-- of them are through.

-- The lines of the file, as they are, and what the import makes of them.
CREATE TABLE demo.line (
	no int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	registry text, assignment text, name text, address text
);
CREATE TABLE demo.maker (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE);
CREATE TABLE demo.assignment (prefix text PRIMARY KEY, maker int NOT NULL REFERENCES demo.maker);
CREATE TABLE demo.import_log (first int, lines int);
CREATE TABLE demo.report (makers int, assignments int);

-- Import the lines from first on.
CREATE FUNCTION demo.import_chunk(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	lines int;
BEGIN
	-- in order of name, so that two chunks do not deadlock
	INSERT INTO demo.maker (name)
		SELECT DISTINCT name FROM demo.line
		WHERE no BETWEEN (payload -> 'first')::int AND (payload -> 'first')::int + 499
		ORDER BY name ON CONFLICT DO NOTHING;
	INSERT INTO demo.assignment (prefix, maker)
		SELECT l.assignment, m.id FROM demo.line l JOIN demo.maker m USING (name)
		WHERE l.no BETWEEN (payload -> 'first')::int AND (payload -> 'first')::int + 499;
	GET DIAGNOSTICS lines = ROW_COUNT;
	INSERT INTO demo.import_log VALUES ((payload -> 'first')::int, lines);
	RETURN jsonb_build_object('lines', lines);
END
$$;
CREATE FUNCTION demo.write_report() RETURNS void LANGUAGE sql AS $$
	INSERT INTO demo.report SELECT (SELECT count(*) FROM demo.maker), (SELECT count(*) FROM demo.assignment)
$$;
SELECT jobq.register('demo.import', 'demo.import_chunk(jsonb)', max_attempts => 2, backoff => 'fixed 200ms') \g /dev/null
SELECT jobq.register('demo.report', 'demo.write_report()') \g /dev/null

BEGIN;
\set copy '\\copy demo.line (registry, assignment, name, address) FROM PROGRAM ''cat ' :csv ''' CSV HEADER'
:copy
SELECT jobq.create_batch('import', on_success => '{"kind": "demo.report"}',
	allow_failures => true, start => true) AS batch \gset
SELECT array_agg(id) AS ids, count(*) AS jobs
FROM jobq.add_jobs(:batch, 'demo.import', ARRAY(
	SELECT jsonb_build_object('first', first)
	FROM generate_series(1, (SELECT max(no) FROM demo.line), 500) AS first)) AS id \gset
COMMIT;
SELECT (SELECT max(no) FROM demo.line) AS lines, :jobs AS jobs, state, count(*)
FROM jobq.wait_many(:'ids'::bigint[], '60 s') GROUP BY state;
