"""Shared memory at default settings, and a worker's own memory."""

import time

from lib import (BenchError, fill, fresh_jobq, number, paused_queue,
                 set_config, sql, value, wait_for)

TITLE = "shared memory, and a worker before and after many jobs"


def private_kb(pid):
    with open("/proc/%s/status" % pid) as f:
        return int(next(l for l in f if l.startswith("RssAnon")).split()[1])


def drain(jobs):
    sql("SELECT jobq.pause('bench')")
    fill("bench", jobs)
    last = value("SELECT max(id) FROM jobq.job")
    sql("SELECT jobq.resume('bench')")
    wait_for("NOT EXISTS (SELECT FROM jobq.job WHERE id = %s)" % last,
             "the last job", 300, 0.05)
    wait_for("count(*) = 0 FROM jobq.job", "the end of the drain", 20, 0.1)


def run(report, quick):
    jobs = 200000 if quick else 1000000
    shared = number("SELECT sum(allocated_size) FROM pg_shmem_allocations "
                    "WHERE name ILIKE '%jobq%'") / 1048576
    report.single("shared memory", "MB", shared)
    set_config(jobq__workers="*=1", jobq__worker_max_jobs="0")
    try:
        fresh_jobq()
        paused_queue("bench")
        time.sleep(1)
        drain(20000)
        pids = sql("SELECT pid FROM jobq.workers")
        if len(pids) != 1:
            raise BenchError("%d workers instead of one" % len(pids))
        before = private_kb(pids[0])
        drain(jobs)
        if sql("SELECT pid FROM jobq.workers") != pids:
            raise BenchError("the worker was replaced")
        after = private_kb(pids[0])
    finally:
        set_config(jobq__workers=None, jobq__worker_max_jobs=None)
    report.single("a worker's private memory after 20,000 jobs", "kB", before)
    report.single("after %s more" % format(jobs, ","), "kB", after)
    report.target("shared memory in MB", shared, 32, False)
    report.target("growth of the worker in kB", after - before, 256, False)
