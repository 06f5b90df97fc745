# Jobs which do not wait for a slot of their limiter (when_taken).  The slot becomes free, the
# scheduler ends or the server crashes while the scheduler is about to end such a job; and some
# jobs are found only by jobq.work().

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
jobq.databases = '*'
jobq.workers = 'served=2'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $points = sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'});
sql(q{
CREATE EXTENSION jobq;
CREATE TABLE done (id bigint);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$ INSERT INTO done SELECT job.id $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.create_limiter('one', max_running => 1, when_taken => 'skip');
SELECT jobq.create_queue('leased', mode => 'consumer', limiters => '{one}'), jobq.create_queue('served', limiters => '{one}'),
	jobq.create_queue('unserved', limiters => '{one}')});

# A consumer takes the slot.
my ($id, $token);

sub take
{
	sql(q{SELECT jobq.enqueue('any', '1', 'leased')});
	($id, $token) = split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{leased}', 1, '1 hour', wait => '5 min')});
	return;
}

sub ack { return sql("SELECT jobq.ack($id, $token)"); }

sub outcome { return sql("SELECT state FROM jobq.wait($_[0], '5 min')"); }

# Call work() until the query returns true: the slot becomes free a moment after the end of
# the job.
sub work_until
{
	my ($query) = @_;

	for (1 .. 1000)
	{
		sql(q{CALL jobq.work('{unserved}', stop_when_empty => true)});
		return if sql($query) eq 't';
	}
	return;
}

#
# If no worker serves the queue, only a session in work() finds the job.
#
wait_for_scheduler($node);
take();
my $job = sql(q{SELECT jobq.enqueue('note', '1', 'unserved')});
work_until("SELECT state <> 'ready' FROM jobq.status($job)");
is(outcome($job), 'cancelled', 'work(): the job is cancelled');

# A batch counts the cancelled job.
my $batch = sql(q{SELECT jobq.create_batch('with one', start => false)});
sql("SELECT jobq.add_jobs($batch, 'note', '{1}', '{\"queue\": \"served\"}'); SELECT jobq.start_batch($batch)");
is(sql("SELECT total, cancelled FROM jobq.wait_batch($batch, '5 min')"), '1|1', 'batch: its job is cancelled, and it is over');
ack();
$job = sql(q{SELECT jobq.enqueue('note', '1', 'unserved')});
work_until("SELECT state <> 'ready' FROM jobq.status($job)");
is(outcome($job), 'completed', 'work(): with a free place it runs');

# With "replace", such a job ends the job of a consumer, once the policy is known.
sql(q{SELECT jobq.create_limiter('one', when_taken => 'replace')});
take();
$job = sql(q{SELECT jobq.enqueue('note', '1', 'unserved')});
work_until("SELECT state = 'cancelled' FROM jobq.status($id)");
is(outcome($id), 'cancelled', 'work(): it replaces what a consumer has');
work_until("SELECT state <> 'ready' FROM jobq.status($job)");
is(outcome($job), 'completed', 'work(): and runs');
sql(q{SELECT jobq.cancel_many(queue => 'unserved', state => 'waiting'); SELECT jobq.create_limiter('one', when_taken => 'skip')});

# The scheduler completes a round, so it has seen the due jobs.
sub go_round
{
	for (1 .. 3)
	{
		sql(q{SELECT jobq.enqueue('any', '1', 'free', delay => '1 ms')});
		sql(q{SELECT jobq.ack(id, token) FROM jobq.reserve('{free}', 1, wait => '5 min')});
	}
	return;
}

# A job changed while it waits is in the ready set twice for a while.  The job does not replace
# itself.
sql(q{SELECT jobq.create_queue('free', mode => 'consumer'); CREATE ROLE other LOGIN; SELECT jobq.grant_privilege('other');
	SELECT jobq.create_limiter('latest', max_running => 1, when_taken => 'replace');
	SELECT jobq.create_queue('latest', mode => 'consumer', limiters => '{latest}');
	SELECT jobq.grant_privilege('other', 'produce', 'latest'), jobq.grant_privilege('other', 'consume', 'latest')});
wait_for($node, 'changed: the limiter is known', q{SELECT count(*) > 0 FROM jobq.limits WHERE limiter = 'latest'});
($id, $token) = split /\|/, sql(q{SET ROLE other; SELECT jobq.enqueue('any', '1', 'latest') \g /dev/null
	SELECT id, token FROM jobq.reserve('{latest}', 1, '1 hour', wait => '5 min')});
$job = sql(q{SELECT jobq.enqueue('any', '1', 'latest')});
foreach my $priority (1 .. 3)
{
	go_round();
	sql("SELECT jobq.edit($job, priority => $priority)");
}
go_round();
is(sql("SELECT state FROM jobq.status($job)"), 'ready', 'changed: another role has the place, and it waits');
sql("SET ROLE other; SELECT jobq.ack($id, $token)");
is(sql(q{SELECT id FROM jobq.reserve('{latest}', 1, wait => '5 min') r, jobq.ack(r.id, r.token)}), $job, 'changed: it has the place afterwards');

# After a move to a queue with another limiter, the limiter of the old queue does not cancel the
# job, either.
sql(q{SELECT jobq.create_queue('left', mode => 'consumer', limiters => '{one}'), jobq.create_queue('entered', mode => 'consumer', limiters => '{latest}')});
$job = sql(q{SELECT jobq.enqueue('any', '1', 'left')});
go_round();
sql("SELECT jobq.edit($job, queue => 'entered')");
take();
go_round();
is(sql("SELECT state FROM jobq.status($job)"), 'ready', 'changed: it has left the queue that is full');
is(sql(q{SELECT id FROM jobq.reserve('{entered}', 1, wait => '5 min') r, jobq.ack(r.id, r.token)}), $job, 'changed: and is taken from the other one');
ack();

if ($points eq '0')
{
	$node->stop;
	no_failed_assertion($node);
	done_testing();
	exit;
}
sql(q{CREATE EXTENSION injection_points});

# Let all processes held at the point continue, in sequence.
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

# The scheduler has taken a job out of the ready set, and is held before it ends the job.
sub hold
{
	my ($name) = @_;

	sql(q{SELECT injection_points_attach('jobq-taken', 'wait')});
	$job = sql(q{SELECT jobq.enqueue('note', '1', 'served')});
	wait_for($node, "$name: it is held", q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-taken'});
	is(sql("SELECT state FROM jobq.status($job)"), 'ready', "$name: the job is there");
	return;
}

# wait until the policy has been read
take();
for (1 .. 1000)
{
	last if outcome(sql(q{SELECT jobq.enqueue('note', '1', 'served')})) eq 'cancelled';
}

#
# A worker's job is over, but the worker has not given the slot back: no job is cancelled
# because of this slot.
#
ack();
sql(q{SELECT injection_points_attach('jobq-attempt-over', 'wait')});
my $over = sql(q{SELECT jobq.enqueue('note', '1', 'served')});
is(outcome($over), 'completed', 'over: the job is');
wait_for($node, 'over: its worker is held', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-attempt-over'});
$job = sql(q{SELECT jobq.enqueue('note', '1', 'served')});
go_round();
is(sql("SELECT state FROM jobq.status($job)"), 'ready', 'over: the next waits');
release('jobq-attempt-over');
is(outcome($job), 'completed', 'over: and runs');

#
# The same, if the end of a worker's job is visible, but the worker has not reported it yet.
#
# The worker attaches to the shared memory of injection points before its commit, because it
# cannot do so afterwards.
sql(q{
CREATE FUNCTION gate(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM injection_points_wakeup('none');
	EXCEPTION WHEN OTHERS THEN
	END;
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
SELECT jobq.register('gate', 'gate(jsonb)');
});
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$over = sql(q{SELECT jobq.enqueue('gate', '1', 'served')});
$job = sql(q{SELECT jobq.enqueue('note', '1', 'served', delay => '1 hour')});
wait_for($node, 'ended: the job runs', "SELECT state = 'running' FROM jobq.status($over)");
sql(q{SELECT injection_points_attach('jobq-stats-add', 'wait'), injection_points_attach('jobq-taken', 'wait')});
$gate->quit;
wait_for($node, 'ended: its worker is held', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-stats-add'});
is(outcome($over), 'completed', 'ended: the job is over');
sql(q{SELECT jobq.test_clock('1 hour')});
my $looking = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-taken'};
wait_for($node, 'ended: the next finds no place', $looking);
release('jobq-taken');
sql(q{SELECT injection_points_attach('jobq-taken', 'wait')});
wait_for($node, 'ended: it is looked at again, or gone', "SELECT ($looking) OR state <> 'ready' FROM jobq.status($job)");
is(sql("SELECT state FROM jobq.status($job)"), 'ready', 'ended: it waits');
release('jobq-stats-add');
release('jobq-taken');
is(outcome($job), 'completed', 'ended: and runs');
sql(q{SELECT jobq.test_clock('0')});
take();

#
# The slot becomes free.
#
hold('free');
ack();
release('jobq-taken');
is(outcome($job), 'completed', 'free: it runs');

#
# The same, and another job of the group comes meanwhile: the job does not overtake the job
# held by the scheduler.
#
take();
sql(q{SELECT injection_points_attach('jobq-taken', 'wait')});
$job = sql(q{SELECT jobq.enqueue('note', '1', 'served', group_key => 'g')});
wait_for($node, 'group: the first is held', $looking);
my $second = sql(q{SELECT jobq.enqueue('note', '2', 'served', group_key => 'g')});
ack();
wait_for($node, 'group: a worker has seen the second', "SELECT (SELECT count(*) FROM jobq.limits WHERE type = 'group' AND parked = 1) > 0 OR state <> 'ready' FROM jobq.status($second)");
is(sql("SELECT state FROM jobq.status($second)"), 'ready', 'group: which waits');
release('jobq-taken');
is(outcome($second), 'completed', 'group: it runs');
is(sql("SELECT string_agg(CASE id WHEN $job THEN 'first' ELSE 'second' END, ' ' ORDER BY finished_at) FROM jobq.jobs WHERE id IN ($job, $second)"),
	'first second', 'group: in order');

#
# A worker has popped the job, and the lane is read again before the job begins: the job's own
# slot does not cancel the job.
#
sql(q{SELECT injection_points_attach('jobq-worker-popped', 'wait')});
$job = sql(q{SELECT jobq.enqueue('note', '1', 'served')});
wait_for($node, 'popped: its worker is held', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-worker-popped'});
foreach my $what (qw(pause resume))
{
	sql("SELECT jobq.$what('served')");
	go_round();
}
is(sql("SELECT state FROM jobq.status($job)"), 'ready', 'popped: it is still there');
release('jobq-worker-popped');
is(outcome($job), 'completed', 'popped: it runs');

#
# The same, and the worker begins while the scheduler examines the job, but has not locked the
# row yet.
#
sql(q{SELECT injection_points_attach('jobq-worker-popped', 'wait'), injection_points_attach('jobq-attempt-begins', 'wait'),
	injection_points_attach('jobq-taken', 'wait')});
$job = sql(q{SELECT jobq.enqueue('note', '1', 'served')});
wait_for($node, 'begun: its worker is held', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-worker-popped'});
sql(q{SELECT jobq.pause('served')});
go_round();
sql(q{SELECT jobq.resume('served')});
wait_for($node, 'begun: the scheduler looks at it', $looking);
release('jobq-worker-popped');
wait_for($node, 'begun: its worker begins', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-attempt-begins'});
release('jobq-taken');
go_round();
is(sql("SELECT state FROM jobq.status($job)"), 'running', 'begun: it is still there');
release('jobq-attempt-begins');
is(outcome($job), 'completed', 'begun: it runs');

#
# The scheduler ends, and the next scheduler completes the work.
#
take();
hold('ended');
my $scheduler = sql(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'jobq-taken'});
sql(q{SELECT injection_points_detach('jobq-taken')});
sql("SELECT pg_terminate_backend($scheduler)");
is(outcome($job), 'cancelled', 'ended: it is cancelled');

#
# While jobs are compared, a waiting job is handed off to a session, which leases it.  The job
# then has a slot, and does not replace itself.  With many leases, the scheduler reads them in
# pieces.
#
sql(q{SELECT jobq.create_limiter('last', max_running => 1, when_taken => 'replace');
	SELECT jobq.create_queue('newest', mode => 'consumer', limiters => '{last}');
	SELECT count(jobq.enqueue('any', '1', 'free')) FROM generate_series(1, 1100)});
wait_for($node, 'replace: the limiter is known', q{SELECT count(*) > 0 FROM jobq.limits WHERE limiter = 'last'});
is( sql(q{SELECT sum(n) FROM unnest('{1000,100}'::int[]) most, LATERAL (SELECT count(*) AS n FROM jobq.reserve('{free}', most, '1 hour', wait => '5 min')) r}),
	1100, 'replace: many jobs are held');
my $newest = q{SELECT id, token FROM jobq.reserve('{newest}', 1, '1 hour', wait => '5 min')};
sql(q{SELECT jobq.enqueue('any', '1', 'newest')});
my ($first, $held) = split /\|/, sql($newest);
my $session = $node->background_psql('postgres');
my $pid = $session->query('SELECT pg_backend_pid()');
$session->query_until(qr/asks/, "\\echo asks\n$newest;\n");
wait_for($node, 'replace: a session waits', "SELECT wait_event = 'JobqReserve' FROM pg_stat_activity WHERE pid = $pid");
sql(q{SELECT injection_points_attach('jobq-contest', 'wait')});
$job = sql(q{SELECT jobq.enqueue('any', '1', 'newest')});
wait_for($node, 'replace: the scheduler compares', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-contest'});
ok(stop_at_rest($node, $pid), 'replace: and is stopped');
sql("SELECT jobq.ack($first, $held); SELECT injection_points_attach('jobq-contest-reads', 'wait')");
release('jobq-contest');
wait_for($node, 'replace: it has read the offer', q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-contest-reads'});
kill CONT => $pid;
($first, $held) = split /\|/, $session->query('SELECT 1') =~ s/\n.*//sr;
is($first, $job, 'replace: the session has the job');
$session->quit;
release('jobq-contest-reads');
go_round();
is(sql("SELECT state FROM jobq.status($job)"), 'running', 'replace: and keeps it');
sql("SELECT jobq.ack($job, $held)");
is(outcome($job), 'completed', 'replace: to its end');

#
# The server crashes: the job still exists, and finds a slot.
#
hold('crash');
ack();
$node->stop('immediate');
$node->start;
is(outcome($job), 'completed', 'crash: it runs');
is(sql("SELECT count(*) FROM done WHERE id = $job"), '1', 'crash: once');

#
# The same while the slot is taken.
#
take();
hold('crash, taken');
$node->stop('immediate');
$node->start;
is(outcome($job), 'cancelled', 'crash, taken: it is cancelled');
is(sql("SELECT count(*) FROM done WHERE id = $job"), '0', 'crash, taken: and did not run');
ack();

$node->stop;
no_failed_assertion($node);
done_testing();
