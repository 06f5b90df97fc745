"""Throughput while another session holds a snapshot, in each of the systems."""

import os
import time

import plot
from lib import BenchError, Session, number, own_cpu, pick
from systems import (AT_ONCE, GRAPHILE, PGQ, PG_BOSS, RESERVED, STATUS, WORKERS, available, compare)

TITLE = "full load, then another session holds a snapshot"
BACKLOG = 100000
CHUNK = 20000
WARM_UP = 2
PARTS = 4


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
    """One run: jobs/s without and with the snapshot, and what is kept of it."""
    system.create()
    system.fill("noop", BACKLOG)
    system.settle()
    with system.working("noop"):
        seen = observe(system, before, seconds)
    report.data.setdefault(system.name, []).append(
        [{"second": round(b[0], 2),
          "jobs_per_s": round((b[1] - a[1]) / (b[0] - a[0])),
          "own_cpus": round((b[2] - a[2]) / (b[0] - a[0]), 2)}
         for a, b in zip(seen, seen[1:])])
    free, first, last = (rates(seen, *when) for when in (
        (-before, 0), (0, seconds / PARTS), (seconds - seconds / PARTS, seconds)))
    if 0 in free + first:
        raise BenchError("no job was done")
    return free[0], first[0], last[0], last[0] / free[0], last[0] / first[0], last[1] / first[1]


def run(report):
    before, seconds = pick((2, 5), (4, 12), (30, 120))
    systems = available(report, [WORKERS, RESERVED, STATUS]
                        + pick([], [AT_ONCE]) + [GRAPHILE, PG_BOSS, PGQ])
    figures = compare(report, pick(1, 2, 2), systems, [
        ("no snapshot", "jobs/s"), ("held, first quarter", "jobs/s"), ("held, last quarter", "jobs/s"),
        ("last quarter / none", "x"), ("last quarter / first", "x"),
        ("last quarter / first, per CPU second", "x")],
        lambda system: measure(system, before, seconds, report))
    for i in range(3):
        report.against([f[i] for f in figures.values()], figures[STATUS][i],
                       "%s, at the same time" % STATUS.name)
    for system in (WORKERS, RESERVED):
        report.target(system.name + ": last quarter / first", figures[system][4].median(), 0.9, True)
    draw(report, {s.name: report.data[s.name] for s in figures})
    report.note("full load: the producer keeps a backlog of %s jobs and shares the processors with the "
                "workers; %d s without a snapshot, then %d s with it"
                % (format(BACKLOG, ","), before, seconds))


def draw(report, series):
    """The plot: each system's mean of all rounds, second by second, smoothed."""
    points = {name: [(second, smoothed(runs, second)) for second in
                     sorted({round(s["second"]) for run in runs for s in run})]
              for name, runs in series.items()}
    why = plot.lines(os.path.join(report.folder, "held-snapshot.svg"),
                     "Jobs done per second, under full load", "seconds since the snapshot was taken",
                     "jobs/s", ("no snapshot", "snapshot held"), points)
    if why is not None:
        report.missing("plot", why)
    else:
        report.note("plot: held-snapshot.svg")


def smoothed(runs, second):
    """The mean of all rounds within a second and a half of this one, but of its
    side of second 0 only."""
    near = [s["jobs_per_s"] for run in runs for s in run
            if abs(s["second"] - second) <= 1.5 and (s["second"] > 0) == (second > 0)]
    return sum(near) / len(near) if near else float("nan")
