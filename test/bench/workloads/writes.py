"""Jobs that write: two inserts and an update each."""

from lib import pick
from systems import (AT_ONCE, AT_ONCE_SINGLY, GRAPHILE, PG_BOSS, RESERVED, STATUS,
                     STATUS_SINGLY, WORKERS, available, compare)

TITLE = "drain of jobs that do two INSERTs and an UPDATE, by one function in PL/pgSQL"


def run(report):
    jobs, seconds = pick(20000, 40000, 100000), pick(1, 3, 8)
    there = available(report, [WORKERS, RESERVED, STATUS, AT_ONCE, STATUS_SINGLY, AT_ONCE_SINGLY,
                               GRAPHILE, PG_BOSS])

    def measure(system):
        if system in (WORKERS, RESERVED, STATUS, AT_ONCE):
            return [system.drain("writes", jobs)]
        return [system.rate("writes", seconds)]

    figures = compare(report, pick(1, 4, 8), there, [("", "jobs/s")], measure)
    at = {system: figure for system, (figure,) in figures.items()}
    report.against(at.values(), at[STATUS], STATUS.name)
    for peer in (GRAPHILE, PG_BOSS):
        if peer in at:
            report.ratio("jobq, in workers / " + peer.name, at[WORKERS], at[peer], 3)
    report.note("what commits together: a job with its writes in jobq's workers and with SKIP LOCKED one "
                "by one; 100 jobs with theirs in 'at a time'; the writes alone, before the job is "
                "completed, in graphile-worker and pg-boss")
