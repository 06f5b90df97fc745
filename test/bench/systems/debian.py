"""PgQ and pg_cron, from Debian's packages.

They are copied into the private server, which the benchmarks may write to.
"""

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

from clients import pick_up
from lib import BenchError, number, pgbench, restart, sql, value, wait_for
from systems.base import System, payload, pgbench_working

DEBIAN = os.path.join(os.environ.get("JOBQ_PEERS", "/nonexistent"), "debian")


def server_folder(option):
    return subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), option],
                          text=True, capture_output=True, check=True).stdout.strip()


def package_version(suffix):
    """The version of the package whose name ends so."""
    with open(os.path.join(DEBIAN, "versions")) as f:
        words = f.read().split()
    return words[next(i for i, w in enumerate(words) if w.endswith(suffix)) + 2]


def missing(extension):
    """Put Debian's files into the server; why it cannot be used, or None."""
    major = value("SELECT current_setting('server_version_num')::int / 10000")
    parts = [("usr/lib/postgresql/%s/lib" % major, server_folder("--pkglibdir")),
             ("usr/share/postgresql/%s" % major, server_folder("--sharedir"))]
    control = os.path.join(DEBIAN, parts[1][0], "extension", extension + ".control")
    if not os.path.exists(control):
        return "not installed: see the messages of test/bench/install-peers"
    # not twice: sessions may have the libraries mapped
    if not os.path.exists(os.path.join(parts[1][1], "extension", extension + ".control")):
        for source, target in parts:
            shutil.copytree(os.path.join(DEBIAN, source), target, dirs_exist_ok=True)
    return None


class PgQ(System):
    """A log that is read in batches: it keeps no state per event."""

    name, peer = "PgQ", True
    tick = 0.1
    script = ("SELECT coalesce(pgq.next_batch('bench', 'bench'), 0) AS batch \\gset\n"
              "\\if :batch > 0\n"
              "SELECT ev_id, ev_data FROM pgq.get_batch_events(:batch);\n"
              "SELECT pgq.finish_batch(:batch);\n"
              "\\else\n"
              "\\sleep 5 ms\n"
              "\\endif\n")
    settings = ("pgqd with ticker_period %g s, ticker_max_count 5000; pgbench, 1 connection, as a "
                "consumer has one; a batch is finished as a whole, there is no state per event" % tick)
    tables = "SELECT oid FROM pg_class WHERE relnamespace = 'pgq'::regnamespace AND relkind = 'r'"
    producers = 1				# ticks are not to be made by two at a time
    # a forced tick counts 11,001 nonexistent events, one tick for each 5,000 real
    # events
    finished = ("SELECT coalesce((SELECT t.tick_event_seq * 5000 / 16001 FROM pgq.subscription s "
                "JOIN pgq.tick t ON t.tick_id = s.sub_last_tick AND t.tick_queue = s.sub_queue), 0)")

    def missing(self):
        why = missing("pgq")
        if why is None and not os.access(os.path.join(DEBIAN, "usr/bin/pgqd"), os.X_OK):
            why = "pgqd is not installed: see the messages of test/bench/install-peers"
        return why

    def version(self):
        return "PgQ " + package_version("-pgq3")

    def create(self):
        super().create()
        sql("DROP EXTENSION IF EXISTS pgq CASCADE; CREATE EXTENSION pgq")
        sql("SELECT pgq.create_queue('bench'); SELECT pgq.register_consumer('bench', 'bench')")
        sql("SELECT pgq.set_queue_config('bench', 'ticker_max_count', '5000')")
        sql("SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '%g seconds')" % self.tick)

    def fill(self, kind, jobs):
        """Events of one transaction are one batch, so some transactions."""
        for n in range(0, jobs, 5000):
            sql("SELECT count(pgq.insert_event('bench', '%s', %s::text)) FROM generate_series(1, %d) i"
                % (kind, payload(kind), min(jobs - n, 5000)))
            sql("SELECT pgq.force_tick('bench'); SELECT pgq.ticker('bench')")

    @contextmanager
    def ticker(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "pgqd.ini")
            with open(config, "w") as f:
                f.write("[pgqd]\nlogfile = %s/log\npidfile = %s/pid\ndatabase_list = %s\n"
                        "initial_database = %s\nticker_period = %g\ncheck_period = 1\n"
                        % (folder, folder, os.environ["PGDATABASE"], os.environ["PGDATABASE"], self.tick))
            daemon = subprocess.Popen([os.path.join(DEBIAN, "usr/bin/pgqd"), "-q", config])
            try:
                last = value("SELECT max(tick_id) FROM pgq.tick")
                wait_for("max(tick_id) > %s FROM pgq.tick" % last, "a tick of pgqd", 20, 0.05)
                yield
            finally:
                daemon.terminate()
                daemon.wait()

    def drain(self, kind, jobs):
        self.create()
        self.fill(kind, jobs)
        self.settle()
        self.prepared()
        batches = int(number("SELECT count(*) - 1 FROM pgq.tick"))
        result = pgbench(self.script, 1, rounds=batches)
        done = number(self.finished)
        if done < jobs:
            raise BenchError("%d of %d events were read" % (done, jobs))
        return jobs / result["transactions"] * result["tps"]

    other = "SELECT pgq.insert_event('bench', 'noop', '-')"

    def pick_up(self, count, folder, load=0):
        self.create()
        sql("""CREATE FUNCTION bench.take() RETURNS TABLE (i text, done text) LANGUAGE plpgsql AS $$
               DECLARE
                   batch bigint := pgq.next_batch('bench', 'bench');
               BEGIN
                   IF batch IS NULL THEN
                       PERFORM pg_sleep(0.002);
                   ELSE
                       RETURN QUERY SELECT e.ev_data, NULL FROM pgq.get_batch_events(batch) e;
                       PERFORM pgq.finish_batch(batch);
                   END IF;
               END $$""")
        with self.ticker(), self.loaded(load):
            return pick_up(folder, count, "SELECT pgq.insert_event('bench', 'noop', $1)",
                           "SELECT * FROM bench.take()")

    @contextmanager
    def working(self, kind):
        with self.ticker(), pgbench_working(self.script, 1):
            yield


class PgCron(System):
    """A process for each run of a job, at full minutes."""

    name, peer = "pg_cron", True
    settings = "cron.use_background_workers = on, cron.max_running_jobs 16"

    def missing(self):
        return missing("pg_cron")

    def version(self):
        return "pg_cron " + package_version("-cron")

    @contextmanager
    def preloaded(self):
        """The server with pg_cron; without it again in the end."""
        restart(shared_preload_libraries="jobq,pg_cron")	# then its settings are known
        try:
            restart(cron__use_background_workers="on", cron__max_running_jobs="16",
                    cron__database_name=os.environ["PGDATABASE"])
            sql("CREATE EXTENSION pg_cron")
            yield
        finally:
            sql("DROP EXTENSION IF EXISTS pg_cron")
            restart(cron__use_background_workers=None, cron__max_running_jobs=None,
                    cron__database_name=None, shared_preload_libraries=None)
