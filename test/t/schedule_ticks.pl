# A tick makes exactly one job, through crashes, restarts and downtimes, and in a copy.  On a
# subscriber it makes none.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.databases = '*'
jobq.workers = 'still=0; *=2'
wal_level = logical
track_commit_timestamp = on
}, allows_streaming => 'logical');
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('note', 'note(jsonb)'), jobq.register('hold', 'hold(jsonb)');
});

sub sql
{
	my ($query, $dbname) = @_;
	return $node->safe_psql($dbname || 'postgres', $query);
}

# The minute and the hour of such ticks do not come while the test runs.
my $hourly = sql(q{SELECT to_char(now() AT TIME ZONE 'UTC' + interval '30 min', 'FMMI') || ' * * * *'});
my $daily = sql(q{SELECT to_char(now() AT TIME ZONE 'UTC' + interval '12 hours', '"0 "FMHH24') || ' * * *'});

# The differences between the jobs of a schedule and its ticks.
sub wrong_ticks
{
	my ($name) = @_;
	return sql(qq{
SELECT string_agg(coalesce(t, run_at) || ': ' || coalesce(n, 0), ', ') FROM jobq_internal.schedule s
CROSS JOIN LATERAL (SELECT * FROM (SELECT run_at, count(*) AS n FROM jobq.jobs j
		WHERE j.headers ->> 'schedule' = s.name GROUP BY run_at) j
	FULL JOIN (SELECT t FROM jobq.next_ticks(s.cron, s.timezone, s.anchor, 100000) t WHERE t <= s.last_tick) t ON t = run_at) b
WHERE s.name = '$name' AND (n IS DISTINCT FROM 1 OR t IS NULL)});
}

sub count_jobs
{
	my ($name, $dbname) = @_;
	return sql(qq{SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' = '$name'}, $dbname);
}

#
# Once per tick, despite crashes.  The clock advances by 90 minutes each time; the second call
# confirms the new time.  The start of a server resets the clock, so jobq is paused until the
# clock is set again.
#
$node->append_conf('postgresql.conf', 'restart_after_crash = off');
$node->reload;
sql(q{SELECT jobq.schedule('seconds', '* * * * * *', 'note', missed => 'all', options => '{"queue": "still"}')});
my $hours = 0;

# Disturb the server when some of the ticks have their jobs, and most do not.
sub disturb
{
	my ($what, $how) = @_;
	my $some = 200 + int(rand(1500));

	# the scheduler may have been faster than the test
	for (1 .. ($hours < 7.5 ? 2 : 1))
	{
		$hours += 1.5;
		sql("SELECT jobq.test_clock('$hours hours'), jobq.test_clock('$hours hours')");
		wait_for($node, "$what: some are there",
			qq{SELECT next_tick > jobq_internal.clock() - interval '90 min' + interval '$some s' FROM jobq_internal.schedule WHERE name = 'seconds'});
		last if sql(q{SELECT next_tick < jobq_internal.clock() - interval '1 min' FROM jobq_internal.schedule WHERE name = 'seconds'}) eq 't';
	}
	$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
	$how->();
	my $in_time = count_jobs('seconds');
	sql("SELECT jobq.test_clock('$hours hours'), jobq.test_clock('$hours hours')");
	$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
	$node->reload;
	work_off($node, "$what: what was missed is made up for",
		q{SELECT greatest(extract(epoch FROM jobq_internal.clock() - next_tick)::int, 0) FROM jobq_internal.schedule WHERE name = 'seconds'});
	wait_for($node, "$what: the rest comes",
		q{SELECT next_tick > jobq_internal.clock() - interval '1 s' AND last_tick > jobq_internal.clock() - interval '10 s' FROM jobq_internal.schedule WHERE name = 'seconds'});
	cmp_ok(count_jobs('seconds'), '>=', $in_time, "$what: nothing is lost");
	is(wrong_ticks('seconds'), '', "$what: one job for each tick");
	return;
}

disturb('immediate stop', sub { $node->stop('immediate'); $node->start; });
disturb('fast stop', sub { $node->restart; });
# The crash of this process ends the server, which is then started again.
sub crash
{
	my ($pid, $backend) = @_;
	my ($postmaster) = split(/\n/, slurp_file($node->data_dir . '/postmaster.pid'));

	signal_process('KILL', $pid);
	wait_for_exit($postmaster);
	eval { $backend->{run}->finish } if $backend;
	$node->_update_pid(0);
	$node->start;
	return;
}

disturb('crash of a backend', sub {
	my $backend = $node->background_psql('postgres', on_error_stop => 0);

	crash($backend->query('SELECT pg_backend_pid()'), $backend);
});
disturb('crash of the scheduler', sub { crash(scheduler_pid($node)); });
disturb('end of the scheduler', sub {
	my $pid = scheduler_pid($node);
	signal_process('TERM', $pid);
	wait_for_exit($pid);
	wait_for($node, 'there is another', 'SELECT pid IS NOT NULL AND complete FROM jobq_internal.scheduler_state()');
});
disturb('checkpoint and immediate stop', sub { sql('CHECKPOINT'); $node->stop('immediate'); $node->start; });
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
sql(q{SELECT jobq.unschedule('seconds'); SELECT count(jobq.cancel(id)) FROM jobq_internal.job});
sql('SELECT jobq.test_clock(\'0\')');

# A tick which comes while its schedule is being created is not left out.
{
	my $locker = $node->background_psql('postgres');
	my $maker = $node->background_psql('postgres');

	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.schedule IN EXCLUSIVE MODE');
	my $pid = $maker->query_safe('SELECT pg_backend_pid()');
	$maker->query_until(qr/begins/, qq{\\echo begins\n} .
		q{SELECT jobq.schedule('made', 'every 1 second', 'note', missed => 'all', options => '{"queue": "still"}');} . "\n");
	wait_for($node, 'a schedule is being made', "SELECT count(*) = 1 FROM pg_locks WHERE pid = $pid AND NOT granted");
	sql(q{SELECT jobq.test_clock('1 min')});
	$locker->query_safe('COMMIT');
	$_->quit foreach $locker, $maker;
	wait_for($node, 'it ticks', q{SELECT last_tick > anchor + interval '1 min' FROM jobq_internal.schedule WHERE name = 'made'});
	is(wrong_ticks('made'), '', 'also for the ticks that came meanwhile');
	sql(q{SELECT jobq.unschedule('made'); SELECT count(jobq.cancel(id)) FROM jobq_internal.job});
	sql('SELECT jobq.test_clock(\'0\')');
}

#
# A downtime
#
sql(q{
SELECT jobq.schedule('down ' || m, '* * * * * *', 'note', missed => m, options => '{"queue": "still"}') FROM unnest('{skip,once,all}'::text[]) m});
wait_for($node, 'all run', q{SELECT count(*) = 3 FROM jobq_internal.schedule WHERE last_tick IS NOT NULL});
$node->stop('fast');
my $down = time() + 1;
usleep(3_500_000);
my $up = time();
$node->start;
wait_for($node, 'all run again',
	"SELECT count(*) = 3 FROM jobq_internal.schedule WHERE last_tick > to_timestamp($up) + interval '2 s'");
my $missed = "run_at > to_timestamp($down) AND run_at < to_timestamp($up)";
is(sql(qq{SELECT count(*) FROM jobq_internal.job WHERE headers ->> 'schedule' = 'down skip' AND $missed}), '0',
	'skip: nothing for the time of the downtime');
cmp_ok(sql(qq{SELECT count(*) FROM jobq_internal.job WHERE headers ->> 'schedule' = 'down once' AND $missed}), '<=', 1,
	'once: one job at most is of that time');
cmp_ok(sql(qq{SELECT count(*) FROM jobq_internal.job WHERE headers ->> 'schedule' = 'down all' AND $missed}), '>=', 2,
	'all: more are');
is(wrong_ticks('down all'), '', 'one for each');
sql(q{SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

# jobq.start_paused counts as a downtime, too
sql(qq{
SELECT jobq.schedule('day ' || m, '$daily', 'note', missed => m, options => '{"queue": "still"}') FROM unnest('{skip,once,all}'::text[]) m});
$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
$node->restart;
sql(q{SELECT jobq.test_clock('10 days'), jobq.test_clock('10 days')});
my $id = sql(q{SELECT jobq.enqueue('note')});
wait_for($node, 'there is a scheduler', 'SELECT pid IS NOT NULL AND complete FROM jobq_internal.scheduler_state()');
sql('SELECT pg_reload_conf()');
is(sql('SELECT count(*) FROM jobq_internal.job'), '1', 'while jobq is paused, schedules are');
$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
$node->reload;
wait_for($node, 'then all go on',
	'SELECT bool_and(next_tick > jobq_internal.clock()) FROM jobq_internal.schedule');
is(sql(q{SELECT name, (SELECT count(*) FROM jobq_internal.job WHERE headers ->> 'schedule' = name) FROM jobq.schedules ORDER BY name}),
	"day all|10\nday once|1\nday skip|0", 'by their policies');
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'as jobs do');
sql(q{SELECT jobq.test_clock('0'); SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

#
# Changes take effect at once, although the safety check is an hour away.
#
sql(q{SELECT jobq.schedule('soon', '@yearly', 'note')});
sql(q{SELECT jobq.schedule('soon', 'every 1 second', 'note')});
wait_for($node, 'in real time', q{SELECT count(*) >= 2 FROM jobq.jobs WHERE headers ->> 'schedule' = 'soon' AND state = 'completed'});
sql(q{SELECT jobq.pause(schedule => 'soon')});
my $paused_at = sql('SELECT extract(epoch FROM clock_timestamp())');
sql(q{SELECT jobq.schedule('other', 'every 1 second', 'note')});
wait_for($node, 'another goes on', q{SELECT last_tick > anchor + interval '2 s' FROM jobq_internal.schedule WHERE name = 'other'});
is(sql("SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' = 'soon' AND run_at > to_timestamp($paused_at)"),
	'0', 'one that is paused does not');
sql(q{SELECT count(jobq.unschedule(name)) FROM jobq.schedules});

# A schedule during a change does not hold up the other schedules, and is not forgotten.
sql(qq{SELECT jobq.schedule('locked', '$hourly', 'note', options => '{"queue": "still"}'), jobq.schedule('free', '$hourly', 'note', options => '{"queue": "still"}')});
my $session = $node->background_psql('postgres');
$session->query_safe(q{BEGIN; SELECT jobq.pause(schedule => 'locked')});
sql(q{SELECT jobq.test_clock('1 hour')});
wait_for($node, 'another ticks', q{SELECT last_tick IS NOT NULL FROM jobq_internal.schedule WHERE name = 'free'});
is(count_jobs('locked'), '0', 'one that is being changed waits');
$session->query_safe('ROLLBACK');
wait_for($node, 'for the end of the change', q{SELECT last_tick IS NOT NULL FROM jobq_internal.schedule WHERE name = 'locked'});
$session->query_safe(q{BEGIN; SELECT jobq.pause(schedule => 'locked')});
sql(q{SELECT jobq.test_clock('2 hours')});
wait_for($node, 'the other ticks again', q{SELECT count(*) = 2 FROM jobq.jobs WHERE headers ->> 'schedule' = 'free'});
$session->query_safe('COMMIT');
sql(q{SELECT jobq.test_clock('3 hours')});
wait_for($node, 'and again', q{SELECT count(*) = 3 FROM jobq.jobs WHERE headers ->> 'schedule' = 'free'});
is(count_jobs('locked'), '1', 'what was committed holds');
$session->quit;
sql(q{SELECT jobq.test_clock('0'); SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

#
# Ticks due together commit together, and a failing tick fails alone.
#
sql(qq{
SELECT jobq.register('gone', 'note(jsonb)');
SELECT count(jobq.schedule('many ' || n, '$hourly', CASE n WHEN 7 THEN 'gone' ELSE 'note' END, options => '{"queue": "still"}')) FROM generate_series(1, 300) n;
SELECT jobq.unregister('gone')});
sql(q{SELECT jobq.test_clock('1 hour')});
wait_for($node, 'all tick', q{SELECT count(*) = 299 FROM jobq_internal.schedule WHERE last_tick IS NOT NULL});
wait_for($node, 'but one', q{SELECT last_error ~ 'gone' FROM jobq_internal.schedule WHERE name = 'many 7'});
is(sql(q{SELECT count(*), count(DISTINCT headers ->> 'schedule') FROM jobq_internal.job}), '299|299', 'one job for each');
SKIP:
{
	skip 'with sanitizers, one tick takes as long as those of one commit may', 1 if $node->config_data('--cflags') =~ /-fsanitize=/;
	cmp_ok(sql('SELECT count(DISTINCT pg_xact_commit_timestamp(xmin)) FROM jobq_internal.job'), '<', 299, 'in fewer commits');
}
sql(q{SELECT jobq.test_clock('0'); SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

# A failed tick is retried soon, also after the clock was put back.
sql(qq{
SELECT jobq.register('gone', 'note(jsonb)');
SELECT jobq.schedule('fails', '$hourly', 'gone', options => '{"queue": "still"}');
SELECT jobq.unregister('gone')});
sql(q{SELECT jobq.test_clock('2 days')});
wait_for($node, 'it fails', q{SELECT last_error ~ 'gone' FROM jobq_internal.schedule WHERE name = 'fails'});
sql(q{SELECT jobq.register('gone', 'note(jsonb)')});
# the tick is retried each minute; the next regular tick comes after the last of these times
my $tried = 0;
foreach my $minutes (map { 2 * $_ } 60 .. 70)
{
	sql("SELECT jobq.test_clock('$minutes min')");
	for (1 .. 30)
	{
		last if $tried = sql(q{SELECT last_error IS NULL FROM jobq_internal.schedule WHERE name = 'fails'}) eq 't';
		usleep(100_000);
	}
	last if $tried;
}
is(sql(q{SELECT last_error IS NULL, count(*) FROM jobq_internal.schedule, jobq_internal.job WHERE name = 'fails' GROUP BY 1}), 't|1', 'it is tried again by the clock as it is');
sql(q{SELECT jobq.test_clock('0'); SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT count(jobq.cancel(id)) FROM jobq_internal.job});

#
# A tick which waits for the last job still does so after a crash.
#
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.schedule('waits', '0 * * * *', 'hold', overlap => 'queue', missed => 'skip')});
my $to_tick = q{SELECT jobq.test_clock(date_trunc('hour', %s) + interval '1 hour 1 second' - clock_timestamp())};
sql(sprintf($to_tick, 'jobq_internal.clock()'));
sleeps($node, 'its job runs', 1);
sql(sprintf($to_tick, 'jobq_internal.clock()'));
wait_for($node, 'the next tick waits', q{SELECT state = 'waiting' FROM jobq.schedules});
my $waiting = sql('SELECT next_tick FROM jobq.schedules');
# the start of the server resets the clock
$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
$node->stop('immediate');
eval { $gate->{run}->kill_kill };
$node->start;
sql("SELECT jobq.test_clock(timestamptz '$waiting' + interval '40 minutes' - clock_timestamp())");
$node->append_conf('postgresql.conf', 'jobq.start_paused = off');
$node->reload;
wait_for($node, 'the tick that waited has its job',
	"SELECT last_tick = '$waiting' AND last_state = 'completed' FROM jobq.schedules");
is(count_jobs('waits'), '2', 'and each has one');
is(sql('SELECT count(*) FROM jobq.dead_letters'), '0', 'none has failed');
sql(q{SELECT jobq.test_clock('0'); SELECT count(jobq.unschedule(name)) FROM jobq.schedules});

#
# A copy does not fire ticks already fired by the original.
#
sql(qq{
SELECT jobq.schedule('often', '$hourly', 'note', missed => 'all', options => '{"queue": "still"}'),
	jobq.schedule('interval', 'every 7 hours', 'note', missed => 'all', options => '{"queue": "still"}'),
	jobq.schedule('seldom', '0 0 1 1 *', 'note', '{"n": 1}', 'Europe/Madrid', overlap => 'queue', options => '{"queue": "still", "timeout": "1 min", "expires_after": "1 day"}'),
	jobq.schedule('paused', '$hourly', 'note', options => '{"queue": "still"}'), jobq.pause(schedule => 'paused')});
my $dump = $node->backup_dir . '.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');
sql('CREATE DATABASE fresh');
$node->command_ok([ 'pg_restore', '-e', '-d', 'fresh', $dump ], 'pg_restore at once');
is(sql('SELECT * FROM jobq_internal.schedule ORDER BY name', 'fresh'), sql('SELECT * FROM jobq_internal.schedule ORDER BY name'),
	'schedules are as they were');
sql(q{SELECT jobq.test_clock('1 day')});
wait_for($node, 'the original ticks', q{SELECT min(next_tick) > jobq_internal.clock() FROM jobq_internal.schedule});
is(count_jobs('often'), '24', 'one job each');
sql('CREATE DATABASE late');
$node->command_ok([ 'pg_restore', '-e', '-d', 'late', $dump ], 'pg_restore a day later');
wait_for($node, 'the copy knows what comes next',
	q{SELECT count(*) = 3 FROM jobq_internal.schedule WHERE next_tick > jobq_internal.clock()}, 'late');
is(sql(q{SELECT name, state, next_tick FROM jobq.schedules ORDER BY name}, 'late'),
	sql(q{SELECT name, state, next_tick FROM jobq.schedules ORDER BY name}), 'which is the same as in the original');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' IN ('often', 'interval', 'seldom')}, 'late'), '0', 'and fires nothing of the past');
sql(q{SELECT jobq.test_clock('25 hours'), jobq.test_clock('25 hours')});
wait_for($node, 'it ticks from then on', q{SELECT count(*) = 1 FROM jobq.jobs WHERE headers ->> 'schedule' = 'often'}, 'late');

#
# A subscriber does not tick until it takes over.
#
sql('CREATE DATABASE subscriber');
sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note(jsonb)')}, 'subscriber');
sql('CREATE PUBLICATION schedules FOR TABLE jobq_internal.schedule');
sql(q{SELECT pg_create_logical_replication_slot('schedules', 'pgoutput')});
my $connstr = $node->connstr . ' dbname=postgres';
sql("CREATE SUBSCRIPTION schedules CONNECTION '$connstr' PUBLICATION schedules WITH (create_slot = false)", 'subscriber');
$node->wait_for_subscription_sync($node, 'schedules', 'subscriber');
is(sql('SELECT count(*) FROM jobq.schedules WHERE state = \'dormant\'', 'subscriber'), '4', 'schedules arrive, and are dormant');
sql(qq{SELECT jobq.schedule('own', '$hourly', 'note', options => '{"queue": "still"}')}, 'subscriber');
sql(q{SELECT jobq.test_clock('30 hours'), jobq.test_clock('30 hours')});
wait_for($node, 'the publisher ticks', q{SELECT min(next_tick) > jobq_internal.clock() FROM jobq_internal.schedule});
wait_for($node, 'as does what the subscriber has of its own', q{SELECT next_tick > jobq_internal.clock() FROM jobq_internal.schedule WHERE name = 'own'}, 'subscriber');
wait_for($node, 'it hears of that',
	q{SELECT count(*) = 4 AND min(next_tick) > jobq_internal.clock() FROM jobq_internal.schedule WHERE dormant AND (next_tick IS NOT NULL OR paused)}, 'subscriber');
is(sql(q{SELECT DISTINCT headers ->> 'schedule' FROM jobq.jobs}, 'subscriber'), 'own', 'and does not itself');
sql(q{ALTER SUBSCRIPTION schedules DISABLE}, 'subscriber');
sql(q{ALTER SUBSCRIPTION schedules SET (slot_name = NONE)}, 'subscriber');
sql(q{DROP SUBSCRIPTION schedules}, 'subscriber');
wait_for($node, 'its slot is free', q{SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'schedules'});
sql(q{SELECT count(jobq.unschedule(name)) FROM jobq.schedules; SELECT pg_drop_replication_slot('schedules')});
sql(q{SELECT jobq.adopt()}, 'subscriber');
sql(q{SELECT jobq.test_clock('31 hours')});
wait_for($node, 'it takes over', q{SELECT count(*) = 1 FROM jobq.jobs WHERE headers ->> 'schedule' = 'often'}, 'subscriber');

$node->stop;
no_failed_assertion($node);
done_testing();
