"""What limits, rates, groups and roles cost the workers that drain a backlog."""

import time

from lib import PAYLOAD, pick, sql
from systems import WORKERS, available
from systems.jobq import EMPTY, paused_queue, wait_for_end

TITLE = "no-op jobs, drained by 4 workers: plain, in bulk, with limits, with a rate, in groups, in batches, of many roles"
QUEUE = "flow"
ENDED = EMPTY + " AND NOT EXISTS (SELECT FROM jobq_internal.batch WHERE finished_at IS NULL)"


def create(kind="", queue=""):
    WORKERS.create()
    paused_queue(QUEUE)
    if kind:
        sql("SELECT jobq.register('noop', 'bench.noop(jsonb)', %s)" % kind)
    if queue:
        sql("SELECT jobq.alter_queue('%s', %s)" % (QUEUE, queue))


def drained(jobs, enqueue, **policy):
    """Jobs a second, from resume() to the last job's end."""
    create(**policy)
    enqueue(jobs)
    sql("CHECKPOINT")
    start = time.monotonic()
    sql("SELECT jobq.resume('%s')" % QUEUE)
    wait_for_end(ENDED)
    return jobs / (time.monotonic() - start)


def plain(jobs):
    WORKERS.fill("noop", jobs, QUEUE)


def singly(jobs):
    sql("SELECT count(jobq.enqueue('noop', %s, queue => '%s')) FROM generate_series(1, %d)"
        % (PAYLOAD, QUEUE, jobs))


def meanwhile(jobs, size):
    """From the first call of enqueue_many() on, each a transaction; workers run them."""
    create()
    sql("SELECT jobq.resume('%s')" % QUEUE)
    start = time.monotonic()
    sql("""DO $$ BEGIN
               FOR i IN 1 .. %d LOOP
                   PERFORM jobq.enqueue_many('noop', (SELECT array_agg(%s) FROM generate_series(1, %d)),
                                             queue => '%s');
                   COMMIT;
               END LOOP;
           END $$""" % (jobs // size, PAYLOAD, size, QUEUE))
    wait_for_end(ENDED)
    return jobs / (time.monotonic() - start)


def grouped(order):
    def enqueue(jobs):
        groups = jobs // 10
        key = "i %% %d" % groups if order == "interleaved" else "i / 10"
        sql("SELECT count(jobq.enqueue('noop', %s, queue => '%s', group_key => (%s)::text)) "
            "FROM generate_series(0, %d) i" % (PAYLOAD, QUEUE, key, jobs - 1))
    return enqueue


def in_batches(size):
    """Batches of so many jobs, each with a callback at its end."""
    def enqueue(jobs):
        sql("""DO $$ DECLARE b bigint; BEGIN
                   FOR i IN 1 .. %d LOOP
                       b := jobq.create_batch(on_finish => '{"kind": "noop"}', start => true);
                       PERFORM jobq.add_jobs(b, 'noop', (SELECT array_agg(%s) FROM generate_series(1, %d)), '{"queue": "%s"}');
                       IF i %% 100 = 0 THEN COMMIT; END IF;
                   END LOOP;
               END $$""" % (jobs // size, PAYLOAD, size, QUEUE))
    return enqueue


def of_roles(roles):
    """Each role enqueues its part; it has workers of its own, out of the four."""
    def enqueue(jobs):
        sql("GRANT USAGE ON SCHEMA bench TO PUBLIC")
        for i in range(roles):
            role = "jobq_bench_%d" % i
            sql("DROP ROLE IF EXISTS %s" % role)
            sql("CREATE ROLE %s LOGIN" % role)
            sql("SELECT jobq.grant_privilege('%s')" % role)
            sql("SET ROLE %s" % role)
            WORKERS.fill("noop", jobs // roles, QUEUE)
            sql("RESET ROLE")
    return enqueue


def run(report):
    jobs = pick(20000, 60000, 1000000)
    available(report, [WORKERS])
    few = pick(jobs // 2, jobs // 2, jobs)
    variants = {		# name: (how it is measured, the least ratio to plain)
        "plain": (lambda: drained(jobs, plain), None),
        "enqueued one by one": (lambda: drained(jobs, singly), None),
        "bulk: enqueue_many() of 1,000 at a time, its own time included":
            (lambda: meanwhile(jobs, 1000), None),
        "max_running 4 of queue and kind":
            (lambda: drained(jobs, plain, kind="max_running => 4", queue="max_running => 4"), 0.75),
        "max_running 2 of queue and kind":
            (lambda: drained(jobs, plain, kind="max_running => 2", queue="max_running => 2"), None),
        "rate far above the speed":
            (lambda: drained(jobs, plain, queue="rate => '1000000 per second'"), 0.75),
        "groups, interleaved": (lambda: drained(few, grouped("interleaved")), 0.5),
        "groups, consecutive": (lambda: drained(few, grouped("consecutive")), 0.5),
        "one batch": (lambda: drained(jobs, lambda n: in_batches(n)(n)), 0.75),
        "batches of 10": (lambda: drained(few, in_batches(10)), None),
        "4 roles": (lambda: drained(jobs, of_roles(4)), None),
        "16 roles": (lambda: drained(jobs, of_roles(16)), None),
    }
    if pick(False, False, True):
        # only variants that depend on the size: most groups do not fit into
        # memory
        variants = {name: variants[name] for name in variants if name == "plain" or "groups" in name}
    figures = report.compare(pick(1, 3, 1), {
        name: ("jobs/s", measure) for name, (measure, _) in variants.items()})
    WORKERS.create()		# nothing depends on the roles any more
    for i in range(16):
        sql("DROP ROLE IF EXISTS jobq_bench_%d" % i)
    report.against(figures.values(), figures["plain"], "plain")
    for name, (_, bound) in variants.items():
        if bound is not None:
            report.ratio("%s / plain" % name, figures[name], figures["plain"], bound)
    report.note("4 is the number of workers, of which no more than there are processors run jobs as short "
                "as these: that is what permits cost; 2 may bind")
    report.note("batches: until the last of them is over and its callback, another no-op job, has run")
    report.note("%s jobs; in groups %s, ten in each; roles: the same number of jobs in all, and workers "
                "that have to connect as each of them" % (format(jobs, ","), format(few, ",")))
