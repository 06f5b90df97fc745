-- Rows of missing roles.  A dump may be restored in a cluster without some of the roles.
-- A trigger then keeps the rows of these roles here, and adopt() returns the rows to their
-- tables when the roles exist.
--
-- Queues and delegations are inserted with the role 4294967295, and only the role is kept
-- here.  No job of these queues runs (src/store/queues.c).

CREATE TABLE jobq_internal.held_row (
	id uuid DEFAULT gen_random_uuid() CONSTRAINT held_row_pkey PRIMARY KEY,
	table_name text NOT NULL,
	role text NOT NULL,
	columns text[] NOT NULL,
	contents text[] NOT NULL,
	batch_id bigint
);
COMMENT ON TABLE jobq_internal.held_row IS 'restored rows of roles that do not exist, until adopt()';
COMMENT ON COLUMN jobq_internal.held_row.id IS 'random, because a restore brings held rows and adds others';
COMMENT ON COLUMN jobq_internal.held_row.table_name IS 'table of the row';
COMMENT ON COLUMN jobq_internal.held_row.role IS 'quoted name of the role that did not exist';
COMMENT ON COLUMN jobq_internal.held_row.columns IS 'names of the columns; of a queue and its delegation only the id and the role';
COMMENT ON COLUMN jobq_internal.held_row.contents IS 'values of the columns as text';
COMMENT ON COLUMN jobq_internal.held_row.batch_id IS 'batch of the job, which does not go on meanwhile';
CREATE INDEX held_row_batch ON jobq_internal.held_row (batch_id) WHERE batch_id IS NOT NULL;
COMMENT ON INDEX jobq_internal.held_row_batch IS 'batches with jobs that are kept aside';
SELECT pg_catalog.pg_extension_config_dump('jobq_internal.held_row', '');

CREATE FUNCTION jobq_internal.hold_row() RETURNS trigger
AS 'MODULE_PATHNAME', 'jobq_hold_row' LANGUAGE C
SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres';
COMMENT ON FUNCTION jobq_internal.hold_row() IS 'trigger function: keeps a row with a role that does not exist in held_row, instead of inserting it';

-- A restore with disabled triggers fails at the constraint.
DO $create$
DECLARE
	name name;
	absent text;
BEGIN
	FOR name, absent IN
		SELECT c.relname, string_agg(format('%%1$s%I::pg_catalog.oid BETWEEN ''4294901760'' AND ''4294967294''', a.attname), ' OR ')
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE a.atttypid = 'jobq_internal.role'::regtype AND c.relkind IN ('r', 'p') AND NOT c.relispartition
		GROUP BY c.relname ORDER BY c.relname
	LOOP
		EXECUTE format('CREATE TRIGGER absent_role BEFORE INSERT ON jobq_internal.%I FOR EACH ROW WHEN (%s) EXECUTE FUNCTION jobq_internal.hold_row()',
			name, format(absent, 'NEW.'));
		EXECUTE format('ALTER TABLE jobq_internal.%I ENABLE ALWAYS TRIGGER absent_role', name);
		EXECUTE format('COMMENT ON TRIGGER absent_role ON jobq_internal.%I IS ''keeps rows of roles that do not exist in held_row''', name);
		EXECUTE format('ALTER TABLE jobq_internal.%I ADD CONSTRAINT absent_role CHECK (NOT (%s))', name, format(absent, ''));
		EXECUTE format('COMMENT ON CONSTRAINT absent_role ON jobq_internal.%I IS ''no OID that stands for the name of a role that does not exist''', name);
	END LOOP;
END
$create$;

CREATE FUNCTION jobq_internal.return_rows() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	held record;
	jobs bigint := (SELECT count(*) FROM jobq_internal.held_row WHERE table_name = 'job' AND to_regrole(role) IS NOT NULL
		AND contents[array_position(columns, 'dormant')] = 'f');
BEGIN
	WITH gone AS (
		DELETE FROM jobq_internal.held_row WHERE table_name = 'delegation' AND to_regrole(role) IS NOT NULL
		RETURNING contents)
	UPDATE jobq_internal.delegation d SET set_by = g.contents[2]::jobq_internal.role
	FROM gone g WHERE d.queue_id = g.contents[1]::int AND d.set_by::oid = '4294967295';
	WITH gone AS (
		DELETE FROM jobq_internal.held_row WHERE table_name = 'queue' AND to_regrole(role) IS NOT NULL
		RETURNING contents)
	UPDATE jobq_internal.queue q SET run_as = g.contents[2]::jobq_internal.role
	FROM gone g WHERE q.id = g.contents[1]::int AND q.run_as::oid = '4294967295';

	FOR held IN
		SELECT h.table_name, h.columns, string_agg(quote_ident(c.name), ', ' ORDER BY c.place) AS names,
			string_agg(format('contents[%s]::%s', c.place, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY c.place) AS contents
		FROM (SELECT DISTINCT table_name, columns FROM jobq_internal.held_row WHERE to_regrole(role) IS NOT NULL) h
		CROSS JOIN LATERAL unnest(h.columns) WITH ORDINALITY c (name, place)
		JOIN pg_attribute a ON a.attrelid = format('jobq_internal.%I', h.table_name)::regclass AND a.attname = c.name AND NOT a.attisdropped
		GROUP BY h.table_name, h.columns
		ORDER BY h.table_name
	LOOP
		EXECUTE format('WITH gone AS (
				DELETE FROM jobq_internal.held_row WHERE table_name = %L AND columns = $1 AND to_regrole(role) IS NOT NULL
				RETURNING contents)
			INSERT INTO jobq_internal.%I (%s) SELECT %s FROM gone%s', held.table_name, held.table_name, held.names, held.contents,
				-- the privileges, schedules and unique keys of the role since CREATE ROLE stay
				CASE WHEN held.table_name NOT IN ('job', 'archive', 'dead_letter', 'batch') THEN ' ON CONFLICT DO NOTHING' ELSE '' END)
			USING held.columns;
	END LOOP;
	RETURN jobs;
END
$$;
COMMENT ON FUNCTION jobq_internal.return_rows() IS 'return held rows whose roles exist now to their tables; for adopt(); returns the number of jobs that are not dormant';

CREATE VIEW jobq_internal.held_roles WITH (security_barrier) AS
	SELECT h.role, to_regrole(h.role) IS NOT NULL AS found, sum(h.rows)::bigint AS rows,
		string_agg(format('%s of %s', h.rows, h.table_name), ', ' ORDER BY h.table_name) AS tables
	FROM (SELECT r.role, r.table_name, count(*) AS rows FROM jobq_internal.held_row r GROUP BY 1, 2) h
	WHERE jobq_internal.may_see((SELECT e.extowner FROM pg_catalog.pg_extension e WHERE e.extname = 'jobq'), 0)
	GROUP BY h.role;
COMMENT ON COLUMN jobq_internal.held_roles.found IS 'whether the role exists now';
COMMENT ON COLUMN jobq_internal.held_roles.rows IS 'number of rows';
COMMENT ON COLUMN jobq_internal.held_roles.tables IS 'number of rows in each table';
COMMENT ON VIEW jobq_internal.held_roles IS 'roles that did not exist at a restore, and the number of their rows; for doctor()';
