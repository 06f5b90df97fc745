# A short run of test/fuzz: all functions callable from SQL, with odd arguments, from several roles
# and sessions at once, on a server with assertions.  The seed is fixed.  make fuzz and make
# check-long use more seeds.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $fuzz = "$FindBin::RealBin/../fuzz";
my $node = jobq_node('main', slurp_file("$fuzz/fuzz.conf"));
$node->start;

if ($node->safe_psql('postgres', 'SHOW debug_assertions') eq 'off')
{
	$node->stop;
	plan skip_all => 'this server has no assertions';
}

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PATH} = $node->config_data('--bindir') . ":$ENV{PATH}";
my @fuzz = ("$fuzz/fuzz", '--seed', 1, '--seconds', 12, '--log', $node->logfile);
open my $out, '-|', @fuzz or die "@fuzz: $!";
my @said = <$out>;
diag(@said) unless ok(close($out), 'nothing is at fault');
no_failed_assertion($node);
$node->stop;
done_testing();
