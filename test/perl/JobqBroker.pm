# A private RabbitMQ, with a private epmd, node name, port and folder.  Queues, exchanges and
# bindings are loaded when the broker starts.

package JobqBroker;

use strict;
use warnings FATAL => 'all';

use File::Spec;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

my $program = '/usr/lib/rabbitmq/bin/rabbitmq-server';

# True if the broker is installed.
sub is_there { return -x $program; }

# A running broker with these definitions: the JSON text of the keys queues, exchanges and
# bindings.
sub new
{
	my ($class, $definitions) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $self = bless {
		dir => $dir,
		owner => $$,
		port => PostgreSQL::Test::Cluster::get_free_port(),
		epmd_port => PostgreSQL::Test::Cluster::get_free_port(),
		dist_port => PostgreSQL::Test::Cluster::get_free_port() }, $class;

	append_to_file("$dir/definitions.json", qq({
"users": [{"name": "jobq", "password": "secret", "tags": ""}],
"vhosts": [{"name": "/"}],
"permissions": [{"user": "jobq", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}],
$definitions}));
	append_to_file("$dir/rabbitmq.conf", "load_definitions = $dir/definitions.json\n");
	system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
		'-addext', 'subjectAltName=DNS:localhost', '-keyout', "$dir/key", '-out', "$dir/cert");
	$self->{tls_port} = PostgreSQL::Test::Cluster::get_free_port();
	append_to_file("$dir/rabbitmq.conf",
		"listeners.ssl.default = $self->{tls_port}\n"
		. join('', map { "ssl_options.$_\n" } "cacertfile = $dir/cert", "certfile = $dir/cert", "keyfile = $dir/key",
			'verify = verify_none', 'fail_if_no_peer_cert = false'));
	# the broker would start an epmd of its own, which outlives the test
	$self->start('epmd', 'epmd_port', 'epmd', '-port', $self->{epmd_port}, '-address', '127.0.0.1');
	$self->start;
	return $self;
}

# Start a program in a process group of its own.  Returns the process id.
sub run
{
	my ($self, @command) = @_;
	my $pid = fork();

	die "fork: $!" unless defined $pid;
	return $pid if $pid;
	POSIX::setpgid(0, 0);
	%ENV = (%ENV,
		HOME => $self->{dir},
		ERL_EPMD_PORT => $self->{epmd_port},
		RABBITMQ_NODENAME => "jobq$self->{port}\@localhost",
		RABBITMQ_NODE_PORT => $self->{port},
		RABBITMQ_NODE_IP_ADDRESS => '127.0.0.1',
		RABBITMQ_DIST_PORT => $self->{dist_port},
		RABBITMQ_MNESIA_BASE => "$self->{dir}/data",
		RABBITMQ_LOG_BASE => "$self->{dir}/log",
		RABBITMQ_CONF_ENV_FILE => '/dev/null',
		RABBITMQ_CONFIG_FILE => "$self->{dir}/rabbitmq",
		RABBITMQ_ENABLED_PLUGINS_FILE => "$self->{dir}/plugins",
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS => '+S 1:1');
	chdir($self->{dir});
	open(STDIN, '<', File::Spec->devnull);
	open(STDOUT, '>>', "$self->{dir}/output");
	open(STDERR, '>&', \*STDOUT);
	exec(@command) or POSIX::_exit(127);
}

# Start a program, the broker by default, and wait until it listens at its port.
sub start
{
	my ($self, $what, $port, @command) = @_;

	$what //= 'server';
	$port //= 'port';
	@command = ($program) unless @command;
	$self->{$what} = $self->run(@command);
	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if $self->listens($port);
		last if waitpid($self->{$what}, POSIX::WNOHANG()) != 0;
		usleep(50_000);
	}
	die "$command[0] does not start:\n" . slurp_file("$self->{dir}/output");
}

sub listens
{
	my ($self, $port) = @_;

	return defined IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{ $port // 'port' });
}

# Send a signal to all processes of the broker.
sub signal
{
	my ($self, $signal) = @_;

	kill($signal, -$self->{server});
	return;
}

# Kill the broker, as a crash of its machine.
sub crash
{
	my ($self) = @_;

	kill('KILL', -$self->{server});
	waitpid($self->{server}, 0);
	# the process of the broker is a child of the script that was reaped
	usleep(10_000) while $self->listens;
	return;
}

# The address; the password is not part of it if "user" is given.
sub url
{
	my ($self, $user) = @_;

	return sprintf('amqp://%s@127.0.0.1:%d', $user // 'jobq:secret', $self->{port});
}

# The address with TLS, and the certificate.
sub tls_url { return "amqps://jobq\@$_[1]:$_[0]{tls_port}"; }
sub certificate { return "$_[0]{dir}/cert"; }

sub DESTROY
{
	my ($self) = @_;
	local $?;

	return if $$ != $self->{owner};
	$self->crash if $self->{server};
	kill('KILL', -$self->{epmd});
	waitpid($self->{epmd}, 0);
	return;
}

1;
