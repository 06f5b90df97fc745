# What the TAP tests of jobq have in common.

package JobqTest;

use strict;
use warnings FATAL => 'all';

# A condition that does not come true within three minutes never will, and a server
# that does not start or stop within five.  It takes seconds, but a machine may have
# much else to do.
BEGIN
{
	$ENV{PG_TEST_TIMEOUT_DEFAULT} ||= 180;
	$ENV{PGCTLTIMEOUT} ||= 300;
	$ENV{TZ} = 'UTC';
}

use Carp ();
use Exporter 'import';
use IPC::Open2;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(
  copy_installation
  jobq_node
  client_node
  jobq_pair
  subscribe
  catch_up
  unsubscribe
  poll
  wait_for
  wait_for_scheduler
  work_off
  sleeps
  worker_pids
  scheduler_pid
  launcher_pid
  signal_process
  stop_at_rest
  wait_for_exit
  wait_for_restart
  crash_backend
  no_failed_assertion
);

# Whoever runs the tests, the servers' first role has one name.
$ENV{PGUSER} = 'postgres';

# Neither does a file of tests ever end that has not within twenty minutes, or the
# seconds of JOBQ_FILE_TIMEOUT: it says where it hangs and how the servers are.  The
# next file has its turn then.
our $file_timeout = $ENV{JOBQ_FILE_TIMEOUT} || 1200;
my @nodes;

$SIG{ALRM} = sub {
	alarm(60);					# should something catch the error
	diag('hangs ' . Carp::longmess());
	show_state($_) foreach @nodes;
	die "hangs\n";
};
alarm($file_timeout);

# A session in the background may last as long as its file of tests, and not
# just until the time for one condition has passed since it was opened.
{
	no warnings 'redefine';
	my $background_psql = \&PostgreSQL::Test::Cluster::background_psql;

	*PostgreSQL::Test::Cluster::background_psql = sub {
		my ($node, $dbname, %params) = @_;
		return $node->$background_psql($dbname, timeout => $file_timeout, %params);
	};
}

# psql is started by a shell that waits for work.  IPC::Run, and a copy of this large
# process for each psql, take more processor time than psql itself.  The shell has the
# environment with which it was started: another environment gets another shell.
{
	my %shell;

	# Returns the exit status, the output and the errors.
	sub node_psql
	{
		my ($node, $dbname, $sql) = @_;
		local %ENV = $node->_get_env();
		my @command = (
			$node->installed_command('psql'),
			qw(--no-psqlrc --no-align --tuples-only --quiet --dbname),
			$node->connstr($dbname), qw(--file - --variable ON_ERROR_STOP=1));
		my $key = join "\0", $$, map { "$_=$ENV{$_}" } sort keys %ENV;

		# while a command runs, the shell is not in the table: an error leaves it behind
		my $shell = delete $shell{$key};
		if (!$shell)
		{
			$shell = { folder => PostgreSQL::Test::Utils::tempdir_short() };
			open2($shell->{out}, $shell->{in}, '/bin/sh');
			$shell->{in}->autoflush;
		}
		my %file = map { $_ => "$shell->{folder}/$_" } qw(sql out err);
		open(my $script, '>:raw', $file{sql}) or die "$file{sql}: $!";
		print $script $sql;
		close($script) or die "$file{sql}: $!";
		s/'/'\\''/g foreach @command;
		print { $shell->{in} } join(' ', map { "'$_'" } @command), " <$file{sql} >$file{out} 2>$file{err}; echo \$?\n";
		defined(my $status = readline $shell->{out}) or die "the shell that starts psql has ended\n";
		$shell{$key} = $shell;
		return ($status + 0, map { chomp(my $text = slurp_file($file{$_})); $text } qw(out err));
	}

	no warnings 'redefine';
	my $safe_psql = \&PostgreSQL::Test::Cluster::safe_psql;

	*PostgreSQL::Test::Cluster::safe_psql = sub {
		my ($node, $dbname, $sql, %params) = @_;
		return $node->$safe_psql($dbname, $sql, %params) if %params;

		my ($status, $out, $err) = node_psql($node, $dbname, $sql);
		die "error running SQL: '$err'\nin the SQL '$sql'" if $status == 3;
		die "psql ended with $status: '$err'" if $status;
		print "#### Begin standard error\n$err\n#### End standard error\n" if $err ne '';
		return $out;
	};
}

# Copy the server's programs, libraries and scripts to a folder, so that a test
# can change what it likes.  A server finds its own files from where it is.
#
# Returns install_path, for jobq_node(), and where things are: bindir, pkglibdir,
# and extension, the folder of the extensions' scripts.
sub copy_installation
{
	my ($to) = @_;
	my %dir;

	foreach my $what (qw(bindir pkglibdir sharedir))
	{
		chomp($dir{$what} = qx(pg_config --$what));
	}
	my $common = $dir{bindir};
	$common =~ s{/[^/]*$}{}
	  while grep { index($_, "$common/") != 0 } values %dir;
	foreach my $what (keys %dir)
	{
		my $from = $dir{$what};
		$dir{$what} = $to . substr($from, length $common);
		next if -d $dir{$what};
		system_or_bail('mkdir', '-p', $dir{$what});
		system_or_bail('cp', '-a', "$from/.", $dir{$what});
	}
	return (
		install_path => $dir{bindir} =~ s{/bin$}{}r,
		bindir => $dir{bindir},
		pkglibdir => $dir{pkglibdir},
		extension => "$dir{sharedir}/extension");
}

# How many databases the servers of a file of tests can serve.  Each has 7 MB of shared
# memory, which a server initializes whenever it starts, also after a crash.
our $max_databases = 2;

# A server with jobq, not yet started.  The safety check is as rare as can be,
# so that it does not hide a job that was forgotten.
sub jobq_node
{
	my ($name, $conf, %init) = @_;
	my $path = delete $init{install_path};
	my $node = PostgreSQL::Test::Cluster->new($name, $path ? (install_path => $path) : ());

	push @nodes, $node;
	# a template has that role already
	push @{ $init{extra} }, '-U', 'postgres' if $init{extra} || !$ENV{INITDB_TEMPLATE};
	$node->init(%init);
	$node->append_conf(
		'postgresql.conf', qq{
shared_preload_libraries = 'jobq'
jobq.poll_interval = '1h'
jobq.max_databases = $max_databases
max_worker_processes = 24
max_connections = 40
jit = off
restart_after_crash = on
log_line_prefix = '%m [%p] %b %q%a '
$conf
});
	return $node;
}

# A server that runs, and the program jobq, which connects to it by the environment.
# Ends the file of tests if the program was not built.
sub client_node
{
	my ($conf, %init) = @_;
	my $node = jobq_node('main', $conf || '', %init);
	my $jobq = $node->config_data('--bindir') . '/jobq';

	plan(skip_all => 'the program jobq was not built') unless -x $jobq;
	$node->start;
	$ENV{PGHOST} = $node->host;
	$ENV{PGPORT} = $node->port;
	$ENV{PGDATABASE} = 'postgres';
	delete @ENV{qw(NO_COLOR PGAPPNAME)};
	return ($node, $jobq);
}

# Two servers that run, for a publisher and its subscriber.
sub jobq_pair
{
	my ($setup, $conf) = @_;
	my @pair = map {
		jobq_node($_, "jobq.databases = 'postgres'\nwal_level = logical\n" . ($conf || ''),
			allows_streaming => 'logical')
	} 'publisher', 'subscriber';

	foreach my $node (@pair)
	{
		$node->start;
		$node->safe_psql('postgres', $setup);
	}
	return @pair;
}

# Have the tables replicated, as the subscription "jobs".
sub subscribe
{
	my ($publisher, $subscriber, @tables) = @_;
	my $connstr = $publisher->connstr . ' dbname=postgres';

	$publisher->safe_psql('postgres',
		'CREATE PUBLICATION jobs FOR TABLE ' . join(', ', @tables));
	$subscriber->safe_psql('postgres',
		"CREATE SUBSCRIPTION jobs CONNECTION '$connstr' PUBLICATION jobs");
	$subscriber->wait_for_subscription_sync($publisher, 'jobs');
	return;
}

# Wait until the subscriber has all that can be seen on the publisher.  Workers
# do not wait for the flush of their commits, and what is not flushed is not sent.
sub catch_up
{
	my ($publisher) = @_;

	$publisher->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, 'jobq', 'flush')});
	$publisher->wait_for_catchup('jobs');
	return;
}

# The publisher is lost, and the subscriber is on its own.
sub unsubscribe
{
	my ($publisher, $subscriber) = @_;

	$publisher->stop('immediate');
	$subscriber->safe_psql('postgres', q{
ALTER SUBSCRIPTION jobs DISABLE;
ALTER SUBSCRIPTION jobs SET (slot_name = NONE);
DROP SUBSCRIPTION jobs});
	return;
}

# Wait until the query returns true.  Unlike poll_query_until(), this goes on
# when the server goes away meanwhile, and does not need to write to psql.
#
# One session asks again for a second, in a transaction each time: a new process and a
# new session cost more than most queries.  The next session knows new settings.  A
# query that is slow is asked less often, so that waiting keeps no processor busy.
sub poll
{
	my ($node, $query, $dbname) = @_;
	my $ask = <<"SQL";
DO \$poll\$
DECLARE
	give_up timestamptz := clock_timestamp() + interval '1 s';
	asked timestamptz;
	done boolean;
BEGIN
	LOOP
		asked := clock_timestamp();
		EXECUTE \$query\$$query\$query\$ INTO done;
		COMMIT;
		EXIT WHEN done OR clock_timestamp() > give_up;
		PERFORM pg_catalog.pg_sleep(least(greatest(0.1, 4 * extract(epoch FROM clock_timestamp() - asked)), 5));
		COMMIT;
	END LOOP;
	PERFORM pg_catalog.set_config('poll.done', coalesce(done, false)::text, false);
END
\$poll\$
SQL
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my ($status, $out, $err);

	while (1)
	{
		($status, $out, $err) = node_psql($node, $dbname || 'postgres', "$ask;\nSELECT pg_catalog.current_setting('poll.done')");
		return 1 if $out eq 'true' && $err eq '';
		last if time > $end;
		usleep(100_000);
	}
	diag("timed out waiting for: $query\nlast output: $out\n$err");
	return 0;
}

sub show_state
{
	my ($node, $dbname) = @_;
	my $out = '';

	$node->psql(
		$dbname || 'postgres',
		q{SELECT id, state, kind, queue, batch_id, role, attempt, run_at, error
		FROM jobq.jobs WHERE finished_at IS NULL ORDER BY id LIMIT 10;
		SELECT * FROM jobq.workers; SELECT * FROM jobq_internal.scheduler_state();
		SELECT pid, datname, backend_type, state, wait_event, query FROM pg_stat_activity},
		stdout => \$out, on_error_stop => 0, timeout => 20, timed_out => \my $late);
	diag($node->name . ":\n$out");
	return;
}

# Wait until the query returns true; if it never does, show what there is.
sub wait_for
{
	my ($node, $what, $query, $dbname) = @_;

	return 1 if ok(poll($node, $query, $dbname), $what);
	show_state($node, $dbname);
	return 0;
}

# Wait until the database has a scheduler that has read what there is: who reserves jobs
# waits for one that starts no longer than some seconds.
sub wait_for_scheduler
{
	my ($node, $dbname) = @_;

	return wait_for($node, 'the scheduler is there', 'SELECT complete FROM jobq_internal.scheduler_state()', $dbname);
}

# Wait until the query, which counts something, returns 0: as long as it takes,
# if only it becomes less within the time for a condition.
sub work_off
{
	my ($node, $what, $query, $dbname) = @_;
	my $left;

	do
	{
		$left = $node->safe_psql($dbname || 'postgres', $query);
	  } while ($left > 0
		&& poll($node, "SELECT ($query) < $left", $dbname));
	show_state($node, $dbname) if $left > 0;
	return is($left, 0, $what);
}

# Wait until so many sessions wait for an advisory lock.
sub sleeps
{
	my ($node, $what, $count, $dbname) = @_;

	return wait_for(
		$node, $what,
		qq{SELECT count(*) = $count FROM pg_locks
		   WHERE locktype = 'advisory' AND NOT granted
		   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())},
		$dbname);
}

sub worker_pids
{
	my ($node, $dbname) = @_;

	return split /\n/,
	  $node->safe_psql($dbname || 'postgres',
		'SELECT pid FROM jobq.workers WHERE pid IS NOT NULL ORDER BY pid');
}

sub scheduler_pid
{
	my ($node, $dbname) = @_;

	return $node->safe_psql($dbname || 'postgres',
		'SELECT pid FROM jobq_internal.scheduler_state()');
}

sub launcher_pid
{
	my ($node) = @_;

	return $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'jobq launcher'});
}

# A signal as the operating system sends it.
sub signal_process
{
	my ($signal, $pid) = @_;

	return kill($signal, $pid) == 1;
}

# Stop a process while it waits to be woken, or by a "Client", so that it has no lock that
# others wait for as long as it is stopped.
sub stop_at_rest
{
	my ($node, $pid, $by) = @_;
	my $rests = qq{SELECT wait_event_type = '@{[ $by || 'Extension' ]}' FROM pg_stat_activity WHERE pid = $pid};

	for (1 .. 100)
	{
		my ($rc, $out, $late);

		poll($node, $rests) or last;
		signal_process('STOP', $pid) or last;
		# with certain locks of his, nobody would get an answer
		$node->psql('postgres', $rests, stdout => \$out, timeout => 30, timed_out => \$late);
		return 1 if !$late && $out eq 't';
		signal_process('CONT', $pid);
	}
	return 0;
}

sub wait_for_exit
{
	my ($pid) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 unless kill(0, $pid);
		usleep(100_000);
	}
	return 0;
}

# Wait until the server has restarted after the crash of one of its processes.
sub wait_for_restart
{
	my ($node, $offset) = @_;

	$node->wait_for_log(qr/all server processes terminated; reinitializing/,
		$offset);
	return poll($node, 'SELECT true');
}

# Crash an ordinary backend, and wait until the server is there again.
sub crash_backend
{
	my ($node, $signal) = @_;
	my $offset = -s $node->logfile;
	my $backend = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $backend->query('SELECT pg_backend_pid()');

	signal_process($signal || 'KILL', $pid);
	wait_for_restart($node, $offset);
	eval { $backend->{run}->finish };
	return;
}

# The servers' logs tell of failed assertions that no test may have noticed.
sub no_failed_assertion
{
	my (@nodes) = @_;

	unlike(slurp_file($_->logfile), qr/^TRAP:/m,
		'no assertion failed on ' . $_->name)
	  foreach @nodes;
	return;
}

1;
