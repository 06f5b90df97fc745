# Limits, groups and weights under load: many workers and consumers, some of them terminated,
# and servers which crash.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=8'
jobq.ready_entries = 1024
max_connections = 120
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE SEQUENCE violation;
CREATE TABLE run (id bigint, began timestamptz, ended timestamptz);
-- One of seven places, or a violation; held until the transaction ends.
CREATE FUNCTION work(id bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
	found boolean := false;
BEGIN
	FOR i IN 1..7 LOOP
		found := pg_try_advisory_xact_lock(7, i);
		EXIT WHEN found;
	END LOOP;
	IF NOT found THEN
		PERFORM nextval('violation');
	END IF;
	PERFORM pg_sleep(0.02);
	INSERT INTO run VALUES (id, began, clock_timestamp());
END $$;
CREATE FUNCTION handler(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$ SELECT work(job.id) $$;
CREATE PROCEDURE consume(queue text) LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	SELECT r.id, r.token INTO job FROM jobq.reserve(ARRAY[queue], 1, '1 min', '2 s', pg_backend_pid()::text) r;
	COMMIT;
	IF job.id IS NOT NULL THEN
		PERFORM work(job.id);
		PERFORM jobq.ack(job.id, job.token);
	END IF;
END $$;
SELECT jobq.create_queue('workers'), jobq.create_queue('consumers', mode => 'consumer');
-- The consumers that wait, each with what tells its wait from its next one.
CREATE FUNCTION that_wait() RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_stat_clear_snapshot();
	RETURN ARRAY(SELECT pid || ' ' || query_start FROM pg_stat_activity WHERE query ~ '^CALL consume' AND wait_event_type = 'Extension');
END $$;
-- From the moment when all seven places are taken, and so many consumers wait,
-- until few jobs are left: how often there were fewer, although somebody waited
-- for jobs that were there, or more, of so many looks.
CREATE FUNCTION look(consumers int, OUT looks int, OUT fewer int, OUT more int) LANGUAGE plpgsql AS $$
DECLARE
	now_running int;
	waiting text[];
BEGIN
	looks := 0;
	fewer := 0;
	more := 0;
	LOOP
		waiting := that_wait();
		now_running := (SELECT running FROM jobq_internal.limit_slots() WHERE running IS NOT NULL);
		IF looks > 0 OR (now_running = 7 AND cardinality(waiting) >= consumers) THEN
			looks := looks + 1;
			fewer := fewer + (now_running < 7 AND (SELECT ready_entries > 0 FROM jobq_internal.scheduler_state()) AND
				(consumers = 0 OR waiting && that_wait()))::int;
			more := more + (now_running > 7)::int;
		END IF;
		PERFORM pg_sleep(0.0005);
		EXIT WHEN looks % 20 = 0 AND (SELECT count(*) < 60 FROM jobq_internal.job);
	END LOOP;
END $$;

CREATE TABLE step (n bigint GENERATED ALWAYS AS IDENTITY, g int, i int);
CREATE FUNCTION step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF NOT pg_try_advisory_xact_lock(8, (payload ->> 'g')::int) THEN
		PERFORM nextval('violation');
	END IF;
	IF job.attempt <= coalesce((payload ->> 'fails')::int, 0) THEN
		RAISE EXCEPTION 'attempt %', job.attempt;
	END IF;
	INSERT INTO step (g, i) VALUES ((payload ->> 'g')::int, (payload ->> 'i')::int);
END $$;
SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', backoff => 'fixed 1ms');
SELECT jobq.create_queue('groups'), jobq.create_queue('groups2');
-- Jobs 1..n of the groups first..last, interleaved, and over so many queues; some fail at first.
CREATE FUNCTION enqueue_steps(first int, last int, n int, fails int DEFAULT 0, queues int DEFAULT 1) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(jobq.enqueue('step', jsonb_build_object('g', g, 'i', i, 'fails', CASE WHEN (g + i) % 7 = 0 THEN fails ELSE 0 END),
		queue => CASE WHEN (g + i) % 3 < queues - 1 THEN 'groups2' ELSE 'groups' END, group_key => g::text, max_attempts => 100))
	FROM generate_series(1, n) i, generate_series(first, last) g $$;
});

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sub nothing_leaks
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for($node, "$what: nothing is held any more",
		q{SELECT NOT EXISTS (SELECT FROM jobq.limits WHERE running <> 0) AND NOT EXISTS (SELECT FROM jobq_internal.group_slots())});
	is(sql("SELECT last_value FROM violation WHERE is_called"), '', "$what: no violation");
	return;
}

# Fifty consumers, in a single process.
sub consumers
{
	my ($queue, $transactions) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/consume';
	my $run = { out => '' };

	append_to_file($script, "CALL consume('$queue');\n");
	$run->{handle} = IPC::Run::start(
		[ $node->installed_command('pgbench'), '-n', '-c', 50, '-j', 2, '-t', $transactions, '-f', $script,
		  '-h', $node->host, '-p', $node->port, 'postgres' ],
		'<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{out},
		IPC::Run::timeout(3 * $PostgreSQL::Test::Utils::timeout_default));
	return $run;
}

# Terminate backends at random, one after the other, while there is work.
sub terminate
{
	my ($times) = @_;

	sql(qq{DO \$\$ BEGIN
		FOR i IN 1..$times LOOP
			PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND (backend_type = 'jobq worker' OR query ~ '^CALL consume') ORDER BY random() LIMIT 1;
			PERFORM pg_sleep(0.05);
			COMMIT;
		END LOOP; END \$\$});
	return;
}

# Jobs of terminated consumers become available when their leases end.  No other session has a
# lease when the clock is put forward.
my $minutes = 0;

sub end_leases
{
	my ($what) = @_;

	$minutes += 2;
	sql(q{SELECT jobq.pause('workers'), jobq.pause('consumers')});
	wait_for($node, "$what: those that live have done theirs",
		q{SELECT NOT EXISTS (SELECT FROM jobq_internal.lease_slots() WHERE consumer::int IN (SELECT pid FROM pg_stat_activity))});
	sql("SELECT jobq.test_clock('$minutes min')");
	wait_for($node, "$what: leases end", 'SELECT NOT EXISTS (SELECT FROM jobq_internal.lease_slots())');
	sql(q{SELECT jobq.resume('workers'), jobq.resume('consumers')});
	return;
}

#
# max_running = 7 for a queue of workers, a queue of consumers, a kind in both, or a limiter of
# both.  A worker keeps the slot for its next job, and a consumer hands the slot off to a
# waiting consumer.  Therefore the slot is never free.  A slot shared by both may be free until
# a worker wakes up.
#
foreach my $case ('queue of workers', 'queue of consumers', 'kind in both', 'limiter of both')
{
	my $well = $case =~ /both/;
	my $limiter = $case =~ /limiter/ ? 'seven' : '';

	sql(q{SELECT jobq.create_limiter('seven', max_running => 7)}) if $limiter eq 'seven';

	# up to five times, because a session may have left for another reason
	foreach my $time (1 .. 5, 'some are terminated')
	{
		my $kill = $time =~ /some/;
		my $what = "$case, $time";
		my ($w, $c) = (0, 0);
		my $run;

		next if $well && !$kill && $time > 1;

		sql(q{TRUNCATE run});
		sql(q{SELECT jobq.register('work', 'handler(jsonb, jobq.job_context)', backoff => 'fixed 1ms')});
		sql(qq{SELECT jobq.alter_queue('workers', max_running => @{[$case =~ /workers/ ? 7 : 0]}),
			jobq.alter_queue('consumers', max_running => @{[$case =~ /consumers/ ? 7 : 0]}),
			jobq.alter_queue('workers', limiters => '{$limiter}'), jobq.alter_queue('consumers', limiters => '{$limiter}')});
		sql(q{SELECT jobq.register('work', 'handler(jsonb, jobq.job_context)', max_running => 7, backoff => 'fixed 1ms')})
		  if $case =~ /kind/;
		$w = 600 if $case =~ /workers|both/;
		$c = 600 if $case =~ /consumers|both/;
		sql(qq{SELECT count(jobq.enqueue('work', queue => 'workers', max_attempts => 1000)) FROM generate_series(1, $w)});
		sql(qq{SELECT count(jobq.enqueue('work', queue => 'consumers', max_attempts => 1000)) FROM generate_series(1, $c)});
		$run = consumers('consumers', 60) if $c > 0;
		terminate(20) if $kill;
		end_leases($what) if $kill && $c > 0;
		my $looks = $kill ? '' : sql("SELECT looks, fewer, more FROM look(@{[$c > 0 ? 30 : 0]})");
		wait_for($node, "$what: all done",
			q{SELECT NOT EXISTS (SELECT FROM jobq_internal.job WHERE queue_id IN (SELECT id FROM jobq_internal.queue WHERE name IN ('workers', 'consumers')))});
		is(sql(q{SELECT count(*) || ' ' || count(DISTINCT id) FROM run}), ($w + $c) . ' ' . ($w + $c), "$what: each once");
		eval { $run->{handle}->kill_kill } if $run;

		if (!$kill)
		{
			my $mean = sql(q{SELECT round(sum(extract(epoch FROM ended - began)) / extract(epoch FROM max(ended) - min(began)), 2) FROM run
				WHERE began < (SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY began) FROM run)});
			my ($all, $fewer, $more) = split /\|/, $looks;

			note "$what: $mean of 7 run on average; of $all looks, $fewer found a place that was free";
			is($more, 0, "$what: never more than seven");
			$well ||= $fewer == 0;
		}
		wait_for($node, "$what: leases are over", 'SELECT NOT EXISTS (SELECT FROM jobq_internal.lease_slots())');
		nothing_leaks($what);
	}
	ok($well, "$case: a place that is free is taken at once") unless $case =~ /both/;
}
sql(q{SELECT jobq.alter_queue('workers', limiters => '{}'), jobq.alter_queue('consumers', limiters => '{}'), jobq.drop_limiter('seven')});
sql(q{SELECT jobq.register('work', 'handler(jsonb, jobq.job_context)'), jobq.test_clock('0')});

#
# A rate is never exceeded in real time.  sql/ready_limits.sql shows with the test clock that
# the rate is reached.
#
sql(q{TRUNCATE run; ALTER SEQUENCE violation RESTART;
	CREATE TABLE tick (at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION tick() RETURNS void LANGUAGE sql AS 'INSERT INTO tick DEFAULT VALUES';
	SELECT jobq.register('tick', 'tick()', rate => '100 per second')});
my $begin = sql('SELECT clock_timestamp()');
sql(q{SELECT count(jobq.enqueue('tick', queue => 'workers')) FROM generate_series(1, 1000)});
wait_for($node, 'rate: all done', 'SELECT count(*) = 1000 FROM tick');
# the query uses the start times of workers: each of the eight may have been admitted before
is( sql(q{SELECT max(n) <= 100 + 10 + 8 FROM (SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN CURRENT ROW AND '990 ms' FOLLOWING) AS n
	FROM jobq.jobs WHERE kind = 'tick') t}),
	't', 'rate: never more than 100 and the burst in a second');
my $rate = sql(qq{SELECT round((count(*) - 10) / extract(epoch FROM max(at) - '$begin'), 1) FROM tick});
note "rate: $rate per second";
cmp_ok($rate, '<=', 100.1, 'rate: nor on average');

# A fast rate, which the machine reaches: many processes ask at a time, each with its own time,
# and no moment may be counted twice.  The bucket holds 200.
sql(q{CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
	SELECT jobq.create_queue('fast', rate => '2000 per second'), jobq.pause('fast');
	SELECT jobq.register('nothing', 'nothing()');
	SELECT count(*) FROM jobq.enqueue_many('nothing', ARRAY(SELECT '{}'::jsonb FROM generate_series(1, 6000)), queue => 'fast')});
$begin = sql('SELECT clock_timestamp()');
sql(q{SELECT jobq.resume('fast')});
wait_for($node, 'fast rate: all done', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.job WHERE kind = 'nothing')});
my $took = sql(qq{SELECT extract(epoch FROM max(started_at) - '$begin') FROM jobq_internal.archive WHERE kind = 'nothing'});
note "6000 in $took s";
cmp_ok($took, '>=', 5800 / 2000 - 0.005, 'fast rate: never more than the rate and the burst');

#
# Weights between queues of the same rank.
#
sql(q{SELECT jobq.create_queue('heavy', weight => 3), jobq.create_queue('light', weight => 1);
	SELECT jobq.pause('heavy'), jobq.pause('light');
	CREATE TABLE served (n bigint GENERATED ALWAYS AS IDENTITY, queue text);
	CREATE FUNCTION served(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO served (queue) VALUES (payload #>> '{}') $$;
	SELECT jobq.register('served', 'served(jsonb)');
	SELECT count(jobq.enqueue('served', to_jsonb(q), queue => q)) FROM unnest('{heavy,light}'::text[]) q, generate_series(1, 100);
	CREATE FUNCTION busy() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(2)';
	SELECT jobq.register('busy', 'busy()')});
# no worker begins before all jobs are there
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(2)');
sql(q{SELECT count(jobq.enqueue('busy', queue => 'workers')) FROM generate_series(1, 8)});
sleeps($node, 'weights: all workers are busy', 8);
sql(q{SELECT jobq.resume('heavy'), jobq.resume('light')});
wait_for($node, 'weights: both queues are there', 'SELECT ready_entries >= 200 FROM jobq_internal.scheduler_state()');
$holder->quit;
wait_for($node, 'weights: all done', 'SELECT count(*) = 200 FROM served');
is(sql(q{SELECT count(*) FILTER (WHERE queue = 'heavy') BETWEEN 65 AND 85 FROM (SELECT * FROM served ORDER BY n LIMIT 100 OFFSET 20) t}),
	't', 'weights: three to one');
sql(q{SELECT jobq.alter_queue('heavy', weight => 0), jobq.alter_queue('light', weight => 0)});

#
# Groups: more groups than slots, some with thousands of jobs; failures; crashes in between.
#
# In the second half of the rounds, the groups have jobs in two queues.  An outdated entry comes
# up in one of about four rounds; JOBQ_BLOWS is the number of rounds in a half.
my $half = $ENV{JOBQ_BLOWS} // 1;
foreach my $round (1 .. 2 * $half)
{
	my $queues = $round > $half ? 2 : 1;

	sql(q{SELECT jobq.alter_queue(q, group_scope => 'database') FROM unnest('{groups,groups2}'::text[]) q}) if $round == $half + 1;
	sql('TRUNCATE step');
	sql("SELECT enqueue_steps(1, 300, 10, 2, $queues)");
	sql("SELECT enqueue_steps(1001, 1005, 600, 1, $queues)");
	foreach my $crash ('immediate stop', 'terminated workers', 'crash of a session', 'scheduler', 'restart')
	{
		my $before = sql('SELECT count(*) FROM step');

		wait_for($node, "groups: on to the next: $crash", "SELECT count(*) > least($before + 300, 5999) FROM step");
		if ($crash eq 'immediate stop')
		{
			$node->stop('immediate');
			$node->start;
		}
		elsif ($crash eq 'restart')
		{
			$node->restart;
		}
		elsif ($crash eq 'scheduler')
		{
			sql('SELECT pg_terminate_backend(pid) FROM jobq_internal.scheduler_state()');
		}
		elsif ($crash eq 'terminated workers')
		{
			terminate(10);
		}
		else
		{
			crash_backend($node);
		}
	}
	work_off($node, 'groups: all done', 'SELECT 6000 - count(*) FROM step');
	is(sql('SELECT count(DISTINCT (g, i)) FROM step'), 6000, 'groups: each once');
	is( sql(q{SELECT count(*) FROM (SELECT g, i, lag(i, 1, 0) OVER (PARTITION BY g ORDER BY n) AS p FROM step) t WHERE i <> p + 1}),
		0, 'groups: in order');
	nothing_leaks('groups');
}
sql(q{SELECT jobq.alter_queue(q, group_scope => 'queue') FROM unnest('{groups,groups2}'::text[]) q});

#
# All groups wait for a distant retry, and there is no slot for more groups: other jobs go on,
# and the waiting groups come back in time.
#
sql(q{TRUNCATE step; SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', backoff => 'fixed 1h')});
sql(q{SELECT count(jobq.enqueue('step', jsonb_build_object('g', g, 'i', i, 'fails', CASE i WHEN 1 THEN 1 END), queue => 'groups', group_key => g::text))
	FROM generate_series(1, 2) i, generate_series(1, 200) g});
wait_for($node, 'full: all places wait for a retry', 'SELECT count(*) = 56 FROM jobq_internal.group_slots() WHERE waits_for IS NOT NULL');
sql(q{SELECT jobq.enqueue('step', '{"g": 0, "i": 1}', queue => 'groups')});
wait_for($node, 'full: a job without a group passes by', 'SELECT count(*) = 1 FROM step');
sql(q{SELECT jobq.retry(id) FROM jobq.jobs WHERE state = 'retryable' LIMIT 1});
wait_for($node, 'full: a group goes on', 'SELECT count(*) = 3 FROM step');
$node->stop('immediate');
$node->start;
wait_for($node, 'full: after a crash, the groups still wait', 'SELECT count(*) >= 55 FROM jobq_internal.group_slots() WHERE waits_for IS NOT NULL');
sql(q{SELECT jobq.test_clock('61 min')});
wait_for($node, 'full: the next', 'SELECT count(*) > 100 FROM step');
sql(q{SELECT jobq.test_clock('122 min')});
foreach my $hours (3 .. 20)
{
	my $minutes = 61 * $hours;

	last if sql('SELECT count(*) = 401 FROM step') eq 't';
	wait_for($node, "full: hour $hours",
		q{SELECT count(*) = 401 OR (SELECT count(*) FROM jobq_internal.group_slots() WHERE waits_for IS NOT NULL) >=
			least(56, (SELECT count(*) FROM jobq_internal.job WHERE kind = 'step' AND run_at > jobq_internal.clock())) FROM step});
	sql("SELECT jobq.test_clock('$minutes min')");
}
wait_for($node, 'full: all done', 'SELECT count(*) = 401 FROM step');
is(sql(q{SELECT count(*) FROM (SELECT g, i, lag(i, 1, 0) OVER (PARTITION BY g ORDER BY n) AS p FROM step) t WHERE i <> p + 1}), 0, 'full: in order');
nothing_leaks('full');

#
# Roles with backlogs take turns for the only slot of a queue.  The slot is held until each role
# has a waiting worker.
#
sql(q{CREATE ROLE anna LOGIN; CREATE ROLE bert LOGIN; CREATE ROLE cora LOGIN;
	CREATE FUNCTION nothing(payload jsonb) RETURNS void LANGUAGE sql AS '';
	CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared((payload #>> ''{}'')::int)';
	SELECT jobq.grant_privilege('anna'), jobq.grant_privilege('bert'), jobq.grant_privilege('cora'), jobq.register('turn', 'nothing(jsonb)'),
		jobq.register('hold', 'hold(jsonb)'), jobq.create_queue('shared', max_running => 1, open => true)});
$holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(5), pg_advisory_lock(6)');
sql(q{SELECT jobq.enqueue('hold', '5', queue => 'shared')});
sql("SET ROLE $_; SELECT jobq.enqueue('hold', '6')") for qw(anna bert cora);
wait_for($node, 'turns: each has a worker', q{SELECT count(DISTINCT role) = 4 FROM jobq.workers WHERE kind = 'hold'});
sql("SET ROLE $_; SELECT count(jobq.enqueue('turn', queue => 'shared')) FROM generate_series(1, 40)") for qw(anna bert cora);
$holder->query_safe('SELECT pg_advisory_unlock(6)');
wait_for($node, 'turns: which waits', q{SELECT count(DISTINCT role) = 3 FROM jobq.workers WHERE state = 'idle' AND role <> 'postgres'::regrole});
$holder->query_safe('SELECT pg_advisory_unlock(5)');
$holder->quit;
wait_for($node, 'turns: all have run', q{SELECT count(*) = 120 FROM jobq.jobs WHERE kind = 'turn' AND state = 'completed'});
cmp_ok(sql(q{SELECT count(*) FROM (SELECT role <> lag(role) OVER (ORDER BY started_at, id) AS is_next FROM jobq.jobs WHERE kind = 'turn') t WHERE is_next}),
	'>=', 40, 'turns: the place goes round');
nothing_leaks('turns');

#
# Rate limits after a crash.
#
sql(q{SELECT jobq.test_clock('0');
	CREATE FUNCTION gate() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
	SELECT jobq.register('gate', 'gate()', rate => '2 per hour burst 2');
	SELECT count(jobq.enqueue('gate', queue => 'workers')) FROM generate_series(1, 5)});
wait_for($node, 'crash: two have run', q{SELECT count(*) = 2 FROM jobq.jobs WHERE kind = 'gate' AND state = 'completed'});
sql('CHECKPOINT');
$node->stop('immediate');
$node->start;
wait_for($node, 'crash: the bucket is empty', q{SELECT tokens < 1 FROM jobq.limits WHERE kind = 'gate'});
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE kind = 'gate' AND state = 'completed'}), 2, 'crash: no more have run');
nothing_leaks('crash');

# Each group's own bucket and throttle, too.
sql(q{CREATE TABLE noted (queue text, g text);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fails' THEN
		RAISE EXCEPTION 'fails';
	END IF;
	INSERT INTO noted VALUES (job.queue, payload ->> 'g');
END $$;
SELECT jobq.create_limiter('paces', rate => '2 per day burst 3', by => 'group'), jobq.create_limiter('throttles', throttle => '2 failures in 1 day', by => 'group'),
	jobq.create_queue('paced', limiters => '{paces}'), jobq.create_queue('throttled', limiters => '{throttles}'),
	jobq.register('note', 'note(jsonb, jobq.job_context)', max_attempts => 1)});
sql(q{SELECT jobq.enqueue('note', jsonb_build_object('g', g), queue => 'paced', group_key => g)
	FROM unnest('{a,a,a,a,b,c,c}'::text[]) g});
sql(q{SELECT jobq.enqueue('note', '{"g": "c", "fails": true}', queue => 'paced', group_key => 'c'),
	jobq.enqueue('note', '{"g": "c"}', queue => 'paced', group_key => 'c')});
sql(q{SELECT jobq.enqueue('note', jsonb_build_object('g', g) || CASE WHEN i <= n THEN '{"fails": true}' ELSE '{}' END::jsonb, queue => 'throttled', group_key => g)
	FROM (VALUES ('a', 2), ('b', 1)) v (g, n), generate_series(1, 3) i});
my $noted = q{SELECT string_agg(queue || ' ' || g || ' ' || n, ', ' ORDER BY queue, g) FROM (SELECT queue, g, count(*) AS n FROM noted WHERE queue <> 'failing' GROUP BY 1, 2) t};
my $expected = 'paced a 3, paced b 1, paced c 2, throttled b 2';
wait_for($node, 'groups: all have run that may', "SELECT ($noted) = '$expected' AND (SELECT count(*) = 4 FROM jobq.dead_letters WHERE kind = 'note')");

# The slots and tokens of tenants, too.
sql(q{SELECT jobq.register('plain', 'gate()');
SELECT jobq.create_limiter('rent', max_running => 2, by => 'tenant'), jobq.create_limiter('ration', rate => '2 per day burst 2', by => 'tenant'),
	jobq.create_queue('rented', mode => 'consumer', tenant => 'header t', limiters => '{rent}'),
	jobq.create_queue('rationed', tenant => 'header t', limiters => '{ration}');
SELECT jobq.enqueue('plain', queue => q, headers => '{"t": "a"}') FROM unnest('{rented,rationed}'::text[]) q, generate_series(1, 4)});
# The slots and tokens of the keys of limiters, too.
sql(q{SELECT jobq.create_limiter('places', max_running => 2, by => 'payload $.host'), jobq.create_limiter('tokens', rate => '2 per day burst 2', by => 'payload $.host'),
	jobq.create_limiter('rests', throttle => '2 failures in 1 day', by => 'payload $.g'), jobq.create_queue('failing', limiters => '{rests}'),
	jobq.create_queue('keyed', mode => 'consumer', limiters => '{places}'), jobq.register('call', 'gate()', limiters => '{tokens}');
SELECT jobq.enqueue('call', '{"host": "a"}', queue => q) FROM unnest('{workers}'::text[]) q, generate_series(1, 4);
SELECT jobq.enqueue('any', '{"host": "a"}', queue => 'keyed') FROM generate_series(1, 4)});
sql(q{SELECT jobq.enqueue('note', jsonb_build_object('g', g, 'fails', true), queue => 'failing') FROM unnest('{a,a,b}'::text[]) g});
wait_for($node, 'keys: attempts have failed', q{SELECT count(*) = 3 FROM jobq.dead_letters WHERE queue = 'failing'});
my $called = q{SELECT string_agg(host || ' ' || n, ', ' ORDER BY host) FROM (SELECT payload ->> 'host' AS host, count(*) AS n FROM jobq.jobs WHERE kind = 'call' AND state = 'completed' GROUP BY 1) t};
my $take_keyed = q{SELECT count(*), string_agg(DISTINCT payload ->> 'host', '') FROM jobq.reserve('{keyed}', 10, '1 day', '5 min')};
is(sql($take_keyed), '2|a', 'keys: two are held');
wait_for($node, 'keys: two have run', "SELECT ($called) = 'a 2'");
my $rationed = q{SELECT string_agg(tenant || ' ' || n, ', ' ORDER BY tenant) FROM (SELECT tenant, count(*) AS n FROM jobq.jobs WHERE queue = 'rationed' AND state = 'completed' GROUP BY 1) t};
my $take_rented = q{SELECT count(*), string_agg(DISTINCT headers ->> 't', '') FROM jobq.reserve('{rented}', 10, '1 day', '5 min')};
is(sql($take_rented), '2|a', 'tenants: two are held');
wait_for($node, 'tenants: two have run', "SELECT ($rationed) = 'a 2'");
sql('CHECKPOINT');
$node->stop('immediate');
$node->start;
wait_for($node, 'tenants: the bucket is as before', q{SELECT tokens < 1 FROM jobq.limits WHERE limiter = 'ration' AND key = 'a'});
sql(q{SELECT jobq.enqueue('plain', queue => q, headers => '{"t": "b"}') FROM unnest('{rented,rationed}'::text[]) q});
sql(q{SELECT jobq.enqueue('call', '{"host": "b"}', queue => 'workers'), jobq.enqueue('any', '{"host": "b"}', queue => 'keyed')});
wait_for($node, 'keys: another is new, and the first has had its own', "SELECT ($called) = 'a 2, b 1'");
is(sql($take_keyed), '1|b', 'keys: the places are held as before');
is(sql(q{SELECT floor(tokens) FROM jobq.limits WHERE limiter = 'tokens' AND key = 'a'}), '0', 'keys: the bucket is as before');
sql(q{SELECT jobq.enqueue('note', jsonb_build_object('g', g), queue => 'failing') FROM unnest('{a,b}'::text[]) g});
wait_for($node, 'keys: a key without a rest goes on', q{SELECT count(*) = 1 FROM noted WHERE queue = 'failing'});
is(sql(q{SELECT key, failed, rest_until > jobq_internal.clock() FROM jobq.limits WHERE limiter = 'rests' AND type = 'key'}), 'a|2|t', 'keys: the rest is as before');
wait_for($node, 'tenants: another is new, and the first has had his', "SELECT ($rationed) = 'a 2, b 1'");
is(sql($take_rented), '1|b', 'tenants: the places are held as before');
wait_for($node, 'groups: buckets and rests are as before',
	q{SELECT string_agg(limiter || ' ' || key || ' ' || coalesce(floor(tokens)::text, 'rests'), ', ' ORDER BY limiter, key) = 'paces a 0, paces c 0, throttles a rests'
	FROM jobq.limits WHERE type = 'key' AND limiter IN ('paces', 'throttles') AND (tokens < 1 OR rest_until > jobq_internal.clock())});
sql(q{SELECT jobq.enqueue('note', '{"g": "b"}', queue => 'paced', group_key => 'b') FROM generate_series(1, 3)});
$expected = 'paced a 3, paced b 3, paced c 2, throttled b 2';
wait_for($node, 'groups: one has two tokens left', "SELECT ($noted) = '$expected'");
sql(q{SELECT jobq.enqueue('note', '{"g": "d"}', queue => 'paced', group_key => 'd')});
wait_for($node, 'groups: another is new', "SELECT ($noted) = '$expected'" =~ s/, throttled/, paced d 1, throttled/r);
sql(q{SELECT jobq.test_clock('12 hours 1 minute')});
$expected = 'paced a 4, paced b 4, paced c 3, paced d 1, throttled b 2';
wait_for($node, 'groups: then comes the next token', "SELECT ($noted) = '$expected'");
sql(q{SELECT jobq.test_clock('24 hours 1 minute')});
$expected = 'paced a 4, paced b 4, paced c 3, paced d 1, throttled a 1, throttled b 2';
wait_for($node, 'groups: and the rest ends', "SELECT ($noted) = '$expected'");

no_failed_assertion($node);
done_testing();
