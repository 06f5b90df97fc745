# A write which fails for one job is retried later, and nothing else waits for the retry.  The
# scheduler ends other leases, charges jobs, and starts workers.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=2'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fail() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'it fails'; END $$;
SELECT jobq.register('note', 'note()', max_attempts => 1), jobq.register('bad', 'fail()', max_attempts => 1);
SELECT jobq.create_queue('outside', open => true, mode => 'consumer');
CREATE ROLE other LOGIN;
CREATE ROLE leaver LOGIN;
SELECT jobq.grant_privilege('other'), jobq.grant_privilege('leaver')});
wait_for_scheduler($node);
my $scheduler = scheduler_pid($node);

sub ends
{
	my ($what, $job, $state) = @_;

	return is(sql("SELECT state FROM jobq.wait($job, '5 min')"), $state, $what);
}

# No further dead letter of this kind can be written.
my $first = sql(q{SELECT jobq.enqueue('bad')});
ends('a job fails', $first, 'dead');
sql(q{CREATE UNIQUE INDEX one ON jobq_internal.dead_letter (kind) WHERE kind IS NOT NULL});
my $offset = -s $node->logfile;

# Two leases end; the second is for a later job.
my ($leased, $after) = split /\n/, sql(q{BEGIN; SELECT jobq.enqueue('bad', queue => 'outside', max_attempts => 1);
SELECT jobq.enqueue('note', queue => 'outside', max_attempts => 1); COMMIT});
is(sql(q{SELECT count(*) FROM jobq.reserve('{outside}', max_jobs => 2, lease => '1 s', wait => '5 min')}), '2', 'a consumer takes two jobs');
ends('the lease of one ends', $after, 'dead');
$node->wait_for_log(qr/the jobq scheduler cannot go on with job $leased: duplicate key/, $offset);

# The jobs of a dropped role.
sql("SELECT jobq.delete($after)");
my ($lost, $second) = split /\n/, sql(q{
BEGIN;
SET LOCAL ROLE leaver;
SELECT jobq.enqueue('bad');
SELECT jobq.enqueue('note');
RESET ROLE;
DROP OWNED BY leaver;
DROP ROLE leaver;
COMMIT});
ends('one job of a dropped role fails', $second, 'dead');

my $others = sql(q{SET ROLE other; SELECT jobq.enqueue('note')});
ends('a role without a worker gets one', $others, 'completed');
is(sql("SELECT count(*) FROM jobq.dead_letters WHERE id IN ($leased, $lost)"), '0', 'what cannot be written is not');
is(scheduler_pid($node), $scheduler, 'it is the same scheduler');

# The write is retried until it succeeds.
sql(q{DROP INDEX jobq_internal.one});
ends('in the end the lease ends', $leased, 'dead');
ends('so does the job of the dropped role', $lost, 'dead');
is(scheduler_pid($node), $scheduler, 'it is still the same scheduler');

# The next scheduler completes the remaining work, and the trouble is over.
my $troubles = q{SELECT count(*) FROM jobq_internal.scheduler_troubles() WHERE what = 'go on with some jobs'};
wait_for($node, 'nothing is left to be done', "SELECT ($troubles) = 0");
sql("SELECT jobq.delete(id) FROM jobq.dead_letters WHERE id IN ($leased, $lost)");
sql(q{CREATE UNIQUE INDEX one ON jobq_internal.dead_letter (kind) WHERE kind IS NOT NULL});
$leased = sql(q{SELECT jobq.enqueue('bad', queue => 'outside', max_attempts => 1)});
is(sql(q{SELECT count(*) FROM jobq.reserve('{outside}', lease => '1 s', wait => '5 min')}), '1', 'a consumer takes a job');
wait_for($node, 'the scheduler tells that it cannot go on', "SELECT ($troubles) = 1");

# The clock is put back meanwhile.
$scheduler = scheduler_pid($node);
sql(q{SELECT jobq.test_clock('10 min')});
my $note = sql(q{SELECT jobq.enqueue('note')});
wait_for($node, 'a job runs by a clock that is ahead', "SELECT state = 'completed' FROM jobq.status($note)");
$note = sql(q{SELECT jobq.enqueue('note', delay => '2 hours')});
sql(q{SELECT jobq.test_clock('0')});
wait_for($node, 'its times are corrected', "SELECT run_at <= jobq_internal.clock() + interval '2 hours' FROM jobq.live_jobs WHERE id = $note");
is(scheduler_pid($node), $scheduler, 'by the same scheduler');
wait_for($node, 'which still tells that it cannot go on', "SELECT ($troubles) = 1");
sql(q{BEGIN; DROP INDEX jobq_internal.one; SELECT pg_terminate_backend(} . scheduler_pid($node) . q{); COMMIT});
ends('the next scheduler ends the lease', $leased, 'dead');
wait_for($node, 'and has no trouble', "SELECT ($troubles) = 0");

#
# Workers which end before they have begun a job are not restarted endlessly without a pause.
#
SKIP:
{
	skip 'this server has no injection points', 6
	  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	sql(q{CREATE EXTENSION injection_points});
	sql(q{SELECT injection_points_attach('jobq-job-may-run', 'error')});
	$offset = -s $node->logfile;
	my $job = sql(q{SET ROLE other; SELECT jobq.enqueue('note')});
	$node->wait_for_log(qr/jobq workers of role "other" have ended before they could begin a job/, $offset);
	sql(q{SELECT injection_points_detach('jobq-job-may-run')});
	ends('the job runs when that is possible', $job, 'completed');

	# an end after a job is a different matter
	sql(q{CREATE ROLE third LOGIN; SELECT jobq.grant_privilege('third')});
	$offset = -s $node->logfile;
	sql(q{SELECT injection_points_attach('jobq-attempt-left', 'error')});
	ends("a worker ends after its job, $_", sql(q{SET ROLE third; SELECT jobq.enqueue('note')}), 'completed') foreach 1 .. 4;
	sql(q{SELECT injection_points_detach('jobq-attempt-left')});
	unlike(slurp_file($node->logfile, $offset), qr/before they could begin a job/, 'nothing is wrong with the role');
}

$node->stop;
no_failed_assertion($node);
done_testing();
