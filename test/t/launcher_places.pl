# A database that gets the slot of another database in shared memory finds no old data there.  Nor
# does a transaction that was open meanwhile change the data of the new database.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

$JobqTest::max_databases = 8;

my $node = jobq_node('main', q{
jobq.databases = ''
jobq.max_databases = 1
});
$node->start;
foreach my $dbname ('one', 'two')
{
	$node->safe_psql('postgres', "CREATE DATABASE $dbname");
	$node->safe_psql($dbname, q{CREATE EXTENSION jobq});
}

# Assign the slot to this database.  The relay waits for this interval.
sub serve
{
	my ($dbname, $interval) = @_;

	$node->append_conf('postgresql.conf', "jobq.databases = '$dbname'\njobq.notify_interval = '$interval'");
	$node->reload;
	return wait_for($node, "$dbname is served", q{SELECT count(pid) = 1 FROM jobq_internal.scheduler_state()}, $dbname);
}

my $listener = $node->background_psql('two');
$listener->query_safe('LISTEN news');

# Read notifications until the listener gets $last.  Returns all payloads since the last call, and
# the distinct pids of the senders.
sub heard
{
	my ($last) = @_;
	my (@heard, %pids);

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $out = $listener->query('SELECT 1');

		while ($out =~ /notification "news" with payload "([^"]*)" received from server process with PID (\d+)/g)
		{
			push @heard, $1;
			$pids{$2} = 1;
		}
		last if @heard && $heard[-1] eq $last;
		usleep(100_000);
	}
	return (join(' ', @heard), join(' ', sort keys %pids));
}

# More than half of the slots of the relay.
my $many = 300;

sub hears_many
{
	my ($what) = @_;

	$node->safe_psql('two', "SELECT jobq.notify('news', '$what' || i) FROM generate_series(1, $many) i");
	my ($heard, $pids) = heard("$what$many");
	is($heard, join(' ', map { "$what$_" } 1 .. $many), "$what: it hears what its own database tells, and nothing else");
	return is($pids, scheduler_pid($node, 'two'), "$what: all of it through the relay");
}

#
# The relay: pending messages, and reserved slots.
#
serve('one', '60s');
my $open = $node->background_psql('one');
$open->query_safe("BEGIN; SELECT jobq.notify('news', 'open' || i) FROM generate_series(1, $many) i;");
$node->safe_psql('one', q{SELECT jobq.notify('news', 'of one')});
serve('two', '10ms');
hears_many('a');
$open->query_safe('COMMIT;');
$open->quit;
hears_many('b');

# The same database comes back.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	$open = $node->background_psql('two');
	$open->query_safe("BEGIN; SELECT jobq.notify('news', 'open' || i) FROM generate_series(1, $many) i;");
	serve('one', '10ms');
	serve('two', '10ms');
	$open->query_safe("$end;");
	$open->quit;
	hears_many(lc $end);
}

#
# Reserved positions in a queue with a maximum length.
#
$node->safe_psql('two', q{SELECT jobq.create_queue('few', mode => 'consumer', max_length => 3)});
$open = $node->background_psql('two');
$open->query_safe(q{BEGIN; SELECT jobq.enqueue('x', queue => 'few') FROM generate_series(1, 2);});
serve('one', '10ms');
serve('two', '10ms');
$node->safe_psql('two', q{SELECT jobq.enqueue('x', queue => 'few')});
$open->query_safe('ROLLBACK;');
$open->quit;
my ($rc, $out, $err) = $node->psql('two', q{SELECT count(*) FROM jobq.enqueue_many('x', '{1,2,3}', queue => 'few')});
like($err, qr/It has 1 jobs, and max_length is 3/, 'length: what was rolled back has not made room twice');
$node->safe_psql('two', q{SELECT jobq.enqueue_many('x', '{1,2}', queue => 'few')});

$node->stop;
no_failed_assertion($node);
done_testing();
