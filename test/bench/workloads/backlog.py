"""Does the drain rate depend on how much is waiting?"""

import time

from lib import BenchError, few, number, pick, sql, value
from systems import WORKERS, available
from systems.jobq import paused_queue

TITLE = "rate of 50,000 jobs, by what else waits"
JOBS = few(50000)
READY = ("FROM jobq_internal.job j JOIN jobq_internal.queue q ON q.id = j.queue_id "
         "WHERE q.name = '%s' AND j.run_at < now()")


def drain(queue):
    """The rate from resume on until job number 50,000 of the queue is done."""
    time.sleep(0.5)
    first = number("SELECT min(j.id) " + READY % queue)
    left = number("SELECT count(*) " + READY % queue)
    last = int(first) + JOBS - 1
    sql("CHECKPOINT")
    begun = time.monotonic()
    sql("SELECT jobq.resume('%s')" % queue)
    while value("SELECT count(*) FROM jobq_internal.job WHERE id = %d" % last) != "0":
        if time.monotonic() > begun + 60:
            raise BenchError("%s: not done within a minute" % queue)
        time.sleep(0.002)
    took = time.monotonic() - begun
    sql("SELECT jobq.pause('%s')" % queue)
    done = left - number("SELECT count(*) " + READY % queue)
    if done < JOBS * 0.99:
        raise BenchError("%s: the order is not kept, %d jobs are done" % (queue, done))
    return JOBS / took


def refill(queue):
    WORKERS.fill("noop", JOBS, queue)
    return drain(queue)


def run(report):
    large = pick(200000, 1000000, 5000000)
    scheduled = pick(100000, 200000, 1000000)
    available(report, [WORKERS])
    WORKERS.create()
    for queue in ("small", "large", "tomorrow"):
        paused_queue(queue)
    WORKERS.fill("noop", large, "large")
    WORKERS.fill("noop", scheduled, "tomorrow", ", delay => '1 day'")
    sql("VACUUM ANALYZE jobq_internal.job")

    figures = report.compare(pick(2, 3, 5), {
        "50,000 wait": ("jobs/s", lambda: refill("small")),
        "%s wait" % format(large, ","): ("jobs/s", lambda: drain("large")),
        "50,000 wait, %s are scheduled for tomorrow" % format(scheduled, ","):
            ("jobs/s", lambda: refill("tomorrow")),
    })
    small, many, later = figures.values()
    report.against(figures.values(), small, "50,000 wait")
    report.ratio("%s / 50,000" % format(large, ","), many, small, 0.8)
    report.ratio("with jobs of tomorrow / without", later, small, 0.8)
