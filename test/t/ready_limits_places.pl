# More queues, kinds and limiters have limits than there are slots: jobs whose limits have no
# slot wait at no cost, and run when a slot is free.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.databases = 'app'
jobq.workers = '*=2'
jobq.ready_entries = 2560
jobq.poll_interval = 3600
autovacuum = off
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE app');

sub sql { return $node->safe_psql('app', $_[0]) }

sql(q{
CREATE EXTENSION jobq;
CREATE TABLE ran (what text);
CREATE FUNCTION note(payload jsonb) RETURNS void BEGIN ATOMIC INSERT INTO ran VALUES (payload #>> '{}'); END;
SELECT jobq.create_queue('has one', max_running => 1);
SELECT jobq.create_queue('other ' || i, max_running => 1) FROM generate_series(1, 15) i;
SELECT jobq.create_queue('lacks one', max_running => 1), jobq.create_queue('outside', max_running => 1, mode => 'consumer');
SELECT jobq.create_limiter('lacking', max_running => 1);
SELECT jobq.register('note', 'note(jsonb)'), jobq.register('limited', 'note(jsonb)', max_running => 1),
	jobq.register('named', 'note(jsonb)', limiters => '{lacking}')});
$node->append_conf('postgresql.conf', 'jobq.ready_entries = 1024');
$node->restart;

# The number of log messages about too few slots.
sub told
{
	return scalar(() = slurp_file($node->logfile) =~ /WARNING:  more than 16 queues, kinds and limiters have limits/g);
}

# The scheduler and the workers do nothing.
sub is_idle
{
	my ($when) = @_;
	my $idle = 0;

	foreach (1 .. 30)
	{
		my $count = q{SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'app'};
		my $before = $node->safe_psql('postgres', $count);
		$node->safe_psql('postgres', 'SELECT pg_sleep(2)');
		$idle = $node->safe_psql('postgres', $count) == $before;
		last if $idle;
	}
	ok($idle, $when);
	return;
}

sub ran
{
	return sql(q{SELECT string_agg(what, ', ' ORDER BY what) FROM ran});
}

# The last job of each pair is in a lane created beside another lane.
sql(qq{SELECT jobq.enqueue('note', '"$_"', queue => '$_'), jobq.enqueue('note', '"$_"', queue => '$_', priority => 5)}) foreach ('has one', 'lacks one', 'outside');
sql(qq{SELECT jobq.enqueue('$_', '"$_"'), jobq.enqueue('$_', '"$_"', priority => 5)}) foreach ('limited', 'named');
sql(q{SELECT jobq.enqueue('note', '"no limits"')});
wait_for($node, 'those run that have a place, or need none', q{SELECT count(*) = 3 FROM ran}, 'app');
is(sql(q{SELECT count(*) FROM jobq.reserve('{outside}', 10, '1 hour')}), '0', 'a consumer finds none');
is_idle('nothing goes on while the others wait');
is(ran(), 'has one, has one, no limits', 'the others have not run');
is(told(), 1, 'the log says once that there are too few places');
is( sql(q{SELECT string_agg(DISTINCT format('%s, %s: %s', j.queue, j.kind, coalesce(e.detail, '')), E'\n')
	FROM jobq.jobs j LEFT JOIN LATERAL jobq.explain(j.id) e ON e.reason = 'places' WHERE j.state = 'ready'}),
	join("\n", map { qq(@$_[0], @$_[1]: all 16 slots for limits are in use, and @$_[2] has none for its limits) } (
		['default', 'limited', 'kind "limited"'], ['default', 'named', 'limiter "lacking"'], ['lacks one', 'note', 'queue "lacks one"'],
		['outside', 'note', 'queue "outside"'])), 'explain() says so of each');
sql(qq{SELECT jobq.enqueue('note', '"lacks one"', queue => 'lacks one'), jobq.enqueue('named', '"named"')});
sql(q{CALL jobq.work(queues => '{"lacks one",default}', stop_when_empty => true)});
is(ran(), 'has one, has one, no limits', 'nor do they run in a session');
is_idle('nothing goes on when others have come');
is(told(), 1, 'and no more is said');

#
# Limits are removed, step by step.
#
ok($node->psql('app', q{SELECT jobq.create_queue('one more', max_running => 1)}) != 0, 'there can be no more');
sql(q{DELETE FROM ran; SELECT jobq.alter_queue('other 1', max_running => 0)});
wait_for($node, 'the jobs of one of them run', q{SELECT count(*) >= 2 FROM ran}, 'app');
is_idle('the others wait');
is(sql(q{SELECT count(DISTINCT what) FROM ran}), '1', 'they have not run');
sql(qq{SELECT jobq.alter_queue('other $_', max_running => 0)}) foreach (2 .. 4);
wait_for($node, 'all have run', q{SELECT NOT EXISTS (SELECT FROM jobq.jobs WHERE state = 'ready' AND queue <> 'outside')}, 'app');
is(sql(q{SELECT count(*) FROM jobq.reserve('{outside}', 10, '1 hour')}), '1', 'a consumer gets one');
is(told(), 1, 'nothing more is said');

#
# A limiter is missing, because logical replication checks no foreign keys.
#
sql(q{
SELECT jobq.alter_queue('other 5', max_running => 0), jobq.alter_queue('other 6', max_running => 0);
SELECT jobq.create_limiter('missing', max_running => 1), jobq.create_queue('consumer of it', mode => 'consumer', limiters => '{missing}');
SELECT jobq.register('names it', 'note(jsonb)', limiters => '{missing}');
SET session_replication_role = replica;
DELETE FROM jobq_internal.limiter WHERE name = 'missing';
DELETE FROM ran});
sql(q{SELECT jobq.enqueue('names it', '"names it"'), jobq.enqueue('x', queue => 'consumer of it')});
my $note = sql(q{SELECT jobq.enqueue('note', '"note"', priority => 5)});
sql("SELECT jobq.wait($note, '5 min')");
is(sql(q{SELECT count(*) FROM jobq.reserve('{"consumer of it"}')}), '0', 'a consumer gets no job whose limiter is missing');
is_idle('nothing goes on while jobs wait whose limiter is missing');
is(ran(), 'note', 'they have not run, and others have');
sql(q{CALL jobq.work(stop_when_empty => true)});
is(ran(), 'note', 'nor do they run in a session');
is( sql(q{SELECT DISTINCT e.reason, e.detail FROM jobq.jobs j, jobq.explain(j.id) e WHERE j.kind = 'names it' AND e.reason = 'limiter'}),
	'limiter|limiter "missing" does not exist, and a kind or a queue names it', 'explain() says so');
is(scalar(() = slurp_file($node->logfile) =~ /WARNING:  limiter "missing" does not exist/g), 1, 'and so does the log');
sql(q{SET session_replication_role = replica; INSERT INTO jobq_internal.limiter (name, max_running, when_taken) VALUES ('missing', 1, 'wait')});
wait_for($node, 'they run when it has come', q{SELECT count(*) = 2 FROM ran}, 'app');
is(sql(q{SELECT count(*) FROM jobq.reserve('{"consumer of it"}', wait => '5 min')}), '1', 'and a consumer gets one');

$node->stop;
no_failed_assertion($node);
done_testing();
