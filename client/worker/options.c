/*-------------------------------------------------------------------------
 *
 * options.c
 *	  The options of the command work, and whether the command stops.
 *
 * client/worker/options.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <string.h>

#define MOST_AT_A_TIME	1000	/* limit of jobq.reserve() */

WorkOptions work;
bool		work_is_hopeless;

/* Options of the command, in the order of the table in commands.c. */
enum
{
	VALUE_QUEUES, VALUE_EXEC, VALUE_HTTP, VALUE_HTTP_SECRET, VALUE_HTTP_REDIRECTS, VALUE_HTTP_RETRY_4XX,
	VALUE_HTTP_PUBLIC_ONLY, VALUE_HTTP_CA, VALUE_PARALLEL, VALUE_BATCH, VALUE_AHEAD, VALUE_LEASE, VALUE_TIMEOUT, VALUE_GRACE,
	VALUE_RETRY_DELAY, VALUE_RESULT, VALUE_MAX_OUTPUT, VALUE_MAX_MEMORY, VALUE_MAX_JOBS,
	VALUE_MAX_TIME, VALUE_ONCE, VALUE_STOP_WHEN_EMPTY, VALUE_NAME, VALUE_QUIET
};

/*
 * Read the options.  An invalid value ends the program.
 */
void
work_options(const char **values)
{
	static const char *const hows[] = {"auto", "json", "text", "none"};
	int			how = 0;

#define GIVEN(which, read, otherwise) (values[which] != NULL ? read : (otherwise))
	work.queues = values[VALUE_QUEUES];
	work.exec = values[VALUE_EXEC];
	work.http = values[VALUE_HTTP];
	work.http_secret = values[VALUE_HTTP_SECRET];
	if ((work.exec == NULL) == (work.http == NULL))
		fatal(EXIT_USAGE, "\"jobq work\" needs either --exec or --http");
	if (work.exec == NULL && values[VALUE_MAX_MEMORY] != NULL)
		fatal(EXIT_USAGE, "--max-memory is for --exec");
	work.parallel = GIVEN(VALUE_PARALLEL, whole_number(values[VALUE_PARALLEL], "--parallel", 1, 1000), 1);
	work.batch = GIVEN(VALUE_BATCH, whole_number(values[VALUE_BATCH], "--batch", 1, MOST_AT_A_TIME), MOST_AT_A_TIME);
	work.ahead = GIVEN(VALUE_AHEAD, whole_number(values[VALUE_AHEAD], "--ahead", 0, MOST_AT_A_TIME), -1);
	work.lease = GIVEN(VALUE_LEASE, duration(values[VALUE_LEASE], "--lease"), 30);
	if (work.lease < 1 || work.lease > 7 * 86400)
		fatal(EXIT_USAGE, "invalid value for --lease: \"%s\" (1 s to 7 d)", values[VALUE_LEASE]);
	work.timeout = GIVEN(VALUE_TIMEOUT, duration(values[VALUE_TIMEOUT], "--timeout"), work.http != NULL ? 30 : 0);
	work.grace = GIVEN(VALUE_GRACE, duration(values[VALUE_GRACE], "--grace"), 10);
	work.retry_delay = GIVEN(VALUE_RETRY_DELAY, duration(values[VALUE_RETRY_DELAY], "--retry-delay"), 30);
	work.max_output = GIVEN(VALUE_MAX_OUTPUT, whole_number(values[VALUE_MAX_OUTPUT], "--max-output", 0, 1 << 28), 1000000);
	work.max_memory = GIVEN(VALUE_MAX_MEMORY, whole_number(values[VALUE_MAX_MEMORY], "--max-memory", 1, 1 << 24), 0) << 20;
	work.max_jobs = GIVEN(VALUE_MAX_JOBS, whole_number(values[VALUE_MAX_JOBS], "--max-jobs", 1, INT64_MAX), 0);
	work.max_time = GIVEN(VALUE_MAX_TIME, duration(values[VALUE_MAX_TIME], "--max-time"), 0);
	work.stop_when_empty = values[VALUE_STOP_WHEN_EMPTY] != NULL;
	work.quiet = values[VALUE_QUIET] != NULL;
	work.name = GIVEN(VALUE_NAME, values[VALUE_NAME], "jobq");
	work.redirects = GIVEN(VALUE_HTTP_REDIRECTS, whole_number(values[VALUE_HTTP_REDIRECTS], "--http-redirects", 0, 20), 0);
	work.retry_4xx = values[VALUE_HTTP_RETRY_4XX] != NULL;
	work.public_only = values[VALUE_HTTP_PUBLIC_ONLY] != NULL;
	work.ca_file = values[VALUE_HTTP_CA];
	if (values[VALUE_ONCE] != NULL)
		work.max_jobs = 1;
	while (values[VALUE_RESULT] != NULL && strcmp(values[VALUE_RESULT], hows[how]) != 0)
		if (++how == 4)
			fatal(EXIT_USAGE, "invalid value for --result: \"%s\" (auto, json, text or none)", values[VALUE_RESULT]);
	work.result = (ResultHow) how;
#undef GIVEN
}
