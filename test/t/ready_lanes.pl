# More lanes than slots: each role has its share, urgent jobs come first, and all jobs are done
# in the end.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
jobq.ready_entries = 1024
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE ROLE greedy LOGIN;
CREATE ROLE modest LOGIN;
SELECT jobq.grant_privilege('greedy'), jobq.grant_privilege('modest');
CREATE FUNCTION quick() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('quick', 'quick()');
SELECT jobq.create_queue('outside', open => true, mode => 'consumer');
});

# One job of each of 2,000 priorities, without a consumer.
my $log = -s $node->logfile;
$node->safe_psql(
	'postgres', q{
SET ROLE greedy;
SELECT count(jobq.enqueue('anything', queue => 'outside', priority => p)) FROM generate_series(1, 2000) p});
$node->wait_for_log(qr/more combinations of queue, priority and role have jobs than fit/, $log);

# another role is served
my $id = $node->safe_psql('postgres', q{SET ROLE modest; SELECT jobq.enqueue('quick')});
wait_for($node, 'the job of another role is done', "SELECT state = 'completed' FROM jobq.status($id)");

# hundreds of priorities of this role are served, too
$node->safe_psql('postgres', q{SET ROLE modest; SELECT count(jobq.enqueue('quick', priority => p)) FROM generate_series(1, 300) p});
wait_for($node, 'and 300 jobs of as many priorities', q{SELECT count(*) = 2000 FROM jobq_internal.job});

# an urgent job overtakes all earlier jobs
$id = $node->safe_psql('postgres', q{SET ROLE greedy; SELECT jobq.enqueue('anything', queue => 'outside', priority => -1)});
# the scheduler may still read jobs which had no slot: the end of this job shows the end of the
# read
wait_for($node, 'the scheduler has looked', 'SELECT state = \'completed\' FROM jobq.status(' .
	  $node->safe_psql('postgres', q{SELECT jobq.enqueue('quick', delay => '1 ms')}) . ')') foreach 1 .. 2;
my $reserve = q{SELECT id, token FROM jobq.reserve('{outside}', wait => '180s')};
is( $node->safe_psql('postgres', "SELECT id FROM ($reserve) r"),
	$id, 'an urgent job comes first');

# the other jobs all get a turn
my $session = $node->background_psql('postgres');
$session->query_safe(
	q{DO $$
DECLARE
	r record;
BEGIN
	FOR i IN 1 .. 2000 LOOP
		SELECT * INTO r FROM jobq.reserve('{outside}', wait => '5 min');
		PERFORM jobq.ack(r.id, r.token);
		COMMIT;
	END LOOP;
END $$});
is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq_internal.job'), 1, 'all were had');
$session->quit;

my @told = slurp_file($node->logfile, $log) =~ /LOG:.*more combinations of queue/g;
is(scalar @told, 1, 'it was told once');

#
# When the first job of a lane outside memory becomes due, the other lanes are not read again;
# in particular not a lane for which an old snapshot keeps thousands of dead index entries.
#
my $index_reads = q{SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'job_ready'};

# The next scheduler knows only the lanes with jobs, or dead entries, of the past.
sub replace_scheduler
{
	my $pid = scheduler_pid($node);

	signal_process('TERM', $pid);
	wait_for_exit($pid);
	wait_for($node, 'there is another scheduler', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
	return;
}

$node->safe_psql('postgres', 'VACUUM jobq_internal.job');
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
$node->safe_psql('postgres', q{SELECT jobq.enqueue_many('quick', array_fill('{}'::jsonb, ARRAY[3000]), queue => 'busy')});
work_off($node, 'much is done', q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'busy'});
my @later = split(/\n/, $node->safe_psql('postgres',
	q{SELECT jobq.enqueue('quick', queue => 'later ' || n, delay => n * interval '1 min') FROM generate_series(1, 20) n}));
replace_scheduler();
my $before = $node->safe_psql('postgres', $index_reads);
for my $n (1 .. 20)
{
	$node->safe_psql('postgres', "SELECT jobq.test_clock('$n min')");
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($later[$n - 1], '5 min')"), 'completed', "what comes in minute $n is done");
}
replace_scheduler();
cmp_ok($node->safe_psql('postgres', $index_reads) - $before, '<', 30000, 'the busy lane was not read for each of them');
$old->quit;
no_failed_assertion($node);
$node->stop;
done_testing;
