"""Drain a backlog of jobs that do nothing."""

import time

import baseline
from lib import (BenchError, fill, flush, fresh_jobq, number, paused_queue,
                 pgbench, set_config, sql, value, wait_for)

TITLE = "no-op PL/pgSQL jobs of 100 bytes, archive row kept"
CLIENTS = 4				# as many as jobq has workers by default


def drain_jobq(jobs):
    """From resume until the last job is committed and flushed."""
    fresh_jobq()
    paused_queue("bench")
    fill("bench", jobs)
    sql("CHECKPOINT")
    last = value("SELECT max(id) FROM jobq.job")
    begun = time.monotonic()
    sql("SELECT jobq.resume('bench')")
    wait_for("NOT EXISTS (SELECT FROM jobq.job WHERE id = %s)" % last, "the last job")
    wait_for("count(*) = 0 FROM jobq.job", "the end of the drain", 20, 0.02)
    flush()
    rate = jobs / (time.monotonic() - begun)
    if number("SELECT count(*) FROM jobq.archive") < jobs:
        raise BenchError("jobs are missing from the archive")
    return rate


def drain_jobq_synchronous(jobs):
    set_config(jobq__synchronous_commit="on")
    try:
        return drain_jobq(jobs)
    finally:
        set_config(jobq__synchronous_commit=None)


def drain_batches(jobs, batch):
    """pgbench stops when all jobs are done."""
    baseline.create(jobs)
    rate = pgbench(baseline.claim_script(batch), CLIENTS,
                   rounds=jobs // batch // CLIENTS)["tps"] * batch
    left = number("SELECT count(*) FROM bench.queue")
    return rate * (jobs - left) / jobs


def drain_singles(jobs, seconds):
    """The rate at which a backlog that does not run out is drained."""
    baseline.create(jobs)
    return pgbench(baseline.claim_script(1), CLIENTS, seconds=seconds)["tps"]


def run(report, quick):
    jobs = 200000
    figures = report.compare(2 if quick else 5, {
        "jobq": ("jobs/s", lambda: drain_jobq(jobs)),
        "SKIP LOCKED, 100 jobs a round, 4 clients":
            ("jobs/s", lambda: drain_batches(jobs, 100)),
        "SKIP LOCKED, one job a round, 4 clients":
            ("jobs/s", lambda: drain_singles(jobs, 3 if quick else 6)),
        "jobq, synchronous_commit = on":
            ("jobs/s", lambda: drain_jobq_synchronous(20000)),
    })
    jobq, batches, singles, synchronous = figures.values()
    report.ratio("jobq / 100 jobs a round", jobq, batches, 1.5)
    report.ratio("jobq / one job a round", jobq, singles, 10)
    report.ratio("jobq synchronous / one job a round", synchronous, singles, 1)
    report.note("jobq: until the last job is committed and flushed; "
                "SKIP LOCKED: synchronous_commit = on, no handler, no archive")
