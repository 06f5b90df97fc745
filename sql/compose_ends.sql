-- Dead letters of a batch are read from an index with an entry for each of
-- them, even if an administrator adds indexes with some of the dead letters,
-- or with other columns.
CREATE FUNCTION test.ends_fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as planned'; END $$;
SELECT jobq.register('ends_fail', 'test.ends_fail(jsonb)', max_attempts => 1);

CREATE INDEX letters_with_backoff ON jobq_internal.dead_letter (batch_id) WHERE backoff IS NOT NULL;
SELECT jobq.create_batch('partial index') AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'ends_fail', '{1}');
SELECT jobq.start_batch(:batch);
SELECT state, dead FROM jobq.wait_batch(:batch, '5 min');

CREATE INDEX letters_with_id ON jobq_internal.dead_letter (batch_id) INCLUDE (id);
SELECT jobq.create_batch('index with another column') AS batch \gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'ends_fail', '{1}');
SELECT jobq.start_batch(:batch);
SELECT state, dead FROM jobq.wait_batch(:batch, '5 min');

DROP INDEX jobq_internal.letters_with_backoff, jobq_internal.letters_with_id;
SELECT jobq.delete_many(kind => 'ends_fail', state => 'dead');
