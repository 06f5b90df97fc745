"""Throughput while another session holds a snapshot, in each of the systems."""

import os
import threading
import time
from bisect import bisect_left

import plot
from lib import BenchError, Session, few, leave, number, own_cpu, pick
from systems import (AT_ONCE, GRAPHILE, PGQ, PG_BOSS, RESERVED, STATUS, WORKERS, available, compare)

TITLE = "full load, then another session holds a snapshot"
CHUNK = few(20000)
BACKLOG = few(100000)		# at least,
BACKLOG_SECONDS = 3		# and what is done in so long
LAG = 1.2			# seconds until statistics tell what was done
WARM_UP = 3
WARM_UP_AT_MOST = 10
PARTS = 4


def hold(session):
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.run("SELECT count(*) FROM pg_class")


class Producers:
    """Keep a backlog that does not run dry, although what is done is seen late."""

    def __init__(self, system):
        self.system, self.wanted, self.produced = system, BACKLOG, 0
        self.first = number(system.finished)
        self.done, self.seen, self.failure = 0, [], None
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.produce, daemon=True)
                        for _ in range(system.producers)]

    def lacking(self):
        return self.produced - self.done < self.wanted

    def produce(self):
        try:
            while not self.ended.is_set():
                if not self.lacking():
                    self.ended.wait(0.01)
                    continue
                self.system.fill("noop", CHUNK)
                with self.lock:
                    self.produced += CHUNK
        except Exception as e:
            self.failure = e
        finally:
            leave()

    def look(self):
        """How many jobs had ended; the backlog follows the speed."""
        if self.failure is not None:
            raise self.failure
        now, self.done = time.monotonic(), number(self.system.finished) - self.first
        self.seen.append((now, self.produced, self.done))
        past = next((s for s in reversed(self.seen) if s[0] < now - 2), None)
        if past is not None:
            self.wanted = max(self.wanted, BACKLOG_SECONDS
                              * (self.done - past[2]) / (now - past[0]))
        return self.done

    def dry(self, since):
        """The share of the time since then in which there may have been no job."""
        times = [s[0] for s in self.seen]
        empty = [produced <= self.seen[bisect_left(times, now + LAG)][2]
                 for now, produced, _ in self.seen if since <= now < times[-1] - LAG]
        return sum(empty) / max(len(empty), 1)

    def __enter__(self):
        self.system.fill("noop", BACKLOG)
        self.produced = BACKLOG
        self.system.settle()
        return self

    def start(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(60)


def observe(system, producers, before, seconds):
    """How many jobs had ended, about once a second, under full load.

    Gives back a list of (second, jobs, CPU seconds of server and clients), in
    which the snapshot is held from second 0 on, and how much of the time there
    may have been no job."""
    holder, seen, held = Session(), [], False
    begun, start = time.monotonic(), None
    try:
        while start is None or time.monotonic() < start + seconds:
            time.sleep(0.02)
            done = producers.look()
            if start is None:
                warm = time.monotonic() - begun
                if warm > WARM_UP and not producers.lacking() or warm > WARM_UP_AT_MOST:
                    start = time.monotonic() + before
                continue
            now = time.monotonic() - start
            if not held and now >= 0:
                hold(holder)
                held = True
            if not seen or now > seen[-1][0] + 1:
                seen.append((now, done, own_cpu()))
    finally:
        holder.close()
    return seen, producers.dry(start - before)


def rates(seen, begin, end):
    """Jobs per second, and per second of CPU that we could use."""
    inside = [s for s in seen if begin <= s[0] <= end]
    if len(inside) < 2:		# the next ones outside, then
        inside = [max((s for s in seen if s[0] <= begin), default=seen[0]),
                  min((s for s in seen if s[0] >= end), default=seen[-1])]
    if inside[0] is inside[1]:
        raise BenchError("too few measurements")
    seconds, jobs, cpu = (b - a for a, b in zip(inside[0], inside[-1]))
    return jobs / seconds, jobs / max(cpu, 0.01)


def measure(system, before, seconds, report):
    """One run: jobs/s without and with the snapshot, and what is kept of it."""
    system.create()
    with Producers(system) as producers, system.working("noop"):
        producers.start()
        seen, dry = observe(system, producers, before, seconds)
    if dry > 0.02:
        report.note("%s: nothing may have waited for %d %% of the time: its producers are the slower "
                    "part" % (system.name, 100 * dry))
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
    report.note("full load: producers keep a backlog of %s jobs, and of what is done in %d s; they share "
                "the processors with the workers; %d s without a snapshot, then %d s with it"
                % (format(BACKLOG, ","), BACKLOG_SECONDS, before, seconds))


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
