-- pgbench: one job per transaction.
SELECT jobq.enqueue('demo.note', '{"no": 0}');
