/*-------------------------------------------------------------------------
 *
 * cache.c
 *	  Common invalidation of all caches of this directory.
 *
 * Each cache is informed of each changed relation.  Triggers on jobq_internal.queue and
 * jobq_internal.handler turn a change of rows into a change of the relation (queues.c).  Rows
 * read in an aborted transaction may never have been committed.  An abort therefore clears all
 * data read since the beginning of the transaction.
 *
 * src/store/cache.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "utils/inval.h"

#include "store/store.h"

#define MAX_CACHES	16
static const JobqCache *caches[MAX_CACHES];
static int	ncaches = 0;

/* a queue with default settings is being inserted */
static bool keep = false;

/* a cache may have uncommitted data */
static bool uncommitted = false;

static void relation_changed(Datum arg, Oid relid);
static void transaction_ended(XactEvent event, void *arg);
static void subtransaction_ended(SubXactEvent event, SubTransactionId mysubid,
								 SubTransactionId parentsubid, void *arg);

/*
 * Register a cache for invalidation.  Called once per process.  ERROR if the array is full.
 */
void
jobq_cache_join(const JobqCache *cache)
{
	if (ncaches == MAX_CACHES)
		elog(ERROR, "too many caches");
	if (ncaches == 0)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		RegisterXactCallback(transaction_ended, NULL);
		RegisterSubXactCallback(subtransaction_ended, NULL);
	}
	caches[ncaches++] = cache;
}

/* Note that this transaction has read data into a cache. */
void
jobq_cache_filled(void)
{
	uncommitted = true;
}

/*
 * While "on" is set, rows inserted into jobq_internal.queue invalidate no cache: the statement
 * inserts a queue with default settings.  No process has cached such a queue, no job refers
 * to it, and no limits have to be loaded.  The cost of a new queue therefore does not depend
 * on the number of queues.
 */
void
jobq_cache_keep(bool on)
{
	keep = on;
}

/* Return whether inserted queues invalidate no cache. */
bool
jobq_cache_keeps(void)
{
	return keep;
}

static void
relation_changed(Datum arg, Oid relid)
{
	for (int i = 0; i < ncaches; i++)
		caches[i]->changed(relid);
}

/* Clear the data read by the aborted transaction or subtransaction. */
static void
forget_uncommitted(void)
{
	if (!uncommitted)
		return;
	uncommitted = false;
	for (int i = 0; i < ncaches; i++)
		if (caches[i]->forget != NULL)
			caches[i]->forget();
}

static void
transaction_ended(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	for (int i = 0; i < ncaches; i++)
		if (caches[i]->ended != NULL)
			caches[i]->ended();
	if (event != XACT_EVENT_COMMIT)
		forget_uncommitted();
	uncommitted = false;
}

static void
subtransaction_ended(SubXactEvent event, SubTransactionId mysubid,
					 SubTransactionId parentsubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		forget_uncommitted();
}
