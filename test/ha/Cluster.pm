# Three nodes with etcd, Patroni and PostgreSQL, and haproxy, with the configuration files of
# doc/high-availability.md.
#
# The files are the code blocks of the page: the first "sh" is etcd's, the first "yaml" is
# Patroni's, the block that begins with "defaults" is haproxy's.  Only folders, addresses
# (10.0.0.11 becomes 127.0.0.11), ports and authentication are replaced, and %test_settings
# are added.

package Cluster;

use strict;
use warnings FATAL => 'all';
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use Server;
use Time::HiRes qw(time usleep);
use Wire;

our @nodes = (1, 2, 3);
my $http = HTTP::Tiny->new(timeout => 5);

# Settings that only the test needs: for the load of test/chaos, and for the log.
my %test_settings = (
	'jobq.workers' => 'own=0; *=6',
	# what is lost must not be found by chance
	'jobq.poll_interval' => '1h',
	'jobq.cancel_grace' => '500ms',
	# the operating system does not crash here
	fsync => 'off',
	log_line_prefix => '%m [%p] %b %e %q%a ',
	log_timezone => 'UTC',
	timezone => 'UTC',
	log_checkpoints => 'off');

# usage: Cluster->new(folder => an empty folder with a short name, bin => of PostgreSQL,
#                     page => of the manual, synchronous => Boolean)
sub new
{
	my ($class, %given) = @_;
	my $self = bless { %given, running => {}, seen => {} }, $class;
	my $page = slurp($self->{page});

	($self->{text}{etcd}) = $page =~ /^```sh\n(ETCD_.*?)^```/ms or die "$self->{page} has no file for etcd\n";
	($self->{text}{patroni}) = $page =~ /^```yaml\n(.*?)^```/ms or die "$self->{page} has no file for Patroni\n";
	($self->{text}{haproxy}) = $page =~ /^```text\n(defaults\n.*?)^```/ms
	  or die "$self->{page} has no file for haproxy\n";
	$self->{offset} = free_ports();
	foreach my $node (@nodes)
	{
		mkdir "$self->{folder}/node$node" or die "$!\n";
		$self->{server}{$node} = Server->new(folder => "$self->{folder}/node$node", name => 'data', port => $self->port(5432));
		put("$self->{folder}/node$node/etcd.env", $self->file('etcd', $node));
		put("$self->{folder}/node$node/patroni.yml", $self->file('patroni', $node));
	}
	put("$self->{folder}/haproxy.cfg", $self->file('haproxy', 0));
	return $self;
}

sub slurp
{
	open my $file, '<', $_[0] or die "$_[0]: $!\n";
	local $/;
	return <$file>;
}

sub put
{
	open my $file, '>', $_[0] or die "$_[0]: $!\n";
	print $file $_[1];
	close $file;
	return;
}

# The shift of all ports, for which each port is free.
sub free_ports
{
	for (my $offset = 10_000 + int rand 30_000;; $offset += 7)
	{
		return $offset unless grep {
			my $host = "127.0.0.1$_->[0]";
			!IO::Socket::INET->new(LocalAddr => $host, LocalPort => $offset + $_->[1], Listen => 1, ReuseAddr => 1)
		} ([ 0, 5000 ], [ 0, 5001 ], map { my $n = $_; map { [ $n, $_ ] } 5432, 8008, 2379, 2380 } @nodes);
	}
}

sub port { return $_[0]{offset} + $_[1]; }

# The text of a file of the page for a node.
sub file
{
	my ($self, $what, $node) = @_;
	my $text = $self->{text}{$what};
	my $home = "$self->{folder}/node$node";

	# lines about the first node alone are lines about the node itself
	if ($node)
	{
		$text = join '', map {
			my $line = $_;
			$line =~ s/10\.0\.0\.11/10.0.0.1$node/g if $line !~ /10\.0\.0\.12/;
			$line =~ s/^((?:ETCD_NAME=|name: )node)1$/$1$node/;
			$line
		} $text =~ /^.*\n/mg;
	}
	$text =~ s/10\.0\.0\./127.0.0./g;
	$text =~ s/\b(5432|8008|2379|2380|5000|5001)\b/$self->port($1)/ge;
	$text =~ s{/var/lib/etcd/jobs}{$home/etcd};
	$text =~ s{/var/lib/postgresql/15/jobs}{$home/data};
	$text =~ s{/usr/lib/postgresql/15/bin}{$self->{bin}};
	$text =~ s{/run/postgresql}{$home};
	$text =~ s/\b(?:peer|scram-sha-256)\b/trust/g;
	if ($what eq 'patroni')
	{
		my $more = join '', map { "        $_: '$test_settings{$_}'\n" } sort keys %test_settings;

		$text =~ s/^(        max_worker_processes: .*\n)/$1$more/m or die "$self->{page} has no max_worker_processes\n";
		$text =~ s/(synchronous_mode: )true/$1false/ or die "$self->{page} has no synchronous_mode\n"
		  unless $self->{synchronous};
	}
	return $text;
}

# Start a program in a new process; the output goes to a file.
sub launch
{
	my ($self, $name, $log, %how) = @_;

	open my $output, '>>', $log or die "$log: $!\n";
	my $pid = fork;
	die "fork: $!\n" unless defined $pid;
	if ($pid == 0)
	{
		$SIG{TERM} = $SIG{INT} = 'DEFAULT';
		open STDIN, '<', '/dev/null';
		open STDOUT, '>&', $output;
		open STDERR, '>&', \*STDOUT;
		$ENV{$_} = $how{environment}{$_} foreach keys %{ $how{environment} || {} };
		exec @{ $how{command} } or POSIX::_exit(127);
	}
	$self->{running}{$name} = $pid;
	return;
}

sub log_of { return "$_[0]{folder}/node$_[1].log"; }

# Start the programs of a node.
sub start_node
{
	my ($self, $node) = @_;
	my $home = "$self->{folder}/node$node";
	my %environment = slurp("$home/etcd.env") =~ /^(\w+)=(.*)$/mg;

	# an existing member knows its cluster from its folder
	$self->launch("etcd$node", "$home/etcd.log", environment => \%environment, command => ['etcd']);
	$self->launch("patroni$node", $self->log_of($node), command => [ 'patroni', "$home/patroni.yml" ]);
	return;
}

# Start all, and wait until the cluster is complete.
sub start
{
	my ($self) = @_;

	$self->start_node($_) foreach @nodes;
	$self->wait_until_complete;
	$self->launch('haproxy', "$self->{folder}/haproxy.log", command => [ 'haproxy', '-db', '-f', "$self->{folder}/haproxy.cfg" ]);
	# before its first checks, haproxy uses all servers
	$self->wait_for('the first checks of haproxy', 60, sub {
		my @down = slurp("$self->{folder}/haproxy.log") =~ /Server primary\/node\d is DOWN/g;
		return @down >= @nodes - 1;
	});
	return;
}

# The members of the cluster by node: { role, state, timeline }, from a Patroni that answers.
sub members
{
	my ($self) = @_;

	foreach my $node (@nodes)
	{
		my $answer = $http->get("http://127.0.0.1$node:" . $self->port(8008) . '/cluster');

		next unless $answer->{success};
		my $said = eval { decode_json($answer->{content}) } or next;
		return map { $_->{name} =~ /(\d)$/ ? ($1 => { role => $_->{role} // '', state => $_->{state} // '', timeline => $_->{timeline} // 0 }) : () } @{ $said->{members} };
	}
	return;
}

# The node of the running primary, or undef.
sub leader
{
	my ($self) = @_;
	my %members = $self->members;
	my ($leader) = grep { $members{$_}{role} eq 'leader' && $members{$_}{state} eq 'running' } keys %members;

	return $leader;
}

# Wait until a condition, a function, is true.  Returns the time waited.
sub wait_for
{
	my ($self, $what, $seconds, $condition) = @_;
	my $began = time;

	until ($condition->())
	{
		die "timed out: $what\n" . $self->describe if time > $began + $seconds;
		usleep(50_000);
	}
	return time - $began;
}

# Wait until all nodes run, of which one is the primary, and one the synchronous standby.  A
# standby with another timeline has yet to be rewound.
sub wait_until_complete
{
	my ($self) = @_;

	return $self->wait_for('the cluster is complete', 240, sub {
		my %members = $self->members;
		my @leaders = grep { $members{$_}{role} eq 'leader' && $members{$_}{state} eq 'running' } keys %members;

		return 0 if @leaders != 1 || grep { $members{$_}{state} !~ /^(running|streaming)$/ } keys %members;
		return 0 if grep { !$members{$_} || $members{$_}{timeline} != $members{ $leaders[0] }{timeline} } @nodes;
		return 0 if $self->{synchronous} && !grep { $_->{role} eq 'sync_standby' } values %members;
		return 1;
	});
}

# What the nodes and their logs say.
sub describe
{
	my ($self) = @_;
	my %members = $self->members;

	return join '', map { "  $_: " . encode_json($members{$_}) . "\n" } sort keys %members;
}

# Hand over to another node.  Returns the new primary.
sub switch_over
{
	my ($self) = @_;
	my $old = $self->leader // die "there is no primary\n";
	my $answer = HTTP::Tiny->new(timeout => 120)->post("http://127.0.0.1$old:" . $self->port(8008) . '/switchover',
		{ content => encode_json({ leader => "node$old" }) });

	# Patroni answers when the new primary runs, or after its patience
	die "no switchover: $answer->{status} $answer->{content}\n" unless $answer->{status} =~ /^(200|202|503)$/;
	$self->wait_for('a switchover', 120, sub { my $now = $self->leader; defined $now && $now != $old });
	return $self->leader;
}

# End all processes of the primary's node at once, as with the loss of a machine.  Returns
# the node, and the processes of PostgreSQL.
sub kill_primary
{
	my ($self) = @_;
	my $node = $self->leader // die "there is no primary\n";
	my $server = $self->{server}{$node};
	my $postmaster = $server->postmaster;
	my %all;

	kill 'STOP', map { $self->{running}{"$_$node"} } 'patroni', 'etcd';
	kill 'STOP', $postmaster if $postmaster;
	# a stopped postmaster forks no more; another search finds the last child
	while (my @new = grep { !$all{$_}++ } $server->everyone)
	{
		kill 'STOP', @new;
	}
	kill 'KILL', keys %all, map { delete $self->{running}{"$_$node"} } 'patroni', 'etcd';
	$self->wait_for('the end of killed processes', 60, sub { !$server->processes && !$server->postmaster });
	return ($node, sort keys %all);
}

# A session as superuser at the primary, through haproxy; waits for the primary.
sub mend
{
	my ($self) = @_;
	my $session;

	$self->wait_for('a session at the primary', 120, sub {
		$session = Wire->new('127.0.0.10', $self->port(5000), 'postgres', $Server::database);
		return $session && ($session->value('SELECT pg_is_in_recovery()') // '') eq 'f';
	});
	return $session;
}

sub superuser { return $_[0]->mend; }

# The lines that all servers have logged, in the order of their times.
sub log
{
	my ($self) = @_;
	my @entries;

	foreach my $node (@nodes)
	{
		foreach my $line (split /^/, slurp($self->log_of($node)))
		{
			if ($line =~ /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) UTC \[/) { push @entries, [ $1, $line ]; }
			# a continuation of the entry before; lines of Patroni have another time
			elsif (@entries && $line !~ /^\d{4}-\d\d-\d\d /) { $entries[-1][1] .= $line; }
		}
	}
	return join '', map { $_->[1] } sort { $a->[0] cmp $b->[0] } @entries;
}

# End everything that was started here.
sub remove
{
	my ($self) = @_;

	my @pids = values %{ $self->{running} };

	kill 'KILL', grep { defined } map { $self->{running}{"patroni$_"} } @nodes;
	$self->{server}{$_}->remove foreach @nodes;
	kill 'KILL', @pids;
	waitpid $_, 0 foreach @pids;
	return;
}

1;
