# A worker dies just when its job is over, or while another process looks for the job.  The job
# is charged correctly, once and before it runs again, and no two workers run it.  Injection
# points hold the processes.

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
jobq.workers = '*=2'
jobq.log_min_duration = 0
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

if (sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0')
{
	$node->stop;
	plan skip_all => 'this server has no injection points';
}
sql(q{
CREATE EXTENSION jobq;
CREATE EXTENSION injection_points;
CREATE TABLE begun (id bigint, pid int DEFAULT pg_backend_pid());
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO begun VALUES (job.id); SELECT pg_advisory_xact_lock_shared(1) $$;
CREATE FUNCTION doze(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO begun VALUES (job.id); SELECT jobq.snooze('1 day') $$;
CREATE PROCEDURE hold(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO begun VALUES (job.id);
	COMMIT;
	PERFORM pg_advisory_lock_shared(1);
END $$;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('nothing', 'nothing()');
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.register('doze', 'doze(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.register('hold', 'hold(jsonb, jobq.job_context)', backoff => 'fixed 1ms')});

sub hold
{
	my ($point) = @_;

	return sql("SELECT injection_points_attach('$point', 'wait')");
}

sub is_held
{
	my ($point) = @_;

	return wait_for($node, "$point: it is held",
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$point'");
}

# Let all processes held at the point go on, if there are any.
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

#
# A worker dies after its job has snoozed and committed: no attempt is charged.
#
sql(q{SELECT injection_points_attach('jobq-attempt-over', 'error')});
hold('jobq-worker-dead');
my $id = sql(q{SELECT jobq.enqueue('doze')});
is_held('jobq-worker-dead');
sql(q{SELECT injection_points_detach('jobq-attempt-over')});
release('jobq-worker-dead');
wait_for($node, 'over: the scheduler has looked at what the worker has left',
	q{SELECT wait_event = 'JobqScheduler' FROM pg_stat_activity WHERE backend_type = 'jobq scheduler' AND datname = current_database()});
is(sql("SELECT state, attempt, error FROM jobq.status($id)"), 'scheduled|0|', 'over: the job is not charged');
sql("SELECT jobq.cancel($id); TRUNCATE begun");

#
# A cancellation reaches the worker when it can only commit the next run of the job.
#
# The worker attaches to the shared memory of injection points before its commit, because it
# cannot do so afterwards.
sql(q{
CREATE FUNCTION put_off(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM injection_points_wakeup('none');
	EXCEPTION WHEN OTHERS THEN
	END;
	PERFORM pg_advisory_xact_lock_shared(1);
	IF payload = '"fail"' THEN
		RAISE EXCEPTION 'not today';
	END IF;
	PERFORM jobq.snooze('1 day');
END $$;
SELECT jobq.register('put_off', 'put_off(jsonb)', backoff => 'fixed 1 day')});
foreach my $how ('snooze', 'fail')
{
	my $lock = $node->background_psql('postgres');
	$lock->query_safe('SELECT pg_advisory_lock(1)');
	$id = sql(qq{SELECT jobq.enqueue('put_off', '"$how"')});
	sleeps($node, "asked late, $how: the job runs", 1);
	hold('jobq-stats-add');
	$lock->quit;
	is_held('jobq-stats-add');
	is(sql("SELECT jobq.cancel($id)"), 't', "asked late, $how: the worker is asked to stop it");
	release('jobq-stats-add');
	is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'cancelled', "asked late, $how: it is cancelled");
}

#
# The cancellation is as late, and the worker cannot do it: another session has locked the row,
# the worker's transaction fails, or the worker ends at once.  The scheduler, or the next
# scheduler, cancels the job.
#
sub asked_late
{
	my ($what, $how) = @_;
	my $lock = $node->background_psql('postgres');

	$lock->query_safe('SELECT pg_advisory_lock(1)');
	my $late = sql(qq{SELECT jobq.enqueue('put_off', '"$how"')});
	sleeps($node, "$what: the job runs", 1);
	my $worker = sql("SELECT pid FROM jobq.workers WHERE job_id = $late");
	hold('jobq-stats-add');
	$lock->quit;
	is_held('jobq-stats-add');
	is(sql("SELECT jobq.cancel($late)"), 't', "$what: the worker is asked to stop it");
	return ($late, $worker);
}

# A session which has locked the row of the job.
sub has_row
{
	my ($of) = @_;
	my $has = $node->background_psql('postgres');

	$has->query_safe("BEGIN; SELECT FROM jobq_internal.job WHERE id = $of FOR UPDATE");
	return $has;
}

# Wait until the worker has done its part, and is idle.
sub rests
{
	my ($what, $worker) = @_;

	return wait_for($node, "$what: the worker has left the job",
		"SELECT wait_event = 'JobqWorker' FROM pg_stat_activity WHERE pid = $worker");
}

foreach my $case ([ 'snooze', 'scheduled' ], [ 'fail', 'retryable' ], [ 'fail', 'retryable', 'ends' ])
{
	my ($how, $state, $ends) = @$case;
	my $what = join(' ', "row taken: $how", $ends ? 'scheduler ends' : ());
	my ($late, $worker) = asked_late($what, $how);
	my $has = has_row($late);

	release('jobq-stats-add');
	rests($what, $worker);
	is(sql("SELECT state FROM jobq.status($late)"), $state, "$what: it is to run again");
	if ($ends)
	{
		my $pid = scheduler_pid($node);

		sql("SELECT pg_terminate_backend($pid)");
		wait_for_exit($pid);
	}
	$has->query_safe('COMMIT');
	$has->quit;
	is(sql("SELECT state FROM jobq.wait($late, '5 min')"), 'cancelled', "$what: it is cancelled");
}
foreach my $point ('jobq-cancel-given-back', 'jobq-attempt-over')
{
	my ($late, $worker) = asked_late($point, 'snooze');

	sql("SELECT injection_points_attach('$point', 'error')");
	release('jobq-stats-add');
	ok(wait_for_exit($worker), "$point: the worker ends");
	sql("SELECT injection_points_detach('$point')");
	is(sql("SELECT state FROM jobq.wait($late, '5 min')"), 'cancelled', "$point: the job is cancelled");
}

#
# Another session locks the row before the worker, which has stopped the job, can record the
# cancellation.  The next job of the group waits.
#
my $keeper = $node->background_psql('postgres');
$keeper->query_safe('SELECT pg_advisory_lock(1)');
$id = sql(q{SELECT jobq.enqueue('note', group_key => 'stopped')});
sleeps($node, 'stopped: the job runs', 1);
my $after = sql(q{SELECT jobq.enqueue('note', group_key => 'stopped')});
my $stops = sql("SELECT pid FROM jobq.workers WHERE job_id = $id");
hold('jobq-attempt-failed');
is(sql("SELECT jobq.cancel($id)"), 't', 'stopped: the worker is asked to stop it');
is_held('jobq-attempt-failed');
my $has = has_row($id);
release('jobq-attempt-failed');
rests('stopped', $stops);
passes('stopped');
is(sql("SELECT count(*) FROM jobq.workers WHERE job_id = $after"), '0', 'stopped: not the next one of its group');
sql("SELECT jobq.cancel($after)");
$has->query_safe('COMMIT');
$has->quit;
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'cancelled', 'stopped: it is cancelled');

#
# DDL on the database makes the worker leave at this moment.
#
$id = sql(q{SELECT jobq.enqueue('note')});
sleeps($node, 'dismissed: the job runs', 1);
my $leaves = sql("SELECT pid FROM jobq.workers WHERE job_id = $id");
hold('jobq-attempt-failed');
is(sql("SELECT jobq.cancel($id)"), 't', 'dismissed: the worker is asked to stop it');
is_held('jobq-attempt-failed');
$keeper->quit;
# this changes nothing, but needs a database without other sessions
$node->safe_psql('template1', 'ALTER DATABASE postgres SET TABLESPACE pg_default');
ok(wait_for_exit($leaves), 'dismissed: it has left');
sql(q{SELECT injection_points_detach('jobq-attempt-failed')});
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'cancelled', 'dismissed: the job is cancelled');

#
# Another session is about to move the job when a worker with a pending cancellation dies.
#
hold('jobq-job-may-run');
$id = sql(q{SELECT jobq.enqueue('note')});
is_held('jobq-job-may-run');
my $mover = $node->background_psql('postgres');
$mover->query_safe("BEGIN; SELECT jobq.edit($id, run_at => now() + interval '1 day')");
hold('jobq-attempt-begins');
release('jobq-job-may-run');
is_held('jobq-attempt-begins');
my $dies = sql("SELECT pid FROM jobq.workers WHERE job_id = $id");
is(sql("SELECT jobq.cancel($id)"), 't', 'moved: the worker is asked to stop it');
ok(wait_for_exit($dies), 'moved: and dies, before it has begun');
sql(q{SELECT injection_points_detach('jobq-attempt-begins')});
wait_for($node, 'moved: the scheduler has seen that', q{SELECT count(*) = 0 FROM jobq.workers WHERE state = 'exited'});
is(sql("SELECT state FROM jobq.status($id)"), 'ready', 'moved: it is charged with nothing');
$mover->query_safe('COMMIT');
$mover->quit;
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'cancelled', 'moved: it is cancelled');

#
# A job with a committed snooze is not shown as running, even after a large transaction.
#
sql(q{
CREATE FUNCTION crowd() RETURNS void LANGUAGE sql AS $$
	SELECT jobq.cancel(jobq.enqueue('note', delay => '1 day')) FROM generate_series(1, 100);
	SELECT jobq.snooze('1 day') $$;
SELECT jobq.register('crowd', 'crowd()')});
hold('jobq-attempt-over');
$id = sql(q{SELECT jobq.enqueue('crowd')});
is_held('jobq-attempt-over');
is(sql("SELECT state FROM jobq.status($id)"), 'scheduled', 'crowd: it has been put off');
is(sql("SELECT jobq.cancel($id)"), 't', 'crowd: it is cancelled');
release('jobq-attempt-over');
is(sql("SELECT state FROM jobq.status($id)"), 'cancelled', 'crowd: at once');

#
# The worker of a procedure dies while the scheduler reads the rows of the lane, before the
# scheduler has checked its workers.  The row seems unclaimed, but is not given to another
# worker, because the charge would take the row from that worker.
#
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.enqueue('note') FROM generate_series(1, 2)});
sleeps($node, 'dead: there are two workers', 2);
$gate->query_safe('SELECT pg_advisory_unlock(1)');
wait_for($node, 'dead: they have nothing to do', 'SELECT count(*) = 0 FROM jobq_internal.job');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{TRUNCATE begun});
$id = sql(q{SELECT jobq.enqueue('hold')});
sleeps($node, 'dead: a procedure runs', 1);
hold('jobq-lane-read');
$node->reload;
is_held('jobq-lane-read');
my $pid = sql(q{SELECT pid FROM begun});
hold('jobq-worker-dead');
sql("SELECT pg_terminate_backend($pid)");
wait_for_exit($pid);
release('jobq-lane-read');
is_held('jobq-worker-dead');

# the other worker would begin the dead worker's job before this job
my $other = sql(q{SELECT jobq.enqueue('note', priority => 10)});
sleeps($node, 'dead: the other worker has a job', 1);
is(sql("SELECT count(*) FROM begun WHERE id = $id"), 1, 'dead: it is not that of the one that has died');
release('jobq-worker-dead');
wait_for($node, 'dead: it runs again', "SELECT count(*) = 2 FROM begun WHERE id = $id");
$gate->query_safe('SELECT pg_advisory_unlock(1)');
is(sql("SELECT state, attempt FROM jobq.wait($id, '5 min')"), 'completed|2', 'dead: the attempt was charged');
is(sql("SELECT jsonb_array_length(errors), errors::text ~ 'worker was terminated' FROM jobq.jobs WHERE id = $id"), '1|t', 'dead: once');
is(sql("SELECT count(*) FROM begun WHERE id = $id"), 2, 'dead: it has not run more often');
$gate->quit;

#
# A worker has read a job which has not expired, and is held before it publishes the start.  The
# job then expires, and a session wants the unique key: the session gets a new job, and the
# worker does not begin the old job.
#
hold('jobq-job-may-run');
$id = sql(q{SELECT jobq.enqueue('note', unique_key => 'k', expires_at => now() + interval '1 hour')});
is_held('jobq-job-may-run');
my $scheduler = sql('SELECT pid FROM jobq_internal.scheduler_state()');
ok(stop_at_rest($node, $scheduler), 'expired: the scheduler sleeps');
my $next = sql(q{SELECT jobq.test_clock('2 hours') \g /dev/null
SELECT jobq.enqueue('note', unique_key => 'k')});
isnt($next, $id, 'expired: who wants the key has a job of his own');
release('jobq-job-may-run');
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'expired: which runs');
signal_process('CONT', $scheduler);
wait_for($node, 'expired: nobody has a job any more', 'SELECT count(*) = 0 FROM jobq_internal.job');
is(sql("SELECT state FROM jobq.status($id)"), 'expired', 'expired: the other one has ended');
is(sql("SELECT count(*) FROM begun WHERE id = $id"), 0, 'expired: and not begun');
sql(q{SELECT jobq.test_clock('0')});

#
# A job has failed in jobq.work(): its row is there again, but the failure is not recorded yet.
# No worker is notified of the job meanwhile.
#
sql(q{TRUNCATE begun;
CREATE FUNCTION stumble(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('application_name') = 'session' THEN
		PERFORM pg_advisory_xact_lock(2);
		RAISE EXCEPTION 'stumbled';
	END IF;
	INSERT INTO begun VALUES (job.id);
END $$;
SELECT jobq.register('stumble', 'stumble(jsonb, jobq.job_context)', max_attempts => 1)});
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(2)');
hold('jobq-worker-pops');
$id = sql(q{SELECT jobq.enqueue('stumble')});
is_held('jobq-worker-pops');
my $session = $node->background_psql('postgres');
$session->query_until(qr/begun/, "SET application_name = 'session';\n\\echo begun\nCALL jobq.work(once => true);\n");
sleeps($node, 'session: it runs the job', 1);
release('jobq-worker-pops');
is(sql('SELECT state FROM jobq.wait(' . sql(q{SELECT jobq.enqueue('note')}) . q{, '5 min')}), 'completed', 'session: workers have seen that it is taken');
hold('jobq-session-failed');
$gate->query_safe('SELECT pg_advisory_unlock(2)');
is_held('jobq-session-failed');
is(sql('SELECT state FROM jobq.wait(' . sql(q{SELECT jobq.enqueue('note')}) . q{, '5 min')}), 'completed', 'session: it has failed, and workers have looked for jobs');
is(sql("SELECT count(*) FROM begun WHERE id = $id"), 0, 'session: none has run it');
release('jobq-session-failed');
$session->quit;
$gate->quit;
is(sql("SELECT state, attempt FROM jobq.wait($id, '5 min')"), 'dead|1', 'session: its failure is recorded');

#
# Workers die at jobs without another attempt, and a lock prevents the record of this.  Until
# the record exists, no worker and no session begins the jobs, not even after all jobs are read
# again, or by another scheduler.  The jobs cannot be moved, but can be cancelled.
#
sql(q{TRUNCATE begun; CREATE SEQUENCE tries;
CREATE FUNCTION once() RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN PERFORM nextval('tries'); PERFORM pg_advisory_xact_lock_shared(1); END $$;
SELECT jobq.register('once', 'once()', max_attempts => 1)});

# Another job, enqueued after the existing jobs, is completed.
sub passes
{
	my ($what) = @_;

	return is(sql('SELECT state FROM jobq.wait(' . sql(q{SELECT jobq.enqueue('nothing')}) . q{, '2 min')}), 'completed', "$what: another job runs");
}

# Terminate the worker which runs the job.
sub kill_at
{
	my $worker = sql("SELECT pid FROM jobq.workers WHERE job_id = $_[0]");

	sql("SELECT pg_terminate_backend($worker)");
	wait_for_exit($worker);
	return;
}

my $tries = q{SELECT last_value FROM tries};
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my @once = split /\n/, sql(q{SELECT jobq.enqueue('once') FROM generate_series(1, 2)});
sleeps($node, 'uncharged: two jobs run', 2);
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.dead_letter IN SHARE MODE');
kill_at($_) foreach @once;
$gate->query_safe('SELECT pg_advisory_unlock(1)');
hold('jobq-lane-read');
$node->reload;
is_held('jobq-lane-read');
release('jobq-lane-read');
passes('uncharged, all is read again');
sql('CALL jobq.work(once => true)');
$scheduler = scheduler_pid($node);
sql("SELECT pg_terminate_backend($scheduler)");
wait_for($node, 'uncharged: there is another scheduler', "SELECT pid <> $scheduler AND complete FROM jobq_internal.scheduler_state()");
passes('uncharged, another scheduler');
is(sql($tries), '2', 'uncharged: none has been tried again');
$node->psql('postgres', "SELECT jobq.edit($once[0], run_at => now())", stderr => \my $refused);
like($refused, qr/job $once[0] is running/, 'uncharged: nor moved');
# the scheduler tries to charge the job again and again, and has its row meanwhile
is(sql("SELECT reason FROM jobq.explain($once[0]) WHERE reason <> 'taken'"), 'lost', 'uncharged: why is told');
is(sql("SELECT jobq.cancel($once[1])"), 't', 'uncharged: one is cancelled');
is(sql("SELECT state FROM jobq.wait($once[1], '5 min')"), 'cancelled', 'uncharged: which needs no dead letter');
$locker->query_safe('COMMIT');
is(sql("SELECT state, attempt FROM jobq.wait($once[0], '5 min')"), 'dead|1', 'uncharged: the other is charged when the lock is gone');
is(sql($tries), '2', 'uncharged: and was tried once');

#
# The same, but a session has locked the row of the job.  The next job of the group waits.
#
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $offset = -s $node->logfile;
$id = sql(q{SELECT jobq.enqueue('once', group_key => 'kept')});
sleeps($node, 'kept: it runs', 1);
$next = sql(q{SELECT jobq.enqueue('note', group_key => 'kept')});
hold('jobq-worker-dead');
kill_at($id);
is_held('jobq-worker-dead');
$locker->query_safe("BEGIN; SELECT FROM jobq_internal.job WHERE id = $id FOR UPDATE");
release('jobq-worker-dead');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$node->wait_for_log(qr/cannot go on with job $id: another session has its row/, $offset);
passes('kept');
is(sql("SELECT count(*) FROM begun WHERE id = $next"), '0', 'kept: not the next one of its group');
$locker->query_safe('COMMIT');
is(sql("SELECT state, attempt FROM jobq.wait($id, '5 min')"), 'dead|1', 'kept: it is charged when its row is free');
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'kept: then the next one runs');
is(sql($tries), '3', 'kept: it was tried once');

#
# A worker dies before it has begun a job, which a session is about to move.  The next job of
# the group waits for the outcome of the move, and then runs after the moved job.
#
hold('jobq-job-may-run');
$id = sql(q{SELECT jobq.enqueue('note', group_key => 'moved')});
is_held('jobq-job-may-run');
$next = sql(q{SELECT jobq.enqueue('note', group_key => 'moved')});
$locker->query_safe("BEGIN; SELECT jobq.edit($id, run_at => now() + interval '1 day')");
hold('jobq-attempt-begins');
release('jobq-job-may-run');
is_held('jobq-attempt-begins');
sql(q{SELECT injection_points_detach('jobq-attempt-begins')});
kill_at($id);
wait_for($node, 'moved: the slot is free', q{SELECT count(*) = 0 FROM jobq.workers WHERE state = 'exited'});
passes('moved');
is(sql("SELECT count(*) FROM begun WHERE id = $next"), '0', 'moved: not the next one of its group');
$locker->query_safe('ROLLBACK');
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'moved: it runs when the job is not moved');
is(sql("SELECT string_agg(CASE id WHEN $id THEN 'first' ELSE 'next' END, ' ' ORDER BY ctid) FROM begun WHERE id IN ($id, $next)"), 'first next', 'moved: after that');
$locker->quit;

#
# A call of a set handler releases a job of a group, and its worker ends right after the commit.  The
# next job of the group, which another worker has found, does not run.
#
sql(q{
CREATE FUNCTION release_first(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(2);
	PERFORM jobq.release(jobs[1].id, NULL, '1 day');
END $$;
SELECT jobq.register('release_first', 'release_first(jobq.job_context[])', chunk => 10)});
$gate->query_safe('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
sql(q{SELECT jobq.enqueue('note')});
sleeps($node, 'released: a worker has another job', 1);
$id = sql(q{BEGIN; SELECT jobq.enqueue('release_first', group_key => 'released'); SELECT jobq.enqueue('release_first') \g /dev/null
COMMIT});
sleeps($node, 'released: the other worker runs two jobs', 2);
$dies = sql("SELECT pid FROM jobq.workers WHERE job_id = $id");
$gate->query_safe('SELECT pg_advisory_unlock(1)');
passes('released: before');
$next = sql(q{SELECT jobq.enqueue('nothing', group_key => 'released')});
passes('released: while they run');
sql(q{SELECT injection_points_attach('jobq-attempt-left', 'error')});
$gate->query_safe('SELECT pg_advisory_unlock(2)');
ok(wait_for_exit($dies), 'released: the worker ends');
sql(q{SELECT injection_points_detach('jobq-attempt-left')});
wait_for($node, 'released: the slot is free', q{SELECT count(*) = 0 FROM jobq.workers WHERE state = 'exited'});
is(sql("SELECT state FROM jobq.status($id)"), 'scheduled', 'released: the job runs in a day');
passes('released');
is(sql("SELECT state FROM jobq.status($next)"), 'ready', 'released: not the next one of its group');
sql("SELECT jobq.cancel($id)");
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'released: which runs when the job is cancelled');

#
# A worker lives on with a job of the quarantine when the scheduler ends: no second quarantined
# job runs meanwhile.
#
$gate->query_safe('SELECT pg_advisory_lock(1)');
my @alone = split /\n/, sql(q{SELECT jobq.enqueue('note', delay => '1 day') FROM generate_series(1, 2)});
sql("UPDATE jobq_internal.job SET crashes = 1 WHERE id IN ($alone[0], $alone[1]); SELECT jobq.edit($alone[0], run_at => now())");
sleeps($node, 'alone: it runs', 1);
sql("SELECT jobq.edit($alone[1], run_at => now())");
$scheduler = scheduler_pid($node);
sql("SELECT pg_terminate_backend($scheduler)");
wait_for($node, 'alone: there is another scheduler', "SELECT pid <> $scheduler AND complete FROM jobq_internal.scheduler_state()");
passes('alone');
sleeps($node, 'alone: and no other of the quarantine', 1);
$gate->query_safe('SELECT pg_advisory_unlock(1)');
is(sql("SELECT state FROM jobq.wait($_, '5 min')"), 'completed', 'alone: it is completed') foreach @alone;
$gate->quit;

$node->stop;
no_failed_assertion($node);
done_testing();
