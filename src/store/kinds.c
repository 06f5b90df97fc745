/*-------------------------------------------------------------------------
 *
 * kinds.c
 *	  Caches, per backend, which handler runs a kind, and its function.
 *
 * The cache is dropped together with that of the queues (catalog.c).  A
 * handler's function is looked up again, too, when any function changes.
 *
 * src/store/kinds.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/jobq.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "store/catalog.h"

#define MAX_MISSING 64

static HTAB *handlers = NULL;

/*
 * Kinds that have no handler, as those of consumers; a few, as anybody can
 * think of others.
 */
static char missing[MAX_MISSING][JOBQ_MAX_KIND_NAME + 1];

static bool read_handler(JobqHandler *handler);
static JobqHandler *remember_missing(char *place, const char *kind);

/*
 * Syscache callback: look the functions up again.
 */
void
jobq_function_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	HASH_SEQ_STATUS seq;
	JobqHandler *handler;

	if (handlers == NULL)
		return;
	hash_seq_init(&seq, handlers);
	while ((handler = hash_seq_search(&seq)) != NULL)
		handler->resolved = false;
}

/*
 * Read the handlers again when they are asked for.
 */
void
jobq_forget_handlers(void)
{
	HASH_SEQ_STATUS seq;
	JobqHandler *handler;

	for (int i = 0; i < MAX_MISSING; i++)
		missing[i][0] = '\0';
	if (handlers == NULL)
		return;
	hash_seq_init(&seq, handlers);
	while ((handler = hash_seq_search(&seq)) != NULL)
		handler->loaded = handler->resolved = false;
}

static bool
read_handler(JobqHandler *handler)
{
	const JobqRelations *rels = jobq_relations();
	const char *kind = handler->kind;
	size_t		prefix = strlen(ON_FAILURE_PREFIX);
	bool		on_failure = strncmp(kind, ON_FAILURE_PREFIX, prefix) == 0;
	Relation	rel = table_open(rels->handler, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyEntryInitialize(&key, 0, HANDLER_KIND, BTEqualStrategyNumber,
						   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(on_failure ? kind + prefix : kind));
	scan = systable_beginscan(rel, rels->handler_pkey, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[HANDLER_NATTS];
		bool		nulls[HANDLER_NATTS];
		MemoryContext old;

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (handler->strings == NULL)
			handler->strings = AllocSetContextCreate(CacheMemoryContext,
													 "jobq handler",
													 ALLOCSET_SMALL_SIZES);
		else
			MemoryContextReset(handler->strings);
		old = MemoryContextSwitchTo(handler->strings);

#define TEXT_OR_NULL(n) \
		(nulls[(n) - 1] ? NULL : TextDatumGetCString(values[(n) - 1]))
#define INT_OR_MINUS(n) (nulls[(n) - 1] ? -1 : DatumGetInt32(values[(n) - 1]))
		handler->on_failure = NULL;
		handler->limited = false;
		if (on_failure)
		{
			handler->signature = TEXT_OR_NULL(HANDLER_ON_FAILURE);
			handler->max_attempts = handler->max_exceptions = -1;
		}
		else
		{
			handler->signature = TEXT_OR_NULL(HANDLER_HANDLER);
			handler->on_failure = TEXT_OR_NULL(HANDLER_ON_FAILURE);
			handler->max_attempts = INT_OR_MINUS(HANDLER_MAX_ATTEMPTS);
			handler->max_exceptions = INT_OR_MINUS(HANDLER_MAX_EXCEPTIONS);
			handler->limited = !nulls[HANDLER_MAX_RUNNING - 1] ||
				!nulls[HANDLER_RATE - 1] || !nulls[HANDLER_THROTTLE - 1];
		}
		handler->queue = TEXT_OR_NULL(HANDLER_QUEUE);
		handler->backoff = TEXT_OR_NULL(HANDLER_BACKOFF);
		handler->timeout = INT_OR_MINUS(HANDLER_TIMEOUT);
		handler->fail_on_timeout = !nulls[HANDLER_FAIL_ON_TIMEOUT - 1] &&
			DatumGetBool(values[HANDLER_FAIL_ON_TIMEOUT - 1]);
		MemoryContextSwitchTo(old);
		found = handler->signature != NULL;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

static JobqHandler *
remember_missing(char *place, const char *kind)
{
	strlcpy(place, kind, JOBQ_MAX_KIND_NAME + 1);
	jobq_read_in_transaction = true;
	return NULL;
}

/*
 * The handler of a kind, or NULL if none is registered.  Its function is
 * looked up by jobq_handler_resolve().
 */
JobqHandler *
jobq_handler(const char *kind)
{
	static JobqHandler *last = NULL;
	JobqHandler *handler;
	size_t		length;
	char		key[JOBQ_MAX_KIND_NAME + 1] = {0};
	char	   *none;
	bool		found;

	/* entries are never removed */
	if (last != NULL && last->loaded && strcmp(last->kind, kind) == 0)
		return last;

	length = strlen(kind);
	if (length > JOBQ_MAX_KIND_NAME || length == 0)
		return NULL;
	(void) jobq_relations();	/* registers the invalidation callbacks */
	none = missing[hash_bytes((const unsigned char *) kind, length) % MAX_MISSING];
	if (strcmp(none, kind) == 0)
		return NULL;
	strlcpy(key, kind, sizeof(key));

	if (handlers == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(key);
		ctl.entrysize = sizeof(JobqHandler);
		ctl.hcxt = CacheMemoryContext;
		handlers = hash_create("jobq handlers", 64, &ctl,
							   HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	}
	handler = hash_search(handlers, key, HASH_FIND, NULL);
	if (handler != NULL && handler->loaded)
	{
		last = handler;
		return handler;
	}

	if (handler == NULL)
	{
		JobqHandler probe = {0};

		strlcpy(probe.kind, kind, sizeof(probe.kind));
		if (!read_handler(&probe))
			return remember_missing(none, kind);
		handler = hash_search(handlers, key, HASH_ENTER, &found);
		*handler = probe;
	}
	else if (!read_handler(handler))
		return remember_missing(none, kind);
	handler->loaded = true;
	handler->resolved = false;
	jobq_read_in_transaction = true;
	return handler;
}

/*
 * The function with this qualified signature, or InvalidOid if missing_ok.
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
 * Check that a function has one of the forms of a handler, and note which.
 * Raises an error if not.
 */
void
jobq_check_signature(Oid proc, JobqHandler *handler)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(proc));
	Form_pg_proc form;
	const char *problem = NULL;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function with OID %u does not exist", proc)));
	form = (Form_pg_proc) GETSTRUCT(tuple);

	if (form->prokind != PROKIND_FUNCTION && form->prokind != PROKIND_PROCEDURE)
		problem = "It is an aggregate or window function.";
	else if (form->proretset)
		problem = "It returns a set.";
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
				 errhint("A handler is f(), f(payload jsonb), or f(payload jsonb, job jobq.job_context): a function that returns void or jsonb, or a procedure.")));

	if (handler != NULL)
	{
		handler->proc = proc;
		handler->nargs = form->pronargs;
		handler->is_procedure = form->prokind == PROKIND_PROCEDURE;

		/* as ExecuteCallStmt() decides */
		handler->may_commit = handler->is_procedure && !form->prosecdef &&
			heap_attisnull(tuple, Anum_pg_proc_proconfig, NULL);
		handler->returns_jsonb = form->prorettype == JSONBOID;
	}
	ReleaseSysCache(tuple);
}

/*
 * See that the handler's function is looked up and still has a fitting form,
 * and that the current user may execute it.  Raises an error if not.
 */
void
jobq_handler_resolve(JobqHandler *handler)
{
	AclResult	acl;

	if (!handler->resolved)
	{
		Oid			proc = jobq_resolve_signature(handler->signature, false);

		jobq_check_signature(proc, handler);
		if (handler->in_use == 0)
		{
			if (handler->context != NULL)
				MemoryContextDelete(handler->context);
			handler->context = NULL;
		}
		handler->context = AllocSetContextCreate(CacheMemoryContext,
												 "jobq handler function",
												 ALLOCSET_SMALL_SIZES);
		fmgr_info_cxt(proc, &handler->flinfo, handler->context);
		handler->resolved = true;
	}

	acl = jobq_proc_aclcheck(handler->proc, GetUserId(), ACL_EXECUTE);
	if (acl != ACLCHECK_OK)
		aclcheck_error(acl, handler->is_procedure ? OBJECT_PROCEDURE
					   : OBJECT_FUNCTION,
					   get_func_name(handler->proc));
}
