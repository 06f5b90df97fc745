# A job which kills its server process is charged, and set aside after a few times; its
# neighbours are not charged.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=12'
jobq.max_workers = 14
});
$node->start;

# The shell's parent is the server process which runs the handler.
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, attempt int);

CREATE FUNCTION innocent(payload jsonb, job jobq.job_context) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id, job.attempt);
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;

CREATE PROCEDURE innocent_procedure(payload jsonb, job jobq.job_context)
LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	INSERT INTO effect VALUES (job.id, job.attempt);
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;

CREATE FUNCTION crash(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('COPY (SELECT) TO PROGRAM %L',
		format('kill -%s $PPID; sleep 60', payload ->> 'signal'));
END $$;

CREATE PROCEDURE crash_procedure(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	EXECUTE format('COPY (SELECT) TO PROGRAM %L',
		format('kill -%s $PPID; sleep 60', payload ->> 'signal'));
END $$;

SELECT jobq.register('innocent', 'innocent(jsonb, jobq.job_context)');
SELECT jobq.register('innocent_procedure', 'innocent_procedure(jsonb, jobq.job_context)');
SELECT jobq.register('crash', 'crash(jsonb)', backoff => 'fixed 1ms', max_attempts => 10, retry_on => '{40}');
SELECT jobq.register('crash_procedure', 'crash_procedure(jsonb)', backoff => 'fixed 1ms', max_attempts => 10, retry_on => '{40}');
});

# Hold the innocent jobs in their handlers.
my $gate;

sub close_gate
{
	$gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	return;
}

sub open_gate
{
	my ($lost) = @_;

	# after a crash of the server, the gate's session is gone
	$lost ? eval { $gate->{run}->finish } : $gate->quit;
	return;
}

sub innocents
{
	my ($kind, $n) = @_;
	close_gate();
	$node->safe_psql('postgres',
		"SELECT jobq.enqueue('$kind', max_attempts => 1) FROM generate_series(1, $n)");
	sleeps($node, "$n jobs of kind $kind are running", $n);
	return;
}

# The innocent jobs are done in the first attempt, and have left their effects once.
sub innocents_are_done
{
	my ($what, $n) = @_;
	wait_for($node, "$what: the neighbours run",
		q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind ~ 'innocent'});
	is( $node->safe_psql(
			'postgres', q{
SELECT count(*), min(j.attempt), max(j.attempt), count(DISTINCT e.job), min(e.attempt), max(e.attempt)
FROM effect e JOIN jobq.jobs j ON j.id = e.job WHERE j.state = 'completed'}),
		"$n|1|1|$n|1|1",
		"$what: each neighbour has run once, and is charged with one attempt");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.dead_letters WHERE kind ~ 'innocent'}),
		'0', "$what: no neighbour has failed");
	$node->safe_psql('postgres',
		q{TRUNCATE effect; SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind ~ 'innocent'});
	return;
}

# A handler crashes its process, with signals which the process can and cannot handle.
foreach my $case (
	[ 'crash', 'ABRT' ],
	[ 'crash', 'KILL' ],
	[ 'crash_procedure', 'ABRT' ])
{
	my ($kind, $signal) = @$case;
	my $letter = "kind = '$kind' AND payload ->> 'signal' = '$signal'";
	my $offset = -s $node->logfile;

	innocents('innocent', 8);
	# the crash may end the session before the session has left
	$node->psql('postgres', qq[SELECT jobq.enqueue('$kind', '{"signal": "$signal"}')]);
	wait_for_restart($node, $offset);
	open_gate(1);
	wait_for($node, "SIG$signal in a handler: it becomes a dead letter",
		"SELECT count(*) = 1 FROM jobq.dead_letters WHERE $letter");
	is( $node->safe_psql(
			'postgres', qq{
SELECT attempt, crashes, sqlstate, jsonb_array_length(errors) FROM jobq.dead_letters WHERE $letter}),
		'2|2|JQ008|2',
		"SIG$signal in a handler: it is set aside after the second crash");
	innocents_are_done("SIG$signal in a handler", 8);

	my $crashes = () = slurp_file($node->logfile, $offset) =~
	  /all server processes terminated; reinitializing/g;
	is($crashes, 2, "SIG$signal in a handler: two crashes and no more");
}

# Several crashes at once, by jobs of several roles.  A job which has crashed a process runs
# alone afterwards, so the next crash has a single culprit.
{
	$node->safe_psql(
		'postgres', q{
CREATE ROLE a; SELECT jobq.grant_privilege('a');
CREATE ROLE b; SELECT jobq.grant_privilege('b');
GRANT INSERT ON effect TO a, b;
GRANT pg_execute_server_program TO a, b}) if $node->pg_version >= 17;
	my @roles = $node->pg_version >= 17 ? ('a', 'b') : ('postgres') x 2;
	my $offset = -s $node->logfile;

	$node->psql('postgres',
		'BEGIN; '
		  . join('', map { qq[SET LOCAL ROLE $_;
SELECT jobq.enqueue('crash', '{"signal": "ABRT"}'), jobq.enqueue('innocent', max_attempts => 1);] }
			  @roles, @roles)
		  . 'COMMIT');
	wait_for($node, 'several that crash: all of them are set aside',
		q{SELECT count(*) = 6 FROM jobq.dead_letters WHERE crashes = 2 AND kind = 'crash'});
	innocents_are_done('several that crash', 4);
	my $crashes = () = slurp_file($node->logfile, $offset) =~
	  /all server processes terminated; reinitializing/g;
	cmp_ok($crashes, '<=', 8, 'several that crash: no more often than they may');
}

# Crashes and shutdowns not caused by a job.
foreach my $kind ('innocent', 'innocent_procedure')
{
	innocents($kind, 8);
	crash_backend($node);
	open_gate(1);
	innocents_are_done("$kind, crash of an ordinary backend", 8);

	innocents($kind, 8);
	$node->stop('immediate');
	open_gate(1);
	$node->start;
	innocents_are_done("$kind, immediate shutdown", 8);

	innocents($kind, 8);
	$node->stop('fast');
	open_gate(1);
	$node->start;
	innocents_are_done("$kind, fast shutdown", 8);

	innocents($kind, 8);
	my $offset = -s $node->logfile;
	signal_process('KILL', scheduler_pid($node));
	wait_for_restart($node, $offset);
	open_gate(1);
	innocents_are_done("$kind, crash of the scheduler", 8);
}

# A worker killed from outside looks like a worker crashed by its job: this job is charged, and
# succeeds at its next attempt.
{
	close_gate();
	my $offset = -s $node->logfile;

	my $victim = $node->safe_psql('postgres',
		q{SELECT jobq.enqueue('innocent', backoff => 'fixed 1ms')});
	$node->safe_psql('postgres',
		q{SELECT jobq.enqueue('innocent', max_attempts => 1) FROM generate_series(1, 7)});
	sleeps($node, 'jobs are running', 8);
	signal_process('KILL',
		$node->safe_psql('postgres', "SELECT pid FROM jobq.workers WHERE job_id = $victim"));
	wait_for_restart($node, $offset);
	open_gate(1);
	wait_for($node, 'kill -9 of a worker: all jobs run',
		q{SELECT count(*) = 0 FROM jobq_internal.job});
	is( $node->safe_psql(
			'postgres', q{
SELECT count(*), sum(e.attempt), count(*) FILTER (WHERE j.attempt > 1), max(j.attempt)
FROM effect e JOIN jobq.jobs j ON j.id = e.job}),
		'8|9|1|2',
		'kill -9 of a worker: its job is charged, and no other');
	is($node->safe_psql('postgres', "SELECT attempt FROM jobq.jobs WHERE id = $victim"),
		'2', 'kill -9 of a worker: it was the right one');
	$node->safe_psql('postgres', 'TRUNCATE effect');
}

# No job is charged for the crash of an idle worker.
{
	my $offset = -s $node->logfile;

	signal_process('KILL', (worker_pids($node))[0]);
	wait_for_restart($node, $offset);
	innocents('innocent', 8);
	open_gate(0);
	innocents_are_done('kill -9 of an idle worker', 8);
	is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.dead_letters'),
		'7', 'the dead letters are those of the handlers that crashed');
}

# A crash undoes work which was not flushed: the job before the culprit in the group.  This job
# runs first again.  No process knows that the culprit has begun, so the culprit keeps its
# position, even with a single attempt.  The scheduler flushes before each notification.
# Therefore the first job's handler stops the scheduler, once in each try, until the crash ends
# it.
{
	$node->append_conf('postgresql.conf', q{
wal_writer_delay = '10s'
wal_writer_flush_after = '1GB'
});
	$node->restart;
	$node->safe_psql(
		'postgres', q{
CREATE TABLE ran (name text, attempt int, at bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION in_order(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'in order: %', payload ->> 'name';
	INSERT INTO ran VALUES (payload ->> 'name', job.attempt);
	IF job.attempt <= (payload ->> 'crashes')::int THEN
		PERFORM crash('{"signal": "ABRT"}');
	END IF;
	IF job.attempt <= (payload ->> 'fails')::int THEN
		RAISE 'no good';
	END IF;
	IF payload ? 'stop' THEN
		EXECUTE format('COPY (SELECT) TO PROGRAM %L', format('mkdir %s && kill -STOP %s; cat >/dev/null', payload ->> 'stop',
			(SELECT pid FROM pg_stat_activity WHERE backend_type = 'jobq scheduler')));
	END IF;
END $$;
SELECT jobq.register('in_order', 'in_order(jsonb, jobq.job_context)', backoff => 'fixed 1s');
CREATE FUNCTION enqueue_in_order(name text, more jsonb DEFAULT '{}', attempts int DEFAULT 3) RETURNS void LANGUAGE sql
	AS $$ SELECT jobq.enqueue('in_order', jsonb_build_object('name', name) || more, group_key => 'g', max_attempts => attempts) $$;
});
	foreach my $case (
		[ 'a b c', '{}', '{"crashes": 1}', 1, 2, 'a|1 b|2 c|1' ],
		[ 'd e f', '{"fails": 1}', '{"crashes": 1}', 3, 3, 'd|2 e|2 f|1' ],
		[ 'g h i', '{}', '{"crashes": 9}', 9, 2, 'g|1 i|1' ])
	{
		my ($names, $first, $second, $attempts, $twice, $result) = @$case;
		my ($a, $b, $c) = split / /, $names;
		my $undone = 0;

		# another process may flush in between, but not each time
		for (my $try = 1; $try <= 40 && !$undone; $try++)
		{
			my $offset = -s $node->logfile;

			my $stop = qq{jsonb_build_object('stop', 'stopped.$a.$try')};

			$node->safe_psql('postgres', 'TRUNCATE ran');
			# no job runs before all are there; the crash may end the session
			$node->psql('postgres', qq{
BEGIN;
SELECT enqueue_in_order('$a', '$first' || $stop), enqueue_in_order('$b', '$second', $attempts), enqueue_in_order('$c');
COMMIT});
			wait_for_restart($node, $offset);
			wait_for($node, "order of $names: nothing is left", 'SELECT count(*) = 0 FROM jobq_internal.job');
			my @log = slurp_file($node->logfile, $offset) =~ /in order: (\w)/g;
			$undone = grep({ $_ eq $a } @log) >= $twice;
		}
		ok($undone, "order of $names: the crash had undone the first");
		is( $node->safe_psql('postgres', q{SELECT string_agg(name || '|' || attempt, ' ' ORDER BY at) FROM ran}),
			$result, "order of $names: as they came");
	}
	is($node->safe_psql('postgres', q{SELECT string_agg(DISTINCT payload ->> 'name' || crashes, ' ') FROM jobq.dead_letters
		WHERE kind = 'in_order' AND payload ->> 'crashes' = '9'}),
		'h2', 'order: who crashes again and again is set aside');
	$node->safe_psql('postgres', q{SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'in_order'});
}

# A retried dead letter is set aside again.
{
	my $id = $node->safe_psql('postgres',
		q{SELECT max(id) FROM jobq.dead_letters WHERE kind = 'crash'});

	$node->psql('postgres', "SELECT jobq.retry($id)");
	wait_for($node, 'retried, it crashes its processes again and is set aside again',
		"SELECT jsonb_array_length(errors) = 4 AND crashes = 2 FROM jobq.dead_letters WHERE id = $id");
}

# If a failure cannot be recorded, because the write is cancelled, the worker exits, and no
# other process is hit.
{
	my $offset = -s $node->logfile;
	my $waits = q{EXISTS (SELECT FROM pg_locks WHERE relation = 'jobq_internal.dead_letter'::regclass AND NOT granted)};
	my $owner = $node->background_psql('postgres');

	$node->safe_psql('postgres', q{
		CREATE FUNCTION dozes(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM jobq.snooze('1 hour');
			RAISE EXCEPTION 'awake';
		END $$;
		SELECT jobq.register('dozes', 'dozes(jsonb)', max_attempts => 1)});
	$owner->query_safe('BEGIN; LOCK TABLE jobq_internal.dead_letter IN ACCESS EXCLUSIVE MODE');
	my $id = $node->safe_psql('postgres', q{SELECT jobq.enqueue('dozes')});
	wait_for($node, 'the end of the failed job waits for a lock', "SELECT $waits");
	is($node->safe_psql('postgres', "SELECT jobq.cancel($id)"), 't', 'it is cancelled meanwhile');
	wait_for($node, 'nobody waits any more', "SELECT NOT $waits");
	$owner->query_safe('ROLLBACK');
	$owner->quit;
	wait_for($node, 'it is cancelled', "SELECT state = 'cancelled' FROM jobq.status($id)");
	unlike(slurp_file($node->logfile, $offset), qr/terminated by signal/, 'no process has crashed of it');
}

$node->stop;
no_failed_assertion($node);
done_testing();
