/*-------------------------------------------------------------------------
 *
 * commands.c
 *	  The table of all commands.
 *
 * A new command is mostly an entry in this table, with the SQL from the manual;
 * "make reference" writes the entry into jobq.1.  Options of a job, settings of
 * a queue, and conditions on jobs come from the lists used to build the server's
 * library.
 *
 * A statement names the schema of each function, operator and type, because
 * another role may have planted namesakes in the search_path.  IN, LIKE and CASE
 * with a value are not used, because these find operators by search_path.  No
 * statement sets search_path: a job may carry the setting of its session, and
 * behind a pooler other sessions would inherit the setting.
 *
 * client/main/commands.c
 *
 *-------------------------------------------------------------------------
 */
#include "main/main.h"
#include "relay/relay.h"
#include "top/top.h"
#include "web/web.h"
#include "worker/worker.h"

#include <string.h>

#define JOB_OPTION(name, c_name, type, says) {#name, 0, #type, says},
#define JOB_FILTER(name, c_name, type, oid, says) {#name, 0, #type, says},
#define QUEUE_SETTING(name, c_name, type, column, check, words, says) {#name, 0, #type, says},

/* The lists select jobs by the conditions of the calls for many jobs (operate/filters.h). */
#define OPTION_SQLSTATE	{"sqlstate", 0, "CODE", "with this SQLSTATE of the last error only"}
#define OPTIONS_OF_LISTS \
	{"tenant", 0, "TENANT", "of this tenant only"}, \
	{"tags", 0, "TAG", "with this tag only, or with all of {TAG,...}"}, \
	{"error", 0, "PATTERN", "with an error message LIKE this pattern only, such as %timeout%"}, \
	{"payload", 0, "JSON", "with a payload that contains this only"}, \
	{"fingerprint", 0, "N", "of this cause only, as printed by failures"}
#define OPTION_YES	{"yes", 'y', NULL, "do not ask on a terminal"}

/* Call a function for each of many jobs, and return each result. */
#define FOR_EACH_ID(call) \
	"SELECT j.id, " call " FROM pg_catalog.unnest($1::pg_catalog.int8[]) AS j(id)"

#define EQUALS	" OPERATOR(pg_catalog.=) "
#define BELOW	" OPERATOR(pg_catalog.<) "
#define MINUS	" OPERATOR(pg_catalog.-) "

/* A condition on tags: a single tag, or an array with all of them. */
#define TAGGED(value) \
	"(" value "::pg_catalog.text IS NULL OR tags OPERATOR(pg_catalog.@>) CASE WHEN " value " OPERATOR(pg_catalog.~~) '{%' " \
	"THEN " value "::pg_catalog.text[] ELSE ARRAY[" value "] END)"

#define OPTION_QUEUE	{"queue", 'q', "QUEUE", "of this queue only"}
#define OPTION_KIND		{"kind", 'k', "KIND", "of this kind only"}
#define OPTION_LIMIT	{"limit", 'n', "N", "so many at most; else 20"}
#define OPTION_BEFORE	{"before", 0, "ID", "with lower ids only: the next page"}

const Command commands[] = {
	{
		.name = "enqueue",.arguments = "KIND [PAYLOAD]",.min_arguments = 1,.max_arguments = 2,
		.summary = "enqueue a job and print its id",
		.output = OUTPUT_VALUE,.run = run_call,
		.sql = "SELECT * FROM jobq.enqueue($1::pg_catalog.text, coalesce($2::pg_catalog.jsonb, '{}')",
		.options = {
#include "produce/options.h"
		}
	},
	{
		.name = "work",.arguments = "QUEUE...",.min_arguments = 1,.max_arguments = 16,.many = true,.merges = true,
		.summary = "take jobs of these queues, and run a command or send a request for each",
		.run = run_work,
		.options = {
			{"exec", 'e', "COMMAND", "run by the shell; the payload is its standard input"},
			{"http", 0, "URL", "send the payload there, as the body of a POST"},
			{"http-secret", 0, "FILE", "sign requests with the secret in this file"},
			{"http-redirects", 0, "N", "follow so many redirects within the site; else none"},
			{"http-retry-4xx", 0, NULL, "a status of 400 to 499 is a failed attempt; else a dead letter"},
			{"http-public-only", 0, NULL, "connect to no private or other special address"},
			{"http-ca", 0, "FILE", "certificates that are trusted; else the system's"},
			{"parallel", 'P', "N", "so many jobs at a time; else 1"},
			{"batch", 0, "N", "ask the server for so many at most in one call; else 1000"},
			{"ahead", 0, "N", "hold so many more than run, so that the next begins at once; else by the time that jobs take"},
			{"lease", 0, "TIME", "hold each for so long, again and again while it runs; else 30 s"},
			{"timeout", 0, "TIME", "a job may run so long; else as long as it takes"},
			{"grace", 0, "TIME", "from SIGTERM to SIGKILL for a command; else 10 s"},
			{"retry-delay", 0, "TIME", "after exit status 75 the job waits so long; else 30 s"},
			{"result", 0, "HOW", "its output as result: auto, json, text or none; else auto"},
			{"max-output", 0, "BYTES", "keep so much of its output; else 1000000"},
			{"max-memory", 0, "MB", "a command may have so much memory"},
			{"max-jobs", 0, "N", "stop after so many jobs"},
			{"max-time", 0, "TIME", "take no job after this time"},
			{"once", 0, NULL, "stop after one job"},
			{"stop-when-empty", 0, NULL, "stop when there is no job"},
			{"name", 0, "NAME", "how the view workers shows it; else jobq"},
			{"quiet", 0, NULL, "say only what goes wrong"},
		}
	},
	{
		.name = "relay",.arguments = "",
		.summary = "publish jobs of a queue to RabbitMQ, or enqueue messages of RabbitMQ",
		.run = run_relay,
		.options = {
			{"to", 0, "URL", "publish jobs to this broker: amqp://user@host/vhost or amqps://...; @FILE has the address"},
			{"from", 0, "URL", "enqueue messages of this broker"},
			{"queue", 'q', "QUEUE", "the queue of jobq"},
			{"exchange", 0, "NAME", "publish there; else to the default exchange"},
			{"exchange-by", 0, "FIELD", "publish to the exchange that the job names: kind, queue, tenant, header NAME or payload PATH"},
			{"routing-key", 0, "KEY", "with this routing key; else with the kind of the job"},
			{"routing-key-by", 0, "FIELD", "with the routing key that the job names"},
			{"message-id-by", 0, "FIELD", "the id of the message; else header message_id, else made from the id of the job"},
			{"window", 0, "N", "so many messages at most without confirm, or not yet enqueued; else 200"},
			{"lease", 0, "TIME", "hold jobs for so long, again and again; else 30 s"},
			{"grace", 0, "TIME", "wait so long for confirms after SIGTERM; else 10 s"},
			{"retry-delay", 0, "TIME", "a job waits so long after the broker could not store its message; else 5 s"},
			{"source", 's', "NAME", "the queue of the broker whose messages are enqueued"},
			{"kind", 'k', "KIND", "the kind of their jobs; else the type of the message"},
			{"body", 0, "HOW", "the body becomes the payload as json, text, or auto: by its content type; else json"},
			{"ignore-ids", 0, NULL, "enqueue each message, whether or not its id came before"},
			{"ca", 0, "FILE", "certificates that are trusted; else the system's"},
			{"cert", 0, "FILE", "the program's own certificate"},
			{"key", 0, "FILE", "its key"},
			{"stop-when-empty", 0, NULL, "stop when there is no job or message"},
			{"name", 0, "NAME", "how the view workers shows it; else jobq relay"},
			{"verbose", 0, NULL, "say each job that is done"},
		}
	},
	{
		.name = "show",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "all about a job",
		.output = OUTPUT_RECORD,
		.sql = "SELECT * FROM jobq.jobs WHERE id" EQUALS "$1::pg_catalog.int8",
	},
	{
		.name = "explain",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "why a job does not run, or what it waits for, and what would mend it",
		.sql = "SELECT reason, detail, remedy FROM jobq.explain($1::pg_catalog.int8)",
	},
	{
		.name = "history",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "what has become of a job, from its beginning on",
		.sql = "SELECT pg_catalog.date_trunc('milliseconds', at) AS at, attempt, event, by, "
		"pg_catalog.date_trunc('milliseconds', took) AS took, detail FROM jobq.history($1::pg_catalog.int8)",
	},
	{
		.name = "tail",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "follow a job until it ends; the exit status is its outcome",
		.run = run_tail,
	},
	{
		.name = "wait",.arguments = "ID...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "wait until jobs have ended",
		.run = run_wait,
		.sql = "SELECT id, state, kind, queue, attempt, result, error "
		"FROM jobq.wait_many($1::pg_catalog.int8[], coalesce($2::pg_catalog.interval, '365 days'))",
		.options = {{"timeout", 't', "TIME", "as an interval, such as 30s; else for ever"}}
	},
	{
		.name = "list",.arguments = "",.merges = true,
		.summary = "jobs, the newest first",
		.sql = "SELECT id, state, kind, queue, priority, attempt, pg_catalog.date_trunc('second', enqueued_at) AS enqueued_at, "
		"pg_catalog.date_trunc('second', finished_at) AS finished_at, progress, error "
		"FROM jobq.jobs WHERE ($1::pg_catalog.text IS NULL OR state" EQUALS "$1) AND ($2::pg_catalog.text IS NULL OR queue" EQUALS "$2) "
		"AND ($3::pg_catalog.text IS NULL OR kind" EQUALS "$3) AND ($4::pg_catalog.text IS NULL OR unique_key" EQUALS "$4) "
		"AND ($5::pg_catalog.text IS NULL OR group_key" EQUALS "$5) AND ($6::pg_catalog.int8 IS NULL OR batch_id" EQUALS "$6) "
		"AND ($7::pg_catalog.int8 IS NULL OR id" BELOW "$7) AND ($9::pg_catalog.text IS NULL OR tenant" EQUALS "$9) "
		"AND " TAGGED("$10") " AND ($11::pg_catalog.text IS NULL OR error OPERATOR(pg_catalog.~~) $11) "
		"AND ($12::pg_catalog.jsonb IS NULL OR payload OPERATOR(pg_catalog.@>) $12) "
		"AND ($13::pg_catalog.int8 IS NULL OR (errors OPERATOR(pg_catalog.#>>) '{-1,fingerprint}')::pg_catalog.int8" EQUALS "$13) "
		"AND ($14::pg_catalog.interval IS NULL OR enqueued_at OPERATOR(pg_catalog.>=) (jobq_internal.clock()" MINUS "$14)) "
		"AND ($15::pg_catalog.interval IS NULL OR enqueued_at OPERATOR(pg_catalog.<) (jobq_internal.clock()" MINUS "$15)) "
		"AND ($16::pg_catalog.text IS NULL OR (errors OPERATOR(pg_catalog.#>>) '{-1,sqlstate}')" EQUALS "$16) "
		"ORDER BY id DESC LIMIT coalesce($8::pg_catalog.int8, 20)",
		.options = {
			{"state", 's', "STATE", "blocked, scheduled, ready, running, suspended, retryable, completed, dead, cancelled or expired", true},
			OPTION_QUEUE, OPTION_KIND,
			{"unique-key", 0, "KEY", "with this unique key only"},
			{"group-key", 0, "KEY", "of this group only"},
			{"batch-id", 0, "ID", "of this batch only"}, OPTION_BEFORE, OPTION_LIMIT,
			OPTIONS_OF_LISTS,
			{"newer-than", 0, "TIME", "enqueued less long ago than this, such as 1 hour"},
			{"older-than", 0, "TIME", "enqueued longer ago than this"},
			OPTION_SQLSTATE,
		}
	},
	{
		.name = "audit",.arguments = "",.merges = true,
		.summary = "calls of operators, the newest first",
		.sql = "SELECT id, pg_catalog.date_trunc('second', at) AS at, role, action, jobs, arguments, application FROM jobq.audit_log "
		"WHERE ($1::pg_catalog.text IS NULL OR role::pg_catalog.text" EQUALS "$1 OR login::pg_catalog.text" EQUALS "$1) AND ($2::pg_catalog.text IS NULL OR action" EQUALS "$2) "
		"AND ($3::pg_catalog.interval IS NULL OR at OPERATOR(pg_catalog.>) (jobq_internal.clock()" MINUS "$3)) "
		"AND ($4::pg_catalog.int8 IS NULL OR id" BELOW "$4) ORDER BY id DESC LIMIT coalesce($5::pg_catalog.int8, 20)",
		.options = {
			{"role", 0, "ROLE", "of this role only"},
			{"action", 0, "FUNCTION", "calls of this function only, such as cancel_many"},
			{"newer-than", 0, "TIME", "less long ago than this, such as 1 day"}, OPTION_BEFORE, OPTION_LIMIT,
		}
	},
	{
		.name = "failures",.arguments = "",.merges = true,
		.summary = "failed attempts by cause, the newest cause first; retry-many and delete-many take the fingerprint of a cause",
		.run = run_failures,
		.sql = "SELECT fingerprint, queue, kinds, sqlstate, pg_catalog.date_trunc('second', first_seen) AS first_seen, "
		"pg_catalog.date_trunc('second', last_seen) AS last_seen, "
		"f.first_seen OPERATOR(pg_catalog.>) (jobq_internal.clock()" MINUS "'1 hour'::pg_catalog.interval) AND f.first_seen OPERATOR(pg_catalog.<=) jobq_internal.clock() AS new, "
		"failed, failed_last_hour, dead_letters, job_id, message FROM jobq.failures AS f WHERE ($1::pg_catalog.text IS NULL OR queue" EQUALS "$1) AND ($2::pg_catalog.text IS NULL OR $2" EQUALS "ANY (kinds)) "
		"AND ($3::pg_catalog.interval IS NULL OR f.first_seen OPERATOR(pg_catalog.>) (jobq_internal.clock()" MINUS "$3)) "
		"ORDER BY f.first_seen DESC, fingerprint LIMIT coalesce($4::pg_catalog.int8, 20)",
		.options = {OPTION_QUEUE, OPTION_KIND, {"newer-than", 0, "TIME", "seen first less long ago than this, such as 1 hour"}, OPTION_LIMIT}
	},
	{
		.name = "dead",.arguments = "",.merges = true,
		.summary = "dead letters, the newest first",
		.sql = "SELECT id, kind, queue, attempt, pg_catalog.date_trunc('second', finished_at) AS finished_at, sqlstate, error "
		"FROM jobq.dead_letters AS f "
		"LEFT JOIN (SELECT l.id AS before_id, l.finished_at AS before_at FROM jobq.dead_letters AS l) AS b ON before_id" EQUALS "$3 "
		"WHERE ($1::pg_catalog.text IS NULL OR queue" EQUALS "$1) AND ($2::pg_catalog.text IS NULL OR kind" EQUALS "$2) "
		"AND ($5::pg_catalog.text IS NULL OR tenant" EQUALS "$5) AND " TAGGED("$6") " AND ($7::pg_catalog.text IS NULL OR error OPERATOR(pg_catalog.~~) $7) "
		"AND ($8::pg_catalog.jsonb IS NULL OR payload OPERATOR(pg_catalog.@>) $8) AND ($9::pg_catalog.int8 IS NULL OR fingerprint" EQUALS "$9) "
		"AND ($10::pg_catalog.interval IS NULL OR f.finished_at OPERATOR(pg_catalog.>) (jobq_internal.clock()" MINUS "$10)) "
		"AND ($11::pg_catalog.interval IS NULL OR f.finished_at OPERATOR(pg_catalog.<=) (jobq_internal.clock()" MINUS "$11)) "
		"AND ($12::pg_catalog.text IS NULL OR sqlstate" EQUALS "$12) "
		/* a deleted dead letter has no time */
		"AND ($3::pg_catalog.int8 IS NULL OR coalesce(f.finished_at" BELOW "before_at OR (f.finished_at" EQUALS "before_at AND id" BELOW "$3), id" BELOW "$3)) "
		"ORDER BY f.finished_at DESC, id DESC LIMIT coalesce($4::pg_catalog.int8, 20)",
		.options = {OPTION_QUEUE, OPTION_KIND, {"before", 0, "ID", "those that ended before this one: the next page"}, OPTION_LIMIT,
		OPTIONS_OF_LISTS,
		{"newer-than", 0, "TIME", "that ended less long ago than this, such as 1 hour"},
		{"older-than", 0, "TIME", "that ended longer ago than this"},
		OPTION_SQLSTATE,
		}
	},
	{
		.name = "retry",.arguments = "ID...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "run dead letters again, or have jobs that wait for an attempt run now",
		.output = OUTPUT_NOTHING,
		.sql = FOR_EACH_ID("jobq.retry(j.id)"),
	},
	{
		.name = "retry-many",.arguments = "",
		.summary = "run dead letters again that fulfil all conditions; print how many",
		.output = OUTPUT_VALUE,.run = run_many,
		.sql = "SELECT jobq.retry_many(",
		.options = {
#include "operate/filters.h"
			OPTION_YES
		}
	},
	{
		.name = "delete",.arguments = "ID...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "delete dead letters",
		.output = OUTPUT_NOTHING,
		.sql = FOR_EACH_ID("jobq.delete(j.id)"),
	},
	{
		.name = "delete-many",.arguments = "",
		.summary = "delete dead letters that fulfil all conditions; print how many",
		.output = OUTPUT_VALUE,.run = run_many,
		.sql = "SELECT jobq.delete_many(",
		.options = {
#include "operate/filters.h"
			OPTION_YES
		}
	},
	{
		.name = "prune",.arguments = "",
		.summary = "delete old finished jobs and dead letters; print how many",
		.output = OUTPUT_VALUE,.run = run_prune,
		.sql = "SELECT jobq.prune($1::pg_catalog.interval, $2::pg_catalog.interval) AS deleted",
		.options = {
			{"older-than", 0, "TIME", "finished jobs of this age, such as 7 days"},
			{"dead-older-than", 0, "TIME", "dead letters of this age"},
			{"dry-run", 0, NULL, "change nothing; print how many"},
			OPTION_YES
		}
	},
	{
		.name = "edit",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "change a waiting job or a dead letter",
		.output = OUTPUT_NOTHING,
		.sql = "SELECT jobq.edit($1::pg_catalog.int8, payload => $2::pg_catalog.jsonb, headers => $3::pg_catalog.jsonb, "
		"queue => $4::pg_catalog.text, max_attempts => $5::pg_catalog.int4, backoff => $6::pg_catalog.text, timeout => $7::pg_catalog.interval, "
		"run_at => $8::pg_catalog.timestamptz, priority => $9::pg_catalog.int4)",
		.options = {
			{"payload", 0, "JSON", "what its handler or consumer gets"},
			{"headers", 0, "JSON", "passed on to the handler"},
			{"queue", 'q', "QUEUE", "the queue that it stands in"},
			{"max-attempts", 0, "N", "how many attempts there are at most, 0 for no limit"},
			{"backoff", 0, "BACKOFF", "how long the next attempt waits"},
			{"timeout", 't', "TIME", "how long an attempt may run"},
			{"run-at", 0, "TIME", "the earliest time at which a waiting job runs"},
			{"priority", 0, "N", "the priority of a waiting job: a smaller number runs first"},
		}
	},
	{
		.name = "edit-many",.arguments = "CHANGES",.min_arguments = 1,.max_arguments = 1,
		.summary = "change waiting jobs that fulfil all conditions, by an object such as {\"priority\": 5}; print how many",
		.output = OUTPUT_VALUE,.run = run_many,
		.sql = "SELECT jobq.edit_many($1::pg_catalog.jsonb",
		.options = {
#include "operate/filters.h"
			OPTION_YES
		}
	},
	{
		.name = "rerun",.arguments = "ID...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "enqueue jobs that are over once more; print the new ids",
		.sql = FOR_EACH_ID("jobq.rerun(j.id, $2::pg_catalog.text) AS new_id"),
		.options = {{"from-step", 0, "STEP", "skip the steps of a durable procedure that were done before this one"}}
	},
	{
		.name = "cancel",.arguments = "ID...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "stop jobs, waiting or running",
		.sql = FOR_EACH_ID("jobq.cancel(j.id) AS cancelled"),
	},
	{
		.name = "signal",.arguments = "JOB NAME [PAYLOAD]",.min_arguments = 2,.max_arguments = 3,
		.summary = "send a signal to a job, named by its id or uuid; print f if the job is over",
		.output = OUTPUT_VALUE,
		.sql = "SELECT CASE WHEN coalesce($4, $5, $6) IS NULL THEN jobq.signal($1::pg_catalog.text, $2::pg_catalog.text, coalesce($3::pg_catalog.jsonb, '{}')) "
		"ELSE jobq.signal($4::pg_catalog.text, $1::pg_catalog.text, $2::pg_catalog.text, coalesce($3::pg_catalog.jsonb, '{}'), "
		"coalesce($5::pg_catalog.text, 'kind'), $6::pg_catalog.text) END",
		.options = {
			{"kind", 'k', "KIND", "JOB is the unique key of a job of this kind"},
			{"scope", 0, "SCOPE", "JOB is a unique key of this scope: kind, queue or database"},
			{"queue", 'q', "QUEUE", "the queue of the job, for the scope queue"},
		}
	},
	{
		.name = "cancel-many",.arguments = "",
		.summary = "cancel jobs that fulfil all conditions; print how many",
		.output = OUTPUT_VALUE,.run = run_many,
		.sql = "SELECT jobq.cancel_many(",
		.options = {
#include "operate/filters.h"
			OPTION_YES
		}
	},
	{
		.name = "queues",.arguments = "",.merges = true,
		.summary = "queues, and how many jobs stand in them, those in trouble first",
		.sql = "SELECT name, mode, paused, ready, scheduled, blocked, running, dead_letters, "
		"pg_catalog.date_trunc('second', jobq_internal.clock()" MINUS "oldest_ready) AS waiting_for, max_running, rate "
		"FROM jobq.queues ORDER BY paused DESC, CASE WHEN oldest_ready" BELOW "(jobq_internal.clock()" MINUS "'1 minute'::pg_catalog.interval) THEN oldest_ready END, name",
	},
	{
		.name = "create-queue",.arguments = "QUEUE",.min_arguments = 1,.max_arguments = 1,
		.summary = "create a queue, or change settings of one that exists",
		.output = OUTPUT_NOTHING,.run = run_call,
		.sql = "SELECT * FROM jobq.create_queue($1::pg_catalog.text",
		.options = {
#include "store/queue_settings.h"
		}
	},
	{
		.name = "alter-queue",.arguments = "QUEUE",.min_arguments = 1,.max_arguments = 1,
		.summary = "change settings of a queue",
		.output = OUTPUT_NOTHING,.run = run_call,
		.sql = "SELECT * FROM jobq.alter_queue($1::pg_catalog.text",
		.options = {
#include "store/queue_settings.h"
		}
	},
	{
		.name = "drop-queue",.arguments = "QUEUE",.min_arguments = 1,.max_arguments = 1,
		.summary = "drop a queue that has no jobs",
		.output = OUTPUT_NOTHING,
		.sql = "SELECT jobq.drop_queue($1::pg_catalog.text, coalesce($2::pg_catalog.bool, false))",
		.options = {{"force", 0, NULL, "with its dead letters"}}
	},
	{
		.name = "pause",.arguments = "QUEUE...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "start no more jobs of queues",
		.output = OUTPUT_NOTHING,
		.sql = "SELECT jobq.pause(q) FROM pg_catalog.unnest($1::pg_catalog.text[]) AS q",
	},
	{
		.name = "resume",.arguments = "QUEUE...",.min_arguments = 1,.max_arguments = 1000,.many = true,
		.summary = "start jobs of queues again",
		.output = OUTPUT_NOTHING,
		.sql = "SELECT jobq.resume(q) FROM pg_catalog.unnest($1::pg_catalog.text[]) AS q",
	},
	{
		.name = "wait-queue",.arguments = "QUEUE",.min_arguments = 1,.max_arguments = 1,
		.summary = "wait until a queue has no job that runs or may run now",
		.run = run_drain,
		.sql = "SELECT jobq.wait_queue($1::pg_catalog.text, coalesce($2::pg_catalog.interval, '365 days'))",
		.options = {{"timeout", 't', "TIME", "as an interval, such as 30s; else for ever"}}
	},
	{
		.name = "kinds",.arguments = "",.merges = true,
		.summary = "kinds of jobs, and what runs them",
		.sql = "SELECT kind, handler, queue, max_attempts, backoff, timeout, max_running, rate, throttle FROM jobq.kinds ORDER BY kind",
	},
	{
		.name = "workers",.arguments = "",.merges = true,
		.summary = "workers and consumers, and what they run",
		.sql = "SELECT type, coalesce(consumer, 'pool ' OPERATOR(pg_catalog.||) pool) AS name, pid, role, state, job_id, kind, attempt, "
		"pg_catalog.date_trunc('second', jobq_internal.clock()" MINUS "job_started_at) AS running_for, progress, message, running, completed, failed "
		"FROM jobq.workers ORDER BY type, pool, pid",
	},
	{
		.name = "restart-workers",.arguments = "",
		.summary = "replace the workers after their current jobs",
		.output = OUTPUT_NOTHING,
		.sql = "SELECT jobq.restart_workers()",
	},
	{
		.name = "schedules",.arguments = "",.merges = true,
		.summary = "schedules, and when they are due",
		.sql = "SELECT name, state, cron, timezone, next_tick, pg_catalog.array_to_string(ARRAY("
		"SELECT t::pg_catalog.text FROM jobq.next_ticks(cron, timezone, next_tick, 2) AS t WHERE pg_catalog.isfinite(next_tick) AND cron OPERATOR(pg_catalog.!~~*) 'RRULE%COUNT%'), ', ') AS next_ticks, last_tick, last_state, kind, last_error FROM jobq.schedules ORDER BY next_tick, name",
	},
	{
		.name = "run-schedule",.arguments = "SCHEDULE",.min_arguments = 1,.max_arguments = 1,
		.summary = "enqueue a job of a schedule now, and print its id",
		.output = OUTPUT_VALUE,
		.sql = "SELECT jobq.run_schedule($1::pg_catalog.text) AS id",
	},
	{
		.name = "batches",.arguments = "",.merges = true,
		.summary = "batches and workflows, the newest first",
		.sql = "SELECT id, name, state, total, ready, scheduled, blocked, running, completed, dead, cancelled, progress "
		"FROM jobq.batches WHERE ($1::pg_catalog.text IS NULL OR state" EQUALS "$1) AND ($2::pg_catalog.int8 IS NULL OR id" BELOW "$2) "
		"ORDER BY id DESC LIMIT coalesce($3::pg_catalog.int8, 20)",
		.options = {{"state", 's', "STATE", "pending, running, failing, cancelling, completed, failed or cancelled", true}, OPTION_BEFORE, OPTION_LIMIT}
	},
	{
		.name = "workflow",.arguments = "ID",.min_arguments = 1,.max_arguments = 1,
		.summary = "the steps of a workflow, each below what it needs",
		.run = run_workflow,
		.sql = "SELECT s.name, s.state, s.job_id, "
		"ARRAY(SELECT pg_catalog.unnest(s.needs)) AS needs, j.attempt, j.error, "
		"s.elements, s.elements_completed, s.elements_dead "
		"FROM jobq.steps s LEFT JOIN jobq.jobs j ON j.id" EQUALS "s.job_id "
		"WHERE s.batch_id" EQUALS "$1::pg_catalog.int8 AND s.element IS NULL ORDER BY s.job_id",
	},
	{
		.name = "top",.arguments = "",.merges = true,
		.summary = "a live screen of queues, workers and dead letters",
		.run = run_top,
		.options = {{"interval", 'i', "TIME", "look again after this time; else 2 s"}}
	},
	{
		.name = "doctor",.arguments = "",.merges = true,
		.summary = "what is wrong or stands still, and what mends it; the exit status is 1 if it is critical",
		.run = run_doctor,
		.sql = "SELECT * FROM jobq.doctor(coalesce($1::pg_catalog.interval, '10 min'))",
		.options = {{"patience", 0, "TIME", "how long a job may wait, or a transaction be open; else 10min"}}
	},
	{
		.name = "metrics",.arguments = "",.merges = true,
		.summary = "metrics for Prometheus, in the format of OpenMetrics",
		.run = run_metrics,
		.sql = "SELECT jobq.metrics()",
	},
	{
		.name = "check",.arguments = "QUEUE:MAX[,...]",.min_arguments = 1,.max_arguments = 1,
		.summary = "one line, and exit status 2 if more than MAX jobs are ready",
		.run = run_check,
		.sql = "SELECT w.name, q.ready, w.most FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.int8[])) AS w(name, most) "
		"LEFT JOIN jobq.queues q ON q.name" EQUALS "w.name",
	},
	{
		.name = "web",.arguments = "",.merges = true,
		.summary = "serve the console, the HTTP interface, and consumers over HTTP",
		.run = run_web,
		.options = {
			{"listen", 'l', "ADDRESS", "address:port; else 127.0.0.1:8047"},
			{"tls-cert", 0, "FILE", "the server's certificate, and those above it"},
			{"tls-key", 0, "FILE", "its key"},
			{"insecure", 0, NULL, "listen beyond this machine without TLS"},
			{"token-file", 0, "FILE", "tokens of programs, and the roles that they stand for"},
			{"read-only", 0, NULL, "change nothing"},
			{"hide-payload", 0, "WHOM", "show no payloads to: all, or these roles, with commas"},
			{"allow-trust", 0, NULL, "log in roles for which the server asks for no password"},
			{"connections", 0, "N", "to the database, for each role; else 4"},
			{"max-clients", 0, "N", "connections of browsers and programs; else 4000"},
			{"timeout", 0, "TIME", "a statement may run so long; else 15 s"},
			{"max-body", 0, "BYTES", "a request may be so large; else 1000000"},
		}
	},
	{.name = NULL}
};

/*
 * Return the command of this name, or NULL.
 */
const Command *
command_find(const char *name)
{
	for (const Command *command = commands; command->name != NULL; command++)
		if (strcmp(command->name, name) == 0)
			return command;
	return NULL;
}
