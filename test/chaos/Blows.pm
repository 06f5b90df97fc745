# Disturbances of processes: signals to each kind of process, and stops and crashes
# of the whole server.
#
# A disturbance is a name, a weight, and a function, which may return text for the
# report.  The function gets the round (see the runner): "server", "struck()" to
# record signals, "hold()" to register actions that are undone before the checks.

package Blows;

use strict;
use warnings FATAL => 'all';
use Time::HiRes qw(time usleep);

sub list
{
	my @list;

	# signals for each kind of process; a backend may be at any point of execution
	my @types = (
		[ 'jobq worker', 6 ], [ 'jobq scheduler', 5 ], [ 'jobq launcher', 3 ], [ 'client', 5 ],
		[ 'checkpointer', 1 ], [ 'walwriter', 1 ], [ 'background writer', 1 ],
		[ 'autovacuum launcher', 1 ], [ 'autovacuum worker', 1 ], [ 'logical replication launcher', 1 ]);
	my @signals = ([ TERM => 4 ], [ INT => 3 ], [ KILL => 1 ], [ SEGV => 1 ], [ ABRT => 1 ], [ QUIT => 1 ]);

	foreach my $type (@types)
	{
		foreach my $signal (@signals)
		{
			# the postmaster sends this signal for the shutdown checkpoint
			next if $type->[0] eq 'checkpointer' && $signal->[0] eq 'INT';
			push @list, [ "$signal->[0] of a $type->[0]", $type->[1] * $signal->[1],
				sub { strike($_[0], $signal->[0], $type->[0]) } ];
		}
		push @list, [ "stop of a $type->[0]", 2 * $type->[1], sub { stop($_[0], $type->[0]) } ];
	}
	push @list,
	  [ 'TERM of all jobq workers', 5, sub { strike($_[0], 'TERM', 'jobq worker', 99) } ],
	  [ 'INT of all jobq workers', 3, sub { strike($_[0], 'INT', 'jobq worker', 99) } ],
	  [ 'TERM of all jobq processes', 4, sub { strike($_[0], 'TERM', qr/^jobq/, 99) } ],
	  [ 'TERM of all clients', 4, sub { strike($_[0], 'TERM', 'client', 99) } ],
	  [ 'KILL of two jobq workers', 4, sub { strike($_[0], 'KILL', 'jobq worker', 2) } ],
	  [ 'immediate shutdown', 12, sub { down($_[0], 'QUIT') } ],
	  [ 'fast shutdown', 12, sub { down($_[0], 'INT') } ],
	  [ 'smart shutdown', 8, \&smart ],
	  [ 'KILL of the postmaster', 12, sub { down($_[0], 'KILL') } ],
	  [ 'KILL of everything', 12, \&kill_all ],
	  [ 'stop of the postmaster', 4, \&stop_postmaster ],
	  [ 'crash in a checkpoint', 6, \&crash_in_checkpoint ],
	  [ 'crash in a recovery', 5, \&crash_in_recovery ],
	  [ 'crash while a worker cannot react', 2, \&deaf_neighbour ];
	return @list;
}

# Send a signal to some processes of a type.
sub strike
{
	my ($round, $signal, $type, $count) = @_;
	my $postmaster = $round->{server}->postmaster or return 'the server is down';
	my @there = grep { ref $type ? $_->{type} =~ $type : $_->{type} eq $type }
	  $round->{server}->processes($postmaster);

	return 'none there' unless @there;
	@there = $round->pick_some($count || 1, @there);
	# clients of this role run jobs
	$round->struck($_->{pid}, $signal, $_->{type} eq 'jobq worker' || $_->{title} =~ /^chaos_1 /) foreach @there;
	kill $signal, map { $_->{pid} } @there;
	return join ', ', map { "$_->{pid} ($_->{title})" } @there[ 0 .. ($#there > 2 ? 2 : $#there) ];
}

# Stop a process for some time.
sub stop
{
	my ($round, $type) = @_;
	my $postmaster = $round->{server}->postmaster or return 'the server is down';
	my ($process) = $round->pick_some(1, grep { $_->{type} eq $type } $round->{server}->processes($postmaster));

	return 'none there' unless $process;
	kill 'STOP', $process->{pid};
	$round->let_go_on(50 + rand 700);
	kill 'CONT', $process->{pid};
	return "$process->{pid} ($process->{title})";
}

# Send a signal to the postmaster, and start the server again.
sub down
{
	my ($round, $signal) = @_;
	my $server = $round->{server};
	my $postmaster = $server->postmaster or return 'the server is down';

	$round->struck($postmaster, $signal eq 'KILL' ? 'POSTMASTER' : $signal);
	kill $signal, $postmaster;
	leave($server, $postmaster);
	$server->start or die "the server does not start after SIG$signal of its postmaster\n";
	return;
}

# Wait until the server has ended.
sub leave
{
	my ($server, $postmaster) = @_;

	$server->{alone_since} = 0;
	for (1 .. 1500)
	{
		return unless $server->postmaster;
		$server->help($postmaster);
		usleep(20_000);
	}
	die 'the server does not end: '
	  . join(', ', map { "$_->{pid} ($_->{title})" } $server->processes($postmaster)) . "\n";
}

# A smart shutdown waits for all clients, and accepts no new ones.  After some time
# a fast shutdown ends the wait.
sub smart
{
	my ($round) = @_;
	my $server = $round->{server};
	my $postmaster = $server->postmaster or return 'the server is down';

	kill 'TERM', $postmaster;
	$round->let_go_on(100 + rand 600);
	strike($round, 'TERM', 'client', 99) if rand() < 0.7;
	for (1 .. 50)
	{
		last unless $server->postmaster;
		usleep(20_000);
	}
	kill 'INT', $postmaster if $server->postmaster;
	leave($server, $postmaster);
	$server->start or die "the server does not start after a smart shutdown\n";
	return;
}

sub pick_signal { return (qw(INT INT QUIT KILL))[ rand 4 ]; }

sub kill_all
{
	my ($round) = @_;

	return 'the server is down' unless kill_processes($round);
	$round->{server}->start or die "the server does not start after SIGKILL of everything\n";
	return;
}

# Kill all processes at once, as at the end of a container: no process can log the
# signal.
sub kill_processes
{
	my ($round) = @_;
	my $server = $round->{server};
	my $postmaster = $server->postmaster or return;
	my %all;

	# A stopped postmaster forks no more; another search finds the last child.
	kill 'STOP', $postmaster;
	usleep(1000) until Server::stat_of($postmaster)->{state} =~ /[TZ]/;
	while (my @new = grep { !$all{$_}++ } $server->everyone)
	{
		kill 'STOP', @new;
	}
	$round->struck($_, 'EVERYTHING') foreach sort keys %all;
	kill 'KILL', keys %all;
	leave($server, $postmaster);
	return 1;
}

sub stop_postmaster
{
	my ($round) = @_;
	my $postmaster = $round->{server}->postmaster or return 'the server is down';

	kill 'STOP', $postmaster;
	$round->let_go_on(50 + rand 400);
	strike($round, 'TERM', 'jobq worker', 1) if rand() < 0.5;
	$round->let_go_on(rand 300);
	kill 'CONT', $postmaster;
	return;
}

sub crash_in_checkpoint
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres') or return 'no connection';

	$session->send_query('CHECKPOINT');
	$round->let_go_on(rand 30);
	return strike($round, 'KILL', 'checkpointer');
}

# Crash the server again during recovery.
sub crash_in_recovery
{
	my ($round) = @_;
	my $server = $round->{server};
	my $first = strike($round, 'KILL', 'client');

	for (1 .. 300)
	{
		my $postmaster = $server->postmaster or last;
		my ($startup) = grep { $_->{type} eq 'startup' } $server->processes($postmaster);

		if ($startup)
		{
			# this ends the postmaster, too
			$round->struck($startup->{pid}, 'KILL');
			kill 'KILL', $startup->{pid};
			last;
		}
		usleep(5_000);
	}
	for (1 .. 100)
	{
		last unless $server->postmaster;
		my $session = $server->session('postgres');
		last if $session;
		usleep(20_000);
	}
	$server->start or die "the server does not start after a crash in recovery\n";
	return $first;
}

# Five seconds after a crash the postmaster kills processes that have not ended.
# Such a process is not the cause of the crash.
sub deaf_neighbour
{
	my ($round) = @_;
	my $server = $round->{server};
	my $postmaster = $server->postmaster or return 'the server is down';
	my @workers = $round->pick_some(3, grep { $_->{type} eq 'jobq worker' } $server->processes($postmaster));

	return 'no workers' if @workers < 2;
	my $culprit = shift @workers;
	kill 'STOP', map { $_->{pid} } @workers;
	$round->struck($culprit->{pid}, 'KILL', 1);
	kill 'KILL', $culprit->{pid};
	for (1 .. 400)
	{
		last unless grep { Server::works_in($_->{pid}, $server->{data}) } @workers;
		usleep(20_000);
	}
	return;
}

1;
