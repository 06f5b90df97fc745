/*-------------------------------------------------------------------------
 *
 * stubs.c
 *	  Stubs for functions of the server and of rooms outside src/ready.
 *
 * test/model/stubs.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int			jobq_ready_entries;
int			jobq_max_lanes;
int			jobq_max_leases;
int			jobq_max_groups;
int			jobq_max_limiters = NLIMITERS;
int			jobq_notify_interval = 10;
int			jobq_debug_check_ready;
JobqShared *jobq_shared;
TimestampTz jobq_last_now;
PGPROC	   *MyProc;
bool		IsUnderPostmaster;	/* false while the memory is initialized */
PGPROC	   *model_procs;

JobqDatabase *db;
bool		tracing;

extern sigjmp_buf model_failed;
extern char model_failure[];

static JobqShared shared;
static JobqDatabase database;
static JobqSlot slots[NSLOTS];
static LWLock lock;
static bool locked;
static LWLockMode lock_mode;

/*
 * Initialize the shared memory, as the server does at start.
 */
void
model_memory(const int *sizes)
{
	static char *memory = NULL;
	static char *holding[NSLOTS] = {NULL};
	static char handovers[sizeof(JobqHandovers)];

	jobq_ready_entries = sizes[0];
	jobq_max_lanes = sizes[1];
	jobq_max_leases = sizes[2];
	jobq_max_groups = sizes[3];

	if (model_procs == NULL)
		model_procs = calloc(NSLOTS + NSESSIONS, sizeof(PGPROC));
	MyProc = &model_procs[NSLOTS];
	memset(&shared, 0, sizeof(shared));
	memset(&database, 0, sizeof(database));
	memset(slots, 0, sizeof(slots));
	jobq_shared = &shared;
	jobq_handovers_area.init(&shared, handovers);
	shared.ndatabases = 1;
	shared.databases = &database;
	shared.nslots = NSLOTS;
	shared.slots = slots;
	db = &database;
	db->lock = &lock;
	db->dboid = 1;
	locked = false;
	IsUnderPostmaster = false;
	for (int i = 0; i < NSLOTS; i++)
	{
		free(holding[i]);
		holding[i] = calloc(1, jobq_holding_area.size());
		SpinLockInit(&slots[i].mutex);
		slots[i].database = -1;
		jobq_holding_area.init(&slots[i], holding[i]);
	}
	free(memory);
	memory = malloc(jobq_ready_area.size());
	memset(memory, 0x7f, jobq_ready_area.size());
	jobq_ready_area.init(db, memory);
	IsUnderPostmaster = true;
}

void
model_fail(const char *fmt,...)
{
	va_list		args;

	va_start(args, fmt);
	vsnprintf(model_failure, 400, fmt, args);
	va_end(args);
	siglongjmp(model_failed, 1);
}

void
trace(const char *fmt,...)
{
	va_list		args;

	if (!tracing)
		return;
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
}

#if PG_VERSION_NUM >= 160000
void
ExceptionalCondition(const char *condition, const char *file, int line)
{
	model_fail("assertion %s, %s line %d", condition, file, line);
}
#else
void
ExceptionalCondition(const char *condition, const char *type,
					 const char *file, int line)
{
	model_fail("assertion %s, %s line %d", condition, file, line);
}
#endif

/*
 * elog(PANIC) of src/ready/verify.c.
 */
bool
errstart(int elevel, const char *domain)
{
	return true;
}

bool
errstart_cold(int elevel, const char *domain)
{
	return true;
}

int
errmsg_internal(const char *fmt,...)
{
	char		message[300];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	model_fail("%s", message);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	abort();
}

bool
LWLockAcquire(LWLock *which, LWLockMode mode)
{
	if (locked)
		model_fail("the lock is taken twice");
	locked = true;
	lock_mode = mode;
	return true;
}

void
LWLockRelease(LWLock *which)
{
	if (!locked)
		model_fail("the lock is released twice");
	locked = false;
}

bool
LWLockHeldByMe(LWLock *which)
{
	return locked;
}

bool
LWLockHeldByMeInMode(LWLock *which, LWLockMode mode)
{
	return locked && lock_mode == mode;
}

int
s_lock(volatile slock_t *mutex, const char *file, int line, const char *func)
{
	model_fail("a spinlock is taken twice, %s line %d", file, line);
}

/*
 * Wake a worker or a session.
 */
void
SetLatch(Latch *latch)
{
	for (int i = 0; i < NSLOTS + NSESSIONS; i++)
		if (latch == &model_procs[i].procLatch)
		{
			if (i < NSLOTS)
				world.workers[i].awake = true;
			else
			{
				world.sessions[i - NSLOTS].awake = true;
				world.sessions[i - NSLOTS].called = world_moment();
			}
			return;
		}
	model_fail("a latch of nobody is set");
}

TimestampTz
jobq_now(void)
{
	return world.now;
}

void
jobq_wake_scheduler(JobqDatabase *which)
{
	world.scheduler_awake = true;
}

Size
add_size(Size a, Size b)
{
	return a + b;
}

Size
mul_size(Size a, Size b)
{
	return a * b;
}
