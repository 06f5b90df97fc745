/*-------------------------------------------------------------------------
 *
 * cache.c
 *	  What all caches of this room have in common: when they are forgotten.
 *
 * A cache is told of each relation that changes; a trigger on jobq_internal.queue
 * and jobq_internal.handler makes a change of their rows one of the relation
 * (queues.c).  Rows read in a transaction that aborts may never have been
 * committed, so an abort forgets all that was read since its beginning.
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

/* something was read that may not be committed */
static bool uncommitted = false;

static void relation_changed(Datum arg, Oid relid);
static void transaction_ended(XactEvent event, void *arg);
static void subtransaction_ended(SubXactEvent event, SubTransactionId mysubid,
								 SubTransactionId parentsubid, void *arg);

/*
 * Have this cache told; once per process.
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

/*
 * Something was put into a cache that this transaction has read.
 */
void
jobq_cache_filled(void)
{
	uncommitted = true;
}

static void
relation_changed(Datum arg, Oid relid)
{
	for (int i = 0; i < ncaches; i++)
		caches[i]->changed(relid);
}

/*
 * Forget what was read by the (sub)transaction that aborts.
 */
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
