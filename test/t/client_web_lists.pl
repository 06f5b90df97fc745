# jobq web: each list of jobs and dead letters examines a bounded number of rows, however many jobs exist.

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

# The rows that a statement examines are the calls of may_see(), which the server counts.
$node->append_conf('postgresql.conf', "track_functions = 'all'");
$node->reload;
my ($JOBS, $DEAD, $TENANTS) = (24_000, 14_000, 600);
sql(qq{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN;
SELECT jobq.grant_privilege('app', 'manage');
SELECT jobq.create_queue('shared', mode => 'consumer', tenant => 'header customer', fair => 'jobs');
SELECT count(jobq.enqueue('parcel', queue => 'shared', headers => jsonb_build_object('customer', 't' || n % $TENANTS),
	delay => CASE WHEN n % 4 = 0 THEN n * interval '1 min' ELSE '0' END)) FROM generate_series(1, $JOBS) n;
INSERT INTO jobq_internal.dead_letter (id, finished_at, enqueued_at, started_at, run_at, queue_id, priority, role, attempt, max_attempts, kind, payload,
		exceptions, crashes, watch, fingerprint, error, sqlstate, errors)
	SELECT nextval('jobq_internal.job_id_seq'), t.at, t.at, t.at, t.at, q.id, 0, 'app'::regrole, 1, 3, 'parcel', '{}', 0, 0, false, 1 + n % 2, 'no', 'P0001',
		jsonb_build_array(jsonb_build_object('attempt', 1, 'at', t.at, 'fingerprint', 1 + n % 2, 'sqlstate', 'P0001', 'message', 'no ' || n % 2))
	-- the first of the two causes is older than an hour, beyond the letters that are read
	FROM jobq_internal.queue q, generate_series(1, $DEAD) n, LATERAL (SELECT now() - CASE n WHEN 2 THEN interval '2 h' ELSE '0' END AS at) t WHERE q.name = 'shared';
INSERT INTO jobq_internal.archive (id, finished_at, enqueued_at, started_at, run_at, queue_id, priority, role, attempt, max_attempts, kind, payload, state)
	SELECT nextval('jobq_internal.job_id_seq'), now(), now(), now(), now(), q.id, 0, 'app'::regrole, 1, 3, 'parcel', '{}', 'c'
	FROM jobq_internal.queue q, generate_series(1, $JOBS) WHERE q.name = 'shared'});
sql('VACUUM ANALYZE');

my $token = 'Abcdefghijklmnopqrstuvwx0';
token_file("$dir/tokens", "$token user=app");
my $server = serve($jobq, '--token-file', "$dir/tokens");
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);

# A backend adds its counts to those of the server when it ends.
my $seen = q{SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'jobq_internal' AND funcname = 'may_see'};

sub leave
{
	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
	wait_for($node, 'the connections of the role have ended', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'app')});
	return;
}

my @times = map { ($_, "-$_") } qw(enqueued_at run_at started_at finished_at);
my @lists = ((map { "jobs?$_" } '', 'kind=none', 'tenant=none', 'state=scheduled&kind=none', 'state=completed&kind=none', 'error=none', 'from=2100-01-01'),
	(map { ("jobs?order=$_", "jobs?order=$_&state=ready") } @times), (map { ("jobs?order=$_&state=completed", "jobs?order=-$_&state=dead") } qw(enqueued_at finished_at)),
	'jobs?order=-run_at&state=scheduled', 'jobs?order=started_at&state=running', 'jobs?order=run_at&state=retryable',
	'jobs?order=run_at&state=ready&tenant=none', 'jobs?order=-run_at&state=scheduled&from=2100-01-01', 'jobs?order=run_at&state=ready&limit=200',
	'dead', 'dead?kind=none', 'dead?fingerprint=1', 'failures', 'failures?queue=shared', 'failures?kind=none', 'doctor', 'batches', 'runs', 'kinds/parcel');
my %items;
my @many;

foreach my $list (@lists)
{
	my $before = sql($seen);
	my $answer = $http->get("$server->{url}/api/$list", { headers => { Authorization => "Bearer $token" } });

	leave();
	my $rows = sql($seen) - $before;

	is($answer->{status}, 200, "$list: $rows rows");
	push @many, "$list: $rows" if $rows > 12_000;
	$items{$list} = JSON::PP::decode_json($answer->{content});
}
is("@many", '', 'no list examines most of the jobs');
is(join(' ', map { scalar @{ $items{"jobs?order=$_"}{items} } } 'run_at&state=ready', '-run_at&state=scheduled', '-enqueued_at&state=dead', 'finished_at&state=completed', 'enqueued_at'), '50 50 50 50 50', 'pages are full');
is(join(' ', map { $items{"jobs?order=$_"}{partial} ? 'partial' : 'whole' } '-enqueued_at', '-finished_at&state=dead', 'run_at&state=ready', 'started_at&state=running'), 'partial partial whole whole', 'a list says whether there are more jobs than it has sorted');
is(join(', ', $items{failures}{partial}, map { "$_->{message} " . ($_->{new} ? 'new' : 'old') . ($_->{failed} == 2500 ? '' : " $_->{failed}") } sort { $a->{fingerprint} <=> $b->{fingerprint} } @{ $items{failures}{items} }),
	'1, no 0 old, no 1 new', 'the causes of the newest dead letters, and whether older ones have them');
is(scalar(grep { $_->{detail} eq 'more than 5000 dead letters exist, more than 5000 of them from the last day' } @{ $items{doctor}{items} }), 1, 'doctor() counts up to a limit');
is(scalar @{ $items{'jobs?order=run_at&state=ready&limit=200'}{items} }, 100, 'a merge of lanes has a hundred jobs at most');
like($items{'jobs?order=run_at&state=ready&limit=200'}{next}, qr/^\d+-\d+$/, 'and says where to go on');

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends');
$node->stop;
no_failed_assertion($node);
done_testing();
