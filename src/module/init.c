/*-------------------------------------------------------------------------
 *
 * init.c
 *	  Loads the module: settings, hooks, shared memory, the launcher.
 *
 * Without shared_preload_libraries, sessions can enqueue jobs and read views.  The jobs run
 * once the server is started with shared_preload_libraries.
 *
 * src/module/init.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/guc.h"

#include "launcher/launcher.h"
#include "module/module.h"
#include "operate/operate.h"
#include "process/process.h"
#include "store/store.h"

JOBQ_MODULE_MAGIC("jobq", JOBQ_VERSION);

/* The areas of shared memory of all directories. */
static const JobqArea *const areas[] =
{
	&jobq_members_area,
	&jobq_holding_area,
	&jobq_ready_area,
	&jobq_handovers_area,
	&jobq_waiters_area,
	&jobq_lines_area,
	&jobq_told_area,
	&jobq_length_area,
	&jobq_stats_area,
};

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	jobq_shmem_request();
}

static void
shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	if (jobq_shmem_startup() && !IsBinaryUpgrade)
		jobq_stats_load();
}

void
_PG_init(void)
{
	jobq_preloaded = process_shared_preload_libraries_in_progress;

	jobq_define_settings();
	MarkGUCPrefixReserved("jobq");
	jobq_install_commit_callbacks();
	jobq_cache_join(&jobq_relations_cache);
	jobq_cache_join(&jobq_tables_cache);
	jobq_cache_join(&jobq_queues_cache);
	jobq_cache_join(&jobq_indexes_cache);
	jobq_cache_join(&jobq_batch_ends_cache);
	jobq_privileges_install();
	jobq_kinds_install();
	jobq_listeners_install();
	jobq_limit_keys_install();
	jobq_length_install();
	jobq_stats_install();
	jobq_drop_queue_install();

	if (!jobq_preloaded)
		return;

	jobq_shmem_areas(areas, lengthof(areas));
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
	jobq_install_utility_hook();
	crash_listen();

	/* pg_upgrade starts the server to copy catalogs, not to run jobs */
	if (!IsBinaryUpgrade)
		jobq_register_launcher();
}
