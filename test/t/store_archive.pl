# The day gets its partition of the archive while others read.

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

# No day gets its partition as long as tables of somebody else's have their names.
sql(q{
BEGIN;
CREATE EXTENSION jobq;
DO $$
BEGIN
	FOR i IN -1..8 LOOP
		EXECUTE format('CREATE TABLE jobq.archive_%s ()', to_char((now() AT TIME ZONE 'UTC') + i * interval '1 day', 'YYYYMMDD'));
	END LOOP;
END $$;
COMMIT;
CREATE FUNCTION note(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note(jsonb)')});

# It is one o'clock in the morning, so that midnight is far away.
my $morning = sql(q{SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + interval '25 hours' - (now() AT TIME ZONE 'UTC')});
sql("SELECT jobq.test_clock('$morning')");
sql(q{SELECT count(jobq.enqueue('note')) FROM generate_series(1, 1000)});
wait_for($node, 'what is finished at first has no partition of its own',
	'SELECT count(*) = 1000 FROM jobq.archive_default');

# New plans all the time: a plan that knows the old partitions is what could go wrong.
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

# Where a reader is in the way for too long, the scheduler comes again later.
sql(q{DO $$
DECLARE
	name text;
BEGIN
	FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'jobq'::regnamespace AND relname ~ '^archive_[0-9]+$' LOOP
		EXECUTE format('DROP TABLE jobq.%I', name);
	END LOOP;
END $$});
my $made = '';
foreach my $hour (1 .. 20)
{
	my $minutes = 61 * $hour;

	sql("SELECT jobq.test_clock('$morning'::interval + interval '$minutes min')");
	$made = sql(q{
CREATE OR REPLACE FUNCTION made() RETURNS boolean LANGUAGE sql AS $$
	SELECT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = 'jobq.archive'::regclass
		AND relname = to_char(jobq.clock() AT TIME ZONE 'UTC', '"archive_"YYYYMMDD')) $$;
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
is(sql('SELECT count(*) FROM jobq.archive_default'), '0', 'what was there has gone along');

$node->stop;
no_failed_assertion($node);
done_testing();
