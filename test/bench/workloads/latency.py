"""From the return of the enqueuer's commit to the start of the job."""

import tempfile

from clients import PAUSE_MS, compile_clients, differences, rounds
from lib import OtherLoad, percentile, pick, wait_for_quiet
from systems import (GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS, RESERVED, STATUS_SINGLY, WORKERS,
                     available)

TITLE = "pick-up on an idle system, in ms from the return of the commit"
WARM_UP = 20
NOTIFY = "LISTEN/NOTIFY alone, libpq"


def notify(count, folder):
    return rounds(folder, WARM_UP + count, "SELECT pg_notify('bench', $1)", "bench")


def run(report):
    count = pick(200, 400, 500)
    there = available(report, [WORKERS, RESERVED, STATUS_SINGLY, GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS])
    systems = {s.name: s.pick_up for s in there}
    systems[NOTIFY] = notify
    figures = {name: [report.figure("%s, p%d" % (name, p), "ms") for p in (50, 99)]
               for name in systems}
    with tempfile.TemporaryDirectory() as folder:
        compile_clients(folder)
        for _ in range(pick(1, 3, 8)):
            for name, measure in systems.items():
                wait_for_quiet()
                load = OtherLoad()

                def latencies():
                    sent, received = measure(count, folder)
                    every = differences(sent, received, WARM_UP + count)
                    return every[WARM_UP:]

                latencies = report.measure(name, latencies)
                others = load.percent()
                report.data.setdefault(name, []).append(sorted(latencies))
                for figure, p in zip(figures[name], (50, 99)):
                    figure.add(percentile(latencies, p), others)
    p50, p99 = figures[WORKERS.name]
    report.target("p50 in ms", p50.median(), 0.2, False)
    report.target("p99 in ms", p99.median(), 2, False)
    waiting, listening = (figures[s.name][0] for s in (RESERVED, STATUS_SINGLY))
    report.target("reserved by clients: p50 in ms", waiting.median(), 0.3, False)
    report.target("reserved by clients: p50 / that of LISTEN and SKIP LOCKED",
                  waiting.median() / listening.median(), 1, False)
    peers = [figures[s.name][0] for s in (GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS) if s in there]
    if peers:
        quickest = report.figure("the quickest of graphile-worker and pg-boss, p50", "ms")
        for values in zip(*(zip(p.values, p.others) for p in peers)):
            quickest.add(*min(values))
        report.ratio("their p50 / that of jobq in workers", quickest, p50, 3)
        report.ratio("their p50 / that of jobq reserved by clients", quickest,
                     figures[RESERVED.name][0], 2)
    report.note("each round: %d times, %d ms apart, after %d that do not count; a negative time is a "
                "handler that started before its enqueuer had the commit's return"
                % (count, PAUSE_MS, WARM_UP))
    report.note("pg-boss sends from Node, the others from C")
