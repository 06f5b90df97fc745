-- Waiting for jobs, and operating jobs and queues.

CREATE TYPE jobq.job_status AS (
	id bigint,
	state text,
	kind text,
	queue text,
	attempt int,
	max_attempts int,
	progress real,
	message text,
	result jsonb,
	error text,
	enqueued_at timestamptz,
	run_at timestamptz,
	started_at timestamptz,
	finished_at timestamptz
);
COMMENT ON TYPE jobq.job_status IS 'the status of a job: scheduled, ready, running, suspended, retryable, blocked; completed, dead, cancelled, expired';

CREATE FUNCTION jobq.status(id bigint) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(bigint) IS 'return the status of a job, live or finished
id: the id of the job';

CREATE FUNCTION jobq.status(uuid uuid) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status_uuid' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(uuid) IS 'return the status of a job, live or finished
uuid: the uuid under which the job was enqueued';

CREATE FUNCTION jobq.status(job text) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status_text' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(text) IS 'return the status of a job, live or finished
job: the id of the job, or the uuid under which the job was enqueued; for parameters without a type';

CREATE FUNCTION jobq.wait(id bigint, timeout interval DEFAULT '30s') RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait(bigint, interval) IS 'wait until a job has finished, or until the timeout
id: the id of the job
timeout: the longest wait
returns: the status of the job';

CREATE FUNCTION jobq.wait_many(ids bigint[], timeout interval DEFAULT '30s') RETURNS SETOF jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait_many' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_many(bigint[], interval) IS 'wait until all jobs have finished, or until the timeout
ids: the ids of the jobs
timeout: the longest wait
returns: the status of each job';

CREATE PROCEDURE jobq.call(
	kind text,
	payload jsonb DEFAULT '{}',
	INOUT result jsonb DEFAULT NULL,
	timeout interval DEFAULT '30 s',
	options jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_call' LANGUAGE C;
COMMENT ON PROCEDURE jobq.call IS 'enqueue a job, commit, and wait for the result
kind: the kind of the job
payload: the input of the handler or consumer
result: the result of the job
timeout: the longest wait; the job continues after a timeout
options: options of enqueue() by name; the option timeout limits each attempt, not the wait';

CREATE FUNCTION jobq.cancel(id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel(bigint) IS 'cancel a job; a worker that runs the job is asked to stop, and a consumer loses the lease
id: the id of the job
returns: false if the job had already finished';

CREATE FUNCTION jobq.retry(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_retry' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry(bigint) IS 'run a dead letter again, with all attempts; or run a job now that waits for the next attempt
id: the id of the dead letter or job';

CREATE FUNCTION jobq.edit(
	id bigint,
	payload jsonb DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	queue text DEFAULT NULL,
	priority int DEFAULT NULL,
	run_at timestamptz DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	backoff text DEFAULT NULL,
	timeout interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'jobq_edit' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.edit IS 'change a waiting job or a dead letter; null or omitted: unchanged
id: the id of the job
payload: the input of the handler or consumer
headers: passed on to the handler
queue: the queue of the job
priority: a smaller number runs first; only for a waiting job
run_at: the earliest start; only for a waiting job that is not blocked
max_attempts: the largest number of attempts; 0: no limit
backoff: the delay before the next attempt
timeout: how long an attempt may run
returns: nothing';

CREATE FUNCTION jobq.rerun(id bigint, from_step text DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_rerun' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.rerun(bigint, text) IS 'enqueue a completed, cancelled or expired job again
id: the id of the finished job; with from_step, also of a dead letter
from_step: the name of a step of a durable procedure: the new job skips the steps that were done before this step began
returns: the id of the new job';

CREATE FUNCTION jobq.delete(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_delete' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete(bigint) IS 'delete a dead letter
id: the id of the dead letter';

CREATE FUNCTION jobq.cancel_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_cancel_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel_many IS 'cancel the jobs that meet all conditions; workers that run these jobs are asked to stop
--each JOB_FILTER:@1: @'5
returns: the number of jobs';

CREATE FUNCTION jobq.retry_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_retry_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry_many IS 'run the dead letters again that meet all conditions; with state retryable, run jobs now that wait for the next attempt
--each JOB_FILTER:@1: @'5
returns: the number of jobs';

CREATE FUNCTION jobq.edit_many(
	changes jsonb,
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_edit_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.edit_many IS 'edit the waiting jobs that meet all conditions; with state dead, edit dead letters
changes: an object with the new values: queue, priority, run_at, max_attempts, backoff, timeout, as in edit()
--each JOB_FILTER:@1: @'5
returns: the number of jobs';

CREATE FUNCTION jobq.delete_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_delete_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete_many IS 'delete the dead letters that meet all conditions
--each JOB_FILTER:@1: @'5
returns: the number of jobs';

CREATE FUNCTION jobq.prune(
	older_than interval DEFAULT NULL,
	dead_older_than interval DEFAULT NULL,
	batches_older_than interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_prune' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.prune(interval, interval, interval) IS 'delete old finished jobs and dead letters, and cancel old unfinished batches
older_than: the minimum age of finished jobs; null: delete none
dead_older_than: the minimum age of dead letters; null: delete none
batches_older_than: the minimum age of unfinished batches and workflows; null: cancel none
returns: the number of jobs, dead letters and batches';

CREATE FUNCTION jobq.wait_queue(queue text, timeout interval DEFAULT '30s') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_wait_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_queue(text, interval) IS 'wait until no job of a queue runs or may run now
queue: the queue
timeout: the longest wait
returns: false after a timeout';

CREATE FUNCTION jobq.restart_workers() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_restart_workers' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.restart_workers() IS 'replace the workers of this database, each after the current job';

CREATE FUNCTION jobq.adopt(node int DEFAULT NULL) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_adopt' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.adopt(int) IS 'run jobs here that arrived by logical replication, in a copy of another database, or in a restore before their roles existed
node: the node of this database, 0 to 1023, in the high bits of the ids of new jobs and batches; null: unchanged
returns: the number of jobs from logical replication and of roles that did not exist';

CREATE FUNCTION jobq.test_clock(ahead interval DEFAULT NULL) RETURNS timestamptz
AS 'MODULE_PATHNAME', 'jobq_test_clock' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.test_clock(interval) IS 'move the clock of jobq forward relative to the clock of the server, for tests, and return the time
ahead: the difference; 0 resets the clock; null: unchanged
returns: the current time, as used by jobq';

CREATE FUNCTION jobq.create_queue(
	name text,
--list QUEUE_SETTING:	@1 @3 DEFAULT NULL
)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_create_queue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_queue IS 'create a queue, or change an existing queue; null or omitted: the default in a new queue, unchanged in an existing queue, except that a queue created by a first job is closed
name: the name of the queue
--each QUEUE_SETTING:@1: @'7
returns: nothing';

CREATE FUNCTION jobq.alter_queue(
	name text,
--list QUEUE_SETTING:	@1 @3 DEFAULT NULL
)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_alter_queue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.alter_queue IS 'change the settings of a queue; null or omitted: unchanged
name: the name of the queue
--each QUEUE_SETTING:@1: @'7
returns: nothing';

CREATE FUNCTION jobq.create_limiter(
	name text,
	max_running int DEFAULT NULL,
	rate text DEFAULT NULL,
	throttle text DEFAULT NULL,
	by text DEFAULT NULL,
	cost text DEFAULT NULL,
	when_taken text DEFAULT NULL)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_create_limiter'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_limiter IS 'create a limiter, whose limits several kinds and queues share, or change an existing limiter; null or omitted: unchanged
name: the name of the limiter
max_running: how many jobs of the limiter run at the same time; 0: no limit
rate: how many jobs of the limiter start in a period, for example 100 per minute burst 20; none: no limit
throttle: after how many failures the limiter rests, for example 10 failures in 5 minutes; none: never
by: the key of a job: payload and a path (payload $.host), header and a name, tag and a prefix, tenant, role, or group; each key has separate limits; default: all jobs share the limits
cost: a function(jsonb) that returns the cost of a job in tokens of the rate, an integer; 0: the job bypasses the limiter; default: 1
when_taken: the effect on a job that is due while max_running jobs run: wait (default); release and a time (release 5 min), to try again after this time; skip, to cancel the job; replace, to cancel older jobs of the role';

CREATE FUNCTION jobq.drop_limiter(name text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_limiter' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_limiter(text) IS 'drop a limiter; an error if a kind or a queue names the limiter
name: the name of the limiter';

CREATE FUNCTION jobq.drop_queue(name text, force boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_queue(text, boolean) IS 'drop a queue and its settings; an error if the queue has jobs or, without force, dead letters
name: the name of the queue
force: also drop the dead letters of the queue';

CREATE FUNCTION jobq.pause(queue text DEFAULT NULL, tenant text DEFAULT NULL, kind text DEFAULT NULL, schedule text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_pause' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.pause(text, text, text, text) IS 'stop starting jobs of a queue, or stop enqueuing jobs of a schedule; the pause survives a restart
queue: the queue
tenant: only jobs of this tenant of the queue; not together with a kind
kind: only jobs of this kind in the queue; not together with a tenant
schedule: a schedule, instead of a queue';

CREATE FUNCTION jobq.resume(queue text DEFAULT NULL, tenant text DEFAULT NULL, kind text DEFAULT NULL, schedule text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_resume' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.resume(text, text, text, text) IS 'start jobs of a queue again, or continue a schedule with the next tick
queue: the queue; tenants and kinds that were paused separately stay paused
tenant: only jobs of this tenant, which was paused separately
kind: only jobs of this kind, which was paused separately
schedule: a schedule, instead of a queue; ticks during the pause are not made up';
