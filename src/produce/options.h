/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The list of a job's options.
 *
 * The following parts are generated from this list:
 *
 * - in C: the numbers OPTION_* (produce.h), and the table for reading options from jsonb
 *   (spec.c);
 * - in SQL, when the install script is joined (control/join.awk): the arguments of enqueue()
 *   and enqueue_many(), the columns of the view inbox, and the descriptions of options in
 *   comments.
 *
 * A new option is therefore a line in this file, and code for its effect, mostly in
 * jobq_prepare_job() (enqueue.c).  Schedules accept the option, too, unless schedule.c refuses
 * it.
 *
 * A line has the option's name in SQL and in jsonb, its name in C after OPTION_, its SQL type,
 * and its description for comments.  The type is text, int, boolean, timestamptz, interval,
 * jsonb, uuid, or _text (an array of text).  jobq_unique_options() reads unique_key,
 * unique_for, unique_until and on_conflict together: these lines must keep their order.
 *
 * There is no #ifndef, because the file is included with different definitions of JOB_OPTION.
 *
 * src/produce/options.h
 *
 *-------------------------------------------------------------------------
 */

JOB_OPTION(queue, QUEUE, text, "the queue of the job; otherwise the queue of the kind, or else the queue default")
JOB_OPTION(priority, PRIORITY, int, "a smaller number runs first; default 0")
JOB_OPTION(run_at, RUN_AT, timestamptz, "the earliest start; default now")
JOB_OPTION(delay, DELAY, interval, "the time until the earliest start; not together with run_at")
JOB_OPTION(max_attempts, MAX_ATTEMPTS, int, "the largest number of attempts, 0 for no limit; default: the value of the kind, or else jobq.default_max_attempts")
JOB_OPTION(retry_until, RETRY_UNTIL, timestamptz, "the time limit for further attempts, instead of max_attempts")
JOB_OPTION(backoff, BACKOFF, text, "the delay before the next attempt: fixed 5s, linear 5s, exponential 5s cap 300s jitter 20%, or list 1s,5s,10s; default: the value of the kind, or else jobq.default_backoff")
JOB_OPTION(timeout, TIMEOUT, interval, "how long an attempt may run; default: the value of the kind, or else jobq.default_timeout")
JOB_OPTION(expires_at, EXPIRES_AT, timestamptz, "a job not started by this time ends as expired; default: from expires_after of the queue")
JOB_OPTION(unique_key, UNIQUE_KEY, text, "a key that a single job of the same kind and role may hold at a time; see unique_scope and unique_max")
JOB_OPTION(unique_for, UNIQUE_FOR, interval, "the minimum time after the enqueue for which the key is held, even after the end of the job")
JOB_OPTION(unique_until, UNIQUE_UNTIL, text, "how long the job holds the key: until finish (default) or start")
JOB_OPTION(on_conflict, ON_CONFLICT, text, "the effect if the key is held: skip (default; the result is the id of the holder), ignore (the result is null), replace (a waiting holder keeps only the id), merge (a waiting holder keeps everything except the payload, which is made of both), reset (a waiting holder only gets the times of the new job), or error")
JOB_OPTION(group_key, GROUP_KEY, text, "the group of the job; jobs of a group in a queue run in order, one at a time")
JOB_OPTION(headers, HEADERS, jsonb, "passed on to the handler, for example a trace id; a fair queue can find the tenant here")
JOB_OPTION(watch, WATCH, boolean, "send NOTIFY on channel jobq_job_ID at each change of the job; default false")
JOB_OPTION(context, CONTEXT, jsonb, "settings for the job by name, for example {\"search_path\": \"branch_7\"}; further settings on the carry list of the queue have the values of this session")
JOB_OPTION(unique_by, UNIQUE_BY, text, "the payload fields of the unique key, for example {customer,month}; not together with unique_key")
JOB_OPTION(tags, TAGS, _text, "up to 16 tags to find the job by, for example {import,vip}")
JOB_OPTION(unique_scope, UNIQUE_SCOPE, text, "the jobs of the role among which the unique key is unique: kind (default; jobs of the same kind), queue (jobs of the same queue), or database (all jobs)")
JOB_OPTION(merge, MERGE, text, "the function for on_conflict merge, for example f(jsonb, jsonb), which makes the payload from the payloads of the holder and the new job; default: join fields of objects, or elements of arrays")
JOB_OPTION(uuid, UUID, uuid, "an id chosen by the client; enqueuing again with this uuid returns the same job, as long as jobq keeps the uuid")
JOB_OPTION(unique_max, UNIQUE_MAX, int, "how many jobs may hold the unique key at a time, with skip, ignore and error; with unique_for: how many in this time; default 1")
