# Disturbances with a second server: a standby takes over, and who was the primary
# is rewound and becomes its standby.  Disturbances are as in Blows.pm.
#
# The standby is synchronous before the primary is lost, so what was acknowledged
# is on both.

package Failover;

use strict;
use warnings FATAL => 'all';
use Blows;
use File::Path 'remove_tree';
use Server;
use Time::HiRes qw(time usleep);

# The server that is not in use, if there is one.
my $other;

sub list
{
	return (
		[ 'failover', 8, sub { failover($_[0], 0) } ],
		[ 'failover, and back to who was rewound', 4, sub { failover($_[0], 1) } ]);
}

# Forget the other server.  Returns what its log says.
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

# A copy of the server in use, which follows it.  False if there is none to be had.
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

# Have the other server follow the one in use, and wait until it is synchronous and
# has all.
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

# The primary is lost, and the standby is promoted.
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

# What the lost primary has and the new one has not is taken back, and it follows.
sub rewind
{
	my ($round) = @_;
	my $server = $round->{server};

	my $session = $server->mend;

	# before 16, pg_rewind sees the new timeline only after a checkpoint
	$session->ask('CHECKPOINT');
	$session->close;

	# its number is taken until somebody asks how it ended, which init may do late
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
