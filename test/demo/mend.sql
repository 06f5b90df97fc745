-- Of numbers that were given twice, the first holder keeps his.
DELETE FROM demo.line l
USING demo.line older
WHERE older.assignment = l.assignment AND older.no < l.no
RETURNING l.no AS "deleted line", l.assignment, l.name;

SELECT jobq.retry(id) FROM jobq.failed_jobs \g /dev/null
