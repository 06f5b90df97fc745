/*-------------------------------------------------------------------------
 *
 * audit.c
 *	  The audit log: a row for each call by which an operator acts on jobs or changes settings.
 *
 * An operator is a role with the privilege operate or manage, for at least one queue.  Calls
 * of other roles concern only the role's own jobs, and are not logged.  Enqueuing, reserving and
 * settling jobs are not logged for any role.
 *
 * The row is part of the caller's transaction: a rolled-back call leaves no row.  A call without
 * effect leaves none either.  drop_queue() logs its call before deleting privileges, because
 * these may be the caller's own.
 *
 * The scheduler deletes old rows (worker/scheduler/retention.c).
 *
 * src/store/audit.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/store.h"

#define MAX_AUDITED_VALUE	500 /* bytes of an argument; the rest is cut */

/*
 * Arguments of which only the presence is logged, because they have no limited size, and
 * because a reader of the log need not be allowed to read jobs.
 */
static const char *const hidden_args[] = {"payload", "headers", "options", "context", "sql"};

/*
 * Return the text of an argument, cut to a limited length.
 */
static text *
audited_value(const char *name, Oid type, Datum value)
{
	Oid			output;
	bool		is_varlena;
	char	   *all;
	int			length;

	for (int i = 0; i < (int) lengthof(hidden_args); i++)
		if (strcmp(name, hidden_args[i]) == 0)
			return cstring_to_text("...");
	getTypeOutputInfo(type, &output, &is_varlena);
	all = OidOutputFunctionCall(output, value);
	length = (int) strlen(all);
	if (length <= MAX_AUDITED_VALUE)
		return cstring_to_text(all);
	return cstring_to_text(psprintf("%.*s...", pg_mbcliplen(all, length, MAX_AUDITED_VALUE), all));
}

/*
 * Return names and values of the arguments that are not null, in turn.
 */
static ArrayType *
audited_args(FunctionCallInfo fcinfo, HeapTuple function)
{
	Oid		   *types;
	char	  **names;
	char	   *modes;
	Datum	   *texts = palloc(sizeof(Datum) * 2 * (fcinfo->nargs + 1));
	int			n = 0;

	(void) get_func_arg_info(function, &types, &names, &modes);
	for (int i = 0; i < fcinfo->nargs; i++)
	{
		if (PG_ARGISNULL(i))
			continue;
		texts[n++] = CStringGetTextDatum(names[i]);
		texts[n++] = PointerGetDatum(audited_value(names[i], types[i], PG_GETARG_DATUM(i)));
	}
	return construct_array(texts, n, TEXTOID, -1, false, TYPALIGN_INT);
}

/*
 * Return the quoted name of a role as text.
 */
static Datum
role_name(Oid role)
{
	return CStringGetTextDatum(quote_identifier(GetUserNameFromId(role, false)));
}

/*
 * Log this call of a SQL function, if the current user is an operator.  jobs: the number of
 * jobs for which the call had an effect; negative: the call is not about jobs.  Logs nothing if
 * this is 0.
 */
void
jobq_audit(FunctionCallInfo fcinfo, int64 jobs)
{
	Relation	rel;
	HeapTuple	function;
	const char *action;
	Datum		values[AUDIT_NATTS];
	bool		nulls[AUDIT_NATTS] = {0};

	if (jobs == 0 || !jobq_is_operator())
		return;
	function = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	if (!HeapTupleIsValid(function))
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	action = NameStr(((Form_pg_proc) GETSTRUCT(function))->proname);
	PreventCommandIfReadOnly(psprintf("jobq.%s()", action));
	rel = jobq_open_table(JOBQ_AUDIT_TABLE, RowExclusiveLock);
	values[AUDIT_ID - 1] = Int64GetDatum(nextval_internal(jobq_relations()->audit_seq, false));
	values[AUDIT_AT - 1] = TimestampTzGetDatum(jobq_now());
	values[AUDIT_ROLE - 1] = role_name(GetUserId());
	values[AUDIT_LOGIN - 1] = role_name(GetSessionUserId());
	values[AUDIT_APPLICATION - 1] =
		CStringGetTextDatum(application_name != NULL ? application_name : "");
	values[AUDIT_ACTION - 1] = CStringGetTextDatum(action);
	values[AUDIT_ARGUMENTS - 1] = PointerGetDatum(audited_args(fcinfo, function));
	values[AUDIT_JOBS - 1] = Int64GetDatum(jobs);
	nulls[AUDIT_JOBS - 1] = jobs < 0;
	ReleaseSysCache(function);
	(void) jobq_insert_row(rel, values, nulls);
	table_close(rel, NoLock);
}
