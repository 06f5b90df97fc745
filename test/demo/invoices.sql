-- A batch: when all are written, and not before, so is the statement of account.
BEGIN;
SELECT jobq.create_batch('invoices', on_success => '{"kind": "demo.statement"}',
	allow_failures => true, start => true) AS batch \gset
SELECT count(*) AS jobs FROM jobq.batch_add(:batch, 'demo.invoice', ARRAY(
	SELECT jsonb_build_object('maker', maker) FROM demo.assignment
	GROUP BY maker ORDER BY count(*) DESC, maker LIMIT 500));
COMMIT;
