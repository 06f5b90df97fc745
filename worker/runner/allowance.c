/*-------------------------------------------------------------------------
 *
 * allowance.c
 *	  How much memory, temporary files and WAL one run may use: max_memory, max_temp and
 *	  max_wal of its kind.
 *
 * The server has no place at which it would ask us while a handler runs.  So where a
 * kind has such a limit, a timer looks each LOOK_PAUSE at the counters of this process,
 * and cancels the handler when one is above.  When the handler has returned, it looks
 * once more; so a run that was above its limit never commits, however short it was, but
 * for memory that it had given back by then.
 *
 * Memory is what the process has of its own, as the system counts it, less what it had
 * when the run began: what other jobs have left in it is not put down to this one.
 * A worker whose run has had too much leaves, which gives the memory back.
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

/* Milliseconds between two looks. */
#define LOOK_PAUSE	10

#define HINT	"Let the job do less at a time, or register its kind with a higher limit."

static TimeoutId timer = MAX_TIMEOUTS;	/* none yet */
static bool ticks = false;		/* the timer runs */
static int64 most[JOBQ_NALLOWANCES];	/* in bytes; 0: as much as it likes */
static int64 began[JOBQ_NALLOWANCES];	/* what was used when the run began */

/* set in the handler of a signal */
static volatile sig_atomic_t over = -1; /* which is above, or -1 */
static volatile int64 taken = 0;	/* and how much that is */

/*
 * The memory that this process has of its own, in bytes; where the system does not
 * tell that, the most that it ever had, with the shared memory that it has used.
 * May be called in the handler of a signal.
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
		int64		pages[3] = {0}; /* all, in memory, and of these, shared */
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

/*
 * Note what is above its limit.
 */
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
 * The timer's handler.  A handler of a job that catches the cancellation is cancelled
 * again.
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
 * A run begins whose kind allows so much; handler may be NULL.
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

/*
 * The handler has ended: look no more.
 */
void
allowance_end(void)
{
	if (!ticks)
		return;
	disable_timeout(timer, false);
	ticks = false;
}

/*
 * Why the handler is ended, in the current memory context.  Something is above its
 * limit.
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

/*
 * The handler has returned: look no more, and an error if it has used more than it may.
 */
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
 * If the handler was cancelled because something was above its limit, let the error say
 * so, in the current memory context.
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

/*
 * Has the run had more memory than it may, which its process keeps?
 */
bool
allowance_took_memory(void)
{
	return over == JOBQ_ALLOWANCE_MEMORY;
}
