# The program jobq runs commands for jobs: each job ends in the right state, despite failures of
# the program, the command or the server.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use POSIX ();
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

$JobqTest::max_databases = 8;

my ($node, $jobq) = client_node(q{
jobq.databases = 'postgres, latin'
jobq.default_backoff = 'fixed 1h'
}, allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub start_work
{
	my ($queue, $exec, @options) = @_;

	return start_program($jobq, 'work', $queue, '--exec', $exec, @options);
}

sub work
{
	my $run = start_work(@_);

	return (finish($run) >> 8, $run->{err});
}

# Enqueue a job.  Returns its id.
sub job
{
	my ($queue, $payload, $more) = @_;

	return sql(sprintf q{SELECT jobq.enqueue('any', '%s', queue => '%s'%s)}, $payload || '{}', $queue, $more ? ", $more" : '');
}

sub outcome
{
	my ($id, $columns) = @_;

	return sql('SELECT ' . ($columns || 'state, attempt') . " FROM jobq.status($id)");
}

sql(q{CREATE EXTENSION jobq;
SELECT jobq.create_queue(q, mode => 'consumer') FROM unnest('{a,b,first,second}'::text[]) AS q});

# The environment of a command, and the meaning of its exit status.
my $id = job('a', '{"x": 1}', q{headers => '{"h": 2}'});
is_deeply([ (work('a', 'cat; env | grep ^JOBQ_ >&2; exit 3', '--once')) ]->[0], 0, 'work once');
is(outcome($id), 'retryable|1', 'another exit status: the attempt has failed');
my $environment = outcome($id, 'error');
like($environment, qr/^JOBQ_ID=$id$/m, 'the environment has the id');
like($environment, qr/^JOBQ_HEADERS=\{"h": 2\}$/m, 'the environment has the headers');
like($environment, qr/^JOBQ_ATTEMPT=1$/m, 'the environment has the attempt');
sql("SELECT jobq.retry($id)");
{
	# the environment of the program itself has another trace
	local @ENV{qw(TRACEPARENT TRACESTATE)} = ('00-11111111111111111111111111111111-2222222222222222-00', 'x=1');
	my $trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';

	for my $case ([ qq{{"traceparent": "$trace"}}, "TRACEPARENT=$trace" ], [ '{"traceparent": "00-1\nX=1"}', 'none' ], [ '["traceparent"]', 'none' ])
	{
		my $traced = job('b', '1', "headers => '$case->[0]'");

		work('b', 'env | grep ^TRACE || echo none', '--once');
		is(outcome($traced, q{result #>> '{}'}), $case->[1], "the trace in $case->[0]");
	}
}
work('a', 'cat', '--once');
is(outcome($id, 'state, result'), 'completed|{"x": 1}', 'status 0: completed, with JSON as result');

foreach (
	[ q{echo plain text}, 'completed|1|"plain text"|', 'a text as result' ],
	[ q{echo '[1, 2'}, 'completed|1|"[1, 2"|', 'what looks like JSON only' ],
	[ q{printf 'a\0b\377c'}, "completed|1|\"a\x{ef}\x{bf}\x{bd}b\x{ef}\x{bf}\x{bd}c\"|", 'output that is no text' ],
	[ q{true}, 'completed|1||', 'no output' ],
	[ q{echo bad >&2; exit 100}, 'dead|1||bad', 'status 100: a dead letter' ],
	[ q{exit 75}, 'scheduled|0||', 'status 75: later' ],
	[ q{kill -SEGV $$}, 'retryable|1||the command was ended by signal 11', 'a command that crashes' ],
	[ q{yes | head -c 50000000; yes | head -c 50000000 >&2}, 'completed|1|', 'a flood of output' ],
	[ q{exec >&- 2>&- <&-; exec 3>&-; exit 0}, 'completed|1||', 'all pipes closed at once' ],
	[ q{(trap '' TERM HUP; exec sleep 1000) & echo left; echo $! >}."$dir/left", 'completed|1|"left"|', 'a command that leaves a process behind' ])
{
	my ($command, $expected, $name) = @$_;

	$id = job('a', '{}', "delay => '0'");
	my ($status, $err) = work('a', $command, '--once', '--quiet', '--retry-delay', '1h');
	is($status, 0, "$name: exit status");
	like(outcome($id, 'state, attempt, result, error'), qr/^\Q$expected\E/, $name);
	sql("SELECT jobq.cancel($id)") unless $expected =~ /^(completed|dead)/;
}
ok(wait_for_exit(slurp_file("$dir/left") + 0), 'what a command leaves behind is ended');

# Errors of commands are grouped by the error, without values: of a stack trace, by its last line.
my $trace = q{printf 'at work\nTraceback (most recent call last):\n  File "a.py", line %d\n%s\n' $JOBQ_ID "};
for my $error ('ValueError: no order $JOBQ_ID', 'ValueError: no order $JOBQ_ID', 'KeyError: \'$JOBQ_ID\'')
{
	sql(q{SELECT jobq.enqueue('traced', queue => 'b')});
	work('b', "$trace$error\" >&2; exit 100", '--once', '--quiet');
}
is(sql(q{SELECT string_agg(regexp_replace(split_part(message, E'\n', 4), '\d+', 'N') || ' ' || dead_letters, ', ' ORDER BY dead_letters) FROM jobq.failures WHERE kinds = '{traced}'}),
	q{KeyError: 'N' 1, ValueError: no order N 2}, 'errors of commands are grouped');
sql(q{SELECT jobq.delete_many(kind => 'traced')});
$id = job('a', '"' . 'x' x 1_000_000 . '"');
work('a', 'head -c 1 >/dev/null', '--once');
is(outcome($id), 'completed|1', 'a payload that is not read');

$id = job('a');
my ($status, $err) = work('a', 'echo x', '--once', '--result', 'json');
is(outcome($id, 'state, error'), 'retryable|invalid input syntax for type json', 'a result that must be JSON');
sql("SELECT jobq.cancel($id)");

$id = job('a');
($status, $err) = work('a', '/no/such/command');
is($status, 1, 'a command that is not there ends the program');
like($err, qr{could not run the command: .*/no/such/command}, 'which says so');
is(outcome($id), 'ready|0', 'and the job is not charged');
sql("SELECT jobq.cancel($id)");
is((work('nowhere', 'true'))[0], 1, 'a queue that is not there ends the program');
is((work('a', 'true', '--parallel', '0'))[0], 2, 'a number that is not allowed');

# A database with an encoding that cannot store the output of a command.
sql(q{CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'});
$node->safe_psql('latin', q{CREATE EXTENSION jobq; SELECT jobq.create_queue('a', mode => 'consumer')});
foreach my $case ([ 3, 'retryable' ], [ 100, 'dead' ])
{
	$id = $node->safe_psql('latin', q{SELECT jobq.enqueue('any', queue => 'a')});
	is((work('a', qq{printf '\342\230\203' >&2; exit $case->[0]}, '--once', '-d', 'latin'))[0], 0, "exit status $case->[0] with such an error does not end the program");
	is($node->safe_psql('latin', "SELECT state, attempt, error FROM jobq.status($id)"),
		"$case->[1]|1|its error is a text that the database cannot keep", 'its job has another one');
	$node->safe_psql('latin', "SELECT jobq.cancel($id)");
}

# Standard error of a command appears in the job's log while the command runs, and stays there.
$id = job('a');
my $speaker = start_work('a', qq{printf 'first\\nbad \\377\\000 bytes\\r\\n\\n' >&2; printf 'half ' >&2; while [ ! -e $dir/speak ]; do sleep 0.1; done; printf 'a line\\nthe end' >&2}, '--once', '--quiet');
wait_for($node, 'two lines are seen while it runs', "SELECT state = 'running' AND jsonb_array_length(log) = 2 FROM jobq.jobs WHERE id = $id");
my $followed = '';
my $follower = IPC::Run::start([ $jobq, 'tail', $id ], '<', File::Spec->devnull, '>', \$followed, IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
$follower->pump until $followed =~ /info: bad/;
append_to_file("$dir/speak", 'x');
finish($speaker);
is(outcome($id), 'completed|1', 'it is completed');
is(sql("SELECT string_agg(l ->> 'message', '|' ORDER BY n) FROM jobq.jobs, jsonb_array_elements(log) WITH ORDINALITY AS e (l, n) WHERE id = $id"),
	"first|bad \x{ef}\x{bf}\x{bd}\x{ef}\x{bf}\x{bd} bytes|half a line|the end", 'its lines stay');
$follower->finish;
is(join('|', $followed =~ /info: (.*)/g), "first|bad \x{ef}\x{bf}\x{bd}\x{ef}\x{bf}\x{bd} bytes|half a line|the end", 'who has followed it has seen each once');
$id = job('a');
work('a', 'seq 1 100000 >&2; exit 3', '--once', '--quiet');
is( sql("SELECT jsonb_array_length(log), log -> -1 ->> 'message', error ~ '100000\$' FROM jobq.jobs WHERE id = $id"),
	'100|100000|t', 'of a flood the end');
sql("SELECT jobq.cancel($id)");

# A command exceeds the timeout and ignores SIGTERM.
$id = job('a');
work('a', q{trap '' TERM; while :; do sleep 1; done}, '--once', '--timeout', '300ms', '--grace', '200ms');
is(outcome($id, 'state, error'), 'retryable|the command ran longer than its timeout of 0.3 s', 'a timeout');
sql("SELECT jobq.cancel($id)");
$id = job('a');
work('a', q{exec perl -e '$x = "x" x 200_000_000'}, '--once', '--max-memory', '100');
like(outcome($id, 'state'), qr/retryable/, 'too much memory');
sql("SELECT jobq.cancel($id)");

$id = job('a', '{}', q{headers => jsonb_build_object('h', repeat('x', 200000))});
is((work('a', 'true', '--once', '--quiet'))[0], 0, 'headers that no environment has room for');
is(outcome($id, 'state, attempt, error'), 'retryable|1|its headers are too large for the environment of a command', 'are an error of the job');
sql("SELECT jobq.cancel($id)");

# Queues in strict order, several jobs at a time, until the queues are empty.  --stop-when-empty
# does not wait for a scheduler that has not read a new queue yet.
foreach my $queue ('first', 'second')
{
	job($queue);
	sql("SELECT jobq.ack(id, token) FROM jobq.reserve('{$queue}', wait => '5 min')");
}
job($_) foreach qw(second first second first);
my $order = "$dir/order";
{
	my $run = { err => '' };

	IPC::Run::run([ $jobq, 'work', 'first', 'second', '--exec', "echo \$JOBQ_QUEUE >>$order", '--stop-when-empty', '--quiet' ], '2>', \$run->{err});
	is($run->{err}, '', 'no message with --quiet');
}
is(slurp_file($order), "first\nfirst\nsecond\nsecond\n", 'queues in strict order');
sql(q{SELECT count(*) FROM jobq.enqueue_many('any', array_fill('{}'::jsonb, ARRAY[200]), queue => 'a')});
wait_for($node, 'the scheduler has read them', q{SELECT EXISTS (SELECT FROM jobq_internal.lane_slots() WHERE queue = 'a' AND oldest IS NOT NULL)});
work('a', 'echo $JOBQ_ID', '--stop-when-empty', '--parallel', '8', '--ahead', '20', '--quiet');
is(sql(q{SELECT count(*), count(*) FILTER (WHERE result #>> '{}' = id::text AND attempt = 1) FROM jobq.jobs
		 WHERE queue = 'a' AND state = 'completed' AND id > (SELECT max(id) - 200 FROM jobq.jobs)}),
	'200|200', 'many jobs, each with its own result');

# The batch size of a call.
my @held = map { job('a') } 1 .. 4;
my $taker = start_work('a', "while [ ! -e $dir/batch ]; do sleep 0.1; done", '--max-jobs', '4', '--parallel', '4', '--batch', '3');
wait_for($node, 'four run, of two calls', q{SELECT string_agg(n::text, ' ' ORDER BY n) = '1 3' FROM (SELECT cardinality(job_ids) FROM jobq_internal.lease) AS l (n)});
append_to_file("$dir/batch", 'x');
is(finish($taker), 0, 'it ends after four');

# More jobs at a time than file descriptors.  The program raises the limit if allowed.  Otherwise
# jobs that cannot begin are given back, and running jobs continue.
my @with_few = ('sh', '-c', 'ulimit $0 24; exec "$@"');
my @exec = ('work', 'a', '--exec', "echo x >>$dir/files.began; while [ ! -e $dir/files ]; do sleep 0.1; done", '--parallel', '8');
my @many = map { job('a') } 1 .. 8;
my $few = start_program(@with_few, '-Sn', $jobq, @exec, '--max-jobs', '8');
wait_for($node, 'all have begun', sprintf q{SELECT count(*) = 8 FROM jobq_internal.lease_slots() WHERE job_id IN (%s)}, join(',', @many));
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if -e "$dir/files.began" && length(slurp_file("$dir/files.began")) == 16;
	usleep(100_000);
}
append_to_file("$dir/files", 'x');
is(finish($few), 0, 'the program ends');
is(slurp_file("$dir/files.began"), "x\n" x 8, 'all have run at a time');
unlike($few->{err}, qr/Too many/, 'there is place for all of them');
unlink "$dir/files";
@many = map { job('a') } 1 .. 8;
$few = start_program(@with_few, '-n', $jobq, @exec, '--retry-delay', '100ms');
says($few, qr/could not start a process: Too many open files/, 'not all can begin');
append_to_file("$dir/files", 'x');
wait_for($node, 'all are done, each at its first attempt',
	sprintf q{SELECT count(*) = 8 FROM jobq.jobs WHERE id IN (%s) AND state = 'completed' AND attempt = 1}, join(',', @many));
kill('TERM', pid_of($few));
is(finish($few), 0, 'the program ends');

# Progress, and the extension of a lease.
$id = job('a');
my $run = start_work('a', qq{echo progress 40 loading >&3; while [ ! -e $dir/go ]; do sleep 0.1; done}, '--once', '--lease', '30s');
wait_for($node, 'progress is told', "SELECT progress = 40 AND message = 'loading' FROM jobq.status($id)");
my $began = sql(q{SELECT lease_until FROM jobq_internal.lease_slots()});
wait_for($node, 'the lease is extended', "SELECT lease_until > '$began'::timestamptz + interval '1 s' FROM jobq_internal.lease_slots()");
append_to_file("$dir/go", 'x');
is(finish($run), 0, 'the program ends after one job');
is(outcome($id), 'completed|1', 'in one attempt');

# After a long wait, the program runs a job with a timeout shorter than this wait.
$run = start_work('a', 'echo run', '--once', '--lease', '60s');
wait_for($node, 'the program waits for long', q{SELECT count(*) > 0 FROM pg_stat_activity
	WHERE application_name = 'jobq' AND query ~ 'jobq[.]reserve' AND state = 'active' AND query_start < clock_timestamp() - interval '7 s'});
$id = job('a', '{}', q{timeout => '6 s', max_attempts => 1});
finish($run);
is(outcome($id, 'state, result'), 'completed|"run"', 'its lease is counted from when it was given');

# A job timeout below the lease: the command is ended at the timeout.
$id = job('a', '{}', q{timeout => '5 s', backoff => 'fixed 1ms', max_attempts => 2});
work('a', "echo begin >>$dir/limited; sleep 100; echo end >>$dir/limited", '--parallel', '2', '--max-jobs', '2', '--lease', '20s');
is(slurp_file("$dir/limited"), "begin\n" x 2, 'a command does not run on when the timeout of its job is over');
wait_for($node, 'the second lease is over', "SELECT state = 'dead' FROM jobq.status($id)");
like(outcome($id, 'state, attempt, error'), qr/^dead\|2\|.*timeout/, 'which has failed');

# A program with long jobs claims no jobs ahead if their timeout would expire before they begin.
# With --ahead, the program gives the jobs back in time.
foreach my $ahead ([], [ '--ahead', '1' ])
{
	my @ids = map { job('a', '{}', q{timeout => '10 s', max_attempts => 1}) } 1, 2;

	work('a', 'sleep 6', '--max-jobs', '2', @$ahead);
	is(sql(sprintf q{SELECT count(*) FROM jobq.jobs WHERE id IN (%s) AND state = 'completed'}, join(',', @ids)), 2, "two jobs, one after the other @$ahead");
}

# If jobs take longer than earlier jobs, the jobs claimed ahead are given back.
{
	my @quick = map { job('a') } 1 .. 30;
	my @long = map { job('a', '"long"') } 1 .. 10;
	my $mixed = start_work('a', qq{if [ "\$(cat)" = '"long"' ]; then echo x >>$dir/long; while [ ! -e $dir/long.end ]; do sleep 0.1; done; fi}, '--max-jobs', '40', '--quiet');

	wait_for_file("$dir/long", 'one that takes long has begun');
	wait_for($node, 'no other is held', q{SELECT count(*) = 1 FROM jobq_internal.lease_slots()});
	append_to_file("$dir/long.end", 'x');
	is(finish($mixed), 0, 'the program ends after all');
	is(sql(sprintf q{SELECT count(*) FROM jobq.jobs WHERE id IN (%s) AND state = 'completed' AND attempt = 1}, join(',', @quick, @long)), 40, 'all are completed');
}

# A long message, cut inside a multibyte character.
$id = job('a');
$run = start_work('a', "printf 'progress 40 %062d\\303\\251 more\\n' 0 >&3; while [ ! -e $dir/cut ]; do sleep 0.1; done", '--once');
wait_for($node, 'progress is told with a part of its message', "SELECT progress = 40 AND message LIKE '000%' FROM jobq.status($id)");
append_to_file("$dir/cut", 'x');
finish($run);

# The end of a job is reported although another job reports progress all the time.  The pipe is
# large, to always have unread data.
append_to_file("$dir/flood", 'fcntl(STDOUT, 1031, 1 << 20); $_ = "progress 50\n" x 5000; 1 while syswrite STDOUT, $_;');
my @pair = map { job('a') } 1, 2;
$run = start_work('a', "if mkdir $dir/busy 2>/dev/null; then perl $dir/flood >&3 & while [ ! -e $dir/told ]; do sleep 0.1; done; else while [ ! -e $dir/say ]; do sleep 0.1; done; echo x >>$dir/pair; echo said >&2; fi",
	'--parallel', '2', '--max-jobs', '2', '--lease', '20s');
wait_for($node, 'one of two reports progress', sprintf q{SELECT count(*) = 1 FROM jobq.jobs WHERE id IN (%s) AND progress = 50}, join(',', @pair));
my $leases = sprintf 'FROM jobq_internal.lease_slots() WHERE job_id IN (%s)', join(',', @pair);
my $latest = sql("SELECT max(lease_until) $leases");
wait_for($node, 'both leases are extended all the same', "SELECT count(*) = 2 AND min(lease_until) > '$latest' $leases");
append_to_file("$dir/say", 'x');
wait_for($node, 'the other has ended', sprintf q{SELECT count(*) = 1 FROM jobq.jobs WHERE id IN (%s) AND state = 'completed'}, join(',', @pair));
append_to_file("$dir/told", 'x');
is(finish($run), 0, 'the program ends');
is(slurp_file("$dir/pair"), "x\n", 'that was run once');
is(sql(sprintf 'SELECT DISTINCT state, attempt FROM jobq.jobs WHERE id IN (%s)', join(',', @pair)), 'completed|1', 'both are completed');

# SIGTERM: running jobs may end, and jobs not begun are given back.  The second SIGTERM ends the
# running commands.
foreach my $again (0, 1)
{
	my $stop = "$dir/stop$again";
	my @ids = map { job('b') } 1 .. 3;

	$run = start_work('b', qq{echo x >>$stop.began; while [ ! -e $stop ]; do sleep 0.1; done}, '--ahead', '2');
	wait_for($node, 'three are held', q{SELECT count(*) = 3 FROM jobq_internal.lease_slots()});
	wait_for_file("$stop.began", 'the first has begun');
	kill('TERM', pid_of($run));
	wait_for($node, 'two are given back', q{SELECT count(*) = 1 FROM jobq_internal.lease_slots()});
	if ($again)
	{
		kill('TERM', pid_of($run));
	}
	else
	{
		append_to_file($stop, 'x');
	}
	is(finish($run), 0, 'the program ends');
	is(sql(sprintf 'SELECT string_agg(state, \',\' ORDER BY id), sum(attempt) FROM jobq.jobs WHERE id IN (%s)', join(',', @ids)),
		$again ? 'ready,ready,ready|0' : 'completed,ready,ready|1', $again ? 'all are given back' : 'one is completed');
	sql(q{SELECT jobq.cancel_many(queue => 'b', state => 'waiting')});
}

# A signal to both the program and its command is no failure of the job, in either order.  The
# command dies by the signal, exits by itself, or is killed.  The lease is long, to show which jobs
# are given back.
foreach my $case (
	[ 'command', 'TERM', 'exec sleep 1000' ],
	[ 'program', 'TERM', 'exec sleep 1000' ],
	[ 'command', 'TERM', q{trap 'exit 143' TERM; sleep 1000 & wait} ],
	[ 'command', 'INT', 'exec sleep 1000' ],
	[ 'command', 'HUP', 'exec sleep 1000' ],
	[ 'command', 'QUIT', 'exec sleep 1000' ])
{
	my ($first, $signal, $command) = @$case;
	my $name = "SIG$signal to both, the $first first ($command)";

	unlink "$dir/both";
	$id = job('b', '{}', 'max_attempts => 1');
	$run = start_work('b', "echo \$\$ >$dir/both; $command", '--lease', '10min');
	wait_for_file("$dir/both", 'the command runs');
	my @both = (pid_of($run), slurp_file("$dir/both") + 0);
	kill($signal, $first eq 'program' ? @both : reverse @both);
	is(finish($run), 0, "$name: the program ends");
	is(outcome($id), 'ready|0', "$name: the job is given back");
	sql("SELECT jobq.cancel($id)");
}
foreach my $case (
	[ 'kill -KILL $$', 'ready|0', 'a command that is killed once the program is to stop' ],
	[ 'echo bad >&2; exit 3', 'dead|1', 'a command that fails by itself then' ],
	[ 'echo done', 'completed|1', 'a command that ends well then' ])
{
	my ($command, $expected, $name) = @$case;

	unlink "$dir/asked", "$dir/asks";
	$id = job('b', '{}', 'max_attempts => 1');
	$run = start_work('b', "echo x >$dir/asks; while [ ! -e $dir/asked ]; do sleep 0.1; done; $command");
	wait_for_file("$dir/asks", 'the command runs');
	kill('TERM', pid_of($run));
	says($run, qr/stopping when what runs has ended/, 'the program is to stop');
	append_to_file("$dir/asked", 'x');
	is(finish($run), 0, "$name: the program ends");
	is(outcome($id), $expected, $name);
	sql("SELECT jobq.cancel_many(queue => 'b', state => 'waiting')");
}
foreach my $signal ('TERM', 'INT')
{
	$id = job('b', '{}', 'max_attempts => 1');
	work('b', "kill -$signal \$\$; sleep 1000", '--once');
	like(outcome($id, 'state, attempt, error'), qr/^dead\|1\|the command was ended by signal \d+$/, "SIG$signal to the command alone is a failure");
}
$id = job('b', '{}', 'max_attempts => 1');
$run = start_program('nohup', $jobq, 'work', 'b', '--exec', "echo x >$dir/nohup; while [ ! -e $dir/nohup.end ]; do sleep 0.1; done", '--once');
wait_for_file("$dir/nohup", 'the command runs');
kill('HUP', pid_of($run));
append_to_file("$dir/nohup.end", 'x');
is(finish($run), 0, 'a program under nohup ends after its job');
unlike($run->{err}, qr/stopping/, 'and does not stop because of a hang-up');
is(outcome($id), 'completed|1', 'the job is completed');
sql(q{SELECT jobq.delete_many(state => 'dead')});

# As process 1 of a container, the program inherits orphans of its commands.  prctl() has the same
# effect here.
my ($prctl) = map { /^x86_64/ ? 157 : /^aarch64/ ? 167 : () } (POSIX::uname())[4];
SKIP:
{
	skip 'the number of prctl() is not known here', 4 unless $prctl;
	$id = job('b');
	$run = start_program('perl', '-e', "syscall($prctl, 36, 1, 0, 0, 0) == 0 or die; exec \@ARGV or die",
		$jobq, 'work', 'b', '--exec', "setsid sh -c 'echo \$\$ >$dir/orphan; sleep 0.5' & while [ ! -s $dir/orphan ]; do sleep 0.1; done");
	wait_for($node, 'the command has ended', "SELECT state = 'completed' FROM jobq.status($id)");
	wait_for_file("$dir/orphan", 'it has left an orphan');
	ok(wait_for_exit(slurp_file("$dir/orphan") + 0), 'which is no zombie when it has ended');
	kill('TERM', pid_of($run));
	is(finish($run), 0, 'the program ends');
}

# The program is killed: the job runs again after the lease has expired.
$id = job('a');
$run = start_work('a', "echo \$\$ >$dir/child; exec sleep 1000", '--lease', '5s');
wait_for_file("$dir/child", 'the command runs');
kill('KILL', pid_of($run));
finish($run);
wait_for($node, 'the lease is over', "SELECT state = 'ready' FROM jobq.status($id)");
is(outcome($id, 'attempt'), '0', 'and the job comes again, without a charge');
kill('KILL', slurp_file("$dir/child") + 0);
sql("SELECT jobq.cancel($id)");

# The program is stopped for longer than the lease: its result is refused.
$id = job('a', '{}', q{backoff => 'fixed 1ms'});
$run = start_work('a', "echo x >$dir/began; while [ ! -e $dir/end ]; do sleep 0.1; done; echo late", '--once', '--lease', '5s');
wait_for_file("$dir/began", 'the command runs');
kill('STOP', pid_of($run));
append_to_file("$dir/end", 'x');
wait_for($node, 'the lease is over', "SELECT state IN ('retryable', 'ready') FROM jobq.status($id)");
is((work('a', 'echo in time', '--once'))[0], 0, 'another takes the job');
kill('CONT', pid_of($run));
finish($run);
like($run->{err}, qr/job $id \(any\): its lease is over/, 'the first is told that its lease is over');
is(outcome($id, 'state, attempt, result'), 'completed|1|"in time"', 'and the other has done it');

# A stopped command is ended at its timeout.
$id = job('a', '{}', q{max_attempts => 1});
$run = start_work('a', "echo \$\$ >$dir/asleep; kill -STOP \$\$; echo awake", '--once', '--timeout', '5s', '--grace', '1s');
wait_for_file("$dir/asleep", 'the command runs, and stops');
finish($run);
is(outcome($id, 'state, attempt'), 'dead|1', 'it has not done its job');
is(kill(0, slurp_file("$dir/asleep") + 0), 0, 'and is gone');
sql(q{SELECT jobq.delete_many(state => 'dead')});

# The server is stopped for longer than the lease.  The job runs again after the command, which
# ignores SIGTERM, has been killed; the program sleeps until then.
$id = job('a', '{}', q{backoff => 'fixed 1ms'});
my $used = (times)[2] + (times)[3];
$run = start_work('a', "if [ -e $dir/first ]; then echo second; else trap '' TERM; echo x >$dir/first; sleep 1000; fi", '--max-jobs', '2', '--lease', '5s', '--grace', '3s');
wait_for_file("$dir/first", 'the command runs');
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my @server = ($postmaster, split(' ', `ps -o pid= --ppid $postmaster`));
kill('STOP', @server);
says($run, qr/job $id \(any\): its lease is over; what runs for it is ended/, 'who has the job does not wait for a server that is stopped');
kill('CONT', @server);
is(finish($run), 0, 'the program ends after two');
cmp_ok((times)[2] + (times)[3] - $used, '<', 1, 'it sleeps while it waits');
is(outcome($id, 'state, attempt, result'), 'completed|1|"second"', 'and the second has done it');

# A connection that stops responding.
$run = start_work('a', 'echo taken', '--once', '--lease', '5s');
my $waits = q{SELECT max(pid) FROM pg_stat_activity WHERE application_name = 'jobq' AND query ~ 'jobq[.]reserve'};
wait_for($node, 'the program waits for a job', "SELECT ($waits AND wait_event_type = 'Extension') IS NOT NULL");
my $silent = sql($waits);	# it does so again and again
ok(stop_at_rest($node, $silent), 'its connection goes silent');
says($run, qr/the connection is lost: the server does not answer/, 'which it does not wait for');
kill('CONT', $silent);
ok(wait_for_exit($silent), 'nobody waits there any more');
$id = job('a');
is(finish($run), 0, 'the program ends after a job');
is(outcome($id, 'state, attempt, result'), 'completed|1|"taken"', 'which it has taken on another one');

# The connections are cut, and the server is restarted, while commands run.
$id = job('a');
$run = start_work('a', "echo x >$dir/runs; while [ ! -e $dir/over ]; do sleep 0.1; done; echo still here", '--once', '--lease', '10min');
wait_for_file("$dir/runs", 'the command runs');
sql(q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'jobq' AND pid <> pg_backend_pid()});
wait_for($node, 'the program comes back', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'jobq'});
$node->stop('immediate');
$node->start;
append_to_file("$dir/over", 'x');
is(finish($run), 0, 'the program ends after its job');
is(outcome($id, 'state, attempt, result'), 'completed|1|"still here"', 'which was done once');
like($run->{err}, qr/the connection is lost: .*trying again.*connected again, to/s, 'the program has said so');

# The server is lost for good, and a standby replaces it.
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$id = job('a');
$run = start_work('a', "echo x >$dir/moves; while [ ! -e $dir/moved ]; do sleep 0.1; done; echo moved",
	'--once', '--lease', '10min', '-d', sprintf('host=%s,%s port=%s,%s dbname=postgres target_session_attrs=read-write',
		map { $standby->$_, $node->$_ } qw(host port)));
wait_for_file("$dir/moves", 'the command runs for the one that can be written to');
$node->wait_for_catchup('standby', 'replay', $node->lsn('insert'));
$node->stop('immediate');
says($run, qr/the connection is lost.*no connection: .*trying again/s, 'the server is lost');
$standby->promote;
says($run, qr/(connected again, to \S+ port @{[$standby->port]}\n.*){2}/s, 'the program finds the other');
append_to_file("$dir/moved", 'x');
is(finish($run), 0, 'the program ends after its job');
is($standby->safe_psql('postgres', "SELECT state, attempt, result FROM jobq.status($id)"), 'completed|1|"moved"', 'which was done once');

$standby->stop;
no_failed_assertion($node, $standby);
done_testing();
