# The library for Python: nothing is lost, and nothing acknowledged by who has lost it.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqTest;
use Test::More;

# the one that Debian's packages are for, or the first there is
my ($python) = grep { -x && !system("$_ -c 'import psycopg' >/dev/null 2>&1") }
  '/usr/bin/python3', map { "$_/python3" } split /:/, $ENV{PATH};
my $node = library_node('psycopg 3', $python || 'false', '-c', 'import psycopg');
my @command = ($python, "$FindBin::RealBin/../consumers/consumer.py");

is_shown('python/example.py');
try_library($node, 'python-asyncio', [ 'env', 'ASYNC=1', @command ]);
try_library($node, 'python', \@command, restart => 1);
try_silence($node, 'python-silence', [ 'env', 'STUBBORN=1', @command ]);
try_behind_pooler($node, 'python-pooled', \@command, 3);

$node->stop;
no_failed_assertion($node);
done_testing();
