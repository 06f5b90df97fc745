# With many queues, a new queue and a dropped queue cost what they cost with few: no table is
# read as a whole, and no process reads the other queues again.
#
# The test counts blocks, not times.  The counters of a session include the earlier transactions
# of the same statement.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# The safety check reads the settings of all queues from time to time, which is not counted here.
my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.poll_interval = 3600
autovacuum = off
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'as wanted'; END $$;
CREATE FUNCTION opens(payload jsonb) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN PERFORM jobq.enqueue('nothing', queue => payload ->> 'queue'); END $$;
SELECT jobq.register('nothing', 'nothing()'), jobq.register('opens', 'opens(jsonb)'),
	jobq.register('fails', 'fails()', max_attempts => 1);

-- Blocks of the tables and indexes of jobq that this session has read in this statement.
CREATE FUNCTION blocks_read(only_relation text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class
	WHERE relnamespace = 'jobq_internal'::regnamespace AND relkind IN ('r', 'i')
		AND (only_relation IS NULL OR relname LIKE only_relation)
$$;

-- Run the command in a transaction of its own, and count the blocks.
CREATE PROCEDURE count_blocks(command text, INOUT blocks bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
	before bigint := blocks_read();
BEGIN
	EXECUTE command;
	COMMIT;
	blocks := blocks_read() - before;
END $$;

-- Enqueue a job in a known queue, after another process has created a queue by its first use;
-- and count the blocks of the table of queues.
CREATE PROCEDURE count_after_new_queue(new_queue text, INOUT blocks bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
	before bigint;
	job bigint;
BEGIN
	PERFORM jobq.enqueue('nothing', queue => 'known');
	job := jobq.enqueue('opens', jsonb_build_object('queue', new_queue), queue => 'known');
	COMMIT;
	before := blocks_read('queue%');
	PERFORM jobq.wait(job);
	COMMIT;
	PERFORM jobq.enqueue('nothing', queue => 'known');
	COMMIT;
	blocks := blocks_read('queue%') - before;
END $$;

SELECT jobq.create_queue('known'), jobq.create_queue('backlog'), jobq.pause('backlog');
INSERT INTO jobq_internal.queue (name) SELECT 'queue ' || i FROM generate_series(1, 10000) i;
SELECT jobq.create_queue('letters');
});

# a dead letter, as a model for many, an archived job, and a backlog
sql(q{SELECT jobq.enqueue('fails', queue => 'letters'), jobq.enqueue('nothing', queue => 'known')});
wait_for($node, 'a dead letter and an archived job', q{SELECT (SELECT count(*) FROM jobq_internal.dead_letter) = 1
	AND (SELECT count(*) FROM jobq_internal.archive) = 1});
sql(q{
CREATE TEMP SEQUENCE copy;
CREATE TEMP TABLE letter AS SELECT l.* FROM jobq_internal.dead_letter l, generate_series(1, 10000);
CREATE TEMP TABLE finished AS SELECT a.* FROM jobq_internal.archive a, generate_series(1, 10000);
UPDATE letter SET id = -nextval('copy');
UPDATE finished SET id = -nextval('copy');
INSERT INTO jobq_internal.dead_letter TABLE letter;
INSERT INTO jobq_internal.archive TABLE finished;
SELECT count(*) FROM jobq.enqueue_many('nothing', array_fill('null'::jsonb, ARRAY[10000]), queue => 'backlog');
});
sql('VACUUM ANALYZE');
my $most = 100;
cmp_ok(sql(qq{SELECT min(pg_relation_size(oid)) / 8192 FROM pg_class WHERE oid = ANY (
	'{jobq_internal.queue,jobq_internal.job,jobq_internal.dead_letter}'::regclass[])}),
	'>', $most, 'each table has more blocks than a command may read');

# the first call in a session also reads the tables of kinds and privileges
sub is_cheap
{
	my ($command, $what) = @_;
	my $blocks = sql("CALL count_blocks(\$\$$command\$\$)");
	cmp_ok($blocks, '>', 0, "$what: blocks are counted");
	cmp_ok($blocks, '<=', $most, "$what: few blocks are read");
	return;
}

is_cheap(q{SELECT jobq.drop_queue('queue 77')}, 'to drop an empty queue');
sql(q{UPDATE jobq_internal.dead_letter SET queue_id = (SELECT id FROM jobq_internal.queue WHERE name = 'queue 78')
	WHERE id = -77});
is_cheap(q{SELECT jobq.drop_queue('queue 78', force => true)}, 'to drop a queue with a dead letter');
is(sql(q{SELECT count(*) FROM jobq_internal.dead_letter}), 10000, 'the dead letters of other queues are there');
is_cheap(q{SELECT jobq.enqueue('nothing', queue => 'new 1')}, 'the first use of a queue');
is(sql(q{CALL count_after_new_queue('new 2')}), 0, 'a new queue makes no other process read its queues again');

# The scheduler reads the table of queues as a whole when settings change.  The scheduler reports its
# scans at the end of a round, at most once a second.  A delayed job makes the scheduler begin a round.
sub scans
{
	usleep(1_100_000);
	my $job = sql(q{SELECT jobq.enqueue('nothing', queue => 'known', delay => '1 ms')});
	sql("SELECT state FROM jobq.wait($job, '5 min')");
	# the round may end after the job
	usleep(500_000);
	return sql(q{SELECT seq_scan FROM pg_stat_all_tables WHERE relid = 'jobq_internal.queue'::regclass});
}

sub scans_of_change
{
	my ($max_length) = @_;
	my $before = scans();

	sql("SELECT jobq.alter_queue('known', max_length => $max_length)");
	return scans() - $before;
}

# Each process of a parallel query would count as a scan.
my $most_scans = 3;
my $scans = scans_of_change(1001);
cmp_ok($scans, '>', 0, 'after a change of settings, the scheduler reads the queues');
cmp_ok($scans, '<=', $most_scans, 'the scheduler reads all queues at most three times, without parallel workers');

my $begun = scans();
my $new = 28;
for my $i (3 .. 2 + $new)
{
	sql(qq{SELECT jobq.enqueue('nothing', queue => 'new $i')});
	wait_for($node, "the job of new queue $i",
		"SELECT count(*) = 1 FROM jobq.jobs WHERE queue = 'new $i' AND state = 'completed'");
}

# The removal of old rows may have begun a pass, which reads the settings of all queues once.
cmp_ok(scans() - $begun, '<=', 1, 'the scheduler does not read all queues for a new one');

no_failed_assertion($node);
$node->stop;
done_testing();
