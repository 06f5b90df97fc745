/*-------------------------------------------------------------------------
 *
 * version.c
 *	  Supported versions of the extension's SQL.
 *
 * The library comes with the package, and is in use from the next start of the server.  Tables
 * and functions change by ALTER EXTENSION UPDATE, in each database at another time.  Each part
 * may therefore be older than the other for a while.  A library supports the versions listed
 * in JOBQ_SQL_VERSIONS. With any other version, the library reports this and accesses no
 * table.
 *
 * src/store/version.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "store/store.h"

#define PREFIX	"jobq's library works with: "

extern char jobq_sql_versions[];

/*
 * Not static and not constant, so that the compiler makes no assumption about the contents.
 * The array has spare room: test/t/module_upgrade.pl makes libraries of other versions by
 * writing there.
 */
char		jobq_sql_versions[sizeof(PREFIX) + 40] = PREFIX JOBQ_SQL_VERSIONS;

/*
 * Return the version of the extension's SQL in this database, or NULL if the extension was
 * dropped.
 */
static char *
version_of(Oid extension)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(extension));
	scan = systable_beginscan(rel, ExtensionOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(rel), &isnull);

		if (!isnull)
			version = TextDatumGetCString(value);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

static bool
is_listed(const char *version)
{
	const char *p = jobq_sql_versions + strlen(PREFIX);
	size_t		length = strlen(version);

	while (*p != '\0')
	{
		size_t		n = strcspn(p, " ");

		if (n == length && strncmp(p, version, n) == 0)
			return true;
		p += n;
		p += strspn(p, " ");
	}
	return false;
}

/*
 * Return whether the library supports the version of the extension in this database.
 */
bool
jobq_version_fits(Oid extension)
{
	char	   *version = version_of(extension);
	bool		fits = version != NULL && is_listed(version);

	if (version != NULL)
		pfree(version);
	return fits;
}

/*
 * Return whether the version is later than all supported versions.  Parts are compared as
 * numbers: 1.10 is later than 1.9.
 */
static bool
is_later(const char *version)
{
	const char *newest = strrchr(jobq_sql_versions, ' ') + 1;

	for (;;)
	{
		char	   *end,
				   *newest_end;
		long		a = strtol(version, &end, 10);
		long		b = strtol(newest, &newest_end, 10);

		if (a != b)
			return a > b;
		if (*end != '.' || *newest_end != '.')
			return *end != '\0' && *newest_end == '\0';
		version = end + 1;
		newest = newest_end + 1;
	}
}

/*
 * Report, at this level, that the library does not support the extension's version.  Does
 * nothing if the extension was dropped.
 */
void
jobq_report_version(int elevel, Oid extension)
{
	char	   *version = version_of(extension);

	if (version == NULL)
		return;
	ereport(elevel,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"jobq\" has version \"%s\" in database \"%s\", and the server's library of jobq does not work with it",
					version, get_database_name(MyDatabaseId)),
			 errdetail("%s.", jobq_sql_versions),
			 is_later(version) ?
			 errhint("Install the library of that version, and restart the server.") :
			 errhint("Run ALTER EXTENSION jobq UPDATE in that database.")));
}

/*
 * ERROR if the version is later than the library.  An older version is accepted, because it
 * may be a step on the way to a supported version: ALTER EXTENSION UPDATE runs a script for
 * each step.
 */
void
jobq_refuse_later_version(Oid extension)
{
	char	   *version = version_of(extension);

	if (version != NULL && !is_listed(version) && is_later(version))
		jobq_report_version(ERROR, extension);
}
