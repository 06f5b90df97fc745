# A session locks the row of a job that has crashed the server, before the crash is charged.  The job
# does not begin meanwhile, all else goes on, and the crash is charged when the row is free.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = 'manual=0; *=1'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Jobs begin when the advisory lock is free, and each try leaves a line in the log.  The shell's
# parent is the server process which runs the handler.
sql(q{
CREATE EXTENSION jobq;
CREATE PROCEDURE die(id bigint) LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'job % begins', id;
	PERFORM pg_advisory_xact_lock_shared(1);
	COPY (SELECT) TO PROGRAM 'kill -9 $PPID; sleep 60';
END $$;
CREATE FUNCTION crash(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL die(job.id); END $$;
CREATE FUNCTION crash_set(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL die(jobs[1].id); END $$;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('crash', 'crash(jsonb, jobq.job_context)', max_attempts => 1),
	jobq.register('crash_set', 'crash_set(jobq.job_context[])', chunk => 10),
	jobq.register('note', 'note()')});

sub databases
{
	my ($list) = @_;

	$node->append_conf('postgresql.conf', "jobq.databases = '$list'");
	$node->reload;
	return;
}

# Let the running job crash the server, which has no scheduler afterwards.  Returns a session that
# has executed the statement in an open transaction.
sub crash_and
{
	my ($gate, $running, $locks) = @_;
	my $offset = -s $node->logfile;
	my $locker;

	sleeps($node, 'the job runs', $running);
	databases('');
	wait_for($node, 'the scheduler is gone', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'});
	# the crash may end the session first
	eval { $gate->query('SELECT pg_advisory_unlock(1)') };
	wait_for_restart($node, $offset);
	eval { $gate->{run}->finish };
	$locker = $node->background_psql('postgres');
	$locker->query_safe("BEGIN; $locks");
	return $locker;
}

sub close_gate
{
	my $gate = $node->background_psql('postgres', on_error_stop => 0);

	$gate->query('SELECT pg_advisory_lock(1)');
	return $gate;
}

sub begun { return scalar(() = slurp_file($node->logfile) =~ /job \d+ begins/g); }

# Another job, enqueued after the existing jobs, is completed.
sub passes
{
	my ($what) = @_;

	return is(sql('SELECT state FROM jobq.wait(' . sql(q{SELECT jobq.enqueue('note')}) . q{, '2 min')}), 'completed', "$what: another job runs");
}

#
# A single job, which the scheduler charges.  The session would move the job.
#
my $gate = close_gate();
my $id = sql(q{SELECT jobq.enqueue('crash', group_key => 'g')});
my $locker = crash_and($gate, 1, "SELECT jobq.edit($id, priority => 1)");
my $next = sql(q{SELECT jobq.enqueue('note', group_key => 'g')});
databases('postgres');
passes('single');
is(sql("SELECT attempt FROM jobq_internal.job WHERE id = $id"), '0', 'single: it is not charged');
is(sql("SELECT state FROM jobq.status($next)"), 'ready', 'single: nor does the next one of its group run');
$locker->query_safe('ROLLBACK');
$locker->quit;
is(sql("SELECT state, attempt FROM jobq.wait($id, '5 min')"), 'dead|1', 'single: it is charged when the row is free');
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'single: then the next one runs');
is(begun(), 1, 'single: it has begun once');

#
# A set, which a session in jobq.work() charges.  A member that is locked stops neither this session
# nor run_due().
#
$gate = close_gate();
sql(q{SELECT jobq.enqueue_many('crash_set', '{1,2,3}')});
my $member = sql(q{SELECT min(id) FROM jobq_internal.job});
$locker = crash_and($gate, 1, "SELECT FROM jobq_internal.job WHERE id = $member FOR UPDATE");
my $other = sql(q{SELECT jobq.enqueue('note', queue => 'manual') FROM generate_series(1, 2)});
is( $node->psql('postgres', q{SET statement_timeout = '1min'; CALL jobq.work('{manual}', once => true)}), 0, 'set: work() runs another job');
is( $node->psql('postgres', q{SET statement_timeout = '1min'; SELECT jobq.run_due('{manual}')}), 0, 'set: and so does run_due()');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE kind = 'note' AND state = 'completed' AND queue = 'manual'}), 2, 'set: these have run');
is(sql(q{SELECT count(*) FILTER (WHERE together IS NOT NULL) FROM jobq_internal.job}), 2, 'set: the others are suspects');
$locker->query_safe('COMMIT');
$locker->quit;
$node->psql('postgres', q{SET statement_timeout = '1min'; CALL jobq.work('{manual}', once => true)});
is(sql(q{SELECT count(*) FILTER (WHERE together IS NOT NULL) FROM jobq_internal.job}), 3, 'set: and then the last one');
is(begun(), 2, 'set: none has begun again');
sql(q{SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

#
# The crash is charged late, before the job is popped.  The job runs again in an hour, and the next one
# of its group waits for the job.
#
databases('postgres');
sql(q{SELECT jobq.register('crash_again', 'crash(jsonb, jobq.job_context)', max_attempts => 2, backoff => 'fixed 1 hour', queue => 'held')});
$gate = close_gate();
$id = sql(q{SELECT jobq.enqueue('crash_again', group_key => 'h')});
sleeps($node, 'late: the job runs', 1);
sql(q{SELECT jobq.pause('held')});
$locker = crash_and($gate, 1, "SELECT FROM jobq_internal.job WHERE id = $id FOR UPDATE");
$next = sql(q{SELECT jobq.enqueue('note', queue => 'held', group_key => 'h')});
databases('postgres');
passes('late');
is(sql("SELECT attempt FROM jobq_internal.job WHERE id = $id"), '0', 'late: it is not charged');
$locker->query_safe('COMMIT');
$locker->quit;
wait_for($node, 'late: it is charged', "SELECT attempt = 1 FROM jobq_internal.job WHERE id = $id");
sql(q{SELECT jobq.resume('held')});
is(sql(q{SELECT state FROM jobq.wait(} . sql(q{SELECT jobq.enqueue('note', queue => 'held')}) . q{, '2 min')}), 'completed', 'late: a later job of the queue runs');
is(sql("SELECT state FROM jobq.status($next)"), 'ready', 'late: not the next one of its group');
sql("SELECT jobq.cancel($id)");
is(sql("SELECT state FROM jobq.wait($next, '5 min')"), 'completed', 'late: which runs when the job is cancelled');

$node->stop;
no_failed_assertion($node);
done_testing();
