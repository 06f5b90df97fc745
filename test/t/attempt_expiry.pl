# Expired jobs that no consumer takes end with the next safety check.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The first check comes an hour after the start.
my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.poll_interval = '1h'
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $jobs = 21000;	# more than a check reads if it finds no expired job
my $batch = sql(qq{
CREATE EXTENSION jobq;
SELECT jobq.create_queue('nobody takes', mode => 'consumer', expires_after => '30 min') \\g /dev/null
SELECT jobq.create_batch(allow_failures => true) AS batch \\gset
SELECT count(*) FROM jobq.add_jobs(:batch, 'x', ARRAY(SELECT '{}'::jsonb FROM generate_series(1, $jobs)), '{"queue": "nobody takes"}') \\g /dev/null
SELECT jobq.start_batch(:batch) \\g /dev/null
SELECT :batch});
my $states = q{SELECT string_agg(concat_ws(' ', state, n), ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM jobq.jobs GROUP BY state) AS s};
is(sql($states), "ready $jobs", 'jobs wait');
sql(q{SELECT jobq.test_clock('31 min')});
is(sql($states), "expired $jobs", 'their state is expired from the time of the expiry');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE finished_at IS NOT NULL}), 0, 'before they end');
is(sql("SELECT state FROM jobq.wait_batch($batch, '0')"), 'running', 'their batch goes on');
sql(q{SELECT jobq.test_clock('61 min')});
is(sql("SELECT state, total, expired FROM jobq.wait_batch($batch, '10 min')"), "failed|$jobs|$jobs", 'a single check ends all of them');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE finished_at IS NULL}), 0, 'none is left for the next check');
sql(q{SELECT jobq.test_clock('0')});

$node->stop;
no_failed_assertion($node);
done_testing();
