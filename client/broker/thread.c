/*-------------------------------------------------------------------------
 *
 * thread.c
 *	  The thread that owns the connection to the broker.
 *
 * client/broker/thread.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define FIRST_PAUSE		0.1
#define LAST_PAUSE		10.0
#define LONGEST_SLEEP	2000	/* ms; the library sends heartbeats when
								 * called */
#define SENDS_A_TURN	50		/* before confirms are read */

static amqp_connection_state_t conn;
static uint64_t last_tag;		/* of published messages */
static int	careful;			/* so many messages are published one at a
								 * time */
static double pause_time = FIRST_PAUSE;
static double up_since;			/* time of the connection */
static bool refused;			/* the connection ends because of a message */
static char said[SAID_REASON];	/* the reason printed last; empty: connected */

static bool go_up(void);
static void go_down(void);
static void rest(double time);
static bool serve(void);
static Message *next_to_send(void);
static bool send_some(void);
static bool settle_some(void);
static bool count_messages(void);
static bool receive_all(void);
static bool take_frame(const amqp_frame_t *frame);
static void end_sent(Message *message, MessageOutcome outcome, const char *why);
static void confirm(uint64_t tag, bool multiple, MessageOutcome outcome);
static bool take_return(const amqp_basic_return_t *method);
static bool take_delivery(const amqp_basic_deliver_t *method);
static bool is_text(amqp_bytes_t bytes, const char *text);
static void closed_by_broker(const amqp_method_t *method);

static bool
is_closing(void)
{
	bool		result;

	pthread_mutex_lock(&shared.lock);
	result = shared.closing;
	pthread_mutex_unlock(&shared.lock);
	return result;
}

/*
 * Note why the connection cannot be used any more; returns false.
 */
static bool
fail(const char *why)
{
	pthread_mutex_lock(&shared.lock);
	snprintf(shared.reason, sizeof(shared.reason), "%s", why);
	pthread_mutex_unlock(&shared.lock);
	return false;
}

/*
 * The thread of the connection.
 */
void *
broker_run(void *unused)
{
	while (!is_closing())
	{
		if (go_up() && serve())
			break;
		if (!is_closing())
			go_down();
	}
	if (conn != NULL)
	{
		(void) amqp_connection_close(conn, AMQP_REPLY_SUCCESS);
		amqp_destroy_connection(conn);
	}
	pthread_mutex_lock(&shared.lock);
	shared.ended = true;
	pthread_mutex_unlock(&shared.lock);
	pipe_signal(shared.news_pipe[1]);
	return NULL;
}

/*
 * Connect.  Each change of the state is printed once.
 */
static bool
go_up(void)
{
	char		why[SAID_REASON];

	conn = broker_connect(&shared.options, &shared.address, why, sizeof(why));
	pthread_mutex_lock(&shared.lock);
	if (conn != NULL)
	{
		if (said[0] != '\0')
			broker_add_line("connected to the broker again, at %s port %d", shared.address.host, shared.address.port);
		said[0] = '\0';
		shared.connection++;
		last_tag = 0;
		up_since = seconds();
		broker_set_state(BROKER_UP);
	}
	else
	{
		snprintf(shared.reason, sizeof(shared.reason), "%s", why);
		if (shared.connection > 0 && strcmp(said, shared.reason) != 0)
			broker_add_line("no connection to the broker: %s", shared.reason);
		snprintf(said, sizeof(said), "%s", shared.reason);
		broker_set_state(BROKER_DOWN);
	}
	pthread_mutex_unlock(&shared.lock);
	return conn != NULL;
}

/*
 * The connection is lost, or could not be made.  Messages without a confirm are published
 * again before the other messages, in their order.
 */
static void
go_down(void)
{
	double		pause;

	pthread_mutex_lock(&shared.lock);
	if (conn != NULL)
	{
		List		both = {NULL};

		for (Message *message = shared.sent.first, *next; message != NULL; message = next)
		{
			next = message->next;
			if (message->owner == NULL)
			{
				message_free(message);
				continue;
			}

			/* it may have been returned, and is sent again */
			free(message->why);
			message->why = NULL;
			list_append(&both, message);
		}
		for (Message *message = shared.waiting.first, *next; message != NULL; message = next)
		{
			next = message->next;
			list_append(&both, message);
		}
		memset(&shared.sent, 0, sizeof(shared.sent));
		shared.waiting = both;
		if (!refused)
		{
			broker_add_line("the connection to the broker is lost: %s", shared.reason);
			snprintf(said, sizeof(said), "%s", shared.reason);
		}
		broker_set_state(BROKER_CONNECTING);
		if (refused || seconds() > up_since + LAST_PAUSE)
			pause_time = FIRST_PAUSE;
		refused = false;
	}
	pthread_mutex_unlock(&shared.lock);
	if (conn != NULL)
		amqp_destroy_connection(conn);
	conn = NULL;
	pause = pause_time * (0.75 + 0.5 * drand48());
	pause_time = fmin(pause_time * 2, LAST_PAUSE);
	rest(pause);
}

/*
 * Sleep; broker_close() ends the sleep.
 */
static void
rest(double time)
{
	double		until = seconds() + time;

	while (!is_closing() && seconds() < until)
	{
		struct pollfd wake = {shared.wake_pipe[0], POLLIN, 0};

		poll(&wake, 1, (int) ceil((until - seconds()) * 1000));
		pipe_drain(shared.wake_pipe[0]);
	}
}

/*
 * Serve the connection.  Returns true at broker_close(), and false when the connection is
 * lost.
 */
static bool
serve(void)
{
	for (;;)
	{
		struct pollfd polls[] = {
			{shared.wake_pipe[0], POLLIN, 0}, {amqp_get_sockfd(conn), POLLIN, 0}
		};
		bool		more;
		bool		ends = is_closing();

		pipe_drain(shared.wake_pipe[0]);
		if (!send_some() || !settle_some() || !count_messages() || !receive_all())
			return false;
		if (ends)
			return true;

		/* a confirm may permit the next message */
		pthread_mutex_lock(&shared.lock);
		more = next_to_send() != NULL;
		pthread_mutex_unlock(&shared.lock);
		if (!more)
			poll(polls, 2, LONGEST_SLEEP);
	}
}

/*
 * The message to publish now, or NULL.  The caller holds the lock.
 */
static Message *
next_to_send(void)
{
	return shared.state == BROKER_UP && (careful == 0 || shared.sent.n == 0) ? shared.waiting.first : NULL;
}

/*
 * Publish some of the waiting messages.
 */
static bool
send_some(void)
{
	for (int i = 0; i < SENDS_A_TURN; i++)
	{
		Message    *message;
		int			status;

		pthread_mutex_lock(&shared.lock);
		message = next_to_send();
		if (message != NULL)
		{
			(void) list_unlink(&shared.waiting, message);
			message->tag = ++last_tag;
			list_append(&shared.sent, message);
		}
		pthread_mutex_unlock(&shared.lock);
		if (message == NULL)
			return true;
		status = broker_send(conn, message);
		if (status == AMQP_STATUS_TABLE_TOO_BIG || status == AMQP_STATUS_BAD_AMQP_DATA ||
			status == AMQP_STATUS_INVALID_PARAMETER)
		{
			/* a part of the message may be sent: use another connection */
			pthread_mutex_lock(&shared.lock);
			end_sent(message, MESSAGE_FAULTY, amqp_error_string2(status));
			pthread_mutex_unlock(&shared.lock);
			refused = true;
		}
		if (status != AMQP_STATUS_OK)
			return fail(amqp_error_string2(status));
	}
	return true;
}

/*
 * Acknowledge or reject consumed messages of this connection.
 */
static bool
settle_some(void)
{
	for (;;)
	{
		Message    *message;
		bool		current;
		int			status = AMQP_STATUS_OK;

		pthread_mutex_lock(&shared.lock);
		message = shared.settled.first;
		if (message != NULL)
			(void) list_unlink(&shared.settled, message);
		current = message != NULL && message->connection == shared.connection;
		pthread_mutex_unlock(&shared.lock);
		if (message == NULL)
			return true;
		if (current && message->accepted)
			status = amqp_basic_ack(conn, CHANNEL, message->tag, 0);
		else if (current)
			status = amqp_basic_reject(conn, CHANNEL, message->tag, 0);
		message_free(message);
		if (status != AMQP_STATUS_OK)
			return fail(amqp_error_string2(status));
	}
}

/*
 * Count the messages in the consumed queue, if the main thread wants to know.
 */
static bool
count_messages(void)
{
	double		now = seconds();
	int64_t		count = 0;
	bool		wanted;
	char		why[SAID_REASON];

	pthread_mutex_lock(&shared.lock);
	wanted = shared.count_wanted;
	pthread_mutex_unlock(&shared.lock);
	if (!wanted)
		return true;

	/* the first answer can overtake a message; the second one comes after it */
	for (int i = 0; i < 2; i++)
	{
		amqp_queue_declare_ok_t *answer = amqp_queue_declare(conn, CHANNEL, amqp_cstring_bytes(shared.options.source),
															 1, 0, 0, 0, amqp_empty_table);

		if (answer == NULL)
		{
			broker_explain(amqp_get_rpc_reply(conn), why, sizeof(why));
			return fail(why);
		}
		count = answer->message_count;
	}
	if (!receive_all())
		return false;
	pthread_mutex_lock(&shared.lock);
	shared.count_wanted = false;
	shared.count = count;
	shared.counted_at = now;
	pipe_signal(shared.news_pipe[1]);
	pthread_mutex_unlock(&shared.lock);
	return true;
}

/*
 * Process everything that has arrived.
 */
static bool
receive_all(void)
{
	for (;;)
	{
		struct timeval nothing = {0, 0};
		amqp_frame_t frame;
		int			status = amqp_simple_wait_frame_noblock(conn, &frame, &nothing);

		if (status == AMQP_STATUS_TIMEOUT)
			return true;
		if (status != AMQP_STATUS_OK)
			return fail(amqp_error_string2(status));
		if (!take_frame(&frame))
			return false;
		amqp_maybe_release_buffers(conn);
	}
}

static bool
take_frame(const amqp_frame_t *frame)
{
	void	   *decoded = frame->payload.method.decoded;

	if (frame->frame_type != AMQP_FRAME_METHOD)
		return true;
	switch (frame->payload.method.id)
	{
		case AMQP_BASIC_ACK_METHOD:
			confirm(((amqp_basic_ack_t *) decoded)->delivery_tag, ((amqp_basic_ack_t *) decoded)->multiple, MESSAGE_CONFIRMED);
			return true;
		case AMQP_BASIC_NACK_METHOD:
			confirm(((amqp_basic_nack_t *) decoded)->delivery_tag, ((amqp_basic_nack_t *) decoded)->multiple, MESSAGE_NACKED);
			return true;
		case AMQP_BASIC_RETURN_METHOD:
			return take_return(decoded);
		case AMQP_BASIC_DELIVER_METHOD:
			return take_delivery(decoded);
		case AMQP_BASIC_CANCEL_METHOD:
			return fail("the broker has ended the consumer; the queue may be deleted");
		case AMQP_CONNECTION_BLOCKED_METHOD:
		case AMQP_CONNECTION_UNBLOCKED_METHOD:
			pthread_mutex_lock(&shared.lock);
			if (frame->payload.method.id == AMQP_CONNECTION_BLOCKED_METHOD)
			{
				const amqp_connection_blocked_t *blocked = decoded;

				broker_add_line("the broker takes no messages: %.*s", (int) blocked->reason.len, (char *) blocked->reason.bytes);
				broker_set_state(BROKER_BLOCKED);
			}
			else
			{
				broker_add_line("the broker takes messages again");
				broker_set_state(BROKER_UP);
			}
			pthread_mutex_unlock(&shared.lock);
			return true;
		case AMQP_CHANNEL_CLOSE_METHOD:
		case AMQP_CONNECTION_CLOSE_METHOD:
			closed_by_broker(&frame->payload.method);
			return false;
		default:
			return true;
	}
}

/*
 * Move a sent message to the list of finished messages.  The caller holds the lock.
 */
static void
end_sent(Message *message, MessageOutcome outcome, const char *why)
{
	(void) list_unlink(&shared.sent, message);
	if (message->owner == NULL)
	{
		message_free(message);
		return;
	}
	/* a return precedes the confirm of the same message */
	if (message->why == NULL)
	{
		message->outcome = outcome;
		message->why = why != NULL ? copy_text(why) : NULL;
	}
	list_append(&shared.done, message);
	pipe_signal(shared.news_pipe[1]);
}

static void
confirm(uint64_t tag, bool multiple, MessageOutcome outcome)
{
	pthread_mutex_lock(&shared.lock);
	for (Message *message = shared.sent.first, *next; message != NULL && message->tag <= tag; message = next)
	{
		next = message->next;
		if (message->tag != tag && !multiple)
			continue;
		end_sent(message, outcome, NULL);
		if (careful > 0)
			careful--;
	}
	pthread_mutex_unlock(&shared.lock);
}

/*
 * A message that no queue takes comes back.  Its confirm follows.
 */
static bool
take_return(const amqp_basic_return_t *method)
{
	char		why[SAID_REASON];
	amqp_message_t content;
	amqp_basic_return_t returned = *method;
	amqp_rpc_reply_t reply;

	snprintf(why, sizeof(why), "%.*s (%d)", (int) method->reply_text.len, (char *) method->reply_text.bytes, method->reply_code);
	reply = amqp_read_message(conn, CHANNEL, &content, 0);
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
	{
		broker_explain(reply, why, sizeof(why));
		return fail(why);
	}
	pthread_mutex_lock(&shared.lock);
	for (Message *message = shared.sent.first; message != NULL; message = message->next)
		if (message->why == NULL && message->id != NULL &&
			is_text(content.properties.message_id, message->id) &&
			is_text(returned.exchange, message->exchange) && is_text(returned.routing_key, message->key))
		{
			message->outcome = MESSAGE_RETURNED;
			message->why = copy_text(why);
			break;
		}
	pthread_mutex_unlock(&shared.lock);
	amqp_destroy_message(&content);
	return true;
}

static bool
is_text(amqp_bytes_t bytes, const char *text)
{
	return strlen(text) == bytes.len && memcmp(text, bytes.bytes, bytes.len) == 0;
}

static bool
take_delivery(const amqp_basic_deliver_t *method)
{
	char		why[SAID_REASON];
	amqp_message_t content;
	amqp_basic_deliver_t delivery = *method;
	Message    *message;
	amqp_rpc_reply_t reply = amqp_read_message(conn, CHANNEL, &content, 0);

	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
	{
		broker_explain(reply, why, sizeof(why));
		return fail(why);
	}
	message = broker_receive(&delivery, &content);
	amqp_destroy_message(&content);
	pthread_mutex_lock(&shared.lock);
	message->connection = shared.connection;
	list_append(&shared.done, message);
	pipe_signal(shared.news_pipe[1]);
	pthread_mutex_unlock(&shared.lock);
	return true;
}

/*
 * The broker has closed the channel, or the connection.  If this is because of a message,
 * and a single message was sent, this message is the reason.  Otherwise the messages are
 * published one at a time.
 */
static void
closed_by_broker(const amqp_method_t *method)
{
	amqp_channel_close_ok_t answer = {0};
	amqp_rpc_reply_t reply = {.reply_type = AMQP_RESPONSE_SERVER_EXCEPTION,.reply = *method};
	bool		of_message = method->id == AMQP_CHANNEL_CLOSE_METHOD;
	char		why[SAID_REASON];

	broker_explain(reply, why, sizeof(why));
	if (of_message)
		(void) amqp_send_method(conn, CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &answer);
	else
	{
		int			code = ((amqp_connection_close_t *) method->decoded)->reply_code;

		of_message = code == AMQP_FRAME_ERROR || code == AMQP_SYNTAX_ERROR || code == AMQP_INTERNAL_ERROR;
	}
	pthread_mutex_lock(&shared.lock);
	if (of_message)
	{
		refused = shared.sent.n > 0;
		if (shared.sent.n == 1)
		{
			end_sent(shared.sent.first, MESSAGE_FAULTY, why);
			careful -= careful > 0;
		}
		else
			careful = shared.sent.n;
	}
	pthread_mutex_unlock(&shared.lock);
	(void) fail(why);
}

#endif							/* HAVE_RABBITMQ */
