/*-------------------------------------------------------------------------
 *
 * statement.c
 *	  Plain statements: the payload of jobs of the kind sql, and the privilege to enqueue them.
 *
 * The kind sql has no registered handler.  The job's payload is the statement, {"sql": "...",
 * "transaction": true}. The statement runs as the role that owns the job.  A role that may
 * enqueue statements can run any code, though only under its own name.  The role needs the
 * privilege "sql" when it enqueues and when the job runs.
 *
 * The privilege is separate for two reasons.  A role may be allowed to call functions only, or
 * to occupy workers with reviewed handlers only.  And a function that passes on a kind and a
 * payload of the caller would otherwise lend the owner's rights.  A step or a callback cannot
 * be a statement, because jobq.reassign_owned() gives batches to another role, and the
 * statement would run as that role.
 *
 * Errors that the grammar shows are reported when the statement is enqueued.
 *
 * With "database", the statement runs in another database, in a process of its own
 * (worker/runner/errand.c).  The only check there is whether the role may connect to the
 * database, and not whether it may log in.  The setting jobq.sql_databases must therefore name
 * the database.
 *
 * src/produce/statement.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "commands/defrem.h"
#include "parser/parser.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/varlena.h"

#include "produce/produce.h"

/*
 * Error context callback: reports a syntax error as an error in the statement, not in the
 * client's query.
 */
static void
parse_error(void *arg)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery((const char *) arg);
	}
}

static bool
has_concurrently(List *params)
{
	ListCell   *lc;

	foreach(lc, params)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "concurrently") == 0)
			return defGetBoolean(option);
	}
	return false;
}

static bool
is_detach_concurrently(const AlterTableStmt *stmt)
{
	ListCell   *lc;

	foreach(lc, stmt->cmds)
	{
		AlterTableCmd *cmd = lfirst_node(AlterTableCmd, lc);

		if (cmd->subtype == AT_DetachPartition &&
			castNode(PartitionCmd, cmd->def)->concurrent)
			return true;
	}
	return false;
}

/*
 * Return whether the server refuses this statement inside a transaction.  Covers only
 * statements that the grammar reveals.  All remaining statements fail when they run.
 */
static bool
needs_top_level(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_VacuumStmt:
			return ((VacuumStmt *) stmt)->is_vacuumcmd;
		case T_IndexStmt:
			return ((IndexStmt *) stmt)->concurrent;
		case T_DropStmt:
			return ((DropStmt *) stmt)->concurrent;
		case T_ReindexStmt:
			return ((ReindexStmt *) stmt)->relation == NULL ||
				has_concurrently(((ReindexStmt *) stmt)->params);
		case T_ClusterStmt:
			return ((ClusterStmt *) stmt)->relation == NULL ||
				has_concurrently(((ClusterStmt *) stmt)->params);
		case T_AlterTableStmt:
			return is_detach_concurrently((AlterTableStmt *) stmt);
		case T_DiscardStmt:
			return ((DiscardStmt *) stmt)->target == DISCARD_ALL;
		case T_CreatedbStmt:
		case T_DropdbStmt:
		case T_CreateTableSpaceStmt:
		case T_DropTableSpaceStmt:
		case T_AlterSystemStmt:
			return true;
		default:
			return false;
	}
}

/* Return the reason why this statement cannot be a job, or NULL. */
static const char *
refusal(Node *stmt)
{
	if (IsA(stmt, TransactionStmt))
		return "The job begins and ends its transaction itself.";
	if (IsA(stmt, CopyStmt) && ((CopyStmt *) stmt)->filename == NULL)
		return "There is no client that COPY could read from, or write to.";
	return NULL;
}

/*
 * Return the OID of the named database, or InvalidOid for the current database.  ERROR if
 * statements may not run there.
 */
static Oid
other_database(const char *name)
{
	List	   *list;
	ListCell   *lc;
	Oid			database = get_database_oid(name, false);

	if (database == MyDatabaseId)
		return InvalidOid;
	if (jobq_preloaded &&
		SplitIdentifierString(pstrdup(jobq_sql_databases), ',', &list))
		foreach(lc, list)
			if (strcmp(lfirst(lc), "*") == 0 || strcmp(lfirst(lc), name) == 0)
			return database;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("plain statements may not run in database \"%s\"", name),
			 errhint("Who configures the server adds it to \"%s\".",
					 "jobq.sql_databases")));
}

/*
 * Read the payload of a job of the kind sql.  Several statements are allowed only in this
 * database and with "transaction": true.  statement->raw is the last statement.  Memory comes
 * from the current memory context.  ERROR if the payload is invalid, or if a statement cannot
 * run in this way.
 */
void
jobq_statement_read(Datum payload, JobqStatement *statement)
{
	static const char *const usage =
		"The payload is {\"sql\": \"a statement\"}, and may have \"transaction\": false, and \"database\" with a name.";
	Jsonb	   *json = DatumGetJsonbP(payload);
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	key;
	JsonbValue	value;
	ErrorContextCallback context;
	List	   *parsed;
	ListCell   *lc;

	statement->sql = NULL;
	statement->database = InvalidOid;
	statement->database_name = NULL;
	statement->transaction = true;
	if (!JB_ROOT_IS_OBJECT(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the payload of kind \"%s\" must be a JSON object", JOBQ_SQL_KIND),
				 errhint("%s", usage)));
	it = JsonbIteratorInit(&json->root);
	while ((token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE)
	{
		char	   *name;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(key.val.string.val, key.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (strcmp(name, "sql") == 0 && value.type == jbvString)
			statement->sql = pnstrdup(value.val.string.val, value.val.string.len);
		else if (strcmp(name, "transaction") == 0 && value.type == jbvBool)
			statement->transaction = value.val.boolean;
		else if (strcmp(name, "database") == 0 && value.type == jbvString)
			statement->database_name = pnstrdup(value.val.string.val, value.val.string.len);
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid key \"%s\" in the payload of kind \"%s\"",
							name, JOBQ_SQL_KIND),
					 errhint("%s", usage)));
	}
	if (statement->sql == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the payload of kind \"%s\" lacks \"sql\"", JOBQ_SQL_KIND),
				 errhint("%s", usage)));
	if (statement->database_name != NULL)
		statement->database = other_database(statement->database_name);

	context.callback = parse_error;
	context.arg = statement->sql;
	context.previous = error_context_stack;
	error_context_stack = &context;
	parsed = raw_parser(statement->sql, RAW_PARSE_DEFAULT);
	error_context_stack = context.previous;

	if (parsed == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there is no statement")));
	if (list_length(parsed) > 1 &&
		(!statement->transaction || OidIsValid(statement->database)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a job outside of its own transaction runs one statement, and there are %d",
						list_length(parsed)),
				 errhint("In this database and with transaction => true, several run in one transaction.")));
	foreach(lc, parsed)
	{
		Node	   *stmt = lfirst_node(RawStmt, lc)->stmt;
		const char *why = refusal(stmt);

		if (why != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("%s cannot be a job",
							GetCommandTagName(CreateCommandTag(stmt))),
					 errhint("%s", why)));
		if (statement->transaction && needs_top_level(stmt))
			ereport(ERROR,
					(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
					 errmsg("this %s cannot run in a transaction",
							GetCommandTagName(CreateCommandTag(stmt))),
					 list_length(parsed) > 1
					 ? errhint("Make it a job of its own, with transaction => false.")
					 : errhint("Give transaction => false to run it outside of one; after a crash it may run again.")));
	}
	statement->raw = llast_node(RawStmt, parsed);
}

/* Return whether the text parses as SQL and has more than one word. */
bool
jobq_reads_as_statement(const char *text)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool reads = false;

	if (strpbrk(text, " \t\r\n") == NULL)
		return false;
	PG_TRY();
	{
		reads = raw_parser(text, RAW_PARSE_DEFAULT) != NIL;
	}
	PG_CATCH();
	{
		/* a syntax error allocates only memory and no other resources */
		if (ERRCODE_TO_CATEGORY(geterrcode()) == ERRCODE_INSUFFICIENT_RESOURCES)
			PG_RE_THROW();
		MemoryContextSwitchTo(caller);
		FlushErrorState();
	}
	PG_END_TRY();
	return reads;
}

/*
 * ERROR unless the current user may enqueue statements into the queue, and the queue is served
 * by workers.
 */
void
jobq_statement_require(const JobqQueue *queue)
{
	if (queue->mode == MODE_CONSUMER)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("plain statements are run by workers"),
				 errdetail("The jobs of queue \"%s\" are taken by consumers.",
						   queue->name),
				 errhint("Name another queue.")));
	if ((jobq_privileges(queue->id) & JOBQ_MAY_SQL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to enqueue plain statements"),
				 errhint("Who grants privileges gives it by jobq.grant_privilege(%s, 'sql').",
						 quote_literal_cstr(GetUserNameFromId(GetUserId(), false)))));
}

/*
 * Return the payload for a statement.  database: NULL for the current database.
 */
Datum
jobq_statement_payload(const char *sql, bool transaction, const char *database)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoString(&buf, "{\"sql\": ");
	escape_json(&buf, sql);
	if (!transaction)
		appendStringInfoString(&buf, ", \"transaction\": false");
	if (database != NULL)
	{
		appendStringInfoString(&buf, ", \"database\": ");
		escape_json(&buf, database);
	}
	appendStringInfoChar(&buf, '}');
	return jobq_text_to_jsonb(buf.data);
}
