"""Durable procedures that wait: what waiting costs, and how fast signals arrive."""

import time

from lib import Session, cpu_since, own_cpu, pick, sql, value, wait_for
from report import percentile
from systems import WORKERS
from workloads.idle import usage
from workloads.memory import private_kb

TITLE = "procedures that wait for signals and times; signals of two sessions, 100 in a transaction"

WAITS = """CREATE PROCEDURE waits(payload jsonb) LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
BEGIN
    CALL jobq.await_signal('go', answer);
    INSERT INTO arrived VALUES ((answer #>> '{}')::timestamptz, clock_timestamp());
END $$"""
SLEEPS = "CREATE PROCEDURE sleeps(payload jsonb) LANGUAGE plpgsql AS $$ BEGIN CALL jobq.sleep('nap', '1 day'); END $$"
SEND = """DO $$
DECLARE
    job bigint;
    n int := 0;
BEGIN
    FOR job IN SELECT id FROM waiting WHERE id %% 2 = %d LOOP
        PERFORM jobq.signal(job, 'go', to_jsonb(clock_timestamp()));
        n := n + 1;
        IF n %% 100 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END $$"""


def suspended(jobs):
    wait_for("count(*) = %d FROM jobq_internal.job WHERE waits_for IS NOT NULL AND lease_token IS NULL" % jobs,
             "the suspension of all jobs", 600, 0.2)


def scheduler():
    return value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'jobq scheduler'")


def idle(report, jobs, seconds):
    """Memory, CPU and wake-ups of the scheduler beside many suspended jobs."""
    pid = scheduler()
    before = private_kb(pid)
    for kind in ("sleeps", "waits"):
        sql("SELECT count(*) FROM jobq.enqueue_many('%s', array_fill('{}'::jsonb, ARRAY[%d]))" % (kind, jobs))
    suspended(2 * jobs)
    time.sleep(5)
    cpu, wakes = usage(pid)
    time.sleep(seconds)
    cpu, wakes = (b - a for a, b in zip((cpu, wakes), usage(pid)))
    report.target("%d sleep and %d wait for signals: growth of the scheduler in kB" % (jobs, jobs),
                  private_kb(pid) - before, 2048, False)
    report.target("CPU of the scheduler, percent of a core", 100 * cpu / seconds, 0.1, False)
    report.target("its wake-ups in %d s" % seconds, wakes, 2, False)


def flood(report, jobs):
    """Signals to all jobs that wait."""
    sql("CREATE TABLE waiting AS SELECT id FROM jobq_internal.job WHERE kind = 'waits'")
    sql("CHECKPOINT")
    sessions = [Session(), Session()]
    cpu, begun = own_cpu(), time.monotonic()
    for i, session in enumerate(sessions):
        session.start(SEND % i)
    for session in sessions:
        session.finish()
    sent = time.monotonic() - begun
    wait_for("NOT EXISTS (SELECT FROM jobq_internal.job WHERE kind = 'waits')", "the end of all jobs", 600, 0.05)
    report.single("signals sent and their jobs done", "jobs/s", jobs / (time.monotonic() - begun))
    report.single("CPU of a signal and its job", "us", 1e6 * cpu_since(cpu) / jobs)
    report.target("signals sent while workers run the jobs, per second", jobs / sent, 10000, True)
    for session in sessions:
        session.close()


def latency(report, rounds):
    """From the call of signal() to the next statement of the procedure, and so with the commit."""
    sql("TRUNCATE arrived")
    for _ in range(rounds):
        job = value("SELECT jobq.enqueue('waits')")
        wait_for("state = 'suspended' FROM jobq.status(%s)" % job, "the suspension", 30)
        time.sleep(0.01)
        sql("SELECT jobq.signal(%s, 'go', to_jsonb(clock_timestamp()))" % job)
        sql("SELECT FROM jobq.wait(%s)" % job)
    late = [float(line) for line in sql("SELECT 1000 * extract(epoch FROM at - sent) FROM arrived")]
    report.data["latency"] = sorted(late)
    report.single("from signal() to the next statement, p99", "ms", percentile(late, 99))
    report.target("from signal() to the next statement, p50 in ms", percentile(late, 50), 1, False)


def run(report):
    jobs, seconds, rounds = pick((20000, 10, 100), (100000, 15, 200), (100000, 60, 1000))
    WORKERS.create()
    sql("CREATE TABLE arrived (sent timestamptz, at timestamptz)")
    for procedure in (WAITS, SLEEPS):
        sql(procedure)
    sql("SELECT jobq.register('waits', 'waits(jsonb)'), jobq.register('sleeps', 'sleeps(jsonb)')")
    latency(report, rounds)
    idle(report, jobs, seconds)
    flood(report, jobs)
