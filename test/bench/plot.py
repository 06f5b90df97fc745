"""Lines over time as an SVG, drawn by gnuplot."""

import os
import shutil
import subprocess

SCRIPT = """
set terminal svg size 900,480 dynamic background rgb 'white' font 'sans-serif,13'
set output '%(path)s'
set title '%(title)s' noenhanced
set xlabel '%(x)s'
set ylabel '%(y)s'
set yrange [0:*]
set format y "%%'.0f"
set grid ytics linecolor rgb '#dddddd'
set key outside bottom center horizontal noenhanced
set arrow from 0, graph 0 to 0, graph 1 nohead linecolor rgb '#888888' dashtype 2
set label '%(mark)s' at 0, graph 0.97 offset 0.5, 0 textcolor rgb '#666666'
plot %(plots)s
"""
COLORS = ["#c0392b", "#e67e22", "#2c3e50", "#2980b9", "#27ae60", "#8e44ad", "#7f8c8d"]


def lines(path, title, x, y, mark, series):
    """series: {name: [(x, y), ...]}.  Why there is no plot, or None."""
    if shutil.which("gnuplot") is None:
        return "gnuplot is not installed"
    plots, data = [], []
    for i, (name, points) in enumerate(series.items()):
        plots.append("'-' using 1:2 with lines linewidth %s linecolor rgb '%s' title '%s'" % (
            3 if i < 2 else 2, COLORS[i % len(COLORS)],
            name.replace("'", "")))
        data += ["%g %g" % p for p in points] + ["e"]
    done = subprocess.run(
        ["gnuplot"], text=True, capture_output=True,
        input=SCRIPT % {"path": path, "title": title, "x": x, "y": y, "mark": mark,
                        "plots": ", ".join(plots)} + "\n".join(data) + "\n")
    if done.returncode != 0 or not os.path.exists(path):
        return "gnuplot failed: " + done.stderr.strip()[-500:]
    return None
