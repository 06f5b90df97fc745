/*-------------------------------------------------------------------------
 *
 * lock_time.c
 *	  Time for which a process holds the lock of the ready set (JobqDatabase.lock).
 *
 * This file is linked into a build of the extension for test/bench/lock, with the linker's
 * option --wrap: the extension's calls of the three functions below arrive here.  At its end,
 * each process writes a line to the server log:
 *
 *	lock time: TYPE, exclusive N holds N ns N long N ns, shared ..., waited N ns
 *
 * A hold of more than LONG nanoseconds is counted apart, because in most of these cases the
 * kernel has run another process meanwhile.  The cost of reading the clock is subtracted.
 *
 * test/bench/lock_time.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <time.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"

#include "memory/memory.h"

#define LONG	20000

typedef struct Holds
{
	int64		n,
				ns,
				nlong,
				ns_long;
} Holds;

extern bool __real_LWLockAcquire(LWLock *lock, LWLockMode mode);
extern bool __real_LWLockConditionalAcquire(LWLock *lock, LWLockMode mode);
extern void __real_LWLockRelease(LWLock *lock);

extern bool __wrap_LWLockAcquire(LWLock *lock, LWLockMode mode);
extern bool __wrap_LWLockConditionalAcquire(LWLock *lock, LWLockMode mode);
extern void __wrap_LWLockRelease(LWLock *lock);

static Holds holds[2];			/* exclusive, shared */
static int64 waited;
static int64 began;
static LWLockMode held;
static bool registered;

static int64
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64CONST(1000000000) + now.tv_nsec;
}

/* Is this the lock of a database's ready set? */
static bool
is_ready_lock(LWLock *lock)
{
	LWLockPadded *locks = GetNamedLWLockTranche("jobq");
	LWLockPadded *padded = (LWLockPadded *) lock;

	return padded >= locks + 1 + JOBQ_NEXTRA_LOCKS &&
		padded < locks + 1 + JOBQ_NEXTRA_LOCKS + jobq_max_databases;
}

/* Write the line.  The clock costs the shortest time between two readings. */
static void
report(int code, Datum arg)
{
	int64		cost = PG_INT64_MAX;

	for (int i = 0; i < 1000; i++)
	{
		int64		before = now_ns();

		cost = Min(cost, now_ns() - before);
	}
	for (int i = 0; i < 2; i++)
		holds[i].ns = Max(holds[i].ns - cost * holds[i].n, 0);
	elog(LOG, "lock time: %s, exclusive " INT64_FORMAT " holds " INT64_FORMAT " ns "
		 INT64_FORMAT " long " INT64_FORMAT " ns, shared " INT64_FORMAT " holds "
		 INT64_FORMAT " ns " INT64_FORMAT " long " INT64_FORMAT " ns, waited "
		 INT64_FORMAT " ns",
		 MyBgworkerEntry != NULL ? MyBgworkerEntry->bgw_type : "client backend",
		 holds[0].n, holds[0].ns, holds[0].nlong, holds[0].ns_long,
		 holds[1].n, holds[1].ns, holds[1].nlong, holds[1].ns_long, waited);
}

static void
begin_hold(LWLockMode mode)
{
	if (!registered)
		on_proc_exit(report, 0);
	registered = true;
	held = mode;
	began = now_ns();
}

bool
__wrap_LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	int64		asked;
	bool		free;

	if (!is_ready_lock(lock))
		return __real_LWLockAcquire(lock, mode);
	asked = now_ns();
	free = __real_LWLockAcquire(lock, mode);
	begin_hold(mode);
	if (!free)
		waited += began - asked;
	return free;
}

bool
__wrap_LWLockConditionalAcquire(LWLock *lock, LWLockMode mode)
{
	bool		got = __real_LWLockConditionalAcquire(lock, mode);

	if (got && is_ready_lock(lock))
		begin_hold(mode);
	return got;
}

void
__wrap_LWLockRelease(LWLock *lock)
{
	if (is_ready_lock(lock))
	{
		Holds	   *hold = &holds[held == LW_EXCLUSIVE ? 0 : 1];
		int64		ns = now_ns() - began;

		if (ns <= LONG)
		{
			hold->n++;
			hold->ns += ns;
		}
		else
		{
			hold->nlong++;
			hold->ns_long += ns;
		}
	}
	__real_LWLockRelease(lock);
}
