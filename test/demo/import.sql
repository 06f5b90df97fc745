BEGIN;
\set copy '\\copy demo.line (registry, assignment, name, address) FROM PROGRAM ''cat ' :csv ''' CSV HEADER'
:copy
SELECT count(jobq.enqueue('demo.import', jsonb_build_object('first', first, 'last', first + 499))) AS jobs
FROM generate_series(1, (SELECT max(no) FROM demo.line), 500) AS first;
COMMIT;
