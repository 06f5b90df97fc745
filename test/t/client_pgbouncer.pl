# The program jobq works through pgbouncer: no job is lost or completed twice when pgbouncer is
# killed or hangs, or when many consumers share few connections.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqPooler;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($node, $jobq) = client_node();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $pooler;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Start "jobq work" through the pooler; without the pooler if the first option is "direct".
sub start_work
{
	my ($queue, $exec, @options) = @_;
	my @where = ('-h', $pooler->{dir}, '-p', $pooler->{port}, '-U', $pooler->{user});

	@where = () if @options && $options[0] eq 'direct' && shift @options;
	return start_program($jobq, 'work', $queue, '--exec', $exec, @where, @options);
}

sub job { return sql("SELECT jobq.enqueue('any', queue => '$_[0]', backoff => 'fixed 1ms')"); }

sub outcome { return sql("SELECT state, attempt, result FROM jobq.status($_[0])"); }

# Start a consumer for a job of queue "a".  The command runs until the file $name exists.
sub start_one
{
	my ($name, @options) = @_;
	my $id = job('a');
	my $run = start_work('a', "echo x >$name.begun; while [ ! -e $name ]; do sleep 0.1; done; echo late", '--once', @options);

	wait_for_file("$name.begun", 'a command runs');
	return ($id, $run);
}

# Send SIGTERM repeatedly, because two pending signals count once.
sub end_at_once
{
	my ($run) = @_;

	while ($run->{handle}->pumpable)
	{
		kill('TERM', pid_of($run));
		$run->{handle}->pump_nb;
		usleep(100_000);
	}
	finish($run);
	return;
}

# The server gets no message from the consumer, and another consumer completes the job.
sub another_does
{
	my ($id) = @_;

	wait_for($node, 'its lease is over', "SELECT state IN ('ready', 'retryable') FROM jobq.status($id)");
	is(finish(start_work('a', 'echo in time', 'direct', '--once')), 0, 'another takes the job');
	return;
}

sql(q{CREATE EXTENSION jobq;
SELECT jobq.create_queue(q, mode => 'consumer') FROM unnest('{a,b}'::text[]) AS q});

foreach my $mode (qw(transaction session))
{
	$pooler = JobqPooler->new($node, pool_mode => $mode, default_pool_size => 4);

	# pgbouncer is killed while a command runs
	my ($id, $run) = start_one("$dir/$mode.killed", '--lease', '10min');
	$pooler->stop('KILL');
	says($run, qr/the connection is lost.*the connection is lost/s, "$mode: both connections are lost");
	$pooler->start;
	says($run, qr/connected again.*connected again/s, 'and made again');
	append_to_file("$dir/$mode.killed", 'x');
	is(finish($run), 0, 'the program ends after its job');
	is(outcome($id), 'completed|1|"late"', 'which was done once');

	# pgbouncer hangs for longer than the lease: the program ends the command
	($id, $run) = start_one("$dir/$mode.still", '--lease', '5s');
	$pooler->signal('STOP');
	says($run, qr/job $id \(any\): its lease is over; what runs for it is ended/, 'the program knows when its lease is over');
	another_does($id);
	$pooler->signal('CONT');
	finish($run);
	is(outcome($id), 'completed|1|"in time"', 'it is done by the other only');

	# the command has ended, but the acknowledgement comes too late
	($id, $run) = start_one("$dir/$mode.late", '--lease', '5s');
	$pooler->signal('STOP');
	append_to_file("$dir/$mode.late", 'x');
	another_does($id);
	$pooler->signal('CONT');
	is(finish($run), 0, 'the program ends');
	like($run->{err}, qr/job $id \(any\): its lease is over/, 'it is told that its lease is over');
	is(outcome($id), 'completed|1|"in time"', 'what it says late is not believed');

	# the program is told to end while the pooler does not respond
	next if $mode eq 'session';
	($id, $run) = start_one("$dir/$mode.ended", '--lease', '5s', '--grace', '200ms');
	$pooler->signal('STOP');
	end_at_once($run);
	pass('the program ends, though the pooler does not answer');
	another_does($id);
	$pooler->signal('CONT');
	is(outcome($id), 'completed|1|"in time"', 'its job is not lost');
}
continue
{
	$pooler->stop;
}

# More consumers wait than there are connections: a consumer can still settle its jobs before the
# lease expires.
$pooler = JobqPooler->new($node, pool_mode => 'transaction', default_pool_size => 2);
my @waiting = map { start_work('a', 'true') } 1 .. 8;
wait_for($node, 'consumers wait', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE '%jobq.reserve(%' AND state = 'active' AND pid <> pg_backend_pid()});
my @ids = map { job('b') } 1 .. 5;
my $run = start_work('b', 'true', '--parallel', '5', '--max-jobs', '5', '--lease', '30s');
is(finish($run), 0, 'there are jobs for another one');
is(sql(q{SELECT count(*), sum(attempt) FROM jobq.jobs WHERE queue = 'b' AND state = 'completed'}), '5|5', 'who waits keeps nobody from settling');

# The remaining consumers wait longer each time: they do not poll.
kill('TERM', map { pid_of($_) } @waiting[1 .. 7]);
finish($_) foreach @waiting[1 .. 7];
wait_for($node, 'one waits for more than two seconds at a time',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%jobq.reserve(%' AND state = 'active' AND pid <> pg_backend_pid() AND clock_timestamp() - query_start > '2 s'});
my $id = job('a');
wait_for($node, 'and takes what comes', "SELECT state = 'completed' FROM jobq.status($id)");
kill('TERM', pid_of($waiting[0]));
is(finish($waiting[0]), 0, 'it ends');

$pooler->stop;
$node->stop;
no_failed_assertion($node);
done_testing();
