# An urgent job gets a slot in a full ready set.  scheduler_turns.pl shows that the job keeps
# the slot.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'once=1'
jobq.ready_entries = 1024
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE ran (n bigint GENERATED ALWAYS AS IDENTITY, what text);
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload #>> '{}' = 'first' THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
	INSERT INTO ran (what) VALUES (payload #>> '{}');
END $$;
SELECT jobq.register('note', 'note(jsonb)')});

sub sql { return $node->safe_psql('postgres', $_[0]) }

# A role has 120 lanes of 16 jobs: each is too short to give a slot to an equal lane.  The only
# worker is held until all jobs have come.
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.enqueue('note', '"first"', queue => 'once')});
wait_for($node, 'the worker is held up', q{SELECT count(*) = 1 FROM jobq.workers WHERE state = 'running'});
sql(q{SELECT count(*) FROM generate_series(1, 120) p, LATERAL jobq.enqueue_many('note', array_fill('"many"'::jsonb, ARRAY[16]), queue => 'once', priority => p)});
wait_for($node, 'the ready set is full', q{SELECT ready_entries = 1024 FROM jobq_internal.scheduler_state()});
sql(q{SELECT jobq.enqueue('note', '"urgent"', queue => 'once', priority => -1)});
$gate->quit;
wait_for($node, 'all run', q{SELECT count(*) = 1922 FROM ran});
is(sql(q{SELECT n FROM ran WHERE what = 'urgent'}), '2', 'an urgent job of one of many short lanes is the next');

$node->stop;
no_failed_assertion($node);
done_testing();
