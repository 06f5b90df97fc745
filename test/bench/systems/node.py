"""Workers in Node: graphile-worker, pg-boss, and consumers of jobq."""

import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager

from clients import rounds
from lib import BenchError, number, sql, value, wait_for
from systems.base import System, payload

HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers")
MODULES = os.path.join(os.environ.get("JOBQ_PEERS", "/nonexistent"), "node_modules")
NODE = os.path.join(MODULES, "node", "bin", "node")


def node_missing(module):
    """Why a module cannot be used, or None."""
    for what, path in (("Node 22", NODE), (module, os.path.join(MODULES, module))):
        if not os.path.exists(path):
            return "%s is not installed: see the messages of test/bench/install-peers" % what
    # modules are found beside the importing file
    link = os.path.join(HERE, "node_modules")
    if not os.path.lexists(link):
        os.symlink(MODULES, link)
    return None


def module_version(module):
    with open(os.path.join(MODULES, module, "package.json")) as f:
        return "%s %s" % (module, json.load(f)["version"])


def command(script, *args):
    return [NODE, os.path.join(HERE, script)] + [
        a if isinstance(a, str) else json.dumps(a) for a in args]


def run(script, *args):
    done = subprocess.run(command(script, *args), text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip()[-2000:])
    return done.stdout


class Process:
    """One of peers/*.mjs that is running; what it tells is kept."""

    def __init__(self, script, *args):
        self.process = subprocess.Popen(
            command(script, *args), text=True, bufsize=1, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.begun, self.told, self.lines, self.errors = None, [], [], []
        self.news = threading.Condition()
        for read in (self.read, self.read_errors):
            threading.Thread(target=read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            word, *rest = line.split()
            with self.news:
                if word in ("going", "first"):
                    self.begun = min(int(rest[0]), self.begun or int(rest[0]))
                elif word == "n":
                    self.told.append((int(rest[0]), int(rest[1])))
                else:
                    self.lines.append(line.strip())
                self.news.notify()
        with self.news:
            self.lines.append(None)
            self.news.notify()

    def read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def say(self, line):
        self.process.stdin.write(line + "\n")

    def expect(self, last, timeout=60):
        """The lines up to and without this one."""
        end = time.monotonic() + timeout
        with self.news:
            while last not in self.lines:
                if None in self.lines or not self.news.wait(end - time.monotonic()):
                    raise BenchError("no '%s': %s" % (last, "".join(self.errors)[-2000:]))
            at = self.lines.index(last)
            lines, self.lines = self.lines[:at], self.lines[at + 1:]
            return lines

    def count(self):
        return self.told[-1][0] if self.told else 0

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Workers:
    """Processes that work when they are told to."""

    def __init__(self, script, *args, processes=1):
        self.processes = [Process(script, *args) for _ in range(processes)]

    def __enter__(self):
        for p in self.processes:
            p.expect("ready")
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.close()

    def go(self):
        for p in self.processes:
            p.say("go")

    def wait_until_going(self, timeout=30):
        end = time.monotonic() + timeout
        while not all(p.begun for p in self.processes):
            self.count()
            if time.monotonic() > end:
                raise BenchError("the workers did not begin within %d s" % timeout)
            time.sleep(0.01)

    def count(self):
        for p in self.processes:
            if p.process.poll() is not None:
                raise BenchError("a worker ended: " + "".join(p.errors)[-2000:])
        return sum(p.count() for p in self.processes)

    def drain(self, jobs, empty, timeout=120):
        """Jobs per second from when a process is connected until all are gone."""
        self.go()
        end = time.monotonic() + timeout
        while self.count() < jobs:
            if time.monotonic() > end:
                raise BenchError("%d of %d jobs within %d s" % (self.count(), jobs, timeout))
            time.sleep(0.002)
        wait_for(empty, "the end of the drain", 20, 0.002)
        begun = min(p.begun for p in self.processes if p.begun)
        return jobs / (time.time() - begun / 1e6)

    def rate(self, seconds, warm_up=1.5):
        self.go()
        time.sleep(warm_up)
        before, begun = self.count(), time.monotonic()
        time.sleep(seconds)
        done, took = self.count() - before, time.monotonic() - begun
        if done == 0:
            raise BenchError("no job was run: " + "".join(
                "".join(p.errors) for p in self.processes)[-2000:])
        return done / took

    def stamps(self):
        """When each job began, by its number."""
        begun = {}
        for p in self.processes:
            p.say("stamps")
            for line in p.expect("end"):
                if line.startswith("r "):
                    _, i, at = line.split()
                    begun[int(i)] = int(at)
        return begun


class NodeSystem(System):
    peer = True
    module = script = schema = job = ""
    processes = 1

    def missing(self):
        return node_missing(self.module)

    def version(self):
        return "%s, Node %s" % (module_version(self.module), module_version("node").split()[1])

    def create(self):
        super().create()
        if value("SELECT to_regnamespace('%s') IS NULL" % self.schema) == "t":
            run(self.script, "create")
        sql("TRUNCATE %s.%s" % (self.schema, self.job))

    def workers(self, kind):
        raise NotImplementedError

    def drain(self, kind, jobs):
        self.create()
        self.fill(kind, jobs)
        self.settle()
        with self.workers(kind) as workers:
            self.prepared()
            return workers.drain(jobs, self.empty)

    def rate(self, kind, seconds):
        self.create()
        self.fill(kind, self.backlog(seconds))
        self.settle()
        with self.workers(kind) as workers:
            return workers.rate(seconds)

    def backlog(self, seconds):
        return 20000 * (seconds + 1)

    @contextmanager
    def working(self, kind):
        with self.workers(kind) as workers:
            workers.go()
            yield
            workers.count()

    def pick_up(self, count, folder, load=0):
        self.create()
        with self.loaded(load), self.workers("stamp") as workers:
            workers.go()
            workers.wait_until_going()
            time.sleep(1)		# until each of them listens, which they do not tell
            sent = self.send(count, folder)
            end = time.monotonic() + 10
            begun = workers.stamps()
            while len(begun) < count and time.monotonic() < end:
                time.sleep(0.1)
                begun.update(workers.stamps())
            return sent, begun


class GraphileWorker(NodeSystem):
    module, script = "graphile-worker", "graphile-worker.mjs"
    schema, job = "graphile_worker", "_private_jobs"
    empty = "NOT EXISTS (SELECT FROM graphile_worker._private_jobs)"
    finished = "SELECT pg_stat_get_tuples_deleted('graphile_worker._private_jobs'::regclass)"
    tables = ("SELECT oid FROM pg_class WHERE relnamespace = 'graphile_worker'::regnamespace "
              "AND relkind = 'r'")

    def __init__(self, title, options, processes=1):
        self.name = "graphile-worker, " + title
        self.options, self.processes = options, processes
        self.settings = "%d process%s, %s" % (
            processes, "" if processes == 1 else "es",
            ", ".join("%s: %s" % (k, json.dumps(v).strip('"')) for k, v in options.items())
            or "no settings")

    def workers(self, kind):
        return Workers(self.script, "work", self.options, processes=self.processes)

    def fill(self, kind, jobs):
        for n in range(0, jobs, 100000):
            sql("SELECT count(*) FROM graphile_worker.add_jobs((SELECT array_agg("
                "('%s', %s, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec) "
                "FROM generate_series(1, %d) i))"
                % (kind, payload(kind).replace("::jsonb", "") if kind == "noop"
                   else payload(kind) + "::json", min(jobs - n, 100000)))

    other = "SELECT graphile_worker.add_job('noop', %s)" % payload("noop").replace("::jsonb", "")

    def send(self, count, folder):
        return rounds(folder, count, "SELECT graphile_worker.add_job('stamp', "
                      "json_build_object('i', $1::text))")[0]


class PgBoss(NodeSystem):
    module, script, schema, job = "pg-boss", "pg-boss.mjs", "pgboss", "job"
    empty = "NOT EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')"
    # each job is updated twice: by fetch and by completion
    finished = "SELECT pg_stat_get_tuples_updated('pgboss.job_common'::regclass) / 2"
    tables = "SELECT oid FROM pg_class WHERE relnamespace = 'pgboss'::regnamespace AND relkind = 'r'"
    filler = None

    def __init__(self, title, boss, work, processes=1):
        self.name = "pg-boss, " + title
        self.boss, self.options, self.processes = boss, work, processes
        self.settings = "%d process%s, %s" % (
            processes, "" if processes == 1 else "es",
            ", ".join("%s: %s" % (k, json.dumps(v)) for k, v in {**boss, **work}.items())
            or "no settings")

    def workers(self, kind):
        return Workers(self.script, "work", self.boss, self.options, kind,
                       *(["noop"] if kind == "stamp" else []), processes=self.processes)

    def fill(self, kind, jobs):
        if PgBoss.filler is None:
            PgBoss.filler = Process(self.script, "fill")
        PgBoss.filler.say("%s %d" % (kind, jobs))
        PgBoss.filler.expect("filled")

    @contextmanager
    def loaded(self, load):
        if load == 0:
            yield
            return
        sender = Process(self.script, "load", "noop", str(load))
        try:
            sender.expect("sending")
            yield
        finally:
            sender.close()

    def send(self, count, folder):
        return dict((int(i), int(at)) for _, i, at in (
            line.split() for line in run(self.script, "send", "stamp", str(count), "10").splitlines()))
