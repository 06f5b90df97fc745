-- Run by a superuser: the extension, a role for the application, and a
-- function that crashes the server process which calls it.

CREATE EXTENSION jobq;
CREATE ROLE shop LOGIN;
SELECT jobq.grant_role('shop', 'manage') \g /dev/null
CREATE SCHEMA demo AUTHORIZATION shop;

-- The lines of the file, as they are.
CREATE TABLE demo.line (
	no int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	registry text,
	assignment text,
	name text,
	address text
);

-- What the import makes of them.
CREATE TABLE demo.maker (
	id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text UNIQUE,
	address text
);
CREATE TABLE demo.assignment (
	prefix text PRIMARY KEY,
	maker int NOT NULL REFERENCES demo.maker
);

-- One row per chunk, invoice and statement, without a unique key: work that is done
-- twice is seen.
CREATE TABLE demo.import_log (first_line int, lines int);
CREATE TABLE demo.invoice (number int, maker int, amount numeric(10,2));
CREATE TABLE demo.statement (invoices int, amount numeric(10,2), written_at timestamptz);

-- The last number that was given to an invoice: no gaps, so no sequence.
CREATE TABLE demo.counter (last int);
INSERT INTO demo.counter VALUES (0);

DO $$
DECLARE
	t regclass;
BEGIN
	FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'demo'::regnamespace AND relkind = 'r'
	LOOP
		EXECUTE format('ALTER TABLE %s OWNER TO shop', t);
	END LOOP;
END
$$;

-- A segmentation fault of this very process, as a broken library would cause.
CREATE FUNCTION demo.crash() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	EXECUTE format('COPY (SELECT) TO PROGRAM ''kill -SEGV %s''', pg_backend_pid());
END
$$;
