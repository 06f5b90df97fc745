# Sessions work in a database without workers: groups keep their order, and a group runs a
# single job at a time.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = ''
});
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE TABLE done (name text, at bigint GENERATED ALWAYS AS IDENTITY);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO done (name) VALUES (payload ->> 'name');
	IF payload ? 'waits' THEN
		PERFORM pg_advisory_xact_lock_shared(1);
	END IF;
	IF job.attempt <= (payload ->> 'fails')::int THEN
		RAISE 'no good';
	END IF;
END $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)', backoff => 'fixed 10 min')});

sub enqueue
{
	my ($name, $group, $payload, $more) = @_;

	sql(sprintf(q{SELECT jobq.enqueue('note', '{"name": "%s"%s}', group_key => '%s'%s)},
			$name, $payload || '', $group, $more || ''));
	return;
}

sub work { return sql('CALL jobq.work(stop_when_empty => true)'); }

sub is_done
{
	my ($names, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql(q{SELECT string_agg(name, ' ' ORDER BY at) FROM done}), $names, $what);
	return;
}

#
# A group waits for the next attempt of the first job, other groups do not.
#
enqueue('a1', 'a', ', "fails": 2');
enqueue("a$_", 'a') foreach 2 .. 4;
enqueue('b1', 'b');
work();
is_done('b1', 'a group waits for its first job');
is(sql(q{SELECT payload ->> 'name', state, attempt FROM jobq.jobs WHERE finished_at IS NULL ORDER BY id}),
	"a1|retryable|1\na2|ready|0\na3|ready|0\na4|ready|0", 'which will be tried again');
sql(q{SELECT jobq.test_clock('11 min')});
enqueue("a$_", 'a') foreach 5 .. 100;
work();
is_done('b1', 'and again');
sql(q{SELECT jobq.test_clock('22 min')});
work();
is_done(join(' ', 'b1', map { "a$_" } 1 .. 100), 'then all of them run, in order');

# unless the queue has group_on_failure = continue
sql(q{TRUNCATE done; SELECT jobq.alter_queue('default', group_on_failure => 'continue')});
enqueue('c1', 'c', ', "fails": 1');
enqueue('c2', 'c');
work();
is_done('c2', 'a group goes on if it shall');
sql(q{SELECT jobq.test_clock('33 min')});
work();
is_done('c2 c1', 'and its first job comes later');
sql(q{TRUNCATE done; SELECT jobq.alter_queue('default', group_on_failure => 'wait')});

#
# A single job at a time, even if an earlier job arrives after another job has begun.
#
my $gate = $node->background_psql('postgres');
my $first = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
enqueue('d2', 'd', ', "waits": 1');
$first->query_until(qr/works/, "\\echo works\nCALL jobq.work(once => true);\n");
sleeps($node, 'a session runs a job', 1);
enqueue('d1', 'd', '', ', priority => -1');
enqueue('e1', 'e');
work();
is_done('e1', 'no other of its group begins in another session');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$first->quit;
is_done('d2 e1', 'it comes to its end');
work();
is_done('d2 e1 d1', 'and then the other one begins');
$gate->quit;

$node->stop;
no_failed_assertion($node);
done_testing();
