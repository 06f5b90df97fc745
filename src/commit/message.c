/*-------------------------------------------------------------------------
 *
 * message.c
 *	  Notifications by the relay, or by the transaction itself.
 *
 * src/commit/message.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "commit/inner.h"

/* A message with a reserved slot in the relay. */
typedef struct PendingMessage
{
	SubTransactionId subid;
	bool		by_user;		/* jobq.notify() or its trigger */
	uint32		account;		/* account of the slot: see shares.h */
	int64		life;			/* JobqDatabase.life of the relay */
	struct PendingMessage *next;
	JobqRelayMessage message;
} PendingMessage;

/*
 * An internal message of jobq, sent as a plain NOTIFY if this transaction commits.
 */
typedef struct PlainMessage
{
	SubTransactionId subid;
	char		channel[NAMEDATALEN];
	struct PlainMessage *next;
	char		payload[FLEXIBLE_ARRAY_MEMBER];
} PlainMessage;

static int	nmessages = 0;		/* reserved slots */

static PendingMessage *messages = NULL; /* newest first */

static PlainMessage *plain = NULL;	/* oldest first */
static PlainMessage *last_plain = NULL;

static bool notifies = false;	/* the transaction calls NOTIFY directly */

static bool reserve(JobqDatabase *db, PendingMessage *pending);
static void notify_plainly(const char *channel, const char *payload, bool by_user);

/*
 * Drop all messages and all reserved slots, because the memory was assigned to another
 * database.  The caller holds db->lock.
 */
void
jobq_relay_clear(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	db->told->relay_head = db->told->relay_count = db->told->relay_reserved = 0;
	db->relay_pending = false;
	jobq_shares_set(db->shares, JOBQ_OF_MESSAGES, JOBQ_RELAY_SIZE);
}

/*
 * Return whether an equal message waits to be sent.  Then the new message is superfluous.
 */
static bool
relay_has(JobqDatabase *db, const JobqRelayMessage *message)
{
	AssertExclusive(db->lock);
	for (uint32 i = db->told->relay_count; i > 0 && i + 16 > db->told->relay_count; i--)
	{
		JobqRelayMessage *other =
			&db->told->relay[(db->told->relay_head + i - 1) % JOBQ_RELAY_SIZE];

		/*
		 * only the newest of the channel: the same text may be news again
		 * later
		 */
		if (strcmp(other->channel, message->channel) == 0)
			return strcmp(other->payload, message->payload) == 0;
	}
	return false;
}

/*
 * Send a notification through the relay: the scheduler sends it after the commit, without
 * holding the lock of NOTIFY during the commit's flush.
 *
 * The slot in the ring is reserved now, so that no step can fail at commit.  The notification
 * becomes a plain NOTIFY of this transaction in three cases: the relay is not running, the
 * relay is full, or the payload is too long.
 *
 * by_user: the transaction cannot be prepared.  Without by_user, PREPARE TRANSACTION drops
 * the message.  ERROR if the channel name is invalid.  Takes db->lock.
 */
void
jobq_relay(const char *channel, const char *payload, bool by_user)
{
	JobqDatabase *db = jobq_my_database();
	PendingMessage *pending = NULL;

	/*
	 * the rules of NOTIFY, so that the relay can send every accepted message
	 */
	if (channel[0] == '\0' || strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name \"%s\" must have 1 to %d bytes",
						channel, NAMEDATALEN - 1)));

	/* drop duplicates, as NOTIFY does */
	{
		SubTransactionId subid = GetCurrentSubTransactionId();
		PendingMessage *message = messages;

		for (int i = 0; i < 16 && message != NULL; i++)
		{
			if (message->subid == subid &&
				strcmp(message->message.channel, channel) == 0 &&
				strcmp(message->message.payload, payload) == 0)
				return;
			message = message->next;
		}
	}

	if (db != NULL && strlen(payload) < JOBQ_RELAY_PAYLOAD)
	{
		pending = MemoryContextAlloc(TopTransactionContext,
									 sizeof(PendingMessage));
		pending->subid = GetCurrentSubTransactionId();
		pending->by_user = by_user;
		strlcpy(pending->message.channel, channel, NAMEDATALEN);
		strlcpy(pending->message.payload, payload, JOBQ_RELAY_PAYLOAD);
	}
	if (pending == NULL || !reserve(db, pending))
	{
		if (pending != NULL)
			pfree(pending);
		notify_plainly(channel, payload, by_user);
	}
}

/*
 * Send a plain NOTIFY in this transaction, or at its commit.  The commit then waits for the
 * flush and for synchronous standbys, even in a worker or with synchronous_commit = off: see
 * messages_before_commit() and flush.c.
 */
static void
notify_plainly(const char *channel, const char *payload, bool by_user)
{
	PlainMessage *message;

	if (by_user)
	{
		notifies = true;
		Async_Notify(channel, payload);
		return;
	}
	message = MemoryContextAlloc(TopTransactionContext,
								 offsetof(PlainMessage, payload) + strlen(payload) + 1);
	message->subid = GetCurrentSubTransactionId();
	strlcpy(message->channel, channel, NAMEDATALEN);
	strcpy(message->payload, payload);
	message->next = NULL;
	if (plain == NULL)
		plain = message;
	else
		last_plain->next = message;
	last_plain = message;
}

/*
 * Reserve a slot for this message.  Returns false if no slot is free, or if open transactions
 * of this role have used up the role's quota.  Takes db->lock; cannot fail.
 */
static bool
reserve(JobqDatabase *db, PendingMessage *pending)
{
	Oid			role = GetUserId();
	bool		room;

	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	room = db->dboid == MyDatabaseId && db->scheduler != NULL &&
		db->told->relay_count + db->told->relay_reserved < JOBQ_RELAY_SIZE &&
		jobq_share_left(db->shares, role, JOBQ_OF_MESSAGES);
	if (room)
	{
		db->told->relay_reserved++;
		pending->account = jobq_share_take(db->shares, role, JOBQ_OF_MESSAGES);
		pending->life = db->life;
	}
	LWLockRelease(db->lock);
	if (room)
	{
		nmessages++;
		pending->next = messages;
		messages = pending;
	}
	return room;
}

/*
 * Release the reserved slots.  If the database has lost the slot meanwhile, the relay was
 * cleared.
 */
static void
give_places(JobqDatabase *db)
{
	AssertExclusive(db->lock);
	for (PendingMessage *message = messages; message != NULL;
		 message = message->next)
	{
		if (message->life != db->life)
			continue;
		Assert(db->told->relay_reserved > 0);
		jobq_share_give(db->shares, message->account, JOBQ_OF_MESSAGES);
		db->told->relay_reserved--;
	}
	nmessages = 0;
	messages = NULL;
}

/*
 * Send through the relay without waiting for the end of this transaction.  The message is
 * dropped if the relay is half full, because the next message of this sort replaces it.  The
 * other half of the ring is for messages that must not be lost.  Takes db->lock.
 */
void
jobq_relay_now(const char *channel, const char *payload)
{
	JobqDatabase *db = jobq_my_database();
	JobqWakeList wake = {0};
	JobqRelayMessage message = {0};

	if (db == NULL)
		return;
	strlcpy(message.channel, channel, NAMEDATALEN);
	strlcpy(message.payload, payload, JOBQ_RELAY_PAYLOAD);
	LWLockAcquire(db->lock, LW_EXCLUSIVE);
	if (db->dboid == MyDatabaseId && db->scheduler != NULL &&
		!relay_has(db, &message) &&
		db->told->relay_count + db->told->relay_reserved < JOBQ_RELAY_SIZE / 2)
	{
		db->told->relay[(db->told->relay_head + db->told->relay_count) % JOBQ_RELAY_SIZE] =
			message;
		db->told->relay_count++;
		jobq_relay_mark(db, jobq_now(), &wake);
	}
	jobq_unlock(db, &wake);
}

/*
 * Put the messages into the ring in the order in which they were sent.  The list has the
 * newest message first.  The list is reversed in place, because no allocation is allowed
 * here.  Cannot fail.
 */
static void
messages_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	PendingMessage *ordered = NULL;
	PendingMessage *message = messages;

	AssertExclusive(db->lock);
	give_places(db);
	while (message != NULL)
	{
		PendingMessage *next = message->next;

		message->next = ordered;
		ordered = message;
		message = next;
	}
	for (; ordered != NULL; ordered = ordered->next)
	{
		if (ordered->message.channel[0] == '\0' || ordered->life != db->life ||
			relay_has(db, &ordered->message))
			continue;
		Assert(db->told->relay_count < JOBQ_RELAY_SIZE);
		db->told->relay[(db->told->relay_head + db->told->relay_count) % JOBQ_RELAY_SIZE] =
			ordered->message;
		db->told->relay_count++;
	}
	jobq_relay_mark(db, now, wake);
}

/* Drop the messages of a subtransaction that was rolled back. */
static void
messages_drop(SubTransactionId since)
{
	for (PendingMessage *message = messages; message != NULL;
		 message = message->next)
		if (message->subid >= since)
			message->message.channel[0] = '\0';
	for (PlainMessage *message = plain; message != NULL; message = message->next)
		if (message->subid >= since)
			message->channel[0] = '\0';
}

/*
 * Release the slots of unsent messages, because the transaction was aborted or prepared.
 */
static void
messages_forget(void)
{
	JobqDatabase *db = jobq_my_database();

	if (nmessages > 0 && db != NULL)
	{
		LWLockAcquire(db->lock, LW_EXCLUSIVE);
		give_places(db);
		LWLockRelease(db->lock);
	}
	nmessages = 0;
	messages = NULL;
}

/* PREPARE TRANSACTION: ERROR if the user has sent a notification. */
static void
messages_check_prepare(void)
{
	for (PendingMessage *message = messages; message != NULL;
		 message = message->next)
		if (message->by_user && message->message.channel[0] != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has called jobq.notify()")));
}

static bool
messages_noted(void)
{
	return nmessages > 0 || plain != NULL || notifies;
}

/*
 * The transaction commits, and is not prepared: send the internal messages.  A transaction
 * with a NOTIFY waits for the flush of its commit.
 */
static void
messages_before_commit(void)
{
	for (PlainMessage *message = plain; message != NULL; message = message->next)
		if (message->channel[0] != '\0')
			notify_plainly(message->channel, message->payload, true);
	if (notifies && synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		(void) set_config_option("synchronous_commit", "on", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static bool
messages_pending(JobqDatabase *db)
{
	notifies = false;
	plain = NULL;
	if (db == NULL)
		messages_forget();
	return nmessages > 0;
}

static void
messages_abort(SubTransactionId since)
{
	if (since == InvalidSubTransactionId)
	{
		notifies = false;
		plain = NULL;
		messages_forget();
	}
	else
		messages_drop(since);
}

const JobqCommitBooks message_books =
{
	.noted = messages_noted,
	.before_commit = messages_before_commit,
	.pending = messages_pending,
	.commit = messages_commit,
	.abort = messages_abort,
	.check_prepare = messages_check_prepare,
};
