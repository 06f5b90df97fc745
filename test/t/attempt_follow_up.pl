# A follow-up job needs no privilege of the role that ends the first job, and a missing queue is
# created for the follow-up job.

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

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub sql_as
{
	my ($role, $query) = @_;
	return $node->safe_psql('postgres', $query, extra_params => [ '-U', $role ]);
}

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE consumer LOGIN;
CREATE ROLE producer LOGIN;
CREATE TABLE told (role text DEFAULT current_user, kind text, event text);
GRANT INSERT ON told TO PUBLIC;
CREATE FUNCTION work(payload jsonb) RETURNS void BEGIN ATOMIC SELECT 1; END;
CREATE FUNCTION mourn(payload jsonb) RETURNS void BEGIN ATOMIC INSERT INTO told (kind) VALUES ('mourn'); END;
CREATE FUNCTION hear(payload jsonb) RETURNS void
BEGIN ATOMIC INSERT INTO told (kind, event) VALUES ('hear', payload ->> 'event'); END;
SELECT jobq.create_queue('cards', mode => 'consumer'), jobq.create_queue('work');
SELECT jobq.grant_privilege('consumer', 'consume', 'cards'), jobq.grant_privilege('producer', 'produce', 'work');
SELECT jobq.register('card', 'work(jsonb)', queue => 'cards', max_attempts => 1, on_failure => 'mourn(jsonb)');
SELECT jobq.register('work', 'work(jsonb)', queue => 'work');
SELECT jobq.register('hear', 'hear(jsonb)')});

# Drop the queue "default", as if never used.
sub forget_default
{
	sql(q{TRUNCATE told; SELECT jobq.drop_queue('default', force => true) FROM jobq.queues WHERE name = 'default'});
	return is(sql(q{SELECT count(*) FROM jobq.queues WHERE name = 'default'}), 0, 'there is no default queue');
}

sub set_create_queues
{
	my ($value) = @_;

	$node->append_conf('postgresql.conf', "jobq.create_queues = $value");
	$node->reload;
	return wait_for($node, 'the setting has arrived', "SELECT current_setting('jobq.create_queues') = '$value'");
}

foreach my $case ([ q{reject(%s, 'useless')}, 'worker' ], [ 'nack(%s)', 'off' ], [ 'nack(%s)', 'consumer' ])
{
	my ($call, $create) = @$case;

	forget_default();
	set_create_queues($create);
	my $id = sql(q{SELECT jobq.enqueue('card')});
	my $lease = sql_as('consumer', q{SELECT id || ', ' || token FROM jobq.reserve('{cards}', wait => '5 min')});
	sql_as('consumer', sprintf("SELECT jobq.$call", $lease));
	is(sql("SELECT state FROM jobq.status($id)"), 'dead', "create_queues = $create: the job has failed");
	is(sql(q{SELECT mode FROM jobq.queues WHERE name = 'default'}), 'worker', 'its on_failure has a queue of workers');
	wait_for($node, 'and runs there', q{SELECT count(*) = 1 FROM told WHERE kind = 'mourn'});
}

set_create_queues('worker');
sql(q{SELECT jobq.on_event('completed', 'hear', queue => 'work')});
forget_default();
my $id = sql_as('producer', q{SELECT jobq.enqueue('work')});
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'an event: the job is completed by a worker of a role with one queue only');
wait_for($node, 'and its handler runs', q{SELECT count(*) = 1 FROM told WHERE kind = 'hear' AND event = 'completed'});

$node->stop;
no_failed_assertion($node);
done_testing();
