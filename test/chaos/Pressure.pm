# Disturbances without signals: locked or rewritten tables, settings, low limits,
# full disks, databases created and dropped, a clock that jumps.  Disturbances
# are as in Blows.pm.

package Pressure;

use strict;
use warnings FATAL => 'all';
use Bounds;
use Wire;

my @tables = qw(job queue handler limiter event_handler unique_key lease archive dead_letter batch step schedule);

sub list
{
	my @list;

	foreach my $table (@tables)
	{
		my $weight = $table =~ /^(job|lease|unique_key|queue|handler)$/ ? 3 : 1;

		push @list,
		  [ "VACUUM FULL of $table", $weight, sub { ddl($_[0], "VACUUM FULL jobq_internal.$table") } ],
		  [ "REINDEX CONCURRENTLY of $table", $weight, sub { ddl($_[0], "REINDEX TABLE CONCURRENTLY jobq_internal.$table") } ],
		  [ "REINDEX of $table", 1, sub { ddl($_[0], "REINDEX TABLE jobq_internal.$table") } ],
		  [ "lock of $table", $weight, sub { lock_table($_[0], $table) } ];
		push @list, [ "CLUSTER of $table", $weight, sub { ddl($_[0], "CLUSTER jobq_internal.$table USING ${table}_pkey") } ]
		  unless $table =~ /archive/;
	}
	push @list,
	  [ 'VACUUM FREEZE', 4, sub { ddl($_[0], 'VACUUM (FREEZE, ANALYZE)') } ],
	  [ 'an old snapshot', 6, \&snapshot ],
	  [ 'an idle transaction with a row of queue', 6, \&idle_row ],
	  [ 'CHECKPOINT', 3, sub { ddl($_[0], 'CHECKPOINT') } ],
	  [ 'restart_workers()', 5, sub { ddl($_[0], 'SELECT jobq.restart_workers()') } ],
	  [ 'pause and resume', 6, \&pause ],
	  [ 'a limiter that is lower for a while', 5, \&lower_limiter ],
	  [ 'queues that are shorter for a while', 5, \&shorter_queues ],
	  [ 'other pools', 6, sub { set($_[0], one("'own=0; *=1'", "'own=0; default=2; *=3'", "'own=0; narrow,fair,*=8'")) } ],
	  [ 'workers that are replaced often', 5, \&short_lives ],
	  [ 'synchronous workers', 4, sub { reload($_[0], 'jobq.synchronous_commit = on') } ],
	  [ 'a lazy WAL writer', 4, sub { reload($_[0], 'wal_writer_delay = 10s', 'wal_writer_flush_after = 1GB') } ],
	  [ 'no database served for a moment', 3, \&unserved ],
	  [ 'tiny settings', 8, \&tiny ],
	  [ 'no place for a worker', 4, \&no_slots ],
	  [ 'no place for a connection', 5, \&no_connections ],
	  [ 'a database that comes and goes', 5, \&database ],
	  [ 'a full disk for data', 5, sub { full($_[0], 'data') } ],
	  [ 'a full disk for WAL', 5, sub { full($_[0], 'wal') } ],
	  [ 'a clock that jumps', 4, \&clock ],
	  [ 'a role that floods', 6, \&flood ];
	return @list;
}

sub one { return $_[ rand @_ ]; }

# Run one statement as superuser, with timeouts.
sub ddl
{
	my ($round, $sql) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s -c statement_timeout=10s')
	  or return 'no connection';
	my $answer = $session->ask($sql);

	$session->ask('RESET ALL');
	# remove the remains of an interrupted REINDEX CONCURRENTLY
	if ($answer->{error} && $sql =~ /CONCURRENTLY/)
	{
		my $left = $session->ask(q{SELECT format('DROP INDEX IF EXISTS %s', indexrelid::regclass) FROM pg_index
			WHERE NOT indisvalid AND indexrelid::regclass::text ~ '_ccnew|_ccold'})->{rows};
		$session->ask($_->[0]) foreach @$left;
	}
	$session->close;
	return $answer->{error};
}

# Lock a table against readers or writers for some time.
sub lock_table
{
	my ($round, $table) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s') or return 'no connection';
	my $mode = one('ACCESS EXCLUSIVE', 'ACCESS EXCLUSIVE', 'EXCLUSIVE', 'SHARE');
	my $answer = $session->ask("BEGIN; LOCK TABLE jobq_internal.$table IN $mode MODE");

	$round->let_go_on(50 + rand 500) unless $answer->{error};
	$session->close;
	return $answer->{error} || $mode;
}

sub snapshot
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres') or return 'no connection';

	$session->ask('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobq_internal.job');
	$round->hold(sub { $session->close });
	return;
}

# Alter a queue in a transaction that stays open for some time.
sub idle_row
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s') or return 'no connection';
	my $queue = one('default', 'narrow', 'grouped', 'outside', 'shared', 'full error', 'full wait', 'heard');
	my $answer = $session->ask("BEGIN; SELECT jobq.alter_queue('$queue', weight => 0)");

	$round->let_go_on(50 + rand 500) unless $answer->{error};
	$session->close;
	return $answer->{error} || $queue;
}

sub pause
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s') or return 'no connection';
	my $queue = one('default', 'narrow', 'grouped', 'fair', 'outside', 'outside grouped', 'shared', 'paced', 'full drop', 'full wait', 'heard');

	$session->ask("SELECT jobq.pause('$queue')");
	$round->let_go_on(rand 400);
	$session->ask("SELECT jobq.resume('$queue')");
	$round->hold(sub { $round->insist("SELECT jobq.resume('$queue')") });
	return $queue;
}

# Lower a limiter below the number of running jobs.  After these have ended,
# never more jobs than allowed may run.
sub lower_limiter
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s') or return 'no connection';
	my $back = q{SELECT jobq.create_limiter('shared', max_running => 2)};

	$session->ask(q{SELECT jobq.create_limiter('shared', max_running => 1)});
	$round->let_go_on(rand 300);
	$session->ask($back);
	$session->close;
	$round->hold(sub { $round->insist($back) });
	return;
}

# Shorten queues below their current number of jobs.
sub shorter_queues
{
	my ($round) = @_;
	my $session = $round->{server}->session('postgres', '-c lock_timeout=2s') or return 'no connection';
	my $queue = one('full error', 'full drop', 'full wait', 'outside full');
	my $back = "SELECT jobq.alter_queue('$queue', max_length => $Bounds::length)";

	$session->ask("SELECT jobq.alter_queue('$queue', max_length => 2)");
	$round->let_go_on(rand 300);
	$session->ask($back);
	$session->close;
	$round->hold(sub { $round->insist($back) });
	return $queue;
}

# Change settings until the next change or the end of the round.
sub reload
{
	my ($round, @lines) = @_;

	$round->{server}->set(@lines);
	my $postmaster = $round->{server}->postmaster;
	kill 'HUP', $postmaster if $postmaster;
	return;
}

sub set
{
	my ($round, $workers) = @_;

	reload($round, "jobq.workers = $workers");
	return $workers;
}

sub short_lives
{
	my ($round) = @_;

	return reload($round, one('jobq.worker_max_age = 1', 'jobq.worker_max_memory = 1'));
}

sub unserved
{
	my ($round) = @_;

	reload($round, "jobq.databases = 'nothing'");
	$round->let_go_on(rand 500);
	reload($round);
	return;
}

# Change settings that take effect at the next start.
sub restart_with
{
	my ($round, @lines) = @_;

	$round->{server}->set(@lines);
	Blows::down($round, Blows::pick_signal());
	$round->{restart} = 1;
	return;
}

sub tiny
{
	my ($round) = @_;

	$round->{scarce} = 1;
	return restart_with($round, 'jobq.ready_entries = 1024', 'jobq.max_workers = 3', "jobq.workers = 'own=0; *=3'");
}

sub no_slots
{
	my ($round) = @_;

	return restart_with($round, 'max_worker_processes = ' . (4 + int rand 2));
}

sub no_connections
{
	my ($round) = @_;
	my @all;

	while (@all < 100)
	{
		my $session = $round->{server}->session('postgres') or last;
		push @all, $session;
	}
	$round->let_go_on(rand 500);
	$_->close foreach @all;
	return scalar(@all) . ' connections';
}

# Create a database, and drop the database while its jobs run.
sub database
{
	my ($round) = @_;
	my $server = $round->{server};
	my $main = $server->session('postgres', '-c statement_timeout=15s') or return 'no connection';
	my $name = 'passing_' . ++$round->{serial};
	my $answer = $main->ask("CREATE DATABASE $name");

	return $answer->{error} if $answer->{error};
	$round->hold(sub { $round->insist("DROP DATABASE IF EXISTS $name WITH (FORCE)") });
	my $other = $server->session('postgres', '', $name) or return 'no connection';
	$other->ask(q{CREATE EXTENSION jobq});
	$other->ask(q{CREATE FUNCTION f() RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(0.01)'; SELECT jobq.register('f', 'f()', max_running => 2)});
	$other->ask(q{SELECT jobq.enqueue_many('f', array_fill('{}'::jsonb, ARRAY[200]))});
	$round->let_go_on(rand 400);
	$other->close;
	$answer = $main->ask("DROP DATABASE $name WITH (FORCE)");
	return $answer->{error};
}

# Create a file that makes the library full.c act.
sub full
{
	my ($round, $what) = @_;
	my $server = $round->{server};

	return 'there is no compiler' unless $server->{preload};
	my $file = "$server->{folder}/full.$what";

	open my $handle, '>', $file or die "$file: $!\n";
	close $handle;
	$round->hold(sub { unlink $file });
	$round->{full}{$what} = 1;
	$round->let_go_on(200 + rand 600);
	unlink $file;
	$server->mend->close;
	return;
}

# Move the clock ahead, and later back; a restart also puts the clock back.
sub clock
{
	my ($round) = @_;

	$round->{clock} = 1;
	my $seconds = 1 + int rand 60;
	my $answer = ddl($round, "SELECT jobq.test_clock('$seconds s')");

	$round->let_go_on(rand 300);
	ddl($round, q{SELECT jobq.test_clock('0')}) if rand() < 0.5;
	return $answer || "$seconds s";
}

# One role enqueues many jobs, the rest a job each: small roles must not run
# last.
sub flood
{
	my ($round) = @_;
	my $server = $round->{server};
	my $tag = "$round->{number}.flood" . ++$round->{serial};
	my $big = $server->session('chaos_2') or return 'no connection';
	my $answer = $big->ask(qq{SELECT count(*) FROM jobq.enqueue_many('chaos.work',
		array_fill('{"tag": "$tag.many", "ms": 2}'::jsonb, ARRAY[600]), max_attempts => 1000)});

	return $answer->{error} if $answer->{error};
	foreach my $role (qw(chaos_1 chaos_3 chaos_4))
	{
		my $small = $server->session($role) or next;
		$small->ask(qq{SELECT jobq.enqueue('chaos.work', '{"tag": "$tag.$role"}', max_attempts => 1000)});
	}
	return;
}

1;
