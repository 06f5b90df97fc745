/*-------------------------------------------------------------------------
 *
 * queue_settings.h
 *	  The list of a queue's settings.
 *
 * This is the only place that lists them.  From it are made
 *
 * - in SQL, when the install script is joined (control/join.awk): the columns
 *	 of jobq_internal.queue from the seventh on, the arguments of
 *	 create_queue() and alter_queue() from the second on, the columns of the
 *	 view queues, and their comments;
 * - in C: the attribute numbers QUEUE_* (store.h), and the checks of
 *	 alter_queue() (operate/queue_settings.c).
 *
 * So a new setting is a line here, and code that uses it: mostly a field of
 * JobqQueue, which queue_from_tuple() reads (queues.c), or of JobqLimiter
 * (worker/scheduler/limits.c).
 *
 * A line has the setting's name in SQL, its name in C after QUEUE_, its type
 * (text, int, interval, jsonb, regrole, _text for text[]), what follows that in the definition of the
 * column, its check, the words that it may be, and what it says.  The checks:
 *
 *	WORD		one of the words; the column is NOT NULL
 *	NUMBER		0 or more; the column is NOT NULL
 *	LIMIT		1 or more; 0 takes it away, which is NULL in the column
 *	RATE, TENANT_RATE, THROTTLE, FAIR_BY, TENANT
 *				each its own; none takes it away
 *	WEIGHTS		an object of names and numbers
 *	DURATION	a positive interval; 0 takes it away
 *	LIMITER		the name of a limiter; none takes it away
 *	FLAG		true or false; the column is NOT NULL
 *	CARRY		an array of names of settings; an empty one takes it away
 *	ROLE		a role that the caller could become; - takes it away
 *
 * No #ifndef around this: it is included with QUEUE_SETTING defined in
 * different ways.
 *
 * src/store/queue_settings.h
 *
 *-------------------------------------------------------------------------
 */

QUEUE_SETTING(mode, MODE, text, "NOT NULL DEFAULT 'worker'", WORD, "worker, consumer", "who takes the jobs: worker (jobq's workers call the handlers) or consumer (programs call reserve())")
QUEUE_SETTING(lease, LEASE, text, "NOT NULL DEFAULT 'durable'", WORD, "durable, memory", "whether what consumers hold survives a crash of the server: durable (it does) or memory (the jobs are there again at once)")
QUEUE_SETTING(notify, NOTIFY, text, "NOT NULL DEFAULT 'relay'", WORD, "relay, transactional, off", "NOTIFY on channel jobq_queue_NAME when the queue gets work: relay (after the commit, by the scheduler), transactional (by the commit itself), off")
QUEUE_SETTING(keep, KEEP, text, "NOT NULL DEFAULT 'all'", WORD, "all, no_payload, nothing", "what the archive keeps of finished jobs: all, no_payload, or nothing")
QUEUE_SETTING(archive_retention, ARCHIVE_RETENTION, interval, "", DURATION, "", "how long its finished jobs are kept at most, those of a day together; 0, which the view shows as null: as jobq.archive_retention says")
QUEUE_SETTING(failed_retention, FAILED_RETENTION, interval, "", DURATION, "", "how long its dead letters are kept at most; 0, which the view shows as null: as jobq.failed_retention says")
QUEUE_SETTING(open, OPEN, boolean, "NOT NULL DEFAULT false", FLAG, "", "whether each producer may enqueue there; if not, only roles to which grant_privilege() has given the queue")
QUEUE_SETTING(weight, WEIGHT, int, "", LIMIT, "", "its share of the workers that serve several queues; 0, which the view shows as null: strict order")
QUEUE_SETTING(max_running, MAX_RUNNING, int, "", LIMIT, "", "how many of its jobs run at a time; 0, which the view shows as null: as many as can")
QUEUE_SETTING(rate, RATE, text, "", RATE, "", "how many of its jobs start in a time, such as 100 per minute burst 20, or 5 per second by group; none, which the view shows as null: as many as can")
QUEUE_SETTING(throttle, THROTTLE, text, "", THROTTLE, "", "when it rests, such as 10 failures in 5 minutes, or by group; none, which the view shows as null: never")
QUEUE_SETTING(limiter, LIMITER, text, "CONSTRAINT queue_limiter_fkey REFERENCES jobq_internal.limiter", LIMITER, "", "a limiter, made by create_limiter(), that its jobs need beside the limits of the queue, if their kind has no limits; none, which the view shows as null: none")
QUEUE_SETTING(group_max_running, GROUP_MAX_RUNNING, int, "NOT NULL DEFAULT 1", NUMBER, "", "how many jobs of the same group run at a time; 0: as many as can")
QUEUE_SETTING(group_on_failure, GROUP_ON_FAILURE, text, "NOT NULL DEFAULT 'wait'", WORD, "wait, continue", "while a job of a group waits for its next attempt, the others of the group wait, or continue")
QUEUE_SETTING(group_patience, GROUP_PATIENCE, interval, "", DURATION, "", "how long the others of a group wait for a job that waits for its next attempt, counted from when it came back for the first time; 0, which the view shows as null: until it has ended")
QUEUE_SETTING(group_scope, GROUP_SCOPE, text, "NOT NULL DEFAULT 'queue'", WORD, "queue, database", "whose jobs are one group if they have the same group_key: those of the queue, or those that the same role has enqueued in all queues of which this is database")
QUEUE_SETTING(tenant, TENANT, text, "", TENANT, "", "what says whose a job is: setting NAME, header NAME, schema (the first of search_path), or role; none, which the view shows as null: what fair_by says")
QUEUE_SETTING(fair_by, FAIR_BY, text, "", FAIR_BY, "", "whose jobs take turns: tenant, as the setting tenant says; without that, the name of a header that names the tenant, or role; none, which the view shows as null: nobody's")
QUEUE_SETTING(fair_weights, FAIR_WEIGHTS, jsonb, "", WEIGHTS, "", "the shares of tenants that have not 1, such as {\"acme\": 3}")
QUEUE_SETTING(fair_cost, FAIR_COST, text, "NOT NULL DEFAULT 'jobs'", WORD, "jobs, cpu", "what tenants have equal shares of: jobs (as many start of each), or cpu (each gets as much processor time)")
QUEUE_SETTING(tenant_max_running, TENANT_MAX_RUNNING, int, "", LIMIT, "", "how many jobs of each tenant run at a time; 0, which the view shows as null: as many as can")
QUEUE_SETTING(tenant_rate, TENANT_RATE, text, "", TENANT_RATE, "", "how many jobs of each tenant start in a time, such as 100 per minute burst 20; none, which the view shows as null: as many as can")
QUEUE_SETTING(max_length, MAX_LENGTH, int, "", LIMIT, "", "how many jobs it holds at most; 0, which the view shows as null: no limit")
QUEUE_SETTING(on_full, ON_FULL, text, "NOT NULL DEFAULT 'error'", WORD, "error, wait, drop oldest", "what a job more than max_length does: error (JQ015), wait (for jobq.enqueue_timeout at most), or drop oldest (a job that waits is cancelled)")
QUEUE_SETTING(expires_after, EXPIRES_AFTER, interval, "", DURATION, "", "a job that has not started so long after its run_at ends as expired; 0, which the view shows as null: never")
QUEUE_SETTING(carry, CARRY, _text, "", CARRY, "", "which settings of the enqueuer's session its jobs take along, such as {search_path, app.tenant}; {}, which the view shows as null: none")
QUEUE_SETTING(recycle, RECYCLE, text, "NOT NULL DEFAULT 'never'", WORD, "never, each", "whether a worker that has run a job of it leaves, and another takes its place: never, or after each job")
QUEUE_SETTING(run_as, RUN_AS, regrole, "", ROLE, "", "as which role its jobs run, instead of as the role that enqueues them; -, which the view shows as null: as that")
