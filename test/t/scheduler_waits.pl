# The scheduler does not wait for an open transaction, for a role with many requests, or for the
# removal of old rows.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.databases = 'postgres'
jobq.workers = 'still=0; *=2'
max_prepared_transactions = 2
});
$node->start;

sub sql
{
	return $node->safe_psql('postgres', $_[0]);
}

sub as
{
	my ($role, $query) = @_;
	return sql("SET ROLE $role; $query");
}

# The final state of a job of this role, with further arguments of enqueue().
sub ends
{
	my ($role, $more) = @_;
	my $id = as($role, "SELECT jobq.enqueue('note'$more)");

	return as($role, "SELECT state FROM jobq.wait($id, '5 min')");
}

#
# The first finished job already has the partition of its day.
#
sql(q{
CREATE EXTENSION jobq;
CREATE FUNCTION note() RETURNS void LANGUAGE sql AS '';
SELECT jobq.register('note', 'note()');
CREATE ROLE eve LOGIN;
CREATE ROLE bob LOGIN;
CREATE ROLE carol LOGIN;
SELECT jobq.grant_privilege('eve'), jobq.grant_privilege('bob'), jobq.grant_privilege('carol')});
is(ends('bob', ''), 'completed', 'a job is finished at once');
is(sql(q{SELECT count(*) FROM jobq_internal.archive_default}), '0', 'and is in the partition of its day');

# The only job of the batch is cancelled, which needs no worker and ends the batch.  No worker
# runs the job of its callback.
sql(q{
CREATE FUNCTION batch(queue text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	batch bigint := jobq.create_batch(on_finish => jsonb_build_object('kind', 'note', 'queue', queue));
BEGIN
	PERFORM jobq.add_jobs(batch, 'note', ARRAY['{}'::jsonb], '{"queue": "still"}');
	PERFORM jobq.start_batch(batch);
	RETURN batch;
END $$;
CREATE FUNCTION finish(batch bigint) RETURNS boolean LANGUAGE sql
	AS $$ SELECT bool_and(jobq.cancel(id)) FROM jobq.live_jobs j WHERE j.batch_id = batch $$});

#
# A transaction which creates a queue stays open, and all requests of eve need this queue.  The
# requests of bob do not wait.
#
as('eve', q{
SELECT count(batch('held')) FROM generate_series(1, 300);
SELECT jobq.schedule('eve ' || n, '@yearly', 'note', options => '{"queue": "held"}') FROM generate_series(1, 5) n});
sql(q{SELECT jobq.drop_queue('held')});
sql(q{
BEGIN;
SELECT jobq.enqueue('note', queue => 'held', delay => '1 day');
PREPARE TRANSACTION 'open'});
as('eve', 'SELECT count(finish(id)) FROM jobq.batches');
sql(q{UPDATE jobq_internal.schedule SET cron = '* * * * * *', next_tick = now()});
as('bob', q{SELECT jobq.schedule('bob', '* * * * * *', 'note')});
# With a wait of 50 ms for each of 300 callbacks, each tick would be ten seconds late or more.
# On a busy machine some of the ticks may be late, but not all.
wait_for($node, 'ticks go on beside those that wait, in time',
	q{SELECT count(*) >= 8 FROM jobq.jobs WHERE headers ->> 'schedule' = 'bob' AND state = 'completed' AND enqueued_at < run_at + interval '5 s'});
my $batch = as('bob', q{SELECT batch('still')});
as('bob', "SELECT finish($batch)");
wait_for($node, 'so do callbacks', "SELECT EXISTS (SELECT FROM jobq.jobs WHERE kind = 'note' AND (headers -> 'batch_id')::bigint = $batch)");
is(ends('bob', ''), 'completed', 'and jobs');

is(sql(q{SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' LIKE 'eve%' OR headers ? 'batch_id' AND role = 'eve'::regrole}), '0', 'hers wait');
sql(q{ROLLBACK PREPARED 'open'});
wait_for($node, 'they come when it has ended', q{SELECT count(DISTINCT headers ->> 'schedule') = 5 FROM jobq.jobs WHERE headers ->> 'schedule' LIKE 'eve%'});
wait_for($node, 'each once', q{SELECT count(*) = 300 AND count(DISTINCT headers -> 'batch_id') = 300 FROM jobq.jobs WHERE headers ? 'batch_id' AND role = 'eve'::regrole});
sql(q{SELECT count(jobq.unschedule(name)) FROM jobq.schedules WHERE name LIKE 'eve%'});

#
# The end of a lease waits for a transaction which has cancelled its job.  Other leases end
# meanwhile.
#
sql(q{
SELECT jobq.create_queue('outside', open => true, mode => 'consumer');
SELECT jobq.register('brittle', 'note()', max_attempts => 1), jobq.register('plain', 'note()', max_attempts => 1)});
my $brittle = as('eve', q{SELECT jobq.enqueue('brittle', queue => 'outside')});
is(as('eve', q{SELECT kind FROM jobq.reserve('{outside}', lease => '1 hour', wait => '5 min')}), 'brittle', 'eve takes her job');
my $plain = as('bob', q{SELECT jobq.enqueue('plain', queue => 'outside')});
is(as('bob', q{SELECT kind FROM jobq.reserve('{outside}', lease => '1 hour', wait => '5 min')}), 'plain', 'bob takes his');
as('eve', "BEGIN; SELECT jobq.cancel($brittle); PREPARE TRANSACTION 'open'");
sql(q{SELECT jobq.test_clock('61 min')});
is(as('bob', "SELECT state FROM jobq.wait($plain, '5 min')"), 'dead', 'his lease ends');
is(as('eve', "SELECT state FROM jobq.status($brittle)"), 'running', 'hers does not yet');
sql(q{ROLLBACK PREPARED 'open'});
is(as('eve', "SELECT state FROM jobq.wait($brittle, '5 min')"), 'dead', 'it does when it can');

#
# A table locked by an operator stops the work which needs the table, and nothing else.
#
my $lock = $node->background_psql('postgres');
foreach my $table ('schedule', 'batch')
{
	$lock->query_safe("BEGIN; LOCK TABLE jobq_internal.$table IN ACCESS EXCLUSIVE MODE");
	is(ends('bob', q{, delay => '2 s'}), 'completed',
		"jobs become due while jobq_internal.$table is locked");
	$lock->query_safe('COMMIT');
}

# A lock on the table of jobs stops everything, but the scheduler does not exit.
my $scheduler = scheduler_pid($node);
my $offset = -s $node->logfile;
$lock->query_safe('BEGIN; LOCK TABLE jobq_internal.job IN ACCESS EXCLUSIVE MODE');
sql(q{SELECT jobq.alter_queue('outside', keep => 'no_payload')});
$node->wait_for_log(qr/the jobq scheduler cannot go on with a part of its work/, $offset);
wait_for($node, 'the trouble lasts as long as the lock',
	q{SELECT EXISTS (SELECT FROM jobq_internal.scheduler_troubles() WHERE since < jobq_internal.clock() - interval '10 s')});
$lock->query_safe('COMMIT');
is(ends('bob', ''), 'completed', 'jobs run when jobq_internal.job is free');
wait_for($node, 'and no trouble is left', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.scheduler_troubles())});
is(scheduler_pid($node), $scheduler, 'the scheduler is the same');
my $ticks = sql(q{SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' = 'bob'});
wait_for($node, 'ticks go on', "SELECT count(*) > $ticks FROM jobq.jobs WHERE headers ->> 'schedule' = 'bob'");
$lock->quit;

#
# A role with many requests waits for a role with few, here carol.
#
my @many = split(/\n/, as('eve', q{SELECT batch('still') FROM generate_series(1, 60)}));
$batch = as('carol', q{SELECT batch('still')});

# all requests arrive while the scheduler is stopped
ok(stop_at_rest($node, $scheduler), 'the scheduler sleeps');
as('eve', "SELECT finish($_)") foreach @many;
as('carol', "SELECT finish($batch)");
signal_process('CONT', $scheduler);
wait_for($node, 'all have ended', 'SELECT NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL)');
cmp_ok(sql(qq{SELECT count(*) FROM jobq.jobs WHERE role = 'eve'::regrole AND (headers -> 'batch_id')::bigint >= $many[0]
	AND id < (SELECT id FROM jobq.jobs WHERE (headers -> 'batch_id')::bigint = $batch)}), '<', 50,
	'a look of hers comes before the last of sixty of eve\'s');

#
# Far more schedules wait for their last job than shared memory can hold.  Each goes on after
# the end of its job, and the scheduler rests meanwhile.
#
as('carol', q{SELECT count(jobq.schedule('carol ' || n, '* * * * * *', 'note', overlap => 'queue', options => '{"queue": "still"}')) FROM generate_series(1, 200) n});
wait_for($node, 'all wait', q{SELECT count(*) = 200 FROM jobq_internal.schedule WHERE held});
ok(stop_at_rest($node, $scheduler), 'the scheduler sleeps, and not only once') && signal_process('CONT', $scheduler) foreach 1 .. 3;
sql(q{
CREATE TABLE waited AS SELECT name, last_job_id FROM (SELECT * FROM jobq_internal.schedule WHERE name LIKE 'carol%' ORDER BY ctid OFFSET 100) s;
SELECT bool_and(jobq.cancel(last_job_id)) FROM waited});
wait_for($node, 'those late in the table have their next job', q{SELECT bool_and(s.last_job_id > w.last_job_id) FROM waited w JOIN jobq_internal.schedule s USING (name)});
wait_for($node, 'and wait for that', q{SELECT count(*) = 200 FROM jobq_internal.schedule WHERE held});
sql(q{
SELECT count(jobq.unschedule(name)) FROM jobq.schedules WHERE name LIKE 'carol%';
SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE role = 'carol'::regrole});

#
# A group gets back a job with a lost turn without a scan of all jobs with groups.
#
sql(q{
CREATE FUNCTION refuse() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
SELECT jobq.register('refuse', 'refuse()', backoff => 'fixed 10h', max_attempts => 5);
SELECT jobq.create_queue('patient ' || n, group_on_failure => 'wait 1 ms') FROM generate_series(1, 8) n;
SELECT jobq.enqueue_many('note', array_fill('{}'::jsonb, ARRAY[5000]), queue => 'still', group_key => 'g')});
my @stuck = split(/\n/, sql(q{SELECT jobq.enqueue('refuse', queue => 'patient ' || n, group_key => 'g') FROM generate_series(1, 8) n}));
wait_for($node, 'they have failed', q{SELECT count(*) = 8 FROM jobq.live_jobs WHERE kind = 'refuse' AND state = 'retryable'});
sql(q{SELECT jobq.enqueue('note', queue => 'patient ' || n, group_key => 'g') FROM generate_series(1, 8) n});
wait_for($node, 'others pass them', q{SELECT NOT EXISTS (SELECT FROM jobq.live_jobs WHERE kind = 'note' AND queue LIKE 'patient %')});
my $reads = q{SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'jobq_internal.job'::regclass};
# sessions report their reads when they end
wait_for($node, 'no other session is there', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
my $before = sql($reads);
foreach my $n (1 .. 8)
{
	sql("SELECT jobq.alter_queue('patient $n', group_on_failure => 'wait 1 hour')");
	wait_for($node, "group $n waits again", "SELECT count(*) = 1 FROM jobq.limits WHERE type = 'group' AND waits_for = $stuck[$n - 1]");
}

# a process reports its reads when it ends
signal_process('TERM', $scheduler);
wait_for_exit($scheduler);
wait_for($node, 'there is another scheduler', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
cmp_ok(sql($reads) - $before, '<', 30000, 'without eight looks at five thousand jobs');
sql(q{SELECT count(jobq.cancel(id)) FROM jobq.live_jobs WHERE kind = 'refuse' OR queue = 'still'});

#
# A step with many references to the result of an outer step searches for it once.
#
my $searches = q{SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relid = 'jobq_internal.step'::regclass};
$before = sql($searches);
sql(q{SELECT jobq.create_workflow(jsonb_build_object('options', '{"queue": "outside"}'::jsonb, 'steps', jsonb_build_array('{"name": "outer", "kind": "x"}'::jsonb,
	jsonb_build_object('name', 'inner', 'needs', '["outer"]'::jsonb, 'workflow', jsonb_build_array(jsonb_build_object('name', 'x', 'kind', 'x',
		'payload', (SELECT jsonb_agg('{"$result": "outer"}'::jsonb) FROM generate_series(1, 20000))))))))});
sql(q{SELECT jobq.ack(id, token, '7') FROM jobq.reserve('{outside}', wait => '5 min')});
my ($step, $taken) = split(/\|/, sql(q{SELECT id || ', ' || token, (SELECT count(*) FROM jsonb_array_elements(payload) n WHERE n = '7') FROM jobq.reserve('{outside}', wait => '5 min')}));
is($taken, '20000', 'a step takes a result often');
sql("SELECT jobq.ack($step)");
$scheduler = scheduler_pid($node);
signal_process('TERM', $scheduler);
wait_for_exit($scheduler);
wait_for($node, 'there is another scheduler', 'SELECT count(*) = 1 FROM jobq_internal.scheduler_state() WHERE complete');
cmp_ok(sql($searches) - $before, '<', 10000, 'without as many searches');

#
# Old rows are removed in small pieces.
#
sql(q{
ALTER SYSTEM SET jobq.archive_retention = '1d';
INSERT INTO jobq_internal.archive_default (finished_at, id, enqueued_at, run_at, queue_id, priority, role, attempt, max_attempts, state, kind, batch_id)
SELECT now() - interval '100 days', -n, now(), now(), 1, 0, 'eve'::regrole, 1, 1, 'c', 'old', CASE WHEN n <= 1000 THEN 1 END FROM generate_series(1, 150000) n;
CREATE TABLE jobq_internal.archive_20200101 PARTITION OF jobq_internal.archive (PRIMARY KEY (id)) FOR VALUES FROM ('2020-01-01') TO ('2020-01-02');
CREATE INDEX ON jobq_internal.archive_20200101 (batch_id, state) WHERE batch_id IS NOT NULL;
INSERT INTO jobq_internal.archive_20200101 (finished_at, id, enqueued_at, run_at, queue_id, priority, role, attempt, max_attempts, state, kind, batch_id)
SELECT '2020-01-01 12:00', -n, now(), now(), 1, 0, 'eve'::regrole, 1, 1, 'x', 'old', CASE WHEN n % 10 = 0 THEN 1 END FROM generate_series(1, 20000) n;
INSERT INTO jobq_internal.unique_key (job_id, role, queue_id, until, kind, key) SELECT -n, 'eve'::regrole, 0, 'f', 'old', n::text FROM generate_series(1, 3000) n;
INSERT INTO jobq_internal.dead_letter (finished_at, id, enqueued_at, run_at, queue_id, priority, role, attempt, max_attempts, exceptions, crashes, watch, kind, payload, error, sqlstate, errors, fingerprint)
SELECT now() - interval '1000 days', -n, now(), now(), 1, 0, 'eve'::regrole, 1, 1, 0, 0, false, 'old', '{}', 'old', '00000', '[]', 1 FROM generate_series(1, 3000) n;

CREATE TABLE bite (rows bigint);
CREATE FUNCTION bite() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.bite SELECT count(*) FROM gone; RETURN NULL; END $$;
CREATE TRIGGER bite AFTER DELETE ON jobq_internal.archive_default REFERENCING OLD TABLE AS gone EXECUTE FUNCTION bite();
CREATE TRIGGER bite AFTER DELETE ON jobq_internal.archive_20200101 REFERENCING OLD TABLE AS gone EXECUTE FUNCTION bite();
CREATE TRIGGER bite AFTER DELETE ON jobq_internal.dead_letter REFERENCING OLD TABLE AS gone EXECUTE FUNCTION bite();
SELECT pg_reload_conf()});
my @old = split(/\n/, as('bob', q{SELECT batch('still') FROM generate_series(1, 12)}));
as('bob', "SELECT finish($_)") foreach @old;
wait_for($node, 'batches end', 'SELECT NOT EXISTS (SELECT FROM jobq.batches WHERE finished_at IS NULL)');
sql("UPDATE jobq_internal.batch SET finished_at = now() - interval '1000 days' WHERE id = ANY ('{" . join(',', @old) . "}')");
$ticks = sql(q{SELECT count(*) FROM jobq.jobs WHERE headers ->> 'schedule' = 'bob'});
sql(q{SELECT jobq.test_clock('122 min')});
wait_for($node, 'some of it is gone', q{SELECT count(*) < 150000 FROM jobq_internal.archive_default WHERE kind = 'old'});
note(sql(q{SELECT count(*) FROM jobq_internal.archive_default WHERE kind = 'old'}) . ' are there');
wait_for($node, 'a tick comes meanwhile', "SELECT count(*) > $ticks FROM jobq.jobs WHERE headers ->> 'schedule' = 'bob'");
is(ends('bob', q{, queue => 'new', priority => 7}), 'completed', 'and a job in a new lane');
work_off($node, 'most of it goes', q{SELECT (SELECT count(*) FROM jobq_internal.archive WHERE kind = 'old')
	+ (SELECT count(*) FROM jobq_internal.dead_letter WHERE kind = 'old') + (SELECT count(*) FROM jobq_internal.unique_key WHERE kind = 'old')});
wait_for($node, 'all of it goes', q{SELECT NOT EXISTS (SELECT FROM jobq_internal.archive WHERE kind = 'old') AND NOT EXISTS (SELECT FROM jobq_internal.dead_letter WHERE kind = 'old')
	AND NOT EXISTS (SELECT FROM jobq_internal.unique_key WHERE kind = 'old') AND to_regclass('jobq_internal.archive_20200101') IS NULL
	AND NOT EXISTS (SELECT FROM jobq_internal.batch WHERE finished_at < now() - interval '100 days')});
# the number of blocks in a piece depends on the speed of their removal
is(sql('SELECT max(rows) BETWEEN 1 AND 500 FROM bite'), 't', 'however much of a piece of a table is old');
is(sql('SELECT completed, cancelled FROM jobq_internal.batch WHERE id = 1'), '1000|2000', 'and batches know what has gone');

$node->stop;
no_failed_assertion($node);
done_testing();
