# A crash is charged only with proof: to the job of the one process whose crash the postmaster
# has seen, and only if the postmaster survives.
#
# Runs on each major: the postmaster's messages and signals are read.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.workers = 'manual=0; *=6'
# nobody flushes but commits that wait for it
wal_writer_delay = '10s'
jobq.notify_interval = '60s'
max_prepared_transactions = 2
});
$node->start;

# The shell's parent is the server process which runs the handler.  The shell must end: on 15 it
# would keep a client's connection open.
my $parallel = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
my $setup = qq{
CREATE EXTENSION jobq;
CREATE FUNCTION innocent(payload jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
END \$\$;
CREATE FUNCTION crash(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	IF (payload ->> 'fails')::int >= job.attempt THEN
		RAISE EXCEPTION 'attempt % fails', job.attempt;
	END IF;
	COPY (SELECT) TO PROGRAM 'kill -ABRT \$PPID; sleep 1';
END \$\$;
CREATE FUNCTION stopped(payload jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
	RAISE EXCEPTION USING message = 'another process was terminated', errcode = 'admin_shutdown';
END \$\$;
CREATE FUNCTION parallel(payload jsonb) RETURNS void LANGUAGE plpgsql SET $parallel = on AS \$\$
BEGIN
	EXECUTE 'SELECT pg_sleep(600)';
END \$\$;
SELECT jobq.register('innocent', 'innocent(jsonb)', max_attempts => 1);
SELECT jobq.register('crash', 'crash(jsonb, jobq.job_context)', backoff => 'fixed 1ms', max_attempts => 10);
SELECT jobq.register('stopped', 'stopped(jsonb)', max_attempts => 1);
SELECT jobq.register('parallel', 'parallel(jsonb)', backoff => 'fixed 1ms', max_attempts => 10);
};
$node->safe_psql('postgres', $setup);

my $gate;

# Start innocent jobs, and hold them in their handlers.
sub innocents
{
	$gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	$node->safe_psql('postgres', q{SELECT jobq.enqueue('innocent') FROM generate_series(1, 4)});
	sleeps($node, 'jobs are running', 4);
	return;
}

# The server has crashed: end the sessions before another server is started, which would keep
# them open.
sub leave
{
	foreach my $session (grep { defined } @_)
	{
		eval { $session->{run}->finish };
	}
	return;
}

sub innocents_are_done
{
	my ($what) = @_;
	leave($gate);
	undef $gate;
	wait_for($node, "$what: the innocents run",
		q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind = 'innocent'});
	is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.dead_letters WHERE kind = 'innocent'}),
		'0', "$what: none of them was charged");
	$node->safe_psql('postgres',
		q{SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'innocent'});
	return;
}

sub set_aside
{
	my ($what, $id, $attempts) = @_;
	wait_for($node, "$what: the culprit becomes a dead letter",
		"SELECT count(*) = 1 FROM jobq.dead_letters WHERE id = $id");
	return is($node->safe_psql('postgres', "SELECT attempt, crashes FROM jobq.dead_letters WHERE id = $id"),
		"$attempts|2", "$what: charged for two crashes");
}

# The crash may end the session which enqueues the job.
sub enqueue_culprit
{
	my ($kind, $payload) = @_;
	my $out;

	# the id arrives before the commit: the server may crash before it answers the COMMIT
	$node->psql('postgres', "BEGIN; SELECT jobq.enqueue('$kind', '$payload'); COMMIT", stdout => \$out);
	return $out;
}

sub wait_for_line
{
	my ($file, $line) = @_;

	for (my $left = 10 * $PostgreSQL::Test::Utils::timeout_default; $left > 0 && slurp_file($file) !~ $line; $left--)
	{
		usleep(100_000);
	}
	return;
}

sub start_again
{
	my (@pids) = @_;
	ok(wait_for_exit($_), "process $_ is gone") foreach @pids;
	leave($gate);
	undef $gate;

	# an old process which was not waited for may still use the shared memory
	my $started;
	for (1 .. $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $started = $node->start(fail_ok => 1);
		usleep(1_000_000);
	}
	BAIL_OUT('the server does not start') unless $started;
	return;
}

#
# A neighbour which does not end within five seconds is killed by the postmaster, and then looks
# like the culprit.
#
foreach my $culprit ('a job', 'an ordinary backend')
{
	my $what = "crash of $culprit beside a worker that cannot react";
	innocents();
	signal_process('STOP', (split /\n/,
		$node->safe_psql('postgres', 'SELECT pid FROM jobq.workers WHERE job_id IS NOT NULL'))[0]);
	my $offset = -s $node->logfile;
	if ($culprit eq 'a job')
	{
		my $id = enqueue_culprit('crash', '{}');
		wait_for_restart($node, $offset);
		set_aside($what, $id, 2);
	}
	else
	{
		crash_backend($node);
	}
	like(slurp_file($node->logfile, $offset), qr/recalcitrant children/,
		"$what: the postmaster has killed it");
	innocents_are_done($what);
}

#
# The postmaster is killed.  Workers notice this and exit, with their jobs in their slots; a
# scheduler which has not noticed sees these slots.
#
{
	my $what = 'kill -9 of the postmaster';
	innocents();
	my @workers = worker_pids($node);
	my $scheduler = scheduler_pid($node);
	my @others = ($node->{_pid}, $scheduler, launcher_pid($node));
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('SELECT 1');
	stop_at_rest($node, $scheduler);
	# wake the scheduler
	$session->query(q{SELECT jobq.enqueue('innocent', delay => '1ms')});
	$node->kill9;
	ok(wait_for_exit($_), "$what: worker $_ leaves") foreach @workers;
	signal_process('CONT', $scheduler);
	leave($session);
	start_again(@others);
	innocents_are_done($what);
}

#
# Everything is killed at once, workers first, so the postmaster may have seen their crash.
#
foreach my $n (1, 2)
{
	my $what = "kill -9 of everything ($n)";

	for (1 .. 5)
	{
		innocents();
		my @pids = split /\n/, $node->safe_psql('postgres', q{
SELECT pid FROM pg_stat_activity
ORDER BY (backend_type = 'jobq worker')::int DESC, backend_type ~ 'jobq' DESC});
		my $offset = -s $node->logfile;
		push @pids, $node->{_pid};
		kill('KILL', @pids);
		$node->kill9;
		start_again(@pids);
		last if slurp_file($node->logfile, $offset) !~ /all server processes terminated; reinitializing/;
		wait_for($node, "$what: too late, once more", q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind = 'innocent'});
		$node->safe_psql('postgres', q{SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'innocent'});
	}
	innocents_are_done($what);
}
{
	my $what = 'kill -9 of a worker, and then of the postmaster';

	for (1 .. 5)
	{
		innocents();
		my @pids = ($node->{_pid},
			split /\n/, $node->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity'));
		my $offset = -s $node->logfile;
		# a stopped process keeps the postmaster from starting again, for five seconds
		stop_at_rest($node, launcher_pid($node));
		signal_process('KILL', $node->safe_psql('postgres',
			'SELECT pid FROM jobq.workers WHERE job_id IS NOT NULL LIMIT 1'));
		$node->wait_for_log(qr/terminating any other active server processes/, $offset);
		$node->kill9;
		kill('KILL', @pids);
		start_again(@pids);
		last if slurp_file($node->logfile, $offset) !~ /all server processes terminated; reinitializing/;
		wait_for($node, "$what: too late, once more", q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind = 'innocent'});
		$node->safe_psql('postgres', q{SELECT jobq.delete(id) FROM jobq.dead_letters WHERE kind = 'innocent'});
	}
	innocents_are_done($what);
}

#
# The postmaster has survived, or has ended by itself.
#
{
	my $what = 'crash of a parallel worker';
	my $offset = -s $node->logfile;
	innocents();
	my $id = enqueue_culprit('parallel', '{}');
	foreach my $crash (1, 2)
	{
		my $sleeping = q{FROM pg_stat_activity WHERE backend_type = 'parallel worker'};
		wait_for($node, "$what: there is one", "SELECT count(*) > 0 $sleeping");
		my $here = -s $node->logfile;
		signal_process('KILL', $node->safe_psql('postgres', "SELECT min(pid) $sleeping"));
		wait_for_restart($node, $here);
	}
	set_aside($what, $id, 2);
	innocents_are_done($what);
}
{
	my $what = 'restart_after_crash = off';
	my $gone;

	$node->append_conf('postgresql.conf', 'restart_after_crash = off');
	$node->reload;
	innocents();
	my $id = enqueue_culprit('crash', '{}');
	foreach my $crash (1, 2)
	{
		for (my $left = 10 * $PostgreSQL::Test::Utils::timeout_default; $left > 0; $left--)
		{
			$gone = !-e $node->data_dir . '/postmaster.pid' and last;
			usleep(100_000);
		}
		ok($gone, "$what: the server ends ($crash)");
		leave($gate);
		undef $gate;
		$node->_update_pid(0);
		$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
		$node->start;
		next if $crash == 2;
		wait_for($node, "$what: the first crash is charged",
			"SELECT crashes = 1 AND attempt = 1 FROM jobq_internal.job WHERE id = $id");
		$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
		$node->reload;
	}
	$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
	$node->reload;
	set_aside($what, $id, 2);
	$node->append_conf('postgresql.conf', 'restart_after_crash = on');
	$node->reload;
	innocents_are_done($what);
}
{
	my $what = 'a log that the postmaster may not write';
	$node->append_conf('postgresql.conf', 'log_min_messages = fatal');
	$node->reload;
	innocents();
	my $id = enqueue_culprit('crash', '{}');
	set_aside($what, $id, 2);
	$node->append_conf('postgresql.conf', 'log_min_messages = warning');
	$node->reload;
	innocents_are_done($what);
}

#
# A client's session crashes in jobq.work(), beside another session, with a scheduler and
# without.
#
$node->safe_psql('postgres', 'CREATE DATABASE aside');
$node->safe_psql('aside', $setup);

sub crash_in_work
{
	my ($dbname) = @_;
	my $offset = -s $node->logfile;
	my ($out, $err);

	is($node->psql($dbname, q{CALL jobq.work('{manual}', max_jobs => 1)},
			stdout => \$out, stderr => \$err), 2, "a session crashes in $dbname");
	wait_for_restart($node, $offset);
	return;
}

# The number of culprits in the flight recorder: see worker/process/flight.c.
sub kept_culprits
{
	my $file = PostgreSQL::Test::Utils::slurp_file($node->data_dir . '/pg_stat_tmp/jobq_flight');

	return scalar grep { (unpack('L2', substr($file, 64 * $_, 8)))[1] == 3 } 1 .. 64;
}

foreach my $dbname ('postgres', 'aside')
{
	my $what = "a session that runs a job in $dbname";

	innocents();
	my $id = $node->safe_psql($dbname, q{SELECT jobq.enqueue('crash', '{}', queue => 'manual')});
	my $before = $node->safe_psql($dbname, q{SELECT jobq.enqueue('innocent', '{}', queue => 'manual', priority => -1)});
	my $other = $node->background_psql($dbname, on_error_stop => 0);
	my $held = $node->background_psql($dbname, on_error_stop => 0);
	$held->query('SELECT pg_advisory_lock(1)') if $dbname ne 'postgres';
	$other->query_until(qr/begins/, qq{\\echo begins\nCALL jobq.work('{manual}', once => true);\n});
	sleeps($node, "$what: another one is beside it", $dbname eq 'postgres' ? 5 : 1, $dbname);
	crash_in_work($dbname);
	leave($other, $held);
	is($node->safe_psql($dbname, "SELECT attempt FROM jobq_internal.job WHERE id = $before"), '0',
		"$what: its neighbour is not charged");
	$node->safe_psql($dbname, "SELECT jobq.cancel($before)");
	crash_in_work($dbname);
	# the crash is charged before any other work
	$node->safe_psql($dbname, q{CALL jobq.work('{manual}', stop_when_empty => true)});
	wait_for($node, "$what: it becomes a dead letter", "SELECT count(*) = 1 FROM jobq.dead_letters WHERE id = $id", $dbname);
	is($node->safe_psql($dbname, "SELECT attempt, crashes FROM jobq.dead_letters WHERE id = $id"), '2|2',
		"$what: charged for two crashes");
	innocents_are_done($what);
}

# A lock outlives the crash, and the crash cannot be charged before its end.  All else goes on.
{
	my $what = 'a crash and a lock';
	my $id = $node->safe_psql('postgres', q{SELECT jobq.enqueue('crash', '{}', queue => 'manual', max_attempts => 1)});
	$node->safe_psql('postgres', q{BEGIN; LOCK TABLE jobq_internal.dead_letter IN EXCLUSIVE MODE; PREPARE TRANSACTION 'lock'});
	crash_in_work('postgres');
	wait_for($node, "$what: the scheduler has loaded all jobs", 'SELECT complete FROM jobq_internal.scheduler_state()');
	is($node->safe_psql('postgres', 'SELECT state FROM jobq.wait(' . $node->safe_psql('postgres', q{SELECT jobq.enqueue('innocent')}) . q{, '5 min')}),
		'completed', "$what: another job runs");
	is($node->safe_psql('postgres', "SELECT attempt, crashes FROM jobq_internal.job WHERE id = $id"), '0|0', "$what: it is not charged");
	$node->safe_psql('postgres', q{COMMIT PREPARED 'lock'});
	wait_for($node, "$what: the crash is charged", "SELECT count(*) = 1 FROM jobq.dead_letters WHERE id = $id");
}

# A record is kept as long as its database exists.
$node->safe_psql('aside', q{CALL jobq.work('{manual}', stop_when_empty => true)});
is(kept_culprits(), 0, 'all were charged');
$node->safe_psql('aside', q{SELECT jobq.enqueue('crash', '{}', queue => 'manual')});
crash_in_work('aside');
$node->restart;
wait_for($node, 'there is a scheduler', 'SELECT complete FROM jobq_internal.scheduler_state()');
is(kept_culprits(), 1, 'one is still to be charged');
$node->safe_psql('postgres', 'DROP DATABASE aside');
$node->restart;
wait_for($node, 'there is a scheduler again', 'SELECT complete FROM jobq_internal.scheduler_state()');
is(kept_culprits(), 0, 'it is forgotten with its database');

#
# The crash undoes the record of the previous attempt, which was not flushed.
#
{
	my $what = 'a crash after an attempt that failed';
	my $id = enqueue_culprit('crash', '{"fails": 1}');
	set_aside($what, $id, 3);
	note('lost: ' . $node->safe_psql('postgres',
		"SELECT errors -> 0 ->> 'attempt' = '2' FROM jobq.dead_letters WHERE id = $id"));
}

#
# During a stop of the server, the handler may first meet an error of another process which has
# stopped.
#
{
	my $what = 'an error by the stop of the server';
	$gate = $node->background_psql('postgres', on_error_stop => 0);
	$gate->query('SELECT pg_advisory_lock(1)');
	my $id = enqueue_culprit('stopped', '{}');
	sleeps($node, "$what: the job is running", 1);
	# the stop waits for the session to leave
	system_log('pg_ctl', '-D', $node->data_dir, '-m', 'smart', '-W', 'stop');
	my $offset = -s $node->logfile;
	wait_for_line($node->data_dir . '/postmaster.pid', qr/^stopping/m);
	$gate->query('SELECT pg_advisory_unlock(1)');
	$node->wait_for_log(qr/job $id of kind "stopped" is interrupted/, $offset);
	$gate->quit;
	for (my $left = 10 * $PostgreSQL::Test::Utils::timeout_default; $left > 0 && -e $node->data_dir . '/postmaster.pid'; $left--)
	{
		usleep(100_000);
	}
	$node->_update_pid(0);
	$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
	$node->start;
	is($node->safe_psql('postgres', "SELECT attempt FROM jobq_internal.job WHERE id = $id"),
		'0', "$what: it is not charged");
}

$node->stop;
no_failed_assertion($node);
done_testing();
