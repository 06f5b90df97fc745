/*-------------------------------------------------------------------------
 *
 * bill.c
 *	  What runs of jobs cost: processor time, buffers, WAL and temporary files, as the
 *	  process counts them anyway.
 *
 * From when a run begins, all that the process uses is put down to the name of its
 * job, until the next run begins or the process rests: so the commit, the record of
 * an attempt that has failed, and the search for the next job are paid for, too.  What
 * a run has used is used, whether it commits or not; so this is no part of what a
 * transaction has noted.
 *
 * The counters of the server are variables of this process.  To read the processor time
 * is a call of the system, which takes a microsecond or more: where short jobs of the
 * same name follow each other, it is done for some of them together.
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

/* Runs that follow each other within so many microseconds are read together. */
#define TOGETHER	500

/* A backend has one thread; to read its time needs no lock in the system. */
#ifdef RUSAGE_THREAD
#define WHO			RUSAGE_THREAD
#else
#define WHO			RUSAGE_SELF
#endif

static JobqBillRun run = {.place = JOBQ_NONE};

/*
 * How many microseconds of processor time this process has used so far.
 */
int64
jobq_processor_time(void)
{
	struct rusage usage;

	if (getrusage(WHO, &usage) != 0)
		return 0;
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * USECS_PER_SEC +
		usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/*
 * What this process has used so far.
 */
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
 * Put down what was used since the last time, up to these counters.  What belongs to
 * a name that has no place any more, as its queue was dropped, is forgotten.
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
 * A run of the job begins, whose name has this place, or JOBQ_NONE.  Takes the mutexes
 * of two places, one after the other; cannot fail.
 */
void
jobq_bill_begin(int64 job_id, uint32 place, TimestampTz now)
{
	JobqBill	counters;

	if (!JOBQ_STATISTICS)
		return;
	run.job_id = job_id;
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
 * The process is going to rest: put down what its last run has used.
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
 * As jobq_bill_begin(), within what may be a run of another job: *outer is what is to be
 * given to jobq_bill_leave() at the end.
 */
void
jobq_bill_enter(int64 job_id, uint32 place, TimestampTz now, JobqBillRun *outer)
{
	*outer = run;
	jobq_bill_begin(job_id, place, now);
}

/*
 * The run within another one is over.  What it has used stands in the other's bill,
 * too, but not with its name.
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
 * What the run of this job has used so far; false if it does not run here.
 */
bool
jobq_bill_spent(int64 job_id, JobqBill *spent)
{
	if (job_id == 0 || run.job_id != job_id)
		return false;
	read_counters(spent, jobq_processor_time());
	for (int i = 0; i < JOBQ_NCOSTS; i++)
		spent->n[i] -= run.began.n[i];
	return true;
}
