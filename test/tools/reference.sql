-- The catalog's data about jobq's interface, as a JSON object, for
-- test/tools/reference.  The transaction is rolled back at the end.

SET client_min_messages = error;
BEGIN;
CREATE EXTENSION jobq;
CREATE ROLE somebody;

-- Which privilege of grant_privilege() is enough for functions that every role may call?
-- The functions check the privilege, and sql/module_privileges.sql shows the errors.
CREATE FUNCTION pg_temp.may(object text, name text, privilege text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE
		WHEN name = ANY ('{grant_privilege,revoke_privilege}') THEN 'grant'
		WHEN NOT CASE privilege WHEN 'EXECUTE' THEN has_function_privilege('somebody', object, privilege)
			ELSE has_table_privilege('somebody', object, privilege) END THEN NULL
		WHEN name = ANY ('{register,unregister,create_queue,alter_queue,drop_queue,create_limiter,drop_limiter,prune,restart_workers}') THEN 'manage'
		WHEN name = ANY ('{pause,resume,create_monitor,drop_monitor,reset_stats}') THEN 'operate'
		WHEN name IN ('doctor', 'metrics') THEN 'monitor'
		WHEN name = 'enqueue_sql' THEN 'sql'
		ELSE 'produce' END
$$;

-- the default of an argument, without the type added by the server
CREATE FUNCTION pg_temp.argument(proc oid, n int) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(pg_get_function_arg_default(proc, n), '::[a-z ]+(\[\])?$', '')
$$;

-- the usual name of a type
CREATE FUNCTION pg_temp.shorter(type text) RETURNS text LANGUAGE sql AS $$
	SELECT replace(regexp_replace(type, '\minteger\M', 'int'), 'timestamp with time zone', 'timestamptz')
$$;

SELECT jsonb_build_object(
	'function', (
		SELECT jsonb_object_agg(name, signatures) FROM (
			SELECT p.proname AS name, jsonb_agg(jsonb_build_object(
				'kind', CASE p.prokind WHEN 'p' THEN 'procedure' ELSE 'function' END,
				'comment', obj_description(p.oid, 'pg_proc'),
				'may', pg_temp.may(p.oid::regprocedure::text, p.proname, 'EXECUTE'),
				'result', pg_temp.shorter(pg_get_function_result(p.oid)),
				'strict', p.proisstrict,
				'arguments', (
					SELECT coalesce(jsonb_agg(jsonb_build_object('name', a.name, 'type', pg_temp.shorter(format_type(a.type, NULL)),
						'default', pg_temp.argument(p.oid, n::int),
						'mode', CASE p.proargmodes [n] WHEN 'b' THEN 'INOUT ' ELSE '' END) ORDER BY n), '[]')
					FROM unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY a (name, type, n)
					WHERE coalesce(p.proargmodes [n], 'i') IN ('i', 'b'))) ORDER BY p.oid) AS signatures
			FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace
			GROUP BY p.proname) f),
	'view', (
		SELECT jsonb_object_agg(c.relname, jsonb_build_object(
			'comment', obj_description(c.oid, 'pg_class'),
			'may', pg_temp.may(c.oid::regclass::text, c.relname, 'SELECT'),
			'states', (SELECT jsonb_agg(DISTINCT m [1]) FROM regexp_matches(split_part(pg_get_viewdef(c.oid), ' AS state', 1), '(?:THEN|ELSE|,)\s+''([a-z]+)''::text', 'g') m),
			'columns', (
				SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', pg_temp.shorter(format_type(a.atttypid, a.atttypmod)),
					'comment', col_description(c.oid, a.attnum)) ORDER BY a.attnum)
				FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)))
		FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v'),
	'type', (
		SELECT jsonb_object_agg(t.typname, jsonb_build_object(
			'comment', obj_description(t.oid, 'pg_type'),
			'columns', (
				SELECT jsonb_agg(jsonb_build_object('name', a.attname, 'type', pg_temp.shorter(format_type(a.atttypid, a.atttypmod)),
					'comment', col_description(t.typrelid, a.attnum)) ORDER BY a.attnum)
				FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0)))
		FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid AND c.relkind = 'c'
		WHERE t.typnamespace = 'jobq'::regnamespace),
	'setting', (
		SELECT jsonb_object_agg(s.name, jsonb_build_object('default', s.boot_val, 'unit', s.unit,
			'type', s.vartype, 'min', s.min_val, 'max', s.max_val, 'values', s.enumvals, 'context', s.context,
			'comment', s.short_desc, 'more', s.extra_desc))
		FROM pg_settings s WHERE s.name LIKE 'jobq.%'));
ROLLBACK;
