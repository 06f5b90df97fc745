# Servers of jobq web, and connections for raw bytes.
package JobqWeb;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use File::Spec;
use IO::Select;
use IO::Socket::INET;
use IPC::Run ();
use JobqTest ();
use PostgreSQL::Test::Utils;
use Socket qw(SOL_SOCKET SO_RCVBUF pack_sockaddr_in inet_aton);
use Test::More ();
use Time::HiRes qw(time);

our @EXPORT = qw(web_node has_web serve refused token_file raw deaf hear web_pid);

my $patience = $PostgreSQL::Test::Utils::timeout_default;
my @servers;

# No server remains, not even after an error.
END
{
	local $?;
	$_->{process}->kill_kill(grace => 5) foreach grep { $_->{process} } @servers;
}

# Was the program built with libmicrohttpd?
sub has_web { return refused($_[0], '--listen', '127.0.0.1:0', '--max-body', '0') !~ /built without/; }

# As client_node() in JobqTest.pm; skips the test file if the program has no web server.
sub web_node
{
	my ($node, $jobq) = JobqTest::client_node(@_);

	Test::More::plan(skip_all => 'the program jobq was built without libmicrohttpd') unless has_web($jobq);
	delete @ENV{qw(http_proxy https_proxy all_proxy)};
	return ($node, $jobq);
}

# Replace a token file by a file with these lines.
sub token_file
{
	my ($file, @lines) = @_;

	unlink $file;
	append_to_file($file, join '', map { "$_\n" } @lines);
	chmod 0600, $file;
	return $file;
}

# Start a web server: returns its process, its address (url, port), and its standard error
# (err).
sub serve
{
	my ($jobq, @options) = @_;
	my %server = (err => '');

	$server{process} = IPC::Run::start([ $jobq, 'web', '--listen', '127.0.0.1:0', @options ],
		'<', File::Spec->devnull, '>', File::Spec->devnull, '2>', \$server{err},
		IPC::Run::timeout($JobqTest::file_timeout));
	$server{process}->pump until $server{err} =~ m{listening at (https?://127\.0\.0\.1:(\d+))|error:};
	($server{url}, $server{port}) = ($1, $2);
	push @servers, \%server;
	return \%server;
}

# The exit status and the standard error of a server which does not start.
sub refused
{
	my ($jobq, @options) = @_;
	my $err;

	IPC::Run::run([ $jobq, 'web', @options ], '<', File::Spec->devnull, '2>', \$err, IPC::Run::timeout($patience));
	return ($? >> 8) . ": $err";
}

sub web_pid { return $_[0]{process}{KIDS}[0]{PID}; }

# Connect and send the text, from another address of the loopback if $from is given.
sub raw
{
	my ($server, $text, $from) = @_;
	local $SIG{PIPE} = 'IGNORE';	# the server may have cut it off
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $server->{port}, $from ? (LocalAddr => $from) : ())
	  or die "connect: $!";

	$socket->syswrite($text);
	return $socket;
}

# As raw(), but the client does not read, and its receive buffer is small.
sub deaf
{
	my ($server, $text) = @_;
	my $socket = IO::Socket::INET->new(Proto => 'tcp');

	$socket->setsockopt(SOL_SOCKET, SO_RCVBUF, 4096);
	connect($socket, pack_sockaddr_in($server->{port}, inet_aton('127.0.0.1'))) or die "connect: $!";
	$socket->syswrite($text);
	return $socket;
}

# Read until the input matches, or until the other side closes.
sub hear
{
	my ($socket, $pattern) = @_;
	my $select = IO::Select->new($socket);
	my $end = time + $patience;
	my $heard = '';

	while (!defined $pattern || $heard !~ $pattern)
	{
		last if time > $end || !$select->can_read($end - time);
		last unless sysread($socket, $heard, 65536, length $heard);
	}
	return $heard;
}

1;
