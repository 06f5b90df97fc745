# The part of the load with nested workflows and chains: as steps, and in batches.  See
# Load.pm.
#
# Each has a name and all callbacks, because each is a separate batch.  "after" of a job
# lists the jobs that must end first.  chaos.join checks their results.

package Nest;

use strict;
use warnings FATAL => 'all';
use Compose;
use JSON::PP;
use Session;

my %given = (max_attempts => 1000, backoff => 'fixed 20ms');

sub workflows
{
	my ($self) = @_;

	while ($self->wire('produce') && !$self->stopped('produce'))
	{
		Session::pick(\&nested, \&nested, \&in_batch)->($self);
		$self->pause(200, 500);
	}
	return;
}

# A step, and the properties of its job.
sub step
{
	my ($self, $jobs, $kind, $fate, $after, %payload) = @_;
	my $tag = $self->new_tag;

	$jobs->{$tag} = { kind => $kind, role => $self->{role}, fate => $fate, after => $after };
	return ($tag, { $kind eq 'chaos.doomed' ? () : %given, kind => $kind,
			payload => { tag => $tag, fails => $kind ne 'chaos.doomed' && rand() < 0.1 ? 1 : 0, %payload } });
}

# A definition with a name and callbacks.
sub definition
{
	my ($tag, @steps) = @_;
	my %definition = (name => $tag, steps => \@steps);

	$definition{"on_$_"} = { kind => 'chaos.work', payload => { tag => "$tag.$_" }, max_attempts => 1000 }
	  foreach qw(success failure finish);
	return \%definition;
}

sub result { return { '$result' => $_[0], @_ > 1 ? (path => [ @_[ 1 .. $#_ ] ]) : () }; }

# A chain of this length, which may contain a failing job.  Each job gets the result of
# the previous job.  Returns the tag of the last job.
sub line
{
	my ($self, $jobs, $length, $fate, $after, $fails) = @_;
	my @steps;
	my @after = @$after;
	my $last;

	for my $n (1 .. $length)
	{
		my $doomed = $fails && $n == $fails;
		my ($tag, $step) = step($self, $jobs, $doomed ? 'chaos.doomed' : 'chaos.work',
			!$doomed ? ($fails && $n > $fails ? 'skipped' : $fate) : $fate eq 'done' ? 'dead' : 'over', [@after]);

		push @steps, $step;
		@after = ($tag);
		$last = $tag;
	}
	return ($last, @steps);
}

# A workflow and a chain as steps among plain steps; the workflow contains a chain.  In
# some runs an inner step fails, which may be optional, or is cancelled.
sub nested
{
	my ($self) = @_;
	my $tag = $self->new_tag;
	my ($inner, $line, $deep) = map { "$tag.$_" } qw(inner line deep);
	my $way = rand;
	my $optional = $way < 0.15;
	my $doomed = $way < 0.3;
	my $cancel = $way >= 0.3 && $way < 0.45;
	my $skips = $way > 0.85;
	# steps concurrent with the failing step are done or cancelled
	my $fate = $cancel || $doomed && !$optional ? 'over' : 'done';
	my $first = $cancel ? 'over' : 'done';
	my $end = $cancel ? 'over' : $doomed && !$optional ? 'skipped' : 'done';
	my %jobs = map { $_ => { fate => 'batch', cancel => $cancel ? 1 : 0 } } $tag, $inner, $line, $deep;

	my ($a, $step_a) = step($self, \%jobs, 'chaos.work', $first, []);
	my ($x, $step_x) = step($self, \%jobs, 'chaos.work', $skips ? 'skipped' : $first, [$a]);
	my ($d, @deep) = line($self, \%jobs, 2, $skips ? 'skipped' : $first, [ $x ], $doomed ? 1 + int rand 2 : 0);
	my ($y, $step_y) = step($self, \%jobs, 'chaos.join', $doomed || $skips ? 'skipped' : $first, [ $x, $d ],
		expect => [ $a, $x, $d ], got => [ result('a'), result('x'), result('deep') ]);
	my ($l, @line) = line($self, \%jobs, 2 + int rand 2, $fate, [$a]);
	my $nothing = $doomed || $skips;
	my ($z, $step_z) = step($self, \%jobs, 'chaos.join', $end, [ $a, $l, $nothing ? () : ($x, $d, $y) ],
		expect => [ $nothing ? (undef, undef) : ({ x => $x, deep => $d, y => undef }, $d), $l ],
		got => [ result('inner'), result('inner', 'deep'), result('line') ]);
	my $definition = definition($tag,
		{ %$step_a, name => 'a' },
		{ name => 'inner', needs => ['a'], $optional ? (optional => JSON::PP::true()) : (), $skips ? (when => '$.a == "none"') : (),
			workflow => definition($inner,
				{ %$step_x, name => 'x' },
				{ name => 'deep', needs => ['x'], chain => definition($deep, @deep) },
				{ %$step_y, name => 'y', needs => [ 'x', 'deep' ] }) },
		{ name => 'line', needs => ['a'], chain => definition($line, @line) },
		{ %$step_z, name => 'z', needs => [ 'inner', 'line' ] });

	my $rows = $self->enqueue('SELECT jobq.create_workflow(' . Session::quote_json($definition) . ')', %jobs);

	return unless $cancel && $rows;
	$self->pause(0, 60);
	my $id = $rows->[0][0];
	my $part = Session::pick(qw(inner line));
	# the whole batch, a part, or the job that represents the part
	$self->{wire}->ask(Session::pick(
		"SELECT jobq.cancel_batch($id)",
		"SELECT jobq.cancel_batch(workflow_id) FROM jobq.steps WHERE batch_id = $id AND name = '$part'",
		"SELECT jobq.cancel(job_id) FROM jobq.steps WHERE batch_id = $id AND name = '$part'"));
	return;
}

# A batch with jobs, a workflow and a chain; a job of the batch may add one of these.
# Sometimes a job fails, or the batch is cancelled.
sub in_batch
{
	my ($self) = @_;
	my $tag = $self->new_tag;
	my ($workflow, $chain) = ("$tag.workflow", "$tag.chain");
	my $way = rand;
	my $doomed = $way < 0.25;
	my $allow = rand() < 0.5;
	my $cancel = $way > 0.85;
	my $fate = $cancel || $doomed && !$allow ? 'over' : 'done';
	my $alone = $cancel ? 'over' : 'done';
	my $inside = rand() < 0.5;
	my %jobs = map { $_ => { fate => $_ ne $workflow || !$inside || $fate eq 'done' ? 'batch' : 'maybe', cancel => $cancel ? 1 : 0 } }
	  $tag, $workflow, $chain;

	my ($member, $step) = step($self, \%jobs, $inside ? 'chaos.add' : 'chaos.work', $fate, []);
	my ($a, $step_a) = step($self, \%jobs, 'chaos.work', $fate, $inside ? [$member] : []);
	my ($b, $step_b) = step($self, \%jobs, 'chaos.join', $fate, [$a], expect => [$a], got => [ result('a') ]);
	my ($last, @line) = line($self, \%jobs, 2, $doomed ? $alone : $fate, [], $doomed ? 1 + int rand 2 : 0);
	my $in_line = definition($chain, @line);
	my $definition = definition($workflow, { %$step_a, name => 'a' }, { %$step_b, name => 'b', needs => ['a'] });

	$in_line->{chain} = delete $in_line->{steps};
	if ($inside)
	{
		$step->{payload}{definition} = $definition;
		$jobs{$_}{fate} = 'maybe' foreach $fate eq 'done' ? () : ($a, $b);
	}
	my $id = sub { $_[1][0][0] };
	my $rows = $self->transaction(
		[ 'SELECT jobq.create_batch(' . Wire::quote($tag) . ', ' . Compose::callbacks($tag)
			. ', allow_failures => ' . ($allow ? 'true' : 'false') . ', start => true)',
			sub { 'SELECT jobq.add_jobs(' . $id->(@_) . ", '$step->{kind}', ARRAY[" . Session::quote_json($step->{payload}) . ']::jsonb[])' },
			$inside ? () : sub { 'SELECT jobq.create_workflow(' . Session::quote_json($definition) . ', batch_id => ' . $id->(@_) . ')' },
			sub { 'SELECT jobq.create_workflow(' . Session::quote_json($in_line) . ', batch_id => ' . $id->(@_) . ')' } ],
		'COMMIT', \%jobs, {});

	return unless $cancel && $rows;
	$self->pause(0, 60);
	$self->{wire}->ask('SELECT jobq.cancel_batch(' . $id->(@$rows) . ')');
	return;
}

1;
