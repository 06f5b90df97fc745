# A full queue: sessions wait for room, or drop waiting jobs.

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
jobq.databases = 'postgres'
max_prepared_transactions = 20
});
$node->start;

sub sql
{
	my ($command) = @_;
	return $node->safe_psql('postgres', $command);
}

sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('nothing', 'nothing()');
CREATE FUNCTION live(queue text) RETURNS bigint LANGUAGE sql
	AS $$ SELECT count(*) FROM jobq.jobs j WHERE j.queue = live.queue AND finished_at IS NULL $$;
CREATE TABLE seen (live bigint);
});

# on_full => 'wait': sessions enqueue one job each, or three, into a queue with two positions,
# while the jobs are removed singly.  Each session gets the positions, and the queue is never
# longer.  After a session gives up, other sessions check again.
sub enqueuers
{
	my ($n) = @_;
	return wait_for($node, "$n sessions wait for a place",
		qq{SELECT count(*) = $n FROM pg_stat_activity WHERE query ~ 'narrow' AND pid <> pg_backend_pid() AND state = 'active' AND wait_event IN ('JobqEnqueue', 'Extension')});
}

sub enqueuer
{
	my ($n, $name) = @_;
	my $session = { out => '', err => '' };
	$session->{run} = IPC::Run::start(
		[ 'psql', '-X', '-At', '-d', $node->connstr('postgres') . " application_name=$name", '-c',
			qq{SET jobq.enqueue_timeout = 0; SELECT count(*) FROM jobq.enqueue_many('nothing', array_fill('{}'::jsonb, ARRAY[$n]), queue => 'narrow')} ],
		'<', \undef, '>', \$session->{out}, '2>', \$session->{err});
	return $session;
}

sql(q{SELECT jobq.create_queue('narrow', max_length => 3, on_full => 'wait'), jobq.pause('narrow')});
sql(q{SELECT jobq.enqueue('nothing', queue => 'narrow') FROM generate_series(1, 3)});
my $large = enqueuer(3, 'large');
enqueuers(1);
my $gone = enqueuer(1, 'gone');
enqueuers(2);
my @small = map { enqueuer(1, "small$_") } 1 .. 3;
enqueuers(5);
# a position is enough for a small session, behind the large session and the cancelled session
sql(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'gone'});
$gone->{run}->finish;
like($gone->{err}, qr/canceling statement due to user request/, 'who waits for a place can be cancelled');
enqueuers(4);
for my $left (4, 3, 2)
{
	sql(q{SELECT jobq.cancel(min(id)) FROM jobq.jobs WHERE queue = 'narrow' AND state = 'ready'});
	enqueuers($left - 1);
	wait_for($node, 'the place is taken', q{SELECT live('narrow') = 3});
}
$_->{run}->finish foreach @small;
is(join('', map { $_->{out} . $_->{err} } @small), "SET\n1\n" x 3, 'each small one has its place');
# a rollback, also of a prepared transaction, gives positions back
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting')});
$large->{run}->finish;
is($large->{out}, "SET\n3\n", 'the large one has its places when there are so many');
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting')});
my $holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'narrow') FROM generate_series(1, 2);});
sql(q{BEGIN; SELECT jobq.enqueue('nothing', queue => 'narrow'); PREPARE TRANSACTION 'narrow'});
@small = map { enqueuer(1, "small$_") } 1 .. 3;
enqueuers(3);
$holder->query_safe('ROLLBACK;');
enqueuers(1);
sql(q{ROLLBACK PREPARED 'narrow'});
$_->{run}->finish foreach @small;
is(join('', map { $_->{out} . $_->{err} } @small), "SET\n1\n" x 3, 'places of who rolls back are given to those who wait');

# two sessions which hold positions and want more do not wait for each other
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting')});
$holder->query_safe(q{SET jobq.enqueue_timeout = 0; BEGIN; SELECT jobq.enqueue('nothing', queue => 'narrow');});
my ($out, $err) = ('', '');
my $other = IPC::Run::start(
	[ 'psql', '-X', '-q', '-At', '-d', $node->connstr('postgres'), '-c', q{SET jobq.enqueue_timeout = 0}, '-c',
		q{BEGIN; SELECT 1 FROM jobq.enqueue('nothing', queue => 'narrow'); SELECT count(*) FROM jobq.enqueue_many('nothing', '{1,2}', queue => 'narrow'); COMMIT} ],
	'<', \undef, '>', \$out, '2>', \$err);
enqueuers(1);
$holder->query(q{SELECT count(*) FROM jobq.enqueue_many('nothing', '{1,2}', queue => 'narrow');});
like($holder->{stderr}, qr/queue "narrow" has no room for 2 more jobs/, 'who would wait for one that waits for him is refused');
$holder->{stderr} = '';
$holder->query_safe('ROLLBACK;');
$other->finish;
is($out . $err, "1\n2\n", 'and the other one goes on');

# waiting sessions are notified when the limit is raised or removed
@small = map { enqueuer(1, "small$_") } 1 .. 2;
enqueuers(2);
sql(q{SELECT jobq.alter_queue('narrow', max_length => 4)});
enqueuers(1);
sql(q{SELECT jobq.alter_queue('narrow', max_length => 0)});
$_->{run}->finish foreach @small;
is(sql(q{SELECT live('narrow')}), 5, 'who waits hears of another limit');
$holder->quit;

# workers make room: many producers, and never more jobs than allowed
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting'), jobq.alter_queue('narrow', max_length => 3), jobq.resume('narrow')});
sql(q{TRUNCATE seen});
my @producers = map {
	my $script = join('', map { q{INSERT INTO seen SELECT live('narrow'); SELECT 1 FROM jobq.enqueue('nothing', queue => 'narrow');} . "\n" } 1 .. 60);
	my $session = { out => '', err => '' };
	$session->{run} = IPC::Run::start([ 'psql', '-X', '-q', '-At', '-d', $node->connstr('postgres'), '-c', 'SET jobq.enqueue_timeout = 0', '-f', '-' ],
		'<', \$script, '>', \$session->{out}, '2>', \$session->{err});
	$session;
} 1 .. 6;
$_->{run}->finish foreach @producers;
is(join('', map { $_->{err} } @producers), '', 'each producer has got all its places');
is(sql(q{SELECT jobq.wait_queue('narrow', '5 min')}), 't', 'and all jobs are done');
is(sql(q{SELECT count(*) FROM seen WHERE live > 3}), 0, 'never longer');

# on_full => 'drop oldest': never longer, and no job is lost without a trace
sql(q{SELECT jobq.alter_queue('narrow', on_full => 'drop oldest', max_length => 5), jobq.pause('narrow')});
sql(q{TRUNCATE seen});
my $before = sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'narrow'});
@producers = map {
	my $script = join('', map {
		my $end = $_ % 5 == 0 ? 'ROLLBACK' : 'COMMIT';
		q{INSERT INTO seen SELECT live('narrow'); BEGIN; SELECT 1 FROM jobq.enqueue('nothing', queue => 'narrow');} . " $end;\n"
	} 1 .. 60);
	my $session = { out => '', err => '' };
	$session->{run} = IPC::Run::start([ 'psql', '-X', '-q', '-At', '-d', $node->connstr('postgres'), '-f', '-' ],
		'<', \$script, '>', \$session->{out}, '2>', \$session->{err});
	$session;
} 1 .. 4;
$_->{run}->finish foreach @producers;
# a session is refused if open transactions hold all five positions
my $refused = () = join('', map { $_->{err} } @producers) =~ /is full/g;
my $of_rolled_back = sql(qq{SELECT 4 * 48 - (count(*) - $before) FROM jobq.jobs WHERE queue = 'narrow'});
cmp_ok($of_rolled_back, '<=', $refused, 'each job that was committed waits or was dropped');
is(sql(q{SELECT count(*) FROM seen WHERE live > 5}), 0, 'dropping: never longer');
is(sql(q{SELECT live('narrow')}), 5, 'dropping: as many as fit');
is(sql(q{SELECT count(*) FROM jobq.jobs j, jobq.status(j.id) s WHERE j.queue = 'narrow' AND j.state = 'cancelled' AND s.error LIKE 'dropped%'}) > 0, 1, 'dropping: the others say why');

# finished jobs kept by an old snapshot do not hide the waiting jobs
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting'), jobq.alter_queue('narrow', max_length => 20000)});
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM seen;');
sql(q{SELECT count(*) FROM jobq.enqueue_many('nothing', array_fill('{}'::jsonb, ARRAY[10100]), queue => 'narrow')});
sql(q{SELECT jobq.cancel_many(queue => 'narrow', state => 'waiting'), jobq.alter_queue('narrow', max_length => 2)});
sql(qq{SELECT jobq.enqueue('nothing', '"$_"', queue => 'narrow')}) foreach 'a' .. 'c';
is(sql(q{SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) FROM jobq.live_jobs WHERE queue = 'narrow'}), 'b c', 'dropping: behind all that was done');
$old->quit;

no_failed_assertion($node);
$node->stop;
done_testing();
