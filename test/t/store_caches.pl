# jobq keeps no pointer into a cache of the backend over a call which can accept invalidation
# messages.  With debug_discard_caches, each such call drops the caches, in sessions and in
# workers.  A server with assertions overwrites freed memory, so a stale pointer reads garbage.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = '*'
jobq.workers = 'still=0; *=2'
autovacuum = off
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

if (sql(q{SELECT max_val FROM pg_settings WHERE name = 'debug_discard_caches'}) eq '0')
{
	$node->stop;
	plan skip_all => 'this server cannot discard its caches';
}

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE producer LOGIN;
SELECT jobq.grant_privilege('producer');
CREATE FUNCTION twice(payload jsonb) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT to_jsonb(2 * (payload ->> 'n')::int) $$;
CREATE FUNCTION breaks(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE '% %', job.queue, payload; END $$;
CREATE FUNCTION down(payload jsonb) RETURNS jsonb LANGUAGE sql AS
	$$ SELECT CASE WHEN payload = '0' THEN payload ELSE jobq.perform('down', to_jsonb(payload::int - 1)) END $$;
CREATE PROCEDURE commits(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN COMMIT; PERFORM 1; COMMIT; END $$;
CREATE FUNCTION mourn(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN PERFORM jobq.current_job(); END $$;
SELECT jobq.create_queue('still', open => true, expires_after => '1 day');
SELECT jobq.create_queue('strict', open => true, expires_after => '1 day', max_length => 50);
SELECT jobq.create_queue('told', open => true, notify => 'transactional', keep => 'no_payload');
SELECT jobq.create_queue('taken', open => true, mode => 'consumer', expires_after => '1 day', max_running => 3);
SELECT jobq.create_queue('grouped', open => true, group_max_running => 1, tenant => 'header tenant', fair => 'jobs');
SELECT jobq.register('twice', 'twice(jsonb)', queue => 'strict', max_attempts => 2, timeout => '10 min');
SELECT jobq.register('paced', 'twice(jsonb)', queue => 'grouped', max_running => 2);
SELECT jobq.register('breaks', 'breaks(jsonb, jobq.job_context)', queue => 'told', max_attempts => 1,
	backoff => 'fixed 1s', on_failure => 'mourn(jsonb, jobq.job_context)');
SELECT jobq.register('commits', 'commits(jsonb)', queue => 'told');
SELECT jobq.register('down', 'down(jsonb)');
CREATE TABLE outbox (n int);
CREATE TRIGGER outbox AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('twice', 'strict');
GRANT INSERT ON outbox TO producer;
ALTER ROLE producer SET debug_discard_caches = 1});

# Run the query as the producer: sessions and workers of this role discard their caches.
sub discarding
{
	my ($what, $query, $expected) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $query,
		extra_params => [ '-U', 'producer' ]);

	is("$out$err", $expected, $what);
	return;
}

discarding('the session discards its caches', 'SHOW debug_discard_caches', '1');
discarding('enqueue, as its queue wants',
	q{SELECT jobq.enqueue('twice', '{"n": 1}', queue => 'still') > 0}, 't');
is(sql('SELECT expires_at - run_at FROM jobq_internal.job'), '1 day', 'it expires when its queue says');
discarding('a session works', q{CALL jobq.work('{still}', max_jobs => 1)}, '');
is(sql(q{SELECT state FROM jobq.jobs}), 'completed', 'its job is completed');
discarding('enqueue to a queue that is made',
	q{SELECT jobq.enqueue('twice', '{"n": 2}', queue => 'new') > 0}, 't');
discarding('enqueue many',
	q{SELECT count(*) FROM jobq.enqueue_many('twice', ARRAY(SELECT '{"n": 3}'::jsonb FROM generate_series(1, 3)), queue => 'told')}, '3');
discarding('enqueue to a group, for a tenant',
	q{SELECT count(jobq.enqueue('paced', '{"n": 4}', group_key => 'g', headers => '{"tenant": "t"}')) FROM generate_series(1, 3)}, '3');
discarding('enqueue with a unique key',
	q{SELECT jobq.enqueue('twice', '{"n": 4}', unique_key => 'k') > 0}, 't');
discarding('enqueue what fails', q{SELECT jobq.enqueue('breaks', '{"n": 5}') > 0}, 't');
discarding('enqueue a procedure', q{SELECT jobq.enqueue('commits') > 0}, 't');
discarding('enqueue by a trigger', q{INSERT INTO outbox VALUES (6)}, '');
discarding('enqueue by the view', q{INSERT INTO jobq.inbox (kind, payload) VALUES ('twice', '{"n": 7}')}, '');
discarding('a workflow',
	q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "twice", "payload": {"n": 1}},
		{"name": "b", "kind": "twice", "payload": {"n": 2}, "needs": ["a"]}]}') > 0}, 't');
discarding('perform', q{SELECT jobq.perform('twice', '{"n": 8}')}, '16');
discarding('perform within perform', q{SELECT jobq.perform('down', '4')}, '0');
work_off($node, 'the workers run all', 'SELECT count(*) FROM jobq_internal.job');
is( sql(q{SELECT string_agg(kind || ' ' || queue || ' ' || state || ' ' || n, ', ' ORDER BY kind, queue)
	FROM (SELECT kind, queue, state, count(*) AS n FROM jobq.jobs GROUP BY 1, 2, 3) j}),
	join(', ',
		'breaks told dead 1', 'commits told completed 1',
		'on_failure:breaks told completed 1', 'paced grouped completed 3',
		'twice new completed 1', 'twice still completed 1', 'twice strict completed 5', 'twice told completed 3'),
	'each as it should');

discarding('a consumer reserves', q{SELECT jobq.enqueue('foreign', '{"n": 9}', queue => 'taken') > 0;
SELECT count(jobq.enqueue('foreign', '{"n": 9}', queue => 'taken')) FROM generate_series(1, 2);
SELECT kind, payload, queue, jobq.extend(id, token, '1 hour'), jobq.nack(id, token, 'no', '1 hour')
FROM jobq.reserve('{taken}', 2, wait => '5 min')},
	qq{t\n2\n} . join("\n", ('foreign|{"n": 9}|taken||') x 2));
discarding('and clears', q{SELECT jobq.cancel_many(queue => 'taken', state => 'waiting')}, '3');
no_failed_assertion($node);
$node->stop;
done_testing();
