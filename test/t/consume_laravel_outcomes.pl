# The options of Laravel's queues have the same outcomes with jobq's driver as with Laravel's driver
# "database", and a bulk of jobs is as fast.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $parts = join ', ', map { "\"$_\"" } qw(Queue Events Bus Database Console Support Cache Encryption);
my $node = library_node('illuminate/queue with cache and encryption',
	'php', '-r', "foreach ([$parts] as \$part) is_readable(\"/usr/share/php/Illuminate/\$part/autoload.php\") || exit(1);
		exit(extension_loaded('pdo_pgsql') && function_exists('pcntl_alarm') ? 0 : 1);");
my $script = "$FindBin::RealBin/../consumers/laravel_outcomes.php";

# Laravel's tables, and queues for jobq
$node->safe_psql('postgres', q{
	CREATE TABLE jobs (id bigserial PRIMARY KEY, queue varchar(255), payload text, attempts smallint, reserved_at int,
		available_at int, created_at int);
	CREATE INDEX ON jobs (queue);
	CREATE TABLE failed_jobs (id bigserial PRIMARY KEY, uuid varchar(255) UNIQUE, connection text, queue text, payload text,
		exception text, failed_at timestamp DEFAULT now());
	CREATE TABLE job_batches (id varchar(255) PRIMARY KEY, name varchar(255), total_jobs int, pending_jobs int, failed_jobs int,
		failed_job_ids text, options text, cancelled_at int, created_at int, finished_at int);
	CREATE TABLE laravel_row (id serial PRIMARY KEY, text text);
	SELECT jobq.create_queue('default', mode => 'consumer'), jobq.create_queue('high', mode => 'consumer');
});

my %outcome;
foreach my $driver (qw(database jobq))
{
	my ($out, $err) = run_command([ 'php', $script, $driver ]);

	is($err, '', "$driver: no errors");
	push @{ $outcome{order} }, map { /^(.*?): / } split /\n/, $out if $driver eq 'database';
	$outcome{$driver} = { map { /^(.*?): (.*)$/s } split /\n/, $out };
	is(scalar(grep { /THROWN/ } values %{ $outcome{$driver} }), 0, "$driver: every scenario comes to its end")
	  or diag(grep { /THROWN/ } split /^/, $out);
}
cmp_ok(scalar @{ $outcome{order} }, '>=', 50, 'there are scenarios');

# The drivers differ here: jobq regards the delays of bulk(), and the first call of release(), delete()
# or fail() decides about a job.  Laravel's driver makes a second row of such a job.
my %differs = (
	'bulk with delays' => 'attempt 1, idle, attempt 1, default 0 high 0, failed jobs 0',
	'release twice' => 'attempt 1, default 1 high 0, failed jobs 0',
	'release after fail' => 'attempt 1, failed: Exception first, default 0 high 0, failed jobs 1',
	'an exception after a release' =>
	  'attempt 1, failed: Exception after release, reported: after release, default 1 high 0, failed jobs 0');
is($outcome{jobq}{$_}, $differs{$_} || $outcome{database}{$_}, $_) foreach @{ $outcome{order} };
isnt($outcome{database}{$_}, $differs{$_}, "$_: the drivers differ") foreach sort keys %differs;

# A batch of 500 jobs, by turns; a server with assertions is slower.
my ($speed) = run_command([ 'php', $script, 'speed' ]);
my %seconds = $speed =~ /^(\w+) ([\d.e-]+)$/mg;
note("a batch of 500 jobs takes: $speed");
cmp_ok($seconds{jobq}, '<', 3 * $seconds{database}, 'a batch is enqueued about as fast');

$node->stop;
no_failed_assertion($node);
done_testing();
