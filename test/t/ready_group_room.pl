# More groups than slots for groups.  A job whose group finds no slot is passed over, and found
# again when the group has a slot and waits for the job.  Otherwise groups which wait for such
# jobs would come to hold all slots, and no job would begin.

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

# Enqueue a job for each of these clients.
sub enqueue
{
	my ($priority, $first, $last) = @_;

	return sql(qq{
SELECT count(jobq.enqueue('bill', jsonb_build_object('client', g, 'priority', $priority), queue => 'outside', priority => $priority, group_key => 'client' || g))
	FROM generate_series($first, $last) g});
}

# Complete the first $n of the held jobs.
sub finish
{
	my ($n) = @_;

	return sql(qq{
WITH h AS (UPDATE held SET done = true WHERE n IN (SELECT n FROM held WHERE NOT done ORDER BY n LIMIT $n) RETURNING id, token)
SELECT count(jobq.ack(id, token)) FROM h});
}

# Reserve all available jobs.
sub take
{
	return sql(q{
WITH r AS (INSERT INTO held (id, token, priority, client)
	SELECT r.id, r.token, (r.payload ->> 'priority')::int, r.payload ->> 'client' FROM jobq.reserve('{outside}', 100, '1 hour') r RETURNING 1)
SELECT count(*) FROM r});
}

# the first jobs of all clients are in the same lane
enqueue(1, 1, $groups);
wait_for($node, 'all are ready', "SELECT ready_entries = $groups FROM jobq_internal.scheduler_state()");
sql(q{SELECT jobq.release(id, token) FROM jobq.reserve('{outside}', wait => '5 min')});
wait_for($node, 'and can be had', "SELECT ready_entries = $groups FROM jobq_internal.scheduler_state()");
is(take(), 56, 'as many jobs run as the role has places for groups');

# and their second jobs in another lane, which is not passed over: few slots are free at a time,
# and the groups which get these slots wait for jobs which were passed over
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
