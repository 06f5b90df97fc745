/*-------------------------------------------------------------------------
 *
 * privileges.c
 *	  Privileges: the rows of jobq_internal.privilege, cached per backend.
 *
 * Every role may call the functions of jobq and read its views.  The privileges of the current
 * user are checked here when a call accesses a queue or a job.  A row of
 * jobq_internal.privilege gives a role a privilege for one queue, or for all queues if
 * queue_id is 0.  Roles with the privileges of this role, as defined by has_privs_of_role(),
 * have the privilege, too.  Roles with the privileges of the extension's owner may do
 * everything.
 *
 * GRANT is not used, for three reasons.  A role with privileges on sixty functions cannot be
 * dropped before they are revoked in each database.  A function added by an update would need
 * new grants.  And GRANT does not know queues.  Predefined roles of jobq with members are not
 * used, because roles belong to the cluster and an extension to a database.  A member would
 * have its privileges in all databases, a dump of the database would not contain them, and the
 * installation would need CREATEROLE.
 *
 * Results are cached until the table, a membership, a role or the database's owner changes.  A
 * trigger on the table turns a change of its rows into a change of the relation (queues.c).
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

/* Means the rows for all queues, and those for any single queue. */
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

/*
 * The privileges, and the bits for a row for all queues and for a row for one queue.
 */
static const struct
{
	const char *word;
	bool		for_queue;		/* can be granted for one queue */
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

/* The results used last, indexed by the last bits of the queue's id. */
#define NLAST	8
static CacheEntry last[NLAST];
static Oid	privilege_relation = InvalidOid;	/* source of the cache */

/* count of invalidations and aborts */
static uint64 changes = 0;

/*
 * Return the bits of a privilege, in a row for one queue or for all queues.  Returns 0 if
 * there is no such privilege.
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
 * Read the privileges of the user from the rows for this queue, from those for all queues (0),
 * or from all rows (ANYWHERE).
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
 * Like read_privileges(), but cached, with the privileges of the owner, and with those for all
 * queues.
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
 * Return the privileges of the current user, as bits JOBQ_MAY_*, for jobs and settings of this
 * queue, or of all queues if queue_id is 0.
 */
int
jobq_privileges(int32 queue_id)
{
	return look_up(GetUserId(), Max(queue_id, 0));
}

/* Like jobq_privileges(), for another role. */
int
jobq_privileges_of(Oid role, int32 queue_id)
{
	return look_up(role, Max(queue_id, 0));
}

/*
 * Return whether the current user has any privilege, for at least one queue.
 */
bool
jobq_may_use(void)
{
	return look_up(GetUserId(), ANYWHERE) != 0;
}

/*
 * Return whether the current user may operate jobs of other roles, in at least one queue.
 */
bool
jobq_is_operator(void)
{
	return (look_up(GetUserId(), ANYWHERE) & JOBQ_MAY_OPERATE) != 0;
}

/*
 * ERROR if the current user has none of these privileges for any queue.  The check for
 * functions that do not concern a single queue or job.
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
 * ERROR if the current user has none of these privileges for all queues.  what: the forbidden
 * action, for the message.
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
 * ERROR unless the current user has the privileges of the extension's owner.  what: the
 * forbidden action, for the message.
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
 * ERROR if the current user has none of these privileges for the queue.  name: for the
 * message.
 */
void
jobq_require_queue(int32 queue_id, const char *name, int privileges)
{
	if ((jobq_privileges(queue_id) & privileges) == 0)
		deny_queue(name);
}

/* Return the privileges of which one allows to enqueue into the queue. */
static int
to_produce(const JobqQueue *queue)
{
	return queue->open ? JOBQ_MAY_PRODUCE_OPEN | JOBQ_MAY_PRODUCE
		: JOBQ_MAY_PRODUCE;
}

/* ERROR if the current user may not enqueue into this queue. */
void
jobq_require_produce(const JobqQueue *queue)
{
	jobq_require_queue(queue->id, queue->name, to_produce(queue));
}

/* Return whether the role may enqueue into this queue. */
bool
jobq_may_produce(Oid role, const JobqQueue *queue)
{
	return (jobq_privileges_of(role, queue->id) & to_produce(queue)) != 0;
}

/*
 * Return whether the current user may see this queue.  open: the queue is open to all
 * producers.
 */
bool
jobq_may_see_queue(int32 queue_id, bool open)
{
	int			privileges = jobq_privileges(queue_id);

	return (privileges & ~JOBQ_MAY_PRODUCE_OPEN) != 0 ||
		(open && privileges != 0);
}

/*
 * ERROR if the current user may not see the queue.  Like enqueue(), the message reveals that
 * the queue exists, to a role with any privilege on jobq.
 */
void
jobq_require_visible(const JobqQueue *queue)
{
	if (!jobq_may_see_queue(queue->id, queue->open))
		deny_queue(queue->name);
}

/*
 * Return whether the current user may act for the role: change the role's schedules and
 * batches, and use the role's leases.
 */
bool
jobq_may_act_for(Oid role)
{
	return has_privs_of_role(GetUserId(), role) ||
		has_privs_of_role(GetUserId(), jobq_relations()->owner);
}

/*
 * Return whether the current user may make jobs that run as the role.  The privileges of the
 * role do not suffice, because they do not include attributes such as superuser.
 */
bool
jobq_may_become(Oid role)
{
	return jobq_can_set_role(GetUserId(), role);
}

/*
 * Return whether the role is a superuser only temporarily assumed by the session's user, and
 * jobq.allow_superuser_jobs forbids jobs of this role.
 */
bool
jobq_is_borrowed(Oid role)
{
	return superuser_arg(role) && jobq_allow_superuser_jobs == SUPERUSER_JOBS_OWN &&
		!superuser_arg(GetSessionUserId());
}

/*
 * ERROR if the role, under which jobs are to run, is a superuser and the session's user is
 * not.  The user has become a superuser by SET ROLE or in a function with SECURITY DEFINER.
 * Since PostgreSQL 18, this also happens in a foreign key's trigger, fired as the owner of a
 * table.  There, the privilege ends with the function, and is limited to its code.  A job
 * would run as superuser later, in another session, with a handler possibly changed by other
 * roles.
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
 * Return whether the current user may perform this operation on a job of the role in the
 * queue.  privilege is JOBQ_MAY_MONITOR (see the job and its state), JOBQ_MAY_OPERATE (cancel,
 * retry and move it) or JOBQ_MAY_MANAGE (see its contents, and delete it).  queue_id is 0 for
 * objects without a queue.
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
 * Return a number that changes whenever a result of this file may have changed, or which roles
 * have the privileges of a role.
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

/* Register the cache for invalidation.  Called once per process. */
void
jobq_privileges_install(void)
{
	jobq_cache_join(&cache);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, roles_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, roles_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(DATABASEOID, roles_changed, (Datum) 0);
}
