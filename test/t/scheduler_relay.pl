# Notifications which cannot be sent wait, and nothing else does: a process holds the lock of
# NOTIFY, or PostgreSQL's queue of notifications is full.  The same holds for jobs of queues
# with transactional notifications.
#
# Runs on each major: NOTIFY is the server's own.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = '*=1'
autovacuum = off
}, allows_streaming => 1);
$node->append_conf('postgresql.conf', 'max_notify_queue_pages = 64') if $node->pg_version >= 17;
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
CREATE FUNCTION fail() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'it fails'; END $$;
SELECT jobq.register('note', 'note()'), jobq.register('tick', 'note()');
SELECT jobq.register('hold', 'hold()', backoff => 'fixed 1 h'), jobq.register('fail', 'fail()', backoff => 'fixed 1 h');
SELECT jobq.create_queue('strict', notify => 'transactional');
SELECT jobq.create_queue('outside', mode => 'consumer', notify => 'transactional');
CREATE ROLE other LOGIN;
SELECT jobq.grant_privilege('other');
SELECT jobq.schedule('ticks', 'every 1 second', 'tick')});
wait_for($node, 'the database is served', 'SELECT pid IS NOT NULL AND complete FROM jobq_internal.scheduler_state()');
my $scheduler = scheduler_pid($node);

# Jobs run, schedules tick, and batches end.
sub all_goes_on
{
	my ($name) = @_;
	my $job = sql(q{SELECT jobq.enqueue('note', options => '{"watch": true}')});
	my $batch = sql('SELECT jobq.create_batch()');

	is(sql("SELECT state FROM jobq.wait($job, '5 min')"), 'completed', "$name: a job runs");
	sql("SELECT jobq.start_batch($batch)");
	wait_for($node, "$name: a batch ends", "SELECT state = 'completed' FROM jobq.batches WHERE id = $batch");
	my $ticks = sql(q{SELECT count(*) FROM jobq.jobs WHERE kind = 'tick'});
	wait_for($node, "$name: a schedule makes its jobs", "SELECT count(*) > $ticks + 1 FROM jobq.jobs WHERE kind = 'tick'");
	is(scheduler_pid($node), $scheduler, "$name: it is the same scheduler");
	return;
}

# The listener receives this notification.
my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN news');
sub hears
{
	my ($name, $what, $heard) = @_;

	$heard //= '';
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $heard =~ $what;
		$heard .= $listener->query_safe('SELECT pg_sleep(0.1)');
	}
	like($heard, $what, "$name: is heard");
	return $heard;
}
sql(q{SELECT jobq.notify('news', 'first')});
hears('a message', qr/"news" with payload "first"/);

#
# A commit keeps the lock, because it waits for a standby.
#
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my $held = sql(q{SELECT jobq.enqueue('hold', queue => 'strict')});
sleeps($node, 'lock: a job runs', 1);
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->append_conf('postgresql.conf', q{synchronous_standby_names = 'standby'});
$node->reload;
wait_for($node, 'the standby is synchronous', q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'});
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
my $keeper = $node->background_psql('postgres');
# commits wait only after the server has read the setting, and if they have written something
sql('CREATE TABLE enough ()');
$keeper->query_until(qr/begun/, q{\echo begun
SET synchronous_commit = remote_apply;
DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM enough) LOOP PERFORM pg_notify('other', ''), pg_logical_emit_message(true, 'other', ''); COMMIT; PERFORM pg_sleep(0.01); END LOOP; END $$;
});
wait_for($node, 'a commit waits for the standby', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'pg_notify'});
my $offset = -s $node->logfile;
sql(q{SELECT jobq.notify('news', 'second')});

# After as many tries for a locked table, the scheduler would log a message.
is(sql(qq{
	DO \$\$
	DECLARE
		tries int := 0;
		waits boolean;
		waited boolean := false;
	BEGIN
		FOR i IN 1 .. 180000 LOOP
			waits := EXISTS (SELECT FROM pg_locks WHERE pid = $scheduler AND locktype = 'object' AND NOT granted);
			tries := tries + (waits AND NOT waited)::int;
			waited := waits;
			EXIT WHEN tries >= 10;
			PERFORM pg_sleep(0.001);
		END LOOP;
		PERFORM set_config('test.tries', tries::text, false);
	END \$\$;
	SELECT current_setting('test.tries')}), '10', 'lock: it is tried again and again');
unlike(slurp_file($node->logfile, $offset), qr/cannot go on with a part/, 'lock: that is nothing for the log');
sql(q{SELECT pg_terminate_backend(pid) FROM jobq.workers WHERE kind = 'hold'});
wait_for($node, 'lock: a job whose worker was terminated is charged, and runs again', "SELECT state = 'running' AND attempt = 2 FROM jobq.status($held)");
$gate->quit;
my $others = sql(q{SET ROLE other; SELECT jobq.enqueue('note')});
is(sql("SELECT state FROM jobq.wait($others, '5 min')"), 'completed', 'lock: a role without a worker gets one');
all_goes_on('lock');
sql('SET synchronous_commit = local; INSERT INTO enough DEFAULT VALUES');
$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
hears('lock: what was kept', qr/"news" with payload "second"/);
$keeper->quit;
$node->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
$node->reload;
$standby->stop;

#
# The queue is full, because a listening session is in a transaction.
#
SKIP:
{
	skip 'the queue of this server takes gigabytes', 1 if $node->pg_version < 17;
	my $leased = sql(q{SELECT jobq.enqueue('away', queue => 'outside', backoff => 'fixed 1ms')});
	my $failing = sql(q{SELECT FROM jobq.pause('strict'); SELECT jobq.enqueue('fail', queue => 'strict')}) =~ s/\s//gr;
	# the log gets a single message, perhaps for the new work in queue "outside"
	$offset = -s $node->logfile;
	$listener->query_safe('LISTEN jobq_queue_outside');
	$listener->query_safe('BEGIN; SELECT 1');
	my (undef, undef, $full) = $node->psql('postgres', q{DO $$ BEGIN FOR i IN 1 .. 100 LOOP PERFORM pg_notify('news', i || repeat('x', 7900)); COMMIT; END LOOP; END $$});
	like($full, qr/too many notifications in the NOTIFY queue/, 'full: the queue is');
	# the last page of the queue is full, too
	(undef, undef, $full) = $node->psql('postgres', q{DO $$ BEGIN FOR i IN 1 .. 1000 LOOP PERFORM pg_notify('news', ''); COMMIT; END LOOP; END $$});
	like($full, qr/too many notifications in the NOTIFY queue/, 'full: for short ones, too');
	sql(q{SELECT jobq.notify('news', 'third')});
	$node->wait_for_log(qr/the jobq scheduler cannot send notifications: too many notifications in the NOTIFY queue/, $offset);
	is(sql(q{SELECT id FROM jobq.reserve('{outside}', lease => '1 s', wait => '5 min')}), $leased, 'full: a consumer takes a job');
	sql(q{SELECT jobq.resume('strict')});
	wait_for($node, 'full: its lease ends', "SELECT attempt = 1 FROM jobq.status($leased)");
	wait_for($node, 'full: a job fails', "SELECT state = 'retryable' AND attempt = 1 FROM jobq.status($failing)");
	all_goes_on('full');

	# more than the relay keeps
	for my $i (1 .. 6)
	{
		sql("SELECT jobq.notify('news', 'number $i.' || n) FROM generate_series(1, 100) n");
		wait_for($node, "full: the relay takes more ($i)", 'SELECT notifications = 0 FROM jobq_internal.scheduler_state()');
	}
	is(scheduler_pid($node), $scheduler, 'full: it is the same scheduler');
	my $at_once = $listener->query_safe('COMMIT');
	my $last = qr/"news" with payload "number 6[.]100"/;
	my $heard = hears('full: the last message, and that of the lease', qr/$last.*"jobq_queue_outside"|"jobq_queue_outside".*$last/s, $at_once);
	unlike($heard, qr/third|number 1[.]1"/, 'full: the first ones were dropped');
	$node->wait_for_log(qr/the jobq scheduler sends notifications again/, $offset);
	my $said = () = slurp_file($node->logfile, $offset) =~ /cannot send notifications/g;
	is($said, 1, 'full: it was said once');
	sql(q{SELECT jobq.notify('news', 'fourth')});
	hears('full: what comes then', qr/"news" with payload "fourth"/);
}
$listener->quit;

$node->stop;
no_failed_assertion($node);
done_testing();
