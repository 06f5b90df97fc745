/*-------------------------------------------------------------------------
 *
 * note.c
 *	  What this transaction does to jobs, noted until it commits.
 *
 * A note is for a place, which it pins, so that nobody else gets that before the end
 * of the transaction.  Places that this backend has found are kept in a small cache;
 * whether one is still that name's is seen by its hash and its generation, under its
 * mutex.
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
 * How long an attempt has waited and run, -1 if that is not known; or jobs that have
 * come for a later time, or that are not there any more.
 */
typedef struct NotedTime
{
	SubTransactionId subid;
	uint32		place;
	uint32		generation;
	int32		n;				/* jobs; 0: it is an attempt */
	int64		waited;			/* or the time for which they are */
	int64		ran;			/* or how far away that was */
} NotedTime;

static JobqStatNote *notes = NULL;	/* kept from one transaction to the next */
static int	nnotes = 0;
static int	max_notes = 0;
static NotedTime *times = NULL;
static int	ntimes = 0;
static int	max_times = 0;

/* The last note for each place; it may be outdated. */
static int *note_of = NULL;

/* whose jobs the notes are about */
static const JobqStatBase *noted_base = NULL;

/* something was not noted, as nobody counted this database's jobs then */
static Oid	unnoted_jobs = InvalidOid;

/* Places that were found. */
#define NCACHED		256
#define OTHER_KEPT	(10 * USECS_PER_SEC)
typedef struct CachedPlace
{
	uint64		hash;			/* of the name */
	uint32		place;
	uint32		generation;
	TimestampTz other_until;	/* it is that of others, until then; or 0 */
} CachedPlace;

static CachedPlace *cache = NULL;

/* The last name that was looked up, if it is short: a job's is asked for several times. */
#define LAST_LENGTH		64
typedef struct LastName
{
	Oid			dboid;
	Oid			jobs;
	int32		queue_id;
	int			kind_length;	/* -1: of the others of the queue */
	int			tenant_length;
	char		kind[LAST_LENGTH];
	char		tenant[LAST_LENGTH];
	uint64		hash;
} LastName;

static LastName last;

/*
 * The database of this session, if its jobs are counted.
 */
static JobqStatBase *
my_base(Oid jobs)
{
	static JobqStatBase *mine = NULL;

	if (jobq_stats == NULL)
		return NULL;
	if (mine != NULL && mine->dboid == MyDatabaseId && mine->jobs == jobs)
		return mine;
	LWLockAcquire(jobq_stats->lock, LW_SHARED);
	mine = jobq_stats_base(MyDatabaseId, jobs, false, 0);
	LWLockRelease(jobq_stats->lock);
	return mine;
}

/*
 * Pin the place if it is still the same one; or if "any", as long as it is one of this
 * database's; whose generation it is then.
 */
static bool
pin(uint32 place, uint32 *generation, bool any)
{
	JobqStat   *stat = &jobq_stats->stats[place];
	bool		same;

	SpinLockAcquire(&stat->mutex);
	/* a test has a session killed here */
	jobq_injection_point("jobq-stats-pin");
	same = stat->in_use && (any ? stat->name.dboid == MyDatabaseId
							: stat->generation == *generation);
	if (same)
		stat->pins++;
	*generation = stat->generation;
	SpinLockRelease(&stat->mutex);
	return same;
}

/*
 * jobq_stats_hash() of a name.
 */
static uint64
hash_of(const JobqStatBase *base, int32 queue_id, const char *kind, int kind_length,
		const char *tenant, int tenant_length)
{
	uint64		hash;

	if (last.jobs == base->jobs && last.dboid == base->dboid &&
		last.queue_id == queue_id && last.kind_length == kind_length &&
		last.tenant_length == tenant_length &&
		memcmp(last.kind, kind, Max(kind_length, 0)) == 0 &&
		memcmp(last.tenant, tenant, tenant_length) == 0)
		return last.hash;

	hash = jobq_stats_hash(base, queue_id, kind, kind_length, tenant, tenant_length);
	if (kind_length > LAST_LENGTH || tenant_length > LAST_LENGTH)
		return hash;
	last.dboid = base->dboid;
	last.jobs = base->jobs;
	last.queue_id = queue_id;
	last.kind_length = kind_length;
	last.tenant_length = tenant_length;
	memcpy(last.kind, kind, Max(kind_length, 0));
	memcpy(last.tenant, tenant, tenant_length);
	last.hash = hash;
	return hash;
}

/*
 * The place of a name, found in the cache or in shared memory, and its generation;
 * JOBQ_NONE if this database's jobs have ceased to be counted.
 */
static uint32
look_up(const JobqStatBase *base, int32 queue_id, Oid role,
		const char *kind, int kind_length, const char *tenant, int tenant_length,
		uint32 *generation)
{
	uint64		hash = hash_of(base, queue_id, kind, kind_length, tenant,
							   tenant_length);
	CachedPlace *cached;
	const JobqStat *stat;
	bool		is_other;

	if (cache == NULL)
		cache = MemoryContextAllocZero(TopMemoryContext,
									   sizeof(CachedPlace) * NCACHED);
	cached = &cache[hash % NCACHED];
	stat = &jobq_stats->stats[cached->place];

	/* the clock may have been put back */
	if (cached->hash != hash || stat->generation != cached->generation ||
		(cached->other_until == 0 ? stat->hash != hash
		 : jobq_last_now >= cached->other_until ||
		 jobq_last_now < cached->other_until - OTHER_KEPT))
	{
		cached->hash = 0;
		cached->place = jobq_stats_find(base, queue_id, role, kind, kind_length,
										tenant, tenant_length, hash,
										jobq_last_now, &cached->generation,
										&is_other);
		if (cached->place == JOBQ_NONE)
		{
			cached->place = 0;
			return JOBQ_NONE;
		}
		cached->other_until = is_other ? jobq_last_now + OTHER_KEPT : 0;
		cached->hash = hash;
	}
	*generation = cached->generation;
	return cached->place;
}

/*
 * The place of a name, for somebody who just wants to know, and in *at for
 * jobq_stats_note_at(); JOBQ_NONE if nobody counts.
 */
uint32
jobq_stats_place(Oid jobs, int32 queue_id, Oid role, const char *kind,
				 int kind_length, const char *tenant, int tenant_length,
				 JobqStatAt *at)
{
	const JobqStatBase *base = my_base(jobs);

	if (!JOBQ_STATISTICS || base == NULL)
		return JOBQ_NONE;
	at->place = look_up(base, queue_id, role, kind, kind_length, tenant, tenant_length,
						&at->generation);
	at->base = at->place == JOBQ_NONE ? NULL : base;
	return at->place;
}

/*
 * The note of this subtransaction for the place, if it has one.
 */
static JobqStatNote *
find_note(uint32 place, uint32 generation, SubTransactionId subid)
{
	JobqStatNote *note;

	if (note_of == NULL || note_of[place] >= nnotes)
		return NULL;
	note = &notes[note_of[place]];
	return note->place == place && note->generation == generation &&
		note->subid == subid ? note : NULL;
}

/*
 * Another one; the place has been pinned.
 */
static JobqStatNote *
new_note(uint32 place, uint32 generation, SubTransactionId subid)
{
	JobqStatNote *note = &notes[nnotes];

	note_of[place] = nnotes++;
	memset(note, 0, sizeof(JobqStatNote));
	note->subid = subid;
	note->place = place;
	note->generation = generation;
	return note;
}

/*
 * Have room for one more.
 */
static void
note_room(void)
{
	if (note_of == NULL)
		note_of = MemoryContextAllocZero(TopMemoryContext,
										 sizeof(int) * (jobq_max_stats + jobq_max_databases));
	notes = jobq_grow(notes, &max_notes, nnotes + 1, sizeof(JobqStatNote));
}

/*
 * As jobq_stats_note(), for a place that was found before; NULL if that is another
 * name's by now.
 */
JobqStatNote *
jobq_stats_note_at(const JobqStatAt *at)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	uint32		generation = at->generation;
	JobqStatNote *note = find_note(at->place, generation, subid);

	if (note != NULL)
		return note;
	note_room();
	if (!pin(at->place, &generation, false))
		return NULL;
	noted_base = at->base;
	return new_note(at->place, generation, subid);
}

/*
 * What this subtransaction has done to jobs of the name so far, to be added to; or
 * NULL if nobody counts.  It may move when the next one is asked for.  *at is set as by
 * jobq_stats_place().
 */
JobqStatNote *
jobq_stats_note(Oid jobs, int32 queue_id, Oid role, const char *kind,
				int kind_length, const char *tenant, int tenant_length,
				JobqStatAt *at)
{
	const JobqStatBase *base = my_base(jobs);
	SubTransactionId subid = GetCurrentSubTransactionId();
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
	note_room();
	for (int tries = 0; !pinned && tries < 3; tries++)
	{
		place = look_up(base, queue_id, role, kind, kind_length, tenant,
						tenant_length, &generation);
		if (place == JOBQ_NONE)
			break;
		note = find_note(place, generation, subid);
		if (note != NULL)
			break;
		pinned = pin(place, &generation, false);
	}
	if (note == NULL && !pinned)
	{
		place = jobq_stats_of_base(base);
		if (!pin(place, &generation, true))
		{
			/* the extension was dropped, or others are counted in its stead */
			unnoted_jobs = jobs;
			return NULL;
		}
	}
	at->base = base;
	at->place = place;
	at->generation = generation;
	return note != NULL ? note : new_note(place, generation, subid);
}

static void
note_time(const JobqStatNote *note, int32 n, int64 waited, int64 ran)
{
	NotedTime  *time;

	times = jobq_grow(times, &max_times, ntimes + 1, sizeof(NotedTime));
	time = &times[ntimes++];
	time->subid = note->subid;
	time->place = note->place;
	time->generation = note->generation;
	time->n = n;
	time->waited = waited;
	time->ran = ran;
}

/*
 * An attempt has waited and run for so many microseconds; -1: that is not known.
 */
void
jobq_stats_note_times(const JobqStatNote *note, int64 waited, int64 ran)
{
	note_time(note, 0, waited, ran);
}

/*
 * So many jobs have come that wait for this time, which was so many microseconds away
 * when they were written; or if n is negative, have gone.
 */
void
jobq_stats_note_run_at(const JobqStatNote *note, TimestampTz run_at, int64 away,
					   int32 n)
{
	NotedTime  *last = ntimes > 0 ? &times[ntimes - 1] : NULL;

	if (last != NULL && last->n != 0 && last->waited == run_at && last->ran == away &&
		last->place == note->place && last->generation == note->generation &&
		last->subid == note->subid && (last->n > 0) == (n > 0) &&
		last->n < PG_INT32_MAX / 2)
		last->n += n;
	else
		note_time(note, n, run_at, away);
}

/*
 * What a counting that has begun, and may have ended since, means for what this
 * transaction has done.
 */
typedef struct CountingSaw
{
	bool		wait;			/* the lock is needed to know */
	bool		gauge;			/* it counts in the gauge as it is */
	bool		since;			/* it is missing in what is being counted */
}			CountingSaw;

/*
 * The place's mutex is held, and the lock if "locked".
 *
 * While its mark is not set, nobody changes what the base knows of the last snapshot;
 * and while the lock is held, neither.  If that has seen this transaction, although
 * its notes come only now, the gauge that was counted knows them already.
 */
static CountingSaw
counting_saw(const JobqStat *stat, bool locked)
{
	CountingSaw saw = {.gauge = true};
	bool		missed;

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
 * How long an attempt has waited and run; its history has been turned to now.  The
 * place's mutex is held.
 */
static void
add_attempt(JobqCounts *counts, const NotedTime *time)
{
	JobqPastSlot *slot = jobq_history_slot(&counts->history);

	if (time->waited >= 0)
	{
		jobq_times_add(&counts->waited, time->waited);
		jobq_past_times_add(&slot->waited, time->waited);
	}
	if (time->ran >= 0)
	{
		jobq_times_add(&counts->ran, time->ran);
		jobq_past_times_add(&slot->ran, time->ran);
	}
}

/*
 * The place of a note is another one's by now, so the note is done with: its queue was
 * dropped, or its database was not served for some time, and may have other places, for
 * which its jobs were counted without it.
 */
static bool
counted_elsewhere(void)
{
	jobq_stats_unknown(MyDatabaseId);
	return true;
}

/*
 * Add a note to its place, with an attempt there or NULL, and let go of that.  locked:
 * the lock is held; false if it must be, as the gauges are being counted.
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
 * The same of a time.  What the counting has seen it enters into the calendar itself.
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

/*
 * Keep no more room than most transactions need.
 */
static void
give_back(void)
{
	Assert(nnotes == 0 && ntimes == 0);
	notes = jobq_give_back(notes, &max_notes);
	times = jobq_give_back(times, &max_times);
}

static bool
stats_noted(void)
{
	return nnotes > 0 || OidIsValid(unnoted_jobs);
}

/*
 * The transaction has committed: add what was noted.  Nothing is left for the time
 * under db->lock.
 */
static bool
stats_pending(JobqDatabase *db)
{
	TimestampTz now = jobq_now();
	const NotedTime *attempt = NULL;

	jobq_injection_point("jobq-stats-add");

	/* one job was run, as a rule: its mutex is taken once */
	if (ntimes == 1 && nnotes == 1 && times[0].n == 0 &&
		times[0].place == notes[0].place &&
		times[0].generation == notes[0].generation)
		attempt = &times[0];
	for (int i = 0; i < ntimes && attempt == NULL; i++)
	{
		if (add_time(&times[i], now, false))
			continue;
		LWLockAcquire(jobq_stats->lock, LW_SHARED);
		(void) add_time(&times[i], now, true);
		LWLockRelease(jobq_stats->lock);
	}
	for (int i = 0; i < nnotes; i++)
	{
		if (add_note(&notes[i], attempt, now, false))
			continue;
		LWLockAcquire(jobq_stats->lock, LW_SHARED);
		(void) add_note(&notes[i], attempt, now, true);
		LWLockRelease(jobq_stats->lock);
	}
	nnotes = ntimes = 0;

	/* if somebody counts since, that was without us */
	if (OidIsValid(unnoted_jobs))
	{
		JobqStatBase *base = my_base(unnoted_jobs);

		unnoted_jobs = InvalidOid;
		if (base != NULL)
			base->recount = true;
	}
	return false;
}

/*
 * Forget what was noted since this subtransaction began, or at all.
 */
static void
stats_abort(SubTransactionId since)
{
	while (ntimes > 0 && times[ntimes - 1].subid >= since)
		ntimes--;
	while (nnotes > 0 && notes[nnotes - 1].subid >= since)
	{
		JobqStatNote *note = &notes[--nnotes];
		JobqStat   *stat = &jobq_stats->stats[note->place];

		SpinLockAcquire(&stat->mutex);
		if (stat->generation == note->generation)
			stat->pins--;
		SpinLockRelease(&stat->mutex);
	}
	if (since == InvalidSubTransactionId)
		unnoted_jobs = InvalidOid;
}

/*
 * Rows may have come of which nothing was noted.
 */
static void
stats_unnoted(JobqDatabase *db)
{
	jobq_stats_unknown(MyDatabaseId);
}

/* Nothing is carried out under db->lock. */
static void
stats_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
}

static const JobqCommitBooks books =
{
	.noted = stats_noted,
	.pending = stats_pending,
	.commit = stats_commit,
	.unnoted = stats_unnoted,
	.abort = stats_abort,
	.give_back = give_back,
};

/*
 * Keep books of this transaction; once per process.
 */
void
jobq_stats_install(void)
{
	jobq_commit_join(&books);
}
