"""What limits, rates and groups cost the workers that drain a backlog."""

import time

from lib import PAYLOAD, fill, fresh_jobq, paused_queue, pick, sql, wait_for

TITLE = "no-op jobs, drained by 4 workers: plain, with limits, with a rate, in groups"
QUEUE = "flow"


def drained(jobs, enqueue, kind="", queue=""):
    """Jobs a second, from resume() to the last job's end."""
    fresh_jobq()
    paused_queue(QUEUE)
    if kind:
        sql("SELECT jobq.register('noop', 'bench.noop(jsonb)', %s)" % kind)
    if queue:
        sql("SELECT jobq.alter_queue('%s', %s)" % (QUEUE, queue))
    enqueue(jobs)
    sql("CHECKPOINT")
    start = time.monotonic()
    sql("SELECT jobq.resume('%s')" % QUEUE)
    wait_for("NOT EXISTS (SELECT FROM jobq.job)", "the last job", 240, 0.02)
    return jobs / (time.monotonic() - start)


def plain(jobs):
    fill(QUEUE, jobs)


def grouped(order):
    def enqueue(jobs):
        groups = jobs // 10
        key = "i %% %d" % groups if order == "interleaved" else "i / 10"
        sql("SELECT count(jobq.enqueue('noop', %s, queue => '%s', group_key => (%s)::text)) "
            "FROM generate_series(0, %d) i" % (PAYLOAD, QUEUE, key, jobs - 1))
    return enqueue


def run(report):
    jobs = pick(20000, 200000)
    systems = {
        "plain": lambda: drained(jobs, plain),
        "max_running 4 of queue and kind": lambda: drained(jobs, plain, "max_running => 4", "max_running => 4"),
        "max_running 2 of queue and kind": lambda: drained(jobs, plain, "max_running => 2", "max_running => 2"),
        "rate far above the speed": lambda: drained(jobs, plain, queue="rate => '1000000 per second'"),
        "groups, interleaved": lambda: drained(jobs // 2, grouped("interleaved")),
        "groups, consecutive": lambda: drained(jobs // 2, grouped("consecutive")),
    }
    figures = report.compare(pick(1, 3), {name: ("jobs/s", measure) for name, measure in systems.items()})
    for name, bound in (("max_running 4 of queue and kind", 0.75), ("max_running 2 of queue and kind", None), ("rate far above the speed", 0.75),
                        ("groups, interleaved", 0.5), ("groups, consecutive", 0.5)):
        report.ratio("%s / plain" % name, figures[name], figures["plain"], bound)
    report.note("4 is the number of workers, of which no more than there are processors run jobs as short "
                "as these: that is what permits cost; 2 may bind")
    report.note("%s jobs; in groups %s, ten in each" % (format(jobs, ","), format(jobs // 2, ",")))
