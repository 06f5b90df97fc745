/*-------------------------------------------------------------------------
 *
 * kinds.c
 *	  Kinds: the handler and the function of each kind, cached per backend.
 *
 * The cache is invalidated when jobq_internal.handler changes, like that of queues (queues.c).
 * The function of a handler is also looked up again after a change of any function.
 *
 * src/store/kinds.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "store/store.h"

#define MAX_MISSING 64

/* A cached kind.  Never freed, and used only in this file. */
typedef struct JobqKind
{
	char		name[JOBQ_MAX_KIND_NAME + 1];	/* hash key */
	bool		loaded;			/* handler and strings are valid */
	bool		resolved;		/* function and flinfo are valid, too */
	bool		in_use;			/* flinfo has a call in progress */
	JobqHandler handler;
	MemoryContext strings;
	char	   *signature;
	char	   *backoff;		/* or NULL */
	List	   *carry;
	char	   *retry_on;		/* codes, each with a space; or NULL */
	char	   *fail_on;		/* likewise */
	JobqFunction function;
	FmgrInfo	flinfo;
	MemoryContext context;		/* holds flinfo's extra data */
} JobqKind;

static HTAB *kinds = NULL;
static Oid	handler_relation = InvalidOid;	/* source of the cache */

/* count of invalidations and aborts */
static uint64 changes = 0;

/*
 * Some kinds without a handler, for example kinds of consumers.  The size is fixed, because
 * clients can invent kinds.
 */
static char missing[MAX_MISSING][JOBQ_MAX_KIND_NAME + 1];

/* Syscache callback: look the functions up again. */
static void
function_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	HASH_SEQ_STATUS seq;
	JobqKind   *kind;

	changes++;
	if (kinds == NULL)
		return;
	hash_seq_init(&seq, kinds);
	while ((kind = hash_seq_search(&seq)) != NULL)
		kind->resolved = false;
}

/* Mark all kinds to be read again on demand. */
static void
forget_kinds(void)
{
	HASH_SEQ_STATUS seq;
	JobqKind   *kind;

	changes++;
	for (int i = 0; i < MAX_MISSING; i++)
		missing[i][0] = '\0';
	if (kinds == NULL)
		return;
	hash_seq_init(&seq, kinds);
	while ((kind = hash_seq_search(&seq)) != NULL)
		kind->loaded = kind->resolved = false;
}

/*
 * Return an array of error codes as one string, with a space after each code.
 */
static char *
codes_of(Datum array)
{
	StringInfoData codes;
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	initStringInfo(&codes);
	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false,
					  TYPALIGN_INT, &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			appendStringInfo(&codes, "%s ", TextDatumGetCString(elems[i]));
	return codes.data;
}

/*
 * Return whether the list contains the code, or its class, which is its first two characters.
 */
static bool
in_codes(const char *codes, const char *code)
{
	while (*codes != '\0')
	{
		size_t		length = strcspn(codes, " ");

		if (strncmp(codes, code, length) == 0)
			return true;
		codes += length + 1;
	}
	return false;
}

/*
 * Set the kind's handler from the columns of its row, which has a function for the kind.
 */
static void
keep_handler(JobqKind *kind, bool on_failure, bool on_event, const Datum *values,
			 const bool *nulls)
{
	JobqHandler *handler = &kind->handler;
	MemoryContext old;

	if (kind->strings == NULL)
		kind->strings = AllocSetContextCreate(CacheMemoryContext,
											  "jobq handler",
											  ALLOCSET_SMALL_SIZES);
	else
		MemoryContextReset(kind->strings);
	kind->signature = kind->backoff = NULL;
	kind->carry = NIL;
	kind->retry_on = kind->fail_on = NULL;
	old = MemoryContextSwitchTo(kind->strings);

#define TEXT_OR_NULL(n) \
	(nulls[(n) - 1] ? NULL : TextDatumGetCString(values[(n) - 1]))
#define INT_OR_MINUS(n) (nulls[(n) - 1] ? -1 : DatumGetInt32(values[(n) - 1]))
	memset(handler, 0, sizeof(JobqHandler));
	if (on_failure)
	{
		kind->signature = TextDatumGetCString(values[HANDLER_ON_FAILURE - 1]);
		handler->max_attempts = handler->max_exceptions = -1;
	}
	else
	{
		kind->signature = TextDatumGetCString(values[HANDLER_HANDLER - 1]);
		handler->has_on_failure = !on_event && !nulls[HANDLER_ON_FAILURE - 1];
		if (!nulls[HANDLER_PRIORITY - 1])
			handler->priority = DatumGetInt32(values[HANDLER_PRIORITY - 1]);
		handler->max_attempts = INT_OR_MINUS(HANDLER_MAX_ATTEMPTS);
		handler->max_exceptions = INT_OR_MINUS(HANDLER_MAX_EXCEPTIONS);
		if (!on_event && !nulls[HANDLER_CHUNK - 1])
			handler->chunk = Min(DatumGetInt32(values[HANDLER_CHUNK - 1]), JOBQ_MAX_CHUNK);
		handler->chunk_waits = !on_event && !nulls[HANDLER_CHUNK_WAIT - 1];
		if (!nulls[HANDLER_RETRY_ON - 1])
			kind->retry_on = codes_of(values[HANDLER_RETRY_ON - 1]);
		if (!nulls[HANDLER_FAIL_ON - 1])
			kind->fail_on = codes_of(values[HANDLER_FAIL_ON - 1]);
		if (!on_event && !nulls[HANDLER_LIMITERS - 1])
			jobq_limiter_hashes(values[HANDLER_LIMITERS - 1], handler->limiters);
		handler->counts = !on_event &&
			(!nulls[HANDLER_MAX_RUNNING - 1] || !nulls[HANDLER_RATE - 1] ||
			 !nulls[HANDLER_THROTTLE - 1]);
		if (handler->counts || handler->chunk_waits)
			handler->limits = jobq_kind_hash(kind->name);
	}
	kind->backoff = TEXT_OR_NULL(HANDLER_BACKOFF);
	if (!nulls[HANDLER_CARRY - 1])
		kind->carry = jobq_names_of_array(values[HANDLER_CARRY - 1]);
	handler->carries = kind->carry != NIL;
	handler->recycled = !nulls[HANDLER_RECYCLE - 1] &&
		strcmp(TextDatumGetCString(values[HANDLER_RECYCLE - 1]), "each") == 0;
	if (!nulls[HANDLER_QUEUE - 1])
		text_to_cstring_buffer(DatumGetTextPP(values[HANDLER_QUEUE - 1]),
							   handler->queue, sizeof(handler->queue));
	handler->timeout = INT_OR_MINUS(HANDLER_TIMEOUT);
	handler->fail_on_timeout = !nulls[HANDLER_FAIL_ON_TIMEOUT - 1] &&
		DatumGetBool(values[HANDLER_FAIL_ON_TIMEOUT - 1]);
	for (int i = 0; i < JOBQ_NALLOWANCES; i++)
		if (!nulls[HANDLER_MAX_MEMORY - 1 + i])
		{
			handler->allowance[i] = DatumGetInt64(values[HANDLER_MAX_MEMORY - 1 + i]);
			handler->confined = true;
		}
	MemoryContextSwitchTo(old);
}

/*
 * Read the kind's row into *kind.  Returns false if there is none.  The kind of plain
 * statements needs no row.
 */
static bool
read_kind(JobqKind *kind)
{
	const char *name = kind->name;
	size_t		prefix = strlen(ON_FAILURE_PREFIX);
	bool		on_failure = strncmp(name, ON_FAILURE_PREFIX, prefix) == 0;
	bool		on_event = strncmp(name, ON_EVENT_PREFIX, strlen(ON_EVENT_PREFIX)) == 0;
	Relation	rel;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	if (jobq_is_statement(name))
	{
		JobqHandler *handler = &kind->handler;

		memset(handler, 0, sizeof(JobqHandler));
		handler->max_attempts = handler->max_exceptions = handler->timeout = -1;
		return true;
	}
	rel = jobq_open_table(JOBQ_HANDLER_TABLE, AccessShareLock);
	handler_relation = RelationGetRelid(rel);
	ScanKeyEntryInitialize(&key, 0, HANDLER_KIND, BTEqualStrategyNumber,
						   InvalidOid, C_COLLATION_OID, F_TEXTEQ,
						   CStringGetTextDatum(on_failure ? name + prefix
											   : on_event ? name + strlen(ON_EVENT_PREFIX)
											   : name));
	scan = systable_beginscan(rel, jobq_index(rel, JOBQ_HANDLER_PKEY), true, NULL,
							  1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Datum		values[HANDLER_NATTS];
		bool		nulls[HANDLER_NATTS];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		found = !nulls[(on_failure ? HANDLER_ON_FAILURE : HANDLER_HANDLER) - 1];
		if (found)
			keep_handler(kind, on_failure, on_event, values, nulls);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Return the kind with this name, or NULL if it has no handler. */
static JobqKind *
find_kind(const char *name)
{
	static JobqKind *last = NULL;
	JobqKind   *kind;
	size_t		length;
	char		key[JOBQ_MAX_KIND_NAME + 1] = {0};
	char	   *none;
	uint64		before;

	/* entries are never removed */
	if (last != NULL && last->loaded && strcmp(last->name, name) == 0)
		return last;

	length = strlen(name);
	if (length > JOBQ_MAX_KIND_NAME || length == 0)
		return NULL;
	none = missing[hash_bytes((const unsigned char *) name, length) % MAX_MISSING];
	if (strcmp(none, name) == 0)
		return NULL;
	strlcpy(key, name, sizeof(key));

	if (kinds == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(key);
		ctl.entrysize = sizeof(JobqKind);
		ctl.hcxt = CacheMemoryContext;
		kinds = hash_create("jobq kinds", 64, &ctl,
							HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	}
	kind = hash_search(kinds, key, HASH_FIND, NULL);
	if (kind != NULL && kind->loaded)
	{
		last = kind;
		return kind;
	}

	before = changes;
	if (kind == NULL)
	{
		JobqKind	probe = {0};
		bool		found;

		strlcpy(probe.name, name, sizeof(probe.name));
		if (read_kind(&probe))
		{
			kind = hash_search(kinds, key, HASH_ENTER, &found);
			*kind = probe;
		}
	}
	else if (!read_kind(kind))
		kind = NULL;

	if (changes == before)
	{
		if (kind != NULL)
			kind->loaded = true;
		else
			strlcpy(none, name, JOBQ_MAX_KIND_NAME + 1);
		jobq_cache_filled();
	}
	return kind;
}

/*
 * Return the policy of a kind, copied to *handler, or NULL if no handler is registered.
 */
const JobqHandler *
jobq_handler(const char *kind, JobqHandler *handler)
{
	JobqKind   *entry = find_kind(kind);

	if (entry == NULL)
		return NULL;
	*handler = entry->handler;
	return handler;
}

/*
 * Return whether the kind allows another attempt after an error with this code.  retry_on
 * lists errors of handlers.  Errors recorded by jobq itself, for example after the loss of a
 * worker, are not subject to retry_on.
 */
bool
jobq_handler_retries(const char *kind, int sqlerrcode)
{
	JobqKind   *entry = find_kind(kind);
	const char *code = unpack_sql_state(sqlerrcode);

	if (entry == NULL)
		return true;
	if (entry->fail_on != NULL && in_codes(entry->fail_on, code))
		return false;
	return entry->retry_on == NULL || strncmp(code, "JQ", 2) == 0 ||
		in_codes(entry->retry_on, code);
}

/* Return the kind's backoff policy, in the current memory context, or NULL. */
char *
jobq_handler_backoff(const char *kind)
{
	JobqKind   *entry = find_kind(kind);

	return entry != NULL && entry->backoff != NULL ? pstrdup(entry->backoff)
		: NULL;
}

/*
 * Return the names of the settings carried by jobs of the kind, in the current memory context.
 */
List *
jobq_handler_carry(const char *kind)
{
	JobqKind   *entry = find_kind(kind);

	return entry != NULL ? jobq_copy_names(entry->carry) : NIL;
}

/*
 * Look up the function that runs the kind.  ERROR if the kind has no handler, if the function
 * is missing or no longer has a fitting form, or if the current user may not execute it.
 */
void
jobq_handler_resolve(const char *kind, JobqFunction *function)
{
	JobqKind   *entry = find_kind(kind);
	AclResult	acl;

	if (entry == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_NO_HANDLER),
				 errmsg("no handler is registered for kind \"%s\"", kind)));
	if (jobq_is_statement(kind))
	{
		*function = (JobqFunction)
		{
			.kind = entry,.returns_jsonb = true,.statement = true
		};
		return;
	}
	if (entry->resolved)
		*function = entry->function;
	else
	{
		uint64		before = changes;
		Oid			proc = jobq_resolve_signature(pstrdup(entry->signature),
												  false);

		function->kind = entry;
		jobq_check_signature(proc, function);
		if (!entry->in_use)
		{
			entry->flinfo.fn_oid = InvalidOid;
			if (entry->context != NULL)
				MemoryContextDelete(entry->context);
			entry->context = NULL;
			entry->context = AllocSetContextCreate(CacheMemoryContext,
												   "jobq handler function",
												   ALLOCSET_SMALL_SIZES);
			fmgr_info_cxt(proc, &entry->flinfo, entry->context);
			entry->function = *function;
			entry->resolved = changes == before;
		}
	}

	acl = jobq_proc_aclcheck(function->proc, GetUserId(), ACL_EXECUTE);
	if (acl != ACLCHECK_OK)
		aclcheck_error(acl, function->is_procedure ? OBJECT_PROCEDURE
					   : OBJECT_FUNCTION,
					   get_func_name(function->proc));
}

/*
 * Return the FmgrInfo for a call of the function.  Normally this is the kind's FmgrInfo, which
 * keeps data prepared by the function for the next call.  A new FmgrInfo in the current memory
 * context is used in these cases: the kind's one is in use, for example by a handler that
 * performs its own kind; it is outdated; or the function keeps plans that depend on the role
 * and search_path.  jobq_function_end() must follow, even after an error.
 */
FmgrInfo *
jobq_function_begin(const JobqFunction *function)
{
	JobqKind   *kind = function->kind;
	FmgrInfo   *flinfo;

	if (!kind->in_use && !function->keeps_plans &&
		kind->flinfo.fn_oid == function->proc)
	{
		kind->in_use = true;
		return &kind->flinfo;
	}
	flinfo = palloc(sizeof(FmgrInfo));
	fmgr_info(function->proc, flinfo);
	return flinfo;
}

/*
 * End a call.  If the function has not returned, its prepared data may be incomplete, and is
 * not used again.
 */
void
jobq_function_end(const JobqFunction *function, FmgrInfo *flinfo, bool returned)
{
	JobqKind   *kind = function->kind;

	if (flinfo != &kind->flinfo)
		return;
	kind->in_use = false;
	if (!returned)
	{
		kind->resolved = false;
		kind->flinfo.fn_oid = InvalidOid;
	}
}

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == handler_relation)
		forget_kinds();
}

static const JobqCache cache = {
	.changed = relation_changed,
	.forget = forget_kinds,
};

/* Register the caches for invalidation.  Called once per process. */
void
jobq_kinds_install(void)
{
	jobq_cache_join(&cache);
	CacheRegisterSyscacheCallback(PROCOID, function_changed, (Datum) 0);
}
