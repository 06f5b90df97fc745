/*-------------------------------------------------------------------------
 *
 * broker.c
 *	  The functions for the main thread.
 *
 * A message to publish is in one of three lists: waiting, sent, or done.  A consumed
 * message is in "done" until the main thread takes it, and in "settled" when the main
 * thread has decided.
 *
 * client/broker/broker.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_t thread;

static void
make_pipe(int *ends)
{
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
		fatal(EXIT_REFUSED, "could not create a pipe: %s", strerror(errno));
}

/*
 * Start the thread, and wait for the first connection.  A failure ends the program.
 */
void
broker_open(const BrokerOptions *given)
{
	const char *wrong;
	char	   *url = copy_text(given->url);
	sigset_t	all;
	sigset_t	before;
	bool		connected;
	char		why[SAID_REASON];
	int			failure;

	shared.options = *given;
	wrong = broker_read_address(url, &shared.address);
	if (wrong != NULL)
		fatal(EXIT_USAGE, "invalid address of the broker: %s", wrong);
	memset(url, 0, strlen(url));
	free(url);
	make_pipe(shared.news_pipe);
	make_pipe(shared.wake_pipe);

	/* signals are for the main thread */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failure = pthread_create(&thread, NULL, broker_run, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failure != 0)
		fatal(EXIT_REFUSED, "could not start a thread: %s", strerror(failure));
	pthread_mutex_lock(&shared.lock);
	while (shared.state == BROKER_CONNECTING)
		pthread_cond_wait(&shared.tried, &shared.lock);
	connected = shared.state != BROKER_DOWN;
	snprintf(why, sizeof(why), "%s", shared.reason);
	pthread_mutex_unlock(&shared.lock);
	if (!connected)
		fatal(EXIT_NO_CONNECTION, "no connection to the broker at %s port %d: %s", shared.address.host, shared.address.port, why);
}

/*
 * The descriptor that is readable when there is news.
 */
int
broker_fd(void)
{
	return shared.news_pipe[0];
}

/*
 * Print the lines of the thread, and return the state of the connection.
 */
BrokerState
broker_look(void)
{
	BrokerState now;
	char	   *said_now;

	pipe_drain(shared.news_pipe[0]);
	pthread_mutex_lock(&shared.lock);
	now = shared.state;
	said_now = shared.lines;
	shared.lines = NULL;
	pthread_mutex_unlock(&shared.lock);
	for (char *line = said_now; line != NULL && *line != '\0';)
	{
		size_t		length = strcspn(line, "\n");

		say("%.*s", (int) length, line);
		line += length + 1;
	}
	free(said_now);
	return now;
}

/*
 * Publish a message, which then belongs to the thread.
 */
void
broker_publish(Message *message)
{
	pthread_mutex_lock(&shared.lock);
	list_append(&shared.waiting, message);
	pthread_mutex_unlock(&shared.lock);
	pipe_signal(shared.wake_pipe[1]);
}

/*
 * Abandon a message.  False if the message was sent, and is kept because its confirm may
 * arrive; unless "even_sent".
 */
bool
broker_take_back(Message *message, bool even_sent)
{
	bool		taken = true;

	pthread_mutex_lock(&shared.lock);
	if (list_unlink(&shared.waiting, message) || (even_sent && list_unlink(&shared.done, message)))
		message_free(message);
	else if (even_sent)
		message->owner = NULL;
	else
		taken = false;
	pthread_mutex_unlock(&shared.lock);
	return taken;
}

/*
 * Return the next finished or consumed message, which then belongs to the caller; or
 * NULL.
 */
Message *
broker_next(void)
{
	Message    *message;

	pthread_mutex_lock(&shared.lock);
	message = shared.done.first;
	if (message != NULL)
		(void) list_unlink(&shared.done, message);
	pthread_mutex_unlock(&shared.lock);
	return message;
}

/*
 * True if the broker has not sent this consumed message on another connection.
 */
bool
broker_is_current(const Message *message)
{
	bool		current;

	pthread_mutex_lock(&shared.lock);
	current = message->connection == shared.connection && shared.state != BROKER_CONNECTING && shared.state != BROKER_DOWN;
	pthread_mutex_unlock(&shared.lock);
	return current;
}

/*
 * Name the consumed queue and its virtual host, as an array literal.
 */
char *
broker_name_of_source(void)
{
	const char *names[] = {shared.address.vhost, shared.options.source};

	return array_of(2, names);
}

/*
 * Return the number of messages in the consumed queue, counted after this time of
 * seconds(); or -1: the thread now counts, and there is news when it has.  Messages
 * already sent to a consumer do not count, and all those sent to this one have arrived.
 */
int64_t
broker_count(double since)
{
	int64_t		count = -1;

	pthread_mutex_lock(&shared.lock);
	if (shared.counted_at < since)
	{
		shared.count_wanted = true;
		pipe_signal(shared.wake_pipe[1]);
	}
	else if (shared.done.n == 0)
		count = shared.count;
	pthread_mutex_unlock(&shared.lock);
	return count;
}

/*
 * Acknowledge a consumed message, or reject the message for good.
 */
void
broker_settle(Message *message, bool accepted)
{
	message->accepted = accepted;
	pthread_mutex_lock(&shared.lock);
	list_append(&shared.settled, message);
	pthread_mutex_unlock(&shared.lock);
	pipe_signal(shared.wake_pipe[1]);
}

/*
 * Send what is settled, and close the connection.  False if this takes longer than the
 * timeout, in seconds; the thread then ends with the program.
 */
bool
broker_close(double timeout)
{
	double		until = seconds() + timeout;
	bool		ended;

	pthread_mutex_lock(&shared.lock);
	shared.closing = true;
	pthread_mutex_unlock(&shared.lock);
	pipe_signal(shared.wake_pipe[1]);
	for (;;)
	{
		struct pollfd news = {shared.news_pipe[0], POLLIN, 0};

		pthread_mutex_lock(&shared.lock);
		ended = shared.ended;
		pthread_mutex_unlock(&shared.lock);
		if (ended || seconds() >= until)
			break;
		poll(&news, 1, (int) ceil((until - seconds()) * 1000));
		pipe_drain(shared.news_pipe[0]);
	}
	return ended && pthread_join(thread, NULL) == 0;
}

#endif							/* HAVE_RABBITMQ */
