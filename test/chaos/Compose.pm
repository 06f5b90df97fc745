# The part of the load with jobs that create jobs or wait for jobs: batches and workflows,
# events, statements.  See Load.pm.

package Compose;

use strict;
use warnings FATAL => 'all';
use Session;

# Batches with callbacks, chains and workflows.
sub batches
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		Session::pick(\&batch, \&batch, \&workflow, \&fan)->($self);
		$self->pause(60, 160);
	}
	return;
}

sub callbacks
{
	my ($tag) = @_;

	return join ', ', map {
		"on_$_ => " . Session::quote_json({ kind => 'chaos.work', payload => { tag => "$tag.$_" }, max_attempts => 1000 })
	} qw(success failure finish);
}

sub batch
{
	my ($self) = @_;
	my $tag = $self->new_tag;
	my $doomed = rand() < 0.25;
	my $allow = rand() < 0.5;
	my $later = rand() < 0.3;
	my %jobs = ($tag => { fate => 'batch', doomed => $doomed ? 1 : 0 });
	my @kinds = ((map { Session::pick(qw(chaos.work chaos.work chaos.steps chaos.add)) } 1 .. 1 + int rand 6),
		$doomed ? 'chaos.doomed' : ());
	my @calls;

	foreach my $kind (@kinds)
	{
		my $member = $self->new_tag;

		$jobs{$member} = {
			kind => $kind, role => $self->{role},
			fate => $kind eq 'chaos.doomed' && $allow ? 'dead' : $doomed && !$allow ? 'over' : 'done'
		};
		push @calls, sub {
			"SELECT jobq.add_jobs($_[1][0][0], '$kind', ARRAY["
			  . Session::payload(tag => $member, fails => rand() < 0.1 ? 1 : 0) . "]::jsonb[])";
		};
	}
	my $rows = $self->transaction(
		[ 'SELECT jobq.create_batch(' . Wire::quote($tag) . ', ' . callbacks($tag)
			. ', allow_failures => ' . ($allow ? 'true' : 'false')
			. ', start => ' . ($later ? 'false' : 'true') . ')',
			@calls ],
		'COMMIT', \%jobs, {});

	return unless $later;
	# no batch may wait for its start after the end of the load
	my $id = $rows ? $rows->[1][0][0]
	  : $self->wire('produce', 1)->value("SELECT id FROM jobq.batches WHERE name = '$tag'");
	while (defined $id)
	{
		my $answer = $self->wire('produce', 1)->ask("SELECT jobq.start_batch($id)");

		last if !$answer->{error} || $answer->{error} =~ /^JQ00/;
		$self->pause(10, 20);
	}
	return;
}

# A diamond or a chain; numbers give the order of the steps.
sub workflow
{
	my ($self) = @_;
	my $tag = $self->new_tag;
	my $line = rand() < 0.5;
	my %jobs = ($tag => { fate => 'batch', doomed => 0 });
	my @shape = $line ? ([ a => 1 ], [ b => 2, 'a' ], [ c => 3, 'b' ])
	  : ([ a => 1 ], [ b => 2, 'a' ], [ c => 2, 'a' ], [ d => 3, 'b', 'c' ]);
	my @steps;

	foreach my $step (@shape)
	{
		my ($name, $n, @needs) = @$step;
		my $member = $self->new_tag;

		$jobs{$member} = { kind => 'chaos.work', role => $self->{role}, fate => 'done' };
		push @steps, {
			$line ? () : (name => $name, needs => \@needs),
			kind => 'chaos.work', max_attempts => 1000,
			payload => { tag => $member, grp => "workflow $tag", n => $n, fails => rand() < 0.1 ? 1 : 0 }
		};
	}
	my %definition = (name => $tag, $line ? 'chain' : 'steps' => \@steps);
	$definition{"on_$_"} = { kind => 'chaos.work', payload => { tag => "$tag.$_" }, max_attempts => 1000 }
	  foreach qw(success failure finish);
	$self->enqueue('SELECT jobq.create_workflow(' . Session::quote_json(\%definition) . ')', %jobs);
	return;
}

# A step with a job per array element, a conditional step, a step that may fail, and a step
# that gets all results.
sub fan
{
	my ($self) = @_;
	my $tag = $self->new_tag;
	my ($list, $if, $risk, $last) = map { $self->new_tag } 1 .. 4;
	my @elements = map { $self->new_tag } 1 .. int rand 6;
	my $holds = @elements > 2;
	my %jobs = (
		$tag => { fate => 'batch', doomed => 0 },
		$if => { kind => 'chaos.work', role => $self->{role}, fate => $holds ? 'done' : 'skipped' },
		$risk => { kind => 'chaos.doomed', role => $self->{role}, fate => 'dead' },
		map { $_ => { kind => 'chaos.work', role => $self->{role}, fate => 'done' } } $list, $last, @elements);
	my $fails = sub { rand() < 0.15 ? 1 : 0 };
	my %given = (max_attempts => 1000, backoff => 'fixed 20ms');
	my %known = (grp => "workflow $tag");
	my %definition = (
		name => $tag,
		steps => [
			{ %given, name => 'list', kind => 'chaos.list',
				payload => { %known, tag => $list, n => 1, elements => \@elements, fails => $fails->() } },
			{ %given, name => 'each', kind => Session::pick('chaos.work', 'chaos.shared'), needs => ['list'],
				map => { '$result' => 'list' },
				payload => { %known, tag => { '$element' => 'value' }, n => 2, fails => $fails->() } },
			{ %given, name => 'if', kind => 'chaos.work', needs => ['list'], when => '$.list.size() > 2',
				payload => { %known, tag => $if, n => 2, fails => $fails->() } },
			{ name => 'risk', kind => 'chaos.doomed', optional => JSON::PP::true(), payload => { tag => $risk } },
			{ %given, name => 'last', kind => 'chaos.join', needs => [ 'each', 'if', 'risk' ],
				payload => { %known, tag => $last, n => 3, expect => [ \@elements, $holds ? $if : undef, undef ],
					got => [ map { { '$result' => $_ } } 'each', 'if', 'risk' ] } } ]);

	$definition{"on_$_"} = { kind => 'chaos.work', payload => { tag => "$tag.$_" }, max_attempts => 1000 }
	  foreach qw(success failure finish);
	$self->enqueue('SELECT jobq.create_workflow(' . Session::quote_json(\%definition) . ')', %jobs);
	return;
}

# Jobs with a listener: each event in their queue creates a job.
sub be_heard
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $tag = $self->new_tag;
		my $kind = Session::pick(qw(chaos.work chaos.work chaos.work chaos.steps chaos.doomed chaos.slow));
		my $way = rand;
		my $payload = Session::payload(tag => $tag, ms => int rand 10,
			fails => $kind =~ /work|steps/ && rand() < 0.3 ? 1 + int rand 2 : 0);
		my $option = $way < 0.2 ? ", delay => '200 ms'" : $way < 0.3 ? ", expires_at => jobq_internal.clock() + interval '20 ms'" : '';
		my $rows = $self->enqueue("SELECT jobq.enqueue('$kind', $payload, queue => 'heard'$option)", $tag,
			{ kind => $kind, role => $self->{role},
				fate => length $option ? 'over' : $kind =~ /doomed|slow/ ? 'dead' : 'done' });

		$self->{wire}->ask("SELECT jobq.cancel($rows->[0][0])") if $rows && $way < 0.15;
		$self->pause(20, 60);
	}
	return;
}

# Statements: in the transaction of their job, or outside and then run at least once.
sub statements
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		my $tag = $self->new_tag;
		my $outside = rand() < 0.3;
		my $sql = Wire::quote($outside ? "CALL chaos.state_outside('$tag')" : "SELECT chaos.state('$tag')");

		$self->enqueue("SELECT jobq.enqueue_sql($sql, "
			  . ($outside ? 'transaction => false, ' : '') . "max_attempts => 1000, backoff => 'fixed 20ms')",
			$tag, { kind => 'sql', role => $self->{role}, fate => 'done' });
		$self->pause(20, 80);
	}
	return;
}

1;
