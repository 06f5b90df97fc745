/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The options of a job.
 *
 * The following parts are generated from this file:
 *
 * - in C: the numbers OPTION_* (produce.h), and the table for reading options from jsonb
 *   (options.c);
 * - in SQL, when the install script is joined (control/join.awk): the arguments of enqueue(),
 *   enqueue_many() and enqueue_sql(), the columns of the view inbox, and the descriptions of
 *   options in comments.
 *
 * JOB_OPTION is an argument of enqueue().  UNIQUENESS_OPTION is a key of the argument
 * "uniqueness", and OTHER_OPTION is a key of the argument "options".  The argument "options"
 * also accepts every JOB_OPTION except itself.
 *
 * A new option is a line in this file, and code for its effect, mostly in jobq_prepare_job()
 * (enqueue.c).  Schedules accept the option, too, unless tick.c refuses it.
 *
 * A line has the option's name in SQL or jsonb, its name in C after OPTION_, its SQL type, and
 * its description for comments.  The name of a UNIQUENESS_OPTION is in quotes, because
 * pgindent takes "for" for a loop.  The type is text, int, boolean, timestamptz, interval, jsonb, uuid, or _text
 * (an array of text).
 *
 * "options" must be the last JOB_OPTION: see NOPTION_ARGS.
 *
 * A file that includes this one defines the macros for the lines that it wants.  There is no
 * #ifndef around the file, because files include it more than once.
 *
 * src/produce/options.h
 *
 *-------------------------------------------------------------------------
 */

#ifndef JOB_OPTION
#define JOB_OPTION(name, NAME, type, comment)
#endif
#ifndef UNIQUENESS_OPTION
#define UNIQUENESS_OPTION(name, NAME, type, comment)
#endif
#ifndef OTHER_OPTION
#define OTHER_OPTION(name, NAME, type, comment)
#endif

JOB_OPTION(queue, QUEUE, text, "the queue of the job; otherwise the queue of the kind, or else the queue default")
JOB_OPTION(priority, PRIORITY, int, "a smaller number runs first; default: the priority of the kind, or else 0")
JOB_OPTION(run_at, RUN_AT, timestamptz, "the earliest start; default now")
JOB_OPTION(delay, DELAY, interval, "the time until the earliest start; not together with run_at")
JOB_OPTION(max_attempts, MAX_ATTEMPTS, int, "the largest number of attempts, 0 for no limit; default: the value of the kind, or else jobq.default_max_attempts")
JOB_OPTION(retry_until, RETRY_UNTIL, timestamptz, "the time limit for further attempts, instead of max_attempts")
JOB_OPTION(backoff, BACKOFF, text, "the delay before the next attempt: fixed 5s, linear 5s, exponential 5s cap 300s jitter 20%, or list 1s,5s,10s; default: the value of the kind, or else jobq.default_backoff")
JOB_OPTION(timeout, TIMEOUT, interval, "how long an attempt may run; default: the value of the kind, or else jobq.default_timeout")
JOB_OPTION(expires_at, EXPIRES_AT, timestamptz, "a job not started by this time ends as expired; default: from expires_after of the queue")
JOB_OPTION(unique_key, UNIQUE_KEY, text, "a key that a single job of the same kind and role may hold at a time, unless uniqueness changes that")
JOB_OPTION(uniqueness, UNIQUENESS, jsonb, "the details of the unique key, with the keys by, for, until, scope, max, on_conflict and merge, for example {\"on_conflict\": \"replace\"}")
JOB_OPTION(group_key, GROUP_KEY, text, "the group of the job; jobs of a group in a queue run in order, one at a time")
JOB_OPTION(headers, HEADERS, jsonb, "passed on to the handler, for example a trace id; a fair queue can find the tenant here")
JOB_OPTION(tags, TAGS, _text, "up to 16 tags to find the job by, for example {import,vip}")
JOB_OPTION(options, OPTIONS, jsonb, "further options, with the keys context, uuid and watch; the options above are also allowed as keys")

UNIQUENESS_OPTION("by", UNIQUE_BY, _text, "the payload fields that make the key, for example [\"customer\", \"month\"]; not together with unique_key")
UNIQUENESS_OPTION("for", UNIQUE_FOR, interval, "the minimum time after the enqueue for which the key is held, even after the end of the job")
UNIQUENESS_OPTION("until", UNIQUE_UNTIL, text, "how long the job holds the key: until finish (default) or start")
UNIQUENESS_OPTION("scope", UNIQUE_SCOPE, text, "the jobs of the role among which the key is unique: kind (default; jobs of the same kind), queue (jobs of the same queue), or database (all jobs)")
UNIQUENESS_OPTION("max", UNIQUE_MAX, int, "how many jobs may hold the key at a time, with skip, ignore and error; with \"for\": how many in this time; default 1")
UNIQUENESS_OPTION("on_conflict", ON_CONFLICT, text, "the effect if the key is held: skip (default; the result is the id of the holder), ignore (the result is null), replace (a waiting holder keeps only the id), merge (a waiting holder keeps everything except the payload, which is made of both), reset (a waiting holder only gets the times of the new job), or error")
UNIQUENESS_OPTION("merge", MERGE, text, "the function for on_conflict merge, for example f(jsonb, jsonb), which makes the payload from the payloads of the holder and the new job; default: join fields of objects, or elements of arrays")

OTHER_OPTION(context, CONTEXT, jsonb, "settings for the job by name, for example {\"search_path\": \"branch_7\"}; further settings on the carry list of the queue have the values of this session")
OTHER_OPTION(uuid, UUID, uuid, "an id chosen by the client; enqueuing again with this uuid returns the same job, as long as jobq keeps the uuid")
OTHER_OPTION(watch, WATCH, boolean, "send NOTIFY on channel jobq_job_ID at each change of the job; default false")

#undef JOB_OPTION
#undef UNIQUENESS_OPTION
#undef OTHER_OPTION
