"""What the workloads share: sessions, pgbench, figures, comparisons, targets."""

import os
import re
import statistics
import subprocess
import sys
import time

DISTURBED = 10			# percent of the machine that others use
patience = 20			# seconds to wait for a quiet machine, once per measurement
patience_left = 60		# and in the whole run
size = "usual"			# or "quick", or "full"


class BenchError(Exception):
    pass


def pick(quick, usual, full=None):
    """How much is measured, by the size of the run."""
    return {"quick": quick, "usual": usual, "full": usual if full is None else full}[size]


# ---------------------------------------------------------------- sessions

class Session:
    """A psql that stays connected.  run() gives back the output's lines."""

    MARK = "=== end of output ==="

    def __init__(self, **settings):
        env = dict(os.environ)
        options = " ".join("-c %s=%s" % s for s in settings.items())
        env["PGOPTIONS"] = "-c client_min_messages=warning " + options
        self.psql = subprocess.Popen(
            ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1"], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, bufsize=1)

    def run(self, sql):
        self.start(sql)
        return self.finish()

    def start(self, sql):
        """Send a statement without waiting for its result."""
        self.psql.stdin.write("%s;\n\\echo %s\n" % (sql.rstrip().rstrip(";"), self.MARK))
        self.psql.stdin.flush()

    def finish(self):
        lines = []
        while True:
            line = self.psql.stdout.readline()
            if line == "":
                raise BenchError(self.psql.stderr.read().strip() or "psql ended")
            line = line.rstrip("\n")
            if line == self.MARK:
                return lines
            lines.append(line)

    def value(self, sql):
        lines = self.run(sql)
        return lines[0] if lines else None

    def number(self, sql):
        return float(self.value(sql) or 0)

    def close(self):
        self.psql.stdin.close()
        self.psql.wait()


_session = None


def admin():
    """The session for everything that is not measured."""
    global _session
    if _session is None:
        _session = Session()
    return _session


def leave():
    """Close that session; the next use opens another."""
    global _session
    if _session is not None:
        _session.close()
        _session = None


def sql(text):
    return admin().run(text)


def value(text):
    return admin().value(text)


def number(text):
    return admin().number(text)


def set_config(**settings):
    """Change postgresql.conf settings; None sets one back."""
    for name, setting in settings.items():
        name = name.replace("__", ".")
        if setting is None:
            sql("ALTER SYSTEM RESET %s" % name)
        else:
            sql("ALTER SYSTEM SET %s = '%s'" % (name, setting))
    sql("SELECT pg_reload_conf()")
    time.sleep(0.2)


def restart(**settings):
    """The same for settings that need a restart of the server."""
    for name, setting in settings.items():
        name = name.replace("__", ".")
        if setting is None:
            sql("ALTER SYSTEM RESET %s" % name)
        else:
            # a list, as of libraries, must not become one quoted name
            sql("ALTER SYSTEM SET %s = %s" % (name, ", ".join(
                "'%s'" % part for part in str(setting).split(","))))
    leave()
    data = os.environ["PGDATA"]
    subprocess.run(["pg_ctl", "restart", "-s", "-w", "-m", "fast", "-D", data,
                    "-l", os.path.join(data, "server.log")],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)


def flush():
    """Make everything that was committed so far durable."""
    sql("SET synchronous_commit = on; SELECT pg_logical_emit_message(true, '', '')")


def wait_for(condition, what, timeout=120, interval=0.005):
    end = time.monotonic() + timeout
    while value("SELECT %s" % condition) != "t":
        if time.monotonic() > end:
            raise BenchError("%s did not happen within %d s" % (what, timeout))
        time.sleep(interval)


# ------------------------------------------------------------------- jobq

PAYLOAD = """'{"pad": "%s"}'::jsonb""" % ("x" * 88)		# 100 bytes of text


def fresh_jobq():
    """jobq with no jobs, an empty archive, and a handler that does nothing."""
    sql("DROP EXTENSION IF EXISTS jobq CASCADE")
    sql("DROP SCHEMA IF EXISTS bench CASCADE")
    sql("CREATE EXTENSION jobq")
    sql("CREATE SCHEMA bench")
    sql("CREATE FUNCTION bench.noop(payload jsonb) RETURNS void "
        "LANGUAGE plpgsql AS 'BEGIN END'")
    sql("SELECT jobq.register('noop', 'bench.noop(jsonb)')")
    sql("SELECT jobq.enqueue('noop')")
    wait_for("count(*) = 0 FROM jobq.job", "the first job", 30, 0.05)


def fill(queue, jobs, extra=""):
    """Enqueue so many jobs, in statements of at most 200,000."""
    while jobs > 0:
        n = min(jobs, 200000)
        sql("SELECT count(*) FROM jobq.enqueue_many('noop', "
            "(SELECT array_agg(%s) FROM generate_series(1, %d)), "
            "queue => '%s'%s)" % (PAYLOAD, n, queue, extra))
        jobs -= n


def paused_queue(name):
    sql("SELECT jobq.create_queue('%s')" % name)
    sql("SELECT jobq.pause('%s')" % name)


# ---------------------------------------------------------------- pgbench

def pgbench(script, clients, seconds=None, rounds=None, protocol="prepared"):
    """Run a pgbench script; gives back its result as a dict."""
    command = pgbench_command(clients, seconds, rounds, protocol)
    done = subprocess.run(command, input=script, text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip()[-2000:])
    return {
        "tps": float(re.search(r"tps = ([\d.]+)", done.stdout).group(1)),
        "latency_ms": float(re.search(r"latency average = ([\d.]+)", done.stdout).group(1)),
        "transactions": int(re.search(r"actually processed: (\d+)", done.stdout).group(1)),
    }


def pgbench_command(clients, seconds=None, rounds=None, protocol="prepared"):
    command = ["pgbench", "-n", "-M", protocol, "-c", str(clients),
               "-j", str(min(clients, 2)), "-f", "/dev/stdin"]
    if seconds is not None:
        command += ["-T", str(seconds)]
    if rounds is not None:
        command += ["-t", str(rounds)]
    return command


# ---------------------------------------------------------------- CPU use

TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    with open("/proc/%s/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[1]), [int(x) for x in fields[11:15]]


def cpu_of(pid):
    """CPU seconds that a process has used."""
    utime, stime, _, _ = _stat(pid)[1]
    return (utime + stime) / TICKS


def own_cpu():
    """CPU seconds of this program, the server, and all that they started."""
    return _own_ticks() / TICKS


def _own_ticks():
    return sum(sum(ticks) for ticks in _own_processes().values())


def _own_processes():
    """{pid: its times in ticks, and those of its children that have ended}"""
    parents, times = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[pid], times[pid] = _stat(pid)
        except (OSError, IndexError):		# it has ended
            pass
    roots = {str(os.getpid()), postmaster()}
    own = {}
    for pid, ticks in times.items():
        at = pid
        while at not in roots and at in parents:
            at = str(parents[at])
        if at in roots:
            own[pid] = ticks
    return own


def precise_cpu():
    """CPU seconds of those that still run: not in ticks, which hide what many
    processes use that do a little each."""
    total = 0
    for pid in _own_processes():
        try:
            with open("/proc/%s/schedstat" % pid) as f:
                total += int(f.read().split()[0])
        except OSError:
            pass
    return total / 1e9


def postmaster():
    with open(os.path.join(os.environ["PGDATA"], "postmaster.pid")) as f:
        return f.readline().strip()


def _busy_ticks():
    with open("/proc/stat") as f:
        fields = [int(x) for x in f.readline().split()[1:]]
    idle = fields[3] + fields[4]
    return sum(fields[:8]) - idle, sum(fields[:8])


class OtherLoad:
    """How much of the machine others use while this is measured, in percent."""

    def __init__(self):
        self.own = _own_ticks()
        self.busy, self.total = _busy_ticks()

    def percent(self):
        busy, total = _busy_ticks()
        own = _own_ticks() - self.own
        others = max(busy - self.busy - own, 0)
        return 100.0 * others / max(total - self.total, 1)


def wait_for_quiet():
    """Wait until others leave the machine alone, but not forever."""
    global patience_left
    begun = time.monotonic()
    end = begun + min(patience, patience_left)
    while True:
        load = OtherLoad()
        time.sleep(0.3)
        if load.percent() < DISTURBED or time.monotonic() > end:
            patience_left -= time.monotonic() - begun - 0.3
            return


# ---------------------------------------------------------------- figures

class Figure:
    """The measurements of one thing: values, and how disturbed each was."""

    def __init__(self, name, unit):
        self.name, self.unit = name, unit
        self.values, self.others, self.against = [], [], None

    def add(self, measured, others=0.0):
        self.values.append(measured)
        self.others.append(others)

    def median(self):
        return statistics.median(self.values)

    def as_dict(self):
        return {"name": self.name, "unit": self.unit, "median": self.median(),
                "ratio_to_hand_written": self.against,
                "low": min(self.values), "high": max(self.values),
                "values": self.values, "others_cpu_percent": self.others}


class Report:
    """What one workload has found."""

    def __init__(self, name, title):
        self.name, self.title = name, title
        self.figures, self.targets, self.notes, self.data = [], [], [], {}
        self.systems, self.absent = {}, {}

    def figure(self, name, unit):
        figure = Figure(name, unit)
        self.figures.append(figure)
        return figure

    def single(self, name, unit, measured, others=0.0):
        self.figure(name, unit).add(measured, others)

    def compare(self, repeats, systems):
        """Measure systems in turn, A B A B; {name: (unit, function)}."""
        figures = {name: self.figure(name, unit)
                   for name, (unit, _) in systems.items()}
        for _ in range(repeats):
            for name, (_, measure) in systems.items():
                wait_for_quiet()
                load = OtherLoad()
                measured = self.measure(name, measure)
                figures[name].add(measured, load.percent())
        return figures

    def measure(self, name, measure, tries=3):
        """Measure; a failure is told and measured again, a few times."""
        print("  %s: %s ..." % (self.name, name), file=sys.stderr, flush=True)
        for attempt in range(tries):
            try:
                return measure()
            except BenchError as error:
                self.note("FAILURE of %s: %s" % (name, error))
                if attempt == tries - 1:
                    raise

    def target(self, text, measured, bound, at_least):
        met = measured >= bound if at_least else measured <= bound
        self.targets.append({"text": text, "measured": measured,
                             "bound": bound, "at_least": at_least, "met": met})

    def ratio(self, text, figure, baseline, bound=None):
        """The median of the ratios, round by round, and their spread."""
        ratios = [a / b for a, b in zip(figure.values, baseline.values)]
        shown = self.figure(text, "x")
        shown.values = ratios
        shown.others = [max(a, b) for a, b in zip(figure.others, baseline.others)]
        if bound is not None:
            self.target(text, statistics.median(ratios), bound, True)

    def against(self, figures, baseline):
        """Give each figure its ratio to the baseline: the median of the rounds'."""
        for figure in figures:
            figure.against = statistics.median(
                a / b for a, b in zip(figure.values, baseline.values))

    def note(self, text):
        self.notes.append(text)

    def system(self, name, version, settings):
        """Say what a figure's system is and how it was set."""
        self.systems[name] = {"version": version, "settings": settings}

    def missing(self, name, why):
        self.absent[name] = why

    def as_dict(self):
        return {"workload": self.name, "title": self.title,
                "figures": [f.as_dict() for f in self.figures if f.values],
                "systems": self.systems, "missing": self.absent,
                "targets": self.targets, "notes": self.notes, "data": self.data}

    def text(self):
        lines = ["", "%s: %s" % (self.name, self.title), "",
                 "  %-72s %14s %30s %8s  %s" % ("", "median", "spread", "ratio", "others' CPU")]
        for f in filter(lambda f: f.values, self.figures):
            others = statistics.median(f.others)
            lines.append("  %-72s %14s %30s %8s  %s" % (
                f.name, show(f.median(), f.unit),
                "%s .. %s" % (show(min(f.values), f.unit), show(max(f.values), f.unit))
                if len(f.values) > 1 else "",
                "" if f.against is None else "%.2f" % f.against,
                "%.0f %%%s" % (others, " (disturbed)" if others > DISTURBED else "")))
        for name, why in self.absent.items():
            lines.append("  MISSING: %s: %s" % (name, why))
        for name, system in self.systems.items():
            lines.append("  %s: %s" % (name, "; ".join(filter(None, (
                system["version"], system["settings"])))))
        for note in self.notes:
            lines.append("  note: " + note)
        for t in self.targets:
            lines.append("  %s: %s: %.4g, target %s %g" % (
                "met" if t["met"] else "MISSED", t["text"], t["measured"],
                "at least" if t["at_least"] else "at most", t["bound"]))
        return "\n".join(lines)


def show(measured, unit):
    if unit == "x":
        return "%.2f x" % measured
    if unit.endswith("/s"):
        return "%s %s" % (format(round(measured), ","), unit)
    return "%.4g %s" % (measured, unit)


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * p / 100.0), len(ordered) - 1)]
