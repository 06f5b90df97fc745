# Jobs run as the enqueuing role; many roles share a pool, and none is in the way of the others.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.workers = 'still=0; *=3'
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
CREATE TABLE effect (job bigint, role name DEFAULT current_user, session name DEFAULT session_user);
GRANT INSERT ON effect TO PUBLIC;
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS void
BEGIN ATOMIC INSERT INTO effect (job) VALUES (job.id); END;
CREATE FUNCTION hold(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1);
	INSERT INTO effect VALUES (job.id);
END $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)', backoff => 'fixed 50ms', max_attempts => 2);
SELECT jobq.register('hold', 'hold(jsonb, jobq.job_context)');

-- enqueue as each of these roles
CREATE FUNCTION enqueue_as(roles name[], kind text, n int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	role name;
BEGIN
	FOR i IN 1 .. n LOOP
		FOREACH role IN ARRAY roles LOOP
			EXECUTE format('SET LOCAL ROLE %I', role);
			PERFORM jobq.enqueue(kind);
			RESET ROLE;
		END LOOP;
	END LOOP;
END $$;

DO $$ BEGIN
	FOR i IN 1 .. 30 LOOP
		EXECUTE format('CREATE ROLE role%s LOGIN', i);
		PERFORM jobq.grant_privilege(format('role%s', i)::regrole);
	END LOOP;
END $$;
});
my $all = q{ARRAY(SELECT rolname FROM pg_roles WHERE rolname ~ '^role')};

#
# Ten times as many roles as workers.
#
$node->safe_psql('postgres', "SELECT enqueue_as($all, 'note', 20)");
wait_for($node, 'the jobs of all roles run', 'SELECT count(*) = 0 FROM jobq_internal.job');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*), count(DISTINCT job), count(DISTINCT role), bool_and(role = session) FROM effect}),
	'600|600|30|t', 'each as its role, and once');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM effect e JOIN jobq.jobs j ON j.id = e.job WHERE j.role <> e.role::regrole}),
	'0', 'and as no other');
is( $node->safe_psql('postgres', q{SELECT count(*) <= 3 FROM jobq.workers WHERE pid IS NOT NULL AND state <> 'spare'}),
	't', 'the pool is as large as its setting');

#
# Idle workers make room at once, busy workers of a single role after their job.
#
$node->safe_psql('postgres', q{SELECT enqueue_as('{role1}', 'hold', 1)});
wait_for($node, 'a role works', q{SELECT state = 'completed' FROM jobq.jobs WHERE kind = 'hold'});
$node->safe_psql('postgres', q{SELECT enqueue_as('{role2,role3,role4,role5}', 'note', 1)});
wait_for($node, 'idle workers of one role make room for others',
	'SELECT count(*) = 0 FROM jobq_internal.job');

my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{SELECT enqueue_as('{role1}', 'hold', 6)});
sleeps($node, 'one role has all workers', 3);
$node->safe_psql('postgres', q{SELECT enqueue_as('{role2}', 'note', 3)});
wait_for($node, 'one of them is to leave',
	q{SELECT count(*) > 0 FROM jobq.workers WHERE state = 'leaving'});
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
wait_for($node, 'and the jobs of both roles run', 'SELECT count(*) = 0 FROM jobq_internal.job');

# A role with work for minutes does not keep other roles waiting.
$node->safe_psql(
	'postgres', q{
CREATE FUNCTION doze(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(0.02)';
SELECT jobq.register('doze', 'doze(jsonb)');
SET ROLE role1;
SELECT count(*) FROM jobq.enqueue_many('doze', array_fill('{}'::jsonb, ARRAY[30000]))});
wait_for($node, 'one role has all workers',
	q{SELECT count(*) = 3 FROM jobq.workers WHERE kind = 'doze'});
$node->safe_psql('postgres', q{SELECT enqueue_as('{role2,role3}', 'note', 1)});
wait_for($node, 'others do not wait for its end',
	q{SELECT count(*) = 0 FROM jobq_internal.job WHERE kind = 'note'});
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM jobq_internal.job}),
	'>', 100, 'which is far away');
$node->safe_psql('postgres', q{SELECT jobq.cancel_many(queue => 'default', state => 'waiting')});
wait_for($node, 'that is over', 'SELECT count(*) = 0 FROM jobq_internal.job');

#
# Roles which cannot work: their jobs fail with a clear error, and the jobs of other roles run.
#
$node->safe_psql(
	'postgres', q{
TRUNCATE effect;
SELECT jobq.pause('default');
SELECT enqueue_as('{role6,role7,role8,role9,role10,role11}', 'note', 5);
DROP OWNED BY role6;
DROP ROLE role6;
ALTER ROLE role7 NOLOGIN;
REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
GRANT CONNECT ON DATABASE postgres TO role7, role9, role10, role11;
SELECT jobq.resume('default')});
wait_for($node, 'all jobs are finished', 'SELECT count(*) = 0 FROM jobq_internal.job');
my $nologin = $node->pg_version >= 17;
is( $node->safe_psql('postgres', q{SELECT role, count(*) FROM effect GROUP BY 1 ORDER BY 1}),
	"role10|5\nrole11|5\n" . ($nologin ? "role7|5\n" : '') . 'role9|5',
	'jobs of the roles that can work have run');
is( $node->safe_psql(
		'postgres', q{
SELECT coalesce(rolname, 'dropped'), count(*), min(attempt), max(attempt), min(error), max(error), max(sqlstate)
FROM jobq.dead_letters LEFT JOIN pg_roles r ON r.oid = role::oid
GROUP BY 1 ORDER BY 1}),
	"dropped|5|1|1|the role of the job does not exist any more|the role of the job does not exist any more|JQ010"
	  . ($nologin ? '' : "\nrole7|5|1|1|the role of the job may not log in|the role of the job may not log in|JQ010")
	  . "\nrole8|5|1|1|the role of the job may not connect to the database|the role of the job may not connect to the database|JQ010",
	'jobs of those that cannot have failed at once, and say why');
is($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.dead_letters WHERE error IS NULL OR role IS NULL}),
	'0', 'and can be looked at');

# The causes are fixed.
$node->safe_psql(
	'postgres', q{
GRANT CONNECT ON DATABASE postgres TO role8;
ALTER ROLE role7 LOGIN;
SELECT jobq.retry(id) FROM jobq.dead_letters WHERE role::oid IN (SELECT oid FROM pg_roles)});
wait_for($node, 'they run when they are retried', 'SELECT count(*) = 0 FROM jobq_internal.job');
is( $node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT job) FROM effect}),
	'25|25', 'each once');

#
# Superusers, if their jobs are not allowed: with an existing worker, and without.
#
$node->safe_psql('postgres', q{ALTER SYSTEM SET jobq.allow_superuser_jobs = off; SELECT pg_reload_conf()});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'off'});
my $super = $node->safe_psql('postgres', q{CREATE ROLE super LOGIN SUPERUSER; SET SESSION AUTHORIZATION super; SELECT jobq.enqueue('note', max_attempts => 1)});
is($node->safe_psql('postgres', "SELECT state, error FROM jobq.wait($super, '5 min')"), 'dead|the role of the job is a superuser', 'no job of a superuser runs');
my $rising = $node->safe_psql('postgres', q{SET ROLE role9; SELECT jobq.enqueue('note')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($rising, '5 min')"), 'completed', 'others do');
$rising = $node->safe_psql('postgres', q{ALTER ROLE role9 SUPERUSER; SET ROLE role9; SELECT jobq.enqueue('note', max_attempts => 1)});
is($node->safe_psql('postgres', "SELECT state, error FROM jobq.wait($rising, '5 min')"), 'dead|the role of the job is a superuser', 'nor of one that has become one');
$node->safe_psql('postgres', q{ALTER ROLE role9 NOSUPERUSER; ALTER SYSTEM RESET jobq.allow_superuser_jobs; SELECT pg_reload_conf(); SELECT jobq.delete_many(state => 'dead')});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'own'});

#
# A role is a superuser for a moment only, in a function of a superuser.
#
$node->safe_psql('postgres', q{
CREATE FUNCTION borrow() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT jobq.enqueue('note') $$;
ALTER FUNCTION borrow() OWNER TO super});
my (undef, undef, $refused) = $node->psql('postgres', 'SET SESSION AUTHORIZATION role9; SELECT borrow()');
like($refused, qr/permission denied to have jobs run as superuser "super"/, 'no job of a superuser by a function of one');
$node->safe_psql('postgres', q{ALTER SYSTEM SET jobq.allow_superuser_jobs = on; SELECT pg_reload_conf()});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'on'});
my $borrowed = $node->safe_psql('postgres', 'SET SESSION AUTHORIZATION role9; SELECT borrow()');
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($borrowed, '5 min')"), 'completed', 'unless that is allowed');
$node->safe_psql('postgres', q{ALTER SYSTEM RESET jobq.allow_superuser_jobs; SELECT pg_reload_conf()});
wait_for($node, 'the setting is read', q{SELECT current_setting('jobq.allow_superuser_jobs') = 'own'});

#
# In a group, a job of a dropped role fails at its turn, and not before.
#
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$node->safe_psql('postgres', q{
SELECT jobq.register('limited', 'hold(jsonb, jobq.job_context)', max_running => 1);
SELECT jobq.enqueue('limited')});
sleeps($node, 'a job is in the way of the first of the group', 1);
my $before = $node->safe_psql('postgres', q{
CREATE ROLE leaver LOGIN;
SELECT FROM jobq.grant_privilege('leaver');
BEGIN;
SELECT jobq.enqueue('limited', group_key => 'g');
SET LOCAL ROLE leaver;
SELECT FROM jobq.enqueue('note', group_key => 'g', backoff => 'fixed 1 h');
RESET ROLE;
DROP OWNED BY leaver;
DROP ROLE leaver;
COMMIT}) =~ s/\s//gr;
wait_for($node, 'the second waits for the first', q{SELECT parked = 1 FROM jobq.limits WHERE type = 'group' AND group_key = 'g'});
is($node->safe_psql('postgres', 'SELECT attempt FROM jobq_internal.job WHERE id > ' . $before), '0', 'and is not charged');
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($before, '5 min')"), 'completed', 'the first runs');
wait_for($node, 'then the second fails', "SELECT count(*) = 1 FROM jobq.jobs WHERE state IN ('retryable', 'dead') AND attempt = 1 AND id > $before");
$node->safe_psql('postgres', q{SELECT jobq.cancel(id) FROM jobq.jobs WHERE finished_at IS NULL; SELECT jobq.delete(id) FROM jobq.dead_letters});

#
# A dropped role has jobs in a queue without workers: these jobs fail with the role's other
# jobs, even a job which becomes due, or is read, later.
#
my @still = split /\n/, $node->safe_psql('postgres', q{
CREATE ROLE goner LOGIN;
SELECT FROM jobq.grant_privilege('goner');
SET ROLE goner;
SELECT jobq.enqueue('note', delay => '1 h');
SELECT jobq.enqueue('note', queue => 'still');
SELECT jobq.enqueue('note', queue => 'still', delay => '61 min');
RESET ROLE;
DROP OWNED BY goner;
DROP ROLE goner}) =~ s/^\n+//mgr;
my $dead = 'SELECT count(*) = %d FROM jobq.dead_letters WHERE id IN (' . join(',', @still) . ')';
$node->safe_psql('postgres', q{SELECT jobq.test_clock('1 h')});
wait_for($node, 'jobs of a role that has gone fail, served or not', sprintf($dead, 2));
$node->safe_psql('postgres', q{SELECT jobq.test_clock('62 min')});
wait_for($node, 'so does one that comes later', sprintf($dead, 3));
$node->safe_psql('postgres', q{SELECT jobq.test_clock('0'); SELECT jobq.delete(id) FROM jobq.dead_letters});

#
# A job of a role which may not connect must be charged, but the dead letters are locked: the
# job gives its slot of a limit back, and is charged later.
#
sub limit_is_free
{
	my ($name) = @_;
	my $id = $node->safe_psql('postgres', q{SET ROLE role9; SELECT jobq.enqueue('note', queue => 'single')});

	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($id, '5 min')"), 'completed', "$name: a job of another role runs");
	wait_for($node, "$name: nothing is held", q{SELECT running = 0 FROM jobq.limits WHERE type = 'queue' AND queue = 'single'});
	return;
}
$node->safe_psql('postgres', q{
SELECT jobq.create_queue('single', open => true, max_running => 1)});
my $offset = -s $node->logfile;
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.dead_letter IN SHARE MODE');
my $unpaid = $node->safe_psql('postgres', q{SET ROLE role20; SELECT jobq.enqueue('note', queue => 'single')});
$node->wait_for_log(qr/the jobq scheduler cannot go on with job $unpaid: canceling statement due to lock timeout/, $offset);
is($node->safe_psql('postgres', "SELECT state FROM jobq.status($unpaid)"), 'ready', 'a job cannot be charged');
my $newcomer = $node->safe_psql('postgres', q{SET ROLE role10; SELECT jobq.enqueue('note')});
is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($newcomer, '5 min')"), 'completed', 'another role gets a worker');
$locker->query_safe('COMMIT');
$locker->quit;
is($node->safe_psql('postgres', "SELECT state, error FROM jobq.wait($unpaid, '5 min')"), 'dead|the role of the job may not connect to the database', 'and is when that is possible');
limit_is_free('lock');

# The same if the scheduler ends in the middle of the charge.
SKIP:
{
	skip 'this server has no injection points', 4
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0';
	$node->safe_psql('postgres', q{CREATE EXTENSION injection_points; SELECT injection_points_attach('jobq-role-charge', 'wait')});
	$unpaid = $node->safe_psql('postgres', q{SET ROLE role20; SELECT jobq.enqueue('note', queue => 'single')});
	wait_for($node, 'the scheduler is about to charge a job', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'jobq-role-charge'});
	$node->safe_psql('postgres', q{SELECT injection_points_detach('jobq-role-charge'); SELECT pg_terminate_backend(pid) FROM jobq_internal.scheduler_state()});
	is($node->safe_psql('postgres', "SELECT state FROM jobq.wait($unpaid, '5 min')"), 'dead', 'the next scheduler charges it');
	limit_is_free('end');
}
$node->safe_psql('postgres', q{SELECT jobq.delete_many(state => 'dead')});

#
# A job which cannot run needs no slot of a limit: the job fails while other jobs hold all
# slots.
#
$gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(11), pg_advisory_lock(12)');
$node->safe_psql('postgres', q{
CREATE FUNCTION hold_at(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(payload::bigint)';
SELECT jobq.register('hold_at', 'hold_at(jsonb)');
SET ROLE role9;
SELECT jobq.enqueue('hold_at', '11', queue => 'single')});
sleeps($node, 'a job has the only place', 1);
my $runless = $node->safe_psql('postgres', q{
SET ROLE role9;
SELECT jobq.enqueue('hold_at', '12', queue => 'single') \g /dev/null
SET ROLE role20;
SELECT jobq.enqueue('note', queue => 'single')});
$gate->query_safe('SELECT pg_advisory_unlock(11)');
is($node->safe_psql('postgres', "SELECT state, error FROM jobq.wait($runless, '5 min')"), 'dead|the role of the job may not connect to the database', 'a job whose turn it is at a limit fails');
sleeps($node, 'while the next one of another role has the place', 1);
$gate->quit;
limit_is_free('turn');
$node->safe_psql('postgres', q{SELECT jobq.delete_many(state => 'dead')});

#
# A role with hostile settings, which must not affect jobq's own bookkeeping.
#
$node->safe_psql(
	'postgres', q{
ALTER ROLE role12 SET default_transaction_read_only = on;
ALTER ROLE role12 SET statement_timeout = '1ms';
ALTER ROLE role12 SET search_path = 'nowhere';
ALTER ROLE role12 SET row_security = off;
ALTER ROLE role12 SET session_replication_role = replica;
ALTER ROLE role12 SET default_transaction_isolation = serializable;
ALTER ROLE role12 SET role = role13;
GRANT role13 TO role12;
GRANT CONNECT ON DATABASE postgres TO PUBLIC;
TRUNCATE effect;
SELECT enqueue_as('{role12,role13}', 'note', 5)});
wait_for($node, 'all jobs are finished', 'SELECT count(*) = 0 FROM jobq_internal.job');
is( $node->safe_psql('postgres', q{SELECT session, count(*) FROM effect GROUP BY 1 ORDER BY 1}),
	"role12|5\nrole13|5",
	q{a role's own settings do not keep its jobs from being done});

# A write of jobq about a job waits for its locks as long as needed.  An error ends the attempt,
# and not the worker.
$node->safe_psql(
	'postgres', q{
ALTER ROLE role12 SET lock_timeout = '50ms';
ALTER ROLE role12 SET exit_on_error = on;
CREATE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL lock_timeout = 0;
	PERFORM pg_advisory_xact_lock_shared(1);
	RAISE EXCEPTION 'an error of its own';
END $$;
CREATE FUNCTION hold_long(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL lock_timeout = 0;
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
SELECT jobq.register('fail', 'fail(jsonb)', max_attempts => 1), jobq.register('hold_long', 'hold_long(jsonb)', max_attempts => 1);
SELECT jobq.restart_workers()});
foreach my $case (
	[ 'hold_long', 'jobq_internal.archive', 'completed|1|' ],
	[ 'fail', 'jobq_internal.job', 'dead|1|an error of its own' ])
{
	my ($kind, $table, $outcome) = @$case;
	my $gate = $node->background_psql('postgres');
	my $locker = $node->background_psql('postgres');

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $id = $node->safe_psql('postgres', "SET ROLE role12; SELECT jobq.enqueue('$kind')");
	wait_for($node, "$kind runs", q{SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'role12' AND wait_event = 'advisory'});
	$locker->query_until(qr/locks/, "\\echo locks\nBEGIN; LOCK TABLE $table IN SHARE MODE;\n");
	wait_for($node, "$table is locked, or will be", qq{SELECT count(*) > 0 FROM pg_locks WHERE relation = '$table'::regclass AND mode = 'ShareLock'});
	$gate->quit;
	wait_for($node, "the worker of $kind waits for $table", q{
SELECT count(*) = 1 FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE usename = 'role12' AND locktype = 'relation' AND NOT granted AND clock_timestamp() - waitstart > '200 ms'});
	$locker->query_safe('COMMIT');
	$locker->quit;
	is($node->safe_psql('postgres', "SELECT state, attempt, error FROM jobq.wait($id, '5 min')"), $outcome, "$kind ends as it should");
}

# A worker notices the drop of the role, even if the worker runs as another role.
my $lost = $node->safe_psql('postgres', q{
BEGIN;
SET LOCAL ROLE role12;
SELECT jobq.enqueue('note') AS id \gset
RESET ROLE;
DROP ROLE role12;
COMMIT;
SELECT :id});
like($node->safe_psql('postgres', "SELECT state, error FROM jobq.wait($lost, '5 min')"), qr/^dead\|the role of the job does not exist any more/, 'a job of a role that was dropped fails');

$node->stop;
no_failed_assertion($node);
done_testing();
