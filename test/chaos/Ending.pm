# The end of a load: the processes end, and the queues are emptied.  Functions return the
# errors.

package Ending;

use strict;
use warnings FATAL => 'all';
use POSIX ();
use Time::HiRes qw(time usleep);

# Let sessions of the load end: "produce" ends producers, "all" the rest.
sub flag
{
	my ($folder, $who) = @_;

	open my $file, '>', "$folder/stop.$who" or die "$!\n";
	close $file;
	return;
}

# Wait for processes to end.
sub ended
{
	my ($what, $pids) = @_;
	my $deadline = time + 180;
	my %left = map { $_ => 1 } @$pids;
	my @wrong;

	while (%left && time < $deadline)
	{
		foreach my $pid (keys %left)
		{
			next unless waitpid($pid, POSIX::WNOHANG());
			push @wrong, "a process of the load has failed: $what" if $?;
			delete $left{$pid};
		}
		usleep(10_000);
	}
	push @wrong, scalar(keys %left) . " of the $what do not end" if %left;
	return @wrong;
}

# Wait until no job is left, as long as the number decreases.
sub drain
{
	my ($db) = @_;
	my ($least, $deadline) = (1e9, time + 120);

	while (1)
	{
		my $left = $db->value(q{SELECT (SELECT count(*) FROM jobq_internal.job) + (SELECT count(*) FROM jobq_internal.batch WHERE finished_at IS NULL)});

		return 'the server has gone away while it worked undisturbed' unless defined $left;
		return () if $left == 0;
		($least, $deadline) = ($left, time + 120) if $left < $least;
		last if time > $deadline;
		usleep(20_000);
	}
	return ("not so: all jobs come to their end; $least are left",
		map { '    ' . join ' | ', map { defined ? $_ : '' } @$_ }
		map { @{ $db->ask($_)->{rows} } }
		  q{SELECT id, state, kind, queue, role, priority, attempt, run_at, group_key, batch_id, error FROM jobq.jobs
			WHERE finished_at IS NULL ORDER BY id LIMIT 10},
		  q{SELECT 'workers', * FROM jobq.workers},
		  q{SELECT 'scheduler', * FROM jobq_internal.scheduler_state()},
		  q{SELECT 'limits', * FROM jobq.limits},
		  q{SELECT 'groups', * FROM jobq_internal.group_slots()},
		  q{SELECT 'batch', id, name, state, last_error FROM jobq_internal.batch WHERE finished_at IS NULL LIMIT 5},
		  q{SELECT 'session', pid, backend_type, state, wait_event, query FROM pg_stat_activity WHERE backend_type ~ 'jobq|client'},
		  q{SELECT 'prepared', gid FROM pg_prepared_xacts});
}

1;
