# The library for Python: nothing is lost, and nothing acknowledged by who has lost it.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the one that Debian's packages are for, or the first there is
my ($python) = grep { -x && !system("$_ -c 'import psycopg' >/dev/null 2>&1") }
  '/usr/bin/python3', map { "$_/python3" } split /:/, $ENV{PATH};
my $node = library_node('psycopg 3', $python || 'false', '-c', 'import psycopg');
my @command = ($python, "$FindBin::RealBin/../consumers/consumer.py");

is_shown('python/example.py');

# one that is cancelled begins no other job
$node->safe_psql('postgres', q{SELECT jobq.create_queue('cancelled', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'cancelled') FROM generate_series(1, 2)});
command_like(
	[ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^begun 1$/m, 'a consumer that is cancelled begins no other job');
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from jobq import Consumer

begun = []


async def handle(job):
    begun.append(job)
    await asyncio.sleep(60)


async def main():
    consumer = Consumer("", ["cancelled"], handle, ahead=1)
    work = asyncio.create_task(consumer.work())
    while not (begun and consumer._held):
        await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await asyncio.sleep(0.1)
    print("begun", len(begun))

asyncio.run(main())
END
try_library($node, 'python-asyncio', [ 'env', 'ASYNC=1', @command ]);
try_library($node, 'python', \@command, restart => 1);
try_many($node, 'python-many', \@command, 17);
try_ahead($node, 'python-ahead', \@command);
try_untold($node, 'python-untold', \@command);
try_refused($node, 'python-refused', \@command);
try_commits($node, 'python-commits', \@command);
try_silent_connect($node, 'python-unanswered', \@command);
try_silent_start($node, 'python-silent', \@command);
try_silence($node, 'python-silence', [ 'env', 'STUBBORN=1', @command ]);
try_behind_pooler($node, 'python-pooled', \@command, 3);

$node->stop;
no_failed_assertion($node);
done_testing();
