# A job is handed off to a waiting consumer, which cannot take it.
#
# The consumer is stopped, so the hand-off lasts as long as the test needs.  The queue lets a
# single job run, and "running" shows when the slot is taken, by any process.  The clients have
# no part in this, so the slot is taken without interruption.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=1'
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
CREATE ROLE carol LOGIN;
GRANT bob TO alice;
SELECT jobq.grant_privilege('alice'), jobq.grant_privilege('bob'), jobq.grant_privilege('carol');
SELECT jobq.create_queue('first', open => true, mode => 'consumer'), jobq.create_queue('one', open => true, mode => 'consumer', max_running => 1);
SELECT jobq.enqueue('any', queue => 'one'), jobq.enqueue('any', queue => 'first');
SET ROLE bob;
SELECT jobq.enqueue('any', queue => 'one')});
sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}
wait_for_scheduler($node);
is(sql(q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{first, one}', wait => '5 min')}), 1, 'the scheduler knows the queues')
  for 1 .. 3;
is(sql('SELECT count(*) FROM jobq_internal.job'), 0, 'nothing is left');

# A session waits in reserve(), and prints the job it gets.
sub consumer
{
	my ($name, %options) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $wait = $options{wait} || '10 min';
	my $queues = $options{queues} || 'one';

	$session->query_safe("SET application_name = '$name'");
	$session->query_safe("SET SESSION AUTHORIZATION $options{role}") if $options{role};
	$session->{pid} = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_until(qr/begun/, "\\echo begun\nSELECT 'got ' || (payload #>> '{}') AS got, id, token FROM jobq.reserve('{$queues}', 1, '1 hour', '$wait') \\gset\n\\echo :got\n");
	wait_for($node, "$name waits", 'SELECT ' . waits($session) . ' OR ' . left($session));
	return $session;
}

sub waits
{
	my ($session) = @_;

	return "EXISTS (SELECT FROM pg_stat_activity WHERE pid = $session->{pid} AND wait_event_type = 'Extension' AND state = 'active')";
}

# The session timed out before it got a job.
sub left
{
	my ($session) = @_;

	return "EXISTS (SELECT FROM pg_stat_activity WHERE pid = $session->{pid} AND state = 'idle' AND query LIKE '%jobq.reserve%')";
}

# A session stopped during its wait, without a lock which other processes need; or timed out.
sub stopped
{
	my $session = consumer(@_);
	my $waits = 'SELECT ' . waits($session);

	while (sql($waits) eq 't')
	{
		my ($still, $late);

		kill('STOP', $session->{pid});
		# certain locks of the stopped session would block this query
		$node->psql('postgres', $waits, stdout => \$still, timeout => 30, timed_out => \$late);
		last if !$late && $still eq 't';
		kill('CONT', $session->{pid});
	}
	return $session;
}

sub go_on
{
	my ($session) = @_;

	kill('CONT', $session->{pid});
	return;
}

sub gets
{
	my ($session, $job, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	like($session->query_until(qr/got \w+\n/, ''), qr/got $job\n/, $what);
	return;
}

sub acks
{
	my ($session) = @_;

	$session->query_safe('SELECT jobq.ack(:id, :token)');
	$session->quit;
	return;
}

sub post
{
	my ($job, $role, $queue, $kind) = @_;

	$kind ||= 'any';
	return sql(($role ? "SET ROLE $role; " : '') . "SELECT jobq.enqueue('$kind', to_jsonb('$job'::text), queue => '" . ($queue || 'one') . "')");
}

sub running
{
	my ($n, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql(q{SELECT running FROM jobq.limits WHERE type = 'queue' AND queue = 'one'}), $n, $what);
	return;
}

sub nothing_is_left
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	running(0, 'its place is free');
	is(sql('SELECT count(*) FROM jobq_internal.lease_slots()'), 0, 'nothing is held');
	is(sql('SELECT count(*) FROM jobq_internal.job'), 0, 'nothing is left');
	return;
}

#
# An ack() passes its slot on.
#
my $first = consumer('first');
post('a');
gets($first, 'a', 'the first has a job');
post('b');
my $second = stopped('second');
$first->query_safe('SELECT jobq.ack(:id, :token)');
running(1, 'its place is taken at once by one who sleeps');
go_on($second);
gets($second, 'b', 'who has the next job');
acks($second);
$first->quit;
nothing_is_left();

#
# Roles take turns, if a consumer of each waits.
#
$first = consumer('first');
post('b1', 'bob');
gets($first, 'b1', 'turns: a job of bob');
post("b$_", 'bob') for 2 .. 3;
post("c$_", 'carol') for 1 .. 2;

# A consumer of each role waits when the job of $first is done.  The consumer which gets the
# next job becomes $first.
sub take_turns
{
	my ($what, $queues, @turns) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	foreach my $turn (@turns)
	{
		my ($role, $job) = @{$turn};
		my %waiting = map { $_ => consumer("a consumer of $_", role => $_, queues => $queues) } qw(bob carol);

		acks($first);
		gets($waiting{$role}, $job, "$what: then one of $role");
		$first = delete $waiting{$role};
		foreach my $session (values %waiting)
		{
			sql("SELECT pg_cancel_backend($session->{pid})");
			$session->quit;
		}
	}
	acks($first);
	return;
}
take_turns('turns', 'one', [ 'carol', 'c1' ], [ 'bob', 'b2' ], [ 'carol', 'c2' ], [ 'bob', 'b3' ]);
nothing_is_left();

# At the limiter of a kind, a role with jobs in several queues gets no more turns.
sql(q{CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('shared', 'nothing()', max_running => 1);
SELECT jobq.create_queue('any ' || i, open => true, mode => 'consumer') FROM generate_series(1, 4) i});
my $queues = join ', ', map { "any $_" } 1 .. 4;
for (1 .. 3)
{
	post('known', 'bob', "any $_", 'shared') for 1 .. 3;
	post('known', 'carol', 'any 4', 'shared');
	is(sql("SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{$queues}', wait => '5 min')"), 1, 'kind: the scheduler knows the queues') for 1 .. 4;
}
$first = consumer('first', queues => $queues);
post('c1', 'carol', 'any 4', 'shared');
gets($first, 'c1', 'kind: a job of carol');
acks($first);
$first = consumer('first', queues => $queues);
post('b1', 'bob', 'any 1', 'shared');
gets($first, 'b1', 'kind: a job of bob');
post('c2', 'carol', 'any 4', 'shared');
post("b$_", 'bob', "any $_", 'shared') for 2 .. 3;
post('c3', 'carol', 'any 4', 'shared');
take_turns('kind', $queues, [ 'carol', 'c2' ], [ 'bob', 'b2' ], [ 'carol', 'c3' ], [ 'bob', 'b3' ]);
sql(q{SELECT jobq.unregister('shared')});
wait_for($node, 'kind: its limit is gone', q{SELECT count(*) = 1 FROM jobq_internal.limit_slots()});
nothing_is_left();

#
# Consumers leave with a job handed off to them.
#
foreach my $how ('cancel', 'terminate', 'close')
{
	my ($next, $leaves) = (consumer('next'), stopped('leaves'));

	post('a');
	running(1, "$how: a job is handed to one who is stopped");
	if ($how eq 'close')
	{
		$leaves->{run}->kill_kill;
	}
	else
	{
		sql("SELECT pg_${how}_backend($leaves->{pid})");
	}
	running(1, "$how: he has it still");
	go_on($leaves);
	gets($next, 'a', "$how: then the next has it");
	running(1, "$how: and nobody else");
	$leaves->quit if $how eq 'cancel';
	eval { $leaves->{run}->finish } if $how ne 'cancel';
	acks($next);
	nothing_is_left();
}

# A consumer which times out meanwhile still takes the job.  If the timeout came before the
# stop, the next consumer has more time.
my ($late, $time);
foreach (2, 8, 32)
{
	$time = $_;
	$late = stopped('late', wait => "$time s");
	last if sql('SELECT ' . waits($late)) eq 't';
	go_on($late);
	$late->quit;
}
post('a');
running(1, 'a job is handed to one who has little time');
wait_for($node, 'his time is over',
	"SELECT query_start + interval '$time s' < clock_timestamp() FROM pg_stat_activity WHERE pid = $late->{pid}");
go_on($late);
gets($late, 'a', 'he has it');
acks($late);
nothing_is_left();

#
# Changes to the job, the queue, or the session's privileges meanwhile.
#
my $taker = stopped('taker');
my $id = post('a');
running(1, 'cancelled: a job is handed over');
is(sql("SELECT jobq.cancel($id)"), 't', 'and is cancelled');
post('b');
go_on($taker);
gets($taker, 'b', 'cancelled: the next one is taken instead');
acks($taker);
nothing_is_left();

$taker = stopped('taker');
post('a');
sql(q{SELECT jobq.pause('one')});
wait_for($node, 'the queue is paused', q{SELECT paused FROM jobq.queues WHERE name = 'one'});
post('b', undef, 'first');
wait_for($node, 'the scheduler has heard of it', q{SELECT count(jobq.ack(id, token)) = 1 FROM jobq.reserve('{first}', wait => '1s')});
go_on($taker);
wait_for($node, 'paused: a job that was handed over is not taken', q{SELECT running = 0 FROM jobq.limits WHERE type = 'queue' AND queue = 'one'});
sql(q{SELECT jobq.resume('one')});
gets($taker, 'a', 'resumed: it is');
acks($taker);
nothing_is_left();

my $other = consumer('other', role => 'bob');
$taker = stopped('taker', role => 'alice');
post('a', 'bob');
running(1, 'revoked: a job is handed over');
sql('REVOKE bob FROM alice');
go_on($taker);
gets($other, 'a', 'revoked: it goes to one who may take it');
acks($other);
sql(q{GRANT bob TO alice});
post('b', 'alice');
gets($taker, 'b', 'revoked: the other one waits on');
acks($taker);
nothing_is_left();

# The limit is removed, and comes back.
$taker = stopped('taker');
post('a');
running(1, 'no limit: a job is handed over');
sql(q{SELECT jobq.alter_queue('one', max_running => 0), jobq.create_queue('two', open => true, max_running => 5)});
wait_for($node, 'no limit: another has its place', q{SELECT count(*) = 1 FROM jobq_internal.limit_slots() WHERE running = 0});
go_on($taker);
gets($taker, 'a', 'no limit: it is taken');
acks($taker);
is(sql(q{SELECT string_agg(running::text, ' ') FROM jobq_internal.limit_slots()}), '0', 'no permit is given back that was of another');
sql(q{SELECT jobq.alter_queue('one', max_running => 1)});
wait_for($node, 'there is a limit again', q{SELECT count(*) = 2 FROM jobq_internal.limit_slots()});

#
# The choice of the consumer.
#
# For a job of a role unknown to the scheduler, the consumer with the privilege finds the job.
my $may_not = consumer('may_not', role => 'bob');
my $may = consumer('may', role => 'carol');
post('a', 'carol');
gets($may, 'a', 'a new role: who may take it does');
acks($may);
# For a known role, the other consumer is not asked.
$may = stopped('may', role => 'carol');
post('b', 'carol');
running(1, 'a known role: handed over at once');
go_on($may);
gets($may, 'b', 'to who may take it');
acks($may);
post('c', 'bob');
gets($may_not, 'c', 'the other has waited for a job of its own');
acks($may_not);
nothing_is_left();

# Jobs come in the order of the given queues, not in the order of their ids.
my $last = stopped('last');
$taker = stopped('taker', queues => 'first, one');
sql(q{BEGIN; SELECT jobq.enqueue('any', '"a"', queue => 'one'); SELECT jobq.enqueue('any', '"b"', queue => 'first'); COMMIT});
running(1, 'two jobs at a time are handed to two');
go_on($_) foreach $taker, $last;
gets($taker, 'b', 'of two queues: a job of the first');
gets($last, 'a', 'the other is for the other');
acks($_) foreach $taker, $last;
nothing_is_left();

#
# The scheduler restarts; the server crashes.
#
$taker = stopped('taker');
post('a');
running(1, 'scheduler: a job is handed over');
my $scheduler = scheduler_pid($node);
sql("SELECT pg_terminate_backend($scheduler)");
wait_for($node, 'there is another scheduler', "SELECT pid <> $scheduler AND complete FROM jobq_internal.scheduler_state()");
go_on($taker);
gets($taker, 'a', 'scheduler: it is taken');
acks($taker);
wait_for($node, 'its second entry is dropped', q{
SELECT CASE WHEN n = 0 THEN (SELECT ready_entries = 0 FROM jobq_internal.scheduler_state()) END FROM (SELECT count(*) AS n FROM jobq.reserve('{one}')) r});
nothing_is_left();

# The extension is dropped and created anew.
$taker = stopped('taker');
post('a');
running(1, 'new extension: a job is handed over');
sql('DROP EXTENSION jobq CASCADE; CREATE EXTENSION jobq');
sql(q{SELECT jobq.create_queue('other', open => true, mode => 'consumer'), jobq.create_queue('one', open => true, mode => 'consumer', max_running => 1)});
wait_for($node, 'there is a new scheduler', 'SELECT complete FROM jobq_internal.scheduler_state()');
sql("SELECT pg_terminate_backend($taker->{pid})");
go_on($taker);
eval { $taker->{run}->finish };
post('b');
is(sql(q{SELECT payload FROM jobq.reserve('{one}', wait => '5 min')}), '"b"', 'new extension: what was handed over is forgotten');
running(1, 'and counted no more');

$node->stop;
no_failed_assertion($node);
done_testing();
