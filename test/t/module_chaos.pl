# A short run of test/chaos: a server with assertions is disturbed under load.  The seed is fixed,
# to attribute a failure to a change.  make chaos and make check-long use more seeds.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../chaos";
use Check;
use JobqTest;
use Test::More;

# The log checker of test/chaos: a signalled process must not die by a different signal.
sub log_is_good
{
	my ($line, $blow, @allowed) = @_;

	return !Check::look_at_log($line, [ [ 7, $blow, 0 ] ], @allowed);
}

my $crash = '2026-01-01 00:00:00.000 UTC [1] postmaster 00000 LOG:  jobq worker 1 (PID 7) was terminated by signal';
my $panic = '2026-01-01 00:00:00.000 UTC [7] checkpointer 53100 PANIC:  could not write: No space left on device';
my @full = (full => qr/No space left on device/);

ok(log_is_good("$crash 11: x", 'SEGV'), 'log: it was sent SIGSEGV');
ok(!log_is_good("$crash 11: x", 'TERM'), 'log: it was to end, and crashed');
ok(log_is_good("$crash 6: x", 'ABRT'), 'log: it was sent SIGABRT');
ok(!log_is_good("$crash 6: x", 'SEGV'), 'log: it was sent another');
ok(log_is_good("$panic\n$crash 6: x", 'TERM', @full), 'log: the disk is full');
ok(!log_is_good("$panic\n$crash 6: x", 'TERM'), 'log: the disk is not known to be full');
ok(!log_is_good("$crash 6: x", 'TERM', @full), 'log: the disk is full, but that is not why');
ok(!log_is_good('==1==ERROR: AddressSanitizer: heap-use-after-free', 'TERM', @full), 'log: a sanitizer');

# skip the slow disturbances
my $except = 'failover|cannot react';

SKIP:
{
	skip 'this server has no assertions', 1
	  unless `pg_config --configure` =~ /--enable-cassert/;

	my $out = `$^X $FindBin::RealBin/../chaos/chaos --seed 8 --rounds 3 --seconds 2 --except '$except' 2>&1`;
	my $status = $?;

	ok($status == 0 && $out =~ /: all is well$/m, 'nothing is at fault');
	$status == 0 ? note($out) : diag($out);
}
done_testing();
