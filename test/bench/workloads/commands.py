"""Commands that do nothing: for jobs by "jobq work", and by xargs."""

import os
import subprocess
import tempfile
import time

from lib import pick, sql, value
from systems import WORKERS

TITLE = "commands run by the program jobq, 4 at a time"
PARALLEL = "4"
PROGRAM = os.path.join(subprocess.check_output(
    [os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip(), "jobq")


def timed(number, command):
    start = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return number / (time.time() - start)


def work(number):
    """From the first job taken until the server knows of the end of the last."""
    sql("SELECT count(*) FROM jobq.enqueue_many('nothing', array_fill('{}'::jsonb, ARRAY[%d]), "
        "queue => 'commands')" % number)
    rate = timed(number, [PROGRAM, "work", "commands", "--exec", ":", "--parallel", PARALLEL,
                          "--stop-when-empty", "--quiet"])
    if value("SELECT count(*) FROM jobq.live_jobs") != "0":
        raise RuntimeError("jobs are left")
    return rate


def xargs(number):
    with tempfile.NamedTemporaryFile("w") as numbers:
        numbers.write("".join("%d\n" % n for n in range(number)))
        numbers.flush()
        return timed(number, ["xargs", "-a", numbers.name, "-P", PARALLEL, "-n", "1", "sh", "-c", ":"])


def run(report):
    number, repeats = pick((1000, 2), (3000, 5), (10000, 9))
    WORKERS.create()
    sql("SELECT jobq.create_queue('commands', mode => 'consumer')")
    figures = report.compare(repeats, {
        "jobq work": ("commands/s", lambda: work(number)),
        "xargs": ("commands/s", lambda: xargs(number)),
    })
    report.ratio("jobq work / xargs", figures["jobq work"], figures["xargs"], 1.0)
