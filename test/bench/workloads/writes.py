"""Jobs that write: two inserts and an update each."""

from lib import pick
from systems import (AT_ONCE, AT_ONCE_SINGLY, GRAPHILE, PG_BOSS, RESERVED, STATUS,
                     STATUS_SINGLY, WORKERS, available)

TITLE = "drain of jobs that do two INSERTs and an UPDATE, by one function in PL/pgSQL"


def run(report):
    jobs, seconds = pick(20000, 40000, 100000), pick(2, 4, 8)
    there = available(report, [WORKERS, RESERVED, STATUS, AT_ONCE, STATUS_SINGLY, AT_ONCE_SINGLY,
                               GRAPHILE, PG_BOSS])

    def measure(system):
        if system in (WORKERS, RESERVED, STATUS, AT_ONCE):
            return "jobs/s", lambda: system.drain("writes", jobs)
        return "jobs/s", lambda: system.rate("writes", seconds)

    figures = report.compare(pick(1, 3, 5), {s.name: measure(s) for s in there})
    report.against(figures.values(), figures[STATUS.name])
    for peer in (GRAPHILE, PG_BOSS):
        if peer in there:
            report.ratio("jobq, in workers / " + peer.name, figures[WORKERS.name], figures[peer.name], 3)
    report.note("what commits together: a job with its writes in jobq's workers and with SKIP LOCKED one "
                "by one; 100 jobs with theirs in 'at a time'; the writes alone, before the job is "
                "completed, in graphile-worker and pg-boss")
    report.note("'ratio' is to " + STATUS.name)
