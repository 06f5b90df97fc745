# A worker that has made room for a role keeps its process, runs no job meanwhile, and returns to
# the pool. The worker exits before a process lacks the slot.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = 'postgres, other'
jobq.workers = '*=1'
jobq.max_workers = 3
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('postgres', q{
CREATE ROLE role1 LOGIN;
CREATE ROLE role2 LOGIN;
CREATE ROLE role3 LOGIN;
CREATE ROLE role4 LOGIN});
foreach my $dbname ('postgres', 'other')
{
	$node->safe_psql($dbname, q{
CREATE EXTENSION jobq;
CREATE TABLE ran (n bigint GENERATED ALWAYS AS IDENTITY, role name DEFAULT current_user, pid int DEFAULT pg_backend_pid());
GRANT INSERT ON ran TO PUBLIC;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS 'INSERT INTO ran DEFAULT VALUES';
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1); INSERT INTO ran DEFAULT VALUES';
SELECT jobq.register('note', 'note()'), jobq.register('hold', 'hold()'), jobq.register('single', 'hold()', max_running => 1);
SELECT jobq.grant_privilege(role) FROM unnest('{role1,role2,role3,role4}'::regrole[]) role});
}

# Run a job as the role to the end, and return the process that has run it.
sub run_as
{
	my ($role, $kind, $dbname) = @_;
	$dbname ||= 'postgres';
	my $id = $node->safe_psql($dbname, "SET ROLE $role; SELECT jobq.enqueue('$kind')");

	is($node->safe_psql($dbname, "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', "a job of kind $kind of $role in $dbname is completed");
	return $node->safe_psql($dbname, 'SELECT pid FROM ran ORDER BY n DESC LIMIT 1');
}

sub spares
{
	my ($what, $spares, $dbname) = @_;

	return wait_for($node, $what, "SELECT coalesce(string_agg(role::text, ',' ORDER BY role::text), '') = '$spares' FROM jobq.workers WHERE state = 'spare'", $dbname);
}

# Roles that share a slot keep their processes.
my %pid = map { $_ => run_as("role$_", 'note') } 1 .. 3;
spares('the worker that ran last has the place of the pool', 'role1,role2');
foreach my $round (1 .. 2)
{
	is(run_as("role$_", 'note'), $pid{$_}, "round $round: role$_ has the same worker as before") foreach 1 .. 3;
}

# Spares do not work beside their pool.
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', "SET ROLE role$_; SELECT jobq.enqueue('hold') FROM generate_series(1, 2)") foreach 1 .. 3;
sleeps($node, 'a job of one role runs', 1);
is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.workers WHERE state IN ('running', 'leaving')}), '1', 'in the only worker of the pool');
is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.live_jobs WHERE state = 'ready'}), '5', 'while the other jobs wait');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'then all jobs run', 'SELECT count(*) = 0 FROM jobq_internal.job');
is($node->safe_psql('postgres', 'SELECT count(DISTINCT pid) FROM ran'), '3', 'in the same processes');

# A worker that makes room after a job gives back the permit of the job.
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SET ROLE role1; SELECT jobq.enqueue('single')});
sleeps($node, 'a job with the only permit runs', 1);
$node->safe_psql('postgres', q{SET ROLE role2; SELECT jobq.enqueue('note')});
wait_for($node, 'its worker is to make room', q{SELECT count(*) = 1 FROM jobq.workers WHERE state = 'leaving'});
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'and has made room', q{SELECT count(*) = 0 FROM jobq_internal.job});
is($node->safe_psql('postgres', q{SELECT running FROM jobq.limits WHERE kind = 'single'}), '0', 'no permit is held');

# A spare exits for a worker of a further role.
run_as('role3', 'note');
run_as('role1', 'note');
run_as('role4', 'note');
spares('the spare that has been without work for the longest time has left', 'role1,role3');
is(run_as('role1', 'note'), $pid{1}, 'and the other one has not');

# A spare exits for another database.
run_as('role1', 'note', 'other');
wait_for($node, 'all slots are in use', 'SELECT count(*) <= 2 FROM jobq.workers');
run_as('role2', 'note', 'other');
is(run_as('role1', 'note'), $pid{1}, 'and the worker of the pool stays');

# A spare without work exits in the end; the worker of the pool stays.
$node->safe_psql('postgres', q{SELECT jobq.test_clock('11 s')});
spares('after a while, no spare is left', '');
is(run_as('role1', 'note'), $pid{1}, 'but the worker of the pool is');

# A clock that was ahead keeps no spare.
$node->safe_psql('postgres', q{SELECT jobq.test_clock('10 minutes')});
run_as("role$_", 'note') foreach 1 .. 2;
spares('a spare, by a clock that is ahead', 'role1');
$node->safe_psql('postgres', q{SELECT jobq.test_clock('11 s')});
spares('exits soon after the clock was put back', '');

# A process that the server has refused gets the slot of a spare: here a session takes slots for
# a parallel query, of which the scheduler does not know.
$node->append_conf('postgresql.conf', q{
max_worker_processes = 14
max_parallel_workers = 0
jobq.max_workers = 8
});
$node->restart;
run_as("role$_", 'note') foreach 1 .. 3;
spares('there are spares again', 'role1,role2');
$node->safe_psql('postgres', q{SELECT jobq.test_clock('60 s')});
my $query = $node->background_psql('postgres', on_error_stop => 0);
$query->query_safe(q{
CREATE TABLE much (n int, wide char(3000));
ALTER TABLE much ALTER wide SET STORAGE PLAIN;
INSERT INTO much SELECT i, '' FROM generate_series(1, 80) i;
ALTER TABLE much SET (parallel_workers = 20);
CREATE FUNCTION wait_for_gate(n int) RETURNS int LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
	PERFORM pg_sleep(0.1) FROM generate_series(1, 10000);
	RETURN n;
END $$;
SET max_parallel_workers = 20;
SET max_parallel_workers_per_gather = 20;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET parallel_leader_participation = off});
$query->query_until(qr/begun/, "\\echo begun\nSELECT sum(wait_for_gate(n)) FROM much;\n");
wait_for($node, 'no slot of the server is free', q{SELECT count(*) >= 5 FROM pg_stat_activity WHERE backend_type = 'parallel worker'});
my $refused = $node->safe_psql('postgres', q{SET ROLE role4; SELECT jobq.enqueue('note')});
my $state = '';
for (my $seconds = 60; $seconds > 20 && $state ne 'completed'; $seconds -= 2)
{
	# by a clock that goes back, no spare is old
	select undef, undef, undef, 0.5;
	$state = $node->safe_psql('postgres', "SELECT jobq.test_clock('$seconds s') \\g /dev/null\nSELECT state FROM jobq.status($refused)");
}
is($state, 'completed', 'a role without a process gets a slot');
$node->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%wait_for_gate%' AND backend_type = 'client backend' AND pid <> pg_backend_pid()});
$query->quit;

# A worker that becomes a spare while it looks for a job takes none.
SKIP:
{
	skip 'this server has no injection points', 5
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$node->restart;
	%pid = map { $_ => run_as("role$_", 'note') } 1 .. 2;
	spares('one is a spare', 'role1');
	$gate = $node->background_psql('postgres');
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$node->safe_psql('postgres', q{SELECT injection_points_attach('jobq-worker-pops', 'wait')});
	kill 'HUP', $pid{2};
	wait_for($node, 'the other looks for a job', "SELECT wait_event = 'jobq-worker-pops' FROM pg_stat_activity WHERE pid = $pid{2}");
	$node->safe_psql('postgres', q{SELECT injection_points_detach('jobq-worker-pops')});
	$node->safe_psql('postgres', q{SET ROLE role1; SELECT jobq.enqueue('hold')});
	sleeps($node, 'the spare has its place', 1);
	my $waits = $node->safe_psql('postgres', q{SET ROLE role2; SELECT jobq.enqueue('note')});
	$node->safe_psql('postgres', q{SELECT injection_points_wakeup('jobq-worker-pops')});
	wait_for($node, 'the other rests', "SELECT wait_event <> 'jobq-worker-pops' AND state = 'idle' FROM pg_stat_activity WHERE pid = $pid{2}");
	is($node->safe_psql('postgres', "SELECT state FROM jobq.status($waits)"), 'ready', 'without the job');
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	$gate->quit;
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($waits, '5 min')"), 'completed', 'which runs in its turn');
}
$node->append_conf('postgresql.conf', q{
max_parallel_workers = 8
jobq.max_workers = 3
});

# Without free slots in the server, a worker that makes room exits.  Each database needs a slot for
# its scheduler, and another one to check its monitors.
foreach my $slots ([ 12, 8 ], [ 9, 0 ])
{
	$node->append_conf('postgresql.conf', "max_worker_processes = $slots->[0]\nmax_parallel_workers = $slots->[1]");
	$node->restart;
	foreach my $round (1 .. 2)
	{
		run_as("role$_", 'note') foreach 1 .. 3;
		is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.workers WHERE state = 'spare'}), '0', "$slots->[0] slots, round $round: there is no spare");
	}
}

$node->stop;
no_failed_assertion($node);
done_testing();
