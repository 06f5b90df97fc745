/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  grant_privilege(), revoke_privilege().
 *
 * A privilege is a row of jobq_internal.privilege.  The privileges are described in
 * store/privileges.c.
 *
 * src/operate/grant.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "operate/inner.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_grant_privilege);
PG_FUNCTION_INFO_V1(jobq_revoke_privilege);

/*
 * Return the role in argument number arg.  ERROR if it is null, or if must_exist is set and
 * the role does not exist.  Otherwise the role may have been dropped.  name: the argument's
 * name, for messages.
 */
Oid
jobq_role_arg(FunctionCallInfo fcinfo, int arg, const char *name,
			  bool must_exist)
{
	Oid			role;

	jobq_not_null(fcinfo, arg, name);
	role = PG_GETARG_OID(arg);
	if (must_exist && !SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", role)));
	return role;
}

/*
 * Return the privilege in the second argument.  for_queue: the privilege is for one queue, and
 * not for all.  ERROR if the privilege does not exist.
 */
static char *
privilege_arg(FunctionCallInfo fcinfo, bool for_queue)
{
	char	   *privilege = PG_ARGISNULL(1) ? NULL
		: text_to_cstring(PG_GETARG_TEXT_PP(1));

	if (privilege == NULL || jobq_privilege_word(privilege, for_queue) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 privilege == NULL ? errmsg("privilege must not be null")
				 : errmsg("invalid privilege \"%s\"", privilege),
				 for_queue
				 ? errhint("It is one of produce, sql, consume, manage.")
				 : errhint("It is one of produce, sql, consume, monitor, operate, manage.")));
	return privilege;
}

/*
 * Grant the role a privilege for a queue, or for all queues if queue_id is 0.  Also deletes
 * rows of dropped roles, before their OIDs are assigned to new roles.  Rows locked by another
 * transaction are skipped.  Writes nothing, and returns false, if the role has the privilege, and
 * there are no such rows.
 */
static bool
add_privilege(int32 queue_id, Oid role, const char *privilege)
{
	static const Oid types[] = {INT4OID, OIDOID, TEXTOID};
	Datum		values[] = {
		Int32GetDatum(queue_id), ObjectIdGetDatum(role),
		CStringGetTextDatum(privilege)
	};

	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.privilege"
				   " WHERE (queue_id, role, privilege) = ($1, $2, $3)"
				   " AND NOT EXISTS (SELECT FROM jobq_internal.privilege p"
				   " WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = p.role))",
				   3, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		SPI_finish();
		return false;
	}
	jobq_lock_jobs();
	jobq_query("DELETE FROM jobq_internal.privilege WHERE ctid IN (SELECT p.ctid FROM jobq_internal.privilege p"
			   " WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = p.role)"
			   " FOR UPDATE SKIP LOCKED)",
			   0, NULL, NULL, NULL, SPI_OK_DELETE);
	jobq_query("INSERT INTO jobq_internal.privilege (queue_id, role, privilege)"
			   " VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
			   3, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();

	/* waiting consumers may now be allowed to take more jobs */
	jobq_at_commit_reload();
	return true;
}

/*
 * Revoke a privilege, or all privileges if privilege is NULL.  queue_id 0 stands for the
 * privileges for all queues; without a privilege, also for those of each single queue.  Returns
 * false if the role has no such privilege.
 */
static bool
take_privilege(int32 queue_id, Oid role, const char *privilege)
{
	static const Oid types[] = {INT4OID, OIDOID, TEXTOID};
	Datum		values[] = {
		Int32GetDatum(queue_id), ObjectIdGetDatum(role),
		privilege == NULL ? (Datum) 0 : CStringGetTextDatum(privilege)
	};
	bool		taken;

	jobq_lock_jobs();
	SPI_connect();
	taken = jobq_query("DELETE FROM jobq_internal.privilege WHERE role = $2"
					   " AND (queue_id = $1 OR $1 = 0 AND $3 IS NULL)"
					   " AND (privilege = $3 OR $3 IS NULL)",
					   3, types, values, privilege == NULL ? "  n" : NULL,
					   SPI_OK_DELETE) > 0;
	SPI_finish();
	return taken;
}

/*
 * Return the id of the queue in the third argument, or 0 for "*", all queues.  Null is
 * refused, so that a null variable does not mean all queues.  ERROR unless the current user
 * may manage all queues; for "*", only the extension owner is allowed.  action: for the
 * message.
 */
static int32
queue_arg(FunctionCallInfo fcinfo, const char *action)
{
	char	   *name = PG_ARGISNULL(2) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(2));

	if (name != NULL && strcmp(name, "*") == 0)
	{
		jobq_require_owner(action);
		return 0;
	}
	jobq_require_all(JOBQ_MAY_MANAGE, action);
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("queue must not be null"),
				 errhint("All queues are '*'.")));
	return jobq_known_queue(name);
}

/*
 * grant_privilege(role, privilege, queue): grant a privilege for one queue, or for all ("*").
 * Waiting consumers notice it at commit.  ERROR as in queue_arg().
 */
Datum
jobq_grant_privilege(PG_FUNCTION_ARGS)
{
	int32		queue_id;
	Oid			role;

	PreventCommandIfReadOnly("jobq.grant_privilege()");
	queue_id = queue_arg(fcinfo, "grant privileges");
	role = jobq_role_arg(fcinfo, 0, "role", true);
	if (add_privilege(queue_id, role, privilege_arg(fcinfo, queue_id != 0)))
		jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * revoke_privilege(role, privilege, queue): revoke a privilege.  A null privilege revokes all
 * privileges for the queue, or with "*" all privileges of the role.  ERROR as in queue_arg().
 */
Datum
jobq_revoke_privilege(PG_FUNCTION_ARGS)
{
	int32		queue_id;
	Oid			role;

	PreventCommandIfReadOnly("jobq.revoke_privilege()");
	queue_id = queue_arg(fcinfo, "revoke privileges");
	role = jobq_role_arg(fcinfo, 0, "role", true);
	if (take_privilege(queue_id, role,
					   PG_ARGISNULL(1) ? NULL : privilege_arg(fcinfo, queue_id != 0)))
		jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
