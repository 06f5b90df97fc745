# Limited resources: a role takes all available leases, reservations, groups, wait slots, relay
# slots, ready entries and ticks of schedules, and is told about the limit.  Another role goes
# on.

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
jobq.workers = '*=2'
jobq.ready_entries = 1024
jobq.notify_interval = '60s'
autovacuum = off
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE ROLE greedy LOGIN;
CREATE ROLE modest LOGIN;
SELECT jobq.grant_privilege('greedy'), jobq.grant_privilege('modest');
CREATE FUNCTION quick() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
SELECT jobq.register('quick', 'quick()'), jobq.register('fails', 'fails()', backoff => 'fixed 1h');
SELECT jobq.create_queue('outside', mode => 'consumer', open => true);
SELECT jobq.create_queue('silent', keep => 'nothing', open => true);
CREATE TABLE held (id bigint, token bigint);
GRANT ALL ON held TO greedy, modest;
});

sub sql { return $node->safe_psql('postgres', $_[0]) }

# The output of the query as this role, or the error.
sub as_role
{
	my ($role, $query) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $query, extra_params => [ '-U', $role ]);
	return $rc == 0 ? $out : $err;
}

sql("SET ROLE $_; SELECT count(jobq.enqueue('anything', queue => 'outside')) FROM generate_series(1, 250)") for 'greedy', 'modest';
wait_for($node, 'all are ready', 'SELECT ready_entries = 500 FROM jobq_internal.scheduler_state()');
as_role($_, q{SELECT jobq.release(id, token) FROM jobq.reserve('{outside}', wait => '5 min')}) for 'greedy', 'modest';
wait_for($node, 'and can be had', 'SELECT ready_entries = 500 FROM jobq_internal.scheduler_state()');

# leases
my $note = 'WITH r AS (INSERT INTO held SELECT r.id, r.token FROM %s RETURNING 1) SELECT count(*) FROM r';
my $take = sprintf($note, q{jobq.reserve('{outside}', 300) r});
is(as_role('greedy', $take), 224, 'a role that is alone holds seven eighths of all leases');
like(as_role('greedy', $take), qr/consumers of role "greedy" hold too many jobs.*They hold 224 jobs by 1 calls; 256 jobs by 128 calls can be held/s,
	'and is told that it gets no more');
is(as_role('modest', $take), 28, 'the rest is there for another');
sql(q{WITH h AS (DELETE FROM held RETURNING *) SELECT count(jobq.release(id, token)) FROM h});

# reservations
my $singly = sprintf($note, q{generate_series(1, %d) i, LATERAL jobq.reserve('{outside}', 1 + i * 0) r});
is(as_role('greedy', sprintf($singly, 112)), 112, 'it has seven eighths of all reservations');
like(as_role('greedy', sprintf($singly, 1)), qr/hold too many jobs.*take more jobs with each call/s, 'and no more');
is(as_role('modest', sprintf($singly, 14)), 14, 'another has the rest');
is(as_role('greedy', 'SELECT count(jobq.extend(id, token, \'1 min\')) FROM (SELECT * FROM held WHERE id IN (SELECT id FROM jobq.jobs WHERE role = current_role::regrole) LIMIT 1) h'),
	1, 'whoever holds all that it can holds it for longer');
sql(q{WITH h AS (DELETE FROM held RETURNING *) SELECT count(jobq.release(id, token)) FROM h});

# a reservation, extended again and again
is(as_role('greedy', sprintf($singly, 1)), 1, 'a job is held');
my $longer = q{SELECT count(jobq.extend(id, token, '1 min' + i * interval '0 s')) FROM held, generate_series(1, %d) i};
my $holder = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'greedy' ]);
is($holder->query('BEGIN; ' . sprintf($longer, 111)), 111, 'for so often in a transaction as there are reservations');
$holder->query(sprintf($longer, 1));
like($holder->{stderr}, qr/role "greedy" hold too many jobs/, 'and not more');
$holder->query('ROLLBACK; BEGIN; ' . sprintf($longer, 111));
is(as_role('modest', sprintf($singly, 14)), 14, 'another can reserve meanwhile');
$holder->query('ROLLBACK');
$holder->quit;
sql(q{WITH h AS (DELETE FROM held RETURNING *) SELECT count(jobq.release(id, token)) FROM h});

# groups which wait for their failed jobs
sql(q{SET ROLE greedy; SELECT count(jobq.enqueue('fails', group_key => 'group ' || i)) FROM generate_series(1, 200) i});
wait_for($node, 'as many groups of a role wait as may', q{SELECT count(*) >= 56 FROM jobq.jobs WHERE state = 'retryable'});
my $id = as_role('modest', q{SELECT jobq.enqueue('quick', group_key => 'mine')});
wait_for($node, 'a group of another role has a place', "SELECT state = 'completed' FROM jobq.status($id)");
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE state = 'retryable'}), 56, 'the first role has no more places than before');

# slots of waiting sessions
sql(q{SELECT jobq.pause('silent')});
my $wait = q{SELECT count(*) FROM jobq.wait_many((SELECT array_agg(id) FROM jobq.jobs WHERE queue = 'silent' AND role = current_role::regrole), '180 s')};
sql("SET ROLE $_; SELECT count(jobq.enqueue('quick', queue => 'silent')) FROM generate_series(1, 101)") for 'greedy', 'modest';
append_to_file($node->basedir . '/wait.sql', "$wait;\n");
my $said = '';
my $many = IPC::Run::start(
	[ 'pgbench', '-n', '-U', 'greedy', '-c', '21', '-t', '1', '-f', $node->basedir . '/wait.sql', '-h', $node->host, '-p', $node->port, 'postgres' ],
	'>', \my $nothing, '2>', \$said);
my $others = q{FROM pg_stat_activity WHERE usename = 'greedy' AND backend_type = 'client backend'};
wait_for($node, 'many sessions of a role wait, and one too many does not',
	qq{SELECT count(*) BETWEEN 1 AND 20 AND bool_and(wait_event_type = 'Extension') $others});
my $modest = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'modest' ]);
$modest->query_until(qr/begun/, "\\echo begun\n$wait;\n");
wait_for($node, 'those of another role find places',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'modest' AND wait_event_type = 'Extension' AND query ~ 'jobq.wait'});
sql(q{SELECT jobq.resume('silent')});
like($modest->query('SELECT 1'), qr/101/, 'and are told of all that they wait for');
$modest->quit;
$many->finish;
like($said, qr/role "greedy" waits for too many jobs/, 'the error says who waits for too much');

# slots of the relay, kept by an open transaction
my $listener = $node->background_psql('postgres', on_error_stop => 0);
$listener->query(q{LISTEN news});
my $open = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'greedy' ]);
$open->query(q{BEGIN; SELECT count(jobq.notify('other', i::text)) FROM generate_series(1, 1000) i});
# try again if this took so long that the relay sent meanwhile
my ($heard, $relayed);
for (1 .. 3)
{
	$heard = '';
	as_role('modest', "SELECT jobq.notify('news', 'by relay $_')");
	sql("NOTIFY news, 'directly $_'");
	$heard .= $listener->query('SELECT 1') until $heard =~ /"directly $_"/;
	$relayed = $heard =~ /by relay $_/;
	last if !$relayed;
}
ok(!$relayed, 'the relay has room for another role, and takes its time') or diag($heard);
$open->query('ROLLBACK');
$_->quit for $open, $listener;

# ready entries, and ticks
sql(q{SET ROLE greedy; SELECT count(*) FROM jobq.enqueue_many('anything', array_fill('{}'::jsonb, ARRAY[3000]), queue => 'outside');
	SELECT count(jobq.schedule('greedy ' || i, 'every 1 s', 'anything', options => '{"queue": "outside"}')) FROM generate_series(1, 500) i});
$id = as_role('modest', q{SELECT jobq.enqueue('quick')});
wait_for($node, 'a job of another role has a place', "SELECT state = 'completed' FROM jobq.status($id)");
sql(q{SET ROLE modest; SELECT jobq.schedule('modest', 'every 1 s', 'quick')});
wait_for($node, 'and its schedule ticks', q{SELECT count(*) >= 2 FROM jobq.jobs WHERE role = 'modest'::regrole AND headers ->> 'schedule' = 'modest' AND state = 'completed'});

done_testing();
