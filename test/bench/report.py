#!/usr/bin/env python3
"""What a workload has found: figures, comparisons and targets.

usage: report.py FOLDER

Prints what the JSON files of a folder say as Markdown.
"""

import fnmatch
import json
import os
import statistics
import sys
import time

from lib import DISTURBED, BenchError, OtherLoad, wait_for_quiet


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
                "ratio": self.against,
                "low": min(self.values), "high": max(self.values),
                "values": self.values, "others_cpu_percent": self.others}


class Report:
    """What one workload has found, and how much time it has."""

    def __init__(self, name, title, seconds, folder):
        self.name, self.title, self.folder = name, title, folder
        self.begun = time.monotonic()
        self.end = self.begun + seconds
        self.figures, self.targets, self.notes, self.data = [], [], [], {}
        self.systems, self.absent, self.baseline = {}, {}, None
        self.load = os.getloadavg()

    def figure(self, name, unit):
        figure = Figure(name, unit)
        self.figures.append(figure)
        return figure

    def single(self, name, unit, measured, others=0.0):
        self.figure(name, unit).add(measured, others)

    def rounds(self, wanted, end):
        """So many rounds, or as many as fit; always one."""
        longest = 0
        for done in range(wanted):
            begun = time.monotonic()
            if done > 0 and begun + longest > end:
                self.note("the time was enough for %d of %d rounds" % (done, wanted))
                return
            yield done
            longest = max(longest, time.monotonic() - begun)

    def compare_many(self, wanted, measures, optional=(), part=1.0):
        """Measure in turn, A B A B.

        measures: {key: ([(name, unit), ...], function)}, where the function gives
        a value for each name.  What is optional is reported as missing if it
        fails, or if the time is up before its first round.  part: how much of the
        time left this may take.  Gives back {key: [Figure, ...]}."""
        end = time.monotonic() + part * (self.end - time.monotonic())
        figures = {key: [self.figure(*f) for f in names]
                   for key, (names, _) in measures.items()}
        for done in self.rounds(wanted, end):
            for key in list(figures):
                name = figures[key][0].name
                wait_for_quiet()
                load = OtherLoad()
                try:
                    if done == 0 and key in optional and time.monotonic() > end:
                        raise BenchError("no time was left")
                    measured = self.measure(name, measures[key][1])
                except BenchError as error:
                    if key not in optional or isinstance(error, OutOfTime):
                        raise
                    self.missing(name, str(error))
                    for figure in figures.pop(key):
                        self.figures.remove(figure)
                    continue
                others = load.percent()
                for figure, value in zip(figures[key], measured):
                    figure.add(value, others)
        return figures

    def compare(self, wanted, measures, part=1.0):
        """The same for one figure each: {name: (unit, function)}."""
        figures = self.compare_many(wanted, {
            name: ([(name, unit)], lambda measure=measure: [measure()])
            for name, (unit, measure) in measures.items()}, part=part)
        return {name: figure for name, (figure,) in figures.items()}

    def measure(self, name, measure, tries=2):
        """Measure; a failure is told and measured again."""
        print("  %s: %s ..." % (self.name, name), file=sys.stderr, flush=True)
        for attempt in range(tries):
            try:
                return measure()
            except BenchError as error:
                self.note("FAILURE of %s: %s" % (name, error))
                if attempt == tries - 1 or isinstance(error, OutOfTime):
                    raise

    def target(self, text, measured, bound, at_least):
        met = measured >= bound if at_least else measured <= bound
        self.targets.append({"text": text, "measured": measured,
                             "bound": bound, "at_least": at_least, "met": met})

    def ratio(self, text, figure, baseline, bound=None, at_least=True):
        """The median of the ratios, round by round, and their spread."""
        shown = self.figure(text, "x")
        for ratio, others in zip(ratios(figure, baseline), map(max, figure.others, baseline.others)):
            shown.add(ratio, others)
        if bound is not None:
            self.target(text, shown.median(), bound, at_least)

    def against(self, figures, baseline, what):
        """Give each figure its ratio to the baseline: the median of the rounds'."""
        self.baseline = what
        for figure in figures:
            figure.against = statistics.median(ratios(figure, baseline))

    def note(self, text):
        self.notes.append(text)

    def system(self, name, version, settings):
        """Say what a figure's system is and how it was set."""
        self.systems[name] = {"version": version, "settings": settings}

    def missing(self, name, why):
        self.absent[name] = why

    def as_dict(self):
        return {"workload": self.name, "title": self.title, "load_average": self.load,
                "seconds": round(time.monotonic() - self.begun, 1),
                "ratio_to": self.baseline,
                "figures": [f.as_dict() for f in self.figures if f.values],
                "systems": self.systems, "missing": self.absent,
                "targets": self.targets, "notes": self.notes, "data": self.data}


def ratios(figure, baseline):
    """Round by round; a time that is too short, or negative, counts as a microsecond."""
    return [max(a, 0.001) / max(b, 0.001) for a, b in zip(figure.values, baseline.values)]


class OutOfTime(BenchError):
    """A workload has taken far longer than its share."""


# ------------------------------------------------------------------- output

HEADS = ("", "median", "spread", "rounds", "ratio", "others' CPU")


def rows(report):
    """The table's rows: one per figure."""
    for f in report["figures"]:
        others = statistics.median(f["others_cpu_percent"])
        yield (f["name"], show(f["median"], f["unit"]),
               "%s .. %s" % (show(f["low"], f["unit"]), show(f["high"], f["unit"]))
               if len(f["values"]) > 1 else "",
               str(len(f["values"])),
               "" if f["ratio"] is None else "%.2f" % f["ratio"],
               "%.0f %%%s" % (others, " (disturbed)" if others > DISTURBED else ""))


def remarks(report):
    """What is said below the table."""
    if report["ratio_to"]:
        yield "ratio: to " + report["ratio_to"]
    for name, why in report["missing"].items():
        yield "MISSING: %s: %s" % (name, why)
    for name, system in report["systems"].items():
        yield "%s: %s" % (name, "; ".join(filter(None, (system["version"], system["settings"]))))
    for note in report["notes"]:
        yield "note: " + note
    for t in report["targets"]:
        yield "%s: %s: %.4g, target %s %g" % (
            "met" if t["met"] else "MISSED", t["text"], t["measured"],
            "at least" if t["at_least"] else "at most", t["bound"])
    yield "took %.0f s; load average before: %.2f" % (report["seconds"], report["load_average"][0])


def about_lines(about):
    """What was measured, on what, and how durable it was."""
    return ["jobq %s on PostgreSQL %s, %s, %d processors, Linux %s, %s; size of the run: %s" % (
        about["jobq"], about["settings"]["server_version"], about["machine"],
        about["processors"], about["system"], about["time"], about["size"]),
        "settings: " + ", ".join("%s=%s" % s for s in about["settings"].items()
                                 if s[0] != "server_version")]


def text(report):
    line = "  %-78s %14s %30s %6s %8s  %s"
    return "\n".join(["", "%s: %s" % (report["workload"], report["title"]), "", line % HEADS]
                     + [line % row for row in rows(report)]
                     + ["  " + remark for remark in remarks(report)])


# Figures shown in the README for each system: heading, workload, end of the
# figure's name, and the value of the figure.
SHORT = (("drain, jobs/s", "drain", "", "median"), ("spread", "drain", "", "spread"),
         ("ratio", "drain", "", "ratio"),
         ("pick-up p50, ms", "latency", ", p50", "median"), ("p99, ms", "latency", ", p99", "median"),
         ("kept while a snapshot is held", "snapshot", ", last quarter / none", "median"))


def short(reports):
    """A row per system with the main figures of all workloads that were run."""
    found = {r["workload"]: {f["name"]: f for f in r["figures"]} for r in reports}
    columns = [c for c in SHORT if c[1] in found]
    systems = dict.fromkeys(s for r in reports if r["workload"] in {c[1] for c in columns}
                            for s in r["systems"])
    if not columns:
        return
    yield "| | %s |" % " | ".join(c[0] for c in columns)
    yield "|" + "---|" * (len(columns) + 1)
    for system in systems:
        cells = []
        for _, workload, suffix, what in columns:
            f = found[workload].get(system + suffix)
            if f is None:
                cells.append("")
            elif what == "spread":
                cells.append("%s .. %s" % (plain(f["low"]), plain(f["high"])))
            else:
                cells.append("" if f[what] is None else plain(f[what]))
        if any(cells):
            yield "| %s | %s |" % (system, " | ".join(cells))
    yield ""


def plain(number):
    return format(round(number), ",") if number >= 100 else "%.2g" % number


def markdown(reports):
    """All of them, for people to read and to paste from."""
    yield from short(reports)
    said = None
    for report in reports:
        if about_lines(report["about"]) != said:
            said = about_lines(report["about"])
            yield from ("%s  " % line for line in said)
            yield ""
        yield "## %s: %s\n" % (report["workload"], report["title"])
        yield "| %s |" % " | ".join(HEADS)
        yield "|" + "---|" * len(HEADS)
        for row in rows(report):
            yield "| %s |" % " | ".join(cell.replace("|", "\\|") for cell in row)
        yield ""
        for remark in remarks(report):
            yield "- " + " ".join(remark.split())
        yield ""


def show(measured, unit):
    if unit == "x":
        return "%.2f x" % measured
    if unit.endswith("/s"):
        return "%s %s" % (format(round(measured), ","), unit)
    return ("%.4g %s" % (measured, unit)).strip()


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * p / 100.0), len(ordered) - 1)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    found = []
    for name in sorted(os.listdir(sys.argv[1])):
        if fnmatch.fnmatch(name, "[0-9][0-9]-*.json"):
            with open(os.path.join(sys.argv[1], name)) as f:
                found.append(json.load(f))
    print("\n".join(markdown(found)))
