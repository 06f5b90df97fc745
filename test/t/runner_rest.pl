# When more workers than processors are busy with short jobs, some workers rest.  A worker does
# not rest if no other worker can run its jobs, or if jobs are not short.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $processors = qx(getconf _NPROCESSORS_ONLN));
my $more = $processors + 1;
my $node = jobq_node('main', qq{
jobq.workers = 'lone=1; *=$more'
jobq.max_workers = @{[$more + 4]}
max_worker_processes = @{[$more + 20]}
max_connections = @{[$more + 40]}
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('note', 'note()'), jobq.register('hold', 'hold()');
SELECT jobq.create_queue('lone')});

# Jobs as short as possible, in sequence.
sub run_short_jobs
{
	my ($name, $queue) = @_;

	sql("SELECT count(*) FROM jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[20000]), queue => '$queue')");
	return work_off($node, $name, qq{SELECT count(*) FROM jobq.live_jobs WHERE kind = 'note'});
}

#
# The clock is put back by an hour: the running jobs have begun later than now.
#
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.test_clock('1 h')});
sql("SELECT jobq.enqueue('hold') FROM generate_series(1, $processors)");
sleeps($node, 'clock: long jobs run', $processors);
sql(q{SELECT jobq.test_clock('0')});
run_short_jobs('clock: they are not taken for short ones', 'default');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'clock: all jobs have ended', 'SELECT count(*) = 0 FROM jobq_internal.job');

#
# All workers of a pool are busy, and stay so; the only worker of another pool goes on.
#
SKIP:
{
	skip 'this server has no injection points', 1
	  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	sql(q{CREATE EXTENSION injection_points});
	run_short_jobs('lone: its worker is there', 'lone');
	sql(q{SELECT injection_points_attach('jobq-worker-popped', 'wait')});
	sql("SELECT jobq.enqueue('hold') FROM generate_series(1, $more)");
	wait_for($node, 'lone: the workers of the other pool are busy', "SELECT count(*) = $more FROM pg_stat_activity WHERE wait_event = 'jobq-worker-popped'");
	sql(q{SELECT injection_points_detach('jobq-worker-popped')});
	run_short_jobs('lone: its worker does not wait for them', 'lone');
	# release the held workers singly, until none is left
	1 while $node->psql('postgres', q{SELECT injection_points_wakeup('jobq-worker-popped')}, stderr => \my $unused) == 0;
	wait_for($node, 'lone: all jobs have ended', 'SELECT count(*) = 0 FROM jobq_internal.job');
}

$node->stop;
no_failed_assertion($node);
done_testing();
