/*-------------------------------------------------------------------------
 *
 * signature.c
 *	  The forms of handlers: parameters and result of the function of a kind.
 *
 * src/store/signature.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_handler_version);

/*
 * Return the function with this qualified signature.  If there is none, returns InvalidOid if
 * missing_ok, and raises an ERROR otherwise.
 */
Oid
jobq_resolve_signature(const char *signature, bool missing_ok)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	flinfo;
	Datum		result;

	fmgr_info(F_TO_REGPROCEDURE, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(signature);
	fcinfo->args[0].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	if (fcinfo->isnull)
	{
		if (!missing_ok)
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_NO_HANDLER),
					 errmsg("handler %s does not exist", signature),
					 errhint("Create the function again, or register another handler.")));
		return InvalidOid;
	}
	return DatumGetObjectId(result);
}

/*
 * Return whether the function has the parameter of a set handler: an array of jobs.
 */
static bool
takes_set(Form_pg_proc form)
{
	return form->pronargs == 1 &&
		get_element_type(form->proargtypes.values[0]) == jobq_relations()->context_type;
}

/*
 * Return the version of a function: a hash of its source, and never 0.  A dump and an upgrade
 * of the server keep the source.
 */
static int64
version_of(HeapTuple tuple)
{
	bool		isnull;
	Datum		source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	const char *string = isnull ? "" : TextDatumGetCString(source);
	int64		hash = (int64) hash_bytes_extended((const unsigned char *) string,
												   strlen(string), 0);

	return hash == 0 ? 1 : hash;
}

/* Return a version as a text, or null for 0. */
Datum
jobq_version_text(int64 version, bool *isnull)
{
	*isnull = version == 0;
	return *isnull ? (Datum) 0
		: CStringGetTextDatum(psprintf("%016llx", (unsigned long long) version));
}

/*
 * handler_version(signature): the version of the function, as in jobq.job_context.  Null if there
 * is no such function.  The lookup runs as the extension owner, because the reader of the view
 * may lack the right to use the function's schema.
 */
Datum
jobq_handler_version(PG_FUNCTION_ARGS)
{
	char	   *signature = text_to_cstring(PG_GETARG_TEXT_PP(0));
	JobqOwnerState state;
	Oid			proc;
	HeapTuple	tuple;
	Datum		result;

	/* before PostgreSQL 16, to_regprocedure() raises an error for such a text */
	if (strchr(signature, '(') == NULL)
		PG_RETURN_NULL();
	jobq_become_owner(&state);
	proc = jobq_resolve_signature(signature, true);
	jobq_unbecome_owner(&state);
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(proc));
	if (!HeapTupleIsValid(tuple))
		PG_RETURN_NULL();
	result = jobq_version_text(version_of(tuple), &fcinfo->isnull);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Check that a function has one of the forms of a handler, and set *function, unless NULL.
 * ERROR if the form does not fit.
 */
void
jobq_check_signature(Oid proc, JobqFunction *function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(proc));
	Form_pg_proc form;
	const char *problem = NULL;
	bool		set;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", proc)));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	set = takes_set(form);

	if (form->prokind != PROKIND_FUNCTION && form->prokind != PROKIND_PROCEDURE)
		problem = "It is an aggregate or window function.";
	else if (form->proretset)
		problem = "It returns a set.";
	else if (set && form->prokind == PROKIND_PROCEDURE)
		problem = "It is a procedure, which could commit some of its jobs.";
	else if (set && form->prorettype != VOIDOID && form->prorettype != JSONBARRAYOID)
		problem = "It takes several jobs, and returns neither void nor jsonb[].";
	else if (set)
		problem = NULL;
	else if (form->pronargs > 2 ||
			 (form->pronargs >= 1 &&
			  form->proargtypes.values[0] != JSONBOID) ||
			 (form->pronargs >= 2 &&
			  form->proargtypes.values[1] != jobq_relations()->context_type))
		problem = "Its parameters do not fit.";
	else if (form->prokind == PROKIND_PROCEDURE &&
			 !heap_attisnull(tuple, Anum_pg_proc_proargmodes, NULL))
		problem = "It is a procedure with output parameters.";
	else if (form->prokind == PROKIND_FUNCTION &&
			 form->prorettype != VOIDOID && form->prorettype != JSONBOID)
		problem = "It returns neither void nor jsonb.";

	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function %s cannot be a handler",
						format_procedure(proc)),
				 errdetail_internal("%s", problem),
				 errhint("A handler is f(), f(payload jsonb), or f(payload jsonb, job jobq.job_context): a function that returns void or jsonb, or a procedure. A handler of several jobs is f(jobs jobq.job_context[]): a function that returns void or jsonb[].")));

	if (function != NULL)
	{
		function->proc = proc;
		function->nargs = form->pronargs;
		function->is_procedure = form->prokind == PROKIND_PROCEDURE;

		/* same rule as ExecuteCallStmt() */
		function->may_commit = function->is_procedure && !form->prosecdef &&
			heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL);
		function->returns_jsonb = form->prorettype == (set ? JSONBARRAYOID : JSONBOID);
		function->keeps_plans = !JOBQ_SQL_FUNCTION_PLANS_ANEW &&
			form->prolang == SQLlanguageId;
		function->statement = false;
		function->set = set;
		function->version = version_of(tuple);
	}
	ReleaseSysCache(tuple);
}
