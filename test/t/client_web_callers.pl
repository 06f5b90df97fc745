# jobq web: revoked tokens, many sessions, Authorization headers of a proxy, and limits on the
# memory for callers.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IO::Select;
use JSON::PP ();
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($node, $jobq) = web_node();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $patience = $PostgreSQL::Test::Utils::timeout_default;

# A connection closed by the server must not end the test.
local $SIG{PIPE} = 'IGNORE';

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(qq{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN;
CREATE ROLE boss LOGIN;
CREATE ROLE other LOGIN;
CREATE ROLE @{[ 'r' x 63 ]} LOGIN;
SELECT jobq.grant_privilege('app'), jobq.grant_privilege('boss', 'manage'), jobq.grant_privilege('other'), jobq.grant_privilege('@{[ 'r' x 63 ]}');
SELECT jobq.create_queue('c', mode => 'consumer', open => true)});

my ($token, $taken, $other) = map { "Abcdefghijklmnopqrstuvwx$_" } 0 .. 2;

token_file("$dir/tokens", "$token user=" . 'r' x 64);
like(refused($jobq, '--listen', '127.0.0.1:0', '--token-file', "$dir/tokens"), qr/^2: .*line 1: a role's name has no more than 63 bytes/, 'a name that is too long is none for a token');
like(refused($jobq, '--listen', '127.0.0.1:0', '--hide-payload', 'app,' . 'r' x 64), qr/^2: .*--hide-payload: a role's name has no more than 63 bytes/, 'nor one whose payloads are to be hidden');
token_file("$dir/tokens", "$token user=app", "$taken user=app");
my $server = serve($jobq, '--token-file', "$dir/tokens", '--allow-trust', '--connections', 1);
my $http = HTTP::Tiny->new(timeout => $patience, max_redirect => 0);
my $json = JSON::PP->new->utf8;

sub ask
{
	my ($method, $path, $body, %headers) = @_;

	$headers{'Content-Type'} = 'application/json' if defined $body;
	my $answer = $http->request($method, "$server->{url}$path",
		{ headers => \%headers, defined $body ? (content => $json->encode($body)) : () });
	return ($answer->{status}, eval { $json->decode($answer->{content}) }, $answer->{headers});
}

sub status_of { return (ask(@_))[0]; }

sub log_in
{
	my ($role, $query) = @_;
	my ($status, $session, $headers) = ask('POST', '/api/session' . ($query || ''), { role => $role, password => 'x' });
	my ($cookie) = ($headers->{'set-cookie'} || '') =~ /^([^;]+)/;

	return ($status, Cookie => $cookie, 'X-CSRF-Token' => $session->{csrf});
}

sub request_text
{
	my ($what, $secret, $body) = @_;

	return "$what HTTP/1.1\r\nHost: 127.0.0.1\r\n" . ($secret ? "Authorization: Bearer $secret\r\n" : '')
	  . (defined $body ? "Content-Type: application/json\r\nContent-Length: " . length($body) . "\r\n\r\n$body" : "\r\n");
}

# Whether the server closes the connection, or has ended its response.
sub ends
{
	my ($socket) = @_;

	my $last = qr/(?:^|\n)0\r\n\r\n/;

	return hear($socket, $last) =~ $last || (IO::Select->new($socket)->can_read(0) && !sysread($socket, my $byte, 1));
}

# Streams and waiting consumers end when their token is revoked.  Other tokens are not affected.
my %follows = map { $_ => raw($server, request_text('GET /api/events?topics=queues', $_)) } $token, $taken;
like(hear($follows{$_}, qr/"name":"c"/), qr/event: queues/, 'queues are followed') foreach $token, $taken;
my $waits = raw($server, request_text('POST /api/reserve', $taken, '{"queues": ["c"], "wait": "60 s"}'));
wait_for($node, 'a consumer waits',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'jobq web' AND state = 'active' AND query LIKE 'SELECT r.queue, r.id%'});
token_file("$dir/tokens", "$token user=app");
$server->{process}->signal('HUP');
like(hear($waits, qr/\}/), qr/^HTTP\/1.1 401/, 'a consumer whose token is taken away waits no more');
ok(ends($follows{$taken}), 'and is told of nothing any more');
is(status_of('GET', '/api/session', undef, Authorization => "Bearer $taken"), 401, 'it is nobody');
sql(q{SELECT jobq.pause('c')});
like(hear($follows{$token}, qr/"name":"c","paused":true/), qr/event: queues/, 'who has another one is told all the same');
sql(q{SELECT jobq.resume('c')});

# Tokens still in the file keep their connections across reloads.
my @more;
for my $n (1 .. 3)
{
	token_file("$dir/tokens", "$token user=app", "$other$n user=other");
	$server->{process}->signal('HUP');
	my $end = time + $patience;
	usleep(20_000) while status_of('GET', '/api/session', undef, Authorization => "Bearer $other$n") != 200 && time < $end;
	push @more, raw($server, request_text('GET /api/events?topics=overview', $token));
	like(hear($more[-1], qr/"ready" ?:/), qr/event: overview/, 'the file was read, and somebody follows more');
}
wait_for($node, 'all with a token share its connection', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'jobq web' AND usename = 'app'});
token_file("$dir/tokens", "$token user=other");
$server->{process}->signal('HUP');
ok(ends($follows{$token}), 'who has a token that stands for another role is told of nothing as the first one');
close $_ foreach $waits, values %follows, @more;

# Behind a proxy with an extra password.
my ($status, %app) = log_in('app');
is($status, 200, 'a role logs in');
my %basic = (Authorization => 'Basic eDp5');
is(status_of('GET', '/api/session', undef, %app, %basic), 200, 'the session counts, whatever a server before has asked for');
($status, my %boss) = log_in('boss');
is(status_of('POST', '/api/queues/c/pause', undef, Cookie => $boss{Cookie}, %basic), 403, 'nothing is changed without the CSRF token');
is(status_of('POST', '/api/queues/c/pause', undef, %boss, %basic), 200, 'but with it');
is(status_of('GET', '/api/session', undef, %basic), 401, 'that password is none of ours');
is(status_of('GET', '/api/session', undef, %app, Authorization => 'Bearer nothing'), 401, 'a wrong token counts before a session');

# A role with too many logins loses its own sessions only.
my ($first, @sessions) = (\%app);
for (1 .. 100)
{
	($status, my %session) = log_in('app');
	push @sessions, \%session if $status == 200;
}
is(scalar @sessions, 100, 'a role logs in a hundred times');
is(join(' ', map { status_of('GET', '/api/session', undef, %$_) } $first, $sessions[0], $sessions[-1]), '401 200 200', 'that which was used longest ago has ended');
is((log_in('app', '?x=1'))[0], 400, 'a log-in that fails');
is(status_of('GET', '/api/session', undef, %{ $sessions[1] }), 200, 'ends none');
is(status_of('GET', '/api/session', undef, %boss), 200, 'others have theirs');
is((log_in('other'))[0], 200, 'and log in');

# A role name above 63 bytes is refused: the server would truncate the name, and limits count by
# name.
is((log_in('r' x 63))[0], 200, 'a role with a long name');
is((log_in('r' x 64))[0], 400, 'a name that is too long is none');

# Little is kept for unauthenticated callers, and nothing beyond the data of a valid request.
token_file("$dir/tokens", "$token user=app");
$server->{process}->signal('HUP');
my $large = 'x' x 100_000;
my $chunks = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" . ("2000\r\n" . 'x' x 8192 . "\r\n") x 3 . "0\r\n\r\n";
my $begin = 'POST /api/session HTTP/1.1';
like(hear(raw($server, "$begin\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"), qr/\}/), qr/^HTTP\/1.1 413/, 'a long log-in is refused before it comes');
like(hear(raw($server, "$begin\r\nHost: 127.0.0.1\r\n$chunks"), qr/\}/), qr/^HTTP\/1.1 413/, 'or when it has come');
for my $path ('/', '/healthz')
{
	like(hear(raw($server, "GET $path HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"), qr/\}/), qr/^HTTP\/1.1 413/, "GET $path has no body");
	like(hear(raw($server, "GET $path HTTP/1.1\r\nHost: 127.0.0.1\r\n$chunks"), qr/\}/), qr/^HTTP\/1.1 413/, 'whatever is said of its length');
}
my $end = time + $patience;
usleep(20_000) while ($status = status_of('POST', '/api/jobs', { kind => 'x', queue => 'c', payload => $large }, Authorization => "Bearer $token")) == 401 && time < $end;
is($status, 202, 'who is known sends more');

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends');

# The memory for callers with slow reads or slow uploads is limited.  Slow callers are cut off, and
# a reading caller gets the whole response.
token_file("$dir/tokens", "$token user=app", "$other user=other");
my $large_job = sql(q{SET ROLE app; SELECT jobq.enqueue('x', jsonb_build_object('x', repeat('x', 10000000)), queue => 'c')});
sql(q{CREATE FUNCTION same(p jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT p'; SELECT jobq.register('x', 'same(jsonb)');
	SET ROLE app; SELECT count(jobq.schedule('s' || n, '@yearly', 'x', jsonb_build_object('x', repeat('x', 150000)))) FROM generate_series(1, 20) n});
sub files_of { return scalar(() = glob '/proc/' . web_pid($_[0]) . '/fd/*'); }
sub memory_of { return (slurp_file('/proc/' . web_pid($_[0]) . '/status') =~ /VmHWM:\s*(\d+) kB/)[0] / 1000; }

# Read a job of 10 MB.  $meanwhile runs in a pause after each half megabyte.  Repeat a request that
# fails: no caller may have been slow enough to be cut off yet, or this test was too slow.
sub whole_job
{
	my ($run, $meanwhile) = @_;
	my $end = time + $patience;

	while (time < $end)
	{
		my $socket = raw($run, request_text("GET /api/jobs/$large_job", $token));
		my ($heard, $paused) = ('', 0);

		while ($heard !~ /\}$/ && IO::Select->new($socket)->can_read($patience) && sysread($socket, $heard, 65536, length $heard))
		{
			next if length $heard < $paused + 500_000;
			$paused = length $heard;
			$meanwhile->();
		}
		return length $heard if $heard =~ /^HTTP\/1.1 200.*\}$/s;
		usleep(200_000);
	}
	return 0;
}

my $lots = request_text('POST /api/jobs', $token, '{"kind": "x", "queue": "c", "payload": "' . 'x' x 999_900 . '"}');
for my $case ([ 40, request_text("GET /api/jobs/$large_job", $token), 'answers of 10 MB', 300 ],
	[ 80, request_text('GET /api/events?topics=schedules', $token), 'events of 3 MB', 250 ],
	[ 300, substr($lots, 0, -1000), 'bodies of 1 MB', 200 ])
{
	my ($n, $text, $what, $most) = @$case;
	my $run = serve($jobq, '--token-file', "$dir/tokens", '--allow-trust');
	my $files = files_of($run);
	my @slow;

	if ($what =~ /answers/)
	{
		# at most as many at a time as there are connections, to avoid waits; some responses report
		# a lack of room
		while (@slow < $n)
		{
			push @slow, map { deaf($run, $text) } 1 .. 4;
			IO::Select->new($_)->can_read($patience) foreach @slow[ -4 .. -1 ];
		}
	}
	else
	{
		@slow = map { raw($run, $text) } 1 .. $n;
		my $begun = time;

		# at first few of the connections have been accepted
		my $open;
		usleep(50_000) while (($open = files_of($run)) < $files + 8 && time < $begun + 15)
		  || ($open > $files + $n / 2 && time < $begun + $patience);
		cmp_ok($open, '<=', $files + $n / 2, "$what: most of those who do not go on are cut off");
	}
	like(hear(raw($run, request_text('GET /api/queues', $other)), qr/\]\}/), qr/^HTTP\/1.1 200/, 'another role is answered');

	# uploads continue while a caller reads, at the same pace, and new uploads need more memory
	my $meanwhile = sub {
		$_->syswrite(' ') foreach @slow;
		push @slow, raw($run, $text);
	};
	cmp_ok(whole_job($run, $what =~ /bodies/ ? $meanwhile : sub { }), '>', 10_000_000, 'a caller that reads gets all of it');
	cmp_ok(memory_of($run), '<', $most, "$what: within $most MB");
	$run->{process}->signal('TERM');
	close $_ foreach @slow;
	ok($run->{process}->finish, 'it ends');
}

# Debug messages of the server for a role do not reach the log.
sql(q{ALTER ROLE app SET client_min_messages = debug5});
$server = serve($jobq, '--token-file', "$dir/tokens", '--max-body', 3_000_000);
is(status_of('GET', '/api/jobs', undef, Authorization => "Bearer $token"), 200, 'a role has its server say much');

# A connection keeps memory for a large body that was sent.  Connections without such memory stay for
# a minute.
is(status_of('POST', '/api/jobs', { kind => 'x', queue => 'c', payload => 'x' x 2_500_000 }, Authorization => "Bearer $token"), 202, 'a large body');
my $answered = time;
wait_for($node, 'the connections close', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'jobq web' AND usename = 'app')});
cmp_ok(time - $answered, '<', 45, 'a connection that has sent a large body closes soon');
$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends');
unlike($server->{err}, qr/notice|warning/, 'and none of it is said');

# If the connection that listens is lost each time soon after it was made, the pauses grow.
$server = serve($jobq);
my $lost = sql(q{
DO $$ DECLARE n int := 0; until timestamptz := clock_timestamp() + '8 s'; BEGIN
	WHILE clock_timestamp() < until LOOP
		n := n + (SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE application_name ~ '^jobq' AND usename = current_user AND pid <> pg_backend_pid());
		PERFORM pg_sleep(0.02), pg_stat_clear_snapshot();
	END LOOP;
	PERFORM set_config('test.lost', n::text, false);
END $$;
SELECT current_setting('test.lost')});
cmp_ok($lost, '>', 0, 'connections that listen are lost');
cmp_ok($lost, '<=', 12, 'they are not made again at once');
$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends');
$node->stop;
no_failed_assertion($node);
done_testing();
