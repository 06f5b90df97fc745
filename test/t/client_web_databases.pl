# jobq web with several databases: the path names the database, log-ins and tokens are for one
# database, metrics are merged, and a database that is down or silent takes no other along.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IPC::Run ();
use IO::Socket::INET;
use JSON::PP ();
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

$JobqTest::max_databases = 8;

my $conf = "jobq.databases = '*'\n";
my ($node, $jobq) = web_node($conf);
my $other = jobq_node('other', $conf);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $patience = $PostgreSQL::Test::Utils::timeout_default;
my $json = JSON::PP->new->utf8;
my $http = HTTP::Tiny->new(timeout => $patience, max_redirect => 0);

local $SIG{PIPE} = 'IGNORE';
$other->start;

# Role app has another password on each server.
foreach ([ $node, 'first', 'north' ], [ $other, 'second', 'north', 'south' ])
{
	my ($server, $password, @names) = @$_;

	$server->safe_psql('postgres', "CREATE ROLE app LOGIN PASSWORD '$password'; ALTER ROLE app SET log_min_duration_statement = 0");
	foreach my $name (@names)
	{
		$server->safe_psql('postgres', "CREATE DATABASE $name");
		$server->safe_psql($name, q{CREATE EXTENSION jobq;
SELECT jobq.grant_privilege('app', 'manage'), jobq.create_queue('line', mode => 'consumer', open => true)});
	}
	unlink $server->data_dir . '/pg_hba.conf';
	$server->append_conf('pg_hba.conf', 'local all ' . $server->safe_psql('postgres', 'SELECT current_user') . " trust\nlocal all all scram-sha-256\n");
	$server->reload;
}

# A server that accepts connections and says nothing.
my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 64) or die "listen: $!";
my @databases = (
	'-d' => $node->connstr('north'), '-d' => $other->connstr('south'), '-d' => $other->connstr('north'),
	'-d' => 'dbname=mute host=127.0.0.1 port=' . $silent->sockport);
my $same_name = 'north@' . $other->host . ':' . $other->port;
my $first_name = 'north@' . $node->host . ':' . $node->port;
my ($two, $far, $all) = map { "Abcdefghijklmnopqrstuvwx$_" } 0 .. 2;
my $server;

sub ask
{
	my ($method, $path, $body, %headers) = @_;

	$headers{'Content-Type'} = 'application/json' if defined $body;
	my $answer = $http->request($method, "$server->{url}$path", { headers => \%headers, defined $body ? (content => $json->encode($body)) : () });
	my $data = $answer->{content} // '';
	$data = $json->decode($data) if ($answer->{headers}{'content-type'} || '') =~ /json/ && $data ne '';
	return ($answer->{status}, $data, $answer->{headers});
}

sub with { my ($token, @request) = @_; return ask(@request[ 0, 1 ], $request[2], Authorization => "Bearer $token"); }

# Repeat a request until the answer is as wanted.
sub until_ok
{
	my ($name, $wanted, @request) = @_;
	my $end = time + $patience;
	my @answer;

	do { @answer = ask(@request); } while (!$wanted->(@answer) && time < $end && usleep(50_000));
	return ok($wanted->(@answer), $name);
}

sub connected
{
	my ($name, $is) = @_;

	return until_ok("$name is " . ($is ? '' : 'not ') . 'connected', sub { ((grep { $_->{name} eq $name } @{ $_[1]{items} })[0]{connected} ? 1 : 0) == $is }, 'GET', '/api/databases');
}

sub log_in
{
	my ($path, $password) = @_;
	my ($status, $session, $headers) = ask('POST', "$path/api/session", { role => 'app', password => $password });

	return ($status, ($headers->{'set-cookie'} // '') =~ /^(\w+)=(\w+)/, $session);
}

sub escaped { return $_[0] =~ s/([^\w.~\@:-])/sprintf '%%%02X', ord $1/ger; }

# Databases and tokens that do not fit.
token_file("$dir/tokens", "$all user=app password=first dbname=nowhere");
like(refused($jobq, '-l', '127.0.0.1:0', @databases, '--token-file', "$dir/tokens"), qr/^2: .*line 1: there is no database "nowhere" here/, 'a token for an unknown database');
token_file("$dir/tokens", "$all user=app password=first", "$all user=app password=first dbname=south");
like(refused($jobq, '-l', '127.0.0.1:0', @databases, '--token-file', "$dir/tokens"), qr/^2: .*line 2: the token was there before/, 'a token twice for a database');
like(refused($jobq, '-l', '127.0.0.1:0', ('-d', $node->connstr('north')) x 2), qr/^2: .*database "north" is given twice/, 'a database twice');
like(refused($jobq, '-l', '127.0.0.1:0', '-d', 'nonsense=1', '-d', 'north'), qr/^2: .*invalid connection option "nonsense"/, 'an invalid connection string');

# The server starts while a database is down.
token_file("$dir/tokens", "$two user=app password=first dbname='$first_name'", "$two user=app password=second dbname=south",
	"$far user=app password=second dbname='$same_name'", "$all user=app password=first");
$other->stop;
$server = serve($jobq, @databases, '--token-file', "$dir/tokens");
connected($first_name, 1);
connected('south', 0);
is((with($two, 'GET', '/api/session'))[1]{database}, 'north', 'a database is served while others are down');
is((with($two, 'GET', '/db/south/api/session'))[0], 503, 'which are not');
$other->start;
connected('south', 1);

# Paths.
my ($status, $data, $headers) = ask('GET', '/db/south/api/databases');
is(join(' ', $data->{root}, $data->{current}, map { "$_->{name}=$_->{path}" } @{ $data->{items} }),
	join(' ', '../../ south', map { "$_=db/" . escaped($_) . '/' } $first_name, 'south', $same_name, 'mute'), 'the databases');
is((ask('GET', '/api/databases'))[1]{current}, $first_name, 'the first is the default');
($status, $data, $headers) = ask('GET', '/db/south');
is("$status $headers->{location}", '307 south/', 'the path of a console ends with a slash');
is((ask('GET', '/db/south/'))[1], (ask('GET', '/'))[1], 'the console of a database');
is((ask('GET', '/db/south/app.js'))[0], 200, 'and its files');
is((ask('GET', $_))[0], 404, "nothing at $_") foreach '/db/nowhere/api/session', '/db//api/session', '/db/';
is(join(' ', map { (with($two, 'GET', $_))[1]{database} } '/api/session', '/db/' . escaped($first_name) . '/api/session', '/db/south/api/session', '/db/%73outh/api/session'),
	'north north south south', 'the path names the database');

# Tokens and sessions.
is((with($two, 'GET', '/db/' . escaped($same_name) . '/api/session'))[0], 401, 'a token is for the databases that are named');
is((with($far, 'GET', '/api/session'))[0], 401, 'not for the first');
is((with($far, 'GET', '/db/' . escaped($same_name) . '/api/session'))[0], 200, 'but for its own');
is((with($all, 'GET', '/api/session'))[0], 200, 'a token without a name is for each database');
is((with($all, 'GET', '/db/south/api/session'))[0], 503, 'that accepts its password');
is((log_in('/db/south', 'first'))[0], 401, 'a password is that of the database');
my ($first_status, $first_cookie, $first_id) = log_in('', 'first');
my ($south_status, $south_cookie, $south_id, $south_session) = log_in('/db/south', 'second');
is("$first_status $south_status", '200 200', 'log-ins to two databases');
isnt($first_cookie, $south_cookie, 'have two cookies');
my %both = (Cookie => "$first_cookie=$first_id; $south_cookie=$south_id");
is(join(' ', map { (ask('GET', "$_/api/session", undef, %both))[1]{database} } '', '/db/south'), 'north south', 'which a browser sends together');
is((ask('GET', '/db/south/api/session', undef, Cookie => "$south_cookie=$first_id"))[0], 401, 'a session is for one database');
is((ask('DELETE', '/db/south/api/session', undef, %both, 'X-CSRF-Token' => $south_session->{csrf}))[0], 204, 'a log-out');
is(join(' ', map { (ask('GET', "$_/api/session", undef, %both))[0] } '', '/db/south'), '200 401', 'is one from its database');

# Jobs.
($status, $data, $headers) = with($two, 'POST', '/db/south/api/jobs', { kind => 'b', queue => 'line', options => { watch => JSON::PP::true } });
is("$status $headers->{location}", "202 /db/south/api/jobs/$data->{id}", 'a job has its address');
my $there = $data->{id};
is((with($two, 'GET', $headers->{location}))[1]{kind}, 'b', 'where it is');
($status, $data, $headers) = with($two, 'POST', '/api/jobs', { kind => 'a', queue => 'line', options => { watch => JSON::PP::true } });
is($headers->{location}, "/api/jobs/$there", 'a job with this id is in the first database');
my %events = map { $_ => raw($server, "GET $_/api/jobs/$there/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $two\r\n\r\n") } '', '/db/south';
like(hear($events{''}, qr/event: state.*\n\n/s), qr/"kind":"a"/, 'it is followed');
like(hear($events{'/db/south'}, qr/event: state.*\n\n/s), qr/"kind":"b"/, 'and the other one');
is((with($two, 'DELETE', "/db/south/api/jobs/$there"))[1]{done}, JSON::PP::true, 'that is cancelled');
like(hear($events{'/db/south'}, qr/event: end/), qr/"state":"cancelled"/, 'and ends');
is((with($two, 'POST', '/api/reserve', { queues => 'line', wait => '60 s' }))[1]{jobs}[0]{kind}, 'a', 'a consumer gets the jobs of its database');

# Metrics.
my $of_line = qr/^jobq_jobs\{database="([^"]*)",queue="line",state="running"\} 1$/m;
($status, $data) = with($two, 'GET', '/metrics');
is($status, 200, 'metrics');
like($data, qr/^jobq_database_up\{database="\Q$first_name\E"\} 1\njobq_database_up\{database="south"\} 1\n(?!jobq_database_up)/m, 'of the databases of the token');
like($data, $of_line, 'with the label of the database');
my %types;
$types{$_}++ foreach $data =~ /^# TYPE (\S+)/mg;
is_deeply([ grep { $types{$_} > 1 } keys %types ], [], 'each family once');
like($data, qr/^# EOF\n\z/m, 'to the end');
unlike((with($two, 'GET', '/db/south/metrics'))[1], qr/database=|jobq_database_up/, 'those of a single database have no such label');
like((with($far, 'GET', '/metrics'))[1], qr/^jobq_database_up\{database="\Q$same_name\E"\} 1\n(?!jobq_database_up)/m, 'a token need not be for the first database');
is((ask('GET', '/metrics'))[0], 401, 'no log-in');
SKIP:
{
	skip 'there is no prometheus_client for Python', 1 if system('python3 -c "import prometheus_client.openmetrics.parser" 2>/dev/null') != 0;
	append_to_file("$dir/metrics", $data);
	is(system('python3', '-c', q{
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
assert len({s.labels['database'] for f in text_string_to_metric_families(open(sys.argv[1]).read()) for s in f.samples}) == 2}, "$dir/metrics"), 0, 'a parser accepts them');
}

# Callers that hang up leave no statements in the queues.  The connections of the role are busy, so that
# the first callers wait for them, and the others for a connection.
my $lock = $other->background_psql('south');
$lock->query_safe('BEGIN; LOCK TABLE jobq_internal.queue');
my $log = -s $other->logfile;
my $scrape = "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $two\r\n\r\n";
my $hung_up = 100;
my @waiting = map { raw($server, $scrape) } 1 .. 8;
wait_for($other, 'the connections are busy', q{SELECT count(*) = 4 FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'});
foreach (1 .. $hung_up)
{
	my $caller = raw($server, $scrape);
	usleep(5_000);
	close $caller;
}
close $_ foreach @waiting;
is((ask('GET', '/api/session', undef, Authorization => "Bearer $two"))[0], 200, 'the server has seen the callers leave');
$lock->query_safe('COMMIT');
$lock->quit;
# the statement of this request is the last of the queue
is((with($two, 'GET', '/db/south/metrics'))[0], 200, 'metrics after callers that have hung up');
my $ran = () = slurp_file($other->logfile, $log) =~ /execute .*SELECT jobq\.metrics/g;
cmp_ok($ran, '<', $hung_up / 4, 'their statements do not run');

# A silent database holds up no other.
@waiting = map {
	my $body = '{"role": "app", "password": "x"}';
	raw($server, "POST /db/mute/api/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " . length($body) . "\r\n\r\n$body")
} 1 .. 20;
is((log_in('', 'first'))[0], 200, 'log-ins in a silent database delay no log-in in another one');
is(scalar(grep { IO::Select->new($_)->can_read(0) } @waiting), scalar(grep { hear($_, qr/\r\n\r\n/) =~ / 429 / } grep { IO::Select->new($_)->can_read(0) } @waiting), 'though they still wait');
my $begun = time;
($status, $data) = with($all, 'GET', '/metrics');
is("$status " . join(' ', $data =~ /^jobq_database_up\{.*\} (\d)$/mg), '200 1 0 0 0', 'metrics without the databases that do not answer or refuse the role');
cmp_ok(time - $begun, '<', 10, 'in time for Prometheus');
is((ask('GET', '/db/mute/healthz'))[0], 503, 'a silent database is not healthy');

# A database is down, and comes again.
$other->stop('immediate');
connected('south', 0);
is((with($two, 'GET', '/db/south/api/queues'))[0], 503, 'a database that is down');
is((with($two, 'GET', '/api/queues'))[0], 200, 'takes no other along');
is((log_in('/db/south', 'second'))[0], 503, 'nobody logs in there');
is((log_in('', 'first'))[0], 200, 'but elsewhere');
is(join(' ', map { (ask('GET', "$_/healthz"))[0] } '', '/db/' . escaped($first_name), '/db/south'), '200 200 503', 'health of all, and of each');
($status, $data) = with($two, 'GET', '/metrics');
is("$status " . join(' ', $data =~ /^jobq_database_up\{.*\} (\d)$/mg), '200 1 0', 'metrics say so');
like($data, $of_line, 'and have the rest');
is((with($far, 'GET', '/metrics'))[0], 503, 'metrics of no database');
$other->start;
connected('south', 1);
is((with($two, 'GET', '/db/south/api/queues'))[0], 200, 'it is served again');

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends well');

# The console.
SKIP:
{
	skip 'there is no Chromium, or no node', 1 unless grep({ -x $_ } $ENV{CHROMIUM} || (), '/usr/bin/chromium', '/usr/bin/chromium-browser') && eval { IPC::Run::run([ 'node', '--version' ], '>', \my $version) };
	my ($out, $err);

	$other->safe_psql('south', q{SELECT jobq.enqueue('only_south', queue => 'line')});
	my $console = serve($jobq, @databases[ 0 .. 3 ]);
	IPC::Run::run([ 'node', "$FindBin::RealBin/../console/databases.mjs", "$console->{url}/" ], '>', \$out, '2>', \$err, IPC::Run::timeout(3 * $patience));
	is($out, "the console switches between databases\n", 'the console') or diag($err);
}
no_failed_assertion($node);
no_failed_assertion($other);
done_testing();
