"""The systems that are compared, as they are set up for the workloads."""

from systems.debian import PgCron, PgQ
from systems.jobq import InWorkers, KeepingNothing, Reserved, ReservedInNode, Synchronous
from systems.node import GraphileWorker, PgBoss
from systems.skip_locked import SkipLocked

WORKERS = InWorkers()
WORKERS_KEEPING_NOTHING = KeepingNothing()
SYNCHRONOUS = Synchronous()
RESERVED = Reserved(100)
RESERVED_SINGLY = Reserved(1)
RESERVED_IN_NODE = ReservedInNode()
RESERVED_KEEPING_NOTHING = Reserved(100, keep="nothing")

STATUS = SkipLocked(100)
STATUS_ARCHIVE = SkipLocked(100, archive=True)
STATUS_SINGLY = SkipLocked(1)
AT_ONCE = SkipLocked(100, at_once=True)
AT_ONCE_SINGLY = SkipLocked(1, at_once=True)

GRAPHILE_DEFAULT = GraphileWorker("defaults", {})
GRAPHILE_ADVISED = GraphileWorker("as its manual begins", {
    "concurrentJobs": 10, "localQueue": {"size": 11},
    "completeJobBatchDelay": 25, "failJobBatchDelay": 25})
GRAPHILE = GraphileWorker("best settings", {
    "concurrentJobs": 24, "maxPoolSize": 25, "localQueue": {"size": 5000},
    "completeJobBatchDelay": 10, "failJobBatchDelay": 10}, processes=2)
PG_BOSS = PgBoss("best settings", {"useListenNotify": True}, {
    "batchSize": 1000, "localConcurrency": 2, "burstWhenBatchFull": True,
    "pollingIntervalSeconds": 0.5}, processes=2)
PGQ = PgQ()
PG_CRON = PgCron()


def available(report, systems):
    """Those that are there; the others are reported as missing."""
    there = []
    for system in systems:
        why = system.missing()
        if why is None:
            there.append(system)
            report.system(system.name, system.version(), system.settings)
        else:
            report.missing(system.name, why)
    return there


def compare(report, wanted, systems, figures, measure, part=1.0):
    """Measure systems in turn; {system: [figure, ...]} of those that could be.

    figures: [(what, unit)], and measure(system) gives as many values."""
    return report.compare_many(wanted, {
        s: ([(", ".join(filter(None, (s.name, what))), unit) for what, unit in figures],
            lambda s=s: measure(s)) for s in systems},
        [s for s in systems if s.peer], part)
