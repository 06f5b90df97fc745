"""How soon a job runs again whose worker has died, and one after a crash of the server."""

import os
import signal
import subprocess
import time

from lib import leave, pick, sql, value, wait_for, wait_for_server
from report import percentile
from systems import WORKERS
from systems.jobq import paused_queue, wait_for_end

TITLE = "ms from a death until the job runs again; many others wait, in a queue that is paused, or have ended"
HANDLER = """
    CREATE TABLE bench.again ();
    CREATE FUNCTION bench.linger(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM bench.again) THEN
            INSERT INTO bench.started VALUES (0, clock_timestamp());
        ELSE
            PERFORM pg_sleep(60);
        END IF;
    END $$;
    SELECT jobq.register('linger', 'bench.linger(jsonb)', backoff => 'fixed 1h');
"""


def running(jobs):
    """The workers of so many jobs that run, and that finish when they run again."""
    sql("TRUNCATE bench.again, bench.started")
    sql("SELECT jobq.enqueue('linger') FROM generate_series(1, %d)" % jobs)
    # not just claimed: their transactions have begun to sleep
    wait_for("count(*) = %d FROM pg_stat_activity "
             "WHERE backend_type = 'jobq worker' AND wait_event = 'PgSleep'" % jobs, "the jobs", 20, 0.005)
    sql("INSERT INTO bench.again DEFAULT VALUES")
    return [int(pid) for pid in sql("SELECT pid FROM jobq.workers WHERE job_id IS NOT NULL")]


def started(since, jobs):
    wait_for("count(*) = %d FROM bench.started" % jobs, "the jobs to run again", 30, 0.01)
    return 1000 * (float(value("SELECT extract(epoch FROM max(at)) FROM bench.started")) - since)


def terminated():
    pid = running(1)[0]
    since = time.time()
    os.kill(pid, signal.SIGTERM)
    return started(since, 1)


def crashed():
    """One of four workers is killed: ms until the server lets in a client, and until the
    jobs of the other three run again."""
    victim = running(4)[0]
    leave()
    since = time.time()
    os.kill(victim, signal.SIGKILL)
    while subprocess.run(["psql", "-XAtqc", "SELECT"], stderr=subprocess.DEVNULL).returncode != 0:
        time.sleep(0.01)
    client = 1000 * (time.time() - since)
    wait_for_server()
    jobs = started(since, 3)
    sql("SELECT count(jobq.cancel(id)) FROM jobq_internal.job WHERE kind = 'linger'")
    return client, jobs


def run(report):
    WORKERS.create()
    sql(HANDLER)
    sql("SELECT count(jobq.create_queue('rated ' || i, rate => '1000 per second')) FROM generate_series(1, 100) i")
    sql("SELECT count(jobq.enqueue('noop')) FROM generate_series(1, %d)" % pick(50000, 500000))
    wait_for_end()
    paused_queue("waiting")
    sql("SELECT count(jobq.enqueue('noop', queue => 'waiting')) FROM generate_series(1, %d)" % pick(100000, 1000000))
    lone = [terminated() for _ in range(pick(20, 50, 200))]
    for percent in 50, 99:
        report.single("a worker is terminated: p%d" % percent, "ms", percentile(lone, percent))
    client, jobs = zip(*(crashed() for _ in range(pick(2, 5, 20))))
    report.single("a worker crashes: until the server lets in a client, median", "ms", percentile(client, 50))
    report.single("a worker crashes: until its neighbours' jobs run again, median", "ms", percentile(jobs, 50))
    report.single("the jobs / the client, median", "x", percentile([j / c for j, c in zip(jobs, client)], 50))
    report.target("ms from a worker's death until its job runs again, median", percentile(lone, 50), 50, False)
