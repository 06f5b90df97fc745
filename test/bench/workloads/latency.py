"""From the return of the enqueuer's commit to the start of the handler."""

import os
import subprocess
import tempfile

from lib import (BenchError, OtherLoad, fresh_jobq, number, percentile, sql,
                 wait_for, wait_for_quiet)

TITLE = "pick-up on an idle system, in ms from the return of the commit"
PAUSE_MS = 10


def compile_client(folder):
    source = os.path.join(os.path.dirname(os.path.dirname(__file__)), "latency.c")
    program = os.path.join(folder, "latency")
    flags = [subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), option],
                            text=True, capture_output=True).stdout.strip()
             for option in ("--includedir", "--libdir")]
    subprocess.run(["cc", "-O2", "-Wall", "-I" + flags[0], "-I/usr/include/postgresql",
                    "-o", program, source, "-L" + flags[1], "-lpq"], check=True)
    return program


def rounds(program, count, *args):
    done = subprocess.run([program, str(count), str(PAUSE_MS)] + list(args),
                          text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip())
    sent, received = {}, {}
    for line in done.stdout.splitlines():
        event, i, at = line.split()
        (sent if event == "s" else received)[int(i)] = int(at)
    return sent, received


def differences(sent, received, count):
    if len(sent) != count or len(received) != count:
        raise BenchError("%d of %d arrived" % (len(received), count))
    return [(received[i] - sent[i]) / 1000.0 for i in sent]


def measure_jobq(program, count):
    sql("TRUNCATE bench.started")
    sent, _ = rounds(program, count, "SELECT jobq.enqueue('stamp', to_jsonb($1::text))")
    wait_for("count(*) = %d FROM bench.started" % count, "the last job", 10)
    received = dict((int(i), int(at)) for i, at in (
        line.split("|") for line in sql(
            "SELECT i, (extract(epoch FROM at) * 1000000)::bigint FROM bench.started")))
    return differences(sent, received, count)


def measure_notify(program, count):
    sent, received = rounds(program, count, "SELECT pg_notify('bench', $1)", "bench")
    return differences(sent, received, count)


def run(report, quick):
    count = 250 if quick else 500
    fresh_jobq()
    sql("CREATE TABLE bench.started (i int, at timestamptz)")
    sql("""CREATE FUNCTION bench.stamp(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
           DECLARE now timestamptz := clock_timestamp();
           BEGIN INSERT INTO bench.started VALUES ((payload #>> '{}')::int, now); END $$""")
    sql("SELECT jobq.register('stamp', 'bench.stamp(jsonb)')")

    systems = [("jobq", measure_jobq), ("LISTEN/NOTIFY, libpq", measure_notify)]
    figures = {name: [report.figure("%s, p%d" % (name, p), "ms") for p in (50, 99)]
               for name, _ in systems}
    with tempfile.TemporaryDirectory() as folder:
        program = compile_client(folder)
        for _, measure in systems:			# warm the sessions and the caches
            measure(program, 20)
        for _ in range(3 if quick else 8):
            for name, measure in systems:
                wait_for_quiet()
                load = OtherLoad()
                latencies = measure(program, count)
                others = load.percent()
                report.data.setdefault(name, []).append(sorted(latencies))
                for figure, p in zip(figures[name], (50, 99)):
                    figure.add(percentile(latencies, p), others)
    p50, p99 = figures["jobq"]
    report.target("p50 in ms", p50.median(), 0.2, False)
    report.target("p99 in ms", p99.median(), 2, False)
    report.note("each round: %d times, %d ms apart; a negative time is a handler "
                "that started before its enqueuer had the commit's return" % (count, PAUSE_MS))
