/*-------------------------------------------------------------------------
 *
 * flight.c
 *	  The flight recorder: which job a process, a worker or a session in jobq.work(), was
 *	  running when the server crashed.
 *
 * A durable record before each job would cost a flush per job.  Instead each process has a
 * record of 64 bytes in a preallocated, memory-mapped file.  A store to the file survives the
 * crash of any server process.  A store does not survive a crash of the operating system,
 * which a job rarely causes.
 *
 * A running job alone proves nothing, because other jobs were running as well.  A job is
 * charged only if the postmaster saw its process crash first, and survived.  A record
 * therefore has two states:
 *
 * RUNNING   set by the process while it runs a job
 * ACCUSED   set by the postmaster (crash.c), for the process that caused
 *           the stop of all others; a single record per crash
 *
 * The next launcher reads the records.  The launcher keeps the accused records if the same
 * postmaster is still there, or if the postmaster exited by itself (restart_after_crash =
 * off).  If the postmaster was killed, the records prove nothing, because the killer may have
 * killed the worker, too.  All other records are void.  The scheduler of the database charges
 * the job, or a session in jobq.work() does, because there may be no scheduler.  The record
 * stays until the charge is durable, or the database is gone, so that a crash in between loses
 * nothing.  Each charge increments the job's number of crashes, which prevents a second
 * charge.
 *
 * The postmaster's messages are missing if log_min_messages is above "log".  A weaker proof is
 * used then.  The postmaster sends SIGQUIT to all remaining processes, and the signal handler
 * marks their records as BYSTANDER.  If a single worker's record is still RUNNING, this worker
 * crashed.  Sessions have another signal handler, and are not accused in this way.
 *
 * A worker may run several jobs together.  Any of them may be the cause of the crash.  The
 * ids of all of them are kept, and none is charged: they become suspects, and each runs alone.
 *
 * The file is in pg_stat_tmp, which is neither emptied at start nor copied by base backups.  A
 * standby must not inherit the primary's records.
 *
 * worker/process/flight.c
 *
 *-------------------------------------------------------------------------
 */
#include "process/process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#define FLIGHT_FILE		"pg_stat_tmp/jobq_flight"
#define FLIGHT_MAGIC	0x4A515634	/* "JQV4" */

/* Number of culprits kept until they are charged.  If there are more, the last are kept. */
#define MAX_KEPT		64

enum
{
	FLIGHT_IDLE = 0,
	FLIGHT_RUNNING,
	FLIGHT_BYSTANDER,
	FLIGHT_ACCUSED
};

typedef struct FlightRecord
{
	uint32		magic;
	volatile uint32 state;
	int64		job_id;
	Oid			dboid;
	int32		attempt;		/* charged before the run */
	int32		crashes;		/* of these, for a crash */
	int32		pid;
	bool		session;		/* of a client */
	int32		nmembers;		/* jobs that run together; 0: a single one */
	int32		slot;			/* of the worker; its members are there */
	char		pad[20];
} FlightRecord;

/* The ids of jobs that run together. */
typedef struct FlightMembers
{
	int64		ids[JOBQ_MAX_CHUNK];
} FlightMembers;

/* The first record of the file. */
typedef struct FlightHeader
{
	uint32		magic;
	int32		postmaster_pid; /* the postmaster of the processes ... */
	TimestampTz postmaster_start;
	uint32		heard;			/* ... has logged the crashed process ... */
	uint32		outlived;		/* ... and has exited by itself */
	char		pad[40];
} FlightHeader;

StaticAssertDecl(sizeof(FlightRecord) == 64, "flight record has 64 bytes");
StaticAssertDecl(sizeof(FlightHeader) == sizeof(FlightRecord),
				 "flight header is as large as a record");

/*
 * The header is followed by the accused records that are still to be charged.  Then follows a
 * record for each process that may be connected to a database.
 */
static FlightHeader *header = NULL;
static FlightRecord *kept = NULL;
static FlightRecord *records = NULL;
static FlightRecord *mine = NULL;

/* After the records: the members of the kept records, and of each worker's slot. */
static FlightMembers *kept_members = NULL;
static FlightMembers *slot_members = NULL;

static void flight_keep(const FlightRecord *record);

#define FLIGHT_SIZE		((1 + MAX_KEPT + MaxBackends) * sizeof(FlightRecord) + \
						 (MAX_KEPT + jobq_max_workers) * sizeof(FlightMembers))

/*
 * Map the file.  create: extend the file to its full size; only the launcher does this.
 * Failures are logged.  Without the file, jobq runs normally, and crashes are not charged.
 */
void
flight_open(bool create)
{
	static bool tried = false;
	Size		size = FLIGHT_SIZE;
	struct stat st;
	int			fd;
	void	   *map;

	if (header != NULL || tried)
		return;
	tried = true;
	fd = BasicOpenFile(FLIGHT_FILE,
					   O_RDWR | PG_BINARY | (create ? O_CREAT : 0));
	if (fd < 0)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", FLIGHT_FILE)));
		return;
	}
	if (fstat(fd, &st) != 0)
		st.st_size = 0;
	if (st.st_size < (off_t) size)
	{
		Size		more = size - st.st_size;
		char	   *zeros = palloc0(more);

		/*
		 * allocate blocks now, because a full disk would cause a SIGBUS later
		 */
		if (!create || pg_pwrite(fd, zeros, more, st.st_size) != (ssize_t) more)
		{
			ereport(LOG,
					(errmsg("could not extend file \"%s\": %m", FLIGHT_FILE)));
			close(fd);
			return;
		}
		pfree(zeros);
	}
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
	{
		ereport(LOG,
				(errmsg("could not map file \"%s\": %m", FLIGHT_FILE)));
		return;
	}
	header = map;
	kept = (FlightRecord *) header + 1;
	records = kept + MAX_KEPT;
	kept_members = (FlightMembers *) (records + MaxBackends);
	slot_members = kept_members + MAX_KEPT;
}

/*
 * Keep the accused records of the last crash beside earlier ones, and clear all other records.
 * Called by the first launcher after a start, before workers exist, and before sessions write
 * records.
 */
void
flight_judge(void)
{
	FlightRecord *suspect = NULL;
	bool		same_postmaster;
	int			nrunning = 0;

	if (header == NULL)
		return;
	same_postmaster = header->magic == FLIGHT_MAGIC &&
		header->postmaster_pid == PostmasterPid &&
		header->postmaster_start == PgStartTime;
	for (int i = 0; i < MaxBackends; i++)
	{
		FlightRecord *record = &records[i];

		if (record->magic != FLIGHT_MAGIC)
			continue;
		if (record->state == FLIGHT_ACCUSED &&
			(same_postmaster || (header->magic == FLIGHT_MAGIC && header->outlived)))
			flight_keep(record);
		if (record->state == FLIGHT_RUNNING && !record->session)
		{
			nrunning++;
			suspect = record;
		}
	}
	if (same_postmaster && !header->heard && nrunning == 1)
		flight_keep(suspect);

	for (int i = 0; i < MaxBackends; i++)
		records[i].state = FLIGHT_IDLE;
	memset(header, 0, sizeof(FlightHeader));
	header->postmaster_pid = PostmasterPid;
	header->postmaster_start = PgStartTime;
	header->magic = FLIGHT_MAGIC;
}

/*
 * Append the record to the records kept until their jobs are charged.  If there are too many,
 * the first is dropped.  Logs the job.
 */
static void
flight_keep(const FlightRecord *record)
{
	int			n = 0;

	for (int i = 0; i < MAX_KEPT; i++)
		if (kept[i].magic == FLIGHT_MAGIC && kept[i].state == FLIGHT_ACCUSED)
		{
			if (n < i)
				kept_members[n] = kept_members[i];
			kept[n++] = kept[i];
		}
	if (n == MAX_KEPT)
	{
		memmove(kept, kept + 1, sizeof(FlightRecord) * --n);
		memmove(kept_members, kept_members + 1, sizeof(FlightMembers) * n);
	}
	if (record->nmembers > 0 && record->nmembers <= JOBQ_MAX_CHUNK &&
		record->slot >= 0 && record->slot < jobq_max_workers)
		kept_members[n] = slot_members[record->slot];
	kept[n] = *record;
	kept[n++].state = FLIGHT_ACCUSED;
	while (n < MAX_KEPT)
		kept[n++].state = FLIGHT_IDLE;
	if (record->nmembers > 0)
	{
		ereport(LOG,
				(errmsg("%d jobs of database %u, of which the first is " INT64_FORMAT ", were running together in the server process that crashed",
						record->nmembers, record->dboid, record->job_id)));
		return;
	}
	ereport(LOG,
			(errmsg("job " INT64_FORMAT " of database %u was running in the server process that crashed",
					record->job_id, record->dboid)));
}

/*
 * Get the next culprit of a database, or of any database if dboid is InvalidOid, starting at
 * record *next.  False if there is none.
 */
bool
flight_culprit(Oid dboid, int *next, JobqCulprit *culprit)
{
	for (; kept != NULL && *next < MAX_KEPT; (*next)++)
	{
		FlightRecord *record = &kept[*next];

		if (record->magic != FLIGHT_MAGIC || record->state != FLIGHT_ACCUSED ||
			(OidIsValid(dboid) && record->dboid != dboid))
			continue;
		culprit->dboid = record->dboid;
		culprit->job_id = record->job_id;
		culprit->attempt = record->attempt;
		culprit->crashes = record->crashes;
		culprit->nmembers = Min(record->nmembers, JOBQ_MAX_CHUNK);
		culprit->members = kept_members[*next].ids;
		culprit->record = (*next)++;
		return true;
	}
	return false;
}

/* Remove the culprit.  Its charge is durable, or there is no job to charge. */
void
flight_clear_culprit(const JobqCulprit *culprit)
{
	kept[culprit->record].state = FLIGHT_IDLE;
}

/*
 * Is the job of this database a culprit that must be charged before it begins?  crashes, suspect:
 * according to its row.  No culprit is added while a server process lives, so a process without
 * culprits does not search again.
 */
bool
flight_accuses(int64 id, int crashes, bool suspect)
{
	static bool none = false;
	bool		any = false;
	JobqCulprit culprit;

	if (none || kept == NULL)
		return false;
	for (int next = 0; flight_culprit(MyDatabaseId, &next, &culprit);)
	{
		any = true;
		if (culprit.nmembers == 0 && culprit.job_id == id && culprit.crashes == crashes)
			return true;
		for (int i = 0; i < culprit.nmembers && crashes == 0 && !suspect; i++)
			if (culprit.members[i] == id)
				return true;
	}
	none = !any;
	return false;
}

/*
 * Read a record of the file; number 0 is the header.  The postmaster reads and writes the file
 * without mapping it, because a truncated file must not harm the postmaster.  A record that
 * cannot be written is not charged.
 */
static bool
flight_read(int fd, int number, void *record)
{
	return pg_pread(fd, record, sizeof(FlightRecord),
					(off_t) number * sizeof(FlightRecord)) == sizeof(FlightRecord) &&
		*(uint32 *) record == FLIGHT_MAGIC;
}

static bool
flight_write(int fd, int number, const void *record)
{
	return pg_pwrite(fd, record, sizeof(FlightRecord),
					 (off_t) number * sizeof(FlightRecord)) == sizeof(FlightRecord);
}

/*
 * Called in the postmaster: process pid has crashed.  starter is the process that requested
 * pid, or 0.  If either process was running a job, accuse its record.  The starter matters for
 * helpers, for example of a parallel query.
 */
void
flight_accuse(int pid, int starter)
{
	FlightHeader head;
	int			fd = open(FLIGHT_FILE, O_RDWR | PG_BINARY, 0);

	if (fd < 0)
		return;
	for (int i = 0; i < MaxBackends; i++)
	{
		int			number = 1 + MAX_KEPT + i;
		FlightRecord record;

		if (flight_read(fd, number, &record) && record.state == FLIGHT_RUNNING &&
			(record.pid == pid || (starter != 0 && record.pid == starter)))
		{
			record.state = FLIGHT_ACCUSED;
			(void) flight_write(fd, number, &record);
		}
	}
	if (flight_read(fd, 0, &head))
	{
		head.heard = true;
		(void) flight_write(fd, 0, &head);
	}
	close(fd);
}

/* Called in the postmaster, which has seen a crash: the postmaster exits by itself. */
void
flight_outlive(void)
{
	FlightHeader head;
	int			fd = open(FLIGHT_FILE, O_RDWR | PG_BINARY, 0);

	if (fd < 0)
		return;
	if (flight_read(fd, 0, &head) && head.heard)
	{
		head.outlived = true;
		(void) flight_write(fd, 0, &head);
	}
	close(fd);
}

static void
flight_leave(int code, Datum arg)
{
	flight_end();
}

/*
 * Allocate the record of this process, a worker or a client's session.  Does nothing if the
 * file is not mapped.
 */
void
flight_attach(bool session)
{
	if (header == NULL || mine != NULL)
		return;
	mine = &records[MyProc - ProcGlobal->allProcs];
	memset(mine, 0, sizeof(FlightRecord));
	mine->magic = FLIGHT_MAGIC;
	mine->dboid = MyDatabaseId;
	mine->pid = MyProcPid;
	mine->session = session;
	on_proc_exit(flight_leave, (Datum) 0);
}

/*
 * This process begins a job.  attempt: number of charged attempts; crashes: number of these
 * charged for a crash.  members: the n jobs of this worker that run together, if n is not 0.
 */
void
flight_begin(int64 id, int attempt, int crashes, const JobqMember *members, int n)
{
	if (mine == NULL)
		return;
	Assert(mine->state == FLIGHT_IDLE || mine->state == FLIGHT_RUNNING);
	mine->job_id = id;
	mine->attempt = attempt;
	mine->crashes = crashes;
	mine->nmembers = n;
	if (n > 0)
	{
		mine->slot = jobq_my_slot - jobq_shared->slots;
		for (int i = 0; i < n; i++)
			slot_members[mine->slot].ids[i] = members[i].job;
	}
	pg_write_barrier();
	mine->state = FLIGHT_RUNNING;
}

/*
 * Get the job that this process runs.  False if there is none.  Used to restore the record
 * after a nested job.
 */
bool
flight_running(JobqCulprit *outer)
{
	if (mine == NULL || mine->state != FLIGHT_RUNNING)
		return false;
	outer->job_id = mine->job_id;
	outer->attempt = mine->attempt;
	outer->crashes = mine->crashes;
	return true;
}

void
flight_end(void)
{
	if (mine != NULL)
		mine->state = FLIGHT_IDLE;
}

/* SIGQUIT: another process crashed, or the server is stopped immediately. */
void
flight_bystander(SIGNAL_ARGS)
{
	if (mine != NULL && mine->state == FLIGHT_RUNNING)
		mine->state = FLIGHT_BYSTANDER;
	_exit(2);
}
