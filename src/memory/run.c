/*-------------------------------------------------------------------------
 *
 *	  Changes the states of slots and of their runs, and finds the runs of jobs.
 *
 * src/memory/run.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "memory/memory.h"

static Size members_size(void);
static void members_init(void *owner, char *memory);

/* The legal successors of each state: see JobqRunState. */
#ifdef USE_ASSERT_CHECKING
#define TO(state) JOBQ_RUN_BIT(JOBQ_RUN_##state)
static const int successors[] = {
	[JOBQ_RUN_NONE] = TO(POPPED) | TO(NONE),
	[JOBQ_RUN_POPPED] = TO(CLAIMED) | TO(TURNED_AWAY) | TO(MISSED) | TO(NONE),
	[JOBQ_RUN_CLAIMED] = TO(BEGUN) | TO(ENDING) | TO(POPPED) | TO(DONE) | TO(LIVE) |
	TO(MISSED) | TO(DEAD),
	[JOBQ_RUN_BEGUN] = TO(ENDING) | TO(POPPED) | TO(DONE) | TO(LIVE) | TO(DEAD),
	[JOBQ_RUN_ENDING] = TO(DONE) | TO(LIVE),
	[JOBQ_RUN_DONE] = TO(POPPED) | TO(NONE),
	[JOBQ_RUN_LIVE] = TO(DONE) | TO(POPPED) | TO(NONE),
	[JOBQ_RUN_MISSED] = TO(POPPED) | TO(NONE),
	[JOBQ_RUN_TURNED_AWAY] = TO(POPPED) | TO(NONE),
	[JOBQ_RUN_DEAD] = TO(CHARGING) | TO(NONE),
	[JOBQ_RUN_CHARGING] = TO(CHARGED) | TO(DEAD) | TO(NONE),
	[JOBQ_RUN_CHARGED] = TO(NONE),
};
#endif

const JobqArea jobq_members_area = {
	JOBQ_AREA_OF_SLOT, members_size, members_init
};

static Size
members_size(void)
{
	return sizeof(JobqMembers);
}

static void
members_init(void *owner, char *memory)
{
	JobqSlot   *slot = owner;

	slot->members = (JobqMembers *) memory;
	slot->members->n = 0;
}

/*
 * Change the state of a run.  The caller holds the mutex of the slot, or is the worker: see
 * JobqRun.
 */
void
jobq_run_to(JobqRun *run, JobqRunState state)
{
	Assert(successors[run->state] & JOBQ_RUN_BIT(state));
	if (state == JOBQ_RUN_DEAD && run->state != JOBQ_RUN_CHARGING)
		run->died_in = run->state;
	if (state == JOBQ_RUN_NONE)
		run->stop = JOBQ_STOP_NONE;
	run->state = state;
}

/*
 * Change the state of a slot, and count the dead workers of its database.  A free slot has no
 * run.  The caller holds jobq_shared->lock.
 */
void
jobq_slot_to(JobqSlot *slot, JobqSlotState state)
{
	JobqDatabase *db = &jobq_shared->databases[slot->database];
	JobqSlotState before = slot->state;

	AssertExclusive(jobq_shared->lock);
	Assert(state != JOBQ_SLOT_FREE || before == JOBQ_SLOT_STARTING ||
		   before == JOBQ_SLOT_DEAD);
	Assert(state != JOBQ_SLOT_STARTING || before == JOBQ_SLOT_FREE);
	Assert(state != JOBQ_SLOT_ATTACHED || before == JOBQ_SLOT_STARTING);
	Assert(state != JOBQ_SLOT_DEAD || before == JOBQ_SLOT_ATTACHED);
	Assert(state == JOBQ_SLOT_FREE || slot->run.state == JOBQ_RUN_NONE ||
		   (state == JOBQ_SLOT_DEAD && slot->run.state == JOBQ_RUN_DEAD));
	slot->state = state;
	if (state == JOBQ_SLOT_DEAD)
		db->ndead++;
	else if (before == JOBQ_SLOT_DEAD)
	{
		Assert(db->ndead > 0);
		db->ndead--;
	}
	if (state == JOBQ_SLOT_FREE)
	{
		jobq_run_to(&slot->run, JOBQ_RUN_NONE);
		slot->members->n = 0;
	}
}

/*
 * Record that the transaction ending the current attempt of this worker has committed.  The
 * job is no longer shown as running, although the worker has not left the job yet.  A session
 * notified of the end may query the job at once.  Takes the mutex of the slot.
 */
void
jobq_run_ended(void)
{
	SpinLockAcquire(&jobq_my_slot->mutex);
	if (jobq_my_slot->run.state != JOBQ_RUN_ENDING)
		jobq_run_to(&jobq_my_slot->run, JOBQ_RUN_ENDING);
	SpinLockRelease(&jobq_my_slot->mutex);
}

/*
 * Copy the run of a slot.  Takes the mutex of the slot.
 */
void
jobq_run_read(JobqSlot *slot, JobqRun *run)
{
	SpinLockAcquire(&slot->mutex);
	*run = slot->run;
	SpinLockRelease(&slot->mutex);
}

/*
 * Return the job among those of the slot's chunk, or NULL.  The caller holds the mutex of the
 * slot, or is the worker, or the slot is dead.
 */
JobqMember *
jobq_slot_member(const JobqSlot *slot, int64 job_id)
{
	JobqMember *members = slot->members->jobs;
	int			low = 0;
	int			high = slot->members->n;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (members[middle].job == job_id)
			return &members[middle];
		if (members[middle].job < job_id)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/*
 * Does the slot name this job?  See jobq_run_open().  The caller holds the mutex of the slot.
 */
bool
jobq_slot_runs(const JobqSlot *slot, int64 job_id)
{
	return jobq_run_open(&slot->run) &&
		(slot->run.job == job_id || jobq_slot_member(slot, job_id) != NULL);
}

/*
 * Copy the run of a slot, as the run of this job if it is one of several.  Returns false if
 * the slot does not name the job.  Takes the mutex of the slot.
 */
bool
jobq_run_read_of(JobqSlot *slot, int64 job_id, JobqRun *run)
{
	const JobqMember *member;
	bool		names;

	SpinLockAcquire(&slot->mutex);
	*run = slot->run;
	names = jobq_slot_runs(slot, job_id);
	member = names ? jobq_slot_member(slot, job_id) : NULL;
	if (member != NULL)
	{
		run->job = job_id;
		run->attempt = member->attempt;
		if (run->stop == JOBQ_STOP_CANCEL && !member->stop)
			run->stop = JOBQ_STOP_NONE;
	}
	SpinLockRelease(&slot->mutex);
	return names;
}

/*
 * Return the slot of the worker that runs this job, or NULL.  If no worker runs the job and
 * dead_too is set, return the slot of a worker that has died with the job and was not charged
 * yet.
 */
static JobqSlot *
slot_of_job(JobqDatabase *db, int64 job_id, bool dead_too)
{
	JobqSlot   *dead = NULL;

	jobq_foreach_slot(slot, db, dead_too ? JOBQ_SLOTS_WITH_RUN : JOBQ_SLOTS_ATTACHED)
	{
		bool		match;

		SpinLockAcquire(&slot->mutex);
		match = jobq_slot_runs(slot, job_id);
		SpinLockRelease(&slot->mutex);
		if (match && slot->state == JOBQ_SLOT_DEAD)
			dead = slot;
		else if (match)
			return slot;
	}
	return dead;
}

/*
 * Return the slot of the worker that runs this job in the database, or NULL.  The answer may
 * be outdated at once.  Takes the mutexes of slots.
 */
JobqSlot *
jobq_slot_of_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, false);
}

/*
 * Like jobq_slot_of_job(), but also find the slot of a worker that has died with the job, if
 * the job was not charged yet.  Only the scheduler frees such a slot.  Takes the mutexes of
 * slots.
 */
JobqSlot *
jobq_slot_names_job(JobqDatabase *db, int64 job_id)
{
	return slot_of_job(db, job_id, true);
}

/*
 * Must another worker deal with this job, which has this number of charged attempts?  True if
 * that worker has died with the job, or if its attempt has failed, and this must be recorded
 * before the job runs again.  The job's row may be free nevertheless.  tried: another process
 * has deleted or locked the row, so a live worker may be about to record the failure, or to
 * die.
 *
 * If true, the popping process drops the entry.  The job is handed over again when the slot
 * no longer names the job.  Usually no slot is examined.  Takes the mutexes of slots.
 */
bool
jobq_slot_keeps_job(JobqDatabase *db, int64 job_id, int attempt, bool tried)
{
	bool		keeps = false;

	if (!tried && db->ndead == 0)
		return false;
	jobq_foreach_slot(slot, db, tried ? JOBQ_SLOTS_WITH_RUN : JOBQ_SLOTS_DEAD)
	{
		const JobqMember *member;

		if (slot->run.job != job_id && slot->members->n == 0)
			continue;
		SpinLockAcquire(&slot->mutex);
		member = jobq_slot_member(slot, job_id);
		keeps = jobq_slot_runs(slot, job_id) &&
			(member != NULL ? member->attempt : slot->run.attempt) == attempt;
		slot->run.asked_for |= keeps;
		SpinLockRelease(&slot->mutex);
		if (keeps)
			break;
	}
	return keeps;
}
