"""Does the drain rate depend on how much is waiting?"""

import time

from lib import (BenchError, fill, fresh_jobq, number, paused_queue, sql)

TITLE = "rate of 50,000 jobs, by what else waits"
JOBS = 50000
DONE = "SELECT sum(jobs_done) FROM jobq.workers"


def drain(queue):
    """The rate from resume on until so many are done."""
    sql("CHECKPOINT")
    before = number(DONE)
    begun = time.monotonic()
    sql("SELECT jobq.resume('%s')" % queue)
    while True:
        done, now = number(DONE) - before, time.monotonic()
        if done >= JOBS:
            break
        if now > begun + 60:
            raise BenchError("only %d jobs in a minute" % done)
        time.sleep(0.005)
    sql("SELECT jobq.pause('%s')" % queue)
    time.sleep(0.5)
    return done / (now - begun)


def refill(queue):
    """Let what is left be done, then fill the queue again."""
    sql("SELECT jobq.resume('%s')" % queue)
    while number("SELECT count(*) FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id "
                 "WHERE q.name = '%s' AND j.run_at < now()" % queue):
        time.sleep(0.05)
    sql("SELECT jobq.pause('%s')" % queue)
    time.sleep(0.5)
    fill(queue, JOBS)


def run(report, quick):
    large = 500000 if quick else 5000000
    scheduled = 100000 if quick else 1000000
    fresh_jobq()
    for queue in ("small", "large", "tomorrow"):
        paused_queue(queue)
    fill("large", large)
    fill("tomorrow", scheduled, ", delay => '1 day'")

    def small():
        refill("small")
        return drain("small")

    def tomorrow():
        refill("tomorrow")
        return drain("tomorrow")

    figures = report.compare(3 if quick else 5, {
        "50,000 wait": ("jobs/s", small),
        "%s wait" % format(large, ","): ("jobs/s", lambda: drain("large")),
        "50,000 wait, %s are scheduled for tomorrow" % format(scheduled, ","):
            ("jobs/s", tomorrow),
    })
    few, many, later = figures.values()
    report.ratio("%s / 50,000" % format(large, ","), many, few, 0.8)
    report.ratio("with jobs of tomorrow / without", later, few, 0.8)
