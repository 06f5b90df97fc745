# An idle database costs nothing: no transactions, no wake-ups.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

plan skip_all => 'no /proc that tells of context switches'
  unless -r '/proc/self/status'
  && slurp_file('/proc/self/status') =~ /^voluntary_ctxt_switches/m;

my $node = jobq_node('main', q{
jobq.databases = 'app'
jobq.workers = '*=3'
autovacuum = off
deadlock_timeout = 1h
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql(
	'app', q{
CREATE EXTENSION jobq;
CREATE ROLE clerk;
SELECT jobq.grant_privilege('clerk');
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
CREATE PROCEDURE linger(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	IF payload = '"sleep"' THEN
		CALL jobq.sleep('linger', '1 day');
	ELSE
		CALL jobq.await_signal('linger', answer);
	END IF;
END $$;
CREATE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no good'; END $$;
SELECT jobq.register('note', 'note(jsonb)');
SELECT jobq.register('hold', 'hold(jsonb)');
SELECT jobq.register('linger', 'linger(jsonb)');
SELECT jobq.register('fail', 'fail(jsonb)', backoff => 'fixed 1h');
});

# How often each process of jobq has gone to sleep.
sub naps
{
	my %naps;
	foreach (
		split /\n/,
		$node->safe_psql('postgres',
			q{SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type ~ '^jobq' ORDER BY pid}))
	{
		my ($pid, $type) = split /\|/;
		my ($n) = slurp_file("/proc/$pid/status") =~
		  /^voluntary_ctxt_switches:\s*(\d+)/m;
		$naps{"$type $pid"} = $n;
	}
	return %naps;
}

sub transactions
{
	return $node->safe_psql('postgres',
		q{SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'app'});
}

sub is_idle
{
	my ($what) = @_;

	# wait for the end of earlier activity
	my %before;
	foreach (1 .. 20)
	{
		my %now = naps();
		last if "@{[%now{sort keys %now}]}" eq "@{[%before{sort keys %before}]}";
		%before = %now;
		$node->safe_psql('postgres', 'SELECT pg_sleep(2)');
	}

	# On a busy machine, a process may sleep without a wake-up, for example when a page must be
	# read again.  Polling would show in each of these periods.
	my $quiet = 0;
	for (my $try = 1; $try <= 20 && !$quiet; $try++)
	{
		my %from = naps();
		my $transactions = transactions();
		$node->safe_psql('postgres', 'SELECT pg_sleep(3)');
		my %to = naps();
		$transactions = transactions() - $transactions;

		my %naps = map { $_ => $to{$_} - ($from{$_} // 0) } keys %to;
		my $naps = 0;
		$naps += $_ foreach values %naps;

		# a single sleep is for a timer set before
		$quiet = $naps <= 1 && $transactions == 0;
		diag("$what, try $try: $transactions transactions, naps: "
			  . join(', ', map { "$_: $naps{$_}" } grep { $naps{$_} } sort keys %naps))
		  unless $quiet;
	}
	ok($quiet, "$what: nobody wakes up, no transactions");

	# and yet a job runs at once: without a wake-up, no process would find it before the hour of
	# the safety check
	my $id = $node->safe_psql('app', q{SELECT jobq.enqueue('note', queue => 'prompt')});
	is($node->safe_psql('app', "SELECT state FROM jobq.wait($id, '30 min')"),
		'completed', "$what: a job runs at once");
	return;
}

wait_for($node, 'the archive has its partitions',
	q{SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass}, 'app');
my $later = $node->safe_psql('app', q{SELECT jobq.enqueue('note', delay => '1 day')});
wait_for($node, 'the jobs are counted', q{SELECT bool_and(exact) FROM jobq.stats}, 'app');
$node->safe_psql('app', "SELECT jobq.cancel($later)");
is_idle('after the start');
# a slow machine may have needed several workers at a time, but not all four
like($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^jobq'}),
	qr/^[345]$/, 'launcher, scheduler, and as many workers as were needed');

$node->safe_psql('app', q{SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[1000]))});
wait_for($node, 'jobs run', 'SELECT count(*) = 0 FROM jobq_internal.job', 'app');
is_idle('after some work');

# jobs and schedules which wait for another event
$node->safe_psql(
	'app', q{
SELECT jobq.create_queue('still', open => true), jobq.pause('still');
SELECT jobq.enqueue('note', queue => 'still');
SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[1000]), queue => 'still', priority => 1);
SELECT jobq.enqueue('note', queue => 'still', delay => '1ms', priority => 2);
SELECT jobq.enqueue('note', delay => '1 day');
SELECT jobq.enqueue_many('linger', array_fill('"sleep"'::jsonb, ARRAY[300]));
SELECT jobq.enqueue_many('linger', array_fill('"signal"'::jsonb, ARRAY[300]));
SELECT jobq.enqueue('fail');
SELECT jobq.schedule('far', '@yearly', 'note'), jobq.schedule('held', 'every 1 second', 'note', overlap => 'queue', options => '{"queue": "still"}')});
wait_for($node, 'an attempt has failed',
	q{SELECT count(*) = 1 FROM jobq.jobs WHERE state = 'retryable'}, 'app');
wait_for($node, 'procedures wait for a time or a signal',
	q{SELECT count(*) = 600 FROM jobq.live_jobs WHERE state = 'suspended'}, 'app');
wait_for($node, 'a schedule waits for its job',
	q{SELECT state = 'waiting' FROM jobq.schedules WHERE name = 'held'}, 'app');
is_idle('with jobs of tomorrow and of a paused queue, and schedules');
$node->safe_psql('app', q{SELECT jobq.unschedule('held')});

# a long-running handler, and a session which waits for its job
my $gate = $node->background_psql('app');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $id = $node->safe_psql('app', q{SELECT jobq.enqueue('hold', timeout => '1h')});
my $waiter = $node->background_psql('app');
$waiter->query_until(qr/begun/, "\\echo begun\nSELECT state FROM jobq.wait($id, '30 min');\n");
sleeps($node, 'a job is running', 1, 'app');
is_idle('with a long job');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
like($waiter->query_until(qr/completed/, ''), qr/completed/, 'who waits for it is told');
$waiter->quit;

# a queue which no pool serves, and a queue with more jobs than workers
$node->append_conf('postgresql.conf', q{jobq.workers = 'prompt=1; busy=1'});
$node->reload;
$node->safe_psql('app', q{SELECT jobq.enqueue('note')});
$gate = $node->background_psql('app');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('app', q{SELECT jobq.enqueue('hold', queue => 'busy') FROM generate_series(1, 10)});
sleeps($node, 'a job is running', 1, 'app');
is_idle('with a backlog that must wait');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'it runs afterwards',
	q{SELECT count(*) = 0 FROM jobq.jobs WHERE queue = 'busy' AND finished_at IS NULL}, 'app');

$node->stop;
no_failed_assertion($node);
done_testing();
