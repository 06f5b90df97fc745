"""Drain a backlog of jobs that do nothing, in each of the systems."""

from lib import pick
from systems import (AT_ONCE, AT_ONCE_SINGLY, GRAPHILE, GRAPHILE_ADVISED,
                     GRAPHILE_DEFAULT, PGQ, PG_BOSS, RESERVED, RESERVED_IN_NODE,
                     RESERVED_SINGLY, STATUS, STATUS_ARCHIVE, STATUS_SINGLY, SYNCHRONOUS, WORKERS,
                     WORKERS_KEEPING_NOTHING, available, compare)

TITLE = "no-op jobs of 100 bytes; the backlog is there before"
DRAINED = [WORKERS, WORKERS_KEEPING_NOTHING, RESERVED, RESERVED_IN_NODE, STATUS,
           STATUS_ARCHIVE, AT_ONCE,
           GRAPHILE, PG_BOSS, PGQ]
FEWER = {SYNCHRONOUS: 20000, GRAPHILE: 100000, PG_BOSS: 100000}
TIMED = [RESERVED_SINGLY, STATUS_SINGLY, AT_ONCE_SINGLY, GRAPHILE_ADVISED, GRAPHILE_DEFAULT]


def run(report):
    jobs, seconds = pick(100000, 200000), pick(1, 3)
    there = available(report, DRAINED + [SYNCHRONOUS] + TIMED[:pick(2, None)])

    def measure(system):
        if system in TIMED:
            return [system.rate("noop", seconds)]
        return [system.drain("noop", min(FEWER.get(system, jobs), jobs))]

    figures = compare(report, pick(1, 4, 8), there, [("", "jobs/s")], measure)
    at = {system: figure for system, (figure,) in figures.items()}
    report.against(at.values(), at[STATUS], STATUS.name)
    for system in (WORKERS, RESERVED):
        report.ratio("%s / %s" % (system.name, STATUS.name), at[system], at[STATUS], 1.5)
    report.ratio("jobq, one by one / SKIP LOCKED, one by one, status column",
                 at[RESERVED_SINGLY], at[STATUS_SINGLY], 1)
    report.ratio("jobq, synchronous / SKIP LOCKED, one by one, status column",
                 at[SYNCHRONOUS], at[STATUS_SINGLY], 1)
    against_peers(report, at, 3, 2)
    if PGQ in at:
        report.ratio("jobq, in workers / PgQ", at[WORKERS], at[PGQ], 1)
    report.note("%s jobs (%s); one by one and graphile-worker's slower settings: for %d s of a backlog "
                "that does not run out" % (format(jobs, ","), ", ".join(
                    "%s: %s" % (s.name, format(n, ",")) for s, n in FEWER.items()), seconds))
    report.note("from when the workers, connected, may ask for jobs, until the last job's commit is "
                "flushed; all but jobq's workers flush each commit before they go on")


def against_peers(report, at, workers, reserved):
    """jobq against the faster of graphile-worker and pg-boss, round by round."""
    peers = [at[s] for s in (GRAPHILE, PG_BOSS) if s in at]
    if not peers:
        return
    fastest = report.figure("the faster of graphile-worker and pg-boss", "jobs/s")
    for values in zip(*((zip(p.values, p.others)) for p in peers)):
        fastest.add(*max(values))
    for system, bound in ((WORKERS, workers), (WORKERS_KEEPING_NOTHING, workers),
                          (RESERVED, reserved), (RESERVED_IN_NODE, None)):
        if system in at:
            report.ratio("%s / the faster of the two" % system.name, at[system], fastest, bound)
