# After a restart and a crash, a limiter remembers the tokens taken by jobs which cost several
# tokens, and by jobs which cost none.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
});
$node->start;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

# 2 tokens an hour.  Jobs of limiter a cost 1, 2 and 10, and leave a debt of eight; a job of b
# costs 3, and leaves two; c has keys.
sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION price(job jsonb) RETURNS int LANGUAGE sql AS $$ SELECT (job -> 'payload' ->> 'price')::int $$;
CREATE FUNCTION nothing(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.create_limiter('a', rate => '2 per hour burst 5', cost => 'price'),
	jobq.create_limiter('b', rate => '2 per hour burst 5', cost => 'price'),
	jobq.create_limiter('c', rate => '2 per hour burst 5', by => 'payload $.key', cost => 'price'),
	jobq.create_limiter('d', max_running => 1, cost => 'price');
SELECT jobq.register('a', 'nothing(jsonb)', limiters => '{a}'), jobq.register('b', 'nothing(jsonb)', limiters => '{b}'),
	jobq.register('c', 'nothing(jsonb)', limiters => '{c}');
SELECT jobq.create_queue('d', mode => 'consumer', limiters => '{d}');
});
sql(q{SELECT jobq.enqueue(kind, jsonb_build_object('price', price, 'key', key))
	FROM (VALUES ('a', 1, NULL), ('a', 2, NULL), ('a', 0, NULL), ('a', 10, NULL), ('b', 3, NULL), ('c', 7, 'x'), ('c', 2, 'y'), ('c', 0, 'y')) v (kind, price, key)});
wait_for($node, 'jobs of several tokens have run', 'SELECT NOT EXISTS (SELECT FROM jobq.live_jobs)');
sql(q{SELECT jobq.enqueue(kind, jsonb_build_object('price', price, 'key', key))
	FROM (VALUES ('a', 1, NULL), ('c', 1, 'x')) v (kind, price, key)});
sql(q{SELECT jobq.enqueue('any', jsonb_build_object('price', price), 'd') FROM unnest('{0,1,0,1}'::int[]) price});
is(sql(q{SELECT string_agg(payload ->> 'price', ',' ORDER BY id) FROM jobq.reserve('{d}', 4, '1 hour', '5 min')}), '0,1,0', 'a consumer takes what passes');

my $tokens = q{SELECT string_agg(format('%s %s', name, tokens), ', ' ORDER BY name) FROM (
	SELECT limiter AS name, floor(tokens) AS tokens FROM jobq.limits WHERE rate IS NOT NULL AND by IS NULL
	UNION ALL SELECT format('c %s', key), floor(tokens) FROM jobq.limits WHERE limiter = 'c' AND type = 'key') t};
my $known = 'a -8, b 2, c x -2';
is(sql($tokens), $known, 'tokens are owed');
foreach my $how ('fast', 'immediate')
{
	$node->stop($how);
	$node->start;
	wait_for($node, "after a stop that is $how, limits are loaded", q{SELECT complete FROM jobq_internal.scheduler_state()});
	# uncertain tokens are counted as used
	is(sql($tokens), $known, "after a stop that is $how, the same are owed");
	is(sql(q{SELECT running FROM jobq.limits WHERE limiter = 'd'}), 1, 'what passes is not counted');
	is(sql(q{SELECT count(*) FROM jobq.reserve('{d}', 4, '1 hour')}), 0, 'and the limiter is full');
	is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE state = 'ready' AND kind <> 'any'}), 2, 'and jobs wait for tokens');
}

# tokens accrued since then count: the first job of a lacks 9 tokens
sql(q{SELECT jobq.test_clock('2 hours')});
$node->stop('fast');
$node->start;
wait_for($node, 'after some time, limits are loaded', q{SELECT complete FROM jobq_internal.scheduler_state()});
sql(q{SELECT jobq.test_clock('2 hours')});
wait_for($node, 'one that cost less has run', q{SELECT NOT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = 'c')});
is(sql(q{SELECT state FROM jobq.live_jobs WHERE kind = 'a'}), 'ready', 'one has to wait longer');
sql(q{SELECT jobq.test_clock('5 hours')});
wait_for($node, 'it runs at last', q{SELECT NOT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = 'a')});

$node->stop;
done_testing();
