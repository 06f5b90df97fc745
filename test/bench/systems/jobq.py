"""jobq: in its workers, and reserved by clients."""

import time
from contextlib import contextmanager

from clients import pick_up, rounds
from lib import (BenchError, flush, number, pgbench, set_config, sql, value, wait_for)
from systems.base import CLIENTS, System, payload, pgbench_working
from systems.node import Workers, node_missing

KINDS = """
    CREATE FUNCTION bench.noop(payload jsonb) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
    CREATE FUNCTION bench.stamp(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        now timestamptz := clock_timestamp();
    BEGIN
        INSERT INTO bench.started VALUES ((payload ->> 'i')::int, now);
    END $$;
    CREATE FUNCTION bench.writes(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM bench.three_writes((payload ->> 'i')::bigint);
    END $$;
    CREATE FUNCTION bench.noop_set(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
    CREATE FUNCTION bench.writes_set(jobs jobq.job_context[]) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        ns bigint[] := ARRAY(SELECT (j.payload ->> 'i')::bigint FROM unnest(jobs) j);
    BEGIN
        INSERT INTO bench.entry (n, note) SELECT n, 'made by a job' FROM unnest(ns) n;
        UPDATE bench.account a SET balance = a.balance + s.more
            FROM (SELECT n % 10000 AS id, count(*) AS more FROM unnest(ns) n GROUP BY 1) s WHERE a.id = s.id;
        INSERT INTO bench.log (n) SELECT n FROM unnest(ns) n;
    END $$;
    CREATE FUNCTION bench.sleep() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(0.005);
    END $$;
"""
REGISTER = """
    SELECT jobq.register(kind, format('bench.%s', handler))
      FROM (VALUES ('noop', 'noop(jsonb)'), ('stamp', 'stamp(jsonb)'), ('writes', 'writes(jsonb)'),
                   ('sleep', 'sleep()'), ('compute', 'compute()')) k (kind, handler);
    SELECT jobq.register(kind, format('bench.%s_set(jobq.job_context[])', substr(kind, 5)), chunk => 500)
      FROM unnest('{set_noop,set_writes}'::text[]) kind
"""
TABLES = "SELECT oid FROM pg_class WHERE relnamespace = 'jobq_internal'::regnamespace AND relkind = 'r'"


def paused_queue(name):
    sql("SELECT jobq.create_queue('%s', open => true)" % name)
    sql("SELECT jobq.pause('%s')" % name)


EMPTY = "NOT EXISTS (SELECT FROM jobq_internal.job)"


def wait_for_job(job, timeout=240):
    """Until this one is over.  Within the server: to ask from here as often takes more of a processor."""
    sql("DO $$ BEGIN WHILE EXISTS (SELECT FROM jobq_internal.job WHERE id = %s) AND clock_timestamp() < now() + interval '%d s' "
        "LOOP PERFORM pg_sleep(0.005); END LOOP; END $$" % (job, timeout))


def wait_for_end(ended=EMPTY, timeout=240):
    """Until all jobs are over.  First for the last one, by its id: who looks at all walks over all dead
    rows, and takes a processor from those that are measured."""
    last = value("SELECT max(id) FROM jobq_internal.job")
    if last:
        wait_for_job(last, timeout)
    wait_for(ended, "the last job", timeout, 0.02)


class Jobq(System):
    queue = "default"
    empty = EMPTY
    finished = "SELECT pg_stat_get_tuples_deleted('jobq_internal.job'::regclass)"
    tables = TABLES

    def version(self):
        return "jobq " + value("SELECT extversion FROM pg_extension WHERE extname = 'jobq'")

    def create(self):
        sql("DROP EXTENSION IF EXISTS jobq CASCADE")
        super().create()
        sql("CREATE EXTENSION jobq")
        sql(KINDS)
        sql(REGISTER)
        sql("SELECT jobq.enqueue('noop')")
        wait_for("count(*) = 0 FROM jobq_internal.job", "the first job", 30, 0.05)

    def fill(self, kind, jobs, queue=None, options=""):
        for n in range(0, jobs, 200000):
            sql("SELECT count(*) FROM jobq.enqueue_many('%s', (SELECT array_agg(%s) "
                "FROM generate_series(1, %d) i), queue => '%s'%s)"
                % (kind, payload(kind), min(jobs - n, 200000), queue or self.queue, options))


class InWorkers(Jobq):
    """Its jobs are functions that jobq's own workers call."""

    name = "jobq, in workers"
    settings = "defaults: 4 workers; archive kept; jobs flushed in the background"
    kept = 1

    def drain(self, kind, jobs):
        self.create()
        sql("SELECT jobq.pause('default')")
        self.fill(kind, jobs)
        sql("CHECKPOINT")
        self.prepared()
        begun = time.monotonic()
        sql("SELECT jobq.resume('default')")
        wait_for_end()
        flush()
        rate = jobs / (time.monotonic() - begun)
        if number("SELECT count(*) FROM jobq_internal.archive") < jobs * self.kept:
            raise BenchError("jobs are missing from the archive")
        return rate

    def rate(self, kind, seconds):
        self.create()
        sql("SELECT jobq.pause('default')")
        self.fill(kind, 2000 * seconds)
        count = "SELECT count(*) FROM jobq_internal.job"
        sql("SELECT jobq.resume('default')")
        time.sleep(0.2)
        left, begun = number(count), time.monotonic()
        time.sleep(seconds)
        done = left - number(count)
        return done / (time.monotonic() - begun)

    @contextmanager
    def working(self, kind):
        yield

    other = "SELECT jobq.enqueue('noop', %s)" % payload("noop")

    def pick_up(self, count, folder, load=0):
        self.create()
        with self.loaded(load):
            sent, _ = rounds(folder, count,
                             "SELECT jobq.enqueue('stamp', jsonb_build_object('i', $1::text))")
        wait_for("count(*) = %d FROM bench.started" % count, "the last job", 10)
        return sent, dict((int(i), int(at)) for i, at in (line.split("|") for line in sql(
            "SELECT i, (extract(epoch FROM at) * 1000000)::bigint FROM bench.started")))


class KeepingNothing(InWorkers):
    """As the systems do that delete what is done."""

    name = "jobq, in workers, keep => 'nothing'"
    settings = "4 workers; no archive; jobs flushed in the background"
    kept = 0

    def create(self):
        super().create()
        sql("SELECT jobq.alter_queue('default', keep => 'nothing')")


class Synchronous(InWorkers):
    name = "jobq, in workers, jobq.synchronous_commit = on"
    settings = "4 workers; archive kept; each job's commit flushed"

    def drain(self, kind, jobs):
        set_config(jobq__synchronous_commit="on")
        try:
            return super().drain(kind, jobs)
        finally:
            set_config(jobq__synchronous_commit=None)


class Reserved(Jobq):
    """Programs outside take its jobs with reserve() and ack()."""

    queue = "outside"
    script = ("SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens "
              "FROM jobq.reserve('{outside}', %d, wait => '%s') \\gset\n"
              "SELECT jobq.ack_many(:ids::bigint[], :tokens::bigint[]);\n")
    writes = ("BEGIN;\n"
              "SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens, "
              "count(bench.three_writes((payload ->> 'i')::bigint)) AS n "
              "FROM jobq.reserve('{outside}', %d) \\gset\n"
              "SELECT jobq.ack_many(:ids::bigint[], :tokens::bigint[]);\n"
              "COMMIT;\n")

    def __init__(self, batch, keep="all", clients=CLIENTS):
        self.batch, self.keep, self.clients = batch, keep, clients
        self.name = "jobq, reserved by clients, " + (
            "one by one" if batch == 1 else "%d at a time" % batch) + (
            "" if keep == "all" else ", keep => '%s'" % keep)
        self.settings = "pgbench, %d connections; durable leases; %s" % (
            clients, "archive kept" if keep == "all" else "no archive")

    def create(self):
        super().create()
        sql("SELECT jobq.create_queue('outside', mode => 'consumer', keep => '%s')" % self.keep)

    def prepare(self, kind, jobs):
        self.create()
        self.fill(kind, jobs)
        # waiting jobs are read into memory at the request of the first client
        sql("SELECT jobq.enqueue('noop', queue => 'outside', priority => -1)")
        sql("SELECT jobq.ack(id, token) FROM jobq.reserve('{outside}', wait => '10s')")
        self.settle()

    def pgbench(self, kind, **how):
        before = number("SELECT count(*) FROM jobq_internal.job")
        script = self.writes % self.batch if kind == "writes" else self.script % (self.batch, "1s")
        result = pgbench(script, self.clients, **how)
        done = before - number("SELECT count(*) FROM jobq_internal.job")
        return result["tps"] / result["transactions"] * done

    def drain(self, kind, jobs):
        self.prepare(kind, jobs)
        self.prepared()
        return self.pgbench(kind, rounds=jobs // self.batch // self.clients)

    def rate(self, kind, seconds):
        self.prepare(kind, 30000 * seconds)
        return self.pgbench(kind, seconds=seconds)

    @contextmanager
    def working(self, kind):
        with pgbench_working(self.script % (self.batch, "1s"), self.clients):
            yield

    other = "SELECT jobq.enqueue('noop', to_jsonb('-'::text), 'outside')"

    def capacity(self):
        """One consumer, which ends each job by a commit."""
        return min(super().capacity(), Reserved(1, clients=1).rate("noop", 1))

    def pick_up(self, count, folder, load=0):
        self.create()
        with self.loaded(load):
            return pick_up(folder, count,
                           "SELECT jobq.enqueue('noop', to_jsonb($1::text), 'outside')",
                           "SELECT payload #>> '{}', format('SELECT jobq.ack(%s, %s)', id, token) "
                           "FROM jobq.reserve('{outside}', 100, wait => '10s')")


class ReservedInNode(Reserved):
    """The same with clients in Node, as the other systems have them."""

    peer = True			# it needs Node, as they do

    def __init__(self, batch=1000, processes=2, connections=2):
        super().__init__(batch)
        self.name = "jobq, reserved by clients in Node, %d at a time" % batch
        self.processes = processes
        self.options = {"connections": connections, "batch": batch}
        self.settings = ("%d Node processes with %d connections each; durable leases; archive kept"
                         % (processes, connections))

    def missing(self):
        return node_missing("pg")

    def workers(self):
        return Workers("jobq.mjs", "work", self.options, processes=self.processes)

    def drain(self, kind, jobs):
        self.prepare(kind, jobs)
        with self.workers() as workers:
            self.prepared()
            return workers.drain(jobs, self.empty)

    def rate(self, kind, seconds):
        self.prepare(kind, 30000 * seconds)
        with self.workers() as workers:
            return workers.rate(seconds)

    @contextmanager
    def working(self, kind):
        with self.workers() as workers:
            workers.go()
            yield
