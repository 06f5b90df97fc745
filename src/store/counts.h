/*-------------------------------------------------------------------------
 *
 * counts.h
 *	  Counters: lengths of queues, and counts for the statistics.
 *
 * Part of the interface of the directory store.
 *
 * src/store/counts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_COUNTS_H
#define JOBQ_COUNTS_H

#include "storage/condition_variable.h"

#include "store/jobs.h"

/*
 * A dropped job, with its lane.  The search for the next job to drop begins behind it.
 */
typedef struct JobqDropped
{
	int32		priority;
	Oid			role;
	int32		flow;
	JobqKey		key;			/* id 0: none */
} JobqDropped;

/* Number of jobs of a queue with max_length: see length.c. */
#define JOBQ_MAX_LENGTHS	64
#define JOBQ_LENGTH_XIDS	488
#define JOBQ_MAX_PREPARED	64
typedef struct JobqLength
{
	int32		queue_id;		/* 0: free */
	Oid			jobs;			/* the counted jobq_internal.job */
	bool		valid;
	int64		committed;
	int64		reserved;		/* by open transactions */
	int			waiting;		/* sessions waiting for positions */
	uint32		freed;			/* number of wake-ups */
	int64		waiting_hold;	/* positions held by waiting sessions */
	JobqDropped dropped;		/* the job dropped last */
	JobqSeen	seen;			/* by the counting snapshot */
	TransactionId xip[JOBQ_LENGTH_XIDS];
} JobqLength;

/* Positions reserved by a prepared transaction. */
typedef struct JobqPreparedPlaces
{
	TransactionId xid;
	int32		queue_id;
	Oid			jobs;
	int			n;
} JobqPreparedPlaces;

/*
 * The counters of a database.  Protected by db->lock, except "room".  Sessions waiting for a
 * position in the queue of a counter sleep on the counter's element of "room".
 */
typedef struct JobqLengths
{
	int			nlengths;		/* may be read without a lock */
	uint64		recounts;		/* number of requests to recount all queues */
	JobqLength	lengths[JOBQ_MAX_LENGTHS];
	ConditionVariable room[JOBQ_MAX_LENGTHS];
	int			nprepared;
	JobqPreparedPlaces prepared[JOBQ_MAX_PREPARED];
} JobqLengths;

/* src/store/count.c */
/* Names by which a dead letter is counted. */
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

/* src/store/full.c */
extern void jobq_length_reserve(const JobqJob *job, int n);

/* src/store/fingerprint.c */
extern int64 jobq_fingerprint(const JobqError *error);

#endif							/* JOBQ_COUNTS_H */
