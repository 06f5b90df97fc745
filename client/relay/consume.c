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
"pg_catalog.unnest($5::pg_catalog.text[])) AS m(kind, body, headers, id, how)";

static ConsumeOptions consume;
static Link server;
static Message *held;			/* not yet enqueued, oldest first */
static Message *batch[MOST_AT_A_TIME];	/* in the statement in progress */
static int	nbatch;
static int	alone;				/* so many messages are enqueued alone */
static double pause_until;
static double busy_at;			/* when a message was last seen */
static bool hopeless;

static bool is_text(const Message *message);
static void take_messages(void);
static void reject(Message *message, const char *why);
static void put_back(void);
static void enqueue(void);
static void take_result(const PGresult *result);
static void take_error(const PGresult *result);
static void sleep_until_news(int signals, double until);

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
 * Add the messages that have arrived.
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
		if (!broker_is_current(message))
		{
			/* comes again */
			message_free(message);
			continue;
		}
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
	values[NCOLUMNS + 1] = consume.broker.source;
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
	bool		of_kind = strcmp(state, UNKNOWN_KIND) == 0 || strcmp(state, RESERVED_KIND) == 0;
	bool		of_setup = of_kind || strncmp(state, "42", 2) == 0 || strncmp(state, "3F", 2) == 0;
	bool		of_message = strncmp(state, "22", 2) == 0 || strncmp(state, "54", 2) == 0 ||
		(of_kind && consume.kind == NULL);

	if (message == NULL)
		message = PQresultErrorMessage(result);
	if (error_may_pass(state) || strcmp(state, QUEUE_FULL) == 0 || (nbatch == 1 && !of_message && !of_setup))
	{
		if (trouble_is_news(message))
			say("could not enqueue messages: %s", message);
		put_back();
		pause_until = seconds() + RETRY_PAUSE;
	}
	else if (nbatch > 1)
	{
		/* a single message is at fault */
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
	else
	{
		reject(batch[0], message);
		nbatch = 0;
		if (alone > 0)
			alone--;
	}
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
	if (consume.stop_when_empty)
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
	link_open(&server);
	broker_open(&consume.broker);
	signals = work_signals();
	busy_at = seconds();
	for (;;)
	{
		bool		lost;
		PGresult   *result = link_go_on(&server, &lost);
		BrokerState broker = broker_look();

		if (lost)
			put_back();
		if (result != NULL)
			take_result(result);
		PQclear(result);
		take_messages();
		if (consume.stop_when_empty && broker == BROKER_UP && held == NULL && nbatch == 0 &&
			seconds() >= busy_at + EMPTY_TIME)
			break;
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
