"""Shared memory at default settings, and a worker's own memory."""

import time

from lib import BenchError, few, number, pick, set_config, sql, value, wait_for
from systems import WORKERS
from systems.jobq import paused_queue

TITLE = "shared memory, and a worker before and after many jobs"


def private_kb(pid):
    with open("/proc/%s/status" % pid) as f:
        return int(next(l for l in f if l.startswith("RssAnon")).split()[1])


def measure(jobs):
    """One worker's private memory after 20,000 jobs, and after all."""
    paused_queue("bench")
    WORKERS.fill("noop", jobs, "bench")
    first, last = sql("SELECT min(id) + %d FROM jobq_internal.job UNION ALL SELECT max(id) FROM jobq_internal.job" % few(20000))
    sql("SELECT jobq.resume('bench')")
    wait_for("NOT EXISTS (SELECT FROM jobq_internal.job WHERE id = %s)" % first, "the first jobs", 60)
    pids = sql("SELECT pid FROM jobq.workers")
    if len(pids) != 1:
        raise BenchError("%d workers instead of one" % len(pids))
    before = after = private_kb(pids[0])
    # an idle worker may leave at once, so look until the end
    while value("SELECT count(*) FROM jobq_internal.job WHERE id = %s" % last) != "0":
        try:
            after = private_kb(pids[0])
        except OSError:
            raise BenchError("the worker was replaced")
        time.sleep(0.05)
    return before, after


def run(report):
    jobs = pick(100000, 200000, 1000000)
    shared = number("SELECT sum(allocated_size) FROM pg_shmem_allocations "
                    "WHERE name ILIKE '%jobq%'") / 1048576
    report.single("shared memory", "MB", shared)
    report.target("shared memory in MB", shared, 54, False)
    set_config(jobq__workers="*=1", jobq__worker_max_age="0")
    try:
        WORKERS.create()
        time.sleep(1)
        before, after = measure(jobs)
    finally:
        set_config(jobq__workers=None, jobq__worker_max_age=None)
    report.single("a worker's private memory after 20,000 jobs", "kB", before)
    report.single("after %s jobs" % format(jobs, ","), "kB", after)
    report.target("growth of the worker in kB", after - before, 256, False)
