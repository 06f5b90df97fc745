# More groups than there are places for: what is passed over, as its group has found no
# place, is found again when its group has one and waits for it.  Else groups that wait
# for such jobs would come to hold all places, and nothing would begin any more.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $groups = 200;				# 56, and a multiple of three more
my $node = jobq_node('main', q{
jobq.workers = '*=1'
jobq.ready_entries = 1024
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
SELECT jobq.create_queue('outside', mode => 'consumer');
CREATE TABLE held (n bigserial, id bigint, token bigint, priority int, client text, done boolean DEFAULT false);
});

sub sql { return $node->safe_psql('postgres', $_[0]) }

# A job for each of these clients.
sub enqueue
{
	my ($priority, $first, $last) = @_;

	return sql(qq{
SELECT count(jobq.enqueue('bill', jsonb_build_object('client', g, 'priority', $priority), queue => 'outside', priority => $priority, group_key => 'client' || g))
	FROM generate_series($first, $last) g});
}

# So many of what is held are done, in their order.
sub finish
{
	my ($n) = @_;

	return sql(qq{
WITH h AS (UPDATE held SET done = true WHERE n IN (SELECT n FROM held WHERE NOT done ORDER BY n LIMIT $n) RETURNING id, token)
SELECT count(jobq.ack(id, token)) FROM h});
}

# What is to be had is held.
sub take
{
	return sql(q{
WITH r AS (INSERT INTO held (id, token, priority, client)
	SELECT r.id, r.token, (r.payload ->> 'priority')::int, r.payload ->> 'client' FROM jobq.reserve('{outside}', 100, '1 hour') r RETURNING 1)
SELECT count(*) FROM r});
}

# each client's first job is in one lane
enqueue(1, 1, $groups);
wait_for($node, 'all are ready', "SELECT ready_entries = $groups FROM jobq_internal.scheduler_state()");
sql(q{SELECT jobq.release(id, token) FROM jobq.reserve('{outside}', wait => '5 min')});
wait_for($node, 'and can be had', "SELECT ready_entries = $groups FROM jobq_internal.scheduler_state()");
is(take(), 56, 'as many jobs run as the role has places for groups');

# and its second one in another, which is not passed over: few places are free at a time,
# and whoever gets them has to wait for one that has been passed over
for (my $client = 57; $client <= $groups; $client += 3)
{
	finish(3);
	enqueue(5, $client, $client + 2);
	take();
}
enqueue(5, 1, 56);
my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
while (sql('SELECT count(*) FROM jobq_internal.job') > 0 && time < $deadline)
{
	$deadline = time + $PostgreSQL::Test::Utils::timeout_default if finish(3) + take() > 0;
}
is(sql('SELECT count(*), count(DISTINCT id) FROM held'), 2 * $groups . '|' . 2 * $groups, 'each job has run once');
is(sql(q{SELECT count(*) FROM held a JOIN held b USING (client) WHERE a.priority = 1 AND b.priority = 5 AND a.n < b.n}),
	$groups, 'in the order of its group');
$node->stop;
done_testing();
