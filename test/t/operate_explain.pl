# explain(): the reasons that need a separate server or a second session.  The test
# sql/operate_explain.sql covers the other reasons.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=2'
jobq.max_workers = 1
jobq.cancel_grace = '10min'
jobq.log_min_duration = 0
});
$node->start;

sub sql { return $node->safe_psql($_[1] // 'postgres', $_[0]); }

# The reasons, in order.
sub reasons
{
	my ($id, $dbname) = @_;
	return sql("SELECT string_agg(reason, ',') FROM jobq.explain($id)", $dbname);
}

# An idle worker, stopped while waiting without a lock.
sub stopped_worker
{
	poll($node, q{SELECT count(*) = 1 FROM jobq.workers WHERE state = 'idle'}) or return;
	my ($pid) = worker_pids($node);
	return stop_at_rest($node, $pid) ? $pid : undef;
}

my $setup = q{
CREATE EXTENSION jobq;
CREATE FUNCTION gate(payload jsonb) RETURNS void LANGUAGE sql
	AS 'SELECT pg_advisory_xact_lock_shared((payload #>> ''{}'')::bigint)';
CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
EXCEPTION WHEN query_canceled THEN
	PERFORM pg_advisory_xact_lock_shared(2);
END $$;
SELECT jobq.register('gate', 'gate(jsonb)'), jobq.register('stubborn', 'stubborn()');
};
sql($setup);
wait_for($node, 'the database is served', 'SELECT pid IS NOT NULL AND complete FROM jobq_internal.scheduler_state()');
my $holder = $node->background_psql('postgres');

# A database that is not served.
sql('CREATE DATABASE other');
sql($setup, 'other');
my $id = sql(q{SELECT jobq.enqueue('gate', '1')}, 'other');
is(reasons($id, 'other'), 'not_served', 'a database that jobq.databases does not name');

# No worker starts.
sql(q{ALTER SYSTEM SET jobq.start_paused = on});
$node->reload;
wait_for($node, 'workers are to pause', q{SELECT current_setting('jobq.start_paused') = 'on'
	AND EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'jobq scheduler' AND wait_event_type = 'Extension')});
$id = sql(q{SELECT jobq.enqueue('gate', '3')});
is(reasons($id), 'start_paused', 'jobq.start_paused is on');
sql(q{ALTER SYSTEM RESET jobq.start_paused});
$node->reload;
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'and then off');

# All worker slots are in use, although the pool has room for another worker.
$holder->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.enqueue('gate', '1')});
sleeps($node, 'a job runs', 1);
$id = sql(q{SELECT jobq.enqueue('gate', '3')});
is(reasons($id), 'places', 'no place for another worker');
$holder->query_safe('SELECT pg_advisory_unlock(1)');
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'there is one');

# The worker of an earlier job runs the next job, from a long line that was ready before.
$holder->query_safe('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
sql(q{SELECT jobq.enqueue('gate', '1')});
sleeps($node, 'a job runs', 1);
sql(q{SELECT count(*) FROM jobq.enqueue_many('gate', array_fill('2'::jsonb, ARRAY[1000]))});
wait_for($node, 'many wait', q{SELECT ready_entries >= 1000 FROM jobq_internal.scheduler_state()});
$holder->query_safe('SELECT pg_advisory_unlock(1)');
wait_for($node, 'the first of them runs',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 2});
like(
	sql(q{SELECT e.detail FROM (SELECT id FROM jobq.live_jobs WHERE state = 'ready' ORDER BY id LIMIT 1) j
	CROSS JOIN LATERAL jobq.explain(j.id) e WHERE e.reason = 'next'}),
	qr/^worker \d+ has claimed the job, and runs it after job \d+/,
	'a worker has taken it along');
$holder->query_safe('SELECT pg_advisory_unlock(2)');
ok(sql(q{SELECT jobq.wait_queue('default', '5 min')}) eq 't', 'all have run');

# The job runs after a job of another role.  The reason does not name the other job.
sql(q{
CREATE ROLE clerk LOGIN; CREATE ROLE shop1 LOGIN; CREATE ROLE shop2 LOGIN;
SELECT jobq.grant_privilege('shop1'), jobq.grant_privilege('shop2'), jobq.create_queue('desk', run_as => 'clerk');
SELECT jobq.grant_privilege('shop1', queue => 'desk'), jobq.grant_privilege('shop2', queue => 'desk'), jobq.register('ask', 'gate(jsonb)', queue => 'desk')});
$holder->query_safe('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
sql(q{SET ROLE shop2; SELECT jobq.enqueue('ask', '1')});
sleeps($node, 'a job runs', 1);
my $others = sql(q{SET ROLE shop2; SELECT jobq.enqueue('ask', '2')});
sql(q{SET ROLE shop1; SELECT count(*) FROM jobq.enqueue_many('ask', array_fill('2'::jsonb, ARRAY[1000]))});
wait_for($node, 'many wait', q{SELECT ready_entries >= 1000 FROM jobq_internal.scheduler_state()});
$holder->query_safe('SELECT pg_advisory_unlock(1)');
wait_for($node, 'the first of them runs',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 2});
my $next = q{SELECT e.detail FROM (SELECT id FROM jobq.live_jobs WHERE state = 'ready' ORDER BY id LIMIT 1) j
	CROSS JOIN LATERAL jobq.explain(j.id) e WHERE e.reason = 'next'};
like(sql($next), qr/^worker \d+ has claimed the job, and runs it after job $others /, 'who sees both is told which job it comes after');
like(sql("SET ROLE shop1; $next"), qr/^worker \d+ has claimed the job, and runs it after a job of another role /, 'and who has enqueued it is not');
$holder->query_safe('SELECT pg_advisory_unlock(2)');
ok(sql(q{SELECT jobq.wait_queue('desk', '5 min')}) eq 't', 'those have run, too');

# A role also cannot see a job of another role at the head of a group.
sql(q{
CREATE FUNCTION stumble() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'stumbled'; END $$;
SELECT jobq.create_queue('lines', open => true), jobq.register('stumble', 'stumble()', queue => 'lines', backoff => 'fixed 1h')});
my $owner = sql(q{SET ROLE shop2; SELECT jobq.enqueue('stumble', group_key => 'g')});
wait_for($node, 'a job waits for its next attempt', "SELECT state = 'retryable' FROM jobq.jobs WHERE id = $owner");
my $behind = sql(q{SET ROLE shop1; SELECT jobq.enqueue('stumble', group_key => 'g')});
wait_for($node, 'its group waits for it', "SELECT waits_for = $owner FROM jobq.limits WHERE type = 'group'");
is(sql(q{SET ROLE shop2; SELECT waits_for, group_key FROM jobq.limits WHERE type = 'group'}), "$owner|g", 'whose it is sees it');
is(sql(q{SET ROLE shop1; SELECT waits_for, group_key FROM jobq.limits WHERE type = 'group'}), '|g', 'and another one sees but the group');
sql("SELECT jobq.cancel($owner), jobq.cancel($behind)");

# After crashes of two jobs, the scheduler runs the suspects in sequence.
$holder->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.create_queue('bad'), jobq.pause('bad')});
my @bad = split /\n/, sql(q{SELECT jobq.enqueue_many('gate', '{1,1}', queue => 'bad')});
sql('UPDATE jobq_internal.job SET crashes = 1');
# restart the scheduler, to read the jobs again
my $scheduler = scheduler_pid($node);
sql("SELECT pg_terminate_backend($scheduler)");
wait_for_exit($scheduler);
wait_for($node, 'there is another scheduler', 'SELECT pid IS NOT NULL AND complete FROM jobq_internal.scheduler_state()');
sql(q{SELECT jobq.resume('bad')});
sleeps($node, 'the first runs', 1);
is(reasons($bad[1]), 'quarantine', 'the second of them waits');
$holder->query_safe('SELECT pg_advisory_unlock(1)');
is(sql("SELECT state FROM jobq.wait($bad[1], '5 min')"), 'completed', 'until the first is over');

# A cancelled job whose handler has not ended.
$holder->query_safe('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
$id = sql(q{SELECT jobq.enqueue('stubborn')});
sleeps($node, 'it runs', 1);
sql("SELECT jobq.cancel($id)");
wait_for($node, 'it has caught that',
	q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 2});
is(reasons($id), 'running,lock,cancelling', 'its handler does not end');
$holder->query_safe('SELECT pg_advisory_unlock(1), pg_advisory_unlock(2)');
like(sql("SELECT state FROM jobq.wait($id, '5 min')"), qr/^(?:cancelled|completed)$/, 'it does at last');

# No obstacle: the worker has been woken, but has not got the processor yet.
my $worker = stopped_worker();
ok($worker, 'an idle worker is stopped while it waits');
is( sql("SELECT wait_event FROM pg_stat_activity WHERE pid = $worker"),
	$node->pg_version >= 17 ? 'JobqWorker' : 'Extension', 'and says so');
my $trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
$id = sql(qq{SELECT jobq.enqueue('gate', '3', headers => '{"traceparent": "$trace"}')});
is(reasons($id), 'soon', 'nothing is in its way');
signal_process('CONT', $worker);
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'and it starts');
$node->wait_for_log(qr/LOG:  job $id of kind "gate" ran for \d+\.\d{3} ms, traceparent $trace$/m);

# Another session has locked the row of the job.
sql(q{SELECT jobq.pause('bad')});
$id = sql(q{SELECT jobq.enqueue('gate', '3', queue => 'bad')});
$holder->query_safe("BEGIN; SELECT jobq.cancel($id)");
is(reasons($id), 'paused,taken', 'a session is cancelling it');
like(sql("SELECT remedy FROM jobq.explain($id) WHERE reason = 'taken'"), qr/^SELECT pg_terminate_backend\(\d+\)$/, 'which one');
$holder->query_safe('ROLLBACK');
is(reasons($id), 'paused', 'it did not');
$holder->quit;

# The queue does not exist: only a superuser can cause this, by a write into the tables.
sql("UPDATE jobq_internal.job SET queue_id = -1 WHERE id = $id");
is(reasons($id), 'no_queue', 'a job without a queue');
sql("UPDATE jobq_internal.job SET queue_id = (SELECT q.id FROM jobq_internal.queue q WHERE q.name = 'bad') WHERE id = $id");

# A job waits for a lock of another job.  Both belong to the same role, and an agent runs both.
$node->append_conf('postgresql.conf', 'jobq.max_workers = 2');
$node->restart;
sql(q{
CREATE ROLE author LOGIN;
CREATE ROLE agent LOGIN;
CREATE TABLE page (n int);
INSERT INTO page VALUES (0);
GRANT ALL ON page TO agent;
CREATE FUNCTION turn() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE page SET n = n + 1;
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
SELECT jobq.grant_privilege('author'), jobq.grant_privilege('agent'), jobq.create_queue('agency', run_as => 'agent');
SELECT jobq.grant_privilege('author', queue => 'agency'), jobq.register('turn', 'turn()', queue => 'agency');
});
$holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(1)');
my $first = sql(q{SET ROLE author; SELECT jobq.enqueue('turn')});
sleeps($node, 'the first runs', 1);
my $second = sql(q{SET ROLE author; SELECT jobq.enqueue('turn')});
wait_for($node, 'the second waits for it', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted});
is(sql("SET ROLE author; SELECT detail ~ 'role agent has, which runs job $first\$', remedy FROM jobq.explain($second) WHERE reason = 'lock'"),
	"t|SELECT * FROM jobq.explain($first)", 'which job that is');
$holder->query_safe('SELECT pg_advisory_unlock(1)');
is(sql("SELECT state FROM jobq.wait($second, '5 min')"), 'completed', 'both have run');
$holder->quit;

# A server without jobq.
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
is(reasons($id), 'not_loaded,paused', 'jobq is not loaded');

no_failed_assertion($node);
$node->stop;
done_testing();
