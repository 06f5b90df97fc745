# Blocked jobs may fill the ready set, in short lanes, but do not keep other jobs from running,
# and run when they may.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'live,kinds=2; tenants,unserved=1'
jobq.ready_entries = 1024
jobq.poll_interval = 3600
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE ran (what text);
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload #>> '{}' = 'first' THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
	INSERT INTO ran VALUES (payload #>> '{}');
END $$;
SELECT jobq.create_limiter('one', max_running => 1);
SELECT jobq.register('note', 'note(jsonb)'), jobq.register('limited', 'note(jsonb)', limiters => '{one}');
SELECT jobq.create_queue('live'), jobq.create_queue('unserved'), jobq.create_queue('kinds'),
	jobq.create_queue('tenants', tenant => 'header t', fair => 'jobs');
-- More jobs than there are places, in 120 lanes, each too short to give anything to its like.
CREATE FUNCTION fill(queue text, kind text, priority int) RETURNS void BEGIN ATOMIC
	SELECT count(*) FROM generate_series(0, 119) i,
		LATERAL jobq.enqueue_many(kind, array_fill(to_jsonb(queue), ARRAY[16]), queue => queue, priority => priority + i);
END});

sub sql { return $node->safe_psql('postgres', $_[0]) }

# Keep a worker of the queue busy, and fill all slots with the jobs of this query meanwhile.
sub fill_up
{
	my ($when, $queue, $kind, $query) = @_;
	my $gate = $node->background_psql('postgres');

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	sql("SELECT jobq.enqueue('$kind', '\"first\"', queue => '$queue', priority => -1000)");
	sleeps($node, "$when: the worker is busy", 1);
	sql($query);
	wait_for($node, "$when: all places are taken", 'SELECT ready_entries = 1024 AND complete FROM jobq_internal.scheduler_state()');
	return $gate;
}

# A job as urgent as the blocked jobs runs, and a less urgent job, and enough jobs to need many
# slots.
sub others_run
{
	my ($when) = @_;

	sql(q{SELECT jobq.enqueue('note', '"equal"', queue => 'live')});
	wait_for($node, "$when: another job runs", q{SELECT count(*) = 1 FROM ran WHERE what = 'equal'});
	sql(q{SELECT jobq.enqueue('note', '"less"', queue => 'live', priority => 500)});
	wait_for($node, "$when: so does one that is less urgent", q{SELECT count(*) = 1 FROM ran WHERE what = 'less'});
	sql(q{SELECT count(*) FROM jobq.enqueue_many('note', array_fill('"many"'::jsonb, ARRAY[3000]), queue => 'live', priority => 500)});
	wait_for($node, "$when: so do many", q{SELECT count(*) = 3000 FROM ran WHERE what = 'many'});
	sql(q{DELETE FROM ran});
	return;
}

sub all_run
{
	my ($when) = @_;

	wait_for($node, $when, 'SELECT NOT EXISTS (SELECT FROM jobq_internal.job)');
	return;
}

# The scheduler does not run rounds meanwhile.
sub is_quiet
{
	my ($when) = @_;
	my $pid = scheduler_pid($node);
	my $quiet = 0;

	foreach (1 .. 2 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $before = (split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //sr)[11];
		sql('SELECT pg_sleep(0.5)');
		$quiet = (split / /, slurp_file("/proc/$pid/stat") =~ s/.*\) //sr)[11] - $before <= 2;
		last if $quiet;
	}
	ok($quiet, "$when: the scheduler is at rest");
	return;
}

#
# Jobs wait for the only slot of a limiter, and are more urgent than the other jobs.
#
my $gate = fill_up('full', 'kinds', 'limited', q{SELECT fill('kinds', 'limited', -200)});
others_run('full');
is_quiet('full');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'kinds' AND state = 'ready'}), '1920', 'full: they wait');
$gate->quit;
all_run('full: all run when the place is free');

#
# A queue is not served by any worker any more.
#
$gate = fill_up('unserved', 'unserved', 'note', q{SELECT fill('unserved', 'note', 0)});
sql(q{ALTER SYSTEM SET jobq.workers = 'live,kinds=2; tenants=1'});
$node->reload;
# after two evaluations of batches, in sequence, the scheduler uses the new setting
foreach my $n (1, 2)
{
	my $batch = sql('SELECT jobq.create_batch()');

	sql("SELECT jobq.start_batch($batch)");
	wait_for($node, "unserved: the scheduler has looked, $n", "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $batch");
}
$gate->quit;
wait_for($node, 'unserved: the worker has left', q{SELECT NOT EXISTS (SELECT FROM jobq.workers WHERE state = 'running')});
others_run('unserved');
is_quiet('unserved');
is(sql(q{SELECT count(*) > 1500 FROM jobq.jobs WHERE queue = 'unserved' AND state = 'ready'}), 't', 'unserved: they wait');
sql(q{ALTER SYSTEM RESET jobq.workers});
$node->reload;
all_run('unserved: all run when they are served');

#
# A paused queue with many tenants.
#
$gate = fill_up('paused', 'tenants', 'note', q{
	SELECT count(*) FROM generate_series(1, 120) t,
		LATERAL jobq.enqueue_many('note', array_fill('"paused"'::jsonb, ARRAY[16]), queue => 'tenants', headers => jsonb_build_object('t', t))});
sql(q{SELECT jobq.pause('tenants')});
$gate->quit;
wait_for($node, 'paused: the job is over that has begun', q{SELECT NOT EXISTS (SELECT FROM jobq.workers WHERE state = 'running')});
others_run('paused');
is_quiet('paused');
is(sql(q{SELECT count(*) > 1500 FROM jobq.jobs WHERE queue = 'tenants' AND state = 'ready'}), 't', 'paused: they wait');
sql(q{SELECT jobq.resume('tenants')});
all_run('paused: all run when the queue goes on');

$node->stop;
no_failed_assertion($node);
done_testing();
