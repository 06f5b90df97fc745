"""From the return of the enqueuer's commit to the start of the job."""

import tempfile

from clients import PAUSE_MS, compile_clients, differences, rounds
from lib import OtherLoad, percentile, pick, wait_for_quiet
from systems import (GRAPHILE, GRAPHILE_DEFAULT, PGQ, PG_BOSS, RESERVED, STATUS_SINGLY,
                     WORKERS, available)

TITLE = "pick-up in ms from the return of the commit"
WARM_UP = 20
LOAD = 500
NOTIFY = "LISTEN/NOTIFY alone, libpq"


def notify(count, folder, load):
    return rounds(folder, WARM_UP + count, "SELECT pg_notify('bench', $1)", "bench")


def compare(report, systems, how, load, count, repeats, folder):
    """{name: [figure of p50, figure of p99]}"""
    figures = {name: [report.figure("%s%s, p%d" % (name, how, p), "ms") for p in (50, 99)]
               for name in systems}
    for _ in range(repeats):
        for name, pick_up in systems.items():
            wait_for_quiet()
            machine = OtherLoad()

            def latencies():
                sent, received = pick_up(count, folder, load)
                return differences(sent, received, WARM_UP + count)[WARM_UP:]

            measured = report.measure(name, latencies)
            others = machine.percent()
            report.data.setdefault(name + how, []).append(sorted(measured))
            for figure, p in zip(figures[name], (50, 99)):
                figure.add(percentile(measured, p), others)
    return figures


def against_peers(report, figures, there, how):
    peers = [figures[s.name][0] for s in (GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS) if s in there]
    if not peers:
        return
    quickest = report.figure("the quicker of graphile-worker and pg-boss%s, p50" % how, "ms")
    for values in zip(*(zip(p.values, p.others) for p in peers)):
        quickest.add(*min(values))
    for system, bound in ((WORKERS, 3), (RESERVED, 2)):
        report.ratio("their p50 / that of %s%s" % (system.name, how), quickest,
                     figures[system.name][0], bound)


def run(report):
    count, repeats = pick(100, 300, 500), pick(1, 3, 8)
    there = available(report, [WORKERS, RESERVED, STATUS_SINGLY, GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS, PGQ])
    systems = {s.name: s.pick_up for s in there}
    loaded = ", %d other jobs/s" % LOAD
    with tempfile.TemporaryDirectory() as folder:
        compile_clients(folder)
        idle = compare(report, dict(systems, **{NOTIFY: notify}), "", 0, count, repeats, folder)
        busy = compare(report, systems, loaded, LOAD, count, repeats, folder)
    p50, p99 = idle[WORKERS.name]
    report.target("p50 in ms", p50.median(), 0.2, False)
    report.target("p99 in ms", p99.median(), 2, False)
    waiting, listening = (idle[s.name][0] for s in (RESERVED, STATUS_SINGLY))
    report.target("reserved by clients: p50 in ms", waiting.median(), 0.3, False)
    report.target("reserved by clients: p50 / that of LISTEN and SKIP LOCKED",
                  waiting.median() / listening.median(), 1, False)
    against_peers(report, idle, there, "")
    against_peers(report, busy, there, loaded)
    report.note("each round: %d times, %d ms apart, after %d that do not count; a negative time is a "
                "handler that started before its enqueuer had the commit's return"
                % (count, PAUSE_MS, WARM_UP))
    report.note("pg-boss sends from Node, the others from C; reserved and SKIP LOCKED: one consumer, "
                "the latter takes up to 100 a time")
