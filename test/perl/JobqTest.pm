# Common functions of the TAP tests.

package JobqTest;

use strict;
use warnings FATAL => 'all';

# The timeouts for a condition (three minutes), and for the start or stop of a server (five
# minutes).  Both take seconds, but the machine may be busy.
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
  retention_pass
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

# The first role of the servers has a fixed name, whatever user runs the tests.
$ENV{PGUSER} = 'postgres';

# The timeout for a test file: twenty minutes, or the seconds of JOBQ_FILE_TIMEOUT.  The test
# then reports where it hangs and the state of the servers, and dies.  The next file can run.
our $file_timeout = $ENV{JOBQ_FILE_TIMEOUT} || 1200;
my @nodes;

$SIG{ALRM} = sub {
	alarm(60);					# should something catch the error
	diag('hangs ' . Carp::longmess());
	show_state($_) foreach @nodes;
	die "hangs\n";
};
alarm($file_timeout);

# A background session may last as long as its test file.  By default it would end after the
# timeout for one condition, counted from its start.
{
	no warnings 'redefine';
	my $background_psql = \&PostgreSQL::Test::Cluster::background_psql;

	*PostgreSQL::Test::Cluster::background_psql = sub {
		my ($node, $dbname, %params) = @_;
		return $node->$background_psql($dbname, timeout => $file_timeout, %params);
	};
}

# A waiting shell starts psql.  IPC::Run, and a copy of this large process for each psql, would
# take more processor time than psql does.  The shell keeps the environment of its start, so
# each environment has its own shell.
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

		# during a command, the shell is not in the table: after an error, it is abandoned
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

# Copy the server's programs, libraries and scripts to a folder, where a test can change
# anything.  A server finds its own files relative to its program.
#
# Returns install_path, for jobq_node(), and the folders: bindir, pkglibdir, and extension (the
# scripts of the extensions).
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

# The number of databases which a server of this test file can serve.  Each takes 7 MB of shared
# memory, initialized at each start of the server, also after a crash.
our $max_databases = 2;

# A server with jobq, not yet started.  The safety check is as rare as possible, because it
# would hide a forgotten job.
sub jobq_node
{
	my ($name, $conf, %init) = @_;
	my $path = delete $init{install_path};
	my $node = PostgreSQL::Test::Cluster->new($name, $path ? (install_path => $path) : ());

	push @nodes, $node;
	# a template already has this role
	push @{ $init{extra} }, '-U', 'postgres' if $init{extra} || !$ENV{INITDB_TEMPLATE};
	$node->init(%init);
	# A server with assertions checks the ready set now and then.  A check of a set that is empty
	# takes as long as several jobs.
	$conf = 'jobq.debug_check_ready = ' . ($ENV{JOBQ_CHECK_READY} || 100) . "\n" . ($conf || '')
	  if `pg_config --configure` =~ /--enable-cassert/;
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

# A running server, and the program jobq, which connects by environment variables.  Skips the
# test file if the program was not built.
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

# Two running servers, for a publisher and its subscriber.
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

# Replicate the tables, with the subscription "jobs".
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

# Wait until the subscriber has everything visible on the publisher.  Workers do not wait for
# the flush of their commits, and unflushed WAL is not sent.
sub catch_up
{
	my ($publisher) = @_;

	$publisher->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, 'jobq', 'flush')});
	$publisher->wait_for_catchup('jobs');
	return;
}

# The publisher is lost; drop the subscription without it.
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

# Wait until the query returns true.  Unlike poll_query_until(), this function survives the loss
# of the server, and does not need to write to psql.
#
# One session repeats the query for a second, in a transaction each time: a new process and a
# new session cost more than most queries.  The next session sees new settings.  A slow query is
# repeated less often, so that waiting keeps no processor busy.
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

# Wait until the query returns true; after the timeout, show the state of the server.
sub wait_for
{
	my ($node, $what, $query, $dbname) = @_;

	return 1 if ok(poll($node, $query, $dbname), $what);
	show_state($node, $dbname);
	return 0;
}

# Set the clock to these times, in hours or days ahead, and wait at each for the scheduler to delete
# old rows.  The second call confirms the clock.  An old row of the audit log is deleted early in a
# pass.  Each pass but the last is therefore over on return.
sub retention_pass
{
	my ($node, $dbname, @clocks) = @_;

	foreach my $clock (@clocks)
	{
		$node->safe_psql($dbname, qq{INSERT INTO jobq_internal.audit VALUES (-1, '2000-01-01', 'postgres', 'postgres', '', 'old', '{}');
			SELECT jobq.test_clock('$clock'), jobq.test_clock('$clock')});
		wait_for($node, "$dbname: old rows are deleted, $clock", q{SELECT count(*) = 0 FROM jobq_internal.audit WHERE id = -1}, $dbname);
	}
	return;
}

# Wait until the database has a scheduler with loaded state: reserve() waits only some seconds
# for a starting scheduler.
sub wait_for_scheduler
{
	my ($node, $dbname) = @_;

	return wait_for($node, 'the scheduler is there', 'SELECT complete FROM jobq_internal.scheduler_state()', $dbname);
}

# Wait until the query, which counts something, returns 0.  The total time is not limited, but
# the count must decrease within the timeout for a condition.
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

# Wait until $count sessions wait for an advisory lock.
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

# Send a signal by the operating system, not by the server.
sub signal_process
{
	my ($signal, $pid) = @_;

	return kill($signal, $pid) == 1;
}

# Stop a process while it waits to be woken, or for a "Client", so that the stopped process
# holds no lock which other processes need.
sub stop_at_rest
{
	my ($node, $pid, $by) = @_;
	my $rests = qq{SELECT wait_event_type = '@{[ $by || 'Extension' ]}' FROM pg_stat_activity WHERE pid = $pid};

	for (1 .. 100)
	{
		my ($rc, $out, $late);

		poll($node, $rests) or last;
		signal_process('STOP', $pid) or last;
		# certain locks of the stopped process would block this query
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

# Wait until the server has restarted after the crash of a process.
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

# Search the servers' logs for failed assertions which no test has noticed.
sub no_failed_assertion
{
	my (@nodes) = @_;

	unlike(slurp_file($_->logfile), qr/^TRAP:/m,
		'no assertion failed on ' . $_->name)
	  foreach @nodes;
	return;
}

1;
