# jobq web: what it tells of jobs, and hides; and consumers that settle several at a
# time.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use JSON::PP ();
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $jobq) = web_node();
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN;
SELECT jobq.grant_role('app', 'manage');
CREATE FUNCTION same(p jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT p';
CREATE FUNCTION bad(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this is not good'; END $$;
SELECT jobq.register('same', 'same(jsonb)', carry => '{app.name}'), jobq.register('bad', 'bad(jsonb)', max_attempts => 1, carry => '{app.name}');
SELECT jobq.create_queue('c', mode => 'consumer')});

my $token = 'Abcdefghijklmnopqrstuvwx0';
token_file("$dir/tokens", "$token user=app");
my $server = serve($jobq, '--token-file', "$dir/tokens");
my $shy = serve($jobq, '--token-file', "$dir/tokens", '--hide-payload', 'app');
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
my $json = JSON::PP->new->utf8;

# The answer to a request: its status, its body as a text, and that as data.
sub ask
{
	my ($method, $path, $body, $base) = @_;
	my $answer = $http->request($method, ($base || $server)->{url} . $path,
		{   headers => { Authorization => "Bearer $token", defined $body ? ('Content-Type' => 'application/json') : () },
			defined $body ? (content => ref $body ? $json->encode($body) : $body) : () });

	return ($answer->{status}, $answer->{content}, eval { $json->decode($answer->{content}) });
}

# So many jobs of the queue, with the body's members that name their leases.
sub held
{
	my ($n) = @_;

	sql("SET ROLE app; SELECT jobq.enqueue('x', queue => 'c') FROM generate_series(1, $n)");
	my $jobs = (ask('POST', '/api/reserve', { queues => ['c'], max => $n, wait => '1 min' }))[2]{jobs};
	return (ids => [ map { $_->{id} } @$jobs ], tokens => [ map { $_->{token} } @$jobs ]);
}

my ($status, $text, $data);

# A connection that goes silent; what becomes of who asks there is seen at the end.
my $patient = serve($jobq, '--token-file', "$dir/tokens", '--timeout', '10s');
is((ask('GET', '/api/queues', undef, $patient))[0], 200, 'there is a connection');
my $silent = sql(q{SELECT pid FROM pg_stat_activity WHERE application_name = 'jobq web' AND usename = 'app'});
ok(stop_at_rest($node, $silent, 'Client'), 'which goes silent');
my $asked = raw($patient, "GET /api/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n");

# A dead letter tells where it failed.
my %given = (payload => { a => 'geheim' }, headers => { a => 'geheim' }, context => { 'app.name' => 'geheim' });
my ($good, $bad) = map { (ask('POST', '/api/jobs', { kind => $_, %given }))[2]{id} } qw(same bad);
is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM jobq.wait(ARRAY[$good, $bad], '5 min')"), 'completed failed', 'a job that is completed, and one that has failed');
($status, $text, $data) = ask('GET', "/api/jobs/$bad");
like($data->{error_context}, qr/^PL\/pgSQL function bad\(jsonb\) line 1 at RAISE/, 'it is told where a job has failed');
is($data->{context}{'app.name'}, 'geheim', 'and with which settings');
like((ask('GET', '/api/failed'))[2]{items}[0]{error_context}, qr/^PL\/pgSQL function bad/, 'so it is in the list');
is((ask('GET', "/api/jobs/$good/history"))[2]{items}[-1]{detail}, '{"a": "geheim"}', 'the history tells the result');

# Nothing of that is shown to whom payloads are hidden from.
sql(q{SET ROLE app; SELECT jobq.schedule('s', '@yearly', 'same', '{"a": "geheim"}', options => '{"headers": {"a": "geheim"}}', context => '{"app.name": "geheim"}')});
for my $path ("jobs/$good", "jobs/$bad", "jobs/$good/history", "jobs/$bad/history", 'jobs', 'failed', 'schedules')
{
	($status, $text) = ask('GET', "/api/$path", undef, $shy);
	is($status, 200, $path);
	unlike($text, qr/geheim/, "hides what is hidden in $path");
}
like((ask('GET', "/api/jobs/$bad/history", undef, $shy))[1], qr/this is not good/, 'errors are told');

# Several are settled at a time, each with its result.
my %lease = held(3);
($status) = ask('POST', '/api/ack', { %lease, results => [ { n => 1 }, undef, 'three' ] });
is("$status " . sql(q{SELECT string_agg(coalesce(result::text, '-'), ' ' ORDER BY id) FROM jobq.jobs WHERE queue = 'c' AND state = 'completed'}),
	'200 {"n": 1} - "three"', 'each has its result');
%lease = held(2);
for my $case ([ { %lease, result => 1 }, qr/"result", which is not known/ ], [ { %lease, results => [1] }, qr/./ ],
	[ { %lease, id => 1 }, qr/"id", which is not known/ ], [ { ids => $lease{ids} }, qr/lacks the member "tokens"/ ],
	[ { id => $lease{ids}[0], token => $lease{tokens}[0], results => [1] }, qr/"results", which is not known/ ])
{
	($status, $text, $data) = ask('POST', '/api/ack', $case->[0]);
	like("$status $data->{detail}", qr/^400 .*$case->[1]/, 'refused: ' . join(' ', sort keys %{ $case->[0] }));
}
is(sql(q{SELECT sum(jobs_held) FROM jobq.workers}), '2', 'and they are held still');
like((ask('POST', '/api/release', { %lease, payload => 1 }))[2]{detail}, qr/"payload", which is not known/, 'several do not get one payload');
is((ask('POST', '/api/release', { id => $lease{ids}[0], token => $lease{tokens}[0], payload => { page => 7 } }))[0], 200, 'one is given back');
is(sql("SELECT state, payload FROM jobq.jobs WHERE id = $lease{ids}[0]"), 'ready|{"page": 7}', 'with what it has next time');
is((ask('POST', '/api/ack', { map { $_ => [ $lease{$_}[1] ] } keys %lease }))[0], 200, 'no results');

# Dead letters are forgotten by their kind.
($status, $text, $data) = ask('POST', '/api/failed/forget', { kind => 'same' });
is("$status $data->{count}", '200 0', 'there are none of this kind');
($status, $text, $data) = ask('POST', '/api/failed/forget', { kind => 'bad' });
is("$status $data->{count} " . sql('SELECT count(*) FROM jobq.failed_jobs'), '200 1 0', 'but one of this');

like(hear($asked, qr/\r\n\r\n/), qr/^HTTP\/1.1 503/, 'who has asked where nothing comes is told');
is((ask('GET', '/api/queues', undef, $patient))[0], 200, 'others get an answer');
kill('CONT', $silent);

foreach my $run ($server, $shy, $patient)
{
	$run->{process}->signal('TERM');
	ok($run->{process}->finish, 'it ends');
}
$node->stop;
no_failed_assertion($node);
done_testing();
