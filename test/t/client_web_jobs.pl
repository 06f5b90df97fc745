# jobq web: shown and hidden values of jobs, and consumers that settle several jobs at a time.

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
SELECT jobq.grant_privilege('app', 'manage');
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

# Send a request.  Returns status, body as text, and body as data.
sub ask
{
	my ($method, $path, $body, $base) = @_;
	my $answer = $http->request($method, ($base || $server)->{url} . $path,
		{   headers => { Authorization => "Bearer $token", defined $body ? ('Content-Type' => 'application/json') : () },
			defined $body ? (content => ref $body ? $json->encode($body) : $body) : () });

	return ($answer->{status}, $answer->{content}, eval { $json->decode($answer->{content}) });
}

# Reserve n jobs of the queue.  Returns the body members with the leases.
sub held
{
	my ($n) = @_;

	sql("SET ROLE app; SELECT jobq.enqueue('x', queue => 'c') FROM generate_series(1, $n)");
	my $jobs = (ask('POST', '/api/reserve', { queues => ['c'], max_jobs => $n, wait => '1 min' }))[2]{jobs};
	return (ids => [ map { $_->{id} } @$jobs ], tokens => [ map { $_->{token} } @$jobs ]);
}

my ($status, $text, $data);

# A connection goes silent.  The end of the test checks the response to the waiting caller.
my $patient = serve($jobq, '--token-file', "$dir/tokens", '--timeout', '10s');
is((ask('GET', '/api/queues', undef, $patient))[0], 200, 'there is a connection');
my $silent = sql(q{SELECT pid FROM pg_stat_activity WHERE application_name = 'jobq web' AND usename = 'app'});
ok(stop_at_rest($node, $silent, 'Client'), 'which goes silent');
my $asked = raw($patient, "GET /api/queues HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n");

# A dead letter shows where the job failed.
my %given = (payload => { a => 'geheim' }, headers => { a => 'geheim' }, options => { context => { 'app.name' => 'geheim' } });
my ($good, $bad) = map { (ask('POST', '/api/jobs', { kind => $_, %given }))[2]{id} } qw(same bad);
is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM jobq.wait_many(ARRAY[$good, $bad], '5 min')"), 'completed dead', 'a job that is completed, and one that has failed');
($status, $text, $data) = ask('GET', "/api/jobs/$bad");
like($data->{error_context}, qr/^PL\/pgSQL function bad\(jsonb\) line 1 at RAISE/, 'it is told where a job has failed');
is($data->{context}{'app.name'}, 'geheim', 'and with which settings');
like((ask('GET', '/api/dead'))[2]{items}[0]{error_context}, qr/^PL\/pgSQL function bad/, 'so it is in the list');
is((ask('GET', "/api/jobs/$good/history"))[2]{items}[-1]{detail}, '{"a": "geheim"}', 'the history tells the result');

# A signal, with its name in the path, and any JSON as its payload.
($status, $text, $data) = ask('POST', "/api/jobs/$bad/signals/go%20on", { by => 'Ann' });
ok($status == 200 && $data->{done}, 'a dead letter keeps a signal');
is(sql("SELECT name, payload FROM jobq_internal.signal WHERE job_id = $bad"), 'go on|{"by": "Ann"}', 'with its name and payload');
($status, $text, $data) = ask('POST', "/api/jobs/$good/signals/go", {});
ok($status == 200 && !$data->{done}, 'a completed job does not receive it');
is((ask('POST', "/api/jobs/$bad/signals/", {}))[0], 404, 'a signal without a name');
is((ask('POST', "/api/jobs/$bad/signals/a/b", {}))[0], 404, 'a path that is too long');

# A signal to the job that holds a unique key.
sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'c', unique_key => 'order 17', delay => '1 hour'), jobq.enqueue('y', queue => 'c', unique_key => 'order 17', options => '{"delay": "1 hour", "uniqueness": {"scope": "queue"}}')});
my %signal = (unique_key => 'order 17', name => 'paid', payload => [42]);
is((ask('POST', '/api/jobs/signal', { %signal, kind => 'x' }))[1], '{"done" : true}', 'a signal by unique key');
is((ask('POST', '/api/jobs/signal', { unique_key => 'order 17', name => 'seen', scope => 'queue', queue => 'c' }))[1], '{"done" : true}', 'by a key of the queue, without a payload');
is(sql(q{SELECT string_agg(format('%s %s %s', j.kind, s.name, s.payload), ',' ORDER BY s.id) FROM jobq_internal.signal s JOIN jobq.jobs j ON j.id = s.job_id WHERE j.unique_key = 'order 17'}),
	'x paid [42],y seen {}', 'each has its own signal');
like((ask('POST', '/api/jobs/signal', { %signal, kind => 'x' }, $shy))[1], qr/member \\"unique_key\\", which is not known here/, 'a caller without access to payloads cannot guess a key');
is((ask('POST', '/api/jobs/signal', { %signal, kind => 'z' }))[1], '{"done" : false}', 'no job holds the key');
is((ask('POST', '/api/jobs/signal', { %signal, @$_ }))[0], 400, "@$_: arguments that do not fit the scope") foreach [ queue => 'c' ], [ scope => 'queue' ], [], [ scope => 'all' ];
like((ask('POST', '/api/jobs/signal', { name => 'paid' }))[1], qr/lacks the member \\"unique_key\\"/, 'a signal without a key');
sql(q{SELECT jobq.cancel_many(queue => 'c', state => 'waiting')});
like((ask('POST', "/api/jobs/$good/rerun", { from_step => 'no such step' }))[1], qr/has no step \\"no such step\\"/, 'a rerun from a step on');

# Callers without access to payloads see no column with a copy of a payload.
sql(q{
CREATE FUNCTION leaky(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, p ->> 'a'), jobq.log(p ->> 'a');
	RAISE EXCEPTION 'no customer %', p ->> 'a' USING DETAIL = p ->> 'a', HINT = p ->> 'a';
END $$;
CREATE FUNCTION slow(p jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM jobq.set_progress(50, p ->> 'a');
	PERFORM pg_advisory_lock(4711);
END $$;
CREATE TABLE lock_holder (pid int);
SET ROLE app;
SELECT jobq.register('leaky', 'leaky(jsonb)', max_attempts => 1), jobq.register('again', 'leaky(jsonb)', max_attempts => 9, backoff => 'fixed 1 h'),
	jobq.create_limiter('l', max_running => 2), jobq.register('slow', 'slow(jsonb)'), jobq.register('gone', 'same(jsonb)'), jobq.schedule('s', '@yearly', 'same', '{"a": "geheim"}',
	options => '{"headers": {"a": "geheim"}, "group_key": "geheim", "tags": ["geheim"]}', context => '{"app.name": "geheim"}')});
my $holder = $node->background_psql('postgres');
$holder->query_safe('SELECT pg_advisory_lock(4711)');
my ($leaky, $key_holder, $again, $slow, $statement, $workflow) = split /\|/, sql(q{SET ROLE app;
SELECT jobq.enqueue('leaky', '{"a": "geheim"}', uniqueness => '{"by": ["a"], "for": "1 h"}', group_key => 'geheim', tags => '{geheim}'), NULL::int8,
	jobq.enqueue('again', '{"a": "geheim"}'), jobq.enqueue('slow', '{"a": "geheim"}'),
	jobq.enqueue_sql('SELECT 1 / (length(''geheim'') - 6)', max_attempts => 1),
	jobq.create_workflow('{"name": "w", "steps": [{"name": "one", "kind": "leaky", "payload": {"a": "geheim"}}]}')});
is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM jobq.wait_many(ARRAY[$leaky, $statement], '5 min')"), 'dead dead', 'two dead letters');
wait_for($node, 'a batch whose step is dead', "SELECT state = 'failed' FROM jobq.batches WHERE id = $workflow");
wait_for($node, 'a job that waits for its next attempt', "SELECT state = 'retryable' FROM jobq.jobs WHERE id = $again");
wait_for($node, 'a job that runs', "SELECT message = 'geheim' FROM jobq.workers WHERE job_id = $slow");
my $step = sql("SELECT job_id FROM jobq.steps WHERE batch_id = $workflow");
my ($table) = slurp_file("$FindBin::RealBin/../../client/web/routes.c") =~ /const Route routes\[\] = \{(.*?)^\};/ms;
my @lists = grep { m{^/api/} && !m{openapi|/databases$|/events$|/session$} } $table =~ /\{"GET", "([^"]+)"/g;
my $told = 0;
for my $list (@lists)
{
	for my $id ($list =~ /jobs\/\{\}/ ? ($good, $bad, $leaky, $again, $slow, $statement, $step) : $list =~ /workers\/\{\}/ ? sql("SELECT pid FROM jobq.workers WHERE job_id = $slow") : $list =~ /(queues|kinds|schedules|limiters)\/\{\}/ ? { queues => 'c', kinds => 'leaky', schedules => 's', limiters => 'l' }->{$1} : $workflow)
	{
		my $path = ($list =~ s/\{\}/$id/r) . ($list =~ /ticks/ ? '?cron=@yearly' : '');

		$told++ if (ask('GET', $path))[1] =~ /geheim/;
		($status, $text) = ask('GET', $path, undef, $shy);
		is($status, 200, $path);
		unlike($text, qr/geheim/, "hides what is hidden in $path");
	}
}
cmp_ok($told, '>', 20, 'of those that tell it to others');
my %open_events = map { $_ => hear(raw($server, "GET $_ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n"), qr/geheim/) }
  "/api/jobs/$leaky/events", "/api/jobs/$good/events", '/api/events?topics=dead,jobs';
for my $path (sort keys %open_events)
{
	my $topic = $path =~ /topics/;
	my $heard = hear(raw($shy, "GET $path HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n"), $topic ? qr/event: dead.*event: jobs|event: jobs.*event: dead/s : qr/event: end/);

	like($open_events{$path}, qr/geheim/, "$path tells it");
	like($heard, $topic ? qr/event: dead/ : qr/event: end/, 'to one from whom it is hidden, too');
	unlike($heard, qr/geheim/, 'but not what is hidden');
}
my %hashes;
for my $result ('"geheim"', '"other"')
{
	# the event id of a state must not depend on hidden values
	my $job = sql("SET ROLE app; SELECT jobq.enqueue('same', '$result')");
	sql("SELECT jobq.wait($job, '5 min')");
	sql("UPDATE jobq_internal.archive SET enqueued_at = 'epoch', run_at = 'epoch', started_at = 'epoch', finished_at = 'epoch', id = 99000 WHERE id = $job");
	my $heard = hear(raw($shy, "GET /api/jobs/99000/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\n\r\n"), qr/event: end/);
	$hashes{$1}++ if $heard =~ /^id: 0-([0-9a-f]+)\r?\nevent: state/m;
	sql('DELETE FROM jobq_internal.archive WHERE id = 99000');
}
is(join(' ', values %hashes), '2', 'not even by the hash of a state');
for my $search ('unique_key=geheim', 'group_key=geheim', 'header=a=geheim')
{
	is((ask('GET', "/api/jobs?$search", undef, $shy))[0], 403, "nobody finds it by $search");
	is((ask('GET', "/api/jobs?$search"))[0], 200, 'but those who see it');
}
sql(q{SET ROLE app; SELECT jobq.enqueue('again', '{"a": "geheim"}', unique_key => 'geheim', uniqueness => '{"scope": "database"}', delay => '1 h')});
my $dup = sql(q{SET ROLE app; SELECT jobq.enqueue('leaky', '{"a": "geheim", "b": 1}', unique_key => 'geheim2', uniqueness => '{"scope": "database"}')});
sql("SELECT jobq.wait($dup, '5 min')");
sql(q{SET ROLE app; SELECT jobq.enqueue('again', '{}', unique_key => 'geheim2', uniqueness => '{"scope": "database"}', delay => '1 h')});
like((ask('POST', "/api/jobs/$dup/retry", undef))[1], qr/JQ014.*geheim2|geheim2.*JQ014/s, 'an error names a key');
($status, $text) = ask('POST', "/api/jobs/$dup/retry", undef, $shy);
is($status, 409, 'which is an error for one from whom it is hidden');
like($text, qr/JQ014/, 'that has its code');
unlike($text, qr/geheim/, 'and no more');
like((ask('GET', "/api/jobs/$leaky", undef, $shy))[1], qr/"errors":\[\{[^\]]*"sqlstate": ?"P0001"/, 'how an attempt has failed is told by its SQLSTATE');
like((ask('GET', "/api/jobs/$again/explain", undef, $shy))[1], qr/the next is due at/, 'and why a job does not run');
$holder->quit;
sql(q{SELECT jobq.cancel(id) FROM jobq.live_jobs});
sql(q{SELECT jobq.delete_many(state => 'dead')});
$bad = (ask('POST', '/api/jobs', { kind => 'bad' }))[2]{id};
is(sql("SELECT state FROM jobq.wait($bad, '5 min')"), 'dead', 'a dead letter');

# Several jobs are settled at a time, each with a result.
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
is(sql(q{SELECT sum(running) FROM jobq.workers}), '2', 'and they are held still');
like((ask('POST', '/api/release', { %lease, payload => 1 }))[2]{detail}, qr/"payload", which is not known/, 'several do not get one payload');
is((ask('POST', '/api/release', { id => $lease{ids}[0], token => $lease{tokens}[0], payload => { page => 7 } }))[0], 200, 'one is given back');
is(sql("SELECT state, payload FROM jobq.jobs WHERE id = $lease{ids}[0]"), 'ready|{"page": 7}', 'with what it has next time');
is((ask('POST', '/api/ack', { map { $_ => [ $lease{$_}[1] ] } keys %lease }))[0], 200, 'no results');

# Dead letters are deleted by kind.
($status, $text, $data) = ask('POST', '/api/dead/delete', { kind => 'same' });
is("$status $data->{count}", '200 0', 'there are none of this kind');
($status, $text, $data) = ask('POST', '/api/dead/delete', { kind => 'bad' });
is("$status $data->{count} " . sql('SELECT count(*) FROM jobq.dead_letters'), '200 1 0', 'but one of this');

# Dead letters are sorted by time, not by id.  A page continues after the last row of the previous
# page, even if this row is gone.
sql(q{SELECT jobq.create_queue('late', open => true); SELECT jobq.pause('late')});
my ($late, $first, $second) = map { (ask('POST', '/api/jobs', { kind => 'bad', queue => $_ }))[2]{id} } qw(late default default);
sql("SELECT jobq.wait($first, '5 min'); SELECT jobq.wait($second, '5 min'); SELECT jobq.resume('late'); SELECT jobq.wait($late, '5 min')");
my @by_time = split / /, sql(q{SELECT string_agg(id::text, ' ' ORDER BY finished_at DESC, id DESC) FROM jobq.dead_letters});
$data = (ask('GET', '/api/dead?limit=2'))[2];
is(join(' ', map { $_->{id} } @{ $data->{items} }), "$late $by_time[1]", 'the newest dead letters');
is((ask('POST', '/api/jobs/delete', { ids => [ "$by_time[1]" ] }))[0], 200, 'one of them is forgotten, with its id as a text');
$data = (ask('GET', "/api/dead?limit=2&before=$data->{next}"))[2];
is(join(' ', map { $_->{id} } @{ $data->{items} }), $by_time[2], 'the next page');
is($data->{next}, undef, 'is the last');
is((ask('GET', '/api/dead?before=x'))[0], 400, 'a page that there is not');

# Failures by cause.  The fingerprint is a hash of the error, so it is hidden like the error.
$data = (ask('GET', '/api/failures?kind=bad'))[2]{items}[0];
is("@{$data->{kinds}} $data->{sqlstate} $data->{message} $data->{dead_letters} " . ($data->{new} ? 'new' : ''), 'bad P0001 this is not good 1 new', 'a cause in a queue');
my $cause = $data->{fingerprint};
is(scalar @{ (ask('GET', "/api/dead?fingerprint=$cause"))[2]{items} }, 2, 'the dead letters of a cause, in two queues');
is(scalar @{ (ask('GET', '/api/dead?fingerprint=1'))[2]{items} }, 0, 'of no cause');
is((ask('GET', '/api/failures?kind=none'))[2]{items}[0], undef, 'no failure of this kind');
is((ask('POST', '/api/dead/delete', { fingerprint => 1 }))[2]{count}, 0, 'no dead letter has this cause');
$data = (ask('GET', '/api/failures?kind=bad', undef, $shy))[2]{items}[0];
is_deeply([ @$data{qw(sqlstate dead_letters message fingerprint)} ], [ 'P0001', 1, undef, undef ], 'a cause for a caller without access to payloads');
is((ask('GET', "/api/dead?fingerprint=$cause", undef, $shy))[0], 403, 'who cannot guess the cause');
($status, $text) = ask('POST', '/api/dead/retry', { fingerprint => $cause }, $shy);
like("$status $text", qr/^400 .*fingerprint/, 'nor retry by the cause');

# Commands on many dead letters require a condition.
for my $verb (qw(retry delete))
{
	for my $body (undef, {}, { kind => undef })
	{
		($status, $text, $data) = ask('POST', "/api/dead/$verb", $body);
		like("$status $data->{detail}", qr/^400 .* has no condition/, "$verb: no condition");
	}
}
is(sql('SELECT count(*) FROM jobq.dead_letters'), '2', 'nothing has become of them');
is((ask('POST', '/api/dead/delete', { tenant => 'acme' }))[2]{count}, 0, 'none is of this tenant');
is((ask('POST', '/api/dead/delete', { older_than => '0' }))[2]{count}, 2, 'all');

# Consumers report how many other jobs are held.
my $held_by = q{SELECT coalesce(held::text, '-') FROM jobq_internal.lease WHERE job_ids = ARRAY[%s]::int8[]};
for my $held (3, 0, undef)
{
	sql(q{SET ROLE app; SELECT jobq.enqueue('x', queue => 'c')});
	my $job = (ask('POST', '/api/reserve', { queues => ['c'], wait => '1 min', defined $held ? (held => $held) : () }))[2]{jobs}[0];
	is(sql(sprintf $held_by, $job->{id}), $held // '-', 'jobs that a consumer holds: ' . ($held // 'not told'));
}
($status, $text, $data) = ask('POST', '/api/reserve', { queues => ['c'], held => -1 });
like("$status $data->{detail}", qr/^400 held -1 is out of range/, 'fewer than none');

# Lists of jobs: filters, order, and export.  The jobs are due and finished in other orders than
# they were enqueued.
sql(q{
SELECT jobq.create_queue('found', mode => 'consumer');
SET ROLE app;
SELECT jobq.enqueue('f', jsonb_build_object('n', n, 'list', jsonb_build_array(n)), queue => 'found', delay => (10 - n) * interval '1 h', tags => ARRAY['tag' || n % 2, '=1+"1"'], unique_key => 'found' || n)
FROM generate_series(1, 7) n;
SELECT jobq.cancel(id) FROM jobq.live_jobs WHERE queue = 'found' AND payload ->> 'n' IN ('2', '5')});
sub numbers { return join ' ', map { $_->{unique_key} ? $_->{unique_key} =~ s/found//r : '-' } @{ (ask('GET', "/api/jobs?queue=found&$_[0]"))[2]{items} }; }

is(numbers(''), '7 6 - 4 3 - 1', 'the newest jobs come first; an ended job has no key');
is(numbers('order=run_at&state=scheduled'), '7 6 4 3 1', 'jobs by the time for which they are scheduled');
is(numbers('order=-run_at&state=scheduled'), '1 3 4 6 7', 'the latest first');
is(numbers('order=-finished_at'), '- -', 'by a time that only ended jobs have');
my ($pages, $place) = ('', '');
do
{
	$data = (ask('GET', "/api/jobs?queue=found&state=scheduled&order=run_at&limit=2&before=$place"))[2];
	$pages .= join(',', map { $_->{unique_key} =~ s/found//r } @{ $data->{items} }) . ' ';
	$place = $data->{next} // '';
} while ($place ne '');
is($pages, '7,6 4,3 1 ', 'page by page');
is((ask('GET', '/api/jobs?order=run_at&before=4711'))[0], 400, 'a page of another order');
is(numbers('tag=tag1&state=scheduled'), '7 3 1', 'jobs with a tag');
is(numbers('payload=' . '%7B%22list%22:%5B3%5D%7D'), '3', 'jobs whose payload contains this');
is((ask('GET', '/api/jobs?payload=x'))[0], 400, 'which is JSON');
is(scalar @{ (ask('GET', '/api/jobs?kind=bad&error=%25not+good'))[2]{items} }, scalar @{ (ask('GET', '/api/jobs?kind=bad&state=dead'))[2]{items} }, 'jobs with an error like this');
is(scalar @{ (ask('GET', '/api/jobs?kind=bad&error=not'))[2]{items} }, 0, 'a pattern is for the whole message');
my $failed = (ask('POST', '/api/jobs', { kind => 'bad' }))[2]{id};
sql("SELECT jobq.wait($failed, '5 min')");
is(join(' ', map { $_->{id} } @{ (ask('GET', '/api/jobs?limit=1&fingerprint=' . sql("SELECT fingerprint FROM jobq.dead_letters WHERE id = $failed")))[2]{items} }), $failed, 'jobs with this cause');
is(numbers('state=scheduled&order=run_at&until=2000-01-01'), '', 'the range is of the time by which the list is ordered');
my $later = sql(q{SELECT to_char((clock_timestamp() + interval '5 h 30 min') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')});
is(numbers("state=scheduled&order=run_at&until=$later"), '7 6', 'jobs due before this time');

# By run_at, jobs of all lanes are merged, page by page.
sql(q{SELECT jobq.create_queue('lane ' || q, mode => 'consumer') FROM generate_series(1, 4) q});
sql(q{SELECT jobq.enqueue('laned', queue => 'lane ' || (1 + n % 4), priority => n % 3, delay => (1000 + n * 7919 % 1000) * interval '1 s', tags => ARRAY['t' || n % 2]) FROM generate_series(1, 700) n});
foreach ([ 'run_at', 'run_at, id', 'true' ], [ '-run_at', 'run_at DESC, id DESC', 'true' ], [ 'run_at', 'run_at, id', q{tags = '{t1}'}, '&tag=t1' ], [ 'run_at', 'run_at, id', q{queue = 'lane 2'}, '&queue=lane%202' ])
{
	my ($order, $by, $where, $more) = (@$_, '');
	my ($place, @ids) = ('');

	while (defined $place)
	{
		$data = (ask('GET', "/api/jobs?kind=laned&state=scheduled&order=$order$more&limit=90&before=$place"))[2];
		push @ids, map { $_->{id} } @{ $data->{items} };
		$place = $data->{next};
	}
	is("@ids", sql("SELECT string_agg(id::text, ' ' ORDER BY $by) FROM jobq.live_jobs WHERE kind = 'laned' AND $where"), "all jobs by $order, with $where");
	is($data->{partial}, JSON::PP::false, 'and not only a part');
}
sql(q{SELECT jobq.cancel_many(kind => 'laned')});
for my $filter ('tag=tag1', 'error=%25', 'payload=%7B%7D', "fingerprint=$cause")
{
	is((ask('GET', "/api/jobs?$filter", undef, $shy))[0], 403, "hidden values cannot be guessed: $filter");
}
for my $limit (0, 201, -1, 'x', '1e1')
{
	($status, $text, $data) = ask('GET', "/api/jobs?limit=$limit");
	is("$status $data->{detail}", qq{400 invalid value for "limit": "$limit"; it is a number from 1 to 200}, "a page of $limit jobs");
}
my $file = $http->get("$server->{url}/api/jobs/export?format=csv&queue=found&state=scheduled&limit=2", { headers => { Authorization => "Bearer $token" } });
my @lines = split /\r\n/, $file->{content};
is("$file->{headers}{'content-type'} $file->{headers}{'content-disposition'}", 'text/csv; charset=utf-8 attachment; filename="jobs.csv"', 'a file');
like($lines[0], qr/^id,state,kind,queue,/, 'with the names of its columns');
like($lines[1], qr/,"scheduled","f","found",0,"app",,"\[""tag1"",""=1\+\\""1\\""""\]",0,/, 'and values in quotes');
is(scalar @lines, 3, 'and two jobs');
$file = $http->get("$server->{url}/api/jobs/export?format=csv&queue=found&state=scheduled&before=$file->{headers}{'jobq-next'}", { headers => { Authorization => "Bearer $token" } });
is(scalar(() = $file->{content} =~ /\r\n/g) . ' ' . ($file->{headers}{'jobq-next'} // 'the end'), '3 the end', 'which continues without names');
sql(q{SET ROLE app; SELECT jobq.enqueue(k, queue => 'found') FROM unnest('{=1+1,-x,@y,+z}'::text[]) k});
$file = $http->get("$server->{url}/api/jobs/export?format=csv&queue=found&state=ready", { headers => { Authorization => "Bearer $token" } });
is(scalar(() = $file->{content} =~ /,"'[=\@+-]/g), 4, 'no text is a formula');
($status, $text, $data) = ask('GET', '/api/jobs/export?queue=found&state=scheduled');
is("$status " . join(' ', map { $_->{id} =~ /^\d+$/ ? $_->{tags}[0] : '?' } @$data), '200 tag1 tag0 tag0 tag1 tag1', 'the same as JSON');
sql(q{SELECT jobq.create_queue('halves', mode => 'consumer'); SET ROLE app; SELECT jobq.enqueue('half', queue => 'halves');
SELECT jobq.set_progress(id, token, 33.3) FROM jobq.reserve('{halves}', 1, '1 h')});
like((ask('GET', "/api/jobs/export?queue=halves&format=$_"))[1], qr/(?:,|"progress":)33\.3,/, "$_: progress has the digits of the report") foreach qw(json csv);
like((ask('GET', '/api/jobs/export?limit=3001'))[1], qr/it is a number from 1 to 3000/, 'so many at most');
like((ask('GET', '/api/jobs/export?format=xml'))[1], qr/it is one of json, csv/, 'in one of two formats');

# Actions on all jobs that fulfil conditions, with their number before; and the audit log.
is(sql(q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'found' AND tags && '{tag1}'}), 3, 'three jobs have a tag');
my %tagged = (queue => 'found', tags => ['tag1']);
is((ask('POST', '/api/jobs/cancel', { %tagged, dry_run => JSON::PP::true }))[2]{count}, 3, 'three jobs would be cancelled');
is((ask('POST', '/api/jobs/edit', { %tagged, changes => { priority => 4 } }))[2]{count}, 3, 'their priority is changed');
is(sql(q{SELECT string_agg(DISTINCT priority::text, ' ') FROM jobq.live_jobs WHERE queue = 'found' AND tags && '{tag1}'}), '4', 'and no job was cancelled');
is((ask('POST', '/api/jobs/cancel', { queue => 'found', payload => { n => 3 } }))[2]{count}, 1, 'a job with this payload is cancelled');
is((ask('POST', '/api/jobs/cancel', { queue => 'found', from => '2000-01-01', until => '2001-01-01' }))[2]{count}, 0, 'none of this time');
is((ask('POST', '/api/jobs/cancel', { queue => 'found', from => '2000-01-01', dry_run => JSON::PP::true }))[2]{count}, sql(q{SELECT count(*) FROM jobq.live_jobs WHERE queue = 'found'}), 'all since a time');
for my $nothing ({}, { dry_run => JSON::PP::true }, { max_jobs => 3 }, { queue => undef })
{
	($status, $text, $data) = ask('POST', '/api/jobs/cancel', $nothing);
	like("$status $data->{detail}", qr/^400 jobq.cancel_many\(\) has no condition/, 'no condition does not mean all jobs');
}
for my $hidden (qw(payload unique_key group_key error tags fingerprint))
{
	($status, $text, $data) = ask('POST', '/api/jobs/cancel', { $hidden => $hidden eq 'tags' ? ['tag0'] : 1, dry_run => JSON::PP::true }, $shy);
	is("$status $data->{detail}", qq{400 the body has a member "$hidden", which is not known here}, "a caller without access to payloads cannot guess: $hidden");
}
$data = (ask('GET', '/api/audit?action=edit_many&role=app'))[2]{items};
is("$data->[0]{role} $data->[0]{application} $data->[0]{jobs} $data->[0]{arguments}{tags} $data->[0]{arguments}{changes}", 'app jobq web 3 {tag1} {"priority": 4}', 'the audit log has the call, and its effect');
is(scalar(grep { $_->{arguments}{dry_run} } @{ (ask('GET', '/api/audit'))[2]{items} }), 0, 'but no call that changed nothing');
$data = (ask('GET', '/api/audit?limit=1'))[2];
is((ask('GET', "/api/audit?limit=1&before=$data->{next}"))[2]{items}[0]{id} < $data->{items}[0]{id}, 1, 'page by page');
is((ask('GET', '/api/audit?until=2001-01-01'))[2]{items}[0], undef, 'of a range of times');

# Numbers for lists, with one request for all rows.
{
	my ($status, undef, $answer) = ask('GET', '/api/rates?by=kind');
	my ($same) = grep { $_->{name} eq 'same' } @{ $answer->{items} };

	is($status, 200, 'rates by kind');
	is(scalar @{ $same->{completed} }, 60, 'each of the last 60 minutes');
	cmp_ok(eval(join '+', @{ $same->{completed} }), '>', 0, 'completed jobs are counted');
	ok((grep { $_->{name} eq 'c' } @{ (ask('GET', '/api/rates'))[2]{items} }), 'rates by queue');
	is((ask('GET', '/api/rates?by=day'))[0], 400, 'rates by another property');
	my %usage = map { ($_->{name} // '') => $_ } @{ (ask('GET', '/api/usage?by=kind'))[2]{items} };
	cmp_ok($usage{same}{runs}, '>', 0, 'usage by kind');
	is(join(' ', sort grep { !exists $usage{same}{$_} } qw(cpu_seconds wal_bytes buffers completed ready)), '', 'has resources and jobs');
	is((ask('GET', '/api/usage'))[0], 200, 'usage by tenant');
	is(join(',', map { "$_->{type} $_->{name}" } grep { $_->{type} ne 'limiter' } @{ (ask('GET', '/api/limits'))[2]{items} }), sql(q{SELECT coalesce(string_agg(type || ' ' || coalesce(queue, kind), ','), '') FROM jobq.limits
		WHERE type IN ('queue', 'kind') AND (max_running > 0 OR rate IS NOT NULL OR throttle IS NOT NULL)}), 'limits that are set');
	is((ask('PUT', '/api/monitors/crowded', { condition => 'ready', above => 1000, queue => 'c' }))[0], 200, 'a monitor is created');
	my ($monitor) = grep { $_->{name} eq 'crowded' } @{ (ask('GET', '/api/monitors'))[2]{items} };
	is("$monitor->{condition} $monitor->{above} $monitor->{queue}", 'ready 1000 c', 'and shown');
	is((ask('PUT', '/api/monitors/crowded', { condition => 'weather', above => 1 }))[0], 400, 'a condition that does not exist');
	is((ask('PUT', '/api/monitors/crowded', { condition => 'ready' }))[0], 400, 'a monitor without a threshold');
	is((ask('DELETE', '/api/monitors/crowded'))[0], 200, 'a monitor is dropped');
	is((ask('GET', '/api/runs'))[0], 200, 'the last jobs of schedules');
	my ($worker) = grep { @{ $_->{last_jobs} || [] } } @{ (ask('GET', '/api/workers'))[2]{items} };
	my $last = (ask('GET', "/api/workers/$worker->{pid}"))[2]{jobs};
	is(join(' ', map { $_->{id} } @$last), join(' ', grep { sql("SELECT count(*) FROM jobq.jobs WHERE id = $_") } @{ $worker->{last_jobs} }), 'the jobs that a worker has run last');
	like($last->[0]{state}, qr/^(?:completed|dead|retryable|cancelled)$/, 'with their states');
	is((ask('GET', '/api/workers/1'))[0], 404, 'a worker that there is not');
}

# Single queues, kinds, limiters and schedules.
is((ask('PUT', '/api/queues/made', { mode => 'consumer', max_running => 3 }))[0], 200, 'a queue is created');
$data = (ask('GET', '/api/queues/made'))[2];
is("$data->{mode} $data->{max_running} $data->{ready}", 'consumer 3 0', 'and shown');
is((ask('PUT', '/api/queues/made', { %$data{'mode'}, max_running => 5 }))[0], 200, 'its settings are changed');
is((ask('GET', '/api/queues/made'))[2]{max_running}, 5, 'which is seen');
($status, $text, $data) = ask('PUT', '/api/queues/made', { max_runing => 5 });
is("$status $data->{detail}", '400 the body has a member "max_runing", which is not known here', 'a wrong setting');
is((ask('PUT', '/api/queues/made', { mode => 'both' }))[0], 400, 'a wrong value');
is((ask('DELETE', '/api/queues/made'))[0] . ' ' . (ask('GET', '/api/queues/made'))[0], '200 404', 'it is dropped');
is((ask('PUT', '/api/limiters/stripe', { max_running => 2 }))[0], 200, 'a limiter is created');
wait_for($node, 'the scheduler knows the limiter', q{SELECT count(*) = 2 FROM jobq.limits WHERE type = 'limiter'});
is((ask('GET', '/api/limiters/stripe'))[2]{max_running} . ' ' . join(' ', map { $_->{name} } @{ (ask('GET', '/api/limiters'))[2]{items} }), '2 l stripe', 'and shown');
is((ask('PUT', '/api/kinds/limited', { handler => 'public.same(jsonb)', limiters => ['stripe'] }))[0], 200, 'a kind is registered');
($status, $text, $data) = ask('PUT', '/api/kinds/limited', { handler => 'none(jsonb)' });
is("$status $data->{detail} " . ($data->{hint} // '-'), '400 function "none(jsonb)" does not exist -', 'a handler that there is not');
is((ask('DELETE', '/api/limiters/stripe'))[0], 409, 'whose limiter cannot be dropped');
$data = (ask('GET', '/api/kinds/limited'))[2];
is("$data->{limiters}[0] " . ($data->{last} // 'none'), 'stripe none', 'it has no job');
($status, $text) = ask('POST', '/api/jobs', '{"kind": "limited", "payload": {"big": 12345678901234567890}}');
like((ask('GET', '/api/kinds/limited'))[1], qr/"payload" : \{"big": 12345678901234567890\}/, 'now its payload is an example');
is((ask('GET', '/api/kinds/f'))[2]{last}{queue}, 'found', 'a kind of consumers has an example, too');
is((ask('GET', '/api/kinds/unknown'))[0], 404, 'a kind that there is not');
is((ask('PUT', '/api/kinds/limited', {}))[0], 400, 'a kind has a handler');
is((ask('DELETE', '/api/kinds/limited'))[0] . ' ' . (ask('DELETE', '/api/limiters/stripe'))[0], '200 200', 'both are dropped');
is((ask('PUT', '/api/schedules/daily', { cron => '0 5 * * *', kind => 'same', timezone => 'Europe/Madrid', payload => { a => 1 } }))[0], 200, 'a schedule is created');
($status, $text, $data) = ask('POST', '/api/schedules/daily/run', {});
my $run = $data->{id};
$data = (ask('GET', '/api/schedules/daily'))[2];
is("$data->{kind} " . scalar(@{ $data->{next_ticks} }) . " $data->{runs}[0]{id}", "same 10 $run", 'its next ticks, and its last job');
my $run_again = (ask('POST', '/api/schedules/daily/run', {}))[2]{id};
sql(q{SELECT count(*) FROM jobq.enqueue_many('laned', ARRAY(SELECT '{}'::jsonb FROM generate_series(1, 3001)), queue => 'lane 1')});
is(join(' ', map { $_->{id} } @{ (ask('GET', '/api/schedules/daily'))[2]{runs} }), "$run_again $run", 'its jobs, newest first, however many other jobs are newer');
sql(q{SELECT jobq.cancel_many(kind => 'laned')});
is(join(' ', @{ (ask('GET', '/api/ticks?cron=0+5+*+*+*&timezone=Europe/Madrid&limit=3'))[2]{items} }), join(' ', @{ $data->{next_ticks} }[0 .. 2]), 'the ticks of an expression');
is((ask('GET', '/api/ticks?cron=0+5'))[0] . ' ' . (ask('GET', '/api/ticks?cron=0+5+*+*+*&limit=11'))[0], '400 400', 'of a wrong one, and too many');
is((ask('DELETE', '/api/schedules/daily'))[0] . ' ' . (ask('GET', '/api/schedules/daily'))[0], '200 404', 'it is removed');
is((ask('PUT', '/api/queues/made', {}, $shy))[0] . ' ' . (ask('GET', '/api/kinds/same', undef, $shy))[2]{kind}, '200 same', 'a caller without access to payloads');

# A repeated request with an idempotency key.
my $keyed = sub {
	my ($body, $key, $base) = @_;
	my $answer = $http->post(($base || $server)->{url} . '/api/jobs', { headers => { Authorization => "Bearer $token", 'Content-Type' => 'application/json', 'Idempotency-Key' => $key }, content => $body });
	return ($answer->{status}, $answer->{headers}{'idempotency-replayed'} // 'new', $json->decode($answer->{content}));
};
my ($code, $replayed, $answered) = $keyed->('{"kind": "same", "payload": {"a": 1}, "priority": 2}', 'once');
is("$code $replayed", '202 new', 'the first request');
my $once = $answered->{id};
($code, $replayed, $answered) = $keyed->('{"priority": 2, "payload": {"a": 1}, "kind": "same"}', 'once');
is("$code $replayed $answered->{id}", "202 true $once", 'its repetition');
($code, $replayed, $answered) = $keyed->('{"kind": "same", "payload": {"a": 2}}', 'once');
is("$code $replayed $answered->{detail}", '422 new the Idempotency-Key was used for another job: kind or payload differ', 'another request');
is(join(' ', map { ($keyed->(qq({"kind": "same", "payload": {"a": $_}}), 'once', $shy))[0] } 1, 2), '202 202',
	'a caller with hidden payloads cannot guess the payload of the first request');
is(($keyed->('{"kind": "bad", "payload": {"a": 1}}', 'once'))[0], 202, 'the key is that of a kind');
is(join(' ', ($keyed->('{"kind": "same", "payload": {"a": 2}, "uniqueness": {"on_conflict": "ignore", "for": "1 day"}}', 'once'))[0 .. 1]), '202 new', 'an effect of the request itself');

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
