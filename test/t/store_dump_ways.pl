# A database survives each way of pg_dump: in parallel, and with schema and data apart.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqStates;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
jobq.databases = 'postgres'
});
$node->start;
make_states($node, 'postgres');
my $before = states($node, 'postgres', 1);
my $dump = $node->backup_dir;
my $psql = [ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null' ];

# The databases are not served during the restore.
$node->safe_psql('postgres', "CREATE DATABASE $_ TEMPLATE template0") foreach 'parallel', 'apart';
$node->command_ok([ 'pg_dump', '-Fd', '-j', '2', '-f', "$dump/parallel", 'postgres' ], 'dumped in parallel');
$node->command_ok([ 'pg_restore', '-e', '-j', '2', '-d', 'parallel', "$dump/parallel" ], 'restored in parallel');
$node->command_ok([ 'pg_dump', '--schema-only', '-f', "$dump/schema.sql", 'postgres' ], 'the schema is dumped');
$node->command_ok([ @$psql, '-f', "$dump/schema.sql", 'apart' ], 'the schema is restored');
is($node->safe_psql('apart', 'SELECT count(*) FROM jobq.jobs'), '0', 'without a job');
$node->command_ok([ 'pg_dump', '--data-only', '-f', "$dump/data.sql", 'postgres' ], 'the data are dumped');
$node->command_ok([ @$psql, '-f', "$dump/data.sql", 'apart' ], 'the data are restored');

foreach my $dbname ('parallel', 'apart')
{
	is(states($node, $dbname, 1), $before, "$dbname: everything is as it was");
	$node->append_conf('postgresql.conf', "jobq.databases = '$dbname'");
	$node->reload;
	come_to_their_end($node, $dbname, $dbname, 1);
}

$node->stop;
no_failed_assertion($node);
done_testing();
