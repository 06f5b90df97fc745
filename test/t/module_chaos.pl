# A short run of test/chaos: a server with assertions is disturbed while it works,
# by a seed that is always the same, and by one that is new.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqTest;
use Test::More;

plan skip_all => 'this server has no assertions'
  unless `pg_config --configure` =~ /--enable-cassert/;

# what takes long, and whether roles take turns, which has a test of its own
my $except = 'failover|cannot react';

foreach my $seed ('--seed 8', '')
{
	my $out = `$^X $FindBin::RealBin/../chaos/chaos $seed --rounds 3 --seconds 2 --except '$except' 2>&1`;
	my $status = $?;
	my ($what) = $out =~ /^(seed \d+)/m;

	ok($status == 0 && $out =~ /: all is well$/m, 'nothing is at fault, ' . ($what || 'no seed'));
	$status == 0 ? note($out) : diag($out);
}
done_testing();
