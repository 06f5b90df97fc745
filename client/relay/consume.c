/*-------------------------------------------------------------------------
 *
 * consume.c
 *	  Messages of a broker become jobs.
 *
 * All messages that have arrived during a statement go into the next statement, which is
 * a transaction.  The broker gets the acknowledgements after the commit.  If a connection
 * is lost between the two, the messages come again.  The id of a message makes the uuid
 * of its job, so the second enqueue returns the first job.
 *
 * If a statement fails because of a single message, each message is enqueued alone.  A
 * message that cannot be a job is rejected, and the broker sends it to the dead letter
 * exchange of its queue.
 *
 * client/relay/consume.c
 *
 *-------------------------------------------------------------------------
 */
#include "relay/relay.h"

#ifdef HAVE_RABBITMQ

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_AT_A_TIME	1000
#define MOST_BYTES		4000000 /* per statement, beyond the first message */
#define PATIENCE		60.0	/* for an answer of the server, in seconds */
#define RETRY_PAUSE		1.0
#define STOP_TIME		5.0		/* after a signal, for the last statement */
#define EMPTY_TIME		1.0		/* without a message: the queue is empty */
#define CLOSE_TIME		5.0		/* to send the last acknowledgements */
#define MOST_SAID		300		/* columns of an error */
#define MOST_OF_ID		100

#define UNKNOWN_KIND	"JQ001"
#define RESERVED_KIND	"42939"
#define NOT_PERMITTED	"42501"
#define QUEUE_FULL		"JQ015"

enum
{
	COLUMN_KIND, COLUMN_BODY, COLUMN_HEADERS, COLUMN_ID, COLUMN_HOW, NCOLUMNS
};

static const char enqueue_sql[] =
"SELECT jobq.enqueue(m.kind, CASE WHEN m.how OPERATOR(pg_catalog.=) 'text' THEN pg_catalog.to_jsonb(m.body) "
"ELSE m.body::pg_catalog.jsonb END, queue => $6::pg_catalog.text, headers => m.headers::pg_catalog.jsonb, "
"options => CASE WHEN m.id IS NOT NULL THEN pg_catalog.jsonb_build_object('uuid', "
"pg_catalog.md5($7::pg_catalog.text OPERATOR(pg_catalog.||) ':' OPERATOR(pg_catalog.||) m.id)) END) "
"FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]), "
"pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[]), "
"pg_catalog.unnest($5::pg_catalog.text[])) AS m(kind, body, headers, id, how) "
/* an acknowledged message is gone: no setting of the role weakens the commit */
"WHERE (SELECT pg_catalog.set_config('synchronous_commit', CASE WHEN pg_catalog.current_setting('synchronous_commit') "
"OPERATOR(pg_catalog.=) 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)) IS NOT NULL";

/* A row if the queue exists, or the first job creates it. */
static const char queue_sql[] =
"SELECT FROM jobq.queues AS q WHERE q.name OPERATOR(pg_catalog.=) $1::pg_catalog.text UNION ALL "
"SELECT WHERE pg_catalog.current_setting('jobq.create_queues', true) OPERATOR(pg_catalog.=) 'consumer'";

static ConsumeOptions consume;
static Link server;
static Message *held;			/* not yet enqueued, oldest first */
static Message *batch[MOST_AT_A_TIME];	/* in the statement in progress */
static int	nbatch;
static int	alone;				/* so many messages are enqueued alone */
static char *unknown_kind;		/* the error of a message whose queue is
								 * looked up; or NULL */
static const char *ids_of;		/* virtual host and queue, for the uuids */
static double pause_until;
static double busy_at;			/* when a message was last seen */
static bool hopeless;

static void take_error(const PGresult *result);
static bool is_of_type(const PGresult *result);
static void reject_single(const char *why);
static void look_for_queue(const char *why);
static void take_queue(const PGresult *result);

/*
 * True if the body becomes a text instead of JSON.
 */
static bool
is_text(const Message *message)
{
	size_t		length;

	if (consume.body != BODY_AUTO || message->content_type == NULL)
		return consume.body == BODY_TEXT;
	length = strcspn(message->content_type, "; ");
	return length < 4 || strncmp(message->content_type + length - 4, "json", 4) != 0;
}

/*
 * The queue of --queue must exist.  Otherwise a mistyped name would reject all messages.
 */
static void
check_queue(void)
{
	PGconn	   *conn;
	PGresult   *result;

	if (consume.queue == NULL)
		return;
	conn = connect_now();
	result = query(conn, queue_sql, 1, &consume.queue);
	take_queue(result);
	PQclear(result);
	PQfinish(conn);
	if (hopeless)
		exit(EXIT_REFUSED);
}

/*
 * A message cannot become a job.
 */
static void
reject(Message *message, const char *why)
{
	char	   *id = harmless_text(message->id != NULL ? message->id : "", MOST_OF_ID);
	char	   *said = harmless_text(why, MOST_SAID);

	say("message \"%s\" is rejected: %s", id, said);
	free(id);
	free(said);
	broker_settle(message, false);
}

/*
 * Add the messages that have arrived.  Drop messages that come again on another
 * connection.
 */
static void
take_messages(void)
{
	Message   **last = &held;
	Message    *message;

	while (*last != NULL)
		last = &(*last)->next;
	while ((message = broker_next()) != NULL)
	{
		busy_at = seconds();
		if (memchr(message->body, 0, message->length) != NULL)
			reject(message, "its body contains a zero byte");
		else if (consume.kind == NULL && message->type == NULL)
			reject(message, "it has no type, and --kind is not given");
		else
		{
			message->next = NULL;
			*last = message;
			last = &message->next;
		}
	}
	while (held != NULL && !broker_is_current(held))
	{
		message = held;
		held = message->next;
		message_free(message);
		alone = 0;
	}
}

/*
 * The messages of the statement are not enqueued, or perhaps: repeat them later.
 */
static void
put_back(void)
{
	while (nbatch > 0)
	{
		batch[--nbatch]->next = held;
		held = batch[nbatch];
	}
}

/*
 * Send a statement with the messages held.
 */
static void
enqueue(void)
{
	static const char *columns[NCOLUMNS][MOST_AT_A_TIME];
	const char *values[NCOLUMNS + 2];
	size_t		bytes = 0;

	if (server.state != LINK_IDLE || seconds() < pause_until || hopeless)
		return;
	while (held != NULL && nbatch < (alone > 0 ? 1 : MOST_AT_A_TIME))
	{
		Message    *message = held;

		if (nbatch > 0 && (bytes += message->length) > MOST_BYTES)
			break;
		held = message->next;
		columns[COLUMN_KIND][nbatch] = consume.kind != NULL ? consume.kind : message->type;
		columns[COLUMN_BODY][nbatch] = message->body;
		columns[COLUMN_HEADERS][nbatch] = message->headers;
		columns[COLUMN_ID][nbatch] = consume.ignore_ids ? NULL : message->id;
		columns[COLUMN_HOW][nbatch] = is_text(message) ? "text" : "json";
		batch[nbatch++] = message;
	}
	if (nbatch == 0)
		return;
	for (int i = 0; i < NCOLUMNS; i++)
		values[i] = array_of(nbatch, columns[i]);
	values[NCOLUMNS] = consume.queue;
	values[NCOLUMNS + 1] = ids_of;
	if (!link_send(&server, PATIENCE, enqueue_sql, NCOLUMNS + 2, values))
		put_back();
	for (int i = 0; i < NCOLUMNS; i++)
		free((char *) values[i]);
}

/*
 * The server has answered.
 */
static void
take_result(const PGresult *result)
{
	busy_at = seconds();
	if (unknown_kind != NULL)
	{
		take_queue(result);
		return;
	}
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		take_error(result);
		return;
	}
	for (int i = 0; i < nbatch; i++)
	{
		if (consume.verbose)
		{
			char	   *id = harmless_text(batch[i]->id != NULL ? batch[i]->id : "", MOST_OF_ID);

			say("message \"%s\": job %s", id, PQgetvalue(result, i, 0));
			free(id);
		}
		broker_settle(batch[i], true);
	}
	if (alone > 0)
		alone--;
	nbatch = 0;
}

/*
 * A statement has failed.
 */
static void
take_error(const PGresult *result)
{
	const char *state = sqlstate_of(result);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	bool		of_type = is_of_type(result);
	bool		may_pass;
	bool		full = strcmp(state, QUEUE_FULL) == 0;
	bool		of_message = of_type || strncmp(state, "22", 2) == 0 || strncmp(state, "54", 2) == 0;
	bool		of_setup = strcmp(state, UNKNOWN_KIND) == 0 || strncmp(state, "42", 2) == 0 || strncmp(state, "3F", 2) == 0;

	if (message == NULL)
		message = PQresultErrorMessage(result);

	/* a full queue of NOTIFY has the SQLSTATE of a message that is too large */
	may_pass = strncmp(state, "54", 2) == 0 ? error_is_of(result, "async.c") : error_may_pass(state);
	if (may_pass || (nbatch == 1 && (full || (!of_message && !of_setup))))
	{
		char	   *said = harmless_text(message, MOST_SAID);

		if (trouble_is_news(said))
			say("could not enqueue messages: %s", said);
		free(said);
		put_back();
		pause_until = seconds() + RETRY_PAUSE;
	}
	else if (nbatch > 1)
	{
		/* a single message is at fault, or the queue has room for a part */
		alone = nbatch;
		put_back();
	}
	else if (!of_message)
	{
		/* the next message would fail as well */
		say_result_error(result);
		put_back();
		hopeless = true;
	}
	else if (strcmp(state, UNKNOWN_KIND) == 0 && consume.queue != NULL)
		look_for_queue(message);
	else
		reject_single(message);
}

/*
 * True if the error is because of the type of the message, which is the kind of its job.
 */
static bool
is_of_type(const PGresult *result)
{
	const char *state = sqlstate_of(result);

	if (consume.kind != NULL)
		return false;
	if (strcmp(state, UNKNOWN_KIND) == 0 || strcmp(state, RESERVED_KIND) == 0)
		return true;

	/* the queue is of the type too; not so a privilege for jobq itself */
	return consume.queue == NULL && strcmp(state, NOT_PERMITTED) == 0 && !error_is_of(result, "aclchk.c");
}

/*
 * The message enqueued alone cannot become a job.
 */
static void
reject_single(const char *why)
{
	reject(batch[0], why);
	nbatch = 0;
	if (alone > 0)
		alone--;
}

/*
 * No handler is registered for the type of a message.  This is the fault of the message,
 * unless the queue was dropped.
 */
static void
look_for_queue(const char *why)
{
	if (link_send(&server, PATIENCE, queue_sql, 1, &consume.queue))
		unknown_kind = copy_text(why);
	else
		put_back();
}

/*
 * The server has answered whether the queue exists.
 */
static void
take_queue(const PGresult *result)
{
	char	   *why = unknown_kind;

	unknown_kind = NULL;
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		put_back();
		pause_until = seconds() + RETRY_PAUSE;
	}
	else if (PQntuples(result) == 0)
	{
		char	   *name = harmless_text(consume.queue, MOST_OF_ID);

		error("queue \"%s\" does not exist", name);
		hint("Create it with jobq.create_queue(), or grant a privilege for it to this role.");
		free(name);
		put_back();
		hopeless = true;
	}
	else if (why != NULL)
		reject_single(why);
	free(why);
}

static void
sleep_until_news(int signals, double until)
{
	struct pollfd polls[3] = {{signals, POLLIN, 0}, {broker_fd(), POLLIN, 0}};
	int			n = 2;
	char		bytes[64];

	until = fmin(until, link_due(&server));
	if (pause_until > seconds())
		until = fmin(until, pause_until);
	if (consume.stop_when_empty && seconds() < busy_at + EMPTY_TIME)
		until = fmin(until, busy_at + EMPTY_TIME);
	if (link_events(&server, &polls[2].fd, &polls[2].events))
		n++;
	poll(polls, n, isinf(until) ? -1 : (int) fmax(0, fmin(ceil((until - seconds()) * 1000), 60000)));
	while (read(signals, bytes, sizeof(bytes)) > 0)
		;
}

/*
 * Enqueue messages as jobs.  Returns the exit status.
 */
int
run_consume(const ConsumeOptions *options)
{
	double		stop_at = INFINITY;
	int			signals;

	consume = *options;
	srand48(getpid());
	check_queue();
	link_open(&server, settings.dbname);
	broker_open(&consume.broker);
	ids_of = broker_name_of_source();
	signals = work_signals();
	busy_at = seconds();
	for (;;)
	{
		bool		lost;
		PGresult   *result = link_go_on(&server, &lost);
		BrokerState broker = broker_look();

		if (lost)
		{
			free(unknown_kind);
			unknown_kind = NULL;
			put_back();
		}
		if (result != NULL)
			take_result(result);
		PQclear(result);
		take_messages();
		if (consume.stop_when_empty && broker == BROKER_UP && held == NULL && nbatch == 0 &&
			seconds() >= busy_at + EMPTY_TIME)
		{
			int64_t		left = broker_count(busy_at + EMPTY_TIME);

			if (left == 0)
				break;
			if (left > 0)
				busy_at = seconds();
		}
		if (work_stops > 0 && isinf(stop_at))
			stop_at = seconds() + STOP_TIME;
		if (work_stops == 0)
			enqueue();
		if (hopeless || (work_stops > 0 && (nbatch == 0 || work_stops > 1 || seconds() >= stop_at)))
			break;
		sleep_until_news(signals, stop_at);
	}
	link_close(&server);
	if (!broker_close(CLOSE_TIME) && !hopeless)
		return EXIT_NO_CONNECTION;
	return hopeless ? EXIT_REFUSED : EXIT_DONE;
}

#endif							/* HAVE_RABBITMQ */
