/*-------------------------------------------------------------------------
 *
 * list.c
 *	  What the main thread and the thread of the connection share.
 *
 * client/broker/list.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

BrokerShared shared = {.lock = PTHREAD_MUTEX_INITIALIZER,.tried = PTHREAD_COND_INITIALIZER};

/*
 * Append a message.  The caller holds the lock, as for all changes of a list.
 */
void
list_append(List *list, Message *message)
{
	message->next = NULL;
	if (list->first == NULL)
		list->last = &list->first;
	*list->last = message;
	list->last = &message->next;
	list->n++;
}

/*
 * Remove a message.  False if the message is not in the list.
 */
bool
list_unlink(List *list, Message *message)
{
	for (Message **link = &list->first; *link != NULL; link = &(*link)->next)
		if (*link == message)
		{
			*link = message->next;
			if (message->next == NULL)
				list->last = link;
			list->n--;
			return true;
		}
	return false;
}

/*
 * Wake the reader of a pipe.
 */
void
pipe_signal(int pipe)
{
	(void) !write(pipe, "", 1);
}

/*
 * Empty a pipe.
 */
void
pipe_drain(int pipe)
{
	char		bytes[64];

	while (read(pipe, bytes, sizeof(bytes)) > 0)
		;
}

void
message_free(Message *message)
{
	free(message->exchange);
	free(message->key);
	free(message->id);
	free(message->type);
	free(message->content_type);
	free(message->headers);
	free(message->body);
	free(message->why);
	free(message);
}

/*
 * Let the main thread print a line.  The caller holds the lock.
 */
void
broker_add_line(const char *format,...)
{
	char		line[SAID_REASON + 400];
	size_t		before = shared.lines != NULL ? strlen(shared.lines) : 0;
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	for (char *c = line; *c != '\0'; c++)
		if (*c == '\n')
			*c = ' ';
	shared.lines = enlarge(shared.lines, before + strlen(line) + 2);
	sprintf(shared.lines + before, "%s\n", line);
	pipe_signal(shared.news_pipe[1]);
}

/*
 * Change the state.  The caller holds the lock.
 */
void
broker_set_state(BrokerState now)
{
	shared.state = now;
	pthread_cond_broadcast(&shared.tried);
	pipe_signal(shared.news_pipe[1]);
}

#endif							/* HAVE_RABBITMQ */
