# The day gets its partition of the archive while other sessions read.

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

my $node = jobq_node('main', q{jobq.databases = 'postgres'});
$node->start;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# No day gets its partition while tables of a user have the names of the partitions.
sql(q{
BEGIN;
CREATE EXTENSION jobq;
DO $$
BEGIN
	FOR i IN -1..8 LOOP
		EXECUTE format('CREATE TABLE jobq_internal.archive_%s ()', to_char((now() AT TIME ZONE 'UTC') + i * interval '1 day', 'YYYYMMDD'));
	END LOOP;
END $$;
COMMIT;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note(jsonb)')});

# The time is 1:00 in the morning, far from midnight.
my $morning = sql(q{SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + interval '25 hours' - (now() AT TIME ZONE 'UTC')});
sql("SELECT jobq.test_clock('$morning')");
wait_for($node, 'tables in the place of partitions: doctor() tells',
	q{SELECT EXISTS (SELECT FROM jobq.doctor() WHERE detail LIKE 'the scheduler cannot make the partitions%is not a partition of jobq_internal.archive')});
sql(q{SELECT count(jobq.enqueue('note')) FROM generate_series(1, 1000)});
wait_for($node, 'what is finished at first has no partition of its own',
	'SELECT count(*) = 1000 FROM jobq_internal.archive_default');

# New plans all the time: a plan with the old partitions could go wrong.
sql(q{
CREATE TABLE stop ();
CREATE SEQUENCE reads;
CREATE PROCEDURE read() LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		EXECUTE $q$ SELECT count(*) FROM jobq.jobs WHERE kind = 'note' $q$ INTO n;
		IF n <> 1000 THEN RAISE 'there are % jobs', n; END IF;
		PERFORM nextval('reads');
		COMMIT;
	END LOOP;
END $$});
my $script = $node->basedir . '/read.sql';
append_to_file($script, "CALL read();\n");
my ($out, $err);
my $readers = IPC::Run::start(
	[ $node->installed_command('pgbench'), '-n', '-c', '8', '-t', '1', '-f', $script, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'<', File::Spec->devnull, '>', \$out, '2>', \$err,
	IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
wait_for($node, 'others read',
	q{SELECT count(*) = 8 AND (SELECT last_value > 100 FROM reads) FROM pg_stat_activity WHERE query = 'CALL read();'});

# If a reader blocks the scheduler for too long, the scheduler tries again later.
sql(q{DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'jobq_internal'::regnamespace AND relname ~ '^archive_[0-9]+$' LOOP
		EXECUTE format('DROP TABLE jobq_internal.%I', name);
	END LOOP;
END $$});
my $made = '';
foreach my $hour (1 .. 20)
{
	my $minutes = 61 * $hour;

	sql("SELECT jobq.test_clock('$morning'::interval + interval '$minutes min')");
	$made = sql(q{
CREATE OR REPLACE FUNCTION made() RETURNS boolean LANGUAGE sql AS $$
	SELECT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'jobq_internal.archive'::regclass
		AND relname = to_char(jobq_internal.clock() AT TIME ZONE 'UTC', '"archive_"YYYYMMDD')) $$;
DO $$ BEGIN
	FOR i IN 1..1500 LOOP
		EXIT WHEN made();
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT made()});
	last if $made eq 't';
}
is($made, 't', 'the day has its partition');
wait_for($node, 'others have read meanwhile, and go on',
	'SELECT last_value > ' . sql('SELECT last_value + 100 FROM reads') . ' FROM reads');
sql('INSERT INTO stop DEFAULT VALUES');
$readers->finish;
is($err, '', 'nobody has missed a job');
like($out, qr{transactions actually processed: 8/8}, 'until all have ended');
is(sql('SELECT count(*) FROM jobq_internal.archive_default'), '0', 'what was there has gone along');

#
# Queues with shorter retention times.
#
sql(q{
CREATE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
SELECT jobq.register('fail', 'fail(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('brief', archive_retention => '1 day', dead_retention => '2 hours'), jobq.create_queue('usual')});
my $batch = sql(q{SELECT jobq.create_batch('of brief')});
sql(qq{SELECT jobq.add_jobs($batch, 'note', ARRAY['{}'::jsonb], '{"queue": "brief"}')});
sql("SELECT jobq.start_batch($batch)");
sql(q{SELECT jobq.enqueue(kind, queue => queue) FROM unnest('{note,fail}'::text[]) kind, unnest('{brief,usual}'::text[]) queue});
my $jobs = q{SELECT string_agg(concat_ws(' ', queue, kind, state), ', ' ORDER BY queue, kind, id) FROM jobq.jobs WHERE queue IN ('brief', 'usual')};
wait_for($node, 'jobs have finished', "SELECT ($jobs) = 'brief fail dead, brief note completed, brief note completed, usual fail dead, usual note completed'");
my $counts = sql("SELECT total, completed FROM jobq.batches WHERE id = $batch");
like(sql(q{SELECT DISTINCT tableoid::regclass FROM jobq_internal.archive WHERE kind = 'note' AND queue_id = (SELECT id FROM jobq_internal.queue WHERE name = 'brief')}),
	qr{^jobq_internal.archive_\d+$}, 'they are in a partition');

# The clock is put forward twice: jobq deletes nothing until the second call confirms the time.
# A running pass does not notice the new time, but the next pass does.
my $hours = 5;
sub gone_later
{
	my ($name, $left) = @_;

	foreach (1 .. 20)
	{
		sql("SELECT jobq.test_clock('$morning'::interval + interval '$hours hours'), jobq.test_clock('$morning'::interval + interval '$hours hours')");
		last if sql(qq{
DO \$\$ BEGIN
	FOR i IN 1..500 LOOP
		EXIT WHEN ($jobs) = '$left';
		PERFORM pg_sleep(0.01);
	END LOOP;
END \$\$;
SELECT ($jobs) = '$left'}) eq 't';
		$hours += 2;
	}
	is(sql($jobs), $left, $name);
	return;
}
gone_later('dead letters of the queue go', 'brief note completed, brief note completed, usual fail dead, usual note completed');
$hours = 72;
gone_later('finished jobs of the queue go', 'usual fail dead, usual note completed');
is(sql("SELECT total, completed FROM jobq.batches WHERE id = $batch"), $counts, 'and a batch knows what has gone');
is(sql(q{SELECT count(*) FROM jobq_internal.archive WHERE kind = 'note'}), '1001', 'those of others stay');
sql(q{SELECT jobq.alter_queue('usual', archive_retention => '1 day')});
$hours += 2;
gone_later('a queue that wants it now is heard', 'usual fail dead');
is(sql(q{SELECT count(*) FROM jobq_internal.archive WHERE kind = 'note'}), '1000', 'and nothing else goes');

# Jobs finished after the clock was put back follow the current clock.
sql("SELECT jobq.test_clock('$morning'::interval + interval '5 hours')");
my $again = sql(q{SELECT jobq.enqueue('note', queue => 'brief', delay => '1 ms')});
is(sql("SELECT state FROM jobq.wait($again, '5 min')"), 'completed', 'the scheduler goes by the clock that was put back');
$hours = 50;
gone_later('what is finished then goes, too', 'usual fail dead');

#
# Old batches are deleted, except a batch referenced by a table of a user.  The deletion of this
# batch is not retried all the time.
#
my @old = map { sql('SELECT jobq.create_batch()') } 1 .. 12;
sql("SELECT jobq.start_batch(id) FROM jobq.batches WHERE id IN (@{[join ',', @old]})");
wait_for($node, 'old batches: all are over', 'SELECT bool_and(finished_at IS NOT NULL) FROM jobq_internal.batch');
sql("CREATE TABLE refers (batch bigint REFERENCES jobq_internal.batch); INSERT INTO refers VALUES ($old[1])");
sub batches_go
{
	my ($name, $left) = @_;

	for (1 .. 20)
	{
		sql("SELECT jobq.test_clock('$morning'::interval + interval '$hours hours'), jobq.test_clock('$morning'::interval + interval '$hours hours')");
		last if sql(q{
DO $$ BEGIN
	FOR i IN 1..500 LOOP
		EXIT WHEN (SELECT count(*) FROM jobq_internal.batch) = LEFT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT count(*) FROM jobq_internal.batch} =~ s/LEFT/$left/r) eq $left;
		$hours += 2;
	}
	is(sql('SELECT count(*) FROM jobq_internal.batch'), $left, $name);
	return;
}
$hours += 40 * 24;
batches_go('old batches go, but for one that is referred to', 1);
is(sql('SELECT id FROM jobq_internal.batch'), $old[1], 'which stays');
my $told = () = slurp_file($node->logfile) =~ /could not look after its archive now: update or delete on table "batch"/g;
cmp_ok($told, '<=', 25, 'and of which the log is told once in a pass');
cmp_ok($told, '>', 0, 'but told');
sql('DROP TABLE refers');
$hours += 2;
batches_go('until it is not any more', 0);

#
# An event trigger forbids DDL: jobs go on, and doctor() and metrics() report the trouble, until
# the day can get its partition.
#
my $trouble = q{FROM jobq.doctor() WHERE detail LIKE 'the scheduler cannot make the partitions of the archive since %: no DDL now'};
sql(q{
CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no DDL now'; END $$;
CREATE EVENT TRIGGER forbid ON ddl_command_start EXECUTE FUNCTION forbid()});
$hours += 10 * 24;
sql("SELECT jobq.test_clock('$morning'::interval + interval '$hours hours')");
wait_for($node, 'without DDL: doctor() tells that there are no partitions', "SELECT EXISTS (SELECT $trouble)");
cmp_ok(sql(q{SELECT (regexp_match(jobq.metrics(), 'jobq_scheduler_troubles (\d+)'))[1]}), '>', 0, 'and a metric does');
my $late = sql(q{SELECT jobq.enqueue('note')});
is(sql("SELECT state FROM jobq.wait($late, '10 min')"), 'completed', 'and jobs are done');
is(sql("SELECT count(*) FROM jobq_internal.archive_default WHERE id = $late"), '1', 'and kept');
my $said = () = slurp_file($node->logfile) =~ /could not look after its archive now: no DDL now/g;
cmp_ok($said, '<=', 3, 'and the log is not told of each try');
sql('DROP EVENT TRIGGER forbid');
$hours += 2;
sql("SELECT jobq.test_clock('$morning'::interval + interval '$hours hours')");
wait_for($node, 'with DDL: the day has its partition',
	"SELECT count(*) = 1 FROM jobq_internal.archive WHERE id = $late AND tableoid <> 'jobq_internal.archive_default'::regclass");
wait_for($node, 'and the trouble is over', "SELECT NOT EXISTS (SELECT $trouble)");

$node->stop;
no_failed_assertion($node);
done_testing();
