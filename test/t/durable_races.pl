# A procedure keeps its position through kills of its worker, crashes and restarts of the server,
# and no signal is lost or received twice when it comes at the moment of the suspension.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $kills = 50;
my $rows = $kills * (($ENV{JOBQ_BLOWS} // 1) > 1 ? 2000 : 60);
my $node = jobq_node('main', q{
jobq.databases = '*'
jobq.workers = '*=2'
autovacuum = off
}, allows_streaming => 1);
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE TABLE imported (line int);
CREATE TABLE allowed (line int);
INSERT INTO allowed VALUES (0);
CREATE TABLE received (id bigint, answer jsonb);
CREATE PROCEDURE import(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	line int := coalesce((jobq.saved() ->> 'line')::int, 0);
BEGIN
	WHILE line < (payload ->> 'lines')::int LOOP
		line := line + 1;
		INSERT INTO imported VALUES (line);
		IF line % 7 = 0 THEN
			PERFORM jobq.save(jsonb_build_object('line', line));
			COMMIT;
			WHILE line >= (SELECT a.line FROM allowed a) LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
		END IF;
	END LOOP;
END $$;
CREATE PROCEDURE approve(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	CALL jobq.sleep('short', '1 ms');
	CALL jobq.await_signal('approved', answer);
	INSERT INTO received VALUES (job.id, answer);
END $$;
CREATE PROCEDURE await(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	CALL jobq.await_signal('go', answer);
	INSERT INTO received VALUES (job.id, answer);
END $$;
CREATE PROCEDURE nap(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN CALL jobq.sleep('nap', '1 day'); END $$;
SELECT jobq.register('import', 'import(jsonb)', max_attempts => 2, backoff => 'fixed 1ms');
SELECT jobq.register('approve', 'approve(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.register('await', 'await(jsonb, jobq.job_context)', max_attempts => 1);
SELECT jobq.register('nap', 'nap(jsonb)', max_attempts => 1)});

#
# An import is killed often: its worker is terminated, or the server stops at once.  Each attempt
# has made progress, so none is charged, and each line is imported once.
#
my $import = sql(qq{SELECT jobq.enqueue('import', '{"lines": $rows}')});
my $done = 0;
my $killed = 0;

while ($killed < $kills)
{
	my $line = $done + 7;

	# the import goes no further before it is killed
	sql("UPDATE allowed SET line = $done + $rows / $kills / 2");
	poll($node, "SELECT EXISTS (SELECT FROM imported WHERE line >= $line)") or last;
	if ($killed % 17 == 16)
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif (sql("SELECT count(pg_terminate_backend(pid, 60000)) FROM jobq.workers WHERE job_id = $import") eq '0')
	{
		next;
	}
	$killed++;
	$done = sql('SELECT max(line) FROM imported');
}
sql("UPDATE allowed SET line = $rows");
is($killed, $kills, 'the import was killed often');
is(sql("SELECT state, attempt FROM jobq.wait($import, '5 min')"), 'completed|1', 'and completes, with no attempt charged');
is(sql('SELECT count(*), count(DISTINCT line) FROM imported'), "$rows|$rows", 'each line was imported once');

#
# Suspended jobs survive a restart and a crash.
#
my $approve = sql(q{SELECT jobq.enqueue('approve')});
my $nap = sql(q{SELECT jobq.enqueue('nap')});
my $suspended = qq{SELECT count(*) = 2 FROM jobq.live_jobs WHERE id IN ($approve, $nap) AND state = 'suspended'};
wait_for($node, 'the job waits for a signal', "SELECT message = 'waits for signal \"approved\"' FROM jobq.status($approve)");
wait_for($node, 'the other job sleeps', $suspended);
$node->restart;
is(sql($suspended), 't', 'after a restart, the jobs are still suspended');
$node->stop('immediate');
$node->start;
is(sql($suspended), 't', 'and after a crash');

# a dump, and a standby that is promoted
$node->safe_psql('postgres', 'CREATE DATABASE copy');
my $dump = $node->backup_dir . '.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');
$node->command_ok([ 'pg_restore', '-d', 'copy', $dump ], 'pg_restore');
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
$standby->promote;
my $goes_on = qq{SELECT state, message FROM jobq.status($approve); SELECT jobq.signal($approve, 'approved', '"here"');
	SELECT state FROM jobq.wait($approve, '5 min'); SELECT answer FROM received};
my $went_on = qq{suspended|waits for signal "approved"\nt\ncompleted\n"here"};
is($standby->safe_psql('postgres', $goes_on), $went_on, 'a promoted standby goes on');
$standby->stop;
is($node->safe_psql('copy', $goes_on), $went_on, 'and so does a restored dump');

is(sql(qq{SELECT jobq.signal($approve, 'approved', '"yes"'); SELECT state FROM jobq.wait($approve, '5 min')}),
	"t\ncompleted", 'a signal still wakes the job');
is(sql(qq{SELECT jobq.test_clock('25 hours') \\g /dev/null
	SELECT state FROM jobq.wait($nap, '5 min')}), 'completed', 'and the time the other job');
sql(q{SELECT jobq.test_clock('0')});

#
# A signal is sent, and not committed, when the procedure comes to the wait: the procedure waits
# for the outcome, and then either has the signal, or is suspended.
#
my $locks = q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'object' AND NOT granted AND classid = 'jobq_internal.signal'::regclass};
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $sender = $node->background_psql('postgres');
	sql('SELECT jobq.pause(kind => \'await\', queue => \'default\')');
	my $id = sql(q{SELECT jobq.enqueue('await')});

	$sender->query_safe("BEGIN; SELECT jobq.signal($id, 'go', '1')");
	sql('SELECT jobq.resume(\'default\', kind => \'await\')');
	wait_for($node, "$end: the procedure waits for the sender", $locks);
	$sender->query_safe($end);
	$sender->quit;
	if ($end eq 'ROLLBACK')
	{
		wait_for($node, 'without a signal, the job is suspended', "SELECT state = 'suspended' FROM jobq.status($id)");
		sql("SELECT jobq.signal($id, 'go', '1')");
	}
	is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', "$end: the job receives the signal");
	is(sql("SELECT count(*) FROM received WHERE id = $id"), '1', "$end: once");
}

#
# A transaction with signals to many jobs stays open: procedures of other roles come to their waits.
#
sql(q{
CREATE ROLE flooder LOGIN;
SELECT jobq.grant_privilege('flooder');
SET ROLE flooder;
SELECT count(jobq.enqueue('await', delay => '1 day')) FROM generate_series(1, 3000)});
my $flood = $node->background_psql('postgres');
$flood->query_safe(q{SET ROLE flooder; BEGIN; SELECT count(jobq.signal(id, 'go')) FROM jobq.live_jobs WHERE role = 'flooder'::regrole});
my $other = sql(q{SELECT jobq.enqueue('await')});
wait_for($node, 'beside many signals of another role, the job is suspended', "SELECT state = 'suspended' FROM jobq.status($other)");
$flood->query_safe('ROLLBACK');
$flood->quit;
sql(q{SELECT jobq.cancel_many(kind => 'await')});

#
# Two procedures send each other a signal before they wait.
#
sql(q{
CREATE TABLE pair (n int, id bigint);
CREATE PROCEDURE greet(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	PERFORM jobq.signal(id, 'hello') FROM pair WHERE n <> payload::int;
	PERFORM pg_advisory_xact_lock_shared(47);
	CALL jobq.await_signal('hello', answer);
END $$;
SELECT jobq.register('greet', 'greet(jsonb)', max_attempts => 1)});
my $gate = $node->background_psql('postgres');
my $at_gate = q{SELECT count(*) = %d FROM pg_locks WHERE locktype = 'advisory' AND NOT granted};
$gate->query_safe('SELECT pg_advisory_lock(47)');
sql(q{INSERT INTO pair SELECT n, jobq.enqueue('greet', to_jsonb(n)) FROM generate_series(1, 2) n});
wait_for($node, 'both have sent a signal', sprintf($at_gate, 2));
$gate->query_safe('SELECT pg_advisory_unlock(47)');
is(sql(q{SELECT w.state, w.error FROM pair, jobq.wait(pair.id, '5 min') w}), "completed|\ncompleted|", 'both receive the signal of the other');

#
# Deferred triggers of the handler run before the procedure locks its signals.
#
sql(q{
CREATE FUNCTION slow_check() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(47); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow_check AFTER INSERT ON imported DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow_check();
CREATE PROCEDURE check_late(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	INSERT INTO imported VALUES (-1);
	CALL jobq.await_signal('go', answer);
END $$;
SELECT jobq.register('check_late', 'check_late(jsonb)', max_attempts => 1)});
$gate->query_safe('SELECT pg_advisory_lock(47)');
$other = sql(q{SELECT jobq.enqueue('check_late')});
wait_for($node, 'a deferred trigger runs', sprintf($at_gate, 1));
is(sql("SET lock_timeout = '10 s'; SELECT jobq.signal($other, 'go')"), 't', 'a signal does not wait for the trigger');
$gate->query_safe('SELECT pg_advisory_unlock(47)');
$gate->quit;
is(sql("SELECT state FROM jobq.wait($other, '5 min')"), 'completed', 'and is received');

if (sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0')
{
	$node->stop;
	no_failed_assertion($node);
	done_testing();
	exit;
}
sql('CREATE EXTENSION injection_points');

sub hold { return sql("SELECT injection_points_attach('$_[0]', 'wait')"); }

sub is_held
{
	return wait_for($node, "$_[0]: the worker is held", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$_[0]'");
}

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
# The suspension is about to commit when the signal is sent: the sender waits, and wakes the job.
#
hold('jobq-suspending');
my $id = sql(q{SELECT jobq.enqueue('await')});
is_held('jobq-suspending');
my $sender = $node->background_psql('postgres');
$sender->query_until(qr/sent/, "\\echo sent\nSELECT jobq.signal($id, 'go', '2');\n");
wait_for($node, 'the sender waits for the suspension', $locks);
release('jobq-suspending');
$sender->quit;
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'the job receives the signal');
is(sql("SELECT count(*) FROM received WHERE id = $id"), '1', 'once');

#
# The suspension has committed, and the worker has not left the job yet: another worker runs the
# job, and the first records nothing.
#
hold('jobq-suspended');
$id = sql(q{SELECT jobq.enqueue('await')});
is_held('jobq-suspended');
is(sql("SELECT state FROM jobq.status($id)"), 'suspended', 'the job does not count as running');
is(sql("SELECT jobq.signal($id, 'go', '3'); SELECT state, attempt FROM jobq.wait($id, '5 min')"), "t\ncompleted|1",
	'another worker completes the job');
release('jobq-suspended');
wait_for($node, 'the first worker has left the job', q{SELECT bool_and(state = 'idle') FROM jobq.workers});
is(sql("SELECT state, attempt, error FROM jobq.status($id)"), 'completed|1|', 'and changes nothing');
is(sql("SELECT count(*) FROM received WHERE id = $id"), '1', 'the signal was received once');

#
# A procedure is about to wait for a job when the job ends: the end waits, and wakes the procedure.
#
sql(q{
SELECT jobq.create_queue('outside', mode => 'consumer');
CREATE PROCEDURE asks(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb;
BEGIN
	CALL jobq.ask('other', 'other', '1', answer, options => '{"queue": "outside"}', await => false);
	CALL jobq.ask('other', 'other', '1', answer);
	INSERT INTO received VALUES (job.id, answer);
END $$;
SELECT jobq.register('asks', 'asks(jsonb, jobq.job_context)', max_attempts => 1)});
hold('jobq-suspending');
$id = sql(q{SELECT jobq.enqueue('asks')});
is_held('jobq-suspending');
my ($asked, $token) = split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{outside}', wait => '5 min')});
$sender = $node->background_psql('postgres');
$sender->query_until(qr/sent/, "\\echo sent\nSELECT jobq.ack($asked, $token, '5');\n");
wait_for($node, 'the end of the job waits for the suspension', $locks);
release('jobq-suspending');
$sender->quit;
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'the procedure receives the answer');
is(sql("SELECT answer FROM received WHERE id = $id"), '5', 'once');

#
# The end of the job is not committed when the procedure is cancelled, and the other way round.
#
foreach my $first ('ack', 'cancel')
{
	$id = sql(q{SELECT jobq.enqueue('asks')});
	($asked, $token) = split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{outside}', wait => '5 min')});
	wait_for($node, 'the procedure waits for the job', "SELECT state = 'suspended' FROM jobq.status($id)");
	my %call = (ack => "SELECT jobq.ack($asked, $token, '6')", cancel => "SELECT jobq.cancel($id)");
	my $second = $first eq 'ack' ? 'cancel' : 'ack';
	my ($one, $two) = ($node->background_psql('postgres'), $node->background_psql('postgres', on_error_stop => 0));

	$one->query_safe("BEGIN; $call{$first}");
	$two->query_until(qr/sent/, "\\echo sent\n$call{$second};\n");
	wait_for($node, "$first first: the other session waits", q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'})
	  if $first eq 'ack';
	# otherwise the procedure may return before it is cancelled
	sql(q{SELECT jobq.pause('default')});
	$one->query_safe('COMMIT');
	$_->quit foreach $two, $one;
	sql(q{SELECT jobq.resume('default')});
	is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'cancelled', "$first first: the procedure is cancelled");
	is(sql("SELECT state FROM jobq.status($asked)"), $first eq 'ack' ? 'completed' : 'cancelled', "$first first: the job is over");
}

# a suspension has committed, and the worker dies; or the job is cancelled
foreach my $how ('die', 'cancel')
{
	hold('jobq-suspended');
	$id = sql(q{SELECT jobq.enqueue('await')});
	is_held('jobq-suspended');
	if ($how eq 'die')
	{
		sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'jobq-suspended'});
		sql("SELECT injection_points_detach('jobq-suspended')");
		is(sql("SELECT jobq.signal($id, 'go', '4'); SELECT state, attempt FROM jobq.wait($id, '5 min')"), "t\ncompleted|1",
			'the worker dies: no attempt is charged');
	}
	else
	{
		is(sql("SELECT jobq.cancel($id); SELECT state FROM jobq.wait($id, '5 min')"), "t\ncancelled", 'a suspended job is cancelled at once');
		release('jobq-suspended');
	}
}
$node->stop;
no_failed_assertion($node);
done_testing();
