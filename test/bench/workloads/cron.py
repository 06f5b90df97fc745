"""How late a job starts that is due at a full minute: jobq and pg_cron."""

import time

from lib import BenchError, own_cpu, percentile, pick, sql, value, wait_for
from systems import PG_CRON, WORKERS, available

TITLE = "jobs due at the same full minute: ms until each starts, CPU of the server for each"
JOBS = 16


def due():
    """The next full minute that leaves time to prepare, and its epoch."""
    wait = 60 - time.time() % 60
    if wait < 5:
        time.sleep(wait + 0.1)
    return value("SELECT date_trunc('minute', now()) + interval '1 minute'")


def started(at):
    """Milliseconds that each of the jobs was late, and the CPU seconds it took."""
    before = own_cpu()
    wait_for("count(*) >= %d FROM bench.started" % JOBS, "the start of the jobs", 90, 0.1)
    time.sleep(1)
    late = [float(ms) for ms in sql(
        "SELECT extract(epoch FROM at - '%s') * 1000 FROM bench.started" % at)]
    if len(late) != JOBS:
        raise BenchError("%d jobs ran instead of %d" % (len(late), JOBS))
    return late, own_cpu() - before


def jobq():
    WORKERS.create()
    at = due()
    sql("SELECT jobq.enqueue('stamp', '{\"i\": 1}', run_at => '%s') FROM generate_series(1, %d)"
        % (at, JOBS))
    return started(at)


def pg_cron():
    WORKERS.create()
    at = due()
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

    def rounds():
        for system in there:
            figures[system] = ([report.figure("%s, p%d" % (system.name, p), "ms") for p in (50, 99)]
                               + [report.figure(system.name + ", CPU", "ms/job")])
        for _ in range(pick(1, 1, 5)):
            for system in there:
                late, cpu = report.measure(system.name, measures[system])
                for figure, got in zip(figures[system], (
                        percentile(late, 50), percentile(late, 99), 1000 * cpu / JOBS)):
                    figure.add(got)

    figures = {}
    if PG_CRON in there:
        with PG_CRON.preloaded():
            rounds()
        report.ratio("p50 of pg_cron / that of jobq", figures[PG_CRON][0], figures[WORKERS][0], 1)
    else:
        rounds()
    report.note("%d jobs; the CPU is that of the whole server while it waits for them, up to a minute"
                % JOBS)
