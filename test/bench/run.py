#!/usr/bin/env python3
"""Run workloads against the server that the environment points at.

usage: run.py [--try | --quick | --full] [--results FOLDER] [WORKLOAD]...

--try runs each workload in small, only to see that it runs.
"""

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback

import lib
import report

# Seconds for each workload with --quick and without.  If the time is not enough
# for all rounds, fewer rounds are measured, but at least one.
SHARES = {"drain": (35, 120), "latency": (40, 130), "snapshot": (75, 360), "writes": (30, 50),
          "cost": (45, 56), "scale": (50, 110), "waiting": (75, 100), "cron": (130, 130),
          "enqueue": (25, 45), "backlog": (30, 30), "idle": (20, 22), "memory": (15, 10),
          "notify": (15, 20), "flow": (30, 50), "rescue": (30, 60), "roles": (120, 240), "names": (120, 240), "context": (60, 180),
          "commands": (30, 60), "workflow": (90, 240), "events": (30, 60), "limiters": (45, 120), "steps": (30, 60),
          "sets": (60, 120), "signals": (120, 300)}
QUICK = ["drain", "latency", "snapshot"]
FULL = 7200			# each with --full
HANGS = 120			# seconds beyond its share after which a workload is given up
SETTINGS = ["server_version", "fsync", "synchronous_commit", "full_page_writes",
            "shared_buffers", "max_wal_size", "wal_level", "max_connections",
            "autovacuum", "jit"]


def describe():
    lib.sql("CREATE EXTENSION IF NOT EXISTS jobq")
    about = {"size": lib.size, "time": time.strftime("%Y-%m-%d %H:%M %Z"),
             "processors": os.cpu_count(), "machine": platform.machine(),
             "system": platform.release(),
             "jobq": lib.value("SELECT extversion FROM pg_extension WHERE extname = 'jobq'")}
    about["settings"] = {name: lib.value("SHOW " + name) for name in SETTINGS}
    for line in lib.sql("SELECT name || '=' || setting || coalesce(unit, '') FROM pg_settings "
                        "WHERE name ~ '^jobq[.]' AND name ~ 'commit|workers|retention|poll' ORDER BY 1"):
        name, setting = line.split("=", 1)
        about["settings"][name] = setting
    return about


def give_up(*_):
    raise report.OutOfTime("it has taken far longer than its share of the time")


def run(name, folder, about):
    """What a workload has found, as a dict, with "failed"."""
    workload = importlib.import_module("workloads." + name)
    seconds = 1 if lib.size == "try" else lib.pick(*SHARES[name], FULL)
    found = report.Report(name, workload.TITLE, seconds, folder)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(max(seconds, SHARES[name][0]) + HANGS)
    failed = False
    try:
        workload.run(found)
    except Exception:
        failed = True
        found.note("FAILED: " + traceback.format_exc(limit=-2).strip())
    finally:
        signal.alarm(0)
    lib.clean()
    return dict(found.as_dict(), failed=failed, about=about)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--try", dest="only_try", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--results", default=tempfile.gettempdir())
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    args = parser.parse_args()
    if args.only_try:
        lib.patience = lib.patience_left = 0
        lib.size = "try"
    elif args.quick:
        lib.patience, lib.patience_left = 2, 10
        lib.size = "quick"
    elif args.full:
        lib.size = "full"
    for name in args.workloads:
        if name not in SHARES:
            parser.error("workload %s is not one of %s" % (name, ", ".join(SHARES)))

    begun = time.monotonic()
    about = describe()
    print("\n".join(report.about_lines(about)), flush=True)
    reports = []
    for name in args.workloads or (QUICK if args.quick else SHARES):
        found = run(name, args.results, about)
        print(report.text(found), flush=True)
        reports.append(found)
        with open(os.path.join(args.results, "%02d-%s.json" % (list(SHARES).index(name) + 1, name)), "w") as f:
            json.dump(found, f, indent=1)

    targets = [t for r in reports for t in r["targets"]]
    missed = [t["text"] for t in targets if not t["met"]]
    failed = [r["workload"] for r in reports if r["failed"]]
    print("\n%d targets met, %d missed%s%s; took %.0f s" % (
        len(targets) - len(missed), len(missed),
        ": " + "; ".join(missed) if missed else "",
        "; failed workloads: " + ", ".join(failed) if failed else "",
        time.monotonic() - begun))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
