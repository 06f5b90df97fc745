"""What every system offers to the workloads."""

import subprocess
from contextlib import contextmanager

from lib import BenchError, PAYLOAD, number, pgbench, pgbench_command, sql

CLIENTS = 4				# as many as jobq has workers by default
LOADERS = 2				# who enqueue while something else is measured

# The handlers; SQL for systems with handlers in the server or in calls of the
# server.
HANDLERS = """
    DROP SCHEMA IF EXISTS bench CASCADE;
    CREATE SCHEMA bench;
    CREATE TABLE bench.entry (n bigint, at timestamptz DEFAULT now(), note text);
    CREATE TABLE bench.log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint);
    CREATE TABLE bench.account (id bigint PRIMARY KEY, balance bigint) WITH (fillfactor = 50);
    INSERT INTO bench.account SELECT i, 0 FROM generate_series(0, 9999) i;
    CREATE TABLE bench.started (i int, at timestamptz);
    CREATE FUNCTION bench.three_writes(n bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO bench.entry (n, note) VALUES (n, 'made by a job');
        UPDATE bench.account SET balance = balance + 1 WHERE id = three_writes.n % 10000;
        INSERT INTO bench.log (n) VALUES (n);
    END $$;
    CREATE FUNCTION bench.loop(rounds int) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        FOR i IN 1 .. rounds LOOP END LOOP;
    END $$;
"""
COMPUTE_MS = 2
_rounds_per_ms = None


def create_compute():
    """A function that uses so much CPU time, however many run at a time."""
    global _rounds_per_ms
    if _rounds_per_ms is None:
        _rounds_per_ms = max(100000 / number(
            "WITH a AS MATERIALIZED (SELECT clock_timestamp() AS t), "
            "b AS MATERIALIZED (SELECT t, bench.loop(100000) FROM a) "
            "SELECT 1000 * extract(epoch FROM clock_timestamp() - t) FROM b") for _ in range(5))
    sql("CREATE FUNCTION bench.compute() RETURNS void LANGUAGE plpgsql AS "
        "'BEGIN FOR i IN 1 .. %d LOOP END LOOP; END'" % (COMPUTE_MS * _rounds_per_ms))


def payload(kind):
    """An expression for the payload of job i: 100 bytes of text."""
    if kind in ("noop", "set_noop"):
        return PAYLOAD
    return "jsonb_build_object('i', i, 'pad', repeat('x', 80))"


class System:
    name = ""			# in tables
    settings = ""		# what was set, for the notes
    peer = False		# somebody else's: the measurements go on without it
    empty = ""			# SQL condition: no job waits or runs
    finished = ""		# SQL: how many jobs have ended, whatever the snapshot
    tables = ""			# SQL: the oids of its tables
    producers = 2		# that fill at a time, where it must not run dry

    def missing(self):
        """Why it cannot be measured, or None."""
        return None

    def version(self):
        return ""

    def create(self):
        """Empty tables, and nothing that runs."""
        sql(HANDLERS)
        create_compute()

    def fill(self, kind, jobs):
        """Enqueue jobs of a kind in bulk."""
        raise NotImplementedError

    def settle(self):
        """Have statistics and clean pages, as tables in use do."""
        for table in sql("SELECT oid::regclass FROM pg_class WHERE oid IN (%s)" % self.tables):
            sql("VACUUM ANALYZE " + table)
        sql("CHECKPOINT")

    def prepared(self):
        """Called by drain() when all is set up and the work is about to begin."""

    def drain(self, kind, jobs):
        """Jobs per second from the first job on until a backlog is done."""
        raise NotImplementedError

    def rate(self, kind, seconds):
        """Jobs per second of a backlog that does not run out."""
        raise NotImplementedError

    @contextmanager
    def working(self, kind):
        """Workers are there and work."""
        raise NotImplementedError
        yield

    def pick_up(self, count, folder, load=0):
        """When each job's commit had returned, and when it began.

        load: so many jobs a second that do nothing are enqueued besides."""
        raise NotImplementedError

    other = ""			# a statement that enqueues one of those

    def capacity(self):
        """How many a second can be enqueued so, and be taken in pick_up()."""
        self.create()
        return pgbench(self.other + ";\n", LOADERS, seconds=1)["tps"]

    @contextmanager
    def loaded(self, load):
        with pgbench_working(self.other + ";\n", LOADERS, load):
            yield


@contextmanager
def pgbench_working(script, clients=CLIENTS, rate=None):
    """pgbench runs a script for as long as this lasts, so often a second."""
    if rate == 0:
        yield
        return
    running = subprocess.Popen(
        pgbench_command(clients, 3600) + (["-R", str(rate)] if rate else []),
        text=True, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        running.stdin.write(script)
        running.stdin.close()
        yield
        if running.poll() is not None:
            raise BenchError(running.stderr.read()[-2000:] or "pgbench ended")
    finally:
        running.terminate()
        running.wait()
