# jobq web: authentication and authorization over HTTP, jobs, events, consumers, and malicious
# callers.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IO::Select;
use IPC::Run ();
use JSON::PP ();
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my ($node, $jobq) = web_node();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $patience = $PostgreSQL::Test::Utils::timeout_default;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# A connection closed by the server must not end the test.
local $SIG{PIPE} = 'IGNORE';

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN PASSWORD 'secret';
CREATE ROLE boss LOGIN PASSWORD 'boss';
CREATE ROLE other LOGIN PASSWORD 'other';
CREATE ROLE open LOGIN;
CREATE ROLE full_up LOGIN PASSWORD 'full' CONNECTION LIMIT 0;
SELECT jobq.grant_privilege('app'), jobq.grant_privilege('boss', 'manage'), jobq.grant_privilege('other'), jobq.grant_privilege('open');
CREATE FUNCTION same(p jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT p';
CREATE FUNCTION picky(p jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
	IF NOT p ? 'good' THEN RAISE EXCEPTION 'this is not good'; END IF;
	RETURN p;
END $$;
SELECT jobq.register('same', 'same(jsonb)'), jobq.register('picky', 'picky(jsonb)', max_attempts => 1);
SELECT jobq.create_queue('c', mode => 'consumer', open => true), jobq.create_queue('d/"e" ü', mode => 'consumer', open => true);
});
unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all open," . sql('SELECT current_user') . " trust\nlocal all all scram-sha-256\n");
$node->reload;

my $token = 'Abcdefghijklmnopqrstuvwx0';
my $other_token = 'Zbcdefghijklmnopqrstuvwx0';
token_file("$dir/tokens", '# tokens', "$token user=app password=secret", "$other_token user=other password=other");
my $server = serve($jobq, '--token-file', "$dir/tokens");
my $http = HTTP::Tiny->new(timeout => $patience, max_redirect => 0);
my $json = JSON::PP->new->utf8;

# The role of a session, its privileges, and the roles whose privileges it has.
sub rights
{
	my ($session) = @_;

	return "$session->{role}: " . join(', ', sort map { "$_->{privilege} of " . ($_->{queue} // 'all') } @{ $session->{privileges} }) . '; '
	  . ($session->{roles} ? join(' ', sort @{ $session->{roles} }) : 'every role');
}

# Send a request.  Returns status, body as data or text, and headers.
sub ask
{
	my ($method, $path, $body, %headers) = @_;
	my $base = delete $headers{base} || $server->{url};

	$headers{'Content-Type'} ||= 'application/json' if defined $body;
	my $answer = $http->request($method, "$base$path",
		{ headers => \%headers, defined $body ? (content => ref $body ? $json->encode($body) : $body) : () });
	my $data = $answer->{content} // '';
	$data = $json->decode($data) if ($answer->{headers}{'content-type'} || '') =~ /json/ && $data ne '';
	return ($answer->{status}, $data, $answer->{headers});
}

sub app { my ($method, $path, $body, %h) = @_; return ask($method, $path, $body, Authorization => "Bearer $token", %h); }

# Log in.  Returns the headers of later requests of a browser.
sub log_in
{
	my ($role, $password, $base) = @_;

	my ($status, $session, $headers) = ask('POST', '/api/session', { role => $role, password => $password },
		$base ? (base => $base) : ());

	return ($status, $session) if $status != 200;
	like($headers->{'set-cookie'}, qr/^jobq_session=[0-9a-f]{64}; Path=\/; HttpOnly; SameSite=Strict$/, "the cookie of $role");
	my ($cookie) = $headers->{'set-cookie'} =~ /^([^;]+)/;
	return ($status, $session, Cookie => $cookie, 'X-CSRF-Token' => $session->{csrf});
}

sub stream
{
	my ($path, %headers) = @_;

	return raw($server, "GET $path HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n"
		  . join('', map { "$_: $headers{$_}\r\n" } keys %headers) . "\r\n");
}

my ($status, $data, $headers);

# Requests without an end.  The last part of the test checks how the server cut these off.
my %slow = (
	'of its headers' => raw($server, "GET / HTTP/1.1\r\nHost: x\r\nX: "),
	'of its body' => raw($server, "POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"),
	'of anything' => raw($server, ''));
# An idle connection may stay longer than a request without an end.
my $idle = raw($server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
my $again = raw($server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nX: ");
like(hear($idle, qr/"ok"\}\n/), qr/ 200 /, 'a connection is kept');
like(hear($again, qr/"ok"\}\n/), qr/ 200 /, 'as is another one');
my $cut_off = '';				# in which order, as far as we have looked

sub drip
{
	$_->syswrite(' ') foreach values %slow;
	$cut_off .= ' again' if $cut_off !~ /again/ && IO::Select->new($again)->can_read(0);
	$cut_off .= ' idle' if $cut_off !~ /idle/ && IO::Select->new($idle)->can_read(0);
	return;
}

# The server does not listen beyond the loopback without TLS, and refuses bad options.
like(refused($jobq, '--listen', '0.0.0.0:0'), qr/^2: .*refusing to listen.*without TLS.*hint:/s, 'not beyond the loopback without TLS');
like(refused($jobq, '--listen', 'nonsense'), qr/^2: .*ADDRESS:PORT/, 'a bad address');
append_to_file("$dir/open_tokens", "$token user=app\n");
chmod 0644, "$dir/open_tokens";
like(refused($jobq, '--listen', '127.0.0.1:0', '--token-file', "$dir/open_tokens"), qr/^2: .*nobody else can read/, 'tokens that others can read');

# Authentication.
($status, $data, $headers) = ask('GET', '/healthz');
is($status, 200, 'healthz needs nobody');
like($headers->{'content-security-policy'}, qr/default-src 'none'; script-src 'self'.*frame-ancestors 'none'/, 'the policy of its content');
is($headers->{'x-content-type-options'}, 'nosniff', 'no sniffing');
($status, $data) = ask('GET', '/api/jobs');
is("$status $data->{detail}", '401 nobody is logged in', 'nobody sees anything');
($status, $data) = log_in('app', 'wrong');
is($status, 401, 'a wrong password');
($status, $data) = log_in('app', '');
is($status, 401, 'no password');
($status, $data) = log_in('open', 'anything');
like("$status $data->{detail}", qr/^401 .*asks for no password/, 'a role without a password');
($status, $data) = log_in("app' user=boss", 'secret');
is($status, 401, 'a role that is none');
($status, $data) = log_in('full_up', 'full');
like("$status $data->{detail}", qr/^503 too many connections/, 'a role that has no connection left is not told that its password is wrong');
($status) = ask('GET', '/api/jobs', undef, Authorization => 'Bearer nothing');
is($status, 401, 'a wrong token');
($status) = ask('GET', '/api/jobs', undef, Cookie => 'jobq_session=' . '0' x 64);
is($status, 401, 'a wrong cookie');
($status, $data, my %boss) = log_in('boss', 'boss');
is("$status " . rights($data), '200 boss: manage of all; boss', 'a role logs in');
($status, $data, my %app) = log_in('app', 'secret');
is("$status " . rights($data), '200 app: produce of all; app', 'another one');
sql(q{GRANT other TO app; SELECT jobq.grant_privilege('app', 'manage', 'c'), jobq.grant_privilege('other', 'consume')});
is(rights((app('GET', '/api/session'))[1]), 'app: consume of all, manage of c, produce of all; app other', 'with what other roles and single queues add');
sql(q{SELECT jobq.revoke_privilege('app', 'manage', 'c'), jobq.revoke_privilege('other', 'consume'); REVOKE other FROM app});
sql(q{CREATE ROLE super SUPERUSER LOGIN PASSWORD 'super'});
is(rights((log_in('super', 'super'))[1]), 'super: manage of all, produce of all; every role', 'a superuser has all');

# Cross-site requests are refused.
($status, $data) = ask('POST', '/api/queues/c/pause', undef, Cookie => $boss{Cookie});
is("$status " . sql(q{SELECT paused FROM jobq.queues WHERE name = 'c'}), '403 f', 'nothing is changed without the CSRF token');
($status) = ask('POST', '/api/queues/c/pause', undef, %boss, 'X-CSRF-Token' => $app{'X-CSRF-Token'});
is($status, 403, 'or with that of another session');
($status) = ask('POST', '/api/queues/c/pause', undef, %boss, Origin => 'https://evil.example');
is($status, 403, 'or from another site');
($status) = ask('POST', '/api/session', { role => 'app', password => 'secret' }, 'Sec-Fetch-Site' => 'cross-site');
is($status, 403, 'which cannot log in, either');
($status) = ask('POST', '/api/session', 'role=app&password=secret', 'Content-Type' => 'application/x-www-form-urlencoded');
is($status, 415, 'a form is no JSON');
($status) = ask('POST', '/api/queues/c/pause', undef, %app);
is($status, 403, 'a role does only what it may');
($status) = ask('POST', '/api/queues/c/pause', undef, %boss, Origin => $server->{url});
is("$status " . sql(q{SELECT paused FROM jobq.queues WHERE name = 'c'}), '200 t', 'and what it may');
($status) = ask('POST', '/api/queues/c/resume', '{}', %boss);
is($status, 200, 'and back');
($status) = ask('POST', '/api/queues/pause', { queue => 'c' }, %app);
is($status, 403, 'with the name in the body, too, a role does only what it may');
sql(q{SELECT jobq.create_queue('..', mode => 'consumer'); SET ROLE app; SELECT jobq.schedule('.', '0 0 1 1 *', 'picky', '{"good": 1}')});
for my $verb (qw(pause resume))
{
	($status) = ask('POST', "/api/queues/$verb", { queue => '..' }, %boss);
	is("$status " . sql(q{SELECT paused FROM jobq.queues WHERE name = '..'}), '200 ' . ($verb eq 'pause' ? 't' : 'f'), "$verb a queue that no path can name");
	($status) = ask('POST', "/api/schedules/$verb", { schedule => '.' }, %app);
	is("$status " . sql(q{SELECT state FROM jobq.schedules}), '200 ' . ($verb eq 'pause' ? 'paused' : 'active'), "$verb such a schedule");
}
sql(q{SELECT jobq.enqueue('x', queue => '..') FROM generate_series(1, 2)});
is((ask('POST', '/api/queues/cancel', { queue => '..' }, %boss))[1]{count}, 2, 'cancel the jobs of such a queue');
my $run_now = (ask('POST', '/api/schedules/run', { schedule => '.' }, %app))[1]{id};
is(sql("SELECT state FROM jobq.wait($run_now, '$patience s')"), 'completed', 'run such a schedule');
is((ask('POST', '/api/queues/pause', {}, %boss))[0], 400, 'the name is needed');
sql(q{SELECT jobq.drop_queue('..'), jobq.unschedule('.')});

# Jobs.
($status, $data, $headers) = app('POST', '/api/jobs', '{"kind": "same", "payload": {"n": 1}}', 'Idempotency-Key' => 'one');
my $id = $data->{id};
is("$status $headers->{location}", "202 /api/jobs/$id", 'a job is enqueued');
($status, $data, $headers) = app('POST', '/api/jobs', '{"kind": "same", "payload": {"n": 1}}', 'Idempotency-Key' => 'one');
is("$status $data->{id} " . ($headers->{'idempotency-replayed'} // '-'), "202 $id true", 'once only');
is((app('POST', '/api/jobs', '{"kind": "same", "payload": {"n": 2}}', 'Idempotency-Key' => 'one'))[0], 422, 'the key is that of another job');
is(sql("SELECT state FROM jobq.wait($id, '5 min')"), 'completed', 'it runs');
($status, $data) = app('GET', "/api/jobs/$id");
is("$data->{state} $data->{role} $data->{result}{n}", 'completed app 1', 'and is shown');
is((app('GET', "/api/jobs/$id/history"))[1]{items}[0]{event}, 'enqueued', 'and its history');
is((app('GET', "/api/jobs/$id/explain"))[0], 200, 'and why it does not run');
($status, $data) = ask('GET', "/api/jobs/$id", undef, Authorization => "Bearer $other_token");
is($status, 404, 'but not to another role');
($status, $data) = app('DELETE', "/api/jobs/$id");
is("$status $data->{done}", '200 0', 'it cannot be cancelled any more');
($status, $data, $headers) = app('DELETE', '/api/jobs/999999');
is("$status $data->{sqlstate} $headers->{'content-type'}", '404 JQ003 application/problem+json', 'a job that does not exist');
for my $bad (
	[ '{"kind": "same", "pay": 1}', qr/"pay".*not known/ ], [ '{}', qr/lacks the member "kind"/ ],
	[ '{"kind": "same", "priority": "x"}', qr/"priority" of options must be a number/ ], [ '{"kind": ', qr/invalid input syntax/ ], [ '[1]', qr/./ ],
	[ '{"kind": "nobody does this"}', qr/no handler/ ], [ '{"kind": "same", "payload": "\u0000"}', qr/./ ],
	[ "{\"kind\": \"same\", \"payload\": \"\xff\"}", qr/./ ], [ "{\"kind\"\0: 1}", qr/zero/ ], [ '[' x 100000, qr/./ ])
{
	($status, $data) = app('POST', '/api/jobs', $bad->[0]);
	ok($status == 400 && $data->{detail} =~ $bad->[1], 'refused: ' . substr($bad->[0], 0, 40)) or diag("$status $data->{detail}");
}

# A job is not enqueued because another job holds the unique key.
app('POST', '/api/jobs', { kind => 'x', queue => 'c', unique_key => 'held', delay => '1 day' });
($status, $data, $headers) = app('POST', '/api/jobs', { kind => 'x', queue => 'c', unique_key => 'held', uniqueness => { on_conflict => 'ignore' } });
is(join(' ', $status, exists $data->{id} ? defined $data->{id} ? 'a job' : 'none' : 'no member', $headers->{location} // 'nowhere'), '202 none nowhere', 'a job whose key is held is ignored');
sql(q{SELECT jobq.cancel_many(queue => 'c', unique_key => 'held')});
($status, $data, $headers) = app('POST', '/api/jobs', { kind => 'x', queue => 'c', uniqueness => { scope => 'database' }, delay => '1 day' }, 'Idempotency-Key' => 'scoped');
is("$status " . sql("SELECT unique_key || ' ' || unique_scope FROM jobq.jobs WHERE id = $data->{id}") . sql("SELECT ' ' || (held_until > now()) FROM jobq_internal.unique_key WHERE job_id = $data->{id}"),
	'202 scoped database true', 'Idempotency-Key goes with other details of the key');
sql("SELECT jobq.cancel($data->{id})");
($status, $data) = app('POST', '/api/jobs', { kind => 'x', queue => 'c', tags => [ 'a b', 'c"d' ], delay => '1 day' });
is("$status " . sql("SELECT tags = ARRAY['a b', 'c\"d'] FROM jobq.jobs WHERE id = $data->{id}"), '202 t', 'tags are an array');
sql("SELECT jobq.cancel($data->{id})");

# Pages.
sql(q{SET ROLE app; SELECT jobq.enqueue('same', queue => 'later', delay => '1 day') FROM generate_series(1, 5)});
my @pages;
my $next = '';
do
{
	($status, $data) = app('GET', "/api/jobs?state=scheduled&queue=later&limit=2$next");
	push @pages, [ map { $_->{id} } @{ $data->{items} } ];
	$next = $data->{next} ? "&before=$data->{next}" : '';
} while ($next ne '');
is(join(' ', map { scalar @$_ } @pages), '2 2 1', 'three pages');
my @all = map { @$_ } @pages;
is("@all", join(' ', sort { $b <=> $a } @all), 'the newest first');
($status, $data) = app('POST', '/api/jobs/cancel', { ids => \@all });
is(scalar(grep { $_->{done} } @{ $data->{items} }), 5, 'many are cancelled');
($status, $data) = app('GET', '/api/jobs?staet=ready');
is($status, 400, 'an argument that is not known');
for my $query ('jobs?state=foo', 'jobs?state=fail', 'batches?state=ready', 'series?period=week')
{
	my ($name, $value) = $query =~ /(\w+)=(\w+)/;

	($status, $data) = app('GET', "/api/$query");
	like("$status $data->{detail}", qr/^400 invalid value for "$name": "$value"; it is one of \w+(, \w+)+$/, "$query is refused");
}
for my $list (qw(overview series queues kinds workers schedules batches dead jobs session series?period=day jobs?state=expired jobs?state= batches?state=pending))
{
	($status, $data) = app('GET', "/api/$list");
	is($status, 200, $list) or diag($data->{detail});
}
is(scalar @{ (app('GET', '/api/series?period=day'))[1]{points} }, 24, 'points of a day');

# Time series: a monitor gets the statistics, other roles get their own jobs.
sub sum_of
{
	my ($member, $series) = @_;
	my $sum = 0;
	$sum += $_->{$member} // 0 foreach @{ $series->{points} };
	return $sum;
}
for my $period (qw(hour day))
{
	($status, $data) = ask('GET', "/api/series?period=$period&queue=later", undef, %boss);
	is("$data->{source} " . join(' ', map { sum_of($_, $data) } qw(enqueued cancelled completed)), 'statistics 5 5 0', "the statistics of the last $period");
	is((grep { $_->{enqueued} } @{ $data->{points} })[-1]{at} ge $data->{from}, 1, 'in its time');
}
($status, $data) = ask('GET', '/api/series?kind=same', undef, %boss);
ok((grep { defined $_->{wait_mean} && $_->{wait_mean} <= $_->{wait_max} + 0.001 && defined $_->{run_max} } @{ $data->{points} }), 'how long they have waited');
($status, $data) = app('GET', '/api/series?kind=same');
is("$data->{source} " . sum_of('completed', $data), 'jobs 1', 'who may not is told of his own');
ok((grep { defined $_->{wait_mean} } @{ $data->{points} }), 'and how long they have waited');

# A request reads a limited number of jobs, and the next page continues the search.
sql(q{SELECT jobq.create_queue('many', mode => 'consumer', open => true);
	SET ROLE app; SELECT count(*) FROM jobq.enqueue_many('x', array_fill('{}'::jsonb, '{7000}'), queue => 'many')});
($status, $data) = app('GET', '/api/jobs?kind=same&state=cancelled');
is(scalar @{ $data->{items} }, 5, 'those that have ended are found beside those that wait');
my ($found, $asked) = (0, 0);
for (my $before = ''; defined $before; $asked++)
{
	($status, $data) = app('GET', "/api/jobs?unique_key=one&before=$before");
	$found += @{ $data->{items} };
	$before = $data->{next};
}
is("$found " . ($asked > 2 ? 'several' : $asked), '0 several', 'nothing is found in several pages');
for my $state (qw(running dead scheduled completed))
{
	($status, $data) = app('GET', "/api/jobs?state=$state");
	is(join(' ', grep { $_->{state} ne $state } @{ $data->{items} }), '', "none but those that are $state");
}
($status, $data) = app('GET', '/api/series');
cmp_ok(eval { my $sum = 0; $sum += $_->{completed} foreach @{ $data->{points} }; $sum }, '>', 0, 'what has ended is counted, though newer jobs wait');
wait_for($node, 'the jobs have been counted', 'SELECT jobq_internal.stats_known()');
($status, $data) = app('GET', '/api/queues');
is(join(' ', map { "$_->{ready} $_->{exact}" } grep { $_->{name} eq 'many' } @{ $data->{items} }), '7000 1', 'a long queue is not counted');
is((app('GET', '/metrics'))[0], 403, 'metrics are for monitors');
like((ask('GET', '/metrics', undef, %boss))[1], qr/queue="many",state="ready"\} 7000$/m, 'nor for the metrics is it counted');
sql(q{SELECT jobq.cancel_many(queue => 'many', state => 'waiting')});

# Edit the payload of a dead letter, and retry.
($status, $data) = app('POST', '/api/jobs', '{"kind": "picky", "payload": {"bad": 1}, "headers": {"trace": "x"}}');
my $dead = $data->{id};
is(sql("SELECT state FROM jobq.wait($dead, '5 min')"), 'dead', 'a dead letter');
($status, $data) = ask('POST', "/api/jobs/$dead/retry", { payload => { good => 1 } }, %boss);
like("$status $data->{detail}", qr/^403 permission denied/, 'its payload is not changed by a role that may not be that which runs it');
($status, $data) = app('POST', "/api/jobs/$dead/retry", { payload => { good => 1 } });
is("$status $data->{id}", "200 $dead", 'it is retried with another payload');
sql("SELECT jobq.wait($dead, '5 min')");
is(sql("SELECT state, headers, payload FROM jobq.jobs WHERE id = $dead"), 'completed|{"trace": "x"}|{"good": 1}', 'and completed');
is(sql("SELECT count(*) FROM jobq.dead_letters"), '0', 'it is no dead letter');

# Run the dead letters of a batch again.
my $batch = sql(q{SET ROLE app; SELECT jobq.create_workflow('{"steps": [{"name": "one", "kind": "picky"}]}')});
is(sql("SELECT state FROM jobq.wait_batch($batch, '5 min')"), 'failed', 'a batch has failed');
($status, $data) = app('POST', "/api/batches/$batch/retry");
is("$status $data->{count}", '200 1', 'its dead letter runs again');
is(sql("SELECT state FROM jobq.wait_batch($batch, '5 min')"), 'failed', 'and fails again');
is((app('POST', '/api/batches/0/retry'))[0], 404, 'there is no such batch');
is(sql(q{SELECT jobq.delete_many(kind => 'picky')}), '1', 'the dead letter is deleted');

# Edit a waiting job.
($status, $data) = app('POST', '/api/jobs', '{"kind": "x", "queue": "c", "delay": "1 hour"}');
my $edited = $data->{id};
($status, $data) = ask('PATCH', "/api/jobs/$edited", { payload => 2 }, %boss);
like("$status $data->{detail}", qr/^403 permission denied/, 'a job is not edited by a role that may not be its role');
($status, $data) = app('PATCH', "/api/jobs/$edited", '{"payload": null, "headers": {"trace": "y"}, "max_attempts": 2, "queue": null}');
is("$status $data->{id} $data->{done}", "200 $edited 1", 'but by its own');
is(sql("SELECT payload, headers, max_attempts, queue FROM jobq.jobs WHERE id = $edited"), 'null|{"trace": "y"}|2|c', 'what was given has changed');
($status, $data) = app('PATCH', "/api/jobs/$edited", '{"tags": []}');
like("$status $data->{detail}", qr/^400 .*tags/, 'a member that it has not');
($status, $data) = app('PATCH', "/api/jobs/$edited", '{}');
like("$status $data->{detail}", qr/^4\d\d nothing is given/, 'nothing to edit');
($status, $data) = app('PATCH', "/api/jobs/$edited", '{"priority": 2, "run_at": "2100-01-01T00:00:00Z"}');
is("$status $data->{done}", '200 1', 'another priority, another time');
is(sql("SELECT priority, run_at AT TIME ZONE 'UTC' FROM jobq.jobs WHERE id = $edited"), '2|2100-01-01 00:00:00', 'it has both');
sql("SELECT jobq.cancel($edited)");

# Events.
($status, $data) = app('POST', '/api/jobs', '{"kind": "x", "queue": "c", "options": {"watch": true}}');
$id = $data->{id};
my $events = stream("/api/jobs/$id/events");
like(hear($events, qr/"ready"/), qr/Content-Type: text\/event-stream.*event: state\r?\ndata: \{"id":$id,"state":"ready"/s, 'the state of a job');
($status, $data) = app('POST', '/api/reserve', { queues => ['c'], wait => '60 s' });
my $job = $data->{jobs}[0];
like(hear($events, qr/"running"/), qr/event: state/, 'it is told when it runs');
is((app('POST', '/api/progress', { id => $id, token => $job->{token}, percent => 40, message => "x\r\n\r\nevent: evil" }))[0], 200, 'progress');
my $heard = hear($events, qr/"progress":40/);
like($heard, qr/"progress":40,"message":"x\\r\\n\\r\\nevent: evil"/, 'how far it is; a message adds no event');
my ($last) = $heard =~ /id: (\S+)/;
is((app('POST', '/api/ack', { id => $id, token => $job->{token}, result => { r => 1 } }))[0], 200, 'ack');
like(hear($events, qr/event: end\n.*\n\n/), qr/"completed".*"result":\{"r": 1\}/, 'and its end');
like(hear(stream("/api/jobs/$id/events", 'Last-Event-ID' => $last), qr/event: end/), qr/event: state\ndata: [^\n]*completed/, 'who comes back gets what has changed');
like(hear(stream('/api/jobs/999999/events'), qr/event: \w+/), qr/event: gone/, 'a job that is not there');
is((ask('GET', '/api/jobs/x/events', undef, Authorization => "Bearer $token"))[0], 400, 'no id');
is((ask('GET', '/api/events?topics=', undef, Authorization => "Bearer $token"))[0], 400, 'no topic');
$events = stream('/api/events?topics=queues,dead');
like(hear($events, qr/event: queues.*event: dead|event: dead.*event: queues/s), qr/"items"/, 'lists');
sql(q{SELECT jobq.pause('c')});
like(hear($events, qr/"name":"c","paused":true/), qr/event: queues/, 'which come when they have changed');
sql(q{SELECT jobq.resume('c')});

# Each filter finds the matching jobs only.
sql(q{SELECT jobq.create_queue('shared', mode => 'consumer', open => true, tenant => 'header customer', fair => 'jobs');
	SET ROLE app;
	SELECT jobq.enqueue('x', queue => 'shared', headers => '{"customer": "one"}', unique_key => 'k1'),
		jobq.enqueue('y', queue => 'shared', headers => '{"customer": "two"}', unique_key => 'k2')});
my ($one, $two) = split /\|/, sql(q{SELECT min(id), max(id) FROM jobq.jobs WHERE queue = 'shared'});
for my $filter ("id=$one", 'kind=x&queue=shared', 'tenant=one', 'unique_key=k1', 'tenant=one&state=ready&queue=shared&from=2020-01-01', "id=$one&tenant=one")
{
	($status, $data) = app('GET', "/api/jobs?$filter");
	is("$status " . join(' ', map { "$_->{id} $_->{tenant}" } @{ $data->{items} }), "200 $one one", "jobs by $filter");
}
for my $filter ("id=$one&tenant=two", 'tenant=none', "id=$one&state=completed", 'tenant=one&until=2020-01-01')
{
	($status, $data) = app('GET', "/api/jobs?$filter");
	is("$status " . scalar @{ $data->{items} }, '200 0', "none by $filter");
}
is((app('GET', '/api/jobs?id=x'))[0], 400, 'an id that is none');
is((ask('GET', "/api/jobs?tenant=one", undef, Authorization => "Bearer $other_token"))[1]{items}[0], undef, 'nothing of another role');
my $until = time + $patience;
do
{
	($status, $data) = app('POST', '/api/reserve', { queues => ['shared'], lease => '10 min', consumer => 'by name' });
} until @{ $data->{jobs} || [] } || time > $until;
my ($held, $held_token) = @{ $data->{jobs}[0] }{qw(id token)};
is(sql(q{SELECT string_agg(consumer, ' ') FROM jobq.workers WHERE running > 0}), 'by name', 'a job that was there is held by the name that was given');

# A stream has all lines of the log in order, each once.  A client that reconnects gets the missing
# lines, but no more than 100 lines are kept.
my $log_events = stream("/api/jobs/$held/events");
my ($told, %event) = ('');
for my $to (60, 120, 180)
{
	sql("SELECT count(jobq.log($held, $held_token, 'line ' || i || '.')) FROM generate_series($to - 59, $to) i");
	$told .= hear($log_events, qr/"line $to\."/);
}
$event{$2} = $1 while $told =~ /id: (\S+)\r?\nevent: log\r?\ndata: [^\n]*"line (\d+)\."/g;
my $lines = sub { return join ' ', $_[0] =~ /"line (\d+)\."/g; };
is($lines->($told), join(' ', 1 .. 180), 'all lines are told, though more than are kept');
is($lines->(hear(stream("/api/jobs/$held/events", 'Last-Event-ID' => $event{150}), qr/"line 180\."/)), join(' ', 151 .. 180),
	'who comes back gets the lines that he lacks');
$told = hear(stream("/api/jobs/$held/events", 'Last-Event-ID' => $event{20}), qr/"line 180\."/);
is($lines->($told), join(' ', 81 .. 180), 'or those that are left');
like($told, qr/event: missing.*"line 81\."/s, 'and that some may be missing');
unlike(hear(stream("/api/jobs/$held/events"), qr/"line 180\."/), qr/event: missing/, 'of which a new one knows nothing');
close $log_events;

# A line of the log, with the token of the lease and with other tokens.
is((app('POST', '/api/log', { id => $held, token => $held_token, message => "a\nline", level => 'warning' }))[0], 200, 'a line of the log');
is((app('POST', '/api/log', { id => $held, token => $held_token, message => 'more' }))[0], 200, 'another one');
is(sql("SELECT string_agg(l ->> 'level' || ': ' || (l ->> 'message'), '; ' ORDER BY n) FROM jobq.jobs, jsonb_array_elements(log) WITH ORDINALITY AS l(l, n) WHERE id = $held AND l ->> 'message' NOT LIKE 'line %'"),
	"warning: a\nline; info: more", 'they are kept');
($status, $data) = app('POST', '/api/log', { id => $held, token => $held_token + 1, message => 'evil' });
is("$status $data->{sqlstate}", '409 JQ011', 'none with a wrong token');
($status, $data) = app('POST', '/api/log', { id => $held, token => $held_token, message => 'x', level => 'loud' });
like("$status $data->{detail}", qr/^400 invalid level "loud"/, 'none of a level that there is not');
is((app('POST', '/api/log', { id => $held, token => $held_token }))[0], 400, 'none without a message');
($status, $data) = app('POST', '/api/reject', { id => $held, token => $held_token, reason => 'bad' });
is($status, 200, 'a dead letter of a tenant');
($status, $data) = app('POST', '/api/log', { id => $held, token => $held_token, message => 'late' });
is("$status $data->{sqlstate}", '409 JQ011', 'none when the lease is over');
is(join(' ', map { join ',', map { $_->{id} } @{ (app('GET', "/api/dead?tenant=$_"))[1]{items} } } 'one', 'two'), "$held ", 'dead letters by tenant');
is((app('POST', '/api/jobs/delete', { ids => [$held] }))[0] . ' ' . sql("SELECT count(*) FROM jobq.dead_letters WHERE id = $held"), '200 0', 'one is forgotten');
sql(q{SELECT jobq.cancel_many(queue => 'shared', state => 'waiting')});

# Consumers.
($status, $data) = app('POST', '/api/ack', { id => $id, token => $job->{token} });
is("$status $data->{sqlstate}", '409 JQ011', 'a lease that is over');
($status, $data) = app('POST', '/api/reserve', { queues => ['c'] });
is("$status " . scalar @{ $data->{jobs} }, '200 0', 'no job');
my $path = '/api/reserve';
my $wait = '{"queues": ["c"], "wait": "60 s", "consumer": "w"}';
my $post = "POST $path HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nContent-Length: ";
my @waiting = map { raw($server, $post . length($wait) . "\r\n\r\n$wait") } 1 .. 30;
my $waiters = q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobq web' AND query LIKE '%jobq.reserve(%' AND state = 'active'};
poll($node, "SELECT ($waiters) = 1");
sql(q{SET ROLE app; SELECT jobq.enqueue('x', jsonb_build_object('n', n), queue => 'c') FROM generate_series(1, 30) n});
my (%seen, %lease);
for my $socket (@waiting)
{
	my $answer = hear($socket, qr/\}\]\}/);

	$seen{$1}++ if $answer =~ /"payload":\{"n": (\d+)\}/;
	$lease{$1} = $2 if $answer =~ /"id":(\d+),"token":(\d+)/;
}
is(scalar(keys %seen), 30, 'thirty that wait on one connection get a job each');
# Some requests may not have been read before the jobs came.
is(sql(q{SELECT bool_and(consumer IN ('jobq web', 'w')), bool_or(consumer = 'jobq web') FROM jobq.workers WHERE running > 0}), 't|t', 'by the name of the server, if they have waited');
is(sql(q{SELECT sum(running) FROM jobq.workers}), '30', 'which they hold');
my @ids = keys %lease;
($status, $data) = app('POST', '/api/ack', { ids => \@ids, tokens => [ @lease{@ids} ] });
is("$status " . sql(q{SELECT count(*) FROM jobq.jobs WHERE kind = 'x' AND payload ? 'n' AND state = 'completed'}), '200 30', 'until they are done, many at a time');

# A consumer holds no job after a hang-up during its wait.
my $gone = raw($server, $post . length($wait) . "\r\n\r\n$wait");
poll($node, "SELECT ($waiters) = 1");
close $gone;
wait_for($node, 'nobody waits for one that has hung up', "SELECT ($waiters) = 0");
my $other = '{"queues": ["d/\"e\" ü"], "wait": "60 s"}';
$gone = raw($server, $post . length($wait) . "\r\n\r\n$wait");
my $there = raw($server, $post . length($other) . "\r\n\r\n$other");
poll($node, "SELECT ($waiters) = 1");
close $gone;
sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'c'), jobq.enqueue('y', queue => 'd/"e" ü')});
like(hear($there, qr/\}\]\}/), qr/"kind":"y"/, 'who is there gets his job');
wait_for($node, 'and nobody else', q{SELECT sum(running) = 1 FROM jobq.workers});
is(sql(q{SELECT attempt FROM jobq.live_jobs WHERE queue = 'c'}), '0', 'and that of the other is free');

# Malicious callers.
for my $path ('/../../../../etc/passwd', '/..%2f..%2f..%2fetc%2fpasswd', '/web.c', '/%00', '/index.html%00', '/api/jobs/%zz', '//etc/passwd')
{
	my $answer = hear(raw($server, "GET $path HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nConnection: close\r\n\r\n"));
	like($answer, qr/^HTTP\/1.1 40[04]/, "no file: $path");
	unlike($answer, qr/root:/, 'really');
}
my $answer = hear(raw($server, "GET /api/jobs/1%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nConnection: close\r\n\r\n"));
like($answer, qr/^HTTP\/1.1 400/, 'a line feed in a path');
unlike($answer, qr/^Set-Cookie/m, 'adds no header');
like(hear(raw($server, "GET / HTTP/1.1\r\nHost: x\r\nX: " . 'x' x 100_000 . "\r\n\r\n")), qr/^(HTTP\/1.1 4\d\d|$)/, 'long headers');
like(hear(raw($server, "POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nContent-Length: 1000001\r\n\r\n"), qr/\r\n\r\n/),
	qr/^HTTP\/1.1 413/, 'a body that is too large');
$answer = hear(raw($server, "POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	  . ("FFFF\r\n" . 'x' x 65535 . "\r\n") x 20 . "0\r\n\r\n"), qr/\}/);
like($answer, qr/^HTTP\/1.1 413/, 'one that does not say how large it is');
is((ask('PATCH', '/api/jobs', undef, Authorization => "Bearer $token"))[0], 405, 'a method that is not there');
is((app('GET', '/api/nothing'))[0], 404, 'a path that is not there');

drip();

# Many event streams cost one statement, little memory, and no connection each.
my $pid = web_pid($server);
my @many = map { stream('/api/events?topics=overview,queues,jobs') } 1 .. 500;
is(scalar(grep { hear($_, qr/event: overview.*event: jobs|event: jobs.*event: overview/s) =~ /event: overview/ } @many), 500, '500 browsers');
my ($memory) = slurp_file("/proc/$pid/status") =~ /VmHWM:\s*(\d+) kB/;
cmp_ok($memory, '<', 100_000, 'within 100 MB');
wait_for($node, 'one connection listens for all',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename = current_user AND pid <> pg_backend_pid()});
# connections of closed streams may stay for a moment
wait_for($node, 'and a few are of their role',
	q{SELECT count(*) <= 4 FROM pg_stat_activity WHERE application_name = 'jobq web' AND usename = 'app' AND query !~ 'reserve'});
close $_ foreach @many;
drip();

# Hidden payloads, and a read-only server.
$id = (app('POST', '/api/jobs', '{"kind": "same", "payload": {"secret": "geheim"}, "headers": {"h": "geheim"}}'))[1]{id};
sql("SELECT jobq.wait($id, '5 min')");
my $shy = serve($jobq, '--token-file', "$dir/tokens", '--hide-payload', 'boss,app', '--read-only');
for my $list ("jobs/$id", "jobs/$id/history", 'jobs', 'dead', 'schedules', 'batches', 'workers')
{
	my $text = $http->get("$shy->{url}/api/$list", { headers => { Authorization => "Bearer $token" } })->{content};
	unlike($text, qr/geheim/, "no payload in $list");
}
is((app('GET', "/api/jobs/$id", undef, base => $shy->{url}))[1]{payload_hidden}, 1, 'as it says');
unlike(hear(raw($shy, "GET /api/jobs/$id/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n"), qr/event: end/), qr/geheim/, 'or in events');
is((app('POST', '/api/reserve', '{"queues": ["c"]}', base => $shy->{url}))[0], 403, 'or for a consumer');
is((app('DELETE', "/api/jobs/$id", undef, base => $shy->{url}))[0], 403, 'nothing is changed');
is((log_in('boss', 'boss', $shy->{url}))[0], 200, 'but who logs in');
$shy->{process}->signal('INT');
ok($shy->{process}->finish, 'Ctrl-C ends it');
my $open = serve($jobq, '--allow-trust', '--hide-payload', 'all', '--token-file', "$dir/tokens");
($status, $data) = log_in('open', 'anything', $open->{url});
is("$status $data->{hide_payload}", '200 1', 'a role without a password, if that is wanted');
is((app('GET', "/api/jobs/$id", undef, base => $open->{url}))[1]{payload}{secret}, 'geheim', 'all are those who log in, not programs');

# A job gets the trace of the request.
my @traces = map { "00-4bf92f3577b34da6a3ce929d0e0e473$_-00f067aa0ba902b7-01" } 1, 2;
for my $case ([ '', qq({"traceparent": "$traces[0]"}) ], [ ', "headers": null', qq({"traceparent": "$traces[0]"}) ],
	[ ', "headers": {"a": 1}', qq({"a": 1, "traceparent": "$traces[0]"}) ], [ ', "headers": [1]', '[1]' ],
	[ qq(, "headers": {"traceparent": "$traces[1]"}), qq({"traceparent": "$traces[1]"}) ])
{
	($status, $data) = app('POST', '/api/jobs', qq({"kind": "same"$case->[0]}), traceparent => $traces[0]);
	is("$status " . sql("SELECT headers FROM jobq.jobs WHERE id = $data->{id}"), "202 $case->[1]", "the trace of the request$case->[0]");
}
($status, $data) = app('POST', '/api/jobs', '{"kind": "same"}', traceparent => 'x');
is("$status " . sql("SELECT headers IS NULL FROM jobq.jobs WHERE id = $data->{id}"), '202 t', 'and what is none');

# TLS.
SKIP:
{
	my $openssl = IPC::Run::run([ 'sh', '-c', 'command -v openssl' ], '>', File::Spec->devnull);
	skip 'there is no openssl', 3 unless $openssl;
	IPC::Run::run([ qw(openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout), "$dir/key", '-out', "$dir/cert" ],
		'2>', File::Spec->devnull) or die 'openssl';
	my $tls = serve($jobq, '--tls-cert', "$dir/cert", '--tls-key', "$dir/key");
	my ($out, $err);
	append_to_file("$dir/request", "GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n");
	IPC::Run::run([ qw(openssl s_client -quiet -CAfile), "$dir/cert", '-connect', "127.0.0.1:$tls->{port}" ],
		'<', "$dir/request", '>', \$out, '2>', \$err, IPC::Run::timeout($patience));
	like($out, qr/^HTTP\/1\.[01] 200.*Strict-Transport-Security: .*"ok"/s, 'TLS') or diag($err);
	IPC::Run::run([ qw(openssl s_client -tls1_1 -cipher ALL:@SECLEVEL=0 -connect), "127.0.0.1:$tls->{port}" ],
		'<', File::Spec->devnull, '>', \$out, '2>', \$err, IPC::Run::timeout($patience));
	like("$out$err", qr/alert protocol version|Cipher is \(NONE\)/, 'none that is broken');
	unlike(hear(raw($tls, "GET /healthz HTTP/1.0\r\n\r\n")), qr/"ok"/, 'and nothing else');
}
drip();

# The database server goes away, and comes back.
$there = raw($server, $post . length($other) . "\r\n\r\n$other");
poll($node, "SELECT ($waiters) >= 1");
$node->restart;
like(hear($there, qr/\}/), qr/^HTTP\/1.1 503/, 'who waits is told');
my $end = time + $patience;
usleep(50_000) while ($status = (ask('GET', '/healthz'))[0]) == 503 && time < $end;
is($status, 200, 'it is there again');
is((app('GET', "/api/jobs/$id"))[1]{state}, 'completed', 'for all');

# The slow requests have been cut off, some only by now.
for my $what (sort keys %slow)
{
	my $heard = hear($slow{$what});
	my $byte;

	unlike($heard, qr/^HTTP\/1.1 2/, "a request that lacks the end $what");
	ok(IO::Select->new($slow{$what})->can_read(0) && !sysread($slow{$what}, $byte, 1), 'is cut off');
}

drip();
hear($again) if $cut_off !~ /again/;
drip();
like($cut_off, qr/^ again/, 'a second request that does not end is cut off, and before a connection that rests');

# The end of a session, of a token, and of the server.
is((ask('DELETE', '/api/session', undef, %app))[0], 204, 'log out');
is((ask('GET', '/api/session', undef, %app))[0], 401, 'and be nobody');
token_file("$dir/tokens", "$other_token user=other password=other");
$server->{process}->signal('HUP');
$end = time + $patience;
usleep(50_000) while ($status = (app('GET', '/api/session'))[0]) == 200 && time < $end;
is($status, 401, 'a token that is taken away');
is((ask('GET', '/api/session', undef, Authorization => "Bearer $other_token"))[0], 200, 'the others stay');

my ($openapi_status, $openapi) = ask('GET', '/api/openapi.json');
is($openapi->{openapi}, '3.1.0', 'the routes are described');

# The API description lists exactly the existing routes and their parameters.
my (@described, @there, @without);
for my $path (sort keys %{ $openapi->{paths} })
{
	while (my ($method, $route) = each %{ $openapi->{paths}{$path} })
	{
		my @words = map { $_->{'$ref'} ? $openapi->{components}{parameters}{ $_->{'$ref'} =~ s/.*\///r } : $_ } @{ $route->{parameters} || [] };
		my $body = $route->{requestBody}{content}{'application/json'}{schema};
		$body = $openapi->{components}{schemas}{ $body->{'$ref'} =~ s/.*\///r } if $body && $body->{'$ref'};
		push @described, join ' ', uc $method, $path =~ s/\{\w+\}/{}/gr, (sort map { "?$_->{name}" } grep { $_->{in} eq 'query' } @words),
		  sort keys %{ $body->{properties} || {} };
	}
}
my $options = slurp_file("$FindBin::RealBin/../../src/produce/options.h");
my $produce = join ' ', $options =~ /^JOB_OPTION\((\w+),/mg;
my $new_job = $openapi->{components}{schemas}{NewJob}{properties};
for my $nested ([ uniqueness => 'UNIQUENESS_OPTION' ], [ options => 'OTHER_OPTION' ])
{
	is(join(' ', sort keys %{ $new_job->{ $nested->[0] }{properties} }), join(' ', sort $options =~ /^$nested->[1]\("?(\w+)/mg), "the members of $nested->[0] are described");
}
my $settings = join ' ', slurp_file("$FindBin::RealBin/../../src/store/queue_settings.h") =~ /^QUEUE_SETTING\((\w+),/mg;
# in routes.c, CONDITION_MEMBERS stands for the conditions, and the range of times of the lists
my $conditions = join ' ', 'from until', grep { !/^(ids|state)$/ } slurp_file("$FindBin::RealBin/../../src/operate/filters.h") =~ /^JOB_FILTER\((\w+),/mg;
my ($table) = slurp_file("$FindBin::RealBin/../../client/web/routes.c") =~ /const Route routes\[\] = \{(.*?)^\};/ms;
for my $route (split /^\t(?=\{"|NAMED|LEASE_ROUTE)/m, $table)
{
	my ($method, $path) = $route =~ /^\{"(\w+)", "([^"]+)"/ ? ($1, $2) : $route =~ /^NAMED\("(\w+)", "(\w+)"/ ? ('POST', "/api/$1/{}/$2")
	  : $route =~ /^LEASE_ROUTE\((\w+|"\w+")/ ? ('POST', '/api/' . $1 =~ tr/"//dr) : next;
	my ($members) = $route =~ /\.members = "([^"]*)"/ ? $1 : $route =~ /^LEASE_ROUTE\("\w+", "([^"]*)".*, "([^"]*)", / ? join(' ', keys %{ { map { $_ => 1 } split / /, "id token ids tokens $1 $2" } }) : $route =~ /enqueue_members/ ? "kind payload $produce"
	  : $route =~ /queue_members/ ? $settings : '';
	$members = join ' ', sort keys %{ { map { $_ => 1 } split ' ', "$members $conditions" } } if $route =~ /CONDITION_MEMBERS/;
	$members .= " $1" if $route =~ /\.members_of_many = "([^"]*)"/;
	my ($arguments) = $route =~ /\.parameters = "([^"]*)"/ ? $1 : '';
	next if $path !~ m{^/(api/|metrics|healthz|signal/)} || $path eq '/api/openapi.json';
	push @without, $path if $method eq 'GET' && $route !~ /\.shown = /;
	$members = 'role password' if "$method $path" eq 'POST /api/session';
	push @there, join ' ', $method, $path, (sort map { s/^[-=]/?/r } grep { /^[?=-]/ } split / /, $arguments), sort map { tr/!-//dr } split / /, $members;
}
cmp_ok(scalar @there, '>', 40, 'the table of routes can be read');
is(join("\n", sort @described), join("\n", sort @there), 'and in full');
my @filters = slurp_file("$FindBin::RealBin/../../src/operate/filters.h") =~ /^JOB_FILTER\((\w+),/mg;
is(join(' ', sort keys %{ $openapi->{components}{schemas}{Conditions}{properties} }), join(' ', sort @filters, qw(from until)), 'the conditions on jobs are those of SQL, and a range of times');
is(scalar(grep { !$_->{responses}{'4XX'} } map { values %$_ } values %{ $openapi->{paths} }), 0, 'each operation has its problems');
is("@without", '/healthz /metrics /api/databases /api/session /signal/{} /api/events', 'each says what is shown when payloads are hidden');

# No part of a request is ignored: neither a second value of an argument, nor a value with a byte that is zero,
# nor an object for a member that is a text or a number.  Each problem has a type.
my (@ignored, %types);
my $checked = 0;
sub refuses
{
	my ($method, $path, $body, $type) = @_;
	my ($got, $problem) = ask($method, $path, $body, Authorization => "Bearer $other_token");

	$checked++;
	$types{ $problem->{type} // 'none' }++ if ref $problem eq 'HASH';
	push @ignored, "$method $path " . ($body ? $json->encode($body) : '') . ": $got " . (ref $problem eq 'HASH' ? $problem->{type} // '' : '') unless $got == 400 && $problem->{type} =~ /^urn:problem-type:jobq:(?:$type)$/;
	return;
}
for my $path (sort grep { m{^/api/(?!session)} && !/events/ } keys %{ $openapi->{paths} })
{
	my $item = $openapi->{paths}{$path};
	my $to = $path =~ s/\{\w+\}/1/gr;

	for my $method (sort grep { $_ ne 'parameters' } keys %$item)
	{
		my $body = $item->{$method}{requestBody}{content}{'application/json'}{schema};
		my %members;

		refuses(uc $method, "$to?colour=red", $body ? {} : undef, 'unknown-argument');
		for my $argument (map { $_->{name} } grep { $_->{in} eq 'query' } map { $_->{'$ref'} ? $openapi->{components}{parameters}{ $_->{'$ref'} =~ s/.*\///r } : $_ } @{ $item->{$method}{parameters} || [] })
		{
			refuses('GET', "$to?$argument=1&$argument=2", undef, 'invalid-argument');
			refuses('GET', "$to?$argument=1%00", undef, 'invalid-argument');
		}
		next unless $body;
		$body = $openapi->{components}{schemas}{ $body->{'$ref'} =~ s/.*\///r } if $body->{'$ref'};
		$members{$_} = $body->{properties}{$_} foreach keys %{ $body->{properties} || {} };
		for my $name (grep { !ref($members{$_}{type}) && ($members{$_}{type} // '') =~ /^(?:string|integer|number|boolean)$/ } sort keys %members)
		{
			refuses(uc $method, $to, { (map { $_ => 1 } @{ $body->{required} || [] }), $name => {} }, 'invalid-member|missing-member|22\w{3}');
		}
		refuses(uc $method, $to, { colour => 'red' }, 'unknown-member') if %members;
	}
}
is(join("\n", @ignored), '', "$checked requests are refused");
cmp_ok($checked, '>', 300, 'which are many');
like((ask('GET', '/api/nothing'))[1]{type}, qr/^urn:problem-type:jobq:not-found$/, 'a path that does not exist');
like((ask('GET', '/api/jobs/5', undef, Authorization => "Bearer $other_token"))[1]{type}, qr/^urn:problem-type:jobq:(?:not-found|JQ003)$/, 'a job that does not exist');

# A member has the name of the column in the view, or is one of those that only HTTP has.
my %view_of = (
	JobLine => [ 'jobs', '' ], Job => [ 'jobs', 'sqlstate error_context step payload_hidden may_edit' ], Failure => [ 'failures', 'new' ],
	DeadLetter => [ 'dead_letters', '' ], Queue => [ 'queues', 'waiting_seconds' ], Kind => [ 'kinds', '' ], Worker => [ 'workers', 'name job_seconds' ],
	Schedule => [ 'schedules', 'next_ticks' ], Batch => [ 'batches', 'steps' ], Step => [ 'steps', 'kind attempt progress error started_at finished_at' ],
	Limiter => [ 'limits', 'name' ], AuditEntry => [ 'audit_log', '' ], ReservedJob => [ 'reserved_job', '' ]);
for my $name (sort keys %view_of)
{
	my ($view, $more) = @{ $view_of{$name} };
	my $schema = $openapi->{components}{schemas}{$name};
	my %named = map { $_ => 1 } split(/ /, $more), split /\n/, sql("SELECT attname FROM pg_attribute WHERE attrelid = 'jobq.$view'::regclass AND attnum > 0 AND NOT attisdropped");
	my @members = map { keys %{ $_->{properties} || {} } } $schema, @{ $schema->{allOf} || [] };
	cmp_ok(scalar @members, '>', 4, "$name has members");
	is(join(' ', sort grep { !$named{$_} } @members), '', "$name has the names of the view $view");
}

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends well');
wait_for($node, 'and leaves no connection', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'jobq web'});

no_failed_assertion($node);
done_testing();
