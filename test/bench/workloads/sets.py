"""Set handlers: 500 jobs in a call, beside single jobs, the hand-written queue, and PgQ."""

from lib import pick
from systems import PGQ, STATUS, WORKERS, WORKERS_KEEPING_NOTHING, available

TITLE = "a backlog of jobs in calls of 500: no-ops, and two INSERTs and an UPDATE as statements for all jobs"


def run(report):
    jobs = pick(20000, 100000, 200000)
    there = available(report, [WORKERS, WORKERS_KEEPING_NOTHING, STATUS, PGQ])
    measures = {
        "no-op, single jobs": ("jobs/s", lambda: WORKERS.drain("noop", jobs)),
        "no-op, in calls of 500": ("jobs/s", lambda: WORKERS.drain("set_noop", jobs)),
        "no-op, in calls of 500, keep nothing": ("jobs/s", lambda: WORKERS_KEEPING_NOTHING.drain("set_noop", jobs)),
        "writes, single jobs": ("jobs/s", lambda: WORKERS.drain("writes", jobs)),
        "writes, in calls of 500": ("jobs/s", lambda: WORKERS.drain("set_writes", jobs)),
        "writes, " + STATUS.name: ("jobs/s", lambda: STATUS.drain("writes", jobs)),
    }
    if PGQ in there:
        measures["no-op, " + PGQ.name] = ("jobs/s", lambda: PGQ.drain("noop", jobs))
    single, together, nothing, single_writes, writes, by_hand, *pgq = report.compare(pick(1, 3, 5), measures).values()
    report.ratio("no-op: calls of 500 / single jobs", together, single, 3)
    report.ratio("writes: calls of 500 / single jobs", writes, single_writes)
    report.ratio("writes: calls of 500 / " + STATUS.name, writes, by_hand, 2)
    if pgq:
        report.ratio("no-op: calls of 500, keep nothing / PgQ", nothing, pgq[0], 0.9)
