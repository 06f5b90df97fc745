# The program jobq settles each job once, even if the server does not respond or accepts only some
# of the settlements.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IO::Select;
use IO::Socket::UNIX;
use JobqDisturbed;
use JobqProgram;
use JobqTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $jobq) = client_node(q{jobq.databases = 'postgres'});
my $dir = PostgreSQL::Test::Utils::tempdir();
my $slow_link;

# Kill the relay at the end, even after a failure.
END { kill('KILL', $slow_link) if $slow_link; }

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub start_work
{
	my ($exec, @options) = @_;

	return start_program($jobq, 'work', 'a', '--exec', $exec, @options);
}

# Enqueue n jobs.  Returns their ids, separated by commas.
sub some_jobs
{
	my ($n, $payload) = @_;

	return join(',', split(/\n/, sql(sprintf q{SELECT jobq.enqueue('any', '%s', queue => 'a') FROM generate_series(1, %d)}, $payload // '{}', $n)));
}

sub lines { return -e $_[0] ? scalar(split(/\n/, slurp_file($_[0]))) : 0; }

# Wait until the server log has the pattern this many times, from $offset on.  Returns success.
sub logged
{
	my ($offset, $pattern, $times) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if $times <= (() = slurp_file($node->logfile, $offset) =~ /$pattern/g);
		select(undef, undef, undef, 0.1);
	}
	return 0;
}

sub completed
{
	my ($ids) = @_;

	return sql("SELECT count(*) FROM jobq.jobs WHERE id IN ($ids) AND state = 'completed' AND attempt = 1");
}

sql(q{CREATE EXTENSION jobq;
SELECT jobq.create_queue('a', mode => 'consumer', open => true);
CREATE ROLE lone LOGIN;
SELECT jobq.grant_privilege('lone')});

# No job can be settled for longer than a lease, because of no response or an error.  The program
# runs only a few jobs, and holds them until the server accepts.
my $locker = $node->background_psql('postgres');
my ($ids, $run);
foreach my $case ([ 'none', 'does not answer' ], [ '500ms', 'could not settle job \d+: canceling statement due to lock timeout' ])
{
	my ($timeout, $says) = @$case;
	my $ran = "$dir/ran.$timeout";
	my $offset = -s $node->logfile;
	local $ENV{PGOPTIONS} = $timeout eq 'none' ? '' : "-c lock_timeout=$timeout";

	$ids = some_jobs(50);
	$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive IN ACCESS EXCLUSIVE MODE');
	$run = start_work("echo x >>$ran", '--max-jobs', '50', '--ahead', '0', '--lease', '12s', '--quiet');
	says($run, $timeout eq 'none' ? qr/($says.*){4}/s : qr/$says/, "it is told: timeout $timeout");
	ok($timeout eq 'none' || logged($offset, qr/canceling statement due to lock timeout/, 10), 'again and again');
	cmp_ok(lines($ran), '<=', 4, 'who cannot tell how jobs have ended takes no more');
	$locker->query_safe('COMMIT');
	is(finish($run), 0, 'the program ends after all');
	is(completed($ids), 50, 'all are completed, each at its first attempt');
	is(lines($ran), 50, 'and were run once');
	unlike($run->{err}, qr/its lease is over/, 'no lease was over');
}

# A commit may fail after the server has answered: then the job is not settled.
foreach my $code ('54000', 'JQ002')
{
	$ids = some_jobs(1);
	fail_commits($node, 14, $code);
	$run = start_work("echo x >>$dir/commits.$code", '--once', '--lease', '10s', '--quiet');
	says($run, qr/could not settle job $ids: it cannot commit/, "a commit fails with $code");
	is(finish($run), 0, 'the program ends after all');
	is(completed($ids), 1, 'the job is completed at its first attempt');
	is(lines("$dir/commits.$code"), 1, 'and was run once');
	let_commit($node);
}

# The server refuses the settlement of some jobs: other jobs run meanwhile.
my $tagged = q{SELECT string_agg(jobq.enqueue('any', queue => 'a', tags => '{one}')::text, ',') FROM generate_series(1, %d)};
refuse_ends($node);
$ids = sql(sprintf $tagged, 1);
$run = start_work('true', '--ahead', '0', '--lease', '60s', '--quiet', '--max-jobs', '33');
wait_for($node, 'a job is completed', "SELECT state = 'completed' FROM jobq.jobs WHERE id = $ids");
my $refused = sql(sprintf $tagged, 12);
says($run, qr/could not settle job \d+: duplicate key/, 'the end of others is refused');
$ids = some_jobs(20);
wait_for($node, 'others are completed', "SELECT count(*) = 20 FROM jobq.jobs WHERE id IN ($ids) AND state = 'completed'");
is(sql("SELECT string_agg(DISTINCT state || attempt, ' ') FROM jobq.jobs WHERE id IN ($refused)"), 'running1', 'while those are held');
take_ends($node);
is(finish($run), 0, 'the program ends');
is(completed($refused), 12, 'when they are taken, they are completed, too');

# A result above the size limit of the server is an error; the program does not send the JSON as
# text instead.
{
	local $ENV{PGOPTIONS} = '-c jobq.max_payload=1kB';

	$ids = some_jobs(1);
	$run = start_work(q{printf '["%0*d"]' 2000 0}, '--once', '--quiet');
	says($run, qr/job $ids .*: failed: result of \d+ bytes is larger/, 'a large result is an error');
	is(finish($run), 0, 'the program ends');
	sql("SELECT jobq.cancel($ids)");
}

# Large results are sent a few at a time.
$ids = some_jobs(6);
$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive IN ACCESS EXCLUSIVE MODE');
$run = start_work("head -c 600000 /dev/zero | tr '\\0' x; echo x >>$dir/large", '--max-jobs', '6', '--parallel', '6', '--quiet');
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if lines("$dir/large") == 6;
	select(undef, undef, undef, 0.1);
}
$locker->query_safe('COMMIT');
is(finish($run), 0, 'the program ends after all');
is(completed($ids), 6, 'all are completed');
cmp_ok(sql("SELECT max(n) FROM (SELECT count(*) AS n FROM jobq_internal.archive WHERE id IN ($ids) GROUP BY xmin::text) AS t"), '<=', 2,
	'no transaction has many large results');

# A slow link, on which a result takes longer than the response timeout.
{
	my $path = PostgreSQL::Test::Utils::tempdir_short();
	my $listener = IO::Socket::UNIX->new(Local => "$path/.s.PGSQL.5432", Listen => 10) or die "listen: $!";

	$slow_link = fork() // die "fork: $!";
	if ($slow_link == 0)
	{
		my $select = IO::Select->new($listener);
		my (%peer, %is_client);

		while (1)
		{
			foreach my $from ($select->can_read)
			{
				if ($from == $listener)
				{
					my $client = $listener->accept or next;
					my $server = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or next;

					@peer{ $client, $server } = ($server, $client);
					$is_client{$client} = 1;
					$select->add($client, $server);
					next;
				}
				my $to = $peer{$from} or next;

				if (sysread($from, my $bytes, 50_000))
				{
					syswrite($to, $bytes);
					select(undef, undef, undef, length($bytes) / 200_000) if $is_client{$from} && length $bytes > 10_000;
					next;
				}
				$select->remove($from, $to);
				delete @peer{ $from, $to };
				close($_) foreach $from, $to;
			}
		}
		POSIX::_exit(0);
	}
	close($listener);
	$ids = some_jobs(1);
	$run = start_program($jobq, '-h', $path, '-p', '5432', 'work', 'a', '--exec', "head -c 1500000 /dev/zero | tr '\\0' x", '--once',
		'--max-output', '2000000', '--lease', '20s');
	is(finish($run), 0, 'the program ends, over a slow link');
	is(completed($ids), 1, 'the job is completed');
	unlike($run->{err}, qr/does not answer/, 'its result was sent once');
	kill('KILL', $slow_link);
	waitpid($slow_link, 0);
	undef $slow_link;
}

# With one connection left, the program uses this connection to settle jobs, although a wait for
# jobs is in progress there.
my $own = q{FROM pg_stat_activity WHERE usename = 'lone'};
$ids = sql(q{SET ROLE lone; SELECT jobq.enqueue('any', queue => 'a')});
$run = start_work("echo x >>$dir/lone; while [ ! -e $dir/lone.end ]; do sleep 0.1; done", '-U', 'lone', '--max-jobs', '2', '--parallel', '2');
wait_for_file("$dir/lone", 'a command runs');
wait_for($node, 'the program waits for another job', "SELECT count(*) = 1 $own AND query ~ 'jobq[.]reserve' AND state = 'active'");
sql(q{ALTER ROLE lone CONNECTION LIMIT 1});
sql("SELECT pg_terminate_backend(pid) $own AND query !~ 'jobq[.]reserve'");
says($run, qr/no connection: .*too many connections/, 'one of its connections cannot be made again');
append_to_file("$dir/lone.end", 'x');
wait_for($node, 'the job is completed all the same', "SELECT state = 'completed' FROM jobq.status($ids)");
my $other = sql(q{SET ROLE lone; SELECT jobq.enqueue('any', queue => 'a')});
is(sql("SELECT count(*) $own"), 1, 'there is no other connection');
sql(q{ALTER ROLE lone CONNECTION LIMIT -1});
is(finish($run), 0, 'the program ends after another job');
is(completed("$ids,$other"), 2, 'both are completed');

# A cancelled job takes no log lines from another job, although one statement writes the lines of
# both.  Both gather lines while the settlement of a third job waits, until the job is cancelled.
my ($talker, $counter) = (some_jobs(1, '"talk"'), some_jobs(1, '"count"'));
$run = start_work(qq{case "\$(cat)" in
	'"talk"') while :; do echo talk >&2; sleep 0.1; done ;;
	'"count"') for i in \$(seq 50); do echo \$i >&2; echo \$i >>$dir/count; sleep 0.2; done; while [ ! -e $dir/counted ]; do sleep 0.1; done ;;
	esac}, '--max-jobs', '3', '--parallel', '3', '--lease', '60s');
wait_for($node, 'both have lines', sprintf q{SELECT count(*) = 2 FROM jobq.jobs WHERE id IN (%s) AND jsonb_array_length(log) > 2}, "$talker,$counter");
$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive IN ACCESS EXCLUSIVE MODE');
my $third = some_jobs(1);
wait_for($node, 'the end of a third one is not told', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'jobq[.]ack' AND wait_event_type = 'Lock'});
my $said = lines("$dir/count");
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	last if lines("$dir/count") > $said + 3 || lines("$dir/count") == 50;
	select(undef, undef, undef, 0.1);
}
$locker->query_safe("SELECT jobq.cancel($talker)");
$locker->query_safe('COMMIT');
says($run, qr/job $talker \(any\): its lease is over; what runs for it is ended/, 'who runs a job that was cancelled learns of it');
is(sql("SELECT state FROM jobq.status($counter)"), 'running', 'before the other has ended');
append_to_file("$dir/counted", 'x');
is(finish($run), 0, 'the program ends');
is(sql("SELECT string_agg(l ->> 'message', ' ' ORDER BY n) FROM jobq.jobs, jsonb_array_elements(log) WITH ORDINALITY AS e (l, n) WHERE id = $counter"),
	join(' ', 1 .. 50), 'all that the other has said is in its log');
is(completed("$counter,$third"), 2, 'and it is completed, as is the third');

# A repeated error does not fill the log.  The program retries, and works once the cause is gone.
foreach my $case (
	[ 'default_transaction_read_only = on', qr/ERROR:  cannot execute .* in a read-only transaction/, qr/in a read-only transaction/ ],
	[ q{idle_session_timeout = '200ms'}, qr/FATAL:  terminating connection due to idle-session timeout/, qr/the connection is lost/ ],
	[ q{statement_timeout = '2s'}, qr/ERROR:  canceling statement due to statement timeout/, qr/statement timeout/ ])
{
	my ($setting, $logged, $said) = @$case;
	my ($name) = split / /, $setting;
	my $offset = -s $node->logfile;

	sql("ALTER ROLE lone SET $setting");
	$run = start_work('true', '-U', 'lone', '--once', '--quiet');
	ok(logged($offset, $logged, $name eq 'statement_timeout' ? 1 : 13), "$name: it comes again and again");
	sql("ALTER ROLE lone RESET $name");
	$ids = sql(q{SET ROLE lone; SELECT jobq.enqueue('any', queue => 'a')});
	sql("SELECT pg_terminate_backend(pid) $own") if $name eq 'default_transaction_read_only';
	is(finish($run), 0, "$name: the program works when it is over");
	my $lines = () = $run->{err} =~ /$said/g;
	cmp_ok($lines, '<', 12, "$name: it has said so a few times only") or diag($run->{err});
}

# Leases are extended together, and so stay in one row.
$ids = some_jobs(10);
$run = start_work("while [ ! -e $dir/held ]; do sleep 0.1; done", '--max-jobs', '10', '--parallel', '10', '--lease', '20s', '--quiet');
wait_for($node, 'all are held', q{SELECT count(*) = 10 FROM jobq_internal.lease_slots()});
my $until = sql(q{SELECT max(lease_until) FROM jobq_internal.lease});
wait_for($node, 'one row holds them for longer', "SELECT count(*) = 1 AND max(cardinality(job_ids)) = 10 FROM jobq_internal.lease WHERE lease_until > '$until'");
append_to_file("$dir/held", 'x');
is(finish($run), 0, 'the program ends');
is(completed($ids), 10, 'all are completed');

$locker->quit;
no_failed_assertion($node);
done_testing();
