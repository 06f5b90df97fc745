"""What it costs to have many queues, and many tenants in one: against one queue."""

import time

from lib import PAYLOAD, cpu_since, few, own_cpu, pick, restart, set_config, sql, value, wait_for
from systems import WORKERS
from systems.jobq import wait_for_end, wait_for_job

TITLE = "no-op jobs of 4 workers: in one queue, in 10,000 queues, of 20,000 tenants; and an urgent one among them"
FILL = ("SELECT count(jobq.enqueue('noop', {payload}, queue => {queue})) "
        "FROM generate_series(1, {jobs}) i")


def one(jobs):
    sql(FILL.format(payload=PAYLOAD, queue="'one'", jobs=jobs))


def queues(jobs):
    sql("DO $$ BEGIN FOR i IN 1 .. %d LOOP PERFORM jobq.create_queue('q' || i); "
        "IF i %% 100 = 0 THEN COMMIT; END IF; END LOOP; END $$" % few(10000))
    sql(FILL.format(payload=PAYLOAD, queue="'q' || i %% %d + 1" % few(10000), jobs=jobs))


def tenants(jobs):
    sql("SELECT jobq.create_queue('fair', tenant => 'header tenant', fair => 'jobs')")
    sql(FILL.format(payload=PAYLOAD, jobs=jobs,
                    queue="'fair', headers => jsonb_build_object('tenant', (i % 20000)::text)"))


def measure(fill, jobs):
    """Microseconds of CPU per job, and how many others began after an urgent one came."""
    WORKERS.create()
    sql("SELECT jobq.create_queue('one')")
    set_config(jobq__workers="*=0")
    wait_for("count(*) = 0 FROM jobq.workers", "workers to leave", 60, 0.05)
    fill(jobs)
    sql("CHECKPOINT")
    middle = value("SELECT min(id) + %d FROM jobq_internal.job" % (jobs // 2))
    cpu = own_cpu()
    set_config(jobq__workers="*=4")
    wait_for_job(middle)
    start = time.monotonic()
    urgent = value("SELECT jobq.enqueue('noop', %s, queue => 'one', priority => -1)" % PAYLOAD)
    wait_for("NOT EXISTS (SELECT FROM jobq_internal.job WHERE id = %s)" % urgent, "the urgent job", 60, 0.001)
    waited = 1000 * (time.monotonic() - start)
    wait_for_end(timeout=600)
    return 1e6 * cpu_since(cpu) / jobs, waited


def run(report):
    jobs = pick(40000, 100000)
    restart(jobq__ready_entries="262144")
    try:
        fills = {"one queue": one, "10,000 queues": queues, "20,000 tenants": tenants}
        figures = report.compare_many(pick(1, 5), {
            name: ([("CPU, " + name, "us/job"), ("an urgent job, " + name, "ms")],
                   lambda fill=fill: measure(fill, jobs))
            for name, fill in fills.items()})
        for name in list(fills)[1:]:
            report.ratio("CPU, %s / one queue" % name, figures[name][0], figures["one queue"][0],
                         1.5, False)
    finally:
        set_config(jobq__workers=None)
        restart(jobq__ready_entries=None)
