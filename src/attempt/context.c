/*-------------------------------------------------------------------------
 *
 * context.c
 *	  Sets the settings that a job carries (produce/context.c) for its handler.
 *
 * The settings are set as if the job's role had executed SET LOCAL.  This process is connected
 * as the role and sets them with the role's privileges, so a setting that the role may not
 * change is not changed.  A setting that cannot be set is an error of the attempt.
 *
 * If run_as differs from the enqueuer, the job carries custom settings only.  Otherwise a
 * search_path, for example, could determine which functions the role calls.
 *
 * The trace of the job (store/trace.c) becomes the session's application_name, unless the job
 * carries another application_name.  The trace is therefore shown in pg_stat_activity, and in
 * each line of the log with %a in its prefix.
 *
 * jobq's own work does not depend on these settings.  Its queries have a search_path of their
 * own (store/query.c), and direct access to the tables uses no names.
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

static void
context_callback(void *arg)
{
	errcontext("setting \"%s\" that the job has taken along", (char *) arg);
}

/* foreign: the settings do not come from the role of this process. */
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
 * Apply the settings carried by job, and the trace of jobq_current.  With GUC_ACTION_LOCAL the
 * settings last until the end of the caller's nest level of settings.  With GUC_ACTION_SET
 * they last for all later transactions, if this transaction commits.  Raises an error if a
 * setting cannot be set.
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
