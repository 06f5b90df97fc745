# A plain statement in another database: the fate of the statement and of its job.  One of the
# two processes ends or crashes, the server has no slot for a process, or the databases have
# different encodings.
#
# Runs on each major: processes are started and ended by the server.

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
jobq.databases = 'postgres'
jobq.sql_databases = '*'
jobq.workers = '*=1'
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Enqueue a statement for the other database; returns the job's id.
sub there
{
	my ($statement, $options) = @_;

	return sql(qq{SET client_encoding = utf8;
SELECT jobq.enqueue_sql(\$s\$$statement\$s\$, database => 'other', backoff => 'fixed 1ms'} . ($options || '') . ')');
}

sub ends
{
	my ($id, $outcome, $name) = @_;

	is(sql("SELECT state, attempt, error FROM jobq.wait($id, '5 min')"), $outcome, $name);
	return;
}

# Wait until the errand sleeps in its statement, in this attempt; returns the process ids of the
# errand and of the worker.
sub runs
{
	my ($id, $attempt) = @_;

	wait_for($node, "attempt $attempt is there",
		qq{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'jobq errand' AND wait_event = 'PgSleep')
			AND (SELECT state = 'running' AND attempt = $attempt FROM jobq.status($id))});
	return split /\|/, sql(q{SELECT a.pid, w.pid FROM pg_stat_activity a, jobq.workers w
WHERE a.backend_type = 'jobq errand' AND w.state = 'running'});
}

sub gone
{
	my ($pid, $name) = @_;

	return wait_for($node, $name, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)");
}

sql(q{
CREATE EXTENSION jobq;
CREATE DATABASE other TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'});
$node->safe_psql('other', 'CREATE TABLE trace (n int, note text)');

# Encodings: the statement, and its error
my $id = there("INSERT INTO trace VALUES (1, '\xc3\xbc')");
ends($id, 'completed|1|', 'it is done');
is($node->safe_psql('other', q{SELECT encode(convert_to(note, 'LATIN1'), 'hex') FROM trace}), 'fc',
	'in the encoding of the other database');
$id = there("DO \$\$ BEGIN RAISE EXCEPTION '\xc3\xbc'; END \$\$", ', max_attempts => 1');
ends($id, "dead|1|\xc3\xbc", 'an error comes back in ours');
$id = there("SELECT '\xe2\x98\x83'", ', max_attempts => 1');
ends($id, 'dead|1|character with byte sequence 0xe2 0x98 0x83 in encoding "UTF8" has no equivalent in encoding "LATIN1"',
	'what the other database cannot write');

# The errand is terminated: an ordinary error
$id = there(q{SELECT pg_sleep(3600) FROM (SELECT WHERE NOT EXISTS (SELECT FROM trace WHERE n = 2)) x});
my ($errand, $worker) = runs($id, 1);
$node->safe_psql('other', 'INSERT INTO trace VALUES (2)');
sql("SELECT pg_terminate_backend($errand)");
ends($id, 'completed|2|', 'after it was terminated, it runs again');

# The worker is terminated: the errand ends, too, and the job runs again
$id = there(q{SELECT pg_sleep(3600) FROM (SELECT WHERE NOT EXISTS (SELECT FROM trace WHERE n = 3)) x});
($errand, $worker) = runs($id, 1);
$node->safe_psql('other', 'INSERT INTO trace VALUES (3)');
sql("SELECT pg_terminate_backend($worker)");
gone($errand, 'the errand of a worker that was terminated ends');
ends($id, 'completed|2|', 'and the job runs again');

# The errand crashes: the crash is charged to the job, which becomes a dead letter
$id = there(q{SELECT pg_sleep(3600)}, ', max_attempts => 9');
foreach my $crash (1, 2)
{
	($errand, $worker) = runs($id, $crash);
	my $offset = -s $node->logfile;

	signal_process('ABRT', $errand);
	wait_for_restart($node, $offset);
}
ends($id, 'dead|2|the server process crashed while it ran the job', 'a job whose errand crashes is charged');

# A fast shutdown during the statement
$id = there(q{SELECT pg_sleep(3600) FROM (SELECT WHERE NOT EXISTS (SELECT FROM trace WHERE n = 4)) x});
runs($id, 1);
$node->safe_psql('other', 'INSERT INTO trace VALUES (4)');
$node->restart;
like(sql("SELECT state FROM jobq.wait($id, '5 min')"), qr/^completed$/, 'after a restart it is done');

# A job with a single attempt is not done twice
$id = there(q{SELECT pg_sleep(3600)}, ', max_attempts => 1');
runs($id, 1);
$node->restart;
ends($id, 'dead|1|the server, or its work in this database, ended while the statement ran', 'nor is it after a restart, if it has but one attempt');

# No slot for another process
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
$node->restart;
$id = there('SELECT 1');
wait_for($node, 'an attempt fails where there is no place',
	"SELECT error LIKE 'there is no place for a process%' FROM jobq.status($id)");
$node->append_conf('postgresql.conf', 'max_worker_processes = 24');
$node->restart;

no_failed_assertion($node);
done_testing();
