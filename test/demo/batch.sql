-- What has become of the batch, and the statement if there is one.
SELECT name AS batch, state, total, completed, failed, progress AS "%" FROM jobq.batches;
SELECT * FROM demo.statement;
