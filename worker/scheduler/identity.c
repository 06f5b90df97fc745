/*-------------------------------------------------------------------------
 *
 * identity.c
 *	  Keeps a copy of a served database from running the jobs of its original.
 *
 * A copy is served, but no worker starts, as with "jobq.start_paused", until adopt() is
 * called in the copy.  src/store/identity.c decides whether a database is a copy.
 *
 * worker/scheduler/identity.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "scheduler/duty.h"

static TimestampTz load(TimestampTz now);
static TimestampTz run(TimestampTz now);
static void check(void *arg);

/* Reads a few rows at the start, and in each round while the database is a copy. */
Duty		identity_duty = {
	.what = "see whether the database is a copy",
	.load = load,
	.run = run,
	.each_round = true,
};

static TimestampTz
load(TimestampTz now)
{
	bool		copied;

	process_begin_transaction();
	jobq_lock_jobs();
	SPI_connect();
	check(&copied);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->copied = copied;
	LWLockRelease(my_db->lock);
	return DT_NOEND;
}

/*
 * Check whether the copy has been adopted since.  If so, request all work again.
 */
static TimestampTz
run(TimestampTz now)
{
	bool		copied;
	ErrorData  *edata;

	if (!my_db->copied)
		return DT_NOEND;
	edata = scheduler_try(check, &copied);
	if (edata != NULL)
		ReThrowError(edata);
	if (copied)
		return DT_NOEND;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	my_db->copied = false;
	my_db->reload = my_db->limits->stale = my_db->rescan = true;
	my_db->schedules_changed = my_db->batches_sweep = true;
	LWLockRelease(my_db->lock);
	ereport(LOG,
			(errmsg("jobs of the copy start, because it was adopted")));
	return DT_NOEND;
}

/*
 * Check whether the database is a copy; arg points to the bool result.  Logs a newly
 * found copy.
 */
static void
check(void *arg)
{
	bool	   *copied = (bool *) arg;
	static bool told = false;

	*copied = jobq_relations_if_installed() != NULL && jobq_is_copy();
	if (*copied && !told)
		ereport(LOG,
				(errmsg("database \"%s\" is a copy of a database served elsewhere: none of its jobs starts",
						get_database_name(MyDatabaseId)),
				 errhint("Cancel what must not run here, and then call jobq.adopt() in it.")));
	told = *copied;
}
