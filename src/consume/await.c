/*-------------------------------------------------------------------------
 *
 * await.c
 *	  Waiting in reserve(): the lanes from which a consumer may take jobs, and the list of
 *	  waiting consumers.
 *
 * No session polls.  A consumer without a job joins the list under the lock of its last
 * check.  A session with a suitable job then pops the job, hands it off to the consumer
 * (offer.c), and sets the consumer's latch.
 *
 * src/consume/await.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "executor/execdesc.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "optimizer/optimizer.h"
#include "tcop/pquery.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "consume/consume.h"

/* The roles last found by find_roles(). */
static struct
{
	JobqDatabase *db;
	uint32		as_of;			/* JobqDatabase.lanes_made */
	int			nqueues;
	int32		queue_ids[JOBQ_MAX_TAKE_QUEUES];
	int			n;
	Oid		   *found;			/* [jobq_max_lanes] */
}			roles;

static void give_up_place(Reservation *reservation, TimestampTz now,
						  JobqWakeList *wake);

/*
 * Find the roles that have lanes in the queues of the reservation.  The result rarely changes.
 * The static variable "roles" keeps the result until a lane is created or the queues differ.
 * Takes db->lock in shared mode.
 */
static void
find_roles(const Reservation *reservation)
{
	JobqDatabase *db = reservation->db;

	if (roles.found == NULL)
		roles.found = MemoryContextAlloc(TopMemoryContext,
										 sizeof(Oid) * jobq_max_lanes);
	else if (roles.db == db && roles.as_of == db->ready->lanes_made &&
			 roles.nqueues == reservation->taker.nqueues &&
			 memcmp(roles.queue_ids, reservation->queue_ids,
					roles.nqueues * sizeof(int32)) == 0)
		return;
	roles.db = db;
	roles.nqueues = reservation->taker.nqueues;
	memcpy(roles.queue_ids, reservation->queue_ids, sizeof(roles.queue_ids));
	roles.n = 0;
	LWLockAcquire(db->lock, LW_SHARED);
	roles.as_of = db->ready->lanes_made;
	for (int q = 0; q < roles.nqueues; q++)
	{
		JobqParty  *queue = jobq_party_find(db, roles.queue_ids[q], 0, 0);

		for (uint32 i = queue == NULL ? JOBQ_NONE : queue->lanes;
			 i != JOBQ_NONE; i = db->ready->lanes[i].party_next)
		{
			bool		known = false;

			for (int j = 0; j < roles.n && !known; j++)
				known = roles.found[j] == db->ready->lanes[i].role;
			if (!known)
				roles.found[roles.n++] = db->ready->lanes[i].role;
		}
	}
	LWLockRelease(db->lock);
}

/*
 * Determine the roles for which the current user may take jobs from the queues, and the denied
 * roles.  Also processes invalidation messages, so that a waiting session notices a resumed
 * queue.  The caller holds no lock.
 */
void
jobq_reserver_roles(Reservation *reservation)
{
	JobqTaker  *taker = &reservation->taker;

	AssertUnlocked();
	reservation->grants = reservation->db->offers->grants;
	AcceptInvalidationMessages();
	taker->any_role = true;
	for (int i = 0; i < taker->nqueues; i++)
		taker->any_role = taker->any_role &&
			(jobq_privileges(reservation->queue_ids[i]) & JOBQ_MAY_CONSUME) != 0;
	taker->nroles = 0;
	taker->roles = reservation->roles;
	reservation->ndenied = 0;
	if (taker->any_role)
		return;
	find_roles(reservation);
	for (int i = 0; i < roles.n; i++)
	{
		if (jobq_may_act_for(roles.found[i]))
			reservation->roles[taker->nroles++] = roles.found[i];
		else
			reservation->denied[reservation->ndenied++] = roles.found[i];
	}
}

/*
 * Take the job handed off to this session.  Without one, leave the list and pop a job from
 * the ready set.  False if there is none.  The caller holds db->lock.
 */
bool
jobq_reserver_pop(Reservation *reservation, TimestampTz now, JobqPush *job,
				  JobqWakeList *wake)
{
	AssertExclusive(reservation->db->lock);
	if (reservation->place != JOBQ_NONE)
	{
		if (reservation->db->offers->reservers[reservation->place].offered &&
			jobq_offer_take(reservation->db, reservation->place,
							&reservation->taker, job))
		{
			reservation->place = JOBQ_NONE;
			return true;
		}
		give_up_place(reservation, now, wake);
	}
	return jobq_ready_pop(reservation->db, &reservation->taker, now, job, wake);
}

/*
 * True if one of the queues has an unranked lane with jobs, as in a new queue.  The caller
 * then waits a moment, because otherwise jobs of later queues would come first.  Each true
 * result uses up one unit of reservation->checks_left.  Takes db->lock in shared mode.
 */
bool
jobq_reserver_unranked(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	bool		unranked = false;

	if (reservation->checks_left <= 0)
		return false;
	LWLockAcquire(db->lock, LW_SHARED);
	for (int q = 0; q < reservation->taker.nqueues && !unranked; q++)
	{
		JobqParty  *queue = jobq_party_find(db, reservation->queue_ids[q], 0, 0);

		for (uint32 i = queue == NULL ? JOBQ_NONE : queue->lanes;
			 i != JOBQ_NONE && !unranked; i = db->ready->lanes[i].party_next)
			unranked = db->ready->lanes[i].count > 0 &&
				!db->ready->lanes[i].ranked;
	}
	LWLockRelease(db->lock);
	if (unranked)
		reservation->checks_left--;
	return unranked;
}

/*
 * True if the scheduler may still bring jobs to one of the queues: a lane is unread, or is
 * being read.  The caller then waits a moment before it reports an empty queue.  Each call
 * uses up one unit of reservation->checks_left; false if none is left.  Takes db->lock in shared
 * mode.
 */
bool
jobq_reserver_coming(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();
	bool		coming = false;

	if (reservation->checks_left-- <= 0)
		return false;
	LWLockAcquire(db->lock, LW_SHARED);
	for (int q = 0; q < reservation->taker.nqueues && !coming; q++)
	{
		JobqParty  *queue = jobq_party_find(db, reservation->queue_ids[q], 0, 0);

		for (uint32 i = queue == NULL ? JOBQ_NONE : queue->lanes;
			 i != JOBQ_NONE && !coming; i = db->ready->lanes[i].party_next)
		{
			JobqLane   *lane = &db->ready->lanes[i];

			coming = !lane->ranked ||
				(!jobq_lane_is_closed(db, lane) && lane->count == 0 &&
				 (lane->more || lane->scanning || lane->next_due <= now));
		}
	}
	coming |= db->rescan || (!db->ready->complete && !db->ready->overflow);
	LWLockRelease(db->lock);
	return coming;
}

/*
 * Add this session to the list of waiting consumers.  False if a role unknown to find_roles()
 * has got a job, if privileges were granted meanwhile, or if the list is full.  The caller
 * holds db->lock since its last check for jobs.
 */
bool
jobq_reserver_list(Reservation *reservation)
{
	JobqDatabase *db = reservation->db;
	TimestampTz now = jobq_now();

	AssertExclusive(reservation->db->lock);
	if (reservation->grants != db->offers->grants)
		return false;
	for (int i = 0; i < reservation->taker.nqueues; i++)
		if (jobq_queue_has_job(db, reservation->queue_ids[i],
							   reservation->denied, reservation->ndenied, now))
			return false;
	reservation->place = jobq_reserver_add(db, GetUserId(), &reservation->taker,
										   reservation->denied,
										   reservation->ndenied);
	return reservation->place != JOBQ_NONE;
}

/*
 * Leave the list of waiting consumers.
 */
static void
give_up_place(Reservation *reservation, TimestampTz now, JobqWakeList *wake)
{
	AssertExclusive(reservation->db->lock);
	jobq_reserver_remove(reservation->db, reservation->place, now, wake);
	reservation->place = JOBQ_NONE;
	if (reservation->db->stop)
		jobq_wake_launcher();	/* the launcher waits for consumers to leave */
}

/*
 * Error and exit callback (PG_ENSURE_ERROR_CLEANUP): leave the list and hand off this
 * session's job, if any, to another consumer.  arg points to the Reservation.  Takes db->lock
 * exclusively.
 */
void
jobq_reserver_leave(int code, Datum arg)
{
	Reservation *reservation = (Reservation *) DatumGetPointer(arg);
	JobqWakeList wake = {0};

	if (reservation->place == JOBQ_NONE)
		return;
	LWLockAcquire(reservation->db->lock, LW_EXCLUSIVE);
	give_up_place(reservation, jobq_now(), &wake);
	jobq_unlock(reservation->db, &wake);
}

/*
 * True if the whole query is SELECT columns FROM jobq.reserve(...), called by the client
 * directly.  In this case the statement's snapshot is no longer used.
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
 * True if, in addition, no other snapshot is registered, such as the snapshot of an open
 * cursor.
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
 * Sleep until the latch is set, or for at most ms milliseconds.
 *
 * Between joining the list and this call, nothing may wait for a lock or a page.  Even a
 * catalog lookup could wait and would reset the latch.  The caller holds no lock.
 */
void
jobq_reserver_sleep(Reservation *reservation, long ms)
{
	static uint32 wait_event = 0;

	AssertUnlocked();

	/* the snapshot is no longer needed and must not hold back VACUUM */
	if (snapshot_is_unused(reservation))
		MyProc->xmin = InvalidTransactionId;
	jobq_client_wait(ms, jobq_wait_event(wait_event, "JobqReserve"));
}
