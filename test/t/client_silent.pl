# The program jobq works with the second of two servers after the first goes silent, and ends even
# if both are silent.  A silent server accepts connections and does not respond.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use JobqProgram;
use JobqTest;
use JobqWeb;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $jobq) = client_node(q{jobq.databases = 'postgres'}, allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();
my @server;

# Let the servers continue at the end, to be stopped even after a failure.
END { kill('CONT', @server); }

sub silence
{
	my ($postmaster) = slurp_file($_[0]->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my @processes = ($postmaster, split(' ', `ps -o pid= --ppid $postmaster`));

	push @server, @processes;
	kill('STOP', @processes);
	return;
}

$node->safe_psql('postgres', q{CREATE EXTENSION jobq;
SELECT jobq.create_queue('a', mode => 'consumer'), jobq.create_queue('b', mode => 'consumer', open => true);
CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
SELECT jobq.grant_privilege('app'), jobq.grant_privilege('other')});
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
my $both = sprintf('host=%s,%s port=%s,%s dbname=postgres target_session_attrs=read-write connect_timeout=6',
	map { $node->$_, $standby->$_ } qw(host port));

my $id = $node->safe_psql('postgres', q{SELECT jobq.enqueue('any', queue => 'a')});
my $run = start_program($jobq, 'work', 'a', '--exec', "echo x >>$dir/runs; while [ ! -e $dir/end ]; do sleep 0.1; done; echo there",
	'--once', '--lease', '10min', '-d', $both);
wait_for_file("$dir/runs", 'the command runs for the first server');
$node->wait_for_catchup('standby', 'replay', $node->lsn('insert'));
my @sessions = split(/\n/, $node->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE application_name = 'jobq'}));
silence($node);
kill('KILL', @sessions);
says($run, qr/the connection is lost.*no connection: the server does not answer/s, 'it does not answer any more');
$standby->promote;
says($run, qr/(connected again, to \S+ port @{[$standby->port]}\n.*){2}/s, 'the program finds the other');
append_to_file("$dir/end", 'x');
is(finish($run), 0, 'the program ends after its job');
is($standby->safe_psql('postgres', "SELECT state, attempt, result FROM jobq.status($id)"), 'completed|1|"there"', 'which was done once');

# Logins to the console also reach the second server, with the second attempt.
SKIP:
{
	skip 'the program jobq was built without libmicrohttpd', 5 unless has_web($jobq);

	my $web = serve($jobq, '--allow-trust', '-d', $both);
	my @answers = map {
		HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)->post("$web->{url}/api/session",
			{ headers => { 'Content-Type' => 'application/json' }, content => qq({"role": "$_", "password": "x"}) })
	} 'app', 'app', 'other';
	like($answers[0]{content}, qr/does not answer/, 'who logs in is told that the first server does not answer');
	is($answers[1]{status}, 200, 'who tries again is logged in at the other');
	is($answers[2]{status}, 200, 'who comes later is there at once');

	# the program ends although running statements cannot be cancelled
	my $token = 'Abcdefghijklmnopqrstuvwx0';
	token_file("$dir/tokens", "$token user=app");
	my %ends = map { $_ => serve($jobq, '--token-file', "$dir/tokens", '-d', $standby->connstr('postgres')) } 'soon', 'in the end';
	my $body = '{"queues": ["b"], "wait": "60 s"}';
	my @waits = map { raw($_, "POST /api/reserve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $token\r\nContent-Type: application/json\r\nContent-Length: "
		  . length($body) . "\r\n\r\n$body") } values %ends;
	wait_for($standby, 'consumers wait',
		q{SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'jobq web' AND state = 'active' AND query LIKE 'SELECT r.queue, r.id%'});
	silence($standby);
	foreach my $when (sort keys %ends)
	{
		my $process = $ends{$when}{process};

		$process->signal('TERM');
		$process->pump until $ends{$when}{err} =~ /stopping/;
		$process->signal('TERM') if $when eq 'soon';
		ok($process->finish, "a program that is to end $when");
	}
}

kill('CONT', @server);
@server = ();
$node->stop('immediate');
$standby->stop;
no_failed_assertion($node, $standby);
done_testing();
