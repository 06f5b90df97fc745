/*-------------------------------------------------------------------------
 *
 * stream.h
 *	  What stream.c and events.c have in common.
 *
 * client/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STREAM_H
#define JOBQ_STREAM_H

#include "web.h"

#define MAX_TOPICS		8
#define HASH_SIZE		17

typedef struct Stream Stream;

/* A stream's place at one of the things that it follows. */
typedef struct Follower
{
	struct Follower *next;
	Stream	   *stream;
	struct Follow *follow;
	int64_t		line;			/* the last of the log that it has; 0: none */
	int64_t		asked;			/* the look under way looks for what comes
								 * after this one; -1: for nothing */
	char		hash[HASH_SIZE];
} Follower;

typedef struct Follow
{
	struct Follow *next;
	Principal  *principal;
	int64_t		job;			/* 0: a topic */
	const Route *topic;			/* or the route of a job's events */
	Follower   *followers;
	double		due;
	/* of a topic */
	Statement	statement;
	bool		asked;
	const char *values[MAX_PARAMETERS];
	char	   *text;			/* as it was last */
} Follow;

struct Stream
{
	Request    *request;
	PQExpBufferData out;
	size_t		taken;			/* of "out" */
	bool		ended;
	bool		cut_off;		/* its caller had to go */
	double		beat;
	int			n;
	Follower	followers[MAX_TOPICS];
};

/* events.c */
extern Stream *stream_begin(Request *request, void (*sent) (Request *request, bool whole));
extern void stream_event(Stream *stream, const char *id, const char *name, const char *data);
extern void stream_beat(Stream *stream);
extern void hash_of(const char *text, char *hash);

#endif							/* JOBQ_STREAM_H */
