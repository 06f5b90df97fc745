/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  The door of the room stats: what has become of jobs, counted by queue, kind
 *	  and tenant, in shared memory.
 *
 * Each name, that is a queue, a kind and a tenant, has a place, of which there are
 * "jobq.max_stats" in the cluster.  Where there is none for another name, it gets
 * that of a name that has no jobs and was not heard of for a while, whose counts go
 * to the place "(other)" of its queue; and if there is no such name, it is counted
 * there itself.  That place is its role's, too, and gives way when no other can: its
 * counts go to the place of its database, which is always there.  A queue that has no
 * room for a place "(other)" is counted there, too.  So a count never gets lost.
 *
 * While a transaction runs, what it does to jobs is noted in the backend; when it has
 * committed, it is added (note.c).  A transaction that aborts, or a subtransaction,
 * counts nothing.  What a transaction that was prepared has done is not added: the
 * gauges are counted anew after it (count.c).
 *
 * Counters say what has happened since they began.  Gauges say what there is now:
 * they are changed by the same notes, and counted from the tables by the scheduler
 * when nobody knows them: at the first start, and after a crash.
 *
 * What it promises: nothing in here that runs after a commit can fail.
 *
 * Locks: JobqStats.lock guards which name has which place, and the counting; it is
 * taken by whoever looks for a name that this backend does not know, and after no
 * other lock.  The counts of a place are protected by its mutex, which is held for
 * some additions, and is the last lock that can be taken.
 *
 * src/stats/stats.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STATS_H
#define JOBQ_STATS_H

#include "access/transam.h"
#include "utils/snapshot.h"

#include "commit/commit.h"

/* A build without them shows what they cost: test/bench/statistics. */
#ifdef JOBQ_WITHOUT_STATISTICS
#define JOBQ_STATISTICS false
#else
#define JOBQ_STATISTICS true
#endif

/* What has happened. */
typedef enum JobqCounter
{
	JOBQ_N_ENQUEUED = 0,
	JOBQ_N_STARTED,				/* attempts that have come to an end, too;
								 * those that run are added when it is shown */
	JOBQ_N_COMPLETED,
	JOBQ_N_FAILED,				/* attempts */
	JOBQ_N_RETRIED,				/* will run again, after a failure or by
								 * retry() */
	JOBQ_N_DEAD,				/* became dead letters */
	JOBQ_N_EXPIRED,
	JOBQ_N_CANCELLED,
	JOBQ_N_CRASHED,				/* attempts that have crashed a process */
	JOBQ_NCOUNTERS
} JobqCounter;

/* What there is now. */
typedef enum JobqGauge
{
	JOBQ_LIVE = 0,				/* rows of jobq_internal.job, running or not */
	JOBQ_BLOCKED,				/* of these, such as wait for other jobs */
	JOBQ_LETTERS,				/* rows of jobq_internal.dead_letter; they
								 * keep no name in its place */
	JOBQ_NGAUGES
} JobqGauge;

/* What runs of jobs have used. */
typedef enum JobqCost
{
	JOBQ_COST_CPU = 0,			/* processor time in microseconds */
	JOBQ_COST_BUFFERS,			/* blocks that were looked at */
	JOBQ_COST_READ,				/* of these, such as were not in memory */
	JOBQ_COST_WAL,				/* in bytes */
	JOBQ_COST_TEMP,				/* bytes written to temporary files */
	JOBQ_NCOSTS
} JobqCost;

typedef struct JobqBill
{
	int64		n[JOBQ_NCOSTS];
} JobqBill;

/* The counters of which the past is kept, by slots of time. */
typedef enum JobqPast
{
	JOBQ_PAST_ENQUEUED = 0,
	JOBQ_PAST_COMPLETED,
	JOBQ_PAST_FAILED,
	JOBQ_PAST_DEAD,
	JOBQ_PAST_CANCELLED,
	JOBQ_PAST_EXPIRED,
	JOBQ_NPAST
} JobqPast;

/* How many slots there are of a minute, an hour and a day each. */
#define JOBQ_MINUTES	60
#define JOBQ_HOURS		24
#define JOBQ_DAYS		30

/* The times of attempts in a slot: too many for a histogram each. */
typedef struct JobqPastTimes
{
	int64		sum;			/* in microseconds */
	uint32		n;
	uint32		longest;		/* in milliseconds */
} JobqPastTimes;

/* What has happened in a slot of time. */
typedef struct JobqPastSlot
{
	JobqPastTimes waited;
	JobqPastTimes ran;
	uint32		n[JOBQ_NPAST];
} JobqPastSlot;

typedef struct JobqHistory
{
	int64		minute;			/* that of the last addition, since 2000 */
	JobqPastSlot minutes[JOBQ_MINUTES];
	JobqPastSlot hours[JOBQ_HOURS]; /* without that minute */
	JobqPastSlot days[JOBQ_DAYS];
} JobqHistory;

/* Times in microseconds, as a histogram: see times.c. */
#define JOBQ_BUCKETS	61
typedef struct JobqTimes
{
	uint64		n[JOBQ_BUCKETS];
	int64		sum;
	int64		longest;
} JobqTimes;

/*
 * Jobs that wait for a time, by that time: levels of slots of a second, a minute, an
 * hour and a day.  See calendar.c.
 */
#define JOBQ_LEVELS			4
#define JOBQ_LEVEL_SLOTS	64
typedef struct JobqCalendar
{
	int64		second;			/* what was before this has been struck out */
	bool		used;
	int64		n;				/* in all slots */
	int64		far;			/* still farther away */
	int32		slots[JOBQ_LEVELS][JOBQ_LEVEL_SLOTS];
} JobqCalendar;

/* The counts of a name. */
typedef struct JobqCounts
{
	TimestampTz since;
	TimestampTz completed_at;	/* the last one; 0: none, that is known */
	int64		counters[JOBQ_NCOUNTERS];
	int64		gauges[JOBQ_NGAUGES];
	JobqBill	costs;			/* see bill.c */
	JobqCalendar scheduled;
	JobqTimes	waited;			/* from when it could run to its start */
	JobqTimes	ran;			/* from there to the end of the attempt */
	JobqHistory history;
} JobqCounts;

#define JOBQ_STATS_KIND		128
#define JOBQ_STATS_TENANT	208

/* Whose counts a place has. */
typedef struct JobqStatName
{
	Oid			dboid;
	Oid			jobs;			/* jobq_internal.job: tells two extensions
								 * apart */
	int32		queue_id;		/* 0: all that have no place, of the database */
	Oid			role;			/* whose job took the place */
	bool		other;			/* of names that have no place */
	uint8		kind_length;
	uint8		tenant_length;	/* 0: none */
	char		kind[JOBQ_STATS_KIND];	/* both end with a zero */
	char		tenant[JOBQ_STATS_TENANT];
} JobqStatName;

/*
 * A place.  Name, hash and next change under JobqStats.lock; name, generation and all
 * else under mutex, too.
 */
typedef struct JobqStat
{
	slock_t		mutex;
	uint32		generation;		/* another one: it is another name's */
	uint32		pins;			/* open transactions that have noted for it */
	uint32		count;			/* the gauges are being counted: the number of
								 * that */
	uint32		next;			/* in the bucket, or free list link */
	uint32		account;		/* its role's: see shares.h */
	bool		in_use;
	uint64		hash;
	TimestampTz used_at;
	int64		since_count[JOBQ_NGAUGES];	/* added since that began */
	JobqStatName name;
	JobqCounts	counts;
} JobqStat;

/*
 * A database whose jobs are counted.  Protected by JobqStats.lock.
 */
#define JOBQ_STATS_XIDS		1024
typedef struct JobqStatBase
{
	Oid			dboid;			/* InvalidOid: not in use */
	Oid			jobs;
	bool		known;			/* the gauges are right; may be read without
								 * lock */
	bool		recount;		/* count them anew; set without lock */
	uint32		count;			/* the number of the counting under way, or 0 */
	FullTransactionId xmax;		/* of its snapshot, or of the last one's; see
								 * count.c */
	int			nxip;
	TransactionId xip[JOBQ_STATS_XIDS];
} JobqStatBase;

typedef struct JobqStats
{
	LWLock	   *lock;
	uint64		seed;			/* of the hashes, so that nobody can foresee
								 * them */
	uint32		ncounts;		/* countings that have begun */
	uint32		nstats;			/* places for names; those of databases follow */
	uint32		free;
	TimestampTz full_until;		/* no name can give way before */
	uint32		hand;			/* the place that is looked at next, when one
								 * has to give way */
	pg_atomic_uint64 changes;	/* how often something was cleared or
								 * forgotten; by no lock */
	JobqStatBase *bases;
	uint32	   *bucket;
	JobqStat   *stats;
	JobqShares	shares;
} JobqStats;

/*
 * Where a name is counted, as it was found.  base is NULL if nobody has looked; whether
 * it is still there is seen by the place's generation.
 */
typedef struct JobqStatAt
{
	const JobqStatBase *base;
	uint32		place;
	uint32		generation;
} JobqStatAt;

/* src/stats/times.c */
extern void jobq_times_add(JobqTimes *times, int64 us);
extern void jobq_times_merge(JobqTimes *into, const JobqTimes *from);
extern uint64 jobq_times_count(const JobqTimes *times);
extern int64 jobq_times_quantile(const JobqTimes *times, double part);

/* src/stats/history.c */
extern void jobq_history_turn(JobqHistory *history, TimestampTz now);
extern JobqPastSlot *jobq_history_slot(JobqHistory *history);
extern void jobq_past_times_add(JobqPastTimes *times, int64 us);
extern void jobq_past_slot_merge(JobqPastSlot *into, const JobqPastSlot *from);
extern double jobq_history_rate(const JobqHistory *history, JobqPast what,
								int minutes, TimestampTz now);
extern void jobq_history_merge(JobqHistory *into, JobqHistory *from,
							   TimestampTz now);

/* src/stats/calendar.c */
extern bool jobq_calendar_turn(JobqCalendar *calendar, TimestampTz now);
extern void jobq_calendar_add(JobqCalendar *calendar, TimestampTz run_at, int64 away,
							  int32 n);
extern int64 jobq_calendar_count(const JobqCalendar *calendar);
extern void jobq_calendar_merge(JobqCalendar *into, const JobqCalendar *from);

/* src/stats/table.c */
extern const JobqArea jobq_stats_area;
extern JobqStats *jobq_stats;
extern JobqStatBase *jobq_stats_base(Oid dboid, Oid jobs, bool make,
									 TimestampTz now);
extern uint64 jobq_stats_hash(const JobqStatBase *base, int32 queue_id,
							  const char *kind, int kind_length,
							  const char *tenant, int tenant_length);
extern uint32 jobq_stats_find(const JobqStatBase *base, int32 queue_id, Oid role,
							  const char *kind, int kind_length,
							  const char *tenant, int tenant_length,
							  uint64 hash, TimestampTz now, uint32 *generation,
							  bool *is_other);
extern uint32 jobq_stats_of_base(const JobqStatBase *base);
extern bool jobq_stats_read(uint32 place, JobqStatName *name,
							JobqCounts *counts);
extern void jobq_stats_clear(Oid dboid, Oid jobs, int32 queue_id, TimestampTz now);
extern void jobq_stats_forget_queue(Oid dboid, Oid jobs, int32 queue_id);
extern void jobq_stats_forget_database(Oid dboid, Oid but_jobs);

extern void jobq_stats_put(const JobqStatName *name, JobqCounts *counts,
						   TimestampTz now);

/* src/stats/file.c */
extern void jobq_stats_save(void);
extern void jobq_stats_load(void);

/* src/stats/note.c */
typedef struct JobqStatNote
{
	SubTransactionId subid;
	uint32		place;
	uint32		generation;
	int32		counters[JOBQ_NCOUNTERS];
	int32		gauges[JOBQ_NGAUGES];
} JobqStatNote;

extern void jobq_stats_install(void);
extern JobqStatNote *jobq_stats_note(Oid jobs, int32 queue_id, Oid role,
									 const char *kind, int kind_length,
									 const char *tenant, int tenant_length,
									 JobqStatAt *at);
extern JobqStatNote *jobq_stats_note_at(const JobqStatAt *at);
extern void jobq_stats_note_times(const JobqStatNote *note, int64 waited, int64 ran);
extern void jobq_stats_note_run_at(const JobqStatNote *note, TimestampTz run_at,
								   int64 away, int32 n);
extern uint32 jobq_stats_place(Oid jobs, int32 queue_id, Oid role,
							   const char *kind, int kind_length,
							   const char *tenant, int tenant_length,
							   JobqStatAt *at);

/* src/stats/bill.c */
typedef struct JobqBillRun
{
	int64		job_id;			/* 0: none runs */
	uint32		place;			/* of its name; JOBQ_NONE: nothing is put down */
	uint32		generation;
	TimestampTz at;				/* when it began, or one before it */
	JobqBill	began;			/* what the process had used then */
	JobqBill	billed;			/* up to there it was put down */
} JobqBillRun;

extern int64 jobq_processor_time(void);
extern void jobq_bill_begin(int64 job_id, uint32 place, TimestampTz now);
extern void jobq_bill_rest(void);
extern void jobq_bill_enter(int64 job_id, uint32 place, TimestampTz now,
							JobqBillRun *outer);
extern void jobq_bill_leave(const JobqBillRun *outer);
extern bool jobq_bill_spent(int64 job_id, JobqBill *spent);

/* src/stats/count.c */
typedef struct JobqCounted
{
	int64		gauges[JOBQ_NGAUGES];
	JobqCalendar scheduled;
} JobqCounted;

extern Snapshot jobq_stats_count_begin(JobqStatBase *base, TimestampTz now,
									   uint32 *number);
extern void jobq_stats_count_end(JobqStatBase *base, uint32 number,
								 JobqCounted **counted, TimestampTz now);
extern void jobq_stats_unknown(Oid dboid);
extern void jobq_stats_put_back(Oid dboid, TimestampTz now);
extern bool jobq_stats_exact(const JobqStatBase *base);
extern bool jobq_stats_count_missed(const JobqStatBase *base, FullTransactionId fxid);

#endif							/* JOBQ_STATS_H */
