/*-------------------------------------------------------------------------
 *
 *	  Lines written by running jobs with log(), before the lines are stored with the rows.
 *
 * The transaction of a handler is open while the handler runs, and a consumer has no
 * transaction.  The lines are therefore in shared memory, where other sessions see them at
 * once.  Lines belong to the worker's slot or to the consumer's lease, and are freed
 * together.
 *
 * The memory belongs to the cluster, and has a quota for each role (shares.h).  A job keeps
 * its last lines.  If there is no room for a new line, the job's oldest lines are dropped.
 *
 * src/ready/lines.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_READY_LINES_H
#define JOBQ_READY_LINES_H

#include "ready/shares.h"

/* Maximum number of lines of a job. */
#define JOBQ_MAX_LINES		100

/*
 * A line consists of one or more chunks.  Fields of the line as a whole are in its first
 * chunk.
 */
#define JOBQ_LINE_CHUNKS	4096
#define JOBQ_CHUNK_TEXT		234
typedef struct JobqChunk
{
	int64		job_id;			/* job of the line */
	uint32		account;		/* account of the line's role: see shares.h */
	uint32		next;			/* next chunk of this line, or free list link */
	uint32		next_line;		/* next line; of the last line: the first line */
	uint16		length;			/* of the text in this chunk */
	char		bytes[JOBQ_CHUNK_TEXT];
} JobqChunk;

/* The lines of a job: all 0 if there are none.  Protected by JobqLinePool.lock. */
typedef struct JobqLines
{
	uint32		last;
	uint32		n;
} JobqLines;

/*
 * The pool of chunks.  Its lock comes after JobqDatabase.lock in the order of locks.
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
