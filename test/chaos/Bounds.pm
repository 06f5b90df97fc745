# The part of the load with bounds: limiters shared by kinds and queues, full queues.
# One limiter uses the cost of jobs; jobs of some limiters do not wait for permits.  See
# Load.pm.

package Bounds;

use strict;
use warnings FATAL => 'all';
use Session;

# Maximum length of the queues "full ...".
our $length = 4;

# Kinds of jobs without waiting for permits.
our @taking = qw(chaos.skipping chaos.releasing chaos.replacing);

# Costs of jobs.
my @prices = 0 .. 3;

# Jobs of two kinds and two queues that share limits.  First a burst beyond the rate;
# free jobs follow many jobs with a cost.
sub share
{
	my ($self) = @_;
	my $pass = 'pass ' . $self->new_tag;
	my @priced = map { [ $self->new_tag, $_ ] } ((1, 2, 3) x 12, (0) x 4);

	$self->enqueue(q{SELECT jobq.enqueue_many('chaos.priced', ARRAY[}
		  . join(', ', map { Session::payload(tag => $_->[0], grp => $pass, price => $_->[1]) } @priced) . ']::jsonb[])',
		map { $_->[0] => { kind => 'chaos.priced', role => $self->{role}, fate => 'done' } } @priced)
	  if $self->wire('produce');
	foreach my $way ([qw(chaos.paced default)], [qw(chaos.work paced)])
	{
		my @tags = map { $self->new_tag } 1 .. 30;

		last unless $self->wire('produce');
		$self->enqueue("SELECT jobq.enqueue_many('$way->[0]', ARRAY["
			  . join(', ', map { Session::payload(tag => $_) } @tags)
			  . "]::jsonb[], queue => '$way->[1]', max_attempts => 1000)",
			map { $_ => { kind => $way->[0], role => $self->{role}, fate => 'done' } } @tags);
	}
	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my (%jobs, @calls);

		for (1 .. 1 + int rand 6)
		{
			my $tag = $self->new_tag;
			my ($kind, $queue) = @{ Session::pick([qw(chaos.shared default)], [qw(chaos.shared fair)],
				[qw(chaos.shared_steps default)], [qw(chaos.work shared)], [ 'chaos.outside', 'outside shared' ],
				[qw(chaos.paced default)], [qw(chaos.work paced)],
				[qw(chaos.priced default)], [qw(chaos.work priced)], [ 'chaos.outside', 'outside priced' ]) };
			my $priced = $queue =~ /priced/ || $kind =~ /priced/;
			my $fails = $kind ne 'chaos.outside' && rand() < 0.1 ? 1 : 0;

			# a rate limit must not cause a backlog
			next if ($priced || "$kind $queue" =~ /paced/) && rand() < 0.6;
			$jobs{$tag} = { kind => $kind, role => $self->{role}, fate => 'done' };
			push @calls, "SELECT jobq.enqueue('$kind', " . Session::payload(tag => $tag, fails => $fails,
				$priced ? (price => Session::pick(@prices), ms => int rand 10) : (ms => int rand 50))
			  . ", queue => '$queue', max_attempts => 1000, backoff => 'fixed 20ms')";
		}
		$self->transaction(\@calls, 'COMMIT', \%jobs, {}) if @calls;
		$self->pause(50, 150);
	}
	return;
}

# The key of a job without waiting for permits, and the permits per key.  By default a
# random key out of a few, shared by several roles.
sub places
{
	my ($kind, $key) = @_;
	my ($limiter) = $kind =~ /(\w+)$/;

	return (grp => "$limiter " . ($key || int rand 3), places => $limiter eq 'releasing' ? 2 : 1);
}

# Jobs that compete for the same permits.
sub find_taken
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $where = Session::pick(@taking, @taking, 'outside releasing', 'outside replacing');
		my $outside = $where =~ /outside/;
		my %key = places($where, rand() < 0.5 ? $self->new_tag : undef);
		my (%jobs, @calls);

		for (1 .. 2 + int rand($outside ? 2 : 4))
		{
			my $tag = $self->new_tag;
			my $payload = Session::payload(tag => $tag, %key, ms => int rand 40,
				fails => !$outside && rand() < 0.1 ? 1 : 0);

			push @calls, "SELECT jobq.enqueue('" . ($outside ? 'chaos.outside' : $where) . "', $payload, queue => '"
			  . ($outside ? $where : 'default') . "', max_attempts => 1000, backoff => 'fixed 20ms')";
			$jobs{$tag} = { kind => $where, role => $self->{role}, fate => $where =~ /releasing/ ? 'done' : 'over' };
		}
		# together, or one after the other
		if (rand() < 0.5)
		{
			$self->transaction(\@calls, 'COMMIT', \%jobs, {});
		}
		else
		{
			foreach my $tag (sort keys %jobs)
			{
				my ($call) = grep { /"\Q$tag\E"/ } @calls;

				last unless $self->wire('produce');
				$self->enqueue($call, $tag, $jobs{$tag});
			}
		}
		$self->pause(100, 250);
	}
	return;
}

# More jobs than a queue may have.  A session waiting for room must get room before the
# load ends.
sub fill
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $queue = Session::pick('full error', 'full error', 'full drop', 'full drop', 'full wait', 'outside full');
		my $kind = $queue =~ /outside/ ? 'chaos.outside' : Session::pick('chaos.work', 'chaos.work', 'chaos.steps');
		my $options = "queue => '$queue', max_attempts => 1000, backoff => 'fixed 20ms'";
		my $about = { kind => $kind, role => $self->{role}, fate => $queue =~ /drop/ ? 'over' : 'done' };
		my $way = $queue eq 'full wait' ? 0 : rand;
		my $payload = sub {
			Session::payload(tag => $_[0], ms => int rand 20, fails => $kind ne 'chaos.outside' && rand() < 0.1 ? 1 : 0);
		};
		my @tags = map { $self->new_tag } 1 .. ($way < 0.5 ? 1 : 1 + int rand $length);
		my %jobs = map { $_ => $about } @tags;
		my @calls = map { "SELECT jobq.enqueue('$kind', " . $payload->($_) . ", $options)" } @tags;

		$self->{wire}{patience} = 600;
		if ($way < 0.6)
		{
			$self->transaction(\@calls, 'COMMIT', \%jobs, {});
		}
		elsif ($way < 0.75)
		{
			$self->enqueue("SELECT jobq.enqueue_many('$kind', ARRAY[" . join(', ', map { $payload->($_) } @tags)
				  . "]::jsonb[], $options)", %jobs);
		}
		elsif ($way < 0.9)
		{
			# the room of undone jobs is free for other jobs
			my $kept = $self->new_tag;

			$self->transaction([ 'SAVEPOINT s', @calls, 'ROLLBACK TO s',
					"SELECT jobq.enqueue('$kind', " . $payload->($kept) . ", $options)" ],
				'COMMIT', { $kept => $about }, \%jobs);
		}
		else
		{
			$self->transaction(\@calls, 'ROLLBACK', {}, \%jobs);
		}
		$self->pause(2, 20);
	}
	return;
}

# Measure the lengths of the queues again and again.
sub measure
{
	my ($self) = @_;

	while ($self->wire('all') && !$self->stopped('all'))
	{
		# a disturbance lowers, but never raises the limit
		my $answer = $self->{wire}->ask(qq{
SELECT format('queue %s has %s jobs, and not $length', q.name, count(*))
	FROM jobq_internal.queue q JOIN jobq_internal.job j ON j.queue_id = q.id WHERE q.max_length IS NOT NULL
	GROUP BY q.name HAVING count(*) > $length});

		$self->note('measure', 'wrong', { what => $_->[0] }) foreach @{ $answer->{rows} };
		$self->pause(5, 30);
	}
	return;
}

1;
