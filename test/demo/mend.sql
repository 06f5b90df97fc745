-- The dead letters of the import, and what is wrong in the file.
\set ECHO queries
SELECT id, payload, attempt, error, errors -> -1 ->> 'detail' AS detail FROM jobq.dead_letters;
\set ECHO none
SELECT count(*) AS dead, array_agg(id) AS ids FROM jobq.dead_letters \gset

\set ECHO queries
DELETE FROM demo.line l
USING demo.line older
WHERE older.assignment = l.assignment AND older.no < l.no
RETURNING l.no AS "deleted line", l.assignment, l.name;

SELECT jobq.retry_many(kind => 'demo.import') AS retried;
SELECT id, state, attempt, result FROM jobq.wait_many(:'ids'::bigint[], '60 s');
\set ECHO none
-- the batch, and the job of its on_success
SELECT state FROM jobq.wait_batch((SELECT max(id) FROM jobq.batches), '60 s');
SELECT state FROM jobq.wait((SELECT max(id) FROM jobq.jobs WHERE kind = 'demo.report'), '60 s');
\set ECHO queries
SELECT name, state, total, completed, dead, makers, assignments FROM jobq.batches, demo.report;
\set ECHO none

INSERT INTO demo.fact (what, found, ok)
SELECT 'lines of the register, each imported once', to_char(sum(lines), 'FM999,999'),
	sum(lines) = (SELECT count(*) FROM demo.line)
	AND sum(lines) = (SELECT count(DISTINCT assignment) FROM demo.line)
	AND sum(lines) = (SELECT count(*) FROM demo.assignment)
	AND count(*) = count(DISTINCT first)
FROM demo.import_log;
INSERT INTO demo.fact (what, found, ok)
SELECT 'dead letters of it, mended and retried', :dead,
	:dead > 0 AND (SELECT count(*) = 0 FROM jobq.dead_letters) AND (SELECT count(*) = 1 FROM demo.report)
	AND (SELECT state = 'completed' AND total = completed FROM jobq.batches);
