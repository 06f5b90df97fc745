# Several databases are served.  Commands that need exclusive access to a database succeed without
# preparation by the user.
#
# Runs on each major: commands on databases reach the server's own code.

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
jobq.databases = '*'
jobq.workers = '*=2'
jobq.max_databases = 4
jobq.max_workers = 12
test.slow = on
});
$node->start;

# The memory of a database is not touched before the database is served.
SKIP:
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my ($touched) = (eval { slurp_file("/proc/$postmaster/status") } // '') =~ /^RssShmem:\s+(\d+) kB$/m;

	skip 'the operating system does not say how much memory is used', 1 unless defined $touched;
	cmp_ok(1024 * $touched, '<', $node->safe_psql('postgres', q{SELECT sum(allocated_size) / 2 FROM pg_shmem_allocations WHERE name = 'jobq'}),
		'the postmaster touches no memory of databases');
}

my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, at_database text DEFAULT current_database());
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect (job) VALUES (job.id); END;
CREATE FUNCTION hold(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_advisory_xact_lock(1);
END $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.register('hold', 'hold(jsonb, jobq.job_context)');
};

# Enqueue a job and wait until the job has run.
sub job_runs
{
	my ($dbname, $what) = @_;
	my $id = $node->safe_psql($dbname, q{SELECT jobq.enqueue('note')});
	return is($node->safe_psql($dbname, "SELECT state FROM jobq.wait($id, '5 min')"),
		'completed', $what);
}

sub processes_of
{
	my ($dbname) = @_;
	return qq{SELECT count(*) FROM pg_stat_activity
		WHERE datname = '$dbname' AND backend_type ~ '^jobq'};
}

# Start two jobs that run forever.  Jobs that begin after this call do not.
sub keep_busy
{
	my ($dbname) = @_;

	$node->append_conf('postgresql.conf', 'test.slow = on');
	$node->reload;
	wait_for($node, 'the setting has arrived', q{SELECT current_setting('test.slow') = 'on'}, $dbname);
	$node->safe_psql($dbname, 'SELECT jobq.restart_workers()');
	$node->safe_psql($dbname,
		q{SELECT jobq.enqueue('slow', max_attempts => 1) FROM generate_series(1, 2)});
	wait_for($node, "jobs are running in $dbname",
		qq{SELECT count(*) = 2 FROM pg_stat_activity
		WHERE datname = '$dbname' AND backend_type = 'jobq worker' AND wait_event = 'PgSleep'}, $dbname);
	$node->append_conf('postgresql.conf', 'test.slow = off');
	$node->reload;
	return;
}

#
# Several databases; a new extension is served without a restart.
#
foreach my $dbname ('db1', 'db2', 'Db 3')
{
	$node->safe_psql('postgres', qq{CREATE DATABASE "$dbname"});
	$node->safe_psql($dbname, $setup);
	job_runs($dbname, "CREATE EXTENSION in $dbname starts work");
}
is($node->safe_psql('db1', 'SELECT DISTINCT at_database FROM effect'),
	'db1', 'each database has its own jobs');
is($node->safe_psql('postgres', processes_of('template1')),
	'0', 'templates are left alone');

#
# DROP DATABASE, with idle and with busy workers.
#
$node->safe_psql('postgres', 'DROP DATABASE db2');
ok(1, 'DROP DATABASE with idle workers');

# busy workers must not block DROP DATABASE; only client sessions may
$node->safe_psql('postgres', 'CREATE DATABASE db2');
$node->safe_psql('db2', $setup);
job_runs('db2', 'a new database takes the place of one that was dropped');
$node->safe_psql(
	'db2', q{
CREATE FUNCTION forever(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(600)';
SELECT jobq.register('forever', 'forever(jsonb)');
SELECT jobq.enqueue('forever') FROM generate_series(1, 2)});
wait_for($node, 'jobs are running in db2',
	q{SELECT count(*) = 2 FROM jobq.workers WHERE kind = 'forever'}, 'db2');
$node->safe_psql('postgres', 'DROP DATABASE db2');
ok(1, 'DROP DATABASE with busy workers');

#
# A database left by an interrupted DROP DATABASE is not served.  The log reports this once.
#
{
	my $said = 'database "half" is not served: its DROP DATABASE was interrupted';
	my $offset = -s $node->logfile;

	$node->safe_psql('postgres', 'CREATE DATABASE half');
	$node->safe_psql('half', $setup);
	job_runs('half', 'a database is served');
	# the server would refuse a process that is still about to connect
	wait_for($node, 'its jobs have been counted', 'SELECT jobq_internal.stats_known()', 'half');
	wait_for($node, 'and its processes rest', q{SELECT bool_and(wait_event_type IS NOT DISTINCT FROM 'Extension')
		FROM pg_stat_activity WHERE datname = 'half' AND backend_type ~ '^jobq'}, 'half');
	$node->safe_psql('postgres', q{UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'half'});
	$node->reload;
	$node->wait_for_log(qr/\Q$said\E/, $offset);
	wait_for($node, 'its processes leave', processes_of('half') =~ s/count\(\*\)/count(*) = 0/r);
	$node->reload for 1 .. 3;
	job_runs('db1', 'the others go on');
	my $log = slurp_file($node->logfile, $offset);
	is(scalar(() = $log =~ /\Q$said\E/g), 1, 'an interrupted DROP DATABASE is told once');
	unlike($log, qr/cannot connect to invalid database/, 'nobody tries to connect');
	$node->safe_psql('postgres', 'DROP DATABASE half');
}

#
# A database that cannot be dropped is served again.
#
{
	my $client = $node->background_psql('db1');
	$client->query_safe('SELECT 1');
	my ($rc, $out, $err);

	# on a slow machine, another session may exist for a moment
	for (1 .. 5)
	{
		($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE db1');
		last if $rc == 0 || $err =~ /There is 1 other session/;
	}
	isnt($rc, 0, 'DROP DATABASE with a client fails');
	like($err, qr/There is 1 other session/,
		'and nobody but the client is in the way');
	$client->quit;
	job_runs('db1', 'jobs run after DROP DATABASE has failed');
}

#
# RENAME and TEMPLATE, with idle and with busy workers.
#
$node->safe_psql('postgres', 'ALTER DATABASE db1 RENAME TO db4');
job_runs('db4', 'jobs run after RENAME with idle workers');

my $before = $node->safe_psql('db4', q{SELECT count(*) FROM effect});
$node->safe_psql(
	'db4', q{
CREATE FUNCTION slow(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_sleep(CASE current_setting('test.slow') WHEN 'on' THEN 600 ELSE 0 END);
END $$;
SELECT jobq.register('slow', 'slow(jsonb, jobq.job_context)')});
keep_busy('db4');
$node->safe_psql('postgres', 'ALTER DATABASE db4 RENAME TO db1');
wait_for($node, 'jobs that RENAME interrupted run again',
	q{SELECT count(*) = 0 FROM jobq_internal.job}, 'db1');
is($node->safe_psql('db1', "SELECT count(*) - $before FROM effect"),
	'2', 'and leave their effects once');
is($node->safe_psql('db1', q{SELECT count(*) FROM jobq.dead_letters}),
	'0', 'and are not charged for it');

$node->safe_psql('postgres', 'CREATE DATABASE copy1 TEMPLATE db1');
job_runs('db1', 'jobs run in the original after CREATE DATABASE ... TEMPLATE');
my $waits = $node->safe_psql('copy1', q{SELECT jobq.enqueue('note')});
wait_for($node, 'the copy is paused', q{SELECT EXISTS (SELECT FROM jobq.doctor() WHERE severity = 'critical' AND detail LIKE 'the database is a copy%')},
	'copy1');
is($node->safe_psql('copy1', "SELECT state FROM jobq.wait($waits, '1 ms')"), 'ready', 'jobs wait in the copy after CREATE DATABASE ... TEMPLATE');
like(slurp_file($node->logfile), qr/database "copy1" is a copy of a database served elsewhere: none of its jobs starts/, 'and the log says why');
$node->safe_psql('postgres', 'ALTER DATABASE copy1 RENAME TO copy3');
$node->safe_psql('copy3', 'SELECT jobq.adopt()');
is($node->safe_psql('copy3', "SELECT state FROM jobq.wait($waits, '10 min')"), 'completed', 'until it is adopted');
$node->safe_psql('postgres', 'ALTER DATABASE copy3 RENAME TO copy1');
job_runs('copy1', 'and then it runs them under any name');
$node->safe_psql('postgres', 'DROP DATABASE copy1');

keep_busy('db1');
$node->safe_psql('postgres', 'CREATE DATABASE copy2 TEMPLATE db1');
wait_for($node, 'jobs that CREATE DATABASE interrupted run again',
	q{SELECT count(*) = 0 FROM jobq_internal.job}, 'db1');
is($node->safe_psql('db1', q{SELECT count(*) FROM jobq.dead_letters}),
	'0', 'and are not charged for it');
$node->safe_psql('postgres', 'DROP DATABASE copy2');

#
# A command without sufficient privileges stops no process.
#
{
	my @pids = worker_pids($node, 'db1');
	my $scheduler = scheduler_pid($node, 'db1');

	$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN');
	foreach my $command (
		'DROP DATABASE db1',
		'ALTER DATABASE db1 RENAME TO db5',
		'CREATE DATABASE db5 TEMPLATE db1')
	{
		my ($rc) = $node->psql('postgres', $command,
			extra_params => [ '-U', 'nobody' ]);
		isnt($rc, 0, "a role without privileges cannot $command");
	}
	is(scheduler_pid($node, 'db1'), $scheduler, 'and the scheduler stays');
	# a worker that was still starting may have been added
	my %now = map { $_ => 1 } worker_pids($node, 'db1');
	is_deeply([ grep { $now{$_} } @pids ], \@pids, 'and the workers stay');
}

#
# DROP EXTENSION and CREATE EXTENSION.
#
$node->safe_psql('db1', q{SELECT jobq.pause('default'); SELECT jobq.enqueue('note')});
$node->safe_psql('db1', q{
DROP FUNCTION note, hold, slow;
DROP EXTENSION jobq;
DROP TABLE effect});
is( $node->safe_psql('db1', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'jobq'}),
	'0', 'DROP EXTENSION removes everything, partitions of the archive too');
$node->safe_psql('db1', $setup);
is($node->safe_psql('db1', q{SELECT jobq.pause('default', kind => 'mail') \g /dev/null
SELECT paused_kinds FROM jobq.queues WHERE name = 'default';
SELECT jobq.resume('default', kind => 'mail') \g /dev/null}), '{mail}', 'a kind is paused in "default", which nobody has used yet');
job_runs('db1', 'jobs run after DROP and CREATE EXTENSION');
job_runs('Db 3', 'other databases are not concerned');

# The same with a pause in between, in which the processes notice the drop.
$node->safe_psql('db1', q{
DROP FUNCTION note, hold;
DROP EXTENSION jobq;
DROP TABLE effect});
$node->safe_psql('postgres', q{
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'jobq scheduler' AND datname = 'db1'});
wait_for($node, 'no process stays in a database without the extension',
	"SELECT count(*) = 0 FROM (" . processes_of('db1') . ") p(n) WHERE n > 0");
$node->safe_psql('db1', $setup);
job_runs('db1', 'jobs run after the extension was created again');

# Nothing changes after a rollback to a savepoint.
$node->safe_psql('db1', q{
SELECT jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.enqueue('call', queue => 'outside');
BEGIN;
SAVEPOINT s;
DROP EXTENSION jobq CASCADE;
CREATE EXTENSION jobq;
ROLLBACK TO s;
COMMIT});
is($node->safe_psql('db1', q{SELECT kind FROM jobq.reserve('{outside}', wait => '5 min') r, jobq.ack(r.id, r.token)}),
	'call', 'consumers go on after CREATE EXTENSION was rolled back');
job_runs('db1', 'and so do workers');

#
# More databases than slots.
#
foreach my $dbname ('db6', 'db7', 'db8')
{
	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, $setup);
}
$node->wait_for_log(qr/jobq serves no more than 4 databases/);
job_runs('db1', 'too many databases: those that have a place are served');

# Also when databases are served again, and a database without a slot precedes in the catalog.
for (1 .. 10)
{
	$node->safe_psql('postgres', 'ALTER DATABASE db1 CONNECTION LIMIT -1');
	last if $node->safe_psql('postgres',
		q{SELECT ctid > (SELECT max(ctid) FROM pg_database WHERE datname <> 'db1') FROM pg_database WHERE datname = 'db1'}) eq 't';
}
{
	my $pid = scheduler_pid($node, 'db1');

	signal_process('TERM', $pid);
	wait_for_exit($pid);
}
job_runs('db1', 'too many databases: they are served again, in whatever order they are found');

#
# A database removed from the list is left, and a database added to the list is served.
#
$node->append_conf('postgresql.conf', q{jobq.databases = 'postgres, "Db 3"'});
$node->reload;
wait_for($node, 'all processes leave a database that is not served any more',
	'SELECT count(*) = 0 FROM (' . processes_of('db1') . ') p(n) WHERE n > 0');
job_runs('Db 3', 'a database that stays on the list is served');
my $id = $node->safe_psql('db1', q{SELECT jobq.enqueue('note')});
$node->append_conf('postgresql.conf', q{jobq.databases = 'db1, db8'});
$node->reload;
is($node->safe_psql('db1', "SELECT state FROM jobq.wait($id, '5 min')"),
	'completed', 'a database that is added to the list is served');
job_runs('db8', 'and so is one that found no place before');

$node->stop;
no_failed_assertion($node);

#
# If all databases are configured, a database without the extension does not keep a slot from a
# database with the extension.
#
my $few = jobq_node('few', q{
jobq.databases = '*'
jobq.workers = '*=1'
jobq.max_databases = 2
});
$few->start;
$node = $few;
$few->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(plain1 plain2 app_new);
wait_for($few, 'those without the extension have been looked at', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'});
$few->safe_psql('app_new', $setup);
job_runs('app_new', 'few places: the only database with the extension is served');
unlike(slurp_file($few->logfile), qr/jobq serves no more than/, 'few places: they are enough');
$few->safe_psql('plain2', $setup);
job_runs('plain2', 'few places: so is another in which it is created');
job_runs('app_new', 'few places: and the first one still is');

#
# A database is served as soon as the name is in the list, whether or not it was served before.
#
$few->append_conf('postgresql.conf', q{jobq.databases = 'app, copy'});
$few->reload;
wait_for($few, 'the others are left', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type IN ('jobq scheduler', 'jobq worker')});
$few->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE app_new');
$few->safe_psql('copy', 'SELECT jobq.adopt()');
job_runs('copy', 'a copy of a database that is not served is, once it is adopted');
$few->safe_psql('postgres', 'ALTER DATABASE app_new RENAME TO app');
job_runs('app', 'a database that gets a name of the list is served');

#
# A database is dropped while its worker is starting, and the worker never comes.  The slot of the
# database is free after the timeout for a starting worker.
#
SKIP:
{
	skip 'this server has no injection points', 1
	  if $few->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	$few->append_conf('postgresql.conf', q{jobq.databases = 'app, copy, plain2'});
	$few->safe_psql('postgres', q{CREATE EXTENSION injection_points});
	$few->safe_psql('copy', q{SELECT jobq.restart_workers()});
	wait_for($few, 'no worker is there', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'jobq worker' AND datname = 'copy'});
	$few->safe_psql('postgres', q{SELECT injection_points_attach('jobq-worker-begin', 'wait')});
	$few->safe_psql('copy', q{SELECT jobq.enqueue('note')});
	wait_for($few, 'a worker is being started', q{SELECT count(*) = 1 FROM jobq.workers WHERE state = 'starting'}, 'copy');
	$few->safe_psql('postgres', q{SELECT injection_points_detach('jobq-worker-begin')});
	$few->safe_psql('postgres', 'DROP DATABASE copy');
	$few->safe_psql('app', q{SELECT jobq.test_clock('11 s')});
	$few->reload;
	job_runs('plain2', 'the place of a database whose worker never came is given to another');
	$few->safe_psql('postgres', q{SELECT injection_points_wakeup('jobq-worker-begin')});
}

$few->stop;
no_failed_assertion($few);
done_testing();
