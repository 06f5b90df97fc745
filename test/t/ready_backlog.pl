# More jobs than the ready set has slots, in more lanes than it has: all due jobs run, and other
# jobs stay.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=4'
jobq.ready_entries = 1024
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (n bigserial, job bigint, priority int);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect (job, priority) VALUES (job.id, (payload ->> 'p')::int); END;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
});

# Processor time used by a process, in hundredths of a second.
sub cpu_time
{
	my ($pid) = @_;
	my $stat = slurp_file("/proc/$pid/stat");
	$stat =~ s/.*\) //s;
	my @field = split / /, $stat;
	return $field[11] + $field[12];
}

my $due = 'SELECT count(*) FROM jobq_internal.job WHERE run_at <= now()';

#
# Bulk, in a single lane, far more jobs than slots.
#
$node->safe_psql('postgres', q{SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[10000]))});
work_off($node, 'a backlog in one lane is worked off', $due);

#
# 100 priorities, in several queues, single and in bulk, from several concurrent sessions, and
# with any run_at in the past.
#
$node->safe_psql(
	'postgres', q{
TRUNCATE effect;
SELECT jobq.enqueue('note', queue => 'tomorrow' || i, priority => i, delay => '1 day')
FROM generate_series(1, 40) i});
$node->pgbench(
	'--client=4 --transactions=50 --no-vacuum',
	0, [qr{processed: 200/200}], [qr{^$}],
	'enqueue from several sessions',
	{
		'008_single' => q{
\set p random(1, 100)
\set q random(1, 3)
\set ago random(0, 1000000)
BEGIN;
SELECT jobq.enqueue('note', jsonb_build_object('p', (:p + i) % 100), queue => 'q' || :q, priority => (:p + i) % 100,
	run_at => now() - :ago * i * interval '1 ms') FROM generate_series(1, 40) i;
COMMIT;
},
		'008_bulk' => q{
\set p random(1, 100)
\set q random(1, 3)
\set ago random(0, 1000000)
SELECT count(*) FROM jobq.enqueue_many('note', array_fill(jsonb_build_object('p', :p), ARRAY[150]), queue => 'q' || :q, priority => :p,
	run_at => now() - :ago * interval '1 ms');
}
	});
work_off($node, 'jobs of many lanes, out of order, all run', $due);
is( $node->safe_psql('postgres', q{SELECT count(*) = count(DISTINCT job), count(*) >= 8000 FROM effect}),
	't|t', 'each of them once');
is( $node->safe_psql('postgres', q{SELECT count(*), min(attempt) FROM jobq.jobs WHERE state = 'scheduled'}),
	'40|0', 'what is to run tomorrow has not');

#
# Work piles up while no job runs, across a restart; then the order is kept.
#
$node->append_conf('postgresql.conf', q{jobq.start_paused = on
jobq.workers = '*=1'});
$node->restart;
$node->safe_psql(
	'postgres', q{
TRUNCATE effect;
SELECT jobq.enqueue('note', jsonb_build_object('p', 200 - i % 200), priority => 200 - i % 200, queue => 'ordered')
FROM generate_series(1, 5000) i;
SELECT count(*) FROM (SELECT jobq.enqueue_many('note', array_fill(jsonb_build_object('p', p), ARRAY[75]), priority => p, queue => 'ordered')
FROM generate_series(1, 200) p) j});
$node->append_conf('postgresql.conf', q{jobq.start_paused = off});
$node->reload;
work_off($node, 'what has piled up runs when it may', $due);
is($node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT job) FROM effect}),
	'20000|20000', 'each of them once');

#
# A waiting backlog costs no processor time.
#
$node->safe_psql(
	'postgres', q{
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('hold', 'hold(jsonb)')});
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{
SELECT jobq.enqueue('hold', priority => -1);
SELECT count(*) FROM (SELECT jobq.enqueue_many('note', array_fill(jsonb_build_object('p', p), ARRAY[60]), priority => p)
FROM generate_series(1, 100) p) j});
sleeps($node, 'all workers are busy', 1);
{
	my $scheduler = scheduler_pid($node);

	# the scheduler sleeps after it has read all jobs
	my $quiet = 0;
	foreach (1 .. 2 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $before = cpu_time($scheduler);
		$node->safe_psql('postgres', 'SELECT pg_sleep(0.5)');
		$quiet = cpu_time($scheduler) - $before <= 2;
		last if $quiet;
	}
	ok($quiet, 'the scheduler does not turn around and around meanwhile');
}
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
work_off($node, 'and it runs afterwards', $due);

#
# Tomorrow comes.
#
$node->safe_psql('postgres', q{SELECT jobq.test_clock('25 hours')});
wait_for($node, 'what was scheduled runs when its time has come',
	'SELECT count(*) = 0 FROM jobq_internal.job');

#
# The safety check finds a row which no process has announced.
#
$node->append_conf('postgresql.conf', q{jobq.poll_interval = '1s'});
$node->restart;
my $id = $node->safe_psql('postgres', q{SELECT jobq.enqueue('note', delay => '1 hour')});
wait_for($node, 'the scheduler has seen it', 'SELECT complete FROM jobq_internal.scheduler_state()');
$node->safe_psql('postgres', "UPDATE jobq_internal.job SET run_at = now() - interval '1 hour' WHERE id = $id");
wait_for($node, 'a row that was changed by hand is found by the safety check',
	'SELECT count(*) = 0 FROM jobq_internal.job');

$node->stop;
no_failed_assertion($node);
done_testing();
