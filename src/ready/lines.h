/*-------------------------------------------------------------------------
 *
 * lines.h
 *	  What jobs that run have told by log(), before it is kept with their rows.
 *
 * A handler's transaction is open while it runs, and a consumer has none: so the
 * lines are here, where others see them at once.  They hang on the worker's slot
 * or on the consumer's lease, and go with it.
 *
 * The memory is that of the cluster, and is shared out to roles as all else is
 * (shares.h).  A job keeps its last lines: where there is no room for more, its
 * own oldest give way.
 *
 * src/ready/lines.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LINES_H
#define JOBQ_READY_LINES_H

#include "ready/shares.h"

/* Lines that are kept of a job. */
#define JOBQ_MAX_LINES		100

/*
 * A line is made of so many of these as it needs.  What belongs to the line is in
 * the first of them.
 */
#define JOBQ_LINE_CHUNKS	4096
#define JOBQ_CHUNK_TEXT		234
typedef struct JobqChunk
{
	int64		job_id;			/* whose line it is */
	uint32		account;		/* its role's: see shares.h */
	uint32		next;			/* of this line, or free list link */
	uint32		next_line;		/* of the last line: the first one */
	uint16		length;			/* of the text that is here */
	char		bytes[JOBQ_CHUNK_TEXT];
} JobqChunk;

/* The lines of a job: none if all of this is 0.  Protected by JobqLinePool.lock. */
typedef struct JobqLines
{
	uint32		last;
	uint32		n;
} JobqLines;

/*
 * Its lock comes after JobqDatabase.lock.
 */
typedef struct JobqLinePool
{
	LWLock	   *lock;
	uint32		free;
	JobqShares	shares;
	JobqChunk	chunks[JOBQ_LINE_CHUNKS];
} JobqLinePool;

/* src/ready/lines.c */
extern const JobqArea jobq_lines_area;
extern bool jobq_lines_add(JobqLines *lines, Oid role, int64 job_id,
						   const char *line);
extern Size jobq_lines_copy(const JobqLines *lines, int64 job_id,
							char *buffer, Size size);
extern void jobq_lines_clear(JobqLines *lines);

#endif							/* JOBQ_READY_LINES_H */
