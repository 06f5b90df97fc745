/*-------------------------------------------------------------------------
 *
 * routes.c
 *	  The table of all routes of "jobq web".
 *
 * Most routes are a statement that returns JSON.  statement.c describes the sources of
 * its parameters; openapi.json describes the requests and answers.  search_path is
 * pg_catalog alone.
 *
 * client/web/routes.c
 *
 *-------------------------------------------------------------------------
 */
#include "web/lists.h"
#include "web/numbers.h"
#include "web/objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_topics(Request *request);
static void answer_enqueued(Request *request, PGresult *result);

/* Allowed members of the body of a job: the arguments of enqueue(). */
static const char enqueue_members[] = "kind! payload"
#define JOB_OPTION(name, c_name, type, says) " " #name
#include "produce/options.h"
		   ;

/*
 * True if the job can inherit the trace of the request.  A trace in the job's own headers
 * takes precedence.
 */
#define TRACED \
	"jobq_internal.traceparent(jsonb_build_object('traceparent', $3::text)) IS NOT NULL " \
	"AND coalesce(jsonb_typeof(b -> 'headers'), 'null') IN ('null', 'object')"

#define ALL(rows) \
	"SELECT json_build_object('items', coalesce(json_agg(t), '[]')) FROM (" rows ") AS t"

/* A function without a result, as part of an expression. */
#define DO(call)	call "::text IS NOT NULL"

/*
 * Members of jobs for callers with hidden payloads (shown.c).  Every role that sees a job
 * also sees its tenant, as in the views.
 */
#define JOB_SHOWN \
	"id state kind queue priority role attempt max_attempts progress enqueued_at run_at started_at finished_at batch_id tenant"

/*
 * The text without quotations, for example the error of a job.  A quotation follows a
 * colon.
 */
#define UNQUOTED(text, hide)	"CASE WHEN " hide "::bool THEN split_part(" text ", ': ', 1) ELSE " text " END"

/* "done" for many ids: an error for one id fails the whole statement. */
#define FOR_EACH_ID(call) \
	"SELECT json_build_object('items', coalesce(json_agg(json_build_object('id', i.id, 'done', " call ")), '[]')) " \
	"FROM (SELECT DISTINCT v.value::int8 AS id FROM jsonb_array_elements_text($1::jsonb -> 'ids') AS v ORDER BY 1) AS i"

/* An operation on a queue or schedule named in the path. */
#define NAMED(what, verb, argument) \
	{"POST", "/api/" what "/{}/" verb, 0,.parameters = "body {}",.members = "", \
	.sql = "SELECT json_build_object('done', " DO("jobq." verb "(" argument " => $2::text)") ")"}

/*
 * A lease, or several as arrays.  MANY calls a function that takes arrays.  EACH calls a
 * function for each lease, in the order of the ids.  "more": the arguments after the
 * token.
 */
#define NUMBERS(name) "ARRAY(SELECT v.value::int8 FROM jsonb_array_elements_text(b -> '" name "') WITH ORDINALITY AS v ORDER BY v.ordinality)"
#define MANY(function, more) DO("jobq." function "(" NUMBERS("ids") ", " NUMBERS("tokens") more ")")
#define EACH(function, more) \
	"(SELECT coalesce(bool_and(" DO("jobq." function "(v.id, v.token" more ")") "), true) " \
	"FROM (SELECT * FROM unnest(" NUMBERS("ids") ", " NUMBERS("tokens") ") AS u (id, token) ORDER BY id) AS v)"
#define LEASE_ROUTE(function, members_of_one, more_of_one, members_of_each, of_each) \
	{"POST", "/api/" function, 0,.parameters = "body",.members = "id! token! " members_of_one, \
	.members_of_many = "ids! tokens! " members_of_each, \
	.sql = "SELECT json_build_object('done', CASE WHEN b ? 'ids' THEN " \
	of_each " ELSE " \
	DO("jobq." function "((b ->> 'id')::int8, (b ->> 'token')::int8" more_of_one ")") " END) " \
	"FROM (SELECT $1::jsonb AS b) AS body"}
#define ERROR	", b ->> 'error', (b ->> 'delay')::interval"
#define REASON	", b ->> 'reason'"
#define DELAY	", coalesce((b ->> 'delay')::interval, '0')"
#define LEASE	", (b ->> 'lease')::interval"

#define SCHEDULE_SHOWN \
	"name state cron timezone next_tick next_ticks last_tick last_job_id last_state role kind missed overlap"

#define BATCH_SHOWN \
	"id name state total ready scheduled blocked running completed dead cancelled expired progress created_at started_at finished_at role parent_id"

static const char overview[] =
"SELECT json_build_object('at', jobq_internal.clock(), 'scheduler', coalesce((SELECT CASE WHEN s.pid IS NULL THEN 'stopped' WHEN s.complete THEN 'running' ELSE 'loading' END "
"FROM jobq_internal.scheduler_state() AS s), 'not served'), "
"'ready', q.ready, 'scheduled', q.scheduled, 'blocked', q.blocked, 'running', q.running, 'dead_letters', q.dead_letters, "
"'oldest_ready', q.oldest, 'waiting_seconds', extract(epoch FROM jobq_internal.clock() - q.oldest)::float8, "
"'queues', q.queues, 'paused', q.paused, 'exact', q.exact, 'workers', w.workers, 'busy_workers', w.busy, 'consumers', w.consumers) FROM "
"(SELECT coalesce(sum(ready), 0) AS ready, coalesce(sum(scheduled), 0) AS scheduled, coalesce(sum(blocked), 0) AS blocked, "
"coalesce(sum(running), 0) AS running, coalesce(sum(dead_letters), 0) AS dead_letters, min(oldest_ready) AS oldest, "
"count(*) AS queues, count(*) FILTER (WHERE paused) AS paused, coalesce(bool_and(exact), true) AS exact FROM jobq.queues) AS q, "
"(SELECT count(*) FILTER (WHERE type = 'worker') AS workers, count(*) FILTER (WHERE type = 'worker' AND job_id IS NOT NULL) AS busy, "
"count(*) FILTER (WHERE type = 'consumer') AS consumers FROM jobq.workers) AS w";

static const char session[] =
"SELECT json_build_object('role', session_user, 'database', current_database(), 'csrf', $1::text, "
"'read_only', $2::bool, 'hide_payload', $3::bool, "
"'version', (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'jobq'), "
"'privileges', (SELECT coalesce(json_agg(p), '[]') FROM (SELECT g.privilege, g.queue FROM jobq.grants AS g WHERE pg_has_role(session_user, g.role::oid, 'USAGE') "
"UNION SELECT 'manage', NULL FROM pg_extension AS e WHERE e.extname = 'jobq' AND pg_has_role(session_user, e.extowner, 'USAGE')) AS p), "
"'roles', (SELECT json_agg(r.oid::regrole::text) FROM pg_roles AS r WHERE pg_has_role(session_user, r.oid, 'USAGE') "
"AND NOT EXISTS (SELECT FROM pg_roles AS u WHERE u.rolname = session_user AND u.rolsuper)))";

static const char metrics[] = "SELECT jobq.metrics()";

/*
 * Enqueue a job.  The answer is the id, "null" if the key is held and on_conflict is "ignore",
 * and with an idempotency key a word about a repeated request: "replayed", or "differs" if the
 * job of the first request has another kind or payload.  A role that may not read its jobs
 * cannot compare.  With hidden payloads, only kinds are compared.
 *
 * With the key, the first call ignores a conflict, so that its result tells a new job from a
 * repeated request.
 */
#define ENQUEUE(options)	"jobq.enqueue(kind, coalesce(payload, '{}'), options => " options ")"
static const char enqueue[] =
"SELECT CASE WHEN NOT replays OR b -> 'uniqueness' ? 'on_conflict' THEN coalesce(" ENQUEUE("b") "::text, 'null') "
"ELSE coalesce(" ENQUEUE("b || jsonb_build_object('uniqueness', b -> 'uniqueness' || '{\"on_conflict\": \"ignore\"}')") "::text, "
"(SELECT i.id || CASE WHEN EXISTS (SELECT FROM jobq.jobs AS j WHERE j.id = i.id AND (j.kind <> job.kind OR (NOT $4::bool AND j.payload <> coalesce(job.payload, '{}')))) "
"THEN ' differs' ELSE ' replayed' END FROM (SELECT " ENQUEUE("b") " AS id OFFSET 0) AS i)) END "
"FROM (SELECT kind, payload, replays, CASE WHEN " TRACED " THEN b || "
"jsonb_build_object('headers', jsonb_build_object('traceparent', $3::text) || coalesce(nullif(b -> 'headers', 'null'), '{}')) "
"ELSE b END AS b FROM (SELECT kind, payload, $2::text IS NOT NULL AS replays, CASE WHEN $2::text IS NULL THEN b "
"ELSE jsonb_build_object('unique_key', $2::text) || b || jsonb_build_object('uniqueness', "
"jsonb_build_object('for', '1 day') || coalesce(nullif(b -> 'uniqueness', 'null'), '{}')) END AS b "
"FROM (SELECT $1::jsonb ->> 'kind' AS kind, $1::jsonb -> 'payload' AS payload, "
"($1::jsonb - '{kind,payload,options}'::text[]) || coalesce(nullif($1::jsonb -> 'options', 'null'), '{}') AS b) AS body) AS keyed) AS job";

/*
 * An array of ids, an array of tokens, and the jobs, separated by blanks.  If there are
 * no jobs and the caller waits: an exclamation mark, then the parameters of the wait.
 */
static const char reserve[] =
"SELECT CASE WHEN r.jobs IS NOT NULL THEN r.jobs WHEN r.wait <= 0 THEN '{} {} {\"jobs\":[]}' "
"ELSE '!' || json_build_object('queues', r.queues, 'max', r.max, 'lease', r.lease, 'wait', r.wait, 'held', coalesce(r.held, -1))::text END "
"FROM (SELECT w.*, (SELECT concat(array_agg(j.id), ' ', array_agg(j.token), ' ', json_build_object('jobs', json_agg(j))) FROM jobq.reserve(w.queues, w.max, w.lease, '0', w.consumer, w.held) AS j HAVING count(*) > 0) AS jobs "
"FROM (SELECT CASE WHEN jsonb_typeof(b -> 'queues') = 'string' THEN ARRAY[b ->> 'queues'] WHEN b -> 'queues' IS NULL THEN '{default}'::text[] "
"ELSE ARRAY(SELECT v.value FROM jsonb_array_elements_text(b -> 'queues') WITH ORDINALITY AS v ORDER BY v.ordinality) END AS queues, "
"coalesce((b ->> 'max_jobs')::int4, 1) AS max, coalesce((b ->> 'lease')::interval, '90 s') AS lease, "
"least(coalesce(extract(epoch FROM (b ->> 'wait')::interval), 0), 60)::float8 AS wait, coalesce(b ->> 'consumer', 'jobq web') AS consumer, (b ->> 'held')::int4 AS held "
"FROM (SELECT $1::jsonb AS b) AS body OFFSET 0) AS w OFFSET 0) AS r";

/* Retry the job, with a new payload if given. */
static const char retry[] =
"SELECT json_build_object('id', $2::int8, 'done', e.edited AND " DO("jobq.retry($2::int8)") ") "
"FROM (SELECT CASE WHEN $1::jsonb ? 'payload' THEN " DO("jobq.edit($2::int8, payload => $1::jsonb -> 'payload')") " ELSE true END AS edited OFFSET 0) AS e";

static const char queue_shown[] = "name paused paused_kinds paused_tenants ready scheduled blocked running dead_letters oldest_ready exact waiting_seconds fair_weights* stats kind "
"enqueued_per_minute completed_per_minute failed_per_minute wait_p50 wait_p95 run_p50 run_p95"
#define QUEUE_SETTING(name, c_name, type, definition, check, words, says) " " #name
#include "store/queue_settings.h"
#undef QUEUE_SETTING
		   ;

/* The settings of a queue, which are the arguments of create_queue() after the name; a blank before each. */
static const char queue_members[] = ""
#define QUEUE_SETTING(name, c_name, type, definition, check, words, says) " " #name
#include "store/queue_settings.h"
#undef QUEUE_SETTING
		   ;
static const char put_queue[] = "SELECT json_build_object('done', jobq.create_queue($2::text"
#define QUEUE_SETTING(name, c_name, type, definition, check, words, says) ", " #name " => f." #name
#include "store/queue_settings.h"
#undef QUEUE_SETTING
")::text IS NOT NULL) FROM jsonb_to_record($1::jsonb) AS f(name text"
#define QUEUE_SETTING(name, c_name, type, definition, check, words, says) ", " #name " " #type
#include "store/queue_settings.h"
#undef QUEUE_SETTING
")";

const Route routes[] = {
	{"GET", "/healthz", ROUTE_OPEN,.run = run_health},
	{"GET", "/metrics", ROUTE_MERGES,.run = run_metrics_route,.sql = metrics,.answer = answer_metrics},
	{"GET", "/api/openapi.json", ROUTE_OPEN,.run = answer_asset},
	{"GET", "/api/databases", ROUTE_OPEN,.run = run_databases},
	{"POST", "/api/session", ROUTE_OPEN | ROUTE_READS,.run = run_log_in,.parameters = "csrf readonly hide",.answer = answer_session,
	.sql = session},
	{"GET", "/api/session", 0,.parameters = "csrf readonly hide",.answer = answer_session,.sql = session},
	{"DELETE", "/api/session", ROUTE_READS,.run = run_log_out},

	{"GET", "/signal/{}", ROUTE_OPEN | ROUTE_PAGE,.run = run_link},
	{"POST", "/signal/{}", ROUTE_OPEN | ROUTE_PAGE,.run = run_link},

	{"GET", "/api/overview", 0,.sql = overview,
		.shown = "at scheduler ready scheduled blocked running dead_letters oldest_ready waiting_seconds queues paused exact workers "
	"busy_workers consumers"},
	{"GET", "/api/series", 0,.parameters = "?period ?queue ?kind",.words = {"period hour day"},.sql = SERIES,
	.shown = "from until step_seconds source partial points at enqueued completed failed dead cancelled expired "
	"wait_mean wait_max run_mean run_max"},
	{"GET", "/api/rates", 0,.parameters = "?by",.words = {"by queue kind tenant"},.sql = RATES,
	.shown = "at name enqueued* completed* failed* wait_p95"},
	{"GET", "/api/usage", 0,.parameters = "?by",.words = {"by tenant kind queue"},.sql = USAGE,
	.shown = "name ready running scheduled dead_letters enqueued completed failed runs run_seconds cpu_seconds buffers buffers_read wal_bytes temp_bytes since"},
	{"GET", "/api/limits", 0,.shown = "type name max_running running rate tokens throttle failed rest_until by cost when_taken",
	.sql = ALL(LIMITS)},
	{"GET", "/api/runs", 0,.shown = "schedule runs id state seconds at",.sql = ALL(RUNS_OF_ALL)},
	{"GET", "/api/monitors", 0,.shown = "name condition queue kind above until value since ended_at",
	.sql = ALL("SELECT * FROM jobq.monitors ORDER BY since NULLS LAST, name")},
	{"PUT", "/api/monitors/{}", 0,.parameters = "body {}",.members = "condition! above! until queue kind",
	.sql = PUT_MONITOR},
	{"DELETE", "/api/monitors/{}", 0,.parameters = "{}",
	.sql = DONE("jobq.drop_monitor($1::text)")},
	{"GET", "/api/jobs", 0,
		.parameters = "?state ?queue ?kind -unique_key -group_key ?batch_id ?role -header ?from ?until ?before ?limit ?tenant ?id -tag -error -fingerprint -payload =order",
		.shown = JOB_SHOWN,
		.words = {"state " JOB_STATES, "order " JOB_ORDERS},
	.run = run_jobs,.sql = jobs_sql},
	{"GET", "/api/jobs/export", 0,
		.parameters = "?state ?queue ?kind -unique_key -group_key ?batch_id ?role -header ?from ?until ?before ?limit ?tenant ?id -tag -error -fingerprint -payload =order =format",
		.shown = JOB_SHOWN,
		.words = {"state " JOB_STATES, "order " JOB_ORDERS, "format json csv"},.most = MOST_EXPORTED,
	.run = run_jobs,.answer = answer_export},
	{"POST", "/api/jobs", 0,.parameters = "body #Idempotency-Key #traceparent hide",
		.members = enqueue_members,
		.answer = answer_enqueued,
	.sql = enqueue},
	{"POST", "/api/jobs/retry", 0,.parameters = "body",.members = "state " CONDITION_MEMBERS,.members_of_many = "ids!",
	.sql = IDS_OR_MANY(DO("jobq.retry(i.id)"), "retry_many")},
	{"POST", "/api/jobs/delete", 0,.parameters = "body",.members = "state " CONDITION_MEMBERS,.members_of_many = "ids!",
	.sql = IDS_OR_MANY(DO("jobq.delete(i.id)"), "delete_many")},
	{"POST", "/api/jobs/cancel", 0,.parameters = "body",.members = "state " CONDITION_MEMBERS,.members_of_many = "ids!",
	.sql = IDS_OR_MANY("jobq.cancel(i.id)", "cancel_many")},
	{"POST", "/api/jobs/edit", 0,.parameters = "body",.members = "changes! state " CONDITION_MEMBERS,
	.sql = MANY_JOBS("edit_many", "changes => f.changes, ")},
	{"POST", "/api/jobs/signal", 0,.parameters = "body",.members = "-unique_key! name! kind payload scope queue",
		.sql = "SELECT json_build_object('done', jobq.signal(b ->> 'kind', b ->> 'unique_key', b ->> 'name', coalesce(b -> 'payload', '{}'), "
	"coalesce(b ->> 'scope', 'kind'), b ->> 'queue')) FROM (SELECT $1::jsonb AS b) AS body"},
	{"GET", "/api/jobs/{}", 0,.parameters = "{} hide",
		.shown = JOB_SHOWN " worker errors log at level sqlstate payload_hidden may_edit step name element needs",
		.sql = "SELECT row_to_json(t) FROM (SELECT " JOB_LINE ", j.worker, j.payload, j.headers, j.result, j.context, "
		"j.errors, j.log, f.sqlstate, f.error_context, $2::bool AS payload_hidden, pg_has_role(session_user, j.role::oid, 'MEMBER') AS may_edit, "
		"(SELECT json_build_object('name', s.name, 'element', s.element, 'needs', s.needs) FROM jobq.steps AS s "
		"WHERE s.batch_id = j.batch_id AND s.job_id = j.id) AS step "
	"FROM jobq.jobs AS j LEFT JOIN jobq.dead_letters AS f ON f.id = j.id WHERE j.id = $1::int8) AS t"},
	{"DELETE", "/api/jobs/{}", 0,.parameters = "{}",
	.sql = "SELECT json_build_object('id', $1::int8, 'done', jobq.cancel($1::int8))"},
	{"PATCH", "/api/jobs/{}", 0,.parameters = "body {}",.members = "payload headers queue max_attempts backoff timeout run_at priority",
		.sql = "SELECT json_build_object('id', $2::int8, 'done', " DO("jobq.edit($2::int8, payload => b -> 'payload', headers => nullif(b -> 'headers', 'null'), "
																	  "queue => b ->> 'queue', max_attempts => (b ->> 'max_attempts')::int4, backoff => b ->> 'backoff', timeout => (b ->> 'timeout')::interval, "
																	  "run_at => (b ->> 'run_at')::timestamptz, priority => (b ->> 'priority')::int4)") ") "
	"FROM (SELECT $1::jsonb AS b) AS body"},
	{"GET", "/api/jobs/{}/events", 0,.run = run_follow_job,.shown = JOB_SHOWN " at level detail"},
	{"GET", "/api/jobs/{}/explain", 0,.parameters = "{} hide",.shown = "reason detail remedy",
	.sql = ALL("SELECT e.reason, " UNQUOTED("e.detail", "$2") " AS detail, e.remedy FROM jobq.explain($1::int8) AS e")},
	{"GET", "/api/jobs/{}/history", 0,.parameters = "{}",.shown = "at attempt event by took cost*",
	.sql = ALL("SELECT * FROM jobq.history($1::int8)")},
	{"POST", "/api/jobs/{}/retry", 0,.parameters = "body {}",.members = "payload",.sql = retry},
	{"POST", "/api/jobs/{}/signals/{}", 0,.parameters = "body {} {2}",
	.sql = "SELECT json_build_object('done', jobq.signal($2::int8, $3::text, $1::jsonb))"},
	{"POST", "/api/jobs/{}/rerun", 0,.parameters = "body {}",.members = "from_step",
	.sql = "SELECT json_build_object('id', jobq.rerun($2::int8, $1::jsonb ->> 'from_step'))"},

	{"GET", "/api/failures", 0,.parameters = "?queue ?kind",
		.shown = "partial queue kinds* roles* sqlstate first_seen last_seen failed failed_last_hour dead_letters job_id new",
	.sql = FAILURES},
	{"GET", "/api/dead", 0,.parameters = "?queue ?kind ?before ?limit ?tenant -fingerprint ?from ?until -tag -error -payload",
		.shown = "id kind queue role attempt max_attempts crashes enqueued_at finished_at sqlstate tenant",
		.sql = PAGE_BY("j.id, j.kind, j.queue, j.role, j.attempt, j.max_attempts, j.crashes, j.enqueued_at, j.finished_at, j.error, j.sqlstate, j.fingerprint, j.error_context, "
					   "j.context, j.tenant, j.tags",
					   "SELECT * FROM jobq.dead_letters AS f WHERE ($3::text IS NULL OR " DEAD_BEFORE(3) ") AND ($6::int8 IS NULL OR f.fingerprint = $6) "
					   "AND ($7::timestamptz IS NULL OR f.finished_at >= $7) AND ($8::timestamptz IS NULL OR f.finished_at < $8)",
					   "($1::text IS NULL OR j.queue = $1) AND ($2::text IS NULL OR j.kind = $2) AND ($5::text IS NULL OR j.tenant = $5) "
					   "AND ($9::text IS NULL OR $9 = ANY (j.tags)) AND ($10::text IS NULL OR j.error LIKE $10) AND ($11::jsonb IS NULL OR j.payload @> $11)", 4,
					   "finished_at DESC, id DESC", DEAD_LAST)},
	{"POST", "/api/dead/retry", 0,.parameters = "body",.members = CONDITION_MEMBERS,
	.sql = MANY_JOBS("retry_many", "")},
	{"POST", "/api/dead/delete", 0,.parameters = "body",.members = CONDITION_MEMBERS,
	.sql = MANY_JOBS("delete_many", "")},

	{"GET", "/api/queues", 0,.shown = queue_shown,
	.sql = ALL(QUEUES " ORDER BY q.name")},
	{"GET", "/api/queues/{}", 0,.parameters = "{}",.shown = queue_shown,
	.sql = QUEUE},
	{"PUT", "/api/queues/{}", 0,.parameters = "body {}",.members = queue_members + 1,.sql = put_queue},
	{"DELETE", "/api/queues/{}", 0,.parameters = "{}",
	.sql = DONE("jobq.drop_queue($1::text)")},
	NAMED("queues", "pause", "queue"),
	NAMED("queues", "resume", "queue"),
	{"POST", "/api/queues/{}/cancel", 0,.parameters = "body {}",.members = "",
	.sql = "SELECT json_build_object('count', jobq.cancel_many(queue => $2::text, state => 'waiting'))"},
	/* a browser cannot send "." and ".." in a path */
	{"POST", "/api/queues/pause", 0,.parameters = "body",.members = "queue!",
	.sql = "SELECT json_build_object('done', " DO("jobq.pause(queue => $1::jsonb ->> 'queue')") ")"},
	{"POST", "/api/queues/resume", 0,.parameters = "body",.members = "queue!",
	.sql = "SELECT json_build_object('done', " DO("jobq.resume(queue => $1::jsonb ->> 'queue')") ")"},
	{"POST", "/api/queues/cancel", 0,.parameters = "body",.members = "queue!",
	.sql = "SELECT json_build_object('count', jobq.cancel_many(queue => $1::jsonb ->> 'queue', state => 'waiting'))"},
	{"GET", "/api/kinds", 0,
		.shown = "kind handler queue priority max_attempts backoff timeout fail_on_timeout max_exceptions max_running rate throttle "
		"on_failure carry recycle retry_on fail_on max_memory max_temp max_wal limiters chunk handler_version",
	.sql = ALL("SELECT * FROM jobq.kinds ORDER BY kind")},
	{"GET", "/api/kinds/{}", 0,.parameters = "{}",
		.shown = "kind handler queue priority max_attempts backoff timeout fail_on_timeout max_exceptions max_running rate throttle "
		"on_failure carry recycle retry_on fail_on max_memory max_temp max_wal limiters chunk last id",
	.sql = KIND},
	{"PUT", "/api/kinds/{}", 0,.parameters = "body {}",
		.members = "handler! queue priority max_attempts backoff timeout fail_on_timeout max_exceptions max_running rate throttle on_failure carry recycle retry_on fail_on max_memory max_temp max_wal limiters chunk",
	.sql = PUT_KIND},
	{"DELETE", "/api/kinds/{}", 0,.parameters = "{}",
	.sql = DONE("jobq.unregister($1::text)")},
	{"GET", "/api/limiters", 0,.shown = "name max_running running rate tokens throttle failed rest_until by cost when_taken",
	.sql = ALL(LIMITERS " ORDER BY 1")},
	{"GET", "/api/limiters/{}", 0,.parameters = "{}",.shown = "name max_running running rate tokens throttle failed rest_until by cost when_taken",
	.sql = "SELECT row_to_json(t) FROM (" LIMITERS " AND l.limiter = $1::text) AS t"},
	{"PUT", "/api/limiters/{}", 0,.parameters = "body {}",.members = "max_running rate throttle by cost when_taken",
	.sql = PUT_LIMITER},
	{"DELETE", "/api/limiters/{}", 0,.parameters = "{}",
	.sql = DONE("jobq.drop_limiter($1::text)")},
	{"GET", "/api/workers", 0,
		.shown = "name type consumer pid role client pool state started_at job_id kind attempt job_started_at progress "
		"running completed failed last_jobs* job_seconds",
	.sql = ALL(WORKERS " ORDER BY w.type, w.pool, w.pid, w.consumer")},
	{"GET", "/api/workers/{}", 0,.parameters = "{}",
		.shown = "name type consumer pid role client pool state started_at job_id kind attempt job_started_at progress "
		"running completed failed last_jobs* job_seconds jobs id queue enqueued_at finished_at seconds",
	.sql = WORKER},
	{"GET", "/api/schedules", 0,.shown = SCHEDULE_SHOWN,
	.sql = ALL(SCHEDULES("5") " ORDER BY s.next_tick, s.name")},
	{"GET", "/api/schedules/{}", 0,.parameters = "{}",.shown = SCHEDULE_SHOWN " runs id enqueued_at started_at finished_at",
		.sql = "SELECT row_to_json(t) FROM (SELECT s.*, (SELECT coalesce(json_agg(r), '[]') FROM (" RUNS ") AS r) AS runs "
	"FROM (" SCHEDULES("10") " WHERE s.name = $1::text) AS s) AS t"},
	{"PUT", "/api/schedules/{}", 0,.parameters = "body {}",
		.members = "cron! kind payload timezone missed overlap options context sql transaction database",
	.sql = PUT_SCHEDULE},
	{"DELETE", "/api/schedules/{}", 0,.parameters = "{}",
	.sql = DONE("jobq.unschedule($1::text)")},
	{"GET", "/api/ticks", 0,.parameters = "?cron ?timezone ?limit",.shown = "items*",.most = 10,
	.sql = "SELECT json_build_object('items', (SELECT coalesce(json_agg(t), '[]') FROM jobq.next_ticks($1::text, coalesce($2::text, 'UTC'), NULL, $3::int4) AS t))"},
	NAMED("schedules", "pause", "schedule"),
	NAMED("schedules", "resume", "schedule"),
	{"POST", "/api/schedules/{}/run", 0,.parameters = "body {}",.members = "",
	.sql = "SELECT json_build_object('id', jobq.run_schedule($2::text))"},
	{"POST", "/api/schedules/pause", 0,.parameters = "body",.members = "schedule!",
	.sql = "SELECT json_build_object('done', " DO("jobq.pause(schedule => $1::jsonb ->> 'schedule')") ")"},
	{"POST", "/api/schedules/resume", 0,.parameters = "body",.members = "schedule!",
	.sql = "SELECT json_build_object('done', " DO("jobq.resume(schedule => $1::jsonb ->> 'schedule')") ")"},
	{"POST", "/api/schedules/run", 0,.parameters = "body",.members = "schedule!",
	.sql = "SELECT json_build_object('id', jobq.run_schedule($1::jsonb ->> 'schedule'))"},
	{"GET", "/api/audit", 0,.parameters = "?role ?action ?before ?limit ?from ?until",.shown = "id at role login application action jobs",
	.sql = AUDIT},
	/* backend.c disables sorts for lists, which makes doctor() slow */
	{"GET", "/api/doctor", 0,.parameters = "hide",.shown = "severity detail remedy",
		.sql = ALL("SELECT d.severity, " UNQUOTED("d.detail", "$1") " AS detail, d.remedy FROM (SELECT set_config('enable_sort', 'on', true) AS sorts OFFSET 0) AS s, "
				   "LATERAL (SELECT * FROM jobq.doctor(CASE WHEN s.sorts = 'on' THEN interval '10 min' END)) AS d")},
	{"GET", "/api/batches", 0,.parameters = "?state ?before ?limit",
		.words = {"state pending running failing cancelling completed failed cancelled"},
		.shown = BATCH_SHOWN,
	.sql = PAGE("*", "SELECT * FROM jobq.batches AS b WHERE ($2::int8 IS NULL OR b.id < $2)", "($1::text IS NULL OR j.state = $1)", 3)},
	{"GET", "/api/batches/{}", 0,.parameters = "{}",
		.shown = BATCH_SHOWN " steps job_id needs elements elements_completed elements_dead kind attempt",
		.sql = "SELECT row_to_json(t) FROM (SELECT b.*, (SELECT coalesce(json_agg(s), '[]') FROM ("
		"SELECT s.name, s.job_id, s.state, s.needs, s.elements, s.elements_completed, s.elements_dead, j.kind, j.attempt, j.progress, j.error, j.started_at, j.finished_at "
		"FROM jobq.steps AS s LEFT JOIN LATERAL (" JOB("s.job_id") ") AS j ON true WHERE s.batch_id = $1::int8 AND s.element IS NULL ORDER BY s.job_id) AS s) AS steps "
	"FROM jobq.batches AS b WHERE b.id = $1::int8) AS t"},
	{"POST", "/api/batches/{}/cancel", 0,.parameters = "body {}",.members = "",
	.sql = "SELECT json_build_object('id', $2::int8, 'done', jobq.cancel_batch($2::int8))"},
	{"POST", "/api/batches/{}/retry", 0,.parameters = "body {}",.members = "",
	.sql = "SELECT json_build_object('count', jobq.retry_many(batch_id => $2::int8))"},
	{"GET", "/api/events", 0,.parameters = "?topics",.run = run_topics},

	{"POST", "/api/reserve", ROUTE_CONSUMES,.parameters = "body",.members = "queues max_jobs lease wait consumer held",
	.sql = reserve,.answer = answer_reserve},
	LEASE_ROUTE("ack", "result", ", b -> 'result'", "results", MANY("ack_many", ", nullif(b -> 'results', 'null')")),
	LEASE_ROUTE("nack", "error delay", ERROR, "error delay", EACH("nack", ERROR)),
	LEASE_ROUTE("reject", "reason", REASON, "reason", EACH("reject", REASON)),
	LEASE_ROUTE("release", "delay payload", DELAY ", b -> 'payload'", "delay", EACH("release", DELAY)),
	LEASE_ROUTE("extend", "lease!", LEASE, "lease!", MANY("extend_many", LEASE)),
	{"POST", "/api/progress", 0,.parameters = "body",.members = "id! token! percent! message",
		.sql = "SELECT json_build_object('done', " DO("jobq.set_progress((b ->> 'id')::int8, (b ->> 'token')::int8, "
													  "(b ->> 'percent')::float4, b ->> 'message')") ") FROM (SELECT $1::jsonb AS b) AS body"},
	{"POST", "/api/log", 0,.parameters = "body",.members = "id! token! message! level",
		.sql = "SELECT json_build_object('done', " DO("jobq.log((b ->> 'id')::int8, (b ->> 'token')::int8, "
													  "b ->> 'message', coalesce(b ->> 'level', 'info'))") ") FROM (SELECT $1::jsonb AS b) AS body"},

	/* the console; last, because {} matches any name */
	{"GET", "/", ROUTE_OPEN,.run = answer_asset},
	{"GET", "/{}", ROUTE_OPEN,.run = answer_asset},
	{NULL}
};

/*
 * True if the path, as received, matches this pattern.  The segments for {} are decoded; a
 * pattern has at most two.
 */
static bool
path_is(const char *path, size_t length, const char *pattern, char *segments[2])
{
	const char *end = path + length;
	char	  **segment = segments;

	segments[0] = segments[1] = NULL;
	for (; *pattern != '\0'; pattern++)
	{
		if (*pattern != '{')
		{
			if (path == end || *path++ != *pattern)
				break;
			continue;
		}
		else
		{
			char	   *to = *segment = allocate(end - path + 1);

			while (path < end && *path != '/')
			{
				if (*path != '%')
					*to++ = *path++;
				else if (percent_decode(path, end, to))
				{
					to++;
					path += 3;
				}
				else
					break;
			}
			pattern++;			/* the closing brace */
			if (to == *segment++ || (path < end && *path == '%'))
				break;
		}
	}
	if (*pattern == '\0' && path == end)
		return true;
	free(segments[0]);
	free(segments[1]);
	return false;
}

/*
 * Find the database and the route.  If there is none, answer the request and return false.
 */
bool
route_find(Request *request, const char *method)
{
	const char *path = web_database_in(request->target, &request->database);
	size_t		length = strcspn(path, "?#");
	char		allowed[64] = "";

	if (strcmp(method, "HEAD") == 0)
		method = "GET";
	request->named = path != request->target;
	if (request->database == NULL)
	{
		answer_problem(request, MHD_HTTP_NOT_FOUND, "there is no such database here");
		return false;
	}
	if (length == 0)
	{
		/* the addresses in the console are relative to the slash at the end */
		char		location[512];

		snprintf(location, sizeof(location), "%s/", request->database->segment);
		answer_moved(request, location);
		return false;
	}
	for (const Route *route = routes; route->method != NULL; route++)
	{
		char	   *segments[2];

		if (!path_is(path, length, route->path, segments))
			continue;
		if (strcmp(route->method, method) == 0)
		{
			request->route = route;
			request->segment = segments[0];
			request->second_segment = segments[1];
			return true;
		}
		free(segments[0]);
		free(segments[1]);
		snprintf(allowed + strlen(allowed), sizeof(allowed) - strlen(allowed), "%s%s",
				 allowed[0] != '\0' ? ", " : "", route->method);
	}
	if (allowed[0] == '\0')
		answer_problem(request, MHD_HTTP_NOT_FOUND, "there is no such path");
	else
	{
		answer_problem(request, MHD_HTTP_METHOD_NOT_ALLOWED, "the path has no such method");
		answer_header(request, MHD_HTTP_HEADER_ALLOW, allowed);
	}
	return false;
}

/*
 * GET /api/events
 */
static void
run_topics(Request *request)
{
	static const char known[] = " overview queues kinds workers schedules batches dead jobs ";
	const char *topics = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "topics");
	const Route *found[MAX_TOPICS];
	int			n = 0;

	if (topics == NULL)
		topics = "overview";
	for (size_t length; *topics != '\0'; topics += length + (topics[length] == ','))
	{
		char		word[32];
		const Route *route = routes;

		length = strcspn(topics, ",");
		snprintf(word, sizeof(word), " %.*s ", (int) (length < 20 ? length : 20), topics);
		if (length == 0 || strstr(known, word) == NULL || memchr(topics, ' ', length) != NULL)
		{
			answer_problem(request, MHD_HTTP_BAD_REQUEST,
						   "topics are overview, queues, kinds, workers, schedules, batches, dead and jobs, with commas between them");
			return;
		}
		while (strncmp(route->path, "/api/", 5) != 0 || strcmp(route->method, "GET") != 0 ||
			   strlen(route->path + 5) != length || strncmp(route->path + 5, topics, length) != 0)
			route++;
		for (int i = 0; i < n; i++)
			if (found[i] == route)
				route = NULL;
		if (route != NULL && n < MAX_TOPICS)
			found[n++] = route;
	}
	if (n == 0)
		answer_problem(request, MHD_HTTP_BAD_REQUEST, "topics names no topic");
	else
		follow_topics(request, found, n);
}

/*
 * Answer 202 with the location of the job; null if its key is held and on_conflict is
 * "ignore".  A repeated request is marked, and refused if it is for another job.
 */
static void
answer_enqueued(Request *request, PGresult *result)
{
	const char *id = PQgetvalue(result, 0, 0);
	int			digits = (int) strcspn(id, " ");
	char		buffer[512];
	int			length;

	if (strcmp(id + digits, " differs") == 0)
	{
		answer_problem(request, STATUS_UNPROCESSABLE,
					   "the Idempotency-Key was used for another job: kind or payload differ");
		return;
	}
	length = snprintf(buffer, sizeof(buffer), "{\"id\":%.*s}", digits, id);
	answer(request, MHD_HTTP_ACCEPTED, "application/json", buffer, length);
	if (strcmp(id, "null") == 0)
		return;
	snprintf(buffer, sizeof(buffer), "%s%s/api/jobs/%.*s", request->named ? "/db/" : "",
			 request->named ? request->database->segment : "", digits, id);
	answer_header(request, MHD_HTTP_HEADER_LOCATION, buffer);
	if (id[digits] != '\0')
		answer_header(request, "Idempotency-Replayed", "true");
}
