# Statements that call the functions of the extension.

package Functions;

use strict;
use warnings FATAL => 'all';
use Values;

*one = \&Values::one;
*rarely = \&Values::rarely;

# All routines of the extension except test_clock(), which would end the test.
# test_clock() changes the time of the whole server, so that all jobs expire or
# no job ever runs.
my %left_out = map { $_ => 1 } qw(jobq.test_clock);

sub routines
{
	my ($query) = @_;
	my @routines;
	my $rows = $query->(q{
SELECT p.pronamespace::regnamespace || '.' || p.proname, p.prokind, p.prorettype = 'trigger'::regtype, p.pronargdefaults,
	(SELECT string_agg(coalesce(p.proargnames[n], '') || ':' || coalesce(p.proargmodes[n]::text, 'i') || ':'
			|| format_type(coalesce(p.proallargtypes[n], p.proargtypes[n - 1]), NULL), ';' ORDER BY n)
		FROM generate_series(1, coalesce(array_length(p.proallargtypes, 1), p.pronargs)) n)
FROM pg_proc p
JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'jobq')
ORDER BY 1, p.oid});

	foreach my $row (split /\n/, $rows)
	{
		my ($name, $kind, $trigger, $defaults, $args) = split /\|/, $row, -1;
		my @args;

		next if $left_out{$name};
		foreach my $arg (split /;/, $args)
		{
			my ($argname, $mode, $type) = split /:/, $arg, 3;

			push @args, { name => $argname, type => $type, out => $mode eq 'o' }
			  unless $mode eq 't' || ($mode eq 'o' && $kind ne 'p');
		}
		push @routines,
		  {
			name => $name,
			kind => $kind,
			trigger => $trigger eq 't',
			defaults => $defaults,
			args => \@args
		  };
	}
	return \@routines;
}

# Arguments by name; some with a default are omitted.
sub arguments
{
	my ($source, $routine) = @_;
	my @args = @{ $routine->{args} };
	my $required = @args - $routine->{defaults};
	my $some = rand;
	my @list;

	# every second call gets only sensible values, so that more calls succeed
	local $source->{tame} = rand() < 0.5;
	$some = 0.2 * $some if $source->{tame};

	for my $n (0 .. $#args)
	{
		my $arg = $args[$n];
		my $value = $arg->{out} ? 'NULL' : $source->value($arg->{type}, $arg->{name});

		next if $n >= $required && !$arg->{out} && rand() > $some;
		push @list, $arg->{name} eq '' ? $value : qq{"$arg->{name}" => $value};
	}
	return join ', ', @list;
}

sub call
{
	my ($source, $routine) = @_;
	my $call = "$routine->{name}(" . arguments($source, $routine) . ')';

	# waits are allowed, but not for as long as an argument says
	return "CALL $call" if $routine->{kind} eq 'p';
	return one(
		"SELECT * FROM $call", "SELECT $call", "SELECT count(*) FROM (SELECT $call FROM generate_series(1, 3)) s",
		"SELECT ($call)::text", "SELECT * FROM generate_series(1, 2) n, LATERAL $call f LIMIT 1",
		"DO \$do\$ BEGIN PERFORM $call; EXCEPTION WHEN others THEN PERFORM $call; END \$do\$");
}

# A relation of a random kind, with a random trigger and changes.
sub trigger
{
	my ($source, $routines, $n) = @_;
	my $routine = one(grep { $_->{trigger} } @$routines);
	my $args = join ', ', map { Values::quote(one(qw(echo none default short nothing), '')) } 1 .. rand 4;
	my $columns = one(
		'id bigint, kind text, payload jsonb', 'a int', 'a fuzz.pair, b fuzz.short, c int[], d "char"',
		'id int, b int GENERATED ALWAYS AS (id * 2) STORED', 'id bytea, kind bytea, payload text',
		join(', ', map { "c$_ " . one(qw(int text jsonb bigint boolean)) } 1 .. 1 + rand 40));
	my $make = one(
		"CREATE TABLE r$n ($columns)", "CREATE TEMP TABLE r$n ($columns)", "CREATE UNLOGGED TABLE r$n ($columns)",
		"CREATE TABLE r$n ($columns, p int) PARTITION BY LIST (p); CREATE TABLE r${n}_1 PARTITION OF r$n DEFAULT",
		"CREATE TABLE r$n ($columns); ALTER TABLE r$n ADD gone int, ADD added text DEFAULT 'x'; ALTER TABLE r$n DROP gone",
		"CREATE VIEW r$n AS SELECT * FROM jobq.inbox", "CREATE TEMP VIEW r$n AS SELECT 1 AS id",
		"CREATE TEMP VIEW r$n AS SELECT 'x'::text AS id, 1::bigint AS kind, 2 AS payload",
		"CREATE TABLE t$n ($columns); CREATE VIEW r$n AS SELECT * FROM t$n");
	my $view = $make =~ /VIEW/;
	my $level = one('ROW', 'ROW', 'STATEMENT');
	my $timing = rarely(10) ? one('BEFORE', 'AFTER', 'INSTEAD OF')
	  : $view ? ($level eq 'ROW' ? 'INSTEAD OF' : one('BEFORE', 'AFTER')) : one('BEFORE', 'AFTER', 'AFTER');
	my $event = $level eq 'ROW' ? one('INSERT', 'INSERT OR UPDATE OR DELETE', 'UPDATE', 'DELETE')
	  : $view ? one('INSERT', 'UPDATE OR DELETE') : one('INSERT', 'TRUNCATE', 'INSERT OR UPDATE OR DELETE OR TRUNCATE');
	my $deferred = $level eq 'ROW' && $timing eq 'AFTER' && !$view && rarely(3);
	my $create = 'CREATE ' . ($deferred ? 'CONSTRAINT ' : '') . "TRIGGER fire $timing $event ON r$n "
	  . ($deferred ? 'DEFERRABLE INITIALLY DEFERRED ' : '') . "FOR EACH $level EXECUTE FUNCTION $routine->{name}($args)";

	return join ";\n", 'BEGIN', $make, 'SAVEPOINT made', $create, one('SAVEPOINT made', 'SET CONSTRAINTS ALL DEFERRED'),
	  "INSERT INTO r$n DEFAULT VALUES", 'ROLLBACK TO made', "INSERT INTO r$n SELECT * FROM r$n", 'ROLLBACK TO made',
	  one("DELETE FROM r$n", "TRUNCATE r$n", "UPDATE r$n SET id = id", "COPY (SELECT 1) TO STDOUT"),
	  one('COMMIT', 'ROLLBACK'), "DROP VIEW IF EXISTS r$n", "DROP TABLE IF EXISTS r$n, t$n";
}

# Changes concurrent with calls in further sessions: create and drop queues,
# handlers, functions.
sub change
{
	my ($source, $n) = @_;
	my $queue = one("made", "made$n", 'another', 'short');

	return one(
		"SELECT jobq.create_queue('$queue', expires_after => '1 hour')", "SELECT jobq.drop_queue('$queue', force => true)",
		"SELECT jobq.alter_queue('$queue', mode => '" . one('worker', 'consumer') . "')",
		"SELECT jobq.alter_queue('outside', max_running => " . one(1, 5, 100) . ')',
		'SELECT jobq.' . one('pause', 'resume') . "('limited')",
		'SELECT jobq.' . one('pause', 'resume') . "('carrying', tenant => '" . one('a', 'b') . "')",
		"SELECT jobq.alter_queue('" . one('carrying', $queue) . "', carry => '{" . one('app.tenant', 'search_path,app.tenant', '') .
			"}', tenant => '" . one('setting app.tenant', 'header tenant', 'schema') . "', recycle => '" . one('never', 'each') . "')",
		"SELECT jobq.register('changing', 'fuzz.changing(jsonb)', queue => '$queue', max_running => " . one(1, 'NULL', 5) . ')',
		"SELECT jobq.unregister('changing')", "SELECT jobq.register('changing', 'fuzz.late(jsonb,jobq.job_context)')",
		"CREATE OR REPLACE FUNCTION fuzz.changing(payload jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RETURN payload; END'",
		"CREATE OR REPLACE FUNCTION fuzz.changing(payload jsonb) RETURNS jsonb LANGUAGE sql SECURITY DEFINER AS 'SELECT payload'",
		"DROP FUNCTION IF EXISTS fuzz.changing(jsonb); CREATE FUNCTION fuzz.changing(payload jsonb) RETURNS " .
			one('void', 'jsonb', 'int') . " LANGUAGE plpgsql AS 'BEGIN END'",
		"DROP FUNCTION IF EXISTS fuzz.changing(jsonb); CREATE PROCEDURE fuzz.changing(payload jsonb) LANGUAGE plpgsql AS 'BEGIN COMMIT; END'",
		"DROP ROUTINE fuzz.changing(jsonb)",
		"CREATE TABLE fuzz.t$n (); DROP TABLE fuzz.t$n", 'VACUUM jobq_internal.job', 'ANALYZE jobq_internal.job', 'VACUUM FULL jobq_internal.job',
		'CREATE INDEX extra ON jobq_internal.job USING '
		  . one('brin (enqueued_at)', 'gin (headers)', 'hash (kind)', 'btree (kind)'),
		'DROP INDEX IF EXISTS jobq_internal.extra', 'DROP INDEX IF EXISTS jobq_internal.extra',
		'SELECT jobq.restart_workers()', ('SELECT fuzz.mend()') x 3);
}

# A reservation by a consumer, and the end of the job.
sub consume
{
	my $queue = one('outside', 'outside', 'memory');
	my $end = one(
		'ack(id, token)', "nack(id, token, 'no', '1s')", "reject(id, token, 'never')", 'release(id, token)',
		"extend(id, token, '1 minute')", "set_progress(id, token, 50, 'half')", 'ack_many(ARRAY[id], ARRAY[token])', "extend_many(ARRAY[id], ARRAY[token], '1 minute')", "ack(id, token, '{}')");

	return one(
		"SELECT jobq.enqueue('foreign', '{}', queue => '$queue', group_key => " . one('NULL', 'NULL', "'a'", 'n::text') . ') FROM generate_series(1, 5) n',
		"SELECT jobq.$end FROM jobq.reserve('{$queue}', " . one(1, 3, 50) . ", '5s', " . one("'0'", "'100ms'") . ')',
		"WITH r AS MATERIALIZED (SELECT * FROM jobq.reserve('{$queue}', 5, '2s')) SELECT jobq.$end FROM r",
		"WITH r AS MATERIALIZED (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM jobq.reserve('{$queue}', 5))"
		  . " SELECT jobq.ack_many(ids, tokens), jobq.release(ids[1], tokens[1]) FROM r");
}

# All views except the view for enqueueing.
my @views;

sub read_views
{
	my ($query) = @_;

	@views = split /\n/, $query->(q{
SELECT relname FROM pg_class WHERE relnamespace = 'jobq'::regnamespace AND relkind = 'v' AND relname <> 'inbox' ORDER BY 1});
	return;
}

sub look
{
	return 'SELECT * FROM jobq.' . one(@views) .
		one('', ' LIMIT 3', ' ORDER BY 1 DESC LIMIT 5');
}

sub inbox
{
	my ($source) = @_;
	my @columns = ([qw(id bigint)], [qw(kind text)], [qw(payload jsonb)], Values::job_options());
	my @some = grep { $_->[0] eq 'kind' || rarely(3) } @columns;

	return 'INSERT INTO jobq.inbox (' . join(', ', map { $_->[0] } @some) . ') SELECT '
	  . join(', ', map { $source->value($_->[1], $_->[0]) } @some) . ' FROM generate_series(1, ' .
		one(1, 3) . ')' . one('', ' RETURNING *');
}

sub statement
{
	my ($source, $routines, $role, $n) = @_;
	my $kind = rand 100;

	return trigger($source, $routines, $n) if $kind < 8;
	return change($source, $n) if $kind < ($role =~ /manager|super/ ? 40 : 10);
	return consume() if $kind < 50;
	return look() if $kind < 52;
	return inbox($source) if $kind < 57;
	return one(
		'BEGIN', 'SAVEPOINT s', 'ROLLBACK TO s', 'COMMIT', 'ROLLBACK', 'COMMIT', "PREPARE TRANSACTION 'fuzz$n'",
		"COMMIT PREPARED 'fuzz$n'", "ROLLBACK PREPARED 'fuzz$n'", 'BEGIN ISOLATION LEVEL SERIALIZABLE',
			'BEGIN READ ONLY', 'DISCARD ALL',
		"SET statement_timeout = '2s'", 'SET app.tenant = ' . one("'a'", "'b'", "''"), 'SET search_path = fuzz, public') if $kind < 64;
	return call($source, one(grep { !$_->{trigger} } @$routines));
}

1;
