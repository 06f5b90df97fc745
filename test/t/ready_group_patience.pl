# A lost turn of a job in its group is known after a restart and a crash, and without a
# scheduler.  The scheduler wakes by itself when a group's patience ends.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
jobq.databases = 'postgres'
});
my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE step (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, i int);
CREATE FUNCTION step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'waits' THEN
		PERFORM pg_advisory_xact_lock(4711);
	END IF;
	IF payload ? 'fails' AND job.attempt = 1 THEN
		RAISE 'once';
	END IF;
	INSERT INTO step (i) VALUES ((payload ->> 'i')::int);
END $$;
SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', backoff => 'fixed 10h', max_attempts => 5);
CREATE PROCEDURE long(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	IF to_regclass('again') IS NULL THEN
		PERFORM pg_sleep(3600);
	END IF;
	INSERT INTO step (i) VALUES ((payload ->> 'i')::int);
END $$;
SELECT jobq.register('long', 'long(jsonb)');
SELECT jobq.create_queue('hour', group_on_failure => 'wait 1 hour'), jobq.create_queue('soon', group_on_failure => 'wait 300 ms'),
	jobq.create_queue('shared', group_scope => 'database', group_on_failure => 'wait 300 ms'),
	jobq.create_queue('taken', mode => 'consumer', group_on_failure => 'wait 1 ms');
CREATE FUNCTION put(i int, queue text, fails boolean DEFAULT false) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('step', jsonb_strip_nulls(jsonb_build_object('i', i, 'fails', nullif(fails, false))), queue => queue, group_key => 'g')
$$;
};

sub sql { return $node->safe_psql('postgres', shift) }
sub crash { $node->stop('immediate'); $node->start; return }
sub failed { my $id = shift; wait_for($node, "job $id has failed", "SELECT state = 'retryable' FROM jobq.status($id)"); return }
my $in_order = q{SELECT string_agg(i::text, ' ' ORDER BY n) FROM step};

# Reserve the only available job, which must be $id; returns the token.
sub reserve
{
	my ($id, $what) = @_;
	my ($got, $token) = split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{taken}', 5, '1 day', '5 min')});
	is($got, $id, $what);
	return $token;
}

$node->start;
sql($setup);

#
# The end of the patience alone sets the other jobs free.
#
for my $queue ('soon', 'shared')
{
	my $first = sql("SELECT put(1, '$queue', true)");
	failed($first);
	my $second = sql("SELECT put(2, '$queue')");
	is(sql("SELECT state FROM jobq.wait($second, '5 min')"), 'completed', "$queue: the group has lost its patience");
	is(sql("SELECT state, attempt FROM jobq.status($first)"), 'retryable|1', 'and the job that was stuck is where it was');

	# a lost turn is known after a crash, too
	crash();
	my $third = sql("SELECT put(3, '$queue')");
	is(sql("SELECT state FROM jobq.wait($third, '5 min')"), 'completed', 'nobody waits for it after a crash');
	is(sql("SELECT state, attempt FROM jobq.status($first)"), 'retryable|1', 'nor does it run before its time');
	sql("SELECT jobq.retry($first)");
	is(sql("SELECT state, attempt FROM jobq.wait($first, '5 min')"), 'completed|2', 'it runs in the end');
	is(sql($in_order), '2 3 1', 'in this order');
	sql('TRUNCATE step');
}

#
# A wait goes on after a crash and a restart, and still counts from the beginning.
#
my $first = sql(q{SELECT put(1, 'hour', true)});
failed($first);
my $second = sql(q{SELECT put(2, 'hour')});
my $until = sql(q{SELECT group_held + '1 hour' FROM jobq_internal.job WHERE group_held IS NOT NULL});
for my $mode ('immediate', 'fast')
{
	$node->stop($mode);
	$node->start;
	wait_for($node, "the group waits, after stop $mode",
		"SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first AND waits_until = '$until' AND parked = 1");
}
sql(q{SELECT jobq.test_clock('61 min')});
is(sql("SELECT state FROM jobq.wait($second, '5 min')"), 'completed', 'until its patience is at an end');
is(sql($in_order), '2', 'without the job that is stuck');
sql("SELECT jobq.cancel($first)");
sql(q{SELECT jobq.test_clock('0')});
sql('TRUNCATE step');

#
# A job leased to a consumer is not overtaken, not even after a crash.  If the consumer then
# gives the job back, the group does not wait for it.
#
$first = sql(q{SELECT put(1, 'taken')});
$second = sql(q{SELECT put(2, 'taken')});
my $token = reserve($first, 'the first is taken');
sql("SELECT jobq.nack($first, $token, delay => '1 ms')");
$token = reserve($second, 'it has lost its turn when it comes back');
sql("SELECT jobq.ack($second, $token)");
$token = reserve($first, 'and comes after the others');
my $third = sql(q{SELECT put(3, 'taken')});
is(sql(q{SELECT count(*) FROM jobq.reserve('{taken}', 5)}), '0', 'what is held is not overtaken');
crash();
wait_for($node, 'its lease goes on', q{SELECT count(*) = 1 FROM jobq_internal.lease_slots()});
my $other = sql(q{SELECT jobq.enqueue('step', queue => 'taken', group_key => 'other')});
$token = do { my $held = $token; sql("SELECT jobq.ack($other, " . reserve($other, 'nor after a crash, while other groups go on') . ')'); $held };
sql("SELECT jobq.nack($first, $token, delay => '1 hour')");
$token = reserve($third, 'the next one is free when it was given back');
sql("SELECT jobq.ack($third, $token), jobq.cancel($first)");

#
# A procedure which runs during the crash, and begins anew, is not overtaken, either.
#
sql('TRUNCATE step');
$first = sql(q{SELECT jobq.enqueue('long', '{"i": 1}', queue => 'hour', group_key => 'g')});
wait_for($node, 'a procedure runs', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq worker' AND wait_event = 'PgSleep'});
$second = sql(q{SELECT put(2, 'hour')});
sql('CREATE TABLE again ()');
crash();
is(sql("SELECT state FROM jobq.wait_many(ARRAY[$first, $second], '5 min') ORDER BY id"), "completed\ncompleted", 'after a crash it runs again');
is(sql($in_order), '1 2', 'before the others of its group');

#
# A job regains a lost turn while another job runs and fails: the group waits for both, in
# sequence.
#
sql('TRUNCATE step');
$first = sql(q{SELECT put(1, 'hour', true)});
failed($first);
sql(q{SELECT jobq.test_clock('61 min')});
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(4711)');
$second = sql(q{SELECT jobq.enqueue('step', '{"i": 2, "fails": true, "waits": true}', queue => 'hour', group_key => 'g')});
wait_for($node, 'the next one runs', "SELECT state = 'running' FROM jobq.status($second)");
sql(q{SELECT jobq.alter_queue('hour', group_on_failure => 'wait 100 hours')});
wait_for($node, 'the group waits again for the first', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first");
$holder->query_safe('SELECT pg_advisory_unlock(4711)');
$holder->quit;
failed($second);
$third = sql(q{SELECT put(3, 'hour')});
sql("SELECT jobq.retry($first)");
wait_for($node, 'the group goes on', "SELECT EXISTS (SELECT FROM jobq.limits WHERE type = 'group' AND waits_for = $second)"
	. " OR (SELECT state = 'completed' FROM jobq.status($third))");
is(sql($in_order), '1', 'the second is waited for, too');
sql("SELECT jobq.retry($second)");
is(sql("SELECT state FROM jobq.wait($third, '5 min')"), 'completed', 'then the others come');
is(sql($in_order), '1 2 3', 'in their order');
sql(q{SELECT jobq.test_clock('0')});

#
# Without a scheduler, jobq.work() reads the lost turns from the rows.
#
$node->safe_psql('postgres', 'CREATE DATABASE aside');
$node->safe_psql('aside', $setup);
sub aside { return $node->safe_psql('aside', shift) }
my $work = q{CALL jobq.work('{hour}', stop_when_empty => true)};
aside(q{SELECT put(1, 'hour', true), put(2, 'hour')});
aside($work);
is(aside(q{SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM jobq.live_jobs}), 'retryable1 ready0', 'jobq.work(): the group waits');
sql(q{SELECT jobq.test_clock('61 min')});
aside($work);
is(aside($in_order), '2', 'until its patience is at an end');
aside(q{SELECT put(3, 'hour', true), put(4, 'hour')});
aside($work);
is(aside($in_order), '2', 'the next one that fails is waited for');
is(aside(q{SELECT string_agg(state || attempt, ' ' ORDER BY id) FROM jobq.live_jobs}), 'retryable1 retryable1 ready0', 'by the others');
aside(q{SELECT jobq.retry(min(id)) FROM jobq.live_jobs});
aside($work);
is(aside($in_order), '2', 'also by the one that has lost its turn');
sql(q{SELECT jobq.test_clock('20 hours')});
aside($work);
is(aside($in_order), '2 4 1 3', 'all come when they are due, in the order of their times');

$node->stop;
no_failed_assertion($node);
done_testing();
