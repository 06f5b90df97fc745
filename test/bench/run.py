#!/usr/bin/env python3
"""Run workloads against the server that the environment points at.

usage: run.py [--quick | --full] [--results FOLDER] [WORKLOAD]...
"""

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
import traceback

import lib

ALL = ["drain", "latency", "snapshot", "writes", "cost", "scale", "waiting", "cron",
       "enqueue", "backlog", "idle", "memory", "notify", "flow"]
QUICK = ["drain", "latency", "snapshot"]
SETTINGS = ["server_version", "fsync", "synchronous_commit", "full_page_writes",
            "shared_buffers", "max_wal_size", "wal_level", "max_connections",
            "autovacuum", "jit"]


def describe():
    lib.sql("CREATE EXTENSION IF NOT EXISTS jobq")
    about = {"size": lib.size, "time": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
             "processors": os.cpu_count(), "machine": platform.machine(),
             "system": platform.release(), "load_average": os.getloadavg(),
             "jobq": lib.value("SELECT extversion FROM pg_extension WHERE extname = 'jobq'")}
    about["settings"] = {name: lib.value("SHOW " + name) for name in SETTINGS}
    for line in lib.sql("SELECT name || '=' || setting || coalesce(unit, '') "
                        "FROM pg_settings WHERE name ~ '^jobq[.]' ORDER BY 1"):
        name, setting = line.split("=", 1)
        about["settings"][name] = setting
    return about


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    args = parser.parse_args()
    if args.quick:
        lib.patience, lib.patience_left = 2, 10
        lib.size = "quick"
    elif args.full:
        lib.size = "full"
    for name in args.workloads:
        if name not in ALL:
            parser.error("workload %s is not one of %s" % (name, ", ".join(ALL)))

    about = describe()
    print("jobq %s on PostgreSQL %s, %d processors, load average %.2f" % (
        about["jobq"], about["settings"]["server_version"], about["processors"],
        about["load_average"][0]))
    print("settings: " + ", ".join("%s=%s" % s for s in about["settings"].items()))
    sys.stdout.flush()

    reports, failed = [], []
    for name in args.workloads or (QUICK if args.quick else ALL):
        workload = importlib.import_module("workloads." + name)
        report = lib.Report(name, workload.TITLE)
        report.folder = args.results or tempfile.gettempdir()
        begun = time.monotonic()
        try:
            workload.run(report)
        except Exception:
            failed.append(name)
            report.note("FAILED: " + traceback.format_exc(limit=-2).strip())
        report.data["seconds"] = round(time.monotonic() - begun, 1)
        print(report.text())
        sys.stdout.flush()
        reports.append(report)
        if args.results:
            with open(os.path.join(args.results, name + ".json"), "w") as f:
                json.dump(dict(report.as_dict(), about=about), f, indent=1)

    targets = [t for r in reports for t in r.targets]
    missed = [t["text"] for t in targets if not t["met"]]
    print("\n%d targets met, %d missed%s%s" % (
        len(targets) - len(missed), len(missed),
        ": " + "; ".join(missed) if missed else "",
        "; failed workloads: " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
