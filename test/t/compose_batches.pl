# Batches: callbacks run exactly once despite crashes, and without a poll.

use strict;
use warnings FATAL => 'all';
use File::Spec;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE told (id bigint GENERATED ALWAYS AS IDENTITY, batch bigint, what text, state text,
	role name DEFAULT current_user, server int DEFAULT current_setting('port')::int);
GRANT INSERT ON told TO PUBLIC;
-- a part of the work: adds more, fails at first or for good, is slow
CREATE FUNCTION part(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'more' THEN
		PERFORM jobq.add_jobs((jobq.current_job()).batch_id, 'part', array_fill('{}'::jsonb, ARRAY[(payload -> 'more')::int]));
	END IF;
	IF payload ? 'fail' OR job.attempt <= (payload -> 'stumble')::int THEN
		RAISE 'no good';
	END IF;
	IF payload ? 'gate' THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
	PERFORM pg_sleep((payload -> 'sleep')::float8);
END $$;
CREATE PROCEDURE commits(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	PERFORM pg_sleep(0.001);
END $$;
CREATE FUNCTION tell(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC
	INSERT INTO told (batch, what, state) VALUES ((job.headers -> 'batch_id')::bigint, payload #>> '{}', job.headers ->> 'batch_state');
END;
SELECT jobq.register('part', 'part(jsonb, jobq.job_context)', max_attempts => 50, backoff => 'fixed 5ms'),
	jobq.register('commits', 'commits(jsonb)', max_attempts => 50, backoff => 'fixed 5ms'),
	jobq.register('tell', 'tell(jsonb, jobq.job_context)', queue => 'callbacks', max_attempts => 50, backoff => 'fixed 5ms');
SELECT jobq.create_queue('outside', open => true, mode => 'consumer');
CREATE FUNCTION batch(allow_failures boolean DEFAULT false, start boolean DEFAULT true) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_batch(NULL, '{"kind": "tell", "payload": "success"}', '{"kind": "tell", "payload": "failure"}',
		'{"kind": "tell", "payload": "finish"}', allow_failures, start)
$$;
-- what a batch has told by now, in its order
CREATE FUNCTION told(batch bigint) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(what || ' ' || state, ', ' ORDER BY what, id) FROM told t WHERE t.batch = $1
$$;
};

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=4'
max_prepared_transactions = 4
});
$node->start;
$node->safe_psql('postgres', $setup);

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# Each batch is over, and has called back once.
sub all_told
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for($node, "$what: all are over", 'SELECT NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL)');
	wait_for($node, "$what: all callbacks have run", q{SELECT NOT EXISTS (SELECT FROM jobq_internal.job WHERE kind = 'tell')});
	is( sql(q{SELECT string_agg(b.id || ' ' || b.state || ': ' || coalesce(told(b.id), ''), E'\n') FROM jobq.batches b
		WHERE told(b.id) IS NULL OR b.state || ': ' || told(b.id) !~ '^(completed: finish completed, success completed|failed: failure (failing|failed), finish failed|cancelled: (failure failing, )?finish cancelled)$'}),
		'', "$what: each has told once what has become of it");
	is(sql('SELECT string_agg(DISTINCT state, \' \' ORDER BY state) FROM jobq.batches'),
		'cancelled completed failed', "$what: there are all sorts");
	return;
}

#
# A batch ends at once, without a poll, for each way to end its last job.
#
sub ends
{
	my ($what, $state, $end, $start) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $batch = sql($start || q{
		BEGIN; SELECT batch() AS b \gset
		SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"queue": "outside"}') \gset
		COMMIT; SELECT :b});

	# let two later batches end, one after the other: then the scheduler watches all earlier batches
	for (1 .. 2)
	{
		my $other = sql('SELECT jobq.create_batch()');

		sql("SELECT jobq.start_batch($other)");
		wait_for($node, "$what: it is watched", "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $other");
	}
	if (ref $end)
	{
		$end->();
	}
	else
	{
		$end =~ s/BATCH/$batch/g;
		sql($end);
	}
	wait_for($node, "$what: it is over", "SELECT told($batch) ~ '$state'");
	return $batch;
}
my $one = q{FROM jobq.reserve('{outside}', 1, wait => '5 min')};
my $delayed = q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"delay": "1 hour"}') \gset
	COMMIT; SELECT :b};
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
ends('worker', 'finish completed', sub { $gate->query_safe('SELECT pg_advisory_unlock(1)') }, q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{\"gate\": 1}"}') \gset
	COMMIT; SELECT :b});
$gate->quit;
ends('ack', 'finish completed', "SELECT jobq.ack(id, token) $one");
ends('reject', 'finish failed', "SELECT jobq.reject(id, token, 'no') $one");
ends('cancel', 'finish completed', 'SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = BATCH', $delayed);
ends('clear', 'finish completed', q{SELECT jobq.cancel_many(queue => 'default', state => 'waiting')}, $delayed);
ends('cancel_batch', 'finish cancelled', 'SELECT jobq.cancel_batch(BATCH)', $delayed);
ends('cancel of one that runs', 'finish completed',
	q{DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'jobq worker' AND wait_event = 'PgSleep') LOOP PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01); END LOOP; END $$;
	SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = BATCH}, q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{\"sleep\": 100}"}') \gset
	COMMIT; SELECT :b});
ends('expiry', 'finish failed', 'SELECT', q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => jsonb_build_object('delay', '300 ms', 'expires_at', jobq_internal.clock() + interval '300 ms')) \gset
	COMMIT; SELECT :b});
ends('COMMIT PREPARED', 'finish completed',
	q{BEGIN; SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = BATCH; PREPARE TRANSACTION 'end'; COMMIT PREPARED 'end'}, $delayed);
ends('the end of a lease', 'finish failed', q{SELECT count(*) FROM jobq.reserve('{outside}', 1, '100 ms', wait => '5 min')},
	q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"queue": "outside", "max_attempts": 1}') \gset
	COMMIT; SELECT :b});
ends('an adder in a prepared transaction', 'finish completed',
	q{SELECT jobq.cancel(min(id)) FROM jobq.jobs WHERE batch_id = BATCH},
	q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"delay": "1 hour"}') \gset
	COMMIT;
	BEGIN; SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}') \gset
	PREPARE TRANSACTION 'add';
	COMMIT PREPARED 'add'; SELECT :b});

# A callback waiting for another session does not block other batches.
my $holder = $node->background_psql('postgres');
$holder->query_safe(q{BEGIN; SELECT jobq.enqueue('tell', '"mine"', unique_key => 'only')});
my $stuck = sql(q{SELECT jobq.create_batch(on_finish => '{"kind": "tell", "payload": "finish", "unique_key": "only"}')});
sql("SELECT jobq.start_batch($stuck)");
my $other = sql('SELECT batch(start => false)');
sql("SELECT jobq.start_batch($other)");
wait_for($node, 'another batch goes on', "SELECT told($other) ~ 'finish'");
is(sql("SELECT state FROM jobq.batches WHERE id = $stuck"), 'running', 'one whose callback waits does not');
$holder->query_safe('ROLLBACK');
$holder->quit;
wait_for($node, 'until it can', "SELECT told($stuck) = 'finish completed'");
is(sql("SELECT last_error IS NULL FROM jobq.batches WHERE id = $stuck"), 't', 'which was no error');

#
# Two batches fail at the same time, with more running jobs than one evaluation cancels.  The
# waiting jobs of both batches are cancelled.
#
sql(q{SELECT jobq.create_queue('left', mode => 'consumer'), jobq.create_queue('right', mode => 'consumer');
	CREATE TABLE held (queue text, id bigint, token bigint)});
my @two = map { sql(qq{BEGIN; SELECT batch() AS b \\gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'x', array_fill('{}'::jsonb, '{500}'), options => '{"queue": "$_", "max_attempts": 1}') \\gset
	COMMIT; SELECT :b}) } 'left', 'right';
foreach my $queue ('left', 'right')
{
	wait_for($node, "two: jobs of $queue are held", qq{
		WITH got AS (INSERT INTO held SELECT '$queue', id, token
			FROM jobq.reserve('{$queue}', 300 - (SELECT count(*)::int FROM held WHERE queue = '$queue'), '1 hour') RETURNING id)
		SELECT (SELECT count(*) FROM held WHERE queue = '$queue') + (SELECT count(*) FROM got) = 300});
}
sql(q{SELECT jobq.reject(id, token, 'no') FROM (SELECT DISTINCT ON (queue) id, token FROM held ORDER BY queue, id) first});
wait_for($node, 'two: what waits in both is cancelled',
	"SELECT count(*) = 400 FROM jobq.jobs WHERE batch_id IN ($two[0], $two[1]) AND state = 'cancelled'");
sql(q{SELECT jobq.ack(h.id, token) FROM held h JOIN jobq_internal.job j ON j.id = h.id});
wait_for($node, 'two: both are over', "SELECT told($two[0]) = 'failure failing, finish failed' AND told($two[1]) = 'failure failing, finish failed'");

#
# More batches than slots; the batches end in the order of their creation, or in reverse.
#
wait_for($node, 'many batches: those before have told', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.job WHERE kind = 'tell')});
foreach my $order ('ASC', 'DESC')
{
	sql(q{TRUNCATE told});
	sql(q{DO $$ DECLARE b bigint; BEGIN FOR i IN 1 .. 700 LOOP
		b := batch();
		PERFORM jobq.add_jobs(b, 'part', '{"{}"}', options => '{"delay": "1 hour"}');
		PERFORM jobq.add_jobs(b, 'part', '{"{}"}', options => '{"delay": "2 hours"}');
		COMMIT;
	END LOOP; END $$});
	sql(qq{DO \$\$ DECLARE j bigint; BEGIN
		FOR j IN SELECT id FROM jobq.jobs WHERE kind = 'part' AND finished_at IS NULL ORDER BY id $order LOOP
			PERFORM jobq.cancel(j);
			COMMIT;
		END LOOP; END \$\$});
	wait_for($node, "many batches, $order: all have told", q{SELECT count(*) = 1400 FROM told});
	is(sql('SELECT count(*) FROM jobq.batches WHERE finished_at IS NULL'), 0, "many batches, $order: none is left");
}

#
# Crashes, while small batches of all sorts come and go: JOBQ_BLOWS crashes of each type.
#
sql('TRUNCATE told; DELETE FROM jobq_internal.batch');
sql(q{CREATE PROCEDURE make_batches(n int) LANGUAGE plpgsql AS $$
DECLARE
	b bigint;
BEGIN
	FOR i IN 1 .. n LOOP
		b := batch(i % 5 = 0, i % 2 = 0);
		PERFORM jobq.add_jobs(b, 'part', array_fill('{"sleep": 0.001}'::jsonb, ARRAY[i % 7]) || '{"more": 2}'::jsonb || '{"stumble": 1}'::jsonb);
		PERFORM jobq.add_jobs(b, 'commits', array_fill('{}'::jsonb, ARRAY[i % 2]));
		PERFORM jobq.add_jobs(b, 'part', array_fill('{}'::jsonb, ARRAY[i % 3]), options => jsonb_build_object('queue', 'outside', 'priority', i % 4));
		IF i % 4 = 0 THEN
			PERFORM jobq.add_jobs(b, 'part', '{"{\"fail\": 1}"}', options => jsonb_build_object('max_attempts', 1 + i % 3));
		END IF;
		IF i % 6 = 0 THEN
			PERFORM jobq.add_jobs(b, 'part', array_fill('{}'::jsonb, ARRAY[3]), options => '{"delay": "1 day"}');
		END IF;
		IF i % 2 = 1 THEN
			COMMIT;
			PERFORM jobq.start_batch(b);
		END IF;
		COMMIT;
		IF i % 6 = 0 THEN
			PERFORM jobq.cancel_batch(b);
			COMMIT;
		END IF;
	END LOOP;
END $$;
-- takes what is outside until all is over, or until nobody makes more: batches
-- whose maker has died with the server do not end by themselves
CREATE PROCEDURE consume(more boolean) LANGUAGE plpgsql AS $$
DECLARE
	j jobq.reserved_job;
BEGIN
	LOOP
		j := NULL;
		SELECT * INTO j FROM jobq.reserve('{outside}', 1, '3 s', '100 ms');
		COMMIT;
		EXIT WHEN j.id IS NULL AND NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL);
		EXIT WHEN more AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'CALL make_batches%' AND state = 'active');
		CONTINUE WHEN j.id IS NULL;
		BEGIN
			IF random() < 0.1 THEN
				PERFORM jobq.nack(j.id, j.token, 'not now', '0');
			ELSE
				PERFORM jobq.ack(j.id, j.token);
			END IF;
		EXCEPTION WHEN SQLSTATE 'JQ011' THEN
			NULL;
		END;
		COMMIT;
	END LOOP;
END $$});
my $made = 0;
foreach my $round (1 .. 4 * ($ENV{JOBQ_BLOWS} // 1))
{
	my @run = map {
		my $command = $_;
		my $run = { out => '', err => '' };
		$run->{handle} = IPC::Run::start(
			[ $node->installed_command('psql'), '-XAtq', '-d', $node->connstr('postgres'), '-c', $command ],
			'<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err},
			IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
		$run
	} ('CALL make_batches(60)', 'CALL make_batches(60)', 'CALL consume(true)', 'CALL consume(true)');

	# crash as soon as some of these batches are over
	poll($node, "SELECT count(*) >= $made + 30 FROM jobq.batches WHERE finished_at IS NOT NULL");
	if ($round % 4 == 0)
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif ($round % 4 == 1)
	{
		crash_backend($node);
	}
	elsif ($round % 4 == 2)
	{
		sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type IN ('jobq scheduler', 'jobq worker')});
	}
	else
	{
		sql(q{SELECT pg_terminate_backend(pid) FROM jobq_internal.scheduler_state()});
	}
	eval { $_->{handle}->finish } foreach @run;

	# end the batches of creators that died too early, and the jobs not claimed by a consumer
	sql(q{SELECT jobq.start_batch(id) FROM jobq.batches WHERE state = 'pending'});
	sql(q{SELECT jobq.cancel_batch(batch_id) FROM jobq.jobs
		WHERE finished_at IS NULL AND run_at > jobq_internal.clock() + interval '1 hour' GROUP BY batch_id});
	wait_for_scheduler($node);
	sql('CALL consume(false)');
	$made = sql('SELECT count(*) FROM jobq.batches');
}
note "$made batches";
all_told('crashes');
is( sql(q{SELECT count(*) FROM jobq.batches WHERE total <> completed + dead + cancelled + expired OR ready + scheduled + blocked + running > 0
	OR state = 'completed' AND dead + expired > 0 OR state = 'failed' AND dead = 0 OR progress <> 100}),
	0, 'crashes: the counts are right');
is( sql(q{SELECT sum(total) FROM jobq.batches}),
	sql(q{SELECT count(*) FROM jobq.jobs WHERE batch_id IN (SELECT id FROM jobq_internal.batch)}), 'crashes: each job counts once');
is(sql(q{SELECT count(*) FROM jobq_internal.job}), 0, 'crashes: no job is left');
is(sql(q{SELECT count(*) FROM jobq.dead_letters WHERE kind = 'tell'}), 0, 'crashes: no callback has failed');

#
# An evaluation does not wait for the flush of its commit.  The process that reports the end of a
# batch waits for the flush, without help from the WAL writer or the relay.
#
sql($_) foreach (q{ALTER SYSTEM SET wal_writer_delay = '10s'}, q{ALTER SYSTEM SET jobq.notify_interval = '10s'});
$node->reload;
foreach my $patience ('5 min', '0')
{
	my $batch = sql('SELECT batch()');
	sql("SELECT jobq.add_jobs($batch, 'part', ARRAY['{}'::jsonb])");
	wait_for($node, 'the batch is over', "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $batch") if $patience eq '0';
	my $end = sql("SELECT state, finished_at FROM jobq.wait_batch($batch, '$patience')");
	like($end, qr/^completed/, "wait_batch() for $patience: the batch is over");
	$node->stop('immediate');
	$node->start;
	is(sql("SELECT state, finished_at FROM jobq.batches WHERE id = $batch"), $end, "wait_batch() for $patience: and so it is after a crash");
}
all_told('crashes of told ends');
sql(q{ALTER SYSTEM RESET ALL});
$node->reload;

#
# Retention: the counts stay.
#
my $counts = q{SELECT string_agg(format('%s %s %s %s %s %s', id, state, completed, dead, cancelled, expired), E'\n' ORDER BY id) FROM jobq.batches};
my $open = sql(q{BEGIN; SELECT batch(true) AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"delay": "20 days"}') \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}", "{}"}') \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"expires_at": "2001-01-01"}') \gset
	COMMIT; SELECT :b});
wait_for($node, 'retention: some of a batch is over', "SELECT total = 4 AND ready + scheduled = 1 AND told($open) = 'failure failing' FROM jobq.batches WHERE id = $open");
my $before = sql($counts);
# two entries of the audit log, of which one gets 30 days old, as old as dead letters can be
sql(q{SELECT jobq.pause('default'), jobq.resume('default'); UPDATE jobq_internal.audit SET at = at - interval '25 days' WHERE action = 'pause'});
# entries for several deletions, of which a session has locked one
sql(q{INSERT INTO jobq_internal.audit (id, at, role, login, application, action, arguments)
	SELECT nextval('jobq_internal.audit_id_seq'), at, role, login, application, 'edit', arguments FROM jobq_internal.audit, generate_series(1, 1200) WHERE action = 'pause'});
my $reader = $node->background_psql('postgres');
$reader->query_safe(q{BEGIN; SELECT id FROM jobq_internal.audit WHERE action = 'pause' FOR UPDATE});
foreach my $days (1 .. 9)
{
	sql("SELECT jobq.test_clock('$days days'), jobq.test_clock('$days days')");
	wait_for($node, "retention: day $days has its partition",
		"SELECT to_regclass(to_char((jobq_internal.clock() + interval '3 days') AT TIME ZONE 'UTC', '\"jobq_internal.archive_\"YYYYMMDD')) IS NOT NULL");
}
# a pass of the scheduler may have begun days ago, and the next pass comes an hour later
my $ninth = sql('SELECT clock_timestamp()');
wait_for($node, 'retention: the archive is gone',
	qq{SELECT NOT EXISTS (SELECT FROM jobq_internal.archive WHERE kind = 'part' AND state <> 'x') FROM (SELECT '9 days' + 1000 * (clock_timestamp() - '$ninth') AS ahead OFFSET 0) a, LATERAL (SELECT jobq.test_clock(ahead), jobq.test_clock(ahead)) c});
foreach my $action ('edit', 'pause')
{
	wait_for($node, "retention: older entries of the audit log are gone: $action",
		qq{SELECT NOT EXISTS (SELECT FROM jobq.audit_log WHERE action = '$action') FROM (SELECT '9 days' + 1000 * (clock_timestamp() - '$ninth') AS ahead OFFSET 0) a, LATERAL (SELECT jobq.test_clock(ahead), jobq.test_clock(ahead)) c});
	$reader->query_safe('COMMIT') if $action eq 'edit';
}
$reader->quit;
is(sql(q{SELECT count(*) FROM jobq.audit_log WHERE action = 'resume'}), '1', 'retention: and the newer one is there');
is(sql($counts), $before, 'retention: the counts are the same');
sql("SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = $open");
wait_for($node, 'retention: a batch knows of a failure that is not in the archive any more', "SELECT told($open) = 'failure failing, finish failed'");
sql(q{SELECT jobq.test_clock('0')});

#
# An evaluation searches for ended jobs from the creation time of the batch: days ago, or in the
# future, because the clock may be put back.
#
sub put_outside
{
	return sql(qq{BEGIN; SELECT batch() AS b \\gset
		SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', array_fill('{}'::jsonb, '{$_[0]}'), options => '{"queue": "outside", "run_at": "2001-01-01"}') \\gset
		COMMIT; SELECT :b});
}

sub end_at
{
	my ($day) = @_;

	sql("SELECT jobq.test_clock('$day days')");
	wait_for($node, "day $day has its partition", q{SELECT to_regclass(to_char(jobq_internal.clock() AT TIME ZONE 'UTC', '"jobq_internal.archive_"YYYYMMDD')) IS NOT NULL});
	wait_for_scheduler($node);
	sql(q{SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '5 min')});
	return;
}

sub is_counted
{
	my ($batch, $n, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for($node, "$what: it has told so", "SELECT told($batch) = 'finish completed, success completed'");
	is(sql(qq{SELECT DISTINCT headers -> 'batch_counts' ->> 'completed' FROM jobq.jobs WHERE kind = 'tell' AND headers ->> 'batch_id' = '$batch'}),
		$n, "$what: all are counted");
	return;
}
# start a scheduler that has not seen the clock jump
$node->restart;
my $long = put_outside(3);
end_at($_) foreach (0, 2, 4);
is_counted($long, 3, 'a batch of some days');
my $early = put_outside(2);
end_at(4);
end_at(0);
is_counted($early, 2, 'a batch from which the clock was put back');

# put the clock back by nine hours at a time, each step below the tolerance
$node->restart;
sql(q{SELECT jobq.test_clock('4 days')});
my $slowly = put_outside(2);
foreach my $hour (map { 96 - 9 * $_ } 0 .. 8)
{
	my $round = sql("SELECT jobq.test_clock('$hour hours') \\g /dev/null\nSELECT jobq.enqueue('part', '{}', delay => '1 ms')");
	wait_for($node, "hour $hour: the scheduler has gone round", "SELECT state = 'completed' FROM jobq.status($round)");
}
end_at($_) foreach (1, 5);
is_counted($slowly, 2, 'a batch from which the clock was put back slowly');
sql(q{SELECT jobq.test_clock('0')});

#
# Callbacks run as the role of the batch, regardless of the role that ends the batch.
#
sql(q{CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN; GRANT alice TO bob;
	SELECT jobq.grant_privilege('alice'), jobq.grant_privilege('bob')});
my $batch = sql(q{BEGIN; SET ROLE alice; SELECT batch(true) AS b \gset
	RESET ROLE; SET ROLE bob;
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}') \gset
	RESET ROLE;
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}') \gset
	COMMIT; SELECT :b});
wait_for($node, 'roles: the batch is over', "SELECT told($batch) = 'finish completed, success completed'");
is(sql("SELECT string_agg(role || ' ' || kind || ' ' || count, ', ' ORDER BY role, kind) FROM (SELECT role::text, kind, count(*) FROM jobq.jobs
		WHERE batch_id = $batch OR headers -> 'batch_id' = '$batch' GROUP BY 1, 2) j"),
	'alice tell 2, bob part 1, ' . $node->safe_psql('postgres', 'SELECT current_user') . ' part 1', 'roles: each has its own jobs');
is(sql("SELECT DISTINCT role FROM told WHERE batch = $batch"), 'alice', 'roles: callbacks run as the role of the batch');

#
# A dump in the middle of a batch.
#
$batch = sql(q{BEGIN; SELECT batch() AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}", "{}"}', options => '{"queue": "outside"}') \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}') \gset
	COMMIT; SELECT :b});
my $pending = sql(q{BEGIN; SELECT batch(start => false) AS b \gset
	SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}') \gset
	COMMIT; SELECT :b});
wait_for($node, 'dump: a part is over', "SELECT completed = 1 AND ready + scheduled = 2 FROM jobq.batches WHERE id = $batch");
my $dump = $node->backup_dir . '.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');

my $copy = jobq_node('copy', q{
jobq.databases = 'postgres'
jobq.start_paused = on
});
$copy->start;
$copy->safe_psql('postgres', 'CREATE ROLE alice LOGIN; CREATE ROLE bob LOGIN');
$copy->command_ok([ 'pg_restore', '-e', '-d', 'postgres', $dump ], 'pg_restore');
foreach my $server ($node, $copy)
{
	my $name = $server->name;

	if ($server == $copy)
	{
		$copy->append_conf('postgresql.conf', 'jobq.start_paused = off');
		$copy->reload;
	}
	wait_for_scheduler($server);
	# one job per call, because a waiting call returns with the first job
	$server->safe_psql('postgres', q{SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', 1, wait => '5 min')})
	  for 1 .. 2;
	wait_for($server, "dump: the batch ends on $name", "SELECT told($batch) = 'finish completed, success completed'");
	is($server->safe_psql('postgres', "SELECT state, total, completed FROM jobq.batches WHERE id = $batch"),
		'completed|3|3', "dump: its counts on $name");
	is($server->safe_psql('postgres', "SELECT state, blocked FROM jobq.batches WHERE id = $pending"),
		'pending|1', "dump: another has not begun on $name");
	$server->safe_psql('postgres', "SELECT jobq.start_batch($pending)");
	wait_for($server, "dump: until it is started on $name", "SELECT told($pending) = 'finish completed, success completed'");
	is($server->safe_psql('postgres', "SELECT count(*) FROM told t, jobq_internal.batch b WHERE b.id = t.batch AND t.server = current_setting('port')::int AND t.batch NOT IN ($batch, $pending)"),
		$server == $node ? $node->safe_psql('postgres', "SELECT count(*) FROM told t, jobq_internal.batch b WHERE b.id = t.batch AND t.batch NOT IN ($batch, $pending)") : 0,
		"dump: what was over before has told no more on $name");
}
$copy->stop;

#
# The jobs of a batch end on different days, and so in different partitions of the archive; one job
# fails.  Then the same without the indexes for evaluations.
#
sql(q{SELECT jobq.create_queue('days', mode => 'consumer'), jobq.create_queue('counted', mode => 'consumer')});
wait_for($node, 'days: there are partitions', q{SELECT count(*) >= 4 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass});
foreach my $indexes ('with', 'without')
{
	sql(q{DO $$ DECLARE i regclass; BEGIN
		FOR i IN SELECT indexrelid FROM pg_index WHERE indrelid::regclass::text ~ '^jobq_internal.archive_\d+$' AND NOT indisprimary LOOP
			EXECUTE 'DROP INDEX ' || i;
		END LOOP; END $$}) if $indexes eq 'without';
	sql(q{SELECT jobq.test_clock('0')});
	my $days = sql(q{BEGIN; SELECT jobq.create_batch('days', on_finish => '{"kind": "x", "queue": "counted"}', allow_failures => true, start => true) AS b \gset
		SELECT count(*) AS n FROM jobq.add_jobs(:b, 'x', '{1,2,3,4}', options => '{"queue": "days"}') \gset
		COMMIT; SELECT :b});
	foreach my $end ("ack(id, token) $one", "test_clock('1 day')", "ack(id, token) $one", "test_clock('2 days')", "ack(id, token) $one", "reject(id, token, 'no') $one")
	{
		sql('SELECT jobq.' . ($end =~ s/outside/days/r));
	}
	wait_for($node, "days: the batch is over $indexes indexes", "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $days");
	is(sql("SELECT count(DISTINCT tableoid) FROM jobq_internal.archive WHERE batch_id = $days"), '3', "days: it has jobs in partitions $indexes indexes");
	is(sql("SELECT headers -> 'batch_counts' FROM jobq_internal.job WHERE (headers -> 'batch_id')::bigint = $days"),
		'{"dead": 1, "expired": 0, "cancelled": 0, "completed": 3}', "days: its callback knows them all, $indexes indexes");
}
sql(q{SELECT jobq.test_clock('0')});

#
# Rows that the scheduler writes without the executor are in all indexes.
#
my $over = 'SELECT string_agg(id::text, \' \') FROM (SELECT id FROM jobq_internal.batch WHERE finished_at IS NULL ORDER BY id) b';
sql(q{SELECT jobq.create_batch('open')});
is(sql("SET enable_seqscan = off; SET enable_bitmapscan = off; $over"),
	sql("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; $over"),
	'index: batches that are not over');
is(sql('SET enable_seqscan = off; SELECT count(*) FROM jobq_internal.batch b WHERE EXISTS (SELECT FROM jobq_internal.batch o WHERE o.id = b.id)'),
	sql('SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM jobq_internal.batch'),
	'index: all batches');

#
# Logical replication: batches on the subscriber are dormant until the subscriber takes over.
#
my ($publisher, $subscriber) = jobq_pair($setup);
$subscriber->safe_psql('postgres', 'DELETE FROM jobq_internal.queue');
subscribe($publisher, $subscriber, 'jobq_internal.job', 'jobq_internal.queue', 'jobq_internal.dead_letter', 'jobq_internal.batch');
my @batches = map {
	$publisher->safe_psql('postgres', qq{BEGIN; SELECT batch() AS b \\gset
		SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', array_fill('{}'::jsonb, '{$_}')) \\gset
		SELECT count(*) AS n FROM jobq.add_jobs(:b, 'part', '{"{}"}', options => '{"delay": "1 day"}') \\gset
		COMMIT; SELECT :b})
} 1 .. 3;
wait_for($publisher, 'replication: the batches run',
	q{SELECT count(*) = 3 FROM jobq.batches WHERE ready + scheduled = 1 AND completed = total - 1});
$publisher->safe_psql('postgres', "SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = $batches[0] AND state = 'scheduled'");
$publisher->safe_psql('postgres', "SELECT jobq.cancel_batch($batches[1])");
wait_for($publisher, 'replication: two are over',
	q{SELECT count(*) = 3 FROM told});
# all jobs of two more batches end on the publisher, before the publisher has evaluated these
my @ended = map {
	$publisher->safe_psql('postgres', qq{BEGIN; SELECT batch() AS b \\gset
		SELECT jobq.add_jobs(:b, 'x', '{"{}"}', options => '{"queue": "outside"}') \\g /dev/null
		COMMIT; SELECT :b})
} 1 .. 2;
my $locker = $publisher->background_psql('postgres');
$locker->query_safe("BEGIN; SELECT FROM jobq_internal.batch WHERE id IN ($ended[0], $ended[1]) FOR NO KEY UPDATE");
$publisher->safe_psql('postgres', q{SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '5 min');
	SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{outside}', wait => '5 min')});
catch_up($publisher);
is($subscriber->safe_psql('postgres', q{SELECT string_agg(b.state, ' ' ORDER BY b.id), bool_and(d.dormant) FROM jobq.batches b JOIN jobq_internal.batch d USING (id)}),
	'completed cancelled running running running|t', 'replication: the subscriber has them, dormant');
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM jobq_internal.job WHERE kind = 'tell'}), '0', 'replication: and no callbacks');
my (undef, undef, $err) = $subscriber->psql('postgres', "SELECT jobq.add_jobs($batches[2], 'part', '{}')");
like($err, qr/runs where it was replicated from/, 'replication: nothing can be added there');
foreach my $call ('start_batch(', 'cancel_batch(', 'retry_many(batch_id => ')
{
	(undef, undef, $err) = $subscriber->psql('postgres', "SELECT jobq.$call$batches[2])");
	like($err, qr/runs where it was replicated from/, "replication: nor can $call...) be called there");
}
$subscriber->safe_psql('postgres', q{SELECT setval('jobq_internal.job_id_seq', 10000)});
unsubscribe($publisher, $subscriber);
is($subscriber->safe_psql('postgres', 'SELECT jobq.adopt()'), '1', 'replication: the subscriber takes over');
$subscriber->safe_psql('postgres', "SELECT jobq.cancel(id) FROM jobq.jobs WHERE batch_id = $batches[2]");
wait_for($subscriber, 'replication: the last batch ends there',
	"SELECT told($batches[2]) = 'finish completed, success completed' AND (SELECT count(*) = 6 FROM told)");
is($subscriber->safe_psql('postgres', "SELECT told($ended[0]), told($ended[1])"),
	'finish completed, success completed|failure failing, finish failed', 'replication: and those whose jobs have ended on the publisher');
is($subscriber->safe_psql('postgres', 'SELECT id > (SELECT max(id) FROM jobq.batches) FROM batch() id'), 't', 'replication: a new batch has a new id');

$node->stop;
$subscriber->stop;
no_failed_assertion($node, $copy, $publisher, $subscriber);
done_testing();
