"""Lines over time as an SVG, drawn by gnuplot."""

import math
import os
import shutil
import subprocess

SCRIPT = """
set terminal svg size 900,520 dynamic background rgb 'white' font 'sans-serif,13'
set output '%(path)s'
set title '%(title)s' noenhanced
set xlabel '%(x)s' offset 0, 0.5
set ylabel '%(y)s'
set logscale y
set format y '%%.0s%%c'
set grid ytics linecolor rgb '#dddddd'
set key below Left reverse noenhanced
set arrow from 0, graph 0 to 0, graph 1 nohead linecolor rgb '#888888' dashtype 2
set label '%(left)s' at 0, graph 0.97 right offset -0.5, 0 textcolor rgb '#666666'
set label '%(right)s' at 0, graph 0.97 left offset 0.5, 0 textcolor rgb '#666666'
plot %(plots)s
"""
COLORS = ["#c0392b", "#e67e22", "#2c3e50", "#2980b9", "#27ae60", "#8e44ad", "#7f8c8d"]


def lines(path, title, x, y, sides, series):
    """series: {name: [(x, y), ...]}; sides: what is said left and right of 0.

    Gives back why there is no plot, or None."""
    if shutil.which("gnuplot") is None:
        return "gnuplot is not installed"
    plots, data = [], []
    for i, (name, points) in enumerate(series.items()):
        plots.append("'-' using 1:2 with lines linewidth %s linecolor rgb '%s' title '%s'" % (
            3 if i < 2 else 2, COLORS[i % len(COLORS)], name.replace("'", "")))
        # omit values without a logarithm
        data += ["%g %g" % p for p in points if not math.isnan(p[1]) and p[1] > 0] + ["e"]
    script = SCRIPT % {"path": path, "title": title, "x": x, "y": y, "left": sides[0],
                       "right": sides[1], "plots": ", ".join(plots)}
    done = subprocess.run(["gnuplot"], text=True, capture_output=True,
                          input=script + "\n".join(data) + "\n")
    if done.returncode != 0 or not os.path.exists(path):
        return "gnuplot failed: " + done.stderr.strip()[-500:]
    return None
