/*-------------------------------------------------------------------------
 *
 * message.c
 *	  Notifications on their way to the relay, or by the transaction itself.
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

/* A message whose place in the relay is reserved. */
typedef struct PendingMessage
{
	SubTransactionId subid;
	bool		by_user;		/* jobq.notify() or its trigger */
	uint32		account;		/* whose share its place is: see shares.h */
	int64		life;			/* JobqDatabase.life: whose relay has the
								 * place */
	struct PendingMessage *next;
	JobqRelayMessage message;
} PendingMessage;

/* A message of jobq's own that is a plain NOTIFY if this transaction commits. */
typedef struct PlainMessage
{
	SubTransactionId subid;
	char		channel[NAMEDATALEN];
	struct PlainMessage *next;
	char		payload[FLEXIBLE_ARRAY_MEMBER];
} PlainMessage;

static int	nmessages = 0;		/* places that are reserved */

static PendingMessage *messages = NULL; /* newest first */

static PlainMessage *plain = NULL;	/* oldest first */
static PlainMessage *last_plain = NULL;

static bool notifies = false;	/* this transaction does so itself */

static bool reserve(JobqDatabase *db, PendingMessage *pending);
static void notify_plainly(const char *channel, const char *payload, bool by_user);

/*
 * Forget all messages, and the places of open transactions: the memory belongs to
 * another database.  Wants db->lock.
 */
void
jobq_relay_clear(JobqDatabase *db)
{
	db->told->relay_head = db->told->relay_count = db->told->relay_reserved = 0;
	db->relay_pending = false;
	jobq_shares_set(db->shares, JOBQ_OF_MESSAGES, JOBQ_RELAY_SIZE);
}

/*
 * Collapse with a message that is still to be sent; true if there is one.
 */
static bool
relay_has(JobqDatabase *db, const JobqRelayMessage *message)
{
	for (uint32 i = db->told->relay_count; i > 0 && i + 16 > db->told->relay_count; i--)
	{
		JobqRelayMessage *other =
			&db->told->relay[(db->told->relay_head + i - 1) % JOBQ_RELAY_SIZE];

		/* only the newest: what came in between made it news again */
		if (strcmp(other->channel, message->channel) == 0)
			return strcmp(other->payload, message->payload) == 0;
	}
	return false;
}

/*
 * Send a notification through the relay: after commit, by the scheduler,
 * without the lock that NOTIFY holds across the commit's flush.
 *
 * The place in the ring is reserved now, so that nothing can fail at commit.
 * Where the relay is not running, is full, or the payload is too long for it,
 * the notification becomes a plain NOTIFY of this transaction.
 *
 * What is not sent by the user does not keep the transaction from being prepared, whichever
 * of the two it is: it is not sent then.
 */
void
jobq_relay(const char *channel, const char *payload, bool by_user)
{
	JobqDatabase *db = jobq_my_database();
	PendingMessage *pending = NULL;

	/* the same rules as NOTIFY's, so that the relay can send all it takes */
	if (channel[0] == '\0' || strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("channel name \"%s\" must have 1 to %d bytes",
						channel, NAMEDATALEN - 1)));

	/* duplicates collapse, as those of NOTIFY do */
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
 * A NOTIFY of this transaction, or of its commit.  Told means durable: that waits for the
 * flush, and for synchronous standbys, even if it is a worker's or the session does not want
 * that of its commits (messages_before_commit()).
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
 * Reserve the place of this message, or not if there is none, or open
 * transactions of this role have their share: which cannot fail.
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
 * Give up the places that are reserved.  If the database was left since, its relay
 * has forgotten them.  Wants db->lock.
 */
static void
give_places(JobqDatabase *db)
{
	for (PendingMessage *message = messages; message != NULL;
		 message = message->next)
	{
		if (message->life != db->life)
			continue;
		jobq_share_give(db->shares, message->account, JOBQ_OF_MESSAGES);
		db->told->relay_reserved--;
	}
	nmessages = 0;
	messages = NULL;
}

/*
 * Send through the relay without waiting for this transaction's end.  The
 * message is dropped if the relay is half full: it tells of something that is
 * overtaken by the next such message anyway, and must leave room for those that
 * are not.
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
 * The messages in the order in which they were given, though the list has the
 * newest first.  No allocation is allowed here, so the list is reversed.
 * Wants db->lock; cannot fail.
 */
static void
messages_commit(JobqDatabase *db, TimestampTz now, JobqWakeList *wake)
{
	PendingMessage *ordered = NULL;
	PendingMessage *message = messages;

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
		db->told->relay[(db->told->relay_head + db->told->relay_count) % JOBQ_RELAY_SIZE] =
			ordered->message;
		db->told->relay_count++;
	}
	jobq_relay_mark(db, now, wake);
}

/*
 * What a subtransaction wanted to send is not sent.
 */
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
 * Give back the places of what is not sent: the transaction did not commit,
 * or was prepared.
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

/*
 * PREPARE TRANSACTION: an error if the user has sent something.
 */
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
 * The transaction is not prepared, but commits; and for good, if it has a NOTIFY of its own.
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
