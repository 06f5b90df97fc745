/*-------------------------------------------------------------------------
 *
 * options.h
 *	  The list of a job's options.
 *
 * This is the only place that lists them.  From it are made
 *
 * - in C: the numbers OPTION_* (produce.h), and the table by which options
 *	 are read from jsonb (spec.c);
 * - in SQL, when the install script is joined (control/join.awk): the
 *	 arguments of enqueue() and enqueue_many(), the columns of the view inbox,
 *	 and what their comments say of each.
 *
 * So a new option is a line here, and code where it takes effect: mostly in
 * jobq_prepare_job() (enqueue.c).  A schedule accepts it, too, unless
 * schedule.c refuses it.
 *
 * A line has the option's name in SQL and in jsonb, its name in C after
 * OPTION_, its SQL type (text, int, boolean, timestamptz, interval, jsonb, uuid,
 * or _text, an array of text),
 * and what it says, for the comments.  The four about unique keys are read
 * together by jobq_unique_options(), and keep their order.
 *
 * No #ifndef around this: it is included with JOB_OPTION defined in different
 * ways.
 *
 * src/produce/options.h
 *
 *-------------------------------------------------------------------------
 */

JOB_OPTION(queue, QUEUE, text, "the queue that the job stands in; else that of its kind, else default")
JOB_OPTION(priority, PRIORITY, int, "smaller runs first; else 0")
JOB_OPTION(run_at, RUN_AT, timestamptz, "not before this time; else now")
JOB_OPTION(delay, DELAY, interval, "not before so much time has passed; not together with run_at")
JOB_OPTION(max_attempts, MAX_ATTEMPTS, int, "how many attempts there are at most, 0 for no limit; else that of its kind, else jobq.default_max_attempts")
JOB_OPTION(retry_until, RETRY_UNTIL, timestamptz, "until this time there is a next attempt, however many there were")
JOB_OPTION(backoff, BACKOFF, text, "how long the next attempt waits: fixed 5s, linear 5s, exponential 5s cap 300s jitter 20%, or list 1s,5s,10s; else that of its kind, else jobq.default_backoff")
JOB_OPTION(timeout, TIMEOUT, interval, "how long an attempt may run; else that of its kind, else jobq.default_timeout")
JOB_OPTION(expires_at, EXPIRES_AT, timestamptz, "if it has not started by this time, it ends as expired; else by expires_after of its queue")
JOB_OPTION(unique_key, UNIQUE_KEY, text, "no other job of the same kind and role with the same key at a time; see unique_scope")
JOB_OPTION(unique_for, UNIQUE_FOR, interval, "hold the key for at least so long, even if the job is over")
JOB_OPTION(unique_until, UNIQUE_UNTIL, text, "hold the key until the job's finish or its start; else finish")
JOB_OPTION(on_conflict, ON_CONFLICT, text, "if the key is held: skip (the result is the holder's id), replace (it takes the place of a holder that waits), merge (a holder that waits keeps all but its payload, which is of both), reset (it keeps all but its time), or error; else skip")
JOB_OPTION(group_key, GROUP_KEY, text, "jobs of the same group in a queue run in order, one at a time")
JOB_OPTION(headers, HEADERS, jsonb, "passed on to the handler, such as a trace id; a fair queue looks for the tenant here")
JOB_OPTION(watch, WATCH, boolean, "NOTIFY on channel jobq_job_ID at each change of the job; else false")
JOB_OPTION(context, CONTEXT, jsonb, "settings for the job by their names, such as {\"search_path\": \"branch_7\"}; those of the carry list of its queue that are not given have the value of this session")
JOB_OPTION(unique_by, UNIQUE_BY, text, "these fields of the payload are the unique key, such as {customer,month}; not together with unique_key")
JOB_OPTION(tags, TAGS, _text, "what the job is marked with, such as {import,vip}, to find it by; up to 16")
JOB_OPTION(unique_scope, UNIQUE_SCOPE, text, "of which jobs of the role the unique key is one: those of the same kind, those of the same queue, or all in the database; else kind")
JOB_OPTION(merge, MERGE, text, "the function that makes the payload for on_conflict merge, of that of the holder and that of this job, such as f(jsonb, jsonb); else fields of objects, or elements of arrays, are joined")
JOB_OPTION(uuid, UUID, uuid, "by which the client knows the job: enqueued again, it is the same job, as long as that is kept")
JOB_OPTION(unique_max, UNIQUE_MAX, int, "how many jobs may hold the unique key at a time, with skip and error: with unique_for so many in that time; else 1")
