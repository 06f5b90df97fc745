# Disturbances with a second server: a standby is promoted, and the old primary is
# rewound and becomes the standby.  Disturbances are as in Blows.pm.
#
# The standby is synchronous before the loss of the primary.  Acknowledged commits
# are therefore on both servers.

package Failover;

use strict;
use warnings FATAL => 'all';
use Blows;
use File::Path 'remove_tree';
use Server;
use Time::HiRes qw(time usleep);

# The server not in use, if any.
my $other;

sub list
{
	return (
		[ 'failover', 8, sub { failover($_[0], 0) } ],
		[ 'failover, and back to who was rewound', 4, sub { failover($_[0], 1) } ]);
}

# Remove the other server.  Returns its log.
sub remove
{
	return '' unless $other;
	my $log = $other->new_log;

	$other->remove;
	remove_tree($other->{data});
	undef $other;
	return $log;
}

sub failover
{
	my ($round, $back) = @_;

	return 'no connection' unless make_standby($round);
	take_over($round);
	rewind($round);
	take_over($round) if $back;
	$round->{log} .= remove();
	return;
}

# Copy the server in use to a standby.  False if the copy fails.
sub make_standby
{
	my ($round) = @_;
	my $server = $round->{server};
	my ($name, $port) = $server->{name} eq 'data' ? ('data2', 5433) : ('data', 5432);

	$other = Server->new(folder => $server->{folder}, name => $name, port => $port, preload => $server->{preload});
	$other->new_log;	# it goes on after one that was there before
	remove_tree($other->{data});
	for (1 .. 3)
	{
		$server->mend->close;
		last if Server::run('pg_basebackup', '-h', $server->{folder}, '-p', $server->{port}, '-U', 'postgres',
			'-D', $other->{data}, '-c', 'fast');
		remove_tree($other->{data});
	}
	return unless -d $other->{data};
	follow($round);
	return 1;
}

# Start the other server as a standby, and wait for synchronous replication of all
# changes.
sub follow
{
	my ($round) = @_;
	my $server = $round->{server};
	my $deadline = time + 60;

	$other->append('postgresql.conf', $other->place
		  . "primary_conninfo = 'host=$server->{folder} port=$server->{port} user=postgres'\n");
	$other->append('standby.signal', '');
	$other->set;
	$other->start or die "the standby does not start, see $other->{log}\n";
	$server->set(q{synchronous_standby_names = '*'});
	kill 'HUP', $server->postmaster;
	while (time < $deadline)
	{
		my $session = $server->session('postgres');
		my $there = $session && $session->value(q{SELECT count(*) FROM pg_stat_replication
			WHERE sync_state = 'sync' AND state = 'streaming' AND flush_lsn >= pg_current_wal_flush_lsn()});

		$session->close if $session;
		return if $there;
		usleep(50_000);
	}
	die "the standby does not follow, see $other->{log}\n";
}

# Lose the primary, and promote the standby.
sub take_over
{
	my ($round) = @_;
	my $server = $round->{server};
	my $postmaster = $server->postmaster;
	my $how = (qw(QUIT KILL EVERYTHING))[ rand 3 ];

	$round->let_go_on(100 + rand 600);
	if ($how eq 'EVERYTHING')
	{
		Blows::kill_processes($round);
	}
	else
	{
		kill $how, $postmaster;
		Blows::leave($server, $postmaster);
	}
	for (1 .. 500)
	{
		last unless $server->processes;
		usleep(20_000);
	}
	Server::run('pg_ctl', 'promote', '-s', '-w', '-D', $other->{data})
	  or die "the standby is not promoted, see $other->{log}\n";
	$round->{log} .= $server->new_log;
	$server->{postmaster} = $postmaster;
	($round->{server}, $other) = ($other, $server);
	$round->address;
	return;
}

# Rewind the lost primary to the state of the new primary, and start it as a
# standby.
sub rewind
{
	my ($round) = @_;
	my $server = $round->{server};

	my $session = $server->mend;

	# before 16, pg_rewind sees the new timeline only after a checkpoint
	$session->ask('CHECKPOINT');
	$session->close;

	# the process number is in use until the parent, perhaps init, has collected
	# the exit status
	for (1 .. 1000)
	{
		last unless kill 0, $other->{postmaster};
		usleep(30_000);
	}
	Server::run('pg_rewind', '-D', $other->{data}, '--source-server',
		"host=$server->{folder} port=$server->{port} user=postgres dbname=postgres")
	  or die "pg_rewind fails, see $server->{folder}/commands.log\n";
	follow($round);
	return;
}

1;
