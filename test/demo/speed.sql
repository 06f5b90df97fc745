-- 10,000 jobs in one transaction.

CREATE TABLE demo.note (no int);		-- no unique key: work that is done twice is seen
CREATE FUNCTION demo.write_note(payload jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO demo.note VALUES ((payload -> 'no')::int)
$$;
SELECT jobq.register('demo.note', 'demo.write_note(jsonb)') \g /dev/null

SELECT array_agg(id) AS ids
FROM jobq.enqueue_many('demo.note', ARRAY(
	SELECT jsonb_build_object('no', no) FROM generate_series(1, 10000) AS no)) AS id \gset
SELECT count(*) AS completed FROM jobq.wait_many(:'ids'::bigint[], '60 s') WHERE state = 'completed' \gset

-- from the first one's start to the last one's end
SELECT round(count(*) / extract(epoch FROM max(finished_at) - min(started_at))) AS rate
FROM jobq.jobs WHERE kind = 'demo.note' \gset
SELECT :completed AS completed, :rate AS "jobs per second";
INSERT INTO demo.fact (what, found, ok)
SELECT '10,000 jobs, each of which writes a row',
	to_char(:rate, 'FM999,999') || ' jobs/s',
	count(*) = 10000 AND count(DISTINCT no) = 10000
FROM demo.note;
