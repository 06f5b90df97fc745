/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Decides whether a worker can work as a role, and fails the jobs of roles
 *	  that cannot work.
 *
 * The jobs of a role fail only with proof from the catalogs: the role is gone, may not
 * log in, or may not connect to the database.  An exit of a worker before the connection
 * proves nothing.  The worker may have been terminated, the server may lack memory or
 * connections, or may be shutting down.  Then no job fails.  The next worker of the role
 * starts after a growing pause, and the remaining roles continue.  The same applies if a
 * worker ends with a job it could not even begin.
 *
 * worker/scheduler/role.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/hsearch.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* Trouble is forgotten after this time; also the pause between log messages. */
#define TROUBLE_TIME		(60 * USECS_PER_SEC)

/* Jobs of a broken role failed in one round. */
#define MAX_CHARGED			100

/* A role whose last worker failed to connect, or to begin a job, for an unknown reason. */
typedef struct RoleTrouble
{
	Oid			role;			/* key */
	JobqPause	pause;			/* before the next worker; none after the
								 * first failure */
	JobqSteady	logged_at;
} RoleTrouble;

static HTAB *troubles = NULL;

/*
 * Roles whose jobs were failed recently, and when.  Further jobs may be found later,
 * because a lane was read later, or again after a lock timeout.
 */
#define MAX_LATELY			8
#define LATELY				(600 * USECS_PER_SEC)

static struct
{
	Oid			role;
	JobqSteady	at;
}			lately[MAX_LATELY];

/* A popped job, and the error to record. */
typedef struct Charge
{
	JobqPush	entry;
	const JobqError *error;
	bool		live;			/* will run again */
} Charge;

/*
 * The last popped job, and the jobs of this round that could not be failed now.
 * give_back() returns their permits at the exit of the process.
 */
static Charge charge;
static JobqPush uncharged[MAX_CHARGED];
static int	nuncharged = 0;

static void note_charged(Oid role);
static void give_back(int code, Datum arg);
static void put_back(void);
static void charge_entry(void *arg);

/*
 * Check in the catalogs whether a worker can connect as this role.  If not, sets
 * *error.  Must be called outside a transaction.
 */
bool
role_can_work(Oid role, JobqError *error)
{
	HeapTuple	tuple;
	bool		can = false;

	memset(error, 0, sizeof(JobqError));
	error->sqlerrcode = ERRCODE_JOBQ_BAD_ROLE;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	if (!HeapTupleIsValid(tuple))
		error->message = "the role of the job does not exist any more";
	else
	{
		if (!JOBQ_NOLOGIN_WORKS &&
			!((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin)
		{
			error->message = "the role of the job may not log in";
			error->hint = "Before PostgreSQL 17, background workers can be started only for roles with LOGIN.";
		}
		else if (jobq_allow_superuser_jobs == SUPERUSER_JOBS_OFF &&
				 superuser_arg(role))
		{
			error->message = "the role of the job is a superuser";
			error->hint = "Jobs of superusers are not allowed by \"jobq.allow_superuser_jobs\".";
		}
		else if (jobq_database_aclcheck(MyDatabaseId, role, ACL_CONNECT) != ACLCHECK_OK)
		{
			error->message = "the role of the job may not connect to the database";
			error->hint = "Grant it CONNECT on the database.";
		}
		else
			can = true;
		ReleaseSysCache(tuple);
	}
	CommitTransactionCommand();
	return can;
}

static bool
is_old(const RoleTrouble *trouble)
{
	return jobq_steady() > trouble->pause.until + TROUBLE_TIME;
}

static RoleTrouble *
trouble_of(Oid role, bool *found)
{
	RoleTrouble *trouble;

	if (troubles == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(Oid),.entrysize = sizeof(RoleTrouble)};

		troubles = hash_create("jobq roles in trouble", 16, &ctl,
							   HASH_ELEM | HASH_BLOBS);
	}
	trouble = hash_search(troubles, &role, HASH_ENTER, found);
	if (!*found)
		*trouble = (RoleTrouble)
	{
		.role = role
	};
	return trouble;
}

/*
 * Handle the exit of a worker before the connection as this role.  If "connected", the
 * worker exited with a job it had not begun.  *wake: see role_charge().
 */
void
role_left_early(Oid role, bool connected, TimestampTz now, TimestampTz *wake)
{
	RoleTrouble *trouble;
	JobqError	error;
	const char *name;
	bool		found;

	if (!role_can_work(role, &error))
	{
		role_charge(role, &error, now, wake);
		return;
	}
	trouble = trouble_of(role, &found);
	if (!found || is_old(trouble))
	{
		*trouble = (RoleTrouble)
		{
			.role = role,.pause.until = jobq_steady()
		};
		return;
	}
	jobq_pause_begin(&trouble->pause, PAUSE_ROLE_TROUBLE);
	if (!process_stopping() && jobq_once_in(&trouble->logged_at, TROUBLE_TIME))
	{
		process_begin_transaction();
		name = GetUserNameFromId(role, true);
		if (name == NULL)
			name = "(dropped)";
		ereport(LOG,
				(connected ?
				 errmsg("jobq workers of role \"%s\" have ended before they could begin a job", name) :
				 errmsg("jobq workers could not connect as role \"%s\"", name),
				 connected ?
				 errdetail("Its jobs are not charged: they wait.") :
				 errdetail("By its privileges it may connect, so its jobs are not charged: they wait."),
				 errhint("The log has the reason in what these workers have said before.")));
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
}

/*
 * Return when the next worker of this role may be started; at most "now" without
 * trouble.
 */
TimestampTz
role_retry_at(Oid role, TimestampTz now)
{
	RoleTrouble *trouble = troubles == NULL ? NULL
		: hash_search(troubles, &role, HASH_FIND, NULL);

	if (trouble == NULL)
		return now;
	if (is_old(trouble))
	{
		hash_search(troubles, &role, HASH_REMOVE, NULL);
		return now;
	}
	return jobq_pause_due(&trouble->pause, now);
}

/*
 * Pop the first job of the role.  Limits do not apply, because the job does not run.
 * Takes my_db->lock exclusively.
 */
static bool
pop(Oid role, JobqPush *entry)
{
	bool		popped = false;
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int pool = 0; pool < jobq_pools()->npools && !popped; pool++)
	{
		JobqTaker	taker = {.pool = pool,.slot = -1,.unlimited = true,.nroles = 1,.roles = &role};

		popped = jobq_ready_pop(my_db, &taker, jobq_now(), entry, &wake);
	}
	jobq_unlock(my_db, &wake);
	return popped;
}

/*
 * Turn jobs of a role that cannot work into dead letters, at most MAX_CHARGED in a
 * round.  If any job was processed, *wake is lowered to now.  A job whose row cannot be
 * changed is put back.  If no job can be processed, the role waits for the next retry.
 * Must be called outside a transaction.
 */
void
role_charge(Oid role, const JobqError *error, TimestampTz now, TimestampTz *wake)
{
	static bool registered = false;
	bool		locked = false;
	bool		some = false;
	bool		found;
	TimestampTz next = DT_NOEND;

	if (!registered)
	{
		charge.entry.permits = JOBQ_NO_PERMITS;
		before_shmem_exit(give_back, (Datum) 0);
		registered = true;
	}
	note_charged(role);
	for (int n = 0; n < MAX_CHARGED && !locked && pop(role, &charge.entry); n++)
	{
		int64		id = charge.entry.key.id;
		TimestampTz at = later_at(id, now);
		ErrorData  *edata = NULL;
		JobqWakeList woken = {0};

		charge.error = error;
		charge.live = false;
		if (at <= now)
			edata = scheduler_try(charge_entry, &charge);
		if (edata != NULL)
		{
			/* the next job would meet the same lock */
			locked = edata->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE;
			at = later_failed(id, edata, now);
		}
		if (at > now)
		{
			uncharged[nuncharged++] = charge.entry;
			charge.entry.permits = JOBQ_NO_PERMITS;
			next = Min(next, at);
			continue;
		}
		later_done(id);
		some = true;
		LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
		jobq_permits_release(my_db, &charge.entry.permits, id, charge.live, true,
							 jobq_now(), &woken);
		jobq_unlock(my_db, &woken);
	}
	put_back();
	if (!some && next != DT_NOEND)
		trouble_of(role, &found)->pause.until = jobq_steady() + (next - now);
	*wake = Min(*wake, some ? now : next);
}

/*
 * Put back the jobs that could not be processed.  Takes my_db->lock exclusively.
 */
static void
put_back(void)
{
	JobqWakeList wake = {0};

	if (nuncharged == 0)
		return;
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	while (nuncharged > 0)
	{
		JobqPush   *entry = &uncharged[--nuncharged];
		JobqPermits permits = entry->permits;

		entry->permits = JOBQ_NO_PERMITS;
		jobq_ready_push(my_db, entry, jobq_now(), &wake);
		jobq_permits_release(my_db, &permits, entry->key.id, false, true, jobq_now(),
							 &wake);
	}
	wake.scheduler = false;		/* the scheduler itself: would keep it awake */
	jobq_unlock(my_db, &wake);
}

/*
 * Exit callback: return the permits of unfinished jobs, because permits stay counted
 * across schedulers.  The next scheduler reads all jobs again.
 */
static void
give_back(int code, Datum arg)
{
	JobqWakeList wake = {0};

	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	jobq_permits_release(my_db, &charge.entry.permits, charge.entry.key.id, false, true,
						 jobq_now(), &wake);
	jobq_unlock(my_db, &wake);
	put_back();
}

static void
note_charged(Oid role)
{
	int			place = 0;

	for (int i = 0; i < MAX_LATELY; i++)
	{
		if (lately[i].role == role)
		{
			place = i;
			break;
		}
		if (lately[i].at < lately[place].at)
			place = i;
	}
	lately[place].role = role;
	lately[place].at = jobq_steady();
}

/*
 * True if jobs of the role were failed within the time LATELY.
 */
bool
role_charged_lately(Oid role)
{
	for (int i = 0; i < MAX_LATELY; i++)
		if (lately[i].role == role)
			return jobq_steady() < lately[i].at + LATELY;
	return false;
}

/*
 * Fail one popped job.  arg is a Charge.
 */
static void
charge_entry(void *arg)
{
	Charge	   *this = arg;
	JobqPush   *entry = &this->entry;
	Relation	rel;
	JobqJob		job;
	JobqJob		first;
	JobqVerdict verdict = JOBQ_GONE;

	if (jobq_relations_if_installed() == NULL)
		return;
	rel = jobq_open_jobs();
	if (jobq_job_fetch_entry(rel, entry, GetActiveSnapshot(), &job))
		verdict = jobq_gate(rel, &job, MODE_WORKER, entry, GetActiveSnapshot(),
							jobq_now(), &first);
	if (verdict == JOBQ_GONE || verdict == JOBQ_TAKEN || verdict == JOBQ_DORMANT)
		;						/* left to the session with the row */
	else if (verdict == JOBQ_GROUP_BUSY || verdict == JOBQ_OTHER_LANE)
	{
		/*
		 * a different job of the group comes first, and fails first; or the
		 * job now runs as a different role
		 */
		(void) jobq_turn_away(rel, verdict, &job, entry, &first, 0);
	}
	else if (!JOB_ISNULL(&job, JOB_EXPIRES_AT) &&
			 DatumGetTimestampTz(JOB(&job, JOB_EXPIRES_AT)) <= jobq_now())
	{
		if (jobq_job_delete(rel, &job))
			jobq_archive_unstarted(&job, CAUSE_EXPIRED, NULL);
	}
	else
	{
		/*
		 * waiting does not help; after a repair, retry() brings the jobs back
		 */
		JobqFailure failure = {
			.started_at = DT_NOBEGIN,.error = this->error,.charge = true,.final = true
		};

		jobq_injection_point("jobq-role-charge");
		this->live = jobq_job_attempt_failed(rel, &job, &failure);
	}
	table_close(rel, NoLock);
}
