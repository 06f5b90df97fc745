-- For tests of applications: check which jobs wait, and run jobs.

CREATE FUNCTION jobq.assert_enqueued(kind text, payload jsonb DEFAULT NULL, queue text DEFAULT NULL, times int DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	found bigint;
	others text;
BEGIN
	IF kind IS NULL THEN
		RAISE EXCEPTION USING ERRCODE = 'null_value_not_allowed', MESSAGE = 'kind must not be null';
	END IF;
	IF times < 0 THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('times %s is out of range', times),
			HINT = 'It must be at least 0, or null for one or more.';
	END IF;
	SELECT count(*) INTO found FROM jobq.live_jobs j
	WHERE j.kind = $1 AND ($2 IS NULL OR j.payload @> $2) AND ($3 IS NULL OR j.queue = $3);
	IF found = times OR (times IS NULL AND found > 0) THEN
		RETURN true;
	END IF;
	SELECT string_agg(format('job %s of kind "%s" in queue "%s": %s', o.id, o.kind, o.queue, coalesce(left(o.payload::text, 200), 'hidden')), E'\n' ORDER BY o.id)
	INTO others FROM (
		SELECT j.id, j.kind, j.queue, j.payload FROM jobq.live_jobs j WHERE j.kind = $1 OR NOT EXISTS (SELECT FROM jobq.live_jobs k WHERE k.kind = $1)
		LIMIT 5) o;
	RAISE EXCEPTION USING ERRCODE = 'raise_exception',
		MESSAGE = format('there are %s jobs of kind "%s"%s%s, not %s', found, kind,
			' whose payload contains ' || payload::text, ' in queue "' || queue || '"', coalesce(times::text, 'one or more')),
		DETAIL = coalesce('There are: ' || others, 'No job waits.');
END
$$;
COMMENT ON FUNCTION jobq.assert_enqueued IS 'raise an error unless an unfinished job of this kind and payload exists; for tests
kind: the kind
payload: contained in the job''s payload, as by @>; null: any
queue: the queue of the job; null: any
times: the exact number of jobs; null: at least 1
returns: true';

CREATE FUNCTION jobq.run_due(queues text[] DEFAULT NULL, max_jobs int DEFAULT 1000)
RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	jobs int := 0;
	job_id bigint;
BEGIN
	IF max_jobs IS NULL OR max_jobs OPERATOR(pg_catalog.<) 0 THEN
		RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
			MESSAGE = pg_catalog.format('max_jobs %s is out of range', coalesce(max_jobs::pg_catalog.text, 'null')),
			HINT = 'It must be at least 0.';
	END IF;
	WHILE jobs OPERATOR(pg_catalog.<) max_jobs LOOP
		job_id := jobq_internal.run_next(queues);
		EXIT WHEN job_id IS NULL;
		IF job_id OPERATOR(pg_catalog.<>) 0 THEN
			jobs := jobs OPERATOR(pg_catalog.+) 1;
		END IF;
	END LOOP;
	RETURN jobs;
END
$$;
COMMENT ON FUNCTION jobq.run_due IS 'run the due jobs of this role in this transaction; for tests
queues: the queues, in strict order; null: all
max_jobs: return after this number of jobs
returns: the number of jobs that were run';
