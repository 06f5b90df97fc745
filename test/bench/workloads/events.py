"""What handlers of events cost those who are not theirs."""

from lib import PAYLOAD, cpu_since, own_cpu, pick, sql
from systems import WORKERS
from systems.jobq import paused_queue, wait_for_end

TITLE = "no-op jobs of 4 workers: nobody hears of them, and many other roles have asked for events"
ROLES, HANDLERS = 50, 20


def measure(jobs):
    """Microseconds of CPU per job."""
    paused_queue("bench")
    sql("SELECT count(*) FROM jobq.enqueue_many('noop', (SELECT array_agg(%s::jsonb) FROM generate_series(1, %d) i), queue => 'bench')"
        % (PAYLOAD, jobs))
    sql("CHECKPOINT")
    cpu = own_cpu()
    sql("SELECT jobq.resume('bench')")
    wait_for_end(timeout=600)
    return 1e6 * cpu_since(cpu) / jobs


def listen():
    """Each of these roles hears of its own jobs, of which there are none."""
    for i in range(ROLES):
        role = "bench_ear%d" % i
        sql("CREATE ROLE %s LOGIN" % role)
        sql("SELECT jobq.grant_privilege('%s')" % role)
        sql("SET ROLE %s" % role)
        sql("SELECT count(jobq.on_event('completed', 'noop', kind => NULLIF('kind' || i, 'kind1'))) FROM generate_series(1, %d) i" % HANDLERS)
        sql("RESET ROLE")


def run(report):
    jobs = pick(40000, 100000)
    found = {}
    for name, before in (("nobody has asked", None), ("%d roles with %d handlers each" % (ROLES, HANDLERS), listen)):
        WORKERS.create()
        if before:
            before()
        found[name] = cpu = measure(jobs)
        report.single("CPU, " + name, "us/job", cpu)
    # a short run may take less processor time than the system counts
    asked, unasked = list(found.values())[1], list(found.values())[0]
    report.target("CPU with handlers of others / without", asked / max(unasked, 0.1), 1.2, False)
