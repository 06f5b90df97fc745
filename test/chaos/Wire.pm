# A client for the protocol of the server, over a Unix socket or TCP, without
# authentication.  No driver is needed, and the user sees exactly the answers received
# before a loss of the connection.

package Wire;

use strict;
use warnings FATAL => 'all';
use IO::Socket::INET;
use IO::Socket::UNIX;
use Time::HiRes qw(time);

# usage: Wire->new($host, $port, $user, $database, $options); undef if the connection
# fails.  The reason is in $Wire::refusal.  The host is an address, or the folder of a
# socket.
our $refusal = '';

sub new
{
	my ($class, $host, $port, $user, $database, $options) = @_;
	my $socket = $host =~ m{^/}
	  ? IO::Socket::UNIX->new(Peer => "$host/.s.PGSQL.$port")
	  : IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5);

	$refusal = "no socket: $!";
	return unless $socket;
	my $self = bless { socket => $socket, buffer => '', patience => 20 }, $class;
	my $parameters = join "\0", 'user', $user, 'database', $database,
	  'application_name', 'chaos', 'options', $options || '', '', '';

	local $SIG{PIPE} = 'IGNORE';
	my $startup = pack('N', 196608) . $parameters;
	my $sent = syswrite $socket, pack('N', 4 + length $startup) . $startup;

	$refusal = 'lost';
	return unless $sent;
	my $answer = $self->collect;
	if ($answer->{lost} || $answer->{error})
	{
		$refusal = $answer->{error} || 'lost';
		return;
	}
	$self->{patience} = 60;
	return $self;
}

# Send one or several statements without waiting for the answer.  False if the
# connection is lost.
sub send_query
{
	my ($self, $sql) = @_;

	local $SIG{PIPE} = 'IGNORE';
	return 0 unless $self->{socket};
	my $message = 'Q' . pack('N', 5 + length $sql) . $sql . "\0";
	while (length $message)
	{
		my $n = syswrite $self->{socket}, $message;

		next if !defined $n && $!{EINTR};
		unless ($n)
		{
			$self->close;
			return 0;
		}
		substr $message, 0, $n, '';
	}
	return 1;
}

# Send, and wait for the answer: a hash with
#	rows	the rows of the last statement with a result, as arrays of text
#	error	the error message, with its SQLSTATE in front
#	warning	likewise
#	lost	the connection is lost: the outcome of a COMMIT is unknown
sub ask
{
	my ($self, $sql) = @_;

	return { rows => [], lost => 1, error => 'lost' } unless $self->send_query($sql);
	return $self->collect;
}

# Receive the answer.  Waits for at most "patience" seconds, then closes the
# connection.
sub collect
{
	my ($self) = @_;
	my $answer = { rows => [] };
	my $deadline = time + $self->{patience};

	while (1)
	{
		my ($type, $body) = $self->message($deadline);

		if (!defined $type)
		{
			$self->close;
			$answer->{lost} = 1;
			$answer->{error} ||= 'lost';
			last;
		}
		elsif ($type eq 'Z')
		{
			$self->{status} = $body;
			last;
		}
		elsif ($type eq 'D')
		{
			push @{ $answer->{rows} }, row($body);
		}
		elsif ($type eq 'T')
		{
			$answer->{rows} = [];
		}
		elsif ($type eq 'K')
		{
			$self->{pid} = unpack 'N', $body;
		}
		elsif ($type eq 'E' || $type eq 'N')
		{
			my %field = map { substr($_, 0, 1) => substr $_, 1 } grep { length } split /\0/, $body;

			next if $type eq 'N' && $field{V} ne 'WARNING';
			$answer->{ $type eq 'E' ? 'error' : 'warning' } = "$field{C} $field{M}";
		}
	}
	return $answer;
}

# Receive one message, as type and body.  Nothing if the connection is lost, or on
# a timeout.
sub message
{
	my ($self, $deadline) = @_;

	return unless $self->{socket};
	while (1)
	{
		if (length $self->{buffer} >= 5)
		{
			my $length = unpack 'N', substr $self->{buffer}, 1, 4;

			if (length $self->{buffer} > $length)
			{
				my $type = substr $self->{buffer}, 0, 1;
				my $body = substr $self->{buffer}, 5, $length - 4;

				substr $self->{buffer}, 0, $length + 1, '';
				return ($type, $body);
			}
		}
		my $left = $deadline - time;
		return if $left <= 0;
		my $readable = '';
		vec($readable, fileno $self->{socket}, 1) = 1;
		my $found = select $readable, undef, undef, $left;
		next if $found <= 0;
		my $n = sysread $self->{socket}, $self->{buffer}, 65536, length $self->{buffer};
		next if !defined $n && $!{EINTR};
		return unless $n;
	}
}

sub row
{
	my ($body) = @_;
	my $count = unpack 'n', $body;
	my $at = 2;
	my @row;

	for (1 .. $count)
	{
		my $length = unpack 'l>', substr $body, $at, 4;

		$at += 4;
		if ($length < 0)
		{
			push @row, undef;
			next;
		}
		push @row, substr $body, $at, $length;
		$at += $length;
	}
	return \@row;
}

# The first column of the first row; undef if the result is empty.
sub value
{
	my ($self, $sql) = @_;
	my $answer = $self->ask($sql);

	return if $answer->{error} || !@{ $answer->{rows} };
	return $answer->{rows}[0][0];
}

sub pid { return $_[0]{pid}; }

sub alive { return defined $_[0]{socket}; }

sub close
{
	my ($self) = @_;

	CORE::close $self->{socket} if $self->{socket};
	undef $self->{socket};
	return;
}

# Quote a literal for SQL.
sub quote
{
	my ($text) = @_;

	return 'NULL' unless defined $text;
	$text =~ s/'/''/g;
	return "'$text'";
}

1;
