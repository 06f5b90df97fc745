/*-------------------------------------------------------------------------
 *
 * stats.h
 *	  Interface of the directory stats: outcomes of jobs, counted in shared memory by
 *	  queue, kind and tenant.
 *
 * A name is a combination of queue, kind and tenant.  Each name has a slot, called place in
 * the code.  The cluster has jobq.max_stats slots.  If no slot is free, a new name gets the
 * slot of an idle name: a name without jobs and without recent activity.  The counts of the
 * idle name are added to the slot "(other)" of its queue.  If no name is idle, the new name is
 * counted in "(other)" directly.  A slot "(other)" belongs to a role, too, and is evicted
 * last.  Its counts are then added to the slot of its database, which always exists.  A queue
 * without a slot "(other)" is counted there as well.  No count is ever lost.
 *
 * During a transaction, the backend notes the changes to jobs.  After the commit, the notes
 * are added to the slots (note.c).  An aborted transaction or subtransaction counts nothing.
 * The notes of a prepared transaction are not added.  Instead, the gauges are counted anew
 * (count.c).
 *
 * Counters count events since the counters began.  Gauges count what exists now.  The same
 * notes change the gauges.  If the gauges are unknown, at the first start and after a crash,
 * the scheduler has the tables counted.
 *
 * Guarantees: no code of this directory that runs after a commit can fail.
 *
 * Locks: JobqStats.lock protects the assignment of names to slots, and the counting.  The lock
 * is acquired to look up a name that the backend does not know, and after no other lock.  The
 * mutex of a slot protects its counts.  The mutex is held for a few additions, and is the last
 * lock in the order of locks.
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

/* A build without statistics shows their cost: test/bench/statistics. */
#ifdef JOBQ_WITHOUT_STATISTICS
#define JOBQ_STATISTICS false
#else
#define JOBQ_STATISTICS true
#endif

/* Events. */
typedef enum JobqCounter
{
	JOBQ_N_ENQUEUED = 0,
	JOBQ_N_STARTED,				/* ended attempts; the views add the running
								 * ones */
	JOBQ_N_COMPLETED,
	JOBQ_N_FAILED,				/* attempts */
	JOBQ_N_RETRIED,				/* run again after a failure or by retry() */
	JOBQ_N_DEAD,				/* became dead letters */
	JOBQ_N_EXPIRED,
	JOBQ_N_CANCELLED,
	JOBQ_N_CRASHED,				/* attempts that crashed a process */
	JOBQ_NCOUNTERS
} JobqCounter;

/* What exists now. */
typedef enum JobqGauge
{
	JOBQ_LIVE = 0,				/* rows of jobq_internal.job, running or not */
	JOBQ_BLOCKED,				/* jobs among JOBQ_LIVE that wait for other
								 * jobs */
	JOBQ_LETTERS,				/* rows of jobq_internal.dead_letter; do not
								 * keep a name from being evicted */
	JOBQ_NGAUGES
} JobqGauge;

/* Resources used by runs of jobs. */
typedef enum JobqCost
{
	JOBQ_COST_CPU = 0,			/* processor time in microseconds */
	JOBQ_COST_BUFFERS,			/* blocks accessed */
	JOBQ_COST_READ,				/* of these, blocks not found in memory */
	JOBQ_COST_WAL,				/* in bytes */
	JOBQ_COST_TEMP,				/* bytes written to temporary files */
	JOBQ_NCOSTS
} JobqCost;

typedef struct JobqBill
{
	int64		n[JOBQ_NCOSTS];
} JobqBill;

/* Counters with a history by time slots. */
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

/* Number of slots of a minute, an hour and a day. */
#define JOBQ_MINUTES	60
#define JOBQ_HOURS		24
#define JOBQ_DAYS		30

/*
 * Durations of attempts in a time slot.  There are too many slots for a histogram in each:
 * JobqHistory has histograms for longer parts of an hour.
 */
typedef struct JobqPastTimes
{
	int64		sum;			/* in microseconds */
	uint32		n;
	uint32		longest;		/* in milliseconds */
} JobqPastTimes;

/* Events in a time slot. */
typedef struct JobqPastSlot
{
	JobqPastTimes waited;
	JobqPastTimes ran;
	uint32		n[JOBQ_NPAST];
} JobqPastSlot;

/* Buckets of a histogram of durations: see times.c. */
#define JOBQ_BUCKETS	61

/* Parts of an hour with a histogram: those of the last hour, and the current part. */
#define JOBQ_PART_MINUTES	10
#define JOBQ_PARTS			(JOBQ_MINUTES / JOBQ_PART_MINUTES + 1)

typedef struct JobqHistory
{
	int64		minute;			/* of the last addition, in minutes since 2000 */
	uint32		waited[JOBQ_PARTS][JOBQ_BUCKETS];
	JobqPastSlot minutes[JOBQ_MINUTES];
	JobqPastSlot hours[JOBQ_HOURS]; /* without that minute */
	JobqPastSlot days[JOBQ_DAYS];
} JobqHistory;

/* Histogram of durations in microseconds: see times.c. */
typedef struct JobqTimes
{
	uint64		n[JOBQ_BUCKETS];
	int64		sum;
	int64		longest;
} JobqTimes;

/*
 * Number of jobs that wait for a time, by this time: levels of slots of a second, a minute, an
 * hour and a day.  See calendar.c.
 */
#define JOBQ_LEVELS			4
#define JOBQ_LEVEL_SLOTS	64
typedef struct JobqCalendar
{
	int64		second;			/* slots before this second have been removed */
	bool		used;
	int64		n;				/* in all slots */
	int64		far;			/* jobs beyond the last level */
	int32		slots[JOBQ_LEVELS][JOBQ_LEVEL_SLOTS];
} JobqCalendar;

/* The counts of a name. */
typedef struct JobqCounts
{
	TimestampTz since;
	TimestampTz completed_at;	/* last completion; 0: none known */
	int64		counters[JOBQ_NCOUNTERS];
	int64		gauges[JOBQ_NGAUGES];
	JobqBill	costs;			/* see bill.c */
	JobqCalendar scheduled;
	JobqTimes	waited;			/* from the time a job could run to its start */
	JobqTimes	ran;			/* from the start to the end of the attempt */
	JobqHistory history;
} JobqCounts;

#define JOBQ_STATS_KIND		128
#define JOBQ_STATS_TENANT	208

/* The name to which a slot belongs. */
typedef struct JobqStatName
{
	Oid			dboid;
	Oid			jobs;			/* jobq_internal.job: distinguishes two
								 * extensions */
	int32		queue_id;		/* 0: all names of the database without a slot */
	Oid			role;			/* role of the job that got the slot */
	bool		other;			/* of names without a slot */
	uint8		kind_length;
	uint8		tenant_length;	/* 0: none */
	char		kind[JOBQ_STATS_KIND];	/* both end with a zero */
	char		tenant[JOBQ_STATS_TENANT];
} JobqStatName;

/*
 * A slot.  Name, hash and next change under JobqStats.lock.  Name, generation and all
 * remaining fields also change under mutex only.
 */
typedef struct JobqStat
{
	slock_t		mutex;
	uint32		generation;		/* changes when another name gets the slot */
	uint32		pins;			/* open transactions with a note for this slot */
	uint32		count;			/* number of the running count of the gauges,
								 * or 0 */
	uint32		next;			/* in the bucket, or free list link */
	uint32		account;		/* of the role: see shares.h */
	bool		in_use;
	uint64		hash;
	TimestampTz used_at;
	int64		since_count[JOBQ_NGAUGES];	/* added since the count began */
	JobqStatName name;
	JobqCounts	counts;
} JobqStat;

/* A database with counted jobs.  Protected by JobqStats.lock. */
#define JOBQ_STATS_XIDS		1024
typedef struct JobqStatBase
{
	Oid			dboid;			/* InvalidOid: not in use */
	Oid			jobs;
	bool		known;			/* gauges are exact; may be read without lock */
	bool		recount;		/* count anew; set without lock */
	uint32		count;			/* number of the running count, or 0 */
	JobqSeen	seen;			/* by the snapshot of the running or last
								 * count; see count.c */
	TransactionId xip[JOBQ_STATS_XIDS];
} JobqStatBase;

typedef struct JobqStats
{
	LWLock	   *lock;
	uint64		seed;			/* seed of the hashes, so that users cannot
								 * predict hashes */
	uint32		ncounts;		/* number of counts begun */
	uint32		nstats;			/* slots for names; the slots of databases
								 * follow */
	uint32		free;
	TimestampTz full_until;		/* no name can be evicted before */
	uint32		hand;			/* slot that is examined next for eviction */
	pg_atomic_uint64 changes;	/* number of resets and removals; no lock */
	JobqStatBase *bases;
	uint32	   *bucket;
	JobqStat   *stats;
	JobqShares	shares;
} JobqStats;

/*
 * The slot of a name, as found by a lookup.  base is NULL before a lookup.  The generation of
 * the slot shows whether the slot still belongs to the name.
 */
typedef struct JobqStatAt
{
	const JobqStatBase *base;
	uint32		place;
	uint32		generation;
} JobqStatAt;

/* src/stats/times.c */
extern int	jobq_times_bucket(int64 us);
extern void jobq_times_add(JobqTimes *times, int64 us);
extern void jobq_times_merge(JobqTimes *into, const JobqTimes *from);
extern uint64 jobq_times_count(const JobqTimes *times);
extern int64 jobq_times_quantile(const JobqTimes *times, double part);

/* src/stats/history.c */
extern void jobq_history_turn(JobqHistory *history, TimestampTz now);
extern JobqPastSlot *jobq_history_slot(JobqHistory *history);
extern void jobq_past_times_add(JobqPastTimes *times, int64 us);
extern void jobq_history_add_wait(JobqHistory *history, int64 us);
extern void jobq_history_waits(const JobqHistory *history, JobqTimes *into);
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

/*
 * The name under which a job is counted.  The role gets the slot if the name has none yet.
 */
typedef struct JobqStatKey
{
	int32		queue_id;
	Oid			role;
	const char *kind;
	int			kind_length;	/* -1: "(other)" of the queue */
	const char *tenant;
	int			tenant_length;	/* 0: no tenant */
} JobqStatKey;

/*
 * Number of slots that a search examines under the lock, for which each backend with a new
 * name waits.
 */
#define JOBQ_STATS_LOOK	1024

extern const JobqArea jobq_stats_area;
extern JobqStats *jobq_stats;
extern JobqStatBase *jobq_stats_base(Oid dboid, Oid jobs, bool make,
									 TimestampTz now);
extern uint64 jobq_stats_hash(const JobqStatBase *base, const JobqStatKey *key);
extern uint32 jobq_stats_find(const JobqStatBase *base, const JobqStatKey *key,
							  uint64 hash, TimestampTz now, uint32 *generation,
							  bool *is_other);
extern uint32 jobq_stats_of_base(const JobqStatBase *base);
extern uint32 jobq_stats_places(void);
extern uint32 jobq_stats_find_other(const JobqStatBase *base, int32 queue_id);
extern void jobq_stats_give_up(uint32 place, bool keep, TimestampTz now);
extern bool jobq_stats_read(uint32 place, JobqStatName *name,
							JobqCounts *counts);
extern void jobq_stats_put(const JobqStatName *name, JobqCounts *counts,
						   TimestampTz now);

/* src/stats/forget.c */
extern void jobq_stats_clear(Oid dboid, Oid jobs, int32 queue_id, TimestampTz now);
extern void jobq_stats_forget_queue(Oid dboid, Oid jobs, int32 queue_id);
extern void jobq_stats_forget_database(Oid dboid, Oid but_jobs);

/* src/stats/lookup.c */
extern JobqStatBase *jobq_stats_my_base(Oid jobs);
extern uint32 jobq_stats_look_up(const JobqStatBase *base, const JobqStatKey *key,
								 uint32 *generation);
extern uint32 jobq_stats_place(Oid jobs, const JobqStatKey *key, JobqStatAt *at);

/* src/stats/file.c */
extern void jobq_stats_save(void);
extern void jobq_stats_load(void);

/* src/stats/note.c */
typedef struct JobqStatNote
{
	JobqNote	note;
	uint32		place;
	uint32		generation;
	int32		counters[JOBQ_NCOUNTERS];
	int32		gauges[JOBQ_NGAUGES];
} JobqStatNote;

extern void jobq_stats_install(void);
extern JobqStatNote *jobq_stats_note(Oid jobs, const JobqStatKey *key, JobqStatAt *at);
extern JobqStatNote *jobq_stats_note_at(const JobqStatAt *at);
extern void jobq_stats_note_times(const JobqStatNote *note, int64 waited, int64 ran);
extern void jobq_stats_note_run_at(const JobqStatNote *note, TimestampTz run_at,
								   int64 away, int32 n);

/* src/stats/bill.c */
typedef struct JobqBillRun
{
	int64		job_id;			/* 0: none runs */
	uint32		place;			/* of its name; JOBQ_NONE: nothing is charged */
	uint32		generation;
	TimestampTz at;				/* start of this run, or of an earlier one */
	JobqBill	began;			/* usage of the process at the start */
	JobqBill	billed;			/* usage that is charged already */
	bool		divided;		/* several jobs run, and "part" is the usage
								 * of each */
	JobqBill	part;
} JobqBillRun;

extern int64 jobq_processor_time(void);
extern void jobq_bill_begin(int64 job_id, uint32 place, TimestampTz now);
extern void jobq_bill_rest(void);
extern void jobq_bill_enter(int64 job_id, uint32 place, TimestampTz now,
							JobqBillRun *outer);
extern void jobq_bill_leave(const JobqBillRun *outer);
extern void jobq_bill_divide(int njobs);
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
