"""NOTIFY in an INSERT: through the relay, plainly, and not at all."""

from lib import Session, pgbench, pick, sql
from systems import WORKERS

TITLE = "INSERT that notifies, 32 clients, one listener"
CLIENTS = 32
SCRIPT = "WITH row AS (INSERT INTO bench.plain DEFAULT VALUES RETURNING id) SELECT %s FROM row;\n"


def measure(call, seconds):
    sql("TRUNCATE bench.plain")
    return pgbench(SCRIPT % call, CLIENTS, seconds=seconds)["tps"]


def run(report):
    seconds, repeats = pick((2, 2), (2, 3), (4, 5))
    WORKERS.create()
    sql("CREATE TABLE bench.plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "at timestamptz DEFAULT now())")
    listener = Session()
    listener.run("LISTEN bench")
    measure("id", 1)
    figures = report.compare(repeats, {
        "no NOTIFY": ("commits/s", lambda: measure("id", seconds)),
        "jobq.notify()": ("commits/s", lambda: measure("jobq.notify('bench', 'x')", seconds)),
        "pg_notify()": ("commits/s", lambda: measure("pg_notify('bench', 'x')", seconds)),
    })
    listener.close()
    none, relay, plain = figures.values()
    report.against(figures.values(), none, "no NOTIFY")
    report.ratio("jobq.notify() / none", relay, none)
    report.ratio("pg_notify() / none", plain, none)
