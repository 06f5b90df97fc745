"""1,000 consumers that wait while nothing comes, and then a job at a time."""

import tempfile
import time

from clients import compile_clients, rounds
from lib import few, pick, precise_cpu, restart, set_config, sql, wait_for
from systems import GraphileWorker, PgBoss, Reserved, SkipLocked, available, compare
from systems.base import pgbench_working

TITLE = "1,000 consumers: CPU of the server and of all of them"
CONSUMERS = few(1000)
RESERVED = Reserved(1, clients=CONSUMERS)
POLLED = SkipLocked(1, clients=CONSUMERS)
GRAPHILE = GraphileWorker("1,000 in one process", {
    "concurrentJobs": CONSUMERS, "localQueue": {"size": CONSUMERS + 1}})
PG_BOSS = PgBoss("1,000 in one process", {"useListenNotify": True}, {"localConcurrency": CONSUMERS})


def sessions(script):
    return pgbench_working(script, CONSUMERS)


def connected():
    wait_for("count(*) >= %d FROM pg_stat_activity WHERE backend_type = 'client backend' "
             "AND application_name = 'pgbench'" % CONSUMERS, "the connections", 120, 0.5)


def disconnected():
    """A session that waits does not see that its client has gone."""
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'")
    wait_for("count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'",
             "the end of the connections", 60, 0.1)


def waiting(system):
    """A context in which they wait."""
    system.create()
    if system is RESERVED:
        # partitions are made some seconds after the extension, and would invalidate the
        # caches of all sessions
        wait_for("count(*) > 4 FROM pg_inherits WHERE inhparent = 'jobq_internal.archive'::regclass",
                 "the archive's partitions", 30, 0.1)
        return sessions(RESERVED.script % (1, "10min"))
    if system is POLLED:
        system.prepare("noop", 0)
        return sessions("\\sleep 1 s\n" + POLLED.script("noop"))
    return system.working("noop")


def measure(system, seconds, jobs, folder):
    """CPU in ms per second while nothing comes, and ms per job while a few do."""
    with waiting(system):
        if system in (RESERVED, POLLED):
            connected()
        time.sleep(5)
        before, begun = precise_cpu(), time.monotonic()
        time.sleep(seconds)
        idle = 1000 * (precise_cpu() - before) / (time.monotonic() - begun)
        before, begun = precise_cpu(), time.monotonic()
        if isinstance(system, PgBoss):
            system.fill("noop", jobs)
        else:
            rounds(folder, jobs, system.other.replace("'-'", "$1") if "'-'" in system.other
                   else system.other + " WHERE $1::text IS NOT NULL")
        wait_for(system.empty, "the end of the jobs", 60, 0.1)
        busy = (precise_cpu() - before) - idle / 1000 * (time.monotonic() - begun)
    disconnected()
    return [idle, max(1000 * busy / jobs, 0)]


def run(report):
    seconds, jobs = pick(5, 5, 60, least=1), pick(50, 100, least=10)
    there = available(report, [RESERVED, POLLED, GRAPHILE, PG_BOSS])
    restart(max_connections=CONSUMERS + 100)
    set_config(autovacuum="off")
    try:
        with tempfile.TemporaryDirectory() as folder:
            compile_clients(folder)
            figures = compare(report, pick(1, 2, 3), there, [
                ("CPU while nothing comes", "ms per s"), ("CPU", "ms/job")],
                lambda system: measure(system, seconds, jobs, folder))
    finally:
        set_config(autovacuum=None)
        restart(max_connections=None)
    for i in range(2):
        report.against([f[i] for f in figures.values()], figures[POLLED][i], POLLED.name)
    report.target("CPU, percent of a core, while 1,000 wait in reserve()",
                  figures[RESERVED][0].median() / 10, 1, False)
    report.note("jobq: 1,000 connections wait in reserve(wait => '10min'); SKIP LOCKED: 1,000 connections "
                "ask once a second; graphile-worker and pg-boss: 1,000 handlers share few connections")
