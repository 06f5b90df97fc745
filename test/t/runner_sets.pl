# A handler of several jobs finds each bad job with few calls, and each other job runs once,
# also if its worker is terminated or crashes in the middle of a call.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Runs on each major: the flight recorder and the end of a worker
my $node = jobq_node('main', q{
jobq.workers = 'grouped=2; *=1'
jobq.max_workers = 4
});
$node->start;

# A sequence counts calls, because no rollback undoes its values.  The shell's parent is the
# server process that runs the handler.
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, call bigint, jobs int);
CREATE SEQUENCE calls;
CREATE FUNCTION together(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	call bigint := nextval('calls');
	does text := (SELECT min(j.payload ->> 'does') FROM unnest(jobs) j);
BEGIN
	INSERT INTO effect SELECT j.id, call, cardinality(jobs) FROM unnest(jobs) j;
	IF does = 'fail' THEN
		RAISE EXCEPTION 'bad job';
	ELSIF does = 'conflict' AND call <= 3 THEN
		RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure';
	ELSIF does = 'exit' THEN
		PERFORM pg_terminate_backend(pg_backend_pid());
		PERFORM pg_sleep(60);
	ELSIF does = 'crash' THEN
		COPY (SELECT) TO PROGRAM 'kill -ABRT $PPID; sleep 60';
	ELSIF does = 'wait' THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
END $$;
SELECT jobq.register('together', 'together(jobq.job_context[])', chunk => 1000, backoff => 'fixed 1ms', max_attempts => 2);
SELECT jobq.enqueue('together');
});
wait_for($node, 'the queue exists, and the worker runs', q{SELECT count(*) = 1 FROM effect});

# Enqueue n jobs, of which the numbered ones do something else, and let the worker find all of
# them at once.
sub enqueue
{
	my ($n, $does, @numbers) = @_;
	my $bad = join ',', @numbers, -1;

	$node->safe_psql('postgres', qq{
SELECT jobq.pause('default');
TRUNCATE effect;
SELECT setval('calls', 1, false);
SELECT count(jobq.enqueue('together', CASE WHEN i IN ($bad) THEN '{"does": "$does"}' ELSE '{}' END::jsonb)) FROM generate_series(1, $n) i;
SELECT jobq.resume('default')});
	return;
}

# All jobs but those that fail have run once, in the first attempt, and left their effects once.
sub all_but
{
	my ($what, $n, $dead, $attempt) = @_;
	my $alive = $n - $dead;

	wait_for($node, "$what: no job is left", q{SELECT count(*) = 0 FROM jobq_internal.job});
	is($node->safe_psql('postgres', q{
SELECT count(*), count(DISTINCT e.job), coalesce(min(j.attempt), 1), coalesce(max(j.attempt), 1)
FROM effect e JOIN jobq.jobs j ON j.id = e.job WHERE j.state = 'completed'}),
		"$alive|$alive|1|1", "$what: each other job has run once, without a charge");
	is($node->safe_psql('postgres', q{
SELECT count(*), coalesce(min(attempt), 0), coalesce(max(attempt), 0) FROM jobq.dead_letters}),
		$dead ? "$dead|$attempt|$attempt" : '0|0|0', "$what: the bad jobs are charged");
	$node->safe_psql('postgres', q{SELECT jobq.delete(id) FROM jobq.dead_letters});
	return;
}

sub calls { return $node->safe_psql('postgres', 'SELECT last_value FROM calls'); }

# Bisecting.  A bad job has two attempts, and the second one is a call by itself.
enqueue(500, 'fail');
all_but('no bad job', 500, 0);
is(calls(), '1', 'no bad job: one call for all');
is($node->safe_psql('postgres', 'SELECT min(jobs), max(jobs) FROM effect'), '500|500', 'no bad job: all are in the call');

enqueue(500, 'fail', 123);
all_but('one bad job', 500, 1, 2);
cmp_ok(calls(), '<=', 1 + 18 + 1, 'one bad job: at most 18 further calls for its first attempt');

enqueue(500, 'fail', 1, 250, 500);
all_but('three bad jobs', 500, 3, 2);
cmp_ok(calls(), '<=', 1 + 3 * 18 + 3, 'three bad jobs: at most 18 further calls for each');

enqueue(8, 'fail', 1 .. 8);
all_but('only bad jobs', 8, 8, 2);

# A conflict repeats the call, before the jobs are divided.
enqueue(100, 'conflict', 50);
all_but('conflicts', 100, 0);
is(calls(), '4', 'conflicts: the fourth call succeeds');
is($node->safe_psql('postgres', 'SELECT min(jobs) FROM effect'), '100', 'conflicts: with all jobs');

# The worker is terminated by a job, or by another session, or crashes.
enqueue(50, 'exit', 20);
all_but('a job that ends its worker', 50, 1, 2);

{
	enqueue(50, 'fail');
	all_but('before the gate', 50, 0);
	my $gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	enqueue(50, 'wait', 7);
	wait_for($node, 'the call waits', q{SELECT count(*) = 50 FROM jobq.jobs WHERE state = 'running'});
	$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM jobq.workers WHERE pid IS NOT NULL});
	$gate->quit;
	all_but('a worker that was terminated', 50, 0);
	is($node->safe_psql('postgres', q{SELECT max(jobs) FROM effect}), '1', 'a worker that was terminated: each job runs alone');
}

{
	my $offset = -s $node->logfile;

	# the crash may end the session
	eval { enqueue(50, 'crash', 33) };
	wait_for_restart($node, $offset);
	all_but('a job that crashes its worker', 50, 1, 2);
	my $crashes = () = slurp_file($node->logfile, $offset) =~ /all server processes terminated; reinitializing/g;
	is($crashes, 3, 'a job that crashes its worker: once with the others, and twice alone');
}

# Stops and crashes that no job has caused.
foreach my $mode ('immediate', 'fast')
{
	my $gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	enqueue(50, 'wait', 7);
	wait_for($node, 'the call waits', q{SELECT count(*) = 50 FROM jobq.jobs WHERE state = 'running'});
	$node->stop($mode);
	eval { $gate->{run}->finish };
	$node->start;
	all_but("$mode stop", 50, 0);
	is($node->safe_psql('postgres', q{SELECT min(jobs) FROM effect}), '50', "$mode stop: the jobs run together again");
}

# A job of a group is cancelled, and resists, so that its worker is terminated.  Another worker is idle,
# and later jobs of the group are parked.  These must not run before the other jobs of the call.
{
	$node->safe_psql('postgres', q{
CREATE TABLE ran (at bigserial, job bigint);
CREATE FUNCTION grouped(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	job jobq.job_context;
BEGIN
	FOREACH job IN ARRAY jobs LOOP
		WHILE job.payload ? 'resist' LOOP
			BEGIN
				PERFORM pg_sleep(60);
			EXCEPTION WHEN query_canceled THEN
				RAISE LOG 'job % resists', job.id;
			END;
		END LOOP;
		INSERT INTO ran (job) VALUES (job.id);
	END LOOP;
END $$;
SELECT jobq.register('grouped', 'grouped(jobq.job_context[])', queue => 'grouped', chunk => 100);
SELECT jobq.enqueue('grouped', group_key => 'g') FROM generate_series(1, 10)});
	wait_for($node, 'the workers of the queue run', q{SELECT count(*) = 0 FROM jobq_internal.job});
	$node->append_conf('postgresql.conf', q{jobq.cancel_grace = '300ms'});
	$node->reload;
	$node->safe_psql('postgres', q{
TRUNCATE ran;
SELECT jobq.pause('grouped');
SELECT jobq.enqueue('grouped', CASE i WHEN 1 THEN '{"resist": true}' ELSE '{}' END::jsonb, group_key => 'g') FROM generate_series(1, 150) i;
SELECT jobq.resume('grouped')});
	wait_for($node, 'the call runs', q{SELECT count(*) > 1 FROM jobq.jobs WHERE state = 'running'});
	my $first = $node->safe_psql('postgres', 'SELECT min(id) FROM jobq_internal.job');
	$node->safe_psql('postgres', "SELECT jobq.cancel($first)");
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($first, '5 min')"), 'cancelled', 'a call with a job that resists: this job is cancelled');
	wait_for($node, 'a call with a job that resists: no job is left', q{SELECT count(*) = 0 FROM jobq_internal.job});
	is($node->safe_psql('postgres', q{
SELECT count(*), count(DISTINCT job), count(*) FILTER (WHERE previous > job)
FROM (SELECT job, lag(job) OVER (ORDER BY at) AS previous FROM ran) r}), '149|149|0', 'a call with a job that resists: the others run in order');
	like(slurp_file($node->logfile), qr/job $first did not react to a query cancel/, 'a call with a job that resists: its worker was terminated');
}

$node->stop;
no_failed_assertion($node);
done_testing();
