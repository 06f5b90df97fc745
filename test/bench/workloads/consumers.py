"""Consumers outside: reserve and acknowledge, wake-up, a held snapshot."""

import os
import statistics
import subprocess
import tempfile

import baseline
from lib import (BenchError, PAYLOAD, fill, fresh_jobq, number, pgbench,
                 pgbench_command, set_config, sql, value)
from workloads import snapshot
from workloads.latency import differences

TITLE = "durable leases, archive row kept, 4 connections; pick-up in ms"
CLIENTS = 4
JOBS = 100000
RESERVE = ("SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens "
           "FROM jobq.reserve('{outside}', %d, wait => '%s') \\gset\n"
           "SELECT jobq.ack(:ids::bigint[], :tokens::bigint[]);\n")
BY_RESERVE = ("SELECT payload #>> '{}', format('SELECT jobq.ack(%s, %s)', id, token) "
              "FROM jobq.reserve('{outside}', wait => '10s')")
BY_QUERY = """
    WITH claimed AS (
        UPDATE bench.queue SET status = 'r' WHERE id IN (
            SELECT id FROM bench.queue WHERE status = 'w'
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING id, payload)
    SELECT payload #>> '{}', format('DELETE FROM bench.queue WHERE id = %s', id) FROM claimed"""
SEND_BY_QUERY = """
    WITH sent AS (INSERT INTO bench.queue (payload) VALUES (to_jsonb($1::text)))
    SELECT pg_notify('bench', '')"""


def with_backlog(jobs=JOBS, keep="all"):
    fresh_jobq()
    sql("SELECT jobq.create_queue('outside', mode => 'consumer', keep => '%s')" % keep)
    if jobs > 0:
        fill("outside", jobs)
    sql("SELECT jobq.enqueue('noop', queue => 'outside', priority => -1)")
    sql("SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '10s')")
    sql("VACUUM ANALYZE jobq.job")
    sql("CHECKPOINT")


def drain(script, left, wal=False, **how):
    """Jobs per second, or bytes of WAL per job."""
    before, lsn = number(left), value("SELECT pg_current_wal_insert_lsn()")
    result = pgbench(script, CLIENTS, **how)
    done = before - number(left)
    if wal:
        return number("SELECT pg_current_wal_insert_lsn() - '%s'::pg_lsn" % lsn) / done
    return result["tps"] / result["transactions"] * done


def jobq(batch, keep="all", **how):
    with_backlog(keep=keep)
    return drain(RESERVE % (batch, "1s"), "SELECT count(*) FROM jobq.job", **how)


def skip_locked(batch, archive=False, **how):
    baseline.create(JOBS)
    script = baseline.claim_script(batch)
    if archive:
        sql("DROP TABLE IF EXISTS bench.archive")
        sql("CREATE TABLE bench.archive (LIKE bench.queue, finished_at timestamptz DEFAULT now(), PRIMARY KEY (id))")
        script = script.replace("DELETE", "WITH done AS (DELETE").replace(
            "::bigint[]);", "::bigint[]) RETURNING *) INSERT INTO bench.archive SELECT * FROM done;")
    return drain(script, "SELECT count(*) FROM bench.queue", **how)


def compile_client(folder):
    program = os.path.join(folder, "pickup")
    source = os.path.join(os.path.dirname(os.path.dirname(__file__)), "pickup.c")
    include, lib = (subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), option],
                                   text=True, capture_output=True).stdout.strip()
                    for option in ("--includedir", "--libdir"))
    subprocess.run(["cc", "-O2", "-Wall", "-I" + include, "-I/usr/include/postgresql",
                    "-o", program, source, "-L" + lib, "-lpq"], check=True)
    return program


def pick_up(program, count, *args):
    done = subprocess.run([program, str(count), "10"] + list(args),
                          text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip())
    times = {"s": {}, "r": {}}
    for line in done.stdout.splitlines():
        event, i, at = line.split()
        times[event][int(i)] = int(at)
    return statistics.median(differences(times["s"], times["r"], count))


def pick_up_jobq(program, count):
    with_backlog(0)
    return pick_up(program, count, "SELECT jobq.enqueue('noop', to_jsonb($1::text), 'outside')",
                   BY_RESERVE)


def pick_up_notify(program, count):
    baseline.create(0)
    return pick_up(program, count, SEND_BY_QUERY, BY_QUERY, "bench")


def held_snapshot(seconds, report):
    with_backlog(0)
    clients = subprocess.Popen(
        pgbench_command(CLIENTS, seconds + snapshot.WARM_UP + 60), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        clients.stdin.write(RESERVE % (100, "1s"))
        clients.stdin.close()
        return snapshot.observe("jobq.job", lambda n: fill("outside", n),
                                seconds, report, "held snapshot")
    finally:
        clients.terminate()
        clients.wait()


def run(report, quick):
    seconds = 3 if quick else 6
    rounds = {"rounds": JOBS // 100 // CLIENTS}
    figures = report.compare(2 if quick else 5, {
        "reserve(100), ack": ("jobs/s", lambda: jobq(100, **rounds)),
        "SKIP LOCKED, 100 jobs a round": ("jobs/s", lambda: skip_locked(100, **rounds)),
        "SKIP LOCKED, 100 jobs a round, archive row":
            ("jobs/s", lambda: skip_locked(100, archive=True, **rounds)),
        "reserve(1), ack": ("jobs/s", lambda: jobq(1, seconds=seconds)),
        "SKIP LOCKED, one job a round": ("jobs/s", lambda: skip_locked(1, seconds=seconds)),
    })
    hundred, plain_hundred, archived, one, plain_one = figures.values()
    report.ratio("jobq / SKIP LOCKED, 100 jobs a round", hundred, plain_hundred, 1.5)
    report.ratio("jobq / SKIP LOCKED, 100 jobs a round, archive row", hundred, archived)
    report.ratio("jobq / SKIP LOCKED, one job a round", one, plain_one, 1)

    # what checkpoints add depends on how long ago the jobs were written
    set_config(full_page_writes="off")
    try:
        wal = [jobq(100, wal=True, **rounds), skip_locked(100, archive=True, wal=True, **rounds),
               jobq(100, keep="nothing", wal=True, **rounds), skip_locked(100, wal=True, **rounds)]
    finally:
        set_config(full_page_writes=None)
    for name, measured in zip(("reserve(100), ack", "SKIP LOCKED, archive row",
                               "reserve(100), ack, keep => 'nothing'", "SKIP LOCKED"), wal):
        report.single("WAL of " + name, "bytes/job", measured)
    report.target("WAL, archive row / SKIP LOCKED without one", wal[0] / wal[3], 0.5, False)
    report.target("WAL, archive row on both sides", wal[0] / wal[1], 0.5, False)
    report.target("WAL, archive row on neither side", wal[2] / wal[3], 0.5, False)

    count = 200 if quick else 500
    with tempfile.TemporaryDirectory() as folder:
        program = compile_client(folder)
        figures = report.compare(2 if quick else 5, {
            "reserve(wait => '10s')": ("ms", lambda: pick_up_jobq(program, count)),
            "LISTEN/NOTIFY and a query": ("ms", lambda: pick_up_notify(program, count)),
        })
    waiting, notified = (figure.median() for figure in figures.values())
    report.target("p50 of the pick-up, in ms", waiting, 0.3, False)
    report.target("p50 / that of LISTEN/NOTIFY", waiting / notified, 1, False)

    report.target("held snapshot: keeps", held_snapshot(30 if quick else 180, report), 0.9, True)
    report.note("two commits a round each, synchronous_commit = on; "
                "WAL without full page images")
