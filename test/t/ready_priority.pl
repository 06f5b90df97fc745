# Urgent work does not wait behind a backlog, nor a fast queue behind slow
# reports.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'reports=2; fast=1; *=8'
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE SEQUENCE started;
CREATE TABLE urgent (n bigint);
-- Each start has a number; then they wait in line for the lock.
CREATE FUNCTION normal() RETURNS void LANGUAGE sql AS $$ SELECT nextval('started'), pg_advisory_xact_lock(1) $$;
CREATE FUNCTION urgent() RETURNS void LANGUAGE sql AS $$ INSERT INTO urgent SELECT nextval('started') $$;
CREATE FUNCTION report() RETURNS void LANGUAGE sql AS $$ SELECT pg_advisory_xact_lock_shared(2) $$;
CREATE FUNCTION fast() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('normal', 'normal()'), jobq.register('urgent', 'urgent()');
SELECT jobq.register('report', 'report()', queue => 'reports'), jobq.register('fast', 'fast()', queue => 'fast');
});

#
# Eight busy workers, and a backlog of 100,000 jobs: the first worker to finish takes the urgent
# job, so each other worker begins at most one job before.  Another session queues for the lock
# behind the eight workers.  Each worker then finishes a single job, even on a slow machine.
#
# The jobs before take no time: if there are more workers than processors, some workers leave
# these jobs to the others.
#
my ($session, $next) = map { $node->background_psql('postgres') } 1 .. 2;
$session->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.enqueue_many('fast', array_fill('{}'::jsonb, ARRAY[20000]), queue => 'default')});
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.enqueue_many('normal', array_fill('{}'::jsonb, ARRAY[100000]))});
foreach my $round (1 .. 5)
{
	# the workers are in the middle of the backlog, with prefetched jobs
	wait_for($node, "urgent $round: all are busy", q{SELECT count(*) = 8 FROM jobq.workers WHERE state = 'running' AND kind = 'normal'});
	sleeps($node, "urgent $round: and wait in line", 8);
	my $before = $node->safe_psql('postgres', 'SELECT last_value FROM started');
	my $id = $node->safe_psql('postgres', q{SELECT jobq.enqueue('urgent', priority => -1)});
	$next->query_until(qr/begun/, "\\echo begun\nSELECT pg_advisory_lock(1);\n\\echo it is mine\n");
	sleeps($node, "urgent $round: another one behind them", 9);
	$session->query_safe('SELECT pg_advisory_unlock(1)');
	wait_for($node, "urgent $round: it is done", "SELECT state = 'completed' FROM jobq.status($id)");
	$next->query_until(qr/it is mine/, '');
	($session, $next) = ($next, $session);
	my $others = $node->safe_psql('postgres', 'SELECT max(n) FROM urgent') - $before - 1;
	cmp_ok($others, '<=', 7, "urgent $round: $others others began before it");
}
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM jobq_internal.job'), '>', 10000, 'urgent: and there was a backlog');
$node->safe_psql('postgres', q{SELECT jobq.cancel_many(queue => 'default', state => 'waiting')});
$session->query_safe('SELECT pg_advisory_unlock(1)');
$session->query_safe('SELECT pg_advisory_lock(2)');

#
# Reports take forever, in their own pool.  Neither a fast queue nor a queue which shares the
# other workers waits for a report.
#
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.enqueue_many('report', array_fill('{}'::jsonb, ARRAY[1000]))});
wait_for($node, 'reports: as many run as its pool has workers',
	q{SELECT count(*) = 2 FROM jobq.workers WHERE state = 'running' AND kind = 'report'});
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.enqueue_many('fast', array_fill('{}'::jsonb, ARRAY[2000]))});
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.enqueue_many('fast', array_fill('{}'::jsonb, ARRAY[500]), queue => 'other')});
wait_for($node, 'reports: all of the fast are done meanwhile',
	q{SELECT count(*) = 2500 FROM jobq.jobs WHERE kind = 'fast' AND queue <> 'default' AND state = 'completed'});
is($node->safe_psql('postgres', q{SELECT state, count(*) FROM jobq.jobs WHERE kind = 'report' GROUP BY state ORDER BY state}),
	"ready|998\nrunning|2", 'reports: none has come to its end');
$session->query_safe('SELECT pg_advisory_unlock(2)');
wait_for($node, 'reports: then they go on', q{SELECT count(*) = 1000 FROM jobq.jobs WHERE kind = 'report' AND state = 'completed'});
$_->quit foreach $session, $next;

no_failed_assertion($node);
done_testing();
