# Groups with the scope "database" keep their order if the scope, a role's name or OID, or the
# server changes, and without a scheduler.

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
jobq.workers = '*=2'
jobq.databases = 'postgres'
max_prepared_transactions = 2
});
my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE step (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, i int, queue text);
GRANT INSERT ON step TO PUBLIC;
CREATE FUNCTION step(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF payload ? 'fails' AND job.attempt = 1 THEN
		RAISE 'once';
	END IF;
	INSERT INTO step (i, queue) VALUES ((payload ->> 'i')::int, job.queue);
END $$;
SELECT jobq.register('step', 'step(jsonb, jobq.job_context)', backoff => 'fixed 1h', max_attempts => 5);
SELECT jobq.create_queue('a', open => true, group_scope => 'database'), jobq.create_queue('b', open => true, group_scope => 'database'),
	jobq.create_queue('c'), jobq.create_queue('taken', open => true, mode => 'consumer', group_scope => 'database');
CREATE FUNCTION put(i int, queue text, fails boolean DEFAULT false) RETURNS bigint LANGUAGE sql AS $$
	SELECT jobq.enqueue('step', jsonb_strip_nulls(jsonb_build_object('i', i, 'fails', nullif(fails, false))), queue => queue, group_key => 'g')
$$;
};

sub sql { return $node->safe_psql('postgres', shift) }
sub role { return "SET ROLE $_[0]; $_[1]; RESET ROLE" }
my $in_order = q{SELECT string_agg(i || queue, ' ' ORDER BY n) FROM step};
my $over = q{SELECT count(*) = 0 FROM jobq.live_jobs};

$node->start;
sql($setup);

#
# In a session, without a scheduler: the first job is in the last queue, behind more jobs of its
# group than a session reads.
#
$node->safe_psql('postgres', 'CREATE DATABASE aside');
$node->safe_psql('aside', $setup);
$node->safe_psql('aside', q{SELECT put(0, 'b'); SELECT count(put(i, 'a')) FROM generate_series(1, 200) i; SELECT put(201, 'b')});
$node->safe_psql('aside', q{CALL jobq.work('{a,b}', stop_when_empty => true)});
is($node->safe_psql('aside', q{SELECT count(*), bool_and(i = n - 1) FROM step}), '202|t', 'jobq.work(): all, in order');

#
# A renamed role keeps its groups.  A new role with the old name does not get them.
#
sql(q{CREATE ROLE writer LOGIN; SELECT jobq.grant_privilege('writer')});
my $first = sql(role('writer', q{SELECT put(1, 'a', true)}));
wait_for($node, 'its group waits for its next attempt', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first");
sql(q{ALTER ROLE writer RENAME TO author});
my $second = sql(role('author', q{SELECT put(2, 'b')}));
wait_for($node, 'so does what the role enqueues by its other name', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first AND parked = 1");
sql(q{CREATE ROLE writer LOGIN; SELECT jobq.grant_privilege('writer')});
my $other = sql(role('writer', q{SELECT put(3, 'b')}));
is(sql("SELECT state FROM jobq.wait($other, '5 min')"), 'completed', 'another role with the old name does not');

#
# A dump contains the names of roles, and a restored role may have another OID.
#
my $dump = $node->backup_dir . '.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');
sql(q{SELECT jobq.retry(id) FROM jobq.live_jobs WHERE attempt > 0});
wait_for($node, 'all is done', $over);
is(sql($in_order), '3b 1a 2b', 'in order');
sql(q{SELECT jobq.revoke_privilege('author'); DROP ROLE author; CREATE ROLE author LOGIN});
sql('CREATE DATABASE copy');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump, 'copy' ], 'restored');
$node->append_conf('postgresql.conf', q{jobq.databases = 'postgres, copy'});
$node->reload;
$node->safe_psql('copy', role('author', q{SELECT put(4, 'b')}));
wait_for($node, 'there, too, the group waits for the job that has begun', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first AND parked = 2", 'copy');
$node->safe_psql('copy', "SELECT jobq.retry($first)");
wait_for($node, 'all is done there', $over, 'copy');
is($node->safe_psql('copy', $in_order), '3b 1a 2b 4b', 'in order');

#
# A job enqueued during a change of its queue's scope waits for two groups: the group in the old
# scope, and the group in the new scope.
#
sql('TRUNCATE step');
$first = sql(q{SELECT put(1, 'a', true)});
wait_for($node, 'the group waits for its next attempt', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first");
sql(q{BEGIN; SELECT put(2, 'c'); PREPARE TRANSACTION 'meanwhile'});
sql(q{SELECT jobq.alter_queue('c', group_scope => 'database')});
sql(q{COMMIT PREPARED 'meanwhile'});
wait_for($node, 'a job of before the change waits as well', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first AND parked = 1");
my ($ret, $out, $err) = $node->psql('postgres', q{SELECT jobq.alter_queue('c', group_scope => 'queue')});
like($err, qr/queue "c" has jobs with a group_key/, 'the scope does not change again while it waits');
sql("SELECT jobq.retry($first)");
wait_for($node, 'all is done', $over);
is(sql($in_order), '1a 2c', 'in order');
sql(q{BEGIN; SELECT put(3, 'c'); PREPARE TRANSACTION 'meanwhile'});
sql(q{SELECT jobq.alter_queue('c', group_scope => 'queue')});
$first = sql(q{SELECT put(4, 'a', true)});
wait_for($node, 'the group waits for its next attempt', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first");
sql(q{COMMIT PREPARED 'meanwhile'});
wait_for($node, 'a job of before the change waits for it first', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $first AND parked = 1");
sql("SELECT jobq.retry($first)");
wait_for($node, 'all is done', $over);
is(sql($in_order), '1a 2c 4a 3c', 'and has its turn');

#
# The lease of a consumer holds the group across a crash, until the consumer is done.
#
sql('TRUNCATE step');
my ($id, $token) = split /\|/, sql(q{SELECT put(1, 'taken'); SELECT id, token FROM jobq.reserve('{taken}', 1, '1 hour', '5 min')}) =~ s/^\d+\n//r;
sql(q{SELECT put(2, 'a')});
wait_for($node, 'the group has a job that runs, and one that waits', q{SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND running = 1 AND parked = 1});
$node->stop('immediate');
$node->start;
wait_for($node, 'it has them after a crash', q{SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND running = 1 AND parked = 1});
sql("SELECT jobq.nack($id, $token, delay => '1 hour')");
wait_for($node, 'it waits for the job that was given back', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $id AND parked = 1");
$node->stop('immediate');
$node->start;
wait_for($node, 'after a crash, too', "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $id AND parked = 1");
is(sql('SELECT count(*) FROM step'), '0', 'nothing has overtaken it');
sql("SELECT jobq.cancel($id)");
wait_for($node, 'all is done', $over);
is(sql($in_order), '2a', 'the next one runs when it was cancelled');
wait_for($node, 'no group is left', 'SELECT count(*) = 0 FROM jobq_internal.group_slots()');

$node->stop;
no_failed_assertion($node);
done_testing();
