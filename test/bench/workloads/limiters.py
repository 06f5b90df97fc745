"""What three limiters cost that workers and consumers share, and how much of them is used."""

import time

from lib import PAYLOAD, pick, restart, set_config, sql, value, wait_for
from systems import RESERVED_SINGLY, WORKERS
from systems.base import pgbench_working
from systems.jobq import paused_queue, wait_for_end

TITLE = "no-op jobs of three kinds, for 8 workers and 50 consumers: no limiters, and three that they share"
CONSUMERS = 50
INSIDE, OUTSIDE = "inside", "outside"
NONE, WIDE, BINDS = (None,) * 3, (CONSUMERS + 8,) * 3, (4, 8, 12)

# As reserve() and ack() of a job with a short duration.
MOMENT = 20				# ms
NAP = RESERVED_SINGLY.script.replace("SELECT jobq.ack", "\\sleep %d ms\nSELECT jobq.ack" % MOMENT)
NAP_FUNCTION = """
    CREATE FUNCTION bench.nap() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(0.001 * %d);
    END $$;
""" % MOMENT

# Sample the permits in use.  Begins when all permits are in use; ends when few jobs are
# left to consumers, which could use all permits.  Returns the average share of permits in
# use, the share of samples with a free permit, and the number of samples above a limit.
LOOK = """
    CREATE FUNCTION bench.look(few int, OUT used float, OUT free float, OUT above int) LANGUAGE plpgsql AS $$
    DECLARE
        looks int := 0;
        taken int;
        places int := (SELECT sum(max_running) FROM jobq.limits);
        over boolean;
        outside int := (SELECT id FROM jobq_internal.queue WHERE name = 'outside');
    BEGIN
        used := 0;
        free := 0;
        above := 0;
        LOOP
            SELECT sum(running), bool_or(running > max_running) INTO taken, over FROM jobq.limits;
            IF looks > 0 OR taken = places THEN
                looks := looks + 1;
                used := used + taken;
                free := free + (taken < places)::int;
                above := above + over::int;
            END IF;
            PERFORM pg_sleep(0.001);
            EXIT WHEN looks % 20 = 0 AND (SELECT count(*) < few FROM jobq_internal.job WHERE queue_id = outside);
        END LOOP;
        used := used / looks / places;
        free := free / looks;
    END $$;
"""


def create(places, function, handler):
    """Queues for workers and consumers, and three kinds, each with so many places."""
    WORKERS.create()
    sql(function or "SELECT")
    paused_queue(INSIDE)
    sql("SELECT jobq.create_queue('%s', mode => 'consumer')" % OUTSIDE)
    sql("SELECT jobq.pause('%s')" % OUTSIDE)
    for i, n in enumerate(places):
        if n is not None:
            sql("SELECT jobq.create_limiter('limiter %d', max_running => %d)" % (i, n))
        sql("SELECT jobq.register('kind %d', '%s'%s)" % (
            i, handler, "" if n is None else ", limiters => '{limiter %d}'" % i))


def fill(queue, jobs):
    """Jobs of the three kinds, as many of each as its limiter has places in BINDS."""
    sql("SELECT count(jobq.enqueue('kind ' || ('{0,1,1,2,2,2}'::int[])[1 + i %% 6], %s, queue => '%s')) "
        "FROM generate_series(1, %d) i" % (PAYLOAD, queue, jobs))


def resume():
    sql("SELECT jobq.resume('%s'), jobq.resume('%s')" % (INSIDE, OUTSIDE))


def there():
    """All consumers wait for jobs."""
    wait_for("count(*) = %d FROM pg_stat_activity WHERE application_name = 'pgbench' "
             "AND wait_event_type = 'Extension'" % CONSUMERS, "the consumers", 60, 0.05)


def drained(places, inside, outside):
    """Jobs a second, of both queues together, until the last one has ended."""
    create(places, "", "bench.noop(jsonb)")
    fill(INSIDE, inside)
    fill(OUTSIDE, outside)
    with pgbench_working(RESERVED_SINGLY.script % (1, "10s"), CONSUMERS):
        there()
        sql("CHECKPOINT")
        begun = time.monotonic()
        resume()
        wait_for_end()
        return (inside + outside) / (time.monotonic() - begun)


def used(jobs):
    """How much of the places is used while there is work, and what bench.look() finds else."""
    create(BINDS, NAP_FUNCTION, "bench.nap()")
    sql(LOOK)
    fill(INSIDE, jobs)
    fill(OUTSIDE, jobs)
    with pgbench_working(NAP % (1, "10s"), CONSUMERS):
        there()
        resume()
        looked = [float(x) for x in value("SELECT used || ' ' || free || ' ' || above FROM bench.look(%d)"
                                          % (jobs // 3)).split()]
        wait_for_end()
        return looked


def run(report):
    inside, outside = pick((30000, 6000), (60000, 12000), (600000, 120000))
    restart(max_connections=CONSUMERS + 50)
    set_config(jobq__workers="*=8")
    try:
        figures = report.compare(pick(2, 5), {
            name: ("jobs/s", lambda places=places: drained(places, inside, outside))
            for name, places in (("no limiters", NONE), ("limiters that never bind", WIDE),
                                 ("limiters of 4, 8 and 12 places", BINDS))})
        shares = report.compare_many(pick(1, 3), {"used": (
            [("jobs of %d ms, limiters of 4, 8 and 12 places: places in use" % MOMENT, ""),
             ("looks that find a place free", ""), ("looks that find more than there are", "")],
            lambda: used(pick(600, 2000)))})["used"]
    finally:
        set_config(jobq__workers=None)
        restart(max_connections=None)
    report.against(figures.values(), figures["no limiters"], "no limiters")
    never = "limiters that never bind"
    report.ratio("%s / none" % never, figures[never], figures["no limiters"], 0.8)
    report.target("places in use while there is work", shares[0].median(), 0.9, True)
    report.target("looks that find more than there are", max(shares[2].values), 0, False)
    report.note("with fewer places than consumers, fewer commits are flushed at a time")
    report.note("%s jobs in the queue of the workers, %s in that of the consumers, which reserve and "
                "acknowledge one by one" % (format(inside, ","), format(outside, ",")))
