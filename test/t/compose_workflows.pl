# Workflows: each step, and each element of an array, runs once and after all needed steps.  This
# holds across crashes, retention, a dump, and replication.
#
# JOBQ_FAN_OUT is the number of array elements, and JOBQ_BLOWS the number of crashes of each type.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, job bigint, result bigint, server int DEFAULT current_setting('port')::int);
-- one more than the sum of the results of what it needs
CREATE INDEX ON effect (job);
CREATE FUNCTION step(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	sum bigint := (SELECT 1 + coalesce(sum(n::bigint), 0) FROM jsonb_array_elements_text(payload) n);
BEGIN
	INSERT INTO effect (job, result) VALUES (job.id, sum);
	PERFORM pg_sleep(0.001);
	RETURN to_jsonb(sum);
END $$;
CREATE FUNCTION doomed(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.reject_current('doomed');
END $$;
CREATE FUNCTION told(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE sql AS $$
	INSERT INTO effect (job, result) VALUES (-(job.headers ->> 'batch_id')::bigint, 0)
$$;
-- an array of so many numbers; twice each; their sum
CREATE FUNCTION numbers(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_build_object('numbers', jsonb_agg(i)) FROM generate_series(1, payload::int) i
$$;
CREATE FUNCTION twice(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO effect (job, result) VALUES (job.id, payload::int);
	PERFORM pg_sleep(0.001);
	RETURN to_jsonb(payload::int * 2);
END $$;
SELECT jobq.register('numbers', 'numbers(jsonb)', max_attempts => 100, backoff => 'fixed 5ms'),
	jobq.register('twice', 'twice(jsonb, jobq.job_context)', max_attempts => 100, backoff => 'fixed 5ms');
SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', max_attempts => 100, backoff => 'fixed 5ms'),
	jobq.register('doomed', 'doomed(jsonb)', max_attempts => 100, backoff => 'fixed 5ms'),
	jobq.register('told', 'told(jsonb, jobq.job_context)', max_attempts => 100, backoff => 'fixed 5ms');
SELECT jobq.create_queue('outside', mode => 'consumer');
-- layers of a width, each step of which needs all of the layer before
CREATE FUNCTION layers(depth int, width int) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_workflow(jsonb_build_object('on_finish', '{"kind": "told"}'::jsonb, 'steps', jsonb_agg(jsonb_build_object('name', d || '.' || w, 'kind', 'step',
		'needs', (SELECT coalesce(jsonb_agg(d - 1 || '.' || i), '[]') FROM generate_series(1, width) i WHERE d > 1),
		'payload', (SELECT coalesce(jsonb_agg(jsonb_build_object('$result', d - 1 || '.' || i)), '[]') FROM generate_series(1, width) i WHERE d > 1)))))
	FROM generate_series(1, depth) d, generate_series(1, width) w
$$;
-- a chain, and a step that fails on the way
CREATE FUNCTION broken_chain(length int, at int) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.create_workflow(jsonb_build_object('chain', (SELECT jsonb_agg(jsonb_build_object('kind', CASE WHEN i = at THEN 'doomed' ELSE 'step' END,
		'payload', CASE WHEN i > 1 AND i <> at THEN jsonb_build_array(jsonb_build_object('$result', (i - 1)::text)) ELSE '[]' END) ORDER BY i)
	FROM generate_series(1, length) i), 'on_finish', '{"kind": "told"}'::jsonb))
$$;
};

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=4'
});
$node->start;
$node->safe_psql('postgres', $setup);

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

#
# Crashes.
#
my @blows = (
	sub { $node->stop('immediate'); $node->start },
	sub { crash_backend($node) },
	sub { sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'}) },
	sub { crash_backend($node, 'QUIT') },
	sub { $node->restart },
	sub { sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type IN ('jobq scheduler', 'jobq worker')}) });
my ($steps, $runs) = (0, 0);
my $times = $ENV{JOBQ_BLOWS} // 1;
foreach my $blow ((@blows) x $times)
{
	sql('SELECT count(layers(4, 3)) FROM generate_series(1, 20)');
	sql('SELECT count(layers(12, 1)) FROM generate_series(1, 10)');
	sql('SELECT count(broken_chain(6, 4)) FROM generate_series(1, 10)');
	$steps += 20 * 12 + 10 * 12 + 10 * 6;
	$runs += 20 * 12 + 10 * 12 + 10 * 3;
	# large enough for the scheduler to keep in memory
	sql('SELECT layers(60, 1), layers(2, 40), broken_chain(60, 40)');
	$steps += 60 + 80 + 60;
	$runs += 60 + 80 + 39;
	poll($node, "SELECT count(*) > $runs - 250 FROM effect WHERE job > 0");
	$blow->();
}
wait_for($node, 'crashes: all workflows are over', 'SELECT NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL)');
wait_for($node, 'crashes: and have told so', 'SELECT NOT EXISTS (SELECT FROM jobq_internal.job)');
is(sql('SELECT count(*) FROM jobq.steps'), $steps, 'crashes: all steps are there');
is( sql(q{SELECT state, count(*) FROM jobq.steps GROUP BY 1 ORDER BY 1}),
	join("\n", 'cancelled|' . 40 * @blows * $times, 'completed|' . ($steps - 51 * @blows * $times), 'dead|' . 11 * @blows * $times),
	'crashes: each has ended as it should');
is( sql(q{SELECT count(*) FROM jobq.steps s LEFT JOIN (SELECT job, count(*) AS n FROM effect GROUP BY 1) e ON e.job = s.job_id
		WHERE coalesce(e.n, 0) <> CASE s.state WHEN 'completed' THEN 1 ELSE 0 END}),
	0, 'crashes: each that is completed has run once, and no other');
is( sql(q{SELECT count(*) FROM jobq_internal.step s CROSS JOIN unnest(needs) AS need JOIN effect e ON e.job = s.job_id JOIN effect f ON f.job = need WHERE f.n > e.n}),
	0, 'crashes: none before what it needs');
is( sql(q{SELECT count(*) FROM jobq_internal.step s JOIN effect e ON e.job = s.job_id WHERE e.result <> 1 +
		(SELECT coalesce(sum(f.result), 0) FROM unnest(s.needs) need JOIN effect f ON f.job = need)}),
	0, 'crashes: each had the results of what it needs');
is( sql(q{SELECT count(*), count(DISTINCT job) FROM effect WHERE job < 0}),
	join('|', (43 * @blows * $times) x 2), 'crashes: each workflow has told its end once');

#
# The scheduler keeps the workflow in memory.  A session locks the past of the workflow while a step
# ends, and then rolls back.
#
my $kept = sql(q{SELECT jobq.create_workflow(jsonb_build_object('options', '{"queue": "outside"}'::jsonb, 'steps', '[{"name": "a", "kind": "x"}, {"name": "b", "kind": "x"}]'
	|| (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'told', 'queue', 'default', 'needs', '["b"]'::jsonb)) FROM generate_series(1, 40) i)))});
sub finish_step
{
	my ($flow, $name) = @_;

	poll($node, "SELECT count(jobq.ack(r.id, r.token)) = 1 FROM jobq.steps s CROSS JOIN LATERAL jobq.reserve_job(s.job_id) r WHERE s.batch_id = $flow AND s.name = '$name'");
	return;
}
# wait until the scheduler has evaluated all pending batches
sub looked
{
	foreach (1 .. 2)
	{
		my $fence = sql('SELECT jobq.create_batch()');
		sql("SELECT jobq.start_batch($fence)");
		poll($node, "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $fence");
	}
	return;
}
finish_step($kept, 'a');
looked();
my $past = $node->background_psql('postgres');
$past->query_safe("BEGIN; SELECT jobq.rerun_steps($kept, 'a')");
finish_step($kept, 'b');
looked();
$past->query_safe('ROLLBACK');
$past->quit;
wait_for($node, 'kept: what has ended meanwhile is known', "SELECT state = 'completed' FROM jobq.batches WHERE id = $kept");

# The scheduler forgets the workflow with news that no evaluation has used: the role has 500 other
# batches that wait for locks.  A sweep, after ten seconds at the earliest, would read the whole
# workflow.  A slow machine gets three attempts to be faster than the sweep.
my @others = split /\n/, sql(q{
CREATE TEMP TABLE other AS SELECT jobq.create_batch() AS id FROM generate_series(1, 500);
SELECT count(*) FROM other, jobq.add_jobs(id, 'x', '{1}', '{"queue": "outside"}') \gset
SELECT count(jobq.start_batch(id)) FROM other \gset
SELECT id FROM other});
my $others = join ',', @others;
my $locks = $node->background_psql('postgres');
$locks->query_safe("BEGIN; SELECT count(*) FROM (SELECT FROM jobq_internal.batch WHERE id IN ($others) FOR NO KEY UPDATE) b");
sql(qq{SELECT count(jobq.ack(r.id, r.token)) FROM (SELECT id FROM jobq.live_jobs WHERE batch_id IN ($others) OFFSET 0) j CROSS JOIN LATERAL jobq.reserve_job(j.id) r});
# their pauses grow
usleep(5_000_000);
my ($begun, $took);
foreach my $attempt (1 .. 3)
{
	my $flow = sql(q{SELECT jobq.create_workflow(jsonb_build_object('options', '{"queue": "outside"}'::jsonb, 'steps', '[{"name": "a", "kind": "x"}, {"name": "b", "kind": "x"}, {"name": "c", "kind": "x"}]'
	|| (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'x', 'needs', '["b", "c"]'::jsonb)) FROM generate_series(1, 40) i)))});

	finish_step($flow, 'a');
	looked();
	$past = $node->background_psql('postgres');
	$past->query_safe("BEGIN; SELECT jobq.rerun_steps($flow, 'a')");
	$begun = time;
	finish_step($flow, 'b');
	looked() foreach 1 .. 4;
	$past->query_safe('ROLLBACK');
	$past->quit;
	finish_step($flow, 'c');
	poll($node, "SELECT count(*) = 40 FROM jobq.steps WHERE batch_id = $flow AND state = 'ready'");
	$took = time - $begun;
	sql("SELECT jobq.cancel_batch($flow)");
	last if $took < 10;
}
cmp_ok($took, '<', 10, 'kept: the workflow is read as a whole after news was lost');
$locks->query_safe('ROLLBACK');
$locks->quit;
work_off($node, 'kept: the other batches are over', "SELECT count(*) FROM jobq.batches WHERE id IN ($others) AND finished_at IS NULL");

#
# Sessions and steps add steps, with crashes meanwhile.
#
# Each "grow" step except the last adds the next "grow" step and a plain step.  Both new steps need
# the adding step.  The last "grow" step needs all plain steps.
sql(q{
CREATE FUNCTION grow(payload jsonb, job jobq.job_context) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	n int := payload ->> 'n';
	last int := payload ->> 'last';
BEGIN
	INSERT INTO effect (job, result) VALUES (job.id, 1);
	IF n < last THEN
		PERFORM jobq.add_steps(job.batch_id, jsonb_build_array(
			jsonb_build_object('name', 'grow ' || n + 1, 'kind', 'grow', 'needs', jsonb_build_array('grow ' || n), 'payload', jsonb_build_object('n', n + 1, 'last', last)),
			jsonb_build_object('name', 'beside ' || n, 'kind', 'step', 'needs', jsonb_build_array('grow ' || n), 'payload', jsonb_build_array(jsonb_build_object('$result', 'grow ' || n)))));
	ELSE
		PERFORM jobq.add_steps(job.batch_id, jsonb_build_array(jsonb_build_object('name', 'sum', 'kind', 'step',
			'needs', (SELECT jsonb_agg('beside ' || i) FROM generate_series(1, last - 1) i),
			'payload', (SELECT jsonb_agg(jsonb_build_object('$result', 'beside ' || i)) FROM generate_series(1, last - 1) i))));
	END IF;
	PERFORM pg_sleep(0.001);
	RETURN '1';
END $$;
SELECT jobq.register('grow', 'grow(jsonb, jobq.job_context)', max_attempts => 100, backoff => 'fixed 5ms');
TRUNCATE effect});
my $length = 60;
foreach my $blow (@blows)
{
	my $done = sql('SELECT count(*) FROM effect');
	sql(qq{SELECT jobq.create_workflow('{"name": "grows", "on_finish": {"kind": "told"}, "steps": [{"name": "grow 1", "kind": "grow", "payload": {"n": 1, "last": $length}}]}') FROM generate_series(1, 2)});
	my $outside = sql(q{SELECT jobq.create_workflow('{"name": "outside", "on_finish": {"kind": "told"}, "steps": [{"name": "0", "kind": "x", "queue": "outside"}]}')});
	# each in a separate transaction
	my $add = sub {
		sql(join '', map { qq{SELECT jobq.add_steps($outside, '[{"name": "$_", "kind": "step", "needs": ["@{[ $_ - 1 ]}"], "payload": [1]}]');\n} } @_);
	};
	$add->(1 .. 20);
	poll($node, "SELECT count(*) > $done + 50 FROM effect");
	$blow->();
	poll($node, 'SELECT true');
	$add->(21 .. 40);
	wait_for_scheduler($node);
	sql(q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{outside}', wait => '5 min')});
}
wait_for($node, 'added: all workflows are over', 'SELECT NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL)');
wait_for($node, 'added: and have told so', 'SELECT NOT EXISTS (SELECT FROM jobq_internal.job)');
is( sql(q{SELECT b.name, s.state, count(*) FROM jobq.steps s JOIN jobq.batches b ON b.id = s.batch_id WHERE b.name IN ('grows', 'outside') GROUP BY 1, 2 ORDER BY 1}),
	join("\n", 'grows|completed|' . 2 * @blows * 2 * $length, 'outside|completed|' . 41 * @blows),
	'added: all steps have completed');
is( sql(q{SELECT count(*) FROM jobq.steps s JOIN jobq.batches b ON b.id = s.batch_id LEFT JOIN (SELECT job, count(*) AS n FROM effect GROUP BY 1) e ON e.job = s.job_id
		WHERE b.name IN ('grows', 'outside') AND s.name <> '0' AND coalesce(e.n, 0) <> 1}),
	0, 'added: each has run once');
is( sql(q{SELECT count(*) FROM jobq_internal.step s CROSS JOIN unnest(needs) AS need JOIN effect e ON e.job = s.job_id JOIN effect f ON f.job = need WHERE f.n > e.n}),
	0, 'added: none before what it needs');
is( sql(q{SELECT DISTINCT result FROM jobq.steps s JOIN effect e ON e.job = s.job_id WHERE s.name = 'sum'}),
	1 + 2 * ($length - 1), 'added: the last ones had all results');
is( sql('SELECT count(*), count(DISTINCT job) FROM effect WHERE job < 0'),
	join('|', (3 * @blows) x 2), 'added: each workflow has told its end once');

#
# Retention: the results needed by waiting steps outlive the archive.
#
my $old = sql(q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "step", "payload": [40]}, {"name": "outside", "kind": "x", "queue": "outside"},
	{"name": "b", "kind": "step", "needs": ["a", "outside"], "payload": [{"$result": "a"}]}]}')});
wait_for($node, 'retention: a step is completed', "SELECT state = 'completed' FROM jobq.steps WHERE batch_id = $old AND name = 'a'");
foreach my $days (1 .. 9)
{
	sql("SELECT jobq.test_clock('$days days'), jobq.test_clock('$days days')");
	wait_for($node, "retention: day $days has its partition",
		"SELECT to_regclass(to_char((jobq_internal.clock() + interval '3 days') AT TIME ZONE 'UTC', '\"jobq_internal.archive_\"YYYYMMDD')) IS NOT NULL");
}
wait_for($node, 'retention: the archive is gone', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.archive WHERE kind = 'step')});
is(sql("SELECT name, state FROM jobq.steps WHERE batch_id = $old ORDER BY job_id"), "a|completed\noutside|ready\nb|blocked", 'retention: the states are known');
is(sql('SELECT count(*) FROM jobq.steps WHERE state IS NULL'), 0, 'retention: of all steps');
sql(qq{SELECT jobq.add_steps($old, '[{"name": "late", "kind": "step", "needs": ["a"], "payload": [{"\$result": "a"}, 1]}]')});
wait_for($node, 'retention: a step is added that needs one which is long gone', "SELECT state = 'completed' FROM jobq.steps WHERE batch_id = $old AND name = 'late'");
sql(q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{outside}', wait => '5 min')});
wait_for($node, 'retention: the workflow ends', "SELECT state = 'completed' FROM jobq.batches WHERE id = $old");
is(sql(q{SELECT result FROM jobq.jobs WHERE kind = 'step' ORDER BY id}), "42\n43", 'retention: with the result of that step');
# a pass in progress may have read the old time, and there is one pass per hour
my $gone = 'NOT EXISTS (SELECT FROM jobq_internal.batch) AND NOT EXISTS (SELECT FROM jobq_internal.step)';
for (my $hours = 50 * 24; $hours < 200 * 24; $hours += 2)
{
	last if sql("SELECT jobq.test_clock('$hours hours'), jobq.test_clock('$hours hours'); SELECT pg_sleep(0.1); SELECT $gone") =~ /t$/;
}
wait_for($node, 'retention: steps go with their batch', "SELECT $gone");
sql(q{SELECT jobq.test_clock('0')});

#
# A job for each element of an array, and crashes from the first of these jobs to the last.
#
my $width = $ENV{JOBQ_FAN_OUT} // 800;
sql('TRUNCATE effect');
my $fan = sql(qq{SELECT jobq.create_workflow('{"on_finish": {"kind": "told"}, "steps": [{"name": "numbers", "kind": "numbers", "payload": $width},
	{"name": "twice", "kind": "twice", "needs": ["numbers"], "map": {"\$result": "numbers", "path": ["numbers"]}},
	{"name": "sum", "kind": "step", "needs": ["twice"], "payload": {"\$result": "twice"}}]}')});
wait_for($node, 'fan-out: it begins', "SELECT EXISTS (SELECT FROM jobq.steps WHERE element IS NOT NULL AND batch_id = $fan)");
foreach my $i (0 .. $#blows)
{
	poll($node, sprintf('SELECT count(*) >= %d FROM effect', $width * $i / @blows));
	$blows[$i]->();
}
wait_for($node, 'fan-out: the workflow is over', "SELECT state = 'completed' FROM jobq.batches WHERE id = $fan");
wait_for($node, 'fan-out: and has told so', 'SELECT NOT EXISTS (SELECT FROM jobq_internal.job)');
is(sql("SELECT name, state, elements, elements_completed, elements_dead FROM jobq.steps WHERE batch_id = $fan AND element IS NULL ORDER BY job_id"),
	"numbers|completed|||\ntwice|completed|$width|$width|0\nsum|completed|||", 'fan-out: all is completed');
is(sql("SELECT count(*), count(DISTINCT element), min(element), max(element) FROM jobq.steps WHERE element IS NOT NULL AND batch_id = $fan"),
	join('|', $width, $width, 0, $width - 1), 'fan-out: each element has one job');
is(sql("SELECT count(*) FROM jobq.steps e LEFT JOIN effect f ON f.job = e.job_id WHERE e.element IS NOT NULL AND e.batch_id = $fan AND f.result IS NOT DISTINCT FROM e.element + 1"),
	$width, 'fan-out: which has run with it');
is(sql('SELECT count(*) FROM effect WHERE job > 0'), $width + 1, 'fan-out: and once');
is( sql("SELECT j.result = (SELECT jsonb_agg(2 * i ORDER BY i) FROM generate_series(1, $width) i) FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = $fan AND s.name = 'twice' AND s.element IS NULL"),
	't', 'fan-in: all results, in the order of the elements');
is(sql("SELECT j.result FROM jobq.steps s JOIN jobq.jobs j ON j.id = s.job_id WHERE s.batch_id = $fan AND s.name = 'sum'"),
	1 + $width * ($width + 1), 'fan-in: which the next step gets');
is(sql('SELECT count(*) FROM effect WHERE job < 0'), 1, 'fan-in: the workflow has told its end once');

#
# A dump in the middle of a workflow.
#
my $half = q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "step", "payload": [40]}, {"name": "outside", "kind": "x", "queue": "outside"},
	{"name": "b", "kind": "step", "needs": ["a", "outside"], "payload": [{"$result": "a"}]}, {"name": "c", "kind": "step", "needs": ["b"], "payload": [{"$result": "b"}, {"$result": "a"}]}]}')};
my $end = q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{outside}', wait => '5 min')};
my $whole = "a|completed|41\nb|completed|42\nc|completed|84\noutside|completed|";
sub steps_of
{
	my ($server, $batch) = @_;
	return $server->safe_psql('postgres', "SELECT s.name, s.state, e.result FROM jobq.steps s LEFT JOIN effect e ON e.job = s.job_id WHERE batch_id = $batch ORDER BY s.name");
}

my $batch = sql($half);
wait_for($node, 'dump: a step is completed', "SELECT state = 'completed' FROM jobq.steps WHERE batch_id = $batch AND name = 'a'");
my $dump = $node->backup_dir . '.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');
my $copy = jobq_node('copy', q{
jobq.databases = 'postgres'
jobq.start_paused = on
});
$copy->start;
$copy->command_ok([ 'pg_restore', '-e', '-d', 'postgres', $dump ], 'pg_restore');
$copy->append_conf('postgresql.conf', 'jobq.start_paused = off');
$copy->reload;
foreach my $server ($node, $copy)
{
	wait_for_scheduler($server);
	$server->safe_psql('postgres', $end);
	wait_for($server, 'dump: the workflow ends on ' . $server->name, "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $batch");
	is(steps_of($server, $batch), $whole, 'dump: all steps have run on ' . $server->name);
}
is($copy->safe_psql('postgres', "SELECT count(*) FROM effect WHERE server = current_setting('port')::int"), 2, 'dump: those that were left, on the copy');
$copy->stop;
$node->stop;
no_failed_assertion($node, $copy);

#
# A switch-over by logical replication in the middle of a workflow.
#
my ($publisher, $subscriber) = jobq_pair($setup);
$subscriber->safe_psql('postgres', 'DELETE FROM jobq_internal.queue');
subscribe($publisher, $subscriber, 'jobq_internal.job', 'jobq_internal.queue', 'jobq_internal.dead_letter', 'jobq_internal.batch', 'jobq_internal.step', 'effect');
$batch = $publisher->safe_psql('postgres', $half);
wait_for($publisher, 'replication: a step is completed', "SELECT count(*) = 1 FROM jobq_internal.step WHERE batch_id = $batch AND state = 'c'");
catch_up($publisher);
is($subscriber->safe_psql('postgres', "SELECT name, state FROM jobq.steps WHERE batch_id = $batch ORDER BY job_id"),
	"a|completed\noutside|ready\nb|blocked\nc|blocked", 'replication: the subscriber knows how far it is');
# a step was cancelled after the failure of another step, which was retried and is completed
my $second = $publisher->safe_psql('postgres', q{SELECT jobq.create_queue('second', mode => 'consumer');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "x", "queue": "second"}, {"name": "b", "kind": "step", "needs": ["a"], "payload": []},
	{"name": "outside", "kind": "x", "queue": "second", "needs": ["b"]}, {"name": "c", "kind": "step", "needs": ["outside"], "payload": [{"$result": "b"}]}]}')});
$second =~ s/\s+//;
$publisher->safe_psql('postgres', q{SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{second}', wait => '5 min')});
wait_for($publisher, 'replication: a workflow fails', "SELECT state = 'failed' FROM jobq.batches WHERE id = $second");
$publisher->safe_psql('postgres', "SELECT jobq.retry_many(batch_id => $second)");
$publisher->safe_psql('postgres', q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{second}', wait => '5 min')});
wait_for($publisher, 'replication: it goes on', "SELECT state = 'ready' FROM jobq.steps WHERE batch_id = $second AND name = 'outside'");
catch_up($publisher);
is($subscriber->safe_psql('postgres', "SELECT name, state FROM jobq.steps WHERE batch_id = $second ORDER BY job_id"),
	"a|completed\nb|completed\noutside|ready\nc|blocked", 'replication: the subscriber knows how it goes on');
unsubscribe($publisher, $subscriber);
$subscriber->safe_psql('postgres', q{SELECT setval('jobq_internal.job_id_seq', 10000), jobq.adopt()});
$subscriber->safe_psql('postgres', $end);
wait_for($subscriber, 'replication: the subscriber brings it to its end', "SELECT state = 'completed' FROM jobq.batches WHERE id = $batch");
is(steps_of($subscriber, $batch), $whole, 'replication: with all results');
$subscriber->safe_psql('postgres', q{SELECT count(jobq.ack(id, token)) FROM jobq.reserve('{second}', wait => '5 min')});
wait_for($subscriber, 'replication: and the other one', "SELECT state = 'completed' FROM jobq.batches WHERE id = $second");
is(steps_of($subscriber, $second), "a|completed|\nb|completed|1\nc|completed|2\noutside|completed|", 'replication: with its results');
$subscriber->stop;
no_failed_assertion($publisher, $subscriber);

done_testing();
