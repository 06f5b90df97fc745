# pg_upgrade preserves all jobs and objects, from each major to the next.
#
# JOBQ_SERVERS lists the directories of servers with jobq installed, oldest first, separated by ":"
# (see test/tools/check).

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqStates;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$JobqTest::max_databases = 8;

my @servers = split /:/, $ENV{JOBQ_SERVERS} || '';

plan skip_all => 'JOBQ_SERVERS does not name two servers' if @servers < 2;

# The template fits one major only.
delete $ENV{INITDB_TEMPLATE};

my @pages = ('--no-data-checksums');
my ($old, $before, $copy);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';

foreach my $path (@servers)
{
	my ($major) = qx($path/bin/postgres --version) =~ / (\d+)/;
	my $node = jobq_node("major_$major", q{
jobq.workers = '*=2'
}, install_path => $path, extra => [ $major >= 18 ? @pages : () ]);

	if (!$old)
	{
		$node->start;
		make_states($node, 'postgres');
		$before = states($node, 'postgres');
		$copy = states($node, 'postgres', 1);
		$node->stop;

		# remove column options specific to some servers and refused elsewhere; do not load jobq,
		# because a partition could be created after this
		$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
		$node->start;
		$node->safe_psql($_, q{UPDATE pg_attribute SET attoptions = NULL
			WHERE EXISTS (SELECT FROM unnest(attoptions) o WHERE NOT o ^@ 'n_distinct')}) foreach 'postgres', 'template1';
		command_ok([ "$servers[-1]/bin/pg_dump", '-Fc', '-f', $dump, '-d', $node->connstr . ' dbname=postgres user=postgres' ],
			'dumped by the newest pg_dump');
		$node->stop;
		$old = $node;
		next;
	}

	my @upgrade = (
		"$path/bin/pg_upgrade", '--no-sync', '-U', 'postgres',
		'-d', $old->data_dir, '-D', $node->data_dir,
		'-b', $servers[0] . '/bin', '-B', "$path/bin",
		'-s', $node->host, '-p', $old->port, '-P', $node->port);
	my $from = $old->name;

	# pg_upgrade writes into the current directory
	chdir $node->basedir or die "$!\n";
	command_ok([ @upgrade, '--check' ], "$from to $major: checked");
	command_ok(\@upgrade, "$from to $major");
	$node->append_conf('postgresql.conf', 'jobq.start_paused = on');
	$node->start;
	wait_for($node, "$from to $major: a consumer holds its job", q{SELECT count(*) = 1 FROM jobq.jobs WHERE state = 'running'});
	is(states($node, 'postgres'), $before, "$from to $major: everything is as it was");
	is($node->safe_psql('postgres', q{
SELECT count(*) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid WHERE e.extname = 'jobq' AND d.deptype = 'e'
	AND d.classid = 'pg_class'::regclass AND d.objid = 'jobq_internal.job'::regclass}), '1', "$from to $major: the tables belong to the extension");
	shift @servers;
	$node->stop;
	$old = $node;
}

# On the last server, the jobs complete.
$old->append_conf('postgresql.conf', 'jobq.start_paused = off');
$old->start;
come_to_their_end($old, 'postgres', $old->name);

# The same in a copy that was dumped from the oldest server.
$old->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE template0');
command_ok([ "$servers[-1]/bin/pg_restore", '-e', '-d', $old->connstr . ' dbname=copy user=postgres', $dump ], 'and restored by the newest');
is(states($old, 'copy', 1), $copy, 'everything is as it was');
$old->append_conf('postgresql.conf', "jobq.databases = 'copy'");
$old->reload;
come_to_their_end($old, 'copy', 'the copy', 1);
$old->stop;
no_failed_assertion($old);
done_testing();
