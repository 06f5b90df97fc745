# The library for Python: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the python3 of Debian's packages, or the first python3 in the path with psycopg
my ($python) = grep { -x && !system("$_ -c 'import psycopg' >/dev/null 2>&1") }
  '/usr/bin/python3', map { "$_/python3" } split /:/, $ENV{PATH};
my $node = library_node('psycopg 3', $python || 'false', '-c', 'import psycopg');
my @command = ($python, "$FindBin::RealBin/../consumers/consumer.py");

is_shown('python/example.py');

# a cancelled consumer begins no further job
$node->safe_psql('postgres', q{SELECT jobq.create_queue('cancelled', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'cancelled') FROM generate_series(1, 2)});
command_like(
	[ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^begun 1$/m, 'a consumer that is cancelled begins no other job');
import asyncio, logging, sys
sys.path.insert(0, sys.argv[1])
from jobq import Consumer

logging.disable()

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
# a hanging handler of a suspect does not block other jobs after the lease has ended, and the log of
# the suspect is not sent
$node->safe_psql('postgres', q{SELECT jobq.create_queue('hung', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'hung') FROM generate_series(1, 2)});
$node->safe_psql('postgres', q{SELECT count(*) FROM jobq.reserve('{hung}', 2, '1 min', '1 min')});
$node->safe_psql('postgres', q{SELECT jobq.test_clock('61 s')});
wait_for($node, 'two jobs are suspects', q{SELECT count(*) = 0 FROM jobq_internal.lease_slots()});
$node->safe_psql('postgres', q{SELECT jobq.test_clock('0')});
command_like([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^begun \[True, True\] told \[\]$/m, 'a handler that hangs with a lost job keeps no other from its turn');
import asyncio, logging, sys, threading
sys.path.insert(0, sys.argv[1])
from jobq import Consumer

logging.disable()

go, begun, told = threading.Event(), [], []


def handle(job):
    begun.append(job)
    go.wait()


async def main():
    consumer = Consumer("", ["hung"], handle, parallel=2)
    tell = consumer._tell_one

    async def noting_tell(what, jobs):
        told.append(what)
        await tell(what, jobs)

    consumer._tell_one = noting_tell
    work = asyncio.create_task(consumer.work())
    for _ in range(30000):
        if len(begun) == 2:
            break
        for job in begun:
            consumer._lose(job)
            job.log("too late")
        await asyncio.sleep(0.01)
    print("begun", [job._apart for job in begun], "told", told)
    go.set()
    consumer.stop()
    await work

asyncio.run(main())
END
# the pause after an error of the server does not apply to a lost connection
$node->safe_psql('postgres', q{SELECT jobq.create_queue('cut', mode => 'consumer')});
command_like([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^paused \[\] done 1 ahead 26$/m, 'a consumer that has lost its connection makes another one at once');
import asyncio, logging, sys
sys.path.insert(0, sys.argv[1])
import psycopg
from jobq import Consumer

logging.disable()

done, pauses, sleep = [], [], asyncio.sleep


async def noting_sleep(seconds):
    pauses.append(seconds)
    await sleep(seconds)


async def handle(job):
    done.append(job)


async def main():
    consumer = Consumer("", ["cut"], handle, parallel=2, wait=60, name="cut")
    work = asyncio.create_task(consumer.work())
    async with await psycopg.AsyncConnection.connect("", autocommit=True) as admin:
        ended = []
        while not ended:
            cursor = await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                                         "WHERE query ~ 'jobq.reserve' AND pid <> pg_backend_pid() AND state = 'active'")
            asyncio.sleep = noting_sleep
            ended = await cursor.fetchall()
        await admin.execute("SELECT jobq.enqueue('work', '{}', 'cut')")
        while not done:
            await sleep(0.01)
    # where answers come late, more is held ahead than begins in a tenth of a second
    consumer._job_time, consumer._trip = 0.03, 0.2
    print("paused", [pause for pause in pauses if pause >= 1], "done", len(done), "ahead", consumer._wanted() - 2)
    consumer.stop()
    await work

asyncio.run(main())
END
command_like([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^paused \[\] done 1$/m, 'so does one that has lost the connection that listens');
import asyncio, logging, sys
sys.path.insert(0, sys.argv[1])
import psycopg
from jobq import Consumer

logging.disable()

done, pauses, sleep = [], [], asyncio.sleep


async def noting_sleep(seconds):
    pauses.append(seconds)
    await sleep(seconds)


async def handle(job):
    done.append(job)


async def main():
    consumer = Consumer("", ["cut"], handle, listen="application_name=ear", wait=60)
    work = asyncio.create_task(consumer.work())
    ears = "SELECT pid FROM pg_stat_activity WHERE application_name = 'ear' AND query ~ '^LISTEN' AND state = 'idle' AND pid <> %s"
    async with await psycopg.AsyncConnection.connect("", autocommit=True) as admin:
        ear = None
        while not ear:
            ear = await (await admin.execute(ears, [0])).fetchone()
        asyncio.sleep = noting_sleep
        await admin.execute("SELECT pg_terminate_backend(%s)", ear)
        while not await (await admin.execute(ears, ear)).fetchone():
            await sleep(0.01)
        await admin.execute("SELECT jobq.enqueue('work', '{}', 'cut')")
        while not done:
            await sleep(0.01)
    print("paused", [pause for pause in pauses if pause >= 1], "done", len(done))
    consumer.stop()
    await work

asyncio.run(main())
END
# a time that datetime cannot hold
$node->safe_psql('postgres', q{SELECT jobq.create_queue('times', mode => 'consumer')});
command_like([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], qr/^200000-01-01 \S+ 2999$/m, 'the status of a job has any time');
import datetime, sys
sys.path.insert(0, sys.argv[1])
import psycopg
from jobq import enqueue, status

with psycopg.connect("") as connection:
    far = status(connection, enqueue(connection, "work", queue="times", run_at="200000-01-01 00:00+00")).run_at
    near = status(connection, enqueue(connection, "work", queue="times", run_at=datetime.datetime(2999, 1, 2, tzinfo=datetime.timezone.utc))).run_at
    print(far, near.year)
END
# the end of the program is not charged to jobs: a cancelled consumer gives back what it holds and what it runs
foreach my $handler ('async def handle(job):', 'def handle(job):')
{
	my $sleep = $handler =~ /async/ ? 'await asyncio.sleep(60)' : 'time.sleep(60)';
	my $queue = $handler =~ /async/ ? 'ending coroutine' : 'ending thread';

	$node->safe_psql('postgres', qq{SELECT jobq.create_queue('$queue', mode => 'consumer')});
	$node->safe_psql('postgres', qq{SELECT jobq.enqueue('work', '{}', '$queue') FROM generate_series(1, 2)});
	command_ok([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], "a consumer is cancelled: $handler");
import asyncio, sys, time
sys.path.insert(0, sys.argv[1])
from jobq import Consumer

begun = []


$handler
    begun.append(job)
    $sleep


async def main():
    consumer = Consumer("", ["$queue"], handle, ahead=1, lease=3600, wait=60)
    work = asyncio.create_task(consumer.work())
    while not (begun and consumer._held):
        await asyncio.sleep(0.01)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert work.cancelled()

asyncio.run(main())
END
	is($node->safe_psql('postgres', qq{SELECT state, attempt, count(*) FROM jobq.jobs WHERE queue = '$queue' GROUP BY 1, 2}),
		'ready|0|2', 'its jobs are ready, and no attempt is charged');
}
# lines that are stored already are not sent again with the end of the job
$node->safe_psql('postgres', q{SELECT jobq.create_queue('twice', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'twice') FROM generate_series(1, 2)});
command_ok([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], 'handlers acknowledge their jobs while lines are reported');
import asyncio, sys, threading, logging
sys.path.insert(0, sys.argv[1])
import psycopg
import jobq
from jobq import Consumer
logging.disable()


def handle(job):
    job.log("once")
    stored.wait()
    # the lines are stored, and the consumer does not know yet
    with psycopg.connect("") as connection:
        threading.Timer(0.3, answered.set).start()
        job.ack(connection)


async def handle_async(job):
    job.log("once")
    while not stored.is_set():
        await asyncio.sleep(0.01)
    async with await psycopg.AsyncConnection.connect("") as connection:
        acknowledged = job.ack(connection)
        answered.set()
        await acknowledged


async def main(handler):
    global stored, answered
    stored, answered = threading.Event(), threading.Event()
    consumer = Consumer("", ["twice"], handler)
    rows = consumer._teller.rows

    async def late(patience, statement, *values):
        answer = await rows(patience, statement, *values)
        if statement == jobq.TELL["log"]:
            stored.set()
            while not answered.is_set():
                await asyncio.sleep(0.01)
            consumer.stop()
        return answer

    consumer._teller.rows = late
    await consumer.work()


for handler in handle, handle_async:
    asyncio.run(main(handler))
END
is($node->safe_psql('postgres', q{SELECT state, jsonb_path_query_array(log, '$[*].message') FROM jobq.jobs WHERE queue = 'twice'}),
	qq(completed|["once"]\ncompleted|["once"]), 'each line is stored once');
$node->safe_psql('postgres', q{SELECT jobq.create_queue('signaled', mode => 'consumer')});
$node->safe_psql('postgres', q{SELECT jobq.enqueue('work', '{}', 'signaled', max_attempts => 1)});
command_ok([ $python, "-c", <<"END", "$FindBin::RealBin/../../libraries/python" ], 'a consumer and the command of its handler get SIGTERM together');
import os, signal, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from jobq import Consumer

os.setpgid(0, 0)
begun = threading.Event()


def handle(job):
    command = subprocess.Popen(["sleep", "600"])
    begun.set()
    raise subprocess.CalledProcessError(command.wait(), "sleep")


threading.Thread(target=lambda: begun.wait() and os.killpg(0, signal.SIGTERM)).start()
Consumer("", ["signaled"], handle, lease=3600).run()
END
is($node->safe_psql('postgres', q{SELECT state, attempt FROM jobq.jobs WHERE queue = 'signaled'}), 'ready|0', 'the job goes back, and no attempt is charged');
try_library($node, 'python-asyncio', [ 'env', 'ASYNC=1', @command ]);
try_library($node, 'python', \@command, restart => 1);
try_many($node, 'python-many', \@command, 17);
try_ahead($node, 'python-ahead', \@command);
try_tells($node, 'python-tells', \@command);
try_clean_up($node, 'python-clean-up', [ 'env', 'ASYNC=1', @command ]);
try_kills($node, 'python-kills', \@command);
try_untold($node, 'python-untold', \@command);
try_refused($node, 'python-refused', \@command);
try_commits($node, 'python-commits', \@command);
try_silent_connect($node, 'python-unanswered', \@command);
try_silent_start($node, 'python-silent', \@command);
try_silence($node, 'python-silence', [ 'env', 'STUBBORN=1', @command ]);
try_behind_pooler($node, 'python-pooled', \@command, 3);
try_numbers($node, 'python-numbers', \@command);

$node->stop;
no_failed_assertion($node);
done_testing();
