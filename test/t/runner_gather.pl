# By chunk_wait, the first job of a call waits for further jobs: no longer than chunk_wait, and not
# at all if the jobs suffice for a call.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A change of the clock wakes all workers, and two workers would divide the jobs of a lane.
my $node = jobq_node('main', q{
jobq.workers = 'first=1; second=1; both=2; *=1'
jobq.max_workers = 6
});
$node->start;

$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, kind text, jobs int, at timestamptz DEFAULT now());
CREATE FUNCTION note(jobs jobq.job_context[]) RETURNS void LANGUAGE sql AS $$
	INSERT INTO effect SELECT j.id, j.kind, cardinality(jobs) FROM unnest(jobs) j
$$;
CREATE FUNCTION single() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('gathered', 'note(jobq.job_context[])', queue => 'first', chunk => 10, chunk_wait => '1 min');
SELECT jobq.register('limited', 'note(jobq.job_context[])', queue => 'first', chunk => 10, chunk_wait => '1 min', max_running => 3);
SELECT jobq.register('brief', 'note(jobq.job_context[])', queue => 'second', chunk => 100, chunk_wait => '50 ms');
SELECT jobq.register('single', 'single()', queue => 'first');
SELECT jobq.enqueue('gathered');
});

# Enqueue n jobs, each in its own transaction.
sub enqueue
{
	my ($kind, $n) = @_;
	$node->safe_psql('postgres', "SELECT jobq.enqueue('$kind');" x $n);
	return;
}

# Jobs enqueued before have had the opportunity to run: a job that came later has run.
sub later
{
	$node->safe_psql('postgres', q{
SELECT jobq.enqueue('single') AS id \gset
SELECT state FROM jobq.wait(:id)});
	return;
}

sub sizes
{
	my ($kind) = @_;
	return $node->safe_psql('postgres', "SELECT coalesce(string_agg(jobs::text, ' ' ORDER BY n, jobs), '') FROM (SELECT min(job) AS n, jobs FROM effect WHERE kind = '$kind' GROUP BY at, jobs) e");
}

sub clock_forward
{
	my ($by) = @_;
	$node->safe_psql('postgres', "SELECT jobq.test_clock('$by')");
	return;
}

my $ran = sub {
	my ($kind, $n) = @_;
	wait_for($node, "$n jobs of $kind have run", "SELECT count(*) = $n FROM effect WHERE kind = '$kind'");
};

# A lone job.
wait_for($node, 'the queue is served', q{SELECT count(*) = 1 FROM jobq.explain((SELECT min(id) FROM jobq_internal.job)) WHERE reason = 'gathering'});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('single')});
wait_for($node, 'a worker runs', q{SELECT count(*) = 1 FROM jobq.jobs WHERE kind = 'single' AND state = 'completed'});
is($node->safe_psql('postgres', q{SELECT kind, state, detail LIKE 'by chunk_wait of kind "gathered", the job waits for further jobs until %' FROM jobq.jobs, jobq.explain(id) WHERE kind = 'gathered'}),
	'gathered|ready|t', 'a lone job waits, and explain() says so');
clock_forward('59 seconds');
later();
is(sizes('gathered'), '', 'a lone job waits for chunk_wait');
clock_forward('61 seconds');
$ran->('gathered', 1);
is(sizes('gathered'), '1', 'a lone job waits for chunk_wait only');

# A trickle: as many calls as chunks.
$node->safe_psql('postgres', 'TRUNCATE effect');
enqueue('gathered', 25);
$ran->('gathered', 20);
later();
is(sizes('gathered'), '10 10', 'a full call does not wait, and the remaining jobs do');
clock_forward('125 seconds');
$ran->('gathered', 25);
is(sizes('gathered'), '10 10 5', 'the remaining jobs run in a single call');

# A limit never permits a full call, so as many jobs as the limit suffice.
enqueue('limited', 2);
later();
is(sizes('limited'), '', 'fewer jobs than the limit wait');
enqueue('limited', 1);
$ran->('limited', 3);
is(sizes('limited'), '3', 'as many jobs as the limit run at once');

# Jobs of different priorities are never in the same call, and each wait for jobs of their own.
$node->safe_psql('postgres', q{TRUNCATE effect;
SELECT jobq.enqueue('gathered', priority => i % 2) FROM generate_series(1, 18) i});
later();
is(sizes('gathered'), '', 'jobs of each priority wait');
$node->safe_psql('postgres', q{SELECT jobq.enqueue('gathered', priority => 1)});
$ran->('gathered', 10);
is(sizes('gathered'), '10', 'the jobs of a priority run when they suffice');

# Jobs that wait for a paused queue have waited.
$node->safe_psql('postgres', q{SELECT jobq.pause('first')});
clock_forward('200 seconds');
$node->safe_psql('postgres', q{SELECT jobq.resume('first')});
$ran->('gathered', 19);
is(sizes('gathered'), '10 9', 'jobs of a paused queue run when the queue is resumed');

# A change of the kind concerns jobs that wait already.
$node->safe_psql('postgres', q{TRUNCATE effect});
enqueue('gathered', 4);
later();
is(sizes('gathered'), '', 'jobs wait');
$node->safe_psql('postgres', q{SELECT jobq.register('gathered', 'note(jobq.job_context[])', queue => 'first', chunk => 10)});
$ran->('gathered', 4);
enqueue('gathered', 1);
$ran->('gathered', 5);

# After a restart, jobs wait from the time at which they were enqueued.
$node->safe_psql('postgres', q{SELECT jobq.test_clock('0');
TRUNCATE effect;
SELECT jobq.register('gathered', 'note(jobq.job_context[])', queue => 'first', chunk => 10, chunk_wait => '1 min')});
enqueue('gathered', 3);
later();
$node->restart;
wait_for($node, 'the queue is served again', q{SELECT count(*) = 1 FROM jobq.explain((SELECT min(id) FROM jobq_internal.job)) WHERE reason = 'gathering'});
is(sizes('gathered'), '', 'jobs wait after a restart');
is($node->safe_psql('postgres', q{
SELECT substring(detail FROM 'until (.*)')::timestamptz <= min(j.run_at) OVER () + interval '61 s'
FROM jobq_internal.job j, jobq.explain(j.id) WHERE reason = 'gathering' LIMIT 1}),
	't', 'after a restart, no job waits for longer than chunk_wait');
clock_forward('61 seconds');
$ran->('gathered', 3);
is(sizes('gathered'), '3', 'the jobs run together after a restart');

# The sizes of calls under limits of keys, turns of tenants and weights.  All jobs are ready before the
# single worker of the queue takes the first, and no call has jobs of two tenants.
sub calls_of
{
	my ($queue, %jobs) = @_;
	$node->safe_psql('postgres', join ';',
		'TRUNCATE effect', "SELECT jobq.pause('$queue')",
		map { "SELECT jobq.enqueue('sized', headers => '{\"tenant\": \"$_\"}', queue => '$queue') FROM generate_series(1, $jobs{$_})" } sort keys %jobs);
	my $n = 0;
	$n += $_ foreach values %jobs;
	$node->safe_psql('postgres', "SELECT jobq.resume('$queue')");
	$ran->('sized', $n);
	return $node->safe_psql('postgres', q{
SELECT string_agg(tenant || ' ' || jobs, ', ' ORDER BY tenant, jobs DESC)
FROM (SELECT DISTINCT j.tenant, e.at, e.jobs FROM effect e JOIN jobq.jobs j ON j.id = e.job) c});
}

$node->safe_psql('postgres', q{
SELECT jobq.test_clock('0');
CREATE FUNCTION sized(jobs jobq.job_context[]) RETURNS void LANGUAGE sql AS $$
	INSERT INTO effect SELECT j.id, j.kind, cardinality(jobs) FROM unnest(jobs) j
$$;
SELECT jobq.create_queue('keyed', tenant => 'header tenant'), jobq.create_queue('fair', tenant => 'header tenant', fair => 'jobs'),
	jobq.create_queue('costs', tenant => 'header tenant', fair => 'cpu'), jobq.create_queue('heavy', tenant => 'header tenant', weight => 3);
SELECT jobq.create_limiter('each', max_running => 5, by => 'tenant');
SELECT jobq.register('sized', 'sized(jobq.job_context[])', queue => 'keyed', chunk => 10, limiters => '{each}')});
is(calls_of('keyed', a => 12, b => 3), 'a 5, a 5, a 2, b 3', 'a call takes as many jobs as the key permits');
$node->safe_psql('postgres', q{
SELECT jobq.register('sized', 'sized(jobq.job_context[])', queue => 'keyed', chunk => 10);
SELECT jobq.drop_limiter('each');
SELECT jobq.create_limiter('each', rate => '4 per hour burst 4', by => 'tenant');
SELECT jobq.register('sized', 'sized(jobq.job_context[])', queue => 'keyed', chunk => 10, limiters => '{each}')});
is(calls_of('keyed', c => 4, d => 2), 'c 4, d 2', 'a call takes as many jobs as the rate of the key permits');
$node->safe_psql('postgres', q{SELECT jobq.register('sized', 'sized(jobq.job_context[])', queue => 'keyed', chunk => 10)});
is(calls_of('fair', a => 12, b => 3), 'a 10, a 2, b 3', 'a call takes the jobs of a tenant of a fair queue');
is(calls_of('costs', a => 2, b => 2), 'a 1, a 1, b 1, b 1', 'jobs run alone if tenants take turns by processor time');
is(calls_of('heavy', a => 12), 'a 10, a 2', 'a call takes the jobs of a queue with a weight');

# Jobs of a limiter whose jobs do not wait run alone, so they do not gather, and several workers run
# them at the same time.
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(7)');
$node->safe_psql('postgres', q{
CREATE FUNCTION behind_gate(jobs jobq.job_context[]) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(7)';
SELECT jobq.create_limiter('apart', max_running => 3, when_taken => 'release 5 min');
SELECT jobq.register('apart', 'behind_gate(jobq.job_context[])', queue => 'both', chunk => 10, chunk_wait => '1 min', limiters => '{apart}')});
enqueue('apart', 2);
wait_for($node, 'both workers run jobs', q{SELECT count(*) = 2 FROM jobq.jobs WHERE kind = 'apart' AND state = 'running'});
$gate->quit;
wait_for($node, 'all jobs have run', q{SELECT count(*) = 2 FROM jobq.jobs WHERE kind = 'apart' AND state = 'completed'});

# Real time: the scheduler wakes a worker in time.
$node->safe_psql('postgres', q{SELECT jobq.test_clock('0')});
my $latency = $node->safe_psql('postgres', q{
SELECT jobq.enqueue('brief') AS id \gset
SELECT state FROM jobq.wait(:id) \g /dev/null
SELECT jobq.enqueue('brief') AS id \gset
SELECT state FROM jobq.wait(:id) \g /dev/null
SELECT started_at - run_at >= '50 ms' AND started_at - run_at < '20 s' FROM jobq.jobs WHERE id = :id;
});
is($latency, 't', 'a lone job waits for a short time');

$node->stop;
no_failed_assertion($node);
done_testing();
