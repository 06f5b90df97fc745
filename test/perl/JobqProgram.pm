# A program which runs beside a test, with the output on standard error, and files by which
# commands report their start.

package JobqProgram;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Spec;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(start_program finish pid_of says wait_for_file);

# Start the program; {err} collects the standard error.
sub start_program
{
	my (@command) = @_;
	my $run = { err => '' };

	$run->{handle} = IPC::Run::start(\@command,
		'<', File::Spec->devnull, '>', File::Spec->devnull, '2>', \$run->{err},
		IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
	return $run;
}

# Wait until the program ends; returns the status, as of wait().
sub finish
{
	my ($run) = @_;

	$run->{handle}->finish;
	return $run->{handle}->full_result(0);
}

sub pid_of { return $_[0]{handle}{KIDS}[0]{PID}; }

# Wait until the standard error of the program matches the pattern.
sub says
{
	my ($run, $pattern, $name) = @_;

	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $run->{err} =~ $pattern || !$run->{handle}->pumpable;
		$run->{handle}->pump_nb;
		usleep(50_000);
	}
	return like($run->{err}, $pattern, $name);
}

sub wait_for_file
{
	my ($file, $name) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if -s $file;
		usleep(100_000);
	}
	return ok(-s $file, $name);
}

1;
