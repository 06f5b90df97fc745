/*-------------------------------------------------------------------------
 *
 * model.h
 *	  The model of the ready set: runs the sources of src/ready without a server,
 *	  and compares the ready set with a simple reference.
 *
 * The reference ("world") is a table of jobs and transactions, with the workers,
 * consumer sessions and the scheduler that work on the table.  Each step is a
 * random operation of a random actor.  After each step, check.c verifies every
 * structure, and that each runnable job will be found.  At the end, only woken
 * actors act, and the scheduler at its wake-up time.  A lost wake-up therefore
 * leaves a job that is never run.
 *
 * test/model/model.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MODEL_H
#define JOBQ_MODEL_H

#include "base/base.h"

#include "ready/inner.h"

/* Undo the macros of PostgreSQL's port.h: only the C library is linked. */
#undef printf
#undef fprintf
#undef snprintf
#undef vprintf
#undef vsnprintf

#define MAX_ROWS		48
#define MAX_TXNS		3
#define NSLOTS			7
#define NSINGLE			5		/* workers, each of a separate role or pool */
#define NPOOLS			2
#define NSESSIONS		3
#define MAX_MOVES		2
#define MAX_MORE		3
#define NQUEUES			6
#define NROLES			3
#define MAX_OPS			4000
#define NNAMED			3		/* limiters with names; the last is by tenant */
#define BY_TENANT		(NNAMED - 1)
#define NLIMITERS		(NQUEUES + NNAMED + 1)
#define NKEYS			3		/* of each limiter */

/* The hash of a named limiter, and the source of its permits. */
#define NAME(n)			((uint32) (7 + (n)))
#define SOURCE(n)		(JOBQ_NAMED_BY_KIND + (n))

/* The kind of jobs that lanes gather. */
#define KIND_GATHERED	50

/* Every third job is of a kind that may be paused, and then has separate lanes. */
#define KIND_PAUSED		99
#define MAY_BE_PAUSED(job)	((job)->key.id % 3 == 0)

/* A job of the table. */
typedef enum RowState
{
	ROW_FREE = 0,
	ROW_OPEN,					/* the transaction has not committed */
	ROW_LIVE
} RowState;

typedef struct Row
{
	RowState	state;
	JobqPush	job;
	int			txn;			/* transaction to hand over the job, or -1 */
	int			worker;			/* worker of the running job, or -1 */
	int			session;		/* session with a lease on the job, or -1 */
	bool		uncharged;		/* a session has locked the row of the job, which has
								 * crashed the server */
	bool		held;			/* the group waits for this returned job ... */
	TimestampTz held_since;		/* ... since this time ... */
	bool		over;			/* ... but no longer: see patience.c */
	uint64		again;			/* World.tick when the group began to wait again */
	uint64		committed;		/* World.tick when this row became visible */
} Row;

typedef enum TxnState
{
	TXN_OPEN = 0,
	TXN_COMMITTED				/* but has not handed over yet */
} TxnState;

typedef struct Txn
{
	TxnState	state;
	bool		bulk;			/* hands over lanes, not jobs */
	bool		everything;		/* has everything read again */
	int			nraised;		/* counted hand-overs: */
	uint32		raised[MAX_ROWS];
} Txn;

typedef enum MoveState
{
	MOVE_NONE = 0,
	MOVE_OPEN,
	MOVE_COMMITTED				/* but has not notified yet */
} MoveState;

/* A session that edits the priority or run_at of a waiting job. */
typedef struct Move
{
	MoveState	state;
	JobqPush	job;			/* before the edit, or after */
	bool		counted;		/* the hand-over is counted in "raised" */
	uint32		raised;
} Move;

/*
 * A job that the scheduler took out of the ready set, and hands back at "until".
 */
typedef struct Kept
{
	JobqPush	job;
	TimestampTz until;
} Kept;

/* A worker runs a row, looks for a row, or sleeps. */
typedef struct Worker
{
	bool		awake;			/* the latch is set, or there is work to do */
	int			row;			/* row of the running job, or -1 */
	JobqPush	popped;			/* the last job popped */
	int			nmore;			/* jobs that run together with the job: */
	int			more[MAX_MORE];
	bool		collecting;		/* the jobs that run together are chosen */
	int			nleaving;		/* groups of which the call must give up the permit: */
	uint32		leaving[MAX_MORE + 1];
} Worker;

/* A time, as a count of commits and hand-overs and by the clock. */
typedef struct Moment
{
	uint64		tick;
	TimestampTz now;
} Moment;

/* A session of a consumer. */
typedef struct Session
{
	bool		awake;
	bool		asking;			/* is in reserve() */
	uint32		place;			/* index in the list of waiting sessions, or
								 * JOBQ_NONE */
	JobqTaker	taker;
	int32		queue_ids[NQUEUES];
	Oid			roles[NROLES];
	Oid			denied[NROLES];
	int			ndenied;
	Moment		called;			/* when the latch was set */
} Session;

typedef struct Queue
{
	int32		id;
	bool		consumer;
	bool		paused;
	bool		kind_paused;	/* jobs of KIND_PAUSED are paused */
	bool		limited;		/* has the limiter below */
	bool		tenants;		/* jobs have tenants */
	bool		named;			/* jobs need the second named limiter */
	bool		by_tenant;		/* jobs need the limiter by tenant */
	uint8		rank[NPOOLS];
	JobqLimiter limiter;
} Queue;

/* The failed attempts of a limiter or a key, as its throttle has to count them. */
typedef struct Failed
{
	TimestampTz since;			/* the first failure of the window */
	int			n;
} Failed;

typedef struct World
{
	TimestampTz now;
	bool		put_back;		/* the clock was put back at some time */
	uint64		tick;			/* commits and hand-overs so far */
	uint64		limits_tick;	/* tick of the last load of limits */
	int64		next_id;
	JobqPush	last;			/* the last job enqueued */
	int64		next_token;
	Row			rows[MAX_ROWS];
	Txn			txns[MAX_TXNS];
	Move		moves[MAX_MOVES];
	Worker		workers[NSLOTS];
	int			crowded;		/* the role with several workers in one pool, or
								 * none of the roles */
	Session		sessions[NSESSIONS];
	Queue		queues[NQUEUES];
	JobqLimiter named[NNAMED];
	JobqLimiter gathered;		/* of KIND_GATHERED */
	Failed		failed[NNAMED][NKEYS + 1];	/* by key; 0: not keyed */
	bool		forgets;		/* there were so many tallies that failures of keys
								 * may be forgotten */
	uint32		kind_every;		/* one job in this number needs the first named
								 * limiter */
	uint64		turns[NLIMITERS][NROLES]; /* at a limiter, the next turn of a
										   * role is not before this */
	bool		scheduler_awake;
	TimestampTz scheduler_last;
	TimestampTz discover_plan;

	/* state of the scheduler's duties between two steps */
	int			scanning;		/* lane, or -1 */
	JobqPush	read[MAX_ROWS];
	JobqScanned scanned;		/* its rows are in read */
	int			nrefills;
	struct
	{
		int64		id;
		JobqPush	rows[JOBQ_MAX_PARKED];
		int			nrows;
		JobqPush	last;
		bool		all;
	}			refills[8];
	bool		discovering;
	bool		discover_from_start;
	int			discover_left;
	bool		resumed;
	JobqPush	discover_at;
	JobqPush	discover_resume;
	uint32		evictions;
	Kept		kept[4];
	int			nkept;
	bool		calm;			/* actors act only when woken, */
	bool		calm_all;		/* and nothing is paused */
} World;

extern World world;
extern JobqDatabase *db;
extern bool tracing;

/* stubs.c: the environment of a server, and sizes */
extern PGPROC *model_procs;
extern void model_memory(const int *sizes);
pg_noreturn extern void model_fail(const char *fmt,...) pg_attribute_printf(1, 2);
extern void trace(const char *fmt,...) pg_attribute_printf(1, 2);

/* world.c: the operations */
extern void world_start(uint32 seed);
extern const char *op_name(int op);
extern int	op_choose(uint32 random);
extern void op_run(int op, uint32 a, uint32 b, uint32 c);
extern void world_calm(void);
extern int	row_of(int64 id);
extern Queue *queue_of(int32 id);
extern Moment world_moment(void);
extern bool row_is_due(const Row *row);
extern bool row_is_at(const Row *row, const JobqPush *job);
extern bool session_sees(const Session *session);
extern void world_ran(JobqSlot *slot);
extern void note_turn(const JobqPush *popped, uint64 served);

/* scheduler.c: duties of the scheduler, as in worker/scheduler */
extern void scheduler_start(void);
extern void scheduler_round(void);
extern bool of_lane(const Row *row, const JobqLane *lane);
extern void scheduler_scan_begin(uint32 which);
extern void scheduler_scan_end(void);
extern void scheduler_scan_fail(void);
extern void scheduler_refill_begin(void);
extern void scheduler_refill_end(void);
extern void scheduler_discover_begin(bool reset, bool forgotten);
extern bool scheduler_discover_step(void);
extern bool scheduler_rank_wanted(void);
extern void scheduler_rank(void);
extern void unlock(JobqWakeList *wake);

/* moves.c: edits that change the queue position of a job */
extern bool row_is_taken(const Row *row);
extern bool row_is_untold(const Row *row);
extern bool row_is_moving(const Row *row);
extern void op_move(uint32 a, uint32 b, uint32 c);
extern void moves_end(void);
extern void check_moved(void);

/* patience.c: the jobs that groups wait for */
extern bool row_holds(const Row *row);
extern bool row_has_lost(const Row *row, TimestampTz popped);
extern void row_hold(Row *row);
extern void row_tell_hold(const Row *row, const JobqSlot *slot, JobqWakeList *wake);
extern void rows_age(void);
extern void read_owners(void);
extern void check_patience(void);
extern void check_stuck(void);

/* check.c: the invariants */
extern void check_all(void);
extern void show_lane(const Row *row);
extern void check_tokens(const JobqPush *job);
extern void check_given_back(JobqPush *job, JobqWakeList *wake);
extern void check_starts(int row, Moment popped);

/* turns.c: processor time per tenant, and throttles */
extern void check_costs(void);
extern void check_throttle(void);

/* throttles.c: failed attempts of limiters and keys */
extern void op_fails(uint32 a, uint32 b, uint32 c);
extern void check_rest_of(const JobqPush *job);
extern void check_throttles(void);

/* full.c: cases in which all entries are in use */
extern void check_full(void);

/* tokens.c */
extern void check_tokens_come(void);

/* both.c */
extern void check_both(void);

/* test/model/doubt.c */
extern void check_doubt(void);

#endif							/* JOBQ_MODEL_H */
