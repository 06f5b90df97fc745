# Jobs survive operations on a server: tables and databases move to other tablespaces, all
# connections are in use, or the server runs in single-user mode.
#
# Runs on each major: the server is started and stopped in each of its ways.

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
jobq.databases = '*'
jobq.workers = '*=2'
max_connections = 20
superuser_reserved_connections = 2
allow_in_place_tablespaces = on
});
$node->start;

sub make_jobs
{
	my ($dbname) = @_;

	$node->safe_psql(
		$dbname, q{
CREATE EXTENSION jobq;
CREATE TABLE effect (what text, role name DEFAULT current_user);
GRANT INSERT ON effect TO PUBLIC;
CREATE FUNCTION note(payload jsonb) RETURNS void BEGIN ATOMIC INSERT INTO effect VALUES (payload #>> '{}'); END;
CREATE FUNCTION hold(payload jsonb) RETURNS void LANGUAGE sql AS
	'INSERT INTO effect VALUES (payload #>> ''{}''); SELECT pg_advisory_xact_lock_shared(1)';
SELECT jobq.register('note', 'note(jsonb)'), jobq.register('hold', 'hold(jsonb)'),
	jobq.create_queue('still', open => true), jobq.create_queue('outside', open => true, mode => 'consumer'), jobq.pause('still')});
	return;
}

# Wait until no job is left, and check the effects.
sub all_done
{
	my ($dbname, $what, @expected) = @_;

	wait_for($node, "$what: all is done", 'SELECT count(*) = 0 FROM jobq_internal.job', $dbname);
	is($node->safe_psql($dbname, 'SELECT what FROM effect ORDER BY 1'), join("\n", sort @expected), "$what: each once");
	$node->safe_psql($dbname, 'TRUNCATE effect');
	return;
}

$node->safe_psql('postgres', q{CREATE TABLESPACE elsewhere LOCATION ''; CREATE ROLE clerk LOGIN; CREATE DATABASE moved});
$node->safe_psql('moved', q{
CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler;
ALTER DATABASE moved SET default_table_access_method = other});
make_jobs($_) foreach 'postgres', 'moved';
$node->safe_psql('postgres', q{SELECT jobq.grant_privilege('clerk')});

# The library supports heap tables only, so its tables are heaps under any default access method.
wait_for($node, 'there are days of the archive', q{SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass}, 'moved');
is( $node->safe_psql(
		'moved',
		q{SELECT string_agg(DISTINCT amname, ' ') FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relkind IN ('r', 'p') AND relnamespace = 'jobq_internal'::regnamespace}
	),
	'heap',
	'the tables are heaps');

# The same in a database with a default role for sessions.
$node->safe_psql('postgres', q{CREATE DATABASE owned});
$node->safe_psql('postgres', q{ALTER DATABASE owned SET role = clerk});
$node->safe_psql('owned', q{SET ROLE NONE; CREATE EXTENSION jobq});
wait_for($node, 'there are days of the archive, whoever sessions are', q{SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass}, 'owned');

#
# Tables and indexes move to another tablespace while jobs run, wait, and are held.  The move of the
# table of jobs waits for running jobs.
#
{
	my $gate = $node->background_psql('postgres');
	my $mover = $node->background_psql('postgres');

	wait_for_scheduler($node);
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$node->safe_psql(
		'postgres', q{
SELECT jobq.enqueue('hold', '"runs"');
SELECT jobq.enqueue('note', '"waits"', queue => 'still');
SELECT jobq.enqueue('note', '"later"', delay => '1 day');
SELECT jobq.enqueue('x', '"held"', queue => 'outside');
CREATE TABLE held AS SELECT id, token FROM jobq.reserve('{outside}', 1, '1 hour', '5 min')});
	sleeps($node, 'a job runs', 1);
	$node->safe_psql('postgres', "ALTER TABLE jobq_internal.$_ SET TABLESPACE elsewhere")
	  foreach 'queue', 'handler', 'dead_letter', 'archive_default', 'lease', 'batch';
	$mover->query_until(qr/begun/, q{
\echo begun
ALTER TABLE jobq_internal.job SET TABLESPACE elsewhere;
ALTER INDEX jobq_internal.job_ready SET TABLESPACE elsewhere;
ALTER INDEX jobq_internal.job_pkey SET TABLESPACE elsewhere;
});
	wait_for($node, 'the table of jobs waits to be moved',
		q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'jobq_internal.job'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted});
	$gate->quit;
	$mover->quit;
	is( $node->safe_psql(
			'postgres', q{SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace
				WHERE t.spcname = 'elsewhere' AND c.oid IN ('jobq_internal.job'::regclass, 'jobq_internal.job_ready'::regclass, 'jobq_internal.lease'::regclass)}),
		'3', 'tables and indexes are elsewhere');
	$node->safe_psql(
		'postgres', q{
SELECT jobq.ack(id, token) FROM held;
SELECT jobq.enqueue('note', '"new"');
SELECT jobq.resume('still');
SELECT jobq.test_clock('2 days')});
	all_done('postgres', 'tables moved', 'later', 'new', 'runs', 'waits');
	$node->safe_psql('postgres', q{SELECT jobq.test_clock('0')});
}

#
# A database moves to another tablespace: its processes leave, and come back.  A running job gets
# some time, and then runs again.
#
{
	my $gate = $node->background_psql('moved');

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	$node->safe_psql(
		'moved', q{
SELECT jobq.enqueue('hold', '"runs"');
SELECT jobq.enqueue('note', '"waits"', queue => 'still')});
	sleeps($node, 'a job runs in the other database', 1, 'moved');
	$gate->quit;
	$node->safe_psql('postgres', 'ALTER DATABASE moved SET TABLESPACE elsewhere');
	$node->safe_psql('moved', q{SELECT jobq.resume('still'), jobq.enqueue('note', '"new"')});
	all_done('moved', 'database moved', 'new', 'runs', 'waits');
	is($node->safe_psql('moved', 'SELECT count(*) FROM jobq_internal.dead_letter'), '0', 'database moved: nothing has failed');
}

#
# All connections are in use.  Jobs do not need any.
#
{
	my $offset = -s $node->logfile;
	my $boss = $node->background_psql('postgres');
	my @clients;

	for (1 .. 20)
	{
		my $client = $node->background_psql('postgres', on_error_die => 0, on_error_stop => 0, wait => 0);

		push @clients, $client;
	}
	wait_for_taken($boss);
	is($boss->query_safe(q{SELECT jobq.restart_workers()}), '', 'all connections are taken: workers are replaced');
	$boss->query_safe(q{
		SELECT jobq.enqueue('note', '"first"');
		SET ROLE clerk;
		SELECT jobq.enqueue('note', '"clerk"');
		RESET ROLE});
	is($boss->query_safe(q{CALL jobq.call('note', '"called"', timeout => '5 min')}), '', 'all connections are taken: a job runs');
	$boss->query_safe(q{DO $$ BEGIN WHILE EXISTS (SELECT FROM jobq_internal.job) LOOP PERFORM pg_sleep(0.01); COMMIT; END LOOP; END $$});
	is($boss->query_safe(q{SELECT string_agg(what || ' ' || role, ', ' ORDER BY what) FROM effect}),
		'called postgres, clerk clerk, first postgres', 'all connections are taken: for each role');
	eval { $_->{run}->kill_kill } foreach @clients;
	$boss->quit;
	unlike(slurp_file($node->logfile, $offset), qr/jobq (launcher|scheduler|worker).*(WARNING|ERROR|FATAL)/,
		'all connections are taken: no process of jobq minds');
	poll($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
	$node->safe_psql('postgres', 'TRUNCATE effect');
}

# Wait until all ordinary connections are in use, and only superusers can connect.
sub wait_for_taken
{
	my ($session) = @_;

	is($session->query_safe(q{
		DO $$ BEGIN
			FOR i IN 1 .. 18000 LOOP
				EXIT WHEN (SELECT count(*) >= 18 FROM pg_stat_activity WHERE backend_type = 'client backend');
				PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
			END LOOP;
		END $$;
		SELECT count(*) >= 18 FROM pg_stat_activity WHERE backend_type = 'client backend'}), 't', 'all connections are taken');
	return;
}

#
# Single-user mode: there are no background processes.  Calls that need these raise an error or
# return.  Enqueued jobs run later.
#
$node->safe_psql('postgres', q{SELECT jobq.pause('still'), jobq.enqueue('note', '"before"', delay => '1 day'), jobq.enqueue('note', '"still"', queue => 'still')});
$node->stop;
my @single = (
	q{SELECT jobq.enqueue('note', '"enqueued"')},
	q{SELECT jobq.enqueue_many('note', '{"\"many\"", "\"more\""}', queue => 'worked')},
	q{SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) AS counted FROM jobq.live_jobs},
	q{SELECT count(*) FROM jobq.reserve('{outside}')},
	q{SELECT (jobq.wait((SELECT max(id) FROM jobq_internal.job WHERE kind = 'note'), '10 ms')).state AS waited},
	q{SELECT jobq.wait_queue('worked', '10 ms') AS drained},
	q{CALL jobq.work(queues => '{worked}', stop_when_empty => true)},
	q{SELECT jobq.restart_workers()},
	q{SELECT string_agg(what, ' ' ORDER BY what) AS worked FROM effect},
	q{SELECT count(*) AS nobody FROM jobq.workers},
	'VACUUM jobq_internal.job',
	'VACUUM FULL jobq_internal.job',
	'REINDEX TABLE jobq_internal.queue',
	q{SELECT jobq.prune('0 s') > 0 AS pruned},
	'DROP EXTENSION jobq CASCADE',
	'CREATE EXTENSION jobq',
	'CREATE DATABASE fresh',
	'ALTER DATABASE fresh RENAME TO stale',
	'DROP DATABASE stale');
{
	my $input = join("\n", @single[0 .. 13]) . "\n";
	my ($out, $err) = ('', '');

	ok(IPC::Run::run(
			[ $node->installed_command('postgres'), '--single', '-D', $node->data_dir, '-c', 'log_destination=stderr', 'postgres' ],
			'<', \$input, '>', \$out, '2>', \$err, IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default)),
		'single user: the server ends by itself');
	my @errors = $err =~ /((?:ERROR|FATAL|PANIC|TRAP):.*)/g;
	like("@errors", qr/^ERROR:  jobq\.reserve\(\) needs a scheduler, and a server for a single user has none$/,
		'single user: only what needs a scheduler is an error');
	my %expected = (
		counted => 'before still enqueued many more',
		waited => 'ready',
		drained => 'f',
		worked => 'many more',
		nobody => '0',
		pruned => 't');
	is(($out =~ /\b$_ = "(.*?)"/)[0], $expected{$_}, "single user: $_") foreach sort keys %expected;

	# in the other database: commands on the extension as a whole
	$input = join("\n", @single[14 .. 18]) . "\n";
	ok(IPC::Run::run(
			[ $node->installed_command('postgres'), '--single', '-D', $node->data_dir, '-c', 'log_destination=stderr', 'moved' ],
			'<', \$input, '>', \$out, '2>', \$err, IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default)),
		'single user: the extension is dropped and created');
	unlike($err, qr/ERROR|FATAL|PANIC|TRAP/, 'single user: without an error');
}
$node->start;
$node->safe_psql('postgres', q{SELECT jobq.resume('still'), jobq.test_clock('2 days')});
all_done('postgres', 'after the single user', 'before', 'enqueued', 'many', 'more', 'still');
$node->safe_psql('moved', q{CREATE FUNCTION answer() RETURNS jsonb LANGUAGE sql AS $$ SELECT '42'::jsonb $$; SELECT jobq.register('answer', 'answer()')});
is($node->safe_psql('moved', q{CALL jobq.call('answer', timeout => '5 min')}), '42', 'the new extension is served');

$node->stop;
no_failed_assertion($node);
done_testing();
