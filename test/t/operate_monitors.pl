# Monitors: a listener is notified once when a condition begins and once when it ends.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', "jobq.poll_interval = '1h'\njobq.workers = 'default=2'");
$node->start;

sub sql { return $node->safe_psql('postgres', $_[0]) }

sql('CREATE EXTENSION jobq');
wait_for($node, 'the database is served', 'SELECT complete FROM jobq_internal.scheduler_state()');

my $listener = $node->background_psql('postgres');
my $heard = '';
sub hears
{
	my ($what, $wanted) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$heard .= $listener->query('SELECT 1');
		last if $heard =~ $wanted;
		select undef, undef, undef, 0.1;
	}
	like($heard, $wanted, $what);
}
$listener->query_safe('LISTEN jobq_alert');

sql(q{SELECT jobq.create_queue('orders', mode => 'consumer');
SELECT jobq.create_monitor('long', 'ready', above => 2, queue => 'orders', until => 1);
SELECT jobq.create_monitor('dead', 'dead', above => 0);
SELECT jobq.enqueue('order', queue => 'orders') FROM generate_series(1, 3)});
hears('the first is looked at at once: it begins', qr/"name" : "long", "event" : "begin"/);
is(sql(q{SELECT name, value, since IS NOT NULL, ended_at IS NULL FROM jobq.monitors ORDER BY name}), "dead|0|f|t\nlong|3|t|t", 'as the view says');

$node->append_conf('postgresql.conf', "jobq.poll_interval = '1s'");
$node->reload;

# No notification while the condition still holds.
sql(q{SELECT jobq.cancel(max(id)) FROM jobq.live_jobs});
wait_for($node, 'there is one less', q{SELECT value = 2 FROM jobq.monitors WHERE name = 'long'});
sql(q{SELECT jobq.create_monitor('again', 'ready', above => 1)});
hears('others have been looked at', qr/"name" : "again", "event" : "begin"/);
is(sql(q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'long'}), 't', 'it is still on');
unlike($heard, qr/"event" : "end"/, 'which nobody is told of');

sql(q{SELECT jobq.cancel_many(queue => 'orders', state => 'waiting')});
hears('it ends', qr/"name" : "long", "event" : "end"/);
is(scalar(() = $heard =~ /"name" : "long"/g), 2, 'and was told of twice');

# A monitor with a locked row does not delay further monitors.
wait_for($node, 'all have ended', 'SELECT bool_and(since IS NULL) FROM jobq.monitors');
my $locker = $node->background_psql('postgres');
$locker->query_safe(q{BEGIN; SELECT jobq.create_monitor('long', 'ready', above => 0)});
$heard = '';
sql(q{SELECT jobq.enqueue('order', queue => 'orders') FROM generate_series(1, 4)});
hears('the others are told of', qr/"name" : "again", "event" : "begin"/);
unlike($heard, qr/"name" : "long"/, 'but not this one');
$locker->query_safe('COMMIT');
hears('until it is free', qr/"name" : "long", "event" : "begin"/);

# Each condition.
sub begins
{
	my ($name, $do, $undo) = @_;

	sql($do) if $do;
	wait_for($node, "$name begins", "SELECT since IS NOT NULL FROM jobq.monitors WHERE name = '$name'") if $do;
	sql($undo) if $undo;
	wait_for($node, "$name ends", "SELECT since IS NULL AND ended_at IS NOT NULL FROM jobq.monitors WHERE name = '$name'") if $undo;
	sql("SELECT jobq.drop_monitor('$name')");
}
sql(q{CREATE FUNCTION fails(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'no'; END$$;
CREATE FUNCTION works(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION waits(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock_shared(1); END$$;
SELECT jobq.register(k, k || '(jsonb)') FROM unnest('{fails,works,waits}'::text[]) k;
SELECT jobq.create_queue('nobody', mode => 'consumer'), jobq.create_queue('unserved')});
begins('letters', q{SELECT jobq.create_monitor('letters', 'dead', 0, kind => 'fails'), jobq.enqueue('fails', max_attempts => 1)},
	q{SELECT jobq.delete_many(state => 'dead')});
begins('failures', q{SELECT jobq.create_monitor('failures', 'failing', 0.5, kind => 'fails')}, q{SELECT jobq.reset_stats()});
begins('first', q{SELECT jobq.create_monitor('first', 'silent', 1, kind => 'works')}, q{SELECT jobq.create_monitor('first', 'silent', 1000, kind => 'works')});
sql(q{SELECT jobq.create_monitor('success', 'silent', 3000, kind => 'works'), jobq.enqueue('works')});
wait_for($node, 'a success is known', q{SELECT EXISTS (SELECT FROM jobq.stats WHERE kind = 'works' AND completed_at IS NOT NULL)});
sql(q{SELECT jobq.reset_stats()});
is(sql(q{SELECT completed_at IS NOT NULL FROM jobq.stats WHERE kind = 'works'}), 't', 'also after the counters began anew');
begins('success', q{SELECT jobq.test_clock('1 hour')}, q{SELECT jobq.enqueue('works')});
# After the clock was put back, silence is measured from the current clock.
sql(q{SELECT jobq.test_clock('2 days')});
my $ahead = sql(q{SELECT jobq.enqueue('works')});
is(sql("SELECT state FROM jobq.wait($ahead, '5 min')"), 'completed', 'a success by a clock that is ahead');
sql(q{SELECT jobq.test_clock('1 hour')});
wait_for($node, 'that is not of the future', q{SELECT max(completed_at) <= jobq_internal.clock() FROM jobq.stats WHERE kind = 'works'});
begins('back', q{SELECT jobq.create_monitor('back', 'silent', 3000, kind => 'works'), jobq.test_clock('2 hours')}, q{SELECT jobq.enqueue('works')});
begins('tick', q{CREATE ROLE leaver LOGIN; SELECT jobq.grant_privilege('leaver'); SET ROLE leaver;
SELECT jobq.schedule('often', '@every 1s', 'works');
RESET ROLE; SELECT jobq.revoke_privilege('leaver'), jobq.create_monitor('tick', 'late', 2, kind => 'works')}, q{SELECT jobq.unschedule('often')});
foreach my $queue ('nobody', 'unserved')
{
	begins("un$queue", qq{SELECT jobq.create_monitor('un$queue', 'unattended', 1, queue => '$queue'); SELECT jobq.enqueue('works', queue => '$queue')},
		$queue eq 'nobody' ? qq{SELECT jobq.ack(id, token) FROM jobq.reserve('{$queue}')} : qq{SELECT jobq.cancel_many(queue => '$queue', state => 'waiting')});
}
sql(q{SELECT jobq.enqueue('waits')});
wait_for($node, 'one has run', q{SELECT EXISTS (SELECT FROM jobq.stats WHERE kind = 'waits' AND completed > 0)});
my $keeper = $node->background_psql('postgres');
$keeper->query_safe('SELECT pg_advisory_lock(1)');
sql(q{SELECT jobq.create_monitor('other rows', 'xmin', 0, kind => 'works'), jobq.create_monitor('other runs', 'slow', 0, kind => 'works'), jobq.create_monitor('long run', 'slow', 2),
jobq.enqueue('waits')});
begins('old rows', q{SELECT jobq.create_monitor('old rows', 'xmin', 1)});
wait_for($node, 'it is slow', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'long run'});
is(sql(q{SELECT count(*) FROM jobq.monitors WHERE name LIKE 'other%' AND since IS NULL AND ended_at IS NULL}), '2', 'those of another kind are not meant');
sql(q{CREATE ROLE onlooker; SELECT jobq.grant_privilege('onlooker', 'monitor')});
is(sql(q{SELECT value FROM jobq.monitors WHERE name = 'other rows'; SET ROLE onlooker; SELECT value IS NULL FROM jobq.monitors WHERE name = 'other rows'}),
	"0\nt", 'who may not look into other sessions does not know how old');
$keeper->query_safe('SELECT pg_advisory_unlock(1)');
begins('long run', '', 'SELECT');
$keeper->quit;

# A condition begins only once, even across a crash of the server.
sql(q{SELECT jobq.create_monitor('kept', 'ready', 0, queue => 'orders'), jobq.enqueue('order', queue => 'orders')});
wait_for($node, 'it begins', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'kept'});
my $since = sql(q{SELECT since FROM jobq.monitors WHERE name = 'kept'});
$_->quit foreach $listener, $locker;
$node->stop('immediate');
$node->start;
wait_for($node, 'the jobs are counted', 'SELECT jobq_internal.stats_known()');
sql(q{SELECT jobq.create_monitor('new', 'ready', 0, queue => 'orders')});
wait_for($node, 'monitors are looked at', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'new'});
is(sql(q{SELECT since, ended_at IS NULL FROM jobq.monitors WHERE name = 'kept'}), "$since|t", 'one that was on is on still');

# There can be 1000 monitors, and the scheduler evaluates each.
sql(q{SELECT jobq.create_monitor('m' || i, (ARRAY['ready', 'oldest', 'failing', 'silent', 'dead'])[i % 5 + 1], 1e9) FROM generate_series(1, 996 - (SELECT count(*) FROM jobq.monitors)) i});
my ($rc, $out, $err) = $node->psql('postgres', q{SELECT jobq.create_monitor('n' || i, 'dead', 1) FROM generate_series(1, 5) i});
like($err, qr/there are 1000 monitors already/, 'there are not more than 1000');
sql(q{SELECT jobq.cancel_many(queue => 'orders', state => 'waiting')});
wait_for($node, 'all are looked at', q{SELECT since IS NULL FROM jobq.monitors WHERE name = 'kept'});

# A kind without a slot in the statistics counts as silent, even if many other kinds are active.
$node->append_conf('postgresql.conf', "jobq.max_stats = 16");
$node->restart;
sql(q{SELECT jobq.register('nightly', 'works(jsonb)'); SELECT jobq.register('busy ' || i, 'works(jsonb)') FROM generate_series(1, 20) i});
sub busy
{
	my ($clock) = @_;
	my $last;

	sql("SELECT jobq.test_clock('$clock')");
	$last = sql(q{SELECT jobq.enqueue('busy ' || i) FROM generate_series(1, 20) i});
	is(sql("SELECT count(*) FROM jobq.wait_many('{" . join(',', split(/\n/, $last)) . "}'::bigint[], '3 min') WHERE state = 'completed'"), '20', "others run after $clock");
}
sql('SELECT jobq.drop_monitor(name) FROM jobq.monitors');
my $nightly = sql(q{SELECT jobq.enqueue('nightly')});
is(sql("SELECT state FROM jobq.wait($nightly, '5 min')"), 'completed', 'the nightly job succeeds');
sql(q{SELECT jobq.create_monitor('nightly', 'silent', 3000, kind => 'nightly', until => 2900); SELECT jobq.cancel_many(queue => 'orders', state => 'waiting')});
# Create two monitors in succession: the second evaluation reads the values stored by the first.
foreach my $look ('look', 'look again')
{
	sql("SELECT jobq.create_monitor('$look', 'ready', 0, queue => 'orders'), jobq.enqueue('order', queue => 'orders')");
	wait_for($node, $look, "SELECT since IS NOT NULL FROM jobq.monitors WHERE name = '$look'");
}
busy('10 minutes');
busy('20 minutes');
is(sql(q{SELECT count(*) FROM jobq.stats WHERE kind = 'nightly'}), '0', 'the nightly job has no place any more');
is(sql(q{SELECT value BETWEEN 1000 AND 2900 FROM jobq.monitors WHERE name = 'nightly'}), 't', 'how long it has been silent is known');
busy('2 hours');
wait_for($node, 'it is silent, whoever is not', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'nightly'});
sql(q{SELECT jobq.create_monitor('nightly', 'silent', 6000, kind => 'nightly', until => 5000)});
is(sql(q{SELECT value > 6000 FROM jobq.monitors WHERE name = 'nightly'}), 't', 'also if another bound is set');
sql(q{SELECT jobq.test_clock('3 hours')});
$nightly = sql(q{SELECT jobq.enqueue('nightly')});
is(sql("SELECT state FROM jobq.wait($nightly, '5 min')"), 'completed', 'it succeeds again');
wait_for($node, 'and is silent no more', q{SELECT since IS NULL AND value < 5000 FROM jobq.monitors WHERE name = 'nightly'});
sql(q{SELECT jobq.create_monitor('m' || i, 'dead', 1e9) FROM generate_series(1, 996 - (SELECT count(*) FROM jobq.monitors)) i});

# Privileges.
sql(q{CREATE ROLE watcher LOGIN; CREATE ROLE stranger LOGIN; SELECT jobq.grant_privilege('watcher', 'monitor'), jobq.grant_privilege('stranger')});
for (['watcher', '996'], ['stranger', '0'])
{
	my ($role, $n) = @$_;
	my ($rc, $out, $err) = $node->psql('postgres', "SET ROLE $role; SELECT jobq.create_monitor('x', 'dead', 1)");

	like($err, qr/permission denied/, "$role makes no monitor");
	is(sql("SET ROLE $role; SELECT count(*) FROM jobq.monitors"), $n, 'and sees those that it may see');
}
for (["'', 'dead', 1", 'must have 1 to 127 bytes'], ["'x', 'red', 1", 'invalid condition "red"'], ["'x', 'dead', -1", 'above is -1'],
	["'x', 'dead', 'NaN'", 'above is'], ["'x', 'dead', 1, until => 2", 'until is 2'], ["'x', 'late', 1, queue => 'a'", 'cannot be of a queue'],
	["'x', 'oldest', 1, kind => 'a'", 'cannot be of a kind'], ["'x', 'xmin', 1, queue => 'a'", 'cannot be of a queue'],
	["NULL, 'dead', 1", 'name must not be null'], ["'x', 'dead', 1, kind => repeat('k', 1000)", 'kind of a monitor must have'],
	["'x', 'dead', 1, queue => ''", 'queue of a monitor must have'])
{
	my ($rc, $out, $err) = $node->psql('postgres', "SELECT jobq.create_monitor($_->[0])");
	like($err, qr/\Q$_->[1]/, "create_monitor($_->[0])");
}

# A check that takes long is done by a process of its own, and the scheduler goes on.
SKIP:
{
	skip 'this server has no injection points', 8
	  if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	my $checks = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'jobq monitor' AND wait_event = 'jobq-monitors-check'};

	sql(q{CREATE EXTENSION injection_points;
SELECT jobq.drop_monitor(name) FROM jobq.monitors;
INSERT INTO jobq_internal.dead_letter (finished_at, id, enqueued_at, run_at, queue_id, priority, role, attempt, max_attempts, exceptions, crashes, watch, kind,
	payload, error, sqlstate, errors, fingerprint)
SELECT jobq_internal.clock(), nextval('jobq_internal.job_id_seq'), jobq_internal.clock(), jobq_internal.clock(), 1, 0, 'postgres'::regrole, 1, 1, 1, 0, false, 'many',
	'{}', 'so it is', 'P0001', jsonb_build_array(jsonb_build_object('attempt', 1, 'message', 'so it is', 'fingerprint', 7, 'at', jobq_internal.clock())), 7
FROM generate_series(1, 100000)} =~ s/'postgres'::regrole/"'$ENV{PGUSER}'::regrole"/er);
	sql(q{SELECT jobq.create_monitor('fresh', 'new', 0, kind => 'many')});
	wait_for($node, 'a check is long', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'fresh'});
	sql(q{SELECT injection_points_attach('jobq-monitors-check', 'wait'); SELECT jobq.create_monitor('fresh too', 'new', 0, kind => 'many')});
	wait_for($node, 'a process does the next', "SELECT EXISTS ($checks)");
	my $id = sql(q{SELECT jobq.enqueue('nightly', delay => '300 ms')});
	is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'jobs do not wait for a check');
	is(sql("SELECT count(*) FROM ($checks) c"), '1', 'which is under way');
	sql(q{SELECT injection_points_wakeup('jobq-monitors-check')});
	wait_for($node, 'the process reports an alert', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'fresh too'});
	wait_for($node, 'another process checks', "SELECT EXISTS ($checks)");
	my $pid = sql($checks);
	sql(q{SELECT injection_points_detach('jobq-monitors-check'); SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'});
	wait_for($node, 'the process ends with its scheduler', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)");
	sql(q{SELECT jobq.create_monitor('fresh again', 'new', 0, kind => 'many')});
	wait_for($node, 'the next scheduler checks', q{SELECT since IS NOT NULL FROM jobq.monitors WHERE name = 'fresh again'});
}

$node->stop;
no_failed_assertion($node);
done_testing();
