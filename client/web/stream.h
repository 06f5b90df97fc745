/*-------------------------------------------------------------------------
 *
 * stream.h
 *	  Declarations shared by stream.c and events.c.
 *
 *	Request --- Stream --- Follower --+
 *						   Follower	  +--- Follow (a job) --- Channel	(LISTEN, listener.c)
 *	Request --- Stream --- Follower --+		 |
 *						   Follower ------ Follow (a topic) --- Statement
 *											 |
 *										 Principal --- JobsRead: one Statement for all jobs
 *
 * Followers exist as long as their stream.  A Follow exists as long as it has followers or a
 * statement.
 *
 * client/web/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STREAM_H
#define JOBQ_STREAM_H

#include "web/inner.h"

#define HASH_SIZE		17

typedef struct Stream Stream;

/* A subscription of a stream to a Follow. */
typedef struct Follower
{
	struct Follower *next;
	Stream	   *stream;
	struct Follow *follow;
	int64_t		line;			/* last log line sent; 0: none */
	int64_t		asked;			/* the read in progress looks for lines after
								 * this line; -1: no read yet */
	char		hash[HASH_SIZE];	/* of the state last sent; empty: none */
} Follower;

/* A job or a topic that callers of a principal follow. */
typedef struct Follow
{
	struct Follow *next;
	Principal  *principal;
	int64_t		job;			/* 0: a topic */
	Channel    *channel;		/* of the job, or NULL */
	unsigned	changes;		/* of the channel, known to the last read */
	const Route *topic;			/* or the route of a job's events */
	Follower   *followers;
	double		due;			/* time of the next read */
	/* for a topic */
	Statement	statement;
	bool		asked;			/* the statement is queued or runs */
	const char *values[MAX_PARAMETERS];
	char	   *text;			/* last value; NULL: none, or a problem */
} Follow;

/* The events for a caller. */
struct Stream
{
	Request    *request;
	PQExpBufferData out;
	size_t		taken;			/* bytes of "out" already sent */
	bool		ended;
	bool		cut_off;		/* the connection was shut down */
	double		beat;			/* time of the next sign of life */
	int			n;
	Follower	followers[MAX_TOPICS];
};

/* client/web/events.c */
extern Stream *stream_begin(Request *request, void (*sent) (Request *request, bool whole));
extern void stream_event(Stream *stream, const char *id, const char *name, const char *data);
extern void stream_beat(Stream *stream);
extern void hash_of(const char *text, char *hash);

#endif							/* JOBQ_STREAM_H */
