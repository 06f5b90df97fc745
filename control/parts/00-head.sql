-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION jobq" to load this file. \quit

SET LOCAL search_path TO pg_catalog, pg_temp;

-- The library accesses the tables as heaps, whatever the default is.
SET LOCAL default_table_access_method TO heap;

-- CREATE EXTENSION makes the schema jobq, or takes one that is there.  Nobody else
-- may have put anything into it, or be able to.
DO $$
BEGIN
	IF EXISTS (SELECT FROM pg_depend d
		WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'jobq'::regnamespace
			AND d.classid <> 'pg_extension'::regclass)
		OR EXISTS (SELECT FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
			WHERE n.nspname = 'jobq' AND NOT r.rolsuper)
		OR EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
			WHERE n.nspname = 'jobq' AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
	THEN
		RAISE EXCEPTION USING ERRCODE = 'duplicate_schema',
			MESSAGE = 'schema "jobq" is not empty, or others than superusers can create objects in it',
			HINT = 'Rename or drop it first. If ALTER DEFAULT PRIVILEGES lets others create objects in new schemas, make it yourself, and revoke that.';
	END IF;
END
$$;
COMMENT ON SCHEMA jobq IS 'jobq: jobs that run in the database';

CREATE SCHEMA jobq_internal;
COMMENT ON SCHEMA jobq_internal IS 'jobq''s tables, and what its views, triggers and procedures call; not for users';
