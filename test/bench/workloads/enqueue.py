"""The cost of enqueueing, against a plain INSERT of the same row."""

import time

from lib import PAYLOAD, cpu_since, few, own_cpu, pgbench, pick, sql
from systems import WORKERS, available
from systems.jobq import paused_queue

TITLE = "single rows at 32 clients, and 100,000 rows in one statement"
CLIENTS = 32

# The columns set by enqueue(), so that both write the same row.
COLUMNS = """(id, run_at, enqueued_at, queue_id, priority, role, run_as, flow, attempt, max_attempts,
              exceptions, crashes, watch, dormant, kind, payload)"""
ROW = """nextval('bench.plain_id_seq'), clock_timestamp(), clock_timestamp(), 1, 0, '10', '10', 0, 0, 3,
         0, 0, false, false, 'noop', %s""" % PAYLOAD


def create():
    WORKERS.create()
    paused_queue("bench")
    sql("CREATE TABLE bench.plain (LIKE jobq_internal.job INCLUDING ALL)")
    sql("ALTER TABLE bench.plain SET (fillfactor = 90, autovacuum_vacuum_threshold = 5000, "
        "autovacuum_vacuum_scale_factor = 0)")
    sql("CREATE SEQUENCE bench.plain_id_seq")


def empty():
    sql("TRUNCATE jobq_internal.job, bench.plain")
    sql("CHECKPOINT")


def single(statement, seconds, cpu=None):
    """The rate; the CPU time per job goes to a figure of its own."""
    empty()
    before = own_cpu()
    done = pgbench(statement, CLIENTS, seconds=seconds)
    if cpu is not None:
        cpu.add(1e6 * cpu_since(before) / done["transactions"])
    return done["tps"]


def bulk(statement, rows):
    empty()
    begun = time.monotonic()
    sql(statement)
    return rows / (time.monotonic() - begun)


def run(report):
    create()
    available(report, [WORKERS])
    seconds, repeats = pick((2, 2), (3, 3), (4, 10))
    jobq = "SELECT jobq.enqueue('noop', %s, '%s');\n"
    plain = "INSERT INTO bench.plain %s VALUES (%s);\n" % (" ".join(COLUMNS.split()),
                                                           " ".join(ROW.split()))
    single(plain, 2)
    cpu = [report.figure("CPU of client and server per row, " + name, "us")
           for name in ("plain INSERT", "enqueue()")]
    figures = report.compare(repeats, part=0.6, measures={
        "single rows, plain INSERT": ("jobs/s", lambda: single(plain, seconds, cpu[0])),
        "single rows, enqueue(), nothing runs":
            ("jobs/s", lambda: single(jobq % (PAYLOAD, "bench"), seconds, cpu[1])),
        "single rows, enqueue(), workers run them":
            ("jobs/s", lambda: single(jobq % (PAYLOAD, "default"), seconds)),
    })
    inserts, paused, running = figures.values()
    report.against(figures.values(), inserts, "the plain INSERT")
    report.ratio("enqueue() / plain INSERT", paused, inserts, 0.95)
    report.ratio("enqueue() with workers / plain INSERT", running, inserts)

    repeats = pick(1, 3, 5)
    rows = few(100000)
    series = "FROM generate_series(1, %d)" % rows
    figures = report.compare(repeats, {
        "100,000 rows, plain INSERT ... SELECT":
            ("jobs/s", lambda: bulk("INSERT INTO bench.plain %s SELECT %s %s"
                                    % (COLUMNS, ROW, series), rows)),
        "100,000 rows, SELECT enqueue() FROM generate_series":
            ("jobs/s", lambda: bulk("SELECT count(jobq.enqueue('noop', %s, 'bench')) %s"
                                    % (PAYLOAD, series), rows)),
        "100,000 rows, INSERT INTO inbox":
            ("jobs/s", lambda: bulk("INSERT INTO jobq.inbox (kind, payload, queue) "
                                    "SELECT 'noop', %s, 'bench' %s" % (PAYLOAD, series), rows)),
        "100,000 rows, enqueue_many(array_agg)":
            ("jobs/s", lambda: bulk("SELECT count(*) FROM jobq.enqueue_many('noop', "
                                    "(SELECT array_agg(%s) %s), 'bench')" % (PAYLOAD, series), rows)),
    })
    insert, enqueue, inbox, many = figures.values()
    report.against(figures.values(), insert, "the plain INSERT")
    report.ratio("100,000: enqueue() / plain INSERT", enqueue, insert, 0.5)
    report.ratio("100,000: inbox / plain INSERT", inbox, insert, 0.5)
    report.ratio("100,000: enqueue_many() / plain INSERT", many, insert, 0.5)
