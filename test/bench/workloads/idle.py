"""What jobq costs when there is nothing to do."""

import time

from lib import number, pick, set_config, sql
from systems import WORKERS

TITLE = "launcher, scheduler and workers, idle"


def usage(pid):
    """CPU seconds and voluntary waits so far; None if the process is gone."""
    try:
        with open("/proc/%s/schedstat" % pid) as f:
            cpu = int(f.read().split()[0]) / 1e9
        with open("/proc/%s/status" % pid) as f:
            waits = int(next(l for l in f if l.startswith("voluntary_ctxt")).split()[1])
        return cpu, waits
    except OSError:
        return None


def transactions():
    """Of all databases; this session's own are counted at once."""
    sql("SELECT pg_stat_force_next_flush()")
    return number("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database")


def run(report):
    seconds = pick(10, 15, 60, least=1)
    WORKERS.create()
    set_config(autovacuum="off")
    try:
        for _ in range(200):		# have all workers running
            sql("SELECT jobq.enqueue('noop')")
        sql("CHECKPOINT")
        time.sleep(5)
        processes = [line.split("|") for line in sql(
            "SELECT pid, backend_type FROM pg_stat_activity "
            "WHERE backend_type LIKE 'jobq%' ORDER BY backend_type, pid")]
        commits = transactions()
        before = {pid: usage(pid) for pid, _ in processes}
        time.sleep(seconds)
        after = {pid: usage(pid) for pid, _ in processes}
        # subtract two statements of this session
        commits = transactions() - commits - 2
    finally:
        set_config(autovacuum=None)

    cpu = most = 0
    for kind in sorted({kind for _, kind in processes}):
        pids = [pid for pid, k in processes if k == kind and after[pid] is not None]
        used = [(after[pid][0] - before[pid][0], after[pid][1] - before[pid][1])
                for pid in pids]
        cpu += sum(u[0] for u in used)
        most = max([most] + [u[1] for u in used])
        report.single("%s (%d): CPU in %d s" % (kind, len(pids), seconds), "ms",
                      1000 * sum(u[0] for u in used))
        report.single("%s: wake-ups" % kind, "", sum(u[1] for u in used))
    gone = sum(a is None for a in after.values())
    if gone:
        report.note("%d processes ended meanwhile" % gone)
    report.single("transactions in the whole cluster, less this session's", "", commits)
    report.target("CPU, percent of a core", 100 * cpu / seconds, 0.1, False)
    report.target("wake-ups of a process in %d s, with jobq.poll_interval = 60 s" % seconds, most, 2, False)
    report.note("who does not wake runs no transaction; the check itself needs a few")
