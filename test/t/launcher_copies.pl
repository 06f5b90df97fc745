
# A copy of a cluster runs no jobs before adopt(); a promoted standby does.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The original has no workers, so the job waits; the copies have workers.
my $original = jobq_node('original', q{
jobq.databases = 'postgres'
jobq.workers = '*=0'
}, has_archiving => 1, allows_streaming => 1);
$original->start;
my $job = $original->safe_psql('postgres', q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note(jsonb)'), jobq.create_queue('parts', mode => 'consumer') \g /dev/null
SELECT jobq.enqueue('note')});
wait_for($original, 'the original is served', 'SELECT count(*) = 1 FROM jobq_internal.served');
$original->backup('backup');

sub start_copy
{
	my ($name, $conf, %from) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($original, 'backup', %from);
	$copy->append_conf('postgresql.conf', "jobq.workers = '*=2'\narchive_mode = off\n$conf");
	$copy->start;
	return $copy;
}

sub waits_until_adopted
{
	my ($copy, $name) = @_;

	wait_for($copy, "$name: doctor() tells",
		q{SELECT EXISTS (SELECT FROM jobq.doctor() WHERE severity = 'critical' AND detail LIKE 'the database is a copy%' AND remedy LIKE '%jobq.adopt()')});
	my ($rc, $state, $warning) = $copy->psql('postgres', "SELECT state FROM jobq.wait($job, '1 ms')");
	is($state, 'ready', "$name: the job waits");
	like($warning, qr/the database is a copy/, "$name: and wait() says why");
	is($copy->safe_psql('postgres', "SELECT string_agg(reason, ' ') FROM jobq.explain($job) WHERE reason = 'copy'"),
		'copy', "$name: and explain() does");
	my ($refused) = ($copy->psql('postgres', q{SELECT FROM jobq.reserve('{parts}')}))[2];
	like($refused, qr/does not work in a copy/, "$name: and consumers get nothing");
	($refused) = ($copy->psql('postgres', 'CALL jobq.work(once => true)'))[2];
	like($refused, qr/jobq.work\(\) does not work in a copy/, "$name: nor does a session run the job");
	my $told = () = slurp_file($copy->logfile) =~ /is a copy of a database served elsewhere: none of its jobs starts/g;
	is($told, 1, "$name: and the log, once");
	$copy->safe_psql('postgres', 'SELECT jobq.adopt()');
	is($copy->safe_psql('postgres', "SELECT state FROM jobq.wait($job, '10 min')"), 'completed', "$name: it runs when it is adopted");
	runs($copy, "$name, when it is started again");
	return;
}

# Restart without adopt().
sub runs
{
	my ($copy, $name) = @_;

	$copy->restart;
	my $again = $copy->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
	is($copy->safe_psql('postgres', "SELECT state FROM jobq.wait($again, '10 min')"), 'completed', $name);
	return;
}

my $alone = start_copy('alone', '');
waits_until_adopted($alone, 'a backup that is started alone');
my $label = $alone->data_dir . '/backup_label.old';
rename($label, "$label.away") or die "$label: $!";
runs($alone, 'the label of its backup is deleted, and the database is no copy');
rename("$label.away", $label) or die "$label: $!";
runs($alone, 'nor is it one when the label is there again');
$alone->safe_psql('postgres', 'DELETE FROM jobq_internal.served; INSERT INTO jobq_internal.served VALUES (1, 1, 1, 0)');
runs($alone, 'nor by a row of another cluster, as logical replication may bring one');
$alone->stop;

my $pitr = start_copy('pitr', "recovery_target = 'immediate'\nrecovery_target_action = 'promote'\n", has_restoring => 1, standby => 0);
waits_until_adopted($pitr, 'a recovery to a target');
$pitr->stop;

my $standby = start_copy('standby', '', has_streaming => 1);
$original->wait_for_catchup($standby);
$original->stop('immediate');
$standby->promote;
wait_for($standby, 'a standby that is promoted runs the job', "SELECT (jobq.status($job)).state = 'completed'");
unlike(slurp_file($standby->logfile), qr/is a copy of a/, 'and is no copy');
is($standby->safe_psql('postgres', 'SELECT count(*), max(timeline) FROM jobq_internal.served'), '1|2', 'it goes on under its new timeline');
$standby->stop;

no_failed_assertion($_) for $alone, $pitr, $standby;
done_testing();
