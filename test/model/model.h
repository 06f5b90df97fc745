/*-------------------------------------------------------------------------
 *
 * model.h
 *	  The model of the ready set: the sources of src/ready run here without a
 *	  server, against a plain picture of what should be.
 *
 * The picture ("world") is a table of jobs, with their transactions, and those
 * who work on them: workers, sessions of consumers, and the scheduler.  Each
 * step is one operation of one of them, chosen at random; after each, check.c
 * looks at every structure, and asks of every job that may run whether somebody
 * will find it.  At the end, nobody does anything of his own accord: only who was
 * woken acts, and the scheduler at the time that it said.  So a wake-up that is
 * lost leaves a job that is never run.
 *
 * test/model/model.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_MODEL_H
#define JOBQ_MODEL_H

#include "base/base.h"

#include "ready/inner.h"

/* There is nobody who has these but the C library. */
#undef printf
#undef fprintf
#undef snprintf
#undef vprintf
#undef vsnprintf

#define MAX_ROWS		48
#define MAX_TXNS		3
#define NSLOTS			7
#define NSINGLE			5		/* workers, each of a role or pool of its own */
#define NPOOLS			2
#define NSESSIONS		3
#define MAX_MOVES		2
#define NQUEUES			6
#define NROLES			3
#define MAX_OPS			4000
#define NLIMITERS		(NQUEUES + 1)	/* those of the queues, and a kind's */

/* Every third job is of a kind that may be paused, with lanes of its own. */
#define KIND_PAUSED		99
#define MAY_BE_PAUSED(job)	((job)->key.id % 3 == 0)

/* A job of the table. */
typedef enum RowState
{
	ROW_FREE = 0,
	ROW_OPEN,					/* its transaction has not committed */
	ROW_LIVE
} RowState;

typedef struct Row
{
	RowState	state;
	JobqPush	job;
	int			txn;			/* that will hand it over, or -1 */
	int			worker;			/* that runs it, or -1 */
	int			session;		/* that has it on lease, or -1 */
	bool		held;			/* it came back: its group waits for it ... */
	TimestampTz held_since;		/* ... since then ... */
	bool		over;			/* ... but no more: see patience.c */
	uint64		again;			/* World.tick when it got its turn again */
	uint64		committed;		/* World.tick of when it could be seen here */
} Row;

typedef enum TxnState
{
	TXN_OPEN = 0,
	TXN_COMMITTED				/* but it has not handed over yet */
} TxnState;

typedef struct Txn
{
	TxnState	state;
	bool		bulk;			/* hands over lanes, not jobs */
	bool		everything;		/* has all read again */
	int			nraised;		/* hand-overs that it has counted: */
	uint32		raised[MAX_ROWS];
} Txn;

typedef enum MoveState
{
	MOVE_NONE = 0,
	MOVE_OPEN,
	MOVE_COMMITTED				/* but it has not told yet */
} MoveState;

/* A session that gives a job that waits another place. */
typedef struct Move
{
	MoveState	state;
	JobqPush	job;			/* as it was, or is to be */
	bool		counted;		/* its hand-over is, by */
	uint32		raised;
} Move;

/* A job that the scheduler has taken out of the ready set, and hands back then. */
typedef struct Kept
{
	JobqPush	job;
	TimestampTz until;
} Kept;

/* A worker: it runs a row, or looks for one, or sleeps. */
typedef struct Worker
{
	bool		awake;			/* its latch is set, or it has something to do */
	int			row;			/* that it runs, or -1 */
	JobqPush	popped;			/* last */
} Worker;

/* When: after how many commits and hand-overs, and by the clock. */
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
	uint32		place;			/* among those that wait, or JOBQ_NONE */
	JobqTaker	taker;
	int32		queue_ids[NQUEUES];
	Oid			roles[NROLES];
	Oid			denied[NROLES];
	int			ndenied;
	Moment		called;			/* when its latch was set */
} Session;

typedef struct Queue
{
	int32		id;
	bool		consumer;
	bool		paused;
	bool		kind_paused;	/* of its jobs, those of KIND_PAUSED are */
	bool		limited;		/* has a limiter, as follows */
	bool		tenants;		/* its jobs have tenants */
	bool		unlimited;		/* which have no limits; so they can have keys */
	uint8		rank[NPOOLS];
	JobqLimiter limiter;
} Queue;

typedef struct World
{
	TimestampTz now;
	bool		put_back;		/* the clock was, at some time */
	uint64		tick;			/* commits and hand-overs so far */
	uint64		limits_tick;	/* when limits were loaded last */
	int64		next_id;
	JobqPush	last;			/* the job that was enqueued last */
	int64		next_token;
	Row			rows[MAX_ROWS];
	Txn			txns[MAX_TXNS];
	Move		moves[MAX_MOVES];
	Worker		workers[NSLOTS];
	int			crowded;		/* the role that has several in one pool, or
								 * none of them */
	Session		sessions[NSESSIONS];
	Queue		queues[NQUEUES];
	JobqLimiter kind_limiter;
	uint32		kind_every;		/* so many jobs one is of the kind of that */
	uint64		turns[NLIMITERS][NROLES]; /* of a role at a limiter: not
											 * before that */
	bool		scheduler_awake;
	TimestampTz scheduler_last;
	TimestampTz discover_plan;

	/* what the scheduler is at, if others act in between */
	int			scanning;		/* lane, or -1 */
	JobqPush	read[MAX_ROWS];
	int			nread;
	JobqKey		cursor;
	bool		more;
	TimestampTz next_due;
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
	bool		calm;			/* nobody does anything of his own accord, */
	bool		calm_all;		/* and nothing is paused */
} World;

extern World world;
extern JobqDatabase *db;
extern bool tracing;

/* stubs.c: what the server has, and the sizes */
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
extern void note_turn(const JobqPush *popped, uint64 served);

/* scheduler.c: its duties, as in worker/scheduler */
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
extern void scheduler_rank(void);
extern void unlock(JobqWakeList *wake);

/* moves.c: jobs that get another place */
extern bool row_is_taken(const Row *row);
extern bool row_is_untold(const Row *row);
extern bool row_is_moving(const Row *row);
extern void op_move(uint32 a, uint32 b, uint32 c);
extern void moves_end(void);
extern void check_moved(void);

/* patience.c: for which jobs groups wait */
extern bool row_holds(const Row *row);
extern bool row_has_lost(const Row *row, TimestampTz popped);
extern void row_hold(Row *row);
extern void rows_age(void);
extern void read_owners(void);
extern void check_patience(void);
extern void check_stuck(void);

/* check.c: what must hold */
extern void check_all(void);
extern void show_lane(const Row *row);
extern void check_tokens(const JobqPush *job);
extern void check_given_back(JobqPush *job, JobqWakeList *wake);
extern void check_starts(int row, Moment popped);

/* turns.c: who gets how much */
extern void check_costs(void);
extern void check_throttle(void);

/* full.c: where all entries are in use */
extern void check_full(void);

/* tokens.c */
extern void check_tokens_come(void);

#endif							/* JOBQ_MODEL_H */
