"""The small clients in C that measure how soon a job is picked up."""

import os
import subprocess

from lib import BenchError

PAUSE_MS = 10


def compile_clients(folder):
    """Build latency and pickup in a folder."""
    include, lib = (subprocess.run([os.environ.get("PG_CONFIG", "pg_config"), option],
                                   text=True, capture_output=True).stdout.strip()
                    for option in ("--includedir", "--libdir"))
    for name in ("latency", "pickup"):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".c")
        subprocess.run(["cc", "-O2", "-Wall", "-I" + include, "-I/usr/include/postgresql",
                        "-o", os.path.join(folder, name), source, "-L" + lib, "-lpq"], check=True)


def measure(program, count, *args):
    """When each round was sent and received, in microseconds."""
    done = subprocess.run([program, str(count), str(PAUSE_MS)] + list(args),
                          text=True, capture_output=True)
    if done.returncode != 0:
        raise BenchError(done.stderr.strip())
    times = {"s": {}, "r": {}}
    for line in done.stdout.splitlines():
        event, i, at = line.split()
        times[event][int(i)] = int(at)
    return times["s"], times["r"]


def rounds(folder, count, *args):
    """Run a statement again and again; with a channel, listen on it, too."""
    return measure(os.path.join(folder, "latency"), count, *args)


def pick_up(folder, count, *args):
    """One statement sends, another, in a second process, takes."""
    return measure(os.path.join(folder, "pickup"), count, *args)


def differences(sent, received, count):
    if len(sent) != count or len(received) != count:
        raise BenchError("%d of %d arrived" % (len(received), count))
    return [(received[i] - sent[i]) / 1000.0 for i in sent]
