"""What a job costs from enqueueing to its end: WAL, CPU, and growth of tables."""

from lib import cpu_since, number, own_cpu, pick, set_config, value
from systems import (AT_ONCE, GRAPHILE, PGQ, PG_BOSS, RESERVED, RESERVED_KEEPING_NOTHING,
                     STATUS, STATUS_ARCHIVE, WORKERS, WORKERS_KEEPING_NOTHING, available,
                     compare)

TITLE = "per no-op job of 100 bytes, enqueued in bulk and drained"
SYSTEMS = [WORKERS, WORKERS_KEEPING_NOTHING, RESERVED, RESERVED_KEEPING_NOTHING, STATUS,
           STATUS_ARCHIVE, AT_ONCE, GRAPHILE, PG_BOSS, PGQ]


class Meter:
    """Reads the server's WAL position and the CPU that all of us have used."""

    def __init__(self):
        self.lsn, self.cpu = value("SELECT pg_current_wal_insert_lsn()"), own_cpu()

    def wal(self):
        return number("SELECT pg_current_wal_insert_lsn() - '%s'::pg_lsn" % self.lsn)


def size(system):
    return number("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE oid IN (%s)"
                  % system.tables)


def measure(system, jobs):
    """Drain, and note what it took."""
    system.create()
    empty, meter = size(system), Meter()
    system.fill("noop", jobs)
    enqueued = meter.wal()
    meters = []
    system.prepared = lambda: meters.append(Meter())
    try:
        system.drain("noop", jobs)
    finally:
        del system.prepared
    return [got / jobs for got in (
        enqueued, meters[0].wal(), 1e6 * cpu_since(meters[0].cpu), size(system) - empty)]


def run(report):
    jobs = pick(40000, 100000)
    there = available(report, SYSTEMS)
    set_config(full_page_writes="off", autovacuum="off")
    try:
        figures = compare(report, pick(1, 2, 5), there, [
            ("WAL of the enqueueing", "bytes/job"), ("WAL of the work", "bytes/job"),
            ("CPU of server and clients, the work", "us/job"),
            ("what the tables have grown by", "bytes/job")],
            lambda system: measure(system, jobs))
    finally:
        set_config(full_page_writes=None, autovacuum=None)
    for i in range(4):
        report.against([f[i] for f in figures.values()], figures[STATUS][i], STATUS.name)
    for system, other in ((RESERVED, STATUS), (RESERVED, STATUS_ARCHIVE),
                          (RESERVED_KEEPING_NOTHING, STATUS)):
        report.target("WAL of %s / %s" % (system.name, other.name),
                      figures[system][1].median() / figures[other][1].median(), 0.5, False)
    report.note("without full page images and autovacuum; the growth is before any VACUUM, and what an "
                "archive keeps is part of it")
