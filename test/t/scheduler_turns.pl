# Roles and pools share the workers: each gets its turn, however many there are, and none loses
# a worker needlessly.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = jobq_node('main', q{
jobq.max_workers = 4
jobq.workers = '*=4'
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION jobq;
-- each job notes its role and its process: a process is a turn
CREATE TABLE ran (n bigint GENERATED ALWAYS AS IDENTITY, role name, pid int, queue text, urgent boolean);
CREATE ROLE member;
GRANT INSERT ON ran TO member;
CREATE FUNCTION ran(payload jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO ran (role, pid, queue, urgent) VALUES (current_user, pg_backend_pid(), job.queue, (payload ->> 'sleep')::float = 0);
	PERFORM pg_sleep((payload ->> 'sleep')::float);
END $$;
SELECT jobq.register('ran', 'ran(jsonb, jobq.job_context)');
SELECT jobq.grant_privilege('member');

-- the roles from one to another enqueue so many jobs each
CREATE FUNCTION enqueue_as(first int, last int, n int, sleep float, queue text, priority int DEFAULT 0) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN first .. last LOOP
		EXECUTE format('SET LOCAL ROLE role%s', i);
		PERFORM count(*) FROM jobq.enqueue_many('ran', array_fill(jsonb_build_object('sleep', sleep), ARRAY[n]),
			queue => enqueue_as.queue, priority => enqueue_as.priority);
		RESET ROLE;
	END LOOP;
END $$;
DO $$ BEGIN
	FOR i IN 1 .. 70 LOOP
		EXECUTE format('CREATE ROLE role%s LOGIN IN ROLE member', i);
	END LOOP;
END $$;

-- each process, when it began
CREATE VIEW turn AS SELECT role, queue, pid, min(n) AS n FROM ran GROUP BY role, queue, pid});

# Cancel the remaining jobs, and begin anew.
sub begin
{
	my ($workers) = @_;

	$node->safe_psql('postgres', q{SELECT jobq.cancel_many(queue => name, state => 'waiting') FROM jobq.queues});
	wait_for($node, 'nothing is left', q{
SELECT ready_entries = 0 AND NOT EXISTS (SELECT FROM jobq_internal.job) FROM jobq_internal.scheduler_state()});
	$node->safe_psql('postgres', "ALTER SYSTEM SET jobq.workers = '$workers'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf(), jobq.restart_workers()');
	wait_for($node, 'no worker is left', 'SELECT count(*) = 0 FROM jobq.workers');
	$node->safe_psql('postgres', 'TRUNCATE ran');
	return;
}

# More roles with backlogs than slots anywhere.
begin('*=2');
$node->safe_psql('postgres', q{SELECT enqueue_as(1, 70, 200, 0.05, 'many')});
work_off($node, 'each of 70 roles comes to its turn', 'SELECT 70 - count(DISTINCT role) FROM ran');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM (SELECT role FROM turn
	WHERE n < (SELECT max(n) FROM (SELECT min(n) AS n FROM turn GROUP BY role) first)
	GROUP BY role HAVING count(*) > 2) third}),
	'0', 'and none to its third before');

# An urgent job does not wait for all roles: every second slot goes by urgency.  The test counts
# the processes started after the commit, in the order of their start.  The time to start a
# process depends on the machine.
$node->safe_psql('postgres', q{
DELETE FROM jobq_internal.job WHERE role = 'role35'::regrole;
SELECT enqueue_as(35, 35, 1, 0, 'many', -1)});
my ($mark, $mark_pid) = split /\|/, $node->safe_psql('postgres', q{INSERT INTO ran (role, pid) VALUES ('mark', pg_backend_pid()) RETURNING n, pid});
wait_for($node, 'an urgent job runs', 'SELECT count(*) = 1 FROM ran WHERE urgent');
cmp_ok($node->safe_psql('postgres', qq{
SELECT count(*) FROM turn WHERE n > $mark AND pid > $mark_pid AND pid < (SELECT pid FROM ran WHERE urgent)}),
	'<=', 4, 'it does not wait for the turns of all');
is($node->safe_psql('postgres', q{SELECT count(DISTINCT role) >= 60 FROM jobq.live_jobs}),
	't', 'though many wait');

# Roles with little but frequent work keep their workers.
begin('*=4');
$node->safe_psql(
	'postgres', q{
DO $$ BEGIN
	FOR i IN 1 .. 150 LOOP
		PERFORM enqueue_as(1, 4, 1, 0, 'little');
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
END $$});
wait_for($node, 'all run', 'SELECT count(*) = 600 FROM ran');
cmp_ok($node->safe_psql('postgres', 'SELECT count(DISTINCT pid) FROM ran'),
	'<=', 60, 'four roles with four workers need few processes');

# The same while another pool lacks workers.
begin('busy=1; *=1');
$node->safe_psql(
	'postgres', q{
SELECT enqueue_as(1, 2, 1000, 0.05, 'busy');
DO $$ BEGIN
	FOR i IN 1 .. 150 LOOP
		PERFORM enqueue_as(3, 3, 1, 0, 'little');
		COMMIT;
		PERFORM pg_sleep(0.005);
	END LOOP;
END $$});
wait_for($node, 'all run', q{SELECT count(*) = 150 FROM ran WHERE role = 'role3'});
wait_for($node, 'two roles take turns', q{SELECT count(DISTINCT role) = 2 FROM ran WHERE queue = 'busy'});
cmp_ok($node->safe_psql('postgres', q{SELECT count(DISTINCT pid) FROM ran WHERE role = 'role3'}),
	'<=', 4, q{which has nothing to do with another pool's workers});

# A role with all workers gives some to another role with as much work.
begin('*=4');
$node->safe_psql('postgres', q{SELECT enqueue_as(1, 1, 6000, 0.05, 'much')});
wait_for($node, 'one role has all workers', q{SELECT count(DISTINCT pid) >= 4 FROM ran});
$node->safe_psql('postgres', q{SELECT enqueue_as(2, 2, 6000, 0.05, 'much')});
wait_for($node, 'then each has its half', q{
SELECT count(*) = 2 AND min(n) = 2 AND max(n) = 2 FROM (SELECT count(*) AS n FROM jobq.workers WHERE state = 'running' GROUP BY role) w});

# Pools with settings for more workers than exist share the existing workers.
begin('much=4; little=4; *=1');
$node->safe_psql('postgres', q{SELECT enqueue_as(1, 1, 6000, 0.05, 'much')});
wait_for($node, 'one pool has all workers', q{SELECT count(DISTINCT pid) >= 4 FROM ran});
$node->safe_psql('postgres', q{SELECT enqueue_as(1, 2, 1, 0, 'little'), enqueue_as(3, 3, 1, 0, 'others')});
wait_for($node, 'the others get their turn', q{SELECT count(*) = 3 FROM ran WHERE queue <> 'much'});
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'much'}),
	'>', 100, 'before it is done');
# A pool between a full pool and a pool without jobs gets its turn, too.
begin('much=4; little=4; *=1');
$node->safe_psql('postgres', q{SELECT enqueue_as(1, 1, 6000, 0.05, 'much')});
wait_for($node, 'one pool has all workers again', q{SELECT count(DISTINCT pid) >= 4 FROM ran});
$node->safe_psql('postgres', q{SELECT enqueue_as(2, 2, 1, 0, 'little')});
wait_for($node, 'another gets its turn', q{SELECT count(*) = 1 FROM ran WHERE queue = 'little'});
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'much'}),
	'>', 100, 'before it is done');
$node->safe_psql('postgres', q{SELECT jobq.cancel_many(queue => name, state => 'waiting') FROM jobq.queues});

$node->stop;
no_failed_assertion($node);
done_testing();
