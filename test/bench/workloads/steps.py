"""What a step of a durable procedure costs, beside a procedure that commits by hand."""

from lib import number, pick, sql, value
from systems import WORKERS, available
from systems.jobq import wait_for_job

TITLE = "a procedure of many steps: a small INSERT and a COMMIT each"

PROCEDURE = """CREATE PROCEDURE %s(payload jsonb) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. (payload ->> 'steps')::int LOOP
        %s
    END LOOP;
END $$"""
BODIES = {
    "by_hand": "INSERT INTO effect VALUES (i); COMMIT;",
    "with_notes": """IF NOT EXISTS (SELECT FROM note n WHERE n.job = 1 AND n.name = format('step %s', i)) THEN
            INSERT INTO effect VALUES (i);
            INSERT INTO note VALUES (1, format('step %s', i), clock_timestamp());
            COMMIT;
        END IF;""",
    "steps": """IF jobq.step(format('step %s', i)) THEN
            INSERT INTO effect VALUES (i);
            CALL jobq.step_done();
        END IF;""",
    "saved": "INSERT INTO effect VALUES (i); PERFORM jobq.save(to_jsonb(i)); COMMIT;",
}


def rate(kind, steps):
    sql("TRUNCATE effect, note")
    sql("CHECKPOINT")
    job = value("SELECT jobq.enqueue('%s', '{\"steps\": %d}')" % (kind, steps))
    wait_for_job(job)
    return steps / number("SELECT extract(epoch FROM finished_at - started_at) FROM jobq.jobs WHERE id = %s" % job)


def run(report):
    steps = pick(5000, 20000, 50000)
    available(report, [WORKERS])
    WORKERS.create()
    sql("CREATE TABLE effect (n int)")
    sql("CREATE TABLE note (job bigint, name text, done_at timestamptz, PRIMARY KEY (job, name))")
    for kind, body in BODIES.items():
        sql(PROCEDURE % (kind, body))
        sql("SELECT jobq.register('%s', '%s(jsonb)')" % (kind, kind))
    hand, noted, step, saved = report.compare(pick(2, 5), {
        "no notes": ("steps/s", lambda: rate("by_hand", steps)),
        "notes in a table of one's own": ("steps/s", lambda: rate("with_notes", steps)),
        "jobq.step()": ("steps/s", lambda: rate("steps", steps)),
        "jobq.save()": ("steps/s", lambda: rate("saved", steps)),
    }).values()
    report.against([hand, noted, step, saved], noted, "notes by hand")
    report.ratio("jobq.step() / notes by hand", step, noted, 0.6)
    report.ratio("jobq.save() / no notes", saved, hand, 0.3)
