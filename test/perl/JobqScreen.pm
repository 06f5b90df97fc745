# A terminal for tests: the screen of a full-screen program.
#
# Understands the control sequences of the terminal description "xterm".

package JobqScreen;

use strict;
use warnings FATAL => 'all';

use Encode ();
use IO::Pty ();
use IO::Select ();
use POSIX ();
use Time::HiRes ();

# Start a program on a terminal with this number of rows and columns.
sub new
{
	my ($class, $rows, $columns, @command) = @_;
	my $pty = IO::Pty->new;
	my $self = bless {
		pty => $pty,
		rows => $rows,
		columns => $columns,
		input => '',
		raw => '',
		row => 0,
		column => 0
	}, $class;

	$self->erase;
	$self->{slave} = $pty->slave;
	$self->{slave}->set_winsize($rows, $columns);
	$self->{modes} = $self->modes;
	$self->{pid} = fork;
	die "could not fork: $!\n" unless defined $self->{pid};
	if ($self->{pid} == 0)
	{
		$pty->make_slave_controlling_terminal;
		open(STDIN, '<&', $self->{slave}) or POSIX::_exit(126);
		open(STDOUT, '>&', $self->{slave}) or POSIX::_exit(126);
		open(STDERR, '>&', $self->{slave}) or POSIX::_exit(126);
		delete @ENV{qw(LINES COLUMNS NO_COLOR)};
		$ENV{TERM} = 'xterm';
		$ENV{LC_ALL} = 'C.UTF-8';
		exec {$command[0]} @command or POSIX::_exit(126);
	}
	return $self;
}

sub erase
{
	my ($self) = @_;

	$self->{line} = [ map { ' ' x $self->{columns} } 1 .. $self->{rows} ];
	@$self{qw(top bottom)} = (0, $self->{rows} - 1);
	return;
}

# Keep the cursor on the screen.
sub stay
{
	my ($self) = @_;

	foreach ([ 'row', 'rows' ], [ 'column', 'columns' ])
	{
		$self->{ $_->[0] } = 0 if $self->{ $_->[0] } < 0;
		$self->{ $_->[0] } = $self->{ $_->[1] } - 1 if $self->{ $_->[0] } >= $self->{ $_->[1] };
	}
	return;
}

# The settings of the terminal, to find changes left by the program.
sub modes
{
	my ($self) = @_;
	my $termios = POSIX::Termios->new;

	$termios->getattr($self->{slave}->fileno);
	return join ' ', $termios->getiflag, $termios->getoflag, $termios->getlflag, map { $termios->getcc($_) } 0 .. 15;
}

sub resize
{
	my ($self, $rows, $columns) = @_;

	@$self{qw(rows columns)} = ($rows, $columns);
	$self->erase;
	$self->stay;
	$self->{slave}->set_winsize($rows, $columns);
	return;
}

sub type { return syswrite($_[0]{pty}, $_[1]); }

sub text { return join "\n", map { s/ +$//r } @{ $_[0]{line} }; }

sub put
{
	my ($self, $text) = @_;

	foreach my $character (split //, $text)
	{
		if ($self->{column} >= $self->{columns})
		{
			$self->{column} = 0;
			$self->{row}++ if $self->{row} < $self->{rows} - 1;
		}
		substr($self->{line}[ $self->{row} ], $self->{column}++, 1) = $character;
	}
	return;
}

# Move the lines from $from on up by $n, within the scroll region.
sub scroll
{
	my ($self, $from, $n) = @_;

	foreach (1 .. abs $n)
	{
		splice @{ $self->{line} }, $n > 0 ? $from : $self->{bottom}, 1;
		splice @{ $self->{line} }, $n > 0 ? $self->{bottom} : $from, 0, ' ' x $self->{columns};
	}
	return;
}

# Interpret a CSI sequence, given its numbers and its last letter.
sub control
{
	my ($self, $numbers, $letter) = @_;
	my @n = split /;/, $numbers;
	my $n = $n[0] || 1;
	my $line = \$self->{line}[ $self->{row} ];

	$self->{row} -= $n if $letter eq 'A';
	$self->{row} += $n if $letter eq 'B';
	$self->{column} += $n if $letter eq 'C';
	$self->{column} -= $n if $letter eq 'D';
	$self->{column} = $n - 1 if $letter eq 'G';
	$self->{row} = $n - 1 if $letter eq 'd';
	@$self{qw(row column)} = ($n - 1, ($n[1] || 1) - 1) if $letter eq 'H';
	$self->put($self->{last} x $n) if $letter eq 'b';
	if ($letter eq 'J' || $letter eq 'K')
	{
		my $what = $n[0] || 0;

		substr($$line, $self->{column}) = ' ' x ($self->{columns} - $self->{column}) if $what == 0 && $self->{column} < $self->{columns};
		substr($$line, 0, $self->{column} + 1) = ' ' x ($self->{column} + 1) if $what == 1;
		$$line = ' ' x $self->{columns} if $what == 2;
		$self->{line}[$_] = ' ' x $self->{columns} foreach $letter eq 'J' && $what == 0 ? $self->{row} + 1 .. $self->{rows} - 1 : ();
		$self->erase if $letter eq 'J' && $what >= 2;
	}
	substr($$line, $self->{column}, $n) = ' ' x $n if $letter eq 'X';
	if ($letter eq 'P')
	{
		substr($$line, $self->{column}, $n) = '';
		$$line .= ' ' x ($self->{columns} - length $$line);
	}
	if ($letter eq '@')
	{
		substr($$line, $self->{column}, 0) = ' ' x $n;
		$$line = substr($$line, 0, $self->{columns});
	}
	if ($letter eq 'r')
	{
		# output for a larger window may arrive after the window has become smaller
		@$self{qw(top bottom)} = map { $_ < $self->{rows} ? $_ : $self->{rows} - 1 }
		  map { $_ - 1 } $n[0] || 1, $n[1] || $self->{rows};
		@$self{qw(row column)} = (0, 0);
	}
	$self->scroll($self->{row}, $n) if $letter eq 'M';
	$self->scroll($self->{row}, -$n) if $letter eq 'L';
	$self->scroll($self->{top}, $n) if $letter eq 'S';
	$self->scroll($self->{top}, -$n) if $letter eq 'T';
	die "CSI $numbers$letter is not understood\n" if $letter !~ /[ABCDGHJKLMPSTX\@bdhlmrt]/;
	$self->stay;
	return;
}

# Draw the received bytes.
sub take
{
	my ($self, $bytes) = @_;

	$self->{raw} .= $bytes;
	$self->{input} .= $bytes;
	while (length $self->{input})
	{
		if ($self->{input} =~ s/\A\e\[([?>]?)([\d;]*)([\@A-Za-z])//)
		{
			$self->control($2, $3) unless $1;
		}
		elsif ($self->{input} =~ s/\A\e[()][A-Z0-9]// || $self->{input} =~ s/\A\e[=>78]// || $self->{input} =~ s/\A[\a\x0e\x0f]//)
		{
		}
		elsif ($self->{input} =~ s/\A\eM//)
		{
			$self->{row} == $self->{top} ? $self->scroll($self->{top}, -1) : $self->{row}--;
			$self->stay;
		}
		elsif ($self->{input} =~ s/\A\r//)
		{
			$self->{column} = 0;
		}
		elsif ($self->{input} =~ s/\A\n//)
		{
			$self->{row} == $self->{bottom} ? $self->scroll($self->{top}, 1) : $self->{row}++;
			$self->stay;
		}
		elsif ($self->{input} =~ s/\A\x08//)
		{
			$self->{column}-- if $self->{column} > 0;
		}
		elsif ($self->{input} =~ s/\A([\x20-\x7e]|[\xc2-\xdf].|[\xe0-\xef]..|[\xf0-\xf4]...)//s)
		{
			$self->{last} = Encode::decode('UTF-8', my $character = $1);
			$self->put($self->{last});
		}
		elsif ($self->{input} =~ /\A(?:\e[\[()]?[?>]?[\d;]*|[\xc2-\xf4].{0,2})\z/s)
		{
			last;				# the rest is still to come
		}
		else
		{
			die sprintf "the terminal does not understand %s\n", unpack 'H*', substr $self->{input}, 0, 10;
		}
	}
	return;
}

# Read the available output; false if the program has ended, and all output is read.
sub read_some
{
	my ($self, $seconds) = @_;

	if (IO::Select->new($self->{pty})->can_read($seconds))
	{
		my $n = sysread $self->{pty}, my $bytes, 65536;

		$self->take($bytes) if $n;
		return $n ? 1 : 0;
	}
	return !defined $self->{status};
}

# Wait until the screen matches the pattern; false after the timeout, or if the program ends.
sub shows
{
	my ($self, $pattern, $seconds) = @_;
	my $until = Time::HiRes::time() + ($seconds || $PostgreSQL::Test::Utils::timeout_default);

	while ($self->text !~ $pattern)
	{
		return 0 if Time::HiRes::time() > $until;
		$self->reap;
		$self->read_some(0.1) or return $self->text =~ $pattern ? 1 : 0;
	}
	return 1;
}

sub reap
{
	my ($self) = @_;

	$self->{status} = $? if !defined $self->{status} && waitpid($self->{pid}, POSIX::WNOHANG()) > 0;
	return defined $self->{status};
}

# Wait until the program has ended; returns its status, as of waitpid(), or undef.
sub finish
{
	my ($self, $seconds) = @_;
	my $until = Time::HiRes::time() + ($seconds || $PostgreSQL::Test::Utils::timeout_default);

	while (!$self->reap)
	{
		return if Time::HiRes::time() > $until;
		$self->read_some(0.1);
	}
	while (IO::Select->new($self->{pty})->can_read(0.2))
	{
		$self->read_some(0) or last;
	}
	return $self->{status};
}

1;
