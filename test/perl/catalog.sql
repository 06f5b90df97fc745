-- All objects of the extension jobq, a line for each object. Order and text
-- depend on no OID. Two databases have the same extension if the lines are the
-- same.
SET search_path = pg_catalog;

CREATE TEMP VIEW member AS
	SELECT d.classid, d.objid, d.objid::oid AS oid
	FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'jobq';

-- Partitions, indexes, sequences of columns and similar objects are no members.
CREATE TEMP VIEW relation AS
	SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.oid = c.oid;

CREATE TEMP VIEW line (what) AS
	SELECT format('member: %s', pg_describe_object(classid, objid, 0)) FROM member
	UNION ALL
	SELECT format('schema of the extension: %s, relocatable: %s', e.extnamespace::regnamespace, e.extrelocatable)
	FROM pg_extension e WHERE e.extname = 'jobq'
	UNION ALL
	SELECT format('schema %s: %s, %s', n.nspname, coalesce(n.nspacl, acldefault('n', n.nspowner)), obj_description(n.oid, 'pg_namespace'))
	FROM pg_namespace n WHERE n.nspname IN ('jobq', 'jobq_internal')
	UNION ALL
	SELECT format('dumped: %s %L', c.relation::regclass, c.condition)
	FROM pg_extension e, unnest(e.extconfig, e.extcondition) AS c (relation, condition) WHERE e.extname = 'jobq'
	UNION ALL
	SELECT format('initial privileges: %s: %s', pg_describe_object(p.classoid, p.objoid, p.objsubid), p.initprivs)
	FROM pg_init_privs p
	WHERE (p.classoid, p.objoid) IN (SELECT m.classid, m.oid FROM member m)
	UNION ALL
	SELECT format('function %s: %s, %s, %s', p.oid::regprocedure, regexp_replace(pg_get_functiondef(p.oid), '\s+', ' ', 'g'),
		coalesce(p.proacl, acldefault('f', p.proowner)), obj_description(p.oid, 'pg_proc'))
	FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.oid = p.oid
	UNION ALL
	SELECT format('relation %s: %s %s, %s, %s, %s, %s, %s, %s', r.oid::regclass, r.relkind, r.relpersistence, r.reloptions,
		r.relreplident, r.relrowsecurity, coalesce(r.relacl, acldefault(CASE r.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", r.relowner)), pg_get_expr(r.relpartbound, r.oid), obj_description(r.oid, 'pg_class'))
	FROM relation r
	UNION ALL
	-- numbered among existing columns, because a dropped column leaves a gap
	SELECT format('column %s %s.%s: %s', row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum), a.attrelid::regclass, a.attname,
		concat_ws(', ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
			'default ' || pg_get_expr(d.adbin, d.adrelid), CASE WHEN a.attcollation <> 0 THEN a.attcollation::regcollation END,
			format('storage %s identity %s generated %s', a.attstorage, a.attidentity, a.attgenerated),
			a.attacl, (SELECT string_agg(o, ',') FROM unnest(a.attoptions) o WHERE o ^@ 'n_distinct'), col_description(a.attrelid, a.attnum)))
	FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
	UNION ALL
	SELECT format('view %s: %s', r.oid::regclass, regexp_replace(pg_get_viewdef(r.oid), '\s+', ' ', 'g'))
	FROM relation r WHERE r.relkind = 'v'
	UNION ALL
	SELECT format('sequence %s: %s, from %s by %s, %s to %s, cache %s, cycle %s', s.seqrelid::regclass, s.seqtypid::regtype,
		s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle)
	FROM pg_sequence s JOIN relation r ON r.oid = s.seqrelid
	UNION ALL
	SELECT format('index %s: %s, %s', i.indexrelid::regclass, pg_get_indexdef(i.indexrelid), obj_description(i.indexrelid, 'pg_class'))
	FROM pg_index i JOIN relation r ON r.oid = i.indrelid
	UNION ALL
	SELECT format('constraint %s of %s: %s, %s', c.conname, c.conrelid::regclass, pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint'))
	FROM pg_constraint c JOIN relation r ON r.oid = c.conrelid
	UNION ALL
	SELECT format('trigger %s: %s, %s, %s', t.tgname, pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger'))
	FROM pg_trigger t JOIN relation r ON r.oid = t.tgrelid
	WHERE NOT t.tgisinternal
	UNION ALL
	SELECT format('type %s: %s', t.oid::regtype, concat_ws(', ', t.typtype, t.typnotnull, coalesce(t.typacl, acldefault('T', t.typowner)), obj_description(t.oid, 'pg_type')))
	FROM pg_type t JOIN member m ON m.classid = 'pg_type'::regclass AND m.oid = t.oid;

SELECT what FROM line ORDER BY what COLLATE "C";
