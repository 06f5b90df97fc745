# The scripts in examples/migrate move each waiting job of another queue once, keep what has an equivalent, and tell what stays.
# The tables have the shape that the other queues give them.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $scripts = "$FindBin::RealBin/../../examples/migrate";
my $node = jobq_node('main', "jobq.sql_databases = 'other'");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION jobq');
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PGOPTIONS} = '-c jobq.create_queues=consumer';		# as of a role whose jobs are run by programs

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Run a script; returns the rows that it prints.
sub migrate
{
	my ($script, @settings) = @_;
	my ($out, $err) = run_command([ 'psql', '-XqAt', (map { ('-v', $_) } @settings), '-f', "$scripts/$script.sql" ]);

	is($err, '', "$script: no errors");
	return $out;
}

# The jobs of a queue, in the order of their enqueueing.
sub jobs
{
	my ($columns, $condition) = @_;

	return sql("SELECT $columns FROM jobq.jobs WHERE finished_at IS NULL AND $condition ORDER BY id");
}

#
# A table of one's own.
#
sql(q{CREATE TABLE jobs (id bigint PRIMARY KEY, kind text, payload jsonb, queue text, priority int, run_at timestamptz, attempts int, max_attempts int, status text)});
sql(q{INSERT INTO jobs VALUES (1, 'mail', '{"to": 1}', 'own', 5, '2030-01-01 00:00+00', 1, 4, 'waiting'),
	(2, 'mail', '{"to": 2}', 'own', 0, now(), 0, 3, 'waiting'), (3, 'mail', '{"to": 3}', 'own', 0, now(), 1, 3, 'running'),
	(4, 'mail', '{"to": 4}', 'own', 0, now(), 3, 3, 'failed'), (5, repeat('k', 128), '{}', 'own', 0, now(), 0, 3, 'waiting'),
	(6, 'mail', '{"to": 6}', 'own', 0, now(), 0, 3, 'waiting')});
my $before = sql('SELECT array_agg(j ORDER BY id) FROM jobs j');
like(migrate('skip-locked', 'dry_run=1'), qr/^mail\|own\|\|3\|1$/m, 'a dry run tells what it would do');
is(sql('SELECT array_agg(j ORDER BY id) FROM jobs j'), $before, 'and changes nothing');
is(sql('SELECT count(*) FROM jobq.live_jobs'), 0, 'neither here nor there');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; SELECT FROM jobs WHERE id = 6 FOR UPDATE');
my $out = migrate('skip-locked');
like($out, qr/^mail\|own\|\|2\|1$/m, 'jobs are moved');
like($out, qr/^mail\|own\|locked by another session\|1\|6$/m, 'one that a worker has locked stays');
like($out, qr/^k{128}\|own\|[^|]*127 bytes[^|]*\|1\|5$/m, 'one that jobq refuses stays, with the reason');
like($out, qr/^\|\|is failed\|1\|4\n\|\|is running\|1\|3$/m, 'others stay, as the mapping says');
is(jobs(q{kind, payload, priority, max_attempts, run_at = '2030-01-01 00:00+00'}, q{queue = 'own'}),
	qq(mail|{"to": 2}|0|3|f\nmail|{"to": 1}|-5|3|t), 'with priority, time, and the attempts that are left');
$locker->query_safe('COMMIT');
migrate('skip-locked');
migrate('skip-locked');
is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'own'}), 3, 'a job is moved once');
is(sql('SELECT string_agg(id::text, \' \' ORDER BY id) FROM jobs'), '3 4 5', 'and is gone from the table');
sql('DROP TABLE jobs');

#
# Laravel.
#
sql(q{CREATE TABLE jobs (id bigserial PRIMARY KEY, queue varchar(255) NOT NULL, payload text NOT NULL, attempts smallint NOT NULL,
		reserved_at int, available_at int NOT NULL, created_at int NOT NULL);
	CREATE TABLE failed_jobs (id bigserial PRIMARY KEY, uuid varchar(255) UNIQUE NOT NULL, connection text NOT NULL, queue text NOT NULL,
		payload text NOT NULL, exception text NOT NULL, failed_at timestamp(0) DEFAULT CURRENT_TIMESTAMP NOT NULL)});
my $long = 'invoices of customer ' . 'x' x 200;
sql(qq{INSERT INTO jobs (queue, payload, attempts, reserved_at, available_at, created_at)
	SELECT q, p, a, extract(epoch FROM now())::int - r, 2000000000, 0 FROM (VALUES
		('web', '{"displayName":"App\\\\Jobs\\\\Pay","uuid":"u","data":{"command":"a\\u0000b\\\\u0000\\\\\\u0000","prefix":"base64:x"},"amount":12345678901234567890.0123}', 2, NULL),
		('$long', '{"displayName":"App\\\\Jobs\\\\Mail"}', 0, NULL),
		('web', '{"displayName":"running"}', 1, 0), ('web', '{"displayName":"lost"}', 1, 100000),
		('web', 'no json', 0, NULL), ('web', '{"a\\u0000": 1}', 0, NULL)) AS v (q, p, a, r);
	INSERT INTO failed_jobs (uuid, connection, queue, payload, exception) VALUES ('f', 'database', 'web', '{}', 'e'), ('g', 'redis', 'web', '{}', 'e')});
$out = migrate('laravel');
like($out, qr/^web\|\|2\|1$/m, 'Laravel: jobs are moved');
like($out, qr/^web\|reserved by a worker\|1\|3$/m, 'one that a worker has stays');
like($out, qr/^web\|invalid input syntax for type json\|1\|5$/m, 'so does one that is no JSON');
like($out, qr/^web\|a key of the payload has a zero byte\|1\|6$/m, 'and one with a key that jsonb does not have');
is(jobs('kind, payload', q{kind = 'App\Jobs\Pay'}),
	q(App\Jobs\Pay|{"data": {"prefix": "base64:YmFzZTY0Ong=", "command": "base64:YQBiXHUwMDAwXAA="}, "uuid": "u", "amount": 12345678901234567890.0123, "attempts": 2, "displayName": "App\\\\Jobs\\\\Pay"}),
	'a payload is as the driver stores it');
is(jobs(q{queue, max_attempts, (SELECT backoff FROM jobq_internal.job j WHERE j.id = jobs.id), headers, extract(epoch FROM run_at)::bigint}, q{kind = 'App\Jobs\Mail'}) =~ s/~[0-9a-f]{16}/~hash/r,
	'invoices of customer xxxxxxxxxxxxx~hash|0|fixed 1s|{"laravel": "jobq"}|2000000000', 'so are its options');
is(sql(q{SELECT string_agg(uuid || ' ' || connection, ' ' ORDER BY id) FROM failed_jobs}), 'f jobq g redis', 'failed jobs are retried in jobq');

# Jobs that Laravel itself has enqueued are run by the driver.
SKIP:
{
	my @php = ('php', "$FindBin::RealBin/../consumers/laravel.php");

	skip 'illuminate/queue is not installed', 1 unless -e '/usr/share/php/Illuminate/Database/autoload.php';
	sql('DELETE FROM jobs');
	$ENV{FOLDER} = PostgreSQL::Test::Utils::tempdir();
	my ($text, $err) = run_command([ @php, 'database', 'attempts', 2 ]);
	is($err, '', 'Laravel enqueues into its table');
	like($text, qr/^[0-9a-f-]{36}$/, 'a job');
	sql("INSERT INTO failed_jobs (uuid, connection, queue, payload, exception) SELECT '$text', 'database', 'again', payload, 'no route' FROM jobs");
	like(migrate('laravel', 'connection=default'), qr/^laravel\|\|1\|/m, 'it is moved');
	is(sql("SELECT queue, headers FROM jobq.live_jobs WHERE payload ->> 'uuid' = '$text'"), 'laravel|{"laravel": "default"}', 'to the queue of its name');
	my $run = start_program(@php, 'work', 'laravel');
	wait_for($node, 'and run', "SELECT state = 'completed' FROM jobq.jobs WHERE payload ->> 'uuid' = '$text'");
	is(slurp_file("$ENV{FOLDER}/attempt of attempts") =~ /^(\d+)/ && $1, 3, 'after the attempts that it had before');
	$run->{handle}->signal('TERM');
	is(finish($run), 0, 'the worker ends');

	$ENV{FAILED_TABLE} = 'failed_jobs';
	($out) = run_command([ @php, 'queue:failed' ]);
	like($out, qr/$text.*again.*Tests.Work/, 'queue:failed shows what had failed before');
	($out) = run_command([ @php, 'queue:retry', "id=$text" ]);
	like($out, qr/has been pushed back/, 'queue:retry takes it');
	is(sql(q{SELECT kind, state FROM jobq.jobs WHERE queue = 'again'}), 'Tests\\Work|ready', 'as a job of jobq');
	is(sql("SELECT count(*) FROM failed_jobs WHERE uuid = '$text'"), 0, 'and from the table');
}

#
# graphile-worker.
#
delete $ENV{PGOPTIONS};
sql(q{CREATE SCHEMA graphile_worker;
	CREATE TABLE graphile_worker._private_tasks (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, identifier text NOT NULL UNIQUE);
	CREATE TABLE graphile_worker._private_job_queues (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, queue_name text NOT NULL UNIQUE,
		locked_at timestamptz, locked_by text, is_available boolean GENERATED ALWAYS AS (locked_at IS NULL) STORED NOT NULL);
	CREATE TABLE graphile_worker._private_jobs (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, job_queue_id int, task_id int NOT NULL,
		payload json DEFAULT '{}' NOT NULL, priority smallint DEFAULT 0 NOT NULL, run_at timestamptz DEFAULT now() NOT NULL,
		attempts smallint DEFAULT 0 NOT NULL, max_attempts smallint DEFAULT 25 NOT NULL, last_error text,
		created_at timestamptz DEFAULT now() NOT NULL, updated_at timestamptz DEFAULT now() NOT NULL, key text UNIQUE,
		locked_at timestamptz, locked_by text, revision int DEFAULT 0 NOT NULL, flags jsonb,
		is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED NOT NULL);
	INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('send'), ('pay');
	INSERT INTO graphile_worker._private_job_queues (queue_name, locked_at) VALUES ('a', NULL), ('b', now());
	INSERT INTO graphile_worker._private_jobs (job_queue_id, task_id, payload, priority, run_at, attempts, max_attempts, key, locked_at, flags, last_error) VALUES
		(1, 1, '{"n": 1}', -3, '2030-01-01 00:00+00', 5, 25, 'k', NULL, '{"gpu": true, "eu": true}', NULL),
		(NULL, 1, '{"n": 2}', 0, now(), 0, 25, NULL, NULL, NULL, NULL),
		(NULL, 1, '{"n": 3}', 0, now(), 1, 25, NULL, now(), NULL, NULL),
		(2, 1, '{"n": 4}', 0, now(), 0, 25, NULL, NULL, NULL, NULL),
		(NULL, 1, '{"n": 5}', 0, now(), 25, 25, NULL, NULL, NULL, 'no route'),
		(NULL, 1, '{"n": 6}', 0, now(), 1, 25, NULL, now() - interval '5 hours', NULL, NULL),
		(NULL, 2, '{"n": "\u0000"}', 0, now(), 0, 25, NULL, NULL, NULL, NULL),
		(NULL, 2, '{"n": 8}', 0, now(), 0, 25, 'taken', NULL, NULL, NULL)});
sql(q{SELECT jobq.create_queue('tasks', mode => 'consumer'), jobq.enqueue('other', queue => 'tasks', unique_key => 'taken', uniqueness => '{"scope": "database"}')});
$out = migrate('graphile-worker', 'queue=tasks');
like($out, qr/^send\|\|3\|1$/m, 'graphile-worker: jobs are moved, also one whose worker is lost');
like($out, qr/^send\|runs\|1\|3$/m, 'one that runs stays');
like($out, qr/^send\|a job of queue_name "b" runs\|1\|4$/m, 'so does one that would run beside another of its queue');
like($out, qr/^send\|has failed for good: no route\|1\|5$/m, 'and one without attempts');
like($out, qr/^pay\|unsupported Unicode escape sequence\|1\|7$/m, 'and one that jsonb does not take');
like($out, qr/^pay\|job \d+ has the unique key "taken"\|1\|8$/m, 'and one whose key is held');
is(jobs(q{kind, payload, priority, run_at = '2030-01-01 00:00+00', max_attempts, unique_key, unique_scope, group_key, tags}, q{queue = 'tasks' AND kind = 'send'}),
	"send|{\"n\": 1}|-3|t|20|k|database|a|{eu,gpu}\nsend|{\"n\": 2}|0|f|25||||\nsend|{\"n\": 6}|0|f|24||||", 'with all that has an equivalent');
migrate('graphile-worker', 'queue=tasks');
is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE kind = 'send'}), 3, 'a job is moved once');
is(sql('SELECT string_agg(id::text, \' \' ORDER BY id) FROM graphile_worker._private_jobs'), '3 4 5 7 8', 'and is gone from the table');
sql(q{UPDATE graphile_worker._private_jobs SET locked_at = NULL WHERE id = 3});
like(migrate('graphile-worker'), qr/^send\|no handler is registered for kind "send"\|1\|3$/m, 'a kind needs a handler, or a queue for consumers');

#
# pgmq: of a version without headers, and of a later one.
#
sql(q{CREATE SCHEMA pgmq;
	CREATE TABLE pgmq.meta (queue_name varchar UNIQUE NOT NULL, is_partitioned boolean NOT NULL, is_unlogged boolean NOT NULL, created_at timestamptz DEFAULT now() NOT NULL);
	CREATE TABLE pgmq.q_mail (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
		vt timestamptz NOT NULL, message jsonb);
	CREATE TABLE pgmq.a_mail (msg_id bigint PRIMARY KEY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
		archived_at timestamptz DEFAULT now() NOT NULL, vt timestamptz NOT NULL, message jsonb);
	CREATE TABLE pgmq.q_orders (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL,
		last_read_at timestamptz, vt timestamptz NOT NULL, message jsonb, headers jsonb);
	CREATE TABLE pgmq.a_orders (msg_id bigint PRIMARY KEY, read_ct int DEFAULT 0 NOT NULL, enqueued_at timestamptz DEFAULT now() NOT NULL, last_read_at timestamptz,
		archived_at timestamptz DEFAULT now() NOT NULL, vt timestamptz NOT NULL, message jsonb, headers jsonb);
	INSERT INTO pgmq.meta VALUES ('mail', false, false), ('Orders', false, false);
	INSERT INTO pgmq.q_mail (read_ct, vt, message) VALUES (0, now(), '{"n": 1}'), (2, now(), '{"n": 2}'), (1, now() + interval '1 hour', '{"n": 3}'),
		(0, '2030-01-01 00:00+00', '{"n": 4}'), (0, now(), NULL);
	INSERT INTO pgmq.a_mail (msg_id, vt, message) VALUES (100, now(), '{}');
	INSERT INTO pgmq.q_orders (vt, message, headers) VALUES (now(), '{"n": 5}', '{"x-pgmq-group": "g", "trace": "t"}'), (now(), '{"n": 6}', NULL)});
$out = migrate('pgmq', 'queue=mail');
like($out, qr/^mail\|\|3\|1$/m, 'pgmq: messages are moved');
like($out, qr/^mail\|a reader has it\|1\|3$/m, 'one that is read stays');
like($out, qr/^mail\|[^|]*payload[^|]*null[^|]*\|1\|5$/m, 'so does one without content');
like($out, qr/^mail\|is archived\|1\|100$/m, 'and the archive');
is(jobs(q{kind, payload, headers, run_at = '2030-01-01 00:00+00'}, q{queue = 'mail'}),
	"mail|{\"n\": 1}|{\"read_ct\": 0}|f\nmail|{\"n\": 2}|{\"read_ct\": 2}|f\nmail|{\"n\": 4}|{\"read_ct\": 0}|t", 'with the time of a delayed one');
is(sql(q{SELECT count(*) FROM pgmq.q_orders}), 2, 'other queues are left');
migrate('pgmq');
is(jobs('group_key, headers', q{queue = 'Orders'}), qq(g|{"trace": "t", "read_ct": 0, "x-pgmq-group": "g"}\n|{"read_ct": 0}), 'headers come along, and a group');
migrate('pgmq');
is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE queue IN ('mail', 'Orders')}), 5, 'a message is moved once');

#
# pg_cron.
#
sql(q{CREATE ROLE reporter; CREATE ROLE nobody; SELECT jobq.grant_privilege('reporter', 'sql');
	CREATE SCHEMA cron; CREATE SEQUENCE cron.jobid_seq;
	CREATE TABLE cron.job (jobid bigint PRIMARY KEY DEFAULT nextval('cron.jobid_seq'), schedule text NOT NULL, command text NOT NULL,
		nodename text NOT NULL DEFAULT 'localhost', nodeport int NOT NULL DEFAULT 5432, database text NOT NULL DEFAULT current_database(),
		username text NOT NULL DEFAULT current_user, active boolean NOT NULL DEFAULT true, jobname text)});
sql('CREATE DATABASE other');
sql(q{INSERT INTO cron.job (schedule, command, jobname, username, database, nodename, active) VALUES
	('30 3 * * 1-5', 'DELETE FROM t', 'sweep', 'reporter', 'postgres', 'localhost', true),
	('0 4 * * *', 'VACUUM;', NULL, current_user, 'postgres', 'localhost', true),
	('30 seconds', 'SELECT 1', 'often', current_user, 'postgres', '', true),
	('0 0 $ * *', 'SELECT 2', 'last day', current_user, 'other', 'localhost', true),
	('@reboot', 'SELECT 3', 'boot', current_user, 'postgres', 'localhost', true),
	('0 5 * * *', 'SELECT 4', 'off', current_user, 'postgres', 'localhost', false),
	('0 5 * * *', 'SELECT 5', 'far', current_user, 'postgres', 'far.example.com', true),
	('0 5 * * *', 'SELECT 6', 'theirs', 'nobody', 'postgres', 'localhost', true),
	('0 5 * * *', 'SELEC 7', 'typo', current_user, 'postgres', 'localhost', true)});
$out = migrate('pg_cron', 'queue=nightly');
like($out, qr/^1\|sweep\|30 3 \* \* 1-5\|\n2\|pg_cron 2\|0 4 \* \* \*\|\n3\|often\|every 30 seconds\|\n4\|last day\|0 0 L \* \*\|$/m, 'pg_cron: jobs are moved');
like($out, qr/^5\|boot\|\@reboot\|jobq has no job for the start of the server$/m, 'a job at the start stays');
like($out, qr/^6\|off\|.*\|is not active$/m, 'so does one that is not active');
like($out, qr/^7\|far\|.*\|runs on another host, "far.example.com"$/m, 'and one of another host');
like($out, qr/^8\|theirs\|.*\|permission denied.*$/m, 'and one of a role without the privilege');
like($out, qr/^9\|typo\|.*\|syntax error.*$/m, 'and one that is no statement');
is(sql(q{SELECT name, cron, payload, role, timezone, missed, overlap FROM jobq.schedules ORDER BY name}), <<'END' =~ s/\n$//r, 'with zone, role, and the rules of pg_cron');
last day|0 0 L * *|{"sql": "SELECT 2", "database": "other"}|postgres|GMT|skip|queue
often|every 30 seconds|{"sql": "SELECT 1"}|postgres|GMT|skip|queue
pg_cron 2|0 4 * * *|{"sql": "VACUUM;", "transaction": false}|postgres|GMT|skip|queue
sweep|30 3 * * 1-5|{"sql": "DELETE FROM t"}|reporter|GMT|skip|queue
END
is(sql('SELECT string_agg(jobid::text, \' \' ORDER BY jobid) FROM cron.job WHERE active'), '5 7 8 9', 'a moved job is not active in pg_cron');
is(sql(q{SELECT DISTINCT options FROM jobq.schedules}), '{"queue": "nightly"}', 'in the queue that was named');
migrate('pg_cron');
is(sql('SELECT count(*) FROM jobq.schedules'), 4, 'a job is moved once');

$node->stop;
no_failed_assertion($node);
done_testing();
