/*-------------------------------------------------------------------------
 *
 * queue_settings.h
 *	  The list of a queue's settings.
 *
 * The following parts are generated from this list:
 *
 * - in SQL, when the install script is joined (control/join.awk): the columns of
 *   jobq_internal.queue from the seventh on, the arguments of create_queue() and alter_queue()
 *   from the second on, the columns of the view queues, and their comments;
 * - in C: the attribute numbers QUEUE_* (names.h), and the checks of alter_queue()
 *   (operate/queue_settings.c).
 *
 * A new setting is therefore a line in this file, and code for its effect.  This is mostly a
 * field of JobqQueue, which queue_from_tuple() reads (queues.c), or of JobqLimiter
 * (worker/scheduler/limits.c).
 *
 * A line has the setting's name in SQL, its name in C after QUEUE_, its SQL type, the rest of
 * the column's definition, its check, the list of words, and the description for comments.
 * The type is text, int, boolean, interval, jsonb, regrole, or _text (text[]).  The checks:
 *
 *	WORD		one of the words; the column is NOT NULL
 *	NUMBER		0 or more; the column is NOT NULL
 *	LIMIT		1 or more; 0 removes the limit (NULL in the column)
 *	RATE, THROTTLE, TENANT
 *				own syntax; none removes the setting
 *	GROUP_WAIT	own syntax; the column is NOT NULL
 *	WEIGHTS		an object of names and numbers
 *	DURATION	a positive interval; 0 removes the setting
 *	LIMITERS	an array of names of limiters; {} removes the setting
 *	FLAG		true or false; the column is NOT NULL
 *	CARRY		an array of names of settings; {} removes the setting
 *	ROLE		a role that the caller could become; - removes the setting
 *
 * There is no #ifndef, because the file is included with different definitions of
 * QUEUE_SETTING.
 *
 * src/store/queue_settings.h
 *
 *-------------------------------------------------------------------------
 */

QUEUE_SETTING(mode, MODE, text, "NOT NULL DEFAULT 'worker'", WORD, "worker, consumer", "how jobs run: worker (jobq's workers call the handlers) or consumer (programs call reserve())")
QUEUE_SETTING(lease, LEASE, text, "NOT NULL DEFAULT 'durable'", WORD, "durable, memory", "whether leases of consumers survive a crash of the server: durable (yes) or memory (no; the jobs are available again at once)")
QUEUE_SETTING(notify, NOTIFY, text, "NOT NULL DEFAULT 'relay'", WORD, "relay, transactional, off", "NOTIFY on channel jobq_queue_NAME when the queue gets work: relay (by the scheduler, after the commit), transactional (by the commit), off")
QUEUE_SETTING(keep, KEEP, text, "NOT NULL DEFAULT 'all'", WORD, "all, no_payload, nothing", "the data of finished jobs in the archive: all, no_payload, or nothing")
QUEUE_SETTING(archive_retention, ARCHIVE_RETENTION, interval, "", DURATION, "", "how long finished jobs are kept at most, deleted by whole days; 0 (null in the view): jobq.archive_retention")
QUEUE_SETTING(dead_retention, DEAD_RETENTION, interval, "", DURATION, "", "how long dead letters are kept at most; 0 (null in the view): jobq.dead_retention")
QUEUE_SETTING(open, OPEN, boolean, "NOT NULL DEFAULT false", FLAG, "", "whether each producer may enqueue; false: only roles with a grant for the queue by grant_privilege()")
QUEUE_SETTING(weight, WEIGHT, int, "", LIMIT, "", "the weight of the queue among queues with shared workers; 0 (null in the view): strict order")
QUEUE_SETTING(max_running, MAX_RUNNING, int, "", LIMIT, "", "how many jobs of the queue run at the same time; 0 (null in the view): no limit")
QUEUE_SETTING(rate, RATE, text, "", RATE, "", "how many jobs of the queue start in a period, for example 100 per minute burst 20; none (null in the view): no limit")
QUEUE_SETTING(throttle, THROTTLE, text, "", THROTTLE, "", "after how many failures the queue rests, for example 10 failures in 5 minutes; none (null in the view): never")
QUEUE_SETTING(limiters, LIMITERS, _text, "", LIMITERS, "", "limiters from create_limiter(), in addition to the limits of the queue and the kind, for example {tax office}; {} (null in the view): none")
QUEUE_SETTING(group_max_running, GROUP_MAX_RUNNING, int, "NOT NULL DEFAULT 1", NUMBER, "", "how many jobs of a group run at the same time; 0: no limit")
QUEUE_SETTING(group_on_failure, GROUP_ON_FAILURE, text, "NOT NULL DEFAULT 'wait'", GROUP_WAIT, "", "the other jobs of a group while a job of the group waits for the next attempt: wait; wait 1 hour (so long at most, from the first such wait); or continue")
QUEUE_SETTING(group_scope, GROUP_SCOPE, text, "NOT NULL DEFAULT 'queue'", WORD, "queue, database", "the jobs of a group with the same group_key: queue (jobs of the queue), or database (jobs of the same role in all queues with this setting)")
QUEUE_SETTING(tenant, TENANT, text, "", TENANT, "", "the source of the tenant of a job: setting NAME, header NAME, schema (the first of search_path), or role; none (null in the view): no tenants")
QUEUE_SETTING(fair, FAIR, text, "NOT NULL DEFAULT 'off'", WORD, "off, jobs, cpu", "round robin of the tenants: off, jobs (by the number of started jobs), or cpu (by processor time)")
QUEUE_SETTING(fair_weights, FAIR_WEIGHTS, jsonb, "", WEIGHTS, "", "the weights of tenants, for example {\"acme\": 3}; default 1")
QUEUE_SETTING(max_length, MAX_LENGTH, int, "", LIMIT, "", "how many jobs the queue may hold; 0 (null in the view): no limit")
QUEUE_SETTING(on_full, ON_FULL, text, "NOT NULL DEFAULT 'error'", WORD, "error, wait, drop oldest", "the effect of a job above max_length: error (JQ015), wait (for jobq.enqueue_timeout at most), or drop oldest (a waiting job is cancelled)")
QUEUE_SETTING(expires_after, EXPIRES_AFTER, interval, "", DURATION, "", "a job not started within this time after run_at ends as expired; 0 (null in the view): never")
QUEUE_SETTING(carry, CARRY, _text, "", CARRY, "", "settings of the enqueuing session that the jobs take along, for example {search_path, app.tenant}; {} (null in the view): none")
QUEUE_SETTING(recycle, RECYCLE, text, "NOT NULL DEFAULT 'never'", WORD, "never, each", "whether a new process replaces a worker after a job of the queue: never, or each (after each job)")
QUEUE_SETTING(run_as, RUN_AS, regrole, "", ROLE, "", "the role under which the jobs of the queue run; - (null in the view): the role that enqueues the job")
