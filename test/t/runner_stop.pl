# Handlers which refuse to stop, and completions which must not be lost.
#
# Runs on each major: shutdown and interrupts are the server's own.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
wal_writer_delay = 10s
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint);

-- takes any query cancel for a hint
CREATE FUNCTION resist(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	LOOP
		BEGIN
			PERFORM pg_sleep(60);
		EXCEPTION WHEN query_canceled THEN
			RAISE LOG 'job % resists', job.id;
		END;
	END LOOP;
END $$;
CREATE PROCEDURE resist_procedure(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	INSERT INTO effect VALUES (job.id);
	LOOP
		BEGIN
			PERFORM pg_sleep(60);
		EXCEPTION WHEN query_canceled THEN
			RAISE LOG 'job % resists', job.id;
		END;
	END LOOP;
END $$;
CREATE FUNCTION doze(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_sleep(60);
END $$;

-- stops when it is asked, and keeps what it has done
CREATE FUNCTION listen_to(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	WHILE NOT jobq.should_stop() LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect VALUES (job.id); END;

SELECT jobq.register('resist', 'resist(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.register('resist_finally', 'resist(jsonb, jobq.job_context)', fail_on_timeout => true);
SELECT jobq.register('resist_once', 'resist(jsonb, jobq.job_context)', backoff => 'fixed 1ms', max_exceptions => 1);
SELECT jobq.register('resist_later', 'resist(jsonb, jobq.job_context)', backoff => 'fixed 1h');
SELECT jobq.register('resist_procedure', 'resist_procedure(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.register('doze', 'doze(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.register('doze_finally', 'doze(jsonb, jobq.job_context)', fail_on_timeout => true);
SELECT jobq.register('listen', 'listen_to(jsonb, jobq.job_context)');
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
});

sub enqueue
{
	my ($kind, $options) = @_;
	return $node->safe_psql('postgres',
		"SELECT jobq.enqueue('$kind'" . ($options ? ", $options" : '') . ')');
}

sub is_running
{
	my ($id) = @_;
	return poll($node, "SELECT count(*) = 1 FROM jobq.workers WHERE job_id = $id");
}

# Run a job whose attempts all time out; returns the number of terminated workers.
sub times_out
{
	my ($kind, $attempts, $options, $what) = @_;
	my ($resisted, $terminated, $id);

	# On a slow machine, a cancel may end the handler before the handler has begun to resist:
	# this shows nothing.
	foreach my $ms (map { 100 * 2**$_ } 0 .. 7)
	{
		$id = enqueue($kind, "timeout => '${ms}ms', $options");
		is( $node->safe_psql('postgres', "SELECT state, attempt FROM jobq.wait($id, '5 min')"),
			"dead|$attempts", "timeout: $kind $what");
		my $log = slurp_file($node->logfile);
		$resisted = () = $log =~ /job $id resists/g;
		# a worker which needs more time to end than the grace is terminated again
		my %gone = map { $_ => 1 } $log =~
		  /terminating the jobq worker with PID (\d+): job $id did not react to a query cancel/g;
		$terminated = keys %gone;
		last if $kind !~ /resist/ || $resisted == $attempts;
	}
	is( $node->safe_psql(
			'postgres', qq{
SELECT sqlstate, jsonb_array_length(errors), error LIKE 'the job ran longer than its timeout%', attempt
FROM jobq.dead_letters WHERE id = $id}),
		"JQ007|$attempts|t|$attempts", "timeout: $kind says why");
	return $terminated;
}

sub set_grace
{
	$node->append_conf('postgresql.conf', "jobq.cancel_grace = '$_[0]'");
	$node->reload;
	return;
}

#
# Timeout
#
set_grace('1h');
is(times_out('doze', 2, 'max_attempts => 2', 'fails after its attempts'),
	0, 'timeout: a worker whose handler stops is not terminated');
is(times_out('doze_finally', 1, 'max_attempts => 5', 'has no other attempt with fail_on_timeout'),
	0, 'timeout: nor here');
set_grace('300ms');
is(times_out($_, 2, 'max_attempts => 2', 'fails after its attempts'),
	2, "timeout: $_ resists, and its workers are terminated")
  foreach 'resist', 'resist_procedure';
is(times_out('resist_finally', 1, 'max_attempts => 5', 'has no other attempt with fail_on_timeout'),
	1, 'timeout: so does resist_finally');
is(times_out('resist_once', 1, 'max_attempts => 5', 'has no other attempt with max_exceptions'),
	1, 'timeout: so does resist_once');
my $later = enqueue('resist_later', "timeout => '1s'");
wait_for($node, 'timeout: a job that resists has another attempt',
	"SELECT state = 'retryable' FROM jobq.status($later)");
is($node->safe_psql('postgres', "SELECT run_at > now() + interval '30 min', jobq.cancel(id) FROM jobq.jobs WHERE id = $later"),
	't|t', 'timeout: but not before its backoff is over');
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'0', 'timeout: effects are rolled back');

#
# Cancel
#
foreach my $kind ('doze', 'resist', 'resist_procedure')
{
	my $id = enqueue($kind);
	is_running($id);
	is($node->safe_psql('postgres', "SELECT jobq.cancel($id)"),
		't', "cancel: $kind is asked to stop");
	is( $node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"),
		'cancelled', "cancel: $kind is cancelled, and does not run again");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'0', 'cancel: effects are rolled back');
is( $node->safe_psql(
		'postgres', q{SELECT state, count(*) FROM jobq.workers WHERE job_id IS NOT NULL GROUP BY 1}),
	'', 'cancel: no worker is left with it');

# A cancel which arrives at the end of its job does not hit the next job.
{
	my $first = enqueue('listen', q{timeout => '1h'});
	is_running($first);
	$node->safe_psql('postgres', q{SELECT jobq.test_clock('57 min')});
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($first, '5 min')"),
		'completed', 'should_stop() tells of the end of the time, before it has come');
	$node->safe_psql('postgres', q{SELECT jobq.test_clock('0')});
	my $id = enqueue('listen');
	is_running($id);
	$node->safe_psql('postgres', 'SELECT jobq.restart_workers()');
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"),
		'completed', 'should_stop() tells that the worker is to leave');
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
		'2|2', 'and what the handlers have done is kept');
}
$node->append_conf('postgresql.conf', q{jobq.workers = '*=1'});
$node->reload;
$node->safe_psql('postgres', 'TRUNCATE effect');
$node->pgbench(
	'--client=4 --transactions=100 --no-vacuum',
	0, [qr{processed: 400/400}], [qr{^$}],
	'jobs are cancelled just when they run',
	{
		'009_cancel' => q{
SELECT jobq.enqueue('note') AS first \gset
SELECT jobq.enqueue('note') AS second \gset
SELECT jobq.cancel(:first);
}
	});
wait_for($node, 'all are finished', 'SELECT count(*) = 0 FROM jobq_internal.job');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM jobq.jobs j LEFT JOIN effect e ON e.job = j.id
WHERE j.kind = 'note' AND (j.state = 'completed') <> (e.job IS NOT NULL)}),
	'0', 'a job is cancelled or has its effect, and never both or neither');
is( $node->safe_psql(
		'postgres', q{SELECT count(*) FROM jobq.jobs WHERE kind = 'note' AND state = 'completed'})
	+ $node->safe_psql(
		'postgres', q{SELECT count(*) FROM jobq.jobs WHERE kind = 'note' AND state = 'cancelled'}),
	800, 'and no other has failed of it');

#
# Durable completions: reported by jobq.wait(), or flushed by each worker.
#
my $count = 300;
foreach my $synchronous ('off', 'on')
{
	$node->append_conf('postgresql.conf', "jobq.synchronous_commit = $synchronous");
	$node->reload;
	$node->safe_psql('postgres', 'TRUNCATE effect');
	my $ids = $node->safe_psql('postgres',
		"SELECT array_agg(id) FROM jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[$count])) id");
	if ($synchronous eq 'on')
	{
		# no process but the workers flushes the completions
		poll($node, q{SELECT count(*) = 0 FROM jobq_internal.job});
	}
	else
	{
		is( $node->safe_psql('postgres', "SELECT count(*) FROM jobq.wait_many('$ids'::bigint[], '5 min') WHERE state = 'completed'"),
			$count, "synchronous_commit = $synchronous: all are told to be completed");
	}
	$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
	$node->stop('immediate');
	$node->start;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
		$count, "synchronous_commit = $synchronous: all have survived a crash");
	$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
	$node->reload;
}

# A session in jobq.status() flushes exactly the existing WAL, wherever a page of WAL ends.
{
	my $id = enqueue('note');
	$node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')");
	$node->safe_psql('postgres', 'CHECKPOINT');
	my ($rc, $out, $err) = $node->psql(
		'postgres', qq{
DO \$\$
DECLARE
	free int;
	ended int := 0;
BEGIN
	-- a message of the size that is left on the page ends where it does
	FOR i IN 1 .. 300 LOOP
		free := 8192 - (pg_current_wal_insert_lsn() - '0/0') % 8192;
		IF free BETWEEN 100 AND 4000 THEN
			PERFORM pg_logical_emit_message(false, 'x', repeat('x', free - 52 - i % 8));
			ended := ended + ((pg_current_wal_insert_lsn() - '0/0') % 8192 IN (24, 40))::int;
		ELSE
			PERFORM pg_logical_emit_message(false, 'x', repeat('x', 200));
		END IF;
		PERFORM jobq.status($id);
	END LOOP;
	RAISE NOTICE 'ended % times', ended;
END \$\$});
	is($rc, 0, 'jobq.status() at the end of a page of WAL');
	like($err, qr/ended [1-9]/, 'which the test has hit');
}

$node->stop;
no_failed_assertion($node);
done_testing();
