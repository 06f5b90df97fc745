# No job has to wait for the hourly safety check when lanes and entries are scarce, or when a
# worker leaves between two steps.

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
jobq.workers = '*=1'
jobq.ready_entries = 4096
jobq.poll_interval = 3600
jobq.notify_interval = 60000
jobq.worker_max_age = 0
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE step (n bigint GENERATED ALWAYS AS IDENTITY, name text);
CREATE FUNCTION step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF job.attempt <= coalesce((payload ->> 'fails')::int, 0) THEN
		RAISE EXCEPTION 'attempt %', job.attempt;
	END IF;
	INSERT INTO step (name) VALUES (payload ->> 'name');
END $$;
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', backoff => 'fixed 1h'), jobq.register('hold', 'hold()');
SELECT jobq.create_queue('steps'), jobq.create_queue('outside', mode => 'consumer')});

#
# A worker is terminated after it has popped the job awaited by the group, and before the start
# of the job.  The group still waits for the job.
#
my $gate = $node->background_psql('postgres');
my $wanter = $node->background_psql('postgres');

# Wait for $n jobs in the ready set, including the jobs which wait for their group.
sub ready
{
	my ($n, $what) = @_;

	return wait_for($node, $what, "SELECT ready_entries = $n FROM jobq_internal.scheduler_state()");
}

# Let the gate's session wait until such a lock is requested and not granted.
sub until_waits
{
	my ($lock, $what) = @_;

	is($gate->query_safe(qq{
		DO \$\$ BEGIN
			FOR i IN 1 .. 18000 LOOP
				EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE relation = 'jobq_internal.job'::regclass AND $lock AND NOT granted);
				PERFORM pg_sleep(0.01);
			END LOOP;
		END \$\$;
		SELECT count(*) FROM pg_locks WHERE relation = 'jobq_internal.job'::regclass AND $lock AND NOT granted}), 1, $what);
	return;
}

$node->safe_psql(
	'postgres', q{
SELECT jobq.enqueue('step', '{"name": "first", "fails": 1}', queue => 'steps', group_key => 'g');
SELECT jobq.enqueue('step', '{"name": "second"}', queue => 'steps', group_key => 'g')});
wait_for($node, 'the first has failed', q{SELECT count(*) = 1 FROM jobq_internal.group_slots() WHERE running = 0 AND waits_for IS NOT NULL AND parked = 1});
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SELECT jobq.enqueue('hold', queue => 'steps')});
sleeps($node, 'the worker is busy', 1);
my ($worker) = worker_pids($node);
ready(1, 'it has the job');
$node->safe_psql('postgres', q{SELECT jobq.test_clock('2h')});
wait_for($node, 'the first is to run again', 'SELECT ready_entries >= 2 FROM jobq_internal.scheduler_state()');
$wanter->query_until(qr/begun/, "\\echo begun\nBEGIN; LOCK TABLE jobq_internal.job IN ACCESS EXCLUSIVE MODE;\n");
until_waits("mode = 'AccessExclusiveLock'", 'a lock is wanted');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
until_waits("pid = $worker", 'the worker has popped a job and waits for the lock');
$gate->query_safe("SELECT pg_terminate_backend($worker)");
wait_for_exit($worker);
$wanter->query_safe('COMMIT');
wait_for($node, 'both run', q{SELECT count(*) = 2 FROM step});
is($node->safe_psql('postgres', q{SELECT string_agg(name, ', ' ORDER BY n) FROM step}), 'first, second', 'in their order');
$wanter->quit;
$gate->quit;

#
# A job of a group is to go back to its lane, where the position is too far for a search.  The
# job is gone meanwhile, and the next job of the group comes.
#
$node->safe_psql(
	'postgres', q{
SELECT jobq.enqueue('x', '"1"', queue => 'outside', group_key => 'g');
DO $$ BEGIN FOR i IN 1 .. 150 LOOP PERFORM jobq.enqueue('x', '"before"', queue => 'outside'); END LOOP; END $$;
SELECT jobq.enqueue('x', '"2"', queue => 'outside', group_key => 'g');
SELECT jobq.enqueue('x', '"3"', queue => 'outside', group_key => 'g');
DO $$ BEGIN FOR i IN 1 .. 150 LOOP PERFORM jobq.enqueue('x', '"after"', queue => 'outside'); END LOOP; END $$;
CREATE TABLE held (id bigint, token bigint, what text)});
ready(303, 'all are ready');

# Release the held jobs, the last first, so that the search finds each position at once.
sub release
{
	my ($condition) = @_;

	my $ids = $node->safe_psql('postgres', "DELETE FROM held WHERE $condition RETURNING id || ', ' || token");
	$node->safe_psql('postgres', join('', map { "SELECT jobq.release($_);\n" }
				sort { ($b =~ /^(\d+)/)[0] <=> ($a =~ /^(\d+)/)[0] } split(/\n/, $ids)));
	return;
}

$node->safe_psql('postgres', q{INSERT INTO held SELECT id, token, payload #>> '{}' FROM jobq.reserve('{outside}', 152, '1 hour')});
is($node->safe_psql('postgres', q{SELECT what, count(*) FROM held GROUP BY what ORDER BY what}), "1|1\nafter|1\nbefore|150", 'two of the group are passed over');
release(q{what = 'before'});
ready(301, 'they are parked among those in the lane');
$node->safe_psql('postgres', q{
DELETE FROM jobq_internal.job WHERE payload = '"2"';
SELECT jobq.ack(id, token) FROM held;
TRUNCATE held});
wait_for($node, 'the next of the group comes', q{
WITH got AS (SELECT id, token, payload FROM jobq.reserve('{outside}', 1000, '1 hour')),
	done AS (SELECT jobq.ack(id, token) FROM got WHERE payload <> '"3"'),
	kept AS (INSERT INTO held SELECT id, token, payload #>> '{}' FROM got WHERE payload = '"3"')
SELECT (SELECT count(*) = 1 FROM held) FROM (SELECT count(*) FROM done) d});
$node->safe_psql('postgres', q{SELECT jobq.ack(id, token) FROM held; TRUNCATE held});
wait_for($node, 'nothing is left', q{SELECT count(*) = 0 FROM jobq.jobs WHERE finished_at IS NULL});

#
# The same for a job in quarantine.
#
$node->safe_psql(
	'postgres', q{
SELECT jobq.pause('outside');
SELECT count(jobq.enqueue('x', queue => 'outside')) FROM generate_series(1, 300);
UPDATE jobq_internal.job SET crashes = 1;
SELECT jobq.resume('outside')});
my $hold_all = q{
WITH got AS (INSERT INTO held SELECT id, token FROM jobq.reserve('{outside}', 1000, '1 hour') RETURNING id)
SELECT (SELECT count(*) FROM held) + (SELECT count(*) FROM got) = 300};
wait_for($node, 'all are held', $hold_all);
my $middle = $node->safe_psql('postgres', 'SELECT id FROM held ORDER BY id OFFSET 150 LIMIT 1');
release("id <> $middle");
ready(299, 'all but one are ready');
release("id = $middle");
wait_for($node, 'so is the one in the middle, when there is a place for it', $hold_all);
$node->safe_psql('postgres', q{SELECT count(jobq.ack(id, token)) FROM held});

#
# A lane is reused for another queue before the relay has sent the notification of the old
# queue.
#
my $listener = $node->background_psql('postgres');
my %heard;

# More urgent jobs, which no consumer takes, keep all but 16 of the 512 lanes.
$node->safe_psql('postgres', q{
SELECT jobq.create_queue('full', mode => 'consumer');
SELECT count(jobq.enqueue('x', queue => 'full', priority => -p)) FROM generate_series(1, 496) p});
wait_for($node, 'few lanes are left', q{SELECT used >= 496 FROM jobq_internal.capacity() WHERE slots = 'lanes'});
for my $i (1 .. 20)
{
	$node->safe_psql('postgres', "SELECT jobq.create_queue('q$i', notify => 'relay')");
	$listener->query_safe("LISTEN jobq_queue_q$i");
}
for my $i (1 .. 20)
{
	$node->safe_psql('postgres', qq{SELECT jobq.enqueue('step', '{"name": "q$i"}', queue => 'q$i')});
	wait_for($node, "queue $i is served", qq{SELECT count(*) = 1 FROM step WHERE name = 'q$i'});
}
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	my $told = $listener->query("SELECT 1");
	$heard{$1} = 1 while $told =~ /notification "jobq_queue_(q\d+)"/ig;
	last if %heard == 20;
	$node->safe_psql('postgres', q{SELECT jobq.test_clock(jobq_internal.clock() - clock_timestamp() + '2 min')});
	usleep(50_000);
}
is(scalar(%heard), 20, 'each queue is told of');
$listener->quit;

#
# Dropped queues of consumers, with jobs which no consumer has taken, leave no lanes in the way
# of other queues.
#
$node->safe_psql('postgres', q{SELECT jobq.test_clock('0')});
$node->safe_psql('postgres', "SELECT jobq.create_queue('gone$_', mode => 'consumer'); SELECT jobq.enqueue('any', queue => 'gone$_');
	SELECT jobq.cancel_many(queue => 'gone$_', state => 'waiting'); SELECT jobq.drop_queue('gone$_')") for (1 .. 20);
my $served = $node->safe_psql('postgres', q{SELECT jobq.enqueue('step', '{"name": "served"}')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($served, '5 min')"), 'completed', 'gone: a job runs');
$node->safe_psql('postgres', q{SELECT jobq.cancel_many(queue => 'full', state => 'waiting'); SELECT jobq.drop_queue('full')});

#
# There is room for fewer leases than before: other consumers may take the surplus jobs, which
# use no slot of a limiter until then.
#
$node->safe_psql('postgres', q{
SELECT jobq.test_clock('0');
SELECT jobq.create_queue('outside many', mode => 'consumer', max_running => 400, notify => 'off');
SELECT jobq.enqueue('step', queue => 'outside many') FROM generate_series(1, 300)});
is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.reserve('{"outside many"}', 300, '1 hour', '5 min')}), '300', 'leases: three hundred');
my $offset = -s $node->logfile;

$node->append_conf('postgresql.conf', 'jobq.ready_entries = 1024');
$node->restart;
$node->wait_for_log(qr/44 leases of consumers have come to their end with the last start of the server/, $offset);
wait_for($node, 'leases: there is a scheduler', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
is($node->safe_psql('postgres', q{SELECT (SELECT running FROM jobq.limits WHERE type = 'queue' AND queue = 'outside many'), (SELECT count(*) FROM jobq_internal.lease_slots())}),
	'256|256', 'leases: as many as there is room for, and as many places');

$node->stop;
no_failed_assertion($node);
done_testing();
