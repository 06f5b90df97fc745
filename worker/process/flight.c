/*-------------------------------------------------------------------------
 *
 * flight.c
 *	  The flight recorder: which job a worker was running when the server
 *	  crashed.
 *
 * A durable note before each job would cost a flush per job.  Instead each
 * worker has a record of 64 bytes in a preallocated file that is mapped into
 * memory: a store to it survives the crash of any server process, though not
 * of the operating system (which is seldom a job's fault).
 *
 * That a job was running proves nothing: all its neighbours were, too.  It is
 * charged only if the postmaster has seen its process crash, as the first one,
 * and has lived on.  So a record goes through two hands:
 *
 *	RUNNING		by the worker, while it runs a job
 *	ACCUSED		by the postmaster (crash.c), which names the process whose end
 *				made it stop all others.  There is one in each crash.
 *
 * The next launcher reads the records, and keeps those of the accused if the
 * same postmaster is still there, or if it has come to its end by itself
 * (restart_after_crash = off).  A postmaster that was killed proves nothing: whoever
 * did that may have killed the worker, too.  All other records are void.  The
 * scheduler of the database charges the job.  The record stays until the charge
 * is durable, so that a crash in between loses nothing; the number of the job's
 * crashes, which each charge increments, prevents charging twice.
 *
 * The postmaster cannot say what is kept from the log ("log_min_messages" above
 * "log").  Then there is a weaker proof: the handler for SIGQUIT, which the
 * postmaster sends to all others, marks a record as BYSTANDER, and if a single
 * one is left that is RUNNING, that worker has crashed.
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
#include "utils/timestamp.h"

#define FLIGHT_FILE		"pg_stat_tmp/jobq_flight"
#define FLIGHT_MAGIC	0x4A515632	/* "JQV2" */

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
	char		pad[32];
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
 * Behind the header there are the workers' records, and as many again that keep
 * the accused who are still to be charged.
 */
static FlightHeader *header = NULL;
static FlightRecord *records = NULL;
static FlightRecord *kept = NULL;
static FlightRecord *mine = NULL;

static void flight_keep(const FlightRecord *record);

#define FLIGHT_SIZE		((1 + 2 * jobq_max_workers) * sizeof(FlightRecord))

/*
 * Map the file; the launcher creates it.  Without it jobq runs all the same,
 * and a crash is charged to nobody.
 */
void
flight_open(bool create)
{
	Size		size = FLIGHT_SIZE;
	struct stat st;
	int			fd;
	void	   *map;

	if (header != NULL)
		return;
	fd = BasicOpenFile(FLIGHT_FILE,
					   O_RDWR | PG_BINARY | (create ? O_CREAT : 0));
	if (fd < 0)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", FLIGHT_FILE)));
		return;
	}
	if (fstat(fd, &st) != 0 || st.st_size < (off_t) size)
	{
		char	   *zeros = palloc0(size);

		/* real blocks, or a full disk would be a SIGBUS later */
		if (!create || pg_pwrite(fd, zeros, size, 0) != (ssize_t) size)
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
	records = (FlightRecord *) header + 1;
	kept = records + jobq_max_workers;
}

/*
 * Collect those who are to be charged for the last crash, and for those before.
 * Called by the first launcher after a start, before there are workers.
 */
int
flight_read_culprits(Oid *dboids, JobqCulprit *culprits, int max)
{
	FlightRecord *suspect = NULL;
	bool		same_postmaster;
	int			nrunning = 0;
	int			n = 0;

	if (header == NULL)
		return 0;
	same_postmaster = header->magic == FLIGHT_MAGIC &&
		header->postmaster_pid == PostmasterPid &&
		header->postmaster_start == PgStartTime;
	for (int i = 0; i < jobq_max_workers; i++)
	{
		FlightRecord *record = &records[i];

		if (record->magic != FLIGHT_MAGIC)
			continue;
		if (record->state == FLIGHT_ACCUSED &&
			(same_postmaster || (header->magic == FLIGHT_MAGIC && header->outlived)))
			flight_keep(record);
		if (record->state == FLIGHT_RUNNING)
		{
			nrunning++;
			suspect = record;
		}
	}
	if (same_postmaster && !header->heard && nrunning == 1)
		flight_keep(suspect);

	for (int i = 0; i < jobq_max_workers; i++)
		records[i].state = FLIGHT_IDLE;
	memset(header, 0, sizeof(FlightHeader));
	header->postmaster_pid = PostmasterPid;
	header->postmaster_start = PgStartTime;
	header->magic = FLIGHT_MAGIC;

	for (int i = 0; i < jobq_max_workers && n < max; i++)
	{
		if (kept[i].magic != FLIGHT_MAGIC || kept[i].state != FLIGHT_ACCUSED)
			continue;
		dboids[n] = kept[i].dboid;
		culprits[n].job_id = kept[i].job_id;
		culprits[n].attempt = kept[i].attempt;
		culprits[n].crashes = kept[i].crashes;
		culprits[n].record = i;
		n++;
	}
	return n;
}

/*
 * Move it to where it is kept until its job is charged.
 */
static void
flight_keep(const FlightRecord *record)
{
	for (int i = 0; i < jobq_max_workers; i++)
	{
		if (kept[i].magic == FLIGHT_MAGIC && kept[i].state == FLIGHT_ACCUSED)
			continue;
		kept[i] = *record;
		kept[i].state = FLIGHT_ACCUSED;
		break;
	}
}

/*
 * The job was charged, and that is durable; or there is nobody to charge it.
 */
void
flight_clear_culprit(int record)
{
	if (kept != NULL)
		kept[record].state = FLIGHT_IDLE;
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
	for (int i = 1; i <= jobq_max_workers; i++)
	{
		FlightRecord record;

		if (flight_read(fd, i, &record) && record.state == FLIGHT_RUNNING &&
			(record.pid == pid || (starter != 0 && record.pid == starter)))
		{
			record.state = FLIGHT_ACCUSED;
			(void) flight_write(fd, i, &record);
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

/*
 * This process is the worker in the slot.
 */
void
flight_attach(int slot)
{
	if (header == NULL)
		return;
	mine = &records[slot];
	memset(mine, 0, sizeof(FlightRecord));
	mine->magic = FLIGHT_MAGIC;
	mine->dboid = MyDatabaseId;
	mine->pid = MyProcPid;
}

/*
 * This worker begins a job that has been charged with so many attempts, and of
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
