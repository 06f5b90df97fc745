# The clock jumps in the middle of a retention pass, or of a round of the scheduler: nothing is
# deleted for the wrong time, and the next pass deletes what is old.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = jobq_node('main', q{jobq.databases = 'postgres'});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

plan skip_all => 'this server has no injection points'
  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';

sub hold { return sql("SELECT injection_points_attach('$_[0]', 'wait')"); }

sub is_held
{
	my ($point) = @_;

	return wait_for($node, "the scheduler is held at $point",
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq scheduler' AND wait_event = '$point'");
}

# Let the scheduler go on, and no more wait at this point.
sub release
{
	my ($point) = @_;

	sql("SELECT injection_points_detach('$point')");
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $node->psql('postgres', "SELECT injection_points_wakeup('$point')", stderr => \my $unused) != 0;
		usleep(100_000);
	}
	return;
}

# Wait for a round of the scheduler that begins from now on, and a job that is due in it.
sub round
{
	my $job = sql(q{SELECT jobq.enqueue('nothing', delay => '1 ms')});
	is(sql("SELECT state FROM jobq.wait($job, '5 min')"), 'completed', 'a round of the scheduler');
	return;
}

sub set_clock { return sql("SELECT jobq.test_clock('$_[0]')"); }
sub confirm_clock { return sql("SELECT jobq.test_clock('$_[0]'), jobq.test_clock('$_[0]')"); }

sql(q{
CREATE EXTENSION jobq;
CREATE EXTENSION injection_points;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'as wanted'; END $$;
SELECT jobq.register('nothing', 'nothing()'), jobq.register('fails', 'fails()', max_attempts => 1);
SELECT jobq.create_queue('letters'), jobq.enqueue('fails', queue => 'letters')});
wait_for($node, 'a dead letter', 'SELECT count(*) = 1 FROM jobq_internal.dead_letter');

# Fresh dead letters, which need several pieces of a pass, and old ones in the last piece.
sql(q{
CREATE TEMP TABLE letter AS TABLE jobq_internal.dead_letter;
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		UPDATE letter SET id = -i;
		INSERT INTO jobq_internal.dead_letter TABLE letter;
	END LOOP;
	UPDATE letter SET finished_at = '2000-01-01';
	FOR i IN 1001 .. 1010 LOOP
		UPDATE letter SET id = -i;
		INSERT INTO jobq_internal.dead_letter TABLE letter;
	END LOOP;
END $$});
cmp_ok(sql(q{SELECT pg_relation_size('jobq_internal.dead_letter') / 8192}), '>', 12, 'they need several pieces');
my $fresh = q{SELECT count(*) FROM jobq_internal.dead_letter WHERE id BETWEEN -1000 AND -1};
my $old = q{SELECT count(*) FROM jobq_internal.dead_letter WHERE id < -1000};

# The clock jumps before the first piece with dead letters is read: the pass stops after the piece.
hold('jobq-retention-piece');
confirm_clock('2 hours');
is_held('jobq-retention-piece');
set_clock('4000 days');
release('jobq-retention-piece');
round();
is(sql($fresh), 1000, 'after a jump in the middle of a pass, fresh dead letters stay');
is(sql($old), 10, 'and the pass has stopped');

# The clock is right again: a pass from the beginning deletes the old rows only.
set_clock('2 hours');
wait_for($node, 'the next pass deletes what is old', "SELECT ($old) = 0");
is(sql($fresh), 1000, 'and nothing else');

# The clock jumps at the beginning of a round, between the check of the clock and its reading.
sql(q{INSERT INTO jobq_internal.audit VALUES (-1, '2000-01-01', 'postgres', 'postgres', '', 'old', '{}')});
confirm_clock('4 hours');
wait_for($node, 'a pass has deleted old rows', 'SELECT count(*) = 0 FROM jobq_internal.audit WHERE id = -1');
hold('jobq-round-begins');
sql(q{SELECT jobq.enqueue('nothing', delay => '1 ms')});
is_held('jobq-round-begins');
set_clock('4000 days');
release('jobq-round-begins');
round();
is(sql($fresh), 1000, 'after a jump at the beginning of a round, fresh dead letters stay');
set_clock('4 hours');

# The clock jumps while a piece of the unique keys is read: a key is held for its window.
sql(q{
TRUNCATE jobq_internal.dead_letter;
DELETE FROM jobq_internal.archive;
SELECT jobq.enqueue('nothing', unique_key => 'key', uniqueness => '{"for": "30 days"}')});
wait_for($node, 'the job has finished', q{SELECT count(*) = 0 FROM jobq_internal.job});
sql('TRUNCATE jobq_internal.audit');
hold('jobq-retention-piece');
confirm_clock('6 hours');
is_held('jobq-retention-piece');
set_clock('4000 days');
release('jobq-retention-piece');
round();
set_clock('6 hours');
is(sql('SELECT count(*) FROM jobq_internal.unique_key'), 1, 'a unique key is held after a jump in the middle of its piece');

# A pass is followed by a rest as long as the pass, by a clock that never steps, even if the pass
# lasted for hours by the clock.  A piece held for a second is followed by a pause of four seconds.
# The pass then lasts for five seconds.
my $insert_old = q{INSERT INTO jobq_internal.audit VALUES (-1, '2000-01-01', 'postgres', 'postgres', '', 'old', '{}')};
my $old_are_gone = 'SELECT count(*) = 0 FROM jobq_internal.audit WHERE id = -1';
sql($insert_old);
hold('jobq-retention-piece');
confirm_clock('8 hours');
is_held('jobq-retention-piece');
my $held = sql('SELECT clock_timestamp()');
wait_for($node, 'a second', "SELECT clock_timestamp() > '$held'::timestamptz + interval '1 s'");
confirm_clock('10 hours');
my $released = sql('SELECT clock_timestamp()');
release('jobq-retention-piece');
wait_for($node, 'the piece is over', $old_are_gone);
sql($insert_old);
wait_for($node, 'the next pass deletes old rows', $old_are_gone);
is(sql("SELECT clock_timestamp() - '$released' >= 8.5 * ('$released' - '$held'::timestamptz)"), 't', 'a long pass is followed by a rest');

no_failed_assertion($node);
$node->stop;
done_testing();
