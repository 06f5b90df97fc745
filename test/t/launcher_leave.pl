# A database is no longer served while work is in progress.  The permits of the workers are
# released, consumers do not wait in vain, and the slot is free for another database.

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
jobq.databases = 'one, two'
jobq.workers = '*=2'
jobq.max_databases = 2
jobq.max_workers = 2
});
$node->start;

sub serve
{
	my ($databases) = @_;

	$node->append_conf('postgresql.conf', "jobq.databases = '$databases'");
	$node->reload;
	return;
}

sub workers_of
{
	my ($database) = @_;

	return qq{SELECT count(*) = %d FROM pg_stat_activity WHERE backend_type = 'jobq worker' AND datname = '$database'};
}

foreach my $database (qw(one two three))
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, q{
CREATE EXTENSION jobq;
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(1)';
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('hold', 'hold()', max_running => 2), jobq.register('note', 'note()', max_running => 2);
SELECT jobq.create_queue('outside', mode => 'consumer')});
}

my $gate = $node->background_psql('one');
$gate->query_safe('SELECT pg_advisory_lock(1)');

# Two jobs hold all permits.  A job loses its worker while the database is not served.
sub orphan
{
	my ($served) = @_;

	$node->safe_psql('one', q{SELECT jobq.enqueue('hold') FROM generate_series(1, 2)});
	wait_for($node, 'two jobs run', q{SELECT count(*) = 2 FROM jobq.workers WHERE kind = 'hold'}, 'one');
	is($node->safe_psql('one', q{SELECT running FROM jobq.limits WHERE kind = 'hold'}), '2', 'and hold all places');
	serve($served);
	wait_for($node, 'the scheduler leaves', q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type = 'jobq scheduler' AND datname = 'one'});
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(min(pid)) FROM pg_stat_activity
		WHERE backend_type = 'jobq worker' AND datname = 'one'});
	wait_for($node, 'a worker leaves', sprintf(workers_of('one'), 1));
	wait_for($node, 'and its slot is free', q{SELECT used = 1 FROM jobq_internal.capacity() WHERE slots = 'workers'}, 'one');
	return;
}

sub open_gate
{
	$gate->query_safe('SELECT pg_advisory_unlock(1)');
	wait_for($node, 'all jobs are done', 'SELECT count(*) = 0 FROM jobq_internal.job', 'one');
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	return wait_for($node, 'and nothing runs', q{SELECT running = 0 FROM jobq.limits WHERE kind = 'hold'}, 'one');
}

#
# The database is served again: the job without a worker gets a permit.
#
orphan('two');
serve('one, two');
wait_for($node, 'again: the job has a worker', q{SELECT count(*) = 2 FROM jobq.workers WHERE kind = 'hold'}, 'one');
open_gate();

#
# The worker slot is assigned to a worker of another database.
#
orphan('two');
my $id = $node->safe_psql('two', q{SELECT jobq.enqueue('note')});
is($node->safe_psql('two', "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'another: its job runs');
wait_for($node, 'another: it gives back what it has taken, and nothing else',
	q{SELECT count(*) = 2 AND bool_and(running = 0) FROM jobq.limits}, 'two');
serve('one, two');
open_gate();

#
# A consumer waits, while the slot of its database is assigned to another database.
#
my $consumer = $node->background_psql('one', on_error_stop => 0);
$consumer->query_until(qr/begun/, "\\echo begun\nSELECT * FROM jobq.reserve('{outside}', wait => '1 hour');\n");
wait_for($node, 'consumer: it waits', q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE datname = 'one' AND query ~ 'jobq[.]reserve' AND wait_event_type = 'Extension'});
serve('two, three');
$id = $node->safe_psql('three', q{SELECT jobq.enqueue('note')});
is($node->safe_psql('three', "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'consumer: another database has the place');
$consumer->query_until(qr/left/, "\\echo left\n");
like($consumer->{stderr}, qr/jobq[.]reserve\(\) needs a scheduler, and this database has none/, 'consumer: it is told');
$id = $node->safe_psql('three', q{SELECT jobq.enqueue('note', queue => 'outside')});
is($node->safe_psql('three', q{SELECT id FROM jobq.reserve('{outside}', wait => '1 min')}), $id, 'consumer: which has its jobs for itself');
$consumer->quit;
$gate->quit;

$node->stop;
no_failed_assertion($node);
done_testing();
