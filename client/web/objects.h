/*-------------------------------------------------------------------------
 *
 * objects.h
 *	  Statements for single queues, kinds, schedules and limiters, and for many jobs at once.
 *
 * The arguments of a function of SQL are members of the body.  jsonb_to_record() converts the
 * members to the types of the arguments.
 *
 * client/web/objects.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_WEB_OBJECTS_H
#define JOBQ_WEB_OBJECTS_H

/*
 * The conditions of cancel_many() and so on (operate/filters.h), and the range of times of
 * the lists.  Conditions on hidden values are marked.
 */
#define CONDITION_MEMBERS \
	"queue kind tenant older_than newer_than sqlstate batch_id max_jobs dry_run from until -error -fingerprint -payload -group_key " \
	"-unique_key -tags"
#define CONDITION_TYPES \
	"queue text, kind text, tenant text, state text, older_than interval, newer_than interval, error text, sqlstate text, " \
	"fingerprint int8, payload jsonb, group_key text, unique_key text, batch_id int8, tags _text, max_jobs int8, dry_run boolean, " \
	"\"from\" timestamptz, until timestamptz"
#define CONDITION_ARGUMENTS \
	"queue => f.queue, kind => f.kind, tenant => f.tenant, state => f.state, " \
	"older_than => coalesce(f.older_than, CASE WHEN f.until < jobq_internal.clock() THEN jobq_internal.clock() - f.until END), " \
	"newer_than => coalesce(f.newer_than, CASE WHEN f.\"from\" > jobq_internal.clock() THEN '0' ELSE jobq_internal.clock() - f.\"from\" END), error => f.error, sqlstate => f.sqlstate, " \
	"fingerprint => f.fingerprint, payload => f.payload, group_key => f.group_key, unique_key => f.unique_key, batch_id => f.batch_id, " \
	"tags => f.tags, max_jobs => f.max_jobs, dry_run => f.dry_run"

/* Act on all jobs that fulfil the conditions of the body.  "first": further arguments. */
#define MANY_JOBS(function, first) \
	"SELECT json_build_object('count', jobq." function "(" first CONDITION_ARGUMENTS ")) FROM jsonb_to_record($1::jsonb) AS f(changes jsonb, " CONDITION_TYPES ")"

/* Act on the jobs with these ids, all or none; or on all jobs that fulfil the conditions. */
#define IDS_OR_MANY(call, function) \
	"SELECT CASE WHEN $1::jsonb ? 'ids' THEN (" FOR_EACH_ID(call) ") ELSE (" MANY_JOBS(function, "") ") END"

/* A function without a result: the answer is {"done": true}. */
#define DONE(call)	"SELECT json_build_object('done', " DO(call) ")"

/*
 * What schedule() and register() take.  A missing member has the function's default, as in a
 * new schedule or a newly registered kind.
 */
#define SCHEDULE_TYPES \
	"cron text, kind text, payload jsonb, timezone text, missed text, overlap text, options jsonb, context jsonb, sql text, transaction boolean, database text"
#define PUT_SCHEDULE \
	DONE("jobq.schedule($2::text, f.cron, f.kind, coalesce(f.payload, '{}'), coalesce(f.timezone, 'UTC'), coalesce(f.missed, 'once'), " \
		 "coalesce(f.overlap, 'allow'), nullif(f.options, 'null'), nullif(f.context, 'null'), f.sql, coalesce(f.transaction, true), f.database)") \
	" FROM jsonb_to_record($1::jsonb) AS f(" SCHEDULE_TYPES ")"

#define KIND_TYPES \
	"handler text, queue text, priority int, max_attempts int, backoff text, timeout interval, fail_on_timeout boolean, max_exceptions int, " \
	"max_running int, rate text, throttle text, on_failure text, carry _text, recycle text, retry_on _text, fail_on _text, " \
	"max_memory text, max_temp text, max_wal text, limiters _text, chunk int"
#define PUT_KIND \
	DONE("jobq.register($2::text, f.handler, f.queue, f.priority, f.max_attempts, f.backoff, f.timeout, f.fail_on_timeout, f.max_exceptions, " \
		 "f.max_running, f.rate, f.throttle, f.on_failure, f.carry, f.recycle, f.retry_on, f.fail_on, f.max_memory, f.max_temp, f.max_wal, f.limiters, f.chunk)") \
	" FROM jsonb_to_record($1::jsonb) AS f(" KIND_TYPES ")"

#define PUT_LIMITER \
	DONE("jobq.create_limiter($2::text, f.max_running, f.rate, f.throttle, f.by, f.cost, f.when_taken)") \
	" FROM jsonb_to_record($1::jsonb) AS f(max_running int, rate text, throttle text, by text, cost text, when_taken text)"

#define LIMITERS \
	"SELECT l.limiter AS name, l.max_running, l.running, l.rate, l.tokens, l.throttle, l.failed, l.rest_until, l.by, l.cost, l.when_taken " \
	"FROM jobq.limits AS l WHERE l.type = 'limiter'"

#define QUEUES \
	"SELECT q.*, extract(epoch FROM jobq_internal.clock() - q.oldest_ready)::float8 AS waiting_seconds FROM jobq.queues AS q"

/*
 * A queue, with its statistics by kind and tenant: starts and ends in a minute, and times in
 * seconds.
 */
#define QUEUE \
	"SELECT row_to_json(t) FROM (SELECT q.*, (SELECT coalesce(json_agg(s), '[]') FROM (" \
	"SELECT s.kind, s.tenant, s.enqueued_1m * 60 AS enqueued_per_minute, s.completed_1m * 60 AS completed_per_minute, s.failed_1m * 60 AS failed_per_minute, " \
	SECONDS("s.wait_p50") " AS wait_p50, " SECONDS("s.wait_p95") " AS wait_p95, " SECONDS("s.run_p50") " AS run_p50, " SECONDS("s.run_p95") " AS run_p95 " \
	"FROM jobq.stats AS s WHERE s.queue = q.name AND s.run_count > 0 ORDER BY s.run_count DESC LIMIT 100) AS s) AS stats " \
	"FROM (" QUEUES " WHERE q.name = $1::text) AS q) AS t"

#define WORKERS \
	"SELECT coalesce(w.consumer, 'pool ' || w.pool) AS name, w.*, " \
	SECONDS("jobq_internal.clock() - w.job_started_at") " AS job_seconds FROM jobq.workers AS w"

/* A worker, by its process id, with the jobs that have ended there last. */
#define WORKER \
	"SELECT row_to_json(t) FROM (SELECT w.*, (SELECT coalesce(json_agg(j ORDER BY j.n), '[]') FROM (" \
	"SELECT l.n, a.id, a.kind, a.queue, a.state, a.attempt, a.enqueued_at, a.started_at, a.finished_at, " \
	SECONDS("a.finished_at - a.started_at") " AS seconds, a.error " \
	"FROM unnest(w.last_jobs) WITH ORDINALITY AS l (id, n), LATERAL (" JOB("l.id") ") AS a) AS j) AS jobs " \
	"FROM (" WORKERS " WHERE w.pid = $1::int4) AS w) AS t"

/* Rules and intervals without an end have no list of further ticks here. */
#define SCHEDULES(n) \
	"SELECT s.name, s.state, s.cron, s.timezone, s.next_tick, " \
	"CASE WHEN s.cron !~* '^\\s*(@?every|rrule)' THEN ARRAY(SELECT t FROM jobq.next_ticks(s.cron, s.timezone, NULL, " n ") AS t) END AS next_ticks, " \
	"s.last_tick, s.last_job_id, s.last_state, s.last_error, s.role, s.kind, s.payload, s.missed, s.overlap, s.options FROM jobq.schedules AS s"

/*
 * The last jobs of a schedule, newest first.  Each names the previous one, so that other jobs
 * do not matter.
 */
#define RUN_COLUMNS	"j.id, j.state, j.enqueued_at, j.started_at, j.finished_at, j.error"
#define RUNS \
	"WITH RECURSIVE run AS (SELECT 1 AS n, j.headers, " RUN_COLUMNS " FROM (" JOB("s.last_job_id") ") AS j " \
	"UNION ALL SELECT r.n + 1, j.headers, " RUN_COLUMNS " FROM run AS r, LATERAL (" JOB("(r.headers ->> 'previous_job')::int8") ") AS j WHERE r.n < 20) " \
	"SELECT " RUN_COLUMNS " FROM run AS j ORDER BY j.n"

/*
 * A kind, with the newest job as an example for new jobs.  A kind of consumers has no handler,
 * but jobs.
 */
#define KIND \
	"SELECT row_to_json(t) FROM (SELECT coalesce(k.kind, l.kind) AS kind, k.handler, k.queue, k.priority, k.max_attempts, k.backoff, k.timeout, k.fail_on_timeout, k.max_exceptions, " \
	"k.max_running, k.rate, k.throttle, k.on_failure, k.carry, k.recycle, k.retry_on, k.fail_on, k.max_memory, k.max_temp, k.max_wal, k.limiters, k.chunk, " \
	"CASE WHEN l.id IS NOT NULL THEN json_build_object('id', l.id, 'queue', l.queue, 'priority', l.priority, 'payload', l.payload) END AS last " \
	"FROM (SELECT * FROM jobq.kinds AS k WHERE k.kind = $1::text) AS k FULL JOIN " \
	"(SELECT j.* FROM (SELECT * FROM jobq.jobs AS a ORDER BY a.id DESC LIMIT " MOST_LOOKED_AT ") AS j WHERE j.kind = $1::text LIMIT 1) AS l ON true) AS t"

#define AUDIT \
	PAGE("*", "SELECT * FROM jobq.audit_log AS a WHERE ($3::int8 IS NULL OR a.id < $3)", \
		 "($1::text IS NULL OR $1 IN (j.role::text, j.login::text)) AND ($2::text IS NULL OR j.action = $2) " \
		 "AND ($5::timestamptz IS NULL OR j.at >= $5) AND ($6::timestamptz IS NULL OR j.at < $6)", 4)

#endif							/* JOBQ_WEB_OBJECTS_H */
