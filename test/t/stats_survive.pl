# The statistics survive the end of the server: exactly after a stop, and approximately after a
# crash.  A name without a slot is counted, too.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node(
	'main', q{
jobq.databases = 'postgres'
jobq.workers = 'manual=0; *=2'
jobq.max_stats = 16
max_prepared_transactions = 2
});
my $file = $node->data_dir . '/pg_stat/jobq.stat';
$node->start;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# The statistics agree with the table.
my $live = q{SELECT coalesce(sum(ready + scheduled + blocked + running), -1) FROM jobq.stats};
my $agree = "SELECT bool_and(exact) AND ($live) = (SELECT count(*) FROM jobq_internal.job) AND sum(dead_letters) = (SELECT count(*) FROM jobq_internal.dead_letter) FROM jobq.stats";
my $all = q{SELECT queue, kind, tenant, ready, scheduled, enqueued, started, completed, failed, dead, wait_p99, run_max, since FROM jobq.stats ORDER BY 1, 2, 3};
my $past = q{SELECT * FROM jobq.stats_history(step => 'day') ORDER BY 1, 2, 3, 4, 5};

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION good(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION bad(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT jobq.reject_current(''no'')';
SELECT jobq.register('good', 'good(jsonb)'), jobq.register('bad', 'bad(jsonb)');
SELECT jobq.create_queue('manual')});
sql(q{SELECT jobq.enqueue('good', queue => 'manual', delay => '1 hour')});
wait_for($node, 'the database is served', q{SELECT sum(scheduled) = 1 AND bool_and(exact) FROM jobq.stats});
sql(q{SELECT jobq.reset_stats()});
sql(q{SELECT jobq.enqueue('good') FROM generate_series(1, 5); SELECT jobq.enqueue('bad');
SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 3)});
wait_for($node, 'jobs have run', q{SELECT sum(completed) = 5 AND sum(dead) = 1 AND sum(running) = 0 FROM jobq.stats});
wait_for($node, 'statistics agree with the table', $agree);

wait_for($node, 'what they have cost is known', q{SELECT sum(wal_bytes) > 0 AND sum(buffers) > 0 FROM jobq.stats WHERE kind = 'good'});
my $cost = q{SELECT wal_bytes FROM jobq.stats WHERE queue = 'default' AND kind = 'good'};

# a stop
my $paid = sql($cost);
my ($before, $history) = (sql($all), sql($past));
like($before, qr/^default\|bad\|\|0\|0\|1\|1\|0\|1\|1\|/m, 'a job has failed');
like($before, qr/^manual\|good\|\|3\|1\|3\|0\|/m, 'jobs wait, and one is scheduled');
$node->stop;
ok(-s $file, 'the statistics are in a file');
$node->start;
is(sql($all), $before, 'after a stop they are as they were');
is(sql($past), $history, 'and so is the past');
cmp_ok(sql($cost), '>=', $paid, 'and what runs have cost');
is(sql('SELECT DISTINCT exact FROM jobq.stats'), 't', 'they are known to be right');

# a stop without a checkpoint: the jobs are counted from the table
sql(q{SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 7)});
$node->stop('immediate');
$node->start;
wait_for($node, 'after an immediate stop they agree with the table again', $agree);
like(sql(q{SELECT ready, enqueued FROM jobq.stats WHERE queue = 'manual' AND kind = 'good'}),
	qr/^10\|(3|10)$/, 'and counters are as they were saved');

# a crash of a single process
sql(q{SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 2)});
crash_backend($node);
wait_for($node, 'after a crash they agree with the table again', $agree);
# the file is written each minute
like(sql(q{SELECT ready, enqueued FROM jobq.stats WHERE queue = 'manual' AND kind = 'good'}),
	qr/^12\|(3|5|10|12)$/, 'counters are those of the file');

# a damaged file
$node->stop;
truncate($file, 1000) or die;
my $offset = -s $node->logfile;
$node->start;
ok($node->log_contains('the statistics of jobq begin anew', $offset), 'a damaged file is told');
wait_for($node, 'and the jobs are counted', $agree);
is(sql(q{SELECT enqueued FROM jobq.stats WHERE queue = 'manual'}), '0', 'counters begin anew');

# more names than slots
sql(q{SELECT jobq.create_queue('outside', mode => 'consumer')});
sql(q{SELECT jobq.enqueue('kind ' || i, queue => 'outside') FROM generate_series(1, 100) i});
is(sql(q{SELECT sum(enqueued), sum(ready) FROM jobq.stats WHERE queue = 'outside'}),
	'100|100', 'nothing is lost of names without a place');
cmp_ok(sql(q{SELECT enqueued FROM jobq.stats WHERE queue = 'outside' AND kind = '(other)'}),
	'>=', 84, 'they are counted together');
sql(q{SELECT jobq.create_queue('q' || i) FROM generate_series(1, 20) i});
sql(q{SELECT jobq.enqueue('good', queue => 'q' || i, delay => '1 hour') FROM generate_series(1, 20) i});
is(sql($live), sql('SELECT count(*) FROM jobq_internal.job'), 'nor of queues');
$node->stop;
$node->start;
is(sql($live), sql('SELECT count(*) FROM jobq_internal.job'), 'nor by a stop');
sql(q{SELECT jobq.cancel_many(queue => name, state => 'waiting') FROM jobq.queues});
is(sql($live), '0', 'all of it is taken back');

# rolled-back queues, and idle queues, leave their slots to other queues
sql(q{SELECT jobq.drop_queue(name, force => true) FROM jobq.queues WHERE name <> 'default' AND name <> 'manual'});
$node->safe_psql(
	'postgres',
	join '',
	map { "SELECT jobq.test_clock('" . 2 * $_ . " minutes'); BEGIN; SELECT jobq.enqueue('good', queue => 'never$_'); ROLLBACK;" } 1 .. 40);
sql(q{SELECT jobq.register('fresh', 'good(jsonb)'); SELECT jobq.enqueue('fresh', queue => 'fresh', delay => '1 day')});
is(sql(q{SELECT kind, scheduled FROM jobq.stats WHERE queue = 'fresh'}), 'fresh|1', 'what was rolled back keeps no place');
sql('SELECT jobq.reset_stats()');
$node->safe_psql(
	'postgres',
	join '',
	map { "SELECT jobq.test_clock('" . (100 + 2 * $_) . " minutes'); SELECT jobq.enqueue('good', queue => 'idle$_', delay => '1 day'); SELECT jobq.cancel_many(queue => 'idle$_', state => 'waiting');" } 1 .. 40);
sql(q{SELECT jobq.enqueue('fresh', queue => 'fresher', delay => '1 day')});
is(sql(q{SELECT kind, scheduled FROM jobq.stats WHERE queue = 'fresher'}), 'fresh|1', 'idle queues give way');
is(sql(q{SELECT sum(enqueued) FROM jobq.stats WHERE queue LIKE 'idle%' OR queue = '(other)' AND kind = '(other)'}), '40', 'what they have counted is kept');
my $drop = q{SELECT jobq.cancel_many(queue => name, state => 'waiting'), jobq.drop_queue(name, force => true) FROM jobq.queues WHERE name <> 'default' AND name <> 'manual'};
sql($drop);

# jobs enqueued while their names had no slot, which end while their names have a slot
my $named = q{(SELECT kind FROM jobq.stats WHERE queue = 'owing')};
sql(q{SELECT jobq.create_queue('owing', mode => 'consumer'); SELECT jobq.test_clock('200 minutes')});
sql(q{SELECT jobq.enqueue('kind ' || i, queue => 'owing') FROM generate_series(1, 40) i});
sql("SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE queue = 'owing' AND kind IN $named");
my $rest = sql('SELECT count(*) FROM jobq.live_jobs');
cmp_ok($rest, '>', 16, 'owing: names have had no place');
is(sql($live), $rest, 'owing: their jobs are counted together');
sql(q{SELECT jobq.test_clock('202 minutes')});
sql(q{SELECT jobq.cancel(id) FROM jobq.live_jobs});
cmp_ok(sql(q{SELECT count(*) FROM jobq.stats WHERE queue = 'owing' AND cancelled = 1}), '>', 4, 'owing: some have got one when their jobs end');
is(sql($live), '0', 'owing: no row shows jobs that are not there');
is(sql(q{SELECT enqueued, cancelled FROM (SELECT sum(enqueued) AS enqueued, sum(cancelled) AS cancelled FROM jobq.stats WHERE queue = 'owing') s}),
	'40|40', 'owing: what has happened is where it was counted');
sql(q{SELECT jobq.test_clock('204 minutes')});
sql(q{SELECT jobq.enqueue('latest', queue => 'owing')});
is(sql(q{SELECT ready FROM jobq.stats WHERE queue = 'owing' AND kind = 'latest'}), '1', 'owing: names without jobs give way');
is(sql($live), '1', 'owing: and take along what they owe');

# the same for queues without a slot, which are dropped afterwards
sql($drop);
sql(q{SELECT jobq.create_queue('q' || i) FROM generate_series(1, 20) i});
sql(q{SELECT jobq.enqueue('good', queue => 'q' || i, delay => '1 day') FROM generate_series(1, 20) i});
my $unnamed = sql(q{SELECT string_agg(quote_literal(name), ', ') FROM jobq.queues WHERE name LIKE 'q%' AND name NOT IN (SELECT queue FROM jobq.stats)});
isnt($unnamed, '', 'dropped: queues are counted with others');
sql("SELECT jobq.cancel_many(queue => name, state => 'waiting') FROM jobq.queues WHERE name NOT IN ($unnamed)");
sql(q{SELECT jobq.test_clock('206 minutes')});
sql("SELECT jobq.cancel_many(queue => name, state => 'waiting') FROM jobq.queues WHERE name IN ($unnamed)");
is(sql($live), '0', 'dropped: what queues owe is set off');
sql($drop);
wait_for($node, 'dropped: and is forgotten with them', "SELECT bool_and(exact) AND ($live) = 0 FROM jobq.stats");
sql(q{SELECT jobq.test_clock('0')});

# a count during other work
SKIP:
{
	skip 'this server has no injection points', 17
	  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	sql('CREATE EXTENSION injection_points');

	# the counter process is held, or ends, and no other process has to wait
	my $counts = q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq counter' AND wait_event = 'jobq-count-begun'};
	my $hold = sub {
		wait_for($node, 'nobody counts', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'jobq counter')});
		sql(q{SELECT injection_points_attach('jobq-count-begun', 'wait')});
		sql(q{BEGIN; SELECT jobq.enqueue('good', queue => 'manual'); PREPARE TRANSACTION 'p'});
		sql(q{ROLLBACK PREPARED 'p'});
		wait_for($node, 'the jobs are being counted', $counts);
		sql(q{SELECT injection_points_detach('jobq-count-begun')});
	};
	$hold->();
	my $id = sql(q{SELECT jobq.enqueue('good', delay => '300 ms')});
	is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'jobs do not wait for their count');
	is(sql($counts), 't', 'which goes on');
	sql(q{SELECT injection_points_wakeup('jobq-count-begun')});
	wait_for($node, 'they agree with the table when they are counted', $agree);

	$hold->();
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'jobq counter'});
	wait_for($node, 'they are counted by another if who counts is terminated', $agree);

	$hold->();
	my ($counter, $scheduler) = split /\|/, sql(q{SELECT max(pid) FILTER (WHERE backend_type = 'jobq counter'),
max(pid) FILTER (WHERE backend_type = 'jobq scheduler') FROM pg_stat_activity});
	sql("SELECT pg_terminate_backend($scheduler)");
	wait_for($node, 'they are counted by another if the scheduler is terminated', $agree);
	sql(q{SELECT injection_points_wakeup('jobq-count-begun')});
	wait_for($node, 'the one before leaves', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $counter)");
	is(sql($agree), 't', 'and what it has counted is no more of interest');

	sql(q{SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 10)});
	sql(q{SELECT jobq.enqueue('good', queue => 'going', delay => '1 hour') FROM generate_series(1, 5)});
	my $open = $node->background_psql('postgres');
	$open->query_safe(q{BEGIN; SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 20)});
	sql(q{SELECT injection_points_attach('jobq-count-begun', 'wait')});
	sql(q{BEGIN; SELECT jobq.enqueue('good', queue => 'manual'); PREPARE TRANSACTION 'p'});
	sql(q{COMMIT PREPARED 'p'});
	wait_for($node, 'the jobs are being counted',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-count-begun'});
	is(sql('SELECT DISTINCT exact FROM jobq.stats'), 'f', 'meanwhile they are not said to be exact');
	$open->query_safe('COMMIT');
	$open->quit;
	sql(q{SELECT jobq.cancel_many(queue => 'going', state => 'waiting'), jobq.drop_queue('going', force => true)});
	sql(q{SELECT jobq.create_queue('coming'); SELECT jobq.enqueue('good', queue => 'coming', delay => '1 hour')});
	sql(q{SELECT jobq.enqueue('good', queue => 'manual') FROM generate_series(1, 40);
SELECT jobq.cancel(id) FROM (SELECT id FROM jobq.live_jobs ORDER BY id LIMIT 3) j});
	sql(q{SELECT injection_points_detach('jobq-count-begun'); SELECT injection_points_wakeup('jobq-count-begun')});
	wait_for($node, 'they agree with the table when they are counted', $agree);
	is(sql($live), '69', 'with what has come and gone meanwhile');
	is(sql(q{SELECT scheduled FROM jobq.stats WHERE queue = 'coming'}), '1',
		'a new queue has nothing of one that was dropped meanwhile');

	# a session commits before the count, and adds its changes after the count
	my $late = $node->background_psql('postgres');
	$late->query_safe(q{SELECT injection_points_set_local(); SELECT injection_points_attach('jobq-stats-add', 'wait')});
	$late->query_until(qr/began/, "\\echo began\nSELECT jobq.enqueue('good', queue => 'coming', delay => '1 hour');\n");
	wait_for($node, 'a transaction has committed', q{SELECT (SELECT count(*) = 2 FROM jobq.live_jobs WHERE queue = 'coming')
AND EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'jobq-stats-add')});
	sql(q{BEGIN; SELECT jobq.enqueue('good', queue => 'manual'); PREPARE TRANSACTION 'p'});
	sql(q{COMMIT PREPARED 'p'});
	wait_for($node, 'the jobs are counted', q{SELECT bool_and(exact) FROM jobq.stats});
	sql(q{SELECT injection_points_wakeup('jobq-stats-add')});
	$late->query_safe(q{SELECT 1});
	$late->quit;
	is(sql($live), '71', 'what it has done is counted once');
}

# changes which are not noted while the database is not served
$node->append_conf('postgresql.conf', "jobq.databases = ''");
$node->restart;
sql(q{BEGIN; SELECT jobq.enqueue('good', queue => 'manual'); PREPARE TRANSACTION 'p'});
sql(q{COMMIT PREPARED 'p'});

# a clock put back, without a new count
sql(q{SELECT jobq.create_queue('later'); SELECT jobq.test_clock('2 hours'); SELECT jobq.enqueue('good', queue => 'later', delay => '30 minutes')});
sql(q{SELECT jobq.test_clock('0'); SELECT jobq.enqueue('good', queue => 'later', delay => '1 hour')});
is(sql(q{SELECT ready, scheduled, exact FROM jobq.stats WHERE queue = 'later'}), '0|2|f', 'jobs wait for their time by the clock as it is');
$node->append_conf('postgresql.conf', "jobq.databases = 'postgres'");
$node->reload;
wait_for($node, 'a database that is served agrees with the table', $agree);

# without a slot for another process, the scheduler counts
$node->append_conf('postgresql.conf', "max_worker_processes = 3");
$node->stop('immediate');
$node->start;
wait_for($node, 'without a place for who counts they agree with the table', $agree);
wait_for($node, 'no place was left', q{SELECT count(*) = 3 FROM pg_stat_activity WHERE backend_type ~ 'logical replication launcher|jobq launcher|jobq scheduler'});
$node->append_conf('postgresql.conf', "max_worker_processes = 24");
$node->restart;

# counters reset before a crash are still reset afterwards
sub saves
{
	my ($what, $minutes) = @_;
	my $before = (stat $file)[1];

	# each minute, by jobq's clock
	for (1 .. 20)
	{
		$minutes += 2;
		sql("SELECT jobq.test_clock('$minutes minutes')");
		$node->reload;
		for (1 .. 10)
		{
			return pass($what) if (stat $file)[1] != $before;
			select undef, undef, undef, 0.1;
		}
	}
	return fail($what);
}
wait_for($node, 'reset: the server is as it was', $agree);
cmp_ok(sql('SELECT sum(enqueued) FROM jobq.stats'), '>', 0, 'reset: jobs were counted');
saves('reset: the file knows of them', 0);
sql('SELECT jobq.reset_stats()');
saves('reset: and that they are forgotten', 5);
$node->stop('immediate');
$node->start;
wait_for($node, 'reset: statistics agree with the table', $agree);
is(sql('SELECT sum(enqueued) FROM jobq.stats'), '0', 'reset: counters have begun anew');

# a dropped database leaves its slots to other databases, even if the server crashes before the
# next write of the file
my $used = q{SELECT used FROM jobq_internal.capacity() WHERE slots = 'statistics'};
sql('CREATE DATABASE gone');
$node->append_conf('postgresql.conf', "jobq.databases = 'postgres, gone'");
$node->reload;
my $other = q{CREATE EXTENSION jobq; SELECT jobq.create_queue('outside', mode => 'consumer');
SELECT jobq.enqueue('kind ' || i, queue => 'outside') FROM generate_series(1, 5) i};
$node->safe_psql('gone', $other);
wait_for($node, 'gone: its jobs are counted', q{SELECT sum(ready) = 5 AND bool_and(exact) FROM jobq.stats}, 'gone');
$node->restart;
wait_for($node, 'gone: another database is served', $agree);
my $with = sql($used);
sql('DROP DATABASE gone');
my $without = sql($used);
cmp_ok($without, '<', $with, 'gone: its places are free');
$node->stop('immediate');
$node->start;
wait_for($node, 'gone: so they are after a crash', "SELECT ($used) <= $without AND ($agree)");

# a database which is no longer served leaves its room to a served database
sql('CREATE DATABASE other');
$node->append_conf('postgresql.conf', "jobq.max_databases = 1\njobq.databases = 'postgres'");
$node->restart;
wait_for($node, 'room: a database has it', $agree);
$node->append_conf('postgresql.conf', "jobq.databases = 'other'");
$node->reload;
$node->safe_psql('other', $other);
wait_for($node, 'room: another one has it', q{SELECT sum(ready) = 5 AND bool_and(exact) FROM jobq.stats}, 'other');
is(sql('SELECT count(*) FROM jobq.stats'), '0', 'room: which the first has not any more');
$node->append_conf('postgresql.conf', "jobq.max_databases = 8\njobq.databases = 'postgres'");
$node->reload;
wait_for($node, 'room: until it is served again', $agree);
$node->restart;

# a new extension starts without the old statistics
sql('DROP EXTENSION jobq CASCADE');
sql('CREATE EXTENSION jobq');
wait_for($node, 'the new extension is served', q{SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE pid IS NOT NULL});
sql(q{SELECT jobq.create_queue('outside', mode => 'consumer'); SELECT jobq.enqueue('good', queue => 'outside')});
wait_for($node, 'a new extension counts from the beginning', q{SELECT sum(ready) = 1 AND bool_and(exact) FROM jobq.stats});

# an immediate stop kills a session in the middle of its update: the postmaster does not wait
# forever
SKIP:
{
	skip 'this server has no injection points', 1
	  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	sql(q{CREATE EXTENSION IF NOT EXISTS injection_points; SELECT injection_points_attach('jobq-stats-pin', 'wait')});
	my $held = $node->background_psql('postgres');
	$held->query_until(qr/begun/, "\\echo begun\nSELECT jobq.enqueue('good', queue => 'outside');\n");
	wait_for($node, 'killed: it is held', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-stats-pin'});
	{
		local $ENV{PGCTLTIMEOUT} = 120;
		ok($node->stop('immediate', fail_ok => 1), 'killed: the server has ended');
	}
	$node->start;
	wait_for($node, 'killed: statistics agree with the table', $agree);
}

$node->stop;
no_failed_assertion($node);
done_testing();
