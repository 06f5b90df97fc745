"""What it costs to take settings along: a queue that carries search_path, against one that carries nothing."""

from lib import cpu_since, own_cpu, pick, sql, value, wait_for
from systems import WORKERS

TITLE = "no-op jobs of 100 bytes in workers: nothing carried, search_path, search_path of 50 schemas in turn"
NOTHING, SAME, TURNS = "nothing carried", "search_path", "search_path, of 50 schemas in turn"


def fill(jobs, name):
    """Enqueue one by one, each with what its session has; microseconds of CPU per job."""
    begun = own_cpu()
    sql("""DO $$ BEGIN FOR i IN 1 .. %d LOOP
           PERFORM %s, jobq.enqueue('noop', jsonb_build_object('i', i, 'pad', repeat('x', 80)), 'bench');
           END LOOP; END $$""" % (jobs, "set_config('search_path', format('branch_%s, public', i % 50), true)"
                                  if name == TURNS else "NULL"))
    return 1e6 * cpu_since(begun) / jobs


def measure(jobs, name):
    WORKERS.create()
    for n in range(50):
        sql("CREATE SCHEMA IF NOT EXISTS branch_%d" % n)
    sql("SELECT jobq.create_queue('bench'%s)"
        % ("" if name == NOTHING else ", carry => '{search_path}'"))
    sql("SELECT jobq.pause('bench')")
    sql("ALTER ROLE CURRENT_USER SET search_path = %s" % ("public" if name == NOTHING else "pg_catalog"))
    sql("SELECT jobq.restart_workers()")
    enqueued = fill(jobs, name)
    sql("CHECKPOINT")
    last = value("SELECT max(id) FROM jobq_internal.job")
    begun = own_cpu()
    sql("SELECT jobq.resume('bench')")
    sql("DO $$ BEGIN WHILE EXISTS (SELECT FROM jobq_internal.job WHERE id = %s) "
        "LOOP PERFORM pg_sleep(0.005); END LOOP; END $$" % last)
    wait_for("count(*) = 0 FROM jobq_internal.job", "the end of the drain", 20, 0.02)
    return [enqueued, 1e6 * cpu_since(begun) / jobs]


def run(report):
    jobs = pick(40000, 100000)
    try:
        figures = report.compare_many(pick(3, 5), {
            name: ([("enqueue, " + name, "us/job"), ("work, " + name, "us/job")],
                   lambda name=name: measure(jobs, name))
            for name in (NOTHING, SAME, TURNS)})
    finally:
        sql("ALTER ROLE CURRENT_USER RESET search_path")
    for n, what in enumerate(("enqueue", "work")):
        for name in (SAME, TURNS):
            report.ratio("%s, %s / %s" % (what, NOTHING, name), figures[NOTHING][n], figures[name][n],
                         0.91 if name == SAME and what == "work" else None)
