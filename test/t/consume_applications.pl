# The applications in examples/ run by one command each, and do what their pages promise.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use HTTP::Tiny;
use IPC::Run ();
use JobqProgram;
use JobqTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $examples = "$FindBin::RealBin/../../examples";
my $node = jobq_node('main', '');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION jobq');
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PYTHON} = '/usr/bin/python3';
$ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub is_there
{
	my (@command) = @_;

	return eval { IPC::Run::run(\@command, '<', File::Spec->devnull, '>', \my $out, '2>', \my $err) };
}

# Run an example to its end; returns the output.
sub output_of
{
	my ($name, @arguments) = @_;
	my ($out, $err) = ('', '');

	ok(IPC::Run::run([ "$examples/$name/run", @arguments ], '<', File::Spec->devnull, '>', \$out, '2>', \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)),
		"$name: it runs") or diag($out);
	return ($out, $err);
}

#
# imports: bad lines are dead letters, are repaired, and retried.
#
for my $time ('first', 'second')
{
	my ($out, $err) = output_of('imports');

	is($err, '', "imports, the $time time: no errors");
	like($out, qr/failed\s+\|\s+48 \|\s+41 \|\s+7 \|\s+100$/m, 'all good lines are imported, and the bad ones are dead letters');
	like($out, qr/^\s+73 \|\s+80$/m, 'in the table, too');
	is(join(' ', $out =~ /^ ([0-9A-Z]{5}) +\| +(\d+) \|/mg), '22008 1 22P02 3 23503 2 23514 1', 'their causes are shown');
	like($out, qr/completed\s+\|\s+48 \|\s+48 \|\s+0$/m, 'after the repairs, the batch is completed');
	like($out, qr/^ prices\.csv$/m, 'and the import is published');
}
is(sql(q{SELECT count(*) FROM jobq.dead_letters}), 0, 'no dead letter is left');
is(sql(q{SELECT state, result ->> 'split' IS NOT NULL, count(*) FROM jobq.jobs WHERE kind = 'price.chunk' GROUP BY 1, 2 ORDER BY 2}),
	"completed|f|8\ncompleted|t|8", 'only chunks with a bad line are split');
is(sql(q{SELECT amount FROM import.price WHERE product = 'P-3' AND valid_from = '2026-03-01'}), '12.50', 'a decimal comma is repaired');

#
# outbox: the tax service fails, hangs and refuses, and books each order once.
#
SKIP:
{
	skip 'psycopg is not installed', 1 unless is_there($ENV{PYTHON}, '-c', 'import psycopg');

	my ($out) = output_of('outbox', PostgreSQL::Test::Cluster::get_free_port());
	my ($requests, $bookings) = $out =~ /has had (\d+) requests, and has made (\d+) bookings/;

	like($out, qr/^20 orders in \d+ ms$/m, 'outbox: orders are placed');
	like($out, qr/^   1  attempts 2 .*503: the service is overloaded$/m, 'a failed request is tried again');
	like($out, qr/^   2  attempts 2 .*timed out$/m, 'so is a request without an answer');
	like($out, qr/^   3  attempts 1 /m, 'a request for which the service has no time is no failed attempt');
	like($out, qr/^  no country "Spain"\n  corrected, and completed$/m, 'a rejected order is corrected');
	is($bookings, 20, 'the service has booked each order once');
	cmp_ok($requests, '>=', 33, 'with more requests');
	is(sql('SELECT count(DISTINCT receipt), count(tax) FROM shop.orders'), '20|20', 'each order has its receipt');
	is(sql(q{SELECT count(*) FROM jobq.workers WHERE consumer = 'python'}), 0, 'the worker has ended');
}

#
# invoicing: the answer does not wait for the work, and a killed worker leads to no second invoice.
#
SKIP:
{
	skip 'PHP with pdo_pgsql and pcntl is not installed', 1
	  unless is_there('php', '-r', 'exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');

	my $url = 'http://127.0.0.1:' . (my $port = PostgreSQL::Test::Cluster::get_free_port());
	my $http = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default);
	my $run = start_program("$examples/invoicing/run", $port);
	my @branches = qw(berlin lyon madrid);
	my %run;

	my $ask = sub { my $answer = $http->request(@_); return ($answer->{status}, eval { decode_json($answer->{content}) }) };
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $http->get("$url/")->{success};
		usleep(100_000);
	}
	like($http->get("$url/")->{content}, qr/EventSource/, 'invoicing: there is a page');

	# While no invoice can be written, the requests are answered.
	my $locker = $node->background_psql('postgres');
	$locker->query_safe('BEGIN; LOCK TABLE ' . join ', ', map { "$_.invoice" } @branches);
	foreach my $branch (@branches)
	{
		my ($status, $answer) = $ask->(POST => "$url/$branch/runs?month=2026-11-17");
		is($status, 202, "$branch: the request is accepted");
		$run{$branch} = "$url/$branch/runs/$answer->{batch}";
	}
	my ($status, $answer) = $ask->(POST => "$url/berlin/runs?month=2026-11-01");
	is("$url/berlin/runs/$answer->{batch}", $run{berlin}, 'a second click starts no second run');
	is(($ask->(GET => $run{berlin}))[1]{progress}, 0, 'no invoice is written yet');
	is(($ask->(GET => "$url/berlin/runs/x"))[0], 404, 'a run has a number');
	is(($ask->(GET => $run{berlin} =~ s/berlin/madrid/r))[0], 404, 'a run of another branch is not to be seen');
	is(($ask->(POST => "$url/berlin/runs?month=soon"))[0], 422, 'a month that is none is refused');
	is(($ask->(GET => "$url/paris/notifications"))[0], 404, 'so is a branch that is none');

	# A worker is killed when its invoice is committed, but not acknowledged.
	my $acks = q{FROM pg_stat_activity WHERE query ~ 'jobq[.]ack' AND wait_event_type = 'Lock'};
	my $archive = $node->background_psql('postgres');
	$archive->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
	$locker->query_safe('COMMIT');
	wait_for($node, 'both workers have written invoices', "SELECT count(*) = 2 $acks");
	my $written = sql(q{SELECT string_agg(invoice, ',') FROM (} . join(' UNION ALL ', map { "SELECT '$_ ' || customer FROM $_.invoice" } @branches) . ') AS i (invoice)');
	my ($worker) = map { split } `pgrep -P @{[ pid_of($run) ]} -f worker.php`;
	kill('KILL', $worker);
	sql("SELECT pg_terminate_backend(pid) $acks");
	$archive->query_safe('COMMIT');
	wait_for($node, 'the job of an invoice that was written comes again', qq{SELECT count(*) > 0 FROM jobq.jobs
		WHERE state = 'completed' AND (errors::text ~ 'lease expired' OR log::text ~ 'its consumer was lost')
		AND tenant || ' ' || (payload ->> 'customer') = ANY ('{$written}')});

	# The browser sees the progress.
	foreach my $branch (@branches)
	{
		my $text = '';
		$http->get("$run{$branch}/events", { data_callback => sub { $text .= $_[0] } });
		my @events = map { decode_json($_) } $text =~ /^data: (.*)$/mg;
		is_deeply([ @{ $events[-1] }{ 'state', 'total', 'completed', 'dead', 'progress' } ], [ 'failed', 200, 196, 4, 100 ],
			"$branch: the events end with the batch");
	}
	is(sql(q{SELECT DISTINCT error FROM jobq.dead_letters WHERE tenant = 'berlin' ORDER BY 1 LIMIT 1}), 'customer "Berlin 100" has no street',
		'a dead letter has its reason');

	# Dead letters are repaired.
	foreach my $branch (@branches)
	{
		is(($ask->(POST => "$run{$branch}/repair"))[1]{retried}, 4, "$branch: dead letters are retried");
		my $text = $http->get("$run{$branch}/events")->{content};
		like($text, qr/\{"state":"completed","total":200,"completed":200,"dead":0,"progress":100\}\n\n$/, 'and the batch is completed');
		is(sql("SELECT count(*), count(DISTINCT customer), count(DISTINCT number), max(number) FROM $branch.invoice"), '200|200|200|200',
			'each customer has one invoice, and the numbers have no gap');
		wait_for($node, 'the branch gets two notifications', "SELECT count(*) = 2 FROM $branch.notification");
		is_deeply(($ask->(GET => "$url/$branch/notifications"))[1], [ '2026-11-01: 200 invoices are written, 0 failed', '2026-11-01: 196 invoices are written, 4 failed' ],
			'of the end, and of the repair');
	}

	# The same in a browser.
	my ($chromium) = grep { -x $_ } $ENV{CHROMIUM} || (), '/usr/bin/chromium', '/usr/bin/chromium-browser';
  SKIP:
	{
		skip 'there is no Chromium, or no node of version 18 or later', 1
		  unless $chromium && is_there('node', '-e', 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)');
		local $ENV{CHROMIUM} = $chromium;
		my ($out, $err) = ('', '');
		ok(IPC::Run::run([ 'node', "$FindBin::RealBin/../console/invoicing.mjs", "$url/" ], '<', File::Spec->devnull, '>', \$out, '2>', \$err,
				IPC::Run::timeout(2 * $PostgreSQL::Test::Utils::timeout_default)),
			'the page follows the batches') or diag("$out$err");
	}

	$run->{handle}->signal('TERM');
	is(finish($run), 0, 'it ends at SIGTERM');
	is(sql(q{SELECT count(*) FROM jobq_internal.lease_slots()}), 0, 'and leaves no job held');
	$_->quit foreach $locker, $archive;
}

$node->stop;
no_failed_assertion($node);
done_testing();
