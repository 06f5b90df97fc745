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
COMMENT ON TYPE jobq.job_status IS 'what has become of a job: scheduled, ready, running, retryable, blocked; completed, failed, cancelled, expired';

CREATE FUNCTION jobq.status(id bigint) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(bigint) IS 'what has become of a job, live or finished
id: the job';

CREATE FUNCTION jobq.status(uuid uuid) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status_uuid' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(uuid) IS 'what has become of a job, live or finished
uuid: that with which it was enqueued';

CREATE FUNCTION jobq.status(job text) RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_status_text' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.status(text) IS 'what has become of a job, live or finished
job: its id, or the uuid with which it was enqueued; for parameters without a type';

CREATE FUNCTION jobq.wait(id bigint, timeout interval DEFAULT '30s') RETURNS jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait(bigint, interval) IS 'wait until a job is finished or the time is over; returns its status
id: the job
timeout: how long to wait at most';

CREATE FUNCTION jobq.wait_many(ids bigint[], timeout interval DEFAULT '30s') RETURNS SETOF jobq.job_status
AS 'MODULE_PATHNAME', 'jobq_wait_many' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_many(bigint[], interval) IS 'wait until all jobs are finished or the time is over; returns their statuses
ids: the jobs
timeout: how long to wait at most';

CREATE PROCEDURE jobq.call(
	kind text,
	payload jsonb DEFAULT '{}',
	INOUT result jsonb DEFAULT NULL,
	timeout interval DEFAULT '30 s',
	options jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_call' LANGUAGE C;
COMMENT ON PROCEDURE jobq.call IS 'enqueue a job, commit, and wait for its result
kind: the kind of the job
payload: what its handler or consumer gets
result: what it has returned
timeout: how long to wait at most; the job goes on
options: options of enqueue() by their names; timeout there is how long an attempt of the job may run';

CREATE FUNCTION jobq.cancel(id bigint) RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_cancel' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel(bigint) IS 'cancel a job, or have the worker that runs it stop; false if it had finished
id: the job';

CREATE FUNCTION jobq.retry(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_retry' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry(bigint) IS 'run a dead letter again, with all its attempts; or a job that waits for its next attempt now
id: the job';

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
COMMENT ON FUNCTION jobq.edit IS 'give a job that waits, or a dead letter, another priority, time, payload, queue, or the like; what is null or left out stays as it is
id: the job
payload: what its handler or consumer gets
headers: passed on to the handler
queue: the queue that it stands in
priority: smaller runs first
run_at: when it may run
max_attempts: how many attempts there are at most, 0 for no limit
backoff: how long the next attempt waits
timeout: how long an attempt may run
returns: nothing';

CREATE FUNCTION jobq.rerun(id bigint) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_rerun' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.rerun(bigint) IS 'enqueue a job that is completed, cancelled or expired once more; returns the id of the new job
id: the job that is over';

CREATE FUNCTION jobq.delete(id bigint) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_delete' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete(bigint) IS 'delete a dead letter
id: the job';

CREATE FUNCTION jobq.enqueue_result(
	kind text,
	payload jsonb DEFAULT '{}',
--each JOB_OPTION:	@1 @3 DEFAULT NULL,
	OUT id bigint, OUT state text, OUT duplicate boolean)
RETURNS record AS 'MODULE_PATHNAME', 'jobq_enqueue_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.enqueue_result IS 'enqueue a job as enqueue() does, and tell whether another had its unique key
kind: the kind of the job
payload: what its handler or consumer gets
--each JOB_OPTION:@1: @'4
returns: id: of the job, or of the one that has its key; state: of that job; duplicate: whether there was one with the key';

CREATE FUNCTION jobq.cancel_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_cancel_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.cancel_many IS 'cancel all jobs that fulfil all conditions, or have the workers that run them stop; returns their number
--each JOB_FILTER:@1: @'5
returns: how many jobs there were';

CREATE FUNCTION jobq.retry_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_retry_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.retry_many IS 'run all dead letters that fulfil all conditions again; with the state retryable, jobs that wait for their next attempt now; returns their number
--each JOB_FILTER:@1: @'5
returns: how many jobs there were';

CREATE FUNCTION jobq.edit_many(
	changes jsonb,
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_edit_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.edit_many IS 'edit all jobs that wait and fulfil all conditions; with the state failed, dead letters; returns their number
changes: what they have instead: queue, priority, run_at, max_attempts, backoff, timeout, as edit() takes them
--each JOB_FILTER:@1: @'5
returns: how many jobs there were';

CREATE FUNCTION jobq.delete_many(
--list JOB_FILTER:	@1 @3 DEFAULT NULL
)
RETURNS bigint AS 'MODULE_PATHNAME', 'jobq_delete_many'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.delete_many IS 'delete all dead letters that fulfil all conditions; returns their number
--each JOB_FILTER:@1: @'5
returns: how many jobs there were';

CREATE PROCEDURE jobq.in_slices(
	function text,
	arguments jsonb,
	slice int DEFAULT 1000,
	INOUT jobs bigint DEFAULT NULL)
AS 'MODULE_PATHNAME', 'jobq_in_slices' LANGUAGE C;
COMMENT ON PROCEDURE jobq.in_slices IS 'do what cancel_many() or one of its kin does, and commit after each so many jobs
function: cancel_many, clear, retry_many, edit_many, or delete_many
arguments: its arguments by their names
slice: after how many jobs there is a commit
jobs: how many jobs there were';

CREATE FUNCTION jobq.prune(
	older_than interval DEFAULT NULL,
	failed_older_than interval DEFAULT NULL,
	batches_older_than interval DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_prune' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.prune(interval, interval, interval) IS 'delete finished jobs and dead letters that are older than this, and cancel batches that are not over; null leaves them; returns their number
older_than: finished jobs of this age; null: none
failed_older_than: dead letters of this age; null: none
batches_older_than: batches and workflows of this age that are not over; null: none';

CREATE FUNCTION jobq.clear(queue text, tenant text DEFAULT NULL, running boolean DEFAULT false) RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_clear' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.clear(text, text, boolean) IS 'cancel all jobs of a queue that wait, or those that run, too; returns their number
queue: the queue
tenant: only jobs of this tenant
running: also those that run: workers are asked to stop, and consumers find their leases gone';

CREATE FUNCTION jobq.wait_queue(queue text, timeout interval DEFAULT '30s') RETURNS boolean
AS 'MODULE_PATHNAME', 'jobq_wait_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.wait_queue(text, interval) IS 'wait until a queue has no job that runs or may run now; false if the time is over before
queue: the queue
timeout: how long to wait at most';

CREATE FUNCTION jobq.restart_workers() RETURNS void
AS 'MODULE_PATHNAME', 'jobq_restart_workers' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.restart_workers() IS 'replace the workers of this database after their current jobs';

CREATE FUNCTION jobq.adopt() RETURNS bigint
AS 'MODULE_PATHNAME', 'jobq_adopt' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.adopt() IS 'run here the jobs that logical replication has brought, or that came with a copy of another database; returns how many logical replication has brought';

CREATE FUNCTION jobq.test_clock("offset" interval) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_test_clock' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.test_clock(interval) IS 'put jobq''s clock forward against the system''s, for tests
offset: how far; 0 puts it right again';

CREATE FUNCTION jobq.create_queue(
	name text,
--list QUEUE_SETTING:	@1 @3 DEFAULT NULL
)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_create_queue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.create_queue IS 'create a queue, or change one that exists; what is null or left out has its default in a new queue, and stays as it is in another
name: the name of the queue
--each QUEUE_SETTING:@1: @'7
returns: nothing';

CREATE FUNCTION jobq.alter_queue(
	name text,
--list QUEUE_SETTING:	@1 @3 DEFAULT NULL
)
RETURNS void AS 'MODULE_PATHNAME', 'jobq_alter_queue'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.alter_queue IS 'change the settings of a queue; what is null or left out stays as it is
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
COMMENT ON FUNCTION jobq.create_limiter IS 'create a limiter, whose limits the jobs of several kinds and queues share, or change one that exists; what is null or left out stays as it is there
name: the limiter
max_running: how many of these jobs run at a time; 0: as many as can
rate: how many of them start in a time, such as 100 per minute burst 20; none: as many as can
throttle: when they rest, such as 10 failures in 5 minutes; none: never
by: where jobs have a key, each of which has these limits for itself: payload and a path such as payload $.host, header and a name, tenant, or role; else all jobs have them together
cost: a function(jsonb) that returns how many tokens of the rate a job costs, as integer; 0: it needs nothing of the limiter; else one
when_taken: what becomes of a job that is due while all places of max_running are taken: wait, which it does else; release and a time, such as release 5 min, after which it comes again; skip: it is cancelled; replace: older ones of its role are';

CREATE FUNCTION jobq.drop_limiter(name text) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_limiter' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_limiter(text) IS 'forget a limiter; an error while a kind or a queue names it
name: the limiter';

CREATE FUNCTION jobq.drop_queue(name text, force boolean DEFAULT false) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_drop_queue' LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.drop_queue(text, boolean) IS 'forget a queue and its policy; an error while it has jobs or, unless forced, dead letters
name: the queue
force: drop its dead letters, too';

CREATE FUNCTION jobq.pause(queue text DEFAULT NULL, tenant text DEFAULT NULL, kind text DEFAULT NULL, schedule text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_pause' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.pause(text, text, text, text) IS 'start no more jobs of a queue, or enqueue none of a schedule; survives a restart
queue: the queue
tenant: only this tenant of it; else the whole queue
kind: only its jobs of this kind; not together with a tenant
schedule: a schedule, instead of a queue';

CREATE FUNCTION jobq.resume(queue text DEFAULT NULL, tenant text DEFAULT NULL, kind text DEFAULT NULL, schedule text DEFAULT NULL) RETURNS void
AS 'MODULE_PATHNAME', 'jobq_resume' LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION jobq.resume(text, text, text, text) IS 'start jobs of a queue again, or go on with a schedule from its next tick
queue: the queue
tenant: only this tenant of it; else the queue, where tenants and kinds that were paused alone stay so
kind: only its jobs of this kind, which was paused alone
schedule: a schedule, instead of a queue; the ticks of the pause are not made up for';
