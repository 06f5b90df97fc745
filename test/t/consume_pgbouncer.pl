# Many consumers share few connections through pgbouncer.  Although some consumers are killed, every
# job completes once.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqPooler;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jobs = $ENV{JOBQ_TEST_JOBS} || 100_000;
my $consumers = 200;
my $kills = 10;

my $node = jobq_node('main', q{synchronous_commit = off});
$node->start;
$node->safe_psql('postgres',
	q{CREATE EXTENSION jobq; SELECT jobq.create_queue('work', mode => 'consumer')});

my $pooler = JobqPooler->new(
	$node,
	pool_mode => 'transaction',
	default_pool_size => 8,
	max_client_conn => 500,
	listen_backlog => 1024);
my ($dir, $port, $superuser) = @$pooler{qw(dir port user)};

my $program = "$dir/consumers";
my ($include, $lib) = map { $node->config_data($_) } '--includedir', '--libdir';
# a program needs the sanitizers of its libpq
my @sanitizers = grep { /^-fsanitize=/ } split ' ', $node->config_data('--cflags');
command_ok(
	[   'cc', '-O1', '-Wall', @sanitizers, '-o', $program, "$FindBin::RealBin/../consumers/consumers.c",
		"-I$include", '-I/usr/include/postgresql', "-L$lib", "-Wl,-rpath,$lib", '-lpq' ],
	'the consumers compile');

sub sql { return $node->safe_psql('postgres', $_[0]); }

sql(qq{SELECT count(*) FROM jobq.enqueue_many('any', array_fill('{}'::jsonb, ARRAY[$jobs]), queue => 'work', backoff => 'fixed 1ms')});
my $run = IPC::Run::start(
	[ $program, "host=$dir port=$port dbname=postgres user=$superuser", $consumers, $kills, 200, "$dir/acks" ],
	'<', File::Spec->devnull, '>', \my $killed, '2>', \my $errors,
	IPC::Run::timeout(1000));
$run->pump until ($killed =~ tr/\n//) == $kills;
# wait, because the connection of a consumer killed during a query may still be closing
wait_for($node, "$consumers consumers share eight connections",
	q{SELECT count(*) BETWEEN 1 AND 8 FROM pg_stat_activity WHERE query ~ 'jobq\.(reserve|ack)' AND pid <> pg_backend_pid()});

# all jobs are done except the jobs of killed consumers
my $dead = join ',', map { "'$_'" } split /\n/, $killed;
work_off($node, 'what the living can get is done', qq{
SELECT (SELECT count(*) FROM jobq_internal.job) - count(*) FROM jobq_internal.lease_slots() WHERE consumer IN ($dead)});
my $held = sql('SELECT count(*) FROM jobq_internal.job');
note "$held jobs are held by $kills consumers that were killed";
is(sql('SELECT count(*) FROM jobq_internal.archive WHERE attempt > 1'), '0', 'nothing was handed out twice so far');
sql(q{SELECT jobq.test_clock('11 min')});
wait_for($node, 'their leases end, and others do it', 'SELECT count(*) = 0 FROM jobq_internal.job');
$run->signal('TERM');
$run->finish;
is($errors, '', 'no consumer has met an error');

is( sql(q{SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE state <> 'c') FROM jobq_internal.archive}),
	"$jobs|$jobs|0", 'every job is completed, once');
cmp_ok(sql('SELECT coalesce(sum(attempt - 1), 0) FROM jobq_internal.archive'),
	'<=', $kills, 'of what a killed consumer held, at most one job is charged');
my @acks = split /\n/, slurp_file("$dir/acks");
my %acked;
$acked{$_}++ foreach @acks;
is(scalar(grep { $_ > 1 } values %acked), 0, 'no job was acknowledged twice');
cmp_ok(scalar @acks, '>=', $jobs - 10 * $kills, 'and the consumers know it');
is(sql('SELECT count(*) FROM jobq_internal.lease_slots()'), '0', 'no lease is left');

$pooler->stop;
$node->stop;
no_failed_assertion($node);
done_testing();
