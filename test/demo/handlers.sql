-- The handlers, and the kinds of jobs that they run.

-- Import the lines from first to last.
CREATE FUNCTION demo.import_chunk(payload jsonb, job jobq.job_context) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	first_line int := payload -> 'first';
	last_line int := payload -> 'last';
	lines int;
BEGIN
	-- one chunk meets the broken library, once
	IF first_line = 10001 AND job.attempt = 1 THEN
		PERFORM pg_sleep(0.1);
		PERFORM demo.crash();
	END IF;

	-- in order of name, so that two chunks do not deadlock
	INSERT INTO demo.maker (name, address)
		SELECT name, max(nullif(trim(address), '')) FROM demo.line
		WHERE no BETWEEN first_line AND last_line
		GROUP BY name ORDER BY name
		ON CONFLICT DO NOTHING;
	INSERT INTO demo.assignment (prefix, maker)
		SELECT l.assignment, m.id FROM demo.line l JOIN demo.maker m USING (name)
		WHERE l.no BETWEEN first_line AND last_line;
	GET DIAGNOSTICS lines = ROW_COUNT;
	INSERT INTO demo.import_log VALUES (first_line, lines);
	RETURN jsonb_build_object('lines', lines);
END
$$;

-- Write the invoice of a maker: 25 for each of its assignments.
CREATE FUNCTION demo.write_invoice(payload jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
	customer demo.maker;
	given int;
	total numeric;
BEGIN
	SELECT * INTO STRICT customer FROM demo.maker WHERE id = (payload -> 'maker')::int;
	SELECT 25 * count(*) INTO total FROM demo.assignment WHERE maker = customer.id;
	UPDATE demo.counter SET last = last + 1 RETURNING last INTO given;
	INSERT INTO demo.invoice (number, maker, amount) VALUES (given, customer.id, total);

	-- undoes all of the above, and no other attempt is made
	IF customer.address IS NULL THEN
		PERFORM jobq.fail_current(format('no address for "%s"', customer.name));
	END IF;
	RETURN jsonb_build_object('invoice', given, 'amount', total);
END
$$;

-- Write the statement of account, when all invoices are written.
CREATE FUNCTION demo.write_statement(payload jsonb) RETURNS void
LANGUAGE sql AS $$
	INSERT INTO demo.statement SELECT count(*), sum(amount), now() FROM demo.invoice
$$;

SELECT jobq.register('demo.import', 'demo.import_chunk(jsonb, jobq.job_context)', max_attempts => 3, backoff => 'fixed 200ms') \g /dev/null
SELECT jobq.register('demo.invoice', 'demo.write_invoice(jsonb)') \g /dev/null
SELECT jobq.register('demo.statement', 'demo.write_statement(jsonb)') \g /dev/null
