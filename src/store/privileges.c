/*-------------------------------------------------------------------------
 *
 * privileges.c
 *	  Who may do what: the rows of jobq_internal.privilege, cached per backend.
 *
 * Everybody may call jobq's functions and read its views; what a call does is
 * decided here, by the privileges of the current user, where a queue or a job is
 * touched.  A row of jobq_internal.privilege gives a role a privilege, for one
 * queue, or for all if its queue_id is 0.  Whoever has the privileges of that
 * role has it, too, as has_privs_of_role() says; whoever has those of the
 * extension's owner may do all.
 *
 * Why not GRANT: a role that has privileges on sixty functions cannot be dropped
 * before they are taken back, in each database; a function that an update brings
 * has to be granted anew; and GRANT knows no queues.  Why not roles of jobq's own,
 * with members: they belong to the cluster and the extension to a database, so
 * that a member would have its privileges in all databases, a dump of the
 * database would not have them, and whoever installs would need CREATEROLE.
 *
 * What was found is kept until the table, a membership, a role or the database's
 * owner changes.  A trigger on the table makes a change of its rows one
 * of the relation (queues.c).
 *
 * src/store/privileges.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "store/store.h"

/* Stands for "all queues, and those of which one alone is granted". */
#define ANYWHERE	(-1)

typedef struct CacheKey
{
	Oid			user;
	int32		queue_id;		/* or 0, or ANYWHERE */
} CacheKey;

typedef struct CacheEntry
{
	CacheKey	key;
	int			privileges;
} CacheEntry;

/* The words, in a row for all queues, and what they comprise. */
static const struct
{
	const char *word;
	bool		for_queue;		/* can be given for one queue */
	int			everywhere;
	int			queue;
}			words[] = {
	{"produce", true, JOBQ_MAY_PRODUCE_OPEN, JOBQ_MAY_PRODUCE},
	{"sql", true, JOBQ_MAY_SQL | JOBQ_MAY_PRODUCE_OPEN, JOBQ_MAY_SQL | JOBQ_MAY_PRODUCE},
	{"consume", true, JOBQ_MAY_CONSUME, JOBQ_MAY_CONSUME},
	{"monitor", false, JOBQ_MAY_MONITOR, 0},
	{"operate", false, JOBQ_MAY_MONITOR | JOBQ_MAY_OPERATE, 0},
	{"manage", true, JOBQ_MAY_ALL, JOBQ_MAY_ALL},
};

static HTAB *entries = NULL;

/* Those that were asked for last, by the last digits of the queue. */
#define NLAST	8
static CacheEntry last[NLAST];
static Oid	privilege_relation = InvalidOid;	/* that they were read from */

/* how often a message, or an abort, may have outdated what is kept here */
static uint64 changes = 0;

static void forget_privileges(void);

/*
 * What the word stands for, in a row for one queue or else for all; 0 if there is
 * no such privilege.
 */
int
jobq_privilege_word(const char *word, bool for_queue)
{
	for (int i = 0; i < (int) lengthof(words); i++)
		if (strcmp(words[i].word, word) == 0)
			return for_queue ? words[i].queue : words[i].everywhere;
	return 0;
}

/*
 * Read what the user may do by the rows for this queue, 0 for those that are for
 * all, or ANYWHERE.
 */
static int
read_privileges(Oid user, int32 queue_id)
{
	Relation	rel = jobq_open_table(JOBQ_PRIVILEGE_TABLE, AccessShareLock);
	bool		by_queue = queue_id != ANYWHERE;
	int			privileges = 0;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	privilege_relation = RelationGetRelid(rel);
	ScanKeyInit(&key, PRIVILEGE_QUEUE_ID, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(queue_id));
	scan = systable_beginscan(rel,
							  by_queue ? jobq_index(rel, JOBQ_PRIVILEGE_PKEY)
							  : InvalidOid,
							  by_queue, NULL, by_queue ? 1 : 0, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		Datum		values[PRIVILEGE_NATTS];
		bool		nulls[PRIVILEGE_NATTS];

		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		if (has_privs_of_role(user,
							  DatumGetObjectId(values[PRIVILEGE_ROLE - 1])))
			privileges |=
				jobq_privilege_word(TextDatumGetCString(values[PRIVILEGE_PRIVILEGE - 1]),
									DatumGetInt32(values[PRIVILEGE_QUEUE_ID - 1]) != 0);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return privileges;
}

/*
 * The same from the cache, or for all that the owner may.
 */
static int
look_up(Oid user, int32 queue_id)
{
	CacheKey	key = {user, queue_id};
	CacheEntry *recent = &last[(uint32) queue_id % NLAST];
	CacheEntry *entry;
	uint64		before;
	int			privileges;

	if (likely(recent->key.user == user && recent->key.queue_id == queue_id))
		return recent->privileges;
	if (entries != NULL &&
		(entry = hash_search(entries, &key, HASH_FIND, NULL)) != NULL)
	{
		*recent = *entry;
		return recent->privileges;
	}

	before = changes;
	if (has_privs_of_role(user, jobq_relations()->owner))
		privileges = JOBQ_MAY_ALL;
	else
		privileges = read_privileges(user, queue_id);
	if (queue_id > 0)
		privileges |= look_up(user, 0);
	if (changes != before)
		return privileges;
	if (entries == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(CacheKey);
		ctl.entrysize = sizeof(CacheEntry);
		ctl.hcxt = CacheMemoryContext;
		entries = hash_create("jobq privileges", 32, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	entry = hash_search(entries, &key, HASH_ENTER, NULL);
	entry->privileges = privileges;
	*recent = *entry;
	jobq_cache_filled();
	return privileges;
}

/*
 * What the current user may do, as bits JOBQ_MAY_*: with jobs and settings of
 * this queue, or of all if it is 0.
 */
int
jobq_privileges(int32 queue_id)
{
	return look_up(GetUserId(), Max(queue_id, 0));
}

/*
 * The same of another role than the current user.
 */
int
jobq_privileges_of(Oid role, int32 queue_id)
{
	return look_up(role, Max(queue_id, 0));
}

/*
 * Has the current user any privilege, for one queue at least?
 */
bool
jobq_may_use(void)
{
	return look_up(GetUserId(), ANYWHERE) != 0;
}

/*
 * An error if the current user has none of these privileges, for any queue at
 * least.  The entry of what is not about one queue or job.
 */
void
jobq_require(int privileges)
{
	if ((look_up(GetUserId(), ANYWHERE) & privileges) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for jobq"),
				 errhint("jobq.grant_privilege() gives a role privileges; the view jobq.grants shows which it has.")));
}

/*
 * An error if the current user has none of these privileges for all queues; then
 * he may not do "what".
 */
void
jobq_require_all(int privileges, const char *what)
{
	if ((jobq_privileges(0) & privileges) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to %s", what),
				 errhint("jobq.grant_privilege() gives a role privileges; the view jobq.grants shows which it has.")));
}

/*
 * An error unless the current user has the privileges of the extension's owner;
 * else he may not do "what".
 */
void
jobq_require_owner(const char *what)
{
	if (!has_privs_of_role(GetUserId(), jobq_relations()->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to %s", what),
				 errhint("The owner of the extension can, and superusers.")));
}

static void
deny_queue(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for queue \"%s\"", name),
			 errhint("jobq.grant_privilege() gives a role privileges; the view jobq.grants shows which it has.")));
}

/*
 * An error if the current user has none of these privileges for the queue of that
 * name.
 */
void
jobq_require_queue(int32 queue_id, const char *name, int privileges)
{
	if ((jobq_privileges(queue_id) & privileges) == 0)
		deny_queue(name);
}

/*
 * Which privileges for the queue let a role enqueue into it.
 */
static int
to_produce(const JobqQueue *queue)
{
	return queue->open ? JOBQ_MAY_PRODUCE_OPEN | JOBQ_MAY_PRODUCE
		: JOBQ_MAY_PRODUCE;
}

/*
 * An error if the current user may not enqueue into this queue.
 */
void
jobq_require_produce(const JobqQueue *queue)
{
	jobq_require_queue(queue->id, queue->name, to_produce(queue));
}

/*
 * May the role enqueue into this queue?
 */
bool
jobq_may_produce(Oid role, const JobqQueue *queue)
{
	return (jobq_privileges_of(role, queue->id) & to_produce(queue)) != 0;
}

/*
 * Does the current user learn that there is this queue, which is open to all
 * producers or not?
 */
bool
jobq_may_see_queue(int32 queue_id, bool open)
{
	int			privileges = jobq_privileges(queue_id);

	return (privileges & ~JOBQ_MAY_PRODUCE_OPEN) != 0 ||
		(open && privileges != 0);
}

/*
 * An error if jobq_may_see_queue() says no.  It tells a role with any privilege on
 * jobq that the queue exists, as enqueue() does.
 */
void
jobq_require_visible(const JobqQueue *queue)
{
	if (!jobq_may_see_queue(queue->id, queue->open))
		deny_queue(queue->name);
}

/*
 * May this session's user act for the role: change its schedules and batches,
 * and use its leases?
 */
bool
jobq_may_act_for(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), jobq_relations()->owner);
}

/*
 * May he make jobs that run as the role?  That is more than to have its privileges:
 * these do not include what the role is, such as a superuser.
 */
bool
jobq_may_become(Oid role)
{
	return jobq_can_set_role(GetUserId(), role);
}

/*
 * Is the role a superuser's that this session's user has only for a moment, and whose jobs
 * are not allowed then?
 */
bool
jobq_is_borrowed(Oid role)
{
	return superuser_arg(role) && jobq_allow_superuser_jobs == SUPERUSER_JOBS_OWN &&
		!superuser_arg(GetSessionUserId());
}

/*
 * An error if the role, as which jobs are to run, is a superuser, and whoever is
 * connected here is none: the user has become one by SET ROLE, or in a function of
 * a superuser (SECURITY DEFINER, or since PostgreSQL 18 a trigger that a foreign key
 * fires as the owner of a table).  There he is one as long as that lasts, and does what the function
 * does; a job would be one in a session of its own, later, with a handler that
 * others may change.
 */
void
jobq_refuse_borrowed(Oid role)
{
	if (jobq_is_borrowed(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to have jobs run as superuser \"%s\"",
						GetUserNameFromId(role, false)),
				 errdetail("The user of this session, \"%s\", is not a superuser.",
						   GetUserNameFromId(GetSessionUserId(), false)),
				 errhint("Enqueue as another role: give the function or table to one. Jobs that superusers enqueue only for a moment are allowed by \"%s\" = on.",
						 "jobq.allow_superuser_jobs")));
}

/*
 * May he do this, one of JOBQ_MAY_MONITOR (see that it is there, and its state),
 * JOBQ_MAY_OPERATE (cancel, retry and move it) and JOBQ_MAY_MANAGE (see its
 * contents, and delete it), with a job of the role in the queue?  What belongs to
 * no queue has the queue_id 0.
 */
bool
jobq_may(int privilege, Oid role, int32 queue_id)
{
	return has_privs_of_role(GetUserId(), role) ||
		(jobq_privileges(queue_id) & privilege) != 0;
}

static void
forget_privileges(void)
{
	changes++;
	memset(last, 0, sizeof(last));
	if (entries != NULL)
		hash_destroy(entries);
	entries = NULL;
}

/*
 * A number that has changed if anything that was asked here may have another answer,
 * and with it whose privileges a role has.
 */
uint64
jobq_privileges_changes(void)
{
	return changes;
}

static void
relation_changed(Oid relid)
{
	if (relid == InvalidOid || relid == privilege_relation)
		forget_privileges();
}

static void
roles_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	forget_privileges();
}

static const JobqCache cache = {
	.changed = relation_changed,
	.forget = forget_privileges,
};

/*
 * Have the cache told of changes; once per process.
 */
void
jobq_privileges_install(void)
{
	jobq_cache_join(&cache);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, roles_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, roles_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(DATABASEOID, roles_changed, (Datum) 0);
}
