"""From the return of the enqueuer's commit to the start of the job."""

import tempfile

from clients import PAUSE_MS, compile_clients, differences, rounds
from lib import pick
from report import percentile
from systems import (GRAPHILE, GRAPHILE_DEFAULT, PGQ, PG_BOSS, RESERVED, STATUS_SINGLY,
                     WORKERS, available, compare)
from systems.base import System

TITLE = "pick-up in ms from the return of the commit"
WARM_UP = 20
LOAD = 500


class Notify(System):
    name = "LISTEN/NOTIFY alone, libpq"
    settings = "no queue, no table: what waking a session costs at least"

    def create(self):
        pass

    def pick_up(self, count, folder, load=0):
        return rounds(folder, count, "SELECT pg_notify('bench', $1)", "bench")


def measured(report, systems, how, load, count, repeats, folder, part):
    """{system: [figure of p50, figure of p99]}; load(system) jobs/s come besides."""
    def measure(system):
        sent, received = system.pick_up(WARM_UP + count, folder, load(system))
        late = differences(sent, received, WARM_UP + count)[WARM_UP:]
        report.data.setdefault(system.name + how, []).append(sorted(late))
        return percentile(late, 50), percentile(late, 99)

    figures = compare(report, repeats, systems, [(how + "p50", "ms"), (how + "p99", "ms")],
                      measure, part)
    for i in range(2):
        report.against([f[i] for f in figures.values()], figures[STATUS_SINGLY][i],
                       "%s, with LISTEN, under the same load" % STATUS_SINGLY.name)
    return figures


def half_capacity(report, systems):
    """{system: half of the jobs/s that it can take}"""
    rates = {system: int(system.capacity() / 2) for system in systems}
    for system, rate in rates.items():
        report.note("half load of %s: %d other jobs/s" % (system.name, rate))
    return rates


def against_peers(report, figures, how):
    peers = [figures[s][0] for s in (GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS) if s in figures]
    if not peers:
        return
    quickest = report.figure("the quicker of graphile-worker and pg-boss, %sp50" % how, "ms")
    for values in zip(*(zip(p.values, p.others) for p in peers)):
        quickest.add(*min(values))
    for system, bound in ((WORKERS, 3), (RESERVED, 2)):
        report.ratio("%stheir p50 / that of %s" % (how, system.name), quickest,
                     figures[system][0], bound)


def run(report):
    count, repeats = pick(60, 200, 500, least=10), pick(1, 3, 8)
    there = available(report, [WORKERS, RESERVED, STATUS_SINGLY, GRAPHILE, GRAPHILE_DEFAULT, PG_BOSS,
                               PGQ])
    plain = Notify()
    report.system(plain.name, "", plain.settings)
    loaded = "%d other jobs/s, " % LOAD
    with tempfile.TemporaryDirectory() as folder:
        compile_clients(folder)
        idle = measured(report, [plain] + there, "", lambda _: 0, count, repeats, folder, 0.4)
        busy = measured(report, there, loaded, lambda _: LOAD, count, repeats, folder, 0.5)
        rates = half_capacity(report, [WORKERS, RESERVED, STATUS_SINGLY])
        measured(report, list(rates), "half loaded, ", rates.get, count, repeats, folder, 1)
    p50, p99 = idle[WORKERS]
    report.target("p50 in ms", p50.median(), 0.2, False)
    report.target("p99 in ms", p99.median(), 2, False)
    waiting, listening = (idle[s][0] for s in (RESERVED, STATUS_SINGLY))
    report.target("reserved by clients: p50 in ms", waiting.median(), 0.3, False)
    report.target("reserved by clients: p50 / that of LISTEN and SKIP LOCKED",
                  waiting.median() / listening.median(), 1, False)
    report.ratio("p50 of %s / that of %s" % (WORKERS.name, plain.name), p50, idle[plain][0])
    against_peers(report, idle, "")
    against_peers(report, busy, loaded)
    report.note("each round: %d times, %d ms apart, after %d that do not count; a negative time is a "
                "handler that started before its enqueuer had the commit's return"
                % (count, PAUSE_MS, WARM_UP))
    report.note("pg-boss sends from Node, the others from C; reserved and SKIP LOCKED: one consumer, "
                "the latter takes up to 100 a time")
