# Queues: settings and length survive a restart or a crash.  The length limit holds with many
# concurrent producers.

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
jobq.databases = 'postgres'
max_connections = 60
max_prepared_transactions = 20
});
$node->start;

my $setup = q{
CREATE EXTENSION jobq;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fails_often() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF random() < 0.5 THEN
		RAISE EXCEPTION 'so it is';
	END IF;
END $$;
SELECT jobq.register('nothing', 'nothing()'),
	jobq.register('fails_often', 'fails_often()', max_attempts => 2, backoff => 'fixed 1ms');
-- Add jobs one by one until the queue is full; returns how many fitted.
CREATE FUNCTION fill(queue text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 0..1000 LOOP
		BEGIN
			PERFORM jobq.enqueue('nothing', queue => queue);
		EXCEPTION WHEN SQLSTATE 'JQ015' THEN
			RETURN i;
		END;
	END LOOP;
END $$;
CREATE FUNCTION live(queue text) RETURNS bigint LANGUAGE sql
	AS $$ SELECT count(*) FROM jobq.jobs j WHERE j.queue = live.queue AND finished_at IS NULL $$;
};

sub sql
{
	my ($command, $db) = @_;
	return $node->safe_psql($db // 'postgres', $command);
}

# Wait until no worker runs a job or is still returning the queue position of a finished job.
sub rest
{
	# a worker may have admitted its job before the queue was paused, and not yet show the job
	my $pids = join ',', worker_pids($node);

	sql('SELECT jobq.restart_workers()');
	return wait_for($node, 'workers rest', "SELECT NOT EXISTS (SELECT FROM jobq.workers WHERE pid = ANY ('{$pids}'))");
}

sql($setup);

# A pause survives a restart and a crash.
sql(q{SELECT jobq.create_queue('paused'), jobq.pause('paused')});
my $id = sql(q{SELECT jobq.enqueue('nothing', queue => 'paused')});
$node->restart;
is(sql(qq{SELECT state FROM jobq.wait($id, '300ms')}), 'ready', 'paused: after a restart');
$node->stop('immediate');
$node->start;
is(sql(qq{SELECT state FROM jobq.wait($id, '300ms')}), 'ready', 'paused: after a crash');
is(sql(q{SELECT paused FROM jobq.queues WHERE name = 'paused'}), 't', 'paused: shown');
sql(q{SELECT jobq.resume('paused')});
is(sql(qq{SELECT state FROM jobq.wait($id, '5 min')}), 'completed', 'resumed');

# Many producers, some of which roll back, while workers and operators are active.  Returns when
# all are done.  The table "seen" has the lengths that the sessions observed.
sub produce
{
	my ($sessions, $steps) = @_;
	my @runs;

	srand(4711);
	for my $session (1 .. $sessions)
	{
		my $script = '';
		for my $step (1 .. $steps)
		{
			my $one = q{SELECT jobq.enqueue('nothing', queue => 'short');};
			my $many = q{SELECT count(*) FROM jobq.enqueue_many('nothing', '{1,2,3,4,5}', queue => 'short');};
			my $copy = qq{COPY jobq.inbox (kind, queue) FROM STDIN;\nnothing\tshort\nnothing\tshort\n\\.\n};
			my $cancel = q{SELECT jobq.cancel(max(id)) FROM jobq.jobs WHERE queue = 'short' AND state = 'ready' HAVING max(id) > 0;};
			my $gid = "p${session}_$step";
			my @choices = (
				$one, $many, $copy,
				q{SELECT jobq.enqueue('fails_often', queue => 'short');},
				"BEGIN; $one $one ROLLBACK;",
				"BEGIN; $one SAVEPOINT s; $many ROLLBACK TO s; $one COMMIT;",
				"BEGIN; SAVEPOINT s; $cancel ROLLBACK TO s; $one COMMIT;",
				"BEGIN; $cancel ROLLBACK;",
				$cancel,
				"BEGIN; $one PREPARE TRANSACTION '$gid'; $one COMMIT PREPARED '$gid';",
				"BEGIN; $many PREPARE TRANSACTION '$gid'; $one ROLLBACK PREPARED '$gid';",
				q{SELECT jobq.edit(max(id), run_at => now()) FROM jobq.jobs WHERE queue = 'short' AND state = 'ready' HAVING max(id) > 0;},
				q{INSERT INTO seen SELECT live('short');},
				q{INSERT INTO seen SELECT live('short');});
			$script .= $choices[ rand @choices ] . "\n";
		}
		my ($out, $err) = ('', '');
		push @runs,
		  IPC::Run::start(
			[ 'psql', '-X', '-q', '-At', '-d', $node->connstr('postgres') ],
			'<', \$script, '>', \$out, '2>', \$err);
	}
	$_->finish foreach @runs;
}

sql(q{SELECT jobq.create_queue('short', max_length => 20)});
sql(q{CREATE TABLE seen (live bigint)});
for my $round (1 .. 3)
{
	# in the second round, only a cancellation removes jobs from the queue
	sql(q{SELECT jobq.pause('short')}) if $round == 2;
	produce(6, 150);
	sql(q{SELECT jobq.pause('short')});
	rest();
	sql(q{SELECT fill('short')});
	is(sql(q{SELECT live('short')}), 20, "round $round: as many fit as shall");
	sql(q{SELECT jobq.resume('short')});
	is(sql(q{SELECT jobq.wait_queue('short', '5 min')}), 't', "round $round: drained");
}
is(sql(q{SELECT count(*) FROM seen WHERE live > 20}), 0, 'never longer');
cmp_ok(sql(q{SELECT count(*) FROM seen WHERE live > 10}), '>', 0, 'often long');
is(sql(q{SELECT count(*) FROM pg_prepared_xacts}), 0, 'no transaction is left prepared');

# Retried dead letters are never refused, and count towards the length.
sql(q{SELECT jobq.delete_many(state => 'dead')});
sql(q{CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$});
sql(q{SELECT jobq.register('fails', 'fails()', max_attempts => 1)});
sql(q{SELECT jobq.enqueue('fails', queue => 'short') FROM generate_series(1, 5)});
sql(q{SELECT jobq.wait_queue('short', '5 min')});
sql(q{SELECT jobq.pause('short')});
rest();
is(sql(q{SELECT fill('short')}), 20, 'dead letters do not count');
is(sql(q{SELECT jobq.retry_many('short')}), 5, 'retried, though the queue is full');
is(sql(q{SELECT live('short')}), 25, 'longer than it ought to be');
is(sql(q{SELECT fill('short')}), 0, 'full');
is(sql(q{SELECT count(jobq.cancel(id)) FROM (SELECT id FROM jobq.jobs WHERE queue = 'short' AND state = 'ready' LIMIT 8) j}),
	8, 'eight are cancelled');
is(sql(q{SELECT fill('short')}), 3, 'three places are free');

# A limit is set later, and changed.
sql(q{SELECT jobq.enqueue('nothing', queue => 'later', delay => '1 hour') FROM generate_series(1, 7)});
sql(q{SELECT jobq.alter_queue('later', max_length => 10)});
is(sql(q{SELECT fill('later')}), 3, 'a limit counts what was there');
sql(q{SELECT jobq.alter_queue('later', max_length => 0)});
sql(q{SELECT jobq.enqueue('nothing', queue => 'later', delay => '1 hour') FROM generate_series(1, 4)});
sql(q{SELECT jobq.wait_queue('later', '5 min')});
sql(q{SELECT jobq.alter_queue('later', max_length => 15)});
is(sql(q{SELECT fill('later')}) > 0, 1, 'none for a while, and another one');
sql(q{SELECT jobq.pause('later')});
rest();
sql(q{SELECT jobq.cancel_many(queue => 'later', state => 'waiting')});
is(sql(q{SELECT fill('later')}), 15, 'after a cancel');

# A limit is set while an open transaction has jobs in the queue.
sql(q{SELECT jobq.create_queue('open'), jobq.pause('open')});
my $open = $node->background_psql('postgres', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'open') FROM generate_series(1, 4);});
sql(q{SELECT jobq.alter_queue('open', max_length => 10)});
is(sql(q{SELECT fill('open')}), 10, 'what is not committed and knew no limit does not count yet');
$open->query_safe('COMMIT;');
is(sql(q{SELECT live('open')}), 14, 'committed');
sql(q{SELECT count(jobq.cancel(id)) FROM (SELECT id FROM jobq.jobs WHERE queue = 'open' AND state = 'ready' LIMIT 6) j});
is(sql(q{SELECT fill('open')}), 2, 'it counts then');
$open->quit;

# A restart and a crash, with an open and a prepared transaction.
sql(q{SELECT jobq.cancel_many(queue => 'later', state => 'waiting'), jobq.resume('later'), jobq.wait_queue('later', '5 min'), jobq.pause('later')});
sql(q{SELECT jobq.enqueue('nothing', queue => 'later') FROM generate_series(1, 5)});
$open = $node->background_psql('postgres', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'later') FROM generate_series(1, 5);});
is(sql(q{SELECT fill('later')}), 5, 'places of an open transaction are taken');
sql(q{SELECT jobq.cancel_many(queue => 'short', state => 'waiting')});
sql(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'short') FROM generate_series(1, 5); PREPARE TRANSACTION 'kept'});
is(sql(q{SELECT fill('short')}), 15, 'places of a prepared transaction are taken');
$node->stop('immediate');
eval { $open->quit };
$node->start;
is(sql(q{SELECT live('later')}), 10, 'after a crash');
is(sql(q{SELECT fill('later')}), 5, 'after a crash: its places are free');
sql(q{COMMIT PREPARED 'kept'});
is(sql(q{SELECT live('short')}), 20, 'after a crash: what was prepared is committed');
is(sql(q{SELECT fill('short')}), 0, 'after a crash: and counts');
$node->restart;
is(sql(q{SELECT fill('later') + fill('short')}), 0, 'after a restart');

# A database that is not served has no counters.
$node->safe_psql('postgres', 'CREATE DATABASE other');
sql("SET client_min_messages = error; $setup", 'other');
sql(q{SELECT jobq.create_queue('short', max_length => 5)}, 'other');
$open = $node->background_psql('other', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'short') FROM generate_series(1, 3);});
my ($out, $err) = ('', '');
my $waits = IPC::Run::start([ 'psql', '-X', '-At', '-d', $node->connstr('other'), '-c', q{SELECT fill('short')} ],
	'>', \$out, '2>', \$err);
wait_for($node, 'not served: the other producer waits',
	q{SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'object' AND NOT granted});
$open->query_safe('COMMIT;');
$waits->finish;
is($out, "2\n", 'not served: what was committed counts');
$open->quit;

# A session that waits for a job with keep => 'nothing' is notified of the cancellation.  This
# also holds for a prepared transaction, although its commit does not list the jobs.
sql(q{SELECT jobq.create_queue('trackless', keep => 'nothing')});
my $cancelled = sql(q{SELECT jobq.enqueue('nothing', queue => 'trackless', delay => '1 hour')});
($out, $err) = ('', '');
$waits = IPC::Run::start([ 'psql', '-X', '-At', '-d', $node->connstr('postgres'), '-c', qq{SELECT state FROM jobq.wait($cancelled, '3 min')} ],
	'>', \$out, '2>', \$err);
wait_for($node, 'somebody waits for a job',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'jobq[.]wait' AND pid <> pg_backend_pid() AND state = 'active' AND wait_event IN ('JobqWait', 'Extension')});
sql("BEGIN; SELECT jobq.cancel($cancelled); PREPARE TRANSACTION 'gone'");
sql(q{COMMIT PREPARED 'gone'});
$waits->finish;
is($out . $err, "cancelled\n", 'and hears that it was cancelled');

# Two transactions that drop queues do not wait for each other until both give up.
sql(q{SELECT jobq.create_queue('one'), jobq.create_queue('two')});
$open = $node->background_psql('postgres', on_error_stop => 0);
$open->query_safe(q{BEGIN; SELECT jobq.drop_queue('one')});
($out, $err) = ('', '');
$waits = IPC::Run::start([ 'psql', '-X', '-At', '-d', $node->connstr('postgres'), '-c', q{SELECT jobq.drop_queue('two')} ],
	'>', \$out, '2>', \$err);
wait_for($node, 'the second waits',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'drop_queue..two' AND pid <> pg_backend_pid() AND wait_event IN ('JobqDropQueue', 'Extension')});
$open->query('COMMIT;');
is($open->{stderr}, '', 'the first is not kept from its commit');
$waits->finish;
is($err, '', 'nor is the second');
is(sql(q{SELECT count(*) FROM jobq.queues WHERE name IN ('one', 'two')}), '0', 'both queues are dropped');
$open->quit;

# A new scheduler does not load the jobs of a paused queue.  After ten large queues, the view reads
# the first jobs of this queue only.
my $asleep = 20;
sql(qq{SELECT jobq.create_queue('crowd ' || i, mode => 'consumer') FROM generate_series(0, 9) i;
	SELECT jobq.create_queue('asleep', mode => 'consumer'), jobq.pause('asleep');
	SELECT jobq.enqueue_many('nothing', array_fill('null'::jsonb, '{1001}'), queue => 'crowd ' || i) FROM generate_series(0, 9) i;
	SELECT jobq.enqueue_many('nothing', array_fill('null'::jsonb, '{$asleep}'), queue => 'asleep')});
my $scheduler = scheduler_pid($node);
sql("SELECT pg_terminate_backend($scheduler)");
wait_for($node, 'another scheduler', "SELECT complete AND pid <> $scheduler FROM jobq_internal.scheduler_state()");
is(sql(q{SELECT sum(ready) || ' ' || bool_and(oldest_ready IS NOT NULL) FROM jobq.queues WHERE name ~ '^(crowd|asleep)'}),
	10010 + $asleep . ' true', 'a paused queue shows its oldest job beside large queues');

no_failed_assertion($node);
$node->stop;
done_testing();
