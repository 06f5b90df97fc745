/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  The statistics as sets of rows, for the views: outcomes and numbers of jobs, by
 *	  queue, kind and tenant.
 *
 * A user needs the privilege monitor for a queue to see the queue's statistics, because the
 * numbers do not distinguish roles.
 *
 * src/operate/stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xlog.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/timestamp.h"

#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_stat_slots);
PG_FUNCTION_INFO_V1(jobq_stats_history);
PG_FUNCTION_INFO_V1(jobq_stat_series);
PG_FUNCTION_INFO_V1(jobq_reset_stats);
PG_FUNCTION_INFO_V1(jobq_stats_known);

/* Shown as the name of the entry for all names without a slot. */
#define OTHER_NAMES	"(other)"

/*
 * Return the statistics of this database, or NULL if there are none.  NULL also on a standby,
 * where shared memory may hold old numbers of the server that the files were copied from.
 * Takes the lock of the statistics in shared mode.
 */
JobqStatBase *
jobq_stat_base(void)
{
	Oid			jobs = jobq_relations()->job;
	JobqStatBase *base;

	if (jobq_stats == NULL || RecoveryInProgress())
		return NULL;
	LWLockAcquire(jobq_stats->lock, LW_SHARED);
	base = jobq_stats_base(MyDatabaseId, jobs, false, 0);
	LWLockRelease(jobq_stats->lock);
	return base;
}

static void
began(JobqRunning * running, TimestampTz since)
{
	running->since = running->since == 0 ? since : Min(running->since, since);
}

/*
 * Return an array of "all" elements, allocated with palloc: for each name of the statistics
 * the number of jobs that workers run and consumers hold, and the earliest start.  Takes the
 * mutexes of the slots, and db->lock in shared mode.
 */
JobqRunning *
jobq_stat_running(uint32 all)
{
	JobqRunning *running = palloc0(sizeof(JobqRunning) * all);
	JobqDatabase *db = jobq_my_database();

	if (db == NULL)
		return running;
	jobq_foreach_slot(slot, db, JOBQ_SLOTS_ATTACHED)
	{
		JobqRun		run;

		jobq_run_read(slot, &run);
		if (!jobq_run_busy(&run) || run.stat >= all)
			continue;
		running[run.stat].workers++;
		began(&running[run.stat], run.started_at);
	}
	LWLockAcquire(db->lock, LW_SHARED);
	jobq_foreach_lease(lease, db)
	{
		if (lease->state == JOBQ_LEASE_PENDING || lease->stat >= all)
			continue;
		running[lease->stat].consumers++;
		began(&running[lease->stat], db->leases->bundles[lease->bundle].since);
	}
	LWLockRelease(db->lock);
	return running;
}

/*
 * Read the statistics under index "place", advanced to time "now".  False if the entry is
 * free, belongs to another database, or is invisible to the user.
 */
bool
jobq_stat_read_visible(const JobqStatBase *base, uint32 place, TimestampTz now,
					   JobqStatName *name, JobqCounts *counts)
{
	if (!jobq_stats_read(place, name, NULL) || name->dboid != MyDatabaseId ||
		name->jobs != base->jobs ||
		(jobq_privileges(name->queue_id) & JOBQ_MAY_MONITOR) == 0 ||
		!jobq_stats_read(place, name, counts) || name->dboid != MyDatabaseId)
		return false;
	jobq_history_turn(&counts->history, now);
	(void) jobq_calendar_turn(&counts->scheduled, now);
	return true;
}

/* The first columns of several functions. */
enum
{
	QUEUE_ID_,
	QUEUE_ = QUEUE_ID_,			/* in stats_history(), the name */
	KIND,
	TENANT,
	NAMES
};

/*
 * Set the columns with the name of an entry.  An entry for other jobs has "(other)" as kind
 * and tenant.  The entry for all other jobs of the database has no queue either.
 */
static void
put_name(const JobqStatName *name, Datum *values, bool *nulls)
{
	values[QUEUE_ID_] = Int32GetDatum(name->queue_id);
	nulls[QUEUE_ID_] = name->queue_id == 0;
	values[KIND] = CStringGetTextDatum(name->other ? OTHER_NAMES : name->kind);
	values[TENANT] = CStringGetTextDatum(name->other ? OTHER_NAMES : name->tenant);
	nulls[TENANT] = !name->other && name->tenant_length == 0;
}

static Datum
interval_of(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}

/* Number of columns of a JobqTimes. */
#define TIME_COLUMNS	6

/* Three quantiles, the maximum, the sum, and the count. */
static void
put_times(const JobqTimes *times, Datum *values, bool *nulls)
{
	static const double parts[] = {0.5, 0.95, 0.99};
	uint64		n = jobq_times_count(times);

	for (int i = 0; i < 4; i++)
	{
		int64		us = i < 3 ? jobq_times_quantile(times, parts[i]) : times->longest;

		values[i] = interval_of(us);
		nulls[i] = n == 0;
	}
	values[4] = interval_of(times->sum);
	values[5] = Int64GetDatum(n);
}

/* Rates per second over the last 1, 5 and 15 minutes. */
static void
put_rates(const JobqHistory *history, JobqPast what, TimestampTz now, Datum *values)
{
	static const int minutes[] = {1, 5, 15};

	for (int i = 0; i < 3; i++)
		values[i] = Float8GetDatum(jobq_history_rate(history, what, minutes[i], now));
}

/* Numbers that cannot be negative: waiting jobs, blocked jobs and dead letters. */
enum
{
	REST, KEPT_BACK, DEAD,
	NNUMBERS
};

/*
 * Correction for the entries of one queue.  A job may be counted under "other" at arrival, and
 * under its own name at the end.  The number of the name is then too low, and may be negative.
 * The number of "other" is too high by the same amount.
 */
typedef struct Debt
{
	int32		queue_id;		/* hash key */
	int64		n[NNUMBERS];	/* zero or negative */
}			Debt;

/*
 * Add the negative numbers to the correction of the queue.
 */
static void
owe(HTAB *debts, int32 queue_id, const int64 *n)
{
	bool		found;
	Debt	   *debt = hash_search(debts, &queue_id, HASH_ENTER, &found);

	for (int i = 0; i < NNUMBERS; i++)
		debt->n[i] = (found ? debt->n[i] : 0) + Min(n[i], 0);
}

static void
pay(Debt * debt, int64 *n)
{
	for (int i = 0; i < NNUMBERS; i++)
	{
		n[i] += debt->n[i];
		debt->n[i] = 0;
	}
}

/*
 * Apply the corrections.  The entry "other" of a queue is reduced by the corrections of the
 * queue's names.  The entry "other" of the database comes last, and takes the remaining
 * corrections.  A negative number is returned as 0 and becomes a correction.
 */
static void
settle(HTAB *debts, const JobqStatName *name, int64 *n)
{
	bool		owes = false;
	HASH_SEQ_STATUS status;
	Debt	   *debt;

	if (name->other && name->queue_id != 0)
	{
		debt = hash_search(debts, &name->queue_id, HASH_FIND, NULL);
		if (debt != NULL)
			pay(debt, n);
	}
	else if (name->other)
	{
		hash_seq_init(&status, debts);
		while ((debt = hash_seq_search(&status)) != NULL)
			pay(debt, n);
	}
	for (int i = 0; i < NNUMBERS; i++)
		owes |= n[i] < 0;
	if (owes)
		owe(debts, name->other ? 0 : name->queue_id, n);
	for (int i = 0; i < NNUMBERS; i++)
		n[i] = Max(n[i], 0);
}

/*
 * stat_slots(): a row with the statistics of each name, as far as the user may see them.
 */
Datum
jobq_stat_slots(PG_FUNCTION_ARGS)
{
	enum
	{
		LIVE = NAMES, WAITING, SCHEDULED, BLOCKED, RUNNING, HELD, LETTERS, COUNTERS,
		COSTS = COUNTERS + JOBQ_NCOUNTERS, WAITED = COSTS + JOBQ_NCOSTS, RAN = WAITED + TIME_COLUMNS,
		ENQUEUED_RATE = RAN + TIME_COLUMNS, COMPLETED_RATE = ENQUEUED_RATE + 3,
		FAILED_RATE = COMPLETED_RATE + 3, COMPLETED_AT = FAILED_RATE + 3, RUNNING_SINCE,
		SINCE, EXACT, NATTS
	};
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, NATTS);
	JobqStatBase *base = jobq_stat_base();
	JobqCounts *counts = palloc(sizeof(JobqCounts));
	TimestampTz now = jobq_now();
	HASHCTL		ctl = {.keysize = sizeof(int32),.entrysize = sizeof(Debt)};
	HTAB	   *debts;
	uint32	   *others;
	uint32		nothers = 0;
	uint32		all;
	JobqRunning *running;

	if (base == NULL)
		return (Datum) 0;
	all = jobq_stats->nstats + (uint32) jobq_max_databases;
	running = jobq_stat_running(all);
	ctl.hcxt = CurrentMemoryContext;
	debts = hash_create("jobq debts", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	others = palloc(sizeof(uint32) * all);
	for (uint32 i = 0; i < all + nothers; i++)
	{
		uint32		place = i < all ? i : others[i - all];
		JobqStatName name;
		Datum		values[NATTS];
		bool		nulls[NATTS] = {0};
		int64		n[NNUMBERS];

		if (!jobq_stat_read_visible(base, place, now, &name, counts))
			continue;
		if (name.other && i < all)
		{
			others[nothers++] = place;
			continue;
		}
		put_name(&name, values, nulls);
		values[LIVE] = Int64GetDatum(counts->gauges[JOBQ_LIVE]);

		/* a running job is counted as live until its transaction commits */
		n[REST] = counts->gauges[JOBQ_LIVE] - counts->gauges[JOBQ_BLOCKED] -
			running[place].workers - running[place].consumers;
		n[KEPT_BACK] = counts->gauges[JOBQ_BLOCKED];
		n[DEAD] = counts->gauges[JOBQ_LETTERS];
		settle(debts, &name, n);
		values[SCHEDULED] = Int64GetDatum(Min(Max(jobq_calendar_count(&counts->scheduled), 0),
											  n[REST]));
		values[WAITING] = Int64GetDatum(n[REST] - DatumGetInt64(values[SCHEDULED]));
		values[BLOCKED] = Int64GetDatum(n[KEPT_BACK]);
		values[RUNNING] = Int64GetDatum(running[place].workers);
		values[HELD] = Int64GetDatum(running[place].consumers);
		values[LETTERS] = Int64GetDatum(n[DEAD]);
		for (int j = 0; j < JOBQ_NCOUNTERS; j++)
			values[COUNTERS + j] = Int64GetDatum(counts->counters[j]);
		for (int j = 0; j < JOBQ_NCOSTS; j++)
			values[COSTS + j] = j == JOBQ_COST_CPU ? interval_of(counts->costs.n[j])
				: Int64GetDatum(counts->costs.n[j]);
		put_times(&counts->waited, &values[WAITED], &nulls[WAITED]);
		put_times(&counts->ran, &values[RAN], &nulls[RAN]);
		put_rates(&counts->history, JOBQ_PAST_ENQUEUED, now, &values[ENQUEUED_RATE]);
		put_rates(&counts->history, JOBQ_PAST_COMPLETED, now, &values[COMPLETED_RATE]);
		put_rates(&counts->history, JOBQ_PAST_FAILED, now, &values[FAILED_RATE]);
		values[COMPLETED_AT] = TimestampTzGetDatum(counts->completed_at);
		nulls[COMPLETED_AT] = counts->completed_at == 0;
		values[RUNNING_SINCE] = TimestampTzGetDatum(running[place].since);
		nulls[RUNNING_SINCE] = running[place].since == 0;
		values[SINCE] = TimestampTzGetDatum(counts->since);
		values[EXACT] = BoolGetDatum(jobq_stats_exact(base));
		if (name.other && running[place].workers == 0 && counts->gauges[JOBQ_LIVE] == 0 &&
			counts->gauges[JOBQ_LETTERS] == 0 &&
			counts->counters[JOBQ_N_ENQUEUED] == 0 && counts->counters[JOBQ_N_STARTED] == 0)
			continue;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* Columns of a time slot in stats_history() and stat_series(). */
enum
{
	PAST,
	PAST_WAITED = PAST + JOBQ_NPAST,
	PAST_RAN = PAST_WAITED + 3,
	PAST_NATTS = PAST_RAN + 3,
	STEP = NAMES,
	SLOT,
	HISTORY_PAST,
	HISTORY_NATTS = HISTORY_PAST + PAST_NATTS
};

/* The maximum, the sum, and the count. */
static void
put_past_times(const JobqPastTimes *times, Datum *values, bool *nulls)
{
	values[0] = interval_of((int64) times->longest * 1000);
	nulls[0] = times->n == 0;
	values[1] = interval_of(times->sum);
	values[2] = Int64GetDatum((int64) times->n);
}

static void
put_past(const JobqPastSlot *slot, Datum *values, bool *nulls)
{
	for (int i = 0; i < JOBQ_NPAST; i++)
		values[PAST + i] = Int64GetDatum((int64) slot->n[i]);
	put_past_times(&slot->waited, &values[PAST_WAITED], &nulls[PAST_WAITED]);
	put_past_times(&slot->ran, &values[PAST_RAN], &nulls[PAST_RAN]);
}

/* Number of time slots kept, for slots with a length of this many minutes. */
static int
slots_of(int minutes)
{
	return minutes == 1 ? JOBQ_MINUTES : minutes == 60 ? JOBQ_HOURS : JOBQ_DAYS;
}

/*
 * Return the events of one time slot.  minutes: length of the slot.  back: how many slots
 * before the current slot.
 */
static JobqPastSlot
past_slot(const JobqHistory *history, int minutes, int back)
{
	int64		number = history->minute / minutes - back;
	JobqPastSlot slot = {0};

	if (number < 0)
		return slot;
	if (minutes == 1)
		return history->minutes[number % JOBQ_MINUTES];
	slot = minutes == 60 ? history->hours[number % JOBQ_HOURS]
		: history->days[number % JOBQ_DAYS];
	if (back == 0)
		jobq_past_slot_merge(&slot, &history->minutes[history->minute % JOBQ_MINUTES]);
	return slot;
}

/* The steps of stats_history(), and the length of their time slots. */
static const struct
{
	const char *name;
	int			minutes;
}			past_steps[] = {
	{"minute", 1}, {"hour", 60}, {"day", 24 * 60}
};

/*
 * Add a row for each nonempty time slot of this length.
 */
static void
put_slots(ReturnSetInfo *rsinfo, Datum *values, bool *nulls, const char *step,
		  int minutes, const JobqHistory *history)
{
	for (int i = slots_of(minutes) - 1; i >= 0; i--)
	{
		JobqPastSlot slot = past_slot(history, minutes, i);
		bool		any = slot.waited.n != 0 || slot.ran.n != 0;

		for (int j = 0; j < JOBQ_NPAST; j++)
			any |= slot.n[j] != 0;
		if (!any)
			continue;
		put_past(&slot, &values[HISTORY_PAST], &nulls[HISTORY_PAST]);
		values[STEP] = CStringGetTextDatum(step);
		values[SLOT] = TimestampTzGetDatum((history->minute / minutes - i) *
										   minutes * USECS_PER_MINUTE);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
}

/* Return the number of the step in past_steps, or -1 if the argument is null: all steps. */
static int
past_step(FunctionCallInfo fcinfo, int arg)
{
	char	   *step;

	if (PG_ARGISNULL(arg))
		return -1;
	step = text_to_cstring(PG_GETARG_TEXT_PP(arg));
	for (int i = 0; i < (int) lengthof(past_steps); i++)
		if (strcmp(step, past_steps[i].name) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid step \"%s\"", step),
			 errhint("It is minute, hour or day.")));
}

/*
 * Return the name of the queue, as the view stats shows it, or NULL if the queue does not
 * exist: a dropped queue, or a queue whose creation was rolled back.
 */
static const char *
past_queue(const JobqStatName *name, JobqQueue *queue)
{
	if (name->queue_id == 0)
		return OTHER_NAMES;
	return jobq_queue_by_id(name->queue_id, queue) == NULL ? NULL : queue->name;
}

/*
 * stats_history(queue, kind, step): a row for each nonempty time slot of each name visible to
 * the user.  A null argument: all queues, kinds, or steps.
 */
Datum
jobq_stats_history(PG_FUNCTION_ARGS)
{
	Datum		values[HISTORY_NATTS];
	bool		nulls[HISTORY_NATTS] = {0};
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, HISTORY_NATTS);
	const char *queue = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));
	const char *kind = PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1));
	int			step = past_step(fcinfo, 2);
	JobqStatBase *base = jobq_stat_base();
	JobqCounts *counts = palloc(sizeof(JobqCounts));
	TimestampTz now = jobq_now();

	if (base == NULL)
		return (Datum) 0;
	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases;
		 place++)
	{
		JobqStatName name;
		JobqQueue	buffer;
		const char *shown;

		if (!jobq_stat_read_visible(base, place, now, &name, counts))
			continue;
		shown = past_queue(&name, &buffer);
		if (shown == NULL || (queue != NULL && strcmp(queue, shown) != 0) ||
			(kind != NULL && strcmp(kind, name.other ? OTHER_NAMES : name.kind) != 0))
			continue;
		put_name(&name, values, nulls);
		values[QUEUE_] = CStringGetTextDatum(shown);
		nulls[QUEUE_] = false;
		for (int i = 0; i < (int) lengthof(past_steps); i++)
			if (step < 0 || step == i)
				put_slots(rsinfo, values, nulls, past_steps[i].name,
						  past_steps[i].minutes, &counts->history);
	}
	return (Datum) 0;
}

/*
 * stat_series(step, queue, kind): sums over all names, or over a queue or a kind, for each of
 * the last minutes (step "minute") or hours (any other step).  No row if the user may not see
 * the statistics of any queue.
 */
Datum
jobq_stat_series(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = jobq_materialize(fcinfo, 1 + PAST_NATTS);
	const char *step = PG_ARGISNULL(0) ? "" : text_to_cstring(PG_GETARG_TEXT_PP(0));
	int			minutes = strcmp(step, "minute") == 0 ? 1 : 60;
	char	   *queue = PG_ARGISNULL(1) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(1));
	const char *kind = PG_ARGISNULL(2) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(2));
	JobqStatBase *base = jobq_stat_base();
	JobqCounts *counts = palloc(sizeof(JobqCounts));
	JobqPastSlot sums[JOBQ_MINUTES] = {0};
	JobqQueue	found = {0};
	TimestampTz now = jobq_now();
	int			n = slots_of(minutes);
	bool		sees = false;

	if (base == NULL)
		return (Datum) 0;
	if (queue != NULL)
		(void) jobq_queue_by_name(queue, false, &found);
	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases;
		 place++)
	{
		JobqStatName name;

		if (!jobq_stat_read_visible(base, place, now, &name, counts))
			continue;
		sees = true;
		if ((queue != NULL && (found.id == 0 || found.id != name.queue_id)) ||
			(kind != NULL && (name.other || strcmp(kind, name.kind) != 0)))
			continue;
		for (int i = 0; i < n; i++)
		{
			JobqPastSlot slot = past_slot(&counts->history, minutes, i);

			jobq_past_slot_merge(&sums[i], &slot);
		}
	}
	for (int i = n - 1; i >= 0 && sees; i--)
	{
		Datum		values[1 + PAST_NATTS];
		bool		nulls[1 + PAST_NATTS] = {0};

		values[0] = TimestampTzGetDatum((now / USECS_PER_MINUTE / minutes - i) *
										minutes * USECS_PER_MINUTE);
		put_past(&sums[i], &values[1], &nulls[1]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * reset_stats(queue): reset the counters of the queue, or of all queues if the argument is
 * null.  ERROR without the privilege operate, and on a standby.
 */
Datum
jobq_reset_stats(PG_FUNCTION_ARGS)
{
	JobqStatBase *base = jobq_stat_base();
	int32		queue_id = 0;

	PreventCommandDuringRecovery("jobq.reset_stats()");
	if (PG_ARGISNULL(0))
		jobq_require_all(JOBQ_MAY_OPERATE, "reset the statistics of all queues");
	else
	{
		char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));

		queue_id = jobq_existing_queue(name);
		jobq_require_queue(queue_id, name, JOBQ_MAY_OPERATE);
	}
	if (base != NULL)
		jobq_stats_clear(MyDatabaseId, jobq_relations()->job, queue_id, jobq_now());
	PG_RETURN_VOID();
}

/*
 * stats_known(): true if the numbers of jobs are exact; false while jobs are being counted.
 */
Datum
jobq_stats_known(PG_FUNCTION_ARGS)
{
	JobqStatBase *base = jobq_stat_base();

	PG_RETURN_BOOL(base != NULL && jobq_stats_exact(base));
}
