/*-------------------------------------------------------------------------
 *
 * identity.c
 *	  Detects whether a served database is a copy.
 *
 * jobq_internal.served has a row with the identity under which the database is served: system
 * identifier of the cluster, OID of the database, timeline, and the base backup from which the
 * cluster was restored.  A copy contains the row of its original, and would run the same jobs.
 * pg_dump omits the table.
 *
 * Conclusions from the row and the server:
 *
 * - The same system identifier, but another OID: a copy by CREATE DATABASE ... TEMPLATE. The
 *   OID does not change when the database is renamed or moved to another tablespace.
 * - Another system identifier: pg_upgrade, or a row inserted by logical replication.  Not a
 *   copy.
 * - The same timeline, but another base backup: a copy started from a backup.  A missing label
 *   on the same timeline proves nothing, because an administrator may delete the label.
 * - A later timeline: a copy if recovery ended at a target (PITR).  The promotion of a standby
 *   has no target, and makes no copy.
 *
 * A snapshot of the file system, or a backup promoted by hand, looks like its original, and
 * does not count as a copy.
 *
 * src/store/identity.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/timeline.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/fd.h"

#include "store/store.h"

/*
 * Name under which the server keeps the label of the backup from which it has recovered.
 */
#define LABEL_FILE		"backup_label.old"

/* Reason in a timeline's history for a recovery without a target. */
#define NO_TARGET		"no recovery target specified"

typedef struct Identity
{
	int64		system;
	Oid			database;
	int32		timeline;
	int64		backup;			/* hash of its label; 0: none */
} Identity;

/*
 * Return a hash of the label of the base backup from which the cluster was restored, or 0 if
 * there is no label.  ERROR if the label cannot be read: if 0 were stored instead, the same
 * label would look like another backup at the next start.
 */
static int64
read_label(void)
{
	char		label[1024];
	size_t		length;
	FILE	   *file = AllocateFile(LABEL_FILE, PG_BINARY_R);
	int64		hash;

	if (file == NULL && errno == ENOENT)
		return 0;
	if (file == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", LABEL_FILE)));
	length = fread(label, 1, sizeof(label), file);
	if (ferror(file))
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read file \"%s\": %m", LABEL_FILE)));
	FreeFile(file);
	hash = (int64) DatumGetUInt64(hash_any_extended((unsigned char *) label, (int) length, 0));
	return hash != 0 ? hash : 1;
}

/*
 * Return whether a recovery to a target led from this timeline to the later one.  False if the
 * history cannot be read.
 */
static bool
had_target(int32 since, int32 timeline)
{
	char		path[MAXPGPATH];
	char		line[MAXPGPATH];
	FILE	   *file;
	bool		found = false;

	TLHistoryFilePath(path, (TimeLineID) timeline);
	file = AllocateFile(path, "r");
	if (file == NULL)
		return false;
	while (!found && fgets(line, sizeof(line), file) != NULL)
	{
		unsigned	parent;
		unsigned	high;
		unsigned	low;
		int			reason = 0;

		found = sscanf(line, "%u\t%X/%X\t%n", &parent, &high, &low, &reason) == 3 &&
			reason > 0 && (int32) parent >= since &&
			strncmp(line + reason, NO_TARGET, strlen(NO_TARGET)) != 0;
	}
	FreeFile(file);
	return found;
}

static void
read_identity(Identity *now)
{
	now->system = (int64) GetSystemIdentifier();
	now->database = MyDatabaseId;
	now->timeline = (int32) GetWALInsertionTimeLine();
	now->backup = read_label();
}

/*
 * Return whether this database is a copy. *known: the table has the present identity, and
 * needs no change.
 */
static bool
compare(const Identity *now, bool *known)
{
	uint64		n = jobq_query("SELECT system_identifier, database, timeline, backup FROM jobq_internal.served",
							   0, NULL, NULL, NULL, SPI_OK_SELECT);
	bool		elsewhere = false;

	*known = false;
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		Identity	then = {
			DatumGetInt64(jobq_column(row, desc, 1, INT8OID, NULL)),
			DatumGetObjectId(jobq_column(row, desc, 2, OIDOID, NULL)),
			DatumGetInt32(jobq_column(row, desc, 3, INT4OID, NULL)),
			DatumGetInt64(jobq_column(row, desc, 4, INT8OID, NULL))
		};

		if (then.system != now->system)
			continue;
		if (then.database != now->database)
		{
			elsewhere = true;
			continue;
		}
		if (then.timeline != now->timeline)
			return had_target(then.timeline, now->timeline);
		*known = now->backup == 0 || now->backup == then.backup;
		return !*known;
	}
	return elsewhere;
}

/*
 * Return whether this database is a copy of a served database.  If not, the present identity
 * is stored.  The caller is connected to SPI, and the server is not in recovery.
 */
bool
jobq_is_copy(void)
{
	Identity	now;
	bool		known;

	read_identity(&now);
	if (compare(&now, &known))
		return true;
	if (!known)
		jobq_serve_here();
	return false;
}

/*
 * Store the present identity, whether the database is a copy or not.  The caller is connected
 * to SPI.
 */
void
jobq_serve_here(void)
{
	static const Oid types[] = {INT8OID, OIDOID, INT4OID, INT8OID};
	Identity	now;
	Datum		values[lengthof(types)];

	read_identity(&now);
	values[0] = Int64GetDatum(now.system);
	values[1] = ObjectIdGetDatum(now.database);
	values[2] = Int32GetDatum(now.timeline);
	values[3] = Int64GetDatum(now.backup);
	jobq_query("INSERT INTO jobq_internal.served (system_identifier, database, timeline, backup)"
			   " VALUES ($1, $2, $3, $4)"
			   " ON CONFLICT (system_identifier, database)"
			   " DO UPDATE SET timeline = EXCLUDED.timeline, backup = EXCLUDED.backup",
			   lengthof(types), types, values, NULL, SPI_OK_INSERT);
}
