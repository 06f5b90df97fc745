-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION jobq" to load this file. \quit

SET LOCAL search_path TO pg_catalog, pg_temp;

-- The library accesses the tables as heaps, regardless of the default.
SET LOCAL default_table_access_method TO heap;

-- CREATE EXTENSION creates the schema jobq, or uses an existing schema.  No other role
-- may have created objects in an existing schema, or be able to create objects there.
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
COMMENT ON SCHEMA jobq_internal IS 'tables of jobq, and the functions called by views, triggers and procedures; not for users';
