# The databases of a cluster share the workers if there are too few for all.

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
jobq.databases = '*'
jobq.workers = '*=2'
jobq.max_workers = 2
});
$node->start;
foreach my $dbname ('db1', 'db2', 'db3')
{
	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql(
		$dbname, q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('note', 'note(jsonb)');
SELECT jobq.register('hold', 'hold(jsonb)');
});
}

# Idle workers of a database make room for other databases.
foreach my $round (1 .. 2)
{
	foreach my $dbname ('db1', 'db2', 'db3')
	{
		$node->safe_psql($dbname, q{SELECT jobq.enqueue('note') FROM generate_series(1, 10)});
		wait_for($node, "round $round: the jobs of $dbname run",
			'SELECT count(*) = 0 FROM jobq_internal.job', $dbname);
	}
}

# Busy workers make room after their job, and each database gets a turn.
my $gate = $node->background_psql('db1');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('db1', q{SELECT jobq.enqueue('hold') FROM generate_series(1, 10)});
sleeps($node, 'db1 has both workers', 2, 'db1');
my %id = map { $_ => $node->safe_psql($_, q{SELECT jobq.enqueue('note')}) } 'db2', 'db3';
is($node->safe_psql($_, "SELECT state FROM jobq.status($id{$_})"),
	'ready', "a job of $_ waits")
  foreach 'db2', 'db3';
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, "then all jobs of $_ run", 'SELECT count(*) = 0 FROM jobq_internal.job', $_)
  foreach 'db1', 'db2', 'db3';

# A backlog of minutes in a database does not keep the other databases waiting.
$node->safe_psql(
	'db1', q{
CREATE FUNCTION doze(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(0.02)';
SELECT jobq.register('doze', 'doze(jsonb)');
SELECT count(*) FROM jobq.enqueue_many('doze', array_fill('{}'::jsonb, ARRAY[30000]))});
wait_for($node, 'db1 has both workers', q{SELECT count(*) = 2 FROM jobq.workers WHERE kind = 'doze'}, 'db1');
$node->safe_psql($_, q{SELECT jobq.enqueue('note') FROM generate_series(1, 3)})
  foreach 'db2', 'db3';
wait_for($node, "the jobs of $_ run meanwhile", 'SELECT count(*) = 0 FROM jobq_internal.job', $_)
  foreach 'db2', 'db3';
cmp_ok($node->safe_psql('db1', 'SELECT count(*) FROM jobq_internal.job'),
	'>', 50, 'and db1 is not done yet');

# If all databases have a backlog, they take turns.
foreach my $dbname ('db1', 'db2', 'db3')
{
	$node->safe_psql(
		$dbname, q{
CREATE TABLE turn (pid int);
CREATE FUNCTION turn(payload jsonb) RETURNS void LANGUAGE sql AS $$
	INSERT INTO turn VALUES (pg_backend_pid());
	SELECT pg_sleep(0.02);
$$;
SELECT jobq.register('turn', 'turn(jsonb)');
SELECT count(*) FROM jobq.enqueue_many('turn', array_fill('{}'::jsonb, ARRAY[30000]), priority => -1)});
}
foreach my $dbname ('db1', 'db2', 'db3')
{
	wait_for($node, "$dbname comes again and again", 'SELECT count(DISTINCT pid) >= 3 FROM turn', $dbname);
}
foreach my $dbname ('db1', 'db2', 'db3')
{
	cmp_ok($node->safe_psql($dbname, 'SELECT count(*) FROM jobq_internal.job'), '>', 50, "and $dbname is not done yet");
	$node->safe_psql($dbname, q{SELECT jobq.cancel_many(queue => 'default', state => 'waiting')});
}

$node->stop;
no_failed_assertion($node);
done_testing();
