"""What a step of a workflow costs, by the number of its steps: a chain, and a fan-out with a fan-in."""

from lib import cpu_since, own_cpu, pick, sql, wait_for
from systems import WORKERS

TITLE = "workflows of no-op steps: chains of 100 and of 10,000 steps, fan-outs to as many and a fan-in"
CHAIN = """SELECT count(jobq.create_workflow(jsonb_build_object('chain',
             (SELECT jsonb_agg('{"kind": "noop", "queue": "bench"}'::jsonb) FROM generate_series(1, %(steps)d))))) FROM generate_series(1, %(times)d)"""
FAN = """SELECT count(jobq.create_workflow(jsonb_build_object('steps',
             '[{"name": "first", "kind": "noop", "queue": "bench"}]'::jsonb ||
             (SELECT jsonb_agg(jsonb_build_object('name', i::text, 'kind', 'noop', 'queue', 'bench', 'needs', '["first"]'::jsonb))
              FROM generate_series(1, %(steps)d) i) ||
             jsonb_build_object('name', 'last', 'kind', 'noop', 'queue', 'bench',
                                'needs', (SELECT jsonb_agg(i::text) FROM generate_series(1, %(steps)d) i)))))
         FROM generate_series(1, %(times)d)"""


def measure(define, steps, total):
    """Microseconds of CPU per step: to define the workflows, and until all are over."""
    WORKERS.create()
    sql("SELECT jobq.create_queue('bench')")
    sql("SELECT jobq.pause('bench')")
    begun = own_cpu()
    sql(define % {"steps": steps, "times": total // steps})
    defined = 1e6 * cpu_since(begun) / total
    sql("CHECKPOINT")
    begun = own_cpu()
    sql("SELECT jobq.resume('bench')")
    wait_for("NOT EXISTS (SELECT FROM jobq_internal.batch WHERE finished_at IS NULL)", "the end of the workflows", 120, 0.05)
    return [defined, 1e6 * cpu_since(begun) / total]


def run(report):
    few, many = 100, pick(5000, 10000)
    shapes = {"chain": CHAIN, "fan-out": FAN}
    figures = report.compare_many(pick(1, 3), {
        (shape, steps): ([("define, %s of %d" % (shape, steps), "us/step"), ("run, %s of %d" % (shape, steps), "us/step")],
                         lambda shape=shape, steps=steps: measure(shapes[shape], steps, many))
        for shape in shapes for steps in (few, many)})
    for shape in shapes:
        for n, what in enumerate(("define", "run")):
            report.ratio("%s, a step of a %s of %d / of %d" % (what, shape, many, few),
                         figures[shape, many][n], figures[shape, few][n], None)
