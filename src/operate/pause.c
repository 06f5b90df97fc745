/*-------------------------------------------------------------------------
 *
 * pause.c
 *	  pause() and resume() for a queue, a tenant or kind of a queue, or a schedule.
 *
 * A paused tenant or kind gets lanes of its own (store/flow.c), which are not served.  A job
 * in a shared lane moves to the new lane when first popped, by writing the row anew.
 *
 * src/operate/pause.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

#include "commit/commit.h"
#include "operate/inner.h"
#include "schedule/schedule.h"

PG_FUNCTION_INFO_V1(jobq_pause);
PG_FUNCTION_INFO_V1(jobq_resume);

/* Maximum number of paused tenants, and of paused kinds, of a queue. */
#define MAX_PAUSED	1000

static bool set_one_paused(int32 queue_id, const char *name, const char *what,
						   text *value, bool paused);

/*
 * Lock the row of queue $1, and return the value of an SQL condition.  False if the queue was
 * dropped, or if the condition is null.  The caller must be connected to SPI.
 */
static bool
is_paused(const char *condition, int nargs, const Oid *types, const Datum *values)
{
	bool		isnull;

	return jobq_query(psprintf("SELECT %s FROM jobq_internal.queue WHERE id = $1 FOR NO KEY UPDATE", condition),
					  nargs, types, values, NULL, SPI_OK_SELECT) > 0 &&
		DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, BOOLOID, &isnull)) &&
		!isnull;
}

/*
 * Pause or resume a queue.  Returns false, and writes nothing, if the queue is in this state.
 */
static bool
set_paused(const char *name, bool paused)
{
	static const Oid types[] = {INT4OID, BOOLOID};
	int32		queue_id = jobq_known_queue(name);
	Datum		values[] = {Int32GetDatum(queue_id), BoolGetDatum(paused)};
	bool		changed;

	jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	SPI_connect();
	changed = is_paused("paused", 1, types, values) != paused;
	if (changed)
		jobq_query("UPDATE jobq_internal.queue SET paused = $2 WHERE id = $1", 2, types,
				   values, NULL, SPI_OK_UPDATE);
	SPI_finish();
	return changed;
}

static bool
set_tenant_paused(const char *name, text *tenant, bool paused)
{
	int32		queue_id = jobq_known_queue(name);
	JobqQueue	queue;

	jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	if (jobq_queue_by_id(queue_id, &queue) == NULL ||
		queue.tenant_by == TENANT_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("queue \"%s\" knows no tenants", name),
				 errhint("Say what a tenant is: jobq.alter_queue(%s, tenant => 'setting ...'), or header, schema, role.",
						 quote_literal_cstr(name))));
	if (VARSIZE_ANY_EXHDR(tenant) == 0 ||
		VARSIZE_ANY_EXHDR(tenant) > JOBQ_MAX_TENANT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tenant of %d bytes must have 1 to %d bytes",
						(int) VARSIZE_ANY_EXHDR(tenant), JOBQ_MAX_TENANT)));
	return set_one_paused(queue_id, name, "tenant", tenant, paused);
}

/*
 * Neither jobs of the kind nor a handler need to exist: kinds for consumers have no handler.
 */
static bool
set_kind_paused(const char *name, text *kind, bool paused)
{
	int32		queue_id = jobq_known_queue(name);

	jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	if (VARSIZE_ANY_EXHDR(kind) == 0 ||
		VARSIZE_ANY_EXHDR(kind) > JOBQ_MAX_KIND_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("kind of %d bytes must have 1 to %d bytes",
						(int) VARSIZE_ANY_EXHDR(kind), JOBQ_MAX_KIND_NAME)));
	return set_one_paused(queue_id, name, "kind", kind, paused);
}

/*
 * Add the value to the queue's list of paused tenants or kinds, or remove it.  what: "tenant"
 * or "kind".  Returns false, and writes nothing, if the value is in this state.
 */
static bool
set_one_paused(int32 queue_id, const char *name, const char *what, text *value,
			   bool paused)
{
	static const Oid types[] = {INT4OID, TEXTOID, INT4OID};
	Datum		values[] = {Int32GetDatum(queue_id), PointerGetDatum(value),
	Int32GetDatum(MAX_PAUSED)};
	bool		changed;

	SPI_connect();
	changed = is_paused(psprintf("$2 = ANY (paused_%ss)", what), 2, types, values) != paused;
	if (changed && !paused)
		jobq_query(psprintf("UPDATE jobq_internal.queue SET paused_%ss ="
							" nullif(array_remove(paused_%ss, $2), '{}')"
							" WHERE id = $1 AND $2 = ANY (paused_%ss)",
							what, what, what), 2, types,
				   values, NULL, SPI_OK_UPDATE);
	else if (changed &&
			 jobq_query(psprintf("UPDATE jobq_internal.queue SET paused_%ss ="
								 " array_append(array_remove(paused_%ss, $2), $2)"
								 " WHERE id = $1 AND coalesce(cardinality(paused_%ss), 0) < $3",
								 what, what, what),
						3, types, values, NULL, SPI_OK_UPDATE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%d %ss of queue \"%s\" are paused already",
						MAX_PAUSED, what, name),
				 errhint("Resume some, or pause the queue.")));
	SPI_finish();
	return changed;
}

/*
 * Common code of pause() and resume().  The arguments: queue, tenant, kind, schedule.
 * function: name for messages.  ERROR if the combination of arguments is not valid, and
 * without the privilege operate for the queue.  Logs the call, if it changes something.
 */
static void
change(FunctionCallInfo fcinfo, const char *function, bool paused)
{
	char	   *name;
	bool		changed;

	if (PG_ARGISNULL(0) == PG_ARGISNULL(3) ||
		(PG_ARGISNULL(0) && !(PG_ARGISNULL(1) && PG_ARGISNULL(2))))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s takes a queue or a schedule", function),
				 errhint("A tenant or a kind is one of a queue.")));
	PreventCommandIfReadOnly(function);
	if (!PG_ARGISNULL(3))
	{
		if (jobq_schedule_pause(function, PG_GETARG_TEXT_PP(3), paused))
			jobq_audit(fcinfo, -1);
		return;
	}
	if (!PG_ARGISNULL(1) && !PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s takes a tenant or a kind, not both", function),
				 errhint("Call it for each of them: jobs of the tenant, and jobs of the kind, are paused then.")));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		changed = set_tenant_paused(name, PG_GETARG_TEXT_PP(1), paused);
	else if (!PG_ARGISNULL(2))
		changed = set_kind_paused(name, PG_GETARG_TEXT_PP(2), paused);
	else
		changed = set_paused(name, paused);
	if (!changed)
		return;
	if (!paused)
		jobq_at_commit_rescan();
	jobq_audit(fcinfo, -1);
}

/*
 * pause(queue, tenant, kind, schedule): after the commit, start no further jobs of the queue,
 * or of the tenant or kind of the queue.  Running jobs continue.  A paused schedule enqueues
 * no jobs.  ERROR as in change().
 */
Datum
jobq_pause(PG_FUNCTION_ARGS)
{
	change(fcinfo, "jobq.pause()", true);
	PG_RETURN_VOID();
}

/*
 * resume(queue, tenant, kind, schedule): end a pause.  ERROR as in change().
 */
Datum
jobq_resume(PG_FUNCTION_ARGS)
{
	change(fcinfo, "jobq.resume()", false);
	PG_RETURN_VOID();
}
