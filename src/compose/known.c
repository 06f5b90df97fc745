/*-------------------------------------------------------------------------
 *
 * known.c
 *	  Existing steps of a workflow that gets new steps.
 *
 * Existing steps are looked up by name, and only if a new step mentions them.  The cost of
 * an addition therefore does not depend on the number of existing steps.
 *
 * The index step_name keeps names unique, also between concurrent transactions.
 *
 * src/compose/known.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "compose/inner.h"

/*
 * Workflows for which this session knows that more steps fit.  After counting, a session
 * may add a fraction of the remaining steps without counting again.  The fraction is
 * 1/SHARES, or 1/MaxBackends if that is less, because all sessions may add at the same
 * time.
 *
 * The limit protects the scheduler and need not be exact.  Steps of concurrent transactions
 * are not seen, so sessions may exceed the limit slightly.
 */
#define NROOMS		16
#define SHARES		64

typedef struct Room
{
	int64		batch_id;
	int64		left;
} Room;

static Room rooms[NROOMS];

/*
 * ERROR if the workflow would have more than JOBQ_MAX_STEPS steps after adding n steps.
 * The steps are not counted each time, because counting would cost more than adding.  The
 * caller must not be connected to SPI.
 */
void
known_check_room(int64 batch_id, int n)
{
	static const Oid types[] = {INT8OID};
	static SPIPlanPtr plan = NULL;
	Room	   *room = &rooms[(uint64) batch_id % NROOMS];
	Datum		value = Int64GetDatum(batch_id);
	int64		nsteps;

	if (room->batch_id == batch_id && room->left >= n)
	{
		room->left -= n;
		return;
	}
	room->batch_id = 0;
	SPI_connect();
	(void) jobq_query_kept(&plan, "SELECT pg_catalog.count(*) FROM jobq_internal.step"
						   " WHERE batch_id = $1 AND element_of IS NULL",
						   1, types, &value, NULL, SPI_OK_SELECT);
	nsteps = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	SPI_finish();
	if (nsteps + n > JOBQ_MAX_STEPS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("workflow " INT64_FORMAT " would have " INT64_FORMAT " steps, more than the allowed %d",
						batch_id, nsteps + n, JOBQ_MAX_STEPS),
				 errhint("A step can add jobs to the batch with jobq.add_jobs().")));
	room->left = (JOBQ_MAX_STEPS - nsteps - n) / Max(SHARES, MaxBackends);
	room->batch_id = batch_id;
}

/*
 * Return the job of the workflow's step with this name, or 0.  Elements of a step with
 * "map" do not count.  The caller must not be connected to SPI.
 */
int64
known_job(int64 batch_id, const char *name)
{
	static const Oid types[] = {INT8OID, TEXTOID};
	static SPIPlanPtr plan = NULL;
	Datum		values[] = {Int64GetDatum(batch_id), CStringGetTextDatum(name)};
	int64		job_id = 0;

	SPI_connect();
	if (jobq_query_kept(&plan, "SELECT job_id FROM jobq_internal.step"
						" WHERE batch_id = $1 AND name = $2 AND element_of IS NULL",
						2, types, values, NULL, SPI_OK_SELECT) > 0)
		job_id = DatumGetInt64(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, INT8OID, NULL));
	SPI_finish();
	return job_id;
}

/*
 * Add the existing step with this name to workflow->known.  Returns its index, which is at
 * least nsteps, or -1 if the workflow has no such step.  The caller must not be connected
 * to SPI.
 */
int
known_place(Workflow *workflow, const char *name)
{
	int64		job_id = known_job(workflow->batch_id, name);

	if (job_id == 0)
		return -1;
	if (workflow->nknown == workflow->max_known)
	{
		workflow->max_known = Max(2 * workflow->max_known, 16);
		workflow->known = workflow->known == NULL
			? palloc(sizeof(KnownStep) * workflow->max_known)
			: repalloc(workflow->known, sizeof(KnownStep) * workflow->max_known);
	}
	workflow->known[workflow->nknown].job_id = job_id;
	workflow->known[workflow->nknown].mark = 0;
	return workflow->nsteps + workflow->nknown++;
}

/*
 * Return true if the step of one of the jobs is the step of the job "before", or needs it,
 * directly or indirectly.  The caller must not be connected to SPI.
 */
bool
known_comes_after(const Datum *jobs, int njobs, int64 before)
{
	static const Oid types[] = {INT8ARRAYOID, INT8OID};
	static SPIPlanPtr plan = NULL;
	Datum		values[2];
	bool		found;

	if (njobs == 0)
		return false;
	values[0] = jobq_int8_array(jobs, njobs);
	values[1] = Int64GetDatum(before);
	SPI_connect();
	found = jobq_query_kept(&plan, "WITH RECURSIVE before AS"
							" (SELECT pg_catalog.unnest($1) AS id UNION"
							"  SELECT n.id FROM before b JOIN jobq_internal.step s ON s.job_id = b.id"
							"  CROSS JOIN LATERAL pg_catalog.unnest(s.needs) n (id))"
							" SELECT FROM before WHERE id = $2 LIMIT 1",
							2, types, values, NULL, SPI_OK_SELECT) > 0;
	SPI_finish();
	return found;
}
