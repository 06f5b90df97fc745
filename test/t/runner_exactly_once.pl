# Effects in the database happen exactly once, and no job is lost, when processes are
# terminated, stopped or crashed.
#
# Runs on each major: exactly-once effects rest on the server's transactions.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jobs = 20000;

my $node = jobq_node('main', q{
jobq.workers = '*=4'
jobq.ready_entries = 4096
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
-- no unique index: what ran twice would be there twice
CREATE TABLE effect (job bigint, attempt int);

CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id, job.attempt);
	PERFORM pg_sleep(0.001);	-- so that the blows fall on running jobs
END $$;

-- fails at first
CREATE FUNCTION stumble(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id, job.attempt);
	IF job.attempt = 1 THEN
		RAISE 'stumbled';
	END IF;
END $$;

CREATE FUNCTION give_up(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id, job.attempt);
	PERFORM jobq.reject_current('given up');
END $$;

CREATE PROCEDURE proceed(payload jsonb, job jobq.job_context)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM 1;
	COMMIT;
	INSERT INTO effect VALUES (job.id, job.attempt);
END $$;

SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.register('stumble', 'stumble(jsonb, jobq.job_context)', backoff => 'fixed 10ms');
SELECT jobq.register('give_up', 'give_up(jsonb, jobq.job_context)');
SELECT jobq.register('proceed', 'proceed(jsonb, jobq.job_context)');

-- kept out of the server's way, in pieces with pauses between them
CREATE PROCEDURE produce(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n / 100 LOOP
		PERFORM jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[87]), max_attempts => 100);
		PERFORM jobq.enqueue('stumble', max_attempts => 100, priority => j) FROM generate_series(1, 5) j;
		PERFORM jobq.enqueue('give_up', max_attempts => 100);
		PERFORM jobq.enqueue('proceed', max_attempts => 100) FROM generate_series(1, 7);
		COMMIT;
	END LOOP;
END $$;
});

sub terminate
{
	my ($type) = @_;
	$node->safe_psql('postgres', qq{
SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
WHERE backend_type = '$type' ORDER BY random() LIMIT 2) p});
	return;
}

# Each round has some jobs, and a disturbance as soon as some of the jobs have run.
my @blows = (
	sub { terminate('jobq worker') },
	sub { terminate('jobq scheduler') },
	sub { crash_backend($node) },
	sub { terminate('jobq worker'); terminate('jobq scheduler') },
	sub { $node->stop('immediate'); $node->start },
	sub { terminate('jobq launcher'); terminate('jobq scheduler') },
	sub { $node->safe_psql('postgres', 'SELECT jobq.restart_workers()') },
	sub { crash_backend($node, 'QUIT') },
	sub { $node->restart },
	sub { terminate('jobq launcher'); terminate('jobq worker') });

my $produced = 0;
foreach my $blow (@blows)
{
	my $n = $jobs / @blows;

	$node->safe_psql('postgres', "CALL produce($n)");
	$produced += $n;
	poll($node, "SELECT count(*) < $n * 9 / 10 FROM jobq_internal.job");
	note($node->safe_psql('postgres', 'SELECT count(*) FROM jobq_internal.job')
		  . ' jobs are left');
	$blow->();
}

work_off($node, 'all jobs are finished', 'SELECT count(*) FROM jobq_internal.job');

is( $node->safe_psql(
		'postgres', q{
SELECT count(*), count(DISTINCT job) FROM effect}),
	$produced * 0.99 . '|' . $produced * 0.99,
	'every effect is there, and once');
is( $node->safe_psql(
		'postgres', q{
SELECT kind, state, count(*) FROM jobq.jobs GROUP BY 1, 2 ORDER BY 1, 2}),
	join("\n",
		'give_up|dead|' . $produced * 0.01,
		'note|completed|' . $produced * 0.87,
		'proceed|completed|' . $produced * 0.07,
		'stumble|completed|' . $produced * 0.05),
	'archive and dead letters add up');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM jobq.jobs j JOIN effect e ON e.job = j.id
WHERE j.attempt <> e.attempt}),
	'0',
	'the effect is that of the attempt that succeeded');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM jobq.jobs WHERE kind = 'stumble' AND attempt < 2}),
	'0',
	'every failure was charged');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM jobq.dead_letters WHERE error <> 'given up' OR jsonb_array_length(errors) <> attempt}),
	'0',
	'every failure of a dead letter is recorded');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM jobq.dead_letters WHERE crashes > 0}),
	'0',
	'no job was blamed for the crashes');

$node->stop;
no_failed_assertion($node);
done_testing();
