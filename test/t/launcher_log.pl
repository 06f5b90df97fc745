# The log reports a start, settings that look like mistakes, and a stop.

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
jobq.databases = 'postgres, app, nowhere, template1'
jobq.workers = 'high,default=2; reports=1; *=1'
});
my $offset = 0;

sub setting
{
	my ($line) = @_;
	$node->append_conf('postgresql.conf', $line);
	$node->reload;
	return;
}

sub is_logged
{
	my ($text, $what) = @_;
	$node->wait_for_log(qr/\Q$text\E/, $offset);
	my $n = () = slurp_file($node->logfile, $offset) =~ /\Q$text\E/g;
	return is($n, 1, "$what: once");
}

# Wait until the launcher has read all settings and databases again.
sub launcher_looks
{
	my $seen = 'SELECT pid FROM pg_stat_activity WHERE backend_type = ';
	my $pid = $node->safe_psql('app', 'SELECT pid FROM jobq_internal.scheduler_state()');
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	return wait_for($node, 'the launcher has looked',
		"SELECT pid <> $pid AND complete FROM jobq_internal.scheduler_state()", 'app');
}

#
# A start.
#
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE app');
my $setup = q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('note', 'note(jsonb)');
SELECT jobq.register('hold', 'hold(jsonb)');
};
$node->safe_psql($_, $setup) foreach 'postgres', 'app';
is_logged(
	qq{jobq serves database "$_": pools "high,default=2; reports=1; *=1" with 4 workers; roles with due jobs: none},
	"$_ is served")
  foreach 'postgres', 'app';

$node->safe_psql('app', q{
CREATE ROLE clerk LOGIN;
GRANT CREATE ON SCHEMA public TO clerk;
SELECT jobq.grant_privilege('clerk');
ALTER SYSTEM SET jobq.start_paused = on});
$node->restart;
$node->safe_psql('app', q{
SELECT jobq.enqueue('note');
SET ROLE clerk;
SELECT jobq.enqueue('note')});
$node->stop;
$offset = -s $node->logfile;
$node->start;
$node->wait_for_log(
	qr/jobq serves database "app": .* none of which starts while "jobq.start_paused" is on; roles with due jobs: (clerk, \w+|\w+, clerk)\n/, $offset);
ok(1, 'the roles that have jobs are named');
$node->safe_psql('postgres', 'ALTER SYSTEM RESET jobq.start_paused');
$node->reload;
wait_for($node, 'and they run', 'SELECT count(*) = 0 FROM jobq_internal.job', 'app');

#
# Names of databases.
#
is_logged('database "nowhere" of "jobq.databases" does not exist', 'a database that does not exist');
is_logged('database "template1" of "jobq.databases" is not served', 'a template');
launcher_looks();
launcher_looks();
is_logged('database "nowhere" of "jobq.databases" does not exist', 'and not in each round');
setting(q{jobq.databases = 'app'});
launcher_looks();
$offset = -s $node->logfile;
setting(q{jobq.databases = 'app, nowhere'});
is_logged('database "nowhere" of "jobq.databases" does not exist', 'again after it was corrected');
setting(q{jobq.databases = 'app'});

#
# Pools.
#
unlike(slurp_file($node->logfile), qr/LOG:  (no worker serves|pools? \d)|"jobq.workers" asks/,
	'nothing is strange about good pools');
my $unserved = $node->safe_psql('app', q{SELECT jobq.enqueue('note', queue => 'elsewhere', delay => '1h')});
my $hidden = $node->safe_psql('app', q{SELECT jobq.enqueue('note', queue => 'manual', delay => '1h')});

sub wait_says
{
	my ($id, $pattern, $what) = @_;
	my ($rc, $out, $err) = $node->psql('app', "SELECT state FROM jobq.wait($id, '10ms')");
	is($out, 'ready', "$what: the job waits");
	return like($err, $pattern, "$what: wait() says why");
}

$offset = -s $node->logfile;
setting(q{jobq.workers = 'manual=0; a=1; a=2; b,c,b=1'});
is_logged('pools 2 and 3 of "jobq.workers" name the same queues: "a"', 'two pools of the same');
is_logged('pool 4 of "jobq.workers" names queue "b" twice', 'a queue that is named twice');
is_logged('no worker serves queue "manual": its pool in "jobq.workers" has 0 workers', 'a pool without workers');
is_logged('no worker serves queues that "jobq.workers" does not name: it has no pool with "*"', 'no pool for the others');
launcher_looks();	# a scheduler that knows no other pools
$node->safe_psql('app', "SELECT jobq.edit(id, run_at => now()) FROM unnest(ARRAY[$unserved, $hidden]) id");
wait_says($unserved, qr/WARNING:  job $unserved has not begun\nHINT: .*no pool of "jobq.workers" with workers serves queue "elsewhere"; pools 2 and 3 of "jobq.workers" name the same queues/,
	'a queue that no pool serves');
wait_says($hidden, qr/HINT: .*no pool of "jobq.workers" with workers serves queue "manual"/,
	'a pool without workers');

setting(q{jobq.workers = '*=0'});
is_logged('no worker serves queues that "jobq.workers" does not name: its pool with "*" has 0 workers', 'a pool for the others without workers');
setting(q{jobq.workers = '*=17'});
is_logged('"jobq.workers" asks for 17 workers in each database, and "jobq.max_workers" allows 16 in the cluster', 'more workers than slots');
is($node->safe_psql('app', "SELECT string_agg(state, ',') FROM jobq.wait_many(ARRAY[$unserved, $hidden]::bigint[], '5 min')"),
	'completed,completed', 'the jobs that waited run');
{
	my $gate = $node->background_psql('app');
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$node->safe_psql('app', q{SELECT jobq.enqueue('hold') FROM generate_series(1, 16)});
	sleeps($node, 'all workers are busy', 16, 'app');
	my $id = $node->safe_psql('app', q{SELECT jobq.enqueue('note')});
	wait_says($id, qr/HINT: .*"jobq.max_workers" allows 16/, 'more workers than slots');
	$gate->quit;
	is($node->safe_psql('app', "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'and it runs when one is free');
}
setting(q{jobq.workers = '*=2'});
$node->append_conf('postgresql.conf', q{max_worker_processes = 3});
$node->restart;
is_logged('"jobq.workers" asks for 2 workers in each database, and "max_worker_processes" leaves 1 beside the launcher and a scheduler', 'fewer processes than workers');
$node->append_conf('postgresql.conf', q{max_worker_processes = 24});

setting(q{jobq.start_paused = on});
$node->restart;
{
	my $id = $node->safe_psql('app', q{SELECT jobq.enqueue('note')});
	wait_says($id, qr/HINT: .*"jobq.start_paused" is on/, 'start_paused');
	setting(q{jobq.start_paused = off});
	my ($rc, $out, $err) = $node->psql('app', "SELECT state FROM jobq.wait($id, '5 min')");
	is("$out, $err", 'completed, ', 'wait() says nothing where there is nothing to say');
}

#
# A stop.
#
foreach my $mode ('fast', 'smart')
{
	foreach my $what ('idle workers', 'running jobs')
	{
		my $id = $node->safe_psql('app', q{SELECT jobq.enqueue('note')});
		is($node->safe_psql('app', "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'a worker is there');
		if ($what eq 'running jobs')
		{
			$node->safe_psql('app', q{
CREATE OR REPLACE FUNCTION forever(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(600)';
SELECT jobq.register('forever', 'forever(jsonb)');
SELECT jobq.enqueue('forever')});
			wait_for($node, 'a job is running',
				q{SELECT count(*) = 1 FROM jobq.workers WHERE kind = 'forever'}, 'app');
		}
		wait_for($node, 'all others are at rest', q{SELECT wake_at > jobq_internal.clock() + interval '10 min'
			AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type ~ '^jobq'
				AND wait_event_type IS DISTINCT FROM 'Extension' AND wait_event IS DISTINCT FROM 'PgSleep')
			FROM jobq_internal.scheduler_state()}, 'app');
		$offset = -s $node->logfile;
		$node->stop($mode);
		my $log = slurp_file($node->logfile, $offset);
		unlike($log, qr/jobq [^\n]*(FATAL|ERROR|WARNING)/, "$mode stop with $what: no error in the log");
		is_deeply([ sort $log =~ /background worker "jobq (\w+)" [^\n]* exited/g ],
			$what eq 'running jobs' ? [ 'launcher', 'worker' ] : ['launcher'],
			"$mode stop with $what: only who was at work ends with 1, and the launcher")
		  or diag($log);
		is(() = $log =~ /job \d+ of kind "forever" is interrupted because the server is being stopped/g,
			$what eq 'running jobs' ? 1 : 0, "$mode stop with $what: what is interrupted is named");
		$node->start;
		next if $what eq 'idle workers';
		wait_for($node, 'the job runs again',
			q{SELECT attempt = 1 FROM jobq.workers WHERE kind = 'forever'}, 'app');
		$node->safe_psql('app', q{SELECT jobq.cancel(job_id) FROM jobq.workers WHERE kind = 'forever'});
		wait_for($node, 'and is cancelled', q{SELECT count(*) = 0 FROM jobq_internal.job}, 'app');
	}
}

# The server stops while a scheduler repeatedly waits for a lock.
{
	my $locker = $node->background_psql('app');
	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.queue IN ACCESS EXCLUSIVE MODE');
	$offset = -s $node->logfile;
	$node->reload;
	ok($node->wait_for_log(qr/the jobq scheduler cannot go on with a part of its work/, $offset),
		'the scheduler meets a lock');
	$offset = -s $node->logfile;
	$node->stop('fast');
	eval { $locker->{run}->finish };
	unlike(slurp_file($node->logfile, $offset), qr/jobq [^\n]*(FATAL|ERROR|WARNING)/,
		'stop while the scheduler meets a lock: no error in the log');
	$node->start;
}

# The log still reports a process terminated by an administrator.
{
	wait_for($node, 'there is a launcher', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq launcher'});
	$offset = -s $node->logfile;
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'jobq launcher'});
	$node->wait_for_log(qr/FATAL:  terminating background worker "jobq launcher" due to administrator command/, $offset);
	wait_for($node, 'the launcher that was terminated comes back',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq launcher'});
}

$node->stop;
no_failed_assertion($node);
done_testing();
