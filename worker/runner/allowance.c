/*-------------------------------------------------------------------------
 *
 * allowance.c
 *	  Limits on the memory, temporary files and WAL of a run: max_memory, max_temp and
 *	  max_wal of its kind.
 *
 * The server has no hook that is called regularly while a handler runs.  For a kind with
 * limits, a timer therefore compares the counters of this process with the limits every
 * LOOK_PAUSE milliseconds.  If a limit is exceeded, the timer cancels the handler.  After the
 * handler has returned, the counters are compared once more.  A run above a limit therefore
 * never commits, however short.  The exception is memory that the run has freed by then.
 *
 * Memory is the private memory of the process as reported by the operating system, minus the
 * private memory at the start of the run.  Memory left behind by earlier jobs therefore does
 * not count.  A worker with a run above max_memory exits, which frees the memory.
 *
 * worker/runner/allowance.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "executor/instrument.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

/* Pause between two checks, in milliseconds. */
#define LOOK_PAUSE	10

#define HINT	"Let the job do less at a time, or register its kind with a higher limit."

static TimeoutId timer = MAX_TIMEOUTS;	/* MAX_TIMEOUTS: not registered yet */
static bool ticks = false;		/* the timer runs */
static int64 most[JOBQ_NALLOWANCES];	/* in bytes; 0: no limit */
static int64 began[JOBQ_NALLOWANCES];	/* usage when the run began */

/* set in a signal handler */
static volatile sig_atomic_t over = -1; /* the exceeded limit, or -1 */
static volatile int64 taken = 0;	/* usage at this time */

/*
 * Return the private memory of this process in bytes.  On systems without this figure, return
 * the peak memory including used shared memory.  May be called in a signal handler.
 */
static int64
private_memory(void)
{
	static int	file = -1;
	struct rusage usage;

#ifdef __linux__
	char		line[128];
	ssize_t		length;

	if (file < 0)
		file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	length = file < 0 ? -1 : pread(file, line, sizeof(line) - 1, 0);
	if (length > 0)
	{
		int64		pages[3] = {0}; /* total, resident, and shared */
		int			n = 0;

		for (ssize_t i = 0; i < length && n < 3; i++)
			if (line[i] >= '0' && line[i] <= '9')
				pages[n] = pages[n] * 10 + (line[i] - '0');
			else
				n++;
		return (pages[1] - pages[2]) * sysconf(_SC_PAGESIZE);
	}
#endif
	return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64) usage.ru_maxrss * 1024 : 0;
}

static int64
used(JobqAllowance what)
{
	switch (what)
	{
		case JOBQ_ALLOWANCE_MEMORY:
			return private_memory();
		case JOBQ_ALLOWANCE_TEMP:
			return pgBufferUsage.temp_blks_written * BLCKSZ;
		case JOBQ_ALLOWANCE_WAL:
			return (int64) pgWalUsage.wal_bytes;
		case JOBQ_NALLOWANCES:
			break;
	}
	return 0;
}

/* Record the first limit that is exceeded. */
static void
look(void)
{
	for (int i = 0; i < JOBQ_NALLOWANCES && over < 0; i++)
	{
		int64		n;

		if (most[i] == 0)
			continue;
		n = used(i) - began[i];
		if (n > most[i])
		{
			taken = n;
			over = i;
		}
	}
}

/*
 * Handler of the timer.  A job's handler that catches the cancellation is cancelled again.
 */
static void
look_and_cancel(void)
{
	int			save_errno = errno;

	look();
	if (over >= 0)
	{
		QueryCancelPending = true;
		InterruptPending = true;
		SetLatch(MyLatch);
	}
	errno = save_errno;
}

/*
 * A run begins: set the limits of its kind, and start the timer.  handler may be NULL.  The
 * caller calls allowance_end() or allowance_check() at the end.
 */
void
allowance_begin(const JobqHandler *handler)
{
	TimestampTz first;

	over = -1;
	if (handler == NULL || !handler->confined)
		return;
	for (int i = 0; i < JOBQ_NALLOWANCES; i++)
	{
		most[i] = handler->allowance[i];
		began[i] = most[i] == 0 ? 0 : used(i);
	}
	if (timer == MAX_TIMEOUTS)
		timer = RegisterTimeout(USER_TIMEOUT, look_and_cancel);
	first = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOOK_PAUSE);
	enable_timeout_every(timer, first, LOOK_PAUSE);
	ticks = true;
}

/* The handler has ended: stop the timer. */
void
allowance_end(void)
{
	if (!ticks)
		return;
	disable_timeout(timer, false);
	ticks = false;
}

/*
 * Return the error message, in the current memory context.  A limit must have been exceeded.
 */
static char *
complaint(void)
{
	static const char *const texts[JOBQ_NALLOWANCES] = {
		[JOBQ_ALLOWANCE_MEMORY] = "the job has taken " INT64_FORMAT " kB of memory, more than max_memory of " INT64_FORMAT " kB",
		[JOBQ_ALLOWANCE_TEMP] = "the job has written " INT64_FORMAT " kB to temporary files, more than max_temp of " INT64_FORMAT " kB",
		[JOBQ_ALLOWANCE_WAL] = "the job has written " INT64_FORMAT " kB of WAL, more than max_wal of " INT64_FORMAT " kB",
	};

	return psprintf(texts[over], (taken + 1023) / 1024,
					most[over] / 1024);
}

/* The handler has returned: stop the timer.  Raises an error if a limit is exceeded. */
void
allowance_check(void)
{
	if (!ticks)
		return;
	allowance_end();
	look();
	if (over < 0)
		return;
	QueryCancelPending = false;
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_OVER_LIMIT),
			 errmsg_internal("%s", complaint()),
			 errhint(HINT)));
}

/*
 * If the handler was cancelled because a limit was exceeded, change the error to say so, and
 * return true.  Strings are allocated in the current memory context.
 */
bool
allowance_blame(ErrorData *edata)
{
	if (over < 0 || edata->sqlerrcode != ERRCODE_QUERY_CANCELED)
		return false;
	edata->sqlerrcode = ERRCODE_JOBQ_OVER_LIMIT;
	edata->message = complaint();
	edata->hint = pstrdup(HINT);
	return true;
}

/* True if the run exceeded its limit on memory, which the process keeps. */
bool
allowance_took_memory(void)
{
	return over == JOBQ_ALLOWANCE_MEMORY;
}
