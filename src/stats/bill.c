/*-------------------------------------------------------------------------
 *
 * bill.c
 *	  Cost of runs of jobs: processor time, buffers, WAL and temporary files, from the
 *	  counters of the process.
 *
 * All usage of the process from the begin of a run is charged to the name of its job, until
 * the next run begins or the process rests.  The charge therefore includes the commit, the
 * record of a failed attempt, and the search for the next job.  The cost is spent whether the
 * run commits or not, so the cost is not part of the notes of a transaction.
 *
 * The counters of the server are variables of this process.  The processor time needs a system
 * call, which takes a microsecond or more.  For short consecutive jobs of the same name, a
 * single call covers several jobs.
 *
 * src/stats/bill.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <sys/resource.h>

#include "executor/instrument.h"
#include "utils/timestamp.h"

#include "stats/stats.h"

/* Runs that begin within this time of each other share a reading, in microseconds. */
#define TOGETHER	500

/*
 * A backend has a single thread.  Reading the time of the thread needs no lock in the kernel.
 */
#ifdef RUSAGE_THREAD
#define WHO			RUSAGE_THREAD
#else
#define WHO			RUSAGE_SELF
#endif

static JobqBillRun run = {.place = JOBQ_NONE};

/* Return the processor time used by this process so far, in microseconds; 0 if unknown. */
int64
jobq_processor_time(void)
{
	struct rusage usage;

	if (getrusage(WHO, &usage) != 0)
		return 0;
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * USECS_PER_SEC +
		usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/* Read the usage of this process so far.  cpu: processor time in microseconds. */
static void
read_counters(JobqBill *bill, int64 cpu)
{
	const BufferUsage *buffers = &pgBufferUsage;

	bill->n[JOBQ_COST_CPU] = cpu;
	bill->n[JOBQ_COST_READ] = buffers->shared_blks_read + buffers->local_blks_read;
	bill->n[JOBQ_COST_BUFFERS] = bill->n[JOBQ_COST_READ] +
		buffers->shared_blks_hit + buffers->local_blks_hit;
	bill->n[JOBQ_COST_WAL] = (int64) pgWalUsage.wal_bytes;
	bill->n[JOBQ_COST_TEMP] = buffers->temp_blks_written * BLCKSZ;
}

/*
 * Charge the usage since the last charge, up to these counters.  If the name has lost its slot
 * because its queue was dropped, the usage is discarded.
 */
static void
put_down(const JobqBill *counters)
{
	JobqStat   *stat;

	if (run.place == JOBQ_NONE)
		return;
	stat = &jobq_stats->stats[run.place];
	SpinLockAcquire(&stat->mutex);
	if (stat->in_use && stat->generation == run.generation)
	{
		for (int i = 0; i < JOBQ_NCOSTS; i++)
			stat->counts.costs.n[i] += counters->n[i] - run.billed.n[i];
		stat->used_at = Max(stat->used_at, jobq_last_now);
	}
	SpinLockRelease(&stat->mutex);
}

/*
 * A run of the job begins.  place: slot of the job's name, or JOBQ_NONE.  Acquires the mutexes
 * of two slots in sequence.  Cannot fail.
 */
void
jobq_bill_begin(int64 job_id, uint32 place, TimestampTz now)
{
	JobqBill	counters;

	if (!JOBQ_STATISTICS)
		return;
	run.job_id = job_id;
	run.divided = false;
	if (place != JOBQ_NONE && place == run.place &&
		jobq_stats->stats[place].generation == run.generation &&
		now >= run.at && now < run.at + TOGETHER)
	{
		read_counters(&run.began, run.billed.n[JOBQ_COST_CPU]);
		return;
	}
	read_counters(&counters, jobq_processor_time());
	put_down(&counters);
	run.place = place;
	if (place != JOBQ_NONE)
		run.generation = jobq_stats->stats[place].generation;
	run.at = now;
	run.began = run.billed = counters;
}

/*
 * The process is going to rest: charge the usage of its last run.  Acquires the mutex of a
 * slot.
 */
void
jobq_bill_rest(void)
{
	JobqBill	counters;

	if (run.place == JOBQ_NONE)
		return;
	read_counters(&counters, jobq_processor_time());
	put_down(&counters);
	run.place = JOBQ_NONE;
}

/*
 * Like jobq_bill_begin(), possibly within a run of another job.  The caller passes *outer to
 * jobq_bill_leave() at the end.
 */
void
jobq_bill_enter(int64 job_id, uint32 place, TimestampTz now, JobqBillRun *outer)
{
	*outer = run;
	jobq_bill_begin(job_id, place, now);
}

/*
 * End a run within another run.  The inner run's usage is part of the outer run's bill, but is
 * not charged to the outer name.
 */
void
jobq_bill_leave(const JobqBillRun *outer)
{
	JobqBill	counters;

	read_counters(&counters, jobq_processor_time());
	put_down(&counters);
	run = *outer;
	run.billed = counters;
}

/*
 * The handler of several jobs has returned: from now on, each job has cost an equal part of
 * the usage so far.  Until the next run begins, the process only ends these jobs.
 */
void
jobq_bill_divide(int njobs)
{
	if (!jobq_bill_spent(run.job_id, &run.part))
		return;
	for (int i = 0; i < JOBQ_NCOSTS; i++)
		run.part.n[i] /= njobs;
	run.divided = true;
}

/* Get the usage of the run of this job so far.  False if the job does not run here. */
bool
jobq_bill_spent(int64 job_id, JobqBill *spent)
{
	if (run.divided)
	{
		*spent = run.part;
		return true;
	}
	if (job_id == 0 || run.job_id != job_id)
		return false;
	read_counters(spent, jobq_processor_time());
	for (int i = 0; i < JOBQ_NCOSTS; i++)
		spent->n[i] -= run.began.n[i];
	return true;
}
