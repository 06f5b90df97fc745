/*-------------------------------------------------------------------------
 *
 * find.c
 *	  Find the row of a schedule, or a schedule dropped by this transaction.
 *
 * src/schedule/find.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "store/store.h"
#include "schedule/inner.h"

/* A schedule dropped by this transaction. */
typedef struct Dropped
{
	const char *name;
	JobqScheduleRow was;
} Dropped;

/* The last dropped first.  Valid only in the transaction dropped_in. */
static List *dropped = NIL;
static FullTransactionId dropped_in;

/*
 * Read a schedule, and lock it if "lock" is set.  Returns false if it does not exist.  The
 * caller must be connected to SPI.
 */
bool
jobq_schedule_find(Datum name, bool lock, JobqScheduleRow *found)
{
	static const Oid types[] = {TEXTOID};
	TupleDesc	desc;
	HeapTuple	tuple;

	if (jobq_query(psprintf("SELECT role::oid, anchor, paused, cron, timezone,"
							" coalesce(next_tick, '-infinity'), coalesce(last_tick, '-infinity'),"
							" coalesce(last_job_id, 0), held FROM jobq_internal.schedule WHERE name = $1%s",
							lock ? " FOR UPDATE" : ""),
				   1, types, &name, NULL, SPI_OK_SELECT) == 0)
		return false;
	desc = SPI_tuptable->tupdesc;
	tuple = SPI_tuptable->vals[0];
	found->role = DatumGetObjectId(jobq_column(tuple, desc, 1, OIDOID, NULL));
	found->anchor = DatumGetTimestampTz(jobq_column(tuple, desc, 2, TIMESTAMPTZOID, NULL));
	found->paused = DatumGetBool(jobq_column(tuple, desc, 3, BOOLOID, NULL));
	found->cron = SPI_getvalue(tuple, desc, 4);
	found->timezone = SPI_getvalue(tuple, desc, 5);
	found->next_tick = DatumGetTimestampTz(jobq_column(tuple, desc, 6, TIMESTAMPTZOID, NULL));
	found->last_tick = DatumGetTimestampTz(jobq_column(tuple, desc, 7, TIMESTAMPTZOID, NULL));
	found->last_job = DatumGetInt64(jobq_column(tuple, desc, 8, INT8OID, NULL));
	found->held = DatumGetBool(jobq_column(tuple, desc, 9, BOOLOID, NULL));
	return true;
}

/*
 * Note that this transaction has dropped the schedule, for a later schedule() in the same
 * transaction.
 */
void
jobq_schedule_note_dropped(const char *name, const JobqScheduleRow *found)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	FullTransactionId now_in = GetTopFullTransactionId();
	Dropped    *this = palloc(sizeof(Dropped));

	if (!FullTransactionIdEquals(now_in, dropped_in))
		dropped = NIL;
	dropped_in = now_in;
	this->name = pstrdup(name);
	this->was = *found;
	this->was.cron = pstrdup(found->cron);
	this->was.timezone = pstrdup(found->timezone);
	dropped = lcons(this, dropped);
	MemoryContextSwitchTo(old);
}

/*
 * Return the last schedule of this name dropped by this transaction, or NULL.
 */
const JobqScheduleRow *
jobq_schedule_find_dropped(const char *name)
{
	ListCell   *lc;

	if (!FullTransactionIdIsValid(dropped_in) ||
		!FullTransactionIdEquals(GetTopFullTransactionIdIfAny(), dropped_in))
		return NULL;
	foreach(lc, dropped)
	{
		const Dropped *this = lfirst(lc);

		if (strcmp(this->name, name) == 0)
			return &this->was;
	}
	return NULL;
}

/*
 * Read and lock a schedule for which the current user has the privilege.  ERROR if there is
 * none.  function: name of the SQL function, for messages.  The caller must be connected to
 * SPI.
 */
void
jobq_schedule_find_mine(const char *function, int privilege, Datum name, JobqScheduleRow *found)
{
	PreventCommandIfReadOnly(function);
	if (!jobq_schedule_find(name, true, found) || !jobq_may(privilege, found->role, 0))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("schedule \"%s\" does not exist",
						TextDatumGetCString(name)),
				 errhint("It may be another role's.")));
}
