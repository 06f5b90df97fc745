# The example consumer of the manual completes jobs, reports errors, extends leases, and stops.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $examples = "$FindBin::RealBin/../../libraries/shell";
my $page = slurp_file("$FindBin::RealBin/../../doc/consuming.md");

my $node = jobq_node('main', '');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION jobq');

# The command of the consumer in shell.
my $command = $node->basedir . '/work';
append_to_file($command, <<'END');
#!/bin/sh
read payload
case $payload in
	*flood*) head -c 200000 /dev/zero | tr '\0' x; exit ;;
	*noise*) printf '\377'; exit ;;
	*hold*) echo x >$0.began; while [ ! -e $0.go ]; do sleep 0.1; done ;;
esac
ms=$(expr "$payload" : '.*"ms": \([0-9]*\)')
sleep $(expr ${ms:-0} / 1000).$(expr ${ms:-0} % 1000 / 100)
image=$(expr "$payload" : '.*"image": \([0-9]*\)') || { echo "no image"; exit 1; }
echo "$image.png"
END
chmod 0755, $command;

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
$ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";
$ENV{LEASE} = 30;

# For each consumer: file, command to test the requirements, and command to start.
my @consumers = (
	[ 'consumer.sh', [ 'bash', '-c', 'true' ], [ 'bash', "$examples/consumer.sh", 'sh', $command ] ]);

# Run all consumers at the same time, with a queue for each.  A job takes longer than a lease.
my %started;
foreach my $consumer (@consumers)
{
	my ($name, $needs, $start) = @$consumer;
	my ($queue) = $name =~ /\.(\w+)$/;

	my $text = slurp_file("$examples/$name");
	cmp_ok($text =~ tr/\n//, '<', 50, "$name has less than 50 lines");
	ok(index($page, $text) >= 0, "$name is in doc/consuming.md as it is");

  SKIP:
	{
		my $run = { queue => $queue };

		skip "$name: $needs->[0] or its driver for PostgreSQL is not installed", 10
		  unless eval { IPC::Run::run($needs, '<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err}) };

		$node->safe_psql('postgres', qq{SELECT jobq.create_queue('$queue', mode => 'consumer')});
		$node->safe_psql('postgres',
			qq{SELECT jobq.enqueue('thumbnail', jsonb_build_object('image', i), '$queue') FROM generate_series(1, 20) i;
			   SELECT jobq.enqueue('thumbnail', payload, '$queue', max_attempts => 1) FROM unnest('{"{}", "\\"flood\\"", "\\"noise\\""}'::jsonb[]) payload;
			   SELECT jobq.enqueue('thumbnail', '{"image": 21, "ms": 33000}', '$queue')});
		$run->{handle} = IPC::Run::start($start, '<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err},
			IPC::Run::timeout(4 * $PostgreSQL::Test::Utils::timeout_default));
		$started{$name} = $run;
	}
}

foreach my $name (sort keys %started)
{
	my $queue = $started{$name}{queue};

	wait_for($node, "$name has done its work",
		"SELECT bool_and(finished_at IS NOT NULL) FROM jobq.jobs WHERE queue = '$queue'");
	is( $node->safe_psql('postgres',
			"SELECT state, attempt, count(*) FROM jobq.jobs WHERE queue = '$queue' GROUP BY 1, 2 ORDER BY 1"),
		"completed|1|22\ndead|1|2", "$name: each in one attempt, though one took longer than a lease");
	is( $node->safe_psql('postgres',
			"SELECT error FROM jobq.jobs WHERE queue = '$queue' AND state = 'dead' ORDER BY id"),
		"no image\nits output cannot be told", "$name tells why two have failed");
	is( $node->safe_psql('postgres',
			"SELECT length(result #>> '{}') FROM jobq.jobs WHERE queue = '$queue' AND payload = '\"flood\"'"),
		'30000', "$name keeps the beginning of a long output");
	is( $node->safe_psql('postgres',
			"SELECT coalesce(result ->> 'file', result #>> '{}') FROM jobq.jobs WHERE queue = '$queue' AND payload @> '{\"image\": 7}'"),
		'7.png', "$name tells the result");

	# after SIGTERM, the consumer ends the current job and gives other jobs back
	$node->safe_psql('postgres',
		qq{SELECT jobq.enqueue('thumbnail', '{"image": 30, "ms": 8000}', '$queue', headers => '{"last": true}') FROM generate_series(1, 5)});
	wait_for($node, "$name has taken some",
		"SELECT coalesce(sum(running), 0) > 0 FROM jobq.workers WHERE consumer = '$name'");
	$started{$name}{handle}->signal('TERM');
}

foreach my $name (sort keys %started)
{
	my $run = $started{$name};

	ok($run->{handle}->finish, "$name ends at SIGTERM");
	is($run->{err} =~ s/^invalid multibyte character\nERROR: .*?\^\n//msr, '', "$name had no errors but of an output that is no text");
	is( $node->safe_psql('postgres', "SELECT count(*) FROM jobq_internal.lease_slots() WHERE consumer = '$name'"),
		'0', "$name leaves nothing behind");
	# the consumer may not have begun any of the jobs
	like( $node->safe_psql('postgres',
			qq{SELECT state, attempt, count(*) <= 1 FROM jobq.jobs WHERE queue = '$run->{queue}' AND headers ? 'last' GROUP BY 1, 2 ORDER BY 1}),
		qr/^(completed\|1\|t\n)?ready\|0\|f$/, "$name has given back what it had not begun");
}

#
# SIGTERM during a statement; the statement then fails.
#
my %again;
foreach my $queue (map { $_->{queue} } values %started)
{
	$node->safe_psql('postgres', qq{SELECT jobq.cancel_many(queue => '$queue', state => 'waiting'), jobq.enqueue('thumbnail', '{"image": 1}', '$queue')});
}
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE jobq_internal.archive');
foreach my $consumer (@consumers)
{
	my ($name, undef, $start) = @$consumer;

	next unless $started{$name};
	my $run = $again{$name} = {};
	$run->{handle} = IPC::Run::start($start, '<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}
my $acks = q{FROM pg_stat_activity WHERE query ~ 'jobq[.]ack' AND wait_event_type = 'Lock'};
wait_for($node, 'all consumers are at ack()', "SELECT count(*) = @{[ scalar keys %again ]} $acks");
$_->{handle}->signal('TERM') foreach values %again;
# a shell handles the signal only after the current command
$node->safe_psql('postgres', "SELECT pg_cancel_backend(pid) $acks");
foreach my $name (sort keys %again)
{
	my $run = $again{$name};

	ok(eval { $run->{handle}->finish; 1 }, "$name ends at SIGTERM before an error") or $run->{handle}->kill_kill;
	like($run->{err}, qr/canceling statement due to user request/, "$name tells the error");
}
$locker->quit;

#
# The server is away when a job ends: the consumer reports the end after the server is back.
#
foreach my $consumer (@consumers)
{
	my ($name, undef, $start) = @$consumer;
	my $run = $started{$name} or next;

	$node->safe_psql('postgres',
		qq{SELECT jobq.cancel_many(queue => '$run->{queue}', state => 'waiting'), jobq.enqueue('thumbnail', '{"hold": true, "image": 40}', '$run->{queue}')});
	@$run{qw(out err)} = ('', '');
	$run->{handle} = IPC::Run::start($start, '<', File::Spec->devnull, '>', \$run->{out}, '2>', \$run->{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	wait_for_file("$command.began", "$name has begun one");
	$node->stop;
	append_to_file("$command.go", 'go');
	says($run, qr/connection to server/, "$name cannot tell of it");
	$node->start;
	wait_for($node, "$name has told of it",
		"SELECT state = 'completed' AND attempt = 1 FROM jobq.jobs WHERE queue = '$run->{queue}' AND payload ? 'hold'");
	$run->{handle}->signal('TERM');
	ok(eval { $run->{handle}->finish; 1 }, "$name ends at SIGTERM") or $run->{handle}->kill_kill;
	unlink "$command.began", "$command.go";
}

$node->stop;
no_failed_assertion($node);
done_testing();
