# A session of the load: it connects again whenever its connection is lost, and
# notes outside the server what it was told.

package Session;

use strict;
use warnings FATAL => 'all';
use JSON::PP;
use POSIX ();
use Time::HiRes qw(time usleep);
use Wire;

my $json = JSON::PP->new->canonical;

# Begin a process that calls what is given with a session, and return its number.
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

# Shall it end?  "produce" is for those who bring work, "all" for the others.
sub stopped
{
	my ($self, $who) = @_;

	return -e "$self->{folder}/stop.$who";
}

# A connection; waits for one as long as the server has none.  Undef if the
# session is to end meanwhile, unless it insists.
sub wire
{
	my ($self, $who, $insists) = @_;

	until ($self->{wire} && $self->{wire}->alive)
	{
		return if $self->stopped($who) && !$insists;
		open my $file, '<', "$self->{folder}/port" or die "port: $!\n";
		chomp(my $port = <$file>);
		$self->{wire} =
		  Wire->new($self->{folder}, $port, $self->{role}, 'chaos', $self->{options});
		usleep(20_000 + int rand 20_000) unless $self->{wire};
	}
	return $self->{wire};
}

# Write down what happens to a job, or something else that has a tag.
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

# A while in milliseconds; much longer once it has brought much.
sub pause
{
	my ($self, $least, $most) = @_;

	usleep(1000 * ($least + rand($most - $least)) * ($self->{serial} < 400 ? 1 : 10));
	return;
}

# What must succeed at last, or have been done before, for each of the names.
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

# One statement that enqueues: notes what is certain of it.  Jobs are tags, each
# with what there is to know about it.  Returns the rows if it has succeeded.
sub enqueue
{
	my ($self, $sql, %jobs) = @_;

	$self->note($_, 'try', $jobs{$_}) foreach sort keys %jobs;
	my $answer = $self->{wire}->ask($sql);
	$self->outcome($answer, sort keys %jobs);
	return $answer->{error} ? undef : $answer->{rows};
}

# Note how a commit has ended.  Who is told of an error, and is still connected,
# knows that nothing was done; who gets a warning may not rely on it.
sub outcome
{
	my ($self, $answer, @tags) = @_;

	return if $answer->{lost} || $answer->{warning};
	$self->note($_, $answer->{error} ? 'no' : 'ok') foreach @tags;
	return;
}

# Several statements in a transaction, of which only those in "jobs" last.  Each
# statement is a query; all rows are returned, or nothing if it has not committed.
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
			# whatever there was is undone
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
