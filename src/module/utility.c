/*-------------------------------------------------------------------------
 *
 * utility.c
 *	  Utility commands that affect jobq.
 *
 * - COMMIT PREPARED makes jobs visible, and their hand-over was discarded at PREPARE.
 *   ROLLBACK PREPARED restores jobs that the transaction had deleted.
 * - Some commands need a database without connections: DROP, RENAME, SET TABLESPACE, and
 *   CREATE DATABASE with the database as template.  The jobq processes therefore leave the
 *   database and stay away for a while.  The user does not have to stop them first.
 * - When a database is created or changed, the launcher checks which databases to serve.
 * - DROP EXTENSION also drops the schema.
 * - DROP ROLE warns about jobq objects left behind by the role.
 * - After GRANT of a role, waiting consumers may be allowed to reserve more jobs.
 *
 * src/module/utility.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <signal.h>

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "module/module.h"
#include "operate/operate.h"
#include "store/store.h"

/*
 * How long the processes of a database stay away, how long the command waits for their exit,
 * and how long running jobs may continue, in seconds.
 */
#define AWAY_SECONDS	10
#define WAIT_SECONDS	5
#define TERMINATE_SECONDS	2

static ProcessUtility_hook_type prev_process_utility = NULL;

static void utility_hook(PlannedStmt *pstmt, const char *queryString,
						 bool readOnlyTree, ProcessUtilityContext context,
						 ParamListInfo params, QueryEnvironment *queryEnv,
						 DestReceiver *dest, QueryCompletion *qc);

/* Install the hook.  Called once, in the postmaster. */
void
jobq_install_utility_hook(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = utility_hook;
}

/* Return the database that the command needs without connections, or NULL. */
static const char *
database_to_leave(Node *stmt)
{
	ListCell   *lc;

	switch (nodeTag(stmt))
	{
		case T_DropdbStmt:
			return ((DropdbStmt *) stmt)->dbname;
		case T_RenameStmt:
			if (((RenameStmt *) stmt)->renameType == OBJECT_DATABASE)
				return ((RenameStmt *) stmt)->subname;
			break;
		case T_AlterDatabaseStmt:
			foreach(lc, ((AlterDatabaseStmt *) stmt)->options)
				if (strcmp(lfirst_node(DefElem, lc)->defname, "tablespace") == 0)
				return ((AlterDatabaseStmt *) stmt)->dbname;
			break;
		case T_CreatedbStmt:
			foreach(lc, ((CreatedbStmt *) stmt)->options)
			{
				DefElem    *option = lfirst_node(DefElem, lc);

				if (strcmp(option->defname, "template") == 0 && option->arg)
					return defGetString(option);
			}
			break;
		default:
			break;
	}
	return NULL;
}

/*
 * Ask all jobq processes to leave the database, and wait up to WAIT_SECONDS for their exit.
 * Workers still attached after TERMINATE_SECONDS are terminated.
 */
static void
leave_database(Oid dboid)
{
	static uint32 wait_event = 0;
	JobqDatabase *db = jobq_find_database(dboid);
	JobqSteady	start = jobq_steady();
	bool		terminated = false;

	if (db == NULL)
		return;

	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	db->stop = true;
	db->stop_until = jobq_steady() + AWAY_SECONDS * USECS_PER_SEC;
	LWLockRelease(jobq_shared->lock);

	for (;;)
	{
		bool		connected = false;
		bool		terminate = !terminated &&
			jobq_steady() > start + TERMINATE_SECONDS * USECS_PER_SEC;

		LWLockAcquire(jobq_shared->lock, LW_SHARED);
		if (db->scheduler != NULL)
		{
			connected = true;
			jobq_wake_scheduler(db);
		}
		jobq_foreach_slot(slot, db, JOBQ_SLOTS_ATTACHED)
		{
			connected = true;
			SetLatch(&slot->proc->procLatch);
			if (terminate)
				(void) kill(slot->pid, SIGTERM);
		}
		LWLockRelease(jobq_shared->lock);
		terminated |= terminate;
		if (!connected ||
			jobq_steady() > start + WAIT_SECONDS * USECS_PER_SEC)
			break;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, jobq_wait_event(wait_event, "JobqLeave"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Allow the processes to come back.  The caller pokes the launcher. */
static void
return_to_database(Oid dboid)
{
	JobqDatabase *db = jobq_find_database(dboid);

	if (db == NULL)
		return;
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	db->stop = false;
	db->stop_until = 0;
	LWLockRelease(jobq_shared->lock);
}

/*
 * True if the command changes the set of databases, their names, or whether they accept
 * connections.  Another database may then have to be served.
 */
static bool
is_about_databases(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_AlterDatabaseStmt:
			return true;
		case T_RenameStmt:
			return ((RenameStmt *) stmt)->renameType == OBJECT_DATABASE;
		default:
			return false;
	}
}

/*
 * Lock the table of jobs first.  DROP EXTENSION locks jobq's tables in the order of their
 * creation, and all other code begins with the table of jobs.  Without this lock, a deadlock
 * would be possible.
 *
 * Returns the extension's schema if the command drops jobq.
 */
static Oid
before_drop_extension(const DropStmt *stmt)
{
	ListCell   *lc;
	Oid			schema = InvalidOid;

	if (stmt->removeType != OBJECT_EXTENSION)
		return InvalidOid;
	foreach(lc, stmt->objects)
	{
		const JobqRelations *rels;

		if (strcmp(strVal(lfirst(lc)), "jobq") != 0 ||
			(rels = jobq_relations_of_any_version()) == NULL ||
			!jobq_may_act_for(rels->owner))
			continue;
		schema = rels->schema;
		LockRelationOid(rels->job, AccessExclusiveLock);
	}
	return schema;
}

/*
 * Drop the schema after DROP EXTENSION.  CREATE EXTENSION created the schema, but the schema
 * contains the extension and therefore is no member of it.  A schema with further objects
 * stays.
 */
static void
after_drop_extension(Oid schema)
{
	ObjectAddress address;
	ScanKeyData keys[2];
	SysScanDesc scan;
	Relation	depend;
	bool		empty;

	CommandCounterIncrement();
	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(NamespaceRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(schema));
	depend = table_open(DependRelationId, AccessShareLock);
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2,
							  keys);
	empty = !HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
	if (!empty || !SearchSysCacheExists1(NAMESPACEOID, ObjectIdGetDatum(schema)))
		return;
	ObjectAddressSet(address, NamespaceRelationId, schema);
	performDeletion(&address, DROP_RESTRICT, 0);
}

/* True if the node is a column of the table, and not its whole row. */
static bool
is_column(Oid oid, const Node *node)
{
	Node	   *last = IsA(node, ColumnRef) ? llast(((const ColumnRef *) node)->fields) : NULL;

	return last != NULL && IsA(last, String) &&
		get_attnum(oid, strVal(last)) > InvalidAttrNumber;
}

/*
 * Raise an error if jobq cannot maintain the index when it writes rows.  Such an index runs
 * code of the table's owner as the job's role.  All jobs would fail, and the scheduler would
 * stop.  Indexes restored by pg_upgrade are accepted.
 */
static void
refuse_index(const IndexStmt *stmt)
{
	const JobqRelations *relations = IsBinaryUpgrade || stmt->relation == NULL
		? NULL : jobq_relations_if_installed();
	Oid			oid = relations == NULL ? InvalidOid
		: RangeVarGetRelid(stmt->relation, NoLock, true);
	bool		fits;
	ListCell   *lc;

	if (!OidIsValid(oid) || get_rel_namespace(oid) != relations->internal_schema)
		return;
	fits = stmt->whereClause == NULL ||
		(IsA(stmt->whereClause, NullTest) &&
		 is_column(oid, (Node *) ((NullTest *) stmt->whereClause)->arg));
	foreach(lc, stmt->indexParams)
	{
		const Node *expr = lfirst_node(IndexElem, lc)->expr;

		fits = fits && (expr == NULL || is_column(oid, expr));
	}
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("an index on \"%s\" of jobq cannot have an expression or such a condition",
						stmt->relation->relname),
				 errhint("It can have columns, and the condition that one of them IS NULL or IS NOT NULL.")));
}

/*
 * Return the OIDs of the roles to drop, in the order of the statement; InvalidOid for roles
 * that do not exist.
 */
static List *
roles_to_drop(const DropRoleStmt *stmt)
{
	List	   *roles = NIL;
	ListCell   *lc;

	foreach(lc, stmt->roles)
	{
		RoleSpec   *spec = lfirst_node(RoleSpec, lc);

		roles = lappend_oid(roles, spec->roletype == ROLESPEC_CSTRING
							? get_role_oid(spec->rolename, true) : InvalidOid);
	}
	return roles;
}

/* The roles were dropped: warn about jobq objects left behind. */
static void
after_drop_roles(List *names, List *roles)
{
	ListCell   *spec;
	ListCell   *role;

	CommandCounterIncrement();
	forboth(spec, names, role, roles)
		if (OidIsValid(lfirst_oid(role)))
		jobq_warn_of_leaver(lfirst_oid(role),
							lfirst_node(RoleSpec, spec)->rolename);
}

static void
utility_hook(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			 ProcessUtilityContext context, ParamListInfo params,
			 QueryEnvironment *queryEnv, DestReceiver *dest,
			 QueryCompletion *qc)
{
	Node	   *stmt = pstmt->utilityStmt;
	volatile bool end_prepared = IsA(stmt, TransactionStmt) &&
		(((TransactionStmt *) stmt)->kind == TRANS_STMT_COMMIT_PREPARED ||
		 ((TransactionStmt *) stmt)->kind == TRANS_STMT_ROLLBACK_PREPARED);
	const char *dbname = jobq_shared != NULL ? database_to_leave(stmt) : NULL;
	Oid			dboid = InvalidOid;
	Oid			schema = InvalidOid;
	List	   *roles = NIL;
	List	   *names = NIL;

	/*
	 * read before the execution: a called procedure may end the transaction,
	 * and the statement may be freed
	 */
	bool		drops_database = IsA(stmt, DropdbStmt);
	bool		about_databases = is_about_databases(stmt);
	bool		grants_role = IsA(stmt, GrantRoleStmt) && ((GrantRoleStmt *) stmt)->is_grant;

	if (IsA(stmt, IndexStmt))
		refuse_index((IndexStmt *) stmt);
	if (IsA(stmt, DropRoleStmt))
	{
		names = ((DropRoleStmt *) stmt)->roles;
		roles = roles_to_drop((DropRoleStmt *) stmt);
	}
	if (IsA(stmt, DropStmt))
		schema = before_drop_extension((DropStmt *) stmt);

	/* a user without the privilege must not stop the jobs */
	if (dbname != NULL)
	{
		dboid = get_database_oid(dbname, true);
		if (OidIsValid(dboid) && dboid != MyDatabaseId &&
			!IsTransactionBlock() &&
			(jobq_owns_database(dboid) || superuser()))
			leave_database(dboid);
		else
			dboid = InvalidOid;
	}

	if (end_prepared)
		jobq_before_commit_prepared();

	PG_TRY();
	{
		if (prev_process_utility)
			prev_process_utility(pstmt, queryString, readOnlyTree, context,
								 params, queryEnv, dest, qc);
		else
			standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
									params, queryEnv, dest, qc);
	}
	PG_CATCH();
	{
		if (OidIsValid(dboid))
		{
			return_to_database(dboid);
			jobq_poke_launcher();
		}
		PG_RE_THROW();
	}
	PG_END_TRY();

	if (OidIsValid(dboid) && !drops_database)
		return_to_database(dboid);

	/* before the commit, the launcher would see no change */
	if (jobq_shared != NULL && about_databases)
		jobq_at_commit_poke();
	if (OidIsValid(dboid) && drops_database)
		jobq_stats_forget_database(dboid, InvalidOid);
	if (roles != NIL)
		after_drop_roles(names, roles);
	if (OidIsValid(schema))
		after_drop_extension(schema);
	if (grants_role)
		jobq_at_commit_reload();	/* as jobq.grant_privilege() */
	if (end_prepared)
	{
		jobq_injection_point("jobq-prepared-ended");
		jobq_at_commit_prepared();
	}
}
