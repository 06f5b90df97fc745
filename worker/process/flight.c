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
 * When a server process crashes, the postmaster sends SIGQUIT to all others.
 * A worker's handler for that marks its record BYSTANDER.  So after the crash
 * exactly the records of workers that did not get that far - the culprit's,
 * if it was a worker - are RUNNING.  The next launcher reads them, and the
 * scheduler of the database charges the job.  The record stays until the
 * charge is durable, so that a crash in between loses nothing; charging twice
 * is prevented by the attempt's number.
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

#define FLIGHT_FILE		"pg_stat_tmp/jobq_flight"
#define FLIGHT_MAGIC	0x4A515631	/* "JQV1" */

enum
{
	FLIGHT_IDLE = 0,
	FLIGHT_RUNNING,
	FLIGHT_BYSTANDER
};

typedef struct FlightRecord
{
	uint32		magic;
	volatile uint32 state;
	int64		job_id;
	Oid			dboid;
	int32		attempt;
	char		pad[40];
} FlightRecord;

StaticAssertDecl(sizeof(FlightRecord) == 64, "flight record has 64 bytes");

/*
 * Records [0, max_workers) are the workers'; as many again behind them keep
 * the culprits that are still to be charged.
 */
static FlightRecord *records = NULL;
static FlightRecord *mine = NULL;

#define NRECORDS		(2 * jobq_max_workers)

/*
 * Map the file; the launcher creates it.  Without it jobq runs all the same,
 * and a crash is charged to nobody.
 */
void
flight_open(bool create)
{
	Size		size = NRECORDS * sizeof(FlightRecord);
	struct stat st;
	int			fd;
	void	   *map;

	if (records != NULL)
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
	records = map;
}

/*
 * Collect the culprits of the last crash.  Called by the first launcher after
 * a start, before there are workers.
 */
int
flight_read_culprits(Oid *dboids, JobqCulprit *culprits, int max)
{
	int			n = 0;

	if (records == NULL)
		return 0;

	/* move what the workers left to the records that are kept */
	for (int i = 0; i < jobq_max_workers; i++)
	{
		FlightRecord *record = &records[i];

		if (record->magic == FLIGHT_MAGIC && record->state == FLIGHT_RUNNING)
		{
			for (int j = jobq_max_workers; j < NRECORDS; j++)
			{
				if (records[j].state != FLIGHT_RUNNING)
				{
					records[j] = *record;
					break;
				}
			}
		}
		record->state = FLIGHT_IDLE;
	}
	for (int j = jobq_max_workers; j < NRECORDS && n < max; j++)
	{
		if (records[j].magic != FLIGHT_MAGIC ||
			records[j].state != FLIGHT_RUNNING)
			continue;
		dboids[n] = records[j].dboid;
		culprits[n].job_id = records[j].job_id;
		culprits[n].attempt = records[j].attempt;
		culprits[n].record = j;
		n++;
	}
	return n;
}

/*
 * The culprit was charged, and that is durable.
 */
void
flight_clear_culprit(int record)
{
	if (records != NULL)
		records[record].state = FLIGHT_IDLE;
}

/*
 * This process is the worker in the slot.
 */
void
flight_attach(int slot)
{
	if (records == NULL)
		return;
	mine = &records[slot];
	memset(mine, 0, sizeof(FlightRecord));
	mine->magic = FLIGHT_MAGIC;
	mine->dboid = MyDatabaseId;
}

/*
 * This worker begins a job that has been charged with so many attempts.
 */
void
flight_begin(int64 id, int attempt)
{
	if (mine == NULL)
		return;
	mine->job_id = id;
	mine->attempt = attempt;
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
