/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of jobq, a row for each.
 *
 * jobq.workers is parsed by pools.c.
 *
 * src/base/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <limits.h>

#include "utils/guc.h"
#include "utils/varlena.h"

#include "base/inner.h"

bool		jobq_preloaded;

char	   *jobq_databases;
char	   *jobq_workers;
char	   *jobq_sql_databases;
int			jobq_max_workers;
int			jobq_max_databases;
int			jobq_ready_entries;
int			jobq_max_stats;
int			jobq_enqueue_timeout;
bool		jobq_synchronous_commit;
int			jobq_allow_superuser_jobs = SUPERUSER_JOBS_OWN;
int			jobq_notify_interval;
#ifdef USE_ASSERT_CHECKING
int			jobq_debug_check_ready;
#endif
int			jobq_poll_interval;
int			jobq_default_timeout;
int			jobq_default_max_attempts = 3;
char	   *jobq_default_backoff;
int			jobq_cancel_grace;
int			jobq_max_payload;
int			jobq_worker_max_age;
int			jobq_worker_max_memory;
bool		jobq_start_paused;
int			jobq_create_queues = CREATE_QUEUES_WORKER;
int			jobq_max_queues_per_role = 1000;
int			jobq_log_min_duration;
int			jobq_archive_retention;
int			jobq_dead_retention;

/* These follow from jobq.ready_entries; see jobq_define_settings(). */
int			jobq_max_lanes;
int			jobq_max_leases;
int			jobq_max_groups;
int			jobq_max_limiters;

/* The number of a lane, or of a limiter, must fit into 16 bits. */
#define MOST_LANES		60000
#define MOST_LIMITERS	16384

/* Slots for limits on the smallest server, too. */
#define LEAST_LIMITERS	16

typedef enum SettingType
{
	SETTING_SWITCH,
	SETTING_NUMBER,
	SETTING_TEXT,
	SETTING_CHOICE,
} SettingType;

typedef struct Setting
{
	const char *name;
	SettingType type;
	void	   *variable;
	int			boot;			/* except for a text; min and max of a number */
	int			min;
	int			max;
	const char *boot_text;
	GucContext	context;
	int			flags;			/* mainly the unit */
	const char *what;
	const char *more;			/* or NULL */
	GucStringCheckHook check;	/* check and assign of a text, or NULL */
	GucStringAssignHook assign;
	const struct config_enum_entry *choices;	/* of a choice */
} Setting;

static const struct config_enum_entry create_queues_choices[] = {
	{"off", CREATE_QUEUES_OFF, false},
	{"worker", CREATE_QUEUES_WORKER, false},
	{"consumer", CREATE_QUEUES_CONSUMER, false},
	{"on", CREATE_QUEUES_WORKER, true},
	{"true", CREATE_QUEUES_WORKER, true},
	{"yes", CREATE_QUEUES_WORKER, true},
	{"1", CREATE_QUEUES_WORKER, true},
	{"false", CREATE_QUEUES_OFF, true},
	{"no", CREATE_QUEUES_OFF, true},
	{"0", CREATE_QUEUES_OFF, true},
	{NULL, 0, false}
};

static const struct config_enum_entry superuser_jobs_choices[] = {
	{"off", SUPERUSER_JOBS_OFF, false},
	{"own", SUPERUSER_JOBS_OWN, false},
	{"on", SUPERUSER_JOBS_ON, false},
	{"true", SUPERUSER_JOBS_ON, true},
	{"yes", SUPERUSER_JOBS_ON, true},
	{"1", SUPERUSER_JOBS_ON, true},
	{"false", SUPERUSER_JOBS_OFF, true},
	{"no", SUPERUSER_JOBS_OFF, true},
	{"0", SUPERUSER_JOBS_OFF, true},
	{NULL, 0, false}
};

/* The columns of a row from type to boot_text. */
#define SWITCH(var, value) \
	.type = SETTING_SWITCH, .variable = &var, .boot = value, .boot_text = NULL
#define NUMBER(var, value, lowest, highest) \
	.type = SETTING_NUMBER, .variable = &var, .boot = value, \
	.min = lowest, .max = highest, .boot_text = NULL
#define CHOICE(var, value, list) \
	.type = SETTING_CHOICE, .variable = &var, .boot = value, \
	.choices = list, .boot_text = NULL
#define TEXT(var, value) \
	.type = SETTING_TEXT, .variable = &var, .boot_text = value

static bool check_databases(char **newval, void **extra, GucSource source);
static bool check_backoff(char **newval, void **extra, GucSource source);

/* Settings of each session that uses jobq. */
static const Setting everywhere[] = {
	{
		"jobq.create_queues", CHOICE(jobq_create_queues, CREATE_QUEUES_WORKER, create_queues_choices),
		PGC_SUSET, 0,
		"Sets the mode of queues that are created by their first job.",
		"worker: the workers run the jobs; consumer: programs take the jobs with reserve(); off: enqueue() fails if the queue does not exist, except for the queue default."
	},
	{
		"jobq.max_queues_per_role", NUMBER(jobq_max_queues_per_role, 1000, 0, INT_MAX),
		PGC_SUSET, 0,
		"Sets the maximum number of queues that a role creates by their first jobs.",
		"Queues made with create_queue() do not count. 0 means no limit."
	},
	{
		"jobq.enqueue_timeout", NUMBER(jobq_enqueue_timeout, 60000, 0, INT_MAX),
		PGC_USERSET, GUC_UNIT_MS,
		"Sets the maximum time that a session waits to enqueue into a full queue with on_full = wait.",
		"0 means that only lock_timeout and statement_timeout limit the wait."
	},
	{
		"jobq.max_payload", NUMBER(jobq_max_payload, 16384, 1, 1024 * 1024),
		PGC_SUSET, GUC_UNIT_KB,
		"Sets the maximum size of the payload and headers of a job together, and of its result."
	},
	{
		"jobq.default_timeout", NUMBER(jobq_default_timeout, 0, 0, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_MS,
		"Sets the maximum run time of a handler, unless the job or the kind sets it; 0 means no limit."
	},
	{
		"jobq.default_max_attempts", NUMBER(jobq_default_max_attempts, 3, 0, INT_MAX),
		PGC_SUSET, 0,
		"Sets the maximum number of attempts, unless the job or the kind sets it; 0 means no limit."
	},
	{
		"jobq.default_backoff", TEXT(jobq_default_backoff, JOBQ_DEFAULT_BACKOFF),
		PGC_SUSET, 0,
		"Sets the delay before the next attempt, unless the job or the kind sets it.",
		"For example \"fixed 5s\", \"linear 5s cap 300s\", \"exponential 5s cap 300s jitter 20%\", or \"list 1s,5s,10s\".",
		check_backoff
	},
	{
		"jobq.notify_interval", NUMBER(jobq_notify_interval, 10, 0, 60000),
		PGC_SIGHUP, GUC_UNIT_MS,
		"Sets the time for which the NOTIFY relay collects messages before it sends them."
	},
#ifdef USE_ASSERT_CHECKING
	{
		"jobq.debug_check_ready", NUMBER(jobq_debug_check_ready, 0, 0, INT_MAX),
		PGC_SIGHUP, GUC_NOT_IN_SAMPLE | GUC_NO_SHOW_ALL,
		"Sets after how many changes of the ready set a process checks the whole set; 0 means never.",
		"For developers: the setting exists only in a server with assertions. A fault is a PANIC."
	},
#endif
};

/*
 * Settings that exist only if jobq is preloaded.  They apply to background workers, or to
 * shared memory, which has a fixed size.
 */
static const Setting where_preloaded[] = {
	{
		"jobq.databases", TEXT(jobq_databases, "postgres"),
		PGC_SIGHUP, GUC_LIST_INPUT,
		"Lists the databases whose jobs run; \"*\" means every database that has the extension.",
		NULL,
		check_databases
	},
	{
		"jobq.sql_databases", TEXT(jobq_sql_databases, ""),
		PGC_SIGHUP, GUC_LIST_INPUT,
		"Lists other databases in which jobs may run plain statements; \"*\" means every database.",
		"The statements run as the role of the job, which must be allowed to connect.",
		check_databases
	},
	{
		"jobq.workers", TEXT(jobq_workers, "*=4"),
		PGC_SIGHUP, 0,
		"Sets the pools of workers of each database.",
		"For example \"high,default=4; reports=2\": queues in strict order, and the number of workers. \"*\" means every queue that no pool names.",
		jobq_check_workers, jobq_assign_workers
	},
	{
		"jobq.max_workers", NUMBER(jobq_max_workers, 16, 1, 1024),
		PGC_POSTMASTER, 0,
		"Sets the maximum number of workers in the cluster.",
		"Workers, the launcher, and a scheduler per database count toward \"max_worker_processes\"."
	},
	{
		"jobq.max_databases", NUMBER(jobq_max_databases, 8, 1, 1024),
		PGC_POSTMASTER, 0,
		"Sets the maximum number of served databases."
	},
	{
		"jobq.ready_entries", NUMBER(jobq_ready_entries, 32768, 1024, JOBQ_MAX_READY_ENTRIES),
		PGC_POSTMASTER, 0,
		"Sets the maximum number of jobs per database that wait to run in shared memory.",
		"Further jobs stay in the table, and are loaded when needed. The number of slots for lanes is an eighth of this number, for leases a quarter, for active groups a sixteenth, and for limits a 128th."
	},
	{
		"jobq.max_stats", NUMBER(jobq_max_stats, 512, 16, 1024 * 1024),
		PGC_POSTMASTER, 0,
		"Sets the maximum number of combinations of queue, kind and tenant with separate statistics in the cluster.",
		"All other combinations share one row of statistics."
	},
	{
		"jobq.allow_superuser_jobs", CHOICE(jobq_allow_superuser_jobs, SUPERUSER_JOBS_OWN, superuser_jobs_choices),
		PGC_SIGHUP, 0,
		"Sets which jobs of superusers run.",
		"own: jobs enqueued in a session of a superuser; on: also jobs of sessions that became superuser by SET ROLE or a SECURITY DEFINER function; off: none; such jobs become dead letters."
	},
	{
		"jobq.synchronous_commit", SWITCH(jobq_synchronous_commit, false),
		PGC_SIGHUP, 0,
		"Makes a worker wait for the flush of each job's commit.",
		"If off, a crash can undo the last jobs together with their effects, and these jobs run again. In any case, sessions that wait for a job are told after the flush."
	},
	{
		"jobq.poll_interval", NUMBER(jobq_poll_interval, 60, 1, 3600),
		PGC_SIGHUP, GUC_UNIT_S,
		"Sets the time between two safety checks of an idle database."
	},
	{
		"jobq.cancel_grace", NUMBER(jobq_cancel_grace, 10000, 100, 3600000),
		PGC_SIGHUP, GUC_UNIT_MS,
		"Sets the time in which a handler must react to a query cancel before its worker is terminated."
	},
	{
		"jobq.worker_max_age", NUMBER(jobq_worker_max_age, 3600, 0, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_S,
		"Sets the age at which a worker process is replaced; 0 means never."
	},
	{
		"jobq.worker_max_memory", NUMBER(jobq_worker_max_memory, 262144, 0, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_KB,
		"Sets the size of its memory contexts above which a worker process is replaced; 0 means no limit."
	},
	{
		"jobq.start_paused", SWITCH(jobq_start_paused, false),
		PGC_SIGHUP, 0,
		"Starts no workers, so that no job runs until the setting is switched off.",
		"For a restored copy of a cluster, which must not run the jobs of the original."
	},
	{
		"jobq.log_min_duration", NUMBER(jobq_log_min_duration, -1, -1, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_MS,
		"Sets the run time above which a job is logged; -1 logs no jobs, 0 logs all jobs."
	},
	{
		"jobq.archive_retention", NUMBER(jobq_archive_retention, 7 * 24 * 60, 60, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_MIN,
		"Sets the time for which finished jobs are kept."
	},
	{
		"jobq.dead_retention", NUMBER(jobq_dead_retention, 30 * 24 * 60, 60, INT_MAX),
		PGC_SIGHUP, GUC_UNIT_MIN,
		"Sets the time for which dead letters are kept."
	},
};

/* Check hook: the value must be a list of names of databases. */
static bool
check_databases(char **newval, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*newval);
	List	   *names = NIL;
	bool		valid = SplitIdentifierString(copy, ',', &names);

	list_free(names);
	pfree(copy);
	if (!valid)
	{
		GUC_check_errdetail("It is not a list of names that are divided by commas.");
		GUC_check_errhint("Write names as in SQL, with double quotes where needed, or \"*\".");
	}
	return valid;
}

/* Check hook: jobq.default_backoff must be a policy. */
static bool
check_backoff(char **newval, void **extra, GucSource source)
{
	JobqBackoff unused;
	const char *problem = jobq_backoff_read(*newval, &unused);

	if (problem != NULL)
		GUC_check_errdetail("%s", problem);
	return problem == NULL;
}

static void
define(const Setting *row)
{
	switch (row->type)
	{
		case SETTING_SWITCH:
			DefineCustomBoolVariable(row->name, row->what, row->more,
									 row->variable, row->boot != 0,
									 row->context, row->flags,
									 NULL, NULL, NULL);
			break;
		case SETTING_NUMBER:
			DefineCustomIntVariable(row->name, row->what, row->more,
									row->variable, row->boot, row->min,
									row->max, row->context, row->flags,
									NULL, NULL, NULL);
			break;
		case SETTING_CHOICE:
			DefineCustomEnumVariable(row->name, row->what, row->more,
									 row->variable, row->boot, row->choices,
									 row->context, row->flags,
									 NULL, NULL, NULL);
			break;
		case SETTING_TEXT:
			DefineCustomStringVariable(row->name, row->what, row->more,
									   row->variable, row->boot_text,
									   row->context, row->flags,
									   row->check, row->assign, NULL);
			break;
	}
}

/* Set the variable of an undefined setting to its default value, unless it is a text. */
static void
set_default(const Setting *row)
{
	if (row->type == SETTING_SWITCH)
		*(bool *) row->variable = row->boot != 0;
	else if (row->type == SETTING_NUMBER || row->type == SETTING_CHOICE)
		*(int *) row->variable = row->boot;
}

/*
 * Define all settings.  Called once, when the module is loaded.  jobq_preloaded must be set.
 *
 * jobq.ready_entries never changes after its definition.  The sizes that follow from it are
 * therefore the same in each process of the server.
 */
void
jobq_define_settings(void)
{
	for (int i = 0; i < (int) lengthof(everywhere); i++)
		define(&everywhere[i]);
	for (int i = 0; i < (int) lengthof(where_preloaded); i++)
	{
		if (jobq_preloaded)
			define(&where_preloaded[i]);
		else
			set_default(&where_preloaded[i]);
	}

	jobq_max_lanes = Min(jobq_ready_entries / JOBQ_ENTRIES_PER_LANE, MOST_LANES);
	jobq_max_leases = jobq_ready_entries / JOBQ_ENTRIES_PER_LEASE;
	jobq_max_groups = jobq_ready_entries / JOBQ_ENTRIES_PER_GROUP;
	jobq_max_limiters = Min(Max(jobq_ready_entries / JOBQ_ENTRIES_PER_LIMITER, LEAST_LIMITERS),
							MOST_LIMITERS);
}
