# A hot standby: commands that read, followers, jobq top and the console's requests work there, and changes are
# refused.  Errors that repeat are told once.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IPC::Run ();
use JSON::PP ();
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $jobq) = web_node('', allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', q{CREATE EXTENSION jobq;
CREATE ROLE app LOGIN;
SELECT jobq.grant_privilege('app', 'manage');
CREATE FUNCTION same(p jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT p';
CREATE FUNCTION bad(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this is not good'; END $$;
SELECT jobq.register('same', 'same(jsonb)'), jobq.register('bad', 'bad(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('outside', mode => 'consumer'), jobq.create_limiter('payments', max_running => 5), jobq.schedule('nightly', '30 4 * * *', 'same')});
my ($done, $dead, $waits, $flow) = split /\n/, $node->safe_psql('postgres', q{
SET ROLE app;
SELECT jobq.enqueue('same', '{"n": 1}');
SELECT jobq.enqueue('bad');
SELECT jobq.enqueue('parcel', queue => 'outside', options => '{"watch": true}');
SELECT jobq.create_workflow('{"name": "flow", "steps": [{"name": "one", "kind": "same"}, {"name": "two", "kind": "same", "needs": ["one"]}]}')});
$node->safe_psql('postgres', "SELECT jobq.wait($done, '5 min'), jobq.wait($dead, '5 min')");
wait_for($node, 'the workflow has ended', "SELECT finished_at IS NOT NULL FROM jobq.batches WHERE id = $flow");
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
sub caught_up { $node->wait_for_catchup('standby', 'replay', $node->lsn('insert')); return; }
caught_up();

my $at = $standby->connstr('postgres') . ' user=app';
sub run_there
{
	my (@words) = @_;
	my ($out, $err);

	IPC::Run::run([ $jobq, @words, '-d', $at ], '<', File::Spec->devnull, '>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($? >> 8, $out, $err);
}

# Commands that read.
foreach my $case (
	[ qr/ $done +completed/, 'list' ], [ qr/^ *$dead .*this is not good/m, 'dead' ], [ qr/this is not good/, 'failures' ], [ qr/completed/, 'show', $done ],
	[ qr/./, 'explain', $waits ], [ qr/completed/, 'history', $done ], [ qr/^outside /m, 'queues' ], [ qr/same/, 'kinds' ], [ qr/./, 'workers' ],
	[ qr/nightly/, 'schedules' ], [ qr/flow/, 'batches' ], [ qr/^one +completed.*\n.*two +completed/, 'workflow', $flow ], [ qr/enqueue|./, 'audit' ],
	[ qr/^jobq_jobs/m, 'metrics' ], [ qr/completed/, 'wait', $done ], [ qr/completed/, 'tail', $done ])
{
	my ($pattern, @words) = @$case;
	my ($status, $out, $err) = run_there(@words);

	is($status, 0, "@words");
	like($out, $pattern, "@words: the output");
	is($err, '', "@words: no message");
}
like((run_there('doctor'))[1], qr/standby|severity|warning|no problem/i, 'doctor');
foreach my $words ([qw(enqueue parcel --queue outside)], [ 'cancel', $waits ], [qw(pause outside)], [ 'retry', $dead ])
{
	my ($status, $out, $err) = run_there(@$words);

	is($status, 1, "@$words is refused");
	like($err, qr/error: cannot execute .* (?:in a read-only transaction|during recovery)/, "@$words: the message");
}

# The console's requests.
my $token = 'Abcdefghijklmnopqrstuvwx0';
token_file("$dir/tokens", "$token user=app");
my $server = serve($jobq, '--token-file', "$dir/tokens", '-d', $standby->connstr('postgres'));
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);

sub ask
{
	my ($method, $path, $body) = @_;

	return $http->request($method, "$server->{url}/api/$path", { headers => { Authorization => "Bearer $token", defined $body ? ('Content-Type' => 'application/json') : () },
		defined $body ? (content => $body) : () });
}

foreach my $path (
	qw(session overview series rates rates?by=kind usage limits limiters limiters/payments runs monitors queues queues/outside kinds kinds/same workers schedules schedules/nightly
	failures dead jobs jobs?order=run_at&state=ready jobs?order=-finished_at audit doctor batches), "batches/$flow", "jobs/$done", "jobs/$done/history", "jobs/$waits/explain", "jobs/$dead")
{
	my $answer = ask('GET', $path);

	is($answer->{status}, 200, $path) or diag($answer->{content});
}
my $refused = ask('POST', 'jobs', '{"kind": "parcel", "queue": "outside"}');
is("$refused->{status} " . JSON::PP::decode_json($refused->{content})->{sqlstate}, '403 25006', 'a change is refused');

# The live screen.
SKIP:
{
	skip 'Perl has no IO::Pty, or the program no ncurses', 2 if !eval { require IO::Pty; require JobqScreen; 1 } || qx('$jobq' top </dev/null 2>&1) =~ /without ncurses/;
	my $top = JobqScreen->new(24, 80, $jobq, 'top', '-d', $at);

	ok($top->shows(qr/^outside +consumer /m), 'jobq top shows the queues') or diag($top->text);
	$top->type('q');
	is($top->finish, 0, 'and ends');
}

# A follower of the job sees what the standby has replayed.
my ($out, $err) = ('', '');
my $tail = IPC::Run::start([ $jobq, 'tail', $waits, '-d', $at ], '<', File::Spec->devnull, '>', \$out, '2>', \$err, IPC::Run::timeout($JobqTest::file_timeout));
$tail->pump until $out =~ /ready/ || $err ne '';
my ($stream, $seen) = ('', '');
my $web = IPC::Run::start([ 'perl', '-MHTTP::Tiny', '-e', q{$| = 1; HTTP::Tiny->new(timeout => 600)->get($ARGV[0], { headers => { Authorization => "Bearer $ARGV[1]" }, data_callback => sub { print $_[0] } })},
		"$server->{url}/api/jobs/$waits/events", $token ], '<', File::Spec->devnull, '>', \$stream, '2>', \$seen, IPC::Run::timeout($JobqTest::file_timeout));
$web->pump until $stream =~ /"state" ?: ?"ready"/ || $seen ne '';
$node->safe_psql('postgres', q{SELECT jobq.ack(id, token, '{"done": true}') FROM jobq.reserve('{outside}', wait => '5 min')});
$tail->finish;
is($tail->result(0), 0, 'tail ends with the job');
like($out, qr/ready(?:.*\n)+.*completed.*\n\{"done": true\}/, 'and shows its states');
is($err, '', 'without a message');
$web->pump until $stream =~ /"state" ?: ?"completed"/ || !$web->pumpable;
like($stream, qr/"state" ?: ?"completed"/, 'the stream of the job, too');
$web->kill_kill;
unlike($server->{err}, qr/error/, 'the server of the console has told no error');

# Consumers back off, with one line for each change.
my $work = IPC::Run::start([ $jobq, 'work', 'outside', '--exec', 'true', '-d', $at ], '<', File::Spec->devnull, '>', \$out, '2>', \my $told, IPC::Run::timeout($JobqTest::file_timeout));
$work->pump until $told =~ /read-only|recovery/;
my $attempts = q{SELECT pg_stat_get_db_xact_rollback(oid) FROM pg_database WHERE datname = 'postgres'};
my $before = $standby->safe_psql('postgres', $attempts);
wait_for($standby, 'the program has tried some more times', "SELECT ($attempts) > $before + 3");
$standby->promote;
$node->stop('immediate');
$standby->safe_psql('postgres', q{SET ROLE app; SELECT jobq.enqueue('parcel', queue => 'outside')});
wait_for($standby, 'the job is done after the promotion', q{SELECT count(*) = 0 FROM jobq.live_jobs WHERE queue = 'outside'});
$work->signal('TERM');
$work->finish;
is(scalar(() = $told =~ /read-only|recovery/g), 1, 'the error was told once') or diag($told);
is(scalar(() = $told =~ /jobs can be reserved again/g), 1, 'and its end');

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'the server of the console ends');
$standby->stop;
no_failed_assertion($standby);
done_testing();
