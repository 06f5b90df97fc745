-- Rules for every object of the extension.

-- every object has a comment; row types have the comment of their relation
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE d.deptype = 'e' AND e.extname = 'jobq' AND obj_description(d.objid, d.classid::regclass::text::name) IS NULL
	AND NOT (d.classid = 'pg_type'::regclass AND NOT EXISTS (SELECT FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid WHERE t.oid = d.objid AND c.relkind = 'c'))
	AND NOT (d.classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_depend i WHERE i.objid = d.objid AND i.classid = d.classid AND i.deptype = 'i'))
ORDER BY 1;
-- schema jobq is a table of contents: views, row types and functions, each with a comment.
-- Tables, sequences and indexes are in jobq_internal.
SELECT DISTINCT relnamespace::regnamespace::text COLLATE "C" AS schema, relkind FROM pg_class
WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) ORDER BY 1, 2;
SELECT c.oid::regclass::text AS without_comment FROM pg_class c WHERE relnamespace = 'jobq'::regnamespace AND relkind = 'v' AND obj_description(oid, 'pg_class') IS NULL
UNION ALL
SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'jobq'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL;
-- also an index without a constraint (except for daily archive partitions), and a trigger
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND relkind = 'i' AND relname !~ '^archive_[0-9]'
	AND obj_description(oid, 'pg_class') IS NULL AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid);
SELECT tgname, tgrelid::regclass FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND NOT tgisinternal AND tgparentid = 0 AND obj_description(t.oid, 'pg_trigger') IS NULL;

-- each column of a table, a view, or a row type has a comment
SELECT c.oid::regclass AS relation, a.attname AS without_comment FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND c.relkind IN ('r', 'p', 'v', 'c') AND NOT c.relispartition
	AND col_description(c.oid, a.attnum) IS NULL ORDER BY 1, 2;

-- the comment of each public function has a line for each parameter ("name: meaning"), and
-- otherwise only a line for the result, and lines for the keys of a parameter ("parameter.key")
WITH parameter AS (
	SELECT p.oid, n.name FROM pg_proc p, unnest(p.proargnames) WITH ORDINALITY AS n (name, place)
	WHERE pronamespace = 'jobq'::regnamespace AND (proargmodes IS NULL OR proargmodes[place] IN ('i', 'b'))),
line AS (
	SELECT p.oid, split_part(l.line, ':', 1) AS name FROM pg_proc p, unnest(string_to_array(obj_description(p.oid, 'pg_proc'), E'\n')) WITH ORDINALITY AS l (line, place)
	WHERE pronamespace = 'jobq'::regnamespace AND l.place > 1 AND l.line !~ '^(uniqueness|options)\.\w+:')
SELECT coalesce(p.oid, l.oid)::regprocedure AS function, p.name AS without_line, l.name AS no_such_parameter FROM parameter p FULL JOIN line l USING (oid, name)
WHERE p.oid IS NULL AND l.name <> 'returns' OR l.oid IS NULL ORDER BY 1, 2, 3;

-- every table with rows has a primary key
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND relkind = 'r'
	AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p');

-- PUBLIC may call functions, which check the caller (module_privileges), and may write only to the inbox
SELECT c.oid::regclass, a.privilege_type FROM pg_class c, aclexplode(relacl) a WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	AND a.grantee = 0 AND (a.privilege_type <> 'SELECT' OR c.relkind <> 'v') ORDER BY 1, 2;
SELECT n.nspname, a.privilege_type FROM pg_namespace n, aclexplode(nspacl) a WHERE nspname ~ '^jobq' AND a.grantee = 0 ORDER BY 1;

-- a function has a pinned search_path if it is SECURITY DEFINER or in SQL
SELECT p.oid::regprocedure FROM pg_proc p WHERE pronamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND prosecdef
	AND NOT EXISTS (SELECT FROM unnest(proconfig) c WHERE c = 'search_path=pg_catalog, pg_temp');

-- views are security barriers
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND relkind = 'v' AND relname <> 'inbox'
	AND NOT coalesce(reloptions @> '{security_barrier=true}' OR reloptions @> '{security_barrier}', false);

-- tables dumped by pg_dump
SELECT c.oid::regclass AS "table", cond FROM pg_extension, unnest(extconfig, extcondition) AS u (config, cond) JOIN pg_class c ON c.oid = config
WHERE extname = 'jobq' ORDER BY c.oid::regclass::text COLLATE "C";

-- the size of the interface: each addition is a word more for every user to learn
SELECT (SELECT count(DISTINCT proname) FROM pg_proc WHERE pronamespace = 'jobq'::regnamespace) AS functions,
	(SELECT count(*) FROM pg_class WHERE relnamespace = 'jobq'::regnamespace AND relkind = 'v') AS views,
	(SELECT count(*) FROM pg_settings WHERE name ^@ 'jobq.') AS settings,
	(SELECT pronargs - 2 FROM pg_proc WHERE pronamespace = 'jobq'::regnamespace AND proname = 'enqueue') AS options_of_a_job,
	(SELECT pronargs - 1 FROM pg_proc WHERE pronamespace = 'jobq'::regnamespace AND proname = 'create_queue') AS settings_of_a_queue,
	(SELECT pronargs FROM pg_proc WHERE pronamespace = 'jobq'::regnamespace AND proname = 'cancel_many') AS conditions;
\pset format unaligned
\pset footer off
SELECT p.oid::regprocedure FROM pg_proc p WHERE pronamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) ORDER BY p.oid::regprocedure::text COLLATE "C";
