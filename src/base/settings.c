/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  The settings of jobq, with their bounds and check hooks.
 *
 * src/base/settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <ctype.h>
#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/varlena.h"

bool		jobq_preloaded = false;
char	   *jobq_databases = NULL;
char	   *jobq_workers = NULL;
int			jobq_max_workers = 16;
int			jobq_max_databases = 8;
int			jobq_ready_entries = 32768;
int			jobq_max_lanes = 1024;
int			jobq_max_leases = 8192;
int			jobq_max_groups = 2048;
bool		jobq_synchronous_commit = false;
int			jobq_notify_interval = 10;
int			jobq_poll_interval = 60;
int			jobq_default_timeout = 0;
int			jobq_cancel_grace = 10000;
int			jobq_max_crashes = 2;
int			jobq_max_payload = 16384;
int			jobq_worker_max_jobs = 1000000;
int			jobq_worker_max_age = 3600;
int			jobq_worker_max_memory = 262144;
bool		jobq_start_paused = false;
bool		jobq_create_queues = true;
int			jobq_log_min_duration = -1;
int			jobq_archive_retention = 7 * 24 * 60;
int			jobq_failed_retention = 30 * 24 * 60;

static JobqPoolSet *pool_set = NULL;

static bool
pool_syntax_error(const char *value, const char *detail)
{
	GUC_check_errdetail("%s", detail);
	GUC_check_errhint("Name pools as \"high,default=4; reports=2\": queues in strict order, and the number of workers; \"*\" is every queue that is not named.");
	return false;
}

/*
 * Copy the word that ends before "end", without the space around it.
 */
static bool
copy_word(const char *start, const char *end, char *word, size_t size)
{
	while (start < end && isspace((unsigned char) *start))
		start++;
	while (end > start && isspace((unsigned char) end[-1]))
		end--;
	if (start == end || (size_t) (end - start) >= size)
		return false;
	memcpy(word, start, end - start);
	word[end - start] = '\0';
	return true;
}

/*
 * Check jobq.workers and keep it parsed: pools divided by ";", each a list of
 * queues, "=" and a number.
 */
static bool
check_workers(char **newval, void **extra, GucSource source)
{
	const char *at = *newval;
	JobqPoolSet *set = jobq_guc_malloc(sizeof(JobqPoolSet));

	if (set == NULL)
		return false;
	memset(set, 0, sizeof(JobqPoolSet));
	*extra = set;

	while (isspace((unsigned char) *at))
		at++;
	while (*at != '\0')
	{
		const char *end = at + strcspn(at, ";");
		const char *equals = memchr(at, '=', end - at);
		JobqPool   *pool;
		char		number[16];
		char	   *rest;
		long		workers;

		if (set->npools >= JOBQ_MAX_POOLS)
			return pool_syntax_error(*newval, "There can be at most 16 pools.");
		pool = &set->pools[set->npools++];

		if (equals == NULL)
			return pool_syntax_error(*newval, "A pool lacks its number of workers.");
		if (!copy_word(equals + 1, end, number, sizeof(number)))
			return pool_syntax_error(*newval, "The number of workers of a pool must be from 0 to 1024.");
		workers = strtol(number, &rest, 10);
		if (*rest != '\0' || workers < 0 || workers > 1024)
			return pool_syntax_error(*newval, "The number of workers of a pool must be from 0 to 1024.");
		pool->workers = (int) workers;

		for (;;)
		{
			const char *comma = memchr(at, ',', equals - at);
			const char *word_end = comma != NULL ? comma : equals;

			if (pool->nqueues >= JOBQ_MAX_POOL_QUEUES)
				return pool_syntax_error(*newval, "A pool can name at most 32 queues.");
			if (!copy_word(at, word_end, pool->queues[pool->nqueues],
						   NAMEDATALEN))
				return pool_syntax_error(*newval, "A queue name is empty or longer than 63 bytes.");
			pool->nqueues++;
			if (comma == NULL)
				break;
			at = comma + 1;
		}

		at = *end == '\0' ? end : end + 1;
		while (isspace((unsigned char) *at))
			at++;
	}
	return true;
}

/*
 * Check that jobq.databases is a list of names.
 */
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

static void
assign_workers(const char *newval, void *extra)
{
	pool_set = extra;
}

/*
 * The pools of jobq.workers; valid until the settings are read again.
 */
const JobqPoolSet *
jobq_pools(void)
{
	static const JobqPoolSet none = {0};

	return pool_set != NULL ? pool_set : &none;
}

/*
 * Define all settings.  Those that size shared memory exist only where jobq
 * was preloaded: they cannot be defined later.
 */
void
jobq_define_settings(void)
{
	DefineCustomBoolVariable("jobq.create_queues",
							 "Creates a queue when a job is first enqueued to it.",
							 "If off, enqueueing to a queue that does not exist is an error.",
							 &jobq_create_queues, true,
							 PGC_SUSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_payload",
							"Sets the largest payload that a job may have.",
							NULL,
							&jobq_max_payload, 16384, 1, 1024 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.default_timeout",
							"Sets how long a handler may run if neither job nor kind says so; 0 is no limit.",
							NULL,
							&jobq_default_timeout, 0, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_crashes",
							"Sets after how many crashes of its server process a job becomes a dead letter.",
							NULL,
							&jobq_max_crashes, 2, 1, 100,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.notify_interval",
							"Sets how long the NOTIFY relay collects messages before it sends them.",
							NULL,
							&jobq_notify_interval, 10, 0, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);

	if (!jobq_preloaded)
		return;

	DefineCustomStringVariable("jobq.databases",
							   "Lists the databases whose jobs are run; \"*\" is every database that has the extension.",
							   NULL,
							   &jobq_databases, "postgres",
							   PGC_SIGHUP, GUC_LIST_INPUT,
							   check_databases, NULL, NULL);
	DefineCustomStringVariable("jobq.workers",
							   "Sets the pools of workers of each database.",
							   "For example \"high,default=4; reports=2\": queues in strict order, and the number of workers. \"*\" is every queue that no pool names.",
							   &jobq_workers, "*=4",
							   PGC_SIGHUP, 0,
							   check_workers, assign_workers, NULL);
	DefineCustomIntVariable("jobq.max_workers",
							"Sets the largest number of workers in the cluster.",
							"They are taken from \"max_worker_processes\", as are the launcher and a scheduler per database.",
							&jobq_max_workers, 16, 1, 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_databases",
							"Sets the largest number of databases that are served.",
							NULL,
							&jobq_max_databases, 8, 1, 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.ready_entries",
							"Sets how many jobs that may run now are kept in shared memory per database.",
							"A larger backlog stays in the table and is loaded as needed.",
							&jobq_ready_entries, 32768, 1024, 16 * 1024 * 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_lanes",
							"Sets how many combinations of queue, priority and role are kept in shared memory per database.",
							NULL,
							&jobq_max_lanes, 1024, 16, 60000,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_leases",
							"Sets how many jobs consumers can hold at a time per database.",
							NULL,
							&jobq_max_leases, 8192, 64, 16 * 1024 * 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.max_groups",
							"Sets how many groups can be under way at a time per database.",
							"These are groups of which a job runs, waits for its next attempt, or keeps others waiting.",
							&jobq_max_groups, 2048, 64, 1024 * 1024,
							PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("jobq.synchronous_commit",
							 "Makes a worker wait for the flush of each job's commit.",
							 "If off, a crash may undo the last jobs together with their effects, and they run again; whoever asked about a job is told after the flush in any case.",
							 &jobq_synchronous_commit, false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.poll_interval",
							"Sets the time between two safety checks of an idle database.",
							NULL,
							&jobq_poll_interval, 60, 1, 3600,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.cancel_grace",
							"Sets how long a handler has to react to a query cancel before its worker is terminated.",
							NULL,
							&jobq_cancel_grace, 10000, 100, 3600000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.worker_max_jobs",
							"Sets after how many jobs a worker process is replaced; 0 is never.",
							NULL,
							&jobq_worker_max_jobs, 1000000, 0, INT_MAX,
							PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.worker_max_age",
							"Sets after what time a worker process is replaced; 0 is never.",
							NULL,
							&jobq_worker_max_age, 3600, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_S, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.worker_max_memory",
							"Sets the memory contexts' size beyond which a worker process is replaced; 0 is none.",
							NULL,
							&jobq_worker_max_memory, 262144, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomBoolVariable("jobq.start_paused",
							 "Starts no workers, so that nothing runs until it is switched off.",
							 "For a restored copy of a cluster, which must not do the original's work.",
							 &jobq_start_paused, false,
							 PGC_SIGHUP, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.log_min_duration",
							"Sets the run time above which a job is logged; -1 logs none, 0 all.",
							NULL,
							&jobq_log_min_duration, -1, -1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.archive_retention",
							"Sets how long finished jobs are kept.",
							NULL,
							&jobq_archive_retention, 7 * 24 * 60, 60, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
	DefineCustomIntVariable("jobq.failed_retention",
							"Sets how long dead letters are kept.",
							NULL,
							&jobq_failed_retention, 30 * 24 * 60, 60, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MIN, NULL, NULL, NULL);
}
