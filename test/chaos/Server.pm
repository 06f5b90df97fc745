# A server under test: creation, start, inspection, repair.  Its processes are found
# in /proc, even while the server accepts no connection.

package Server;

use strict;
use warnings FATAL => 'all';
use Fcntl 'SEEK_SET';
use Time::HiRes qw(time usleep);
use Wire;

our $database = 'chaos';

# usage: Server->new(folder => an empty folder, name => below it, port => ...)
sub new
{
	my ($class, %given) = @_;
	my $self = bless {
		%given,
		data => "$given{folder}/$given{name}",
		log => "$given{folder}/$given{name}.log",
		seen => 0,
	}, $class;

	return $self;
}

# Make a cluster with these lines in its configuration.
sub init
{
	my ($self, $conf) = @_;

	run('initdb', '-D', $self->{data}, '-U', 'postgres', '-A', 'trust', '-N', '-k')
	  or die "initdb failed, see $self->{folder}/commands.log\n";
	$self->append("postgresql.conf", $conf . $self->place);
	return;
}

sub place
{
	my ($self) = @_;

	return "listen_addresses = ''\nunix_socket_directories = '$self->{folder}'\nport = $self->{port}\n";
}

sub append
{
	my ($self, $file, $text) = @_;

	open my $handle, '>>', "$self->{data}/$file" or die "$self->{data}/$file: $!\n";
	print $handle $text;
	close $handle;
	return;
}

# Replace the settings of the last disturbance; no arguments remove all settings.
sub set
{
	my ($self, @lines) = @_;

	open my $handle, '>', "$self->{data}/chaos.conf" or die "$self->{data}/chaos.conf: $!\n";
	print $handle map { "$_\n" } @lines;
	close $handle;
	return;
}

our $commands = '/dev/null';

# Run a program of the server; true if it succeeds.
sub run
{
	my (@command) = @_;
	my $pid = fork;

	die "fork: $!\n" unless defined $pid;
	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', $commands;
		open STDERR, '>&', \*STDOUT;
		print "+ @command\n";
		STDOUT->flush;
		exec @command or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	return $? == 0;
}

# Start the server, as soon as the old processes allow a start.  True if it runs.
sub start
{
	my ($self) = @_;
	my $deadline = time + 60;

	while (time < $deadline)
	{
		return 1 if $self->postmaster;
		kill 'CONT', $_->{pid} foreach $self->orphans;
		local $ENV{LD_PRELOAD} = $self->{preload} if $self->{preload};
		# AddressSanitizer requires to be the first library loaded
		local $ENV{ASAN_OPTIONS} = join ':', $ENV{ASAN_OPTIONS} // (), 'verify_asan_link_order=0';
		local $ENV{CHAOS_FULL_DATA} = "$self->{folder}/full.data";
		local $ENV{CHAOS_FULL_WAL} = "$self->{folder}/full.wal";
		return 1
		  if run('pg_ctl', 'start', '-s', '-w', '-t', 40, '-D', $self->{data}, '-l', $self->{log});
		usleep(100_000);
	}
	return 0;
}

# The process number of the postmaster, if it exists.
sub postmaster
{
	my ($self) = @_;

	open my $file, '<', "$self->{data}/postmaster.pid" or return;
	my $pid = <$file>;
	return unless defined $pid && $pid =~ /^(\d+)/;
	$pid = $1;
	return unless works_in($pid, $self->{data});
	return $pid;
}

sub works_in
{
	my ($pid, $folder) = @_;
	my $there = readlink "/proc/$pid/cwd";

	return defined $there && $there eq $folder && stat_of($pid)->{state} ne 'Z';
}

sub stat_of
{
	my ($pid) = @_;

	open my $file, '<', "/proc/$pid/stat" or return { state => 'Z', parent => 0 };
	my $line = <$file>;
	return { state => 'Z', parent => 0 } unless defined $line && $line =~ /^.*\) (\S) (\d+)/;
	return { state => $1, parent => $2 };
}

# The title of a process, if it is a child of the postmaster.
sub title_of
{
	my ($pid) = @_;

	open my $file, '<', "/proc/$pid/cmdline" or return;
	local $/;
	my $title = <$file>;
	return defined $title && $title =~ /^postgres: ([^\0]*)/ ? $1 : undef;
}

# The processes of the server except the postmaster: { pid, type, title }.
sub processes
{
	my ($self, $postmaster) = @_;
	my @found;

	foreach my $dir (glob '/proc/[0-9]*')
	{
		my ($pid) = $dir =~ /(\d+)$/;
		my $stat = stat_of($pid);

		next if defined $postmaster ? $stat->{parent} != $postmaster : $stat->{state} eq 'Z';
		next unless works_in($pid, $self->{data});
		my $title = title_of($pid) // next;
		my $type =
			$title =~ /^(jobq\ \w+|checkpointer|walwriter|background\ writer|autovacuum\ \w+|startup|archiver
				|logical\ replication\ \w+|walsender|walreceiver|parallel\ worker|io\ worker)/x ? $1
		  : $title =~ /^\S+ \S+ \[local\]/ ? 'client'
		  : 'other';
		push @found, { pid => $pid, type => $type, title => $title };
	}
	return @found;
}

# All processes that work in the data folder, including new children.
sub everyone
{
	my ($self) = @_;

	return grep { works_in($_, $self->{data}) } map { /(\d+)$/ } glob '/proc/[0-9]*';
}

# Children of an ended postmaster.
sub orphans
{
	my ($self) = @_;

	return $self->postmaster ? () : $self->processes;
}

# A session as a role; undef if the connection fails.
sub session
{
	my ($self, $user, $options, $name) = @_;

	return Wire->new($self->{folder}, $self->{port}, $user || 'postgres', $name || $database,
		$options);
}

# A session as superuser; waits for the server to recover.
sub superuser
{
	my ($self) = @_;
	my $deadline = time + 60;

	while (time < $deadline)
	{
		my $session = $self->session('postgres');

		return $session if $session;
		usleep(30_000);
	}
	die "the server takes no connection: $Wire::refusal\n";
}

# PostgreSQL 18 waits forever for the checkpointer if the startup process fails
# during crash recovery.  Help if no other process has existed for seconds.
# Processes for connection requests exist only for a moment.
sub help
{
	my ($self, $postmaster) = @_;
	my @others = grep { $_->{type} !~ /^(checkpointer|background writer|io worker)$/ }
	  $self->processes($postmaster);
	my $asked = $self->{asked} || {};

	$self->{asked} = { map { $_->{pid} => $asked->{ $_->{pid} } || time } grep { $_->{type} eq 'client' } @others };
	if (grep { !$self->{asked}{ $_->{pid} } || $self->{asked}{ $_->{pid} } < time - 1 } @others)
	{
		$self->{alone_since} = 0;
		return;
	}
	$self->{alone_since} ||= time;
	return if time < $self->{alone_since} + 3;
	kill 'QUIT', $postmaster;
	$self->{alone_since} = 0;
	return;
}

# Ensure that the server runs and accepts connections.
sub mend
{
	my ($self) = @_;
	my $deadline = time + 120;

	$self->{alone_since} = 0;

	while (time < $deadline)
	{
		my $postmaster = $self->postmaster;

		if (!$postmaster)
		{
			$self->start;
			next;
		}
		kill 'CONT', $postmaster;
		kill 'CONT', $_->{pid} foreach $self->processes($postmaster);
		my $session = $self->session('postgres');
		return $session if $session;
		$self->help($postmaster);
		usleep(30_000);
	}
	die "the server does not come back: $Wire::refusal\n" . $self->describe;
}

# Describe the server in lines: the processes, their stacks if gdb can read them,
# and the end of the log.
sub describe
{
	my ($self) = @_;
	my @lines;

	foreach my $pid ($self->everyone)
	{
		my $frames = join ' < ', grep { defined } map { /^#\d+ +(?:0x\w+ in )?(\w+)/ ? $1 : undef }
		  `gdb -p $pid -batch -ex 'bt 12' 2>/dev/null`;

		push @lines, sprintf "%d (%s), %s: %s\n", $pid, title_of($pid) // 'no title', stat_of($pid)->{state}, $frames;
	}
	return join '', @lines, `tail -n 12 '$self->{log}'`;
}

# The log since the last call.
sub new_log
{
	my ($self) = @_;

	open my $file, '<', $self->{log} or return '';
	seek $file, $self->{seen}, SEEK_SET;
	local $/;
	my $text = <$file>;
	$self->{seen} = tell $file;
	return defined $text ? $text : '';
}

# Stop the server and remove its files.
sub remove
{
	my ($self) = @_;
	my $postmaster = $self->postmaster;

	kill 'QUIT', $postmaster if $postmaster;
	for (1 .. 100)
	{
		my @left = $self->processes;

		last unless @left || $self->postmaster;
		kill $_ > 50 ? 'KILL' : 'CONT', map { $_->{pid} } @left;
		usleep(50_000);
	}
	return;
}

1;
