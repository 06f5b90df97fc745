# The program jobq delivers jobs over HTTP: to servers with a good, bad, slow, oversized or missing
# response.

use strict;
use warnings FATAL => 'all';
use Digest::SHA qw(hmac_sha256_base64);
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IO::Socket::INET;
use POSIX ();
use IPC::Run ();
use JobqProgram;
use JobqTest;
use JobqWeb qw(serve);
use MIME::Base64 qw(decode_base64);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($node, $jobq) = client_node(q{jobq.default_backoff = 'fixed 1h'});
delete @ENV{qw(http_proxy https_proxy all_proxy)};
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Run "jobq work" until the queue is empty.  Returns exit status and standard error.
sub work
{
	my ($url, @options) = @_;
	my $err;

	IPC::Run::run(
		[ $jobq, 'work', 'web', '--http', $url, '--stop-when-empty', @options ],
		'<', File::Spec->devnull, '>', File::Spec->devnull, '2>', \$err,
		IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default));
	return ($? >> 8, $err);
}

sub job
{
	my ($payload, $more) = @_;

	return sql(sprintf q{SELECT jobq.enqueue(E'any\nX-Evil: 1', '%s', queue => 'web'%s)}, $payload || '{}', $more ? ", $more" : '');
}

sub outcome
{
	my ($id) = @_;

	return sql("SELECT state, attempt, result, left(error, 60) FROM jobq.status($id)");
}

# A server with a behaviour for each path.  The server stores each request.
my $listener = IO::Socket::INET->new(Listen => 20, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die $!;
my $base = 'http://127.0.0.1:' . $listener->sockport;

sub answer
{
	my ($socket, $path) = @_;

	if ($path eq '/hang') { 1 while <$socket>; }
	elsif ($path eq '/slow') { syswrite $socket, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"; sleep 1 while syswrite $socket, 'x'; }
	elsif ($path eq '/stops') { usleep(100_000) until -e "$dir/breaks"; }
	elsif ($path eq '/break') { print $socket "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nx"; }
	elsif ($path eq '/nothing') { }
	elsif ($path eq '/noise') { print $socket "\x00\xff" x 10000; }
	elsif ($path eq '/flood') { print $socket "HTTP/1.1 200 OK\r\n\r\n"; my $much = 'x' x 1_000_000; print $socket $much or last for 1 .. 1000; }
	elsif ($path eq '/redirect') { print $socket "HTTP/1.1 307 x\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path eq '/circle') { print $socket "HTTP/1.1 307 x\r\nLocation: /circle\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path eq '/file') { print $socket "HTTP/1.1 307 x\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path eq '/elsewhere') { print $socket "HTTP/1.1 307 x\r\nLocation: http://localhost:" . $listener->sockport . "/ok\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path =~ m{^/later/(.*)}) { print $socket "HTTP/1.1 503 x\r\nRetry-After: " . $1 =~ s/_/ /gr . "\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path eq '/later') { print $socket "HTTP/1.1 503 x\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"; }
	elsif ($path eq '/harm') { my $harm = "\e[31mx\njobq: job 1 (any): done"; print $socket "HTTP/1.1 500 x\r\nContent-Length: " . length($harm) . "\r\n\r\n$harm"; }
	elsif ($path eq '/umlauts') { print $socket "HTTP/1.1 500 x\r\nContent-Length: 1001\r\n\r\nx" . "\xc3\xbc" x 500; }
	elsif ($path =~ m{^/(\d+)}) { print $socket "HTTP/1.1 $1 x\r\nContent-Length: 6\r\n\r\nsorry\n"; }
	else { print $socket "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"ok\": true}"; }
	return;
}

my $server = fork();
if ($server == 0)
{
	local $SIG{CHLD} = 'IGNORE';
	local $SIG{ALRM} = 'DEFAULT';

	while (my $socket = $listener->accept)
	{
		next if fork();
		local $SIG{PIPE} = 'IGNORE';
		while (defined(my $line = <$socket>))
		{
			my ($path) = $line =~ m{^POST (\S+)} or last;
			my $request = $line;
			my $body = '';

			$request .= $line while defined($line = <$socket>) && $line ne "\r\n";
			my ($length) = $request =~ /^Content-Length: (\d+)/mi;
			read($socket, $body, $length || 0);
			open my $file, '>>', "$dir/requests" or die $!;
			syswrite $file, "$request\r\n$body\n--\n";
			answer($socket, $path);
			$socket->flush;
			last unless $path =~ m{^/(ok|redirect|circle|\d+)$};
		}
		POSIX::_exit(0);
	}
	POSIX::_exit(0);
}

END { local $?; kill 'KILL', $server if $server; }

sql(q{CREATE EXTENSION jobq; SELECT jobq.create_queue('web', mode => 'consumer')});
# the program does not wait for a new scheduler
wait_for_scheduler($node);
sql(q{SELECT jobq.enqueue('first', queue => 'web')});
sql(q{SELECT jobq.ack(id, token) FROM jobq.reserve('{web}', wait => '5 min')});
my $id = job('{"x": 1}');
my ($status, $err) = work("$base/ok");

SKIP:
{
	skip 'the program jobq was built without libcurl', 1 if $err =~ /built without libcurl/;

	# Requests.
	append_to_file("$dir/secret", "geheim \n");
	is($status, 0, 'a request') or diag($err);
	is(outcome($id), 'completed|1|{"ok": true}|', 'status 200: completed, with JSON as result');
	unlink "$dir/requests";
	$id = job('{"y": 2}', q{headers => '{"trace": "a\r\nb"}'});
	work("$base/ok", '--http-secret', "$dir/secret");
	my $request = slurp_file("$dir/requests");
	like($request, qr{^Content-Type: application/json\r$}m, 'the type of the body');
	like($request, qr{^Jobq-Id: $id\r$}m, 'the id');
	like($request, qr{^Jobq-Attempt: 1\r$}m, 'the attempt');
	like($request, qr{^Jobq-Kind: any%0AX-Evil%3A%201\r$}m, 'a kind cannot make a header of its own');
	unlike($request, qr{^X-Evil}m, 'indeed not');
	unlike($request, qr{^traceparent}mi, 'no trace');
	like($request, qr{^Idempotency-Key: jobq-$id\r$}m, 'a key that is the same for all attempts');
	like($request, qr/\r\n\r\n\{"y": 2\}\n--/, 'the payload is the body');
	my ($timestamp) = $request =~ /^webhook-timestamp: (\d+)\r$/m;
	my $signature = hmac_sha256_base64("jobq-$id.$timestamp." . '{"y": 2}', 'geheim');
	$signature .= '=' while length($signature) % 4;
	like($request, qr{^webhook-signature: v1,\Q$signature\E\r$}m, 'the signature');
	# the secret of the test vectors of Standard Webhooks, also used by test/client/webhook.c
	append_to_file("$dir/whsec", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
	unlink "$dir/requests";
	$id = job('{"test": 2432232314}');
	work("$base/ok", '--http-secret', "$dir/whsec");
	$request = slurp_file("$dir/requests");
	($timestamp) = $request =~ /^webhook-timestamp: (\d+)\r$/m;
	$signature = hmac_sha256_base64("jobq-$id.$timestamp." . '{"test": 2432232314}', decode_base64('MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'));
	like($request, qr{^webhook-signature: v1,\Q$signature\E=\r$}m, 'the signature with a secret of Standard Webhooks');
	my $trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
	unlink "$dir/requests";
	job('{"y": 3}', qq{headers => '{"traceparent": "$trace"}'});
	work("$base/ok");
	like(slurp_file("$dir/requests"), qr{^traceparent: $trace\r$}m, 'the trace of a job');
	unlink "$dir/requests";
	job('{"y": 4}', q{headers => '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nX-Evil: 1"}'});
	work("$base/ok");
	unlike(slurp_file("$dir/requests"), qr{^(?:traceparent|X-Evil)}m, 'and none that would be more than one');

	# Responses.
	foreach (
		[ '/204', [], 'completed|1', 'another good status' ],
		[ '/500', [], 'retryable|1||HTTP status 500: sorry', 'an error of the server' ],
		[ '/umlauts', [], 'retryable|1||HTTP status 500: x' . "\xc3\xbc" x 10, 'a long error, cut in the middle of a character' ],
		[ '/404', [], 'dead|1||HTTP status 404: sorry', 'an error of ours: a dead letter' ],
		[ '/404', ['--http-retry-4xx'], 'retryable|1||HTTP status 404', 'which is tried again if that is asked for' ],
		[ '/429', [], 'retryable|1||HTTP status 429', 'too many requests' ],
		[ '/later', [], 'scheduled|0||', 'Retry-After is obeyed, and no attempt charged' ],
		[ '/redirect', [], 'retryable|1||HTTP status 307', 'a redirect is not followed' ],
		[ '/redirect', [ '--http-redirects', 1 ], 'completed|1|{"ok": true}', 'a redirect that may be followed' ],
		[ '/circle', [ '--http-redirects', 3 ], 'retryable|1||HTTP status 307', 'a circle of redirects' ],
		[ '/file', [ '--http-redirects', 3 ], 'retryable|1||HTTP status 307', 'a redirect to a file' ],
		[ '/elsewhere', [ '--http-redirects', 3 ], 'retryable|1||HTTP status 307', 'a redirect to another host' ],
		[ '/hang', [ '--timeout', '300ms' ], 'retryable|1||no answer: Timeout was reached', 'no answer' ],
		[ '/slow', [ '--timeout', '300ms' ], 'retryable|1||no answer: Timeout was reached', 'a slow answer' ],
		[ '/break', [], 'retryable|1||no answer: ', 'an answer that breaks off' ],
		[ '/nothing', [], 'retryable|1||no answer: ', 'a connection that is closed' ],
		[ '/noise', [], 'retryable|1||no answer: ', 'no HTTP' ],
		[ '/flood', [ '--max-output', 1000 ], 'completed|1|"xxxx', 'an answer of 1 GB' ],
		[ '/ok', ['--http-public-only'], q{retryable|1||no answer: Couldn't connect to server}, 'an address of a private network' ])
	{
		my ($path, $options, $expected, $name) = @$_;

		$id = job();
		($status, $err) = work("$base$path", @$options, '--retry-delay', '1h');
		is($status, 0, "$name: exit status");
		like(outcome($id), qr/^\Q$expected\E/, $name);
		sql("SELECT jobq.cancel($id)");
	}
	foreach my $value ('0', 'Fri,_31_Dec_1999_23:59:59_GMT', '3122064000', 'Fri,_31_Dec_2128_23:59:59_GMT')
	{
		$id = job();
		work("$base/later/$value");
		is(sql("SELECT attempt, run_at < clock_timestamp() + interval '1 day' FROM jobq.jobs WHERE id = $id"), '0|t', "Retry-After: $value");
		sql("SELECT jobq.cancel($id)");
	}
	$id = job();
	(undef, $err) = work("$base/harm");
	like($err, qr/job $id \(any\\nX-Evil: 1\): failed: HTTP status 500: \\x1B\[31mx\\njobq: job 1/, 'what others have written is one line of what it says');
	unlike($err, qr/\e|^(?!jobq: job $id)/m, 'and none of its own');
	sql("SELECT jobq.cancel($id)");
	ok(sql(q{SELECT max(length(result #>> '{}')) FROM jobq.jobs WHERE result::text LIKE '"xxx%'}) <= 1000,
		'of a long answer so much is kept as was said');

	# TLS: a trusted certificate, an untrusted certificate, and a certificate for another host.
	my $tls = IPC::Run::run([ 'sh', '-c', 'command -v openssl' ], '>', File::Spec->devnull) && IPC::Run::run(
		[   qw(openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout),
			"$dir/key", '-out', "$dir/cert" ], '2>', File::Spec->devnull) && serve($jobq, '--tls-cert', "$dir/cert", '--tls-key', "$dir/key");
	SKIP:
	{
		skip 'there is no server with TLS: no openssl, or no libmicrohttpd', 3 unless $tls && $tls->{port};
		foreach (
			[ 'localhost', [ '--http-ca', "$dir/cert" ], 'dead|1||HTTP status 4', 'a certificate that is trusted: there is an answer' ],
			[ 'localhost', [], 'retryable|1||no answer: SSL ', 'one that is not' ],
			[ '127.0.0.1', [ '--http-ca', "$dir/cert" ], 'retryable|1||no answer: SSL ', 'one of another host' ])
		{
			my ($host, $options, $expected, $name) = @$_;

			$id = job();
			work("https://$host:$tls->{port}/nothing", @$options);
			like(outcome($id), qr/^\Q$expected\E/, $name);
			sql("SELECT jobq.cancel($id)");
		}
	}

	# Many requests at a time; a request hangs.
	sql(q{SELECT count(*) FROM jobq.enqueue_many('any', array_fill('{}'::jsonb, ARRAY[200]), queue => 'web')});
	wait_for($node, 'the scheduler has read them', q{SELECT EXISTS (SELECT FROM jobq_internal.lane_slots() WHERE queue = 'web' AND oldest IS NOT NULL)});
	work("$base/ok", '--parallel', '20', '--quiet');
	is(sql(q{SELECT count(*) FROM jobq.jobs WHERE state <> 'completed' AND kind = 'any'}), '0', 'many requests');

	# After the second SIGTERM the program aborts its requests and gives their jobs back.
	$id = job();
	my $run = IPC::Run::start([ $jobq, 'work', 'web', '--http', "$base/hang", '--timeout', '1h' ], '2>', \my $said);
	wait_for($node, 'a job is held', q{SELECT count(*) = 1 FROM jobq_internal.lease_slots()});
	# two pending signals count once, so repeat the signal
	while ($run->pumpable)
	{
		kill('TERM', $run->{KIDS}[0]{PID});
		IPC::Run::pump_nb($run);
		usleep(100_000);
	}
	$run->finish;
	is(outcome($id), 'ready|0||', 'the job is given back');
	sql("SELECT jobq.cancel($id)");

	# A receiver stopped together with the program breaks the request off.
	foreach my $asked (1, 0)
	{
		unlink "$dir/breaks";
		$id = job('{}', 'max_attempts => 1');
		$run = start_program($jobq, 'work', 'web', '--http', "$base/stops", '--once', '--timeout', '10min');
		wait_for($node, 'a job is held', q{SELECT count(*) = 1 FROM jobq_internal.lease_slots()});
		if ($asked)
		{
			kill('TERM', pid_of($run));
			says($run, qr/stopping when what runs has ended/, 'the program is to stop');
		}
		append_to_file("$dir/breaks", 'x');
		is(finish($run), 0, 'the program ends');
		like(outcome($id), $asked ? qr/^ready\|0\|\|$/ : qr/^dead\|1\|\|no answer: /, 'a request that breaks off ' . ($asked ? 'when it stops' : 'at another time'));
		sql("SELECT jobq.cancel_many(queue => 'web', state => 'waiting')");
	}

	like((work('ftp://localhost/'))[1], qr/invalid value for --http/, 'an address that is none');
	like((work($base, '--max-memory', '10'))[1], qr/--max-memory is for --exec/, 'a limit for commands');
	like((work($base, '--exec', 'true'))[1], qr/either --exec or --http/, 'both');
	like((work($base, '--http-secret', "$dir/nothing"))[1], qr/could not read a secret/, 'no secret');
	append_to_file("$dir/bad", "whsec_geheim\n");
	like((work($base, '--http-secret', "$dir/bad"))[1], qr/could not read a secret from .*: behind whsec_ it is not base64/, 'a secret that is not base64');
}

kill('KILL', $server);
waitpid($server, 0);
$node->stop;
no_failed_assertion($node);
done_testing();
