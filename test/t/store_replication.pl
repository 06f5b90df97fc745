# A job runs on a single server: not on a subscriber, and not on a standby, until the takeover.
#
# Runs on each major: replication differs between majors.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $setup = q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, server int DEFAULT current_setting('port')::int);
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect (job) VALUES (job.id); END;
CREATE PROCEDURE note_procedure(payload jsonb, job jobq.job_context) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	INSERT INTO effect (job) VALUES (job.id);
END $$;
CREATE FUNCTION one(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(1)';
CREATE FUNCTION two(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(2)';
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)');
SELECT jobq.register('note_procedure', 'note_procedure(jsonb, jobq.job_context)');
};

#
# Logical replication
#
my ($publisher, $subscriber) = jobq_pair($setup, 'max_prepared_transactions = 4');

# dead letters, two from before the subscription
my $letter = q{
SELECT jobq.enqueue('x', queue => 'letters') \g /dev/null
SELECT jobq.reject(id, token, 'no') FROM jobq.reserve('{letters}', wait => '5 min') \g /dev/null
};
wait_for_scheduler($publisher);
$publisher->safe_psql('postgres', q{SELECT jobq.create_queue('letters', mode => 'consumer')});
$publisher->safe_psql('postgres', $letter) foreach (1 .. 2);

# some jobs before the subscription, some after; ready jobs in a paused queue
my $jobs = q{
SELECT jobq.enqueue('note', queue => 'still');
SELECT jobq.enqueue('note', delay => '1 day', queue => 'still', unique_key => clock_timestamp()::text);
SELECT jobq.enqueue('note_procedure', queue => 'still');
};
$publisher->safe_psql('postgres', q{SELECT jobq.create_queue('still'), jobq.pause('still')});
$publisher->safe_psql('postgres', $jobs);
$subscriber->safe_psql('postgres', q{DELETE FROM jobq_internal.handler});
subscribe($publisher, $subscriber, map { "jobq_internal.$_" } qw(limiter queue handler job job_uuid dead_letter procedure_step signal));
$publisher->safe_psql('postgres', $jobs);
$publisher->wait_for_catchup('jobs');

is($subscriber->safe_psql('postgres', 'SELECT count(*), bool_and(dormant) FROM jobq_internal.job'),
	'6|t', 'jobs arrive, and are dormant');
$publisher->safe_psql('postgres', q{SELECT jobq.resume('still')});
wait_for($publisher, 'the publisher runs its jobs',
	'SELECT count(*) = 2 FROM jobq_internal.job');
wait_for($subscriber, 'and they leave the subscriber',
	'SELECT count(*) = 2 AND bool_and(dormant) FROM jobq_internal.job');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'0', 'which has run none of them');

# dead letters are counted as they come and go
sub letters
{
	my ($n, $what) = @_;

	catch_up($publisher);
	return wait_for($subscriber, $what, qq{SELECT dead_letters = $n AND exact FROM jobq.stats WHERE queue = 'letters' AND kind = 'x'});
}
$publisher->safe_psql('postgres', $letter);
letters(3, 'dead letters are counted: those that were there, and one that has come');
$publisher->safe_psql('postgres', q{SELECT jobq.delete(max(id)) FROM jobq.dead_letters});
letters(2, 'one is gone');
$publisher->safe_psql('postgres', q{TRUNCATE jobq_internal.dead_letter});
letters(0, 'all are');

# the subscriber has local jobs, too; sequences are not replicated
$subscriber->safe_psql('postgres',
	q{SELECT setval('jobq_internal.job_id_seq', 1000), setval('jobq_internal.queue_id_seq', 1000)});
my $own = $subscriber->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($subscriber->safe_psql('postgres', "SELECT state FROM jobq.wait($own, '5 min')"),
	'completed', 'the subscriber runs its own jobs');

# Signals stay as long as on the publisher, although their job is in no table of the subscriber.
my $signaled = $publisher->safe_psql('postgres', q{SELECT jobq.enqueue('note', delay => '1 day', queue => 'still') AS id \gset
SELECT jobq.signal(:id, 'go') \g /dev/null
SELECT jobq.cancel(:id) \g /dev/null
SELECT :id});
catch_up($publisher);
my $there = q{SELECT (SELECT count(*) FROM jobq_internal.job WHERE id = %s), (SELECT count(*) FROM jobq_internal.signal WHERE job_id = %s)};
retention_pass($subscriber, 'postgres', '2 hours', '4 hours');
is($subscriber->safe_psql('postgres', sprintf($there, $signaled, $signaled)), '0|1', 'a signal of a job that is not replicated any more stays');
$subscriber->safe_psql('postgres', q{SELECT jobq.test_clock('0')});

# Ready jobs do not run after a restart, either.  The publisher's changes to a queue or a kind
# reach the processes and sessions of the subscriber which know it already.
$publisher->safe_psql('postgres', q{ALTER SYSTEM SET jobq.workers = '*=0'});
$publisher->reload;
wait_for($publisher, 'the publisher has no workers', q{SELECT count(*) = 0 FROM jobq.workers WHERE type = 'worker'});
$publisher->safe_psql('postgres', q{SELECT jobq.pause('still')});
$publisher->safe_psql('postgres', $jobs);
catch_up($publisher);
$subscriber->restart;
$own = $subscriber->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'still')});
my $other = $subscriber->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($subscriber->safe_psql('postgres', "SELECT state FROM jobq.wait($other, '5 min')"),
	'completed', 'the subscriber runs its own jobs');
is($subscriber->safe_psql('postgres', "SELECT state FROM jobq.status($own)"),
	'ready', 'but not in a queue that is paused on the publisher');
$publisher->safe_psql('postgres', q{SELECT jobq.resume('still')});
wait_for($subscriber, 'until that goes on', "SELECT state = 'completed' FROM jobq.status($own)");
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'3', 'and nothing else, after a restart');
my $session = $subscriber->background_psql('postgres');
foreach my $function ('one', 'two')
{
	$publisher->safe_psql('postgres', "SELECT jobq.register('number', '$function(jsonb)')");
	catch_up($publisher);
	is($session->query_safe(q{SELECT jobq.perform('number') #>> '{}'}), $function eq 'one' ? 1 : 2,
		"a kind has the handler that it has on the publisher: $function");
}
$session->quit;

# A job of a group waits for its next attempt, and the next job of the group is due.
$publisher->safe_psql('postgres', q{SELECT jobq.create_queue('line', mode => 'consumer')});
my ($first, $second) = map { $publisher->safe_psql('postgres', q{SELECT jobq.enqueue('x', queue => 'line', group_key => 'g')}) } 1 .. 2;
$publisher->safe_psql('postgres', q{SELECT jobq.nack(id, token, 'not yet', '1 day') FROM jobq.reserve('{line}', wait => '5 min')});
catch_up($publisher);

# Only the publisher can cancel and retry jobs.
foreach my $call ("cancel($first)", "cancel($second)", "retry($first)", "edit($first, run_at => now())")
{
	my (undef, undef, $err) = $subscriber->psql('postgres', "SELECT jobq.$call");
	like($err, qr/was brought by logical replication, and runs on the publisher/, "$call is refused on the subscriber");
}
is( $subscriber->safe_psql(
		'postgres', q{SELECT jobq.cancel_many(queue => 'line'), jobq.cancel_many(queue => 'line', state => 'waiting'), jobq.retry_many(queue => 'line', state => 'retryable'), jobq.drop_owned(current_user::regrole)}),
	'0|0|0|0', 'what treats many jobs passes them by');
is( $subscriber->safe_psql(
		'postgres', q{SELECT state, count(*) FROM jobq.jobs WHERE finished_at IS NULL GROUP BY 1 ORDER BY 1}),
	$publisher->safe_psql(
		'postgres', q{SELECT state, count(*) FROM jobq.jobs WHERE finished_at IS NULL GROUP BY 1 ORDER BY 1}),
	'both show the same states');

# a table with a trigger which enqueues on the subscriber, and two-phase commit
$publisher->safe_psql('postgres', q{CREATE TABLE item (id int PRIMARY KEY); CREATE PUBLICATION items FOR TABLE item});
$subscriber->safe_psql('postgres', q{
ALTER SYSTEM SET jobq.poll_interval = 3600;
SELECT pg_reload_conf();
SELECT jobq.create_queue('items', max_length => 1);
CREATE TABLE item (id int PRIMARY KEY);
CREATE TRIGGER enqueue AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('item', 'items');
ALTER TABLE item ENABLE ALWAYS TRIGGER enqueue;
CREATE FUNCTION take_item(payload jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('item', 'take_item(jsonb)');
CREATE FUNCTION begin_batch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	batch bigint := jobq.create_batch('of an item');
BEGIN
	PERFORM jobq.add_jobs(batch, 'item', '{1}');
	PERFORM jobq.start_batch(batch);
	PERFORM jobq.schedule('of items', '@daily', 'item');
	RETURN NULL;
END $$;
CREATE TRIGGER begin_batch AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION begin_batch();
ALTER TABLE item ENABLE ALWAYS TRIGGER begin_batch});
my $connstr = $publisher->connstr . ' dbname=postgres';
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION items CONNECTION '$connstr' PUBLICATION items WITH (two_phase = true)");
wait_for($subscriber, 'the subscription has two phases',
	q{SELECT subtwophasestate = 'e' FROM pg_subscription WHERE subname = 'items'});
foreach my $end ('COMMIT', 'ROLLBACK', 'COMMIT')
{
	$publisher->safe_psql('postgres', q{BEGIN; INSERT INTO item SELECT max(n) + 1 FROM generate_series(0, (SELECT count(*) FROM item)) n; PREPARE TRANSACTION 'item'});
	wait_for($subscriber, 'it is prepared there, too', 'SELECT count(*) = 1 FROM pg_prepared_xacts');
	$publisher->safe_psql('postgres', "$end PREPARED 'item'");
	wait_for($subscriber, "$end PREPARED is carried out", 'SELECT count(*) = 0 FROM pg_prepared_xacts');
	wait_for($subscriber, 'which hands over what it leaves',
		q{SELECT count(*) = 0 FROM jobq.jobs WHERE queue = 'items' AND finished_at IS NULL});
}
is($subscriber->safe_psql('postgres', q{SELECT count(*) FROM jobq.jobs WHERE queue = 'items' AND state = 'completed'}),
	'2', 'each job has run');
wait_for($subscriber, 'batches that a trigger has started come to their end',
	q{SELECT count(*) = 2 FROM jobq_internal.batch WHERE name = 'of an item' AND state = 'c'});
is($subscriber->safe_psql('postgres', q{SELECT state FROM jobq.schedules WHERE name = 'of items'}),
	'active', 'and its schedule is one of the subscriber');
$subscriber->safe_psql('postgres', q{SELECT jobq.unschedule('of items')});
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION items');
$subscriber->safe_psql('postgres', q{ALTER SYSTEM RESET jobq.poll_interval; SELECT pg_reload_conf()});

# roles received as OIDs
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION jobs SET (binary = true)');
my (undef, undef, $binary) = $subscriber->psql('postgres', 'SELECT jobq.adopt()');
like($binary, qr/subscription "jobs" is binary/, 'jobs of a binary subscription are not adopted');
$subscriber->safe_psql('postgres', 'ALTER SUBSCRIPTION jobs SET (binary = false)');

unsubscribe($publisher, $subscriber);
my $consumer = $subscriber->background_psql('postgres');
$consumer->query_until(qr/begun/, q{\echo begun
SELECT 'got ' || id, token FROM jobq.reserve('{line}', wait => '5 min');
});
wait_for($subscriber, 'a consumer waits',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT .got' AND wait_event_type = 'Extension'});
is($subscriber->safe_psql('postgres', 'SELECT jobq.adopt()'),
	'7', 'adopt() takes over the jobs that are here');
my $third = $subscriber->safe_psql('postgres', q{SELECT jobq.enqueue('x', queue => 'line', priority => 100)});
my ($got, $token) = $consumer->query_until(qr/got \d+\|\d+\n/, '') =~ /got (\d+)\|(\d+)/;
is($got, $third, 'no job overtakes one of its group that waits for its next attempt');
$consumer->query_safe("SELECT jobq.ack($got, $token)");
$consumer->quit;
is($subscriber->safe_psql('postgres', "SELECT string_agg(state, ' ' ORDER BY id) FROM jobq.jobs WHERE id IN ($first, $second)"),
	'retryable ready', 'both of them wait');
$subscriber->safe_psql('postgres', "SELECT jobq.retry($first)");
foreach my $id ($first, $second)
{
	($got, $token) = split /\|/, $subscriber->safe_psql('postgres', q{SELECT id, token FROM jobq.reserve('{line}', wait => '5 min')});
	is($got, $id, 'and run, one after the other');
	$subscriber->safe_psql('postgres', "SELECT jobq.ack($got, $token)");
}
is( $subscriber->safe_psql(
		'postgres', q{SELECT count(*) FROM jobq_internal.job WHERE unique_key IS NOT NULL AND id = jobq.enqueue('note', unique_key => unique_key)}),
	'3', 'with their unique keys');
wait_for($subscriber, 'those that are ready run',
	q{SELECT count(*) = 3 AND bool_and(run_at > now()) FROM jobq_internal.job});
is($subscriber->safe_psql('postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
	'5|5', 'once');
$own = $subscriber->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($subscriber->safe_psql('postgres', "SELECT state FROM jobq.wait($own, '5 min')"),
	'completed', 'and new jobs do');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM jobq.dead_letters'),
	'0', 'none has failed');

# a database whose ids are behind the ids of the adopted jobs
$subscriber->safe_psql('postgres', q{
SELECT jobq.enqueue('note', delay => '1 day');
UPDATE jobq_internal.job SET dormant = true, id = 5000 WHERE id = (SELECT max(id) FROM jobq_internal.job);
SELECT setval('jobq_internal.job_id_seq', 4999, true);
SELECT jobq.adopt();
});
my ($rc) = $subscriber->psql('postgres', q{SELECT jobq.enqueue('note')});
is($rc, 0, 'new ids do not collide with those of jobs that were adopted');

# nodes: what is adopted from a higher node leaves its ids to the other database
is($subscriber->safe_psql('postgres', q{
SELECT jobq.adopt(node => 2) \g /dev/null
SELECT jobq.enqueue('note', delay => '1 day') AS own, jobq.enqueue('note', delay => '1 day') AS foreign, jobq.create_batch('foreign') AS batch \gset
UPDATE jobq_internal.job SET dormant = true, id = (2::bigint << 43) + 7000 WHERE id = :own;
UPDATE jobq_internal.job SET dormant = true, id = (3::bigint << 43) + 9000 WHERE id = :foreign;
UPDATE jobq_internal.batch SET dormant = true, id = (3::bigint << 43) + 9000 WHERE id = :batch;
SELECT jobq.adopt() \g /dev/null
SELECT jobq.enqueue('note') - (2::bigint << 43), jobq.create_batch('own') - (2::bigint << 43)}),
	'7001|2', 'and leave the ids of a higher node to another database');

# the database replaces a publisher with another node: the sequence of the jobs says so
is($subscriber->safe_psql('postgres', q{
SELECT setval('jobq_internal.job_id_seq', (SELECT coalesce(max(id), 0) + 1000000 FROM jobq.jobs)) \g /dev/null
SELECT jobq.adopt() \g /dev/null
SELECT jobq.enqueue('note') - (3::bigint << 43), jobq.create_batch('own') - (3::bigint << 43)}),
	'1009001|9001', 'jobs and batches continue in the node of a replaced publisher');
$subscriber->safe_psql('postgres', q{SELECT setval('jobq_internal.job_id_seq', 4::bigint << 43), jobq.adopt(node => 4)});
is($subscriber->safe_psql('postgres', q{SELECT jobq.create_batch('own') >> 43}), '4', 'also with the node as the argument');
$subscriber->safe_psql('postgres', q{
SELECT jobq.enqueue('note', delay => '1 day') AS foreign \gset
UPDATE jobq_internal.job SET dormant = true, id = (5::bigint << 43) + 1 WHERE id = :foreign});
my (undef, $adopted, $warning) = $subscriber->psql('postgres', 'SELECT jobq.adopt()');
is($adopted, '1', 'a job of a higher node');
like($warning, qr/WARNING:  adopted rows have ids of node 5, and new ids are of node 4/, 'with a warning, because the publisher may have been replaced');
(undef, undef, $warning) = $subscriber->psql('postgres', 'SELECT jobq.adopt(node => 5)');
is($warning, '', 'no warning with the node as the argument');
$subscriber->stop;

#
# Physical replication
#
my $primary = jobq_node('primary', q{
jobq.databases = 'postgres'
}, allows_streaming => 1);
$primary->start;
$primary->safe_psql('postgres', $setup);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

my $id = $primary->safe_psql('postgres', q{SELECT jobq.enqueue('note')});
is($primary->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"),
	'completed', 'the primary runs its jobs');
my $later = $primary->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'still'); SELECT jobq.enqueue('note', delay => '1s')});
$primary->safe_psql('postgres', q{SELECT jobq.pause('still')});
my $waiting = $primary->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'still')});
$primary->wait_for_catchup('standby', 'replay', $primary->lsn('insert'));

is($standby->safe_psql('postgres', "SELECT state FROM jobq.status($id)"),
	'completed', 'the standby knows what has become of a job');
is($standby->safe_psql('postgres', "SELECT string_agg(reason, ',') FROM jobq.explain($waiting)"),
	'standby,paused', 'and why another does not run');
is($standby->safe_psql('postgres', "SELECT state FROM jobq.jobs WHERE id = $waiting"),
	'ready', 'and what waits');
is( $standby->safe_psql(
		'postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^jobq'}),
	'0', 'and runs nothing');
foreach my $call ("enqueue('note')", "cancel($waiting)", "retry($waiting)",
	'adopt()', "delete($waiting)", "schedule('s', '\@daily', 'note')", "unschedule('s')")
{
	my (undef, undef, $err) = $standby->psql('postgres', "SELECT jobq.$call");
	like($err, qr/cannot execute .* (read-only transaction|during recovery)/,
		"$call is refused on a standby");
}

# Results are durable when they are reported: with a synchronous standby, no session gets a
# result which only the primary has.
$primary->append_conf('postgresql.conf', q{synchronous_standby_names = 'standby'});
$primary->reload;
wait_for($primary, 'the standby is synchronous',
	q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'});
$standby->stop;
$id = $primary->safe_psql('postgres',
	q{SET synchronous_commit = local; SELECT jobq.enqueue('note')});
my $waiter = $primary->background_psql('postgres');
$waiter->query_until(qr/begun/, qq{\\echo begun
SELECT state FROM jobq.wait($id, '5 min');
});
wait_for($primary, 'whoever waits for a job waits for the standby, too',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^SELECT state FROM jobq.wait' AND wait_event = 'SyncRep'});
is($primary->safe_psql('postgres', "SELECT count(*) FROM jobq_internal.archive WHERE id = $id"),
	'1', 'although the job is done, and its worker does not wait');
$standby->start;
like($waiter->query_until(qr/completed/, ''), qr/completed/,
	'and is told when the standby has it');

# The same holds for listeners, and for notifications which the relay does not send: a payload
# too long for the relay, and a queue with transactional notifications.
$primary->safe_psql('postgres', q{
CREATE FUNCTION tell() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.notify('long', repeat('x', 1000));
	PERFORM jobq.enqueue('quiet', queue => 'aloud');
END $$;
CREATE FUNCTION quiet() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('tell', 'tell()'), jobq.register('quiet', 'quiet()'), jobq.create_queue('aloud', notify => 'transactional')});
$standby->stop;
$id = $primary->safe_psql('postgres',
	q{SET synchronous_commit = local; SELECT jobq.enqueue('tell')});
wait_for($primary, 'a job that notifies waits for the standby',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'jobq worker' AND wait_event = 'SyncRep'});
is($primary->safe_psql('postgres', "SELECT state FROM jobq.jobs WHERE id = $id"), 'running', 'and is not done');
$standby->start;
is($waiter->query_safe("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'until the standby has it');
$waiter->quit;

# A consumer leases jobs on the primary, and the standby never learns of these leases.
$primary->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
$primary->reload;
$primary->safe_psql('postgres', q{SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.create_queue('spent', mode => 'consumer')});
my $outside = $primary->safe_psql('postgres', q{SELECT jobq.enqueue('outside', queue => 'outside', priority => 1)});
$primary->wait_for_catchup($standby);
$standby->stop;
$primary->safe_psql('postgres', q{
SELECT jobq.enqueue('lost', queue => 'spent') FROM generate_series(1, 70);
DO $$ BEGIN FOR i IN 1..70 LOOP PERFORM jobq.ack(id, token) FROM jobq.reserve('{spent}', wait => '5 min'); END LOOP; END $$});
(my $held, $token) = split /\|/, $primary->safe_psql('postgres', q{SELECT id, token FROM jobq.reserve('{outside}', lease => '1 hour', wait => '5 min')});
is($held, $outside, 'the job that the standby knows is leased');

# Promotion
$primary->stop('immediate');
$standby->append_conf('postgresql.conf', q{synchronous_standby_names = ''});
$standby->start;
$standby->promote;
wait_for($standby, 'a promoted standby begins to work by itself',
	'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
my ($again, $higher) = split /\|/, $standby->safe_psql('postgres', q{SELECT id, token FROM jobq.reserve('{outside}', wait => '5 min')});
is($again, $outside, 'it can be had on the new primary');
cmp_ok($higher, '>', $token, 'with a higher token than on the old one');
my (undef, undef, $stderr) = $standby->psql('postgres', "SELECT jobq.ack($outside, $token)");
like($stderr, qr/job $outside is not leased with this token/, 'whose consumer has lost it');
$standby->safe_psql('postgres', "SELECT jobq.ack($outside, $higher)");
is($standby->safe_psql('postgres', "SELECT state FROM jobq.status($waiting)"),
	'ready', 'a queue that was paused is paused');
$standby->safe_psql('postgres', q{SELECT jobq.resume('still')});
is($standby->safe_psql('postgres', "SELECT state FROM jobq.wait($waiting, '5 min')"),
	'completed', 'jobs run where the standby was promoted');
wait_for($standby, 'all of them', 'SELECT count(*) = 0 FROM jobq_internal.job');
is($standby->safe_psql('postgres', 'SELECT count(*), count(DISTINCT job) FROM effect'),
	'5|5', 'all effects are there, once');

# A planned switch-over, and back: the state of a server at its stop is outdated when the server
# takes over again.
my $agree = q{SELECT bool_and(exact) AND sum(ready + scheduled + blocked + running) = (SELECT count(*) FROM jobq_internal.job) FROM jobq.stats};
my $counted = q{SELECT scheduled, exact FROM jobq.queues WHERE name = 'switched'};
$standby->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'switched', delay => '1 day') FROM generate_series(1, 1001)});
wait_for($standby, 'statistics agree with the table', $agree);
$standby->backup('switch');
my $spare = PostgreSQL::Test::Cluster->new('spare');
$spare->init_from_backup($standby, 'switch', has_streaming => 1);
$spare->start;
$standby->wait_for_catchup($spare);
$standby->stop;
$spare->promote;
$spare->safe_psql('postgres', q{SELECT jobq.enqueue('note', queue => 'switched', delay => '1 day') FROM generate_series(1, 7)});
wait_for($spare, 'on the server that has taken over they agree, too', $agree);
$standby->enable_streaming($spare);
$standby->start;
$spare->wait_for_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT count(*) FROM jobq.stats'), '0', 'a standby has no statistics');
is($standby->safe_psql('postgres', $counted), '1008|t', 'so a long queue is counted there');
my (undef, undef, $refused) = $standby->psql('postgres', 'SELECT jobq.reset_stats()');
like($refused, qr/cannot execute jobq.reset_stats\(\) during recovery/, 'and none begin anew');
$spare->stop;
$standby->promote;
wait_for($standby, 'statistics agree after the switch back', $agree);
is($standby->safe_psql('postgres', $counted), '1008|t', 'and tell of a long queue');

$standby->stop;
no_failed_assertion($publisher, $subscriber, $primary, $standby, $spare);
done_testing();
