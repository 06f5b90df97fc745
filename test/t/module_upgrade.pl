# ALTER EXTENSION UPDATE produces the same catalog as a fresh install, while jobs are enqueued and
# run.  A library without support for the version of the extension reports this, and does nothing.
#
# The test creates a next version, with a new column, a new function and a changed function, and a
# version after that.  The other updates start from the released versions in control/released.
#
# Runs on each major: the catalog is compared object by object.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use File::Basename qw(basename);
use IPC::Run ();
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my $tests = "$FindBin::RealBin/..";
my %installed = copy_installation(PostgreSQL::Test::Utils::tempdir());
my $library = "$installed{pkglibdir}/jobq.so";
my $untouched = slurp_file($library);
my $control = slurp_file("$installed{extension}/jobq.control");
my ($version) = $control =~ /^default_version = '(.*)'/m;
my ($series, $patch) = $version =~ /^(\d+\.\d+)\.(\d+)$/;
my $next = "$series." . ($patch + 1);
my $last = "$series." . ($patch + 2);

like($untouched, qr/jobq's library works with: ([0-9.]+ )*\Q$version\E\0/, "the library is for version $version");

sub write_file
{
	my ($name, $content) = @_;

	unlink $name;
	open my $file, '>:raw', $name or die "$name: $!\n";
	print $file $content;
	close $file or die "$name: $!\n";
	return;
}

# Change the versions of the extension supported by the library.
sub use_library
{
	my (@versions) = @_;
	my $content = $untouched;
	my $known = "@versions";

	$content =~ s{(jobq's library works with: )([0-9. ]+)(\0+)}
		{$1 . $known . "\0" x (length($2 . $3) - length $known)}e
	  or die "the library does not tell its versions\n";
	die unless length $content == length $untouched;
	write_file($library, $content);
	return;
}

#
# The next version: the contents of the install script and of the update script.
#
my $fresh = slurp_file("$installed{extension}/jobq--$version.sql");
my ($old) = $fresh =~ /^(CREATE FUNCTION jobq_internal\.schedule_restored.*?^\$\$;\n)/ms;
my $new = $old =~ s/NEW\.held := false/NEW.held := NOT true/r;
my $answer = q{
CREATE FUNCTION jobq.answer() RETURNS int LANGUAGE sql AS 'SELECT 42';
COMMENT ON FUNCTION jobq.answer() IS 'a function of the next version';
};
my $note = q{COMMENT ON COLUMN jobq_internal.schedule.note IS 'a column of the next version';};

isnt($new, $old, 'a function of the next version differs');
$fresh =~ s/\Q$old\E/$new/;
ok($fresh =~ s/(CREATE TABLE jobq_internal\.schedule \(.*?)(\n\) WITH)/$1,\n\tnote text$2/s, 'a table has another column');
ok($fresh =~ s/^(-- Privileges\.)/$note\n$answer\n$1/m, 'there is another function');
write_file("$installed{extension}/jobq--$next.sql", $fresh);
write_file("$installed{extension}/jobq--$version--$next.sql",
	"ALTER TABLE jobq_internal.schedule ADD COLUMN note text;\n$note$answer"
	  . $new =~ s/^CREATE FUNCTION/CREATE OR REPLACE FUNCTION/r
	  . "SELECT jobq_internal.activate();\n");
write_file("$installed{extension}/jobq--$next--$last.sql", 'SELECT jobq_internal.activate();');
write_file("$installed{extension}/jobq.control", $control =~ s/'\Q$version\E'/'$next'/r);

my $node = jobq_node('main', q{
jobq.databases = '*'
jobq.workers = '*=2'
max_worker_processes = 40
}, install_path => $installed{install_path});
my %env = (%ENV, PGHOST => $node->host, PGPORT => $node->port, PATH => "$installed{bindir}:$ENV{PATH}");

sub catalog
{
	my ($dbname) = @_;

	return $node->safe_psql($dbname, slurp_file("$tests/perl/catalog.sql"));
}

# The lines missing on the left or on the right side.
sub difference
{
	my ($left, $right) = map { { map { $_ => 1 } split /\n/ } } @_;

	return join "\n",
	  (map { "- $_" } grep { !$right->{$_} } sort keys %$left),
	  (map { "+ $_" } grep { !$left->{$_} } sort keys %$right);
}

# The SQL of another version may call a function in C.  A function with other arguments therefore
# needs another name in C.
sub c_functions
{
	my ($dbname) = @_;

	return map { split /\|/, $_, 2 } split /\n/,
	  $node->safe_psql($dbname, q{
SELECT prosrc, string_agg(format('%s %s %s', proallargtypes, proargmodes, concat_ws(',', proargtypes, prorettype::regtype, proisstrict, proretset)), ';' ORDER BY oid)
FROM pg_proc WHERE probin = '$libdir/jobq' GROUP BY prosrc});
}

sub version_in
{
	my ($dbname) = @_;

	return $node->safe_psql($dbname, q{SELECT extversion FROM pg_extension WHERE extname = 'jobq'});
}

sub job_runs
{
	my ($dbname, $what) = @_;

	is($node->safe_psql($dbname, q{CALL jobq.call('answer', timeout => '5 min')}), '42', $what);
	return;
}

sub make_database
{
	my ($dbname, $wanted) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $dbname TEMPLATE template0") unless $dbname eq 'postgres';
	$node->safe_psql($dbname, "CREATE EXTENSION jobq VERSION '$wanted'; CREATE FUNCTION answer() RETURNS jsonb LANGUAGE sql AS \$\$ SELECT '42'::jsonb \$\$;
		SELECT jobq.register('answer', 'answer()')");
	return;
}

#
# SQL newer than the library is refused, and nothing changes.
#
use_library($version);
$node->start;
make_database($_, $version) foreach 'postgres', 'late', 'dropped';
my $restart = qr/has version "\Q$next\E".*does not work with it.*HINT:.*restart the server/s;
my (undef, undef, $error) = $node->psql('postgres', 'ALTER EXTENSION jobq UPDATE');
like($error, $restart, 'an update beyond the library is refused');
is(version_in('postgres'), $version, 'the extension is as it was');
job_runs('postgres', 'and works');
$node->safe_psql('postgres', 'CREATE DATABASE early TEMPLATE template0');
(undef, undef, $error) = $node->psql('early', 'CREATE EXTENSION jobq');
like($error, $restart, 'so is an install');

#
# With support for both versions, jobs run without a gap before, during and after the update.
#
$node->stop;
use_library($version, $next, $last);
$node->start;
my $session = $node->background_psql('postgres');
is($session->query(q{CALL jobq.call('answer', timeout => '5 min')}), '42',
	'a library that knows both versions works with the older');
$session->query_safe(q{PREPARE sent AS SELECT jobq.enqueue('answer') > 0});
my %before = c_functions('postgres');
my @load = ("$tests/load/load");
$env{PGDATABASE} = 'postgres';
{
	local %ENV = %env;
	$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-f', "$tests/load/setup.sql", 'postgres' ], 'a load');
	my $out = '';
	my $load = IPC::Run::start([ @load, 'run', 600, 15 ], '<', '/dev/null', '>&', \$out);
	my $done = 'SELECT (SELECT count(*) FROM load.effect) + (SELECT n FROM load.total)';

	wait_for($node, 'the load is on', "SELECT ($done) > 100");
	$node->safe_psql('postgres', 'ALTER EXTENSION jobq UPDATE');
	my $since = $node->safe_psql('postgres', $done);
	is(version_in('postgres'), $next, 'updated');
	wait_for($node, 'the load goes on', "SELECT ($done) > $since + 200");
	ok($load->pumpable, 'nobody in it has seen an error');
	$load->signal('TERM');
	eval { $load->finish };
	diag($out) if $out =~ /\S/;
	$node->command_like([ @load, 'finish', 600 ], qr/^\d+$/, 'all that was enqueued is done, once');
	$node->safe_psql('postgres', q{SELECT jobq.revoke_privilege(rolname::regrole) FROM pg_roles WHERE rolname ^@ 'load_'});
}
is($session->query('EXECUTE sent'), 't', 'a session that was there before goes on');
is($session->query(q{CALL jobq.call('answer', timeout => '5 min')}), '42', 'and its jobs run');
is($session->query('SELECT jobq.answer()'), '42', 'with what is new');
$session->quit;
make_database('fresh', $next);
my $upgraded = catalog('postgres');
cmp_ok(length $upgraded, '>', 50_000, 'the catalog is told');
is(difference($upgraded, catalog('fresh')), '', 'the update ends in what a fresh install makes');
my %after = c_functions('postgres');
is_deeply([ map { "$_ $after{$_}" } grep { defined $after{$_} } sort keys %before ],
	[ map { "$_ $before{$_}" } grep { defined $after{$_} } sort keys %before ],
	'functions in C have the same arguments');

# The comparison detects each of these changes.
foreach my $change (
	'REVOKE EXECUTE ON FUNCTION jobq.answer() FROM PUBLIC',
	q{COMMENT ON COLUMN jobq_internal.schedule.note IS 'other'},
	'ALTER TABLE jobq_internal.schedule ALTER note SET NOT NULL',
	'ALTER TABLE jobq_internal.schedule DROP COLUMN note, ADD COLUMN note int',
	'ALTER FUNCTION jobq.answer() PARALLEL SAFE',
	'ALTER INDEX jobq_internal.job_batch SET (fillfactor = 50)')
{
	my $changed = $node->safe_psql('fresh', "BEGIN; $change;\n" . slurp_file("$tests/perl/catalog.sql"));
	isnt(difference($changed, $upgraded), '', "seen: $change");
}

# New objects of an update have the same privileges in spite of ALTER DEFAULT PRIVILEGES.
# Earlier grants of an administrator stay.
make_database('defaults', $version);
$node->safe_psql('defaults', q{
CREATE ROLE keeper;
GRANT SELECT ON jobq.jobs TO keeper;
GRANT EXECUTE ON FUNCTION jobq.enqueue_sql TO keeper;
REVOKE EXECUTE ON FUNCTION jobq.enqueue_sql FROM PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO keeper;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
BEGIN;
SAVEPOINT a;
ALTER EXTENSION jobq UPDATE;
COMMIT});
is( $node->safe_psql('defaults', q{SELECT p.proacl::text ~ 'keeper=', has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc p WHERE p.oid = 'jobq.answer()'::regprocedure}),
	'f|t', 'an update minds no default privileges');
is( $node->safe_psql('defaults', q{SELECT c.relacl::text ~ 'keeper=r', p.proacl::text ~ 'keeper=X', has_function_privilege('public', p.oid, 'EXECUTE')
	FROM pg_class c, pg_proc p WHERE c.oid = 'jobq.jobs'::regclass AND p.oid = 'jobq.enqueue_sql'::regproc}),
	't|t|f', 'and keeps what was granted and revoked');
$node->safe_psql('defaults', 'DROP EXTENSION jobq');

#
# A library without support for the older version.
#
$node->safe_psql('late', q{SELECT jobq.enqueue('answer', delay => '1 s')});
$node->safe_psql('postgres', "ALTER EXTENSION jobq UPDATE TO '$last'");
$node->stop;
use_library($last);
write_file("$installed{extension}/jobq.control", $control =~ s/'\Q$version\E'/'$last'/r);
my $offset = -s $node->logfile;
$node->start;
my $update = qr/has version "\Q$version\E" in database "late".*does not work with it.*HINT:.*ALTER EXTENSION jobq UPDATE/s;
$node->wait_for_log($update, $offset);
ok(1, 'a database whose extension is older is reported');
job_runs('postgres', 'the others are served');
foreach my $query (q{jobq.enqueue('answer')}, 'count(*) FROM jobq.reserve()', 'jobq.cancel(1)', q{jobq.pause('default')}, q{jobq.register('answer', 'answer()')})
{
	(undef, undef, $error) = $node->psql('late', "SELECT $query");
	like($error, $update, "refused there: $query");
}
my $reports = () = slurp_file($node->logfile, $offset) =~ /WARNING: .*in database "late"/g;
# on a slow machine the launcher starts more schedulers, after 1, 2, 4 s, before the first has left
cmp_ok($reports, '<=', 3, 'the log does not tell again and again');
$node->safe_psql('late', 'ALTER EXTENSION jobq UPDATE');
is(version_in('late'), $last, 'it is updated by a step that the library does not work with');
wait_for($node, 'a job that has waited runs after the update', q{SELECT count(*) = 0 FROM jobq_internal.job}, 'late');
is(difference(catalog('late'), $upgraded), '', 'it is the same there');
$node->safe_psql('dropped', 'DROP EXTENSION jobq');
is($node->safe_psql('dropped', q{SELECT count(*) FROM pg_namespace WHERE nspname ^@ 'jobq'}), '0',
	'an extension that does not fit can be dropped');

#
# Released versions.
#
foreach my $script (sort glob("$tests/../control/released/jobq--*.sql"))
{
	my ($released) = basename($script) =~ /^jobq--(.*)\.sql$/;
	my $dbname = 'from_' . $released =~ tr/0-9a-z/_/cr;

	write_file("$installed{extension}/jobq--$released.sql", slurp_file($script)) unless $released eq $version;
	use_library($released, $version);
	$node->restart;
	make_database($dbname, $released);
	make_database("to_$dbname", $version);
	$node->safe_psql($dbname, "ALTER EXTENSION jobq UPDATE TO '$version'");
	is(difference(catalog($dbname), catalog("to_$dbname")), '', "from $released to $version");
}

$node->stop;
no_failed_assertion($node);
done_testing();
