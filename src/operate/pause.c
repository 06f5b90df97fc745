/*-------------------------------------------------------------------------
 *
 * pause.c
 *	  pause() and resume(): a queue, or a tenant of it.
 *
 * A tenant that is paused gets lanes of its own (store/flow.c), which are not
 * served; what stands in lanes that it shares with others is written anew when it
 * is popped.
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

PG_FUNCTION_INFO_V1(jobq_pause);
PG_FUNCTION_INFO_V1(jobq_resume);

/* Most tenants of a queue that are paused at a time. */
#define MAX_PAUSED	1000

static void set_paused(const char *name, bool paused);
static void set_tenant_paused(const char *name, text *tenant, bool paused);
static void change(FunctionCallInfo fcinfo, const char *function, bool paused);

static void
set_paused(const char *name, bool paused)
{
	static const Oid types[] = {INT4OID, BOOLOID};
	int32		queue_id = jobq_known_queue(name);
	Datum		values[] = {Int32GetDatum(queue_id), BoolGetDatum(paused)};

	jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	SPI_connect();
	jobq_query("UPDATE jobq.queue SET paused = $2 WHERE id = $1", 2, types,
			   values, NULL, SPI_OK_UPDATE);
	SPI_finish();
}

static void
set_tenant_paused(const char *name, text *tenant, bool paused)
{
	static const Oid types[] = {INT4OID, TEXTOID, INT4OID};
	int32		queue_id = jobq_existing_queue(name);
	Datum		values[] = {Int32GetDatum(queue_id), PointerGetDatum(tenant),
	Int32GetDatum(MAX_PAUSED)};
	JobqQueue	queue;

	jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	if (jobq_queue_by_id(queue_id, &queue) == NULL ||
		queue.tenant_by == TENANT_NONE)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_WRONG_STATE),
				 errmsg("queue \"%s\" knows no tenants", name),
				 errhint("Say what a tenant is: jobq.alter_queue('%s', tenant => 'setting ...'), or header, schema, role.",
						 name)));
	if (VARSIZE_ANY_EXHDR(tenant) == 0 ||
		VARSIZE_ANY_EXHDR(tenant) > JOBQ_MAX_TENANT)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tenant of %d bytes must have 1 to %d bytes",
						(int) VARSIZE_ANY_EXHDR(tenant), JOBQ_MAX_TENANT)));
	SPI_connect();
	if (!paused)
		jobq_query("UPDATE jobq.queue SET paused_tenants ="
				   " nullif(array_remove(paused_tenants, $2), '{}')"
				   " WHERE id = $1 AND $2 = ANY (paused_tenants)", 2, types,
				   values, NULL, SPI_OK_UPDATE);
	else if (jobq_query("UPDATE jobq.queue SET paused_tenants ="
						" array_append(array_remove(paused_tenants, $2), $2)"
						" WHERE id = $1 AND coalesce(cardinality(paused_tenants), 0) < $3",
						3, types, values, NULL, SPI_OK_UPDATE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%d tenants of queue \"%s\" are paused already",
						MAX_PAUSED, name),
				 errhint("Resume some, or pause the queue.")));
	SPI_finish();
}

static void
change(FunctionCallInfo fcinfo, const char *function, bool paused)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));

	PreventCommandIfReadOnly(function);
	if (PG_ARGISNULL(1))
		set_paused(name, paused);
	else
		set_tenant_paused(name, PG_GETARG_TEXT_PP(1), paused);
	if (!paused)
		jobq_at_commit_rescan();
}

/*
 * pause(queue, tenant): a worker that begins after this has committed starts no
 * more jobs of the queue, or of the tenant of it.
 */
Datum
jobq_pause(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	change(fcinfo, "jobq.pause()", true);
	PG_RETURN_VOID();
}

/*
 * resume(queue, tenant)
 */
Datum
jobq_resume(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	change(fcinfo, "jobq.resume()", false);
	PG_RETURN_VOID();
}
