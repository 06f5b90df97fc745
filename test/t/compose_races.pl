# A session changes a workflow, or locks its tables, while the scheduler evaluates the workflow.
# Injection points hold the scheduler.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=2'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $points = sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'});
sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note()');
SELECT jobq.create_queue('steps', mode => 'consumer')});

# Complete the next job of a consumer, or reject the job.
sub complete { return sql(q{SELECT jobq.ack(id, token) FROM jobq.reserve('{steps}', wait => '5 min')}); }
sub refuse { return sql(q{SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{steps}', wait => '5 min')}); }

# Wait until the scheduler has evaluated all batches which need this.
sub scheduler_looks
{
	foreach my $name ('one', 'another')
	{
		my $fence = sql("SELECT jobq.create_batch('$name')");
		sql("SELECT jobq.start_batch($fence)");
		poll($node, "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $fence");
	}
	return;
}

# Hold the scheduler at the point, where it comes because of "cause", during "meanwhile".
sub hold
{
	my ($point, $cause, $meanwhile) = @_;

	sql("SELECT injection_points_attach('$point', 'wait')");
	$cause->();
	wait_for($node, "$point: it is held", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$point'");
	$meanwhile->();
	sql("SELECT injection_points_detach('$point')");
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $node->psql('postgres', "SELECT injection_points_wakeup('$point')", stderr => \my $unused) != 0;
		usleep(100_000);
	}
	return;
}

sub is_over
{
	my ($what, $batch, $state) = @_;

	wait_for($node, "$what: it is over", "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $batch");
	is(sql("SELECT state FROM jobq.batches WHERE id = $batch"), $state, "$what: it is $state");
	return;
}

#
# An operator locks the table of steps when a condition is due: the step waits, and does not fail.
# The scheduler keeps the workflow in memory, so that the condition is the first read of the table.
#
my $kept = sql(q{SELECT jobq.create_workflow(jsonb_build_object('steps', '[{"name": "a", "kind": "x", "queue": "steps", "priority": 1}, {"name": "b", "kind": "x", "queue": "steps", "priority": 2},
	{"name": "c", "kind": "note", "needs": ["b"], "when": "!exists($.b.no)"}]' || (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'note', 'needs', '["c"]'::jsonb)) FROM generate_series(1, 40) i)))});
complete();
scheduler_looks();
my $locks = $node->background_psql('postgres');
$locks->query_safe('BEGIN; LOCK TABLE jobq_internal.step');
complete();
scheduler_looks();
$locks->query_safe('COMMIT');
$locks->quit;
is_over('locked', $kept, 'completed');

#
# The condition of a nested workflow fails: the workflow is over at once.
#
my $outer = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "first", "kind": "x", "queue": "steps"},
	{"name": "in", "needs": ["first"], "when": "$.first < $limit", "workflow": [{"name": "x", "kind": "x", "queue": "steps"}]}]}')});
my $inner = sql("SELECT workflow_id FROM jobq.steps WHERE batch_id = $outer AND name = 'in'");
complete();
is_over('condition', $outer, 'failed');
is_over('condition, inside', $inner, 'cancelled');

if ($points eq '0')
{
	$node->stop;
	no_failed_assertion($node);
	done_testing();
	exit;
}
sql('CREATE EXTENSION injection_points');

#
# A session cancels a nested workflow that the scheduler is about to begin.
#
$outer = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "first", "kind": "x", "queue": "steps"},
	{"name": "in", "needs": ["first"], "workflow": [{"name": "x", "kind": "x", "queue": "steps"}]}]}')});
$inner = sql("SELECT workflow_id FROM jobq.steps WHERE batch_id = $outer AND name = 'in'");
hold('jobq-nest-begins', \&complete, sub { is(sql("SELECT jobq.cancel_batch($inner)"), 't', 'begins: it is cancelled'); });
is_over('begins, inside', $inner, 'cancelled');
is_over('begins', $outer, 'cancelled');

#
# A dead step is retried and completed while the last other step ends.  A step that was dropped
# because of the failure goes on, and is skipped, under the lock of the batch: the batch is over.
# The archive has lost the dropped step, which is counted in the batch.
#
my $flow = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "x", "queue": "steps", "priority": 1, "max_attempts": 1},
	{"name": "b", "kind": "note", "needs": ["a"], "when": "exists($.a.no)"}, {"name": "other", "kind": "x", "queue": "steps", "priority": 2}]}')});
refuse();
is_over('goes on, at first', $flow, 'failed');
sql("SELECT jobq.rerun_steps($flow), jobq.retry_many(batch_id => $flow)");
refuse();
wait_for($node, 'goes on: a step is dropped', "SELECT state = 'cancelled' FROM jobq.steps WHERE batch_id = $flow AND name = 'b'");
sql(q{SELECT jobq.prune('0', NULL)});
hold('jobq-batch-reads', \&complete, sub {
	sql("SELECT jobq.retry(job_id) FROM jobq.steps WHERE batch_id = $flow AND name = 'a'");
	complete();
});
is_over('goes on', $flow, 'completed');
is(sql("SELECT completed, dead, cancelled FROM jobq.batches WHERE id = $flow"), '2|0|1', 'goes on: each step is counted once');
unlike(slurp_file($node->logfile), qr/batch $flow cannot go on/, 'goes on: at the first evaluation');

$node->stop;
no_failed_assertion($node);
done_testing();
