# jobq web: callers that crowd in, hang up, come from another site, or search for hidden data.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IO::Select;
use IO::Socket::UNIX;
use JobqTest;
use JobqWeb;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($node, $jobq) = web_node();
my $patience = $PostgreSQL::Test::Utils::timeout_default;
my $dir = PostgreSQL::Test::Utils::tempdir_short();

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN PASSWORD 'secret';
CREATE ROLE open LOGIN;
CREATE ROLE hasty LOGIN PASSWORD 'hasty';
SELECT jobq.grant_privilege('app'), jobq.grant_privilege('open');
SELECT jobq.create_queue('c', mode => 'consumer', open => true), jobq.create_queue('d', mode => 'consumer', open => true);
});
my $superuser = sql('SELECT current_user');
unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all open,$superuser trust\nlocal all all scram-sha-256\n");
$node->reload;

my ($token, $other) = map { "Abcdefghijklmnopqrstuvwx$_" } 0 .. 1;

token_file("$dir/tokens", "$token user=app password=secret", "$other user=open");

# The text of a request.
sub request
{
	my ($line, $body, @headers) = @_;

	push @headers, 'Host: 127.0.0.1' unless grep { /^Host:/ } @headers;
	push @headers, 'Content-Type: application/json', 'Content-Length: ' . length $body if defined $body;
	return join("\r\n", "$line HTTP/1.1", @headers, '', $body // '');
}

sub as_app { return request(@_[0, 1], "Authorization: Bearer $token"); }

# Whether the server has closed the connection after the response.
sub cut_off_at_last { my $heard = hear($_[0]); return IO::Select->new($_[0])->can_read(0) && !sysread($_[0], my $byte, 1); }

sub cut_off { return IO::Select->new($_[0])->can_read($patience) && !sysread($_[0], my $byte, 1); }

# A caller that hangs up during login leaves no connection behind, with a right or a wrong password.
my $few = 12;
my $server = serve($jobq, '--token-file', "$dir/tokens", '--max-clients', $few);
my $files = '/proc/' . web_pid($server) . '/fd';
my $count = sub { return scalar(() = glob "$files/*"); };
my $before = $count->();
for my $password ('wrong', 'secret')
{
	my @callers = map { raw($server, request('POST /api/session', qq({"role": "app", "password": "$password"}))) } 1 .. 5;
	close $_ foreach @callers;
}
like(hear(raw($server, request('GET /healthz')), qr/"ok"/), qr/ 200 /, 'all of them have come');
my $end = time + $patience;
# a connection to the database stays for a while
my $n;
usleep(50_000) while ($n = $count->()) > $before + 1 && time < $end;
cmp_ok($n, '<=', $before + 1, 'who hangs up while he logs in holds no connection');

# Unauthenticated callers do not keep out authenticated callers.
my @known = map { raw($server, as_app('GET /api/events?topics=queues')) } 1 .. $few - 2;
like(hear($_, qr/event: queues/), qr/ 200 /, 'one that is known') foreach @known;
my @nobody = map { raw($server, '') } 1 .. 40;
like(hear(raw($server, as_app('GET /api/session')), qr/"role"/), qr/ 200 .*"app"/s, 'a caller comes in though nobodies have taken all places');
ok(cut_off($nobody[0]), 'the first of them has made room');
ok(!IO::Select->new($nobody[-1])->can_read(0), 'the last of them is still there');
push @known, raw($server, as_app('GET /api/events?topics=queues'));
like(hear($known[-1], qr/event: queues/), qr/ 200 /, 'another one');
push @known, raw($server, as_app('GET /api/events?topics=queues'));
like(hear($known[-1], qr/event: queues/), qr/ 200 /, 'and one, so that all are known');
like(hear(raw($server, request('GET /healthz')), qr/"ok"/), qr/ 200 /, 'and yet a stranger is answered');
sql(q{SELECT jobq.pause('c')});
is(scalar(grep { hear($_, qr/"name":"c","paused":true/) =~ /"paused":true/ } @known), $few, 'those who are known stay');
sql(q{SELECT jobq.resume('c')});

# Nor does an address keep out another address, even with unauthenticated callers only.
my $lonely = raw($server, '', '127.0.0.4');
my @crowd = map { raw($server, '', '127.0.0.2') } 1 .. 40;
ok(cut_off($crowd[0]), 'of many strangers from an address, the first makes room');
$lonely->syswrite(request('GET /healthz'));
like(hear($lonely, qr/"ok"/), qr/ 200 /, 'one from another address, which was there before, stays');
close $_ foreach $lonely, @crowd;

# Nor does a principal keep out another principal.
my @others = map { raw($server, request('GET /api/session', undef, "Authorization: Bearer $other")) } 1 .. 2;
like(hear($_, qr/"role"/), qr/ 200 .*"open"/s, 'another one comes in though all are known') foreach @others;
ok(cut_off_at_last($known[$_]), 'of those with the most connections, that which was used longest ago goes') foreach 0, 1;
sql(q{SELECT jobq.pause('d')});
is(scalar(grep { hear($_, qr/"name":"d","paused":true/) =~ /"name":"d","paused":true/ } @known[ 2 .. $#known ]), $few - 2, 'all others stay');
sql(q{SELECT jobq.resume('d')});
close $_ foreach @known, @nobody, @others;

# A caller with a revoked token is unauthenticated, however many requests arrive.
my @gone = map { raw($server, request('GET /api/session', undef, "Authorization: Bearer $other")) } 1 .. $few / 2;
like(hear($_, qr/"role"/), qr/ 200 /, 'one with a token') foreach @gone;
token_file("$dir/tokens", "$token user=app password=secret");
$server->{process}->signal('HUP');
my $last = shift @gone;
my $status;
$end = time + $patience;
do
{
	$last->syswrite(request('GET /api/session', undef, "Authorization: Bearer $other"));
	($status) = hear($last, qr/\}/) =~ / (\d+) /;
} while ($status == 200 && time < $end);
is($status, 401, 'that is taken away');
@known = map { raw($server, as_app('GET /api/session')) } 1 .. $few;
like(hear($_, qr/"role"/), qr/ 200 /, 'one that is known') foreach @known;
$_->syswrite(as_app('GET /api/session')) foreach @known;
is(scalar(grep { hear($_, qr/"role"/) =~ / 200 / } @known), $few, 'all places are for those who are known');
close $_ foreach @known, @gone, $last;

# Password attempts from an address do not delay logins from another address.
my $roomy = serve($jobq, '--token-file', "$dir/tokens");
sub log_in_as { my ($role, $password) = @_; return request('POST /api/session', qq({"role": "$role", "password": "$password"})); }
my @tries = map { raw($roomy, log_in_as('app', 'wrong'), '127.0.0.2') } 1 .. 40;
like(hear(raw($roomy, log_in_as('app', 'secret')), qr/\}/), qr/^HTTP\/1.1 200/, 'a right password from another one counts at once');
my %answered;
$answered{ hear($_, qr/\}/) =~ / (401|429) / ? $1 : 'other' }++ foreach @tries;
is(($answered{401} // 0) + ($answered{429} // 0), 40, 'all are answered');
cmp_ok($answered{429} // 0, '>', 0, 'an address has only so many attempts in the line');

# The delay of a wrong password stays even if the caller hangs up early.
my $failed = sub { return scalar(() = slurp_file($node->logfile) =~ /password authentication failed for user "hasty"/g); };
my $since = time;
while (time < $since + 4)
{
	my $hasty = raw($roomy, log_in_as('hasty', 'wrong'), '127.0.0.3');
	usleep(20_000);
	close $hasty;
}
my $passwords = $failed->();
cmp_ok($passwords, '<=', 4 * (time - $since + 1), 'so an address tries four passwords a second');
cmp_ok($passwords, '>', 0, 'which were tried');

# Password checks for a role are limited, even from many addresses, except the first attempt of each
# address.
my @from = map { "127.0.1.$_" } 1 .. 40;
is(scalar(grep { hear($_, qr/\}/) =~ / (?:401|429) / } map { raw($roomy, log_in_as('app', 'wrong'), $_) } @from), 40, 'wrong passwords from many addresses');
$since = time;
@tries = map { raw($roomy, log_in_as('app', 'wrong'), $_) } @from;
like(hear(raw($roomy, log_in_as('app', 'secret'), '127.0.0.5'), qr/\}/), qr/^HTTP\/1.1 200/, 'a right one from yet another address counts');
is(scalar(grep { hear($_, qr/\}/) =~ / (?:401|429) / } @tries), 40, 'all are answered');
cmp_ok(time - $since, '>=', 4, 'eight in a second');
like(hear(raw($roomy, log_in_as('app', 'secret'), $from[0]), qr/\}/), qr/^HTTP\/1.1 200/, 'and an address that has failed logs in when it knows the password');

# With --allow-trust, a site with a DNS name that resolves to this address cannot log in.
my $open = serve($jobq, '--allow-trust');
my $log_in = q({"role": "open", "password": "any"});
for my $host ('evil.example', "evil.example:$open->{port}", '127.0.0.1.evil.example', '[::1', '')
{
	like(hear(raw($open, request('POST /api/session', $log_in, "Host: $host", 'Connection: close'))), qr/^HTTP\/1.1 40[03]/, "not as \"$host\"");
}
for my $host ('localhost', "127.0.0.1:$open->{port}", '[::1]:80')
{
	like(hear(raw($open, request('POST /api/session', $log_in, "Host: $host", 'Connection: close'))), qr/^HTTP\/1.1 200/, "but as $host");
}

# No request can be smuggled behind another request.
my $hidden = request('GET /healthz');
for my $headers (
	"Content-Length: 0\r\nContent-Length: " . length $hidden, "Content-Length: 5\r\nTransfer-Encoding: chunked",
	"Transfer-Encoding : chunked\r\nContent-Length: 0", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
	'Transfer-Encoding: xchunked', 'Host: 127.0.0.1')
{
	my $heard = hear(raw($server, request('GET /healthz', undef, 'Host: x', split /\r\n/, $headers) . "0\r\n\r\n$hidden"));

	is(join(' ', $heard =~ /HTTP\/1.1 (\d+)/g), '400', "one answer: $headers");
}

# Hidden values cannot be guessed by searching.
my $shy = serve($jobq, '--token-file', "$dir/tokens", '--hide-payload', 'app');
sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'c', headers => '{"card": "4711"}')});
like(hear(raw($shy, as_app('GET /api/jobs?header=card=4711')), qr/\}/), qr/^HTTP\/1.1 403.*hidden/s, 'headers cannot be guessed');
like(hear(raw($shy, as_app('GET /api/jobs?queue=c')), qr/"next"/), qr/^HTTP\/1.1 200/, 'all else can be searched for');
like(hear(raw($server, as_app('GET /api/jobs?header=card=4711')), qr/"next"/), qr/"queue":"c"/, 'and headers by those who may see them');
sql(q{SELECT jobq.cancel_many(queue => 'c', state => 'waiting')});

# A relay between jobq web and the server.  While the file $hold exists, the relay holds cancel
# requests back, and writes to the file for each request.
my $port = $node->port;
my $hold = "$dir/hold";
my $test = $$;

sub relay
{
	my $listener = IO::Socket::UNIX->new(Listen => 100, Local => "$dir/.s.PGSQL.$port") or die "listen: $!";
	my $select = IO::Select->new($listener);
	my (%other, @held);

	local $SIG{PIPE} = 'IGNORE';
	while (getppid == $test)
	{
		for my $socket ($select->can_read(0.02))
		{
			if ($socket == $listener)
			{
				$select->add(my $caller = $listener->accept or next);
				my $there = IO::Socket::UNIX->new(Peer => $node->host . "/.s.PGSQL.$port") or die "connect: $!";
				$select->add($there);
				($other{$caller}, $other{$there}) = ($there, $caller);
				next;
			}
			# if both sides have closed, the first iteration has already removed the pair
			my $peer = $other{$socket} or next;
			if (!sysread($socket, my $text, 65536))
			{
				$select->remove($_), close $_, delete $other{$_} foreach $socket, $peer;
			}
			elsif ($text =~ /^\0\0\0.\x04\xd2\x16\x2e/s && -e $hold)
			{
				append_to_file($hold, 'x');
				push @held, [ $peer, $text ];
			}
			else
			{
				syswrite($peer, $text);
			}
		}
		if (@held && !-e $hold)
		{
			syswrite($_->[0], $_->[1]) foreach grep { $other{ $_->[0] } } @held;
			@held = ();
		}
	}
	return;
}

my $relay = fork // die "fork: $!";
if ($relay == 0)
{
	# skip the END blocks of the parent
	eval { relay(); 1 } or print STDERR "the relay has failed: $@";
	POSIX::_exit(0);
}
END { local $?; kill 'KILL', $relay if $relay; }
$end = time + $patience;
usleep(20_000) while !-S "$dir/.s.PGSQL.$port" && time < $end;

my $late;
{
	local $ENV{PGHOST} = $dir;
	$late = serve($jobq, '--token-file', "$dir/tokens");
}
my $waiting = q{FROM pg_stat_activity WHERE application_name = 'jobq web' AND query LIKE '%jobq.reserve($1%' AND state = 'active'};

append_to_file($hold, '');
my $first = raw($late, as_app('POST /api/reserve', '{"queues": ["c"], "wait": "60 s"}'));
wait_for($node, 'a consumer waits', "SELECT count(*) = 1 $waiting");
my $pid = sql("SELECT pid $waiting");
my $second = raw($late, as_app('POST /api/reserve', '{"queues": ["d"], "wait": "60 s"}'));
$end = time + $patience;
usleep(20_000) while !-s $hold && time < $end;
ok(-s $hold, 'another one wants another queue: the statement is to be cancelled');
sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'c')});
like(hear($first, qr/\}\]\}/), qr/"queue":"c"/, 'but has come to its end before');
wait_for($node, 'the next one runs where nothing can be late', "SELECT count(*) = 1 $waiting AND pid <> $pid");
unlink $hold;
sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'd')});
like(hear($second, qr/\}\]\}/), qr/"queue":"d"/, 'and its consumer gets a job');

$_->{process}->signal('TERM') foreach $server, $roomy, $open, $shy, $late;
ok($_->{process}->finish, 'it ends well') foreach $server, $roomy, $open, $shy, $late;
kill 'KILL', $relay;
waitpid $relay, 0;
undef $relay;

no_failed_assertion($node);
done_testing();
