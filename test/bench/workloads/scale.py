"""From 1 to 8 workers, with jobs that wait and jobs that compute."""

import os

from lib import pick, set_config
from systems import GraphileWorker, SkipLocked, WORKERS, available

TITLE = "jobs that sleep for 5 ms, and jobs that compute for 2 ms, by number of workers"
WORKERS_TRIED = (1, 2, 4, 8)


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
    seconds = pick(1, 2, 5)
    systems = {"jobq, in workers": jobq, "SKIP LOCKED, one by one, status column": skip_locked}
    peer = GraphileWorker("batching", {})
    if peer in available(report, [peer]):
        systems[peer.name] = graphile_worker
    report.systems.pop(peer.name, None)
    for kind in ("sleep", "compute"):
        figures = report.compare(pick(1, 1, 3), {
            "%s: %s, %d worker%s" % (kind, name, n, "" if n == 1 else "s"):
                ("jobs/s", lambda measure=measure, n=n: measure(kind, n, seconds))
            for n in WORKERS_TRIED for name, measure in systems.items()})
        of_jobq = [f for name, f in figures.items() if "jobq" in name]
        if kind == "sleep":
            report.ratio("sleep: jobq, 8 workers / 1", of_jobq[-1], of_jobq[0], 6)
        else:
            report.ratio("compute: jobq, 8 workers / 1 (%d processors)" % os.cpu_count(),
                         of_jobq[-1], of_jobq[0])
    report.note("graphile-worker: so many jobs side by side for sleep, so many processes for compute; "
                "localQueue and completeJobBatchDelay: 0")
