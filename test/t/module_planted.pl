# An attacker has planted objects before CREATE EXTENSION, in the first schema of every search_path:
# copies of the server's operators, functions, types, tables and casts, some with a better match.
# None of these run: not by the install script, a query of jobq or of the program jobq, or between
# the start of a worker and its handler.
#
# Runs on each major: each major has other functions, types and operators.

use strict;
use warnings FATAL => 'all';
use Encode ();
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.workers = '*=2'
jobq.poll_interval = '200ms'
jobq.retention = '1 s'
});
$node->start;
$node->safe_psql('postgres', q{
CREATE ROLE mallory LOGIN;
CREATE ROLE root LOGIN SUPERUSER;
CREATE ROLE victim LOGIN;
CREATE DATABASE app;
-- this test itself
ALTER ROLE postgres SET search_path = pg_catalog});
$node->append_conf('postgresql.conf', "jobq.databases = 'app'");
$node->reload;

# Run a script in a new session of the role, with all planted objects in its path.
sub as
{
	my ($role, $script) = @_;
	my ($rc, $out, $err) = $node->psql("app", $script, extra_params => [ '-U', $role ]);
	is($rc, 0, "$role: no error") or diag($err);
	return $out;
}

# The planted objects executed since the last call, with the roles.
my $seen = 0;

sub ran
{
	my $log = slurp_file($node->logfile, $seen);
	$seen += length $log;
	my %ran = map { $_ => 1 } $log =~ /LOG:  (planted .* ran as \w+)/g;
	return join "\n", sort keys %ran;
}

$node->safe_psql('app', q{
GRANT CREATE ON DATABASE app TO mallory;
GRANT CREATE ON SCHEMA public TO mallory;
SET SESSION AUTHORIZATION mallory;
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.says(what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'planted % ran as %', what, current_user;
	RETURN true;
END $$;
CREATE TYPE evil.any AS ENUM ('a');
CREATE FUNCTION evil.cast(text) RETURNS evil.any LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('cast'); RETURN 'a'; END $$;
CREATE FUNCTION evil.cast(bigint) RETURNS evil.any LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('cast'); RETURN 'a'; END $$;
CREATE FUNCTION evil.cast(jsonb) RETURNS evil.any LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('cast'); RETURN 'a'; END $$;
CREATE CAST (text AS evil.any) WITH FUNCTION evil.cast(text) AS IMPLICIT;
CREATE CAST (bigint AS evil.any) WITH FUNCTION evil.cast(bigint) AS IMPLICIT;
CREATE CAST (jsonb AS evil.any) WITH FUNCTION evil.cast(jsonb) AS IMPLICIT;
CREATE FUNCTION evil.next(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('aggregate'); RETURN 1; END $$;
CREATE AGGREGATE evil.count(*) (SFUNC = evil.next, STYPE = bigint, INITCOND = '0');
CREATE FUNCTION evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('format'); RETURN ''; END $$;
CREATE FUNCTION evil.concat_ws(text, VARIADIC text[]) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.says('concat_ws'); RETURN ''; END $$;
DO $do$
DECLARE
	types oid[] := '{text,int4,int8,int2,bool,jsonb,timestamptz,interval,oid,regrole,regproc,regclass,name,"\"char\"",float8,float4,numeric,xid,tid}'::regtype[]::oid[];
	o record;
	operators int := 0;
	functions int := 0;
BEGIN
	-- operators as they are, those that an untyped literal fits better, and those that the server has for other types only
	FOR o IN SELECT row_number() OVER () AS n, * FROM (
			SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result,
				format('$1 OPERATOR(pg_catalog.%s) $2', oprname) AS value
			FROM pg_operator WHERE oprkind = 'b' AND oprleft = ANY (types) AND oprright = ANY (types) AND oprresult <> 0
			UNION ALL
			SELECT DISTINCT ON (a.oprname, a.oprleft) a.oprname, a.oprleft::regtype, a.oprleft::regtype, a.oprresult::regtype, 'NULL'
			FROM pg_operator a WHERE a.oprkind = 'b' AND a.oprleft = ANY (types) AND a.oprresult <> 0
				AND NOT EXISTS (SELECT FROM pg_operator b WHERE b.oprname = a.oprname AND b.oprleft = a.oprleft AND b.oprright = a.oprleft)
			UNION ALL
			SELECT * FROM (VALUES ('*'::name, 'numeric'::regtype, 'interval'::regtype, 'interval'::regtype, 'NULL'), ('/', 'int8', 'numeric', 'numeric', 'NULL'),
				('||', 'text', 'int4', 'text', 'NULL'), ('||', 'text', 'int8', 'text', 'NULL'), ('||', 'int8', 'text', 'text', 'NULL')) v) p
	LOOP
		EXECUTE format('CREATE FUNCTION evil.o%s(%s, %s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog AS $f$ BEGIN PERFORM evil.says(%L); RETURN %s; END $f$',
			o.n, o.l, o.r, o.result, 'operator ' || o.oprname, o.value);
		EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.o%s)', o.oprname, o.l, o.r, o.n);
		operators := operators + 1;
	END LOOP;
	FOR o IN SELECT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS args, p.prorettype::regtype AS result, p.pronargs
		FROM pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
			AND p.prorettype = ANY (types) AND p.pronargs <= 4 AND p.proargtypes::oid[] <@ types
	LOOP
		EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog AS $f$ BEGIN PERFORM evil.says(%L); RETURN pg_catalog.%I(%s); END $f$',
			o.proname, (SELECT string_agg(t::regtype::text, ', ' ORDER BY n) FROM unnest((SELECT proargtypes::oid[] FROM pg_proc WHERE oid = o.oid)) WITH ORDINALITY u (t, n)),
			o.result, 'function ' || o.proname, o.proname, (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM generate_series(1, o.pronargs) n));
		functions := functions + 1;
	END LOOP;
	FOR o IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace AND c.relkind IN ('r', 'v')
		AND has_table_privilege(c.oid, 'SELECT') AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.atttypid = 'anyarray'::regtype)
	LOOP
		EXECUTE format('CREATE VIEW evil.%I AS SELECT * FROM pg_catalog.%I WHERE evil.says(%L)', o.relname, o.relname, 'table ' || o.relname);
		EXECUTE format('GRANT SELECT ON evil.%I TO PUBLIC', o.relname);
	END LOOP;
	FOR o IN SELECT t::regtype::text AS name, (SELECT typname FROM pg_type WHERE oid = t) AS typname FROM unnest(types) t LOOP
		EXECUTE format('CREATE DOMAIN evil.%I AS %s CHECK (evil.says(%L))', o.typname, o.name, 'type ' || o.name);
	END LOOP;
	IF operators < 200 OR functions < 200 THEN
		RAISE 'only % operators and % functions are planted', operators, functions;
	END IF;
END $do$;
RESET SESSION AUTHORIZATION;
ALTER DATABASE app SET search_path = evil, public, pg_catalog});

# The trap works: an unqualified query finds the planted objects.
ran();
as('root', q{SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text, count(*), lower('A'), 'a'::text, '{}'::pg_catalog.jsonb ->> '1', 2.5::pg_catalog.numeric * '1 s'::pg_catalog.interval FROM pg_roles GROUP BY rolname});
like(ran(), qr/planted aggregate ran as root.*planted function lower ran as root.*planted operator \* ran as root.*planted operator ->> ran as root.*planted operator = ran as root.*planted table pg_roles.*planted type text/s,
	'what is planted runs where nobody cares');

# CREATE EXTENSION refuses an existing schema.
sub refused
{
	my ($plant, $why, $what) = @_;
	as($plant->[0], $plant->[1]);
	my ($rc, undef, $err) = $node->psql('app', 'CREATE EXTENSION jobq', extra_params => [ '-U', 'root' ]);
	like($err, $why, $what);
	as('root', 'DROP SCHEMA IF EXISTS jobq CASCADE; DROP SCHEMA IF EXISTS jobq_internal CASCADE');
}
my $not_empty = qr/schema "jobq" is not empty, or others than superusers can create objects in it/;
refused([ 'mallory', 'CREATE SCHEMA jobq; CREATE FUNCTION jobq.metrics() RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$' ], $not_empty, 'no schema with something in it');
refused([ 'mallory', 'CREATE SCHEMA jobq' ], $not_empty, 'no schema of somebody else');
refused([ 'root', 'CREATE SCHEMA jobq; GRANT CREATE ON SCHEMA jobq TO mallory' ], $not_empty, 'no schema that is open to somebody else');
refused([ 'mallory', 'CREATE SCHEMA jobq_internal' ], qr/schema "jobq_internal" already exists/, 'nor the other one');

# Default privileges grant new objects to mallory, and revoke functions and types from PUBLIC.
$node->safe_psql('app', q{
SET SESSION AUTHORIZATION root;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO mallory WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO mallory, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO mallory;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO mallory;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO mallory;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON TYPES FROM PUBLIC;
-- as whom the scheduler runs
RESET SESSION AUTHORIZATION;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO mallory WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC});

as('root', 'CREATE EXTENSION jobq');
is(ran(), '', 'nothing of it runs by the install script');

# Default privileges do not apply to objects of jobq, nor to objects that the scheduler creates.
my $granted = q{
SELECT o.what, a.grantee::regrole, string_agg(a.privilege_type, ' ' ORDER BY a.privilege_type)
FROM (SELECT oid::regclass::text, relowner, relacl FROM pg_class WHERE relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace) AND relkind NOT IN ('i', 'I', 'c')
	UNION ALL SELECT oid::regprocedure::text, proowner, proacl FROM pg_proc WHERE pronamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	UNION ALL SELECT oid::regtype::text, typowner, typacl FROM pg_type WHERE typnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	UNION ALL SELECT nspname, nspowner, nspacl FROM pg_namespace WHERE nspname IN ('jobq', 'jobq_internal')) o (what, owner, acl), aclexplode(o.acl) a
WHERE a.grantee <> o.owner AND a.grantee <> 0 GROUP BY 1, 2 ORDER BY 1, 2};
is($node->safe_psql('app', $granted), '', 'default privileges give nobody anything of jobq');
is( $node->safe_psql('app', q{SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace IN ('jobq'::regnamespace, 'jobq_internal'::regnamespace)
	AND CASE WHEN c.relkind IN ('r', 'p') THEN has_table_privilege('mallory', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
		WHEN c.relkind = 'S' THEN has_sequence_privilege('mallory', c.oid, 'USAGE, SELECT, UPDATE') END}), '', 'nor everybody');
is( $node->safe_psql('app', q{SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace AND NOT has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1}),
	"jobq.adopt(integer)\njobq.test_clock(interval)", 'nor take they from everybody what is for everybody: functions');
is( $node->safe_psql('app', q{SELECT t.oid::regtype FROM pg_type t WHERE t.typnamespace = 'jobq'::regnamespace AND t.typelem = 0 AND NOT has_type_privilege('public', t.oid, 'USAGE')}),
	'', 'and types');
foreach my $call ('adopt()', q{test_clock('1 hour')})
{
	my $try = "SET SESSION AUTHORIZATION mallory; SELECT jobq.$call";
	my (undef, undef, $said) = $node->psql('app', $try);
	like($said, qr/permission denied for function/, "refused: $call");
	(undef, undef, $said) = $node->psql('app', "BEGIN; GRANT EXECUTE ON FUNCTION jobq.adopt(int), jobq.test_clock(interval) TO mallory; $try");
	like($said, qr/permission denied to (?:adopt jobs|put jobq's clock forward)/, "refused to who may execute it: $call");
}
wait_for($node, 'some days have partitions', q{SELECT count(*) > 2 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass}, 'app');
is($node->safe_psql('app', $granted), '', 'nor anything of the days');
is($node->safe_psql('app', q{SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'jobq_internal'::regnamespace AND c.relkind = 'r' AND has_table_privilege('mallory', c.oid, 'SELECT')}),
	'', 'nor everybody those');
$node->safe_psql('app', q{
SET SESSION AUTHORIZATION root;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM mallory, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM mallory, PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM mallory;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TYPES FROM mallory;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM mallory;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON TYPES TO PUBLIC;
RESET SESSION AUTHORIZATION;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM mallory, PUBLIC});

# All of jobq, with the search_path of each caller.
as('root', q{
SET client_min_messages = error;
SELECT jobq.grant_privilege('victim'), jobq.grant_privilege('victim', 'operate');
CREATE TABLE public.done (n pg_catalog.int4);
GRANT ALL ON public.done TO victim;
CREATE FUNCTION public.quick() RETURNS pg_catalog.jsonb LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.done VALUES (1); RETURN '7'; END $$;
CREATE FUNCTION public.fails() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'failed'; END $$;
CREATE FUNCTION public.mourns(payload pg_catalog.jsonb, job jobq.job_context) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$;
SELECT jobq.register('quick', 'public.quick()', max_running => 5, rate => '1000 per s');
SELECT jobq.register('fails', 'public.fails()', max_attempts => 2, backoff => 'fixed 1ms', on_failure => 'public.mourns(pg_catalog.jsonb, jobq.job_context)');
SELECT jobq.create_queue('outside', mode => 'consumer', open => true), jobq.create_queue('shared', open => true, tenant => 'header branch', fair => 'jobs', carry => '{search_path}', max_running => 4);
SELECT jobq.alter_queue('shared', max_length => 1000), jobq.pause('shared', 'x'), jobq.resume('shared', 'x');
});
my $calls = q{
SET client_min_messages = error;
SELECT jobq.enqueue('quick', '{}', unique_key => 'u', uniqueness => '{"for": "1 h"}', group_key => 'g', headers => '{"branch": "x"}', queue => 'shared') AS id \gset
SELECT jobq.enqueue('quick', unique_key => 'u', uniqueness => '{"on_conflict": "replace"}'), jobq.enqueue_many('quick', '{1,2}', timeout => '1 min', backoff => 'exponential 1s cap 1min');
INSERT INTO jobq.inbox (kind, payload, delay) VALUES ('quick', '1', '1 ms');
SELECT jobq.enqueue('fails') AS dead \gset
SELECT jobq.enqueue('quick', delay => '1 day') AS later \gset
SELECT jobq.enqueue('quick', delay => '1 day', queue => 'shared') \gset
SELECT jobq.create_batch('b', on_success => '{"kind": "quick"}', on_failure => '{"kind": "quick"}', on_finish => '{"kind": "quick", "payload": 1}') AS batch \gset
SELECT jobq.add_jobs(:batch, 'quick', '{1,2,3}', '{"queue": "shared"}');
SELECT jobq.start_batch(:batch);
SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "quick"}, {"name": "b", "kind": "quick", "needs": ["a"], "payload": {"$result": "a"}}, {"name": "c", "kind": "fails", "needs": ["a"]}, {"name": "d", "kind": "quick", "needs": ["c"]}]}') AS flow \gset
SELECT jobq.create_workflow('{"chain": [{"kind": "quick"}, {"kind": "quick"}]}');
SELECT jobq.schedule(CURRENT_USER, 'every 1 s', 'quick', overlap => 'skip', options => '{"headers": {"a": 1}}', context => NULL);
SELECT jobq.next_ticks('*/5 * * * *');
SELECT jobq.wait(:id, '1 min'), jobq.wait_many(ARRAY[:id, :dead], '1 min'), jobq.wait_batch(:batch, '1 min'), jobq.wait_batch(:flow, '1 min'), (jobq.status(:id)).result, jobq.status(:later), jobq.wait_batch(:batch, '0');
CALL jobq.call('quick', timeout => '5 min');
SELECT jobq.retry(:dead), jobq.cancel(:dead);
SELECT jobq.edit(:later, run_at => '2099-01-01'), jobq.edit(:later, priority => 7), jobq.cancel(:later);
SELECT jobq.retry_many(batch_id => :flow), jobq.cancel_batch(:flow), jobq.cancel_many(queue => 'shared', tenant => 'x', state => 'waiting'), jobq.cancel_many(queue => 'shared', state => 'waiting');
SELECT jobq.retry_many(state => 'dead'), jobq.delete_many('shared'), jobq.pause('shared'), jobq.resume('shared'), jobq.wait_queue('shared', '10 s');
SELECT jobq.enqueue('any', queue => 'outside') \gset
SELECT jobq.enqueue('any', queue => 'outside') \gset
SELECT (r).id AS held, (r).token AS token FROM jobq.reserve('{outside}', wait => '5 min') r \gset
SELECT jobq.extend(:held, :token, '1 min'), jobq.set_progress(:held, :token, 5, 'five'), jobq.nack(:held, :token, 'no', '1 h');
SELECT (r).id AS held, (r).token AS token FROM jobq.reserve('{outside}', wait => '5 min') r \gset
SELECT jobq.ack(:held, :token, '1');
SELECT jobq.notify('c', 'p'), jobq.perform('quick'), jobq.dry_run('quick');
CALL jobq.work('{shared}', stop_when_empty => true);
SELECT jobq.explain(:id), jobq.history(:id);
SELECT jobq.enqueue('quick', delay => '1 day', group_key => 'h') AS later \gset
SELECT jobq.explain(:later), jobq.history(:later), jobq.doctor();
SELECT jobq.unschedule(CURRENT_USER);
};
foreach my $view (split /\n/, $node->safe_psql('app', q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'jobq'::regnamespace AND relkind = 'v' ORDER BY 1}))
{
	$calls .= "SELECT * FROM $view;\n";
}
as('victim', $calls);
as('root', $calls . q{
SELECT jobq.prune('0', '0'), jobq.adopt(), jobq.restart_workers(), jobq.grant_privilege('victim', 'manage', 'shared'), jobq.revoke_privilege('victim', queue => 'shared'), jobq.revoke_privilege('victim', 'operate');
SELECT jobq.reassign_owned('root', 'victim'), jobq.drop_owned('victim'), jobq.drop_queue('outside', true), jobq.unregister('fails');
CREATE ROLE gone; SELECT jobq.grant_privilege('gone'); SET ROLE gone; SELECT jobq.enqueue('quick'); RESET ROLE; DROP ROLE gone;
});
# wait for all duties of the scheduler, too
ok($node->poll_query_until('app', q{SELECT count(*) > 1 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass}), 'days have their partitions');
wait_for($node, 'finished jobs have gone, and their keys', q{SELECT jobq.prune('0', '0') = 0 AND NOT EXISTS (SELECT FROM jobq.jobs WHERE state = 'completed')}, 'app');
is(ran(), '', 'nothing of it runs by what jobq does');

# The program uses the search_path of its role: a superuser runs each command.
SKIP:
{
	my $jobq = $node->config_data('--bindir') . '/jobq';
	skip 'the program jobq was not built', 1 unless -x $jobq;
	local @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'app', 'root');
	my %tried = map { $_ => 1 } qw(web relay);

	# Returns the output.  The exit status must match.
	my $run = sub {
		my ($status, @words) = @_;
		my $got = IPC::Run::run([ $jobq, @words ], '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) ? 0 : $? >> 8;

		$tried{ $words[0] } = 1;
		is($got, $status, "jobq @words") or diag($err);
		return $out =~ s/\s+\z//r;
	};
	my $enqueue = sub { return $run->(0, 'enqueue', 'any', '{"a": 1}', '--queue', 'hands', @_) };
	my $work = sub { return $run->(0, qw(work hands --once --quiet --exec), $_[0]) };

	$run->(0, qw(create-queue hands --mode consumer));
	$run->(0, qw(alter-queue hands --max-running 9));
	$run->(0, 'pause', 'hands', 'shared');
	$run->(0, 'resume', 'hands', 'shared');
	my $dead = $enqueue->(qw(--max-attempts 1));
	$work->('exit 100');
	$run->(0, 'retry', $dead);
	$work->('exit 100');
	$run->(0, qw(retry-many --queue hands --kind any --newer-than 1h));
	$work->('exit 100');
	my $done = $enqueue->(qw(--unique-key k --group-key g));
	$work->('echo said >&2; echo again >&2; sleep 1.5; echo "progress 5 five" >&$JOBQ_PROGRESS_FD; echo {}');
	$enqueue->();
	my $held = as('root', q{SELECT id FROM jobq.reserve('{hands}', lease => '1 h')});
	my $later = $enqueue->('--delay', '1 day');
	my $flow = as('root', q{SELECT jobq.create_workflow('{"steps": [{"name": "a", "kind": "any", "queue": "hands"}, {"name": "b", "kind": "any", "queue": "hands", "needs": ["a"]}]}')});
	as('root', q{SELECT jobq.schedule('plan', '@yearly', 'quick')});

	foreach my $json ([], ['--json'])
	{
		$run->(0, qw(list --state completed --queue hands --kind any --unique-key k --group-key g --batch-id 1 --before 99999 --limit 5), @$json);
		like($run->(0, qw(list --state scheduled --queue hands --limit 1), @$json), qr/\b$later\b/, 'it finds jobs');
		like($run->(0, qw(dead --queue hands --kind any --before 99999), @$json), qr/\b$dead\b/, 'and dead letters');
		like($run->(0, 'show', $done, @$json), qr/completed/, 'and one job');
		like($run->(0, 'workflow', $flow, @$json), qr/\bb\b/, 'and steps');
		like($run->(0, qw(batches --state completed --before 99999), @$json), qr/completed|^id|^\[/, 'and batches');
		like($run->(0, 'schedules', @$json), qr/plan/, 'and schedules');
		$run->(0, $_, $later, @$json) foreach qw(explain history);
		$run->(0, $_, @$json) foreach qw(queues kinds workers failures audit);
		$run->(10, 'wait', $done, $dead, '--timeout', '1 min', @$json);
		$run->(1, 'wait-queue', 'hands', '--timeout', '10ms', @$json);
	}
	like($run->(0, 'tail', $done), qr/info: said\n.*info: again\n.*completed/s, 'tail tells the log');
	like($run->(0, 'check', 'hands:9,shared:9'), qr/OK/, 'check');
	IPC::Run::run([ $jobq, 'doctor' ], '>', File::Spec->devnull);
	$tried{doctor} = 1;

	# a queue with jobs, a consumer with a job, a dead letter
	if (eval { require IO::Pty; require JobqScreen; 1 } && `'$jobq' top </dev/null 2>&1` !~ /without ncurses/)
	{
		my $top = JobqScreen->new(40, 120, $jobq, 'top', '--interval', '0.2');

		foreach my $pattern (qr/^hands +consumer/m, qr/holds 1 jobs/, qr/^ +$dead any/m)
		{
			ok($top->shows($pattern), "top shows $pattern") or diag(Encode::encode("UTF-8", $top->text));
		}
		$top->type('q');
		is($top->finish, 0, 'top ends');
	}
	$tried{top} = 1;

	$run->(0, 'edit', $later, '--payload={"b": 2}', '--queue=hands', '--timeout=1h');
	$run->(0, 'edit', $later, '--run-at=2099-01-01');
	$run->(0, 'edit', $later, '--priority=3');
	$run->(0, 'edit-many', '{"priority": 4}', '--queue=hands', '--state=waiting');
	$run->(0, 'rerun', $done);
	$run->(1, 'rerun', $done, '--from-step=none');
	$run->(0, 'signal', $later, 'go', '{"a": 1}');
	$run->(0, 'signal', 'no key', 'go', '{"a": 1}', '--kind=any');
	$run->(0, 'cancel', $later, $held);
	$run->(0, 'run-schedule', 'plan');
	$run->(0, 'audit', '--action', 'cancel');
	$run->(0, 'restart-workers');
	$run->(0, 'metrics');
	$run->(0, 'delete', $dead);
	$run->(0, 'delete-many', '--queue=hands', '--error=%');
	$run->(0, qw(prune --older-than 1d --dead-older-than 1d));
	$run->(0, 'cancel-many', '--queue=hands', '--state=waiting');
	$run->(0, 'wait-queue', 'hands', '--timeout', '5min');
	$run->(0, 'drop-queue', 'hands', '--force');
	as('root', q{SELECT jobq.unschedule('plan')});
	is(join(' ', grep { !$tried{$_} } qx('$jobq' --help) =~ /^Commands:\n(.*?)\n\n/ms ? $1 =~ /^  ([a-z-]+)/mg : 'none'), '', 'all commands were tried');
	is(ran(), '', 'nothing of it runs by the program');
}

# only a superuser can plant an event trigger
my ($rc, undef, $err) = $node->psql('app', 'CREATE FUNCTION evil.ddl() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$; CREATE EVENT TRIGGER evil ON ddl_command_start EXECUTE FUNCTION evil.ddl()', extra_params => [ '-U', 'mallory' ]);
like($err, qr/permission denied to create event trigger/, 'event triggers are for superusers');

as('root', 'DROP EXTENSION jobq CASCADE');
is(ran(), '', 'nor by its end');

$node->stop;
no_failed_assertion($node);
done_testing();
