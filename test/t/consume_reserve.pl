# External consumers: leases survive the server, and waiting sessions are cheap and get their jobs.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.databases = 'postgres, doomed, ascii, win'
jobq.workers = 'manual=0; *=4'
max_connections = 120
autovacuum = off
wal_writer_delay = '10s'
wal_writer_flush_after = '1GB'
listen_addresses = '127.0.0.1'
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
SELECT jobq.grant_privilege('alice'), jobq.grant_privilege('bob');
SELECT jobq.create_queue('durable', open => true, mode => 'consumer'), jobq.create_queue('memory', open => true, mode => 'consumer', lease => 'memory');
CREATE TABLE held (name text, id bigint, token bigint);
GRANT ALL ON held TO PUBLIC;
-- an error is told by its code
CREATE FUNCTION say(function text, what text, more text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	h held;
BEGIN
	SELECT * INTO STRICT h FROM held WHERE name = what;
	EXECUTE format('SELECT jobq.%I(%s, %s%s)', function, h.id, h.token, more);
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE FUNCTION state(what text) RETURNS text LANGUAGE sql AS $$
	SELECT s.state || ' ' || s.attempt FROM held h, jobq.status(h.id) s WHERE h.name = what
$$;
});

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# Enqueue jobs with these names and reserve all jobs in one call.
sub hold
{
	my ($queue, $lease, @names) = @_;
	my $names = join ',', map { "'$_'" } @names;

	sql(qq{SELECT jobq.enqueue('work', queue => '$queue', headers => jsonb_build_object('name', n), backoff => 'fixed 1h')
	       FROM unnest(ARRAY[$names]) n});
	my $n = sql(
		qq{WITH h AS (INSERT INTO held SELECT headers ->> 'name', id, token
		              FROM jobq.reserve('{$queue}', @{[scalar @names]}, '$lease', '1 min') RETURNING 1)
		   SELECT count(*) FROM h});
	is($n, scalar @names, "$queue: got @names");
	return;
}

sub is_state
{
	my ($what, $state) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql("SELECT state('$what')"), $state, "$what: $state");
	return;
}

sub says
{
	my ($function, $what, $answer, $more) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$more ||= '';
	$more =~ s/'/''/g;
	is(sql("SELECT say('$function', '$what', '$more')"),
		$answer, "$function of $what: $answer");
	return;
}

# Start a command in the background, as a single process for all sessions.
sub background
{
	my ($command, @args) = @_;
	my $run = { out => '', err => '' };

	$run->{handle} = IPC::Run::start(
		[ $node->installed_command($command), @args, '-h', $node->host, '-p', $node->port ],
		'<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err},
		IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
	return $run;
}

my $waiting = q{query ~ 'jobq(_internal)?\.(reserve|run_next)|^SELECT take' AND state = 'active' AND wait_event_type = 'Extension'};

sub sessions_wait
{
	my ($count, $dbname) = @_;

	return wait_for($node, "$count sessions wait",
		"SELECT count(*) = $count FROM pg_stat_activity WHERE $waiting AND pid <> pg_backend_pid()");
}

#
# A crash: durable leases are still held, with the same tokens.
#
wait_for_scheduler($node);
hold('durable', '1 hour', qw(kept acked nacked rejected released returned cancelled extended));
hold('durable', '300 ms', 'late');
hold('durable', '10 min', 'extended_late');
hold('memory', '1 hour', qw(forgotten forgotten_acked));
says('extend', 'extended', 'done', q{, '2 hours'});
says('extend', 'extended_late', 'done', q{, '1 hour'});
says('ack', 'acked', 'done');
says('ack', 'forgotten_acked', 'done');
says('nack', 'nacked', 'done', q{, 'no', '0'});
says('reject', 'rejected', 'done', q{, 'no'});
says('release', 'released', 'done', q{, '1 hour'});
says('release', 'returned', 'done');
sql(q{SELECT jobq.cancel(id) FROM held WHERE name = 'cancelled'});
wait_for($node, 'a lease has ended', q{SELECT state('late') = 'retryable 1'});
is_state('nacked', 'ready 1');

foreach my $crash ('immediate stop', 'VACUUM FULL', 'CLUSTER', 'crash of a session', 'restart')
{
	# the rows of the jobs move, without other changes
	my $places = sql('SELECT array_agg(ctid ORDER BY id) FROM jobq_internal.job');
	sql('VACUUM FULL jobq_internal.job') if $crash eq 'VACUUM FULL';
	sql('CLUSTER jobq_internal.job USING job_ready') if $crash eq 'CLUSTER';
	isnt(sql('SELECT array_agg(ctid ORDER BY id) FROM jobq_internal.job'), $places, "$crash: rows have moved")
	  if $crash =~ /^[A-Z ]*$/;

	if ($crash eq 'immediate stop' || $crash =~ /^[A-Z ]*$/)
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif ($crash eq 'restart')
	{
		$node->restart;
	}
	else
	{
		crash_backend($node);
	}
	wait_for($node, "$crash: the leases are there again",
		q{SELECT count(*) = 3 FROM jobq_internal.lease_slots()});
	is_state('kept', 'running 1');
	is_state('extended', 'running 1');
	is_state('extended_late', 'running 1');
	is_state('acked', 'completed 1');
	is_state('nacked', 'ready 1');
	is_state('rejected', 'dead 1');
	is_state('released', 'scheduled 0');
	is_state('returned', 'ready 0');
	is_state('cancelled', 'cancelled 0');
	is_state('late', 'retryable 1');
	is_state('forgotten', 'ready 0');
	is_state('forgotten_acked', 'completed 1');
	says('ack', $_, 'JQ011')
	  foreach qw(acked nacked rejected released returned cancelled late forgotten forgotten_acked);
	says('set_progress', $_, 'done', ', 50') foreach qw(kept extended extended_late);

	# advance the clock beyond the first end of the extended lease
	sql(q{SELECT jobq.test_clock('20 min')});
	wait_for($node, 'the scheduler has looked at the clock',
		q{SELECT wake_at > jobq_internal.clock() FROM jobq_internal.scheduler_state()});
	is_state('extended_late', 'running 1');
	sql(q{SELECT jobq.test_clock('0')});
}

# A lease ends earlier than the scheduler planned to wake.
sql(q{SELECT jobq.create_queue('brief', open => true, mode => 'consumer', lease => 'memory')});
foreach my $early ([ 'timed', q{, timeout => '500 ms'} ], [ 'shortened', '' ])
{
	my ($name, $option) = @$early;

	sql(qq{SELECT jobq.enqueue('work', queue => 'brief', headers => '{"name": "$name"}', backoff => 'fixed 1h'$option)});
	wait_for($node, 'the scheduler sleeps for long',
		q{SELECT wake_at > now() + interval '10 min' FROM jobq_internal.scheduler_state()});
	sql(q{INSERT INTO held SELECT headers ->> 'name', id, token FROM jobq.reserve('{brief}', 1, '55 min', '1 min')});
	if ($name eq 'shortened')
	{
		wait_for($node, 'the scheduler knows of the lease',
			q{SELECT wake_at > now() + interval '10 min' FROM jobq_internal.scheduler_state()});
		says('extend', $name, 'done', q{, '300 ms'});
	}
	wait_for($node, 'the lease has ended', "SELECT state('$name') = 'retryable 1'");
}

is( sql(q{SELECT running FROM jobq.workers WHERE type = 'consumer'}),
	'3', 'the view knows who holds them');
is( sql(q{SELECT headers ->> 'name', attempt FROM jobq.reserve('{memory}', 10, wait => '5 min')}),
	'forgotten|1', 'a lease in memory has not charged the attempt');
is( sql(q{SELECT headers ->> 'name', attempt FROM jobq.reserve('{durable}', 10, wait => '5 min')}),
	"returned|1\nnacked|2", 'nothing else can be had');
says('ack', $_, 'done') foreach qw(kept extended extended_late);

# The reservation of an open transaction is gone after a crash.
sql(q{SELECT jobq.enqueue('work', queue => 'durable', headers => '{"name": "open"}')});
my $open = $node->background_psql('postgres', on_error_stop => 0);
is($open->query(q{BEGIN; SELECT headers ->> 'name', attempt FROM jobq.reserve('{durable}', wait => '5 min')}),
	'open|1', 'reserved in an open transaction');
$node->stop('immediate');
eval { $open->{run}->finish };
$node->start;
wait_for_scheduler($node);
is(sql(q{SELECT headers ->> 'name', attempt FROM jobq.reserve('{durable}', wait => '5 min')}),
	'open|1', 'its reservation was never there');

# A release in memory and an extension are concurrent, after the queue became durable.  The scheduler
# must not delete a row of the extension before the crash.
sql(q{SELECT jobq.create_queue('turned', open => true, mode => 'consumer', lease => 'memory')});
foreach my $first ('extend', 'release')
{
	sql(q{SELECT jobq.alter_queue('turned', lease => 'memory')});
	hold('turned', '1 hour', "$first first");
	sql(q{SELECT jobq.alter_queue('turned', lease => 'durable')});
	my ($change, $lock) = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
	if ($first eq 'extend')
	{
		$change->query_safe(q{BEGIN; SELECT jobq.extend(id, token, '2 hours') FROM held WHERE name = 'extend first'});
		$lock->query_until(qr/begun/, "\\echo begun\nBEGIN;\nLOCK TABLE jobq_internal.lease IN SHARE MODE;\n");
		wait_for($node, 'the lock waits for the extension, unless nothing was written',
			q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'jobq_internal.lease'::regclass AND mode = 'ShareLock'});
		says('release', 'extend first', 'done');
	}
	else
	{
		$change->query_safe(q{BEGIN; SELECT jobq.release(id, token) FROM held WHERE name = 'release first'});
		says('extend', 'release first', 'done', q{, '2 hours'});
		$lock->query_safe('BEGIN; LOCK TABLE jobq_internal.lease IN SHARE MODE');
	}
	# an extension fails at commit, because the lease has ended
	$first eq 'extend' ? $change->query('COMMIT') : $change->query_safe('COMMIT');
	$lock->query_safe('SELECT 1');
	$node->stop('immediate');
	eval { $_->{run}->finish } foreach $change, $lock;
	$node->start;
	wait_for_scheduler($node);
	is_state("$first first", 'ready 0');
	sql(q{SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'turned' AND finished_at IS NULL});
}

# Leases end while the server is down.  A consumer could not acknowledge meanwhile, so the time of
# the lease counts again from the start of the server.
hold('durable', '1 hour', qw(down));
my $limited = sql(q{SELECT jobq.enqueue('work', queue => 'durable', timeout => '1 hour')});
sql(q{INSERT INTO held SELECT 'limited', id, token FROM jobq.reserve('{durable}', lease => '1 hour', wait => '5 min')});
sql(q{UPDATE jobq_internal.lease SET since = since - interval '2 hours', lease_until = lease_until - interval '2 hours'});
my $last = sql(q{SELECT jobq.enqueue('work', queue => 'durable', max_attempts => 1)});
sql(q{INSERT INTO held SELECT 'last', id, token FROM jobq.reserve('{durable}', lease => '500 ms', wait => '5 min')});
$node->stop('immediate');
select(undef, undef, undef, 0.6);
$node->start;
wait_for_scheduler($node);
says('ack', $_, 'done') foreach qw(down limited);
wait_for($node, 'who does not come is charged, after as long as the lease was', q{SELECT state('last') = 'dead 1'});
is(sql("SELECT sqlstate FROM jobq.dead_letters WHERE id = $last"),
	'JQ012', 'a dead letter of an ended lease');
says('ack', 'last', 'JQ011');
sql(q{TRUNCATE held; SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL});

# A row of leases points to a place where a newer version of the job now lies.
sql('VACUUM FULL jobq_internal.job');
hold('durable', '1 hour', 'same place');
my $place = sql('SELECT id, ctid FROM jobq_internal.job');
wait_for($node, 'no other row of leases is left', 'SELECT count(*) = 1 FROM jobq_internal.lease');
my $scheduler = scheduler_pid($node);
stop_at_rest($node, $scheduler);	# so that this one stays
says('nack', 'same place', 'done', q{, 'no', '0'});
sql('VACUUM FULL jobq_internal.job');
is(sql('SELECT id, ctid FROM jobq_internal.job'), $place, 'it lies at the same place');
my $log = -s $node->logfile;
signal_process('KILL', $scheduler);
wait_for_restart($node, $log);
wait_for_scheduler($node);
is_state('same place', 'ready 1');
says('ack', 'same place', 'JQ011');
sql(q{TRUNCATE held; SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL});

#
# Tokens of a job increase, across crashes that lose unflushed WAL, and independent of the clock.
#
sub next_token
{
	my ($id) = @_;

	return sql(qq{SET synchronous_commit = off;
		SELECT token FROM jobq.reserve('{memory}', wait => '5 min') WHERE id = $id});
}
my $fenced = sql(q{SELECT jobq.enqueue('work', queue => 'memory')});
my $token = next_token($fenced);
cmp_ok($token, '<', 2**53, 'tokens are exact in JavaScript');
foreach my $what ('another lease', 'crash', 'crash', 'put ahead of the clock', 'crash')
{
	my $before = $token;

	if ($what eq 'crash')
	{
		# assign more tokens than a sequence logs ahead
		sql(q{SET synchronous_commit = off; SELECT jobq.enqueue('work', queue => 'memory') FROM generate_series(1, 70);
			DO $$ BEGIN FOR i IN 1..70 LOOP PERFORM jobq.ack(id, token) FROM jobq.reserve('{memory}', wait => '5 min'); END LOOP; END $$});
		$before = sql(q{SET synchronous_commit = off; SELECT jobq.enqueue('work', queue => 'memory');
			SELECT token FROM jobq.reserve('{memory}', wait => '5 min')}) =~ s/.*\n//r;
		$node->stop('immediate');
		$node->start;
		sql("SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL AND id <> $fenced");
	}
	elsif ($what eq 'put ahead of the clock')
	{
		$before = 4_000_000_000_000_000;
		sql("SELECT jobq.release($fenced, $token), setval('jobq_internal.lease_token_seq', $before)");
		$node->restart;
	}
	else
	{
		sql("SELECT jobq.release($fenced, $token)");
	}
	wait_for_scheduler($node);
	$token = next_token($fenced);
	cmp_ok($token, '>', $before, "token: $what");
}
my $aside = sql('SELECT last_value FROM jobq_internal.lease_token_seq');
cmp_ok($aside, '>', $token, 'tokens are set aside');
sql(q{SELECT jobq.test_clock('1 hour')});
wait_for($node, 'and more when some were given', "SELECT last_value > $aside FROM jobq_internal.lease_token_seq");
sql(qq{SELECT jobq.test_clock('0'); SELECT jobq.cancel($fenced)});

#
# Waiting sessions.
#
my $pgbench_script = $node->basedir . '/reserve.sql';
append_to_file($pgbench_script,
	q{SELECT id, token FROM jobq.reserve('{durable}', wait => '10 min') \\gset
SELECT jobq.ack(:id, :token);
});
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_until(qr/begun/, qq{\\echo begun\nSELECT id, token FROM jobq.reserve('{durable}', wait => '10 min');\n});
sessions_wait(1);
is( sql("SELECT backend_xid IS NULL, backend_xmin IS NULL FROM pg_stat_activity WHERE $waiting"),
	't|t', 'who waits holds no snapshot');
sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE $waiting");
$session->query_until(qr/still here/, "\\echo still here\n");
like($session->{stderr}, qr/canceling statement due to user request/, 'a cancel ends the wait');
$session->{stderr} = '';
my ($rc, $out, $err) = $node->psql('postgres',
	q{SET statement_timeout = '100ms'; SELECT * FROM jobq.reserve('{durable}', wait => '10 min')});
like($err, qr/canceling statement due to statement timeout/, 'so does statement_timeout');
$session->query_until(qr/begun/, qq{\\echo begun\nSELECT id, token FROM jobq.reserve('{durable}', wait => '10 min');\n});
sessions_wait(1);
sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $waiting");
sessions_wait(0);
eval { $session->{run}->finish };
wait_for($node, 'nothing is held by who has gone', 'SELECT count(*) = 0 FROM jobq_internal.lease_slots()');

# VACUUM removes the rows seen only by waiting sessions, except rows needed by an open cursor.
foreach my $cursor (0, 1)
{
	sql(q{DROP TABLE IF EXISTS seen; CREATE TABLE seen AS SELECT generate_series(1, 3) n});
	$session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT n FROM seen') if $cursor;
	$session->query_until(qr/begun/, qq{\\echo begun\nSELECT id, token FROM jobq.reserve('{durable}', wait => '10 min') \\gset\n});
	sessions_wait(1);
	sql('DELETE FROM seen');
	if ($cursor)
	{
		sql('VACUUM seen');
	}
	else
	{
		# another session may hold a snapshot for a moment
		my $limit = time() + $PostgreSQL::Test::Utils::timeout_default;
		do { sql('VACUUM seen') }
		  until sql(q{SELECT pg_relation_size('seen')}) == 0 || time() > $limit;
		is(sql(q{SELECT pg_relation_size('seen')}), '0', 'VACUUM does not mind who waits');
	}
	sql(q{SELECT jobq.enqueue('work', queue => 'durable')});
	is($session->query_safe('FETCH ALL c'), "1\n2\n3", 'an open cursor sees what it saw') if $cursor;
	$session->query_safe('COMMIT') if $cursor;
	$session->query_safe('SELECT jobq.ack(:id, :token)');
	$session->quit;
}

# DROP DATABASE.
sql('CREATE DATABASE doomed');
$node->safe_psql('doomed', q{CREATE EXTENSION jobq; SELECT jobq.create_queue('durable', open => true, mode => 'consumer')});
wait_for_scheduler($node, 'doomed');
$session = $node->background_psql('doomed', on_error_stop => 0);
$session->query_until(qr/begun/, qq{\\echo begun\nSELECT count(*) FROM jobq.reserve('{durable}', wait => '10 min');\n});
sessions_wait(1);
sql('DROP DATABASE doomed WITH (FORCE)');
sessions_wait(0);
eval { $session->{run}->finish };
# a new database may get the same slot, and its jobs have the same ids
foreach my $round (1, 2)
{
	sql('CREATE DATABASE doomed');
	$node->safe_psql('doomed', q{CREATE EXTENSION jobq; SELECT jobq.create_queue('durable', open => true, mode => 'consumer')});
	wait_for_scheduler($node, 'doomed');
	is( $node->safe_psql('doomed', q{SELECT jobq.enqueue('work', queue => 'durable') FROM generate_series(1, 3);
		SELECT count(*) FROM jobq.reserve('{durable}', 3, '1 hour', '1 min')}),
		"1\n2\n3\n3", "round $round: a new database has nothing of an old one");
	sql('DROP DATABASE doomed WITH (FORCE)');
}

# A consumer may be active before the launcher has seen the extension.
{
	my $launcher = launcher_pid($node);

	sql('CREATE DATABASE doomed');
	stop_at_rest($node, $launcher);
	$node->safe_psql('doomed', q{CREATE EXTENSION jobq; SELECT jobq.create_queue('durable', open => true, mode => 'consumer')});
	$node->safe_psql('doomed', q{SELECT jobq.enqueue('work', queue => 'durable')});
	$node->safe_psql('doomed', q{
		CREATE FUNCTION tells(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(running) FROM jobq.limits $$;
		SELECT jobq.register('tells', 'tells(jsonb)'), jobq.create_queue('manual', open => true, max_running => 1)});
	my $limited = $node->safe_psql('doomed', q{SELECT jobq.enqueue('tells', queue => 'manual')});
	my $worker = background('psql', '-XAtq', '-d', 'doomed', '-c', q{SELECT jobq_internal.run_next('{manual}')});
	my $early = background('psql', '-XAtq', '-d', 'doomed', '-c',
		q{SELECT id FROM jobq.reserve('{durable}', wait => '5 min')});
	sessions_wait(2);
	signal_process('CONT', $launcher);
	$_->{handle}->finish foreach $early, $worker;
	is($early->{out}, "1\n", 'a consumer is there before the launcher') or diag($early->{err});
	is($node->safe_psql('doomed', "SELECT (jobq.status($limited)).result"),
		'1', 'run_next() waits for it, and keeps to the limit')
	  or diag($worker->{err});
	sql('DROP DATABASE doomed WITH (FORCE)');
}

# Many sessions wait without using the processor.
sub switches
{
	my %switches;
	foreach my $pid (split /\n/, sql("SELECT pid FROM pg_stat_activity WHERE $waiting"))
	{
		($switches{$pid}) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;
	}
	return %switches;
}
my $many = background('pgbench', '-n', '-c', '90', '-t', '1', '-f', $pgbench_script, 'postgres');
sessions_wait(90);
SKIP:
{
	skip 'no /proc that tells of context switches', 1
	  unless -r '/proc/self/status'
	  && slurp_file('/proc/self/status') =~ /^voluntary_ctxt_switches/m;

	# the last sessions may not sleep yet; a polling session would wake up in each interval
	my %awake = switches();
	for (my $try = 1; $try <= 10 && %awake; $try++)
	{
		my %before = switches();
		sql('SELECT pg_sleep(2)');
		my %after = switches();
		%awake = map { $_ => 1 } grep { $after{$_} != ($before{$_} // 0) } grep { $awake{$_} } keys %after;
	}
	is(scalar keys %awake, 0, 'nobody of those who wait wakes up');
}
is(sql("SELECT count(*) FROM pg_stat_activity WHERE $waiting AND backend_xmin IS NOT NULL"),
	'0', 'nor holds a snapshot');
sql(q{SELECT jobq.enqueue('work', queue => 'durable', priority => i % 3) FROM generate_series(1, 90) i});
$many->{handle}->finish;
like($many->{out}, qr{processed: 90/90}, 'each has got one') or diag($many->{err});
is(sql('SELECT count(*) FROM jobq_internal.job'), '0', 'and no job is left');

# Each session is woken for its permitted jobs.
foreach my $mine ('alice', 'bob')
{
	my $other = $mine eq 'alice' ? 'bob' : 'alice';
	my %run = map {
		$_ => background('psql', '-XAtq', '-U', $_, '-d', 'postgres', '-c',
			q{SELECT payload FROM jobq.reserve('{memory,durable}', wait => '10 min')})
	} ($other, $mine);
	sessions_wait(2);
	sql("SET ROLE $mine; SELECT jobq.enqueue('work', to_jsonb('$mine'::text), 'durable')");
	$run{$mine}->{handle}->finish;
	is($run{$mine}->{out}, qq{"$mine"\n}, "a job of $mine is for $mine");
	sessions_wait(1);
	sql("SET ROLE $other; SELECT jobq.enqueue('work', to_jsonb('$other'::text), 'memory')");
	$run{$other}->{handle}->finish;
	is($run{$other}->{out}, qq{"$other"\n}, "the next, of $other, is for $other");
}
sql(q{SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL});

# Sessions are cancelled just after being woken: another session claims the job.
sql(q{
CREATE FUNCTION take() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	job jobq.reserved_job;
BEGIN
	SELECT * INTO job FROM jobq.reserve('{durable}', wait => '10 min');
	PERFORM jobq.ack(job.id, job.token);
EXCEPTION WHEN query_canceled THEN
	NULL;
END $$});
my $take = $node->basedir . '/take.sql';
append_to_file($take, "SELECT take();\n" x 3000);
my @takers = map { background('psql', '-XAtq', '-d', 'postgres', '-f', $take) } 1 .. 6;
my $produce = $node->basedir . '/produce.sql';
append_to_file($produce, q{SELECT jobq.enqueue('work', queue => 'durable') AS id \gset
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query ~ 'take' AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3;
SELECT 1 / (finished_at IS NOT NULL)::int FROM jobq.wait(:id, '5 min');
});
$node->command_like(
	[ 'pgbench', '-n', '-c', '1', '-t', '500', '-f', $produce, 'postgres' ],
	qr{processed: 500/500}, 'no wake-up is lost with who is cancelled');
is(sql('SELECT count(*) FROM jobq_internal.job'), '0', 'no job is left');

# A waiting session ends at once after the death of the client.
my $long = sql(q{SELECT jobq.enqueue('work', queue => 'memory', delay => '1 hour')});
sql(q{SELECT jobq.enqueue('work', queue => 'memory')});
my @dying = map { background('psql', '-XAtq', '-d', 'postgres', '-c', $_) } (
	q{SELECT * FROM jobq.reserve('{durable}', wait => '10 min') /* dying */},
	q{DO $$ BEGIN PERFORM * FROM jobq.reserve('{durable}', wait => '10 min'); /* dying */ END $$},
	qq{SELECT * FROM jobq.wait($long, '10 min') /* dying */},
	q{SELECT jobq.wait_queue('memory', '10 min') /* dying */});
my $dying = q{SELECT count(*) = %d FROM pg_stat_activity WHERE query ~ '[d]ying' AND state = 'active' AND wait_event_type = 'Extension'};
wait_for($node, 'they wait', sprintf($dying, scalar @dying));
$_->{handle}->signal('KILL') foreach @dying;
wait_for($node, 'no session outlives its client',
	q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ '[d]ying'});
$_->{handle}->finish foreach @dying;
like(slurp_file($node->logfile), qr/connection to client lost/, 'the log tells why');
sql(q{SELECT jobq.cancel(id) FROM jobq.jobs WHERE queue = 'memory' AND finished_at IS NULL});

# A dead client does not get a job, even if its session has not noticed yet.
sessions_wait(6);
$_->{handle}->kill_kill foreach @takers;
my $id = sql(q{SELECT jobq.enqueue('work', queue => 'durable')});
is(sql(q{SELECT id FROM jobq.reserve('{durable}', wait => '5 min')}),
	$id, 'a job does not go to a client that has died');

# More garbage rows of leases than the scheduler notes are removed at once.  Rows of other leases
# stay.
hold('memory', '1 hour', 'in memory');
hold('durable', '1 hour', 'durable');
sql(q{SELECT count(*) FROM jobq.enqueue_many('work', array_fill('{}'::jsonb, ARRAY[2100]), queue => 'durable', headers => '{"name": "many"}')});
sql(q{DO $$ BEGIN FOR i IN 1..2100 LOOP INSERT INTO held SELECT 'many', id, token FROM jobq.reserve('{durable}', lease => '1 hour', wait => '5 min'); END LOOP; END $$});
sql(q{VACUUM FULL jobq_internal.lease});
sql(q{SELECT jobq.ack_many(array_agg(id), array_agg(token)) FROM held WHERE name = 'many'});
wait_for($node, 'the rows are gone', 'SELECT count(*) < 10 FROM jobq_internal.lease');
is(sql(q{SELECT count(*) FROM jobq_internal.lease JOIN held USING (token) WHERE name = 'durable'}),
	1, 'but that of a lease that is held');
says('ack', $_, 'done') foreach ('in memory', 'durable');

# Moved rows are found.
hold('durable', '1 hour', 'moved');
sql(q{DELETE FROM jobq_internal.lease WHERE token NOT IN (SELECT token FROM held WHERE name = 'moved'); VACUUM FULL jobq_internal.lease});
says('ack', 'moved', 'done');
wait_for($node, 'a row that has moved is gone', 'SELECT count(*) = 0 FROM jobq_internal.lease');

# The database is not served for a while, during an open transaction that has extended a lease.
# Forgotten state must not be given back.
sql(q{SELECT jobq.create_queue('served', open => true, mode => 'consumer')});
hold('served', '1 hour', 'across');
$session = $node->background_psql('postgres');
$session->query_safe(q{BEGIN; SELECT jobq.extend(id, token, '3 hours') FROM held WHERE name = 'across'});
$node->safe_psql('postgres', q{ALTER SYSTEM SET jobq.databases = 'doomed'});
$node->reload;
wait_for($node, 'nothing is held where nobody serves', 'SELECT count(*) = 0 FROM jobq_internal.lease_slots()');
$node->safe_psql('postgres', q{ALTER SYSTEM RESET jobq.databases});
$node->reload;
wait_for($node, 'the lease is there again', q{SELECT EXISTS (SELECT FROM jobq_internal.lease_slots() JOIN held ON id = job_id WHERE name = 'across')});
$session->query_safe('COMMIT');
$session->quit;
is( sql(q{SELECT lease_until > now() + interval '2 hours' FROM jobq_internal.lease_slots() JOIN held ON id = job_id WHERE name = 'across'}),
	't', 'and lasts as long as was said');
hold('served', '1 hour', 'other');
says('ack', $_, 'done') foreach qw(across other);
is(sql(q{SELECT count(*) FROM jobq_internal.lease_slots() JOIN held ON id = job_id WHERE name IN ('across', 'other')}),
	0, 'each lease has ended once');

# Listeners are notified of a job that returns to the queue, for each way to return.
my $listener = $node->background_psql('postgres');
sql(q{SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE queue IN ('durable', 'memory')});
$listener->query_safe('LISTEN jobq_queue_durable; LISTEN jobq_queue_memory');
foreach my $queue ('durable', 'memory')
{
	my $told;

	foreach my $what ('enqueue', 'release', 'rollback')
	{
		if ($what eq 'enqueue')
		{
			sql("SELECT jobq.enqueue('work', queue => '$queue')");
		}
		elsif ($what eq 'release')
		{
			sql(qq{INSERT INTO held SELECT 'back to $queue', id, token FROM jobq.reserve('{$queue}', lease => '1 hour', wait => '5 min')});
			says('release', "back to $queue", 'done');
		}
		else
		{
			sql(qq{BEGIN; SELECT FROM jobq.reserve('{$queue}', wait => '5 min'); ROLLBACK});
		}
		$told = '';
		for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
		{
			$told = $listener->query('SELECT 1');
			last if $told =~ /notification "jobq_queue_$queue"/;
			select(undef, undef, undef, 0.1);
		}
		like($told, qr/notification "jobq_queue_$queue"/, "$queue: told of a job after its $what");
	}
}
$listener->quit;

# A waiting session also gets jobs that became permitted during the wait.
sql(q{SELECT jobq.create_queue('granted', open => true, mode => 'consumer')});
foreach my $grant (
	q{SELECT jobq.grant_privilege('bob', 'consume', 'granted')}, q{GRANT alice TO bob},
	q{SELECT jobq.grant_privilege('bob', 'consume')})
{
	my $job = sql(q{SET ROLE alice; SELECT jobq.enqueue('work', queue => 'granted')}) =~ s/.*\n//r;
	my $bob = background('psql', '-XAtq', '-U', 'bob', '-d', 'postgres', '-c',
		q{SELECT id FROM jobq.reserve('{granted}', wait => '50 min')});

	sessions_wait(1);
	sql($grant);
	$bob->{handle}->finish;
	is($bob->{out}, "$job\n", "got by $grant") or diag($bob->{err});
	sql(q{SELECT jobq.revoke_privilege('bob', 'consume', 'granted'), jobq.revoke_privilege('bob', 'consume'); REVOKE alice FROM bob});
	sql("SELECT jobq.cancel($job)");
}

# A call that would wait is refused at once if the role may not use a queue.  The message does not say that
# the queue is missing.  A right revoked during the wait gives no further job.
sql(q{SELECT jobq.create_queue('closed', mode => 'consumer')});
sub refused
{
	my ($queues, $message, $what) = @_;
	my (undef, undef, $stderr) = $node->psql('postgres', "SELECT id FROM jobq.reserve('$queues', wait => '50 min')",
		extra_params => [ '-U', 'bob' ]);

	like($stderr, qr/^psql:<stdin>:1: ERROR:  $message\n/, $what);
	return unlike($stderr, qr/create_queue/, "$what: nobody is told to create a queue");
}
refused('{closed}', 'permission denied for queue "closed"', 'a closed queue');
refused('{granted,closed}', 'permission denied for queue "closed"', 'a closed queue behind another');
sql(q{SELECT jobq.grant_privilege('bob', 'consume', 'closed')});
{
	my $bob = background('psql', '-XAtq', '-U', 'bob', '-d', 'postgres', '-c',
		q{SELECT id FROM jobq.reserve('{closed}', wait => '50 min')});

	sessions_wait(1);
	sql(q{SELECT jobq.revoke_privilege('bob', 'consume', 'closed')});
	my $job = sql(q{SELECT jobq.enqueue('work', queue => 'closed')});
	is(sql(q{SELECT id FROM jobq.reserve('{closed}', wait => '5 min')}), $job, 'a job is not handed off to who has lost the right');
	sessions_wait(1);
	sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE $waiting");
	$bob->{handle}->finish;
	is($bob->{out}, '', 'who has lost the right gets nothing');
	sql("SELECT jobq.cancel($job)");
}
refused('{closed}', 'permission denied for queue "closed"', 'a right that was revoked');
sql(q{SELECT jobq.revoke_privilege('bob')});
refused('{closed}', 'permission denied for jobq', 'a role without any right');
refused('{missing}', 'permission denied for jobq', 'a missing queue');
sql(q{SELECT jobq.grant_privilege('bob')});

# No lease of a dropped extension is left.  The scheduler may not have noticed the drop before the
# next extension exists, with jobs of the same ids.
my $anew = q{
DROP EXTENSION jobq CASCADE;
CREATE EXTENSION jobq;
SELECT jobq.create_queue('anew', open => true, mode => 'consumer');
SELECT jobq.enqueue('work', queue => 'anew') FROM generate_series(1, 3);
};
my $taken = q{SELECT string_agg(id::text, ' ' ORDER BY id) FROM jobq.reserve('{anew}', 10, lease => '1 hour', wait => '5 min')};
sql($anew);
is(sql($taken), '1 2 3', 'a new extension begins anew');
sql($anew);
is(sql($taken), '1 2 3', 'also where the jobs of the last one are leased');
is(sql('SELECT count(*) FROM jobq_internal.lease'), '1', 'and has leases of its own');

# Expired leases do not block other leases if an open transaction has acknowledged the jobs.
sql(q{SELECT jobq.create_queue('mine', mode => 'consumer'), jobq.create_queue('yours', mode => 'consumer');
SELECT count(jobq.enqueue('work', queue => 'mine')) FROM generate_series(1, 2100)});
my $acks = $node->background_psql('postgres');
$acks->query_safe(q{CREATE TEMP TABLE mine (id bigint, token bigint);
SET client_min_messages = warning;
DO $$
BEGIN
	WHILE (SELECT count(*) < 2100 FROM mine) LOOP
		INSERT INTO mine SELECT id, token FROM jobq.reserve('{mine}', 1000, lease => '1 min', wait => '5 min');
		COMMIT;
	END LOOP;
END $$;
BEGIN;
SELECT count(jobq.ack(id, token)) FROM mine});
sql(q{SELECT jobq.enqueue('work', queue => 'yours')});
my $yours = sql(q{SELECT id FROM jobq.reserve('{yours}', lease => '1 min', wait => '5 min')});
sql(q{SELECT jobq.test_clock('2 min')});
wait_for($node, 'a lease ends behind two thousand that cannot end', "SELECT state <> 'running' FROM jobq.status($yours)");
$acks->query_safe('COMMIT');
$acks->quit;
is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'mine'}), 0, 'and they end with the transaction');
sql(q{SELECT jobq.test_clock('0'); SELECT jobq.cancel_many(queue => 'yours', state => 'waiting')});

# The client address of consumers.
sql(q{SELECT jobq.enqueue('work', queue => 'anew') FROM generate_series(1, 2)});
sql(q{SELECT FROM jobq.reserve('{anew}', 1, consumer => 'near', wait => '5 min')});
$node->safe_psql(
	'postgres',
	q{SELECT FROM jobq.reserve('{anew}', 1, consumer => 'far', wait => '5 min')},
	connstr => sprintf(q{host=127.0.0.1 port=%d dbname=postgres}, $node->port));
is( sql(q{SELECT consumer, client FROM jobq.workers WHERE consumer IN ('near', 'far') ORDER BY 1}),
	"far|127.0.0.1\nnear|", 'a consumer has an address, unless its connection has none');

# In a database with another encoding, a text may not be convertible for the consumer.  A job with
# this text becomes a dead letter and does not block other jobs.
foreach my $case ([ 'ascii', 'SQL_ASCII', 233 ], [ 'win', 'WIN1252', 129 ])
{
	my ($db, $encoding, $byte) = @$case;
	local $ENV{PGCLIENTENCODING} = 'UTF8';
	my $ask = sub { return $node->safe_psql($db, $_[0]); };

	sql("CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LOCALE 'C'");
	$node->safe_psql($db, q{CREATE EXTENSION jobq; SELECT jobq.create_queue('c', mode => 'consumer')});
	wait_for_scheduler($node, $db);
	my $odd = "convert_from(decode(to_hex($byte), 'hex'), getdatabaseencoding())";
	$ask->(qq{
		SELECT jobq.enqueue('payload', to_jsonb($odd), 'c'), jobq.enqueue('header', '{}', 'c', headers => jsonb_build_object('from', $odd)),
			jobq.enqueue('group', to_jsonb($odd), 'c', group_key => 'g'), jobq.enqueue('kind' || $odd, '{}', 'c'),
			jobq.enqueue('later', '{}', 'c', group_key => 'g'), jobq.enqueue('good', '{}', 'c')});
	is($ask->(q{SELECT kind, payload FROM jobq.reserve('{c}', 10, wait => '1 min')}), $_, "$encoding: who reads UTF-8 gets what he can read")
	  foreach 'good|{}', 'later|{}';
	is($ask->(q{SELECT string_agg(DISTINCT concat_ws(' ', attempt, sqlstate, error), ',') FROM jobq.dead_letters}),
		'0 22021 the job has a text that a consumer whose client_encoding is "UTF8" cannot be sent', "$encoding: all else is a dead letter");
	is($ask->(q{SELECT count(*) FROM jobq.dead_letters}), '4', "$encoding: all of it");
	local $ENV{PGCLIENTENCODING} = $encoding;
	$ask->(q{SELECT jobq.retry(id) FROM jobq.dead_letters});
	is($ask->(q{SELECT count(*) FROM (SELECT kind, payload FROM jobq.reserve('{c}', 10, wait => '1 min')) AS r}), '3',
		"$encoding: who reads this encoding gets them, but for that of the group");
}

$node->stop;
no_failed_assertion($node);
done_testing();
