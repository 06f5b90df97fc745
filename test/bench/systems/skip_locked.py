"""The hand-written queue: FOR UPDATE SKIP LOCKED, with pgbench as its client.

Of the variants tried with a status column (a partial index, an index on the
status, a fillfactor of 100) this one was the fastest: no index but the primary
key, and room on each page so that the update of the status is HOT.  Its
clients get the ids only, run no handler, and keep no archive, all of which
flatters it.  The variant that deletes at once has no status: whoever takes a
job must do it before the commit, and only then it is gone.
"""

from contextlib import contextmanager

from clients import pick_up
from lib import number, pgbench, sql
from systems.base import CLIENTS, System, payload, pgbench_working

NEXT = "SELECT id FROM bench.queue %s ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED"
CLAIM = ("WITH claimed AS (UPDATE bench.queue SET status = 'r' WHERE id IN ("
         + NEXT.replace("%s", "WHERE status = 'w'") + ") RETURNING id) "
         "SELECT coalesce(array_agg(id), '{}') AS ids FROM claimed \\gset\n")
WORK = {"writes": "SELECT count(bench.three_writes(id)) FROM unnest(:ids::bigint[]) id;\n",
        "sleep": "SELECT pg_sleep(0.005);\n",		# these two are for one job a round
        "compute": "SELECT bench.compute();\n"}
ARCHIVE = ("WITH done AS (DELETE FROM bench.queue WHERE id = ANY (:ids::bigint[]) RETURNING *) "
           "INSERT INTO bench.archive SELECT * FROM done;\n")
DELETE = "DELETE FROM bench.queue WHERE id = ANY (:ids::bigint[]);\n"
TAKE = ("WITH taken AS (DELETE FROM bench.queue WHERE id IN ("
        + NEXT.replace("%s", "") + ") RETURNING id) "
        "SELECT coalesce(array_agg(id), '{}') AS ids FROM taken \\gset\n")


class SkipLocked(System):
    empty = "NOT EXISTS (SELECT FROM bench.queue)"
    finished = "SELECT pg_stat_get_tuples_deleted('bench.queue'::regclass)"
    tables = "SELECT oid FROM pg_class WHERE oid IN ('bench.queue'::regclass, to_regclass('bench.archive'))"

    def __init__(self, batch, at_once=False, archive=False, clients=CLIENTS):
        self.batch, self.at_once, self.archive, self.clients = batch, at_once, archive, clients
        self.name = "SKIP LOCKED, %s, %s%s" % (
            "one by one" if batch == 1 else "%d at a time" % batch,
            "deleted at once" if at_once else "status column",
            ", archive row" if archive else "")
        self.settings = "pgbench, %d connections; no handler; %s" % (
            clients, "archive kept" if archive else "no archive")

    def create(self):
        super().create()
        sql("""CREATE TABLE bench.queue (
                   id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
                   status "char" NOT NULL DEFAULT 'w',
                   enqueued_at timestamptz NOT NULL DEFAULT now(),
                   kind text NOT NULL DEFAULT 'noop',
                   payload jsonb NOT NULL) WITH (fillfactor = %d)"""
            % (100 if self.at_once else 50))
        if self.archive:
            sql("CREATE TABLE bench.archive (LIKE bench.queue, "
                "finished_at timestamptz DEFAULT now(), PRIMARY KEY (id))")

    def fill(self, kind, jobs):
        sql("INSERT INTO bench.queue (kind, payload) SELECT '%s', %s "
            "FROM generate_series(1, %d) i" % (kind, payload(kind), jobs))

    def prepare(self, kind, jobs):
        self.create()
        self.fill(kind, jobs)
        self.settle()

    def script(self, kind):
        """Two commits a round, as the work is between them, or one."""
        if self.at_once:
            take = TAKE % self.batch
            return take if kind == "noop" else "BEGIN;\n" + take + WORK[kind] + "COMMIT;\n"
        claim = CLAIM % self.batch
        delete = ARCHIVE if self.archive else DELETE
        if kind == "noop":
            return claim + delete
        return claim + "BEGIN;\n" + WORK[kind] + delete + "COMMIT;\n"

    def pgbench(self, kind, **how):
        before = number("SELECT count(*) FROM bench.queue")
        result = pgbench(self.script(kind), self.clients, **how)
        done = before - number("SELECT count(*) FROM bench.queue")
        return result["tps"] / result["transactions"] * done

    def drain(self, kind, jobs):
        self.prepare(kind, jobs)
        self.prepared()
        return self.pgbench(kind, rounds=jobs // self.batch // self.clients)

    def rate(self, kind, seconds):
        self.prepare(kind, 20000 * seconds)
        return self.pgbench(kind, seconds=seconds)

    @contextmanager
    def working(self, kind):
        with pgbench_working(self.script(kind), self.clients):
            yield

    send = ("WITH sent AS (INSERT INTO bench.queue (payload) VALUES (to_jsonb(%s::text))) "
            "SELECT pg_notify('bench', '')")
    other = send % "'-'"

    def capacity(self):
        """One consumer, which ends each job by a commit."""
        return min(super().capacity(), SkipLocked(1, clients=1).rate("noop", 1))

    def pick_up(self, count, folder, load=0):
        """LISTEN in C, then a query, which takes all that is there."""
        self.prepare("noop", 0)
        with self.loaded(load):
            return pick_up(
                folder, count, self.send % "$1",
                "WITH claimed AS (UPDATE bench.queue SET status = 'r' WHERE id IN (%s) "
                "RETURNING id, payload) SELECT payload #>> '{}', "
                "format('DELETE FROM bench.queue WHERE id = %%s', id) FROM claimed"
                % (NEXT % ("WHERE status = 'w'", 100)), "bench")
