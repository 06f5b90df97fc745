# Jobs in any state survive pg_dump and pg_restore.
#
# Runs on each major: pg_dump differs between majors.

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
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE ROLE clerk LOGIN;
CREATE EXTENSION jobq;
SELECT jobq.grant_privilege('clerk');
CREATE TABLE effect (job bigint, payload jsonb, role name DEFAULT current_user);
GRANT INSERT ON effect TO clerk;
CREATE FUNCTION note(payload jsonb, job jobq.job_context) RETURNS jsonb
BEGIN ATOMIC
	INSERT INTO effect VALUES (job.id, payload);
	SELECT '{"noted": true}'::jsonb;
END;
CREATE FUNCTION fail(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no good'; END $$;
CREATE FUNCTION give_up(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT jobq.reject_current('given up') $$;
SELECT jobq.register('note', 'note(jsonb, jobq.job_context)', max_attempts => 7);
SELECT jobq.register('fail', 'fail(jsonb)', backoff => 'fixed 1h', on_failure => 'give_up(jsonb)');
SELECT jobq.register('give_up', 'give_up(jsonb)', queue => 'slow', timeout => '1h');
SELECT jobq.create_limiter('few', max_running => 3);
SELECT jobq.create_queue('still', open => true, notify => 'off', keep => 'no_payload', limiters => '{few}');
SELECT jobq.pause('still');
});

# A job in each state: completed, dead, waiting for its next attempt, cancelled ...
$node->safe_psql(
	'postgres', q{
SELECT jobq.enqueue('note', '{"n": 1}', unique_key => 'one', uniqueness => '{"for": "1 day"}', options => '{"uuid": "00000000-0000-4000-8000-000000000001"}');
SELECT jobq.enqueue('give_up', '{"n": 2}');
SELECT jobq.enqueue('fail', '{"n": 3}');
SELECT jobq.cancel(jobq.enqueue('note', '{"n": 4}', delay => '1 day'));
});
wait_for($node, 'jobs are in their final states',
	q{SELECT count(*) = 4 FROM jobq.jobs WHERE state IN ('completed', 'dead', 'retryable', 'cancelled')});

# ... ready in a paused queue, scheduled, and ready in a queue paused just now; as several
# roles.
$node->safe_psql(
	'postgres', q{
SELECT jobq.pause('default');
SELECT jobq.alter_queue('default', notify => 'off');
SELECT jobq.enqueue('note', '{"n": 5}', queue => 'still', priority => 5, headers => '{"trace": 1}', timeout => '1h');
SELECT jobq.enqueue('note', '{"n": 6}', delay => '1 day', backoff => 'fixed 1s', unique_key => 'six', options => '{"uuid": "00000000-0000-4000-8000-000000000006"}');
SELECT jobq.enqueue('note', '{"n": 7}');
SET ROLE clerk;
SELECT jobq.enqueue('note', '{"n": 8}');
RESET ROLE;
});

my %tables = (
	job => 'SELECT * FROM jobq_internal.job ORDER BY id',
	archive => 'SELECT * FROM jobq_internal.archive ORDER BY id',
	dead_letter => 'SELECT * FROM jobq_internal.dead_letter ORDER BY id',
	unique_key => 'SELECT * FROM jobq_internal.unique_key ORDER BY job_id',
	job_uuid => 'SELECT * FROM jobq_internal.job_uuid ORDER BY uuid',
	queue => 'SELECT * FROM jobq_internal.queue ORDER BY id',
	handler => 'SELECT * FROM jobq_internal.handler ORDER BY kind',
	sequences =>
	  q{SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'jobq_internal' ORDER BY 1});
ok( $node->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM jobq_internal.archive WHERE tableoid <> 'jobq_internal.archive_default'::regclass}),
	'finished jobs are in a partition of their day');

my $dump = $node->backup_dir . '.dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'postgres' ], 'pg_dump');

sub is_restored
{
	my ($dbname, $what) = @_;
	foreach my $table (sort keys %tables)
	{
		is( $node->safe_psql($dbname, $tables{$table}),
			$node->safe_psql('postgres', $tables{$table}),
			"$what: $table");
	}
	return;
}

#
# Into a database which is not served yet.
#
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '-e', '-d', 'copy', $dump ], 'pg_restore');
is_restored('copy', 'restored');

# A second generation is the same.
my $dump2 = $node->backup_dir . '.sql';
$node->command_ok([ 'pg_dump', '-f', $dump2, 'copy' ], 'pg_dump of the copy');
$node->safe_psql('postgres', 'CREATE DATABASE copy2');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', $dump2, 'copy2' ],
	'plain restore of the copy');
is_restored('copy2', 'restored again');

#
# The copy works once it is served.
#
my $first = $node->safe_psql('copy',
	q{SELECT jobq.enqueue('note', '{"n": 9}', queue => 'new')});
cmp_ok($first, '>', $node->safe_psql('postgres', 'SELECT max(id) FROM jobq.jobs'),
	'ids go on behind those that were restored');
is( $node->safe_psql(
		'copy', q{SELECT payload -> 'n' FROM jobq.jobs WHERE id IN (jobq.enqueue('note', unique_key => 'one'), jobq.enqueue('note', unique_key => 'six')) ORDER BY 1}),
	"1\n6", 'unique keys are held there');
is( $node->safe_psql(
		'copy', q{SELECT payload -> 'n' FROM jobq.jobs WHERE id IN (jobq.enqueue('note', options => '{"uuid": "00000000-0000-4000-8000-000000000001"}'), (jobq.status('00000000-0000-4000-8000-000000000006')).id) ORDER BY 1}),
	"1\n6", 'and jobs are known by their uuids');
$node->append_conf('postgresql.conf', q{jobq.databases = 'postgres, copy'});
$node->reload;
is($node->safe_psql('copy', "SELECT state FROM jobq.wait($first, '5 min')"),
	'completed', 'jobs run in the restored database');
is( $node->safe_psql(
		'copy', q{SELECT payload -> 'n', state FROM jobq.jobs WHERE finished_at IS NULL ORDER BY id}),
	"3|retryable\n5|ready\n6|scheduled\n7|ready\n8|ready",
	'queues that were paused are paused');
is($node->safe_psql('copy', q{SELECT q.name, l.limiter, l.max_running FROM jobq.queues q JOIN jobq.limits l ON l.limiter = ANY (q.limiters)}),
	'still|few|3', 'a queue names its limiter');
$node->safe_psql('copy', q{SELECT jobq.resume('default'), jobq.resume('still')});
wait_for($node, 'and run when they are resumed',
	q{SELECT count(*) = 0 FROM jobq.jobs WHERE state = 'ready' OR state = 'running'}, 'copy');
is( $node->safe_psql('copy', q{SELECT payload -> 'n', role FROM effect ORDER BY 1}),
	"1|postgres\n5|postgres\n7|postgres\n8|clerk\n9|postgres",
	'each with its role, each once');
is( $node->safe_psql('copy', q{SELECT payload IS NULL, headers FROM jobq.jobs WHERE priority = 5}),
	't|{"trace": 1}', 'and as its queue wants it kept');

my $letter = $node->safe_psql('copy', q{SELECT min(id) FROM jobq.dead_letters});
$node->safe_psql('copy', "SELECT jobq.retry($letter)");
wait_for($node, 'a dead letter that was restored can be tried again',
	"SELECT jsonb_array_length(errors) = 2 FROM jobq.dead_letters WHERE id = $letter", 'copy');
is($node->safe_psql('postgres', 'SELECT count(*) FROM effect'),
	'1', 'the original has not run any of it');

#
# Into a database which is already served: nothing collides, and no job runs before the objects
# needed for the job are there.
#
$node->append_conf('postgresql.conf', q{jobq.databases = '*'});
$node->reload;
$node->safe_psql('postgres', q{SELECT jobq.resume('default')});
$node->safe_psql('postgres', 'CREATE DATABASE served');
$node->command_ok([ 'pg_restore', '-e', '-d', 'served', $dump ],
	'pg_restore into a database that is served');
wait_for($node, 'what ran, ran well',
	q{SELECT count(*) = 0 FROM jobq.jobs WHERE state = 'running' OR (state = 'ready' AND queue = 'new')}, 'served');
is($node->safe_psql('served', q{SELECT count(*) FROM jobq.dead_letters WHERE sqlstate <> 'JQ005'}),
	'0', 'no job failed because its handler was not restored yet');
is($node->safe_psql('served', q{SELECT count(*) FROM jobq.jobs}), '8', 'all jobs are there');
is($node->safe_psql('served', q{SELECT error FROM jobq.jobs WHERE payload -> 'n' = '7'}), '', 'untouched');

#
# Rows of a dropped role are not restored, because another role may have the OID there.
#
$node->safe_psql(
	'postgres', q{
CREATE ROLE leaver LOGIN;
SELECT jobq.grant_privilege('leaver'), jobq.grant_privilege('leaver', 'manage');
SET ROLE leaver;
SELECT jobq.enqueue('note', delay => '1 day', unique_key => 'its own'), jobq.schedule('of leaver', '@yearly', 'note'), jobq.create_batch('of leaver');
SELECT jobq.enqueue('give_up');
});
wait_for($node, 'it has a dead letter, too', q{SELECT count(*) = 1 FROM jobq.dead_letters WHERE role = 'leaver'::regrole});
my $leaver = $node->safe_psql('postgres', q{SELECT oid FROM pg_roles WHERE rolname = 'leaver'});
my $dump3 = $node->backup_dir . '.leaver.sql';
$node->command_ok([ 'pg_dump', '-f', $dump3, 'postgres' ], 'pg_dump with a role');
is(() = slurp_file($dump3) =~ /\tleaver\t/g, 8, 'what it has is dumped, with an entry of the audit log');
$node->safe_psql('postgres', 'DROP ROLE leaver');
$node->command_ok([ 'pg_dump', '-f', $dump3, 'postgres' ], 'pg_dump without it');
is(() = slurp_file($dump3) =~ /\t$leaver\t/g, 0, 'and not when it was dropped');
is(() = slurp_file($dump3) =~ /\tleaver\t/g, 1, 'except for the entry of the audit log, which has its name');

#
# A queue's jobs run as its run_as role, or not at all.  If this role was dropped, or the role
# which has set it, another role may have the OID there.
#
$node->safe_psql(
	'postgres', q{
CREATE ROLE agent LOGIN;
CREATE ROLE setter LOGIN IN ROLE agent;
CREATE ROLE other LOGIN;
GRANT INSERT ON effect TO PUBLIC;
SELECT jobq.grant_privilege('setter', 'manage');
SELECT jobq.create_queue('agency', open => true), jobq.create_queue('setters agency', open => true, run_as => 'clerk'), jobq.pause('agency'), jobq.pause('setters agency');
SELECT jobq.alter_queue('agency', run_as => 'agent');
SET ROLE setter;
SELECT jobq.alter_queue('setters agency', run_as => 'agent');
RESET ROLE;
SELECT jobq.register('errand', 'note(jsonb, jobq.job_context)', queue => 'agency'), jobq.register('setters errand', 'note(jsonb, jobq.job_context)', queue => 'setters agency');
SET ROLE clerk;
SELECT jobq.enqueue('errand', '{"n": 10}'), jobq.enqueue('setters errand', '{"n": 11}')});

# Dump, replace the OIDs of dropped roles, restore, and run the jobs.
sub as_whom
{
	my ($dbname, %number) = @_;
	my $text = slurp_file($dump3) if $node->run_log([ 'pg_dump', '-f', $dump3, 'postgres' ]);

	$text =~ s/\t$_(?=[\t\n])/\t$number{$_}/g foreach keys %number;
	append_to_file("$dump3.$dbname", $text);
	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', "$dump3.$dbname", $dbname ], "$dbname: restored");
	$node->safe_psql($dbname, q{SELECT jobq.resume('agency'), jobq.resume('setters agency')});
	wait_for($node, "$dbname: they are over", q{SELECT count(*) = 0 FROM jobq.live_jobs WHERE kind IN ('errand', 'setters errand')}, $dbname);
	return $node->safe_psql(
		$dbname, q{
SELECT kind, coalesce(e.role::text, j.error) FROM jobq.jobs j LEFT JOIN effect e ON e.job = j.id
WHERE kind IN ('errand', 'setters errand') ORDER BY kind});
}
is(as_whom('names'), "errand|agent\nsetters errand|agent", 'they run as the role of that name');
my %oid = split /[|\n]/, $node->safe_psql('postgres', q{SELECT rolname, oid FROM pg_roles WHERE rolname IN ('agent', 'setter', 'other')});
$node->safe_psql('postgres', q{DROP ROLE setter});
is(as_whom('no_setter', $oid{setter} => 'postgres'),
	"errand|agent\nsetters errand|the job may not run as the role that queue \"setters agency\" says", 'not if the role that has set it was dropped');
$node->safe_psql('postgres', q{DROP ROLE agent});
is(as_whom('no_agent', $oid{setter} => 'postgres', $oid{agent} => 'other'),
	qq{errand|the job may not run as the role that queue "agency" says\nsetters errand|the job may not run as the role that queue "setters agency" says},
	'nor if that role was');
like($node->safe_psql('no_agent', q{SELECT detail FROM jobq.doctor() WHERE detail ~ 'agency'}),
	qr/(queue ".*agency" runs its jobs as role other, which is not allowed: .* was dropped before the database was dumped\.\n?){2}/, 'doctor() tells');

#
# The other cluster lacks some roles: rows of these roles are kept aside, and no other rows.  A
# dump and a restore of this database keep the rows aside, too.  adopt() returns the rows when
# the roles exist.  The name of a role needs quotes.
#
$node->safe_psql('postgres', 'CREATE DATABASE office TEMPLATE template0');
$node->safe_psql(
	'office', q{
CREATE EXTENSION jobq;
CREATE ROLE keeper LOGIN;
CREATE ROLE "Mr. O'Hara" LOGIN IN ROLE keeper;
CREATE ROLE courier LOGIN;
CREATE ROLE boss SUPERUSER LOGIN;
CREATE FUNCTION work(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(current_user::text) $$;
SELECT jobq.register('work', 'work(jsonb)'), jobq.register('errand', 'work(jsonb)', queue => 'agency'), jobq.register('boss errand', 'work(jsonb)', queue => 'boss agency');
SELECT jobq.create_queue('stays', open => true), jobq.pause('stays'), jobq.create_queue('agency', open => true, run_as => 'courier'), jobq.create_queue('outside', mode => 'consumer', open => true);
SELECT jobq.create_queue('closed', mode => 'consumer'), jobq.grant_privilege('"Mr. O''Hara"', 'produce', 'closed');
SET ROLE boss;
SELECT jobq.create_queue('boss agency', open => true, run_as => 'keeper');
RESET ROLE;
SELECT jobq.pause('agency'), jobq.pause('boss agency');
SELECT jobq.enqueue('boss errand');
SELECT jobq.create_batch('errands') AS batch \\gset
SELECT jobq.add_jobs(:batch, 'errand', '{"{}"}');
SELECT jobq.start_batch(:batch);
SELECT jobq.enqueue('work', '{"n": 1}', queue => 'stays');
SELECT jobq.grant_privilege('keeper'), jobq.grant_privilege('"Mr. O''Hara"'), jobq.on_event('dead', 'work', queue => 'stays');
SET ROLE "Mr. O'Hara";
SELECT jobq.enqueue('work', 'null', queue => 'stays', unique_key => 'k', options => '{"uuid": "00000000-0000-4000-8000-00000000000a"}', tags => '{a,"b c"}', headers => '{"h": null}', timeout => '1 h');
SELECT jobq.create_batch('of his') AS batch \gset
SELECT jobq.enqueue_many('work', '{"{\"n\": 3}"}', queue => 'stays', group_key => 'g');
SELECT jobq.add_jobs(:batch, 'work', '{"{}"}', '{"queue": "stays"}');
SELECT jobq.start_batch(:batch);
SET ROLE keeper;
SELECT jobq.create_batch('shared') AS batch \\gset
SELECT jobq.add_jobs(:batch, 'work', '{"{}"}', '{"queue": "outside"}');
SET ROLE "Mr. O'Hara";
SELECT jobq.add_jobs(:batch, 'work', '{"{}"}', '{"queue": "stays"}');
SET ROLE keeper;
SELECT jobq.start_batch(:batch);
SELECT jobq.create_batch('given up') AS batch \\gset
SELECT jobq.add_jobs(:batch, 'errand', '{"{}"}');
SET ROLE "Mr. O'Hara";
SELECT jobq.add_jobs(:batch, 'errand', '{"{}"}');
SET ROLE keeper;
SELECT jobq.start_batch(:batch);
SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '5 min');
SET ROLE "Mr. O'Hara";
SELECT jobq.schedule('his', '@yearly', 'work', '7', options => '{"queue": "stays"}'), jobq.on_event('dead', 'work', queue => 'stays');
SELECT jobq.cancel(jobq.enqueue('work', '{"n": 4}', queue => 'stays'));
SELECT jobq.enqueue('work', '{"n": 5}', queue => 'outside');
SELECT jobq.reject(id, token, 'no good') FROM jobq.reserve('{outside}', wait => '5 min');
SELECT jobq.enqueue('work', queue => 'closed');
RESET ROLE;
SELECT jobq.reject(id, token, 'no good') FROM jobq.reserve('{closed}', wait => '5 min');
SET ROLE "Mr. O'Hara";
SELECT jobq.enqueue('work', '{"n": 6}', queue => 'outside');
SELECT count(*) FROM jobq.reserve('{outside}', lease => '1 day', wait => '5 min')});

my @mine = qw(job archive dead_letter unique_key job_uuid batch schedule event_handler privilege queue delegation);
my %all = map { $_ => $node->safe_psql('office', "SELECT t.* FROM jobq_internal.$_ t ORDER BY t::text") } @mine;
my $office = $node->backup_dir . '.office';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $office, 'office' ], 'absent: pg_dump');
$node->safe_psql('postgres', qq{CREATE DATABASE $_ TEMPLATE template0}) foreach ('branch', 'branch2', 'strict');
$node->safe_psql('postgres', q{DROP DATABASE office; DROP ROLE "Mr. O'Hara"; DROP ROLE courier; DROP ROLE boss});
$node->append_conf('postgresql.conf', q{jobq.databases = 'postgres'});
$node->reload;
my $offset = -s $node->logfile;
$node->command_ok([ 'pg_restore', '-e', '--no-owner', '--no-acl', '-d', 'branch', $office ], 'absent: pg_restore');
like(slurp_file($node->logfile, $offset), qr/WARNING:  role "Mr. O'Hara" does not exist\n.*DETAIL:  Rows of the role are kept aside/, 'absent: with a warning');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$office.2", 'branch' ], 'absent: pg_dump of the restored database');
$node->command_ok([ 'pg_restore', '-e', '-j', '2', '-d', 'branch2', "$office.2" ], 'absent: its pg_restore');
$node->command_ok([ 'pg_restore', '-e', '--schema-only', '-d', 'strict', $office ], 'absent: the schema is restored');
$node->command_fails_like([ 'pg_restore', '-e', '--data-only', '--disable-triggers', '-d', 'strict', $office ],
	qr/violates check constraint "absent_role"/, 'absent: without triggers, nothing is restored for a role that does not exist');
foreach my $dbname ('branch', 'branch2')
{
	is($node->safe_psql($dbname, q{SELECT role, kind, state, queue FROM jobq.live_jobs ORDER BY kind, role::text}),
		"postgres|boss errand|ready|boss agency\nkeeper|errand|ready|agency\npostgres|errand|ready|agency\npostgres|work|ready|stays", "$dbname: the jobs of a role that exists");
	is($node->safe_psql($dbname, q{SELECT name, role, kind FROM jobq.schedules}), '', "$dbname: no schedule");
	is($node->safe_psql($dbname, q{SELECT name FROM jobq.queues ORDER BY name}), "agency\nboss agency\nclosed\ndefault\noutside\nstays", "$dbname: all queues");
	is($node->safe_psql($dbname, q{SELECT regexp_replace(detail, '\d of lease, ', ''), remedy FROM jobq.doctor() WHERE detail ~ 'does not exist: '}), <<'END' =~ s/\n\z//r, "$dbname: doctor() names the roles");
role "Mr. O'Hara" does not exist: its restored rows (1 of archive, 1 of batch, 2 of dead_letter, 1 of event_handler, 6 of job, 1 of job_uuid, 2 of privilege, 1 of schedule, 1 of unique_key) are not in use|CREATE ROLE "Mr. O'Hara", then SELECT jobq.adopt()
role boss does not exist: its restored rows (1 of delegation) are not in use|CREATE ROLE boss, then SELECT jobq.adopt()
role courier does not exist: its restored rows (1 of queue) are not in use|CREATE ROLE courier, then SELECT jobq.adopt()
END
	is($node->safe_psql($dbname, 'SELECT jobq.adopt()'), '0', "$dbname: there is nothing to adopt");
}

# The database is served, and its queues are resumed: no job runs as a missing role, and no
# batch ends with jobs kept aside.
$node->append_conf('postgresql.conf', q{jobq.databases = 'branch2'});
$node->reload;
$node->safe_psql('branch2', q{SELECT jobq.resume('agency'), jobq.resume('boss agency'), jobq.resume('stays')});
wait_for($node, 'absent: a job runs', q{SELECT count(*) = 1 FROM jobq.jobs WHERE state = 'completed' AND queue = 'stays'}, 'branch2');
foreach my $name ('one', 'another')
{
	my $fence = $node->safe_psql('branch2', "SELECT jobq.create_batch('$name')");
	$node->safe_psql('branch2', "SELECT jobq.start_batch($fence)");
	wait_for($node, 'absent: the scheduler has looked', "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $fence", 'branch2');
}
$node->safe_psql('branch2', q{SELECT jobq.cancel_batch(id) FROM jobq.batches WHERE name = 'given up'});
wait_for($node, 'absent: jobs of a cancelled batch are cancelled, though others are kept aside',
	q{SELECT count(*) = 1 FROM jobq.jobs WHERE state = 'cancelled' AND role::text = 'keeper'}, 'branch2');
is($node->safe_psql('branch2', q{SELECT finished_at FROM jobq.batches WHERE name = 'given up'}), '', 'absent: it is not over');
is($node->safe_psql('branch2', q{SELECT name, state FROM jobq.batches WHERE name IN ('errands', 'shared') ORDER BY name}),
	"errands|running\nshared|running", 'absent: batches wait');
is($node->safe_psql('branch2', q{SELECT kind, state FROM jobq.live_jobs ORDER BY kind}), "boss errand|ready\nerrand|ready", 'absent: jobs wait');

is($node->safe_psql('branch2', q{SELECT j.kind, string_agg(e.reason, ',') FROM jobq.live_jobs j CROSS JOIN LATERAL jobq.explain(j.id) e GROUP BY j.kind ORDER BY j.kind}),
	"boss errand|run_as\nerrand|run_as", 'absent: explain() tells why');
is($node->safe_psql('branch2', q{SELECT detail FROM jobq.doctor('0') WHERE detail ~ 'agency'}), '', 'absent: doctor() says nothing else of the queues');

# A queue is not dropped while jobs or dead letters of it are kept aside.
like(($node->psql('branch2', q{SELECT jobq.drop_queue('stays', force => true)}))[2],
	qr/cannot drop queue "stays" because it has jobs of roles that do not exist/, 'absent: a queue with jobs kept aside is not dropped');
like(($node->psql('branch2', q{SELECT jobq.drop_queue('closed')}))[2],
	qr/cannot drop queue "closed" because it has dead letters/, 'absent: nor is one with dead letters kept aside');
$node->safe_psql('branch2', q{SELECT jobq.drop_queue('closed', force => true)});
is($node->safe_psql('branch2', q{SELECT table_name, count(*) FROM jobq_internal.held_row WHERE table_name IN ('dead_letter', 'privilege') GROUP BY 1 ORDER BY 1}),
	"dead_letter|1\nprivilege|1", 'absent: with force, its dead letters and privileges are dropped');

# What adopt() finds of the role stays.
$node->safe_psql('postgres', q{CREATE ROLE "Mr. O'Hara" LOGIN; CREATE ROLE courier LOGIN; CREATE ROLE boss SUPERUSER LOGIN});
$node->safe_psql('branch2', q{SELECT jobq.grant_privilege('"Mr. O''Hara"');
SET ROLE "Mr. O'Hara"; SELECT jobq.schedule('his', '@daily', 'work')});
like($node->safe_psql('branch', q{SELECT detail, remedy FROM jobq.doctor() WHERE detail ~ 'courier'}), qr/was created after the restore.*\|SELECT jobq.adopt\(\)/, 'absent: doctor() tells of the rows');
foreach my $dbname ('branch', 'branch2')
{
	is($node->safe_psql($dbname, 'SELECT jobq.adopt()'), '6', "$dbname: the jobs are adopted");
	is($node->safe_psql($dbname, 'SELECT count(*) FROM jobq_internal.held_row'), '0', "$dbname: nothing is left");
}
$all{job} =~ s/\|(\d+)\|courier\|/|$1|postgres|/;
$all{job} =~ s/\|keeper\|courier\|/|keeper|keeper|/;
$all{job} =~ s/\|postgres\|courier\|/|postgres|postgres|/;
is($node->safe_psql('branch', "SELECT t.* FROM jobq_internal.$_ t ORDER BY t::text"), $all{$_}, "branch: $_ is as it was") foreach @mine;
is($node->safe_psql('branch', 'SELECT count(*) > 0 FROM jobq_internal.lease'), 't', 'branch: the lease is there');
is($node->safe_psql('branch2', q{SELECT cron FROM jobq.schedules}), '@daily', 'absent: the schedule is the newer one');
wait_for($node, 'absent: the jobs run', q{SELECT count(*) = 1 FROM jobq.live_jobs}, 'branch2');
is($node->safe_psql('branch2', q{SELECT kind, result #>> '{}' FROM jobq.jobs WHERE state = 'completed' AND queue <> 'outside' ORDER BY kind, id}),
	"boss errand|keeper\nerrand|courier\nwork|postgres" . "\nwork|Mr. O'Hara" x 4, 'absent: as their roles');
wait_for($node, 'absent: the batches end', q{SELECT count(*) = 0 FROM jobq.batches WHERE finished_at IS NULL}, 'branch2');
is($node->safe_psql('branch2', q{SELECT name FROM jobq.batches WHERE state <> 'completed'}), 'given up', 'absent: one was cancelled');
is($node->safe_psql('branch2', q{SELECT j.state, count(*) FROM jobq.jobs j JOIN jobq.batches b ON b.id = j.batch_id WHERE b.name = 'given up' GROUP BY 1}),
	'cancelled|2', 'absent: with all its jobs');

#
# Steps and signals of jobs that are kept aside stay, although these jobs are in no table.
#
$node->append_conf('postgresql.conf', q{jobq.databases = 'postgres'});
$node->reload;
$node->safe_psql('postgres', qq{CREATE DATABASE $_ TEMPLATE template0}) foreach ('waits', 'waits2');
$node->safe_psql(
	'waits', q{
CREATE EXTENSION jobq;
SELECT jobq.create_queue('outside', mode => 'consumer', open => true);
CREATE ROLE waiter LOGIN;
SELECT jobq.grant_privilege('waiter');
SET ROLE waiter;
SELECT jobq.enqueue('x', delay => '1 year', queue => 'outside') AS id \gset
SELECT jobq.signal(:id, 'go');
RESET ROLE;
INSERT INTO jobq_internal.procedure_step (job_id, begun_at, token, version, type, name, done_at) SELECT id, now(), 1, 1, 's', 'one', now() FROM jobq_internal.job});
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$office.3", 'waits' ], 'progress: pg_dump');
$node->safe_psql('postgres', q{DROP DATABASE waits; DROP ROLE waiter});
$node->command_ok([ 'pg_restore', '-e', '--no-owner', '--no-acl', '-d', 'waits2', "$office.3" ], 'progress: pg_restore');
$node->append_conf('postgresql.conf', q{jobq.databases = 'waits2'});
$node->reload;

my $kept = q{SELECT (SELECT count(*) FROM jobq_internal.procedure_step), (SELECT count(*) FROM jobq_internal.signal)};
retention_pass($node, 'waits2', '20 hours', '40 hours', '60 hours');
is($node->safe_psql('waits2', $kept), '1|1', 'progress: is kept, too');
$node->safe_psql('postgres', 'CREATE ROLE waiter LOGIN');
is($node->safe_psql('waits2', 'SELECT jobq.adopt()'), '1', 'progress: the job is adopted');
$node->safe_psql('waits2', q{INSERT INTO jobq_internal.signal VALUES (1, 999999, now(), 'go', 'postgres', 'null')});
retention_pass($node, 'waits2', '80 hours', '99 hours');
is($node->safe_psql('waits2', $kept), '1|1', 'progress: of no job is deleted then');

$node->stop;
no_failed_assertion($node);
done_testing();
