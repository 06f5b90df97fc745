# The day gets its partition of the archive while others read.

use strict;
use warnings FATAL => 'all';
use File::Spec;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{jobq.databases = 'postgres'});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note(jsonb)');
SELECT count(jobq.enqueue('note')) FROM generate_series(1, 1000);
});
wait_for($node, 'what is finished at first has no partition of its own',
	'SELECT count(*) = 1000 FROM jobq.archive_default');

# New plans all the time: a plan that knows the old partitions is what could go wrong.
my $script = $node->basedir . '/read.sql';
append_to_file($script, q{DO $$
DECLARE
	n bigint;
BEGIN
	EXECUTE $q$ SELECT count(*) FROM jobq.jobs WHERE kind = 'note' $q$ INTO n;
	IF n <> 1000 THEN RAISE 'there are % jobs', n; END IF;
END $$;
});
my ($out, $err);
my $readers = IPC::Run::start(
	[ $node->installed_command('pgbench'), '-n', '-c', '8', '-T', '4', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'<', File::Spec->devnull, '>', \$out, '2>', \$err,
	IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
wait_for($node, 'others read',
	q{SELECT count(*) = 8 FROM pg_stat_activity WHERE query ~ '[t]here are'});
$node->safe_psql('postgres', q{SELECT jobq.test_clock('10 s')});
wait_for($node, 'the day has its partition',
	q{SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'jobq.archive'::regclass});
$readers->finish;
is($err, '', 'nobody has missed a job');
like($out, qr/transactions actually processed: [1-9]/, 'and some have read');
is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.archive_default'),
	'0', 'what was there has gone along');

$node->stop;
no_failed_assertion($node);
done_testing();
