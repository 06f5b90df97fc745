/*-------------------------------------------------------------------------
 *
 * counts.h
 *	  What is counted: the jobs of queues with a length, and for the statistics.
 *
 * Part of the door of this room.
 *
 * src/store/counts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COUNTS_H
#define JOBQ_COUNTS_H

#include "storage/condition_variable.h"

#include "store/jobs.h"

/* A job that was dropped, in its lane: older ones of it need not be looked for. */
typedef struct JobqDropped
{
	int32		priority;
	Oid			role;
	int32		flow;
	JobqKey		key;			/* id 0: none */
} JobqDropped;

/* How many jobs a queue with max_length has: see length.c. */
#define JOBQ_MAX_LENGTHS	64
#define JOBQ_LENGTH_XIDS	488
#define JOBQ_MAX_PREPARED	64
typedef struct JobqLength
{
	int32		queue_id;		/* 0: free */
	Oid			jobs;			/* jobq_internal.job that was counted */
	bool		valid;
	int64		committed;
	int64		reserved;		/* by open transactions */
	int			waiting;		/* sessions that wait for places */
	uint32		freed;			/* how often they were told to look */
	int64		waiting_hold;	/* places that they have reserved before */
	JobqDropped dropped;		/* the last one that was */
	FullTransactionId xmax;		/* of the snapshot that counted */
	int			nxip;
	TransactionId xip[JOBQ_LENGTH_XIDS];
} JobqLength;

/* Places that a prepared transaction has reserved. */
typedef struct JobqPreparedPlaces
{
	TransactionId xid;
	int32		queue_id;
	Oid			jobs;
	int			n;
} JobqPreparedPlaces;

/*
 * The counters of a database.  Protected by db->lock, but for "room", at which those
 * sleep who wait for a place in the queue of that counter.
 */
typedef struct JobqLengths
{
	int			nlengths;		/* may be read without lock */
	uint64		recounts;		/* how often all were to be counted again */
	JobqLength	lengths[JOBQ_MAX_LENGTHS];
	ConditionVariable room[JOBQ_MAX_LENGTHS];
	int			nprepared;
	JobqPreparedPlaces prepared[JOBQ_MAX_PREPARED];
} JobqLengths;

/* src/store/count.c */
/* By which a dead letter is counted. */
typedef struct JobqLetterName
{
	int32		queue_id;
	Oid			role;
	text	   *kind;
	text	   *tenant;			/* or NULL */
}			JobqLetterName;

extern uint32 jobq_count_place(const JobqJob *job);
extern uint32 jobq_letter_place(const JobqLetterName * name);
extern void jobq_count_letter(const JobqLetterName * name, int n);
extern bool jobq_count_when(const JobqJob *job, TimestampTz now, TimestampTz *run_at,
							int64 *away);
extern void jobq_count_rows(const JobqJob *job, int n);
extern void jobq_count(const JobqJob *job, JobqCounter what, int n);
extern void jobq_count_attempt(const JobqJob *job, JobqCounter what,
							   TimestampTz started_at, TimestampTz now);
extern bool jobq_append_cost(StringInfo buf, const char *before, const JobqJob *job);

/* src/store/counter.c */
extern const JobqArea jobq_length_area;
extern void jobq_lengths_clear(JobqDatabase *db);

/* src/store/length.c */
extern void jobq_length_install(void);
extern void jobq_length_add(int32 queue_id, int n);
extern void jobq_length_remove(int32 queue_id);

/* src/store/drop.c */
extern void jobq_drop_install(void);

/* src/store/full.c */
extern void jobq_length_reserve(const JobqJob *job, int n);

/* src/store/dead_letters.c */
extern void jobq_dead_letter(const JobqJob *job, TimestampTz now,
							 TimestampTz started_at, const JobqError *error);
extern void jobq_letter_name(Relation rel, HeapTuple tuple, JobqLetterName * name);

#endif							/* JOBQ_COUNTS_H */
