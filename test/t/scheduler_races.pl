# A process, mostly the scheduler, has read something and has not recorded it yet.  A change at
# this moment is not lost.  Injection points hold the process there.

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
jobq.databases = '*'
jobq.workers = 'still=0; alone=1; *=2'
autovacuum = off
max_prepared_transactions = 5
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
CREATE TABLE done (id bigint, n int, at bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS
	$$ SELECT pg_advisory_xact_lock_shared(1); INSERT INTO done (id, n) SELECT job.id, (payload ->> 'n')::int $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)')});

# Repeat the condition until it is true; false after the timeout.
sub come_to
{
	my ($condition) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if $condition->();
		usleep(100_000);
	}
	return 0;
}

# Is the query true within a second?
sub soon
{
	my ($query) = @_;

	for (1 .. 20)
	{
		return 1 if sql($query) eq 't';
		usleep(50_000);
	}
	return 0;
}

# Let all processes held at the point go on, one after the other: the launcher may have started
# a second scheduler there, which no view shows yet.
sub release
{
	my ($point) = @_;

	sql("SELECT injection_points_detach('$point')");
	come_to(sub {
		return $node->psql('postgres', "SELECT injection_points_wakeup('$point')", stderr => \my $unused) != 0;
	});
	return;
}

# Hold the process which reaches the point because of "cause", and release the process after
# "meanwhile".  The clock is never put forward far enough for the safety check.
sub hold
{
	my ($point, $cause, $meanwhile) = @_;

	sql("SELECT injection_points_attach('$point', 'wait')");
	$cause->();
	wait_for($node, "$point: it is held", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$point'");
	$meanwhile->();
	release($point);
	return;
}

# After "cause", let the scheduler evaluate batches step by step, until the query returns a
# number other than 0; returns this number.
sub at_first
{
	my ($what, $cause, $query) = @_;
	my $n = 0;

	sql("SELECT injection_points_attach('jobq-batch-looked', 'wait')");
	sql($cause);
	for (1 .. 100)
	{
		wait_for($node, "$what: a look", q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'jobq-batch-looked'});
		$n = sql($query);
		last if $n > 0;
		$node->psql('postgres', q{SELECT injection_points_wakeup('jobq-batch-looked')}, stderr => \my $unused);
		usleep(20_000);
	}
	release('jobq-batch-looked');
	return $n;
}

# Wait until the scheduler has evaluated all batches which need this.
sub scheduler_looks
{
	my ($what) = @_;

	foreach my $name ('one', 'another')
	{
		my $fence = sql("SELECT jobq.create_batch('$name')");
		sql("SELECT jobq.start_batch($fence)");
		wait_for($node, "$what: the scheduler has looked", "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $fence");
	}
	return;
}

# As hold(), for a scheduler which starts with the server.
sub hold_at_start
{
	my ($point, $meanwhile) = @_;

	$node->append_conf('postgresql.conf', "jobq.databases = ''");
	$node->restart;
	hold($point,
		sub {
			$node->append_conf('postgresql.conf', "jobq.databases = '*'");
			$node->reload;
		},
		$meanwhile);
	return;
}

#
# Jobs committed after the read of their lane: a single job, more jobs than are noted singly,
# many jobs at once, and a job before all jobs read.
#
my $enqueue = q{SELECT jobq.enqueue('note')};
foreach my $case (
	[ 'one', $enqueue ],
	[ 'many', join(';', ($enqueue) x 200) ],
	[ 'many at once', "$enqueue FROM generate_series(1, 300)" ],
	[ 'an earlier one', q{SELECT jobq.enqueue('note', run_at => jobq_internal.clock() - interval '2 hours')} ])
{
	my ($what, $query) = @$case;

	sql(q{TRUNCATE done; SELECT jobq.enqueue('note', run_at => jobq_internal.clock() + interval '10 min')});
	hold('jobq-lane-read',
		sub { sql(q{SELECT jobq.test_clock('10 min 1 s')}); },
		sub { sql($query); });
	wait_for($node, "lane, $what: all of them run", 'SELECT count(*) = 0 FROM jobq_internal.job');
	is(sql(q{SELECT count(*) - count(DISTINCT id) FROM done}), 0, "lane, $what: each once");
	sql(q{SELECT jobq.test_clock('0')});
}

#
# A reserve() during the read of a lane gets the available jobs, even without a wait.
#
sql(q{SELECT jobq.create_queue('post', mode => 'consumer'); SELECT jobq.enqueue('note', queue => 'post', run_at => jobq_internal.clock() + interval '10 min')});
my $reader = $node->background_psql('postgres');
hold('jobq-lane-read',
	sub { sql(q{SELECT jobq.test_clock('10 min 1 s')}); },
	sub {
		# this session releases the scheduler as soon as the other session waits
		$reader->query_until(qr/begins/, q{
\echo begins
DO $$ BEGIN
	FOR i IN 1 .. 10000 LOOP
		EXIT WHEN EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'JobqReserve');
		PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
	END LOOP;
	PERFORM injection_points_detach('jobq-lane-read'), injection_points_wakeup('jobq-lane-read');
END $$;
});
		is(sql(q{SELECT jobq.enqueue('note', queue => 'post'); SELECT count(*) FROM jobq.reserve('{post}')}) =~ s/.*\n//r,
			'1', 'lane, reserved: it gets a job');
		$reader->quit;
		sql(q{SELECT injection_points_attach('jobq-lane-read', 'wait')});
	});
is(sql(q{SELECT count(jobq.cancel(id)) FROM jobq_internal.job}), '2', 'lane, reserved: both are there');
sql(q{SELECT jobq.test_clock('0')});

#
# Jobs of a group come after the read of the group's jobs which were not parked.
#
sql(q{SELECT jobq.create_queue('groups')});
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
sql(q{TRUNCATE done;
SELECT jobq.enqueue('note', jsonb_build_object('n', n), queue => 'groups', group_key => 'g') FROM generate_series(1, 100) n});
wait_for($node, 'group: some are not parked', q{SELECT parked = 64 AND more FROM jobq.limits WHERE type = 'group' AND group_key = 'g'});
hold('jobq-group-read',
	sub { $gate->query_safe('SELECT pg_advisory_unlock(1)'); },
	sub {
		sql(qq{SELECT jobq.enqueue('note', '{"n": $_}', queue => 'groups', group_key => 'g')}) foreach 101 .. 103;
		# workers have passed the new jobs when they come to this job
		my $id = sql(q{SELECT jobq.enqueue('note', queue => 'groups')});
		wait_for($node, 'group: the others have been passed', "SELECT state = 'completed' FROM jobq.status($id)");
	});
wait_for($node, 'group: all of them run', 'SELECT count(*) = 0 FROM jobq_internal.job');
is(sql(q{SELECT count(*) FROM (SELECT n - lag(n, 1, 0) OVER (ORDER BY at) AS step FROM done WHERE n > 0) d WHERE step <> 1}), 0, 'group: in order');

#
# A policy is changed again after the scheduler has read it.
#
$gate->query_safe('SELECT pg_advisory_lock(1)');
hold('jobq-limits-read',
	sub { sql(q{SELECT jobq.alter_queue('groups', max_running => 1)}); },
	sub { sql(q{SELECT jobq.alter_queue('groups', max_running => 2)}); });
sql(q{SELECT jobq.enqueue('note', queue => 'groups') FROM generate_series(1, 4)});
sleeps($node, 'limit: the last one counts', 2);
$gate->query_safe('SELECT pg_advisory_unlock(1)');
wait_for($node, 'limit: all of them run', 'SELECT count(*) = 0 FROM jobq_internal.job');

#
# A queue gets a max_length, and is counted: jobs which end during the count are neither
# forgotten nor counted twice.  The queue has ten jobs, and gets three.  Two of these end, and
# the counting session adds a job.
#
sql(q{SELECT jobq.create_queue('still'); SELECT jobq.enqueue('note', queue => 'still') FROM generate_series(1, 10)});
my $open = $node->background_psql('postgres');
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('note', queue => 'still') FROM generate_series(1, 3)});
sql(q{SELECT jobq.alter_queue('still', max_length => 15)});
my $counts = $node->background_psql('postgres');
hold('jobq-queue-counted',
	sub { $counts->query_until(qr/counts/, qq{\\echo counts
SELECT jobq.enqueue('note', queue => 'still');
}); },
	sub {
		$open->query_safe('COMMIT');
		sql(q{SELECT count(jobq.cancel(id)) FROM (SELECT id FROM jobq_internal.job ORDER BY id LIMIT 2) j});
	});
$_->quit foreach $counts, $open;
is(sql('SELECT count(*) FROM jobq_internal.job'), 12, 'length: twelve are there');
my ($rc, $stdout, $stderr) = $node->psql('postgres', q{SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[4]), queue => 'still')});
like($stderr, qr/It has 12 jobs, and max_length is 15/, 'length: there is no place for four');
sql(q{SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[3]), queue => 'still')});

# A change of the table past jobq during the count is seen, too.
sql(q{SELECT jobq.cancel_many(queue => 'still', state => 'waiting'); SELECT jobq.enqueue('note', queue => 'still') FROM generate_series(1, 3); UPDATE jobq_internal.job SET attempt = 0 WHERE false});
$counts = $node->background_psql('postgres');
hold('jobq-queue-counted',
	sub { $counts->query_until(qr/counts/, qq{\\echo counts
SELECT jobq.enqueue('note', queue => 'still');
}); },
	sub { sql('BEGIN; DELETE FROM jobq_internal.job WHERE id = (SELECT min(id) FROM jobq_internal.job); UPDATE jobq_internal.job SET attempt = 0 WHERE false; COMMIT'); });
$counts->quit;
($rc, $stdout, $stderr) = $node->psql('postgres', q{SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[13]), queue => 'still')});
like($stderr, qr/It has 3 jobs, and max_length is 15/, 'length: counted again');
sql(q{SELECT jobq.cancel_many(queue => 'still', state => 'waiting'), jobq.alter_queue('still', max_length => 0)});

#
# The last job of a batch ends after the scheduler has found it, and before the job is published
# as the witness.
#
my $batch = sql(q{SELECT jobq.create_batch('last', on_finish => '{"kind": "note"}')});
sql(qq{SELECT count(*) FROM jobq.add_jobs($batch, 'note', '{1,2}', options => '{"queue": "still"}')});
sql("SELECT jobq.start_batch($batch)");
my ($first, $second) = split /\n/, sql(q{SELECT id FROM jobq_internal.job WHERE batch_id IS NOT NULL ORDER BY id});
hold('jobq-batch-looked',
	sub { sql("SELECT jobq.cancel($second)"); },
	sub { sql("SELECT jobq.cancel($first)"); });
wait_for($node, 'batch: is over', "SELECT state = 'completed' FROM jobq.batches WHERE id = $batch");
wait_for($node, 'batch: its callback runs', 'SELECT count(*) = 0 FROM jobq_internal.job');

#
# A job of a batch is a dead letter, and is being retried, at the first evaluation of the batch:
# the batch is not over.
#
sql(q{CREATE FUNCTION flawed(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	IF EXISTS (SELECT FROM done) THEN RAISE 'flawed'; END IF; END $$;
SELECT jobq.register('flawed', 'flawed(jsonb)', max_attempts => 1)});
sql(q{TRUNCATE done; INSERT INTO done VALUES (0)});
my $retries = $node->background_psql('postgres');
hold('jobq-batch-looked',
	sub { sql(q{SELECT jobq.start_batch(jobq.create_batch('other'))}); },
	sub {
		$batch = sql(q{WITH b AS MATERIALIZED (SELECT jobq.create_batch('retried', on_failure => '{"kind": "note"}', on_finish => '{"kind": "note", "payload": {"n": 1}}', start => true) AS id)
			SELECT b.id FROM b, jobq.add_jobs(b.id, 'flawed', '{1}')});
		wait_for($node, 'retried: it has failed', "SELECT count(*) = 1 FROM jobq_internal.dead_letter WHERE batch_id = $batch");
		$retries->query_safe("BEGIN; TRUNCATE done; SELECT jobq.retry(id) FROM jobq_internal.dead_letter WHERE batch_id = $batch");
	});
scheduler_looks('retried');
is(sql("SELECT state FROM jobq.batches WHERE id = $batch"), 'running', 'retried: the batch is not over');
$retries->query_safe('COMMIT');
$retries->quit;
wait_for($node, 'retried: the batch is over', "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $batch");
is(sql("SELECT state FROM jobq.batches WHERE id = $batch"), 'completed', 'retried: it is completed');
wait_for($node, 'retried: its callbacks run', 'SELECT count(*) = 0 FROM jobq_internal.job');
is(sql('SELECT n FROM done'), '1', 'retried: it has told its end once, and no failure');

#
# While the scheduler evaluates the end of a step, other steps end, a step fails for the first
# time, and a waiting step is cancelled.  The scheduler keeps all these steps in memory.
#
sql(q{SELECT jobq.create_queue('steps', mode => 'consumer')});
$batch = sql(q{SELECT jobq.create_workflow(jsonb_build_object('steps', (SELECT jsonb_agg(jsonb_build_object('name', c || n, 'kind', 'x', 'queue', 'steps',
	'backoff', 'fixed 1ms', 'max_attempts', 2, 'needs', CASE WHEN n = 1 THEN '[]' ELSE jsonb_build_array(c || n - 1) END))
	FROM unnest('{a,b,c}'::text[]) c, generate_series(1, 20) n)))});
my $reserved = q{FROM jobq.reserve('{steps}', wait => '5 min')};
my $ended = 0;
sub end_step { sql("SELECT jobq.ack(id, token) $reserved"); $ended++; return; }
sub steps_go_on
{
	my ($what) = @_;

	wait_for($node, "steps: $what", "SELECT count(*) FILTER (WHERE state = 'completed') = $ended AND count(*) FILTER (WHERE state IN ('ready', 'retryable')) = 3
		FROM jobq.steps WHERE batch_id = $batch");
	return;
}
end_step() for 1 .. 3;
steps_go_on('the first of each chain has ended');
hold('jobq-batch-looked', \&end_step, \&end_step);
steps_go_on('two end');
hold('jobq-batch-looked', \&end_step, sub { sql("SELECT jobq.nack(id, token, 'not yet') $reserved"); end_step(); });
steps_go_on('two end, and one fails');
hold('jobq-batch-looked', \&end_step, sub { sql("SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = $batch AND name = 'b20'"); });
steps_go_on('one ends, and one that waits is cancelled');
end_step() for 1 .. 59 - $ended;
wait_for($node, 'steps: the workflow is over', "SELECT state = 'cancelled' FROM jobq.batches WHERE id = $batch");

#
# Batches whose evaluations cannot commit together are each evaluated alone.
#
hold('jobq-batch-looked',
	sub { sql(q{SELECT jobq.start_batch(jobq.create_batch('before parts'))}); },
	sub {
		sql(q{
SELECT injection_points_attach('jobq-parts-done', 'error');
BEGIN;
SELECT count(jobq.start_batch(jobq.create_batch('part', on_finish => '{"kind": "note", "queue": "still"}'))) FROM generate_series(1, 10);
COMMIT});
	});
wait_for($node, 'parts: all batches are over', q{SELECT count(*) = 10 FROM jobq_internal.batch WHERE name = 'part' AND state = 'c' AND finished_at IS NOT NULL});
is(sql(q{SELECT count(*) || ' ' || count(DISTINCT headers -> 'batch_id') FROM jobq_internal.job WHERE headers ->> 'batch' = 'part'}),
	'10 10', 'parts: each has one callback');
is(sql(q{SELECT count(*) FROM jobq_internal.batch WHERE name = 'part' AND last_error IS NOT NULL}), '0', 'parts: no batch notes an error');
sql(q{SELECT injection_points_detach('jobq-parts-done'); SELECT jobq.cancel_many(queue => 'still', state => 'waiting')});

#
# Jobs of a group are spilled after the scheduler has begun its round, and before the next read
# of the group.
#
my $closed = $node->background_psql('postgres');
$closed->query_safe('SELECT pg_advisory_lock(1)');
sql(q{TRUNCATE done});
hold('jobq-batch-looked',
	sub { sql(q{SELECT jobq.start_batch(jobq.create_batch('spilled'))}); },
	sub {
		sql(q{SELECT count(jobq.enqueue('note', jsonb_build_object('n', n), queue => 'groups', group_key => 'spilled')) FROM generate_series(1, 50) n});
		sql(q{SELECT count(jobq.enqueue('note', jsonb_build_object('n', n), queue => 'groups', group_key => 'spilled')) FROM generate_series(51, 100) n});
		wait_for($node, 'spilled: some are', q{SELECT parked = 64 AND more FROM jobq.limits WHERE type = 'group' AND group_key = 'spilled'});
		$closed->query_safe('SELECT pg_advisory_unlock(1)');
		wait_for($node, 'spilled: the others run', 'SELECT count(*) = 65 FROM done');
	});
$closed->quit;
wait_for($node, 'spilled: all of them run', 'SELECT count(*) = 0 FROM jobq_internal.job');
is(sql(q{SELECT count(*) FROM (SELECT n - lag(n, 1, 0) OVER (ORDER BY at) AS step FROM done) d WHERE step <> 1}), 0, 'spilled: in order');

#
# A tick waits for a job which ends after the scheduler has seen the live job.  The clock is two
# minutes after a tick, so the test decides when the next tick comes.
#
my $start = sql(q{SELECT date_bin('10 min', clock_timestamp(), '2000-01-01') + interval '12 min' - clock_timestamp()});
sql("SELECT jobq.test_clock('$start')");
sql(q{SELECT jobq.schedule('waits', '*/10 * * * *', 'note', overlap => 'queue', options => '{"queue": "still"}')});
sql("SELECT jobq.test_clock(interval '$start' + '10 min')");
wait_for($node, 'tick: the first one', 'SELECT count(*) = 1 FROM jobq_internal.job');
hold('jobq-schedule-looked',
	sub { sql("SELECT jobq.test_clock(interval '$start' + '20 min')"); },
	sub { sql(q{SELECT jobq.cancel(id) FROM jobq_internal.job}); });
wait_for($node, 'tick: the next one comes', q{SELECT count(*) = 1 FROM jobq_internal.job WHERE headers ->> 'schedule' = 'waits'});

#
# The clock is put forward, and a schedule created, after the scheduler has read the clock for
# its round.  The next run of the new schedule is not mistaken for the time of a clock which was
# ahead.
#
hold('jobq-lane-read',
	sub { $node->reload; },
	sub {
		sql("SELECT jobq.test_clock(interval '$start' + '30 min')");
		sql(q{SELECT jobq.schedule('new', '*/10 * * * *', 'note', options => '{"queue": "still"}')});
	});
scheduler_looks('clock put forward');
is(sql(q{SELECT last_tick IS NULL, next_tick > jobq_internal.clock() FROM jobq.schedules WHERE name = 'new'}), 't|t',
	'clock put forward: no tick before the schedule was created');
sql(q{SELECT jobq.unschedule('new')});

#
# Ticks which cannot commit together are each done alone.
#
sql(q{
SELECT count(jobq.schedule('part ' || n, '* * * * *', 'note', options => '{"queue": "still"}')) FROM generate_series(1, 10) n;
SELECT injection_points_attach('jobq-parts-done', 'error')});
sql("SELECT jobq.test_clock(interval '$start' + '31 min')");
wait_for($node, 'parts: all have their jobs', q{SELECT count(*) = 10 FROM jobq_internal.schedule WHERE name LIKE 'part %' AND last_tick IS NOT NULL});
is(sql(q{SELECT count(*) - count(DISTINCT (headers ->> 'schedule', run_at)) FROM jobq_internal.job WHERE headers ->> 'schedule' LIKE 'part %'}),
	'0', 'parts: one for a tick');
is(sql('SELECT count(*) FROM jobq_internal.schedule WHERE last_error IS NOT NULL'), '0', 'parts: and none has failed');
sql(q{
SELECT injection_points_detach('jobq-parts-done');
SELECT count(jobq.unschedule(name)) FROM jobq.schedules WHERE name LIKE 'part %';
SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE headers ->> 'schedule' LIKE 'part %'});

#
# A queue has the mode "consumer" for a moment unseen by the scheduler.  A worker pops a job of
# the queue at this moment.
#
sql(q{SELECT jobq.create_queue('turns'), jobq.enqueue('note', queue => 'turns')});
wait_for($node, 'mode: a job runs', q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind = 'note' AND headers IS NULL});
hold('jobq-limits-read',
	sub { sql(q{SELECT jobq.alter_queue('turns', mode => 'consumer')}); },
	sub {
		sql(q{SELECT jobq.enqueue('note', queue => 'turns')});
		# other workers pop other jobs
		sql("SELECT jobq.enqueue('note') AS id \\gset\nSELECT state FROM jobq.wait(:id, '5 min')") foreach 1 .. 5;
		wait_for($node, 'mode: it does not run', q{SELECT count(*) = 1 FROM jobq.jobs WHERE queue = 'turns' AND state = 'ready'});
		sql(q{SELECT jobq.alter_queue('turns', mode => 'worker')});
	});
wait_for($node, 'mode: then it runs', q{SELECT count(*) = 0 FROM jobq.jobs WHERE queue = 'turns' AND finished_at IS NULL});

#
# A database is dropped between the start of its scheduler and the scheduler's first check.  The
# scheduler is not connected then, and only the operating system shows the process.
#
sub schedulers
{
	my ($dboid) = @_;

	return scalar grep { /^\s*$node->{_pid} .*jobq scheduler for database $dboid\b/ } split /\n/, qx(ps -eo ppid,args);
}

sql(q{SELECT injection_points_attach('jobq-scheduler-begin', 'wait'); CREATE DATABASE brief});
my ($brief, $here) = split /\n/, sql(q{SELECT oid FROM pg_database WHERE datname IN ('brief', 'postgres') ORDER BY datname});
my $pid = scheduler_pid($node);
$node->safe_psql('brief', 'CREATE EXTENSION jobq');
ok(come_to(sub { schedulers($brief) >= 1 }), 'brief: its scheduler has been started');
sql('DROP DATABASE brief');
sql("SELECT pg_terminate_backend($pid)");
ok(wait_for_exit($pid) && come_to(sub { schedulers($here) >= 1 }), 'brief: the launcher has looked since it is gone');
release('jobq-scheduler-begin');
ok(come_to(sub {
	return schedulers($brief) == 0 && sql('SELECT count(*) FROM jobq_internal.scheduler_state() WHERE pid IS NOT NULL AND complete') == 1;
}), 'brief: it leaves, and another is served');
unlike(slurp_file($node->logfile), qr/FATAL:  cannot read pg_class/, 'brief: and does not complain');

#
# A new database gets the slot of a dropped database.  A consumer which comes before the new
# scheduler finds no data of the dropped database: no lanes, and no flag for loaded leases.
#
sub outside
{
	my ($database) = @_;

	sql("CREATE DATABASE $database");
	$node->safe_psql($database, q{CREATE EXTENSION jobq;
SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.enqueue('note', queue => 'outside')});
	return;
}
# the launcher needs a moment to notice the drop
foreach my $gone ('gone', 'lost', 'past')
{
	outside($gone);
	wait_for_scheduler($node, $gone);
	is($node->safe_psql($gone, q{SELECT id FROM jobq.reserve('{outside}', wait => '5 min')}), 1, "place: $gone uses one");
	sql("DROP DATABASE $gone WITH (FORCE)");
}
wait_for($node, 'place: nobody serves them', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'});
my $early;
hold('jobq-scheduler-start',
	sub {
		my $launcher = launcher_pid($node);

		stop_at_rest($node, $launcher);
		outside('new');
		signal_process('CONT', $launcher);
	},
	sub {
		$node->safe_psql('new', q{SELECT jobq.enqueue('note', queue => 'outside')});
		$early = $node->background_psql('new', on_error_stop => 0);
		# the first call may have waited for the scheduler until its timeout
		$early->query_until(qr/begun/, "\\echo begun\nSELECT 'job ' || id FROM jobq.reserve('{outside}', wait => '5 min');\n"
			  . "\\if :ERROR\nSELECT 'job ' || id FROM jobq.reserve('{outside}', wait => '5 min');\n\\endif\n");
		wait_for($node, 'place: a consumer waits for the scheduler', q{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE datname = 'new' AND query ~ 'jobq[.]reserve' AND state = 'active' AND wait_event = 'JobqLoad'});
	});
like($early->query_until(qr/job 1/, ''), qr/job 1/, 'place: and gets its job');
$early->quit;
sql('DROP DATABASE new WITH (FORCE)');

#
# A scheduler ends after it has read the leases: the next scheduler reads the leases again, and
# their rows are still needed.
#
sql(q{SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.enqueue('note', queue => 'outside')});
my $lease = sql(q{SELECT id || ', ' || token FROM jobq.reserve('{outside}', lease => '1 hour', wait => '5 min')});
hold_at_start('jobq-leases-read',
	sub {
		my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'jobq-leases-read'});
		signal_process('TERM', $pid);
		wait_for($node, 'lease: the next one is held', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-leases-read' AND pid <> $pid");
	});
wait_for($node, 'lease: there is a scheduler', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
sql(q{SELECT jobq.enqueue('note', queue => 'outside'); SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '5 min')});
wait_for($node, 'lease: rows that are not wanted are removed', 'SELECT count(*) < 2 FROM jobq_internal.lease');
$node->stop('immediate');
$node->start;
wait_for($node, 'lease: it is known after a crash', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
is(sql("SELECT jobq.ack($lease)"), '', 'lease: its job can be acknowledged');

#
# A job is cancelled while the scheduler reads the leases: no lease remains, which would keep a
# slot of the limiter.
#
sql(q{
SELECT jobq.create_queue('outside single', mode => 'consumer', max_running => 1);
SELECT jobq.enqueue('note', queue => 'outside single') FROM generate_series(1, 2)});
$lease = sql(q{SELECT id FROM jobq.reserve('{"outside single"}', lease => '1 hour', wait => '5 min')});
hold_at_start('jobq-leases-load',
	sub {
		is(sql("SELECT jobq.cancel($lease)"), 't', 'lease: its job is cancelled while it is read');
	});
wait_for($node, 'lease: all are read', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
is(sql(q{SELECT running FROM jobq.limits WHERE type = 'queue' AND queue = 'outside single'}), '0', 'lease: nothing runs');
is(sql(q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{"outside single"}', wait => '5 min')}), '1', 'lease: and the next job can be had');

#
# A scheduler ends after it has read the limits, and before it knows which groups wait for a job
# begun earlier.
#
sql(q{
CREATE FUNCTION stumble() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no good'; END $$;
SELECT jobq.register('stumble', 'stumble()', backoff => 'fixed 1 hour');
TRUNCATE done;
SELECT jobq.enqueue('stumble', queue => 'groups', group_key => 'held'), jobq.enqueue('note', queue => 'groups', group_key => 'held')});
wait_for($node, 'restored: a group waits', q{SELECT waits_for IS NOT NULL FROM jobq.limits WHERE type = 'group' AND group_key = 'held'});
hold_at_start('jobq-groups-restore',
	sub {
		my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'jobq-groups-restore'});
		signal_process('TERM', $pid);
		wait_for($node, 'restored: the next one is held', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-groups-restore' AND pid <> $pid");
	});
my $later = sql(q{SELECT jobq.enqueue('note', queue => 'groups', priority => 9)});
is(sql("SELECT state FROM jobq.wait($later, '5 min')"), 'completed', 'restored: a job of no group runs');
is(sql(q{SELECT state FROM jobq.jobs WHERE finished_at IS NULL AND queue = 'groups' AND kind = 'note'}), 'ready', 'restored: it waits still');
sql(q{SELECT count(jobq.cancel(id)) FROM jobq.jobs WHERE finished_at IS NULL AND queue = 'groups'});

#
# A lease is granted while the scheduler still uses a clock which was put back.
#
sql(q{SELECT jobq.create_queue('elsewhere', mode => 'consumer'); SELECT jobq.enqueue('elsewhere', queue => 'elsewhere')});
# the process held below has already ranked the lane
sql(q{SELECT jobq.release(id, token) FROM jobq.reserve('{elsewhere}', wait => '5 min')});
hold('jobq-leases-expire',
	sub { sql(q{SELECT jobq.test_clock('10 min')}); },
	sub { $lease = sql(q{SELECT jobq.test_clock('0') \g /dev/null
SELECT id || ', ' || token FROM jobq.reserve('{elsewhere}', wait => '5 min')}); });
my $round = sql(q{SELECT jobq.enqueue('note', delay => '1 ms')});
wait_for($node, 'lease: the scheduler has gone round', "SELECT state = 'completed' FROM jobq.status($round)");
is(sql("SELECT jobq.ack($lease); SELECT state FROM jobq.jobs WHERE kind = 'elsewhere'"), "\ncompleted", 'lease: it has not ended');

#
# The scheduler exits while it ends a lease: the next scheduler knows that the lease is over.
#
sql(q{SELECT jobq.create_queue('lapsing', mode => 'consumer');
SELECT jobq.enqueue('lapsing', queue => 'lapsing', max_attempts => 1)});
hold('jobq-parts-done',
	sub { sql(q{SELECT count(*) FROM jobq.reserve('{lapsing}', lease => '1 s', wait => '5 min')}); },
	sub {
		my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'jobq-parts-done'});
		signal_process('TERM', $pid);
		wait_for_exit($pid);
	});
wait_for($node, 'lapsing: it has ended', q{SELECT count(*) = 1 FROM jobq.dead_letters WHERE kind = 'lapsing'});
sql(q{SELECT jobq.delete_many(state => 'dead')});

#
# The clock is put forward after a session in reserve() has read the clock.  This is not
# mistaken for a clock put back, after which a rate begins anew.
#
sql(q{SELECT jobq.create_queue('paced', mode => 'consumer', rate => '6 per hour burst 3');
SELECT jobq.enqueue('paced', queue => 'paced') FROM generate_series(1, 12)});
my $take = q{SELECT count(*) FROM jobq.reserve('{paced}', 10)};
wait_for($node, 'rate: it is known', q{SELECT count(*) = 1 FROM jobq.limits WHERE type = 'queue' AND queue = 'paced'});
my $wait_and_take = q{SELECT count(*) FROM jobq.reserve('{paced}', 10, wait => '5 min')};
is(sql($wait_and_take), '3', 'rate: three at first');
my $late = $node->background_psql('postgres');
hold('jobq-reserve-begins',
	sub { $late->query_until(qr/begun/, "\\echo begun\n$take;\n"); },
	sub {
		sql(q{SELECT injection_points_detach('jobq-reserve-begins'); SELECT jobq.test_clock('10 min 1 s')});
		is(sql($wait_and_take), '1', 'rate: one more');
		sql(q{SELECT injection_points_attach('jobq-reserve-begins', 'wait')});
	});
$late->quit;
is(sql($take), '0', 'rate: and no other');
sql(q{SELECT jobq.test_clock('0')});

#
# Workers are restarted while a worker is about to look for a job: the next job runs in a new
# process.
#
sql(q{
CREATE FUNCTION pid() RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(pg_backend_pid())';
SELECT jobq.register('pid', 'pid()', queue => 'alone')});
my $old = sql(q{SELECT jobq.enqueue('pid')});
my $process = sql("SELECT result FROM jobq.wait($old, '5 min')");
my $new;
hold('jobq-worker-pops',
	sub { $new = sql(q{SELECT jobq.enqueue('pid')}); },
	sub { sql('SELECT jobq.restart_workers()'); });
isnt(sql("SELECT result FROM jobq.wait($new, '5 min')"), $process, 'restart: a job that waits then runs in a new process');

#
# The last job of a batch fails after the check for failed jobs: the batch is reported as
# failing, and not only as failed.
#
$batch = sql(q{SELECT jobq.create_batch('fails last', on_failure => '{"kind": "x", "queue": "steps"}')});
sql(qq{SELECT count(*) FROM jobq.add_jobs($batch, 'x', '{1,2}', options => '{"queue": "steps", "max_attempts": 1}')});
sql("SELECT jobq.start_batch($batch)");
my @held = map { sql(q{SELECT id || ', ' || token FROM jobq.reserve('{steps}', lease => '1 hour', wait => '5 min')}) } 1 .. 2;
hold('jobq-batch-reads',
	sub { sql("SELECT jobq.ack($held[1])"); },
	sub { sql("SELECT jobq.nack($held[0])"); });
wait_for($node, 'fails last: the batch is over', "SELECT state = 'failed' FROM jobq.batches WHERE id = $batch");
is(sql(q{SELECT headers ->> 'batch_state' FROM jobq.live_jobs WHERE queue = 'steps'}), 'failing', 'fails last: it was failing');
sql(q{SELECT jobq.cancel_many(queue => 'steps', state => 'waiting')});

#
# However long an evaluation takes to read a workflow: a step which has begun before does not
# keep the other steps from their start.
#
sql(q{SELECT injection_points_attach('jobq-steps-read', 'wait')});
$batch = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "one", "workflow": [{"name": "x", "kind": "x", "queue": "steps"}]},
	{"name": "two", "workflow": [{"name": "x", "kind": "x", "queue": "steps"}]}, {"name": "end", "needs": ["one"], "kind": "x", "queue": "steps"}]}')});
my $both = "SELECT count(*) = 2 FROM jobq.steps WHERE batch_id = $batch AND state = 'running'";
for (1 .. 20)
{
	wait_for($node, 'slow looks: one more, or both', "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'jobq-steps-read') OR ($both)");
	last if sql($both) eq 't';
	usleep(10_000);
	# the scheduler may just have gone on
	$node->psql('postgres', q{SELECT injection_points_wakeup('jobq-steps-read')}, stderr => \my $unused);
	last if soon($both);
}
is(sql("SELECT count(*) FROM jobq.steps WHERE batch_id = $batch AND state = 'running'"), 2, 'slow looks: both steps have begun');
release('jobq-steps-read');
sql("SELECT jobq.cancel_batch($batch)");

#
# A dead step is retried after the scheduler has seen the failure: the workflow goes on.
#
$batch = sql(q{SELECT jobq.create_workflow('{"name": "retried soon", "on_failure": {"kind": "x", "queue": "steps"}, "options": {"queue": "steps", "max_attempts": 1},
	"steps": [{"name": "a", "kind": "x"}, {"name": "b", "kind": "x"}, {"name": "c", "kind": "x", "needs": ["a"]}]}')});
@held = map { sql(q{SELECT id || ', ' || token FROM jobq.reserve('{steps}', lease => '1 hour', wait => '5 min')}) } 1 .. 2;
my ($dead) = $held[0] =~ /^(\d+)/;
hold('jobq-batch-reads',
	sub { sql("SELECT jobq.nack($held[0])"); },
	sub { sql("SELECT jobq.retry($dead)"); });
is(sql(q{SELECT string_agg(name, ' ' ORDER BY id) FROM (SELECT j.id, s.name, jobq.ack(j.id, j.token) FROM jobq.reserve('{steps}', wait => '5 min') j JOIN jobq.steps s ON s.job_id = j.id) t}),
	'a', 'retried soon: it is there again');
sql("SELECT jobq.ack($held[1])");
is(sql(q{SELECT string_agg(name, ' ' ORDER BY id) FROM (SELECT j.id, s.name, jobq.ack(j.id, j.token) FROM jobq.reserve('{steps}', wait => '5 min') j JOIN jobq.steps s ON s.job_id = j.id) t}),
	'c', 'retried soon: what needs it follows');
is(sql("SELECT concat_ws(' ', state, completed, dead, cancelled) FROM jobq.wait_batch($batch, '5 min')"), 'completed 3 0 0', 'retried soon: the workflow is completed');

#
# A dead step is retried, and completed, after the scheduler has read its workflow; or a step
# cancelled by the failure is locked then.  The dependent steps follow nevertheless.
#
my $reserve = q{SELECT id || ', ' || token FROM jobq.reserve('{steps}', lease => '1 hour', wait => '5 min')};
my $flow = q{SELECT jobq.create_workflow('{"options": {"queue": "steps", "max_attempts": 1},
	"steps": [{"name": "a", "kind": "x"}, {"name": "b", "kind": "x"}, {"name": "c", "kind": "x", "needs": ["a"]}]}')};
my $states = q{SELECT string_agg(state, ' ' ORDER BY name) FROM jobq.steps WHERE batch_id = };
$batch = sql($flow);
@held = map { sql($reserve) } 1 .. 2;
($dead) = $held[0] =~ /^(\d+)/;
sql("SELECT jobq.nack($held[0])");
wait_for($node, 'done meanwhile: what needs it is cancelled', "SELECT ($states $batch) = 'dead running cancelled'");
hold('jobq-batch-reads',
	sub { sql("SELECT jobq.ack($held[1])"); },
	sub { sql("SELECT jobq.retry($dead); SELECT jobq.ack(id, token) FROM jobq.reserve_job($dead)"); });
scheduler_looks('done meanwhile');
is(sql("$states $batch"), 'completed completed ready', 'done meanwhile: what needs it waits');
sql("SELECT jobq.cancel_batch($batch); SELECT state FROM jobq.wait_batch($batch, '5 min')");

# A dependent step may fail at once, in the same evaluation: here the result is no array.
(my $mapped = $flow) =~ s/"needs": \["a"\]/"needs": ["a"], "map": {"\$result": "a"}/;
$batch = sql($mapped);
@held = map { sql($reserve) } 1 .. 2;
($dead) = $held[0] =~ /^(\d+)/;
hold('jobq-batch-reads',
	sub { sql("SELECT jobq.nack($held[0])"); },
	sub { sql("SELECT jobq.retry($dead); SELECT jobq.ack(id, token, '1') FROM jobq.reserve_job($dead); SELECT jobq.ack($held[1])"); });
is(sql("SELECT concat_ws(' ', state, completed, dead, cancelled) FROM jobq.wait_batch($batch, '5 min')"), 'failed 2 1 0', 'fails meanwhile: the workflow has failed');

$batch = sql($flow);
@held = map { sql($reserve) } 1 .. 2;
($dead) = $held[0] =~ /^(\d+)/;
sql("SELECT jobq.nack($held[0]); SELECT jobq.ack($held[1])");
is(sql("SELECT state FROM jobq.wait_batch($batch, '5 min')"), 'failed', 'locked meanwhile: the workflow has failed');
my $locker = $node->background_psql('postgres');
$locker->query_safe("BEGIN; SELECT FROM jobq_internal.archive WHERE id = (SELECT job_id FROM jobq.steps WHERE batch_id = $batch AND name = 'c') FOR UPDATE");
sql("SELECT jobq.retry($dead); SELECT jobq.ack(id, token) FROM jobq.reserve('{steps}', wait => '5 min')");
scheduler_looks('locked meanwhile');
is(sql("SELECT state FROM jobq.batches WHERE id = $batch"), 'running', 'locked meanwhile: the workflow is not over');
$locker->query_safe('COMMIT');
$locker->quit;
wait_for($node, 'locked meanwhile: what needs it waits', "SELECT ($states $batch) = 'completed completed ready'");
sql("SELECT jobq.cancel_batch($batch); SELECT state FROM jobq.wait_batch($batch, '5 min')");

#
# Large jobs are written, and cancelled, in several evaluations, between which other batches
# have their turn.
#
$batch = sql(q{SELECT jobq.create_workflow('{"options": {"queue": "steps"}, "steps": [{"name": "list", "kind": "x"},
	{"name": "each", "kind": "x", "needs": ["list"], "map": {"$result": "list", "path": ["of"]}, "payload": [{"$element": "value"}, {"$result": "list", "path": ["large"]}]}]}')});
@held = (sql($reserve));
my $large = q{jsonb_build_object('large', (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 30000) n), 'of', (SELECT jsonb_agg(n) FROM generate_series(1, 30) n))};
my $written = "SELECT count(*) FROM jobq.steps WHERE element IS NOT NULL AND batch_id = $batch";
my $n = at_first('large, written', "SELECT jobq.ack($held[0], $large)", $written);
ok($n > 0 && $n < 30, "large, written: $n of 30 at first");
wait_for($node, 'large: all are written', "SELECT ($written) = 30");
$n = at_first('large, cancelled', "SELECT jobq.cancel_batch($batch)", "$written AND state = 'cancelled'");
ok($n > 0 && $n < 30, "large, cancelled: $n of 30 at first");
wait_for($node, 'large: all are cancelled', "SELECT ($written AND state = 'cancelled') = 30");

#
# A dead letter of a batch is retried after the scheduler has seen the failing batch: the job is
# not cancelled with the remaining jobs.
#
$batch = sql(q{SELECT jobq.create_batch('retried late')});
sql(qq{SELECT count(*) FROM jobq.add_jobs($batch, 'x', '{1,2,3}', options => '{"queue": "steps", "max_attempts": 1}')});
sql("SELECT jobq.start_batch($batch)");
@held = map { sql($reserve) } 1 .. 3;
($dead) = $held[0] =~ /^(\d+)/;
sql("SELECT jobq.nack($held[0])");
wait_for($node, 'retried late: the batch is failing', "SELECT state = 'failing' FROM jobq.batches WHERE id = $batch");
hold('jobq-batch-reads',
	sub { sql("SELECT jobq.ack($held[1])"); },
	sub { sql("SELECT jobq.retry($dead)"); });
scheduler_looks('retried late');
is(sql("SELECT state FROM jobq.jobs WHERE id = $dead"), 'ready', 'retried late: it waits');
sql("SELECT jobq.ack(id, token) FROM jobq.reserve_job($dead)");
sql("SELECT jobq.ack($held[2])");
is(sql("SELECT concat_ws(' ', state, completed, dead, cancelled) FROM jobq.wait_batch($batch, '5 min')"), 'completed 3 0 0', 'retried late: the batch is completed');

#
# A session notified of an attempt's end sees no worker at the job, although the worker has not
# left the job yet: a retried dead letter waits.
#
sql(q{
CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'fails'; END $$;
SELECT jobq.register('fails', 'fails()', queue => 'alone', max_attempts => 1)});
my $letter;
hold('jobq-attempt-over',
	sub { $letter = sql(q{SELECT jobq.enqueue('fails')}); },
	sub {
		is(sql("SELECT state FROM jobq.wait($letter, '5 min')"), 'dead', 'over: it has failed');
		sql("SELECT jobq.edit($letter, queue => 'still'); SELECT jobq.retry($letter)");
		is(sql("SELECT state FROM jobq.status($letter)"), 'ready', 'over: and waits again');
		is(sql("SELECT state FROM jobq.jobs WHERE id = $letter"), 'ready', 'over: in the view, too');
	});
sql("SELECT jobq.cancel($letter)");

#
# A consumer's nack() has committed, so the job's row is there anew, but the lease is not
# released yet when its time is over: the attempt is charged once.
#
sql(q{SELECT jobq.create_queue('nacked', mode => 'consumer');
SELECT jobq.enqueue('any', queue => 'nacked', backoff => 'fixed 1 day') FROM generate_series(1, 2)});
my @leased = map { [ split /\|/, sql(q{SELECT id, token FROM jobq.reserve('{nacked}', lease => '1 min', wait => '5 min')}) ] } 1 .. 2;
my $nacks = $node->background_psql('postgres');
$nacks->query_safe(q{SELECT injection_points_set_local(); SELECT injection_points_attach('jobq-stats-add', 'wait')});
$nacks->query_until(qr/began/, "\\echo began\nSELECT jobq.nack($leased[0][0], $leased[0][1]);\n");
wait_for($node, 'nacked: its commit is held', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-stats-add'});
sql(q{SELECT jobq.test_clock('2 min')});
wait_for($node, 'nacked: leases have ended', "SELECT attempt = 1 FROM jobq_internal.job WHERE id = $leased[1][0]");
is(sql("SELECT attempt FROM jobq_internal.job WHERE id = $leased[0][0]"), '1', 'nacked: it is charged once');
sql(q{SELECT injection_points_wakeup('jobq-stats-add')});
$nacks->query_safe('SELECT 1');
$nacks->quit;
is(sql("SELECT state, attempt FROM jobq.status($leased[0][0])"), 'retryable|1', 'nacked: and waits');
sql(q{SELECT jobq.test_clock('0'); SELECT jobq.cancel_many(queue => 'nacked', state => 'waiting')});

#
# A session has committed a job, and is held before it adds the job to the ready set.  Other
# sessions see the job, but no later job of its group overtakes it, however the later job enters
# the ready set.  Queue "alone" has a single worker, which runs the jobs in sequence.  The end
# of a last job without a group shows that the other jobs have had their turn.
#
sub overtakes
{
	my ($what, $point, $before, $commit, $meanwhile) = @_;
	my $held = $node->background_psql('postgres');

	sql('DELETE FROM done');
	$held->query_safe("SELECT injection_points_set_local(); SELECT injection_points_attach('$point', 'wait')");
	$before->($held);
	$held->query_until(qr/began/, "\\echo began\n$commit;\n");
	wait_for($node, "$what: the session is held", "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = '$point'");
	$meanwhile->();
	sql("SELECT injection_points_wakeup('$point')");
	$held->query_safe('SELECT 1');
	$held->quit;
	is(sql(q{SELECT jobq.wait_queue('alone', '5 min')}), 't', "$what: all jobs have run");
	is(sql('SELECT string_agg(n::text, NULL ORDER BY at) FROM done WHERE n < 3'), '12', "$what: the jobs run in order");
	return;
}

sub grouped
{
	my ($n) = @_;

	return qq{SELECT jobq.enqueue('note', '{"n": $n}', queue => 'alone', group_key => 'g')};
}

sub run_last
{
	my $last = sql(q{SELECT jobq.enqueue('note', '{"n": 3}', queue => 'alone')});

	is(sql("SELECT state FROM jobq.wait($last, '5 min')"), 'completed', 'the last job has run');
	return;
}

run_last();
overtakes(
	'another session',
	'jobq-committed',
	sub { },
	grouped(1),
	sub {
		sql(grouped(2));
		run_last();
	});
overtakes(
	'a scan',
	'jobq-committed',
	sub {
		my ($held) = @_;

		$held->query_safe('BEGIN; ' . grouped(1));
		run_last();
		$held->query_safe(grouped(2));
		sql(q{SELECT jobq.enqueue('note', '{"n": 4}', queue => 'alone', delay => '5 s')});
	},
	'COMMIT',
	sub {
		wait_for($node, 'a scan: the delayed job has run', 'SELECT count(*) = 1 FROM done WHERE n = 4');
	});
overtakes(
	'many jobs',
	'jobq-committed',
	sub {
		$_[0]->query_safe('BEGIN; ' . grouped(1)
			  . q{; SELECT count(jobq.enqueue('note', '{"n": 5}', queue => 'alone')) FROM generate_series(1, 70)});
	},
	'COMMIT',
	sub {
		sql(grouped(2));
		run_last();
	});
sql('BEGIN; ' . grouped(1) . q{; PREPARE TRANSACTION 'first'});
overtakes(
	'COMMIT PREPARED',
	'jobq-prepared-ended',
	sub { },
	q{COMMIT PREPARED 'first'},
	sub {
		sql(grouped(2));
		run_last();
	});
sql(q{SELECT jobq.create_queue('handed', mode => 'consumer'); SELECT jobq.enqueue('any', queue => 'handed')});
sql(q{SELECT jobq.ack(id, token) FROM jobq.reserve('{handed}', wait => '5 min')});
overtakes(
	'reserve()',
	'jobq-committed',
	sub { },
	q{SELECT jobq.enqueue('any', queue => 'handed', group_key => 'g')},
	sub {
		my $second = sql(q{SELECT jobq.enqueue('any', queue => 'handed', group_key => 'g')});

		is(sql("SELECT count(*) FROM jobq.reserve('{handed}') WHERE id = $second"), 0, 'reserve(): the second job is not handed out');
		sql(grouped($_)) foreach 1, 2;
	});
sql(q{SELECT jobq.cancel_many(queue => 'handed', state => 'waiting')});

# The worker is busy until the returned session ends.
sub busy
{
	my $lock = $node->background_psql('postgres');

	$lock->query_safe('SELECT pg_advisory_lock(1)');
	sql(q{SELECT jobq.enqueue('note', '{"n": 3}', queue => 'alone')});
	sleeps($node, 'the worker is busy', 1);
	return $lock;
}

my $lock = busy();
sql(grouped(2));
my $moved = sql(grouped(1));
overtakes(
	'edit()',
	'jobq-committed',
	sub { },
	"SELECT jobq.edit($moved, priority => -1)",
	sub {
		$lock->quit;
		run_last();
	});

#
# A job must be rewritten because its group has changed, and a session has locked the row: the
# other jobs of the group wait for the outcome.  alter_queue() refuses this change while there
# are such jobs, but other transactions may be about to commit.
#
$lock = busy();
$moved = sql(grouped(1));
sql(grouped(2));
sql(q{DELETE FROM done; UPDATE jobq_internal.queue SET group_scope = 'database' WHERE name = 'alone'});
my $mover = $node->background_psql('postgres');
$mover->query_safe("BEGIN; SELECT jobq.edit($moved, priority => -1)");
$lock->quit;
run_last();
$mover->query_safe('ROLLBACK');
$mover->quit;
is(sql(q{SELECT jobq.wait_queue('alone', '5 min')}), 't', 'a row that is taken: all jobs have run');
is(sql('SELECT string_agg(n::text, NULL ORDER BY at) FROM done WHERE n < 3'), '12', 'a row that is taken: the jobs run in order');

#
# DROP EXTENSION waits for the scheduler, which has read a schedule and now wants the table of
# jobs.  No tick comes earlier: the interval is long, because real time goes on, too.
#
sql(q{SELECT jobq.unschedule('waits'); SELECT jobq.schedule('drop', 'every 30 min', 'note', options => '{"queue": "still"}')});
my ($drop, $out, $err);
hold('jobq-schedule-read',
	sub { sql(q{SELECT jobq.test_clock('40 min')}); },
	sub {
		$drop = IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c', 'DROP EXTENSION jobq CASCADE' ],
			'<', File::Spec->devnull, '>', \$out, '2>', \$err);
		wait_for($node, 'drop: it waits', q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'relation' AND NOT granted AND mode = 'AccessExclusiveLock'});
	});
ok($drop->finish, 'drop: it comes to its end') or diag($err);
unlike(slurp_file($node->logfile), qr/deadlock detected/, 'drop: without a deadlock');

$node->stop;
no_failed_assertion($node);
done_testing();
