/*-------------------------------------------------------------------------
 *
 * context.c
 *	  Sets what a job has taken along (produce/context.c), for its handler.
 *
 * The settings are set as if the job's role had said SET LOCAL: by this process,
 * which is connected as that role, and with its rights, so that nothing can be set
 * that the role may not.  What cannot be set is an error of the attempt.
 *
 * A job that runs as another role than that of its enqueuer brings settings of the
 * users' own only.  A search_path, for one, would say which functions the role
 * calls.
 *
 * The trace of the job (store/trace.c) is the session's application_name, unless the
 * job has taken along another: so it is in pg_stat_activity, and in each line of the log
 * that has %a in its prefix.
 *
 * None of jobq's own work depends on what may be in force then: its queries have a
 * search_path of their own (store/query.c), and all else goes past names.
 *
 * src/attempt/context.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"

#include "attempt/attempt.h"

static void set_context(Jsonb *context, GucAction action, bool foreign);

static void
context_callback(void *arg)
{
	errcontext("setting \"%s\" that the job has taken along", (char *) arg);
}

/*
 * foreign: the values are not from the role that this process is connected as.
 */
static void
set_context(Jsonb *context, GucAction action, bool foreign)
{
	GucContext	rights = superuser() ? PGC_SUSET : PGC_USERSET;
	ErrorContextCallback callback;
	JsonbIterator *it = JsonbIteratorInit(&context->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	callback.callback = context_callback;
	callback.previous = error_context_stack;
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *name;
		char	   *text;
		const char *current;

		if (token != WJB_KEY)
			continue;
		name = pnstrdup(value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &value, true);
		if (value.type != jbvString)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" of a context must be a string", name)));
		text = pnstrdup(value.val.string.val, value.val.string.len);

		callback.arg = name;
		error_context_stack = &callback;
		if (foreign && strchr(name, '.') == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("setting \"%s\" cannot be taken along to another role", name),
					 errhint("Jobs of a queue with run_as take along settings of your own only, such as app.tenant.")));
		current = GetConfigOption(name, true, false);
		if (current == NULL || strcmp(current, text) != 0)
			(void) set_config_option(name, text, rights, PGC_S_SESSION, action,
									 true, 0, false);
		error_context_stack = callback.previous;
	}
}

/*
 * Set what the job that runs here, jobq_current, has taken along: until the end of the caller's nest level of
 * settings (GUC_ACTION_LOCAL), or for all transactions to come, if this one
 * commits (GUC_ACTION_SET).
 */
void
jobq_enter_context(const JobqJob *job, GucAction action)
{
	if (jobq_current->trace[0] != '\0')
	{
		char		name[NAMEDATALEN];

		snprintf(name, sizeof(name), "jobq %s", jobq_current->trace);
		(void) set_config_option("application_name", name, PGC_USERSET,
								 PGC_S_SESSION, action, true, 0, false);
	}
	if (!JOB_ISNULL(job, JOB_CONTEXT))
		set_context(DatumGetJsonbP(JOB(job, JOB_CONTEXT)), action,
					job_run_as(job) != job_role(job));
}
