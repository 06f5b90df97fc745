# jobq web: consumers share the statements that wait for jobs, and jobs without a recipient become
# free again.

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

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(q{
CREATE EXTENSION jobq;
CREATE ROLE app LOGIN;
CREATE ROLE alone LOGIN CONNECTION LIMIT 1;
SELECT jobq.grant_privilege('app'), jobq.grant_privilege('alone');
SELECT jobq.create_queue('granted', mode => 'consumer');
SELECT jobq.create_queue(name, mode => 'consumer', open => true) FROM unnest('{c1,c2,c3,many,large,big,stuck,held,same,locked}'::text[]) AS name;
SELECT jobq.create_queue('slow', mode => 'consumer', open => true, rate => '10 per minute burst 10');
SELECT jobq.grant_privilege('app', 'consume', 'granted')});

my $token = 'Abcdefghijklmnopqrstuvwx0';
my $alone = 'Abcdefghijklmnopqrstuvwx1';
token_file("$dir/tokens", "$token user=app", "$alone user=alone");
my $server = serve($jobq, '--token-file', "$dir/tokens");
my $http = HTTP::Tiny->new(timeout => $patience);
my $json = JSON::PP->new->utf8;

sub ask
{
	my ($method, $path, $body) = @_;
	my $answer = $http->request($method, $server->{url} . $path,
		{   headers => { Authorization => "Bearer $token", defined $body ? ('Content-Type' => 'application/json') : () },
			defined $body ? (content => $json->encode($body)) : () });

	return ($answer->{status}, eval { $json->decode($answer->{content}) });
}

sub enqueue
{
	my ($queue, $n) = @_;

	sql("SET ROLE app; SELECT jobq.enqueue('x', queue => '$queue') FROM generate_series(1, $n)");
	return;
}

# The text of a request to wait for a job of a queue.
sub reserve_text
{
	my ($queue, $secret, %more) = @_;
	my $body = $json->encode({ queues => [$queue], wait => '60 s', lease => '10 min', %more });

	return "POST /api/reserve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
	  . ($secret || $token) . "\r\nContent-Type: application/json\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
}

# The start times of all statements waiting for jobs.
sub statements
{
	return sql(q{SELECT coalesce(string_agg(query_start::text, ' ' ORDER BY query_start), '') FROM pg_stat_activity
		WHERE application_name = 'jobq web' AND state = 'active' AND query LIKE 'SELECT r.queue, r.id%'});
}

# Start a consumer.  Wait until a new statement includes the queue, or a response arrives.
sub waits_for
{
	my ($queue, $web) = @_;
	my $before = statements();
	my $socket = raw($web || $server, reserve_text($queue));
	my $end = time + $patience;
	my $now;

	do
	{
		usleep(20_000);
		$now = statements();
	} while (($now eq '' || $now eq $before) && time < $end && !IO::Select->new($socket)->can_read(0));
	return $socket;
}

sub answer_to { return hear($_[0], qr/\}\]\}|"status":\d+[^\n]*\}/); }

# Acknowledge the job of a response.
sub ack
{
	my ($answer) = @_;
	my ($id, $lease) = $answer =~ /"id":(\d+),"token":(\d+)/ or return;

	is((ask('POST', '/api/ack', { id => $id, token => $lease }))[0], 200, 'it is done');
	return;
}

# A consumer for jobs of all roles does not disturb a consumer limited to the jobs of one role.
my $granted = waits_for('granted');
my $own = waits_for('c1');
enqueue('c1', 1);
sql(q{SELECT jobq.enqueue('x', queue => 'granted')});
my $answer = answer_to($granted);
like($answer, qr/^HTTP\/1.1 200.*"queue":"granted"/s, 'who may have the jobs of all roles gets one');
like(answer_to($own), qr/^HTTP\/1.1 200.*"queue":"c1"/s, 'and who waits beside him one of his own');
ack($answer);

# The number of held jobs is reported with the jobs of this consumer only.
for my $held (2, 0)
{
	my %waits_with = ($held => raw($server, reserve_text('c1', undef, held => $held)), '-' => raw($server, reserve_text('c1')));

	wait_for($node, 'they wait apart',
		q{SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'jobq web' AND state = 'active' AND query LIKE 'SELECT r.queue, r.id%'});
	enqueue('c1', 2);
	for my $told (sort keys %waits_with)
	{
		my ($id) = answer_to($waits_with{$told}) =~ /"id":(\d+)/;
		is(sql("SELECT CASE WHEN held > 0 THEN 2 ELSE held END FROM jobq_internal.lease WHERE $id = ANY (job_ids)"), $told eq '-' ? '' : $told, "held: $told");
	}
}

# Dropping a queue affects the consumers of this queue only.
$granted = waits_for('granted');
$own = waits_for('c1');
sql(q{SELECT jobq.drop_queue('granted')});
like(answer_to($granted), qr/^HTTP\/1.1 404.*granted\\" does not exist/s, 'who waits for a queue that is dropped is told');
enqueue('c1', 1);
like(answer_to($own), qr/^HTTP\/1.1 200.*"queue":"c1"/s, 'who was apart from him gets his job');
my %waits = map { $_ => waits_for($_) } qw(c2 c3);
sql(q{SELECT jobq.drop_queue('c2')});
$waits{c1} = waits_for('c1');
like(answer_to($waits{c2}), qr/^HTTP\/1.1 404.*c2\\" does not exist/s, 'so is one who has waited with others');
enqueue($_, 1) foreach qw(c1 c3);
like(answer_to($waits{$_}), qr/^HTTP\/1.1 200.*"queue":"$_"/s, "who get theirs: $_") foreach qw(c1 c3);

# The claimed jobs of a queue are limited by its own consumers, although other consumers want many.
my @many = (waits_for('many'), map { raw($server, reserve_text('many')) } 2 .. 9);
ask('POST', '/api/reserve', { queues => ['many'] }) foreach 1 .. 8;
my $slow = waits_for('slow');
enqueue('slow', 100);
my $got = answer_to($slow) =~ /"queue":"slow"/;
$got += @{ (ask('POST', '/api/reserve', { queues => ['slow'], wait => '2 s' }))[1]{jobs} || [] } foreach 2 .. 10;
is($got, 10, 'who asks ten times gets all that the rate allows');
$slow = waits_for('slow');
enqueue('many', 9);
is(scalar(grep { answer_to($_) =~ /"queue":"many"/ } @many), 9, 'many get many, though he waits beside them');
close $slow;

# A waiting consumer holds no snapshot, and gets the same response as for a job that is ready.
my $same = waits_for('same');
wait_for($node, 'who waits holds no snapshot', q{SELECT bool_and(backend_xmin IS NULL) FROM pg_stat_activity
	WHERE application_name = 'jobq web' AND state = 'active' AND query LIKE 'SELECT r.queue, r.id%'});
sql(q{SET ROLE app;
SELECT jobq.enqueue(E'a "kind"\\\\ of\\tü', '{"a": ["x\\"y", 1.50, null]}', queue => 'same', headers => '{"h": "1"}')});
my ($now) = answer_to($same) =~ /\r\n\r\n(.*)/s;
$now = $json->decode($now)->{jobs}[0];
ask('POST', '/api/release', { map { $_ => $now->{$_} } qw(id token) });
my $then = (ask('POST', '/api/reserve', { queues => ['same'], lease => '10 min', wait => '1 min' }))[1]{jobs}[0];
my $shape = qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$/;
like($_->{lease_until}, $shape, 'the end of the lease') foreach $now, $then;
delete @{$_}{qw(token lease_until)} foreach $now, $then;
my $canonical = JSON::PP->new->canonical;
is($canonical->encode($now), $canonical->encode($then), 'all else is the same');

# A role without a connection left for waiting.
like(hear(raw($server, reserve_text('c1', $alone)), qr/\}/), qr/^HTTP\/1.1 503.*too many connections for role/s, 'who cannot wait is told why');

# A blocked statement with claimed jobs is cancelled, and gives the jobs back.
my $brief = serve($jobq, '--token-file', "$dir/tokens", '--timeout', '4');
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE jobq_internal.lease IN SHARE MODE');
my $locked = waits_for('locked', $brief);
enqueue('locked', 1);
wait_for($node, 'a job was taken, and its lease cannot be written',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'jobq web' AND wait_event_type = 'Lock'});
like(answer_to($locked), qr/^HTTP\/1.1 504.*57014/s, 'who waits is told that it took too long');
close $locked;
$lock->query_safe('ROLLBACK');
$lock->quit;
wait_for($node, 'the job is free, and was not charged', q{SELECT state = 'ready' AND attempt = 0 FROM jobq.live_jobs WHERE queue = 'locked'});
$brief->{process}->signal('TERM');
ok($brief->{process}->finish, 'the program ends');

# Undelivered jobs are free again, each independently, although one lease has ended.
sql(q{SET ROLE app; SELECT jobq.enqueue('x', jsonb_build_object('long', repeat('x', 4000000)), queue => 'large') FROM generate_series(1, 3)});
my $deaf = deaf($server, reserve_text('large', undef, max_jobs => 3));
wait_for($node, 'a consumer is given three jobs, and does not read', q{SELECT count(*) = 3 FROM jobq.live_jobs WHERE queue = 'large' AND state = 'running'});
sql(q{SELECT jobq.cancel(max(id)) FROM jobq.live_jobs WHERE queue = 'large'});
close $deaf;
wait_for($node, 'he hangs up, and those are free that nobody has ended', q{SELECT string_agg(state || attempt, ' ') = 'ready0 ready0' FROM jobq.live_jobs WHERE queue = 'large'});

# Undelivered jobs are free again after the program ends: a consumer does not read, and a request
# blocks the only connection beyond the shutdown timeout.
my $free = sub { return "SELECT state = 'ready' AND attempt = 0 FROM jobq.live_jobs WHERE queue = '$_[0]'"; };
my $ends = serve($jobq, '--token-file', "$dir/tokens", '--connections', 1);
sql(q{SET ROLE app; SELECT jobq.enqueue('x', jsonb_build_object('long', repeat('x', 8000000)), queue => 'big')});
$deaf = deaf($ends, reserve_text('big'));
wait_for($node, 'a consumer is given a job, and does not read', q{SELECT state = 'running' FROM jobq.live_jobs WHERE queue = 'big'});
my $holder = $node->background_psql('postgres');
$holder->query_safe(q{SET ROLE app; BEGIN; SELECT jobq.enqueue('x', queue => 'stuck', unique_key => 'k')});
my $body = '{"kind": "x", "queue": "stuck", "unique_key": "k"}';
my $stuck = raw($ends, "POST /api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nContent-Length: "
	  . length($body) . "\r\n\r\n$body");
wait_for($node, 'another one holds the connection',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'jobq web' AND wait_event_type = 'Lock'});
$ends->{process}->signal('TERM');
$ends->{process}->pump until $ends->{err} =~ /stopping/;
$holder->query_safe('ROLLBACK');
$holder->quit;
ok($ends->{process}->finish, 'the program ends');
wait_for($node, 'and gives the job back before', $free->('big'));
close $deaf;

# Jobs arrive together with the shutdown, with the consumer still connected or gone.
for my $there (1, 0)
{
	$ends = serve($jobq, '--token-file', "$dir/tokens");
	my $waits = waits_for('held', $ends);
	my $pid = web_pid($ends);

	kill('STOP', $pid);
	enqueue('held', 1);
	wait_for($node, 'a job was taken, which the program does not know yet', q{SELECT state = 'running' FROM jobq.live_jobs WHERE queue = 'held'});
	close $waits unless $there;
	kill('TERM', $pid);
	kill('CONT', $pid);
	ok($ends->{process}->finish, 'the program ends');
	if ($there)
	{
		$answer = answer_to($waits);
		like($answer, qr/^HTTP\/1.1 200.*"queue":"held"/s, 'the consumer gets it');
		ack($answer);
	}
	else
	{
		wait_for($node, 'it is free again', $free->('held'));
	}
}

$server->{process}->signal('TERM');
ok($server->{process}->finish, 'it ends');
$node->stop;
no_failed_assertion($node);
done_testing();
