"""How late a job starts that is due at a point in time: jobq and pg_cron."""

import time
from contextlib import nullcontext

from lib import BenchError, TICKS, cpu_since, number, own_cpu, pick, sql, value, wait_for
from report import percentile
from systems import PG_CRON, WORKERS, available, compare

TITLE = "jobs due at the same moment: ms until each starts, CPU of the server for each"
JOBS = 16


def started(at):
    """Milliseconds that each of the jobs was late, and the CPU seconds it took
    from a second before on."""
    time.sleep(max(number("SELECT extract(epoch FROM '%s'::timestamptz - clock_timestamp()) - 1" % at), 0))
    before = own_cpu()
    wait_for("count(*) >= %d FROM bench.started" % JOBS, "the start of the jobs", 90, 0.1)
    time.sleep(1)
    late = [float(ms) for ms in sql(
        "SELECT extract(epoch FROM at - '%s') * 1000 FROM bench.started" % at)]
    if len(late) != JOBS:
        raise BenchError("%d jobs ran instead of %d" % (len(late), JOBS))
    return late, cpu_since(before)


def jobq():
    WORKERS.create()
    at = value("SELECT now() + interval '3 s'")
    sql("SELECT jobq.enqueue('stamp', '{\"i\": 1}', run_at => '%s') FROM generate_series(1, %d)"
        % (at, JOBS))
    return started(at)


def pg_cron():
    """At the next full minute, as it knows no other time, that leaves time to prepare."""
    WORKERS.create()
    left = 60 - time.time() % 60
    if left < 5:
        time.sleep(left + 0.1)
    at = value("SELECT date_trunc('minute', now()) + interval '1 minute'")
    try:
        for i in range(JOBS):
            sql("SELECT cron.schedule('bench %d', '* * * * *', "
                "'INSERT INTO bench.started VALUES (1, clock_timestamp())')" % i)
        return started(at)
    finally:
        sql("SELECT cron.unschedule(jobid) FROM cron.job")


def run(report):
    there = available(report, [WORKERS, PG_CRON])
    measures = {WORKERS: jobq, PG_CRON: pg_cron}

    def measure(system):
        late, cpu = measures[system]()
        return percentile(late, 50), percentile(late, 99), 1000 * cpu / JOBS

    with PG_CRON.preloaded() if PG_CRON in there else nullcontext():
        figures = compare(report, pick(1, 2, 5), there,
                          [("p50", "ms"), ("p99", "ms"), ("CPU", "ms/job")], measure)
    if PG_CRON in figures:
        report.ratio("p50 of pg_cron / that of jobq", figures[PG_CRON][0], figures[WORKERS][0], 1)
    report.note("%d jobs; jobq's are due in three seconds, pg_cron's at the next full minute, as it knows no "
                "other times; the CPU is that of the whole server from a second before that on, "
                "in steps of %.2g ms/job" % (JOBS, 1000 / TICKS / JOBS))
