"""Throughput while another session holds a snapshot."""

import subprocess
import time

import baseline
from lib import (BenchError, OtherLoad, PAYLOAD, Session, fresh_jobq, number,
                 own_cpu, pgbench_command, sql)

TITLE = "last sixth of the time / first sixth, under full load with a held snapshot"
BACKLOG = 200000
CHUNK = 20000
WARM_UP = 5
SIXTHS = 6


def hold(session):
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.run("SELECT count(*) FROM pg_class")


def observe(table, produce, seconds, report, name):
    """Keep a backlog; note the number of deleted rows about once a second."""
    deleted = "SELECT pg_stat_get_tuples_deleted('%s'::regclass)" % table
    first = number(deleted)
    produced = 0
    holder, seen = Session(), []
    begun = held = None
    start = time.monotonic()
    load = OtherLoad()
    try:
        while begun is None or time.monotonic() < begun + seconds:
            done = number(deleted) - first
            now = time.monotonic()
            if begun is None and now > start + WARM_UP:
                hold(holder)
                begun = now
                load = OtherLoad()
            if begun is not None and (not seen or now - begun > seen[-1][0] + 1):
                seen.append((now - begun, done, own_cpu()))
            if produced - done < BACKLOG:
                produce(CHUNK)
                produced += CHUNK
            else:
                time.sleep(0.02)
    finally:
        holder.close()
    report.data[name] = [{"second": round(b[0], 2), "jobs_per_s":
                          round((b[1] - a[1]) / (b[0] - a[0])),
                          "own_cpus": round((b[2] - a[2]) / (b[0] - a[0]), 2)}
                         for a, b in zip(seen, seen[1:])]

    def rates(begin, end):
        """Jobs per second, and per second of CPU that we could use."""
        inside = [s for s in seen if begin <= s[0] <= end]
        if len(inside) < 2:
            raise BenchError("too few measurements")
        seconds, jobs, cpu = (b - a for a, b in zip(inside[0], inside[-1]))
        return jobs / seconds, jobs / cpu

    sixth = seconds / SIXTHS
    others = load.percent()
    first, last = rates(0, sixth), rates(seconds - sixth, seconds)
    report.single(name + ", first sixth", "jobs/s", first[0], others)
    report.single(name + ", last sixth", "jobs/s", last[0], others)
    report.single(name + ", per CPU second, first sixth", "jobs/s", first[1], others)
    report.single(name + ", per CPU second, last sixth", "jobs/s", last[1], others)
    report.single(name + ", last sixth / first, per CPU second", "x",
                  last[1] / first[1], others)
    return last[0] / first[0]


def jobq(seconds, report):
    fresh_jobq()
    return observe("jobq.job", lambda n: sql(
        "SELECT count(*) FROM jobq.enqueue_many('noop', (SELECT array_agg(%s) "
        "FROM generate_series(1, %d)))" % (PAYLOAD, n)), seconds, report, "jobq")


def skip_locked(seconds, report):
    baseline.create(CHUNK)
    clients = subprocess.Popen(
        pgbench_command(4, seconds + WARM_UP + 60), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        clients.stdin.write(baseline.claim_script(100))
        clients.stdin.close()
        return observe("bench.queue", lambda n: sql(
            "INSERT INTO bench.queue (payload) SELECT %s FROM generate_series(1, %d)"
            % (PAYLOAD, n)), seconds, report, "SKIP LOCKED, 100 jobs a round")
    finally:
        clients.terminate()
        clients.wait()


def run(report, quick):
    seconds = 30 if quick else 180
    kept = jobq(seconds, report)
    report.target("jobq keeps", kept, 0.9, True)
    plain_seconds = 18 if quick else 90
    kept = skip_locked(plain_seconds, report)
    report.single("SKIP LOCKED keeps", "x", kept)
    report.note("the snapshot is held for %d s, %d s for SKIP LOCKED; "
                "the producer shares the processors" % (seconds, plain_seconds))
    report.note("SKIP LOCKED is expected to keep less than a third in the long run")
