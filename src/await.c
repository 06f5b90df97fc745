/*-------------------------------------------------------------------------
 *
 * await.c
 *	  reserve() waits: which lanes a consumer can take from, and the list of
 *	  those that wait for a job.
 *
 * Nobody polls.  Who finds nothing goes on the list under the lock of the vain
 * look; who hands over a job takes one off the list and sets its latch.  That
 * one has a debt then: it takes the job, or passes the wake-up on.
 *
 * src/await.c
 *
 *-------------------------------------------------------------------------
 */
#include "jobq.h"

#include "access/xact.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "optimizer/optimizer.h"
#include "tcop/pquery.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "consume.h"

static bool is_ours(const Reservation *reservation, const JobqLane *lane);
static bool snapshot_is_unused(const Reservation *reservation);

/*
 * Is this a lane of one of our queues that can be served?
 */
static bool
is_ours(const Reservation *reservation, const JobqLane *lane)
{
	if (!lane->ranked || lane->paused || !lane->consumer)
		return false;
	for (int i = 0; i < reservation->taker.nqueues; i++)
		if (reservation->queue_ids[i] == lane->queue_id)
			return true;
	return false;
}

/*
 * The roles with waiting jobs whose privileges this user has.
 */
void
jobq_reserver_roles(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	JobqTaker  *taker = &reservation->taker;
	Oid		   *found;
	int			nfound = 0;

	taker->any_role = jobq_may_manage(jobq_relations()->owner);
	taker->nroles = 0;
	taker->roles = reservation->roles;
	reservation->ndenied = 0;
	if (taker->any_role)
		return;

	found = palloc(sizeof(Oid) * jobq_max_lanes);
	LWLockAcquire(db->lock, LW_SHARED);
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		bool		known = false;

		for (int j = 0; j < nfound && !known; j++)
			known = found[j] == db->lanes[i].role;
		if (!known && is_ours(reservation, &db->lanes[i]))
			found[nfound++] = db->lanes[i].role;
	}
	LWLockRelease(db->lock);
	for (int i = 0; i < nfound; i++)
	{
		if (jobq_may_manage(found[i]))
			reservation->roles[taker->nroles++] = found[i];
		else
			reservation->denied[reservation->ndenied++] = found[i];
	}
	pfree(found);
}

/*
 * Is a job there?  The token is taken only then: every now and then that
 * assigns a transaction id, which must not be held while we wait.
 */
bool
jobq_reserver_ready(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();
	bool		ready = false;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	for (uint32 i = db->active_head; i != JOBQ_NONE && !ready;
		 i = db->lanes[i].active_next)
		ready = is_ours(reservation, &db->lanes[i]) &&
			jobq_lane_free(db, &db->lanes[i], now);
	LWLockRelease(db->lock);
	return ready;
}

/*
 * Wake another consumer for what is still there.  Wants db->lock.
 */
void
jobq_reserver_pass_on(Reservation *reservation, JobqWakeList *wake)
{
	JobqDatabase *db = reservation->db;

	reservation->woken = false;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
		if (is_ours(reservation, &db->lanes[i]))
			jobq_ready_wake(db, &db->lanes[i], jobq_now(), wake);
}

/*
 * Has one of our queues a lane that is not ranked yet, as the queue is new?
 * Then wait a moment, or its jobs would come after those of later queues.
 */
bool
jobq_reserver_unranked(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	bool		unranked = false;

	if (reservation->patience <= 0)
		return false;
	LWLockAcquire(db->lock, LW_SHARED);
	for (uint32 i = db->active_head; i != JOBQ_NONE && !unranked;
		 i = db->lanes[i].active_next)
		for (int j = 0; j < reservation->taker.nqueues; j++)
			if (!db->lanes[i].ranked &&
				reservation->queue_ids[j] == db->lanes[i].queue_id)
				unranked = true;
	LWLockRelease(db->lock);
	if (unranked)
		reservation->patience--;
	return unranked;
}

/*
 * Does one of our queues have a lane of which the scheduler has not yet read
 * what is in it?  Then wait a moment rather than say that there is nothing.
 */
bool
jobq_reserver_coming(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	bool		coming = false;

	if (reservation->patience-- <= 0)
		return false;
	LWLockAcquire(db->lock, LW_SHARED);
	for (int i = 0; i < jobq_max_lanes && !coming; i++)
	{
		JobqLane   *lane = &db->lanes[i];

		if (!lane->in_use || (lane->ranked && !lane->more))
			continue;
		for (int j = 0; j < reservation->taker.nqueues; j++)
			if (reservation->queue_ids[j] == lane->queue_id)
				coming = !lane->paused && lane->count == 0;
		if (!lane->ranked)
			coming = true;
	}
	coming |= db->rescan || (!db->complete && !db->overflow);
	LWLockRelease(db->lock);
	return coming;
}

/*
 * Go on the list of those to be woken, which is done under the same lock as
 * the vain look.  False if a job of a role that we have not thought about has
 * come in between, or if the list is full.
 *
 * Who was woken for a job that it may not take passes the wake-up on.
 */
bool
jobq_reserver_list(Reservation *reservation, JobqWakeList *wake)
{
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();
	JobqReserver *reserver;

	if (db->nreservers == JOBQ_MAX_RESERVERS)
		return false;
	for (uint32 i = db->active_head; i != JOBQ_NONE;
		 i = db->lanes[i].active_next)
	{
		JobqLane   *lane = &db->lanes[i];
		bool		denied = false;

		if (!is_ours(reservation, lane) || !jobq_lane_free(db, lane, now))
			continue;
		for (int j = 0; j < reservation->ndenied && !denied; j++)
			denied = reservation->denied[j] == lane->role;
		if (!denied)
			return false;
	}
	if (reservation->woken)
		jobq_reserver_pass_on(reservation, wake);

	reserver = &db->reservers[db->nreservers++];
	reserver->proc = MyProc;
	reserver->nqueues = reservation->taker.nqueues;
	memcpy(reserver->queue_ids, reservation->queue_ids,
		   sizeof(reserver->queue_ids));
	reserver->ndenied = Min(reservation->ndenied, JOBQ_MAX_DENIED);
	memcpy(reserver->denied, reservation->denied,
		   reserver->ndenied * sizeof(Oid));
	reservation->listed = true;
	return true;
}

/*
 * Take this session off the list of reservers.  As error clean-up (code is not
 * 0, as PG_ENSURE_ERROR_CLEANUP and an exit have it), a wake-up that was meant
 * for us goes to another.
 */
void
jobq_reserver_unlist(int code, Datum arg)
{
	Reservation *reservation = (Reservation *) DatumGetPointer(arg);
	JobqDatabase *db = reservation->db;
	JobqWakeList wake = {0};

	if (!reservation->listed)
		return;
	reservation->listed = false;
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	reservation->woken = true;
	for (uint32 i = 0; i < db->nreservers; i++)
	{
		if (db->reservers[i].proc == MyProc)
		{
			db->reservers[i] = db->reservers[--db->nreservers];
			reservation->woken = false;
			break;
		}
	}
	if (code != 0 && reservation->woken)
		jobq_reserver_pass_on(reservation, &wake);
	LWLockRelease(db->lock);
	jobq_wake(db, &wake);
}

/*
 * Is the whole query SELECT columns FROM jobq.reserve(), called by the client
 * itself?  Then the statement's snapshot is not used any more.
 */
bool
jobq_reserver_plain(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PlannedStmt *stmt;
	Plan	   *plan;

	if (IsolationUsesXactSnapshot() || GetCurrentTransactionNestLevel() != 1 ||
		ActivePortal == NULL || ActivePortal->name[0] != '\0' ||
		ActivePortal->strategy != PORTAL_ONE_SELECT ||
		ActivePortal->queryDesc == NULL || rsinfo->econtext == NULL ||
		rsinfo->econtext->ecxt_estate != ActivePortal->queryDesc->estate)
		return false;
	stmt = ActivePortal->queryDesc->plannedstmt;
	plan = stmt->planTree;
	return stmt->commandType == CMD_SELECT && stmt->subplans == NIL &&
		list_length(stmt->rtable) == 1 && IsA(plan, FunctionScan) &&
		list_length(((FunctionScan *) plan)->functions) == 1 &&
		!contain_mutable_functions((Node *) plan->targetlist) &&
		!contain_mutable_functions((Node *) plan->qual);
}

/*
 * The same, and no other either: an open cursor has one, too.
 */
static bool
snapshot_is_unused(const Reservation *reservation)
{
	if (!reservation->plain)
		return false;
	InvalidateCatalogSnapshot();
	return ThereAreNoPriorRegisteredSnapshots();
}

/*
 * Sleep until somebody has a job for us, or the time is over.
 *
 * Nothing may come between going on the list and this which waits for a lock
 * or a page, not even a look into a system catalog: it would reset the latch.
 */
void
jobq_reserver_sleep(Reservation *reservation, long ms)
{
	static uint32 wait_event = 0;

	/* what the statement has seen so far holds nobody up */
	if (snapshot_is_unused(reservation))
		MyProc->xmin = InvalidTransactionId;
	jobq_client_wait(ms, jobq_wait_event(wait_event, "JobqReserve"));
	jobq_reserver_unlist(0, PointerGetDatum(reservation));
}
