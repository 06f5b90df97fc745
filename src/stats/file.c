/*-------------------------------------------------------------------------
 *
 * file.c
 *	  Statistics on disk, which survive the end of the server.
 *
 * When the server is stopped, the postmaster writes all statistics after all other processes
 * have ended.  The file contains the location of the last checkpoint.  If this is still the
 * last checkpoint when the server starts, nothing has happened meanwhile, and the gauges are
 * exact.  Otherwise the jobs are counted anew, and the counters are those of the last file.
 * This happens after a crash, and where files of another server were copied or recovered.  The
 * launcher writes the file each minute in which something has happened.
 *
 * A server that starts as a standby, or recovers an archive, replays the work of other
 * servers.  The file then says nothing about the jobs that exist after the promotion.
 *
 * A damaged file, or a file of another layout, is not read.
 *
 * src/stats/file.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "stats/stats.h"

#define STATS_FILE	"pg_stat/jobq.stat"
#define STATS_TEMP	"pg_stat/jobq.stat.tmp"
#define STATS_MAGIC 0x4A515331	/* "JQS1" */

typedef struct FileHeader
{
	uint32		magic;
	uint32		record_size;
	uint64		system;
	XLogRecPtr	checkpoint;		/* at the server's end; 0: while running */
	int32		nbases;
	int32		nrecords;
	pg_crc32c	crc;			/* of the rest of the file */
} FileHeader;

typedef struct FileBase
{
	Oid			dboid;
	Oid			jobs;
	bool		known;
} FileBase;

typedef struct FileRecord
{
	JobqStatName name;
	JobqCounts	counts;
} FileRecord;

/*
 * Get the system identifier, and the shutdown checkpoint or InvalidXLogRecPtr.  False if the
 * control file is damaged.
 */
static bool
read_control(uint64 *system, XLogRecPtr *checkpoint)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);

	*system = control->system_identifier;
	*checkpoint = control->state == DB_SHUTDOWNED ? control->checkPoint
		: InvalidXLogRecPtr;
	pfree(control);
	return crc_ok;
}

static bool
write_part(FILE *file, const void *data, Size size, pg_crc32c *crc)
{
	if (crc != NULL)
		COMP_CRC32C(*crc, data, size);
	return fwrite(data, size, 1, file) == 1;
}

/* Write everything except the header. */
static bool
write_parts(FILE *file, FileHeader *header)
{
	FileRecord *record = palloc(sizeof(FileRecord));
	bool		written = true;

	INIT_CRC32C(header->crc);
	for (int i = 0; i < jobq_max_databases && written; i++)
	{
		const JobqStatBase *base = &jobq_stats->bases[i];
		FileBase	saved = {0};

		saved.dboid = base->dboid;
		saved.jobs = base->jobs;
		saved.known = jobq_stats_exact(base);
		if (!OidIsValid(saved.dboid))
			continue;
		written = write_part(file, &saved, sizeof(saved), &header->crc);
		header->nbases++;
	}
	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases && written;
		 place++)
	{
		memset(record, 0, sizeof(FileRecord));
		if (!jobq_stats_read(place, &record->name, &record->counts))
			continue;
		written = write_part(file, record, sizeof(FileRecord), &header->crc);
		header->nrecords++;
	}
	FIN_CRC32C(header->crc);
	pfree(record);
	return written;
}

/*
 * Write the file.  final: the postmaster is about to end.  Failures are logged, and raise no
 * error.
 */
static void
save(bool final)
{
	FileHeader	header = {0};
	FILE	   *file = AllocateFile(STATS_TEMP, PG_BINARY_W);
	bool		written;

	header.magic = STATS_MAGIC;
	header.record_size = sizeof(FileRecord);
	written = file != NULL && read_control(&header.system, &header.checkpoint);
	if (!final)
		header.checkpoint = InvalidXLogRecPtr;
	written = written && write_part(file, &header, sizeof(header), NULL) &&
		write_parts(file, &header) &&
		fseeko(file, 0, SEEK_SET) == 0 &&
		write_part(file, &header, sizeof(header), NULL);
	if (file != NULL && FreeFile(file) != 0)
		written = false;
	if (!written)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write the statistics of jobq to file \"%s\": %m",
						STATS_TEMP)));
		unlink(STATS_TEMP);
		return;
	}
	(void) durable_rename(STATS_TEMP, STATS_FILE, LOG);
}

/*
 * Write the file if something has happened or was removed since the last call.  Failures are
 * logged.
 */
void
jobq_stats_save(void)
{
	static TimestampTz saved = 0;
	static uint64 saved_changes = 0;
	uint64		changes = pg_atomic_read_u64(&jobq_stats->changes);
	TimestampTz used = 0;

	for (uint32 place = 0; place < jobq_stats->nstats + (uint32) jobq_max_databases; place++)
		used = Max(used, jobq_stats->stats[place].used_at);
	if (used == saved && changes == saved_changes)
		return;
	saved = used;
	saved_changes = changes;
	save(false);
}

/*
 * The postmaster ends.  After an immediate stop, processes were killed anywhere, possibly with
 * the mutex of a slot held.  Nothing is read unless the server was shut down cleanly.
 */
static void
save_at_exit(int code, Datum arg)
{
	uint64		system;
	XLogRecPtr	checkpoint;

	if (code == 0 && jobq_stats != NULL && read_control(&system, &checkpoint) &&
		!XLogRecPtrIsInvalid(checkpoint))
		save(true);
}

/* Read the whole file after its header.  NULL if the file is not valid. */
static char *
read_file(FILE *file, FileHeader *header)
{
	pg_crc32c	crc;
	Size		size;
	char	   *data;

	if (fread(header, sizeof(FileHeader), 1, file) != 1 ||
		header->magic != STATS_MAGIC ||
		header->record_size != sizeof(FileRecord) ||
		header->nbases < 0 || header->nbases > 1024 ||
		header->nrecords < 0 || header->nrecords > 1024 * 1024 + 1024)
		return NULL;
	size = header->nbases * sizeof(FileBase) +
		(Size) header->nrecords * sizeof(FileRecord);
	data = palloc_extended(size + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (data == NULL)
		return NULL;
	if (fread(data, 1, size + 1, file) != size)
		return NULL;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, data, size);
	FIN_CRC32C(crc);
	return EQ_CRC32C(crc, header->crc) ? data : NULL;
}

/*
 * True if this start replays the WAL of another server.  The server checks the same files in
 * its data directory, which is the current folder of the postmaster.
 */
static bool
follows_others(void)
{
	struct stat st;

	return stat(STANDBY_SIGNAL_FILE, &st) == 0 || stat(RECOVERY_SIGNAL_FILE, &st) == 0;
}

/*
 * Fill the new shared memory from the file, and register the write at the end of the server.
 * Runs in the postmaster, or in a single-user server.  A damaged file is logged and ignored.
 */
void
jobq_stats_load(void)
{
	TimestampTz now = GetCurrentTimestamp();
	FILE	   *file;
	FileHeader	header;
	uint64		system;
	XLogRecPtr	checkpoint;
	bool		exact;
	char	   *data;
	char	   *at;

	if (!IsUnderPostmaster)
		on_shmem_exit(save_at_exit, (Datum) 0);
	file = AllocateFile(STATS_FILE, PG_BINARY_R);
	if (file == NULL)
		return;
	data = at = read_file(file, &header);
	FreeFile(file);
	if (data == NULL)
	{
		ereport(LOG,
				(errmsg("the statistics of jobq begin anew: file \"%s\" is damaged, or of another version",
						STATS_FILE)));
		return;
	}
	exact = read_control(&system, &checkpoint) && header.system == system &&
		!XLogRecPtrIsInvalid(checkpoint) && header.checkpoint == checkpoint &&
		!follows_others();
	for (int i = 0; i < header.nbases; i++, at += sizeof(FileBase))
	{
		FileBase	saved;
		JobqStatBase *base;

		memcpy(&saved, at, sizeof(saved));
		base = jobq_stats_base(saved.dboid, saved.jobs, true, now);
		if (base != NULL)
		{
			base->known = exact && saved.known;
			base->recount = !base->known;
		}
	}
	for (int i = 0; i < header.nrecords; i++, at += sizeof(FileRecord))
	{
		FileRecord *record = palloc(sizeof(FileRecord));

		memcpy(record, at, sizeof(FileRecord));
		jobq_stats_put(&record->name, &record->counts, now);
		pfree(record);
	}
	pfree(data);
}
