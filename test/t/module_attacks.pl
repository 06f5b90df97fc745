# Roles of each kind fail to read or change foreign data, and to run code as a different role.  The
# permissions come from the table in doc/security.md, and the test tries every cell.

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
$node->safe_psql('postgres', q{CREATE ROLE dba LOGIN; CREATE DATABASE app OWNER dba});
$node->append_conf('postgresql.conf', "jobq.databases = 'app'");
$node->reload;

sub sql { return $node->safe_psql('app', $_[0]) }

# Run a statement as the role.  Returns its rows, or the error.
sub as
{
	my ($role, $query) = @_;
	my ($rc, $out, $err) = $node->psql('app', "\\set VERBOSITY verbose\n\\set ON_ERROR_STOP off\nSET SESSION AUTHORIZATION $role;\n$query");
	return $out . $err;
}

# A victim with objects of each kind, each containing a secret.
sql(q{
CREATE EXTENSION jobq;
CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN; CREATE ROLE consumer LOGIN; CREATE ROLE monitor LOGIN;
CREATE ROLE operator LOGIN; CREATE ROLE manager LOGIN; CREATE ROLE root LOGIN SUPERUSER; CREATE ROLE victim LOGIN;
SELECT jobq.grant_privilege(r::regrole, p) FROM (VALUES ('producer', 'produce'), ('consumer', 'consume'), ('monitor', 'monitor'), ('operator', 'operate'),
	('manager', 'manage'), ('pg_database_owner', 'manage'), ('victim', 'produce')) v (r, p);
CREATE FUNCTION echo(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT payload';
CREATE FUNCTION breaks(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'broken' USING DETAIL = payload::text, HINT = payload::text;
END $$;
CREATE FUNCTION tells(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, payload #>> '{}');
	PERFORM jobq.log(payload #>> '{}');
	PERFORM pg_advisory_xact_lock_shared(1);
END $$;
SELECT jobq.register('echo', 'echo(jsonb)'), jobq.register('breaks', 'breaks(jsonb)', max_attempts => 1), jobq.register('tells', 'tells(jsonb)');
SELECT jobq.create_queue('vault', mode => 'consumer'), jobq.create_queue('safe', max_running => 5), jobq.pause('safe');
SELECT jobq.grant_privilege('victim', queue => 'vault'), jobq.grant_privilege('victim', queue => 'safe');
CREATE TABLE had (what text PRIMARY KEY, id bigint);
GRANT SELECT, INSERT ON had TO victim;
SET SESSION AUTHORIZATION victim;
INSERT INTO had VALUES ('done', jobq.enqueue('echo', '"secret"', headers => '{"h": "secret"}')),
	('dead', jobq.enqueue('breaks', '"secret"', headers => '{"h": "secret"}')),
	('waits', jobq.enqueue('echo', '"secret"', queue => 'safe', group_key => 'secret', unique_key => 'secret', headers => '{"h": "secret"}')),
	('outside', jobq.enqueue('any', '"secret"', queue => 'vault')),
	('batch', jobq.create_batch(on_success => '{"kind": "echo", "payload": "secret"}'));
SELECT jobq.schedule('nightly', '@yearly', 'echo', '"secret"', options => '{"headers": {"h": "secret"}}');
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "echo", "queue": "safe", "payload": "secret"}]}')});
my %id = split /[|\n]/, sql('SELECT what, id FROM had');
like(sql("SELECT state FROM jobq.wait_many(ARRAY[$id{done}, $id{dead}], '5 min')"), qr/^completed\ndead$/, 'some have ended');

# A running job that reports progress.
my $gate = $node->background_psql('app');
$gate->query_safe('SELECT pg_advisory_lock(1)');
my %ears = map { $_ => $node->background_psql('app') } qw(nobody producer monitor operator);
$id{runs} = sql(q{SET SESSION AUTHORIZATION victim; SELECT jobq.enqueue('tells', '"secret"', options => '{"watch": true}', delay => '1 hour')});
foreach my $role (keys %ears)
{
	$ears{$role}->query_safe("SET SESSION AUTHORIZATION $role");
	$ears{$role}->query_safe("LISTEN jobq_job_$id{runs}");
}
sql("SET SESSION AUTHORIZATION victim; SELECT jobq.edit($id{runs}, run_at => now())");
ok($node->poll_query_until('app', "SELECT message = 'secret' FROM jobq.status($id{runs})"), 'a job runs and has told');

# No role learns a secret without permission: by a view, a function, an error, NOTIFY, or the state
# of the server.  The attackers know the token of a held job.  The token alone reveals nothing.
my $holder = $node->background_psql('app');
$id{held} = sql(q{SET SESSION AUTHORIZATION victim; SELECT jobq.enqueue('any', '"secret"', queue => 'vault')});
my ($held, $token) = split /\|/, $holder->query_safe("SELECT id, token FROM jobq.reserve_job($id{held}, lease => '1 h')");
is($held, $id{held}, 'a job is held');
my @relations = split /\n/, sql(q{SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND c.relkind IN ('r', 'p', 'v', 'S') ORDER BY 1});
cmp_ok(scalar @relations, '>', 20, 'there are relations to look into');
foreach my $role (qw(nobody producer consumer monitor operator))
{
	my @tries = ((map { "SELECT r::text FROM $_ r" } @relations), q{SELECT a::text FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid()}, 'SELECT * FROM jobq_internal.worker_slots()',
		'SELECT * FROM jobq_internal.lease_slots()', 'SELECT * FROM jobq_internal.group_slots()', 'SELECT * FROM jobq_internal.limit_slots()',
		'SELECT * FROM jobq_internal.running_jobs', "SELECT jobq.wait_batch($id{batch}, '0')", "BEGIN; SELECT jobq.cancel_batch($id{batch}); ROLLBACK",
		q{SELECT jobq.schedule('nightly', '@daily', 'echo')}, q{SELECT jobq.enqueue('echo', unique_key => 'secret', uniqueness => '{"on_conflict": "error"}')});
	foreach my $job (@id{qw(done dead waits outside held runs)})
	{
		my @calls = ("status($job)", "wait($job, '0')", "result($job)", "retry($job)", "delete($job)",
			"edit($job, run_at => now() + '1 day')", "edit($job, priority => 1)", "explain($job)");
		push @calls, "cancel($job)" if $job != $id{runs} && $job != $id{held};
		push @calls, "ack($job, $_)", "nack($job, $_, 'x')", "reject($job, $_, 'x')", "release($job, $_)", "extend($job, $_, '1 min')",
			"set_progress($job, $_, 50)" foreach (1, 2, $token);
		push @tries, "BEGIN; SELECT jobq.$_; ROLLBACK" foreach @calls;
	}
	my $said = as($role, join(";\n", @tries)) =~ s/^(?:LINE \d|STATEMENT|QUERY).*$//mgr;
	cmp_ok(() = $said =~ /^psql.*ERROR/mg, '>', 50, "$role is refused much");
	is(join("\n", grep { /secret/ } split /\n/, $said), '', "$role learns no secret");
	is(join("\n", grep { /vault|safe/ } split /\n/, $said), '', "$role learns of no queue that is not for him") if $role =~ /nobody|producer/;
}
foreach my $role (sort keys %ears)
{
	# notifications arrive with the next response
	my $heard = '';
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$heard .= $ears{$role}->query('SELECT pg_sleep(0.1)') . $ears{$role}->{stderr};
		last if $heard =~ /"progress": 50/;
	}
	like($heard, qr/"progress": 50/, "$role can listen");
	unlike($heard, qr/secret/, "$role hears no secret");
	$ears{$role}->quit;
}
$gate->query_safe('SELECT pg_advisory_unlock(1)');
$gate->quit;
is(sql("SELECT state FROM jobq.wait($id{runs}, '5 min')"), 'completed', 'the job ends');
is(sql("SELECT state FROM jobq.status($id{waits})"), 'ready', 'and nobody has taken away another');
is($holder->query_safe("SELECT jobq.ack($id{held}, $token)"), '', 'nor what a consumer holds');
$holder->quit;

# A unique key of another role causes neither a conflict nor a wait.
my $open = $node->background_psql('app');
$open->query_safe(q{SET SESSION AUTHORIZATION victim});
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('echo', unique_key => 'timing')});
foreach my $key ('secret', 'timing')
{
	like(as('producer', qq{SET lock_timeout = '1 min'; BEGIN; SELECT jobq.enqueue('echo', unique_key => '$key', uniqueness => '{"on_conflict": "error"}') > 0; ROLLBACK}), qr/^t$/m,
		"a unique key of another role is not known: $key");
}
$open->query_safe('ROLLBACK');
$open->quit;

# No role can run code as another role.
sql(q{
CREATE TABLE ran (what text, who name DEFAULT current_user, session name DEFAULT session_user);
GRANT INSERT ON ran TO PUBLIC;
CREATE FUNCTION note(what text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.ran VALUES (what); RETURN true; END $$;
CREATE SCHEMA evil AUTHORIZATION producer;
CREATE FUNCTION escapes() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'RESET ROLE';
	EXECUTE 'RESET SESSION AUTHORIZATION';
	PERFORM note('reset');
	BEGIN
		EXECUTE 'SET SESSION AUTHORIZATION root';
		PERFORM note('authorization');
	EXCEPTION WHEN insufficient_privilege THEN
		PERFORM note('refused');
	END;
	INSERT INTO evil.deferred VALUES (1);
	EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT note(''held'')';
	PERFORM set_config('search_path', 'evil, public', false);
END $$;
CREATE FUNCTION mourns(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT note('on_failure') $$;
CREATE FUNCTION calls() RETURNS void LANGUAGE sql AS $$ SELECT note('callback') $$;
CREATE FUNCTION ticks() RETURNS void LANGUAGE sql AS $$ SELECT note('tick') $$;
SELECT jobq.register('escapes', 'escapes()'), jobq.register('calls', 'calls()'), jobq.register('ticks', 'ticks()')});
sql(q{
SET SESSION AUTHORIZATION producer;
SET search_path = evil, public;
CREATE TABLE evil.deferred (n int);
CREATE FUNCTION evil.trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.note('deferred'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER t AFTER INSERT ON evil.deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil.trigger();
CREATE FUNCTION evil.indexed(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM public.note('index'); RETURN $1; END $$;
CREATE INDEX ON evil.deferred (evil.indexed(n));
-- what the owner's queries might find instead of the server's own
CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT public.note('operator') $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq);
CREATE FUNCTION evil.eq(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT public.note('operator') $$;
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.eq);
CREATE FUNCTION evil.eq(regrole, oid) RETURNS boolean LANGUAGE sql AS $$ SELECT public.note('operator') $$;
CREATE OPERATOR evil.= (LEFTARG = regrole, RIGHTARG = oid, FUNCTION = evil.eq);
CREATE FUNCTION evil.count(text) RETURNS bigint LANGUAGE sql AS $$ SELECT public.note('function')::int::bigint $$;
CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT public.note('function')::text $$;
CREATE TEMP TABLE pg_roles AS SELECT 'producer'::name AS rolname;
CREATE TEMP TABLE job (id bigint); CREATE TEMP TABLE queue (id int);
SELECT jobq.create_batch(on_finish => '{"kind": "calls"}', start => true) AS batch \gset
SELECT jobq.add_jobs(:batch, 'escapes', '{"{}"}');
SELECT jobq.schedule('evil', 'every 1 s', 'ticks');
SELECT count(*) FROM jobq.jobs; SELECT count(*) FROM jobq.queues; SELECT count(*) FROM jobq.batches; SELECT count(*) FROM jobq.schedules;
SELECT count(*) FROM jobq.dead_letters; SELECT count(*) FROM jobq.steps; SELECT count(*) FROM jobq.grants; SELECT count(*) FROM jobq.limits;
SELECT jobq.retry_many(state => 'dead'), jobq.delete_many(state => 'dead')});
foreach my $what (qw(reset refused deferred held index callback tick))
{
	ok($node->poll_query_until('app', "SELECT count(*) > 0 FROM ran WHERE what = '$what'"), "what producer has made runs: $what");
	 ;
}
sql(q{SELECT jobq.unschedule('evil')});
is(sql(q{SELECT DISTINCT what, who, session FROM ran WHERE who <> 'producer' OR session <> 'producer'}), '', 'and never as another role');
is(sql(q{SELECT count(*) FROM ran WHERE what = 'authorization'}), '0', 'nor does it become one');

# The handler is the registered function, regardless of the search_path of its role, and only its
# owner can replace the function.  The same holds for on_failure, callbacks and schedules.
sql(q{
ALTER ROLE victim SET search_path = evil, public;
GRANT USAGE ON SCHEMA evil TO victim;
CREATE FUNCTION dies() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'dies'; END $$;
SELECT jobq.register('dies', 'dies()', max_attempts => 1, on_failure => 'mourns(jsonb)');
TRUNCATE ran;
SET SESSION AUTHORIZATION victim;
SELECT jobq.pause(schedule => 'nightly')});
my @victims = split /\n/, sql(q{
SET SESSION AUTHORIZATION victim;
SELECT jobq.enqueue('dies', delay => '1 hour');
SELECT jobq.create_batch(on_finish => '{"kind": "calls"}') AS batch \gset
SELECT :batch;
SELECT count(*) FROM jobq.add_jobs(:batch, 'echo', '{1}')});
like(as('producer', q{
CREATE FUNCTION evil.echo(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(public.note('replaced')) $$;
CREATE FUNCTION evil.dies() RETURNS void LANGUAGE sql AS $$ SELECT public.note('replaced') $$;
CREATE FUNCTION evil.calls() RETURNS void LANGUAGE sql AS $$ SELECT public.note('replaced') $$;
CREATE FUNCTION evil.mourns(jsonb) RETURNS void LANGUAGE sql AS $$ SELECT public.note('replaced') $$;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA evil TO PUBLIC;
CREATE OR REPLACE FUNCTION public.echo(payload jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(public.note('replaced')) $$;
CREATE OR REPLACE FUNCTION public.mourns(payload jsonb) RETURNS void LANGUAGE sql AS $$ SELECT public.note('replaced') $$;
ALTER FUNCTION public.calls() RENAME TO other;
DROP FUNCTION public.dies()}), qr/(?:must be owner of function .*){4}|(?:permission denied for schema public.*){2}(?:must be owner of function .*){2}/s, 'who does not own a handler cannot replace it');
sql(qq{SET SESSION AUTHORIZATION victim; SELECT jobq.edit($victims[0], run_at => now()), jobq.start_batch($victims[1])});
ok($node->poll_query_until('app', q{SELECT count(*) = 2 FROM ran WHERE what IN ('on_failure', 'callback') AND who = 'victim'}), 'what was registered runs');
is(sql(q{SELECT count(*) FROM ran WHERE what = 'replaced'}), '0', 'and not what is in the path before it');
sql(q{ALTER ROLE victim RESET search_path});

# An insert into a table with jobq.enqueue_trigger() requires the privilege to produce.
sql(q{
CREATE TABLE outbox (n int);
GRANT INSERT ON outbox TO nobody, producer;
CREATE TRIGGER t AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION jobq.enqueue_trigger('echo')});
like(as('nobody', 'INSERT INTO outbox VALUES (1)'), qr/42501: permission denied for/, 'who may not enqueue cannot by a trigger');
unlike(as('producer', 'INSERT INTO outbox VALUES (1)'), qr/ERROR/, 'and who may can');

# Inheriting the privileges of a role does not suffice to run jobs as the role.  SET ROLE does.
sql(q{SET SESSION AUTHORIZATION root; SELECT jobq.schedule('of root', '@yearly', 'echo')});
if ($node->pg_version >= 16)
{
	sql('GRANT root TO producer WITH SET FALSE, INHERIT TRUE');
	like(as('producer', q{SELECT jobq.schedule('of root', '@yearly', 'ticks')}), qr/belongs to another role/, 'no schedule of a role that one cannot become');
	like(as('producer', q{SELECT jobq.reassign_owned('producer', 'root')}), qr/permission denied/, 'nor its jobs');
	sql('REVOKE root FROM producer');
}

# A temporary superuser cannot leave a job behind to run as a superuser later.
sql(q{GRANT root TO producer; CREATE FUNCTION helps() RETURNS bigint SECURITY DEFINER LANGUAGE sql AS $$ SELECT jobq.enqueue('escapes') $$; ALTER FUNCTION helps() OWNER TO root});
like(as('producer', $_), qr/ERROR:  42501: permission denied to have jobs run as superuser/, "not by $_")
  foreach (q{SELECT helps()}, q{SET ROLE root; SELECT jobq.enqueue('escapes')}, q{SET ROLE root; SELECT jobq.schedule('borrowed', '@yearly', 'ticks')},
	q{SELECT jobq.reassign_owned('producer', 'root')}, q{SET ROLE root; SELECT jobq.create_queue('borrowed', run_as => 'root')});
like(as('producer', "SELECT jobq.$_"), qr/ERROR:  42501: permission denied to have jobs run as superuser/, "nor by a schedule that is there: $_")
  foreach (q{schedule('of root', '@yearly', 'ticks')}, q{run_schedule('of root')});
sql('REVOKE root FROM producer');

# Inheriting the privileges of a role does not suffice to run a job of its schedule now.  Nor does
# the right to see the schedule.
if ($node->pg_version >= 16)
{
	sql('GRANT root TO producer WITH SET FALSE, INHERIT TRUE');
	like(as('producer', q{SELECT jobq.run_schedule('of root')}), qr/ERROR:  42501: permission denied to run schedule "of root"/, 'nor by one of a role that one cannot become');
	sql('REVOKE root FROM producer');

	sql(q{CREATE ROLE author LOGIN; SELECT jobq.grant_privilege('author'); GRANT author TO producer WITH SET FALSE, INHERIT TRUE});
	my $flow = as('author', q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "ticks", "delay": "1 day"}]}')});
	like(as('producer', "SELECT jobq.rerun_steps($flow, 'a')"), qr/ERROR:  42501: permission denied to run steps of workflow $flow once more/, 'nor by a step of its workflow');
	as('author', "SELECT jobq.cancel_batch($flow)");
	sql('REVOKE author FROM producer');
}
like(as($_, q{SELECT jobq.run_schedule('of root')}), qr/ERROR:  42501: permission denied to run schedule "of root"/, "nor by who sees it: $_") foreach qw(monitor operator manager);
like(as('nobody', q{SELECT jobq.run_schedule('of root')}), qr/ERROR:  42704/, 'nor by who does not');
is(sql(q{SELECT last_job_id FROM jobq.schedules WHERE name = 'of root'}), '', 'no job has come of it');

# A queue with run_as allows nothing except the intended jobs.
sql(q{
CREATE ROLE agent LOGIN;
CREATE FUNCTION errand() RETURNS void LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
	EXECUTE 'RESET ROLE';
	EXECUTE 'RESET SESSION AUTHORIZATION';
	PERFORM note('errand');
	BEGIN
		EXECUTE 'SET SESSION AUTHORIZATION root';
		PERFORM note('authorization');
	EXCEPTION WHEN insufficient_privilege THEN
		PERFORM note('errand refused');
	END;
	BEGIN
		EXECUTE 'SET SESSION AUTHORIZATION producer';
		PERFORM note('authorization');
	EXCEPTION WHEN insufficient_privilege THEN
		PERFORM note('errand refused twice');
	END;
END $$;
SELECT jobq.create_queue('errands', run_as => 'agent', carry => '{app.a}'), jobq.register('errand', 'errand()', queue => 'errands'), jobq.grant_privilege('producer', queue => 'errands')});
foreach my $try (q{enqueue('escapes', queue => 'errands')}, q{enqueue('on_failure:errand', queue => 'errands')}, q{enqueue('errand', queue => 'errands', options => '{"context": {"search_path": "evil"}}')},
	q{schedule('errand', '@yearly', 'escapes', options => '{"queue": "errands"}')}, q{schedule('errand', '@yearly', 'errand', context => '{"search_path": "evil"}')},
	q{create_batch(on_finish => '{"kind": "escapes", "queue": "errands"}')}, q{create_workflow('{"steps": [{"name": "a", "kind": "escapes", "queue": "errands"}]}')},
	q{register('errand', 'escapes()', queue => 'errands')}, q{alter_queue('errands', run_as => 'producer')}, q{alter_queue('errands', run_as => '-')},
	q{reassign_owned('agent', 'producer')})
{
	like(as('producer', "SELECT jobq.$try"), qr/ERROR/, "a producer is refused: $try");
}
like(as('manager', "SELECT jobq.$_"), qr/ERROR:  42501/, "a manager is refused: $_")
  foreach (q{alter_queue('errands', run_as => 'root')}, q{alter_queue('errands', run_as => 'agent')}, q{create_queue('mine', run_as => 'root')});
like(as('consumer', q{SELECT count(*) FROM jobq.reserve('{errands}')}), qr/ERROR/, 'nobody reserves its jobs');
sql(q{SET SESSION AUTHORIZATION producer; SELECT jobq.enqueue('errand')});
ok($node->poll_query_until('app', q{SELECT count(*) = 3 FROM ran WHERE what ~ 'errand'}), 'a job runs as the role of its queue');
is(sql(q{SELECT DISTINCT who, session FROM ran WHERE what ~ 'errand'}), 'agent|agent', 'and as no other');
is(sql(q{SELECT count(*) FROM ran WHERE what = 'authorization'}), '0', 'nor does it become one');
unlike(as('agent', q{SELECT count(*) AS n FROM jobq.jobs}), qr/[1-9]/, 'the role sees no jobs for that');
sql(q{SELECT jobq.drop_queue('errands', force => true)});

# A producer creates queues by use, up to a limit.
$node->append_conf('postgresql.conf', 'jobq.max_queues_per_role = 5');
$node->reload;
wait_for($node, 'the setting is known', q{SELECT current_setting('jobq.max_queues_per_role') = '5'});
sql(q{SELECT jobq.register('flood', 'echo(jsonb)')});
my $flood = q{SELECT jobq.enqueue('flood', queue => 'flood' || n) FROM generate_series(1, 5) n};
unlike(as('producer', $flood), qr/ERROR/, 'a producer makes queues');
like(as('producer', q{SELECT jobq.enqueue('flood', queue => 'flood6')}), qr/ERROR:  53400: role "producer" has made too many queues\n.*has made 5 by using them first/s,
	'and is told when it has made too many');
like(as('producer', q{SET jobq.max_queues_per_role = 0}), qr/ERROR:  42501/, 'which it cannot change');
wait_for($node, 'they are counted by an index', q{SELECT idx_scan > 0 FROM pg_stat_all_indexes WHERE indexrelname = 'queue_made_by'}, 'app');
like(as('producer', q{SELECT jobq.enqueue('flood', queue => 'flood5') > 0}), qr/^t$/m, 'it uses those that there are');
unlike(as('victim', q{SELECT jobq.enqueue('flood', queue => 'own' || n) FROM generate_series(1, 5) n}), qr/ERROR/, 'another makes its own');
unlike(as('manager', q{SELECT jobq.enqueue('flood', queue => 'managed' || n) FROM generate_series(1, 6) n}), qr/ERROR/, 'who may create queues makes more');
sql(q{SELECT jobq.drop_queue('flood1', force => true)});

# queues of open transactions count, too
my $unended = $node->background_psql('app');
$unended->query_safe(q{SET SESSION AUTHORIZATION producer; BEGIN; SELECT jobq.enqueue('flood', queue => 'flood6')});
like(as('producer', q{SELECT jobq.enqueue('flood', queue => 'flood7')}), qr/has made too many queues/, 'nor as many as it has sessions');
$unended->query_safe('ROLLBACK');
$unended->quit;
like(as('producer', q{SELECT jobq.enqueue('flood', queue => 'flood7') > 0}), qr/^t$/m, 'one that was not made does not count');
sql(q{SELECT count(jobq.drop_queue(name, force => true)) FROM jobq.queues WHERE name ~ '^(flood|own|managed)'});
$node->append_conf('postgresql.conf', 'jobq.max_queues_per_role = 1000');
$node->reload;

# Each cell of the table in the manual.
my %probe = (
	'enqueue where all producers may' => q{SELECT jobq.enqueue('echo') > 0},
	'enqueue plain statements' => q{SELECT jobq.enqueue_sql('SELECT 1') > 0},
	'enqueue into a queue that is not open' => q{SELECT jobq.enqueue('echo', queue => 'safe') > 0},
	'see that a queue is there that is not open' => q{SELECT count(*) = 1 FROM jobq.queues WHERE name = 'safe'},
	'see kind, state and error of others\' jobs' => "SELECT kind = 'breaks' AND state = 'dead' AND error = 'broken' FROM jobq.jobs WHERE id = $id{dead}",
	'see what is in others\' jobs' => "SELECT payload = '\"secret\"' FROM jobq.jobs WHERE id = $id{done}",
	'take others\' jobs with `reserve()`' => q{SELECT count(*) = 1 FROM jobq.reserve('{vault}') WHERE kind = 'any'},
	'cancel, retry and reschedule others\' jobs' => "SELECT jobq.edit($id{waits}, priority => 3) IS NOT NULL",
	'edit others\' jobs, but for priority and `run_at`' => "SELECT jobq.edit($id{waits}, '1') IS NOT NULL",
	'pause queues' => q{SELECT jobq.pause('safe') IS NOT NULL},
	'pause others\' schedules' => q{SELECT jobq.pause(schedule => 'nightly') IS NOT NULL},
	'run others\' schedules' => q{SELECT jobq.run_schedule('nightly') > 0},
	'delete others\' dead letters' => "SELECT jobq.delete($id{dead}) IS NOT NULL",
	'change others\' schedules' => q{SELECT jobq.schedule('nightly', '@daily', 'echo') IS NOT NULL},
	'drop others\' schedules' => q{SELECT jobq.unschedule('nightly') IS NOT NULL},
	'make, change and drop queues' => q{SELECT jobq.create_queue('new') IS NOT NULL},
	'register handlers' => q{SELECT jobq.register('new', 'echo(jsonb)') IS NOT NULL},
	'call `doctor()`' => q{SELECT count(*) >= 0 FROM jobq.doctor()},
	'grant privileges for one queue' => q{SELECT jobq.grant_privilege('nobody', queue => 'safe') IS NOT NULL},
	'grant privileges for all queues' => q{SELECT jobq.grant_privilege('nobody', 'manage') IS NOT NULL},
	'give others\' jobs to a role' => q{SELECT jobq.reassign_owned('victim', 'producer') IS NOT NULL},
	'drop others\' jobs' => q{SELECT jobq.drop_owned('victim') IS NOT NULL},
	'read and write jobq\'s tables' => q{SELECT count(*) > 0 FROM jobq_internal.job},
);
my %who = ('nobody' => 'nobody', 'producer' => 'producer', 'consumer' => 'consumer', 'monitor' => 'monitor', 'operator' => 'operator', 'manager' => 'manager',
	'database owner' => 'dba', 'superuser' => 'root');
open(my $page, '<', "$FindBin::RealBin/../../doc/security.md") or die "no manual: $!";
my @columns;
my %tried;
while (<$page>)
{
	my @cells = map { s/^\s+|\s+$//gr } split /\|/;
	shift @cells;
	if (/^\| may \| nobody /) { @columns = @cells[1 .. 8] }
	elsif (@columns && /^\|---/) { }
	elsif (@columns && /^\|/)
	{
		my $what = $cells[0];
		ok($probe{$what}, "there is a probe: $what") or next;
		foreach my $i (0 .. $#columns)
		{
			my $role = $who{ $columns[$i] } or die "no role $columns[$i]";
			my $expected = $cells[$i + 1];
			my $query = "BEGIN; $probe{$what}; ROLLBACK";
			my $may = as($role, $query) =~ /^t$/m;

			# the end of the previous session releases resources with a delay
			for (my $n = 0; $n < 10 * $PostgreSQL::Test::Utils::timeout_default && $expected eq 'yes' && !$may; $n++)
			{
				select(undef, undef, undef, 0.1);
				$may = as($role, $query) =~ /^t$/m;
			}
			is($may ? 'yes' : 'no', $expected, "$columns[$i]: $what") or diag(as($role, $query));
		}
		$tried{$what} = 1;
	}
	else { @columns = () }
}
is(join(', ', sort grep { !$tried{$_} } keys %probe), '', 'the manual has each');

$node->stop;
no_failed_assertion($node);
done_testing();
