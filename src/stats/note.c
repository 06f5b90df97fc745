/*-------------------------------------------------------------------------
 *
 * note.c
 *	  Notes of changes to jobs by this transaction, until it commits.
 *
 * A note refers to a slot and pins it, so that no other name gets the slot before the end of
 * the transaction.
 *
 * src/stats/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "stats/stats.h"

/*
 * Times of an attempt: how long it waited and ran, -1 if unknown.  Or a number of jobs,
 * waiting for a later time or gone.
 */
typedef struct NotedTime
{
	SubTransactionId subid;
	uint32		place;
	uint32		generation;
	int32		n;				/* jobs; 0: an attempt */
	int64		waited;			/* or the time for which the jobs wait */
	int64		ran;			/* or the distance of this time */
} NotedTime;

static JobqNotebook book = {.size = sizeof(JobqStatNote)};
static NotedTime *times = NULL; /* kept from one transaction to the next */
static int	ntimes = 0;
static int	max_times = 0;

/* The subject of a note. */
#define SUBJECT(place, generation)	((uint64) (place) << 32 | (generation))

/* the database of the notes */
static const JobqStatBase *noted_base = NULL;

/* set if changes were not noted, because this database was not counted */
static Oid	unnoted_jobs = InvalidOid;

/*
 * Pin the slot if its generation is still *generation.  any: pin the slot if it belongs to
 * this database, and set *generation.
 */
static bool
pin(uint32 place, uint32 *generation, bool any)
{
	JobqStat   *stat = &jobq_stats->stats[place];
	bool		same;

	SpinLockAcquire(&stat->mutex);
	/* a test kills a session here */
	jobq_injection_point("jobq-stats-pin");
	same = stat->in_use && (any ? stat->name.dboid == MyDatabaseId
							: stat->generation == *generation);
	if (same)
		stat->pins++;
	*generation = stat->generation;
	SpinLockRelease(&stat->mutex);
	return same;
}

/* Add a note, for which there is room.  The slot is pinned. */
static JobqStatNote *
new_note(uint32 place, uint32 generation)
{
	JobqStatNote *note = jobq_note_add(&book, SUBJECT(place, generation));

	note->place = place;
	note->generation = generation;
	return note;
}

/* The note is discarded or merged: unpin its slot.  Cannot fail. */
static void
unpin(const JobqStatNote *note)
{
	JobqStat   *stat = &jobq_stats->stats[note->place];

	SpinLockAcquire(&stat->mutex);
	if (stat->generation == note->generation)
		stat->pins--;
	SpinLockRelease(&stat->mutex);
}

/*
 * Like jobq_stats_note(), for a slot that was found before.  NULL if the slot belongs to
 * another name by now.
 */
JobqStatNote *
jobq_stats_note_at(const JobqStatAt *at)
{
	uint32		generation = at->generation;
	JobqStatNote *note = jobq_note_here(&book, SUBJECT(at->place, generation));

	if (note != NULL)
		return note;
	jobq_notebook_reserve(&book);
	if (!pin(at->place, &generation, false))
		return NULL;
	noted_base = at->base;
	return new_note(at->place, generation);
}

/*
 * Return the note of this subtransaction for the name, to which the caller adds.  NULL if jobs
 * are not counted.  The note may move at the next call.  *at is set as by jobq_stats_place().
 * May acquire JobqStats.lock.
 */
JobqStatNote *
jobq_stats_note(Oid jobs, const JobqStatKey *key, JobqStatAt *at)
{
	const JobqStatBase *base = jobq_stats_my_base(jobs);
	JobqStatNote *note = NULL;
	uint32		generation = 0;
	uint32		place = JOBQ_NONE;
	bool		pinned = false;

	if (!JOBQ_STATISTICS)
		return NULL;
	if (base == NULL)
	{
		if (jobq_stats != NULL)
			unnoted_jobs = jobs;
		return NULL;
	}
	noted_base = base;
	jobq_notebook_reserve(&book);
	for (int tries = 0; !pinned && tries < 3; tries++)
	{
		place = jobq_stats_look_up(base, key, &generation);
		if (place == JOBQ_NONE)
			break;
		note = jobq_note_here(&book, SUBJECT(place, generation));
		if (note != NULL)
			break;
		pinned = pin(place, &generation, false);
	}
	if (note == NULL && !pinned)
	{
		place = jobq_stats_of_base(base);
		if (!pin(place, &generation, true))
		{
			/* the extension was dropped, or another one is counted instead */
			unnoted_jobs = jobs;
			return NULL;
		}
		note = jobq_note_here(&book, SUBJECT(place, generation));
		if (note != NULL)
			unpin(note);
	}
	at->base = base;
	at->place = place;
	at->generation = generation;
	return note != NULL ? note : new_note(place, generation);
}

static void
note_time(const JobqStatNote *note, int32 n, int64 waited, int64 ran)
{
	NotedTime  *time;

	times = jobq_grow(times, &max_times, ntimes + 1, sizeof(NotedTime));
	time = &times[ntimes++];
	time->subid = note->note.subid;
	time->place = note->place;
	time->generation = note->generation;
	time->n = n;
	time->waited = waited;
	time->ran = ran;
}

/* Note the times of an attempt, in microseconds; -1 if unknown. */
void
jobq_stats_note_times(const JobqStatNote *note, int64 waited, int64 ran)
{
	note_time(note, 0, waited, ran);
}

/*
 * Note n new jobs that wait for run_at, which was "away" microseconds in the future when they
 * were written.  A negative n: the jobs are gone.
 */
void
jobq_stats_note_run_at(const JobqStatNote *note, TimestampTz run_at, int64 away,
					   int32 n)
{
	NotedTime  *last = ntimes > 0 ? &times[ntimes - 1] : NULL;

	if (last != NULL && last->n != 0 && last->waited == run_at && last->ran == away &&
		last->place == note->place && last->generation == note->generation &&
		last->subid == note->note.subid && (last->n > 0) == (n > 0) &&
		last->n < PG_INT32_MAX / 2)
		last->n += n;
	else
		note_time(note, n, run_at, away);
}

/*
 * How a count of the gauges affects the notes of this transaction.  The count has begun and
 * may have ended.
 */
typedef struct CountingSaw
{
	bool		wait;			/* the lock is needed for the answer */
	bool		gauge;			/* add to the gauge */
	bool		since;			/* add to since_count */
}			CountingSaw;

/*
 * Determine how to add a note to the slot.  The caller holds the slot's mutex.  locked: the
 * caller also holds JobqStats.lock.
 *
 * While the slot has no mark, or while the lock is held, the stored snapshot of the base does
 * not change.  If the snapshot saw this transaction, the counted gauge already includes the
 * notes, although they are added only now.
 */
static CountingSaw
counting_saw(const JobqStat *stat, bool locked)
{
	CountingSaw saw = {.gauge = true};
	bool		missed;

	Assert(!locked || LWLockHeldByMe(jobq_stats->lock));
	if (stat->count != 0 && !locked)
	{
		saw.wait = true;
		return saw;
	}
	missed = jobq_stats_count_missed(noted_base, GetTopFullTransactionIdIfAny());
	if (stat->count == 0)
		saw.gauge = missed;
	else
		saw.since = missed;
	return saw;
}

/*
 * Add the times of an attempt.  The history was advanced to now.  The caller holds the slot's
 * mutex.
 */
static void
add_attempt(JobqCounts *counts, const NotedTime *time)
{
	JobqPastSlot *slot = jobq_history_slot(&counts->history);

	if (time->waited >= 0)
	{
		jobq_times_add(&counts->waited, time->waited);
		jobq_history_add_wait(&counts->history, time->waited);
	}
	if (time->ran >= 0)
	{
		jobq_times_add(&counts->ran, time->ran);
		jobq_past_times_add(&slot->ran, time->ran);
	}
}

/*
 * The slot of a note belongs to another name by now, so the note is discarded.  Either the
 * queue was dropped, or the database was not served for a while.  The jobs may have been
 * counted without the note in other slots, so they are counted anew.
 */
static bool
counted_elsewhere(void)
{
	jobq_stats_unknown(MyDatabaseId);
	return true;
}

/*
 * Add a note to its slot, together with the times of an attempt or NULL, and unpin the slot.
 * locked: the caller holds the lock.  False if the lock is needed because the gauges are being
 * counted.
 */
static bool
add_note(const JobqStatNote *note, const NotedTime *attempt, TimestampTz now,
		 bool locked)
{
	static const JobqCounter past[JOBQ_NPAST] = {
		JOBQ_N_ENQUEUED, JOBQ_N_COMPLETED, JOBQ_N_FAILED, JOBQ_N_DEAD, JOBQ_N_CANCELLED,
		JOBQ_N_EXPIRED
	};
	JobqStat   *stat = &jobq_stats->stats[note->place];
	JobqCounts *counts = &stat->counts;
	CountingSaw saw;
	JobqPastSlot *slot;

	SpinLockAcquire(&stat->mutex);
	if (stat->generation != note->generation)
	{
		SpinLockRelease(&stat->mutex);
		return counted_elsewhere();
	}
	saw = counting_saw(stat, locked);
	if (saw.wait)
	{
		SpinLockRelease(&stat->mutex);
		return false;
	}
	for (int i = 0; i < JOBQ_NCOUNTERS; i++)
		counts->counters[i] += note->counters[i];
	if (note->counters[JOBQ_N_COMPLETED] > 0)
		counts->completed_at = Max(counts->completed_at, now);
	for (int i = 0; i < JOBQ_NGAUGES; i++)
	{
		if (saw.gauge)
			counts->gauges[i] += note->gauges[i];
		if (saw.since)
			stat->since_count[i] += note->gauges[i];
	}
	jobq_history_turn(&counts->history, now);
	slot = jobq_history_slot(&counts->history);
	for (int i = 0; i < JOBQ_NPAST; i++)
		slot->n[i] += (uint32) note->counters[past[i]];
	if (attempt != NULL)
		add_attempt(counts, attempt);
	stat->used_at = now;
	stat->pins--;
	SpinLockRelease(&stat->mutex);
	return true;
}

/*
 * Like add_note(), for a time.  Jobs that the snapshot of a count sees are entered into the
 * calendar by the count.
 */
static bool
add_time(const NotedTime *time, TimestampTz now, bool locked)
{
	JobqStat   *stat = &jobq_stats->stats[time->place];
	CountingSaw saw = {.gauge = true};
	bool		put_back = false;

	SpinLockAcquire(&stat->mutex);
	if (stat->generation != time->generation)
	{
		SpinLockRelease(&stat->mutex);
		return counted_elsewhere();
	}
	if (time->n != 0)
		saw = counting_saw(stat, locked);
	if (saw.wait)
	{
		SpinLockRelease(&stat->mutex);
		return false;
	}
	if (time->n != 0)
	{
		put_back = jobq_calendar_turn(&stat->counts.scheduled, now);
		if (stat->count == 0 ? saw.gauge : saw.since)
			jobq_calendar_add(&stat->counts.scheduled, time->waited, time->ran,
							  time->n);
	}
	else
	{
		jobq_history_turn(&stat->counts.history, now);
		add_attempt(&stat->counts, time);
	}
	SpinLockRelease(&stat->mutex);
	if (put_back)
		jobq_stats_unknown(MyDatabaseId);
	return true;
}

/* Keep no more memory than most transactions need. */
static void
give_back(void)
{
	Assert(ntimes == 0);
	jobq_notebook_give_back(&book);
	times = jobq_give_back(times, &max_times);
}

static bool
stats_noted(void)
{
	return book.n > 0 || OidIsValid(unnoted_jobs);
}

/*
 * The transaction has committed: add the notes.  Returns false, because nothing remains to be
 * done under db->lock.
 */
static bool
stats_pending(JobqDatabase *db)
{
	TimestampTz now = jobq_now();
	const NotedTime *attempt = NULL;

	jobq_injection_point("jobq-stats-add");

	/* usually a single job was run: take the mutex only once */
	if (ntimes == 1 && book.n == 1 && times[0].n == 0 &&
		SUBJECT(times[0].place, times[0].generation) ==
		((JobqNote *) jobq_note_number(&book, 0))->subject)
		attempt = &times[0];
	for (int i = 0; i < ntimes && attempt == NULL; i++)
	{
		if (add_time(&times[i], now, false))
			continue;
		LWLockAcquire(jobq_stats->lock, LW_SHARED);
		(void) add_time(&times[i], now, true);
		LWLockRelease(jobq_stats->lock);
	}
	for (int i = 0; i < book.n; i++)
	{
		const JobqStatNote *note = jobq_note_number(&book, i);

		if (add_note(note, attempt, now, false))
			continue;
		LWLockAcquire(jobq_stats->lock, LW_SHARED);
		(void) add_note(note, attempt, now, true);
		LWLockRelease(jobq_stats->lock);
	}
	jobq_notebook_clear(&book);
	ntimes = 0;

	/* a count that began since then misses these changes */
	if (OidIsValid(unnoted_jobs))
	{
		JobqStatBase *base = jobq_stats_my_base(unnoted_jobs);

		unnoted_jobs = InvalidOid;
		if (base != NULL)
			base->recount = true;
	}
	return false;
}

/* Discard the notes since this subtransaction began, or all. */
static void
stats_abort(SubTransactionId since)
{
	const JobqStatNote *note;

	while (ntimes > 0 && times[ntimes - 1].subid >= since)
		ntimes--;
	while ((note = jobq_note_undo(&book, since)) != NULL)
		unpin(note);
	if (since == InvalidSubTransactionId)
		unnoted_jobs = InvalidOid;
}

/* Add a note to the parent's note for the same slot.  Cannot fail. */
static void
merge_notes(void *parent, const void *ended)
{
	JobqStatNote *note = parent;
	const JobqStatNote *more = ended;

	for (int i = 0; i < JOBQ_NCOUNTERS; i++)
		note->counters[i] += more->counters[i];
	for (int i = 0; i < JOBQ_NGAUGES; i++)
		note->gauges[i] += more->gauges[i];
	unpin(more);
}

static void
stats_subcommit(SubTransactionId subid, SubTransactionId parent)
{
	jobq_notebook_subcommit(&book, subid, parent, merge_notes);
}

/* Rows may exist without a note. */
static void
stats_unnoted(JobqDatabase *db)
{
	jobq_stats_unknown(MyDatabaseId);
}

static const JobqCommitBooks books =
{
	.noted = stats_noted,
	.pending = stats_pending,
	.unnoted = stats_unnoted,
	.abort = stats_abort,
	.subcommit = stats_subcommit,
	.give_back = give_back,
};

/* Register the books of this room.  Called once per process. */
void
jobq_stats_install(void)
{
	jobq_commit_join(&books);
}
