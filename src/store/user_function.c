/*-------------------------------------------------------------------------
 *
 * user_function.c
 *	  Functions of users with jsonb parameters, named by their signatures in options or
 *	  limiters.
 *
 * src/store/user_function.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "store/store.h"

/*
 * Return the function with this signature, which may lack its parameters.  ERROR if the
 * function does not exist, if its parameters are not nargs times jsonb, if its result type
 * differs, or if the current user may not call it.  cannot, hint: texts for the message.
 */
Oid
jobq_user_function(const char *signature, int nargs, Oid result,
				   const char *cannot, const char *hint)
{
	Oid			proc;
	HeapTuple	tuple;
	Form_pg_proc form;
	bool		fits;
	AclResult	acl;

	if (strchr(signature, '(') == NULL)
		signature = psprintf(nargs == 1 ? "%s(jsonb)" : "%s(jsonb, jsonb)", signature);
	Assert(nargs == 1 || nargs == 2);
	proc = DatumGetObjectId(DirectFunctionCall1(regprocedurein,
												CStringGetDatum(signature)));
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(proc));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function %s does not exist", signature)));
	form = (Form_pg_proc) GETSTRUCT(tuple);
	fits = form->prokind == PROKIND_FUNCTION && !form->proretset &&
		form->prorettype == result && form->pronargs == nargs;
	for (int i = 0; i < nargs && fits; i++)
		fits = form->proargtypes.values[i] == JSONBOID;
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s", signature, cannot),
				 errhint("%s", hint)));
	acl = jobq_proc_aclcheck(proc, GetUserId(), ACL_EXECUTE);
	if (acl != ACLCHECK_OK)
		aclcheck_error(acl, OBJECT_FUNCTION, get_func_name(proc));
	return proc;
}
