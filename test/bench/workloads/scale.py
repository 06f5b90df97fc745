"""From 1 to 8 workers, with jobs that wait and jobs that compute."""

import os

from lib import pick, set_config
from systems import GraphileWorker, STATUS_SINGLY, SkipLocked, WORKERS, available

TITLE = "jobs that wait for 5 ms, and jobs that compute for 2 ms, by how many run at a time"


def jobq(kind, workers, seconds):
    set_config(jobq__workers="*=%d" % workers)
    try:
        return WORKERS.rate(kind, seconds)
    finally:
        set_config(jobq__workers=None)


def skip_locked(kind, workers, seconds):
    return SkipLocked(1, clients=workers).rate(kind, seconds)


def graphile_worker(kind, workers, seconds):
    """What waits runs side by side in a process; what computes needs processes."""
    side_by_side, processes = (workers, 1) if kind == "sleep" else (1, workers)
    system = GraphileWorker("", {"concurrentJobs": side_by_side, "completeJobBatchDelay": 0,
                                 "localQueue": {"size": 10 + side_by_side}}, processes)
    return system.rate(kind, seconds)


def run(report):
    seconds, tried = pick((1, (1, 8)), (1, (1, 2, 4, 8)), (5, (1, 2, 4, 8)))
    peer = GraphileWorker("best settings by number", {})
    there = available(report, [WORKERS, STATUS_SINGLY, peer])
    for system, settings in (
            (WORKERS, "jobq.workers: so many; archive kept; jobs flushed in the background"),
            (STATUS_SINGLY, "pgbench, so many connections; no archive"),
            (peer, "so many jobs side by side for sleep, so many processes for compute; localQueue; "
                   "completeJobBatchDelay: 0")):
        if system in there:
            report.system(system.name, system.version(), settings)
    measures = {WORKERS: jobq, STATUS_SINGLY: skip_locked, peer: graphile_worker}
    for kind, part in (("sleep", 0.5), ("compute", 1)):
        figures = report.compare_many(pick(1, 2, 3), {
            (s, n): ([("%s: %s, %d at a time" % (kind, s.name, n), "jobs/s")],
                     lambda s=s, n=n: [measures[s](kind, n, seconds)])
            for n in tried for s in there},
            [(peer, n) for n in tried], part)
        at = {key: figure for key, (figure,) in figures.items()}
        for (_, n), figure in at.items():
            report.against([figure], at[STATUS_SINGLY, n],
                           "%s, with as many connections" % STATUS_SINGLY.name)
        report.ratio("%s: %s, %d workers / 1 (%d processors)" % (
            kind, WORKERS.name, tried[-1], os.cpu_count()),
            at[WORKERS, tried[-1]], at[WORKERS, 1], 6 if kind == "sleep" else None)
