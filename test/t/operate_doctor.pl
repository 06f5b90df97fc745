# doctor(): each problem is found, and disappears after the action of the hint.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.ready_entries = 1024
max_prepared_transactions = 5
full_page_writes = on
}, allows_streaming => 1);
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The rows that match a pattern.
sub findings
{
	my ($pattern, $before, $as) = @_;

	return join "\n", grep { /$pattern/ } split /\n/,
	  $node->safe_psql('postgres', ($before || '') . q{ SELECT severity, detail, '-> ' || remedy FROM jobq.doctor();},
		$as ? (connstr => $node->connstr('postgres') . " user=$as") : ());
}

sub finds
{
	my ($pattern, $expected, $name) = @_;
	my $found = findings($pattern);

	like($found, qr/\A$expected\z/, $name);
	return;
}

sub is_well
{
	my ($pattern, $name) = @_;

	is(findings($pattern), '', $name);
	return;
}

# Change a setting as the hint says: append the line, then reload or restart.
sub configure
{
	my ($line, $restart) = @_;
	my $offset = -s $node->logfile;

	$node->append_conf('postgresql.conf', $line);
	if ($restart)
	{
		$node->restart;
	}
	else
	{
		$node->reload;
		$node->wait_for_log(qr/received SIGHUP/, $offset);
	}
	return;
}

sub served
{
	return wait_for($node, 'the database is served', q{SELECT EXISTS (SELECT FROM jobq_internal.scheduler_state() WHERE pid IS NOT NULL)});
}

sql(q{CREATE EXTENSION jobq;
CREATE FUNCTION f(payload jsonb) RETURNS void LANGUAGE plpgsql AS 'BEGIN IF payload ? ''error'' THEN RAISE ''oh''; END IF; END';
SELECT jobq.register('f', 'f(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('outside', open => true, mode => 'consumer')});
served();

# The servers of the tests run without these two settings.
finds('fsync', 'critical\|fsync is off: .*-> postgresql.conf: fsync = on \(then reload.*', 'a server that does not sync');
configure('fsync = on');
wait_for($node, 'fsync is on', q{SELECT setting = 'on' FROM pg_settings WHERE name = 'fsync'});
is_well('.', 'all is well');

# Wrong settings.
configure('jobq.start_paused = on');
wait_for($node, 'it is paused', q{SELECT current_setting('jobq.start_paused')::boolean});
finds('paused', 'critical\|jobq.start_paused is on: no job runs\|-> postgresql.conf: jobq.start_paused = off \(then reload: SELECT pg_reload_conf\(\)\)', 'start_paused');
configure("jobq.start_paused = off\nautovacuum = off\njobq.workers = 'a=2; a=2'\njobq.ready_entries = 2048\njobq.poll_interval = 'often'");
wait_for($node, 'the settings are read', q{SELECT current_setting('jobq.workers') = 'a=2; a=2'});
finds('autovacuum', 'warning\|autovacuum is off: .*autovacuum = on .*', 'autovacuum');
finds('same queues', 'warning\|pools 1 and 2 of "jobq.workers" name the same queues: "a"\|-> postgresql.conf: jobq.workers, now \'a=2; a=2\'', 'pools');
finds('ready_entries', 'warning\|jobq.ready_entries is still 1024: .*-> restart the server', 'a setting that waits for a restart');
finds('poll_interval', 'critical\|jobq.poll_interval cannot be set to "often": .*-> .*postgresql.conf, line \d+', 'a setting that is not valid, and its line');
configure("autovacuum = on\njobq.workers = 'a=40'\njobq.ready_entries = 1024\njobq.poll_interval = '1h'");
wait_for($node, 'the settings are read', q{SELECT current_setting('jobq.workers') = 'a=40'});
finds('40 workers', 'warning\|.* "jobq.max_workers" allows 16 .*-> postgresql.conf: jobq.max_workers = 40 \(then restart the server\)', 'more workers than the cluster has');
configure("jobq.max_workers = 40", 1);
finds('40 workers', 'warning\|.* "max_worker_processes" leaves 22 .*-> postgresql.conf: max_worker_processes = 42 \(then restart the server\)', 'more workers than processes');
configure("jobq.workers = 'a=2'\njobq.databases = 'template1'");
wait_for($node, 'the scheduler has left', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.scheduler_state() WHERE pid IS NOT NULL)});
finds('names? database', q{critical\|jobq.databases does not name database "postgres": .*-> postgresql.conf: jobq.databases = 'template1, postgres' .*}, 'a database that is not served');
configure("jobq.databases = 'template1, postgres'");
served();
is_well('.', 'all is well again');

# Queues.
sql(q{SELECT jobq.enqueue('f'), jobq.enqueue('x', queue => 'outside', run_at => now() - interval '1 hour')});
wait_for($node, 'the job is there', q{SELECT EXISTS (SELECT FROM jobq_internal.lane_slots() WHERE queue = 'default')});
finds('default', q{critical\|no pool of jobq.workers serves queue "default", and jobs wait there\|-> postgresql.conf: jobq.workers = 'a=2; default=1' \(then reload.*}, 'a queue without a pool');
finds('outside', 'warning\|a job of the consumer queue "outside" has waited since .*-> start more consumers, such as: jobq work outside .*', 'a queue without consumers');
sql(q{SELECT jobq.pause('outside')});
finds('outside', q{warning\|queue "outside" is paused, and jobs wait there\|-> SELECT jobq.resume\('outside'\)}, 'a queue that is paused');
sql(q{SELECT jobq.resume('outside')});
is(sql(q{SELECT count(*) FROM jobq.doctor('2 hours') WHERE detail LIKE '%outside%'}), 0, 'nothing with more patience');
sql(q{SELECT jobq.cancel_many(queue => 'outside', state => 'waiting')});
configure("jobq.workers = 'a=2; default=1'");
wait_for($node, 'the job has run', q{SELECT NOT EXISTS (SELECT FROM jobq.live_jobs)});
is_well('.', 'all is well: the queues are served');
sql(q{SELECT jobq.alter_queue('default', rate => '1 per hour', max_running => 1); SELECT jobq.enqueue('f', run_at => now() - interval '1 hour') FROM generate_series(1, 2)});
wait_for($node, 'a job waits for its limit', q{SELECT count(*) = 1 FROM jobq.live_jobs WHERE state = 'ready'});
finds('default', q{warning\|a job of queue "default" has waited since .*-> limits delay the jobs.*}, 'a queue that is held back by a limit');
sql(q{SELECT jobq.cancel_many(queue => 'default', state => 'waiting'); SELECT jobq.alter_queue('default', rate => 'none')});

# Slots in shared memory.
sql(q{SELECT jobq.enqueue('x', queue => 'outside') FROM generate_series(1, 205)});
wait_for($node, 'all of them are held',
	q{SELECT c.used = 205 FROM (SELECT count(*) FROM jobq.reserve('{outside}', max_jobs => 205)) r, jobq_internal.capacity() c WHERE c.slots = 'leases'});
finds('slots for leases', 'warning\|205 of 256 slots for leases are in use\|-> postgresql.conf: jobq.ready_entries = 2048 \(then restart the server\)', 'leases');
sql(q{SELECT jobq.cancel(id) FROM jobq.live_jobs});
sql(q{SELECT jobq.create_limiter('limiter ' || i, max_running => 1) FROM generate_series(1, 12) i});
wait_for($node, 'the limiters are loaded', q{SELECT used = 13 FROM jobq_internal.capacity() WHERE slots = 'limits'});
finds('slots for limits', 'warning\|13 of 16 slots for limits are in use\|-> postgresql.conf: jobq.ready_entries = 4096 \(then restart the server\)', 'limiters');
sql(q{SELECT jobq.drop_limiter('limiter ' || i) FROM generate_series(1, 12) i});
wait_for($node, 'the limiters are gone', q{SELECT used = 1 FROM jobq_internal.capacity() WHERE slots = 'limits'});

# Roles and handlers.
sql(q{CREATE ROLE anna; CREATE ROLE boss LOGIN; SELECT jobq.grant_privilege('anna'), jobq.grant_privilege('boss', 'manage'); ALTER SYSTEM SET jobq.start_paused = on; SELECT pg_reload_conf()});
wait_for($node, 'no worker starts', q{SELECT current_setting('jobq.start_paused')::boolean
	AND EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'jobq scheduler' AND wait_event_type = 'Extension')});
sql(q{REVOKE CONNECT ON DATABASE postgres FROM public; GRANT CONNECT ON DATABASE postgres TO boss; SET ROLE anna; SELECT jobq.enqueue('f')});
wait_for($node, 'her job is there', q{SELECT EXISTS (SELECT FROM jobq_internal.lane_slots() WHERE role = 'anna'::regrole)});
finds('connect', 'critical\|role anna has waiting jobs, and may not connect to the database\|-> GRANT CONNECT ON DATABASE postgres TO anna', 'a role that may not connect');
if ($node->pg_version < 17)
{
	finds('log in', 'critical\|role anna has waiting jobs, and may not log in\|-> ALTER ROLE anna LOGIN', 'a role that may not log in');
}
else
{
	is_well('log in', 'a role need not be able to log in');
}
like(findings('anna', '', 'boss'), qr/role anna has waiting jobs/, 'who manages is told whose jobs there are');
like(findings('paused', '', 'boss'), qr/start_paused/, 'but what is wrong with the settings');
like(($node->psql('postgres', 'SET ROLE anna; SELECT * FROM jobq.doctor()'))[2], qr/permission denied/, 'who may not monitor is refused');
sql(q{SELECT jobq.cancel(id) FROM jobq.live_jobs; DELETE FROM jobq_internal.dead_letter; GRANT CONNECT ON DATABASE postgres TO public; ALTER SYSTEM RESET jobq.start_paused; SELECT pg_reload_conf()});
wait_for($node, 'workers start', q{SELECT NOT current_setting('jobq.start_paused')::boolean});
# run_as: each reason why no job of the queue runs.
sql(q{CREATE ROLE agent LOGIN; CREATE ROLE setter LOGIN IN ROLE agent; SELECT jobq.grant_privilege('setter', 'manage');
SET ROLE setter; SELECT jobq.create_queue('proxy', run_as => 'agent')});
my $proxy = 'critical\|queue "proxy" runs its jobs as role agent, which ';
my $again = q{\|-> as a role that can SET ROLE to it: SELECT jobq.alter_queue\('proxy', run_as => '...'\)};
is_well('proxy', 'a queue with run_as');
sql('REVOKE agent FROM setter');
finds('proxy', $proxy . "is not allowed: The role that has set run_as cannot SET ROLE to it any more.$again", 'who has set it lost the role');
like(findings('proxy', '', 'boss'), qr/^$proxy/, 'who manages is told');
sql('GRANT agent TO setter; ALTER ROLE agent SUPERUSER');
finds('proxy', $proxy . "is not allowed: It is a superuser, and the role that has set run_as is none.$again", 'a superuser');
sql(q{ALTER SYSTEM SET jobq.allow_superuser_jobs = off; SELECT jobq.alter_queue('proxy', run_as => 'agent'); SELECT pg_reload_conf()});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'off'});
finds('proxy', $proxy . 'is a superuser, whose jobs are not allowed\|-> postgresql.conf: jobq.allow_superuser_jobs = own \(then reload.*', 'superusers are not allowed');
sql(q{ALTER ROLE agent NOSUPERUSER NOLOGIN; ALTER SYSTEM RESET jobq.allow_superuser_jobs; SELECT pg_reload_conf(); REVOKE CONNECT ON DATABASE postgres FROM public});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'own'});
finds('proxy', ($node->pg_version < 17 ? $proxy . 'may not log in\|-> ALTER ROLE agent LOGIN\n' : '') .
	$proxy . 'may not connect to the database\|-> GRANT CONNECT ON DATABASE postgres TO agent', 'it is not let in');
sql(q{GRANT CONNECT ON DATABASE postgres TO public; ALTER ROLE agent LOGIN});
is_well('proxy', 'mended');
my $gone = sql(q{SET ROLE setter; SELECT jobq.alter_queue('proxy', run_as => 'agent'); RESET ROLE; SET client_min_messages = error; DROP ROLE setter; SELECT 'agent'::regrole::oid}) =~ s/\s//gr;
finds('proxy', $proxy . "is not allowed: The role that has set run_as does not exist any more.$again", 'who has set it was dropped');
sql(q{SELECT jobq.alter_queue('proxy', run_as => 'agent'); SET client_min_messages = error; DROP ROLE agent});
finds('proxy', qq{critical\\|queue "proxy" runs its jobs as role $gone, which was dropped\\|-> SELECT jobq.alter_queue\\('proxy', run_as => '...'\\)}, 'it was dropped itself');
sql(q{SELECT jobq.drop_queue('proxy')});
sql(q{DROP FUNCTION f(jsonb)});
finds('handler', q{critical\|the handler .*f\(.*jsonb\) of kind "f" does not exist\|-> create the function, or register another: SELECT jobq.register\('f', '...'\)}, 'a handler that was dropped');
sql(q{CREATE FUNCTION f(payload jsonb) RETURNS void LANGUAGE plpgsql AS 'BEGIN IF payload ? ''error'' THEN RAISE ''oh''; END IF; END'});
is_well('.', 'all is well: roles and handlers');

# A handler in a schema without USAGE for the monitoring role.
sql(q{CREATE ROLE watcher LOGIN; SELECT jobq.grant_privilege('watcher', 'monitor'); CREATE SCHEMA closed;
CREATE FUNCTION closed.g(payload jsonb) RETURNS void LANGUAGE sql AS ''; SELECT jobq.register('g', 'closed.g(jsonb)')});
is(findings('handler', undef, 'watcher'), '', 'a handler in a schema that the user may not use is there');
sql(q{DROP FUNCTION closed.g(jsonb)});
like(findings('handler', undef, 'watcher'), qr/\Acritical\|the handler closed\.g\(.*jsonb\) of kind "g" does not exist\|.*\z/, 'until it is dropped');
sql(q{SELECT jobq.unregister('g'); DROP SCHEMA closed});

# Schedules and dead letters.
sql(q{BEGIN; SELECT jobq.register('gone', 'f(jsonb)', max_attempts => 1); SELECT jobq.schedule('often', 'every 1 s', 'gone', options => '{"queue": "none"}');
SELECT jobq.enqueue('gone', delay => '1 h'); SELECT jobq.unregister('gone'); COMMIT});
wait_for($node, 'the schedule fails', q{SELECT state = 'failing' FROM jobq.schedules});
finds('schedule', q{warning\|schedule "often" cannot enqueue its job: no handler.*jobq.pause\(schedule => 'often'\)}, 'a schedule that fails');
sql(q{SELECT jobq.unschedule('often'); SELECT jobq.edit(id, run_at => now()) FROM jobq.live_jobs WHERE state = 'scheduled'; SELECT jobq.enqueue('f', '{"error": 1}')});
wait_for($node, 'two have failed', q{SELECT count(*) >= 2 AND NOT EXISTS (SELECT FROM jobq.live_jobs) FROM jobq.dead_letters});
finds('dead letters exist', 'warning\|\d+ dead letters exist, \d+ of them from the last day\|-> SELECT \* FROM jobq.dead_letters.*', 'dead letters');
finds('no handler', q{warning\|\d+ jobs are dead letters because their kind had no handler, such as "gone"\|-> SELECT jobq.register\('gone'.*}, 'dead letters of a kind without handler');
sql(q{SELECT jobq.test_clock('29 days 12 hours')});
finds('within a day', q{notice\|\d+ dead letters are deleted within a day, .*jobq.dead_retention = 90d .*}, 'dead letters that will go');
finds('put the clock', q{warning\|jobq.test_clock\(\) has put the clock .*-> SELECT jobq.test_clock\('0'\)}, 'the clock of tests');
finds('jumped', q{warning\|the clock has jumped forward by 70[78]:\d\d:\d\d: for an hour, nothing is deleted .*}, 'a clock that is not trusted yet');
sql(q{SELECT jobq.test_clock('0'); SELECT jobq.delete_many(state => 'dead')});
is_well('.', 'all is well: nothing has failed');

# Causes for old row versions to stay.
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
sql(q{BEGIN; CREATE TABLE t(); PREPARE TRANSACTION 'later'});
sql(q{SELECT pg_create_physical_replication_slot('left_behind', true)});
like(sql(q{SELECT string_agg(detail || ' -> ' || remedy, E'\n') FROM jobq.doctor('0')}),
	qr/a transaction of process \d+ has been open since .*pg_terminate_backend.*\ntransaction "later" has been prepared since .*ROLLBACK PREPARED 'later'\n.*replication slot "left_behind".*pg_drop_replication_slot\('left_behind'\)$/,
	'transactions and slots');
$session->query_safe('COMMIT');
$session->quit;
sql(q{ROLLBACK PREPARED 'later'});
sql(q{SELECT pg_drop_replication_slot('left_behind')});
is(findings('index', q{BEGIN; UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobq_internal.job_batch'::regclass;}),
	'critical|index jobq_internal.job_batch is not valid|-> REINDEX INDEX jobq_internal.job_batch', 'an index that is not valid');
# other processes may have short transactions
wait_for($node, 'all is well: nothing is left', q{SELECT count(*) = 0 FROM jobq.doctor('0')});

# The same with the program jobq; on a standby; on a server without jobq loaded.
my $jobq = $node->config_data('--bindir') . '/jobq';
my @words = ($jobq, 'doctor', '-w', '-d', $node->connstr('postgres'));
SKIP:
{
	skip 'the program jobq was not built', 3 unless -x $jobq;
	command_like(\@words, qr/^All is well/, 'the program says so');
	configure('jobq.start_paused = on');
	wait_for($node, 'it is paused', q{SELECT current_setting('jobq.start_paused')::boolean});
	command_checks_all(\@words, 1, [qr/^critical  jobq.start_paused is on: no job runs\n {10}postgresql.conf: jobq.start_paused = off /], [qr/^$/], 'what is critical is its exit status');
	configure('jobq.start_paused = off');
	wait_for($node, 'it is not', q{SELECT NOT current_setting('jobq.start_paused')::boolean});
	is(sql(q{SELECT jsonb_typeof($x$} . qx(@words[0 .. 2] --json -d '$words[4]') . q{$x$)}), 'array', 'as JSON');
}

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
is($standby->safe_psql('postgres', 'SELECT severity, detail FROM jobq.doctor()'), 'notice|the server is a standby: no job runs until it is promoted', 'a standby');
$standby->stop;

configure("shared_preload_libraries = ''", 1);
finds('.', 'critical\|jobq is not loaded at server start: no job runs\|-> postgresql.conf: shared_preload_libraries = jobq \(then restart the server\)', 'jobq is not loaded');

# The extension has a later version than the library supports.
sql(q{UPDATE pg_extension SET extversion = '9.9' WHERE extname = 'jobq'});
finds('.', q{critical\|the extension has version 9.9, and the server's library is of version \S+\|-> .*}, 'versions that do not fit');

$node->stop;
no_failed_assertion($node, $standby);
done_testing();
