# Events of jobs, batches and schedules come exactly once despite crashes, because the transaction
# of the change also enqueues the event.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', "jobq.workers = 'default=4'\n");
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

# The jobs of events stay in a queue without workers, where the test counts them.
sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION works(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hears(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION crash(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	COPY (SELECT) TO PROGRAM 'kill -KILL $PPID; sleep 60';
END $$;
CREATE PROCEDURE crash_procedure(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	COPY (SELECT) TO PROGRAM 'kill -KILL $PPID; sleep 60';
END $$;
SELECT jobq.register('works', 'works(jsonb)'), jobq.register('hears', 'hears(jsonb)', queue => 'events'),
	jobq.register('crash', 'crash(jsonb)', backoff => 'fixed 1ms', max_attempts => 10),
	jobq.register('crash_procedure', 'crash_procedure(jsonb)', backoff => 'fixed 1ms', max_attempts => 10);
SELECT jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.on_event(e, 'hears') FROM unnest('{completed,failed,retry,dead,cancelled,expired,batch_completed,batch_failed,batch_cancelled,schedule_missed}'::text[]) e;
});

# The number of events of each type for jobs of this kind, as one string.
sub told
{
	my ($kind) = @_;
	return sql(qq{SELECT string_agg(t, ' ' ORDER BY t) FROM (
		SELECT payload ->> 'event' || '=' || count(*) AS t FROM jobq.live_jobs
		WHERE kind = 'on_event:hears' AND payload ->> 'kind' = '$kind' GROUP BY payload ->> 'event') e});
}

# A job with a crash of the process is charged after the restart.
foreach my $kind ('crash', 'crash_procedure')
{
	# the crash may end the session before psql disconnects
	$node->psql('postgres', "SELECT jobq.enqueue('$kind')");
	wait_for($node, "$kind: a dead letter", "SELECT count(*) = 1 FROM jobq.dead_letters WHERE kind = '$kind'");
	is(told($kind), 'dead=1 failed=2 retry=1', "$kind: each crash is told of once");
	is(sql(qq{SELECT string_agg(payload ->> 'crashes', ',' ORDER BY id) FROM jobq.live_jobs
		WHERE payload ->> 'kind' = '$kind' AND payload ->> 'event' = 'failed'}), '1,2', "$kind: with its number");
}

# Completed jobs.
sql('SELECT jobq.enqueue($$works$$) FROM generate_series(1, 20)');
wait_for($node, 'jobs are done', q{SELECT count(*) = 20 FROM jobq.jobs WHERE kind = 'works' AND state = 'completed'});
is(told('works'), 'completed=20', 'each job that is done is told of once');

# A lease that expires.
my $id = sql(q{SELECT jobq.enqueue('lost', queue => 'outside', backoff => 'fixed 1h')});
sql(q{SELECT FROM jobq.reserve('{outside}', lease => '1 s', wait => '5 min')});
wait_for($node, 'the lease is over', "SELECT state = 'retryable' FROM jobq.status($id)");
is(told('lost'), 'failed=1 retry=1', 'a lease that ends is told of');

# Crashes of the server under load.
my $bench = $node->basedir . '/load.sql';
append_to_file($bench, q{SELECT jobq.enqueue('works');
SELECT jobq.ack(r.id, r.token) FROM (SELECT jobq.enqueue('acked', queue => 'outside')) e, LATERAL jobq.reserve('{outside}') r;
SELECT jobq.cancel(jobq.enqueue('works', delay => '1 day'));
SELECT count(*) FROM jobq.create_batch(start => true) b, LATERAL jobq.add_jobs(b, 'works', '{1,2}');
SELECT jobq.cancel_batch(jobq.create_batch());
});
# each tick makes a job or is missed: because the last job still runs, or the server is stopped
sql(q{SELECT jobq.schedule('ticks', 'every 1 second', 'ticks', missed => 'skip', options => '{"queue": "outside"}')});
foreach my $round (1 .. 2)
{
	my $load = IPC::Run::start([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', '4', '-T', '600', '-f', $bench, 'postgres' ],
		'>', '/dev/null', '2>', '/dev/null');
	my $before = sql(q{SELECT count(*) FROM jobq.jobs WHERE kind = 'works'});
	wait_for($node, "round $round: there is load", qq{SELECT count(*) > $before + 100 FROM jobq.jobs WHERE kind = 'works'});
	my $pid = scheduler_pid($node);
	signal_process('TERM', $pid);
	wait_for($node, "round $round: another scheduler works", qq{SELECT pid <> $pid FROM jobq_internal.scheduler_state()});
	my $over = sql('SELECT count(*) FROM jobq_internal.batch WHERE finished_at IS NOT NULL');
	wait_for($node, "round $round: batches end", qq{SELECT count(*) > $over + 20 FROM jobq_internal.batch WHERE finished_at IS NOT NULL});
	my $made = sql(q{SELECT last_tick FROM jobq_internal.schedule});
	wait_for($node, "round $round: ticks make jobs", qq{SELECT last_tick IS NOT NULL AND last_tick::text <> '$made' FROM jobq_internal.schedule});
	$node->stop('immediate');
	eval { $load->finish };
	$node->start;
}
is(sql(q{SELECT count(*) FROM (
	(SELECT id, state FROM jobq.jobs WHERE kind IN ('works', 'acked') AND state IN ('completed', 'cancelled')
	EXCEPT ALL SELECT (payload ->> 'job')::bigint, payload ->> 'event' FROM jobq.live_jobs WHERE kind = 'on_event:hears')
	UNION ALL
	(SELECT (payload ->> 'job')::bigint, payload ->> 'event' FROM jobq.live_jobs
		WHERE kind = 'on_event:hears' AND payload ->> 'kind' IN ('works', 'acked') AND payload ->> 'event' IN ('completed', 'cancelled')
	EXCEPT ALL SELECT id, state FROM jobq.jobs WHERE state IN ('completed', 'cancelled'))) x}), '0',
	'each end has one event, and each event an end');

# Batches, some of which ended just before a crash.
wait_for($node, 'all batches are over', 'SELECT count(*) = 0 FROM jobq_internal.batch WHERE finished_at IS NULL');
is(sql(q{SELECT count(*) FROM (
	(SELECT id, state FROM jobq.batches EXCEPT ALL
	SELECT (payload ->> 'batch')::bigint, substr(payload ->> 'event', 7) FROM jobq.live_jobs WHERE kind = 'on_event:hears' AND payload ->> 'event' LIKE 'batch%')
	UNION ALL
	(SELECT (payload ->> 'batch')::bigint, substr(payload ->> 'event', 7) FROM jobq.live_jobs WHERE kind = 'on_event:hears' AND payload ->> 'event' LIKE 'batch%'
	EXCEPT ALL SELECT id, state FROM jobq.batches)) x}), '0',
	'each end of a batch has one event, and each event an end');
is(sql(q{SELECT string_agg(DISTINCT state, ',' ORDER BY state) FROM jobq.batches}), 'cancelled,completed', 'of either kind');

# Ticks: each has either a job or a "missed" event, without gaps.
sql(q{SELECT jobq.test_clock('1 hour')});
wait_for($node, 'some were missed', q{SELECT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = 'on_event:hears' AND payload ->> 'event' = 'schedule_missed' AND payload ->> 'ticks' = '100')});
sql(q{SELECT jobq.pause(schedule => 'ticks')});
is(sql(q{WITH told AS (
		SELECT (headers ->> 'scheduled_for')::timestamptz AS tick FROM jobq.jobs WHERE kind = 'ticks'
		UNION ALL
		SELECT generate_series((payload ->> 'tick')::timestamptz, (payload ->> 'last_tick')::timestamptz, '1 second')
		FROM jobq.live_jobs WHERE kind = 'on_event:hears' AND payload ->> 'event' = 'schedule_missed')
	SELECT count(*) = count(DISTINCT tick) AND count(*) = extract(epoch FROM max(tick) - min(tick)) + 1 FROM told}), 't',
	'each tick has made a job, or was told to be missed, and only one of these');
sql(q{SELECT jobq.test_clock('0')});

# The handlers of events run.
sql(q{SELECT jobq.cancel_many(kind => 'on_event:hears', state => 'ready') ; SELECT jobq.register('hears', 'hears(jsonb)')});
$id = sql(q{SELECT jobq.enqueue('works')});
wait_for($node, 'the handler has run', qq{SELECT EXISTS (SELECT FROM jobq.jobs WHERE kind = 'on_event:hears' AND state = 'completed' AND (payload ->> 'job')::bigint = $id)});

$node->stop;
no_failed_assertion($node);
done_testing();
