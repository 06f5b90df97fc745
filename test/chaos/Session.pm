# A session of the load.  It connects again after each loss of the connection, and
# notes the answers outside the server.

package Session;

use strict;
use warnings FATAL => 'all';
use JSON::PP;
use POSIX ();
use Time::HiRes qw(time usleep);
use Wire;

my $json = JSON::PP->new->canonical;

# Start a process that calls a function with a session, and return the process
# number.
# given: folder, round, name, role, seed, options
sub launch
{
	my ($class, $what, %given) = @_;
	my $pid = fork;

	die "fork: $!\n" unless defined $pid;
	return $pid if $pid;
	srand($given{seed});
	$SIG{TERM} = $SIG{INT} = 'DEFAULT';
	my $self = bless { %given, serial => 0 }, $class;
	open $self->{notes}, '>>', "$given{folder}/notes/$given{name}" or POSIX::_exit(2);
	my $done = eval { $what->($self); 1 };
	print STDERR "session $given{name}: $@" unless $done;
	close $self->{notes};
	POSIX::_exit($done ? 0 : 1);
}

# Must the session end?  "produce" ends producers, "all" the rest.
sub stopped
{
	my ($self, $who) = @_;

	return -e "$self->{folder}/stop.$who";
}

# Return a connection, and wait while the server accepts none.  Undef if the
# session must end meanwhile, unless "insists" is true.
sub wire
{
	my ($self, $who, $insists) = @_;

	until ($self->{wire} && $self->{wire}->alive)
	{
		return if $self->stopped($who) && !$insists;
		open my $file, '<', "$self->{folder}/address" or die "address: $!\n";
		my ($host, $port) = split ' ', <$file>;
		$self->{wire} = Wire->new($host, $port, $self->{role}, 'chaos', $self->{options});
		usleep(20_000 + int rand 20_000) unless $self->{wire};
	}
	return $self->{wire};
}

# Write down an event of a job, or of another object with a tag.
sub note
{
	my ($self, $tag, $event, $about) = @_;

	syswrite $self->{notes}, join("\t", $tag, $event, $about ? $json->encode($about) : '') . "\n";
	return;
}

sub is_async
{
	return $_[0]{options} =~ /synchronous_commit=off/ ? 1 : 0;
}

sub new_tag
{
	my ($self) = @_;

	return "$self->{round}.$self->{name}." . ++$self->{serial};
}

sub pick { return $_[ rand @_ ]; }

# The payload of a job, as a literal.
sub payload
{
	my (%payload) = @_;

	return Wire::quote($json->encode(\%payload));
}

sub quote_json
{
	return Wire::quote($json->encode($_[0]));
}

# Sleep, in milliseconds; much longer once the session has created many objects.
sub pause
{
	my ($self, $least, $most) = @_;

	usleep(1000 * ($least + rand($most - $least)) * ($self->{serial} < 400 ? 1 : 10));
	return;
}

# Repeat a statement for each name until it succeeds or has succeeded before.
sub insist
{
	my ($self, $sql, @names) = @_;

	foreach my $name (@names)
	{
		while (1)
		{
			my $answer = $self->wire('produce', 1)->ask($sql->($name));

			last if !$answer->{error} || $answer->{error} =~ /^42704/;
			die "$answer->{error}\n" if $answer->{error} =~ /^[24]2.../;
			$self->pause(10, 30);
		}
	}
	return;
}

# Run a statement that enqueues, and note the certain outcome.  "jobs" maps tags
# to properties.  Returns the rows on success.
sub enqueue
{
	my ($self, $sql, %jobs) = @_;

	$self->note($_, 'try', $jobs{$_}) foreach sort keys %jobs;
	my $answer = $self->{wire}->ask($sql);
	$self->outcome($answer, sort keys %jobs);
	return $answer->{error} ? undef : $answer->{rows};
}

# Note how a commit has ended.  An error on a live connection proves that nothing
# was committed; a warning proves nothing.
sub outcome
{
	my ($self, $answer, @tags) = @_;

	return if $answer->{lost} || $answer->{warning};
	$self->note($_, $answer->{error} ? 'no' : 'ok') foreach @tags;
	return;
}

# Run several statements in a transaction.  Only the jobs in "kept" remain.  Each
# statement is a query.  Returns all rows, or nothing if the transaction did not
# commit.
sub transaction
{
	my ($self, $statements, $end, $kept, $lost) = @_;
	my @rows;
	my @tags = (sort(keys %$kept), sort keys %$lost);

	$self->note($_, 'try', $kept->{$_} || $lost->{$_}) foreach @tags;
	foreach my $sql ('BEGIN', @$statements)
	{
		$sql = $sql->(@rows) if ref $sql;
		my $answer = $self->{wire}->ask($sql);

		if ($answer->{error})
		{
			# everything is undone
			$self->note($_, 'no') foreach @tags;
			$self->{wire}->ask('ROLLBACK') unless $answer->{lost};
			return;
		}
		push @rows, $answer->{rows};
	}
	my $answer = $self->{wire}->ask($end);

	$self->note($_, 'no') foreach sort keys %$lost;
	if ($end eq 'ROLLBACK')
	{
		$self->note($_, 'no') foreach sort keys %$kept;
		return;
	}
	$self->outcome($answer, sort keys %$kept);
	return $answer->{error} ? undef : \@rows;
}

1;
