# Jobs become messages of RabbitMQ, and messages become jobs.  Nothing is lost when the program, the
# broker or the server is killed, and a repeated message has the same id.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqBroker;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan(skip_all => 'RabbitMQ is not installed (Debian: rabbitmq-server)') unless JobqBroker::is_there();

my ($node, $jobq) = client_node(q{
jobq.databases = 'postgres'
jobq.default_backoff = 'fixed 1h'
});
plan(skip_all => 'the program jobq was built without librabbitmq')
  if `$jobq relay --to amqp://x 2>&1` =~ /librabbitmq/;

my $broker = JobqBroker->new(q(
"exchanges": [{"name": "shop", "vhost": "/", "type": "fanout", "durable": true, "auto_delete": false, "internal": false, "arguments": {}}],
"queues": [
	{"name": "orders", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}},
	{"name": "inbox", "vhost": "/", "durable": true, "auto_delete": false,
		"arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bad"}},
	{"name": "small", "vhost": "/", "durable": true, "auto_delete": false,
		"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}},
	{"name": "bad", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {}}],
"bindings": [
	{"source": "shop", "vhost": "/", "destination": "orders", "destination_type": "queue", "routing_key": "", "arguments": {}},
	{"source": "shop", "vhost": "/", "destination": "inbox", "destination_type": "queue", "routing_key": "", "arguments": {}}]
));
$ENV{JOBQ_AMQP_PASSWORD} = 'secret';

sub sql { return $node->safe_psql('postgres', $_[0]); }

my @relays;

sub start_relay
{
	push @relays, start_program($jobq, 'relay', @_);
	return $relays[-1];
}

# A relay would go on without its servers, and the broker without the test.
$SIG{TERM} = $SIG{INT} = sub { die "ended by a signal\n" };
END { $_->{handle}->kill_kill foreach grep { $_->{handle}->pumpable } @relays; }

# The options of a relay from the database, and to the database.
sub outward
{
	my ($queue, @options) = @_;

	return ('--to', $broker->url('jobq'), '--queue', $queue, @options);
}

sub inward
{
	my ($source, $queue, @options) = @_;

	return ('--from', $broker->url('jobq'), '--source', $source, '--queue', $queue, '--kind', 'seen', @options);
}

# Run a relay until nothing is left.  Returns its messages.
sub relay_all
{
	my $run = start_relay(@_, '--stop-when-empty');

	is(finish($run), 0, "it ends: @_[0 .. 3]");
	return $run->{err};
}

sql(q{CREATE EXTENSION jobq;
SELECT jobq.create_queue(q, mode => 'consumer') FROM unnest('{outbox,routes,held,received,copies,rejected}'::text[]) AS q});

# Jobs pass through the broker in both directions, while both relays, the broker and the server are killed.
my $long = ($ENV{JOBQ_BLOWS} // 1) > 1;
my $kills = $long ? 5 : 1;
my $portion = $long ? 600 : 300;
my $n = 0;
my @out = outward('outbox', '--exchange', 'shop', '--window', '50', '--lease', '3s');
my @in = inward('inbox', 'received', '--window', '50');
my $out = start_relay(@out);
my $in = start_relay(@in);
my $lines = '';
foreach my $kill (1 .. $kills)
{
	foreach my $what ('out', 'broker', 'in', 'server')
	{
		sql(qq{SELECT count(jobq.enqueue('order', jsonb_build_object('n', i), queue => 'outbox', group_key => (i % 20)::text,
			max_attempts => 0, headers => '{"shop": {"id": 7, "tags": ["a", null, true]}, "sum": 1.5}'))
			FROM generate_series($n + 1, $n + $portion) AS i});
		wait_for($node, "some jobs are published before the kill of: $what",
			qq{SELECT count(*) > $n FROM jobq.jobs WHERE kind = 'order' AND state = 'completed'});
		$n += $portion;
		if ($what eq 'broker' or $what eq 'server')
		{
			my $side = $what eq 'broker' ? $broker : $node;

			$what eq 'broker' ? $broker->crash : $node->stop('immediate');
			$side->start;
			next;
		}
		my $run = $what eq 'out' ? $out : $in;
		kill('KILL', pid_of($run));
		$run->{handle}->finish;
		$lines .= $run->{err};
		$run = start_relay($what eq 'out' ? @out : @in);
		if ($what eq 'out') { $out = $run; }
		else { $in = $run; }
	}
}
wait_for($node, 'all jobs are published', qq{SELECT count(*) = $n FROM jobq.jobs WHERE kind = 'order' AND state = 'completed'});
wait_for($node, 'all messages are enqueued', qq{SELECT count(DISTINCT payload) = $n FROM jobq.jobs WHERE queue = 'received'});
foreach my $run ($out, $in)
{
	kill('TERM', pid_of($run));
	is(finish($run), 0, 'a relay stops at SIGTERM');
	$lines .= $run->{err};
}
relay_all(inward('inbox', 'received'));
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'received'}), $n, 'each job is enqueued once from the broker');
relay_all(inward('orders', 'copies', '--ignore-ids', '--window', '1000'));
is(sql(q{SELECT count(DISTINCT payload), count(DISTINCT headers ->> 'message_id') FROM jobq.jobs WHERE queue = 'copies'}),
	"$n|$n", 'no message is lost, and a duplicate has the same id');
is(sql(q{SELECT count(*) FROM (SELECT payload, payload -> 'n' < lag(payload -> 'n')
	OVER (PARTITION BY (payload -> 'n')::int % 20 ORDER BY id) AS back FROM jobq.jobs WHERE queue = 'copies') AS t WHERE back}),
	0, 'the messages of a group are in order');
note(sql(q{SELECT count(*) || ' messages for ' || count(DISTINCT payload) || ' jobs' FROM jobq.jobs WHERE queue = 'copies'}));
is(sql(q{SELECT DISTINCT headers - 'message_id' = '{"shop": {"id": 7, "tags": ["a", null, true]}, "sum": 1.5, "content_type": "application/json"}'
	FROM jobq.jobs WHERE queue = 'received'}), 't', 'headers and content type arrive');
is(sql(q{SELECT bool_and(s.headers ->> 'message_id' ~ ('^jobq:\d+\.\d+:' || o.id || '$'))
	FROM jobq.jobs o JOIN jobq.jobs s ON s.queue = 'received' AND s.payload = o.payload WHERE o.queue = 'outbox'}),
	't', 'the id of a message contains the id of the job');
cmp_ok(scalar(() = $lines =~ /connect.*\n/g), '<=', 20 * $kills, 'few lines about connections are printed') or diag($lines);

# Routing keys and exchanges from the job; messages that the broker cannot route, or refuses.
sql(q{SELECT jobq.enqueue('good', '{"to": {"key": "bad"}}', queue => 'routes', headers => '{"message_id": "own"}');
SELECT jobq.enqueue('text', '"no JSON"', queue => 'routes', headers => '{"key": "bad", "content_type": "text/plain"}');
SELECT jobq.enqueue('lost', '{"to": {"key": "nowhere"}}', queue => 'routes');
SELECT jobq.enqueue('none', '{}', queue => 'routes');
SELECT jobq.enqueue('name', '{"to": {"key": "bad"}}', queue => 'routes', headers => jsonb_build_object('in', jsonb_build_array(jsonb_build_object(repeat('n', 256), 1))));
SELECT jobq.enqueue('number', '{"to": {"key": "bad"}}', queue => 'routes',
	headers => '{"large": 1e30, "id": 50755254975729665, "tenth": 0.1, "exact": [12345678901234567890.0123]}');
SELECT jobq.enqueue('refused', '{"to": {"key": "bad"}}', queue => 'routes', headers => '{"exchange": "missing"}');
SELECT jobq.enqueue('good', '{"to": {"key": "bad"}}', queue => 'routes') FROM generate_series(1, 5)});
my $said = relay_all(outward('routes', '--routing-key-by', 'payload $.to.key'));
is(sql(q{SELECT string_agg(kind || ': ' || error, E'\n' ORDER BY kind) FROM jobq.dead_letters WHERE queue = 'routes'}),
	qq(lost: no queue takes the message: NO_ROUTE (312), exchange "", routing key "nowhere"\n)
	. qq(name: the name of a header is longer than 255 bytes\n)
	. qq(none: the job does not determine the routing key of its message\n)
	. qq(text: the job does not determine the routing key of its message),
	'a job that cannot be a message, or has no route, is a dead letter');
sql(q{SELECT jobq.edit(id, payload => '"no JSON"'), jobq.retry(id) FROM jobq.dead_letters WHERE kind = 'text'});
relay_all(outward('routes', '--routing-key-by', 'header key'));
sql(q{SELECT jobq.enqueue('refused', queue => 'held', headers => '{"exchange": "missing"}');
SELECT jobq.enqueue('good', queue => 'held', headers => '{"exchange": "shop"}', group_key => 'one') FROM generate_series(1, 5)});
relay_all(outward('held', '--exchange-by', 'header exchange'));
is(sql(q{SELECT string_agg(DISTINCT concat_ws(' ', kind, state, error), ',') FROM jobq.jobs WHERE queue = 'held'}),
	"good completed,refused retryable the broker refuses the message: NOT_FOUND - no exchange 'missing' in vhost '/' (404)",
	'a message that the broker refuses is an error of its job only');

# A body that is not JSON is rejected, and reaches the dead letter exchange.
sql(q{SELECT jobq.enqueue('text', '"no JSON"', queue => 'outbox', headers => '{"content_type": "text/plain"}');
SELECT jobq.enqueue('order', '{"n": -1}', queue => 'outbox')});
relay_all(outward('outbox', '--routing-key', 'inbox'));
like(relay_all(inward('inbox', 'received')), qr/message "jobq:\S+" is rejected: invalid input syntax for type json/, 'it says what it rejects');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'received' AND payload = '{"n": -1}'}), 1, 'the next message is enqueued');
relay_all('--from', $broker->url('jobq'), '--source', 'bad', '--queue', 'rejected', '--body', 'auto');
is(sql(q{SELECT string_agg(kind || ' ' || payload, ',' ORDER BY id) FROM jobq.jobs WHERE queue = 'rejected' AND kind = 'text'}),
	'text "no JSON",text "no JSON"', 'the rejected message is kept by the broker');
is(sql(q{SELECT headers ->> 'message_id' FROM jobq.jobs WHERE queue = 'rejected' AND headers ->> 'message_id' NOT LIKE 'jobq:%'}),
	'own', 'a job can have a message id of its own');
is(sql(q{SELECT headers - '{message_id,content_type}'::text[] FROM jobq.jobs WHERE queue = 'rejected' AND kind = 'number'}),
	'{"id": 50755254975729665, "exact": ["12345678901234567890.0123"], "large": "1000000000000000000000000000000", "tenth": 0.1}',
	'numbers in headers keep their digits');

# Without --kind, a message can be at fault by its type; a message that is too large is.
sql(q{CREATE FUNCTION nothing(jsonb) RETURNS void LANGUAGE sql AS '';
SELECT jobq.create_queue(q) FROM unnest('{works,gone}'::text[]) AS q;
SELECT jobq.register('fine', 'nothing(jsonb)');
SELECT jobq.enqueue(CASE i WHEN 2 THEN 'strange' ELSE 'fine' END, to_jsonb(repeat('x', CASE i WHEN 1 THEN 5000 ELSE i END)), queue => 'outbox')
FROM generate_series(1, 3) AS i});
relay_all(outward('outbox', '--routing-key', 'orders'));
{
	local $ENV{PGOPTIONS} = '-c jobq.max_payload=2kB';
	$said = relay_all('--from', $broker->url('jobq'), '--source', 'orders', '--queue', 'works');
}
like($said, qr/is rejected: payload(?: and headers)? of \d+ bytes are larger than the allowed 2 kB/, 'a message that is too large is rejected');
like($said, qr/is rejected: no handler is registered for kind "strange"/, 'so is a message of an unknown type');
is(sql(q{SELECT string_agg(payload::text, ',') FROM jobq.jobs WHERE queue = 'works'}), '"xxx"', 'the next message is enqueued');

# A queue that does not exist rejects no message.
my $dropped = start_relay('--from', $broker->url('jobq'), '--source', 'orders', '--queue', 'gone');
wait_for($node, 'the relay is connected', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'jobq'});
sql(q{SELECT jobq.drop_queue('gone');
SELECT jobq.enqueue('strange', to_jsonb(i), queue => 'outbox') FROM generate_series(1, 10) AS i});
relay_all(outward('outbox', '--routing-key', 'orders'));
is(finish($dropped) >> 8, 1, 'a relay ends if its queue was dropped');
like($dropped->{err}, qr/queue "gone" does not exist/, 'and tells it');
my $run = start_relay('--from', $broker->url('jobq'), '--source', 'orders', '--queue', 'wroks', '--stop-when-empty');
is(finish($run) >> 8, 1, 'a relay does not begin with a queue that does not exist');
unlike($dropped->{err} . $run->{err}, qr/rejected/, 'and no message is rejected');

# A full queue takes the messages for which it has room.
sql(q{SELECT jobq.create_queue('short', mode => 'consumer', max_length => 3)});
$run = start_relay(inward('orders', 'short'));
says($run, qr/could not enqueue messages: queue "short" is full/, 'a full queue is told');
is(sql(q{SELECT count(*) FROM jobq.jobs WHERE queue = 'short' AND state = 'ready'}), 3, 'it takes the messages for which it has room');
sql(q{SELECT jobq.alter_queue('short', max_length => 0)});
wait_for($node, 'the other messages follow', q{SELECT count(DISTINCT payload) = 10 FROM jobq.jobs WHERE queue = 'short'});
kill('TERM', pid_of($run));
is(finish($run), 0, 'the relay ends');

# A queue of the broker is full: the jobs wait, and no attempt is charged.
sql(q{SELECT jobq.enqueue('small', jsonb_build_object('i', i), queue => 'outbox') FROM generate_series(1, 3) AS i});
$said = relay_all(outward('outbox', '--retry-delay', '1h'));
like($said, qr/the broker could not store the message of job \d+/, 'a full queue of the broker is told');
is(sql(q{SELECT string_agg(DISTINCT state || attempt, ',') FROM jobq.jobs WHERE kind = 'small'}), 'completed1,scheduled0', 'and charges no attempt');

# TLS: the certificate of the broker is verified, and its name.
sql(q{SELECT jobq.enqueue('safe', queue => 'held')});
my @safe = ('--queue', 'held', '--routing-key', 'orders');
$run = start_relay('--to', $broker->tls_url('localhost'), @safe);
is(finish($run) >> 8, 3, 'an unknown certificate is refused');
$run = start_relay('--to', $broker->tls_url('127.0.0.1'), @safe, '--ca', $broker->certificate);
is(finish($run) >> 8, 3, 'a certificate with another name is refused');
relay_all('--to', $broker->tls_url('localhost'), @safe, '--ca', $broker->certificate);
is(sql(q{SELECT state FROM jobq.jobs WHERE kind = 'safe'}), 'completed', 'a trusted broker gets the message');

# The broker does not answer: at SIGTERM, a relay gives its jobs back.
sql(q{SELECT jobq.cancel_many(queue => 'outbox')});
$run = start_relay(outward('outbox', '--routing-key', 'bad', '--grace', '1s', '--verbose'));
sql(q{SELECT jobq.enqueue('first', queue => 'outbox')});
says($run, qr/job \d+ \(first\): done/, 'a job is published');
$broker->signal('STOP');
sql(q{SELECT jobq.enqueue('stuck', queue => 'outbox') FROM generate_series(1, 10)});
wait_for($node, 'the jobs are taken', q{SELECT count(*) = 10 FROM jobq.jobs WHERE kind = 'stuck' AND state = 'running'});
kill('TERM', pid_of($run));
is(finish($run), 0, 'the relay ends');
is(sql(q{SELECT string_agg(DISTINCT state || attempt, ',') FROM jobq.jobs WHERE kind = 'stuck'}), 'ready0', 'the jobs are given back uncharged');
$broker->signal('CONT');

# A password reaches neither the list of processes nor a message.
$run = start_relay('--to', $broker->url('jobq:wrong'), '--queue', 'outbox');
wait_for($node, 'the password of the environment is used',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%FROM jobq.reserve(%' AND pid <> pg_backend_pid()});
delete $ENV{JOBQ_AMQP_PASSWORD};
my $again = start_relay('--to', $broker->url('jobq:wrong'), '--queue', 'outbox');
is(finish($again) >> 8, 3, 'a wrong password ends the program');
like($again->{err}, qr/no connection to the broker at 127.0.0.1 port \d+: ACCESS_REFUSED/, 'and is told');
unlike($again->{err}, qr/wrong/, 'without the password');
unlike(slurp_file('/proc/' . pid_of($run) . '/cmdline'), qr/wrong/, 'the address is hidden in the list of processes');
kill('TERM', pid_of($run));
is(finish($run), 0, 'the relay ends');

done_testing();
