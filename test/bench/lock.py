"""Time for which the lock of the ready set is held: see lock.

usage: lock.py FOLDER PROGRAMS JOBS
"""

import re
import subprocess
import sys
import time

from paired import CONF, Server

TARGET = 150
LINE = re.compile(r"lock time: ([\w ]+), exclusive (\d+) holds (\d+) ns (\d+) long (\d+) ns, "
                  r"shared (\d+) holds (\d+) ns (\d+) long (\d+) ns, waited (\d+) ns")
CLIENTS = WORKERS = 2


def read_lines(path, before):
    """The lines of the processes that have ended since the position, as (type, numbers)."""
    with open(path) as log:
        log.seek(before)
        return [(m.group(1), [int(n) for n in m.groups()[1:]]) for m in map(LINE.search, log) if m]


def position(path):
    with open(path) as log:
        return log.seek(0, 2)


def cpu_time(server):
    """Processor time of all processes of the server, in nanoseconds."""
    postmaster = open(server.data + "/postmaster.pid").readline().strip()
    children = subprocess.run(["pgrep", "-P", postmaster], capture_output=True, text=True).stdout.split()
    times = {}
    for pid in children:
        try:
            times[pid] = server.time(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass			# the process has ended meanwhile
    return times


def show(part, lines, jobs, cpu):
    """Prints the part, and returns nanoseconds of a job."""
    held = 0
    for kind in sorted({kind for kind, _ in lines}):
        n = [sum(column) for column in zip(*(numbers for k, numbers in lines if k == kind))]
        print(f"{part:8} {kind:16} {n[0] / jobs:5.2f} exclusive holds of a job, {n[1] / jobs:6.1f} ns; "
              f"{n[4] / jobs:5.2f} shared, {n[5] / jobs:5.1f} ns; {n[2] + n[6]} long holds, "
              f"{(n[3] + n[7]) / jobs:.1f} ns; waited {n[8] / jobs:.1f} ns")
        held += n[1] / jobs
    print(f"{part:8} {held:.0f} ns of a job with the exclusive lock, of {cpu / jobs:.0f} ns of processor time: "
          f"always held from {cpu / jobs / held:.0f} processors on")
    return held


def main():
    folder, programs, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    server = Server(folder + "/cluster", programs, CONF.replace("*=1", f"*={WORKERS}") + "fsync = off\n")
    log = folder + "/cluster/log"
    try:
        server.ask("SELECT jobq.pause('default')")
        with open(folder + "/enqueue.sql", "w") as script:
            script.write("SELECT jobq.enqueue('nothing')\n")
        before = position(log)
        clients = subprocess.Popen(
            [programs + "/pgbench", "-n", "-M", "prepared", "-h", folder + "/cluster", "-U", "postgres",
             "-c", str(CLIENTS), "-j", str(CLIENTS), "-t", str(jobs // CLIENTS), "-f", folder + "/enqueue.sql",
             "postgres"], stdout=subprocess.DEVNULL)
        cpu = {}
        while clients.poll() is None:
            for pid, spent in cpu_time(server).items():
                cpu.setdefault(pid, [spent, spent])[1] = spent
            time.sleep(0.02)
        time.sleep(0.5)
        enqueue = read_lines(log, before)
        enqueued = sum(last - first for first, last in cpu.values())
        server.ask("CHECKPOINT")
        began = cpu_time(server)
        server.ask("SELECT jobq.resume('default')")
        server.ask("SELECT jobq.wait_queue('default', '5 min')")
        ended = cpu_time(server)
        run = sum(spent - began.get(pid, 0) for pid, spent in ended.items())
        before = position(log)
    finally:
        server.stop()
    held = [show("enqueue", [line for line in enqueue if line[0] == "client backend"], jobs, enqueued),
            show("run", [line for line in read_lines(log, before) if line[0] != "client backend"], jobs, run)]
    met = max(held) <= TARGET
    print(f"target: at most {TARGET} ns: {'met' if met else 'missed'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
