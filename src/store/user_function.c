/*-------------------------------------------------------------------------
 *
 * user_function.c
 *	  Functions of users that an option or a limiter names by their signature, and
 *	  that take jsonb.
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
 * The function of that signature, which may be without its parameters.  An error if there
 * is none, if it does not return this type for so many jsonb, or if the user may not call
 * it.  "cannot" and "hint" say what it is not fit for, and what is.
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
