/*-------------------------------------------------------------------------
 *
 * flight.c
 *	  The flight recorder: which job a process was running when the
 *	  server crashed: a worker, or a session in jobq.work().
 *
 * A durable note before each job would cost a flush per job.  Instead each
 * process has a record of 64 bytes in a preallocated file that is mapped into
 * memory: a store to it survives the crash of any server process, though not
 * of the operating system (which is seldom a job's fault).
 *
 * That a job was running proves nothing: all its neighbours were, too.  It is
 * charged only if the postmaster has seen its process crash, as the first one,
 * and has lived on.  So a record goes through two hands:
 *
 *	RUNNING		by the process, while it runs a job
 *	ACCUSED		by the postmaster (crash.c), which names the process whose end
 *				made it stop all others.  There is one in each crash.
 *
 * The next launcher reads the records, and keeps those of the accused if the
 * same postmaster is still there, or if it has come to its end by itself
 * (restart_after_crash = off).  A postmaster that was killed proves nothing: whoever
 * did that may have killed the worker, too.  All other records are void.  The
 * scheduler of the database charges the job, or a session in jobq.work(), which
 * may be where no scheduler is.  The record stays until the charge is durable, or
 * the database is gone, so that a crash in between loses nothing; the number of the
 * job's crashes, which each charge increments, prevents charging twice.
 *
 * The postmaster cannot say what is kept from the log ("log_min_messages" above
 * "log").  Then there is a weaker proof: the handler for SIGQUIT, which the
 * postmaster sends to all others, marks a record as BYSTANDER, and if a single
 * one is left that is RUNNING, that worker has crashed.  Sessions have another handler,
 * and are not accused by this.
 *
 * The file is in pg_stat_tmp, which is neither wiped at start nor copied by
 * base backups: a standby must not inherit the primary's records.
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
#define FLIGHT_MAGIC	0x4A515633	/* "JQV3" */

/* Culprits that are kept until they are charged; if there are more, the last. */
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
	int32		crashes;		/* of these, by a crash */
	int32		pid;
	bool		session;		/* of a client */
	char		pad[31];
} FlightRecord;

/* The first record is this. */
typedef struct FlightHeader
{
	uint32		magic;
	int32		postmaster_pid; /* whose workers' records these are ... */
	TimestampTz postmaster_start;
	uint32		heard;			/* it has said whose crash there was ... */
	uint32		outlived;		/* ... and has come to its end by itself */
	char		pad[40];
} FlightHeader;

StaticAssertDecl(sizeof(FlightRecord) == 64, "flight record has 64 bytes");
StaticAssertDecl(sizeof(FlightHeader) == sizeof(FlightRecord),
				 "flight header is as large as a record");

/*
 * Behind the header there are the records of the accused who are still to be
 * charged, and then one for each process that may be connected to a database.
 */
static FlightHeader *header = NULL;
static FlightRecord *kept = NULL;
static FlightRecord *records = NULL;
static FlightRecord *mine = NULL;

static void flight_keep(const FlightRecord *record);

#define FLIGHT_SIZE		((1 + MAX_KEPT + MaxBackends) * sizeof(FlightRecord))

/*
 * Map the file; the launcher creates it.  Without it jobq runs all the same,
 * and a crash is charged to nobody.
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

		/* real blocks, or a full disk would be a SIGBUS later */
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
}

/*
 * Keep those who are to be charged for the last crash beside those before, and
 * clear all other records.  Called by the first launcher after a start, before there
 * are workers, and before sessions note anything.
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
 * Move it to where it is kept until its job is charged: behind the others, the
 * first of which gives way if there are too many.
 */
static void
flight_keep(const FlightRecord *record)
{
	int			n = 0;

	for (int i = 0; i < MAX_KEPT; i++)
		if (kept[i].magic == FLIGHT_MAGIC && kept[i].state == FLIGHT_ACCUSED)
			kept[n++] = kept[i];
	if (n == MAX_KEPT)
		memmove(kept, kept + 1, sizeof(FlightRecord) * --n);
	kept[n] = *record;
	kept[n++].state = FLIGHT_ACCUSED;
	while (n < MAX_KEPT)
		kept[n++].state = FLIGHT_IDLE;
	ereport(LOG,
			(errmsg("job " INT64_FORMAT " of database %u was running in the server process that crashed",
					record->job_id, record->dboid)));
}

/*
 * The next culprit of a database, or of any if that is InvalidOid, from the record
 * *next on; false if there is none.
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
		culprit->record = (*next)++;
		return true;
	}
	return false;
}

/*
 * The job was charged, and that is durable; or there is nobody to charge.
 */
void
flight_clear_culprit(const JobqCulprit *culprit)
{
	kept[culprit->record].state = FLIGHT_IDLE;
}

/*
 * The record with this number (0: the header) in the file.  The postmaster reads and
 * writes the file and does not map it, because it must not come to harm if
 * somebody has cut the file off.  What it cannot write is not charged.
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
 * In the postmaster: this process has crashed, which another one had started,
 * or 0.  If it is a worker, accuse its job.  If it helped one, say in a parallel
 * query, that worker's job has had the postmaster start it.
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

/*
 * In the postmaster, which has seen a crash: it comes to its end by itself.
 */
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
 * This process is going to run jobs, a worker or a client's session.
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
 * This process begins a job that has been charged with so many attempts, and of
 * these with so many for a crash.
 */
void
flight_begin(int64 id, int attempt, int crashes)
{
	if (mine == NULL)
		return;
	mine->job_id = id;
	mine->attempt = attempt;
	mine->crashes = crashes;
	pg_write_barrier();
	mine->state = FLIGHT_RUNNING;
}

/*
 * The job that this process runs, if it does: what it runs within that comes and
 * goes.
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

/*
 * SIGQUIT: another process crashed, or the server is stopped at once.
 */
void
flight_bystander(SIGNAL_ARGS)
{
	if (mine != NULL && mine->state == FLIGHT_RUNNING)
		mine->state = FLIGHT_BYSTANDER;
	_exit(2);
}
