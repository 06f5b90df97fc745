/*-------------------------------------------------------------------------
 *
 * databases.c
 *	  Determines which databases are served, and assigns their slots in shared memory.
 *
 * worker/launcher/databases.c
 *
 *-------------------------------------------------------------------------
 */
#include "launcher/inner.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "commit/commit.h"
#include "store/store.h"

/* A name in jobq.databases. */
typedef struct Wanted
{
	const char *name;
	bool		exists;
	bool		servable;
} Wanted;

/* Return the names in jobq.databases. */
static List *
read_names(void)
{
	char	   *text = pstrdup(jobq_databases);
	List	   *names = NIL;
	List	   *wanted = NIL;
	ListCell   *lc;

	/* the check hook of the setting has verified the list */
	if (!SplitIdentifierString(text, ',', &names))
		return NIL;
	foreach(lc, names)
	{
		Wanted	   *name = palloc0(sizeof(Wanted));

		name->name = lfirst(lc);
		wanted = lappend(wanted, name);
	}
	return wanted;
}

/* True if the database is to be served.  Marks the name as found. */
static bool
is_wanted(List *names, const char *datname, bool servable)
{
	bool		found = false;
	ListCell   *lc;

	foreach(lc, names)
	{
		Wanted	   *wanted = lfirst(lc);

		if (strcmp(wanted->name, datname) == 0)
		{
			found = wanted->exists = true;
			wanted->servable = servable;
		}
		else if (strcmp(wanted->name, "*") == 0)
			found = wanted->exists = wanted->servable = true;
	}
	return found && servable;
}

/*
 * True if the database was left by an interrupted DROP DATABASE, and refuses connections.  A
 * database that is being dropped looks the same, but is locked.
 */
static bool
is_interrupted_drop(Form_pg_database form)
{
	LOCKTAG		tag;

	if (form->datconnlimit != DATCONNLIMIT_INVALID_DB)
		return false;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, form->oid, 0);
	if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	(void) LockRelease(&tag, AccessShareLock, false);
	return true;
}

/*
 * Return the OIDs of the databases to serve.  Names that do not denote a servable database are
 * added to *problems, as texts.  Runs a transaction; results are in the caller's memory
 * context.
 */
List *
served_databases(List **problems)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *names = read_names();
	List	   *dboids = NIL;
	ListCell   *lc;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (is_wanted(names, NameStr(form->datname),
					  !form->datistemplate && form->datallowconn))
		{
			MemoryContext old = MemoryContextSwitchTo(caller);

			if (form->datconnlimit != DATCONNLIMIT_INVALID_DB)
				dboids = lappend_oid(dboids, form->oid);
			else if (is_interrupted_drop(form))
				*problems = lappend(*problems,
									psprintf("database \"%s\" is not served: its DROP DATABASE was interrupted, and must be run again",
											 NameStr(form->datname)));
			MemoryContextSwitchTo(old);
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);

	foreach(lc, names)
	{
		Wanted	   *wanted = lfirst(lc);

		if (!wanted->exists)
			*problems = lappend(*problems,
								psprintf("database \"%s\" of \"jobq.databases\" does not exist",
										 wanted->name));
		else if (!wanted->servable)
			*problems = lappend(*problems,
								psprintf("database \"%s\" of \"jobq.databases\" is not served: it is a template, or takes no connections",
										 wanted->name));
	}
	return dboids;
}

/*
 * Return the slot of the database, assigned if necessary and possible, or NULL.  A slot of a
 * database that is gone is cleared first, because sessions find the slot before the scheduler
 * has started.  Takes JobqShared.lock and db->lock exclusively.
 */
JobqDatabase *
database_entry(Oid dboid)
{
	JobqDatabase *db = jobq_find_database(dboid);

	if (db != NULL)
		return db;
	LWLockAcquire(jobq_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < jobq_shared->ndatabases && db == NULL; i++)
	{
		if (!OidIsValid(jobq_shared->databases[i].dboid))
		{
			db = &jobq_shared->databases[i];
			LWLockAcquire(db->lock, LW_EXCLUSIVE);
			jobq_database_areas(db);
			db->life = ++jobq_shared->lives;
			db->copied = false;
			db->ntroubles = 0;
			memset(db->troubles, 0, sizeof(db->troubles));
			jobq_lengths_clear(db);
			jobq_ready_clear(db);
			jobq_leases_clear(db);
			jobq_relay_clear(db);
			db->leases->jobs = db->limits->jobs = InvalidOid;
			db->limits->loaded = false;
			db->nowed = 0;
			db->clock_seen = 0;
			db->ahead_until = InvalidTransactionId;
			db->ahead_since = InvalidTransactionId;
			db->ahead_more = 0;
			LWLockRelease(db->lock);
			pg_write_barrier(); /* see jobq_find_database() */
			db->dboid = dboid;
		}
	}
	LWLockRelease(jobq_shared->lock);
	return db;
}
