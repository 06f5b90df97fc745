# Processes start, come back, make room and stop.
#
# Runs on each major: background workers are supervised by the postmaster.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, pid int DEFAULT pg_backend_pid());
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect (job) VALUES (job.id); END;
CREATE FUNCTION hold(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
CREATE PROCEDURE hold_procedure(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.register('hold', 'hold(jsonb, jobq.job_context)');
SELECT jobq.register('hold_procedure', 'hold_procedure(jsonb, jobq.job_context)');
};

my $node = jobq_node('main', q{
jobq.workers = '*=3'
});

# Enqueue a job and wait until the job has run.
sub job_runs
{
	my ($what, $options) = @_;
	my $id = $node->safe_psql('postgres',
		q{SELECT jobq.enqueue('note'} . ($options ? ", $options" : '') . ')');
	return is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"),
		'completed', $what);
}

my $gate;

sub hold_jobs
{
	my ($kind, $n, $options) = @_;
	$gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	$node->safe_psql('postgres',
		"SELECT jobq.enqueue('$kind'" . ($options ? ", $options" : '')
		. ") FROM generate_series(1, $n)");
	sleeps($node, "$n jobs of kind $kind are running", $n);
	return;
}

sub setting
{
	my ($line) = @_;
	$node->append_conf('postgresql.conf', $line);
	$node->reload;
	return;
}

sub is_shut_down
{
	my ($what) = @_;
	return command_like([ 'pg_controldata', $node->data_dir ],
		qr/Database cluster state: *shut down$/m, $what);
}

#
# Without shared_preload_libraries jobs are stored, and messages tell the user how to continue.
#
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->adjust_conf('postgresql.conf', 'jobq.workers', undef);
$node->adjust_conf('postgresql.conf', 'jobq.poll_interval', undef);
$node->start;
$node->safe_psql('postgres', $setup);
my $early = $node->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.status($early)"),
	'ready', 'not preloaded: a job waits');
foreach my $call ("wait($early)", 'restart_workers()')
{
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT jobq.$call");
	like($err, qr/needs jobq's background workers.*HINT:.*"jobq".*"shared_preload_libraries"/s,
		"not preloaded: $call says what is needed");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.workers'),
	'0', 'not preloaded: the views work');
is($node->safe_psql('postgres', "SELECT reason FROM jobq.explain($early)"),
	'not_loaded', 'not preloaded: explain() says so');

$node->append_conf('postgresql.conf', q{
shared_preload_libraries = 'jobq'
jobq.poll_interval = '1h'
jobq.workers = '*=3'
});
$node->restart;
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($early, '5 min')"),
	'completed', 'preloaded: the job that waited runs');

#
# Processes start, and come back after an exit.
#
is( $node->safe_psql(
		'postgres', q{
SELECT backend_type, count(*) > 0 FROM pg_stat_activity
WHERE backend_type ~ '^jobq' AND backend_type <> 'jobq counter' GROUP BY 1 ORDER BY 1}),
	"jobq launcher|t\njobq scheduler|t\njobq worker|t",
	'launcher, scheduler and workers are up');

foreach my $round (1, 2)
{
	my $pid = scheduler_pid($node);
	my $id = $node->safe_psql('postgres',
		q{SELECT jobq.enqueue('note', delay => '1.5s')});

	ok(signal_process('TERM', $pid), 'scheduler terminated');
	wait_for($node, 'a new scheduler comes up',
		"SELECT pid <> $pid FROM jobq_internal.scheduler_state()");
	job_runs('jobs run after the scheduler was replaced');
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"),
		'completed', 'jobs that were scheduled before run, too');
}
{
	my $launcher = launcher_pid($node);
	my $scheduler = scheduler_pid($node);

	ok(signal_process('TERM', $launcher), 'launcher terminated');
	ok(wait_for_exit($launcher), 'and gone');
	is(scheduler_pid($node), $scheduler, 'the scheduler outlives the launcher');
	job_runs('jobs run without the launcher');
	wait_for($node, 'the launcher comes back',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq launcher'});
	signal_process('TERM', $scheduler);
	wait_for($node, 'the new launcher looks after the scheduler',
		"SELECT pid <> $scheduler FROM jobq_internal.scheduler_state()");
	job_runs('jobs run after both were replaced');
}

#
# Workers are terminated in the middle of a job: the job runs again at once.
#
foreach my $kind ('hold', 'hold_procedure')
{
	$node->safe_psql('postgres', 'TRUNCATE effect');
	hold_jobs($kind, 3);
	my @old = worker_pids($node);
	signal_process('TERM', $_) foreach @old;
	wait_for($node, "$kind: terminated, and running again",
		'SELECT count(*) = 3 AND bool_and(attempt = 2 AND NOT pid = ANY ('
		  . "'{" . join(',', @old) . "}')) FROM jobq.workers WHERE job_id IS NOT NULL");
	$gate->quit;
	wait_for($node, "$kind: all of them complete", 'SELECT count(*) = 0 FROM jobq_internal.job');
	is( $node->safe_psql(
			'postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
		'3|3', "$kind: with their effects once");
	is( $node->safe_psql(
			'postgres', "SELECT count(*) FROM jobq.jobs WHERE kind = '$kind' AND attempt = 2 AND state = 'completed'"),
		'3', "$kind: at the second attempt");
}

#
# Workers are terminated while connecting.  No job had begun, so no job is charged.  The workers
# wait for a lock of a session.
#
foreach my $stop ('terminated', 'fast shutdown')
{
	$node->safe_psql('postgres', q{
TRUNCATE effect;
SELECT jobq.restart_workers();
SELECT jobq.pause('default');
SELECT jobq.enqueue('note', max_attempts => 1) FROM generate_series(1, 20)});
	wait_for($node, "$stop: the workers have left",
		'SELECT count(*) = 0 FROM jobq.workers WHERE pid IS NOT NULL');
	my ($admin, $other) =
	  map { $node->background_psql('postgres', on_error_stop => 0) } 1, 2;
	$admin->query('BEGIN; LOCK pg_db_role_setting');
	my $connecting = q{
FROM pg_locks WHERE relation = 'pg_db_role_setting'::regclass AND NOT granted};
	$other->query("SELECT jobq.resume('default')");
	my $offset = -s $node->logfile;

	if ($stop eq 'terminated')
	{
		my %seen;

		# terminate several workers, because a first failure is tolerated
		for (my $left = 18_000; keys %seen < 5 && $left > 0; $left--)
		{
			foreach my $pid (split /\n/, $admin->query("SELECT pid $connecting"))
			{
				signal_process('TERM', $pid) unless $seen{$pid}++;
			}
			usleep(10_000);
		}
		cmp_ok(keys %seen, '>=', 5, "$stop: workers come again and again");
		$admin->query('COMMIT');
		$_->quit foreach $admin, $other;
		my $reports = () = slurp_file($node->logfile, $offset) =~
		  /workers could not connect as role "/g;
		is($reports, 1, "$stop: this is reported once");
	}
	else
	{
		for (my $left = 18_000; $left > 0; $left--)
		{
			last if $admin->query("SELECT count(*) $connecting") > 0;
			usleep(10_000);
		}
		$node->stop('fast');
		is_shut_down('fast shutdown while workers connect is clean');
		eval { $_->{run}->finish } foreach $admin, $other;
		$node->start;
	}
	wait_for($node, "$stop: the jobs run", 'SELECT count(*) = 0 FROM jobq_internal.job');
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
		'20|20', "$stop: once");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.dead_letters'),
		'0', "$stop: and no job is charged");
}

#
# Replacing workers.
#
{
	my $old = join(',', worker_pids($node));

	$node->safe_psql('postgres', 'SELECT jobq.restart_workers()');
	wait_for($node, 'restart_workers(): idle workers leave',
		"SELECT count(*) = 0 FROM jobq.workers WHERE pid IN ($old)");
	job_runs('restart_workers(): others take their place');

	hold_jobs('hold', 2);
	$old = join(',', worker_pids($node));
	$node->safe_psql('postgres', 'SELECT jobq.restart_workers()');
	wait_for($node, 'restart_workers(): busy workers finish their job first',
		q{SELECT count(*) = 2 FROM jobq.workers WHERE state = 'leaving' AND job_id IS NOT NULL});
	job_runs('restart_workers(): meanwhile others run');
	$gate->quit;
	wait_for($node, 'restart_workers(): and then leave',
		"SELECT count(*) = 0 FROM jobq.workers WHERE pid IN ($old)");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.dead_letters}),
		'0', 'restart_workers(): no job failed of it');
}

#
# A worker checks its age and memory after each job.  With minimal limits, each worker runs one job.
#
$node->safe_psql('postgres', q{
CREATE FUNCTION slow(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect VALUES (job.id);
	PERFORM pg_sleep(1.1);
END $$;
SELECT jobq.register('slow', 'slow(jsonb, jobq.job_context)')});
foreach my $case (['worker_max_age', '1 s', '1 h', 'slow', 6], ['worker_max_memory', '1 kB', '256 MB', 'note', 12])
{
	my ($name, $least, $default, $kind, $n) = @$case;

	setting("jobq.$name = '$least'");
	$node->safe_psql('postgres', qq{
TRUNCATE effect;
SELECT jobq.restart_workers();
SELECT jobq.enqueue('$kind') FROM generate_series(1, $n)});
	wait_for($node, "$name: all jobs run", 'SELECT count(*) = 0 FROM jobq_internal.job');
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT pid) FROM effect'),
		"$n|$n", "$name: no worker runs more than one");
	setting("jobq.$name = '$default'");
}

#
# Reload of jobq.workers: pools grow, shrink, appear and vanish.
#
hold_jobs('hold', 3);
$node->safe_psql('postgres',
	q{SELECT jobq.enqueue('hold') FROM generate_series(1, 3)});
setting(q{jobq.workers = '*=6'});
sleeps($node, 'a pool that grows starts workers at once', 6);
setting(q{jobq.workers = '*=2'});
wait_for($node, 'a pool that shrinks has workers leave',
	q{SELECT count(*) = 4 FROM jobq.workers WHERE state = 'leaving'});
$gate->quit;
wait_for($node, 'after their jobs',
	q{SELECT count(*) = 2 FROM jobq.workers WHERE pid IS NOT NULL});

setting(q{jobq.workers = 'elsewhere=1'});
wait_for($node, 'the scheduler knows of another pool',
	q{SELECT count(*) = 1 FROM jobq.workers WHERE pid IS NOT NULL});
my $unserved = $node->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
my $served = $node->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'elsewhere')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($served, '5 min')"),
	'completed', 'a pool serves its queue');
is($node->safe_psql('postgres', "SELECT state FROM jobq.status($unserved)"),
	'ready', 'and no other');
setting(q{jobq.workers = 'elsewhere=2; *=2'});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($unserved, '5 min')"),
	'completed', 'a pool that appears serves what has waited');
setting(q{jobq.workers = '*=2'});
wait_for($node, 'the workers of a pool that vanishes leave',
	q{SELECT count(*) FILTER (WHERE pool > 1) = 0 AND count(*) <= 2 FROM jobq.workers});
job_runs('and the others serve its queue', q{queue => 'elsewhere'});
{
	my ($rc) = $node->psql('postgres',
		q{ALTER SYSTEM SET jobq.workers = 'a=1; b'});
	isnt($rc, 0, 'jobq.workers that makes no sense is refused');
}

#
# jobq.start_paused.
#
setting(q{jobq.start_paused = on});
$node->restart;
wait_for($node, 'start_paused: the scheduler is up',
	'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
my $paused = $node->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($paused, '200ms')"),
	'ready', 'start_paused: nothing runs');
is($node->safe_psql('postgres', 'SELECT count(*) FROM jobq.workers'),
	'0', 'start_paused: there are no workers');
setting(q{jobq.start_paused = off});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($paused, '5 min')"),
	'completed', 'start_paused: switched off, work begins');

#
# A shutdown while jobs run is clean, and the jobs are not charged.
#
foreach my $mode ('fast', 'smart')
{
	foreach my $kind ('hold', 'hold_procedure')
	{
		$node->safe_psql('postgres', 'TRUNCATE effect');
		hold_jobs($kind, 2, 'max_attempts => 1');

		# a client would delay a smart shutdown; a worker must not
		if ($mode eq 'smart')
		{
			$gate->quit;
			wait_for($node, "$kind: done", 'SELECT count(*) = 0 FROM jobq_internal.job');
			$node->safe_psql('postgres', q{
CREATE OR REPLACE FUNCTION forever(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(600)';
SELECT jobq.register('forever', 'forever(jsonb)');
SELECT jobq.enqueue('forever', max_attempts => 1)});
			wait_for($node, 'a job is running',
				q{SELECT count(*) = 1 FROM jobq.workers WHERE kind = 'forever'});
		}
		$node->stop($mode);
		is_shut_down("$mode shutdown with jobs of kind $kind is clean");
		eval { $gate->{run}->finish } if $mode eq 'fast';
		$node->start;
		if ($mode eq 'smart')
		{
			wait_for($node, 'the job runs again, with its first attempt',
				q{SELECT attempt = 1 FROM jobq.workers WHERE kind = 'forever'});
			$node->safe_psql('postgres', q{SELECT jobq.cancel(job_id) FROM jobq.workers WHERE kind = 'forever'});
		}
		wait_for($node, "$mode: the jobs run after the start",
			'SELECT count(*) = 0 FROM jobq_internal.job');
		is( $node->safe_psql(
				'postgres', q{SELECT jobq.delete(id) FROM jobq.dead_letters}),
			'', "$mode: no job was charged");
		is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
			'2|2', "$mode: effects are there once");
	}
}

#
# Workers do not wait for the flush of their commits.  The flush happens without further activity.
#
$node->safe_psql('postgres', q{
SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[1000]))});
wait_for($node, 'the jobs are done', 'SELECT count(*) = 0 FROM jobq_internal.job');
my $lsn = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
wait_for($node, 'and they are flushed by themselves',
	"SELECT pg_current_wal_flush_lsn() >= '$lsn'");

#
# Fewer background workers than the settings require.
#
setting(q{
jobq.workers = '*=8'
max_worker_processes = 4
max_logical_replication_workers = 0
});
$node->safe_psql('postgres', q{
SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[1000]))});
my $offset = -s $node->logfile;
my $since = time();
$node->restart;
$node->safe_psql('postgres', q{
SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[1000]))});
wait_for($node, 'max_worker_processes is too small: jobs run all the same',
	'SELECT count(*) = 0 FROM jobq_internal.job');
hold_jobs('hold', 2);
$node->safe_psql('postgres', q{SELECT jobq.enqueue('hold') FROM generate_series(1, 4)});
$node->wait_for_log(qr/could not start a jobq worker: no slot is free.*HINT: [^\n]*"max_worker_processes"/s,
	$offset);
ok(1, 'max_worker_processes is too small: it is reported');
wait_for($node, 'max_worker_processes is too small: doctor() tells',
	q{SELECT EXISTS (SELECT FROM jobq.doctor()
		WHERE detail LIKE 'the scheduler cannot start more workers since %: no slot is free: raise "max_worker_processes"%')});
$gate->quit;
wait_for($node, 'max_worker_processes is too small: nothing is lost',
	'SELECT count(*) = 0 FROM jobq_internal.job');
wait_for($node, 'max_worker_processes is too small: doctor() tells no more when all have been done',
	q{SELECT NOT EXISTS (SELECT FROM jobq.doctor() WHERE detail LIKE 'the scheduler cannot%')});
my $reports = () = slurp_file($node->logfile, $offset) =~ /no slot is free/g;
cmp_ok($reports, '<=', 2 + (time() - $since) / 3600, 'max_worker_processes is too small: the log is told once');

$node->stop;
is_shut_down('and the last shutdown is clean');
no_failed_assertion($node);
done_testing();
