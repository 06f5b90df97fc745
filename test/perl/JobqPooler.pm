# pgbouncer in front of a server, for tests.

package JobqPooler;

use strict;
use warnings FATAL => 'all';

use File::Spec;
use IO::Socket::UNIX;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my @running;

# A stopped pgbouncer would not end by itself.
END
{
	local $?;
	kill('KILL', map { $_->{KIDS}[0]{PID} } @running);
}

# Start pgbouncer, with %settings added to the common settings.  Skips the test file if
# pgbouncer is not installed.
sub new
{
	my ($class, $node, %settings) = @_;
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';

	plan(skip_all => 'pgbouncer is not installed') unless $program;
	plan(skip_all => 'pgbouncer does not run as root') unless $>;

	my $self = bless {
		program => $program,
		dir => PostgreSQL::Test::Utils::tempdir_short(),
		port => PostgreSQL::Test::Cluster::get_free_port(),
		user => $node->safe_psql('postgres', 'SELECT current_user')
	}, $class;

	append_to_file("$self->{dir}/users", qq{"$self->{user}" ""\n});
	append_to_file("$self->{dir}/pgbouncer.ini", qq{
[databases]
postgres = host=@{[$node->host]} port=@{[$node->port]}
[pgbouncer]
listen_addr =
listen_port = $self->{port}
unix_socket_dir = $self->{dir}
auth_type = trust
auth_file = $self->{dir}/users
logfile = $self->{dir}/log
log_connections = 0
log_disconnections = 0
} . join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$self->start;
	return $self;
}

# Start pgbouncer, and wait until it listens.
sub start
{
	my ($self) = @_;

	$self->{output} = '';
	$self->{handle} = IPC::Run::start([ $self->{program}, '-q', "$self->{dir}/pgbouncer.ini" ],
		'<', File::Spec->devnull, '>', \$self->{output}, '2>&1');
	push @running, $self->{handle};
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if IO::Socket::UNIX->new(Peer => "$self->{dir}/.s.PGSQL.$self->{port}");
		usleep(100_000);
	}
	die "pgbouncer does not listen: $self->{output}\n";
}

sub signal { return $_[0]{handle}->signal($_[1]); }

# End pgbouncer with a signal, by default SIGINT.
sub stop
{
	my ($self, $signal) = @_;

	$self->{handle}->signal($signal || 'INT');
	$self->{handle}->finish;
	@running = grep { $_ != $self->{handle} } @running;
	return;
}

1;
