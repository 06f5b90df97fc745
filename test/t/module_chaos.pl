# A short run of test/chaos: a server with assertions is disturbed while it works.  The
# seeds are always the same, so that what fails is the change; others are tried by make
# chaos, and make check-long.

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

foreach my $seed (8, 9)
{
	my $out = `$^X $FindBin::RealBin/../chaos/chaos --seed $seed --rounds 3 --seconds 2 --except '$except' 2>&1`;
	my $status = $?;

	ok($status == 0 && $out =~ /: all is well$/m, "nothing is at fault, seed $seed");
	$status == 0 ? note($out) : diag($out);
}
done_testing();
