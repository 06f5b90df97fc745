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

# Without free slots in the server, a worker that makes room exits.
$node->append_conf('postgresql.conf', 'max_worker_processes = 12');
$node->restart;
foreach my $round (1 .. 2)
{
	run_as("role$_", 'note') foreach 1 .. 3;
	is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.workers WHERE state = 'spare'}), '0', "few slots, round $round: there is no spare");
}

$node->stop;
no_failed_assertion($node);
done_testing();
