# The workers of a role start a few at a time, and all start if the jobs wait for something.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $processors = qx(getconf _NPROCESSORS_ONLN));
my $at_once = 2 * $processors;
my $workers = 2 * $at_once + 1;
my $node = jobq_node('main', qq{
jobq.workers = '*=$workers'
jobq.max_workers = $workers
max_worker_processes = @{[$workers + 20]}
max_connections = @{[$workers + 40]}
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

plan(skip_all => 'this server has no injection points')
  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
sql(q{
CREATE EXTENSION jobq;
CREATE EXTENSION injection_points;
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('hold', 'hold()')});
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');

sql(q{SELECT injection_points_attach('jobq-worker-begin', 'wait')});
sql("SELECT count(*) FROM jobq.enqueue_many('hold', array_fill('{}'::jsonb, ARRAY[$workers]))");
wait_for($node, 'workers start', "SELECT count(*) >= $at_once FROM jobq.workers WHERE state = 'starting'");
my $scheduler = scheduler_pid($node);
ok(stop_at_rest($node, $scheduler), 'the scheduler waits for them');
is(sql('SELECT count(*) FROM jobq.workers'), $at_once, 'before more start');
signal_process('CONT', $scheduler);

sql(q{SELECT injection_points_detach('jobq-worker-begin')});
1 while $node->psql('postgres', q{SELECT injection_points_wakeup('jobq-worker-begin')}, stderr => \my $unused) == 0;
sleeps($node, 'then all start', $workers);
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'all jobs have ended', 'SELECT count(*) = 0 FROM jobq_internal.job');

$node->stop;
no_failed_assertion($node);
done_testing();
