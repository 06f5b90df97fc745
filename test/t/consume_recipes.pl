# The code of doc/recipes.md works as it stands there.

use strict;
use warnings FATAL => 'all';
use Digest::SHA 'hmac_sha256_hex';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IO::Socket::INET;
use IPC::Run ();
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $tree = "$FindBin::RealBin/../..";
my $recipes = "$tree/examples/recipes";
my $page = slurp_file("$tree/doc/recipes.md");
ok(index($page, slurp_file($_)) >= 0, 'doc/recipes.md shows ' . s/.*\///r . ' as it is')
  foreach glob("$recipes/*"), "$tree/packaging/supervisor/laravel.conf";

my $node = jobq_node('main', '');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION jobq');
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";
$ENV{PYTHONPATH} = "$tree/libraries/python:$recipes";
$ENV{NODE_PATH} = join ':', grep { $_ } $ENV{NODE_PATH}, '/usr/share/nodejs';
my $secret = $ENV{SECRET} = 'a secret of the application';

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub is_there
{
	my (@command) = @_;

	return eval { IPC::Run::run(\@command, '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) };
}

# Start a server, and wait until it answers.
my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
sub serve
{
	my ($url, @command) = @_;
	my $run = start_program(@command);

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $http->get($url)->{status} != 599;
		usleep(100_000);
	}
	return $run;
}

# The answer to a request, of which the function sees each part as soon as it is there.
sub follow
{
	my ($port, $url, $see) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) or die "port $port: $@";
	my $text = '';

	$socket->print("GET $url HTTP/1.0\r\nHost: localhost\r\n\r\n");
	$see->($text) while sysread($socket, $text, 8192, length $text);
	return $text;
}

my $has_php = is_there('php', '-r', 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);');

#
# Progress in the browser.
#
sql(q{SELECT jobq.create_queue('outside', mode => 'consumer')});
my $wsgi = $node->basedir . '/serve.py';
append_to_file($wsgi, <<'END');
import sys, wsgiref.simple_server, events
wsgiref.simple_server.make_server('127.0.0.1', int(sys.argv[1]), events.application).serve_forever()
END
my %server = (
	php => sub { return ('php', '-q', '-S', "127.0.0.1:$_[0]", "$recipes/events.php") },
	python => sub { return ('/usr/bin/python3', $wsgi, $_[0]) },
	node => sub { return ('node', '-e', "require('http').createServer(require('$recipes/events.js')).listen($_[0], '127.0.0.1')") });
my %needs = (php => $has_php, python => is_there('/usr/bin/python3', '-c', 'import psycopg'), node => is_there('node', '-e', 'require("pg")'));
foreach my $language (sort keys %server)
{
  SKIP:
	{
		skip "$language has no driver for PostgreSQL", 1 unless $needs{$language};

		my $port = PostgreSQL::Test::Cluster::get_free_port();
		my $url = "http://127.0.0.1:$port/events.php";
		my $run = serve($url, $server{$language}->($port));
		my $link = sub { my ($job, $until) = @_; return "$url?job=$job&until=$until&signature=" . hmac_sha256_hex("$job $until", $secret) };
		my $id = sql(q{SELECT jobq.enqueue('work', queue => 'outside')});
		my $later = time() + 3600;

		is($http->get($url)->{status}, 403, "$language: a link needs a signature");
		is($http->get($link->($id, time() - 1))->{status}, 403, "$language: a link ends");
		is($http->get($link->($id, $later) =~ s/job=$id/job=1$id/r)->{status}, 403, "$language: a link is for one job");

		# The consumer goes on when the browser has seen its last step.
		my $token = sql(q{SELECT token FROM jobq.reserve('{outside}', wait => '5 min')});
		my $text = follow($port, $link->($id, $later), sub {
			if ($_[0] =~ /"half"/) { sql("SELECT jobq.ack($id, $token) WHERE (jobq.status($id)).state = 'running'") }
			elsif ($_[0] =~ /^data:/m) { sql("SELECT jobq.set_progress($id, $token, 50, 'half')") }
		});
		like($text, qr/^Content-Type: text\/event-stream/mi, "$language: these are events");
		my @events = map { s/([:,]) /$1/gr } $text =~ /^data: (.*)$/mg;
		is($events[0], '{"state":"running","progress":0,"message":null}', "$language: the first is the state");
		like($text, qr/"progress": ?50(\.0)?, ?"message": ?"half"/, "$language: then comes the progress");
		like($events[-1], qr/^\{"state":"completed"/, "$language: the last is the end");
		$run->{handle}->kill_kill;
	}
}

#
# A transport for PDO.
#
SKIP:
{
	skip 'PHP with pdo_pgsql is not installed', 1 unless $has_php;

	sql(q{SELECT jobq.create_queue('mails', mode => 'consumer')});
	my $script = $node->basedir . '/transport.php';
	append_to_file($script, <<'END' =~ s/RECIPES/$recipes/r);
<?php
require 'RECIPES/Transport.php';
$show = fn ($message) => print($message ? "$message->urn " . json_encode($message->payload) . ' ' . json_encode($message->headers) . " $message->attempts\n" : "none\n");
foreach ([false, true] as $emulate) {
	$db = new PDO('pgsql:', null, null, [PDO::ATTR_EMULATE_PREPARES => $emulate]);
	$transport = new Transport($db, 'mails');
	$show($transport->reserve(0));
	$id = $transport->publish('mail.send', ['to' => 'Ann', 'n' => 1.5], ['trace' => 't']);
	$transport->publish('mail.later', [], delay: 3600);
	$show($message = $transport->reserve());
	$transport->release($message);
	$show($message = $transport->reserve());
	$transport->release($message, 0, ['to' => 'Ben']);
	$show($message = $transport->reserve());
	$transport->ack($message);
	try {
		$transport->ack($message);
	} catch (PDOException $error) {
		echo $error->getCode(), "\n";
	}
	$transport->publish('mail.bad', null);
	$show($message = $transport->reserve());
	$transport->deadLetter($message, 'no address');
	$show($transport->reserve(0));
}
END
	my ($out, $err) = run_command([ 'php', $script ]);
	my $once = <<'END';
none
mail.send {"n":1.5,"to":"Ann"} {"trace":"t"} 1
mail.send {"n":1.5,"to":"Ann"} {"trace":"t"} 1
mail.send {"to":"Ben"} {"trace":"t"} 1
JQ011
mail.bad null [] 1
none
END
	is($err, '', 'the transport has no errors');
	is("$out\n", $once . $once, 'it publishes, reserves, releases and acknowledges');
	is(sql(q{SELECT kind, state, error, count(*) FROM jobq.jobs WHERE queue = 'mails' GROUP BY 1, 2, 3 ORDER BY 1}),
		"mail.bad|dead|no address|2\nmail.later|scheduled||2\nmail.send|completed||2", 'and has dead letters');
}

#
# Alerts by chat: the message of a dead letter is sent, also if the chat is down at first.
#
SKIP:
{
	skip 'PHP with pdo_pgsql is not installed', 1 unless $has_php;

	my $file = $node->basedir . '/chat';
	append_to_file("$file.php", qq{<?php file_put_contents('$file', file_get_contents('php://input') . "\\n", FILE_APPEND); echo '{}';});
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my ($out, $err) = run_command([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', "$recipes/alerts.sql" ]);
	is($err, '', 'alerts are set up');
	my $work = start_program('jobq', 'work', 'alerts', '--http', "http://127.0.0.1:$port/");
	skip 'the program is built without libcurl', 1 if !is_there('jobq', 'work', 'alerts', '--http', 'http://127.0.0.1:1/', '--stop-when-empty');

	sql(q{CREATE FUNCTION fail() RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no paper''; END';
		SELECT jobq.register('print', 'fail()', max_attempts => 1);
		SELECT jobq.enqueue('print'), jobq.enqueue('print')});
	wait_for($node, 'the chat is down', q{SELECT count(*) > 0 FROM jobq.jobs WHERE queue = 'alerts' AND errors IS NOT NULL});
	my $chat = serve("http://127.0.0.1:$port/", 'php', '-q', '-S', "127.0.0.1:$port", "$file.php");
	wait_for($node, 'messages are sent', q{SELECT count(*) >= 2 AND bool_and(state = 'completed') FROM jobq.jobs WHERE queue = 'alerts'});
	like(join("\n", sort grep { $_ } split /\n/, slurp_file($file)),
		qr/^\{"text": "jobq: alert_began many failures [\d.]+"\}\n\{"text": "jobq: dead print no paper"\}$/, 'of two dead letters one, and the alert');
	$work->{handle}->signal('TERM');
	is(finish($work), 0, 'jobq work ends');
	$chat->{handle}->kill_kill;
}

$node->stop;
no_failed_assertion($node);
done_testing();
