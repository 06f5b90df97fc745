"""What the workloads share: sessions, settings, pgbench, CPU use."""

import os
import re
import subprocess
import threading
import time

DISTURBED = 10			# percent of the machine that others use
patience = 20			# seconds to wait for a quiet machine, once per measurement
patience_left = 60		# and in the whole run
size = "usual"			# or "try", "quick", "full"


class BenchError(Exception):
    pass


def few(number):
    """The number; with the size "try" a part of a large one, enough to see that all runs."""
    large = size == "try" and isinstance(number, int) and number >= 100
    return number // 20 if large else number


def pick(quick, usual, full=None, least=None):
    """How much is measured, by the size of the run; least with "try", unless few() says it."""
    if size == "try":
        if least is not None:
            return least
        return tuple(map(few, quick)) if isinstance(quick, tuple) else few(quick)
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
        try:
            self.psql.stdin.write("%s;\n\\echo %s\n" % (sql.rstrip().rstrip(";"), self.MARK))
            self.psql.stdin.flush()
        except BrokenPipeError:
            self.psql.wait()
            raise BenchError(self.psql.stderr.read().strip() or "psql ended")

    def finish(self):
        lines = []
        while True:
            line = self.psql.stdout.readline()
            if line == "":
                self.psql.wait()
                raise BenchError(self.psql.stderr.read().strip() or "psql ended")
            line = line.rstrip("\n")
            if line == self.MARK:
                return lines
            lines.append(line)

    def lost(self):
        return self.psql.poll() is not None

    def close(self):
        try:
            self.psql.stdin.close()
            self.psql.wait(10)
        except BrokenPipeError:
            self.psql.wait()
        except subprocess.TimeoutExpired:		# a statement still runs
            self.psql.kill()
            self.psql.wait()


_sessions = threading.local()	# a program's other threads have their own


def admin():
    """This thread's session for everything that is not measured; anew if it was lost."""
    session = getattr(_sessions, "mine", None)
    if session is not None and session.lost():
        leave()
        wait_for_server()
        session = None
    if session is None:
        session = _sessions.mine = Session()
    return session


def leave():
    """Close that session; the next use opens another."""
    session = getattr(_sessions, "mine", None)
    _sessions.mine = None
    if session is not None:
        session.close()


def wait_for_server(timeout=60):
    """After a crash, until it has recovered."""
    end = time.monotonic() + timeout
    while subprocess.run(["pg_isready", "-q"]).returncode != 0 and time.monotonic() < end:
        time.sleep(0.1)


def sql(text):
    return admin().run(text)


def value(text):
    lines = sql(text)
    return lines[0] if lines else None


def number(text):
    return float(value(text) or 0)


def alter_system(settings):
    """{name with __ for the point: setting, or None to set it back}"""
    for name, setting in settings.items():
        name = name.replace("__", ".")
        if setting is None:
            sql("ALTER SYSTEM RESET %s" % name)
        else:
            # a list must not become one quoted name
            parts = setting.split(",") if name.endswith("_libraries") else [setting]
            sql("ALTER SYSTEM SET %s = %s" % (name, ", ".join("'%s'" % part for part in parts)))


def set_config(**settings):
    """Change settings of postgresql.conf; None sets one back."""
    alter_system(settings)
    sql("SELECT pg_reload_conf()")
    time.sleep(0.2)


def restart(**settings):
    """The same for settings that need a restart of the server."""
    alter_system(settings)
    leave()
    data = os.environ["PGDATA"]
    subprocess.run(["pg_ctl", "restart", "-s", "-w", "-m", "fast", "-D", data,
                    "-l", os.path.join(data, "server.log")],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)


# Objects created by a workload: extensions, schemas, roles.
MADE = """SELECT format('DROP EXTENSION %I CASCADE', extname) FROM pg_extension WHERE extname <> 'plpgsql'
    UNION ALL SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
        WHERE nspname !~ '^(pg_|information_schema$)'
    UNION ALL SELECT format('DROP OWNED BY %I; DROP ROLE %I', rolname, rolname) FROM pg_roles
        WHERE rolname !~ '^pg_' AND rolname <> current_user"""


def clean():
    """The server as it was in the beginning, whatever a workload has left."""
    leave()
    wait_for_server()
    for statement in sql(MADE):
        # the schema may have been dropped with its extension
        sql("DO $do$ BEGIN %s; EXCEPTION WHEN undefined_object OR invalid_schema_name THEN END $do$" % statement)
    sql("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    sql("GRANT USAGE ON SCHEMA public TO PUBLIC")
    if value("SELECT count(*) FROM pg_file_settings WHERE sourcefile LIKE '%/postgresql.auto.conf'") != "0":
        sql("ALTER SYSTEM RESET ALL")
        restart()
    sql("CREATE EXTENSION jobq")


def flush():
    """Make everything that was committed so far durable."""
    sql("SET synchronous_commit = on; SELECT pg_logical_emit_message(true, '', '')")


# 100 bytes of text
PAYLOAD = """'{"pad": "%s"}'::jsonb""" % ("x" * 88)


def wait_for(condition, what, timeout=120, interval=0.005):
    end = time.monotonic() + timeout
    while value("SELECT %s" % condition) != "t":
        if time.monotonic() > end:
            raise BenchError("%s did not happen within %d s" % (what, timeout))
        time.sleep(interval)


# ---------------------------------------------------------------- pgbench

def pgbench(script, clients, seconds=None, rounds=None, protocol="prepared"):
    """Run a pgbench script; gives back its result as a dict."""
    command = pgbench_command(clients, seconds, rounds, protocol)
    done = subprocess.run(command, input=script, text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip()[-2000:])
    if seconds is not None and "tps = " not in done.stdout:
        return pgbench(script, clients, 5 * seconds, protocol=protocol)		# the machine is too busy
    return {
        "tps": float(re.search(r"tps = ([\d.]+)", done.stdout).group(1)),
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


def own_cpu():
    """CPU seconds of this program, the server, and all that they started."""
    return _own_ticks() / TICKS


def cpu_since(begun):
    """CPU seconds since own_cpu() was called: at least a tick, so that ratios are defined."""
    return max(own_cpu() - begun, 1 / TICKS)


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
    """CPU seconds of those that still run, without this process: not in ticks,
    which hide what many processes use that do a little each."""
    total = 0
    for pid in _own_processes():
        if int(pid) == os.getpid():
            continue
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
