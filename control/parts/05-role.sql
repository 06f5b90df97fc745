-- The type of all columns with roles: an OID, dumped by name like regrole.  A
-- restore also accepts the name of a missing role (73-held.sql).

CREATE TYPE jobq_internal.role;

CREATE FUNCTION jobq_internal.role_in(cstring) RETURNS jobq_internal.role
AS 'MODULE_PATHNAME', 'jobq_role_in' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.role_in(cstring) IS 'input function: a name of no role becomes an OID that no role has';

CREATE FUNCTION jobq_internal.role_out(jobq_internal.role) RETURNS cstring
AS 'MODULE_PATHNAME', 'jobq_role_out' LANGUAGE C STABLE STRICT PARALLEL RESTRICTED;
COMMENT ON FUNCTION jobq_internal.role_out(jobq_internal.role) IS 'output function: the name';

CREATE FUNCTION jobq_internal.role_recv(internal) RETURNS jobq_internal.role
AS 'oidrecv' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.role_recv(internal) IS 'binary input function: the OID';

CREATE FUNCTION jobq_internal.role_send(jobq_internal.role) RETURNS bytea
AS 'oidsend' LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION jobq_internal.role_send(jobq_internal.role) IS 'binary output function: the OID';

CREATE TYPE jobq_internal.role (INPUT = jobq_internal.role_in, OUTPUT = jobq_internal.role_out,
	RECEIVE = jobq_internal.role_recv, SEND = jobq_internal.role_send, LIKE = pg_catalog.regrole, CATEGORY = 'N');
COMMENT ON TYPE jobq_internal.role IS 'a role; rows with roles that do not exist can be restored';

CREATE CAST (jobq_internal.role AS oid) WITHOUT FUNCTION AS IMPLICIT;
COMMENT ON CAST (jobq_internal.role AS oid) IS 'the OID of the role';
CREATE CAST (jobq_internal.role AS regrole) WITHOUT FUNCTION AS IMPLICIT;
COMMENT ON CAST (jobq_internal.role AS regrole) IS 'the type that users see';
CREATE CAST (oid AS jobq_internal.role) WITHOUT FUNCTION AS ASSIGNMENT;
COMMENT ON CAST (oid AS jobq_internal.role) IS 'the role with the OID';
CREATE CAST (regrole AS jobq_internal.role) WITHOUT FUNCTION AS ASSIGNMENT;
COMMENT ON CAST (regrole AS jobq_internal.role) IS 'the type that users see';
