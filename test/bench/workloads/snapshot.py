"""Throughput while another session holds a snapshot, in each of the systems."""

import os
import time

import plot
from lib import BenchError, OtherLoad, Session, number, own_cpu, pick, wait_for_quiet
from systems import (AT_ONCE, GRAPHILE, PGQ, PG_BOSS, RESERVED, STATUS, WORKERS, available)

TITLE = "full load, then another session holds a snapshot"
BACKLOG = 200000
CHUNK = 20000
WARM_UP = 5
SIXTHS = 6


def hold(session):
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.run("SELECT count(*) FROM pg_class")


def observe(system, before, seconds):
    """Keep a backlog; how many jobs had ended, about once a second.

    Gives back a list of (second, jobs, CPU seconds of server and clients); the
    snapshot is held from second 0 on."""
    first = number(system.finished)
    produced = BACKLOG
    holder, seen, held = Session(), [], False
    start = time.monotonic() + WARM_UP + before
    try:
        while time.monotonic() < start + seconds:
            done = number(system.finished) - first
            now = time.monotonic() - start
            if not held and now >= 0:
                hold(holder)
                held = True
            if now >= -before and (not seen or now > seen[-1][0] + 1):
                seen.append((now, done, own_cpu()))
            if produced - done < BACKLOG:
                system.fill("noop", CHUNK)
                produced += CHUNK
            else:
                time.sleep(0.02)
    finally:
        holder.close()
    return seen


def rates(seen, begin, end):
    """Jobs per second, and per second of CPU that we could use."""
    inside = [s for s in seen if begin <= s[0] <= end]
    if len(inside) < 2:		# the next ones outside, then
        inside = [max((s for s in seen if s[0] <= begin), default=seen[0]),
                  min((s for s in seen if s[0] >= end), default=seen[-1])]
    if inside[0] is inside[1]:
        raise BenchError("too few measurements")
    seconds, jobs, cpu = (b - a for a, b in zip(inside[0], inside[-1]))
    return jobs / seconds, jobs / cpu


def measure(system, before, seconds, report):
    """One system's run; how much of its first rate it keeps."""
    wait_for_quiet()
    system.create()
    system.fill("noop", BACKLOG)
    system.settle()
    load = OtherLoad()
    with system.working("noop"):
        seen = observe(system, before, seconds)
    others = load.percent()
    name = system.name
    report.data[name] = [{"second": round(b[0], 2),
                          "jobs_per_s": round((b[1] - a[1]) / (b[0] - a[0])),
                          "own_cpus": round((b[2] - a[2]) / (b[0] - a[0]), 2)}
                         for a, b in zip(seen, seen[1:])]
    sixth = seconds / SIXTHS
    free, first, last = (rates(seen, *when) for when in (
        (-before, 0), (0, sixth), (seconds - sixth, seconds)))
    report.single(name + ", before", "jobs/s", free[0], others)
    report.single(name + ", first sixth", "jobs/s", first[0], others)
    report.single(name + ", last sixth", "jobs/s", last[0], others)
    report.single(name + ", last sixth / before", "x", last[0] / free[0], others)
    report.single(name + ", last sixth / first, per CPU second", "x", last[1] / first[1], others)
    return last[0] / first[0]


def run(report):
    before, seconds = pick((3, 12), (6, 30), (30, 180))
    systems = available(report, [WORKERS, RESERVED, AT_ONCE, STATUS, GRAPHILE, PG_BOSS, PGQ])
    kept = {}
    for system in systems:
        try:
            kept[system] = report.measure(
                system.name, lambda: measure(system, before, seconds, report), tries=1)
        except BenchError:		# it is told; the others go on
            if system in (WORKERS, RESERVED):
                raise
    for system in (WORKERS, RESERVED):
        report.target(system.name + ": last sixth / first", kept[system], 0.9, True)
    draw(report, {s.name: report.data[s.name] for s in kept})
    report.note("the snapshot is held for %d s, after %d s without; a sixth is %g s; "
                "the producer shares the processors" % (seconds, before, seconds / SIXTHS))


def draw(report, series, smooth=3):
    """The plot: a moving average, as the server counts once a second or so."""
    points = {}
    for name, seen in series.items():
        rates = [s["jobs_per_s"] for s in seen]
        points[name] = [(s["second"], sum(rates[max(i - smooth + 1, 0):i + 1]) /
                         len(rates[max(i - smooth + 1, 0):i + 1])) for i, s in enumerate(seen)]
    why = plot.lines(os.path.join(report.folder, "snapshot.svg"), "Jobs done per second, under full load",
                     "seconds since the snapshot was taken", "jobs/s", "snapshot held", points)
    if why is not None:
        report.missing("plot", why)
    else:
        report.note("plot: snapshot.svg")
